"""Rebuild indexes: every ``.idx``, ``.timeidx``, ``.oidx`` and ``.txnindex`` from the log.

Reading the logs takes most of the time and needs no lock: `build_indexes` reads one segment, compares its
indexes, and stages different ones in ``tmp/``, synced, in this or any other process with access to the files.
The owner of the directory then renames them into place if they have the checksum from sealing the segment.
Indexes are derived, so a crash leaves old and new ones, each valid or rebuilt when needed; staged files are
removed at the next open, like spools.

The index of an active segment is correct once the directory is open, because opening rebuilds it if the mark
does not cover it. So it is only read: before opening, for the report, and afterwards, for its content. The
mark does not cover an ``.oidx``, so that file is replaced for any segment.

An aborted transaction may begin in an earlier segment than its marker is in. So a ``.txnindex`` that is lost
is built here from all of the log, and `partition.json` gets its checksum: where compaction or retention
removed the first records of a transaction, the entries begin later than those that were lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import google_crc32c
import msgspec

from cordwood.disk import Files, as_storage_error, join, parent, read_file, read_marks, write_all
from cordwood.errors import (
    CordwoodError,
    CorruptRange,
    DirectoryRefused,
    MetadataDamaged,
    StorageError,
    UnknownTopic,
)
from cordwood.formats import EVERY_FORMAT
from cordwood.host import process
from cordwood.index import ABORTED_ENTRY_SIZE, NO_TIMESTAMP
from cordwood.kernels import INT64_MAX
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.log import (
    ABORTED_SUFFIX,
    REINDEX_WINDOW_BYTES,
    Bound,
    Bounds,
    OpenFiles,
    PartitionLog,
    SealedInfo,
    Segment,
    active_info,
    bounds_of,
    mark_path,
    newest_mark,
    note_frames,
    read_state,
    replay_aborted,
    segment_path,
    walk,
    write_aborted,
)
from cordwood.storage.meta import SHARED_TOPIC, is_shared, partition_directory
from cordwood.storage.shared import OwnerBuilder, unsound_indexes
from cordwood.tenancy import suggest

Reason: TypeAlias = Literal["missing", "wrong"]
_MISSING: Reason = "missing"
_WRONG: Reason = "wrong"
SUFFIXES = ("idx", "timeidx", "oidx")
#: The number of indexes whose checksums are in ``partition.json`` or in the mark.
_VOUCHED = 2
_SHARED = "shared"
#: Files with this suffix in ``tmp/`` are removed at the next open.
_STAGED = ".spool"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An index file that was missing or wrong, and is correct now."""

    path: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Damaged:
    """A log for which no index can be built: its path, the position if known, and the fault."""

    path: str
    position: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class ReindexReport:
    """The amount read, the rebuilt indexes, and the logs whose indexes were not changed."""

    topics: int
    partitions: int
    segments: int
    bytes: int
    rebuilt: tuple[Rebuilt, ...]
    damaged: tuple[Damaged, ...]


@dataclass(frozen=True, slots=True)
class SegmentWork:
    """A segment of the data directory ``data`` to be indexed, and its known state."""

    data: str
    directory: str
    info: SealedInfo
    bounds: Bounds
    format: str
    sealed: bool
    partition: int = 0
    tenant: int = 0

    def path(self, suffix: str) -> str:
        """Return the path of one of its files."""
        return segment_path(self.directory, self.info.base, suffix)


class BuiltIndex(NamedTuple):
    """The checksum of a rebuilt index; if the file differs, the reason and the staged file's path."""

    crc32c: int
    reason: Reason | None = None
    staged: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentBuilt:
    """The indexes of a segment, in the order of `SUFFIXES`, or why there are none.

    Only the shared log has the last one.
    """

    indexes: tuple[BuiltIndex, ...] = ()
    damage: Damaged | None = None
    max_timestamp: int = NO_TIMESTAMP


Builder: TypeAlias = Callable[[Sequence[SegmentWork]], Iterable[SegmentBuilt]]
"""Runs `build_indexes` of each, anywhere and in any order, and returns the results in the order given."""


