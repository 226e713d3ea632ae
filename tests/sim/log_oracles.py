"""What must hold of a log by itself: the order of its events, and the times that they keep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from refold.replay.simulation import LATENCY_US
from sim.history import HELD, REPEATABLE, RETRIES, History, of_the_log
from sim.told import ENDS, STARTS, is_outcome

DISTURBING = frozenset({"pause", "freeze", "late", "rival", "twin", "jump", "ahead", "behind", "interrupt"})
"""Faults after which the times in a log are not those of the database's clock, or of nobody's."""

OF_TOOLS = frozenset({"refuses", "fails", "raises", "hangs", "hangs early"})
"""Faults that hold up no worker."""

SLACK_US = 50_000
"""What appends take beside whatever is waited for."""

FAR_US = 600_000_000
"""Farther off than anything that a scenario waits for, or that holds an append up."""

ASKS = STARTS | {"timer_set", "wait_started", "approval_requested"}
"""Events by which a call begins."""


def calls_are_paired(history: History) -> Iterator[str]:
    """11. By the log alone: attempts count up, one final outcome for each call, nothing after the end."""
    for found in _out_of_turn(history):
        if isinstance(found, str):
            yield found
        elif not _may_repeat(history, found[1]):
            yield f"seq {found[0]} starts {found[1]} again while it is in doubt"


@of_the_log
def _out_of_turn(history: History) -> Iterator[str | tuple[int, str]]:
    """What is wrong in any case, and what starts again while it is in doubt, which only some calls may."""
    attempts: dict[str, int] = {}
    running: set[str] = set()
    doubted: set[str] = set()
    answered: set[str] = set()
    ended = False
    for seq, body in enumerate(history.bodies, 1):
        kind, call = body["kind"], body.get("call", "")
        if ended and kind not in ("run_started", "tool_resolved"):
            yield f"seq {seq} ({kind}) comes after the end of the run"
        if kind == "run_started":
            ended = False
        if kind == "run_resumed":
            doubted |= running
            running.clear()
        elif kind in STARTS:
            if body.get("attempt", 1) != attempts.get(call, 0) + 1 or call in running or call in answered:
                yield f"seq {seq} starts {call} out of turn"
            if call in doubted:
                yield seq, call
            attempts[call] = body.get("attempt", 1)
            running.add(call)
            tools = sum(each not in history.told.asked for each in running)
            if tools > (slots := history.lane.scenario.program.concurrency):
                yield f"seq {seq} starts {call}, the {tools}th tool at once of {slots}"
        elif kind == "tool_in_doubt" or (
            kind in ("tool_failed", "model_failed") and not body.get("final", True)
        ):
            running.discard(call)
            if kind == "tool_in_doubt":
                doubted.add(call)
        elif kind == "tool_resolved" and body["outcome"] == "did_not_happen":
            doubted.discard(call)
            running.discard(call)
        elif is_outcome(body):
            if call in answered:
                yield f"seq {seq} ({kind}) answers {call} once more"
            answered.add(call)
            running.discard(call)
            doubted.discard(call)
        elif kind in ENDS:
            ended = True
            open_calls = sorted(c for c in running | doubted if c.startswith(f"{body['run']}/"))
            if kind == "run_finished" and open_calls:
                yield f"run {body['run']} finished with {open_calls} open"
            if kind == "run_cancelled" and not doubted.issuperset(open_calls):
                yield f"run {body['run']} was cancelled, and nothing says what became of {open_calls}"


def _may_repeat(history: History, call: str) -> bool:
    return any(deed.call == call and deed.repeatable for deed in history.ledger) or not any(
        deed.call == call for deed in history.ledger
    )


@of_the_log
def doubted_calls_wait_for_a_yes(history: History) -> Iterator[str]:
    """What may have happened is not begun anew without a yes; nobody is asked about what may run twice."""
    asked: dict[str, tuple[str, str]] = {}
    doubts: dict[str, tuple[str, str]] = {}
    running: set[str] = set()
    allowed: set[str] = set()
    for seq, body in enumerate(history.bodies, 1):
        kind, call = body["kind"], body.get("call", "")
        if kind in ("tool_started", "approval_requested"):
            tool = body["tool"]
            wanted = asked[call] = (tool, json.dumps(body["args"]))
            doubted = tool not in REPEATABLE and wanted in doubts.values()
            if kind == "tool_started":
                running.add(call)
                if doubted and body.get("attempt", 1) == 1 and call not in allowed:
                    yield f"seq {seq} starts {call} ({tool}), one like it may have happened, and nobody allowed it"
            elif tool not in HELD and not doubted:
                yield f"seq {seq} asks a person about {call} ({tool}), of which nothing is in doubt"
        elif kind == "approval_given" and body["approved"]:
            allowed.add(call)
            doubts = {each: what for each, what in doubts.items() if what != asked[call]}
        elif kind == "run_cancelled":
            doubts.update((each, asked[each]) for each in running)
            running.clear()
        elif kind in ("tool_returned", "tool_failed", "tool_resolved") and call in asked:
            running.discard(call)
            doubts.pop(call, None)
            if body.get("effect") == "unknown" and body.get("final", True):
                doubts[call] = asked[call]


def failures_are_followed_by_the_rules(history: History) -> Iterator[str]:
    """What was given up is in doubt unless it may run twice; nothing is tried again more often than it may be."""
    tools: dict[str, str] = {}
    failed: dict[str, int] = {}
    for seq, body in enumerate(history.bodies, 1):
        kind, call = body["kind"], body.get("call", "")
        if kind == "tool_started":
            tools[call] = body["tool"]
        elif kind in ("tool_failed", "model_failed") and not body.get("final", True):
            failed[call] = failed.get(call, 0) + 1
            tool = tools.get(call)
            attempts = history.lane.scenario.policy.model_attempts
            allowed = attempts - 1 if tool is None else RETRIES.get(tool, 0)
            if body.get("effect") == "done":
                yield f"seq {seq} is to try {call} again, which has had its effect"
            if failed[call] > allowed:
                yield f"seq {seq} is to try {call} again, for the {failed[call]}th time of {allowed}"
        elif (
            kind == "tool_failed"
            and body["error"]["type"] == "TimeoutError"
            and tools[call] not in REPEATABLE
        ):
            yield f"seq {seq} gives {call} ({tools[call]}) up for failed: whether it acted nobody knows"


def rests_only_when_all_waits(history: History) -> Iterable[str]:
    """A run parks or waits only when nothing of it is under way: what one call is in doubt about stops no other."""
    return () if history.unpromised else _rests_too_early(history)


@of_the_log
def _rests_too_early(history: History) -> Iterator[str]:
    running: set[str] = set()
    for seq, body in enumerate(history.bodies, 1):
        kind = body["kind"]
        if kind in STARTS:
            running.add(body["call"])
        elif kind in ("run_started", "run_resumed"):
            running.clear()
        elif kind == "run_parked" or (kind == "run_released" and body["reason"] == "waiting"):
            if running:
                yield f"seq {seq} ({kind}) while {sorted(running)} were under way"
        elif "call" in body:
            running.discard(body["call"])


@of_the_log
def resuming_without_news_writes_nothing(history: History) -> Iterator[str]:
    """A run that rests is not written to by those who only look at it."""
    kinds = [b["kind"] for b in history.bodies]
    for seq in range(2, len(kinds) - 1):
        first, second, third = kinds[seq - 2 : seq + 1]
        rests = ("run_released", "run_parked")
        if first in rests and second == "run_resumed" and third in rests:
            if (
                history.bodies[seq].get("reason") == "interrupted"
                or history.bodies[seq - 2].get("reason") == "interrupted"
            ):
                continue
            if (first, third) == rests:
                # A call that was left alone for its time is now for people to decide about: time is news.
                continue
            yield f"seq {seq} and {seq + 1} ({second}, {third}) record nothing but a look"


def time_is_kept(history: History) -> Iterator[str]:
    """A timer strikes when it is due as long as a worker is there, whatever else the run does meanwhile."""
    if history.kinds & (DISTURBING | {"cancel"}) or "timer_fired" not in history.told.kinds:
        return
    due: dict[str, tuple[int, int]] = {}
    for event, body in zip(history.events, history.bodies, strict=True):
        if body["kind"] in ("timer_set", "wait_started") and body.get("due") is not None:
            due[body["call"]] = (body["due"], event.fence)
        elif body["kind"] == "timer_fired":
            at, fence = due[body["call"]]
            if body["at"] < at:
                yield f"{body['call']} struck {at - body['at']} us early"
            # A worker's clock is behind the database's by what the answer to its acquire took.
            if fence == event.fence and body["at"] > at + LATENCY_US["store"] + 1_000:
                yield f"{body['call']} struck {body['at'] - at} us late"


def no_clock_of_a_worker_says_when(history: History) -> Iterator[str]:
    """18. What a clock is to move is due by the database's, and nothing that failed is tried again before its time."""
    again: dict[str, int] = {}
    for seq, (event, body) in enumerate(zip(history.events, history.bodies, strict=True), 1):
        kind, call = body["kind"], body.get("call", "")
        due = body.get("retry_at") if kind in ("tool_failed", "model_failed") else body.get("due")
        if kind != "run_started" and due is not None and abs(ahead_us := due - event.recorded_at) > FAR_US:
            yield f"seq {seq} ({kind}) is due {ahead_us} us from the time when it was recorded"
        if event.recorded_at < again.pop(call, 0):
            yield f"seq {seq} ({kind}) comes before {call} was to be tried again"
        if kind in ("tool_failed", "model_failed") and due is not None:
            again[call] = due


