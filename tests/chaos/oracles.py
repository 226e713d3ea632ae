"""
What must hold of every thread's log, checked against the ledger. Shares no code with the engine but strict replay.

Each check is a function named after its promise; it yields what is wrong, in words.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from chaos import worker
from chaos.ledger import ACTED, ASKED, ENTERED
from refold.journal.envelope import Event
from refold.journal.store import ThreadInfo
from refold.replay import rebuild
from refold.replay.program import Program

_TOKEN = re.compile(r"token ([0-9a-f]{12})")

Entry = dict[str, Any]


class History:
    """One thread: its log as read in the end, its row, and what the world saw of it."""

    def __init__(
        self,
        thread: str,
        events: Sequence[Event],
        info: ThreadInfo | None,
        ledger: Iterable[Entry],
        acknowledged: Iterable[Sequence[Any]] = (),
        program: Program | None = None,
    ) -> None:
        self.program = program
        self.thread = thread
        self.events = list(events)
        self.info = info
        self.bodies: list[Entry] = [json.loads(event.body) for event in events]
        self.ledger = [entry for entry in ledger if entry.get("thread") == thread]
        self.acknowledged = [ack for ack in acknowledged if ack[0] == thread]
        self.acted = [entry for entry in self.ledger if entry["what"] == ACTED]
        self.asked = [entry for entry in self.ledger if entry["what"] == ASKED]

    def of(self, *kinds: str) -> Iterator[tuple[int, Entry]]:
        """Seq and body of the events of these kinds."""
        return ((seq, body) for seq, body in enumerate(self.bodies, 1) if body["kind"] in kinds)

    def head_before(self, fence: int) -> int:
        """Where the log stood when this fence was granted, as far as events tell."""
        return max((event.seq for event in self.events if event.fence < fence), default=0)


def log_is_dense(history: History) -> Iterator[str]:
    """Seqs are 1 to head, and the thread's row says the same."""
    seqs = [event.seq for event in history.events]
    if seqs != list(range(1, len(seqs) + 1)):
        yield f"seqs are {seqs}"
    if history.info is None:
        yield "the thread is not there"
    elif seqs and (history.info.head, history.info.head_hash) != (len(seqs), history.events[-1].hash):
        yield f"the row says head {history.info.head}, the log ends at {len(seqs)}"


def chain_verifies(history: History) -> Iterator[str]:
    """Each hash follows from the one before."""
    previous = hashlib.sha256(b"refold log 1").digest()
    for event in history.events:
        kind = event.kind.encode()
        content = previous + event.seq.to_bytes(8) + event.id.bytes + event.version.to_bytes(2)
        content += len(kind).to_bytes(2) + kind + hashlib.sha256(event.body).digest()
        if hashlib.sha256(content).digest() != event.hash:
            yield f"the hash of seq {event.seq} does not follow from the one before"
        previous = event.hash


def fences_never_fall(history: History) -> Iterator[str]:
    """Along a thread fences only grow, and ids never come twice."""
    fences = [event.fence for event in history.events]
    if fences != sorted(fences):
        yield f"fences are {fences}"
    if len({event.id for event in history.events}) != len(fences):
        yield "an event is in the log twice"


def acknowledged_is_there(history: History) -> Iterator[str]:
    """What a worker was told is durable is there in the end, with its hash and so with all its past."""
    for _, seq, hash_hex, _ in history.acknowledged:
        if len(history.events) < seq:
            yield f"seq {seq} was acknowledged, the log ends at {len(history.events)}"
        elif history.events[seq - 1].hash.hex() != hash_hex:
            yield f"seq {seq} was acknowledged with another hash"


def unsafe_tools_act_once(history: History) -> Iterator[str]:
    """A tool not declared repeatable acts at most once for a call."""
    for call, times in Counter(
        entry["call"] for entry in history.acted if entry["tool"] not in worker.REPEATABLE
    ).items():
        if times > 1:
            yield f"unsafe call {call} acted {times} times"


def effects_in_the_database_are_recorded(history: History) -> Iterator[str]:
    """What a transactional tool has written is there exactly if its result is, and once."""
    written = Counter((entry["call"], entry["attempt"]) for entry in history.acted if entry["tool"] == "pay")
    tools = {body["call"]: body["tool"] for _, body in history.of("tool_started")}
    recorded = Counter(
        (body["call"], body.get("attempt", 1))
        for _, body in history.of("tool_returned")
        if tools[body["call"]] == "pay"
    )
    if written != recorded:
        yield f"written and not recorded: {dict(written - recorded)}"
        yield f"recorded and not written: {dict(recorded - written)}"


