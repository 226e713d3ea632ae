"""What of a litellm exception is recorded: our own kind of failure, and what the provider said."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime

from ..replay.errors import ModelError, ModelErrorKind
from .model_replies import malformed
from .secrets import Scrubber

MESSAGE_CHARACTERS_MAX = 2000

_TRACEBACK = re.compile(r"\s*Traceback \(most recent call last\)|\s+\Z")

# By the names of classes, the most telling first: litellm's own classes change their bases between versions.
_BY_CLASS: tuple[tuple[str, ModelErrorKind], ...] = (
    ("ContextWindowExceededError", "context_too_long"),
    ("ContentPolicyViolationError", "refused"),
    ("AuthenticationError", "auth"),
    ("PermissionDeniedError", "auth"),
    ("Timeout", "timeout"),
    ("TimeoutError", "timeout"),
    ("RateLimitError", "rate_limit"),
    ("ServiceUnavailableError", "overloaded"),
    ("BadGatewayError", "overloaded"),
    ("APIConnectionError", "connection"),
    ("APIResponseValidationError", "malformed"),
    ("JSONSchemaValidationError", "malformed"),
    ("UnprocessableEntityError", "bad_request"),
    ("NotFoundError", "bad_request"),
    ("BadRequestError", "bad_request"),
)
_BY_STATUS: dict[int, ModelErrorKind] = {
    401: "auth",
    402: "auth",
    403: "auth",
    408: "timeout",
    409: "overloaded",
    413: "context_too_long",
    429: "rate_limit",
    504: "timeout",
}
_BY_CODE: dict[str, ModelErrorKind] = {
    "context_length_exceeded": "context_too_long",
    "content_policy_violation": "refused",
    "content_filter": "refused",
    "insufficient_quota": "auth",
    "invalid_api_key": "auth",
    "model_not_found": "bad_request",
}
_CONNECTION = frozenset({"APIConnectionError", "TransportError", "ClientConnectionError", "ConnectionError"})
_TIMEOUT = frozenset({"APITimeoutError", "TimeoutException", "ConnectionTimeoutError"})


def read_failure(error: BaseException, scrub: Scrubber) -> ModelError:
    """The recorded form of *error*, which litellm raised."""
    if isinstance(error, ModelError):
        return error
    # What broke a stream is wrapped as if another model should be asked, which is ours to decide.
    if "MidStreamFallbackError" in _class_names(error):
        error = getattr(error, "original_exception", None) or error
    headers = _headers(error)
    status = _status(error, headers)
    kind = _kind(error, status, headers)
    said = scrub.text(_TRACEBACK.split(str(error), maxsplit=1)[0]) or type(error).__name__
    if len(said) > MESSAGE_CHARACTERS_MAX:
        said = f"{said[:MESSAGE_CHARACTERS_MAX]}... ({len(said)} characters)"
    if kind == "malformed":
        return malformed(said)
    return ModelError(
        said, kind=kind, error_type=type(error).__name__, status=status, retry_after_s=_retry_after_s(headers)
    )


def _kind(error: BaseException, status: int | None, headers: Mapping[str, str]) -> ModelErrorKind:
    by_code = _BY_CODE.get(str(getattr(error, "code", None))) or _BY_CODE.get(_body_code(error))
    if by_code:
        return by_code
    own = _class_names(error)
    for name, kind in _BY_CLASS:
        if name in own:
            return kind
    if status is not None:
        if status in _BY_STATUS:
            return _BY_STATUS[status]
        return "overloaded" if status >= 500 else "bad_request" if status >= 400 else "other"
    causes = {name for cause in _chain(error) for name in _class_names(cause)}
    if causes & _TIMEOUT:
        return "timeout"
    if causes & _CONNECTION:
        return "connection"
    if "issing credentials" in str(error) or "api_key client option" in str(error):
        return "auth"
    # litellm says "internal server error" of an answer it could not read.
    return "malformed" if "InternalServerError" in own or "APIError" in own else "other"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _class_names(error: BaseException) -> set[str]:
    return {each.__name__ for each in type(error).__mro__}


def _body_code(error: BaseException) -> str:
    body = getattr(error, "body", None)
    code = body.get("code") if isinstance(body, Mapping) else None
    return code if isinstance(code, str) else ""


def _headers(error: BaseException) -> dict[str, str]:
    """Headers of the HTTP answer; empty where there was none (litellm makes up a response then)."""
    for each in _chain(error):
        found = getattr(each, "litellm_response_headers", None) or getattr(
            getattr(each, "response", None), "headers", None
        )
        if found:
            return {str(name).lower(): str(value) for name, value in dict(found).items()}
    return {}


def _status(error: BaseException, headers: Mapping[str, str]) -> int | None:
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 599:
        return None
    # Without an HTTP answer a 500 is litellm's own word for "something went wrong".
    return status if headers or status != 500 else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    asked = headers.get("retry-after")
    seconds = _number(asked)
    if seconds is not None or asked is None:
        return seconds
    try:
        # Both dates are the provider's clock, so ours does not matter.
        wait = parsedate_to_datetime(asked) - parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, wait.total_seconds())


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None
