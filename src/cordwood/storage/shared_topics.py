"""The topics of a data directory that are kept in the shared log: opened, ended, kept up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import RLock

from cordwood.config import TopicConfig
from cordwood.errors import CordwoodError, LogClosed
from cordwood.storage.active import Surroundings
from cordwood.storage.catalogue import TopicEntry
from cordwood.storage.chain import Chains
from cordwood.storage.maintenance import MaintenanceReport
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.rewriting import Pace
from cordwood.storage.shared_log import SharedLog
from cordwood.storage.shared_upkeep import expire_virtual, reclaim
from cordwood.storage.virtual_log import VirtualLog, owner_of

#: The settings of the shared log itself. What is too large, or too old, its topics say.
SHARED_CONFIG = {
    "cordwood.format": "shared",
    "max.message.bytes": str(2**31 - 1),
    "retention.bytes": "-1",
    "retention.ms": "-1",
}


class SharedTopics:
    """Partitions in the shared log, which is opened when the first one is asked for. From any thread.

    *open_log* returns the log underneath, made if need be; *guard* is held while it is called.
    """

    def __init__(
        self, around: Surroundings, chains: Chains, open_log: Callable[[], PartitionLog], guard: RLock
    ) -> None:
        self._around = around
        self._chains = chains
        self._open_log = open_log
        self._guard = guard
        self._log: SharedLog | None = None
        self._opened: dict[tuple[str, int], VirtualLog] = {}

    def log(self) -> SharedLog:
        """Return the shared log, opened with its first use.

        Raises:
            StorageError: If it cannot be opened.
        """
        if self._log is None:
            with self._guard:
                if self._log is None:
                    clock = self._around.clock
                    self._log = SharedLog(self._around.files, self._open_log(), clock.now_ms)
        return self._log

    def opened(self, topic: str, partition: int) -> VirtualLog | None:
        """Return a partition if it was asked for before. Never blocks."""
        return self._opened.get((topic, partition))

    def open(self, entry: TopicEntry, partition: int, config: TopicConfig) -> VirtualLog:
        """Return a partition. With the guard.

        Raises:
            StorageError: If the shared log cannot be opened, or what it has of this partition.
        """
        found = self._opened.get((entry.name, partition))
        if found is None:
            expiration_ms = self._around.producer_expiration_ms
            found = VirtualLog(self.log(), entry, partition, config, expiration_ms)
            self._opened[entry.name, partition] = found
        return found

    def forget(self, topic: str, partition: int) -> None:
        """Let a partition take no more."""
        found = self._opened.pop((topic, partition), None)
        if found is not None:
            found.close()

    def end(self, topics: Iterable[TopicEntry]) -> None:
        """Let the partitions of deleted topics be no more. Durable on return.

        Raises:
            StorageError: If that could not be said in the shared log.
        """
        owners = [owner_of(entry.name, number) for entry in topics for number in range(entry.partitions)]
        self.log().end(owners)

    def expire(self, logs: Iterable[VirtualLog], needed_from: int | None = None) -> MaintenanceReport:
        """Do what the retention of *logs* asks for. What cannot be done is said in the report."""
        return self._kept_up(
            lambda: MaintenanceReport(
                expire_virtual(self.log(), logs, self._around.clock.now_ms(), needed_from)
            )
        )

    def reclaim(self, pace: Pace) -> MaintenanceReport:
        """Free the space of what nobody can read any more; see `shared_upkeep.reclaim`."""
        return self._kept_up(
            lambda: MaintenanceReport(reclaimed=reclaim(self._around, self._chains, self.log(), pace))
        )

    def _kept_up(self, work: Callable[[], MaintenanceReport]) -> MaintenanceReport:
        try:
            return work()
        except LogClosed:
            return MaintenanceReport()
        except CordwoodError as error:
            return MaintenanceReport(failures=(f"the shared log could not be kept up: {error}",))

    def close(self) -> None:
        """Take no more, and leave the index complete."""
        for log in list(self._opened.values()):
            log.close()
        if self._log is not None:
            self._log.close()
