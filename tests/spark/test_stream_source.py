"""``spark.readStream.format("cordwood")``: nothing twice, nothing left out, or one sentence why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from support.clocks import ManualClock
from support.filling import SMALL, fill, ranges

import cordwood
from cordwood.errors import CordwoodError, RecordsLost, UnknownTopic
from cordwood.spark.source.schema import spark_schema
from cordwood.spark.source.stream_reader import StreamReader


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def log(data: Path) -> Iterator[cordwood.Log]:
    """The writer of a directory with orders of two partitions of 100 records each."""
    with cordwood.open(data) as opened:
        topic = opened.topic("orders", 2, SMALL)
        fill(topic, 0, 100)
        fill(topic, 1, 100)
        yield opened


def streaming(data: Path, clock: Any = None, **options: str) -> StreamReader:
    """Return a reader as Spark makes it on the driver."""
    given = {"path": str(data), "subscribe": "orders", **options}
    return StreamReader(given, spark_schema(include_headers=False), clock)


def positions(
    *offsets: int, log: cordwood.Log, epoch: int = 0, topic_id: str | None = None
) -> dict[str, Any]:
    topic_id = topic_id or log.entry("orders").id
    named = {str(number): offset for number, offset in enumerate(offsets)}
    return {"orders": named, f"orders={topic_id}/{epoch}": {}}


def taken(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    """Return (partition, offset) of what the tasks of a batch read."""
    found = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            found += list(
                zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
            )
    return sorted(found)


# --- through Spark ---------------------------------------------------------------------------------


class Collected:
    """What the batches of a query held, by batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = sorted(
            (r.partition, r.offset) for r in frame.select("partition", "offset").collect()
        )

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for batch in self.batches.values() for row in batch)


