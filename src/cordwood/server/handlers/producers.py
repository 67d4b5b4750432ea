"""InitProducerId, for idempotent and transactional producers, and DescribeProducers."""

from __future__ import annotations

from cordwood.broker.transactions import ProducerIdentity
from cordwood.errors import CordwoodError
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResult,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducerState,
)
from cordwood.security import Operation, ResourceType
from cordwood.server.answers import code_of, message_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers.transactions import INIT_KNOWS_FENCED, refusal_of, transaction_code
from cordwood.server.security import Rights

_NO_PRODUCER_ID = _NO_EPOCH = -1


async def init_producer_id(context: Context, exchange: Exchange) -> InitProducerIdResponse:
    """Return a producer id and an epoch: unique ones, or those of a transactional id.

    As in Kafka, whoever may write to any topic may be idempotent.
    """
    request: InitProducerIdRequest = exchange.request.body
    code = _init_refusal(context.rights(exchange), request)
    if code is not None:
        return InitProducerIdResponse(error_code=code, producer_epoch=_NO_EPOCH)
    if request.transactional_id is not None:
        return await _init_transactional(context, exchange, request.transactional_id)

    def give() -> InitProducerIdResponse:
        try:
            return InitProducerIdResponse(producer_id=context.node.new_producer_id())
        except CordwoodError as error:
            return InitProducerIdResponse(error_code=code_of(error))

    return await context.changes.call(give)


def _init_refusal(rights: Rights, request: InitProducerIdRequest) -> ErrorCode | None:
    if request.transactional_id is not None:
        code = rights.transaction_refusal(Operation.WRITE, request.transactional_id)
        if code is None and request.enable2_pc:
            code = rights.transaction_refusal(Operation.TWO_PHASE_COMMIT, request.transactional_id)
        return code
    if rights.allows_any(Operation.WRITE, ResourceType.TOPIC):
        return None
    return rights.cluster_refusal(Operation.IDEMPOTENT_WRITE)


async def _init_transactional(
    context: Context, exchange: Exchange, transactional_id: str
) -> InitProducerIdResponse:
    request: InitProducerIdRequest = exchange.request.body
    given = ProducerIdentity(request.producer_id, request.producer_epoch)
    code = refusal_of(context, transactional_id)
    if (given.producer_id == _NO_PRODUCER_ID) != (given.epoch == _NO_EPOCH):
        code = ErrorCode.INVALID_REQUEST
    if code is None:
        # A producer that goes on after an error names itself (KIP-360).
        expected = None if given.producer_id == _NO_PRODUCER_ID else given
        result = await context.transactions.init(transactional_id, request.transaction_timeout_ms, expected)
        if isinstance(result, ProducerIdentity):
            return InitProducerIdResponse(producer_id=result.producer_id, producer_epoch=result.epoch)
        code = transaction_code(result, knows_fenced=exchange.request.api_version >= INIT_KNOWS_FENCED)
    return InitProducerIdResponse(error_code=code)


async def describe_producers(context: Context, exchange: Exchange) -> DescribeProducersResponse:
    """Return the producers of partitions, each with its last sequence number and its open transaction."""
    request: DescribeProducersRequest = exchange.request.body
    rights = context.rights(exchange)
    refusals = [rights.topic_refusal(Operation.READ, topic.name) for topic in request.topics]

    def find() -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                DescribeProducersTopicResult(
                    name=topic.name,
                    partitions=[
                        _producers(context, topic.name, index)
                        if code is None
                        else DescribeProducersPartition(partition_index=index, error_code=code)
                        for index in topic.partition_indexes
                    ],
                )
                for topic, code in zip(request.topics, refusals, strict=True)
            ]
        )

    return await context.readers.call(find)


def _producers(context: Context, topic: str, partition: int) -> DescribeProducersPartition:
    result = DescribeProducersPartition(partition_index=partition)
    try:
        known = context.tenant.producers(topic, partition)
    except CordwoodError as error:
        result.error_code, result.error_message = code_of(error), message_of(error)
        return result
    result.active_producers = [
        ProducerState(
            producer_id=each.id,
            producer_epoch=each.epoch,
            last_sequence=each.batches[-1].last_sequence if each.batches else -1,
            last_timestamp=each.seen_ms,
            coordinator_epoch=each.coordinator_epoch,
            current_txn_start_offset=-1 if each.open_offset is None else each.open_offset,
        )
        for each in known
    ]
    return result
