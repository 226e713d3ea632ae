"""
Appends on a connection, in the server's binary format; their answers need not be waited for.

Knows the shape of libpq's connections, which are given to it, and imports no driver.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .statements import append_batch_params, append_many_params, append_pair_params, append_params
from .store import Append, AppendResult, Outcome

_BINARY = 1
_COMMAND_OK, _TUPLES_OK = 1, 2

_INT2, _INT4, _INT8, _FLOAT8 = (struct.Struct(form) for form in (">h", ">i", ">q", ">d"))
_ARRAY = struct.Struct(">iiIii")


def _uuid(value: Any) -> bytes:
    data: bytes = value.bytes
    return data


# How a parameter of each type is written, and the type's number in the server's catalog.
_TYPES: dict[str, tuple[Callable[[Any], bytes], int]] = {
    "text": (str.encode, 25),
    "bytea": (bytes, 17),
    "int2": (_INT2.pack, 21),
    "int4": (_INT4.pack, 23),
    "int8": (_INT8.pack, 20),
    "float8": (_FLOAT8.pack, 701),
    "uuid": (_uuid, 2950),
}

_HEAD = "text int8 bytea int8 float8 text int8"
_EVENT = "uuid text int2 bytea bytea"


class _Statement:
    """A call of one of the append functions: its name on the connection, its text, how its parameters are written."""

    def __init__(self, function: str, answer: str, types: str) -> None:
        self.name = f"refold_{function}".encode()
        self.writers = [_writer(each) for each in types.split()]
        self.formats = [_BINARY] * len(self.writers)
        places = ", ".join(f"${place}" for place in range(1, len(self.writers) + 1))
        self.text = f"select {answer} from refold.{function}({places})".encode()  # noqa: S608

    def written(self, params: Sequence[Any]) -> list[bytes | None]:
        return [
            None if value is None else write(value) for write, value in zip(self.writers, params, strict=True)
        ]


def _writer(name: str) -> Callable[[Any], bytes]:
    write, number = _TYPES[name.removesuffix("[]")]
    if not name.endswith("[]"):
        return write
    return lambda values: _array(number, write, values)


def _array(number: int, write: Callable[[Any], bytes], values: Sequence[Any]) -> bytes:
    if not values:
        return _ARRAY.pack(0, 0, number, 0, 0)[:12]
    parts = [_ARRAY.pack(1, int(None in values), number, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            data = write(value)
            parts += (_INT4.pack(len(data)), data)
    return b"".join(parts)


def _elements(data: bytes) -> Iterable[bytes]:
    """The elements of an array without nulls, as the server writes it."""
    place = _ARRAY.size
    while place < len(data):
        (size,) = _INT4.unpack_from(data, place)
        place += 4
        yield data[place : place + size]
        place += size


_ONE = _Statement("append", "outcome, head", f"{_HEAD} {_EVENT}")
_PAIR = _Statement("append_pair", "outcome, head", f"{_HEAD} {_EVENT} {_EVENT}")
_BATCH = _Statement("append_batch", "outcome, head", f"{_HEAD} uuid[] text[] int2[] bytea[] bytea[] int8[]")
_MANY = _Statement(
    "append_many",
    "outcomes, heads",
    "text[] int8[] bytea[] int8[] float8[] text[] int8[] int8[] bytea[] "
    "int4[] int8[] uuid[] text[] int2[] bytea[] bytea[] int4[] int8[]",
)
_OUTCOMES = {each.value.encode(): each for each in Outcome}


def _one(append: Append) -> tuple[_Statement, Sequence[Any]]:
    """The cheapest statement that makes *append*, and its parameters."""
    if not append.consumed and len(append.events) == 1:
        return _ONE, append_params(append)
    if not append.consumed and len(append.events) == 2:
        return _PAIR, append_pair_params(append)
    return _BATCH, append_batch_params(append)


def _wait(fileno: int, *, writable: bool) -> None:
    if hasattr(select, "poll"):
        # The other one takes no descriptor above 1023.
        poll = select.poll()
        poll.register(fileno, select.POLLIN | (select.POLLOUT if writable else 0))
        poll.poll()
    else:
        select.select([fileno], [fileno] if writable else [], [])


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
        self._params: list[bytes | None] = []
        self._order: list[int] = []
        self._preparing = False
        self._answer: Any = None

    def call(self, appends: Sequence[Append]) -> list[AppendResult]:
        """Send *appends* of different threads in one call, and wait for their results."""
        self.send(appends)
        while True:
            _wait(self.fileno, writable=self.unsent)
            if self.unsent:
                self.flush()
            if (results := self.receive()) is not None:
                return results

    def send(self, appends: Sequence[Append]) -> None:
        """
        Send *appends* of different threads in one call.

        Whatever it raises, the call may or may not have been sent.
        """
        self._order = [0]
        if len(appends) > 1:
            # Every call locks its threads in one order, so no two can wait for each other.
            self._order = sorted(range(len(appends)), key=lambda place: appends[place].thread)
            params: Sequence[Any] = append_many_params([appends[place] for place in self._order])
            statement = _MANY
        else:
            statement, params = _one(appends[0])
        self._statement, self._params = statement, statement.written(params)
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
        outcomes, heads = answer.get_value(0, 0), answer.get_value(0, 1)
        if len(self._order) == 1 and self._statement is not _MANY:
            return [AppendResult(_OUTCOMES[outcomes], _INT8.unpack(heads)[0])]
        results: list[AppendResult | None] = [None] * len(self._order)
        for place, outcome, head in zip(self._order, _elements(outcomes), _elements(heads), strict=True):
            results[place] = AppendResult(_OUTCOMES[outcome], _INT8.unpack(head)[0])
        return [result for result in results if result is not None]
