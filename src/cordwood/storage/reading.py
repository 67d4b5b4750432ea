"""Finding and checking frames in a segment: shared by the writer's log and readers beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from cordwood.errors import CorruptRange, FrameError
from cordwood.formats.format import Ending, Format, FrameTable
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import TimeIndex
from cordwood.kernels import Buffer
from cordwood.storage.segment import Segment

WINDOW_BYTES = 1 << 20
#: Whole frames are taken into memory, so a window grows up to this for a large one.
REINDEX_WINDOW_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Whole frames that follow each other in one segment, checked.

    ``table`` holds positions in ``buffer``, which was read from ``start`` of the segment on.
    """

    start: int
    buffer: Buffer
    table: FrameTable
    first: int
    last: int
    format: Format

    @property
    def data(self) -> memoryview:
        """The frames as they stand in the file."""
        end = self.table.position(self.last + 1) if self.last + 1 < len(self.table) else self.table.end
        return memoryview(self.buffer)[self.table.position(self.first) : end]

    @property
    def next_offset(self) -> int:
        """The offset after the last frame."""
        return self.table.next_offset(self.last)

    def positions(self) -> Iterator[int]:
        """Yield where each frame starts in ``buffer``."""
        return map(self.table.position, range(self.first, self.last + 1))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of a segment's frames beside their bytes.

    ``end`` is the position and ``next_offset`` the offset where what may be read stops; a frame ends
    exactly there. ``dense`` says that offsets have no gaps, ``epochs`` which leader epochs there can be.
    """

    end: int
    next_offset: int
    dense: bool
    epochs: tuple[int, int]
    size_max: int


def read_run(segment: Segment, offset: int, bounds: Bounds, max_bytes: int) -> FrameRun | None:
    """Return the frame that holds *offset*, or the first one after it, and what follows up to *max_bytes*.

    The first frame comes whole however large it is. None if the segment has no such frame.

    Raises:
        CorruptRange: If the frame, or what must be walked to find it, is not what was written.
    """
    indexes = segment.indexes()
    if indexes is not None:
        try:
            return _read_from_index(segment, indexes[0], offset, bounds, max_bytes)
        except CorruptRange:
            # The index may be what is wrong. Rebuilt from the log, it is right, and asking again tells.
            pass
    index, times, _ = build_indexes(segment, bounds, indexes[0] if indexes else None)
    segment.use_indexes(index, times)
    return _read_from_index(segment, index, offset, bounds, max_bytes)


def _read_from_index(
    segment: Segment, index: SparseIndex, offset: int, bounds: Bounds, max_bytes: int
) -> FrameRun | None:
    start = index.floor_entry(offset)
    position, expected = (start[1], start[0]) if start else (0, segment.base)
    window = index.interval_bytes + max_bytes
    while position < bounds.end:
        data = _read(segment, position, min(window, bounds.end - position), expected)
        table = _scan(segment, data, position, expected, bounds)
        first = table.find(offset)
        if first < len(table):
            return _run(segment, data, table, first, position, max_bytes)
        complete = table.ending is Ending.END and len(data) == table.end
        if complete or (table.ending is Ending.SHORT and position + len(data) < bounds.end):
            if len(table):
                expected = table.next_offset(len(table) - 1)
                position += table.end
            else:
                window = _frame_size(segment, data, bounds, window)
            continue
        raise _corrupt(segment, index, position, expected, bounds, table)
    return None


def _run(
    segment: Segment, data: Buffer, table: FrameTable, first: int, position: int, max_bytes: int
) -> FrameRun:
    """Cut the run to *max_bytes*, its first frame always included, and remember what was checked."""
    segment.checked.add(position, position + table.end)
    limit = table.position(first) + max_bytes
    last = len(table) - 1
    if table.end > limit:
        last = max(table.last_within(limit), first)
    return FrameRun(position, data, table, first, last, segment.format)


def _read(segment: Segment, position: int, size: int, offset: int) -> Buffer:
    try:
        data = segment.read_at(position, size)
    except FileNotFoundError:
        raise CorruptRange(
            segment.path, 0, segment.base, segment.info.next_offset, "the file is missing"
        ) from None
    except OSError as error:
        raise CorruptRange(
            segment.path, position, offset, segment.info.next_offset, f"cannot be read: {error.strerror}"
        ) from error
    if len(data) < size:
        reason = f"expected {position + size} bytes, found {position + len(data)}"
        raise CorruptRange(segment.path, position + len(data), offset, segment.info.next_offset, reason)
    return data


def _scan(segment: Segment, data: Buffer, position: int, expected: int, bounds: Bounds) -> FrameTable:
    return segment.format.scan(
        data,
        next_offset=expected,
        dense=bounds.dense,
        epochs=bounds.epochs,
        size_max=bounds.size_max,
        checked_before=segment.checked.end_from(position) - position,
    )


def _frame_size(segment: Segment, data: Buffer, bounds: Bounds, window: int) -> int:
    """Return how many bytes to read so that the frame at the start of *data* is whole."""
    if len(data) >= segment.format.header_size:
        size = segment.format.frame_size(data)
        if size is not None and window < size <= bounds.size_max:
            return size
    return window * 2


def _corrupt(
    segment: Segment, index: SparseIndex, position: int, expected: int, bounds: Bounds, table: FrameTable
) -> CorruptRange:
    """Return the error for what lies after the sound frames of *table*."""
    at = position + table.end
    offset = table.next_offset(len(table) - 1) if len(table) else expected
    after = index.next_after(at)
    resume = after[0] if after is not None and after[0] < bounds.next_offset else bounds.next_offset
    reason = "a frame ends beyond the segment"
    if table.ending is not Ending.END:
        error: FrameError = table.error()
        reason = f"{error.what}: expected {error.expected}, found {error.found}"
    return CorruptRange(segment.path, at, offset, resume, reason)


def build_indexes(
    segment: Segment, bounds: Bounds, old: SparseIndex | None
) -> tuple[SparseIndex, TimeIndex, CorruptRange | None]:
    """Build both indexes from the log. Where it is damaged, go on at the next frame that *old* knows of.

    Returns:
        The indexes, which have no entries for what could not be walked, and the first damage found.
    """
    index, times = SparseIndex(segment.info.index_interval_bytes), TimeIndex()
    damage = walk_frames(segment, bounds, index, times, (segment.base, 0), old)
    return index, times, damage


def walk_frames(
    segment: Segment,
    bounds: Bounds,
    index: SparseIndex,
    times: TimeIndex,
    start: tuple[int, int],
    old: SparseIndex | None = None,
) -> CorruptRange | None:
    """Add the entries of all frames from *start*, an (offset, position), up to the end of *bounds*.

    Where the log is damaged, go on at the next frame that *old* knows of. Returns the first damage found.
    """
    damage, window = None, REINDEX_WINDOW_BYTES
    expected, position = start
    while position < bounds.end:
        try:
            data = _read(segment, position, min(window, bounds.end - position), expected)
            table = _scan(segment, data, position, expected, bounds)
            note_frames(index, times, table, position)
            segment.checked.add(position, position + table.end)
            if len(table):
                expected = table.next_offset(len(table) - 1)
            if table.end == len(data) or (table.ending is Ending.SHORT and position + len(data) < bounds.end):
                if not len(table):
                    window = _frame_size(segment, data, bounds, window)
                position += table.end
                continue
            raise _corrupt(segment, index, position, expected, bounds, table)
        except CorruptRange as error:
            damage = damage or error
            after = old.next_after(error.position) if old is not None else None
            if after is None:
                break
            expected, position = after
    return damage


def note_frames(index: SparseIndex, times: TimeIndex, table: FrameTable, position: int) -> None:
    """Add the index entries of the frames in *table*, whose buffer was read from *position* on."""
    for frame in range(len(table)):
        offset = table.base_offset(frame)
        index.add(offset, position + table.position(frame))
        timestamp = table.max_timestamp(frame)
        if timestamp is not None:
            times.add(timestamp, offset)


def find_timestamp(
    segment: Segment, timestamp: int, bounds: Bounds, log_start_offset: int
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record at or after both *timestamp* and the log start.

    None if there is none in this segment.

    Raises:
        CorruptRange: If a frame that may hold it is not what was written.
    """
    indexes = segment.indexes()
    if indexes is None:
        index, times, _ = build_indexes(segment, bounds, None)
        segment.use_indexes(index, times)
        indexes = index, times
    offset = indexes[1].first_at(timestamp)
    if offset is None:
        return None
    # The log start may have moved past that frame; then the first match is anywhere after it.
    offset = max(offset, log_start_offset)
    while offset < bounds.next_offset and (run := read_run(segment, offset, bounds, 1)) is not None:
        for record in run.format.decode(run.buffer, run.table.position(run.first)):
            if record.timestamp >= timestamp and record.offset >= log_start_offset:
                return record.offset, record.timestamp
        offset = run.next_offset
    return None


def checked_sha256(segment: Segment, bounds: Bounds) -> str | None:
    """Return the SHA-256 of a sealed segment in hex, None if it is not what was written or is gone."""
    if build_indexes(segment, bounds, None)[2] is not None:
        return None
    digest, position = hashlib.sha256(), 0
    while position < bounds.end:
        try:
            data = segment.read_at(position, min(REINDEX_WINDOW_BYTES, bounds.end - position))
        except OSError:
            return None
        if not data:
            return None
        digest.update(data)
        position += len(data)
    return digest.hexdigest()
