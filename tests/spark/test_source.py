"""``spark.read.format("cordwood")`` over a directory: exact rows, small plans, errors in one sentence."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.commands import run as command_line
from support.filling import NOW, SMALL, expected, fill, offsets, ranges, reading, rows, rows_of
from support.pages import examples
from support.pages import matches as page_matches

import cordwood
from cordwood.disk.posix import PosixFiles
from cordwood.errors import CordwoodError, CorruptRange, DirectoryRefused, RecordsLost
from cordwood.spark.access import path as path_access
from cordwood.spark.access.access import Piece
from cordwood.spark.access.path import PathAccess
from cordwood.spark.options import check_read_options
from cordwood.spark.source.reader import Build, PlannedReader, PushingReader, Slice
from cordwood.spark.source.schema import arrow_schema, spark_schema, with_null_headers
from cordwood.storage.log.reading import FrameRun

COUNT = 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """orders of two partitions over several segments, refunds of one, and an internal topic."""
    path = tmp_path_factory.mktemp("source") / "data"
    with cordwood.open(path) as log:
        orders = log.topic("orders", 2, SMALL)
        fill(orders, 0, COUNT)
        fill(orders, 1, COUNT // 2)
        fill(log.topic("refunds"), 0, 10)
        fill(log.topic("__internal_orders"), 0, 3)
    return path


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Path, cordwood.Log, cordwood.Topic]]:
    """A directory that a test changes, with its writer beside: one partition of 300 records."""
    path = tmp_path / "data"
    with cordwood.open(path) as log:
        topic = log.topic("orders", 1, SMALL)
        fill(topic, 0, 300)
        yield path, log, topic


def failure(call: Any) -> str:
    """Return the sentence of the error that *call* ends with, which is all that Spark shows of it."""
    with pytest.raises(Exception) as caught:
        call()
    said = str(caught.value)
    (line,) = [line for line in said.splitlines() if "cordwood.errors." in line]
    assert "Traceback" not in said
    return re.split(r"cordwood\.errors\.\w+: ", line)[1]


# --- rows ------------------------------------------------------------------------------------------


def test_every_record_comes_once_as_it_was_appended(spark: SparkSession, data: Path) -> None:
    """Nothing is registered: Spark finds the source by itself."""
    frame = reading(spark, data, includeHeaders="true").load()
    assert rows(frame) == expected("orders", 0, 0, COUNT) + expected("orders", 1, 0, COUNT // 2)


def test_the_schema_is_that_of_the_kafka_connector(spark: SparkSession, data: Path) -> None:
    plain = "key binary, value binary, topic string, partition int, offset bigint"
    plain += ", timestamp timestamp, timestampType int"
    assert reading(spark, data).load().schema == spark.createDataFrame([], plain).schema
    with_headers = plain + ", headers array<struct<key: string, value: binary>>"
    loaded = reading(spark, data, includeHeaders="true").load().schema
    assert loaded == spark.createDataFrame([], with_headers).schema


def test_headers_are_null_where_a_record_has_none_also_in_a_part_of_a_batch() -> None:
    """As Spark's Kafka connector has it; how Arrow keeps the lists does not matter."""
    schema = arrow_schema(only("offset", "headers"))
    given = [[], [{"key": "a", "value": b"1"}], [], None, [{"key": "b", "value": None}] * 2, []] * 3
    batch = pa.RecordBatch.from_arrays([pa.array(range(18)), pa.array(given, schema[1].type)], schema=schema)
    for start, count in ((0, 18), (1, 1), (3, 11), (17, 1), (5, 0)):
        found = with_null_headers(batch.slice(start, count))
        found.validate(full=True)
        assert found.schema == schema
        assert found.column(1).to_pylist() == [each or None for each in given[start : start + count]]


