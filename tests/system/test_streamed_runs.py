"""A streamed run over HTTP, killed with SIGKILL in the middle of each stream and at each boundary after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher import Launched, Launcher, awaited
from openai_server import OpenAIServer, Reply
from refold import Journal
from refold.replay.runner import read_all

SCRIPT = '''
import os
from pathlib import Path

from refold import Agent, DidNotHappen, Happened, Journal, RunEnded, tool


def look(order: int):
    """The bank knows its refunds."""
    happened = Path("effects").exists() and f"{order}\\n" in Path("effects").read_text()
    return Happened("refunded") if happened else DidNotHappen()


@tool(in_doubt=look)
def refund(order: int) -> str:
    """Pay money back."""
    with open("effects", "a") as file:
        print(order, file=file)
    return "refunded"


agent = Agent("shop", model="openai/gpt-4o-mini", params={"api_key": "sk-test"}, tools=[refund])

if __name__ == "__main__":
    with Journal.open() as journal:
        for event in agent.stream_sync("Refund order 7.", journal=journal, thread="t", key="k"):
            if isinstance(event, RunEnded):
                print(event.result.output)
'''

REPLIES: list[Reply] = [
    {"text": "I refund it.", "calls": [{"name": "refund", "arguments": {"order": 7}}]},
    {"text": "It is refunded, all of it."},
]
STREAMS = {"in the first stream": 0, "in the second stream": 1}
POINTS: dict[str, list[Any]] = {
    "before the response is recorded": ["before", "model_responded", 1],
    "after the response is recorded": ["after", "model_responded", 1],
    "before the call has acted": ["open", 1],
    "when the call has acted": ["close", 1],
    "before its result is recorded": ["before", "tool_returned", 1],
    "after its result is recorded": ["after", "tool_returned", 1],
    "before the last response is recorded": ["before", "model_responded", 2],
    "after the end is recorded": ["after", "run_finished", 1],
}


class Scene:
    """The script in a folder, and the server it asks."""

    def __init__(self, launcher: Launcher, folder: Path, dsn: str) -> None:
        self.hold_turn: int | None = None
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.server = OpenAIServer(self._reply)
        self._launcher, self._folder, self._dsn = launcher, folder, dsn
        self._script = folder / "shop.py"
        self._script.write_text(SCRIPT)

    def _reply(self, body: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if turn != self.hold_turn:
            return REPLIES[turn]
        self.hold_turn = None
        self.asked.set()
        return {**REPLIES[turn], "hold": self.go_on, "hold_after": 3}

    def _launch(self, **options: Any) -> Launched:
        env = {"REFOLD_DSN": self._dsn, "OPENAI_BASE_URL": self.server.base_url}
        return self._launcher.launch(self._folder, script=self._script, env=env, **options)

    def kill(self, where: str) -> None:
        """Start the script and kill it there."""
        if where in STREAMS:
            self.hold_turn = STREAMS[where]
            process = self._launch()
            assert self.asked.wait(60)
        else:
            fifo = self._folder / "reached"
            with awaited(fifo) as wait:
                process = self._launch(point=POINTS[where], fifo=fifo)
                wait()
        assert process.kill() == -9
        self.go_on.set()

    def again(self) -> str:
        """Start it once more and let it come to its end."""
        process = self._launch()
        assert process.wait() == 0, process.stderr
        return process.stdout.strip()

    @property
    def kinds(self) -> list[str]:
        with Journal.open(self._dsn) as journal:
            return [event.kind for event in read_all(journal, "t")]

    @property
    def effects(self) -> str:
        return (self._folder / "effects").read_text()


@pytest.fixture
def scene(launcher: Launcher, tmp_path: Path, pg_dsn: str) -> Iterator[Scene]:
    made = Scene(launcher, tmp_path, pg_dsn)
    with made.server:
        yield made
        made.go_on.set()


_whole: list[bytes] = []


@pytest.fixture
def whole(launcher: Launcher, tmp_path: Path, new_pg_dsn: Any) -> list[bytes]:
    """What an uninterrupted run asks, byte for byte."""
    if not _whole:
        folder = tmp_path / "whole"
        folder.mkdir()
        made = Scene(launcher, folder, new_pg_dsn())
        with made.server:
            assert made.again() == "It is refunded, all of it."
        _whole.extend(made.server.bodies)
    assert len(_whole) == len(REPLIES)
    return _whole


@pytest.mark.parametrize("where", [*STREAMS, *POINTS])
def test_killed_in_a_stream_or_at_a_boundary_after_it_nothing_recorded_is_asked_again_and_no_call_repeated(
    scene: Scene, whole: list[bytes], where: str
) -> None:
    """H08."""
    scene.kill(where)
    recorded = scene.kinds.count("model_responded")
    asked = len(scene.server.bodies)

    assert scene.again() == "It is refunded, all of it."

    assert scene.effects == "7\n"
    assert scene.kinds.count("model_responded") == len(REPLIES)
    assert scene.kinds.count("run_finished") == 1
    assert scene.server.bodies[:asked] == whole[:asked]
    assert scene.server.bodies[asked:] == whole[recorded:], "what was recorded is not asked again"
