"""Every supported API: its number, versions, messages and frame headers.

``decode_request`` and ``encode_response`` are the server's half; ``encode_request`` and ``decode_response``
the client's, for tests and tools. Decoders take a frame without the four bytes of its length; encoders
return it with them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType, ModuleType
from typing import Any

import msgspec

from cordwood.errors import UnsupportedVersion
from cordwood.protocol.codec import Compiled
from cordwood.protocol.messages import (
    api_versions,
    authentication,
    client_quotas,
    cluster,
    configs,
    controller,
    fetch,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    producers,
    security,
    topics,
    transactions,
)
from cordwood.protocol.schema import Versions
from cordwood.protocol.wire import READ_ERRORS, Decode, Encode, WireBytes, malformed, skip_tags, unreadable


class ApiKey(IntEnum):
    """The number of an API."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class Api:
    """One API. ``versions`` are the supported versions, ``advertised`` those reported to clients.

    Versions from ``flexible_from`` on have tagged fields, in their headers too.
    """

    key: ApiKey
    versions: Versions
    advertised: Versions
    flexible_from: int
    request: Compiled
    response: Compiled

    def response_header_is_flexible(self, version: int) -> bool:
        """Return whether tagged fields follow the correlation id of a response.

        Never for ApiVersions: the client does not know the supported versions yet.
        """
        return version >= self.flexible_from and self.key is not ApiKey.API_VERSIONS


_NEVER_FLEXIBLE = 0x7FFF


def _declared(
    key: ApiKey, versions: str, flexible_from: int, messages: ModuleType, advertised: str | None = None
) -> Api:
    """Return the API whose messages are declared in the module *messages* under the API's name."""
    name = key.name.title().replace("_", "")
    return Api(
        key,
        Versions.parse(versions),
        Versions.parse(advertised or versions),
        flexible_from,
        Compiled(getattr(messages, f"{name}Request"), flexible_from),
        Compiled(getattr(messages, f"{name}Response"), flexible_from),
    )


