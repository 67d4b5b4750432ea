"""The cluster for administrators: DescribeCluster, DescribeTopicPartitions, DescribeLogDirs."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Sequence

from cordwood.broker import BrokerTopic, is_internal
from cordwood.errors import LogClosed, UnknownTopic
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    OPERATIONS_NOT_ASKED,
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
    TopicCursor,
)
from cordwood.security import Operation, ResourceType
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers.cluster_metadata import all_epochs_known
from cordwood.server.security import Rights

ENDPOINT_BROKERS = 1
PARTITIONS_A_PAGE_MAX = 2000


async def describe_cluster(context: Context, exchange: Exchange) -> DescribeClusterResponse:
    """Describe the only broker."""
    request: DescribeClusterRequest = exchange.request.body
    if request.endpoint_type != ENDPOINT_BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message="there are no controllers"
        )
    node_id, where = context.config.node_id, context.advertised(exchange.local)
    asked = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=context.node.directory.identity.uuid,
        controller_id=node_id,
        brokers=[DescribeClusterBroker(broker_id=node_id, host=where.host, port=where.port)],
        cluster_authorized_operations=(
            context.rights(exchange).cluster_operations() if asked else OPERATIONS_NOT_ASKED
        ),
    )


async def describe_topic_partitions(context: Context, exchange: Exchange) -> DescribeTopicPartitionsResponse:
    """Describe topics in the order of their names, one page of partitions at a time.

    As in Kafka, topics that the client may not describe are left out of a list of all topics, and come last
    in an answer that names them.
    """
    request: DescribeTopicPartitionsRequest = exchange.request.body
    rights = context.rights(exchange)
    asked = {topic.name for topic in request.topics}
    names = sorted(asked) if asked else context.tenant.sorted_names()
    cursor = request.cursor
    if cursor is not None:
        names = names[bisect.bisect_left(names, cursor.topic_name) :]
    refusals = {name: rights.topic_refusal(Operation.DESCRIBE, name) for name in names if asked}
    refused = [
        DescribeTopicPartitionsResponseTopic(error_code=code, name=name)
        for name, code in refusals.items()
        if code is not None
    ]
    if refused:
        names = [name for name in names if refusals[name] is None]
    first = cursor.partition_index if cursor is not None and names[:1] == [cursor.topic_name] else 0
    left = max(min(request.response_partition_limit, PARTITIONS_A_PAGE_MAX), 1)

    def make() -> DescribeTopicPartitionsResponse:
        response = _page(context, rights, names, first, left)
        response.topics += refused
        return response

    # A page has at most as many topics as partitions; missing topics have none.
    if len(names) <= PARTITIONS_A_PAGE_MAX and all_epochs_known(context, names):
        return make()
    return await context.readers.call(make)


def _page(
    context: Context, rights: Rights, names: Sequence[str], first: int, left: int
) -> DescribeTopicPartitionsResponse:
    """Describe *left* partitions of the topics in *names*, from partition *first* of the first topic on."""
    response = DescribeTopicPartitionsResponse()
    for name in names:
        # Asked here and not for the whole list, of which a page may be a small part.
        if not rights.sees_topic(name):
            first = 0
            continue
        topic = context.tenant.find(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=code,
                    name=name,
                    topic_authorized_operations=rights.operations(ResourceType.TOPIC, name),
                )
            )
            continue
        if left <= 0:
            response.next_cursor = TopicCursor(topic_name=name, partition_index=first)
            break
        first = min(max(first, 0), topic.partitions)
        last = min(first + left, topic.partitions)
        response.topics.append(_topic(context, rights, topic, range(first, last)))
        left -= last - first
        if last < topic.partitions:
            response.next_cursor = TopicCursor(topic_name=name, partition_index=last)
            break
        first = 0
    return response


def _topic(
    context: Context, rights: Rights, topic: BrokerTopic, partitions: range
) -> DescribeTopicPartitionsResponseTopic:
    here = [context.config.node_id]
    epochs = context.node.topics.epochs.find(topic.entry)
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=here[0],
                leader_epoch=epochs[index],
                replica_nodes=here,
                isr_nodes=here,
                # The protocol allows null, but Java's admin client expects lists.
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for index in partitions
        ],
        topic_authorized_operations=rights.operations(ResourceType.TOPIC, topic.name),
    )


async def describe_log_dirs(context: Context, exchange: Exchange) -> DescribeLogDirsResponse:
    """Return the sizes of partitions and the free space; for a tenant, the rest of its quota."""
    request: DescribeLogDirsRequest = exchange.request.body
    tenant = context.tenant
    wanted = None if request.topics is None else {t.topic: set(t.partitions) for t in request.topics}

    def measure() -> DescribeLogDirsResponse:
        result = DescribeLogDirsResult(log_dir=context.node.directory.path)
        stored = 0
        for name in tenant.names() if wanted is None else wanted:
            topic = tenant.find(name)
            sizes: dict[int, int] = {}
            # A topic that is deleted concurrently is left out.
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

    return await context.readers.call(measure)


def _space(context: Context, stored: int) -> tuple[int, int]:
    """Return the total and the free bytes, or -1 if the client must not see them.

    The usage of the disk would reveal how much other orgs have stored.
    """
    quota = context.quotas.stored
    if quota is not None:
        return quota.limit, max(quota.limit - stored, 0)
    if context.tenant.is_one_of_many:
        return -1, -1
    free = context.node.directory.free_bytes()
    # In memory the only limit is the range of the field.
    return min(free + stored, (1 << 63) - 1), free
