"""The records of a batch: checked, and decoded to objects or to columns."""

from __future__ import annotations

from cordwood import kernels
from cordwood.errors import (
    FrameTooLarge,
    InvalidBatch,
    UnsupportedFrame,
)
from cordwood.formats.batch.header import (
    ANY_EPOCH,
    ATTRIBUTES_AT,
    COMPRESSION_MASK,
    CONTROL,
    MAX_TIMESTAMP_AT,
    SIZE_MAX,
    BatchHeader,
    BatchScan,
    check_crc,
    scan,
)
from cordwood.formats.compression import Compression, decompress
from cordwood.kernels import (
    HEADER_COLUMNS,
    HEADER_SIZE,
    INT32_MAX,
    INT64_MIN,
    Buffer,
    ColumnBuffers,
    HeaderColumn,
    Want,
)
from cordwood.records import Record

#: The records of one batch once decompressed.
DECOMPRESSED_MAX = 8 * SIZE_MAX
KNOWN_ATTRIBUTES = 0x7F


def validate(
    buffer: Buffer,
    header: BatchHeader,
    *,
    decompressed_max: int = DECOMPRESSED_MAX,
    record_max: int = SIZE_MAX,
) -> None:
    """Check all that a batch says of itself.

    Checksum, attributes, a count that matches its offsets, and every record: well formed, offsets
    dense, no larger than *record_max*, timestamps as the header says. Compressed records are
    decompressed for it.

    Raises:
        FrameError: Of the kind that says what is wrong, with position, expectation and finding.
    """
    largest = check_records(buffer, header, decompressed_max=decompressed_max, record_max=record_max)
    if not header.log_append_time and largest != header.max_timestamp:
        raise InvalidBatch(
            position=header.position + MAX_TIMESTAMP_AT,
            expected=largest,
            found=header.max_timestamp,
            what="max timestamp",
        )


def check_records(
    buffer: Buffer,
    header: BatchHeader,
    *,
    decompressed_max: int = DECOMPRESSED_MAX,
    record_max: int = SIZE_MAX,
) -> int:
    """Check all that `validate` does but the max timestamp of the header; return what that should be.

    Some clients get it wrong, and brokers set it right.
    """
    check_crc(buffer, header)
    if header.attributes & ~KNOWN_ATTRIBUTES:
        raise UnsupportedFrame(
            position=header.position + ATTRIBUTES_AT,
            expected="bits 0 to 6",
            found=f"{header.attributes & 0xFFFF:#06x}",
            what="attributes",
        )
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidBatch(
            position=header.position + HEADER_SIZE - 4,
            expected=header.last_offset_delta + 1,
            found=header.record_count,
            what="record count",
        )
    records, start, stop, compressed_at = records_of(buffer, header, decompressed_max)
    largest, record_size = kernels.walk_records(
        records,
        start,
        stop,
        header.record_count,
        header.last_offset_delta,
        header.base_timestamp,
        True,
        compressed_at,
    )
    if record_size > record_max:
        raise FrameTooLarge(
            position=header.position,
            expected=f"at most {record_max} bytes",
            found=record_size,
            what="a record of the batch",
        )
    return largest


def decode_batch_columns(buffer: Buffer, header: BatchHeader, want: Want) -> ColumnBuffers:
    """Decode the records of one batch that was checked to columns."""
    found = scan(
        buffer, header.position, header.end, size_max=INT32_MAX, next_offset=INT64_MIN, epochs=ANY_EPOCH
    )
    return decode_columns(buffer, found, want)


def decode_records(
    buffer: Buffer, header: BatchHeader, *, decompressed_max: int = DECOMPRESSED_MAX
) -> list[Record]:
    """Decode the records of one batch, whose checksum is the caller's to check.

    Raises:
        FrameError: If the records are not what the header says.
    """
    records, start, stop, compressed_at = records_of(buffer, header, decompressed_max)
    return kernels.decode_rows(
        Record,
        records,
        start,
        stop,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.log_append_time,
        compressed_at,
    )


def decode_columns(
    buffer: Buffer, found: BatchScan, want: Want = Want.ALL, *, decompressed_max: int = DECOMPRESSED_MAX
) -> ColumnBuffers:
    """Decode every data record of the batches *found* to columns. Control batches give no rows.

    Checksums are the caller's to check (`count_sound`). *decompressed_max* bounds each batch; all
    of them together may come to at most 2 GiB.

    Raises:
        FrameError: If the records of a batch are not what its header says.
    """
    values = memoryview(found.table).cast("B").cast("q")
    attributes = values[HeaderColumn.ATTRIBUTES :: HEADER_COLUMNS]
    payloads: list[Buffer | None] = [None] * len(attributes)
    data_rows: list[int] = []
    for i, bits in enumerate(attributes):
        if bits & CONTROL:
            continue
        data_rows.append(i)
        if bits & COMPRESSION_MASK:
            header = BatchHeader._make(values[i * HEADER_COLUMNS : (i + 1) * HEADER_COLUMNS])
            payloads[i] = records_of(buffer, header, decompressed_max)[0]
    table = found.table
    if len(data_rows) < len(payloads):
        row_size = HEADER_COLUMNS * 8
        view = memoryview(table)
        table = b"".join(view[i * row_size : (i + 1) * row_size] for i in data_rows)
        payloads = [payloads[i] for i in data_rows]
    return kernels.decode_columns(buffer, table, payloads, want)


def records_of(buffer: Buffer, header: BatchHeader, decompressed_max: int) -> tuple[Buffer, int, int, int]:
    """Return the buffer the records are in, their start and stop, and where they were compressed or -1."""
    compression = header.compression
    if compression is Compression.NONE:
        return buffer, header.position + HEADER_SIZE, header.end, -1
    compressed = memoryview(buffer)[header.position + HEADER_SIZE : header.end]
    records = decompress(compression, compressed, decompressed_max, header.position)
    return records, 0, len(records), header.position
