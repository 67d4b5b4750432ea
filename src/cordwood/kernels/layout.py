"""The inputs and outputs of kernels: the columns of a header table, the buffers of decoded columns.

Kernels use flat buffers, never an object per record, and need neither numpy nor pyarrow: an int64 buffer is
read with ``memoryview(buffer).cast("q")``, by numpy or by Arrow, without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

from cordwood.errors import InvalidBatch

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
#: The bytes of a batch that its length field does not count: base offset and the field itself.
LENGTH_OVERHEAD = 12
#: The smallest record: seven fields of one byte each. Limits every count before memory is allocated.
RECORD_SIZE_MIN = 7
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
INT32_MAX = (1 << 31) - 1

#: Bytes of a record in the list that a leaf commits to: flags, the hash of its key, the hash of the rest.
ITEM_SIZE = 65
#: The flags of an item.
NO_KEY, NO_VALUE = 1, 2
#: Bytes of the salt in the hashes of keys.
SALT_SIZE = 32

#: The header of a batch, a field each: docs/formats/batch.md has the table.
HEADER = struct.Struct(
    ">"
    "q"  # base offset
    "i"  # batch length: bytes after this field
    "i"  # partition leader epoch
    "b"  # magic, 2
    "I"  # CRC-32C of everything after this field
    "h"  # attributes
    "i"  # last offset delta
    "q"  # base timestamp
    "q"  # max timestamp
    "q"  # producer id
    "h"  # producer epoch
    "i"  # base sequence
    "i"  # record count
)
assert HEADER.size == HEADER_SIZE


class HeaderColumn(IntEnum):
    """The int64 columns of a header table row."""

    POSITION = 0
    SIZE = 1
    BASE_OFFSET = 2
    LEADER_EPOCH = 3
    CRC = 4
    ATTRIBUTES = 5
    LAST_OFFSET_DELTA = 6
    BASE_TIMESTAMP = 7
    MAX_TIMESTAMP = 8
    PRODUCER_ID = 9
    PRODUCER_EPOCH = 10
    BASE_SEQUENCE = 11
    COUNT = 12


#: int64 values in a header table row.
HEADER_COLUMNS = len(HeaderColumn)


class Stop(IntEnum):
    """The reason why a header scan stopped."""

    END = 0
    SHORT = 1
    ZEROS = 2
    BAD_MAGIC = 3
    BAD_LENGTH = 4
    TOO_LARGE = 5
    BAD_OFFSET = 6
    BAD_EPOCH = 7
    BAD_COUNT = 8


class Want(IntFlag):
    """The requested columns of a decode; other columns are checked but not copied."""

    OFFSET = 1
    TIMESTAMP = 2
    TIMESTAMP_TYPE = 4
    KEY = 8
    VALUE = 16
    HEADERS = 32
    ALL = 63


class BinaryBuffers(NamedTuple):
    """A column of byte strings in Arrow's layout: int32 offsets into one data buffer.

    ``validity`` is a bitmap, least significant bit first, or None if no value is null.
    """

    validity: Buffer | None
    offsets: Buffer
    data: Buffer
    nulls: int


class HeaderBuffers(NamedTuple):
    """A column of header lists: int32 list offsets over a column of names and one of values."""

    offsets: Buffer
    names: BinaryBuffers
    values: BinaryBuffers


class ColumnBuffers(NamedTuple):
    """Decoded records, one buffer per column; a column that was not requested is None.

    ``offset`` and ``timestamp`` (milliseconds) are int64, ``timestamp_type`` is int32.
    """

    rows: int
    offset: Buffer | None
    timestamp: Buffer | None
    timestamp_type: Buffer | None
    key: BinaryBuffers | None
    value: BinaryBuffers | None
    headers: HeaderBuffers | None


class RecordField(IntEnum):
    """The part of a record that has a fault."""

    COUNT = 0
    LENGTH = 1
    ATTRIBUTES = 2
    TIMESTAMP_DELTA = 3
    OFFSET_DELTA = 4
    KEY = 5
    VALUE = 6
    HEADER_COUNT = 7
    HEADER_NAME = 8
    HEADER_VALUE = 9
    RECORD_END = 10
    RECORDS_END = 11


_FIELD_TEXT: Sequence[str] = (
    "record count",
    "record length",
    "record attributes",
    "timestamp delta",
    "offset delta",
    "key length",
    "value length",
    "header count",
    "header name length",
    "header value length",
    "end of record",
    "end of records",
)


class FieldFault(IntEnum):
    """The fault of a field. Both kinds of kernels report the same faults at the same positions."""

    CUT_OFF = 1
    VARINT_TOO_LONG = 2
    OUT_OF_RANGE = 3
    NOT_UTF8 = 4


def invalid_records(
    finding: int, field: int, position: int, low: int, high: int, found: int, compressed_at: int
) -> InvalidBatch:
    """Return the error for a fault that a kernel found in the records of a batch.

    *position* counts from the start of the buffer. The buffer of decompressed records is not in any file, so
    the error has the position of the batch, *compressed_at*, and its text has the position of the record.
    """
    what = _FIELD_TEXT[field]
    if compressed_at >= 0:
        what = f"{what} at byte {position} of the decompressed records"
        position = compressed_at
    expected, seen = f"{low} to {high}" if low != high else f"{low}", str(found)
    if finding == FieldFault.CUT_OFF:
        expected, seen = "a whole field", f"{found} bytes"
    elif finding == FieldFault.VARINT_TOO_LONG:
        expected, seen = f"a varint of at most {high} bits", "a longer one"
    elif finding == FieldFault.NOT_UTF8:
        what, expected, seen = what.removesuffix(" length"), "UTF-8", "other bytes"
    return InvalidBatch(position=position, expected=expected, found=seen, what=what)
