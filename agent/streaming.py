"""
A run as it happens: typed events, live or from the log.

Only what is provisional is told at once: pieces of a response that is still coming in. Every other event is told
when it is durable, so that no crash can take back what a viewer has seen.
What the log already holds is told first, with `replayed=True`: its responses as one delta each.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

from msgspec import Struct

from ..journal import codec
from ..journal.journal import Journal
from ..replay import events as ev
from ..replay.errors import Effect
from ..replay.ports import Delta, Usage
from ..replay.response import Response
from ..replay.runner import RunResult, read_all


class StreamEvent(Struct, frozen=True, kw_only=True):
    """What every event of a stream says: whether it came from the log, and the call that it is about."""

    replayed: bool = False
    call: str = ""


class Provisional(StreamEvent, frozen=True, kw_only=True):
    """A piece of a response: it holds once the `ModelResponded` of its call is told, a `ModelFailed` makes it void."""


class TextDelta(Provisional, frozen=True, kw_only=True):
    """A piece of the model's text."""

    text: str


class ThoughtDelta(Provisional, frozen=True, kw_only=True):
    """A piece of the model's reasoning, where the provider shows it."""

    text: str


class CallDelta(Provisional, frozen=True, kw_only=True):
    """A piece of a tool call that the model asks for; `call` is the model call, `position` counts from 0."""

    position: int
    name: str = ""
    arguments: str = ""


class ModelResponded(StreamEvent, frozen=True, kw_only=True):
    """The response is recorded, and its deltas hold; it will never be asked for again."""

    text: str
    finish_reason: str | None = None
    usage: Usage = Usage()


class ModelFailed(StreamEvent, frozen=True, kw_only=True):
    """An attempt at the model call failed, and its deltas are void; unless `final`, another attempt follows."""

    error: str
    message: str
    final: bool
    usage: Usage | None = None
    """Of an answer that came and could not be used, as far as it is known."""


class ToolStarted(StreamEvent, frozen=True, kw_only=True):
    """A tool call begins."""

    tool: str
    arguments: Any
    attempt: int = 1


class ToolReturned(StreamEvent, frozen=True, kw_only=True):
    """The tool's result, as it is recorded."""

    tool: str
    result: Any


class ToolFailed(StreamEvent, frozen=True, kw_only=True):
    """The call failed; unless `final`, another attempt follows."""

    tool: str
    message: str
    effect: Effect
    final: bool = True


class ToolInDoubt(StreamEvent, frozen=True, kw_only=True):
    """The call may or may not have happened; of a model call, whose provider acts within it, `tool` is empty."""

    tool: str
    why: str


class ApprovalRequested(StreamEvent, frozen=True, kw_only=True):
    """The call waits for a person."""

    tool: str
    arguments: Any


class RunEnded(StreamEvent, frozen=True, kw_only=True):
    """The last event: what `run` would have returned."""

    result: RunResult


class Viewer(Protocol):
    """Whom a run tells what happens."""

    def observe(self, seq: int, body: ev.EventBody) -> None:
        """An event was made."""

    def settled(self, seq: int) -> None:
        """The events up to *seq* are durable."""

    def show(self, call: str, delta: Delta) -> None:
        """A piece of a response came in."""


Begin = Callable[[Viewer], Coroutine[Any, Any, RunResult]]
"""Starts the run, given whom to tell."""


class _Backlog(Struct, frozen=True):
    """The events of a run that are in the log already."""

    run: str
    upto: int | None


_Item = ev.EventBody | tuple[str, Delta] | _Backlog


