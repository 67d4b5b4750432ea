"""The native format under the engine's contract: one frame is one Kafka RecordBatch."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from cordwood import kernels
from cordwood.errors import FrameError, FrameTooLarge, InvalidBatch, RecordRefused
from cordwood.formats import batch
from cordwood.formats.batch import BatchHeader, BatchOptions, BatchScan, Marker
from cordwood.formats.compression import Compression
from cordwood.formats.format import (
    NOTHING_BESIDE,
    Beside,
    Encoded,
    Ending,
    FrameSlot,
    Holds,
    ProducerStamp,
    ReceivedFrame,
    Row,
)
from cordwood.formats.receiving import BatchTerms, CompressionChoice, check_allowed, recompressed
from cordwood.formats.sidecar import Sidecar
from cordwood.formats.streamed import StreamedBatch
from cordwood.kernels import (
    HEADER,
    HEADER_COLUMNS,
    HEADER_SIZE,
    INT32_MAX,
    LENGTH_OVERHEAD,
    Buffer,
    ColumnBuffers,
    HeaderColumn,
    Stop,
    Want,
)
from cordwood.records import Header, Record

_MAGIC_AT = 16
_ATTRIBUTES_AT = 21
_LAST_DELTA_AT = 23
_ROW_SIZE = HEADER_COLUMNS * 8
_ENDINGS = {Stop.END: Ending.END, Stop.SHORT: Ending.SHORT, Stop.ZEROS: Ending.ZEROS}


class BatchTable:
    """Batches found by a scan; see `format.FrameTable`."""

    left = b""

    def __init__(self, buffer: Buffer, start: int, found: BatchScan, sound: int) -> None:
        self._buffer = buffer
        self._start = start
        self._found = found
        self._sound = sound
        self._positions = found.column(HeaderColumn.POSITION)
        self._sizes = found.column(HeaderColumn.SIZE)
        self._offsets = found.column(HeaderColumn.BASE_OFFSET)
        self._deltas = found.column(HeaderColumn.LAST_OFFSET_DELTA)

    def __len__(self) -> int:
        return self._sound

    @property
    def ending(self) -> Ending:
        """How the run ended; a batch with a wrong checksum ends it too."""
        if self._sound < len(self._found):
            return Ending.INVALID
        return _ENDINGS.get(self._found.reason, Ending.INVALID)

    @property
    def end(self) -> int:
        """The position after the last batch."""
        if not self._sound:
            return self._start
        return self._positions[self._sound - 1] + self._sizes[self._sound - 1]

    def position(self, frame: int) -> int:
        """Return where a batch starts."""
        return self._positions[frame]

    def base_offset(self, frame: int) -> int:
        """Return the base offset of a batch."""
        return self._offsets[frame]

    def next_offset(self, frame: int) -> int:
        """Return the offset after the last one a batch takes."""
        return self._offsets[frame] + self._deltas[frame] + 1

    def max_timestamp(self, frame: int) -> int | None:
        """Return the max timestamp of a batch, None for an empty one."""
        if not self._found.column(HeaderColumn.COUNT)[frame]:
            return None
        return self._found.column(HeaderColumn.MAX_TIMESTAMP)[frame]

    def record_count(self, frame: int) -> int:
        """Return how many records a batch has; a control batch has no data records."""
        if self._found.column(HeaderColumn.ATTRIBUTES)[frame] & batch.CONTROL:
            return 0
        return self._found.column(HeaderColumn.COUNT)[frame]

    def stamp(self, frame: int) -> ProducerStamp | None:
        """Return the producer of a batch, None if it has none or is a control batch."""
        producer_id = self._found.column(HeaderColumn.PRODUCER_ID)[frame]
        attributes = self._found.column(HeaderColumn.ATTRIBUTES)[frame]
        if producer_id == batch.NO_PRODUCER_ID or attributes & batch.CONTROL:
            return None
        first = self._found.column(HeaderColumn.BASE_SEQUENCE)[frame]
        epoch = self._found.column(HeaderColumn.PRODUCER_EPOCH)[frame]
        last = _last_sequence(first, self._deltas[frame])
        return ProducerStamp(producer_id, epoch, first, last, bool(attributes & batch.TRANSACTIONAL))

    def marker(self, frame: int) -> Marker | None:
        """Return the marker in a control batch that ends a transaction."""
        if not self._found.column(HeaderColumn.ATTRIBUTES)[frame] & batch.CONTROL:
            return None
        return batch.decode_marker(self._buffer, self._header(frame))

    def find(self, offset: int) -> int:
        """Return the first batch that reaches beyond *offset*."""
        frame = max(bisect_right(self._offsets, offset, 0, self._sound) - 1, 0)
        while frame < self._sound and self.next_offset(frame) <= offset:
            frame += 1
        return frame

    def last_within(self, position_max: int) -> int:
        """Return the last batch that ends at or before *position_max*; -1 if none does."""
        frame = bisect_right(self._positions, position_max, 0, self._sound) - 1
        while frame >= 0 and self._positions[frame] + self._sizes[frame] > position_max:
            frame -= 1
        return frame

    def error(self) -> FrameError:
        """Return the fault after the last batch."""
        if self._sound == len(self._found):
            return self._found.error(self._buffer)
        header = list(self._found.headers())[self._sound]
        try:
            batch.check_crc(self._buffer, header)
        except FrameError as error:
            return error
        found = header.leader_epoch
        return InvalidBatch(
            position=header.position + 12, expected="that of its offset", found=found, what="leader epoch"
        )

    def records(self, frame: int) -> list[Record]:
        """Decode the records of a batch; a control batch has no data records."""
        header = self._header(frame)
        return [] if header.is_control else batch.decode_records(self._buffer, header)

    def columns(self, first: int, stop: int, want: Want) -> ColumnBuffers:
        """Decode the records of batches [first, stop) to columns."""
        rows = memoryview(self._found.table).cast("B")[first * _ROW_SIZE : stop * _ROW_SIZE]
        return batch.decode_columns(self._buffer, BatchScan(rows, self.end, Stop.END), want)

    def batches(self, first: int, stop: int) -> tuple[memoryview]:
        """Return the batches unchanged from the buffer."""
        end = self._positions[stop] if stop < self._sound else self.end
        return (memoryview(self._buffer)[self._positions[first] : end],)

    def keep_before(self, frame: int, end_offset: int) -> bytearray | None:
        """Return a batch without the records at or above *end_offset*, encoded again."""
        header = self._header(frame)
        columns = self.columns(frame, frame + 1, Want.ALL)
        assert columns.offset is not None
        kept = bisect_left(memoryview(columns.offset).cast("B").cast("q"), end_offset)
        return batch.encode_columns(columns, 0, kept, _options_of(header)) if kept else None

    def without(self, frame: int, dropped: Buffer, first: int) -> Buffer:
        """Return a batch without some of its records; an empty one keeps offsets and producer."""
        header = self._header(frame)
        left = batch.without(self._buffer, header, dropped, first, _options_of(header))
        if len(left) <= header.size:
            return left
        return memoryview(self._buffer)[header.position : header.end]

    def _header(self, frame: int) -> BatchHeader:
        values = memoryview(self._found.table).cast("B").cast("q")
        return BatchHeader._make(values[frame * HEADER_COLUMNS : (frame + 1) * HEADER_COLUMNS])


class BatchFormat:
    """Kafka's RecordBatch, version 2; see `format.Format`."""

    name = "batch"
    header_size = LENGTH_OVERHEAD
    #: The number of bytes of a batch that contain its base offset and its last offset.
    place_size = HEADER_SIZE
    record_per_frame = False
    holds = Holds(keys=True, headers=True, null_values=True, stamps=True)
    sidecar: Sidecar | None = None
    chained = False
    store_bytes_max: int | None = None

    def left_by(self, frame: Buffer) -> bytes:
        """Return no bytes: frames are independent."""
        return b""

    def for_partition(self, partition: int, tenant: int | None = 0) -> BatchFormat:
        """Return itself: a batch does not contain its partition."""
        return self

    def frame_size(self, header: Buffer) -> int | None:
        """Return the size from the length field."""
        size = int.from_bytes(memoryview(header)[8:12], "big", signed=True) + LENGTH_OVERHEAD
        return size if size >= HEADER_SIZE else None

    def scan(
        self,
        buffer: Buffer,
        start: int = 0,
        *,
        next_offset: int,
        dense: bool,
        epochs: Sequence[tuple[int, int]] | None,
        size_max: int,
        checked_before: int = 0,
        beside: Beside = NOTHING_BESIDE,
    ) -> BatchTable:
        """Find the complete, valid batches from *start* on."""
        within = (0, INT32_MAX) if epochs is None else (epochs[0][1], epochs[-1][1])
        found = batch.scan(
            buffer, start, size_max=size_max, next_offset=next_offset, dense=dense, epochs=within
        )
        sound = batch.count_sound(buffer, found, checked_before)
        if epochs is not None and len(epochs) > 1:
            sound = min(sound, _count_of_epochs(found, epochs))
        return BatchTable(buffer, start, found, sound)

    def candidates(self, buffer: Buffer) -> Iterator[int]:
        """Yield the positions whose magic is right and whose length fits into the buffer."""
        data = bytes(buffer)
        magic_at = data.find(batch.MAGIC, _MAGIC_AT)
        while magic_at >= 0:
            start = magic_at - _MAGIC_AT
            size = self.frame_size(data[start : start + LENGTH_OVERHEAD])
            if size is not None and size <= len(data) - start:
                yield start
            magic_at = data.find(batch.MAGIC, magic_at + 1)

    def encode(
        self,
        rows: Iterable[Row],
        slot: FrameSlot,
        now_ms: int,
        codec: CompressionChoice | None = None,
    ) -> Encoded:
        """Encode rows as one batch.

        Same as `batch.encode_records`, inlined for speed, because every append calls it.
        """
        encoded, base_timestamp, max_timestamp, last_delta = kernels.encode_rows(rows, now_ms, HEADER_SIZE)
        if last_delta < 0:
            raise RecordRefused("a batch needs at least one record")
        batch.check_size(encoded, slot.size_max)
        if slot.append_timestamp is not None:
            max_timestamp = slot.append_timestamp
        HEADER.pack_into(
            encoded,
            0,
            slot.base_offset,
            len(encoded) - LENGTH_OVERHEAD,
            slot.leader_epoch,
            batch.MAGIC,
            0,
            0 if slot.append_timestamp is None else batch.LOG_APPEND_TIME,
            last_delta,
            base_timestamp,
            max_timestamp,
            batch.NO_PRODUCER_ID,
            batch.NO_PRODUCER_EPOCH,
            batch.NO_SEQUENCE,
            last_delta + 1,
        )
        batch.seal(encoded)
        if codec is not None and codec.compression is not Compression.NONE:
            header = batch.read_header(encoded, size_max=INT32_MAX)
            encoded = recompressed(memoryview(encoded), header, codec)
            batch.check_size(encoded, slot.size_max)
        return Encoded(encoded, slot.base_offset + last_delta + 1, max_timestamp)

    def receive(self, data: memoryview, terms: BatchTerms) -> ReceivedFrame:
        """Check the one batch in *data*; a wrong max timestamp is corrected in place."""
        size_max = terms.size_max
        if len(data) > size_max:
            raise FrameTooLarge(
                position=0, expected=f"at most {size_max} bytes", found=len(data), what="batch"
            )
        header = batch.read_header(data, size_max=size_max)
        if header.size != len(data):
            raise InvalidBatch(
                position=header.size, expected="one batch", found=f"{len(data)} bytes", what="batch length"
            )
        _refuse_broker_only(header, terms)
        largest = batch.check_records(data, header, record_max=size_max)
        check_allowed(data, header, largest, terms)
        if largest != header.max_timestamp:
            batch.set_max_timestamp(data, header, largest)
        if terms.codec is not None and terms.codec.compression is not header.compression:
            made = recompressed(data, header, terms.codec)
            batch.check_size(made, size_max)
            data = memoryview(made)
        stamp = None
        if header.producer_id != batch.NO_PRODUCER_ID:
            first = header.base_sequence
            last = _last_sequence(first, header.last_offset_delta)
            is_transactional = bool(header.attributes & batch.TRANSACTIONAL)
            stamp = ProducerStamp(header.producer_id, header.producer_epoch, first, last, is_transactional)
        return ReceivedFrame(data, header.record_count, largest, stamp)

    def times(self, frame: ReceivedFrame) -> Sequence[int]:
        """Decode the timestamps of a received batch."""
        header = batch.read_header(frame.data, size_max=INT32_MAX)
        columns = batch.decode_batch_columns(frame.data, header, Want.TIMESTAMP)
        assert columns.timestamp is not None
        return memoryview(columns.timestamp).cast("B").cast("q")

    def with_times(self, frame: ReceivedFrame, timestamps: Sequence[int]) -> ReceivedFrame:
        """Encode a received batch again with other timestamps."""
        header = batch.read_header(frame.data, size_max=INT32_MAX)
        columns = batch.decode_batch_columns(frame.data, header, Want.ALL)
        assert len(timestamps) == columns.rows, "a timestamp for each record"
        given = columns._replace(timestamp=array("q", timestamps).tobytes())
        made = batch.encode_columns(given, 0, columns.rows, _options_of(header))
        return frame._replace(data=memoryview(made), max_timestamp=max(timestamps))

    def place(self, frame: ReceivedFrame, slot: FrameSlot) -> Encoded:
        """Set base offset, leader epoch and, for log append time, the time of the append."""
        batch.place(frame.data, 0, slot.base_offset, slot.leader_epoch)
        next_offset = slot.base_offset + frame.record_count
        given = slot.append_timestamp
        if given is None:
            return Encoded(frame.data, next_offset, frame.max_timestamp)
        batch.stamp_append_time(frame.data, batch.read_header(frame.data, size_max=INT32_MAX), given)
        return Encoded(frame.data, next_offset, given)

    def renumber(self, head: bytearray | memoryview, base_offset: int, leader_epoch: int) -> tuple[int, int]:
        """Set base offset and leader epoch in *head*, the first ``place_size`` bytes of a batch, in place.

        Returns the size of the batch and the offset after it. No checksum changes.

        Raises:
            InvalidBatch: If *head* is not the beginning of a batch.
        """
        size = self.frame_size(head) if len(head) >= HEADER_SIZE else None
        last_delta = int.from_bytes(head[_LAST_DELTA_AT : _LAST_DELTA_AT + 4], "big", signed=True)
        if size is None or head[_MAGIC_AT] != batch.MAGIC or last_delta < 0:
            raise InvalidBatch(
                position=0, expected="the header of a batch", found="other bytes", what="header"
            )
        batch.place(head, 0, base_offset, leader_epoch)
        return size, base_offset + last_delta + 1

    def is_transactional(self, head: bytearray | memoryview) -> bool:
        """Return whether *head*, the first ``place_size`` bytes of a batch, is part of a transaction.

        A control batch is.
        """
        attributes = int.from_bytes(head[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2], "big")
        return bool(attributes & (batch.TRANSACTIONAL | batch.CONTROL))

    def encode_marker(self, marker: Marker, slot: FrameSlot, now_ms: int) -> Encoded:
        """Encode the end of a transaction as a control batch."""
        options = BatchOptions(slot.base_offset, slot.leader_epoch)
        data = batch.encode_marker(marker, now_ms, options)
        return Encoded(data, slot.base_offset + 1, now_ms)

    def stream(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        value_size: int,
        slot: FrameSlot,
        timestamp: int,
    ) -> StreamedBatch:
        """Lay out a batch of one record around a value that is not in memory."""
        return StreamedBatch(key, headers, value_size, slot, timestamp)

    def decode(self, buffer: Buffer, position: int) -> list[Record]:
        """Decode the records of a batch; a control batch has no data records."""
        header = batch.read_header(buffer, position)
        return [] if header.is_control else batch.decode_records(buffer, header)


