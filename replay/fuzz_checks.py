"""What must be the same with and without faults: outcome, folded history, calls, effects by key, and the fake world."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from ..journal import codec
from ..journal.envelope import Event
from ..journal.errors import RefoldError
from . import rebuild
from .divergence import Divergence
from .fuzz_order import renamed_calls, renamed_keys, renaming
from .fuzz_world import Changes, picture
from .outcomes import DidNotHappen, Happened, NoAnswer
from .program import Program
from .simulation import Deed, Simulation, Verdict
from .text import one_line

SHOWN = 240
WORLD = "the world is the same"
ENDINGS = ("run_finished", "run_failed", "run_cancelled")
_NOTHING = object()


class Broken(Struct, frozen=True, kw_only=True):
    """
    One thing that a fault changed.

    Args:
        promise: What should hold, in words.
        where: The place in what is compared.
        expected: What the uninterrupted run has there.
        found: What this one has.
        why: What is known of the cause, line by line.
    """

    promise: str
    where: str = ""
    expected: str = ""
    found: str = ""
    why: tuple[str, ...] = ()


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
) -> Story:
    """What a history's log, ledger and fakes say; a log that is replayed more often shows rarer chances."""
    bodies = [msgspec.json.decode(event.body) for event in events]
    told = meaning(bodies)
    refused = ""
    thread = rebuild.load(name, events)
    conversation = list(program.prior(thread.bodies).messages)
    run = thread.status.unfinished
    waits = [call.name for call in run.open.values() if call.status == "waits for a signal"] if run else []
    try:
        for _ in range(replays):
            rebuild.replay_thread(program, thread)
    except Divergence as error:
        refused = str(error)
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
    )


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


def compare(quiet: Story, story: Story, ignore: str, *, may_fail: bool) -> list[Broken]:
    """
    What of *story* is not as in the uninterrupted one, the gravest first.

    Args:
        quiet: The uninterrupted one.
        story: Another history of the same run.
        ignore: A regular expression of text that may differ.
        may_fail: Whether a run that was told of a doubt may fail where the uninterrupted one finishes.
    """
    if story.flaws:
        return [_flaw(story.flaws[0])]
    if story.replay:
        return [Broken(promise="the log of the run replays", why=tuple(story.replay.splitlines()))]
    if story.told:
        broken = [*_other_end(quiet, story, may_fail), *_repeated(story)]
    else:
        broken = list(_differences(quiet, _renamed(quiet, story), ignore))
    broken += _unanswered(story)
    if broken and (untrue := tuple(_untrue(story))):
        broken[0] = structs.replace(broken[0], why=(*untrue, *broken[0].why))
    return broken


def _differences(quiet: Story, story: Story, ignore: str) -> Iterator[Broken]:
    yield from _different("it comes to the same end", "", quiet.ending, story.ending, ignore)
    yield from _different("it comes to the same outcome", "", quiet.outcome, story.outcome, ignore)
    yield from _different(
        "the conversation is the same", "message", quiet.conversation, story.conversation, ignore
    )
    for broken in _different(
        "it asks for the same and is answered the same",
        "",
        _calls(quiet.calls, ignore),
        _calls(story.calls, ignore),
        ignore,
    ):
        yield structs.replace(broken, why=tuple(_who_answered(quiet, story, broken.where)))
    yield from _different(
        "the same calls act, each with its key", "", _named(quiet.acted), _named(story.acted), ignore
    )
    yield from _repeated(story)
    for broken in _different(WORLD, "", quiet.world, story.world, ignore):
        why = () if story.changes is None else tuple(_who_changed_it(quiet, story))
        yield structs.replace(broken, why=why or tuple(_other_order(quiet, story)))


def _renamed(quiet: Story, story: Story) -> Story:
    """The same story, if other branches did what those of the uninterrupted run did, as if the same ones had."""
    names = renaming(quiet.calls, story.calls)
    if not names:
        return story
    keys = {call: deed.key for call, deed in quiet.acted.items()}

    def renamed(deed: Deed) -> Deed:
        call = names.get(deed.call, deed.call)
        return structs.replace(deed, call=call, key=keys.get(call, deed.key))

    return structs.replace(
        story,
        calls=renamed_calls(story.calls, names),
        world=picture(renamed_keys(story.world, quiet.acted, story.acted, names)),
        ledger=[renamed(deed) for deed in story.ledger],
    )


def _other_end(quiet: Story, story: Story, may_fail: bool) -> Iterator[Broken]:
    """A run that was told of a doubt may go on otherwise; it comes to its end all the same."""
    if story.ending != quiet.ending and not (may_fail and story.ending in ENDINGS):
        failed = story.outcome.get("failed")
        yield Broken(
            promise="a run that is told of a doubt comes to its end",
            expected=quiet.ending,
            found=f"{story.ending}: {_show(failed)}" if failed else story.ending,
            why=(
                "The call was in doubt, and the run was told so, as its tool declares (in_doubt='tell_model').",
            ),
        )


