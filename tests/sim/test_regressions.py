"""Histories that once broke a promise: scenario, faults, and what went wrong then."""

from __future__ import annotations

import pytest
from msgspec import structs
from refold.replay.odometer import Placed
from sim import scenarios
from sim.explore import Found, play, screen

HISTORIES = [
    # A worker that died inside the only open call left a doubt the log did not tell; whoever came next wrote
    # nothing, and the run was neither running nor parked.
    ("ERRAND", {"w1.outcome 5": "crash"}),
    # The same for a wait: durable, but the release after it was not.
    ("ERRAND", {"w1.append#8": "rival"}),
    # Interrupted while it slept: every later resume called the run released and left.
    ("ERRAND", {"w1.append#3": "interrupt"}),
    # Robbed in the middle of a call that only a person can settle: the hold was over, and the alarm for it
    # was set again and again.
    ("ERRAND", {"w1.append#3": "crash"}),
    # A message read just before the session ended was counted as seen and never looked at.
    ("ERRAND", {"w1.append#8": "early", "w1.leave": "late"}),
    # Timers and time-outs struck only when nothing else was going on.
    ("WAITS", {}),
    # While a model was asked again, the time at which it was to be asked again went on being alarmed for.
    ("ERRAND", {"w1.model 1": "fails"}),
    # A person's answer came while the reconciler was being asked, whose answer was waited for ever after.
    ("DOUBTS", {"w1.outcome 1.4.1": "crash", "w2.append.answer": "early"}),
    # The clock of whoever took over was behind: the hold on a robbed worker's call was measured by event times,
    # which are never behind, and was over at once; both workers acted.
    ("DOUBTS", {"w1.tool 1.4.1": "rival", "w2.clock": "behind"}),
    # A transactional tool that was run again when nothing else was on its way acted before its start was durable,
    # and its result came before the start in the log: nobody could take the run up any more.
    ("BOOKS", {"w1.tool 1.1.1": "fails"}),
    # The worker that was robbed in its transaction cannot commit: whoever robbed it need not leave the call alone.
    ("BOOKS", {"w1.commit 1.1.1": "rival"}),
    # People had said all they know while the calls were still left alone; worker after worker came to look.
    ("BOOKS", {"w1.commit 1.1.1": "twin", "w3.append.answer#2": "twin"}),
    # A repeatable call that the next worker ran again was a fault of the log to whoever verified it.
    ("ERRAND", {"w1.append.answer#3": "crash"}),
    # What a worker had posted of a call was recorded of an attempt that had failed already and was to be made again.
    ("TURNS", {"w1.tool 2.2.1#2": "hangs early", "w1.append#9": "supersede"}),
    # Cut off and taken up after its deadline: a call that the log implied was started before the run was ended.
    ("HURRY", {"w1.tool 1.2.1": "refuses", "w1.append#7": "ghost"}),
    # The second transaction began before what the first had led to was written, and committed before it.
    ("LEDGERS", {}),
    # What became known of one call settled the doubt about another like it: the next run paid without asking.
    ("AGAIN", {"w1.tool 1.1.1": "raises", "w1.tool 1.2.1": "hangs"}),
    # The run was given up while a tool that only looks was running: a person was asked before it looked again.
    ("AGAIN", {"w1.append#6": "supersede"}),
    # Somebody said too soon that a call had not happened; that it had after all its worker could not say any more.
    ("BRINK", {"w1.tool 1": "rival", "w2.append.answer": "early"}),
    # Calls that were tried again took no free slot but one of their own: three tools ran where two may.
    ("DOUBTS", {"w1.append": "interrupt", "w2.append#2": "ghost"}),
    # Said not to have happened while a robbed worker was still at it: what that came to beside a transaction was lost.
    ("AGAIN", {"w1.append.answer#4": "rival", "w1.tool 1.2.1#2": "early"}),
]


@pytest.mark.parametrize("name, faults", HISTORIES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(HISTORIES)])
def test_a_history_that_once_broke_a_promise_keeps_them_all(name, faults):
    scenario = getattr(scenarios, name)
    chooser = Placed(faults)
    _, broken = play(structs.replace(scenario), chooser)

    assert not broken, screen(scenario, Found(name, list(faults.items()), broken))
    assert not chooser.unused, f"these places are no longer reached: {chooser.unused}"
