"""A thread in a simulated world, with all who look after it: whoever starts workers, and the people outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from msgspec import Raw, structs

from ..journal import codec
from ..journal.envelope import Event
from ..journal.errors import LimitExceeded, UnsupportedValue
from ..journal.store import Lease
from .errors import Effect, ModelError, ToolError
from .inbox import Approval, Cancel, Content, Input, Resolution, Signal, approval_key, resolution_key
from .opening import first_input
from .recording import failure, recordable
from .simulated_log import Log
from .simulated_process import Left
from .simulated_worker import Worker
from .simulation import FAULTS, LATENCY_US, OK, TENURES_MAX, TTL_US, Scenario, Simulation
from .status import OpenCall, RunState, ThreadStatus


class Lane:
    """
    One thread, from its first worker to the end of its run.

    A worker is started at once, and another whenever none is left and the run can go on; people answer
    what waits for them, and resolve doubts from what they know of the world outside: the truth.

    Args:
        world: Where it lives.
        scenario: What runs on it.
        name: Thread id.
    """

    def __init__(self, world: Simulation, scenario: Scenario, name: str = "t") -> None:
        self.world = world
        self.scenario = scenario
        self.name = name
        self.done = False
        self.away = False
        """Whether people answer nothing for now."""
        self.workers: list[Worker] = []
        self._answers = 0
        self._turned = False
        self.log = Log(name)
        faults = scenario.faults
        self._people = tuple(o for o in (OK, *FAULTS["people"]) if faults is None or o in faults or o == OK)
        self.world.store.create(name)
        for number, value in enumerate(scenario.inputs, 1):
            send = partial(self._send_input, f"input/{number}", value)
            world.after(number * LATENCY_US["input"], send)
        self._start()

    @property
    def status(self) -> ThreadStatus:
        """What the thread's log says."""
        return self._status()

    @property
    def events(self) -> list[Event]:
        """The thread's log."""
        return self.world.store.read(self.name, limit=1_000_000)

    def close(self) -> None:
        """The history is over: drop the programs of all workers, which a collector would do at any later time."""
        self.world.renewers.clear()
        for worker in self.workers:
            worker.drop()
        self.workers.clear()

    def left(self, worker: Worker, how: Left) -> None:
        """Look after the thread when a worker is gone, or seems to be."""
        delay_us = TTL_US + 5_000 if how in ("crash", "busy") else LATENCY_US["answer"]
        self.world.after(delay_us, self._look)

    def known_since(self, name: str, fence: int) -> int:
        """The first fence of the row of dead workers up to the one of that name; 0 if it may live."""
        for worker in self.workers:
            # Every second worker has a machine of its own: nobody can tell a dead one there from one that is cut off.
            if worker.name == name and not worker.alive and worker.number % 2 == 0:
                return (worker.tenure.known_since if worker.tenure else 0) or fence
        return 0

    def rival(self, *, steal: bool) -> None:
        """Send another worker at once."""
        self._start(steal=steal)

    def twin(self, worker: Worker) -> None:
        """Start a second loop with the lease of *worker*."""
        lease, tenure = worker.lease, worker.tenure
        if lease is None or tenure is None or tenure.ended:
            return
        info = self.world.store.info(self.name)
        now_us = self.world.now_us + self.world.jump_us
        self._start(lease=structs.replace(lease, head=info.head, head_hash=info.head_hash, now_us=now_us))

    def supersede(self) -> None:
        """Send another worker at once, with an input for which it gives up the run there is."""
        if not self._turned:
            self._turned = True
            self._start(steal=True, instead=self.scenario.turn)

    def message(self, kind: str) -> None:
        """Send what people send when nobody has asked them, if there is anything to say."""
        if kind != "input":
            for key, content in self._said(kind):
                self.post(key, content)
        elif not self._turned:
            self._turned = True
            self._send_input("input/turn", self.scenario.turn)

    def has_message(self, kind: str) -> bool:
        """Whether `message` would send anything: it has not all been sent before."""
        if kind == "input":
            return not self._turned
        there = {message.key for message in self.world.store.inbox(self.name, consumed=True)}
        return any(key not in there for key, _ in self._said(kind))

    def post(self, key: str, content: Content) -> bool:
        """Put a message into the thread's inbox; live workers will find it. False if one of that key was there."""
        fresh = self.world.send(self.name, key, content)
        if fresh:
            for worker in self.workers:
                if worker.alive and not worker.gone:
                    worker.poll()
        return fresh

    # Within

    def _start(self, *, steal: bool = False, instead: Any = None, lease: Lease | None = None) -> None:
        self.world.workers += 1
        worker = Worker(self, self.world.workers, steal=steal, instead=instead, lease=lease)
        self.workers.append(worker)
        worker.start()

    def _status(self) -> ThreadStatus:
        return self.log.status(self.world.store.read(self.name, after=self.log.head, limit=1_000_000))

    def _look(self) -> None:
        """Does the thread need a worker, or an answer?"""
        if self.done or any(worker.at_work for worker in self.workers):
            return
        status = self._status()
        run = status.current
        if run is not None and run.ended and not self._inputs_wait():
            self.done = True
            return
        if len(self.workers) >= TENURES_MAX:
            self.world.flaws.append(
                f"thread {self.name} is stuck: {run.status if run else 'no run'} after {TENURES_MAX} workers"
            )
            self.done = True
            return
        delay_us = 0
        if run is not None and self.away and run.status == "parked":
            self.world.after(TTL_US, self._look)
            return
        if run is not None and not run.ended:
            answered = not self.away and self._answer(run)
            if not answered and run.status == "waiting":
                dues = [call.due for call in run.open.values() if call.due is not None]
                if (wake_at_us := self.world.store.info(self.name).wake_at_us) is not None:
                    dues.append(wake_at_us)
                if dues:
                    delay_us = max(0, min(dues) - self.world.now_us)
                if self.away and (not dues or delay_us > TTL_US):
                    # They may be back before any clock strikes.
                    self.world.after(TTL_US, self._look)
                    return
        self.world.after(delay_us + 1_000, self._start_if_alone)

    def _start_if_alone(self) -> None:
        if not self.done and not any(worker.at_work for worker in self.workers):
            self._start()

    def _answer(self, run: RunState) -> bool:
        """Let people answer what waits for them; whether somebody has."""
        answered = False
        for call in list(run.open.values()):
            if call.status == "in doubt":
                if self.scenario.patient and run.status != "parked":
                    continue
                content: Content | None = self._truth(call)
                key = resolution_key(call.call, call.attempt)
            else:
                content = self.scenario.reply(call)
                key = approval_key(call.call) if isinstance(content, Approval) else f"signal/{call.call}"
            if content is None:
                continue
            self._answers += 1
            place = f"people.{call.call}.{self._answers}"
            post = partial(self.post, key, content)
            if self.world.chooser.pick(self._people, place) == OK:
                # What has been said before and not been taken waits for its time, as the run does.
                answered = post() or answered
            else:
                answered = True
                self.world.note("people", f"take their time over {call.call}")
                self.world.after(TTL_US, post)
        return answered

    def _truth(self, call: OpenCall) -> Resolution:
        for deed in self.world.ledger:
            if (deed.thread, deed.call, deed.attempt) != (self.name, call.call, call.attempt):
                continue
            if deed.happened and deed.kind == "model":
                # That it was asked can be found out; what it said cannot.
                return _failed(call, ModelError("its response is lost", kind="connection"), "done")
            if deed.happened:
                try:
                    value = recordable(deed.value, what=f"result of tool {deed.name!r}")
                except (UnsupportedValue, LimitExceeded) as refused:
                    return _failed(call, refused, "done")
                return Resolution(call.call, call.attempt, "returned", Raw(value), by="people")
            if deed.error is not None and not isinstance(deed.error, ToolError):
                return _failed(call, deed.error, "unknown")
        return Resolution(call.call, call.attempt, "did_not_happen", by="people")

    def _inputs_wait(self) -> bool:
        return first_input(self.world.store.inbox(self.name)) is not None

    def _send_input(self, key: str, value: Any) -> None:
        if self._status().current is None:
            # A thread that has begun nothing would take this input for its first.
            self.world.after(TTL_US, partial(self._send_input, key, value))
            return
        self.done = False
        self.post(key, Input(Raw(codec.encode(value, what="an input")), key=key, by="people"))
        self.world.after(TTL_US, self._look)

    def _said(self, kind: str) -> Iterable[tuple[str, Content]]:
        """Keys and contents of what people send when nobody has asked them, whether or not it is there already."""
        run = self._status().unfinished
        if run is None:
            return ()
        if kind == "cancel":
            return [("cancel", Cancel(run.run, "no longer wanted"))]
        return self._said_late(run) if kind == "stale" else self._said_early(run)

    def _said_early(self, run: RunState) -> Iterator[tuple[str, Content]]:
        """
        What the scenario would answer to a wait, and what is already known of a tool's call in doubt.

        That it has not happened may be true only for now: its worker will say so if it has after all.
        """
        for call in (OpenCall(f"{run.run}/0", "waits for a signal"), *run.open.values()):
            if call.status == "in doubt":
                if call.name:
                    yield resolution_key(call.call, call.attempt), self._truth(call)
            elif isinstance(content := self.scenario.reply(call), Signal):
                yield f"signal/{content.name}", content

    def _said_late(self, run: RunState) -> Iterator[tuple[str, Content]]:
        """Answers about an attempt that is not the newest of its call, and true of that one."""
        for call in run.open.values():
            if call.attempt > 1 and call.status in ("in doubt", "started"):
                earlier = OpenCall(call.call, call.status, attempt=call.attempt - 1)
                yield f"stale/{call.call}/{call.attempt}", self._truth(earlier)


def _failed(call: OpenCall, error: BaseException, effect: Effect) -> Resolution:
    return Resolution(call.call, call.attempt, "failed", error=failure(error), effect=effect, by="people")
