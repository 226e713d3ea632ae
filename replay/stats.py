"""
Folds events of all threads into what agents use: tokens, cost, latency and failures of models and tools.

Every recorded response counts once, however often its run was resumed or replayed, and so does every answer that was
paid for and could not be used; what a fork copied was paid for by the thread it was copied from, and what two threads
hold because one was imported under another name was paid for once. Memory grows with threads and open calls, and with
the events of those threads alone that hold the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, field

from ..journal.envelope import Event
from ..journal.journal import Journal, check_journal
from ..journal.reading import read_events
from ..journal.store import Cursor
from . import events as ev
from .copies import FORKED, Copies
from .ports import Usage
from .requests import PRIOR
from .text import columns, duration, visible

Aspect = Literal["agent", "model", "tool", "day"]
ASPECTS: tuple[Aspect, ...] = ("agent", "model", "tool", "day")

PAGE = 1000
_STEP = math.log(1.02)
"""A latency is known to two percent."""


class Latencies:
    """How long calls took, in buckets: percentiles in little memory."""

    __slots__ = ("buckets", "count")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0

    def add(self, latency_us: int, times: int = 1) -> None:
        """Count a call; with -1, take it back."""
        bucket = math.ceil(math.log(latency_us) / _STEP) if latency_us > 1 else 0
        self.buckets[bucket] = self.buckets.get(bucket, 0) + times
        self.count += times

    def merge(self, other: Latencies) -> None:
        """Count all of *other*."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count

    def percentile_us(self, percent: float) -> int | None:
        """So long at most did *percent* of the calls take; None without calls."""
        wanted, seen = max(1, math.ceil(self.count * percent / 100)), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return round(math.exp(bucket * _STEP))
        return None


