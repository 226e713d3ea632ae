"""A small shop with a bank and a mail service, all fake, and agents and programs that act on it."""

from __future__ import annotations

import asyncio
from typing import Any

from refold import Agent, Run, ScriptedModel, ToolContext, ToolError, program, tool
from refold.agent.scripted import call, say
from refold.replay.outcomes import DidNotHappen, Happened


class Shop:
    """What the outside world has seen."""

    def __init__(self) -> None:
        self.refunds: list[tuple[int, int]] = []
        self.mails: dict[str, str] = {}
        self.bookings: dict[str, int] = {}
        self.notes: list[str] = []


shop = Shop()


@tool(read_only=True)
def find_order(order: int) -> dict[str, int]:
    """Look an order up."""
    return {"order": order, "paid": 30}


@tool(approval=lambda args: args["amount"] > 100)
def refund(order: int, amount: int) -> str:
    """Pay money back; not repeatable."""
    shop.refunds.append((order, amount))
    return f"refunded {amount}"


@tool(idempotent=True)
async def notify(order: int, text: str, context: ToolContext) -> str:
    """Write to the customer; the service knows the key."""
    await asyncio.sleep(0)
    shop.mails[context.idempotency_key] = f"{order}: {text}"
    return "sent"


def seen_by_airline(seat: int, context: ToolContext) -> Happened | DidNotHappen:
    """The airline knows each booking by its key."""
    known = shop.bookings.get(context.idempotency_key)
    return DidNotHappen() if known is None else Happened(f"booked {known}")


@tool(in_doubt=seen_by_airline)
def book(seat: int, context: ToolContext) -> str:
    """Book a seat."""
    assert context.idempotency_key not in shop.bookings
    shop.bookings[context.idempotency_key] = seat
    return f"booked {seat}"


@tool(in_doubt="tell_model")
def post(text: str) -> str:
    """Post a note."""
    shop.notes.append(text)
    return "posted"


@tool
def burn(what: str) -> str:
    """Act, and then fail."""
    shop.notes.append(f"burnt {what}")
    raise RuntimeError("the fire brigade came")


@tool
def close(order: int) -> str:
    """Refuse, with nothing done."""
    raise ToolError(f"order {order} is open")


def fetch(page: str) -> dict[str, str]:
    """A step."""
    return {"page": page}


SCRIPT = [
    call("find_order", order=17),
    say("Both now.", call("refund", order=17, amount=30), call("notify", order=17, text="soon")),
    call("refund", order=17, amount=500),
    "Your order is refunded.",
]

support = Agent(
    "support",
    model="openai/gpt-4o-mini",
    tools=[find_order, refund, notify],
    instructions=lambda run: f"You refund orders. It is {run.now():%Y}.",
)


def script() -> ScriptedModel:
    return ScriptedModel(SCRIPT)


@program
async def errands(run: Run, order: int) -> Any:
    """A parallel pair, a sequential call, a step, a timer, a wait, an approval, a look at chance."""
    both = await run.gather(run.tool(refund, order=order, amount=30), run.tool(notify, order=order, text="a"))
    seat = await run.tool(book, seat=run.random.randrange(100))
    page = await run.step(fetch, "terms")
    await run.sleep(3600)
    word = await run.wait_for("publish?", timeout=86_400)
    held = await run.tool(refund, order=order, amount=101)
    return [both, seat, page, word, held]
