"""Warnings about clients that have not authenticated: strangers must not fill the log."""

from __future__ import annotations

import logging

from cordwood.host import Clock
from cordwood.server.log_lines import escaped

_WINDOW_NS = 1_000_000_000


class LimitedLog:
    """Logs at most *lines* warnings within a second; the next one says how many were left out.

    Characters of a client that would begin another line, or command a terminal, are escaped. On the loop.
    """

    def __init__(self, logger: logging.Logger, clock: Clock, lines: int) -> None:
        self._logger = logger
        self._clock = clock
        self._lines = lines
        self._began_ns: int | None = None
        self._logged = self._unlogged = 0

    def warn(self, sentence: str) -> None:
        """Log *sentence*, unless there were enough within this second."""
        now_ns = self._clock.monotonic_ns()
        if self._began_ns is None or now_ns - self._began_ns >= _WINDOW_NS:
            self._began_ns, self._logged = now_ns, 0
        if self._logged == self._lines:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last line)" if self._unlogged else ""
        self._logger.warning("%s%s", escaped(sentence), more)
        self._logged += 1
        self._unlogged = 0
