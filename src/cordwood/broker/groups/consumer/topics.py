"""The topics of a broker, as a consumer group sees them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple, Protocol


class TopicShape(NamedTuple):
    """A topic that exists: its id and the number of its partitions."""

    id: bytes
    partitions: int


class TopicsView(Protocol):
    """The topics that clients of one org see, under the names that they use."""

    @property
    def version(self) -> int:
        """A number that increases with each change of a topic."""
        ...

    def find(self, name: str) -> TopicShape | None:
        """Return the topic of that name, or None."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with that id, or None."""
        ...


class _NoTopics:
    version = 0

    def find(self, name: str) -> TopicShape | None:
        return None

    def name_of(self, topic_id: bytes) -> str | None:
        return None


#: The view of someone who only reads what groups have stored.
NO_TOPICS: TopicsView = _NoTopics()


def hash_of_topics(names: Iterable[str], topics: TopicsView) -> int:
    """Return a signed number of 64 bits that depends on ids and partitions of those *names* that exist.

    It is stored with the epoch of a group, so that a change of the topics is noticed after a restart too.
    """
    total = 0
    for name in names:
        shape = topics.find(name)
        if shape is not None:
            data = shape.id + struct.pack(">i", shape.partitions)
            total += int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())
    # Zero is that of no topics.
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)
