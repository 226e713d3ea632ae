"""Listing threads: newest first, page by page, without reading an event."""

from __future__ import annotations

import pytest
from appends import Pen
from refold.journal.store import Store, ThreadState
from store_worlds import World


def names(store: Store, **filters: object) -> list[str]:
    return [row.thread for row in store.threads(**filters)]  # type: ignore[arg-type]


@pytest.fixture
def crowd(world: World) -> World:
    """One thread in each state, oldest first, all given back; and one that runs under a live lease."""
    for state in ThreadState:
        if state is ThreadState.IDLE:
            world.store.create("idle")
        else:
            pen = Pen(world.store, state.value)
            pen.write(state=state)
            world.store.release(pen.thread, fence=pen.fence, seen=0)
    Pen(world.store, "alive", ttl_s=30).write()
    return world


def test_threads_are_listed_newest_first(crowd: World) -> None:
    assert names(crowd.store) == [
        "alive", "cancelled", "failed", "finished", "parked", "waiting", "running", "idle",
    ]  # fmt: skip


def test_pages_follow_each_other_without_gap_or_repetition(store: Store) -> None:
    made = [f"t{number:02}" for number in range(25)]
    for thread in made:
        store.create(thread)
    pages: list[str] = []
    after = None
    while page := store.threads(after=after, limit=4):
        pages += [row.thread for row in page]
        after = (page[-1].created_at, page[-1].thread)

    assert sorted(pages) == made
    assert len(pages) == 25


def test_states_select(crowd: World) -> None:
    store = crowd.store

    assert names(store, states=[ThreadState.FAILED, ThreadState.IDLE]) == ["failed", "idle"]
    assert names(store, states=[ThreadState.RUNNING], limit=1) == ["alive"]
    assert names(store, states=[]) == []
    last = store.threads(states=[ThreadState.RUNNING], limit=1)[0]
    assert names(store, states=[ThreadState.RUNNING], after=(last.created_at, last.thread)) == ["running"]


def test_attention_lists_what_needs_somebody(crowd: World) -> None:
    store = crowd.store

    assert names(store, attention=True) == ["failed", "parked", "waiting", "running"]
    assert names(store, attention=True, states=[ThreadState.PARKED, ThreadState.FINISHED]) == ["parked"]
    crowd.advance(31)
    assert names(store, attention=True, limit=2) == ["alive", "failed"]


def test_attention_lists_threads_at_rest_that_were_sent_something_since(crowd: World) -> None:
    store = crowd.store
    for thread in ("idle", "finished", "cancelled", "alive"):
        store.send(thread, key="k", kind="input", body=b"{}")

    waiting = ["cancelled", "failed", "finished", "parked", "waiting", "running", "idle"]
    assert names(store, attention=True) == waiting
    pages: list[str] = []
    after = None
    while page := store.threads(after=after, limit=2, attention=True):
        pages += [row.thread for row in page]
        after = (page[-1].created_at, page[-1].thread)
    assert pages == waiting
    assert names(store, attention=True, states=[ThreadState.FINISHED, ThreadState.PARKED]) == [
        "finished",
        "parked",
    ]
    pen = Pen(store, "finished")
    assert "finished" not in names(store, attention=True), "its holder will take it"
    pen.write(state=ThreadState.FINISHED, consumed=(1,))
    store.release("finished", fence=pen.fence, seen=1)
    assert "finished" not in names(store, attention=True)


def test_rows_tell_head_lease_and_waiting_messages(crowd: World) -> None:
    crowd.store.send("alive", key="k", kind="signal", body=b"")

    row = crowd.store.threads(limit=1)[0]

    assert (row.head, row.inbox_waiting, row.state) == (1, 1, ThreadState.RUNNING)
    assert row.lease_remaining_s is not None
    assert 0 < row.lease_remaining_s <= 30
