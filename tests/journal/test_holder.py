"""A dead holder's lease is taken at once, a live one's never."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from died import dead_holder
from refold.journal.errors import StoreUnavailable, ThreadBusy
from refold.journal.holder import buried_since, describe, is_dead
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
        assert tenure.buried_since == 1
        with pytest.raises(ThreadBusy):
            journal.acquire("t")


@pytest.mark.parametrize("known, since", [("/1", 1), ("", 2)])
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

        assert (tenure.fence, tenure.buried_since) == (3, since)
        assert buried_since(journal.info("t").holder_name) == since
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
        assert tenure.buried_since == 1
