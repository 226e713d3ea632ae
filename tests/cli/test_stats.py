"""`refold stats`: what agents used, as a person and a script read it."""

from __future__ import annotations

from typing import Any

import pytest
from cli_kit import Refold, Scribe, documents
from msgspec import Raw
from refold.journal.journal import Journal
from refold.replay import events as ev
from refold.replay.ports import Usage
from refold.replay.requests import RequestDelta

DAY_US = 86_400_000_000


def a_run(model: str, *usages: Usage, at: int = DAY_US) -> list[ev.EventBody]:
    """A run of agent "shop" that asked *model* once for each usage and called `find` once."""
    bodies: list[ev.EventBody] = [
        ev.ThreadCreated(at=at, uid="u"),
        ev.RunStarted(at=at, run="r1", program="shop", digest="d", input=Raw(b'"hi"')),
    ]
    params = Raw(f'{{"model":"{model}"}}'.encode())
    for number, usage in enumerate(usages, 1):
        bodies.append(
            ev.ModelResponded(
                at=at,
                call=f"r1/{number}",
                fingerprint="f",
                request=RequestDelta(params=params),
                response=Raw(b'{"message":{}}'),
                usage=usage,
                latency_us=2_000_000,
            )
        )
    call = f"r1/{len(usages) + 1}"
    bodies.append(ev.ToolStarted(at=at, call=call, tool="find", args=Raw(b"{}"), key="k"))
    bodies.append(ev.ToolReturned(at=at, call=call, result=Raw(b"1"), latency_us=50_000))
    return bodies


USED = Usage(input_tokens=100, output_tokens=20, cost_micro=1500)


@pytest.fixture(autouse=True)
def _two_threads(scribe: Scribe) -> None:
    scribe.write("t", *a_run("model-a", USED, USED))
    scribe.write("u", *a_run("model-b", USED, Usage(), at=3 * DAY_US))


def numbers(document: Any, **place: str) -> dict[str, Any]:
    (row,) = [
        each for each in document["rows"] if all(each.get(key) == value for key, value in place.items())
    ]
    return row  # type: ignore[no-any-return]


def test_tokens_cost_latency_and_what_is_unknown_are_shown_for_each_model_and_tool(refold: Refold) -> None:
    lines = [" ".join(line.split()) for line in refold("stats").stdout.splitlines()]

    assert lines == [
        "agent model responses failed retried p50 p90 p99 tokens in tokens out cost",
        "shop model-a 2 0 0 2.0 s 2.0 s 2.0 s 200 40 $0.0030",
        "shop model-b 2 0 0 2.0 s 2.0 s 2.0 s 100 + ? 20 + ? $0.0015 + ?",
        "agent tool calls failed retried p50 p90 p99",
        "shop find 2 0 0 50.6 ms 50.6 ms 50.6 ms",
    ]


def test_a_script_reads_exact_numbers_summed_over_what_it_names(refold: Refold) -> None:
    (whole,) = documents(refold("stats", "--by", "day", "--by", "model", "--json"))

    assert whole["by"] == ["day", "model"]
    first = numbers(whole, of="model", day="1970-01-02", model="model-a")
    assert (first["calls"], first["input_tokens"], first["cost_micro"], first["unknown_usage"]) == (
        2,
        200,
        3000,
        0,
    )
    assert first["latency_us"]["p50"] == pytest.approx(2_000_000, rel=0.02)
    second = numbers(whole, of="model", day="1970-01-04", model="model-b")
    assert (second["unknown_usage"], second["unknown_cost"]) == (1, 1)
    assert numbers(whole, of="tool", day="1970-01-04")["calls"] == 1


def test_one_thread_is_summed_up_alone(refold: Refold) -> None:
    (document,) = documents(refold("stats", "t", "--by", "agent", "--json"))

    assert numbers(document, of="model", agent="shop")["calls"] == 2
    assert refold("stats", "nobody").exit_code == 2


def test_a_fork_and_its_fork_add_nothing_until_they_ask_themselves(refold: Refold, journal: Journal) -> None:
    before = documents(refold("stats", "--json"))

    assert refold("fork", "t", "--at", "4", "--as", "copy").exit_code == 0
    assert refold("fork", "copy", "--as", "copy-of-copy").exit_code == 0

    assert documents(refold("stats", "--json")) == before
    assert journal.info("copy-of-copy").head > 4


def test_an_aspect_named_twice_counts_once_and_an_unknown_one_is_wrong_use(refold: Refold) -> None:
    (document,) = documents(refold("stats", "--by", "tool", "--by", "tool", "--json"))

    assert document["by"] == ["tool"]
    assert refold("stats", "--by", "moon").exit_code == 2
