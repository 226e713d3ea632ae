"""What a process remembers beside its log, as far as a program can get at it: another process has none of it."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct, structs

from .fuzz_contents import Memory, is_mock, is_own, is_own_code, is_unordered, put_back, remember
from .program import Program

_SCALARS = (bool, int, float, str, bytes, type(None))
_CACHED = type(functools.lru_cache(str))


class _Variable(Struct, frozen=True, eq=False):
    """A global or a variable of an enclosing function, and what it was."""

    name: str
    place: dict[str, Any] | types.CellType
    value: Any
    held: list[Memory]

    def get(self) -> Any:
        if isinstance(self.place, dict):
            return self.place.get(self.name)
        return _content(self.place)

    def set(self, value: Any) -> None:
        if isinstance(self.place, dict):
            self.place[self.name] = value
        else:
            self.place.cell_contents = value


class ProcessMemory:
    """
    The variables that the code of a program refers to, as they are now.

    Those of tools, steps and models are left out: nothing of theirs is performed when a log is replayed.

    Args:
        program: Its function, and what that calls.
        orders: Whether to have sets in another order too.
    """

    def __init__(self, program: Program, *, orders: bool) -> None:
        self._orders = orders
        self._seen: dict[int, Any] = {}
        self._caches: list[Any] = []
        self._variables: list[_Variable] = []
        self._follow(program.function)

    def otherwise(self) -> list[str]:
        """What another process has otherwise than this one, in words; empty if there is nothing."""
        changed = [f"{each.name} as before the run" for each in self._variables if not _is_as_it_was(each)]
        caches = [f"{cache.__name__} not cached" for cache in self._caches]
        sets = [f"{each.name} in another order" for each in self._variables if self._sets(each)]
        return list(dict.fromkeys([*changed, *caches, *sets]))

    @contextlib.contextmanager
    def elsewhere(self, room: int) -> Iterator[None]:
        """
        While this is entered, all is as in a process that has not seen the run; caches stay empty.

        Args:
            room: Sets have room for so many more, which changes their order as other hashes would.
        """
        now = [
            (each, each.get(), [*_memories(each.get()), *_memories(each.value)]) for each in self._variables
        ]
        for cache in self._caches:
            cache.cache_clear()
        for each in self._variables:
            _restore(each, each.value, each.held)
            for unordered in self._sets(each):
                _reorder(unordered, room)
        try:
            yield
        finally:
            for each, value, held in now:
                _restore(each, value, held)

    def _sets(self, variable: _Variable) -> list[set[Any]]:
        held = [each for each, _ in variable.held] if self._orders else []
        return [each for each in held if isinstance(each, set) and is_unordered(each)]

    def _follow(self, value: Any) -> None:
        """Go through code, and through what holds code."""
        if id(value) in self._seen or isinstance(value, _SCALARS) or is_mock(value):
            return
        self._seen[id(value)] = value
        if isinstance(value, types.FunctionType):
            self._follow_function(value)
        elif isinstance(value, _CACHED):
            self._caches.append(value)
            self._follow(value.__wrapped__)
        elif isinstance(value, types.MethodType):
            self._note_object(value.__self__)
            self._follow(value.__func__)
        elif isinstance(value, staticmethod | classmethod):
            self._follow(value.__func__)
        elif isinstance(value, property):
            self._follow(value.fget)
        elif isinstance(value, functools.partial):
            self._follow(value.func)
            for each in (*value.args, *value.keywords.values()):
                self._note_object(each)
        elif isinstance(value, dict):
            self._follow_all(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            self._follow_all(value)
        elif hasattr(type(value), "needs_approval"):
            self._follow(getattr(value, "approval", None))
        elif isinstance(value, type):
            if is_own(value):
                self._follow_all(vars(value).values())
                self._follow_all(value.__bases__)
        elif is_own(type(value)):
            self._follow(type(value))
        elif isinstance(value, Struct):
            self._follow_all(structs.asdict(value).values())

    def _follow_all(self, values: Iterable[Any]) -> None:
        for value in [*values]:
            self._follow(value)

    def _follow_function(self, function: types.FunctionType) -> None:
        code, cells = function.__code__, function.__closure__ or ()
        for name, cell in zip(code.co_freevars, cells, strict=True):
            self._note(name, cell, _content(cell))
        if not is_own_code(function.__module__ or "", code.co_filename):
            return
        for each in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._note_object(each)
        names = [*_names(code)]
        for name in names:
            found = function.__globals__.get(name)
            if not isinstance(found, types.ModuleType):
                self._note(name, function.__globals__, found)
            elif is_own_code(found.__name__, getattr(found, "__file__", None) or ""):
                for within in names:
                    self._note(within, vars(found), vars(found).get(within))

    def _note_object(self, value: Any) -> None:
        """One that code holds without a name of its own."""
        self._note(type(value).__name__, {type(value).__name__: value}, value)

    def _note(self, name: str, place: dict[str, Any] | types.CellType, value: Any) -> None:
        if isinstance(place, dict) and name not in place:
            return
        if not any(each.place is place and each.name == name for each in self._variables):
            self._variables.append(_Variable(name, place, value, _memories(value)))
        self._follow(value)


def _memories(value: Any) -> list[Memory]:
    return [memory for memory in remember(value, own=True) if not is_mock(memory[0])]


def _reorder(held: set[Any], room: int) -> None:
    contents, others = [*held], [object() for _ in range(room)]
    held.clear()
    held.update(others)
    held.update(contents)
    held.difference_update(others)


def _restore(variable: _Variable, value: Any, held: list[Memory]) -> None:
    if variable.get() is not value:
        variable.set(value)
    for each, contents in held:
        put_back(each, contents)


def _is_as_it_was(variable: _Variable) -> bool:
    now = variable.get()
    if now is not variable.value:
        return False
    memories = _memories(now)
    return len(memories) == len(variable.held) and all(
        held is was and _same(contents, before)
        for (held, contents), (was, before) in zip(memories, variable.held, strict=True)
    )


def _same(now: Any, before: Any) -> bool:
    """Without asking objects of anybody's own whether they are equal."""
    if isinstance(now, dict):
        return now.keys() == before.keys() and all(_same(now[key], before[key]) for key in now)
    if isinstance(now, list | tuple) and type(now) is type(before):
        return len(now) == len(before) and all(map(_same, now, before))
    return now is before or (type(now) in _SCALARS and type(now) is type(before) and bool(now == before))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names(code: types.CodeType) -> Iterator[str]:
    """Globals and attributes it refers to, inner functions included."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
