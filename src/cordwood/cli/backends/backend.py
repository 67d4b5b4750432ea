"""What commands need of a log, be it a data directory or a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from cordwood.errors import CordwoodError
from cordwood.records import Header, OffsetRange, Record, TopicPartition
from cordwood.wording import counted

Chunk = Sequence[tuple[int, Record]]
"""Records with their partitions, those of one partition in order. Empty where there is nothing now."""
ProducedRow = tuple[bytes | None, bytes | None, Sequence[Header]]
"""Key, value and headers of a record to append."""


class TopicSummary(msgspec.Struct, frozen=True):
    """A line of ``topic list``; ``offsets`` is None where a partition is damaged.

    It counts offsets from the log start to the high watermark: no fewer than there are records, and more
    where compaction left gaps. How many records a gap had nobody can say without reading the log.
    """

    name: str
    partitions: int
    offsets: int | None
    internal: bool


class PartitionSummary(msgspec.Struct, frozen=True):
    """Where a partition stands. ``bytes`` is None where a broker does not say."""

    partition: int
    log_start_offset: int
    high_watermark: int
    bytes: int | None


class TopicDescription(msgspec.Struct, frozen=True):
    """Everything of a topic. ``own`` are the settings it has itself, ``settings`` all of them."""

    name: str
    id: str | None
    partitions: list[PartitionSummary]
    own: dict[str, str]
    settings: dict[str, str]


class MemberInfo(msgspec.Struct, frozen=True):
    """A member of a group."""

    id: str
    client_id: str
    host: str


class GroupSummary(msgspec.Struct, frozen=True):
    """A line of ``group list``."""

    name: str
    state: str


class GroupDescription(msgspec.Struct, frozen=True):
    """A group: its members, and what it has committed."""

    name: str
    state: str
    members: list[MemberInfo]
    offsets: dict[TopicPartition, int]


class Backend(Protocol):
    """A log that commands work on. One user, who closes it."""

    def topics(self) -> list[TopicSummary]:
        """Return the topics there are, by name."""

    def describe(self, topic: str) -> TopicDescription:
        """Return everything of a topic."""

    def offsets(self, topic: str) -> dict[int, OffsetRange]:
        """Return the offsets that can be read of each partition.

        Raises:
            UnknownTopic: If there is no such topic.
        """

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record at or after *timestamp*, None if there is none."""

    def create(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Create a topic and return how many partitions it has."""

    def alter(
        self, topic: str, partitions: int | None, config: Mapping[str, str], unset: Sequence[str]
    ) -> None:
        """Give a topic more partitions, set settings, and take others back."""

    def delete(self, topic: str) -> None:
        """Delete a topic, and what groups have committed of it."""

    def append(self, topic: str, rows: Sequence[ProducedRow], partition: int | None) -> int:
        """Append records; the topic is made if it is missing. Stored at the latest after `flush`.

        Returns how many of them are known to be stored already.
        """

    def flush(self) -> None:
        """Return once all that was appended is stored."""

    def read(self, topic: str, starts: Mapping[int, int], *, to_end: bool) -> Iterator[Chunk]:
        """Yield records from *starts* on: to the ends as they are now, or for ever."""

    def read_group(self, topic: str, group: str, *, from_beginning: bool, to_end: bool) -> Iterator[Chunk]:
        """Yield records from where *group* stands on, as `read` does."""

    def groups(self) -> list[GroupSummary]:
        """Return the consumer groups there are, by name."""

    def group(self, name: str) -> GroupDescription:
        """Return everything of a group.

        Raises:
            CordwoodError: If there is no such group.
        """

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store where a group stands. Without members, or of the one that `read_group` made."""

    def delete_group(self, name: str) -> None:
        """Delete a group without members, and all it has committed."""

    def close(self) -> None:
        """Let go."""


def unknown_group(name: str) -> CordwoodError:
    """Return the error for a group that does not exist."""
    return CordwoodError(f"there is no group {name}; cordwood group list shows which there are")


def has_members(name: str, count: int) -> CordwoodError:
    """Return the error for a group that is in use."""
    return CordwoodError(
        f"group {name} has {counted(count, 'member')}; stop them first, or wait until the server has "
        "missed them for the time of a session"
    )
