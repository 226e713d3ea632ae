"""How often Python looks for garbage while histories are played by the thousand."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 20_000
"""A hundred histories leave so many behind: memory stays flat, and looking for them costs next to nothing."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """
    Look for garbage only now and then, and never among what is there already; afterwards as before.

    A history that is over leaves little to be found, and all that is imported would be gone through for it
    again and again: a quarter of the time.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    if before[0]:
        gc.set_threshold(max(before[0], _OBJECTS), *before[1:])
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()
