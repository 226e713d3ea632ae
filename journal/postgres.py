"""The journal in PostgreSQL: the functions of `schema.sql`, called over psycopg. The one module that imports it."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, TypeVar
from uuid import UUID

import psycopg
from psycopg import pq
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzBinaryLoader

from . import statements as sql
from .admission import Admitting
from .envelope import Event, check_thread_id
from .errors import (
    RefoldError,
    StoreUnavailable,
    ThreadNotFound,
    ThreadSealed,
    UsageError,
)
from .install import check_server, ensure_schema
from .lent_transaction import LentTransaction
from .limits import check_message
from .lines import ANSWER_S, WAIT_S, Lines
from .sources import SYSTEM
from .sqlstate import refusal
from .store import (
    Append,
    AppendResult,
    Busy,
    Cursor,
    Lease,
    Message,
    Page,
    Release,
    Sent,
    ThreadInfo,
    ThreadState,
)
from .wire import Wire

T = TypeVar("T")


class Connection(psycopg.Connection[sql.Row]):
    """
    A connection that can make appends past psycopg's cursors, whose care for types they do not need, and that is
    over when its server gives no sign of life.

    Attributes:
        more_s: How much longer than `ANSWER_S` an answer may take, seconds.
    """

    more_s = 0.0
    _wired: Wire | None = None

    def wait(self, gen: PQGen[T], *args: Any, **parts: Any) -> T:
        """As psycopg has it, and no longer than the server is alive."""
        return super().wait(self._while_alive(gen), *args, **parts)

    def _while_alive(self, gen: PQGen[T]) -> PQGen[T]:
        limit_s, heard_s = ANSWER_S + self.more_s, SYSTEM.monotonic_s()
        ready: Any = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as end:
                result: T = end.value
                return result
            ready = yield wanted
            if ready:
                heard_s = SYSTEM.monotonic_s()
            elif SYSTEM.monotonic_s() - heard_s > limit_s:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"no answer within {limit_s:g} s")

    def wire(self, *, prepare: bool, keep: Callable[[Connection], None]) -> Wire:
        """The connection for appends; *keep* takes it back."""
        if self._wired is None:
            ends = {"keep": lambda: keep(self), "close": self.close}
            refused = psycopg.errors.error_from_result
            self._wired = Wire(self.pgconn, prepare=prepare, refused=refused, **ends)
        return self._wired


_SHORT_CALLS_MAX = 8
_PREPARE_AFTER = 5

# A server that vanished without a word must not hold an append for the hours TCP would wait.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "refold",
}

_EPOCH_US = 946_684_800_000_000

# Errors psycopg raises by itself, before anything is sent, are of these classes and carry no SQLSTATE.
_UNSENT = (psycopg.DataError, psycopg.ProgrammingError, psycopg.NotSupportedError)


class _MicrosLoader(Loader):
    """A timestamptz as microseconds since the epoch: exact, and without a datetime for each row."""

    format = pq.Format.BINARY

    def load(self, data: Buffer) -> int:
        return int.from_bytes(data, "big", signed=True) + _EPOCH_US


class PostgresStore(Admitting):
    """
    Threads in a PostgreSQL database; made by `open`.

    Every call is one statement on an autocommit connection and relies on nothing of the session.
    """

    def __init__(self, conninfo: str, *, unsafe: bool, prepare: bool, identity: str) -> None:
        self._conninfo = conninfo
        self._unsafe = unsafe
        self._prepare = prepare
        self._identity = identity
        self._pid = os.getpid()
        self._lines = Lines(self._connected)
        self._short_calls = threading.BoundedSemaphore(_SHORT_CALLS_MAX)
        self._at_exit = _close_at_exit(self)

    @classmethod
    def open(
        cls, dsn: str, *, unsafe: bool = False, prepare: bool = True, install: bool = True
    ) -> PostgresStore:
        """
        Connect, check the server and see that the schema is there.

        Args:
            dsn: Connection string or URL.
            unsafe: Accept a server that may lose what it has acknowledged.
            prepare: Use prepared statements, unless a pooler is seen to stand between.
            install: Set the schema up if it is missing.

        Raises:
            UsageError: The connection string is malformed.
            StoreUnavailable: The server cannot be reached.
            StoreRefused: Server, rights or schema are unfit.
        """
        conninfo = _conninfo(dsn)
        connection = _connect(conninfo)
        try:
            identity = set_up(connection, unsafe=unsafe, install=install)
        finally:
            connection.close()
        return cls(conninfo, unsafe=unsafe, prepare=prepare, identity=identity)

    @property
    def identity(self) -> str:
        """Which database on which server this is."""
        return self._identity

    def create(self, thread: str) -> bool:
        """Make *thread* if it is not there; True if it was made now."""
        check_thread_id(thread)
        return bool(self._ask(sql.CREATE, (thread,))[0][0])

    def info(self, thread: str) -> ThreadInfo:
        """The thread's row. Raises `ThreadNotFound`."""
        rows = self._ask(sql.INFO, (check_thread_id(thread),))
        if not rows:
            raise ThreadNotFound(thread)
        return sql.info_of(rows[0])

    def threads(
        self,
        *,
        after: tuple[int, str] | None = None,
        limit: int = 100,
        states: Sequence[ThreadState] | None = None,
        attention: bool = False,
    ) -> list[ThreadInfo]:
        """Threads, newest first, one keyset page."""
        rows = self._ask(sql.LIST, sql.list_params(after, limit, states, attention=attention))
        return [sql.info_of(row) for row in rows]

    def acquire(
        self, thread: str, *, holder: UUID, ttl_s: float, name: str = "", steal: int | None = None
    ) -> Lease | Busy:
        """Take the thread if it is free, expired, or already *holder*'s; the fence grows unless it is."""
        check_thread_id(thread)
        ((outcome, fence, head, head_hash, state, remaining_s, holder_name, left_open, now_us),) = self._ask(
            sql.ACQUIRE, (thread, holder, name, ttl_s, steal)
        )
        if outcome == "missing":
            raise ThreadNotFound(thread)
        if outcome == "sealed":
            raise ThreadSealed(thread)
        if outcome == "busy":
            return Busy(remaining_s, fence, holder_name)
        return Lease(
            thread=thread,
            holder=holder,
            fence=fence,
            head=head,
            head_hash=head_hash,
            state=ThreadState(state),
            ttl_s=ttl_s,
            left_open=left_open,
            now_us=now_us,
            before=holder_name or "",
        )

    def renew(self, thread: str, *, fence: int, ttl_s: float) -> bool:
        """Renew the lease for *ttl_s* from now; False if the fence is not current."""
        params = (thread, fence, ttl_s)
        return bool(self._on_line(lambda line: self._execute(line, sql.RENEW, params), urgent=True)[0][0])

    def append(self, append: Append) -> AppendResult:
        """Append a batch, or say why not."""
        return self._append([append])[0]

    def append_many(self, appends: Sequence[Append]) -> list[AppendResult]:
        """Append batches of different threads with one commit; each has its own outcome, in order."""
        if len({append.thread for append in appends}) != len(appends):
            raise UsageError("append_many takes at most one append for each thread")
        return self._append(appends) if appends else []

    def take_wire(self) -> Wire | None:
        """An idle connection for appends that are not waited for; None if there is none now."""
        line = self._lines.take_idle() if self._prepare and os.getpid() == self._pid else None
        return None if line is None else line.wire(prepare=True, keep=self._lines.put)

    def transact(self, work: Callable[[Any], Append], *, limit_s: float) -> AppendResult:
        """Call *work* with a connection in a transaction, and append what it returns in that very transaction."""
        line = self._take(urgent=True)
        self._lines.part_with()
        # Of our settings, the one that changes what the work reads.
        line.adapters.register_loader("timestamptz", TimestamptzBinaryLoader)

        def theirs(connection: Connection) -> Append:
            # Whoever works has time for that, and is told by others when it is over.
            connection.more_s = limit_s
            try:
                return work(connection)
            finally:
                connection.more_s = 0.0

        lent = LentTransaction(
            line,
            execute=lambda query, params: self._execute(line, query, params),
            errors=psycopg.Error,
            refusal=_translate,
        )
        try:
            return lent.run(theirs, limit_s)
        except StoreUnavailable as error:
            self._suspect_idle(error)
            raise
        finally:
            # Whatever somebody else's work has set on it is to meet nobody.
            line.close()

    def recorded(self, thread: str, seq: int, event: UUID) -> bool:
        """Whether that event is in the log at *seq*, after waiting for a transaction that may yet add it."""
        return bool(self._ask(sql.RECORDED, (thread, seq, event))[0][0])

    def release(self, thread: str, *, fence: int, seen: int) -> Release:
        """Give the lease back, unless a message with an id above *seen* waits in the inbox."""
        answer = self._ask(sql.RELEASE, (thread, fence, seen))[0][0]
        if answer == "missing":
            raise ThreadNotFound(thread)
        return Release(answer)

    def read(self, thread: str, *, after: int = 0, upto: int | None = None, limit: int = 1000) -> list[Event]:
        """Events with `after < seq <= upto` in seq order, *limit* at most. Empty for an unknown thread."""
        check_thread_id(thread)
        return sql.events_of(thread, self._ask(sql.READ, (thread, after, upto, max(limit, 0))))

    def feed(self, after: Cursor, *, limit: int = 1000) -> Page:
        """Events of all threads after *after*, each once, in seq order within a thread, none ever missed."""
        rows = self._ask(sql.FEED, (after.xid, after.thread, after.seq, max(limit, 0)))
        cursors = tuple(Cursor(*row[:3]) for row in rows)
        return Page(tuple(Event(*row[1:]) for row in rows), cursors[-1] if rows else after, cursors)

    def send(self, thread: str, *, key: str, kind: str, body: bytes) -> Sent:
        """Put a message into the inbox; of several with one key the first stays. Raises `ThreadNotFound`."""
        check_thread_id(thread)
        check_message(thread, key, kind, body)
        ((outcome, *message),) = self._ask(sql.SEND, (thread, key, kind, body))
        if outcome == "missing":
            raise ThreadNotFound(thread)
        return Sent(outcome == "stored", sql.message_of(tuple(message)))

    def inbox(self, thread: str, *, after: int = 0, consumed: bool = False) -> list[Message]:
        """Messages that wait, in order of arrival; with *consumed* those already taken too."""
        check_thread_id(thread)
        return [sql.message_of(row) for row in self._ask(sql.MESSAGES, (thread, after, consumed))]

    def close(self) -> None:
        """Close connections; calls under way may fail with `StoreUnavailable`."""
        if os.getpid() == self._pid:
            self._lines.close()
            atexit.unregister(self._at_exit)

    def _ask(self, query: LiteralString, params: sql.Params) -> list[sql.Row]:
        """A short call; so many at a time, that a crowd of readers does not fill the server."""
        if not self._short_calls.acquire(timeout=WAIT_S):
            raise StoreUnavailable(
                f"{_SHORT_CALLS_MAX} calls have been under way for {WAIT_S:.0f} s at "
                f"{_where(self._conninfo)}; does the server answer?"
            )
        try:
            return self._on_line(lambda line: self._execute(line, query, params), urgent=False)
        finally:
            self._short_calls.release()

    def _append(self, appends: Sequence[Append]) -> list[AppendResult]:
        def call(line: Connection) -> list[AppendResult]:
            try:
                wire = line.wire(prepare=self._prepare, keep=self._lines.put)
                return wire.call(appends, limit_s=ANSWER_S)
            except TimeoutError as error:
                raise psycopg.OperationalError(str(error)) from None

        return self._on_line(call, urgent=True)

    def _on_line(self, work: Callable[[Connection], T], *, urgent: bool) -> T:
        line = self._take(urgent=urgent)
        try:
            return work(line)
        except psycopg.Error as error:
            translated = _translate(error)
            if self._suspect_idle(translated):
                line.close()
            raise translated from error
        except BaseException as error:
            if not isinstance(error, RefoldError):
                line.close()
            raise
        finally:
            self._lines.give_back(line)

    def _suspect_idle(self, error: RefoldError) -> bool:
        """
        Close what is idle, if the server cannot serve the connection that met *error*; whether that is so.

        A session keeps what it was told when it began, as that it may only read; those that idle were told the same.
        """
        unfit = isinstance(error, StoreUnavailable) and not error.contended
        if unfit:
            self._lines.close_idle()
        return unfit

    def _take(self, *, urgent: bool) -> Connection:
        if os.getpid() != self._pid:
            # Two processes on one socket would read each other's answers.
            raise UsageError("this journal was opened before a fork; open another one in the child process")
        return self._lines.take(urgent=urgent)

    def _connected(self) -> Connection:
        line = _connect(self._conninfo)
        try:
            self._configure(line)
        except BaseException:
            line.close()
            raise
        return line

    def _execute(self, connection: Connection, query: LiteralString, params: sql.Params) -> list[sql.Row]:
        # A cursor of our own making: what a transactional tool has its connection make is the tool's affair.
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        return cursor.execute(query, params, prepare=self._prepare, binary=True).fetchall()

    def _configure(self, connection: Connection) -> None:
        # Checked on each connection: after a failover it may be another server's.
        with _translated():
            server = check_server(connection, unsafe=self._unsafe)
            # A pooler answers with a process id of its own. Where sessions are shared, a statement prepared by
            # one client can be executed by another that means a different one by the same name.
            self._prepare = self._prepare and connection.info.backend_pid == server.backend_pid
            connection.prepare_threshold = _PREPARE_AFTER if self._prepare else None
            if self._prepare and server.isolation != "read committed":
                # Higher levels only cost retries; behind a pooler the setting would leak to other sessions.
                connection.execute("set default_transaction_isolation = 'read committed'")
        connection.adapters.register_loader("timestamptz", _MicrosLoader)


