"""Open a partition: finish what was committed, scan past the mark, decide torn or corrupt.

Below the bound that the mark proves synced, bytes that are wrong are corruption: they stay, and are
refused when read. Above it they are a torn tail: they were never acknowledged, so they are moved to the
quarantine and cut. What is kept of the tail is synced before any reader sees it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from cordwood.config import TopicConfig
from cordwood.errors import MetadataDamaged
from cordwood.formats.format import Ending, Format, FrameTable
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import TimeIndex
from cordwood.kernels.layout import INT64_MAX
from cordwood.storage import swapping, truncation
from cordwood.storage.active import (
    Surroundings,
    create_store,
    empty_active,
    mark_of,
    opened_ms,
)
from cordwood.storage.catalogue import TopicEntry
from cordwood.storage.files import File, Files, join, parent, read_file, write_atomically
from cordwood.storage.mark import Mark, MarkFile, read_marks
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.partition_state import (
    Bound,
    PartitionState,
    SealedInfo,
    mark_path,
    read_state,
    sealed_state,
    state_path,
    write_state,
)
from cordwood.storage.reading import index_frames, note_frames
from cordwood.storage.segment import (
    ActiveSegment,
    Flushed,
    OwnedSegment,
    Segment,
    load_vouched,
    segment_path,
    segments_directory,
)
from cordwood.storage.store import Store
from cordwood.storage.view import bounds_of
from cordwood.telemetry import (
    INDEX_CORRUPTIONS_DETECTED,
    INDEX_REBUILDS,
    RECOVERY_SECONDS,
    TORN_BYTES,
)

SCAN_WINDOW_BYTES = 8 << 20
#: How far into a cut tail a whole frame is looked for, to say in the report that there was one.
SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a partition found and did. A torn tail is a result, not an error."""

    directory: str
    scanned_bytes: int = 0
    kept_bytes: int = 0
    truncated_bytes: int = 0
    quarantined: str | None = None
    whole_frame_cut: bool = False
    indexes_rebuilt: bool = False
    finished_truncation: bool = False
    finished_swap: bool = False
    removed_leftovers: tuple[str, ...] = ()
    damage: str | None = None

    @property
    def clean(self) -> bool:
        """Whether there was nothing to do."""
        return self == RecoveryReport(self.directory)


def partition_exists(files: Files, directory: str, initial_offset: int) -> bool:
    """Return whether a partition was ever committed in *directory*.

    Raises:
        MetadataDamaged: If something beside it says that one was, but there is no `partition.json`.
    """
    if files.exists(state_path(directory)):
        return True
    # What create_partition leaves when it is cut off: an empty first segment and a mark at its start.
    for mark in read_marks(files, mark_path(directory)):
        begun = (mark.leader_epoch, mark.base, mark.position, mark.next_offset, mark.log_start_offset)
        if begun != (0, initial_offset, 0, initial_offset, initial_offset):
            raise MetadataDamaged(state_path(directory), "is missing, but its mark is there")
    segments = segments_directory(directory)
    for name in files.list(segments) if files.exists(segments) else ():
        with contextlib.closing(files.open(join(segments, name), "read")) as file:
            if file.size() or name != f"{initial_offset:020d}.log":
                raise MetadataDamaged(state_path(directory), f"is missing, but {name} is there")
    return False


def check_belongs(
    directory: str, state: PartitionState, entry: TopicEntry, partition: int, initial_offset: int
) -> None:
    """Refuse a partition that is not the one its place says.

    Raises:
        MetadataDamaged: If it is another topic's or partition's, or begins before *initial_offset*.
    """
    if (state.topic, state.topic_id, state.partition) != (entry.name, entry.id, partition):
        found = f"partition {state.partition} of topic {state.topic} with id {state.topic_id}"
        raise MetadataDamaged(state_path(directory), f"is that of {found}")
    if min([state.active_base, *(info.base for info in state.sealed)]) < initial_offset:
        raise MetadataDamaged(state_path(directory), f"begins before offset {initial_offset}")


def create_partition(
    around: Surroundings, directory: str, config: TopicConfig, format_: Format, state: PartitionState
) -> PartitionLog:
    """Make a partition without records. Durable on return; a crash before that leaves no partition."""
    files = around.files
    files.make_directories(segments_directory(directory))
    store = create_store(files, directory, state.active_base, config)
    interval = state.index_interval_bytes
    active = empty_active(around, directory, state.active_base, store, format_, interval)
    with contextlib.suppress(FileNotFoundError):
        files.unlink(mark_path(directory))
    mark = MarkFile.create(files, mark_path(directory), mark_of(state, active, 0, active.next_offset))
    write_state(files, directory, state)
    # Whoever made these directories may have crashed before syncing their names: the topic's, the one of
    # all topics, and the data directory.
    above = directory
    for _ in range(3):
        above = parent(above)
        files.sync_directory(above)
    return PartitionLog(around, directory, config, format_, state, (), active, mark, new=True)


