"""Restore: a new data directory from a backup, or from any other one, up to an offset or a point in time.

Everything is written beside its place and checked as it comes, so where a restore fails there is nothing that
looks like a data directory. Every partition begins a new leader epoch: what is appended from here on is not
what the source may have appended after its backup, and clients can tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from cordwood.config import load_broker_config
from cordwood.errors import DirectoryRefused, MetadataDamaged, OffsetOutOfRange, SignedFor, UnknownTopic
from cordwood.storage import identity
from cordwood.storage.backup_evidence import bring_checkpoints
from cordwood.storage.backup_moving import STAGING_PREFIX, BackupReport, Moving, Progress, Transfer
from cordwood.storage.backup_record import read_record
from cordwood.storage.catalogue import SHARED_TOPIC, TopicEntry, is_shared
from cordwood.storage.checkpoints import signed_up_to
from cordwood.storage.data_directory import DataDirectory, Opening
from cordwood.storage.deletion import remove_tree
from cordwood.storage.files import Files, parent
from cordwood.storage.metadata import write_metadata
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.partition_state import Bound, Cut, PartitionState, truncated_state
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.read_only import ReadOnlyDirectory
from cordwood.storage.shared_log import SharedLog
from cordwood.storage.store import as_storage_error

#: What the directory is called until all of it is there.
UNFINISHED = ".restoring"
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """A partition of the new directory: offsets [log start, end), and how many were cut off behind."""

    topic: str
    partition: int
    log_start_offset: int
    end_offset: int
    cut_offsets: int


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore made, and who it is now."""

    source: str
    target: str
    uuid: str
    topics: int
    segments: int
    copied_bytes: int
    partitions: tuple[RestoredPartition, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Up to where: an offset for each partition that is named, a time for all; else everything."""

    offsets: Mapping[Place, int] = field(default_factory=dict)
    time_ms: int | None = None

    @property
    def is_end(self) -> bool:
        """Whether everything is wanted."""
        return not self.offsets and self.time_ms is None


def restore(
    backup: object,
    path: object,
    *,
    to_offsets: Mapping[Place, int] | None = None,
    to_time: int | None = None,
    link: bool = False,
    keep_id: bool = False,
    force: bool = False,
    files: Files | None = None,
    progress: Progress = lambda done: None,
) -> RestoreReport:
    """Make a data directory at *path* of a backup, which stays as it is; see `restore_directory`.

    *to_offsets* says for (topic, partition) which offset is the first one not restored, *to_time* in
    milliseconds since 1970 that the first record at or after it, and all after that one, are not. Only with
    *force* is anything left out that a checkpoint signs for.
    """
    config, _ = load_broker_config()
    source, target = str(backup), str(path)
    transfer = Transfer(files or PosixFiles(), source, target, config, link=link, progress=progress)
    point = Point(dict(to_offsets or {}), to_time)
    return restore_directory(transfer, point, keep_id=keep_id, force=force)


def restore_directory(
    transfer: Transfer, point: Point, *, keep_id: bool = False, force: bool = False
) -> RestoreReport:
    """Make the data directory ``target`` of ``source``, up to *point*. Durable on return.

    It is a directory of its own: it gets a new id unless *keep_id* says that it takes the place of the
    one that was backed up, which must then be gone. What queries of a sink have published is known in it
    only if everything is restored.

    Raises:
        DirectoryRefused: If there is something at ``target``, or no data directory at ``source``.
        UnknownTopic, OffsetOutOfRange: If *point* names what the backup does not have. Nothing was copied.
        SignedFor: If a checkpoint signs for what is not to be restored, without *force*. Nothing was copied.
        MetadataDamaged, CorruptRange: If the backup is not what was written. Nothing is left.
        DiskFull, StorageError: If it could not be written. Nothing is left.
    """
    try:
        return _in_place(transfer, point, keep_id, force)
    except OSError as error:
        raise as_storage_error(error, "restoring") from error


def _in_place(transfer: Transfer, point: Point, keep_id: bool, force: bool) -> RestoreReport:
    """Make the directory beside its place, and rename it."""
    files, target = transfer.files, transfer.target
    if files.exists(target) and (not files.is_directory(target) or files.list(target)):
        raise DirectoryRefused(f"{target} is there and not empty; restore to another directory")
    ends = _ends(transfer, point, force)
    unfinished = target.rstrip("/") + UNFINISHED
    if files.exists(unfinished):
        # What a crash left of an earlier restore to the same place.
        remove_tree(files, unfinished)
    try:
        report = _restored(replace(transfer, target=unfinished), point, ends, keep_id)
        files.rename(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            if files.exists(unfinished):
                remove_tree(files, unfinished)
        raise
    files.sync_directory(parent(target))
    return replace(report, target=target)


def _ends(transfer: Transfer, point: Point, force: bool) -> dict[Place, int]:
    """Return where partitions are to be cut, before anything is copied."""
    with contextlib.closing(
        ReadOnlyDirectory(transfer.files, transfer.source, transfer.config, mapped=False)
    ) as directory:
        topics = directory.topics
        ends: dict[Place, int] = {}
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
    directory: ReadOnlyDirectory, topics: Mapping[str, TopicEntry], time_ms: int, ends: dict[Place, int]
) -> None:
    """Have every partition end before its first record at or after a time, or earlier."""
    for name, entry in topics.items():
        apart = is_shared(entry) or name.startswith(STAGING_PREFIX)
        for partition in range(0 if apart else entry.partitions):
            first = directory.readable(name, partition, entry).offset_at(time_ms)
            if first is not None:
                ends[name, partition] = min(first[0], ends.get((name, partition), first[0]))


def _check_not_signed_for(
    transfer: Transfer, topics: Mapping[str, TopicEntry], ends: Mapping[Place, int]
) -> None:
    """Refuse to leave out what a checkpoint of the source vouches for."""
    for (topic, partition), end in ends.items():
        signed = signed_up_to(transfer.files, transfer.source, topics[topic].id, partition)
        if end < signed:
            raise SignedFor(topic, partition, end, signed)


def _restored(transfer: Transfer, point: Point, ends: Mapping[Place, int], keep_id: bool) -> RestoreReport:
    """Make the directory, whole but for its name."""
    files, target = transfer.files, transfer.target
    for directory in files.make_directories(f"{target}/meta"):
        files.sync_directory(directory)
    moving = Moving(transfer, {}, untouched=False, settle=_new_epoch)
    moving.begin(journals=point.is_end)
    results = moving.bring_all()
    brought = moving.report(results)
    if brought.damaged:
        first = brought.damaged[0]
        place = "" if first.position is None else f"at byte {first.position}: "
        raise MetadataDamaged(first.path, f"{place}{first.reason}; nothing was restored")
    made = _identify(transfer, keep_id)
    if keep_id:
        # They are about the directory with that id, and say nothing of another one.
        bring_checkpoints(files, transfer.source, target)
    return _cut(transfer, brought, ends, made.uuid)


def _new_epoch(state: PartitionState, end: Bound) -> PartitionState:
    """Return the state in which whatever is appended next belongs to an epoch of its own."""
    cut = Cut(end.base, end.position, end.next_offset)
    return msgspec.structs.replace(truncated_state(state, cut), sealed=state.sealed, truncating=None)


def _identify(transfer: Transfer, keep_id: bool) -> identity.Identity:
    """Write `broker.id`: that of the source of the backup, or a new one."""
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


def _cut(transfer: Transfer, brought: BackupReport, ends: Mapping[Place, int], uuid: str) -> RestoreReport:
    """Open what was brought as its writer, truncate it where that is wanted, and close it."""
    opening = Opening(
        transfer.files, transfer.target, transfer.config, create=False, mapped=False, clock=transfer.clock
    )
    partitions = []
    with contextlib.closing(DataDirectory(opening)) as directory:
        for record in brought.partitions:
            log = directory.partition(record.topic, record.partition)
            assert isinstance(log, PartitionLog)
            before = log.log_end_offset
            end = min(ends.get((record.topic, record.partition), before), before)
            if record.topic == SHARED_TOPIC:
                _truncate_shared(transfer, log, end)
            else:
                log.truncate(end)
            partitions.append(
                RestoredPartition(record.topic, record.partition, log.log_start_offset, end, before - end)
            )
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


def _truncate_shared(transfer: Transfer, log: PartitionLog, end: int) -> None:
    """Truncate the shared log at the id *end*, and leave its indexes complete.

    A topic may have been deleted and created anew after that point. What is left is the deleted one's then,
    and what said so was cut off: so it is said again.
    """
    now_ms = transfer.clock.now_ms
    whole = SharedLog(transfer.files, log, now_ms)
    born = {part.owner: part.born_id for part in whole.topics}
    whole.close()
    log.truncate(end)
    shared = SharedLog(transfer.files, log, now_ms)
    shared.end([part.owner for part in shared.topics if born.get(part.owner, end) >= end])
    shared.close()
