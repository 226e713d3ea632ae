"""From figures to ratios, a Markdown table and a JSON file."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from measure import Bench, Figures, each_of

MB = 1024 * 1024
PEERS = ("refold", "dbos", "absurd", "langgraph sync", "langgraph async", "tenxgraph")
TARGETS = {
    "turn_over_raw": ("one tool turn over two raw committed inserts", "<=", 1.6),
    "turn_10000_over_10": ("turn 10,000 over turn 10", "<=", 1.1),
    "langgraph_over_refold_n200": ("LangGraph sync, overhead a turn at N=200", ">=", 10),
    "tenxgraph_over_refold_n200": ("10xGraph, a turn at N=200", ">=", 50),
    "dbos_over_refold_step": ("DBOS, a recorded step, 1 thread", ">=", 8),
    "absurd_over_refold_step": ("Absurd, a recorded step, 1 thread", ">=", 2.5),
    "append_over_raw": ("one append of 1 KB over one raw committed insert", "<=", 1.25),
    "dbos_over_refold_64": ("recorded events a second, 64 threads, over DBOS", ">=", 20),
    "absurd_over_refold_64": ("recorded events a second, 64 threads, over Absurd", ">=", 8),
    "batched_floor_share_64": ("share of a bare loop of equal batches, 64 threads", ">=", 0.5),
    "wal_over_content_bytes": ("WAL a turn above its content, bytes", "<=", 1500),
    "table_over_content": ("heap, TOAST and indexes over body bytes, N=1,000", "<=", 1.6),
    "replay_events_per_s": ("offline replay with full matching, events a second", ">=", 100_000),
    "temporal_over_refold_replay": ("Temporal's Replayer, time a turn", ">=", 15),
    "resume_10000_s": ("resume of 10,000 events in a new process, seconds", "<=", 0.3),
    "resume_10000_mb": ("its peak memory, MB", "<=", 150),
}


def ratios(figures: Figures) -> dict[str, float | None]:
    """The figures that the targets speak of; None where something was not measured."""
    found: dict[str, float | None] = dict.fromkeys(TARGETS)

    def put(key: str, value: Callable[[], float]) -> None:
        try:
            found[key] = value()
        except (statistics.StatisticsError, IndexError, KeyError):
            found[key] = None

    turn = lambda name, n, threads=1: _turn_s(figures, f"{name} n={n} threads={threads}")  # noqa: E731
    put("turn_over_raw", lambda: _median_ratio(figures, "turn", "turn_s", "raw_turn_s"))
    put("append_over_raw", lambda: _median_ratio(figures, "append", "store_s", "raw_s"))
    put(
        "turn_10000_over_10",
        lambda: statistics.median(each_of(figures, "growth", lambda m: m["turn_last_s"] / m["turn_10_s"])),
    )
    put(
        "langgraph_over_refold_n200",
        lambda: (turn("langgraph sync", 200) - turn("langgraph bare", 200)) / turn("refold", 200),
    )
    put("tenxgraph_over_refold_n200", lambda: turn("tenxgraph", 200) / turn("refold", 200))
    for peer in ("dbos", "absurd"):
        put(f"{peer}_over_refold_step", lambda peer=peer: turn(peer, 200) / turn("refold", 200))
        put(f"{peer}_over_refold_64", lambda peer=peer: _events_64(figures) * turn(peer, 25, 64) / 2)
    put(
        "batched_floor_share_64",
        lambda: statistics.median(
            each_of(figures, "many", lambda m: m["events"] / m["seconds"] / m["floor_events_per_s"])
        ),
    )
    put(
        "wal_over_content_bytes",
        lambda: statistics.median(
            each_of(figures, "space", lambda m: m["wal_per_turn"] - m["content_per_turn"])
        ),
    )
    put(
        "table_over_content",
        lambda: statistics.median(each_of(figures, "space", lambda m: m["table_bytes"] / m["content_bytes"])),
    )
    put("replay_events_per_s", lambda: _replay(figures))
    put(
        "temporal_over_refold_replay",
        lambda: (
            statistics.median(each_of(figures, "temporal", lambda m: m["seconds"] / 1000))
            / (3 / _replay(figures))
        ),
    )
    put("resume_10000_s", lambda: statistics.median(each_of(figures, "resume", lambda m: m["resume_s"])))
    put("resume_10000_mb", lambda: statistics.median(each_of(figures, "resume", lambda m: m["peak_mb"])))
    return found


def _turn_s(figures: Figures, name: str) -> float:
    parts = dict(part.split("=") for part in name.split() if "=" in part)
    total = int(parts["n"]) * int(parts["threads"])
    if name == "refold n=25 threads=64":
        return statistics.median(each_of(figures, "many", lambda m: m["seconds"] / total))
    return statistics.median(each_of(figures, name, lambda m: m["seconds"] / total))


def _events_64(figures: Figures) -> float:
    return statistics.median(each_of(figures, "many", lambda m: m["events"] / m["seconds"]))


def _replay(figures: Figures) -> float:
    return statistics.median(
        each_of(figures, "offline", lambda m: m["events"] / statistics.median(m["seconds"]))
    )


def _median_ratio(figures: Figures, name: str, above: str, below: str) -> float:
    pairs = [pair for m in figures[name] for pair in zip(m[above], m[below], strict=True)]
    return statistics.median(a / b for a, b in pairs)


def as_json(bench: Bench, date: str) -> dict[str, Any]:
    """Everything that was measured, as it goes into latest.json."""
    return {
        "date": date,
        "machine": machine(),
        "server": bench.cluster.settings(),
        "versions": bench.installed.versions,
        "not_compared": bench.installed.missing,
        "failures": bench.failures,
        "ratios": ratios(bench.figures),
        "figures": dict(bench.figures),
    }


def machine() -> str:
    """What this ran on."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def markdown(result: dict[str, Any]) -> str:
    """The tables, for people."""
    server = ", ".join(f"{name} {value}" for name, value in result["server"].items())
    lines = [f"{result['date']}, {result['machine']}; {server}", ""]
    lines += ["| what | measured | wanted | |", "|---|---|---|---|"]
    for key, (what, sign, wanted) in TARGETS.items():
        value = result["ratios"][key]
        if value is None:
            lines.append(f"| {what} (`{key}`) | not measured | {sign} {wanted:,} | |")
            continue
        met = value <= wanted if sign == "<=" else value >= wanted
        lines.append(
            f"| {what} (`{key}`) | {_number(value)} | {sign} {wanted:,} | {'met' if met else 'missed'} |"
        )
    figures: Figures = result["figures"]
    loops = [name for name in figures if " n=" in name]
    if loops:
        lines += [
            "",
            "| loop | ms a turn, median (spread) | WAL a turn, KB | tables, MB | peak MB | resume ms |",
        ]
        lines.append("|---|---|---|---|---|---|")
        lines += [_loop_row(figures, name) for name in sorted(loops, key=_order)]
    lines += ["", "| refold | median | spread |", "|---|---|---|"]
    lines += [
        f"| {what} | {_number(statistics.median(v))} | {_number(min(v))} to {_number(max(v))} |"
        for what, v in _own(figures)
        if v
    ]
    for name, why in {**result["not_compared"], **result["failures"]}.items():
        lines.append(f"\nNot measured: {name}: {why}")
    return "\n".join(lines) + "\n"