def repeats_carry_one_key(history: History) -> Iterator[str]:
    """All attempts of a call carry one idempotency key, and no two calls share one."""
    keys: dict[str, str] = {}
    for entry in history.ledger:
        if entry["what"] in (ACTED, ENTERED) and keys.setdefault(entry["call"], entry["key"]) != entry["key"]:
            yield f"{_named(entry)} came with another key than before"
    if len(set(keys.values())) != len(keys):
        yield f"two calls share a key: {keys}"


def no_effect_before_its_start(history: History) -> Iterator[str]:
    """Before a tool is entered its start is in the log, with its tool and its key."""
    starts = {(body["call"], body.get("attempt", 1)): seq for seq, body in history.of("tool_started")}
    for entry in history.ledger:
        if entry["what"] not in (ACTED, ENTERED):
            continue
        seq = starts.get((entry["call"], entry["attempt"]))
        if seq is None:
            yield f"{_named(entry)} {entry['what']}, and the log knows no such start"
            continue
        body = history.bodies[seq - 1]
        if (body["tool"], body["key"]) != (entry["tool"], entry["key"]):
            yield f"{_named(entry)} is another call than the one started at seq {seq}"
        if entry["what"] == ACTED and history.events[seq - 1].recorded_at > entry["at_us"]:
            yield f"{_named(entry)} acted before its start was recorded at seq {seq}"


def results_tell_the_truth(history: History) -> Iterator[str]:
    """A recorded result has its execution, with that value; what is said not to have happened did not."""
    acted = {(entry["call"], entry["attempt"]): entry for entry in history.acted}
    for seq, body in history.of("tool_returned", "tool_resolved", "tool_failed"):
        attempt = (body["call"], body.get("attempt", 1))
        entry = acted.get(attempt)
        said = body.get("outcome", "returned") if body["kind"] != "tool_failed" else body["effect"]
        if said == "returned" and (entry is None or entry["value"] != body.get("result")):
            yield f"seq {seq} says that {attempt} returned {body.get('result')!r}, the world says {entry}"
        if said in ("did_not_happen", "none") and entry is not None:
            yield f"seq {seq} says that {attempt} did not happen, it did"


def recorded_calls_never_run_again(history: History) -> Iterator[str]:
    """A call whose outcome is recorded is not entered again, by this worker or the next."""
    answered: dict[str, tuple[int, int]] = {}
    for seq, body in history.of("tool_returned", "tool_resolved", "tool_failed"):
        final = body.get("final", True) and body.get("outcome") != "did_not_happen"
        if final:
            if body["call"] in answered:
                yield f"seq {seq} answers {body['call']} once more"
            answered[body["call"]] = (seq, body.get("attempt", 1))
    for entry in history.ledger:
        if entry["what"] not in (ACTED, ENTERED) or entry["call"] not in answered:
            continue
        seq, attempt = answered[entry["call"]]
        if seq <= history.head_before(entry["fence"]) or entry["attempt"] > attempt:
            yield f"{_named(entry)} {entry['what']} though its outcome was recorded at seq {seq}"


def recorded_responses_are_never_asked_again(history: History) -> Iterator[str]:
    """A model response in the log is not asked for again; one that was asked for is the one recorded."""
    asked = {entry["token"]: place for place, entry in enumerate(history.asked)}
    for turn, (seq, body) in enumerate(history.of("model_responded")):
        found = _TOKEN.search(json.dumps(body["response"]))
        if found is None or found[1] not in asked:
            yield f"seq {seq} holds a response that the model never gave"
            continue
        place = asked[found[1]]
        first = history.asked[place]
        if first["turn"] != turn:
            yield f"seq {seq} holds the response of turn {first['turn']} as that of turn {turn}"
        for later, entry in enumerate(history.asked):
            again = entry["turn"] == turn and (
                seq <= history.head_before(entry["fence"])
                or (later > place and entry["fence"] == first["fence"])
            )
            if again:
                yield f"turn {turn} was asked for again by fence {entry['fence']}, seq {seq} holds its response"


def every_thread_finishes(history: History) -> Iterator[str]:
    """After the faults stop each thread comes to its end, and nobody holds it."""
    last = history.bodies[-1]["kind"] if history.bodies else "nothing"
    if last != "run_finished":
        yield f"the log ends with {last}"
    if history.info is not None and history.info.holder is not None:
        yield f"fence {history.info.fence} still holds the thread"


