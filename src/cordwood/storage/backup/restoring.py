"""Restore a backup or another data directory to a new one, up to an offset or a point in time.

Files are written beside the final place and checked while they are copied, so a failed restore leaves nothing
that looks like a data directory. Every partition begins a new leader epoch: later appends may differ from
those of the source after its backup, and clients can tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from cordwood.config import load_broker_config
from cordwood.disk import Files, as_storage_error, files_of, join, parent, remove_tree, write_metadata
from cordwood.errors import DirectoryRefused, MetadataDamaged, OffsetOutOfRange, SignedFor, UnknownTopic
from cordwood.records import Progress, TopicPartition
from cordwood.storage.backup.evidence import copy_checkpoints
from cordwood.storage.backup.record import read_record
from cordwood.storage.backup.snapshots import drop_shared_snapshots_beyond, drop_snapshots_beyond
from cordwood.storage.backup.transfer import STAGING_PREFIX, BackupReport, DirectoryTransfer, Transfer
from cordwood.storage.chain import signed_up_to
from cordwood.storage.directory import DataDirectory, Opening, own_snapshots
from cordwood.storage.log import Bound, Cut, PartitionLog, PartitionState, truncated_state
from cordwood.storage.meta import SHARED_TOPIC, TopicEntry, check_regular_directory, identity, is_shared
from cordwood.storage.readonly import ReadOnlyDirectory
from cordwood.storage.shared import SharedLog

#: The suffix of the directory until the restore is complete.
UNFINISHED = ".restoring"
#: The file that identifies an unfinished restore.
MARKER = "unfinished-cordwood-restore"
#: More producer ids than any broker gives away while a backup runs.
PASSED_OVER = 1 << 32


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """A partition of the new directory: offsets [log start, end), and the number of records cut."""

    topic: str
    partition: int
    log_start_offset: int
    end_offset: int
    cut_offsets: int


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of a restore, and the identity of the new directory."""

    source: str
    target: str
    uuid: str
    topics: int
    segments: int
    copied_bytes: int
    partitions: tuple[RestoredPartition, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """The end of a restore: an offset for named partitions, a time for all; by default everything."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    time_ms: int | None = None

    @property
    def is_end(self) -> bool:
        """Whether everything is restored."""
        return not self.offsets and self.time_ms is None


def restore(
    backup: object,
    path: object,
    *,
    to_offsets: Mapping[TopicPartition, int] | None = None,
    to_time: int | None = None,
    link: bool = False,
    keep_id: bool = False,
    force: bool = False,
    files: Files | None = None,
    progress: Progress = lambda done: None,
) -> RestoreReport:
    """Create a data directory at *path* from a backup, which is not changed; see `restore_directory`.

    *to_offsets* maps (topic, partition) to the first offset that is not restored. *to_time*, in milliseconds
    since 1970, ends each partition before its first record at or after that time. *force* is required to
    leave out records that a checkpoint covers.
    """
    config, _ = load_broker_config()
    source, target = str(backup), str(path)
    files = files or files_of(target, config)
    transfer = Transfer(files, source, target, config, link=link, progress=progress)
    point = Point(dict(to_offsets or {}), to_time)
    return restore_directory(transfer, point, keep_id=keep_id, force=force)


def restore_directory(
    transfer: Transfer, point: Point, *, keep_id: bool = False, force: bool = False
) -> RestoreReport:
    """Create the data directory ``target`` from ``source``, up to *point*. Durable on return.

    The new directory gets a new id, unless *keep_id* says that it replaces the source, which must then be
    gone. Journals of sink queries are restored only if everything is restored.

    Raises:
        DirectoryRefused: If ``target`` exists, or ``source`` is not a data directory.
        UnknownTopic, OffsetOutOfRange: If *point* names a partition or offset that the backup does not have.
        Nothing was copied.
        SignedFor: If a checkpoint covers records that are left out, without *force*. Nothing was copied.
        MetadataDamaged, CorruptRange: If the backup is damaged. Nothing is left.
        DiskFull, StorageError: If it could not be written. Nothing is left.
    """
    try:
        return _in_place(transfer, point, keep_id, force)
    except OSError as error:
        raise as_storage_error(error, "restoring") from error


def _in_place(transfer: Transfer, point: Point, keep_id: bool, force: bool) -> RestoreReport:
    """Build the directory beside its place, then rename it."""
    files, target = transfer.files, transfer.target
    if files.exists(target) and (not files.is_directory(target) or files.list(target)):
        raise DirectoryRefused(f"{target} exists and is not empty; restore to another directory")
    check_regular_directory(files, transfer.source)
    ends = _ends(transfer, point, force)
    unfinished = target.rstrip("/") + UNFINISHED
    _create_unfinished(files, unfinished)
    try:
        report = _restored(replace(transfer, target=join(unfinished, "data")), point, ends, keep_id)
        files.rename(join(unfinished, "data"), target)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_tree(files, unfinished)
        raise
    for directory in (parent(target), unfinished):
        files.sync_directory(directory)
    # The next restore to the same place removes the rest.
    with contextlib.suppress(OSError):
        remove_tree(files, unfinished)
    return replace(report, target=target)


def _create_unfinished(files: Files, unfinished: str) -> None:
    """Create the directory *unfinished*; remove an earlier restore that crashed.

    Raises:
        DirectoryRefused: If something else has that name.
    """
    if files.exists(unfinished):
        names = files.list(unfinished) if files.is_directory(unfinished) else None
        is_ours = names is not None and (not names or MARKER in names)
        if not is_ours or unfinished.rpartition("/")[2] in files.irregular(parent(unfinished)):
            raise DirectoryRefused(
                f"{unfinished} exists and is not an unfinished restore; move it, or restore elsewhere"
            )
        remove_tree(files, unfinished)
    for gained in files.make_directories(unfinished):
        files.sync_directory(gained)
    # Written first: it says that the rest may be removed.
    files.open(join(unfinished, MARKER), "create").close()
    files.sync_directory(unfinished)


def _ends(transfer: Transfer, point: Point, force: bool) -> dict[TopicPartition, int]:
    """Return the end offsets of partitions, before anything is copied."""
    with contextlib.closing(
        ReadOnlyDirectory(transfer.files, transfer.source, transfer.config, mapped=False)
    ) as directory:
        topics = directory.topics
        ends: dict[TopicPartition, int] = {}
        for (topic, partition), offset in point.offsets.items():
            entry = topics.get(topic)
            if entry is None or not 0 <= partition < entry.partitions:
                raise UnknownTopic(f"the backup has no partition {partition} of a topic {topic}")
            if is_shared(entry):
                raise DirectoryRefused(
                    f"topic {topic} is in the shared log, which is restored up to one point for all that are "
                    f"in it: give a time, or an id as the offset of partition 0 of {SHARED_TOPIC}"
                )
            found = directory.readable(topic, partition, entry).published()
            if not found.log_start_offset <= offset <= found.high_watermark:
                error = OffsetOutOfRange(offset, found.log_start_offset, found.high_watermark)
                error.add_note(f"partition {partition} of topic {topic}")
                raise error
            ends[topic, partition] = offset
        if point.time_ms is not None:
            _cut_by_time(directory, topics, point.time_ms, ends)
        if not force:
            _check_not_signed_for(transfer, topics, ends)
        return ends


def _cut_by_time(
    directory: ReadOnlyDirectory,
    topics: Mapping[str, TopicEntry],
    time_ms: int,
    ends: dict[TopicPartition, int],
) -> None:
    """Limit every partition to the records before its first record at or after a time."""
    for name, entry in topics.items():
        apart = is_shared(entry) or name.startswith(STAGING_PREFIX)
        for partition in range(0 if apart else entry.partitions):
            first = directory.readable(name, partition, entry).offset_at(time_ms)
            if first is not None:
                ends[name, partition] = min(first[0], ends.get((name, partition), first[0]))


def _check_not_signed_for(
    transfer: Transfer, topics: Mapping[str, TopicEntry], ends: Mapping[TopicPartition, int]
) -> None:
    """Refuse to leave out records that a checkpoint of the source covers."""
    for (topic, partition), end in ends.items():
        signed = signed_up_to(transfer.files, transfer.source, topics[topic].id, partition)
        if end < signed:
            raise SignedFor(topic, partition, end, signed)


def _restored(
    transfer: Transfer, point: Point, ends: Mapping[TopicPartition, int], keep_id: bool
) -> RestoreReport:
    """Build the complete directory under its temporary name."""
    files, target = transfer.files, transfer.target
    for directory in files.make_directories(f"{target}/meta"):
        files.sync_directory(directory)
    moving = DirectoryTransfer(transfer, {}, untouched=False, settle=_new_epoch)
    moving.begin(journals=point.is_end)
    results = moving.copy_all()
    brought = moving.report(results)
    if brought.damaged:
        first = brought.damaged[0]
        place = "" if first.position is None else f"at byte {first.position}: "
        raise MetadataDamaged(first.path, f"{place}{first.reason}; nothing was restored")
    made = _identify(transfer, keep_id)
    if keep_id:
        # They are valid only for the directory with that id.
        copy_checkpoints(files, transfer.source, target)
    return _cut(transfer, brought, ends, made.uuid)


def _new_epoch(state: PartitionState, end: Bound) -> PartitionState:
    """Return the state with a new leader epoch for later appends."""
    cut = Cut(end.base, end.position, end.next_offset)
    return msgspec.structs.replace(truncated_state(state, cut), sealed=state.sealed, truncating=None)


def _identify(transfer: Transfer, keep_id: bool) -> identity.Identity:
    """Write `broker.id`: the id of the backup's source, or a new one."""
    files, target = transfer.files, transfer.target
    if not keep_id:
        return identity.create_identity(files, target, transfer.clock, transfer.uuid, transfer.node_name)
    kept = identity.read_identity(files, transfer.source)
    record = read_record(files, transfer.source)
    if record is not None:
        kept = identity.Identity(
            kept.format, record.source_uuid, record.source_created_at, record.source_node
        )
    write_metadata(files, identity.identity_path(target), kept)
    return kept


def _cut(
    transfer: Transfer, brought: BackupReport, ends: Mapping[TopicPartition, int], uuid: str
) -> RestoreReport:
    """Open the copied directory as its writer, truncate partitions as requested, and close it."""
    opening = Opening(
        transfer.files, transfer.target, transfer.config, create=False, mapped=False, clock=transfer.clock
    )
    partitions = []
    with contextlib.closing(DataDirectory(opening)) as directory:
        for record in brought.partitions:
            log = directory.partitions.own(record.topic, record.partition)
            before = log.log_end_offset
            end = min(ends.get((record.topic, record.partition), before), before)
            if record.topic == SHARED_TOPIC:
                _truncate_shared(transfer, log, end)
                drop_shared_snapshots_beyond(transfer.files, transfer.target, end)
            else:
                log.truncate(end)
                drop_snapshots_beyond(transfer.files, own_snapshots(log.directory), end)
            partitions.append(
                RestoredPartition(record.topic, record.partition, log.log_start_offset, end, before - end)
            )
        if directory.partitions.with_transactions():
            # Each partition is as it was at a moment of its own: the first open compares the epochs of
            # producers, and ends what nobody else would.
            directory.lifecycle.has_leftovers = True
        _pass_over_producers(transfer, directory)
    segments = brought.linked + brought.copied
    return RestoreReport(
        brought.source,
        brought.target,
        uuid,
        brought.topics,
        segments,
        brought.copied_bytes,
        tuple(partitions),
    )


def _pass_over_producers(transfer: Transfer, directory: DataDirectory) -> None:
    """Give away no producer id that a partition of an unfinished backup may have.

    Its partitions may be newer than its catalogue, and by how much nobody knows.
    """
    record = read_record(transfer.files, transfer.source)
    if record is not None and not record.complete:
        directory.producer_ids.reserve(PASSED_OVER)


def _truncate_shared(transfer: Transfer, log: PartitionLog, end: int) -> None:
    """Truncate the shared log at the id *end* and complete its indexes.

    A topic may have been deleted and created again after that point. Its remaining frames belong to the
    deleted topic, and the frame that said so was cut, so it is appended again.
    """
    now_ms = transfer.clock.now_ms
    whole = SharedLog(transfer.files, log, now_ms)
    born = {part.owner: part.born_id for part in whole.topics}
    whole.close()
    log.truncate(end)
    shared = SharedLog(transfer.files, log, now_ms)
    shared.end([part.owner for part in shared.topics if born.get(part.owner, end) >= end])
    shared.close()
