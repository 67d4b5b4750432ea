"""ApiVersions and Metadata: supported versions, brokers and topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cordwood.broker import BrokerTopic, is_internal
from cordwood.errors import CordwoodError, RecordRefused, UnsupportedVersion
from cordwood.protocol import NULL_ID, ApiKey, ErrorCode, Request, api_versions_response, encode_response
from cordwood.protocol.messages import (
    OPERATIONS_NOT_ASKED,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from cordwood.server.answers import code_of
from cordwood.server.connections import Exchange, Prepared
from cordwood.server.context import Context
from cordwood.server.handlers.controller import FEATURES_EPOCH, finalized_features, supported_features

_NAME_NULLABLE_FROM = 12
# All operations, as bits by the number of the operation: there is no access control.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
#: With at least this many topics, the list of all topics is created in a thread.
MANY = 200


async def api_versions(served: Collection[ApiKey], exchange: Exchange) -> ApiVersionsResponse:
    """Return the supported APIs and their versions, also to a client that asks in an unsupported version."""
    if isinstance(exchange.request.body, UnsupportedVersion):
        return api_versions_response([ApiKey.API_VERSIONS], ErrorCode.UNSUPPORTED_VERSION)
    response = api_versions_response(served)
    response.supported_features = supported_features()
    response.finalized_features = finalized_features()
    response.finalized_features_epoch = FEATURES_EPOCH
    return response


async def metadata(context: Context, exchange: Exchange) -> MetadataResponse | Prepared:
    """Describe the requested topics; create missing ones if the broker and the client allow it."""
    request: MetadataRequest = exchange.request.body
    version = exchange.request.api_version
    asked = request.topics
    if asked is None or (version == 0 and not asked):
        return await _list_all(context, exchange)
    errors: dict[str, ErrorCode] = {}
    if context.config.auto_create_topics and (version < 4 or request.allow_auto_topic_creation):
        missing = [t.name for t in asked if t.name is not None and context.tenant.find(t.name) is None]
        if missing:
            errors = await context.changes.call(lambda: _create(context, missing))
    return await _answer(context, exchange, asked, errors)


def _create(context: Context, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Create topics; return the error codes of those that could not be created."""
    errors = {}
    for name in names:
        try:
            context.tenant.ensure(name)
        except RecordRefused:
            errors[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
        except CordwoodError as error:
            errors[name] = code_of(error)
    return errors


async def _list_all(context: Context, exchange: Exchange) -> Prepared:
    """Describe all topics. There may be very many: the answer is created off the loop and cached."""
    request: MetadataRequest = exchange.request.body
    version, tenant = exchange.request.api_version, context.tenant
    where = context.advertised(exchange.local)
    told = (request.include_topic_authorized_operations, request.include_cluster_authorized_operations)
    asked = (version, where, told)
    changes = tenant.changes
    kept = context.listing.find(changes, asked)
    if kept is not None:
        return kept

    def make() -> Prepared:
        partitions = _Partitions(context.config.node_id)
        found = [topic for topic in map(tenant.find, tenant.names()) if topic is not None]
        topics = [_described(context, topic, partitions, told=told[0]) for topic in found]
        response = _response(context, exchange, topics)
        return Prepared(b"".join(encode_response(ApiKey.METADATA, version, 0, response)))

    at_once = len(tenant) < MANY and all_epochs_known(context, tenant.names())
    answer = make() if at_once else await context.readers.call(make)
    context.listing.keep(changes, asked, answer)
    return answer


def all_epochs_known(context: Context, names: Iterable[str]) -> bool:
    """Return whether the leader epochs of all topics are in memory. Never blocks."""
    found = map(context.tenant.find, names)
    return all(topic is None or context.node.topics.epochs.known(topic.entry) is not None for topic in found)


async def _answer(
    context: Context,
    exchange: Exchange,
    asked: Sequence[MetadataRequestTopic],
    errors: dict[str, ErrorCode],
) -> MetadataResponse:
    def make() -> MetadataResponse:
        partitions = _Partitions(context.config.node_id)
        topics = [_topic(context, topic, partitions, errors, exchange.request) for topic in asked]
        return _response(context, exchange, topics)

    by_id = (context.tenant.find_by_id(each.topic_id) for each in asked if not each.name)
    names = {each.name for each in asked if each.name} | {topic.name for topic in by_id if topic is not None}
    return make() if all_epochs_known(context, names) else await context.readers.call(make)


def _response(context: Context, exchange: Exchange, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    request: MetadataRequest = exchange.request.body
    node_id, where = context.config.node_id, context.advertised(exchange.local)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node_id, host=where.host, port=where.port)],
        cluster_id=context.node.directory.identity.uuid,
        controller_id=node_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
        ),
    )


def _topic(
    context: Context,
    asked: MetadataRequestTopic,
    partitions: _Partitions,
    errors: dict[str, ErrorCode],
    request: Request,
) -> MetadataResponseTopic:
    if asked.name is None or (not asked.name and asked.topic_id != NULL_ID):
        topic = context.tenant.find_by_id(asked.topic_id)
        if topic is None:
            # In versions 10 and 11 the name may be null in a request but not in a response.
            name = None if request.api_version >= _NAME_NULLABLE_FROM else ""
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=asked.topic_id
            )
    else:
        topic = context.tenant.find(asked.name)
        if topic is None:
            code = errors.get(asked.name) or _code_of_missing(context, asked.name)
            return MetadataResponseTopic(error_code=code, name=asked.name)
    return _described(context, topic, partitions, told=request.body.include_topic_authorized_operations)


def _described(
    context: Context, topic: BrokerTopic, partitions: _Partitions, *, told: bool
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=partitions.described(context.node.topics.epochs.find(topic.entry)),
        topic_authorized_operations=TOPIC_OPERATIONS if told else OPERATIONS_NOT_ASKED,
    )


def _code_of_missing(context: Context, name: str) -> ErrorCode:
    """Return the error code of a missing topic: clients must not wait for one with an invalid name."""
    try:
        context.tenant.check_name(name)
    except RecordRefused:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class _Partitions:
    """A cache of partition descriptions for one answer: most topics have the same."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._made: dict[tuple[int, ...], list[MetadataResponsePartition]] = {}

    def described(self, epochs: tuple[int, ...]) -> list[MetadataResponsePartition]:
        """Return the descriptions of partitions with these leader epochs."""
        if epochs not in self._made:
            here = [self._node_id]
            self._made[epochs] = [
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=self._node_id,
                    leader_epoch=epoch,
                    replica_nodes=here,
                    isr_nodes=here,
                )
                for index, epoch in enumerate(epochs)
            ]
        return self._made[epochs]
