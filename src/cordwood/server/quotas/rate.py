"""A rate limit: who exceeds it waits."""

from __future__ import annotations

import math

from cordwood.host import Clock

_THROTTLE_MS_MAX = 2**31 - 1


class Rate:
    """A limit of what may be used in a second, such as bytes. On the loop only.

    What is not used accumulates for one second at most, which limits a burst. What is used beyond the limit
    is a debt; a client waits as long as the rate needs to repay it.
    """

    def __init__(self, per_second: float, clock: Clock, debt_seconds_max: float = math.inf) -> None:
        """Begin without a debt. What would take more than *debt_seconds_max* to repay is forgiven."""
        self.per_second = per_second
        self._debt_seconds_max = debt_seconds_max
        self._clock = clock
        self._left = float(per_second)
        self._since_ns = clock.monotonic_ns()

    def reconfigure(self, per_second: float) -> None:
        """Change the rate. An existing debt remains."""
        self._refill()
        self.per_second = per_second
        self._left = min(self._left, float(per_second))

    def _refill(self) -> None:
        now_ns = self._clock.monotonic_ns()
        gained = (now_ns - self._since_ns) / 1e9 * self.per_second
        self._left = min(self._left + gained, float(self.per_second))
        self._since_ns = now_ns

    def use(self, size: int) -> int:
        """Count *size*; return the milliseconds to wait."""
        self._refill()
        self._left = max(self._left - size, -self._debt_seconds_max * self.per_second)
        return self._wait_ms()

    def owed_ms(self) -> int:
        """Return the milliseconds until the debt is repaid."""
        self._refill()
        return self._wait_ms()

    def is_unused(self) -> bool:
        """Return whether a new rate would be the same: there is no debt, and nothing more accumulates."""
        self._refill()
        return self._left >= self.per_second

    def _wait_ms(self) -> int:
        # Rounded up: a client must not return before the debt is repaid.
        owed_ms = -(self._left * 1000 // self.per_second)
        return int(min(max(owed_ms, 0), _THROTTLE_MS_MAX))
