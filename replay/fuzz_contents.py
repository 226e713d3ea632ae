"""What objects hold: pictured as plain data, remembered, and put back."""

from __future__ import annotations

import collections
import functools
import io
import json
import queue
import re
import sys
import threading
import types
from array import array
from asyncio import Queue
from collections import deque
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from ..journal.errors import UsageError

FACTORIES = (
    type,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
)
_OPAQUE = (*FACTORIES, types.ModuleType)
_ROWS = (list, bytearray, array)
_OPEN = (
    types.SimpleNamespace,
    collections.UserDict,
    collections.UserList,
    collections.ChainMap,
    queue.Queue,
    Queue,
    threading.Event,
    threading.Condition,
)
"""Of the standard library, and plain objects like those of one's own."""
_ELSEWHERE = frozenset({"sqlite3", "_io", "tempfile", "shelve", "dbm", "mmap", "socket", "_queue"})
"""Modules whose objects have their contents where nobody sees them from here."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SCALARS = (bool, int, float, str, type(None))
_INSTALLED = frozenset({"site-packages", "dist-packages"})

Memory = tuple[Any, Any]
"""An object and what it held."""


def picture(value: Any, within: tuple[int, ...] = (), name: str = "the world") -> Any:
    """
    A value as plain data that can be compared and shown; lists without their order, as what runs side by side has none.

    Raises:
        UsageError: It holds what cannot be seen from here, as a file or a database.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in within:
        return "..."
    inner = (*within, id(value))
    if is_mock(value):
        return sorted(repr(call) for call in value.mock_calls)
    if isinstance(value, dict):
        held: Any = {
            key if isinstance(key, str) else repr(key): picture(each, inner, f"{name}[{key!r}]")
            for key, each in value.items()
        }
    elif isinstance(value, list | tuple | deque | set | frozenset):
        held = sorted(
            (picture(each, inner, f"{name}[{place}]") for place, each in enumerate(value)), key=_text
        )
    elif isinstance(value, io.StringIO | io.BytesIO):
        return "closed" if value.closed else repr(value.getvalue())
    else:
        held = None
    named = _attributes(value)
    if named is None:
        if held is None:
            _check_seen(value, name)
            return _ADDRESS.sub("", repr(value))
        return held
    seen = {key: picture(each, inner, f"{name}.{key}") for key, each in named.items()}
    if held is None:
        return seen
    return {"contents": held, **seen} if seen else held


def remember(value: Any, *, own: bool = False) -> Iterator[Memory]:
    """
    Everything mutable that can be reached from *value*, with what it holds now.

    Args:
        value: Where to begin.
        own: Leave alone the objects of refold and of installed packages.
    """
    seen: set[int] = set()
    found = [value]
    while found:
        held = found.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if is_mock(held):
            yield held, None
            continue
        if isinstance(held, dict):
            yield held, dict(held)
            found += held.values()
        elif isinstance(held, list | deque | set):
            yield held, [*held]
            found += held
        elif isinstance(held, tuple | frozenset):
            found += held
        elif isinstance(held, bytearray | array):
            yield held, held[:]
        elif isinstance(held, io.StringIO | io.BytesIO) and not held.closed:
            yield held, (held.getvalue(), held.tell())
        if own and not is_own(held if isinstance(held, type) else type(held)):
            continue
        for each in _parts(held):
            yield each
            found += each[1].values()


def put_back(held: Any, contents: Any) -> None:
    """What `remember` has told of *held* holds again; a mock has not been called."""
    if is_mock(held):
        held.reset_mock()
    elif isinstance(contents, _Named):
        _put_back_attributes(held, contents)
    elif isinstance(held, dict):
        held.clear()
        held.update(contents)
    elif isinstance(held, set):
        # One that has not changed keeps its order.
        if [*map(id, held)] != [*map(id, contents)]:
            held.clear()
            held.update(contents)
    elif isinstance(held, deque):
        held.clear()
        held.extend(contents)
    elif isinstance(held, io.StringIO | io.BytesIO):
        _write_again(held, *contents)
    else:
        assert isinstance(held, _ROWS)
        held[:] = contents


