"""Streams: what of them becomes a response, what a viewer sees live and on replay, and what survives a viewer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import pytest
from died import died_at
from openai_server import OpenAIServer
from refold import Agent, Journal, RunFailed, ScriptedModel, tool
from refold.agent import streaming
from refold.agent.litellm_client import LitellmClient
from refold.agent.scripted import call, say
from refold.journal.errors import StoreRefused
from refold.journal.memory import MemoryStore
from refold.journal.store import Append, AppendResult
from refold.replay import events as ev
from refold.replay import rebuild
from refold.replay.errors import ModelError
from refold.replay.live import Limits
from refold.replay.ports import Delta, ModelReply, Usage
from refold.replay.recording import Policy
from refold.replay.runner import read_all
from wires import ANTHROPIC, GEMINI, KEY, OPENAI, WIRES, Wire

USER = {"role": "user", "content": "hello"}
QUICK = Policy(backoff_s=0.0, model_attempts=3)
BRIEF = Limits(leave_grace_s=0.05)

wires = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])


async def stream(wire: Wire, server: Any) -> tuple[ModelReply, list[Delta]]:
    pieces: list[Delta] = []
    reply = await LitellmClient().stream({**wire.request(server), "messages": [USER]}, pieces.append)
    return reply, pieces


async def broken(wire: Wire, reply: dict[str, Any]) -> ModelError:
    with wire.serve(reply) as server:
        with pytest.raises(ModelError) as caught:
            await stream(wire, server)
        assert len(server.requests) == 1, "one request for each call: retries are the engine's"
    return caught.value


# What becomes a response


@wires
async def test_a_streamed_response_is_recorded_as_one_that_was_not(wire: Wire) -> None:
    with wire.serve(wire.asking) as server:
        whole = await LitellmClient().respond({**wire.request(server), "messages": [USER]})
        reply, pieces = await stream(wire, server)

    calls, asked = reply.message["tool_calls"], whole.message["tool_calls"]
    assert [each["function"] for each in calls] == [each["function"] for each in asked]
    assert (reply.usage, reply.model, reply.finish_reason) == (whole.usage, whole.model, whole.finish_reason)
    for name in ("content", "reasoning_content"):
        assert reply.message[name] == whole.message[name]
    if wire.name != "gemini":
        assert reply.message["thinking_blocks"] == whole.message["thinking_blocks"]
    assert "".join(each.text for each in pieces) == "I will look."
    assert "".join(each.thought for each in pieces) == "Two orders."
    assert {each.position for each in pieces} == {None, 0, 1}


@wires
async def test_the_request_after_a_streamed_response_tells_the_provider_the_same(wire: Wire) -> None:
    """H09: signatures and thoughts, whichever way the response came."""
    requests = []
    for streamed in (False, True):
        with wire.serve(wire.asking) as server:
            client, request = LitellmClient(), wire.request(server)
            first = {**request, "messages": [USER]}
            reply = await (client.stream(first, lambda _: None) if streamed else client.respond(first))
            for each in reply.message["tool_calls"]:
                # Gemini sends no ids; litellm makes them up, and hides a signature in them.
                each["id"] = "_".join(["call", *each["id"].partition("__thought__")[1:]])
            server.script = {"replies": [{}, {"text": "ok"}]}
            await client.respond({**request, "messages": [USER, reply.message]})
            sent = server.requests[-1]
            for message in sent.get("messages", ()):
                # Of a plain OpenAI response litellm keeps the thinking blocks twice.
                message.get("provider_specific_fields", {}).pop("thinking_blocks", None)
            requests.append(sent)

    assert requests[0] == requests[1]


@pytest.mark.parametrize(
    "wire, unsaid",
    [(OPENAI, {"response": {"usage": None}}), (GEMINI, {"usage": None})],
    ids=["openai", "gemini"],
)
async def test_what_was_used_is_unknown_where_the_provider_does_not_say(
    wire: Wire, unsaid: dict[str, Any]
) -> None:
    """litellm would reckon the tokens itself."""
    with wire.serve({"text": "hello there", **unsaid}) as server:
        reply, _ = await stream(wire, server)

    assert reply.usage == Usage()
    assert "usage" not in reply.extra


@wires
@pytest.mark.parametrize("how", ["cut_after", "end_after"])
@pytest.mark.parametrize("events", [0, 1, 3])
async def test_a_stream_that_was_cut_is_no_response(wire: Wire, how: str, events: int) -> None:
    """H08: dropped or ended in good order, in the middle of an answer."""
    error = await broken(wire, {"text": "hello there my friend, how are you?", how: events})

    assert error.kind == "connection"


@wires
async def test_of_a_stream_that_was_cut_what_was_used_is_told_as_far_as_the_provider_said(wire: Wire) -> None:
    error = await broken(wire, {"text": "hello there my friend, how are you?", "cut_after": 3})
    nothing = await broken(wire, {"text": "hello there my friend, how are you?", "cut_after": 0})

    # Of these only Anthropic says at the beginning what went in; what came out nobody knows.
    assert error.usage is not None
    assert error.usage.input_tokens == (10 if wire is ANTHROPIC else None)
    assert (error.usage.output_tokens, error.usage.cost_micro) == (None, None)
    assert nothing.usage is None


async def test_a_stream_cut_after_a_whole_call_and_before_its_finish_is_no_response() -> None:
    """H08 (c)."""
    reply = {"calls": [{"name": "f", "arguments": {"a": 1}}]}
    count = 4
    for how in ("cut_after", "end_after"):
        assert (await broken(OPENAI, {**reply, how: count})).kind == "connection"


async def test_a_stream_that_reached_its_limit_in_the_middle_of_a_call_is_no_response() -> None:
    """H08 (b)."""
    half = {"calls": [{"name": "write", "arguments": '{"path": "/x", "content": "half'}]}

    error = await broken(OPENAI, {**half, "finish_reason": "length"})

    assert error.usage is not None
    assert (error.usage.input_tokens, error.usage.output_tokens) == (10, 5)
    assert error.usage.cost_micro
    assert error.kind == "malformed"
    assert "'write'" in error.message


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def fragment(arguments: str, **rest: Any) -> dict[str, Any]:
    name = {"name": rest.pop("name")} if "name" in rest else {}
    return {"tool_calls": [{"type": "function", "function": {"arguments": arguments, **name}, **rest}]}


@pytest.mark.parametrize(
    "fragments, expected",
    [
        (
            [
                fragment('{"a":1}', index=0, id="c1", name="f"),
                fragment('{"a":2}', index=0, id="c2", name="f"),
            ],
            ['{"a":1}', '{"a":2}'],
        ),
        (
            [
                fragment('{"a"', index=0, id="c1", name="f"),
                fragment(":1}", index=0, id="c1", name="f"),
                fragment('{"a":2}', index=1, id="c2", name="f"),
            ],
            ['{"a":1}', '{"a":2}'],
        ),
        (
            [
                fragment('{"a":', index=0, id="c1", name="f"),
                fragment('{"a":', index=1, id="c1", name="f"),
                fragment("1}", index=0),
                fragment("2}", index=1),
            ],
            ['{"a":1}', '{"a":2}'],
        ),
        (
            [fragment("", index=0, id="c1", name="f"), fragment('{"a":2}', index=0, id="c2", name="f")],
            ["", '{"a":2}'],
        ),
        (
            [fragment('{"a":', index=0, id="c1", name="f"), fragment("2}", index=0, id="c2", name="f")],
            ['{"a":', "2}"],
        ),
        ([fragment("", index=0, id="c1", name="f")], [""]),
    ],
    ids=[
        "one index, two ids",
        "id and name again",
        "two indexes, one id",
        "no arguments, then another id",
        "half of the arguments, then another id",
        "no arguments",
    ],
)
async def test_calls_of_a_stream_are_never_glued_together(
    fragments: list[dict[str, Any]], expected: list[str]
) -> None:
    """H05 and H06: litellm's own builder makes one call of the first, with arguments that are no JSON."""
    chunks = [chunk({"role": "assistant"}), *map(chunk, fragments), chunk({}, "tool_calls")]
    with OPENAI.serve({"chunks": chunks}) as server:
        reply, _ = await stream(OPENAI, server)

    assert [each["function"]["arguments"] for each in reply.message["tool_calls"]] == expected


