"""Check appended records against the requirements of their topic, and compress them as it requires."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cordwood.errors import FrameError, RecordsRejected, TimestampsRejected
from cordwood.formats import batch
from cordwood.formats.batch import BatchHeader
from cordwood.formats.compression import Compression, compress, decompress
from cordwood.kernels import HEADER_SIZE, INT64_MAX, INT64_MIN, LENGTH_OVERHEAD, BinaryBuffers, Want

#: The timestamp of a record that has none.
NO_TIMESTAMP = -1
_LENGTH_AT, _ATTRIBUTES_AT = 8, 21
_LENGTH, _ATTRIBUTES = struct.Struct(">i"), struct.Struct(">h")
_KEYLESS = "a record without a key in a topic that is compacted"


class CompressionChoice(NamedTuple):
    """How records are compressed; ``level`` is specific to the compression, None is its default."""

    compression: Compression
    level: int | None = None


class BatchTerms(NamedTuple):
    """The requirements of a topic for a batch.

    ``size_max`` is the largest batch, and the largest record in one, in bytes. With ``keyed`` every record
    has a key. Timestamps lie within ``earliest`` and ``latest`` (milliseconds, both included), unless a
    record has none. ``codec`` is how the batch is stored, None for unchanged. With ``microseconds`` records
    may have a header with their time, if the format stores that. A batch that the broker itself made
    (``from_broker``) may be part of a transaction without a sequence number.
    """

    size_max: int
    keyed: bool = False
    earliest: int = INT64_MIN
    latest: int = INT64_MAX
    codec: CompressionChoice | None = None
    microseconds: bool = False
    from_broker: bool = False


def check_keys(keys: Iterable[object]) -> None:
    """Refuse records without a key.

    Raises:
        RecordsRejected: With the index of each such record.
    """
    _reject({}, [index for index, key in enumerate(keys) if key is None], BatchTerms(0))


def check_times(timestamps: Sequence[int], terms: BatchTerms) -> None:
    """Refuse records with a timestamp that *terms* do not allow.

    Raises:
        TimestampsRejected: With the index of each such record.
    """
    if max(timestamps) > terms.latest or min(timestamps) < terms.earliest:
        _reject(_bad_times(timestamps, terms), (), terms)


def check_allowed(data: memoryview, header: BatchHeader, largest: int, terms: BatchTerms) -> None:
    """Refuse the checked batch *data* if *terms* do not allow one of its records.

    *largest* is the largest timestamp in it. A record with two faults is reported for its key, and the batch
    for its timestamps if any is wrong, as in Kafka.

    Raises:
        RecordsRejected: With the index of each such record, and why.
    """
    if not terms.keyed and largest <= terms.latest and terms.earliest == INT64_MIN:
        return
    columns = batch.decode_batch_columns(data, header, Want.KEY | Want.TIMESTAMP)
    assert columns.key is not None
    assert columns.timestamp is not None
    keyless = _nulls_of(columns.key, columns.rows) if terms.keyed else []
    timestamps = memoryview(columns.timestamp).cast("B").cast("q")
    late = largest > terms.latest or min(timestamps) < terms.earliest
    _reject(_bad_times(timestamps, terms) if late else {}, keyless, terms)


def _nulls_of(column: BinaryBuffers, rows: int) -> list[int]:
    if column.validity is None:
        return []
    bits = memoryview(column.validity).cast("B")
    return [row for row in range(rows) if not bits[row >> 3] >> (row & 7) & 1]


def _bad_times(timestamps: Sequence[int], terms: BatchTerms) -> dict[int, int]:
    return {
        index: timestamp
        for index, timestamp in enumerate(timestamps)
        if timestamp != NO_TIMESTAMP and not terms.earliest <= timestamp <= terms.latest
    }


def _reject(times: dict[int, int], keyless: Sequence[int], terms: BatchTerms) -> None:
    wrong = sorted({*times, *keyless})
    if not wrong:
        return
    without_key = set(keyless)
    within = f"at most {terms.latest}"
    if terms.earliest != INT64_MIN:
        within = f"within [{terms.earliest}, {terms.latest}]"
    reasons = {
        index: _KEYLESS if index in without_key else f"timestamp {times[index]} is not {within}"
        for index in wrong[: RecordsRejected.REASONS_MAX]
    }
    kind = TimestampsRejected if times.keys() - without_key else RecordsRejected
    raise kind(reasons, len(wrong))


def recompressed(data: memoryview, header: BatchHeader, codec: CompressionChoice) -> bytearray:
    """Return the checked batch *data*, compressed with *codec* and otherwise unchanged.

    Raises:
        FrameTooLarge: If its records take more than ``batch.DECOMPRESSED_MAX`` bytes.
    """
    records = decompress(
        header.compression, data[header.position + HEADER_SIZE : header.end], batch.DECOMPRESSED_MAX
    )
    made = bytearray(data[header.position : header.position + HEADER_SIZE])
    made += compress(codec.compression, records, codec.level)
    _LENGTH.pack_into(made, _LENGTH_AT, len(made) - LENGTH_OVERHEAD)
    attributes = header.attributes & ~batch.COMPRESSION_MASK | codec.compression
    _ATTRIBUTES.pack_into(made, _ATTRIBUTES_AT, attributes)
    batch.seal(made)
    return made


def recompressed_if_sound(data: memoryview, codec: CompressionChoice, size_max: int) -> memoryview:
    """Return the batch *data* compressed with *codec*, or *data* itself if it is not a sound batch.

    Its checksum is compared first: the new checksum must not cover bytes that were changed in transit.
    """
    if len(data) > size_max:
        return data
    try:
        header = batch.read_header(data, size_max=size_max)
        batch.check_crc(data, header)
        return data if header.size != len(data) else memoryview(recompressed(data, header, codec))
    except FrameError:
        return data


def compression_in(data: memoryview) -> int:
    """Return the number of the compression that the batch *data* claims, -1 if it is too short for one."""
    if len(data) < HEADER_SIZE:
        return -1
    return int(_ATTRIBUTES.unpack_from(data, _ATTRIBUTES_AT)[0]) & batch.COMPRESSION_MASK
