"""Records the golden threads that have no file yet: python tests/golden/record.py"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import refold
from refold import Journal, Run, ScriptedModel, program
from refold.agent.scripted import ScriptedCall, call
from refold.journal import export
from refold.journal.envelope import Event, NewEvent
from refold.journal.store import ThreadState
from refold.replay import answers, rebuild
from refold.replay.fork import fork
from refold.replay.runner import read_all

sys.path.insert(0, str(Path(__file__).parents[1]))
from golden import corpus

FOLDER = Path(__file__).parent


async def record_clerk(journal: Journal, thread: str) -> None:
    result = await corpus.clerk.run("Tidy up", journal=journal, thread=thread, wait=False)
    one, two = [each.call for each in result.pending]
    answers.approve(journal, thread, one, approved=True, by="kim")
    answers.approve(journal, thread, two, approved=False, by="kim", note="keep it")
    await corpus.clerk.resume(journal=journal, thread=thread, wait=False)
    # A worker that died in the middle of a call that must not be repeated.
    await _crash_in_refund(journal, thread)
    await asyncio.sleep(0.1)  # the dead worker's time is over
    parked = await corpus.clerk.resume(journal=journal, thread=thread, wait=False)
    assert parked.status == "parked", parked
    (doubted,) = [each.call for each in parked.pending]
    answers.resolve(journal, thread, doubted, result=answers.from_json('"refunded 9"', "result"), by="kim")
    await corpus.clerk.resume(journal=journal, thread=thread, wait=False)


async def _crash_in_refund(journal: Journal, thread: str) -> None:
    """The events that a worker leaves which dies in the call: taken from a run and cut off after its start."""
    with Journal.memory() as scratch:
        await _copy(journal, thread, scratch, journal.info(thread).head)
        await corpus.clerk.run("Refund order 9", journal=scratch, thread=thread, wait=False)
        events = read_all(scratch, thread)
    head = journal.info(thread).head
    end = next(each.seq for each in events if each.seq > head and each.kind == "tool_started")
    tenure = journal.acquire(thread)
    tenure.append([_new(each) for each in events[head:end]], state=ThreadState.RUNNING).result()
    tenure.release()


async def _copy(journal: Journal, thread: str, to: Journal, upto: int) -> None:
    tenure = to.acquire(thread)
    events = journal.read(thread, upto=upto)
    tenure.append([_new(each) for each in events], state=journal.info(thread).state).result()
    tenure.release()


def _new(event: Event) -> NewEvent:
    return NewEvent(event.id, event.kind, event.version, event.body)


async def record_forked(journal: Journal, thread: str) -> None:
    await record_clerk(journal, "origin")
    returned = next(e.seq for e in journal.read("origin") if e.kind == "tool_returned")
    fork(journal, "origin", replace=(returned, {"order": 1, "lines": [], "total": 0}), name=thread)
    result = await corpus.clerk.resume(journal=journal, thread=thread, wait=False)
    for waiting in result.pending:
        answers.approve(journal, thread, waiting.call, approved=False)
    await corpus.clerk.resume(journal=journal, thread=thread, wait=False)


async def record_superseded(journal: Journal, thread: str) -> None:
    await _supersede(journal, thread, call("refund", order=9))


async def _supersede(journal: Journal, thread: str, under_way: ScriptedCall) -> None:
    models = corpus.ScriptedModel([[under_way], "Something else."])
    agent = corpus.clerk_with(models)
    with Journal.memory() as scratch:
        await agent.run("Refund order 9", journal=scratch, thread=thread, wait=False)
        events = read_all(scratch, thread)
    end = next(each.seq for each in events if each.kind == "tool_started")
    tenure = journal.acquire(thread)
    tenure.append([_new(each) for each in events[:end]], state=ThreadState.RUNNING).result()
    tenure.release()
    await agent.run("Something else", journal=journal, thread=thread, supersede=True, wait=False)


async def record_held(journal: Journal, thread: str) -> None:
    """A call that only reads was asked of a person after its run was superseded; later builds repeat such a call."""
    await _supersede(journal, thread, call("lookup", order=1))
    again = corpus.clerk_with(corpus.ScriptedModel(corpus.AGAIN))
    waiting = await again.run("Again", journal=journal, thread=thread, wait=False)
    assert waiting.status == "waiting", "only a build that asked about such calls records this"


async def record_errand(journal: Journal, thread: str) -> None:
    models = ScriptedModel(lambda request: "A reply.")
    await refold.run(corpus.errand, "tea", journal=journal, thread=thread, models=models, wait=False)
    result = await _until_waiting(corpus.errand, journal, thread, models)
    assert result.status == "waiting", result
    answers.signal(journal, thread, "word", answers.from_json('{"said": ["go", 1]}', "value"), by="kim")
    while (
        await refold.resume(corpus.errand, journal=journal, thread=thread, models=models)
    ).status != "finished":
        pass


async def _until_waiting(made: Any, journal: Journal, thread: str, models: Any) -> Any:
    while True:
        result = await refold.resume(made, journal=journal, thread=thread, models=models, wait=False)
        if any(each.status == "waits for a signal" for each in result.pending):
            return result
        await asyncio.sleep(0.01)


async def record_doomed(journal: Journal, thread: str) -> None:
    try:
        await refold.run(corpus.doomed, journal=journal, thread=thread)
    except refold.RunFailed:
        return
    raise AssertionError


async def record_patient(journal: Journal, thread: str) -> None:
    await refold.run(corpus.patient, journal=journal, thread=thread, wait=False)
    answers.cancel(journal, thread, reason="enough", by="kim")
    await refold.resume(corpus.patient, journal=journal, thread=thread, wait=False)


async def record_accepted(journal: Journal, thread: str) -> None:
    @program
    async def before(run: Run, topic: str) -> str:
        first = await run.model(messages=[{"role": "user", "content": topic}], model="scripted")
        await run.wait_for("go")
        return first.text

    before.name = corpus.renamed.name
    models = ScriptedModel(lambda request: "A reply.")
    await refold.run(before, "tea", journal=journal, thread=thread, models=models, wait=False)
    answers.signal(journal, thread, "go", None)
    await refold.resume(
        corpus.renamed, journal=journal, thread=thread, models=models, on_divergence="accept", wait=False
    )


async def record_acting(journal: Journal, thread: str) -> None:
    with Journal.memory() as scratch:
        await corpus.acting.run("Compute", journal=scratch, thread=thread, wait=False)
        events = read_all(scratch, thread)
    end = [each.seq for each in events if each.kind == "model_started"][1]
    tenure = journal.acquire(thread)
    tenure.append([_new(each) for each in events[:end]], state=ThreadState.RUNNING).result()
    tenure.release()
    parked = await corpus.acting.resume(journal=journal, thread=thread, wait=False)
    assert parked.status == "parked", parked
    answers.resolve(journal, thread, parked.pending[0].call, did_not_happen=True, by="kim")
    await corpus.acting.resume(journal=journal, thread=thread, wait=False)


RECORDERS: dict[str, Callable[[Journal, str], Awaitable[None]]] = {
    "clerk": record_clerk,
    "clerk-forked": record_forked,
    "superseded": record_superseded,
    "held": record_held,
    "errand": record_errand,
    "doomed": record_doomed,
    "patient": record_patient,
    "accepted": record_accepted,
    "acting": record_acting,
}


def main() -> None:
    """Record what is missing."""
    for name, recorder in RECORDERS.items():
        file = FOLDER / f"{name}.jsonl"
        if file.exists():
            continue
        with Journal.memory() as journal:
            corpus._failures = corpus.itertools.count()
            asyncio.run(recorder(journal, name))  # type: ignore[arg-type]
            events = read_all(journal, name)
            rebuild.replay(corpus.PROGRAMS[name], name, events)
            export.export_file(journal, [name], file)
        print(f"{name}: {[event.kind for event in events]}")


if __name__ == "__main__":
    main()
