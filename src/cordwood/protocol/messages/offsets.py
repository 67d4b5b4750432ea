"""ListOffsets and OffsetForLeaderEpoch: offsets by timestamp, and the ends of epochs."""

from __future__ import annotations

from cordwood.protocol.schema import array, int8, int16, int32, int64, message, string


@message
class ListOffsetsPartition:
    """A partition, and a timestamp in milliseconds or one of Kafka's negative special values."""

    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1)
    timestamp: int = int64("0+")


@message
class ListOffsetsTopic:
    """A topic and the requested partitions."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


@message
class ListOffsetsRequest:
    """Request the first record at or after each timestamp."""

    replica_id: int = int32("0+")
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+")


@message
class ListOffsetsPartitionResponse:
    """The record found; offset and timestamp are -1 if there is none."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    timestamp: int = int64("1+", default=-1)
    offset: int = int64("1+", default=-1)
    leader_epoch: int = int32("4+", default=-1)


@message
class ListOffsetsTopicResponse:
    """A topic and the results for its partitions."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, "0+")


@message
class ListOffsetsResponse:
    """The result for each partition."""

    throttle_time_ms: int = int32("2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, "0+")


@message
class OffsetForLeaderPartition:
    """A partition and the requested epoch."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("2+", default=-1)
    leader_epoch: int = int32("0+")


@message
class OffsetForLeaderTopic:
    """A topic and the requested partitions."""

    topic: str = string("0+")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, "0+")


@message
class OffsetForLeaderEpochRequest:
    """Request the end offset of an epoch, to find out whether the log was truncated."""

    replica_id: int = int32("3+", default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, "0+")


@message
class EpochEndOffset:
    """The largest epoch not above the requested one, and the offset after its last record."""

    error_code: int = int16("0+")
    partition: int = int32("0+")
    leader_epoch: int = int32("1+", default=-1)
    end_offset: int = int64("0+", default=-1)


@message
class OffsetForLeaderTopicResult:
    """A topic and the results for its partitions."""

    topic: str = string("0+")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "0+")


@message
class OffsetForLeaderEpochResponse:
    """The end offset of each epoch."""

    throttle_time_ms: int = int32("2+")
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, "0+")
