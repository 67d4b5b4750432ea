"""A piece: what happened to the log in one interval, under one key that is created only once.

docs/formats/bucket.md has the bytes. The body is that of `changes`.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import NamedTuple

import google_crc32c

from cordwood.errors import BucketDamaged

MAGIC = b"CWPC"
FORMAT = 1
PREFIX = "w/"
#: The hexadecimal digits of a nonce.
NONCE_DIGITS = 32
#: 20 digits, so that keys sort as numbers do.
_DIGITS = 20

_HEAD = struct.Struct(
    ">"
    "4s"  # magic
    "H"  # format
    "H"  # reserved, 0
    "Q"  # sequence number
    "Q"  # epoch of the owner
    "16s"  # nonce of the owner
    "32s"  # SHA-256 of the counting piece before, zeros for the first one
    "Q"  # length of the body
)
_CRC = struct.Struct(">I")
HEAD_SIZE = _HEAD.size
assert HEAD_SIZE == 80


class PieceHeader(NamedTuple):
    """Who created a piece, and what it follows."""

    seq: int
    epoch: int
    nonce: str
    previous: str


def piece_key(seq: int) -> str:
    """Return the key of piece *seq*."""
    return f"{PREFIX}{seq:0{_DIGITS}d}"


def seq_of(key: str) -> int | None:
    """Return the number of the piece under *key*, None if no piece has such a key."""
    digits = key.removeprefix(PREFIX)
    return int(digits) if key.startswith(PREFIX) and len(digits) == _DIGITS and digits.isdigit() else None


def hash_of(data: bytes) -> str:
    """Return the SHA-256 of an object, in hex."""
    return sha256(data).hexdigest()


def encode_piece(header: PieceHeader, body: bytes) -> bytes:
    """Return the bytes of the object."""
    head = _HEAD.pack(
        MAGIC,
        FORMAT,
        0,
        header.seq,
        header.epoch,
        bytes.fromhex(header.nonce),
        bytes.fromhex(header.previous),
        len(body),
    )
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    return b"".join((head, body, _CRC.pack(crc)))


def decode_piece(key: str, data: bytes) -> tuple[PieceHeader, memoryview]:
    """Return the header and the body of the piece under *key*.

    Raises:
        BucketDamaged: If any bit of it is wrong, it is the piece of another number, or of a newer version.
    """
    if len(data) < HEAD_SIZE + _CRC.size:
        raise BucketDamaged(
            key, f"has {len(data)} bytes, a piece has at least {HEAD_SIZE + _CRC.size}", len(data)
        )
    magic, version, _, seq, epoch, nonce, previous, size = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BucketDamaged(key, f"begins with {magic!r}, a piece with {MAGIC!r}", 0)
    end = HEAD_SIZE + size
    if end + _CRC.size != len(data):
        raise BucketDamaged(key, f"has {len(data)} bytes, its header says {end + _CRC.size}", HEAD_SIZE - 8)
    (crc,) = _CRC.unpack_from(data, end)
    found = google_crc32c.value(memoryview(data)[:end].tobytes())
    if crc != found:
        raise BucketDamaged(key, f"checksum is {crc:08x}, but its content has {found:08x}", end)
    if version != FORMAT:
        raise BucketDamaged(key, f"has format {version}; this version reads format {FORMAT}", 4)
    if piece_key(seq) != key:
        raise BucketDamaged(key, f"holds piece {seq}", 8)
    header = PieceHeader(seq, epoch, nonce.hex(), previous.hex())
    return header, memoryview(data)[HEAD_SIZE:end]
