"""Transactions: adding to them, ending them, markers, describing and listing them.

The versions that belong to Kafka's transaction version 2, and those between brokers, are not declared:
AddPartitionsToTxn from 4 on, EndTxn and TxnOffsetCommit from 5 on.
"""

from __future__ import annotations

from cordwood.protocol.schema import array, boolean, int8, int16, int32, int64, message, string


@message
class AddPartitionsToTxnTopic:
    """A topic and the partitions to add."""

    name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


@message
class AddPartitionsToTxnRequest:
    """Add partitions to the transaction of a producer. The names of the fields are Kafka's."""

    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


@message
class AddPartitionsToTxnPartitionResult:
    """The result for one partition."""

    partition_index: int = int32("0+")
    partition_error_code: int = int16("0+")


@message
class AddPartitionsToTxnTopicResult:
    """A topic and its partitions."""

    name: str = string("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult, "0+"
    )


@message
class AddPartitionsToTxnResponse:
    """The result for each partition. There is no error code of the whole request."""

    throttle_time_ms: int = int32("0+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3"
    )


@message
class AddOffsetsToTxnRequest:
    """Add the offsets of a group to the transaction of a producer."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


@message
class AddOffsetsToTxnResponse:
    """The result."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")


@message
class EndTxnRequest:
    """Commit or abort the transaction of a producer."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")


@message
class EndTxnResponse:
    """The result."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")


@message
class WritableTxnMarkerTopic:
    """A topic and the partitions that get the marker."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


@message
class WritableTxnMarker:
    """The end of the transaction of a producer; ``transaction_result`` is True for a commit."""

    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    transaction_result: bool = boolean("0+")
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, "0+")
    coordinator_epoch: int = int32("0+")
    transaction_version: int = int8("2+")


@message
class WriteTxnMarkersRequest:
    """Append markers that end transactions."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "0+")


@message
class WritableTxnMarkerPartitionResult:
    """The result for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


@message
class WritableTxnMarkerTopicResult:
    """A topic and its partitions."""

    name: str = string("0+")
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult, "0+")


@message
class WritableTxnMarkerResult:
    """A producer and the results of its marker."""

    producer_id: int = int64("0+")
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, "0+")


@message
class WriteTxnMarkersResponse:
    """The results of each marker."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, "0+")


@message
class DescribeTransactionsRequest:
    """Request the state of transactional ids."""

    transactional_ids: list[str] = array(string, "0+")


@message
class TransactionTopic:
    """A topic and its partitions that are in the transaction and have no marker yet."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


@message
class DescribedTransaction:
    """The state of one transactional id; the start time is -1 if no transaction is ongoing."""

    error_code: int = int16("0+")
    transactional_id: str = string("0+")
    transaction_state: str = string("0+")
    transaction_timeout_ms: int = int32("0+")
    transaction_start_time_ms: int = int64("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    topics: list[TransactionTopic] = array(TransactionTopic, "0+")


@message
class DescribeTransactionsResponse:
    """The state of each transactional id."""

    throttle_time_ms: int = int32("0+")
    transaction_states: list[DescribedTransaction] = array(DescribedTransaction, "0+")


@message
class ListTransactionsRequest:
    """Request transactions by state, producer, age in milliseconds and a pattern of ids."""

    state_filters: list[str] = array(string, "0+")
    producer_id_filters: list[int] = array(int64, "0+")
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


@message
class ListedTransaction:
    """A transactional id, its producer and its state."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    transaction_state: str = string("0+")


@message
class ListTransactionsResponse:
    """The matching transactions, and the requested states that do not exist."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = array(string, "0+")
    transaction_states: list[ListedTransaction] = array(ListedTransaction, "0+")
