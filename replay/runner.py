"""Runs and resumes a program on a thread: takes the lease, folds the log, goes on live, gives the lease back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypedDict

from msgspec import Struct

from ..journal import codec
from ..journal.envelope import Event, check_thread_id
from ..journal.errors import ThreadBusy, UsageError
from ..journal.journal import Journal, check_journal
from ..journal.limits import check_name
from ..journal.reading import read_events
from ..journal.store import Message, Release
from ..journal.tenure import Tenure
from . import events as ev
from .bell import Bell
from .divergence import OnDivergence, accepts
from .door import NAME_BYTES_MAX, check_deadline
from .ending import Status
from .errors import RunFailed, RunUnfinished
from .hooks import tell
from .live import LiveHost, World
from .opening import Opened, begin_run, first_input, take_up_run
from .program import Program
from .rebuild import Thread, load
from .recording import Policy, recordable
from .status import OpenCall, RunState, ThreadStatus
from .under_way import acts, driven_here
from .usage import Totals

Observe = Callable[[int, ev.EventBody], None]

READ_PAGE = 2000

GIVE_BACK_WAIT_S = 2.0
"""How long a caller is kept waiting for the lease to be back, so that whoever comes next finds the thread free."""


class RunResult(Struct, frozen=True, kw_only=True):
    """
    Where a run stands after `run` or `resume`.

    Attributes:
        status: finished, cancelled, parked, waiting or released (a failed run raises instead).
        output: What the program returned; None unless it finished.
        pending: Open calls, for a run that is parked or waits.
        reason: Why it is parked, cancelled or released.
        usage: Sums over the run's recorded responses and the answers that could not be used.
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


OnParked = Callable[[RunResult], Any]
"""Told of a parking; may be async."""

_PARKING = frozenset({ev.RunParked, ev.RunResumed, ev.RunStarted})


class _Wish(Struct, frozen=True, kw_only=True):
    """What a caller wants of a thread: a run for an input, or the run that is already there."""

    value: bytes | None = None
    key: str | None = None
    supersede: bool = False
    deadline_s: float | None = None
    run_id: str | None = None
    accept: bool = False
    release: bool = False


