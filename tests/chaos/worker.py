"""
A worker of the chaos suite: runs agents on threads until all have finished, or until it is killed.

Every tool and every model call writes what it did into the ledger; every acknowledged append is noted too.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from chaos.ledger import ACTED, ASKED, ENTERED, Ledger
from refold import Agent, DidNotHappen, Happened, Journal, ScriptedModel, ToolContext, tool
from refold.agent.scripted import Say, ScriptedCall, call, say
from refold.journal.errors import LeaseLost, StoreUnavailable, ThreadBusy
from refold.journal.postgres import PostgresStore
from refold.journal.store import Append, AppendResult, Outcome

PAUSE_S = 0.008
"""A tool's pauses before and after its effect are shorter than this."""


class Here:
    """What this process writes into, and under which fence it holds each thread."""

    ledger: Ledger
    fences: ClassVar[dict[str, int]] = {}


def _where(name: str, context: ToolContext) -> dict[str, Any]:
    return {
        "tool": name,
        "thread": context.thread,
        "call": context.call,
        "attempt": context.attempt,
        "key": context.idempotency_key,
        "fence": Here.fences.get(context.thread, 0),
    }


def _act(name: str, context: ToolContext) -> str:
    """The effect of every tool but one: a synced line in the ledger."""
    where = _where(name, context)
    Here.ledger.note(ENTERED, **where)
    time.sleep(random.random() * PAUSE_S)
    value = f"{name} {os.urandom(6).hex()}"
    Here.ledger.note(ACTED, durable=True, value=value, at_us=time.time_ns() // 1000, **where)
    time.sleep(random.random() * PAUSE_S)
    return value


def _look_up(n: int, context: ToolContext) -> Any:
    """The reconciler: what the ledger says of exactly this attempt."""
    acted = Here.ledger.acted(context.thread, context.call, context.attempt)
    return Happened(acted[0]["value"]) if acted else DidNotHappen()


@tool(read_only=True)
async def look(n: int, context: ToolContext) -> str:
    """Look."""
    return await asyncio.to_thread(_act, "look", context)


@tool(idempotent=True)
def upsert(n: int, context: ToolContext) -> str:
    """Put."""
    return _act("upsert", context)


@tool
def wire(n: int, context: ToolContext) -> str:
    """Wire; a person decides about a call in doubt."""
    return _act("wire", context)


@tool(in_doubt="tell_model")
async def mail(n: int, context: ToolContext) -> str:
    """Mail; the model is told of a call in doubt."""
    return await asyncio.to_thread(_act, "mail", context)


@tool(in_doubt=_look_up)
def book(n: int, context: ToolContext) -> str:
    """Book; the outside world is asked about a call in doubt."""
    return _act("book", context)


EFFECTS_TABLE = "create table if not exists public.effects (number bigserial, entry text not null)"


@tool(transactional=True)
def pay(n: int, context: ToolContext) -> str:
    """Pay in the journal's own database; what is rolled back was never an effect."""
    where = _where("pay", context)
    Here.ledger.note(ENTERED, **where)
    value = f"pay {os.urandom(6).hex()}"
    entry = {"what": ACTED, "pid": os.getpid(), "value": value, "at_us": time.time_ns() // 1000, **where}
    context.connection.execute("insert into public.effects (entry) values (%s)", (json.dumps(entry),))
    time.sleep(random.random() * PAUSE_S)
    return value


TOOLS = (look, upsert, wire, mail, book, pay)
REPEATABLE = frozenset(each.name for each in TOOLS if each.repeatable and not each.transactional)


def calls_of(turn: int) -> Sequence[ScriptedCall]:
    """What the model wants in a turn: parallel and sequential calls by turns, each tool both ways."""
    names = (
        ("look", "upsert", "wire"),
        ("pay", "wire"),
        ("mail", "book", "upsert"),
        ("pay",),
        ("book", "mail"),
    )
    return [call(name, n=turn * 10 + place) for place, name in enumerate(names[turn % len(names)])]


def make_agent(model: Any) -> Agent:
    """The agent of every thread."""
    return Agent("chaos", model=model, tools=TOOLS, max_steps=1000)


def model_for(thread: str, turns: int) -> ScriptedModel:
    """A model whose every answer holds a token of its own, which tells one asking from another."""

    async def respond(request: Mapping[str, Any]) -> Say:
        turn = sum(1 for message in request["messages"] if message.get("role") == "assistant")
        token = os.urandom(6).hex()
        Here.ledger.note(ASKED, thread=thread, turn=turn, token=token, fence=Here.fences.get(thread, 0))
        await asyncio.sleep(random.random() * PAUSE_S / 2)
        return say(f"token {token}", *(calls_of(turn) if turn < turns else ()))

    return ScriptedModel(respond, keep_requests=False)


class NotingStore:
    """Notes every acknowledged append before anybody else learns of it."""

    def __init__(self, inner: Any, path: Path) -> None:
        self._inner = inner
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, append: Append) -> AppendResult:
        result: AppendResult = self._inner.append(append)
        self._note([append], [result])
        return result

    def append_many(self, appends: Sequence[Append]) -> list[AppendResult]:
        results: list[AppendResult] = self._inner.append_many(appends)
        self._note(appends, results)
        return results

    def take_wire(self) -> Any:
        wire = self._inner.take_wire()
        return None if wire is None else NotingWire(wire, self._note)

    def _note(self, appends: Sequence[Append], results: Sequence[AppendResult]) -> None:
        for append, result in zip(appends, results, strict=True):
            if result.outcome in (Outcome.APPENDED, Outcome.DUPLICATE):
                seq = append.expected + len(append.events)
                line = json.dumps([append.thread, seq, append.hashes[-1].hex(), result.outcome.value])
                os.write(self._file, f"{line}\n".encode())


class NotingWire:
    """Notes what a wire's answers acknowledge."""

    def __init__(self, inner: Any, note: Callable[[Sequence[Append], Sequence[AppendResult]], None]) -> None:
        self._inner = inner
        self._acknowledged = note
        self._sent: Sequence[Append] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, appends: Sequence[Append]) -> None:
        self._sent = appends
        self._inner.send(appends)

    def receive(self) -> list[AppendResult] | None:
        results: list[AppendResult] | None = self._inner.receive()
        if results is not None:
            self._acknowledged(self._sent, results)
        return results


