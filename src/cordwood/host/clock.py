"""Time as an argument: the engine gets a clock and never asks the system for the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The time functions that the engine needs."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch. May step back when the wall clock is set."""
        ...

    def now_us(self) -> int:
        """Return the same in microseconds, for records in a topic that stores them."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some fixed point. Never steps back; for durations and time-outs."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def now_us(self) -> int:
        """Return microseconds since the Unix epoch."""
        return time.time_ns() // 1_000

    def monotonic_ns(self) -> int:
        """Return nanoseconds of the monotonic clock."""
        return time.monotonic_ns()


def awake_and_asleep_ms(clock: Clock) -> int:
    """Return milliseconds since some fixed point, which also pass while the machine sleeps.

    For promises to other machines. A clock that is not the machine's own knows no sleep.
    """
    if isinstance(clock, SystemClock) and hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return clock.monotonic_ns() // 1_000_000
