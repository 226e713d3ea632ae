"""What refold asks of a Redis: a few commands on connections of its own. The one module that imports redis."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from .errors import MissingExtra, UsageError

CONNECT_TIMEOUT_S = 0.5
COMMAND_TIMEOUT_S = 0.5
"""How long one answer may take, and each piece of a long one."""
FETCH_BUDGET_S = 1.0
"""How long all of a fetch may take; what has not come by then is read from Postgres."""

_FETCH_KEYS = 8
_LINES_KEPT = 4


class CacheFailed(Exception):
    """
    The cache did not do what it was asked to; nothing depends on it.

    Args:
        why: What happened, without secrets.
        refused: It answers, and will not: full, read only, without the right, or no Redis at all.
    """

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class RedisServer:
    """
    A Redis, or what speaks its protocol; made by `open`. Thread-safe, blocking, no call waits for longer than it says.

    A connection serves one call at a time and is closed, never kept, when a call on it has not come to its
    proper end, whatever ended it: no answer is ever left on a connection for the next caller.
    """

    def __init__(self, url: str, connect: Callable[[], Any]) -> None:
        self.where = _where(url)
        self._connect = connect
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._busy: set[Any] = set()
        self._closed = False

    @classmethod
    def open(
        cls,
        url: str,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        command_timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> RedisServer:
        """
        Make ready to talk to a server; nothing is sent before the first call.

        Args:
            url: `redis://`, `rediss://` for TLS, or `unix://`; redis-py's options may follow after `?`.
            connect_timeout_s: How long connecting may take.
            command_timeout_s: How long an answer may take.

        Raises:
            MissingExtra: redis-py is not installed.
            UsageError: The URL is malformed.
        """
        try:
            from redis import ConnectionPool, RedisError
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise MissingExtra("redis", "hot state in Redis") from None
        options = {
            "socket_connect_timeout": connect_timeout_s,
            "socket_timeout": command_timeout_s,
            "client_name": "refold",
        }
        # Trying again is the breaker's decision, never a connection's; and a subscription needs the older protocol.
        fixed = {"retry": Retry(NoBackoff(), 0), "protocol": 2, "decode_responses": False}
        try:
            if urlsplit(url).scheme not in {"redis", "rediss", "unix"}:
                raise ValueError
            pool = ConnectionPool.from_url(url, **options, **fixed)
            pool.connection_kwargs.update(fixed)
            made = cls(url, lambda: pool.connection_class(**pool.connection_kwargs))
            known = getattr(made._connect(), "driver_info", None)
            if known is not None:
                # It looks its own version up for each connection, which takes longer than to connect.
                pool.connection_kwargs["driver_info"] = known
        except (RedisError, ValueError, TypeError, AttributeError):
            # Its words may quote the password.
            raise UsageError(
                "malformed Redis URL (not shown, it may hold a password); expected "
                "'redis://user:password@host:6379/0', 'rediss://...' for TLS, or 'unix:///path/to/socket'"
            ) from None
        return made

    def fetch(self, keys: Sequence[str], *, budget_s: float = FETCH_BUDGET_S) -> list[bytes | None]:
        """The values under *keys*, None where there is none; all within *budget_s*."""
        groups = [keys[start : start + _FETCH_KEYS] for start in range(0, len(keys), _FETCH_KEYS)]
        values: list[bytes | None] = []
        with self._line() as line, _limited(line, budget_s):
            for group in groups:
                (reply,) = _ask(line, [("MGET", *group)])
                if not isinstance(reply, list) or len(reply) != len(group):
                    raise CacheFailed("its answer does not fit the question")
                values += [value if isinstance(value, bytes) else None for value in reply]
        return values

    def keep(self, items: Sequence[tuple[str, bytes]], *, ttl_s: float) -> None:
        """Store values, each for *ttl_s*."""
        with self._line() as line:
            for key, value in items:
                _ask(line, [("SET", key, value, "PX", round(ttl_s * 1000))])

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Tell whoever listens on the channels."""
        with self._line() as line:
            _ask(line, [("PUBLISH", channel, payload) for channel, payload in messages])

    def ping(self) -> None:
        """See that it answers."""
        with self._line() as line:
            _ask(line, [("PING",)])

    def info(self) -> dict[str, str]:
        """What it says of itself."""
        with self._line() as line:
            (reply,) = _ask(line, [("INFO",)])
        pairs = (row.partition(":") for row in bytes(reply).decode("utf-8", "replace").splitlines())
        return {name: value for name, mark, value in pairs if mark}

    def listen(self, channel: str) -> Subscription:
        """Hear what is published on *channel* from now on."""
        line = self._taken()
        try:
            with _translated():
                line.send_command("SUBSCRIBE", channel)
                line.read_response()
        except BaseException:
            self._drop(line)
            raise
        return Subscription(line, channel.encode(), lambda: self._drop(line))

    def close(self) -> None:
        """Cut all connections; calls under way fail."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        if os.getpid() != self._pid:
            return
        for line in idle:
            line.disconnect()
        for line in busy:
            _cut(line)

    @contextlib.contextmanager
    def _line(self) -> Iterator[Any]:
        line = self._taken()
        try:
            with _translated():
                yield line
        except BaseException as error:
            if isinstance(error, CacheFailed) and error.refused:
                self._back(line)
            else:
                self._drop(line)
            raise
        self._back(line)

    def _taken(self) -> Any:
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                raise CacheFailed("this journal is closed")
            line = self._idle.pop() if self._idle else None
            if line is not None:
                self._busy.add(line)
                return line
        line = self._connect()
        with self._lock:
            self._busy.add(line)
        try:
            with _translated():
                line.connect()
        except BaseException:
            self._drop(line)
            raise
        return line

    def _back(self, line: Any) -> None:
        with self._lock:
            self._busy.discard(line)
            if not self._closed and len(self._idle) < _LINES_KEPT:
                self._idle.append(line)
                return
        line.disconnect()

    def _drop(self, line: Any) -> None:
        with self._lock:
            self._busy.discard(line)
        with contextlib.suppress(Exception):
            line.disconnect()


class Subscription:
    """One channel, on a connection of its own; for one thread, but for `close`."""

    def __init__(self, line: Any, channel: bytes, drop: Callable[[], None]) -> None:
        self._line = line
        self._channel = channel
        self._drop = drop
        self._asked = False

    def next(self, timeout_s: float) -> bytes | None:
        """
        The next message; None if none has come for *timeout_s*.

        A silent server is asked whether it is there; the call after fails if it has not answered.
        """
        with _translated():
            if not self._line.can_read(timeout_s):
                if self._asked:
                    raise CacheFailed(f"it has not answered for {timeout_s:g} s")
                self._asked = True
                self._line.send_command("PING")
                return None
            reply = self._line.read_response()
        self._asked = False
        if isinstance(reply, list) and len(reply) == 3 and reply[:2] == [b"message", self._channel]:
            return bytes(reply[2])
        return None

    def close(self) -> None:
        """Stop hearing."""
        self._drop()


def _ask(line: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The replies to *commands*, sent together; each is read, then the first refusal is raised."""
    from redis import ResponseError

    line.send_packed_command(line.pack_commands(commands))
    replies = []
    refusal: ResponseError | None = None
    for _ in commands:
        try:
            replies.append(line.read_response())
        except ResponseError as error:
            refusal = refusal or error
    if refusal is not None:
        raise CacheFailed(str(refusal).partition("\n")[0][:200], refused=True)
    return replies


