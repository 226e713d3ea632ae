"""A dead holder's lease is taken at once, a live one's never."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from died import dead_holder
from refold.journal.errors import StoreUnavailable, ThreadBusy
from refold.journal.holder import Row, describe, is_dead, row_of
from refold.journal.journal import Journal
from refold.journal.memory import MemoryStore
from refold.journal.sources import SYSTEM
from refold.journal.store import Busy, Lease


def test_this_process_is_not_dead() -> None:
    assert not is_dead(describe())


def test_a_killed_process_is_dead_and_a_stranger_counts_as_alive() -> None:
    name = dead_holder()

    assert name
    assert is_dead(name)
    assert not is_dead("")
    assert not is_dead("another-boot/another-namespace/1/2")


def test_the_lease_of_a_holder_that_died_here_is_taken_at_once() -> None:
    with Journal.memory() as journal:
        journal.create("t")
        journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=1000, name=dead_holder())

        tenure = journal.acquire("t")

        assert tenure.fence == 2
        assert tenure.known_since == 1
        with pytest.raises(ThreadBusy):
            journal.acquire("t")


@pytest.mark.parametrize("known, since", [("/1-1", 1), ("/1-0", 2), ("", 2)])
def test_a_holder_that_dies_at_once_leaves_what_it_knew_of_the_dead_before_it(known: str, since: int) -> None:
    """Else a worker killed before its first append would have the calls of a dead one left alone for their time."""
    with Journal.memory() as journal:
        journal.create("t")
        first = journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=1000, name=dead_holder())
        assert isinstance(first, Lease)
        journal.store.acquire(
            "t", holder=uuid.uuid4(), ttl_s=1000, name=dead_holder() + known, steal=first.fence
        )

        tenure = journal.acquire("t")

        assert (tenure.fence, tenure.known_since) == (3, since)
        assert row_of(journal.info("t").holder_name, 3) == Row(since, 3)
        assert not is_dead(journal.info("t").holder_name)


def test_a_death_is_remembered_when_the_answer_to_the_taking_is_lost() -> None:
    """Else the calls of the dead would be left alone for their whole time-out, as if somebody were still at them."""

    class Losing(MemoryStore):
        def acquire(self, thread: str, *, steal: int | None = None, **parts: Any) -> Lease | Busy:
            answer = super().acquire(thread, steal=steal, **parts)
            if steal is not None:
                raise StoreUnavailable("the answer was lost", ambiguous=True)
            return answer

    with Journal(Losing(SYSTEM)) as journal:
        journal.create("t")
        journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=1000, name=dead_holder())

        tenure = journal.acquire("t")

        assert tenure.fence == 2
        assert tenure.known_since == 1


def test_the_lease_of_a_dead_holder_that_ran_out_tells_of_its_death_too() -> None:
    """Taken in one step, since it is free: whoever takes it, and whoever comes after that one, learns who had it."""
    with Journal.memory() as journal:
        journal.create("t")
        first = journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=1000, name=dead_holder())
        assert isinstance(first, Lease)
        journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=0, name=dead_holder(), steal=first.fence)

        tenure = journal.acquire("t")

        assert (tenure.fence, tenure.known_since) == (3, 2)
        assert row_of(journal.info("t").holder_name, 3) == Row(2, 3)


def test_what_was_learnt_of_one_holder_is_not_said_of_another_who_came_between() -> None:
    """The taking failed; until it is tried again somebody else has had the thread, who may be alive."""

    class Slow(MemoryStore):
        def acquire(self, thread: str, *, steal: int | None = None, **parts: Any) -> Lease | Busy:
            if steal is None:
                return super().acquire(thread, **parts)
            stranger = super().acquire(thread, holder=uuid.uuid4(), ttl_s=0, name="elsewhere", steal=steal)
            assert isinstance(stranger, Lease)
            raise StoreUnavailable("nothing was done")

    with Journal(Slow(SYSTEM)) as journal:
        journal.create("t")
        journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=0, name="")
        MemoryStore.acquire(journal.store, "t", holder=uuid.uuid4(), ttl_s=1000, name=dead_holder())  # type: ignore[arg-type]

        tenure = journal.acquire("t")

        assert (tenure.fence, tenure.known_since) == (4, 0)
        assert row_of(journal.info("t").holder_name, 4) == Row(4, 4)


def test_a_process_tells_on_what_it_knows_of_itself_however_often_it_takes_a_thread() -> None:
    with Journal.memory() as journal:
        fences = []
        for _ in range(3):
            tenure = journal.acquire("t")
            fences.append((tenure.fence, tenure.known_since))
            tenure.release()

        assert fences == [(1, 0), (2, 1), (3, 1)]
        assert row_of(journal.info("t").holder_name, 3) == Row(1, 3)
