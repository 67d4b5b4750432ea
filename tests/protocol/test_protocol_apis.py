"""The table of APIs, what a header looks like, and what becomes of requests that are not spoken."""

from __future__ import annotations

import struct

import kafka.errors
import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from protocol.definitions import CORRELATION_ID, Case
from protocol.oracles import ORACLES, Oracle

from cordwood.errors import MalformedMessage, ProtocolError, UnsupportedVersion
from cordwood.protocol.apis import (
    APIS,
    ApiKey,
    api_versions_response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from cordwood.protocol.messages.groups import HeartbeatRequest
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from cordwood.protocol.schema import Versions

#: What Kafka 4.3 speaks of what we do, but for what belongs to transaction version 2.
KAFKA_RANGES = {
    ApiKey.PRODUCE: "3-13",
    ApiKey.FETCH: "4-18",
    ApiKey.LIST_OFFSETS: "1-11",
    ApiKey.METADATA: "0-13",
    ApiKey.OFFSET_COMMIT: "2-10",
    ApiKey.OFFSET_FETCH: "1-10",
    ApiKey.FIND_COORDINATOR: "0-6",
    ApiKey.JOIN_GROUP: "0-9",
    ApiKey.HEARTBEAT: "0-4",
    ApiKey.LEAVE_GROUP: "0-5",
    ApiKey.SYNC_GROUP: "0-5",
    ApiKey.DESCRIBE_GROUPS: "0-6",
    ApiKey.LIST_GROUPS: "0-5",
    ApiKey.SASL_HANDSHAKE: "0-1",
    ApiKey.API_VERSIONS: "0-4",
    ApiKey.CREATE_TOPICS: "2-7",
    ApiKey.DELETE_TOPICS: "1-6",
    ApiKey.DELETE_RECORDS: "0-2",
    ApiKey.INIT_PRODUCER_ID: "0-6",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "2-4",
    ApiKey.ADD_PARTITIONS_TO_TXN: "0-3",
    ApiKey.ADD_OFFSETS_TO_TXN: "0-4",
    ApiKey.END_TXN: "0-4",
    ApiKey.WRITE_TXN_MARKERS: "1-2",
    ApiKey.TXN_OFFSET_COMMIT: "0-4",
    ApiKey.DESCRIBE_ACLS: "1-3",
    ApiKey.CREATE_ACLS: "1-3",
    ApiKey.DELETE_ACLS: "1-3",
    ApiKey.DESCRIBE_CONFIGS: "1-4",
    ApiKey.ALTER_CONFIGS: "0-2",
    ApiKey.DESCRIBE_LOG_DIRS: "1-5",
    ApiKey.SASL_AUTHENTICATE: "0-2",
    ApiKey.CREATE_PARTITIONS: "0-3",
    ApiKey.DELETE_GROUPS: "0-2",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "0-1",
    ApiKey.ELECT_LEADERS: "0-2",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "0-1",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "0",
    ApiKey.OFFSET_DELETE: "0",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "0-1",
    ApiKey.ALTER_CLIENT_QUOTAS: "0-1",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "0",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "0",
    ApiKey.DESCRIBE_QUORUM: "0-2",
    ApiKey.UPDATE_FEATURES: "0-2",
    ApiKey.DESCRIBE_CLUSTER: "0-2",
    ApiKey.DESCRIBE_PRODUCERS: "0",
    ApiKey.DESCRIBE_TRANSACTIONS: "0",
    ApiKey.LIST_TRANSACTIONS: "0-2",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "0-1",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "0-1",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "0",
}


def request_header(key: int, version: int, client_id: bytes = b"\x00\x02me") -> bytes:
    return struct.pack(">hhi", key, version, CORRELATION_ID) + client_id


def test_every_api_is_spoken_in_all_versions_of_kafka() -> None:
    assert {key: api.versions for key, api in APIS.items()} == {
        key: Versions.parse(text) for key, text in KAFKA_RANGES.items()
    }


def test_produce_is_advertised_from_version_0_though_0_to_2_are_refused() -> None:
    """Old librdkafka takes a minimum above 0 to mean that compression is not spoken, and drops it."""
    advertised = {each.api_key: each for each in api_versions_response(list(ApiKey)).api_keys}
    assert (advertised[ApiKey.PRODUCE].min_version, advertised[ApiKey.PRODUCE].max_version) == (0, 13)
    for version in range(3):
        with pytest.raises(UnsupportedVersion):
            decode_request(request_header(ApiKey.PRODUCE, version) + bytes(20))


def test_no_more_is_advertised_than_can_be_read_but_for_the_first_versions_of_produce() -> None:
    for each in api_versions_response(list(ApiKey)).api_keys:
        versions = APIS[ApiKey(each.api_key)].versions
        assert each.max_version <= versions.last
        assert each.min_version >= versions.first or each.api_key == ApiKey.PRODUCE


def test_api_versions_lists_the_served_keys_and_no_others_in_order() -> None:
    served = {ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.FETCH}
    response = api_versions_response(served)
    assert response.error_code == 0
    assert [each.api_key for each in response.api_keys] == [1, 3, 18]


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.name)
def test_api_versions_of_an_unknown_version_is_answered_with_error_35_in_version_0(
    version: int, oracle: Oracle
) -> None:
    """Whatever follows in a header from the future, the correlation id is found. A client that cannot read
    the answer asks again forever."""
    with pytest.raises(UnsupportedVersion) as raised:
        decode_request(request_header(ApiKey.API_VERSIONS, version) + b"\xff bytes of the future")
    error = raised.value
    assert (error.api_key, error.api_version) == (ApiKey.API_VERSIONS, version)
    assert (error.correlation_id, error.client_id) == (CORRELATION_ID, "me")
    answer = encode_response(
        ApiKey.API_VERSIONS,
        0,
        error.correlation_id,
        api_versions_response([ApiKey.API_VERSIONS], ErrorCode.UNSUPPORTED_VERSION),
    )
    frame = b"".join(answer)[4:]
    assert frame == struct.pack(">ihihhh", CORRELATION_ID, 35, 1, 18, 0, 4)
    read = oracle.decode(Case(ApiKey.API_VERSIONS, 0, "response"), frame)
    assert read == {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}]}


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.name)
def test_api_versions_responses_have_the_oldest_header_in_every_version(version: int, oracle: Oracle) -> None:
    response = api_versions_response(list(ApiKey))
    frame = b"".join(encode_response(ApiKey.API_VERSIONS, version, CORRELATION_ID, response))[4:]
    # The error code, 0, follows the correlation id at once; then the number of APIs.
    count = bytes((len(ApiKey) + 1,)) if version >= 3 else struct.pack(">i", len(ApiKey))
    assert frame.startswith(struct.pack(">ih", CORRELATION_ID, 0) + count)
    read = oracle.decode(Case(ApiKey.API_VERSIONS, version, "response"), frame)
    assert len(read["api_keys"]) == len(ApiKey)


