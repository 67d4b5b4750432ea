"""Frames that go from one log to another byte for byte, where source and target have the same format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from cordwood.errors import FrameTooLarge, RecordRefused
from cordwood.formats import Beside, Encoded, Format

#: The approximate number of bytes that are appended together.
CHUNK_BYTES = 1 << 20


class NewSegment(NamedTuple):
    """The beginning of a segment whose first record has, or will have, the offset ``base``."""

    base: int


class StoredFrame(NamedTuple):
    """A frame of one record as it is stored; ``timestamp`` is in milliseconds."""

    offset: int
    timestamp: int
    data: bytes


StoredItem: TypeAlias = NewSegment | StoredFrame


class KeptPartition(NamedTuple):
    """A partition of a source. ``items`` reads it from the start, each time it is called.

    ``before`` is the state that the missing frame before the first one left; see `formats.FrameSlot`.
    """

    items: Callable[[], Iterator[StoredItem]]
    before: bytes = b""


def chunks(
    format_: Format, partition: KeptPartition, size_max: int, stored_max: int
) -> Iterator[NewSegment | Encoded]:
    """Yield the frames of a partition for appending, checked as the engine checks them when it reads.

    Frames have at most *size_max* bytes; *stored_max* is the limit of readers.

    Raises:
        RecordRefused: If offsets have a gap, which such a topic cannot have.
        FrameTooLarge: If a frame is too large; names its record.
        FrameError: If a frame is not one of this partition.
    """
    held: list[StoredFrame] = []
    size, next_offset, before = 0, None, partition.before
    for item in partition.items():
        if held and (isinstance(item, NewSegment) or size >= CHUNK_BYTES):
            encoded = _encoded(format_, held, before, stored_max)
            before = encoded.left
            yield encoded
            held, size = [], 0
        if isinstance(item, NewSegment):
            _check_next(format_, next_offset, item.base)
            next_offset = item.base
            yield item
            continue
        _check_next(format_, next_offset, item.offset)
        if len(item.data) > size_max:
            raise FrameTooLarge(
                position=0,
                expected=f"at most {size_max} bytes",
                found=len(item.data),
                what=f"record {item.offset}",
            )
        held.append(item)
        size += len(item.data)
        next_offset = item.offset + 1
    if held:
        yield _encoded(format_, held, before, stored_max)


def _check_next(format_: Format, expected: int | None, found: int) -> None:
    if expected is not None and found != expected:
        raise RecordRefused(
            f"offset {found} follows where {expected} is next, and a topic in the format {format_.name} has "
            "no gaps: leave cordwood.format out, a topic in the native format keeps these offsets"
        )


def _encoded(format_: Format, held: list[StoredFrame], before: bytes, stored_max: int) -> Encoded:
    data = b"".join(frame.data for frame in held)
    sizes = [len(frame.data) for frame in held]
    checksums, entries = list[int](), b""
    if format_.sidecar is not None:
        checksums = [format_.sidecar.checksum(frame.data, 0, len(frame.data)) for frame in held]
        entries = format_.sidecar.pack(0, sizes, checksums)
    first = held[0].offset
    beside = Beside(0, entries, before)
    table = format_.scan(data, next_offset=first, dense=True, epochs=None, size_max=stored_max, beside=beside)
    if len(table) != len(held):
        raise table.error()
    timestamps = [timestamp for i in range(len(held)) if (timestamp := table.max_timestamp(i)) is not None]
    return Encoded(data, first + len(held), max(timestamps), sizes, timestamps, checksums, table.left)