async def test_text_and_parts_of_content_in_one_stream_are_all_kept() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"content": "so "},
        {"content": [thought]},
        {"content": "it "},
        {"content": [{"type": "text", "text": "is "}]},
        {"content": "paid"},
    ]
    with OPENAI.serve({"chunks": [*map(chunk, deltas), chunk({}, "stop")]}) as server:
        reply, pieces = await stream(OPENAI, server)

    assert [piece.text for piece in pieces] == ["so ", "it ", "is ", "paid"]
    first, last = ({"type": "text", "text": text} for text in ("so ", "it is paid"))
    assert reply.message["content"] == [first, thought, last]


async def test_a_character_that_is_cut_in_two_is_one_again() -> None:
    """Some proxies cut text by the units of UTF-16."""
    deltas = [{"role": "assistant"}, {"content": "hi \ud83d"}, {"content": "\ude00"}]
    arguments = [fragment('{"a":"\ud83d', index=0, id="c1", name="f"), fragment('\ude00"}', index=0)]
    with OPENAI.serve({"chunks": [*map(chunk, [*deltas, *arguments]), chunk({}, "tool_calls")]}) as server:
        reply, pieces = await stream(OPENAI, server)

    assert reply.message["content"] == "hi \N{GRINNING FACE}"
    assert reply.message["tool_calls"][0]["function"]["arguments"] == '{"a":"\N{GRINNING FACE}"}'
    "".join(piece.text for piece in pieces).encode()  # a viewer can print each of them


