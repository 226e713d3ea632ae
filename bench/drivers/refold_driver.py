"""refold itself, and the raw floor beside it in the same process, in turns. Job: dsn, and what the task names."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import psycopg
import work
from refold import Agent, Journal, Run, program, tool
from refold import run as run_program
from refold.journal.envelope import NewEvent, chain
from refold.journal.postgres import PostgresStore
from refold.journal.store import Append, ThreadState
from refold.journal.wire import Wire
from refold.replay.ports import ModelReply
from refold.replay.rebuild import load, replay
from refold.replay.runner import read_all

INSERT = "insert into raw (thread, seq, body) values (%s, %s::int8, %b)"
REQUEST_BYTES, STARTED_BYTES, RETURNED_BYTES = 690, 200, 1090
"""Body bytes of the three events of a turn, for the raw floor; a run's own log gives the true ones."""


class Scripted:
    """The fake model: the text and one call, until its turns are over."""

    name = "fake"

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.turn = 0

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        turn, self.turn = self.turn, self.turn + 1
        message: dict[str, Any] = {"role": "assistant", "content": work.text(turn)}
        if turn < self.turns:
            function = {"name": "look", "arguments": f'{{"n": {turn}}}'}
            message["tool_calls"] = [{"id": work.call_id(turn), "type": "function", "function": function}]
        return ModelReply(message=message, finish_reason="stop")


def agent(turns: int, stamps: list[float] | None = None) -> Agent:
    @tool
    async def look(n: int) -> str:
        """Look something up."""
        if stamps is not None:
            stamps.append(time.perf_counter())
        return work.result(n)

    return Agent("bench", model=Scripted(turns), tools=[look], max_steps=turns + 1)


class Raw:
    """The floor: one connection, autocommit, a prepared insert, bytes as bytes."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.cursor = self.connection.cursor()
        self.cursor.execute(
            "create table if not exists raw (thread text, seq int8, body bytea, primary key (thread, seq))"
        )
        self.thread = str(uuid.uuid4())
        self.seq = 0

    def insert(self, body: bytes) -> None:
        self.seq += 1
        self.cursor.execute(INSERT, (self.thread, self.seq, body), prepare=True, binary=True)

    def wal(self) -> int:
        row = self.cursor.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def row(self, query: str, *params: Any) -> Any:
        return self.cursor.execute(query, params).fetchone()


def new_thread() -> str:
    return str(uuid.uuid4())


def run_turns(journal: Journal, turns: int, threads: int = 1, stamps: list[float] | None = None) -> float:
    """Seconds of *threads* runs of *turns* turns at once, in one event loop."""

    async def go() -> float:
        runs = [(agent(turns, stamps), new_thread()) for _ in range(threads)]
        started = time.perf_counter()
        await asyncio.gather(*(each.run("go", journal=journal, thread=name) for each, name in runs))
        return time.perf_counter() - started

    return asyncio.run(go())


def two_inserts(raw: Raw, turns: int) -> float:
    first, second = b"x" * (REQUEST_BYTES + STARTED_BYTES), b"y" * RETURNED_BYTES

    def go() -> None:
        for _ in range(turns):
            raw.insert(first)
            raw.insert(second)

    return work.timed(go)


def turns(job: work.Job) -> dict[str, Any]:
    """A run's time, and that of two raw inserts a turn just before and after it."""
    n, threads = job["turns"], job["threads"]
    raw = Raw(job["dsn"])
    two_inserts(raw, 20)
    with Journal.open(job["dsn"]) as journal:
        run_turns(journal, 20)
        before = two_inserts(raw, min(n, 200)) / min(n, 200)
        cpu = time.process_time()
        seconds = run_turns(journal, n, threads)
        cpu = time.process_time() - cpu
        after = two_inserts(raw, min(n, 200)) / min(n, 200)
    total = n * threads
    return {"seconds": seconds, "raw_turn_s": (before + after) / 2, "cpu_per_turn_s": cpu / total}


def interleaved(job: work.Job) -> dict[str, Any]:
    """Short runs and raw inserts by turns, so that both meet the same weather."""
    raw = Raw(job["dsn"])
    pairs: list[tuple[float, float]] = []
    size = job["turns"]
    with Journal.open(job["dsn"]) as journal:
        run_turns(journal, 50)
        for _ in range(job["blocks"]):
            pairs.append((two_inserts(raw, size) / size, run_turns(journal, size) / size))
    return {"raw_turn_s": [a for a, _ in pairs], "turn_s": [b for _, b in pairs]}