def run_available(spark: SparkSession, data: Path, checkpoint: Path, **options: str) -> Collected:
    """Run a query over what is available now, and return what it read."""
    collected = Collected()
    given = {"path": str(data), "subscribe": "orders", "startingOffsets": "earliest", **options}
    query = (
        spark.readStream.format("cordwood")
        .options(**given)
        .load()
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return collected


def last_offset(checkpoint: Path) -> Any:
    newest = max(
        (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()),
        key=lambda p: int(p.name),
    )
    return json.loads(newest.read_text().splitlines()[-1])


def test_available_now_reads_everything_once_over_restarts(
    spark: SparkSession, log: cordwood.Log, data: Path, tmp_path: Path
) -> None:
    """In batches of the size asked for, and from where the checkpoint says, in exactly its form."""
    checkpoint = tmp_path / "checkpoint"
    first = run_available(spark, data, checkpoint, maxOffsetsPerTrigger="50")
    assert first.rows == [(p, o) for p in (0, 1) for o in range(100)]
    assert [len(rows) for rows in first.batches.values() if rows] == [50] * 4
    assert last_offset(checkpoint) == positions(100, 100, log=log)
    fill(log.topic("orders"), 1, 7, start=100)
    second = run_available(spark, data, checkpoint)
    assert second.rows == [(1, o) for o in range(100, 107)]
    assert last_offset(checkpoint) == positions(100, 107, log=log)


@pytest.mark.parametrize("committed", [True, False])
def test_a_checkpoint_of_sparks_kafka_connector_goes_on_here_and_back(
    spark: SparkSession, log: cordwood.Log, data: Path, tmp_path: Path, committed: bool
) -> None:
    """Also where the connector planned a batch and was killed before it was done: that one is read again."""
    checkpoint = tmp_path / "checkpoint"
    run_available(spark, data, checkpoint, maxOffsetsPerTrigger="100")
    planned = checkpoint / "offsets" / "1"
    for path, offset in (planned.with_name("0"), 50), (planned, 100):
        # The text that the connector writes.
        *said, _ = path.read_text().splitlines()
        path.write_text("\n".join([*said, f'{{"orders":{{"1":{offset},"0":{offset}}}}}']))
    for other in (*checkpoint.rglob(".*.crc"), *([] if committed else [checkpoint / "commits" / "1"])):
        other.unlink(missing_ok=True)
    fill(log.topic("orders"), 1, 7, start=100)
    found = run_available(spark, data, checkpoint)
    again = [] if committed else [(p, o) for p in (0, 1) for o in range(50, 100)]
    assert found.rows == sorted(again + [(1, o) for o in range(100, 107)])
    back = last_offset(checkpoint)
    named = {(topic, int(number)): offset for topic in back for number, offset in back[topic].items()}
    assert named == {("orders", 0): 100, ("orders", 1): 107}


def test_a_stream_starts_at_latest_and_follows_the_writer(
    spark: SparkSession, log: cordwood.Log, data: Path
) -> None:
    collected = Collected()
    frame = spark.readStream.format("cordwood").option("path", str(data)).option("subscribe", "orders").load()
    query = frame.writeStream.foreachBatch(collected).start()
    try:
        query.processAllAvailable()
        assert collected.rows == []
        fill(log.topic("orders"), 0, 5, start=100)
        query.processAllAvailable()
        fill(log.topic("orders"), 1, 5, start=100)
        query.processAllAvailable()
        assert collected.rows == [(p, o) for p in (0, 1) for o in range(100, 105)]
        assert query.lastProgress is not None
        assert json.loads(query.lastProgress["sources"][0]["latestOffset"]) == positions(105, 105, log=log)
    finally:
        query.stop()


def test_a_topic_made_again_under_a_checkpoint_fails_the_query_by_name(
    spark: SparkSession, log: cordwood.Log, data: Path, tmp_path: Path
) -> None:
    """With failOnDataLoss=false the new one is read from its beginning; nothing of it was read before."""
    checkpoint = tmp_path / "checkpoint"
    assert len(run_available(spark, data, checkpoint).rows) == 200
    make_again(log)
    with pytest.raises(
        Exception, match="of topic orders are lost: the topic was deleted and made again, with id"
    ):
        run_available(spark, data, checkpoint)
    again = run_available(spark, data, checkpoint, failOnDataLoss="false")
    assert again.rows == [(0, o) for o in range(30)]


def make_again(log: cordwood.Log) -> None:
    delete(log)
    fill(log.topic("orders", 2, SMALL), 0, 30)


def delete(log: cordwood.Log) -> None:
    log.data_directory.topics.delete("orders")


# --- positions -------------------------------------------------------------------------------------


def test_starts(log: cordwood.Log, data: Path) -> None:
    assert streaming(data).initialOffset() == positions(100, 100, log=log)
    assert streaming(data, startingOffsets="earliest").initialOffset() == positions(0, 0, log=log)
    told = '{"orders": {"0": 3, "1": -1}}'
    assert streaming(data, startingOffsets=told).initialOffset() == positions(3, 100, log=log)
    with pytest.raises(CordwoodError, match="101 is past the end"):
        streaming(data, startingOffsets='{"orders": {"0": 101, "1": 0}}').initialOffset()
    with pytest.raises(CordwoodError, match="endingOffsets is for batch queries"):
        streaming(data, endingOffsets="latest").initialOffset()


def test_limits_are_shared_out_by_volume_and_all_available_is_all(log: cordwood.Log, data: Path) -> None:
    reader = streaming(data, maxOffsetsPerTrigger="40")
    assert reader.getDefaultReadLimit() == ReadMaxRows(40)
    start = positions(0, 80, log=log)
    end = reader.latestOffset(start, ReadMaxRows(60))
    assert end == positions(50, 90, log=log)
    assert taken(reader, start, end) == [(0, o) for o in range(50)] + [(1, o) for o in range(80, 90)]
    assert reader.latestOffset(start, ReadAllAvailable()) == positions(100, 100, log=log)
    assert reader.latestOffset(positions(100, 100, log=log), ReadMaxRows(60)) == positions(100, 100, log=log)


def test_a_trigger_waits_for_enough_or_long_enough(log: cordwood.Log, data: Path) -> None:
    clock = ManualClock(0)
    reader = streaming(data, clock, minOffsetsPerTrigger="50", maxTriggerDelay="10s")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(50)
    near = positions(80, 80, log=log)
    assert reader.latestOffset(near, limit) == near
    clock.advance(9_999)
    assert reader.latestOffset(near, limit) == near
    assert reader.latestOffset(near, ReadAllAvailable()) == positions(100, 100, log=log)
    clock.advance(9_999)
    assert reader.latestOffset(near, limit) == near
    clock.advance(1)
    assert reader.latestOffset(near, limit) == positions(100, 100, log=log)
    assert reader.latestOffset(positions(0, 80, log=log), limit) == positions(100, 100, log=log)


def test_available_now_does_not_run_after_a_growing_log(log: cordwood.Log, data: Path) -> None:
    reader = streaming(data, minOffsetsPerTrigger="1000")
    reader.prepareForTriggerAvailableNow()
    fill(log.topic("orders"), 0, 50, start=100)
    target = positions(100, 100, log=log)
    assert reader.latestOffset(positions(0, 0, log=log), reader.getDefaultReadLimit()) == target
    assert reader.latestOffset(target, reader.getDefaultReadLimit()) == target
    assert reader.reportLatestOffset() == positions(150, 100, log=log)


def test_a_new_partition_is_read_from_its_first_record(log: cordwood.Log, data: Path) -> None:
    reader = streaming(data)
    start = positions(100, log=log)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert taken(reader, start, end) == [(1, o) for o in range(100)]


def test_a_position_beyond_the_mark_waits_and_never_rewinds(log: cordwood.Log, data: Path) -> None:
    reader = streaming(data)
    ahead = positions(140, 100, log=log)
    for fail in ("true", "false"):
        assert streaming(data, failOnDataLoss=fail).latestOffset(ahead, ReadAllAvailable()) == ahead
    fill(log.topic("orders"), 0, 50, start=100)
    end = reader.latestOffset(ahead, ReadAllAvailable())
    assert taken(reader, ahead, end) == [(0, o) for o in range(140, 150)]


def test_a_log_start_that_passed_the_position(log: cordwood.Log, data: Path) -> None:
    log.topic("orders").advance_log_start(0, 60)
    start = positions(20, 100, log=log)
    with pytest.raises(RecordsLost, match="offsets 20 up to 60 of partition 0 of topic orders"):
        streaming(data).latestOffset(start, ReadAllAvailable())
    skipping = streaming(data, failOnDataLoss="false")
    end = skipping.latestOffset(start, ReadAllAvailable())
    assert taken(skipping, start, end) == [(0, o) for o in range(60, 100)]


def test_a_truncation_is_a_loss_even_after_it_grew_again(log: cordwood.Log, data: Path) -> None:
    """Other records have the offsets now that were read before; without failing they are left out."""
    start = positions(100, 100, log=log)
    log.topic("orders").truncate(0, 50)
    fill(log.topic("orders"), 0, 60, start=50)
    with pytest.raises(RecordsLost, match=r"offsets 50 up to 100 of partition 0 .* truncated at 50"):
        streaming(data).latestOffset(start, ReadAllAvailable())
    with pytest.raises(RecordsLost, match="offsets 50 up to 100 of partition 0"):
        streaming(data).partitions(start, positions(100, 100, log=log))
    skipping = streaming(data, failOnDataLoss="false")
    end = skipping.latestOffset(start, ReadAllAvailable())
    assert end == positions(110, 100, log=log, epoch=1)
    assert taken(skipping, start, end) == [(0, o) for o in range(100, 110)]
    assert streaming(data).latestOffset(end, ReadAllAvailable()) == end


def test_a_topic_that_is_gone(log: cordwood.Log, data: Path) -> None:
    start = positions(10, 10, log=log)
    delete(log)
    lost = "offsets from 10 on of partition 0 of topic orders are lost: the topic was deleted after"
    reader = streaming(data)
    # Before a batch nobody says how far the query was, so nothing could be explained.
    reader.prepareForTriggerAvailableNow()
    reader.reportLatestOffset()
    with pytest.raises(RecordsLost, match=f"{lost} the query had read partition 0 up to 10, 1 up to 10"):
        reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(RecordsLost, match=lost):
        streaming(data).partitions(start, positions(20, 20, log=log, topic_id="gone"))
    with pytest.raises(UnknownTopic, match="there is no topic orders"):
        streaming(data).initialOffset()
    skipping = streaming(data, failOnDataLoss="false")
    assert skipping.latestOffset(start, ReadAllAvailable()) == {}


def test_one_topic_that_is_gone_does_not_keep_the_others_from_being_read(
    log: cordwood.Log, data: Path
) -> None:
    fill(log.topic("refunds"), 0, 10)
    reader = streaming(data, subscribe="orders,refunds", startingOffsets="earliest", failOnDataLoss="false")
    start = reader.initialOffset()
    delete(log)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert taken(reader, start, end) == [(0, o) for o in range(10)]


def test_the_same_batch_again_gives_the_same_slices(log: cordwood.Log, data: Path) -> None:
    """After a restart Spark asks again for a batch that it planned, whatever has come since."""
    start, end = positions(10, 20, log=log), positions(60, 30, log=log)
    first = streaming(data, minPartitions="5").partitions(start, end)
    fill(log.topic("orders"), 0, 50, start=100)
    second = streaming(data, minPartitions="5").partitions(start, end)
    pieces = [ranges(parts) for parts in (first, second)]
    assert pieces[0] == pieces[1]
    assert len(pieces[0]) == 5


def test_errors_of_a_stream_are_said_by_the_query(spark: SparkSession, log: cordwood.Log, data: Path) -> None:
    """Spark hides what happens while a stream reader is made, so nothing does."""
    for schema, options, sentence in (
        ("offset int", {}, "column offset has type bigint, not int"),
        (
            "offset long",
            {"endingOffsets": "latest"},
            "endingOffsets is for batch queries: a stream has no end",
        ),
        ("offset long", {"minPartitions": "many"}, "minPartitions='many': expected a whole number"),
        ("offset long", {"subscribe": "nothing"}, "there is no topic nothing"),
    ):
        given = {"path": str(data), "subscribe": "orders", **options}
        frame = spark.readStream.format("cordwood").schema(schema).options(**given).load()
        with pytest.raises(Exception, match=sentence):
            frame.writeStream.format("noop").start().awaitTermination()
