"""The fake world of a trial: put back before each history, and looked at after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..journal.errors import UsageError
from .fuzz_contents import FACTORIES, picture, put_back, remember


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
        self._make = world if isinstance(world, FACTORIES) else None
        self._world = None if self._make else world
        self._look = look
        # Of a class, what all its objects share.
        self._known = list(remember(world))
        if look is not None and not callable(look):
            raise UsageError(f"look is a function from the world to what is compared of it, not {look!r}")
        if world is not None and not self._make and not self._known:
            raise UsageError(
                f"the world {world!r} holds nothing that could be put back before each history; "
                "pass the object that your fakes act on, or a function that makes a fresh one"
            )

    def renew(self) -> Any:
        """As before anything happened; the world itself."""
        self.end()
        if self._make is not None:
            self._world = self._make()
            self._known = self._known or list(remember(type(self._world)))
        return self._world

    def end(self) -> None:
        """Put back what the test has given; close what was made for one history, if it can be closed."""
        world: Any = self._world
        for held, contents in self._known:
            put_back(held, contents)
        if self._make is not None and callable(close := getattr(world, "close", None)):
            close()

    def picture(self) -> Any:
        """What is compared, as plain data. Raises `UsageError`: it cannot be seen."""
        if self._look is not None:
            return picture(self._look(self._world), name="what look= returns")
        return picture(self._world)


class Changes:
    """
    Who changed the world in one history: the calls that were performed, or the program between them.

    Args:
        world: The world, just renewed.
    """

    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self._last = world.picture()
        self._latest: tuple[int, int] | None = None
        self.by_calls: set[int] = set()
        """Places in the ledger of calls that did."""
        self.by_reconcilers: list[int] = []
        """Which verdicts they came to while they did."""
        self.by_program: list[int] = []
        """Places in the ledger before which the program did."""

    def between(self, deeds: int, verdicts: int) -> None:
        """A call is about to be performed, or the history is over; the ledger is so long, and as many have spoken."""
        if self._latest is not None:
            place, verdict = self._latest
            self._latest = None
            # What is performed is entered when it has been.
            if deeds > place:
                self.by_calls.add(place)
            elif verdicts > verdict:
                self.by_reconcilers.append(verdict)
        if self._changed():
            self.by_program.append(deeds)

    def performed(self, deeds: int, verdicts: int) -> None:
        """That call has been performed, and is not entered yet."""
        if self._changed():
            self._latest = deeds, verdicts

    def _changed(self) -> bool:
        before, self._last = self._last, self._world.picture()
        return bool(before != self._last)
