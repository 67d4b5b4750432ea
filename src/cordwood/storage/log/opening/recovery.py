"""Open a partition: finish committed changes, scan past the mark, distinguish torn from corrupt.

Invalid bytes below the bound that the mark proves synced are corruption: they stay, and readers get an error.
Invalid bytes above it are a torn tail: they were never acknowledged, so they are copied to the quarantine and
truncated. The valid part of the tail is synced before any reader sees it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import (
    UNKNOWN_MS,
    File,
    Files,
    Mark,
    MarkFile,
    Store,
    join,
    parent,
    read_marks,
    write_atomically,
)
from cordwood.errors import MetadataDamaged
from cordwood.formats import ENTRY_SIZE, Beside, Ending, Format, FrameTable
from cordwood.index import TimeIndex
from cordwood.kernels import INT64_MAX
from cordwood.storage.log.active_segment import (
    NOT_OPENED,
    ActiveSegment,
    Flushed,
    Stores,
    create_stores,
    empty_active,
    mark_of,
    may_preallocate,
    opened_ms,
)
from cordwood.storage.log.changes import swapping, truncation
from cordwood.storage.log.context import LogContext
from cordwood.storage.log.opening.leftovers import holds_records, move_to_quarantine, remove_leftovers
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.log.reading import Bounds, bounds_of, index_frames, left_before, note_frames
from cordwood.storage.log.segment import (
    OffsetIndex,
    OwnedSegment,
    Segment,
    load_vouched,
    segment_path,
    segments_directory,
    sidecar_end,
)
from cordwood.storage.log.state import (
    Bound,
    PartitionState,
    SealedInfo,
    active_info,
    mark_path,
    read_state,
    sealed_state,
    state_path,
    write_state,
)
from cordwood.storage.meta import named_by
from cordwood.telemetry import INDEX_CORRUPTIONS_DETECTED, RECOVERY_SECONDS, TORN_BYTES

SCAN_WINDOW_BYTES = 8 << 20
#: The bytes of a torn tail that are searched for a whole frame, which the report mentions.
SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings and actions of opening a partition. A torn tail is a result, not an error."""

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
    #: Files of ``segments/`` that nothing explains, moved to the quarantine.
    set_aside: tuple[str, ...] = ()
    damage: str | None = None

    @property
    def clean(self) -> bool:
        """Whether there was nothing to recover."""
        return self == RecoveryReport(self.directory)


def create_partition(
    context: LogContext, directory: str, config: TopicConfig, format_: Format, state: PartitionState
) -> PartitionLog:
    """Create an empty partition. Durable on return; a crash before that leaves no partition."""
    files = context.files
    files.make_directories(segments_directory(directory))
    stores = create_stores(files, directory, state.active_base, config, format_)
    active = empty_active(context, directory, state, stores, format_)
    with contextlib.suppress(FileNotFoundError):
        files.unlink(mark_path(directory))
    first = active.next_offset
    mark = MarkFile.create(files, mark_path(directory), mark_of(state, active, 0, first, first))
    write_state(files, directory, state)
    # A process that made these directories may have crashed before it synced their names: the directory of
    # the topic, the one of all topics, and the data directory.
    above = directory
    for _ in range(3):
        above = parent(above)
        files.sync_directory(above)
    return PartitionLog(context, directory, config, format_, state, (), active, mark, new=True)


