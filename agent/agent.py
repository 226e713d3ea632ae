"""`Agent`: a model, tools and instructions, run on a journal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, Unpack, cast

from msgspec import structs

from ..journal import codec
from ..journal.errors import UsageError
from ..journal.journal import Journal
from ..replay.divergence import OnDivergence
from ..replay.events import EventBody
from ..replay.live import Limits, World
from ..replay.ports import ModelClient
from ..replay.program import CONCURRENCY_DEFAULT, Program, digest_text
from ..replay.recording import Policy
from ..replay.requests import Messages
from ..replay.run import Run
from ..replay.runner import OnParked, Runner, RunOptions, RunResult
from .budget import Budget, read_budget
from .context import ToolContext
from .conversation import fold_prior, tell
from .loop import LoopSpec, run_loop
from .output import read_output
from .streaming import StreamEvent, Viewer, follow, in_thread
from .tools import Tool, toolbox

MAX_STEPS_DEFAULT = 50
OUTPUT_RETRIES_DEFAULT = 2

_SAID_ELSEWHERE = {
    "model": "model=",
    "messages": "instructions=",
    "stream": "agent.stream()",
    "fallbacks": "model=[...]",
    "context_window_fallback_dict": "model=[...]",
}
"""Parameters of a request that are the agent's, and how they are said."""

T = TypeVar("T")