def log_replays(history: History) -> Iterator[str]:
    """A finished log replays strictly to its end, and a replay acts and asks nothing."""

    def refuse(request: Any) -> Any:
        raise AssertionError("a replay asked the model")

    program = history.program or worker.make_agent(worker.ScriptedModel(refuse)).program
    try:
        rebuild.replay(program, history.thread, history.events)
    except Exception as error:  # noqa: BLE001 - any refusal to replay is the finding
        yield f"the log does not replay: {type(error).__name__}: {error}"


ORACLES: tuple[Callable[[History], Iterator[str]], ...] = (
    log_is_dense,
    chain_verifies,
    fences_never_fall,
    acknowledged_is_there,
    unsafe_tools_act_once,
    effects_in_the_database_are_recorded,
    repeats_carry_one_key,
    no_effect_before_its_start,
    results_tell_the_truth,
    recorded_calls_never_run_again,
    recorded_responses_are_never_asked_again,
    every_thread_finishes,
    log_replays,
)


def check(history: History, *, only: Iterable[str] | None = None) -> list[str]:
    """All that is wrong with a history: thread, promise, and what was found."""
    wanted = None if only is None else set(only)
    return [
        f"{history.thread}: {oracle.__name__}: {wrong}"
        for oracle in ORACLES
        if wanted is None or oracle.__name__ in wanted
        for wrong in oracle(history)
    ]


def _named(entry: Entry) -> str:
    return f"{entry['tool']} ({entry['call']}, attempt {entry['attempt']}, fence {entry['fence']})"


# What a history has seen, and how it is shown


def marks(history: History) -> set[str]:
    """The rare paths that this history went along."""
    hit: set[str] = set()
    if len({event.fence for event in history.events}) > 1:
        hit.add("taken over")
    tools = {body["call"]: body["tool"] for _, body in history.of("tool_started")}
    for seq, body in enumerate(history.bodies, 1):
        kind, name = body["kind"], tools.get(body.get("call", ""))
        if kind == "tool_resolved":
            hit.add(f"{body.get('by') or 'somebody'} said {body['outcome']}")
        elif kind == "tool_started" and body.get("attempt", 1) > 1 and name in worker.REPEATABLE:
            hit.add("repeated with one key")
        elif kind == "tool_failed" and body["effect"] == "unknown":
            hit.add("model told of a doubt")
        elif kind == "run_parked":
            hit.add("poisoned" if body.get("poisoned") else "parked")
        elif kind == "run_resumed" and history.bodies[seq - 2]["kind"] == "tool_started":
            hit.add("died inside a tool")
        elif kind == "run_resumed" and history.bodies[seq - 2]["kind"] == "run_resumed":
            hit.add("died in its recovery")
    turns = Counter(entry["turn"] for entry in history.asked)
    if any(times > 1 for times in turns.values()):
        hit.add("response in flight asked again")
    acted = Counter(entry["call"] for entry in history.acted)
    if any(times > 1 for times in acted.values()):
        hit.add("idempotent effect repeated")
    if any(ack[3] == "duplicate" for ack in history.acknowledged):
        hit.add("own append recognised")
    return hit


def screen(history: History, wrong: Sequence[str] = ()) -> str:
    """One screen: the log, and beside it what the world saw; of a long history the surroundings of what is *wrong*."""
    log, ledger = [], []
    for event, body in zip(history.events, history.bodies, strict=True):
        about = [str(body[name]) for name in ("call", "tool", "attempt", "outcome", "reason") if name in body]
        log.append(f"  seq {event.seq:<5} fence {event.fence:<3} {event.kind:<20} {' '.join(about)}"[:110])
    told = ("tool", "call", "attempt", "turn", "value", "token")
    for entry in history.ledger:
        about = [str(entry[name]) for name in told if name in entry]
        line = f"  pid {entry['pid']:<7} fence {entry['fence']:<3} {entry['what']:<8} {' '.join(about)}"
        ledger.append(line[:110])
    named = set(re.findall(r"r\d+/[\d.]+|seq \d+|turn \d+", " ".join(wrong)))
    return "\n".join(
        [
            f"thread {history.thread}: the log",
            *_surroundings(log, named),
            "the ledger",
            *_surroundings(ledger, named),
        ]
    )


def _surroundings(lines: list[str], named: set[str]) -> list[str]:
    if len(lines) <= 40:
        return lines
    found = [place for place, line in enumerate(lines) if any(f" {name} " in f"{line} " for name in named)]
    kept = sorted(
        {near for place in found for near in range(max(0, place - 3), place + 4) if near < len(lines)}
    )
    return [lines[place] for place in kept[:40] or range(len(lines) - 40, len(lines))]
