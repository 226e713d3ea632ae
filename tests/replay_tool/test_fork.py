"""Forks at every seq: each has a valid future, the origin is as it was, and no effect of the prefix is repeated."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from typing import Any

import pytest
import refold
from appends import Pen, event
from msgspec import structs
from refold import Agent, Journal, Run, ScriptedModel, ToolContext, ToolError, answers, program, tool
from refold.agent.scripted import call, say
from refold.journal.errors import ThreadNotFound, UsageError
from refold.journal.memory import MemoryStore
from refold.replay import events as ev
from refold.replay import rebuild
from refold.replay.fork import fork
from refold.replay.runner import read_all
from refold.replay.verification import verify

acts: dict[str, set[str]] = defaultdict(set)
"""Which calls each idempotency key was used for."""


@tool(read_only=True)
async def lookup(context: ToolContext, order: int) -> dict[str, Any]:
    """Look an order up."""
    acts[context.idempotency_key].add(f"lookup {order}")
    return {"order": order}


@tool(idempotent=True)
async def refund(context: ToolContext, order: int) -> str:
    """Refund an order."""
    acts[context.idempotency_key].add(f"refund {order}")
    return f"refunded {order}"


@tool
async def mail(context: ToolContext, to: str) -> str:
    """Mail somebody."""
    acts[context.idempotency_key].add(f"mail {to}")
    return f"mailed {to}"


@tool
async def fail(context: ToolContext) -> str:
    """Fail."""
    raise ToolError("no")


TOOLS = [lookup, refund, mail, fail]
SCRIPT = [
    [call("lookup", order=1), call("refund", order=1), call("mail", to="kim")],
    [call("fail"), call("lookup", order=2)],
    *[[call("lookup", order=n), call("mail", to=f"p{n}")] for n in range(3, 7)],
    "First done.",
    [call("refund", order=9)],
    "Second done.",
    "Third done.",
]


def clerk(script: Any = SCRIPT) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(script)
    return Agent("clerk", model=model, tools=TOOLS, instructions="You refund."), model


@pytest.fixture
async def origin(memory: Journal) -> Journal:
    acts.clear()
    agent, _ = clerk()
    await agent.run("first", journal=memory, thread="t")
    await agent.run("second", journal=memory, thread="t")
    return memory


async def test_a_fork_at_every_seq_goes_on_to_a_valid_end(origin: Journal) -> None:
    head = origin.info("t").head
    assert head >= 40
    before = origin.info("t").head_hash
    events = read_all(origin, "t")
    bodies = [ev.decode_event(event) for event in events]
    for at in range(1, head + 1):
        agent, model = clerk()
        made = fork(origin, "t", at=at)
        copied = read_all(origin, made.thread)[:at]
        assert [(e.seq, e.id, e.hash, e.body) for e in copied] == [
            (e.seq, e.id, e.hash, e.body) for e in events[:at]
        ]
        if made.unfinished:
            result = await agent.resume(journal=origin, thread=made.thread, wait=False)
        else:
            result = await agent.run("other", journal=origin, thread=made.thread, wait=False)
        assert result.status in ("finished", "parked")
        if result.status == "parked":
            assert "mail" in {each.name for each in result.pending}
            assert result.reason
        recorded = sum(isinstance(body, ev.ModelResponded) for body in bodies[:at])
        asked = sum(e.kind == "model_responded" for e in read_all(origin, made.thread)) - recorded
        assert model.count == asked, "a response of the prefix is never asked for again"
        rebuild.replay(agent.program, made.thread, read_all(origin, made.thread))
    after = origin.info("t")
    assert (after.head, after.head_hash, after.fence) == (head, before, 2)
    assert all(each.sound for each in verify(origin)), [
        line for each in verify(origin) for line in each.lines()
    ]
    assert {key: calls for key, calls in acts.items() if len(calls) > 1} == {}


async def test_a_call_open_at_the_cut_takes_the_outcome_it_had(origin: Journal) -> None:
    """The mail is not sent a second time, and nobody is asked: the origin knows what became of it."""
    bodies = [ev.decode_event(event) for event in read_all(origin, "t")]
    at = next(
        seq for seq, body in enumerate(bodies, 1) if isinstance(body, ev.ToolStarted) and body.tool == "mail"
    )
    sent = sum(1 for calls in acts.values() for each in calls if each == "mail kim")
    agent, _ = clerk()

    made = fork(origin, "t", at=at, name="f")
    assert set(made.outcomes) == {"r1/2.1.1", "r1/2.2.1", "r1/2.3.1"}
    result = await agent.resume(journal=origin, thread="f")

    assert result.status == "finished"
    told = [ev.decode_event(e) for e in read_all(origin, "f") if e.kind == "tool_resolved"]
    assert {body.call for body in told if isinstance(body, ev.ToolResolved)} == set(made.outcomes)
    assert all(getattr(body, "by", "") == "origin" for body in told)
    assert sum(1 for calls in acts.values() for each in calls if each == "mail kim") == sent


async def test_a_call_that_had_begun_has_one_key_in_fork_and_origin_and_one_that_had_not_its_own_in_each(
    memory: Journal,
) -> None:
    keys: dict[str, list[str]] = defaultdict(list)

    @tool(approval=True)
    async def burn(context: ToolContext) -> None:
        """Burn."""
        keys["burn"].append(context.idempotency_key)

    @tool(timeout_s=0.01)
    async def pay(context: ToolContext) -> None:
        """Pay."""
        keys["pay"].append(context.idempotency_key)
        if context.attempt == 1:
            await asyncio.Event().wait()

    @program
    async def both(run: Run) -> None:
        await run.gather(run.tool(burn), run.tool(pay))

    parked = await refold.run(both, journal=memory, thread="t")
    assert [each.status for each in parked.pending] == ["waits for approval", "in doubt"]
    fork(memory, "t", name="f")
    for thread in ("t", "f"):
        answers.approve(memory, thread, "r1/1.1.1", approved=True)
        answers.resolve(memory, thread, "r1/1.2.1", did_not_happen=True)
        assert (await refold.resume(both, journal=memory, thread=thread)).status == "finished"

    assert (len(keys["pay"]), len(set(keys["pay"]))) == (3, 1)
    assert (len(keys["burn"]), len(set(keys["burn"]))) == (2, 2)


async def test_new_calls_get_keys_and_randomness_of_their_own(memory: Journal) -> None:
    @program
    async def dice(run: Run) -> list[float]:
        await run.sleep(0)
        first = run.random.random()
        await run.sleep(0)
        return [first, run.random.random(), str(run.uuid())]  # type: ignore[list-item]

    whole = await refold.run(dice, journal=memory, thread="t")
    made = fork(memory, "t", at=4)
    again = await refold.resume(dice, journal=memory, thread=made.thread)
    assert again.output[0] == whole.output[0]
    assert again.output[1:] != whole.output[1:]
    rebuild.replay(dice, made.thread, read_all(memory, made.thread))


@pytest.mark.parametrize(
    "kind, value, words",
    [
        ("run_started", "other input", "other input"),
        ("model_responded", "I will not.", "I will not."),
        ("model_responded", {"content": None, "tool_calls": []}, '"content": null'),
        ("tool_returned", {"order": 77}, '{"order":77}'),
    ],
)
async def test_an_edited_event_changes_what_follows(
    origin: Journal, kind: str, value: Any, words: str
) -> None:
    seq = next(e.seq for e in read_all(origin, "t") if e.kind == kind)
    agent, model = clerk([*SCRIPT[:1], *[say("Changed.")] * 3])

    made = fork(origin, "t", replace=(seq, value))
    result = await agent.resume(journal=origin, thread=made.thread)

    assert (made.seq, made.replaced) == (seq - 1, seq)
    assert result.status == "finished"
    assert [e.kind for e in read_all(origin, made.thread)[seq - 1 : seq + 1]] == ["thread_forked", kind]
    rebuild.replay(agent.program, made.thread, read_all(origin, made.thread))
    if words.startswith("other"):
        assert model.requests[0]["messages"][1]["content"] == words
    elif kind == "tool_returned":
        assert words in [m["content"] for m in model.requests[0]["messages"] if m["role"] == "tool"]
    else:
        assert result.output == ("I will not." if isinstance(value, str) else "")
        assert model.count == 0


async def test_a_fork_of_another_definition_goes_on_once_that_is_accepted(origin: Journal) -> None:
    script = ScriptedModel(SCRIPT)
    other = Agent("clerk", model=script, tools=TOOLS, instructions="You refund quickly.")
    made = fork(origin, "t", at=12)
    with pytest.raises(refold.Divergence):
        await other.resume(journal=origin, thread=made.thread)
    result = await other.resume(journal=origin, thread=made.thread, on_divergence="accept")
    assert result.status == "finished"
    assert script.requests[0]["messages"][0]["content"] == "You refund quickly."


async def test_forks_of_forks_and_names(origin: Journal) -> None:
    first = fork(origin, "t", at=9)
    second = fork(origin, first.thread, at=10)
    third = fork(origin, "t", at=9)
    assert [first.thread, second.thread, third.thread] == ["t~9", "t~9~10", "t~9.2"]
    agent, _ = clerk()
    assert (await agent.resume(journal=origin, thread=second.thread)).status == "finished"
    with pytest.raises(UsageError, match="already"):
        fork(origin, "t", at=9, name="t")
    with pytest.raises(ThreadNotFound):
        fork(origin, "nope")
    head = origin.info("t").head
    for wrong in (
        {"at": 0},
        {"at": head + 1},
        {"replace": (head + 1, 1)},
        {"replace": (1, 1)},
        {"at": 9, "replace": (7, 1)},
    ):
        with pytest.raises(UsageError):
            fork(origin, "t", name="none", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be replaced"):
        fork(origin, "t", replace=(4, 1))
    with pytest.raises(ThreadNotFound):
        origin.info("none")


class Dies(MemoryStore):
    """A store whose process dies after some more calls that write."""

    left: int | None = None

    def __getattribute__(self, name: str) -> Any:
        if name in ("create", "acquire", "append", "append_many", "send", "release", "fork"):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left = None if self.left is None else self.left - 1
        return super().__getattribute__(name)


def test_a_fork_that_broke_off_anywhere_left_nothing_that_could_be_resumed() -> None:
    """Of a thread longer than one append takes: a part of it would look like a whole thread."""
    store = Dies()
    with Journal(store) as journal:
        scribe, texts = (
            Pen(store, "t"),
            [event(ev.encode_body(ev.Patched(at=1, run="r1", id="x")), "patched")],
        )
        scribe.write(event(ev.encode_body(ev.ThreadCreated(at=1, uid="u")), "thread_created"))
        for _ in range(3):
            scribe.write(*(structs.replace(each, id=uuid.uuid4()) for each in texts * 500))
        for calls in range(20):
            store.left = calls
            try:
                made = fork(journal, "t", name="f")
            except KeyboardInterrupt:
                store.left = None
                with pytest.raises(ThreadNotFound):
                    journal.info("f")
            else:
                assert (made.seq, journal.info("f").head) == (1501, 1502)
                return
    pytest.fail("never got to its end")


async def test_a_fork_works_on_postgres(pg_dsn: str) -> None:
    acts.clear()
    with Journal.open(pg_dsn) as journal:
        agent, _ = clerk()
        await agent.run("first", journal=journal, thread="t")
        made = fork(journal, "t", at=7)
        assert (await agent.resume(journal=journal, thread=made.thread)).status == "finished"
        assert all(each.sound for each in verify(journal))
