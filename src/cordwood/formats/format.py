"""The contract between the engine and a record format.

The engine appends, finds, checks and cuts frames; only a format knows what is in one. A format is pure:
bytes in, bytes or facts out.

There are two kinds. In the native format a frame is a batch of records, as Kafka's clients send and take
them. In the others a frame is one record (``record_per_frame``), and what clients send and take is decoded
and encoded again on the way; `record_per_frame.RecordPerFrame` keeps most of this contract for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from cordwood.errors import FrameError
from cordwood.formats.sidecar import Sidecar
from cordwood.kernels import Buffer, ColumnBuffers, Want
from cordwood.kernels.layout import INT32_MAX
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
    """What a record may have beside a value. A record with anything else is refused by name.

    ``stamps`` says that frames keep which producer made them: where they do not, an idempotent producer is
    known only to the process that took its records, and to the snapshot that one left.
    """

    keys: bool
    headers: bool
    null_values: bool
    stamps: bool = False


class ProducerStamp(NamedTuple):
    """Which producer made a frame, and which of its records it holds.

    ``first_sequence`` is that of the first record; numbers go on modulo 2**31 as in Kafka.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int


class ReceivedFrame(NamedTuple):
    """A batch that a client encoded, checked, in a buffer of its own that may be changed.

    ``records`` are those in it, where the format does not store the batch as it is.
    """

    data: memoryview
    record_count: int
    max_timestamp: int
    stamp: ProducerStamp | None
    records: Sequence[Record] = ()


class Encoded(NamedTuple):
    """Frames that have their offsets, to be appended together.

    Where each holds one record, ``sizes`` and ``timestamps`` (milliseconds) are theirs, in order, and
    ``checksums`` those that the sidecar keeps; else ``data`` is one frame and they are empty. ``left`` is
    what the last frame leaves for the one after it.
    """

    data: Buffer
    next_offset: int
    max_timestamp: int
    sizes: Sequence[int] = ()
    timestamps: Sequence[int] = ()
    checksums: Sequence[int] = ()
    left: bytes = b""


class Beside(NamedTuple):
    """What a scan has to know beside the bytes it looks at.

    ``position`` is where the first of them stands in the store; ``sidecar`` has the entries from that of the
    next offset on; ``before`` is what the frame before the first one left for it, None if that is not known.
    """

    position: int = 0
    sidecar: Buffer = b""
    before: bytes | None = None


NOTHING_BESIDE = Beside()


class FrameTable(Protocol):
    """The whole, valid frames found in a buffer from one position on, and what came after them."""

    @property
    def ending(self) -> Ending:
        """How the run ended."""

    @property
    def end(self) -> int:
        """The position after the last frame."""

    @property
    def left(self) -> bytes:
        """What the last frame leaves for the one after it; nothing where frames stand alone."""

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
        """Return how many data records are in a frame: as many as `columns` gives of it."""

    def stamp(self, frame: int) -> ProducerStamp | None:
        """Return which producer made a frame, None if it does not say."""

    def find(self, offset: int) -> int:
        """Return the first frame that reaches beyond *offset*; the number of frames if none does."""

    def last_within(self, position_max: int) -> int:
        """Return the last frame that ends at or before *position_max*; -1 if none does."""

    def error(self) -> FrameError:
        """Return what is wrong after the last frame; only where the run did not end at a frame's end."""

    def records(self, frame: int) -> list[Record]:
        """Decode the data records of a frame.

        Raises:
            FrameError: If it contradicts itself though its checksum is right.
        """

    def columns(self, first: int, stop: int, want: Want) -> ColumnBuffers:
        """Decode the data records of frames [first, stop) to columns; raises as `records` does."""

    def batches(self, first: int, stop: int) -> Sequence[Buffer]:
        """Return the records of frames [first, stop) as Kafka's record batches, which follow each other.

        Offsets and timestamps are kept. Raises as `records` does.
        """

    def keep_before(self, frame: int, end_offset: int) -> bytearray | None:
        """Return a frame without the records from *end_offset* on; None if none is left."""

    def without(self, frame: int, dropped: Buffer, first: int) -> Buffer:
        """Return a frame without the data records whose byte in *dropped* is not 0.

        Its i-th record has byte ``first + i``. The offsets that the frame takes stay, as does what it says
        of its producer, even where no record is left. It never grows: a frame that would, or cannot be
        without a record, is as it was. Raises as `records` does.
        """


