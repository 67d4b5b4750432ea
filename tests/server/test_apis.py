"""Every API that producers, consumers and Spark need, in every version, and every way to ask it wrongly."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.asking import Asking, records_in, values_in
from support.clocks import HookedFiles, ManualClock
from support.patience import SECONDS_MAX
from support.seeds import seed_or
from support.serving import serving

from cordwood import Broker
from cordwood.disk.memory import MemoryFiles
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.protocol.apis import APIS, ApiKey, decode_response, encode_request
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from cordwood.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from cordwood.protocol.wire import NULL_ID

NOON = 1_700_000_000_000
LATEST, EARLIEST, NEWEST = -1, -2, -3
READ_COMMITTED = 1
LONG_MS = 600_000
NOBODY = bytes(range(16))
#: Produce is advertised from 0 on for the sake of old clients; what older versions say is not understood.
REFUSED = {(ApiKey.PRODUCE, 0), (ApiKey.PRODUCE, 1), (ApiKey.PRODUCE, 2)}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker for what leaves nothing behind but topics of its own."""
    with Broker(config={"num.partitions": "4"}) as running:
        yield running


@pytest.fixture
def raw(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(raw: Asking, request: pytest.FixtureRequest) -> str:
    """A topic of this test's own, with three partitions."""
    name = f"topic-{abs(hash(request.node.nodeid))}"
    raw.create(name, 3)
    return name


def batch_of(*values: bytes | None, timestamp: int = NOON, **options: Any) -> bytearray:
    """Return a batch with a record of each value."""
    return batch.encode_records([(None, value) for value in values], timestamp, BatchOptions(**options))


def advertised(raw: Asking, version: int) -> set[tuple[ApiKey, int]]:
    """Return every API and version that the server says it speaks."""
    answer = raw.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), version)
    assert answer.error_code == 0
    return {
        (ApiKey(api.api_key), each)
        for api in answer.api_keys
        for each in range(api.min_version, api.max_version + 1)
    }


# --- every version ------------------------------------------------------------------------------------


def sweep_produce(raw: Asking, version: int) -> None:
    before = raw.offset_at("sweep", LATEST).offset
    answer = raw.produce("sweep", batch_of(b"value"), version=version)
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, before, -1)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert raw.offset_at("sweep", LATEST).offset == before + 1


def sweep_fetch(raw: Asking, version: int) -> None:
    answer = raw.fetch("sweep", 1, version=version)
    end = raw.offset_at("sweep", LATEST).offset
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, end, end)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert values_in(answer) == [b"value"] * (end - 1)


def sweep_list_offsets(raw: Asking, version: int) -> None:
    for asked, offset, timestamp in ((EARLIEST, 0, -1), (NOON, 0, NOON), (NOON + 1, -1, -1)):
        found = raw.offset_at("sweep", asked, version=version)
        assert (found.error_code, found.offset, found.timestamp) == (0, offset, timestamp)


def sweep_metadata(raw: Asking, version: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="sweep"), MetadataRequestTopic(name="none")])
    request.allow_auto_topic_creation = False
    answer: MetadataResponse = raw.ask(ApiKey.METADATA, request, max(version, 4))
    if version < 4:
        # Older requests cannot forbid that a topic is created, so they ask for one that is there.
        request.topics = request.topics and request.topics[:1]
        answer = raw.ask(ApiKey.METADATA, request, version)
    else:
        assert answer.topics.pop().error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (found,), (node,) = answer.topics, answer.brokers
    assert (found.error_code, found.name, found.is_internal) == (0, "sweep", False)
    assert [part.partition_index for part in found.partitions] == [0, 1]
    for part in found.partitions:
        assert (part.error_code, part.leader_id) == (0, node.node_id)
        assert (part.replica_nodes, part.isr_nodes) == ([node.node_id], [node.node_id])
        assert part.offline_replicas == []
    assert answer.controller_id == (node.node_id if version >= 1 else -1)
    assert (answer.cluster_id is not None) == (version >= 2)
    assert found.topic_id == (raw.id_of("sweep") if version >= 10 else NULL_ID)


def sweep_api_versions(raw: Asking, version: int) -> None:
    assert advertised(raw, version) == advertised(raw, 0)


