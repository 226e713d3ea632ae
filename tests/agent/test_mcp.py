"""Tools of a real Model Context Protocol server in a process of its own, killed and changed under our feet."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from died import died_at
from refold import (
    Agent,
    Divergence,
    Journal,
    McpServer,
    MissingExtra,
    ScriptedModel,
    ToolContext,
    ToolDefinitionError,
    ToolError,
    UsageError,
    answers,
)
from refold.agent.scripted import call
from refold.replay import events as ev
from refold.replay import rebuild
from refold.replay.runner import read_all

SHOP = Path(__file__).parent.parent / "mcp_shop.py"
WAIT_S = 30.0


class Place:
    """A folder for what the shop does, and the shop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.effects_file, self.offer, self.keys = folder / "effects", folder / "offer", folder / "keys"
        self.offer.write_text("")

    def shop(self, *, hold: Path | None = None, **options: Any) -> McpServer:
        env = {"EFFECTS": str(self.effects_file), "OFFER": str(self.offer), "KEYS": str(self.keys)}
        if hold is not None:
            env["HOLD"] = str(hold)
        return McpServer(sys.executable, [str(SHOP)], env=env, name="shop", **options)

    @property
    def effects(self) -> list[str]:
        return self.effects_file.read_text().splitlines() if self.effects_file.exists() else []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, McpServer]]:
    """One server for all tests that leave it as it was."""
    place = Place(tmp_path_factory.mktemp("shop"))
    with place.shop() as shop:
        yield place, shop


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal.memory() as made:
        yield made


def named(shop: McpServer, name: str) -> Any:
    return next(tool for tool in shop.tools if tool.name == name)


def asking(shop: McpServer, *turns: Any) -> Agent:
    return Agent("shop", model=ScriptedModel([*turns, "done"]), tools=shop.tools)


def outcomes(journal: Journal, thread: str = "t") -> list[Any]:
    bodies = [ev.decode_event(event) for event in read_all(journal, thread)]
    return [body for body in bodies if isinstance(body, ev.ToolReturned | ev.ToolFailed | ev.ToolInDoubt)]


# What it offers


def test_a_model_is_told_of_the_tools_in_the_words_and_the_schema_of_the_server(
    shared: tuple[Place, McpServer],
) -> None:
    _, shop = shared
    tools = {tool.name: tool for tool in shop.tools}

    assert list(tools) == sorted(tools)
    assert tools["pay"].schema()["function"] == {
        "name": "pay",
        "description": "Pay an order.",
        "parameters": {
            "properties": {"order": {"title": "Order", "type": "integer"}},
            "required": ["order"],
            "title": "payArguments",
            "type": "object",
        },
    }
    assert "files_read_all" in tools, "providers take no slash and no dot"


def test_the_word_of_a_server_counts_only_where_it_is_trusted(
    shared: tuple[Place, McpServer], place: Place
) -> None:
    _, plain = shared
    assert {tool.in_doubt for tool in plain.tools} == {"park"}
    assert not any(tool.repeatable for tool in plain.tools)

    with place.shop(trust_annotations=True) as trusted:
        assert named(trusted, "find").read_only
        assert named(trusted, "mark").idempotent
        policies = {tool.name: tool.in_doubt for tool in trusted.tools}

    assert policies["find"] == policies["mark"] == "retry"
    assert policies["note"] == "tell_model"
    assert policies["pay"] == policies["refuse"] == "park"


def test_the_user_says_what_is_repeatable_what_needs_approval_and_what_is_used(place: Place) -> None:
    options: dict[str, Any] = {"read_only": ["find"], "idempotent": ["mark"], "approval": ["pay"]}
    with place.shop(only=["pay", "find", "mark"], prefix="shop_", **options) as shop:
        find, mark, pay = shop.tools

    assert (find.name, find.read_only, mark.idempotent, pay.in_doubt) == ("shop_find", True, True, "park")
    assert [tool.needs_approval({"order": 1}) for tool in (find, mark, pay)] == [False, False, True]


