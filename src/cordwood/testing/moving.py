"""Time that can be moved: a clock and an event loop that run ahead of the machine's."""

from __future__ import annotations

import asyncio
import time

from cordwood.host import Host


class MovableClock:
    """The machine's clocks, ahead by the seconds that `advance` was given. Any thread may call it."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return (time.time_ns() + self.ahead_ns) // 1_000_000

    def now_us(self) -> int:
        """Return microseconds since the Unix epoch."""
        return (time.time_ns() + self.ahead_ns) // 1_000

    def monotonic_ns(self) -> int:
        """Return nanoseconds of the monotonic clock."""
        return time.monotonic_ns() + self.ahead_ns

    def advance(self, seconds: float) -> None:
        """Move the time forward."""
        self.ahead_ns += int(seconds * 1e9)


class _MovableEventLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop by a `MovableClock`: its timers are due when that clock says so."""

    def __init__(self, clock: MovableClock) -> None:
        super().__init__()
        self._movable_clock = clock

    def time(self) -> float:
        return self._movable_clock.monotonic_ns() / 1e9


def movable_host(clock: MovableClock) -> Host:
    """Return a host whose clock and event loops follow *clock*."""
    return Host(clock, new_event_loop=lambda: _MovableEventLoop(clock))
