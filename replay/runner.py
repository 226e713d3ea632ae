"""Runs and resumes a program on a thread: takes the lease, folds the log, goes on live, gives the lease back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Raw, Struct

from ..journal import codec
from ..journal.envelope import Event, check_thread_id
from ..journal.errors import Corrupt, LimitExceeded, UsageError
from ..journal.journal import Journal
from ..journal.store import Message, Release
from ..journal.tenure import Tenure
from . import events as ev
from .errors import RunFailed, RunUnfinished
from .inbox import Resolution, decode_message, resolution_event
from .interpreter import Interpreter
from .live import LiveHost, World
from .program import Program
from .rebuild import Thread, interpret, load
from .session import RESULT_BYTES_MAX, Policy, Session, Status
from .status import OpenCall, RunState, ThreadStatus, Totals

Choose = Callable[[ThreadStatus], RunState | None]
Begin = Callable[[], None]
Observe = Callable[[int, ev.EventBody], None]

READ_PAGE = 2000
KEY_BYTES_MAX = 200


class RunResult(Struct, frozen=True, kw_only=True):
    """
    Where a run stands after `run` or `resume`.

    Attributes:
        status: finished, cancelled, parked, waiting or released (a failed run raises instead).
        output: What the program returned; None unless it finished.
        pending: Open calls, for a run that is parked or waits.
        reason: Why it is parked, cancelled or released.
        usage: Sums over the run's recorded responses.
        thread: Thread id.
        run_id: Id of the run.
    """

    status: Status
    output: Any
    pending: tuple[OpenCall, ...]
    reason: str
    usage: Totals
    thread: str
    run_id: str


class Runner:
    """
    One program, one thread, one world.

    Args:
        program: What to run.
        journal: Where to.
        thread: Thread id.
        world: Model client, tools' surroundings, times.
        policy: Failures and time.
        observe: Told of each event as it is made.
    """

    def __init__(
        self,
        program: Program,
        journal: Journal,
        thread: str,
        world: World,
        *,
        policy: Policy | None = None,
        observe: Callable[[int, ev.EventBody], None] | None = None,
    ) -> None:
        self._program = program
        self._journal = journal
        self._thread = check_thread_id(thread)
        self._world = world
        self._policy = policy or Policy()
        self._observe = observe
        self._host: LiveHost | None = None

    async def run(
        self, value: Any, *, key: str | None = None, supersede: bool = False, wait: bool = True
    ) -> RunResult:
        """
        Run the program on *value*, or go on with the run that this very call began before a crash.

        Args:
            value: The input.
            key: Names the run: the same key resumes or returns that run.
            supersede: Close an unfinished run with another input instead of refusing.
            wait: Wait in this process for signals and times; else return.

        Raises:
            RunUnfinished: The thread holds an unfinished run with another input or key.
            ThreadBusy: A live worker holds the thread.
            RunFailed: The program raised.
            Divergence: The program no longer fits the unfinished run's log.
        """
        encoded = codec.encode(value, what="the run's input")
        codec.check_size(encoded, what="the run's input", limit=RESULT_BYTES_MAX)
        if key is not None and not 0 < len(key.encode("utf-8", "surrogatepass")) <= KEY_BYTES_MAX:
            raise LimitExceeded(f"a run's key is 1 to {KEY_BYTES_MAX} bytes; this one is {key[:40]!r}")

        def choose(status: ThreadStatus) -> RunState | None:
            return self._choose(status, encoded, key, supersede)

        return await self._go(choose, encoded, key, wait=wait)

    async def resume(
        self, *, steal: bool = False, wait: bool = True, accept_divergence: bool = False
    ) -> RunResult:
        """
        Go on with the thread's unfinished run; a run that has ended is only reported.

        Args:
            steal: Take the thread from a live holder too.
            wait: Wait in this process for signals and times; else return.
            accept_divergence: Accept changed requests (never another shape) and record that.

        Raises:
            ThreadNotFound: No such thread.
            UsageError: The thread has no run.
            ThreadBusy, RunFailed, Divergence: As for `run`.
        """

        def choose(status: ThreadStatus) -> RunState | None:
            if status.current is None:
                raise UsageError(f"thread {self._thread!r} has no run to resume; start one with run(...)")
            return status.current

        return await self._go(
            choose, None, None, wait=wait, steal=steal, create=False, accept=accept_divergence
        )

    def stop(self, reason: str, *, grace_s: float = 10.0) -> None:
        """Leave in good order: begin nothing, give running tools *grace_s*, record, release."""
        if self._host is not None:
            self._host.stop(reason, grace_s)

    async def _go(
        self,
        choose: Choose,
        value: bytes | None,
        key: str | None,
        *,
        wait: bool,
        steal: bool = False,
        create: bool = True,
        accept: bool = False,
    ) -> RunResult:
        while True:
            tenure = await asyncio.to_thread(self._journal.acquire, self._thread, steal=steal, create=create)
            try:
                result = await self._tenure(tenure, choose, value, key, accept)
            finally:
                if not tenure.ended:
                    # Shielded: the lease is given back even if the caller is being cancelled.
                    await asyncio.shield(asyncio.to_thread(self._give_back, tenure))
            if result.status != "waiting" or not wait:
                return result
            await self._news(result)
            choose, steal = _same(result.run_id), False

    async def _tenure(
        self, tenure: Tenure, choose: Choose, value: bytes | None, key: str | None, accept: bool
    ) -> RunResult:
        """One holder's time: a session, and another for each message that arrives while leaving."""
        while True:
            thread, messages = await asyncio.to_thread(self._read, tenure)
            run = choose(thread.status)
            if run is not None and run.ended:
                return self._result(thread.status, run)
            if run is None:
                assert value is not None
                session, begin = self._new_run(tenure, thread, value, key, messages)
            else:
                session, begin = await self._resumed(tenure, thread, run, messages, accept)
            try:
                await self._drive(session, tenure, begin)
            finally:
                session.interpreter.machine.close()
            run = thread.status.current
            assert run is not None
            if run.status not in ("waiting", "parked"):
                return self._result(thread.status, run)
            if await asyncio.to_thread(tenure.release, session.seen) is not Release.INBOX_PENDING:
                return self._result(thread.status, run)
            choose = _same(run.run)

    def _read(self, tenure: Tenure) -> tuple[Thread, list[Message]]:
        events = read_all(self._journal, self._thread, upto=tenure.head)
        if len(events) != tenure.head:
            raise Corrupt(self._thread, len(events) + 1, f"the head is {tenure.head}, the log ends before it")
        return load(self._thread, events), self._journal.inbox(self._thread)

    def _choose(
        self, status: ThreadStatus, value: bytes, key: str | None, supersede: bool
    ) -> RunState | None:
        """The run that this call is about; None for a new one."""
        if key is not None:
            same = next((run for run in status.runs if run.key == key), None)
            if same is not None and bytes(same.input) != value:
                raise RunUnfinished(
                    f"thread {self._thread!r}: key {key!r} named run {same.run!r} with another input; use another key"
                )
            if same is not None:
                return same
        unfinished = status.unfinished
        if unfinished is None or supersede:
            return None
        if key is None and bytes(unfinished.input) == value:
            return unfinished
        raise RunUnfinished(
            f"thread {self._thread!r} holds the unfinished run {unfinished.run!r} ({unfinished.status}) with another "
            f"{'key' if key is not None else 'input'}; resume it first, or give it up with supersede=True"
        )

    def _new_run(
        self, tenure: Tenure, thread: Thread, value: bytes, key: str | None, messages: list[Message]
    ) -> tuple[Session, Begin]:
        status, program = thread.status, self._program
        at = max(status.last_at, self._journal.sources.now_us())
        before: list[ev.EventBody] = []
        if not thread.bodies:
            before.append(ev.ThreadCreated(at=at, uid=self._journal.sources.new_id().hex))
        if status.unfinished is not None:
            before += _superseded(status.unfinished, at)
        resolved, consumed = _late_resolutions(status, messages, at)
        before += resolved
        after = status.copy()
        for offset, body in enumerate(before, 1):
            after.apply(tenure.head + offset, body)
        run_id = f"r{len(status.runs) + 1}"
        interpreter = Interpreter(
            program,
            thread=self._thread,
            uid=after.uid,
            run_id=run_id,
            prior=program.prior([*thread.bodies, *before]),
            doubted=frozenset(after.doubted),
        )
        started = ev.RunStarted(
            at=at,
            run=run_id,
            program=program.name,
            digest=program.digest,
            input=Raw(value),
            key=key,
            definition=program.definition,
            concurrency=program.concurrency,
        )
        session = Session(
            interpreter, self._new_host(tenure), head=tenure.head, last_at=at, policy=self._policy
        )
        session.observe = self._observer(status)
        return session, lambda: session.start(started, before=before, consumed=consumed)

    async def _resumed(
        self, tenure: Tenure, thread: Thread, run: RunState, messages: list[Message], accept: bool
    ) -> tuple[Session, Begin]:
        status = thread.status
        if run.program != self._program.name:
            raise UsageError(
                f"thread {self._thread!r}: run {run.run!r} belongs to program {run.program!r}, "
                f"not to {self._program.name!r}; resume it with the agent or program of that name"
            )
        pair = (run.digest, self._program.digest) if accept else None
        interpreter = interpret(self._program, thread, run, accept=pair)
        host = self._new_host(tenure)
        session = Session(interpreter, host, head=tenure.head, last_at=status.last_at, policy=self._policy)
        session.observe = self._observer(status)
        changed = pair is not None and pair[0] != pair[1] and pair not in run.accepted
        accepted = ev.DivergenceAccepted(
            at=status.last_at, run=run.run, recorded=run.digest, asked=self._program.digest
        )
        return session, lambda: session.resume(messages, accepted=accepted if changed else None)

    def _observer(self, status: ThreadStatus) -> Observe:
        def observe(seq: int, body: ev.EventBody) -> None:
            status.apply(seq, body)
            if self._observe is not None:
                self._observe(seq, body)

        return observe

    def _new_host(self, tenure: Tenure) -> LiveHost:
        self._host = LiveHost(self._journal, tenure, self._world)
        return self._host

    async def _drive(self, session: Session, tenure: Tenure, begin: Begin) -> None:
        host = self._host
        assert host is not None
        await host.drive(session, begin)
        if session.error is not None:
            raise session.error

    def _result(self, status: ThreadStatus, run: RunState) -> RunResult:
        if run.status == "failed":
            error = run.error or ev.Failure("Error", "")
            raise RunFailed(
                f"thread {self._thread!r}: run {run.run!r} failed: {error.type}: {error.message}",
                error_type=error.type,
            )
        assert run.status != "running"
        return RunResult(
            status=run.status,
            output=None if run.output is None else codec.decode(run.output),
            pending=tuple(run.open.values()),
            reason=run.reason,
            usage=run.usage,
            thread=self._thread,
            run_id=run.run,
        )

    def _give_back(self, tenure: Tenure) -> None:
        """Release, whatever waits in the inbox: what is left there is for the next holder."""
        seen = 0
        while tenure.release(seen) is Release.INBOX_PENDING:
            seen = max(message.id for message in self._journal.inbox(self._thread))

    async def _news(self, result: RunResult) -> None:
        """Wait, without a lease, until something has come for the run or its time has."""
        dues = [call.due for call in result.pending if call.due is not None]
        due = min(dues, default=None)
        known = max((m.id for m in await asyncio.to_thread(self._journal.inbox, self._thread)), default=0)
        while due is None or self._journal.sources.now_us() < due:
            pause_s = self._world.limits.poll_s
            if due is not None:
                pause_s = min(pause_s, max(0.0, (due - self._journal.sources.now_us()) / 1e6))
            await asyncio.sleep(pause_s)
            if await asyncio.to_thread(self._journal.inbox, self._thread, after=known):
                return


