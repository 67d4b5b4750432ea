"""The messages that consumers exchange through a classic group: subscriptions and assignments.

The coordinator reads them only of groups whose members change from the classic to the consumer protocol or
back.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import NamedTuple

from cordwood.broker.groups.offsets_topic import FieldReader

#: The protocol type of consumers.
PROTOCOL_TYPE = "consumer"
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_VERSION_MAX = 3
_OWNED_FROM, _RACK_FROM = 1, 3


class EmbeddedSubscription(NamedTuple):
    """What a consumer subscribes to, and what it says it owns. The names are those of topics."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, Collection[int]]
    rack_id: str | None


class SubscriptionDecoder:
    """Decodes the subscriptions of a group, which mostly begin with the same topics."""

    def __init__(self) -> None:
        self._known = b""
        self._version, self._topics = 0, tuple[str, ...]()

    def decode(self, data: bytes) -> EmbeddedSubscription:
        """Decode a subscription; one of a later version is read as the last known.

        Raises:
            ValueError: If *data* is malformed.
        """
        if not self._known or not data.startswith(self._known):
            begin = FieldReader(data)
            # Nothing is known while this may fail.
            self._known = b""
            self._version = _version(begin)
            self._topics = tuple(begin.text() for _ in range(begin.count()))
            self._known = data[: begin.position]
        version, reader = self._version, FieldReader(data, len(self._known))
        reader.blob_or_none()
        owned: dict[str, tuple[int, ...]] = {}
        if version >= _OWNED_FROM:
            owned = _topic_partitions(reader)
        if version > _OWNED_FROM:
            reader.number(_INT)
        rack_id = reader.text_or_none() if version >= _RACK_FROM else None
        return EmbeddedSubscription(version, self._topics, owned, rack_id)


def decode_subscription(data: bytes) -> EmbeddedSubscription:
    """Decode one subscription; see `SubscriptionDecoder.decode`."""
    return SubscriptionDecoder().decode(data)


def decode_assignment(data: bytes) -> tuple[Mapping[str, Collection[int]], bytes]:
    """Decode an assignment; return its partitions by topic name, and the data of the assignor of the client.

    Raises:
        ValueError: If *data* is malformed.
    """
    if not data:
        return {}, b""
    reader = FieldReader(data)
    _version(reader)
    return _topic_partitions(reader), reader.blob_or_none() or b""


def encode_assignment(version: int, partitions: Mapping[str, Collection[int]]) -> bytes:
    """Encode an assignment for a consumer whose subscription has *version*."""
    parts = [_SHORT.pack(version), _INT.pack(len(partitions))]
    for topic, numbers in partitions.items():
        name = topic.encode()
        parts += [_SHORT.pack(len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join([*parts, _INT.pack(-1)])


def _version(reader: FieldReader) -> int:
    version = reader.number(_SHORT)
    if version < 0:
        raise ValueError(f"version {version} is unknown")
    return min(version, _VERSION_MAX)


def _topic_partitions(reader: FieldReader) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for _ in range(reader.count()):
        name = reader.text()
        found[name] = (*found.get(name, ()), *(reader.number(_INT) for _ in range(reader.count())))
    return found
