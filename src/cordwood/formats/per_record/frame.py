"""A record in a frame: header, body, checksum, length. docs/formats/frame.md has its byte layout.

The length is stored at both ends, so a file of frames can be walked backwards too.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from cordwood.errors import ChecksumMismatch, FrameTooLarge, InvalidBatch, TruncatedFrame, UnsupportedFrame
from cordwood.formats.format import Holds
from cordwood.formats.per_record.record_per_frame import Content, FoundFrame, RecordPerFrame
from cordwood.formats.streamed_record import StreamedRecord
from cordwood.kernels import Buffer
from cordwood.records import Header

HEADER = struct.Struct(
    "<"  # little-endian
    "I"  # magic
    "H"  # version
    "H"  # flags
    "q"  # offset
    "q"  # timestamp: milliseconds since the Unix epoch
    "I"  # key length
    "I"  # value length
)
TRAILER = struct.Struct(
    "<"
    "I"  # CRC-32 of header and body
    "I"  # length of the whole frame
)
HEADER_SIZE = 32
OVERHEAD = 40
assert HEADER.size == HEADER_SIZE
assert HEADER.size + TRAILER.size == OVERHEAD

MAGIC = 0xB10B5E01
_MAGIC_BYTES = MAGIC.to_bytes(4, "little")
VERSION = 1
NULL_VALUE = 0x01
EMPTY_KEY = 0x02
KNOWN_FLAGS = NULL_VALUE | EMPTY_KEY
#: The default size limit of a frame in bytes.
SIZE_MAX = 16 * 1024 * 1024
_VERSION_AT, _FLAGS_AT, _KEY_LENGTH_AT, _VALUE_LENGTH_AT = 4, 6, 24, 28


class FramedRecord(NamedTuple):
    """One frame found in a buffer, fields in the order of its header."""

    position: int
    flags: int
    offset: int
    timestamp_ms: int
    key_length: int
    value_length: int

    @property
    def end(self) -> int:
        """The position after the frame."""
        return self.position + OVERHEAD + self.key_length + self.value_length

    @property
    def value_at(self) -> int:
        """Where the value starts."""
        return self.position + HEADER_SIZE + self.key_length

    def key(self, buffer: Buffer) -> bytes | None:
        """Return the key; None without one, which differs from an empty one."""
        if not self.key_length:
            return b"" if self.flags & EMPTY_KEY else None
        return bytes(memoryview(buffer)[self.position + HEADER_SIZE : self.value_at])

    def value(self, buffer: Buffer) -> bytes | None:
        """Return the value, None for a tombstone."""
        if self.flags & NULL_VALUE:
            return None
        return bytes(memoryview(buffer)[self.value_at : self.value_at + self.value_length])


def encode_record(
    offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, *, size_max: int = SIZE_MAX
) -> bytes:
    """Encode one record.

    Raises:
        FrameTooLarge: If its frame would exceed *size_max* bytes.
    """
    value_length = 0 if value is None else len(value)
    head = encode_head(offset, timestamp_ms, key, value_length, value is None, size_max=size_max)
    body = head + (value or b"")
    return body + TRAILER.pack(zlib.crc32(body), len(body) + TRAILER.size)


def encode_head(
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value_length: int,
    null_value: bool = False,
    *,
    size_max: int = SIZE_MAX,
) -> bytes:
    """Encode the bytes before the value, including the key; raises as `encode_record` does."""
    key_length = 0 if key is None else len(key)
    size = OVERHEAD + key_length + value_length
    if size > size_max:
        raise FrameTooLarge(position=0, expected=f"at most {size_max} bytes", found=size, what="frame")
    flags = (NULL_VALUE if null_value else 0) | (EMPTY_KEY if key == b"" else 0)
    return HEADER.pack(MAGIC, VERSION, flags, offset, timestamp_ms, key_length, value_length) + (key or b"")


def parse_record(
    buffer: Buffer, position: int = 0, *, size_max: int = SIZE_MAX, checked: bool = False
) -> FramedRecord:
    """Read the frame at *position*, all of whose bytes must be there.

    With *checked* its checksum was compared earlier.

    Raises:
        FrameError: The subclass says what is wrong, with the position of the field.
    """
    left = len(buffer) - position
    if left < HEADER_SIZE:
        raise TruncatedFrame(
            position=position,
            expected=f"a header of {HEADER_SIZE} bytes",
            found=f"{max(left, 0)} bytes",
            what="frame",
        )
    magic, version, flags, offset, timestamp_ms, key_length, value_length = HEADER.unpack_from(
        buffer, position
    )
    if magic != MAGIC:
        raise UnsupportedFrame(
            position=position, expected=f"{MAGIC:#010x}", found=f"{magic:#010x}", what="magic"
        )
    if version != VERSION:
        raise UnsupportedFrame(
            position=position + _VERSION_AT, expected=VERSION, found=version, what="version"
        )
    found = FramedRecord(position, flags, offset, timestamp_ms, key_length, value_length)
    if flags or offset < 0:
        _check_header(found)
    size = OVERHEAD + key_length + value_length
    if size > size_max:
        raise FrameTooLarge(
            position=position, expected=f"at most {size_max} bytes", found=f"{size} bytes", what="frame"
        )
    if size > left:
        raise TruncatedFrame(position=position, expected=f"{size} bytes", found=f"{left} bytes", what="frame")
    if not checked:
        _check_trailer(buffer, position, size)
    return found


def _check_header(found: FramedRecord) -> None:
    flags = found.flags
    if flags & ~KNOWN_FLAGS:
        raise UnsupportedFrame(
            position=found.position + _FLAGS_AT, expected="bits 0 and 1", found=f"{flags:#06x}", what="flags"
        )
    if flags & EMPTY_KEY and found.key_length:
        raise InvalidBatch(
            position=found.position + _KEY_LENGTH_AT,
            expected="0, as the flags say",
            found=found.key_length,
            what="key length",
        )
    if flags & NULL_VALUE and found.value_length:
        raise InvalidBatch(
            position=found.position + _VALUE_LENGTH_AT,
            expected="0, as the flags say",
            found=found.value_length,
            what="value length",
        )
    if found.offset < 0:
        raise InvalidBatch(
            position=found.position + 8, expected="0 or more", found=found.offset, what="offset"
        )


def _check_trailer(buffer: Buffer, position: int, size: int) -> None:
    trailer_at = position + size - TRAILER.size
    crc, length = TRAILER.unpack_from(buffer, trailer_at)
    if length != size:
        raise InvalidBatch(
            position=trailer_at + 4, expected=size, found=length, what="length after the frame"
        )
    actual = zlib.crc32(memoryview(buffer)[position:trailer_at])
    if actual != crc:
        raise ChecksumMismatch(
            position=trailer_at, expected=f"{crc:#010x}", found=f"{actual:#010x}", what="CRC-32 of the frame"
        )


class FrameFormat(RecordPerFrame):
    """Framed records, implementing the engine's contract; see `record_per_frame.RecordPerFrame`."""

    name = "frame"
    header_size = HEADER_SIZE
    holds = Holds(keys=True, headers=False, null_values=True)

    def frame_size(self, header: Buffer) -> int | None:
        """Return the size from the lengths of key and value."""
        magic, version, _, _, _, key_length, value_length = HEADER.unpack_from(header, 0)
        return (
            OVERHEAD + int(key_length) + int(value_length) if (magic, version) == (MAGIC, VERSION) else None
        )

    def candidates(self, buffer: Buffer) -> Iterator[int]:
        """Yield the positions that have the magic, and whose length fits into the buffer."""
        data = bytes(buffer)
        start = data.find(_MAGIC_BYTES)
        while 0 <= start <= len(data) - HEADER_SIZE:
            size = self.frame_size(data[start : start + HEADER_SIZE])
            if size is not None and size <= len(data) - start:
                yield start
            start = data.find(_MAGIC_BYTES, start + 1)

    def encode_frame(
        self, content: Content, *, offset: int, timestamp_us: int, before: bytes, size_max: int
    ) -> bytes:
        """Encode one record."""
        return encode_record(offset, timestamp_us // 1000, content.key, content.value, size_max=size_max)

    def find_frame(
        self, buffer: Buffer, position: int, *, size: int | None, size_max: int, checked: bool
    ) -> FoundFrame:
        """Read the frame at *position* and compare its checksum."""
        found = parse_record(buffer, position, size_max=size_max, checked=checked)
        size = OVERHEAD + found.key_length + found.value_length
        return FoundFrame(size, found.offset, found.timestamp_ms)

    def decode_frame(self, buffer: Buffer, position: int, size: int) -> Content:
        """Decode one record."""
        found = FramedRecord(position, *HEADER.unpack_from(buffer, position)[2:])
        return Content(found.key(buffer), found.value(buffer))

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
        """Lay out a frame around a value that is not in memory."""
        timestamp = timestamp_us // 1000
        head = encode_head(offset, timestamp, key, value_size, size_max=size_max)
        return _TrailedFrame(head, value_size, offset=offset, timestamp=timestamp, tail_size=TRAILER.size)


class _TrailedFrame(StreamedRecord):
    """A streamed frame with checksum and length after the value."""

    _crc: int | None = None

    def update(self, chunk: Buffer) -> None:
        """Add the next bytes of the value to the checksum."""
        crc = zlib.crc32(self.head) if self._crc is None else self._crc
        self._crc = zlib.crc32(chunk, crc)

    def finish(self) -> tuple[bytearray, bytes]:
        """Return the bytes before and after the value."""
        crc = zlib.crc32(self.head) if self._crc is None else self._crc
        return self.head, TRAILER.pack(crc, self.size)