class _Told:
    """Turns recorded bodies into stream events."""

    def __init__(self) -> None:
        self.streamed: set[str] = set()
        """Model calls whose deltas of the attempt under way were shown live."""
        self._tools: dict[str, str] = {}
        """Names of the tools, by call."""
        self._acting: set[str] = set()
        """Model calls that were started and may act."""

    def delta(self, call: str, delta: Delta) -> Iterator[StreamEvent]:
        """A piece that has just come in."""
        self.streamed.add(call)
        if delta.thought:
            yield ThoughtDelta(call=call, text=delta.thought)
        if delta.text:
            yield TextDelta(call=call, text=delta.text)
        if delta.position is not None:
            yield CallDelta(call=call, position=delta.position, name=delta.name, arguments=delta.arguments)

    def event(self, body: ev.EventBody, *, replayed: bool) -> Iterator[StreamEvent]:
        """What a recorded fact tells the viewer of a run; most say nothing."""
        match body:
            case ev.ModelResponded():
                response = Response(body.call, body.response, body.usage)
                if body.call not in self.streamed:
                    yield from _deltas(response, replayed=replayed)
                yield ModelResponded(
                    call=body.call,
                    text=response.text,
                    finish_reason=response.finish_reason,
                    usage=response.usage,
                    replayed=replayed,
                )
            case ev.ModelFailed():
                self.streamed.discard(body.call)
                yield ModelFailed(
                    call=body.call,
                    error=body.error.kind or body.error.type,
                    message=body.error.message,
                    final=body.final,
                    usage=body.usage,
                    replayed=replayed,
                )
            case ev.ModelStarted():
                self._acting.add(body.call)
            case ev.ToolResolved(outcome="failed") if body.call in self._acting:
                self.streamed.discard(body.call)
                error = body.error or ev.Failure("ToolError", "")
                yield ModelFailed(
                    call=body.call, error=error.type, message=error.message, final=True, replayed=replayed
                )
            case _:
                if isinstance(body, ev.ToolInDoubt):
                    self.streamed.discard(body.call)
                yield from self._of_tool(body, replayed=replayed)

    def _of_tool(self, body: ev.EventBody, *, replayed: bool) -> Iterator[StreamEvent]:
        call = getattr(body, "call", "")
        tool = self._tools.get(call, "")
        match body:
            case ev.ToolStarted() | ev.ApprovalRequested():
                self._tools[call] = body.tool
                arguments = codec.decode(body.args)
                if isinstance(body, ev.ApprovalRequested):
                    yield ApprovalRequested(call=call, tool=body.tool, arguments=arguments, replayed=replayed)
                else:
                    yield ToolStarted(
                        call=call,
                        tool=body.tool,
                        arguments=arguments,
                        attempt=body.attempt,
                        replayed=replayed,
                    )
            case ev.ToolReturned() | ev.ToolResolved(outcome="returned"):
                yield ToolReturned(call=call, tool=tool, result=codec.decode(body.result), replayed=replayed)
            case ev.ToolFailed() | ev.ToolResolved(outcome="failed"):
                yield ToolFailed(
                    call=call,
                    tool=tool,
                    message=body.error.message if body.error else "",
                    effect=body.effect,
                    final=getattr(body, "final", True),
                    replayed=replayed,
                )
            case ev.ToolInDoubt():
                yield ToolInDoubt(call=call, tool=tool, why=body.why, replayed=replayed)
            case _:
                pass


def _deltas(response: Response, *, replayed: bool) -> Iterator[StreamEvent]:
    """A response that was not streamed, in one piece for each part of it."""
    call, message = response.call, response.message
    thought = message.get("reasoning_content")
    if isinstance(thought, str) and thought:
        yield ThoughtDelta(call=call, text=thought, replayed=replayed)
    if response.text:
        yield TextDelta(call=call, text=response.text, replayed=replayed)
    for position, each in enumerate(message.get("tool_calls") or ()):
        function = each.get("function") if isinstance(each, dict) else None
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments")
        yield CallDelta(
            call=call,
            position=position,
            name=str(function.get("name") or ""),
            arguments=arguments if isinstance(arguments, str) else codec.encode(arguments).decode(),
            replayed=replayed,
        )


