"""Results inside and outside the limit: recorded whole, or a failure of that call alone."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from died import died_at
from openai_server import OpenAIServer
from refold import Agent, Journal, tool
from refold.replay import events as ev
from refold.replay import rebuild
from refold.replay.door import RESULT_BYTES_MAX
from refold.replay.runner import read_all
from wires import KEY

MB = 1024 * 1024
made: list[int] = []


@tool(idempotent=True, retries=3)
def dump(megabytes: int) -> str:
    """Give so much text."""
    made.append(megabytes)
    return "x" * (megabytes * MB)


@pytest.fixture
def journal() -> Any:
    made.clear()
    with Journal.memory() as opened:
        yield opened


def asking(megabytes: int) -> dict[str, Any]:
    return {"calls": [{"name": "dump", "arguments": {"megabytes": megabytes}}]}


def agent_on(server: OpenAIServer) -> Agent:
    return Agent(
        "dumper",
        model="openai/gpt-4o-mini",
        params={"api_base": server.base_url, "api_key": KEY},
        tools=[dump],
    )


async def test_a_result_of_a_megabyte_is_recorded_once_and_told_whole(journal: Journal) -> None:
    """H28: and stored once, however many requests hold it."""
    with OpenAIServer({"replies": [asking(1), asking(0), {"text": "done"}]}) as server:
        agent = agent_on(server)
        await agent.run("go", journal=journal, thread="t")
        told = [
            message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"
        ]

    events = read_all(journal, "t")
    assert [len(text) for text in told] == [MB, 0]
    assert MB < sum(len(event.body) for event in events) < 1.1 * MB
    rebuild.replay(agent.program, "t", events)


@pytest.mark.parametrize("megabytes", [16, 50])
async def test_a_result_over_the_limit_is_the_failure_of_that_call_and_is_not_tried_again(
    journal: Journal, megabytes: int
) -> None:
    """H28: a permanent error that names tool, size and limit; the tool did run, so never a retry."""
    with OpenAIServer({"replies": [asking(megabytes), {"text": "too much"}]}) as server:
        agent = agent_on(server)
        result = await agent.run("go", journal=journal, thread="t")
        told = server.requests[-1]["messages"][-1]["content"]

    events = read_all(journal, "t")
    (failed,) = [body for body in map(ev.decode_event, events) if isinstance(body, ev.ToolFailed)]
    assert (failed.effect, failed.final, failed.attempt) == ("done", True, 1)
    for part in ("'dump'", str(RESULT_BYTES_MAX), str(megabytes * MB + 2)):
        assert part in failed.error.message
        assert part in told
    assert "did happen" in told
    assert made == [megabytes]
    assert result.output == "too much"
    assert sum(len(event.body) for event in events) < 10_000
    rebuild.replay(agent.program, "t", events)


async def test_a_thread_with_a_large_result_is_taken_up_in_little_memory(journal: Journal) -> None:
    """H28: the log once, the conversation once, and one request on its way out."""
    with OpenAIServer({"replies": [asking(10), {"text": "done"}]}) as server:
        agent = agent_on(server)
        await agent.run("go", journal=journal, thread="t")
        upto = next(event.seq for event in read_all(journal, "t") if event.kind == "tool_returned")
        with died_at(journal, "t", upto) as left:
            tracemalloc.start()
            try:
                rebuild.replay(agent.program, "t", read_all(journal, "t"))
                peak_bytes = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert (await agent.run("go", journal=left, thread="t")).output == "done"

    assert made == [10]
    assert peak_bytes < 10 * 10 * MB
