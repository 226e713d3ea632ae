"""What is known of the cause of a difference between two histories, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..journal import codec
from ..journal.errors import RefoldError
from .fuzz_story import Story
from .outcomes import DidNotHappen, Happened
from .simulation import Deed
from .text import one_line

SHOWN = 240
_ADDRESS = re.compile(rb"<[^\\\"]{1,150}? at 0x[0-9a-f]{6,}>")
NOTHING = object()
"""Stands for what is not there."""


def untrue(story: Story) -> Iterator[str]:
    """What reconcilers said that is not so."""
    deeds = {(deed.call, deed.attempt): deed for deed in story.effects}
    for verdict in story.verdicts:
        deed, answer = deeds.get((verdict.call, verdict.attempt)), verdict.answer
        said = (
            f"the reconciler of tool {verdict.tool} said of {verdict.call} attempt {verdict.attempt} that it"
        )
        if isinstance(answer, Happened) and deed is None:
            yield f"{said} had happened, and it had not: the process died before it began"
        elif isinstance(answer, Happened) and deed is not None and _encoded(answer) != _encoded(deed):
            yield f"{said} had returned {show(answer.value)}, and it had returned {show(deed.value)}"
        elif isinstance(answer, DidNotHappen) and deed is not None and deed.happened:
            yield f"{said} had not happened, and it had"


def _encoded(holder: Happened | Deed) -> bytes | None:
    try:
        return codec.encode(holder.value, what="a result")
    except RefoldError:
        return None


def addresses(story: Story) -> Iterator[str]:
    """Where an object that has no text of its own is shown by its address, which is another in each process."""
    asked = [(f"what {tell(deed)} was asked", _asked(deed)) for deed in story.ledger]
    for where, shown in (*asked, ("what the run came to", json.dumps(story.outcome).encode())):
        if found := _ADDRESS.search(shown):
            yield f"the address of an object in {where}: {found[0].decode()}"
            return


def _asked(deed: Deed) -> bytes:
    """Of a request what the program has written itself."""
    if deed.kind != "model":
        return deed.args
    return b" ".join(
        codec.encode(message, what="a message")
        for message in codec.decode(deed.args)
        if message.get("role") in ("system", "developer", "user")
    )


def answered_otherwise(quiet: Story, story: Story) -> Iterator[str]:
    """The first call that asked for the same and got something else."""
    asked_of_reconcilers = {verdict.call for verdict in story.verdicts}
    for what, got in story.calls.items():
        call, _, verb = what.partition(" ")
        before = quiet.calls.get(what)
        deeds = [deed for deed in story.ledger if deed.call == call]
        if verb != "got" or before is None or before == got or not deeds or call in asked_of_reconcilers:
            continue
        deed, asked = deeds[-1], f"{call} asked"
        if deed.kind == "tool":
            alike, answers = quiet.calls.get(asked) == story.calls.get(asked), (before, got)
        else:
            alike, answers = before[:-1] == got[:-1], (before[-1], got[-1])
        if alike:
            why = _why_otherwise(deed, answers, len(deeds))
            yield f"{tell(deed)} was asked for the same and answered otherwise: {why}"
            return


def _why_otherwise(deed: Deed, answers: tuple[Any, Any], times: int) -> str:
    if deed.kind == "model":
        return (
            "a scripted model must go by what it is asked, not by chance, the time or how often it was asked"
        )
    if times > 1:
        return (
            f"{show(answers[0])}, and when it was run again {show(answers[1])}. What may run again must then answer "
            "as it did the first time"
        )
    if deed.error is not None:
        return "it failed. What an earlier call has left in its process is gone after a crash"
    return "what a fake answers must not hold chance, the time or the attempt"


def other_order(quiet: Story, story: Story) -> Iterator[str]:
    """The first of the same calls that acted in another order."""
    before, after = list(quiet.acted.values()), list(story.acted.values())
    if {deed.call for deed in before} != {deed.call for deed in after}:
        return
    for first, now in zip(before, after, strict=True):
        if first.call != now.call:
            yield (
                f"the same calls acted in another order: {tell(now)} before {tell(first)}; what runs side by side may "
                "end in any order, so what it does must not depend on it"
            )
            return


def who_changed_it(quiet: Story, story: Story) -> Iterator[str]:
    """Who changed the world more often than it should have, in a history that was watched."""
    changes = story.changes
    assert changes is not None
    runs: dict[tuple[str, str], list[Deed]] = {}
    for place, deed in enumerate(story.ledger):
        if place in changes.by_calls:
            runs.setdefault((deed.kind, deed.call), []).append(deed)
    for (kind, call), deeds in runs.items():
        name = deeds[0].name.rpartition(".")[2]
        if len(deeds) < 2 or len(deeds) <= sum(
            (deed.kind, deed.call) == (kind, call) for deed in quiet.ledger
        ):
            continue
        if kind == "model":
            yield (
                f"the model was asked {len(deeds)} times for {call} and changed the world each time: a request is "
                "made again after a crash; what a model client merely counts is left out with look="
            )
        elif kind == "step":
            yield (
                f"step {name} ran {len(deeds)} times for {call} and changed the world each time: a step may run again "
                "after a crash; what must not be repeated is a tool"
            )
        elif deeds[0].repeatable:
            yield (
                f"tool {name} ran {len(deeds)} times for {call}, with one idempotency key, and changed the world each "
                "time: it is declared repeatable (read_only, idempotent or in_doubt='retry') and is not; what a fake "
                "merely counts is left out with look="
            )
        else:
            yield (
                f"tool {name} changed the world {len(deeds)} times for {call}: it failed after it had acted, "
                "or its reconciler said that it had not"
            )
    for number in changes.by_reconcilers:
        asked = story.verdicts[number]
        yield (
            f"the reconciler of tool {asked.tool} changed the world when it was asked about {asked.call}: it may be "
            "asked again and again, and only looks"
        )
    for place in changes.by_program:
        yield (
            f"the program itself changed the world {_after(story.ledger, place)}, outside of any tool or step: "
            "that code runs anew with every resume and replay, so the effect belongs into a tool"
        )


def wrote_otherwise(quiet: Story, story: Story) -> Iterator[str]:
    """Calls that acted once, and perhaps left something else."""
    if story.changes is None:
        return
    attempts = {deed.call: deed.attempt for deed in quiet.effects}
    for place in sorted(story.changes.by_calls):
        deed = story.ledger[place]
        if deed.attempt != attempts.get(deed.call, deed.attempt):
            yield (
                f"{tell(deed)} acted in attempt {deed.attempt}, and without the fault in attempt "
                f"{attempts[deed.call]}: what it does must not depend on that"
            )
            return


def _after(ledger: Sequence[Deed], place: int) -> str:
    if not place:
        return "as it began"
    deed = ledger[place - 1]
    return f"after {tell(deed)} (worker {deed.worker[1:]})"


def tell(deed: Deed) -> str:
    """Which call it was, in words."""
    name = "" if deed.kind == "model" else f" {deed.name.rpartition('.')[2]}"
    return f"{deed.kind}{name} {deed.call}"


def show(value: Any) -> str:
    """A plain value on one line."""
    if value is NOTHING:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return one_line(text, SHOWN)
