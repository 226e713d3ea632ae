"""`examples/support.py` on the real path: the command line, litellm, HTTP, Postgres, SQLite."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from openai_server import OpenAIServer
from refold.journal.journal import Journal

ROOT = Path(__file__).parents[2]
SCRIPT = {
    "replies": [
        {"calls": [{"name": "lookup_order", "arguments": {"order": "1017"}}]},
        {"calls": [{"name": "refund", "arguments": {"order": "1017", "cents": 3490}}]},
        {
            "calls": [
                {
                    "name": "send_email",
                    "arguments": {
                        "to": "kim@example.org",
                        "subject": "Refund",
                        "text": "34.90 are on their way.",
                    },
                }
            ]
        },
        {"text": "Order 1017 is refunded."},
    ]
}
# Postgres is reached by libpq, which does not go through Python's sockets.
OFFLINE = """
import socket, sys
def refuse(*args, **options): raise AssertionError("a network call")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from refold.cli import cli
try:
    cli.main(sys.argv[1:])
finally:
    assert "litellm" not in sys.modules
"""


def run(
    script: str, *args: str, dsn: str, shop: Path, base_url: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "REFOLD_DSN": dsn,
        "SHOP": str(shop),
        "OPENAI_API_KEY": "sk-0123456789",
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
    }
    command = [sys.executable, "-P", "-c", script, *args]
    return subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_support_agent_runs_through_litellm_and_replays_without_the_network(
    pg_dsn: str, tmp_path: Path
) -> None:
    shop = tmp_path / "shop.sqlite"
    with OpenAIServer(SCRIPT) as server:
        main = "from refold.cli import main; main()"
        args = ("run", "examples.support:agent", "Order 1017 broke, refund it", "--thread", "ticket")
        done = run(main, *args, dsn=pg_dsn, shop=shop, base_url=server.base_url)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "Order 1017 is refunded.\n"
        assert len(server.requests) == 4

    replayed = run(OFFLINE, "replay", "ticket", "--agent", "examples.support:agent", dsn=pg_dsn, shop=shop)

    assert replayed.returncode == 0, replayed.stderr
    assert "events match support; nothing was called" in replayed.stdout
    with sqlite3.connect(shop) as database:
        assert database.execute("select * from refunds").fetchall() == [("1017", 3490)]
        assert database.execute("select recipient from mails").fetchall() == [("kim@example.org",)]
    database.close()
    with Journal.open(pg_dsn) as journal:
        assert not any(b"sk-0123456789" in event.body for event in journal.read("ticket"))


def test_the_support_agent_s_tools_hold_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("SHOP", str(tmp_path / "shop.sqlite"))
    from refold import ToolContext, ToolError

    from examples import support

    assert support.refund("1017", 1000) == {"order": "1017", "refunded_cents": 1000}
    assert support.lookup_order("1017")["refunded_cents"] == 1000
    for order, cents in (("9999", 1), ("1017", 0), ("1017", 3491)):
        with pytest.raises(ToolError, match=order):
            support.refund(order, cents)
    for _ in range(2):
        support.send_email("kim@example.org", "s", "t", ToolContext(idempotency_key="k"))
    with support.shop() as database:
        assert database.execute("select count(*) from mails").fetchone() == (1,)
    assert not support.refund.needs_approval({"order": "1018", "cents": 10_000})
    assert support.refund.needs_approval({"order": "1018", "cents": 10_001})