class Agent:
    """
    An agent whose every step is in the journal: run it, kill it, resume it, replay it.

    Args:
        name: What the log knows it by; a thread is resumed only by the agent of that name.
        model: A litellm model name, or several to be asked in this order when one fails for good, or a `ModelClient`.
        tools: Functions decorated with `@tool`.
        instructions: System text, or a function of `Run` that makes it (today's date is `run.now()`).
        params: Further parameters of each request (temperature, max_tokens, api_base ...).
        history: May trim the conversation before each request; a pure function of it.
        max_steps: How often one run may ask the model.
        max_cost: Dollars that one run may spend on responses before it is ended (no request is cut short).
        max_tokens: Tokens in and out that one run may use before it is ended; of one response, say it in *params*.
        output: The type of the result (msgspec struct, dataclass, pydantic model or TypedDict); text by default.
        output_retries: How often a model is told that its answer does not fit that type, before the run fails.
        in_doubt: What becomes of a request in which the provider itself runs tools that may act (*params* has them
            among its `tools`) when a crash leaves it in doubt: "park" (a person decides) or "retry". Without such
            tools a request is just asked again.
        concurrency: How many tools of one run may be running at once.
        policy: How failures are retried.
        limits: Times kept to.

    Raises:
        UsageError: A part does not fit; before anything runs.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str | Sequence[str] | ModelClient,
        tools: Iterable[Tool[..., Any]] = (),
        instructions: str | Callable[[Run], str] | None = None,
        params: Mapping[str, Any] | None = None,
        history: Callable[[Messages], Messages] | None = None,
        max_steps: int = MAX_STEPS_DEFAULT,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        output: Any = None,
        output_retries: int = OUTPUT_RETRIES_DEFAULT,
        in_doubt: Literal["park", "retry"] = "park",
        concurrency: int = CONCURRENCY_DEFAULT,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ) -> None:
        _check(name, max_steps, output_retries, in_doubt)
        params = _checked_params(params)
        self.name = name
        self.tools = toolbox(tools)
        self._output = None if output is None else read_output(output)
        names = _model_names(model)
        self.own_client = None if names else cast("ModelClient", model)
        """The model client it was given; None where it calls models by name."""
        self._client = self.own_client
        self.policy = policy or Policy()
        self._limits = limits or Limits()
        names = names or (str(getattr(model, "name", type(model).__name__)),)
        self.model_name = ", ".join(names)
        asked: dict[str, Any] = {}
        if self.tools:
            theirs = params.get("tools") or ()
            asked["tools"] = [*theirs, *(each.schema() for each in self.tools.values())]
        if self._output is not None:
            asked["response_format"] = self._output.response_format()
        spec = LoopSpec(
            name=name,
            params=tuple({**params, "model": each, **asked} for each in names),
            tools=self.tools,
            instructions=instructions,
            history=history,
            max_steps=max_steps,
            budget=read_budget(max_cost, max_tokens),
            output=self._output,
            output_retries=output_retries,
            in_doubt=in_doubt,
        )

        self.program = Program(
            partial(run_loop, spec),
            name=name,
            definition=_definition(spec, self.model_name, params),
            concurrency=concurrency,
            fold_prior=fold_prior,
            tell=tell,
        )

    async def run(
        self,
        value: Any,
        *,
        journal: Journal,
        thread: str,
        key: str | None = None,
        deps: Any = None,
        supersede: bool = False,
        wait: bool = True,
        deadline_s: float | None = None,
        observe: Callable[[int, EventBody], None] | None = None,
        on_parked: OnParked | None = None,
    ) -> RunResult:
        """
        Answer an input on a thread, or go on with the run that this very call began before a crash.

        A script that is simply started again after a crash is safe: the same input (or the same key) resumes
        the unfinished run instead of starting another.

        Args:
            value: The input: a text, or chat-completions content parts.
            journal: Where the thread lives.
            thread: Thread id; earlier runs of the thread are the conversation so far.
            key: Names the run: the same key resumes or returns that run, finished or not.
            deps: Given to tools that ask for it; never recorded.
            supersede: Close an unfinished run with another input instead of refusing.
            wait: Wait in this process for approvals, signals and times; else return.
            deadline_s: Seconds a run that begins now may take in all, waiting, crashes and resumes included; it is
                cancelled then. A run that goes on keeps the deadline it began with.
            observe: Told of each event (seq, body) as it is made.
            on_parked: Told, with the result, when the run is parked: once for each parking, sync or async.

        Returns:
            A result whose status is finished, or parked, waiting, cancelled or released.

        Raises:
            UsageError: A part does not fit, before anything is written.
            RunUnfinished: The thread holds an unfinished run with another input or key.
            ThreadBusy: A live worker holds the thread.
            RunFailed: The run ended with an error.
            Divergence: This agent no longer fits the unfinished run's log.
        """
        runner = self.runner(journal, thread, deps=deps, observe=observe, on_parked=on_parked)
        result = await runner.run(value, key=key, supersede=supersede, wait=wait, deadline_s=deadline_s)
        return self._typed(result)

    async def resume(
        self,
        *,
        journal: Journal,
        thread: str,
        deps: Any = None,
        steal: bool = False,
        wait: bool = True,
        on_divergence: OnDivergence = "stop",
        release: bool = False,
        observe: Callable[[int, EventBody], None] | None = None,
        on_parked: OnParked | None = None,
    ) -> RunResult:
        """
        Go on with the thread's unfinished run; a run that has ended is only reported.

        Args:
            journal: Where the thread lives.
            thread: Thread id.
            deps: Given to tools that ask for it; never recorded.
            steal: Take the thread from a live holder too.
            wait: Wait in this process for approvals, signals and times; else return.
            on_divergence: "stop" at a changed request, or "accept" it (never another shape) and record that.
            release: Go on with a run that was parked because its workers died again and again.
            observe: Told of each event (seq, body) as it is made.
            on_parked: Told, with the result, when the run is parked: once for each parking, sync or async.

        Raises:
            ThreadNotFound: No such thread.
            ThreadBusy, RunFailed, Divergence: As for `run`.
        """
        runner = self.runner(journal, thread, deps=deps, observe=observe, on_parked=on_parked)
        result = await runner.resume(steal=steal, wait=wait, on_divergence=on_divergence, release=release)
        return self._typed(result)

    async def stream(
        self,
        value: Any,
        *,
        journal: Journal,
        thread: str,
        deps: Any = None,
        on_parked: OnParked | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[StreamEvent, None]:
        """
        `run`, told as it happens: deltas of the model's text and calls, tools, and at last `RunEnded` with the result.

        Deltas are provisional and told at once; every other event is told when it is durable.
        Of a run that this very call began before a crash, what the log holds is told first, with `replayed=True`.
        The run does not wait for its viewer. A viewer that goes away (break, close, cancel) is a caller that is
        cancelled: what has finished is recorded, and the same call goes on with the run.

        Args:
            value: The input: a text, or chat-completions content parts.
            journal: Where the thread lives.
            thread: Thread id.
            deps: Given to tools that ask for it; never recorded.
            on_parked: As for `run`.
            options: `key`, `supersede`, `wait` and `deadline_s`, as for `run`.

        Raises:
            UsageError, RunUnfinished, ThreadBusy, RunFailed, Divergence: As for `run`, after the events that led to it.
        """

        async def begin(viewer: Viewer) -> RunResult:
            runner = self.runner(journal, thread, deps=deps, viewer=viewer, on_parked=on_parked)
            return self._typed(await runner.run(value, **options))

        async with contextlib.aclosing(follow(journal, thread, begin)) as events:
            async for event in events:
                yield event

    def stream_sync(self, value: Any, **options: Any) -> Iterator[StreamEvent]:
        """`stream`, for code without an event loop; takes the same arguments."""
        return in_thread(lambda: self.stream(value, **options))

    def run_sync(self, value: Any, **options: Any) -> RunResult:
        """`run`, for code without an event loop; takes the same arguments."""
        return run_blocking(self.run(value, **options))

    def resume_sync(self, **options: Any) -> RunResult:
        """`resume`, for code without an event loop; takes the same arguments."""
        return run_blocking(self.resume(**options))

    def runner(
        self,
        journal: Journal,
        thread: str,
        *,
        deps: Any = None,
        observe: Callable[[int, EventBody], None] | None = None,
        viewer: Viewer | None = None,
        on_parked: OnParked | None = None,
        program: Program | None = None,
        models: ModelClient | None = None,
    ) -> Runner:
        """
        What runs this agent (or its *program*, guarded) on one thread; its `stop` leaves in good order.

        A *viewer* observes too.
        """
        world = World(
            models=models or self.client,
            make_context=ToolContext,
            deps=deps,
            limits=self._limits,
            show=viewer.show if viewer else None,
            settled=viewer.settled if viewer else None,
        )
        observe = observe if viewer is None else viewer.observe
        return Runner(
            program or self.program,
            journal,
            thread,
            world,
            policy=self.policy,
            observe=observe,
            on_parked=on_parked,
        )

    @property
    def client(self) -> ModelClient:
        """What calls the model. Raises `MissingExtra` if litellm is needed and not installed."""
        if self._client is None:
            from .litellm_client import LitellmClient

            self._client = LitellmClient()
        return self._client

    def _typed(self, result: RunResult) -> RunResult:
        """*result* with its output in the type asked for, as it is for every reader of the log."""
        if self._output is None or result.status != "finished":
            return result
        return structs.replace(result, output=self._output.restore(result.output))

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, {len(self.tools)} tools)"


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """
    Run a coroutine to its end in a new event loop.

    Raises:
        UsageError: A loop is running in this thread already; await the method without `_sync`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        coroutine.close()
        raise UsageError("an event loop is running in this thread: await the method without '_sync' instead")
    return asyncio.run(coroutine)