_TABLE = (
    # Versions 0 to 2 are refused, but if they are not advertised, librdkafka before 2.11.1 assumes that
    # compression is not supported, and silently sends its batches uncompressed.
    _declared(ApiKey.PRODUCE, "3-13", 9, produce, advertised="0-13"),
    _declared(ApiKey.FETCH, "4-18", 12, fetch),
    _declared(ApiKey.LIST_OFFSETS, "1-11", 6, offsets),
    _declared(ApiKey.METADATA, "0-13", 9, metadata),
    _declared(ApiKey.OFFSET_COMMIT, "2-10", 8, group_offsets),
    _declared(ApiKey.OFFSET_FETCH, "1-10", 6, group_offsets),
    _declared(ApiKey.FIND_COORDINATOR, "0-6", 3, groups),
    _declared(ApiKey.JOIN_GROUP, "0-9", 6, groups),
    _declared(ApiKey.HEARTBEAT, "0-4", 4, groups),
    _declared(ApiKey.LEAVE_GROUP, "0-5", 4, groups),
    _declared(ApiKey.SYNC_GROUP, "0-5", 4, groups),
    _declared(ApiKey.DESCRIBE_GROUPS, "0-6", 5, groups),
    _declared(ApiKey.LIST_GROUPS, "0-5", 3, groups),
    _declared(ApiKey.SASL_HANDSHAKE, "0-1", _NEVER_FLEXIBLE, authentication),
    _declared(ApiKey.API_VERSIONS, "0-4", 3, api_versions),
    _declared(ApiKey.CREATE_TOPICS, "2-7", 5, topics),
    _declared(ApiKey.DELETE_TOPICS, "1-6", 4, topics),
    _declared(ApiKey.DELETE_RECORDS, "0-2", 2, topics),
    # Kafka has not declared version 6 stable, and does not advertise it.
    _declared(ApiKey.INIT_PRODUCER_ID, "0-6", 2, producers, advertised="0-5"),
    _declared(ApiKey.OFFSET_FOR_LEADER_EPOCH, "2-4", 4, offsets),
    # The next versions of these APIs belong to transaction version 2, or are between brokers.
    _declared(ApiKey.ADD_PARTITIONS_TO_TXN, "0-3", 3, transactions),
    _declared(ApiKey.ADD_OFFSETS_TO_TXN, "0-4", 3, transactions),
    _declared(ApiKey.END_TXN, "0-4", 3, transactions),
    _declared(ApiKey.WRITE_TXN_MARKERS, "1-2", 1, transactions),
    _declared(ApiKey.TXN_OFFSET_COMMIT, "0-4", 3, group_offsets),
    _declared(ApiKey.DESCRIBE_ACLS, "1-3", 2, security),
    _declared(ApiKey.CREATE_ACLS, "1-3", 2, security),
    _declared(ApiKey.DELETE_ACLS, "1-3", 2, security),
    _declared(ApiKey.DESCRIBE_CONFIGS, "1-4", 4, configs),
    _declared(ApiKey.ALTER_CONFIGS, "0-2", 2, configs),
    _declared(ApiKey.DESCRIBE_LOG_DIRS, "1-5", 2, cluster),
    _declared(ApiKey.SASL_AUTHENTICATE, "0-2", 2, authentication),
    _declared(ApiKey.CREATE_PARTITIONS, "0-3", 2, topics),
    _declared(ApiKey.DELETE_GROUPS, "0-2", 2, groups),
    _declared(ApiKey.ELECT_LEADERS, "0-2", 2, controller),
    _declared(ApiKey.INCREMENTAL_ALTER_CONFIGS, "0-1", 1, configs),
    _declared(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "0-1", 0, controller),
    _declared(ApiKey.LIST_PARTITION_REASSIGNMENTS, "0-0", 0, controller),
    _declared(ApiKey.OFFSET_DELETE, "0-0", _NEVER_FLEXIBLE, group_offsets),
    _declared(ApiKey.DESCRIBE_CLIENT_QUOTAS, "0-1", 1, client_quotas),
    _declared(ApiKey.ALTER_CLIENT_QUOTAS, "0-1", 1, client_quotas),
    _declared(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "0-0", 0, security),
    _declared(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "0-0", 0, authentication),
    _declared(ApiKey.DESCRIBE_QUORUM, "0-2", 0, controller),
    _declared(ApiKey.UPDATE_FEATURES, "0-2", 0, controller),
    _declared(ApiKey.DESCRIBE_CLUSTER, "0-2", 0, cluster),
    _declared(ApiKey.DESCRIBE_PRODUCERS, "0-0", 0, producers),
    _declared(ApiKey.DESCRIBE_TRANSACTIONS, "0-0", 0, transactions),
    _declared(ApiKey.LIST_TRANSACTIONS, "0-2", 0, transactions),
    _declared(ApiKey.CONSUMER_GROUP_HEARTBEAT, "0-1", 0, groups),
    _declared(ApiKey.CONSUMER_GROUP_DESCRIBE, "0-1", 0, groups),
    _declared(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "0-0", 0, cluster),
)

#: Every API, by its number.
APIS: Mapping[ApiKey, Api] = MappingProxyType({api.key: api for api in _TABLE})
assert len(APIS) == len(_TABLE) == len(ApiKey)


def api_versions_response(
    served: Collection[ApiKey], error_code: int = 0
) -> api_versions.ApiVersionsResponse:
    """Return the response with the APIs in *served* and their versions.

    An ApiVersions request of an unsupported version is answered in version 0, with error 35 and the versions
    of ApiVersions itself::

        encode_response(
            ApiKey.API_VERSIONS, 0, error.correlation_id,
            api_versions_response([ApiKey.API_VERSIONS], ErrorCode.UNSUPPORTED_VERSION),
        )
    """
    ranges = [(key, APIS[key].advertised) for key in sorted(served)]
    keys = [
        api_versions.ApiVersion(api_key=key, min_version=each.first, max_version=each.last)
        for key, each in ranges
    ]
    return api_versions.ApiVersionsResponse(error_code=error_code, api_keys=keys)


def supported_versions(api_key: ApiKey) -> Versions:
    """Return the versions of an API whose messages are declared here."""
    return APIS[api_key].versions


