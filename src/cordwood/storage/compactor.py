"""Compacting a partition: learn the last offset of each key, then write segments without what is superseded.

Appends and reads go on meanwhile: sealed segments are read and their successors prepared without any lock,
and each group of them is swapped at one commit point. Whatever crashes, at any moment what was dropped has a
later record with its key in the log; tombstones go only once nothing before them is left. Memory: a map of
keys of a fixed size and a few windows; keys that do not fit are left for another pass.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import google_crc32c
import msgspec

from cordwood.errors import CorruptRange, DiskFull, StorageError
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import NO_TIMESTAMP, TimeIndex
from cordwood.kernels import BinaryBuffers, Buffer, KeyMap, Want
from cordwood.storage.active import Surroundings
from cordwood.storage.cleaner_checkpoint import read_checkpoint, write_checkpoint
from cordwood.storage.compaction import CompactionPlan, group_segments, is_tombstone_due, plan_compaction
from cordwood.storage.files import File, write_all
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.partition_state import SealedInfo
from cordwood.storage.reading import Window, index_frames, walk
from cordwood.storage.segment import OwnedSegment, Segment, segment_path, segments_directory
from cordwood.storage.store import DISK_FULL, as_storage_error
from cordwood.storage.swapping import discard_prepared, swap_path
from cordwood.storage.view import View, bounds_of
from cordwood.telemetry import (
    BYTES_RECLAIMED,
    COMPACTION_DROPPED_RECORDS,
    COMPACTION_READ_BYTES,
    COMPACTION_WRITTEN_BYTES,
    COMPACTIONS,
)

WINDOW_BYTES = 1 << 20
_SLOT_BYTES = 24

Pace = Callable[[int], None]
"""Told how many bytes were read or written; takes its time where there is a limit."""


def no_pace(size: int) -> None:
    """Go on at once."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What compacting a partition did. Bytes are those of the segments that took part."""

    topic: str
    partition: int
    reason: str
    passes: int = 0
    cleaned_offset: int = 0
    records_dropped: int = 0
    tombstones_dropped: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments_after: int = 0

    def plus(self, other: CompactionReport) -> CompactionReport:
        """Return both as one; *other* came later."""
        return replace(
            other,
            reason=self.reason,
            passes=self.passes + other.passes,
            records_dropped=self.records_dropped + other.records_dropped,
            tombstones_dropped=self.tombstones_dropped + other.tombstones_dropped,
            bytes_before=max(self.bytes_before, other.bytes_before),
            segments_before=max(self.segments_before, other.segments_before),
        )


class Rewritten(NamedTuple):
    """What became of a group of segments; ``segment`` is None where their bytes stay as they are."""

    segment: Segment | None
    size: int
    records_dropped: int
    tombstones_dropped: int
    has_tombstones: bool


def compact_partition(
    around: Surroundings,
    log: PartitionLog,
    *,
    map_bytes: int,
    secret: bytes,
    pace: Pace = no_pace,
    force: bool = False,
) -> CompactionReport | None:
    """Compact *log* as far as its settings ask for it, and say what was done; None if nothing was due.

    *map_bytes* bounds the memory for keys, *secret* makes their hashes unguessable. One caller at a time.

    Raises:
        CorruptRange: If a segment is damaged: nobody knows which keys it holds.
        DiskFull: What was swapped before stays; nothing else has changed.
    """
    total: CompactionReport | None = None
    while True:
        now_ms, view = around.clock.now_ms(), log.view
        checkpoint = read_checkpoint(around.files, log.directory, view.state, around.telemetry)
        infos = [segment.info for segment in view.segments[:-1]]
        cleaned = checkpoint.last_cleaned_offset
        plan = plan_compaction(infos, cleaned, log.config, now_ms, force=force)
        if plan is None:
            return total
        done = _Pass(around, log, view, plan, now_ms, pace).run(map_bytes, secret)
        total = done if total is None else total.plus(done)
        try:
            write_checkpoint(
                around.files,
                log.directory,
                log.state,
                checkpoint,
                now_ms=now_ms,
                cleaned_offset=done.cleaned_offset,
                compacting=done.cleaned_offset < plan.end,
            )
        except OSError as error:
            raise as_storage_error(error, "writing the cleaner's checkpoint") from error
        around.telemetry.add(COMPACTIONS)
        if done.cleaned_offset >= plan.end or done.cleaned_offset <= cleaned:
            return total