def is_mock(value: Any) -> bool:
    """Whether it is a `unittest.mock` object, which is never imported for it."""
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)


def is_unordered(held: Any) -> bool:
    """Whether a set has more than one element, not all numbers: their hashes alone are the same in every process."""
    return len(held) > 1 and not all(isinstance(each, int | float) for each in held)


@functools.lru_cache(1000)
def is_own_code(module: str, file: str) -> bool:
    """Whether the code of a module is somebody's own: not refold, nor the standard library, nor installed."""
    root = module.partition(".")[0]
    return (
        root != "refold"
        and root not in sys.stdlib_module_names
        and not _INSTALLED & set(PurePath(file).parts)
    )


def is_own(cls: type) -> bool:
    """Whether a class is of `is_own_code`."""
    return is_own_code(cls.__module__, getattr(sys.modules.get(cls.__module__), "__file__", None) or "")


class _Named(dict[str, Any]):
    """Attributes by name."""


def _parts(held: Any) -> Iterator[tuple[Any, _Named]]:
    """An object and its attributes, and its classes and theirs."""
    if isinstance(held, type):
        for base in held.__mro__:
            if data := _class_data(base):
                yield base, data
        return
    own = _instance(held)
    if own is not None:
        yield held, own
        yield from _parts(type(held))


def _put_back_attributes(held: Any, contents: _Named) -> None:
    now = (_class_data(held) if isinstance(held, type) else _instance(held)) or _Named()
    for name in now.keys() - contents.keys():
        _set(held, "__delattr__", name)
    for name, value in contents.items():
        if name not in now or now[name] is not value:
            _set(held, "__setattr__", name, value)


def _set(held: Any, how: str, *told: Any) -> None:
    """Past what its class may do or refuse when an attribute is set."""
    try:
        getattr(object, how)(held, *told)
    except TypeError:
        # Classes and msgspec's structs do that in a way of their own.
        getattr(type(held), how)(held, *told)


def _write_again(held: Any, contents: str | bytes, place: int) -> None:
    if not held.closed:
        held.seek(0)
        held.truncate()
        held.write(contents)
        held.seek(place)


def _attributes(value: Any) -> _Named | None:
    """What an object of somebody's own class holds, and its classes for it; None for everything else."""
    own = _instance(value)
    if own is None:
        return None
    shared = _Named()
    for base in reversed(type(value).__mro__):
        shared.update(_class_data(base))
    shared.update(own)
    return shared


def _instance(value: Any) -> _Named | None:
    if isinstance(value, _OPAQUE) or not (
        isinstance(value, _OPEN) or type(value).__module__.partition(".")[0] not in sys.stdlib_module_names
    ):
        return None
    names = [name for base in type(value).__mro__ for name in _slots(base)]
    held = _Named({name: getattr(value, name) for name in names if hasattr(value, name)})
    held.update(getattr(value, "__dict__", {}))
    return held if names or hasattr(value, "__dict__") else None


def _class_data(base: type) -> _Named:
    """What a class of somebody's own holds for all its objects, where it is data."""
    if not is_own(base):
        return _Named()
    return _Named({name: held for name, held in vars(base).items() if name[:2] != "__" and _is_data(held)})


def _is_data(held: Any) -> bool:
    return type(held) in _SCALARS or isinstance(held, list | dict | set | deque)


def _slots(base: type) -> tuple[str, ...]:
    slots = base.__dict__.get("__slots__", ())
    named = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in named if name not in ("__dict__", "__weakref__"))


def _check_seen(value: Any, name: str) -> None:
    module = type(value).__module__.partition(".")[0]
    if not (
        module in _ELSEWHERE
        or isinstance(value, threading.local)
        or (isinstance(value, Path) and value.exists())
    ):
        return
    raise UsageError(
        f"{name} is {_ADDRESS.sub('', repr(value))}, and what it holds cannot be seen from here; pass look=..., a "
        "function from the world to what is to be compared of it, and a function that makes the world anew "
        "(world=...) for what cannot be put back"
    )


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, default=repr)
