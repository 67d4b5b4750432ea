"""The dense index of the shared log: an entry for every frame. docs/formats/shared.md has its bytes.

An entry has all fields of its frame's envelope and the position of the frame, so the records of each topic
are known from the index alone. The index is derived: it can be rebuilt from the log byte for byte.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import google_crc32c

from cordwood.formats import batch
from cordwood.formats.shared.envelope import ENVELOPE_SIZE, Envelope, EnvelopeKind, Owner
from cordwood.kernels import Buffer

ENTRY = struct.Struct(
    "<"  # little-endian
    "Q"  # first id
    "Q"  # first offset
    "Q"  # org
    "16s"  # topic hash
    "I"  # partition
    "I"  # how many ids
    "Q"  # segment: the id that it begins with
    "Q"  # position of the frame in the segment
    "I"  # size of the frame
    "B"  # kind
    "B"  # reserved: 0
    "h"  # producer epoch, -1 for none
    "q"  # producer id, -1 for none
    "q"  # largest timestamp
    "i"  # base sequence, -1 for none
    "I"  # CRC-32C of the 92 bytes before it
)
ENTRY_SIZE = ENTRY.size
assert ENTRY_SIZE == 96
_BODY_SIZE = ENTRY_SIZE - 4
_CRC = struct.Struct("<I")
_FIRST_ID = struct.Struct("<Q")
#: Fields of a batch's header: producer id, producer epoch, base sequence.
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43


class OwnerEntry(NamedTuple):
    """One frame of the shared log: its owner, its content and its position."""

    first_id: int
    first_offset: int
    org: int
    topic_hash: bytes
    partition: int
    id_count: int
    segment: int
    position: int
    size: int
    kind: int
    reserved: int
    producer_epoch: int
    producer_id: int
    max_timestamp: int
    base_sequence: int
    crc: int

    @property
    def owner(self) -> Owner:
        """Its owner."""
        return Owner(self.org, self.topic_hash, self.partition)

    @property
    def next_id(self) -> int:
        """The id after its last one."""
        return self.first_id + self.id_count

    @property
    def next_offset(self) -> int:
        """The offset after its last one in its partition."""
        return self.first_offset + (self.id_count if self.kind == EnvelopeKind.RECORDS else 0)

    @property
    def end(self) -> int:
        """The position after the frame."""
        return self.position + self.size


def pack_entry(envelope: Envelope, content: Buffer, segment: int, position: int) -> bytes:
    """Return the entry of a frame at *position* of a segment; *content* is the batch in it."""
    producer_id, producer_epoch, base_sequence = (
        batch.NO_PRODUCER_ID,
        batch.NO_PRODUCER_EPOCH,
        batch.NO_SEQUENCE,
    )
    if envelope.kind is EnvelopeKind.RECORDS:
        producer_id, producer_epoch, base_sequence = _PRODUCER.unpack_from(content, _PRODUCER_AT)
    packed = ENTRY.pack(
        envelope.first_id,
        envelope.first_offset,
        envelope.owner.org,
        envelope.owner.topic_hash,
        envelope.owner.partition,
        envelope.id_count,
        segment,
        position,
        envelope.size,
        envelope.kind,
        0,
        producer_epoch,
        producer_id,
        envelope.max_timestamp,
        base_sequence,
        0,
    )[:_BODY_SIZE]
    return packed + _CRC.pack(google_crc32c.value(packed))


def unpack_entry(buffer: Buffer, number: int) -> OwnerEntry:
    """Return the entry of this *number*, unchecked."""
    return OwnerEntry._make(ENTRY.unpack_from(buffer, number * ENTRY_SIZE))


class Expected(NamedTuple):
    """The expected next entry of a segment's index, and the readable end of the segment.

    With ``dense`` no frame was removed, so its id must be the next one.
    """

    segment: int
    next_id: int
    position: int
    dense: bool
    end_id: int
    end: int


def sound_entries(chunks: Iterable[bytes], expected: Expected) -> Iterator[OwnerEntry]:
    """Yield the entries in *chunks*, each of complete entries, up to the first wrong one.

    Correct: with its checksum, and as *expected* after the entries before it.
    """
    segment, next_id, position, dense, end_id, end = expected
    value = google_crc32c.value
    for data in chunks:
        for at, fields in zip(range(0, len(data), ENTRY_SIZE), ENTRY.iter_unpack(data), strict=True):
            entry = OwnerEntry._make(fields)
            if (
                value(data[at : at + _BODY_SIZE]) != entry.crc
                or entry.segment != segment
                or entry.position != position
                or entry.size < ENVELOPE_SIZE
                or entry.first_id < next_id
                or (dense and entry.first_id != next_id)
                or entry.next_id > end_id
                or entry.end > end
            ):
                return
            next_id, position = entry.next_id, entry.end
            yield entry


def find_entry(buffer: Buffer, count: int, id_: int) -> OwnerEntry | None:
    """Return the entry of the frame that has *id_* among the first *count*, None if there is none.

    A damaged entry counts as missing.
    """

    def first_id(number: int) -> int:
        return int(_FIRST_ID.unpack_from(buffer, number * ENTRY_SIZE)[0])

    at = bisect_right(range(count), id_, key=first_id) - 1
    if at < 0:
        return None
    return _checked(memoryview(buffer)[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE], id_)


def find_read_entry(read: Callable[[int], bytes], count: int, id_: int) -> OwnerEntry | None:
    """Do the same with entries that are read one at a time, by their number."""
    at = bisect_right(range(count), id_, key=lambda number: unpack_entry(read(number), 0).first_id) - 1
    return None if at < 0 else _checked(read(at), id_)


def _checked(data: Buffer, id_: int) -> OwnerEntry | None:
    """Return the entry in *data*, None if it is damaged or does not reach *id_*."""
    entry = unpack_entry(data, 0)
    if id_ >= entry.next_id or google_crc32c.value(bytes(data[:_BODY_SIZE])) != entry.crc:
        return None
    return entry
