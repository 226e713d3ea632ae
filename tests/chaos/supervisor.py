"""Starts workers, kills them, answers what they cannot, and judges what they leave behind."""

from __future__ import annotations

import json
import os
import random
import select
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
from chaos import oracles
from chaos.ledger import ACTED, ASKED, ENTERED, Ledger
from chaos.nursery import Nursery
from chaos.worker import EFFECTS_TABLE
from refold import Journal
from refold.journal import codec
from refold.journal.errors import StoreError, ThreadNotFound
from refold.journal.reading import read_events
from refold.journal.store import ThreadState
from refold.replay import answers, status
from refold.replay.errors import NotPending
from refold.replay.runner import read_all

FINISH_S = 60.0
"""Faults off, every thread must have finished within this time."""


class Reports:
    """What workers report, from a FIFO that all of them share."""

    def __init__(self, folder: Path) -> None:
        path = folder / "reports"
        os.mkfifo(path)
        # Open for writing too: else it would look closed whenever no worker is there.
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self.counts: Counter[str] = Counter()

    def read(self, timeout_s: float) -> list[dict[str, Any]]:
        """The reports that have come, waiting for the first at most *timeout_s*."""
        ready, _, _ = select.select([self._file], [], [], max(0.0, timeout_s))
        if not ready:
            return []
        lines = (self._rest + os.read(self._file, 1 << 16)).split(b"\n")
        self._rest = lines.pop()
        reports = [json.loads(line) for line in lines]
        self.counts.update(report["what"] for report in reports)
        return reports

    def wait_for(self, what: str, pid: int | None = None, *, timeout_s: float = FINISH_S) -> dict[str, Any]:
        """The next report of that kind, of that process; others are passed over."""
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            for report in self.read(left_s):
                if report["what"] == what and pid in (None, report["pid"]):
                    return report
        raise AssertionError(f"no report {what!r} of {pid or 'any worker'} within {timeout_s:g} s")

    def close(self) -> None:
        os.close(self._file)


class Fleet:
    """Competing workers on the same threads."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        dsn: str,
        threads: Iterable[str],
        *,
        workers: int = 2,
        **order: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        with psycopg.connect(dsn) as connection:
            # Where commits are not durable, at least the table is.
            connection.execute("set synchronous_commit = on")
            connection.execute(EFFECTS_TABLE)
        self.folder = folder
        self.threads = list(threads)
        self.ledger = Ledger(folder / "ledger")
        self.reports = Reports(folder)
        self.pids: list[int] = []
        self.finished: set[str] = set()
        self.kills = 0
        self.crashes = 0
        self.failures: list[str] = []
        self._nursery = nursery
        self._order = {"dsn": dsn, "folder": str(folder), "threads": self.threads, "turns": 5, **order}
        for _ in range(workers):
            self.start()

    def start(self) -> int:
        pid = self._nursery.start("chaos.worker:work", self._order, self.folder / "output")
        self.pids.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        self._ended(pid, self._nursery.kill(pid))
        self.kills += 1

    def watch(self, seconds: float, operate: Callable[[], None] = lambda: None) -> bool:
        """Take reports for a while; True as soon as every worker is through."""
        until_s = time.monotonic() + seconds
        while True:
            for report in self.reports.read(min(0.02, until_s - time.monotonic())):
                if report["what"] == "finished":
                    self.finished.add(report["thread"])
                elif report["what"] == "done" and report["pid"] in self.pids:
                    self._ended(report["pid"], self._nursery.wait(report["pid"]))
            if not self.pids:
                return True
            operate()
            if time.monotonic() >= until_s:
                return False

    def end(self, operate: Callable[[], None] = lambda: None) -> None:
        """Without further faults: every worker sees every thread finish, within a bounded time."""
        deadline_s = time.monotonic() + FINISH_S
        while not self.watch(0.2, operate):
            for pid in list(self.pids):
                if not _runs(pid):
                    self._ended(pid, self._nursery.wait(pid))
            if time.monotonic() > deadline_s:
                self.failures.append(
                    f"not finished within {FINISH_S:g} s: {set(self.threads) - self.finished or 'a worker'}"
                )
                for pid in list(self.pids):
                    self.kill(pid)
                return

    def close(self) -> None:
        for pid in list(self.pids):
            self.kill(pid)
        self.reports.close()

    def written(self) -> list[dict[str, Any]]:
        """What transactional tools have committed to the journal's own database."""
        with psycopg.connect(self._order["dsn"]) as connection:
            return [
                json.loads(row[0])
                for row in connection.execute("select entry from public.effects order by number")
            ]

    def acknowledged(self) -> list[Any]:
        path = self.folder / "acknowledged"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _ended(self, pid: int, code: int) -> None:
        self.pids.remove(pid)
        if code not in (0, -9):
            output = (self.folder / "output").read_text()[-3000:]
            self.failures.append(f"a worker ended by itself with code {code}: {output}")


