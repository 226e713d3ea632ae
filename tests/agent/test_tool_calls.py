"""What becomes of a call: threads, cancellation, errors, contexts, and asking the world what happened."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from order_tools import context, ping, place_order
from refold.agent.context import ToolContext
from refold.agent.tools import Tool, tool
from refold.replay.errors import ToolError
from refold.replay.outcomes import DidNotHappen, Happened, ToolRaised, Unknown


def plain(function: Callable[..., Any]) -> Tool[..., Any]:
    return tool(function)


async def test_a_sync_tool_runs_off_the_loop_with_the_context_variables_of_the_caller() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    may_end = threading.Event()

    @tool
    def slow() -> tuple[str, str]:
        assert may_end.wait(10)
        return variable.get(), threading.current_thread().name

    running = asyncio.create_task(slow.call({}, context()))
    await asyncio.sleep(0)
    may_end.set()  # reached only because the loop goes on while the tool waits

    assert await running == ("set", "refold tool slow")


async def test_a_hung_sync_tool_does_not_keep_another_from_running() -> None:
    release = threading.Event()
    started = [threading.Event() for _ in range(64)]

    @tool
    def hang(index: int) -> None:
        started[index].set()
        release.wait(10)

    hung = [asyncio.create_task(hang.call({"index": index}, context())) for index in range(64)]
    assert await ping.call({}, context()) == "pong"
    await asyncio.to_thread(lambda: all(event.wait(10) for event in started))
    assert await ping.call({}, context()) == "pong"
    release.set()
    await asyncio.gather(*hung)


def test_a_hung_sync_tool_does_not_keep_the_process_alive() -> None:
    code = (
        "import asyncio, threading\n"
        "from refold.agent.tools import tool\n"
        "from refold.agent.context import ToolContext\n"
        "started = threading.Event()\n"
        "@tool\n"
        "def hang() -> None:\n"
        "    started.set(); threading.Event().wait()\n"
        "async def main():\n"
        "    task = asyncio.create_task(hang.call({}, ToolContext()))\n"
        "    await asyncio.to_thread(started.wait)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )

    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=20)


@pytest.mark.parametrize(
    "make",
    [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration],
    ids=lambda make: make.__name__,
)
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_whatever_a_tool_raises_is_an_outcome_of_that_call(make: type[BaseException], how: str) -> None:
    """H12: a tool that raises an exit or a cancellation ends neither the process nor the run."""

    def sync_tool() -> None:
        raise make("by the tool")

    async def async_tool() -> None:
        await asyncio.sleep(0)
        raise make("by the tool")

    made = plain(sync_tool if how == "sync" else async_tool)

    with pytest.raises((ToolRaised, RuntimeError)) as caught:
        await made.call({}, context())

    if make is StopIteration and how == "async":
        # Python itself turns it into a RuntimeError before anybody can see it.
        assert isinstance(caught.value, RuntimeError)
    else:
        assert isinstance(caught.value, ToolRaised)
        assert type(caught.value.original) is make
        assert caught.value.error_type == make.__name__
        assert "by the tool" in str(caught.value)


async def test_a_tool_that_cancels_the_current_task_cancels_only_itself() -> None:
    """H12."""

    @tool
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(ToolRaised) as caught:
        await suicidal.call({}, context())

    assert isinstance(caught.value.original, asyncio.CancelledError)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_cancelling_the_call_is_a_cancellation_and_reaches_the_tool() -> None:
    """H12: the other path, which must not be taken for a failure of the tool."""
    entered = asyncio.Event()
    seen: list[str] = []

    @tool
    async def wait() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    running = asyncio.create_task(wait.call({}, context()))
    await entered.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen == ["cancelled"]


async def test_cancelling_the_call_of_a_sync_tool_returns_at_once_and_its_late_end_harms_nobody() -> None:
    """H12: the thread goes on, and what it brings home is dropped."""
    entered, release, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def busy() -> str:
        entered.set()
        release.wait(10)
        ended.set()
        return "late"

    running = asyncio.create_task(busy.call({}, context()))
    await asyncio.to_thread(entered.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    release.set()

    assert await asyncio.to_thread(ended.wait, 10)


async def test_a_result_that_comes_in_spite_of_cancellation_is_kept() -> None:
    entered = asyncio.Event()

    @tool
    async def stubborn() -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    running = asyncio.create_task(stubborn.call({}, context()))
    await entered.wait()
    running.cancel()

    assert await running == "done all the same"


async def test_the_errors_a_tool_may_raise_pass_unchanged() -> None:
    error = ToolError("no such order")

    @tool
    def refuse() -> None:
        raise error

    @tool
    async def fail() -> None:
        raise ZeroDivisionError("x")

    with pytest.raises(ToolError) as caught:
        await refuse.call({}, context())
    assert caught.value is error
    with pytest.raises(ZeroDivisionError):
        await fail.call({}, context())


async def test_arguments_that_no_longer_fit_fail_before_the_function_is_called() -> None:
    with pytest.raises(ToolError, match="'lines' is missing") as caught:
        await place_order.call({"customer": {"email": "x"}}, context())

    assert caught.value.effect == "none"


async def test_async_functions_behind_sync_wrappers_are_awaited() -> None:
    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @tool
    @wrapped
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    assert await double.call({"number": 4}, context()) == 8


async def test_bound_methods_partials_and_callable_objects_are_tools() -> None:
    class Shop:
        def sell(self, count: int) -> int:
            return count + 1

        async def __call__(self, count: int) -> int:
            return count + 2

    def add(base: int, count: int) -> int:
        return base + count

    made: list[Tool[..., Any]] = [
        tool(Shop().sell),
        tool(name="shop")(Shop()),
        tool(functools.partial(add, 3)),
    ]

    assert [each.name for each in made] == ["sell", "shop", "add"]
    assert [await each.call({"count": 1}, context()) for each in made] == [2, 3, 4]


async def test_a_context_tells_the_call_and_passes_beats_and_cancellation() -> None:
    beats: list[str] = []

    @tool
    def crawl(ctx: ToolContext, other: ToolContext | None = None) -> list[Any]:
        ctx.heartbeat()
        assert other is ctx
        return [ctx.idempotency_key, ctx.attempt, ctx.deps, ctx.cancelled]

    given = context(attempt=2, deps={"db": 1}, heartbeat=lambda: beats.append("beat"), cancelled=lambda: True)

    assert await crawl.call({}, given) == ["key", 2, {"db": 1}, True]
    assert beats == ["beat"]
    assert "ctx" not in crawl.schema()["function"]["parameters"]["properties"]


async def test_a_reconciler_takes_what_it_names_of_the_arguments_and_the_context() -> None:
    async def look_up(order: int, ctx: ToolContext) -> Happened | DidNotHappen:
        return Happened(f"{order} {ctx.idempotency_key}") if order == 1 else DidNotHappen()

    @tool(in_doubt=look_up)
    def refund(order: int, amount: float = 1.0) -> str:
        return "ok"

    assert await refund.reconcile({"order": 1}, context()) == Happened("1 key")
    assert await refund.reconcile({"order": 2}, context()) == DidNotHappen()


@pytest.mark.parametrize("how", ["raises", "returns something else"])
async def test_a_reconciler_that_fails_does_not_know(how: str) -> None:
    def look_up(**arguments: Any) -> Any:
        if how == "raises":
            raise ConnectionError("no route")
        return True

    @tool(in_doubt=look_up)
    def refund(order: int) -> str:
        return "ok"

    answer = await refund.reconcile({"order": 1}, context())

    assert isinstance(answer, Unknown)
    assert ("no route" if how == "raises" else "bool") in answer.why
    assert "refund" in answer.why
