"""What a tool call can turn out to be when it is not simply a result: raised, or looked up after a doubt."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ToolRaised(Exception):
    """
    A tool itself raised something that must not travel as it is.

    Stands for an exception that would otherwise be taken for cancellation of the call, for the end of the
    process or for the end of an iteration: what is not an `Exception`, and `StopIteration`.

    Args:
        original: What the tool raised.
    """

    def __init__(self, original: BaseException) -> None:
        super().__init__(f"the tool raised {type(original).__name__}: {original}".rstrip(": "))
        self.original = original
        self.error_type = type(original).__name__


class Happened(Struct, frozen=True):
    """A reconciler's answer: the call did happen, and this is its result."""

    value: Any = None


class DidNotHappen(Struct, frozen=True):
    """A reconciler's answer: the call did not happen; it may be run again."""


class Unknown(Struct, frozen=True):
    """A reconciler's answer: it cannot tell. The run is parked for a person, who reads *why*."""

    why: str = ""


class NoAnswer(Unknown, frozen=True):
    """The reconciler itself failed, or returned something else: treated as `Unknown`."""


Reconciled = Happened | DidNotHappen | Unknown
