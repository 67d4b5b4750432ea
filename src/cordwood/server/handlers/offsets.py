"""ListOffsets: offsets by timestamp, and the ends of partitions. OffsetForLeaderEpoch: the ends of epochs."""

from __future__ import annotations

from collections import Counter

from cordwood.broker import LATEST
from cordwood.errors import CordwoodError
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from cordwood.security import Operation
from cordwood.server.answers import code_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers.fetching import READ_COMMITTED


async def list_offsets(context: Context, exchange: Exchange) -> ListOffsetsResponse:
    """Find the exact offset for each timestamp; a partition that is named twice is refused."""
    request: ListOffsetsRequest = exchange.request.body
    committed = request.isolation_level == READ_COMMITTED
    named = Counter((topic.name, p.partition_index) for topic in request.topics for p in topic.partitions)
    rights = context.rights(exchange)
    refusals = [rights.topic_refusal(Operation.DESCRIBE, topic.name) for topic in request.topics]
    if committed and not await context.transactions.until_recovered():
        refusals = [code or ErrorCode.LEADER_NOT_AVAILABLE for code in refusals]

    def find() -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        _find(context, topic.name, p, committed)
                        if code is None and named[topic.name, p.partition_index] == 1
                        else _refused(p.partition_index, code or ErrorCode.INVALID_REQUEST)
                        for p in topic.partitions
                    ],
                )
                for topic, code in zip(request.topics, refusals, strict=True)
            ]
        )

    if all(asked.timestamp == LATEST for topic in request.topics for asked in topic.partitions):
        # A plan over several partitions: it must not have a batch of the Spark sink in some of them only.
        return await context.readers.call(lambda: context.tenant.look_at_once(find))
    return await context.readers.call(find)


def _find(
    context: Context, topic: str, asked: ListOffsetsPartition, committed: bool
) -> ListOffsetsPartitionResponse:
    index = asked.partition_index
    try:
        found = context.tenant.find_offset(
            topic, index, asked.timestamp, asked.current_leader_epoch, committed=committed
        )
    except ValueError:
        return _refused(index, ErrorCode.INVALID_REQUEST)
    except CordwoodError as error:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=code_of(error))
    return ListOffsetsPartitionResponse(
        partition_index=index,
        offset=found.offset,
        timestamp=found.timestamp,
        leader_epoch=found.leader_epoch,
    )


def _refused(index: int, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=code)


async def offset_for_leader_epoch(context: Context, exchange: Exchange) -> OffsetForLeaderEpochResponse:
    """Return the end offsets of leader epochs, to consumers of the topics or to brokers."""
    request: OffsetForLeaderEpochRequest = exchange.request.body
    rights = context.rights(exchange)
    all_allowed = rights.allows_cluster(Operation.CLUSTER_ACTION)
    refusals = [
        None if all_allowed else rights.topic_refusal(Operation.DESCRIBE, topic.topic)
        for topic in request.topics
    ]

    def find() -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        _epoch_end(context, topic.topic, p)
                        if code is None
                        else EpochEndOffset(partition=p.partition, error_code=code)
                        for p in topic.partitions
                    ],
                )
                for topic, code in zip(request.topics, refusals, strict=True)
            ]
        )

    return await context.readers.call(find)


def _epoch_end(context: Context, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        epoch, end = context.tenant.epoch_end(
            topic, asked.partition, asked.leader_epoch, asked.current_leader_epoch
        )
    except CordwoodError as error:
        return EpochEndOffset(partition=asked.partition, error_code=code_of(error))
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end)
