"""What a log says by itself, read once for all histories that lead to it: with `json`, as all that judges."""

from __future__ import annotations

import json
from collections import Counter
from functools import cached_property
from typing import Any

from refold.journal.envelope import Event
from refold.replay.fuzz_story import meaning

MEMORY = 60_000
"""How many logs and prefixes of logs a check remembers, so as not to look at one twice."""

LOGS = 5_000
"""How many whole logs are remembered with all that they say."""

TRANSACTIONAL = frozenset({"enter"})
"""Tools that act in the database of the log."""

STARTS = frozenset({"tool_started", "model_started"})

ENDS = frozenset({"run_finished", "run_failed", "run_cancelled"})

PERFORMED = frozenset({"tool_started", "step_recorded", "step_failed"})

_SETTLED = {
    "people": "doubt told by people",
    "reconciler": "doubt told by a reconciler",
    "worker": "never begun, said so",
}

_parsed: dict[bytes, dict[str, Any]] = {}
_logs: dict[bytes, Told] = {}


class Told:
    """
    A log without what the store adds to it, indexed for the checks; histories share it, and none changes it.

    Args:
        events: The log.
    """

    def __init__(self, events: list[Event]) -> None:
        self.found: dict[str, list[Any]] = {}
        """By promise, what is wrong with the log by itself."""
        self.bodies = [_parse(event) for event in events]
        self.ids = {event.id.int for event in events}
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

    @cached_property
    def kinds(self) -> set[str]:
        """Kinds of its events."""
        return {body["kind"] for body in self.bodies}

    @cached_property
    def performed(self) -> set[tuple[str, str]]:
        """Calls of tools and steps, with their arguments."""
        return {
            (body["call"], json.dumps(body["args"], sort_keys=True))
            for body in self.bodies
            if body["kind"] in PERFORMED
        }

    @cached_property
    def entered(self) -> list[Any]:
        """What transactional tools wrote, in order."""
        started = {
            body["call"]: body["args"]
            for body in self.bodies
            if body["kind"] == "tool_started" and body["tool"] in TRANSACTIONAL
        }
        return [
            started[body["call"]]
            for body in self.bodies
            if body["kind"] == "tool_returned" and body["call"] in started
        ]

    @cached_property
    def received(self) -> Counter[str]:
        """How often a signal of each name has come."""
        return Counter(body["name"] for body in self.bodies if body["kind"] == "signal_received")

    @cached_property
    def inputs(self) -> list[str]:
        """Keys of the inputs that became runs, in order."""
        return [body["key"] for body in self.bodies if body["kind"] == "run_started" and body.get("key")]

    @cached_property
    def timed_out(self) -> bool:
        """Whether a call was given up."""
        return any((body.get("error") or {}).get("type") == "TimeoutError" for body in self.bodies)

    @cached_property
    def meaning(self) -> dict[str, Any]:
        """What it says of each of its runs."""
        told: dict[str, Any] = {}
        for started in self.bodies:
            if started["kind"] == "run_started":
                run = started["run"]
                own = [b for b in self.bodies if run in (b.get("run"), b.get("call", "").partition("/")[0])]
                told[f"{run} input"] = started["input"]
                told.update((f"{run} {key}", value) for key, value in meaning(own).items())
        return told

    @cached_property
    def marks(self) -> Counter[str]:
        """Rare paths that it shows."""
        marks: Counter[str] = Counter()
        for body in self.bodies:
            if body["kind"] == "tool_resolved":
                late = body["by"] == "worker" and body["outcome"] != "did_not_happen"
                marks["doubt told by a late worker" if late else _SETTLED[body["by"]]] += 1
                if body["call"] in self.asked:
                    marks["doubt about a model"] += 1
            elif body["kind"] == "cancel_requested" and body.get("by") == "deadline":
                marks["deadline passed"] += 1
            elif body["kind"] == "run_started" and body["run"] != "r1":
                marks["run after run"] += 1
            elif body["kind"] == "tool_started" and body.get("attempt", 1) > 1:
                marks["doubt run again"] += 1
        return marks


def told_by(events: list[Event]) -> Told:
    """What a log says; an event's hash stands for all of it but its fence and the time when it was recorded."""
    key = b"".join([event.hash for event in events])
    told = _logs.get(key)
    if told is None:
        if len(_logs) >= LOGS:
            _logs.clear()
        told = _logs[key] = Told(events)
    return told


def forget() -> None:
    """Read and judge anew."""
    _logs.clear()


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


def _parse(event: Event) -> dict[str, Any]:
    parsed = _parsed.get(event.hash)
    if parsed is None:
        if len(_parsed) > MEMORY:
            _parsed.clear()
        parsed = _parsed[event.hash] = json.loads(event.body)
    return parsed
