"""Descriptions of the cluster: DescribeCluster, DescribeTopicPartitions, DescribeLogDirs."""

from __future__ import annotations

from cordwood.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from cordwood.protocol.schema import array, boolean, int8, int16, int32, int64, message, string, struct, uuid


@message
class DescribeClusterRequest:
    """Request the brokers."""

    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")


@message
class DescribeClusterBroker:
    """A broker and its address for clients."""

    broker_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)
    is_fenced: bool = boolean("2+")


@message
class DescribeClusterResponse:
    """The brokers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, "0+")
    cluster_authorized_operations: int = int32("0+", default=OPERATIONS_NOT_ASKED)


@message
class TopicRequest:
    """A requested topic."""

    name: str = string("0+")


@message
class TopicCursor:
    """The first partition of the next page."""

    topic_name: str = string("0+")
    partition_index: int = int32("0+")


@message
class DescribeTopicPartitionsRequest:
    """Request topics and their partitions, one page at a time."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
    response_partition_limit: int = int32("0+", default=2000)
    cursor: TopicCursor | None = struct(TopicCursor, "0+", nullable="0+")


@message
class DescribeTopicPartitionsResponsePartition:
    """A partition, its leader and its replicas."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1)
    replica_nodes: list[int] = array(int32, "0+")
    isr_nodes: list[int] = array(int32, "0+")
    eligible_leader_replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None)
    last_known_elr: list[int] | None = array(int32, "0+", nullable="0+", default=None)
    offline_replicas: list[int] = array(int32, "0+")


@message
class DescribeTopicPartitionsResponseTopic:
    """A topic and its partitions."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="0+")
    topic_id: bytes = uuid("0+")
    is_internal: bool = boolean("0+")
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition, "0+"
    )
    topic_authorized_operations: int = int32("0+", default=OPERATIONS_NOT_ASKED)


@message
class DescribeTopicPartitionsResponse:
    """A page of topics, and the start of the next page or null."""

    throttle_time_ms: int = int32("0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic, "0+")
    next_cursor: TopicCursor | None = struct(TopicCursor, "0+", nullable="0+")


@message
class DescribableLogDirTopic:
    """A topic and the requested partitions."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


@message
class DescribeLogDirsRequest:
    """Request the sizes of partitions; null means all topics."""

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, "0+", nullable="0+")


@message
class DescribeLogDirsPartition:
    """A partition and its size in bytes."""

    partition_index: int = int32("0+")
    partition_size: int = int64("0+")
    offset_lag: int = int64("0+")
    is_future_key: bool = boolean("0+")


@message
class DescribeLogDirsTopic:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition, "0+")


@message
class DescribeLogDirsResult:
    """One data directory; its sizes are in bytes, -1 if unknown."""

    error_code: int = int16("0+")
    log_dir: str = string("0+")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, "0+")
    total_bytes: int = int64("4+", default=-1)
    usable_bytes: int = int64("4+", default=-1)
    is_cordoned: bool = boolean("5+")


@message
class DescribeLogDirsResponse:
    """The sizes of partitions by data directory."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, "0+")
