"""Makes events out of facts and applies them at once, by the very code that replay uses."""

from __future__ import annotations

from collections.abc import Callable

from ..journal.errors import RefoldError
from . import events as ev
from .commands import Call
from .errors import ForeignAwait
from .interpreter import Interpreter
from .outbox import Outbox
from .recording import run_outcome


class Stepper:
    """
    A run and the events it makes.

    Args:
        interpreter: The run, with the log applied so far.
        outbox: Where its events go.

    Attributes:
        observe: Told of each event (seq, body) as it is made, before it is durable.
        halted: Why the program cannot be stepped any more; the run itself has not failed.
    """

    def __init__(self, interpreter: Interpreter, outbox: Outbox) -> None:
        self.observe: Callable[[int, ev.EventBody], None] | None = None
        self.halted: BaseException | None = None
        self._interpreter = interpreter
        self._outbox = outbox

    def emit(self, body: ev.EventBody, consumed: int | None = None) -> list[Call]:
        """
        Make *body* an event and apply it; the calls that are to be begun because of it.

        Args:
            body: What has happened. The program sees it as it will be decoded on replay.
            consumed: Inbox id of the message that the event takes.
        """
        data = ev.encode_body(body)
        decoded = ev.decode_bytes(data)
        try:
            calls = self._interpreter.apply(self._outbox.head + 1, decoded)
        except (ForeignAwait, KeyboardInterrupt) as error:
            # The event itself is fine; it is the program that cannot go on.
            self._put(decoded, data, consumed)
            self._halt(error)
            return []
        except RefoldError as error:
            self._halt(error)
            return []
        self._put(decoded, data, consumed)
        return calls

    def adopt(self, body: ev.EventBody) -> list[Call]:
        """Apply an event that is in the log already; the calls that are to be begun because of it."""
        calls: list[Call] = []
        failure: BaseException | None = None
        try:
            calls = self._interpreter.apply(self._outbox.head + 1, body)
        except (RefoldError, KeyboardInterrupt) as error:
            failure = error
        self._outbox.adopt(body)
        self._tell(body)
        if failure is not None:
            self._halt(failure)
        return calls

    def record(self, body: ev.EventBody) -> None:
        """Make *body* an event without stepping the program."""
        self._put(body)

    def implied(self) -> ev.EventBody | None:
        """The next event that follows from the program alone: a patch it asked about, or its end."""
        interpreter, outbox = self._interpreter, self._outbox
        if self.halted is not None or interpreter.ended is not None:
            return None
        if interpreter.new_patches:
            patch = interpreter.new_patches.pop(0)
            return ev.Patched(at=outbox.last_at, run=interpreter.run_id, id=patch)
        done = interpreter.machine.done
        if done is None or interpreter.cancelling:
            return None
        return run_outcome(done, interpreter.run_id, at=outbox.last_at)

    def _put(self, body: ev.EventBody, data: bytes | None = None, consumed: int | None = None) -> None:
        self._outbox.put(body, data, consumed)
        self._tell(body)

    def _tell(self, body: ev.EventBody) -> None:
        if self.observe is not None:
            self.observe(self._outbox.head, body)

    def _halt(self, error: BaseException) -> None:
        self.halted = error
        reason = f"stopped by {type(error).__name__}"
        self._put(ev.RunReleased(at=self._outbox.last_at, run=self._interpreter.run_id, reason=reason))
