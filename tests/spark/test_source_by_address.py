"""``kafka.bootstrap.servers``: the same rows through a broker, and ranges that end by position."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.filling import NOW, SMALL, expected, fill, offsets, reading, rows

import cordwood
from cordwood.errors import ConfigError, CordwoodError, RecordsLost
from cordwood.kafka_client import KafkaClient
from cordwood.spark.access.access import Piece
from cordwood.spark.access.broker import BrokerAccess
from cordwood.spark.access.broker_reading import RangeReader
from cordwood.spark.access.path import PathAccess
from cordwood.spark.source.schema import arrow_schema, spark_schema
from cordwood.spark.source.stream_reader import StreamReader

COUNT = 600


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("address") / "data"
    with cordwood.open(path) as log:
        topic = log.topic("orders", 2, SMALL)
        fill(topic, 0, COUNT)
        fill(topic, 1, 100)
    return path


@pytest.fixture(scope="module")
def broker(data: Path) -> Iterator[cordwood.Broker]:
    with cordwood.Broker(data) as running:
        yield running


@pytest.fixture
def access(broker: cordwood.Broker) -> Iterator[BrokerAccess]:
    with contextlib.closing(BrokerAccess({"bootstrap.servers": broker.bootstrap}, verify=True)) as opened:
        yield opened


def at(spark: SparkSession, broker: cordwood.Broker, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "orders", **options}
    return spark.read.format("cordwood").options(**given)


def read(access: BrokerAccess, piece: Piece, fail: bool = True) -> list[int]:
    schema = arrow_schema(spark_schema(include_headers=False))
    batches = access.read([piece], schema, fail_on_data_loss=fail)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_the_same_rows_by_address_as_by_path(
    spark: SparkSession, broker: cordwood.Broker, data: Path
) -> None:
    by_address = rows(at(spark, broker, includeHeaders="true", minPartitions="5").load())
    assert by_address == expected("orders", 0, 0, COUNT) + expected("orders", 1, 0, 100)
    assert by_address == rows(reading(spark, data, includeHeaders="true").load())


def test_columns_and_ranges_by_address(spark: SparkSession, broker: cordwood.Broker, data: Path) -> None:
    options = {
        "startingTimestamp": str(NOW + 333),
        "endingOffsets": '{"orders": {"0": 300, "1": -1}}',
    }
    frame = at(spark, broker, **options).schema("partition int, offset long").load()
    by_path = reading(spark, data, **options).load()
    for partition in (0, 1):
        assert offsets(frame, partition) == offsets(by_path, partition) != []


def test_a_task_whose_topic_is_deleted_says_what_is_lost(
    access: BrokerAccess, broker: cordwood.Broker
) -> None:
    admin, piece = AdminClient({"bootstrap.servers": broker.bootstrap}), Piece("brief", 0, 3, 9)
    admin.create_topics([NewTopic("brief", 1)])["brief"].result()
    admin.delete_topics(["brief"])["brief"].result()
    lost = "offsets 3 up to 9 of partition 0 of topic brief are lost: the topic was deleted"
    with pytest.raises(RecordsLost, match=lost):
        read(access, piece)
    assert read(access, piece, fail=False) == []


def test_both_ways_know_the_same_topic(access: BrokerAccess, data: Path) -> None:
    """So a checkpoint made one way goes on the other."""
    by_path = PathAccess(str(data), verify=True).standing("orders", None)
    by_address = access.standing("orders", None)
    assert by_path is not None
    assert by_address is not None
    assert by_address.topic_id == by_path.topic_id
    assert by_address.epoch == -1
    assert [ends[:2] for ends in by_address.partitions.values()] == [(0, COUNT), (0, 100)]
    assert access.standing("nothing", None) is None
    assert access.topics() == access.topics(["nothing", "orders", "no such name"]) == {"orders": 2}


def test_what_cannot_be_read_by_address(spark: SparkSession, broker: cordwood.Broker) -> None:
    with pytest.raises(Exception, match="there is no topic nothing"):
        at(spark, broker, subscribe="nothing").load().count()
    with pytest.raises(
        Exception, match="partition 1 of topic orders has offsets 0 up to 100, and 101 is past the end"
    ):
        at(spark, broker, startingOffsets='{"orders": {"0": 1, "1": 101}}').load().count()
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        BrokerAccess({"bootstrap.servers": broker.bootstrap, "no.such.setting": "1"}, verify=True)


def test_an_address_where_nobody_answers() -> None:
    access = BrokerAccess({"bootstrap.servers": "127.0.0.1:9"}, verify=True, seconds=0.5)
    with pytest.raises(CordwoodError, match=r"asking for the topics at 127.0.0.1:9 failed"):
        access.topics()


def test_a_range_ends_by_position_where_offsets_have_no_records() -> None:
    """What compaction removed, or a transaction's marks, would otherwise be waited for."""
    seen = Sparse()
    assert seen.read([1, 2, 3], eof=9, end=9) == [1, 2, 3]
    assert seen.read([1, 2, 12], eof=None, end=9) == [1, 2]
    with pytest.raises(RecordsLost, match=r"offsets 5 up to 9 .* ends at 5 now"):
        seen.read([1, 2], eof=5, end=9)
    assert seen.read([1, 2], eof=5, end=9, fail=False) == [1, 2]
    with pytest.raises(CordwoodError, match="sends nothing of partition 0 of topic t after 3"):
        seen.read([1, 2], eof=None, end=9)


