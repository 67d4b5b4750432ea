"""Read records one by one, and refuse the first invalid field."""

from __future__ import annotations

from cordwood.errors import InvalidBatch
from cordwood.kernels.layout import (
    INT64_MAX,
    INT64_MIN,
    RECORD_SIZE_MIN,
    Buffer,
    FieldFault,
    RecordField,
    invalid_records,
)


class RecordReader:
    """Reads records from a buffer. Raises InvalidBatch, which names the first invalid field."""

    def __init__(self, buffer: Buffer, start: int, stop: int, compressed_at: int) -> None:
        self.view = memoryview(buffer).cast("B")
        self.position = start
        self.stop = stop
        self.compressed_at = compressed_at

    def error(
        self,
        finding: FieldFault,
        field: RecordField,
        position: int,
        low: int = 0,
        high: int = 0,
        found: int = 0,
    ) -> InvalidBatch:
        """Return the error for a fault of *field*."""
        return invalid_records(finding, field, position, low, high, found, self.compressed_at)

    def check_range(self, field: RecordField, position: int, low: int, high: int, found: int) -> None:
        """Refuse a value of *field* outside of [low, high]."""
        if not low <= found <= high:
            raise self.error(FieldFault.OUT_OF_RANGE, field, position, low, high, found)

    def check_count(self, count: int) -> None:
        """Refuse more records than there are bytes for."""
        limit = (self.stop - self.position) // RECORD_SIZE_MIN
        self.check_range(RecordField.COUNT, self.position, 0, limit, count)

    def check_end(self) -> None:
        """Refuse bytes after the last record."""
        self.check_range(RecordField.RECORDS_END, self.position, 0, 0, self.stop - self.position)

    def varint(self, end: int, bits: int, field: RecordField) -> int:
        """Read a zig-zag varint of at most *bits* bits, strictly before *end*."""
        start, raw, shift = self.position, 0, 0
        while True:
            if self.position >= end:
                raise self.error(FieldFault.CUT_OFF, field, start, found=end - start)
            byte = self.view[self.position]
            self.position += 1
            # The last byte may only have the remaining bits, and must end the varint.
            if shift + 7 > bits and byte >> (bits - shift):
                raise self.error(FieldFault.VARINT_TOO_LONG, field, start, high=bits)
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7

    def sized(self, end: int, field: RecordField, low: int) -> bytes | None:
        """Read a length of at least *low* and that many bytes; a length of -1 is None."""
        start = self.position
        length = self.varint(end, 32, field)
        self.check_range(field, start, low, end - self.position, length)
        if length < 0:
            return None
        self.position += length
        return bytes(self.view[self.position - length : self.position])

    def record(
        self, delta_low: int, delta_high: int, base_timestamp: int
    ) -> tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]:
        """Read one record: timestamp delta, offset delta, key, value, headers."""
        start = self.position
        length = self.varint(self.stop, 32, RecordField.LENGTH)
        self.check_range(RecordField.LENGTH, start, 0, self.stop - self.position, length)
        end = self.position + length
        if length == 0:
            raise self.error(FieldFault.CUT_OFF, RecordField.ATTRIBUTES, self.position)
        self.position += 1
        start = self.position
        timestamp_delta = self.varint(end, 64, RecordField.TIMESTAMP_DELTA)
        low = INT64_MIN - min(base_timestamp, 0)
        high = INT64_MAX - max(base_timestamp, 0)
        self.check_range(RecordField.TIMESTAMP_DELTA, start, low, high, timestamp_delta)
        start = self.position
        offset_delta = self.varint(end, 32, RecordField.OFFSET_DELTA)
        self.check_range(RecordField.OFFSET_DELTA, start, delta_low, delta_high, offset_delta)
        key = self.sized(end, RecordField.KEY, -1)
        value = self.sized(end, RecordField.VALUE, -1)
        start = self.position
        header_count = self.varint(end, 32, RecordField.HEADER_COUNT)
        self.check_range(RecordField.HEADER_COUNT, start, 0, (end - self.position) // 2, header_count)
        headers = []
        for _ in range(header_count):
            start = self.position
            name = self.sized(end, RecordField.HEADER_NAME, 0)
            assert name is not None
            try:
                name.decode()
            except UnicodeDecodeError:
                raise self.error(FieldFault.NOT_UTF8, RecordField.HEADER_NAME, start) from None
            headers.append((name, self.sized(end, RecordField.HEADER_VALUE, -1)))
        self.check_range(RecordField.RECORD_END, self.position, 0, 0, end - self.position)
        return timestamp_delta, offset_delta, key, value, headers
