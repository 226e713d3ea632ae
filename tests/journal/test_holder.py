"""A dead holder's lease is taken at once, a live one's never."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from refold.journal.errors import ThreadBusy
from refold.journal.holder import describe, is_dead
from refold.journal.journal import Journal


def test_this_process_is_not_dead() -> None:
    assert not is_dead(describe())


def test_a_killed_process_is_dead_and_a_stranger_counts_as_alive() -> None:
    child = subprocess.run(
        [sys.executable, "-c", "from refold.journal.holder import describe; print(describe())"],
        capture_output=True,
        text=True,
        check=True,
    )
    name = child.stdout.strip()

    assert name
    assert is_dead(name)
    assert not is_dead("")
    assert not is_dead("another-boot/another-namespace/1/2")


def test_the_lease_of_a_holder_that_died_here_is_taken_at_once() -> None:
    child = subprocess.run(
        [sys.executable, "-c", "from refold.journal.holder import describe; print(describe())"],
        capture_output=True,
        text=True,
        check=True,
    )
    with Journal.memory() as journal:
        journal.create("t")
        journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=1000, name=child.stdout.strip())

        tenure = journal.acquire("t")

        assert tenure.fence == 2
        assert not tenure.rival
        with pytest.raises(ThreadBusy):
            journal.acquire("t")
