"""
README's example, word for word, against an OpenAI-compatible server through litellm, killed wherever it matters.

What is promised is proven from outside the journal: by the file that the example's tools write and by the server's log.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher import Launched, Launcher, awaited
from markdown import ROOT, blocks
from openai_server import OpenAIServer, Reply
from refold import Journal
from refold.agent.conversation import conversation
from refold.replay import rebuild
from refold.replay.runner import read_all
from shell import Shell

THREAD = "order-17"
REPLIES: list[Reply] = [
    {"calls": [{"name": "find_order", "arguments": {"order": 17}}]},
    {"calls": [{"name": "refund", "arguments": {"order": 17, "amount": 30}}]},
    {"calls": [{"name": "notify", "arguments": {"order": 17, "text": "Your 30 are on the way."}}]},
    {"text": "Your order is refunded."},
]


class Scene:
    """A folder with the example in it, a database, a server, and processes that run the example."""

    def __init__(self, launcher: Launcher, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.script = folder / "support.py"
        ((_, text),) = blocks(ROOT / "README.md", "python")
        self.script.write_text(text)
        self.dsn = dsn
        self.hold_turn: int | None = None
        self.asked = threading.Event()
        self.go_on = threading.Event()
        self.server = OpenAIServer(self._reply)
        self._launcher = launcher
        self.env = {
            "REFOLD_DSN": dsn,
            "MODEL": "openai/scripted",
            "OPENAI_API_KEY": "sk-none",
            "OPENAI_BASE_URL": self.server.base_url,
        }

    def _reply(self, body: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        reply = REPLIES[turn]
        if turn == self.hold_turn:
            self.hold_turn = None
            self.asked.set()
            return {**reply, "hold": self.go_on}
        return reply

    def again(self) -> str:
        """Simply start the script (again)."""
        return self._finish(self._launcher.launch(self.folder, script=self.script, env=self.env))

    def refold(self, *arguments: str, exit_code: int = 0) -> str:
        """The command line, from the folder."""
        return self._finish(self._launcher.launch(self.folder, cli=arguments, env=self.env), exit_code)

    def resume(self) -> str:
        """The other way to go on."""
        return self.refold("resume", THREAD, "--agent", "support:agent")

    def _finish(self, process: Launched, exit_code: int = 0) -> str:
        code = process.wait()
        assert code == exit_code, process.stderr
        return process.stdout + process.stderr

    def killed_at(self, point: list[Any]) -> None:
        """Start the script and kill it where it says."""
        if point[0] == "asked":
            self.hold_turn = point[1]
            process = self._launcher.launch(self.folder, script=self.script, env=self.env)
            assert self.asked.wait(60)
        else:
            with awaited(self.folder / "reached") as wait:
                process = self._launcher.launch(
                    self.folder, script=self.script, env=self.env, point=point, fifo=self.folder / "reached"
                )
                wait()
        assert process.kill() == -9
        self.go_on.set()

    @property
    def world(self) -> list[str]:
        """What the tools really did, in order."""
        file = self.folder / "world.log"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def kinds(self) -> list[str]:
        """The thread's log."""
        with Journal.open(self.dsn) as journal:
            return [event.kind for event in read_all(journal, THREAD)]

    def check(self) -> None:
        """The thread's chain and history are valid from every prefix, and nobody holds it any more."""
        with Journal.open(self.dsn) as journal:
            events = read_all(journal, THREAD)
            info = journal.info(THREAD)
        rebuild.load(THREAD, events)
        for end in range(len(events) + 1):
            assert_paired(conversation(events[:end]))
        assert info.holder is None
        assert info.state == "finished"


