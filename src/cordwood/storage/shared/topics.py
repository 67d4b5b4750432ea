"""The topics of a data directory that are kept in the shared log: opened, ended, maintained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import RLock

from cordwood.config import TopicConfig
from cordwood.errors import CordwoodError, LogClosed, StorageError
from cordwood.storage.chain import Chains
from cordwood.storage.log import LogContext, Pace, PartitionLog
from cordwood.storage.maintenance import MaintenanceReport, merged
from cordwood.storage.meta import TopicEntry
from cordwood.storage.shared.log import SharedLog
from cordwood.storage.shared.maintenance import expire_virtual, reclaim, seal_mostly_dead
from cordwood.storage.shared.virtual_log import VirtualLog, owner_of

#: The settings of the shared log itself. Size and age limits come from its topics.
SHARED_CONFIG = {
    "cordwood.format": "shared",
    "max.message.bytes": str(2**31 - 1),
    "retention.bytes": "-1",
    "retention.ms": "-1",
}


#: A log that has grown by fewer bytes than this gets no extra maintenance pass.
GROWN_BYTES_MIN = 4 << 20


class SharedTopics:
    """Partitions in the shared log, which is opened on first use. Any thread.

    *open_log* returns the underlying log, creating it if needed; *guard* is held during the call.
    """

    def __init__(
        self, around: LogContext, chains: Chains, open_log: Callable[[], PartitionLog], guard: RLock
    ) -> None:
        self._around = around
        self._chains = chains
        self._open_log = open_log
        self._guard = guard
        self._log: SharedLog | None = None
        self._opened: dict[tuple[str, int], VirtualLog] = {}
        self._size_after = 0

    def log(self) -> SharedLog:
        """Return the shared log; open it on first use.

        Raises:
            StorageError: If it cannot be opened.
        """
        if self._log is None:
            with self._guard:
                if self._log is None:
                    clock = self._around.clock
                    self._log = SharedLog(self._around.files, self._open_log(), clock.now_ms)
        return self._log

    def give_back(self, count: int) -> int:
        """Close files that can be opened again; return their number. Never blocks."""
        return 0 if self._log is None else self._log.give_back(count)

    def opened(self, topic: str, partition: int) -> VirtualLog | None:
        """Return a partition if it is open. Never blocks."""
        return self._opened.get((topic, partition))

    def open(self, entry: TopicEntry, partition: int, config: TopicConfig) -> VirtualLog:
        """Return a partition. Call it with the guard held.

        Raises:
            StorageError: If the shared log or this partition cannot be opened.
        """
        found = self._opened.get((entry.name, partition))
        if found is None:
            expiration_ms = self._around.producer_expiration_ms
            found = VirtualLog(self.log(), entry, partition, config, expiration_ms)
            self._opened[entry.name, partition] = found
            self.check_invariants(entry.name, partition)
        return found

    def check_invariants(self, topic: str, partition: int) -> None:
        """Check one partition. Takes constant time; with the guard.

        Raises:
            AssertionError: If it is open without the shared log, or under another name: a fault of this code.
        """
        found = self._opened.get((topic, partition))
        assert self._size_after >= 0, "the log had a negative size"
        if found is not None:
            assert self._log is not None, "a partition is open without the shared log"
            assert found.owner == owner_of(topic, partition), "a partition is open under another name"

    def had_transaction(self, topic: str, partition: int) -> bool:
        """Return whether a partition ever had a transaction; True if that is unknown. Does not open it."""
        try:
            found = self.log().topics.find(owner_of(topic, partition))
        except StorageError:
            return True
        return found is not None and found.transactions is not None

    def has_open_transactions(self) -> bool:
        """Return whether a transaction has not ended; True if the log is not open, so that it is unknown."""
        if self._log is None:
            return True
        with self._log.lock:
            parts = (part.producers for part in self._log.topics if part.producers is not None)
            return any(producers.open_transactions() for producers in parts)

    def forget(self, topic: str, partition: int) -> None:
        """Close a partition."""
        found = self._opened.pop((topic, partition), None)
        if found is not None:
            found.close()
        self.check_invariants(topic, partition)

    def end(self, topics: Iterable[TopicEntry]) -> None:
        """End the partitions of deleted topics. Durable on return.

        Raises:
            StorageError: If the end could not be appended to the shared log.
        """
        owners = [owner_of(entry.name, number) for entry in topics for number in range(entry.partitions)]
        self.log().end(owners)

    def expire(
        self,
        logs: Iterable[VirtualLog],
        needed_from: int | None = None,
        policy: TopicConfig | None = None,
    ) -> MaintenanceReport:
        """Apply the retention of *logs*, or *policy* in its place. The report has the failures."""
        return self._reported(
            lambda: MaintenanceReport(
                expire_virtual(self.log(), logs, self._around.clock.now_ms(), needed_from, policy)
            )
        )

    def maintain(self, logs: Callable[[], Iterable[VirtualLog]], pace: Pace) -> MaintenanceReport:
        """Apply the retention of *logs* and free the space of dead frames.

        The active segment is sealed if much of it would be dead then; the next pass reclaims it.
        """
        reports = [self.expire(logs())]

        def seal() -> MaintenanceReport:
            return self.expire(logs()) if seal_mostly_dead(self.log()) else MaintenanceReport()

        reports += [self._reported(seal), self.reclaim(pace)]
        if self._log is not None:
            self._size_after = self._log.log.size()
        return merged(reports)

    @property
    def has_grown(self) -> bool:
        """Whether the log is twice as large as after the last pass of maintenance. Touches no file."""
        if self._log is None:
            return False
        return self._log.log.size() - self._size_after >= max(self._size_after, GROWN_BYTES_MIN)

    def reclaim(self, pace: Pace) -> MaintenanceReport:
        """Free the space of unreadable records; see `maintenance.reclaim`."""
        return self._reported(
            lambda: MaintenanceReport(reclaimed=reclaim(self._around, self._chains, self.log(), pace))
        )

    def _reported(self, work: Callable[[], MaintenanceReport]) -> MaintenanceReport:
        try:
            return work()
        except LogClosed:
            return MaintenanceReport()
        except CordwoodError as error:
            return MaintenanceReport(failures=(f"the shared log could not be maintained: {error}",))

    def close(self) -> None:
        """Refuse further appends and complete the index."""
        for log in list(self._opened.values()):
            log.close()
        if self._log is not None:
            self._log.close()
