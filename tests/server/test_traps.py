"""What broke real servers of this protocol, on the bare socket. Each test names the consequence."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, NoReturn

import pytest
from support.asking import Asking, records_in, values_in
from support.clients import CLIENTS, CREATE_TIME, Client, Outgoing, Stored
from support.patience import SECONDS_MAX, until
from support.serving import RawClient

from cordwood import Broker
from cordwood.broker.node import Node
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.formats.compression import Compression
from cordwood.protocol.apis import APIS, ApiKey, decode_response, encode_request
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from cordwood.protocol.wire import varint
from cordwood.server.handlers import cluster_metadata as metadata_handler
from cordwood.server.handlers import fetching as fetch_handler
from cordwood.server.handlers import producing as produce_handler
from cordwood.storage.log.partition_log import PartitionLog

NOON = 1_700_000_000_000
#: A long poll that is answered in time does not wait this long.
LONG_MS = 600_000
LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker for what leaves nothing behind but topics of its own."""
    with Broker() as running:
        yield running


@pytest.fixture
def raw(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as connection:
        yield connection


def batch_of(*values: bytes | None, timestamp: int = NOON, **options: Any) -> bytearray:
    """Return a batch with a record of each value."""
    return batch.encode_records([(None, value) for value in values], timestamp, BatchOptions(**options))


def dated(*timestamps: int, **options: Any) -> bytearray:
    """Return a batch with a record of each timestamp."""
    return batch.encode_records([(None, b"", (), each) for each in timestamps], 0, BatchOptions(**options))


def receive_api_versions(raw: RawClient) -> dict[int, tuple[int, int]]:
    """Return the versions of each API that the server tells."""
    answer: ApiVersionsResponse = raw.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


def values_of(answer: FetchResponse) -> list[list[bytes | None]]:
    """Return the values of each partition in an answer."""
    return [values_in(part) for part in answer.topics[0].partitions]


def connections(stack: ExitStack, broker: Broker, count: int) -> list[Asking]:
    """Connect so many times, until *stack* ends."""
    return [stack.enter_context(Asking(broker.bootstrap)) for _ in range(count)]


def parked(broker: Broker) -> int:
    """Return how many fetches wait, counted where they do."""
    found: Future[int] = Future()
    assert broker._server is not None
    parking = broker._server._parking
    broker._loop.call_soon_threadsafe(lambda: found.set_result(len(parking)))
    return found.result(SECONDS_MAX)


def wait_until_parked(broker: Broker, count: int) -> None:
    """Ask the server's loop again and again, until so many fetches wait."""
    until(lambda: parked(broker) == count, f"{count} fetches wait", pause=0)


# --- 1: Produce is advertised from 0 on ---------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_old_librdkafka_compresses_since_produce_is_advertised_from_version_0(
    version: int, raw: Asking
) -> None:
    """Before 2.11.1 it takes any other minimum to mean that it must not compress, and says nothing."""
    asked = ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.0.2")
    (produce,) = (
        api for api in raw.ask(ApiKey.API_VERSIONS, asked, version).api_keys if api.api_key == ApiKey.PRODUCE
    )
    assert (produce.min_version, produce.max_version) == (0, 13)


@pytest.mark.parametrize("version", range(3))
def test_a_produce_request_of_version_0_to_2_is_refused_and_stores_nothing(
    version: int, broker: Broker, raw: Asking
) -> None:
    """Its message sets are older than batches; a client that can send nothing else must be told."""
    topic = f"old-{version}"
    raw.create(topic)
    message = struct.pack(">IBBii3s", 0, 0, 0, -1, 3, b"old")
    records = struct.pack(">qi", 0, len(message)) + message
    body = struct.pack(">hiih", -1, 1000, 1, len(topic)) + topic.encode()
    body += struct.pack(">iii", 1, 0, len(records)) + records
    header = struct.pack(">hhih", ApiKey.PRODUCE, version, 1, -1)
    with RawClient(broker.bootstrap) as old:
        old.socket.sendall(struct.pack(">i", len(header + body)) + header + body)
        assert old.is_closed()
    assert raw.fetch(topic).high_watermark == 0


# --- 2: ApiVersions in a version that is not spoken ---------------------------------------------------


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_a_client_from_the_future_is_told_the_versions_in_the_oldest_one_and_goes_on(
    version: int, raw: Asking
) -> None:
    """Java's client asks again and again if the answer is anything but a version 0, header included."""
    header = struct.pack(">hhih4sB", ApiKey.API_VERSIONS, version, 4711, 4, b"java", 0)
    body = b"\x05java\x06future\x00 and what nobody knows yet"
    raw.socket.sendall(struct.pack(">i", len(header + body)) + header + body)
    frame = raw.receive_frame()
    correlation_id, error, count = struct.unpack_from(">ihi", frame)
    assert (correlation_id, error, len(frame)) == (4711, 35, 10 + 6 * count)
    ranges = {key: (first, last) for key, first, last in struct.iter_unpack(">hhh", frame[10:])}
    assert ranges[ApiKey.API_VERSIONS] == (0, 4)
    # The client now asks in a version it was told, on the same connection.
    assert receive_api_versions(raw)[ApiKey.API_VERSIONS] == (0, 4)