def _loop_row(figures: Figures, name: str) -> str:
    parts = dict(part.split("=") for part in name.split() if "=" in part)
    total = int(parts["n"]) * int(parts["threads"])
    ms = each_of(figures, name, lambda m: m["seconds"] / total * 1000)
    spread = f"{_number(statistics.median(ms))} ({_number(min(ms))} to {_number(max(ms))})"
    one = figures[name][0]
    cells = [
        _number(one["wal_bytes"] / total / 1024) if "wal_bytes" in one else "",
        _number(one["table_bytes"] / MB) if "table_bytes" in one else "",
        _number(max(m["peak_mb"] for m in figures[name])),
        _number(statistics.median(m["resume_s"] for m in figures[name]) * 1000) if "resume_s" in one else "",
    ]
    return f"| {name} | {spread} | " + " | ".join(cells) + " |"


def _order(name: str) -> tuple[int, int, str]:
    parts = dict(part.split("=") for part in name.split() if "=" in part)
    return int(parts["threads"]), int(parts["n"]), name


def _own(figures: Figures) -> Iterable[tuple[str, list[float]]]:
    def flat(name: str, key: str, scale: float) -> list[float]:
        return [
            v * scale
            for m in figures.get(name, [])
            for v in (m[key] if isinstance(m[key], list) else [m[key]])
        ]

    yield "raw committed insert of 1 KB, ms", flat("append", "raw_s", 1e3)
    yield "append of the store, ms", flat("append", "store_s", 1e3)
    yield "append of the store, client CPU, ms", flat("append", "store_cpu_s", 1e3)
    yield "append of a tenure (through the writer thread), ms", flat("append", "tenure_s", 1e3)
    yield "append of a tenure, client CPU, ms", flat("append", "tenure_cpu_s", 1e3)
    yield "two raw committed inserts, ms", flat("turn", "raw_turn_s", 1e3)
    yield "one tool turn, ms", flat("turn", "turn_s", 1e3)
    yield "one recorded step, ms", flat("step", "step_s", 1e3)
    yield "64 threads, a turn's CPU in the client, ms", flat("many", "cpu_per_turn_s", 1e3)
    yield "64 threads, events a commit", flat("many", "batch", 1)
    yield "64 threads, events a second", each_of(figures, "many", lambda m: m["events"] / m["seconds"])
    yield "64 threads, appends alone, events a second", flat("many_appends", "events_per_s", 1)
    yield "64 threads, bare batches, events a second", flat("many", "floor_events_per_s", 1)
    yield "offline replay, s", flat("offline", "seconds", 1)
    yield "of that, decoding and the chain, s", flat("offline", "load_s", 1)
    yield "Temporal's Replayer, the same turns, s", flat("temporal", "seconds", 1)
    yield "resume of 10,000 events, s", flat("resume", "resume_s", 1)


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
