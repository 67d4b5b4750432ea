"""The contract between the engine and a record format.

The engine appends, finds, checks and cuts frames; only a format knows what is in one. A format is pure:
bytes in, bytes or facts out.

There are two kinds. In the native format a frame is a batch of records, as Kafka's clients send and take
them. In the others a frame is one record (``record_per_frame``): clients' batches are decoded and encoded on
the way in and out; `record_per_frame.RecordPerFrame` implements most of this contract for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from cordwood.errors import FrameError
from cordwood.formats.batch import Marker
from cordwood.formats.receiving import BatchTerms, CompressionChoice
from cordwood.formats.sidecar import Sidecar
from cordwood.kernels import INT32_MAX, Buffer, ColumnBuffers, Want
from cordwood.records import Header, Record

Row = Sequence[Any]
"""``(key, value[, headers[, timestamp]])``."""


class Ending(Enum):
    """How a run of whole, valid frames ended."""

    END = "the bytes end where a frame does"
    SHORT = "the bytes end inside a frame"
    ZEROS = "zeros follow"
    INVALID = "what follows is not a valid frame"


class Holds(NamedTuple):
    """The parts of a record, besides its value, that a format can store. Other parts are refused by name.

    ``stamps`` says that frames store their producer. If they do not, an idempotent producer is known only to
    the process that appended its records, and to the snapshot that it saved. ``microseconds`` says that times
    are stored in microseconds.
    """

    keys: bool
    headers: bool
    null_values: bool
    stamps: bool = False
    microseconds: bool = False


class ProducerStamp(NamedTuple):
    """The producer of a frame, and the sequence numbers of its records.

    ``first_sequence`` is that of the first record; numbers wrap at 2**31 as in Kafka. A frame that the broker
    itself writes in a transaction has NO_SEQUENCE.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    transactional: bool = False


class ReceivedFrame(NamedTuple):
    """A batch that a client encoded, checked, in its own buffer, which may be changed.

    ``records`` are its records, if the format does not store the batch unchanged.
    """

    data: memoryview
    record_count: int
    max_timestamp: int
    stamp: ProducerStamp | None
    records: Sequence[Record] = ()


class FrameSlot(NamedTuple):
    """The place in a log that a frame is encoded for, and the limit that it must keep.

    ``before`` is the state that the previous frame left; empty before the first frame of a log. With
    ``append_timestamp``, records count as appended then, whatever their own timestamps. ``now_us`` is the
    time of the append in microseconds; None in a topic that stores milliseconds.
    """

    base_offset: int
    leader_epoch: int
    append_timestamp: int | None = None
    size_max: int = INT32_MAX
    before: bytes = b""
    now_us: int | None = None


class Encoded(NamedTuple):
    """Frames with assigned offsets, to be appended together.

    If each frame is one record, ``sizes`` and ``timestamps`` (milliseconds) are theirs, in order, and
    ``checksums`` are those for the sidecar; else ``data`` is one frame and they are empty. ``left`` is the
    state that the last frame passes to the next one. An ``empty`` frame takes offsets and has no records, so
    its timestamp says nothing.
    """

    data: Buffer
    next_offset: int
    max_timestamp: int
    sizes: Sequence[int] = ()
    timestamps: Sequence[int] = ()
    checksums: Sequence[int] = ()
    left: bytes = b""
    empty: bool = False


class Beside(NamedTuple):
    """The input of a scan besides the bytes.

    ``position`` is that of the first byte in the store; ``sidecar`` has the entries from the next offset on;
    ``before`` is the state that the previous frame left, None if unknown.
    """

    position: int = 0
    sidecar: Buffer = b""
    before: bytes | None = None


NOTHING_BESIDE = Beside()


class FrameTable(Protocol):
    """The complete, valid frames found in a buffer from one position on, and how they ended."""

    @property
    def ending(self) -> Ending:
        """How the run ended."""

    @property
    def end(self) -> int:
        """The position after the last frame."""

    @property
    def left(self) -> bytes:
        """The state that the last frame passes to the next one; empty if frames are independent."""

    def __len__(self) -> int: ...

    def position(self, frame: int) -> int:
        """Return where a frame starts."""

    def base_offset(self, frame: int) -> int:
        """Return the first offset a frame takes."""

    def next_offset(self, frame: int) -> int:
        """Return the offset after the last one a frame takes."""

    def max_timestamp(self, frame: int) -> int | None:
        """Return the largest timestamp in a frame, None if it holds no records."""

    def record_count(self, frame: int) -> int:
        """Return the number of data records in a frame: the rows that `columns` returns for it."""

    def stamp(self, frame: int) -> ProducerStamp | None:
        """Return the producer of a frame, None if it has none or is a marker."""

    def marker(self, frame: int) -> Marker | None:
        """Return the marker in a frame that ends a transaction, None for every other frame.

        Raises as `records` does.
        """

    def find(self, offset: int) -> int:
        """Return the first frame that reaches beyond *offset*; the number of frames if none does."""

    def last_within(self, position_max: int) -> int:
        """Return the last frame that ends at or before *position_max*; -1 if none does."""

    def error(self) -> FrameError:
        """Return the fault after the last frame; only if the run did not end at a frame's end."""

    def records(self, frame: int) -> list[Record]:
        """Decode the data records of a frame.

        Raises:
            FrameError: If it contradicts itself although its checksum is correct.
        """

    def columns(self, first: int, stop: int, want: Want) -> ColumnBuffers:
        """Decode the data records of frames [first, stop) to columns; raises as `records` does."""

    def batches(self, first: int, stop: int) -> Sequence[Buffer]:
        """Return the records of frames [first, stop) as consecutive record batches.

        Offsets and timestamps are kept. Raises as `records` does.
        """

    def keep_before(self, frame: int, end_offset: int) -> bytearray | None:
        """Return a frame without the records from *end_offset* on; None if none is left."""

    def without(self, frame: int, dropped: Buffer, first: int) -> Buffer:
        """Return a frame without the data records whose byte in *dropped* is not 0.

        Its i-th record has byte ``first + i``. The offsets and the producer of the frame stay, even if no
        record is left. It never grows: a frame that would grow, or cannot be empty, is returned unchanged.
        Raises as `records` does.
        """


