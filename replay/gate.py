"""The write-ahead rule: an effect begins only when the events that led to it are durable."""

from __future__ import annotations

from .commands import Call, ToolCall
from .host import Host
from .outbox import Outbox


class Gate:
    """
    The effects of a session: those that wait for events to be durable, and those under way.

    Args:
        host: Performs them.
        outbox: Knows what is durable.

    Attributes:
        alone: Path of the transactional tool under way; beside it nothing begins and nothing is written.
    """

    def __init__(self, host: Host, outbox: Outbox) -> None:
        self.alone: str | None = None
        self._transaction: Call | None = None
        self._host = host
        self._outbox = outbox
        self._waiting: list[tuple[int, Call]] = []
        self._attempts: dict[str, int] = {}
        """Attempt by path of whatever waits or is under way."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._attempts

    @property
    def waits(self) -> bool:
        """Whether something waits to begin."""
        return bool(self._waiting)

    def holds(self, call: Call) -> bool:
        """Whether an attempt of *call* waits or is under way."""
        return call.path in self._attempts

    def hold(self, seq: int, call: Call) -> None:
        """Begin the next attempt of *call* when seq *seq* is durable."""
        attempt = self._attempts[call.path] = call.attempt + 1
        # Not what must be alone: more may be about to be written in this very step.
        if seq <= self._outbox.durable and self.alone is None and not _must_be_alone(call):
            self._host.perform(call, attempt)
        else:
            self._waiting.append((seq, call))

    def reconcile(self, call: Call) -> None:
        """Ask the outside world about the attempt of *call* that is in doubt."""
        self._attempts[call.path] = call.attempt
        self._host.reconcile(call, call.attempt)

    def open(self) -> None:
        """Begin what waited long enough; a transactional tool waits until everything is durable."""
        if not self._waiting or self.alone is not None:
            return
        waiting, self._waiting = self._waiting, []
        for position, (seq, call) in enumerate(waiting):
            alone = _must_be_alone(call)
            if seq > self._outbox.durable or (alone and not self._outbox.empty):
                self._waiting.append((seq, call))
            elif alone:
                self.alone, self._transaction = call.path, call
                self._waiting += waiting[position + 1 :]
                self._host.transact(call, self._attempts[call.path])
                return
            else:
                self._host.perform(call, self._attempts[call.path])

    def over(self, path: str, attempt: int) -> bool:
        """That attempt has come to its end; False if nobody waits for it any more."""
        if self._attempts.get(path) != attempt:
            return False
        del self._attempts[path]
        if self.alone == path:
            self.alone = None
        return True

    def drop(self) -> list[Call]:
        """Begin nothing of what waits; those calls."""
        dropped = [call for _, call in self._waiting]
        self._waiting.clear()
        for call in dropped:
            del self._attempts[call.path]
        return dropped

    def abandon(self, call: Call) -> None:
        """Wait no longer for what is under way, and ask it to stop."""
        del self._attempts[call.path]
        self._host.abandon(call)

    def roll_back(self) -> None:
        """Let the transactional tool under way commit no more; that it has come to its end is told all the same."""
        if self._transaction is not None and self.alone is not None:
            self._host.abandon(self._transaction)

    def forget(self, call: Call | None) -> None:
        """Wait no longer for *call*: it has been answered while its reconciler was still being asked."""
        if call is not None and self.holds(call):
            self.abandon(call)


def _must_be_alone(call: Call) -> bool:
    return isinstance(call.command, ToolCall) and call.command.tool.transactional
