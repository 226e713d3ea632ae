"""The store level: a real server behind a proxy that loses messages and answers at every call of a run."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

import fuzz_report
import pytest
from appends import verify
from conftest import PostgresServer
from fault_proxy import Cut, FaultProxy
from refold import Agent, Journal, ScriptedModel, ToolContext, tool
from refold.agent.scripted import call
from refold.journal import wire
from refold.journal.store import AppendResult, Outcome
from refold.replay import rebuild
from refold.replay.runner import read_all

SOON_S = 60.0
WORDS = ("create", "acquire", "run_started", "model_responded", "tool_returned", "run_finished", "release")
CUTS = [(cut, word) for word in WORDS for cut in Cut]
MARKS = {f"{cut} {word}" for cut, word in CUTS}


async def broken(journal: Journal, direct: Journal, thread: str) -> list[str]:
    """What is wrong with a run of an agent with a parallel pair and a single call, none of them repeatable."""
    done: list[str] = []

    @tool
    def act(name: str, context: ToolContext) -> str:
        """Act."""
        done.append(name)
        return f"did {name}"

    model = ScriptedModel([[call("act", name="a"), call("act", name="b")], call("act", name="c"), "done"])
    agent = Agent("whole", model=model, tools=[act])
    wrong: list[str] = []
    try:
        async with asyncio.timeout(SOON_S):
            result = await agent.run("go", journal=journal, thread=thread)
        events = read_all(direct, thread)
        verify(events)
        rebuild.replay(agent.program, thread, events)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return [f"{thread}: {type(error).__name__}: {error}"]
    if (result.status, result.output) != ("finished", "done"):
        wrong.append(f"{thread}: {result.status}, {result.output!r}")
    if sorted(done) != ["a", "b", "c"]:
        wrong.append(f"{thread}: acted {done}")
    if model.count != 3:
        wrong.append(f"{thread}: the model was asked {model.count} times")
    if direct.info(thread).holder is not None:
        wrong.append(f"{thread}: the lease is still held")
    return wrong


@pytest.mark.fuzz
async def test_a_run_that_loses_any_answer_does_everything_once(
    proxy: FaultProxy,
    database: str,
    postgres_server: PostgresServer,
    long: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """H24: the connection breaks before, during and after every call of a run; then (`make fuzz`) at any two."""
    placements: list[Sequence[tuple[Cut, str]]] = [(cut,) for cut in CUTS]
    if long:
        placements += itertools.product(CUTS, repeat=2)
    hit: set[str] = set()
    violations: list[str] = []
    begun = time.monotonic()
    with Journal.open(proxy.dsn(database)) as journal, Journal.open(postgres_server.dsn(database)) as direct:
        for first, *more in placements:
            thread = " then ".join(f"{word}-{cut}" for cut, word in (first, *more))
            proxy.arm(*first, *more)
            violations += await broken(journal, direct, thread)
            if not more and proxy.cut.is_set():
                hit.add(f"{first[0]} {first[1]}")
    fuzz_report.record(
        "store",
        "answers lost",
        histories=len(placements),
        seconds=time.monotonic() - begun,
        violations=violations,
        marks=MARKS,
        marks_hit=hit,
    )
    with capsys.disabled():
        print(f"\nanswers lost: {len(placements)} runs, {len(violations)} break a promise")
    assert not violations
    assert hit == MARKS


@pytest.mark.fuzz
async def test_a_store_that_does_not_recognise_an_append_sent_again_is_noticed(
    proxy: FaultProxy, database: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: the very same rig must go red."""
    results = wire.Wire._results

    def forgetful(self: wire.Wire, answer: Any) -> list[AppendResult]:
        return [
            AppendResult(Outcome.CONFLICT, each.head) if each.outcome is Outcome.DUPLICATE else each
            for each in results(self, answer)
        ]

    monkeypatch.setattr(wire.Wire, "_results", forgetful)
    begun = time.monotonic()
    with Journal.open(proxy.dsn(database)) as journal, Journal.open(postgres_server.dsn(database)) as direct:
        proxy.arm(Cut.AFTER, "tool_returned")
        found = await broken(journal, direct, "t")
    name = "an append sent again is not recognised"
    fuzz_report.record(
        "store",
        "canary",
        histories=1,
        seconds=time.monotonic() - begun,
        mutants_caught=[name] if found else [],
        mutants_missed=[] if found else [name],
        found=found,
    )
    assert found
