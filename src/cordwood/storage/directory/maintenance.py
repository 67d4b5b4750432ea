"""Maintenance of a data directory: retention, compaction, hashes of sealed segments, abandoned shares."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from cordwood.errors import CordwoodError, DiskFull, LogClosed
from cordwood.storage.chain import Chains
from cordwood.storage.directory.partitions import DirectoryPartitions
from cordwood.storage.directory.topic_settings import TopicSettings
from cordwood.storage.log import LogContext, Pace, WritablePartition, no_pace
from cordwood.storage.maintenance import (
    Expired,
    MaintenanceReport,
    NeededFrom,
    by_age_only,
    expire_partition,
    maintain_partition,
    merged,
    unknown_groups,
)
from cordwood.storage.meta import SHARED_TOPIC, Catalogue, Lifecycle
from cordwood.storage.sink import Publisher


def _needed_by_groups(log: WritablePartition, needed_from: NeededFrom) -> int | None:
    """Return the first offset that retention must leave for a consumer group, None without one."""
    if not log.config.retention_waits_for_groups:
        return None
    return needed_from(log.state.topic, log.state.partition)


class DirectoryMaintenance:
    """Applies the policies of topics. Every method may be called from any thread.

    A pass may take long. Appends and reads go on meanwhile.
    """

    def __init__(
        self,
        context: LogContext,
        catalogue: Catalogue,
        settings: TopicSettings,
        chains: Chains,
        partitions: DirectoryPartitions,
        publisher: Publisher,
        lifecycle: Lifecycle,
        secret: bytes,
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._settings = settings
        self._chains = chains
        self._partitions = partitions
        self._publisher = publisher
        self._lifecycle = lifecycle
        self._secret = secret

    def maintain_all(
        self, *, force: bool = False, evidence: bool = True, needed_from: NeededFrom = unknown_groups
    ) -> MaintenanceReport:
        """Maintain every partition, one after the other; with *force* compact whatever can be compacted.

        Without *evidence*, compaction also rewrites frames whose records cannot be kept as evidence. Also
        writes the hashes of sealed segments and removes abandoned shares. *needed_from* is asked about
        topics whose retention waits for consumer groups.
        """
        self._lifecycle.check_open()
        if SHARED_TOPIC in self._catalogue.contents.topics:
            self._partitions.shared.log()
        # Virtual partitions first: maintaining the shared log then frees the space of their old records.
        virtual = self._partitions.in_shared_log(waits_for_groups=True)
        logs: list[WritablePartition] = [*virtual, *self._partitions.open_all()]
        reports = [
            self.maintain(log, needed_from=needed_from, force=force, evidence=evidence) for log in logs
        ]
        hashed = 0
        for own in self._partitions.open_all():
            # Without space for a hash, a later pass records it.
            with contextlib.suppress(DiskFull):
                hashed += own.hash_sealed()
        removed = self._publisher.collect_abandoned()
        return replace(merged(reports), segments_hashed=hashed, shares_removed=removed)

    def maintain(
        self,
        log: WritablePartition,
        *,
        needed_from: NeededFrom = unknown_groups,
        pace: Pace = no_pace,
        force: bool = False,
        evidence: bool = True,
    ) -> MaintenanceReport:
        """Apply the policies of one partition; see `maintenance.maintain_partition`."""
        self._lifecycle.check_open()
        try:
            needed = _needed_by_groups(log, needed_from)
            failed = MaintenanceReport()
        except CordwoodError as error:
            needed = 0
            where = f"partition {log.state.partition} of topic {log.state.topic}"
            reason = f"what consumer groups have committed cannot be read: {error}"
            failed = MaintenanceReport(failures=(f"nothing of {where} was deleted: {reason}",))
        return merged([failed, self._maintain(log, needed, pace, force=force, evidence=evidence)])

    def _maintain(
        self, log: WritablePartition, needed_from: int | None, pace: Pace, *, force: bool, evidence: bool
    ) -> MaintenanceReport:
        shared = self._partitions.shared
        topic, partition = log.state.topic, log.state.partition
        virtual = shared.opened(topic, partition)
        if virtual is not None:
            return shared.expire([virtual], needed_from)
        if topic == SHARED_TOPIC:
            return shared.maintain(lambda: self._partitions.in_shared_log(waits_for_groups=False), pace)
        own = self._partitions.opened_own(topic, partition)
        if own is None:
            # Deleted meanwhile.
            return MaintenanceReport()
        return maintain_partition(
            self._context,
            self._chains,
            own,
            map_bytes=self._settings.broker.cleaner_map_bytes,
            secret=self._secret,
            needed_from=needed_from,
            pace=pace,
            force=force,
            evidence=evidence,
        )

    def hash_sealed(self, pace: Pace = no_pace) -> dict[WritablePartition, CordwoodError]:
        """Record the SHA-256 of segments that were sealed or rewritten; return the logs where that failed.

        Those are tried again by the next call. A damaged segment gets no hash and is not tried again.
        """
        failures: dict[WritablePartition, CordwoodError] = {}
        for log in list(self._context.unhashed):
            try:
                log.hash_sealed(pace)
            except LogClosed:
                # Deleted, or the directory closes.
                continue
            except CordwoodError as error:
                failures[log] = error
                if log.failure is None:
                    log.note_for_hashing()
        return failures

    def expire(
        self,
        log: WritablePartition,
        *,
        needed_from: NeededFrom = unknown_groups,
        older_than_ms: int | None = None,
    ) -> Expired | None:
        """Delete the records of one partition that retention no longer keeps; see `expire_partition`.

        With *older_than_ms* those that are older than this, instead of those that the settings name.
        *needed_from* is asked if the topic's retention waits for groups; its errors are raised here.
        """
        self._lifecycle.check_open()
        policy = None if older_than_ms is None else by_age_only(log.config, older_than_ms)
        needed = _needed_by_groups(log, needed_from)
        topic, partition = log.state.topic, log.state.partition
        virtual = self._partitions.shared.opened(topic, partition)
        if virtual is not None:
            return next(iter(self._partitions.shared.expire([virtual], needed, policy).expired), None)
        own = self._partitions.opened_own(topic, partition)
        if own is None:
            # Deleted meanwhile.
            return None
        return expire_partition(self._context, self._chains, own, needed_from=needed, policy=policy)

    def has_outgrown(self, topic: str, partition: int) -> bool:
        """Return whether an open partition is larger than its retention allows. Touches no file."""
        if topic == SHARED_TOPIC:
            return self._partitions.shared.has_grown
        log = self._partitions.opened(topic, partition)
        return log is not None and log.is_over_retention()
