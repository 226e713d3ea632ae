"""
A support agent on a small shop: it looks orders up, refunds them and writes to customers.

    refold run examples.support:agent "Order 1017 arrived broken, please refund it" --thread ticket-8231

The model's name comes from $MODEL, the shop is the SQLite file $SHOP (shop.sqlite by default).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Any

from refold import Agent, ToolContext, ToolError, tool

ORDERS = [
    ("1017", "kim@example.org", "teapot", 3490),
    ("1018", "sam@example.org", "espresso machine", 48900),
]


@contextlib.contextmanager
def shop() -> Iterator[sqlite3.Connection]:
    """The shop's database, made with a few orders in it if it is not there."""
    database = sqlite3.connect(os.environ.get("SHOP", "shop.sqlite"), timeout=30)
    try:
        with database:
            database.executescript(
                """
                create table if not exists orders (id text primary key, customer text, item text, cents integer);
                create table if not exists refunds (order_id text, cents integer);
                create table if not exists mails (key text primary key, recipient text, subject text, body text);
                """
            )
            database.executemany("insert or ignore into orders values (?, ?, ?, ?)", ORDERS)
        with database:
            yield database
    finally:
        database.close()


@tool(read_only=True)
def lookup_order(order: str) -> dict[str, Any]:
    """Find an order: who bought what, for how much, and what was paid back."""
    with shop() as database:
        row = database.execute("select customer, item, cents from orders where id = ?", [order]).fetchone()
        if row is None:
            raise ToolError(f"there is no order {order}")
        refunded = database.execute("select coalesce(sum(cents), 0) from refunds where order_id = ?", [order])
        return {"customer": row[0], "item": row[1], "cents": row[2], "refunded_cents": refunded.fetchone()[0]}


# Not repeatable: after a crash in the middle of it, refold parks the run and asks a person what happened.
# Large refunds wait for a person before they begin: refold approve THREAD CALL.
@tool(approval=lambda args: args["cents"] > 10_000)
def refund(order: str, cents: int) -> dict[str, Any]:
    """
    Pay money back to the customer of an order.

    Args:
        order: Number of the order.
        cents: How much, in cents.
    """
    with shop() as database:
        row = database.execute("select cents from orders where id = ?", [order]).fetchone()
        if row is None:
            raise ToolError(f"there is no order {order}")
        if not 0 < cents <= row[0]:
            raise ToolError(f"a refund of order {order} is 1 to {row[0]} cents")
        database.execute("insert into refunds values (?, ?)", [order, cents])
        return {"order": order, "refunded_cents": cents}


# Idempotent: the mail service knows a message by its key, so refold may send it again after a crash.
@tool(idempotent=True)
def send_email(to: str, subject: str, text: str, context: ToolContext) -> str:
    """Send a mail to a customer."""
    with shop() as database:
        mail = [context.idempotency_key, to, subject, text]
        database.execute("insert or ignore into mails values (?, ?, ?, ?)", mail)
    return f"sent to {to}"


agent = Agent(
    "support",
    model=os.environ.get("MODEL", "openai/gpt-4o-mini"),
    tools=[lookup_order, refund, send_email],
    instructions=(
        "You are the support agent of a small shop. Look an order up before you act on it, refund what the customer "
        "is owed once, confirm it by mail, and then answer in one or two sentences."
    ),
)