@pytest.mark.parametrize(
    "schema",
    [
        "offset long",
        "topic string, partition int",
        "headers array<struct<key: string, value: binary>>, key binary",
        "timestamp timestamp, value binary, offset long not null",
    ],
)
def test_any_columns_in_any_order(spark: SparkSession, data: Path, schema: str) -> None:
    frame = reading(spark, data, assign='{"orders": [1]}').schema(schema).load()
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    wanted = [names.index(name) for name in frame.columns]
    found = [
        tuple(
            [tuple(h) for h in cell] if name == "headers" and cell is not None else cell
            for name, cell in row.asDict().items()
        )
        for row in frame.collect()
    ]
    assert [tuple(map(plain, row)) for row in found] == [
        tuple(row[i] for i in wanted) for row in expected("orders", 1, 0, COUNT // 2)
    ]


def plain(cell: Any) -> Any:
    return bytes(cell) if isinstance(cell, bytearray) else cell


def test_what_is_not_asked_for_is_not_decoded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cordwood.kernels import Want

    wants = []
    access = PathAccess(str(data), verify=True)
    decode = FrameRun.columns

    def noting(self: FrameRun, want: Want) -> Any:
        wants.append(want)
        return decode(self, want)

    monkeypatch.setattr(FrameRun, "columns", noting)
    piece = planned(access, "orders", 0, 0, 10)
    schema = arrow_schema(
        spark_schema(include_headers=False)["offset", "partition"] if False else only("offset")
    )
    assert sum(batch.num_rows for batch in access.read([piece], schema, fail_on_data_loss=True)) == 10
    assert set(wants) == {Want.OFFSET}


def only(*names: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType([field for field in spark_schema(include_headers=True).fields if field.name in names])


def planned(access: PathAccess, topic: str, partition: int, start: int, end: int) -> Piece:
    standing = access.standing(topic, None)
    assert standing is not None
    return Piece(topic, partition, start, end, standing.topic_id, standing.partitions[partition].epoch)


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": "orders,refunds"}, {"orders": 1500, "refunds": 10}),
        ({"subscribePattern": "und"}, {"refunds": 10}),
        ({"subscribePattern": "orders$"}, {"orders": 1500}),
        ({"subscribePattern": "nothing"}, {}),
        ({"assign": '{"orders": [1], "refunds": [0]}'}, {"orders": 500, "refunds": 10}),
        ({"subscribe": "__internal_orders"}, {"__internal_orders": 3}),
    ],
)
def test_what_is_subscribed_to(
    spark: SparkSession, data: Path, options: dict[str, str], topics: dict[str, int]
) -> None:
    """A pattern is searched for anywhere in a name, and never finds internal topics."""
    found = reading(spark, data, **options).load().select("topic").collect()
    assert Counter(row.topic for row in found) == topics


# --- ranges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ({}, 0, COUNT),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 0, COUNT),
        ({"startingOffsets": '{"orders": {"0": 123}}', "endingOffsets": '{"orders": {"0": 456}}'}, 123, 456),
        ({"startingOffsets": '{"orders": {"0": -2}}', "endingOffsets": '{"orders": {"0": -1}}'}, 0, COUNT),
        ({"startingOffsets": '{"orders": {"0": 77}}', "endingOffsets": '{"orders": {"0": 77}}'}, 0, 0),
        ({"endingOffsets": '{"orders": {"0": 0}}'}, 0, 0),
    ],
)
def test_ranges_by_offset_are_exact(
    spark: SparkSession, data: Path, options: dict[str, str], start: int, end: int
) -> None:
    frame = reading(spark, data, assign='{"orders": [0]}', **options).load()
    assert offsets(frame) == list(range(start, end))


def first_at(timestamp: int) -> int:
    times = [row[3] for row in rows_of(0, 0, COUNT)]
    return next(offset for offset, time in enumerate(times) if time >= timestamp)


@pytest.mark.parametrize("after", [0, 1, 399, 430, 431, 5000, 7777])
def test_ranges_by_time_begin_and_end_at_the_first_record_at_or_after(
    spark: SparkSession, data: Path, after: int
) -> None:
    """Times go back and forth, and the range goes by offsets from there on, as with the Kafka connector."""
    frame = reading(
        spark,
        data,
        assign='{"orders": [0]}',
        startingTimestamp=str(NOW + after),
        endingOffsetsByTimestamp=f'{{"orders": {{"0": {NOW + after + 1000}}}}}',
    ).load()
    assert offsets(frame) == list(range(first_at(NOW + after), first_at(NOW + after + 1000)))


def test_a_time_after_the_last_record(spark: SparkSession, data: Path) -> None:
    """An error that names the partition, the end if that is asked for, and always the end for an end."""
    late = {"startingTimestamp": str(NOW * 2)}
    assert failure(lambda: reading(spark, data, **late).load().count()) == (
        f"startingTimestamp: partition 0 of topic orders has no record at or after timestamp {NOW * 2}"
    )
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert reading(spark, data, **late).load().count() == 0
    assert reading(spark, data, endingTimestamp=str(NOW * 2)).load().count() == 1500


# --- pushdown and plans ----------------------------------------------------------------------------


