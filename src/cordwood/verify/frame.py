"""Find and check the frames of a log file, a window at a time.

Written against docs/formats/batch.md, independent of the code that writes batches.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

import google_crc32c

from cordwood.disk import ReadableFile
from cordwood.errors import (
    ChecksumMismatch,
    FrameError,
    InvalidBatch,
    OnlyZeros,
    TruncatedFrame,
    UnsupportedFrame,
)
from cordwood.formats import Compression, decompress
from cordwood.kernels import walk_records
from cordwood.verify.report import Tally

#: Small enough to stay in a processor cache while all checks run over it.
WINDOW_BYTES = 512 << 10
INT64_MAX = (1 << 63) - 1
DECOMPRESSED_BYTES_MAX = 128 << 20

HEADER = struct.Struct(
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
assert HEADER.size == 61
_CRC_FROM = 21
_BEFORE_LENGTH = 12
_KNOWN_ATTRIBUTES = 0x7F
_LOG_APPEND_TIME = 0x08

Epochs: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a leader epoch and the first offset under it, ascending."""


class PlacedHeader(NamedTuple):
    """The header of a batch and its position in the file.

    ``size`` is the size of the whole frame in bytes, ``end`` is the position after it, and ``next_offset``
    the offset after its last one, records compacted away included.
    """

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
    position: int
    size: int
    end: int
    next_offset: int


def _frame(position: int, fields: tuple[Any, ...]) -> PlacedHeader:
    size = fields[1] + _BEFORE_LENGTH
    return PlacedHeader._make((*fields, position, size, position + size, fields[0] + fields[6] + 1))


class FileWindows:
    """The bytes of a file, a window at a time, hashed at their first read if a hash is requested."""

    def __init__(self, file: ReadableFile, stop: int, tally: Tally, *, hashed: bool) -> None:
        self.path = file.path
        self.data = b""
        self.start = 0
        self.stop = stop
        self._end = 0
        self._file = file
        self._tally = tally
        self._hash = sha256() if hashed else None
        self._hashed_to = 0

    def load(self, position: int, size: int) -> int:
        """Load [position, position + size) into ``data``; return the index of its first byte there.

        Raises:
            TruncatedFrame: If the file ends before that.
        """
        if position < self.start or position + size > self._end:
            self._tally.show_progress(self._file.path, position)
            self.data = self._file.read_at(position, max(size, min(WINDOW_BYTES, self.stop - position)))
            self.start = position
            self._end = end = position + len(self.data)
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
        """Return the SHA-256 of the file up to ``stop``, reading the rest of the file."""
        assert self._hash is not None
        while self._hashed_to < self.stop:
            self.load(self._hashed_to, 1)
        return self._hash.hexdigest()


def wrong_field(frame: PlacedHeader, at: int, expected: object, found: object, what: str) -> InvalidBatch:
    """Return the error about the field *at* bytes into the frame."""
    return InvalidBatch(position=frame.position + at, expected=expected, found=found, what=what)


class BatchFrames:
    """Reads batches; see `reader.FrameReader`."""

    #: A batch keeps the offsets of its removed records.
    dense = False
    indexed = True

    def __init__(self, epochs: Epochs) -> None:
        """Take the leader epochs of the partition."""
        self._epochs = epochs
        self._epoch_starts = [start for _, start in epochs]

    def close(self) -> None:
        """Do nothing: there is no sidecar."""

    def at(self, windows: FileWindows, position: int, stop: int) -> PlacedHeader:
        """Read the header at *position*."""
        return frame_at(windows, position, stop)

    def check(self, windows: FileWindows, frame: PlacedHeader) -> None:
        """Compare the checksum and check the header by itself."""
        check_crc(windows, frame)
        check_header(frame)

    def check_follows(self, frame: PlacedHeader) -> None:
        """Check the leader epoch, which the checksum does not cover."""
        epoch = self._epochs[max(0, bisect_right(self._epoch_starts, frame.base_offset) - 1)][0]
        if frame.leader_epoch != epoch:
            raise wrong_field(frame, 12, epoch, frame.leader_epoch, "leader epoch")

    def count(self, windows: FileWindows, frame: PlacedHeader) -> int:
        """Decode the batch and compare its records with its header."""
        return check_records(windows, frame)

    def check_end(self, next_offset: int) -> int:
        """Return 0: there is nothing besides the frames."""
        return 0

    def torn(self) -> None:
        """Return None: there is no sidecar."""


