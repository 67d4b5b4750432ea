"""The SHA-256 of each segment, recorded soon after it was sealed or compacted, in the maintenance thread."""

from __future__ import annotations

import asyncio
import logging

from cordwood.broker import Node
from cordwood.config import BrokerConfig
from cordwood.errors import CordwoodError
from cordwood.host import Host
from cordwood.server.maintenance.periodic import Pacer
from cordwood.server.threads import Workers

#: The time after which sealed segments are looked for again.
HASH_SECONDS = 1.0
_LOGGER = logging.getLogger("cordwood.hashing")


class SealHashing:
    """Schedules the hashing of sealed segments. On the loop; *workers*, of one thread, do the work.

    A pass of retention or compaction in the same thread comes first, so a hash may be recorded later.
    """

    def __init__(
        self, node: Node, config: BrokerConfig, host: Host, loop: asyncio.AbstractEventLoop, workers: Workers
    ) -> None:
        self._node = node
        self._loop = loop
        self._workers = workers
        self._closing = host.new_event()
        self._pacer = Pacer(config.cleaner_bytes_per_second, self._closing, host.clock)
        #: Partitions that could not be hashed.
        self._unhashed: set[tuple[str, int]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply *config*."""
        self._pacer.reconfigure(config.cleaner_bytes_per_second)

    def start(self) -> None:
        """Look for sealed segments soon, and then periodically."""
        self._timer = self._loop.call_later(HASH_SECONDS, self._hash)

    def close(self) -> None:
        """Start no new hashing and abort the current one. It is made up for after the next start."""
        self._closing.set()
        if self._timer is not None:
            self._timer.cancel()

    def join(self) -> None:
        """Wait until no hashing is running. Not on the loop."""
        self._workers.close()

    def _hash(self) -> None:
        if self._node.is_hashing_due:
            self._workers.run_for(lambda: self._node.hash_sealed(self._pacer), self._hashed)
        else:
            self.start()

    def _hashed(self, result: dict[tuple[str, int], CordwoodError] | Exception) -> None:
        if self._closing.is_set():
            return
        if isinstance(result, Exception):
            _LOGGER.warning("sealed segments could not be hashed: %s", result)
        else:
            # Logged once per partition: the next attempt comes soon.
            for topic, partition in sorted(result.keys() - self._unhashed):
                where, error = f"partition {partition} of topic {topic}", result[topic, partition]
                _LOGGER.warning("the sealed segments of %s could not be hashed: %s", where, error)
            self._unhashed = set(result)
        self.start()
