"""One agent or program with its script, its fakes and its people, ready to be put through histories."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, Self, cast, runtime_checkable

import msgspec
from msgspec import Raw, Struct

from ..journal import codec
from ..journal.errors import UsageError
from .fuzz_contents import FACTORIES, put_back, remember
from .fuzz_memory import ProcessMemory
from .fuzz_places import Course
from .fuzz_story import Story, read_story
from .fuzz_watch import Watch
from .fuzz_world import Changes, FakeWorld
from .inbox import Approval, Content, Signal
from .outcomes import ToolRaised
from .ports import ModelClient, ToolContext, ToolSpec
from .program import Program
from .recording import Policy
from .simulated_thread import Lane
from .simulation import Scenario, Simulation
from .status import OpenCall

THREAD = "trial"

Approve = bool | Callable[[str, dict[str, Any]], bool]


@runtime_checkable
class AgentLike(Protocol):
    """An agent, as far as a trial needs to know it."""

    name: str
    program: Program
    policy: Policy
    own_client: ModelClient | None
    """The model client it was given; None where it calls models by name."""


class Options(Struct, frozen=True, kw_only=True):
    """
    What a trial is given besides agent and input; `every_crash_point` says what each is.

    Only what differs from these defaults is shown with a failure.
    """

    model: ModelClient | Callable[[], ModelClient] | None = None
    world: Any = None
    look: Callable[[Any], Any] | None = None
    deps: Any = None
    signals: Mapping[str, Any] = {}
    approve: Approve = True
    ignore: str = ""
    may_fail: bool = False
    own_clock: bool = False
    policy: Policy | None = None


class Played(Struct, frozen=True, kw_only=True):
    """One history that has been played."""

    story: Story
    course: Course
    kinds: list[str]
    """Kinds of the events of its log."""
    timeline: list[tuple[int, str, str]]
    taken: list[str] = []
    """What the program went by that is not of its run, if that was watched."""
    done: list[str] = []
    """What it did by itself, if that was watched."""


class Trial:
    """
    Plays histories of one run.

    Args:
        agent: The agent or program.
        value: The run's input.
        options: Everything else.

    Raises:
        UsageError: A part does not fit, before anything runs.
        UnsupportedValue: The input cannot be recorded.
    """

    def __init__(self, agent: AgentLike | Program, value: Any, options: Options) -> None:
        if not isinstance(agent, Program | AgentLike):
            raise UsageError(f"what is tried is an Agent or a function with @program, not {agent!r}")
        _refuse_loop()
        codec.encode(value, what="the run's input")
        try:
            re.compile(options.ignore)
        except re.error as error:
            raise UsageError(f"ignore is a regular expression, {options.ignore!r} is not: {error}") from None
        self.name = agent.name
        self.value = value
        self.options = options
        self.program = agent if isinstance(agent, Program) else agent.program
        self._given = options.model
        self._policy = options.policy or Policy()
        if not isinstance(agent, Program):
            self._given = options.model or agent.own_client
            self._policy = options.policy or agent.policy
            if self._given is None:
                raise UsageError(
                    f"agent {agent.name!r} calls a model by name; pass model=ScriptedModel([...]), "
                    "which answers the same in every history and costs nothing"
                )
        self._world = FakeWorld(options.world, options.look)
        self._memory = ProcessMemory(self.program, orders=not options.own_clock)
        self._deps = [] if isinstance(options.deps, FACTORIES) else list(remember(options.deps, own=True))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sources = Watch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._put_deps_back()
        self._world.end()
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def play(
        self,
        course: Callable[[], Course],
        faults: frozenset[str],
        *,
        watch: bool = False,
        replays: int = 1,
        elsewhere: bool = False,
    ) -> Played:
        """
        One history, in a world put back before it.

        Args:
            course: Makes what chooses its faults.
            faults: Kinds of faults that may be chosen.
            watch: Whether to find out who changes the world, and what the program takes from outside of its run.
            replays: How often its log is replayed.
            elsewhere: Whether it is replayed once more as in another process.
        """
        deps = self._make_deps(self._world.renew())
        chosen = course()
        world = Simulation(chosen, trace=True)
        chosen.head = lambda: world.store.info(THREAD).head
        changes = Changes(self._world) if watch else None
        sources = self._sources = Watch()
        perform = self._perform
        if changes is not None:
            perform = partial(self._watched, changes, sources, lambda: lane)
        lane: Lane = Lane(world, self._scenario(deps, faults, perform), THREAD)
        with sources.on() if watch else contextlib.nullcontext():
            world.run()
        if changes is not None:
            changes.between(len(world.ledger), len(world.verdicts))
        after, events = self._world.picture(), lane.events
        lane.close()
        memory = self._memory if elsewhere else None
        story = read_story(
            self.program, THREAD, events, world, after, changes, replays=replays, memory=memory
        )
        return Played(
            story=story,
            course=chosen,
            kinds=[event.kind for event in events],
            timeline=world.timeline or [],
            taken=list(sources.taken),
            done=list(sources.done),
        )

    def _scenario(
        self, deps: Callable[[], Any], faults: frozenset[str], perform: Callable[[Callable[[], Any]], Any]
    ) -> Scenario:
        return Scenario(
            name=self.name,
            program=self.program,
            value=self.value,
            models=self._model(),
            reply=self._reply,
            patient=True,
            faults=faults,
            policy=self._policy,
            make_deps=lambda world: deps(),
            perform=perform,
            call_tool=_call,
        )

    def _make_deps(self, world: Any) -> Callable[[], Any]:
        """What tools are given in a history, by the processes of it."""
        given = self.options.deps
        if isinstance(given, FACTORIES):
            return cast("Callable[[], Any]", given)
        self._put_deps_back()
        return lambda: world if given is None else given

    def _put_deps_back(self) -> None:
        for held, contents in self._deps:
            put_back(held, contents)

    def _model(self) -> ModelClient | None:
        """One that no history before has asked anything."""
        given: Any = self._given
        if given is None:
            return None
        if isinstance(given, type) or not hasattr(given, "respond"):
            return cast("ModelClient", given())
        again = getattr(given, "again", None)
        return cast("ModelClient", again() if callable(again) else given)

    def _reply(self, call: OpenCall) -> Content | None:
        """What people and other programs send, in every history the same."""
        approve, signals = self.options.approve, self.options.signals
        if call.status == "waits for approval":
            args = msgspec.json.decode(call.args)
            allowed = (
                approve
                if isinstance(approve, bool)
                else self._sources.away(partial(approve, call.name, args))
            )
            return Approval(call.call, approved=bool(allowed), by="a person")
        if call.status == "waits for a signal" and call.name in signals:
            value = codec.encode(signals[call.name], what=f"signal {call.name!r}")
            return Signal(call.name, Raw(value), by="a person")
        return None

    def _watched(
        self, changes: Changes, sources: Watch, lane: Callable[[], Lane], act: Callable[[], Any]
    ) -> Any:
        for worker in lane().workers:
            sources.waiting(worker.coroutines())
        world = lane().world
        sources.away(partial(changes.between, len(world.ledger), len(world.verdicts)))
        try:
            return sources.away(partial(self._perform, act))
        finally:
            sources.away(partial(changes.performed, len(world.ledger), len(world.verdicts)))

    def _perform(self, act: Callable[[], Any]) -> Any:
        """Call it without a running loop, as sync functions are; what it makes to be awaited runs on a loop."""
        try:
            made = act()
            if not inspect.isawaitable(made):
                return made
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            return self._loop.run_until_complete(_awaited(made))
        except (SystemExit, StopIteration, asyncio.CancelledError) as error:
            raise ToolRaised(error) from error


async def _awaited(made: Any) -> Any:
    return await made


def _call(tool: ToolSpec, args: Mapping[str, Any], context: ToolContext) -> Any:
    """Sync tools need no thread of their own here: nothing else goes on."""
    return tool.call(args, context) if tool.stoppable else tool.call_now(args, context)


def _refuse_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "a trial runs an event loop of its own and one is running here: "
        "call it from a plain test function (def, not async def)"
    )
