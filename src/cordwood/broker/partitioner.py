"""Which partition a key goes to: Kafka's default partitioner, so that all clients agree."""

from __future__ import annotations

from cordwood.kernels import murmur2


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of *key* among *partitions*, as Kafka's default partitioner does."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
