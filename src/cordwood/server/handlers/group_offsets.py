"""Committed offsets of consumer groups: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from cordwood.broker import BrokerTopic
from cordwood.broker.groups import TEXT_BYTES_MAX, CommitCheck, Committed, Refusal
from cordwood.broker.transactions import ProducerIdentity
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
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from cordwood.records import TopicPartition
from cordwood.security import Operation
from cordwood.server.answers import code_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers.groups import CODES, unavailable
from cordwood.server.handlers.transactions import refusal_of
from cordwood.server.security import Rights

#: The first version that names topics by id.
BY_ID_FROM = 10
#: The first version of TxnOffsetCommit whose clients know COORDINATOR_LOAD_IN_PROGRESS.
KNOWS_LOADING_FROM = 2
_NONE = Committed(-1, -1, "", -1)
_Found = tuple[int, Committed, ErrorCode]
"""A partition, its committed offset or `_NONE`, and the error."""


async def offset_commit(context: Context, exchange: Exchange) -> OffsetCommitResponse:
    """Store committed offsets of a group. Durable when answered."""
    request: OffsetCommitRequest = exchange.request.body
    groups = context.groups
    generation = request.generation_id_or_member_epoch
    rights = context.rights(exchange)
    denied = rights.group_refusal(Operation.READ, request.group_id)
    error = denied or unavailable(context, request.group_id)
    checked: CommitCheck | None = None
    if error is None:
        version = exchange.request.api_version
        error, checked = _checked(
            groups.check_commit(
                request.group_id, request.member_id, request.group_instance_id, generation, version
            )
        )
    offsets: dict[TopicPartition, Committed] = {}
    ids: dict[str, bytes] = {}
    topics = []
    for topic in request.topics:
        by_id = exchange.request.api_version >= BY_ID_FROM
        found = _find(context, topic, by_id=by_id)
        refusal_of_topic = _topic_refusal(rights, Operation.READ, topic.name, found, by_id=by_id)
        answers = []
        for part in topic.partitions:
            # As in Kafka, a topic that is denied is so before the group is asked.
            code = denied or refusal_of_topic or error or _check(context, found, part, by_id=by_id)
            code = code or _check_owned(checked, found, part)
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


async def txn_offset_commit(context: Context, exchange: Exchange) -> TxnOffsetCommitResponse:
    """Store offsets of a group as part of a transaction. Durable when answered, valid once it is committed.

    The transactional id must be that of the producer, whose transaction must include offsets. From version 3
    on a member is fenced by its id and generation (KIP-447), and its producer need not be.
    """
    request: TxnOffsetCommitRequest = exchange.request.body
    groups = context.groups
    rights = context.rights(exchange)
    denied = rights.transaction_refusal(Operation.WRITE, request.transactional_id) or rights.group_refusal(
        Operation.READ, request.group_id
    )
    error = denied or unavailable(context, request.group_id) or refusal_of(context, request.transactional_id)
    if error is None:
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        failure = context.transactions.check_offsets(request.transactional_id, producer)
        error = None if failure is None else code_of(failure)
    checked: CommitCheck | None = None
    if error is None:
        member = request.member_id, request.group_instance_id, request.generation_id
        error, checked = _checked(groups.check_commit_in_transaction(request.group_id, *member))
    elif error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        known = exchange.request.api_version >= KNOWS_LOADING_FROM
        error = error if known else ErrorCode.COORDINATOR_NOT_AVAILABLE
    offsets: dict[TopicPartition, Committed] = {}
    ids: dict[str, bytes] = {}
    topics = []
    for topic in request.topics:
        found = context.tenant.find(topic.name)
        refusal_of_topic = _topic_refusal(rights, Operation.READ, topic.name, found)
        answers = []
        for part in topic.partitions:
            code = denied or refusal_of_topic or _check(context, found, part, error)
            code = code or _check_owned(checked, found, part)
            answers.append(
                TxnOffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
            )
            if code is ErrorCode.NONE and found is not None:
                ids[found.name] = found.id
                offsets[found.name, part.partition_index] = Committed(
                    part.committed_offset,
                    part.committed_leader_epoch,
                    part.committed_metadata or "",
                    groups.now_ms(),
                )
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers))
    if offsets:
        failure = await groups.commit_in_transaction(
            request.group_id, request.producer_id, request.producer_epoch, offsets
        )
        if failure is None:
            gone = [place for place in offsets if _gone(context, place[0], ids)]
            if gone:
                groups.drop(request.group_id, gone)
        else:
            for partition in (part for topic in topics for part in topic.partitions):
                partition.error_code = partition.error_code or _commit_code(failure)
    return TxnOffsetCommitResponse(topics=topics)


def _checked(
    found: Refusal | CommitCheck | None,
) -> tuple[ErrorCode | None, CommitCheck | None]:
    """Return the error code of a commit, and what says of each partition whether it may be committed."""
    if found is None or isinstance(found, Refusal):
        return None if found is None else CODES[found], None
    return None, found


def _check_owned(
    checked: CommitCheck | None,
    topic: BrokerTopic | None,
    part: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
) -> ErrorCode:
    """Return why a member with an older epoch may not commit the offset of a partition, or NONE."""
    if checked is None or topic is None:
        return ErrorCode.NONE
    return CODES[checked(topic.id, part.partition_index)]


def _gone(context: Context, name: str, ids: Mapping[str, bytes]) -> bool:
    topic = context.tenant.find(name)
    return topic is None or topic.id != ids[name]


def _find(context: Context, topic: OffsetCommitRequestTopic, *, by_id: bool) -> BrokerTopic | None:
    if by_id:
        return context.tenant.find_by_id(topic.topic_id)
    return context.tenant.find(topic.name)


def _topic_refusal(
    rights: Rights, operation: Operation, name: str, found: BrokerTopic | None, *, by_id: bool = False
) -> ErrorCode | None:
    """Return the error code if the client may not do *operation* on a topic, or None.

    A topic that is asked for by id has a name only if it was found.
    """
    if not by_id:
        return rights.topic_refusal(operation, name)
    return None if found is None else rights.topic_refusal(operation, found.name)


def _check(
    context: Context,
    topic: BrokerTopic | None,
    part: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    error: ErrorCode | None = None,
    *,
    by_id: bool = False,
) -> ErrorCode:
    """Return why an offset is not committed, or NONE; *error* is why none of a partition that exists is."""
    if topic is None and by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if topic is None or not 0 <= part.partition_index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if error is not None:
        return error
    size_max = min(context.config.offset_metadata_max_bytes, TEXT_BYTES_MAX)
    if len((part.committed_metadata or "").encode()) > size_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _commit_code(failure: Exception) -> ErrorCode:
    """Return the error code of a commit that could not be stored: one that consumers retry."""
    code = code_of(failure)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.KAFKA_STORAGE_ERROR else code


async def offset_fetch(context: Context, exchange: Exchange) -> OffsetFetchResponse:
    """Return the committed offsets of groups, without those of topics that the client may not describe."""
    request: OffsetFetchRequest = exchange.request.body
    rights = context.rights(exchange)
    if exchange.request.api_version >= 8:
        return OffsetFetchResponse(
            groups=[_fetch_group(context, exchange, group) for group in request.groups]
        )
    error = rights.group_refusal(Operation.DESCRIBE, request.group_id)
    error = error or unavailable(context, request.group_id)
    if error is not None:
        return _refused(request, error, exchange.request.api_version)
    known = context.groups.offsets(request.group_id)
    is_unstable = _pending(context, request.group_id, require_stable=request.require_stable)
    asked: Iterable[tuple[str, list[int]]]
    refusals: dict[str, ErrorCode | None] = {}
    if request.topics is None:
        asked = [place for place in _all_places(known) if rights.sees_topic(place[0])]
    else:
        asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
        refusals = {name: rights.topic_refusal(Operation.DESCRIBE, name) for name, _ in asked}
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
                        error_code=code,
                    )
                    for index, one, code in _each(known, name, indexes, is_unstable, refusals.get(name))
                ],
            )
            for name, indexes in asked
        ]
    )


def _refused(request: OffsetFetchRequest, error: ErrorCode, version: int) -> OffsetFetchResponse:
    """Return an answer with *error*; version 1 has it only in partitions, so each one gets it."""
    if version > 1:
        return OffsetFetchResponse(error_code=error)
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
    return OffsetFetchResponse(topics=topics)


def _fetch_group(
    context: Context, exchange: Exchange, asked: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    rights = context.rights(exchange)
    error = rights.group_refusal(Operation.DESCRIBE, asked.group_id) or unavailable(context, asked.group_id)
    if error is None:
        error = CODES[context.groups.check_fetch(asked.group_id, asked.member_id, asked.member_epoch)] or None
    if error is not None:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error)
    by_id = exchange.request.api_version >= BY_ID_FROM
    tenant = context.tenant
    known = context.groups.offsets(asked.group_id)
    is_unstable = _pending(context, asked.group_id, require_stable=exchange.request.body.require_stable)
    results = []
    if asked.topics is None:
        for name, indexes in _all_places(known):
            found = tenant.find(name)
            if found is not None and rights.sees_topic(name):
                results.append(_topic(name, found.id, _each(known, name, indexes, is_unstable)))
    else:
        for topic in asked.topics:
            found = tenant.find_by_id(topic.topic_id) if by_id else None
            name = topic.name if found is None else found.name
            code = _topic_refusal(rights, Operation.DESCRIBE, topic.name, found, by_id=by_id)
            each = _each(known, name, topic.partition_indexes, is_unstable, code)
            result = _topic(name, topic.topic_id, each)
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


def _pending(
    context: Context, group_id: str, *, require_stable: bool
) -> Callable[[TopicPartition], bool] | None:
    """Return what says whether an offset may be changed by an open transaction; None if nobody asked."""
    return partial(context.groups.is_pending, group_id) if require_stable else None


def _each(
    known: Mapping[TopicPartition, Committed],
    name: str,
    indexes: Iterable[int],
    is_unstable: Callable[[TopicPartition], bool] | None,
    refusal: ErrorCode | None = None,
) -> list[_Found]:
    """Return what is known of each partition. The client of an unstable offset asks again."""
    if refusal is not None:
        return [(index, _NONE, refusal) for index in indexes]
    return [
        (index, _NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if is_unstable is not None and is_unstable((name, index))
        else (index, known.get((name, index), _NONE), ErrorCode.NONE)
        for index in indexes
    ]


def _topic(name: str, topic_id: bytes, each: Iterable[_Found]) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=name,
        topic_id=topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                metadata=one.metadata,
                error_code=code,
            )
            for index, one, code in each
        ],
    )


async def offset_delete(context: Context, exchange: Exchange) -> OffsetDeleteResponse:
    """Delete committed offsets of a group, unless a member is subscribed to the topic."""
    request: OffsetDeleteRequest = exchange.request.body
    groups = context.groups
    rights = context.rights(exchange)
    error = rights.group_refusal(Operation.DELETE, request.group_id)
    error = error or unavailable(context, request.group_id)
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
        refusal = rights.topic_refusal(Operation.READ, topic.name)
        if refusal is not None:
            code = refusal
        elif context.tenant.find(topic.name) is None:
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
