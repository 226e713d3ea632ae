"""
Crash tests for agents and programs of one's own: every place where a process can die, and faults at random.

    def test_a_crash_anywhere_changes_nothing():
        every_crash_point(agent, "Refund order 17", model=ScriptedModel([...]), world=bank)

Nothing is started: no process, no database, no network. The engine is the real one, on a virtual clock.
`docs/test-your-agents-crashes.md` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, structs

from ..journal.errors import MissingExtra, UsageError
from .collecting import seldom_collected
from .fuzz_checks import WORLD, Broken, compare, foreign_ways
from .fuzz_places import FAULTS, MOST, Course, Schedule, Scheduled, at_stake_of, known_faults
from .fuzz_reasons import addresses
from .fuzz_screen import screen
from .fuzz_trial import AgentLike, Options, Played, Trial
from .odometer import Placement
from .program import Program

__all__ = [
    "FAULTS",
    "CrashPoints",
    "PromiseBroken",
    "Schedule",
    "every_crash_point",
    "fault_schedules",
    "play_schedule",
]

REPLAYS = 16
"""How often the log of the uninterrupted run is replayed: a branch that chance decides is seen nearly for sure."""


STAKES_MAX = 6
"""How many places of one kind at most a drawn fault passes, where it counts only these."""


class PromiseBroken(AssertionError):
    """
    A run with faults differs from the one without; the message is one screen.

    Args:
        message: For people.
        faults: (place, fault) as they struck; `play_schedule` takes them and plays the history again.
        broken: The promises that do not hold, in words.
    """

    def __init__(self, message: str, *, faults: Sequence[Placement] = (), broken: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.faults = list(faults)
        self.broken = list(broken)


class CrashPoints(Struct, frozen=True, kw_only=True):
    """
    What was tried, without finding anything.

    Args:
        points: The places of the uninterrupted run at which something can go wrong.
        histories: How many histories were played, the uninterrupted ones included.
        kinds: Kinds of the events of the uninterrupted run's log.
    """

    points: list[str]
    histories: int
    kinds: list[str]

    def __str__(self) -> str:
        return f"{len(self.points)} places, {self.histories} histories, each as the uninterrupted one"


def every_crash_point(
    agent: AgentLike | Program,
    value: Any = None,
    *,
    model: Any = None,
    world: Any = None,
    look: Callable[[Any], Any] | None = None,
    deps: Any = None,
    signals: dict[str, Any] | None = None,
    approve: bool | Callable[[str, dict[str, Any]], bool] = True,
    faults: Collection[str] = ("crash",),
    faults_max: int = 1,
    ignore: str = "",
    may_fail: bool = False,
    own_clock: bool = False,
    policy: Any = None,
) -> CrashPoints:
    """
    Run it once uninterrupted, then once for each place where its process can die, and resume; all must be the same.

    Compared are the run's outcome, its conversation, what each call asked and got, which calls acted with which
    idempotency key, and what the fakes of the test hold. A call in doubt is treated as its tool declares: run again,
    looked up, told to the model (then only the rest is compared), or parked; a parked one is answered by a person
    who knows what happened, and that is both: it did, with its result, and it did not.

    Args:
        agent: An `Agent`, or a function with `@program`. Its tools really run, once and again: give them fakes.
        value: The run's input.
        model: A `ScriptedModel` or another deterministic client, or a function that makes one for each history;
            by default the client the agent was made with.
        world: What the fakes act on: an object, put back before each history, or a function that makes a fresh one.
            Tools find it in `context.deps`.
        look: What to compare of the world; all that it holds by default.
        deps: Given to tools instead of the world; a function that makes it is called by each process that comes, and
            an object is put back before each history.
        signals: Values by name, sent whenever the run waits for a signal of that name.
        approve: Whether calls that wait for approval are allowed, or a function of tool and arguments.
        faults: What happens at each place: keys of `FAULTS`.
        faults_max: How many of them may come in one history; 2 also kills each recovery.
        ignore: A regular expression of text that may differ, as times do.
        may_fail: Whether the uninterrupted run may end with an error.
        own_clock: Whether the program may read clocks, draw chance, go by the order of sets, write files and the like
            by itself, for what is no part of the run.
        policy: How failures are retried; an agent's own by default.

    Raises:
        PromiseBroken: Something differs; the message says where, what, why, and how to play it again.
        UsageError: The uninterrupted run does not get to its end, or an argument does not fit.
        ForeignAwait: The program awaits something that is not a command of its run.
    """
    __tracebackhide__ = True
    kinds = frozenset(known_faults(faults))
    if faults_max < 1:
        raise UsageError(f"faults_max is at least 1, not {faults_max}")
    options = Options(
        model=model,
        world=world,
        look=look,
        deps=deps,
        signals=signals or {},
        approve=approve,
        ignore=ignore,
        may_fail=may_fail,
        own_clock=own_clock,
        policy=policy,
    )
    with Trial(agent, value, options) as trial:
        return _tried(trial, kinds, faults_max)


def play_schedule(
    agent: AgentLike | Program, value: Any, schedule: Schedule | Sequence[Placement], **options: Any
) -> None:
    """
    Run it uninterrupted, then with these faults; both must be the same.

    Args:
        agent: As for `every_crash_point`.
        value: The run's input.
        schedule: From `fault_schedules`, or the (place, fault) pairs of a failure.
        options: Those of `every_crash_point` but `faults` and `faults_max`.

    Raises:
        PromiseBroken: Something differs.
        UsageError: As for `every_crash_point`.
    """
    __tracebackhide__ = True
    course: Callable[[], Course]
    if isinstance(schedule, Schedule):
        names, course = [fault for _, fault, *_ in schedule.faults], partial(Scheduled, schedule.faults)
    else:
        placed = [(place, fault) for place, fault in schedule]
        names, course = [fault for _, fault in placed], partial(Course, placed)
    kinds = frozenset(known_faults(names) if names else ())
    with Trial(agent, value, Options(**options)) as trial:
        _judged(trial, _uninterrupted(trial, kinds, watch=False), course, kinds)


def fault_schedules(
    faults: Collection[str] = tuple(FAULTS), *, faults_max: int = 4, gap_max: int = 60
) -> Any:
    """
    A Hypothesis strategy (`SearchStrategy[Schedule]`) for faults at random, to be played by `play_schedule`.

    Args:
        faults: Keys of `FAULTS`.
        faults_max: How many come in one history at most; one at least.
        gap_max: How many places lie between two of them at most.

    Raises:
        MissingExtra: Hypothesis is not installed.
        UsageError: There is no such fault.
    """
    names = known_faults(faults)
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise MissingExtra("fuzz", "a strategy for fault schedules") from None
    anywhere = st.tuples(st.integers(0, gap_max), st.sampled_from(names))

    def counting(stakes: Sequence[tuple[str, str]]) -> Any:
        passed = st.integers(0, min(gap_max, STAKES_MAX))
        return st.builds(lambda gap, what: (gap, *what), passed, st.sampled_from(stakes))

    # Of all histories few tell anything, and of these most are of a process that dies before or after it could record.
    at_stake = at_stake_of(names)
    most = counting([stake for stake in at_stake if stake in MOST] or at_stake)
    drawn = st.lists(st.one_of(most, most, counting(at_stake), anywhere), min_size=1, max_size=faults_max)
    return drawn.map(lambda faults: Schedule(tuple(faults)))


def _tried(trial: Trial, kinds: frozenset[str], faults_max: int) -> CrashPoints:
    """Every placement of few faults, those with fewer first."""
    __tracebackhide__ = True
    quiet = _uninterrupted(trial, kinds, watch=True)
    histories = 2
    level = _extended((), quiet)
    with seldom_collected():
        for depth in range(1, faults_max + 1):
            longer: list[tuple[Placement, ...]] = []
            for placed in level:
                played = _judged(trial, quiet, partial(Course, placed), kinds)
                histories += 1
                if depth < faults_max:
                    longer += _extended(placed, played)
            level = longer
    if (quiet.taken or quiet.done) and not trial.options.own_clock:
        _complain(trial, quiet, foreign_ways(quiet.taken, quiet.done))
    points = [place for place, options in quiet.course.places if len(options) > 1]
    return CrashPoints(points=points, histories=histories, kinds=quiet.kinds)


def _uninterrupted(trial: Trial, kinds: frozenset[str], *, watch: bool) -> Played:
    """The run without faults, which must get to its end, be the same each time, and replay."""
    __tracebackhide__ = True
    quiet = trial.play(partial(Course, ()), kinds, watch=watch, replays=REPLAYS, elsewhere=True)
    if quiet.story.diverged:
        first, *more = _compared(trial, quiet, quiet)
        clue = (f"It goes by {'; '.join(quiet.taken)}.",) if quiet.taken else ()
        _complain(trial, quiet, [structs.replace(first, why=(*clue, *first.why)), *more])
    _check_ending(trial, quiet)
    again = trial.play(partial(Course, ()), kinds, watch=watch)
    if broken := _compared(trial, quiet, again):
        if not watch:
            again = trial.play(partial(Course, ()), kinds, watch=True)
            broken = _compared(trial, quiet, again) or broken
        _complain(trial, again, broken)
    return structs.replace(
        quiet,
        taken=list(dict.fromkeys([*quiet.taken, *again.taken, *addresses(quiet.story)])),
        done=list(dict.fromkeys([*quiet.done, *again.done])),
    )


def _check_ending(trial: Trial, quiet: Played) -> None:
    __tracebackhide__ = True
    story = quiet.story
    if story.waits:
        waits = ", ".join(repr(name) for name in story.waits)
        raise UsageError(
            f"the run of {trial.name!r} waits for a signal that nobody sends: {waits}; pass signals={{name: value}}"
        )
    if any("NotImplementedError" in flaw for flaw in story.flaws):
        raise UsageError(
            f"{trial.name!r} uses a transactional tool, which acts in the journal's own PostgreSQL: "
            "a trial has none; give the agent a stand-in without transactional=True"
        )
    if story.flaws:
        raise UsageError(f"the uninterrupted run of {trial.name!r} does not get to its end: {story.flaws[0]}")
    if story.ending != "run_finished" and not trial.options.may_fail:
        raise UsageError(
            f"the uninterrupted run of {trial.name!r} ends with {story.ending}: {story.outcome}; "
            "mend the script or the fakes, or pass may_fail=True if that is meant"
        )


def _judged(
    trial: Trial,
    quiet: Played,
    course: Callable[[], Course],
    kinds: frozenset[str],
) -> Played:
    __tracebackhide__ = True
    played = trial.play(course, kinds)
    broken = _compared(trial, quiet, played)
    if not broken and played.course.unused:
        places = ", ".join(played.course.unused)
        broken = [
            Broken(
                promise="the run goes the same way each time",
                where=places,
                expected="the run comes by",
                found="it does not: its code was changed since, or is not deterministic",
            )
        ]
    if any(each.promise == WORLD for each in broken):
        # Again, watched: who did it is asked only when there is something to ask.
        watched = trial.play(course, kinds, watch=True)
        if again := _compared(trial, quiet, watched):
            played, broken = watched, again
    if broken:
        _complain(trial, played, broken)
    return played


def _compared(trial: Trial, quiet: Played, played: Played) -> list[Broken]:
    options = trial.options
    return compare(quiet.story, played.story, options.ignore, may_fail=options.may_fail)


def _complain(trial: Trial, played: Played, broken: list[Broken]) -> None:
    __tracebackhide__ = True
    raise PromiseBroken(
        screen(trial, played, broken),
        faults=[(struck.place, struck.fault) for struck in played.course.struck],
        broken=[each.promise for each in broken],
    )


def _extended(placed: tuple[Placement, ...], played: Played) -> list[tuple[Placement, ...]]:
    """One fault more than *placed*, at every place of *played* after those."""
    places = played.course.places
    names = [place for place, _ in places]
    first = names.index(placed[-1][0]) + 1 if placed else 0
    return [(*placed, (place, fault)) for place, options in places[first:] for fault in options[1:]]
