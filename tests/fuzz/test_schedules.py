"""Faults at random: a strategy for Hypothesis, whose failing example says how to play it again."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

import pytest
from fuzz.shop import errands, find_order, notify, script, shop, support
from hypothesis import HealthCheck, Phase, find, given, settings
from refold import Agent, DidNotHappen, ScriptedModel, UsageError, tool
from refold.agent.scripted import call
from refold.journal.errors import MissingExtra
from refold.replay.fuzz import FAULTS, PromiseBroken, Schedule, fault_schedules, play_schedule
from refold.replay.fuzz_places import Scheduled
from refold.replay.fuzz_trial import Options, Trial

RANDOM = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@tool(idempotent=True)
def refund(order: int, amount: int) -> str:
    """Pay money back, each time."""
    shop.refunds.append((order, amount))
    return "ok"


naive = Agent("naive", model=script(), tools=[find_order, refund, notify])


@RANDOM
@given(fault_schedules())
def test_a_correct_agent_bears_faults_at_random(schedule: Schedule) -> None:
    play_schedule(support, "Refund order 17", schedule, model=script(), world=shop)


@RANDOM
@given(fault_schedules(faults_max=6))
def test_a_correct_program_bears_faults_at_random(schedule: Schedule) -> None:
    play_schedule(errands, 17, schedule, world=shop, signals={"publish?": 1})


def test_a_failing_example_is_small_and_prints_what_plays_it_again() -> None:
    @RANDOM
    @given(fault_schedules())
    def test(schedule: Schedule) -> None:
        play_schedule(naive, "Refund order 17", schedule, world=shop)

    with pytest.raises(PromiseBroken) as caught:
        test()

    said = "".join(caught.value.__notes__)
    printed = re.search(r"schedule=(Schedule\(.*\))", said)
    assert printed is not None, said
    assert len(caught.value.faults) == 1
    assert (
        f"play_schedule(naive, 'Refund order 17', {caught.value.faults!r}, world=...)" in caught.value.args[0]
    )
    with pytest.raises(PromiseBroken) as again:
        play_schedule(naive, "Refund order 17", caught.value.faults, world=shop)
    assert again.value.args == caught.value.args
    schedule = eval(printed[1], {"Schedule": Schedule})
    with pytest.raises(PromiseBroken) as whole:
        play_schedule(naive, "Refund order 17", schedule, world=shop)
    assert whole.value.args == caught.value.args


def blind() -> DidNotHappen:
    return DidNotHappen()


@pytest.mark.parametrize("flags", [{"idempotent": True}, {"in_doubt": blind}], ids=["flag", "reconciler"])
def test_what_only_one_place_of_the_run_shows_is_found_within_a_hundred_examples(flags: Any) -> None:
    @tool(**flags)
    def pay(amount: int) -> str:
        """Pay money, each time."""
        shop.refunds.append((0, amount))
        return "paid"

    agent = Agent("pays", model=ScriptedModel([call("pay", amount=1), "Done."]), tools=[pay])

    @settings(RANDOM, max_examples=100)
    @given(fault_schedules())
    def test(schedule: Schedule) -> None:
        play_schedule(agent, "Go", schedule, world=shop)

    with pytest.raises(PromiseBroken) as caught:
        test()
    assert [fault for _, fault in caught.value.faults] == ["crash"]


def test_a_fault_may_be_placed_by_counting_places_of_one_kind() -> None:
    with Trial(errands, 17, Options(world=shop, signals={"publish?": True})) as trial:
        course = partial(Scheduled, ((1, "crash", "outcome"), (0, "lost", "append.answer")))
        played = trial.play(course, frozenset(FAULTS))

    assert played.course.taken == [("w1.outcome 1.2.1", "crash"), ("w2.append.answer", "lost")]


def test_a_schedule_plays_the_same_history_each_time() -> None:
    def history(schedule: Schedule) -> Any:
        with Trial(errands, 17, Options(world=shop, signals={"publish?": 1})) as trial:
            played = trial.play(partial(Scheduled, schedule.faults), frozenset(FAULTS))
        return played.timeline, played.course.taken, played.kinds

    schedule = Schedule(((9, "crash"), (4, "rival"), (11, "lost"), (2, "pause")))

    assert history(schedule) == history(schedule)
    assert [fault for _, fault in history(schedule)[1]] == ["crash", "rival", "lost", "pause"]


def test_every_fault_is_drawn() -> None:
    for name in FAULTS:
        find(
            fault_schedules(),
            lambda drawn, name=name: name in [fault for _, fault, *_ in drawn.faults],
            settings=RANDOM,
        )


def test_a_strategy_of_what_is_no_fault_or_without_hypothesis_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match="there is no fault 'fire'"):
        fault_schedules(["fire"])
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(MissingExtra, match=r"pip install 'refold\[fuzz\]'"):
        fault_schedules()
