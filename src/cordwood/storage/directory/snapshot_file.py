"""The file of a snapshot: the state after every record below an offset, and what ties it to its log.

docs/formats/kimberlite.md has its byte layout. Version 1 has no field that says what its hash is of.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

from cordwood.disk import Files, join

MAGIC = b"CWSN"
VERSION = 2
HASH_SIZE = 32
_NO_HASH = bytes(HASH_SIZE)
_HEADER = struct.Struct(
    ">"  # big-endian
    "4s"  # magic
    "I"  # version
    "I"  # leader epoch of the record before the offset
    "Q"  # offset
    "q"  # when it was taken: milliseconds since the Unix epoch
    "32s"  # the anchor's hash, zeros without one
    "Q"  # size of the state
)
#: Follows the header from version 2 on.
_ANCHOR = struct.Struct(
    ">"
    "I"  # kind of the hash
    "Q"  # leaves under the hash
    "q"  # the record before the offset: its number in the log that has the chain, -1 without one
)
_CRC = struct.Struct(">I")
assert _HEADER.size == 68
assert _ANCHOR.size == 20
_PREFIX = "snapshot-"
_NAME = re.compile(r"snapshot-([0-9]{20})")


class AnchorKind(IntEnum):
    """What the hash of a snapshot is of."""

    #: There is none: the topic has no chain, or none that reached the offset.
    NONE = 0
    #: The record before the offset, in the format kimberlite.
    RECORD = 1
    #: The Merkle tree over the leaves up to the one of the record before the offset.
    TREE = 2


class Anchor(NamedTuple):
    """The hash of the chain at the offset of a snapshot; ``leaves`` counts those under a tree's hash."""

    kind: AnchorKind = AnchorKind.NONE
    hash: bytes = _NO_HASH
    leaves: int = 0


NO_ANCHOR = Anchor()


class StateSnapshot(NamedTuple):
    """The state after every record below ``offset``.

    ``last`` is the number of the record before ``offset`` in the log that has the chain: ``offset - 1``, or
    an id of the shared log; -1 if there is none. ``epoch`` is the leader epoch of that record.
    """

    offset: int
    timestamp: int
    state: bytes
    anchor: Anchor = NO_ANCHOR
    last: int = -1
    epoch: int = 0

    @property
    def chain_head(self) -> bytes:
        """The hash of the chain at the offset, zeros without one."""
        return self.anchor.hash


def snapshot_name(offset: int) -> str:
    """Return the name of the file of a snapshot."""
    return f"{_PREFIX}{offset:020d}"


def snapshot_offsets(files: Files, directory: str) -> list[int]:
    """Return the offsets of the snapshots in *directory*, damaged ones included, in order."""
    if not files.exists(directory):
        return []
    found = (_NAME.fullmatch(name) for name in files.list(directory))
    return sorted(int(match[1]) for match in found if match is not None)


def snapshot_path(directory: str, offset: int) -> str:
    """Return the path of the snapshot at *offset*."""
    return join(directory, snapshot_name(offset))


def encode_snapshot(snapshot: StateSnapshot) -> bytes:
    """Return the bytes of the file."""
    offset, timestamp, state, anchor, last, epoch = snapshot
    header = _HEADER.pack(MAGIC, VERSION, epoch, offset, timestamp, anchor.hash, len(state))
    header += _ANCHOR.pack(anchor.kind, anchor.leaves, last)
    return header + _CRC.pack(google_crc32c.extend(google_crc32c.value(header), state)) + state


def decode_snapshot(data: bytes, offset: int) -> StateSnapshot:
    """Return the snapshot in a file that is named after *offset*.

    Raises:
        ValueError: If one bit of it is not as written, or it is of another offset; says what.
    """
    if len(data) < _HEADER.size + _CRC.size:
        raise ValueError(f"has {len(data)} bytes, less than a header")
    magic, version, epoch, found, timestamp, hash_, size = _HEADER.unpack_from(data)
    if magic != MAGIC or version not in (1, VERSION):
        raise ValueError("is not a snapshot of a version that is known here")
    end = _HEADER.size + (_ANCHOR.size if version > 1 else 0)
    state = data[end + _CRC.size :]
    if len(data) < end + _CRC.size or len(state) != size:
        raise ValueError(f"has a state of {len(state)} bytes, not {size}")
    (crc,) = _CRC.unpack_from(data, end)
    actual = google_crc32c.extend(google_crc32c.value(data[:end]), state)
    if crc != actual:
        raise ValueError(f"has the checksum {crc:#010x}, but its content has {actual:#010x}")
    if found != offset:
        raise ValueError(f"is that of offset {found}")
    if version == 1:
        # The hash was given by the caller, of a record.
        kind = AnchorKind.RECORD if hash_ != _NO_HASH else AnchorKind.NONE
        return StateSnapshot(found, timestamp, state, Anchor(kind, hash_), found - 1, epoch)
    number, leaves, last = _ANCHOR.unpack_from(data, _HEADER.size)
    if number not in AnchorKind.__members__.values():
        raise ValueError(f"has a hash of kind {number}, which is not known here")
    return StateSnapshot(found, timestamp, state, Anchor(AnchorKind(number), hash_, leaves), last, epoch)
