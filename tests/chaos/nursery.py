"""
A process that has imported refold and forks workers from itself: real processes to kill, without the wait for imports.

    python -m chaos.nursery        each line of standard input is an order, each answer a line of JSON
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]


class Nursery:
    """The process, as a test holds it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.nursery"],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def start(self, function: str, order: dict[str, Any], output: Path) -> int:
        """Run *function* (`module:name`) on *order* in a new process; its pid. What it prints goes to *output*."""
        answer = self._ask({"start": function, "order": order, "output": str(output)})
        return int(answer["pid"])

    def wait(self, pid: int) -> int:
        """Wait for the end of a process; its exit code, negative for a signal."""
        return int(self._ask({"wait": pid})["code"])

    def kill(self, pid: int) -> int:
        """`kill -9`, and wait for the end."""
        os.kill(pid, signal.SIGKILL)
        return self.wait(pid)

    def close(self) -> None:
        """End it, and every process it has started that still runs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _child(question: dict[str, Any]) -> None:
    output = os.open(question["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    module, _, name = question["start"].partition(":")
    code = 0
    try:
        getattr(importlib.import_module(module), name)(question["order"])
    except BaseException:  # noqa: BLE001 - the test reads it
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Without exit handlers, those of the parent among them: a worker has closed its journal or wants none of it.
    os._exit(code)


def main() -> None:
    """Fork as told until standard input is closed; then leave nobody behind."""
    import chaos.worker  # noqa: F401
    import refold.journal.postgres  # noqa: F401

    running: set[int] = set()
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            _, status = os.waitpid(question["wait"], 0)
            running.discard(question["wait"])
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if pid == 0:
                _child(question)
            running.add(pid)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
