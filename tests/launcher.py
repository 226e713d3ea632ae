"""
Real processes that start in no time: one process imports litellm once (it takes seconds) and forks the others.

Each launch is an operating-system process of its own, with its own working directory, environment and output files;
it runs a script or the command line, and can be stopped at a point of choice to be killed there.

A point is `[what, number]`, and the process reports in through a FIFO and then blocks for good:

    ["open", n]              before the nth call of `open` in the script
    ["close", n]             after the file of the nth call of `open` was closed
    ["before", kind, n]      before the append that holds the nth event of this kind
    ["after", kind, n]       after it was acknowledged
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WAIT_S = 40.0


class Launched:
    """A process, seen from the test."""

    def __init__(self, launcher: Launcher, pid: int, folder: Path, number: int) -> None:
        self.pid = pid
        self._launcher = launcher
        self._output = folder / f"stdout.{number}", folder / f"stderr.{number}"

    def wait(self) -> int:
        """Its exit code; negative for the signal that killed it."""
        code = self._launcher.ask({"wait": self.pid})["code"]
        assert code is not None, f"process {self.pid} did not end\n{self.stdout}{self.stderr}"
        return int(code)

    def kill(self) -> int:
        """SIGKILL, and see it gone."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    @property
    def stdout(self) -> str:
        return self._output[0].read_text()

    @property
    def stderr(self) -> str:
        return self._output[1].read_text()


class Launcher:
    """The process that forks, seen from the test."""

    def __init__(self, *, litellm: bool = True) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *(["litellm"] if litellm else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._launches = 0

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def launch(
        self,
        folder: Path,
        *,
        script: Path | None = None,
        args: Sequence[str] = (),
        cli: Sequence[str] | None = None,
        env: dict[str, str],
        point: Sequence[Any] | None = None,
        fifo: Path | None = None,
    ) -> Launched:
        """Start a script or a command in *folder*; with a *point* it stops there and tells through *fifo*."""
        self._launches += 1
        order = {
            "folder": str(folder),
            "number": self._launches,
            "script": None if script is None else str(script),
            "args": list(args),
            "cli": None if cli is None else list(cli),
            "env": env,
            "point": None if point is None else list(point),
            "fifo": None if fifo is None else str(fifo),
        }
        return Launched(self, self.ask(order)["pid"], folder, self._launches)

    def close(self) -> None:
        """End it; every process it has forked must have been waited for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        self._process.stdout.close()


@contextlib.contextmanager
def awaited(fifo: Path) -> Iterator[Any]:
    """Makes a FIFO and gives a function that waits until a process reports in through it."""
    os.mkfifo(fifo)
    # Open for writing too: else it would look closed until the process has come that far.
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)

    def wait() -> None:
        ready, _, _ = select.select([descriptor], [], [], WAIT_S)
        assert ready, f"nobody reported in at {fifo.name}"
        os.read(descriptor, 100)

    try:
        yield wait
    finally:
        os.close(descriptor)


# In the launched process


def stop_here(fifo: str) -> None:
    """Report in and wait to be killed."""
    Path(fifo).write_text("here\n")
    while True:
        signal.pause()


class StoppingStore:
    """A store whose append stops before or after the one that holds a certain event."""

    def __init__(self, inner: Any, place: str, kind: str, number: int, fifo: str) -> None:
        self._inner = inner
        self._place = place
        self._kind = kind
        self._left = number
        self._fifo = fifo

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def take_wire(self) -> None:
        """Every append comes through here."""

    def append(self, append: Any) -> Any:
        return self._around([append], lambda: self._inner.append(append))

    def append_many(self, appends: Sequence[Any]) -> Any:
        return self._around(appends, lambda: self._inner.append_many(appends))

    def _around(self, appends: Sequence[Any], perform: Any) -> Any:
        here = False
        for append in appends:
            for event in append.events:
                if event.kind == self._kind:
                    self._left -= 1
                    here = here or self._left == 0
        if here and self._place == "before":
            stop_here(self._fifo)
        result = perform()
        if here:
            stop_here(self._fifo)
        return result


class _Stopping:
    """`open`, for a script that is to stop around its nth call."""

    def __init__(self, what: str, number: int, fifo: str) -> None:
        self._what, self._left, self._fifo = what, number, fifo

    @contextlib.contextmanager
    def __call__(self, *args: Any, **options: Any) -> Iterator[Any]:
        self._left -= 1
        if self._left == 0 and self._what == "open":
            stop_here(self._fifo)
        with open(*args, **options) as file:  # noqa: PTH123 - it stands for `open` itself
            yield file
        if self._left == 0:
            stop_here(self._fifo)


def _run(order: dict[str, Any]) -> None:
    import runpy

    point, fifo = order["point"], order["fifo"]
    names: dict[str, Any] = {}
    if point is not None and point[0] in ("open", "close"):
        names["open"] = _Stopping(point[0], point[1], fifo)
    elif point is not None:
        from refold.journal.postgres import PostgresStore

        really = PostgresStore.open

        def stopping(*args: Any, **options: Any) -> StoppingStore:
            return StoppingStore(really(*args, **options), *point, fifo)

        PostgresStore.open = stopping  # type: ignore[assignment, method-assign]
    if order["cli"] is not None:
        from refold.cli import main

        sys.argv = ["refold", *order["cli"]]
        main()
    else:
        sys.argv = [order["script"], *order["args"]]
        sys.path.insert(0, order["folder"])
        runpy.run_path(order["script"], init_globals=names, run_name="__main__")


def _child(order: dict[str, Any]) -> None:
    os.chdir(order["folder"])
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{name}.{order['number']}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order["env"])
    code = 0
    try:
        _run(order)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 - the parent reads it
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    import atexit

    atexit._run_exitfuncs()
    os._exit(code)


def _ended(pid: int) -> int | None:
    """The exit code of a process; None if it had to be killed because it did not end."""
    deadline_s = time.monotonic() + WAIT_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        signal.sigtimedwait({signal.SIGCHLD}, left_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main() -> None:
    """Fork as told on standard input, until it is closed."""
    import refold.cli
    import refold.journal.postgres  # noqa: F401

    if "litellm" in sys.argv:
        from refold.agent.litellm_client import load_litellm

        load_litellm()
    # Waited for with a limit, instead of being handled.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = {"code": _ended(order["wait"])}
        else:
            pid = os.fork()
            if pid == 0:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
                _child(order)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
