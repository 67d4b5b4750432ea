"""Scrubbing: periodically rereads all data at a limited rate to detect corruption and tampering.

A pass does the checks of ``cordwood verify``, one topic at a time, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cordwood.broker import Node
from cordwood.config import BrokerConfig
from cordwood.errors import CordwoodError, LogClosed
from cordwood.host import Host
from cordwood.server.maintenance.periodic import Pacer
from cordwood.server.threads import Workers
from cordwood.telemetry import SCRUB_FINDINGS, SCRUBBED_BYTES

if TYPE_CHECKING:
    from cordwood.verify import VerifyProgress, VerifyReport

#: The delay of the first pass after the start of the server.
FIRST_SECONDS = 600.0
_LOGGER = logging.getLogger("cordwood.scrubbing")


class Scrubber:
    """Schedules scrubbing. On the loop; *workers*, of one thread, do the work."""

    def __init__(
        self,
        node: Node,
        config: BrokerConfig,
        host: Host,
        loop: asyncio.AbstractEventLoop,
        workers: Workers,
    ) -> None:
        self._node = node
        self._clock = host.clock
        self._loop = loop
        self._workers = workers
        self._every_seconds = config.scrub_interval_ms / 1000
        self._bytes_per_second = config.scrub_bytes_per_second
        self._closing = host.new_event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Schedule passes periodically, unless scrubbing is disabled."""
        if self._bytes_per_second:
            self._timer = self._loop.call_later(min(FIRST_SECONDS, self._every_seconds), self._scrub)

    def close(self) -> None:
        """Start no new pass and abort the current one."""
        self._closing.set()
        if self._timer is not None:
            self._timer.cancel()

    def join(self) -> None:
        """Wait until no pass is running. Not on the loop."""
        self._workers.close()

    def _scrub(self) -> None:
        self._workers.run_for(self._pass, self._passed)

    def _pass(self) -> None:
        """Scrub every topic."""
        pacer = Pacer(self._bytes_per_second, self._closing, self._clock)
        for topic in self._node.topics_with_files():
            try:
                self._note(topic, self._verify(topic, Paced(pacer)))
            except LogClosed:
                raise
            except (CordwoodError, OSError) as error:
                # The topic was deleted or cannot be read now; continue with the others.
                _LOGGER.warning("topic %s could not be scrubbed: %s", topic, error)

    def _verify(self, topic: str, progress: VerifyProgress) -> VerifyReport:
        """Verify a topic from its files alone."""
        # Imported here: the first pass comes minutes after the start, which is sooner without.
        from cordwood.verify import verify_directory

        directory = self._node.directory
        directory.lifecycle.check_open()
        return verify_directory(directory.files, directory.path, topic, progress)

    def _note(self, topic: str, report: VerifyReport) -> None:
        telemetry = self._node.directory.context.telemetry
        telemetry.add(SCRUBBED_BYTES, report.bytes)
        found = [finding for finding in report.findings if finding.severity != "note"]
        for finding in found:
            _LOGGER.warning("scrubbing topic %s: %s", topic, finding)
        telemetry.add(SCRUB_FINDINGS, len(found))

    def _passed(self, result: Exception | None) -> None:
        if self._closing.is_set():
            return
        if result is not None:
            _LOGGER.warning("scrubbing ended early: %s", result)
        self._timer = self._loop.call_later(self._every_seconds, self._scrub)


class Paced:
    """A progress callback that limits the rate by the bytes read in each file."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._path = ""
        self._position = 0

    def __call__(self, path: str, position: int) -> None:
        """Rest before the next read. Raises like the pacer."""
        came = position - self._position if path == self._path else 0
        self._path, self._position = path, position
        self._pacer(max(came, 0))
