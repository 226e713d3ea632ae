"""
What must hold of every history, checked against the ground truth.

Shares no code with the engine where it can be helped: events are read with `json`, the chain is computed anew,
and what a run did is told from the ledger. Each check is a function named after the promise; it yields what is wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import zip_longest
from typing import Any

from refold.journal.envelope import Event
from refold.journal.store import Outcome
from sim.export_oracle import export_round_trips, log_verifies
from sim.history import (
    ALTERING,
    HELD,
    ROBBERY,
    History,
    acts,
    of_the_log,
    taken,
    tell,
)
from sim.log_oracles import (
    calls_are_paired,
    deadlines_are_kept,
    doubted_calls_wait_for_a_yes,
    failures_are_followed_by_the_rules,
    no_clock_of_a_worker_says_when,
    rests_only_when_all_waits,
    resuming_without_news_writes_nothing,
    time_is_kept,
)
from sim.replay_oracles import conversation_is_valid, log_replays
from sim.told import ENDS, MEMORY, is_outcome

_verified: set[bytes] = set()


# The log


def log_is_dense(history: History) -> Iterator[str]:
    """1. Seqs are 1 to head; the thread's row agrees."""
    seqs = [event.seq for event in history.events]
    if seqs != list(range(1, len(seqs) + 1)):
        yield f"seqs are {seqs}"
    info = history.world.store.info(history.lane.name)
    if history.events and (info.head, info.head_hash) != (len(seqs), history.events[-1].hash):
        yield f"the row says head {info.head}, the log ends at {len(seqs)}"


def log_only_grows(history: History) -> Iterator[str]:
    """2. What was acknowledged at a seq stays there: every later hash was made from it."""
    for sent in history.acknowledged:
        last = sent.append.expected + len(sent.append.events)
        if len(history.events) < last or history.events[last - 1].hash != sent.append.hashes[-1]:
            yield f"the append after {sent.append.expected} was acknowledged, its hash is no longer at {last}"


@of_the_log
def chain_verifies(history: History) -> Iterator[str]:
    """3. Each hash follows from the one before."""
    previous = hashlib.sha256(b"refold log 1").digest()
    for seq, event in enumerate(history.events, 1):
        key = previous + event.hash
        if key not in _verified:
            kind = event.kind.encode()
            content = previous + seq.to_bytes(8) + event.id.bytes + event.version.to_bytes(2)
            content += len(kind).to_bytes(2) + kind + hashlib.sha256(event.body).digest()
            if hashlib.sha256(content).digest() != event.hash:
                yield f"the hash of seq {seq} does not follow from the one before"
            if len(_verified) > MEMORY:
                _verified.clear()
            _verified.add(key)
        previous = event.hash


def fences_never_fall(history: History) -> Iterator[str]:
    """4. Along a thread fences only grow."""
    fences = [event.fence for event in history.events]
    if fences != sorted(fences):
        yield f"fences are {fences}"


def acknowledged_is_there(history: History) -> Iterator[str]:
    """5. An append that was acknowledged is at its seqs with its bytes."""
    for sent in history.acknowledged:
        for seq, new in enumerate(sent.append.events, sent.append.expected + 1):
            if len(history.events) < seq or history.events[seq - 1].body != new.body:
                yield f"{new.kind} was acknowledged at seq {seq} and is not there"


def appends_are_atomic(history: History) -> Iterator[str]:
    """6. Of an append all events are there or none; none if every copy of it was refused."""
    ids = history.told.ids
    if len(ids) != len(history.events):
        yield "an event is in the log twice"
    for sent in history.sent:
        there = [new.id.int in ids for new in sent.append.events]
        if True not in there:
            continue
        if False in there:
            yield f"a part of the append after {sent.append.expected} is in the log"
        if not any(map(taken, sent.results)):
            refused = {result.outcome.value for result in sent.results}
            yield f"the append after {sent.append.expected} was refused ({refused}) and is in the log"