def sweep_create_topics(raw: Asking, version: int) -> None:
    settings = [CreatableTopicConfig(name="segment.ms", value="12345")]
    asked = CreatableTopic(name=f"new-{version}", num_partitions=2, replication_factor=1, configs=settings)
    (result,) = raw.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked]), version).topics
    assert (result.error_code, result.error_message, result.name) == (0, None, f"new-{version}")
    (found,) = raw.topics(f"new-{version}")
    assert len(found.partitions) == 2
    assert result.topic_id == (found.topic_id if version >= 7 else NULL_ID)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)
        assert {each.name: each.value for each in result.configs or ()}["segment.ms"] == "12345"


def sweep_delete_topics(raw: Asking, version: int) -> None:
    name = f"old-{version}"
    topic_id = raw.create(name)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name])
    (result,) = raw.ask(ApiKey.DELETE_TOPICS, request, version).responses
    assert (result.error_code, result.name) == (0, name)
    assert result.topic_id == (topic_id if version >= 6 else NULL_ID)
    assert raw.topics(name)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def sweep_init_producer_id(raw: Asking, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    first, second = (raw.ask(ApiKey.INIT_PRODUCER_ID, request, version) for _ in range(2))
    assert (first.error_code, first.producer_epoch, second.error_code, second.producer_epoch) == (0, 0, 0, 0)
    assert 0 <= first.producer_id < second.producer_id


SWEEPS: dict[ApiKey, Callable[[Asking, int], None]] = {
    ApiKey.PRODUCE: sweep_produce,
    ApiKey.FETCH: sweep_fetch,
    ApiKey.LIST_OFFSETS: sweep_list_offsets,
    ApiKey.METADATA: sweep_metadata,
    ApiKey.API_VERSIONS: sweep_api_versions,
    ApiKey.CREATE_TOPICS: sweep_create_topics,
    ApiKey.DELETE_TOPICS: sweep_delete_topics,
    ApiKey.INIT_PRODUCER_ID: sweep_init_producer_id,
}


def test_every_version_that_is_advertised_is_spoken(raw: Asking) -> None:
    """A client takes the newest that both know, whichever that is."""
    raw.create("sweep", 2)
    asked = sorted(pair for pair in advertised(raw, 0) - REFUSED if pair[0] in SWEEPS)
    for api_key, version in asked:
        SWEEPS[api_key](raw, version)
    print(f"{len(asked)} versions of {len(SWEEPS)} APIs")
    assert len(asked) == 74


def test_an_api_that_is_not_served_ends_the_connection(broker: Broker) -> None:
    with Asking(broker.bootstrap) as raw:
        raw.socket.sendall(bytes.fromhex("0000000a 03e7 0000 00000001 ffff"))
        assert raw.is_closed()


# --- Produce ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_producer_that_waits_is_told_where_its_batch_went(acks: int, raw: Asking, topic: str) -> None:
    for base in (0, 3):
        answer = raw.produce(topic, batch_of(b"a", None, b""), acks=acks)
        assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (0, base, 0)
        assert (answer.error_message, answer.record_errors) == (None, [])
    wanted = raw.fetch(topic, max_wait_ms=LONG_MS, min_bytes=2 * len(batch_of(b"a", None, b"")))
    assert values_in(wanted) == [b"a", None, b""] * 2


def test_a_producer_that_does_not_wait_is_told_nothing_and_its_batch_is_stored(
    raw: Asking, topic: str
) -> None:
    """An answer that it does not expect would pass for that of its next request."""
    for version in range(3, 14):
        raw.send(ApiKey.PRODUCE, version, raw.produce_request(topic, {1: batch_of(b"x")}, acks=0))
    stored = raw.fetch(topic, 0, 1, max_wait_ms=LONG_MS, min_bytes=11 * len(batch_of(b"x")))
    assert values_in(stored) == [b"x"] * 11


def test_a_producer_that_does_not_wait_is_cut_off_if_its_batch_is_refused(broker: Broker, topic: str) -> None:
    """It is the one way to make it look again."""
    with Asking(broker.bootstrap) as raw:
        raw.send(ApiKey.PRODUCE, 12, raw.produce_request(topic, {99: batch_of(b"x")}, acks=0))
        assert raw.is_closed()


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_record_that_was_acknowledged_is_found_at_once(acks: int, raw: Asking, topic: str) -> None:
    """Every one of 300, by the latest offset and by a fetch that waits for nothing."""
    for number in range(300):
        placed = raw.produce(topic, batch_of(b"%d" % number), acks=acks)
        assert placed.error_code == ErrorCode.NONE
        assert raw.offset_at(topic, LATEST).offset == placed.base_offset + 1
        assert values_in(raw.fetch(topic, placed.base_offset)) == [b"%d" % number]


@pytest.mark.parametrize("acks", [-2, 2, 32767])
def test_acks_that_mean_nothing_are_refused_and_nothing_is_stored(acks: int, raw: Asking, topic: str) -> None:
    answer = raw.produce(topic, batch_of(b"x"), acks=acks)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert raw.offset_at(topic, LATEST).offset == 0


def spoilt(position: int, value: int, data: bytearray | None = None) -> bytearray:
    """Return a batch with one byte of it changed."""
    changed = data or batch_of(b"x" * 50)
    changed[position] = value
    return changed


REFUSED_RECORDS = {
    "a wrong checksum": (spoilt(70, 0xFF), ErrorCode.CORRUPT_MESSAGE),
    "its end missing": (batch_of(b"x" * 50)[:-1], ErrorCode.CORRUPT_MESSAGE),
    "nothing": (b"", ErrorCode.CORRUPT_MESSAGE),
    "null": (None, ErrorCode.INVALID_RECORD),
    "control records": (batch_of(b"x", attributes=batch.CONTROL), ErrorCode.INVALID_RECORD),
    "a transaction": (batch_of(b"x", attributes=batch.TRANSACTIONAL), ErrorCode.INVALID_RECORD),
    "a time of append": (batch_of(b"x", attributes=batch.LOG_APPEND_TIME), ErrorCode.INVALID_RECORD),
    "two batches": (batch_of(b"x") + batch_of(b"y"), ErrorCode.INVALID_RECORD),
    "bytes after it": (batch_of(b"x") + b"!", ErrorCode.INVALID_RECORD),
    "half a producer": (batch_of(b"x", producer_id=5), ErrorCode.INVALID_RECORD),
    "an old format": (spoilt(16, 1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "too much": (batch_of(bytes(10_000)), ErrorCode.MESSAGE_TOO_LARGE),
}


def test_each_partition_of_a_request_is_refused_or_stored_by_itself(raw: Asking) -> None:
    """One producer's bad batch is no reason to lose the good ones that travel with it."""
    last = len(REFUSED_RECORDS) + 1
    raw.create("mixed", last + 1, max_message_bytes="5000")
    records: dict[int, Any] = {0: batch_of(b"first")}
    records |= {number: data for number, (data, _) in enumerate(REFUSED_RECORDS.values(), start=1)}
    records |= {last: batch_of(b"last"), 99: batch_of(b"x"), -1: batch_of(b"x")}
    (named,) = raw.ask(ApiKey.PRODUCE, raw.produce_request("mixed", records)).topics
    answers = {answer.index: answer for answer in named.partitions}
    assert list(answers) == list(records)
    for number, (name, (_, code)) in enumerate(REFUSED_RECORDS.items(), start=1):
        assert (answers[number].error_code, answers[number].base_offset) == (code, -1), name
        assert answers[number].error_message, name
        assert raw.offset_at("mixed", LATEST, number).offset == 0, name
    for number, value in ((0, b"first"), (last, b"last")):
        assert (answers[number].error_code, answers[number].base_offset) == (0, 0)
        assert values_in(raw.fetch("mixed", 0, number)) == [value]
    for number in (99, -1):
        assert answers[number].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_not_there_is_refused_and_the_others_are_stored(raw: Asking, topic: str) -> None:
    for version, code in ((12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)):
        named = [
            ProduceTopic(name, topic_id, [ProducePartition(0, memoryview(batch_of(b"x")))])
            for name, topic_id in (("nobody", NOBODY), (topic, raw.id_of(topic)), ("", NULL_ID))
        ]
        answer = raw.ask(ApiKey.PRODUCE, ProduceRequest(None, -1, 1000, named), version)
        assert [each.partitions[0].error_code for each in answer.topics] == [code, 0, code]
    assert raw.offset_at(topic, LATEST).offset == 2


def test_a_batch_is_stored_once_however_often_it_is_sent(tmp_path: Path) -> None:
    """By an idempotent producer; also where the server was restarted before the retry."""

    def send(raw: Asking, sequence: int, count: int = 2, epoch: int = 0) -> tuple[int, int]:
        values = [str(sequence + number).encode() for number in range(count)]
        data = batch_of(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        answer = raw.produce("once", data)
        return answer.error_code, answer.base_offset

    with Broker(tmp_path) as broker, Asking(broker.bootstrap) as raw:
        raw.create("once")
        for sequence in (0, 2, 4, 6):
            assert send(raw, sequence) == (0, sequence)
        for sequence in (6, 2, 0, 4):
            assert send(raw, sequence) == (0, sequence)
        gap = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        # Ahead of its turn, half a repetition, and more than one.
        assert [send(raw, 10), send(raw, 7), send(raw, 6, 3)] == [gap] * 3
    with Broker(tmp_path) as broker, Asking(broker.bootstrap) as raw:
        assert [send(raw, 6), send(raw, 10), send(raw, 8)] == [(0, 6), gap, (0, 8)]
        # A later epoch begins anew, and from then on the earlier one is somebody else's.
        assert [send(raw, 3, epoch=1), send(raw, 0, epoch=1)] == [gap, (0, 10)]
        stale = (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
        assert [send(raw, 8), send(raw, 10)] == [stale] * 2
        assert values_in(raw.fetch("once")) == [str(number).encode() for number in (*range(10), 0, 1)]


# --- Fetch --------------------------------------------------------------------------------------------


def test_an_offset_out_of_range_is_refused_with_the_bounds_that_hold(raw: Asking, topic: str) -> None:
    """A consumer goes on at one of them, by its own policy."""
    for _ in range(3):
        raw.produce(topic, batch_of(b"x", b"y"))
    partition = DeleteRecordsPartition(partition_index=0, offset=3)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])])
    raw.ask(ApiKey.DELETE_RECORDS, request)
    for offset in (-1, 0, 2, 7, 1 << 60):
        for version in range(4, 19):
            answer = raw.fetch(topic, offset, version=version, max_wait_ms=LONG_MS)
            assert (answer.error_code, answer.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, 6)
            assert answer.log_start_offset == (3 if version >= 5 else -1)
            assert values_in(answer) == []
    for offset in (3, 4, 5, 6):
        answer = raw.fetch(topic, offset)
        assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (0, 6, 3)


def test_what_is_not_there_is_refused_and_the_rest_of_the_fetch_is_answered(raw: Asking, topic: str) -> None:
    raw.produce(topic, batch_of(b"x"))
    for version, code in ((12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (18, ErrorCode.UNKNOWN_TOPIC_ID)):
        named = [
            FetchTopic(name, topic_id, [FetchPartition(index, max_bytes=1 << 20) for index in indexes])
            for name, topic_id, indexes in (
                ("nobody", NOBODY, (0,)),
                (topic, raw.id_of(topic), (0, 3, -1)),
                ("", NULL_ID, (0,)),
            )
        ]
        answer = raw.ask(
            ApiKey.FETCH, FetchRequest(-1, LONG_MS, 1 << 20, 1 << 20, 0, 0, -1, named, [], ""), version
        )
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [[part.error_code for part in each.partitions] for each in answer.topics] == [
            [code],
            [0, missing, missing],
            [code],
        ]
        assert values_in(answer.topics[1].partitions[0]) == [b"x"]


@pytest.mark.parametrize("version", range(4, 19))
def test_who_reads_committed_records_is_given_all_and_told_that_none_were_aborted(
    version: int, raw: Asking, topic: str
) -> None:
    """Without transactions everything is stable; the list of aborted ones is there for who asks for it."""
    raw.produce(topic, batch_of(b"x"))
    committed = raw.fetch(topic, isolation_level=READ_COMMITTED, version=version)
    assert (committed.aborted_transactions, values_in(committed)) == ([], [b"x"])
    assert committed.last_stable_offset == committed.high_watermark == 1
    assert raw.fetch(topic, version=version).aborted_transactions is None


def test_nobody_is_shown_a_record_before_it_is_synced() -> None:
    """Whatever its producer waits for: a power cut must not take back what a consumer has seen."""
    disk = HookedFiles(MemoryFiles())
    synced, written = threading.Event(), threading.Event()
    synced.set()

    def wait_for_sync(kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log"):
            if not synced.is_set():
                written.set()
            assert synced.wait(SECONDS_MAX)

    disk.before = wait_for_sync
    with Broker(files=disk) as broker, ExitStack() as stack:
        producer, waiting, raw = (stack.enter_context(Asking(broker.bootstrap)) for _ in range(3))
        raw.create("unsynced")
        raw.produce("unsynced", batch_of(b"seen"))
        synced.clear()
        waiting.send(ApiKey.FETCH, 17, waiting.fetch_request("unsynced", {0: 1}, max_wait_ms=LONG_MS))
        for acks, value in ((1, b"written"), (-1, b"awaited")):
            data = batch_of(value, timestamp=NOON + 2 + acks)
            producer.send(ApiKey.PRODUCE, 12, producer.produce_request("unsynced", {0: data}, acks=acks))
        assert written.wait(SECONDS_MAX)
        for _ in range(3):
            # Each of these goes through the server once more, and none brings anything to light.
            answer = raw.fetch("unsynced")
            assert (answer.high_watermark, answer.last_stable_offset, values_in(answer)) == (1, 1, [b"seen"])
            assert [raw.offset_at("unsynced", asked).offset for asked in (LATEST, NEWEST)] == [1, 0]
            assert raw.offset_at("unsynced", NOON + 1).offset == -1
            assert raw.fetch("unsynced", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert producer.is_silent()
            assert waiting.is_silent()
        synced.set()
        for offset in (1, 2):
            assert producer.receive(ApiKey.PRODUCE, 12).topics[0].partitions[0].base_offset == offset
        assert values_in(waiting.receive(ApiKey.FETCH, 17).topics[0].partitions[0])[0] == b"written"
        assert values_in(raw.fetch("unsynced")) == [b"seen", b"written", b"awaited"]
        assert raw.offset_at("unsynced", LATEST).offset == 3


# --- CreateTopics and DeleteTopics --------------------------------------------------------------------


def create(
    raw: Asking, *topics: CreatableTopic, validate_only: bool = False, version: int = 7
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return list(raw.ask(ApiKey.CREATE_TOPICS, request, version).topics)


def wanted(name: str, partitions: int = 1, replicas: int = 1, **settings: str | None) -> CreatableTopic:
    configs = [
        CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()
    ]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=configs)


def assigned(name: str, *brokers: tuple[int, list[int]]) -> CreatableTopic:
    topic = wanted(name, -1, -1)
    topic.assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in brokers
    ]
    return topic


def exists(raw: Asking, name: str) -> bool:
    return raw.topics(name)[0].error_code == 0


CREATED = {
    "as many partitions as the broker likes": (wanted("likes", -1, -1), 4),
    "so many": (wanted("many", 7), 7),
    "an assignment to this broker": (assigned("assigned", (1, [0]), (0, [0])), 2),
    "a setting": (wanted("set", 1, 1, max_message_bytes="1000", message_timestamp_type="LogAppendTime"), 1),
}
NOT_CREATED = {
    "no partitions": (wanted("x", 0), ErrorCode.INVALID_PARTITIONS),
    "fewer than none": (wanted("x", -2), ErrorCode.INVALID_PARTITIONS),
    "more than anyone has": (wanted("x", 1_000_000), ErrorCode.INVALID_PARTITIONS),
    "three replicas": (wanted("x", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
    "no replicas": (wanted("x", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "another broker": (assigned("x", (0, [1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "two brokers": (assigned("x", (0, [0, 1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "no first partition": (assigned("x", (1, [0])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "a partition twice": (assigned("x", (0, [0]), (0, [0])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "a value that is none": (wanted("x", max_message_bytes="many"), ErrorCode.INVALID_CONFIG),
    "a null value": (wanted("x", max_message_bytes=None), ErrorCode.INVALID_CONFIG),
    "a setting nobody knows": (wanted("x", retention_moons="3"), ErrorCode.INVALID_CONFIG),
    "a setting of the broker": (wanted("x", num_partitions="3"), ErrorCode.INVALID_CONFIG),
}


@pytest.mark.parametrize("name", CREATED)
def test_a_topic_is_created_as_it_was_asked_for(name: str, raw: Asking) -> None:
    asked, partitions = CREATED[name]
    (planned,) = create(raw, asked, validate_only=True)
    assert (planned.error_code, planned.num_partitions, planned.topic_id) == (0, partitions, NULL_ID)
    assert not exists(raw, asked.name)
    (result,) = create(raw, asked)
    assert (result.error_code, result.num_partitions) == (0, partitions)
    assert result.configs == planned.configs
    (found,) = raw.topics(asked.name)
    assert (len(found.partitions), found.topic_id) == (partitions, result.topic_id)
    settings = {each.name: each.value for each in result.configs or ()}
    assert {each.name: each.value for each in asked.configs}.items() <= settings.items()
    (again,) = create(raw, asked)
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert create(raw, asked, validate_only=True)[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", NOT_CREATED)
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_topic_that_cannot_be_as_asked_for_is_refused_and_says_why(
    name: str, validate_only: bool, raw: Asking
) -> None:
    asked, code = NOT_CREATED[name]
    for version in range(2, 8):
        (result,) = create(raw, asked, validate_only=validate_only, version=version)
        assert (result.error_code, bool(result.error_message)) == (code, True)
    assert not exists(raw, asked.name)


def test_a_topic_named_twice_in_a_request_is_not_created_and_the_others_are(raw: Asking) -> None:
    """Which of the two is meant cannot be told."""
    results = create(raw, wanted("twin", 1), wanted("only"), wanted("twin", 2), wanted("bad", 0))
    assert {(result.name, result.error_code) for result in results} == {
        ("twin", ErrorCode.INVALID_REQUEST),
        ("only", ErrorCode.NONE),
        ("bad", ErrorCode.INVALID_PARTITIONS),
    }
    assert [exists(raw, name) for name in ("twin", "only", "bad")] == [False, True, False]


def test_a_topic_whose_name_collides_with_another_one_is_refused_in_kafkas_words(raw: Asking) -> None:
    create(raw, wanted("orders.eu"))
    for validate_only in (True, False):
        (result,) = create(raw, wanted("orders_eu"), validate_only=validate_only)
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert result.error_message == "Topic 'orders_eu' collides with existing topic: orders.eu"
    # Nor does it come to be by being asked for.
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders_eu")], allow_auto_topic_creation=True)
    (found,) = raw.ask(ApiKey.METADATA, request).topics
    assert (found.error_code, found.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, "orders_eu")


def delete(raw: Asking, *topics: DeleteTopicState) -> list[DeletableTopicResult]:
    return list(raw.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=list(topics))).responses)


@pytest.mark.parametrize("by_id", [False, True])
def test_a_topic_that_is_deleted_and_created_again_is_another_one(by_id: bool, tmp_path: Path) -> None:
    """Nothing of the old one is seen in the new one, and nothing for the old one ends up in it."""
    with Broker(tmp_path) as broker, Asking(broker.bootstrap) as raw:
        old_id = raw.create("phoenix", 2)
        for _ in range(3):
            raw.produce("phoenix", batch_of(b"old", producer_id=3, producer_epoch=0, base_sequence=0), 1)
        named = DeleteTopicState(name=None, topic_id=old_id) if by_id else DeleteTopicState(name="phoenix")
        (result,) = delete(raw, named)
        assert (result.error_code, result.name, result.topic_id) == (0, "phoenix", old_id)
        for version, code in ((12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (18, ErrorCode.UNKNOWN_TOPIC_ID)):
            assert raw.fetch("phoenix", version=version, max_wait_ms=LONG_MS).error_code == code
        assert raw.produce("phoenix", batch_of(b"x"), version=12).error_code == 3
        assert raw.offset_at("phoenix", LATEST).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert delete(raw, named)[0].error_code != 0

        new_id = raw.create("phoenix", 2)
        assert new_id != old_id
        raw.ids["phoenix"] = old_id
        assert raw.fetch("phoenix", 0, 1).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert raw.produce("phoenix", batch_of(b"x"), 1).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        raw.ids["phoenix"] = new_id
        assert raw.offset_at("phoenix", LATEST, 1).offset == 0
        data = batch_of(b"new", producer_id=3, producer_epoch=0, base_sequence=0)
        assert raw.produce("phoenix", data, 1).base_offset == 0
    with Broker(tmp_path) as broker, Asking(broker.bootstrap) as raw:
        assert raw.id_of("phoenix") == new_id
        assert values_in(raw.fetch("phoenix", 0, 1)) == [b"new"]


def test_topics_that_are_not_there_cannot_be_deleted_and_the_others_are(raw: Asking, topic: str) -> None:
    results = delete(
        raw,
        DeleteTopicState(name="nobody"),
        DeleteTopicState(name=None, topic_id=NOBODY),
        DeleteTopicState(name=topic),
    )
    codes = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE]
    assert [result.error_code for result in results] == codes
    assert not exists(raw, topic)


def test_nothing_is_deleted_where_that_is_switched_off() -> None:
    with Broker(config={"delete.topic.enable": "false"}) as keeper, Asking(keeper.bootstrap) as raw:
        raw.create("kept")
        (result,) = delete(raw, DeleteTopicState(name="kept"))
        assert result.error_code == ErrorCode.TOPIC_DELETION_DISABLED
        assert exists(raw, "kept")


# --- InitProducerId -----------------------------------------------------------------------------------


def test_no_two_producers_ever_get_the_same_id(tmp_path: Path) -> None:
    """Over ends and kills of the server: the batches of one would pass for repetitions of the other's."""
    request = InitProducerIdRequest(transactional_id=None)
    given: list[int] = []
    with serving(tmp_path) as server:
        for kill in (False, True):
            with ExitStack() as stack:
                several = [stack.enter_context(Asking(server.address)) for _ in range(3)]
                for raw in several * 4:
                    given.append(raw.ask(ApiKey.INIT_PRODUCER_ID, request).producer_id)
            server.restart(kill=kill)
        with Asking(server.address) as raw:
            given.append(raw.ask(ApiKey.INIT_PRODUCER_ID, request).producer_id)
    assert len(set(given)) == len(given) == 25
    assert min(given) >= 0


# --- Metadata -----------------------------------------------------------------------------------------


def names_in(answer: MetadataResponse) -> set[str | None]:
    return {each.name for each in answer.topics}


def test_all_topics_some_or_none_are_described_as_the_version_has_it(raw: Asking, topic: str) -> None:
    """An empty list is all of them in version 0, and none of them ever after."""
    for version in range(14):
        everything = MetadataRequest(topics=None if version else [])
        assert topic in names_in(raw.ask(ApiKey.METADATA, everything, version))
        if version:
            answer = raw.ask(ApiKey.METADATA, MetadataRequest(topics=[]), version)
            assert (answer.topics, len(answer.brokers)) == ([], 1)
        one = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        assert names_in(raw.ask(ApiKey.METADATA, one, version)) == {topic}


@pytest.mark.parametrize("version", range(10, 14))
def test_topics_are_described_by_id_and_an_unknown_id_costs_nothing_but_its_own_answer(
    version: int, raw: Asking, topic: str
) -> None:
    asked = [
        MetadataRequestTopic(name=None, topic_id=raw.id_of(topic)),
        MetadataRequestTopic(name=None, topic_id=NOBODY),
    ]
    known, unknown = raw.ask(ApiKey.METADATA, MetadataRequest(topics=asked), version).topics
    assert (known.error_code, known.name, known.topic_id) == (0, topic, raw.id_of(topic))
    assert (unknown.error_code, unknown.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, NOBODY)
    assert unknown.name == (None if version >= 12 else "")


@pytest.mark.parametrize("version", range(8, 14))
def test_what_one_may_do_is_told_to_who_asks(version: int, raw: Asking, topic: str) -> None:
    """Read, write, create, delete, alter, describe: nobody is refused anything."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    answer = raw.ask(ApiKey.METADATA, request, version)
    assert answer.topics[0].topic_authorized_operations == OPERATIONS_NOT_ASKED
    assert answer.cluster_authorized_operations == OPERATIONS_NOT_ASKED
    request.include_cluster_authorized_operations = request.include_topic_authorized_operations = True
    answer = raw.ask(ApiKey.METADATA, request, version)
    assert answer.topics[0].topic_authorized_operations & 0b1_1111_1000 == 0b1_1111_1000
    if version <= 10:
        assert answer.cluster_authorized_operations & (1 << 5) == 1 << 5


# --- many requests at once ----------------------------------------------------------------------------


def test_requests_sent_together_are_answered_in_their_order(raw: Asking, topic: str) -> None:
    """However they are cut on their way; and each sees what was stored before it, and nothing later."""
    seed = seed_or(20_261_001)
    print(f"seed {seed}")
    chance = random.Random(seed)
    offsets = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(timestamp=LATEST)])
    bodies: dict[str, tuple[ApiKey, Any]] = {
        "produce": (ApiKey.PRODUCE, raw.produce_request(topic, {0: batch_of(b"x")})),
        "fetch": (ApiKey.FETCH, raw.fetch_request(topic, {0: 0})),
        "long poll": (ApiKey.FETCH, raw.fetch_request(topic, {0: 0}, max_wait_ms=1, min_bytes=1 << 20)),
        "list offsets": (ApiKey.LIST_OFFSETS, ListOffsetsRequest(replica_id=-1, topics=[offsets])),
        "metadata": (ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=topic)])),
        "api versions": (ApiKey.API_VERSIONS, ApiVersionsRequest()),
    }
    sent = [bodies[chance.choice([*bodies, "produce"])] for _ in range(60)]
    stream = b"".join(
        itertools.chain(
            *(
                encode_request(api_key, APIS[api_key].advertised.last, number, None, body)
                for number, (api_key, body) in enumerate(sent)
            )
        )
    )
    while stream:
        size = chance.choice([1, 7, 300, 5000])
        raw.socket.sendall(stream[:size])
        stream = stream[size:]
    stored = 0
    for number, (api_key, _) in enumerate(sent):
        answer = decode_response(api_key, APIS[api_key].advertised.last, raw.receive_frame())
        assert answer.correlation_id == number
        if api_key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS):
            (part,) = answer.body.topics[0].partitions
            name = {ApiKey.PRODUCE: "base_offset", ApiKey.FETCH: "high_watermark"}.get(api_key, "offset")
            assert (part.error_code, getattr(part, name)) == (0, stored)
        stored += api_key is ApiKey.PRODUCE
    assert raw.offset_at(topic, LATEST).offset == stored


# --- LogAppendTime ------------------------------------------------------------------------------------


def test_records_of_a_topic_with_append_time_carry_the_time_at_which_they_were_appended() -> None:
    """Which the producer is told; and which never runs backwards, whatever is done to the clock."""
    clock = ManualClock(NOON)
    with Broker(clock=clock) as broker, Asking(broker.bootstrap) as raw:
        raw.create("ours", message_timestamp_type="LogAppendTime")
        raw.create("theirs")
        stamps = []
        for step in (0, 5, -1000, 2000):
            clock.ms += step
            data = batch_of(b"a", b"b", timestamp=NOON - 10**9)
            stamps.append(raw.produce("ours", data).log_append_time_ms)
            assert raw.produce("theirs", batch_of(b"a", timestamp=77)).log_append_time_ms == -1
        assert stamps == [NOON, NOON + 5, NOON + 5, NOON + 1005]
        answer = raw.fetch("ours")
        stored = b"".join(answer.records)
        for header in batch.scan(stored).headers():
            assert header.log_append_time
            batch.check_crc(stored, header)
        expected = list(itertools.chain(*([stamp, stamp] for stamp in stamps)))
        assert [record.timestamp for record in records_in(answer)] == expected
        theirs = raw.fetch("theirs")
        assert {record.timestamp for record in records_in(theirs)} == {77}
        assert not any(header.log_append_time for header in batch.scan(b"".join(theirs.records)).headers())
