"""Markers: control batches of one record that end a transaction in a partition.

docs/formats/batch.md has the bytes of the record.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cordwood.errors import FrameError
from cordwood.formats.batch.decoding import decode_records
from cordwood.formats.batch.encoding import BatchOptions, encode_records
from cordwood.formats.batch.header import CONTROL, TRANSACTIONAL, BatchHeader
from cordwood.kernels import Buffer

_KEY = struct.Struct(
    ">h"  # version
    "h"  # type: 0 abort, 1 commit; others are not about transactions
)
_VALUE = struct.Struct(
    ">h"  # version
    "i"  # coordinator epoch
)
_ABORT, _COMMIT = 0, 1
_VERSION = 0
#: The coordinator epoch of a marker that does not say one.
NO_COORDINATOR_EPOCH = -1


class Marker(NamedTuple):
    """The end of the open transaction of a producer in one partition."""

    producer_id: int
    epoch: int
    committed: bool
    coordinator_epoch: int = 0


def encode_marker(marker: Marker, now_ms: int, options: BatchOptions) -> bytearray:
    """Encode *marker* as a control batch of one record; the offset and leader epoch are in *options*."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.committed else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    stamped = options._replace(
        attributes=options.attributes | TRANSACTIONAL | CONTROL,
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
    )
    return encode_records([(key, value)], now_ms, stamped)


def decode_marker(buffer: Buffer, header: BatchHeader) -> Marker | None:
    """Return the marker in a control batch; None if it is not about a transaction, or has no record left.

    Raises:
        FrameError: If the batch contradicts itself although its checksum is correct.
    """
    if not header.is_control or not header.is_transactional:
        return None
    for record in decode_records(buffer, header):
        key, value = record.key or b"", record.value or b""
        if len(key) < _KEY.size:
            place, expected = header.position, f"{_KEY.size} bytes"
            raise FrameError(position=place, expected=expected, found=len(key), what="key of a marker")
        kind = _KEY.unpack_from(key)[1]
        epoch = _VALUE.unpack_from(value)[1] if len(value) >= _VALUE.size else NO_COORDINATOR_EPOCH
        if kind in (_ABORT, _COMMIT):
            return Marker(header.producer_id, header.producer_epoch, kind == _COMMIT, epoch)
    return None