def build_indexes(files: Files, work: SegmentWork) -> SegmentBuilt:
    """Read a segment, compare its index files with rebuilt ones, and stage those that differ, synced.

    Changes nothing but ``tmp/``, where each call uses unique names.

    Raises:
        DiskFull, StorageError: If an index could not be written.
    """
    format_ = EVERY_FORMAT[work.format].for_partition(work.partition, work.tenant)
    segment = Segment(OpenFiles(files, mapped=False), work.directory, work.info, format_)
    index, times = segment.new_indexes()
    staged = _staged_path(work.data)
    with contextlib.ExitStack() as stack:
        owners = None
        if work.format == _SHARED:
            owners = OwnerBuilder(files, work.path("oidx"), work.info.base, staged)
            stack.callback(owners.close)
        try:
            for found in walk(segment, work.bounds, (work.info.base, 0), REINDEX_WINDOW_BYTES, None):
                if isinstance(found, CorruptRange):
                    if owners is not None:
                        owners.discard()
                    return SegmentBuilt(damage=Damaged(found.path, found.position, found.reason))
                note_frames(index, times, found.table, found.position)
                if owners is not None:
                    owners.add(found)
            by_owner = () if owners is None else (_owner_index(work, owners, staged),)
        except OSError as error:
            if owners is not None:
                owners.discard()
            raise as_storage_error(error, "staging an index") from error
    # If the sidecar is the index, there is nothing to rebuild: it is as authoritative as the log.
    by_offset = BuiltIndex(0)
    if segment.has_sparse_index:
        by_offset = _compared(files, work, "idx", bytes(index.entries))
    by_time = _compared(files, work, "timeidx", bytes(times.entries))
    return SegmentBuilt((by_offset, by_time, *by_owner), max_timestamp=times.largest)


def _owner_index(work: SegmentWork, owners: OwnerBuilder, staged: str) -> BuiltIndex:
    """Return the result for the owner index after all frames were read."""
    owners.finish()
    if not owners.staged:
        return BuiltIndex(owners.crc32c)
    reason: Reason | None = _WRONG if owners.there else _MISSING
    if not work.sealed and owners.there and not owners.differs:
        # The last entries of an active segment may not be written yet.
        reason = None
    return BuiltIndex(owners.crc32c, reason, staged)


def _compared(files: Files, work: SegmentWork, suffix: str, entries: bytes) -> BuiltIndex:
    crc32c = google_crc32c.value(entries)
    there, reason = None, _WRONG
    try:
        there = read_file(files, work.path(suffix))
    except FileNotFoundError:
        reason = _MISSING
    except OSError:
        # The index is derived, so a damaged one is replaced.
        pass
    if there == entries or (not work.sealed and not there and not entries):
        # An active segment without frames may have no file but its log.
        return BuiltIndex(crc32c)
    if not work.sealed:
        return BuiltIndex(crc32c, reason)
    return BuiltIndex(crc32c, reason, _stage(files, work.data, entries))


def _staged_path(data: str) -> str:
    # A unique name, not the segment's: two attempts at one task may run at the same time.
    return join(data, "tmp", process.new_id() + _STAGED)


def _stage(files: Files, data: str, entries: bytes) -> str:
    """Write *entries* to a new file in ``tmp/``, synced, and return its path."""
    path = _staged_path(data)
    try:
        files.make_directories(parent(path))
        with contextlib.closing(files.open(path, "create")) as file:
            write_all(file, 0, entries)
            file.sync()
    except OSError as error:
        with contextlib.suppress(OSError):
            files.unlink(path)
        raise as_storage_error(error, "staging an index") from error
    return path


def reindex_directory(
    opening: Opening, topic: str | None = None, build: Builder | None = None
) -> ReindexReport:
    """Rebuild the wrong or missing indexes of a data directory or of one topic.

    Takes the directory's lock and recovers it as any open does. Durable on return. *build* reads all
    segments, possibly in parallel; without it they are read here, one after the other. Files and report are
    the same.

    Raises:
        DirectoryLocked: If another process writes the directory.
        DirectoryRefused, MetadataDamaged: If it cannot be opened.
        UnknownTopic: If there is no such topic.
        StorageError: If an index could not be written. Earlier ones are correct.
    """
    files = opening.files
    # Before the directory is opened, because opening repairs the indexes of active segments without a report.
    found_wrong = _active_indexes(files, opening.path, topic)
    with contextlib.closing(DataDirectory(opening)) as directory:
        run = _Reindexing(directory, files, found_wrong)
        work = run.plan(topic)
        built = (build_indexes(files, each) for each in work) if build is None else build(work)
        try:
            for each, result in zip(work, built, strict=True):
                run.settle(each, result)
            run.rebuild_aborted()
            run.sync()
        except OSError as error:
            raise as_storage_error(error, "replacing an index") from error
        return run.report()