class Request(msgspec.Struct, gc=False):
    """A request: its header fields and ``body``, an instance of the API's request class in ``APIS``."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    body: Any


class Response(msgspec.Struct, gc=False):
    """A response, as a client decodes it."""

    correlation_id: int
    body: Any


# Key, version, correlation id, and the length of the client id, which is never compact: these fields are the
# same in every version of the header.
_REQUEST_HEADER = struct.Struct(">hhih")
_RESPONSE_HEADER = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_HEADER = struct.Struct(">iix")

# The codecs of each (key, version), under key << 16 | version. Filled on first use.
_decoders: dict[int, tuple[ApiKey, bool, Decode]] = {}
_encoders: dict[int, tuple[struct.Struct, Encode]] = {}


def decode_request(frame: WireBytes) -> Request:
    """Return the request in *frame*, which is without its length. Batches stay slices of *frame*.

    Raises:
        MalformedMessage: If the bytes are not a valid request.
        UnsupportedVersion: If the API or its version is not supported. The body was not decoded.
    """
    end = len(frame)
    try:
        key, version, correlation_id, size = _REQUEST_HEADER.unpack_from(frame)
        i = 10
        client_id = None
        if size >= 0:
            i += size
            if i > end:
                raise malformed(10, "the client id goes on past the end", size)
            client_id = str(frame[10:i], "utf-8")
        elif size != -1:
            raise malformed(8, "the client id has a negative length", size)
        route = _decoders.get(key << 16 | version)
        if route is None:
            route = _route(key, version, correlation_id, client_id)
        api_key, flexible, decode = route
        if flexible:
            i = skip_tags(frame, i) if frame[i] else i + 1
    except READ_ERRORS as error:
        raise unreadable(error, min(end, 10), "the request header", end) from None
    return Request(api_key, version, correlation_id, client_id, decode(frame, i))


def _route(key: int, version: int, correlation_id: int, client_id: str | None) -> tuple[ApiKey, bool, Decode]:
    api = APIS.get(key)  # type: ignore[call-overload]  # a number equals its ApiKey, if it has one
    if api is None or version not in api.versions:
        raise UnsupportedVersion(
            api_key=key, api_version=version, correlation_id=correlation_id, client_id=client_id
        )
    route = (api.key, version >= api.flexible_from, api.request.decoder(version))
    _decoders[key << 16 | version] = route
    return route


def encode_response(api_key: ApiKey, api_version: int, correlation_id: int, body: Any) -> list[WireBytes]:
    """Return the frame that answers a request, its length included, for one vectored write.

    The records of a Fetch response are passed through uncopied.

    Raises:
        ValueError: If a field has an invalid value; the message names the field.
    """
    route = _encoders.get(api_key << 16 | api_version)
    if route is None:
        api = APIS[api_key]
        if api_version not in api.versions:
            raise ValueError(f"{api_key.name} has no version {api_version}")
        header = (
            _FLEXIBLE_RESPONSE_HEADER if api.response_header_is_flexible(api_version) else _RESPONSE_HEADER
        )
        route = _encoders[api_key << 16 | api_version] = (header, api.response.encoder(api_version))
    header, encode = route
    out = encode(body)
    out[0] = header.pack(header.size - 4 + sum(map(len, out)), correlation_id) + out[0]
    return out


def encode_request(
    api_key: ApiKey, api_version: int, correlation_id: int, client_id: str | None, body: Any
) -> list[WireBytes]:
    """Return the frame of a request, its length included."""
    api = APIS[api_key]
    name = None if client_id is None else client_id.encode()
    header = struct.pack(">hhih", api_key, api_version, correlation_id, -1 if name is None else len(name))
    header += (name or b"") + (b"\0" if api_version >= api.flexible_from else b"")
    out = api.request.encoder(api_version)(body)
    out[0] = struct.pack(">i", len(header) + sum(map(len, out))) + header + out[0]
    return out


def decode_response(api_key: ApiKey, api_version: int, frame: WireBytes) -> Response:
    """Return the response in *frame*, which is without its length, to a request of this API and version.

    Raises:
        MalformedMessage: If the bytes are not a valid response.
    """
    api = APIS[api_key]
    try:
        (correlation_id,) = struct.unpack_from(">i", frame)
        i = skip_tags(frame, 4) if api.response_header_is_flexible(api_version) else 4
    except READ_ERRORS as error:
        raise unreadable(error, min(len(frame), 4), "the response header", len(frame)) from None
    return Response(correlation_id, api.response.decoder(api_version)(frame, i))
