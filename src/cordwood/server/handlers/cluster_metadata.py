"""ApiVersions and Metadata: supported versions, brokers and topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cordwood.broker import BrokerTopic, is_internal
from cordwood.errors import CordwoodError, RecordRefused, UnsupportedVersion
from cordwood.protocol import NULL_ID, ApiKey, ErrorCode, api_versions_response, encode_response
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
from cordwood.security import Operation, ResourceType
from cordwood.server.answers import code_of
from cordwood.server.connections import Exchange, Prepared
from cordwood.server.context import Context
from cordwood.server.handlers.controller import FEATURES_EPOCH, finalized_features, supported_features
from cordwood.server.security import Rights

_NAME_NULLABLE_FROM = 12
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
    """Describe the requested topics; create missing ones if the broker and the client allow it.

    A topic that the client may not describe is refused without a look whether it exists.
    """
    request: MetadataRequest = exchange.request.body
    version = exchange.request.api_version
    asked = request.topics
    if asked is None or (version == 0 and not asked):
        return await _list_all(context, exchange)
    rights, tenant = context.rights(exchange), context.tenant
    errors = _refused(rights, asked)
    if context.config.auto_create_topics and (version < 4 or request.allow_auto_topic_creation):
        missing = [name for name in _names(asked) if name not in errors and tenant.find(name) is None]
        if missing:
            errors |= _not_to_create(rights, missing)
            allowed = [name for name in missing if name not in errors]
            if allowed:
                errors |= await _create_missing(context, exchange, allowed)
    return await _answer(context, exchange, asked, errors)


def _names(asked: Sequence[MetadataRequestTopic]) -> list[str]:
    """Return the names of the topics that are asked for by name."""
    return list(dict.fromkeys(each.name for each in asked if each.name is not None and not _is_by_id(each)))


def _is_by_id(asked: MetadataRequestTopic) -> bool:
    return asked.name is None or (not asked.name and asked.topic_id != NULL_ID)


def _refused(rights: Rights, asked: Sequence[MetadataRequestTopic]) -> dict[str, ErrorCode]:
    """Return the error codes of the named topics that the client may not describe."""
    refusals = {name: rights.topic_refusal(Operation.DESCRIBE, name) for name in _names(asked)}
    return {name: code for name, code in refusals.items() if code is not None}


def _not_to_create(rights: Rights, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Return the error codes of the topics that the client may not create."""
    if rights.allows_cluster(Operation.CREATE):
        return {}
    refusals = {name: rights.topic_refusal(Operation.CREATE, name) for name in names}
    return {name: code for name, code in refusals.items() if code is not None}


async def _create_missing(context: Context, exchange: Exchange, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Create topics, unless that must be recorded and cannot be; return the error codes of those missing."""
    if context.audit is not None and context.audit.refuses_changes:
        return dict.fromkeys(names, ErrorCode.KAFKA_STORAGE_ERROR)
    errors = await context.changes.call(lambda: _create(context, names))
    if context.watch is not None:
        created = [name for name in names if name not in errors]
        if not await context.watch.created(exchange, created):
            errors |= dict.fromkeys(created, ErrorCode.KAFKA_STORAGE_ERROR)
    return errors


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
    """Describe all topics that the client may describe.

    There may be very many: the answer is created off the loop, and cached for clients with the same rights.
    """
    request: MetadataRequest = exchange.request.body
    version, tenant = exchange.request.api_version, context.tenant
    where = context.advertised(exchange.local)
    told = (request.include_topic_authorized_operations, request.include_cluster_authorized_operations)
    rights = context.rights(exchange)
    # Taken before the topics are looked up: what changes meanwhile is not cached for later clients.
    asked = (version, where, told, rights.key)
    changes = tenant.changes
    kept = context.listing.find(changes, asked)
    if kept is not None:
        return kept

    def make() -> Prepared:
        partitions = _Partitions(context.config.node_id)
        found = [topic for topic in map(tenant.find, tenant.names()) if topic is not None]
        seen = [topic for topic in found if rights.sees_topic(topic.name)]
        topics = [_described(context, topic, partitions, rights if told[0] else None) for topic in seen]
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
        topics = [_topic(context, topic, partitions, errors, exchange) for topic in asked]
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
            context.rights(exchange).cluster_operations()
            if request.include_cluster_authorized_operations
            else OPERATIONS_NOT_ASKED
        ),
    )


def _topic(
    context: Context,
    asked: MetadataRequestTopic,
    partitions: _Partitions,
    errors: dict[str, ErrorCode],
    exchange: Exchange,
) -> MetadataResponseTopic:
    request: MetadataRequest = exchange.request.body
    rights = context.rights(exchange)
    told = rights if request.include_topic_authorized_operations else None
    if asked.name is None or _is_by_id(asked):
        topic = context.tenant.find_by_id(asked.topic_id)
        code = None if topic is None else rights.topic_refusal(Operation.DESCRIBE, topic.name)
        if topic is None or code is not None:
            # In versions 10 and 11 the name may be null in a request but not in a response.
            name = None if exchange.request.api_version >= _NAME_NULLABLE_FROM else ""
            code = code or ErrorCode.UNKNOWN_TOPIC_ID
            return MetadataResponseTopic(error_code=code, name=name, topic_id=asked.topic_id)
    else:
        topic, code = context.tenant.find(asked.name), errors.get(asked.name)
        # A topic that was just created and is not on record is not described either; the client asks again.
        if code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.KAFKA_STORAGE_ERROR):
            return MetadataResponseTopic(error_code=code, name=asked.name)
        if topic is None:
            return MetadataResponseTopic(
                error_code=code or _code_of_missing(context, asked.name),
                name=asked.name,
                topic_authorized_operations=_operations(told, asked.name),
            )
    return _described(context, topic, partitions, told)


def _described(
    context: Context, topic: BrokerTopic, partitions: _Partitions, told: Rights | None
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=partitions.described(context.node.topics.epochs.find(topic.entry)),
        topic_authorized_operations=_operations(told, topic.name),
    )


def _operations(told: Rights | None, name: str) -> int:
    """Return what *told* allows on a topic, as bits, or that the client did not ask."""
    return OPERATIONS_NOT_ASKED if told is None else told.operations(ResourceType.TOPIC, name)


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