@pytest.mark.parametrize("version", [3, 4])
def test_the_answer_to_api_versions_has_the_oldest_header_though_its_body_is_flexible(
    version: int, raw: Asking
) -> None:
    """Who asks does not know yet which header to expect, and would misread all that follows a newer one."""
    raw.send(ApiKey.API_VERSIONS, version, ApiVersionsRequest())
    frame = raw.receive_frame()
    _, error, count = struct.unpack_from(">ihB", frame)
    assert (error, count < 128) == (0, True)
    entries = [struct.unpack_from(">hhhB", frame, 7 + 7 * i) for i in range(count - 1)]
    assert {key: versions for key, *versions, _ in entries} == {
        key: [first, last] for key, (first, last) in receive_api_versions(raw).items()
    }
    assert {tags for *_, tags in entries} == {0}
    # Throttle time, the tagged fields of the features, then nothing.
    entries_of_features = [
        varint(1 + len(name)) + name + struct.pack(">hh", level, level) + b"\0"
        for name, level in ((b"group.version", 1), (b"metadata.version", 30))
    ]
    listed = varint(1 + len(entries_of_features)) + b"".join(entries_of_features)
    tags = [(0, listed), (1, struct.pack(">q", 0)), (2, listed)]
    features = b"".join(varint(tag) + varint(len(data)) + data for tag, data in tags)
    assert frame[7 + 7 * (count - 1) :] == bytes(4) + varint(3) + features


# --- 3: a fetch from within a batch -------------------------------------------------------------------


@pytest.mark.parametrize("compression", Compression)
def test_a_consumer_that_resumes_within_a_batch_is_given_the_whole_batch(
    compression: Compression, raw: Asking
) -> None:
    """It skips what it has seen; were the batch left out, the rest of it would be lost to that consumer."""
    topic = f"within-{compression.name}"
    raw.create(topic)
    sizes = (4, 1, 3)
    numbers = itertools.count()
    for size in sizes:
        values = [str(next(numbers)).encode() for _ in range(size)]
        raw.produce(topic, batch_of(*values, compression=compression))
    total, asked = sum(sizes), 0
    for offset in range(total):
        first = max(base for base in (0, 4, 5) if base <= offset)
        expected = [str(number).encode() for number in range(first, total)]
        for version in range(4, 19):
            answer = raw.fetch(topic, offset, version=version)
            assert (answer.error_code, values_in(answer)) == (0, expected)
            assert records_in(answer)[0].offset == first
            asked += 1
    print(f"{asked} fetches, from each of {total} offsets in each version")
    assert values_in(raw.fetch(topic, total)) == []


# --- 5: ListOffsets, exactly --------------------------------------------------------------------------


def check_offsets(raw: Asking, topic: str, timestamps: Sequence[int], start: int = 0) -> int:
    """Compare ListOffsets with all records' timestamps, those before *start* deleted; count the times."""
    readable = list(enumerate(timestamps))[start:]
    newest = max(stamp for _, stamp in readable)
    positions = {
        LATEST: (len(timestamps), -1),
        EARLIEST: (start, -1),
        EARLIEST_LOCAL: (start, -1),
        NEWEST: next(found for found in readable if found[1] == newest),
        LATEST_TIERED: (-1, -1),
        EARLIEST_PENDING: (-1, -1),
    }
    times = {0, min(timestamps) - 1, newest + 1, newest + 10**9}
    times |= {stamp + delta for stamp in timestamps for delta in (-1, 0, 1)}
    for time_asked in times:
        positions[time_asked] = next((found for found in readable if found[1] >= time_asked), (-1, -1))
    for asked, expected in positions.items():
        found = raw.offset_at(topic, asked)
        assert (found.error_code, (found.offset, found.timestamp)) == (0, expected), asked
    return len(positions)


def test_a_consumer_that_starts_at_a_time_misses_no_record_and_gets_none_from_before(raw: Asking) -> None:
    """Whatever the order of timestamps, in whichever batch or segment, also once the oldest are deleted."""
    raw.create("times", segment_bytes="400", segment_index_bytes="48", index_interval_bytes="1")
    stamps = [
        [NOON, NOON + 50, NOON + 20],
        [NOON + 50, NOON + 50],
        [NOON + 10],
        [NOON + 90, NOON + 30, NOON + 90, NOON + 70],
        [NOON + 20, NOON + 20],
        [NOON + 100, NOON - 40],
        [NOON + 100],
        [NOON + 60, NOON + 61, NOON + 62],
    ]
    for number, each in enumerate(stamps):
        compression = list(Compression)[number % len(Compression)]
        assert raw.produce("times", dated(*each, compression=compression)).error_code == 0
    everything = list(itertools.chain(*stamps))
    asked = check_offsets(raw, "times", everything)
    for start in range(1, len(everything)):
        delete_records(raw, "times", start)
        asked += check_offsets(raw, "times", everything, start)
    print(f"{asked} times asked for")
    assert asked > 500


