"""Requests to Kafka's controllers: elections, reassignments, the quorum, features."""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int8, int16, int32, int64, message, string, uint16, uuid


@message
class TopicPartitions:
    """A topic and the requested partitions."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


@message
class ElectLeadersRequest:
    """Elect the leaders of partitions; null means all partitions."""

    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, "0+", nullable="0+")
    timeout_ms: int = int32("0+", default=60000)


@message
class ElectionResult:
    """The result of one election."""

    partition_id: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


@message
class ReplicaElectionResult:
    """A topic and the elections in it."""

    topic: str = string("0+")
    partition_result: list[ElectionResult] = array(ElectionResult, "0+")


@message
class ElectLeadersResponse:
    """The result of each election."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult, "0+")


@message
class ReassignablePartition:
    """A partition and its new brokers; null cancels a reassignment."""

    partition_index: int = int32("0+")
    replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None)


@message
class ReassignableTopic:
    """A topic and the partitions to reassign."""

    name: str = string("0+")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, "0+")


@message
class AlterPartitionReassignmentsRequest:
    """Move partitions to other brokers."""

    timeout_ms: int = int32("0+", default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic, "0+")


@message
class ReassignablePartitionResponse:
    """The result for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


@message
class ReassignableTopicResponse:
    """A topic and the results for its partitions."""

    name: str = string("0+")
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse, "0+")


@message
class AlterPartitionReassignmentsResponse:
    """The result for each partition."""

    throttle_time_ms: int = int32("0+")
    allow_replication_factor_change: bool = boolean("1+", default=True)
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse, "0+")


@message
class ListPartitionReassignmentsTopics:
    """A topic and the requested partitions."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


@message
class ListPartitionReassignmentsRequest:
    """Request the reassignments in progress; null means all topics."""

    timeout_ms: int = int32("0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, "0+", nullable="0+", default=None
    )


@message
class OngoingPartitionReassignment:
    """A partition that is being reassigned."""

    partition_index: int = int32("0+")
    replicas: list[int] = array(int32, "0+")
    adding_replicas: list[int] = array(int32, "0+")
    removing_replicas: list[int] = array(int32, "0+")


@message
class OngoingTopicReassignment:
    """A topic and its partitions that are being reassigned."""

    name: str = string("0+")
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment, "0+")


@message
class ListPartitionReassignmentsResponse:
    """The reassignments in progress."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment, "0+")


@message
class QuorumPartition:
    """A requested partition."""

    partition_index: int = int32("0+")


@message
class QuorumTopic:
    """A requested topic."""

    topic_name: str = string("0+")
    partitions: list[QuorumPartition] = array(QuorumPartition, "0+")


@message
class DescribeQuorumRequest:
    """Request the state of the quorum."""

    topics: list[QuorumTopic] = array(QuorumTopic, "0+")


@message
class ReplicaState:
    """The progress of one replica; times are -1 if unknown."""

    replica_id: int = int32("0+")
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64("0+")
    last_fetch_timestamp: int = int64("1+", default=-1)
    last_caught_up_timestamp: int = int64("1+", default=-1)


@message
class QuorumPartitionState:
    """The leader of the quorum and its replicas."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    high_watermark: int = int64("0+")
    current_voters: list[ReplicaState] = array(ReplicaState, "0+")
    observers: list[ReplicaState] = array(ReplicaState, "0+")


@message
class QuorumTopicState:
    """The topic of the quorum."""

    topic_name: str = string("0+")
    partitions: list[QuorumPartitionState] = array(QuorumPartitionState, "0+")


@message
class QuorumListener:
    """An address of a node."""

    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


@message
class QuorumNode:
    """A node of the quorum."""

    node_id: int = int32("2+")
    listeners: list[QuorumListener] = array(QuorumListener, "2+")


@message
class DescribeQuorumResponse:
    """The state of the quorum."""

    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+")
    topics: list[QuorumTopicState] = array(QuorumTopicState, "0+")
    nodes: list[QuorumNode] = array(QuorumNode, "2+")


@message
class FeatureUpdateKey:
    """A feature and its new level."""

    feature: str = string("0+")
    max_version_level: int = int16("0+")
    allow_downgrade: bool = boolean("0")
    upgrade_type: int = int8("1+", default=1)


@message
class UpdateFeaturesRequest:
    """Change the levels of features."""

    timeout_ms: int = int32("0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey, "0+")
    validate_only: bool = boolean("1+")


@message
class UpdatableFeatureResult:
    """The result for one feature."""

    feature: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


@message
class UpdateFeaturesResponse:
    """The result for each feature; from version 2 on, one result for all."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, "0-1")
