"""The sink on a real Spark: what a write publishes, once, and what it refuses in one sentence."""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from broker.nodes import BreakableFiles
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from support import failing_source
from support.sinks import leftovers, values_in

import cordwood
from cordwood.broker.partitioner import partition_for_key
from cordwood.broker.staging import STAGING_PREFIX
from cordwood.disk.posix import PosixFiles
from cordwood.errors import DirectoryLocked, LogFailed
from cordwood.formats import batch as frames
from cordwood.spark.sink import carriers
from cordwood.spark.sink.carriers import PathCarrier, StagedTask
from cordwood.storage.sink.staging import StagedTarget

PATH, ADDRESS, SERVED = "path", "address", "served path"


@dataclass
class Place:
    """Where a test writes: the options that say so, and the directory it ends up in."""

    options: dict[str, str]
    data: Path
    broker: cordwood.Broker | None = None

    def values(self, topic: str = "out") -> list[list[bytes]]:
        """Return the values of each partition; a broker has published what it answered."""
        return values_in(self.data, topic)

    def staging_topics(self) -> list[str]:
        with cordwood.open(self.data, read_only=True) as log:
            return [name for name in log.topics if name.startswith(STAGING_PREFIX)]


def make_place(kind: str, tmp_path: Path, stack: contextlib.ExitStack) -> Place:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("out", 2)
    broker = None if kind == PATH else stack.enter_context(cordwood.Broker(data))
    if kind == ADDRESS:
        assert broker is not None
        return Place({"kafka.bootstrap.servers": broker.bootstrap}, data, broker)
    return Place({"path": str(data)}, data, broker)


@pytest.fixture(params=[PATH, ADDRESS, SERVED])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each carrier in turn."""
    with contextlib.ExitStack() as stack:
        yield make_place(request.param, tmp_path, stack)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A directory that nobody holds."""
    with contextlib.ExitStack() as stack:
        yield make_place(PATH, tmp_path, stack)


@pytest.fixture(scope="module")
def failing(spark: SparkSession) -> SparkSession:
    """Spark with the source that has mishaps, which its workers could not import."""
    cloudpickle.register_pickle_by_value(failing_source)  # type: ignore[no-untyped-call]
    spark.dataSource.register(failing_source.FailingSource)
    return spark


def numbered(spark: SparkSession, start: int, end: int, tasks: int = 3) -> DataFrame:
    """Return rows with the numbers from *start* up to *end*."""
    number = F.col("id").cast("string")
    return spark.range(start, end, 1, tasks).select(number.alias("key"), number.alias("value"))


def write(rows: DataFrame, place: Place, source: str = "cordwood", **options: str) -> None:
    """Append rows to the topic out, unless told otherwise."""
    if "topic" not in rows.columns:
        options.setdefault("topic", "out")
    rows.write.format(source).options(**place.options, **options).mode("append").save()


def expected(*ranges: tuple[int, int]) -> list[list[bytes]]:
    """Return what `numbered` gives, where Kafka's partitioner sends it: task after task, so in order."""
    found: list[list[bytes]] = [[], []]
    for start, end in ranges:
        for number in range(start, end):
            found[partition_for_key(b"%d" % number, 2)].append(b"%d" % number)
    return found


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    """Return what Spark shows of an error: no traceback before the sentence."""
    assert "Traceback" not in str(error.value)
    return str(error.value)


# --- the carrier by path, without Spark ------------------------------------------------------------


def stage_by_path(carrier: PathCarrier, batch: int, values: list[bytes], query: str = "q") -> StagedTask:
    """Stage as a task does."""
    to = carrier.destination("out")
    stage = carrier.stage(query, batch, f"0-{batch}")
    for value in values:
        stage.append(StagedTarget("out", to.topic_id, 0), frames.encode_records([(None, value)], 1_000))
    return stage.finish()


