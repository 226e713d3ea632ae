"""Runs programs that are no agents: functions decorated with `@program`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..journal.journal import Journal
from ..replay.divergence import OnDivergence
from ..replay.events import EventBody
from ..replay.live import Limits, World
from ..replay.ports import ModelClient
from ..replay.program import Program
from ..replay.recording import Policy
from ..replay.runner import OnParked, Runner, RunResult
from .agent import run_blocking
from .context import ToolContext


class LazyClient:
    """Calls models through litellm, which is looked for only when a model is called."""

    def __init__(self) -> None:
        self._client: ModelClient | None = None

    async def respond(self, request: Any) -> Any:
        """Ask once. Raises `MissingExtra` if litellm is not installed."""
        if self._client is None:
            from .litellm_client import LitellmClient

            self._client = LitellmClient()
        return await self._client.respond(request)


def runner(
    program: Program,
    journal: Journal,
    thread: str,
    *,
    models: ModelClient | None = None,
    deps: Any = None,
    policy: Policy | None = None,
    limits: Limits | None = None,
    observe: Callable[[int, EventBody], None] | None = None,
    on_parked: OnParked | None = None,
) -> Runner:
    """
    What runs a program on one thread.

    Args:
        program: Made by `@program`.
        journal: Where the thread lives.
        thread: Thread id.
        models: Calls models; litellm by default.
        deps: Given to tools that ask for it; never recorded.
        policy: How failures are retried.
        limits: Times kept to.
        observe: Told of each event (seq, body) as it is made.
        on_parked: Told, with the result, when the run is parked: once for each parking, sync or async.
    """
    world = World(
        models=models or LazyClient(), make_context=ToolContext, deps=deps, limits=limits or Limits()
    )
    return Runner(program, journal, thread, world, policy=policy, observe=observe, on_parked=on_parked)


async def run(
    program: Program,
    value: Any = None,
    *,
    journal: Journal,
    thread: str,
    key: str | None = None,
    supersede: bool = False,
    wait: bool = True,
    deadline_s: float | None = None,
    **options: Any,
) -> RunResult:
    """
    Run a program on an input, or go on with the run that this very call began before a crash.

    Takes the options of `runner`, and of `Agent.run` the rest, with the same promises and errors.
    """
    made = runner(program, journal, thread, **options)
    return await made.run(value, key=key, supersede=supersede, wait=wait, deadline_s=deadline_s)


async def resume(
    program: Program,
    *,
    journal: Journal,
    thread: str,
    steal: bool = False,
    wait: bool = True,
    on_divergence: OnDivergence = "stop",
    release: bool = False,
    **options: Any,
) -> RunResult:
    """Go on with the thread's unfinished run of a program; as `Agent.resume`, with the options of `runner`."""
    made = runner(program, journal, thread, **options)
    return await made.resume(steal=steal, wait=wait, on_divergence=on_divergence, release=release)


def run_sync(program: Program, value: Any = None, **options: Any) -> RunResult:
    """`run`, for code without an event loop; takes the same arguments."""
    return run_blocking(run(program, value, **options))


def resume_sync(program: Program, **options: Any) -> RunResult:
    """`resume`, for code without an event loop; takes the same arguments."""
    return run_blocking(resume(program, **options))
