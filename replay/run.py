"""The handle through which a program asks for everything: `Run`, and the awaitables it makes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import CoroutineType
from typing import Any, Literal, Protocol

from msgspec import Struct

from ..journal import codec
from ..journal.errors import UsageError
from ..journal.limits import check_name
from .commands import Command, ModelCall, Sleep, StepCall, ToolCall, WaitFor
from .door import NAME_BYTES_MAX, RESULT_BYTES_MAX
from .errors import ForeignAwait
from .ports import ToolSpec, Usage
from .requests import Interner, Messages, Params, Prior
from .twin import twin
from .usage import Totals


class Ask(Struct, eq=False):
    """
    A command that is about to be asked: it gets its path when it is awaited, and is awaited once.

    Attributes:
        large: Whether it has to be looked at closely before it is asked: its record may not fit into an event.
        call_id: Known once it has been awaited.
    """

    command: Command
    large: bool = False
    call_id: str = ""

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


class GatherAsk(Struct, eq=False):
    """Several branches that run side by side."""

    branches: tuple[Any, ...]

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        result: list[Any] = yield self
        return result


_BRANCHES = (CoroutineType, Ask, GatherAsk)


class Stepped(Protocol):
    """What a run handle asks of the machine that steps its program."""

    at: int
    interner: Interner
    unasked: set[Ask]
    """Commands that were made and not awaited yet."""

    @property
    def used(self) -> Totals:
        """What the run has used."""

    def branch_random(self) -> random.Random:
        """The random stream of the branch being stepped."""

    def patched(self, patch: str) -> bool:
        """Whether new code may run."""


class Run:
    """
    What a program has instead of a world.

    Everything it awaits is one of these commands; everything it gets comes from the log or is recorded there
    before the program sees it. Nothing here performs anything.
    """

    __slots__ = ("_machine", "definition", "prior", "run_id", "thread")

    def __init__(self, machine: Stepped, *, thread: str, run_id: str, prior: Prior) -> None:
        self._machine = machine
        self.thread = thread
        self.run_id = run_id
        self.prior = prior
        """The conversation of the thread's earlier runs."""
        self.definition: Mapping[str, str] = {}
        """What the program was when the run began, part by part: limits as they were then, digests of the rest."""

    def model(
        self,
        *,
        messages: Messages | Iterable[Mapping[str, Any]],
        params: Params | None = None,
        in_doubt: Literal["park", "retry"] = "park",
        again: Callable[[Usage], bool] | None = None,
        **parameters: Any,
    ) -> Ask:
        """
        Ask a model; the reply is a `Response`.

        Args:
            messages: The conversation, as a `Messages` or a plain list of chat-completions dicts.
            params: Parameters encoded once, for loops.
            in_doubt: What becomes of a call in which the provider runs tools that may act, when it is in doubt.
            again: When an attempt has failed that the policy would repeat: whether it may, given what it used.
            parameters: `model=` and what else the provider takes.

        Raises (when awaited):
            ModelError: The call failed for good.
        """
        if in_doubt not in ("park", "retry"):
            raise UsageError(f"in_doubt of a model call is 'park' or 'retry', not {in_doubt!r}")
        if params is None:
            params = Params(parameters)
        conversation = (
            messages if isinstance(messages, Messages) else self._machine.interner.messages(messages)
        )
        request = conversation.request(params)
        return self._made(ModelCall(request, in_doubt if params.acting else None, again), request.bytes)

    def tool(self, tool: ToolSpec, /, *args: Any, **kwargs: Any) -> Ask:
        """
        Call a tool; the reply is its result.

        Raises (when awaited):
            ToolError: It failed; `effect` says what is known.
        """
        named = tool.arguments(*args, **kwargs)
        encoded = codec.encode(named, what=f"arguments of tool {tool.name!r}")
        return self._made(ToolCall(tool, encoded), len(encoded))

    def recorded_tool(self, tool: ToolSpec, named: Mapping[str, Any], *, refused: str | None = None) -> Ask:
        """
        Call a tool with named arguments; the reply is its outcome as it is recorded.

        That is the canonical bytes of its result (`msgspec.Raw`), or the `ToolError` that it failed with, not raised.

        Args:
            tool: Which.
            named: Its arguments.
            refused: Why it cannot be called; recorded as the call's failure.
        """
        data = codec.encode_if_plain(named)
        if data is None:
            data = codec.encode(named, what=f"arguments of tool {tool.name!r}")
        return self._made(ToolCall(tool, data, True, refused), len(data))

    def step(
        self, function: Callable[..., Any], /, *args: Any, read_only: bool = False, **kwargs: Any
    ) -> Ask:
        """
        Do repeatable outside work: at least once, its result or failure recorded.

        Args:
            function: A function or coroutine function; its qualified name is what the log knows it by.
            args: Its arguments, recorded and compared on replay.
            read_only: It changes nothing outside, so it need not wait until what led to it is durable.
            kwargs: Its keyword arguments.

        Raises (when awaited):
            StepError: It raised.
        """
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        encoded = codec.encode([list(args), kwargs], what=f"arguments of step {name!r}")
        return self._made(StepCall(name, encoded, function, read_only), len(encoded))

    def sleep(self, duration: float | timedelta) -> Ask:
        """Let *duration* (seconds or a timedelta) pass; longer waits survive the process."""
        return self._made(Sleep(_microseconds(duration)))

    def wait_for(self, name: str, *, timeout: float | timedelta | None = None) -> Ask:
        """
        Wait for a signal of this name; the reply is its value, or None when *timeout* runs out first.

        Args:
            name: What `refold send THREAD --signal NAME` and `refold.answers.signal` name it by.
            timeout: Seconds or a timedelta; None waits for ever.
        """
        check_name("the name of a signal", name, NAME_BYTES_MAX)
        limit = None if timeout is None else _microseconds(timeout)
        return self._made(WaitFor(name, limit))

    def gather(self, *branches: Ask | GatherAsk | Coroutine[Any, Any, Any]) -> GatherAsk:
        """
        Run branches side by side; the reply is the list of their results.

        Waits for all of them, then raises the error of the lowest branch that failed.
        """
        for branch in branches:
            if not isinstance(branch, _BRANCHES):
                raise ForeignAwait(
                    f"gather takes commands of this run or coroutines that await them, not {branch!r}"
                )
        return GatherAsk(branches)

    def _made(self, command: Command, size: int = 0) -> Ask:
        ask = Ask(command, size > RESULT_BYTES_MAX)
        self._machine.unasked.add(ask)
        return ask

    def now(self) -> datetime:
        """The time of the reply being delivered (UTC): constant within a step, the same on replay."""
        return datetime.fromtimestamp(self._machine.at / 1e6, UTC)

    @property
    def usage(self) -> Totals:
        """What the run has used up to the reply being delivered, failed attempts included; the same on replay."""
        return twin(self._machine.used)

    @property
    def random(self) -> random.Random:
        """A seeded stream of this branch's own: the same on replay."""
        return self._machine.branch_random()

    def uuid(self) -> uuid.UUID:
        """A random UUID, the same on replay."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def patched(self, patch: str) -> bool:
        """
        Whether new code may run: true for runs that had not come this far when it was deployed.

        The first answer holds for the whole run.
        """
        return self._machine.patched(check_name("the id of a patch", patch, NAME_BYTES_MAX))

    def __repr__(self) -> str:
        return f"Run({self.thread!r}, {self.run_id!r})"


def _microseconds(duration: float | timedelta) -> int:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= seconds < 1e10:
        raise ValueError(f"a duration is a finite number of seconds from 0 on, not {duration!r}")
    return round(seconds * 1e6)
