"""The partition of a key, by Kafka's default partitioner."""

from __future__ import annotations

from array import array

from cordwood.kernels.layout import (
    BinaryBuffers,
    Buffer,
)
from cordwood.kernels.reference.columns import ColumnSource

_MURMUR_SEED = 0x9747B28C
_MURMUR_FACTOR = 0x5BD1E995
_MASK32 = 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """Return the 32-bit MurmurHash2 of *data* under Kafka's seed, unsigned."""
    key = bytes(data)
    size = len(key)
    h = _MURMUR_SEED ^ size
    whole = size & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(key[start : start + 4], "little") * _MURMUR_FACTOR & _MASK32
        k = (k ^ (k >> 24)) * _MURMUR_FACTOR & _MASK32
        h = (h * _MURMUR_FACTOR & _MASK32) ^ k
    if whole < size:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _MURMUR_FACTOR & _MASK32
    h = (h ^ (h >> 13)) * _MURMUR_FACTOR & _MASK32
    return h ^ (h >> 15)


def partition_keys(column: BinaryBuffers, rows: int, partitions: int, keyless: int) -> bytearray:
    """Return the partition of each key of a column as int32, by Kafka's default partitioner.

    A null key gets *keyless*.
    """
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    keys = ColumnSource(column)
    if len(keys) < rows:
        raise ValueError(f"a column is shorter than {rows} rows")
    found = array("i")
    for i in range(rows):
        key = keys.get(i, i)
        found.append(keyless if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions)
    return bytearray(found.tobytes())
