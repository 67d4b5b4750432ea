"""Topics: creating and deleting them, adding partitions, deleting records."""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int8, int16, int32, int64, message, string, uuid


@message
class CreatableReplicaAssignment:
    """The brokers of a partition."""

    partition_index: int = int32("0+")
    broker_ids: list[int] = array(int32, "0+")


@message
class CreatableTopicConfig:
    """One setting of the new topic."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


@message
class CreatableTopic:
    """A topic to create; -1 partitions or replicas leave the number to the broker."""

    name: str = string("0+")
    num_partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


@message
class CreateTopicsRequest:
    """Create these topics, or only validate the request."""

    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+")


@message
class CreatableTopicConfigs:
    """One effective setting of the new topic."""

    name: str = string("5+")
    value: str | None = string("5+", nullable="5+")
    read_only: bool = boolean("5+")
    config_source: int = int8("5+", default=-1)
    is_sensitive: bool = boolean("5+")


@message
class CreatableTopicResult:
    """The result for one topic."""

    name: str = string("0+")
    topic_id: bytes = uuid("7+")
    error_code: int = int16("0+")
    error_message: str | None = string("1+", nullable="0+")
    topic_config_error_code: int = int16("5+", tag=0)
    num_partitions: int = int32("5+", default=-1)
    replication_factor: int = int16("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, "5+", nullable="5+")


@message
class CreateTopicsResponse:
    """The result for each topic."""

    throttle_time_ms: int = int32("2+")
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "0+")


@message
class DeleteTopicState:
    """A topic by name or, with a null name, by id."""

    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: bytes = uuid("6+")


@message
class DeleteTopicsRequest:
    """Delete these topics: ``topics`` from version 6 on, ``topic_names`` before."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(string, "0-5")
    timeout_ms: int = int32("0+")


@message
class DeletableTopicResult:
    """The result for one topic."""

    name: str | None = string("0+", nullable="6+")
    topic_id: bytes = uuid("6+")
    error_code: int = int16("0+")
    error_message: str | None = string("5+", nullable="5+", default=None)


@message
class DeleteTopicsResponse:
    """The result for each topic."""

    throttle_time_ms: int = int32("1+")
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, "0+")


@message
class CreatePartitionsAssignment:
    """The brokers of a new partition."""

    broker_ids: list[int] = array(int32, "0+")


@message
class CreatePartitionsTopic:
    """A topic and its new total number of partitions; null assignments let the broker choose."""

    name: str = string("0+")
    count: int = int32("0+")
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, "0+", nullable="0+"
    )


@message
class CreatePartitionsRequest:
    """Add partitions to topics."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")


@message
class CreatePartitionsTopicResult:
    """The result for one topic."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


@message
class CreatePartitionsResponse:
    """The result for each topic."""

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, "0+")


@message
class DeleteRecordsPartition:
    """A partition, and the offset below which records are deleted; -1 means the high watermark."""

    partition_index: int = int32("0+")
    offset: int = int64("0+")


@message
class DeleteRecordsTopic:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, "0+")


@message
class DeleteRecordsRequest:
    """Delete the oldest records."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "0+")
    timeout_ms: int = int32("0+")


@message
class DeleteRecordsPartitionResult:
    """The new log start offset of one partition."""

    partition_index: int = int32("0+")
    low_watermark: int = int64("0+")
    error_code: int = int16("0+")


@message
class DeleteRecordsTopicResult:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult, "0+")


@message
class DeleteRecordsResponse:
    """The new log start offset of each partition."""

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, "0+")
