"""The sink by address: frames to a staging topic, then a command, as any Kafka client could send them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import msgspec
import pytest
from support.asking import Asking, records_in, values_in
from support.auditing import AUDITED
from support.auditing import TOPIC as AUDIT_TOPIC
from support.groups import commit
from support.killing import INTENDED, Kills
from support.patience import SECONDS_MAX, in_time
from support.sinks import BrokerProcess, check_clean

import cordwood
from cordwood.broker.offsets import Position
from cordwood.broker.staging import Command, FrameKey, StagedFrames, staging_topic
from cordwood.broker.tenants import Tenant
from cordwood.errors import CordwoodError
from cordwood.formats import batch as frames
from cordwood.formats.batch import BatchOptions
from cordwood.formats.compression import Compression
from cordwood.kafka_client.client import _CORDWOOD_CLUSTER
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from cordwood.spark.sink.address_carrier import AddressCarrier, ForeignCarrier, open_address
from cordwood.spark.sink.carriers import StagedTask
from cordwood.storage.sink.staging import StagedTarget

QUERY = "query on the wire"
TOPIC = staging_topic(QUERY)
#: Its carrier makes the staging topic as it needs it.
CARRIED = "query carried"
LATEST, EARLIEST = -1, -2


@pytest.fixture
def broker() -> Iterator[cordwood.Broker]:
    with cordwood.Broker() as running:
        yield running


@pytest.fixture
def client(broker: cordwood.Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as asking:
        asking.create("out", 2)
        asking.create(TOPIC, 4)
        yield asking


def frame(*values: bytes, **options: Any) -> bytearray:
    return frames.encode_records([(None, value) for value in values], 1_000, BatchOptions(**options))


def stage(
    client: Asking, task: str, *values: bytes, partition: int = 0, at: int = 1, target: str = "out"
) -> StagedFrames:
    """Send one frame a value to the staging topic."""
    topic_id = str(uuid.UUID(bytes=client.id_of(target)))
    key = msgspec.json.encode(FrameKey(task, target, topic_id, partition))
    rows = [(key, bytes(frame(value))) for value in values]
    answer = client.produce(TOPIC, frames.encode_records(rows, 1_000), at)
    assert answer.error_code == 0
    return StagedFrames(task, at, answer.base_offset, answer.base_offset + len(rows), len(rows))


def command(batch: int, *staged: StagedFrames, query: str = QUERY, **options: Any) -> bytearray:
    """Return a command as the batch that is sent."""
    value = msgspec.json.encode(Command(query=query, batch=batch, staged=staged))
    return frame(value, **options)


def output(client: Asking) -> list[list[bytes | None]]:
    return [values_in(client.fetch("out", partition=partition)) for partition in range(2)]


def test_a_command_is_answered_when_its_batch_can_be_read(client: Asking) -> None:
    first, second = stage(client, "t1", b"a", b"b"), stage(client, "t2", b"c", partition=1, at=3)
    answer = client.produce(TOPIC, command(0, first, second))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert output(client) == [[b"a", b"b"], [b"c"]]


def test_a_lower_batch_is_answered_and_not_published(client: Asking) -> None:
    assert client.produce(TOPIC, command(4, stage(client, "t1", b"a"))).error_code == 0
    for batch in (4, 3, 0):
        answer = client.produce(TOPIC, command(batch, stage(client, "again", b"a")))
        assert answer.error_code == 0
    assert output(client) == [[b"a"], []]


def test_the_ends_that_one_request_asks_for_have_a_batch_in_every_partition_or_in_none(
    broker: cordwood.Broker, client: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it comes into view when the end of one partition was read, and that of the other was not."""
    partitions = [ListOffsetsPartition(partition_index=number, timestamp=LATEST) for number in range(2)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="out", partitions=partitions)])
    due = command(0, stage(client, "t1", b"a"), stage(client, "t2", b"b", partition=1, at=2))
    real, looks = Tenant.find_offset, list[int]()

    def find_offset(self: Tenant, name: str, partition: int, *rest: Any, **options: Any) -> Position:
        looks.append(partition)
        if looks == [0, 1]:
            with Asking(broker.bootstrap) as publisher:
                assert publisher.produce(TOPIC, due).error_code == 0
        return real(self, name, partition, *rest, **options)

    monkeypatch.setattr(Tenant, "find_offset", find_offset)
    answer: ListOffsetsResponse = client.ask(ApiKey.LIST_OFFSETS, request, 7)
    assert [part.offset for part in answer.topics[0].partitions] == [1, 1]
    assert looks == [0, 1, 0, 1]


