"""The cluster for administrators: DescribeCluster, DescribeTopicPartitions, DescribeLogDirs."""

from __future__ import annotations

import bisect
import contextlib

from cordwood.broker.topics import Topic, is_internal
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
            cluster_id=context.tenant.cluster_id,
            controller_id=node_id,
            brokers=[DescribeClusterBroker(broker_id=node_id, host=where.host, port=where.port)],
            cluster_authorized_operations=CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
        )
    )


def describe_topic_partitions(context: Context, exchange: Exchange) -> None:
    """Describe topics in the order of their names, a page of partitions at a time."""
    request: DescribeTopicPartitionsRequest = exchange.request.body
    asked = {topic.name for topic in request.topics}
    names = sorted(asked) if asked else context.tenant.sorted_names()
    first = 0
    if request.cursor is not None:
        names = names[bisect.bisect_left(names, request.cursor.topic_name) :]
        first = request.cursor.partition_index if names[:1] == [request.cursor.topic_name] else 0
    left = max(min(request.response_partition_limit, PARTITIONS_A_PAGE_MAX), 1)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        topic = context.tenant.find(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=code, name=name))
            continue
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        first = min(max(first, 0), topic.partitions)
        last = min(first + left, topic.partitions)
        response.topics.append(_topic(context, topic, range(first, last)))
        left -= last - first
        if last < topic.partitions:
            response.next_cursor = Cursor(topic_name=name, partition_index=last)
            break
        first = 0
    exchange.answer(response)


def _topic(context: Context, topic: Topic, partitions: range) -> DescribeTopicPartitionsResponseTopic:
    here = [context.config.node_id]
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
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
    """Say how large partitions are, and how much space is left: to a tenant, of what it may store."""
    request: DescribeLogDirsRequest = exchange.request.body
    tenant = context.tenant
    wanted = None if request.topics is None else {t.topic: set(t.partitions) for t in request.topics}

    def measure() -> DescribeLogDirsResponse:
        result = DescribeLogDirsResult(log_dir=tenant.path)
        stored = 0
        for name in tenant.names() if wanted is None else wanted:
            topic = tenant.find(name)
            sizes: dict[int, int] = {}
            # A topic that is deleted meanwhile is left out.
            with contextlib.suppress(UnknownTopic, LogClosed):
                sizes = {} if topic is None else tenant.sizes(topic)
            stored += sum(sizes.values())
            partitions = [
                DescribeLogDirsPartition(partition_index=partition, partition_size=size)
                for partition, size in sizes.items()
                if wanted is None or partition in wanted[name]
            ]
            if partitions:
                result.topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
        result.total_bytes, result.usable_bytes = _space(context, stored)
        return DescribeLogDirsResponse(results=[result])

    context.readers.run(exchange, measure, exchange.answer)


def _space(context: Context, stored: int) -> tuple[int, int]:
    """Return how much there is space for in all, and how much of it is left, -1 where that is not told.

    How full the disk is says how much others have stored.
    """
    quota = context.quotas.stored
    if quota is not None:
        return quota.limit, max(quota.limit - stored, 0)
    if context.tenant.is_one_of_many:
        return -1, -1
    free = context.tenant.free_bytes()
    # In memory there is no end to it but that of the field.
    return min(free + stored, (1 << 63) - 1), free
