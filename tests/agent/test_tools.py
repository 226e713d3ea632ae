"""A typed function becomes a tool: what the model sees of it, and what it may send."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from typing import Annotated, Literal

import msgspec
import order_tools
import pytest
from order_tools import Customer, Line, context, ping, place_order
from refold.agent.tools import tool
from refold.replay.errors import ToolError
from refold.replay.ports import ToolSpec

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
        f"spec = importlib.util.spec_from_file_location('tools_again', {order_tools.__file__!r});"
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


def test_a_result_gets_the_declared_type_back() -> None:
    @tool
    def fetch() -> list[Line]:
        return []

    @tool
    def untyped():  # type: ignore[no-untyped-def]
        return {}

    assert fetch.restore([{"sku": "s", "count": 2}]) == [Line("s", 2)]
    assert untyped.restore({"a": [1]}) == {"a": [1]}


def test_literals_of_text_are_typed_for_the_providers_that_insist() -> None:
    @tool
    def choose(way: Literal["up", "down"]) -> str:
        return way

    assert choose.schema()["function"]["parameters"]["properties"]["way"] == {
        "type": "string",
        "enum": ["down", "up"],
    }
