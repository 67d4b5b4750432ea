"""Writing sealed segments anew without the records that go. The bytes are the same wherever it is done.

What goes is decided elsewhere: by whoever knows which records have a later one with their key, and by the age
of tombstones. Frames that lose nothing are copied as they are.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import google_crc32c
import msgspec

from cordwood.config import TopicConfig
from cordwood.errors import CorruptRange, StorageError
from cordwood.formats.format import Format
from cordwood.formats.sidecar import Sidecar
from cordwood.index.time import NO_TIMESTAMP
from cordwood.kernels import BinaryBuffers, Buffer, Want
from cordwood.storage.compaction import is_tombstone_due
from cordwood.storage.files import File, Files, write_all
from cordwood.storage.open_files import OpenFiles
from cordwood.storage.partition_state import PartitionState, SealedInfo
from cordwood.storage.reading import Window, index_frames, walk
from cordwood.storage.segment import Segment
from cordwood.storage.view import bounds_of

WINDOW_BYTES = 1 << 20

Pace = Callable[[int], None]
"""Told how many bytes were read or written; takes its time where there is a limit."""
Target = Callable[[str], str]
"""From the suffix of a file, such as ``log``, to where that file of the new segment is written."""


def no_pace(size: int) -> None:
    """Go on at once."""


class Superseding(Protocol):
    """Knows which records have a later one with their key."""

    def superseded(self, column: BinaryBuffers, offsets: Buffer, rows: int) -> bytearray:
        """Return a byte for each of *rows* records, by keys and offsets: 1 where it goes."""


@dataclass(frozen=True)
class Rewriting:
    """What rewriting the segments of a partition must know.

    ``end`` is the offset up to which keys were looked at; ``last_batches`` are the base offsets of frames
    that stay, if only as shells, because they are the last of their producers.
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

    def windows(self, segment: Segment) -> Iterator[Window]:
        """Yield the frames of a segment.

        Raises:
            CorruptRange: At damage: nobody knows which keys are in it.
        """
        bounds = bounds_of(self.state, segment.info, self.config.stored_bytes_max)
        for found in walk(segment, bounds, (segment.base, 0), WINDOW_BYTES, None):
            if isinstance(found, CorruptRange):
                raise found
            self.pace(found.table.end)
            yield found

    def tombstones_since(self, infos: tuple[SealedInfo, ...], *, has_tombstones: bool) -> int:
        """Return since when tombstones have nothing to delete: now, if all keys before them are known."""
        if not has_tombstones or infos[-1].next_offset > self.end:
            return NO_TIMESTAMP
        known = [info.tombstones_since_ms for info in infos]
        return known[0] if len(known) == 1 and known[0] != NO_TIMESTAMP else self.now_ms


class Rewritten(NamedTuple):
    """What became of segments; ``info`` is None where their bytes stay as they are."""

    info: SealedInfo | None
    records_dropped: int
    tombstones_dropped: int
    has_tombstones: bool


def rewrite(work: Rewriting, old: tuple[Segment, ...], keys: Superseding, target: Target) -> Rewritten:
    """Write the segment that takes the place of *old* to *target*, with its indexes. Synced, names aside.

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
        return Rewritten(None, 0, 0, output.has_tombstones)
    info = _index(work, infos, output, target)
    return Rewritten(info, output.dropped, output.tombstones_dropped, output.has_tombstones)


def rewrite_whole(
    work: Rewriting, old: tuple[Segment, ...], stays: Callable[[int], bool], target: Target
) -> Rewritten:
    """Write the segment that takes the place of *old*: the frames whose base offset *stays*, each as it is.

    The last frame stays in any case, as in `rewrite`, which this is like otherwise.
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