def refused(client: Asking, data: bytearray, code: ErrorCode, acks: int = -1) -> str:
    """Send a command that is refused and return why; nothing is published."""
    answer = client.produce(TOPIC, data, acks=acks)
    assert answer.error_code == code, answer
    assert output(client) == [[], []]
    return answer.error_message or ""


def test_a_command_that_cannot_be_obeyed_is_refused_in_one_sentence(client: Asking) -> None:
    staged = stage(client, "t1", b"a")
    wrong = ErrorCode.INVALID_RECORD
    said = refused(client, command(0, staged, query="another"), wrong)
    assert said == f"a command of another in {TOPIC}"
    assert "not a command" in refused(client, frame(b"garbage"), wrong)
    missing = msgspec.structs.replace(staged, frames=2)
    assert "task t1 sent 2 frames; 1 are here" in refused(client, command(0, missing), wrong)
    missing = msgspec.structs.replace(staged, partition=9)
    # Not the code for unknown topics: clients would take it for their own and try again for minutes.
    refused(client, command(0, missing), wrong)
    assert client.produce(TOPIC, command(0, staged)).error_code == 0
    assert output(client) == [[b"a"], []]


def test_nothing_is_published_to_a_topic_that_only_the_broker_writes(tmp_path: Path) -> None:
    """Otherwise any client could forge records of the audit log, or commit offsets of any group."""
    with cordwood.Broker(tmp_path, config=AUDITED) as broker, Asking(broker.bootstrap) as client:
        client.create("out", 2)
        client.create(TOPIC, 4)
        commit(client, "billing", {("out", 0): (0, -1, "")})
        for target in (AUDIT_TOPIC, "__consumer_offsets"):
            staged = stage(client, "t1", b"forged", target=target)
            refusal = refused(client, command(0, staged), ErrorCode.INVALID_RECORD)
            assert refusal == f"{target} is not a topic to publish to"
    with cordwood.open(tmp_path, read_only=True) as log:
        values = [record.value for name in log.topics for record in log.topic(name).read()]
    assert b"forged" not in values


def test_a_command_needs_acks_all(client: Asking) -> None:
    staged = stage(client, "t1", b"a")
    said = refused(client, command(0, staged), ErrorCode.INVALID_REQUIRED_ACKS, acks=1)
    assert said == "a command needs acks=all"
    request = client.produce_request(TOPIC, {0: command(0, staged)}, acks=0)
    client.send(ApiKey.PRODUCE, 13, request)
    assert client.is_closed()


def test_a_command_without_acks_is_not_obeyed(broker: cordwood.Broker, client: Asking) -> None:
    with Asking(broker.bootstrap) as other:
        request = other.produce_request(TOPIC, {0: command(0, stage(client, "t1", b"a"))}, acks=0)
        other.send(ApiKey.PRODUCE, 13, request)
        assert other.is_closed()
    assert output(client) == [[], []]


def test_a_duplicate_of_an_idempotent_producer_is_answered_alike_and_published_once(client: Asking) -> None:
    staged = stage(client, "t1", b"a")
    answers = [
        client.produce(TOPIC, command(0, staged, producer_id=7, producer_epoch=0, base_sequence=0))
        for _ in range(3)
    ]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0)] * 3
    assert output(client) == [[b"a"], []]


