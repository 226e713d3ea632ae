"""`@tool`: makes a typed, documented function something a model can call and the journal can answer for."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import msgspec
from msgspec import Struct

from ..journal import codec
from ..replay import ports
from ..replay.errors import ToolError
from ..replay.outcomes import DidNotHappen, Happened, NoAnswer, Reconciled, Unknown
from . import offload
from .docstrings import describe
from .errors import ToolDefinitionError
from .signature import TOOL_NAME, Signature, context_parameters, invalid, read_signature

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_S_DEFAULT = 300.0
RETRIES_MAX = 100

Reconciler = Callable[..., Any]
Approval = bool | Callable[[Mapping[str, Any]], bool]

_POLICIES: frozenset[str] = frozenset({"park", "retry", "tell_model"})
_log = logging.getLogger("refold.tools")


class Tool(Struct, Generic[P, R], frozen=True, eq=False, kw_only=True):
    """
    A function that a model can call; made by `@tool`, and still callable as the function it was.

    Args:
        name: Name the model calls and the log records.
        description: What the model is told about it.
        function: The function itself.
        read_only: It changes nothing outside.
        idempotent: Called twice with one idempotency key, it acts once.
        transactional: It acts in the journal's own database, in the transaction that records its outcome.
        in_doubt: Policy for a call left in doubt.
        reconciler: Asked about such a call, where the policy is "reconcile".
        approval: Whether a person must allow a call, or a predicate on its arguments.
        timeout_s: Total time one attempt may take.
        idle_timeout_s: Time between heartbeats, for tools that beat.
        retries: How many more attempts a failed call gets.
        signature: What it takes and returns.
    """

    name: str
    description: str
    function: Callable[P, R]
    read_only: bool
    idempotent: bool
    transactional: bool
    in_doubt: ports.InDoubt
    reconciler: Reconciler | None
    approval: Approval
    timeout_s: float
    idle_timeout_s: float | None
    retries: int
    signature: Signature

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, with no engine around it."""
        return self.function(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[P, R]:
        return self.function

    @property
    def repeatable(self) -> bool:
        """Whether running it twice for one call does no harm."""
        return self.read_only or self.idempotent or self.transactional or self.in_doubt == "retry"

    @property
    def stoppable(self) -> bool:
        """Whether cancelling a call stops it; a sync function runs on in its thread."""
        return offload.is_async(self.function)

    def schema(self) -> dict[str, Any]:
        """The tool as a chat-completions request describes it; equal on every call and in every process."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        function["parameters"] = msgspec.json.decode(self.signature.schema)
        return {"type": "function", "function": function}

    def arguments(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """
        The named arguments of a Python call, in the plain form that is recorded.

        Raises:
            ToolError: They do not fit; the message lists every one that is wrong, for the model to read.
            UnsupportedValue: One cannot be recorded.
        """
        try:
            named = self.signature.binding.bind_partial(*args).arguments if args else {}
        except TypeError as error:
            raise invalid(self.name, str(error)) from None
        if twice := named.keys() & kwargs.keys():
            raise invalid(self.name, f"argument {min(twice)!r} is given twice")
        return self.validate({**named, **kwargs})

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """
        *args* in the plain form that is recorded, once they are known to fit; nothing is added or repaired.

        Raises:
            ToolError: They do not fit; the message lists every one that is wrong, for the model to read.
            UnsupportedValue: One cannot be recorded.
        """
        plain: dict[str, Any] = codec.decode(
            codec.encode(dict(args), what=f"arguments of tool {self.name!r}")
        )
        self.signature.convert(plain)
        return plain

    def misfit(self, args: Mapping[str, Any]) -> str | None:
        """What the model reads of *args*, plain JSON values, if they do not fit; None if they do."""
        if self.signature.fits(args):
            return None
        try:
            self.signature.convert(args)
        except ToolError as error:
            return error.message
        return None

    @property
    def may_need_approval(self) -> bool:
        """Whether there are calls that a person must allow."""
        return self.approval is not False

    def needs_approval(self, args: Mapping[str, Any]) -> bool:
        """Whether a person must allow this call. A predicate that cannot tell (it raised) counts as yes."""
        if isinstance(self.approval, bool):
            return self.approval
        try:
            return bool(self.approval(self.signature.convert(args)))
        except Exception:  # noqa: BLE001 - closed is the safe side
            _log.warning(
                "the approval predicate of tool %r failed; the call waits for a person",
                self.name,
                exc_info=True,
            )
            return True

    def restore(self, value: Any) -> Any:
        """Give a decoded result the declared return type."""
        if self.signature.returns is Any:
            return value
        return codec.restore(value, self.signature.returns, what=f"result of tool {self.name!r}")

    async def call(self, args: Mapping[str, Any], context: ports.ToolContext) -> Any:
        """
        Run it once with recorded arguments; a sync function runs in a thread of its own.

        Raises:
            ToolError: It failed and asserts that nothing happened.
            ToolRaised: It raised what is not an `Exception` (an exit, a cancellation of its own making).
            asyncio.CancelledError: This call was cancelled, and only then.
            Exception: It failed and may have done something.
        """
        kwargs = self.signature.convert(args)
        kwargs.update(dict.fromkeys(self.signature.contexts, context))
        return await offload.call(self.function, kwargs, name=self.name)

    def call_now(self, args: Mapping[str, Any], context: ports.ToolContext) -> Any:
        """
        Run a transactional tool in the calling thread, with recorded arguments.

        Raises:
            BaseException: Whatever it raised; its transaction is then rolled back.
        """
        kwargs = self.signature.convert(args)
        kwargs.update(dict.fromkeys(self.signature.contexts, context))
        function: Callable[..., Any] = self.function
        return function(**kwargs)

    async def reconcile(self, args: Mapping[str, Any], context: ports.ToolContext) -> Reconciled:
        """Ask the outside world about a call in doubt; a reconciler that fails gives `NoAnswer`."""
        if self.reconciler is None:
            return Unknown(f"tool {self.name!r} has no reconciler")
        try:
            offered = self.signature.convert(args)
            offered.update(dict.fromkeys(context_parameters(self.reconciler, self.name), context))
            answer = await offload.call(self.reconciler, _accepted(self.reconciler, offered), name=self.name)
        except Exception as error:  # noqa: BLE001 - the doubt stays, and a person reads why
            return NoAnswer(f"the reconciler of tool {self.name!r} failed: {type(error).__name__}: {error}")
        if isinstance(answer, Happened | DidNotHappen | Unknown):
            return answer
        return NoAnswer(
            f"the reconciler of tool {self.name!r} returned {type(answer).__name__}, "
            "not Happened(value), DidNotHappen() or Unknown()"
        )

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    transactional: bool = False,
    in_doubt: Literal["park", "retry", "tell_model"] | Reconciler | None = None,
    approval: Approval = False,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    idle_timeout_s: float | None = None,
    retries: int = 0,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    transactional: bool = False,
    in_doubt: Literal["park", "retry", "tell_model"] | Reconciler | None = None,
    approval: Approval = False,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    idle_timeout_s: float | None = None,
    retries: int = 0,
) -> Any:
    """
    Make a typed function (sync or async) a `Tool`.

    The model sees its name, its docstring and its parameters; a parameter annotated `ToolContext` is filled in.

    Args:
        function: The function, when the decorator is used without parentheses.
        name: Name for the model; the function's by default.
        description: Text for the model; the docstring up to its first section by default.
        read_only: It changes nothing outside; a call in doubt is run again.
        idempotent: Called twice with one idempotency key it acts once; a call in doubt is run again.
        transactional: It writes to the journal's own database through `context.connection`, in the transaction
            that records its outcome: exactly once. A sync function with a `ToolContext`.
        in_doubt: What becomes of a call that may or may not have happened: "park" (a person decides; the default),
            "retry" (the default of repeatable tools), "tell_model", or a function of any of the tool's parameters
            and a `ToolContext` that looks, and returns `Happened(value)`, `DidNotHappen()` or `Unknown()`.
        approval: Whether a person must allow each call, or a pure predicate on its arguments (a dict).
        timeout_s: Total time one attempt may take, seconds.
        idle_timeout_s: Longest time between heartbeats, seconds, for tools that beat.
        retries: How many more attempts a failed call gets; repeatable tools only.

    Raises:
        ToolDefinitionError: The function cannot be a tool, or the flags contradict each other.
    """

    def define(function: Callable[..., Any]) -> Tool[..., Any]:
        called = name if name is not None else _name(function)
        _check_function(function, called)
        signature = read_signature(function, called)
        policy: ports.InDoubt
        if in_doubt is None:
            policy = "retry" if read_only or idempotent or transactional else "park"
        else:
            policy = "reconcile" if callable(in_doubt) else in_doubt
        made: Tool[..., Any] = Tool(
            name=called,
            description=description if description is not None else describe(inspect.getdoc(function)).text,
            function=function,
            read_only=read_only,
            idempotent=idempotent,
            transactional=transactional,
            in_doubt=policy,
            reconciler=in_doubt if callable(in_doubt) else None,
            approval=approval,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            retries=retries,
            signature=signature,
        )
        return checked(made)

    return define if function is None else define(function)


def checked(made: Tool[..., Any]) -> Tool[..., Any]:
    """
    *made*, if its name and its flags are sound.

    Raises:
        ToolDefinitionError: They are not.
    """
    for why in _contradictions(made):
        raise ToolDefinitionError(f"tool {made.name!r}: {why}")
    return made


def toolbox(tools: Iterable[Tool[..., Any]]) -> dict[str, Tool[..., Any]]:
    """
    *tools* by name, in their order.

    Raises:
        ToolDefinitionError: One is not a tool, or two share a name.
    """
    box: dict[str, Tool[..., Any]] = {}
    for each in tools:
        if not isinstance(each, Tool):
            raise ToolDefinitionError(f"{each!r} is not a tool; decorate the function with @tool")
        if each.name in box:
            raise ToolDefinitionError(f"two tools are named {each.name!r}; give one of them another name=")
        box[each.name] = each
    return box


def _name(function: Any) -> str:
    found = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", None)
    return str(found or type(function).__name__)


def _check_function(function: Any, name: Any) -> None:
    if isinstance(function, Tool):
        raise ToolDefinitionError(f"tool {name!r} is a tool already")
    if not callable(function) or isinstance(function, type | staticmethod | classmethod):
        raise ToolDefinitionError(f"tool {name!r}: @tool takes a function, not {function!r}")
    inner = inspect.unwrap(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise ToolDefinitionError(
            f"tool {name!r} is a generator; a tool returns one result: collect it and return a list"
        )


def _contradictions(made: Tool[..., Any]) -> Iterable[str]:
    """What is wrong with the name or the flags; the first is reported."""
    name: Any = made.name
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        yield "providers take names of 1 to 64 letters, digits, '_' and '-'; pass another name="
    if made.reconciler is None and made.in_doubt not in _POLICIES:
        yield f"in_doubt is 'park', 'retry', 'tell_model' or a function, not {made.in_doubt!r}"
    if made.read_only and made.in_doubt in ("park", "reconcile"):
        yield "it is read_only, so there is nothing to decide or look up when a call is in doubt: leave in_doubt out"
    if made.transactional:
        if made.stoppable or not made.signature.contexts:
            yield "a transactional tool is a sync function that takes a ToolContext, for its connection"
        if made.read_only or made.in_doubt != "retry":
            yield "it is transactional: a call in doubt has not happened; leave read_only and in_doubt out"
    if made.reconciler is not None:
        yield from _unfit_reconciler(made, made.reconciler)
    if not isinstance(made.approval, bool) and not callable(made.approval):
        yield f"approval is True, False or a predicate on the arguments, not {made.approval!r}"
    if callable(made.approval) and offload.is_async(made.approval):
        yield "its approval predicate is async; it must be a pure function of the arguments"
    if not is_time(made.timeout_s):
        yield f"timeout_s is a finite number of seconds over 0, not {made.timeout_s!r}; a call must end some time"
    elif made.idle_timeout_s is not None:
        if not is_time(made.idle_timeout_s) or made.idle_timeout_s > made.timeout_s:
            yield f"idle_timeout_s is over 0 and at most timeout_s ({made.timeout_s:g}), not {made.idle_timeout_s!r}"
        if not made.signature.contexts:
            yield "it has an idle_timeout_s and no ToolContext to send heartbeats with: take one, or leave it out"
    if type(made.retries) is not int or not 0 <= made.retries <= RETRIES_MAX:
        yield f"retries is a number from 0 to {RETRIES_MAX}, not {made.retries!r}"
    elif made.retries and not made.repeatable:
        yield "retries run it again after it may have acted: declare it read_only or idempotent, or leave them out"


def is_time(value: Any) -> bool:
    """Whether *value* is a finite number of seconds over 0."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value)
    )


def _unfit_reconciler(made: Tool[..., Any], reconciler: Reconciler) -> Iterable[str]:
    known = {parameter.name for parameter in made.signature.parameters}
    known.update(context_parameters(reconciler, made.name))
    for parameter in inspect.signature(reconciler).parameters.values():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            yield f"parameter {parameter.name!r} of its reconciler is positional-only; arguments are passed by name"
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if not optional and parameter.name not in known:
            yield f"its reconciler asks for {parameter.name!r}, neither a parameter of the tool nor a ToolContext"


def _accepted(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}
