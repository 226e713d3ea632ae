"""What a mutant is: an engine or a store with one guard taken out, and where it is looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from sim.explore import forget

Hunt = tuple[Any, int, str] | tuple[Any, dict[str, str]]


class Mutant(Struct, frozen=True):
    """
    One guard less.

    Args:
        name: What the mutant does.
        caught_by: Promises of which at least one must be found broken.
        patch: (owner, attribute, what to put there, made from the original).
        hunts: Where to look.
    """

    name: str
    caught_by: frozenset[str]
    patch: tuple[Any, str, Callable[[Any], Any]]
    hunts: tuple[Hunt, ...]

    @contextmanager
    def at_large(self) -> Iterator[None]:
        """While this is entered the guard is missing."""
        owner, name, make = self.patch
        original = owner.__dict__[name]
        setattr(owner, name, make(getattr(owner, name)))
        forget()
        try:
            yield
        finally:
            setattr(owner, name, original)
            forget()


MUTANTS: list[Mutant] = []


def mutant(
    owner: Any, attribute: str, caught_by: str, *hunts: Hunt
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        name = make.__name__.replace("_", " ")
        MUTANTS.append(Mutant(name, frozenset(caught_by.split()), (owner, attribute, make), hunts))
        return make

    return register