def test_a_tool_that_is_named_and_not_there_is_told_at_the_start(place: Place) -> None:
    with pytest.raises(UsageError, match=r"no tool named 'moon' \(idempotent=\); its tools are: die, f"):
        place.shop(idempotent=["moon"]).start()


def test_names_that_no_provider_takes_are_told_at_the_start(place: Place) -> None:
    with pytest.raises(ToolDefinitionError, match="64 letters"):
        place.shop(prefix="x" * 64).start()


def test_a_text_instead_of_a_list_of_names_is_wrong_use(place: Place) -> None:
    with pytest.raises(UsageError, match="list of names"):
        place.shop(only="find")
    with pytest.raises(UsageError, match=r"args takes a list of arguments, not the text 'shop\.py'"):
        McpServer("python", "shop.py")


@pytest.mark.parametrize(
    "options, says",
    [
        (
            {"timeout_s": 0},
            "timeout_s is a finite number of seconds over 0, not 0; a call must end some time",
        ),
        ({"timeout_s": math.inf}, "timeout_s is a finite number"),
        ({"start_timeout_s": None}, "start_timeout_s is a finite number of seconds over 0, not None"),
        ({"approval": lambda args: True}, "approval takes a list of names"),
        ({"read_only": [print]}, "read_only takes a list of names"),
        ({"idempotent": None}, "idempotent takes a list of names, not None"),
        ({"read_only": ["x" * 65]}, "providers take names of 1 to 64 letters"),
        ({"only": ["pay"], "read_only": ["find"]}, "read_only= names 'find', which only= leaves out"),
        ({"only": ["pay"], "approval": ["pay", "mark"]}, "approval= names 'mark', which only= leaves out"),
    ],
    ids=str,
)
def test_what_cannot_be_of_its_tools_is_refused_before_anything_is_started(
    place: Place, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        place.shop(**options)


# A server that is not there


def test_without_the_extra_it_says_what_to_install(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MissingExtra, match=r"refold\[mcp\]"):
        place.shop()


@pytest.mark.parametrize(
    "command, why",
    [
        (["no-such-program-here"], "did not start"),
        (["sh", "-c", "exit 3"], "did not start"),
        (["sh", "-c", "cat > /dev/null"], "did not answer within 0.3 s"),
    ],
    ids=["no program", "ends at once", "never answers"],
)
def test_a_server_that_does_not_start_is_told(command: list[str], why: str) -> None:
    server = McpServer(command[0], command[1:], start_timeout_s=0.3 if "answer" in why else 30.0)

    with pytest.raises(UsageError, match=why):
        server.start()
    with pytest.raises(UsageError, match="not started"):
        _ = server.tools


async def test_a_closed_server_is_asked_nothing(place: Place) -> None:
    async with place.shop(only=["pay"]) as shop:
        (pay,) = shop.tools

    with pytest.raises(ToolError, match="closed") as caught:
        await pay.call({"order": 1}, ToolContext())

    assert caught.value.effect == "none"
    assert place.effects == []


# What is recorded


@pytest.mark.parametrize(
    "asked, recorded",
    [
        (call("find", order=7), {"order": 7, "paid": 30}),
        (call("files_read_all", path="two"), "one\ntwo"),
        (
            call("picture"),
            {
                "content": [
                    {"type": "text", "text": "look:"},
                    {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
                ]
            },
        ),
    ],
    ids=["structured", "texts", "with an image"],
)
def test_a_result_is_recorded_and_replays_without_the_server(
    shared: tuple[Place, McpServer], journal: Journal, asked: Any, recorded: Any
) -> None:
    _, shop = shared
    agent = asking(shop, asked)

    agent.run_sync("hi", journal=journal, thread="t")

    (returned,) = outcomes(journal)
    assert ev.msgspec.json.decode(returned.result) == recorded
    rebuild.replay(agent.program, "t", read_all(journal, "t"))


def test_an_error_of_a_tool_is_of_unknown_effect_and_the_model_reads_it(
    shared: tuple[Place, McpServer], journal: Journal
) -> None:
    _, shop = shared
    model = ScriptedModel([call("refuse", order=7), "done"])

    Agent("shop", model=model, tools=shop.tools).run_sync("hi", journal=journal, thread="t")

    (failed,) = outcomes(journal)
    assert (failed.error.type.rpartition(".")[2], failed.effect) == ("McpCallFailed", "unknown")
    assert "there is no order 7" in model.requests[-1]["messages"][-1]["content"]


def test_arguments_that_do_not_fit_the_schema_of_the_server_never_reach_it(
    shared: tuple[Place, McpServer], journal: Journal
) -> None:
    place, shop = shared
    before = place.effects

    asking(shop, call("pay", order="seven")).run_sync("hi", journal=journal, thread="t")

    (failed,) = outcomes(journal)
    assert (failed.effect, failed.attempt) == ("none", 0)
    assert "'seven' is not of type 'integer'" in failed.error.message
    assert place.effects == before


def test_a_server_gets_the_idempotency_key_of_each_call(
    shared: tuple[Place, McpServer], journal: Journal
) -> None:
    place, shop = shared

    asking(shop, call("find", order=7)).run_sync("hi", journal=journal, thread="t")

    starts = [ev.decode_event(event) for event in read_all(journal, "t") if event.kind == "tool_started"]
    assert place.keys.read_text().splitlines()[-1:] == [start.key for start in starts]


async def test_one_server_serves_agents_on_several_event_loops(shared: tuple[Place, McpServer]) -> None:
    _, shop = shared
    with Journal.memory() as journal:

        def run(thread: str) -> Any:
            return asking(shop, call("find", order=7)).run_sync("hi", journal=journal, thread=thread).output

        assert await asyncio.gather(*(asyncio.to_thread(run, f"t{n}") for n in range(3))) == ["done"] * 3
        assert (await asking(shop, call("find", order=7)).run("hi", journal=journal, thread="t")).output


# Servers that die and change


def test_a_server_that_ends_in_a_call_leaves_an_unknown_effect_and_is_started_again_for_the_next(
    place: Place, journal: Journal
) -> None:
    with place.shop() as shop:
        agent = asking(shop, call("die", order=1), call("pay", order=2), call("die", order=1))
        result = agent.run_sync("hi", journal=journal, thread="t", wait=False)

    died, paid = outcomes(journal)
    assert (died.effect, "ended in the middle" in died.error.message) == ("unknown", True)
    assert isinstance(paid, ev.ToolReturned)
    assert place.effects == ["die 1", "pay 2"]
    assert [(each.name, each.status) for each in result.pending] == [("die", "waits for approval")]


def test_a_tool_that_is_gone_when_the_server_comes_back_is_refused_without_a_doubt(
    place: Place, journal: Journal
) -> None:
    with place.shop() as shop:
        place.offer.write_text("gone")
        asking(shop, call("die", order=1), call("pay", order=2)).run_sync("hi", journal=journal, thread="t")

    _, refused = outcomes(journal)
    assert (refused.effect, refused.error.type) == ("none", "McpToolGone")
    assert "has no tool 'pay' any more" in refused.error.message
    assert place.effects == ["die 1"]


def reported(fifo: int) -> int:
    """The process id that the shop tells when it has acted."""
    ready, _, _ = select.select([fifo], [], [], WAIT_S)
    assert ready, "the tool did not act"
    return int(os.read(fifo, 100))


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "hold"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield path, descriptor
    os.close(descriptor)


async def test_a_server_killed_in_the_middle_of_a_call_leaves_an_unknown_effect(
    place: Place, journal: Journal, hold: tuple[Path, int]
) -> None:
    async with place.shop(hold=hold[0]) as shop:
        running = asyncio.create_task(
            asking(shop, call("pay", order=7)).run("hi", journal=journal, thread="t")
        )
        os.kill(await asyncio.to_thread(reported, hold[1]), signal.SIGKILL)
        result = await running

    (failed,) = outcomes(journal)
    assert (failed.error.type.rpartition(".")[2], failed.effect) == ("McpCallFailed", "unknown")
    assert result.output == "done"
    assert place.effects == ["pay 7"]


def at_start(journal: Journal) -> int:
    """The seq of the tool's start."""
    return next(event.seq for event in read_all(journal, "t") if event.kind == "tool_started")


def test_a_call_left_in_doubt_is_parked_and_resolved_or_run_again_as_its_policy_says(place: Place) -> None:
    with place.shop(read_only=["find"]) as shop:
        for name, status in (("pay", "parked"), ("find", "finished")):
            agent = asking(shop, call(name, order=7))
            with Journal.memory() as whole:
                agent.run_sync("hi", journal=whole, thread="t")
                with died_at(whole, "t", at_start(whole)) as left:
                    result = agent.run_sync("hi", journal=left, thread="t", wait=False)
                    assert result.status == status
                    if status == "parked":
                        answers.resolve(left, "t", result.pending[0].call, result=b'"paid"')
                        result = agent.resume_sync(journal=left, thread="t")
            assert result.output == "done"

    assert place.effects == ["pay 7"]


@pytest.mark.parametrize("offer", ["changed", "gone"])
def test_a_listing_that_has_changed_is_a_divergence_that_names_the_tool(
    shared: tuple[Place, McpServer], place: Place, journal: Journal, offer: str
) -> None:
    asking(shared[1], call("find", order=7)).run_sync("hi", journal=journal, thread="t")
    place.offer.write_text(offer)
    with place.shop() as shop, died_at(journal, "t", len(read_all(journal, "t")) - 1) as left:
        with pytest.raises(Divergence, match="pay") as caught:
            asking(shop, call("find", order=7)).run_sync("hi", journal=left, thread="t")
        accepted = asking(shop, call("find", order=7)).resume_sync(
            journal=left, thread="t", on_divergence="accept"
        )

    assert not caught.value.shape
    assert accepted.output == "done"


# Our own death

SCRIPT = """
import sys
from refold import Agent, Journal, McpServer, ScriptedModel
from refold.agent.scripted import call

shop, effects, offer, hold, dsn = sys.argv[1:]
env = {"EFFECTS": effects, "OFFER": offer, **({"HOLD": hold} if hold else {})}
with Journal.open(dsn) as journal, McpServer(sys.executable, [shop], env=env) as server:
    agent = Agent("shop", model=ScriptedModel([call("pay", order=7), "done"]), tools=server.tools)
    result = agent.run_sync("hi", journal=journal, thread="t", wait=False)
    print(result.status, result.reason, result.output)
"""


@pytest.mark.system
def test_a_worker_killed_while_the_server_acts_parks_the_call_and_the_server_ends_with_it(
    place: Place, pg_dsn: str, hold: tuple[Path, int]
) -> None:
    def command(held: str) -> list[str]:
        parts = [str(SHOP), str(place.effects_file), str(place.offer), held, pg_dsn]
        return [sys.executable, "-c", SCRIPT, *parts]

    with subprocess.Popen(command(str(hold[0]))) as worker:
        server = reported(hold[1])
        gone = os.pidfd_open(server)
        os.kill(worker.pid, signal.SIGKILL)
    assert select.select([gone], [], [], WAIT_S)[0], "the server outlived its client"
    os.close(gone)
    again = subprocess.run(command(""), capture_output=True, text=True, timeout=60, check=True)

    assert again.stdout.startswith("parked the outcome of pay is unknown")
    assert place.effects == ["pay 7"]
    with Journal.open(pg_dsn) as journal:
        answers.resolve(journal, "t", "r1/2.1.1", result=b'"paid"')
    resumed = subprocess.run(command(""), capture_output=True, text=True, timeout=60, check=True)
    assert resumed.stdout.strip() == "finished  done"
    assert place.effects == ["pay 7"]
