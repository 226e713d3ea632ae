"""
The live driver without the waiting: one tenure of one run as a state machine.

Inputs are method calls (an effect completed, an append was acknowledged, a message arrived, a clock reached its alarm);
what is to be done goes to the `Host`. It performs nothing and reads no clock of its own, so the asyncio host,
the crash simulator and a test drive the very same code.

The write-ahead rule lives here: an effect is performed only when the events that led to it are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ..journal.store import Message
from . import events as ev
from .alarms import Alarms
from .aside import Aside
from .commands import Call, ModelCall, Phase, StepCall, ToolCall
from .ending import ENDS, OVERDUE, End
from .gate import Gate
from .holds import Holds
from .host import Host
from .interpreter import Interpreter
from .matching import Mailbox, has_news, policy_of, resting, soonest, unsettled
from .outbox import Outbox, Unrecorded
from .outcomes import Reconciled, Unknown
from .recording import (
    Completion,
    Policy,
    beginning,
    committed_outcome,
    outcome,
    refusal,
    start,
    told,
    unbegun,
    verdict_event,
)
from .stepper import Stepper


class Session:
    """
    One tenure of one run.

    Args:
        interpreter: The run, with the log applied so far.
        host: Performs what is asked.
        head: Seq of the thread's head, all of it durable.
        last_at: `at` of the newest event.
        policy: Failures and time.
        deadline_us: When the run's time is over; it is cancelled then.

    Attributes:
        end: How the tenure ended, when it has.
        error: Why it cannot go on, when it cannot.
        mail: Messages that it knows of.
        alarms: Its clock.
        holds: Until when calls in doubt are left alone: a rival may be at them.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        host: Host,
        *,
        head: int,
        last_at: int = 0,
        policy: Policy | None = None,
        deadline_us: int | None = None,
    ) -> None:
        self.interpreter = interpreter
        self.end: End | None = None
        self.error: BaseException | None = None
        self.mail = Mailbox()
        self.holds = Holds(host, {})
        self._host = host
        self._policy = policy or Policy()
        self._outbox = Outbox(host, head=head, last_at=last_at)
        self._stepper = Stepper(interpreter, self._outbox)
        self._gate = Gate(host, self._outbox)
        self._base = head
        self._aside = Aside()
        self._refused: list[Call] = []
        self._want_slots: list[str] = []
        self._unmatched = False
        self._looked_up: dict[str, str] = {}
        self._stopping: str | None = None
        self.alarms = Alarms(host, deadline_us)

    # Inputs

    def start(
        self,
        started: ev.RunStarted,
        *,
        before: Iterable[ev.EventBody] = (),
        consumed: Iterable[int] = (),
        messages: Sequence[Message] = (),
    ) -> None:
        """
        Begin a new run.

        Args:
            started: Its first event.
            before: Events of the thread or its earlier runs that go into the same append.
            consumed: Inbox ids that this append takes.
            messages: What else waits in the inbox.
        """
        self.mail.remember(messages)
        self._outbox.discard(*consumed)
        for body in before:
            self._stepper.record(body)
        self._base = self._outbox.head + 1
        self._emit(started)
        self._keep_deadline()
        self._match_messages()
        self._go_on()

    def resume(self, messages: Sequence[Message], accepted: ev.DivergenceAccepted | None = None) -> None:
        """Go on with a run whose log has been applied; without news nothing is written."""
        self.interpreter.tenure_over()
        self.mail.remember(messages)
        if accepted is not None:
            self._stepper.record(accepted)
        elif not has_news(self.interpreter, self.mail.waiting, self.holds, self.alarms):
            self._leave()
            return
        self._base = self._outbox.head + 1
        self._emit(self.interpreter.resumption(at=self._at(), rival=bool(self.holds)))
        self._keep_deadline()
        for call in self._pending():
            if call.phase is Phase.BACKOFF and (call.retry_at or 0) > self._host.now_us():
                self.alarms.wake_at(call.retry_at)
            else:
                self._begin(call)
        self._fill()
        self._match_messages()
        for call in self._pending():
            if call.phase is Phase.DOUBT:
                self._settle_doubt(call)
        self._go_on()

    def rest(self, messages: Sequence[Message]) -> None:
        """Leave the run as it is, whatever has come for it, unless it is to be cancelled."""
        self.interpreter.tenure_over()
        self.mail.remember(messages)
        self._cancel_if_asked()
        self._keep_deadline()
        if not self.interpreter.cancelling:
            self.end = End(status="parked")
        self._go_on()

    def park(self, reason: str) -> None:
        """Stop the run before it does anything, until somebody releases it."""
        self.interpreter.tenure_over()
        self._emit(ev.RunParked(at=self._at(), run=self.interpreter.run_id, reason=reason, poisoned=True))
        self._go_on()

    def acked(self, count: int) -> None:
        """The append under way is durable: *count* events."""
        self._outbox.acked(count)
        self._go_on()

    def failed(self, error: BaseException) -> Unrecorded:
        """The append under way cannot be made, nothing more may be written; the events that were to be."""
        self.error = error
        return self._outbox.abandon()

    def completed(self, path: str, attempt: int, completion: Completion) -> bool:
        """An effect is over; False if nobody waits for this attempt any more and nothing was recorded."""
        if self._gate.alone not in (None, path):
            self._aside.put(partial(self.completed, path, attempt, completion))
            return True
        call = self.interpreter.at(path)
        if self.error is not None or call is None or not self._gate.over(path, attempt):
            return False
        if self._stepper.halted is not None:
            # The program cannot be stepped; what a call that may act came to is recorded all the same.
            if isinstance(call.command, ToolCall) or call.phase is Phase.STARTED:
                self._stepper.record(self._made(call, completion))
        elif completion.begun or call.phase is Phase.STARTED:
            self._outcome(call, completion)
        self._go_on()
        return True

    def committed_outcome(self, call: Call, completion: Completion) -> ev.ToolReturned:
        """What a transactional tool's own transaction records. Raises `ToolError` when it cannot be recorded."""
        return committed_outcome(call, completion, at=self._at(), policy=self._policy)

    def committed(self, path: str, attempt: int, body: ev.EventBody) -> None:
        """A transactional tool is over, and *body* that records it is in the log already."""
        if self._gate.over(path, attempt) and self.error is None:
            self._follow(self._stepper.adopt(body))
            self._go_on()

    def reconciled(self, path: str, attempt: int, verdict: Reconciled) -> None:
        """The outside world has said what it knows of an attempt in doubt."""
        if self._gate.alone is not None:
            self._aside.put(partial(self.reconciled, path, attempt, verdict))
            return
        call = self.interpreter.at(path)
        if self.error is not None or call is None or not self._gate.over(path, attempt):
            return
        if call.phase is Phase.DOUBT and self._stepper.halted is None:
            self._looked_up[path] = verdict.why if isinstance(verdict, Unknown) else ""
            if (event := verdict_event(call, verdict, at=self._at())) is not None:
                self._emit(event)
        self._go_on()

    def deliver(self, messages: Sequence[Message]) -> None:
        """Messages have arrived in the inbox; what comes after the end is not looked at, and so not seen."""
        if self.end is not None:
            return
        self.mail.remember(messages)
        if self._gate.alone is not None:
            self._unmatched = True
            if self.mail.cancellation(self.interpreter, self.holds, at=self._at()) is not None:
                self._order(self._cancel_if_asked, self._policy.cancel_grace_s)
        elif self._stepper.halted is None and self.error is None:
            self._match_messages()
            self._go_on()

    def alarm(self) -> None:
        """The clock has reached an alarm, or may have."""
        if self.error is not None or self.end is not None:
            return
        now = self._host.now_us()
        if self._gate.alone is not None:
            self._aside.put(self.alarm)
            if self.alarms.struck(now):
                self._gate.roll_back()
            elif self.alarms.watch():
                self._order(self._keep_deadline, self._policy.cancel_grace_s)
            return
        if self.alarms.struck(now):
            self._give_up()
        self._keep_deadline()
        for call in self._pending():
            if not self._over():
                self._strike(call, now)
        if not self._over():
            # What waited for the end of a hold can be taken now.
            self._unmatched = self._unmatched or bool(self.holds)
            self.alarms.wake_at(soonest(self.interpreter, self.holds, after=now))
        self._go_on()

    def stop(self, reason: str, *, grace_s: float = 0.0) -> None:
        """Leave in good order: begin nothing, give what runs *grace_s*, record it, then release."""
        if self._gate.alone is not None:
            self._order(partial(self.stop, reason, grace_s=grace_s), grace_s)
            return
        if self._stopping is not None or self.end is not None or self.error is not None:
            return
        self._stopping = reason
        if self.interpreter.ended is None and self._stepper.halted is None:
            self._emit(ev.RunReleased(at=self._at(), run=self.interpreter.run_id, reason=reason))
        self._drop_gated()
        self._set_grace(grace_s)
        self._go_on()

    def observe(self, observer: Callable[[int, ev.EventBody], None]) -> None:
        """Tell *observer* of each event (seq, body) as it is made, before it is durable."""
        self._stepper.observe = observer

    def leaving(self) -> bool:
        """Whether what runs had better stop: the worker leaves, lost its lease, or the run is cancelled."""
        stopped = self.error is not None or self._stopping is not None or self._aside.ordered
        return stopped or bool(self._stepper.halted or self.interpreter.cancelling)

    # Beginning

    def _begin(self, call: Call) -> None:
        if not self._may_begin():
            return
        match command := call.command:
            case ModelCall() if command.in_doubt is None:
                self._gate.hold(self._base, call)
            case StepCall():
                self._gate.hold(self._base if command.read_only else self._outbox.head, call)
            case ToolCall() if call.phase is Phase.ASKED:
                return  # it is started when there is a free slot
            case ModelCall() | ToolCall() if call.phase in (Phase.ASKED, Phase.BACKOFF):
                self._try(call)
            case ToolCall() if call.phase is Phase.REFUSED:
                self._refused.append(call)
            case _ if begun := beginning(call, at=self._outbox.last_at, now_us=self._host.now_us()):
                self._emit(begun)
                self._unmatched = True
                self.alarms.wake_at(call.due)

    def _fill(self) -> None:
        """Start tools while there are free slots."""
        while (call := self.interpreter.next_tool()) is not None and self._may_begin():
            self._start(call)
        if self._want_slots and self._may_begin():
            paths, self._want_slots = dict.fromkeys(self._want_slots), []
            for call in filter(None, map(self.interpreter.at, paths)):
                self._strike(call, self._host.now_us())

    def _try(self, call: Call) -> None:
        """Start an attempt, one more of a tool when a slot is free."""
        if isinstance(call.command, ToolCall) and self.interpreter.next_tool(call) is not call:
            self._want_slots.append(call.path)
        else:
            self._start(call)

    def _start(self, call: Call) -> None:
        # Held first: what the emitted start lets begin comes after it.
        call.asked_us = self._host.now_us()
        self._gate.hold(self._outbox.head + 1, call)
        self._emit(start(call, at=self._outbox.last_at, uid=self.interpreter.uid))

    def _drop_gated(self) -> None:
        """What was only about to begin will not; a call whose start is on its way did not happen."""
        for call in self._gate.drop():
            if call.phase is Phase.STARTED:
                self._emit(unbegun(call, at=self._at()))

    def _may_begin(self) -> bool:
        """Whether anything new may be done: from the deadline on nothing is, even before the run is cancelled."""
        return not (self.leaving() or self.alarms.overdue())

    # Outcomes

    def _outcome(self, call: Call, completion: Completion) -> None:
        self._stepper.outcome(call, self._made(call, completion), send=self._flush, follow=self._follow)
        if call.phase is Phase.DOUBT:
            self._settle_doubt(call)
        if call.phase is Phase.BACKOFF:
            self.alarms.wake_at(call.retry_at)

    def _flush(self) -> None:
        self._outbox.flush(leaving=self._stopping is not None)

    def _made(self, call: Call, completion: Completion) -> ev.EventBody:
        return outcome(call, completion, at=self._at(), clock=self._host.now_us, policy=self._policy)

    def _strike(self, call: Call, now: int) -> None:
        """Let a call know that it is now as late as *now*."""
        idle = not self._gate.holds(call)
        if call.phase is Phase.WAITING and call.due is not None and call.due <= now:
            self._emit(ev.TimerFired(at=self._at(), call=call.id))
        elif call.phase is Phase.BACKOFF and (call.retry_at or 0) <= now and idle:
            self._begin(call)
        elif call.phase is Phase.DOUBT and idle:
            self._settle_doubt(call)

    def _settle_doubt(self, call: Call) -> None:
        """Apply its policy to a call that is in doubt."""
        policy = policy_of(call.command)
        if policy == "park" or call.path in self._looked_up or not self._may_begin():
            return
        if (until := self.holds.until(call)) is not None:
            self.alarms.wake_at(until)
        elif policy == "retry":
            self._try(call)
        elif policy == "reconcile" and not self._gate.holds(call):
            self._gate.reconcile(call)
        elif policy == "tell_model":
            self._emit(told(call, at=self._at()))

    # Messages

    def _keep_deadline(self) -> None:
        """Cancel the run if its time is over, else see to it that it is then."""
        if self.alarms.watch() and not (self._over() or self.leaving()):
            run = self.interpreter.run_id
            self._cancel(ev.CancelRequested(at=self._at(), run=run, reason=OVERDUE, by="deadline"))

    def _order(self, step: Callable[[], object], grace_s: float) -> None:
        """Obey an order to stop as soon as the transaction under way is over; it is rolled back after *grace_s*."""
        self._aside.order(step)
        self.alarms.set_grace(grace_s, self._host.now_us())

    def _cancel_if_asked(self) -> None:
        wish = self.mail.cancellation(self.interpreter, self.holds, at=self._at())
        if wish is not None and not (self._over() or self.leaving()):
            self._cancel(*wish)

    def _cancel(self, body: ev.CancelRequested, message_id: int | None = None) -> None:
        """End the run for good: begin nothing, record what returns within the grace, doubt the rest."""
        self._emit(body, consumed=message_id)
        self._drop_gated()
        for call in filter(self._gate.holds, self._pending()):
            if not isinstance(call.command, ToolCall) and call.phase is not Phase.STARTED:
                self._gate.abandon(call)
        self._set_grace(self._policy.cancel_grace_s)

    def _match_messages(self) -> None:
        while self.interpreter.ended is None and not self.leaving():
            taken = self.mail.take(self.interpreter, self.holds, at=self._at())
            if taken is None:
                return
            if taken.event is None:
                self._outbox.discard(taken.message)
            elif isinstance(taken.event, ev.CancelRequested):
                self._cancel(taken.event, taken.message)
            else:
                self._gate.forget(self.interpreter.named(getattr(taken.event, "call", "")))
                self._emit(taken.event, consumed=taken.message)

    # Writing

    def _emit(self, body: ev.EventBody, *, consumed: int | None = None) -> None:
        """Make *body* an event, and begin what follows from it."""
        self._follow(self._stepper.emit(body, consumed))

    def _follow(self, calls: list[Call]) -> None:
        """Begin what the event just applied implies."""
        if self._stepper.halted is not None:
            self._gate.drop()
            if isinstance(self._stepper.halted, KeyboardInterrupt):
                self._set_grace(self._policy.cancel_grace_s)
            return
        while self.interpreter.new_patches and (patch := self._stepper.implied()) is not None:
            self._stepper.emit(patch)
        for call in calls:
            self._begin(call)
        self._fill()
        if (end := self._stepper.implied()) is not None:
            self._emit(end)

    # Ending

    def _go_on(self) -> None:
        if self.end is not None or self.error is not None or self._gate.alone is not None:
            return
        for step in self._aside.take():
            step()
        self._keep_deadline()
        while self._unmatched or self._refused:
            refused, self._refused = self._refused, []
            for call in refused:
                if not self.leaving():
                    self._emit(refusal(call, at=self._outbox.last_at))
            if self._unmatched:
                self._unmatched = False
                self._match_messages()
        self._flush()
        if self._gate.waits and self._may_begin():
            self._gate.open()
        if not self._gate.idle or not self._outbox.empty:
            return
        if self._stepper.halted is not None:
            self.error = self._stepper.halted
        elif self.interpreter.ended is not None:
            self.end = End(status=ENDS[type(self.interpreter.ended)])
        elif self.interpreter.cancelling:
            self._give_up()
            self._flush()
        elif self._stopping is not None:
            self.end = End(status="released")
        else:
            self._rest()

    def _rest(self) -> None:
        """Nothing is being done: wait for a clock that will strike soon, or leave."""
        if isinstance(self._outbox.last, ev.RunReleased | ev.RunParked):
            self._leave()
            return
        due = self.alarms.sooner(soonest(self.interpreter, self.holds))
        if due is not None and due <= self._host.now_us() + round(self._policy.hold_wait_s * 1e6):
            self.alarms.wake_at(due)
            return
        self._emit(resting(self.interpreter, self.holds, self._looked_up, at=self._at(), due=due))
        self._outbox.flush(leaving=True)

    def _leave(self) -> None:
        parked = unsettled(self.interpreter, self.holds) or isinstance(self._outbox.last, ev.RunParked)
        due = None if parked else self.alarms.sooner(soonest(self.interpreter, self.holds))
        self.end = End(status="parked" if parked else "waiting", wake_at=due)

    def _give_up(self) -> None:
        """Grace is over: what still runs is in doubt, and a cancelled run ends."""
        self.alarms.end_grace()
        at = self._at()
        for call in filter(self._gate.holds, self._pending()):
            self._gate.abandon(call)
            if call.phase is Phase.STARTED:
                why = "it was still running when its worker left"
                self._emit(ev.ToolInDoubt(at=at, call=call.id, attempt=call.attempt, why=why))
        if (reason := self.interpreter.cancelling) and not self._over():
            self._emit(ev.RunCancelled(at=at, run=self.interpreter.run_id, reason=reason))

    def _set_grace(self, grace_s: float) -> None:
        if not self._gate.idle:
            self.alarms.set_grace(grace_s, self._host.now_us())

    def _over(self) -> bool:
        return self._stepper.halted is not None or self.interpreter.ended is not None

    def _pending(self) -> list[Call]:
        return list(self.interpreter.pending.values())

    def _at(self) -> int:
        return max(self._outbox.last_at, self._host.wall_us())