def open_partition(
    context: LogContext, directory: str, quarantine: str, config: TopicConfig, format_: Format
) -> tuple[PartitionLog, RecoveryReport]:
    """Open an existing partition for appends, and recover it if needed.

    Deterministic and crash-safe: after a crash, it can run again with the same result. Its time depends on
    the bytes past the mark, not on the size of the log.

    Raises:
        MetadataDamaged: If `partition.json` is missing or damaged, or contradicts the mark.
    """
    started = context.clock.monotonic_ns()
    state = read_state(context.files, directory)
    if state.record_format != format_.name:
        # Checked before the scan: frames of another format would be taken for a torn tail.
        found = f"has format {state.record_format}, but its topic has format {format_.name}"
        raise MetadataDamaged(state_path(directory), found)
    report = RecoveryReport(directory)
    if state.truncating is not None:
        state = truncation.finish_cut(context.files, directory, state)
        report = replace(report, finished_truncation=True)
    if state.swapping is not None:
        state = swapping.finish_swap(context.files, directory, state)
        report = replace(report, finished_swap=True)
    marks = read_marks(context.files, mark_path(directory))
    if not marks:
        # No crash destroys both slots. Every whole frame is still kept, but the report mentions the damage.
        report = replace(report, damage=f"{mark_path(directory)} is missing or unreadable")
    mark = newest_mark(state, marks, directory)
    opened = (OwnedSegment(context.open_files, directory, info, format_) for info in state.sealed)
    sealed: tuple[Segment, ...] = tuple(opened)
    recovery = _Recovery(context, directory, quarantine, config, format_, state, mark, report)
    active = recovery.recover_active()
    if recovery.lost is not None:
        sealed = (*sealed, Segment(context.open_files, directory, recovery.lost, format_))
    leftovers = remove_leftovers(context.files, directory, quarantine, recovery.state, format_)
    report = replace(recovery.report, removed_leftovers=leftovers.deleted, set_aside=leftovers.set_aside)
    mark_file = MarkFile.open(context.files, mark_path(directory))
    log = PartitionLog(context, directory, config, format_, recovery.state, sealed, active, mark_file)
    log.learn_transactions()
    now = mark_of(recovery.state, active, active.store.end, active.next_offset, log.view.last_stable_offset)
    # The append time alone is no reason to write: closing writes it.
    if mark is None or now != mark._replace(sequence=0, appended_ms=now.appended_ms) or not report.clean:
        mark_file.write(now)
        mark_file.sync()
        context.files.sync_directory(directory)
    if any(info.sha256 is None for info in recovery.state.sealed):
        log.note_for_hashing()
    context.telemetry.observe(RECOVERY_SECONDS, (context.clock.monotonic_ns() - started) / 1e9)
    return log, report


def newest_mark(state: PartitionState, marks: list[Mark], directory: str) -> Mark | None:
    """Return the newest slot with the epoch of *state*, or None if there is none.

    Raises:
        MetadataDamaged: If a slot has an epoch or a segment that `partition.json` does not have. The state is
            always committed before the mark, so `partition.json` is not the committed one.
    """
    for mark in marks:
        same = mark.leader_epoch == state.leader_epoch
        later = mark.base > state.active_base or mark.log_start_offset > state.log_start_offset
        if mark.leader_epoch > state.leader_epoch or (same and later):
            raise MetadataDamaged(state_path(directory), "is older than the mark beside it")
    return next((mark for mark in marks if mark.leader_epoch == state.leader_epoch), None)