def _last_sequence(first: int, last_delta: int) -> int:
    """Return the sequence number of the last record of a batch."""
    return first if first == batch.NO_SEQUENCE else (first + last_delta) & INT32_MAX


def _refuse_broker_only(header: BatchHeader, terms: BatchTerms) -> None:
    if header.attributes & ~(batch.COMPRESSION_MASK | batch.TRANSACTIONAL):
        kinds = (
            (batch.CONTROL, "control"),
            (batch.LOG_APPEND_TIME, "log append time"),
            (batch.DELETE_HORIZON, "delete horizon"),
        )
        named = [name for bit, name in kinds if header.attributes & bit]
        raise RecordRefused(f"a batch with attributes {', '.join(named) or hex(header.attributes)}")
    if not header.record_count:
        raise RecordRefused("a batch needs at least one record")
    # Either all three are set or there is no producer: a partial stamp could not be told from a retry.
    is_transactional = header.attributes & batch.TRANSACTIONAL
    if header.producer_id == batch.NO_PRODUCER_ID:
        if is_transactional:
            raise RecordRefused("a transactional batch without a producer")
        return
    sequenced = header.base_sequence >= 0 or (terms.from_broker and is_transactional)
    if header.producer_id < 0 or header.producer_epoch < 0 or not sequenced:
        raise RecordRefused(f"a batch of producer {header.producer_id} without epoch or sequence")


def _count_of_epochs(found: BatchScan, epochs: Sequence[tuple[int, int]]) -> int:
    """Return the number of leading batches whose epoch matches their offset."""
    starts = [start for start, _ in epochs]
    offsets, carried = found.column(HeaderColumn.BASE_OFFSET), found.column(HeaderColumn.LEADER_EPOCH)
    for i in range(len(found)):
        if carried[i] != epochs[max(bisect_right(starts, offsets[i]) - 1, 0)][1]:
            return i
    return len(found)


def _options_of(header: BatchHeader) -> BatchOptions:
    """Return the options that encode records under the same header."""
    return BatchOptions(
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        compression=header.compression,
        attributes=header.attributes & ~batch.COMPRESSION_MASK,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
