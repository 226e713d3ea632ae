"""
One transaction that is lent to somebody's work and records it; whatever that work does to it, the outcome is honest.

Knows the shape of psycopg's connections, which are given to it, and imports no driver.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, LiteralString

from . import statements as sql
from .errors import RefoldError, StoreUnavailable, TransactionEnded
from .sqlstate import rolled_back, spoilt
from .store import Append, AppendResult, Outcome

COMMIT_WITHIN_MS = 10_000


class _Theirs(Exception):
    """Carries an exception of somebody else's work out of a transaction, untranslated."""

    def __init__(self, error: BaseException, *, ended: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.ended = ended


class _Undone(Exception):
    """Rolls a transaction back whose append was not taken."""

    def __init__(self, result: AppendResult) -> None:
        super().__init__(result.outcome)
        self.result = result


class LentTransaction:
    """
    Args:
        connection: Has no transaction under way; of no more use to others afterwards.
        execute: Executes a statement of ours on it, whatever has become of its settings, and gives the rows.
        errors: The driver's errors.
        refusal: Makes ours of one of them, told whether the work had been done by then.
    """

    def __init__(
        self,
        connection: Any,
        *,
        execute: Callable[[LiteralString, sql.Params], list[sql.Row]],
        errors: type[Exception],
        refusal: Callable[[Any, bool], RefoldError],
    ) -> None:
        self._connection = connection
        self._execute = execute
        self._errors = errors
        self._refusal = refusal
        self._began: float | None = None
        self._worked = False

    def run(self, work: Callable[[Any], Append], limit_s: float) -> AppendResult:
        """
        As `Store.transact`.

        Raises:
            TransactionSpoilt: After the work nothing could be committed any more; nothing of it happened.
            TransactionEnded: The work sent COMMIT or ROLLBACK.
        """
        try:
            with self._connection.transaction():
                return self._run(work, limit_s)
        except _Undone as undone:
            return undone.result
        except _Theirs as theirs:
            if theirs.ended:
                raise TransactionEnded from theirs.error
            if self._connection.broken or rolled_back(theirs.error):
                # Whatever the work made of it: its transaction is gone, and with it all that it did.
                raise _lost(str(theirs)) from theirs.error
            raise theirs.error from None
        except self._errors as error:
            raise self._refusal(error, self._worked) from error

    def _run(self, work: Callable[[Any], Append], limit_s: float) -> AppendResult:
        # Whoever stands still in here must not keep locks for ever that its successor waits for.
        ((_, writable, self._began),) = self._execute(sql.BEGIN, (limit_s,))
        if not writable:
            raise StoreUnavailable("PostgreSQL takes no writes now; nothing was written, try again")
        try:
            append = work(self._connection)
        except BaseException as error:
            self._close_unless_free()
            raise _Theirs(error, ended=self._failed_and_ended()) from error
        self._worked = True
        self._check()
        params = (*sql.append_params(append), COMMIT_WITHIN_MS)
        ((answer, _, began),) = self._execute(sql.APPEND_AND_COMMIT, params)
        result = sql.append_result(answer, append)
        if result.outcome is not Outcome.APPENDED:
            raise _Undone(result)
        if began != self._began:
            raise TransactionEnded
        return result

    def _check(self) -> None:
        """Whether the work left something that one can append in; the append itself tells if it is another one."""
        if self._close_unless_free():
            raise spoilt("a statement, COPY or pipeline in it was left unfinished")
        match self._status():
            case "IDLE":
                raise TransactionEnded
            case "UNKNOWN" if self._connection.broken:
                raise _lost("the connection broke")
            case "UNKNOWN":
                raise spoilt("its connection was closed")

    def _close_unless_free(self) -> bool:
        """Close it where something left unfinished would hold up whoever ends the transaction; whether that was so."""
        unfree = self._status() == "ACTIVE" or self._connection.info.pipeline_status.name != "OFF"
        if unfree:
            self._connection.close()
        return unfree

    def _failed_and_ended(self) -> bool:
        """Whether work that failed had ended the transaction, as far as can be told."""
        if self._status() == "INTRANS":
            with suppress(self._errors):
                return bool(self._execute(sql.SINCE, ())[0][0] != self._began)
        return self._status() == "IDLE"

    def _status(self) -> str:
        name: str = self._connection.info.transaction_status.name
        return name


def _lost(why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"a transaction was lost before its COMMIT ({why}); nothing of it was written, try again"
    )
