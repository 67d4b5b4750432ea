"""Find and check the frames of a log file, a window at a time.

Written against docs/formats/batch.md, apart from the code that writes batches.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

import google_crc32c

from cordwood.errors import ChecksumMismatch, FrameError, InvalidBatch, TruncatedFrame, UnsupportedFrame
from cordwood.formats.compression import Compression, decompress
from cordwood.kernels import walk_records
from cordwood.storage.files import File
from cordwood.storage.verify.report import Tally

WINDOW_BYTES = 8 << 20
INT64_MAX = (1 << 63) - 1
_DECOMPRESSED_BYTES_MAX = 128 << 20

_HEADER = struct.Struct(
    ">"
    "q"  # base offset
    "i"  # batch length: bytes after this field
    "i"  # leader epoch
    "b"  # magic
    "I"  # CRC-32C of everything after this field
    "h"  # attributes
    "i"  # last offset delta
    "q"  # base timestamp
    "q"  # max timestamp
    "q"  # producer id
    "h"  # producer epoch
    "i"  # base sequence
    "i"  # record count
)
assert _HEADER.size == 61
_CRC_FROM = 21
_BEFORE_LENGTH = 12
_KNOWN_ATTRIBUTES = 0x7F
_LOG_APPEND_TIME = 0x08


class Frame(NamedTuple):
    """The header of a batch and where it stands in the file."""

    position: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
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
    def size(self) -> int:
        """The bytes of the whole frame."""
        return self.length + _BEFORE_LENGTH

    @property
    def end(self) -> int:
        """The position after the frame."""
        return self.position + self.size

    @property
    def next_offset(self) -> int:
        """The offset after its last one, records compacted away included."""
        return self.base_offset + self.last_offset_delta + 1


class Windows:
    """The bytes of a file, a window at a time, hashed as they first pass if a hash is wanted."""

    def __init__(self, file: File, stop: int, tally: Tally, *, hashed: bool) -> None:
        self.path = file.path
        self.data = b""
        self.start = 0
        self.stop = stop
        self._file = file
        self._tally = tally
        self._hash = hashlib.sha256() if hashed else None
        self._hashed_to = 0

    def load(self, position: int, size: int) -> int:
        """Have [position, position + size) in ``data`` and return the index of its first byte there.

        Raises:
            TruncatedFrame: If the file ends before that.
        """
        if position < self.start or position + size > self.start + len(self.data):
            self._tally.show_progress(self._file.path, position)
            self.data = self._file.read_at(position, max(size, min(WINDOW_BYTES, self.stop - position)))
            self.start = position
            end = position + len(self.data)
            if self._hash is not None and position <= self._hashed_to < end:
                self._hash.update(memoryview(self.data)[self._hashed_to - position :])
                self._hashed_to = end
            if len(self.data) < size:
                raise TruncatedFrame(
                    position=position,
                    expected=f"{size} bytes",
                    found=f"{len(self.data)} bytes to the end of the file",
                    what="frame",
                )
        return position - self.start

    def digest(self) -> str:
        """Return the SHA-256 of the file up to ``stop``, reading what has not passed yet."""
        assert self._hash is not None
        while self._hashed_to < self.stop:
            self.load(self._hashed_to, 1)
        return self._hash.hexdigest()


def wrong_field(frame: Frame, at: int, expected: object, found: object, what: str) -> InvalidBatch:
    """Return the error about the field *at* bytes into the frame."""
    return InvalidBatch(position=frame.position + at, expected=expected, found=found, what=what)


def frame_at(windows: Windows, position: int, stop: int) -> Frame:
    """Read the header at *position* as far as is needed to know where the frame ends.

    Raises:
        FrameError: If no frame starts here that also ends by *stop*.
    """
    left = stop - position
    index = windows.load(position, min(_HEADER.size, left))
    head = windows.data[index : index + min(_HEADER.size, left)]
    if not head.strip(b"\0"):
        raise InvalidBatch(position=position, expected="a frame", found="zeros", what="frame")
    if left < _HEADER.size:
        raise TruncatedFrame(
            position=position,
            expected=f"a header of {_HEADER.size} bytes",
            found=f"{left} bytes",
            what="frame",
        )
    frame = Frame(position, *_HEADER.unpack(head))
    if frame.magic != 2:
        raise UnsupportedFrame(position=position + 16, expected=2, found=frame.magic, what="magic")
    if not _HEADER.size <= frame.size <= left:
        low, high = _HEADER.size - _BEFORE_LENGTH, left - _BEFORE_LENGTH
        raise wrong_field(frame, 8, f"{low} to {high}", frame.length, "batch length")
    return frame


def check_crc(windows: Windows, frame: Frame) -> None:
    """Compare the checksum, holding no more than a window: the length may be a lie.

    Raises:
        ChecksumMismatch: With both.
    """
    if frame.size <= WINDOW_BYTES:
        # All of it at once, so that the records need not be read again.
        windows.load(frame.position, frame.size)
    crc, position = 0, frame.position + _CRC_FROM
    while position < frame.end:
        size = min(frame.end - position, WINDOW_BYTES)
        index = windows.load(position, size)
        crc = google_crc32c.extend(crc, windows.data[index : index + size])
        position += size
    if crc != frame.crc:
        raise ChecksumMismatch(
            position=frame.position + 17, expected=f"{frame.crc:#010x}", found=f"{crc:#010x}", what="CRC-32C"
        )


def check_header(frame: Frame) -> None:
    """Check the fields that need nothing but each other.

    Raises:
        InvalidBatch: At the first that is wrong.
    """
    if frame.attributes & ~_KNOWN_ATTRIBUTES or frame.attributes & 0x07 > Compression.ZSTD:
        known = "compression 0 to 4 and bits 3 to 6"
        raise wrong_field(frame, 21, known, f"{frame.attributes & 0xFFFF:#06x}", "attributes")
    if frame.last_offset_delta < 0 or not 0 <= frame.base_offset < INT64_MAX - frame.last_offset_delta:
        raise wrong_field(
            frame, 23, "offsets from 0 to 2^63 - 1", frame.last_offset_delta, "last offset delta"
        )
    if not 0 <= frame.record_count <= frame.last_offset_delta + 1:
        raise wrong_field(
            frame, 57, f"0 to {frame.last_offset_delta + 1}", frame.record_count, "record count"
        )


def check_records(windows: Windows, frame: Frame) -> int:
    """Open the batch, hold its records against its header, and return how many there are.

    Raises:
        FrameError: At the first thing that is wrong.
    """
    index = windows.load(frame.position, frame.size)
    data, start, stop, compressed_at = windows.data, index + _HEADER.size, index + frame.size, -1
    compression = Compression(frame.attributes & 0x07)
    records: bytes | bytearray | memoryview = data
    if compression is not Compression.NONE:
        records = decompress(
            compression, memoryview(data)[start:stop], _DECOMPRESSED_BYTES_MAX, frame.position
        )
        start, stop, compressed_at = 0, len(records), frame.position
    try:
        largest, _ = walk_records(
            records,
            start,
            stop,
            frame.record_count,
            frame.last_offset_delta,
            frame.base_timestamp,
            False,
            compressed_at,
        )
    except FrameError as error:
        # Positions in the records themselves count from the window, not from the file.
        raise error.at(windows.path, windows.start if compressed_at < 0 else 0) from None
    if frame.record_count and not frame.attributes & _LOG_APPEND_TIME and largest != frame.max_timestamp:
        raise wrong_field(frame, 35, largest, frame.max_timestamp, "max timestamp")
    return frame.record_count
