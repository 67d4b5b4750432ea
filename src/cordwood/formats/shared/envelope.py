"""Frames of the shared log: a batch in an envelope that names its owner. See docs/formats/shared.md.

The batch inside has the offsets of its partition. The envelope has its ids among the records of all topics,
which are the offsets of the shared log itself. Two kinds of frame have no records and one id: one moves the
start of a partition, the other ends a deleted topic.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, NoReturn

import google_crc32c

from cordwood import kernels
from cordwood.errors import (
    ChecksumMismatch,
    FrameError,
    FrameTooLarge,
    InvalidBatch,
    RecordRefused,
    TruncatedFrame,
)
from cordwood.formats import batch
from cordwood.formats.batch import Marker
from cordwood.formats.format import (
    NOTHING_BESIDE,
    Beside,
    Encoded,
    Ending,
    FrameSlot,
    Holds,
    ProducerStamp,
    ReceivedFrame,
    Row,
    StreamedFrame,
)
from cordwood.formats.native import BatchFormat, BatchTable
from cordwood.formats.receiving import BatchTerms, CompressionChoice
from cordwood.formats.sidecar import Sidecar
from cordwood.kernels import INT32_MAX, Buffer, ColumnBuffers, Want
from cordwood.records import Header, Record

MAGIC = 0x564E4557  # "WENV", little-endian
VERSION = 1
ENVELOPE = struct.Struct(
    "<"  # little-endian
    "I"  # CRC-32C of everything after it, the batch included
    "I"  # magic
    "I"  # size of the frame: envelope and batch
    "B"  # version
    "B"  # kind
    "H"  # reserved: 0
    "i"  # leader epoch
    "I"  # partition
    "Q"  # first id: that of the first record among all of the shared log
    "Q"  # org
    "16s"  # topic hash
    "Q"  # first offset: that of the first record in its topic's partition
    "q"  # largest timestamp, in milliseconds
    "I"  # how many ids it takes: one for each record
    "I"  # reserved: 0
)
ENVELOPE_SIZE = ENVELOPE.size
assert ENVELOPE_SIZE == 80
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<IIIBB")
_BATCH = BatchFormat()
_ANY_EPOCH = None


class EnvelopeKind(IntEnum):
    """The kinds of frames of the shared log."""

    RECORDS = 0
    LOG_START = 1  # its first offset is the first one that can be read from here on
    ENDED = 2  # its topic was deleted: what comes after it is another one of the same name


class Owner(NamedTuple):
    """The owner of a frame: a partition of a tenant's topic, identified by the topic's hash."""

    org: int
    topic_hash: bytes
    partition: int

    def __str__(self) -> str:
        """Return the key of a virtual topic, as its own system writes it."""
        return f"{self.org}-{int.from_bytes(self.topic_hash, 'little')}-{self.partition}"


class Envelope(NamedTuple):
    """The fields of an envelope; ``size`` is that of the whole frame."""

    kind: EnvelopeKind
    owner: Owner
    first_id: int
    first_offset: int
    id_count: int
    max_timestamp: int
    leader_epoch: int
    size: int

    @property
    def next_id(self) -> int:
        """The id after its last one."""
        return self.first_id + self.id_count


def seal(
    kind: EnvelopeKind,
    owner: Owner,
    first_id: int,
    first_offset: int,
    count: int,
    max_timestamp: int,
    leader_epoch: int,
    content: Buffer = b"",
) -> bytearray:
    """Return a frame: *content*, a record batch if *kind* has one, in its envelope."""
    frame = bytearray(ENVELOPE_SIZE + len(content))
    ENVELOPE.pack_into(
        frame,
        0,
        0,
        MAGIC,
        len(frame),
        VERSION,
        kind,
        0,
        leader_epoch,
        owner.partition,
        first_id,
        owner.org,
        owner.topic_hash,
        first_offset,
        max_timestamp,
        count,
        0,
    )
    frame[ENVELOPE_SIZE:] = content
    _CRC.pack_into(frame, 0, checksum(frame, 0, len(frame)))
    return frame


def checksum(buffer: Buffer, start: int, end: int) -> int:
    """Return the CRC-32C that the frame in [start, end) must have."""
    return int(google_crc32c.value(kernels.readonly(buffer, start + _CRC.size, end)))


def read_envelope(
    buffer: Buffer, position: int = 0, *, size_max: int = INT32_MAX, checked: bool = False
) -> Envelope:
    """Read the envelope at *position* and check the frame, all of whose bytes must be there.

    With *checked* its checksum was compared earlier.

    Raises:
        TruncatedFrame: If the buffer ends inside the frame.
        FrameError: The subclass says what else is wrong, with the position of the field.
    """
    room = len(buffer) - position
    if room < ENVELOPE_SIZE:
        raise TruncatedFrame(
            position=position, expected=f"{ENVELOPE_SIZE} bytes", found=f"{room} bytes", what="envelope"
        )
    (
        crc,
        magic,
        size,
        version,
        kind,
        reserved,
        leader_epoch,
        partition,
        first_id,
        org,
        hashed,
        first_offset,
        max_timestamp,
        count,
        zero,
    ) = ENVELOPE.unpack_from(buffer, position)
    if (magic, version) != (MAGIC, VERSION):
        expected, found = f"{MAGIC:#x} and {VERSION}", f"{magic:#x} and {version}"
        raise InvalidBatch(position=position + 4, expected=expected, found=found, what="magic and version")
    if size > size_max:
        raise FrameTooLarge(
            position=position + 8, expected=f"at most {size_max} bytes", found=size, what="frame"
        )
    if size > room:
        raise TruncatedFrame(position=position, expected=f"{size} bytes", found=f"{room} bytes", what="frame")
    if kind > EnvelopeKind.ENDED or reserved or zero or not count or size < ENVELOPE_SIZE or leader_epoch < 0:
        raise InvalidBatch(
            position=position + 12,
            expected="fields that fit",
            found=f"kind {kind}, {count} ids, {size} bytes",
            what="envelope",
        )
    if not checked:
        _check_crc(buffer, position, size, crc)
    owner = Owner(org, hashed, partition)
    return Envelope(
        EnvelopeKind(kind), owner, first_id, first_offset, count, max_timestamp, leader_epoch, size
    )


def _check_crc(buffer: Buffer, position: int, size: int, expected: int) -> None:
    actual = checksum(buffer, position, position + size)
    if actual != expected:
        raise ChecksumMismatch(
            position=position,
            expected=f"{expected:#010x}",
            found=f"{actual:#010x}",
            what="CRC-32C of the frame",
        )


def content_of(buffer: Buffer, position: int, envelope: Envelope) -> memoryview:
    """Return the record batch in the frame at *position*; empty for another kind."""
    return memoryview(buffer)[position + ENVELOPE_SIZE : position + envelope.size]


class EnvelopeTable:
    """Frames of the shared log found by a scan; see `format.FrameTable`. Offsets here are ids."""

    left = b""

    def __init__(self, buffer: Buffer, start: int) -> None:
        self.ending = Ending.END
        self.end = start
        self._buffer = buffer
        self._positions: list[int] = []
        self._ids: list[int] = []
        self._found: list[Envelope] = []
        self._error: FrameError | None = None

    def add(self, envelope: Envelope) -> None:
        """Add a frame that starts at the end of the previous one."""
        self._positions.append(self.end)
        self._ids.append(envelope.first_id)
        self._found.append(envelope)
        self.end += envelope.size

    def stop(self, error: FrameError) -> None:
        """End the run because of *error*."""
        self._error = error
        if isinstance(error, TruncatedFrame):
            self.ending = Ending.SHORT
        elif not any(memoryview(self._buffer)[self.end : self.end + ENVELOPE_SIZE]):
            self.ending = Ending.ZEROS
        else:
            self.ending = Ending.INVALID

    def __len__(self) -> int:
        return len(self._found)

    def envelope(self, frame: int) -> Envelope:
        """Return the envelope of a frame."""
        return self._found[frame]

    def position(self, frame: int) -> int:
        """Return where a frame starts."""
        return self._positions[frame]

    def base_offset(self, frame: int) -> int:
        """Return the first id a frame takes."""
        return self._ids[frame]

    def next_offset(self, frame: int) -> int:
        """Return the id after the last one a frame takes."""
        return self._found[frame].next_id

    def max_timestamp(self, frame: int) -> int | None:
        """Return the largest timestamp in a frame."""
        return self._found[frame].max_timestamp

    def record_count(self, frame: int) -> int:
        """Return how many records a frame has."""
        found = self._found[frame]
        return found.id_count if found.kind is EnvelopeKind.RECORDS else 0

    def stamp(self, frame: int) -> ProducerStamp | None:
        """Return None: producers belong to topics, not to the shared log."""
        return None

    def marker(self, frame: int) -> Marker | None:
        """Return None: transactions belong to topics, not to the shared log."""
        return None

    def find(self, offset: int) -> int:
        """Return the first frame that reaches beyond the id *offset*."""
        frame = max(bisect_right(self._ids, offset) - 1, 0)
        while frame < len(self._found) and self.next_offset(frame) <= offset:
            frame += 1
        return frame

    def last_within(self, position_max: int) -> int:
        """Return the last frame that ends at or before *position_max*; -1 if none does."""
        frame = bisect_right(self._positions, position_max) - 1
        while frame >= 0 and self._positions[frame] + self._found[frame].size > position_max:
            frame -= 1
        return frame

    def error(self) -> FrameError:
        """Return the fault after the last frame."""
        assert self._error is not None
        return self._error

    def content(self, frame: int) -> memoryview:
        """Return the record batch of a frame unchanged, with the offsets of its partition."""
        return content_of(self._buffer, self._positions[frame], self._found[frame])

    def records(self, frame: int) -> list[Record]:
        """Decode the records of a frame, numbered by their ids."""
        table = self._batches(frame, frame + 1)
        return table.records(0) if len(table) else []

    def columns(self, first: int, stop: int, want: Want) -> ColumnBuffers:
        """Decode the records of frames [first, stop) to columns, numbered by their ids."""
        table = self._batches(first, stop)
        return table.columns(0, len(table), want)

    def batches(self, first: int, stop: int) -> Sequence[Buffer]:
        """Return the batches in frames [first, stop), numbered by their ids."""
        table = self._batches(first, stop)
        return table.batches(0, len(table)) if len(table) else ()

    def _batches(self, first: int, stop: int) -> BatchTable:
        """Return a table of copies of the batches in frames [first, stop), with ids for offsets."""
        data = bytearray()
        for frame in range(first, stop):
            at = len(data)
            data += self.content(frame)
            if len(data) > at:
                batch.place(data, at, self._ids[frame], self._found[frame].leader_epoch)
        size_max = max(len(data), 1)
        table = _BATCH.scan(data, next_offset=0, dense=False, epochs=_ANY_EPOCH, size_max=size_max)
        if table.end != len(data):
            raise table.error()
        return table

    def keep_before(self, frame: int, end_offset: int) -> bytearray | None:
        """Return a frame without the records from the id *end_offset* on, encoded again."""
        found = self._found[frame]
        if found.kind is not EnvelopeKind.RECORDS or end_offset <= found.first_id:
            return None
        content = self.content(frame)
        table = _BATCH.scan(
            content, next_offset=found.first_offset, dense=True, epochs=_ANY_EPOCH, size_max=len(content)
        )
        kept = table.keep_before(0, found.first_offset + end_offset - found.first_id)
        if kept is None:
            return None
        header = batch.read_header(kept, size_max=INT32_MAX)
        return seal(
            found.kind,
            found.owner,
            found.first_id,
            found.first_offset,
            header.last_offset_delta + 1,
            header.max_timestamp,
            found.leader_epoch,
            kept,
        )

    def without(self, frame: int, dropped: Buffer, first: int) -> Buffer:
        """Return a frame unchanged: the records of topics in the shared log are not compacted."""
        end = self._positions[frame] + self._found[frame].size
        return memoryview(self._buffer)[self._positions[frame] : end]


class EnvelopeFormat:
    """Record batches in envelopes; see `format.Format`. `storage.shared` writes them."""

    name = "shared"
    header_size = ENVELOPE_SIZE
    record_per_frame = False
    holds = Holds(keys=True, headers=True, null_values=True)
    sidecar: Sidecar | None = None
    chained = False
    store_bytes_max: int | None = None

    def left_by(self, frame: Buffer) -> bytes:
        """Return no bytes: frames are independent."""
        return b""

    def for_partition(self, partition: int, tenant: int | None = 0) -> EnvelopeFormat:
        """Return itself: the partition in an envelope is that of its owner."""
        return self

    def frame_size(self, header: Buffer) -> int | None:
        """Return the size in an envelope."""
        _, magic, size, version, _ = _HEAD.unpack_from(header)
        return int(size) if (magic, version) == (MAGIC, VERSION) and size >= ENVELOPE_SIZE else None

    def scan(
        self,
        buffer: Buffer,
        start: int = 0,
        *,
        next_offset: int,
        dense: bool,
        epochs: Sequence[tuple[int, int]] | None,
        size_max: int,
        checked_before: int = 0,
        beside: Beside = NOTHING_BESIDE,
    ) -> EnvelopeTable:
        """Find the complete, valid frames from *start* on."""
        table = EnvelopeTable(buffer, start)
        starts = [] if epochs is None else [begin for begin, _ in epochs]
        while table.end < len(buffer):
            position = table.end
            try:
                # The checked part ends at the end of a frame.
                found = read_envelope(buffer, position, size_max=size_max, checked=position < checked_before)
                if found.first_id < next_offset or (dense and found.first_id != next_offset):
                    expected = f"{next_offset}" if dense else f"at least {next_offset}"
                    raise InvalidBatch(
                        position=position + 24, expected=expected, found=found.first_id, what="id"
                    )
                if epochs is not None:
                    epoch = epochs[max(bisect_right(starts, found.first_id) - 1, 0)][1]
                    if found.leader_epoch != epoch:
                        raise InvalidBatch(
                            position=position + 16,
                            expected=epoch,
                            found=found.leader_epoch,
                            what="leader epoch",
                        )
            except FrameError as error:
                table.stop(error)
                break
            table.add(found)
            next_offset = found.next_id
        return table

    def candidates(self, buffer: Buffer) -> Iterator[int]:
        """Yield the positions whose magic is right and whose size fits into the buffer."""
        data = bytes(buffer)
        magic = MAGIC.to_bytes(4, "little")
        at = data.find(magic, _CRC.size)
        while at >= 0:
            start = at - _CRC.size
            if len(data) - start >= ENVELOPE_SIZE:
                size = self.frame_size(data[start : start + ENVELOPE_SIZE])
                if size is not None and size <= len(data) - start:
                    yield start
            at = data.find(magic, at + 1)

    def encode(
        self,
        rows: Iterable[Row],
        slot: FrameSlot,
        now_ms: int,
        codec: CompressionChoice | None = None,
    ) -> Encoded:
        """Refuse: records are appended through their topics."""
        _refuse()

    def receive(self, data: memoryview, terms: BatchTerms) -> ReceivedFrame:
        """Refuse: records are appended through their topics."""
        _refuse()

    def times(self, frame: ReceivedFrame) -> Sequence[int]:
        """Refuse: records are appended through their topics."""
        _refuse()

    def with_times(self, frame: ReceivedFrame, timestamps: Sequence[int]) -> ReceivedFrame:
        """Refuse: records are appended through their topics."""
        _refuse()

    def place(self, frame: ReceivedFrame, slot: FrameSlot) -> Encoded:
        """Refuse: records are appended through their topics."""
        _refuse()

    def encode_marker(self, marker: Marker, slot: FrameSlot, now_ms: int) -> Encoded:
        """Refuse: records are appended through their topics."""
        _refuse()

    def stream(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        value_size: int,
        slot: FrameSlot,
        timestamp: int,
    ) -> StreamedFrame:
        """Refuse: records are appended through their topics."""
        _refuse()


def _refuse() -> NoReturn:
    raise RecordRefused("records get into the shared log through their topics only")
