"""What must hold of whole threads in a real database."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import psycopg
import pytest
import refold
from launcher import Launcher, awaited
from openai_server import OpenAIServer
from refold import Agent, Journal, ScriptedModel, tool
from refold.agent.overview import overview
from refold.agent.scripted import call, say
from refold.journal.envelope import NewEvent, chain
from refold.replay import rebuild
from refold.replay.runner import read_all
from refold.replay.timeline import Timeline

KILLED = '''
import sys
from refold import Agent, Journal, ScriptedModel, tool
from refold.agent.scripted import call


@tool
def wire(amount: int) -> str:
    """Wire money."""
    with open("effects", "a") as effects:
        effects.write(f"wired {amount}\\n")
    return "wired"


agent = Agent("bank", model=ScriptedModel([call("wire", amount=5), "done"]), tools=[wire])
with Journal.open() as journal:
    agent.run_sync("wire 5", journal=journal, thread="t")
'''


@tool
def wire(amount: int) -> str:
    """Wire money."""
    raise AssertionError("it must not run again")


def killed_inside_a_tool(launcher: Launcher, folder: Path, dsn: str) -> None:
    script = folder / "bank.py"
    script.write_text(KILLED)
    with awaited(folder / "reached") as wait:
        process = launcher.launch(
            folder, script=script, env={"REFOLD_DSN": dsn}, point=["close", 1], fifo=folder / "reached"
        )
        wait()
        process.kill()


def test_a_new_message_instead_of_a_resume_is_refused_and_superseding_runs_nothing_again(
    launcher: Launcher, tmp_path: Path, pg_dsn: str
) -> None:
    """H11: a call that a kill left open never poisons the next request."""
    killed_inside_a_tool(launcher, tmp_path, pg_dsn)
    model = ScriptedModel(lambda request: say("as you wish"))
    agent = Agent("bank", model=model, tools=[wire])

    with Journal.open(pg_dsn) as journal:
        before = journal.info("t").head
        with pytest.raises(refold.RunUnfinished, match="another input"):
            agent.run_sync("never mind", journal=journal, thread="t")
        assert journal.info("t").head == before
        assert model.count == 0

        result = agent.run_sync("never mind", journal=journal, thread="t", supersede=True)
        events = read_all(journal, "t")

    assert result.output == "as you wish"
    assert (tmp_path / "effects").read_text() == "wired 5\n"
    (request,) = model.requests
    roles = [message["role"] for message in request["messages"]]
    assert roles == ["user", "assistant", "tool", "user"]
    assert request["messages"][2]["tool_call_id"] == request["messages"][1]["tool_calls"][0]["id"]
    assert "may or may not have happened" in request["messages"][2]["content"]
    assert [event.kind for event in events].count("tool_started") == 1
    cancelled = next(event for event in events if event.kind == "run_cancelled")
    assert json.loads(cancelled.body)["reason"] == "superseded"
    rebuild.load("t", events)


def test_calls_with_one_provider_id_are_two_executions_with_two_results(pg_dsn: str) -> None:
    """H06: through HTTP and litellm, as providers really send it."""
    done: list[int] = []

    @tool
    def refund(order: int) -> str:
        """Refund an order."""
        done.append(order)
        return f"refunded {order}"

    calls = [{"name": "refund", "arguments": {"order": order}, "id": "call_1"} for order in (1, 2)]
    with OpenAIServer({"replies": [{"calls": calls}, {"text": "both"}]}) as server:
        agent = Agent(
            "twins",
            model="openai/scripted",
            tools=[refund],
            params={"api_base": server.base_url, "api_key": "sk-none"},
        )
        with Journal.open(pg_dsn) as journal:
            result = agent.run_sync("go", journal=journal, thread="t")
            events = read_all(journal, "t")

    assert result.output == "both"
    assert sorted(done) == [1, 2]
    returned = [json.loads(event.body) for event in events if event.kind == "tool_returned"]
    assert {each["call"]: each["result"] for each in returned} == {
        "r1/2.1.1": "refunded 1",
        "r1/2.2.1": "refunded 2",
    }
    asked, *answers = server.requests[1]["messages"][1:]
    ids = [each["id"] for each in asked["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(each["tool_call_id"], each["content"]) for each in answers] == [
        (ids[0], "refunded 1"),
        (ids[1], "refunded 2"),
    ]
    assert b"sk-none" not in b"".join(event.body for event in events)


def test_an_event_of_an_unknown_kind_can_be_looked_at_and_stops_a_resume(pg_dsn: str) -> None:
    with Journal.open(pg_dsn) as journal:
        agent = Agent("a", model=ScriptedModel([]), tools=[])
        with pytest.raises(refold.RunFailed):
            agent.run_sync("go", journal=journal, thread="t")
        insert_by_hand(journal, pg_dsn, "t", "wormhole_opened", b'{"at":1,"kind":"wormhole_opened"}')
        seq = journal.info("t").head

        assert [info.thread for info in journal.threads()] == ["t"]
        timeline = Timeline()
        lines = [timeline.row(event) for event in read_all(journal, "t")]
        assert len(lines) == seq
        assert any("wormhole_opened" in each for each in overview(journal, "t").passed_over)
        for attempt in (
            lambda: agent.resume_sync(journal=journal, thread="t"),
            lambda: agent.run_sync("and now?", journal=journal, thread="t"),
        ):
            with pytest.raises(refold.UnknownEvent, match=f"seq {seq}.*wormhole_opened"):
                attempt()
        assert journal.info("t").head == seq
        assert journal.info("t").holder is None


def insert_by_hand(journal: Journal, dsn: str, thread: str, kind: str, body: bytes) -> None:
    """As the database's owner could; the chain is kept, so that nothing but the kind is strange."""
    info = journal.info(thread)
    event = NewEvent(uuid.uuid4(), kind, 1, body)
    digest = chain(info.head_hash, info.head + 1, event)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "insert into refold.events (thread, seq, id, kind, version, fence, xid, recorded_at, hash, body) "
            "values (%s, %s, %s, %s, 1, %s, refold.current_xid(), refold.now(), %s, %s)",
            [thread, info.head + 1, event.id, kind, info.fence, digest, body],
        )
        connection.execute(
            "update refold.threads set head = head + 1, head_hash = %s, head_xid = refold.current_xid() "
            "where thread = %s",
            [digest, thread],
        )


