"""The batches in the answer to a fetch: cut apart and checked, because the source may be wrong. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from cordwood.errors import CordwoodError, FrameError, InvalidBatch, RecordRefused, UnsupportedFrame
from cordwood.formats import BatchHeader, batch
from cordwood.interchange import GAP_MAX, empty_frames
from cordwood.kernels import HEADER_SIZE, INT32_MAX, LENGTH_OVERHEAD, Buffer, Want

#: Offsets and producer ids above are nobody's: each would leave no room for those that follow.
NUMBER_MAX = 1 << 62
_LENGTH = struct.Struct(">qi")
_MAGIC_AT = 16
_OLD_FORMATS = (0, 1)


class SourceBatch(NamedTuple):
    """One batch of the source, checked, in a buffer of its own."""

    header: BatchHeader
    data: bytearray

    @property
    def records(self) -> int:
        """The number of data records."""
        return 0 if self.header.is_control else self.header.record_count


class CutAnswer(NamedTuple):
    """The sound batches of an answer, in order.

    ``missing_bytes`` is the size of the one after them if only its start came, ``fault`` what is wrong there.
    """

    batches: list[SourceBatch]
    missing_bytes: int
    fault: CordwoodError | None


def cut_batches(data: Buffer, position: int, size_max: int) -> CutAnswer:
    """Return the sound batches in *data* that reach beyond the offset *position*, up to the first fault.

    The first may begin before it. A batch has *size_max* bytes at most. A fault is a RecordRefused if a batch
    is sound as far as is known, and cannot be stored here, or a FrameError if it is damaged or contradicts
    itself, or the one before it.
    """
    whole, at, found = memoryview(data), 0, list[SourceBatch]()
    while len(whole) - at > _MAGIC_AT:
        try:
            header = _header_at(whole, at, size_max)
            if header is None:
                length = _LENGTH.unpack_from(whole, at)[1]
                return CutAnswer(found, length + LENGTH_OVERHEAD, None)
            one = SourceBatch(header, bytearray(whole[at : at + header.size]))
            at += header.size
            if not found and header.next_offset <= position:
                # Some brokers begin their answer with batches from before the offset.
                continue
            if found and header.base_offset < found[-1].header.next_offset:
                expected = f"{found[-1].header.next_offset} or more"
                raise InvalidBatch(
                    position=0, expected=expected, found=header.base_offset, what="base offset"
                )
            _check(header, one.data)
        except (RecordRefused, FrameError) as fault:
            return CutAnswer(found, 0, fault)
        found.append(one)
    return CutAnswer(found, HEADER_SIZE if at < len(whole) else 0, None)


def _header_at(whole: memoryview, at: int, size_max: int) -> BatchHeader | None:
    """Return the header of the batch at *at*, None if the batch is not whole. Raises as is said above."""
    base, length = _LENGTH.unpack_from(whole, at)
    size, magic = length + LENGTH_OVERHEAD, whole[at + _MAGIC_AT]
    if magic in _OLD_FORMATS:
        raise RecordRefused(
            f"the batch at offset {base} has message format {magic} of Kafka before 0.11, which is not "
            "stored here: consume that topic and produce it again"
        )
    if magic == batch.MAGIC and size > size_max:
        raise RecordRefused(
            f"the batch at offset {base} has {size} bytes, and the topic takes {size_max} here: "
            f"cordwood topic alter with --config max.message.bytes={size}, then mirror again"
        )
    if magic == batch.MAGIC and size >= HEADER_SIZE and len(whole) - at < size:
        return None
    return batch.read_header(whole[at : at + max(size, HEADER_SIZE)], size_max=INT32_MAX)


def _check(header: BatchHeader, data: bytearray) -> None:
    """Check one batch: its checksum, its numbers and every record in it."""
    batch.check_crc(data, header)
    if header.attributes & ~batch.KNOWN_ATTRIBUTES:
        raise UnsupportedFrame(
            position=0, expected="bits 0 to 6", found=f"{header.attributes & 0xFFFF:#06x}", what="attributes"
        )
    for what, number in (
        ("base offset", header.base_offset),
        ("last offset", header.next_offset),
        ("producer id", header.producer_id),
    ):
        if not (batch.NO_PRODUCER_ID if what == "producer id" else 0) <= number < NUMBER_MAX:
            raise FrameError(position=0, expected=f"0 to {NUMBER_MAX - 1}", found=number, what=what)
    if header.producer_id == batch.NO_PRODUCER_ID and (header.is_transactional or header.is_control):
        raise FrameError(position=0, expected="a producer", found="none", what="batch of a transaction")
    if header.is_control:
        batch.decode_records(data, header)
        return
    batch.decode_batch_columns(data, header, Want(0))


def gap_batches(start: int, stop: int) -> Iterator[bytearray]:
    """Yield batches without records that take the offsets [start, stop), which the source has nothing for.

    Raises:
        RecordRefused: If that is more than any log lacks.
    """
    if stop - start > GAP_MAX:
        raise RecordRefused(f"{stop - start} offsets are missing before {stop}")
    for frame in empty_frames(start, stop):
        yield frame.data


def is_gap(header: BatchHeader) -> bool:
    """Return whether a batch is one of `gap_batches`, or says as little."""
    return not header.record_count and header.producer_id == batch.NO_PRODUCER_ID