def _check(name: Any, max_steps: int, output_retries: int, in_doubt: str) -> None:
    if not name or not isinstance(name, str):
        raise UsageError(f"an agent's name is a text that is not empty, not {name!r}")
    if type(max_steps) is not int or max_steps < 1:
        raise UsageError(f"max_steps is a number of at least 1, not {max_steps!r}")
    if type(output_retries) is not int or output_retries < 0:
        raise UsageError(f"output_retries is a number of at least 0, not {output_retries!r}")
    if in_doubt not in ("park", "retry"):
        raise UsageError(f"in_doubt of an agent's requests is 'park' or 'retry', not {in_doubt!r}")


def _checked_params(params: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Parameters of each request, without those that are not theirs to say."""
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise UsageError(f"params is a dict of request parameters, not {params!r}")
    for name, instead in _SAID_ELSEWHERE.items():
        if name in params:
            raise UsageError(f"params cannot hold {name!r}: say it with {instead}")
    if not isinstance(params.get("tools", []), list | tuple):
        raise UsageError(f"tools among params are a list of the provider's tools, not {params['tools']!r}")
    return params


def _model_names(model: str | Sequence[str] | ModelClient) -> tuple[str, ...]:
    """The models asked by name, in their order; none where a client is given."""
    if not isinstance(model, Sequence) and callable(getattr(model, "respond", None)):
        return ()
    listed: Any = model
    names: tuple[Any, ...] = (model,) if isinstance(model, str) else ()
    if isinstance(listed, list | tuple):
        names = tuple(listed)
    if not names or not all(isinstance(each, str) and each for each in names) or len(set(names)) < len(names):
        raise UsageError(f"model is a name, a list of different names, or a client, not {model!r}")
    return names


def _definition(spec: LoopSpec, model: str, params: Mapping[str, Any]) -> dict[str, str]:
    """A digest for each part of an agent, so that a divergence can say which part changed."""
    instructions = spec.instructions
    text = instructions if isinstance(instructions, str) else getattr(instructions, "__qualname__", "")
    parts = {
        "model": digest_text(model),
        "instructions": digest_text(text),
        "params": digest_text(codec.encode(dict(params), what="params").decode()),
        "max_steps": str(spec.max_steps),
    }
    if spec.budget != Budget():
        parts["budget"] = spec.budget.recorded()
    if spec.output is not None:
        schema = codec.encode(spec.output.schema, what="schema of the output").decode()
        parts["output"] = digest_text(f"{spec.output_retries} {schema}")
    for name, each in spec.tools.items():
        parts[f"tool:{name}"] = digest_text(
            codec.encode(each.schema(), what=f"schema of tool {name!r}").decode()
        )
    return parts
