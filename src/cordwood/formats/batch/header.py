"""The header of a batch: read without touching records, and compared with its checksum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from cordwood import kernels
from cordwood.errors import (
    ChecksumMismatch,
    FrameError,
    FrameTooLarge,
    InvalidBatch,
    OnlyZeros,
    TruncatedFrame,
    UnsupportedFrame,
)
from cordwood.formats.compression import Compression
from cordwood.kernels import (
    HEADER,
    HEADER_COLUMNS,
    HEADER_SIZE,
    INT32_MAX,
    INT64_MIN,
    LENGTH_OVERHEAD,
    Buffer,
    HeaderColumn,
    Stop,
)

MAGIC = 2
#: The checksum covers everything from here to the end of the batch.
CRC_START = 21
#: `message.max.bytes`: a batch as stored.
SIZE_MAX = 16 * 1024 * 1024
NO_LEADER_EPOCH = -1
ANY_EPOCH = (-(1 << 31), INT32_MAX)

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
LEADER_EPOCH_AT, CRC_AT, ATTRIBUTES_AT, MAX_TIMESTAMP_AT = 12, 17, 21, 35


class BatchHeader(NamedTuple):
    """The header of one batch; fields in the order of `kernels.HeaderColumn`."""

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def end(self) -> int:
        """The position after the batch."""
        return self.position + self.size

    @property
    def next_offset(self) -> int:
        """The offset after the last one this batch takes, records compacted away included."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """How the records are compressed.

        Raises:
            UnsupportedFrame: If the attributes name a compression that does not exist.
        """
        try:
            return Compression(self.attributes & COMPRESSION_MASK)
        except ValueError:
            raise UnsupportedFrame(
                position=self.position + ATTRIBUTES_AT,
                expected="0 to 4",
                found=self.attributes & COMPRESSION_MASK,
                what="compression",
            ) from None

    @property
    def log_append_time(self) -> bool:
        """Whether every record carries the time of the append, ``max_timestamp``."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the records are markers for the broker, not data."""
        return bool(self.attributes & CONTROL)


assert len(BatchHeader._fields) == HEADER_COLUMNS


@dataclass(frozen=True, slots=True)
class BatchScan:
    """Where a scan found batches, where it stopped and why.

    ``table`` holds a row of int64 values per batch (`kernels.HeaderColumn`), in one buffer.
    """

    table: Buffer
    stopped_at: int
    reason: Stop

    def __len__(self) -> int:
        return len(self.table) // (HEADER_COLUMNS * 8)

    def headers(self) -> Iterator[BatchHeader]:
        """Yield the header of each batch found."""
        values = memoryview(self.table).cast("B").cast("q")
        for start in range(0, len(values), HEADER_COLUMNS):
            yield BatchHeader._make(values[start : start + HEADER_COLUMNS])

    def column(self, column: HeaderColumn) -> memoryview:
        """Return one field of every header."""
        return memoryview(self.table).cast("B").cast("q")[column::HEADER_COLUMNS]

    def error(self, buffer: Buffer) -> FrameError:
        """Return what is wrong where the scan stopped. Only for a scan that did not reach the end."""
        return _stop_error(buffer, self.stopped_at, self.reason)


def scan(
    buffer: Buffer,
    start: int = 0,
    stop: int | None = None,
    *,
    size_max: int = SIZE_MAX,
    next_offset: int = 0,
    dense: bool = False,
    epochs: tuple[int, int] = (NO_LEADER_EPOCH, INT32_MAX),
) -> BatchScan:
    """Read batch headers until the end, an all-zero header, or one that is not whole or not valid.

    Offsets must not fall below *next_offset* nor the batch before, and must go on exactly there where
    *dense*; leader epochs must lie within *epochs*, both included, and never fall.
    Never raises for what the bytes are; checksums are `check_crc`'s work.
    """
    end = len(buffer) if stop is None else stop
    found = kernels.scan_headers(buffer, start, end, size_max, next_offset, dense, *epochs)
    return BatchScan(found[0], found[1], Stop(found[2]))


