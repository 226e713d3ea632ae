"""What an error of the database means for the call that met it. One table; no psycopg here."""

from __future__ import annotations

from enum import StrEnum

from .errors import RefoldError, StoreRefused, StoreUnavailable, TransactionSpoilt, UsageError


class Verdict(StrEnum):
    """What is known of a call that ended with an error."""

    AMBIGUOUS = "ambiguous"
    """It may have been performed: only sending it again tells."""
    AGAIN = "again"
    """Nothing was written; the same call may well succeed later, or on another server."""
    CONTENDED = "contended"
    """Nothing was written; another transaction held the row. The server is well."""
    DEFINITE = "definite"
    """Nothing was written, and sending the same again will not help."""


_BY_STATE: dict[str, Verdict] = {
    "40003": Verdict.AMBIGUOUS,  # statement_completion_unknown
    "25P03": Verdict.AMBIGUOUS,  # idle_in_transaction_session_timeout: the connection is gone
    "25P04": Verdict.AMBIGUOUS,  # transaction_timeout: the same
    "40001": Verdict.CONTENDED,  # serialization_failure
    "40P01": Verdict.CONTENDED,  # deadlock_detected
    "55P03": Verdict.CONTENDED,  # lock_not_available
    "57014": Verdict.CONTENDED,  # query_canceled: a time-out, or somebody's pg_cancel_backend
    "25006": Verdict.AGAIN,  # read_only_sql_transaction: a standby; the primary is elsewhere, or will be here
    "55006": Verdict.AGAIN,  # object_in_use
    "55000": Verdict.AGAIN,  # object_not_in_prerequisite_state: recovery, replication set-up
    "57P04": Verdict.DEFINITE,  # database_dropped
    "53400": Verdict.DEFINITE,  # configuration_limit_exceeded
}

_BY_CLASS: dict[str, Verdict] = {
    "08": Verdict.AMBIGUOUS,  # connection exceptions
    "57": Verdict.AMBIGUOUS,  # operator intervention: 57P01 admin_shutdown can follow a local commit
    "53": Verdict.AGAIN,  # insufficient resources: disk, memory, connections
    "58": Verdict.AGAIN,  # errors outside of PostgreSQL: input and output
}


def verdict(sqlstate: str | None, *, sent: bool = True) -> Verdict:
    """
    What an error with *sqlstate* says about the call.

    Args:
        sqlstate: The server's five characters; None when no server's answer came (a broken connection, an
            interrupt, any error that is not the database's).
        sent: Whether the statement can have reached the server; False for errors while connecting and for
            parameters refused before sending.
    """
    if sqlstate is None:
        return Verdict.AMBIGUOUS if sent else Verdict.DEFINITE
    found = _BY_STATE.get(sqlstate) or _BY_CLASS.get(sqlstate[:2], Verdict.DEFINITE)
    if found is Verdict.AMBIGUOUS and not sent:
        return Verdict.AGAIN
    return found


def rolled_back(error: BaseException) -> bool:
    """Whether the server gave a transaction up for the sake of another one, and asks for it to be done again."""
    return str(getattr(error, "sqlstate", None) or "").startswith("40")


_REMEDIES: dict[str, str] = {
    "42501": "rights are missing; let the owner of the schema run: select refold.allow('<role>')",
    "42883": "a function of the refold schema is missing; 'refold doctor' says more",
    "42P01": "a table of the refold schema is missing; 'refold doctor' says more",
    "RF002": "the database was moved or restored, and its transaction ids must go on above the stored ones; open the "
    "journal once as the schema's owner, as 'refold doctor' does",
    "3F000": "the refold schema is missing; 'refold init' sets it up",
    "26000": "prepared statements do not work here; behind a pooler open the journal with prepare=False",
    "42P05": "prepared statements do not work here; behind a pooler open the journal with prepare=False",
}


_SPOILS: dict[str, str] = {
    "25P02": "an SQL error in it had aborted it; put what may fail into 'with context.connection.transaction():'",
    "25006": "it had been made read only",
    "42501": "rights are missing; after SET LOCAL ROLE the tool must RESET ROLE",
}


def spoilt(why: str) -> TransactionSpoilt:
    """The failure of somebody's work after which its transaction could not be committed."""
    return TransactionSpoilt(f"the transaction could not be committed ({why}); nothing of it happened")


def refusal(sqlstate: str | None, text: str, *, sent: bool = True, worked: bool = False) -> RefoldError:
    """
    The error to raise for a database's error.

    Args:
        sqlstate: As for `verdict`.
        text: What the server or the driver said, one line.
        sent: As for `verdict`.
        worked: Whether it came in a transaction that could be written in, until somebody's work was done in it.
    """
    found = verdict(sqlstate, sent=sent)
    if worked and (found is Verdict.DEFINITE or sqlstate == "25006"):
        return spoilt(": ".join(filter(None, (text, _SPOILS.get(sqlstate or "")))))
    if found is Verdict.AMBIGUOUS:
        return StoreUnavailable(
            f"the connection to PostgreSQL broke before its answer came ({text}); the call may have been "
            "performed all the same, and making the same call again is safe",
            ambiguous=True,
        )
    if found is Verdict.AGAIN:
        return StoreUnavailable(f"PostgreSQL cannot do this now ({text}); nothing was written, try again")
    if found is Verdict.CONTENDED:
        return StoreUnavailable(
            f"the server broke the call off, as it does while another transaction holds the thread's row ({text}); "
            "nothing was written, try again",
            contended=True,
        )
    if sqlstate is None:
        return UsageError(f"PostgreSQL cannot take this value ({text}); nothing was written")
    if sqlstate in _REMEDIES:
        return StoreRefused(f"PostgreSQL refused ({text}): {_REMEDIES[sqlstate]}")
    return RefoldError(f"PostgreSQL refused with SQLSTATE {sqlstate} ({text}); nothing was written")
