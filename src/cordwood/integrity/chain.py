"""The hash chain: one running value that depends on every leaf, and on their order."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

#: The head of a chain without leaves.
EMPTY_HEAD = bytes(32)


def chained(head: bytes, leaves: Iterable[bytes]) -> bytes:
    """Return the new head after adding *leaves*, hashes of 32 bytes each, to a chain with *head*."""
    for leaf in leaves:
        head = sha256(head + leaf).digest()
    return head