async def test_a_provider_that_fails_in_the_middle_is_told_apart() -> None:
    with OPENAI.serve(
        {"status": 429, "raw": '{"error": {"message": "x"}}', "headers": {"Retry-After": "7"}}
    ) as s:
        with pytest.raises(ModelError) as caught:
            await stream(OPENAI, s)
        assert len(s.requests) == 1

    assert (caught.value.kind, caught.value.retry_after_s) == ("rate_limit", 7.0)


async def test_no_key_enters_a_streamed_response() -> None:
    with OPENAI.serve({"text": f"your key is {KEY}"}) as server:
        reply, _ = await stream(OPENAI, server)

    assert KEY not in str(reply)


# What a viewer sees

found: list[int] = []


@tool(read_only=True)
def find(order: int) -> dict[str, int]:
    """Find an order."""
    found.append(order)
    return {"order": order, "paid": 30}


@pytest.fixture
def journal() -> Any:
    found.clear()
    with Journal.memory() as made:
        yield made


def agent_on(server: OpenAIServer) -> Agent:
    params = {"api_base": server.base_url, "api_key": KEY}
    return Agent("shop", model="openai/gpt-4o-mini", params=params, tools=[find], policy=QUICK, limits=BRIEF)


REPLIES = [
    {"text": "Let me look it up.", "calls": [{"name": "find", "arguments": {"order": 7}}]},
    {"text": "It is paid: 30 in all."},
]


async def seen(events: Any) -> list[streaming.StreamEvent]:
    return [event async for event in events]