def read_header(buffer: Buffer, position: int = 0, *, size_max: int = SIZE_MAX) -> BatchHeader:
    """Read the header of the batch at *position*, all of whose bytes must be there.

    Raises:
        FrameError: Of the kind that says what is wrong, with the position of the field.
    """
    end = len(buffer)
    if 0 <= position <= end - HEADER_SIZE:
        size = int.from_bytes(memoryview(buffer)[position + 8 : position + 12], "big", signed=True)
        end = min(end, max(position + size + LENGTH_OVERHEAD, position + HEADER_SIZE))
    found = scan(buffer, position, end, size_max=size_max, next_offset=INT64_MIN, epochs=ANY_EPOCH)
    if not len(found):
        raise found.error(buffer)
    return next(found.headers())


def check_crc(buffer: Buffer, header: BatchHeader) -> None:
    """Compare the batch's checksum with that of its bytes.

    Raises:
        ChecksumMismatch: With both, at the position of the checksum.
    """
    actual = crc_of(buffer, header.position, header.end)
    if actual != header.crc:
        raise ChecksumMismatch(
            position=header.position + CRC_AT,
            expected=f"{header.crc:#010x}",
            found=f"{actual:#010x}",
            what="CRC-32C of the batch",
        )


def count_sound(buffer: Buffer, found: BatchScan, checked_before: int = 0) -> int:
    """Return how many batches from the first on have the checksum of their bytes.

    Those that end at or before the position *checked_before* count without being read again.
    """
    readonly, value = kernels.readonly, google_crc32c.value
    positions, sizes, crcs = map(found.column, (HeaderColumn.POSITION, HeaderColumn.SIZE, HeaderColumn.CRC))
    for i in range(len(found)):
        end = positions[i] + sizes[i]
        if end > checked_before and value(readonly(buffer, positions[i] + CRC_START, end)) != crcs[i]:
            return i
    return len(found)


def crc_of(buffer: Buffer, position: int, end: int) -> int:
    """Return the CRC-32C that the batch in [position, end) should have."""
    return int(google_crc32c.value(kernels.readonly(buffer, position + CRC_START, end)))


def _stop_error(buffer: Buffer, position: int, reason: Stop) -> FrameError:
    left = len(buffer) - position
    if reason is Stop.END or (reason is Stop.SHORT and left < HEADER_SIZE):
        return TruncatedFrame(
            position=position,
            expected=f"a header of {HEADER_SIZE} bytes",
            found=f"{max(left, 0)} bytes",
            what="batch",
        )
    if reason is Stop.ZEROS:
        return OnlyZeros(position=position, expected="a batch", found="zeros", what="batch header")
    field = dict(zip(_HEADER_FIELDS, HEADER.unpack_from(buffer, position), strict=True))
    size = field["batch length"] + LENGTH_OVERHEAD
    if reason is Stop.SHORT:
        return TruncatedFrame(
            position=position, expected=f"{size} bytes", found=f"{left} bytes", what="batch"
        )
    if reason is Stop.BAD_MAGIC:
        return UnsupportedFrame(position=position + 16, expected=MAGIC, found=field["magic"], what="magic")
    if reason is Stop.TOO_LARGE:
        return FrameTooLarge(
            position=position + 8, expected="no more than the limit", found=f"{size} bytes", what="batch"
        )
    name, at, expected = _STOP_FIELDS[reason]
    return InvalidBatch(position=position + at, expected=expected, found=field[name], what=name)


_HEADER_FIELDS = (
    "base offset",
    "batch length",
    "leader epoch",
    "magic",
    "checksum",
    "attributes",
    "last offset delta",
    "base timestamp",
    "max timestamp",
    "producer id",
    "producer epoch",
    "base sequence",
    "record count",
)
_STOP_FIELDS = {
    Stop.BAD_LENGTH: ("batch length", 8, f"at least {HEADER_SIZE - LENGTH_OVERHEAD}"),
    Stop.BAD_OFFSET: ("base offset", 0, "offsets that go on after the batch before"),
    Stop.BAD_EPOCH: ("leader epoch", 12, "no less than the batch before"),
    Stop.BAD_COUNT: ("record count", 57, "0 up to the last offset delta plus one"),
}
