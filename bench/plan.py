"""What is measured, and in which order: everybody once a round, so that all meet the same weather."""

from __future__ import annotations

import time
import uuid

from measure import Bench, rounds

SIZES = (50, 200, 1000)
MANY_TURNS = 25
RESUME_TURNS = 3333


def quick(bench: Bench) -> None:
    """refold against the raw floor alone."""
    bench.cluster.fresh("refold")
    for _ in rounds(2):
        bench.refold("append", "append", blocks=8)
        bench.refold("interleaved", "turn", turns=50, blocks=8)
        bench.refold("step", "step", turns=200)
        bench.refold("many", "many", turns=MANY_TURNS, threads=64)
        bench.refold("offline", "offline", turns=1000, blocks=3)


def full(bench: Bench, count: int) -> None:
    """Everything; some minutes a round."""
    bench.cluster.fresh("refold")
    for number in rounds(count):
        _refold(bench)
        _peers(bench, number)
    bench.cluster.fresh("refold_space")
    bench.refold("space", "space", database="refold_space", turns=1000)
    for _ in range(3):
        bench.refold("growth", "growth", turns=10_000)
        _resume(bench)


def _refold(bench: Bench) -> None:
    bench.refold("append", "append", blocks=10)
    bench.refold("interleaved", "turn", turns=50, blocks=10)
    bench.refold("step", "step", turns=200)
    for turns in SIZES:
        bench.refold("turns", f"refold n={turns} threads=1", turns=turns, threads=1)
    bench.refold("turns", "refold n=50 threads=8", turns=50, threads=8)
    bench.refold("many", "many", turns=MANY_TURNS, threads=64)
    bench.refold("many_appends", "many_appends", turns=100, threads=64)
    bench.refold("offline", "offline", turns=1000, blocks=3)
    if "temporal" in bench.installed.pythons:
        bench.drive("temporal", "temporal", task="replay", turns=1000)


def _resume(bench: Bench) -> None:
    thread = str(uuid.uuid4())
    if bench.refold("unfinished", "unfinished", turns=RESUME_TURNS, thread=thread):
        bench.refold("resume", "resume", turns=RESUME_TURNS, thread=thread)


def _peers(bench: Bench, number: int) -> None:
    there = bench.installed.pythons
    for driver in ("dbos", "absurd"):
        if driver in there:
            for turns in SIZES:
                bench.peer(driver, driver, turns, 1)
            bench.peer(driver, driver, 50, 8)
            bench.peer(driver, driver, MANY_TURNS, 64)
    if "langgraph" in there:
        for turns in SIZES[:2]:
            for durability in ("sync", "async", None):
                label = f"langgraph {durability or 'bare'}"
                bench.peer("langgraph", label, turns, 1, durability=durability)
        bench.peer("langgraph", "langgraph sync", 50, 8, durability="sync")
        if number == 1:
            bench.peer("langgraph", "langgraph sync", MANY_TURNS, 64, durability="sync")
            for durability in ("sync", None):
                bench.peer("langgraph", f"langgraph {durability or 'bare'}", 1000, 1, durability=durability)
    if "tenxgraph" in there:
        for bare in (False, True):
            label = "tenxgraph bare" if bare else "tenxgraph"
            bench.peer("tenxgraph", label, 50, 1, bare=bare)
            if number <= 2:
                bench.peer("tenxgraph", label, 200, 1, bare=bare)
        if number == 1:
            bench.peer("tenxgraph", "tenxgraph", 50, 8)


def began() -> str:
    """Today's date, for the report."""
    return time.strftime("%Y-%m-%d", time.gmtime())