def read_all(journal: Journal, thread: str, *, upto: int | None = None) -> list[Event]:
    """All events of a thread, read in pages."""
    events: list[Event] = []
    while upto is None or len(events) < upto:
        page = journal.read(thread, after=len(events), upto=upto, limit=READ_PAGE)
        events.extend(page)
        if len(page) < READ_PAGE:
            break
    return events


def _late_resolutions(
    status: ThreadStatus, messages: list[Message], at: int
) -> tuple[list[ev.EventBody], list[int]]:
    """What has become known of calls of earlier runs since; the conversation tells the model."""
    resolved: list[ev.EventBody] = []
    consumed: list[int] = []
    for message in messages:
        content = decode_message(message)
        if not isinstance(content, Resolution):
            continue
        call = status.open_call(content.call)
        consumed.append(message.id)
        if call is not None and call.attempt == content.attempt:
            resolved.append(resolution_event(content, at))
    return resolved, consumed


def _same(run_id: str) -> Choose:
    return lambda status: status.run(run_id)


def _superseded(run: RunState, at: int) -> list[ev.EventBody]:
    """Close an unfinished run: what is open has an unknown outcome, and the run is cancelled."""
    closing: list[ev.EventBody] = [
        ev.ToolInDoubt(at=at, call=call.call, attempt=call.attempt, why="its run was superseded")
        for call in run.open.values()
        if call.status == "started"
    ]
    closing.append(ev.RunCancelled(at=at, run=run.run, reason="superseded"))
    return closing
