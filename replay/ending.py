"""How a tenure of a run ends."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from . import events as ev

Status = Literal["finished", "failed", "cancelled", "parked", "waiting", "released"]

ENDS: dict[type, Status] = {
    ev.RunFinished: "finished",
    ev.RunFailed: "failed",
    ev.RunCancelled: "cancelled",
}
"""What the event that ends a run makes of it."""


OVERDUE = "its deadline has passed"
"""Why a run was cancelled that was given a time and has used it up."""


class End(Struct, frozen=True, kw_only=True):
    """How a tenure ended, and when the run wants to be taken up again."""

    status: Status
    wake_at: int | None = None
