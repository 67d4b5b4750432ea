"""The order of members, topics and partitions in Kafka's coordinator: that of Java's hash tables.

Assignors give a partition to the first member that may have it, so their results depend on this order. With
the same order they are the same as Kafka's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

K = TypeVar("K")
_SLOTS_MIN = 16
_MASK = 0xFFFFFFFF
_LONGS = struct.Struct(">qq")


def hash_of_text(text: str) -> int:
    """Return Java's hash of *text* as an unsigned number of 32 bits."""
    found = 0
    if text.isascii():
        for unit in text.encode():
            found = (31 * found + unit) & _MASK
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            found = (31 * found + (units[at] << 8 | units[at + 1])) & _MASK
    return found


def hash_of_id(topic_id: bytes) -> int:
    """Return Kafka's hash of a topic id as an unsigned number of 32 bits."""
    mixed: int = int.from_bytes(topic_id[:8], signed=True) ^ int.from_bytes(topic_id[8:], signed=True)
    return ((mixed >> 32) ^ mixed) & _MASK


def hash_of_number(number: int) -> int:
    """Return Java's hash of a number of 32 bits."""
    return number & _MASK


def order_of_text(text: str) -> bytes:
    """Return a key that sorts texts as Java compares them, by their units of 16 bits."""
    return text.encode("utf-16-be", "surrogatepass")


def order_of_id(topic_id: bytes) -> tuple[int, int]:
    """Return a key that sorts topic ids as Kafka compares them, as two signed numbers."""
    upper, lower = _LONGS.unpack(topic_id)
    return upper, lower


def slots_of_grown(count: int) -> int:
    """Return the slots of a table to which *count* keys were added one by one."""
    slots = _SLOTS_MIN
    while count > slots * 3 // 4:
        slots *= 2
    return slots


def slots_of_copied(count: int) -> int:
    """Return the slots of a set that was made of a collection of *count* keys."""
    return max(_SLOTS_MIN, 1 << (int(count / 0.75)).bit_length())


def in_table_order(keys: Collection[K], hash_of: Callable[[K], int], slots: int) -> Sequence[K]:
    """Return *keys* in the order of a table with *slots*; keys of one slot stay in their order."""

    def slot(key: K) -> int:
        found = hash_of(key)
        return (found ^ found >> 16) & (slots - 1)

    return sorted(keys, key=slot)