def test_a_batch_whose_commit_failed_after_the_intent_is_not_taken_back(here: Place) -> None:
    """Spark aborts it with the same messages; whoever opens the directory next publishes it."""
    disk = BreakableFiles(PosixFiles())
    carrier = PathCarrier(str(here.data), files=disk)
    staged = stage_by_path(carrier, 0, [b"a", b"b"])

    def break_after_the_intent(kind: str, path: str, result: object) -> None:
        del result
        if kind == "rename" and "/meta/sink/" in path:
            disk.fail("sync", code=errno.EIO, within="/topics/out/")

    disk.after = break_after_the_intent
    with pytest.raises(LogFailed):
        carrier.publish("q", 0, [staged], remember=True)
    carrier.abandon("q", 0, [staged], remember=True)
    assert len(leftovers(here.data)) == 1
    disk.heal()
    disk.after = lambda kind, path, result: None
    carrier.publish("q", 0, [stage_by_path(carrier, 0, [b"a", b"b"])], remember=True)
    carrier.close()
    assert here.values() == [[b"a", b"b"], []]
    assert leftovers(here.data) == []


def test_a_batch_that_is_aborted_before_its_intent_leaves_nothing(here: Place) -> None:
    with contextlib.closing(PathCarrier(str(here.data))) as carrier:
        staged = stage_by_path(carrier, 0, [b"a"])
        assert len(leftovers(here.data)) == 1
        carrier.abandon("q", 0, [staged], remember=True)
        assert leftovers(here.data) == []


def test_queries_that_commit_at_once_wait_for_each_other(here: Place) -> None:
    def commit(query: str) -> None:
        with contextlib.closing(PathCarrier(str(here.data))) as carrier:
            for batch in range(5):
                staged = stage_by_path(carrier, batch, [f"{query} {batch}".encode()], query)
                carrier.publish(query, batch, [staged], remember=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(commit, "abcd"))
    (found, _) = here.values()
    for query in "abcd":
        mine = [value for value in found if value.startswith(query.encode())]
        assert mine == [f"{query} {batch}".encode() for batch in range(5)]
    assert len(found) == 20


def test_a_directory_held_by_a_writer_that_listens_nowhere_is_refused_by_name(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "LOCKED_SECONDS", 0.1)
    with contextlib.closing(PathCarrier(str(here.data))) as carrier:
        staged = stage_by_path(carrier, 0, [b"a"])
        with cordwood.open(here.data), pytest.raises(DirectoryLocked, match="locked by another writer: pid"):
            carrier.publish("q", 0, [staged], remember=True)
        assert here.values() == [[], []]
        carrier.publish("q", 0, [staged], remember=True)
    assert here.values() == [[b"a"], []]


# --- all or nothing, once ----------------------------------------------------------------------------


def test_a_batch_is_published_in_the_order_of_its_tasks(spark: SparkSession, anywhere: Place) -> None:
    write(numbered(spark, 0, 100), anywhere)
    assert anywhere.values() == expected((0, 100))
    assert leftovers(anywhere.data) == []
    # Nothing stays of a write that has no name.
    assert anywhere.staging_topics() == []


def test_a_transaction_is_published_once_and_none_below_it(spark: SparkSession, anywhere: Place) -> None:
    for version, start in ((1, 0), (1, 0), (4, 20), (3, 40), (4, 60), (0, 80)):
        write(numbered(spark, start, start + 20), anywhere, txnAppId="app", txnVersion=str(version))
    write(numbered(spark, 100, 110), anywhere, txnAppId="another", txnVersion="0")
    assert anywhere.values() == expected((0, 20), (20, 40), (100, 110))
    assert leftovers(anywhere.data) == []


def test_without_a_name_a_write_that_is_run_again_is_published_again(
    spark: SparkSession, here: Place
) -> None:
    for _ in range(2):
        write(numbered(spark, 0, 20), here)
    assert here.values() == expected((0, 20), (0, 20))


def test_a_task_that_fails_after_it_staged_is_tried_again_and_published_once(
    failing: SparkSession, anywhere: Place, tmp_path: Path
) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    rows = numbered(failing, 0, 60, 2)
    write(rows, anywhere, "cordwood_failing", attempts=str(attempts), mishap="fail")
    assert sorted(path.name for path in attempts.iterdir()) == ["0-0", "0-1", "1-0"]
    assert anywhere.values() == expected((0, 60))
    assert leftovers(anywhere.data) == []


