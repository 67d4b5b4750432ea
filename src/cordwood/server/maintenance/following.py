"""Background updates of chains to the end of their logs, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging

from cordwood.broker import Node
from cordwood.errors import CordwoodError, LogClosed
from cordwood.host import Host
from cordwood.server.threads import Workers

#: The longest time that a chain is behind its log, without the time of the update itself.
FOLLOW_SECONDS = 0.25
REST_SECONDS_MAX = 0.05
_LOGGER = logging.getLogger("cordwood.following")


class ChainFollowing:
    """Schedules updates of chains. On the loop; *workers*, of one thread, do the work."""

    def __init__(self, node: Node, host: Host, loop: asyncio.AbstractEventLoop, workers: Workers) -> None:
        self._node = node
        self._clock = host.clock
        self._loop = loop
        self._workers = workers
        self._closing = host.new_event()
        #: Partitions whose chain could not be followed.
        self._unfollowed: set[tuple[str, int]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._since_ns = 0

    def start(self) -> None:
        """Update chains soon, and then periodically."""
        self._timer = self._loop.call_later(FOLLOW_SECONDS, self._follow)

    def close(self) -> None:
        """Start no new update and abort the current one. Closing the directory completes the chains."""
        self._closing.set()
        if self._timer is not None:
            self._timer.cancel()

    def join(self) -> None:
        """Wait until no update is running. Not on the loop."""
        self._workers.close()

    def _follow(self) -> None:
        if self._node.directory.chains.is_behind:
            self._workers.run_for(self._follow_changed, self._followed)
        else:
            self.start()

    def _follow_changed(self) -> dict[tuple[str, int], CordwoodError]:
        self._since_ns = self._clock.monotonic_ns()
        return self._node.follow_changed(self._rest)

    def _rest(self, size: int) -> None:
        """Rest as long as the last step took, so that requests get half of the core."""
        worked = (self._clock.monotonic_ns() - self._since_ns) / 1e9
        if self._closing.wait(min(worked, REST_SECONDS_MAX)):
            raise LogClosed("the server closes")
        self._since_ns = self._clock.monotonic_ns()

    def _followed(self, result: dict[tuple[str, int], CordwoodError] | Exception) -> None:
        if self._closing.is_set():
            return
        if isinstance(result, Exception):
            _LOGGER.warning("chains could not be brought up to date: %s", result)
        else:
            # Logged once per chain: the update is retried several times a second.
            for topic, partition in sorted(result.keys() - self._unfollowed):
                where, error = f"partition {partition} of topic {topic}", result[topic, partition]
                _LOGGER.warning("the chain of %s could not be brought up to date: %s", where, error)
            self._unfollowed = set(result)
        self.start()
