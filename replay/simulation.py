"""
A world in which programs run, crash and are taken up again, on one virtual clock and without a thread or a loop.

Sessions, tenures and the store are the real ones; what is simulated is everything around them: processes,
connections, clocks, tools in the act, people. Whatever happens, happens in an order fixed by a `Chooser`.
"""

from __future__ import annotations

import heapq
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from msgspec import Struct, field

from ..journal.memory import MemoryStore
from ..journal.sources import Sources
from ..journal.store import Append, AppendResult, Message, Store
from .inbox import Content, encode_message
from .odometer import Chooser
from .outcomes import Reconciled
from .ports import MakeContext, ModelClient, ToolContext, ToolSpec
from .program import Program
from .recording import Policy
from .status import OpenCall

START_US = 1_750_000_000_000_000
LEASE_TTL_S = 30.0
TTL_US = round(LEASE_TTL_S * 1e6)
NEVER_US = 1 << 62
MODEL_TIMEOUT_S = 600.0
LATE_US = 300_000
"""How much later something comes that was held up."""
STEPS_MAX = 4000
TENURES_MAX = 40

LATENCY_US = {
    "store": 2_000,
    "model": 50_000,
    "tool": 20_000,
    "step": 10_000,
    "reconcile": 10_000,
    "outcome": 1_000,
    "poll": 5_000,
    "answer": 15_000,
    "input": 30_000,
}

OK = "ok"
EVERYWHERE = ("crash", "pause", "freeze", "rival", "twin", "jump", "interrupt", "late")
"""What can happen to a worker at any of its steps."""
FAULTS: dict[str, tuple[str, ...]] = {
    "clock": ("ahead", "behind"),
    "acquire": ("drop", "zombie"),
    "append": ("drop", "zombie", "straggler", "ghost"),
    "commit": ("drop", "zombie", "ghost"),
    "look": ("drop",),
    "release": ("drop", "zombie"),
    "answer": ("lost",),
    "read": (),
    "model": ("fails", "breaks"),
    "tool": ("refuses", "fails", "raises", "hangs", "hangs early"),
    "step": ("fails",),
    "reconcile": ("unsure",),
    "outcome": (),
    "post": (),
    "alarm": (),
    "poll": (),
    "leave": (),
    "people": ("slow",),
}
"""
What can go wrong at each kind of place, besides `EVERYWHERE` at the steps of a worker.

drop: the connection fails and nothing was done. zombie, straggler: it fails, and the call is performed all the same,
before or long after it is sent again. ghost: the process dies, and the call is performed under its successor.
lost: performed, the answer is lost. pause: the process stands still past its lease and wakes beside its successor;
freeze: it wakes when all is over. rival: another worker steals the thread. jump: the database's clock leaps past the
lease, and another worker comes. twin: a second loop with the same lease.
refuses: a tool says that nothing happened; fails: it raises and nothing happened; raises: it acted, then raised;
breaks: a model was asked, and the connection broke before its response had come;
hangs: it acts and gives no answer in time; hangs early: it acts, and its outcome comes when it was given up.
"""

CACHE_FAULTS: dict[str, tuple[str, ...]] = {
    "fetch": (
        "away",
        "flushed",
        "partial",
        "cut",
        "flipped",
        "garbage",
        "foreign",
        "namesake",
        "shifted",
        "restored",
        "newer",
    ),
    "keep": ("away", "full", "forgets", "delays"),
}
"""
What can go wrong with the cache of hot state, where a history has one.

away: no answer, or none in time. flushed, partial: all or every second key is gone. cut, flipped, garbage: the values
are damaged, or something else. foreign, namesake, shifted: they belong to another database, thread or place.
restored, newer: they belong to this very thread in another history, other from its first event on or in its last one.
full: it does not store; forgets: it says that it does; delays: it stores later.
"""
PLACES = {**FAULTS, **CACHE_FAULTS}
INLINE = frozenset({"clock", "people", *CACHE_FAULTS})
"""Places that are no steps of a worker: nothing but their own faults strikes there."""

MESSAGES = ("cancel", "early", "stale")
"""What the outside can send at any step: a cancel, what it would send later anyway, an answer about no open attempt."""
TURNS = ("input", "supersede")
"""Where a scenario has more inputs: one more for the inbox, or for a worker that gives up the run there is."""


