"""
Engines and stores with one guard taken out: each must be caught, and by a promise it breaks.

A mutant replaces one function while it is looked for. Where it is looked for is a short list of hunts, the
smallest that find it: a scenario, and either how many faults of which kinds, or one placement.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs
from refold.journal import export
from refold.journal.envelope import chain
from refold.journal.errors import StoreUnavailable, ThreadsDiffer
from refold.journal.memory import MemoryStore
from refold.journal.store import AppendResult, Message, Outcome
from refold.replay import (
    matching,
    opening,
    recording,
    session,
    simulated_effects,
    simulated_transaction,
    simulated_worker,
    simulation,
    status,
)
from refold.replay.alarms import Alarms
from refold.replay.commands import Call, ModelCall, Phase, StepCall, ToolCall
from refold.replay.errors import Effect
from refold.replay.events import ToolFailed
from refold.replay.gate import Gate
from refold.replay.holds import Holds
from refold.replay.inbox import Resolution, decode_message, encode_message
from refold.replay.interpreter import Interpreter
from refold.replay.outbox import Outbox
from refold.replay.pairing import Pairing
from refold.replay.session import Session
from refold.replay.status import OpenCall, ThreadStatus
from sim import doubt_mutants, hot_mutants, scenarios
from sim.mutant import MUTANTS, mutant

__all__ = ["MUTANTS", "doubt_mutants", "hot_mutants"]

E, A, F, D, W, S, T, N, B, M, H, P, U = (
    scenarios.ERRAND,
    scenarios.AGENT,
    scenarios.FICKLE,
    scenarios.DOUBTS,
    scenarios.WAITS,
    scenarios.SHARED,
    scenarios.TOLD,
    scenarios.TURNS,
    scenarios.BOOKS,
    scenarios.ACTING,
    scenarios.HURRY,
    scenarios.PATIENCE,
    scenarios.AUDIT,
)


# The write-ahead rule


@mutant(Gate, "hold", "no_effect_before_its_start", (E, 1, "late"))
def a_tool_acts_before_its_start_is_durable(hold: Any) -> Any:
    return lambda self, seq, call: hold(self, 0 if isinstance(call.command, ToolCall) else seq, call)


@mutant(Gate, "hold", "no_effect_without_its_cause", (F, 2, "crash drop late"))
def a_step_does_not_wait_for_what_led_to_it(hold: Any) -> Any:
    return lambda self, seq, call: hold(self, 0 if isinstance(call.command, StepCall) else seq, call)


@mutant(Gate, "hold", "no_effect_before_its_start", (B, 1, "fails"))
def a_transactional_tool_does_not_wait_for_its_own_start(hold: Any) -> Any:
    def hasty(self: Gate, seq: int, call: Call) -> None:
        transactional = isinstance(call.command, ToolCall) and call.command.tool.transactional
        hold(self, 0 if transactional else seq, call)
        self.open()

    return hasty


@mutant(Gate, "hold", "every_run_ends", (scenarios.LEDGERS, 0, ""))
def a_transaction_begins_while_more_is_about_to_be_written(hold: Any) -> Any:
    def hasty(self: Gate, seq: int, call: Call) -> None:
        hold(self, seq, call)
        self.open()

    return hasty


@mutant(Outbox, "acked", "no_effect_before_its_start", (D, 1, "late"))
def more_is_taken_for_durable_than_was_acknowledged(acked: Any) -> Any:
    return lambda self, count: acked(self, count + len(self._waiting))


@mutant(Gate, "hold", "no_effect_before_its_start", (M, 1, "late"))
def a_model_that_may_act_is_asked_before_its_start_is_durable(hold: Any) -> Any:
    return lambda self, seq, call: hold(self, 0 if isinstance(call.command, ModelCall) else seq, call)


# Doubts


@mutant(
    matching,
    "match",
    "unsafe_tools_act_once results_tell_the_truth",
    (E, {"w1.tool 5": "crash", "w3.outcome 5": "crash", "w4.read": "stale"}),
)
def a_resolution_is_taken_for_whatever_attempt_is_in_doubt(match: Any) -> Any:
    def careless(message: Message, interpreter: Interpreter, holds: Holds, *, at: int) -> Any:
        content = decode_message(message)
        if isinstance(content, Resolution):
            call = interpreter.named(content.call)
            if call is not None and call.phase is Phase.DOUBT:
                _, body = encode_message(structs.replace(content, attempt=call.attempt))
                message = structs.replace(message, body=body)
        return match(message, interpreter, holds, at=at)

    return careless


@mutant(Session, "_settle_doubt", "unsafe_tools_act_once calls_are_paired", (E, 1, "crash"))
def a_call_in_doubt_is_run_again_whatever_its_policy(settle: Any) -> Any:
    def eager(self: Session, call: Call) -> None:
        if isinstance(call.command, ToolCall) and call.command.tool.in_doubt == "park":
            self._start(call)
        else:
            settle(self, call)

    return eager


@mutant(Session, "_settle_doubt", "unsafe_tools_act_once calls_are_paired", (M, 1, "crash"))
def a_model_call_in_doubt_is_asked_again_whatever_its_policy(settle: Any) -> Any:
    def eager(self: Session, call: Call) -> None:
        if isinstance(call.command, ModelCall):
            self._start(call)
        else:
            settle(self, call)

    return eager


@mutant(recording, "_refused", "unsafe_tools_act_once", (M, 1, "breaks"))
def a_model_that_broke_off_counts_as_one_that_refused(refused: Any) -> Any:
    return lambda error: True


@mutant(Gate, "idle", "rests_only_when_all_waits", (P, 0, ""))
def a_run_rests_while_calls_are_under_way(idle: Any) -> Any:
    return property(lambda self: True)


@mutant(Interpreter, "tenure_over", "every_run_ends engine_raises_nothing log_replays", (E, 1, "crash"))
def a_doubt_is_forgotten_when_a_tenure_ends(tenure_over: Any) -> Any:
    return lambda self: None


@mutant(Holds, "until", "unsafe_tools_act_once", (D, 1, "rival"))
def a_rivals_calls_are_not_left_alone(until: Any) -> Any:
    return lambda self, call: None


@mutant(session, "start", "repeats_carry_one_key", (E, 1, "crash"))
def each_attempt_gets_a_key_of_its_own(start: Any) -> Any:
    def keyed(call: Call, *, at: int, uid: str) -> Any:
        started = start(call, at=at, uid=uid)
        return structs.replace(started, key=f"{started.key}-{call.attempt}")

    return keyed


@mutant(Interpreter, "_held", "held_calls_wait_for_a_yes", (W, 0, ""))
def no_call_waits_for_an_approval(held: Any) -> Any:
    return lambda self, command: False


@mutant(Interpreter, "_held", "doubted_calls_wait_for_a_yes", (scenarios.AGAIN, {"w1.append#6": "supersede"}))
def a_person_is_asked_about_what_may_run_twice(held: Any) -> Any:
    def timid(self: Interpreter, command: ToolCall) -> bool:
        return (command.tool.name, command.args) in self.doubted or held(self, command)

    return timid


@mutant(
    status,
    "_told",
    "doubted_calls_wait_for_a_yes",
    (scenarios.AGAIN, {"w1.tool 1.1.1": "raises", "w1.tool 1.2.1": "hangs"}),
)
def what_is_known_of_one_call_settles_all_that_are_like_it(told: Any) -> Any:
    def careless(thread: ThreadStatus, call: OpenCall | None, effect: Effect) -> None:
        told(thread, call, effect)
        if call is not None and effect != "unknown":
            known = (call.name, bytes(call.args))
            thread.doubts = {each: asked for each, asked in thread.doubts.items() if asked != known}

    return careless


# The log


@mutant(MemoryStore, "_append", "only_holder_never_conflicts", (E, 1, "lost"))
def an_append_sent_again_is_not_recognised(append: Any) -> Any:
    def forgetful(self: MemoryStore, asked: Any) -> AppendResult:
        result = append(self, asked)
        return AppendResult(Outcome.CONFLICT, result.head) if result.outcome is Outcome.DUPLICATE else result

    return forgetful


@mutant(simulation.Simulation, "append_arrives", "only_holder_never_conflicts", (E, 1, "lost"))
def an_append_is_sent_again_under_new_ids(arrives: Any) -> Any:
    def renamed(self: simulation.Simulation, sent: simulation.Sent) -> AppendResult:
        if not sent.results:
            return arrives(self, sent)
        new_id = self.store._sources.new_id
        events = tuple(structs.replace(event, id=new_id()) for event in sent.append.events)
        previous, hashes = sent.append.expected_hash, []
        for seq, event in enumerate(events, sent.append.expected + 1):
            previous = chain(previous, seq, event)
            hashes.append(previous)
        again = structs.replace(sent.append, events=events, hashes=tuple(hashes))
        sent.results.append(result := self.store.append(again))
        return result

    return renamed


@mutant(MemoryStore, "_append", "only_holder_never_conflicts", (E, 1, "jump"))
def the_fence_is_ignored(append: Any) -> Any:
    def open_door(self: MemoryStore, asked: Any) -> AppendResult:
        return append(self, structs.replace(asked, fence=self._threads[asked.thread].fence))

    return open_door


@mutant(MemoryStore, "_append", "chain_verifies", (E, 1, "twin"))
def the_expected_head_is_ignored(append: Any) -> Any:
    def anywhere(self: MemoryStore, asked: Any) -> AppendResult:
        row = self._threads[asked.thread]
        return append(self, structs.replace(asked, expected=len(row.events), expected_hash=row.head_hash))

    return anywhere


@mutant(MemoryStore, "_append", "acknowledged_is_there", (E, 0, ""))
def an_acknowledged_append_is_lost(append: Any) -> Any:
    def lossy(self: MemoryStore, asked: Any) -> AppendResult:
        if any(event.kind == "step_recorded" for event in asked.events):
            return AppendResult(Outcome.APPENDED, asked.expected + len(asked.events))
        return append(self, asked)

    return lossy


@mutant(MemoryStore, "_append", "appends_are_atomic", (E, 0, ""))
def an_append_is_torn(append: Any) -> Any:
    def torn(self: MemoryStore, asked: Any) -> AppendResult:
        if len(asked.events) > 2 and asked.expected:
            asked = structs.replace(asked, events=asked.events[:1], hashes=asked.hashes[:1])
        return append(self, asked)

    return torn


@mutant(opening, "interpret", "engine_raises_nothing", (S, 1, "crash"))
def a_recorded_reply_is_fed_when_its_path_asks(interpret: Any) -> Any:
    def by_path(program: Any, thread: Any, run: Any, *, accept: Any = None) -> Any:
        bodies = list(thread.bodies)
        outcomes = [
            i for i, body in enumerate(bodies) if type(body).__name__ in ("ToolReturned", "StepRecorded")
        ]
        ordered = sorted((bodies[i] for i in outcomes), key=lambda body: body.call)
        for place, body in zip(outcomes, ordered, strict=True):
            bodies[place] = body
        return interpret(program, structs.replace(thread, bodies=bodies), run, accept=accept)

    return by_path


# Transactions


@mutant(simulated_transaction, "see_through", "only_holder_never_conflicts", (B, 1, "lost zombie"))
def a_commit_without_an_answer_counts_as_rolled_back(see_through: Any) -> Any:
    def pessimist(store: Any, sources: Any, work: Any, **times: Any) -> Any:
        try:
            return work_once(store, work, [])
        except StoreUnavailable as lost:
            raise RuntimeError("rolled back") from lost

    return pessimist


@mutant(simulated_transaction, "see_through", "only_holder_never_conflicts", (B, 1, "lost zombie"))
def a_transaction_is_run_again_without_asking_the_log(see_through: Any) -> Any:
    def blind(store: Any, sources: Any, work: Any, **times: Any) -> Any:
        while True:
            try:
                return work_once(store, work, [])
            except StoreUnavailable:
                pass

    return blind


def work_once(store: Any, work: Any, made: list[Any]) -> Any:
    def once(connection: Any) -> Any:
        made.append(work(connection))
        return made[-1]

    result = store.transact(once, limit_s=60.0)
    return made[-1], result


@mutant(simulated_transaction, "see_through", "only_holder_never_conflicts", (B, 1, "drop"))
def a_transaction_without_an_answer_counts_as_committed(see_through: Any) -> Any:
    def optimist(store: Any, sources: Any, work: Any, **times: Any) -> Any:
        made: list[Any] = []
        try:
            return work_once(store, work, made)
        except StoreUnavailable:
            return made[-1], AppendResult(Outcome.APPENDED, made[-1].expected + 1)

    return optimist


@mutant(simulation.Simulation, "commit", "transactions_act_exactly_once", (B, 0, ""))
def what_a_transaction_wrote_is_lost_beside_its_event(commit: Any) -> Any:
    return lambda self, deed, rows: commit(self, deed, [])


# The inbox


@mutant(MemoryStore, "_append", "messages_are_taken_once", (W, 1, "crash early"))
def what_is_taken_stays_in_the_inbox(append: Any) -> Any:
    return lambda self, asked: append(self, structs.replace(asked, consumed=()))


@mutant(MemoryStore, "release", "nothing_is_left_behind", (E, 1, "early"))
def a_lease_is_given_back_whatever_waits(release: Any) -> Any:
    return lambda self, thread, *, fence, seen: release(self, thread, fence=fence, seen=1 << 60)


@mutant(Session, "deliver", "nothing_is_left_behind", (E, 2, "early late"))
def a_message_counts_as_seen_when_it_is_read(deliver: Any) -> Any:
    def hasty(self: Session, messages: Any) -> None:
        self.mail.remember(messages)
        if self.end is None and self.error is None and self._stepper.halted is None:
            self._match_messages()
            self._go_on()

    return hasty


@mutant(simulated_worker, "begin_run", "inputs_become_runs_once", (N, 0, ""))
def an_input_stays_in_the_inbox_when_its_run_begins(begin_run: Any) -> Any:
    return lambda *args, **kwargs: begin_run(*args, **{**kwargs, "taken": None})


@mutant(opening, "_superseded", "calls_are_paired", (N, 1, "supersede"))
def nothing_is_said_of_the_open_calls_of_a_superseded_run(superseded: Any) -> Any:
    return lambda run, at: superseded(run, at)[-1:]


@mutant(simulated_effects, "unrecorded_resolution", "unsafe_tools_act_once", (N, 2, "rival raises"))
def a_deposed_worker_says_that_what_raised_did_not_happen(unrecorded: Any) -> Any:
    def rash(body: Any) -> Any:
        if isinstance(body, ToolFailed):
            return Resolution(body.call, body.attempt, "did_not_happen", by="worker")
        return unrecorded(body)

    return rash


@mutant(session, "has_news", "resuming_without_news_writes_nothing", (E, 1, "slow"))
def who_only_looks_writes_all_the_same(has_news: Any) -> Any:
    return lambda *args, **kwargs: True


@mutant(matching, "_rests", "engine_raises_nothing every_run_ends", (E, 1, "crash"))
def a_run_rests_though_its_log_does_not_say_so(rests: Any) -> Any:
    return lambda interpreter, holds: True


# Files


@mutant(export, "read_events", "export_round_trips", (E, 1, "late crash lost drop"))
def the_newest_event_is_left_out_of_a_file(read_events: Any) -> Any:
    return lambda *asked, **span: list(read_events(*asked, **span))[:-1]


@mutant(export._Taking, "take", "export_round_trips", (E, 1, "late crash lost drop"))
def a_log_that_has_parted_is_imported_all_the_same(take: Any) -> Any:
    def anyway(self: Any, *, adopt: bool) -> Any:
        try:
            return take(self, adopt=adopt)
        except ThreadsDiffer:
            return export.Imported(self._thread, self._filed.header.head, 0, True)

    return anyway


@mutant(Pairing, "_of_run", "log_verifies", (E, 1, "crash"))
def a_call_that_is_run_again_after_a_crash_is_a_fault_of_the_log(of_run: Any) -> Any:
    def one_tenure(self: Pairing, body: Any, run: str) -> Any:
        found = of_run(self, body, run)
        self.tenures = 1
        return found

    return one_tenure


# Leases, time, ends


@mutant(simulated_effects.Effects, "_still_ours", "no_effect_before_its_start", (E, 1, "freeze"))
def the_lease_is_not_checked_before_a_call(still_ours: Any) -> Any:
    return lambda self: True


@mutant(Session, "__init__", "time_is_kept", (W, 0, ""))
def timers_strike_when_nothing_else_goes_on(init: Any) -> Any:
    def deaf(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        wake_at = self.alarms.wake_at
        self.alarms.wake_at = lambda at_us: wake_at(at_us) if self._gate.idle else None

    return deaf


@mutant(Session, "failed", "every_run_ends", (E, 1, "rival"))
def a_lost_lease_is_no_reason_to_stop(failed: Any) -> Any:
    return lambda self, error: []


@mutant(Gate, "forget", "every_run_ends", (D, {"w1.outcome 1.4.1": "crash", "w2.append.answer": "early"}))
def a_reconciler_is_waited_for_though_a_person_has_answered(forget: Any) -> Any:
    return lambda self, call: None


@mutant(Outbox, "empty", "engine_raises_nothing", (E, 1, "drop late"))
def an_end_is_shown_before_it_is_durable(empty: Any) -> Any:
    return property(lambda self: not self._waiting)


@mutant(Session, "_keep_deadline", "every_run_ends engine_raises_nothing", (H, 0, ""))
def a_run_goes_on_though_its_time_is_over(keep: Any) -> Any:
    return lambda self: False


@mutant(Alarms, "overdue", "deadlines_are_kept", (H, 1, "ahead"))
def a_deadline_is_judged_by_the_clock_of_the_worker(overdue: Any) -> Any:
    return lambda self: self.deadline_us is not None and self.deadline_us <= self._host.wall_us()


@mutant(Session, "_may_begin", "deadlines_are_kept", (H, 1, "crash"))
def calls_begin_though_the_run_is_being_ended(may_begin: Any) -> Any:
    return lambda self: (self._stopping, self._stepper.halted) == (None, None)


@mutant(
    Session, "_may_begin", "deadlines_are_kept", (H, {"w1.tool 1.2.1": "refuses", "w1.append#7": "ghost"})
)
def calls_begin_though_the_time_is_over(may_begin: Any) -> Any:
    return lambda self: not self.leaving()


@mutant(Gate, "roll_back", "deadlines_are_kept", (U, 0, ""))
def a_transaction_is_waited_for_though_its_grace_is_over(roll_back: Any) -> Any:
    return lambda self: None
