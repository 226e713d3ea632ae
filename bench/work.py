"""
The work that everybody does: a tool-calling loop with a fake model.

Standard library only: the drivers of the peers import it in their own environments.
"""

from __future__ import annotations

import json
import random
import resource
import string
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

TEXT_BYTES = 250
RESULT_BYTES = 1000
_LETTERS = string.ascii_letters + string.digits + "  .,"

Job = dict[str, Any]


@lru_cache(maxsize=20_000)
def text(turn: int) -> str:
    """What the model says in a turn; hardly compressible, as real text is once it is short."""
    return "".join(random.Random(f"text {turn}").choices(_LETTERS, k=TEXT_BYTES))


@lru_cache(maxsize=20_000)
def result(turn: int) -> str:
    """What the tool returns in a turn."""
    return "".join(random.Random(f"result {turn}").choices(_LETTERS, k=RESULT_BYTES))


def prepare(turns: int) -> None:
    """Make the texts beforehand, so that nobody is charged for them."""
    for turn in range(turns + 1):
        text(turn), result(turn)


def call_id(turn: int) -> str:
    """The provider's id of the call of a turn."""
    return f"call_{turn}"


def peak_mb() -> float:
    """Peak resident memory of this process, megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(work: Callable[[], Any]) -> float:
    """Seconds that *work* takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def serve(tasks: dict[str, Callable[[Job], dict[str, Any]]]) -> None:
    """Do the job named on the command line and print what was measured as the last line."""
    job: Job = json.loads(sys.argv[1])
    prepare(int(job.get("turns", 0)))
    before_mb = peak_mb()
    measured = tasks[job["task"]](job)
    print(json.dumps({"before_mb": before_mb, "peak_mb": peak_mb(), **measured}), flush=True)
