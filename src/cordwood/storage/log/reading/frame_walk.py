"""Finding and checking frames in a segment: shared by the writer's log and readers beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cordwood.disk import PASSING, as_storage_error
from cordwood.errors import CorruptRange
from cordwood.formats import Beside, Ending, Format, FrameTable
from cordwood.index import TimeIndex
from cordwood.kernels import Buffer, ColumnBuffers, Want
from cordwood.records import Record
from cordwood.storage.log.segment import OffsetIndex, Segment, sidecar_end

WINDOW_BYTES_MIN = 4096
#: Records that are frames of their own are not read one at a time.
RECORDS_WINDOW_BYTES = 1 << 16
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

    def before(self, limit: int) -> FrameRun | None:
        """Return the frames that begin below the offset *limit*, None if there are none."""
        if self.table.next_offset(self.last) <= limit:
            return self
        last = self.table.find(limit)
        if last > self.last or self.table.base_offset(last) >= limit:
            last -= 1
        return replace(self, last=last) if last >= self.first else None

    def frames(self) -> Iterator[tuple[int, int | None, memoryview]]:
        """Yield each frame as it is stored, with its first offset and its largest timestamp."""
        table, whole = self.table, memoryview(self.buffer)
        for frame in range(self.first, self.last + 1):
            end = table.position(frame + 1) if frame + 1 < len(table) else table.end
            yield table.base_offset(frame), table.max_timestamp(frame), whole[table.position(frame) : end]

    def records(self) -> Iterator[Record]:
        """Yield the data records, decoded frame by frame.

        Raises:
            FrameError: Where a frame contradicts itself though its checksum is right.
        """
        for frame in range(self.first, self.last + 1):
            yield from self.table.records(frame)

    def columns(self, want: Want) -> ColumnBuffers:
        """Return the data records as columns; raises as `records` does."""
        return self.table.columns(self.first, self.last + 1, want)

    def batches(self) -> Sequence[Buffer]:
        """Return the records as Kafka's clients take them; raises as `records` does."""
        return self.table.batches(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The known bounds of a segment's frames.

    ``end`` is the position and ``next_offset`` the offset where what may be read stops; a frame ends
    exactly there. ``dense`` says that offsets have no gaps; ``epochs`` from which offset on frames carry
    which leader epoch; ``rechecks`` that checksums are compared again in frames that were read before.
    """

    end: int
    next_offset: int
    dense: bool
    epochs: tuple[tuple[int, int], ...]
    size_max: int
    rechecks: bool = False


class Window(NamedTuple):
    """Sound frames that follow each other; the table's positions count from ``position``."""

    position: int
    data: Buffer
    table: FrameTable


def read_run(segment: Segment, offset: int, bounds: Bounds, max_bytes: int) -> FrameRun | None:
    """Return the frame that holds *offset*, or the first one after it, and what follows up to *max_bytes*.

    The first frame comes whole however large it is. None if the segment has no such frame.

    Raises:
        CorruptRange: If the frame, or what must be walked to find it, is not what was written.
    """
    index = indexes_of(segment, bounds)[0]
    start = index.floor_entry(offset) or (segment.base, 0)
    window = max(index.interval_bytes + max_bytes, WINDOW_BYTES_MIN)
    for found in walk(segment, bounds, start, window, index):
        if isinstance(found, CorruptRange):
            if found.resume_offset > offset:
                raise found
            continue
        first = found.table.find(offset)
        if first < len(found.table):
            limit = found.table.position(first) + max_bytes
            last = len(found.table) - 1
            if found.table.end > limit:
                last = max(found.table.last_within(limit), first)
            return FrameRun(found.position, found.data, found.table, first, last, segment.format)
    return None


def indexes_of(segment: Segment, bounds: Bounds) -> tuple[OffsetIndex, TimeIndex]:
    """Return the indexes of a segment, built from the log if the files are missing or not as they were."""
    indexes = segment.indexes()
    if indexes is None:
        index, times = segment.new_indexes()
        with segment.open_files.rebuilding():
            segment.damage = index_frames(segment, bounds, index, times, (segment.base, 0))
        segment.use_indexes(index, times)
        if segment.damage is None:
            segment.repair_indexes(index, times)
        indexes = index, times
    return indexes


def index_frames(
    segment: Segment, bounds: Bounds, index: OffsetIndex, times: TimeIndex, start: tuple[int, int]
) -> CorruptRange | None:
    """Add the entries of all frames from *start*, an (offset, position), up to the end of *bounds*.

    Returns the first damage on the way; what lies behind it has entries as far as it can be walked.
    """
    damage = None
    for found in walk(segment, bounds, start, REINDEX_WINDOW_BYTES, None):
        if isinstance(found, CorruptRange):
            damage = damage or found
        else:
            note_frames(index, times, found.table, found.position)
    return damage


def note_frames(index: OffsetIndex, times: TimeIndex, table: FrameTable, position: int) -> None:
    """Add the index entries of the frames in *table*, whose buffer was read from *position* on."""
    for frame in range(len(table)):
        offset = table.base_offset(frame)
        is_indexed = index.add(offset, position + table.position(frame))
        times.add(table.max_timestamp(frame), offset, is_indexed=is_indexed)


def walk(
    segment: Segment, bounds: Bounds, start: tuple[int, int], window: int, index: OffsetIndex | None
) -> Iterator[Window | CorruptRange]:
    """Yield the sound frames from *start*, an (offset, position), window after window, and what is damaged.

    After damage the walk goes on where the damaged frame's length leads to a sound one, else at the next
    frame that *index* knows of, else not at all; the damage says from which offset on.

    Raises:
        ResourcesExhausted: If a file cannot be opened now, which says nothing about what is in it.
    """
    expected, position = start
    before = segment.before if position == 0 else None
    misled = _misled(segment, expected, position, bounds)
    if misled is not None:
        after = None if index is None else index.resume_after(expected, -1, bounds.end)
        yield misled if after is None else misled.resuming_at(after[0])
        if after is None:
            return
        expected, position = after
    while position < bounds.end:
        wanted = min(window, bounds.end - position)
        try:
            data = segment.read_at(position, wanted)
            table = _scan(segment, data, position, expected, bounds, before)
        except OSError as error:
            if error.errno in PASSING:
                raise as_storage_error(error, "reading") from error
            yield _unreadable(segment, position, expected, bounds, error)
            return
        except CorruptRange as error:
            yield error
            return
        whole, more = len(data) == wanted, position + wanted < bounds.end
        if len(table):
            segment.checked.add(position, position + table.end)
            yield Window(position, data, table)
            expected = table.next_offset(len(table) - 1)
            position += table.end
            before = table.left
        if whole and (table.end == wanted or (table.ending is Ending.SHORT and more)):
            if not len(table):
                window = _larger(segment, data, bounds, window)
            continue
        if position == bounds.end:
            return
        damage = _damage(segment, table, position, expected, bounds, whole)
        after = _next_sound(segment, damage, bounds)
        if after is None and index is not None:
            after = index.resume_after(expected, position, bounds.end)
        yield damage if after is None else damage.resuming_at(after[0])
        if after is None:
            return
        expected, position = after
        before = None


def _misled(segment: Segment, expected: int, position: int, bounds: Bounds) -> CorruptRange | None:
    """Return the error for a sidecar that says an offset which is there lies beyond the end; None else."""
    sidecar = segment.format.sidecar
    if sidecar is None or position < bounds.end or expected >= bounds.next_offset:
        return None
    if position == bounds.end and not bounds.dense:
        # Compaction, and then a truncation, may have left nothing between here and the end.
        return None
    place = sidecar_end(sidecar, segment.base, expected)
    reason = f"says that offset {expected} lies beyond the end of the log"
    return CorruptRange(segment.sidecar_path, place, expected, bounds.next_offset, reason)


def left_before(segment: Segment, bounds: Bounds, index: OffsetIndex) -> bytes | None:
    """Return what the last frame before the end of *bounds* leaves for the next one.

    Nothing where frames stand alone; None if that frame is damaged.
    """
    if not segment.format.chained:
        return b""
    left: bytes | None = segment.before
    for found in walk(segment, bounds, index.last() or (segment.base, 0), REINDEX_WINDOW_BYTES, None):
        left = None if isinstance(found, CorruptRange) else found.table.left
    return left


def _scan(
    segment: Segment,
    data: Buffer,
    position: int,
    expected: int,
    bounds: Bounds,
    before: bytes | None = None,
) -> FrameTable:
    """Find the frames in *data*, with what the sidecar says of them.

    Raises:
        CorruptRange: If the sidecar is another segment's.
        OSError: If it cannot be read.
    """
    sidecar = segment.sidecar_from(expected, len(data), dense=bounds.dense)
    return segment.format.scan(
        data,
        next_offset=expected,
        dense=bounds.dense,
        epochs=bounds.epochs,
        size_max=bounds.size_max,
        checked_before=0 if bounds.rechecks else segment.checked.end_from(position) - position,
        beside=Beside(position, sidecar, before),
    )


def _larger(segment: Segment, data: Buffer, bounds: Bounds, window: int) -> int:
    """Return a window that the frame at the start of *data* fits into."""
    if len(data) >= segment.format.header_size:
        size = segment.format.frame_size(data)
        if size is not None and window < size <= bounds.size_max:
            return size
    return window * 2


def _unreadable(
    segment: Segment, position: int, expected: int, bounds: Bounds, error: OSError
) -> CorruptRange:
    missing = isinstance(error, FileNotFoundError)
    reason = "the file is missing" if missing else f"cannot be read: {error.strerror}"
    beside = segment.format.sidecar is not None and error.filename == segment.sidecar_path
    path = segment.sidecar_path if beside else segment.path
    damage = CorruptRange(path, position, expected, bounds.next_offset, reason)
    damage.__cause__ = error
    return damage


def _damage(
    segment: Segment, table: FrameTable, position: int, expected: int, bounds: Bounds, whole: bool
) -> CorruptRange:
    """Return the error for what lies at *position*, after the sound frames of *table*."""
    reason = "a frame ends beyond the segment"
    if not whole:
        reason = f"the file ends, but {bounds.end} bytes were written"
    elif table.ending is not Ending.END:
        error = table.error()
        reason = f"{error.what}: expected {error.expected}, found {error.found}"
    return CorruptRange(segment.path, position, expected, bounds.next_offset, reason)


def _next_sound(segment: Segment, damage: CorruptRange, bounds: Bounds) -> tuple[int, int] | None:
    """Return (offset, position) of the frame after a damaged one, if its length leads to a sound one."""
    header_size = segment.format.header_size
    try:
        head = segment.read_at(damage.position, header_size)
        size = segment.format.frame_size(head) if len(head) == header_size else None
        if size is None or damage.position + size >= bounds.end:
            return None
        position = damage.position + size
        # No more than the one frame: the limit for frames may be that of the largest there could be.
        head = segment.read_at(position, header_size)
        size = segment.format.frame_size(head) if len(head) == header_size else None
        if size is None:
            return None
        data = segment.read_at(position, min(size, bounds.size_max, bounds.end - position))
        table = _scan(segment, data, position, damage.offset + 1, replace(bounds, dense=False))
    except OSError as error:
        if error.errno in PASSING:
            raise as_storage_error(error, "reading") from error
        return None
    if not len(table) or table.next_offset(0) > bounds.next_offset:
        return None
    return table.base_offset(0), position


def find_timestamp(
    segment: Segment, timestamp: int, bounds: Bounds, log_start_offset: int
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record at or after both *timestamp* and the log start.

    None if there is none in this segment.

    Raises:
        CorruptRange: If a frame that may hold it is not what was written.
    """
    index, times = indexes_of(segment, bounds)
    offset = times.first_at(timestamp)
    damage = segment.damage
    if damage is not None and (offset is None or offset >= damage.offset):
        # The index was built without what is damaged, which may hold the record.
        raise damage
    if times.sparse and bounds.next_offset > segment.base:
        offset = unrecorded_from(index, times, bounds.next_offset - 1 if offset is None else offset)
    if offset is None:
        return None
    # The log start may have moved past that frame; then the first match is anywhere after it.
    offset = max(offset, log_start_offset)
    for record in records_from(segment, offset, bounds):
        if record.timestamp >= timestamp:
            return record.offset, record.timestamp
    return None


def unrecorded_from(index: OffsetIndex, times: TimeIndex, offset: int) -> int:
    """Return the last offset, at most *offset*, with an entry in *times* for each growth before it.

    From there on up to *offset*, a frame may have reached a timestamp without an entry.
    """
    if times.has_blocks:
        return times.block_start(offset)
    found = index.floor_entry(offset)
    return offset if found is None else found[0]


def records_from(segment: Segment, offset: int, bounds: Bounds) -> Iterator[Record]:
    """Yield the records of a segment at or after *offset*, frame by frame.

    Raises:
        CorruptRange: Where a frame is not what was written.
    """
    start = offset
    size = RECORDS_WINDOW_BYTES if segment.format.record_per_frame else 1
    while offset < bounds.next_offset and (run := read_run(segment, offset, bounds, size)) is not None:
        for record in run.records():
            if record.offset >= start:
                yield record
        offset = run.next_offset


def checked_sha256(segment: Segment, bounds: Bounds, pace: Callable[[int], None]) -> str | None:
    """Return the SHA-256 of a sealed segment in hex, None if it is not what was written or is gone.

    *pace* is called with the number of bytes after each read; its exceptions are raised.
    """
    digest = hashlib.sha256()
    for found in walk(segment, bounds, (segment.base, 0), REINDEX_WINDOW_BYTES, None):
        if isinstance(found, CorruptRange):
            return None
        digest.update(memoryview(found.data)[: found.table.end])
        pace(found.table.end)
    return digest.hexdigest()
