"""Mutants of what may still happen, of what failures are taken for, of what people say, and of what clocks do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec import structs
from refold.journal.store import Message
from refold.replay import matching, opening, recording, session
from refold.replay.commands import Call, Command, ModelCall, Phase, ToolCall
from refold.replay.events import ToolFailed
from refold.replay.holds import LATE_S, Holds
from refold.replay.inbox import Approval, Content, Resolution, decode_message, encode_message
from refold.replay.interpreter import Interpreter
from refold.replay.machine import Machine
from refold.replay.recording import Completion
from refold.replay.session import Session
from sim.mutant import mutant
from sim.scenarios import ACTING, ASKS, BRINK, DOUBTS, ERRAND, SHARED, STUBBORN, TOLD, WAITS


@mutant(opening, "_may_take_s", "unsafe_tools_act_once results_tell_the_truth", (BRINK, 1, "rival"))
def a_call_that_begins_late_is_not_left_alone_to_its_end(may_take: Any) -> Any:
    def hasty(command: Command, model_timeout_s: float) -> float | None:
        takes_s: float | None = may_take(command, model_timeout_s)
        return None if takes_s is None else takes_s - LATE_S

    return hasty


@mutant(opening, "_may_take_s", "attempts_do_not_overlap", (ACTING, 1, "rival"))
def a_model_that_may_act_is_not_left_alone(may_take: Any) -> Any:
    return lambda command, timeout_s: None if isinstance(command, ModelCall) else may_take(command, timeout_s)


@mutant(opening, "_may_take_s", "attempts_do_not_overlap", (BRINK, 1, "rival"))
def what_may_run_twice_is_run_again_beside_itself(may_take: Any) -> Any:
    def hasty(command: Command, timeout_s: float) -> float | None:
        repeatable = isinstance(command, ToolCall) and command.tool.repeatable
        takes_s: float | None = None if repeatable else may_take(command, timeout_s)
        return takes_s

    return hasty


@mutant(recording, "_tool_outcome", "results_tell_the_truth", (ERRAND, 1, "raises"))
def what_raised_counts_as_what_did_not_happen(tool_outcome: Any) -> Any:
    def rash(*args: Any) -> Any:
        body = tool_outcome(*args)
        denied = isinstance(body, ToolFailed) and body.effect == "unknown"
        return structs.replace(body, effect="none") if denied else body

    return rash


@mutant(recording, "_tool_outcome", "failures_are_followed_by_the_rules", (TOLD, 1, "hangs"))
def what_was_given_up_counts_as_failed(tool_outcome: Any) -> Any:
    def rash(call: Call, command: ToolCall, done: Completion, *more: Any) -> Any:
        return tool_outcome(call, command, structs.replace(done, timed_out=False), *more)

    return rash


@mutant(recording, "_tool_outcome", "failures_are_followed_by_the_rules", (STUBBORN, 0, ""))
def what_failed_is_tried_once_more_than_it_may_be(tool_outcome: Any) -> Any:
    def stubborn(call: Call, command: ToolCall, *more: Any) -> Any:
        body = tool_outcome(call, command, *more)
        again = command.tool.repeatable and call.failures == command.tool.retries
        if isinstance(body, ToolFailed) and again:
            return structs.replace(body, final=False, retry_at=body.at)
        return body

    return stubborn


@mutant(
    recording,
    "_tool_outcome",
    "failures_are_followed_by_the_rules unsafe_tools_act_once",
    (ERRAND, 1, "fails"),
)
def what_may_not_run_twice_is_tried_again(tool_outcome: Any) -> Any:
    def eager(call: Call, command: ToolCall, *more: Any) -> Any:
        body = tool_outcome(call, command, *more)
        if isinstance(body, ToolFailed) and call.failures < command.tool.retries:
            return structs.replace(body, final=False, retry_at=body.at)
        return body

    return eager


def _rewording(match: Any, reword: Callable[[Content, Interpreter], Content]) -> Any:
    """Matches every message as if it said what *reword* makes of it."""

    def reworded(message: Message, interpreter: Interpreter, holds: Holds, *, at: int) -> Any:
        said = decode_message(message)
        if said is not None and (other := reword(said, interpreter)) is not said:
            message = structs.replace(message, body=encode_message(other)[1])
        return match(message, interpreter, holds, at=at)

    return reworded


@mutant(matching, "match", "answers_go_where_they_are_meant every_run_ends", (ASKS, 1, "slow"))
def an_answer_goes_to_the_first_call_that_waits_for_one(match: Any) -> Any:
    def careless(said: Content, interpreter: Interpreter) -> Content:
        asking = [call.id for call in interpreter.pending.values() if call.phase is Phase.ASKING]
        return structs.replace(said, call=asking[0]) if isinstance(said, Approval) and asking else said

    return _rewording(match, careless)


@mutant(matching, "match", "answers_go_where_they_are_meant", (ASKS, 0, ""))
def a_denial_counts_as_a_yes(match: Any) -> Any:
    def deaf(said: Content, interpreter: Interpreter) -> Content:
        return structs.replace(said, approved=True) if isinstance(said, Approval) else said

    return _rewording(match, deaf)


@mutant(matching, "match", "unsafe_tools_act_once results_tell_the_truth", (BRINK, 2, "rival early"))
def that_a_call_did_not_happen_is_taken_while_it_may_yet(match: Any) -> Any:
    def hasty(said: Content, interpreter: Interpreter) -> Content:
        return structs.replace(said, forced=True) if isinstance(said, Resolution) else said

    return _rewording(match, hasty)


@mutant(Interpreter, "next_tool", "calls_are_paired", (DOUBTS, 0, ""))
def tools_are_started_whether_or_not_there_is_a_free_slot(next_tool: Any) -> Any:
    return lambda self, again=None: next(iter(self._unstarted.values()), again)


@mutant(Session, "_try", "calls_are_paired", (DOUBTS, {"w1.append": "interrupt", "w2.append#2": "ghost"}))
def what_is_tried_again_waits_for_no_free_slot(_: Any) -> Any:
    return lambda self, call: self._start(call)


@mutant(recording, "_tool_outcome", "failures_are_followed_by_the_rules", (STUBBORN, 0, ""))
def what_has_run_and_cannot_be_recorded_is_tried_again(tool_outcome: Any) -> Any:
    def eager(call: Call, command: ToolCall, *more: Any) -> Any:
        body = tool_outcome(call, command, *more)
        if isinstance(body, ToolFailed) and body.effect == "done" and call.failures < command.tool.retries:
            return structs.replace(body, final=False, retry_at=body.at)
        return body

    return eager


@mutant(Machine, "reply", "log_replays", (SHARED, 0, ""))
def the_time_a_program_sees_is_not_that_of_the_record(reply: Any) -> Any:
    ticks = count()
    return lambda self, call, value, error, at: reply(self, call, value, error, at + next(ticks))


@mutant(session, "beginning", "no_clock_of_a_worker_says_when", (WAITS, 1, "ahead"))
def a_timer_is_set_by_the_clock_of_the_worker(beginning: Any) -> Any:
    return lambda call, *, at, now_us: beginning(call, at=at, now_us=at)


@mutant(Session, "_strike", "no_clock_of_a_worker_says_when", (STUBBORN, 0, ""))
def what_failed_is_tried_again_at_the_next_alarm(strike: Any) -> Any:
    def hasty(self: Session, call: Call, now: int) -> None:
        strike(self, call, max(now, call.retry_at or 0) if call.phase is Phase.BACKOFF else now)

    return hasty
