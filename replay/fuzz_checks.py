"""What must be the same with and without faults: outcome, folded history, calls, effects by key, and the fake world."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct, structs

from .fuzz_contents import picture
from .fuzz_order import renamed_calls, renamed_keys, renaming
from .fuzz_reasons import (
    NOTHING,
    answered_otherwise,
    other_order,
    show,
    untrue,
    who_changed_it,
    wrote_otherwise,
)
from .fuzz_story import Story
from .outcomes import NoAnswer
from .simulation import Deed

WORLD = "the world is the same"
ENDINGS = ("run_finished", "run_failed", "run_cancelled")
ACTS = "a program acts through its run"
TAKES = "a program goes by its run and its input alone, and by sets in the order of sorted(...)"
MESSAGE = "message"


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
        return [_no_replay(story)]
    if story.told:
        broken = [*_other_end(quiet, story, may_fail), *_repeated(story)]
    else:
        broken = list(_differences(quiet, _renamed(quiet, story), ignore))
    broken += _unanswered(story)
    if broken:
        broken[0] = structs.replace(broken[0], why=(*untrue(story), *broken[0].why))
    return broken


def _differences(quiet: Story, story: Story, ignore: str) -> Iterator[Broken]:
    why = tuple(answered_otherwise(quiet, story))
    for broken in (
        *_different("it comes to the same end", "", quiet.ending, story.ending, ignore),
        *_different("it comes to the same outcome", "", quiet.outcome, story.outcome, ignore),
        *_different("the conversation is the same", MESSAGE, quiet.conversation, story.conversation, ignore),
        *_different(
            "it asks for the same and is answered the same",
            "",
            _calls(quiet.calls, ignore),
            _calls(story.calls, ignore),
            ignore,
        ),
    ):
        yield structs.replace(broken, why=why)
        why = ()
    yield from _different(
        "the same calls act, each with its key", "", _named(quiet.acted), _named(story.acted), ignore
    )
    yield from _repeated(story)
    for broken in _different(WORLD, "", quiet.world, story.world, ignore):
        why = () if story.changes is None else tuple(who_changed_it(quiet, story))
        yield structs.replace(broken, why=why or (*other_order(quiet, story), *wrote_otherwise(quiet, story)))


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
            found=f"{story.ending}: {show(failed)}" if failed else story.ending,
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


def foreign_ways(taken: Sequence[str], done: Sequence[str]) -> list[Broken]:
    """
    No history has differed, and some other day one will.

    Args:
        taken: What a program went by that is not of its run.
        done: What it did by itself.
    """
    out = "If it is no part of the run, as the time in a log line, pass own_clock=True."
    broken = []
    if done:
        broken.append(
            Broken(
                promise=ACTS,
                expected="run.tool(...), or run.step(...) for what may be repeated",
                found="; ".join(done),
                why=("The program's own code runs anew with every resume and replay.", out),
            )
        )
    if taken:
        broken.append(
            Broken(
                promise=TAKES,
                expected="run.now(), run.random, run.uuid(), run.sleep(): the same in every replay",
                found="; ".join(taken),
                why=("No history of today has come out differently for it; one of another day will.", out),
            )
        )
    return broken


def _no_replay(story: Story) -> Broken:
    why = story.replay.splitlines()
    if not story.forgot:
        return Broken(promise="the log of the run replays", why=tuple(why))
    names = ", ".join(story.forgot)
    return Broken(
        promise="the log of the run replays in another process",
        why=(
            f"Replayed with {names}: so another process may have it.",
            "The program must not go by that; what it goes by comes from its input and from what its calls return.",
            *why,
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


def _different(promise: str, where: str, expected: Any, found: Any, ignore: str) -> Iterator[Broken]:
    place = _first(where, expected, found, re.compile(ignore) if ignore else None)
    if place is not None:
        yield Broken(promise=promise, where=place[0], expected=show(place[1]), found=show(place[2]))


def _first(
    where: str, expected: Any, found: Any, ignore: re.Pattern[str] | None
) -> tuple[str, Any, Any] | None:
    """The first place where two plain values differ."""
    if expected == found and type(expected) is type(found):
        return None
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            path = f"{where}.{key}" if where else str(key)
            left, right = expected.get(key, NOTHING), found.get(key, NOTHING)
            if (place := _first(path, left, right, ignore)) is not None:
                return place
        return None
    if (
        isinstance(expected, list)
        and isinstance(found, list)
        and (len(expected) == len(found) or where == MESSAGE)
    ):
        for number, (left, right) in enumerate(zip_longest(expected, found, fillvalue=NOTHING), 1):
            if (place := _first(f"{where} {number}".strip(), left, right, ignore)) is not None:
                return place
        return None
    texts = isinstance(expected, str) and isinstance(found, str)
    if ignore is not None and texts and ignore.sub("", expected) == ignore.sub("", found):
        return None
    return where, expected, found