def open_partition(
    around: Surroundings, directory: str, quarantine: str, config: TopicConfig, format_: Format
) -> tuple[PartitionLog, RecoveryReport]:
    """Open an existing partition to append to it, after whatever happened to it.

    Deterministic and itself crash-safe: run again, it does the same. Time goes with what lies past the
    mark, not with the size of the log.

    Raises:
        MetadataDamaged: If `partition.json` is missing or damaged, or contradicts the mark.
    """
    started = around.clock.monotonic_ns()
    state = read_state(around.files, directory)
    report = RecoveryReport(directory)
    if state.truncating is not None:
        state = truncation.finish_cut(around.files, directory, state)
        report = replace(report, finished_truncation=True)
    if state.swapping is not None:
        state = swapping.finish_swap(around.files, directory, state)
        report = replace(report, finished_swap=True)
    marks = read_marks(around.files, mark_path(directory))
    if not marks:
        # No crash takes both slots. Every whole frame is kept all the same, but somebody should know.
        report = replace(report, damage=f"{mark_path(directory)} is missing or unreadable")
    mark = newest_mark(state, marks, directory)
    sealed: tuple[Segment, ...] = tuple(
        OwnedSegment(around.open_files, directory, info, format_) for info in state.sealed
    )
    recovery = _Recovery(around, directory, quarantine, config, format_, state, mark, report)
    active = recovery.recover_active()
    if recovery.lost is not None:
        lost = Segment(around.open_files, directory, recovery.lost, format_)
        sealed = (*sealed, lost)
    report = replace(recovery.report, removed_leftovers=recovery.remove_leftovers())
    mark_file = MarkFile.open(around.files, mark_path(directory))
    now = mark_of(recovery.state, active, active.store.end, active.next_offset)
    if mark is None or now != mark._replace(sequence=0) or not report.clean:
        mark_file.write(now)
        mark_file.sync()
        around.files.sync_directory(directory)
    log = PartitionLog(around, directory, config, format_, recovery.state, sealed, active, mark_file)
    around.telemetry.observe(RECOVERY_SECONDS, (around.clock.monotonic_ns() - started) / 1e9)
    return log, report


def newest_mark(state: PartitionState, marks: list[Mark], directory: str) -> Mark | None:
    """Return the newest slot that speaks of this state's epoch, None if there is none.

    Raises:
        MetadataDamaged: If a slot speaks of an epoch or a segment that `partition.json` does not know yet:
            it was committed before the mark was written, so it is not what it was.
    """
    for mark in marks:
        same = mark.leader_epoch == state.leader_epoch
        later = mark.base > state.active_base or mark.log_start_offset > state.log_start_offset
        if mark.leader_epoch > state.leader_epoch or (same and later):
            raise MetadataDamaged(state_path(directory), "is older than the mark beside it")
    return next((mark for mark in marks if mark.leader_epoch == state.leader_epoch), None)


def sync_names(files: Files, data: str) -> None:
    """Sync every directory of a data directory that may hold names which its last writer had no time to sync.

    A process that is killed leaves files that the next one sees, names included. What that one builds on
    them must not outlive them when the power goes. Files are not looked at: there may be very many.
    """
    staged, topics = join(data, "tmp", "sink"), join(data, "topics")
    queries, named = _below(files, staged), _below(files, topics)
    partitions = [partition for topic in named for partition in _below(files, topic)]
    for directory in (
        *(batch for query in queries for batch in _below(files, query)),
        *queries,
        staged,
        join(data, "tmp"),
        join(data, "meta", "sink"),
        join(data, "meta"),
        *(segments_directory(partition) for partition in partitions),
        *partitions,
        *named,
        topics,
        data,
    ):
        if files.is_directory(directory):
            files.sync_directory(directory)


def _below(files: Files, directory: str) -> list[str]:
    """Return the paths in a directory, none if it is not there."""
    return [join(directory, name) for name in files.list(directory)] if files.is_directory(directory) else []


