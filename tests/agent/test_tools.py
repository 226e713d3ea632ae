"""A typed function becomes a tool: what the model sees of it, what it may send, and what becomes of a call."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import math
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from refold.agent.context import ToolContext
from refold.agent.errors import ToolDefinitionError
from refold.agent.tools import Tool, tool, toolbox
from refold.journal.errors import UsageError
from refold.replay.errors import ToolError
from refold.replay.outcomes import DidNotHappen, Happened, ToolRaised, Unknown
from refold.replay.ports import ToolSpec


@dataclass
class Line:
    sku: str
    count: int = 1


class Street(pydantic.BaseModel):
    name: str


class Customer(pydantic.BaseModel):
    email: str
    street: Street | None = None


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


@tool(idempotent=True)
async def place_order(
    ctx: ToolContext,
    customer: Customer,
    lines: list[Line],
    speed: Speed = Speed.SLOW,
    day: date | None = None,
    note: Annotated[str, "Printed on the parcel."] = "",
) -> str:
    """
    Place an order.

    Prices are today's.

    Args:
        ctx: Not for the model.
        customer (Customer): Who pays,
            and where they live.
        lines: What is ordered.
        note: Not used, the annotation says more.

    Returns:
        The order's number.
    """
    return f"{customer.email} {lines[0].sku} {speed.name} {day} {ctx.idempotency_key}"


@tool
def ping() -> str:
    """Answer."""
    return "pong"


def context(**fields: Any) -> ToolContext:
    return ToolContext(**{"idempotency_key": "key", "thread": "t", "call": "r/1", **fields})


def plain(function: Callable[..., Any]) -> Tool[..., Any]:
    return tool(function)


# What the model sees


def test_the_schema_tells_the_model_name_text_types_and_what_is_required() -> None:
    schema = place_order.schema()

    function = schema["function"]
    parameters = function["parameters"]
    assert schema["type"] == "function"
    assert function["name"] == "place_order"
    assert function["description"] == "Place an order.\n\nPrices are today's."
    assert list(parameters["properties"]) == ["customer", "lines", "speed", "day", "note"]
    assert parameters["required"] == ["customer", "lines"]
    assert parameters["additionalProperties"] is False
    properties = parameters["properties"]
    assert properties["customer"]["description"] == "Who pays, and where they live."
    assert properties["lines"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Line"},
        "description": "What is ordered.",
    }
    assert properties["note"] == {"type": "string", "description": "Printed on the parcel.", "default": ""}
    assert properties["speed"] == {"$ref": "#/$defs/Speed", "default": "slow"}
    assert properties["day"]["default"] is None
    assert parameters["$defs"]["Speed"]["type"] == "string"
    assert parameters["$defs"]["Line"]["required"] == ["sku"]


def test_types_within_pydantic_models_are_found_from_the_top_of_the_schema() -> None:
    parameters = place_order.schema()["function"]["parameters"]

    assert "Street" in parameters["$defs"]
    assert "$defs" not in parameters["properties"]["customer"]


def test_the_schema_is_the_same_bytes_in_another_process_with_another_hash_seed() -> None:
    here = json.dumps(place_order.schema())
    code = (
        "import importlib.util, json, sys;"
        f"spec = importlib.util.spec_from_file_location('tools_again', {__file__!r});"
        "module = importlib.util.module_from_spec(spec); sys.modules['tools_again'] = module;"
        "spec.loader.exec_module(module); print(json.dumps(module.place_order.schema()))"
    )
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )

        assert there.stdout.strip() == here


def test_changing_a_schema_that_was_handed_out_does_not_change_the_tool() -> None:
    ping.schema()["function"]["parameters"]["properties"]["x"] = 1

    assert ping.schema() == {
        "type": "function",
        "function": {
            "name": "ping",
            "description": "Answer.",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    }


def test_name_and_description_can_be_given() -> None:
    @tool(name="look-up", description="Finds it.")
    def f(key: Annotated[str, msgspec.Meta(description="Its key.", max_length=3)]) -> str:
        return key

    function = f.schema()["function"]

    assert (function["name"], function["description"]) == ("look-up", "Finds it.")
    assert function["parameters"]["properties"]["key"] == {
        "type": "string",
        "description": "Its key.",
        "maxLength": 3,
    }
    with pytest.raises(ToolError, match="argument 'key'"):
        f.validate({"key": "four"})


def test_a_tool_is_still_the_function_it_was() -> None:
    assert ping() == "pong"
    assert asyncio.run(place_order(context(), Customer(email="a@b"), [Line("s")])).startswith("a@b s")


def test_a_tool_is_what_the_engine_asks_for() -> None:
    spec: ToolSpec = place_order

    assert (spec.name, spec.repeatable, spec.in_doubt, spec.retries) == ("place_order", True, "retry", 0)
    assert math.isfinite(spec.timeout_s)


# What the model may send


def test_arguments_are_recorded_as_they_were_sent_and_converted_for_the_function() -> None:
    sent = {"customer": {"email": "a@b"}, "lines": [{"sku": "s"}], "speed": "fast", "day": "2026-01-02"}

    recorded = place_order.validate(sent)
    result = asyncio.run(place_order.call(recorded, context()))

    assert recorded == sent
    assert result == "a@b s FAST 2026-01-02 key"


def test_every_wrong_argument_is_named_to_the_model() -> None:
    with pytest.raises(ToolError) as caught:
        place_order.validate({"customer": {"email": 1}, "lines": [{"sku": "s", "count": "many"}], "tip": 2})

    message = caught.value.message
    assert caught.value.effect == "none"
    assert caught.value.error_type == "InvalidArguments"
    assert "argument 'customer': email: Input should be a valid string" in message
    assert "argument 'lines': Expected `int`, got `str` - at `$[0].count`" in message
    assert "there is no argument 'tip'" in message


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ToolError, match=r"argument 'customer' is missing; argument 'lines' is missing"):
        place_order.arguments()


def test_the_context_cannot_be_sent_by_the_model() -> None:
    with pytest.raises(ToolError, match="there is no argument 'ctx'"):
        place_order.validate({"ctx": {}, "customer": {"email": "x"}, "lines": []})


def test_a_program_passes_arguments_as_to_a_function() -> None:
    customer, lines = {"email": "a@b"}, [{"sku": "s"}]

    assert place_order.arguments(customer, lines=lines) == {"customer": customer, "lines": lines}
    with pytest.raises(ToolError, match="'customer' is given twice"):
        place_order.arguments(customer, customer=customer, lines=lines)
    with pytest.raises(ToolError, match="too many positional"):
        ping.arguments(1)


def test_an_argument_may_have_any_name_a_parameter_can_have() -> None:
    @tool
    def f(self: int, args: int, name: str = "n") -> int:
        return self + args

    assert f.arguments(self=1, args=2) == {"self": 1, "args": 2}
    assert asyncio.run(f.call({"self": 1, "args": 2}, context())) == 3


# Definitions that cannot be


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def variadic(*names: str) -> None: ...


def keywords(**names: str) -> None: ...


def positional(name: str, /) -> None: ...


def bare(name) -> None: ...  # type: ignore[no-untyped-def]


def complex_number(name: complex) -> None: ...


def callback(hook: Callable[[], int]) -> None: ...


def nested(hooks: dict[str, list[object]]) -> None: ...


def unresolved(name: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "function, says",
    [
        (generator, ["generator", "return a list"]),
        (async_generator, ["generator", "return a list"]),
        (variadic, ["*names", "take a list"]),
        (keywords, ["**names", "take a dict"]),
        (positional, ["'name'", "positional-only"]),
        (bare, ["'name'", "no annotation"]),
        (complex_number, ["'name'", "complex"]),
        (callback, ["'hook'", "Callable"]),
        (nested, ["'hooks'", "object"]),
        (unresolved, ["Missing", "name: Missing"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_function_that_cannot_be_a_tool_is_refused_by_name(function: Any, says: list[str]) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        tool(function)

    assert isinstance(caught.value, UsageError)
    message = str(caught.value)
    assert f"'{function.__name__}'" in message
    assert "\n" not in message
    for part in says:
        assert part in message


@pytest.mark.parametrize("value", [lambda: None, int, "text", ping], ids=["lambda", "class", "text", "tool"])
def test_what_is_no_named_function_is_refused(value: Any) -> None:
    with pytest.raises(ToolDefinitionError):
        tool(value)


def answer(order: int) -> Unknown:
    return Unknown()


@pytest.mark.parametrize(
    "flags, says",
    [
        ({"read_only": True, "in_doubt": "park"}, "read_only"),
        ({"read_only": True, "in_doubt": answer}, "read_only"),
        ({"retries": 2}, "read_only or idempotent"),
        ({"idempotent": True, "retries": -1}, "retries"),
        ({"idempotent": True, "retries": True}, "retries"),
        ({"in_doubt": "ask"}, "in_doubt"),
        ({"in_doubt": "reconcile"}, "in_doubt"),
        ({"in_doubt": lambda invoice: None}, "'invoice'"),
        ({"approval": "yes"}, "approval"),
        ({"approval": place_order.function}, "async"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": math.inf}, "timeout_s"),
        ({"timeout_s": None}, "timeout_s"),
        ({"idle_timeout_s": 5}, "ToolContext"),
        ({"name": "not a name"}, "providers take names"),
        ({"name": "x" * 65}, "providers take names"),
    ],
    ids=str,
)
def test_contradictory_flags_are_refused_at_decoration(flags: dict[str, Any], says: str) -> None:
    def refund(order: int) -> None: ...

    with pytest.raises(ToolDefinitionError, match=says):
        tool(**flags)(refund)


def test_idle_time_is_within_the_whole_time() -> None:
    def crawl(ctx: ToolContext) -> None: ...

    assert tool(idle_timeout_s=5, timeout_s=10)(crawl).idle_timeout_s == 5
    with pytest.raises(ToolDefinitionError, match="at most timeout_s"):
        tool(idle_timeout_s=11, timeout_s=10)(crawl)


def test_the_policy_for_doubt_follows_from_what_was_declared() -> None:
    def refund(order: int) -> None: ...

    policies = {
        "park": tool(refund),
        "retry": tool(read_only=True)(refund),
        "tell_model": tool(in_doubt="tell_model")(refund),
        "reconcile": tool(in_doubt=answer)(refund),
    }

    assert {name: made.in_doubt for name, made in policies.items()} == {name: name for name in policies}
    assert [made.repeatable for made in policies.values()] == [False, True, False, False]
    assert tool(in_doubt="retry")(refund).repeatable


def test_two_tools_of_one_name_are_refused() -> None:
    assert list(toolbox([place_order, ping])) == ["place_order", "ping"]
    with pytest.raises(ToolDefinitionError, match="two tools are named 'ping'"):
        toolbox([ping, ping])
    with pytest.raises(ToolDefinitionError, match="decorate the function with @tool"):
        toolbox([answer])  # type: ignore[list-item]


# Approval


def test_a_predicate_sees_the_converted_arguments_with_defaults() -> None:
    seen: list[dict[str, Any]] = []

    def large(args: Any) -> bool:
        seen.append(dict(args))
        return bool(args["amount"] > 100)

    @tool(approval=large)
    def pay(amount: float, day: date = date(2026, 1, 1)) -> None: ...

    assert pay.needs_approval({"amount": 101})
    assert not pay.needs_approval({"amount": 1, "day": "2026-02-02"})
    assert seen == [{"amount": 101.0, "day": date(2026, 1, 1)}, {"amount": 1.0, "day": date(2026, 2, 2)}]


def test_a_predicate_that_fails_asks_a_person(caplog: pytest.LogCaptureFixture) -> None:
    @tool(approval=lambda args: args["ammount"] > 1)
    def pay(amount: int) -> None: ...

    assert pay.needs_approval({"amount": 0})
    assert "'pay'" in caplog.text


# Calls


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


def test_a_result_gets_the_declared_type_back() -> None:
    @tool
    def fetch() -> list[Line]:
        return []

    @tool
    def untyped():  # type: ignore[no-untyped-def]
        return {}

    assert fetch.restore([{"sku": "s", "count": 2}]) == [Line("s", 2)]
    assert untyped.restore({"a": [1]}) == {"a": [1]}


# Reconcilers


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


def test_literals_of_text_are_typed_for_the_providers_that_insist() -> None:
    @tool
    def choose(way: Literal["up", "down"]) -> str:
        return way

    assert choose.schema()["function"]["parameters"]["properties"]["way"] == {
        "type": "string",
        "enum": ["down", "up"],
    }
