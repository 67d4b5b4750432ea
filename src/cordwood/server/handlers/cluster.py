"""The cluster for administrators: DescribeCluster, DescribeTopicPartitions, DescribeLogDirs."""

from __future__ import annotations

import bisect
import contextlib

from cordwood.broker.topics import is_internal
from cordwood.errors import LogClosed, UnknownTopic
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.cluster import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from cordwood.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from cordwood.server.connection import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from cordwood.storage.catalogue import TopicEntry

ENDPOINT_BROKERS = 1
PARTITIONS_A_PAGE_MAX = 2000


def describe_cluster(context: Context, exchange: Exchange) -> None:
    """Describe the one broker there is."""
    request: DescribeClusterRequest = exchange.request.body
    if request.endpoint_type != ENDPOINT_BROKERS:
        exchange.answer(
            DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message="there are no controllers here"
            )
        )
        return
    node_id, where = context.config.node_id, context.advertised(exchange.local)
    asked = request.include_cluster_authorized_operations
    exchange.answer(
        DescribeClusterResponse(
            cluster_id=context.node.cluster_id,
            controller_id=node_id,
            brokers=[DescribeClusterBroker(broker_id=node_id, host=where.host, port=where.port)],
            cluster_authorized_operations=CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
        )
    )


def describe_topic_partitions(context: Context, exchange: Exchange) -> None:
    """Describe topics in the order of their names, a page of partitions at a time."""
    request: DescribeTopicPartitionsRequest = exchange.request.body
    asked = {topic.name for topic in request.topics}
    names = sorted(asked or context.node.topics.names())
    first = 0
    if request.cursor is not None:
        names = names[bisect.bisect_left(names, request.cursor.topic_name) :]
        first = request.cursor.partition_index if names[:1] == [request.cursor.topic_name] else 0
    left = max(min(request.response_partition_limit, PARTITIONS_A_PAGE_MAX), 1)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        entry = context.node.topics.find(name)
        if entry is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=code, name=name))
            continue
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        first = min(max(first, 0), entry.partitions)
        last = min(first + left, entry.partitions)
        response.topics.append(_topic(context, entry, range(first, last)))
        left -= last - first
        if last < entry.partitions:
            response.next_cursor = Cursor(topic_name=name, partition_index=last)
            break
        first = 0
    exchange.answer(response)


def _topic(context: Context, entry: TopicEntry, partitions: range) -> DescribeTopicPartitionsResponseTopic:
    here = [context.config.node_id]
    return DescribeTopicPartitionsResponseTopic(
        name=entry.name,
        topic_id=context.node.topics.id_of(entry),
        is_internal=is_internal(entry.name),
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=here[0],
                replica_nodes=here,
                isr_nodes=here,
                # They may be null by the protocol, but Java's admin client takes them for lists.
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for index in partitions
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def describe_log_dirs(context: Context, exchange: Exchange) -> None:
    """Say how large partitions are, and how much space is left."""
    request: DescribeLogDirsRequest = exchange.request.body
    topics, node = context.node.topics, context.node
    wanted = None if request.topics is None else {t.topic: set(t.partitions) for t in request.topics}

    def measure() -> DescribeLogDirsResponse:
        entries = [topics.find(name) for name in (topics.names() if wanted is None else wanted)]
        sizes: dict[tuple[str, int], int] = {}
        for entry in entries:
            # A topic that is deleted meanwhile is left out.
            with contextlib.suppress(UnknownTopic, LogClosed):
                sizes |= node.sizes([entry] if entry is not None else [])
        found: dict[str, DescribeLogDirsTopic] = {}
        for (name, partition), size in sizes.items():
            if wanted is None or partition in wanted[name]:
                topic = found.setdefault(name, DescribeLogDirsTopic(name=name))
                topic.partitions.append(
                    DescribeLogDirsPartition(partition_index=partition, partition_size=size)
                )
        free = node.free_bytes()
        # In memory there is no end to it but that of the field.
        total = min(free + sum(sizes.values()), (1 << 63) - 1)
        result = DescribeLogDirsResult(
            log_dir=node.path,
            topics=list(found.values()),
            total_bytes=total,
            usable_bytes=free,
        )
        return DescribeLogDirsResponse(results=[result])

    context.readers.run(exchange, measure, exchange.answer)