@pytest.mark.parametrize(("key", "version"), [(4, 0), (17, 2), (999, 3), (-1, 0), (3, 14), (3, -1), (1, 3)])
def test_what_is_not_spoken_is_named_with_its_correlation_id(key: int, version: int) -> None:
    for client_id, text in ((b"\x00\x02me", "me"), (b"\xff\xff", None)):
        with pytest.raises(UnsupportedVersion) as raised:
            decode_request(request_header(key, version, client_id))
        error = raised.value
        assert (error.api_key, error.api_version) == (key, version)
        assert (error.correlation_id, error.client_id) == (CORRELATION_ID, text)
        assert isinstance(error, ProtocolError)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\0",
        request_header(3, 1, b""),
        request_header(3, 1, b"\0"),
        request_header(3, 1, b"\x00\x03me"),
        request_header(3, 1, b"\xff\xfe"),
        request_header(3, 1, b"\x00\x02\xff\xfe"),
        request_header(999, 1, b"\x00\x02\xff\xfe"),
        request_header(3, 9),
        request_header(3, 9) + b"\x01\x00",
        request_header(3, 9) + b"\xff\xff\xff\xff\xff",
    ],
    ids=lambda header: header.hex(),
)
def test_a_header_that_is_none_is_refused(header: bytes) -> None:
    with pytest.raises(MalformedMessage) as raised:
        decode_request(header)
    assert 0 <= raised.value.position <= len(header)
    assert raised.value.what
    assert str(raised.value.found) in str(raised.value)


def test_a_request_keeps_what_its_header_says() -> None:
    body = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    frame = b"".join(encode_request(ApiKey.HEARTBEAT, 4, -5, None, body))[4:]
    request = decode_request(frame)
    assert request.api_key is ApiKey.HEARTBEAT
    assert (request.api_version, request.correlation_id, request.client_id) == (4, -5, None)
    assert request.body == body


def test_a_response_frame_begins_with_its_length_and_its_correlation_id() -> None:
    response = MetadataResponse(topics=[MetadataResponseTopic(name="orders")])
    for version, header_size in ((8, 8), (9, 9)):
        frame = b"".join(encode_response(ApiKey.METADATA, version, 77, response))
        assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 77)
        assert decode_response(ApiKey.METADATA, version, frame[4:]).body == response
        (body,) = APIS[ApiKey.METADATA].response.encoder(version)(response)
        assert len(frame) == header_size + len(body)


def test_a_field_that_a_version_does_not_have_is_left_out_and_reads_as_its_default() -> None:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    frame = b"".join(encode_request(ApiKey.METADATA, 3, 1, "me", request))[4:]
    assert decode_request(frame).body == MetadataRequest(topics=None, allow_auto_topic_creation=True)


def test_what_a_field_cannot_hold_is_refused_by_its_name() -> None:
    nameless = MetadataResponse(topics=[MetadataResponseTopic(name=None)])
    assert encode_response(ApiKey.METADATA, 12, 1, nameless)
    with pytest.raises(ValueError, match=r"MetadataResponse v11, topics\.name"):
        encode_response(ApiKey.METADATA, 11, 1, nameless)
    with pytest.raises(ValueError, match=r"ApiVersionsResponse v1, throttle_time_ms"):
        encode_response(ApiKey.API_VERSIONS, 1, 1, ApiVersionsResponse(throttle_time_ms=2**31))
    with pytest.raises(ValueError, match=r"has no version 9"):
        encode_response(ApiKey.API_VERSIONS, 9, 1, ApiVersionsResponse())
    too_long = ApiVersionsRequest(client_software_name="\udc80")
    with pytest.raises(ValueError, match=r"client_software_name"):
        encode_request(ApiKey.API_VERSIONS, 3, 1, "me", too_long)


def test_error_codes_are_those_of_both_oracles() -> None:
    assert {code.name: code.value for code in ErrorCode} == {
        code.name.upper(): code.value for code in KioErrorCode
    }
    theirs = {
        each.errno for each in vars(kafka.errors).values() if isinstance(getattr(each, "errno", None), int)
    }
    compared = {code for code in theirs if -1 <= code <= 127}
    assert compared <= set(ErrorCode)
    assert len(compared) >= 100
    assert sorted(ErrorCode) == list(range(-1, 134))