def settled(events: Iterable[streaming.StreamEvent]) -> list[Any]:
    """Events with deltas of failed attempts left out and pieces of one thing put together."""
    kept: list[Any] = []
    for event in events:
        match event:
            case streaming.ModelFailed():
                kept = [e for e in kept if e[:2] != ("delta", event.call)]
                kept.append(("failed", event.call, event.error, event.final))
            case streaming.TextDelta() | streaming.ThoughtDelta() | streaming.CallDelta():
                key = ("delta", event.call, type(event).__name__, getattr(event, "position", 0))
                text = getattr(event, "text", None) or f"{event.name}{event.arguments}"
                if kept and kept[-1][:4] == key:
                    kept[-1] = (*key, kept[-1][4] + text)
                else:
                    kept.append((*key, text))
            case streaming.RunEnded():
                kept.append(("ended", event.result))
            case _:
                kept.append((type(event).__name__, msgspec.structs.replace(event, replayed=False)))
    return kept


async def test_a_viewer_sees_text_calls_tools_and_the_end_and_the_same_again_from_the_log(
    journal: Journal,
) -> None:
    with OpenAIServer({"replies": REPLIES}) as server:
        agent = agent_on(server)
        live = await seen(agent.stream("order 7?", journal=journal, thread="t", key="k"))
        again = await seen(agent.stream("order 7?", journal=journal, thread="t", key="k"))
        assert len(server.requests) == 2

    assert not any(event.replayed for event in live)
    assert all(event.replayed for event in again)
    assert sum(isinstance(event, streaming.TextDelta) for event in live) > 4
    assert settled(live) == settled(again)
    assert [type(e).__name__ for e in again] == [
        "TextDelta",
        "CallDelta",
        "ModelResponded",
        "ToolStarted",
        "ToolReturned",
        "TextDelta",
        "ModelResponded",
        "RunEnded",
    ]
    ended = live[-1]
    assert isinstance(ended, streaming.RunEnded)
    assert ended.result.output == "It is paid: 30 in all."


async def test_after_a_crash_anywhere_the_whole_sequence_is_the_uninterrupted_one(journal: Journal) -> None:
    with OpenAIServer({"replies": REPLIES}) as server:
        agent = agent_on(server)
        whole = settled(await seen(agent.stream("order 7?", journal=journal, thread="t")))
        events = read_all(journal, "t")
        for seq in range(2, len(events)):
            with died_at(journal, "t", seq) as left:
                again = await seen(agent.stream("order 7?", journal=left, thread="t"))
            flags = [event.replayed for event in again]
            assert flags == sorted(flags, reverse=True), "what is recorded comes first"
            if events[seq - 1].kind == "tool_started":
                # The read-only tool was in doubt and is started once more.
                starts = [event for event in again if isinstance(event, streaming.ToolStarted)]
                assert [event.attempt for event in starts] == [1, 2]
                again.remove(starts[1])
            assert settled(again) == whole


async def test_a_client_that_cannot_stream_tells_each_response_in_one_piece(journal: Journal) -> None:
    agent = Agent("shop", model=ScriptedModel([call("find", order=7), "paid"]), tools=[find])

    events = await seen(agent.stream("order 7?", journal=journal, thread="t"))

    assert [e.text for e in events if isinstance(e, streaming.TextDelta)] == ["paid"]


async def test_a_cut_stream_is_recorded_retried_and_void_for_the_viewer(journal: Journal) -> None:
    """H08: no call of it is executed."""
    cut = {**REPLIES[0], "end_after": 7}
    script = {"replies": [{"attempts": [cut, {**cut, "cut_after": 6}, REPLIES[0]]}, REPLIES[1]]}
    with OpenAIServer(script) as server:
        agent = agent_on(server)
        live = await seen(agent.stream("order 7?", journal=journal, thread="t", key="k"))
        again = await seen(agent.stream("order 7?", journal=journal, thread="t", key="k"))
        assert len(server.requests) == 4

    events = read_all(journal, "t")
    assert [e.kind for e in events if e.kind.startswith("model")] == ["model_failed"] * 2 + [
        "model_responded"
    ] * 2
    assert found == [7]
    assert settled(live) == settled(again)
    failed = [e for e in live if isinstance(e, streaming.ModelFailed)]
    assert [(e.error, e.final) for e in failed] == [("connection", False)] * 2
    rebuild.replay(agent.program, "t", events)


