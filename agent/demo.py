"""
`refold demo`: a refund agent whose worker process is killed twice, and the proof that nothing was done twice.

The proof comes from outside the journal: tools append what they do to one file, and the model's client appends
what it is asked to another, each line flushed to disk before anything else happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..journal import embedded
from ..journal.envelope import Event
from ..journal.errors import RefoldError, StoreError
from ..journal.journal import Journal
from ..journal.reading import read_events
from ..replay import events as ev
from ..replay.rebuild import replay
from ..replay.text import visible
from ..replay.timeline import record
from .demo_worker import QUESTION, make_agent

THREAD = "refund-demo"
PATIENCE_S = 60.0
PATIENCE_LIVE_S = 300.0

Tell = Callable[[str], object]


class Claim(Struct, frozen=True):
    """One thing that the demo proves, and what was found."""

    claim: str
    holds: bool
    found: str


class Proof(Struct, frozen=True, kw_only=True):
    """What the demo showed."""

    claims: list[Claim]
    events: list[Event]
    kept: dict[str, str]

    @property
    def holds(self) -> bool:
        """Whether all of it is true."""
        return all(claim.holds for claim in self.claims)

    def record(self) -> dict[str, Any]:
        """For a JSON document."""
        return {
            "holds": self.holds,
            "claims": self.claims,
            "events": [record(event) for event in self.events],
            "kept": self.kept,
        }

    def lines(self) -> Iterator[str]:
        """For a terminal; the events apart."""
        yield ""
        yield "Proof, from files that the tools and the model's client wrote:"
        for claim in self.claims:
            yield f"  {'ok  ' if claim.holds else 'FAIL'}  {visible(claim.claim)} ({visible(claim.found)})"
        for name, where in self.kept.items():
            yield f"{name}: {visible(where)}"


def run_demo(*, model: str | None, keep: bool, tell: Tell) -> Proof:
    """
    Run the agent, kill its worker twice, resume it twice, and look at what was done.

    Args:
        model: A litellm model to ask; by default a script answers.
        keep: Leave the folder and the embedded server as they are.
        tell: Told what goes on.

    Raises:
        MissingExtra: The embedded Postgres is not installed.
        StoreError: It does not start.
        RefoldError: A worker ended before it came to the point where it was to be killed.
    """
    # Never the user's own journal, whose threads stay for good.
    folder = Path(tempfile.mkdtemp(prefix="refold-demo-"))
    home = folder / "home"
    thread = f"{THREAD}-{folder.name.rpartition('-')[2]}"
    try:
        tell(f"starting an embedded Postgres under {home}")
        dsn = embedded.start(home)
        with Journal.open(dsn) as journal:
            demo = _Demo(journal, dsn, thread, folder, model, tell)
            demo.act()
            kept = {"folder": str(folder), "dsn": dsn, "thread": thread} if keep else {}
            return Proof(claims=demo.claims(), events=demo.events(), kept=kept)
    finally:
        if not keep:
            with contextlib.suppress(StoreError):
                embedded.stop(home, immediately=True)
            shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    """One performance."""

    def __init__(
        self, journal: Journal, dsn: str, thread: str, folder: Path, model: str | None, tell: Tell
    ) -> None:
        self._journal = journal
        self._dsn = dsn
        self._thread = thread
        self._folder = folder
        self._model = model
        self._tell = tell
        self._pids: list[int] = []
        self._began_s = journal.sources.monotonic_s()

    def act(self) -> None:
        """Two workers die, the third one finishes."""
        self._say(f"the customer writes: {QUESTION}")
        with self._worker("--stop-after", "refund") as worker:
            worker.wait_for("stopped")
            self._wait_until_recorded("refund")
            worker.kill()
        self._say(
            f"worker {worker.pid} killed with SIGKILL: the refund's result was recorded, nothing after it"
        )
        with self._worker("--stop-in", "send_email") as worker:
            worker.wait_for("stopped")
            worker.kill()
        self._say(f"worker {worker.pid} killed with SIGKILL: inside send_email, after the mail had gone out")
        with self._worker() as worker:
            answer = worker.wait_for("finished")
        self._say(f"worker {worker.pid} finished: {answer}")

    def events(self) -> list[Event]:
        """The thread's log."""
        return list(read_events(self._journal, self._thread))

    def claims(self) -> list[Claim]:
        """What is to be proved, looked up in the files."""
        effects = _lines(self._folder / "effects.jsonl")
        asked = Counter(line["request"] for line in _lines(self._folder / "model.jsonl"))
        events = self.events()
        bodies = [ev.decode_event(event) for event in events]
        responses = sum(isinstance(body, ev.ModelResponded) for body in bodies)
        refunds = Counter(line["order"] for line in effects if line["did"] == "refund")
        mails = [line for line in effects if line["did"] == "send_email"]
        keys = {line["key"] for line in mails}
        again = sum(count - 1 for count in asked.values())
        matched = len(replay(make_agent(self._folder, self._model).program, self._thread, events).runs)
        return [
            Claim("each refund was made once", set(refunds.values()) == {1}, _counted(refunds)),
            Claim(
                "the mail interrupted by the kill was sent again under the same idempotency key, so it arrives once",
                len(mails) == 2 and len(keys) == 1,
                f"sent {len(mails)} times under {len(keys)} key",
            ),
            Claim(
                "no recorded model response was asked for again",
                again == 0 and len(asked) == responses,
                f"{sum(asked.values())} requests, {responses} recorded responses",
            ),
            Claim(
                "three processes did it",
                len(set(self._pids)) == 3,
                f"pids {', '.join(map(str, self._pids))}",
            ),
            Claim(
                "the run finished and its log replays offline",
                isinstance(bodies[-1], ev.RunFinished) and matched == 1,
                f"{len(events)} events match",
            ),
        ]

    @contextlib.contextmanager
    def _worker(self, *options: str) -> Iterator[_Worker]:
        command = [sys.executable, "-P", "-m", f"{__package__}.demo_worker", str(self._folder), self._thread]
        if self._model is not None:
            command += ["--model", self._model]
        worker = _Worker(
            [*command, *options], self._dsn, PATIENCE_S if self._model is None else PATIENCE_LIVE_S
        )
        self._pids.append(worker.pid)
        self._say(f"worker {worker.pid} runs the agent on thread {self._thread}")
        try:
            yield worker
        finally:
            worker.kill()

    def _wait_until_recorded(self, tool: str) -> None:
        calls: set[str] = set()
        deadline_s = self._journal.sources.monotonic_s() + PATIENCE_S
        after = 0
        while self._journal.sources.monotonic_s() < deadline_s:
            for event in self._journal.read(self._thread, after=after):
                after = event.seq
                body = ev.decode_event(event)
                if isinstance(body, ev.ToolStarted) and body.tool == tool:
                    calls.add(body.call)
                if isinstance(body, ev.ToolReturned) and body.call in calls:
                    return
            time.sleep(0.02)
        raise RefoldError(f"the result of {tool} was not recorded within {PATIENCE_S:g} s")

    def _say(self, text: str) -> None:
        self._tell(f"{self._journal.sources.monotonic_s() - self._began_s:6.2f} s  {text}")


class _Worker:
    """A worker process; it says on its standard output where it stands."""

    def __init__(self, command: Sequence[str], dsn: str, patience_s: float) -> None:
        self._patience_s = patience_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "REFOLD_DSN": dsn},
        )
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_for(self, word: str) -> str:
        """Wait until it says *word*; what it says after that."""
        try:
            while (line := self._said.get(timeout=self._patience_s)) is not None:
                first, _, rest = line.strip().partition(" ")
                if first == word:
                    return rest
        except queue.Empty:
            raise RefoldError(
                f"worker {self.pid} did not come to {word!r} within {self._patience_s:g} s"
            ) from None
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"exit code {self._process.returncode}"
        raise RefoldError(f"worker {self.pid} ended before it came to {word!r}: {why}")

    def kill(self) -> None:
        """Kill it with SIGKILL and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._errors.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.put(line)
        self._said.put(None)


def _lines(path: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _counted(counts: Counter[str]) -> str:
    return (
        ", ".join(f"order {order}: {count}" for order, count in sorted(counts.items())) or "no refund at all"
    )
