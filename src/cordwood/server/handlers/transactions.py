"""The requests of transactional producers, and those that list, describe and end transactions."""

from __future__ import annotations

import asyncio

from cordwood.broker import is_read_only
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.transactions import ProducerIdentity, TransactionState
from cordwood.errors import ProducerFenced, StorageError
from cordwood.formats import Marker
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionTopic,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from cordwood.records import TopicPartition
from cordwood.security import Operation, ResourceType
from cordwood.server.answers import code_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.groups import settling
from cordwood.server.patterns import InvalidPattern, id_pattern
from cordwood.server.security import Rights

#: The first versions whose clients know PRODUCER_FENCED; older ones know INVALID_PRODUCER_EPOCH instead.
INIT_KNOWS_FENCED, OTHERS_KNOW_FENCED = 4, 2
_STATES = {state.value: state for state in TransactionState}


def refusal_of(context: Context, transactional_id: str) -> ErrorCode | None:
    """Return the error code if a transactional id cannot be served, or None."""
    if not context.transactions.takes(transactional_id):
        return ErrorCode.INVALID_REQUEST
    return unavailable_transactions(context)


def unavailable_transactions(context: Context) -> ErrorCode | None:
    """Return the error code if no transaction can be served, or None."""
    if context.closing:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return None if context.transactions.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def transaction_code(error: Exception | None, *, knows_fenced: bool) -> ErrorCode:
    """Return the error code of an answer of the coordinator."""
    if error is None:
        return ErrorCode.NONE
    if isinstance(error, ProducerFenced):
        return ErrorCode.PRODUCER_FENCED if knows_fenced else ErrorCode.INVALID_PRODUCER_EPOCH
    if isinstance(error, StorageError):
        # The state could not be stored. Clients look for the coordinator and try again.
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code_of(error)


async def add_partitions_to_txn(context: Context, exchange: Exchange) -> AddPartitionsToTxnResponse:
    """Add partitions to a transaction, all or none."""
    request: AddPartitionsToTxnRequest = exchange.request.body
    topics, transactional_id = request.v3_and_below_topics, request.v3_and_below_transactional_id
    places = [(topic.name, number) for topic in topics for number in topic.partitions]
    rights = context.rights(exchange)
    code = rights.transaction_refusal(Operation.WRITE, transactional_id)
    if code is not None:
        return _added(topics, dict.fromkeys(places, code))
    unwritable = {topic.name: rights.topic_refusal(Operation.WRITE, topic.name) for topic in topics}
    refused = {
        place: code
        for place in places
        if (code := unwritable[place[0]] or _cannot_add(context, *place)) is not None
    }
    if refused:
        codes = {place: refused.get(place, ErrorCode.OPERATION_NOT_ATTEMPTED) for place in places}
        return _added(topics, codes)
    code = refusal_of(context, transactional_id)
    if code is None:
        producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        error = await context.transactions.add_partitions(transactional_id, producer, places)
        code = transaction_code(error, knows_fenced=exchange.request.api_version >= OTHERS_KNOW_FENCED)
    return _added(topics, dict.fromkeys(places, code))


def _cannot_add(context: Context, topic: str, partition: int) -> ErrorCode | None:
    found = context.tenant.find(topic)
    if found is None or not 0 <= partition < found.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # As in Kafka: only AddOffsetsToTxn adds an internal topic.
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_read_only(found.name) else None


