"""The hash that represents a topic's name in a shared log: 128 bits of BLAKE3, salted with the tenant's id.

The same name hashes differently for two tenants.
"""

from __future__ import annotations

import struct

from blake3 import blake3


def topic_hash_bytes(org_id: int, name: str) -> bytes:
    """Return the hash of a topic's name for a tenant, 16 bytes."""
    return blake3(struct.pack("<Q", org_id) + name.encode()).digest(16)


def topic_hash(org_id: int, name: str) -> int:
    """Return the same as a number of 128 bits, little-endian where it is stored."""
    return int.from_bytes(topic_hash_bytes(org_id, name), "little")