@contextlib.contextmanager
def _limited(line: Any, budget_s: float) -> Iterator[None]:
    # A time-out of the socket bounds each piece of an answer; a trickle of pieces would have no end.
    late = threading.Event()

    def end() -> None:
        late.set()
        _cut(line)

    timer = threading.Timer(budget_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
        timer.join()
    if late.is_set():
        raise CacheFailed(f"its answer took more than {budget_s:g} s")


def _cut(line: Any) -> None:
    """End whatever another thread waits for on *line*."""
    wire = line._sock
    if wire is not None:
        with contextlib.suppress(OSError):
            # Below TLS, whose own state belongs to the thread that reads.
            socket.socket.shutdown(wire, socket.SHUT_RDWR)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Whatever redis-py raises, as `CacheFailed`."""
    from redis import RedisError

    try:
        yield
    except CacheFailed:
        raise
    except (RedisError, OSError, ValueError, AttributeError, TypeError, AssertionError) as error:
        # Connections that are cut in the midst of parsing raise more than the library promises.
        raise CacheFailed(str(error).partition("\n")[0][:200] or type(error).__name__) from error


def _where(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"Redis at {parts.path}"
    try:
        port = parts.port
    except ValueError:
        port = None
    return f"Redis at {parts.hostname or 'localhost'}, port {port or 6379}"