async def test_streams_that_are_always_cut_end_the_run_with_the_error_told(journal: Journal) -> None:
    events: list[streaming.StreamEvent] = []

    async def view(agent: Agent) -> None:
        async for event in agent.stream("order 7?", journal=journal, thread="t"):
            events.append(event)

    with OpenAIServer({"replies": [{**REPLIES[0], "end_after": 7}]}) as server:
        with pytest.raises(RunFailed, match="finish_reason"):
            await view(agent_on(server))
        assert len(server.requests) == QUICK.model_attempts

    assert [e.final for e in events if isinstance(e, streaming.ModelFailed)] == [False, False, True]
    assert found == []


async def test_nothing_of_a_stream_is_recorded_but_its_response(journal: Journal) -> None:
    with OpenAIServer({"replies": REPLIES}) as server:
        agent = agent_on(server)
        await seen(agent.stream("order 7?", journal=journal, thread="streamed"))
        await agent.run("order 7?", journal=journal, thread="plain")

    streamed, plain = read_all(journal, "streamed"), read_all(journal, "plain")
    assert [e.kind for e in streamed] == [e.kind for e in plain]
    for one, other in zip(streamed, plain, strict=True):
        body, same = ev.decode_event(one), ev.decode_event(other)
        if isinstance(body, ev.ModelResponded):
            assert isinstance(same, ev.ModelResponded)
            assert body.fingerprint == same.fingerprint, "a run may go on either way"


# What is told when


class Watched(MemoryStore):
    """Lets the event loop do all it can before an append takes place, and notes what the append held."""

    def __init__(self, loop: asyncio.AbstractEventLoop, happened: list[str]) -> None:
        super().__init__()
        self._loop, self._happened = loop, happened

    def append(self, append: Append) -> AppendResult:
        asyncio.run_coroutine_threadsafe(idle(), self._loop).result()
        self._happened += [event.kind for event in append.events]
        return super().append(append)


async def idle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_only_pieces_of_a_response_are_told_before_they_are_durable() -> None:
    happened: list[str] = []
    store = Watched(asyncio.get_running_loop(), happened)
    with Journal(store) as journal, OpenAIServer({"replies": REPLIES}) as server:
        async for event in agent_on(server).stream("order 7?", journal=journal, thread="t"):
            name = type(event).__name__
            if not happened or happened[-1] != name:
                happened.append(name)

    assert happened == [
        *("thread_created", "run_started"),
        *("TextDelta", "CallDelta", "model_responded", "tool_started", "ModelResponded", "ToolStarted"),
        *("tool_returned", "ToolReturned"),
        *("TextDelta", "model_responded", "run_finished", "ModelResponded", "RunEnded"),
    ]


