"""How much of a sweep is run: an even sample of it, or all of it with `CORDWOOD_SWEEP_FULL=1`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence

FULL = os.environ.get("CORDWOOD_SWEEP_FULL") == "1"

#: No divisor of eight: every byte has one or two of its bits flipped, and each of the eight has its turn.
BIT_STEP = 5


def every(step: int) -> int:
    """Return *step*, or 1 if everything is to be tried."""
    return 1 if FULL else step


def bits_of(data: bytes, step: int = BIT_STEP) -> range:
    """Return the bits of *data* to flip, evenly over all of it."""
    return range(0, 8 * len(data), every(step))


def calls_to_fail(calls: Sequence[str], kinds: Iterable[str], step: int = 3) -> list[int]:
    """Return which of the calls of these kinds are to fail, counted from 1; the last is one after them all.

    Of each kind the first, and every *step*-th after it.
    """
    chosen, seen = [], Counter[str]()
    wanted = set(kinds)
    matching = [kind for kind in calls if kind in wanted]
    for number, kind in enumerate(matching, 1):
        if seen[kind] % every(step) == 0:
            chosen.append(number)
        seen[kind] += 1
    return [*chosen, len(matching) + 1]
