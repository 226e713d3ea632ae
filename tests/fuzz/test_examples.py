"""The agents in examples/ come through every crash, on what they really act on."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from refold import ScriptedModel
from refold.agent.scripted import call
from refold.replay.fuzz import every_crash_point

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [
    call("lookup_order", order="1018"),
    [
        call("refund", order="1018", cents=48_900),
        call("send_email", to="sam@example.org", subject="Refund", text="On its way."),
    ],
    "It is refunded.",
]


@pytest.mark.slow
def test_the_support_agent_on_its_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shop.sqlite"
    monkeypatch.setenv("SHOP", str(file))
    monkeypatch.syspath_prepend(str(ROOT))
    from examples import support

    def fresh() -> Path:
        file.unlink(missing_ok=True)
        return file

    def look(file: Path) -> dict[str, list[Any]]:
        if not file.exists():
            return {}
        database = sqlite3.connect(file)
        tables = {
            table: database.execute(f"select * from {table}").fetchall() for table in ("refunds", "mails")
        }
        database.close()
        return tables

    tried = every_crash_point(
        support.agent, "Refund order 1018", model=ScriptedModel(SCRIPT), world=fresh, look=look
    )

    assert tried.histories > 30
    assert {"approval_given", "run_finished"} <= set(tried.kinds)
