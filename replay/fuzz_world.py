"""The fake world of a trial: put back before each history, and looked at after it."""

from __future__ import annotations

import functools
import json
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ..journal.errors import UsageError

_FACTORIES = (
    type,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
)
_OPAQUE = (*_FACTORIES, types.ModuleType)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

Contents = list[Any] | dict[Any, Any] | set[Any]


class FakeWorld:
    """
    What the fakes of a test hold.

    Args:
        world: An object that fakes act on, which is put back as it is now before each history, or a function that
            makes a fresh one; None where nothing is to be compared but what the journal knows.
        look: What to compare of it; all it holds by default.

    Raises:
        UsageError: It can neither be put back nor made anew.
    """

    def __init__(self, world: Any, look: Callable[[Any], Any] | None) -> None:
        self._make = world if isinstance(world, _FACTORIES) else None
        self._world = None if self._make else world
        self._look = look
        self._known = [] if self._make else list(_memento(world))
        if look is not None and not callable(look):
            raise UsageError(f"look is a function from the world to what is compared of it, not {look!r}")
        if world is not None and not self._make and not self._known and not _is_mock(world):
            raise UsageError(
                f"the world {world!r} holds nothing that could be put back before each history; "
                "pass the object that your fakes act on, or a function that makes a fresh one"
            )

    def renew(self) -> Any:
        """As before anything happened; the world itself."""
        self.end()
        if self._make is not None:
            self._world = self._make()
        return self._world

    def end(self) -> None:
        """Put back what the test has given; close what was made for one history, if it can be closed."""
        world: Any = self._world
        for held, contents in self._known:
            _put_back(held, contents)
        if self._make is not None and callable(close := getattr(world, "close", None)):
            close()
        elif _is_mock(world):
            world.reset_mock()

    def picture(self) -> Any:
        """What is compared, as plain data; lists without their order, since what runs side by side has none."""
        return picture(self._world if self._look is None else self._look(self._world))


class Changes:
    """
    Who changed the world in one history: the calls that were performed, or the program between them.

    Args:
        world: The world, just renewed.
    """

    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self._last = world.picture()
        self.by_calls: set[int] = set()
        """Places in the ledger of calls that did."""
        self.by_program: list[int] = []
        """Places in the ledger before which the program did."""

    def between(self, place: int) -> None:
        """A call is about to be performed, or the history is over."""
        if self._changed():
            self.by_program.append(place)

    def performed(self, place: int) -> None:
        """That call has been performed."""
        if self._changed():
            self.by_calls.add(place)

    def _changed(self) -> bool:
        before, self._last = self._last, self._world.picture()
        return bool(before != self._last)


def picture(value: Any, within: tuple[int, ...] = ()) -> Any:
    """A value as plain data that can be compared and shown."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in within:
        return "..."
    inner = (*within, id(value))
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else repr(key): picture(each, inner) for key, each in value.items()
        }
    if isinstance(value, list | tuple | deque | set | frozenset):
        return sorted((picture(each, inner) for each in value), key=_text)
    if _is_mock(value):
        return sorted(repr(call) for call in value.mock_calls)
    attributes = _attributes(value)
    if attributes is None:
        return _ADDRESS.sub("", repr(value))
    return {name: picture(each, inner) for name, each in attributes.items()}


def _memento(world: Any) -> Iterator[tuple[Any, Contents]]:
    """Everything mutable that can be reached, with what it holds now."""
    seen: set[int] = set()
    found = [world]
    while found:
        held = found.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, dict):
            yield held, dict(held)
            found += held.values()
        elif isinstance(held, list | deque):
            yield held, list(held)
            found += held
        elif isinstance(held, set):
            yield held, set(held)
        elif isinstance(held, tuple):
            found += held
        elif (attributes := _attributes(held)) is not None:
            yield held, attributes
            found += attributes.values()


def _put_back(held: Any, contents: Contents) -> None:
    if isinstance(held, dict | set):
        held.clear()
        held.update(contents)
    elif isinstance(held, list | deque):
        held.clear()
        held.extend(contents)
    else:
        assert isinstance(contents, dict)
        now = _attributes(held) or {}
        for name in now.keys() - contents.keys():
            delattr(held, name)
        for name, value in contents.items():
            if name not in now or now[name] is not value:
                setattr(held, name, value)


def _attributes(value: Any) -> dict[str, Any] | None:
    """What an object of somebody's own class holds; None for everything else."""
    if isinstance(value, _OPAQUE) or type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
        return None
    names = [name for base in type(value).__mro__ for name in _slots(base)]
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})} if names or hasattr(value, "__dict__") else None


def _slots(base: type) -> tuple[str, ...]:
    slots = base.__dict__.get("__slots__", ())
    named = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in named if name not in ("__dict__", "__weakref__"))


def _is_mock(value: Any) -> bool:
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, default=repr)
