"""Leader epochs on the wire: one truth in every answer, and requests that name another one are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from support.asking import Asking, values_in
from support.patience import SECONDS_MAX

import cordwood
from cordwood import Broker
from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.cluster import DescribeTopicPartitionsRequest, TopicRequest
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from cordwood.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from cordwood.storage.backup.create import backup
from cordwood.storage.backup.restoring import restore

LATEST, EARLIEST, NEWEST = -1, -2, -3
NONE, FENCED, UNKNOWN = 0, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
#: The topic that was truncated, and where: offsets 0 to 5 are of epoch 0, the others of epoch 1.
CUT, CUT_AT, END = "cut", 6, 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("epochs")
    with cordwood.open(path) as log:
        topic = log.topic(CUT, partitions=2)
        for number in range(10):
            topic.append(b"%d" % number, partition=0, timestamp=1_000 + number)
        topic.truncate(0, CUT_AT)
        for number in range(CUT_AT, END):
            topic.append(b"%d" % number, partition=0, timestamp=1_000 + number)
        log.topic("plain", partitions=1).append(b"x")
    return path


@pytest.fixture(scope="module")
def broker(data: Path) -> Iterator[Broker]:
    with Broker(data) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as asking:
        yield asking


def epochs_in(topics: list[Any]) -> dict[str, list[int]]:
    return {topic.name: [part.leader_epoch for part in topic.partitions] for topic in topics}


def test_every_description_of_a_topic_has_its_leader_epochs(data: Path) -> None:
    """Asked first for one by name or by id, for all, or as an administrator: nothing was opened before."""
    cut, plain = {CUT: [1, 0]}, {"plain": [0]}
    everything = DescribeTopicPartitionsRequest(topics=[])
    named = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=CUT), TopicRequest(name="plain")])
    for key, request, expected in (
        (ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=CUT)]), cut),
        (ApiKey.METADATA, MetadataRequest(topics=None), cut | plain),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, everything, cut | plain),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, named, cut | plain),
    ):
        with Broker(data) as broker, Asking(broker.bootstrap) as client:
            # The second time from memory.
            for _ in range(2):
                assert epochs_in(client.ask(key, request).topics) == expected
            by_id = MetadataRequestTopic(name=None, topic_id=client.id_of(CUT))
            assert epochs_in(client.ask(ApiKey.METADATA, MetadataRequest(topics=[by_id])).topics) == cut


def test_partitions_that_are_added_and_topics_that_come_back_begin_with_epoch_0(client: Asking) -> None:
    client.create("fresh")
    assert epochs_in(client.topics("fresh")) == {"fresh": [0]}
    more = CreatePartitionsTopic(name="fresh", count=3, assignments=None)
    client.ask(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics=[more]))
    assert epochs_in(client.topics("fresh")) == {"fresh": [0, 0, 0]}
    client.produce("fresh", batch.encode_records([(b"k", b"v")], 1_000))
    assert epochs_in(client.topics("fresh")) == {"fresh": [0, 0, 0]}
    assert client.delete("fresh") == NONE
    client.create("fresh", 2)
    assert epochs_in(client.topics("fresh")) == {"fresh": [0, 0]}


@pytest.mark.parametrize(
    ("timestamp", "offset", "epoch"),
    [(EARLIEST, 0, 0), (LATEST, END, 1), (NEWEST, 7, 1), (1_003, 3, 0), (1_006, 6, 1), (9_999, -1, -1)],
)
def test_an_offset_is_told_with_the_epoch_of_its_record(
    client: Asking, timestamp: int, offset: int, epoch: int
) -> None:
    for version in range(4, 12):
        found = client.offset_at(CUT, timestamp, version=version)
        assert (found.offset, found.leader_epoch) == (offset, epoch)
        # Before anything was appended there is an end as well, in the epoch that will begin there.
    for asked in (EARLIEST, LATEST):
        assert client.offset_at(CUT, asked, partition=1).leader_epoch == 0


#: What a client may say of an epoch 1, and of a partition without records, whose epoch is 0.
SAID = [(0, -1, NONE), (0, 0, FENCED), (0, 1, NONE), (0, 2, UNKNOWN), (1, 0, NONE), (1, 1, UNKNOWN)]


@pytest.mark.parametrize(("partition", "said", "code"), SAID)
def test_a_request_that_names_another_leader_epoch_is_refused(
    client: Asking, partition: int, said: int, code: int
) -> None:
    for version in range(9, 19):
        asked = FetchPartition(partition, current_leader_epoch=said, max_bytes=1 << 20)
        named = [FetchTopic(CUT, client.id_of(CUT), [asked])]
        # It may wait, but not with what is wrong for ever.
        request = FetchRequest(-1, 0 if code == NONE else 30_000, 1, 1 << 20, 0, 0, -1, named, [], "")
        (answer,) = client.ask(ApiKey.FETCH, request, version).topics[0].partitions
        assert answer.error_code == code
        assert len(values_in(answer)) == (END if code == NONE and partition == 0 else 0)
        if code:
            assert (answer.high_watermark, answer.log_start_offset) == (-1, -1)
    for version in range(4, 12):
        part = ListOffsetsPartition(partition_index=partition, current_leader_epoch=said, timestamp=LATEST)
        listing = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=CUT, partitions=[part])])
        (found,) = client.ask(ApiKey.LIST_OFFSETS, listing, version).topics[0].partitions
        assert found.error_code == code
        assert (found.offset >= 0) == (code == NONE)
    for version in range(2, 5):
        end_of = OffsetForLeaderPartition(partition=partition, current_leader_epoch=said, leader_epoch=0)
        ends = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=CUT, partitions=[end_of])])
        (end,) = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, ends, version).topics[0].partitions
        assert end.error_code == code
        assert end.end_offset == ((0 if partition else CUT_AT) if code == NONE else -1)


def test_topics_in_the_shared_log_have_its_epoch_used_or_not(tmp_path: Path) -> None:
    """They have it before their first record too, or it would change under their clients."""
    settings = {"cordwood.storage": "shared"}
    with cordwood.open(tmp_path / "source") as log:
        log.topic("used", config=settings).append(b"x")
        log.topic("unused", config=settings)
    backup(tmp_path / "source", tmp_path / "saved")
    restore(tmp_path / "saved", tmp_path / "restored")
    with Broker(tmp_path / "restored") as broker, Asking(broker.bootstrap) as client:
        assert epochs_in(client.topics("used", "unused")) == {"used": [1], "unused": [1]}
        client.produce("unused", batch.encode_records([(b"k", b"v")], 1_000))
        assert epochs_in(client.topics("unused")) == {"unused": [1]}
        assert client.offset_at("unused", LATEST).leader_epoch == 1
        assert client.offset_at("used", EARLIEST).leader_epoch == 0


def test_a_consumer_notices_that_a_restored_log_ends_before_its_position(tmp_path: Path) -> None:
    """librdkafka asks where the epoch of its offset ends, and goes back to there by its reset policy."""
    with cordwood.open(tmp_path / "source") as log:
        topic = log.topic("orders")
        for number in range(5):
            topic.append(b"first %d" % number)
    backup(tmp_path / "source", tmp_path / "saved")
    restore(tmp_path / "saved", tmp_path / "restored", to_offsets={("orders", 0): 3})
    with cordwood.open(tmp_path / "restored") as log:
        for number in range(5):
            log.topic("orders").append(b"second %d" % number)
    with Broker(tmp_path / "restored") as broker:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        # Read up to 5 before the disaster, in epoch 0, of which the log now has three records.
        position = confluent_kafka.TopicPartition("orders", 0, 5, leader_epoch=0)
        consumer.assign([position])
        (message,) = consumer.consume(1, SECONDS_MAX)
        consumer.close()
        assert message.error() is None
        assert (message.offset(), message.value()) in {(0, b"first 0"), (3, b"second 0")}
