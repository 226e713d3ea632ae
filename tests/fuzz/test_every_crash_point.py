"""Correct agents pass at every crash point; planted bugs are found, and the words say what and where."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
import time
import uuid
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from fuzz.shop import (
    SCRIPT,
    burn,
    close,
    errands,
    fetch,
    find_order,
    notify,
    post,
    refund,
    script,
    shop,
    support,
)
from refold import Agent, ModelError, Run, ScriptedModel, ToolContext, ToolError, UsageError, program, tool
from refold import fuzz as face
from refold.agent.scripted import call, failing
from refold.replay.fuzz import FAULTS, CrashPoints, PromiseBroken, every_crash_point, play_schedule
from refold.replay.fuzz_places import Course
from refold.replay.fuzz_trial import Options, Played, Trial
from refold.replay.outcomes import DidNotHappen

SIGNALS = {"publish?": True}


def found(agent: Any, value: Any = None, **options: Any) -> PromiseBroken:
    with pytest.raises(PromiseBroken) as caught:
        every_crash_point(agent, value, **{"world": shop, **options})
    return caught.value


def played(agent: Any, value: Any, *faults: tuple[str, str], **options: Any) -> Played:
    with Trial(agent, value, Options(world=shop, **options)) as trial:
        return trial.play(partial(Course, faults), frozenset(FAULTS))


# What is right passes


def test_a_correct_agent_is_the_same_whatever_crashes() -> None:
    tried = every_crash_point(support, "Refund order 17", model=script(), world=shop)

    assert tried.histories == len(tried.points) + 2
    assert {"tool_started", "approval_requested", "approval_given", "run_finished"} <= set(tried.kinds)
    assert str(tried).startswith(f"{len(tried.points)} places")


def test_a_recovery_may_crash_too() -> None:
    @program
    async def pays(run: Run) -> Any:
        return await run.gather(run.tool(refund, order=1, amount=2), run.tool(notify, order=1, text="x"))

    tried = every_crash_point(pays, world=shop, faults_max=2)

    assert tried.histories > 10 * len(tried.points)


def test_a_program_with_every_kind_of_command_is_the_same_whatever_happens() -> None:
    tried = every_crash_point(errands, 17, world=shop, signals=SIGNALS, faults=FAULTS)

    asked = {"step_recorded", "timer_fired", "wait_started", "signal_received", "approval_given"}
    assert asked <= set(tried.kinds)
    assert {"w1.tool 1.1.1", "w1.outcome 1.1.1", "w1.append", "w1.append.answer"} <= set(tried.points)


@pytest.mark.parametrize("place, doubted", [("w1.tool 1", "did_not_happen"), ("w1.outcome 1", "returned")])
def test_a_parked_call_is_answered_by_somebody_who_knows_what_happened(place: str, doubted: str) -> None:
    @program
    async def pays(run: Run) -> Any:
        return await run.tool(refund, order=1, amount=2)

    history = played(pays, None, (place, "crash"))

    assert "run_parked" in history.kinds
    assert history.story.world["refunds"] == [[1, 2]]
    outcomes = [effect.happened for effect in history.story.effects]
    assert outcomes == [True]
    assert (history.course.struck[0].head, history.kinds[-1]) == (3, "run_finished"), doubted


def test_a_call_whose_policy_is_to_run_again_waits_for_nobody() -> None:
    @program
    async def writes(run: Run) -> Any:
        return await run.tool(notify, order=1, text="x")

    history = played(writes, None, ("w1.outcome 1", "crash"))

    assert "run_parked" not in history.kinds
    assert [effect.attempt for effect in history.story.effects] == [1, 2]
    assert len({effect.key for effect in history.story.effects}) == 1


def test_tools_that_fail_or_refuse_are_the_same_whatever_crashes() -> None:
    @program
    async def fails(run: Run) -> Any:
        got = []
        for each, args in ((burn, {"what": "toast"}), (close, {"order": 1}), (post, {"text": "x"})):
            try:
                got.append(await run.tool(each, **args))
            except ToolError as error:
                got.append(str(error))
        return got

    every_crash_point(fails, world=shop, faults_max=2)


def test_a_model_that_fails_and_then_answers_does_so_in_each_history() -> None:
    busy = ModelError("busy", kind="overloaded")
    model = ScriptedModel([failing(busy, busy, then=call("find_order", order=1)), "Done."])

    tried = every_crash_point(support, "Go", model=model, world=shop)

    assert tried.kinds.count("model_failed") == 2
    assert model.count == 0


def test_denied_approvals_and_runs_that_fail_are_fine_when_they_are_meant() -> None:
    @program
    async def fails(run: Run) -> Any:
        await run.tool(refund, order=1, amount=1000)

    with pytest.raises(UsageError, match="may_fail=True"):
        every_crash_point(fails, world=shop, approve=False)
    tried = every_crash_point(fails, world=shop, approve=lambda tool, args: args["amount"] < 5, may_fail=True)

    assert tried.kinds[-1] == "run_failed"


def test_text_that_may_differ_is_ignored() -> None:
    @program
    async def dated(run: Run) -> Any:
        await run.sleep(1)
        return f"done at {run.now().isoformat()}"

    assert "2025" in found(dated).args[0]
    every_crash_point(dated, ignore=r"\d{4}-\d\d-\d\dT[\d:.+]+")


# The world


def test_the_world_is_put_back_before_and_after() -> None:
    shop.refunds.append((1, 1))
    inner = shop.refunds
    try:
        every_crash_point(support, "Refund order 17", model=script(), world=shop)
        assert shop.refunds is inner
        assert shop.refunds == [(1, 1)]
    finally:
        shop.refunds.clear()


def test_a_world_can_be_made_anew_and_looked_at_and_is_what_tools_are_given() -> None:
    made: list[Any] = []

    class Desk:
        __slots__ = ("rung",)

        def __init__(self) -> None:
            self.rung = 0
            made.append(self)

        def close(self) -> None:
            made.remove(self)

    @tool
    def ring(context: ToolContext) -> int:
        """Ring."""
        context.deps.rung += 1
        return 0

    @program
    async def rings(run: Run) -> Any:
        return [await run.tool(ring), await run.tool(ring)]

    seen = []
    every_crash_point(rings, world=Desk, look=lambda desk: seen.append(desk.rung))
    assert set(seen) == {0, 1, 2}
    assert made == []
    every_crash_point(rings, world=Desk())


def test_a_mock_is_a_world() -> None:
    mailer = Mock()

    @tool(idempotent=True)
    def mail(text: str) -> None:
        """Mail."""
        mailer.send(text)

    @program
    async def mails(run: Run) -> Any:
        await run.tool(mail, text="x")

    broken = found(mails, world=mailer)

    assert "call.send('x')" in broken.args[0]
    assert "tool mail ran 2 times for r1/1" in broken.args[0]


# Planted bugs


def test_a_tool_wrongly_declared_repeatable_is_found() -> None:
    @tool(idempotent=True)
    def refund(order: int, amount: int) -> str:
        """Pay money back, each time."""
        shop.refunds.append((order, amount))
        return "ok"

    agent = Agent("support", model=script(), tools=[find_order, refund, notify])
    broken = found(agent, "Refund order 17")
    text = broken.args[0]

    assert broken.broken == ["the world is the same"]
    assert "expected  [[17, 30], [17, 500]]" in text
    assert "found     [[17, 30], [17, 30], [17, 500]]" in text
    assert "tool refund ran 2 times for r1/4.1.1, with one idempotency key" in text
    assert "between seq 8 (tool_started) and seq 9 (run_resumed)" in text
    assert f"play_schedule(support, 'Refund order 17', {broken.faults!r}, world=...)" in text
    assert len(text.splitlines()) <= 45
    assert max(map(len, text.splitlines())) <= 120


def test_an_effect_outside_of_any_tool_is_found() -> None:
    @program
    async def naive(run: Run, order: int) -> Any:
        found = await run.tool(find_order, order=order)
        shop.notes.append(f"mail about {order}")
        return await run.tool(refund, order=order, amount=found["paid"])

    broken = found(naive, 17)
    text = broken.args[0]

    assert broken.broken == ["the world is the same"]
    assert "notes" in text
    assert "the program itself changed the world after tool find_order r1/1 (worker 1)" in text
    assert "the effect belongs into a tool" in text
    with pytest.raises(PromiseBroken) as again:
        play_schedule(naive, 17, broken.faults, world=shop)
    assert again.value.args == broken.args


def test_an_effect_in_a_step_is_found() -> None:
    def log(text: str) -> None:
        shop.notes.append(text)

    @program
    async def logs(run: Run) -> Any:
        await run.step(log, "x")

    assert "step log ran 2 times for r1/1" in found(logs).args[0]


def test_a_random_branch_is_found_as_a_divergence() -> None:
    @program
    async def moody(run: Run, order: int) -> Any:
        await run.tool(find_order, order=order)
        if random.random() < 0.5:
            return await run.tool(post, text="heads")
        return await run.step(fetch, "tails")

    broken = found(moody, 17)

    assert "diverged at seq" in broken.args[0]
    assert "it is not deterministic" in broken.args[0]
    assert "It goes by random.random in moody, test_every_crash_point.py:" in broken.args[0]


@pytest.mark.parametrize("draw", [uuid.uuid4, time.time_ns], ids=["uuid", "clock"])
def test_a_prompt_with_chance_or_time_in_it_is_found(draw: Any) -> None:
    agent = Agent(
        "dated",
        model=ScriptedModel(SCRIPT),
        tools=support.tools.values(),
        instructions=lambda run: f"{draw()}",
    )

    assert "message 1 (system).content" in found(agent, "Go").args[0]


def today(run: Run) -> str:
    return f"Today is {dt.date.today()}."  # noqa: DTZ011 - the mistake that is looked for


def rarely(run: Run) -> str:
    return "Refund." if random.random() < 1e-9 else "Do not refund."


@pytest.mark.parametrize("instructions, called", [(today, "date.today"), (rarely, "random.random")])
def test_a_clock_or_a_chance_that_has_not_shown_yet_is_found(instructions: Any, called: str) -> None:
    agent = Agent("dated", model=script(), tools=support.tools.values(), instructions=instructions)

    text = found(agent, "Go").args[0]

    assert f"{called} in {instructions.__name__}, test_every_crash_point.py:" in text
    assert "run.now(), run.random, run.uuid()" in text
    every_crash_point(agent, "Go", world=shop, own_clock=True)


def test_clocks_that_only_measure_and_loggers_are_fine() -> None:
    @program
    async def measures(run: Run) -> Any:
        logging.getLogger("measures").warning("began at %s", time.perf_counter())
        await run.tool(stamp)

    @tool(read_only=True)
    def stamp() -> str:
        """A tool may look at the clock."""
        return "" if time.time() else str(dt.datetime.now(dt.UTC))

    every_crash_point(measures)


def test_what_a_program_remembers_outside_of_its_log_is_found() -> None:
    seen: list[int] = []

    @program
    async def counts(run: Run) -> Any:
        seen.append(1)
        await run.tool(find_order, order=len(seen))
        return None

    assert "not deterministic" in found(counts).args[0]


def test_a_reconciler_that_does_not_know_is_found() -> None:
    def blind(context: ToolContext) -> DidNotHappen:
        return DidNotHappen()

    @tool(in_doubt=blind)
    def pay(amount: int) -> str:
        """Pay."""
        shop.refunds.append((0, amount))
        return "paid"

    @program
    async def pays(run: Run) -> Any:
        return await run.tool(pay, amount=3)

    broken = found(pays)

    assert "a tool that is not declared repeatable acts once for a call" in broken.broken
    assert "or its reconciler said that it had not" in " ".join(broken.args[0].split())


def test_a_result_that_differs_when_it_is_run_again_is_found() -> None:
    @tool(idempotent=True)
    def number(context: ToolContext) -> int:
        """The attempt."""
        return context.attempt

    @program
    async def tells(run: Run) -> Any:
        return await run.tool(number)

    broken = found(tells)

    assert broken.broken[0] == "it comes to the same outcome"
    assert "expected  1" in broken.args[0]
    assert "found     2" in broken.args[0]


def test_a_place_that_is_no_longer_reached_is_said() -> None:
    with pytest.raises(PromiseBroken, match="does not: its code was changed since"):
        play_schedule(support, "Refund order 17", [("w1.tool 9", "crash")], model=script(), world=shop)


# Wrong use is told before anything runs


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="pass model=ScriptedModel"):
        every_crash_point(support, "Go", world=shop)
    with pytest.raises(UsageError, match="'publish\\?'"):
        waits_forever()
    with pytest.raises(UsageError, match="there is no fault 'fire'; the faults are: crash, lost"):
        every_crash_point(errands, 1, faults=("fire",))
    with pytest.raises(UsageError, match="holds nothing that could be put back"):
        every_crash_point(errands, 1, world=7)
    with pytest.raises(UsageError, match="ignore is a regular expression"):
        every_crash_point(errands, 1, ignore="(")
    with pytest.raises(UsageError, match="an Agent or a function with @program, not 'support'"):
        every_crash_point("support", 1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the script has 4 replies"):
        every_crash_point(
            Agent("a", model=ScriptedModel([*SCRIPT[:3], SCRIPT[0]]), tools=[*support.tools.values()]),
            "x",
            world=shop,
        )


def waits_forever() -> None:
    @program
    async def waits(run: Run) -> Any:
        return await run.wait_for("publish?")

    every_crash_point(waits)


def test_a_transactional_tool_is_refused() -> None:
    @tool(transactional=True)
    def insert(context: ToolContext) -> None:
        """Insert."""
        context.connection.execute("...")

    @program
    async def inserts(run: Run) -> Any:
        await run.tool(insert)

    with pytest.raises(UsageError, match="without transactional=True"):
        every_crash_point(inserts)


def test_a_running_loop_is_refused() -> None:
    async def test() -> None:
        every_crash_point(errands, 1)

    with pytest.raises(UsageError, match="call it from a plain test function"):
        asyncio.run(test())


def test_the_public_face_leads_here() -> None:
    assert face.every_crash_point is every_crash_point
    assert isinstance(every_crash_point(errands, 1, world=shop, signals=SIGNALS), CrashPoints)
