"""A worker that stood still past its lease calls nothing any more: not a tool, and not a model either."""

from __future__ import annotations

import threading
import uuid

import pytest
import refold
from refold import Journal, LeaseLost, ModelReply, Run, StoreUnavailable, program
from refold.journal.memory import MemoryStore
from refold.journal.sources import Sources
from refold.journal.store import AppendResult


class Skipping(Sources):
    """Clocks that can be moved."""

    def __init__(self) -> None:
        self.ahead_s = 0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


class Counting:
    def __init__(self) -> None:
        self.asked = 0

    async def respond(self, request) -> ModelReply:
        self.asked += 1
        return ModelReply({"role": "assistant", "content": "hello"}, finish_reason="stop")


async def test_a_model_is_not_asked_by_a_worker_whose_lease_ran_out_while_it_stood_still():
    sources, model = Skipping(), Counting()

    @program
    async def frozen(run: Run) -> str:
        await run.step(stand_still, read_only=True)
        return (await run.model(messages=[{"role": "user", "content": "x"}], model="m")).text

    with Journal.memory(sources=sources) as journal:

        def stand_still() -> None:
            # While this process stands still another one takes the thread over.
            sources.ahead_s += 3600
            fence = journal.info("t").fence
            journal.store.acquire("t", holder=uuid.uuid4(), ttl_s=30.0, steal=fence)

        with pytest.raises(LeaseLost):
            await refold.run(frozen, journal=journal, thread="t", models=model)

    assert model.asked == 0


async def test_one_failed_renewal_costs_a_worker_neither_its_lease_nor_its_run():
    sources, model = Skipping(), Counting()
    failed = threading.Event()

    class Restarting(MemoryStore):
        def renew(self, thread, *, fence, ttl_s) -> bool:
            if threading.current_thread().name == "refold-renewer":
                raise StoreUnavailable("the server is away")
            if not failed.is_set():
                failed.set()
                raise StoreUnavailable("the server is starting up")
            return super().renew(thread, fence=fence, ttl_s=ttl_s)

        def append(self, append) -> AppendResult:
            # An append would renew the lease too.
            if sources.ahead_s:
                failed.wait(10)
            return super().append(append)

    @program
    async def frozen(run: Run) -> str:
        await run.step(stand_still, read_only=True)
        return (await run.model(messages=[{"role": "user", "content": "x"}], model="m")).text

    def stand_still() -> None:
        sources.ahead_s += 3600

    with Journal(Restarting(sources), sources=sources) as journal:
        result = await refold.run(frozen, journal=journal, thread="t", models=model)

    assert result.output == "hello"
    assert failed.is_set()
