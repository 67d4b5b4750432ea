"""What is stored of a consumer group: the keys and values of its records in the internal topic, as objects.

The state of a group is what its rows say; see `ConsumerGroup.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from cordwood.broker.groups.actions import Protocol
from cordwood.broker.groups.consumer.assignors import TargetAssignment

OwnedPartitions = Mapping[bytes, Mapping[int, int]]
"""The partitions of a member by topic id, each with the epoch of the member in which it got the partition."""

NOTHING_OWNED: OwnedPartitions = MappingProxyType({})


class MemberState(IntEnum):
    """How far a member is on the way to its target assignment; the values are Kafka's numbers."""

    STABLE = 0
    #: The member must stop consuming partitions before it is told about others.
    UNREVOKED_PARTITIONS = 1
    #: The member waits for partitions that other members still own.
    UNRELEASED_PARTITIONS = 2
    #: A state of a later version.
    UNKNOWN = 127


class ClassicTerms(NamedTuple):
    """What a member that uses the classic protocol said when it joined."""

    session_ms: int
    protocols: tuple[Protocol, ...]


class MemberMetadata(NamedTuple):
    """What a member says of itself. ``topics`` are sorted, ``classic`` is None for the consumer protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_ms: int = -1
    assignor: str | None = None
    classic: ClassicTerms | None = None


class OwnedState(NamedTuple):
    """The epoch of a member, the partitions that it may consume, and those that it must stop consuming.

    ``previous_epoch`` is accepted too, from a member that did not receive the answer with its epoch.
    """

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: OwnedPartitions = NOTHING_OWNED
    revoking: OwnedPartitions = NOTHING_OWNED


class GroupEpoch(NamedTuple):
    """The epoch of a group, which each change of subscriptions increases; and a hash of its topics."""

    epoch: int
    topics_hash: int = 0


class TargetEpoch(NamedTuple):
    """The epoch of the group that target assignments were made for, and when."""

    epoch: int
    assigned_ms: int = 0


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches, of those that existed in ``version``."""

    topics: frozenset[str] = frozenset()
    version: int = 0
    resolved_ms: int = 0


class RowKind(IntEnum):
    """The kinds of rows; the values are the versions of Kafka's keys."""

    GROUP_EPOCH = 3
    #: Written by Kafka before 4.1, and only deleted here.
    TOPIC_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    OWNED = 8
    REGEX = 16


class RowKey(NamedTuple):
    """The key of a row. ``name`` is a member id or a regular expression, or empty."""

    kind: RowKind
    group: str
    name: str = ""


RowValue = GroupEpoch | MemberMetadata | TargetEpoch | TargetAssignment | OwnedState | ResolvedRegex
ConsumerRow = tuple[RowKey, RowValue | None]
"""A row, or a tombstone."""