def growth(job: work.Job) -> dict[str, Any]:
    """The last turns of a long run, and the first ones of a short run made right after it."""
    with Journal.open(job["dsn"]) as journal:
        run_turns(journal, 50)
        late: list[float] = []
        run_turns(journal, job["turns"], stamps=late)
        early: list[float] = []
        for _ in range(5):
            run_turns(journal, 60, stamps=early)
    gaps = [b - a for a, b in itertools.pairwise(late)]
    first = [early[k + i + 1] - early[k + i] for k in range(0, len(early), 60) for i in range(5, 58)]
    return {"turn_10_s": statistics.median(first), "turn_last_s": statistics.median(gaps[-265:])}


def append(job: work.Job) -> dict[str, Any]:
    """One event of 1 KB: the store's call, and the tenure's (through the writer thread), against one raw insert."""
    raw, body, blocks, size = Raw(job["dsn"]), b"x" * 1024, job["blocks"], 50
    measured: dict[str, list[float]] = {
        "raw_s": [],
        "store_s": [],
        "store_cpu_s": [],
        "tenure_s": [],
        "tenure_cpu_s": [],
    }
    store = PostgresStore.open(job["dsn"])
    journal = Journal(store)
    tenure = journal.acquire(new_thread())
    held = journal.acquire(new_thread())
    head, head_hash = held.head, held.head_hash

    def by_store() -> None:
        nonlocal head, head_hash
        for _ in range(size):
            event = NewEvent(uuid.uuid4(), "step_recorded", 1, body)
            after = chain(head_hash, head + 1, event)
            store.append(
                Append(
                    thread=held.thread,
                    expected=head,
                    expected_hash=head_hash,
                    fence=held.fence,
                    events=(event,),
                    hashes=(after,),
                    ttl_s=30.0,
                    state=ThreadState.RUNNING,
                    wake_at_us=None,
                    consumed=(),
                )
            )
            head, head_hash = head + 1, after

    def by_tenure() -> None:
        for _ in range(size):
            event = NewEvent(uuid.uuid4(), "step_recorded", 1, body)
            tenure.append([event], state=ThreadState.RUNNING).result()

    def by_raw() -> None:
        for _ in range(size):
            raw.insert(body)

    for warm in (by_store, by_tenure, by_raw):
        warm()
    for _ in range(blocks):
        measured["raw_s"].append(work.timed(by_raw) / size)
        for name, go in (("store", by_store), ("tenure", by_tenure)):
            cpu = time.process_time()
            measured[f"{name}_s"].append(work.timed(go) / size)
            measured[f"{name}_cpu_s"].append((time.process_time() - cpu) / size)
    journal.close()
    return measured


@program
async def steps(run: Run, n: int) -> int:
    for turn in range(n):
        await run.step(looked_up, turn)
    return n


async def looked_up(turn: int) -> str:
    return work.result(turn)


def step(job: work.Job) -> dict[str, Any]:
    """A program of recorded steps and nothing else."""
    with Journal.open(job["dsn"]) as journal:

        def go(n: int) -> None:
            asyncio.run(run_program(steps, n, journal=journal, thread=new_thread()))

        go(20)
        return {"step_s": work.timed(lambda: go(job["turns"])) / job["turns"]}


def many(job: work.Job) -> dict[str, Any]:
    """Many runs at once, how large the shared commits were, and a bare loop of batches of that size."""
    n, threads = job["turns"], job["threads"]
    sizes: list[int] = []
    sent = Wire.send

    def counting(self: Wire, appends: Sequence[Append]) -> None:
        sizes.append(sum(len(each.events) for each in appends))
        sent(self, appends)

    with Journal.open(job["dsn"]) as journal:
        run_turns(journal, 5, threads)
        Wire.send = counting  # type: ignore[method-assign]
        cpu = time.process_time()
        seconds = run_turns(journal, n, threads)
        cpu = time.process_time() - cpu
    batch = max(1, round(sum(sizes) / max(1, len(sizes))))
    return {
        "seconds": seconds,
        "events": sum(sizes),
        "batch": batch,
        "cpu_per_turn_s": cpu / (n * threads),
        "floor_events_per_s": bare_batches(job["dsn"], batch),
    }