class Message:
    def __init__(self, offset: int, error: Any = None) -> None:
        self._offset, self._error = offset, error

    def offset(self) -> int:
        return self._offset

    def error(self) -> Any:
        return self._error

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"v"

    def timestamp(self) -> tuple[int, int]:
        return 1, NOW


class Sparse:
    """A consumer that gives what it is told."""

    def read(self, given: list[int], *, eof: int | None, end: int, fail: bool = True) -> list[int]:
        self._messages = [Message(offset) for offset in given]
        if eof is not None:
            self._messages.append(Message(eof, KafkaError(KafkaError._PARTITION_EOF)))
        client = KafkaClient({"bootstrap.servers": "127.0.0.1:9"}, seconds=0.5)
        schema = arrow_schema(spark_schema(include_headers=False))
        reader = RangeReader(
            client, self, schema, lambda pieces: [piece.start for piece in pieces], fail_on_data_loss=fail
        )
        batches = reader.read([Piece("t", 0, 0, end)])
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    def assign(self, places: Any) -> None:
        self._sent = iter([self._messages])

    def consume(self, count: int, seconds: float) -> list[Message]:
        return next(self._sent, [])

    def unassign(self) -> None:
        pass


def test_what_went_away_after_planning(tmp_path: Path) -> None:
    """The log start moved, or the topic was made again: the task finds out by itself."""
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", 1, SMALL)
        fill(topic, 0, 100)
        topic.advance_log_start(0, 40)
    with cordwood.Broker(tmp_path / "data") as broker:
        access = BrokerAccess({"bootstrap.servers": broker.bootstrap}, verify=True)
        with contextlib.closing(access):
            piece = Piece("orders", 0, 10, 60, access.topic_ids(["orders"])["orders"])
            with pytest.raises(RecordsLost, match="offsets 10 up to 40 of partition 0 of topic orders"):
                read(access, piece)
            assert read(access, piece, fail=False) == list(range(40, 60))
            beyond = piece._replace(start=90, end=120)
            with pytest.raises(RecordsLost, match="offsets 100 up to 120"):
                read(access, beyond)
            assert read(access, beyond, fail=False) == list(range(90, 100))
            other = piece._replace(topic_id="00000000-0000-4000-8000-000000000000", start=50)
            with pytest.raises(RecordsLost, match="made again"):
                read(access, other)
            assert read(access, other, fail=False) == []
            missing = piece._replace(topic="refunds")
            with pytest.raises(
                RecordsLost, match=r"offsets 10 up to 60 .* refunds are lost: the topic was del"
            ):
                read(access, missing)
            assert read(access, missing, fail=False) == []


def streaming(**options: str) -> StreamReader:
    return StreamReader({"subscribe": "orders", **options}, spark_schema(include_headers=False))


def test_a_stream_goes_on_by_address_where_it_was_by_path(broker: cordwood.Broker, data: Path) -> None:
    by_path = streaming(path=str(data), startingOffsets="earliest")
    start = by_path.initialOffset()
    by_address = streaming(**{"kafka.bootstrap.servers": broker.bootstrap})
    end = by_address.latestOffset(start, ReadAllAvailable())
    assert end["orders"] == {"0": COUNT, "1": 100}
    found = [
        o for part in by_address.partitions(start, end) for b in by_address.read(part) for o in b["offset"]
    ]
    assert len(found) == COUNT + 100
    assert by_path.latestOffset(end, ReadAllAvailable())["orders"] == end["orders"]
    by_address.stop()


def committed(broker: cordwood.Broker, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        return [place.offset for place in consumer.committed([TopicPartition("orders", n) for n in (0, 1)])]
    finally:
        consumer.close()


@pytest.mark.parametrize("by", ["path", "address"])
def test_progress_is_shown_as_committed_offsets_and_never_goes_back(
    broker: cordwood.Broker, data: Path, by: str
) -> None:
    """By path it goes through the server that holds the directory."""
    where = {"path": str(data)} if by == "path" else {"kafka.bootstrap.servers": broker.bootstrap}
    reader = streaming(**where, **{"kafka.group.id": f"progress-{by}"}, startingOffsets="earliest")
    end = reader.initialOffset()
    end["orders"] = {"0": 50, "1": 7}
    reader.commit(end)
    assert committed(broker, f"progress-{by}") == [50, 7]
    end["orders"] = {"0": 20, "1": 9}
    reader.commit(end)
    assert committed(broker, f"progress-{by}") == [50, 9]
    reader.stop()


def test_without_a_server_nobody_keeps_progress_and_the_query_goes_on(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        fill(log.topic("orders"), 0, 5)
        reader = streaming(path=str(tmp_path / "data"), **{"kafka.group.id": "g"})
        reader.commit(reader.initialOffset())
        reader.stop()


def test_a_stale_address_in_the_lock_does_not_stop_a_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was killed leaves it. It is tried once and then let be."""
    monkeypatch.setattr("cordwood.spark.access.path.COMMIT_SECONDS", 0.5)
    with cordwood.open(tmp_path / "data") as log:
        fill(log.topic("orders"), 0, 5)
        log.data_directory.describe("pid 1 on gone, listening on 127.0.0.1:9")
        reader = streaming(path=str(tmp_path / "data"), **{"kafka.group.id": "g"}, startingOffsets="earliest")
        position = reader.initialOffset()
        reader.commit(position)
        position["orders"]["0"] = 3
        reader.commit(position)
        reader.stop()
    assert len([record for record in caplog.records if "were not committed" in record.message]) == 1
