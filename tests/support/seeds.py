"""The seeds of random tests: fixed by default, or all of them from `CORDWOOD_SEED`.

A run without `CORDWOOD_SEED` is the same run every time. `CORDWOOD_SEED=N` gives every random test, and
Hypothesis, the seed N; `CORDWOOD_SEED=random` chooses one. The head of a run names the seed, and each random
test prints the seeds that it used, so that a failure can be run again.
"""

from __future__ import annotations

import os
import random

VARIABLE = "CORDWOOD_SEED"
#: The seed of Hypothesis in a run without `CORDWOOD_SEED`.
USUAL = 20_261_118


def _given() -> int | None:
    text = os.environ.get(VARIABLE)
    if text is None or text == "":
        return None
    if text == "random":
        # Written back, so that the worker processes of this run get the same seed.
        text = os.environ[VARIABLE] = str(random.randrange(1 << 32))
    try:
        return int(text)
    except ValueError:
        raise SystemExit(f"{VARIABLE} must be a whole number or random, not {text!r}") from None


#: The seed that `CORDWOOD_SEED` names, None if it is not set.
GIVEN = _given()


def seed_or(usual: int) -> int:
    """Return the seed of this run for a test whose usual seed is *usual*."""
    return usual if GIVEN is None else GIVEN


def seeds_from(usual: int, count: int) -> range:
    """Return *count* seeds in a row for a test that usually begins at *usual*."""
    first = seed_or(usual)
    return range(first, first + count)