class CountedFiles(PosixFiles):
    """Counts the bytes read from files, by suffix."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()

    def open(self, path: str, mode: Any) -> Any:
        return CountedFile(super().open(path, mode), self.read, path.rpartition(".")[2])


class CountedFile:
    def __init__(self, file: Any, read: Counter[str], kind: str) -> None:
        self._file, self._read, self._kind = file, read, kind

    def __getattr__(self, name: str) -> Any:
        assert name not in ("map", "read_into")
        return getattr(self._file, name)

    def read_at(self, position: int, size: int) -> bytes:
        data: bytes = self._file.read_at(position, size)
        self._read[self._kind] += len(data)
        return data


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> CountedFiles:
    """What sources in this process read, planning and tasks alike."""
    files = CountedFiles()
    monkeypatch.setattr(path_access, "files_of", lambda path, config: files)
    return files


def read_all(made: PlannedReader) -> list[int]:
    """Do in this process what the driver and then the tasks do, and return the offsets."""
    found = []
    for partition in made.partitions():
        for batch in made.read(partition):
            found += batch.column("offset").to_pylist()
    return found


def pushing(path: Path, filters: list[Any], **options: str) -> PushingReader:
    given = {"path": str(path), "subscribe": "orders", **options}
    made = PushingReader(check_read_options(given, streaming=False), spark_schema(include_headers=False))
    assert list(made.pushFilters(filters)) == filters
    return made


def test_filters_are_pushed_and_checked_again(spark: SparkSession, data: Path) -> None:
    """Whatever a filter narrows, the rows are exactly those that match it."""
    everything = [tuple(row) for row in reading(spark, data).load().collect()]
    assert len(everything) == 1500
    moment = "timestamp '2023-11-14 22:13:25.123'"
    at = 1_700_000_005.123 - local()
    for condition, matches in {
        "offset >= 990 and partition = 0": lambda r: r[4] >= 990 and r[3] == 0,
        "offset in (3, 700) or partition = 5": lambda r: r[4] in (3, 700),
        "offset = 499": lambda r: r[4] == 499,
        "offset > 5 and offset < 9 and topic = 'orders'": lambda r: 5 < r[4] < 9,
        "topic = 'refunds'": lambda r: False,
        f"timestamp >= {moment}": lambda r: r[5].timestamp() >= at,
        f"timestamp < {moment}": lambda r: r[5].timestamp() < at,
        "partition <= 0 and offset <=> 7L": lambda r: r[3] == 0 and r[4] == 7,
    }.items():
        frame = reading(spark, data, pushFilters="true").load()
        found = [tuple(row) for row in frame.filter(condition).collect()]
        assert sorted(found, key=repr) == sorted(filter(matches, everything), key=repr), condition


def test_a_filter_does_not_narrow_the_next_query_over_the_same_frame(spark: SparkSession, data: Path) -> None:
    """Spark 4.3 takes the plan of a query with pushed filters for the next one without any."""
    frame = reading(spark, data).load()
    assert frame.filter("offset >= 990").count() == 10
    assert frame.count() == 1500
    late, early = frame.filter("offset >= 990"), frame.filter("offset < 5 or offset is null")
    assert late.crossJoin(early.select("key")).count() == 10 * 10


def local() -> float:
    """Rows come as naive times of the session's zone, which is UTC."""
    from datetime import UTC, datetime

    moment = datetime(2023, 11, 14)
    return moment.replace(tzinfo=UTC).timestamp() - moment.timestamp()


def test_a_pushed_filter_reads_fewer_bytes(data: Path, counted: CountedFiles) -> None:
    from datetime import UTC, datetime

    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

    assert len(read_all(pushing(data, []))) == 1500
    everything = counted.read["log"]
    late = datetime.fromtimestamp((NOW + 9_900) / 1000, UTC)
    for filters, least in (
        ([GreaterThanOrEqual(("offset",), 990)], 10),
        ([LessThan(("offset",), 5)], 10),
        ([EqualTo(("partition",), 1)], 500),
        ([EqualTo(("topic",), "refunds")], 0),
        ([GreaterThanOrEqual(("timestamp",), late), EqualTo(("partition",), 0)], 10),
    ):
        counted.read.clear()
        assert len(read_all(pushing(data, filters))) >= least
        assert counted.read["log"] < everything / 2, filters


def test_a_pushed_time_does_not_reach_below_where_the_query_starts(data: Path) -> None:
    from datetime import UTC, datetime

    from pyspark.sql.datasource import GreaterThan

    early = datetime.fromtimestamp((NOW + 1000) / 1000, UTC)
    told = '{"orders": {"0": 700, "1": 400}}'
    found = read_all(pushing(data, [GreaterThan(("timestamp",), early)], startingOffsets=told))
    assert sorted(found) == sorted([*range(700, 1000), *range(400, 500)])