class Tally(Struct):
    """
    What was counted of one kind of call.

    `calls` ended well, `failures` for good; `retries` are attempts that were followed by another. Of responses whose
    provider said nothing of tokens or cost, only the number is known.
    """

    calls: int = 0
    failures: int = 0
    retries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_micro: int = 0
    unknown_usage: int = 0
    unknown_cost: int = 0
    latencies: Latencies = field(default_factory=Latencies)

    def use(self, usage: Usage, times: int) -> None:
        """Count what a response used."""
        if usage.input_tokens is None or usage.output_tokens is None:
            self.unknown_usage += times
        if usage.cost_micro is None:
            self.unknown_cost += times
        self.input_tokens += times * (usage.input_tokens or 0)
        self.output_tokens += times * (usage.output_tokens or 0)
        self.cached_tokens += times * (usage.cached_tokens or 0)
        self.reasoning_tokens += times * (usage.reasoning_tokens or 0)
        self.cost_micro += times * (usage.cost_micro or 0)

    def merge(self, other: Tally) -> None:
        """Count all of *other*."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latencies.merge(other.latencies)

    def record(self) -> dict[str, Any]:
        """A value for a JSON document; latencies in microseconds."""
        percentiles = {f"p{percent}": self.latencies.percentile_us(percent) for percent in (50, 90, 99)}
        return {**{name: getattr(self, name) for name in _NUMBERS}, "latency_us": percentiles}


_NUMBERS = tuple(each.name for each in msgspec.structs.fields(Tally) if each.name != "latencies")


class Key(Struct, frozen=True, order=True):
    """Whose calls: of an agent, to a model or a tool (the other is empty), on a day (UTC)."""

    agent: str
    model: str
    tool: str
    day: str


class _Thread(Struct):
    """What later events of a thread refer back to."""

    models: dict[str, str] = field(default_factory=dict)
    """Models asked, by what a request may be stored against: one that asks the same model as that does not say it."""
    prior: str = ""
    """The model that the next run inherits."""
    programs: dict[str, str] = field(default_factory=dict)
    """Programs of the last run, and of those with open calls."""
    acting: dict[str, str] = field(default_factory=dict)
    """Models of calls that were started and may act."""
    tools: dict[str, str] = field(default_factory=dict)
    """Names of the tools of open calls."""
    edited: bool = False
    """Whether the next event was edited by a fork: nobody was asked for it."""

    def open_in(self, run: str) -> bool:
        """Whether a call of *run* is open."""
        return any(call.partition("/")[0] == run for call in self.tools)


class Stats:
    """
    The fold.

    Args:
        read: Gives the events of a thread up to a seq.
    """

    def __init__(self, read: Callable[[str, int], Iterable[Event]]) -> None:
        self.tallies: dict[Key, Tally] = {}
        self.unread = 0
        """Events of kinds and versions that this refold does not know."""
        self._read = read
        self._copies = Copies(read)
        self._threads: dict[str, _Thread] = {}

    def apply(self, event: Event) -> None:
        """Count one event; those of a thread come in their order."""
        own = self._copies.own(event)
        if not ev.is_known(event):
            self.unread += own
            return
        body = ev.decode_event(event)
        thread = self._threads.setdefault(event.thread, _Thread())
        if isinstance(body, ev.ThreadForked):
            self._take_back(event.thread, event.seq - 1)
            thread.edited = body.replaced is not None
            return
        self._count(thread, body, 1 if own and not thread.edited else 0)
        thread.edited = False

    def _take_back(self, name: str, upto: int) -> None:
        """What a fork holds before it was forked is another thread's; what a fork of a fork does, just once."""
        events = list(self._read(name, upto))
        earlier = max((event.seq for event in events if event.kind == FORKED), default=0)
        thread = _Thread()
        for event in events:
            counted = self._copies.release(event) and event.seq > earlier and not thread.edited
            if ev.is_known(event):
                body = ev.decode_event(event)
                self._count(thread, body, -1 if counted else 0)
                thread.edited = isinstance(body, ev.ThreadForked) and body.replaced is not None

    def _count(self, thread: _Thread, body: ev.EventBody, times: int) -> None:
        match body:
            case ev.RunStarted():
                # Of the runs before only late answers about their calls may come.
                thread.programs = {run: name for run, name in thread.programs.items() if thread.open_in(run)}
                thread.programs[body.run] = body.program
                thread.models = {PRIOR: thread.prior}
            case ev.RunFinished() | ev.RunFailed() | ev.RunCancelled():
                thread.models.clear()
                thread.acting.clear()
            case ev.ModelStarted():
                thread.acting[body.call] = _model_named(thread, body)
            case ev.ToolInDoubt() if body.usage is not None:
                # No attempt that failed, as far as anybody knows, but paid for.
                tally = self._tally(thread, body, model=thread.acting.get(body.call) or "unknown")
                tally.use(body.usage, times)
            case ev.ModelResponded() | ev.ModelFailed():
                self._count_model(thread, body, times)
            case ev.ToolStarted():
                thread.tools[body.call] = body.tool
            case ev.ToolReturned() | ev.ToolFailed():
                self._count_tool(thread, body, times)
            case ev.ToolResolved() if body.outcome != "did_not_happen" and body.call in thread.tools:
                # How long it took nobody knows.
                tally = self._tally(thread, body, tool=thread.tools.pop(body.call))
                tally.calls += times * (body.outcome == "returned")
                tally.failures += times * (body.outcome == "failed")
            case _:
                pass

    def _count_model(self, thread: _Thread, body: ev.ModelResponded | ev.ModelFailed, times: int) -> None:
        tally = self._tally(thread, body, model=_model_asked(thread, body) or "unknown")
        tally.latencies.add(body.latency_us, times)
        if isinstance(body, ev.ModelResponded):
            tally.calls += times
            tally.use(body.usage, times)
            return
        if body.usage is not None:
            tally.use(body.usage, times)
        if body.final:
            tally.failures += times
        else:
            tally.retries += times

    def _count_tool(self, thread: _Thread, body: ev.ToolReturned | ev.ToolFailed, times: int) -> None:
        name = thread.tools.get(body.call)
        if name is None:
            # Refused before it began: a tool the model made up, or arguments that did not fit.
            name = "(refused)"
        tally = self._tally(thread, body, tool=name)
        tally.latencies.add(body.latency_us, times)
        if isinstance(body, ev.ToolReturned):
            tally.calls += times
        elif body.final:
            tally.failures += times
        else:
            tally.retries += times
            return
        thread.tools.pop(body.call, None)

    def _tally(
        self,
        thread: _Thread,
        body: ev.ModelResponded
        | ev.ModelFailed
        | ev.ToolReturned
        | ev.ToolFailed
        | ev.ToolInDoubt
        | ev.ToolResolved,
        *,
        model: str = "",
        tool: str = "",
    ) -> Tally:
        agent = thread.programs.get(body.call.partition("/")[0], "unknown")
        day = datetime.fromtimestamp(body.at / 1e6, UTC).date().isoformat()
        return self.tallies.setdefault(Key(agent, model, tool, day), Tally())

    # Looking

    def table(self, by: Sequence[Aspect] = ("agent", "model", "tool")) -> list[tuple[dict[str, str], Tally]]:
        """Tallies summed over every aspect that is not named, models before tools."""
        summed: dict[tuple[str, ...], Tally] = {}
        for key, tally in sorted(self.tallies.items(), key=_models_first):
            # Calls of models and of tools are different things, whatever they are summed over.
            place = ("tool" if key.tool else "model", *(getattr(key, aspect) for aspect in by))
            summed.setdefault(place, Tally()).merge(tally)
        return [
            ({"of": place[0], **dict(zip(by, place[1:], strict=True))}, tally)
            for place, tally in summed.items()
            if any(getattr(tally, name) for name in _NUMBERS)
        ]


