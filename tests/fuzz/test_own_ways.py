"""A program that goes by what is not of its run, or acts by itself, is told so; what is harmless is left alone."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fuzz.shop import fetch, find_order, notify, refund, shop
from refold import Agent, DidNotHappen, Happened, Run, ScriptedModel, ToolContext, program, tool
from refold.agent.scripted import call
from refold.replay.fuzz import PromiseBroken, every_crash_point


def doing(*acts: Callable[[Run], object]) -> Any:
    @program
    async def runs(run: Run) -> Any:
        found = await run.tool(find_order, order=17)
        for act in acts:
            act(run)
        return await run.tool(refund, order=17, amount=found["paid"])

    return runs


def text_of(tried: Any, value: Any = None, **options: Any) -> str:
    with pytest.raises(PromiseBroken) as caught:
        every_crash_point(tried, value, **{"world": shop, **options})
    return str(caught.value)


# What it goes by


def of_a_stream_without_a_seed(run: Run) -> object:
    return STREAM.random()


def chosen_by_a_stream(run: Run) -> object:
    return STREAM.choice("ab")


def year(run: Run) -> object:
    return time.strftime("%Y")


def sleeps(run: Run) -> object:
    return time.sleep(0)


def setting(run: Run) -> object:
    return os.environ.get("REFOLD_CRASH_TEST")


def setting_of(run: Run) -> object:
    return os.getenv("REFOLD_CRASH_TEST")


def process(run: Run) -> object:
    return os.getpid()


def any_of(run: Run) -> object:
    return {"a", "b"}.pop()


STREAM = random.Random(17)

TAKEN = {
    of_a_stream_without_a_seed: "Random.random",
    chosen_by_a_stream: "random.choice",
    year: "time.strftime",
    sleeps: "time.sleep",
    setting: "os.environ",
    setting_of: "os.environ",
    process: "os.getpid",
    any_of: "the order of a set",
}


@pytest.mark.parametrize("act, named", TAKEN.items(), ids=[act.__name__ for act in TAKEN])
def test_what_another_process_would_find_otherwise_is_told(act: Callable[[Run], object], named: str) -> None:
    text = text_of(doing(act))

    assert f"{named} in {act.__name__}, test_own_ways.py:" in text
    assert "a program goes by its run and its input alone" in text
    assert len(text.splitlines()) <= 40
    every_crash_point(doing(act), world=shop, own_clock=True)


def test_a_clock_that_was_read_once_for_all_histories_is_told() -> None:
    @functools.cache
    def began() -> float:
        return time.time()

    assert "time.time in began, test_own_ways.py:" in text_of(doing(lambda run: began()))


def test_an_object_that_is_shown_by_its_address_is_told() -> None:
    @tool(read_only=True)
    def describe(what: str) -> str:
        """Tools may: what they return is recorded."""
        return f"{what}: {object()}"[:9]

    def agent(shown: object) -> Agent:
        script = ScriptedModel([call("describe", what="a room"), "ok"])
        return Agent("shows", model=script, tools=[describe], instructions=lambda run: f"Use {shown}.")

    text = " ".join(text_of(agent(agent), "Go").split())

    assert "the address of an object in what model r1/1 was asked: <function test_an_object_" in text
    every_crash_point(agent("<a thing at 0xyz>"), "Go", world=shop)


def test_calls_made_in_the_order_of_a_set_are_told() -> None:
    names = {"a", "b"}

    @program
    async def gathers(run: Run) -> Any:
        await run.gather(*(run.tool(notify, order=1, text=name) for name in names))

    @program
    async def sorts(run: Run) -> Any:
        asked = sorted(name.upper() for name in names)
        await run.gather(*(run.tool(notify, order=1, text=name) for name in asked))

    assert "the order of a set in <genexpr>, test_own_ways.py:" in text_of(gathers)
    every_crash_point(sorts, world=shop)


# What it does


def test_what_it_does_by_itself_is_told_though_no_world_shows_it(tmp_path: Path) -> None:
    books = sqlite3.connect(":memory:")
    notes = (tmp_path / "notes").open("w")
    old = tmp_path / "old"

    def opens(run: Run) -> object:
        return (tmp_path / "new").write_text("x")

    def writes(run: Run) -> object:
        return print("x", file=notes) or notes.write("x")

    def removes(run: Run) -> object:
        return (old.mkdir(), old.rmdir())

    def inserts(run: Run) -> object:
        return books.execute("create table if not exists entries (n)")

    def spawns(run: Run) -> object:
        return subprocess.run(["true"], check=True)

    def forks_off(run: Run) -> object:
        other = threading.Thread(target=str)
        other.start()
        return other.join()

    def loops(run: Run) -> object:
        return asyncio.run(asyncio.sleep(0))

    named = {
        opens: "open('new') for writing",
        writes: "TextIOWrapper.write",
        removes: "os.mkdir",
        inserts: "Connection.execute",
        spawns: "subprocess.Popen",
        forks_off: "a new thread",
        loops: "an event loop",
    }
    text = " ".join(text_of(doing(*named)).split())
    for act, what in named.items():
        assert f"{what} in {act.__name__}, test_own_ways.py:" in text
    assert "'runs' acts by itself" in text
    assert "run.tool(...), or run.step(...) for what may be repeated" in text
    notes.close()
    books.close()


def test_a_connection_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reports(run: Run) -> object:
            return socket.create_connection(server.getsockname()).close()

        assert "socket.connect in reports, test_own_ways.py:" in text_of(doing(reports))


# What is harmless


def test_what_is_calculated_or_logged_or_printed_is_fine(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log", delay=True)
    logger = logging.getLogger("test_own_ways")
    logger.addHandler(handler)

    def dates(run: Run) -> object:
        return time.strftime("%Y", run.now().timetuple()), time.gmtime(0), time.asctime(time.gmtime(0))

    def draws(run: Run) -> object:
        return random.Random(run.random.random()).sample(range(9), 3), run.random.choice("ab"), run.uuid()

    def sets(run: Run) -> object:
        return {7, 8}.pop(), {"one"}.pop(), max({"a", "b"})

    def tells(run: Run) -> object:
        return logger.warning("told"), print("told"), sys.stderr.write("")

    try:
        every_crash_point(doing(dates, draws, sets, tells), world=shop)
    finally:
        logger.removeHandler(handler)
        handler.close()


def test_what_a_module_does_as_it_is_imported_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text(
        "import os, time\nbegan, home = time.time(), os.environ.get('HOME')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    every_crash_point(doing(lambda run: __import__("imported_late")), world=shop)

    assert sys.modules.pop("imported_late").began


def test_what_the_test_itself_looks_up_and_decides_is_fine(tmp_path: Path) -> None:
    def look(books: sqlite3.Connection) -> Any:
        return [time.time() > 0, *books.execute("select name from sqlite_master")]

    def approve(tool: str, args: dict[str, Any]) -> bool:
        (tmp_path / "asked").write_text(tool)
        return random.random() < 2

    def clock() -> float:
        return float(time.time() > 0)

    @tool(approval=True)
    def signs() -> str:
        """Sign."""
        return os.environ.get("HOME", "") and "signed"

    @program
    async def runs(run: Run) -> Any:
        return [await run.step(clock), await run.tool(signs)]

    every_crash_point(runs, world=lambda: sqlite3.connect(":memory:"), look=look, approve=approve)


# What a process remembers


def test_a_program_that_goes_by_what_a_tool_has_left_in_the_process_is_found() -> None:
    cache: dict[int, int] = {}

    @tool(read_only=True)
    def price(item: int) -> None:
        """Remember a price."""
        cache[item] = 30

    @program
    async def sells(run: Run) -> Any:
        await run.tool(price, item=1)
        return await run.tool(refund, order=1, amount=cache[1])

    text = text_of(sells)

    assert "the log of the run replays in another process" in text
    assert "Replayed with cache as before the run: so another process may have it." in text
    assert "the program has raised KeyError: 1" in text
    assert cache == {1: 30}


def test_a_program_that_goes_by_what_it_sees_of_the_world_is_found() -> None:
    @program
    async def checks(run: Run) -> Any:
        await run.tool(refund, order=1, amount=30)
        return await run.tool(notify, order=1, text="paid" if shop.refunds else "not paid")

    assert "Replayed with shop as before the run" in text_of(checks)
    assert shop.refunds == []


class Desk:
    open = False

    def ready(self) -> bool:
        return Desk.open


desk = Desk()


@tool
def opens_desk() -> None:
    """Open the desk."""
    Desk.open = True


served = 0


@tool
def serves() -> None:
    """Serve."""
    globals()["served"] += 1


def how_many() -> int:
    return served


@pytest.mark.parametrize("act, seen, named", [(opens_desk, desk.ready, "Desk"), (serves, how_many, "served")])
def test_what_is_kept_in_a_class_or_under_a_global_name_is_found(act: Any, seen: Any, named: str) -> None:
    @program
    async def goes_by(run: Run) -> Any:
        await run.tool(act)
        return bool(seen())

    Desk.open, globals()["served"] = False, 0

    assert f"Replayed with {named} as before the run" in text_of(goes_by)


TAGS = {f"tag {number}" for number in range(5)}


def joined(run: Run) -> str:
    return ", ".join(TAGS)


def shown(run: Run) -> str:
    return f"Tags: {TAGS}"


def added(run: Run) -> str:
    text = ""
    for tag in TAGS:
        text += tag
    return text


@pytest.mark.parametrize("instructions", [joined, shown, added])
def test_a_prompt_in_the_order_of_a_set_is_found(instructions: Any) -> None:
    agent = Agent("tags", model=ScriptedModel(["ok"]), instructions=instructions)

    assert "Replayed with TAGS in another order" in text_of(agent, "Go")
    assert {f"tag {number}" for number in range(5)} == TAGS


def test_what_a_process_may_remember_is_fine() -> None:
    counts: dict[str, int] = {}
    doubles: dict[int, int] = {}

    @functools.lru_cache
    def half(number: int) -> int:
        return number // 2

    def double(number: int) -> int:
        if number not in doubles:
            doubles[number] = 2 * number
        return doubles[number]

    mock = Mock()

    @dataclass(frozen=True)
    class Settings:
        @functools.cached_property
        def limit(self) -> int:
            return 30

    settings = Settings()

    def trim(messages: Any) -> Any:
        counts["trimmed"] = counts.get("trimmed", 0) + 1
        return messages

    @program
    async def counting(run: Run) -> Any:
        counts["runs"] = counts.get("runs", 0) + 1
        got = [await run.step(fetch, str(double(half(8)))) for _ in range(2)]
        counts["ends"] = counts.get("ends", 0) + settings.limit + len(TAGS)
        counts["tags"] = len(", ".join(sorted(TAGS)) + max(TAGS))
        mock.ended()
        return got

    agent = Agent(
        "trims", model=ScriptedModel([call("find_order", order=1), "ok"]), tools=[find_order], history=trim
    )

    every_crash_point(counting, world=shop)
    every_crash_point(agent, "Go", world=shop)
    assert counts["runs"] > 10
    assert mock.mock_calls
    assert {name for name, _, _ in mock.mock_calls} == {"ended"}


class Session:
    """What tools share in one process."""

    def __init__(self) -> None:
        self.token = ""
        self.seen: list[str] = []


@tool(read_only=True)
def log_in(context: ToolContext) -> None:
    """Log in."""
    context.deps.token = "token"


@tool(read_only=True)
def read_mail(context: ToolContext) -> str:
    """Read mail."""
    context.deps.seen.append("mail")
    return f"mail for {context.deps.token or 1 / 0}"


@program
async def reads_mail(run: Run) -> Any:
    await run.tool(log_in)
    return await run.tool(read_mail)


def test_what_a_tool_leaves_in_deps_is_gone_after_a_crash_if_each_process_makes_its_own() -> None:
    text = " ".join(text_of(reads_mail, deps=Session).split())

    assert "tool read_mail r1/2 was asked for the same and answered otherwise: it failed." in text
    assert text.count("What an earlier call has left in its process is gone after a crash") == 1


def test_deps_that_are_an_object_are_put_back_before_each_history_and_afterwards() -> None:
    session = Session()
    seen = session.seen

    every_crash_point(reads_mail, world=shop, deps=session)

    assert (session.token, session.seen) == ("", [])
    assert session.seen is seen


# Reasons


def test_a_tool_that_answers_otherwise_when_it_is_run_again_is_named() -> None:
    @tool(idempotent=True)
    def charge(amount: int) -> str:
        """Charge once."""
        known = "charge" in shop.mails
        shop.mails["charge"] = str(amount)
        return "charged before" if known else "charged"

    agent = Agent("shop", model=ScriptedModel([call("charge", amount=1), "ok"]), tools=[charge])
    text = " ".join(text_of(agent, "Go").split())

    assert "broken the conversation is the same: message 3.content" in text
    assert (
        "tool charge r1/2.1.1 was asked for the same and answered otherwise: charged, and when it was run again"
        in text
    )


def test_a_model_that_counts_how_often_it_was_asked_is_named() -> None:
    asked: list[Any] = []

    def brain(request: Any) -> Any:
        asked.append(1)
        return call("find_order", order=1) if len(asked) == 1 else "ok"

    text = " ".join(text_of(Agent("counts", model=ScriptedModel(brain), tools=[find_order]), "Go").split())

    assert "broken the conversation is the same: message 2" in text
    assert "a scripted model must go by what it is asked, not by chance, the time or how often" in text


def test_a_model_client_that_acts_is_named_as_one() -> None:
    class Billed(ScriptedModel):
        async def respond(self, request: Any) -> Any:
            shop.notes.append("billed")
            return await super().respond(request)

    text = text_of(Agent("billed", model=Billed(["ok"])), "Go")

    assert "the model was asked 2 times for r1/1 and changed the world each time" in text


def test_a_reconciler_that_acts_is_named() -> None:
    def look_up() -> Any:
        shop.notes.append("asked")
        return Happened("paid") if shop.refunds else DidNotHappen()

    @tool(in_doubt=look_up)
    def pay() -> str:
        """Pay."""
        shop.refunds.append((1, 1))
        return "paid"

    @program
    async def pays(run: Run) -> Any:
        return await run.tool(pay)

    assert "the reconciler of tool pay changed the world when it was asked about r1/1" in text_of(pays)


def test_a_tool_that_writes_its_attempt_is_named() -> None:
    @tool(idempotent=True)
    def note(context: ToolContext) -> None:
        """Note."""
        shop.mails[f"{context.idempotency_key}-{context.attempt}"] = "x"

    @program
    async def notes(run: Run) -> Any:
        await run.tool(note)

    assert "tool note r1/1 acted in attempt 2, and without the fault in attempt 1" in text_of(notes)
