"""What fakes hold is seen and put back, whatever shape it has; what cannot be seen is refused, never passed over."""

from __future__ import annotations

import array
import collections
import io
import queue
import sqlite3
import threading
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from refold import Run, ToolContext, UsageError, program, tool
from refold.replay.fuzz import PromiseBroken, every_crash_point

Act = Callable[[Any], object]


class Holder:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


class Ledger(list[int]):
    total = 0


class Entries(dict[str, int]):
    pass


class Shared:
    rows: list[int] = []  # noqa: RUF012 - a fake that holds it for all its objects
    count = 0


def add_to_file(world: Any) -> None:
    world.write("x")


def total(world: Any) -> None:
    world.total += 1


def count(world: Any) -> None:
    type(world).count += 1


WORLDS: dict[str, tuple[Callable[[], Any], Act]] = {
    "namespace": (lambda: types.SimpleNamespace(n=[]), lambda world: world.n.append(1)),
    "user dict": (collections.UserDict, lambda world: world.__setitem__(len(world), 1)),
    "queue": (queue.Queue, lambda world: world.put(1)),
    "event": (threading.Event, lambda world: world.clear() if world.is_set() else world.set()),
    "text in memory": (io.StringIO, add_to_file),
    "bytes in memory": (lambda: Holder(out=io.BytesIO(b"a")), lambda world: world.out.write(b"xy")),
    "byte array": (lambda: Holder(out=bytearray()), lambda world: world.out.extend(b"x")),
    "array": (lambda: [array.array("i")], lambda world: world[0].append(1)),
    "mock inside": (lambda: {"bank": Mock()}, lambda world: world["bank"].pay(1)),
    "two mocks": (lambda: (Mock(), Mock()), lambda world: world[1].pay(1)),
    "object in a set": (lambda: {Holder(total=0)}, lambda world: [total(each) for each in world]),
    "attribute of a list": (Ledger, total),
    "attribute of a dict": (Entries, lambda world: world.__dict__.setdefault("rows", []).append(1)),
    "list of the class": (Shared, lambda world: world.rows.append(1)),
    "number of the class": (Shared, count),
}


def acting(act: Act, *, idempotent: bool) -> Any:
    def pay(context: ToolContext) -> None:
        """Pay, each time."""
        act(context.deps)

    pays = tool(idempotent=True)(pay) if idempotent else tool(pay)

    @program
    async def runs(run: Run) -> Any:
        return await run.tool(pays)

    return runs


@pytest.mark.parametrize("anew", [False, True], ids=["object", "function"])
@pytest.mark.parametrize("make, act", WORLDS.values(), ids=WORLDS)
def test_what_a_world_of_any_shape_holds_is_compared(make: Callable[[], Any], act: Act, anew: bool) -> None:
    every_crash_point(acting(act, idempotent=False), world=partial(make) if anew else make())
    with pytest.raises(PromiseBroken, match="tool pay ran 2 times for r1/1") as caught:
        every_crash_point(acting(act, idempotent=True), world=partial(make) if anew else make())
    assert caught.value.broken == ["the world is the same"]


def test_what_it_held_is_there_again_afterwards() -> None:
    out = io.StringIO("before")
    out.seek(3)
    shared = Shared()

    every_crash_point(acting(add_to_file, idempotent=False), world=out)
    every_crash_point(acting(count, idempotent=False), world=shared)

    assert (out.getvalue(), out.tell()) == ("before", 3)
    assert Shared.count == 0


def test_a_world_whose_contents_nobody_can_see_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    entries = tmp_path / "entries"
    entries.touch()
    book = entries.open()

    def database() -> Any:
        books = sqlite3.connect(":memory:")
        return Holder(books=books, close=books.close)

    def look(world: Any) -> Any:
        return world.books.execute("select count(*) from sqlite_master").fetchone()

    harmless = acting(lambda world: None, idempotent=True)
    with pytest.raises(
        UsageError, match=r"the world\.books is <sqlite3.Connection object>.*pass look="
    ) as told:
        every_crash_point(harmless, world=database)
    assert "a function that makes the world anew" in str(told.value)
    with pytest.raises(UsageError, match=r"the world\[0\]\['file'\] is PosixPath"):
        every_crash_point(harmless, world=[{"file": entries}])
    with pytest.raises(UsageError, match=r"what look= returns is <_io\.TextIOWrapper"):
        every_crash_point(harmless, world=[], look=lambda world: book)
    book.close()
    every_crash_point(harmless, world=database, look=look)
    every_crash_point(harmless, world=[{"file": tmp_path / "a name and no file"}])