class Deed(Struct, frozen=True, kw_only=True):
    """One thing that was done outside, as the outside knows it: the ground truth."""

    kind: str
    """model, tool or step."""
    thread: str
    call: str
    name: str
    args: bytes
    attempt: int
    key: str
    worker: str
    fence: int
    head: int
    """Length of the thread's log at that moment."""
    current: bool
    """Whether the worker still held the thread."""
    repeatable: bool
    """Whether running it twice does no harm; false for a tool not declared so."""
    happened: bool
    """Whether it had an effect, or did no more than fail."""
    value: Any
    error: BaseException | None = None
    """What a tool raised by itself."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What a reconciler said of one attempt."""

    call: str
    attempt: int
    tool: str
    answer: Reconciled


class Sent(Struct, kw_only=True):
    """One append: each time it was sent, what came of it."""

    append: Append
    worker: str
    invoked: int
    """Step of the history at which it was first sent."""
    results: list[AppendResult] = field(default_factory=list)
    """What each copy that arrived was answered, heard or not."""
    dropped: int = 0
    answered: AppendResult | None = None
    """The answer that reached the worker."""


class Granted(Struct, frozen=True, kw_only=True):
    """One lease: the step at which the worker knew that it had it."""

    thread: str
    worker: str
    fence: int
    step: int


class Idle(Struct, frozen=True, kw_only=True):
    """A worker that left a run waiting or parked, and what lay in the inbox then."""

    thread: str
    worker: str
    head: int
    messages: list[Message]


class SimulatedContext(Struct, kw_only=True):
    """What a simulated tool may ask about its call; nobody wants it to stop."""

    idempotency_key: str
    attempt: int
    thread: str
    call: str
    deps: Any
    deadline_s: float
    heartbeat: Callable[[], None]
    cancelled: bool = False
    connection: Any = None


def simulated_context(
    *,
    idempotency_key: str,
    attempt: int,
    thread: str,
    call: str,
    deps: Any,
    deadline_s: float,
    heartbeat: Callable[[], None],
    cancelled: Callable[[], bool],
    connection: Any = None,
) -> ToolContext:
    """A context for one attempt."""
    return SimulatedContext(
        idempotency_key=idempotency_key,
        attempt=attempt,
        thread=thread,
        call=call,
        deps=deps,
        deadline_s=deadline_s,
        heartbeat=heartbeat,
        cancelled=cancelled(),
        connection=connection,
    )


def call_tool(tool: ToolSpec, args: Mapping[str, Any], context: ToolContext) -> Coroutine[Any, Any, Any]:
    """A tool's own way of being called."""
    return tool.call(args, context)


def run_to_end(act: Callable[[], Any]) -> Any:
    """Call *act*; a coroutine that it makes may await nothing which takes time."""
    coroutine = act()
    if not isinstance(coroutine, Coroutine):
        return coroutine
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError(
        "a simulated tool, step or model must not wait; pass a `perform` that runs an event loop"
    )


class Scenario(Struct, frozen=True, kw_only=True):
    """
    A program to be put through histories.

    Args:
        name: For reports.
        program: What runs.
        value: Its input.
        inputs: Further inputs, sent to the thread while the first run goes on; each becomes a run of its own.
        turn: What is sent, once, by the faults of `TURNS`; None: these do not strike.
        models: Answers model calls; deterministic, never awaiting anything of an event loop.
        reply: What people answer to a call that waits for a signal or an approval; None for nothing.
        transactions: Whether transactional tools can run: what they are given as a connection takes `write(row)`.
        patient: Whether people leave calls in doubt alone until the run is parked for them.
        deadline_s: How long a run may take in all, seconds; None for as long as it likes.
        latency_us: Overrides of `LATENCY_US`, by kind or by name of a tool or step, microseconds.
        faults: Which faults are tried; all that apply by default.
        policy: Failures and time.
        make_deps: What tools are given in a history.
        make_context: Makes tool contexts.
        perform: Calls a tool, a step, a model or a reconciler, and runs the coroutine it may make to its end.
        call_tool: Makes that call of a tool.
    """

    name: str
    program: Program
    value: Any = None
    inputs: tuple[Any, ...] = ()
    turn: Any = None
    models: ModelClient | None = None
    reply: Callable[[OpenCall], Content | None] = lambda call: None
    transactions: bool = False
    patient: bool = False
    deadline_s: float | None = None
    latency_us: Mapping[str, int] = {}
    faults: frozenset[str] | None = None
    policy: Policy = Policy()
    make_deps: Callable[[Simulation], Any] = lambda world: None
    make_context: MakeContext = simulated_context
    perform: Callable[[Callable[[], Any]], Any] = run_to_end
    call_tool: Callable[[ToolSpec, Mapping[str, Any], ToolContext], Any] = call_tool