def delete_records(raw: Asking, topic: str, offset: int) -> None:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])])
    (result,) = raw.ask(ApiKey.DELETE_RECORDS, request).topics[0].partitions
    assert (result.error_code, result.low_watermark) == (0, offset)


@pytest.mark.parametrize("version", range(1, 12))
def test_a_consumer_of_an_empty_topic_starts_at_0_whatever_it_asks_for(version: int, raw: Asking) -> None:
    topic = f"empty-{version}"
    raw.create(topic)
    for asked in (LATEST, EARLIEST, EARLIEST_LOCAL):
        assert raw.offset_at(topic, asked, version=version).offset == 0
    for asked in (NEWEST, LATEST_TIERED, EARLIEST_PENDING, 0, NOON):
        found = raw.offset_at(topic, asked, version=version)
        assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)


def test_the_records_of_a_topic_with_append_time_are_found_by_the_time_of_their_append(raw: Asking) -> None:
    """And not by the time that their producer claims, which consumers are not shown."""
    raw.create("appended", message_timestamp_type="LogAppendTime")
    stamps: list[int] = []
    for _ in range(3):
        answer = raw.produce("appended", dated(NOON, NOON + 10**12))
        stamps += [answer.log_append_time_ms] * 2
    assert abs(stamps[0] - time.time() * 1000) < 60_000
    assert [record.timestamp for record in records_in(raw.fetch("appended"))] == stamps
    check_offsets(raw, "appended", stamps)


def test_a_time_that_stands_for_nothing_is_refused(raw: Asking) -> None:
    raw.create("timeless")
    assert raw.offset_at("timeless", -7).error_code != 0


# --- 6: topics that appear by being asked for ---------------------------------------------------------

NOT_NAMES = ["", ".", "..", "a b", "a/b", "../up", "größe", "new\nline", "x" * 250]
NAMES = ["a", "A.b_c-9", "...", "x" * 249]


def test_a_typo_creates_no_topic_where_the_client_forbids_it(raw: Asking) -> None:
    """Or consumers of a misspelt topic wait for ever at one that nobody writes to."""
    for version in range(4, 14):
        asked = [MetadataRequestTopic(name="mistyped")]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        (found,) = raw.ask(ApiKey.METADATA, request, version).topics
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.produce("mistyped", batch_of(b"")).error_code != 0
    assert raw.fetch("mistyped", version=12).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.offset_at("mistyped", LATEST).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "mistyped" not in all_topics(raw)


def test_a_typo_creates_no_topic_where_the_setting_forbids_it() -> None:
    with Broker(config={"auto.create.topics.enable": "false"}) as strict, Asking(strict.bootstrap) as raw:
        for version in range(14):
            request = MetadataRequest(topics=[MetadataRequestTopic(name="mistyped")])
            (found,) = raw.ask(ApiKey.METADATA, request, version).topics
            assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert all_topics(raw) == set()


@pytest.mark.parametrize("version", range(14))
def test_a_topic_is_created_by_being_asked_for_where_both_sides_allow_it(version: int) -> None:
    """Requests before version 4 have no word for forbidding it."""
    config = {"num.partitions": "3"}
    with Broker(config=config) as eager, Asking(eager.bootstrap) as raw:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="wanted")])
        (found,) = raw.ask(ApiKey.METADATA, request, version).topics
        assert (found.error_code, len(found.partitions)) == (0, 3)
        assert all_topics(raw) == {"wanted"}
        assert raw.produce("wanted", batch_of(b""), 2).base_offset == 0


@pytest.mark.parametrize("name", NOT_NAMES)
@pytest.mark.parametrize("create", [True, False])
def test_a_name_that_kafka_would_not_take_is_an_error_at_once_and_no_topic(
    name: str, create: bool, raw: Asking
) -> None:
    """A client that is told the topic is unknown asks again until its time is up."""
    (found,) = raw.topics(name, create=create)
    assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    asked = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (result,) = raw.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked])).topics
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert name not in all_topics(raw)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_kafka_takes_can_be_used(name: str, raw: Asking) -> None:
    (found,) = raw.topics(name, create=True)
    assert (found.error_code, found.name) == (0, name)
    assert raw.produce(name, batch_of(b"here")).base_offset == 0
    assert values_in(raw.fetch(name)) == [b"here"]


def all_topics(raw: Asking) -> set[str]:
    return {topic.name for topic in raw.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics}


# --- 9: an exception while handling one request -------------------------------------------------------


class Bug(Exception):
    """What no code of ours raises."""


def bug(*arguments: object, **named: object) -> NoReturn:
    raise Bug


def check_alive(raw: Asking, name: str) -> None:
    """Go once through everything that could be held by a lock or a thread that is gone."""
    raw.create(name)
    assert raw.produce(name, batch_of(b"fine")).error_code == 0
    assert values_in(raw.fetch(name)) == [b"fine"]
    assert raw.offset_at(name, LATEST).offset == 1
    assert raw.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None)).error_code == 0
    assert raw.delete(name) == 0


