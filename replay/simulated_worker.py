"""A simulated worker: takes a thread, drives a session as the asyncio runner and its host do, and leaves."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from typing import Any

from ..journal import codec
from ..journal.errors import LeaseLost, RefoldError
from ..journal.hot_state import fold_history
from ..journal.store import Append, AppendResult, Batch, Busy, Lease, Message, Outcome, Release
from ..journal.tenure import Tenure
from .commands import Call
from .opening import Opened, begin_run, first_input, take_up_run
from .rebuild import Thread
from .session import Session
from .simulated_cache import hot_state
from .simulated_effects import Effects
from .simulated_process import Left, Owner, Process
from .simulation import LATENCY_US, LEASE_TTL_S, MODEL_TIMEOUT_S, TTL_US, Granted, Idle, Sent


class Worker(Process):
    """
    One process that has come for a thread.

    Args:
        owner: Whose thread.
        number: Which worker of the history.
        steal: Whether to rob a live holder.
        instead: An input for which an unfinished run is to be given up.
        lease: A lease to share, for a twin.
    """

    def __init__(
        self,
        owner: Owner,
        number: int,
        *,
        steal: bool = False,
        instead: Any = None,
        lease: Lease | None = None,
    ) -> None:
        super().__init__(owner, number)
        self.lease = lease
        self.tenure: Tenure | None = None
        self._hot = hot_state(self)
        self._steal = steal
        self._instead = None if instead is None else codec.encode(instead, what="the run's input")
        self._session: Session | None = None
        self._effects: Effects | None = None
        self._thread: Thread | None = None
        self._leaving = False
        self._released = Release.RELEASED
        self._renewed_us = 0
        self._sent_s = 0.0

    # Coming

    def start(self) -> None:
        """Come for the thread."""
        self.world.note(self.name, "comes")
        self.world.renewers.append(self._renew_lease)
        if self.lease is not None:
            self._acquired(self.lease)
        else:
            self._acquire(self.clocks.new_id(), None)

    def _acquire(self, holder: uuid.UUID, steal: int | None) -> None:
        store, thread = self.world.store, self.owner.name

        def then(answer: Lease | Busy) -> None:
            if isinstance(answer, Lease):
                self._acquired(answer)
            elif self._steal:
                self._acquire(holder, answer.fence)
            else:
                self.world.marks["busy"] += 1
                self._leave("busy")

        self.call(
            "acquire",
            lambda: store.acquire(thread, holder=holder, ttl_s=LEASE_TTL_S, name=self.name, steal=steal),
            then,
            sent=self._sending,
        )

    def _sending(self) -> None:
        self._sent_s = self.clocks.monotonic_s()

    def _acquired(self, lease: Lease) -> None:
        world = self.world
        world.note(self.name, f"has the lease, fence {lease.fence}")
        granted = Granted(thread=lease.thread, worker=self.name, fence=lease.fence, step=world.step)
        world.granted.append(granted)
        self.lease = lease
        self._renewing_from(world.now_us)
        self.tenure = Tenure(
            lease,
            granted_s=self._sent_s,
            writer=self,
            release=lambda thread, fence, seen: self._released,
            transact=self._see_through,
            sources=self.clocks,
            known_since=self.owner.known_since(lease.before, lease.fence - 1),
        )
        self.tenure.on_lost(self._lost)
        self._read()

    def _read(self) -> None:
        self.do("read", "read", LATENCY_US["store"], lambda fault: self._open())

    def _open(self) -> None:
        tenure, store = self.tenure, self.world.store
        assert tenure is not None
        name = self.owner.name
        try:
            self._thread = fold_history(
                lambda thread, after, upto: store.read(thread, after=after, upto=upto, limit=1_000_000),
                self._hot,
                name,
                tenure.head,
                tenure.head_hash,
                self.owner.log.load,
            )
            opened = self._opened(self._thread, store.inbox(name), tenure)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises here is a finding
            self._flaw("taking the run up", error)
            self._give_back("error")
            return
        if opened is None:
            self._give_back("done")
            return
        self._session = session = opened.session
        assert self._thread is not None
        session.observe(self._thread.status.apply)
        self._effects = Effects(self, tenure, session, self._enter, self._fail)
        self._enter(opened.begin)

    def _opened(self, thread: Thread, messages: list[Message], tenure: Tenure) -> Opened | None:
        """The run that is to be gone on with, or the next one; None when there is nothing to do."""
        scenario = self.owner.scenario
        run, unfinished = thread.status.current, thread.status.unfinished
        if unfinished is None:
            waiting = first_input(messages)
            if waiting is not None:
                return self._begun(thread, bytes(waiting.input), messages, key=waiting.key, taken=waiting.id)
            if run is not None:
                return None
            return self._begun(thread, codec.encode(scenario.value, what="the run's input"), messages)
        if self._instead is not None and bytes(unfinished.input) != self._instead:
            self.world.marks["superseded"] += 1
            return self._begun(thread, self._instead, messages)
        return take_up_run(
            scenario.program,
            thread,
            unfinished,
            messages=messages,
            host=self,
            policy=scenario.policy,
            over=lambda fence, call: 0 < tenure.known_since <= fence,
            model_timeout_s=MODEL_TIMEOUT_S,
            release=unfinished.poisoned,
        )

    def _begun(
        self,
        thread: Thread,
        value: bytes,
        messages: list[Message],
        *,
        key: str | None = None,
        taken: int | None = None,
    ) -> Opened:
        scenario = self.owner.scenario
        return begin_run(
            scenario.program,
            thread,
            value,
            key=key,
            messages=messages,
            taken=taken,
            host=self,
            policy=scenario.policy,
            deadline_s=scenario.deadline_s,
            # One uid whoever is first, so that randomness is the same in every history.
            new_uid=lambda: _uid_of(self.owner.name),
        )

    # The host of a session

    def wall_us(self) -> int:
        """This worker's wall clock."""
        return self.clocks.now_us()

    def now_us(self) -> int:
        """The database's clock, as this worker knows it."""
        assert self.tenure is not None
        return self.tenure.now_us()

    def new_id(self) -> uuid.UUID:
        """The next id."""
        return self.clocks.new_id()

    def append(self, batch: Batch) -> None:
        """Send a batch through the tenure."""
        assert self.tenure is not None
        self.tenure.send(batch, told=partial(self._told, len(batch.events)))

    def append_next(self, batch: Batch, *, after: int) -> bool:
        """Send a batch through the tenure when the one before has landed."""
        assert self.tenure is not None
        return self.tenure.send_next(batch, after=after, told=partial(self._told, len(batch.events)))

    def _told(self, count: int, outcome: AppendResult | BaseException) -> None:
        session = self._session
        assert session is not None
        if isinstance(outcome, BaseException):
            self._enter(partial(self._fail, outcome))
        else:
            self._enter(partial(session.acked, count))

    def submit(
        self,
        append: Append,
        settle: Callable[[AppendResult | BaseException, float], None],
        loop: object = None,
    ) -> None:
        """What the journal's writer does: send it until its fate is known."""
        world = self.world
        sent = Sent(append=append, worker=self.name, invoked=world.step)
        world.sent.append(sent)
        if world.timeline is not None:
            kinds = " ".join(event.kind for event in append.events)
            world.note(self.name, f"appends {append.expected + 1}.. {kinds}")

        def then(result: AppendResult) -> None:
            sent.answered = result
            if world.timeline is not None:
                world.note(self.name, f"append after {append.expected}: {result.outcome.value}")
            settle(result, self._sent_s)
            if self._hot is not None and result.outcome in (Outcome.APPENDED, Outcome.DUPLICATE):
                self._hot.committed(append.thread, append.expected, append.expected + len(append.events))

        self.call("append", lambda: world.append_arrives(sent), then, sent=self._sending)

    def perform(self, call: Call, attempt: int) -> None:
        """Begin an effect."""
        assert self._effects is not None
        self._effects.perform(call, attempt)

    def transact(self, call: Call, attempt: int) -> None:
        """Begin a transactional tool."""
        if not self.owner.scenario.transactions:
            raise NotImplementedError(
                f"{call.id}: this simulated store has no tables of other people's to lend"
            )
        assert self._effects is not None
        self._effects.transact(call, attempt)

    def _see_through(
        self, work: Callable[[Any], Append], limit_s: float, check: Callable[[], None]
    ) -> tuple[Append, AppendResult]:
        assert self._effects is not None
        return self._effects.see_through(work, check)

    def reconcile(self, call: Call, attempt: int) -> None:
        """Ask a tool's reconciler."""
        assert self._effects is not None
        self._effects.reconcile(call, attempt)

    def abandon(self, call: Call) -> None:
        """Ask an effect to stop; what has not begun does not begin."""
        assert self._effects is not None
        self._effects.abandon(call)

    def alarm(self, at_us: int) -> None:
        """Wake the session at a time of its clock."""
        session, effects = self._session, self._effects
        assert session is not None
        assert effects is not None

        def strike(fault: str) -> None:
            if not effects.over:
                self._enter(session.alarm)

        self.do("alarm", "alarm", max(0, at_us - self.now_us()), strike)

    def poll(self) -> None:
        """Look into the inbox, as is done every now and then."""
        session, effects = self._session, self._effects
        if session is None or effects is None or effects.over:
            return
        found: list[Message] = []

        def look(fault: str) -> None:
            found.extend(self.world.store.inbox(self.owner.name, after=session.mail.seen))
            self.do("poll", "deliver", 0, deliver)

        def deliver(fault: str) -> None:
            if found and not effects.over:
                self._enter(lambda: session.deliver(found))

        self.do("poll", "poll", LATENCY_US["poll"], look)

    def interrupt(self) -> None:
        """The caller goes away, or SIGTERM comes."""
        session, effects = self._session, self._effects
        if session is not None and effects is not None and not effects.over:
            self._enter(lambda: session.stop("interrupted", grace_s=0.03))

    def woken(self) -> None:
        """The renewal thread takes a moment longer to find out than what was already on its way."""
        self._renewing_from(self.world.now_us)

    def _renewing_from(self, now_us: int) -> None:
        self._renewed_us = now_us
        self.world.renew_at_us = min(self.world.renew_at_us, now_us + TTL_US // 3)

    def _renew_lease(self) -> int | None:
        """What the renewal thread does when a third of the lease has passed; when that is next, if it is alive."""
        tenure, now_us = self.tenure, self.world.now_us
        if tenure is None or tenure.ended or not self.at_work:
            return None
        if now_us - self._renewed_us < TTL_US // 3:
            return self._renewed_us + TTL_US // 3
        self._renewed_us = now_us
        if self.world.store.renew(tenure.thread, fence=tenure.fence, ttl_s=tenure.ttl_s):
            tenure.renewed(now_us / 1e6)
        else:
            tenure.refused()
        return now_us + TTL_US // 3

    def _lost(self) -> None:
        session, tenure = self._session, self.tenure
        assert tenure is not None
        self.world.marks["lease lost"] += 1
        self.world.note(self.name, "has lost the lease")
        if session is not None and session.end is None and session.error is None:
            self._enter(lambda: self._fail(LeaseLost(tenure.thread, fence=tenure.fence)))

    def _fail(self, error: BaseException) -> None:
        session, effects = self._session, self._effects
        assert session is not None
        assert effects is not None
        unrecorded = session.failed(error)
        if isinstance(error, LeaseLost):
            effects.pass_on(unrecorded)

    def _enter(self, step: Callable[[], Any]) -> Any:
        session, effects = self._session, self._effects
        assert session is not None
        assert effects is not None
        result: Any = None
        try:
            result = step()
        except Exception as error:  # noqa: BLE001 - an engine that raises here is what we look for
            self._flaw("a step of the session", error)
            session.failed(error)
        ended = session.end is not None or session.error is not None
        if ended and not effects.over and not self._leaving:
            # The host learns of it on the next turn of its loop: a poll may still come in before.
            self._leaving = True
            self.do("leave", "leave", 0, lambda fault: self._over(session, effects))
        return result

    # Leaving

    def coroutines(self) -> list[Coroutine[Any, Any, Any]]:
        """What waits for replies here: the program, and branches of its gathers."""
        return [] if self._session is None else self._session.interpreter.machine.coroutines

    def drop(self) -> None:
        """Forget the program of a worker that died, now that its `finally` blocks deceive nobody."""
        if self._session is not None:
            self._session.interpreter.machine.close()
        # Without it the circle of all that knows it is none: what is freed at once need not be looked for.
        for part in (self._session, self._effects, self.tenure, self):
            if part is not None:
                vars(part).clear()

    def _over(self, session: Session, effects: Effects) -> None:
        thread = self._thread
        assert thread is not None
        effects.leave()
        self._leaving = False
        session.interpreter.machine.close()
        if session.error is not None:
            if not isinstance(session.error, RefoldError):
                self._flaw("the session", session.error)
            self._give_back("error")
            return
        head = self.world.store.info(self.owner.name).head
        if thread.status.head > head:
            self.world.flaws.append(
                f"{self.name} left with seq {thread.status.head} shown and {head} durable"
            )
        run = thread.status.current
        assert run is not None
        if run.status == "running":
            self.world.flaws.append(f"{self.name} left while the log says that its run is running")
        if run.ended and session.mail.inputs_wait:
            self._read()
        elif run.status in ("waiting", "parked"):
            self._release(session.mail.seen, lambda: self._leave("idle"), self._read, idle=True)
        elif run.ended:
            self._release(session.mail.seen, lambda: self._leave("done"), self._read)
        else:
            self._give_back("released")

    def _give_back(self, how: Left) -> None:
        def again() -> None:
            seen = max((message.id for message in self.world.store.inbox(self.owner.name)), default=0)
            self._release(seen, lambda: self._leave(how), again)

        self._release(0, lambda: self._leave(how), again)

    def _release(
        self, seen: int, gone: Callable[[], None], pending: Callable[[], None], *, idle: bool = False
    ) -> None:
        tenure = self.tenure
        assert tenure is not None
        if tenure.ended:
            gone()
            return

        def then(answer: Release) -> None:
            self._released = answer
            self.world.marks[f"release {answer.value}"] += 1
            if tenure.release(seen) is Release.INBOX_PENDING:
                pending()
            else:
                gone()

        self.call("release", lambda: self._ask_release(tenure, seen, idle), then, sent=self._sending)

    def _ask_release(self, tenure: Tenure, seen: int, idle: bool) -> Release:
        store, thread = self.world.store, tenure.thread
        before = store.info(thread)
        answer = store.release(thread, fence=tenure.fence, seen=seen)
        if idle and answer is Release.RELEASED and before.holder is not None:
            left = Idle(thread=thread, worker=self.name, head=before.head, messages=store.inbox(thread))
            self.world.idle.append(left)
        return answer

    def _leave(self, how: Left) -> None:
        self.gone = True
        self.world.note(self.name, f"leaves: {how}")
        self.owner.left(self, how)

    def _flaw(self, where: str, error: BaseException) -> None:
        self.world.flaws.append(f"{self.name}: {where} raised {type(error).__name__}: {error}")


@lru_cache
def _uid_of(thread: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, thread)
