"""What the engine asks of the world: how a model is called and what a tool must tell about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

InDoubt = Literal["park", "retry", "tell_model", "reconcile"]
"""What a resume does with a call that has a recorded start and no recorded outcome."""


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens and cost of one response; None where the provider did not say. Money in millionths of a dollar."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_micro: int | None = None


def is_usage(value: object) -> bool:
    """Whether this is a `Usage` that can be recorded: whole numbers, and None for what is unknown."""
    return isinstance(value, Usage) and all(
        part is None or type(part) is int
        for part in (
            value.input_tokens,
            value.output_tokens,
            value.cached_tokens,
            value.reasoning_tokens,
            value.cost_micro,
        )
    )


class ModelReply(Struct, frozen=True):
    """
    A complete model response in the form it is recorded: plain JSON values only.

    `message` is the assistant message as a chat-completions dict with every field the provider sent
    (content, tool_calls, reasoning, provider-specific fields): what the next request must carry.
    """

    message: dict[str, Any]
    finish_reason: str | None = None
    id: str | None = None
    model: str | None = None
    """The model that answered, which may differ from the one asked."""
    usage: Usage = Usage()
    extra: dict[str, Any] = {}
    """Other fields of the response worth keeping."""


class ModelClient(Protocol):
    """Calls a model. The one place where tokens are paid for."""

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        """
        Ask once, without retrying.

        Args:
            request: `model`, `messages` and parameters as in chat completions; plain JSON values.

        Raises:
            ModelError: The call failed; its kind says whether asking again can help.
        """


class Delta(Struct, frozen=True, omit_defaults=True, gc=False):
    """
    A piece of a response on its way: text, thought, or a part of a tool call. Provisional, and never recorded.

    `position` counts the response's tool calls from 0; `name` comes once, `arguments` in pieces of JSON text.
    """

    text: str = ""
    thought: str = ""
    position: int | None = None
    name: str = ""
    arguments: str = ""


@runtime_checkable
class StreamingClient(ModelClient, Protocol):
    """A model client that can also tell of a response while it comes in."""

    async def stream(self, request: Mapping[str, Any], show: Callable[[Delta], None]) -> ModelReply:
        """
        `respond`, with each piece told to *show* on the caller's event loop before this returns.

        Raises:
            ModelError: As `respond`; also for a stream that ended before the model had finished.
        """


class ToolContext(Protocol):
    """What a running tool may ask about its own call."""

    idempotency_key: str
    """Unique to this call, the same in every attempt of it; send it to the service."""
    attempt: int
    """1, 2 ...: which start of this call is running."""
    thread: str
    call: str
    deps: Any
    """What the caller passed to `run(deps=...)`; never recorded."""
    deadline_s: float
    """Seconds this attempt has in all, counted from its start; never more than the run still has."""

    connection: Any
    """The open transaction of a transactional tool (a psycopg connection); None for others."""

    def heartbeat(self) -> None:
        """Tell that the tool is alive; restarts its idle time-out."""

    @property
    def cancelled(self) -> bool:
        """Whether the run wants this call to stop."""


class MakeContext(Protocol):
    """Makes the context of a tool call."""

    def __call__(
        self,
        *,
        idempotency_key: str,
        attempt: int,
        thread: str,
        call: str,
        deps: Any,
        deadline_s: float,
        heartbeat: Callable[[], None],
        cancelled: Callable[[], bool],
        connection: Any = None,
    ) -> ToolContext:
        """A context for one attempt."""


class ToolSpec(Protocol):
    """A tool as the engine sees it."""

    @property
    def name(self) -> str:
        """Name the model calls and the log records."""

    @property
    def read_only(self) -> bool:
        """Whether it changes nothing outside."""

    @property
    def repeatable(self) -> bool:
        """Whether running it twice for one call does no harm (read-only or idempotent)."""

    @property
    def in_doubt(self) -> InDoubt:
        """Policy for a call left in doubt."""

    @property
    def timeout_s(self) -> float:
        """Total time one attempt may take."""

    @property
    def idle_timeout_s(self) -> float | None:
        """Time between heartbeats, for tools that beat."""

    @property
    def retries(self) -> int:
        """How many more attempts a failed repeatable call gets."""

    @property
    def transactional(self) -> bool:
        """Whether it acts in the journal's own database, in the transaction that records its outcome."""

    @property
    def stoppable(self) -> bool:
        """Whether cancelling a call stops it (async functions); a sync one runs on in its thread."""

    @property
    def may_need_approval(self) -> bool:
        """Whether there are calls that `needs_approval` has to be asked about."""

    def needs_approval(self, args: Mapping[str, Any]) -> bool:
        """Whether a person must allow this call; a pure function of the arguments."""

    def arguments(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Bind call arguments to the named arguments that are recorded. Raises `ToolError` if they do not fit."""

    def restore(self, value: Any) -> Any:
        """Give a decoded result the tool's declared return type."""

    async def call(self, args: Mapping[str, Any], context: ToolContext) -> Any:
        """
        Run it once with recorded (plain) arguments; sync tools run in a thread of their own.

        Raises:
            ToolError: It failed and asserts that nothing happened.
            BaseException: It failed and may have done something.
        """

    def call_now(self, args: Mapping[str, Any], context: ToolContext) -> Any:
        """Run a transactional tool in the calling thread; its connection is `context.connection`."""

    async def reconcile(self, args: Mapping[str, Any], context: ToolContext) -> Any:
        """Ask the outside world about a call in doubt: `Happened`, `DidNotHappen` or `Unknown`."""
