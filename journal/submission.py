"""An append on its way, and which of those that wait can go out together."""

from __future__ import annotations

from collections.abc import Callable

from .store import Append, AppendResult

GROUP_MAX = 256
GROUP_BYTES_MAX = 32 * 1024 * 1024

Settle = Callable[[AppendResult | BaseException, float], None]
"""Told the fate of an append, and the monotonic time just before the call that brought it was sent."""


class Submission:
    """An append, who is told its fate, and when it may be sent and must be given up."""

    __slots__ = ("alone", "append", "bytes", "due_s", "failures", "give_up_s", "settle")

    def __init__(self, append: Append, settle: Settle, give_up_s: float) -> None:
        self.append = append
        self.settle = settle
        self.give_up_s = give_up_s
        self.bytes = sum([len(event.body) for event in append.events])
        self.due_s = 0.0
        self.alone = False
        self.failures = 0


def take_group(queue: list[Submission], now_s: float) -> list[Submission]:
    """
    Take out of *queue* what can go out in one call: one append of a thread, the oldest first.

    What found its thread's row locked goes by itself.
    """
    if len(queue) == 1 and queue[0].due_s <= now_s:
        return [queue.pop()]
    group: list[Submission] = []
    left: list[Submission] = []
    threads: set[str] = set()
    size = 0
    full = False
    for each in queue:
        full = full or (bool(group) and size + each.bytes > GROUP_BYTES_MAX)
        if full or each.due_s > now_s or each.append.thread in threads:
            left.append(each)
            continue
        group.append(each)
        threads.add(each.append.thread)
        size += each.bytes
        full = each.alone or len(group) == GROUP_MAX
    queue[:] = left
    return group
