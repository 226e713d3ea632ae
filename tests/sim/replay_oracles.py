"""What must hold of replay: every log, and every prefix of one, leads to the same state and acts on nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from refold.agent.conversation import conversation
from refold.replay import rebuild
from refold.replay.commands import Phase
from refold.replay.events import Patched, RunStarted, decode_event
from refold.replay.interpreter import Interpreter
from refold.replay.status import ThreadStatus
from sim.history import History, tell
from sim.told import MEMORY

_replayed: set[tuple[str, bytes]] = set()
_folded: set[bytes] = set()


def forget() -> None:
    """Judge anew what has been judged."""
    _replayed.clear()
    _folded.clear()


def log_replays(history: History) -> Iterator[str]:
    """13. The log replays strictly to its end; from each of its prefixes the same follows, and nothing acts."""
    key = (history.lane.scenario.name, history.events[-1].hash if history.events else b"")
    if key in _replayed:
        return
    if len(_replayed) > MEMORY:
        _replayed.clear()
    _replayed.add(key)
    acted = len(history.world.ledger)
    try:
        yield from _step_through(history)
        # A replay of the whole thread, and one of each prefix by itself, for one log of eight.
        if history.events and history.events[-1].hash[0] % 8 == 0:
            rebuild.replay(history.lane.scenario.program, history.lane.name, history.events)
            yield from _prefixes(history)
    except Exception as error:  # noqa: BLE001 - any refusal to replay is the finding
        yield f"the log does not replay: {type(error).__name__}: {error}"
    if len(history.world.ledger) != acted:
        yield "a replay acted"


def _step_through(history: History) -> Iterator[str]:
    """After every event the program's fold and the one without a program must say the same."""
    lane = history.lane
    bodies = [decode_event(event) for event in history.events]
    status = ThreadStatus(lane.name)
    interpreter: Interpreter | None = None
    for seq, body in enumerate(bodies, 1):
        status.apply(seq, body)
        if isinstance(body, RunStarted):
            if interpreter is not None:
                interpreter.machine.close()
            interpreter = Interpreter(
                lane.scenario.program,
                thread=lane.name,
                uid=status.uid,
                run_id=body.run,
                prior=lane.scenario.program.prior(bodies[: seq - 1]),
                patches=frozenset(b.id for b in bodies if isinstance(b, Patched)),
                doubted=status.doubted,
            )
        # Between two runs there may be answers about calls of the one that has ended.
        if interpreter is not None and interpreter.ended is None:
            interpreter.recorded_to = len(bodies)
            interpreter.apply(seq, body)
            if difference := _differ(status, interpreter):
                yield f"prefix {seq}: {difference}"
    if interpreter is not None:
        interpreter.machine.close()


def _prefixes(history: History) -> Iterator[str]:
    name, program, events = history.lane.scenario.name, history.lane.scenario.program, history.events
    known = len(events) - 1
    # A prefix that was replayed in another history was so with all shorter ones.
    while known and (name, events[known - 1].hash) not in _replayed:
        known -= 1
    thread = rebuild.load(history.lane.name, events[:known])
    for size in range(known + 1, len(events)):
        event = events[size - 1]
        _replayed.add((name, event.hash))
        thread.extend([event])
        if thread.status.current is None:
            continue
        interpreter = rebuild.interpret(program, thread, thread.status.current)
        difference = _differ(thread.status, interpreter)
        interpreter.machine.close()
        if difference:
            yield f"prefix {size} by itself: {difference}"


_PHASES = {
    Phase.STARTED: "started",
    Phase.DOUBT: "in doubt",
    Phase.ASKING: "waits for approval",
    Phase.BACKOFF: "retries",
    Phase.WAITING: "waits",
}
_SAME = {"sleeps": "waits", "waits for a signal": "waits"}


def _differ(status: ThreadStatus, interpreter: Interpreter) -> str | None:
    run = status.current
    if run is None or run.ended:
        return None
    told = {call.call: _SAME.get(call.status, call.status) for call in run.open.values()}
    asked = {c.id: _PHASES[c.phase] for c in interpreter.pending.values() if c.phase in _PHASES}
    if told != asked:
        return f"the status says {told}, the program {asked}"
    if status.doubted != interpreter.doubted:
        return f"the status doubts {set(status.doubted)}, the program {interpreter.doubted}"
    return None


def conversation_is_valid(history: History) -> Iterator[str]:
    """Providers accept what is sent and what is folded from any prefix: each call is answered, right after it."""
    if history.lane.scenario.name != "agent":
        return
    for deed in history.ledger:
        if deed.kind == "model" and (fault := _invalid_as_sent(deed.args)):
            yield f"{tell(deed)} was sent an invalid conversation: {fault}"
    for size in range(len(history.events), 0, -1):
        head = history.events[size - 1].hash
        if head in _folded:
            return
        _folded.add(head)
        if fault := _invalid(conversation(history.events[:size])):
            yield f"the conversation of prefix {size} is invalid: {fault}"


@lru_cache(MEMORY)
def _invalid_as_sent(messages: bytes) -> str | None:
    return _invalid(json.loads(messages))


def _invalid(messages: list[dict[str, Any]]) -> str | None:
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"{message['tool_call_id']} is answered and was not asked"
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return f"{open_calls} are not answered before a message of {message['role']}"
        open_calls += [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(open_calls)) != len(open_calls):
            return f"{open_calls} share an id"
    return f"{open_calls} are not answered" if open_calls else None
