"""Rafka's shared log and its dense offset index. docs/formats/rafka.md has their byte layout.

A record's number in the log of all tenants is that of its entry, counted from the first index file on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from cordwood.errors import FrameTooLarge, InvalidBatch, TruncatedFrame
from cordwood.kernels import Buffer

ENTRY = struct.Struct(
    "<"  # little-endian, packed
    "I"  # segment id: which .log file the record is in
    "I"  # physical offset: where its bytes start there
    "I"  # length of its bytes
    "Q"  # org id
    "16s"  # topic hash, 128 bits
    "I"  # partition
)
ENTRY_SIZE = 40
assert ENTRY.size == ENTRY_SIZE

LENGTH = struct.Struct("<I")
assert LENGTH.size == 4

#: The default size limit of a record in bytes.
SIZE_MAX = 16 * 1024 * 1024
#: The size of a segment in bytes.
SEGMENT_SIZE_MAX = 1 << 30
_PHYSICAL_OFFSET_AT, _LENGTH_AT = 4, 8


class OffsetIndexEntry(NamedTuple):
    """One entry of an ``.oidx`` file: a record's position and its owner."""

    segment_id: int
    physical_offset: int
    length: int
    org_id: int
    topic_hash: int
    partition: int

    @property
    def end(self) -> int:
        """The position in the segment after the record."""
        return self.physical_offset + self.length

    @property
    def virtual_key(self) -> str:
        """The name of the record's virtual topic and partition."""
        return f"{self.org_id}-{self.topic_hash}-{self.partition}"


def parse_virtual_key(key: str) -> tuple[int, int, int]:
    """Return org id, topic hash and partition of a virtual topic's name.

    Raises:
        ValueError: If it is not three plain decimal numbers with dashes between them.
    """
    parts = key.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"{key!r} is not <org id>-<topic hash>-<partition>")
    org_id, topic_hash, partition = map(int, parts)
    if org_id >= 1 << 64 or topic_hash >= 1 << 128 or partition >= 1 << 32:
        raise ValueError(f"{key!r} has a number that is too large")
    return org_id, topic_hash, partition


def encode_entry(entry: OffsetIndexEntry) -> bytes:
    """Encode one entry of an ``.oidx`` file."""
    segment_id, physical_offset, length, org_id, topic_hash, partition = entry
    hashed = topic_hash.to_bytes(16, "little")
    return ENTRY.pack(segment_id, physical_offset, length, org_id, hashed, partition)


def parse_entries(index: Buffer) -> Iterator[OffsetIndexEntry]:
    """Yield the complete entries of an ``.oidx`` file up to the first all-zero one.

    A mapped file is larger than its content. An entry of zeros is unused: the bytes of a record never start
    at 0, where its length is. An incomplete last entry is ignored.
    """
    whole = len(index) // ENTRY_SIZE * ENTRY_SIZE
    for segment, start, length, org, hashed, partition in ENTRY.iter_unpack(memoryview(index)[:whole]):
        if not (start or length or org or partition or segment or any(hashed)):
            break
        yield OffsetIndexEntry(segment, start, length, org, int.from_bytes(hashed, "little"), partition)


def encode_record(data: Buffer, *, size_max: int = SIZE_MAX) -> bytes:
    """Encode one record of a ``.log`` file.

    Raises:
        FrameTooLarge: If it has more than *size_max* bytes.
    """
    if len(data) > size_max:
        raise FrameTooLarge(position=0, expected=f"at most {size_max} bytes", found=len(data), what="record")
    return LENGTH.pack(len(data)) + bytes(data)


def parse_record(log: Buffer, entry: OffsetIndexEntry, *, size_max: int = SIZE_MAX) -> memoryview:
    """Return the bytes of the record that *entry* points at, in its segment's *log*.

    Raises:
        FrameError: The subclass says what is wrong, with the position in the log.
    """
    start = entry.physical_offset
    if entry.length > size_max:
        raise FrameTooLarge(
            position=start, expected=f"at most {size_max} bytes", found=f"{entry.length} bytes", what="record"
        )
    if start < LENGTH.size or entry.end > len(log):
        raise TruncatedFrame(
            position=start,
            expected=f"{entry.length} bytes after their length",
            found=f"a log of {len(log)} bytes",
            what="record",
        )
    (length,) = LENGTH.unpack_from(log, start - LENGTH.size)
    if length != entry.length:
        raise InvalidBatch(
            position=start - LENGTH.size, expected=entry.length, found=length, what="length before the record"
        )
    return memoryview(log)[start : entry.end]
