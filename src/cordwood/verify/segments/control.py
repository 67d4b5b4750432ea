"""Read the markers in control batches, which end transactions.

Written against docs/formats/batch.md, independent of the code that writes markers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cordwood.errors import FrameError
from cordwood.formats import Compression, decompress
from cordwood.verify.frame import HEADER, FileWindows, PlacedHeader

_KEY = struct.Struct(
    ">h"  # version
    "h"  # type: 0 abort, 1 commit
)
_VALUE = struct.Struct(
    ">h"  # version
    "i"  # coordinator epoch
)
#: The roles of control batches: docs/formats/shared.md.
COMMIT, ABORT, OTHER_CONTROL = 2, 3, 4
_ROLES = {0: ABORT, 1: COMMIT}
_TRANSACTIONAL = 0x10
_CONTROL_BYTES_MAX = 1 << 20
_NO_EPOCH = -1


def read_control(windows: FileWindows, batch: PlacedHeader) -> tuple[int, int]:
    """Return the role of a control batch, and the coordinator epoch of a marker or else the base sequence.

    A batch whose content is wrong has no marker: checking its records reports that.
    """
    if batch.attributes & _TRANSACTIONAL:
        try:
            for key, value in _records(windows, batch):
                role = _ROLES.get(_KEY.unpack_from(key)[1])
                if role is not None:
                    return role, _VALUE.unpack_from(value)[1] if len(value) >= _VALUE.size else _NO_EPOCH
        except (FrameError, IndexError, struct.error):
            pass
    return OTHER_CONTROL, batch.base_sequence


def _records(windows: FileWindows, batch: PlacedHeader) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of each record of a batch, empty for null."""
    if batch.size > _CONTROL_BYTES_MAX:
        return
    index = windows.load(batch.position, batch.size)
    data = bytes(memoryview(windows.data)[index + HEADER.size : index + batch.size])
    compression = batch.attributes & 0x07
    if compression:
        if compression > Compression.ZSTD:
            return
        data = bytes(decompress(Compression(compression), memoryview(data), _CONTROL_BYTES_MAX, 0))
    at = 0
    for _ in range(batch.record_count):
        size, at = _varint(data, at)
        end = at + size
        # Attributes are one byte; timestamp and offset are differences to those of the batch.
        at += 1
        for _ in range(2):
            at = _varint(data, at)[1]
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        yield key, value
        at = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at *at* and the position after it."""
    shift = number = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at
        shift += 7


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes after their size at *at*, and the position after them."""
    size, at = _varint(data, at)
    size = max(size, 0)
    return data[at : at + size], at + size
