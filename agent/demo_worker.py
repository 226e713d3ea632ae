"""The worker of `refold demo`: runs the refund agent in a process of its own, and stops where it is to be killed."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..journal import codec
from ..journal.errors import ThreadBusy
from ..journal.journal import Journal
from ..replay.ports import ModelClient, ModelReply
from .agent import Agent
from .context import ToolContext
from .programs import LazyClient
from .scripted import ScriptedModel, call, say
from .tools import tool

QUESTION = "My parcel for order 1017 arrived broken. Please refund it and confirm by mail to kim@example.org."
LEASE_TTL_S = 2.0
_INSTRUCTIONS = (
    "You are the support agent of a shop. Look the order up, refund it once in full, then confirm by mail, "
    "one tool after the other. When all of that is done, answer in one sentence."
)


def make_agent(folder: Path, model: str | None, stop: Callable[[str], None] = lambda where: None) -> Agent:
    """
    The demo's agent; what its tools do goes into `effects.jsonl` in *folder*, what is asked into `model.jsonl`.

    Args:
        folder: Where the files are.
        model: A litellm model; by default a script answers.
        stop: Called where the worker may have to stop: "after refund", "in send_email".
    """

    def did(what: str, context: ToolContext, **more: Any) -> None:
        append_line(
            folder / "effects.jsonl",
            {"did": what, "key": context.idempotency_key, "pid": os.getpid(), **more},
        )

    @tool(read_only=True)
    def lookup_order(order: str) -> dict[str, Any]:
        """Find an order."""
        return {"order": order, "item": "teapot", "paid_cents": 3490, "state": "delivered"}

    @tool
    def refund(order: str, cents: int, context: ToolContext) -> dict[str, Any]:
        """Pay money back to the customer of an order."""
        did("refund", context, order=order, cents=cents)
        return {"order": order, "refunded_cents": cents}

    @tool(idempotent=True)
    def send_email(to: str, subject: str, text: str, context: ToolContext) -> str:
        """Send a mail to a customer."""
        did("send_email", context, to=to)
        stop("in send_email")
        return f"sent to {to}"

    return Agent(
        "support",
        model=_Logged(folder, model, stop),
        tools=[lookup_order, refund, send_email],
        instructions=_INSTRUCTIONS,
    )


class _Logged:
    """A model client that writes down what it is asked, before it asks."""

    def __init__(self, folder: Path, model: str | None, stop: Callable[[str], None]) -> None:
        self.name = model or "scripted"
        self._path = folder / "model.jsonl"
        self._stop = stop
        self._client: ModelClient = ScriptedModel(_SCRIPT) if model is None else LazyClient()

    async def respond(self, request: Mapping[str, Any]) -> ModelReply:
        messages = list(request["messages"])
        names = {
            made["id"]: made["function"]["name"]
            for message in messages
            for made in message.get("tool_calls") or ()
        }
        if any(names.get(message.get("tool_call_id")) == "refund" for message in messages):
            await asyncio.to_thread(self._stop, "after refund")
        digest = hashlib.sha256(codec.encode(messages, what="messages")).hexdigest()
        append_line(self._path, {"request": digest, "messages": len(messages), "pid": os.getpid()})
        return await self._client.respond(request)


_SCRIPT = (
    call("lookup_order", order="1017"),
    call("refund", order="1017", cents=3490),
    call(
        "send_email",
        to="kim@example.org",
        subject="Your refund for order 1017",
        text="We have refunded 34.90 for the teapot that arrived broken.",
    ),
    say("Order 1017 is refunded in full (34.90), and a confirmation is on its way to kim@example.org."),
)


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line, on disk when this returns, whole or not at all."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, (json.dumps(value) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def main() -> None:
    """Run the agent on a thread, or go on with the run that a killed worker began: it is the same call."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("thread")
    parser.add_argument("--model")
    parser.add_argument("--stop-after")
    parser.add_argument("--stop-in")
    options = parser.parse_args()

    def stop(where: str) -> None:
        if where in (f"after {options.stop_after}", f"in {options.stop_in}"):
            print("stopped", where, flush=True)  # noqa: T201 - the parent reads it
            threading.Event().wait()

    agent = make_agent(options.folder, options.model, stop)
    with Journal.open(lease_ttl_s=LEASE_TTL_S) as journal:
        result = None
        while result is None:
            try:
                result = agent.run_sync(QUESTION, journal=journal, thread=options.thread)
            except ThreadBusy as busy:
                # Where the death of the worker before cannot be seen, its lease runs out.
                time.sleep(busy.remaining_s)
    print(result.status, result.output, flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main()
