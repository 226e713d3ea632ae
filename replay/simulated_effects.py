"""What a simulated worker does outside: models asked, tools and steps run, reconcilers consulted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..journal import codec
from ..journal.envelope import NewEvent
from ..journal.errors import LeaseLost, StoreError
from ..journal.store import Append, AppendResult
from ..journal.tenure import Tenure
from .attempt import NotBegun
from .commands import Call, Command, ModelCall, StepCall, ToolCall
from .errors import ModelError, ToolError
from .events import decode_bytes
from .inbox import Resolution, resolution_key
from .outcomes import Reconciled, Unknown
from .ports import ToolContext
from .recording import Completion, late_resolution, rolled_back, unrecorded_resolution
from .session import Session
from .simulated_process import Process
from .simulated_transaction import Rows, Transaction
from .simulation import LATE_US, LATENCY_US, Deed, Verdict


class Enter(Protocol):
    """Steps the session and looks after what comes of it."""

    def __call__(self, step: Callable[[], Any]) -> Any:
        """Run *step*."""


class Effects:
    """
    The calls under way of one session.

    Args:
        process: Where they run.
        tenure: Checked before each.
        session: Told what came of them.
        enter: How it is told.
        fail: Ends the session with an error.
    """

    def __init__(
        self,
        process: Process,
        tenure: Tenure,
        session: Session,
        enter: Enter,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.over = False
        """The session has ended: nothing more begins, and tools that come to an end post what they came to."""
        self._process = process
        self._world = process.world
        self._scenario = process.owner.scenario
        self._deps = self._scenario.make_deps(self._world)
        self._thread = process.owner.name
        self._tenure = tenure
        self._session = session
        self._enter = enter
        self._fail = fail
        self._transaction: Transaction | None = None
        self._alone = ""
        """Path of the transactional tool under way."""
        self._beside: list[tuple[Call, int, Completion]] = []
        """Outcomes that wait for its end to be recorded."""
        self._abandoned: set[tuple[str, int]] = set()
        self._timed_out: set[tuple[str, int]] = set()

    def perform(self, call: Call, attempt: int) -> None:
        """Begin an effect."""
        command = call.command
        if isinstance(command, ToolCall):
            self._begin("tool", command.tool.name, call, attempt, self._tool)
        elif isinstance(command, StepCall):
            self._begin("step", command.name.rpartition(".")[2], call, attempt, self._step)
        else:
            self._begin("model", "model", call, attempt, self._model)

    def transact(self, call: Call, attempt: int) -> None:
        """Begin a transactional tool; that the thread is still its worker's is for the transaction to find."""
        command, session = call.command, self._session
        assert isinstance(command, ToolCall)
        tool, args = command.tool, command.args

        def call_now(rows: Rows) -> Any:
            context = self._context(call, attempt, tool.timeout_s, rows)
            return tool.call_now(codec.decode(args), context)

        def over(body: Any, error: Exception | None) -> None:
            if isinstance(error, LeaseLost | StoreError):
                if not self.over:
                    self._enter(lambda: self._fail(error))
            elif isinstance(error, NotBegun):
                self._world.marks["transaction called off"] += 1
                self._outcome(call, attempt, Completion(begun=False))
            elif error is not None:
                self._outcome(call, attempt, Completion(error=rolled_back(error)))
            else:
                self._process.do(
                    "outcome", f"outcome {call.path}", LATENCY_US["outcome"], lambda fault: tell(body)
                )

        def tell(body: Any) -> None:
            self._alone_no_more()
            if not self.over:
                self._enter(lambda: session.committed(call.path, attempt, body))

        self._alone = call.path
        transaction = self._transaction = Transaction(
            self._process,
            self._tenure,
            call,
            run_tool=call_now,
            event_body=lambda done: session.committed_outcome(call, done),
            deed=lambda value: self._deed_of("tool", call, attempt, tool.name, args, value=value),
            over=over,
            leaving=session.leaving,
        )

        def begin(fault: str) -> None:
            if not self.over:
                transaction.begin(fault)

        latency_us = self._scenario.latency_us.get(tool.name, LATENCY_US["tool"])
        self._process.do("tool", f"tool {call.path}", latency_us, begin)

    def see_through(
        self, work: Callable[[Any], Append], check: Callable[[], None]
    ) -> tuple[Append, AppendResult]:
        """See the transaction under way through."""
        assert self._transaction is not None
        return self._transaction.see_through(work, check)

    def reconcile(self, call: Call, attempt: int) -> None:
        """Ask a tool's reconciler."""
        self._begin("reconcile", "reconcile", call, attempt, self._ask_reconciler)

    def abandon(self, call: Call) -> None:
        """What has not begun does not begin; a transaction is called off."""
        command = call.command
        if isinstance(command, ToolCall) and command.tool.transactional:
            assert self._transaction is not None
            self._transaction.call_off()
            return
        self._abandoned.add((call.path, call.attempt))

    def _begin(
        self, kind: str, name: str, call: Call, attempt: int, act: Callable[[Call, int, str], None]
    ) -> None:
        latency = self._scenario.latency_us
        latency_us = latency.get(name, latency.get(kind, LATENCY_US[kind]))
        asked = (call.path, call.attempt)
        self._abandoned.discard(asked)

        def begin(fault: str) -> None:
            if not self.over and asked not in self._abandoned and self._still_ours():
                act(call, attempt, fault)

        self._process.do(kind, f"{kind} {call.path}", latency_us, begin)

    def _still_ours(self) -> bool:
        """The process may have stood still: it acts only if the lease has not run out."""
        tenure = self._tenure
        if tenure.remaining_s() > 0:
            return True
        self._world.marks["lease checked before a call"] += 1
        if self._world.store.renew(tenure.thread, fence=tenure.fence, ttl_s=tenure.ttl_s):
            tenure.renewed(self._process.clocks.monotonic_s())
            return True
        tenure.mark_lost()
        return False

    def _tool(self, call: Call, attempt: int, fault: str) -> None:
        command = call.command
        assert isinstance(command, ToolCall)
        name, args = command.tool.name, command.args
        if fault in ("refuses", "fails"):
            error = ToolError("refused") if fault == "refuses" else RuntimeError("failed")
            self._deed("tool", call, attempt, name, args, happened=False)
            self._outcome(call, attempt, Completion(error=error))
            return
        context = self._context(call, attempt, command.tool.timeout_s)
        scenario = self._scenario
        done = self._run(lambda: scenario.call_tool(command.tool, codec.decode(args), context))
        self._deed(
            "tool", call, attempt, name, args, happened=done.error is None, value=done.value, error=done.error
        )
        if fault == "raises":
            done = Completion(error=RuntimeError("raised after it had acted"))
        if fault in ("hangs", "hangs early"):
            overdue = Completion(error=TimeoutError("no answer in time"), timed_out=True)
            self._outcome(call, attempt, overdue)
            if fault == "hangs early":
                self._process.later(LATE_US, lambda: self._send_late(call, attempt, done))
            return
        self._outcome(call, attempt, done)

    def _step(self, call: Call, attempt: int, fault: str) -> None:
        command = call.command
        assert isinstance(command, StepCall)
        if fault == "fails":
            self._outcome(call, attempt, Completion(error=RuntimeError("failed")))
            return
        args, kwargs = codec.decode(command.args)
        done = self._run(lambda: command.function(*args, **kwargs))
        self._deed("step", call, attempt, command.name, command.args, value=done.value)
        self._outcome(call, attempt, done)

    def _model(self, call: Call, attempt: int, fault: str) -> None:
        command, models = call.command, self._scenario.models
        assert isinstance(command, ModelCall)
        if fault == "fails" or models is None:
            error = ModelError("overloaded", kind="overloaded" if models else "bad_request")
            self._outcome(call, attempt, Completion(error=error))
            return
        params = command.request.params
        messages = list(command.request.messages())
        request = {**params.values, **params.secret, "messages": messages}
        done = self._run(lambda: models.respond(request))
        name = "model" if command.in_doubt is None else "acting model"
        self._deed("model", call, attempt, name, codec.encode(messages), value=done.value)
        if fault == "breaks":
            done = Completion(error=ModelError("the connection broke", kind="connection"))
        self._outcome(call, attempt, done)

    def _ask_reconciler(self, call: Call, attempt: int, fault: str) -> None:
        command, session = call.command, self._session
        assert isinstance(command, ToolCall)
        verdict: Reconciled = Unknown("not now")
        if fault != "unsure":
            context = self._context(call, attempt, command.tool.timeout_s)
            verdict = self._run(lambda: command.tool.reconcile(codec.decode(command.args), context)).value
            said = Verdict(call=call.id, attempt=attempt, tool=command.tool.name, answer=verdict)
            self._world.verdicts.append(said)

        def answer(fault: str) -> None:
            if not self.over:
                self._enter(lambda: session.reconciled(call.path, attempt, verdict))

        self._process.do("outcome", f"verdict {call.path}", LATENCY_US["outcome"], answer)

    def _run(self, make: Callable[[], Any]) -> Completion:
        try:
            return Completion(value=self._scenario.perform(make))
        except Exception as error:  # noqa: BLE001 - what a call raises is its outcome
            # Where it was raised leads back to all that is going on here, in a circle.
            return Completion(error=error.with_traceback(None))

    def _outcome(self, call: Call, attempt: int, done: Completion) -> None:
        if done.timed_out:
            self._timed_out.add((call.id, attempt))

        def arrive(fault: str) -> None:
            if call.path == self._alone:
                self._alone_no_more()
            waits = bool(self._alone)
            taken = not self.over and self._enter(lambda: self._session.completed(call.path, attempt, done))
            if taken and waits:
                self._beside.append((call, attempt, done))
            if not taken and not done.timed_out:
                self._send_late(call, attempt, done)

        self._process.do("outcome", f"outcome {call.path}", LATENCY_US["outcome"], arrive)

    def leave(self) -> None:
        """Nobody waits for the transaction any more: whoever takes the run up finds what waited in the inbox."""
        self.over = True
        for call, attempt, done in self._beside:
            self._send_late(call, attempt, done)

    def _alone_no_more(self) -> None:
        self._alone = ""
        self._beside.clear()

    def _send_late(self, call: Call, attempt: int, done: Completion) -> None:
        if not isinstance(call.command, ToolCall) or call.command.tool.stoppable:
            return
        resolution = late_resolution(call, attempt, done)
        if resolution is not None:
            self._post(resolution)

    def pass_on(self, events: Sequence[NewEvent]) -> None:
        """What a worker that has lost its lease may not record any more goes into the inbox."""
        for event in events:
            resolution = unrecorded_resolution(decode_bytes(event.body))
            if resolution is not None and (resolution.call, resolution.attempt) not in self._timed_out:
                self._post(resolution)

    def _post(self, resolution: Resolution) -> None:
        key = resolution_key(resolution.call, resolution.attempt, late=True)
        self._world.marks["late outcome"] += 1
        self._process.do(
            "post",
            f"post {resolution.call}",
            LATENCY_US["outcome"],
            lambda fault: self._process.owner.post(key, resolution),
        )

    def _context(self, call: Call, attempt: int, deadline_s: float, connection: Any = None) -> ToolContext:
        return self._scenario.make_context(
            idempotency_key=call.key or "",
            attempt=attempt,
            thread=self._thread,
            call=call.id,
            deps=self._deps,
            deadline_s=deadline_s,
            heartbeat=lambda: None,
            cancelled=self._session.leaving,
            connection=connection,
        )

    def _deed(self, *told: Any, happened: bool = True, **more: Any) -> None:
        deed = self._deed_of(*told, happened=happened, **more)
        world = self._world
        world.ledger.append(deed)
        if world.timeline is not None:
            nothing = "" if happened else ", nothing happens"
            what = f"{deed.kind} {deed.name} {deed.call} attempt {deed.attempt}"
            world.note(self._process.name, f"{what}{nothing}")

    def _deed_of(
        self,
        kind: str,
        call: Call,
        attempt: int,
        name: str,
        args: bytes,
        *,
        happened: bool = True,
        value: Any = None,
        error: BaseException | None = None,
    ) -> Deed:
        info = self._world.store.info(self._thread)
        return Deed(
            kind=kind,
            thread=self._thread,
            call=call.id,
            name=name,
            args=args,
            attempt=attempt,
            key=call.key or "",
            worker=self._process.name,
            fence=self._tenure.fence,
            head=info.head,
            current=info.fence == self._tenure.fence,
            repeatable=_repeatable(call.command),
            happened=happened,
            value=value,
            error=error,
        )


def _repeatable(command: Command) -> bool:
    if isinstance(command, ToolCall):
        return command.tool.repeatable
    return not isinstance(command, ModelCall) or command.in_doubt != "park"