def test_a_write_of_which_one_task_fails_publishes_nothing_and_leaves_nothing(
    failing: SparkSession, anywhere: Place, tmp_path: Path
) -> None:
    """The other task had staged; Spark does not even say so to whoever cleans up."""
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    rows = numbered(failing, 0, 60, 2)
    with pytest.raises(Exception, match="a planted failure after staging"):
        write(rows, anywhere, "cordwood_failing", attempts=str(attempts), mishap="always")
    assert "0-3" in {path.name for path in attempts.iterdir()}
    assert anywhere.values() == [[], []]
    assert leftovers(anywhere.data) == []
    assert anywhere.staging_topics() == []


def test_tasks_that_do_not_see_the_directory_say_so_and_nothing_is_visible(
    failing: SparkSession, here: Place, tmp_path: Path
) -> None:
    rows = numbered(failing, 0, 60, 2)
    with pytest.raises(Exception, match="cannot see") as error:
        write(rows, here, "cordwood_failing", attempts=str(tmp_path), mishap="blind")
    assert f"cannot see {here.data}, which the driver writes" in sentence(error)
    assert "write by address with kafka.bootstrap.servers" in sentence(error)
    assert here.values() == [[], []]
    assert leftovers(here.data) == []


def test_two_writes_of_one_batch_of_foreach_batch_both_arrive(
    spark: SparkSession, here: Place, tmp_path: Path
) -> None:
    """Nothing is keyed by the query and the batch that a task could see there."""
    write(numbered(spark, 0, 30), here, topic="in")

    def both(rows: DataFrame, batch: int) -> None:
        del batch
        for _ in range(2):
            write(rows.select("key", "value"), here)

    reading = spark.readStream.format("cordwood").options(**here.options, subscribe="in")
    writer = reading.option("startingOffsets", "earliest").load().writeStream.foreachBatch(both)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert [sorted(each) for each in here.values()] == [sorted(each * 2) for each in expected((0, 30))]