class StreamedFrame(Protocol):
    """A frame of one record whose value goes by in chunks."""

    @property
    def size(self) -> int:
        """The size of the whole frame."""

    @property
    def head(self) -> bytearray:
        """What stands before the value; complete only after `finish`."""

    @property
    def next_offset(self) -> int:
        """The offset after the record."""

    @property
    def max_timestamp(self) -> int:
        """The record's timestamp."""

    @property
    def checksum(self) -> int:
        """What the sidecar keeps of the frame, after `finish`; 0 where there is none."""

    def update(self, chunk: Buffer) -> None:
        """Take the next bytes of the value into the checksum."""

    def finish(self) -> tuple[bytearray, bytes]:
        """Return what stands before and after the value."""

    def left(self, frame: Iterable[Buffer]) -> bytes:
        """Return what the frame leaves for the next one.

        *frame* gives all of its bytes again, in pieces, and is asked only by a format that needs them.
        """


class Format(Protocol):
    """What the engine needs of a record format."""

    @property
    def name(self) -> str:
        """The value of ``cordwood.format``."""

    @property
    def header_size(self) -> int:
        """How many bytes of a frame tell its size; 0 where only the sidecar does."""

    @property
    def record_per_frame(self) -> bool:
        """Whether a frame is one record. Else it is a batch as clients send and take it."""

    @property
    def holds(self) -> Holds:
        """What a record may have."""

    @property
    def sidecar(self) -> Sidecar | None:
        """The file beside the store that frames need to be found or checked, if there is one."""

    @property
    def chained(self) -> bool:
        """Whether a frame depends on the one before it, by what that one `left`."""

    @property
    def store_bytes_max(self) -> int | None:
        """How large a store may become, None without a limit of the format's own."""

    def for_partition(self, partition: int) -> Format:
        """Return the format for the frames of one partition, which may have its number in them."""

    def frame_size(self, header: Buffer) -> int | None:
        """Return the size of the frame whose first ``header_size`` bytes these are, None if they are none."""

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
        """Find the whole, valid frames from *start* on.

        Valid: well formed, no larger than *size_max*, at or after *next_offset* (where *dense*, exactly
        there) and in order, of the leader epoch that *epochs*, (start offset, epoch) pairs in order, has
        for its offset (None: of any), with the checksum of its bytes, as the sidecar has it, and following
        the frame before it. Frames that end at or before *checked_before* had their checksum compared
        earlier and are spared it.
        """

    def candidates(self, buffer: Buffer) -> Iterator[int]:
        """Yield the positions where a frame could start, judged by what is cheap to see."""

    def encode(
        self,
        rows: Iterable[Row],
        *,
        base_offset: int,
        leader_epoch: int,
        now_ms: int,
        log_append_time: bool,
        size_max: int,
        before: bytes = b"",
    ) -> Encoded:
        """Encode rows as one frame, or as one each.

        A row without a timestamp gets *now_ms*; with *log_append_time*, all do. *before* is what the frame
        before the first one left; nothing before the very first.

        Raises:
            RecordRefused: If the format cannot hold one of them, by name.
            FrameTooLarge: If a frame would exceed *size_max* bytes.
        """

    def receive(self, data: memoryview, *, size_max: int, keyed: bool = False) -> ReceivedFrame:
        """Check the one Kafka record batch in *data*, which a client encoded, for all that it says of itself.

        With *keyed* every record must have a key.

        Raises:
            FrameTooLarge: If it, or one of its records, exceeds *size_max* bytes.
            FrameError: Of the kind that says what is wrong.
            RecordRefused: If it is sound, but of a kind that a client must not send, or that the format
                cannot hold, by name.
        """

    def place(
        self,
        frame: ReceivedFrame,
        *,
        base_offset: int,
        leader_epoch: int,
        append_timestamp: int | None,
        size_max: int = INT32_MAX,
        before: bytes = b"",
    ) -> Encoded:
        """Give a received batch its offsets and epoch, in place where it is stored as it is.

        With *append_timestamp* its records count as appended then. Raises as `encode` does.
        """

    def stream(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        value_size: int,
        *,
        timestamp: int,
        append_timestamp: int | None,
        base_offset: int,
        leader_epoch: int,
        size_max: int,
        before: bytes = b"",
    ) -> StreamedFrame:
        """Lay out a frame of one record around a value of *value_size* bytes that is not in memory.

        With *append_timestamp* the record counts as appended then. Raises as `encode` does.
        """
