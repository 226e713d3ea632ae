"""One history of one thread, read for the checks: with `json`, sharing no code with the engine."""

from __future__ import annotations

import json
from typing import Any

from refold.journal.envelope import Event
from refold.journal.store import AppendResult, Outcome
from refold.replay.simulated_thread import Lane
from refold.replay.simulation import Deed, Simulation

MEMORY = 60_000
"""How many logs and prefixes of logs a check remembers, so as not to look at one twice."""
ALTERING = frozenset({"refuses", "fails", "raises", "cancel", "input", "supersede"})
"""Faults after which a run rightly comes to another outcome."""

ROBBERY = frozenset({"rival", "jump", "supersede"})
"""Faults after which a worker cannot know by its own clock that it no longer holds the thread."""

HELD = frozenset({"burn"})
"""Tools whose calls a person must allow."""

TRANSACTIONAL = frozenset({"enter"})
"""Tools that act in the database of the log."""

STARTS = frozenset({"tool_started", "model_started"})

ENDS = frozenset({"run_finished", "run_failed", "run_cancelled"})

_parsed: dict[bytes, dict[str, Any]] = {}


class History:
    """One finished history of one thread, indexed for the checks."""

    def __init__(
        self,
        world: Simulation,
        lane: Lane,
        faults: list[tuple[str, str]],
        quiet: dict[str, Any] | None = None,
    ) -> None:
        self.quiet = quiet
        self.world = world
        self.lane = lane
        self.kinds = {fault for _, fault in faults}
        self.events = lane.events
        self.bodies = [_parse(event) for event in self.events]
        self.ledger = [deed for deed in world.ledger if deed.thread == lane.name]
        self.sent = [sent for sent in world.sent if sent.append.thread == lane.name]
        self.acknowledged = [sent for sent in self.sent if sent.answered is not None and taken(sent.answered)]
        self.granted = [grant for grant in world.granted if grant.thread == lane.name]
        # A second loop with one lease cannot come about by itself; it is played to see that the log bears it.
        # When the clock that decides on leases leaps, a live worker is robbed and no hold tells how long it acts.
        deposed = any(deed.kind == "tool" and not deed.current for deed in self.ledger)
        self.unpromised = "twin" in self.kinds or ("jump" in self.kinds and deposed)
        self.ends = {body["run"]: body["kind"] for body in self.bodies if body["kind"] in ENDS}
        """How each run that has ended did."""
        self.starts: dict[tuple[str, int], int] = {}
        self.asked: set[str] = set()
        """Calls of models that may act."""
        self.outcomes: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for seq, body in enumerate(self.bodies, 1):
            kind = body["kind"]
            if kind == "model_started":
                self.asked.add(body["call"])
            if kind in STARTS:
                self.starts.setdefault((body["call"], body.get("attempt", 1)), seq)
            elif is_outcome(body):
                self.outcomes.setdefault(body["call"], []).append((seq, body))


def _parse(event: Event) -> dict[str, Any]:
    parsed = _parsed.get(event.hash)
    if parsed is None:
        if len(_parsed) > MEMORY:
            _parsed.clear()
        parsed = _parsed[event.hash] = json.loads(event.body)
    return parsed


def is_outcome(body: dict[str, Any]) -> bool:
    """Whether an event answers its call for good."""
    match body["kind"]:
        case "model_responded" | "tool_returned" | "step_recorded" | "step_failed":
            return True
        case "timer_fired" | "signal_received":
            return True
        case "tool_failed" | "model_failed":
            return bool(body.get("final", True))
        case "tool_resolved":
            return body["outcome"] != "did_not_happen"
        case "approval_given":
            return not body["approved"]
        case _:
            return False


def taken(result: AppendResult) -> bool:
    """Whether an append is in the log by this answer."""
    return result.outcome is Outcome.APPENDED or result.outcome is Outcome.DUPLICATE


def tell(deed: Deed) -> str:
    return f"{deed.kind} {deed.name} ({deed.call}, attempt {deed.attempt})"


def acts(deed: Deed) -> bool:
    """Whether it is a call whose start must be on the record: of a tool, or of a model whose provider may act."""
    return deed.kind == "tool" or deed.name == "acting model"
