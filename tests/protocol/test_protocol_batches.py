"""Produce and Fetch: batches are neither copied nor looked into."""

from __future__ import annotations

import pytest
from protocol.definitions import Case, Plain, crowded_message
from protocol.plain import encoded, to_ours

from cordwood.errors import MalformedMessage
from cordwood.protocol.apis import (
    APIS,
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from cordwood.protocol.messages.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from cordwood.protocol.messages.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)
from cordwood.protocol.wire import NULL_ID, WireBytes, varint

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
ALL_VERSIONS = [
    *((ApiKey.PRODUCE, version) for version in PRODUCE_VERSIONS),
    *((ApiKey.FETCH, version) for version in FETCH_VERSIONS),
]


def produce_frame(version: int, records: bytes) -> bytearray:
    topics = [ProduceTopic("orders", NULL_ID, [ProducePartition(3, memoryview(records))])]
    request = ProduceRequest(None, -1, 30_000, topics)
    return bytearray(b"".join(encode_request(ApiKey.PRODUCE, version, 7, "me", request)))[4:]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_records_are_a_slice_of_the_frame_that_can_be_written_through(version: int) -> None:
    """The broker puts offsets into batches where they are, so a copy would cost twice and show nothing."""
    records = bytes(range(200))
    frame = produce_frame(version, records)
    (partition,) = decode_request(frame).body.topics[0].partitions
    assert partition.records == records
    assert not partition.records.readonly
    partition.records[0] = 0xEE
    assert frame[frame.index(records[1:]) - 1] == 0xEE
    partition.records.release()


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_records_of_a_frame_that_cannot_change_cannot_be_written(version: int) -> None:
    frame = bytes(produce_frame(version, b"batch"))
    assert decode_request(frame).body.topics[0].partitions[0].records.readonly
    view = memoryview(bytearray(b"12345") + frame)[5:]
    assert not decode_request(view).body.topics[0].partitions[0].records.readonly


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_null_records_and_empty_records_differ(version: int) -> None:
    partitions = [ProducePartition(0, None), ProducePartition(1, memoryview(b""))]
    request = ProduceRequest("tx", 1, 5, [ProduceTopic("t", NULL_ID, partitions)])
    frame = b"".join(encode_request(ApiKey.PRODUCE, version, 1, None, request))[4:]
    first, second = decode_request(frame).body.topics[0].partitions
    assert first.records is None
    assert second.records == b""


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_record_buffers_leave_as_the_objects_they_came_as(version: int) -> None:
    buffers: list[WireBytes] = [
        memoryview(b"first batch"),
        bytearray(b"second"),
        b"third",
        memoryview(bytes(100_000)),
    ]
    partitions = [
        FetchPartitionResponse(0, 0, 5, 5, 0, None, -1, buffers[:3]),
        FetchPartitionResponse(1, 3),
        FetchPartitionResponse(2, 0, 9, 9, 0, [], -1, buffers[3:]),
    ]
    response = FetchResponse(0, 0, 0, [FetchTopicResponse("t", NULL_ID, partitions)])
    out = encode_response(ApiKey.FETCH, version, 7, response)
    passed = [id(each) for each in out if any(each is buffer for buffer in buffers)]
    assert passed == [id(buffer) for buffer in buffers]
    assert type(out[0]) is bytes
    assert all(out), "an empty buffer is a buffer to write for nothing"
    frame = b"".join(out)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert sum(map(len, out)) - sum(map(len, buffers)) < 250


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_several_record_buffers_count_as_one(version: int) -> None:
    partition = FetchPartitionResponse(0, 0, 5, 5, 0, None, -1, [b"ab", bytearray(b"cde"), memoryview(b"f")])
    response = FetchResponse(0, 0, 0, [FetchTopicResponse("t", NULL_ID, [partition])])
    frame = b"".join(encode_response(ApiKey.FETCH, version, 7, response))[4:]
    (read,) = decode_response(ApiKey.FETCH, version, frame).body.topics[0].partitions
    assert b"".join(read.records) == b"abcdef"


def test_a_response_that_cannot_be_written_says_so() -> None:
    topics = [ProduceTopicResponse("t", NULL_ID, [ProducePartitionResponse(2**31)])]
    for version in (3, 9):
        with pytest.raises(ValueError, match=f"ProduceResponse v{version}"):
            encode_response(ApiKey.PRODUCE, version, 0, ProduceResponse(topics))
    partition = FetchPartitionResponse(0, records=(None,))  # type: ignore[arg-type]
    for version in (4, 12):
        with pytest.raises(ValueError, match=f"FetchResponse v{version}"):
            encode_response(
                ApiKey.FETCH,
                version,
                0,
                FetchResponse(0, 0, 0, [FetchTopicResponse("t", NULL_ID, [partition])]),
            )


#: Each array of a request, as errors call it, and the path to it in a plain message.
ARRAYS = {
    ApiKey.PRODUCE: {"topics": ("topic_data",), "topics.partitions": ("topic_data", "partition_data")},
    ApiKey.FETCH: {
        "topics": ("topics",),
        "topics.partitions": ("topics", "partitions"),
        "forgotten": ("forgotten_topics_data",),
        "forgotten.partitions": ("forgotten_topics_data", "partitions"),
    },
}
#: A number of elements that no other byte of such a message looks like.
COUNT = 77


def crowded_in(case: Case, path: tuple[str, ...]) -> Plain:
    """Return a message with ``COUNT`` of the smallest elements in the array at *path*, and none elsewhere."""
    plain = crowded_message(case, len(path))
    for other in ("topic_data", "topics", "forgotten_topics_data"):
        if other in plain and other != path[0]:
            plain[other] = []
    outer = plain if len(path) == 1 else plain[path[0]][0]
    outer[path[-1]] = outer[path[-1]][:1] * COUNT
    return plain


def as_count(count: int, flexible: bool) -> bytes:
    return varint(count + 1) if flexible else count.to_bytes(4, "big")


@pytest.mark.parametrize(("key", "version"), ALL_VERSIONS)
def test_a_count_that_fits_is_read_and_one_that_cannot_is_refused_before_any_element(
    key: ApiKey, version: int
) -> None:
    case = Case(key, version, "request")
    flexible = version >= APIS[key].flexible_from
    for name, path in ARRAYS[key].items():
        if version < 7 and name.startswith("forgotten"):
            continue
        message = to_ours(case, crowded_in(case, path))
        frame = encoded(case, message)
        assert decode_request(frame).body == message
        assert frame.count(as_count(COUNT, flexible)) == 1
        for more in (2 * COUNT, 2**31 - 1):
            lying = frame.replace(as_count(COUNT, flexible), as_count(more, flexible))
            sentence = f"{name} has more elements than fit: found {more} elements"
            with pytest.raises(MalformedMessage, match=sentence):
                decode_request(lying)