class _Pass:
    """One pass: as many keys as fit into the map."""

    def __init__(
        self,
        around: Surroundings,
        log: PartitionLog,
        view: View,
        plan: CompactionPlan,
        now_ms: int,
        pace: Pace,
    ) -> None:
        self.around = around
        self.log = log
        self.view = view
        self.plan = plan
        self.now_ms = now_ms
        self.pace = pace
        self.segments = {segment.base: segment for segment in view.segments[:-1]}

    def run(self, map_bytes: int, secret: bytes) -> CompactionReport:
        """Learn keys, then swap group after group."""
        telemetry = self.around.telemetry
        keys, end = self._learn(map_bytes, secret)
        last_batches = self.log.last_batches()
        dropped = tombstones = 0
        groups = group_segments(self.plan, end, self.log.config, self.now_ms)
        for group in groups:
            old = tuple(self.segments[info.base] for info in group)
            found = self._rewrite(old, keys, end, last_batches)
            before = sum(info.size for info in group)
            if found.segment is not None:
                if not self.log.swap(old, found.segment):
                    # A truncation or retention was faster; what is left is planned anew next time.
                    discard_prepared(self.around.files, self.log.directory)
                    end = min(end, group[0].base)
                    break
                telemetry.add(BYTES_RECLAIMED, before - found.size)
                telemetry.add(COMPACTION_WRITTEN_BYTES, found.size)
            elif found.has_tombstones and group[0].tombstones_since_ms == NO_TIMESTAMP:
                since = self._tombstones_since(group, end, has_tombstones=True)
                self.log.note_sealed(
                    {group[0].base: msgspec.structs.replace(old[0].info, tombstones_since_ms=since)}
                )
            dropped, tombstones = dropped + found.records_dropped, tombstones + found.tombstones_dropped
            telemetry.add(COMPACTION_DROPPED_RECORDS, found.records_dropped)
        taking_part = [info for info in self.log.state.sealed if info.base < self.plan.end]
        return CompactionReport(
            self.log.state.topic,
            self.log.state.partition,
            self.plan.reason,
            passes=1,
            cleaned_offset=end,
            records_dropped=dropped,
            tombstones_dropped=tombstones,
            bytes_before=sum(info.size for info in self.plan.segments),
            bytes_after=sum(info.size for info in taking_part),
            segments_before=len(self.plan.segments),
            segments_after=len(taking_part),
        )

    # --- learning keys ----------------------------------------------------------------------------

    def _learn(self, map_bytes: int, secret: bytes) -> tuple[KeyMap, int]:
        """Return the last offset of each key of the dirty part, and the offset up to which they fitted."""
        slots = 1 << ((map_bytes // _SLOT_BYTES).bit_length() - 1)
        capacity = max(1, min(slots * 3 // 4, self.plan.end - self.plan.dirty_from))
        keys = KeyMap(capacity, secret)
        for info in self.plan.segments:
            if info.next_offset <= self.plan.dirty_from:
                continue
            for window in self._windows(self.segments[info.base]):
                columns = self.log.format.decode_columns(_frames(window), Want.KEY | Want.OFFSET)
                assert columns.key is not None
                assert columns.offset is not None
                offsets = _numbers(columns.offset)
                # What was compacted before needs no place in the map: it supersedes nothing.
                start = bisect_left(offsets, self.plan.dirty_from)
                noted = keys.note(columns.key, columns.offset, columns.rows, start)
                if noted < columns.rows:
                    return keys, offsets[noted]
        return keys, self.plan.end

    def _windows(self, segment: Segment) -> Iterator[Window]:
        """Yield the frames of a segment. Raises CorruptRange at damage: nobody knows which keys are in it."""
        at = self.view.find_segment(segment.base)
        bounds = self.view.bounds(at)
        for found in walk(segment, bounds, (segment.base, 0), WINDOW_BYTES, None):
            if isinstance(found, CorruptRange):
                raise found
            self.around.telemetry.add(COMPACTION_READ_BYTES, found.table.end)
            self.pace(found.table.end)
            yield found

    # --- writing segments anew --------------------------------------------------------------------

    def _rewrite(
        self, old: tuple[Segment, ...], keys: KeyMap, end: int, last_batches: frozenset[int]
    ) -> Rewritten:
        """Prepare the segment that takes the place of *old*, synced, name included."""
        files, directory, base = self.around.files, self.log.directory, old[0].base
        path = swap_path(directory, base, "log")
        try:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(path)
            with contextlib.closing(files.open(path, "create")) as file:
                output = _Output(file, self.pace)
                for segment in old:
                    filtering = _Filter(self, segment, keys, end, last_batches, last=segment is old[-1])
                    filtering.copy_to(output)
                if len(old) == 1 and output.unchanged:
                    size = old[0].info.size
                else:
                    file.sync()
                    size = output.size
            if len(old) == 1 and output.unchanged:
                files.unlink(path)
                return Rewritten(None, size, 0, 0, output.has_tombstones)
            new = self._index(old, output, end)
            files.sync_directory(segments_directory(directory))
        except OSError as error:
            with contextlib.suppress(OSError):
                discard_prepared(files, directory)
            if error.errno in DISK_FULL:
                raise DiskFull(f"{directory}: no space left while compacting") from error
            raise as_storage_error(error, "compacting") from error
        return Rewritten(new, size, output.dropped, output.tombstones_dropped, output.has_tombstones)

    def _index(self, old: tuple[Segment, ...], output: _Output, end: int) -> Segment:
        """Return the new segment with its indexes, which are built by reading what was written."""
        directory, infos = self.log.directory, [segment.info for segment in old]
        interval = self.view.state.index_interval_bytes
        info = SealedInfo(
            infos[0].base,
            output.size,
            infos[-1].next_offset,
            index_interval_bytes=interval,
            generation=max(info.generation for info in infos) + 1,
        )
        segment = OwnedSegment(self.around.open_files, directory, info, self.log.format)
        segment.path = swap_path(directory, info.base, "log")
        index, times = SparseIndex(interval), TimeIndex()
        bounds = bounds_of(self.view.state, info, self.view.frame_size_max)
        damage = index_frames(segment, bounds, index, times, (info.base, 0))
        self.around.open_files.forget(segment.number)
        if damage is not None:
            raise StorageError(f"what compaction wrote cannot be read back: {damage}")
        for suffix, entries in (("idx", index.entries), ("timeidx", times.entries)):
            _write(self.around, swap_path(directory, info.base, suffix), bytes(entries))
        found = OwnedSegment(self.around.open_files, directory, info, self.log.format)
        found.path = segment_path(directory, info.base, "log")
        found.use_indexes(index, times)
        found.checked = segment.checked
        found.info = msgspec.structs.replace(
            info,
            max_timestamp=times.largest,
            index_crc32c=google_crc32c.value(bytes(index.entries)),
            time_index_crc32c=google_crc32c.value(bytes(times.entries)),
            opened_ms=min(each.opened_ms for each in infos),
            sealed_ms=max(each.sealed_ms for each in infos),
            tombstones_since_ms=self._tombstones_since(infos, end, has_tombstones=output.has_tombstones),
        )
        return found

    def _tombstones_since(
        self, infos: tuple[SealedInfo, ...] | list[SealedInfo], end: int, *, has_tombstones: bool
    ) -> int:
        """Return since when tombstones have nothing to delete: now, if all keys before them are known."""
        if not has_tombstones or infos[-1].next_offset > end:
            return NO_TIMESTAMP
        known = [info.tombstones_since_ms for info in infos]
        return known[0] if len(known) == 1 and known[0] != NO_TIMESTAMP else self.now_ms


class _Output:
    """The new file of a segment, and what was left out on the way to it."""

    def __init__(self, file: File, pace: Pace) -> None:
        self._file = file
        self._pace = pace
        self.size = 0
        self.dropped = 0
        self.tombstones_dropped = 0
        #: Frames without records that nobody needs any more.
        self.shells_dropped = 0
        self.has_tombstones = False

    @property
    def unchanged(self) -> bool:
        """Whether everything was copied as it is."""
        return not self.dropped and not self.shells_dropped

    def put(self, data: Buffer) -> None:
        """Append *data*."""
        if len(data):
            write_all(self._file, self.size, data)
            self.size += len(data)
            self._pace(len(data))


class _Filter:
    """Copies what stays of one segment: frames as they are where nothing goes, else without what does."""

    def __init__(
        self,
        work: _Pass,
        segment: Segment,
        keys: KeyMap,
        end: int,
        last_batches: frozenset[int],
        *,
        last: bool,
    ) -> None:
        self._windows = work._windows(segment)
        self._format = segment.format
        self._keys = keys
        self._end = end
        self._last_batches = last_batches
        # The last frame of a segment stays, if only as a shell: so wherever a reader asks within the segment,
        # there is a frame after it that leads on.
        self._last_position = segment.info.size if last else -1
        self._drop_tombstones = is_tombstone_due(segment.info, work.log.config, work.now_ms)

    def copy_to(self, output: _Output) -> None:
        """Write what stays to *output*."""
        for window in self._windows:
            dropped = self._dropped(window, output)
            self._copy(window, dropped, output)

    def _dropped(self, window: Window, output: _Output) -> bytearray:
        """Return a byte for each data record of a window, 1 for those that go."""
        want = Want.KEY | Want.OFFSET | Want.VALUE
        columns = self._format.decode_columns(_frames(window), want)
        assert columns.key is not None
        assert columns.offset is not None
        assert columns.value is not None
        dropped = self._keys.superseded(columns.key, columns.offset, columns.rows)
        output.dropped += dropped.count(1)
        if columns.value.nulls:
            offsets = _numbers(columns.offset)
            for row in _null_rows(columns.value, columns.rows):
                if dropped[row]:
                    continue
                if self._drop_tombstones and offsets[row] < self._end and not _is_null(columns.key, row):
                    dropped[row] = 1
                    output.dropped += 1
                    output.tombstones_dropped += 1
                else:
                    output.has_tombstones = True
        return dropped

    def _copy(self, window: Window, dropped: bytearray, output: _Output) -> None:
        """Write the frames of a window; those that stay whole, and follow each other, in one piece."""
        table, data = window.table, memoryview(window.data)
        begin, row = table.position(0), 0
        for frame in range(len(table)):
            count, position = table.record_count(frame), table.position(frame)
            first, row = row, row + count
            whole = dropped.find(1, first, row) < 0
            if whole and (count or table.max_timestamp(frame) is not None):
                continue
            output.put(data[begin:position])
            after = table.position(frame + 1) if frame + 1 < len(table) else table.end
            begin = after
            empty = dropped.count(1, first, row) == count
            if empty and not self._must_stay(window.position + after, table.base_offset(frame)):
                output.shells_dropped += not count
                continue
            output.put(
                data[position:after] if whole else self._format.without(data, position, dropped, first)
            )
        output.put(data[begin : table.end])

    def _must_stay(self, end: int, base_offset: int) -> bool:
        """Return whether a frame stays though it has no records left."""
        return end == self._last_position or base_offset in self._last_batches


def _frames(window: Window) -> memoryview:
    return memoryview(window.data)[: window.table.end]


def _numbers(buffer: Buffer) -> memoryview:
    return memoryview(buffer).cast("B").cast("q")


def _is_null(column: BinaryBuffers, row: int) -> bool:
    return column.validity is not None and not column.validity[row >> 3] >> (row & 7) & 1


def _null_rows(column: BinaryBuffers, rows: int) -> Iterator[int]:
    validity = memoryview(column.validity or b"").cast("B")
    for at, bits in enumerate(validity):
        if bits != 0xFF:
            for row in range(at * 8, min(at * 8 + 8, rows)):
                if not bits >> (row & 7) & 1:
                    yield row


def _write(around: Surroundings, path: str, data: bytes) -> None:
    """Write a whole file and sync it; its name is the caller's to sync."""
    with contextlib.suppress(FileNotFoundError):
        around.files.unlink(path)
    with contextlib.closing(around.files.open(path, "create")) as file:
        write_all(file, 0, data)
        file.sync()