class NotingJournal(Journal):
    """Knows under which fence this process holds each thread."""

    def acquire(self, thread: str, **options: Any) -> Any:
        tenure = super().acquire(thread, **options)
        Here.fences[thread] = tenure.fence
        return tenure


def open_journal(order: Mapping[str, Any]) -> NotingJournal:
    """The journal of a worker, as its order says."""
    folder = Path(order["folder"])
    Here.ledger = Ledger(folder / "ledger")
    random.seed(os.urandom(8))
    while True:
        try:
            store = PostgresStore.open(
                order["dsn"],
                unsafe=order.get("unsafe", False),
                prepare=order.get("prepare", True),
                install=False,
            )
            break
        except StoreUnavailable:
            # Started while the server is away.
            time.sleep(0.05)
    return NotingJournal(
        NotingStore(store, folder / "acknowledged"),  # type: ignore[arg-type]
        lease_ttl_s=order.get("lease_ttl_s", 10.0),
        patience_s=order.get("patience_s", 5.0),
    )


class Reporter:
    """Tells the supervisor what happens, through a FIFO: one short line each."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(Path(folder) / "reports", os.O_WRONLY)

    def __call__(self, what: str, **more: Any) -> None:
        os.write(self._file, (json.dumps({"what": what, "pid": os.getpid(), **more}) + "\n").encode())


async def _see_through(journal: Journal, thread: str, turns: int, report: Reporter) -> None:
    """Run or resume one thread again and again until it has finished."""
    agent = make_agent(model_for(thread, turns))
    while True:
        try:
            result = await agent.run("go", journal=journal, thread=thread, key="k", wait=False)
            if result.status == "finished":
                report("finished", thread=thread)
                return
            if "--release" in result.reason:
                await agent.resume(journal=journal, thread=thread, release=True, wait=False)
            report(result.status, thread=thread)
        except (ThreadBusy, LeaseLost, StoreUnavailable) as error:
            report(type(error).__name__, thread=thread)
        await asyncio.sleep(random.random() * 0.03)


def work(order: Mapping[str, Any]) -> None:
    """Work as ordered until every thread has finished."""
    report = Reporter(order["folder"])
    journal = open_journal(order)
    threads = list(order["threads"])
    random.shuffle(threads)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for thread in threads:
                group.create_task(_see_through(journal, thread, order["turns"], report))

    report("ready")
    asyncio.run(all_of_them())
    journal.close()
    report("done")