def no_stale_writer(history: History) -> Iterator[str]:
    """7. An append invoked after a newer lease was granted is not admitted."""
    for sent in history.sent if len(history.granted) > 1 else ():
        newer = [g for g in history.granted if g.fence > sent.append.fence and g.step < sent.invoked]
        if newer and any(result.outcome is Outcome.APPENDED for result in sent.results):
            yield f"fence {sent.append.fence} wrote after fence {newer[0].fence} had been granted"


def only_holder_never_conflicts(history: History) -> Iterator[str]:
    """8. The only holder of a fence is never told that the head is another."""
    for sent in history.sent:
        for result in sent.results:
            if result.outcome is Outcome.CONFLICT or result.outcome is Outcome.MISSING:
                fence = sent.append.fence
                if len({grant.worker for grant in history.granted if grant.fence == fence}) < 2:
                    yield f"{sent.worker}, alone with fence {fence}, met a conflict after {sent.append.expected}"


def log_is_that_without_redis(
    events: list[Event], plain: list[Event], faults: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """17. Whatever the cache does, the log is the one of a history without it, byte for byte."""
    for event, other in zip_longest(events, plain):
        if event != other:
            yield (
                "log_is_that_without_redis",
                f"with {list(faults)} and no cache seq {(event or other).seq} is {other}, with one {event}",
            )
            return


# Effects


def no_effect_before_its_start(history: History) -> Iterator[str]:
    """9. A tool, or a model that may act, acts only when its start is durable, and only for the thread's holder."""
    for deed in history.ledger:
        if acts(deed):
            start = history.told.starts.get((deed.call, deed.attempt))
            if start is None or start > deed.head:
                yield f"{tell(deed)} acted before its start was durable"
            if not deed.current and not history.unpromised and not history.kinds & ROBBERY:
                yield f"{tell(deed)} acted for {deed.worker}, which no longer held the thread"
        elif deed.kind == "step" and deed.head < 1:
            yield f"{tell(deed)} acted before its run was durable"


def no_effect_without_its_cause(history: History) -> Iterator[str]:
    """9. What led to an effect is in the log: a finished run holds each call that acted, with its arguments."""
    ends, performed = history.told.ends, history.told.performed
    for deed in history.ledger:
        if (
            deed.kind != "model"
            and ends.get(deed.call.partition("/")[0]) == "run_finished"
            and (deed.call, _sorted(deed.args)) not in performed
        ):
            yield f"{tell(deed)} with {deed.args.decode()} acted, and the log knows no such call"


@cache
def _sorted(args: bytes) -> str:
    return json.dumps(json.loads(args), sort_keys=True)


def unsafe_tools_act_once(history: History) -> Iterator[str]:
    """10. A tool, or a model that may act, is asked at most once for a call unless that is declared repeatable."""
    acted: dict[str, int] = {}
    if history.unpromised:
        return
    for deed in history.ledger:
        if deed.happened and not deed.repeatable:
            acted[deed.call] = acted.get(deed.call, 0) + 1
    for call, times in acted.items():
        if times > 1:
            yield f"unsafe call {call} acted {times} times"


def attempts_do_not_overlap(history: History) -> Iterator[str]:
    """10. What a worker may still be at is left alone for its time: no attempt acts after a later one has."""
    if history.unpromised:
        return
    latest: dict[str, int] = {}
    for deed in history.ledger:
        if acts(deed):
            if deed.attempt < latest.get(deed.call, 0):
                yield f"{tell(deed)} acted for {deed.worker} after attempt {latest[deed.call]} had"
            latest[deed.call] = max(deed.attempt, latest.get(deed.call, 0))


def transactions_act_exactly_once(history: History) -> Iterator[str]:
    """10. What transactional tools wrote is what the log says that they did: each once, in that order."""
    rows = [row for thread, row in history.world.rows if thread == history.lane.name]
    if rows != history.told.entered:
        yield f"committed were {rows}, recorded {history.told.entered}"


def repeats_carry_one_key(history: History) -> Iterator[str]:
    """10. Attempts of a call carry one idempotency key, and two calls never share one, of whatever thread."""
    keys: dict[tuple[str, str], str] = {}
    for deed in history.world.ledger:
        if deed.kind == "tool" and keys.setdefault((deed.thread, deed.call), deed.key) != deed.key:
            yield f"{tell(deed)} came with another key than the attempt before"
    if len(set(keys.values())) != len(keys):
        yield "two calls share a key"


def held_calls_wait_for_a_yes(history: History) -> Iterator[str]:
    """A call that needs an approval acts only after one is durable."""
    for deed in history.ledger:
        if deed.kind == "tool" and deed.name in HELD:
            allowed = [
                b for b in history.bodies[: deed.head] if b["kind"] == "approval_given" and b["approved"]
            ]
            if not any(body["call"] == deed.call for body in allowed):
                yield f"{tell(deed)} acted, and nobody had allowed it"


def results_tell_the_truth(history: History) -> Iterator[str]:
    """11. A recorded result was had outside, with that value; what is said not to have happened did not."""
    if history.unpromised:
        return
    happened = {(deed.call, deed.attempt): deed for deed in history.ledger if acts(deed) and deed.happened}
    for seq, body in enumerate(history.bodies, 1):
        kind = body["kind"]
        if kind not in ("tool_returned", "tool_resolved", "tool_failed"):
            continue
        deed = happened.get((body["call"], body.get("attempt", 1)))
        said = body.get("outcome", "returned") if kind != "tool_failed" else "failed"
        # Of what may run twice a failure need not say whether it had happened.
        if said == "failed" and body.get("effect", "none") == "none" and deed and not deed.repeatable:
            yield f"seq {seq} says that {body['call']} failed without an effect, the world says {deed}"
        if said == "returned" and (deed is None or deed.value != body.get("result")):
            yield f"seq {seq} says that {body['call']} returned {body.get('result')}, the world says {deed}"
        if said == "did_not_happen" and deed is not None:
            yield f"seq {seq} says that {body['call']} attempt {body.get('attempt', 1)} did not happen, it did"


def recorded_is_never_asked_again(history: History) -> Iterator[str]:
    """12. What has a recorded outcome is not asked, called or stepped again."""
    for deed in history.ledger:
        if history.unpromised or (not deed.current and history.kinds & ROBBERY):
            continue
        for seq, body in history.told.outcomes.get(deed.call, ()):
            if seq <= deed.head:
                yield f"{tell(deed)} acted though seq {seq} ({body['kind']}) had recorded its outcome"


# The end


def every_run_ends(history: History) -> Iterator[str]:
    """19. When faults stop, the run comes to its end, and nobody holds the thread."""
    if not history.lane.done:
        yield "nobody looks after the thread any more, and its run has not ended"
    if history.bodies and history.bodies[-1]["kind"] not in ENDS:
        yield f"the log ends with {history.bodies[-1]['kind']}"
    info = history.world.store.info(history.lane.name)
    if (
        info.holder is not None
        and (info.lease_remaining_s or 0) > 0
        and not history.kinds & {"crash", "ghost"}
    ):
        yield "the lease is still held"


def engine_raises_nothing(history: History) -> Iterator[str]:
    """The engine itself comes to no error of its own."""
    yield from history.world.flaws


def nothing_is_left_behind(history: History) -> Iterator[str]:
    """Who leaves a run that waits leaves no message that it waits for."""
    for idle in history.world.idle:
        if idle.thread != history.lane.name or not idle.messages:
            continue
        bodies = history.bodies[: idle.head]
        waits = {b["call"]: b["name"] for b in bodies if b["kind"] == "wait_started"}
        for body in bodies:
            if is_outcome(body):
                waits.pop(body["call"], None)
        asks = {b["call"] for b in bodies if b["kind"] == "approval_requested"}
        asks -= {b["call"] for b in bodies if b["kind"] == "approval_given"}
        # A run that has ended waits for nothing any more.
        ended = {b["run"] for b in bodies if b["kind"] in ENDS}
        asks = {call for call in asks if call.partition("/")[0] not in ended}
        for message in idle.messages:
            content = _content(message.body)
            if message.kind == "signal" and content["name"] in waits.values():
                yield f"{idle.worker} left signal {content['name']!r} behind"
            if message.kind == "approval" and content["call"] in asks:
                yield f"{idle.worker} left the approval of {content['call']} behind"


@lru_cache(MEMORY)
def _content(message: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(message)
    return content


def messages_are_taken_once(history: History) -> Iterator[str]:
    """A message enters the log at most once, in the append that took it."""
    consumed: dict[int, int] = {}
    for sent in history.sent:
        if sent.append.consumed and any(result.outcome is Outcome.APPENDED for result in sent.results):
            for message in sent.append.consumed:
                consumed[message] = consumed.get(message, 0) + 1
    for message, times in consumed.items():
        if times > 1:
            yield f"message {message} was taken {times} times"
    sent_signals: dict[str, int] = {}
    for message in history.world.store.inbox(history.lane.name, consumed=True):
        if message.kind == "signal":
            name = _content(message.body)["name"]
            sent_signals[name] = sent_signals.get(name, 0) + 1
    for name, times in history.told.received.items():
        if times > sent_signals.get(name, 0):
            yield f"signal {name!r} was sent {sent_signals.get(name, 0)} times and received {times} times"


def answers_go_where_they_are_meant(history: History) -> Iterator[str]:
    """What the log says that people, or workers too late, have answered is what they said, of that very call."""
    told = [body for body in history.bodies if body["kind"] in ("approval_given", "tool_resolved")]
    if not told:
        return
    messages = history.world.store.inbox(history.lane.name, consumed=True)
    said = [_content(message.body) for message in messages if message.kind in ("approval", "resolution")]
    for body in told:
        # A reconciler sends nothing, and what a worker has not begun it says in its own log.
        if body.get("by") == "reconciler" or (body.get("by"), body.get("outcome")) == (
            "worker",
            "did_not_happen",
        ):
            continue
        meant = ("call", "approved", "attempt", "outcome", "result")
        if not any(all(body.get(name) == content.get(name) for name in meant) for content in said):
            yield f"{body} is in the log, and nobody has said so"


def inputs_become_runs_once(history: History) -> Iterator[str]:
    """Each input that was sent becomes one run, in the order of arrival."""
    messages = history.world.store.inbox(history.lane.name, consumed=True)
    sent = [_content(message.body)["key"] for message in messages if message.kind == "input"]
    if history.told.inputs != sent:
        yield f"inputs {sent} were sent, runs {history.told.inputs} were begun"


def outcome_is_that_of_the_quiet_run(history: History) -> Iterator[str]:
    """Faults cost time, never meaning: the run ends as it would have ended undisturbed."""
    quiet = history.quiet
    if quiet is None or history.kinds & ALTERING or history.unpromised:
        return
    if history.told.timed_out:
        return
    told = history.told.meaning
    if told != quiet:
        differing = [key for key in {*told, *quiet} if told.get(key) != quiet.get(key)]
        yield "; ".join(
            f"{key}: {told.get(key)} instead of {quiet.get(key)}" for key in sorted(differing)[:3]
        )


ORACLES = (
    engine_raises_nothing,
    log_is_dense,
    log_only_grows,
    chain_verifies,
    fences_never_fall,
    acknowledged_is_there,
    appends_are_atomic,
    no_stale_writer,
    only_holder_never_conflicts,
    no_effect_before_its_start,
    no_effect_without_its_cause,
    unsafe_tools_act_once,
    attempts_do_not_overlap,
    transactions_act_exactly_once,
    repeats_carry_one_key,
    held_calls_wait_for_a_yes,
    results_tell_the_truth,
    recorded_is_never_asked_again,
    calls_are_paired,
    doubted_calls_wait_for_a_yes,
    failures_are_followed_by_the_rules,
    rests_only_when_all_waits,
    log_replays,
    log_verifies,
    export_round_trips,
    conversation_is_valid,
    every_run_ends,
    nothing_is_left_behind,
    resuming_without_news_writes_nothing,
    time_is_kept,
    no_clock_of_a_worker_says_when,
    deadlines_are_kept,
    messages_are_taken_once,
    answers_go_where_they_are_meant,
    inputs_become_runs_once,
    outcome_is_that_of_the_quiet_run,
)


def violations(history: History) -> list[tuple[str, str]]:
    """(promise, what is wrong), for all that is wrong with a history."""
    return [(oracle.__name__, wrong) for oracle in ORACLES for wrong in oracle(history)]
