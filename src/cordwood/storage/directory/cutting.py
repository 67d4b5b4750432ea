"""Sealing segments and truncating partitions on request, with what the chain and its checkpoints need."""

from __future__ import annotations

from cordwood.disk import Files, as_storage_error
from cordwood.errors import OffsetOutOfRange, RecordRefused, SignedFor
from cordwood.storage.chain import Chains, signed_up_to
from cordwood.storage.directory.own_partitions import find_entry
from cordwood.storage.directory.partitions import DirectoryPartitions
from cordwood.storage.log import Partition, TruncationReport
from cordwood.storage.meta import (
    SHARED_TOPIC,
    TRANSACTIONS_TOPIC,
    Catalogue,
    Lifecycle,
    TopicEntry,
    is_shared,
)


class Cutting:
    """Rolls and truncates partitions. Every method may be called from any thread, beside appends."""

    def __init__(
        self,
        files: Files,
        path: str,
        catalogue: Catalogue,
        partitions: DirectoryPartitions,
        chains: Chains,
        lifecycle: Lifecycle,
    ) -> None:
        self._files = files
        self._path = path
        self._catalogue = catalogue
        self._partitions = partitions
        self._chains = chains
        self._lifecycle = lifecycle

    def roll(self, topic: str, partition: int, *, dry_run: bool = False) -> None:
        """Seal the active segment of a partition; nothing happens if it is empty. Durable on return.

        With *dry_run* nothing changes.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            RecordRefused: If its segments hold records of other topics.
            StorageError: If it failed.
        """
        entry = find_entry(self._catalogue, topic, partition)
        if topic == SHARED_TOPIC or is_shared(entry):
            raise not_cut_alone(topic)
        log = self._partitions.find(topic, partition)
        if log is not None and not dry_run:
            log.roll()

    def truncate(
        self, topic: str, partition: int, end_offset: int, *, force: bool = False, dry_run: bool = False
    ) -> TruncationReport:
        """Drop every record of a partition at or above *end_offset*. Durable on return.

        Raises the leader epoch, unless there is nothing to drop. With *dry_run* nothing changes, and the
        report has no bytes.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            OffsetOutOfRange, SignedFor, RecordRefused: As `check_truncation` does.
            StorageError: If it failed.
        """
        entry = find_entry(self._catalogue, topic, partition)
        log = self._partitions.readable(topic, partition)
        planned = check_truncation(self._files, self._path, entry, partition, log, end_offset, force=force)
        own = None if dry_run else self._partitions.find_own(topic, partition)
        if own is None:
            return planned
        with own.maintaining:
            self._chains.keep_lists_from(own, end_offset)
            report = own.truncate(end_offset)
            if own.state.active_generation:
                # Frames that follow rewritten ones in a segment cannot be told from them, and get no leaves.
                own.roll()
        # The markers that were cut are written by nobody again; see `may_have_orphans`.
        self._lifecycle.may_have_orphans = True
        if topic == TRANSACTIONS_TOPIC:
            # The orphans are in partitions that need not be open here.
            self._lifecycle.has_leftovers = True
        return report


def not_cut_alone(topic: str) -> RecordRefused:
    """Return the error for sealing or truncating a topic of the shared log, which says what to do."""
    return RecordRefused(
        f"topic {topic} is in the shared log, whose segments hold records of other topics: they are never "
        "truncated, and rolled as the broker's segment.bytes and segment.ms say; set those, or give the "
        "topic a log of its own when it is created, with cordwood.storage=own"
    )


def check_truncation(
    files: Files,
    data: str,
    entry: TopicEntry,
    partition: int,
    log: Partition,
    end_offset: int,
    *,
    force: bool,
) -> TruncationReport:
    """Check that a partition can be truncated at *end_offset*; return how many offsets that would remove.

    *log* is the partition in the data directory *data*. Changes nothing.

    Raises:
        OffsetOutOfRange: If *end_offset* is below the log start or above the log end.
        SignedFor: If a checkpoint signs for one of the records, and *force* is not given.
        RecordRefused: If records of other topics lie in between.
    """
    if entry.name == SHARED_TOPIC or is_shared(entry):
        raise RecordRefused(
            f"topic {entry.name} is in the shared log, which cannot be truncated: "
            "delete records from its start, or create it again"
        )
    start, end = log.log_start_offset, log.log_end_offset
    if not start <= end_offset <= end:
        raise OffsetOutOfRange(end_offset, start, end)
    try:
        signed = 0 if force else signed_up_to(files, data, entry.id, partition)
    except OSError as error:
        raise as_storage_error(error, "looking for checkpoints") from error
    if end_offset < signed:
        raise SignedFor(entry.name, partition, end_offset, signed)
    return TruncationReport(end_offset, end - end_offset, 0)
