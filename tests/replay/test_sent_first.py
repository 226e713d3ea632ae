"""What a tool came to goes out before the program is stepped with it, unless something else is to go out with it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from refold import Run, ToolError, program, tool
from refold.journal.envelope import NewEvent
from refold.journal.sources import SYSTEM
from refold.journal.store import Batch
from refold.replay.commands import Call
from refold.replay.ending import End
from refold.replay.opening import begin_run
from refold.replay.ports import ModelReply
from refold.replay.program import Program
from refold.replay.rebuild import load
from refold.replay.recording import Completion, Policy

ANSWER = ModelReply({"role": "assistant", "content": "go on"}, finish_reason="stop")

ASKED = [{"role": "user", "content": "x"}]


class Desk:
    """A host on which everything is done by hand; it writes down in which order it is asked."""

    def __init__(self, runs: Program, value: bytes = b"null") -> None:
        self.order: list[str] = []
        self.flying = self.sent = 0
        self.next: tuple[str, int] | None = None
        self.takes_next = False
        self.begun: list[tuple[Call, int]] = []
        opened = begin_run(
            runs,
            load("t", []),
            value,
            key=None,
            messages=[],
            host=self,
            policy=Policy(),
            new_uid=SYSTEM.new_id,
        )
        self.session = opened.session
        opened.begin()

    def wall_us(self) -> int:
        return 1

    def now_us(self) -> int:
        return 1

    def new_id(self) -> uuid.UUID:
        return SYSTEM.new_id()

    def append(self, batch: Batch) -> None:
        assert not self.flying
        self.order.append(names(batch.events))
        self.flying = len(batch.events)

    def append_next(self, batch: Batch, *, after: int) -> bool:
        assert after == self.sent + self.flying
        if self.takes_next:
            self.next = names(batch.events), len(batch.events)
        return self.takes_next

    def perform(self, call: Call, attempt: int) -> None:
        self.begun.append((call, attempt))

    transact: Callable[..., None]
    reconcile: Callable[..., None]
    abandon: Callable[..., None]
    alarm: Callable[..., None]

    def land(self) -> None:
        """All that was made becomes durable."""
        while self.flying:
            self.land_one()

    def land_one(self) -> None:
        """What is under way becomes durable, and what was to go out next is under way."""
        flown, self.flying = self.flying, 0
        self.sent += flown
        if self.next is not None:
            (kinds, self.flying), self.next = self.next, None
            self.order.append(kinds)
        self.session.acked(flown)

    def end(self, value: Any = "done", error: Exception | None = None) -> None:
        """What runs comes to its end, and nothing lands meanwhile."""
        ((call, attempt),), self.begun = self.begun, []
        self.session.completed(call.path, attempt, Completion(value=value, error=error))


def names(events: Sequence[NewEvent]) -> str:
    return " ".join(event.kind for event in events)


@tool
def look() -> str:
    """Look something up."""
    raise AssertionError("it is done by hand")


def test_the_outcome_of_a_tool_that_leads_to_a_model_call_goes_out_before_the_program_is_stepped() -> None:
    @program
    async def asks(run: Run) -> None:
        while True:
            await run.model(messages=ASKED, model="m")
            await run.tool(look)
            desk.order.append("stepped")

    desk = Desk(asks)
    for _ in range(3):
        desk.land()
        desk.end(ANSWER)
        desk.land()
        desk.end()
    asked = "model_responded tool_started"

    assert desk.order[1:] == [
        *(asked, "stepped", "tool_returned"),
        *(asked, "tool_returned", "stepped"),
        *(asked, "tool_returned", "stepped"),
    ]


def test_what_a_tool_leads_to_at_once_goes_out_with_its_outcome_in_one_commit() -> None:
    @program
    async def loops(run: Run) -> None:
        for _ in range(4):
            await run.tool(look)

    desk = Desk(loops)
    for _ in range(4):
        desk.land()
        desk.end()
    desk.land()

    assert desk.order[1:] == [*["tool_returned tool_started"] * 3, "tool_returned run_finished"]
    assert desk.session.end == End(status="finished")


def test_a_tool_that_leads_to_something_else_than_before_is_not_sent_first_the_next_time() -> None:
    @program
    async def turns(run: Run) -> None:
        await run.tool(look)
        await run.model(messages=ASKED, model="m")
        while True:
            await run.tool(look)

    desk = Desk(turns)
    for value in ("done", ANSWER, "done", "done"):
        desk.land()
        desk.end(value)

    assert desk.order[1:] == [
        "tool_returned",
        "model_responded tool_started",
        "tool_returned",
        "tool_started",
        "tool_returned tool_started",
    ]


def test_a_failure_goes_out_first_too_and_the_program_is_told_of_it() -> None:
    @program
    async def forgives(run: Run) -> None:
        while True:
            try:
                await run.tool(look)
            except ToolError as error:
                desk.order.append(error.error_type)
            await run.model(messages=ASKED, model="m")

    desk = Desk(forgives)
    for value, error in (("done", None), (ANSWER, None), (None, ToolError("no", error_type="NotThere"))):
        desk.land()
        desk.end(value, error)

    assert desk.order[-2:] == ["tool_failed", "NotThere"]


def test_an_outcome_that_went_out_first_stays_recorded_when_the_program_breaks_on_it() -> None:
    @program
    async def breaks(run: Run) -> None:
        await run.tool(look)
        await run.model(messages=ASKED, model="m")
        await run.tool(look)
        await Foreign()

    desk = Desk(breaks)
    for value in ("done", ANSWER, "done"):
        desk.land()
        desk.end(value)
    desk.land()

    assert desk.order[-2:] == ["tool_returned", "run_released"]
    assert "not a command of its run" in str(desk.session.error)


class Foreign:
    """Awaits what is no command."""

    def __await__(self) -> Any:
        yield self


@program
async def two_at_once(run: Run) -> None:
    while True:
        await run.gather(run.tool(look), run.model(messages=ASKED, model="m"))


def test_what_happens_while_an_append_is_under_way_goes_out_next_and_together() -> None:
    desk = Desk(two_at_once)
    desk.land()
    desk.takes_next = True
    # The model answers while the start of the tool is under way, and the tool after it.
    (model, _), (look_up, attempt) = sorted(desk.begun, key=lambda begun: begun[0].path, reverse=True)
    desk.session.completed(look_up.path, attempt, Completion(value="done"))
    desk.session.completed(model.path, 1, Completion(value=ANSWER))

    assert desk.order[-1] == "tool_returned"
    assert desk.next == ("model_responded tool_started", 2)
    desk.begun.clear()
    desk.land_one()
    assert desk.order[-1] == "model_responded tool_started"
    assert desk.begun == []
    desk.land_one()
    assert "ToolCall" in [type(call.command).__name__ for call, _ in desk.begun]


def test_what_was_to_go_out_next_is_still_unrecorded_when_the_append_before_it_fails() -> None:
    desk = Desk(two_at_once)
    desk.land()
    desk.takes_next = True
    (model, _), (look_up, attempt) = sorted(desk.begun, key=lambda begun: begun[0].path, reverse=True)
    desk.session.completed(look_up.path, attempt, Completion(value="done"))
    desk.session.completed(model.path, 1, Completion(value=ANSWER))

    unrecorded = desk.session.failed(RuntimeError("gone"))

    assert names(unrecorded) == "tool_returned model_responded tool_started"
