"""Steps a program: one reply in, run to quiescence, new commands out. Knows no log and no event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any

from ..journal.errors import LimitExceeded
from .branch import Branch, Group
from .commands import Call, describe
from .door import check_call
from .errors import ForeignAwait
from .ports import Usage
from .requests import Interner, Prior
from .run import Ask, GatherAsk, Run
from .usage import Totals

Program = Callable[[Run, Any], Coroutine[Any, Any, Any]]

_log = logging.getLogger("refold.replay")

_INSTEAD = "do outside work in run.step(...) or a tool, and wait with run.sleep or run.wait_for"

_LOOP_METHODS = frozenset(
    {"call_later", "call_soon", "create_future", "create_task", "run_in_executor", "time"}
)


class Done:
    """How the program ended."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self.value = value
        self.error = error


class Machine:
    """
    A program being stepped.

    Args:
        program: An `async def` taking a Run and the input.
        thread: Thread id.
        run_id: Id of the run; call ids are `run_id/path`.
        seed: Start of the run's random streams.
        prior: What earlier runs of the thread left.
        patched: Asked by `run.patched`.
    """

    def __init__(
        self,
        program: Program,
        *,
        thread: str,
        run_id: str,
        seed: str,
        prior: Prior,
        patched: Callable[[str], bool],
    ) -> None:
        self._program = program
        self._run_id = run_id
        self._prefix = f"{run_id}/"
        self.seed = seed
        self.patched = patched
        self.interner = Interner()
        self.unasked: set[Ask] = set()
        self.at = 0
        self.answers: list[Usage] = []
        """What responses used that are not in `used` yet: nobody may ever ask."""
        self._used = Totals()
        self.pending: dict[str, Call] = {}
        self.done: Done | None = None
        self._prior = prior
        self._ready: deque[tuple[Branch, Any, BaseException | None]] = deque()
        self._asked: list[Call] = []
        self._current: Branch | None = None
        self._branches: set[Branch] = set()
        self._broken: ForeignAwait | None = None
        self.run = Run(self, thread=thread, run_id=run_id, prior=prior)

    def start(self, value: Any, at: int) -> list[Call]:
        """Call the program with its input and step it until it waits; the commands it then asks."""
        self.at = at
        coroutine = self._program(self.run, value)
        if not inspect.iscoroutine(coroutine):
            raise ForeignAwait(f"a program is an 'async def', {self._program!r} is not")
        root = Branch(coroutine, "", None, 0, self._prior.base())
        self._branches.add(root)
        return self._pump(root, None, None)

    def reply(self, call: Call, value: Any, error: BaseException | None, at: int) -> list[Call]:
        """Answer a pending call and step the program until it waits again; the commands it then asks."""
        self.at = at
        del self.pending[call.id]
        return self._pump(call.branch, value, error)

    @property
    def used(self) -> Totals:
        """What the run has used up to the reply being delivered."""
        for usage in self.answers:
            self._used.add(usage)
        self.answers.clear()
        return self._used

    def branch_random(self) -> random.Random:
        """The random stream of the branch being stepped."""
        branch = self._current
        if branch is None:
            raise ForeignAwait("run.random is for the program, while it runs")
        if branch.stream is None:
            branch.stream = random.Random(f"{self.seed}/{branch.path}")
        return branch.stream

    def reseed(self, seed: str) -> None:
        """Start all random streams anew, as a fork does."""
        self.seed = seed
        for branch in self._branches:
            branch.stream = None

    @property
    def coroutines(self) -> list[Coroutine[Any, Any, Any]]:
        """The program and the branches of its gathers that have not ended."""
        branches = sorted(self._branches, key=lambda b: b.path)
        return [branch.coroutine for branch in branches if branch.coroutine is not None]

    def close(self) -> None:
        """Drop the program; its `finally` blocks run, may not ask for anything, and change nothing any more."""
        interrupt: KeyboardInterrupt | None = None
        for coroutine in reversed(self.coroutines):
            try:
                _unseen(coroutine.close)
            except KeyboardInterrupt as pressed:
                interrupt = pressed
            except BaseException as error:  # noqa: BLE001 - an await in a finally block comes as RuntimeError
                _log.debug(
                    "run %s raised while it was dropped, which changes nothing: %r", self._run_id, error
                )
        self._branches.clear()
        self.pending.clear()
        if interrupt is not None:
            raise interrupt

    def _pump(self, branch: Branch, value: Any, error: BaseException | None) -> list[Call]:
        self._asked = []
        if asyncio._get_running_loop() is None:
            self._step_all(branch, value, error)
        else:
            _unseen(self._step_all, branch, value, error)
        if self._broken is not None:
            raise self._broken
        return self._asked

    def _step_all(self, branch: Branch, value: Any, error: BaseException | None) -> None:
        ready = self._ready
        try:
            self._step(branch, value, error)
            while ready:
                branch, value, error = ready.popleft()
                self._step(branch, value, error)
        finally:
            self._current = None

    def _step(self, branch: Branch, value: Any, error: BaseException | None) -> None:
        coroutine = branch.coroutine
        if coroutine is None:
            # One bare command: it is asked for, and its reply ends the branch.
            if type(value) is Ask:
                self._ask(value, branch)
            else:
                self._finish(branch, value, error)
            return
        self._current = branch
        try:
            asked = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            self._finish(branch, stop.value, None)
        except KeyboardInterrupt:
            # Somebody wants the process to end: that is no outcome of the run.
            raise
        except BaseException as raised:  # noqa: BLE001 - how the program ends, by sys.exit() too
            if _misses_loop(raised):
                self._broken = ForeignAwait(
                    f"the program needs an event loop ({raised}), which a program does not have; {_INSTEAD}"
                )
            self._finish(branch, None, raised)
        else:
            if type(asked) is Ask:
                self._ask(asked, branch)
            elif type(asked) is GatherAsk:
                self._fan(branch, asked)
            else:
                self._refuse(asked, branch)

    def _refuse(self, asked: Any, branch: Branch) -> None:
        self._broken = ForeignAwait(
            f"the program awaited {asked!r}, which is not a command of its run; {_INSTEAD}"
        )
        self._ready.append((branch, None, self._broken))

    def _ask(self, ask: Ask, branch: Branch) -> None:
        try:
            self.unasked.remove(ask)
        except KeyError:
            twice = RuntimeError("a command is awaited once, by the run that made it; ask for another one")
            self._ready.append((branch, None, twice))
            return
        path = branch.next_path()
        ask.call_id = call_id = self._prefix + path
        call = Call(path, call_id, ask.command, branch)
        if ask.large:
            try:
                check_call(call)
            except LimitExceeded as error:
                # An event that no append takes would be asked for again and again.
                self._ready.append((branch, None, error))
                return
        self.pending[call_id] = call
        self._asked.append(call)

    def _fan(self, parent: Branch, ask: GatherAsk) -> None:
        path, base, ready = parent.next_path(), parent.base, self._ready
        size = len(ask.branches)
        group = Group(parent, size, [None] * size, size)
        if not size:
            ready.append((parent, [], None))
        for index, item in enumerate(ask.branches):
            branch_path = f"{path}.{index + 1}"
            if type(item) is Ask:
                branch = Branch(None, branch_path, group, index, base)
                if ready:
                    ready.append((branch, item, None))
                else:
                    self._ask(item, branch)
                continue
            coroutine = item if type(item) is CoroutineType else _await(item)
            branch = Branch(coroutine, branch_path, group, index, base)
            self._branches.add(branch)
            ready.append((branch, None, None))

    def _finish(self, branch: Branch, value: Any, error: BaseException | None) -> None:
        self._branches.discard(branch)
        group = branch.group
        if group is None:
            self.done = Done(value, error)
            if error is None:
                self._tell_unasked()
            return
        group.results[branch.index] = value
        if error is not None and branch.index <= group.failed:
            group.failed, group.error = branch.index, error
        group.left = left = group.left - 1
        if not left:
            self._ready.append((group.parent, group.results, group.error))

    def _tell_unasked(self) -> None:
        if self.unasked:
            forgotten = ", ".join(sorted(describe(ask.command) for ask in self.unasked))
            _log.warning("run %s has ended and never awaited what it asked for: %s", self._run_id, forgotten)


async def _await(item: Any) -> Any:
    return await item


def _misses_loop(error: BaseException) -> bool:
    """Whether *error* is what asyncio raises where no loop can be seen; its locks and queues ask None for a future."""
    if isinstance(error, AttributeError):
        return error.obj is None and error.name in _LOOP_METHODS
    return isinstance(error, RuntimeError) and str(error) == "no running event loop"


def _unseen(step: Callable[..., Any], *args: Any) -> Any:
    """Hide the running loop from *step*: what works live only because of it would fail on replay."""
    loop = asyncio._get_running_loop()
    if loop is None:
        return step(*args)
    hooks = sys.get_asyncgen_hooks()
    asyncio._set_running_loop(None)
    sys.set_asyncgen_hooks(None, None)
    try:
        return step(*args)
    finally:
        asyncio._set_running_loop(loop)
        sys.set_asyncgen_hooks(*hooks)