class _DatabaseClock(Sources):
    """The clock by which leases expire."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._ids = 0

    def now_us(self) -> int:
        return self._world.now_us + self._world.jump_us

    def new_id(self) -> uuid.UUID:
        self._ids += 1
        return uuid.UUID(int=self._ids)


class Simulation:
    """
    One history.

    Args:
        chooser: Decides what goes wrong.
        trace: Whether to keep a timeline for people.
        store: What holds the threads, made from the database's clock; a `MemoryStore` by default.
        cached: Whether the workers share a cache of hot state.

    Attributes:
        ledger: What was done outside, in order.
        steps_max: A history that takes more steps has no end.
        rows: What transactions have committed beside their events: (thread, row), in order.
        verdicts: What reconcilers said, in order.
        sent: All appends, in order.
        granted: All leases, in order.
        idle: All leaves of a run that waits.
        flaws: What the engine itself did wrong in this history, in words.
        marks: How often rare paths were taken.
        timeline: (time in microseconds, worker, what), if traced.
    """

    def __init__(
        self,
        chooser: Chooser,
        *,
        trace: bool = False,
        store: Callable[[Sources], Store] = MemoryStore,
        cached: bool = False,
    ) -> None:
        self.now_us = START_US
        self.jump_us = 0
        self.step = 0
        self.steps_max = STEPS_MAX
        self.chooser = chooser
        self.store = store(_DatabaseClock(self))
        self.cache: dict[str, bytes] | None = {} if cached else None
        """Keys and values of the cache of hot state, if there is one."""
        self.ledger: list[Deed] = []
        self.rows: list[tuple[str, Any]] = []
        self.verdicts: list[Verdict] = []
        self.sent: list[Sent] = []
        self.granted: list[Granted] = []
        self.idle: list[Idle] = []
        self.flaws: list[str] = []
        self.marks: Counter[str] = Counter()
        self.timeline: list[tuple[int, str, str]] | None = [] if trace else None
        self.renewers: list[Callable[[], int | None]] = []
        """Each keeps one worker's lease alive; they tell when they want to be called again, if ever."""
        self.renew_at_us = 0
        """Before that none of them has anything to do."""
        self.workers = 0
        self._queue: list[tuple[int, int, Callable[[], object]]] = []
        self._queued = 0

    def run(self, steps: int | None = None) -> None:
        """Let everything happen that will, or no more than *steps* of it."""
        queue = self._queue
        until = None if steps is None else self.step + steps
        while queue and self.step != until:
            self.step += 1
            if self.step > self.steps_max:
                self.flaws.append(f"no end after {self.steps_max} steps")
                return
            due, _, action = heapq.heappop(queue)
            if due > self.now_us:
                self.now_us = due
                if due >= self.renew_at_us:
                    self._renew()
            action()

    def after(self, delay_us: int, action: Callable[[], object]) -> None:
        """Have *action* happen, microseconds from now; what is due at one time happens in the order asked."""
        self._queued += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._queued, action))

    def _renew(self) -> None:
        self.renew_at_us = NEVER_US
        for renew in self.renewers:
            at_us = renew()
            # One of them may have made a worker lose its lease, and what follows may have brought others.
            if at_us is not None and at_us < self.renew_at_us:
                self.renew_at_us = at_us

    def note(self, who: str, what: str) -> None:
        """Write a line of the timeline."""
        if self.timeline is not None:
            self.timeline.append((self.now_us - START_US, who, what))

    def append_arrives(self, sent: Sent) -> AppendResult:
        """One copy of an append reaches the store."""
        result = self.store.append(sent.append)
        sent.results.append(result)
        self.marks[result.outcome.value] += 1
        return result

    def commit(self, deed: Deed, rows: list[Any]) -> None:
        """What a transaction has done is there at once."""
        self.ledger.append(deed)
        self.rows += [(deed.thread, row) for row in rows]
        self.note(deed.worker, f"commits {deed.name} {deed.call} attempt {deed.attempt}")

    def send(self, thread: str, key: str, content: Content) -> bool:
        """Put a message into a thread's inbox; False if one of that key was there."""
        kind, body = encode_message(content)
        fresh = self.store.send(thread, key=key, kind=kind, body=body).fresh
        if fresh:
            self.note("outside", f"sends {kind} {key}")
        return fresh
