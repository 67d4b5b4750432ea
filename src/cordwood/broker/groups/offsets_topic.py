"""The internal topic of consumer groups: its records, with Kafka's key and value schemas.

There are two kinds of records: the committed offset of a group in a partition, and the generation and members
of a group. The last record of a key is valid; a record without a value is a tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

#: Kafka's name of the topic.
NAME = "__consumer_offsets"

#: The longest text in a record, in bytes.
TEXT_BYTES_MAX = 0x7FFF
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
OFFSET_KEY, GROUP_KEY = 1, 2
"""Versions of keys; they also distinguish the kinds of records."""
_OFFSET_VALUE, _GROUP_VALUE = 3, 3
_OLDEST_OFFSET_KEY = 0


class OffsetKey(NamedTuple):
    """A partition that a group consumes."""

    group: str
    topic: str
    partition: int


class Committed(NamedTuple):
    """A committed offset, its metadata and the time of the commit."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int


class StoredMember(NamedTuple):
    """A member of a stored generation."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    session_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(NamedTuple):
    """A generation of a group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[StoredMember, ...]


def offset_key(key: OffsetKey) -> bytes:
    """Encode the key of a committed offset."""
    return _SHORT.pack(OFFSET_KEY) + _text(key.group) + _text(key.topic) + _INT.pack(key.partition)


def offset_value(committed: Committed) -> bytes:
    """Encode a committed offset."""
    offset, leader_epoch, metadata, commit_ms = committed
    head = struct.pack(">hqi", _OFFSET_VALUE, offset, leader_epoch)
    return head + _text(metadata) + _LONG.pack(commit_ms)


def group_key(group: str) -> bytes:
    """Encode the key of a group."""
    return _SHORT.pack(GROUP_KEY) + _text(group)


def group_value(group: StoredGroup) -> bytes:
    """Encode a generation of a group."""
    parts = [
        _SHORT.pack(_GROUP_VALUE),
        _text(group.protocol_type),
        _INT.pack(group.generation),
        _text(group.protocol),
        _text(group.leader),
        _LONG.pack(group.since_ms),
        _INT.pack(len(group.members)),
    ]
    for member in group.members:
        parts += [
            _text(member.id),
            _text(member.instance_id),
            _text(member.client_id),
            _text(member.client_host),
            struct.pack(">ii", member.rebalance_ms, member.session_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        ]
    return b"".join(parts)


def decode_key(data: bytes) -> OffsetKey | str | None:
    """Decode a key: an `OffsetKey`, the name of a group, or None for an unknown version.

    Raises:
        ValueError: If a key of a known version is malformed.
    """
    reader = FieldReader(data)
    version = reader.number(_SHORT)
    if version in (_OLDEST_OFFSET_KEY, OFFSET_KEY):
        return OffsetKey(reader.text(), reader.text(), reader.number(_INT))
    return reader.text() if version == GROUP_KEY else None


def key_reader(data: bytes) -> tuple[int, FieldReader]:
    """Return the version of a key, and a reader of its fields.

    Raises:
        ValueError: If the key is malformed.
    """
    reader = FieldReader(data)
    return reader.number(_SHORT), reader


def decode_offset(data: bytes) -> Committed:
    """Decode a committed offset, also of an older Kafka.

    Raises:
        ValueError: If *data* is malformed or of an unknown version.
    """
    reader = FieldReader(data)
    version = reader.version(_OFFSET_VALUE)
    offset = reader.number(_LONG)
    leader_epoch = reader.number(_INT) if version >= 3 else -1
    return Committed(offset, leader_epoch, reader.text(), reader.number(_LONG))


def decode_group(data: bytes) -> StoredGroup:
    """Decode a generation of a group, also of an older Kafka.

    Raises:
        ValueError: If *data* is malformed or of an unknown version.
    """
    reader = FieldReader(data)
    version = reader.version(_GROUP_VALUE)
    protocol_type, generation = reader.text(), reader.number(_INT)
    protocol, leader = reader.text_or_none(), reader.text_or_none()
    since_ms = reader.number(_LONG) if version >= 2 else -1
    members = tuple(_member(reader, version) for _ in range(reader.count()))
    return StoredGroup(protocol_type, generation, protocol, leader, since_ms, members)


def _member(reader: FieldReader, version: int) -> StoredMember:
    member_id = reader.text()
    instance_id = reader.text_or_none() if version >= 3 else None
    client_id, client_host = reader.text(), reader.text()
    rebalance_ms = reader.number(_INT) if version >= 1 else -1
    session_ms = reader.number(_INT)
    rebalance_ms = session_ms if rebalance_ms < 0 else rebalance_ms
    subscription, assignment = reader.blob(), reader.blob()
    return StoredMember(
        member_id, instance_id, client_id, client_host, rebalance_ms, session_ms, subscription, assignment
    )


def subscribed_topics(subscription: bytes) -> set[str] | None:
    """Return the topics of a consumer's subscription, or None if it cannot be decoded."""
    reader = FieldReader(subscription)
    try:
        reader.number(_SHORT)
        return {reader.text() for _ in range(reader.count())}
    except ValueError:
        return None


def _text(text: str | None) -> bytes:
    if text is None:
        return _SHORT.pack(-1)
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def _bytes(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


class FieldReader:
    """A reader of consecutive fields. Raises ValueError for a missing or malformed field."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    @property
    def position(self) -> int:
        """Where the next field begins."""
        return self._position

    def number(self, kind: struct.Struct) -> int:
        """Read a number."""
        return int(kind.unpack(self._take(kind.size))[0])

    def version(self, newest: int) -> int:
        """Read the version of a message, *newest* at most."""
        version = self.number(_SHORT)
        if not 0 <= version <= newest:
            raise ValueError(f"version {version} is unknown")
        return version

    def count(self) -> int:
        """Read the length of an array."""
        count = self.number(_INT)
        if not 0 <= count <= len(self._data) - self._position:
            raise ValueError(f"count {count} is out of range")
        return count

    def text(self) -> str:
        """Read a string."""
        text = self.text_or_none()
        if text is None:
            raise ValueError("a required text is null")
        return text

    def text_or_none(self) -> str | None:
        """Read a string that may be null."""
        size = self.number(_SHORT)
        return None if size == -1 else self._take(size).decode()

    def blob(self) -> bytes:
        """Read bytes."""
        return self._take(self.number(_INT))

    def blob_or_none(self) -> bytes | None:
        """Read bytes that may be null."""
        size = self.number(_INT)
        return None if size == -1 else self._take(size)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"expected {size} bytes, found {len(self._data) - self._position}")
        taken, self._position = self._data[self._position : end], end
        return taken


OffsetsRow = tuple[bytes, bytes | None]
"""Key and value of a record of the topic."""


def tombstones(keys: Iterable[bytes]) -> list[OffsetsRow]:
    """Return tombstones for *keys*."""
    return [(key, None) for key in keys]
