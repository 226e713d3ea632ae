"""Habits of people who write agents: what is right is not accused, and what is wrong is explained."""

from __future__ import annotations

import gc
import uuid
from functools import partial
from typing import Any

import pytest
from fuzz.shop import SCRIPT, close, find_order, notify, post, script, shop, support
from refold import Agent, Run, ScriptedModel, ToolContext, ToolError, program, tool
from refold.agent.scripted import call
from refold.replay.fuzz import FAULTS, PromiseBroken, every_crash_point, play_schedule
from refold.replay.fuzz_places import Course
from refold.replay.fuzz_trial import Options, Played, Trial
from refold.replay.outcomes import DidNotHappen, Happened, Unknown


def text_of(agent: Any, value: Any = None, **options: Any) -> str:
    with pytest.raises(PromiseBroken) as caught:
        every_crash_point(agent, value, **{"world": shop, **options})
    return " ".join(str(caught.value).split())


def played(agent: Any, *faults: tuple[str, str]) -> Played:
    with Trial(agent, None, Options(world=shop)) as trial:
        return trial.play(partial(Course, faults), frozenset(FAULTS))


# What is right


class Library:
    """Jobs that were done, by idempotency key."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.tries: dict[str, int] = {}


library = Library()


@tool(idempotent=True, retries=2)
def index(page: int, context: ToolContext) -> int:
    """Index a page; each call is refused twice before it succeeds."""
    tries = library.tries[context.idempotency_key] = library.tries.get(context.idempotency_key, 0) + 1
    if tries < 3:
        raise RuntimeError("busy")
    library.done[context.idempotency_key] = page
    return page


def done(library: Library) -> dict[str, int]:
    return library.done


@program
async def shares_a_queue(run: Run, pages: int) -> Any:
    """Two branches take from one list: which of them takes what goes by the order of replies."""
    left, indexed = list(range(pages)), []

    async def work() -> None:
        while left:
            indexed.append(await run.tool(index, left.pop(0)))

    await run.gather(work(), work())
    return sorted(indexed)


def test_branches_that_take_their_work_from_one_queue_may_swap_it() -> None:
    every_crash_point(shares_a_queue, 4, world=library, look=done)


def test_what_branches_did_otherwise_is_found_though_they_may_swap_their_work() -> None:
    @program
    async def works_unlike(run: Run, pages: int) -> Any:
        left = list(range(pages))

        async def work(times: int) -> None:
            while left:
                await run.tool(index, times * left.pop(0))

        await run.gather(work(1), work(10))

    assert "broken it asks for the same" in text_of(works_unlike, 4, world=library, look=done)


def test_a_crash_takes_none_of_the_attempts_that_a_failure_gets() -> None:
    @program
    async def indexes(run: Run) -> Any:
        return await run.tool(index, 1)

    twice = [("w1.append.answer", "crash"), ("w2.append.answer", "crash")]
    play_schedule(indexes, None, twice, world=library, look=done)


def test_a_class_of_model_clients_makes_one_for_each_history() -> None:
    made: list[Any] = []

    class Client(ScriptedModel):
        def __init__(self) -> None:
            super().__init__(SCRIPT)
            made.append(self)

    tried = every_crash_point(support, "Refund order 17", model=Client, world=shop)

    assert len(made) >= tried.histories


def test_finally_blocks_of_a_process_that_died_do_not_run_in_its_history_nor_later() -> None:
    @program
    async def tidies(run: Run) -> Any:
        try:
            return await run.tool(notify, order=1, text="x")
        finally:
            shop.notes.append("tidied")

    history = played(tidies, ("w1.append", "crash"))
    gc.collect()

    assert history.story.world["notes"] == ["tidied"]
    assert shop.notes == []


def test_a_finally_block_may_ask_for_a_call() -> None:
    @program
    async def tidies(run: Run) -> Any:
        try:
            await run.tool(close, order=1)
        finally:
            await run.tool(notify, order=1, text="tidied")

    every_crash_point(tidies, world=shop, may_fail=True)


# What is wrong


def paying(look_up: Any) -> Any:
    @tool(in_doubt=look_up)
    def pay(amount: int) -> str:
        """Pay."""
        shop.refunds.append((0, amount))
        return f"paid {amount}"

    @program
    async def pays(run: Run) -> Any:
        return await run.tool(pay, amount=3)

    return pays


@pytest.mark.parametrize(
    "answer, reason",
    [
        (Happened("paid 3"), "that it had happened, and it had not: the process died before it began"),
        (DidNotHappen(), "that it had not happened, and it had"),
    ],
)
def test_a_reconciler_that_says_what_is_not_so_is_named(answer: Any, reason: str) -> None:
    assert f"the reconciler of tool pay said of r1/1 attempt 1 {reason}" in text_of(
        paying(lambda amount: answer)
    )


def test_a_reconciler_that_makes_up_the_result_is_named() -> None:
    assert "that it had returned paid, and it had returned paid 3" in text_of(
        paying(lambda amount: Happened("paid") if shop.refunds else DidNotHappen())
    )


@pytest.mark.parametrize(
    "look_up, why",
    [(lambda amount: None, "returned NoneType"), (lambda amount: {}["x"], "failed: KeyError: 'x'")],
)
def test_a_reconciler_that_fails_is_found(look_up: Any, why: str) -> None:
    text = text_of(paying(look_up))

    assert "a reconciler answers: pay r1/1" in text
    assert f"the reconciler of tool 'pay' {why}" in text


def test_a_reconciler_that_does_not_know_is_fine() -> None:
    every_crash_point(paying(lambda amount: Unknown("the bank has not decided yet")), world=shop)


def test_a_run_that_does_not_bear_being_told_of_a_doubt_is_found() -> None:
    @program
    async def posts(run: Run) -> Any:
        return await run.tool(post, text="x")

    text = text_of(posts)

    assert "a run that is told of a doubt comes to its end" in text
    assert "expected run_finished found run_failed" in text
    every_crash_point(posts, world=shop, may_fail=True)


def test_effects_that_depend_on_the_order_of_what_runs_side_by_side_are_explained() -> None:
    @tool(idempotent=True)
    def put(value: int) -> None:
        """Put a value."""
        shop.bookings["seat"] = value

    @program
    async def races(run: Run) -> Any:
        async def one(value: int) -> None:
            await run.tool(find_order, order=value)
            await run.tool(put, value)

        await run.gather(one(1), one(2))

    # Who stood still may yet be at a call: it is left alone for its time, while the other branch goes on.
    text = text_of(races, faults=["pause"])

    assert "the same calls acted in another order: tool put r1/1.2.2 before tool put r1/1.1.2" in text


def test_a_loop_over_a_set_is_found_though_its_order_is_the_same_in_this_process() -> None:
    names: set[Any] = {"a", "b"}

    @program
    async def loops(run: Run) -> Any:
        async def inner() -> None:
            for name in names:
                await run.tool(notify, order=1, text=str(name))

        await run.gather(inner(), run.tool(find_order, order=1))

    assert "the order of a set in inner, test_what_users_write.py:" in text_of(loops)
    every_crash_point(loops, world=shop, own_clock=True)


def test_loops_over_what_has_an_order_are_fine() -> None:
    numbers, alone = {3, 4}, {"one"}

    @program
    async def loops(run: Run) -> Any:
        for name in (*sorted({"a", "b"}), *{1, 2}, *dict.fromkeys("cd")):
            await run.tool(notify, order=1, text=str(name))
        for number in numbers:
            await run.tool(find_order, order=number)
        for _ in alone:
            await run.tool(find_order, order=5)

    every_crash_point(loops, world=shop)


def test_a_fake_that_answers_otherwise_each_time_is_named() -> None:
    @tool(read_only=True)
    def number() -> str:
        """Draw a number."""
        return str(uuid.uuid4())

    @program
    async def draws(run: Run) -> Any:
        return await run.tool(number)

    assert "tool number r1/1 was asked for the same and answered otherwise" in text_of(draws)


def test_an_approval_that_depends_on_how_often_it_was_asked_is_found() -> None:
    asked: list[Any] = []

    def every_second(args: Any) -> bool:
        asked.append(args)
        return len(asked) % 2 == 0

    @tool(approval=every_second)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    agent = Agent("moody", model=ScriptedModel([call("pay", amount=3), "Done."]), tools=[pay])

    assert "not deterministic" in text_of(agent, "Go")


def test_only_calls_that_ran_more_often_than_without_a_fault_are_blamed() -> None:
    @tool(idempotent=True)
    def charge(amount: int) -> None:
        """Charge, each time."""
        shop.refunds.append((0, amount))

    @program
    async def works(run: Run) -> Any:
        for _ in range(2):
            await run.tool(charge, 1)

    text = text_of(works)

    assert "tool charge ran 2 times for r1/1" in text
    assert "for r1/2" not in text


def test_a_tool_error_after_an_effect_is_found() -> None:
    @tool
    def lies(amount: int) -> str:
        """Act, and assert that nothing happened."""
        shop.refunds.append((0, amount))
        raise ToolError("not enough money")

    @program
    async def tries(run: Run) -> Any:
        try:
            return await run.tool(lies, 1)
        except ToolError as error:
            return error.effect

    assert "tool lies changed the world 2 times for r1/1: it failed after it had acted" in text_of(tries)


def test_the_script_of_a_run_may_be_asked_once_more_in_each_test() -> None:
    model = script()
    for _ in range(2):
        play_schedule(support, "Refund order 17", [("w1.append", "crash")], model=model, world=shop)
    assert model.count == 0