def _unanswered(story: Story) -> Iterator[Broken]:
    for verdict in story.verdicts:
        if isinstance(verdict.answer, NoAnswer):
            yield Broken(
                promise="a reconciler answers",
                where=f"{verdict.tool} {verdict.call}",
                expected="Happened(value), DidNotHappen() or Unknown(why)",
                found=verdict.answer.why,
            )
            return


def _untrue(story: Story) -> Iterator[str]:
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
            yield f"{said} had returned {_show(answer.value)}, and it had returned {_show(deed.value)}"
        elif isinstance(answer, DidNotHappen) and deed is not None and deed.happened:
            yield f"{said} had not happened, and it had"


def _encoded(holder: Happened | Deed) -> bytes | None:
    try:
        return codec.encode(holder.value, what="a result")
    except RefoldError:
        return None


def _who_answered(quiet: Story, story: Story, where: str) -> Iterator[str]:
    call, _, verb = where.partition(" ")
    if any(verdict.call == call for verdict in story.verdicts):
        return
    deed = next((deed for deed in story.ledger if deed.call == call), None)
    asked = f"{call} asked"
    if verb.startswith("got") and deed is not None and quiet.calls.get(asked) == story.calls.get(asked):
        yield (
            f"{tell(deed)} was asked for the same and answered otherwise: what a fake answers must not hold "
            "chance, the time or the attempt"
        )


def _other_order(quiet: Story, story: Story) -> Iterator[str]:
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


def foreign_sources(noticed: Sequence[str]) -> Broken:
    """No history has differed, and some other day one will."""
    return Broken(
        promise="a program takes time and chance from its run, and order from sorted(...)",
        expected="run.now(), run.random, run.uuid(): the same in every replay",
        found="; ".join(noticed),
        why=(
            "No history of today has come out differently for it; one of another day will.",
            "If it is no part of the run, as the time in a log line, pass own_clock=True.",
        ),
    )


def _flaw(flaw: str) -> Broken:
    promise = (
        "a resumed run asks for what its log says"
        if "raised Divergence" in flaw
        else "the run comes to its end"
    )
    return Broken(promise=promise, why=tuple(flaw.splitlines()))


def _calls(told: dict[str, Any], ignore: str) -> dict[str, Any]:
    """A fingerprint covers what is ignored too."""
    if not ignore:
        return told
    models = {
        key for key, got in told.items() if isinstance(got, list) and len(got) == 2 and key.endswith("got")
    }
    return {key: got[1] if key in models else got for key, got in told.items()}


def _named(acted: Mapping[str, Deed]) -> dict[str, Any]:
    return {call: {"name": deed.name.rpartition(".")[2], "key": deed.key} for call, deed in acted.items()}


def _repeated(story: Story) -> Iterator[Broken]:
    """Of a call that may not be repeated, one attempt at most has an effect."""
    times: dict[str, int] = {}
    for deed in story.effects:
        if deed.happened and not deed.repeatable:
            times[deed.call] = times.get(deed.call, 0) + 1
            if times[deed.call] == 2:
                yield Broken(
                    promise="a tool that is not declared repeatable acts once for a call",
                    where=f"{deed.name} {deed.call}",
                    expected="1 time",
                    found="2 times",
                )


def _who_changed_it(quiet: Story, story: Story) -> Iterator[str]:
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
        if kind == "step":
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
    for place in changes.by_program:
        yield (
            f"the program itself changed the world {_after(story.ledger, place)}, outside of any tool or step: "
            "that code runs anew with every resume and replay, so the effect belongs into a tool"
        )


def _after(ledger: Sequence[Deed], place: int) -> str:
    if not place:
        return "as it began"
    deed = ledger[place - 1]
    return f"after {tell(deed)} (worker {deed.worker[1:]})"


def tell(deed: Deed) -> str:
    """Which call it was, in words."""
    name = "" if deed.kind == "model" else f" {deed.name.rpartition('.')[2]}"
    return f"{deed.kind}{name} {deed.call}"


def _different(promise: str, where: str, expected: Any, found: Any, ignore: str) -> Iterator[Broken]:
    place = _first(where, expected, found, re.compile(ignore) if ignore else None)
    if place is not None:
        yield Broken(promise=promise, where=place[0], expected=_show(place[1]), found=_show(place[2]))


def _first(
    where: str, expected: Any, found: Any, ignore: re.Pattern[str] | None
) -> tuple[str, Any, Any] | None:
    """The first place where two plain values differ."""
    if expected == found and type(expected) is type(found):
        return None
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            path = f"{where}.{key}" if where else str(key)
            left, right = expected.get(key, _NOTHING), found.get(key, _NOTHING)
            if (place := _first(path, left, right, ignore)) is not None:
                return place
        return None
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (left, right) in enumerate(zip(expected, found, strict=True), 1):
            if (place := _first(f"{where} {number}".strip(), left, right, ignore)) is not None:
                return place
        return None
    texts = isinstance(expected, str) and isinstance(found, str)
    if ignore is not None and texts and ignore.sub("", expected) == ignore.sub("", found):
        return None
    return where, expected, found


def _show(value: Any) -> str:
    if value is _NOTHING:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return one_line(text, SHOWN)