def test_a_refused_command_may_be_sent_again_by_its_idempotent_producer(client: Asking) -> None:
    """The duplicate is looked at again, rather than answered as if it had been obeyed."""
    staged = stage(client, "t1", b"a")
    wrong = msgspec.structs.replace(staged, frames=2)
    for _ in range(2):
        data = command(0, wrong, producer_id=7, producer_epoch=0, base_sequence=0)
        assert client.produce(TOPIC, data).error_code == ErrorCode.INVALID_RECORD
    assert output(client) == [[], []]


def test_commands_may_be_compressed_and_several_in_a_batch(client: Asking) -> None:
    staged = [stage(client, f"t{n}", b"%d" % n) for n in range(3)]
    values = [msgspec.json.encode(Command(query=QUERY, batch=n, staged=(staged[n],))) for n in range(3)]
    # The first clears what is staged, so those after it have nothing: each command is of what is there.
    answer = client.produce(TOPIC, frame(values[0], compression=Compression.GZIP))
    assert answer.error_code == 0
    assert output(client) == [[b"0"], []]
    answer = client.produce(TOPIC, frame(*values[1:], compression=Compression.ZSTD))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert output(client) == [[b"0"], []]


def test_frames_beside_a_command_in_one_request_are_stored_and_answered(client: Asking) -> None:
    staged = stage(client, "t1", b"a")
    request = client.produce_request(TOPIC, {1: frame(b"x"), 0: command(0, staged), 2: frame(b"y")})
    answers = client.ask(ApiKey.PRODUCE, request).topics[0].partitions
    assert [(answer.index, answer.error_code) for answer in answers] == [(1, 0), (0, 0), (2, 0)]
    assert output(client) == [[b"a"], []]


def test_consumers_parked_on_the_target_are_woken(broker: cordwood.Broker, client: Asking) -> None:
    staged = stage(client, "t1", b"a", partition=1)
    with Asking(broker.bootstrap) as consumer:
        request = consumer.fetch_request("out", {0: 0, 1: 0}, max_wait_ms=600_000)
        consumer.send(ApiKey.FETCH, 16, request)
        assert client.produce(TOPIC, command(0, staged)).error_code == 0
        answer = consumer.receive(ApiKey.FETCH, 16).topics[0].partitions
    assert [values_in(partition) for partition in answer] == [[], [b"a"]]


def test_staging_topics_are_internal(client: Asking) -> None:
    topics = client.topics(TOPIC, "out")
    assert [(topic.name, topic.is_internal) for topic in topics] == [(TOPIC, True), ("out", False)]


def test_what_was_staged_is_cleared_from_the_staging_topic(client: Asking) -> None:
    staged = stage(client, "t1", b"a", b"b")
    stage(client, "loser", b"a", at=2)
    client.produce(TOPIC, command(0, staged))
    starts = [client.offset_at(TOPIC, EARLIEST, partition).offset for partition in range(4)]
    # The command itself stays until the next one.
    assert starts[1:] == [2, 1, 0]
    assert starts[0] in (0, 1)


def test_a_command_of_confluent_kafka_is_obeyed(broker: cordwood.Broker, client: Asking) -> None:
    staged = stage(client, "t1", b"a")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    errors: list[object] = []
    for batch in range(2):
        value = msgspec.json.encode(Command(query=QUERY, batch=batch, staged=(staged,) * (1 - batch)))
        producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(SECONDS_MAX) == 0
    assert errors == [None, None]
    assert output(client) == [[b"a"], []]