class Failing(MemoryStore):
    """Refuses an append that holds an event of one kind, for good."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def append(self, append: Append) -> AppendResult:
        if any(event.kind == self._kind for event in append.events):
            raise StoreRefused("no")
        return super().append(append)


class Streaming(ScriptedModel):
    """Shows the text of its replies in two pieces."""

    async def stream(self, request: Mapping[str, Any], show: Callable[[Delta], None]) -> ModelReply:
        reply = await self.respond(request)
        text = reply.message["content"]
        show(Delta(text=text[:3]))
        show(Delta(text=text[3:]))
        return reply


@pytest.mark.parametrize(
    "kind, last",
    [("tool_started", "TextDelta"), ("tool_returned", "ToolStarted"), ("run_finished", "TextDelta")],
)
async def test_what_could_not_be_recorded_is_never_told(kind: str, last: str) -> None:
    told: list[str] = []
    model = Streaming([say("I look.", call("find", order=7)), say("It is paid.")])
    agent = Agent("shop", model=model, tools=[find], limits=BRIEF)

    async def view(journal: Journal) -> None:
        async for event in agent.stream("order 7?", journal=journal, thread="t"):
            told.append(type(event).__name__)

    with Journal(Failing(kind)) as journal, pytest.raises(StoreRefused):
        await view(journal)

    assert told[-1] == last


async def test_each_response_is_told_with_what_it_used(journal: Journal) -> None:
    with OpenAIServer({"replies": REPLIES}) as server:
        agent = agent_on(server)
        for _ in range(2):
            events = await seen(agent.stream("order 7?", journal=journal, thread="t", key="k"))
            used = [each.usage for each in events if isinstance(each, streaming.ModelResponded)]
            assert [(each.input_tokens, each.output_tokens) for each in used] == [(10, 5), (10, 5)]


# Viewers that go away


async def test_a_viewer_that_walks_away_in_the_middle_loses_nothing_and_can_come_back(
    journal: Journal,
) -> None:
    hold = threading.Event()
    held = {**REPLIES[1], "hold": hold}
    with OpenAIServer({"replies": [REPLIES[0], {"attempts": [held, REPLIES[1]]}]}) as server:
        agent = agent_on(server)
        async with contextlib.aclosing(agent.stream("order 7?", journal=journal, thread="t")) as stream:
            async for event in stream:
                if isinstance(event, streaming.ToolReturned):
                    break
        left = [e.kind for e in read_all(journal, "t")]
        hold.set()
        events = await seen(agent.stream("order 7?", journal=journal, thread="t"))

    assert left[-2:] == ["tool_returned", "run_released"]
    assert found == [7]
    assert isinstance(events[-1], streaming.RunEnded)
    assert events[-1].result.output == "It is paid: 30 in all."
    rebuild.replay(agent.program, "t", read_all(journal, "t"))


async def test_a_viewer_gone_while_a_response_comes_in_leaves_the_run_to_be_asked_again(
    journal: Journal,
) -> None:
    hold = threading.Event()
    held = {**REPLIES[0], "hold": hold, "hold_after": 3}
    with OpenAIServer({"replies": [{"attempts": [held, REPLIES[0]]}, REPLIES[1]]}) as server:
        agent = agent_on(server)
        async with contextlib.aclosing(agent.stream("order 7?", journal=journal, thread="t")) as events:
            async for event in events:
                assert isinstance(event, streaming.TextDelta)
                break
        hold.set()
        result = await agent.run("order 7?", journal=journal, thread="t")

    assert result.output == "It is paid: 30 in all."
    assert [e.kind for e in read_all(journal, "t")].count("model_responded") == 2


async def test_a_viewer_that_is_cancelled_is_a_caller_that_is_cancelled(journal: Journal) -> None:
    hold = threading.Event()
    seen_some = asyncio.Event()
    with OpenAIServer({"replies": [{**REPLIES[0], "hold": hold, "hold_after": 3}]}) as server:

        async def view() -> None:
            async for _ in agent_on(server).stream("order 7?", journal=journal, thread="t"):
                seen_some.set()

        task = asyncio.create_task(view())
        await seen_some.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hold.set()

    assert journal.info("t").state == "waiting"
    assert read_all(journal, "t")[-1].kind == "run_released"


def test_code_without_an_event_loop_follows_a_stream_too(journal: Journal) -> None:
    with OpenAIServer({"replies": REPLIES}) as server:
        agent = agent_on(server)
        events = list(agent.stream_sync("order 7?", journal=journal, thread="t"))
        with contextlib.closing(agent.stream_sync("order 7?", journal=journal, thread="u")) as left:
            next(left)
        with OpenAIServer({"replies": [{"status": 400, "raw": "no"}]}) as refusing, pytest.raises(RunFailed):
            list(agent_on(refusing).stream_sync("order 7?", journal=journal, thread="v"))

    assert isinstance(events[-1], streaming.RunEnded)
    kinds = [event.kind for event in read_all(journal, "u")]
    assert {"run_released", "run_finished"} & set(kinds)
