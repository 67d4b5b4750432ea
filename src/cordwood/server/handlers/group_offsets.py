"""Committed offsets of consumer groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cordwood.broker import BrokerTopic
from cordwood.broker.groups import TEXT_BYTES_MAX, Committed
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from cordwood.records import TopicPartition
from cordwood.server.answers import code_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers.groups import CODES, unavailable

#: The first version that names topics by id.
BY_ID_FROM = 10
_NONE = Committed(-1, -1, "", -1)


async def offset_commit(context: Context, exchange: Exchange) -> OffsetCommitResponse:
    """Store committed offsets of a group. Durable when answered."""
    request: OffsetCommitRequest = exchange.request.body
    groups = context.groups
    generation = request.generation_id_or_member_epoch
    error = unavailable(context, request.group_id)
    if error is None:
        refusal = groups.check_commit(
            request.group_id, request.member_id, request.group_instance_id, generation
        )
        error = None if refusal is None else CODES[refusal]
    offsets: dict[TopicPartition, Committed] = {}
    ids: dict[str, bytes] = {}
    topics = []
    for topic in request.topics:
        found = _find(context, exchange, topic)
        answers = []
        for part in topic.partitions:
            code = error or _check(context, exchange, found, part)
            answers.append(
                OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
            )
            if code is ErrorCode.NONE and found is not None:
                ids[found.name] = found.id
                offsets[found.name, part.partition_index] = Committed(
                    part.committed_offset,
                    part.committed_leader_epoch,
                    part.committed_metadata or "",
                    groups.now_ms(),
                )
        topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
    if offsets:
        failure = await groups.commit(request.group_id, offsets)
        if failure is None:
            # The offsets of a topic that was deleted concurrently are deleted too.
            gone = [place for place in offsets if _gone(context, place[0], ids)]
            if gone:
                groups.drop(request.group_id, gone)
        else:
            for partition in (part for topic in topics for part in topic.partitions):
                partition.error_code = partition.error_code or _commit_code(failure)
    return OffsetCommitResponse(topics=topics)


def _gone(context: Context, name: str, ids: Mapping[str, bytes]) -> bool:
    topic = context.tenant.find(name)
    return topic is None or topic.id != ids[name]


def _find(context: Context, exchange: Exchange, topic: OffsetCommitRequestTopic) -> BrokerTopic | None:
    if exchange.request.api_version >= BY_ID_FROM:
        return context.tenant.find_by_id(topic.topic_id)
    return context.tenant.find(topic.name)


def _check(
    context: Context, exchange: Exchange, topic: BrokerTopic | None, part: OffsetCommitRequestPartition
) -> ErrorCode:
    if topic is None and exchange.request.api_version >= BY_ID_FROM:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if topic is None or not 0 <= part.partition_index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    size_max = min(context.config.offset_metadata_max_bytes, TEXT_BYTES_MAX)
    if len((part.committed_metadata or "").encode()) > size_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _commit_code(failure: Exception) -> ErrorCode:
    """Return the error code of a commit that could not be stored: one that consumers retry."""
    code = code_of(failure)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.KAFKA_STORAGE_ERROR else code


async def offset_fetch(context: Context, exchange: Exchange) -> OffsetFetchResponse:
    """Return the committed offsets of groups."""
    request: OffsetFetchRequest = exchange.request.body
    if exchange.request.api_version >= 8:
        return OffsetFetchResponse(
            groups=[_fetch_group(context, exchange, group) for group in request.groups]
        )
    error = unavailable(context, request.group_id)
    if error is not None:
        return _refused(request, error)
    known = context.groups.offsets(request.group_id)
    asked: Iterable[tuple[str, list[int]]]
    if request.topics is None:
        asked = _all_places(known)
    else:
        asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=one.offset,
                        committed_leader_epoch=one.leader_epoch,
                        metadata=one.metadata,
                    )
                    for index, one in _each(known, name, indexes)
                ],
            )
            for name, indexes in asked
        ]
    )


def _refused(request: OffsetFetchRequest, error: ErrorCode) -> OffsetFetchResponse:
    """Return an answer with *error*; version 1 has it only in partitions, so each one gets it."""
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, metadata="", error_code=error
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return OffsetFetchResponse(error_code=error, topics=topics)


def _fetch_group(
    context: Context, exchange: Exchange, asked: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    error = unavailable(context, asked.group_id)
    if error is not None:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error)
    by_id = exchange.request.api_version >= BY_ID_FROM
    tenant = context.tenant
    known = context.groups.offsets(asked.group_id)
    results = []
    if asked.topics is None:
        for name, indexes in _all_places(known):
            found = tenant.find(name)
            if found is not None:
                results.append(_topic(name, found.id, _each(known, name, indexes)))
    else:
        for topic in asked.topics:
            found = tenant.find_by_id(topic.topic_id) if by_id else None
            name = topic.name if found is None else found.name
            result = _topic(name, topic.topic_id, _each(known, name, topic.partition_indexes))
            if by_id and found is None:
                for part in result.partitions:
                    part.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            results.append(result)
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=results)


def _all_places(known: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Return the topics and partitions of *known* in the order of their first commits."""
    places: dict[str, list[int]] = {}
    for topic, partition in known:
        places.setdefault(topic, []).append(partition)
    return list(places.items())


def _each(
    known: Mapping[TopicPartition, Committed], name: str, indexes: Iterable[int]
) -> list[tuple[int, Committed]]:
    return [(index, known.get((name, index), _NONE)) for index in indexes]


def _topic(name: str, topic_id: bytes, each: Iterable[tuple[int, Committed]]) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=name,
        topic_id=topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                metadata=one.metadata,
            )
            for index, one in each
        ],
    )


async def offset_delete(context: Context, exchange: Exchange) -> OffsetDeleteResponse:
    """Delete committed offsets of a group, unless a member is subscribed to the topic."""
    request: OffsetDeleteRequest = exchange.request.body
    groups = context.groups
    error = unavailable(context, request.group_id)
    group = None if error is not None else groups.find(request.group_id)
    if error is None and group is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND
    elif group is not None and group.members and group.protocol_type != "consumer":
        # The subscriptions of such members are unknown, so they may include any topic.
        error = ErrorCode.NON_EMPTY_GROUP
    if error is not None:
        return OffsetDeleteResponse(error_code=error)
    places: list[TopicPartition] = []
    topics = []
    for topic in request.topics:
        code = ErrorCode.NONE
        if context.tenant.find(topic.name) is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif groups.is_subscribed(request.group_id, topic.name):
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            places += [(topic.name, part.partition_index) for part in topic.partitions]
        topics.append(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=part.partition_index, error_code=code)
                    for part in topic.partitions
                ],
            )
        )

    failure = await groups.drop(request.group_id, places)
    code = ErrorCode.NONE if failure is None else _commit_code(failure)
    return OffsetDeleteResponse(error_code=code, topics=topics)