class _Reindexing:
    """One run over an open directory. One user."""

    def __init__(self, directory: DataDirectory, files: Files, found_wrong: dict[str, Reason]) -> None:
        self._directory = directory
        self._files = files
        self._found_wrong = found_wrong
        self._logs: dict[str, PartitionLog] = {}
        self._topics = self._segments = self._bytes = 0
        self._rebuilt: list[Rebuilt] = []
        self._damaged: list[Damaged] = []
        self._changed: dict[str, None] = {}
        self._found_again: set[tuple[str, int]] = set()

    def plan(self, topic: str | None) -> list[SegmentWork]:
        """Return the segments of all partitions that can be opened, or of one topic."""
        topics = self._directory.topics
        if topic is not None and topic not in topics:
            raise UnknownTopic.named(topic, suggestion=suggest(topic, topics))
        if topic is not None and is_shared(topics[topic]):
            topic = SHARED_TOPIC
        work: list[SegmentWork] = []
        for name in sorted(topics) if topic is None else [topic]:
            self._topics += 1
            # A topic in the shared log has no files of its own.
            for number in range(0 if is_shared(topics[name]) else topics[name].partitions):
                log = self._opened(name, number)
                if log is not None:
                    self._logs[log.directory] = log
                    work += _segments(self._directory.path, log)
        self._segments, self._bytes = len(work), sum(each.info.size for each in work)
        return work

    def _opened(self, topic: str, partition: int) -> PartitionLog | None:
        try:
            return self._directory.partitions.find_own(topic, partition)
        except DirectoryRefused:
            raise
        except MetadataDamaged as error:
            self._damaged.append(Damaged(error.path, None, error.reason))
        except StorageError as error:
            path = partition_directory(self._directory.path, topic, partition)
            self._damaged.append(Damaged(path, None, str(error)))
        return None

    def settle(self, work: SegmentWork, built: SegmentBuilt) -> None:
        """Put the indexes of a segment in place, or record why they are not changed."""
        # A segment that recovery took for lost, whose frames can be read after all.
        is_found_again = built.damage is None and work.sealed and _was_lost(work.info)
        damage = built.damage or (None if is_found_again else _contradiction(work, built))
        if damage is not None:
            self._damaged.append(damage)
            for index in built.indexes:
                if index.staged is not None:
                    self._files.unlink(index.staged)
            return
        for suffix, index in zip(SUFFIXES, built.indexes, strict=False):
            path = work.path(suffix)
            if index.staged is not None:
                self._replace(work, path, index.crc32c, index.staged)
            reason = self._found_wrong.get(path) or index.reason
            if reason is not None:
                self._rebuilt.append(Rebuilt(path, reason))
        if is_found_again:
            self._note(work, built)
            self._found_again.add((work.directory, work.info.base))

    def rebuild_aborted(self) -> None:
        """Build the indexes of aborted transactions that are lost, of logs that can be read."""
        for directory, log in self._logs.items():
            readable = not any(each.path.startswith(f"{directory}/") for each in self._damaged)
            if log.state.transactional and readable:
                for at in range(len(log.view.segments) - 1):
                    self._rebuild_aborted(log, at)
            active = segment_path(directory, log.state.active_base, ABORTED_SUFFIX)
            if active in self._found_wrong:
                self._rebuilt.append(Rebuilt(active, self._found_wrong[active]))

    def _rebuild_aborted(self, log: PartitionLog, at: int) -> None:
        segment = log.view.segments[at]
        info = segment.info
        lost = (log.directory, segment.base) in self._found_again
        if not lost and segment.read_aborted(info.aborted_count, info.aborted_crc32c) is not None:
            return
        path = segment_path(log.directory, segment.base, ABORTED_SUFFIX)
        there = self._files.exists(path)
        aborted = replay_aborted(log.view, at)
        write_aborted(segment, aborted)
        crc32c = google_crc32c.value(bytes(aborted.entries))
        now = msgspec.structs.replace(info, aborted_count=len(aborted), aborted_crc32c=crc32c)
        log.note_sealed({info.base: now})
        self._rebuilt.append(Rebuilt(path, _WRONG if there else _MISSING))

    def _note(self, work: SegmentWork, built: SegmentBuilt) -> None:
        """Write in `partition.json` what recovery could not know of a segment."""
        by_offset, by_time = built.indexes[:_VOUCHED]
        info = msgspec.structs.replace(
            work.info,
            max_timestamp=built.max_timestamp,
            index_crc32c=by_offset.crc32c,
            time_index_crc32c=by_time.crc32c,
        )
        self._logs[work.directory].note_sealed({info.base: info})

    def _replace(self, work: SegmentWork, path: str, crc32c: int, staged: str) -> None:
        """Rename a staged index into place if the segment and the file have not changed."""
        log = self._logs[work.directory]
        with log.held():
            if work.info not in (*log.state.sealed, _active(log)):
                raise StorageError(f"{work.path('log')} changed while it was indexed; run it again")
            if google_crc32c.value(read_file(self._files, staged)) != crc32c:
                raise StorageError(f"{staged} is not what was staged there; run it again")
            self._files.rename(staged, path)
        self._changed |= dict.fromkeys((parent(path), parent(staged)))

    def sync(self) -> None:
        """Make every rename durable."""
        for directory in self._changed:
            self._files.sync_directory(directory)

    def report(self) -> ReindexReport:
        """Return the report."""
        return ReindexReport(
            self._topics,
            len(self._logs),
            self._segments,
            self._bytes,
            tuple(self._rebuilt),
            tuple(self._damaged),
        )


