"""Kafka's default partitioner, so that all clients map a key to the same partition."""

from __future__ import annotations

from cordwood.kernels import murmur2


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of *key* among *partitions*, by Kafka's default partitioner."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
