"""What a history came to: outcome, conversation, calls, and why its log does not replay if it does not."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ..journal.envelope import Event
from . import rebuild
from .divergence import Divergence
from .fuzz_memory import ProcessMemory
from .fuzz_world import Changes
from .program import Program
from .simulation import Deed, Simulation, Verdict

ROOMS = (0, 40, 200, 1000, 5000, 20_000)
"""Each puts a set of two into another order as often as not."""


class Story(Struct, frozen=True, kw_only=True):
    """
    What a history came to.

    Args:
        ending: Kind of the last event: `run_finished` and so on.
        outcome: Output or error.
        conversation: The folded history.
        calls: What was asked and got, by call id.
        told: Whether the model was told of a doubt: it may then rightly go on otherwise.
        ledger: What was performed, in order.
        verdicts: What reconcilers said, in order.
        changes: Who changed the world, if that was watched.
        world: The fake world afterwards.
        waits: Names of the signals that it waits for at the end.
        flaws: What the engine refused or did wrong, in words.
        replay: Why its log does not replay; empty if it does.
        forgot: What it was replayed with where it does not, if not with what this process has.
    """

    ending: str
    outcome: Any
    conversation: Any
    calls: dict[str, Any]
    told: bool
    ledger: list[Deed]
    verdicts: list[Verdict]
    changes: Changes | None
    world: Any
    waits: list[str]
    flaws: list[str]
    replay: str
    forgot: list[str] = []

    @property
    def diverged(self) -> bool:
        """Whether program and log have parted."""
        return bool(self.replay) or any("raised Divergence" in flaw for flaw in self.flaws)

    @property
    def effects(self) -> list[Deed]:
        """Tools and steps that ran, in order."""
        return [deed for deed in self.ledger if deed.kind in ("tool", "step")]

    @property
    def acted(self) -> dict[str, Deed]:
        """The newest of them of each call."""
        return {deed.call: deed for deed in self.effects}


def read_story(
    program: Program,
    name: str,
    events: list[Event],
    world: Simulation,
    fakes: Any,
    changes: Changes | None,
    *,
    replays: int,
    memory: ProcessMemory | None = None,
) -> Story:
    """
    What a history's log, ledger and fakes say.

    Args:
        program: What ran.
        name: Its thread.
        events: The log.
        world: The history.
        fakes: What they hold.
        changes: Who changed that, if it was watched.
        replays: How often the log is replayed; more often shows rarer chances.
        memory: To replay it once more without it, as another process does.
    """
    bodies = [msgspec.json.decode(event.body) for event in events]
    told = meaning(bodies)
    forgot: list[str] = []
    thread = rebuild.load(name, events)
    conversation = list(program.prior(thread.bodies).messages)
    run = thread.status.unfinished
    waits = [call.name for call in run.open.values() if call.status == "waits for a signal"] if run else []
    refused = _refused(program, thread, replays)
    if memory is not None and not refused and (forgot := memory.otherwise()):
        for room in ROOMS:
            with memory.elsewhere(room):
                refused = refused or _refused(program, thread, 1)
    outcome = {key: told.pop(key) for key in ("output", "failed", "cancelled") if key in told}
    return Story(
        ending=bodies[-1]["kind"] if bodies else "nothing",
        outcome=outcome,
        conversation=conversation,
        calls=told,
        told=any(b["kind"] == "tool_failed" and b["error"]["type"] == "OutcomeUnknown" for b in bodies),
        ledger=world.ledger,
        verdicts=world.verdicts,
        changes=changes,
        world=fakes,
        waits=waits,
        flaws=world.flaws,
        replay=refused,
        forgot=forgot if refused else [],
    )


def _refused(program: Program, thread: rebuild.Thread, replays: int) -> str:
    try:
        for _ in range(replays):
            rebuild.replay_thread(program, thread)
    except Divergence as error:
        return str(error)
    return ""


def meaning(bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """What a log says, without attempts, tenures, times and the order of what ran side by side."""
    told: dict[str, Any] = {}
    for body in bodies:
        match body["kind"]:
            case "tool_started":
                told[f"{body['call']} asked"] = [body["tool"], body["args"]]
            case "tool_returned":
                told[f"{body['call']} got"] = body["result"]
            case "tool_resolved" if body["outcome"] == "returned":
                told[f"{body['call']} got"] = body.get("result")
            case "tool_resolved" if body["outcome"] == "failed":
                told[f"{body['call']} got"] = body["error"]
            case "tool_failed" if body.get("final", True):
                told[f"{body['call']} got"] = body["error"]
            case "model_responded":
                told[f"{body['call']} got"] = [body["fingerprint"], body["response"]]
            case "step_recorded":
                told[f"{body['call']} got"] = [body["name"], body["args"], body["result"]]
            case "step_failed":
                told[f"{body['call']} got"] = [body["name"], body["args"], body["error"]]
            case "signal_received":
                told[f"{body['call']} got"] = body["value"]
            case "timer_fired":
                told[f"{body['call']} got"] = "time"
            case "run_finished":
                told["output"] = body["output"]
            case "run_failed":
                told["failed"] = body["error"]
            case "run_cancelled":
                told["cancelled"] = True
    return told