def _segments(data: str, log: PartitionLog) -> list[SegmentWork]:
    """Return the segments of a partition, the active one up to its written end."""
    state, active = log.state, _active(log)
    return [
        SegmentWork(
            data,
            log.directory,
            info,
            bounds_of(state, info, log.config.stored_bytes_max),
            log.format.name,
            sealed=info is not active,
            partition=state.partition,
            tenant=state.tenant,
        )
        for info in (*state.sealed, active)
    ]


def _active(log: PartitionLog) -> SealedInfo:
    """Return the description of the active segment up to its written end."""
    return active_info(log.state, Bound(log.state.active_base, log.active_size, log.log_end_offset))


def _was_lost(info: SealedInfo) -> bool:
    """Return whether recovery sealed a segment of which it could read nothing, so its indexes are unknown."""
    return info.max_timestamp == INT64_MAX and (info.index_crc32c, info.time_index_crc32c) == (0, 0)


def _contradiction(work: SegmentWork, built: SegmentBuilt) -> Damaged | None:
    """Return the fault if the index checksum in metadata differs from the log's: one of them is damaged."""
    indexes = built.indexes[:_VOUCHED]
    found = tuple(index.crc32c for index in indexes)
    if work.sealed:
        vouched = found == (work.info.index_crc32c, work.info.time_index_crc32c)
    else:
        vouched = all(index.reason is None for index in indexes)
    if vouched:
        return None
    source = "partition.json" if work.sealed else "the mark"
    return Damaged(work.path("log"), None, f"gives other indexes than {source} has the checksums of")


def _active_indexes(files: Files, data: str, topic: str | None) -> dict[str, Reason]:
    """Return the index files that opening repairs, of active segments and of the shared log, with the reason.

    Takes no lock: beside a running writer the result is useless, and opening the directory reports the
    writer.
    """
    found: dict[str, Reason] = {}
    with contextlib.suppress(OSError):
        names = files.list(join(data, "topics"))
        # A topic without files may be in the shared log.
        for name in names if topic is None else [name for name in names if name in (topic, SHARED_TOPIC)]:
            path = join(data, "topics", name)
            for partition in files.list(path) if files.is_directory(path) else []:
                # Opening the directory refuses unreadable files.
                with contextlib.suppress(CordwoodError, OSError, msgspec.MsgspecError):
                    found |= _active_index(files, join(path, partition))
                    if name == SHARED_TOPIC:
                        unsound = unsound_indexes(files, join(path, partition))
                        found |= {at: _WRONG if there else _MISSING for at, there in unsound.items()}
    return found


def _active_index(files: Files, directory: str) -> dict[str, Reason]:
    state = read_state(files, directory)
    mark = newest_mark(state, read_marks(files, mark_path(directory)), directory)
    if mark is None or mark.base != state.active_base or state.truncating is not None:
        return {}
    vouched = ((mark.index_entries, mark.index_crc), (mark.time_index_entries, mark.time_index_crc))
    sizes = [(entries * 16, crc32c) for entries, crc32c in vouched]
    sizes.append((mark.aborted_entries * ABORTED_ENTRY_SIZE, mark.aborted_crc))
    found: dict[str, Reason] = {}
    for suffix, (size, crc32c) in zip((*SUFFIXES[:_VOUCHED], ABORTED_SUFFIX), sizes, strict=True):
        path = segment_path(directory, mark.base, suffix)
        there = read_file(files, path) if files.exists(path) else None
        if google_crc32c.value((there or b"")[:size]) != crc32c:
            found[path] = _MISSING if there is None else _WRONG
    return found