def test_an_upper_bound_of_time_excludes_nothing(data: Path) -> None:
    """Records are not in the order of their times: one before a time may come last."""
    from datetime import UTC, datetime

    from pyspark.sql.datasource import LessThan, Not

    early = datetime.fromtimestamp((NOW + 1) / 1000, UTC)
    assert len(read_all(pushing(data, [LessThan(("timestamp",), early)]))) == 1500
    assert len(read_all(pushing(data, [Not(LessThan(("offset",), 5))]))) == 1500


def test_filters_work_where_pushdown_is_off(spark: SparkSession, data: Path) -> None:
    """A reader that takes filters would be refused there."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert reading(spark, data).load().filter("offset = 3").count() == 2
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.parametrize(
    ("options", "slices", "largest"),
    [
        ({}, 2, 1000),
        ({"minPartitions": "7"}, 7, 250),
        ({"minPartitions": "1"}, 2, 1000),
        ({"maxRecordsPerPartition": "100"}, 15, 100),
        ({"maxRecordsPerPartition": "400", "minPartitions": "20"}, 20, 100),
    ],
)
def test_plans_follow_their_options(data: Path, options: dict[str, str], slices: int, largest: int) -> None:
    given = {"path": str(data), "subscribe": "orders", **options}
    made = PlannedReader(check_read_options(given, streaming=False), only("offset"))
    pieces = ranges(made.partitions())
    assert len(pieces) == slices
    assert max(piece.end - piece.start for piece in pieces) <= largest
    assert sorted(read_all(made)) == sorted([*range(1000), *range(500)])


def test_large_ranges_are_cut_by_the_index(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece but the frame at its ends takes about the same bytes, and none is read twice."""
    monkeypatch.setattr(path_access, "PIECE_BYTES_MAX", 10_000)
    given = {"path": str(data), "assign": '{"orders": [0]}'}
    made = PlannedReader(check_read_options(given, streaming=False), spark_schema(include_headers=False))
    pieces = ranges(made.partitions())
    size = PathAccess(str(data), verify=True)._directory.readable("orders", 0).size()
    assert len(pieces) == -(-size // 10_000)
    assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
    sizes = [piece.end - piece.start for piece in pieces]
    assert max(sizes) < 2 * min(sizes)
    assert read_all(made) == list(range(COUNT))


def test_small_topics_with_files_of_their_own_share_tasks(tmp_path: Path) -> None:
    """Each record is read once, and what is lost is named by topic, partition and offsets as before."""
    with cordwood.open(tmp_path / "data", sync="never") as log:
        for number in range(48):
            fill(log.topic(f"t{number:02}", 1), 0, 5)
    given = {"path": str(tmp_path / "data"), "subscribePattern": "^t"}
    made = PlannedReader(check_read_options(given, streaming=False), only("topic", "offset"))
    planned = made.partitions()
    assert [len(part.pieces) for part in planned] == [3] * 16
    rows = [row for part in planned for batch in made.read(part) for row in batch.to_pylist()]
    assert rows == [{"topic": f"t{n:02}", "offset": offset} for n in range(48) for offset in range(5)]
    with cordwood.open(tmp_path / "data") as log:
        log.topic("t04").advance_log_start(0, 3)
    with pytest.raises(RecordsLost, match="offsets 0 up to 3 of partition 0 of topic t04 are lost"):
        list(made.read(planned[1]))


def test_the_last_offsets_of_a_large_topic_cost_little(tmp_path: Path, counted: CountedFiles) -> None:
    """Nothing is read of the segments before: of 64 MB only the tail, and the indexes it takes to find it."""
    with cordwood.open(tmp_path / "data", sync="never") as log:
        topic = log.topic("orders", 1, {"segment.bytes": str(8 << 20)})
        batch = [(None, bytes(1000), (), NOW)] * 1000
        for _ in range(64):
            topic.append_many(batch)
    given = {
        "path": str(tmp_path / "data"),
        "subscribe": "orders",
        "startingOffsets": '{"orders": {"0": 54000}}',
    }
    made = PlannedReader(check_read_options(given, streaming=False), only("offset", "value"))
    assert read_all(made) == list(range(54_000, 64_000))
    print(f"bytes read: {dict(counted.read)}")
    assert counted.read["log"] < 14 << 20
    assert counted.read["idx"] + counted.read["timeidx"] < 200_000
    assert counted.read.total() < 15 << 20


# --- beside a writer -------------------------------------------------------------------------------


def test_a_query_reads_up_to_the_mark_of_a_live_writer(
    spark: SparkSession, own: tuple[Path, cordwood.Log, cordwood.Topic]
) -> None:
    path, _, topic = own
    frame = reading(spark, path).load()
    assert offsets(frame) == list(range(300))
    fill(topic, 0, 50, start=300)
    assert offsets(reading(spark, path).load()) == list(range(350))
    # A frame that was planned stays as it was: Spark asks the source once for each that is loaded.
    assert offsets(frame) == list(range(300))


def test_what_is_not_synced_is_not_seen(spark: SparkSession, tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data", sync="every:1000") as log:
        topic = log.topic("orders")
        fill(topic, 0, 10)
        assert topic.log_end_offset() == 10
        assert reading(spark, tmp_path / "data").load().count() == 0


def test_a_range_below_the_log_start_is_lost(
    spark: SparkSession, own: tuple[Path, cordwood.Log, cordwood.Topic]
) -> None:
    path, _, topic = own
    topic.advance_log_start(0, 120)
    options = {"startingOffsets": '{"orders": {"0": 100}}'}
    assert failure(lambda: reading(spark, path, **options).load().count()) == (
        "offsets 100 up to 120 of partition 0 of topic orders are lost: the log starts at 120 now; "
        "with failOnDataLoss=false the query continues without them"
    )
    frame = reading(spark, path, failOnDataLoss="false", **options).load()
    assert offsets(frame) == list(range(120, 300))


def task(path: Path, piece: Piece, **options: str) -> list[int]:
    """Read a slice as a task does."""
    given = {"path": str(path), "subscribe": "orders", **options}
    made = PlannedReader(check_read_options(given, streaming=False), only("offset"))
    found = []
    for batch in made.read(Slice((piece,), Build.here())):
        found += batch.column("offset").to_pylist()
    return found


def test_a_task_decides_about_what_went_away_after_planning(
    own: tuple[Path, cordwood.Log, cordwood.Topic],
) -> None:
    path, _, topic = own
    piece = planned(PathAccess(str(path), verify=True), "orders", 0, 100, 300)
    topic.advance_log_start(0, 150)
    with pytest.raises(RecordsLost, match="offsets 100 up to 150 of partition 0 of topic orders"):
        task(path, piece)
    assert task(path, piece, failOnDataLoss="false") == list(range(150, 300))
    topic.truncate(0, 250)
    after = piece._replace(start=150)
    with pytest.raises(RecordsLost, match=r"offsets 250 up to 300 .* truncated at 250"):
        task(path, after)
    assert task(path, after, failOnDataLoss="false") == list(range(150, 250))
    fill(topic, 0, 60, start=250)
    with pytest.raises(RecordsLost, match=r"offsets 250 up to 300 .* truncated at 250"):
        task(path, after)
    assert task(path, after._replace(end=250)) == list(range(150, 250))


def test_a_task_whose_topic_is_deleted_or_made_again(own: tuple[Path, cordwood.Log, cordwood.Topic]) -> None:
    """Records of the new topic are not for a query that planned to read the old one."""
    path, log, _ = own
    piece = planned(PathAccess(str(path), verify=True), "orders", 0, 0, 100)
    log.data_directory.topics.delete("orders")
    for sentence in ("offsets 0 up to 100 .* the topic was deleted", "the topic was deleted and made again"):
        with pytest.raises(RecordsLost, match=sentence):
            task(path, piece)
        assert task(path, piece, failOnDataLoss="false") == []
        fill(log.topic("orders", 1, SMALL), 0, 200)


def test_a_log_start_that_moves_while_a_task_reads(
    own: tuple[Path, cordwood.Log, cordwood.Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole segments go away under the reader: it fails, or goes on behind them."""
    path, _, topic = own
    monkeypatch.setattr(path_access, "WINDOW_BYTES", 1000)
    for fail, moved_to in ((False, 150), (True, 250)):
        access = PathAccess(str(path), verify=True)
        start = topic.log_start_offset()
        piece = planned(access, "orders", 0, start, 300)
        batches = access.read([piece], arrow_schema(only("offset")), fail_on_data_loss=fail)
        first = next(batches).column("offset").to_pylist()
        topic.advance_log_start(0, moved_to)
        if fail:
            with pytest.raises(RecordsLost, match="up to 250 of partition 0"):
                list(batches)
        else:
            rest = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
            assert rest[-1] == 299
            assert sorted(first + rest) == first + rest
            assert set(range(moved_to, 300)) <= set(first + rest)


def test_a_truncation_while_a_task_reads_is_found_though_the_log_grew_again(
    own: tuple[Path, cordwood.Log, cordwood.Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What took the place of the records that were planned is none of this query's."""
    path, _, topic = own
    monkeypatch.setattr(path_access, "WINDOW_BYTES", 1000)
    access = PathAccess(str(path), verify=True)
    schema = arrow_schema(only("offset"))
    batches = access.read([planned(access, "orders", 0, 0, 300)], schema, fail_on_data_loss=True)
    next(batches)
    topic.truncate(0, 200)
    fill(topic, 0, 150, start=200)
    with pytest.raises(RecordsLost, match="offsets 200 up to 300 of partition 0 of topic orders"):
        list(batches)


# --- errors ----------------------------------------------------------------------------------------


def test_wrong_options_fail_at_load(spark: SparkSession, data: Path) -> None:
    for options, sentence in (
        ({"startingOffset": "earliest"}, "unknown option startingoffset; did you mean startingOffsets?"),
        ({"minPartitions": "none"}, "minPartitions='none': expected a whole number from 1 on"),
        ({"subscribePattern": "a", "subscribe": "b"}, "one of subscribe, subscribePattern, assign"),
        ({"kafka.bootstrap.servers": "localhost:1"}, "path and kafka.bootstrap.servers are both given"),
    ):
        assert failure(lambda o=options: reading(spark, data, **o).load()).startswith(sentence)
    elsewhere = spark.read.format("cordwood").options(path="s3a://bucket/data", subscribe="orders")
    assert failure(elsewhere.load).startswith("s3a://bucket/data is an address of s3a, but a data directory")
    without = spark.read.format("cordwood").option("path", str(data))
    assert failure(without.load).endswith("says what to read: none is given")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "nothing"}, "there is no topic nothing"),
        ({"assign": '{"orders": [7]}'}, "topic orders has 2 partitions, and no partition 7"),
        (
            {"assign": '{"orders": [1]}', "startingOffsets": '{"orders": {"1": 501}}'},
            "startingOffsets: partition 1 of topic orders has offsets 0 up to 500, and 501 is past the end",
        ),
        (
            {"assign": '{"orders": [1]}', "endingOffsets": '{"orders": {"1": 600}}'},
            "endingOffsets: partition 1 of topic orders has offsets 0 up to 500, and 600 is past the end",
        ),
        (
            {"startingOffsets": '{"orders": {"0": 1}}'},
            "startingOffsets leaves out partition 1 of topic orders",
        ),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch query"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(
    spark: SparkSession, data: Path, options: dict[str, str], sentence: str
) -> None:
    assert failure(lambda: reading(spark, data, **options).load().count()) == sentence


def test_no_such_directory(spark: SparkSession, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert failure(lambda: reading(spark, missing).load().count()) == f"there is no data directory {missing}"
    assert not missing.exists()
    (tmp_path / "other").mkdir()
    sentence = f"{tmp_path / 'other'} is not a data directory"
    assert failure(lambda: reading(spark, tmp_path / "other").load().count()) == sentence


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("ofset long", "format cordwood has no column ofset; did you mean offset?"),
        ("offset int", "column offset has type bigint, not int"),
        ("value string", "column value has type binary, not string"),
        ("key binary not null", "column key may be null, which NOT NULL denies"),
        (
            "headers array<struct<key: string, value: binary>> not null",
            "column headers may be null, which NOT NULL denies",
        ),
    ],
)
def test_a_schema_that_is_not_there(spark: SparkSession, data: Path, schema: str, sentence: str) -> None:
    assert failure(lambda: reading(spark, data).schema(schema).load().count()) == sentence


