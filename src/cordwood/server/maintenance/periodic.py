"""Retention and compaction in the background: one partition at a time, in a thread of their own.

The loop only schedules the work. After a jump of the wall clock, young records may look old, so nothing is
deleted for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from cordwood.broker import Node
from cordwood.config import BrokerConfig
from cordwood.errors import LogClosed
from cordwood.host import Clock, Host, WaitEvent
from cordwood.server.threads import Workers
from cordwood.storage.maintenance import MaintenanceReport, NeededFrom
from cordwood.telemetry import DELETES_FROZEN

#: After each step the thread rests as long as the step took, and at most this long: requests get half of
#: the core.
_REST_SECONDS_MAX = 0.05
_LOGGER = logging.getLogger("cordwood.maintenance")


class ClockWatch:
    """Compares the wall clock with the monotonic clock. Used by one thread."""

    def __init__(self, clock: Clock, jump_ms: int, freeze_ms: int) -> None:
        self._clock = clock
        self._jump_ms = jump_ms
        self._freeze_ms = freeze_ms
        self._apart_ms = self._apart()
        self._frozen_until_ms: int | None = None

    def _apart(self) -> int:
        return self._clock.now_ms() - self._clock.monotonic_ns() // 1_000_000

    def is_frozen(self) -> bool:
        """Return whether the wall clock has jumped within the freeze time, by the monotonic clock."""
        apart, steady_ms = self._apart(), self._clock.monotonic_ns() // 1_000_000
        if abs(apart - self._apart_ms) > self._jump_ms:
            jumped = apart - self._apart_ms
            _LOGGER.warning("the wall clock jumped by %d ms; nothing is deleted for a while", jumped)
            self._frozen_until_ms = steady_ms + self._freeze_ms
        self._apart_ms = apart
        if self._frozen_until_ms is not None and steady_ms >= self._frozen_until_ms:
            self._frozen_until_ms = None
        return self._frozen_until_ms is not None


class Pacer:
    """Limits the rate of maintenance and leaves time for requests. Used by the maintenance thread."""

    def __init__(self, bytes_per_second: int, closing: WaitEvent, clock: Clock) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._closing = closing
        self._clock = clock
        self._since_ns = clock.monotonic_ns()

    def reconfigure(self, bytes_per_second: int) -> None:
        """Change the rate. May be called from any thread."""
        self._seconds_per_byte = 1 / bytes_per_second

    def __call__(self, size: int) -> None:
        """Rest after *size* bytes.

        Raises:
            LogClosed: If the server closes. Unfinished work is dropped.
        """
        worked = (self._clock.monotonic_ns() - self._since_ns) / 1e9
        rest = max(min(worked, _REST_SECONDS_MAX), size * self._seconds_per_byte - worked)
        if self._closing.wait(rest):
            raise LogClosed("the server closes")
        self._since_ns = self._clock.monotonic_ns()


class PeriodicMaintenance:
    """Schedules the maintenance of partitions. On the loop; *workers*, of one thread, do the work."""

    def __init__(
        self,
        node: Node,
        config: BrokerConfig,
        host: Host,
        loop: asyncio.AbstractEventLoop,
        workers: Workers,
        needed_from: NeededFrom,
    ) -> None:
        self._node = node
        self._config = config
        self._clock = host.clock
        self._loop = loop
        self._workers = workers
        self._needed_from = needed_from
        self._watch = ClockWatch(host.clock, config.clock_jump_ms, config.clock_freeze_ms)
        self._closing = host.new_event()
        self._pacer = Pacer(config.cleaner_bytes_per_second, self._closing, host.clock)
        self._frozen = False
        self._waiting: deque[tuple[str, int]] = deque()
        self._retention_due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply *config*."""
        self._config = config
        self._pacer.reconfigure(config.cleaner_bytes_per_second)
        if self._timer is not None and not self._timer.cancelled() and self._timer.when() > self._loop.time():
            # The timer was set for the old interval.
            self._timer.cancel()
            self.start()

    def start(self) -> None:
        """Look for due work soon, and then periodically."""
        every_ms = min(self._config.retention_check_interval_ms, self._config.cleaner_backoff_ms)
        self._timer = self._loop.call_later(every_ms / 1000, self._look)

    def close(self) -> None:
        """Start no new work and abort the current work."""
        self._closing.set()
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether work is due or running: otherwise the timer is set to a later time."""
        return self._timer is not None and self._timer.when() <= self._loop.time()

    def join(self) -> None:
        """Wait until no work is running. Not on the loop."""
        self._workers.close()

    def _look(self) -> None:
        """Find the partitions that are due, and start with the first."""
        frozen = self._watch.is_frozen()
        if frozen != self._frozen:
            self._node.directory.context.telemetry.add(DELETES_FROZEN, 1 if frozen else -1)
            self._frozen = frozen
        if frozen:
            self.start()
            return
        now_ns = self._clock.monotonic_ns()
        retention = now_ns >= self._retention_due_ns
        if retention:
            self._retention_due_ns = now_ns + self._config.retention_check_interval_ms * 1_000_000
        compaction = self._config.cleaner_enable
        # There may be very many topics, so the search does not run on the loop.
        self._workers.run_for(
            lambda: self._node.to_maintain(retention=retention, compaction=compaction), self._found
        )

    def _found(self, result: list[tuple[str, int]] | Exception) -> None:
        if isinstance(result, Exception):
            _LOGGER.warning("topics that need maintenance could not be determined: %s", result)
        else:
            self._waiting.extend(result)
        self._next()

    def _next(self) -> None:
        """Maintain the next due partition, or schedule the next search."""
        if self._closing.is_set():
            return
        if not self._waiting:
            self.start()
            return
        topic, partition = self._waiting.popleft()
        needed_from = self._needed_from(topic, partition)
        self._workers.run_for(
            lambda: self._node.maintain(topic, partition, needed_from=needed_from, pace=self._pacer),
            self._done,
        )

    def _done(self, result: MaintenanceReport | Exception) -> None:
        if isinstance(result, Exception):
            if not self._closing.is_set():
                _LOGGER.warning("a partition could not be maintained: %s", result)
        else:
            for sentence in result.failures:
                _LOGGER.warning("%s", sentence)
            for expired in result.expired:
                where = f"partition {expired.partition} of topic {expired.topic}"
                for segment in expired.segments:
                    end, reason = segment.next_offset, segment.reason
                    _LOGGER.info("deleted offsets up to %d of %s: %s", end, where, reason)
        self._next()
