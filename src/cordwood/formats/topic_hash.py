"""The hash that stands for a topic's name in a shared log: 128 bits of BLAKE3, salted with the tenant's id.

The same name hashes differently for two tenants. Names are short, so there is no more of BLAKE3 here than
one chunk takes.
"""

from __future__ import annotations

import struct

_CHUNK_SIZE, _BLOCK_SIZE = 1024, 64
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8
_MASK = 0xFFFFFFFF
#: The first 32 bits of the fractional parts of the square roots of the first eight primes.
_START = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
    0xA54FF53A,
    0x510E527F,
    0x9B05688C,
    0x1F83D9AB,
    0x5BE0CD19,
)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
#: Columns of the state, then its diagonals.
_QUARTERS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
_ROUNDS = 7


def topic_hash(org_id: int, name: str) -> int:
    """Return the hash of a topic's name for a tenant: a number of 128 bits, little-endian where it is stored.

    Raises:
        ValueError: If the name is longer than a thousand bytes.
    """
    return int.from_bytes(blake3(struct.pack("<Q", org_id) + name.encode())[:16], "little")


def blake3(data: bytes) -> bytes:
    """Return the BLAKE3 hash, 32 bytes, of at most 1,024 bytes.

    Raises:
        ValueError: If there are more.
    """
    if len(data) > _CHUNK_SIZE:
        raise ValueError(f"at most {_CHUNK_SIZE} bytes can be hashed here, not {len(data)}")
    blocks = [data[at : at + _BLOCK_SIZE] for at in range(0, len(data), _BLOCK_SIZE)] or [b""]
    chained = list(_START)
    for number, block in enumerate(blocks):
        flags = _CHUNK_START if number == 0 else 0
        if number == len(blocks) - 1:
            flags |= _CHUNK_END | _ROOT
        chained = _compress(chained, block, flags)
    return struct.pack("<8I", *chained)


def _compress(chained: list[int], block: bytes, flags: int) -> list[int]:
    words = list(struct.unpack("<16I", block.ljust(_BLOCK_SIZE, b"\0")))
    # The counter of chunks, two words, is 0 in the first.
    state = [*chained, *_START[:4], 0, 0, len(block), flags]
    for _ in range(_ROUNDS):
        for number, quarter in enumerate(_QUARTERS):
            _mix(state, *quarter, words[2 * number], words[2 * number + 1])
        words = [words[at] for at in _PERMUTATION]
    return [state[at] ^ state[at + 8] for at in range(8)]


def _mix(state: list[int], a: int, b: int, c: int, d: int, first: int, second: int) -> None:
    for word, turns in ((first, (16, 12)), (second, (8, 7))):
        state[a] = (state[a] + state[b] + word) & _MASK
        state[d] = _turned(state[d] ^ state[a], turns[0])
        state[c] = (state[c] + state[d]) & _MASK
        state[b] = _turned(state[b] ^ state[c], turns[1])


def _turned(word: int, bits: int) -> int:
    return (word >> bits | word << (32 - bits)) & _MASK
