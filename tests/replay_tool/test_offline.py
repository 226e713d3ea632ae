"""Many threads replayed at once: from files without any database, and without a way to reach out."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recorded_agents
import refold
from refold.journal import export
from refold.journal.errors import UsageError
from refold.journal.journal import Journal
from refold.replay.offline import Source, replay_sources, sources_of_file, sources_of_journal
from refold.replay.report import Tally, replay_events
from refold.replay.runner import read_all


async def record(journal: Journal, *threads: str) -> None:
    for thread in threads:
        await recorded_agents.agent.run(f"Note {thread}", journal=journal, thread=thread)


@pytest.fixture
async def file(memory: Journal, tmp_path: Path) -> Path:
    """Six threads of the agent and one of a stranger."""
    names = [f"t{n}" for n in range(6)]
    await record(memory, *names)
    await recorded_agents.stranger.run("Hi", journal=memory, thread="s")
    export.export_file(memory, [*names, "s"], tmp_path / "all.jsonl")
    export.export_file(memory, [*names, "s"], tmp_path / "all.jsonl.gz")
    return tmp_path / "all.jsonl"


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_files_are_replayed_in_order_in_one_process_or_several(file: Path, jobs: int, packed: str) -> None:
    sources = list(sources_of_file(f"{file}{packed}"))
    assert len(sources) == (1 if packed else 7)

    found = list(replay_sources(sources, recorded_agents.load, jobs=jobs, own=True))

    assert [each.thread for each in found] == [*(f"t{n}" for n in range(6)), "s"]
    assert [each.matched for each in found] == [True] * 6 + [False]
    assert found[-1].skipped
    assert {each.events for each in found[:6]} == {50}


@pytest.mark.parametrize("jobs", [1, 2])
def test_divergences_are_told_thread_by_thread_and_the_rest_goes_on(file: Path, jobs: int) -> None:
    found = list(replay_sources(sources_of_file(file), recorded_agents.load_other, jobs=jobs))

    tally = Tally()
    for each in found:
        tally.add(each)
    assert tally.line() == "7 threads, 303 events: 0 match, 7 diverged".replace("303", str(tally.events))
    assert not tally.sound
    first = found[0].divergence
    assert first is not None
    assert (first.seq, first.kind, first.changed) == (3, "request", ("instructions",))
    assert "message 1 (system).content" in found[0].cells()[-1]
    assert found[6].divergence is not None
    assert found[6].divergence.kind == "name"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_damaged_thread_is_told_and_the_others_are_replayed(file: Path, jobs: int) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    lines[60] = lines[60].replace(b"clerk", b"clark").replace(b"order", b"0rder").replace(b"noted", b"n0ted")
    file.write_bytes(b"".join(lines))

    found = list(replay_sources(sources_of_file(file), recorded_agents.load, jobs=jobs, own=True))

    assert [bool(each.error) for each in found] == [False, True, False, False, False, False, False]
    assert found[1].thread == "t1"
    assert "line 61" in found[1].error
    assert found[1].cells()[1:4] == ["unreadable", "0", str(found[1].seq)]


async def test_threads_of_a_journal_are_read_by_each_process(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as journal:
        await record(journal, "a", "b", "c")
        sources = list(sources_of_journal(journal))
    opens = functools.partial(Journal.open, pg_dsn)
    found = list(replay_sources(sources, recorded_agents.load, journal=opens, jobs=2))
    assert [(each.thread, each.matched) for each in found] == [("c", True), ("b", True), ("a", True)]


def test_strict_replay_of_files_needs_no_socket(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: every socket fails, the model and the tools too, and the replay still matches."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a replay reaches nothing")

    monkeypatch.setattr(socket, "socket", fail)
    monkeypatch.setattr(socket, "create_connection", fail)
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(type(recorded_agents.agent.client), "respond", fail)
    monkeypatch.setattr(type(recorded_agents.lookup), "call", fail)

    found = list(replay_sources(sources_of_file(file), recorded_agents.load, own=True))

    assert [each.matched for each in found[:6]] == [True] * 6


async def test_a_program_that_reaches_out_by_itself_cannot(memory: Journal, unused_tcp_port: int) -> None:
    """Its code connects live; on replay the connection is refused before it leaves the machine, and that is told."""
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        result = await refold.run(recorded_agents.caller, unused_tcp_port, journal=memory, thread="t")
        assert result.output == "connected"
        events = read_all(memory, "t")
        found = replay_events(recorded_agents.caller, "t", events)
        assert found.divergence is not None
        assert "NetworkRefused" in str(found.divergence)
        with socket.create_connection(("127.0.0.1", unused_tcp_port), timeout=5):
            pass  # outside of a replay nothing is refused


def test_what_cannot_be_read_is_refused_before_anything(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        list(sources_of_file(tmp_path / "none.jsonl"))
    (tmp_path / "odd.jsonl").write_text("odd\n")
    with pytest.raises(UsageError, match="no export"):
        list(replay_sources(sources_of_file(tmp_path / "odd.jsonl"), recorded_agents.load))
    with pytest.raises(UsageError, match="needs a journal"):
        list(replay_sources([Source("t")], recorded_agents.load))


@pytest.mark.slow
async def test_a_thousand_threads_of_fifty_events(
    memory: Journal, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    names = [f"t{n:04}" for n in range(1000)]
    await record(memory, *names)
    export.export_file(memory, names, tmp_path / "all.jsonl")
    rates = {}
    for jobs in (1, os.cpu_count() or 1):
        tally = Tally()
        began = time.perf_counter()
        for found in replay_sources(sources_of_file(tmp_path / "all.jsonl"), recorded_agents.load, jobs=jobs):
            tally.add(found)
        rates[jobs] = round(tally.events / (time.perf_counter() - began))
        assert (tally.matched, tally.events) == (1000, 50_000)
    print(json.dumps({"events": 50_000, "events_per_s_by_jobs": rates, "cores": os.cpu_count()}))
    record_property("events_per_s_by_jobs", rates)
