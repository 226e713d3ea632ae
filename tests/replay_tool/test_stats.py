"""What agents use, folded from events: each response once, unknown as unknown, and nothing twice for forks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
import refold
from died import died_at
from refold import (
    Agent,
    Journal,
    ModelError,
    ModelReply,
    Run,
    RunFailed,
    ScriptedModel,
    ThreadNotFound,
    Usage,
    answers,
    program,
    tool,
)
from refold.agent.scripted import call, failing, say
from refold.journal import export
from refold.replay import fork as forking
from refold.replay.recording import Policy
from refold.replay.runner import read_all
from refold.replay.stats import Latencies, StatsReport, read_stats

QUICK = Policy(backoff_s=0.0, model_attempts=4)
USED = Usage(input_tokens=100, output_tokens=20, cached_tokens=60, cost_micro=7)


@tool(read_only=True)
def find(order: int) -> int:
    """Find an order."""
    if order < 0:
        raise ValueError(order)
    return 30


@pytest.fixture
def journal() -> Any:
    with Journal.memory() as made:
        yield made


def agent(name: str = "shop", model: str = "a-model") -> Agent:
    scripted = ScriptedModel(
        [
            failing(ModelError("busy", kind="overloaded"), then=say(None, call("find", order=7), usage=USED)),
            say(None, call("find", order=-1), call("made_up"), usage=USED),
            say("paid"),
            say("and again"),
        ]
    )
    scripted.name = model  # type: ignore[attr-defined]
    return Agent(name, model=scripted, tools=[find], policy=QUICK)


def rows(report: StatsReport) -> dict[str, dict[str, Any]]:
    return {"/".join(str(row[each]) for each in ("of", *report.by)): row for row in report.record()["rows"]}


async def test_responses_calls_failures_and_cost_are_summed_by_agent_model_and_tool(journal: Journal) -> None:
    await agent().run("hi", journal=journal, thread="t")
    await agent("clerk", "b-model").run("hi", journal=journal, thread="u")

    found = rows(read_stats(journal))

    shop = found["model/shop/a-model/"]
    assert (shop["calls"], shop["retries"], shop["failures"]) == (3, 1, 0)
    assert (shop["input_tokens"], shop["output_tokens"], shop["cached_tokens"]) == (200, 40, 120)
    assert (shop["cost_micro"], shop["unknown_usage"], shop["unknown_cost"]) == (14, 1, 1)
    assert (found["tool/shop//find"]["calls"], found["tool/shop//find"]["failures"]) == (1, 1)
    assert found["tool/shop//(refused)"]["failures"] == 1
    assert found["model/clerk/b-model/"]["calls"] == 3


async def test_everything_that_is_not_named_is_summed_up(journal: Journal) -> None:
    await agent().run("hi", journal=journal, thread="t")
    await agent("clerk", "b-model").run("hi", journal=journal, thread="u")
    today = datetime.fromtimestamp(journal.sources.now_us() / 1e6, UTC).date().isoformat()

    by_day = rows(read_stats(journal, by=("day",)))
    whole = rows(read_stats(journal, by=()))

    assert by_day[f"model/{today}"]["calls"] == whole["model"]["calls"] == 6
    assert whole["model"]["cost_micro"] == 28
    assert rows(read_stats(journal, thread="t", by=()))["model"]["cost_micro"] == 14
    with pytest.raises(ThreadNotFound):
        read_stats(journal, thread="nobody")


async def test_a_response_counts_once_however_often_its_run_was_taken_up(journal: Journal) -> None:
    await agent().run("hi", journal=journal, thread="t")
    whole = rows(read_stats(journal, by=("agent",)))["model/shop"]
    for seq in range(2, len(read_all(journal, "t"))):
        with died_at(journal, "t", seq) as left:
            await agent().run("hi", journal=left, thread="t")
            again = rows(read_stats(left, by=("agent",)))["model/shop"]
        assert (again["calls"], again["cost_micro"]) == (whole["calls"], whole["cost_micro"])


async def test_a_later_run_with_the_same_parameters_is_the_same_models(journal: Journal) -> None:
    model = ScriptedModel(lambda request: say("yes", usage=USED))
    model.name = "a-model"  # type: ignore[attr-defined]
    for turn in range(3):
        await Agent("shop", model=model).run(f"turn {turn}", journal=journal, thread="t")

    assert rows(read_stats(journal, by=("model",)))["model/a-model"]["calls"] == 3


async def test_what_a_fork_copied_was_paid_for_elsewhere(journal: Journal) -> None:
    await agent().run("hi", journal=journal, thread="t")
    before = rows(read_stats(journal))
    events = read_all(journal, "t")
    answered = next(event.seq for event in events if event.kind == "model_responded")

    forking.fork(journal, "t", name="copy")
    forking.fork(journal, "copy", name="copy-of-copy")
    forking.fork(journal, "t", name="edited", replace=(answered, "Something else."))
    forking.fork(journal, "edited", name="copy-of-edited")

    assert rows(read_stats(journal)) == before
    assert read_stats(journal, thread="copy").rows == []

    await agent().run("more", journal=journal, thread="copy")
    assert rows(read_stats(journal, thread="copy", by=("model",)))["model/a-model"]["calls"] == 1


async def test_a_thread_under_a_second_name_was_paid_for_once_and_counts_what_it_adds(
    journal: Journal, tmp_path: Path
) -> None:
    await agent().run("hi", journal=journal, thread="t")
    early, late = tmp_path / "early.jsonl", tmp_path / "late.jsonl"
    export.export_file(journal, ["t"], early)
    before = rows(read_stats(journal))
    await agent().run("more", journal=journal, thread="t")
    export.export_file(journal, ["t"], late)
    whole = rows(read_stats(journal))

    export.import_file(journal, late, name="copy")
    export.import_file(journal, early, name="early", adopt=True)
    assert rows(read_stats(journal)) == whole
    with Journal.memory() as elsewhere:
        export.import_file(elsewhere, early, name="early")
        assert rows(read_stats(elsewhere)) == before
        export.import_file(elsewhere, late)
        assert rows(read_stats(elsewhere)) == whole
        export.import_file(elsewhere, late, name="early")
        assert rows(read_stats(elsewhere)) == whole
    await agent().run("other", journal=journal, thread="early")

    by = ("model",)
    assert (
        rows(read_stats(journal, by=by))["model/a-model"]["calls"]
        == whole["model/shop/a-model/"]["calls"] + 1
    )
    assert rows(read_stats(journal, thread="copy", by=by))["model/a-model"]["calls"] == 4


async def test_forks_and_what_they_were_made_of_count_once_in_whatever_order_they_were_imported(
    journal: Journal, tmp_path: Path
) -> None:
    await agent().run("hi", journal=journal, thread="t")
    answered = next(event.seq for event in read_all(journal, "t") if event.kind == "model_responded")
    forking.fork(journal, "t", name="fork", replace=(answered, "Something else."))
    await agent().resume(journal=journal, thread="fork")
    forking.fork(journal, "fork", name="fork-of-fork")
    await agent().run("more", journal=journal, thread="fork-of-fork")
    whole, names = rows(read_stats(journal)), ["t", "fork", "fork-of-fork"]
    files = {}
    for name in names:
        files[name] = tmp_path / f"{name}.jsonl"
        export.export_file(journal, [name], files[name])

    for order in permutations(names):
        with Journal.memory() as elsewhere:
            for name in order:
                export.import_file(elsewhere, files[name])
                export.import_file(elsewhere, files[name], name=f"{name}-again")
            assert rows(read_stats(elsewhere)) == whole, order


async def test_failures_for_good_and_unknown_amounts_are_shown_as_such(journal: Journal) -> None:
    refusing = Agent("shop", model=ScriptedModel([ModelError("no", kind="auth")]))
    with pytest.raises(RunFailed):
        await refusing.run("hi", journal=journal, thread="t")
    silent = ModelReply(message={"role": "assistant", "content": "yes"})
    await Agent("quiet", model=ScriptedModel([silent])).run("hi", journal=journal, thread="u")

    report = read_stats(journal, by=("agent",))

    assert rows(report)["model/shop"]["failures"] == 1
    (quiet,) = [line for line in report.lines() if "quiet" in line]
    assert "0 + ?" in quiet
    assert "$0.0000 + ?" in quiet


def test_an_empty_journal_says_so(journal: Journal) -> None:
    assert list(read_stats(journal).lines()) == ["nothing was asked or called yet"]


def test_a_report_is_one_json_document_and_safe_lines(journal: Journal) -> None:
    Agent("shop\x1b[2J", model=ScriptedModel([say("x", usage=USED)])).run_sync(
        "hi", journal=journal, thread="t"
    )
    report = read_stats(journal)

    assert msgspec.json.decode(msgspec.json.encode(report.record()))["by"] == ["agent", "model", "tool"]
    assert not any("\x1b" in line for line in report.lines())


def test_percentiles_are_within_two_percent_in_little_memory() -> None:
    latencies = Latencies()
    for latency_us in range(1, 100_001):
        latencies.add(latency_us)

    for percent in (1, 50, 90, 99, 100):
        found = latencies.percentile_us(percent)
        assert found == pytest.approx(percent * 1000, rel=0.02)
    assert len(latencies.buckets) < 600
    assert Latencies().percentile_us(50) is None


async def test_branches_that_ask_other_models_keep_apart(journal: Journal) -> None:
    @program
    async def both(run: Run, value: str) -> None:
        async def ask(model: str) -> None:
            messages = [{"role": "user", "content": "hi"}]
            for _ in range(3):
                reply = await run.model(messages=messages, model=model)
                messages = [*messages, reply.message, {"role": "user", "content": "more"}]

        await run.gather(ask("a"), ask("b"))
        await ask("c")

    model = ScriptedModel(lambda request: say("yes", usage=USED))
    for key in ("first", "second"):
        await refold.run(both, "x", journal=journal, thread="t", models=model, key=key)

    assert {name: row["calls"] for name, row in rows(read_stats(journal, by=("model",))).items()} == {
        "model/a": 6,
        "model/b": 6,
        "model/c": 6,
    }


async def test_a_model_that_failed_for_good_is_not_what_the_next_run_asks(journal: Journal) -> None:
    asked = iter([say("yes", usage=USED), ModelError("no", kind="auth"), ModelError("no", kind="auth")])
    client = ScriptedModel(lambda request: next(asked))

    @program
    async def ask(run: Run, models: list[str]) -> None:
        for each in models:
            await run.model(messages=[{"role": "user", "content": "hi"}], model=each)

    await refold.run(ask, ["a"], journal=journal, thread="t", models=client)
    with pytest.raises(RunFailed):
        await refold.run(ask, ["b"], journal=journal, thread="t", models=client)
    with pytest.raises(RunFailed):
        await refold.run(ask, ["a"], journal=journal, thread="t", models=client, key="again")

    found = rows(read_stats(journal, by=("model",)))
    assert (found["model/a"]["calls"], found["model/a"]["failures"], found["model/b"]["failures"]) == (
        1,
        1,
        1,
    )


async def test_what_somebody_said_of_a_call_in_doubt_counts(journal: Journal) -> None:
    @tool(timeout_s=0.05)
    async def hang(amount: int) -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel([say(None, call("hang", amount=1), call("hang", amount=2)), say("done")])
    shop = Agent("shop", model=model, tools=[hang])
    parked = await shop.run("hi", journal=journal, thread="t", wait=False)
    first, second = (each.call for each in parked.pending)
    answers.resolve(journal, "t", first, result=b'"paid"')
    answers.cancel(journal, "t")
    await shop.resume(journal=journal, thread="t", wait=False)
    answers.resolve(journal, "t", second, failed="it was refused", effect="none")
    await shop.run("and now?", journal=journal, thread="t")

    found = rows(read_stats(journal, by=("agent", "tool")))["tool/shop/hang"]
    assert (found["calls"], found["failures"], found["latency_us"]["p50"]) == (1, 1, None)
