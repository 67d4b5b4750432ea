"""Counting appends where each of them is too cheap to take a lock for."""

from __future__ import annotations

from cordwood.telemetry import APPEND_SECONDS, APPENDED_BYTES, APPENDED_RECORDS, Telemetry

#: Appends are passed on to telemetry this many at a time, or when the log is closed.
REPORT_EVERY = 32


class AppendMeter:
    """Numbers of appends not passed on to telemetry yet. One caller at a time: who holds the append lock."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._seconds: list[float] = []
        self._records = 0
        self._bytes = 0

    def note(self, records: int, size: int, nanoseconds: int) -> None:
        """Count an append of *size* bytes."""
        self._seconds.append(nanoseconds / 1e9)
        self._records += records
        self._bytes += size
        if len(self._seconds) >= REPORT_EVERY:
            self.report()
            self.check_invariants()

    def check_invariants(self) -> None:
        """Check that everything counted was passed on.

        Raises:
            AssertionError: If it was not: a fault of this code.
        """
        assert not self._seconds, "appends were not passed on"
        assert self._records == self._bytes == 0, "records or bytes were not passed on"

    def report(self) -> None:
        """Pass on what was counted."""
        seconds, self._seconds = self._seconds, []
        self._telemetry.observe_all(APPEND_SECONDS, seconds)
        self._telemetry.add(APPENDED_RECORDS, self._records)
        self._telemetry.add(APPENDED_BYTES, self._bytes)
        self._records = self._bytes = 0
