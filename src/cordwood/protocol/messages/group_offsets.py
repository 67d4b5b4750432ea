"""What consumer groups have consumed: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int16, int32, int64, message, string, uuid


@message
class OffsetCommitRequestPartition:
    """The offset up to which a partition is consumed, and a note to keep with it."""

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
    """Remember how far the group has come."""

    group_id: str = string("0+")
    generation_id_or_member_epoch: int = int32("1+", default=-1)
    member_id: str = string("1+")
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, "0+")


@message
class OffsetCommitResponsePartition:
    """Whether the offset of one partition was kept."""

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
    """Which offsets were kept."""

    throttle_time_ms: int = int32("3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, "0+")


@message
class OffsetFetchRequestTopic:
    """A topic of the one group that can be asked about up to version 7."""

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
    """A group, and the topics asked for; null stands for all it has offsets of."""

    group_id: str = string("8+")
    member_id: str | None = string("9+", nullable="9+", default=None)
    member_epoch: int = int32("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, "8+", nullable="8+")


@message
class OffsetFetchRequest:
    """Ask how far a group has come: one up to version 7, ``groups`` from 8 on."""

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


@message
class OffsetFetchResponsePartition:
    """An offset and its note; -1 where the group has none."""

    partition_index: int = int32("0-7")
    committed_offset: int = int64("0-7")
    committed_leader_epoch: int = int32("5-7", default=-1)
    metadata: str | None = string("0-7", nullable="0-7")
    error_code: int = int16("0-7")


@message
class OffsetFetchResponseTopic:
    """A topic of the one group that was asked about."""

    name: str = string("0-7")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


@message
class OffsetFetchResponsePartitions:
    """An offset and its note; -1 where the group has none."""

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
    """How far one group has come."""

    group_id: str = string("8+")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = int16("8+")


@message
class OffsetFetchResponse:
    """How far the groups have come: one up to version 7, ``groups`` from 8 on."""

    throttle_time_ms: int = int32("3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = int16("2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")


@message
class OffsetDeleteRequestPartition:
    """A partition whose offset is to be forgotten."""

    partition_index: int = int32("0+")


@message
class OffsetDeleteRequestTopic:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, "0+")


@message
class OffsetDeleteRequest:
    """Forget how far a group has come."""

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, "0+")


@message
class OffsetDeleteResponsePartition:
    """Whether one offset was forgotten."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


@message
class OffsetDeleteResponseTopic:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition, "0+")


@message
class OffsetDeleteResponse:
    """Which offsets were forgotten. The error comes before the throttle time, unlike anywhere else."""

    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+")
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, "0+")
