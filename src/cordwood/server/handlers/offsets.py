"""ListOffsets: offsets by timestamp, and the ends of partitions. OffsetForLeaderEpoch: the ends of epochs."""

from __future__ import annotations

from collections import Counter

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
from cordwood.server.answers import code_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context


async def list_offsets(context: Context, exchange: Exchange) -> ListOffsetsResponse:
    """Find the exact offset for each timestamp; a partition that is named twice is refused."""
    request: ListOffsetsRequest = exchange.request.body
    named = Counter((topic.name, p.partition_index) for topic in request.topics for p in topic.partitions)

    def find() -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        _find(context, topic.name, p)
                        if named[topic.name, p.partition_index] == 1
                        else _refused(p.partition_index)
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return await context.readers.call(find)


def _find(context: Context, topic: str, asked: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
    index = asked.partition_index
    try:
        found = context.tenant.find_offset(topic, index, asked.timestamp, asked.current_leader_epoch)
    except ValueError:
        return _refused(index)
    except CordwoodError as error:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=code_of(error))
    return ListOffsetsPartitionResponse(
        partition_index=index,
        offset=found.offset,
        timestamp=found.timestamp,
        leader_epoch=found.leader_epoch,
    )


def _refused(index: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.INVALID_REQUEST)


async def offset_for_leader_epoch(context: Context, exchange: Exchange) -> OffsetForLeaderEpochResponse:
    """Return the end offsets of leader epochs."""
    request: OffsetForLeaderEpochRequest = exchange.request.body

    def find() -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[_epoch_end(context, topic.topic, p) for p in topic.partitions],
                )
                for topic in request.topics
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
