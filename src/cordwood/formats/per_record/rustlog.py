"""RustLog's record: a 20-byte header and the payload. docs/formats/rustlog.md has its byte layout.

There is no checksum and no key: a ``.sum`` file beside the log has the checksums.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cordwood.errors import FrameTooLarge, InvalidBatch, OnlyZeros, RecordRefused, TruncatedFrame
from cordwood.formats.format import Holds
from cordwood.formats.per_record.record_per_frame import Content, FoundFrame, RecordPerFrame
from cordwood.formats.sidecar import SumFile
from cordwood.formats.streamed_record import StreamedRecord
from cordwood.kernels import Buffer
from cordwood.records import Header, timestamp_us_headers

HEADER = struct.Struct(
    ">"  # big-endian
    "I"  # length: bytes of the payload
    "Q"  # offset
    "Q"  # timestamp: microseconds since the Unix epoch
)
HEADER_SIZE = 20
assert HEADER.size == HEADER_SIZE

#: The default size limit of a stored record in bytes, including the header.
SIZE_MAX = 16 * 1024 * 1024
_OFFSET_AT, _TIMESTAMP_AT = 4, 12
_INT64_MAX = (1 << 63) - 1
_NO_RECORD = bytes(HEADER_SIZE)


class RustlogRecord(NamedTuple):
    """One record found in a buffer; its payload lies in ``[position + 20, end)``."""

    position: int
    length: int
    offset: int
    timestamp_us: int

    @property
    def payload_at(self) -> int:
        """Where the payload starts."""
        return self.position + HEADER_SIZE

    @property
    def end(self) -> int:
        """The position after the record."""
        return self.position + HEADER_SIZE + self.length


def encode_record(offset: int, timestamp_us: int, payload: Buffer, *, size_max: int = SIZE_MAX) -> bytes:
    """Encode one record.

    Raises:
        RecordRefused: If its time is before 1970, or its header would be all zeros, which is never a record.
        FrameTooLarge: If it would exceed *size_max* bytes.
    """
    return encode_header(offset, timestamp_us, len(payload), size_max=size_max) + bytes(payload)


def encode_header(offset: int, timestamp_us: int, length: int, *, size_max: int = SIZE_MAX) -> bytes:
    """Encode the header of a payload of *length* bytes; raises as `encode_record` does."""
    if HEADER_SIZE + length > size_max:
        raise FrameTooLarge(
            position=0, expected=f"at most {size_max} bytes", found=HEADER_SIZE + length, what="record"
        )
    if not 0 <= timestamp_us <= _INT64_MAX:
        raise RecordRefused(f"rustlog holds no time before 1970, and this one is {timestamp_us} microseconds")
    header = HEADER.pack(length, offset, timestamp_us)
    if header == _NO_RECORD:
        # Crashes extend files with zeros; an all-zero record could not be distinguished from them.
        raise RecordRefused("rustlog cannot hold an empty record at offset 0 and time 0: its header is zeros")
    return header


def parse_record(buffer: Buffer, position: int = 0, *, size_max: int = SIZE_MAX) -> RustlogRecord:
    """Read the record at *position*, all of whose bytes must be there.

    Raises:
        FrameError: The subclass says what is wrong, with the position of the field.
    """
    left = len(buffer) - position
    if left < HEADER_SIZE:
        raise TruncatedFrame(
            position=position,
            expected=f"a header of {HEADER_SIZE} bytes",
            found=f"{max(left, 0)} bytes",
            what="record",
        )
    length, offset, timestamp_us = HEADER.unpack_from(buffer, position)
    if not (length or offset or timestamp_us):
        raise OnlyZeros(position=position, expected="a record", found="zeros", what="record header")
    size = HEADER_SIZE + length
    if size > size_max:
        raise FrameTooLarge(
            position=position, expected=f"at most {size_max} bytes", found=f"{size} bytes", what="record"
        )
    if offset > _INT64_MAX or timestamp_us > _INT64_MAX:
        name, at, value = ("offset", _OFFSET_AT, offset)
        if offset <= _INT64_MAX:
            name, at, value = ("timestamp", _TIMESTAMP_AT, timestamp_us)
        raise InvalidBatch(position=position + at, expected=f"at most {_INT64_MAX}", found=value, what=name)
    if size > left:
        raise TruncatedFrame(
            position=position, expected=f"{size} bytes", found=f"{left} bytes", what="record"
        )
    return RustlogRecord(position, length, offset, timestamp_us)


class RustlogFormat(RecordPerFrame):
    """RustLog's records, implementing the engine's contract; see `record_per_frame.RecordPerFrame`."""

    name = "rustlog"
    header_size = HEADER_SIZE
    holds = Holds(keys=False, headers=False, null_values=False, microseconds=True)
    sidecar = SumFile(HEADER_SIZE)

    def frame_size(self, header: Buffer) -> int | None:
        """Return the size from the length field."""
        length, offset, timestamp_us = HEADER.unpack_from(header, 0)
        return HEADER_SIZE + int(length) if length or offset or timestamp_us else None

    def encode_frame(
        self, content: Content, *, offset: int, timestamp_us: int, before: bytes, size_max: int
    ) -> bytes:
        """Encode one record."""
        assert content.value is not None
        return encode_record(offset, timestamp_us, content.value, size_max=size_max)

    def find_frame(
        self, buffer: Buffer, position: int, *, size: int | None, size_max: int, checked: bool
    ) -> FoundFrame:
        """Read the record at *position*; it contains no checksum."""
        found = parse_record(buffer, position, size_max=size_max)
        return FoundFrame(found.end - position, found.offset, found.timestamp_us // 1000)

    def decode_frame(self, buffer: Buffer, position: int, size: int) -> Content:
        """Decode one record: a value, and a header if its time is not a whole millisecond."""
        _, _, timestamp_us = HEADER.unpack_from(buffer, position)
        value = bytes(memoryview(buffer)[position + HEADER_SIZE : position + size])
        return Content(None, value, timestamp_us_headers(timestamp_us))

    def stream_frame(
        self,
        key: bytes | None,
        headers: tuple[Header, ...],
        value_size: int,
        *,
        offset: int,
        timestamp_us: int,
        before: bytes,
        size_max: int,
    ) -> StreamedRecord:
        """Lay out a record around a value that is not in memory."""
        head = encode_header(offset, timestamp_us, value_size, size_max=size_max)
        timestamp = timestamp_us // 1000
        return StreamedRecord(head, value_size, offset=offset, timestamp=timestamp, sidecar=self.sidecar)
