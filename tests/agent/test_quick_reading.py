"""What is read the quick way, without decoding the rest, is what the thorough way reads: for any text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from refold.agent import arguments, conversation
from refold.agent.arguments import parse_arguments
from refold.agent.conversation import read_reply, result_content
from refold.journal import codec
from refold.replay.ports import ModelReply, Usage
from refold.replay.response import Response, encode_reply

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("~tuple")
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)
NAMES = st.sampled_from(["a", "b", "~tuple", "é", 'q"', "back\\slash"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Arguments as providers send them: mostly one flat object, also with a name twice, cut off, or blank."""
    pairs = draw(st.lists(st.tuples(NAMES, VALUES), max_size=3))
    ascii_only, space = draw(st.booleans()), draw(st.sampled_from(["", " ", "\n"]))
    items = [f"{json.dumps(k, ensure_ascii=ascii_only)}:{space}{json.dumps(v)}" for k, v in pairs]
    text = space + "{" + ("," + space).join(items) + "}" + space
    odd = st.sampled_from(
        ["", "null", "  ", "[1]", '{"a":1', '{"a":1}{', '{"a":-0}', '{"a":1e999}', '{"a":"\ud800"}']
    )
    return draw(st.just(text) | odd)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Assistant messages with tool calls, sound and not."""
    calls = []
    for _ in range(draw(st.integers(0, 3))):
        function: dict[str, Any] = {
            "name": draw(st.sampled_from(["look", "", None, "write", "look.up"])),
            "arguments": draw(
                texts().filter(lambda text: "\ud800" not in text) | st.none() | st.just({"a": 1})
            ),
        }
        call: dict[str, Any] = {
            "id": draw(st.sampled_from(["c1", "c2", "c3", "", None])),
            "function": function,
        }
        if draw(st.booleans()):
            call["type"] = draw(st.sampled_from(["function", "function", None]))
        calls.append(call | draw(st.sampled_from([{}, {"index": 0}, {"~tuple": [1]}])))
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | st.text(max_size=5))}
    odd: list[dict[str, Any]] = [{}, {"tool_calls": None}, {"tool_calls": []}, {"function_call": None}]
    return message | draw(st.sampled_from(odd)) | ({"tool_calls": calls} if calls else {})


@given(texts())
def test_arguments_are_the_same_read_quickly_or_thoroughly(text: str) -> None:
    quick = parse_arguments(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_flat", lambda text: None)
        thorough = parse_arguments(text)

    assert repr(quick) == repr(thorough)


@given(messages())
def test_a_reply_is_the_same_read_quickly_or_thoroughly(message: dict[str, Any]) -> None:
    response = Response("r1/1", Raw(encode_reply(ModelReply(message=message))), Usage())
    quick = read_reply(response)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversation, "_sound_calls", lambda response: None)
        thorough = read_reply(response)

    assert quick == thorough


@given(VALUES.filter(lambda value: value == value))
def test_what_a_model_reads_of_a_result_is_canonical_text(value: Any) -> None:
    data = codec.encode(value)
    text = value if isinstance(value, str) else data.decode()

    assert result_content(Raw(data)) == codec.encode(text)


def test_text_with_escapes_of_another_writer_is_told_in_our_own() -> None:
    assert result_content(Raw(rb'"\u0041\/"')) == b'"A/"'
