"""What cannot be a tool is refused by name where it is defined, and what is declared decides."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from typing import Any

import pytest
from order_tools import ping, place_order
from refold.agent.context import ToolContext
from refold.agent.errors import ToolDefinitionError
from refold.agent.tools import tool, toolbox
from refold.journal.errors import UsageError
from refold.replay.outcomes import Unknown


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
