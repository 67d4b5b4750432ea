"""Groups: finding the coordinator, membership in both protocols, descriptions and deletion."""

from __future__ import annotations

from cordwood.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from cordwood.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    opaque,
    string,
    struct,
    uuid,
)


@message
class FindCoordinatorRequest:
    """Request the coordinator of a group or a transactional id: ``coordinator_keys`` from version 4 on."""

    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array(string, "4+")


@message
class CoordinatorAddress:
    """The coordinator of one key."""

    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = string("4+", nullable="4+")


@message
class FindCoordinatorResponse:
    """The coordinators: of one key up to version 3, ``coordinators`` from 4 on."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3")
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[CoordinatorAddress] = array(CoordinatorAddress, "4+")


@message
class JoinGroupRequestProtocol:
    """A protocol of assignment that the member supports, and the member's metadata for it."""

    name: str = string("0+")
    metadata: bytes = opaque("0+")


@message
class JoinGroupRequest:
    """Join a group."""

    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    rebalance_timeout_ms: int = int32("1+", default=-1)
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol, "0+")
    reason: str | None = string("8+", nullable="8+", default=None)


@message
class JoinGroupResponseMember:
    """A member, as described to the leader."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    metadata: bytes = opaque("0+")


@message
class JoinGroupResponse:
    """The joined generation. Only the leader gets the members."""

    throttle_time_ms: int = int32("2+")
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None)
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+")
    member_id: str = string("0+")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, "0+")


@message
class SyncGroupRequestAssignment:
    """The leader's assignment for one member."""

    member_id: str = string("0+")
    assignment: bytes = opaque("0+")


@message
class SyncGroupRequest:
    """Request the member's assignment; the leader also sends all assignments."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, "0+")


@message
class SyncGroupResponse:
    """The assignment of the member."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignment: bytes = opaque("0+")


@message
class HeartbeatRequest:
    """Extend the session of a member."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


@message
class HeartbeatResponse:
    """The result of a heartbeat."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")


@message
class MemberIdentity:
    """A member that leaves."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    reason: str | None = string("5+", nullable="5+", default=None)


@message
class LeaveGroupRequest:
    """Remove members: one up to version 2, ``members`` from 3 on."""

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")


@message
class MemberResponse:
    """The result for one member."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")
    error_code: int = int16("3+")


@message
class LeaveGroupResponse:
    """The result for each member."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    members: list[MemberResponse] = array(MemberResponse, "3+")


@message
class DescribeGroupsRequest:
    """Request descriptions of groups."""

    groups: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("3+")


@message
class DescribedGroupMember:
    """A member and its assignment."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("4+", nullable="4+", default=None)
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes = opaque("0+")
    member_assignment: bytes = opaque("0+")


@message
class DescribedGroup:
    """A group, its state and its members."""

    error_code: int = int16("0+")
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    authorized_operations: int = int32("3+", default=OPERATIONS_NOT_ASKED)


@message
class DescribeGroupsResponse:
    """The requested groups."""

    throttle_time_ms: int = int32("1+")
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")


@message
class ListGroupsRequest:
    """Request the list of groups; an empty filter matches all."""

    states_filter: list[str] = array(string, "4+")
    types_filter: list[str] = array(string, "5+")


@message
class ListedGroup:
    """A group."""

    group_id: str = string("0+")
    protocol_type: str = string("0+")
    group_state: str = string("4+")
    group_type: str = string("5+")


@message
class ListGroupsResponse:
    """The list of groups."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array(ListedGroup, "0+")


@message
class DeleteGroupsRequest:
    """Delete groups without members."""

    groups_names: list[str] = array(string, "0+")


@message
class DeletableGroupResult:
    """The result for one group."""

    group_id: str = string("0+")
    error_code: int = int16("0+")


@message
class DeleteGroupsResponse:
    """The result for each group."""

    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")


# The consumer protocol (KIP-848)


@message
class OwnedTopicPartitions:
    """Partitions of a topic, which a member owns or may consume."""

    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")


@message
class ConsumerGroupHeartbeatRequest:
    """Join, stay in or leave a group. What is null, or -1, has not changed since the last heartbeat.

    ``member_epoch`` is 0 to join, -1 to leave, and -2 for a static member that leaves and will return.
    """

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array(string, "0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[OwnedTopicPartitions] | None = array(
        OwnedTopicPartitions, "0+", nullable="0+", default=None
    )


@message
class HeartbeatAssignment:
    """The partitions that the member may consume."""

    topic_partitions: list[OwnedTopicPartitions] = array(OwnedTopicPartitions, "0+")


@message
class ConsumerGroupHeartbeatResponse:
    """The epoch of the member, and its assignment if that has changed."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: HeartbeatAssignment | None = struct(HeartbeatAssignment, "0+", nullable="0+")


@message
class ConsumerGroupDescribeRequest:
    """Request descriptions of groups of the consumer protocol."""

    group_ids: list[str] = array(string, "0+")
    include_authorized_operations: bool = boolean("0+")


@message
class DescribedTopicPartitions:
    """Partitions of a topic in an assignment."""

    topic_id: bytes = uuid("0+")
    topic_name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


@message
class DescribedAssignment:
    """The partitions of a member."""

    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions, "0+")


@message
class DescribedConsumerMember:
    """A member: what it may consume now, and what it is on the way to.

    ``member_type`` is 0 for a member that uses the classic protocol, 1 for the consumer protocol.
    """

    member_id: str = string("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+", default=None)
    assignment: DescribedAssignment = struct(DescribedAssignment, "0+")
    target_assignment: DescribedAssignment = struct(DescribedAssignment, "0+")
    member_type: int = int8("1+", default=-1)


@message
class DescribedConsumerGroup:
    """A group of the consumer protocol."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[DescribedConsumerMember] = array(DescribedConsumerMember, "0+")
    authorized_operations: int = int32("0+", default=OPERATIONS_NOT_ASKED)


@message
class ConsumerGroupDescribeResponse:
    """The requested groups."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup, "0+")
