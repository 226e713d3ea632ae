"""Answers of people, given by several processes at once, out of order, and at the worst moment."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import refold
from chaos.oracles import History
from chaos.stage import Stage
from refold import Journal, Run, ToolContext, program, tool
from refold.journal.store import Release
from refold.replay import answers, rebuild
from refold.replay.live import Limits
from refold.replay.runner import read_all

Staged = Callable[..., Stage]
ROUNDS = 6


def waiting_calls(journal: Journal, stage: Stage, thread: str) -> tuple[str, str]:
    """The two calls of the program `asks`, once both wait."""
    until_s = time.monotonic() + 30
    while True:
        assert time.monotonic() < until_s, stage.output()
        events = read_all(journal, thread)
        status = rebuild.load(thread, events).status if events else None
        calls = [] if status is None or status.current is None else list(status.current.open.values())
        if [call.status for call in calls] == ["waits for approval"] * 2:
            return calls[0].call, calls[1].call
        stage.reports.read(0.005)


def decide_at_once(stage: Stage, thread: str, call: str, *answers_: bool) -> list[dict[str, Any]]:
    """Several processes answer about one call behind a barrier; what each was told."""
    barrier = stage.folder / "barrier"
    with barrier.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        pids = [
            stage.start("decide", thread=thread, call=call, approved=approved, barrier=str(barrier))
            for approved in answers_
        ]
        for pid in pids:
            stage.hear("waiting", pid)
        fcntl.flock(file, fcntl.LOCK_UN)
    told = [stage.hear("answered", pid) for pid in pids]
    for pid in pids:
        assert stage.wait(pid) == 0
    return told


def outcomes(history: History) -> list[str]:
    return [body["kind"] for _, body in history.of("tool_returned", "approval_given")]


def test_of_two_processes_that_approve_at_once_one_counts_and_the_call_runs_once(
    staged: Staged, journal: Journal
) -> None:
    """H21: while a worker holds the thread, or waits without its lease, or nobody is there."""
    for number in range(ROUNDS):
        stage = staged("asks", thread=f"t{number}", wait=True)
        worker = stage.start()
        first, second = waiting_calls(journal, stage, f"t{number}")
        if number % 2:
            stage.kill(worker)

        told = decide_at_once(stage, f"t{number}", second, True, True)
        assert sorted(each["fresh"] for each in told) == [False, True]
        assert [each["refused"] for each in told] == [None, None]
        told = decide_at_once(stage, f"t{number}", first, True, True)
        assert sorted(each["fresh"] for each in told) == [False, True]

        if number % 2:
            worker = stage.start()
        stage.hear("finished", worker)
        history = stage.judge(journal, f"t{number}")
        assert sorted(entry["call"] for entry in history.acted) == [first, second]


def test_of_an_approval_and_a_denial_at_once_the_first_counts_and_the_other_is_told(
    staged: Staged, journal: Journal
) -> None:
    for number in range(ROUNDS):
        stage = staged("asks", thread=f"t{number}", wait=True)
        worker = stage.start()
        first, second = waiting_calls(journal, stage, f"t{number}")
        decide_at_once(stage, f"t{number}", first, False)

        told = decide_at_once(stage, f"t{number}", second, True, False)
        assert sorted(each["fresh"] for each in told) == [False, True]
        approved = told[0]["fresh"]
        (refused,) = (each for each in told if not each["fresh"])
        assert refused["refused"] == "NotPending"
        assert "already answered" in refused["why"]

        stage.hear("finished", worker)
        history = stage.judge(journal, f"t{number}")
        assert [entry["call"] for entry in history.acted] == ([second] if approved else [])


def test_the_second_of_two_calls_approved_first_and_a_kill_between_the_answers(
    staged: Staged, journal: Journal
) -> None:
    """H21: each answer reaches the call it names, each call runs once, whoever is killed in between."""
    stage = staged("asks", wait=True)
    worker = stage.start()
    first, second = waiting_calls(journal, stage, stage.thread)

    assert answers.approve(journal, stage.thread, second).fresh
    assert stage.hear("entered", worker)["call"] == second
    while "tool_returned" not in outcomes(stage.history(journal)):
        stage.reports.read(0.005)
    stage.kill(worker)
    with pytest.raises(refold.NotPending, match="not open"):
        answers.approve(journal, stage.thread, "r1/9.9")
    assert answers.approve(journal, stage.thread, first).fresh
    worker = stage.start()
    finished = stage.hear("finished", worker)

    history = stage.judge(journal)
    assert [entry["call"] for entry in history.acted] == [second, first]
    by_call = {entry["call"]: entry["value"] for entry in history.acted}
    assert finished["output"] == [by_call[first], by_call[second]]


class Pausing:
    """A store that lets a test act right before or right after a release."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.answers: list[Release] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def release(self, thread: str, **parts: Any) -> Release:
        self.before()
        answer: Release = self._inner.release(thread, **parts)
        self.answers.append(answer)
        self.after()
        return answer


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("wait", [True, False])
async def test_an_approval_that_lands_while_the_holder_is_releasing_is_not_left_behind(
    pg_dsn: str, moment: str, wait: bool
) -> None:
    """H21: the holder has decided to leave and has not left, or has just left and not yet looked again."""
    acted: list[str] = []

    @tool(approval=True)
    def sign(context: ToolContext) -> str:
        """Sign."""
        acted.append(context.call)
        return "signed"

    @program
    async def needs(run: Run) -> Any:
        return await run.tool(sign)

    with Journal.open(pg_dsn) as journal, Journal.open(pg_dsn) as office:
        store = Pausing(journal.store)
        journal.store = store  # type: ignore[assignment]
        given = threading.Event()

        def approve() -> None:
            if not given.is_set():
                given.set()
                answers.approve(office, "t", "r1/1")

        setattr(store, moment, approve)
        result = await refold.run(
            needs,
            journal=journal,
            thread="t",
            wait=wait,
            limits=Limits(poll_s=3600 if moment == "before" else 0.01),
        )
        if moment == "after" and not wait:
            # It had left when the answer came: the thread says so, and whoever resumes it finds the answer.
            assert result.status == "waiting"
            assert office.info("t").inbox_waiting == 1
            result = await refold.resume(needs, journal=office, thread="t")

        assert (result.status, result.output, acted) == ("finished", "signed", ["r1/1"])
        assert store.answers[0] is (Release.INBOX_PENDING if moment == "before" else Release.RELEASED)
        assert office.info("t").inbox_waiting == 0
        rebuild.replay(needs, "t", read_all(office, "t"))
