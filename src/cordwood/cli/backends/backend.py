"""The interface between commands and a log, which is a data directory or a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from cordwood.errors import CordwoodError
from cordwood.records import Header, OffsetRange, Record, TopicPartition
from cordwood.security import AclBinding, AclFilter, ScramMechanism
from cordwood.wording import counted

Chunk = Sequence[tuple[int, Record]]
"""Records with their partitions, those of one partition in order. Empty if there are none at the moment."""
ProducedRow = tuple[bytes | None, bytes | None, Sequence[Header]]
"""Key, value and headers of a record to append."""


class TopicSummary(msgspec.Struct, frozen=True):
    """A line of ``topic list``; ``offsets`` is None if a partition is damaged.

    It counts the offsets from the log start to the high watermark: at least the number of records, and more
    if compaction left gaps. The exact number of records is known only by reading the log.
    """

    name: str
    partitions: int
    offsets: int | None
    internal: bool


class PartitionSummary(msgspec.Struct, frozen=True):
    """The offsets and size of a partition. ``bytes`` is None if a broker does not report it."""

    partition: int
    log_start_offset: int
    high_watermark: int
    bytes: int | None


class TopicDescription(msgspec.Struct, frozen=True):
    """The description of a topic. ``own`` are its own settings, ``settings`` all effective ones."""

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
    """A group: its members and committed offsets."""

    name: str
    state: str
    members: list[MemberInfo]
    offsets: dict[TopicPartition, int]


class TransactionDescription(msgspec.Struct, frozen=True):
    """A transactional id and its current or last transaction. ``started_ms`` is -1 if there was none."""

    id: str
    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    started_ms: int
    partitions: list[TopicPartition]

    @property
    def is_open(self) -> bool:
        """Whether the transaction has not ended."""
        return self.state in ("Ongoing", "PrepareCommit", "PrepareAbort")


class UserRow(NamedTuple):
    """A credential of a user."""

    name: str
    mechanism: ScramMechanism
    iterations: int


class Backend(Protocol):
    """A log that commands work on. For one thread; the caller closes it."""

    def topics(self) -> list[TopicSummary]:
        """Return all topics, by name."""

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted, without reading anything else."""

    def describe(self, topic: str) -> TopicDescription:
        """Return the description of a topic."""

    def offsets(self, topic: str) -> dict[int, OffsetRange]:
        """Return the readable offsets of each partition.

        Raises:
            UnknownTopic: If the topic does not exist.
        """

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record at or after *timestamp*, or None."""

    def create(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Create a topic and return its number of partitions."""

    def alter(
        self, topic: str, partitions: int | None, config: Mapping[str, str], unset: Sequence[str]
    ) -> None:
        """Increase the partitions of a topic, and set and unset settings."""

    def roll(self, topic: str, partition: int) -> None:
        """Seal the active segment of a partition."""

    def truncate(self, topic: str, partition: int, end_offset: int, *, force: bool, dry_run: bool) -> None:
        """Drop the records of a partition at or above *end_offset*; with *dry_run* only check it.

        Raises:
            OffsetOutOfRange: If the partition has no such end.
            SignedFor: If a checkpoint signs for one of the records, and *force* is not given.
        """

    def delete(self, topic: str) -> None:
        """Delete a topic and its committed offsets."""

    def append(self, topic: str, rows: Sequence[ProducedRow], partition: int | None) -> int:
        """Append records; create the topic if it is missing. All are stored after `flush`.

        Returns the number of records that are known to be stored already.
        """

    def flush(self) -> None:
        """Return once all appended records are stored."""

    def read(self, topic: str, starts: Mapping[int, int], *, to_end: bool) -> Iterator[Chunk]:
        """Yield records from *starts* on: up to the current ends if *to_end*, else without end."""

    def read_group(self, topic: str, group: str, *, from_beginning: bool, to_end: bool) -> Iterator[Chunk]:
        """Yield records from the committed offsets of *group* on, like `read`."""

    def groups(self) -> list[GroupSummary]:
        """Return all consumer groups, by name."""

    def group(self, name: str) -> GroupDescription:
        """Return the description of a group.

        Raises:
            CordwoodError: If the group does not exist.
        """

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group that has no members or was joined by `read_group`."""

    def delete_group(self, name: str) -> None:
        """Delete a group without members, and its committed offsets."""

    def transactions(self) -> list[TransactionDescription]:
        """Return all transactional ids, sorted."""

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """Return the description of a transactional id.

        Raises:
            TransactionalIdUnknown: If there is none.
        """

    def abort_transaction(self, transactional_id: str, timeout_ms: int) -> None:
        """Abort the open transaction of a transactional id, and fence its producer."""

    def acls(self, wanted: Sequence[AclFilter], org: int) -> list[AclBinding]:
        """Return the ACLs that any of *wanted* selects.

        An *org* other than 0 is for a data directory only: a broker has those of the listener's org.
        """

    def create_acls(self, acls: Sequence[AclBinding], org: int) -> None:
        """Create valid ACLs; those that exist stay."""

    def delete_acls(self, wanted: Sequence[AclFilter], org: int) -> list[AclBinding]:
        """Delete the ACLs that any of *wanted* selects, and return them."""

    def users(self) -> list[UserRow]:
        """Return the credentials of all users, by name."""

    def set_user(
        self, name: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int
    ) -> None:
        """Set the credentials of a user for *mechanisms*."""

    def remove_user(self, name: str, mechanisms: Sequence[ScramMechanism]) -> list[ScramMechanism]:
        """Remove credentials of a user, and return their mechanisms.

        Raises:
            CordwoodError: If the user has none of them.
        """

    def close(self) -> None:
        """Close the connection or the directory."""


def unknown_group(name: str) -> CordwoodError:
    """Return the error for a group that does not exist."""
    return CordwoodError(f"there is no group {name}; cordwood group list shows the existing groups")


def unknown_user(name: str) -> CordwoodError:
    """Return the error for a user that does not exist."""
    return CordwoodError(f"there is no such user {name}; cordwood user list shows the existing users")


def has_members(name: str, count: int) -> CordwoodError:
    """Return the error for a group that is in use."""
    return CordwoodError(
        f"group {name} has {counted(count, 'member')}; stop them first, or wait until their sessions "
        "time out at the server"
    )
