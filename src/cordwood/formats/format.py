"""The contract between the engine and a record format.

The engine appends, finds, checks and cuts frames; only a format knows what is in one. A format is pure:
bytes in, bytes or facts out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from cordwood.errors import FrameError
from cordwood.kernels import Buffer, ColumnBuffers, Want
from cordwood.records import Header, Record

Row = Sequence[Any]
"""``(key, value[, headers[, timestamp]])``."""


class Ending(Enum):
    """How a run of whole, valid frames ended."""

    END = "the bytes end where a frame does"
    SHORT = "the bytes end inside a frame"
    ZEROS = "zeros follow"
    INVALID = "what follows is not a valid frame"


class ProducerStamp(NamedTuple):
    """Which producer made a frame, and which of its records it holds.

    ``first_sequence`` is that of the first record; numbers go on modulo 2**31 as in Kafka.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int


class ReceivedFrame(NamedTuple):
    """A frame that a client encoded, checked, in a buffer of its own that may be changed."""

    data: memoryview
    record_count: int
    max_timestamp: int
    stamp: ProducerStamp | None


class FrameTable(Protocol):
    """The whole, valid frames found from one position on, and what came after them."""

    @property
    def ending(self) -> Ending:
        """How the run ended."""

    @property
    def end(self) -> int:
        """The position after the last frame."""

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
        """Return how many data records are in a frame: as many as `Format.decode_columns` gives of it."""

    def stamp(self, frame: int) -> ProducerStamp | None:
        """Return which producer made a frame, None if it does not say."""

    def find(self, offset: int) -> int:
        """Return the first frame that reaches beyond *offset*; the number of frames if none does."""

    def last_within(self, position_max: int) -> int:
        """Return the last frame that ends at or before *position_max*; -1 if none does."""

    def error(self) -> FrameError:
        """Return what is wrong after the last frame; only where the run did not end at a frame's end."""


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

    def update(self, chunk: Buffer) -> None:
        """Take the next bytes of the value into the checksum."""

    def finish(self) -> tuple[bytearray, bytes]:
        """Return what stands before and after the value."""


class Format(Protocol):
    """What the engine needs of a record format."""

    @property
    def name(self) -> str:
        """The value of ``cordwood.format``."""

    @property
    def header_size(self) -> int:
        """How many bytes of a frame tell its size."""

    @property
    def place_size(self) -> int:
        """How many bytes of a frame tell how many offsets it takes, and have the first of them."""

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
    ) -> FrameTable:
        """Find the whole, valid frames from *start* on.

        Valid: well formed, no larger than *size_max*, at or after *next_offset* (where *dense*, exactly
        there) and in order, of the leader epoch that *epochs*, (start offset, epoch) pairs in order, has
        for its offset (None: of any), and with the checksum of its bytes. Frames that end at or before
        *checked_before* had their checksum compared earlier and are spared it.
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
    ) -> tuple[bytearray, int, int]:
        """Encode rows as one frame; return it, the offset after its last one, and its largest timestamp.

        A row without a timestamp gets *now_ms*; with *log_append_time*, all do.

        Raises:
            RecordRefused: If the format cannot hold one of them, by name.
            FrameTooLarge: If the frame would exceed *size_max* bytes.
        """

    def receive(self, data: memoryview, *, size_max: int, keyed: bool = False) -> ReceivedFrame:
        """Check the one frame in *data*, which a client encoded, for all that it says of itself.

        With *keyed* every record must have a key.

        Raises:
            FrameTooLarge: If it, or one of its records, exceeds *size_max* bytes.
            FrameError: Of the kind that says what is wrong.
            RecordRefused: If it is sound, but of a kind that a client must not send.
        """

    def place(
        self, frame: ReceivedFrame, *, base_offset: int, leader_epoch: int, append_timestamp: int | None
    ) -> int:
        """Give a received frame its offsets and epoch, in place, and return its largest timestamp.

        With *append_timestamp* its records count as appended then.
        """

    def renumber(self, head: bytearray | memoryview, base_offset: int, leader_epoch: int) -> tuple[int, int]:
        """Give a frame its offsets and epoch, in the first ``place_size`` bytes of it, which *head* has.

        Returns the size of the frame and the offset after it. No checksum changes.

        Raises:
            FrameError: If a frame does not begin like that.
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
    ) -> StreamedFrame:
        """Lay out a frame of one record around a value of *value_size* bytes that is not in memory.

        With *append_timestamp* the record counts as appended then. Raises as `encode` does.
        """

    def decode(self, buffer: Buffer, position: int) -> list[Record]:
        """Decode the data records of the frame at *position*.

        Raises:
            FrameError: If it contradicts itself though its checksum is right.
        """

    def decode_columns(self, frames: Buffer, want: Want) -> ColumnBuffers:
        """Decode the data records of whole frames that were checked before to columns.

        Raises:
            FrameError: If a frame contradicts itself though its checksum is right.
        """

    def keep_before(self, buffer: Buffer, position: int, end_offset: int) -> bytearray | None:
        """Return the frame at *position* without the records from *end_offset* on; None if none is left."""

    def without(self, buffer: Buffer, position: int, dropped: Buffer, first: int) -> bytearray:
        """Return the frame at *position* without the data records whose byte in *dropped* is not 0.

        Its i-th record has byte ``first + i``. The offsets that the frame takes stay, as does what it says
        of its producer, even where no record is left. It never grows: a frame that would is as it was.

        Raises:
            FrameError: If it contradicts itself though its checksum is right.
        """
