"""Committed offsets of consumer groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int16, int32, int64, message, string, uuid


@message
class OffsetCommitRequestPartition:
    """The committed offset of a partition, and its metadata."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("6+", default=-1)
    committed_metadata: str | None = string("0+", nullable="0+")


@message
class OffsetCommitRequestTopic:
    """A topic by ``name`` up to version 9, by ``topic_id`` from 10 on."""

    name: str = string("0-9")
    topic_id: bytes = uuid("10+")
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition, "0+")


@message
class OffsetCommitRequest:
    """Commit offsets of a group."""

    group_id: str = string("0+")
    generation_id_or_member_epoch: int = int32("1+", default=-1)
    member_id: str = string("1+")
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, "0+")


@message
class OffsetCommitResponsePartition:
    """The result for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


@message
class OffsetCommitResponseTopic:
    """A topic by ``name`` up to version 9, by ``topic_id`` from 10 on."""

    name: str = string("0-9")
    topic_id: bytes = uuid("10+")
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition, "0+")


@message
class OffsetCommitResponse:
    """The result for each offset."""

    throttle_time_ms: int = int32("3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, "0+")


@message
class OffsetFetchRequestTopic:
    """A topic of the single group of versions up to 7."""

    name: str = string("0-7")
    partition_indexes: list[int] = array(int32, "0-7")


@message
class OffsetFetchRequestTopics:
    """A topic of a group: by ``name`` up to version 9, by ``topic_id`` from 10 on."""

    name: str = string("8-9")
    topic_id: bytes = uuid("10+")
    partition_indexes: list[int] = array(int32, "8+")


@message
class OffsetFetchRequestGroup:
    """A group and the requested topics; null means all topics with offsets of the group."""

    group_id: str = string("8+")
    member_id: str | None = string("9+", nullable="9+", default=None)
    member_epoch: int = int32("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, "8+", nullable="8+")


@message
class OffsetFetchRequest:
    """Request committed offsets: of one group up to version 7, of ``groups`` from 8 on."""

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


@message
class OffsetFetchResponsePartition:
    """An offset and its metadata; -1 if the group has none."""

    partition_index: int = int32("0-7")
    committed_offset: int = int64("0-7")
    committed_leader_epoch: int = int32("5-7", default=-1)
    metadata: str | None = string("0-7", nullable="0-7")
    error_code: int = int16("0-7")


@message
class OffsetFetchResponseTopic:
    """A topic of the requested group."""

    name: str = string("0-7")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


@message
class OffsetFetchResponsePartitions:
    """An offset and its metadata; -1 if the group has none."""

    partition_index: int = int32("8+")
    committed_offset: int = int64("8+")
    committed_leader_epoch: int = int32("8+", default=-1)
    metadata: str | None = string("8+", nullable="8+")
    error_code: int = int16("8+")


@message
class OffsetFetchResponseTopics:
    """A topic of a group: by ``name`` up to version 9, by ``topic_id`` from 10 on."""

    name: str = string("8-9")
    topic_id: bytes = uuid("10+")
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "8+")


@message
class OffsetFetchResponseGroup:
    """The committed offsets of one group."""

    group_id: str = string("8+")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = int16("8+")


@message
class OffsetFetchResponse:
    """Committed offsets: of one group up to version 7, of ``groups`` from 8 on."""

    throttle_time_ms: int = int32("3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = int16("2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")


@message
class OffsetDeleteRequestPartition:
    """A partition whose offset is deleted."""

    partition_index: int = int32("0+")


@message
class OffsetDeleteRequestTopic:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, "0+")


@message
class OffsetDeleteRequest:
    """Delete committed offsets of a group."""

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, "0+")


@message
class OffsetDeleteResponsePartition:
    """The result for one offset."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


@message
class OffsetDeleteResponseTopic:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition, "0+")


@message
class OffsetDeleteResponse:
    """The result for each offset. Unlike in other responses, the error comes before the throttle time."""

    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+")
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, "0+")


@message
class TxnOffsetCommitRequestPartition:
    """The offset of one partition."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("2+", default=-1)
    committed_metadata: str | None = string("0+", nullable="0+")


@message
class TxnOffsetCommitRequestTopic:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, "0+")


@message
class TxnOffsetCommitRequest:
    """Commit offsets of a group as part of the transaction of a producer."""

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, "0+")


@message
class TxnOffsetCommitResponsePartition:
    """The result for one offset."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


@message
class TxnOffsetCommitResponseTopic:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition, "0+")


@message
class TxnOffsetCommitResponse:
    """The result for each offset. There is no error code of the whole request."""

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, "0+")
