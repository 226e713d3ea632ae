"""What of a litellm response is recorded: everything the next request must carry, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..journal import codec
from ..replay.errors import ModelError
from ..replay.ports import ModelReply, Usage
from .arguments import BadArguments, parse_arguments

_INVENTED = ("function_call", "tool_calls")
_KNOWN = frozenset({"choices", "id", "model", "object", "usage"})


def read_response(dump: Mapping[str, Any], cost_usd: Any) -> ModelReply:
    """
    The recorded form of a response.

    Args:
        dump: `ModelResponse.model_dump()`.
        cost_usd: What litellm reckons the response cost, dollars; None when unknown.

    Raises:
        ModelError: It is no usable answer (kind "malformed"); what it used is told.
    """
    usage = read_usage(dump.get("usage"), cost_usd)
    choices = dump.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise malformed("it holds no choices", usage)
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise malformed("its first choice holds no message", usage)
    # litellm adds these two to every message; providers refuse them when they are null.
    kept = {name: value for name, value in message.items() if value is not None or name not in _INVENTED}
    kept.setdefault("role", "assistant")
    finish_reason = choice.get("finish_reason")
    _check_complete(kept, finish_reason, usage)
    return ModelReply(
        message=kept,
        finish_reason=_text(finish_reason),
        id=_text(dump.get("id")),
        model=_text(dump.get("model")),
        usage=usage,
        extra=_extra(dump, choice, usage != Usage()),
    )


def _text(value: Any) -> str | None:
    """A word of the provider's as text: some send numbers."""
    return None if value is None else codec.clean_text(str(value))


def malformed(why: str, usage: Usage = Usage()) -> ModelError:  # noqa: B008 - it is frozen
    """The error of an answer that cannot be used, but is paid for: *usage*, as far as that is known."""
    return ModelError(
        f"the provider's answer cannot be used: {why}",
        kind="malformed",
        error_type="MalformedResponse",
        usage=usage,
    )


def _check_complete(message: Mapping[str, Any], finish_reason: Any, usage: Usage) -> None:
    """Calls of an answer that was cut short may hold half their arguments: they are never executed."""
    if finish_reason not in ("length", "content_filter"):
        return
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        raw = function.get("arguments")
        arguments = parse_arguments(raw)
        if isinstance(arguments, BadArguments) or not raw:
            why = "it reached its token limit" if finish_reason == "length" else "its content was filtered"
            raise malformed(
                f"{why} in the middle of a call of tool {function.get('name')!r}, whose arguments are incomplete; "
                "raise max_tokens or ask for less",
                usage,
            )


def read_usage(usage: Any, cost_usd: Any) -> Usage:
    """
    What a response used, as far as the provider said.

    Args:
        usage: Its `usage`, in litellm's words.
        cost_usd: What litellm reckons it cost, dollars; None when unknown.
    """
    found: Mapping[str, Any] = usage if isinstance(usage, Mapping) else {}
    incoming, outgoing = _count(found.get("prompt_tokens")), _count(found.get("completion_tokens"))
    # litellm writes zeros where the provider said nothing; no answer costs nothing.
    if not incoming and not outgoing:
        return Usage()
    cost_micro = None
    if isinstance(cost_usd, int | float) and not isinstance(cost_usd, bool) and math.isfinite(cost_usd):
        cost_micro = round(cost_usd * 1_000_000)
    return Usage(
        input_tokens=incoming,
        output_tokens=outgoing,
        cached_tokens=_count(_part(found, "prompt_tokens_details").get("cached_tokens")),
        reasoning_tokens=_count(_part(found, "completion_tokens_details").get("reasoning_tokens")),
        cost_micro=cost_micro,
    )


def _part(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = usage.get(name)
    return part if isinstance(part, Mapping) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _extra(dump: Mapping[str, Any], choice: Mapping[str, Any], usage_known: bool) -> dict[str, Any]:
    extra = {
        name: value for name, value in dump.items() if name not in _KNOWN and value not in (None, {}, [])
    }
    of_choice = {
        name: value
        for name, value in choice.items()
        if name not in ("message", "finish_reason", "index") and value not in (None, {}, [])
    }
    if of_choice:
        extra["choice"] = of_choice
    usage = dump.get("usage")
    if usage_known and isinstance(usage, Mapping):
        extra["usage"] = {name: value for name, value in usage.items() if value not in (None, {}, [])}
    return extra
