"""Two processes on one thread at once."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from refold import Journal
from refold.replay import rebuild
from refold.replay.runner import read_all
from system import rivals

ROUNDS = 20


class Rival:
    """One of the two processes."""

    def __init__(self, dsn: str, barrier: Path, effects: Path) -> None:
        command = [sys.executable, rivals.__file__, dsn, str(barrier), str(effects)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


class Duel:
    """Both, the barrier, and what they did."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.barrier = folder / "barrier"
        self.barrier.touch()
        self.effects = folder / "effects"
        self.rivals = [Rival(dsn, self.barrier, self.effects) for _ in range(2)]
        for rival in self.rivals:
            assert rival.hear() == {"status": "ready"}

    def fight(self, order: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """One round: the answers of the one that proceeded and of the one that did not."""
        with self.barrier.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for rival in self.rivals:
                rival.tell(order)
                assert rival.hear() == {"status": "waiting"}
            fcntl.flock(file, fcntl.LOCK_UN)
        first = [rival.hear() for rival in self.rivals]
        acting = [
            rival for rival, answer in zip(self.rivals, first, strict=True) if answer["status"] == "acting"
        ]
        refused = [answer for answer in first if answer["status"] != "acting"]
        assert (len(acting), len(refused)) == (1, 1), first
        acting[0].tell("go on")
        return acting[0].hear(), refused[0]


@pytest.fixture
def duel(pg_dsn: str, tmp_path: Path) -> Iterator[Duel]:
    made = Duel(pg_dsn, tmp_path)
    yield made
    for rival in made.rivals:
        rival.close()


def test_of_two_that_take_up_a_thread_at_once_one_is_refused_before_any_effect(
    duel: Duel, pg_dsn: str
) -> None:
    """H14: twenty rounds behind a barrier, half of them a resume and half the same run started twice."""
    with Journal.open(pg_dsn) as journal:
        for number in range(ROUNDS):
            thread = f"t{number}"
            how = "resume" if number % 2 else "run"
            if how == "resume":
                leave_unfinished(journal, thread)

            done, refused = duel.fight(f"{how} {thread}")

            assert done == {"status": "finished", "models": 1 if how == "resume" else 2}
            assert refused["status"] == "ThreadBusy"
            assert refused["models"] == 0
            assert thread in refused["why"]
            events = read_all(journal, thread)
            agent = rivals.make_agent(rivals.model_for(thread))
            assert rebuild.replay(agent.program, thread, events).head == len(events)
            assert [event.kind for event in events].count("tool_started") == 1
            fences = [event.fence for event in events]
            assert fences == sorted(fences)

    acted = duel.effects.read_text().splitlines()
    assert acted == [f"t{number}" for number in range(ROUNDS)]


def leave_unfinished(journal: Journal, thread: str) -> None:
    """A run whose first model response is recorded and whose tool has not begun: its worker left in good order."""
    agent = rivals.make_agent(rivals.model_for(thread))
    runner = agent.runner(journal, thread, observe=lambda seq, body: stop(body))

    def stop(body: Any) -> None:
        if type(body).__name__ == "ModelResponded":
            runner.stop("for the test", grace_s=0)

    import asyncio

    asyncio.run(runner.run("go"))