REQUESTS: dict[str, Callable[[Asking], tuple[ApiKey, Any]]] = {
    "metadata": lambda raw: (ApiKey.METADATA, MetadataRequest(topics=[])),
    "metadata that creates": lambda raw: (
        ApiKey.METADATA,
        MetadataRequest(topics=[MetadataRequestTopic(name="new")]),
    ),
    "fetch": lambda raw: (ApiKey.FETCH, raw.fetch_request("shared", {0: 0})),
    "long poll": lambda raw: (ApiKey.FETCH, raw.fetch_request("shared", {0: 1}, max_wait_ms=1)),
    "produce": lambda raw: (ApiKey.PRODUCE, raw.produce_request("shared", {0: batch_of(b"x")})),
    "init producer id": lambda raw: (ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None)),
}


@pytest.mark.parametrize(
    ("asked", "owner", "attribute"),
    [
        pytest.param("metadata", metadata_handler, "_answer", id="in a handler"),
        pytest.param("metadata that creates", metadata_handler, "_create", id="in the thread of a handler"),
        pytest.param("metadata that creates", metadata_handler, "_answer", id="after that thread"),
        pytest.param("init producer id", Node, "new_producer_id", id="while the catalogue changes"),
        pytest.param("produce", produce_handler, "_refusal", id="before the writer"),
        pytest.param("produce", produce_handler, "_answer_of", id="after the writer"),
        pytest.param("fetch", Node, "read", id="in a reader"),
        pytest.param("fetch", fetch_handler._Fetch, "_answer", id="after a reader"),
        pytest.param("long poll", Node, "peek", id="when a fetch is parked"),
        pytest.param("long poll", fetch_handler._Fetch, "_read", id="when a parked fetch expires"),
    ],
)
def test_a_bug_met_by_one_request_costs_that_client_its_connection_and_nobody_else_anything(
    asked: str, owner: Any, attribute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is told nothing waits until its time is up; a lock left held stops all of them."""
    with Broker() as broker, Asking(broker.bootstrap) as other, Asking(broker.bootstrap) as unlucky:
        other.create("shared")
        other.produce("shared", batch_of(b"before"))
        api_key, body = REQUESTS[asked](unlucky)
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, bug)
            unlucky.send(api_key, APIS[api_key].advertised.last, body)
            assert unlucky.is_closed()
        assert parked(broker) == 0
        check_alive(other, "after")
        with Asking(broker.bootstrap) as later:
            check_alive(later, "later")


@pytest.mark.parametrize(
    ("owner", "attribute"),
    [pytest.param(Node, "append", id="the writer"), pytest.param(PartitionLog, "commit", id="the committer")],
)
def test_a_bug_in_the_thread_that_all_producers_share_fails_one_request_and_ends_nothing(
    owner: Any, attribute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the thread to end, no producer would be answered any more."""
    with Broker() as broker, Asking(broker.bootstrap) as other, Asking(broker.bootstrap) as unlucky:
        other.create("shared")
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, bug)
            answer = unlucky.produce("shared", batch_of(b"x"))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1)
            # What went wrong within us is none of the client's business.
            assert answer.error_message is None
        check_alive(unlucky, "after")
        assert other.produce("shared", batch_of(b"y")).error_code == 0
        assert values_in(other.fetch("shared"))[-1] == b"y"
        assert broker.failure is None


