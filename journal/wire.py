"""
Appends on a connection, in the server's binary format; their answers need not be waited for.

Knows the shape of libpq's connections, which are given to it, and imports no driver.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from .envelope import NewEvent
from .statements import append_result
from .store import Append, AppendResult

_BINARY = 1
_COMMAND_OK, _TUPLES_OK = 1, 2

_int2, _int4, _int8, _float8 = (struct.Struct(form).pack for form in (">h", ">i", ">q", ">d"))
_ARRAY = struct.Struct(">iiIii")
_NULL = _int4(-1)

# Numbers of the types in the server's catalog.
_BYTEA, _INT2, _INT4, _INT8, _FLOAT8, _TEXT, _UUID = 17, 21, 23, 20, 701, 25, 2950
_EMPTY = {number: _ARRAY.pack(0, 0, number, 0, 0)[:12] for number in (_INT4, _INT8)}

Written = list[bytes | None]

_thread = attrgetter("thread")


class _Statement:
    """A call of one of the append functions: its name on the connection, its text, the formats of its parameters."""

    def __init__(self, function: str, parameters: int) -> None:
        self.name = f"refold_{function}".encode()
        self.formats = [_BINARY] * parameters
        places = ", ".join(f"${place}" for place in range(1, parameters + 1))
        self.text = f"select refold.{function}({places})".encode()


_ONE, _PAIR, _BATCH, _MANY = (
    _Statement(*each)
    for each in (("append", 12), ("append_pair", 17), ("append_batch", 13), ("append_many", 15))
)


def _alone(append: Append) -> tuple[_Statement, Written]:
    """The cheapest statement that makes *append*, and its parameters."""
    wake = append.wake_at_us
    move: Written = [
        append.thread.encode(),
        _int8(append.expected),
        append.expected_hash,
        _int8(append.fence),
        _float8(append.ttl_s),
        str.encode(append.state),
        None if wake is None else _int8(wake),
    ]
    events, hashes = append.events, append.hashes
    if append.consumed or len(events) > 2:
        return _BATCH, [*move, *_columns(events, hashes), _fixed(_INT8, 8, map(_int8, append.consumed))]
    for event, chained in zip(events, hashes, strict=True):
        move += (_id(event), event.kind.encode(), _int2(event.version), chained, event.body)
    return _ONE if len(events) == 1 else _PAIR, move


def _together(appends: Sequence[Append]) -> Written:
    """Parameters of append_many; *appends* in the order of their threads."""
    events = [event for append in appends for event in append.events]
    hashes = [chained for append in appends for chained in append.hashes]
    wakes = [append.wake_at_us for append in appends]
    taken = [(place, message) for place, append in enumerate(appends, 1) for message in append.consumed]
    return [
        _array(_TEXT, [_sized(append.thread.encode()) for append in appends]),
        _fixed(_INT8, 8, [_int8(append.expected) for append in appends]),
        _fixed(_BYTEA, 32, [append.expected_hash for append in appends]),
        _fixed(_INT8, 8, [_int8(append.fence) for append in appends]),
        _fixed(_FLOAT8, 8, [_float8(append.ttl_s) for append in appends]),
        _array(_TEXT, [_sized(str.encode(append.state)) for append in appends]),
        _array(_INT8, [_NULL if wake is None else _sized(_int8(wake)) for wake in wakes], nulls=True),
        _fixed(_INT4, 4, [_int4(len(append.events)) for append in appends]),
        *_columns(events, hashes),
        _fixed(_INT4, 4, [_int4(place) for place, _ in taken]),
        _fixed(_INT8, 8, [_int8(message) for _, message in taken]),
    ]


def _columns(events: Sequence[NewEvent], hashes: Sequence[bytes]) -> Written:
    return [
        _fixed(_UUID, 16, map(_id, events)),
        _array(_TEXT, [_named(event.kind) for event in events]),
        _fixed(_INT2, 2, [_int2(event.version) for event in events]),
        _fixed(_BYTEA, 32, hashes),
        _array(
            _BYTEA, [part for event in events for part in (_int4(len(event.body)), event.body)], len(events)
        ),
    ]


def _id(event: NewEvent) -> bytes:
    return event.id.int.to_bytes(16)


def _sized(value: bytes) -> bytes:
    return _int4(len(value)) + value


@lru_cache(256)
def _named(value: str) -> bytes:
    return _sized(value.encode())


def _fixed(number: int, size: int, values: Iterable[bytes]) -> bytes:
    """An array of values of one size: what stands between two of them is the next one's length."""
    length = _int4(size)
    parts = list(values)
    return _array(number, [length, length.join(parts)], len(parts)) if parts else _EMPTY[number]


