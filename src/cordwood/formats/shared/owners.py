"""The dense index of the shared log: an entry for every frame. docs/formats/shared.md has its bytes.

An entry has all fields of its frame's envelope and the position of the frame, so the records of each topic
are known from the index alone. The index is derived: it can be rebuilt from the log byte for byte.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

from cordwood.errors import FrameError
from cordwood.formats import batch
from cordwood.formats.batch import Marker
from cordwood.formats.format import ProducerStamp
from cordwood.formats.shared.envelope import ENVELOPE_SIZE, Envelope, EnvelopeKind, Owner
from cordwood.kernels import INT32_MAX, Buffer

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
    "B"  # role in a transaction
    "h"  # producer epoch, -1 for none
    "q"  # producer id, -1 for none
    "q"  # largest timestamp
    "i"  # base sequence, -1 for none; of a marker the coordinator epoch
    "I"  # CRC-32C of the 92 bytes before it
)
ENTRY_SIZE = ENTRY.size
assert ENTRY_SIZE == 96
_BODY_SIZE = ENTRY_SIZE - 4
_CRC = struct.Struct("<I")
_FIRST_ID = struct.Struct("<Q")
#: Fields of a batch's header: attributes, producer id, producer epoch, base sequence.
_PRODUCER = struct.Struct(">h20xqhi")
_PRODUCER_AT = 21


class Role(IntEnum):
    """The role of a frame in a transaction of its partition, as its batch says."""

    NONE = 0
    RECORDS = 1  # records of a transaction
    COMMIT = 2  # a marker
    ABORT = 3  # a marker
    CONTROL = 4  # a control batch that is not about a transaction


_MARKERS = (Role.ABORT, Role.COMMIT)


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
    role: int
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

    @property
    def stamp(self) -> ProducerStamp | None:
        """Its producer, None if it has none or is a control batch."""
        if self.producer_id == batch.NO_PRODUCER_ID or self.role > Role.RECORDS:
            return None
        first = last = self.base_sequence
        if first != batch.NO_SEQUENCE:
            last = (first + self.id_count - 1) & INT32_MAX
        transactional = self.role == Role.RECORDS
        return ProducerStamp(self.producer_id, self.producer_epoch, first, last, transactional)

    @property
    def marker(self) -> Marker | None:
        """The marker in it, which ends a transaction."""
        if self.role not in _MARKERS:
            return None
        return Marker(self.producer_id, self.producer_epoch, self.role == Role.COMMIT, self.base_sequence)


def pack_entry(envelope: Envelope, content: Buffer, segment: int, position: int) -> bytes:
    """Return the entry of a frame at *position* of a segment; *content* is the batch in it."""
    producer_id, producer_epoch, base_sequence = (
        batch.NO_PRODUCER_ID,
        batch.NO_PRODUCER_EPOCH,
        batch.NO_SEQUENCE,
    )
    role = Role.NONE
    if envelope.kind is EnvelopeKind.RECORDS:
        attributes, producer_id, producer_epoch, base_sequence = _PRODUCER.unpack_from(content, _PRODUCER_AT)
        if attributes & batch.CONTROL:
            role, base_sequence = _read_control(content, base_sequence)
        elif attributes & batch.TRANSACTIONAL:
            role = Role.RECORDS
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
        role,
        producer_epoch,
        producer_id,
        envelope.max_timestamp,
        base_sequence,
        0,
    )[:_BODY_SIZE]
    return packed + _CRC.pack(google_crc32c.value(packed))


def _read_control(content: Buffer, base_sequence: int) -> tuple[Role, int]:
    """Return the role of a control batch, and the coordinator epoch in it or else its *base_sequence*."""
    try:
        marker = batch.decode_marker(content, batch.read_header(content, size_max=INT32_MAX))
    except FrameError:
        # The index is built from frames whose checksum is correct: reading this one reports the fault.
        marker = None
    if marker is None:
        return Role.CONTROL, base_sequence
    return Role.COMMIT if marker.committed else Role.ABORT, marker.coordinator_epoch


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
