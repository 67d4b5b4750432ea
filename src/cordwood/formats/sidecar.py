"""The file beside a store whose format has no checksums or no framing.

It has an entry of 16 bytes for every offset of the segment: position, length and checksum of the frame. It is
authoritative and synced with the store before an acknowledgement, so a torn tail can be recognized.
docs/formats/directory.md has the bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import google_crc32c

from cordwood import kernels
from cordwood.kernels import Buffer

ENTRY_SIZE = 16
_SUM_ENTRY = struct.Struct(
    ">"  # big-endian
    "Q"  # position
    "I"  # length
    "I"  # CRC-32C of the frame
)
_INDEX_HEAD = struct.Struct(
    "<"  # little-endian
    "Q"  # base offset
    "Q"  # zero
)
_INDEX_ENTRY = struct.Struct(
    "<"  # little-endian
    "Q"  # CRC-32 of the record, widened
    "I"  # length; 0 where compaction has removed the record
    "I"  # position
)
assert _SUM_ENTRY.size == _INDEX_HEAD.size == _INDEX_ENTRY.size == ENTRY_SIZE


class SidecarEntry(NamedTuple):
    """The entry of one frame; a size of 0 means that compaction removed the frame."""

    position: int
    size: int
    checksum: int


class Sidecar(Protocol):
    """The layout of a sidecar."""

    @property
    def suffix(self) -> str:
        """The suffix of the file name."""

    @property
    def head_size(self) -> int:
        """The number of bytes before the first entry."""

    @property
    def frame_size_min(self) -> int:
        """The size of the smallest frame, which limits the number of entries for a piece of the store."""

    @property
    def is_index(self) -> bool:
        """Whether it replaces the sparse index."""

    def head(self, base_offset: int) -> bytes:
        """Return the bytes before the first entry, in the segment that begins at *base_offset*."""

    def pack(self, position: int, sizes: Sequence[int], checksums: Sequence[int]) -> bytes:
        """Return the entries of consecutive frames from *position* on."""

    def unpack(self, entries: Buffer) -> Iterator[SidecarEntry]:
        """Yield the complete entries; an incomplete last one is ignored."""

    def checksum(self, buffer: Buffer, start: int, stop: int) -> int:
        """Return the checksum of the bytes [start, stop)."""

    def extend(self, checksum: int, chunk: Buffer) -> int:
        """Return *checksum* extended by *chunk*; 0 is the checksum of no bytes."""


class SumFile:
    """``<base>.sum``: position u64, length u32, CRC-32C u32, all big-endian like the indexes."""

    suffix = "sum"
    head_size = 0
    is_index = False

    def __init__(self, frame_size_min: int) -> None:
        self.frame_size_min = frame_size_min

    def head(self, base_offset: int) -> bytes:
        """Return no bytes: the first entry is at the beginning."""
        return b""

    def pack(self, position: int, sizes: Sequence[int], checksums: Sequence[int]) -> bytes:
        """Return the entries of consecutive frames from *position* on."""
        packed = bytearray()
        for size, checksum in zip(sizes, checksums, strict=True):
            packed += _SUM_ENTRY.pack(position, size, checksum)
            position += size
        return bytes(packed)

    def unpack(self, entries: Buffer) -> Iterator[SidecarEntry]:
        """Yield the complete entries."""
        whole = memoryview(entries)[: len(entries) // ENTRY_SIZE * ENTRY_SIZE]
        return map(SidecarEntry._make, _SUM_ENTRY.iter_unpack(whole))

    def checksum(self, buffer: Buffer, start: int, stop: int) -> int:
        """Return the CRC-32C of the bytes [start, stop)."""
        return int(google_crc32c.value(kernels.readonly(buffer, start, stop)))

    def extend(self, checksum: int, chunk: Buffer) -> int:
        """Return the CRC-32C extended by *chunk*."""
        return int(google_crc32c.extend(checksum, kernels.readonly(chunk, 0, len(chunk))))


class DenseIndexFile:
    """``<base>.index``: the base offset, then checksum u64, length u32 and position u32, little-endian."""

    suffix = "index"
    head_size = _INDEX_HEAD.size
    is_index = True

    def __init__(self, frame_size_min: int) -> None:
        self.frame_size_min = frame_size_min

    def head(self, base_offset: int) -> bytes:
        """Return the base marker."""
        return _INDEX_HEAD.pack(base_offset, 0)

    def pack(self, position: int, sizes: Sequence[int], checksums: Sequence[int]) -> bytes:
        """Return the entries of consecutive frames from *position* on."""
        packed = bytearray()
        for size, checksum in zip(sizes, checksums, strict=True):
            packed += _INDEX_ENTRY.pack(checksum, size, position)
            position += size
        return bytes(packed)

    def unpack(self, entries: Buffer) -> Iterator[SidecarEntry]:
        """Yield the complete entries."""
        whole = memoryview(entries)[: len(entries) // ENTRY_SIZE * ENTRY_SIZE]
        for checksum, size, position in _INDEX_ENTRY.iter_unpack(whole):
            yield SidecarEntry(position, size, checksum)

    def checksum(self, buffer: Buffer, start: int, stop: int) -> int:
        """Return the CRC-32 of the bytes [start, stop)."""
        return zlib.crc32(memoryview(buffer)[start:stop])

    def extend(self, checksum: int, chunk: Buffer) -> int:
        """Return the CRC-32 extended by *chunk*."""
        return zlib.crc32(chunk, checksum)
