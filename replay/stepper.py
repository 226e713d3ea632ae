"""Makes events out of facts and applies them at once, by the very code that replay uses."""

from __future__ import annotations

from collections.abc import Callable

from ..journal.errors import RefoldError
from . import events as ev
from .commands import Call, ToolCall
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
        self._leads_nowhere: set[str] = set()
        """Tools whose last outcome led to no other event: to a model call, or to nothing yet."""

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

    def outcome(
        self,
        call: Call,
        body: ev.EventBody,
        *,
        send: Callable[[], None],
        follow: Callable[[list[Call]], None],
    ) -> None:
        """
        Make what came of *call* an event and apply it.

        The outcome of a tool whose last one led to no other event goes out before the program is stepped with it;
        else what it leads to goes out with it, in one commit.

        Args:
            call: What is over.
            body: What came of it.
            send: Hands over what waits to be recorded.
            follow: Begins the calls that it leads to.
        """
        tool = call.command.tool.name if isinstance(call.command, ToolCall) else ""
        if tool in self._leads_nowhere:
            data = ev.encode_body(body)
            self._outbox.put(body, data)
            send()
            decoded = ev.decode_bytes(data)
            self._tell(decoded)
            calls = self._step(decoded)
        else:
            calls = self.emit(body)
        made = self._outbox.head
        follow(calls)
        if tool and self._outbox.head == made:
            self._leads_nowhere.add(tool)
        else:
            self._leads_nowhere.discard(tool)

    def adopt(self, body: ev.EventBody) -> list[Call]:
        """Apply an event that is in the log already; the calls that are to be begun because of it."""
        self._outbox.adopt(body)
        self._tell(body)
        return self._step(body)

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

    def _step(self, body: ev.EventBody) -> list[Call]:
        """Apply the newest event."""
        try:
            return self._interpreter.apply(self._outbox.head, body)
        except (RefoldError, KeyboardInterrupt) as error:
            self._halt(error)
            return []

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