def test_a_bug_met_by_one_of_many_producers_in_a_round_leaves_the_others_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They share a sync, and are answered one after the other when it is done."""
    append, commit, answer_of = Node.append, PartitionLog.commit, produce_handler._answer_of
    appended, syncing, go_on = threading.Semaphore(0), threading.Event(), threading.Event()

    def append_and_count(node: Node, *batch: Any) -> Any:
        placed = append(node, *batch)
        appended.release()
        return placed

    def commit_when_told(log: PartitionLog, offset: int | None = None) -> None:
        syncing.set()
        assert go_on.wait(SECONDS_MAX)
        commit(log, offset)

    def answer_or_bug(index: int, outcome: Any, version: int) -> Any:
        return bug() if index == 1 else answer_of(index, outcome, version)

    with Broker() as broker, ExitStack() as stack:
        watching, *rest = connections(stack, broker, 7)
        producers, consumers = rest[:3], rest[3:]
        watching.create("shared", 3)
        monkeypatch.setattr(Node, "append", append_and_count)
        monkeypatch.setattr(PartitionLog, "commit", commit_when_told)
        monkeypatch.setattr(produce_handler, "_answer_of", answer_or_bug)
        for partition, (producer, consumer) in enumerate(zip(producers, consumers, strict=True)):
            poll = consumer.fetch_request("shared", {partition: 0}, max_wait_ms=LONG_MS)
            consumer.send(ApiKey.FETCH, 16, poll)
            body = producer.produce_request("shared", {partition: batch_of(b"x")})
            producer.send(ApiKey.PRODUCE, 12, body)
            assert appended.acquire(timeout=SECONDS_MAX)
            # While the first is synced the others gather, and make up the next round together.
            assert syncing.wait(SECONDS_MAX)
        go_on.set()
        assert producers[1].is_closed()
        for partition in (0, 2):
            answer = producers[partition].receive(ApiKey.PRODUCE, 12)
            assert answer.topics[0].partitions[0].error_code == 0
        for consumer in consumers:
            assert values_of(consumer.receive(ApiKey.FETCH, 16)) == [[b"x"]]
        check_alive(watching, "after")


def test_a_bug_met_by_one_waiting_consumer_leaves_the_others_their_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All who wait for a partition are woken one after the other when records come."""
    read = fetch_handler._Fetch._read

    def read_or_bug(fetch: fetch_handler._Fetch) -> None:
        return bug() if fetch._exchange.request.client_id == "unlucky" else read(fetch)

    monkeypatch.setattr(fetch_handler._Fetch, "_read", read_or_bug)
    names = ("first", "unlucky", "last", "elsewhere")
    with Broker() as broker, ExitStack() as stack:
        producer, *rest = connections(stack, broker, 1 + len(names))
        consumers = dict(zip(names, rest, strict=True))
        producer.create("shared", 2)
        for partition in (0, 1):
            producer.produce("shared", batch_of(b"before"), partition)
        for count, (name, consumer) in enumerate(consumers.items(), start=1):
            partition = 1 if name == "elsewhere" else 0
            poll = consumer.fetch_request("shared", {partition: 1}, max_wait_ms=LONG_MS)
            consumer.send(ApiKey.FETCH, 16, poll, client_id=name)
            wait_until_parked(broker, count)
        producer.ask(
            ApiKey.PRODUCE, producer.produce_request("shared", {0: batch_of(b"new"), 1: batch_of(b"new")})
        )
        assert consumers.pop("unlucky").is_closed()
        for consumer in consumers.values():
            assert values_in(consumer.receive(ApiKey.FETCH, 16).topics[0].partitions[0]) == [b"new"]
        assert parked(broker) == 0


# --- 10: localhost ------------------------------------------------------------------------------------


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def advertised(address: tuple[str, int]) -> tuple[str, int]:
    """Return where a client that reached the server at *address* is told to connect."""
    with RawClient(address) as raw:
        (told,) = raw.ask(ApiKey.METADATA, MetadataRequest(topics=[])).brokers
    return told.host, told.port


def port_of(broker: Broker) -> int:
    return int(broker.bootstrap.rpartition(":")[2])


def test_a_client_that_takes_localhost_for_ipv4_is_told_the_address_it_reached(broker: Broker) -> None:
    assert advertised(("127.0.0.1", port_of(broker))) == ("127.0.0.1", port_of(broker))


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")
def test_a_client_that_takes_localhost_for_ipv6_reaches_the_server_at_the_same_port(broker: Broker) -> None:
    """And is told something that leads there, or it would connect once and never again."""
    host, port = advertised(("::1", port_of(broker)))
    assert (host in ("::1", "localhost"), port) == (True, port_of(broker))
    assert advertised((host, port))[1] == port


def test_a_client_that_comes_by_another_address_is_told_that_one() -> None:
    """A server in a container or behind several addresses is not advertised as localhost."""
    with Broker(listen=":0") as everywhere:
        for host in ("127.0.0.1", "127.0.0.2"):
            assert advertised((host, port_of(everywhere))) == (host, port_of(everywhere))


def test_advertised_listeners_win_over_the_address_that_was_reached() -> None:
    config = {"advertised.listeners": "PLAINTEXT://broker.example:9093"}
    with Broker(config=config) as behind:
        assert advertised(("127.0.0.1", port_of(behind))) == ("broker.example", 9093)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_localhost_is_an_address_for_every_client(client: Client, broker: Broker) -> None:
    bootstrap, topic = f"localhost:{port_of(broker)}", f"localhost-{client.name}"
    client.create_topic(bootstrap, topic, 1)
    with client.producing(bootstrap, topic) as producer, client.consuming(bootstrap) as consumer:
        producer.send([Outgoing(0, b"k", b"v", (), NOON)])
        assert producer.flush() == [0]
        consumer.begin(topic, 1)
        assert consumer.take(1) == [Stored(0, 0, b"k", b"v", (), NOON, CREATE_TIME)]


# --- 11: tagged fields, and headers -------------------------------------------------------------------

#: The first flexible version of each API, as Kafka's message definitions have it.
FLEXIBLE_FROM = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 2,
    ApiKey.CREATE_PARTITIONS: 2,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.OFFSET_DELETE: 1,
    ApiKey.DESCRIBE_ACLS: 2,
    ApiKey.CREATE_ACLS: 2,
    ApiKey.DELETE_ACLS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.SASL_HANDSHAKE: 2,
    ApiKey.DESCRIBE_QUORUM: 0,
    ApiKey.UPDATE_FEATURES: 0,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
}
#: Two fields of a later day, with tags that need one and three bytes.
TAGS = varint(2) + varint(99) + varint(3) + b"new" + varint(70_000) + varint(0)


