"""Collect where transactions begin and end in a segment, while its frames are read.

Written against docs/formats/batch.md, independent of the code that writes batches.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.verify.frame import HEADER, FileWindows, PlacedHeader

TRANSACTIONAL, CONTROL = 0x10, 0x20
_ABORT, _COMMIT = 0, 1
_TYPE = struct.Struct(">hh")
_RECORD_BYTES = 64


class TransactionEvent(NamedTuple):
    """The first frame of a producer's transaction in a segment, or the marker that ends it.

    ``committed`` is None for a frame with records.
    """

    producer_id: int
    offset: int
    committed: bool | None


@dataclass(slots=True)
class SegmentTransactions:
    """The events of one segment, in the order of their offsets."""

    events: list[TransactionEvent] = field(default_factory=list)
    _begun: set[int] = field(default_factory=set)

    def add(self, windows: FileWindows, frame: PlacedHeader) -> None:
        """Add a sound frame."""
        if not frame.attributes & TRANSACTIONAL:
            return
        producer = frame.producer_id
        if not frame.attributes & CONTROL:
            if producer not in self._begun:
                self._begun.add(producer)
                self.events.append(TransactionEvent(producer, frame.base_offset, None))
            return
        kind = marker_type(windows, frame)
        if kind in (_ABORT, _COMMIT):
            self._begun.discard(producer)
            self.events.append(TransactionEvent(producer, frame.base_offset, kind == _COMMIT))


def marker_type(windows: FileWindows, frame: PlacedHeader) -> int | None:
    """Return the type in the key of the one record of a control batch, None if it has none."""
    if frame.record_count != 1:
        return None
    index = windows.load(frame.position, frame.size)
    data = windows.data[index + HEADER.size : index + min(frame.size, HEADER.size + _RECORD_BYTES)]
    try:
        # Length, attributes, timestamp delta, offset delta, length of the key.
        at = _after_varint(data, 0) + 1
        at = _after_varint(data, _after_varint(data, at))
        key_size, at = data[at] >> 1, at + 1
        return int(_TYPE.unpack_from(data, at)[1]) if key_size >= _TYPE.size else None
    except (IndexError, struct.error):
        return None


def _after_varint(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