class _Feed:
    """What has happened and was not yet taken, in order; an event bars the way until it is durable."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        """Runs whose beginning was told, or is about to be."""
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[int, _Item]] = deque()
        """Each with the seq that must be durable."""
        self._durable = 0
        self._news = asyncio.Event()

    def observe(self, seq: int, body: ev.EventBody) -> None:
        """An event was made."""
        run = getattr(body, "run", None)
        if isinstance(run, str) and run not in self.known:
            if isinstance(body, ev.RunResumed | ev.DivergenceAccepted | ev.RunParked | ev.RunReleased):
                self._items.append((0, _Backlog(run, seq - 1)))
            self.known.add(run)
        self._items.append((seq, body))

    def settled(self, seq: int) -> None:
        """The events up to *seq* are durable."""
        if seq == self._durable:
            return
        self._durable = seq
        # An append may be acknowledged from another thread when the loop is already gone.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)

    def show(self, call: str, delta: Delta) -> None:
        """A piece of a response came in."""
        self._items.append((0, (call, delta)))
        self._news.set()

    async def next(self, over: asyncio.Task[RunResult]) -> _Item | None:
        """The next item; None when there is none left that may be told and the run is *over*."""
        while not self._ready():
            if over.done():
                return None
            self._news.clear()
            if not self._ready() and not over.done():
                await self._news.wait()
        return self._items.popleft()[1]

    def _ready(self) -> bool:
        return bool(self._items) and self._items[0][0] <= self._durable

    def wake(self, _: object) -> None:
        """Look again."""
        self._news.set()


async def follow(journal: Journal, thread: str, begin: Begin) -> AsyncGenerator[StreamEvent, None]:
    """
    The events of a run, from its beginning to `RunEnded`.

    The run does not wait for its viewer. A viewer that goes away is a caller that is cancelled: nothing new begins,
    what has finished is recorded, and the run can be resumed.

    Args:
        journal: Where the thread lives.
        thread: Thread id.
        begin: Starts the run.

    Raises:
        As `Agent.run`, after the events that led to it.
    """
    feed, told = _Feed(), _Told()
    task = asyncio.get_running_loop().create_task(begin(feed))
    task.add_done_callback(feed.wake)
    try:
        while (item := await feed.next(task)) is not None:
            if isinstance(item, _Backlog):
                for body in await _recorded(journal, thread, item):
                    for event in told.event(body, replayed=True):
                        yield event
                continue
            for event in told.delta(*item) if isinstance(item, tuple) else told.event(item, replayed=False):
                yield event
        result = task.result()
        replayed = result.run_id not in feed.known
        if replayed:
            for body in await _recorded(journal, thread, _Backlog(result.run_id, None)):
                for event in told.event(body, replayed=True):
                    yield event
        yield RunEnded(result=result, replayed=replayed)
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()


async def _recorded(journal: Journal, thread: str, backlog: _Backlog) -> list[ev.EventBody]:
    events = await asyncio.to_thread(read_all, journal, thread, upto=backlog.upto)
    return [body for body in ev.known_bodies(events) if _run_of(body) == backlog.run]


def _run_of(body: ev.EventBody) -> str:
    return getattr(body, "run", None) or getattr(body, "call", "").partition("/")[0]


def in_thread(events: Callable[[], AsyncGenerator[StreamEvent, None]]) -> Iterator[StreamEvent]:
    """
    *events*, made and followed on an event loop in a thread of its own, for code without one.

    The run goes on while the caller thinks; closing this iterator is a viewer that goes away.
    """
    queue: SimpleQueue[StreamEvent | None] = SimpleQueue()
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
    failure: list[BaseException] = []

    async def forward() -> None:
        task = asyncio.current_task()
        assert task is not None
        running.set_result((asyncio.get_running_loop(), task))
        async with contextlib.aclosing(events()) as open_events:
            async for event in open_events:
                queue.put(event)

    def work() -> None:
        try:
            asyncio.run(forward())
        except BaseException as error:  # noqa: BLE001 - raised again where the events are read
            failure.append(error)
        finally:
            queue.put(None)

    thread = threading.Thread(target=work, name="refold stream")
    thread.start()
    try:
        while (event := queue.get()) is not None:
            yield event
    finally:
        loop, task = running.result()
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
    if failure:
        raise failure[0]