def request_of(raw: Asking, api_key: ApiKey) -> Any:
    """Return a request that can be made again and again: of records where it matters, else one of nothing."""
    if api_key is ApiKey.PRODUCE:
        return raw.produce_request("asked", {0: batch_of(b"x")})
    if api_key is ApiKey.FETCH:
        return raw.fetch_request("asked", {0: 0})
    if api_key is ApiKey.METADATA:
        return MetadataRequest(topics=[MetadataRequestTopic(name="asked")])
    return APIS[api_key].request.message()


def every_version(raw: Asking) -> Iterator[tuple[ApiKey, int]]:
    """Yield each API that is served, with each version of it that can be asked."""
    for number, (first, last) in receive_api_versions(raw).items():
        api_key = ApiKey(number)
        for version in range(max(first, APIS[api_key].versions.first), last + 1):
            yield api_key, version


def test_fields_of_a_later_day_are_skipped_in_headers_and_bodies(raw: Asking) -> None:
    """A client that is newer than the server must not be cut off for what the server has no use for."""
    raw.create("asked")
    asked = 0
    for api_key, version in every_version(raw):
        if version < FLEXIBLE_FROM[api_key]:
            continue
        # A header without a client id is 10 bytes and its tags; the last byte of a body is its tags.
        frame = b"".join(encode_request(api_key, version, 4711, None, request_of(raw, api_key)))[4:]
        assert frame[10] == frame[-1] == 0
        raw.socket.sendall(struct.pack(">i", len(frame)) + frame)
        plain = raw.receive_frame()
        assert plain, (api_key, version)
        frame = frame[:10] + TAGS + frame[11:-1] + TAGS
        raw.socket.sendall(struct.pack(">i", len(frame)) + frame)
        assert kind_of(api_key, version, raw.receive_frame()) == kind_of(api_key, version, plain)
        asked += 1
    print(f"{asked} requests with unknown tags")
    assert asked >= 75


def kind_of(api_key: ApiKey, version: int, frame: bytes) -> object:
    """Return what an answer says but for what changes each time: here, the error codes in it."""
    return error_codes(decode_response(api_key, version, frame).body)


def error_codes(answer: Any) -> list[int]:
    """Return all error codes in an answer, however deep."""
    if isinstance(answer, list):
        return [code for each in answer for code in error_codes(each)]
    names = (*getattr(answer, "__struct_fields__", ()), *getattr(answer, "__dataclass_fields__", ()))
    own = [answer.error_code] if "error_code" in names else []
    return [*own, *(code for name in names for code in error_codes(getattr(answer, name)))]


def test_fields_of_a_later_day_are_skipped_within_topics_and_partitions_too(raw: Asking) -> None:
    """Produce and Fetch are read by code made for them, which has to know where such fields may be."""
    raw.create("nested")
    records = batch_of(b"tagged")
    name = varint(7) + b"nested"
    produce = b"\0" + struct.pack(">hi", -1, 30_000) + varint(2) + name + varint(2)
    produce += struct.pack(">i", 0) + varint(len(records) + 1) + records + TAGS + TAGS + TAGS
    fetch = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1) + varint(2) + name + varint(2)
    fetch += struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1 << 20) + TAGS + TAGS
    # One topic to forget, with tags of its own, and no rack.
    fetch += varint(2) + name + varint(2) + struct.pack(">i", 0) + TAGS + varint(1) + TAGS
    for api_key, version, body in ((ApiKey.PRODUCE, 9, produce), (ApiKey.FETCH, 12, fetch)):
        frame = struct.pack(">hhih", api_key, version, 1, -1) + TAGS + body
        raw.socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = raw.receive(api_key, version)
        assert set(error_codes(answer)) == {0}
    assert values_in(answer.topics[0].partitions[0]) == [b"tagged"]


def test_an_answer_has_the_header_that_its_api_and_version_call_for(raw: Asking) -> None:
    """One byte more or less, and the client reads every field after it wrongly."""
    if not raw.topics("asked")[0].partitions:
        raw.create("asked")
    asked = flexible = 0
    for api_key, version in every_version(raw):
        number = raw.send(api_key, version, request_of(raw, api_key))
        frame = raw.receive_frame()
        has_tags = version >= FLEXIBLE_FROM[api_key] and api_key is not ApiKey.API_VERSIONS
        assert struct.unpack_from(">i", frame) == (number,)
        assert not has_tags or frame[4] == 0
        # What follows the header is the body, to the last byte.
        body, codec = frame[5 if has_tags else 4 :], APIS[api_key].response
        assert b"".join(codec.encoder(version)(codec.decoder(version)(body, 0))) == body, (api_key, version)
        asked, flexible = asked + 1, flexible + has_tags
    print(f"{asked} answers, {flexible} of them with a flexible header")
    assert (asked, flexible) >= (74, 33)


