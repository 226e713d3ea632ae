"""Tools as the engine sees them; what they do outside is for the simulator to tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from refold.replay.ports import InDoubt


class SimTool(Struct, frozen=True, eq=False, kw_only=True):
    """A tool as the engine sees it; the simulator keeps the ledger of what it does."""

    name: str
    act: Callable[..., Any]
    repeatable: bool = False
    read_only: bool = False
    in_doubt: InDoubt = "park"
    timeout_s: float = 4.0
    idle_timeout_s: float | None = None
    retries: int = 0
    approval: bool = False
    stoppable: bool = False
    transactional: bool = False
    look_up: Callable[..., Any] | None = None

    @property
    def may_need_approval(self) -> bool:
        return self.approval

    def needs_approval(self, args: Mapping[str, Any]) -> bool:
        return self.approval

    def arguments(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        assert not args
        return kwargs

    def restore(self, value: Any) -> Any:
        return value

    async def call(self, args: Mapping[str, Any], context: Any) -> Any:
        return self.act(**args)

    def call_now(self, args: Mapping[str, Any], context: Any) -> Any:
        context.connection.write(args)
        return self.act(**args)

    async def reconcile(self, args: Mapping[str, Any], context: Any) -> Any:
        assert self.look_up is not None
        return self.look_up(context, **args)


def unsafe(name: str, act: Callable[..., Any], **more: Any) -> SimTool:
    return SimTool(name=name, act=act, **more)


def idempotent(name: str, act: Callable[..., Any], **more: Any) -> SimTool:
    return SimTool(name=name, act=act, repeatable=True, in_doubt="retry", **more)


pay = unsafe("pay", lambda amount: {"paid": amount})
look = idempotent("look", lambda key: {"saw": key}, retries=1)
# That it may be tried again is not heeded: it may not run twice.
ship = unsafe("ship", lambda to: {"shipped": to}, retries=1)
enter = idempotent("enter", lambda amount: {"entered": amount}, transactional=True, retries=1)
brew = idempotent("brew", lambda what: {"brewed": what})
