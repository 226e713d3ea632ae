"""Mutants of doubt: what a worker may still be at is not left alone, and what may have happened is denied."""

from __future__ import annotations

from typing import Any

from msgspec import structs
from refold.replay import opening, recording
from refold.replay.commands import Command, ModelCall, ToolCall
from refold.replay.events import ToolFailed
from refold.replay.holds import LATE_S
from sim.mutant import mutant
from sim.scenarios import ACTING, BRINK, ERRAND


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
