"""How long tests wait: limits in seconds of a quiet machine, which last longer on a slow or busy one.

A limit ends a test that hangs. No test that works may come near one, whatever else the machine does: limits
are generous and scale with the speed of the machine. It is measured when this module is imported, and again
whenever a `Limit` would be passed. What a test runs with `subprocess.run` needs no limit of its own: that of
the test, see `support.timeouts`, ends the process with it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

#: Steps of the measured work, and the seconds they take on a quiet machine.
_STEPS = 200_000
_QUIET_WORK_SECONDS = 0.025
#: The seconds in which a quiet disk syncs a small file.
_QUIET_SYNC_SECONDS = 0.01
#: The factor by which a limit grows at most: a test that hangs must end on any machine.
SLOWDOWN_MAX = 30.0
#: The seconds that a wait for one event is given on a quiet machine; nothing takes a tenth of it there.
QUIET_SECONDS_MAX = 60.0


def slowdown() -> float:
    """Measure how many times slower this machine is than a quiet one now, from 1 to `SLOWDOWN_MAX`.

    Other processes count as much as a slow processor or disk does. Takes a few hundredths of a second on a
    quiet machine. Any thread and any signal handler may call it.
    """
    started = time.perf_counter()
    state = 1
    for _ in range(_STEPS):
        state = (state * 1_103_515_245 + 12_345) & 0xFFFFFFFF
    worked = time.perf_counter()
    with tempfile.TemporaryFile() as file:
        file.write(state.to_bytes(4, "big"))
        file.flush()
        os.fsync(file.fileno())
    synced = time.perf_counter()
    found = max((worked - started) / _QUIET_WORK_SECONDS, (synced - worked) / _QUIET_SYNC_SECONDS)
    return min(max(found, 1.0), SLOWDOWN_MAX)


#: The speed of the machine when the tests began.
SLOWDOWN = slowdown()
#: The seconds that a call waits at most which takes a plain number. It cannot grow when the load does, so it
#: is twice as long from the beginning.
SECONDS_MAX = 2 * QUIET_SECONDS_MAX * SLOWDOWN


class Limit:
    """A limit of *seconds* on a quiet machine, from now on."""

    def __init__(self, seconds: float = QUIET_SECONDS_MAX) -> None:
        self._seconds = seconds
        self._slowdown = 1.0
        self._started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """The seconds since it began, of this machine."""
        return time.monotonic() - self._started

    def left(self) -> float:
        """Return the seconds that are left, 0.0 once it is passed.

        Measures the machine before it says so. The slowest that it was found to be counts for the whole time.
        """
        left = self._seconds * self._slowdown - self.elapsed
        if left <= 0:
            self._slowdown = max(self._slowdown, slowdown())
            left = self._seconds * self._slowdown - self.elapsed
        return max(left, 0.0)

    def passed(self) -> bool:
        """Return whether it is passed."""
        return self.left() == 0

    def __str__(self) -> str:
        return f"{self._seconds:g} s on a machine {self._slowdown:.1f} times slower than a quiet one"


def until(
    done: Callable[[], object], what: str, seconds: float = QUIET_SECONDS_MAX, pause: float = 0.005
) -> float:
    """Return the seconds it took until *done*; fail with *what* if it is not within the limit."""
    limit = Limit(seconds)
    while not done():
        assert not limit.passed(), f"{what}: not within {limit}"
        time.sleep(pause)
    return limit.elapsed


def in_time(taken: float, seconds: float) -> bool:
    """Return whether *taken* seconds of this machine are at most *seconds* of a quiet one."""
    return taken <= seconds or taken <= seconds * max(SLOWDOWN, slowdown())
