"""Ids are random, and nobody draws one that somebody else has drawn."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid

from refold.journal.sources import SYSTEM

FORKS = """
import os
from refold.journal.sources import SYSTEM

SYSTEM.new_id()
reads, writes = os.pipe()
child = os.fork()
ids = " ".join(str(SYSTEM.new_id()) for _ in range(600))
if child == 0:
    os.write(writes, ids.encode())
    os._exit(0)
os.waitpid(child, 0)
print(ids)
print(os.read(reads, 100_000).decode())
"""


def test_an_id_is_a_random_uuid() -> None:
    ids = [SYSTEM.new_id() for _ in range(2000)]

    assert len(set(ids)) == 2000
    assert {(each.version, each.variant) for each in ids} == {(4, uuid.RFC_4122)}
    # Of the bits that are drawn, each is set in about half of them.
    ones = [
        sum(each.int >> bit & 1 for each in ids) for bit in range(128) if bit not in (62, 63, *range(76, 80))
    ]
    assert min(ones) > 800
    assert max(ones) < 1200


def test_threads_draw_no_id_twice() -> None:
    drawn: list[uuid.UUID] = []

    def draw() -> None:
        drawn.extend([SYSTEM.new_id() for _ in range(3000)])

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(drawn)) == len(drawn) == 24_000


def test_a_forked_child_draws_other_ids_than_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True
    )
    parent, child = (set(line.split()) for line in done.stdout.splitlines())

    assert (len(parent), len(child)) == (600, 600)
    assert not parent & child