def test_a_broker_killed_after_the_intent_publishes_before_it_serves(tmp_path: Path) -> None:
    """And the command, sent again as its producer would, is answered without publishing once more."""
    kills = Kills(tmp_path / "kills")
    kills.plant(INTENDED, 0)
    broker = BrokerProcess(tmp_path / "data", tmp_path / "kills")
    try:
        with Asking(broker.bootstrap) as client:
            client.create("out", 2)
            client.create(TOPIC, 4)
            staged = stage(client, "t1", b"a", b"b")
            data = command(0, staged, producer_id=7, producer_epoch=0, base_sequence=0)
            client.send(ApiKey.PRODUCE, 13, client.produce_request(TOPIC, {0: data}))
            assert client.is_closed()
        broker.wait()
        assert kills.done() == [INTENDED]
        broker.revive()
        assert broker.starts == 2
        with Asking(broker.bootstrap) as client:
            assert output(client) == [[b"a", b"b"], []]
            data = command(0, staged, producer_id=7, producer_epoch=0, base_sequence=0)
            assert client.produce(TOPIC, data).error_code == 0
            assert output(client) == [[b"a", b"b"], []]
    finally:
        broker.stop()
    check_clean(tmp_path / "data")


# --- the carrier of a query --------------------------------------------------------------------------


def staged_by(carrier: AddressCarrier, task: str, values: Sequence[bytes], batch: int = 0) -> StagedTask:
    """Stage as a task does."""
    to = carrier.destination("out")
    stage = carrier.stage(CARRIED, batch, task)
    for value in values:
        stage.append(StagedTarget("out", to.topic_id, 0), frame(value))
    return stage.finish()


def test_the_carrier_says_why_a_batch_was_not_published(broker: cordwood.Broker, client: Asking) -> None:
    """At once: the client must not try again what will not work."""
    carrier = AddressCarrier({"bootstrap.servers": broker.bootstrap})
    staged = staged_by(carrier, "t1", [b"a"])
    client.delete("out")
    began = time.monotonic()
    with pytest.raises(CordwoodError, match="did not publish batch 0 of query carried"):
        carrier.publish(CARRIED, 0, [staged], remember=True)
    assert in_time(time.monotonic() - began, 20)


def test_nothing_of_a_write_without_a_name_stays_behind(broker: cordwood.Broker, client: Asking) -> None:
    carrier = AddressCarrier({"bootstrap.servers": broker.bootstrap})
    carrier.publish(CARRIED, 0, [staged_by(carrier, "t1", [b"a"])], remember=False)
    assert [topic.error_code for topic in client.topics(staging_topic(CARRIED))] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ]
    client.ids.clear()
    assert output(client) == [[b"a"], []]


def test_a_foreign_broker_is_written_at_least_once(
    broker: cordwood.Broker, client: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records arrive as tasks send them, with key, headers and time, whether or not anyone publishes."""
    monkeypatch.setattr(AddressCarrier, "is_ours", lambda self: False)
    carrier = open_address({"bootstrap.servers": broker.bootstrap})
    assert isinstance(carrier, ForeignCarrier)
    to = carrier.destination("out")
    rows = [(b"k", b"v", [("h", b"1"), ("h", None)], 5_000), (None, None, [], 6_000)]
    for attempt in ("0-a", "0-b"):
        stage = carrier.stage(CARRIED, 0, attempt)
        stage.append(StagedTarget("out", to.topic_id, 1), frames.encode_records(rows, 1_000))
        staged = stage.finish()
    carrier.publish(CARRIED, 0, [staged], remember=True)
    carrier.abandon(CARRIED, 0, [staged], remember=True)
    found = records_of(client, 1)
    assert [(key, value, headers, at) for key, value, headers, at in found] == rows * 2


def records_of(client: Asking, partition: int) -> list[tuple[Any, ...]]:
    return [
        (record.key, record.value, [tuple(header) for header in record.headers], record.timestamp)
        for record in records_in(client.fetch("out", partition=partition))
    ]


def test_ours_is_told_from_foreign_by_its_cluster_id(broker: cordwood.Broker) -> None:
    assert type(open_address({"bootstrap.servers": broker.bootstrap})) is AddressCarrier
    # What Kafka calls its clusters: 22 characters of base64.
    assert not _CORDWOOD_CLUSTER.fullmatch("MkU3OEVBNTcwNTJENDM2Qg")