def _array(number: int, parts: Sequence[bytes], count: int | None = None, *, nulls: bool = False) -> bytes:
    """An array of *count* values, one for each part unless it is given; each value has its length before it."""
    return _ARRAY.pack(1, nulls, number, len(parts) if count is None else count, 1) + b"".join(parts)


def _elements(data: bytes) -> Iterable[bytes]:
    """The elements of an array without nulls, as the server writes it."""
    place = _ARRAY.size
    while place < len(data):
        start = place + 4
        place = start + int.from_bytes(data[place:start])
        yield data[start:place]


def _wait(fileno: int, limit_s: float, *, writable: bool) -> None:
    if hasattr(select, "poll"):
        # The other one takes no descriptor above 1023.
        poll = select.poll()
        poll.register(fileno, select.POLLIN | (select.POLLOUT if writable else 0))
        ready = bool(poll.poll(limit_s * 1000))
    else:
        ready = any(select.select([fileno], [fileno] if writable else [], [], limit_s))
    if not ready:
        raise TimeoutError(f"no answer within {limit_s:g} s")


class Wire:
    """
    One connection, one call at a time.

    Args:
        connection: A libpq connection in autocommit, that nobody else uses.
        prepare: Whether statements are prepared on it.
        refused: Makes an error of the server's answer.
        keep: Gives the connection back for other use.
        close: Closes it.
    """

    def __init__(
        self,
        connection: Any,
        *,
        prepare: bool,
        refused: Callable[[Any], Exception],
        keep: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self.fileno: int = connection.socket
        self.keep = keep
        self.close = close
        self.unsent = False
        """Whether `flush` is to be called once there is room."""
        self._connection = connection
        self._prepare = prepare
        self._refused = refused
        self._prepared: set[_Statement] = set()
        self._statement = _ONE
        self._params: Written = []
        self._appends: Sequence[Append] = ()
        self._sorted: Sequence[Append] = ()
        self._preparing = False
        self._answer: Any = None

    def call(self, appends: Sequence[Append], *, limit_s: float) -> list[AppendResult]:
        """
        Send *appends* of different threads in one call, and wait for their results.

        Raises `TimeoutError` if the server gives no sign of life for *limit_s*; whatever it raises, their fate is
        unknown and the connection of no more use.
        """
        self.send(appends)
        while True:
            _wait(self.fileno, limit_s, writable=self.unsent)
            if self.unsent:
                self.flush()
            if (results := self.receive()) is not None:
                return results

    def send(self, appends: Sequence[Append]) -> None:
        """
        Send *appends* of different threads in one call.

        Whatever it raises, the call may or may not have been sent.
        """
        self._appends = appends
        if len(appends) == 1:
            statement, self._params = _alone(appends[0])
        else:
            # Every call takes the locks of what it moves in one order.
            self._sorted = sorted(appends, key=_thread)
            statement, self._params = _MANY, _together(self._sorted)
        self._statement = statement
        self._preparing = self._prepare and statement not in self._prepared
        if self._preparing:
            self._connection.send_prepare(statement.name, statement.text)
        else:
            self._execute()
        self.flush()

    def flush(self) -> None:
        """Push out what was sent."""
        self.unsent = bool(self._connection.flush())

    def receive(self) -> list[AppendResult] | None:
        """
        Read what has arrived: the results in the order of the appends, None while they are not all there.

        Whatever it raises, the fate of the call is unknown and the connection of no more use.
        """
        connection = self._connection
        connection.consume_input()
        while not connection.is_busy():
            answer = connection.get_result()
            if answer is not None:
                self._answer = answer
                continue
            answer, self._answer = self._answer, None
            if answer is None:
                return None
            if not self._preparing:
                return self._results(answer)
            if answer.status != _COMMAND_OK:
                raise self._refused(answer)
            self._preparing = False
            self._prepared.add(self._statement)
            self._execute()
            self.flush()
        return None

    def _execute(self) -> None:
        statement = self._statement
        if self._prepare:
            self._connection.send_query_prepared(statement.name, self._params, statement.formats, _BINARY)
        else:
            self._connection.send_query_params(
                statement.text, self._params, param_formats=statement.formats, result_format=_BINARY
            )
        self._params = []

    def _results(self, answer: Any) -> list[AppendResult]:
        if answer.status != _TUPLES_OK:
            raise self._refused(answer)
        answers = answer.get_value(0, 0)
        if self._statement is not _MANY:
            return [append_result(answers.decode(), self._appends[0])]
        if answers == _array(_TEXT, [_named("appended")] * len(self._appends)):
            return [append_result("appended", append) for append in self._appends]
        found = {
            append.thread: append_result(each.decode(), append)
            for each, append in zip(_elements(answers), self._sorted, strict=True)
        }
        return [found[append.thread] for append in self._appends]
