"""Producers: InitProducerId and DescribeProducers."""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int16, int32, int64, message, string


@message
class InitProducerIdRequest:
    """Request a producer id, or increase the epoch of an existing one."""

    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


@message
class InitProducerIdResponse:
    """The producer id and its epoch."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)


@message
class DescribeProducersTopic:
    """A topic and the requested partitions."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


@message
class DescribeProducersRequest:
    """Request the producers of partitions."""

    topics: list[DescribeProducersTopic] = array(DescribeProducersTopic, "0+")


@message
class ProducerState:
    """A producer, its last batch, and the start offset of its open transaction or -1."""

    producer_id: int = int64("0+")
    producer_epoch: int = int32("0+")
    last_sequence: int = int32("0+", default=-1)
    last_timestamp: int = int64("0+", default=-1)
    coordinator_epoch: int = int32("0+")
    current_txn_start_offset: int = int64("0+", default=-1)


@message
class DescribeProducersPartition:
    """A partition and its producers."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState, "0+")


@message
class DescribeProducersTopicResult:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[DescribeProducersPartition] = array(DescribeProducersPartition, "0+")


@message
class DescribeProducersResponse:
    """The producers of each partition."""

    throttle_time_ms: int = int32("0+")
    topics: list[DescribeProducersTopicResult] = array(DescribeProducersTopicResult, "0+")