def deadlines_are_kept(history: History) -> Iterator[str]:
    """
    A run is cancelled for its deadline only when that has passed, and from then on nothing of it begins.

    Whatever is under way keeps it no longer than the grace.
    """
    due: dict[str, int] = {}
    for seq, (event, body) in enumerate(zip(history.events, history.bodies, strict=True), 1):
        kind = body["kind"]
        if kind == "run_started" and body.get("due") is not None:
            due[body["run"]] = body["due"]
        elif kind == "cancel_requested" and body.get("by") == "deadline":
            if event.recorded_at < due[body["run"]]:
                early_us = due[body["run"]] - event.recorded_at
                yield f"seq {seq} cancels {body['run']} {early_us} us before its deadline"
            grace_us = round(history.lane.scenario.policy.cancel_grace_s * 1e6)
            late_us = event.recorded_at - due[body["run"]] - grace_us
            if late_us > SLACK_US and not history.kinds - OF_TOOLS:
                yield f"seq {seq} cancels {body['run']} {late_us} us after its deadline and the grace"
        elif kind in ASKS and not history.kinds & DISTURBING:
            at = due.get(body["call"].partition("/")[0])
            if at is not None and body["at"] > at + LATENCY_US["store"] + 1_000:
                yield f"seq {seq} ({kind}) begins {body['at'] - at} us after the deadline"