def test_a_stream_takes_no_transaction_of_the_users(spark: SparkSession, here: Place, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    writer = rows.writeStream.format("cordwood").options(
        **here.options, topic="out", txnAppId="a", txnVersion="1"
    )
    with pytest.raises(Exception, match="for batch writes: a stream has its own names"):
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()


def test_overwriting_is_refused(spark: SparkSession, here: Place) -> None:
    """A log is not overwritten, and must not be appended to in the name of that."""
    write(numbered(spark, 0, 5, 1), here)
    writer = numbered(spark, 5, 10, 1).write.format("cordwood").options(**here.options, topic="out")
    with pytest.raises(Exception, match="append"):
        writer.mode("overwrite").save()
    assert here.values() == expected((0, 5))


# --- streams -----------------------------------------------------------------------------------------


def test_a_windowed_count_restarted_midway_gives_what_one_run_gives(
    spark: SparkSession, here: Place, tmp_path: Path
) -> None:
    """Topic to topic, with a watermark, from the checkpoint of the run before."""
    start = datetime(2024, 1, 1, tzinfo=UTC)

    def add(first: int, last: int) -> None:
        rows = [(f"k{n % 3}", f"{n}", start + timedelta(seconds=7 * n)) for n in range(first, last)]
        frame = spark.createDataFrame(rows, "key string, value string, timestamp timestamp")
        write(frame.coalesce(1), here, topic="events")

    def count(topic: str) -> None:
        options = {**here.options, "subscribe": "events", "startingOffsets": "earliest"}
        events = spark.readStream.format("cordwood").options(**options, maxOffsetsPerTrigger="40").load()
        counts = (
            events.withWatermark("timestamp", "30 seconds")
            .groupBy(F.window("timestamp", "1 minute"), "key")
            .count()
            .select("key", F.to_json(F.struct("window.start", "count")).alias("value"))
        )
        writer = (
            counts.writeStream.format("cordwood").options(**here.options, topic=topic).outputMode("append")
        )
        writer = writer.option("checkpointLocation", str(tmp_path / topic)).trigger(availableNow=True)
        writer.start().awaitTermination()

    def counted(topic: str) -> dict[tuple[str, str], int]:
        frame = spark.read.format("cordwood").options(**here.options, subscribe=topic).load()
        found: dict[tuple[str, str], int] = {}
        for row in frame.collect():
            said = json.loads(row.value)
            name = (row.key.decode(), said["start"])
            assert name not in found, f"{name} was counted twice"
            found[name] = said["count"]
        return found

    add(0, 60)
    count("halves")
    midway = counted("halves")
    add(60, 120)
    count("halves")
    count("whole")
    assert 0 < len(midway) < len(counted("halves"))
    assert counted("halves") == counted("whole")
    closed = [n for n in range(120) if (7 * n) // 60 * 60 + 60 <= 7 * 119 - 30]
    assert sum(counted("whole").values()) == len(closed)
    assert leftovers(here.data) == []


# --- columns -----------------------------------------------------------------------------------------


def test_every_column_is_written_as_it_is(spark: SparkSession, here: Place) -> None:
    time = datetime(2024, 5, 6, 7, 8, 9, 123_000)
    headers = [("h", b"1"), ("h", None)]
    rows = [
        ("out", b"k", "text", 1, time, headers),
        ("out", None, None, 0, time, []),
        ("other", b"", "", None, time, None),
    ]
    schema = (
        "topic string, key binary, value string, partition int, timestamp timestamp, "
        "headers array<struct<key: string, value: binary>>"
    )
    with cordwood.open(here.data) as log:
        log.topic("other", 1)
    frame = spark.createDataFrame(rows, schema)
    write(frame, here)
    reading = spark.read.format("cordwood").options(
        **here.options, subscribe="out,other", includeHeaders="true"
    )
    found = {
        (r.topic, r.partition, r.key, r.value, r.timestamp, r.headers and tuple(map(tuple, r.headers)))
        for r in reading.load().collect()
    }
    assert found == {
        ("out", 1, b"k", b"text", time, tuple(headers)),
        ("out", 0, None, None, time, None),
        ("other", 0, b"", b"", time, None),
    }


def test_a_topic_is_copied_with_all_its_columns(spark: SparkSession, here: Place) -> None:
    """Offsets and kinds of time are decided anew; the partition stays, since its column says so."""
    write(numbered(spark, 0, 30), here)
    options = {**here.options, "subscribe": "out", "includeHeaders": "true"}
    copy = spark.read.format("cordwood").options(**options).load()
    write(copy.drop("topic", "partition"), here, topic="copied")
    write(copy, here)
    found = here.values()
    assert [sorted(each) for each in found] == [sorted(each * 2) for each in expected((0, 30))]
    assert sum(map(len, here.values("copied"))) == 30


def test_other_columns_are_left_out_as_by_the_kafka_connector(spark: SparkSession, here: Place) -> None:
    columns = "'v' as value, 1 as price, map('a', struct(1, array(2))) as nested, null as nothing"
    write(spark.sql(f"select {columns}"), here, topic="out")
    assert sorted(here.values()) == [[], [b"v"]]


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("overwrite", 'a log cannot be overwritten: use mode("append"), or INSERT INTO'),
        ("ignore", 'cannot be written in the "Ignore" mode. Please use either the "Append"'),
        ("errorifexists", 'cannot be written in the "ErrorIfExists" mode. Please use either the "Append"'),
    ],
)
def test_save_modes_that_a_log_does_not_have_are_refused_before_anything_is_written(
    spark: SparkSession, here: Place, mode: str, sentence: str
) -> None:
    writer = spark.sql("select 'v' as value").write.format("cordwood").options(**here.options, topic="out")
    with pytest.raises(Exception, match=re.escape(sentence)):
        writer.mode(mode).save()
    assert here.values() == [[], []]


@pytest.mark.parametrize("given", [True, False])
def test_a_missing_topic_is_made_if_it_is_the_option(spark: SparkSession, here: Place, given: bool) -> None:
    rows = numbered(spark, 0, 5, 1)
    if given:
        write(rows, here, topic="made")
        assert sum(map(len, here.values("made"))) == 5
    else:
        with pytest.raises(Exception, match="there is no topic made") as error:
            write(rows.withColumn("topic", F.lit("made")), here)
        assert "UnknownTopic" in sentence(error)