def bare_batches(dsn: str, batch: int, total: int = 6000) -> float:
    """Events a second of a loop that inserts *batch* rows of 700 bytes with one statement and one commit."""
    raw, body = Raw(dsn), b"x" * 700
    raw.insert(body)
    rows = "unnest(%b::int8[], %b::bytea[]) u(seq, body)"
    insert = f"insert into raw (thread, seq, body) select %s, u.seq, u.body from {rows}"

    def go() -> None:
        for _ in range(max(1, total // batch)):
            seqs = list(range(raw.seq + 1, raw.seq + batch + 1))
            raw.seq += batch
            raw.cursor.execute(insert, (raw.thread, seqs, [body] * batch), prepare=True, binary=True)

    return max(1, total // batch) * batch / work.timed(go)


def many_appends(job: work.Job) -> dict[str, Any]:
    """Many tenures that append one 1 KB event after another, each waiting for its own; no agent around it."""
    body, each, threads = b"x" * 1024, job["turns"], job["threads"]
    with Journal.open(job["dsn"]) as journal:
        tenures = [journal.acquire(new_thread()) for _ in range(threads)]
        left, done = [each] * threads, threading.Event()
        unfinished = threads

        def again(place: int) -> None:
            nonlocal unfinished
            if not left[place]:
                unfinished -= 1
                if not unfinished:
                    done.set()
                return
            left[place] -= 1
            event = NewEvent(uuid.uuid4(), "step_recorded", 1, body)
            future: Future[Any] = tenures[place].append([event], state=ThreadState.RUNNING)
            future.add_done_callback(lambda _: again(place))

        def go() -> None:
            for place in range(threads):
                again(place)
            done.wait(120)

        seconds = work.timed(go)
    return {"events_per_s": each * threads / seconds, "floor_events_per_s": bare_batches(job["dsn"], threads)}


def space(job: work.Job) -> dict[str, Any]:
    """WAL of a run from its 50th turn on, and what its tables hold; in a database of its own."""
    raw, n = Raw(job["dsn"]), job["turns"]
    lsn: list[int] = []

    @tool
    async def look(n: int) -> str:
        """Look something up."""
        if n in (50, job["turns"] - 1):
            lsn.append(raw.wal())
        return work.result(n)

    with Journal.open(job["dsn"]) as journal:
        raw.cursor.execute("checkpoint")
        thread = new_thread()
        each = Agent("bench", model=Scripted(n), tools=[look], max_steps=n + 1)
        asyncio.run(each.run("go", journal=journal, thread=thread))
        bodies = [len(event.body) for event in read_all(journal, thread)]
    content = sum(bodies)
    (tables,) = raw.row(
        "select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace s on s.oid = c.relnamespace "
        "where s.nspname = 'refold' and c.relkind = 'r'"
    )
    counted = n - 1 - 50
    per_turn = sum(bodies[3 + 150 : 3 + 3 * (n - 1)]) / counted
    return {
        "wal_per_turn": (lsn[1] - lsn[0]) / counted,
        "content_per_turn": per_turn,
        "table_bytes": int(tables),
        "content_bytes": content,
        "event_bytes": [statistics.mean(bodies[k : 3 * n - 3 : 3]) for k in (2, 3, 4)],
    }


def offline(job: work.Job) -> dict[str, Any]:
    """Load, check the chain of and replay a recorded thread, with full matching; no database in it."""
    with Journal.open(job["dsn"]) as journal:
        thread = new_thread()
        asyncio.run(agent(job["turns"]).run("go", journal=journal, thread=thread))
        events = read_all(journal, thread)
    built = agent(job["turns"]).program
    size = statistics.mean(len(event.body) for event in events)
    seconds = [work.timed(lambda: replay(built, thread, events)) for _ in range(job["blocks"])]
    loaded = [work.timed(lambda: load(thread, events)) for _ in range(job["blocks"])]
    return {"events": len(events), "event_bytes": size, "seconds": seconds, "load_s": loaded}


def unfinished(job: work.Job) -> dict[str, Any]:
    """Leave a run in its middle, as a killed worker does, for `resume`."""

    async def go(journal: Journal) -> None:
        at_last = asyncio.Event()

        @tool(read_only=True)
        async def look(n: int) -> str:
            """Look something up."""
            if n == job["turns"] - 1:
                at_last.set()
                await asyncio.sleep(3600)
            return work.result(n)

        each = Agent("bench", model=Scripted(job["turns"]), tools=[look], max_steps=job["turns"] + 1)
        run = asyncio.create_task(each.run("go", journal=journal, thread=job["thread"]))
        await at_last.wait()
        await asyncio.sleep(0.2)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    with Journal.open(job["dsn"]) as journal:
        asyncio.run(go(journal))
        return {"head": journal.info(job["thread"]).head}


def resume(job: work.Job) -> dict[str, Any]:
    """From a fresh process to the first tool that runs again, connecting and reading included."""
    turns_left, began = job["turns"], time.perf_counter()
    at: list[float] = []

    @tool(read_only=True)
    async def look(n: int) -> str:
        """Look something up."""
        at.append(time.perf_counter())
        return work.result(n)

    model = Scripted(turns_left)
    model.turn = turns_left
    with Journal.open(job["dsn"]) as journal:
        each = Agent("bench", model=model, tools=[look], max_steps=turns_left + 1)
        asyncio.run(each.resume(journal=journal, thread=job["thread"]))
        ended = time.perf_counter()
    return {"resume_s": at[0] - began, "to_end_s": ended - began}


TASKS: dict[str, Callable[[work.Job], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        turns,
        interleaved,
        growth,
        append,
        step,
        many,
        many_appends,
        space,
        offline,
        unfinished,
        resume,
    )
}

if __name__ == "__main__":
    sys.setswitchinterval(0.005)
    work.serve(TASKS)