class RunOptions(TypedDict, total=False):
    """How a run is begun or taken up again; `Runner.run` says what each of these means."""

    key: str | None
    supersede: bool
    wait: bool
    deadline_s: float | None


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
        on_parked: Told, once for each parking, that the run is parked, why and what waits for an answer. It may be
            async, is called when the thread is free again, and can harm nothing by what it raises.

    Raises:
        UsageError: *journal* is none, or *observe* or *on_parked* cannot be called.
    """

    def __init__(
        self,
        program: Program,
        journal: Journal,
        thread: str,
        world: World,
        *,
        policy: Policy | None = None,
        observe: Observe | None = None,
        on_parked: OnParked | None = None,
    ) -> None:
        check_journal(journal)
        if on_parked is not None and not callable(on_parked):
            raise UsageError(f"on_parked is a function that is given the result, not {on_parked!r}")
        if observe is not None and not callable(observe):
            raise UsageError(f"observe is a function that is given each event, not {observe!r}")
        self._program = program
        self._journal = journal
        self._thread = check_thread_id(thread)
        self._world = world
        self._policy = policy or Policy()
        self._observe = observe
        self._on_parked = on_parked
        self._parked_now = False
        """Whether the run was parked by this runner, which nobody has been told yet."""
        self._host: LiveHost | None = None
        self._stopped = False
        self._wake_at: int | None = None
        """When the last session wanted to be taken up again."""
        self._seen = self._left_at = 0
        """Newest inbox id that the last session knew of."""

    async def run(
        self,
        value: Any,
        *,
        key: str | None = None,
        supersede: bool = False,
        wait: bool = True,
        deadline_s: float | None = None,
    ) -> RunResult:
        """
        Run the program on *value*, or go on with the run that this very call began before a crash.

        Inputs that were sent to the thread and wait in its inbox become runs of their own first.

        Args:
            value: The input.
            key: Names the run: the same key resumes or returns that run.
            supersede: Close an unfinished run with another input instead of refusing.
            wait: Wait in this process for signals and times; else return.
            deadline_s: Seconds a run that begins now may take in all, waiting, crashes and resumes included; it is
                cancelled then. A run that goes on keeps the deadline it began with.

        Raises:
            UsageError: The deadline is no number of seconds.
            RunUnfinished: The thread holds an unfinished run with another input or key.
            ThreadBusy: A live worker holds the thread.
            RunFailed: The program raised.
            Divergence: The program no longer fits the unfinished run's log.
        """
        encoded = recordable(value, what="the run's input")
        if key is not None:
            check_name("a run's key", key, NAME_BYTES_MAX)
        if deadline_s is not None:
            check_deadline(deadline_s)
        wish = _Wish(value=encoded, key=key, supersede=supersede, deadline_s=deadline_s)
        return await self._go(wish, wait=wait)

    async def resume(
        self,
        *,
        steal: bool = False,
        wait: bool = True,
        on_divergence: OnDivergence = "stop",
        release: bool = False,
    ) -> RunResult:
        """
        Go on with the thread's unfinished run and with inputs that wait; a run that has ended is only reported.

        Args:
            steal: Take the thread from a live holder too.
            wait: Wait in this process for signals and times; else return.
            on_divergence: "stop" at a changed request, or "accept" it (never another shape) and record that.
            release: Go on with a run that was parked because its workers died again and again.

        Raises:
            ThreadNotFound: No such thread.
            UsageError: The thread has no run.
            ThreadBusy, RunFailed, Divergence: As for `run`.
        """
        wish = _Wish(accept=accepts(on_divergence), release=release)
        return await self._go(wish, wait=wait, steal=steal, create=False)

    def stop(self, reason: str, *, grace_s: float = 10.0) -> None:
        """Leave in good order: begin nothing, give running tools *grace_s*, record, release."""
        self._stopped = True
        if self._host is not None:
            self._host.stop(reason, grace_s)

    async def _go(self, wish: _Wish, *, wait: bool, steal: bool = False, create: bool = True) -> RunResult:
        result: RunResult | None = None
        earlier: Tenure | None = None
        while True:
            try:
                tenure = await self._acquire(steal, create)
            except ThreadBusy:
                if result is None:
                    raise
                # Somebody else has taken the run up meanwhile; it is theirs until they leave it.
                await asyncio.sleep(self._world.limits.poll_s)
                continue
            if earlier is not None:
                # A clock that is set back while a run sleeps in this process must not let it oversleep.
                tenure.not_before(earlier.now_us())
            try:
                result = await self._tenure(tenure, wish)
            except GeneratorExit:
                # The event loop was closed under the run: as in a crash, the lease runs out by itself.
                tenure.abandon()
                raise
            finally:
                if not tenure.ended:
                    await self._give_back(tenure)
            if result.status == "parked" and self._parked_now and self._on_parked is not None:
                self._parked_now = False
                await tell(self._on_parked, result)
            if result.status != "waiting" or not wait or self._stopped:
                return result
            await self._news(result, tenure.now_us)
            if self._stopped:
                return result
            wish, steal, earlier = _Wish(run_id=result.run_id), False, tenure

    async def _acquire(self, steal: bool, create: bool) -> Tenure:
        """Take the lease; one that is granted after the caller has gone is given back at once."""
        lock, gone = threading.Lock(), False
        taker: int | None = None
        taken: Tenure | None = None
        back: Future[Release | None] = Future()

        def take() -> None:
            nonlocal taken, taker
            with lock:
                if gone:
                    return
                taker = threading.get_ident()
            try:
                tenure = self._journal.acquire(self._thread, steal=steal, create=create)
                with lock:
                    if not gone:
                        taken = tenure
                        return
                self._journal.leases.give_back(tenure).answer.result()
            finally:
                back.set_result(None)

        try:
            await asyncio.to_thread(take)
        except asyncio.CancelledError:
            with lock:
                gone = True
                if taker is not None and taken is None:
                    self._journal.leases.expect(self._thread, back, taker)
            if taken is not None:
                await self._give_back(taken)
            raise
        assert taken is not None
        return taken

    async def _tenure(self, tenure: Tenure, wish: _Wish) -> RunResult:
        """One holder's time: a session for each run that is to be begun or gone on with."""
        while True:
            thread, messages = await asyncio.to_thread(self._read, tenure)
            run = self._chosen(thread.status, wish)
            host = self._host = LiveHost(self._journal, tenure, self._world)
            waiting = first_input(messages) if thread.status.unfinished is None else None
            mine = True
            if run is not None and not run.ended:
                opened = self._take_up(thread, run, messages, host, tenure, wish)
            elif waiting is not None:
                mine = wish.value is None and wish.run_id is None
                sent = _Wish(value=bytes(waiting.input), key=waiting.key)
                opened = self._begin(thread, sent, messages, host, waiting.id)
            elif run is not None:
                return self._result(thread.status, run)
            else:
                opened = self._begin(thread, wish, messages, host, None)
            await self._drive(host, opened, thread.status)
            run = thread.status.current
            assert run is not None
            session = opened.session
            self._seen, self._left_at = session.mail.seen, tenure.head
            self._wake_at = None if session.end is None else session.end.wake_at
            if mine:
                wish = _Wish(run_id=run.run)
            if not self._stopped and (not mine or (run.ended and session.mail.inputs_wait)):
                continue
            released = await self._give_back(tenure, session.mail.seen)
            if self._stopped or released is not Release.INBOX_PENDING:
                return self._result(thread.status, self._chosen(thread.status, wish) or run)

    async def _drive(self, host: LiveHost, opened: Opened, status: ThreadStatus) -> None:
        session = opened.session

        def observe(seq: int, body: ev.EventBody) -> None:
            status.apply(seq, body)
            if type(body) in _PARKING:
                self._parked_now = type(body) is ev.RunParked
            if self._observe is not None:
                self._observe(seq, body)

        session.observe(observe)
        try:
            await host.drive(session, opened.begin)
            if session.error is not None:
                raise session.error
        finally:
            session.interpreter.machine.close()

    def _begin(
        self, thread: Thread, wish: _Wish, messages: list[Message], host: LiveHost, taken: int | None
    ) -> Opened:
        assert wish.value is not None
        return begin_run(
            self._program,
            thread,
            wish.value,
            key=wish.key,
            deadline_s=wish.deadline_s,
            messages=messages,
            taken=taken,
            host=host,
            policy=self._policy,
            new_uid=self._journal.sources.new_id,
        )

    def _take_up(
        self,
        thread: Thread,
        run: RunState,
        messages: list[Message],
        host: LiveHost,
        tenure: Tenure,
        wish: _Wish,
    ) -> Opened:
        return take_up_run(
            self._program,
            thread,
            run,
            messages=messages,
            host=host,
            policy=self._policy,
            over=partial(self._over, tenure),
            model_timeout_s=self._world.limits.model_timeout_s,
            accept=wish.accept,
            release=wish.release,
        )

    def _over(self, tenure: Tenure, fence: int, call: str) -> bool:
        """Whether the holder of that fence is known, and nothing of its call runs."""
        place = (self._journal.identity, self._thread, fence)
        return (0 < tenure.known_since <= fence or driven_here(*place)) and not acts(*place, call)

    def _read(self, tenure: Tenure) -> tuple[Thread, list[Message]]:
        thread = self._journal.fold_history(tenure, partial(load, self._thread))
        return thread, self._journal.inbox(self._thread)

    def _chosen(self, status: ThreadStatus, wish: _Wish) -> RunState | None:
        """The run that the wish is about; None for a new one."""
        if wish.run_id is not None:
            return status.run(wish.run_id)
        if wish.value is None:
            if status.current is None:
                raise UsageError(f"thread {self._thread!r} has no run to resume; start one with run(...)")
            return status.current
        key, same_input = wish.key, None
        if key is not None:
            same = next((run for run in status.runs if run.key == key), None)
            if same is not None and bytes(same.input) != wish.value:
                raise RunUnfinished(
                    f"thread {self._thread!r}: key {key!r} named run {same.run!r} with another input; use another key"
                )
            if same is not None:
                return same
        unfinished = status.unfinished
        if unfinished is not None and key is None:
            same_input = unfinished if bytes(unfinished.input) == wish.value else None
        if unfinished is None or same_input is not None or wish.supersede:
            return same_input
        raise RunUnfinished(
            f"thread {self._thread!r} holds the unfinished run {unfinished.run!r} ({unfinished.status}) with another "
            f"{'key' if key is not None else 'input'}; resume it first, or give it up with supersede=True "
            "('refold run --supersede')"
        )

    def _result(self, status: ThreadStatus, run: RunState) -> RunResult:
        if run.status == "failed":
            error = run.error or ev.Failure("Error", "")
            stays = f" (key {run.key!r} stays with it; another key begins a new run)" if run.key else ""
            raise RunFailed(
                f"thread {self._thread!r}: run {run.run!r} failed{stays}: {error.type}: {error.message}",
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

    async def _give_back(self, tenure: Tenure, seen: int | None = None) -> Release | None:
        """
        Give the lease back, a courtesy that stands between nobody and what happened: it never raises what went wrong,
        and goes on by itself when the store does not answer for a while or the caller goes away.

        Args:
            tenure: Whose it is.
            seen: Newest message that the run knows: when a newer one has come, the tenure goes on. By default,
                messages are for the next holder.
        """
        leases = self._journal.leases
        giving = leases.give_back(tenure, seen)
        left_s = giving.begun_s + GIVE_BACK_WAIT_S - self._journal.sources.monotonic_s()
        try:
            await asyncio.wait([asyncio.wrap_future(giving.answer)], timeout=max(0.0, left_s))
        finally:
            released = leases.leave(giving)
        return released

    def _moved(self) -> bool:
        """Whether a message waits that was not seen, or another holder has written since this one left."""
        if self._journal.inbox(self._thread, after=self._seen):
            return True
        return self._journal.info(self._thread).head != self._left_at

    async def _news(self, result: RunResult, now_us: Callable[[], int]) -> None:
        """Wait, without a lease, until something has come for the run or its time has."""
        dues = [call.due for call in result.pending if call.due is not None]
        due = min([*dues, *([] if self._wake_at is None else [self._wake_at])], default=None)
        with Bell(self._journal, self._thread) as bell:
            while not self._stopped and (due is None or now_us() < due):
                # Looked for first: what came before the bell was hung has rung nobody.
                if await asyncio.to_thread(self._moved):
                    return
                pause_s = self._world.limits.poll_s
                if due is not None:
                    pause_s = min(pause_s, max(0.0, (due - now_us()) / 1e6))
                await bell.wait(pause_s)


def read_all(journal: Journal, thread: str, *, upto: int | None = None) -> list[Event]:
    """All events of a thread, read in pages."""
    return list(read_events(journal, thread, upto=upto, page=READ_PAGE))
