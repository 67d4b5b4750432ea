"""Request metrics, batched so that a request takes no lock."""

from __future__ import annotations

from collections.abc import Iterable

from cordwood.broker import Placed
from cordwood.host import Clock
from cordwood.telemetry import (
    BATCHES_REFUSED,
    BYTES_IN,
    BYTES_OUT,
    FETCH_SECONDS,
    MESSAGES_PRODUCED,
    PRODUCE_SECONDS,
    Telemetry,
)

#: The number of requests that are reported to telemetry at a time.
REPORT_EVERY = 64


class RequestMeter:
    """Counts of requests that are not reported to telemetry yet. On the loop only."""

    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._produce_seconds: list[float] = []
        self._fetch_seconds: list[float] = []
        self._records = self._bytes_in = self._refused = self._bytes_out = 0

    def now_ns(self) -> int:
        """Return the current time, for the ``started_ns`` of the other methods."""
        return self._clock.monotonic_ns()

    def produced(self, started_ns: int, outcomes: Iterable[tuple[int, Placed | Exception]]) -> None:
        """Count a produce request: the size and the outcome of each batch."""
        for size, outcome in outcomes:
            if isinstance(outcome, Placed):
                self._records += outcome.next_offset - outcome.base_offset
                self._bytes_in += size
            else:
                self._refused += 1
        self._produce_seconds.append((self._clock.monotonic_ns() - started_ns) / 1e9)
        if len(self._produce_seconds) >= REPORT_EVERY:
            self.report()

    def read(self, started_ns: int) -> None:
        """Count a read for a fetch request."""
        self._fetch_seconds.append((self._clock.monotonic_ns() - started_ns) / 1e9)
        if len(self._fetch_seconds) >= REPORT_EVERY:
            self.report()

    def fetched(self, size: int) -> None:
        """Count *size* bytes of batches that a fetch request returned."""
        self._bytes_out += size

    def report(self) -> None:
        """Report the counts to telemetry."""
        telemetry = self._telemetry
        produce_seconds, self._produce_seconds = self._produce_seconds, []
        fetch_seconds, self._fetch_seconds = self._fetch_seconds, []
        telemetry.observe_all(PRODUCE_SECONDS, produce_seconds)
        telemetry.observe_all(FETCH_SECONDS, fetch_seconds)
        telemetry.add(MESSAGES_PRODUCED, self._records)
        telemetry.add(BYTES_IN, self._bytes_in)
        telemetry.add(BATCHES_REFUSED, self._refused)
        telemetry.add(BYTES_OUT, self._bytes_out)
        self._records = self._bytes_in = self._refused = self._bytes_out = 0
