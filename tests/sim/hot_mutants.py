"""Mutants of hot state: what comes from a cache is believed, or missed, when it must not be."""

from __future__ import annotations

from typing import Any

from refold.journal import hot_state
from refold.journal.errors import Corrupt, RefoldError
from refold.journal.link import Link
from refold.replay import rebuild, simulated_worker
from sim.mutant import mutant
from sim.scenarios import ERRAND as E


@mutant(rebuild, "chain", "log_is_that_without_redis", (E, 1, "restored"))
def the_chain_is_not_checked_when_a_log_is_read(chain: Any) -> Any:
    return lambda previous, seq, event: event.hash


@mutant(
    simulated_worker,
    "fold_history",
    "log_is_that_without_redis engine_raises_nothing",
    (E, {"w1.append#5": "crash", "w2.fetch": "newer"}),
)
def hot_state_is_believed_whatever_the_heads_hash_is(fold_history: Any) -> Any:
    def credulous(read: Any, hot: Any, thread: str, head: int, head_hash: bytes, fold: Any) -> Any:
        known = {} if hot is None else hot.recall(thread, head)
        try:
            return fold(list(hot_state._patched(read, thread, head, known)))
        except RefoldError:
            return fold_history(read, None, thread, head, head_hash, fold)

    return credulous


@mutant(simulated_worker, "fold_history", "engine_raises_nothing", (E, 1, "restored"))
def the_log_is_not_asked_when_hot_state_does_not_fit_it(fold_history: Any) -> Any:
    def stubborn(read: Any, hot: Any, thread: str, head: int, head_hash: bytes, fold: Any) -> Any:
        known = {} if hot is None else hot.recall(thread, head)
        return fold(list(hot_state._patched(read, thread, head, known)))

    return stubborn


@mutant(hot_state, "decode", "engine_raises_nothing", (E, 1, "garbage"))
def a_damaged_chunk_is_an_error(decode: Any) -> Any:
    def strict(value: bytes | None, identity: str, thread: str, number: int) -> Any:
        events = decode(value, identity, thread, number)
        if value is not None and events is None:
            raise Corrupt(thread, number, "not a chunk")
        return events

    return strict


@mutant(Link, "_try", "engine_raises_nothing", (E, 1, "away"))
def a_cache_that_is_away_is_an_error(attempt: Any) -> Any:
    return lambda self, call, otherwise: call()
