"""The requests that a group takes, the actions it returns, and its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

Token = object
"""Identifies a request that is answered later. The group only returns it in its answer."""


class GroupState(Enum):
    """The state of a group; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Refusal(Enum):
    """Why a request of a member is refused."""

    UNKNOWN_MEMBER = "unknown member"
    MEMBER_ID_REQUIRED = "join again with the id of this response"
    ILLEGAL_GENERATION = "not the current generation"
    REBALANCING = "the group is rebalancing"
    INCONSISTENT_PROTOCOL = "no protocol in common with the group"
    FENCED = "another member has taken over the instance id"
    GROUP_FULL = "the group is full"
    NOT_STORED = "the generation could not be stored"
    NO_GROUP = "there is no such consumer group"
    FENCED_EPOCH = "not the epoch of the member, which must give up its partitions and join again"
    STALE_EPOCH = "not the epoch of the member"
    UNRELEASED_INSTANCE = "a member that has not left owns the instance id"
    UNSUPPORTED_VERSION = "members of the consumer protocol commit with version 9 or later"


class Joined(NamedTuple):
    """The answer to a join. Only the leader gets ``members``: (id, instance id, metadata)."""

    refusal: Refusal | None = None
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The answer to a sync: the assignment of the member."""

    refusal: Refusal | None = None
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class HeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat of the consumer protocol.

    ``assignment`` has the partitions of the member by topic id; it is None if it has not changed.
    """

    refusal: Refusal | None = None
    member_id: str = ""
    epoch: int = 0
    assignment: Mapping[bytes, tuple[int, ...]] | None = None


class GroupReply(NamedTuple):
    """Answer the request behind *token*."""

    token: Token
    result: Joined | Synced | HeartbeatAnswer


class StoreState(NamedTuple):
    """Store the group as it is now, then call `Group.stored`.

    *token* is the join of a restarted static member, which is answered once its new id is stored.
    """

    generation: int
    token: Token | None = None


class StoreRows(NamedTuple):
    """Store *rows* of a consumer group, then send *replies*: at once if there is nothing to store."""

    rows: Sequence[tuple[bytes, bytes | None]]
    replies: list[GroupReply]


Action = GroupReply | StoreState | StoreRows


class Protocol(NamedTuple):
    """A way of assigning partitions that a member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


class JoinRequest(NamedTuple):
    """A request of a member to join."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    id_required_first: bool = True
    """Whether the member understands MEMBER_ID_REQUIRED, and joins again with the id it is given."""
    knows_skip: bool = False
    """Whether the member, as leader, understands the flag to skip the assignment."""


@dataclass(slots=True)
class GroupMember:
    """A member of the group."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join: Token | None = None
    sync: Token | None = None
    #: The answer to a restarted static member, sent once its new id is stored.
    replacing: GroupReply | None = None
    expires_ms: int = 0

    @property
    def waits(self) -> bool:
        """Whether a request of the member is unanswered. It sends no heartbeats until the answer."""
        return self.join is not None or self.sync is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return the member's metadata for *protocol*."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")
