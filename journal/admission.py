"""The part of a database's store that takes events in from another journal. No psycopg here."""

from __future__ import annotations

from typing import LiteralString

from . import statements as sql
from .envelope import check_thread_id
from .errors import Corrupt, ThreadNotFound
from .limits import check_events
from .store import Admission, Admitted


class Admitting:
    """Keeps recorded events with their ids, hashes and times, in threads that are sealed until adopted."""

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

    def adopt(self, thread: str) -> bool:
        """Let a sealed thread be acquired; False if it was not sealed. Raises `ThreadNotFound`."""
        answer = self._ask(sql.ADOPT, (check_thread_id(thread),))[0][0]
        if answer is None:
            raise ThreadNotFound(thread)
        return bool(answer)
