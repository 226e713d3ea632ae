"""What if the agent had been another one: from the log while it matches, live from there on, in a fork of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from ..journal import codec
from ..journal.errors import UsageError
from ..journal.export import read_events
from ..journal.journal import Journal
from ..replay.divergence import Divergence
from ..replay.errors import ModelError, RunFailed, ToolError
from ..replay.fork import fork
from ..replay.ports import ModelClient, ModelReply
from ..replay.rebuild import replay
from ..replay.status import RunState, fold
from ..replay.text import one_line, visible
from .agent import Agent
from .tools import Tool

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
    What another agent made of a thread.

    Args:
        thread: The thread, which is as it was.
        fork: The thread with the other future; empty if nothing differs.
        seq: Where the two part; 0 if they do not.
        why: What was asked differently there.
        before: How the thread came out from the run on that differs.
        after: How the fork did.
        live_calls: Model calls that were paid for.
        refused: Calls of tools with effects that were not made.
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
        yield f"{visible(self.thread)}: parts at seq {self.seq}; the other future is {visible(self.fork)}"
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
    agent: Agent,
    journal: Journal,
    thread: str,
    *,
    calls_max: int = CALLS_MAX,
    cost_max_micro: int | None = None,
    allow: frozenset[str] = frozenset(),
    stand_ins: Mapping[str, Callable[..., Any]] | None = None,
    name: str | None = None,
    deps: Any = None,
) -> WhatIf:
    """
    Answer *agent* from the log of *thread* while it matches, fork there, and go on live within a budget.

    Later inputs of the thread are given to the fork too. Tools that are not read-only are refused: the model reads
    that they were not called.

    Args:
        agent: Another version of the agent that recorded the thread.
        journal: Where the thread lives; the fork is kept there.
        thread: Thread id.
        calls_max: Model calls at most; the run fails at the next.
        cost_max_micro: Stop asking once this much was spent, millionths of a dollar.
        allow: Tools with effects that may be called all the same.
        stand_ins: Functions that are called instead of tools, with the same parameters.
        name: Id of the fork.
        deps: Given to tools that ask for it.

    Raises:
        ThreadNotFound, Corrupt, UnknownEvent: The thread cannot be read.
        UsageError: It belongs to another agent, or a tool named is none of the agent's.
    """
    stand_ins = dict(stand_ins or {})
    _check_tools(agent, [*allow, *stand_ins])
    events = list(read_events(journal, thread, upto=journal.info(thread).head))
    try:
        replay(agent.program, thread, events)
    except Divergence as error:
        found = error
    else:
        return WhatIf(
            thread=thread, fork="", seq=0, why=[], before=None, after=None, live_calls=0, refused=[]
        )
    runs = fold(thread, events).runs
    first = next((place for place, run in enumerate(runs) if run.last_seq >= found.seq), len(runs))
    if first == len(runs) or found.seq <= runs[first].first_seq:
        raise UsageError(f"thread {thread!r} cannot be gone on with by agent {agent.name!r}: {found.asked}")
    made = fork(journal, thread, at=found.seq - 1, name=name)
    refused: list[str] = []
    budget = _Budget(agent.client, agent.model_name, calls_max, cost_max_micro)
    tools = [_guarded(each, allow, stand_ins, refused) for each in agent.tools.values()]
    sandbox = agent.having(model=budget, tools=tools)
    await _go_on(sandbox, journal, made.thread, runs[first + 1 :], deps)
    upto = journal.info(made.thread).head
    after = fold(made.thread, read_events(journal, made.thread, upto=upto)).runs
    differing = [next(each.lines()) for each in found.differences] or [f"asked {found.asked}"]
    return WhatIf(
        thread=thread,
        fork=made.thread,
        seq=found.seq,
        why=differing,
        before=_ending(runs[first:]),
        after=_ending(after[first:]),
        live_calls=budget.calls,
        refused=refused,
    )


def _check_tools(agent: Agent, names: list[str]) -> None:
    for name in names:
        if name not in agent.tools:
            known = ", ".join(agent.tools) or "none"
            raise UsageError(f"agent {agent.name!r} has no tool {name!r}; it has: {known}")


async def _go_on(agent: Agent, journal: Journal, thread: str, later: list[RunState], deps: Any) -> None:
    try:
        result = await agent.resume(journal=journal, thread=thread, deps=deps, wait=False)
        for run in later:
            if result.status != "finished":
                return
            value = codec.decode(run.input)
            result = await agent.run(value, journal=journal, thread=thread, deps=deps, wait=False)
    except RunFailed:
        # The fork's log says how it failed.
        return


class _Budget:
    """Asks the model until the budget is spent."""

    def __init__(self, client: ModelClient, name: str, calls_max: int, cost_max_micro: int | None) -> None:
        self.name = name
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
        reply = await self._client.respond(request)
        self._cost += reply.usage.cost_micro or 0
        return reply


def _guarded(
    tool: Tool[..., Any],
    allow: frozenset[str],
    stand_ins: Mapping[str, Callable[..., Any]],
    refused: list[str],
) -> Tool[..., Any]:
    """The tool as the model knows it, without effects unless they are allowed."""
    stand_in = stand_ins.get(tool.name)
    if stand_in is None and (tool.read_only or tool.name in allow):
        return tool
    contexts = frozenset(tool.signature.contexts)

    def instead(**arguments: Any) -> Any:
        given = {name: value for name, value in arguments.items() if name not in contexts}
        if stand_in is not None:
            return stand_in(**given)
        refused.append(f"{tool.name}({one_line(codec.encode(given, what='arguments').decode())})")
        raise ToolError(f"{tool.name} was not called: this is a trial, and the tool has effects")

    reconciled = tool.in_doubt == "reconcile"
    return structs.replace(
        tool,
        function=instead,
        transactional=False,
        reconciler=None,
        retries=0,
        in_doubt="tell_model" if reconciled else tool.in_doubt,
    )


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
