"""Tools with every kind of argument, and a context to call them with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any

import pydantic
from refold.agent.context import ToolContext
from refold.agent.tools import tool


@dataclass
class Line:
    sku: str
    count: int = 1


class Street(pydantic.BaseModel):
    name: str


class Customer(pydantic.BaseModel):
    email: str
    street: Street | None = None


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


@tool(idempotent=True)
async def place_order(
    ctx: ToolContext,
    customer: Customer,
    lines: list[Line],
    speed: Speed = Speed.SLOW,
    day: date | None = None,
    note: Annotated[str, "Printed on the parcel."] = "",
) -> str:
    """
    Place an order.

    Prices are today's.

    Args:
        ctx: Not for the model.
        customer (Customer): Who pays,
            and where they live.
        lines: What is ordered.
        note: Not used, the annotation says more.

    Returns:
        The order's number.
    """
    return f"{customer.email} {lines[0].sku} {speed.name} {day} {ctx.idempotency_key}"


@tool
def ping() -> str:
    """Answer."""
    return "pong"


def context(**fields: Any) -> ToolContext:
    return ToolContext(**{"idempotency_key": "key", "thread": "t", "call": "r/1", **fields})
