"""Exceptions as data: what an error said, kept without anything that would import or rebuild a class."""

from __future__ import annotations

from msgspec import Struct

ERROR_TEXT_MAX = 10_000
"""Characters kept of an error's message, and of each of its notes; the middle of a longer one is cut."""
ERROR_DEPTH_MAX = 4
"""How many causes of causes are kept."""
ERROR_WIDTH_MAX = 8
"""How many causes, and how many notes, are kept of one error."""


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    """
    An exception as it is recorded.

    Args:
        type: The class, `ValueError` or `package.module.Class`; a name to compare, never to import.
        message: `str(exception)`, cleaned and bounded.
        retryable: What the exception says of itself; None if it says nothing.
        notes: Texts added with `add_note`.
        causes: Members of a group, else the cause, or the context unless suppressed.
    """

    type: str
    message: str
    retryable: bool | None = None
    notes: tuple[str, ...] = ()
    causes: tuple[ErrorInfo, ...] = ()


def describe_error(exc: BaseException) -> ErrorInfo:
    """
    *exc* as data, bounded in size and depth. Never raises, whatever the exception's own methods do.

    The text is cleaned by `clean_text` and cut to `ERROR_TEXT_MAX` characters.
    """
    return _describe(exc, ERROR_DEPTH_MAX)


def clean_text(text: str, *, limit: int = ERROR_TEXT_MAX) -> str:
    r"""*text* with lone surrogates and NUL written out (`\ud800`, `\x00`), its middle cut over *limit* characters."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} ... [{len(text) - 2 * half} characters cut] ... {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _describe(exc: BaseException, depth: int) -> ErrorInfo:
    name = type_name(type(exc))
    try:
        message = clean_text(str.__str__(str(exc)))
    except Exception as broken:  # noqa: BLE001  its own code may raise anything; describing must not
        message = f"(no message: str() of this {name} raised {type_name(type(broken))})"
    causes = tuple(_describe(cause, depth - 1) for cause in _causes(exc)) if depth > 0 else ()
    return ErrorInfo(name, message, _retryable(exc), _notes(exc), causes)


def type_name(kind: type) -> str:
    """The name of *kind* as people write it; its module in front unless it is a built-in."""
    try:
        module, name = type.__getattribute__(kind, "__module__"), type.__getattribute__(kind, "__qualname__")
        return clean_text(name if module == "builtins" else f"{module}.{name}", limit=200)
    except Exception:  # noqa: BLE001  as above
        return "unnamed type"


def _causes(exc: BaseException) -> list[BaseException]:
    try:
        if isinstance(exc, BaseExceptionGroup):
            return list(exc.exceptions[:ERROR_WIDTH_MAX])
        cause = exc.__cause__
        if cause is None and not exc.__suppress_context__:
            cause = exc.__context__
        return [] if cause is None else [cause]
    except Exception:  # noqa: BLE001  as above
        return []


def _notes(exc: BaseException) -> tuple[str, ...]:
    try:
        notes = list(getattr(exc, "__notes__", ()))[:ERROR_WIDTH_MAX]
        return tuple(clean_text(str.__str__(note)) for note in notes if isinstance(note, str))
    except Exception:  # noqa: BLE001  as above
        return ()


def _retryable(exc: BaseException) -> bool | None:
    try:
        said = getattr(exc, "retryable", None)
    except Exception:  # noqa: BLE001  as above
        return None
    if isinstance(said, bool):
        return said
    return True if isinstance(exc, (ConnectionError, TimeoutError)) else None
