"""Rebuilds runs from recorded events: the replay driver. Pure: no store, no clock, no effect."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..journal.envelope import GENESIS, Event, chain
from ..journal.errors import Corrupt
from . import events as ev
from .interpreter import Interpreter
from .program import Program
from .status import RunState, ThreadStatus, fold


class Thread(Struct):
    """A thread's events, and what they say without running any program."""

    name: str
    events: list[Event]
    status: ThreadStatus

    @property
    def head(self) -> int:
        """Seq of the newest event."""
        return len(self.events)


def load(name: str, events: list[Event]) -> Thread:
    """
    Check that *events* are the whole log of a thread from seq 1 on, and fold them.

    Raises:
        Corrupt: A gap, or a hash that does not follow from the event before.
        UnknownEvent: An event this refold cannot apply.
    """
    previous = GENESIS
    for position, event in enumerate(events, 1):
        if event.seq != position:
            raise Corrupt(name, position, f"the log has seq {event.seq} where {position} is due")
        if chain(previous, position, event) != event.hash:
            raise Corrupt(
                name, position, "its hash does not follow from the event before: it or that one was changed"
            )
        previous = event.hash
    return Thread(name, events, fold(name, events))


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
    before = thread.events[: run.first_seq - 1]
    recorded = thread.events[run.first_seq - 1 : run.last_seq]
    earlier = fold(thread.name, before)
    bodies = [ev.decode_event(event) for event in recorded]
    accepted = {(b.recorded, b.asked) for b in bodies if isinstance(b, ev.DivergenceAccepted)}
    if accept is not None:
        accepted.add(accept)
    interpreter = Interpreter(
        program,
        thread=thread.name,
        uid=earlier.uid,
        run_id=run.run,
        prior=program.prior(before),
        accepted=frozenset(accepted),
        patches=frozenset(b.id for b in bodies if isinstance(b, ev.Patched)),
        doubted=frozenset(earlier.doubted),
    )
    interpreter.remaining = len(bodies)
    for event, body in zip(recorded, bodies, strict=True):
        interpreter.remaining -= 1
        interpreter.apply(event.seq, body)
    return interpreter


def replay(program: Program, name: str, events: list[Event]) -> ThreadStatus:
    """
    Replay all runs of a thread against *program*, offline; its status if everything matches.

    Raises:
        Divergence: At the first seq where program and log disagree.
        Corrupt: The log contradicts itself.
        UnknownEvent: An event this refold cannot apply.
    """
    thread = load(name, events)
    for run in thread.status.runs:
        interpret(program, thread, run).machine.close()
    return thread.status