# --- 12: leader epochs --------------------------------------------------------------------------------


def test_a_consumer_is_told_the_same_leader_epoch_everywhere(raw: Asking) -> None:
    """Or it takes the difference for a truncation, and waits for an answer about that before it reads on.

    -1, which stands for none, or a real one, of which OffsetForLeaderEpoch must then tell the end.
    """
    raw.create("epochs")
    raw.produce("epochs", batch_of(b"x", timestamp=NOON))
    epochs = set()
    for version in range(7, 14):
        request = MetadataRequest(topics=[MetadataRequestTopic(name="epochs")])
        (topic,) = raw.ask(ApiKey.METADATA, request, version).topics
        epochs.add(topic.partitions[0].leader_epoch)
    for version in range(4, 12):
        for asked in (LATEST, EARLIEST, NEWEST, NOON):
            epochs.add(raw.offset_at("epochs", asked, version=version).leader_epoch)
    assert len(epochs) == 1
    (epoch,) = epochs
    if epoch != -1:
        assert ApiKey.OFFSET_FOR_LEADER_EPOCH in receive_api_versions(raw)
        headers = batch.scan(b"".join(raw.fetch("epochs").records)).headers()
        assert {header.leader_epoch for header in headers} == {epoch}
    # Whatever it was told, it may say in return.
    for version in range(9, 19):
        partition = FetchPartition(0, current_leader_epoch=epoch, last_fetched_epoch=epoch, max_bytes=1 << 20)
        named = [FetchTopic("epochs", raw.id_of("epochs"), [partition])]
        answer = raw.ask(ApiKey.FETCH, FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, named, [], ""), version)
        assert values_in(answer.topics[0].partitions[0]) == [b"x"]


# --- 13: how much a fetch returns, and when -----------------------------------------------------------


def test_a_batch_larger_than_every_limit_is_returned_whole_but_only_the_first(raw: Asking) -> None:
    """Or the consumer asks for it for ever; and a fetch of many partitions still stays near its limit."""
    raw.create("large", 4)
    large = batch_of(bytes(5000))
    for partition in (1, 2, 3):
        for _ in range(2):
            raw.produce("large", large, partition)
    for first, second, third in itertools.permutations((1, 2, 3)):
        # Nothing is in partition 0, which must not count as the first.
        asked = {0: 0, first: 0, second: 1, third: 1}
        for limits in ({"max_bytes": 100}, {"partition_max_bytes": 100}, {"max_bytes": 0}):
            request = raw.fetch_request("large", asked, **limits)
            answers = {part.index: part for part in raw.ask(ApiKey.FETCH, request).topics[0].partitions}
            assert {index: len(records_in(part)) for index, part in answers.items()} == {
                0: 0,
                first: 1,
                second: 0,
                third: 0,
            }
            assert records_in(answers[first])[0].value == bytes(5000)
            assert {part.error_code for part in answers.values()} == {0}


