"""The calls of `schema.sql`'s functions: their texts, what goes in and what comes out. No psycopg here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

from .envelope import Event
from .store import Admission, Append, AppendResult, Fork, Message, Outcome, ThreadInfo, ThreadState

Params = tuple[Any, ...]
Row = tuple[Any, ...]


APPEND: LiteralString = """
select refold.append(
  %s, %s::int8, %b, %s::int8, %s::float8, %s, %s::int8, %b, %s, %s::int2, %b, %b)
"""
APPEND_AND_COMMIT: LiteralString = """
select refold.append(
  %s, %s::int8, %b, %s::int8, %s::float8, %s, %s::int8, %b, %s, %s::int2, %b, %b),
  pg_catalog.set_config('idle_in_transaction_session_timeout', %s::int8::text, true),
  extract(epoch from pg_catalog.now())::float8
"""
BEGIN: LiteralString = """
select set_config('idle_in_transaction_session_timeout', least(%s::float8 * 1000, 2147483647)::int8::text, true),
       current_setting('transaction_read_only') = 'off', extract(epoch from now())::float8
"""
SINCE: LiteralString = "select extract(epoch from pg_catalog.now())::float8"
CREATE: LiteralString = "select refold.create(%s)"
ACQUIRE: LiteralString = """
select outcome, fence, head, head_hash, state, remaining_s, name, left_open, now_us
  from refold.acquire(%s, %b, %s, %s::float8, %s::int8)
"""
RENEW: LiteralString = "select refold.renew(%s, %s::int8, %s::float8)"
RELEASE: LiteralString = "select refold.release(%s, %s::int8, %s::int8)"
RECORDED: LiteralString = "select refold.recorded(%s, %s::int8, %b)"
READ: LiteralString = """
select seq, id, kind, version, fence, recorded_at, hash, body
  from refold.read(%s, %s::int8, %s::int8, %s::int8)
"""
FEED: LiteralString = """
select xid, thread, seq, id, kind, version, fence, recorded_at, hash, body
  from refold.feed(%s::int8, %s, %s::int8, %s::int8)
"""
SEND: LiteralString = """
select outcome, (message).id, (message).thread, (message).key, (message).kind, (message).body,
       (message).sent_at, (message).consumed_seq
  from refold.send(%s, %s, %s, %b)
"""
MESSAGES: LiteralString = """
select id, thread, key, kind, body, sent_at, consumed_seq from refold.messages(%s, %s::int8, %s)
"""
ADMIT: LiteralString = """
select outcome, fault from refold.admit(
  %s, %s::int8, %b, %s, %b::uuid[], %b::text[], %b::int2[], %b::int8[], %b::bytea[], %b::bytea[])
"""
FORK: LiteralString = """
select refold.fork(
  %s, %s, %s::int8, %b, %s, %b::uuid[], %b::text[], %b::int2[], %b::bytea[], %b::bytea[],
  %b::text[], %b::text[], %b::bytea[])
"""
ADOPT: LiteralString = "select refold.adopt(%s)"
_STANDING: LiteralString = """
select thread, head, head_hash, fence, holder, lease_remaining_s, state, wake_at, created_at, updated_at,
       inbox_waiting, sealed, holder_name
"""
INFO: LiteralString = _STANDING + "from refold.standing where thread = %s"
LIST: LiteralString = _STANDING + "from refold.list(%s::int8, %s, %s::int8, %s::text[], %s)"


def append_params(append: Append) -> Params:
    """Parameters of APPEND, for an append of one event that takes no message."""
    (event,) = append.events
    return (
        append.thread,
        append.expected,
        append.expected_hash,
        append.fence,
        append.ttl_s,
        append.state.value,
        append.wake_at_us,
        event.id,
        event.kind,
        event.version,
        append.hashes[0],
        event.body,
    )


def admit_params(admission: Admission) -> Params:
    """Parameters of ADMIT."""
    events = admission.events
    return (
        admission.thread,
        admission.expected,
        admission.expected_hash,
        admission.state.value,
        [event.id for event in events],
        [event.kind for event in events],
        [event.version for event in events],
        [event.recorded_at for event in events],
        [event.hash for event in events],
        [event.body for event in events],
    )


def fork_params(fork: Fork) -> Params:
    """Parameters of FORK."""
    events, messages = fork.events, fork.messages
    return (
        fork.thread,
        fork.origin,
        fork.upto,
        fork.upto_hash,
        fork.state.value,
        [event.id for event in events],
        [event.kind for event in events],
        [event.version for event in events],
        list(fork.hashes),
        [event.body for event in events],
        [key for key, _, _ in messages],
        [kind for _, kind, _ in messages],
        [body for _, _, body in messages],
    )


def list_params(
    after: tuple[int, str] | None, limit: int, states: Sequence[ThreadState] | None, *, attention: bool
) -> Params:
    """Parameters of LIST."""
    at, thread = after or (None, "")
    wanted = ThreadState if states is None else states
    return at, thread, max(limit, 0), [state.value for state in ThreadState if state in wanted], attention


def append_result(answer: str, append: Append) -> AppendResult:
    """What the server's answer says became of *append*."""
    if answer == "appended":
        return AppendResult(Outcome.APPENDED, append.expected + len(append.events))
    outcome, head = answer.split()
    return AppendResult(Outcome(outcome), int(head))


def message_of(row: Row) -> Message:
    """A row of the inbox."""
    number, thread, key, kind, body, sent_at, consumed_seq = row
    return Message(
        id=number, thread=thread, key=key, kind=kind, body=body, sent_at=sent_at, consumed_seq=consumed_seq
    )


def info_of(row: Row) -> ThreadInfo:
    """A row of `refold.standing`."""
    thread, head, head_hash, fence, holder, remaining_s, state, wake_at, created_at, updated_at, *rest = row
    waiting, sealed, holder_name = rest
    return ThreadInfo(
        thread=thread,
        head=head,
        head_hash=head_hash,
        fence=fence,
        holder=holder,
        lease_remaining_s=remaining_s,
        state=ThreadState(state),
        wake_at_us=wake_at,
        created_at=created_at,
        updated_at=updated_at,
        inbox_waiting=waiting,
        sealed=sealed,
        holder_name=holder_name,
    )


def events_of(thread: str, rows: Sequence[Row]) -> list[Event]:
    """Rows of READ."""
    return [Event(thread, *row) for row in rows]
