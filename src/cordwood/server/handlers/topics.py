"""CreateTopics and DeleteTopics."""

from __future__ import annotations

from collections import Counter

from cordwood.config import TOPIC_SETTINGS, TopicConfig, text_of
from cordwood.errors import CordwoodError, InvalidSetting, RecordRefused
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from cordwood.server.answers import code_of
from cordwood.server.connection import Exchange
from cordwood.server.context import Context

#: Where a setting comes from, as Kafka numbers it.
SOURCE_TOPIC, SOURCE_DEFAULT = 1, 5


def create_topics(context: Context, exchange: Exchange) -> None:
    """Create topics, or only say whether they would be."""
    request: CreateTopicsRequest = exchange.request.body
    named = Counter(topic.name for topic in request.topics)

    def create() -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[
                _create(context, topic, request.validate_only)
                if named[topic.name] == 1
                else _refused(topic.name, ErrorCode.INVALID_REQUEST, "the topic is named more than once")
                for topic in request.topics
            ]
        )

    context.changes.run(exchange, create, exchange.answer)


def _create(context: Context, asked: CreatableTopic, validate_only: bool) -> CreatableTopicResult:
    try:
        partitions = _partitions(context, asked)
        settings = {config.name: config.value or "" for config in asked.configs}
        config = context.node.topics.plan(asked.name, partitions, settings)
        result = CreatableTopicResult(
            name=asked.name,
            num_partitions=partitions or context.config.num_partitions,
            replication_factor=1,
            configs=_configs(config),
        )
        if not validate_only:
            entry = context.node.topics.create(asked.name, partitions, settings)
            result.topic_id = context.node.topics.id_of(entry)
    except CordwoodError as error:
        code = code_of(error)
        if isinstance(error, RecordRefused):
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif isinstance(error, InvalidSetting):
            code = _SETTING_CODES.get(error.name, code)
        return _refused(asked.name, code, str(error))
    return result


_SETTING_CODES = {
    "partitions": ErrorCode.INVALID_PARTITIONS,
    "replication factor": ErrorCode.INVALID_REPLICATION_FACTOR,
    "assignment": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
}


def _partitions(context: Context, asked: CreatableTopic) -> int | None:
    """Return how many partitions are asked for, None for as many as the broker likes.

    Raises:
        ConfigError: If they are to be anywhere but here, or more than once.
    """
    if asked.assignments:
        here = [context.config.node_id]
        indexes = sorted(one.partition_index for one in asked.assignments)
        elsewhere = any(one.broker_ids != here for one in asked.assignments)
        if elsewhere or indexes != list(range(len(indexes))):
            expected = f"partitions from 0 on, each on broker {here[0]} alone"
            raise InvalidSetting("assignment", [one.broker_ids for one in asked.assignments], expected)
        return len(indexes)
    if asked.replication_factor not in (-1, 1):
        raise InvalidSetting("replication factor", asked.replication_factor, "1: there is one broker")
    return None if asked.num_partitions == -1 else asked.num_partitions


def _configs(config: TopicConfig) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=setting.name,
            value=text_of(getattr(config, setting.attribute)),
            config_source=SOURCE_TOPIC if setting.name in config.explicit else SOURCE_DEFAULT,
        )
        for setting in TOPIC_SETTINGS.values()
    ]


def _refused(name: str, code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)


def delete_topics(context: Context, exchange: Exchange) -> None:
    """Delete topics, by name or by id."""
    request: DeleteTopicsRequest = exchange.request.body
    asked = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    context.changes.run(
        exchange,
        lambda: DeleteTopicsResponse(responses=[_delete(context, topic) for topic in asked]),
        exchange.answer,
    )


def _delete(context: Context, asked: DeleteTopicState) -> DeletableTopicResult:
    name, topic_id = asked.name, asked.topic_id
    topics = context.node.topics
    entry = topics.find_by_id(topic_id) if name is None else topics.find(name)
    if not context.config.delete_topics:
        return DeletableTopicResult(
            name=name,
            topic_id=topic_id,
            error_code=ErrorCode.TOPIC_DELETION_DISABLED,
            error_message="delete.topic.enable is false",
        )
    if entry is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code)
    result = DeletableTopicResult(name=entry.name, topic_id=topics.id_of(entry))
    try:
        topics.delete(entry.name)
    except CordwoodError as error:
        result.error_code, result.error_message = code_of(error), str(error)
    return result