def _index(work: Rewriting, infos: tuple[SealedInfo, ...], output: _Output, target: Target) -> SealedInfo:
    """Return what is to be said of the new segment, having read what was written and indexed it."""
    info = SealedInfo(
        infos[0].base,
        output.size,
        infos[-1].next_offset,
        index_interval_bytes=work.state.index_interval_bytes,
        generation=max(info.generation for info in infos) + 1,
        index_interval_records=work.state.index_interval_records,
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
    return msgspec.structs.replace(
        info,
        max_timestamp=times.largest,
        index_crc32c=google_crc32c.value(bytes(index.entries)),
        time_index_crc32c=google_crc32c.value(bytes(times.entries)),
        opened_ms=min(each.opened_ms for each in infos),
        sealed_ms=max(each.sealed_ms for each in infos),
        tombstones_since_ms=work.tombstones_since(infos, has_tombstones=output.has_tombstones),
    )


class _Output:
    """The new file of a segment, and what was left out on the way to it."""

    def __init__(self, file: File, pace: Pace, sidecar: Sidecar | None, base_offset: int) -> None:
        self._file = file
        self._pace = pace
        self._sidecar = sidecar
        self._next_offset = base_offset
        #: The new sidecar, entry for entry.
        self.entries = bytearray(b"" if sidecar is None else sidecar.head(base_offset))
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

    def put_frame(self, offset: int, data: Buffer) -> None:
        """Append the frame of one record, and its entry in the sidecar, which there must be."""
        assert self._sidecar is not None
        self.end_at(offset)
        self.entries += self._sidecar.pack(
            self.size, [len(data)], [self._sidecar.checksum(data, 0, len(data))]
        )
        self._next_offset = offset + 1
        self.put(data)

    def end_at(self, offset: int) -> None:
        """Say in the sidecar that the records up to *offset* are gone."""
        if self._sidecar is not None:
            gone = [0] * (offset - self._next_offset)
            self.entries += self._sidecar.pack(self.size, gone, gone)
            self._next_offset = offset


class _Filter:
    """Copies what stays of one segment: frames as they are where nothing goes, else without what does."""

    def __init__(self, work: Rewriting, segment: Segment, keys: Superseding, *, last: bool) -> None:
        self._windows = work.windows(segment)
        self._format = segment.format
        self._keys = keys
        self._end = work.end
        self._log_start = work.state.log_start_offset
        self._last_batches = work.last_batches
        # The last frame of a segment stays, if only as a shell: so wherever a reader asks within the segment,
        # there is a frame after it that leads on.
        self._last_position = segment.info.size if last else -1
        self._drop_tombstones = is_tombstone_due(segment.info, work.config, work.now_ms)

    def copy_to(self, output: _Output) -> None:
        """Write what stays to *output*."""
        for window in self._windows:
            dropped = self._dropped(window, output)
            self._copy(window, dropped, output)

    def _dropped(self, window: Window, output: _Output) -> bytearray:
        """Return a byte for each data record of a window, 1 for those that go."""
        want = Want.KEY | Want.OFFSET | Want.VALUE
        columns = window.table.columns(0, len(window.table), want)
        assert columns.key is not None
        assert columns.offset is not None
        assert columns.value is not None
        dropped = self._keys.superseded(columns.key, columns.offset, columns.rows)
        offsets = numbers_in(columns.offset)
        # What lies below the log start was deleted, whatever its key.
        deleted = bisect_left(offsets, self._log_start)
        dropped[:deleted] = b"\1" * deleted
        stays = self._row_that_stays(window, columns.rows)
        if stays is not None:
            dropped[stays] = 0
        output.dropped += dropped.count(1)
        if columns.value.nulls:
            for row in _null_rows(columns.value, columns.rows):
                if dropped[row]:
                    continue
                due = self._drop_tombstones and row != stays
                if due and offsets[row] < self._end and not _is_null(columns.key, row):
                    dropped[row] = 1
                    output.dropped += 1
                    output.tombstones_dropped += 1
                else:
                    output.has_tombstones = True
        return dropped

    def _row_that_stays(self, window: Window, rows: int) -> int | None:
        """Return the record that stays whatever is known of its key, if there is one in a window.

        Where a frame is a record it cannot be a shell, so the last record of a segment stays whole.
        """
        last = window.position + window.table.end == self._last_position
        return rows - 1 if last and self._format.record_per_frame else None

    def _copy(self, window: Window, dropped: bytearray, output: _Output) -> None:
        """Write the frames of a window; those that stay whole, and follow each other, in one piece."""
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
            output.put(data[position:after] if whole else table.without(frame, dropped, first))
        output.put(data[begin : table.end])

    def _must_stay(self, end: int, base_offset: int) -> bool:
        """Return whether a frame stays though it has no records left."""
        return end == self._last_position or base_offset in self._last_batches


def numbers_in(buffer: Buffer) -> memoryview:
    """Return the int64 numbers of a buffer."""
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


def write_synced(files: Files, path: str, data: bytes) -> None:
    """Write a whole file and sync it; its name is the caller's to sync."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)
    with contextlib.closing(files.open(path, "create")) as file:
        write_all(file, 0, data)
        file.sync()
