"""What must hold of verification and export: sound logs have no fault, and a file keeps one whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from refold.journal.envelope import Event
from refold.journal.errors import ThreadsDiffer
from refold.journal.export import export_file, import_file
from refold.journal.journal import Journal
from refold.replay import rebuild
from refold.replay.pairing import Pairing
from refold.replay.verification import verify, verify_export
from sim.history import History
from sim.told import MEMORY

SHARE = 32
"""Of so many logs one is exported; which ones its hash says."""

_verified: set[bytes] = set()
_exported: set[tuple[str, bytes]] = set()
_last: dict[str, tuple[list[Event], bytes]] = {}
"""By scenario and thread, the log that was exported last, and the file that holds it."""


def forget() -> None:
    """Judge anew what has been judged."""
    _verified.clear()
    _exported.clear()
    _last.clear()


def log_verifies(history: History) -> Iterator[str]:
    """`refold verify` finds no fault in what belongs together."""
    if not history.events or history.events[-1].hash in _verified:
        return
    if len(_verified) > MEMORY:
        _verified.clear()
    _verified.add(history.events[-1].hash)
    pairing = Pairing(history.lane.name)
    for event in history.events:
        if fault := pairing.look(event):
            yield f"verify says of seq {event.seq}: {fault}"


def export_round_trips(history: History) -> Iterator[str]:
    """15. Export and import keep head hash and meaning; a second import changes nothing; another log is refused."""
    events, scenario = history.events, history.lane.scenario
    if not events or events[-1].hash[1] % SHARE:
        return
    key = (scenario.name, events[-1].hash)
    if key in _exported:
        return
    if len(_exported) > MEMORY:
        _exported.clear()
    _exported.add(key)
    history.world.marks["exported"] += 1
    with TemporaryDirectory(prefix="refold-sim-") as folder:
        path = Path(folder, "log.jsonl")
        try:
            yield from _round(history, path)
        except Exception as error:  # noqa: BLE001 - whatever is refused here must not be
            yield f"export or import failed: {type(error).__name__}: {error}"
            return
        yield from _refusal(history, path)


def _round(history: History, path: Path) -> Iterator[str]:
    name, program, events = history.lane.name, history.lane.scenario.program, history.events
    (exported,) = export_file(Journal(history.world.store), [name], path)
    if exported.head_hash != events[-1].hash.hex():
        yield f"the file has head hash {exported.head_hash}, the log {events[-1].hash.hex()}"
    with Journal.memory() as copy:
        first, second = import_file(copy, path)[0], import_file(copy, path)[0]
        if (first.added, second.added) != (len(events), 0):
            yield f"the first import added {first.added} events of {len(events)}, the second {second.added}"
        taken = copy.read(name, limit=len(events) + 1)
        if [(e.id, e.kind, e.version, e.hash, e.body) for e in taken] != [
            (e.id, e.kind, e.version, e.hash, e.body) for e in events
        ]:
            yield "the imported log is another"
        for found in (*verify(copy, [name]), *verify_export(path)):
            if not found.sound:
                yield f"verify says: {' '.join(found.lines())}"
        if rebuild.replay(program, name, taken) != rebuild.replay(program, name, events):
            yield "the imported log replays to another state"


def _refusal(history: History, path: Path) -> Iterator[str]:
    """The log of another history of this thread is not taken for a continuation of this one."""
    events, key = history.events, f"{history.lane.scenario.name} {history.lane.name}"
    before = _last.get(key)
    _last[key] = (events, path.read_bytes())
    if before is None or not _parted(before[0], events):
        return
    other = path.with_name("other.jsonl")
    other.write_bytes(before[1])
    with Journal.memory() as copy:
        import_file(copy, other)
        try:
            import_file(copy, path)
        except ThreadsDiffer:
            return
    yield "a log was imported into another one that it does not go on from"


def _parted(one: list[Event], other: list[Event]) -> bool:
    common = min(len(one), len(other))
    return one[common - 1].hash != other[common - 1].hash
