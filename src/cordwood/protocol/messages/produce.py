"""Produce: append batches to partitions."""

from __future__ import annotations

from cordwood.protocol.schema import array, batches, int16, int32, int64, message, string, uuid


@message
class ProducePartition:
    """The batches for one partition."""

    index: int = int32("0+")
    records: memoryview | None = batches("0+", nullable="0+", default=None)


@message
class ProduceTopic:
    """A topic by ``name`` up to version 12; from 13 on by ``topic_id``, and the name is empty."""

    name: str = string("0-12")
    topic_id: bytes = uuid("13+")
    partitions: list[ProducePartition] = array(ProducePartition, "0+")


@message
class ProduceRequest:
    """Append these batches. ``acks`` is -1 for all, 1 for the leader, 0 for no response."""

    transactional_id: str | None = string("3+", nullable="3+", default=None)
    acks: int = int16("0+")
    timeout_ms: int = int32("0+")
    topics: list[ProduceTopic] = array(ProduceTopic, "0+")


@message
class RecordError:
    """The error of one record; ``batch_index`` is its index in the batch."""

    batch_index: int = int32("8+")
    message: str | None = string("8+", nullable="8+", default=None)


@message
class ProducePartitionResponse:
    """The offsets of one partition's batches, or the error.

    A client that is told of no other leader asks for metadata, so that tagged field is not declared.
    """

    index: int = int32("0+")
    error_code: int = int16("0+")
    base_offset: int = int64("0+", default=-1)
    log_append_time_ms: int = int64("2+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    record_errors: list[RecordError] = array(RecordError, "8+")
    error_message: str | None = string("8+", nullable="8+", default=None)


@message
class ProduceTopicResponse:
    """A topic by ``name`` up to version 12, by ``topic_id`` from 13 on."""

    name: str = string("0-12")
    topic_id: bytes = uuid("13+")
    partitions: list[ProducePartitionResponse] = array(ProducePartitionResponse, "0+")


@message
class ProduceResponse:
    """The result for each partition."""

    topics: list[ProduceTopicResponse] = array(ProduceTopicResponse, "0+")
    throttle_time_ms: int = int32("1+")
