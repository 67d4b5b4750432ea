"""Transactions in Spark: which records a query reads at each isolation level, by path."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.filling import reading
from support.patience import SECONDS_MAX
from support.producing import Sent
from support.seeds import seeds_from
from support.transactions import committed_values, end_transaction, every_value, send_in_transaction

import cordwood
from cordwood.disk.posix import PosixFiles
from cordwood.errors import ConfigError, CordwoodError
from cordwood.host import SystemClock
from cordwood.spark.access.access import Piece
from cordwood.spark.access.path import PathAccess
from cordwood.spark.jobs.converting import ConvertOptions, convert
from cordwood.spark.jobs.export.job import ExportOptions, run_export
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.materializing import MaterializeOptions, materialize
from cordwood.spark.jobs.stats import StatsOptions, stats
from cordwood.spark.options import ISOLATION, check_read_options
from cordwood.spark.source.reader import PlannedReader, Slice
from cordwood.spark.source.schema import spark_schema
from cordwood.spark.source.stream_reader import StreamReader
from cordwood.storage.log import WritablePartition

A, B = 1, 2
UNCOMMITTED = {ISOLATION: "read_uncommitted"}
TINY = {"segment.bytes": "2048", "index.interval.bytes": "256"}
EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def log(data: Path) -> Iterator[cordwood.Log]:
    with cordwood.open(data) as opened:
        opened.topic("orders", 1, TINY)
        yield opened


@pytest.fixture
def orders(log: cordwood.Log) -> WritablePartition:
    """The only partition of orders, as a broker appends to it."""
    return partition_of(log)


def partition_of(log: cordwood.Log, topic: str = "orders", number: int = 0) -> WritablePartition:
    return log.topic(topic).writer.writable(number)


def say(log: WritablePartition, producer: int, sequence: int, *values: bytes) -> None:
    send_in_transaction(log, Sent(producer, 0, sequence, values))


def fill_with_transactions(log: WritablePartition) -> None:
    """Append plain records, a committed and an aborted transaction that interleave, and an open one."""
    log.append([(b"k", b"plain")])
    say(log, A, 0, b"a0", b"a1")
    say(log, B, 0, b"b0")
    say(log, A, 2, b"a2")
    end_transaction(log, A, committed=False)
    say(log, B, 1, b"b1")
    end_transaction(log, B, committed=True)
    log.append([(b"k", b"more")])
    say(log, A, 3, b"open")
    log.append([(b"k", b"after")])
    log.commit()


def planned(data: Path, **options: str) -> list[Slice]:
    """Return the slices of a batch query."""
    return batch_reader(data, **options).partitions()


def pieces_of(parts: list[Slice]) -> list[Piece]:
    return [piece for part in parts for piece in part.pieces if isinstance(piece, Piece)]


def batch_reader(data: Path, **options: str) -> PlannedReader:
    given = {"path": str(data), "subscribe": "orders", **options}
    return PlannedReader(check_read_options(given, streaming=False), spark_schema(include_headers=False))


def values(data: Path, **options: str) -> list[bytes]:
    """Return the values that a batch query reads, in the order of its tasks."""
    reader = batch_reader(data, **options)
    return [
        value
        for part in reader.partitions()
        for batch in reader.read(part)
        for value in batch.column("value").to_pylist()
    ]


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [{"path": "/data"}, {"kafka.bootstrap.servers": "h:1"}])
def test_the_isolation_level_is_read_committed_unless_said_otherwise(place: dict[str, str]) -> None:
    given = {**place, "subscribe": "orders"}
    assert check_read_options(given).place.committed
    assert check_read_options({**given, ISOLATION: "read_committed"}).place.committed
    assert not check_read_options({**given, ISOLATION: " read_uncommitted"}).place.committed
    with pytest.raises(ConfigError, match="expected read_committed or read_uncommitted") as caught:
        check_read_options({**given, ISOLATION: "serializable"})
    assert caught.value.name == ISOLATION
    with pytest.raises(ConfigError, match=r"did you mean kafka\.isolation\.level"):
        check_read_options({**given, "isolation.level": "read_committed"})


# --- batch ------------------------------------------------------------------------------------------------


def test_a_query_reads_committed_records_and_markers_are_no_rows(
    spark: SparkSession, data: Path, orders: WritablePartition
) -> None:
    fill_with_transactions(orders)
    found = reading(spark, data).load().collect()
    assert [(row.offset, bytes(row.value)) for row in found] == [
        (0, b"plain"),
        (3, b"b0"),
        (6, b"b1"),
        (8, b"more"),
    ]
    every = reading(spark, data, **UNCOMMITTED).load()
    assert [bytes(row.value) for row in every.collect()] == every_value(orders)
    assert every.count() == 9
    with pytest.raises(Exception, match="expected read_committed or read_uncommitted"):
        reading(spark, data, **{ISOLATION: "none"}).load()


def test_tasks_are_handed_the_aborted_transactions_of_their_ranges_and_no_others(
    data: Path, orders: WritablePartition
) -> None:
    for number in range(40):
        say(orders, A, 2 * number, b"x" * 50, b"y" * 50)
        end_transaction(orders, A, committed=number % 2 == 0)
    orders.commit()
    pieces = pieces_of(planned(data, minPartitions="10"))
    assert len(pieces) == 10
    for piece in pieces:
        assert piece.aborted == tuple(orders.aborted(piece.start, piece.end))
        assert all(
            each.first_offset < piece.end and each.last_offset >= piece.start for each in piece.aborted
        )
    assert sum(len(piece.aborted) for piece in pieces) < 40
    assert len(values(data, minPartitions="10")) == 40
    assert [piece.aborted for piece in pieces_of(planned(data, **UNCOMMITTED))] == [()]


def test_a_task_reads_its_plan_although_more_transactions_end_meanwhile(
    data: Path, orders: WritablePartition
) -> None:
    fill_with_transactions(orders)
    reader = batch_reader(data)
    (part,) = reader.partitions()
    end_transaction(orders, A, committed=False)
    say(orders, A, 4, b"next")
    orders.commit()
    read = [value for batch in reader.read(part) for value in batch.column("value").to_pylist()]
    assert read == [b"plain", b"b0", b"b1", b"more"]
    assert values(data) == [b"plain", b"b0", b"b1", b"more", b"after"]


def test_offsets_by_time_end_at_the_last_stable_offset(data: Path, orders: WritablePartition) -> None:
    """As a broker answers at this level: what is not stable has no time yet."""
    send_in_transaction(orders, Sent(A, 0, 0, (b"early",)), timestamp=1_000)
    end_transaction(orders, A, committed=True)
    send_in_transaction(orders, Sent(A, 0, 1, (b"open",)), timestamp=1 << 42)
    orders.commit()
    place = ("orders", 0)
    assert PathAccess(str(data), verify=True).offsets_at({place: 1 << 42}) == {place: None}
    uncommitted = PathAccess(str(data), verify=True, committed=False)
    assert uncommitted.offsets_at({place: 1 << 42}) == {place: 2}
    assert values(data, startingTimestamp="1000") == [b"early"]
    with pytest.raises(ConfigError, match="has no record at or after timestamp"):
        planned(data, startingTimestamp=str(1 << 42))


@pytest.mark.parametrize("seed", seeds_from(0, 12))
def test_any_slices_of_any_transactions_read_what_the_log_has(data: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    with cordwood.open(data) as log:
        log.topic("orders", 1, TINY)
        orders = partition_of(log)
        sequences, is_open = {A: 0, B: 0, 3: 0}, set()
        for number in range(rng.randrange(20, 120)):
            producer = rng.choice([None, *sequences])
            if producer is None:
                orders.append([(b"k", b"plain %d" % number)] * rng.randrange(1, 4))
            elif producer in is_open and rng.random() < 0.4:
                end_transaction(orders, producer, committed=rng.random() < 0.5)
                is_open.discard(producer)
            else:
                count = rng.randrange(1, 5)
                say(orders, producer, sequences[producer], *[b"%d of %d" % (number, producer)] * count)
                sequences[producer] += count
                is_open.add(producer)
        orders.commit()
        options = {"minPartitions": str(rng.randrange(1, 9))}
        assert values(data, **options) == committed_values(orders)
        assert values(data, **options, **UNCOMMITTED) == every_value(orders)


# --- streams ----------------------------------------------------------------------------------------------


def streaming(data: Path, **options: str) -> StreamReader:
    given = {"path": str(data), "subscribe": "orders", **EARLIEST, **options}
    return StreamReader(given, spark_schema(include_headers=False))


def taken(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """Return the values of a batch of a stream."""
    return [
        value
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for value in batch.column("value").to_pylist()
    ]


def test_a_stream_waits_at_the_last_stable_offset_and_reads_each_transaction_once(
    data: Path, orders: WritablePartition
) -> None:
    fill_with_transactions(orders)
    reader = streaming(data)
    start = reader.initialOffset()
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert (first["orders"], reader.reportLatestOffset()) == ({"0": 9}, first)
    assert reader.latestOffset(first, reader.getDefaultReadLimit()) == first
    end_transaction(orders, A, committed=True)
    orders.commit()
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert second["orders"] == {"0": 12}
    assert taken(reader, start, first) == [b"plain", b"b0", b"b1", b"more"]
    assert taken(reader, first, second) == [b"open", b"after"]
    # After a restart the same batch is planned again, and has the same rows.
    assert taken(streaming(data), start, first) == [b"plain", b"b0", b"b1", b"more"]
    reader.stop()


def test_limits_and_available_now_count_stable_offsets(data: Path, orders: WritablePartition) -> None:
    fill_with_transactions(orders)
    reader = streaming(data, maxOffsetsPerTrigger="4")
    reader.prepareForTriggerAvailableNow()
    end_transaction(orders, A, committed=True)
    orders.commit()
    position, found, batches = reader.initialOffset(), [], 0
    while (after := reader.latestOffset(position, reader.getDefaultReadLimit())) != position:
        found += taken(reader, position, after)
        position, batches = after, batches + 1
    assert (found, batches, position["orders"]) == ([b"plain", b"b0", b"b1", b"more"], 3, {"0": 9})
    reader.stop()


def test_a_stream_of_uncommitted_records_may_become_one_of_committed_ones(
    data: Path, orders: WritablePartition
) -> None:
    """Checkpoints have the same offsets at both levels; an open transaction in an old batch is waited for."""
    fill_with_transactions(orders)
    before = streaming(data, **UNCOMMITTED)
    start = before.initialOffset()
    end = before.latestOffset(start, before.getDefaultReadLimit())
    assert end["orders"] == {"0": 11}
    now = streaming(data)
    assert now.latestOffset(end, now.getDefaultReadLimit()) == end
    with pytest.raises(CordwoodError, match=r"a transaction is open from 9 on: run the query again when"):
        taken(now, start, end)
    end_transaction(orders, A, committed=False)
    orders.commit()
    assert taken(now, start, end) == [b"plain", b"b0", b"b1", b"more", b"after"]
    now.stop()


def test_available_now_of_spark_reads_committed_records_over_restarts(
    spark: SparkSession, tmp_path: Path, data: Path, orders: WritablePartition
) -> None:
    fill_with_transactions(orders)
    found: list[bytes] = []

    def run() -> None:
        frame = spark.readStream.format("cordwood").option("path", str(data)).option("subscribe", "orders")
        query = frame.options(**EARLIEST).load().writeStream
        query = query.foreachBatch(lambda batch, _: found.extend(bytes(row.value) for row in batch.collect()))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    run()
    assert found == [b"plain", b"b0", b"b1", b"more"]
    end_transaction(orders, A, committed=True)
    orders.commit()
    run()
    assert found == [b"plain", b"b0", b"b1", b"more", b"open", b"after"]


# --- by address -------------------------------------------------------------------------------------------


def test_by_address_the_same_rows_as_by_path_at_both_levels(spark: SparkSession, data: Path) -> None:
    """A transaction of a client that commits, one that aborts, and one that stays open."""
    from confluent_kafka import Producer

    with cordwood.Broker(data) as broker:

        def begun(name: str) -> Producer:
            producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
            producer.init_transactions(SECONDS_MAX)
            producer.begin_transaction()
            return producer

        def send(producer: Producer, *sent: bytes) -> None:
            for value in sent:
                producer.produce("orders", value=value, partition=0)
            assert producer.flush(SECONDS_MAX) == 0

        one, two, three = begun("one"), begun("two"), begun("three")
        send(one, b"a0")
        send(two, b"b0", b"b1")
        send(one, b"a1")
        one.commit_transaction(SECONDS_MAX)
        two.abort_transaction(SECONDS_MAX)
        send(three, b"open")
        two.begin_transaction()
        send(two, b"b2")
        two.commit_transaction(SECONDS_MAX)
        place = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "orders"}

        def at_address(**options: str) -> list[tuple[int, bytes]]:
            frame = spark.read.format("cordwood").options(**place, **options).load()
            return sorted((row.offset, bytes(row.value)) for row in frame.collect())

        def by_path(**options: str) -> list[tuple[int, bytes]]:
            frame = reading(spark, data, **options).load()
            return sorted((row.offset, bytes(row.value)) for row in frame.collect())

        assert [value for _, value in by_path()] == [b"a0", b"a1"]
        assert at_address() == by_path()
        every = by_path(**UNCOMMITTED)
        assert [value for _, value in every] == [b"a0", b"b0", b"b1", b"a1", b"open", b"b2"]
        assert at_address(**UNCOMMITTED) == every
        three.abort_transaction(SECONDS_MAX)
        # The range ends in the marker of an aborted transaction.
        assert at_address() == by_path()
        assert [value for _, value in by_path()] == [b"a0", b"a1", b"b2"]


# --- the chain --------------------------------------------------------------------------------------------


def test_frames_of_aborted_transactions_are_compared_with_their_leaves_and_are_no_rows(data: Path) -> None:
    with cordwood.open(data, clock=SystemClock()) as log:
        log.topic("orders", 1, {"cordwood.chain": "true"})
        orders = partition_of(log)
        fill_with_transactions(orders)
        log.data_directory.chains.commit(log.data_directory.partitions.own("orders", 0))
        assert values(data, verify="chain") == [b"plain", b"b0", b"b1", b"more"]
        assert values(data, verify="chain", **UNCOMMITTED) == every_value(orders)


# --- the shared log ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds_from(100, 6))
def test_topics_in_the_shared_log_are_gathered_without_what_is_open_or_aborted(data: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = ["orders", "refunds", "returns"]
    with cordwood.open(data) as log:
        for name in names:
            log.topic(name, 1, {"cordwood.storage": "shared"})
        logs = {name: partition_of(log, name) for name in names}
        sequences: dict[tuple[str, int], int] = {}
        is_open = set()
        for number in range(rng.randrange(30, 150)):
            name, producer = place = rng.choice(names), rng.choice([A, B])
            if rng.random() < 0.2:
                logs[name].append([(b"k", b"plain %d" % number)])
            elif place in is_open and rng.random() < 0.4:
                end_transaction(logs[name], producer, committed=rng.random() < 0.5)
                is_open.discard(place)
            else:
                count = rng.randrange(1, 4)
                say(logs[name], producer, sequences.get(place, 0), *[b"%d" % number] * count)
                sequences[place] = sequences.get(place, 0) + count
                is_open.add(place)
        for each in logs.values():
            each.commit()
        options = {"subscribe": ",".join(names), "minPartitions": str(rng.randrange(1, 6))}
        assert by_topic(data, **options) == {
            name: found for name in names if (found := committed_values(logs[name]))
        }
        assert by_topic(data, **options, **UNCOMMITTED) == {
            name: found for name in names if (found := every_value(logs[name]))
        }


def by_topic(data: Path, **options: str) -> dict[str, list[bytes]]:
    """Return the values that a batch query reads, by topic."""
    reader, found = batch_reader(data, **options), dict[str, list[bytes]]()
    for part in reader.partitions():
        for batch in reader.read(part):
            for topic, value in zip(
                *(batch.column(name).to_pylist() for name in ("topic", "value")), strict=True
            ):
                found.setdefault(topic, []).append(value)
    return found


def test_a_batch_of_uncommitted_records_of_the_shared_log_waits_for_the_open_transaction(data: Path) -> None:
    with cordwood.open(data) as log:
        log.topic("orders", 1, {"cordwood.storage": "shared"})
        orders = partition_of(log)
        fill_with_transactions(orders)
        before, now = streaming(data, **UNCOMMITTED), streaming(data)
        start = before.initialOffset()
        end = before.latestOffset(start, before.getDefaultReadLimit())
        assert now.latestOffset(start, now.getDefaultReadLimit())["orders"] == {"0": 9}
        with pytest.raises(CordwoodError, match=r"a transaction is open from 9 on: run the query again when"):
            taken(now, start, end)
        end_transaction(orders, A, committed=True)
        orders.commit()
        assert taken(now, start, end) == [b"plain", b"b0", b"b1", b"more", b"open", b"after"]


# --- jobs -------------------------------------------------------------------------------------------------


def test_stats_counts_committed_records(spark: SparkSession, data: Path, orders: WritablePartition) -> None:
    fill_with_transactions(orders)
    (found,) = stats(spark, StatsOptions(LogPlace(path=str(data)))).topics
    assert (found.records, found.partitions[0].records, found.value_bytes) == (4, 4, 13)


def test_an_export_has_committed_records_once_and_an_open_transaction_with_the_run_after_its_end(
    tmp_path: Path, data: Path, orders: WritablePartition
) -> None:
    import pyarrow.parquet as pq

    def exported() -> list[bytes]:
        options = ExportOptions(LogPlace(path=str(data)), str(tmp_path / "out"))
        run_export(options, lambda tasks, do: [do(task) for task in tasks], PosixFiles())
        files = [pq.ParquetFile(file).read() for file in (tmp_path / "out").rglob("*.parquet")]
        rows = [row for file in files for row in zip(file["offset"], file["value"], strict=True)]
        return [value.as_py() for _, value in sorted(rows, key=lambda row: row[0].as_py())]

    fill_with_transactions(orders)
    assert exported() == [b"plain", b"b0", b"b1", b"more"]
    assert exported() == [b"plain", b"b0", b"b1", b"more"]
    end_transaction(orders, A, committed=False)
    orders.commit()
    assert exported() == [b"plain", b"b0", b"b1", b"more", b"after"]


def test_converting_and_materializing_take_committed_records(
    spark: SparkSession, data: Path, log: cordwood.Log
) -> None:
    """The transaction that is open has no transactional id: opening the directory to write aborts it."""
    fill_with_transactions(partition_of(log))
    log.close()
    report = convert(spark, ConvertOptions(str(data), "orders", "copy"))
    assert report.records == 5
    options = MaterializeOptions(LogPlace(path=str(data)), "orders", table=str(data.parent / "table"))
    assert materialize(spark, options).records == 5
    rows = spark.read.parquet(str(data.parent / "table")).collect()
    assert sorted((bytes(row.key), bytes(row.value)) for row in rows) == [
        (b"b0", b"b0"),
        (b"b1", b"b1"),
        (b"k", b"after"),
    ]
    copied = reading(spark, data, subscribe="copy").load().collect()
    assert [bytes(row.value) for row in copied] == [b"plain", b"b0", b"b1", b"more", b"after"]