REFUSED_PLANS = {
    "'k' as key": "there is no column value to write; select one, of type binary or string",
    "1 as value": "column value is int, not binary or string",
    "'v' as value, 1.5 as key": "column key is decimal(2,1), not binary or string",
    "'v' as value, 1L as partition": "column partition is bigint, not int or smallint or tinyint",
    "'v' as value, '2024' as timestamp": "column timestamp is string, not timestamp or timestamp_ntz",
    "'v' as value, map('a', 'b') as headers": "column headers is map<string,string>, not array<struct<",
    "'v' as value, 5 as topic": "column topic is int, not string",
}


@pytest.mark.parametrize("columns", REFUSED_PLANS)
def test_columns_that_cannot_be_written_are_refused_by_name(
    spark: SparkSession, here: Place, columns: str
) -> None:
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as error:
        write(spark.sql(f"select {columns}"), here, topic="out")
    assert REFUSED_PLANS[columns] in sentence(error)
    assert here.values() == [[], []]


def test_rows_that_do_not_say_where_they_go_are_refused(spark: SparkSession, here: Place) -> None:
    writer = spark.sql("select 'v' as value").write.format("cordwood").options(**here.options)
    with pytest.raises(Exception, match="give the option topic, or a column topic"):
        writer.mode("append").save()


REFUSED_ROWS = {
    "'v' as value, 2 as partition": "topic out has 2 partitions, but a row says 2",
    "'v' as value, cast(null as string) as topic": "a row has no topic",
    "repeat('v', 3000) as value, 'small' as topic": "for topic small, whose max.message.bytes is 2000",
    "'v' as value, 'latest' as topic": "a row without a key for topic latest, which is compacted",
}


@pytest.mark.parametrize("columns", REFUSED_ROWS)
def test_rows_that_cannot_be_stored_are_refused_in_one_sentence(
    spark: SparkSession, here: Place, columns: str
) -> None:
    with cordwood.open(here.data) as log:
        log.topic("latest", 1, {"cleanup.policy": "compact"})
        log.topic("small", 1, {"max.message.bytes": "2000"})
    with pytest.raises(Exception, match="RecordRefused") as error:
        write(spark.sql(f"select {columns}"), here)
    assert REFUSED_ROWS[columns] in sentence(error)
    assert here.values() == [[], []]
    assert leftovers(here.data) == []


def test_a_batch_that_fails_leaves_no_topic_that_was_created_for_it(spark: SparkSession, here: Place) -> None:
    with pytest.raises(Exception, match="topic fresh has 1 partitions, but a row says 7"):
        write(spark.sql("select 'v' as value, 7 as partition"), here, topic="fresh")
    with cordwood.open(here.data, read_only=True) as log:
        assert "fresh" not in log.topics
    assert here.values() == [[], []]


def test_update_mode_is_not_offered_to_python_sinks(spark: SparkSession, here: Place, tmp_path: Path) -> None:
    """So the guide shows foreachBatch; if Spark learns to offer it, this fails and the guide is to change."""
    counted = spark.readStream.format("rate").load().groupBy("value").count().selectExpr("'v' AS value")
    stream = counted.writeStream.outputMode("update").format("cordwood").options(**here.options, topic="out")
    with pytest.raises(Exception, match=r"(?i)\bupdate\b"):
        stream.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
    assert here.values() == [[], []]


# --- SQL ---------------------------------------------------------------------------------------------


def test_sql_inserts_into_a_view_and_into_a_table_that_is_given_its_options(
    spark: SparkSession, here: Place
) -> None:
    """Options of CREATE TABLE do not reach a Python source in Spark 4.3; those of the statement do."""
    where = f"path '{here.data}', topic 'out'"
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW sunk (key string, value string) USING cordwood OPTIONS ({where})"
    )
    spark.sql("INSERT INTO sunk VALUES ('0', '0'), ('1', '1')")
    spark.sql(f"CREATE TABLE sink_table (key string, value string) USING cordwood OPTIONS ({where})")
    try:
        spark.sql(f"INSERT INTO sink_table WITH ({where}) VALUES ('2', '2')")
        with pytest.raises(Exception, match="both missing"):
            spark.sql("INSERT INTO sink_table VALUES ('3', '3')")
    finally:
        spark.sql("DROP TABLE sink_table")
    assert sorted(value for each in here.values() for value in each) == [b"0", b"1", b"2"]
