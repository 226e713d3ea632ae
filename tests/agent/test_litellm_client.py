"""Models through litellm's real HTTP path, against a server on this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai_server import OpenAIServer, read_log, served
from refold.agent.arguments import parse_arguments
from refold.agent.litellm_client import LitellmClient
from refold.agent.model_replies import read_response
from refold.agent.secrets import Scrubber
from refold.journal import codec
from refold.journal.errors import MissingExtra, UsageError
from refold.replay.errors import ModelError
from refold.replay.ports import ModelClient, ModelReply, Usage
from refold.replay.requests import Messages
from refold.replay.response import encode_reply

KEY = "sk-test-0123456789abcdef"
JSON = {"Content-Type": "application/json"}
USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer({}) as running:
        yield running


def client(server: OpenAIServer, **defaults: Any) -> LitellmClient:
    return LitellmClient(**{"api_base": server.base_url, "api_key": KEY, "timeout_s": 30.0, **defaults})


async def ask(server: OpenAIServer, reply: dict[str, Any], **request: Any) -> ModelReply:
    server.script = {"replies": [reply]}
    return await client(server).respond({"model": "openai/gpt-4o-mini", "messages": [USER], **request})


async def failure(server: OpenAIServer, reply: dict[str, Any]) -> ModelError:
    before = len(server.requests)
    with pytest.raises(ModelError) as caught:
        await ask(server, reply)
    assert len(server.requests) == before + 1, "one request for each call: retries are the engine's"
    return caught.value


# What is recorded


async def test_an_answer_is_recorded_with_its_message_model_usage_and_cost(server: OpenAIServer) -> None:
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 500,
        "total_tokens": 1500,
        "prompt_tokens_details": {"cached_tokens": 200},
        "completion_tokens_details": {"reasoning_tokens": 50},
    }

    reply = await ask(server, {"text": "hi", "response": {"usage": usage, "model": "gpt-4o-mini-2024-07-18"}})

    assert reply.message == {"role": "assistant", "content": "hi"}
    assert (reply.id, reply.model, reply.finish_reason) == ("chatcmpl-0", "gpt-4o-mini-2024-07-18", "stop")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (1000, 500)
    assert (reply.usage.cached_tokens, reply.usage.reasoning_tokens) == (200, 50)
    assert isinstance(reply.usage.cost_micro, int)
    assert 100 < reply.usage.cost_micro < 10_000
    assert reply.extra["usage"]["total_tokens"] == 1500


async def test_what_the_provider_did_not_say_is_unknown_and_not_zero(server: OpenAIServer) -> None:
    unsaid = await ask(server, {"text": "hi", "response": {"usage": None}})
    unpriced = await ask(server, {"text": "hi"}, model="openai/a-model-of-nobody")

    assert unsaid.usage == Usage()
    assert unpriced.usage == Usage(input_tokens=10, output_tokens=5)


async def test_every_field_of_the_provider_survives_the_record_and_goes_out_again(
    server: OpenAIServer,
) -> None:
    """H09: signatures, reasoning and unknown fields; the next request is the same live and after a resume."""
    sent = {
        "text": None,
        "calls": [
            {
                "name": "f",
                "arguments": {"a": 1},
                "id": "c1",
                "extra": {"provider_specific_fields": {"sig": "z"}},
            },
        ],
        "message": {
            "reasoning_content": "thought",
            "thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": "s"}],
            "provider_specific_fields": {"citations": [1]},
            "annotations": [{"type": "url_citation", "url_citation": {"url": "u", "title": "t"}}],
            "refusal": None,
            "unheard_of": {"k": [1, None]},
        },
        "response": {"system_fingerprint": "fp", "service_tier": "default", "of_tomorrow": {"e": 1}},
    }

    reply = await ask(server, sent)
    message = reply.message

    assert message["reasoning_content"] == "thought"
    assert message["thinking_blocks"] == [{"type": "thinking", "thinking": "t", "signature": "s"}]
    assert message["annotations"] == [{"type": "url_citation", "url_citation": {"url": "u", "title": "t"}}]
    assert "refusal" in message
    assert message["tool_calls"][0]["provider_specific_fields"] == {"sig": "z"}
    assert message["provider_specific_fields"]["citations"] == [1]
    # litellm keeps fields that it does not know among the provider's own.
    assert message["provider_specific_fields"]["unheard_of"] == {"k": [1, None]}
    assert (reply.extra["system_fingerprint"], reply.extra["of_tomorrow"]) == ("fp", {"e": 1})

    recorded = encode_reply(reply)
    again = msgspec.convert(codec.decode(recorded), ModelReply)
    assert encode_reply(again) == recorded

    server.script = {"replies": [sent, {"text": "ok"}]}
    for assistant in (message, again.message):
        await client(server).respond({"model": "openai/gpt-4o-mini", "messages": [USER, assistant]})
    assert server.requests[-1] == server.requests[-2]
    assert server.requests[-1]["messages"][1]["thinking_blocks"] == message["thinking_blocks"]


async def test_calls_with_one_id_and_calls_without_any_all_survive(server: OpenAIServer) -> None:
    """H06 and H07."""
    reply = await ask(
        server,
        {
            "calls": [
                {"name": "refund", "arguments": {"order": 1}, "id": "call_1"},
                {"name": "refund", "arguments": {"order": 2}, "id": "call_1"},
                {"name": "ping", "arguments": "", "id": None},
                {"name": "ping", "arguments": None, "id": None},
                {"name": "ping", "arguments": {"a": 1}, "as_object": True},
                {"name": "ping", "arguments": '{"a":1}{"a":2}'},
            ]
        },
    )

    calls = reply.message["tool_calls"]
    arguments = [parse_arguments(call["function"]["arguments"]) for call in calls]
    assert [call["id"] for call in calls[:2]] == ["call_1", "call_1"]
    assert all(call["id"] for call in calls)
    assert arguments[:5] == [{"order": 1}, {"order": 2}, {}, {}, {"a": 1}]
    assert not isinstance(arguments[5], dict)


async def test_an_empty_answer_is_an_answer(server: OpenAIServer) -> None:
    reply = await ask(server, {"text": None})

    assert reply.message == {"role": "assistant", "content": None}


async def test_names_and_reasons_that_are_no_texts_are_recorded_as_such(server: OpenAIServer) -> None:
    reply = await ask(server, {"text": "ok", "response": {"id": 5}, "finish_reason": 7})

    assert (reply.id, reply.finish_reason) == ("5", "stop")
    assert read_response({"id": 5, "model": 1.5, "choices": [{"message": {}, "finish_reason": 7}]}, None) == (
        ModelReply({"role": "assistant"}, finish_reason="7", id="5", model="1.5")
    )


# What goes out


@pytest.mark.parametrize(
    "more", [{"fallbacks": ["openai/b"]}, {"context_window_fallback_dict": {"openai/m": "openai/b"}}]
)
async def test_litellm_is_never_let_to_ask_other_models_by_itself(
    server: OpenAIServer, more: dict[str, Any]
) -> None:
    server.script = {"replies": [{"status": 503, "raw": "{}"}]}
    before = len(server.requests)
    with pytest.raises(ModelError, match=r"Agent\(model=\[") as caught:
        await client(server).respond({"model": "openai/m", "messages": [USER], **more})

    assert caught.value.kind == "bad_request"
    assert len(server.requests) == before


async def test_halves_of_characters_go_out_as_what_every_provider_can_read(server: OpenAIServer) -> None:
    server.script = {"replies": [{}, {"text": "ok"}]}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":"\udce9"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "\ud83d\ude00 and \ud83d"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "caf\udce9.txt", "tool_call_id": "1"},
    ]

    await client(server).respond({"model": "openai/gpt-4o-mini", "messages": messages})

    said, asked, told = server.requests[-1]["messages"]
    assert said["content"][0]["text"] == "\N{GRINNING FACE} and \N{REPLACEMENT CHARACTER}"
    assert asked["tool_calls"][0]["function"]["arguments"] == '{"a":"\N{REPLACEMENT CHARACTER}"}'
    assert told["content"] == "caf\N{REPLACEMENT CHARACTER}.txt"
    assert messages[2]["content"] == "caf\udce9.txt", "what is recorded stays as it is"


async def test_a_request_goes_out_as_asked_and_is_not_changed(server: OpenAIServer) -> None:
    server.script = {"replies": [{"text": "ok"}]}
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    ]
    request = {"model": "openai/gpt-4o-mini", "messages": [USER], "temperature": 0.5, "tools": tools}
    before = json.dumps(request)

    await client(server, temperature=0.1, top_p=0.9).respond(request)

    assert json.dumps(request) == before
    assert server.requests[-1] == {
        "model": "gpt-4o-mini",
        "messages": [USER],
        "temperature": 0.5,
        "top_p": 0.9,
        "tools": tools,
    }
    assert server.headers[-1]["authorization"] == f"Bearer {KEY}"


async def test_conversations_of_the_engine_are_accepted_and_no_tools_are_left_out(
    server: OpenAIServer,
) -> None:
    server.script = {"replies": [{"text": "ok"}]}

    await client(server).respond(
        {"model": "openai/m", "messages": Messages([USER]), "tools": [], "stream": True}
    )

    assert server.requests[-1] == {"model": "m", "messages": [USER]}


def test_one_client_serves_one_event_loop_after_another(server: OpenAIServer) -> None:
    server.script = {"replies": [{"text": "ok"}]}
    asked: ModelClient = client(server)

    for _ in range(3):
        reply = asyncio.run(asked.respond({"model": "openai/gpt-4o-mini", "messages": [USER]}))
        assert reply.message["content"] == "ok"


async def test_cancelling_a_request_leaves_the_client_usable(server: OpenAIServer) -> None:
    loop, entered, hold = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        loop.call_soon_threadsafe(entered.set)
        return {"text": "late", "hold": hold}

    server.script = reply
    running = asyncio.create_task(client(server).respond({"model": "openai/gpt-4o-mini", "messages": [USER]}))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    hold.set()

    assert (await ask(server, {"text": "next"})).message["content"] == "next"


# Failures


@pytest.mark.parametrize(
    "status, body, kind",
    [
        (400, {"message": "bad value"}, "bad_request"),
        (
            400,
            {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"},
            "context_too_long",
        ),
        (400, {"message": "content policy", "code": "content_policy_violation"}, "refused"),
        (401, {"message": "Incorrect API key"}, "auth"),
        (402, {"message": "no credit"}, "auth"),
        (403, {"message": "not yours"}, "auth"),
        (404, {"message": "no such model"}, "bad_request"),
        (408, {"message": "too slow"}, "timeout"),
        (422, {"message": "unprocessable"}, "bad_request"),
        (429, {"message": "slow down"}, "rate_limit"),
        (429, {"message": "pay first", "code": "insufficient_quota"}, "auth"),
        (500, {"message": "oops"}, "overloaded"),
        (502, {"message": "gateway"}, "overloaded"),
        (503, {"message": "busy"}, "overloaded"),
        (529, {"message": "Overloaded"}, "overloaded"),
    ],
)
async def test_an_error_of_the_provider_has_a_kind_and_its_status(
    server: OpenAIServer, status: int, body: dict[str, Any], kind: str
) -> None:
    error = await failure(server, {"status": status, "raw": json.dumps({"error": body}), "headers": JSON})

    assert (error.kind, error.status) == (kind, status)
    assert body["message"] in error.message


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"Date": "Sun, 29 Nov 2026 10:00:00 GMT", "Retry-After": "Sun, 29 Nov 2026 10:01:30 GMT"}, 90.0),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
async def test_the_wait_the_provider_asks_for_is_told(
    server: OpenAIServer, headers: dict[str, str], seconds: float | None
) -> None:
    error = await failure(server, {"status": 429, "raw": '{"error": {"message": "x"}}', "headers": headers})

    assert (error.kind, error.retry_after_s) == ("rate_limit", seconds)


@pytest.mark.parametrize(
    "reply",
    [
        {"raw": "<html>gateway</html>"},
        {"raw": ""},
        {"raw": "{}", "headers": JSON},
        {"raw": "null", "headers": JSON},
        {"raw": "[1]", "headers": JSON},
        {"raw": '{"choices": []}', "headers": JSON},
        {"raw": '{"choices": [{"mess', "headers": JSON},
        {"response": {"choices": None}},
        {"response": {"choices": [{"index": 0, "finish_reason": "stop"}]}},
        {"response": {"choices": [{"message": None}]}},
    ],
    ids=str,
)
async def test_garbage_is_malformed_and_says_so(server: OpenAIServer, reply: dict[str, Any]) -> None:
    error = await failure(server, reply)

    assert (error.kind, error.error_type, error.status) == ("malformed", "MalformedResponse", None)
    assert error.message.startswith("the provider's answer cannot be used: ")
    assert "Traceback" not in error.message
    assert "site-packages" not in error.message


@pytest.mark.parametrize("finish_reason", ["length", "content_filter"])
@pytest.mark.parametrize("arguments", ['{"path": "/x", "content": "half', "", None], ids=repr)
async def test_a_call_that_was_cut_off_is_never_an_answer(
    server: OpenAIServer, finish_reason: str, arguments: str | None
) -> None:
    """H08."""
    error = await failure(
        server, {"calls": [{"name": "write", "arguments": arguments}], "finish_reason": finish_reason}
    )

    assert error.kind == "malformed"
    assert "'write'" in error.message


async def test_text_that_was_cut_off_and_whole_calls_are_answers(server: OpenAIServer) -> None:
    text = await ask(server, {"text": "half a sen", "finish_reason": "length"})
    call = await ask(server, {"calls": [{"name": "f", "arguments": {"a": 1}}], "finish_reason": "length"})

    assert (text.finish_reason, text.message["content"]) == ("length", "half a sen")
    assert len(call.message["tool_calls"]) == 1


async def test_a_broken_connection_is_a_failure_of_the_connection(server: OpenAIServer) -> None:
    cut = await failure(server, {"text": "x", "cut": 20})
    with pytest.raises(ModelError) as refused:
        await LitellmClient(api_base="http://127.0.0.1:9/v1", api_key=KEY).respond(
            {"model": "openai/gpt-4o-mini", "messages": [USER]}
        )

    for error in (cut, refused.value):
        assert (error.kind, error.status, error.retryable) == ("connection", None, True)


async def test_a_request_ends_after_its_time(server: OpenAIServer) -> None:
    hold = threading.Event()
    await ask(server, {"text": "warm"})
    server.script = {"replies": [{"hold": hold}]}

    with pytest.raises(ModelError, match=r"no answer within 0\.2 s") as caught:
        await client(server, timeout_s=0.2).respond({"model": "openai/gpt-4o-mini", "messages": [USER]})
    hold.set()

    assert (caught.value.kind, caught.value.retryable) == ("timeout", True)


async def test_a_model_that_litellm_does_not_know_is_a_bad_request() -> None:
    with pytest.raises(ModelError, match="model=nonsense") as caught:
        await LitellmClient().respond({"model": "nonsense", "messages": [USER]})

    assert caught.value.kind == "bad_request"


async def test_a_missing_key_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(ModelError, match="credentials") as caught:
        await LitellmClient().respond({"model": "openai/gpt-4o-mini", "messages": [USER]})

    assert caught.value.kind == "auth"


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_a_client_without_a_finite_time_is_refused(timeout_s: float) -> None:
    with pytest.raises(UsageError, match="finite"):
        LitellmClient(timeout_s=timeout_s)


# Keys


async def test_keys_are_in_no_error_and_no_reply(server: OpenAIServer) -> None:
    said = f"Incorrect API key provided: {KEY}; also sk-proj-****wxyz, Bearer abcdef123456 and header-secret"
    server.script = {
        "replies": [{"status": 401, "raw": json.dumps({"error": {"message": said}}), "headers": JSON}]
    }
    asked = client(server, extra_headers={"X-Extra": "header-secret"})
    request = {"model": "openai/gpt-4o-mini", "messages": [USER]}

    with pytest.raises(ModelError) as caught:
        await asked.respond(request)
    server.script = {
        "replies": [{"text": f"your key is {KEY}", "response": {"debug": {"auth": [f"Bearer {KEY}"]}}}]
    }
    reply = await asked.respond(request)

    for secret in (KEY, "wxyz", "abcdef123456", "header-secret"):
        assert secret not in caught.value.message
    assert "Incorrect API key provided: [redacted]" in caught.value.message
    assert KEY.encode() not in encode_reply(reply)
    assert reply.message["content"] == "your key is [redacted]"
    assert KEY not in repr(asked)


def test_keys_of_the_environment_are_known_and_short_words_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "environment-key-1")
    scrub = Scrubber({"api_key": "x", "max_tokens": 1000, "tool_choice": "required"})

    assert scrub.text("environment-key-1 x required") == "[redacted] x required"
    assert scrub.value({"environment-key-1": ["environment-key-1", 1, None]}) == {
        "[redacted]": ["[redacted]", 1, None]
    }


def test_a_response_without_a_list_of_choices_is_malformed_by_itself() -> None:
    dumps: tuple[dict[str, Any], ...] = (
        {},
        {"choices": {}},
        {"choices": [None]},
        {"choices": [{"message": "text"}]},
    )
    for dump in dumps:
        with pytest.raises(ModelError) as caught:
            read_response(dump, None)
        assert caught.value.kind == "malformed"


# The package and the process around it


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Development mode makes asyncio strict; a warning anywhere is an error.
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "module", ["refold", "refold.agent.tools", "refold.agent.litellm_client", "refold.agent.scripted"]
)
def test_importing_the_package_imports_neither_litellm_nor_redis(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('litellm', 'openai', 'redis', 'pydantic') if m in sys.modules])"

    assert run_python(code).stdout == "[]\n"


@pytest.mark.parametrize("protocol", ["HTTP/1.0", "HTTP/1.1"])
def test_a_script_prints_only_what_it_prints_itself(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No banner, no warning, no open connection at exit, and no price list from the network, from a fresh process."""
    code = (
        "import asyncio, logging, socket, sys\n"
        "from refold.agent.litellm_client import LitellmClient\n"
        "logging.getLogger('asyncio').disabled = True  # its debug mode tells of slow steps\n"
        "lookup = socket.getaddrinfo\n"
        "def local_only(host, *args, **kwargs):\n"
        "    assert host == '127.0.0.1', host\n"
        "    return lookup(host, *args, **kwargs)\n"
        "socket.getaddrinfo = local_only\n"
        "client = LitellmClient(api_base=sys.argv[1], api_key='sk-0123456789')\n"
        "request = {'model': 'openai/a-model-of-nobody', 'messages': [{'role': 'user', 'content': 'x'}]}\n"
        "for _ in range(2):\n"
        "    print(asyncio.run(client.respond(request)).message['content'])\n"
    )
    monkeypatch.setattr(BaseHTTPRequestHandler, "protocol_version", protocol)
    with OpenAIServer({"replies": [{"text": "ok"}]}) as server:
        done = run_python(code, server.base_url)

    assert (done.stdout, done.stderr) == ("ok\nok\n", "")


