"""
The world outside that the agents of the fault comparison act on: a file that remembers every effect.

Standard library only: the agents of the peers import it in their own environments.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT = "Refund the order, then tell both parties."
REFUND = {"order": 17, "amount": 30}
PARTIES = ("customer", "shop")
SETTLED_S = 0.5
"""How long a call leaves its sibling to be recorded before the process dies."""


class World:
    """
    Effects of one agent, in order.

    Args:
        job: `folder`; `die`, where the process is killed, once; `slow_s`, how long a mail takes.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._folder = Path(job["folder"])
        self._die = job.get("die")
        self._slow_s = float(job.get("slow_s", 0))

    def happened(self, what: str) -> None:
        """An effect has taken place: kept whatever happens to this process."""
        with (self._folder / "effects").open("a") as log:
            log.write(what + "\n")
            log.flush()
            os.fsync(log.fileno())

    def count(self, what: str) -> int:
        """How often an effect has taken place."""
        return effects(self._folder)[what]

    def die_at(self, point: str) -> None:
        """Kill this process, if it is to die here and has not yet."""
        marker = self._folder / "died"
        if self._die == point and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def refund(self, order: int, amount: int) -> str:
        """Money goes out."""
        self.happened("refund")
        self.die_at("refund")
        return f"refunded {amount} for {order}"

    def notify(self, party: str) -> str:
        """A mail goes out; where the process is to die in the second, the first is done and has had its time."""
        if party == PARTIES[1] and self._die == "notify":
            deadline = time.monotonic() + 10
            while not self.count(f"notify {PARTIES[0]}") and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(SETTLED_S)
        self.happened(f"notify {party}")
        if party == PARTIES[1]:
            self.die_at("notify")
        time.sleep(self._slow_s)
        return f"told {party}"

    def model(self, turn: int) -> dict[str, Any]:
        """The answer to the request of a turn: a refund, two mails at once, the end."""
        self.happened(f"model {turn}")
        self.die_at(f"model {turn}")
        if turn == 0:
            return {"text": "First the refund.", "calls": [{"id": "a", "name": "refund", "args": REFUND}]}
        if turn == 1:
            mails = [{"id": p, "name": "notify", "args": {"party": p}} for p in PARTIES]
            return {"text": "Now the mails.", "calls": mails}
        return {"text": "All done.", "calls": []}


def effects(folder: Path) -> Counter[str]:
    """How often each effect has taken place."""
    path = folder / "effects"
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()


def serve(run: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Do the job on the command line and print what became of it as the last line."""
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
