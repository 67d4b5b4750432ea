"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cordwood.broker import BrokerTopic, NewTopic
from cordwood.config import TopicConfig
from cordwood.errors import CordwoodError, InvalidSetting, RecordRefused
from cordwood.protocol import NULL_ID, ErrorCode
from cordwood.protocol.messages import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from cordwood.security import Operation, ResourceType
from cordwood.server.answers import code_of, sentence_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers.config_descriptions import topic_settings
from cordwood.server.security import Rights


async def create_topics(context: Context, exchange: Exchange) -> CreateTopicsResponse:
    """Create topics, or only validate the request."""
    request: CreateTopicsRequest = exchange.request.body
    named = Counter(topic.name for topic in request.topics)
    rights = context.rights(exchange)
    all_allowed = rights.allows_cluster(Operation.CREATE)

    def create() -> CreateTopicsResponse:
        # Most of very many topics have the same settings, so the list is created once.
        listed: dict[TopicConfig, list[CreatableTopicConfigs]] = {}
        results = []
        for topic in request.topics:
            code = None if all_allowed else rights.topic_refusal(Operation.CREATE, topic.name)
            if named[topic.name] > 1:
                sentence = "the topic is named more than once"
                results.append(_refused(topic.name, ErrorCode.INVALID_REQUEST, sentence))
            elif code is not None:
                sentence = "this needs CREATE on the topic or the cluster"
                results.append(_refused(topic.name, code, sentence))
            else:
                results.append(_plan(context, topic, listed))
        if not request.validate_only:
            _create(context, request.topics, results)
        for result in results:
            _hide_settings(rights, result)
        return CreateTopicsResponse(topics=results)

    return await context.changes.call(create)


def _hide_settings(rights: Rights, result: CreatableTopicResult) -> None:
    """Remove the settings of a created topic from its result if the client may not see them."""
    if not result.error_code and not rights.sees(ResourceType.TOPIC, result.name, Operation.DESCRIBE_CONFIGS):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        result.num_partitions = result.replication_factor = -1
        result.configs = []


def _settings(asked: CreatableTopic) -> dict[str, str]:
    return {config.name: config.value or "" for config in asked.configs}


def _plan(
    context: Context, asked: CreatableTopic, listed: dict[TopicConfig, list[CreatableTopicConfigs]]
) -> CreatableTopicResult:
    """Return the answer for a topic to create, or its error."""
    try:
        partitions = _partitions(context, asked)
        config = context.tenant.plan(asked.name, partitions, _settings(asked))
    except CordwoodError as error:
        return _failed(asked.name, error)
    if config not in listed:
        listed[config] = _configs(context, config)
    return CreatableTopicResult(
        name=asked.name,
        error_message=None,
        num_partitions=partitions or context.config.num_partitions,
        replication_factor=1,
        configs=listed[config],
    )


def _create(context: Context, asked: Sequence[CreatableTopic], results: list[CreatableTopicResult]) -> None:
    """Create all valid topics with one sync, and write the outcomes into *results*."""
    allowed = [number for number, result in enumerate(results) if not result.error_code]
    new = [NewTopic(asked[n].name, _partitions(context, asked[n]), _settings(asked[n])) for n in allowed]
    for number, made in zip(allowed, context.tenant.create_all(new), strict=True):
        if isinstance(made, BrokerTopic):
            results[number].topic_id = made.id
        else:
            results[number] = _failed(asked[number].name, made)


def _failed(name: str, error: CordwoodError) -> CreatableTopicResult:
    code = code_of(error)
    if isinstance(error, RecordRefused):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif isinstance(error, InvalidSetting):
        code = _SETTING_CODES.get(error.name, code)
    return _refused(name, code, sentence_of(error))


_SETTING_CODES = {
    "partitions": ErrorCode.INVALID_PARTITIONS,
    "replication factor": ErrorCode.INVALID_REPLICATION_FACTOR,
    "assignment": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
}


def _partitions(context: Context, asked: CreatableTopic) -> int | None:
    """Return the requested number of partitions, or None for the broker's default.

    Raises:
        ConfigError: If partitions are assigned to another broker or to several.
    """
    if asked.assignments:
        here = [context.config.node_id]
        indexes = sorted(one.partition_index for one in asked.assignments)
        elsewhere = any(one.broker_ids != here for one in asked.assignments)
        if elsewhere or indexes != list(range(len(indexes))):
            expected = f"consecutive partitions from 0, each only on broker {here[0]}"
            raise InvalidSetting("assignment", [one.broker_ids for one in asked.assignments], expected)
        return len(indexes)
    if asked.replication_factor not in (-1, 1):
        raise InvalidSetting("replication factor", asked.replication_factor, "1: there is one broker")
    return None if asked.num_partitions == -1 else asked.num_partitions


def _configs(context: Context, config: TopicConfig) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=one.name, value=one.value, read_only=one.read_only, config_source=one.config_source
        )
        for one in topic_settings(config, context.layers)
    ]


def _refused(name: str, code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)