def synced_bound(state: PartitionState, mark: Mark | None) -> Bound:
    """Return how much of the active segment is known to be synced."""
    bound = Bound(state.active_base, 0, state.active_base)
    if state.epoch_start.base == state.active_base:
        bound = state.epoch_start
    if mark is not None and mark.base == state.active_base and mark.position > bound.position:
        bound = Bound(mark.base, mark.position, mark.next_offset)
    return bound


class _Recovery:
    """The recovery of one partition's active segment."""

    def __init__(
        self,
        around: Surroundings,
        directory: str,
        quarantine: str,
        config: TopicConfig,
        format_: Format,
        state: PartitionState,
        mark: Mark | None,
        report: RecoveryReport,
    ) -> None:
        self.around = around
        self.directory = directory
        self.quarantine = quarantine
        self.config = config
        self.format = format_
        self.state = state
        self.mark = mark
        self.report = report
        self.lost: SealedInfo | None = None

    def recover_active(self) -> ActiveSegment:
        """Return the active segment, its tail scanned, cut where it was torn, and synced."""
        bound = synced_bound(self.state, self.mark)
        path = segment_path(self.directory, bound.base, "log")
        try:
            file = self.around.files.open(path, "write")
        except FileNotFoundError:
            return self._replace_lost(bound, "is missing")
        size = file.size()
        if size < bound.position:
            file.close()
            return self._replace_lost(bound, f"has {size} bytes, but {bound.position} were synced")
        index, times, flushed = self._load_indexes(bound)
        end = self._scan_tail(file, bound, size, index, times)
        if size > end.position:
            self._cut(file, end.position, size)
        if end.position > bound.position:
            # These bytes may be in the cache only; no reader may see them before they are synced.
            file.sync()
        info = SealedInfo(
            base=bound.base,
            size=end.position,
            next_offset=end.next_offset,
            index_interval_bytes=self.state.index_interval_bytes,
            generation=self.state.active_generation,
        )
        store = Store(file, end.position, preallocate=self.config.preallocate)
        active = ActiveSegment(
            self.around.open_files,
            self.directory,
            info,
            self.format,
            store,
            (index, times),
            opened_ms(times, self.around.clock),
        )
        if flushed is None:
            active.rewrite_indexes()
        else:
            active.flushed = flushed
            active.trim_index_files()
            active.sync_indexes(len(index), len(times))
        return active

    def _replace_lost(self, bound: Bound, reason: str) -> ActiveSegment:
        """Seal a segment that lost synced bytes as it is, and go on after what it should have held."""
        path = segment_path(self.directory, bound.base, "log")
        self.report = replace(self.report, damage=f"{path} {reason}")
        if bound.next_offset == bound.base:
            store = create_store(self.around.files, self.directory, bound.base, self.config)
        else:
            interval = self.state.index_interval_bytes
            # Nobody knows its timestamps any more, so a search by time must not pass it over.
            self.lost = SealedInfo(
                bound.base,
                bound.position,
                bound.next_offset,
                max_timestamp=INT64_MAX,
                index_interval_bytes=interval,
            )
            store = create_store(self.around.files, self.directory, bound.next_offset, self.config)
            self.state = sealed_state(self.state, self.lost)
            write_state(self.around.files, self.directory, self.state)
        return empty_active(
            self.around,
            self.directory,
            self.state.active_base,
            store,
            self.format,
            self.state.index_interval_bytes,
        )

    # --- indexes ----------------------------------------------------------------------------------

    def _load_indexes(self, bound: Bound) -> tuple[SparseIndex, TimeIndex, Flushed | None]:
        """Return the indexes of what lies below *bound*, built from the log if the files are not as synced.

        The entries the mark vouches for are taken; what lies between them and the bound is scanned.
        """
        mark, interval = self.mark, self.state.index_interval_bytes
        if bound.position == 0:
            return SparseIndex(interval), TimeIndex(), None
        if mark is not None and mark.base == bound.base:
            vouched = load_vouched(self.around.files, self.directory, mark, interval)
            if vouched is not None:
                self._catch_up(*vouched, bound)
                entries = (mark.index_entries, mark.time_index_entries)
                return *vouched, Flushed(*entries, mark.index_crc, mark.time_index_crc)
            self.around.telemetry.add(INDEX_CORRUPTIONS_DETECTED)
        self.around.telemetry.add(INDEX_REBUILDS)
        self.report = replace(self.report, indexes_rebuilt=True)
        index, time_index = SparseIndex(interval), TimeIndex()
        self._catch_up(index, time_index, bound)
        return index, time_index, None

    def _catch_up(self, index: SparseIndex, times: TimeIndex, bound: Bound) -> None:
        """Add the entries of frames from the last one indexed up to *bound*, as far as they can be walked."""
        info = SealedInfo(
            bound.base,
            bound.position,
            bound.next_offset,
            index_interval_bytes=index.interval_bytes,
            generation=self.state.active_generation,
        )
        segment = Segment(self.around.open_files, self.directory, info, self.format)
        bounds = bounds_of(self.state, info, self.config.stored_bytes_max)
        damage = index_frames(segment, bounds, index, times, index.last() or (bound.base, 0))
        if damage is not None:
            self.report = replace(self.report, damage=str(damage))

    # --- the tail ---------------------------------------------------------------------------------

    def _scan_tail(self, file: File, bound: Bound, size: int, index: SparseIndex, times: TimeIndex) -> Bound:
        """Walk the whole, valid frames after *bound* and return where they end."""
        position, next_offset, window = bound.position, bound.next_offset, SCAN_WINDOW_BYTES
        while position < size:
            data = file.read_at(position, min(window, size - position))
            table = self._scan(data, next_offset)
            note_frames(index, times, table, position)
            if len(table):
                next_offset = table.next_offset(len(table) - 1)
                position += table.end
            more = position + len(data) - table.end < size
            if table.ending is Ending.SHORT and more:
                window = window if len(table) else window * 2
                continue
            if table.ending is not Ending.END:
                break
        self.report = replace(
            self.report, scanned_bytes=size - bound.position, kept_bytes=position - bound.position
        )
        return Bound(bound.base, position, next_offset)

    def _scan(self, data: bytes, next_offset: int) -> FrameTable:
        epoch = self.state.leader_epoch
        return self.format.scan(
            data,
            next_offset=next_offset,
            dense=True,
            epochs=((0, epoch),),
            size_max=self.config.stored_bytes_max,
        )

    def _cut(self, file: File, position: int, size: int) -> None:
        """Cut the file at *position*, keeping a copy of what goes unless it is zeros."""
        tail = file.read_at(position, size - position)
        if any(tail):
            name = f"{self.state.topic}-{self.state.partition}-{self.state.active_base:020d}-{position}.torn"
            target = join(self.quarantine, name)
            self.around.files.make_directories(self.quarantine)
            self.around.files.sync_directory(parent(self.quarantine))
            write_atomically(self.around.files, target, tail)
            torn = len(tail.rstrip(b"\0"))
            self.around.telemetry.add(TORN_BYTES, torn)
            self.report = replace(
                self.report,
                truncated_bytes=torn,
                quarantined=target,
                whole_frame_cut=self._holds_a_frame(tail[:SEARCH_BYTES]),
            )
        file.truncate(position)
        file.sync()

    def _holds_a_frame(self, tail: bytes) -> bool:
        """Return whether a whole, valid frame lies in *tail*: then more than a last write was lost."""
        return any(
            len(
                self.format.scan(
                    tail,
                    start,
                    next_offset=0,
                    dense=False,
                    epochs=None,
                    size_max=self.config.stored_bytes_max,
                )
            )
            for start in self.format.candidates(tail)
        )

    # --- leftovers --------------------------------------------------------------------------------

    def remove_leftovers(self) -> tuple[str, ...]:
        """Remove segment files that no committed state names; return their names.

        They are what a crash left of a roll, a removal or a truncation that was never committed. Bytes
        that this cannot explain go to the quarantine.
        """
        files, segments = self.around.files, segments_directory(self.directory)
        known = {f"{info.base:020d}" for info in self.state.sealed} | {f"{self.state.active_base:020d}"}
        removed = []
        names = files.list(segments)
        # Tombs last: as long as one is there, what is left of its segment is known to be on its way out.
        for name in sorted(names, key=lambda name: name.endswith(f".{truncation.TOMB_SUFFIX}")):
            base, _, suffix = name.partition(".")
            if base in known and suffix in truncation.SUFFIXES:
                continue
            path = join(segments, name)
            below = base.isdigit() and int(base) < min(map(int, known))
            explained = below or f"{base}.{truncation.TOMB_SUFFIX}" in names
            if suffix == "log" and not explained and any(read_file(files, path)):
                files.make_directories(self.quarantine)
                files.sync_directory(parent(self.quarantine))
                leftover = f"{self.state.topic}-{self.state.partition}-{name}"
                files.rename(path, join(self.quarantine, leftover))
                files.sync_directory(self.quarantine)
            else:
                files.unlink(path)
            removed.append(name)
        if removed:
            files.sync_directory(segments)
        return tuple(removed)
