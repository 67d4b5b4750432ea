"""InitProducerId, DescribeProducers and ListTransactions.

Cordwood has idempotent producers but no transactions.
"""

from __future__ import annotations

from cordwood.errors import CordwoodError
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResult,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
)
from cordwood.server.answers import code_of, message_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context

#: The coordinator epoch of a producer without transactions.
_NO_COORDINATOR = -1
#: The states of Kafka's transactions.
_STATES = {
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
}


async def init_producer_id(context: Context, exchange: Exchange) -> InitProducerIdResponse:
    """Return a new, unique producer id. A transactional producer is refused."""
    request: InitProducerIdRequest = exchange.request.body
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)

    def give() -> InitProducerIdResponse:
        try:
            return InitProducerIdResponse(producer_id=context.node.new_producer_id())
        except CordwoodError as error:
            return InitProducerIdResponse(error_code=code_of(error))

    return await context.changes.call(give)


async def describe_producers(context: Context, exchange: Exchange) -> DescribeProducersResponse:
    """Return the idempotent producers of partitions, each with its last sequence number."""
    request: DescribeProducersRequest = exchange.request.body

    def find() -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                DescribeProducersTopicResult(
                    name=topic.name,
                    partitions=[_producers(context, topic.name, index) for index in topic.partition_indexes],
                )
                for topic in request.topics
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
            last_sequence=each.batches[-1].last_sequence,
            last_timestamp=each.seen_ms,
            coordinator_epoch=_NO_COORDINATOR,
        )
        for each in known
    ]
    return result


async def list_transactions(context: Context, exchange: Exchange) -> ListTransactionsResponse:
    """Answer that there are no transactions, with any filters."""
    request: ListTransactionsRequest = exchange.request.body
    unknown = [state for state in dict.fromkeys(request.state_filters) if state not in _STATES]
    return ListTransactionsResponse(unknown_state_filters=unknown)