def sync_names(files: Files, data: str) -> None:
    """Sync every directory of a data directory that may have unsynced names from its last writer.

    The next process sees the files of a killed one, even if their names are not synced. State that it derives
    from them must not survive a power cut that loses these files. Files themselves are not synced: there may
    be very many.
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
    """Return the paths in a directory, or none if it does not exist."""
    return [join(directory, name) for name in files.list(directory)] if files.is_directory(directory) else []


def synced_bound(state: PartitionState, mark: Mark | None) -> Bound:
    """Return the end of the part of the active segment that is known to be synced."""
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
        context: LogContext,
        directory: str,
        quarantine: str,
        config: TopicConfig,
        format_: Format,
        state: PartitionState,
        mark: Mark | None,
        report: RecoveryReport,
    ) -> None:
        self.context = context
        self.directory = directory
        self.quarantine = quarantine
        self.config = config
        self.format = format_
        self.state = state
        self.mark = mark
        self.report = report
        self.lost: SealedInfo | None = None

    def recover_active(self) -> ActiveSegment:
        """Scan the tail of the active segment, truncate a torn tail, sync, and return the segment."""
        bound = synced_bound(self.state, self.mark)
        path = segment_path(self.directory, bound.base, "log")
        try:
            file = self.context.files.open(path, "write")
        except FileNotFoundError:
            return self._replace_lost(bound, f"{path} is missing")
        size = file.size()
        sidecar, lost = self._open_sidecar(bound)
        if size < bound.position:
            lost = f"{path} has {size} bytes, but {bound.position} were synced"
        if lost is not None:
            for opened in (file, sidecar):
                if opened is not None:
                    opened.close()
            return self._replace_lost(bound, lost)
        segment = Segment(
            self.context.open_files, self.directory, active_info(self.state, bound), self.format
        )
        index, times, flushed = self._load_indexes(segment, bound)
        before = left_before(segment, self._bounds_of(segment), index)
        entries = self._entries_past(sidecar, bound)
        end, left = self._scan_tail(file, bound, size, (index, times), entries, before)
        self.context.open_files.forget(segment.number)
        if size > end.position:
            self._cut(file, end.position, size, "torn")
        stores = self._stores(file, sidecar, end)
        if end.position > bound.position:
            # These bytes may be in the page cache only; no reader may see them before they are synced.
            file.sync()
            if sidecar is not None:
                sidecar.sync()
        active = ActiveSegment(
            self.context.open_files,
            self.directory,
            active_info(self.state, end),
            self.format,
            stores,
            opened_ms(times, self.context.clock),
            self._appended_ms(end),
            left or b"",
        )
        active.opened_with = self.mark
        active.take_indexes(index, times)
        if flushed is None:
            active.rewrite_indexes()
        else:
            active.flushed = flushed
            active.trim_index_files()
            active.sync_indexes(len(index), len(times))
        return active

    def _appended_ms(self, end: Bound) -> int:
        """Return when the last record below *end* was appended: as the mark says, or no later than now."""
        if not end.position:
            return NOT_OPENED
        mark, now_ms = self.mark, self.context.clock.now_ms()
        said = mark is not None and (mark.base, mark.position) == (end.base, end.position)
        if mark is None or not said or mark.appended_ms == UNKNOWN_MS:
            return now_ms
        return min(mark.appended_ms, now_ms)

    # --- the sidecar ------------------------------------------------------------------------------

    def _open_sidecar(self, bound: Bound) -> tuple[File | None, str | None]:
        """Return the sidecar file and a description of lost synced bytes; both may be None."""
        sidecar = self.format.sidecar
        if sidecar is None:
            return None, None
        path, head = segment_path(self.directory, bound.base, sidecar.suffix), sidecar.head(bound.base)
        try:
            file = self.context.files.open(path, "write")
        except FileNotFoundError:
            return None, f"{path} is missing"
        synced = sidecar_end(sidecar, bound.base, bound.next_offset)
        if file.size() < synced:
            return file, f"{path} has {file.size()} bytes, but {synced} were synced"
        if file.read_at(0, len(head)) != head:
            return file, f"{path} has a header that is not that of offset {bound.base}"
        return file, None

    def _entries_past(self, sidecar: File | None, bound: Bound) -> bytes:
        """Return the bytes of the sidecar past *bound*."""
        if sidecar is None or self.format.sidecar is None:
            return b""
        start = sidecar_end(self.format.sidecar, bound.base, bound.next_offset)
        return sidecar.read_at(start, sidecar.size() - start)

    def _stores(self, file: File, sidecar: File | None, end: Bound) -> Stores:
        """Return the stores for appends, with the sidecar truncated after the entry of the last frame."""
        beside = None
        if sidecar is not None and self.format.sidecar is not None:
            kept, size = sidecar_end(self.format.sidecar, end.base, end.next_offset), sidecar.size()
            if size > kept:
                self._cut(sidecar, kept, size, f"{self.format.sidecar.suffix}.torn")
            beside = Store(sidecar, kept)
        preallocate = may_preallocate(self.config, self.format)
        return Stores(Store(file, end.position, preallocate=preallocate), beside)

    def _replace_lost(self, bound: Bound, reason: str) -> ActiveSegment:
        """Seal a segment that lost synced bytes, and continue after the offsets that it should hold."""
        self.report = replace(self.report, damage=reason)
        files = self.context.files
        if bound.next_offset == bound.base:
            stores = create_stores(files, self.directory, bound.base, self.config, self.format)
        else:
            # Its timestamps are unknown, so a search by time must not skip it, and its age counts from now.
            self.lost = msgspec.structs.replace(
                active_info(self.state, bound),
                max_timestamp=INT64_MAX,
                generation=0,
                sealed_ms=self.context.clock.now_ms(),
            )
            self._clear(bound.next_offset)
            stores = create_stores(files, self.directory, bound.next_offset, self.config, self.format)
            self.state = sealed_state(self.state, self.lost)
            write_state(files, self.directory, self.state)
        return empty_active(self.context, self.directory, self.state, stores, self.format)

    def _clear(self, base: int) -> None:
        """Move files with records out of the way of a new segment: making it would empty them."""
        for suffix in ("log", *truncation.SIDECAR_SUFFIXES):
            path = segment_path(self.directory, base, suffix)
            if holds_records(self.context.files, path):
                name = f"{base:020d}.{suffix}"
                move_to_quarantine(self.context.files, self.directory, self.quarantine, self.state, name)

    # --- indexes ----------------------------------------------------------------------------------

    def _load_indexes(self, segment: Segment, bound: Bound) -> tuple[OffsetIndex, TimeIndex, Flushed | None]:
        """Return the indexes of frames below *bound*, rebuilt from the store if the index files are invalid.

        The index entries that the mark covers are used; frames between them and the bound are scanned.
        """
        mark = self.mark
        if bound.position == 0:
            return *segment.new_indexes(), None
        if mark is not None and mark.base == bound.base:
            vouched = load_vouched(segment, mark)
            if vouched is not None:
                self._catch_up(segment, *vouched)
                entries = (mark.index_entries, mark.time_index_entries)
                return *vouched, Flushed(*entries, mark.index_crc, mark.time_index_crc)
            self.context.telemetry.add(INDEX_CORRUPTIONS_DETECTED)
        self.report = replace(self.report, indexes_rebuilt=True)
        index, time_index = segment.new_indexes()
        with self.context.open_files.rebuilding():
            self._catch_up(segment, index, time_index)
        return index, time_index, None

    def _catch_up(self, segment: Segment, index: OffsetIndex, times: TimeIndex) -> None:
        """Add the entries of frames after the last indexed one, as far as frames can be walked."""
        # Both indexes were synced at the same time. A dense offset index does not show up to which frame; the
        # time index reaches that frame, or the following frames have no entry in it.
        known = index.last() if segment.has_sparse_index else index.floor_entry(times.last_offset())
        start = known or (segment.base, 0)
        damage = index_frames(segment, self._bounds_of(segment), index, times, start)
        if damage is not None:
            self.report = replace(self.report, damage=str(damage))

    def _bounds_of(self, segment: Segment) -> Bounds:
        return bounds_of(self.state, segment.info, self.config.stored_bytes_max)

    # --- the tail ---------------------------------------------------------------------------------

    def _scan_tail(
        self,
        file: File,
        bound: Bound,
        size: int,
        indexes: tuple[OffsetIndex, TimeIndex],
        entries: bytes,
        before: bytes | None,
    ) -> tuple[Bound, bytes | None]:
        """Walk the whole, valid frames after *bound*; return their end, and the last frame's carry-over.

        *entries* are the sidecar's entries after *bound*; *before* is the carry-over of the frame before it.
        """
        position, next_offset, window = bound.position, bound.next_offset, SCAN_WINDOW_BYTES
        while position < size:
            data = file.read_at(position, min(window, size - position))
            passed = (next_offset - bound.next_offset) * ENTRY_SIZE
            table = self._scan(data, next_offset, Beside(position, memoryview(entries)[passed:], before))
            note_frames(*indexes, table, position)
            if len(table):
                next_offset = table.next_offset(len(table) - 1)
                position += table.end
                before = table.left
            more = position + len(data) - table.end < size
            if table.ending is Ending.SHORT and more:
                window = window if len(table) else window * 2
                continue
            if table.ending is not Ending.END:
                break
        self.report = replace(
            self.report, scanned_bytes=size - bound.position, kept_bytes=position - bound.position
        )
        return Bound(bound.base, position, next_offset), before

    def _scan(self, data: bytes, next_offset: int, beside: Beside) -> FrameTable:
        epoch = self.state.leader_epoch
        return self.format.scan(
            data,
            next_offset=next_offset,
            dense=True,
            epochs=((0, epoch),),
            size_max=self.config.stored_bytes_max,
            beside=beside,
        )

    def _cut(self, file: File, position: int, size: int, suffix: str) -> None:
        """Truncate the file at *position*; copy a tail that is not all zeros to the quarantine first."""
        tail = file.read_at(position, size - position)
        if any(tail):
            rest = f"-{self.state.partition}-{self.state.active_base:020d}-{position}.{suffix}"
            target = join(self.quarantine, named_by(self.state.topic, self.state.topic_id, rest))
            self.context.files.make_directories(self.quarantine)
            self.context.files.sync_directory(parent(self.quarantine))
            write_atomically(self.context.files, target, tail)
            torn = len(tail.rstrip(b"\0"))
            self.context.telemetry.add(TORN_BYTES, torn)
            self.report = replace(
                self.report,
                truncated_bytes=self.report.truncated_bytes + torn,
                quarantined=self.report.quarantined or target,
                whole_frame_cut=self.report.whole_frame_cut or self._holds_a_frame(tail[:SEARCH_BYTES]),
            )
        file.truncate(position)
        file.sync()

    def _holds_a_frame(self, tail: bytes) -> bool:
        """Return whether *tail* contains a whole, valid frame: then more than the last write was lost."""
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
