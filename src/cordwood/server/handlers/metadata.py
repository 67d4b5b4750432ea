"""ApiVersions and Metadata: what is spoken here, what topics there are, and where to find them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cordwood.broker.topics import is_internal
from cordwood.errors import CordwoodError, RecordRefused, UnsupportedVersion
from cordwood.protocol.apis import ApiKey, Request, api_versions_response
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from cordwood.protocol.wire import NULL_ID
from cordwood.server.answers import code_of
from cordwood.server.connection import Exchange
from cordwood.server.context import Context
from cordwood.storage.catalogue import TopicEntry
from cordwood.storage.data_directory import check_topic_name

_NAME_NULLABLE_FROM = 12
# Everything one may do, as bits by the number of the operation: nobody is refused anything here.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


def api_versions(served: Collection[ApiKey], exchange: Exchange) -> None:
    """Say which APIs are served, in which versions; and so much even to whom asks in a version not spoken."""
    if isinstance(exchange.request.body, UnsupportedVersion):
        exchange.answer(api_versions_response([ApiKey.API_VERSIONS], ErrorCode.UNSUPPORTED_VERSION))
    else:
        exchange.answer(api_versions_response(served))


def metadata(context: Context, exchange: Exchange) -> None:
    """Describe the topics asked for, creating those that are missing if both sides allow it."""
    request: MetadataRequest = exchange.request.body
    version = exchange.request.api_version
    asked = request.topics
    if asked is None or (version == 0 and not asked):
        asked = [MetadataRequestTopic(name=name) for name in context.node.topics.names()]
    elif context.config.auto_create_topics and (version < 4 or request.allow_auto_topic_creation):
        missing = [t.name for t in asked if t.name is not None and context.node.topics.find(t.name) is None]
        if missing:
            context.changes.run(
                exchange,
                lambda: _create(context, missing),
                lambda errors: _answer(context, exchange, asked, errors),
            )
            return
    _answer(context, exchange, asked, {})


def _create(context: Context, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Create topics; return the codes of those that could not be."""
    errors = {}
    for name in names:
        try:
            context.node.topics.ensure(name)
        except RecordRefused:
            errors[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
        except CordwoodError as error:
            errors[name] = code_of(error)
    return errors


def _answer(
    context: Context,
    exchange: Exchange,
    asked: Sequence[MetadataRequestTopic],
    errors: dict[str, ErrorCode],
) -> None:
    request: MetadataRequest = exchange.request.body
    node_id, where = context.config.node_id, context.advertised(exchange.local)
    topics = [_topic(context, topic, errors, exchange.request) for topic in asked]
    exchange.answer(
        MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=node_id, host=where.host, port=where.port)],
            cluster_id=context.node.cluster_id,
            controller_id=node_id,
            topics=topics,
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
            ),
        )
    )


def _topic(
    context: Context, asked: MetadataRequestTopic, errors: dict[str, ErrorCode], request: Request
) -> MetadataResponseTopic:
    topics = context.node.topics
    if asked.name is None or (not asked.name and asked.topic_id != NULL_ID):
        entry = topics.find_by_id(asked.topic_id)
        if entry is None:
            # In versions 10 and 11 a question may leave out the name and an answer may not.
            name = None if request.api_version >= _NAME_NULLABLE_FROM else ""
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=asked.topic_id
            )
    else:
        entry = topics.find(asked.name)
        if entry is None:
            code = errors.get(asked.name) or _code_of_missing(asked.name)
            return MetadataResponseTopic(error_code=code, name=asked.name)
    told = request.body.include_topic_authorized_operations
    return MetadataResponseTopic(
        name=entry.name,
        topic_id=topics.id_of(entry),
        is_internal=is_internal(entry.name),
        partitions=_partitions(context, entry),
        topic_authorized_operations=TOPIC_OPERATIONS if told else OPERATIONS_NOT_ASKED,
    )


def _code_of_missing(name: str) -> ErrorCode:
    """Return what to say of a topic that is not there: nobody should wait for one that never can be."""
    try:
        check_topic_name(name)
    except RecordRefused:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _partitions(context: Context, entry: TopicEntry) -> list[MetadataResponsePartition]:
    node_id = context.config.node_id
    return [
        MetadataResponsePartition(
            partition_index=index, leader_id=node_id, replica_nodes=[node_id], isr_nodes=[node_id]
        )
        for index in range(entry.partitions)
    ]
