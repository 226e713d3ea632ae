"""
What the command line takes on a database of 10,000 threads, one of them with 100,000 events.

    python bench/large.py [--threads N] [--events N] [--times N]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import work
from cluster import Cluster
from msgspec import Raw
from refold import Journal
from refold.journal.envelope import NewEvent
from refold.journal.store import ThreadState
from refold.replay import events as ev
from refold.replay.ports import Usage
from refold.replay.requests import NewItem, RequestDelta

LONG = "thread-long"
BATCH = 1000

# Rows as appends leave them; the threads' own events would add nothing to what is measured.
THREADS = """
insert into refold.threads (thread, created_at, state, head, fence)
select format('thread-%%s', n), now() - n * interval '1 minute',
       (array['finished','finished','finished','waiting','parked','failed'])[1 + n %% 6], 12, 1
  from generate_series(1, %s) n
"""

COMMANDS = (
    ("--help",),
    ("threads",),
    ("threads", "--attention"),
    ("threads", "--state", "parked", "--limit", "20"),
    ("show", LONG),
    ("show", LONG, "--from", "50000", "--to", "50100", "--full"),
    ("show", LONG, "--last", "5", "--json"),
    ("state", LONG, "--at", "1000"),
    ("state", LONG),
)


def bodies(count: int) -> Iterator[ev.EventBody]:
    """A run of tool calls that has not ended."""
    yield ev.ThreadCreated(at=0, uid="0" * 32)
    yield ev.RunStarted(at=0, run="r1", program="bench", digest="0" * 16, input=Raw(b'"go"'))
    for turn in range((count - 2) // 3):
        function = {"name": "look", "arguments": f'{{"n":{turn}}}'}
        calls = [{"id": work.call_id(turn), "type": "function", "function": function}]
        message = {"role": "assistant", "content": work.text(turn % 1000), "tool_calls": calls}
        new = [
            NewItem(reply=f"r1/{2 * turn - 1}"),
            NewItem(result=f"r1/{2 * turn}.1.1", id=f"call_{turn - 1}"),
        ]
        yield ev.ModelResponded(
            at=turn,
            call=f"r1/{2 * turn + 1}",
            fingerprint="0" * 32,
            request=RequestDelta.of(f"r1/{2 * turn - 1}", [(0, 2 * turn), *new]),
            response=Raw(json.dumps({"message": message}).encode()),
            usage=Usage(input_tokens=100, output_tokens=50),
        )
        call = f"r1/{2 * turn + 2}.1.1"
        args = Raw(b'{"n":%d}' % turn)
        yield ev.ToolStarted(at=turn, call=call, tool="look", args=args, key=uuid4().hex)
        yield ev.ToolReturned(at=turn, call=call, result=Raw(json.dumps(work.result(turn % 1000)).encode()))


def fill(dsn: str, threads: int, events: int) -> None:
    """Make the database."""
    with Journal.open(dsn) as journal:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(THREADS, (threads,))
        tenure = journal.acquire(LONG)
        batch: list[NewEvent] = []
        for body in bodies(events):
            batch.append(NewEvent(uuid4(), ev.kind_of(body), 1, ev.encode_body(body)))
            if len(batch) == BATCH:
                tenure.append(batch, state=ThreadState.RUNNING).result()
                batch = []
        if batch:
            tenure.append(batch, state=ThreadState.RUNNING).result()
        tenure.release(0)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum analyze")


def measure(dsn: str, times: int) -> None:
    """Run each command *times* in a process of its own; wall clock and CPU of that process, medians, as Markdown."""
    program = [sys.executable, "-c", "from refold.cli import main; main()"]
    print("| command | seconds | of CPU | lines |\n|---|---|---|---|")
    for command in COMMANDS:
        taken: list[tuple[float, float]] = []
        for _ in range(times):
            before, began = _cpu_s(), time.perf_counter()
            done = subprocess.run(
                [*program, *command],
                env={**os.environ, "REFOLD_DSN": dsn},
                capture_output=True,
                text=True,
                check=True,
            )
            taken.append((time.perf_counter() - began, _cpu_s() - before))
        wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"| `refold {' '.join(command)}` | {wall:.3f} | {cpu:.3f} | {done.stdout.count(chr(10))} |")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=7)
    wanted = parser.parse_args()
    work.prepare(1000)
    with Cluster() as cluster:
        dsn = cluster.fresh("large")
        fill(dsn, wanted.threads, wanted.events)
        measure(dsn, wanted.times)


if __name__ == "__main__":
    main()