TURNS = 500


def test_a_tool_turn_stores_the_same_bytes_at_turn_10_and_at_turn_500(pg_dsn: str) -> None:
    """H29: what a turn stores is its own content; nothing of the turns before is stored again."""

    @tool(read_only=True)
    def look(place: int) -> str:
        """Look somewhere."""
        return "nothing to see here " * 5

    def reply(request: Any) -> Any:
        turn = sum(message["role"] == "assistant" for message in request["messages"]) + 1
        return call("look", place=1000 + turn) if turn <= TURNS else say("enough")

    model = ScriptedModel(reply, keep_requests=False)
    agent = Agent("walker", model=model, tools=[look], instructions="Look around. " * 40, max_steps=TURNS + 1)
    with Journal.open(pg_dsn) as journal:
        agent.run_sync("go", journal=journal, thread="t")
    with psycopg.connect(pg_dsn) as connection:
        rows = connection.execute(
            "select seq, kind, octet_length(body), pg_column_size(e.*) from refold.events e order by seq"
        ).fetchall()

    bodies, stored = defaultdict[int, int](int), defaultdict[int, int](int)
    turn = 0
    for _, kind, body, row in rows:
        turn += kind == "model_responded"
        bodies[turn] += body
        stored[turn] += row
    assert turn == TURNS + 1
    # A turn's own numbers grow from two digits to three or four: call ids, ranges, ids of the provider.
    assert bodies[500] - bodies[10] <= 40
    assert stored[500] - stored[10] <= 40