def test_a_fetch_returns_whole_batches_up_to_its_limits(raw: Asking) -> None:
    """Half a batch is nothing to a consumer, and what it did not ask for is in its way."""
    raw.create("limits", 2)
    size = len(batch_of(bytes(1000)))
    for partition in (0, 1):
        for _ in range(5):
            raw.produce("limits", batch_of(bytes(1000)), partition)
    for limit in range(1, 6 * size, size // 3):
        fits = min(limit // size, 5)
        assert len(records_in(raw.fetch("limits", partition_max_bytes=limit))) == max(fits, 1)
        request = raw.fetch_request("limits", {0: 0, 1: 0}, max_bytes=limit)
        counts = [len(records_in(part)) for part in raw.ask(ApiKey.FETCH, request).topics[0].partitions]
        rest = max(limit - max(fits, 1) * size, 0)
        assert counts == [max(fits, 1), min(rest // size, 5)]


def test_a_long_poll_is_answered_as_soon_as_there_is_enough_and_not_before(broker: Broker) -> None:
    size = len(batch_of(b"one"))
    with ExitStack() as stack:
        producer, patient, eager, other = connections(stack, broker, 4)
        producer.create("enough", 2)
        for consumer, min_bytes in ((patient, 2 * size), (eager, 1)):
            poll = consumer.fetch_request("enough", {0: 0, 1: 0}, max_wait_ms=LONG_MS, min_bytes=min_bytes)
            consumer.send(ApiKey.FETCH, 17, poll)
        wait_until_parked(broker, 2)
        producer.produce("enough", batch_of(b"one"))
        assert values_of(eager.receive(ApiKey.FETCH, 17)) == [[b"one"], []]
        # Whatever the batch could have set going in the server is done by now.
        assert values_in(other.fetch("enough")) == [b"one"]
        assert parked(broker) == 1
        assert patient.is_silent()
        producer.produce("enough", batch_of(b"two"), 1)
        assert values_of(patient.receive(ApiKey.FETCH, 17)) == [[b"one"], [b"two"]]
        assert parked(broker) == 0


def test_a_long_poll_is_answered_with_what_is_there_when_its_time_is_up(raw: Asking, broker: Broker) -> None:
    raw.create("late")
    raw.produce("late", batch_of(b"little"))
    for min_bytes, offset, expected in ((1 << 20, 0, [b"little"]), (1, 1, [])):
        started = time.monotonic()
        answer = raw.fetch("late", offset, max_wait_ms=100, min_bytes=min_bytes)
        # The server's timers count whole milliseconds.
        assert 0.099 <= time.monotonic() - started < LONG_MS / 1000
        assert (answer.error_code, answer.high_watermark, values_in(answer)) == (0, 1, expected)
    assert parked(broker) == 0


@pytest.mark.parametrize(
    ("offset", "limits"),
    [
        pytest.param(1, {"max_wait_ms": 0}, id="no time"),
        pytest.param(1, {"min_bytes": 0}, id="no bytes"),
        pytest.param(0, {"min_bytes": 1}, id="enough there"),
        pytest.param(0, {"min_bytes": 1 << 20, "max_bytes": 1000}, id="as much there as it takes"),
        pytest.param(2, {}, id="an offset out of range"),
    ],
)
def test_a_fetch_that_has_nothing_to_wait_for_is_answered_at_once(
    offset: int, limits: dict[str, int], raw: Asking
) -> None:
    if not raw.topics("at-once")[0].partitions:
        raw.create("at-once")
        raw.produce("at-once", batch_of(b"x" * 1000))
    started = time.monotonic()
    raw.fetch("at-once", offset, **{"max_wait_ms": LONG_MS, **limits})
    assert time.monotonic() - started < LONG_MS / 2000


@pytest.mark.parametrize(
    ("version", "code"), [(12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (18, ErrorCode.UNKNOWN_TOPIC_ID)]
)
def test_a_consumer_that_waits_for_a_topic_learns_at_once_that_it_is_deleted(
    version: int, code: ErrorCode, broker: Broker, raw: Asking
) -> None:
    topic = f"doomed-{version}"
    raw.create(topic)
    with Asking(broker.bootstrap) as consumer:
        started = time.monotonic()
        consumer.send(ApiKey.FETCH, version, consumer.fetch_request(topic, {0: 0}, max_wait_ms=LONG_MS))
        wait_until_parked(broker, 1)
        assert raw.delete(topic) == 0
        (answer,) = consumer.receive(ApiKey.FETCH, version).topics[0].partitions
        assert time.monotonic() - started < LONG_MS / 2000
        assert (answer.error_code, values_in(answer)) == (code, [])
    assert parked(broker) == 0


def test_a_consumer_that_waits_for_a_topic_is_not_given_records_of_its_successor(
    broker: Broker, raw: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went by the id of the topic, so that another of the same name is not taken for it."""
    read, recreated = Node.read, threading.Event()

    def read_when_recreated(node: Node, *wishes: Any, **isolation: Any) -> Any:
        assert recreated.wait(SECONDS_MAX)
        return read(node, *wishes, **isolation)

    monkeypatch.setattr(Node, "read", read_when_recreated)
    raw.create("name")
    with Asking(broker.bootstrap) as consumer:
        consumer.send(ApiKey.FETCH, 18, consumer.fetch_request("name", {0: 0}, max_wait_ms=LONG_MS))
        wait_until_parked(broker, 1)
        assert raw.delete("name") == 0
        raw.create("name")
        raw.produce("name", batch_of(b"of another"))
        recreated.set()
        (answer,) = consumer.receive(ApiKey.FETCH, 18).topics[0].partitions
        assert (answer.error_code, values_in(answer)) == (ErrorCode.UNKNOWN_TOPIC_ID, [])


def test_a_consumer_that_waits_is_answered_when_the_server_closes() -> None:
    """So that it asks elsewhere, or for the server to come back, and does not sit out its time-out."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker())
        raw, consumer, silent = connections(stack, broker, 3)
        raw.create("closing")
        consumer.send(ApiKey.FETCH, 17, consumer.fetch_request("closing", {0: 0}, max_wait_ms=LONG_MS))
        wait_until_parked(broker, 1)
        started = time.monotonic()
        broker.close()
        assert time.monotonic() - started < LONG_MS / 2000
        (answer,) = consumer.receive(ApiKey.FETCH, 17).topics[0].partitions
        assert (answer.error_code, values_in(answer)) == (0, [])
        assert consumer.is_closed()
        assert silent.is_closed()


def test_a_consumer_that_hangs_up_while_it_waits_is_forgotten(broker: Broker, raw: Asking) -> None:
    """Consumers that come and go would otherwise fill the memory with those that went."""
    raw.create("abandoned")
    for _ in range(10):
        with Asking(broker.bootstrap) as consumer:
            consumer.send(ApiKey.FETCH, 17, consumer.fetch_request("abandoned", {0: 0}, max_wait_ms=LONG_MS))
            wait_until_parked(broker, 1)
        wait_until_parked(broker, 0)
    assert raw.produce("abandoned", batch_of(b"x")).error_code == 0
