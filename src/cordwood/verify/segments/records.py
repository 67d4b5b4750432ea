"""Find and check frames of formats with one record and one checksum in each frame.

Written against docs/formats/frame.md and docs/formats/kimberlite.md, independent of the code that writes
them.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from cordwood.errors import ChecksumMismatch, FrameError, InvalidBatch, TruncatedFrame, WrongStream
from cordwood.formats import Compression, decompress
from cordwood.verify.frame import (
    DECOMPRESSED_BYTES_MAX,
    INT64_MAX,
    FileWindows,
    hash_of,
    pieces,
    refuse_zeros,
)

#: For a missing key, value or checksum; not the same as an empty one.
NULL = -1


class RecordFrame(NamedTuple):
    """A frame that is one record; see `reader.AnyFrame`.

    ``timestamp`` is in milliseconds, floored. ``key_bytes`` and ``value_bytes`` are sizes as stored, NULL if
    there is none. ``checksum`` is the stored one, ``before`` the stored hash of the previous record,
    ``labels`` its tenant, stream and event type, in formats that store them.
    """

    position: int
    size: int
    base_offset: int
    timestamp: int
    key_bytes: int
    value_bytes: int
    checksum: int
    compressed: bool = False
    before: bytes = b""
    labels: tuple[int, int, int] | None = None

    @property
    def end(self) -> int:
        """The position after it."""
        return self.position + self.size

    @property
    def next_offset(self) -> int:
        """The offset after it."""
        return self.base_offset + 1

    @property
    def record_count(self) -> int:
        """One."""
        return 1

    @property
    def max_timestamp(self) -> int:
        """Its timestamp."""
        return self.timestamp


def head_at(windows: FileWindows, position: int, stop: int, size: int) -> bytes:
    """Return the first *size* bytes of the record at *position*.

    Raises:
        FrameError: If there are only zeros, or fewer bytes before *stop*.
    """
    left = min(size, stop - position)
    index = windows.load(position, left)
    head = windows.data[index : index + left]
    refuse_zeros(head, position)
    if left < size:
        raise TruncatedFrame(
            position=position, expected=f"a header of {size} bytes", found=f"{left} bytes", what="record"
        )
    return head


def wrong(position: int, expected: object, found: object, what: str) -> InvalidBatch:
    """Return the error about the field at *position*."""
    return InvalidBatch(position=position, expected=expected, found=found, what=what)


def crc32_of(windows: FileWindows, start: int, end: int) -> int:
    """Return the CRC-32 of [start, end), with at most a window in memory: a length may be wrong."""
    crc = 0
    for piece in pieces(windows, start, end):
        crc = zlib.crc32(piece, crc)
    return crc


def compare_checksum(position: int, expected: int, found: int, what: str) -> None:
    """Compare the stored checksum with the computed one.

    Raises:
        ChecksumMismatch: With both.
    """
    if expected != found:
        raise ChecksumMismatch(
            position=position, expected=f"{expected:#010x}", found=f"{found:#010x}", what=what
        )


class SelfContained:
    """Base of readers whose records need no sidecar."""

    dense = True
    indexed = True

    def close(self) -> None:
        """Do nothing: there is no sidecar."""

    def check_end(self, next_offset: int) -> int:
        """Return 0: there is nothing besides the frames."""
        return 0

    def torn(self) -> FrameError | None:
        """Return None: there is no sidecar."""
        return None


_FRAME = struct.Struct(
    "<"
    "I"  # magic
    "H"  # version
    "H"  # flags
    "q"  # offset
    "q"  # timestamp, milliseconds
    "I"  # key length
    "I"  # value length
)
_FRAME_END = struct.Struct(
    "<"
    "I"  # CRC-32 of header, key and value
    "I"  # length of all of it
)
assert (_FRAME.size, _FRAME_END.size) == (32, 8)
_FRAME_MAGIC, _FRAME_VERSION = 0xB10B5E01, 1
_NULL_VALUE, _EMPTY_KEY = 1, 2


class FramedRecords(SelfContained):
    """Reads the records of the format ``frame``; see `reader.FrameReader`."""

    def at(self, windows: FileWindows, position: int, stop: int) -> RecordFrame:
        """Read header and trailer of the record at *position*."""
        head = head_at(windows, position, stop, _FRAME.size)
        magic, version, flags, offset, timestamp, key_bytes, value_bytes = _FRAME.unpack(head)
        if magic != _FRAME_MAGIC:
            raise wrong(position, f"{_FRAME_MAGIC:#010x}", f"{magic:#010x}", "magic")
        if version != _FRAME_VERSION:
            raise wrong(position + 4, _FRAME_VERSION, version, "version")
        size = _FRAME.size + key_bytes + value_bytes + _FRAME_END.size
        if position + size > stop:
            room = stop - position - _FRAME.size - _FRAME_END.size
            found = f"{key_bytes} and {value_bytes}"
            raise wrong(position + 24, f"at most {room} together", found, "lengths of key and value")
        index = windows.load(position + size - _FRAME_END.size, _FRAME_END.size)
        crc, length = _FRAME_END.unpack_from(windows.data, index)
        if length != size:
            raise wrong(position + size - 4, size, length, "length after the frame")
        no_key = not key_bytes and not flags & _EMPTY_KEY
        sizes = NULL if no_key else key_bytes, NULL if flags & _NULL_VALUE else value_bytes
        return RecordFrame(position, size, offset, timestamp, *sizes, crc)

    def check(self, windows: FileWindows, frame: RecordFrame) -> None:
        """Compare the checksum and check the flags."""
        end = frame.end - _FRAME_END.size
        compare_checksum(end, frame.checksum, crc32_of(windows, frame.position, end), "CRC-32 of the frame")
        index = windows.load(frame.position, _FRAME.size)
        _, _, flags, offset, _, key_bytes, value_bytes = _FRAME.unpack_from(windows.data, index)
        if flags & ~(_NULL_VALUE | _EMPTY_KEY):
            raise wrong(frame.position + 6, "bits 0 and 1", f"{flags:#06x}", "flags")
        if offset < 0:
            raise wrong(frame.position + 8, "0 or more", offset, "offset")
        if (flags & _EMPTY_KEY and key_bytes) or (flags & _NULL_VALUE and value_bytes):
            found = f"{key_bytes} and {value_bytes}"
            raise wrong(frame.position + 24, "0 where the flags say so", found, "lengths of key and value")

    def check_follows(self, frame: RecordFrame) -> None:
        """Do nothing: a frame has no other field about its place than its offset."""

    def count(self, windows: FileWindows, frame: RecordFrame) -> int:
        """Return one: key and value are any bytes."""
        return 1


_KIMBERLITE = struct.Struct(
    "<"
    "I"  # length of metadata and data
    "I"  # CRC-32 of all that follows
    "32s"  # SHA-256 of the record before
    "Q"  # position: the offset
    "Q"  # tenant
    "Q"  # stream
    "q"  # timestamp, microseconds
    "H"  # event type
    "6s"  # reserved; the first is 1 where data is zstd
)
assert _KIMBERLITE.size == 80
_BEFORE_METADATA, _METADATA_BYTES, _COVERED_FROM = 40, 40, 8
_TOMBSTONE = 2
_PLAIN, _ZSTD = bytes(6), b"\1" + bytes(5)


class KimberliteRecords(SelfContained):
    """Reads the records of the format ``kimberlite`` and follows their hashes; see `reader.FrameReader`.

    If a record is changed, the next record has the wrong hash and shows it.
    """

    def __init__(
        self,
        stream: int | None = None,
        before: str | None = None,
        left: str | None = None,
        *,
        tenant: int = 0,
    ) -> None:
        """Take the *stream* and *tenant* of the records, and the hashes from metadata around them.

        *before* is the hash, in hex, of the record before the first one, empty if there was none; *left* that
        of the last one, from the next segment. None means unknown.
        """
        self._stream = stream
        self._tenant = tenant
        self._hash = None if before is None else bytes.fromhex(before) or bytes(32)
        # The expected hash in the last checked record.
        self._expected: bytes | None = None
        self._left = left
        self._last: RecordFrame | None = None

    def at(self, windows: FileWindows, position: int, stop: int) -> RecordFrame:
        """Read the header at *position*."""
        head = head_at(windows, position, stop, _KIMBERLITE.size)
        length, crc, before, offset, tenant, stream, timestamp, event, reserved = _KIMBERLITE.unpack(head)
        data_bytes, room = length - _METADATA_BYTES, stop - position - _KIMBERLITE.size
        if not 0 <= data_bytes <= room:
            expected = f"{_METADATA_BYTES} to {_METADATA_BYTES + room}"
            raise wrong(position, expected, length, "record length")
        value_bytes = NULL if event == _TOMBSTONE and not data_bytes else data_bytes
        compressed = reserved == _ZSTD
        size = _BEFORE_METADATA + length
        timestamp_ms, labels = timestamp // 1000, (tenant, stream, event)
        return RecordFrame(
            position, size, offset, timestamp_ms, NULL, value_bytes, crc, compressed, before, labels
        )

    def check(self, windows: FileWindows, frame: RecordFrame) -> None:
        """Compare the checksum, check the metadata, and hash the record for the one after it."""
        self._expected, self._hash = self._hash, None
        found = crc32_of(windows, frame.position + _COVERED_FROM, frame.end)
        compare_checksum(frame.position + 4, frame.checksum, found, "CRC-32 of the record")
        index = windows.load(frame.position, _KIMBERLITE.size)
        *_, tenant, stream, _, _, reserved = _KIMBERLITE.unpack_from(windows.data, index)
        if frame.base_offset > INT64_MAX:
            raise wrong(frame.position + 40, f"at most {INT64_MAX}", frame.base_offset, "position")
        if self._stream is not None and (tenant, stream) != (self._tenant, self._stream):
            raise WrongStream(
                position=frame.position + 48,
                expected=f"tenant {self._tenant} and stream {self._stream}",
                found=f"tenant {tenant} and stream {stream}",
                what=f"record {frame.base_offset}",
            )
        if reserved not in (_PLAIN, _ZSTD):
            expected = "zeros, or 1 and zeros where data is compressed"
            raise wrong(frame.position + 74, expected, reserved.hex(), "reserved bytes")
        self._hash = hash_of(windows, frame.position, frame.end)
        self._last = frame

    def check_follows(self, frame: RecordFrame) -> None:
        """Compare the hash in the record with that of the previous record."""
        if self._expected is not None and frame.before != self._expected:
            what = f"hash of the record before offset {frame.base_offset}"
            raise wrong(frame.position + 8, self._expected.hex(), frame.before.hex(), what)

    def count(self, windows: FileWindows, frame: RecordFrame) -> int:
        """Decompress the data, if it is compressed."""
        if frame.compressed:
            index = windows.load(frame.position, frame.size)
            data = memoryview(windows.data)[index + _KIMBERLITE.size : index + frame.size]
            decompress(Compression.ZSTD, data, DECOMPRESSED_BYTES_MAX, frame.position)
        return 1

    def check_end(self, next_offset: int) -> int:
        """Compare the hash of the last record with the one recorded for the next segment."""
        if self._left is not None and self._hash is not None and self._hash.hex() != self._left:
            position = 0 if self._last is None else self._last.position
            what = f"hash of the record before offset {next_offset}, where the next segment begins"
            raise wrong(position, self._left or "none", self._hash.hex(), what)
        return 0
