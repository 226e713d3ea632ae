"""What a failing history prints: one screen."""

from __future__ import annotations

import textwrap

from msgspec import structs

from .fuzz_checks import ACTS, TAKES, Broken
from .fuzz_reasons import tell
from .fuzz_trial import Options, Played, Trial
from .text import one_line, visible

TIMELINE_BEFORE, TIMELINE_AFTER = 6, 10
EFFECTS_MAX = 12
BROKEN_MAX = 3
WHY_MAX = 12
LINE = 120


def screen(trial: Trial, played: Played, broken: list[Broken]) -> str:
    """Where it was struck, what is broken, expected and found, what happened around it, and how to play it again."""
    struck = played.course.struck
    if struck:
        lines = [f"a fault changes what {trial.name!r} does"]
    elif played.story.diverged:
        lines = [f"{trial.name!r} is not deterministic: without any fault it does not fit its own log"]
    elif any(each.promise == ACTS for each in broken):
        lines = [f"{trial.name!r} acts by itself"]
    elif any(each.promise == TAKES for each in broken):
        lines = [
            f"{trial.name!r} is not deterministic: it goes by time, chance, order or settings from outside of its run"
        ]
    elif played.course.unused:
        lines = [
            f"{trial.name!r} does not go the same way each time: it never came to where a fault was to strike"
        ]
    else:
        lines = [
            f"two uninterrupted runs of {trial.name!r} differ",
            "it is not deterministic, or its fakes are not put back before each history (world=...)",
        ]
    calls = {deed.call.partition("/")[2]: tell(deed) for deed in played.story.ledger}
    for each in struck:
        lines += ["", f"  fault     {each.place}", *_wrapped(each.describe(calls))]
        lines.append(f"            between {_event(played, each.head)} and {_event(played, each.head + 1)}")
    for one in broken[:BROKEN_MAX]:
        lines += ["", *_broken(one)]
    if len(broken) > BROKEN_MAX:
        lines.append(f"            and {len(broken) - BROKEN_MAX} more")
    lines += ["", *_timeline(played), *_effects(played)]
    if struck:
        placed = [(each.place, each.fault) for each in struck]
        name = trial.name if trial.name.isidentifier() else "agent"
        given = "".join(f", {name}=..." for name in _given(trial.options))
        lines += ["", f"  again     play_schedule({name}, {trial.value!r}, {placed!r}{given})"]
    return "\n".join(visible(line) for line in lines)


def _broken(broken: Broken) -> list[str]:
    lines = [f"  broken    {broken.promise}{f': {broken.where}' if broken.where else ''}"]
    if broken.expected or broken.found:
        lines += [*_wrapped(broken.expected, "  expected  "), *_wrapped(broken.found, "  found     ")]
    for why in broken.why[:WHY_MAX]:
        lines += _wrapped(why)
    return lines


def _wrapped(text: str, before: str = " " * 12) -> list[str]:
    lines = textwrap.wrap(visible(text), LINE, initial_indent=before, subsequent_indent=" " * 14)
    return lines or [before]


def _event(played: Played, seq: int) -> str:
    if seq < 1:
        return "the beginning"
    kinds = played.kinds
    return f"seq {seq} ({kinds[seq - 1]})" if seq <= len(kinds) else "the end"


def _timeline(played: Played) -> list[str]:
    lines = [f"{at / 1000:>11.1f} ms  {who}: {one_line(what, LINE)}" for at, who, what in played.timeline]
    first = next((n for n, (_, _, what) in enumerate(played.timeline) if what.startswith("!!")), len(lines))
    low, high = max(0, first - TIMELINE_BEFORE), first + TIMELINE_AFTER
    cut = ["  timeline  ..."] if low else ["  timeline"]
    return [*cut, *lines[low:high], *(["            ..."] if high < len(lines) else [])]


def _effects(played: Played) -> list[str]:
    lines = [
        f"            {tell(deed)} attempt {deed.attempt} by {deed.worker}"
        f"{'' if deed.happened else ' (failed)'}"
        for deed in played.story.effects
    ]
    if len(lines) > EFFECTS_MAX:
        lines = [*lines[:EFFECTS_MAX], f"            and {len(lines) - EFFECTS_MAX} more"]
    return ["  effects", *lines] if lines else []


def _given(options: Options) -> list[str]:
    return [name for name in structs.asdict(options) if getattr(options, name) != getattr(Options(), name)]
