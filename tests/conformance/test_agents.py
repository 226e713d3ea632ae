"""Agents on every store: ten at once, whatever stands between them and the log."""

from __future__ import annotations

import asyncio

from appends import verify
from refold import Agent, Journal, ScriptedModel, ToolContext, tool
from refold.agent.scripted import call
from refold.journal.store import Store, ThreadState
from refold.replay import rebuild
from refold.replay.runner import read_all


async def test_ten_agents_at_once_do_everything_once_and_replay(store: Store) -> None:
    """H23: the suite is also run through a pooler in transaction mode with two connections."""
    done: list[str] = []

    @tool
    def act(name: str, context: ToolContext) -> str:
        """Act."""
        done.append(f"{context.thread} {name}")
        return f"did {name}"

    def agent() -> Agent:
        script = [[call("act", name="a"), call("act", name="b")], call("act", name="c"), "done"]
        return Agent("ten", model=ScriptedModel(script), tools=[act])

    threads = [f"t{number}" for number in range(10)]
    with Journal(store) as journal:
        results = await asyncio.gather(*(agent().run("go", journal=journal, thread=each) for each in threads))
        follow_up = await agent().resume(journal=journal, thread="t0")

        assert [result.output for result in results] == ["done"] * 10
        assert follow_up.status == "finished"
        assert sorted(done) == sorted(f"{thread} {name}" for thread in threads for name in "abc")
        assert {info.state for info in journal.threads()} == {ThreadState.FINISHED}
        for thread in threads:
            events = read_all(journal, thread)
            verify(events)
            rebuild.replay(agent().program, thread, events)
