"""Find and check the frames of the shared log: batches, each in an envelope that names its owner.

Written against docs/formats/shared.md, independent of the code that writes envelopes.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

import google_crc32c

from cordwood.errors import FrameError
from cordwood.verify.frame import (
    INT64_MAX,
    WINDOW_BYTES,
    Epochs,
    FileWindows,
    PlacedHeader,
    check_crc,
    check_header,
    check_records,
    frame_at,
    pieces,
)
from cordwood.verify.segments.control import read_control
from cordwood.verify.segments.records import SelfContained, compare_checksum, head_at, wrong

_ENVELOPE = struct.Struct(
    "<"
    "I"  # CRC-32C of all that follows, the batch included
    "4s"  # magic
    "I"  # size of the frame
    "B"  # version
    "B"  # kind
    "H"  # zero
    "i"  # leader epoch
    "I"  # partition
    "Q"  # first id
    "Q"  # org
    "16s"  # topic hash
    "Q"  # first offset
    "q"  # largest timestamp
    "I"  # how many ids
    "I"  # zero
)
assert _ENVELOPE.size == 80
_MAGIC, _VERSION = b"WENV", 1
_COVERED_FROM = 4
RECORDS, LOG_START, ENDED = range(3)
_NOBODY = -1
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
#: The role of a frame in a transaction.
NO_ROLE, IN_TRANSACTION = 0, 1


class EnvelopeOwner(NamedTuple):
    """The owner of a frame: a partition of an org's topic, identified by the topic's hash."""

    org: int
    topic_hash: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.org}-{int.from_bytes(self.topic_hash, 'little')}-{self.partition}"


class EnvelopeFrame(NamedTuple):
    """A frame of the shared log; see `reader.AnyFrame`. Its offsets there are ids.

    ``first_offset`` is the offset of its first record in its partition. ``batch`` is the enclosed batch, if
    it has records. ``role`` is its role in a transaction, and ``sequence`` the base sequence of the batch, or
    the coordinator epoch of a marker.
    """

    position: int
    size: int
    base_offset: int
    id_count: int
    max_timestamp: int
    leader_epoch: int
    kind: int
    place: EnvelopeOwner
    first_offset: int
    crc: int
    zeros: tuple[int, int]
    batch: PlacedHeader | None
    role: int
    sequence: int

    @property
    def end(self) -> int:
        """The position after it."""
        return self.position + self.size

    @property
    def next_offset(self) -> int:
        """The id after its last one."""
        return self.base_offset + self.id_count

    @property
    def record_count(self) -> int:
        """The number of its ids: a frame without records has one, and a timestamp too."""
        return self.id_count

    @property
    def producer(self) -> tuple[int, int, int]:
        """Id and epoch of the producer that sent the batch, and its sequence or coordinator epoch."""
        if self.batch is None:
            return _NOBODY, _NOBODY, _NOBODY
        return self.batch.producer_id, self.batch.producer_epoch, self.sequence


class EnvelopeFrames(SelfContained):
    """Reads envelopes and the batches in them; see `reader.FrameReader`."""

    def __init__(self, epochs: Epochs) -> None:
        """Take the leader epochs of the shared log."""
        self._epochs = epochs
        self._epoch_starts = [start for _, start in epochs]

    def at(self, windows: FileWindows, position: int, stop: int) -> EnvelopeFrame:
        """Read the envelope at *position*, and the header of the batch in it."""
        fields = _ENVELOPE.unpack(head_at(windows, position, stop, _ENVELOPE.size))
        crc, magic, size, version, kind, zero, epoch, partition, first_id, org, topic_hash, *rest = fields
        first_offset, max_timestamp, count, other_zero = rest
        if magic != _MAGIC:
            raise wrong(position + 4, _MAGIC, magic, "magic")
        if version != _VERSION:
            raise wrong(position + 12, _VERSION, version, "version")
        if not _ENVELOPE.size <= size <= stop - position:
            raise wrong(position + 8, f"{_ENVELOPE.size} to {stop - position}", size, "size of the frame")
        batch = self._batch_at(windows, position, size) if kind == RECORDS else None
        return EnvelopeFrame(
            position,
            size,
            first_id,
            count,
            max_timestamp,
            epoch,
            kind,
            EnvelopeOwner(org, topic_hash, partition),
            first_offset,
            crc,
            (zero, other_zero),
            batch,
            *_role_of(windows, batch),
        )

    def _batch_at(self, windows: FileWindows, position: int, size: int) -> PlacedHeader | None:
        """Return the batch in a frame, None if no batch fills it: the envelope may be damaged."""
        try:
            # Read completely, so that it need not be read again.
            windows.load(position, min(size, WINDOW_BYTES))
            batch = frame_at(windows, position + _ENVELOPE.size, position + size)
        except FrameError:
            return None
        return batch if batch.end == position + size else None

    def check(self, windows: FileWindows, frame: EnvelopeFrame) -> None:
        """Compare the checksums, and the envelope with its batch."""
        crc = 0
        for piece in pieces(windows, frame.position + _COVERED_FROM, frame.end):
            crc = google_crc32c.extend(crc, bytes(piece))
        compare_checksum(frame.position, frame.crc, crc, "CRC-32C of the frame")
        _check_fields(frame)
        if frame.kind == RECORDS:
            if frame.batch is None:
                found = f"{frame.size - _ENVELOPE.size} bytes that are none"
                raise wrong(frame.position + _ENVELOPE.size, "one batch to the end", found, "frame")
            check_crc(windows, frame.batch)
            check_header(frame.batch)
            _check_agrees(frame, frame.batch)

    def check_follows(self, frame: EnvelopeFrame) -> None:
        """Check the leader epoch."""
        epoch = self._epochs[max(0, bisect_right(self._epoch_starts, frame.base_offset) - 1)][0]
        if frame.leader_epoch != epoch:
            raise wrong(frame.position + 16, epoch, frame.leader_epoch, "leader epoch")

    def count(self, windows: FileWindows, frame: EnvelopeFrame) -> int:
        """Decode the batch, if there is one, and compare its records with its header."""
        return 0 if frame.batch is None else check_records(windows, frame.batch)


def _role_of(windows: FileWindows, batch: PlacedHeader | None) -> tuple[int, int]:
    """Return the role of a batch in a transaction, and what the index has in place of a sequence."""
    if batch is None:
        return NO_ROLE, _NOBODY
    if batch.attributes & _CONTROL:
        return read_control(windows, batch)
    return IN_TRANSACTION if batch.attributes & _TRANSACTIONAL else NO_ROLE, batch.base_sequence


def _check_fields(frame: EnvelopeFrame) -> None:
    """Check the fields of an envelope by themselves."""
    at = frame.position
    if frame.kind > ENDED:
        raise wrong(at + 13, "0 to 2", frame.kind, "kind")
    if any(frame.zeros):
        raise wrong(at + 14, "zeros", frame.zeros, "reserved fields")
    if frame.leader_epoch < 0:
        raise wrong(at + 16, "0 or more", frame.leader_epoch, "leader epoch")
    if not 1 <= frame.id_count <= INT64_MAX - frame.base_offset:
        raise wrong(at + 72, "1 or more, up to the id 2^63 - 1", frame.id_count, "how many ids")
    if frame.id_count > INT64_MAX - frame.first_offset:
        raise wrong(at + 56, "offsets up to 2^63 - 1", frame.first_offset, "first offset")
    if frame.kind != RECORDS and (frame.id_count, frame.size) != (1, _ENVELOPE.size):
        found = f"{frame.id_count} ids, {frame.size} bytes"
        raise wrong(at + 8, f"one id and {_ENVELOPE.size} bytes", found, "frame without records")
    if frame.kind == ENDED and frame.first_offset:
        raise wrong(at + 56, 0, frame.first_offset, "first offset of a topic that ended")


def _check_agrees(frame: EnvelopeFrame, batch: PlacedHeader) -> None:
    """Compare the fields of an envelope with its batch."""
    for at, said, is_, what in (
        (56, frame.first_offset, batch.base_offset, "first offset"),
        (72, frame.id_count, batch.last_offset_delta + 1, "how many ids"),
        (64, frame.max_timestamp, batch.max_timestamp, "largest timestamp"),
        (16, frame.leader_epoch, batch.leader_epoch, "leader epoch"),
    ):
        if said != is_:
            raise wrong(frame.position + at, f"{is_}, as its batch says", said, what)
