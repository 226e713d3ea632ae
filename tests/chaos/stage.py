"""A thread, the processes that play on it, and what is to be said of it in the end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from chaos import oracles
from chaos.ledger import Ledger
from chaos.nursery import Nursery
from chaos.parts import PROGRAMS
from chaos.supervisor import Reports
from refold import Journal
from refold.replay.runner import read_all


class Stage:
    """One program on one thread, played by processes that the test starts, freezes and kills."""

    def __init__(self, nursery: Nursery, folder: Path, dsn: str, program: str, **order: Any) -> None:
        self.folder = folder
        self.dsn = dsn
        self.thread = program
        self.program = PROGRAMS[program]
        self.ledger = Ledger(folder / "ledger")
        self.reports = Reports(folder)
        self.heard: list[dict[str, Any]] = []
        self._nursery = nursery
        self._order = {"dsn": dsn, "folder": str(folder), "thread": program, "program": program, **order}
        self._running: set[int] = set()

    def start(self, function: str = "perform", **order: Any) -> int:
        pid = self._nursery.start(f"chaos.parts:{function}", {**self._order, **order}, self.folder / "output")
        self._running.add(pid)
        return pid

    def hear(self, what: str, pid: int | None = None) -> dict[str, Any]:
        """The next report of that kind; those before it are kept in `heard`."""
        for place, report in enumerate(self.heard):
            if report["what"] == what and pid in (None, report["pid"]):
                return self.heard.pop(place)
        while True:
            came = self.reports.read(30.0)
            assert came, f"no {what!r} of {pid}; heard {self.heard[-5:]}; {self.output()}"
            self.heard += came
            for report in came:
                if report["what"] == what and pid in (None, report["pid"]):
                    self.heard.remove(report)
                    return report

    def open_gate(self, name: str) -> None:
        """Let the tool of that name through; opening waits until it is there."""
        with (self.folder / f"gate-{name}").open("wb"):
            pass

    def gates(self, *names: str) -> None:
        for name in names:
            os.mkfifo(self.folder / f"gate-{name}")

    def wait(self, pid: int) -> int:
        self._running.discard(pid)
        return self._nursery.wait(pid)

    def kill(self, pid: int) -> None:
        self._running.discard(pid)
        self._nursery.kill(pid)

    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text()[-2000:] if path.exists() else ""

    def history(self, journal: Journal, thread: str | None = None) -> oracles.History:
        """The thread as it is now, with what the world saw of it."""
        name = thread or self.thread
        path = self.folder / "acknowledged"
        acknowledged = map(oracles.json.loads, path.read_text().splitlines() if path.exists() else ())
        return oracles.History(
            name,
            read_all(journal, name),
            journal.info(name),
            self.ledger.entries(),
            acknowledged,
            program=self.program,
        )

    def judge(self, journal: Journal, thread: str | None = None) -> oracles.History:
        """The history, of which every promise must hold."""
        history = self.history(journal, thread)
        wrong = oracles.check(history)
        assert not wrong, "\n".join([*wrong, oracles.screen(history, wrong)])
        return history

    def close(self) -> None:
        for pid in list(self._running):
            os.kill(pid, signal.SIGCONT)
            self.kill(pid)
        self.reports.close()
