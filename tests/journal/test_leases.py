"""Leases on their way back: messages, waiting and closing."""

from __future__ import annotations

import logging
import threading

import pytest
from appends import event
from refold.journal import journal as journal_module
from refold.journal.journal import Journal
from refold.journal.memory import MemoryStore
from refold.journal.sources import Sources
from refold.journal.store import Append, AppendResult, Batch, Release

SOON_S = 20.0


class SlowStore(MemoryStore):
    """A store whose answers to a release wait at a gate."""

    def __init__(self) -> None:
        super().__init__(Sources())
        self.gate = threading.Event()
        self.asked = threading.Event()

    def release(self, thread: str, *, fence: int, seen: int) -> Release:
        answer = super().release(thread, fence=fence, seen=seen)
        self.asked.set()
        assert self.gate.wait(SOON_S)
        return answer


def test_a_message_keeps_the_tenure_of_a_caller_who_waits_and_not_that_of_one_who_has_gone() -> None:
    store = SlowStore()
    store.gate.set()
    with Journal(store) as journal:
        tenure = journal.acquire("t")
        journal.send("t", key="k", kind="signal", body=b"1")

        assert journal.leases.give_back(tenure, 0).answer.result(SOON_S) is Release.INBOX_PENDING
        assert not tenure.ended

        store.gate.clear()
        store.asked.clear()
        giving = journal.leases.give_back(tenure, 0)
        assert store.asked.wait(SOON_S)
        assert journal.leases.leave(giving) is None
        store.gate.set()
        assert giving.answer.result(SOON_S) is Release.RELEASED
        assert [message.key for message in journal.inbox("t")] == ["k"]


class HeldStore(MemoryStore):
    """A store whose appends wait at a gate."""

    def __init__(self) -> None:
        super().__init__(Sources())
        self.gate = threading.Event()

    def append(self, append: Append) -> AppendResult:
        assert self.gate.wait(SOON_S)
        return super().append(append)


def test_a_lease_is_given_back_after_what_is_sent_when_the_append_under_way_is_told() -> None:
    store = HeldStore()
    with Journal(store) as journal:
        tenure = journal.acquire("t")
        released, kept = threading.Event(), []

        def more(result: AppendResult | BaseException) -> None:
            # It would be back long before, if it only waited for the append.
            kept.append(not released.wait(0.1))
            tenure.send(Batch((event(b"1"),)), told=lambda _: None)

        tenure.send(Batch((event(b"0"),)), told=more)
        giving = journal.leases.give_back(tenure)
        giving.answer.add_done_callback(lambda _: released.set())
        store.gate.set()
        assert giving.answer.result(SOON_S) is Release.RELEASED

        assert kept == [True]
        assert [each.body for each in journal.read("t")] == [b"0", b"1"]


def test_many_leases_go_back_together_and_each_once() -> None:
    store = SlowStore()
    with Journal(store) as journal:
        tenures = [journal.acquire(f"t{number}") for number in range(50)]
        givings = [journal.leases.give_back(each) for each in tenures]
        assert [journal.leases.give_back(each) for each in tenures] == givings
        store.gate.set()

        assert {giving.answer.result(SOON_S) for giving in givings} == {Release.RELEASED}
        assert not any(journal.info(each.thread).held for each in tenures)


def test_closing_waits_a_bounded_time_for_a_lease_and_says_what_runs_out_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_module, "CLOSE_S", 0.05)
    monkeypatch.setattr(journal_module, "FLUSH_S", 0.05)
    store = SlowStore()
    journal = Journal(store)
    givings = [journal.leases.give_back(journal.acquire(f"t{number}")) for number in range(20)]
    assert store.asked.wait(SOON_S)

    with caplog.at_level(logging.WARNING, logger="refold.journal"):
        journal.close()
    late = journal.leases.give_back(givings[0].tenure)
    store.gate.set()

    assert [giving.answer.result(SOON_S) for giving in givings].count(None) >= 10
    assert late is givings[0] or late.answer.result(SOON_S) is None
    assert "runs out by itself" in caplog.text
