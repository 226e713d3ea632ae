"""Rebuilds runs from recorded events: the replay driver. Pure: no store, no clock, no effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ..journal.envelope import GENESIS, Event, chain
from ..journal.errors import Corrupt
from . import events as ev
from .divergence import Divergence, describe_body
from .explain import explain
from .interpreter import Interpreter
from .program import Program
from .status import RunState, ThreadStatus

_PIECE = 100
"""Events that are checked, and then decoded, at once."""


class Thread(Struct):
    """A thread's events, and what they say without running any program."""

    name: str
    bodies: list[ev.EventBody]
    recorded_at: list[int]
    """When each event was recorded, by the database's clock, microseconds since the epoch."""
    fences: list[int]
    """Which holder recorded each event."""
    status: ThreadStatus

    @property
    def head(self) -> int:
        """Seq of the newest event."""
        return len(self.bodies)

    def extend(self, events: Sequence[Event]) -> None:
        """Fold *events* that follow, which nobody checks here. Raises `UnknownEvent`."""
        bodies, apply = self.bodies, self.status.apply
        for event in events:
            body = ev.decode_event(event)
            apply(event.seq, body)
            bodies.append(body)
        self.recorded_at += [event.recorded_at for event in events]
        self.fences += [event.fence for event in events]


def load(name: str, events: list[Event]) -> Thread:
    """
    Check that *events* are the whole log of a thread from seq 1 on, and fold them.

    Raises:
        Corrupt: A gap, or a hash that does not follow from the event before.
        UnknownEvent: An event this refold cannot apply.
    """
    thread = Thread(name, [], [], [], ThreadStatus(name))
    head_hash = GENESIS
    # In pieces, so that a body is still in the processor's cache when it is decoded.
    for start in range(0, len(events), _PIECE):
        piece = events[start : start + _PIECE]
        check_chain(name, head_hash, start, piece)
        thread.extend(piece)
        head_hash = piece[-1].hash
    return thread


def check_chain(name: str, head_hash: bytes, head: int, events: Iterable[Event]) -> None:
    """
    Check that *events* follow a thread's event at *head*, which has *head_hash*.

    Raises:
        Corrupt: A gap, or a hash that does not follow from the event before.
    """
    previous = head_hash
    for position, event in enumerate(events, head + 1):
        if event.seq != position:
            raise Corrupt(name, position, f"the log has seq {event.seq} where {position} is due")
        if chain(previous, position, event) != event.hash:
            raise Corrupt(
                name, position, "its hash does not follow from the event before: it or that one was changed"
            )
        previous = event.hash


def interpret(
    program: Program, thread: Thread, run: RunState, *, accept: tuple[str, str] | None = None
) -> Interpreter:
    """
    Step *program* through the recorded events of one run; strictly: it never leaves the log.

    Args:
        program: What recorded the run, or a later version of it.
        thread: The thread.
        run: One of its runs.
        accept: One more pair (recorded digest, asked digest) between which changed requests are accepted.

    Raises:
        Divergence: The program asks for something else than the log says.
        ForeignAwait: It awaits something that is not a command of its run.
    """
    before = thread.bodies[: run.first_seq - 1]
    recorded = thread.bodies[run.first_seq - 1 : run.last_seq]
    start = thread.status.starts[run.run]
    accepted = set(run.accepted)
    if accept is not None:
        accepted.add(accept)
    interpreter = Interpreter(
        program,
        thread=thread.name,
        uid=start.uid,
        run_id=run.run,
        prior=program.prior(before),
        accepted=frozenset(accepted),
        patches=frozenset(run.patches),
        doubted=start.doubted,
    )
    interpreter.recorded_to = run.last_seq
    try:
        for seq, body in enumerate(recorded, run.first_seq):
            interpreter.apply(seq, body)
    except Divergence as found:
        explained = explain(found, program, thread.bodies, run, interpreter)
        interpreter.machine.close()
        raise explained from None
    except BaseException:
        interpreter.machine.close()
        raise
    return interpreter


def replay(program: Program, name: str, events: list[Event]) -> ThreadStatus:
    """
    Replay all runs of a thread against *program*, offline; its status if everything matches.

    Raises:
        Divergence: At the first seq where program and log disagree.
        Corrupt: The log contradicts itself.
        UnknownEvent: An event this refold cannot apply.
    """
    return replay_thread(program, load(name, events))


def replay_thread(program: Program, thread: Thread) -> ThreadStatus:
    """As `replay`, of a thread that is loaded already."""
    covered = 0
    for run in thread.status.runs:
        _check_between(thread, covered + 1, run.first_seq)
        interpret(program, thread, run).machine.close()
        covered = run.last_seq
    _check_between(thread, covered + 1, thread.head + 1)
    return thread.status


def _check_between(thread: Thread, first: int, end: int) -> None:
    """Outside of runs there are only events of the thread, and answers about calls of runs that have ended."""
    for seq in range(first, end):
        body = thread.bodies[seq - 1]
        if not isinstance(body, ev.ThreadCreated | ev.ThreadForked | ev.ToolResolved):
            raise Divergence(
                thread=thread.name, seq=seq, recorded=describe_body(body), asked="nothing: no run is going on"
            )
