"""Rewrite sealed segments without the dropped records. The same input always gives the same bytes.

The caller decides which records are dropped: those with a later record of the same key, old tombstones, and
those of aborted transactions. Frames that lose no record are copied unchanged.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import google_crc32c
import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import File, Files, write_all
from cordwood.errors import CorruptRange, StorageError
from cordwood.formats import Format, FrameTable, Sidecar
from cordwood.index import NO_TIMESTAMP, AbortedIndex
from cordwood.kernels import INT64_MAX, BinaryBuffers, Buffer, Want
from cordwood.storage.log import (
    ABORTED_SUFFIX,
    AbortedEntry,
    AbortedRanges,
    OpenFiles,
    Pace,
    PartitionState,
    SealedInfo,
    Segment,
    Window,
    bounds_of,
    index_frames,
    no_pace,
    walk,
)
from cordwood.storage.maintenance.compaction_plan import is_tombstone_due
from cordwood.storage.maintenance.transactions import FollowedTransactions, MarkerUse, aborted_rows

WINDOW_BYTES = 1 << 20

"""Called with the number of bytes read or written; waits if there is a rate limit."""
NewName = Callable[[str], str]
"""Maps a suffix, such as ``log``, to the path of that file of the new segment."""


OffsetRanges = Sequence[tuple[int, int]]
"""Ranges of offsets [start, end), ascending."""


class Superseding(Protocol):
    """Knows which records have a later one with their key."""

    def superseded(self, column: BinaryBuffers, offsets: Buffer, rows: int) -> bytearray:
        """Return a byte for each of *rows* records, by keys and offsets: 1 if it is superseded."""


@dataclass(frozen=True)
class RewriteInput:
    """The input for rewriting segments of a partition.

    ``end`` is the offset up to which keys were collected; ``last_batches`` are the base offsets of frames
    that must stay, at least without records, because they are the last of their producers. Frames outside the
    offsets in ``rewritable`` stay as they are; None means that any frame may be rewritten. With ``evidence``,
    the records of rewritten frames are kept as lists beside the chain. ``held_keys`` collects the keys of
    superseded records that stay because a segment ends with them: their tombstones must stay too. None means
    that segments are not rewritten in order, so that no tombstone may go in a format with such records.

    ``aborted`` are the aborted transactions with records or markers in the segments. ``transactions`` follows
    the frames of all segments in their order; None means that every marker stays.
    """

    files: Files
    open_files: OpenFiles
    directory: str
    format: Format
    state: PartitionState
    config: TopicConfig
    now_ms: int
    end: int
    last_batches: frozenset[int]
    pace: Pace = no_pace
    rewritable: OffsetRanges | None = None
    evidence: bool = True
    held_keys: set[bytes] | None = field(default_factory=set)
    aborted: Sequence[AbortedEntry] = ()
    transactions: FollowedTransactions | None = None

    @cached_property
    def aborted_ranges(self) -> AbortedRanges | None:
        """The offsets of the aborted transactions, None if there are none."""
        return AbortedRanges(self.aborted) if self.aborted else None

    def windows(self, segment: Segment) -> Iterator[Window]:
        """Yield the frames of a segment.

        Raises:
            CorruptRange: At damage: the keys in it are unknown.
        """
        bounds = bounds_of(self.state, segment.info, self.config.stored_bytes_max)
        for found in walk(segment, bounds, (segment.base, 0), WINDOW_BYTES, None):
            if isinstance(found, CorruptRange):
                raise found
            self.pace(found.table.end)
            yield found

    def movable(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the offsets in [start, end) whose frames may be rewritten."""
        for first, after in self.rewritable if self.rewritable is not None else ((start, end),):
            if max(first, start) < min(after, end):
                yield max(first, start), min(after, end)

    def pinned(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the offsets in [start, end) whose frames stay as they are."""
        for first, after in self.rewritable if self.rewritable is not None else ((start, end),):
            if start < min(first, end):
                yield start, min(first, end)
            start = max(start, after)
        if start < end:
            yield start, end

    @property
    def tombstones_go_below(self) -> int:
        """The offset below which tombstones may go: no record before them must stay, whatever its key."""
        if self.rewritable is None:
            return INT64_MAX
        start = self.state.log_start_offset
        return next((after for first, after in self.rewritable if first <= start < after), start)

    def tombstones_since(self, infos: tuple[SealedInfo, ...], found: Rewritten | _Output) -> int:
        """Return since when tombstones and markers wait for removal: now, if all earlier keys are known.

        Also now if a marker was freed: it waits as long as any, whatever has waited before in its segment.
        """
        if not found.has_tombstones or infos[-1].next_offset > self.end:
            return NO_TIMESTAMP
        if found.has_freed:
            return self.now_ms
        known = [info.tombstones_since_ms for info in infos]
        return known[0] if len(known) == 1 and known[0] != NO_TIMESTAMP else self.now_ms


class Rewritten(NamedTuple):
    """The result of rewriting segments; ``info`` is None if their bytes did not change.

    ``has_tombstones`` says that tombstones, or markers of transactions without frames, wait for removal, and
    ``has_freed`` that one of these markers was needed until now.
    """

    info: SealedInfo | None
    records_dropped: int
    tombstones_dropped: int
    has_tombstones: bool
    has_freed: bool = False


def rewrite(work: RewriteInput, old: tuple[Segment, ...], keys: Superseding, target: NewName) -> Rewritten:
    """Write the replacement of *old* with its indexes to *target*. Files are synced, directories are not.

    Raises:
        CorruptRange: If one of them is damaged.
        OSError: If it could not be written. Nothing but *target* has changed.
    """
    infos = tuple(segment.info for segment in old)
    path = target("log")
    with contextlib.suppress(FileNotFoundError):
        work.files.unlink(path)
    with contextlib.closing(work.files.open(path, "create")) as file:
        output = _Output(file, work.pace, work.format.sidecar, infos[0].base)
        for segment in old:
            _Filter(work, segment, keys, last=segment is old[-1]).copy_to(output)
        output.end_at(infos[-1].next_offset)
        unchanged = len(old) == 1 and output.unchanged
        if not unchanged:
            file.sync()
    if unchanged:
        work.files.unlink(path)
        return Rewritten(None, 0, 0, output.has_tombstones, output.has_freed)
    info = _index(work, infos, output, target)
    return Rewritten(info, output.dropped, output.tombstones_dropped, output.has_tombstones)


def rewrite_whole(
    work: RewriteInput, old: tuple[Segment, ...], stays: Callable[[int], bool], target: NewName
) -> Rewritten:
    """Write the replacement of *old* with the frames whose base offset *stays*, unchanged.

    The last frame always stays. Otherwise the same as `rewrite`.
    """
    infos = tuple(segment.info for segment in old)
    path = target("log")
    with contextlib.suppress(FileNotFoundError):
        work.files.unlink(path)
    with contextlib.closing(work.files.open(path, "create")) as file:
        output = _Output(file, work.pace, None, infos[0].base)
        for segment in old:
            for window in work.windows(segment):
                table, data = window.table, memoryview(window.data)
                for frame in range(len(table)):
                    after = table.position(frame + 1) if frame + 1 < len(table) else table.end
                    is_last = segment is old[-1] and window.position + after == segment.info.size
                    if is_last or stays(table.base_offset(frame)):
                        output.put(data[table.position(frame) : after])
                    else:
                        output.dropped += table.record_count(frame)
        file.sync()
    return Rewritten(_index(work, infos, output, target), output.dropped, 0, has_tombstones=False)


def _index(work: RewriteInput, infos: tuple[SealedInfo, ...], output: _Output, target: NewName) -> SealedInfo:
    """Read the written segment, write its indexes and return its description."""
    info = SealedInfo(
        infos[0].base,
        output.size,
        infos[-1].next_offset,
        index_interval_bytes=work.state.index_interval_bytes,
        generation=max(info.generation for info in infos) + 1,
        index_interval_records=work.state.index_interval_records,
        time_index_sparse=True,
    )
    segment = Segment(work.open_files, work.directory, info, work.format)
    segment.path = target("log")
    if work.format.sidecar is not None:
        segment.sidecar_at = target(work.format.sidecar.suffix)
        write_synced(work.files, segment.sidecar_at, bytes(output.entries))
    index, times = segment.new_indexes()
    bounds = bounds_of(work.state, info, work.config.stored_bytes_max)
    damage = index_frames(segment, bounds, index, times, (info.base, 0))
    work.open_files.forget(segment.number)
    if damage is not None:
        raise StorageError(f"what compaction wrote cannot be read back: {damage}")
    if segment.has_sparse_index:
        write_synced(work.files, target("idx"), bytes(index.entries))
    write_synced(work.files, target("timeidx"), bytes(times.entries))
    aborted = _aborted_left(work, infos, output)
    if len(aborted) or infos[0].aborted_count:
        # Also an empty one: it takes the place of the entries of the first old segment.
        write_synced(work.files, target(ABORTED_SUFFIX), bytes(aborted.entries))
    return msgspec.structs.replace(
        info,
        max_timestamp=times.largest,
        index_crc32c=google_crc32c.value(bytes(index.entries)),
        time_index_crc32c=google_crc32c.value(bytes(times.entries)),
        opened_ms=min(each.opened_ms for each in infos),
        sealed_ms=_latest(each.sealed_ms for each in infos),
        appended_ms=_latest(each.last_append_ms for each in infos),
        tombstones_since_ms=work.tombstones_since(infos, output),
        aborted_count=len(aborted),
        aborted_crc32c=google_crc32c.value(bytes(aborted.entries)),
    )


def _aborted_left(work: RewriteInput, infos: tuple[SealedInfo, ...], output: _Output) -> AbortedIndex:
    """Return the aborted transactions whose markers are in the new segment.

    Entries stay as they were, also if the first frames of a transaction are gone.
    """
    left = AbortedIndex()
    for each in work.aborted:
        within = infos[0].base <= each.last_offset < infos[-1].next_offset
        if within and each.last_offset not in output.markers_dropped:
            left.add(each)
    return left


def _latest(times: Iterable[int]) -> int:
    """Return the latest of *times*, NO_TIMESTAMP if one of them is unknown: it may be the latest."""
    found = list(times)
    return NO_TIMESTAMP if NO_TIMESTAMP in found else max(found)


class _Output:
    """The new file of a segment, and counts of dropped records."""

    def __init__(self, file: File, pace: Pace, sidecar: Sidecar | None, base_offset: int) -> None:
        self._file = file
        self._pace = pace
        self._sidecar = sidecar
        self._next_offset = base_offset
        #: The entries of the new sidecar.
        self.entries = bytearray(b"" if sidecar is None else sidecar.head(base_offset))
        self.size = 0
        self.dropped = 0
        self.tombstones_dropped = 0
        #: The number of dropped frames without records.
        self.shells_dropped = 0
        #: The offsets of dropped markers of transactions.
        self.markers_dropped: set[int] = set()
        self.has_tombstones = self.has_freed = False

    @property
    def unchanged(self) -> bool:
        """Whether every frame was copied unchanged."""
        return not self.dropped and not self.shells_dropped

    def put(self, data: Buffer) -> None:
        """Append *data*."""
        if len(data):
            write_all(self._file, self.size, data)
            self.size += len(data)
            self._pace(len(data))

    def put_frame(self, offset: int, data: Buffer) -> None:
        """Append the frame of one record, and its entry in the sidecar, which must exist."""
        assert self._sidecar is not None
        self.end_at(offset)
        self.entries += self._sidecar.pack(
            self.size, [len(data)], [self._sidecar.checksum(data, 0, len(data))]
        )
        self._next_offset = offset + 1
        self.put(data)

    def end_at(self, offset: int) -> None:
        """Add the sidecar entry that says that records up to *offset* are gone."""
        if self._sidecar is not None:
            gone = [0] * (offset - self._next_offset)
            self.entries += self._sidecar.pack(self.size, gone, gone)
            self._next_offset = offset


class _Filter:
    """Copies one segment: frames without dropped records unchanged, other frames rewritten."""

    def __init__(self, work: RewriteInput, segment: Segment, keys: Superseding, *, last: bool) -> None:
        self._windows = work.windows(segment)
        self._format = segment.format
        self._keys = keys
        self._end = work.end
        self._log_start = work.state.log_start_offset
        self._last_batches = work.last_batches
        # The last frame of a segment always stays, at least without records, so that a reader at any offset
        # of the segment finds a frame that leads to the next one.
        self._last_position = segment.info.size if last else -1
        self._held_keys = work.held_keys
        self._drop_tombstones = is_tombstone_due(segment.info, work.config, work.now_ms)
        self._tombstones_go_below = work.tombstones_go_below
        self._pinned = list(work.pinned(segment.base, segment.info.next_offset))
        self._aborted = work.aborted_ranges
        self._transactions = work.transactions

    def copy_to(self, output: _Output) -> None:
        """Write the remaining frames to *output*."""
        for window in self._windows:
            dropped = self._dropped(window, output)
            self._copy(window, dropped, output)

    def _dropped(self, window: Window, output: _Output) -> bytearray:
        """Return a byte for each data record of a window, 1 for dropped ones."""
        want = Want.KEY | Want.OFFSET | Want.VALUE
        columns = window.table.columns(0, len(window.table), want)
        assert columns.key is not None
        assert columns.offset is not None
        assert columns.value is not None
        dropped = self._keys.superseded(columns.key, columns.offset, columns.rows)
        offsets = numbers_in(columns.offset)
        # Records below the log start were deleted, whatever their key.
        deleted = bisect_left(offsets, self._log_start)
        dropped[:deleted] = b"\1" * deleted
        for first, after in aborted_rows(window.table, self._aborted):
            dropped[first:after] = b"\1" * (after - first)
        for start, end in self._pinned:
            first, after = bisect_left(offsets, start), bisect_left(offsets, end)
            dropped[first:after] = bytes(after - first)
        stays = self._pinned_row(window, columns.rows)
        if stays is not None:
            if dropped[stays] and self._held_keys is not None:
                self._held_keys.add(_bytes_at(columns.key, stays))
            dropped[stays] = 0
        output.dropped += dropped.count(1)
        if columns.value.nulls:
            for row in _null_rows(columns.value, columns.rows):
                if dropped[row]:
                    continue
                if offsets[row] >= self._tombstones_go_below or self._is_pinned(offsets[row]):
                    continue
                due = self._drop_tombstones and row != stays and not self._is_held(columns.key, row)
                if due and offsets[row] < self._end and not _is_null(columns.key, row):
                    dropped[row] = 1
                    output.dropped += 1
                    output.tombstones_dropped += 1
                else:
                    output.has_tombstones = True
        return dropped

    def _is_held(self, keys: BinaryBuffers, row: int) -> bool:
        """Return whether an older record with the key of *row* may have stayed."""
        if not self._format.record_per_frame:
            return False
        return self._held_keys is None or _bytes_at(keys, row) in self._held_keys

    def _pinned_row(self, window: Window, rows: int) -> int | None:
        """Return the record of a window that stays regardless of its key, if there is one.

        Where a frame is one record, it cannot be emptied, so the last record of a segment stays.
        """
        last = window.position + window.table.end == self._last_position
        return rows - 1 if last and self._format.record_per_frame else None

    def _copy(self, window: Window, dropped: bytearray, output: _Output) -> None:
        """Write the frames of a window; adjacent unchanged frames are written with one call."""
        table, data = window.table, memoryview(window.data)
        if self._format.sidecar is not None:
            for frame in range(len(table)):
                after = table.position(frame + 1) if frame + 1 < len(table) else table.end
                if not dropped[frame]:
                    output.put_frame(table.base_offset(frame), data[table.position(frame) : after])
            return
        begin, row = table.position(0), 0
        for frame in range(len(table)):
            count, position = table.record_count(frame), table.position(frame)
            first, row = row, row + count
            after = table.position(frame + 1) if frame + 1 < len(table) else table.end
            whole = dropped.find(1, first, row) < 0
            must_stay = self._must_stay(window.position + after, table.base_offset(frame))
            is_shell = not count and table.max_timestamp(frame) is None
            goes = (is_shell or not whole) and dropped.count(1, first, row) == count and not must_stay
            if self._transactions is not None:
                goes = self._follow(table, frame, output, goes=goes, must_stay=must_stay)
            if whole and not goes:
                continue
            output.put(data[begin:position])
            begin = after
            if goes:
                output.shells_dropped += not count
            else:
                output.put(table.without(frame, dropped, first))
        output.put(data[begin : table.end])

    def _follow(self, table: FrameTable, frame: int, output: _Output, *, goes: bool, must_stay: bool) -> bool:
        """Follow the transactions of a frame; return whether it goes, which only changes for markers."""
        assert self._transactions is not None
        stamp = table.stamp(frame)
        if stamp is not None:
            if stamp.transactional:
                self._transactions.note(stamp.producer_id, dropped=goes)
            return goes
        marker = table.marker(frame)
        if marker is None:
            return goes
        use = self._transactions.end(marker.producer_id)
        if must_stay or use is MarkerUse.NEEDED:
            return False
        if use is MarkerUse.UNNEEDED and self._drop_tombstones:
            output.markers_dropped.add(table.base_offset(frame))
            return True
        output.has_tombstones = True
        output.has_freed |= use is MarkerUse.FREED
        return False

    def _must_stay(self, end: int, base_offset: int) -> bool:
        """Return whether a frame stays although it has no records left."""
        is_last = end == self._last_position or base_offset in self._last_batches
        return is_last or self._is_pinned(base_offset)

    def _is_pinned(self, offset: int) -> bool:
        """Return whether the frame that holds *offset* stays as it is."""
        return any(start <= offset < after for start, after in self._pinned)


def numbers_in(buffer: Buffer) -> memoryview:
    """Return the int64 numbers of a buffer."""
    return memoryview(buffer).cast("B").cast("q")


def _bytes_at(column: BinaryBuffers, row: int) -> bytes:
    """Return the value of *row*; empty for a null one."""
    offsets = memoryview(column.offsets).cast("B").cast("i")
    return bytes(memoryview(column.data).cast("B")[offsets[row] : offsets[row + 1]])


def _is_null(column: BinaryBuffers, row: int) -> bool:
    if column.validity is None:
        return False
    # The kernel returns memory of its own, which only a view gives access to.
    return not memoryview(column.validity).cast("B")[row >> 3] >> (row & 7) & 1


def _null_rows(column: BinaryBuffers, rows: int) -> Iterator[int]:
    validity = memoryview(column.validity or b"").cast("B")
    for at, bits in enumerate(validity):
        if bits != 0xFF:
            for row in range(at * 8, min(at * 8 + 8, rows)):
                if not bits >> (row & 7) & 1:
                    yield row


def write_synced(files: Files, path: str, data: bytes) -> None:
    """Write a whole file and sync it. The caller syncs the directory."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)
    with contextlib.closing(files.open(path, "create")) as file:
        write_all(file, 0, data)
        file.sync()