def test_a_corrupt_segment_names_file_position_and_offsets(
    spark: SparkSession, own: tuple[Path, cordwood.Log, cordwood.Topic]
) -> None:
    """Outside of the range it is nobody's business."""
    path, log, topic = own
    topic.roll()
    log.close()
    (first, *_) = sorted(path.rglob("*.log"), key=lambda file: (file.parent.name != "segments", file.name))
    with first.open("r+b") as file:
        file.seek(500)
        byte = file.read(1)
        file.seek(500)
        file.write(bytes([byte[0] ^ 1]))
    sentence = failure(lambda: reading(spark, path).load().count())
    assert sentence.startswith(f"{first} at byte ")
    assert "are refused, reading can go on at" in sentence
    frame = reading(spark, path, startingOffsets='{"orders": {"0": 200}}').load()
    assert offsets(frame) == list(range(200, 300))


def test_checksums_are_compared_unless_told_otherwise(
    own: tuple[Path, cordwood.Log, cordwood.Topic],
) -> None:
    path, log, topic = own
    piece = planned(PathAccess(str(path), verify=True), "orders", 0, 0, 20)
    topic.roll()
    log.close()
    (first, *_) = sorted(path.rglob("segments/*.log"))
    content = bytearray(first.read_bytes())
    at = content.index(b"value 0 of 0")
    content[at] ^= 1
    first.write_bytes(content)
    with pytest.raises(CorruptRange):
        task(path, piece)
    assert task(path, piece, verify="off") == list(range(20))


