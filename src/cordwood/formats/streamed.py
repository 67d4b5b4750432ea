"""A batch of one record whose value is not in memory: the bytes around the value, and the checksum."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import google_crc32c

from cordwood import kernels
from cordwood.errors import FrameTooLarge
from cordwood.formats.batch import (
    CRC_START,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from cordwood.formats.format import FrameSlot
from cordwood.kernels import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, Buffer
from cordwood.records import Header

_CRC = struct.Struct(">I")
_CRC_AT = 17


class StreamedBatch:
    """The bytes before and after a value of known size; `update` gets the value's bytes in order."""

    #: No sidecar has the checksum: it is in the head.
    checksum = 0

    def __init__(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        value_size: int,
        slot: FrameSlot,
        timestamp: int,
    ) -> None:
        """Lay out the batch.

        Raises:
            RecordRefused: If key or headers cannot be stored.
            FrameTooLarge: If the batch would exceed the size limit of *slot*.
        """
        # The record with an empty value has all bytes except the two lengths, whose positions are known.
        empty = bytes(kernels.encode_rows([(key, b"", tuple(headers))], timestamp, 0)[0])
        body = empty[_varint_end(empty) :]
        value_at = 3 + _varint_end(body[3:]) + len(key or b"")
        before = body[:value_at] + _varint(value_size)
        self.tail = body[value_at + 1 :]
        length = len(before) + value_size + len(self.tail)
        prefix = _varint(length) + before
        self.size = HEADER_SIZE + len(prefix) + value_size + len(self.tail)
        if self.size > slot.size_max:
            raise FrameTooLarge(
                position=0, expected=f"at most {slot.size_max} bytes", found=self.size, what="batch"
            )
        self.next_offset = slot.base_offset + 1
        self.max_timestamp = timestamp if slot.append_timestamp is None else slot.append_timestamp
        self.head = bytearray(HEADER_SIZE) + prefix
        HEADER.pack_into(
            self.head,
            0,
            slot.base_offset,
            self.size - LENGTH_OVERHEAD,
            slot.leader_epoch,
            MAGIC,
            0,
            0 if slot.append_timestamp is None else LOG_APPEND_TIME,
            0,
            timestamp,
            self.max_timestamp,
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            1,
        )
        self._crc = google_crc32c.value(bytes(self.head[CRC_START:]))

    def update(self, chunk: Buffer) -> None:
        """Add the next bytes of the value to the checksum."""
        self._crc = google_crc32c.extend(self._crc, kernels.readonly(chunk, 0, len(chunk)))

    def finish(self) -> tuple[bytearray, bytes]:
        """Return the bytes before the value, including the checksum, and the bytes after it."""
        _CRC.pack_into(self.head, _CRC_AT, google_crc32c.extend(self._crc, self.tail))
        return self.head, self.tail

    def left(self, frame: Iterable[Buffer]) -> bytes:
        """Return no state: batches are independent."""
        return b""


def _varint(value: int) -> bytes:
    raw, out = value << 1, bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _varint_end(data: bytes) -> int:
    """Return the size of the varint that *data* starts with."""
    return next(i for i, byte in enumerate(data) if byte < 0x80) + 1
