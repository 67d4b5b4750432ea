"""Leaves that commit to the parts of a frame: its records one by one, or its envelope and its batch.

The first kind is for topics that may be compacted. The leaf of such a frame is the hash of its header fields,
of its bytes, and of the root over its list of records. Compaction changes the frame, but the list stays as
evidence: it shows that what survives is unchanged, and what is missing. The second kind is for the shared
log. docs/integrity.md has the layout.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import NamedTuple

from cordwood.integrity import merkle
from cordwood.kernels import HEADER, ITEM_SIZE, NO_KEY, NO_VALUE, Buffer
from cordwood.records import Record

#: The number of a record format in leaves and lists.
FORMAT_CODES = {"batch": 0, "rustlog": 1, "kimberlite": 2, "laminarmq": 3, "frame": 4}
_COMPRESSION_BITS = 0x7
_TRANSACTIONAL_BIT = 0x10
_FACTS = struct.Struct(
    ">"
    "B"  # format
    "q"  # base offset
    "i"  # last offset delta
    "i"  # leader epoch
    "h"  # attributes without the compression
    "q"  # producer id
    "h"  # producer epoch
    "i"  # base sequence
    "i"  # record count
    "32s"  # SHA-256 of the frame
)
assert _FACTS.size == 69
FACTS_SIZE = _FACTS.size
#: Prefix of the hashed bytes. No frame and no statement begins with it.
_PREFIX = b"\0\xfeCWR1"
_MOVED_PREFIX = b"\0\xfdCWM1"
_ENVELOPE_PREFIX = b"\0\xfeCWE1"
ENVELOPE_SIZE = 80
_LEAF = struct.Struct(">Q")
_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")


class LeafFacts(NamedTuple):
    """The fields of a frame, besides its records, that its leaf commits to."""

    format: int
    base_offset: int
    last_delta: int
    leader_epoch: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    frame_hash: bytes

    def packed(self) -> bytes:
        """Return the fields as they are hashed and stored."""
        return _FACTS.pack(*self)

    @property
    def is_listable(self) -> bool:
        """Whether a list says everything about the records: their offsets follow each other."""
        return self.record_count == self.last_delta + 1

    @property
    def in_transaction(self) -> bool:
        """Whether the frame is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def next_offset(self) -> int:
        """The offset after the frame."""
        return self.base_offset + self.last_delta + 1


def unpack_facts(data: Buffer, position: int = 0) -> LeafFacts:
    """Return the fields at *position* of *data*."""
    return LeafFacts._make(_FACTS.unpack_from(data, position))


def facts_of(record_format: str, frame: Buffer, offset: int) -> LeafFacts:
    """Return the fields of *frame*; *offset* is that of the record where a frame is one."""
    code, frame_hash = FORMAT_CODES[record_format], sha256(frame).digest()
    if record_format != "batch":
        return LeafFacts(code, offset, 0, -1, 0, -1, -1, -1, 1, frame_hash)
    base, _, epoch, _, _, attributes, last_delta, _, _, producer, producer_epoch, sequence, count = (
        HEADER.unpack_from(frame)
    )
    return LeafFacts(
        code,
        base,
        last_delta,
        epoch,
        attributes & ~_COMPRESSION_BITS,
        producer,
        producer_epoch,
        sequence,
        count,
        frame_hash,
    )


def record_leaf(facts: LeafFacts, root: bytes) -> bytes:
    """Return the leaf of a frame whose list of records has *root*."""
    return sha256(_PREFIX + facts.packed() + root).digest()


def moved_leaf(frame: Buffer) -> bytes:
    """Return the leaf of a frame that compaction wrote. It proves no record: only the original leaf does."""
    digest = sha256(_MOVED_PREFIX)
    digest.update(frame)
    return digest.digest()


def envelope_leaf(frame: Buffer) -> bytes:
    """Return the leaf of a frame of the shared log, which commits to its envelope and its batch."""
    view = memoryview(frame)
    return sha256(_ENVELOPE_PREFIX + view[:ENVELOPE_SIZE] + sha256(view[ENVELOPE_SIZE:]).digest()).digest()


def dropped_envelope(leaf: int, frame: Buffer) -> bytes:
    """Return what is kept of a frame of the shared log that was dropped: enough to compute its leaf again."""
    view = memoryview(frame)
    return _LEAF.pack(leaf) + view[:ENVELOPE_SIZE] + sha256(view[ENVELOPE_SIZE:]).digest()


def entry_hash(offset: int, item: Buffer) -> bytes:
    """Return the entry of a record: its leaf in the tree over the list of its frame."""
    assert len(item) == ITEM_SIZE
    return merkle.leaf_hash(_OFFSET.pack(offset) + item)


def entries_of(base_offset: int, items: Buffer) -> list[bytes]:
    """Return the entries of a list whose records have consecutive offsets from *base_offset* on."""
    view = memoryview(items)
    count = len(view) // ITEM_SIZE
    return [entry_hash(base_offset + at, view[at * ITEM_SIZE : (at + 1) * ITEM_SIZE]) for at in range(count)]


def root_of(entries: list[bytes]) -> bytes:
    """Return the root over *entries*."""
    frontier = merkle.empty_frontier()
    frontier.add(entries)
    return frontier.root()


def item_of(record: Record, salt: bytes) -> bytes:
    """Return the item of one record. The kernel `hash_records` makes those of many."""
    flags = (NO_KEY if record.key is None else 0) | (NO_VALUE if record.value is None else 0)
    rest = sha256(b"\2" + _OFFSET.pack(record.timestamp) + _sized(record.value))
    rest.update(_LENGTH.pack(len(record.headers)))
    for name, value in record.headers:
        rest.update(_sized(name.encode()) + _sized(value))
    return bytes([flags]) + sha256(b"\1" + salt + (record.key or b"")).digest() + rest.digest()


def _sized(value: bytes | None) -> bytes:
    return _LENGTH.pack(-1) if value is None else _LENGTH.pack(len(value)) + value