class StreamedFrame(Protocol):
    """A frame of one record whose value is streamed in chunks."""

    @property
    def size(self) -> int:
        """The size of the whole frame."""

    @property
    def head(self) -> bytearray:
        """The bytes before the value; complete only after `finish`."""

    @property
    def next_offset(self) -> int:
        """The offset after the record."""

    @property
    def max_timestamp(self) -> int:
        """The record's timestamp."""

    @property
    def checksum(self) -> int:
        """The checksum for the sidecar, after `finish`; 0 without a sidecar."""

    def update(self, chunk: Buffer) -> None:
        """Add the next bytes of the value to the checksum."""

    def finish(self) -> tuple[bytearray, bytes]:
        """Return the bytes before and after the value."""

    def left(self, frame: Iterable[Buffer]) -> bytes:
        """Return the state that the frame passes to the next one.

        *frame* returns all of its bytes again, in pieces; only a format that needs them calls it.
        """


class Format(Protocol):
    """The interface of a record format."""

    @property
    def name(self) -> str:
        """The value of ``cordwood.format``."""

    @property
    def header_size(self) -> int:
        """The number of bytes at the start of a frame that contain its size; 0 if only the sidecar has it."""

    @property
    def record_per_frame(self) -> bool:
        """Whether a frame is one record. Otherwise it is a batch as clients send and receive it."""

    @property
    def holds(self) -> Holds:
        """The parts that a record may have."""

    @property
    def sidecar(self) -> Sidecar | None:
        """The sidecar that is needed to find or check frames, if there is one."""

    @property
    def chained(self) -> bool:
        """Whether a frame depends on the state that the previous one `left`."""

    @property
    def store_bytes_max(self) -> int | None:
        """The largest size of a store, None if the format has no limit."""

    def left_by(self, frame: Buffer) -> bytes:
        """Return the state that a complete frame passes to the next one; empty if frames are independent."""

    def for_partition(self, partition: int, tenant: int | None = 0) -> Format:
        """Return the format for the frames of one partition, which may contain its number and tenant.

        With None frames of any tenant are read, and none can be encoded.
        """

    def frame_size(self, header: Buffer) -> int | None:
        """Return the size of the frame with these first ``header_size`` bytes, None if they are invalid."""

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
    ) -> FrameTable:
        """Find the complete, valid frames from *start* on.

        Valid: well formed, no larger than *size_max*, at or after *next_offset* (with *dense*, exactly there)
        and in order, with the leader epoch that *epochs*, (start offset, epoch) pairs in order, has for its
        offset (None: any), with a correct checksum in the frame or in the sidecar, and consistent with the
        frame before it. The checksum of frames that end at or before *checked_before* was compared earlier
        and is skipped.
        """

    def candidates(self, buffer: Buffer) -> Iterator[int]:
        """Yield the positions where a frame could start, by a cheap test."""

    def encode(
        self,
        rows: Iterable[Row],
        slot: FrameSlot,
        now_ms: int,
        codec: CompressionChoice | None = None,
    ) -> Encoded:
        """Encode rows as one frame, or as one each.

        A row without a timestamp gets *now_ms*. *codec* compresses if a frame is a batch.

        Raises:
            RecordRefused: If the format cannot store a part of a record; names the part.
            FrameTooLarge: If a frame would exceed the size limit of *slot*.
        """

    def receive(self, data: memoryview, terms: BatchTerms) -> ReceivedFrame:
        """Check the one Kafka record batch in *data*, which a client encoded, completely.

        The result satisfies *terms*: in *data* itself if possible, else in a new buffer.

        Raises:
            FrameTooLarge: If it or one of its records exceeds the size limit of *terms*.
            FrameError: The subclass says what is wrong.
            RecordRefused: If it is sound, but clients must not send this kind.
            RecordsRejected: If *terms* or the format do not allow some of its records.
        """

    def times(self, frame: ReceivedFrame) -> Sequence[int]:
        """Return the timestamps of the records of a received batch, in milliseconds."""

    def with_times(self, frame: ReceivedFrame, timestamps: Sequence[int]) -> ReceivedFrame:
        """Return a received batch with other timestamps, one for each record. Its producer stays.

        A batch that is stored unchanged is encoded again, with the compression that it has.
        """

    def place(self, frame: ReceivedFrame, slot: FrameSlot) -> Encoded:
        """Assign offsets and epoch to a received batch, in place if it is stored unchanged.

        Raises as `encode` does.
        """

    def encode_marker(self, marker: Marker, slot: FrameSlot, now_ms: int) -> Encoded:
        """Encode the end of a transaction as a frame.

        Raises:
            TransactionsUnsupported: If the format has no transactions.
        """

    def stream(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        value_size: int,
        slot: FrameSlot,
        timestamp: int,
    ) -> StreamedFrame:
        """Lay out a frame of one record around a value of *value_size* bytes that is not in memory.

        Raises as `encode` does.
        """