def test_an_executor_that_does_not_see_the_directory_says_where_it_is(
    own: tuple[Path, cordwood.Log, cordwood.Topic],
) -> None:
    path, _, _ = own
    piece = planned(PathAccess(str(path), verify=True), "orders", 0, 0, 20)
    with pytest.raises(
        DirectoryRefused, match=r"host \S+ cannot see /elsewhere/data, .*kafka.bootstrap.servers"
    ):
        task(Path("/elsewhere/data"), piece)


def test_a_task_with_another_cordwood_refuses(
    own: tuple[Path, cordwood.Log, cordwood.Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = own
    piece = planned(PathAccess(str(path), verify=True), "orders", 0, 0, 20)
    assert len(task(path, piece)) == 20
    made = PlannedReader(check_read_options({"path": str(path), "subscribe": "orders"}), only("offset"))
    other = Slice((piece,), Build("0.0.1", compiled=False))
    with pytest.raises(CordwoodError, match=r"this executor has cordwood .*, but the driver has 0.0.1 with"):
        list(made.read(other))


# --- SQL and other ways in -------------------------------------------------------------------------


def test_sql_reads_a_view(spark: SparkSession, data: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW o USING cordwood OPTIONS (path '{data}', subscribe 'orders')"
    )
    assert spark.sql("SELECT count(*), max(offset) FROM o WHERE partition = 1").collect() == [(500, 499)]


def test_sql_selects_from_and_inserts_into_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """Spark 4.3 keeps the options of CREATE TABLE from a Python source; they come with the schema."""
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders", partitions=2).append_many([(b"k", b"%d" % number) for number in range(5)])
    spark.sql(f"CREATE TABLE orders_table USING cordwood OPTIONS (path '{data}', subscribe 'orders')")
    try:
        assert spark.sql("SELECT count(*) FROM orders_table").collect() == [(5,)]
        spark.sql(
            "INSERT INTO orders_table (key, value) VALUES (X'61', binary('six')), (NULL, binary('seven'))"
        )
        spark.sql("INSERT INTO orders_table BY NAME SELECT binary('b') AS key, binary('eight') AS value")
        found = spark.sql("SELECT string(value) FROM orders_table WHERE offset >= 0").collect()
        assert sorted(row[0] for row in found) == ["0", "1", "2", "3", "4", "eight", "seven", "six"]
        few = 'SELECT count(*) FROM orders_table WITH (startingOffsets = \'{"orders": {"0": -1}}\')'
        assert "startingOffsets" in failure(lambda: spark.sql(few).collect())
        sentence = failure(lambda: spark.sql("INSERT OVERWRITE orders_table SELECT * FROM orders_table"))
        assert "overwritten" in sentence
    finally:
        spark.sql("DROP TABLE orders_table")
    # What Spark calls external it leaves alone.
    with cordwood.open(data, read_only=True) as log:
        assert log.scan("orders").reader().read_all().num_rows == 8


def test_a_table_made_with_a_topic_alone_reads_and_writes_it(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders")
    spark.sql(f"CREATE TABLE one_topic USING cordwood OPTIONS (path '{data}', topic 'orders')")
    try:
        spark.sql("INSERT INTO one_topic (value) VALUES (binary('first'))")
        assert spark.sql("SELECT string(value), topic FROM one_topic").collect() == [("first", "orders")]
    finally:
        spark.sql("DROP TABLE one_topic")


def test_wrong_options_of_a_table_fail_when_it_is_made(spark: SparkSession, tmp_path: Path) -> None:
    sentence = failure(
        lambda: spark.sql(f"CREATE TABLE t USING cordwood OPTIONS (path '{tmp_path}', subscibe 'o')")
    )
    assert "did you mean subscribe?" in sentence


def test_the_guide_does_what_it_shows(
    spark: SparkSession, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comment line after a print is its output."""
    own_data = shutil.copytree(data, tmp_path / "data")
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    blocks = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    names = {"spark": spark, "data": str(own_data)}
    for block in blocks:
        exec(compile(block, "docs/spark.md", "exec"), names)
        promised = [line[2:] for line in block.splitlines() if line.startswith("# ")]
        assert capsys.readouterr().out.splitlines() == promised
    assert len(blocks) >= 4


def test_the_sql_of_the_guide_runs_as_it_is_written(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """Each statement, with another path, does what the one before it made possible."""
    own_data = shutil.copytree(data, tmp_path / "data")
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    (block,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    statements = [each.strip() for each in block.replace("/var/lib/cordwood", str(own_data)).split(";")]
    try:
        answers = [spark.sql(statement).collect() for statement in statements if statement]
        assert [row for rows in answers for row in rows] == [(COUNT + COUNT // 2,)]
        added = spark.sql("SELECT string(key), string(value) FROM orders WHERE string(value) = 'first'")
        assert added.collect() == [("a", "first")]
    finally:
        spark.sql("DROP TABLE IF EXISTS orders")


def test_the_commands_of_the_guide_print_what_it_says(
    spark: SparkSession, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, so that they find a session that is there."""
    shutil.copytree(data, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    compared = 0
    for command, promised in examples(page):
        if command.startswith("cordwood "):
            result = command_line(*shlex.split(command)[1:])
            assert result.exit_code == 0, result.output
            assert page_matches(promised, result.output), (
                f"$ {command}\n{result.output}\ninstead of\n{promised}"
            )
            compared += 1
        else:
            subprocess.run(["bash", "-c", command], check=True)
    assert compared >= 4


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python apart from this process and its Spark."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
    )


@pytest.mark.parametrize("missing", ["numpy", "pyarrow"])
def test_without_numpy_or_pyarrow_the_package_imports_and_says_what_it_lacks(missing: str) -> None:
    """An import that fails would hide every other Python source too."""
    done = run(
        f"""
        import sys
        sys.modules[{missing!r}] = None
        import pyspark_cordwood
        assert pyspark_cordwood.DefaultSource.name() == "cordwood"
        try:
            pyspark_cordwood.DefaultSource({{}})
        except ImportError as error:
            print(error)
        """
    )
    assert done.stdout.startswith(f"format cordwood needs {missing}, which this Python cannot import"), (
        done.stderr
    )


def test_importing_the_package_imports_nothing_of_ours() -> None:
    done = run(
        "import sys, pyspark_cordwood; print([m for m in sys.modules if m.split('.')[0] == 'cordwood'])"
    )
    assert done.stdout == "[]\n", done.stderr


SESSION = """
    from pyspark.sql import SparkSession
    spark = (
        SparkSession.builder.{where}.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
        {config}.getOrCreate()
    )
"""


def test_a_directory_larger_than_the_memory_of_a_task(tmp_path: Path) -> None:
    """``spark.executor.pyspark.memory`` limits address space, so tasks map nothing: 540 MiB under 512."""
    with cordwood.open(tmp_path / "data", sync="never") as log:
        topic = log.topic("orders", 1, {"segment.bytes": str(1 << 30), "max.message.bytes": str(2 << 20)})
        batch = [(None, os.urandom(1 << 20), (), NOW)]
        for _ in range(540):
            topic.append_many(batch)
        topic.roll()
    config = (
        f'.config("spark.executor.pyspark.memory", "512m").config("spark.sql.warehouse.dir", "{tmp_path}")'
    )
    done = run(
        SESSION.format(where='master("local[1]")', config=config)
        + f"""
    reader = spark.read.format("cordwood").options(path={str(tmp_path / "data")!r}, subscribe="orders")
    print(reader.schema("offset long").load().count())
    """
    )
    assert done.stdout.splitlines()[-1:] == ["540"], done.stdout + done.stderr[-3000:]


def test_spark_connect(data: Path, tmp_path: Path) -> None:
    for module in ("grpc", "grpc_status", "google.rpc"):
        pytest.importorskip(module)
    config = f'.config("spark.sql.warehouse.dir", "{tmp_path}")'
    done = run(
        SESSION.format(where='remote("local[1]")', config=config)
        + f"""
    frame = spark.read.format("cordwood").option("path", {str(data)!r}).option("subscribe", "orders").load()
    print(type(spark).__module__, frame.filter("offset >= 490").count())
    spark.stop()
    """
    )
    assert done.stdout.splitlines()[-1:] == ["pyspark.sql.connect.session 520"], (
        done.stdout + done.stderr[-3000:]
    )