def assert_paired(messages: list[dict[str, Any]]) -> None:
    """Each call is answered exactly once, before anything else is said."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert waiting == []
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    assert waiting == []


@pytest.fixture
def scene(launcher: Launcher, tmp_path: Path, pg_dsn: str) -> Iterator[Scene]:
    made = Scene(launcher, tmp_path, pg_dsn)
    with made.server:
        yield made
        made.go_on.set()


_reference: dict[str, Any] = {}


@pytest.fixture
def reference(launcher: Launcher, tmp_path: Path, new_pg_dsn: Any) -> dict[str, Any]:
    """What an uninterrupted run asks and does."""
    if not _reference:
        folder = tmp_path / "reference"
        folder.mkdir()
        made = Scene(launcher, folder, new_pg_dsn())
        with made.server:
            said = made.again()
        made.check()
        _reference.update(said=said, requests=made.server.requests, world=made.world)
    return _reference


def test_the_example_does_what_it_says(reference: dict[str, Any]) -> None:
    assert reference["said"] == "finished Your order is refunded.\n"
    assert [line.split()[0] for line in reference["world"]] == ["find_order", "refund", "notify"]
    assert len(reference["requests"]) == len(REPLIES)


POINTS = {
    "before the start of an unsafe tool is durable": ["before", "tool_started", 2],
    "after the start, before the unsafe tool has acted": ["open", 2],
    "inside an unsafe tool that has acted": ["close", 2],
    "after an unsafe tool has returned, before the record": ["before", "tool_returned", 2],
    "after the record of an unsafe tool": ["after", "tool_returned", 2],
    "inside the model call after an unsafe tool": ["asked", 2],
    "inside a read-only tool": ["close", 1],
    "before the start of an idempotent tool is durable": ["before", "tool_started", 3],
    "inside an idempotent tool that has acted": ["close", 3],
    "after an idempotent tool has returned, before the record": ["before", "tool_returned", 3],
    "after the record of an idempotent tool": ["after", "tool_returned", 3],
    "before the end of the run is recorded": ["before", "run_finished", 1],
}
IN_DOUBT = {
    "after the start, before the unsafe tool has acted": ["--did-not-happen"],
    "inside an unsafe tool that has acted": ["--result", '"refunded 30"'],
    "after an unsafe tool has returned, before the record": ["--result", '"refunded 30"'],
}
ACTED_TWICE = {
    "inside a read-only tool": "find_order",
    "inside an idempotent tool that has acted": "notify",
    "after an idempotent tool has returned, before the record": "notify",
}


@pytest.mark.parametrize("way", ["resume", "again"])
@pytest.mark.parametrize("where", POINTS)
def test_killed_anywhere_it_goes_on_and_keeps_its_promises(
    scene: Scene, reference: dict[str, Any], where: str, way: str
) -> None:
    """H10: killed at every boundary of a tool call, with a resume or with the same script started again."""
    scene.killed_at(POINTS[where])
    recorded = scene.kinds.count("model_responded")
    go_on = scene.resume if way == "resume" else scene.again

    said = go_on()
    if where in IN_DOUBT:
        assert "parked" in said
        assert "the outcome of refund is unknown" in said
        before = scene.kinds
        assert "parked" in go_on()
        assert scene.kinds == before
        scene.refold("resolve", THREAD, "r1/4.1.1", *IN_DOUBT[where])
        said = go_on()

    assert "Your order is refunded." in said
    acts = Counter(line.split()[0] for line in scene.world)
    twice = ACTED_TWICE.get(where)
    assert acts == {"find_order": 1, "refund": 1, "notify": 1, **({twice: 2} if twice else {})}
    keys = {line.split()[2] for line in scene.world if line.startswith("notify")}
    assert len(keys) == 1
    asked = scene.server.requests
    distinct = [request for position, request in enumerate(asked) if request not in asked[:position]]
    assert distinct == reference["requests"]
    counts = [asked.count(request) for request in distinct]
    assert counts[:recorded] == [1] * recorded
    assert sum(counts) <= len(REPLIES) + 1
    scene.check()


def test_the_terminal_shows_what_the_page_shows(scene: Scene, launcher: Launcher) -> None:
    shown = next(text for _, text in blocks(ROOT / "README.md", "console") if "refold resolve" in text)
    scene.killed_at(POINTS["inside an unsafe tool that has acted"])

    Shell(launcher, scene.folder, scene.env).follow(shown)

    assert [line.split()[0] for line in scene.world] == ["find_order", "refund", "notify"]
    scene.check()


def test_the_thread_replays_against_the_example_offline_and_not_against_a_changed_one(scene: Scene) -> None:
    """H17: strict replay never leaves the log; it ends at the first difference."""
    scene.again()
    events = len(scene.kinds)

    same = scene.refold("replay", THREAD, "--agent", "support:agent")
    changed = scene.script.read_text().replace("Refund what was paid", "Refund nothing")
    (scene.folder / "changed.py").write_text(changed)
    other = scene.refold("replay", THREAD, "--agent", "changed:agent", exit_code=1)

    assert f"all {events} events match" in same
    assert "diverged at seq 3" in other
    assert "recorded:" in other
    assert "asked:" in other
    assert len(scene.server.requests) == len(REPLIES)
    assert len(scene.world) == 3


def test_a_local_server_is_reached_by_the_environment_that_the_readme_shows(scene: Scene) -> None:
    shown = next(text for _, text in blocks(ROOT / "README.md", "console") if "OPENAI_BASE_URL" in text)
    first, second = shown.splitlines()
    named = dict(word.split("=", 1) for word in shlex.split(first.removeprefix("$ export ")))
    assert second == "$ python support.py"
    assert named["OPENAI_BASE_URL"].endswith("/v1")
    scene.env |= {**named, "OPENAI_BASE_URL": scene.server.base_url}

    assert "finished Your order is refunded." in scene.again()

    assert {request["model"] for request in scene.server.requests} == {"my-model"}


def test_a_local_server_is_reached_by_the_parameter_that_the_readme_names(scene: Scene) -> None:
    (given,) = re.findall(r"`(params=\{.*?\})`", (ROOT / "README.md").read_text())
    told = given.replace("http://localhost:8000/v1", scene.server.base_url)
    script = scene.script.read_text().replace("    instructions=", f"    {told},\n    instructions=")
    scene.script.write_text(script)
    del scene.env["OPENAI_BASE_URL"]

    assert "finished Your order is refunded." in scene.again()

    assert len(scene.server.requests) == len(REPLIES)
