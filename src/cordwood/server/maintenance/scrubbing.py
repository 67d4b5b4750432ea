"""Reading everything again now and then, slowly, to find what rots or was changed before somebody needs it.

A pass is what ``cordwood verify`` does, a topic at a time, at a limited rate, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging

from cordwood.broker import Node
from cordwood.config import BrokerConfig
from cordwood.errors import CordwoodError, LogClosed
from cordwood.host import Host
from cordwood.server.maintenance.periodic import Pacer
from cordwood.server.threads import Workers
from cordwood.telemetry import SCRUB_FINDINGS, SCRUBBED_BYTES
from cordwood.verify import VerifyProgress, VerifyReport, verify_directory

#: A server that was just started has better things to do.
FIRST_SECONDS = 600.0
_LOGGER = logging.getLogger("cordwood.scrubbing")


class Scrubber:
    """When topics are read again. On the loop; the work is done by *workers*, of one thread."""

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
        """Begin soon, and again and again, unless that is switched off."""
        if self._bytes_per_second:
            self._timer = self._loop.call_later(min(FIRST_SECONDS, self._every_seconds), self._scrub)

    def close(self) -> None:
        """Begin nothing new, and break off what is under way."""
        self._closing.set()
        if self._timer is not None:
            self._timer.cancel()

    def join(self) -> None:
        """Wait until nothing is under way. Not on the loop."""
        self._workers.close()

    def _scrub(self) -> None:
        self._workers.run_for(self._pass, self._passed)

    def _pass(self) -> None:
        """Read every topic there is."""
        pacer = Pacer(self._bytes_per_second, self._closing, self._clock)
        for topic in self._node.topics_with_files():
            try:
                self._note(topic, self._verify(topic, Paced(pacer)))
            except LogClosed:
                raise
            except (CordwoodError, OSError) as error:
                # Deleted meanwhile, or not to be looked at now; the others are.
                _LOGGER.warning("topic %s could not be scrubbed: %s", topic, error)

    def _verify(self, topic: str, progress: VerifyProgress) -> VerifyReport:
        """Check everything of a topic, from its files alone."""
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
    """Told where the reading is, takes its time by how far it came in each file."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._path = ""
        self._position = 0

    def __call__(self, path: str, position: int) -> None:
        """Rest before reading on. Raises as the pacer does."""
        came = position - self._position if path == self._path else 0
        self._path, self._position = path, position
        self._pacer(max(came, 0))
