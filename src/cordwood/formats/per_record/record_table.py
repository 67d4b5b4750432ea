"""Frames of one record each, found by a scan: the engine's queries, and batches for clients."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cordwood.errors import FrameError, InvalidBatch, TruncatedFrame
from cordwood.formats import batch
from cordwood.formats.batch import Marker
from cordwood.formats.format import Ending, ProducerStamp
from cordwood.formats.sidecar import ENTRY_SIZE
from cordwood.kernels import INT32_MAX, Buffer, ColumnBuffers, Want
from cordwood.records import Header, Record

#: Batches for clients have about this many bytes of frames, or this many records.
BATCH_BYTES = 1 << 20
BATCH_RECORDS = 1 << 14


class FoundFrame(NamedTuple):
    """The header of a frame; ``offset`` is None if it has none, ``timestamp`` is in ms.

    ``before`` is its stored state of the previous frame; None in a format without a chain.
    """

    size: int
    offset: int | None
    timestamp: int
    before: bytes | None = None


class Content(NamedTuple):
    """The content of a record besides offset and timestamp."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class Decoding(Protocol):
    """The interface that a table needs of its format: `record_per_frame.RecordPerFrame` is one."""

    header_size: int
    chained: bool

    def decode_frame(self, buffer: Buffer, position: int, size: int) -> Content:
        """Decode the frame of *size* bytes at *position*."""

    def left_by(self, frame: Buffer) -> bytes:
        """Return the state that a complete frame passes to the next one."""


class RecordTable:
    """Frames of one record each, found by a scan; see `format.FrameTable`."""

    def __init__(
        self,
        format_: Decoding,
        buffer: Buffer,
        start: int,
        epochs: Sequence[tuple[int, int]] | None,
        before: bytes | None,
    ) -> None:
        self.ending = Ending.END
        self.end = start
        self._format = format_
        self._buffer = buffer
        self._epochs = epochs or ((0, 0),)
        self._before = before
        self._positions: list[int] = []
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._error: FrameError | None = None

    # --- filled by the scan ------------------------------------------------------------------------

    def add(self, size: int, offset: int, timestamp: int) -> None:
        """Add a frame that starts at the end of the previous one."""
        self._positions.append(self.end)
        self._offsets.append(offset)
        self._timestamps.append(timestamp)
        self.end += size

    def check_follows(self, found: FoundFrame) -> None:
        """Compare a frame's stored state of its predecessor with the actual one, if known.

        Raises:
            InvalidBatch: With both values.
        """
        known, says = self._before if not self._positions else self.left, found.before or b""
        # The first record of a log has zeros for its predecessor.
        expected = says if known is None else known or bytes(len(says))
        if says != expected:
            raise InvalidBatch(
                position=self.end, expected=expected.hex(), found=says.hex(), what="hash of the record before"
            )

    def stop(self, error: FrameError) -> None:
        """End the run because of *error*."""
        self._error = error
        rest = memoryview(self._buffer)[self.end :]
        if isinstance(error, TruncatedFrame):
            self.ending = Ending.SHORT
        elif not any(rest[: max(self._format.header_size, ENTRY_SIZE)]):
            self.ending = Ending.ZEROS
        else:
            self.ending = Ending.INVALID

    # --- asked by the engine -----------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def left(self) -> bytes:
        """The state that the last frame passes to the next one."""
        if not self._format.chained:
            return b""
        if not self._positions:
            return self._before or b""
        return self._format.left_by(memoryview(self._buffer)[self._positions[-1] : self.end])

    def position(self, frame: int) -> int:
        """Return where a frame starts."""
        return self._positions[frame]

    def base_offset(self, frame: int) -> int:
        """Return the offset of a record."""
        return self._offsets[frame]

    def next_offset(self, frame: int) -> int:
        """Return the offset after a record."""
        return self._offsets[frame] + 1

    def max_timestamp(self, frame: int) -> int | None:
        """Return the timestamp of a record."""
        return self._timestamps[frame]

    def record_count(self, frame: int) -> int:
        """Return 1."""
        return 1

    def stamp(self, frame: int) -> ProducerStamp | None:
        """Return None: frames do not contain their producer."""
        return None

    def marker(self, frame: int) -> Marker | None:
        """Return None: there are no transactions in this format."""
        return None

    def find(self, offset: int) -> int:
        """Return the first record at or after *offset*."""
        return bisect_left(self._offsets, offset)

    def last_within(self, position_max: int) -> int:
        """Return the last frame that ends at or before *position_max*; -1 if none does."""
        frame = bisect_right(self._positions, position_max) - 1
        return frame if frame < 0 or self._end_of(frame) <= position_max else frame - 1

    def error(self) -> FrameError:
        """Return the fault after the last frame."""
        assert self._error is not None
        return self._error

    def records(self, frame: int) -> list[Record]:
        """Decode one record."""
        key, value, headers = self._content(frame)
        return [Record(self._offsets[frame], self._timestamps[frame], key, value, headers)]

    def columns(self, first: int, stop: int, want: Want) -> ColumnBuffers:
        """Decode records to columns by encoding and decoding a batch with the kernels."""
        rows = [(*self._content(frame), self._timestamps[frame]) for frame in range(first, stop)]
        if not rows:
            return batch.decode_columns(b"", batch.scan(b""), want)
        encoded = batch.encode_records(rows, 0, size_max=INT32_MAX)
        columns = batch.decode_columns(encoded, batch.scan(encoded, size_max=INT32_MAX), want)
        if not want & Want.OFFSET:
            return columns
        return columns._replace(offset=array("q", self._offsets[first:stop]).tobytes())

    def batches(self, first: int, stop: int) -> list[bytearray]:
        """Return records as Kafka's batches, each of one leader epoch."""
        encoded = []
        while first < stop:
            last = self._batch_end(first, stop)
            columns = self.columns(first, last, Want.ALL)
            options = batch.BatchOptions(leader_epoch=self._epoch_at(first)[0])
            encoded.append(batch.encode_columns(columns, 0, columns.rows, options, size_max=INT32_MAX))
            first = last
        return encoded

    def _batch_end(self, first: int, stop: int) -> int:
        """Return the end of the batch that begins with frame *first*, as a frame number."""
        stop = min(stop, first + BATCH_RECORDS, bisect_right(self._offsets, self._epoch_at(first)[1] - 1))
        within = bisect_right(self._positions, self._positions[first] + BATCH_BYTES, first, stop)
        return max(within, first + 1)

    def _epoch_at(self, frame: int) -> tuple[int, int]:
        """Return the leader epoch of a frame's offset, and the offset where the next one begins."""
        starts = [start for start, _ in self._epochs]
        at = max(bisect_right(starts, self._offsets[frame]) - 1, 0)
        after = starts[at + 1] if at + 1 < len(starts) else self._offsets[-1] + 1
        return self._epochs[at][1], after

    def keep_before(self, frame: int, end_offset: int) -> bytearray | None:
        """Return None: a frame of one record that begins before the truncation also ends before it."""
        return None

    def without(self, frame: int, dropped: Buffer, first: int) -> Buffer:
        """Return the frame unchanged: it cannot exist without its record."""
        return memoryview(self._buffer)[self._positions[frame] : self._end_of(frame)]

    def _content(self, frame: int) -> Content:
        position = self._positions[frame]
        return self._format.decode_frame(self._buffer, position, self._end_of(frame) - position)

    def _end_of(self, frame: int) -> int:
        return self._positions[frame + 1] if frame + 1 < len(self._positions) else self.end
