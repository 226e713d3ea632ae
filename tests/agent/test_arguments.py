"""Arguments as providers really send them: taken as they are, or answered with what was wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refold.agent.arguments import BadArguments, parse_arguments
from refold.journal import codec


@pytest.mark.parametrize(
    "raw", [None, "", "   ", "\n\t", "null", " null ", "{}", " {} ", {}, b"{}"], ids=repr
)
def test_nothing_means_no_arguments(raw: Any) -> None:
    """H07."""
    assert parse_arguments(raw) == {}


@pytest.mark.parametrize("raw", ['{"a": 1}', ' {"a": 1}\n', {"a": 1}, b'{"a": 1}'], ids=repr)
def test_one_object_is_taken_as_text_or_as_it_is(raw: Any) -> None:
    """H07."""
    assert parse_arguments(raw) == {"a": 1}


@pytest.mark.parametrize(
    "raw, says",
    [
        ("[]", "an array"),
        ("3", "a number"),
        ("true", "a boolean"),
        ('"{}"', "a string"),
        ([], "an array"),
        (7, "a number"),
        (object(), "object"),
        ("{", "cut off"),
        ('{"path": "/x", "content": "half', "cut off"),
        ('{"a": 1', "cut off"),
        ("{'a': 1}", "not valid JSON"),
        ("None", "not valid JSON"),
        ('{"a":1}{"a":2}', "a second JSON value follows the first one at character 8"),
        ('{"a":1} thanks', "other text follows the first one at character 9"),
        ('{"a":1,"a":2}', "the name 'a' occurs twice"),
        ('{"a":NaN}', "NaN"),
        ('{"a":-Infinity}', "-Infinity"),
        ('{"a":1e999}', "not JSON"),
        ('{"a":"\\ud800"}', "surrogate"),
        ({"a": float("nan")}, "not JSON"),
        ({"a": {1, 2}}, "not JSON"),
        ({1: 2}, "not text"),
        (b"\xff", "UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' + "[" * 150 + "]" * 150 + "}", "nested too deeply"),
        ('{"a":' + "9" * 5000 + "}", "too long"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_anything_else_is_told_to_the_model_and_never_repaired(raw: Any, says: str) -> None:
    """H05 and H07: glued, cut off and foreign arguments are an error of that call."""
    found = parse_arguments(raw)

    assert isinstance(found, BadArguments)
    assert says in found.message
    assert "The tool was not called." in found.message


@given(st.text() | st.binary())
def test_no_text_makes_parsing_fail(raw: str | bytes) -> None:
    found = parse_arguments(raw)

    assert isinstance(found, BadArguments) or codec.decode(codec.encode(found)) == found