def frame_at(windows: FileWindows, position: int, stop: int) -> PlacedHeader:
    """Read the header at *position* as far as is needed to know where the frame ends.

    Raises:
        FrameError: If no frame starts here that also ends by *stop*.
    """
    left = stop - position
    index = windows.load(position, min(HEADER.size, left))
    if left < HEADER.size:
        refuse_zeros(windows.data[index : index + left], position)
        raise TruncatedFrame(
            position=position,
            expected=f"a header of {HEADER.size} bytes",
            found=f"{left} bytes",
            what="frame",
        )
    frame = _frame(position, HEADER.unpack_from(windows.data, index))
    if frame.magic != 2:
        refuse_zeros(windows.data[index : index + HEADER.size], position)
        raise UnsupportedFrame(position=position + 16, expected=2, found=frame.magic, what="magic")
    if not HEADER.size <= frame.size <= left:
        low, high = HEADER.size - _BEFORE_LENGTH, left - _BEFORE_LENGTH
        raise wrong_field(frame, 8, f"{low} to {high}", frame.length, "batch length")
    return frame


def refuse_zeros(head: bytes, position: int) -> None:
    """Raise if *head* is only zeros: they are space that was reserved, and never a frame.

    Raises:
        OnlyZeros: At *position*.
    """
    if not head.strip(b"\0"):
        raise OnlyZeros(position=position, expected="a frame", found="zeros", what="frame")


def check_crc(windows: FileWindows, frame: PlacedHeader) -> None:
    """Compare the checksum with at most a window in memory: the length may be wrong.

    Raises:
        ChecksumMismatch: With both values.
    """
    size = frame.size
    if size <= WINDOW_BYTES:
        # Read completely, so that the records need not be read again.
        index = windows.load(frame.position, size)
        crc = google_crc32c.value(windows.data[index + _CRC_FROM : index + size])
    else:
        crc = 0
        for piece in pieces(windows, frame.position + _CRC_FROM, frame.end):
            crc = google_crc32c.extend(crc, bytes(piece))
    if crc != frame.crc:
        raise ChecksumMismatch(
            position=frame.position + 17, expected=f"{frame.crc:#010x}", found=f"{crc:#010x}", what="CRC-32C"
        )


def leaf_hash(windows: FileWindows, position: int, end: int) -> bytes:
    """Return the leaf hash of the frame in [position, end), as `hash_of` does."""
    return hash_of(windows, position, end, b"\0")


def hash_of(windows: FileWindows, start: int, end: int, before: bytes = b"") -> bytes:
    """Return the SHA-256 of the bytes *before* and those in [start, end), with at most a window in memory.

    Raises:
        TruncatedFrame: If the file ends before that.
    """
    digest = sha256(before)
    for piece in pieces(windows, start, end):
        digest.update(piece)
    return digest.digest()


def pieces(windows: FileWindows, start: int, end: int) -> Iterator[memoryview]:
    """Yield the bytes of [start, end), a window of them at most at a time.

    Raises:
        TruncatedFrame: If the file ends before that.
    """
    for at in range(start, end, WINDOW_BYTES):
        size = min(WINDOW_BYTES, end - at)
        index = windows.load(at, size)
        yield memoryview(windows.data)[index : index + size]


def check_header(frame: PlacedHeader) -> None:
    """Check the header fields against each other.

    Raises:
        InvalidBatch: At the first wrong field.
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


def check_records(windows: FileWindows, frame: PlacedHeader) -> int:
    """Decode the batch, compare its records with its header, and return their number.

    Raises:
        FrameError: At the first fault.
    """
    size = frame.size
    index = windows.load(frame.position, size)
    data, start, stop, compressed_at = windows.data, index + HEADER.size, index + size, -1
    compression = frame.attributes & 0x07
    records: bytes | bytearray | memoryview = data
    if compression:
        records = decompress(
            Compression(compression), memoryview(data)[start:stop], DECOMPRESSED_BYTES_MAX, frame.position
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