def test_without_the_extra_one_line_names_it(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "sys.modules['litellm'] = None\n"
        "from refold.agent.litellm_client import LitellmClient\n"
        "from refold.journal.errors import MissingExtra\n"
        "try:\n"
        "    asyncio.run(LitellmClient().respond({'model': 'openai/x', 'messages': []}))\n"
        "except MissingExtra as error:\n"
        "    print(error)\n"
    )

    done = run_python(code)

    assert done.stdout == str(MissingExtra("models", "calling a model by name")) + "\n"


# The server itself


def test_the_server_runs_as_a_process_and_answers_by_the_conversation(tmp_path: Path) -> None:
    script = {
        "replies": [{"attempts": [{"status": 500, "raw": "no"}, {"text": "first"}]}, {"text": "second"}],
        "by_user": {"special": [{"text": "for you"}]},
    }
    later = [USER, {"role": "assistant", "content": "first"}, {"role": "user", "content": "more"}]

    async def talk(base_url: str, messages: list[dict[str, Any]]) -> Any:
        asked = LitellmClient(api_base=base_url, api_key=KEY)
        return (await asked.respond({"model": "openai/m", "messages": messages})).message["content"]

    with served(script, tmp_path) as (base_url, log):
        with pytest.raises(ModelError):
            asyncio.run(talk(base_url, [USER]))
        assert asyncio.run(talk(base_url, later)) == "second"
    with served(script, tmp_path) as (base_url, log):
        assert asyncio.run(talk(base_url, [USER])) == "first"
        assert asyncio.run(talk(base_url, [{"role": "user", "content": "special"}])) == "for you"

    assert [len(body["messages"]) for body in read_log(log)] == [1, 3, 1, 1]
    assert importlib.util.find_spec("openai_server") is not None
