"""Elections, reassignments, the quorum and features, answered for a cluster of one broker."""

from __future__ import annotations

from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ElectionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    FeatureUpdateKey,
    FinalizedFeatureKey,
    ListPartitionReassignmentsResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartitionState,
    QuorumTopicState,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
    ReplicaState,
    SupportedFeatureKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from cordwood.server.answers import shortened
from cordwood.server.connections import Exchange
from cordwood.server.context import Context

#: The features of Kafka 4.3 that Cordwood supports, and their levels. Clients treat missing features, such as
#: `transaction.version`, as disabled, which they are.
FEATURES = {"group.version": 1, "metadata.version": 30}
#: Would increase with every change to the features; they never change.
FEATURES_EPOCH = 0
#: The log of Kafka's quorum and its only partition.
QUORUM_TOPIC, QUORUM_PARTITION = "__cluster_metadata", 0
_QUORUM_EPOCH = 1
_ELECTION_TYPES = (0, 1)
_PER_FEATURE_UP_TO = 1


def supported_features() -> list[SupportedFeatureKey]:
    """Return the features that this broker supports."""
    return [SupportedFeatureKey(name=name, min_version=at, max_version=at) for name, at in FEATURES.items()]


def finalized_features() -> list[FinalizedFeatureKey]:
    """Return the enabled features."""
    return [
        FinalizedFeatureKey(name=name, min_version_level=at, max_version_level=at)
        for name, at in FEATURES.items()
    ]


async def elect_leaders(context: Context, exchange: Exchange) -> ElectLeadersResponse:
    """Answer for each named partition that no election is needed; for all partitions answer nothing."""
    request: ElectLeadersRequest = exchange.request.body
    if request.election_type not in _ELECTION_TYPES:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[_elected(context, topic.topic, index) for index in topic.partitions],
            )
            for topic in request.topic_partitions or ()
        ]
    )


def _elected(context: Context, topic: str, index: int) -> ElectionResult:
    if _is_there(context, topic, index):
        code, message = ErrorCode.ELECTION_NOT_NEEDED, "the leader is the preferred one"
    else:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist"
    return ElectionResult(partition_id=index, error_code=code, error_message=message)


def _is_there(context: Context, topic: str, index: int) -> bool:
    found = context.tenant.find(topic)
    return found is not None and 0 <= index < found.partitions


async def alter_partition_reassignments(
    context: Context, exchange: Exchange
) -> AlterPartitionReassignmentsResponse:
    """Refuse to move partitions; accept an assignment to this broker, which changes nothing."""
    request: AlterPartitionReassignmentsRequest = exchange.request.body
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_reassigned(context, topic.name, part) for part in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _reassigned(context: Context, topic: str, asked: ReassignablePartition) -> ReassignablePartitionResponse:
    result = ReassignablePartitionResponse(partition_index=asked.partition_index, error_message=None)
    here = [context.config.node_id]
    if not _is_there(context, topic, asked.partition_index):
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        result.error_message = "the partition does not exist"
    elif asked.replicas is None:
        result.error_code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        result.error_message = "no reassignment is in progress"
    elif asked.replicas != here:
        result.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        result.error_message = shortened(f"replicas {asked.replicas}: expected {here}, the only broker")
    return result


async def list_partition_reassignments(
    context: Context, exchange: Exchange
) -> ListPartitionReassignmentsResponse:
    """Answer that no reassignment is in progress."""
    return ListPartitionReassignmentsResponse(error_message=None)


async def describe_quorum(context: Context, exchange: Exchange) -> DescribeQuorumResponse:
    """Describe this broker as the only voter. Its log has one entry per change to the visible topics."""
    request: DescribeQuorumRequest = exchange.request.body
    node_id, where = context.config.node_id, context.advertised(exchange.local)
    end = context.tenant.changes

    def partition(topic: str, index: int) -> QuorumPartitionState:
        if (topic, index) != (QUORUM_TOPIC, QUORUM_PARTITION):
            code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the quorum does not exist"
            return QuorumPartitionState(partition_index=index, error_code=code, error_message=message)
        return QuorumPartitionState(
            partition_index=index,
            error_message=None,
            leader_id=node_id,
            leader_epoch=_QUORUM_EPOCH,
            high_watermark=end,
            current_voters=[ReplicaState(replica_id=node_id, log_end_offset=end)],
        )

    return DescribeQuorumResponse(
        error_message=None,
        topics=[
            QuorumTopicState(
                topic_name=topic.topic_name,
                partitions=[partition(topic.topic_name, part.partition_index) for part in topic.partitions],
            )
            for topic in request.topics
        ],
        nodes=[
            QuorumNode(
                node_id=node_id,
                listeners=[QuorumListener(name=where.name, host=where.host, port=where.port)],
            )
        ],
    )


async def update_features(context: Context, exchange: Exchange) -> UpdateFeaturesResponse:
    """Refuse every change to a feature; its current level is accepted."""
    request: UpdateFeaturesRequest = exchange.request.body
    results = [_updated(each) for each in request.feature_updates]
    if exchange.request.api_version <= _PER_FEATURE_UP_TO:
        return UpdateFeaturesResponse(error_message=None, results=results)
    refused = next((each for each in results if each.error_code), None)
    if refused is None:
        return UpdateFeaturesResponse(error_message=None)
    return UpdateFeaturesResponse(error_code=refused.error_code, error_message=refused.error_message)


def _updated(asked: FeatureUpdateKey) -> UpdatableFeatureResult:
    result = UpdatableFeatureResult(feature=asked.feature, error_message=None)
    level = FEATURES.get(asked.feature)
    # As in Kafka, level 0 of an unknown feature is accepted: it is disabled.
    if asked.max_version_level != (level or 0):
        expected = "it is not supported" if level is None else f"it stays at {level}"
        result.error_code = ErrorCode.INVALID_UPDATE_VERSION
        result.error_message = shortened(
            f"feature {asked.feature} cannot be set to {asked.max_version_level}: {expected}"
        )
    return result
