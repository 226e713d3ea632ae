"""The part of a database's store that makes threads of events recorded elsewhere. No psycopg here."""

from __future__ import annotations

from typing import LiteralString

from . import statements as sql
from .envelope import check_thread_id
from .errors import Corrupt, ThreadNotFound
from .limits import check_batch, check_events, check_message
from .store import Admission, Admitted, Fork


class Admitting:
    """
    Keeps recorded events with their ids, hashes and times: those of another journal in threads that are sealed
    until adopted, those of another thread in forks.
    """

    def _ask(self, query: LiteralString, params: sql.Params) -> list[sql.Row]:
        raise NotImplementedError

    def admit(self, admission: Admission) -> Admitted:
        """Keep events of another journal in a sealed thread, or say why not. Safe to send again unchanged."""
        check_thread_id(admission.thread)
        check_events(admission.thread, admission.events)
        ((outcome, fault),) = self._ask(sql.ADMIT, sql.admit_params(admission))
        if outcome == "corrupt":
            raise Corrupt(admission.thread, fault, "its hash does not follow from the event before")
        return Admitted(outcome)

    def fork(self, fork: Fork) -> bool:
        """Make a thread of another one's first events and some of its own, all at once."""
        check_fork(fork)
        outcome = self._ask(sql.FORK, sql.fork_params(fork))[0][0]
        if outcome == "missing":
            raise not_there(fork)
        return bool(outcome == "forked")

    def adopt(self, thread: str) -> bool:
        """Let a sealed thread be acquired; False if it was not sealed. Raises `ThreadNotFound`."""
        answer = self._ask(sql.ADOPT, (check_thread_id(thread),))[0][0]
        if answer is None:
            raise ThreadNotFound(thread)
        return bool(answer)


def check_fork(fork: Fork) -> None:
    """Raise `LimitExceeded` unless the fork can be made."""
    check_thread_id(fork.thread)
    check_batch(fork.thread, fork.upto, fork.events)
    for key, kind, body in fork.messages:
        check_message(fork.thread, key, kind, body)


def not_there(fork: Fork) -> Corrupt:
    """The origin is not what was read of it."""
    return Corrupt(fork.origin, fork.upto, "its hash is not the one that was read; nothing was forked")
