"""A simulated transactional tool: the real code sees it through, over answers of the store that take their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from ..journal.envelope import NewEvent
from ..journal.errors import StoreUnavailable
from ..journal.store import Append, AppendResult, Outcome
from ..journal.tenure import Tenure
from ..journal.transaction import see_through
from .attempt import NotBegun
from .commands import Call, ToolCall
from .errors import ToolError
from .events import VERSIONS, decode_bytes, encode_body, kind_of
from .recording import Completion
from .simulated_process import Process
from .simulation import LATENCY_US, TTL_US, Deed, Sent, Simulation

HOLD_S = 600.0
FAILURES: dict[str, Exception] = {
    "refuses": ToolError("refused"),
    "fails": RuntimeError("failed"),
    "raises": RuntimeError("raised after it had acted"),
    "hangs": TimeoutError("no answer in time"),
    "hangs early": TimeoutError("no answer in time"),
}
"""What ends a transaction without a commit: whatever it is, nothing has happened."""


class Rows:
    """The connection that a transactional tool is given; what it writes is kept if the transaction commits."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def write(self, row: Any) -> None:
        """Write a row."""
        self.written.append(row)


class _Unanswered(BaseException):
    """The store has not answered yet; all is gone through again when it has."""


class Transaction:
    """
    One attempt at a transactional call.

    `Tenure.transact` and `see_through` block, and a simulation does not wait: whenever an answer has come they run
    anew over the answers there are, up to the first that is missing.

    Args:
        process: Where it runs.
        tenure: Writes its event.
        call: What is called.
        run_tool: Calls the tool on a connection.
        event_body: Makes the body of the event that records a completion.
        deed: What the world is to know of the call, as of now.
        over: Told how it ended: the event that is in the log, or the error.
        leaving: Whether nothing may begin any more.
    """

    def __init__(
        self,
        process: Process,
        tenure: Tenure,
        call: Call,
        *,
        run_tool: Callable[[Rows], Any],
        event_body: Callable[[Completion], Any],
        deed: Callable[[Any], Deed],
        over: Callable[[Any, Exception | None], None],
        leaving: Callable[[], bool],
    ) -> None:
        assert isinstance(call.command, ToolCall)
        self._process = process
        self._world: Simulation = process.world
        self._tenure = tenure
        self._call = call
        self._fault = ""
        self._run_tool = run_tool
        self._event_body = event_body
        self._deed = deed
        self._over = over
        self._leaving = leaving
        self._committing = self._called_off = self._ended = False
        self._answers: list[AppendResult | bool | StoreUnavailable] = []
        self._begun_s = 0.0
        self._asked = 0
        self._tries: list[tuple[NewEvent, Rows, Any]] = []
        self._tried = 0

    def begin(self, fault: str) -> None:
        """The tool comes to its end; *fault* is what it does wrong."""
        self._fault = fault
        self._begun_s = self._process.clocks.monotonic_s()
        self.go_on()

    def go_on(self) -> None:
        """Run as far as the answers reach."""
        if self._ended:
            return
        self._asked = self._tried = 0
        clocks, body, failure = self._process.clocks, None, None
        clocks.stopped_s = self._begun_s
        try:
            body = decode_bytes(self._tenure.transact(self._make, limit_s=HOLD_S, check=self._check).body)
        except _Unanswered:
            return
        except Exception as error:  # noqa: BLE001 - what a transaction raises is its outcome
            failure = error
        finally:
            clocks.stopped_s = None
        self._ended = True
        self._over(body, failure)

    def call_off(self) -> None:
        """Let it commit no more; a commit that is on its way is seen through."""
        self._called_off = True
        if not (self._committing or self._ended):
            self._ended = True
            self._over(None, NotBegun())

    def _check(self) -> None:
        if self._tried == len(self._tries) and (self._called_off or (self._tried and self._leaving())):
            self._world.marks["transaction not run again"] += 1
            raise NotBegun

    def see_through(
        self, work: Callable[[Any], Append], check: Callable[[], None]
    ) -> tuple[Append, AppendResult]:
        """What the tenure asks of the journal."""
        # Of a store it is asked for nothing but `transact` and `recorded`.
        store: Any = self
        return see_through(
            store,
            self._process.clocks,
            work,
            hold_s=HOLD_S,
            limit_s=HOLD_S,
            check=check,
            sleep=lambda pause_s: None,
        )

    # The store, as `see_through` knows it

    def transact(self, work: Callable[[Any], Append], *, limit_s: float) -> AppendResult:
        """Run *work* and commit."""
        append = work(None)
        answer = self._answer(lambda: self._commit(append))
        assert isinstance(answer, AppendResult)
        return answer

    def recorded(self, thread: str, seq: int, event: UUID) -> bool:
        """Whether the event is in the log."""
        return bool(self._answer(lambda: self._look(thread, seq, event)))

    def _answer(self, ask: Callable[[], None]) -> AppendResult | bool:
        if self._asked == len(self._answers):
            ask()
            raise _Unanswered
        answer = self._answers[self._asked]
        self._asked += 1
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    def _answered(self, answer: AppendResult | bool | StoreUnavailable) -> None:
        self._answers.append(answer)
        self.go_on()

    def _make(self, connection: Any) -> NewEvent:
        self._tried += 1
        if self._tried > len(self._tries):
            rows = Rows()
            value = self._run_tool(rows)
            if self._fault in FAILURES:
                raise FAILURES[self._fault]
            body = self._event_body(Completion(value=value))
            kind = kind_of(body)
            event = NewEvent(self._process.clocks.new_id(), kind, VERSIONS[kind], encode_body(body))
            self._tries.append((event, rows, value))
            if self._tried > 1:
                self._world.marks["transaction run again"] += 1
        return self._tries[self._tried - 1][0]

    def _commit(self, append: Append) -> None:
        process, world = self._process, self._world
        self._committing = True
        sent = Sent(append=append, worker=process.name, invoked=world.step)
        world.sent.append(sent)
        _, rows, value = self._tries[-1]
        where = f"commit {self._call.path}"

        def commit() -> AppendResult:
            deed = self._deed(value)
            result = world.append_arrives(sent)
            if result.outcome is Outcome.APPENDED:
                world.commit(deed, rows.written)
            return result

        def unheard() -> None:
            world.marks[f"orphan {commit().outcome.value}"] += 1

        def arrive(fault: str) -> None:
            if fault == "ghost":
                world.after(TTL_US + 20_000, unheard)
                process.die()
            elif fault in ("drop", "zombie"):
                # Looking waits for the row that an open transaction has locked: it never overtakes a commit.
                if fault == "zombie":
                    world.after(LATENCY_US["store"] // 2, unheard)
                process.later(LATENCY_US["store"], lambda: self._answered(_lost()))
            else:
                result = commit()
                process.do(
                    "answer", f"{where}.answer", LATENCY_US["store"], lambda fault: hear(fault, result)
                )

        def hear(fault: str, result: AppendResult) -> None:
            if fault == "lost":
                self._answered(_lost())
            else:
                sent.answered = result
                self._answered(result)

        process.do("commit", where, LATENCY_US["store"], arrive)

    def _look(self, thread: str, seq: int, event: UUID) -> None:
        def arrive(fault: str) -> None:
            if fault == "drop":
                self._answered(_lost())
                return
            there = self._world.store.recorded(thread, seq, event)
            self._world.marks["commit found" if there else "commit not found"] += 1
            self._answered(there)

        self._process.do("look", f"look {self._call.path}", LATENCY_US["store"], arrive)


def _lost() -> StoreUnavailable:
    return StoreUnavailable("the connection broke", ambiguous=True)
