"""Sees a transaction through that holds somebody's work and the event that records it: both or neither."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .errors import StoreUnavailable
from .sources import Sources
from .store import Append, AppendResult, Outcome, Store

Work = Callable[[Any], Append]
"""Does what is to be done on the connection it is given, and returns the append that records it."""

Check = Callable[[], None]
"""Raises if nothing is to be tried any more."""

_PAUSE_MAX_S = 1.0


def see_through(
    store: Store,
    sources: Sources,
    work: Work,
    *,
    hold_s: float,
    limit_s: float,
    check: Check,
    over: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Append, AppendResult]:
    """
    Run *work* in transactions until one commits with its append.

    The unit of retry is the transaction: after a COMMIT without an answer the log is asked whether it holds the
    event. If it does, the work is done; if not, nothing of it happened, and it is done again.

    Args:
        store: Where to.
        sources: Its monotonic clock bounds the retries.
        work: Does what is to be done on the connection it is given, and returns the append that records it.
        hold_s: How long to go on while the store is away, seconds.
        limit_s: How long a transaction may stand still, seconds.
        check: Called before each try, when nothing is in doubt: what it raises ends it.
        over: Whether the store is away for good.
        sleep: Pauses between tries.

    Raises:
        StoreUnavailable: The fate could not be learnt in time.
        Exception: What *work* or *check* raised; nothing of it happened.
    """
    built: Append | None = None

    def once(connection: Any) -> Append:
        nonlocal built
        built = work(connection)
        return built

    give_up_s = sources.monotonic_s() + hold_s
    pause_s = 0.0
    doubt = False
    while True:
        try:
            if doubt and built is not None:
                seq, event = built.expected + 1, built.events[0].id
                if store.recorded(built.thread, seq, event):
                    return built, AppendResult(Outcome.DUPLICATE, seq)
                doubt = False
            built = None
            check()
            result = store.transact(once, limit_s=limit_s)
        except StoreUnavailable as error:
            doubt = doubt or (error.ambiguous and built is not None)
            if over() or sources.monotonic_s() >= give_up_s:
                raise
            sleep(pause_s)
            pause_s = min(_PAUSE_MAX_S, max(0.05, pause_s * 2))
        else:
            assert built is not None
            return built, result