def set_up(connection: psycopg.Connection[Any], *, unsafe: bool = False, install: bool = True) -> str:
    """
    Check the server of *connection*, see that the schema is there, and return the database's identity.

    Safe from any number of processes at once, and inside a transaction of the caller's.

    Raises:
        StoreRefused: Server, rights or schema are unfit.
        StoreUnavailable: The connection broke.
    """
    with _translated():
        server = check_server(connection, unsafe=unsafe)
        return ensure_schema(connection, server, install=install)


def _conninfo(dsn: str) -> str:
    try:
        given = conninfo_to_dict(dsn)
    except (psycopg.ProgrammingError, TypeError, AttributeError):
        raise _malformed() from None
    # Where an unescaped '@' or '/' of a password leads libpq astray, a piece of it lands in host or port.
    host = str(given.get("host") or "")
    astray = "@" in host or (
        "://" in dsn and not host.startswith("/") and any(mark in host for mark in "/: ")
    )
    ports = str(given.get("port") or "").split(",")
    if astray or not all(port.isdecimal() or not port for port in ports):
        raise _malformed()
    return make_conninfo("", **(_DEFAULTS | given | {"client_encoding": "UTF8"}))


def _malformed() -> UsageError:
    # libpq's own words may quote a piece of the password.
    return UsageError(
        "malformed connection string (not shown, it may hold a password); expected "
        "'postgresql://user:password@host:5432/database' or 'host=... dbname=... user=...'; "
        "in the first form special characters of a password are written %40 for @, %2F for /, %3A for :"
    )


def _where(conninfo: str) -> str:
    given = conninfo_to_dict(conninfo)
    host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port = given.get("port") or os.environ.get("PGPORT") or "5432"
    database = given.get("dbname")
    return f"PostgreSQL at {host}, port {port}" + (f", database {database!r}" if database else "")


def _connect(conninfo: str) -> Connection:
    try:
        return Connection.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise StoreUnavailable(
            f"cannot connect to {_where(conninfo)}: {_first_line(error)}; "
            "check that the server runs and that the connection string (dsn= or REFOLD_DSN) is right"
        ) from None


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of psycopg as errors of refold."""
    try:
        yield
    except psycopg.Error as error:
        raise _translate(error) from error


def _translate(error: psycopg.Error, worked: bool = False) -> RefoldError:
    sent = error.sqlstate is not None or not isinstance(error, _UNSENT)
    return refusal(error.sqlstate, _first_line(error), sent=sent, worked=worked)


def _first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return text.strip().partition("\n")[0] or type(error).__name__


def _close_at_exit(store: PostgresStore) -> Any:
    """Register an exit handler that closes *store* and does not keep it alive."""
    reference = weakref.ref(store)

    def close() -> None:
        store = reference()
        if store is not None:
            store.close()

    atexit.register(close)
    return close
