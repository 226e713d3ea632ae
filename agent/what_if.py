"""What if an agent or program had been another one: from the log while it matches, then live in a fork of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct

from ..journal import codec
from ..journal.envelope import Event
from ..journal.errors import UsageError
from ..journal.journal import Journal, check_journal
from ..journal.reading import read_events
from ..replay import answers
from ..replay import events as ev
from ..replay.divergence import Divergence
from ..replay.errors import ModelError, RunFailed
from ..replay.fork import fork
from ..replay.ports import ModelClient, ModelReply
from ..replay.program import Program
from ..replay.rebuild import replay
from ..replay.runner import Runner
from ..replay.status import RunState, fold
from ..replay.text import one_line, visible
from . import programs
from .agent import Agent
from .programs import LazyClient
from .sandbox import Guard, sandboxed

CALLS_MAX = 20


class Ending(Struct, frozen=True, kw_only=True):
    """How the runs that differ came out, added up."""

    status: str
    output: str
    model_calls: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    cost_micro: int


class WhatIf(Struct, frozen=True, kw_only=True):
    """
    What another agent or program made of a thread.

    Args:
        thread: The thread, which is as it was.
        fork: The thread with the other future; empty if nothing differs.
        seq: Where the two part; 0 if they do not.
        why: What was asked differently there.
        before: How the thread came out from the run on that differs.
        after: How the fork did.
        live_calls: Model calls that were paid for.
        refused: Calls of tools and steps with effects that were not made.
    """

    thread: str
    fork: str
    seq: int
    why: list[str]
    before: Ending | None
    after: Ending | None
    live_calls: int
    refused: list[str]

    def record(self) -> WhatIf:
        """For a JSON document."""
        return self

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        if self.before is None or self.after is None:
            yield f"{visible(self.thread)}: all events match; nothing would change, and nothing was called"
            return
        yield f"{visible(self.thread)}: another future from seq {self.seq} on, in the new thread {visible(self.fork)}"
        for each in self.why:
            yield f"  {visible(each)}"
        for name in Ending.__struct_fields__:
            old, new = getattr(self.before, name), getattr(self.after, name)
            change = (
                f"{one_line(str(old))}" if old == new else f"{one_line(str(old))}  ->  {one_line(str(new))}"
            )
            yield f"  {name.replace('_', ' ')}: {change}"
        for call in self.refused:
            yield f"  not called, since it has effects: {visible(call)}"
        yield f"  {self.live_calls} model calls were made"


async def what_if(
    runnable: Agent | Program,
    journal: Journal,
    thread: str,
    *,
    calls_max: int = CALLS_MAX,
    cost_max_micro: int | None = None,
    allow: Collection[str] = (),
    stand_ins: Mapping[str, Callable[..., Any]] | None = None,
    models: ModelClient | None = None,
    name: str | None = None,
    deps: Any = None,
) -> WhatIf:
    """
    Answer *runnable* from the log of *thread* while it matches, fork there, and go on live within a budget.

    Signals that the differing run got later, and later inputs of the thread, are given to the fork too. Tools and
    steps that are not read-only are refused: the model, or the program, learns that they were not called.

    Args:
        runnable: Another version of the agent or program that recorded the thread.
        journal: Where the thread lives; the fork is kept there.
        thread: Thread id.
        calls_max: Model calls at most; the run fails at the next.
        cost_max_micro: Stop asking once this much was spent, millionths of a dollar.
        allow: Tools and steps with effects that may be called all the same.
        stand_ins: Functions that are called instead of tools and steps, with the same parameters.
        models: Calls a program's models; litellm by default. An agent has its own.
        name: Id of the fork.
        deps: Given to tools that ask for it.

    Raises:
        ThreadNotFound, Corrupt, UnknownEvent: The thread cannot be read.
        UsageError: It belongs to another agent or program, or a tool named is none of the agent's.
    """
    check_journal(journal)
    program = runnable.program if isinstance(runnable, Agent) else runnable
    stand_ins = dict(stand_ins or {})
    if isinstance(runnable, Agent):
        _check_tools(runnable, [*allow, *stand_ins])
    events = list(read_events(journal, thread, upto=journal.info(thread).head))
    found = _difference(program, thread, events)
    if found is None:
        return WhatIf(
            thread=thread, fork="", seq=0, why=[], before=None, after=None, live_calls=0, refused=[]
        )
    runs = fold(thread, events).runs
    first = next((place for place, run in enumerate(runs) if run.last_seq >= found.seq), len(runs))
    if first == len(runs) or found.seq <= runs[first].first_seq:
        raise UsageError(f"thread {thread!r} cannot be gone on with by {program.name!r}: {found.asked}")
    guard = Guard(frozenset(allow), stand_ins)
    budget = _Budget(_client(runnable, models), calls_max, cost_max_micro)
    made = fork(journal, thread, at=found.seq - 1, name=name)
    _tell_again(journal, made.thread, events[found.seq - 1 : runs[first].last_seq])
    runner = _runner(runnable, sandboxed(program, guard), budget, journal, made.thread, deps)
    await _go_on(runner, runs[first + 1 :])
    upto = journal.info(made.thread).head
    after = fold(made.thread, read_events(journal, made.thread, upto=upto)).runs
    return WhatIf(
        thread=thread,
        fork=made.thread,
        seq=found.seq,
        why=[next(each.lines()) for each in found.differences] or [f"asked {found.asked}"],
        before=_ending(runs[first:]),
        after=_ending(after[first:]),
        live_calls=budget.calls,
        refused=guard.refused,
    )


def _check_tools(agent: Agent, names: list[str]) -> None:
    for name in names:
        if name not in agent.tools:
            known = ", ".join(agent.tools) or "none"
            raise UsageError(f"agent {agent.name!r} has no tool {name!r}; it has: {known}")


def _difference(program: Program, thread: str, events: list[Event]) -> Divergence | None:
    """Where the program first asks for something else than the log says."""
    try:
        replay(program, thread, events)
    except Divergence as error:
        return error
    return None


def _client(runnable: Agent | Program, models: ModelClient | None) -> ModelClient:
    return runnable.client if isinstance(runnable, Agent) else models or LazyClient()


def _runner(
    runnable: Agent | Program, sandbox: Program, models: ModelClient, journal: Journal, thread: str, deps: Any
) -> Runner:
    if isinstance(runnable, Agent):
        return runnable.runner(journal, thread, deps=deps, program=sandbox, models=models)
    return programs.runner(sandbox, journal, thread, models=models, deps=deps)


def _tell_again(journal: Journal, thread: str, later: list[Event]) -> None:
    """Signals that came in the origin after the fork come in the fork too."""
    for event in later:
        body = ev.decode_event(event)
        if isinstance(body, ev.SignalReceived):
            key = f"origin/{event.seq}"
            answers.signal(journal, thread, body.name, bytes(body.value), key=key, by=body.by)


async def _go_on(runner: Runner, later: list[RunState]) -> None:
    try:
        result = await runner.resume(wait=False)
        for run in later:
            if result.status != "finished":
                return
            result = await runner.run(codec.decode(run.input), wait=False)
    except RunFailed:
        # The fork's log says how it failed.
        return


class _Budget:
    """Asks the model until the budget is spent."""

    def __init__(self, client: ModelClient, calls_max: int, cost_max_micro: int | None) -> None:
        self.calls = 0
        self._client = client
        self._calls_max = calls_max
        self._cost_max = cost_max_micro
        self._cost = 0

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        """Ask once, or say that the budget is spent."""
        if self.calls >= self._calls_max or (self._cost_max is not None and self._cost >= self._cost_max):
            spent = f"{self.calls} calls, {self._cost / 1e6:.4f} dollars"
            raise ModelError(
                f"the budget of this what-if is spent ({spent})", kind="refused", error_type="BudgetSpent"
            )
        self.calls += 1
        try:
            reply = await self._client.respond(request)
        except ModelError as failed:
            self._cost += (failed.usage and failed.usage.cost_micro) or 0
            raise
        self._cost += reply.usage.cost_micro or 0
        return reply


def _ending(runs: list[RunState]) -> Ending:
    last = runs[-1]
    output = "" if last.output is None else bytes(last.output).decode()
    return Ending(
        status=last.status,
        output=output or last.reason,
        model_calls=sum(run.usage.responses for run in runs),
        tool_calls=sum(run.tools for run in runs),
        input_tokens=sum(run.usage.input_tokens for run in runs),
        output_tokens=sum(run.usage.output_tokens for run in runs),
        cost_micro=sum(run.usage.cost_micro for run in runs),
    )