class _Asked(Struct, frozen=True):
    """What of a request's parameters is looked at."""

    model: Any = None

    @staticmethod
    def decode(params: Raw) -> _Asked:
        return msgspec.json.decode(params, type=_Asked)


def _model_named(thread: _Thread, body: ev.Asked) -> str:
    """The model of a request, of which only what its base does not say is stored."""
    if not body.request.params:
        return thread.models.get(body.request.base or "", "")
    asked = _Asked.decode(body.request.params).model
    return asked if isinstance(asked, str) else ""


def _model_asked(thread: _Thread, body: ev.ModelResponded | ev.ModelFailed) -> str:
    """The model of a request that has come to an end: the next ones may be stored against it."""
    base, models, model = body.request.base or "", thread.models, _model_named(thread, body)
    if body.request.params and isinstance(body, ev.ModelResponded):
        thread.prior = model
    # Its own branch moves on; branches that begin there have begun.
    if base != PRIOR and base.rpartition(".")[0] == body.call.rpartition(".")[0]:
        models.pop(base, None)
    models[body.call] = model
    return model


def _models_first(item: tuple[Key, Tally]) -> tuple[bool, Key]:
    return bool(item[0].tool), item[0]


class StatsReport(Struct, frozen=True):
    """What `refold stats` shows."""

    by: tuple[Aspect, ...]
    rows: list[tuple[dict[str, str], Tally]]
    unread: int = 0

    def record(self) -> dict[str, Any]:
        """A value for a JSON document."""
        rows = [{**named, **tally.record()} for named, tally in self.rows]
        return {"by": list(self.by), "rows": rows, "unread": self.unread}

    def lines(self) -> Iterator[str]:
        """Safe lines for a terminal."""
        for of in ("model", "tool"):
            rows = [(named, tally) for named, tally in self.rows if named["of"] == of]
            if rows:
                yield from _section(of, [each for each in self.by if each not in _OTHER[of]], rows)
        if not self.rows:
            yield "nothing was asked or called yet"
        if self.unread:
            yield f"{self.unread} events of a newer refold are not counted"


_OTHER: Mapping[str, tuple[str, ...]] = {"model": ("tool",), "tool": ("model",)}


def _section(of: str, by: Sequence[str], rows: Sequence[tuple[dict[str, str], Tally]]) -> list[str]:
    counted = ("responses" if of == "model" else "calls", "failed", "retried", "p50", "p90", "p99")
    used = ("tokens in", "tokens out", "cost") if of == "model" else ()
    cells = []
    for named, tally in rows:
        took = [duration(tally.latencies.percentile_us(percent)) for percent in (50, 90, 99)]
        cell = [
            *(visible(named[each]) for each in by),
            str(tally.calls),
            str(tally.failures),
            str(tally.retries),
        ]
        cells.append([*cell, *took, *(_used(tally) if of == "model" else ())])
    return columns([*by, *counted, *used], cells, right=(*counted, *used))


def _used(tally: Tally) -> tuple[str, str, str]:
    """Tokens and cost; a sum that leaves unknown amounts out says so."""
    more = " + ?" if tally.unknown_usage else ""
    cost = f"${tally.cost_micro / 1e6:.4f}{' + ?' if tally.unknown_cost else ''}"
    return f"{tally.input_tokens}{more}", f"{tally.output_tokens}{more}", cost


def read_stats(
    journal: Journal, *, by: Sequence[Aspect] = ("agent", "model", "tool"), thread: str | None = None
) -> StatsReport:
    """
    What all threads have used, or one of them.

    Args:
        journal: Where they live.
        by: What to tell apart; everything else is summed up.
        thread: Only this one, whoever else holds its events; what it copied when it was forked is not its own.

    Raises:
        ThreadNotFound: No such thread.
    """
    check_journal(journal)

    def read(name: str, upto: int | None = None) -> Iterator[Event]:
        return read_events(journal, name, upto=upto, page=PAGE)

    stats = Stats(read)
    if thread is not None:
        journal.info(thread)
        events = read(thread)
    else:
        events = _feed(journal)
    for event in events:
        stats.apply(event)
    return StatsReport(tuple(by), stats.table(by), stats.unread)


def _feed(journal: Journal) -> Iterator[Event]:
    cursor: Cursor | None = None
    while True:
        page = journal.feed(cursor, limit=PAGE)
        if not page.events:
            return
        yield from page.events
        cursor = page.cursor