def _added(
    topics: list[AddPartitionsToTxnTopic], codes: dict[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=codes[topic.name, number]
                    )
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


async def add_offsets_to_txn(context: Context, exchange: Exchange) -> AddOffsetsToTxnResponse:
    """Add the offsets of a group to a transaction."""
    request: AddOffsetsToTxnRequest = exchange.request.body
    rights = context.rights(exchange)
    code = (
        rights.transaction_refusal(Operation.WRITE, request.transactional_id)
        or rights.group_refusal(Operation.READ, request.group_id)
        or refusal_of(context, request.transactional_id)
    )
    if code is None and not context.groups.takes(request.group_id):
        code = ErrorCode.INVALID_GROUP_ID
    if code is None:
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        error = await context.transactions.add_offsets(request.transactional_id, producer)
        code = transaction_code(error, knows_fenced=exchange.request.api_version >= OTHERS_KNOW_FENCED)
    return AddOffsetsToTxnResponse(error_code=code)


async def end_txn(context: Context, exchange: Exchange) -> EndTxnResponse:
    """Commit or abort a transaction; the answer comes once the decision is synced."""
    request: EndTxnRequest = exchange.request.body
    code = context.rights(exchange).transaction_refusal(
        Operation.WRITE, request.transactional_id
    ) or refusal_of(context, request.transactional_id)
    if code is None:
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        error = await context.transactions.end(request.transactional_id, producer, request.committed)
        code = transaction_code(error, knows_fenced=exchange.request.api_version >= OTHERS_KNOW_FENCED)
    return EndTxnResponse(error_code=code)


async def write_txn_markers(context: Context, exchange: Exchange) -> WriteTxnMarkersResponse:
    """End transactions in partitions without their coordinator, for operators.

    It is for transactions that no coordinator knows. As in Kafka, that is not checked.
    """
    request: WriteTxnMarkersRequest = exchange.request.body
    return WriteTxnMarkersResponse(markers=[await _mark(context, marker) for marker in request.markers])


async def _mark(context: Context, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
    places = [(topic.name, number) for topic in marker.topics for number in topic.partition_indexes]
    codes: dict[TopicPartition, ErrorCode] = {}
    keys: dict[TopicPartition, TopicPartition] = {}
    for place in dict.fromkeys(places):
        found = context.tenant.find(place[0])
        if context.administration is None:
            codes[place] = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        elif found is None or not 0 <= place[1] < found.partitions:
            codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif is_read_only(found.name) and found.name != OFFSETS_TOPIC:
            codes[place] = ErrorCode.INVALID_TOPIC_EXCEPTION
        else:
            keys[found.key, place[1]] = place
    ended = Marker(
        marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch
    )
    done: asyncio.Future[dict[TopicPartition, Exception]] = context.loop.create_future()
    context.transactions.mark([(key, ended) for key in keys], settling(done))
    failures = await done
    for key, place in keys.items():
        error = failures.get(key)
        codes[place] = ErrorCode.NONE if error is None else code_of(error)
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=number, error_code=codes[topic.name, number]
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )


async def describe_transactions(context: Context, exchange: Exchange) -> DescribeTransactionsResponse:
    """Return the state of transactional ids, without topics that the client may not describe."""
    request: DescribeTransactionsRequest = exchange.request.body
    rights = context.rights(exchange)
    return DescribeTransactionsResponse(
        transaction_states=[_described(context, rights, each) for each in request.transactional_ids]
    )


def _described(context: Context, rights: Rights, transactional_id: str) -> DescribedTransaction:
    code = rights.transaction_refusal(Operation.DESCRIBE, transactional_id) or refusal_of(
        context, transactional_id
    )
    if code is not None:
        return DescribedTransaction(error_code=code, transactional_id=transactional_id)
    found = context.transactions.find(transactional_id)
    if found is None:
        return DescribedTransaction(
            error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id
        )
    current = found.current
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=found.state.value,
        transaction_timeout_ms=current.timeout_ms,
        transaction_start_time_ms=current.started_ms,
        producer_id=current.producer_id,
        producer_epoch=current.epoch,
        topics=[
            TransactionTopic(topic=topic, partitions=numbers)
            for topic, numbers in context.transactions.partitions_of(found).items()
            if rights.sees_topic(topic)
        ],
    )


async def list_transactions(context: Context, exchange: Exchange) -> ListTransactionsResponse:
    """Return the transactional ids that pass all filters and that the client may describe."""
    request: ListTransactionsRequest = exchange.request.body
    code = unavailable_transactions(context)
    if code is not None:
        return ListTransactionsResponse(error_code=code)
    try:
        matches = id_pattern(request.transactional_id_pattern)
    except InvalidPattern:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in _STATES]
    states = {_STATES[name] for name in request.state_filters if name in _STATES}
    producer_ids = set(request.producer_id_filters)
    begun_before_ms = context.transactions.now_ms() - request.duration_filter
    rights = context.rights(exchange)
    found = []
    for name, transaction in context.transactions:
        current = transaction.current
        if request.state_filters and transaction.state not in states:
            continue
        if producer_ids and current.producer_id not in producer_ids:
            continue
        if request.duration_filter >= 0 and current.started_ms >= begun_before_ms:
            continue
        if matches(name) and rights.sees(ResourceType.TRANSACTIONAL_ID, name):
            found.append(
                ListedTransaction(
                    transactional_id=name,
                    producer_id=current.producer_id,
                    transaction_state=transaction.state.value,
                )
            )
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)
