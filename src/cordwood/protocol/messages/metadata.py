"""Metadata: topics, partitions and their leaders."""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int16, int32, message, string, uuid

#: The value of a bit field of authorized operations that were not requested.
OPERATIONS_NOT_ASKED = -(2**31)


@message
class MetadataRequestTopic:
    """A topic, by name or, with a null name, by id."""

    topic_id: bytes = uuid("10+")
    name: str | None = string("0+", nullable="10+")


@message
class MetadataRequest:
    """Request these topics, or all: a null list from version 1 on, an empty one in version 0."""

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, "0+", nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


@message
class MetadataResponseBroker:
    """A broker and its address for clients."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("1+", nullable="1+", default=None)


@message
class MetadataResponsePartition:
    """A partition, its leader and its replicas."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("7+", default=-1)
    replica_nodes: list[int] = array(int32, "0+")
    isr_nodes: list[int] = array(int32, "0+")
    offline_replicas: list[int] = array(int32, "5+")


@message
class MetadataResponseTopic:
    """A topic. Its name is null only for an unknown id."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="12+")
    topic_id: bytes = uuid("10+")
    is_internal: bool = boolean("1+")
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, "0+")
    topic_authorized_operations: int = int32("8+", default=OPERATIONS_NOT_ASKED)


@message
class MetadataResponse:
    """The brokers and the requested topics."""

    throttle_time_ms: int = int32("3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, "0+")
    cluster_id: str | None = string("2+", nullable="2+", default=None)
    controller_id: int = int32("1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "0+")
    cluster_authorized_operations: int = int32("8-10", default=OPERATIONS_NOT_ASKED)
    error_code: int = int16("13+")