class Operator:
    """A person who looks at parked threads and says what the ledger says, and nothing that they cannot know."""

    def __init__(self, journal: Journal, fleet: Fleet) -> None:
        self._journal = journal
        self._fleet = fleet
        self.answers: Counter[str] = Counter()

    def __call__(self) -> None:
        try:
            parked = self._journal.threads(states=[ThreadState.PARKED], limit=1000)
            for info in parked:
                if info.thread in self._fleet.threads:
                    self._settle(info.thread)
        except StoreError:
            # The server is away; the threads will still be parked when it is back.
            return

    def _settle(self, thread: str) -> None:
        events = read_events(self._journal, thread, upto=self._journal.info(thread).head, page=1000)
        run = status.fold(thread, events).current
        for open_call in [] if run is None else list(run.open.values()):
            if open_call.status != "in doubt" or self._may_yet_act(thread, open_call.call, open_call.attempt):
                continue
            acted = self._fleet.ledger.acted(thread, open_call.call, open_call.attempt)
            said: dict[str, Any] = (
                {"result": codec.encode(acted[0]["value"])} if acted else {"did_not_happen": True}
            )
            try:
                given = answers.resolve(
                    self._journal, thread, open_call.call, attempt=open_call.attempt, by="operator", **said
                )
            except NotPending:
                self.answers["too late"] += 1
            else:
                if given.fresh:
                    self.answers["happened" if acted else "did not happen"] += 1

    def _may_yet_act(self, thread: str, call: str, attempt: int) -> bool:
        """Whether a process that began this attempt still runs and has not acted."""
        entries = [
            each
            for each in self._fleet.ledger.entries()
            if (each.get("thread"), each.get("call"), each.get("attempt")) == (thread, call, attempt)
        ]
        acted = any(each["what"] == ACTED for each in entries)
        return not acted and any(each["what"] == ENTERED and _runs(each["pid"]) for each in entries)


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Verdict:
    """What the oracles said of many histories."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.started_s = time.monotonic()
        self.histories = 0
        self.rounds = 0
        self.events = 0
        self.violations: list[str] = []
        self.marks: set[str] = set()
        self.ledger: Counter[str] = Counter()
        self.screens: list[str] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_s

    def judge(self, journal: Journal, fleet: Fleet) -> None:
        """Check every thread of a fleet that has come to its end."""
        entries, acknowledged = fleet.ledger.entries() + fleet.written(), fleet.acknowledged()
        for thread in fleet.threads:
            try:
                info = journal.info(thread)
            except ThreadNotFound:
                info = None
            history = oracles.History(thread, read_all(journal, thread), info, entries, acknowledged)
            wrong = oracles.check(history)
            self.violations += wrong
            if wrong:
                self.screens.append("\n".join([*wrong, oracles.screen(history, wrong)]))
            self.marks |= oracles.marks(history)
            self.histories += 1
            self.events += len(history.events)
            self._count(history)
        self.violations += fleet.failures
        self.ledger["kills"] += fleet.kills
        self.ledger["server crashes"] += fleet.crashes
        if fleet.reports.counts["StoreUnavailable"] or fleet.crashes:
            self.marks.add("server stopped while workers wrote")

    def _count(self, history: oracles.History) -> None:
        acted = Counter((entry["tool"], entry["call"]) for entry in history.acted)
        for (name, _), times in acted.items():
            self.ledger[f"{name}: calls that acted"] += 1
            self.ledger[f"{name}: further effects"] += times - 1
        self.ledger["model: responses recorded"] += sum(1 for _ in history.of("model_responded"))
        self.ledger["model: times asked"] += sum(1 for entry in history.ledger if entry["what"] == ASKED)

    def summary(self) -> str:
        """For people: what was done, and the effect ledger."""
        lines = [
            (
                f"{self.part}: {self.rounds} rounds, {self.histories} histories, {self.events} events in "
                f"{self.seconds:.1f} s; {len(self.violations)} violations"
            ),
            *(f"  {name:<28} {count}" for name, count in sorted(self.ledger.items())),
            f"  marks: {', '.join(sorted(self.marks))}",
        ]
        return "\n".join(lines)

    def failure(self) -> str:
        """One screen of the first history that broke a promise."""
        return "\n".join([*self.violations[:10], *self.screens[:1]])


def names(prefix: str, count: int) -> Iterator[str]:
    """Names for threads, new in each round."""
    return (f"{prefix}-{number}" for number in range(count))


def pick(random_: random.Random, pids: list[int]) -> list[int]:
    """Whom to kill: as a rule one, now and then all at once."""
    return list(pids) if random_.random() < 0.15 else [random_.choice(pids)]