async def delete_topics(context: Context, exchange: Exchange) -> DeleteTopicsResponse:
    """Delete topics, by name or by id. The answer hides what the client may not describe."""
    request: DeleteTopicsRequest = exchange.request.body
    asked = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]

    gone: list[BrokerTopic] = []
    rights = context.rights(exchange)
    # What is allowed on the whole cluster needs no right on the topic.
    needed = None if rights.allows_cluster(Operation.DELETE) else rights
    results = await context.changes.call(lambda: [_delete(context, needed, topic, gone) for topic in asked])
    for topic in gone:
        context.parking.wake_topic(topic.key)
    context.quotas.freed()
    # Answered after this: a client that creates the topic again must not find offsets of the old one.
    await context.groups.forget_topics(gone)
    return DeleteTopicsResponse(responses=results)


def _delete(
    context: Context, rights: Rights | None, asked: DeleteTopicState, gone: list[BrokerTopic]
) -> DeletableTopicResult:
    """Delete a topic, if *rights* allow it or are None, and add it to *gone*."""
    name, topic_id = asked.name, asked.topic_id
    tenant = context.tenant
    topic = tenant.find_by_id(topic_id) if name is None else tenant.find(name)
    if not context.config.delete_topics:
        return DeletableTopicResult(
            name=name,
            topic_id=topic_id,
            error_code=ErrorCode.TOPIC_DELETION_DISABLED,
            error_message="delete.topic.enable is false",
        )
    if rights is not None:
        refused = _undeletable(rights, asked, topic)
        if refused is not None:
            return refused
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code)
    result = DeletableTopicResult(name=topic.name, topic_id=topic.id)
    try:
        tenant.delete(topic.name)
        gone.append(topic)
    except RecordRefused as error:
        result.error_code, result.error_message = ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)
    except CordwoodError as error:
        result.error_code, result.error_message = code_of(error), str(error)
    return result


def _undeletable(
    rights: Rights, asked: DeleteTopicState, topic: BrokerTopic | None
) -> DeletableTopicResult | None:
    """Return the result for a topic that the client may not delete, or None if it may, or it is missing."""
    name = asked.name if topic is None else topic.name
    if name is None:
        # No topic has this id, which may be told.
        return None
    code = rights.topic_refusal(Operation.DESCRIBE if topic is None else Operation.DELETE, name)
    if code is None:
        return None
    # The name that belongs to an id is shown only to those who may describe the topic.
    shown = name if asked.name is not None or rights.sees_topic(name) else None
    topic_id = NULL_ID if asked.name is not None else asked.topic_id
    return DeletableTopicResult(
        name=shown, topic_id=topic_id, error_code=code, error_message="this needs DELETE on the topic"
    )


async def create_partitions(context: Context, exchange: Exchange) -> CreatePartitionsResponse:
    """Increase the number of partitions of topics."""
    request: CreatePartitionsRequest = exchange.request.body
    rights = context.rights(exchange)
    results = await context.changes.call(
        lambda: [_add_partitions(context, rights, topic, request.validate_only) for topic in request.topics]
    )
    return CreatePartitionsResponse(results=results)


def _add_partitions(
    context: Context, rights: Rights, asked: CreatePartitionsTopic, validate_only: bool
) -> CreatePartitionsTopicResult:
    result = CreatePartitionsTopicResult(name=asked.name)
    code = rights.topic_refusal(Operation.ALTER, asked.name)
    if code is not None:
        result.error_code = code
        return result
    here = [context.config.node_id]
    try:
        if asked.assignments is not None and any(one.broker_ids != here for one in asked.assignments):
            given = [one.broker_ids for one in asked.assignments]
            raise InvalidSetting("assignment", given, f"only broker {here[0]}")
        context.tenant.add_partitions(asked.name, asked.count, validate_only=validate_only)
    except CordwoodError as error:
        result.error_code, result.error_message = code_of(error), sentence_of(error)
        if isinstance(error, InvalidSetting):
            result.error_code = _SETTING_CODES.get(error.name, result.error_code)
    return result


async def delete_records(context: Context, exchange: Exchange) -> DeleteRecordsResponse:
    """Delete the oldest records of partitions. Durable when answered."""
    request: DeleteRecordsRequest = exchange.request.body
    rights = context.rights(exchange)
    refusals = [rights.topic_refusal(Operation.DELETE, topic.name) for topic in request.topics]

    results = await context.changes.call(
        lambda: [
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_delete_records(context, topic.name, part, code) for part in topic.partitions],
            )
            for topic, code in zip(request.topics, refusals, strict=True)
        ]
    )
    context.quotas.freed()
    return DeleteRecordsResponse(topics=results)


def _delete_records(
    context: Context, topic: str, asked: DeleteRecordsPartition, refusal: ErrorCode | None
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    if refusal is not None:
        result.error_code = refusal
        return result
    try:
        result.low_watermark = context.tenant.delete_records(topic, asked.partition_index, asked.offset)
    except RecordRefused:
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
    except CordwoodError as error:
        result.error_code = code_of(error)
    return result
