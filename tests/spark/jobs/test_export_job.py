"""``cordwood pipeline export``: what readers find, what a re-run adds, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.commands import refused, run, said
from support.filling import NOW, SMALL, expected, fill, rows

import cordwood
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.errors import CordwoodError, DirectoryLocked, DirectoryRefused, MetadataDamaged
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.host import process
from cordwood.spark.access.access import Ends, TopicState
from cordwood.spark.jobs.export import files as export_files
from cordwood.spark.jobs.export import job as job
from cordwood.spark.jobs.export.files import NO_DATE, Written
from cordwood.spark.jobs.export.job import Do, ExportJobReport, ExportOptions, ExportTask, run_export
from cordwood.spark.jobs.export.plan import Manifest, plan_next
from cordwood.spark.jobs.log_place import LogPlace

DAY_MS = 86_400_000
COUNT = 300


@pytest.fixture
def log(tmp_path: Path) -> Iterator[cordwood.Log]:
    with cordwood.open(tmp_path / "data") as opened:
        yield opened


def here(tasks: Sequence[ExportTask], do: Do) -> list[list[Written]]:
    """Run tasks in this process, for what is not about Spark."""
    return [do(task) for task in tasks]


def exported(tmp_path: Path, *topics: str, **options: Any) -> ExportJobReport:
    """Export with tasks in this process."""
    asked = ExportOptions(LogPlace(path=str(tmp_path / "data")), str(tmp_path / "out"), topics, **options)
    return run_export(asked, here, PosixFiles())


def names(to: Path) -> list[str]:
    return sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.suffix == ".parquet")


def by_duckdb(to: Path, columns: str = '"offset"') -> list[Any]:
    """Return what DuckDB finds, in the order of offsets."""
    query = f"SELECT {columns} FROM read_parquet('{to}/**/*.parquet', hive_partitioning=true)"
    found = duckdb.connect().execute(f'{query} ORDER BY topic, partition, "offset"').fetchall()
    return [row[0] if len(row) == 1 else row for row in found]


# --- readers ---------------------------------------------------------------------------------------


def test_every_reader_finds_every_record_once_with_topic_partition_and_date(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    """Null keys, tombstones, headers and two topics; what Spark reads is what the source gives."""
    orders, refunds = log.topic("orders", 2, SMALL), log.topic("refunds")
    fill(orders, 0, COUNT)
    fill(orders, 1, 100)
    fill(refunds, 0, 10)
    fill(log.topic("__internal"), 0, 3)
    to = tmp_path / "out"
    text = said("pipeline", "export", "--data", tmp_path / "data", "--to", to)
    assert text.splitlines()[-1] == f"exported 410 records in 3 files to {to}"
    wanted = [
        *(expected("orders", 0, 0, COUNT) + expected("orders", 1, 0, 100)),
        *expected("refunds", 0, 0, 10),
    ]
    assert by_spark(spark.read.parquet(str(to))) == wanted
    # Times are UTC in all of them; DuckDB shows them in the zone of the session.
    found = by_duckdb(
        to, 'key, value, topic, partition, "offset", epoch_ms(timestamp), timestampType, headers'
    )
    assert [(*row[:5], moment(row[5]), row[6], headers(row[7])) for row in found] == wanted
    frame = pd.read_parquet(to).sort_values(["topic", "partition", "offset"])
    in_pandas = zip(
        frame.key,
        frame.value,
        frame.topic,
        frame.partition.astype(int),
        frame.offset,
        [time.to_pydatetime().replace(tzinfo=None) for time in frame.timestamp],
        frame.timestampType,
        map(headers, frame.headers),
        strict=True,
    )
    assert list(in_pandas) == wanted
    day = moment(NOW).date()
    assert {row.date for row in spark.read.parquet(str(to)).select("date").distinct().collect()} == {day}
    assert set(by_duckdb(to, "date")) == {day}
    assert set(frame.date.astype(str)) == {day.isoformat()}


def by_spark(frame: DataFrame) -> list[tuple[Any, ...]]:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    return rows(frame.select(names))


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)


def headers(found: Any) -> list[tuple[str, bytes | None]] | None:
    return None if found is None else [(each["key"], each["value"]) for each in found]


def test_killed_between_steps_and_run_again_spark_reads_each_record_once(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    """The sweep over all steps is in test_export_crashes, where DuckDB and pandas read."""
    topic = log.topic("orders", 2)
    fill(topic, 0, 20)
    fill(topic, 1, 20)

    def killed(tasks: Sequence[ExportTask], do: Do) -> list[list[Written]]:
        do(tasks[0])
        raise KeyboardInterrupt

    options = ExportOptions(LogPlace(path=str(tmp_path / "data")), str(tmp_path / "out"))
    with pytest.raises(KeyboardInterrupt):
        run_export(options, killed, PosixFiles())
    assert by_spark(spark.read.parquet(options.to)) == expected("orders", 0, 0, 20)
    fill(topic, 0, 5, 20)
    report = job.export(spark, options)
    assert report.completed
    assert [each.records for each in report.topics] == [45]
    wanted = expected("orders", 0, 0, 25) + expected("orders", 1, 0, 20)
    assert by_spark(spark.read.parquet(options.to)) == wanted
    assert by_duckdb(tmp_path / "out") == [row[4] for row in wanted]


def test_records_are_in_the_directory_of_their_date_in_utc(tmp_path: Path, log: cordwood.Log) -> None:
    """Before 1970, at midnight, and where no date can say it, which is null to every reader."""
    times = {
        0: "1970-01-01",
        -1: "1969-12-31",
        DAY_MS - 1: "1970-01-01",
        DAY_MS: "1970-01-02",
        951_782_400_000: "2000-02-29",
        253_402_300_799_999: "9999-12-31",
        253_402_300_800_000: NO_DATE,
        9_000_000_000_000_000: NO_DATE,
    }
    # Records from the far future are refused unless the topic allows them.
    topic = log.topic("orders", config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    topic.append_many([(None, b"v", None, time) for time in times])
    exported(tmp_path)
    found = {name.split("/date=")[1].split("/")[0] for name in names(tmp_path / "out")}
    assert found == set(times.values())
    dates = [None if text == NO_DATE else date.fromisoformat(text) for text in times.values()]
    assert by_duckdb(tmp_path / "out", "date") == dates


@pytest.mark.parametrize(("open_max", "pending_max"), [(1, 1), (3, 1), (3, 2000), (128, 1 << 26)])
def test_a_slice_of_many_dates_is_written_with_few_files_open(
    tmp_path: Path, log: cordwood.Log, monkeypatch: pytest.MonkeyPatch, open_max: int, pending_max: int
) -> None:
    """However little may be open or wait in memory, and in whatever order the dates come."""
    monkeypatch.setattr(export_files, "OPEN_FILES_MAX", open_max)
    monkeypatch.setattr(export_files, "PENDING_BYTES_MAX", pending_max)
    topic = log.topic("orders")
    for start in range(0, 60, 10):
        sent = [(None, b"%d" % i, None, NOW + i * 7 % 10 * DAY_MS) for i in range(start, start + 10)]
        topic.append_many(sent)
    report = exported(tmp_path)
    assert (report.topics[0].records, report.topics[0].files) == (60, 10)
    assert by_duckdb(tmp_path / "out", '"offset", value') == [(i, b"%d" % i) for i in range(60)]
    for name in names(tmp_path / "out"):
        offsets = pq.read_table(tmp_path / "out" / name, partitioning=None).column("offset").to_pylist()
        assert offsets == sorted(offsets)


def test_files_are_compressed_and_have_large_row_groups(tmp_path: Path, log: cordwood.Log) -> None:
    topic = log.topic("orders")
    for _ in range(10):
        topic.append_many([(b"k", b"v" * 100, None, NOW)] * 1000)
    exported(tmp_path)
    (name,) = names(tmp_path / "out")
    about = pq.ParquetFile(tmp_path / "out" / name).metadata
    assert (about.num_rows, about.num_row_groups) == (10_000, 1)
    assert about.row_group(0).column(0).compression == "ZSTD"
    assert about.row_group(0).column(0).statistics.max == 9_999


# --- again and again -------------------------------------------------------------------------------


def test_a_re_run_adds_only_what_came_since(spark: SparkSession, tmp_path: Path, log: cordwood.Log) -> None:
    topic = log.topic("orders", 2)
    fill(topic, 0, 20)
    command = ("pipeline", "export", "--data", tmp_path / "data", "-t", "orders", "--to", tmp_path / "out")
    first = json.loads(said(*command, "--json"))
    assert first["topics"] == [
        {
            "topic": "orders",
            "records": 20,
            "bytes": first["topics"][0]["bytes"],
            "files": 1,
            "next_offsets": {"0": 20, "1": 0},
        }
    ]
    before = {name: (tmp_path / "out" / name).stat() for name in names(tmp_path / "out")}
    again = json.loads(said(*command, "--json"))
    assert (again["topics"][0]["records"], again["topics"][0]["files"]) == (0, 0)
    assert {name: (tmp_path / "out" / name).stat() for name in names(tmp_path / "out")} == before
    fill(topic, 0, 5, 20)
    fill(topic, 1, 7)
    log.alter_topic("orders", partitions=3)
    log.topic("orders").append_many([(None, b"new", None, NOW)], partition=2)
    third = json.loads(said(*command, "--json"))
    assert third["topics"][0]["next_offsets"] == {"0": 25, "1": 7, "2": 1}
    day = f"date={moment(NOW).date()}"
    assert names(tmp_path / "out") == [
        f"topic=orders/partition=0/{day}/{0:020}-{20:020}.parquet",
        f"topic=orders/partition=0/{day}/{20:020}-{25:020}.parquet",
        f"topic=orders/partition=1/{day}/{0:020}-{7:020}.parquet",
        f"topic=orders/partition=2/{day}/{0:020}-{1:020}.parquet",
    ]
    assert by_duckdb(tmp_path / "out") == [*range(25), *range(7), 0]


def test_topics_that_are_not_exported_this_time_keep_their_place(tmp_path: Path, log: cordwood.Log) -> None:
    fill(log.topic("a"), 0, 3)
    fill(log.topic("b"), 0, 4)
    exported(tmp_path, "a")
    exported(tmp_path, "b")
    fill(log.topic("a"), 0, 2, 3)
    report = exported(tmp_path)
    assert [(each.topic, each.records) for each in report.topics] == [("a", 2), ("b", 0)]
    log.delete_topic("b")
    assert [each.topic for each in exported(tmp_path).topics] == ["a"]


def test_a_plan_that_the_manifest_has_is_not_done_again(tmp_path: Path, log: cordwood.Log) -> None:
    """Killed between the two, the records may be gone from the log by the time it is run again."""
    topic = log.topic("orders")
    fill(topic, 0, 20)
    own = tmp_path / "out" / "_cordwood"

    def noting(tasks: Sequence[ExportTask], do: Do) -> list[list[Written]]:
        (tmp_path / "plan").write_bytes((own / "plan.json").read_bytes())
        return here(tasks, do)

    options = ExportOptions(LogPlace(path=str(tmp_path / "data")), str(tmp_path / "out"))
    run_export(options, noting, PosixFiles())
    (own / "plan.json").write_bytes((tmp_path / "plan").read_bytes())
    topic.roll()
    topic.advance_log_start(0, 20)
    report = exported(tmp_path)
    assert not report.completed
    assert by_duckdb(tmp_path / "out") == list(range(20))
    assert not (own / "plan.json").exists()


def test_by_address_the_same_records_and_the_same_manifest(spark: SparkSession, tmp_path: Path) -> None:
    """An export by address goes on by path, and the other way round: a topic's id is the same."""
    to = tmp_path / "out"
    with cordwood.Broker(tmp_path / "data") as broker:
        said("topic", "create", "orders", "--partitions", 2, "--bootstrap", broker.bootstrap)
        for partition in range(2):
            sent = "".join(f"{n}\n" for n in range(5))
            said("produce", "-t", "orders", "-p", partition, "--bootstrap", broker.bootstrap, stdin=sent)
        text = said("pipeline", "export", "-t", "orders", "--bootstrap", broker.bootstrap, "--to", to)
        assert "exported 10 records in 2 files" in text
        said("produce", "-t", "orders", "-p", 0, "--bootstrap", broker.bootstrap, stdin="5\n")
        exported(tmp_path)
        said("produce", "-t", "orders", "-p", 0, "--bootstrap", broker.bootstrap, stdin="6\n")
        place = LogPlace(bootstrap=broker.bootstrap)
        report = run_export(ExportOptions(place, str(to)), here, PosixFiles())
        assert [each.records for each in report.topics] == [1]
        assert by_duckdb(to, '"offset", value') == [
            *((n, b"%d" % n) for n in range(7)),
            *((n, b"%d" % n) for n in range(5)),
        ]
        sentence = refused(
            "pipeline", "export", "-t", "nope", "--bootstrap", broker.bootstrap, "--to", tmp_path / "other"
        )
        assert sentence.startswith("there is no topic nope")


def test_by_address_files_are_bounded_by_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "OFFSETS_MAX_BY_ADDRESS", 4)
    with cordwood.Broker(tmp_path / "data") as broker:
        said("topic", "create", "orders", "--bootstrap", broker.bootstrap)
        sent = "".join(f"{n}\n" for n in range(10))
        said("produce", "-t", "orders", "--bootstrap", broker.bootstrap, stdin=sent)
        place = LogPlace(bootstrap=broker.bootstrap)
        run_export(ExportOptions(place, str(tmp_path / "out")), here, PosixFiles())
    assert len(names(tmp_path / "out")) == 3
    assert by_duckdb(tmp_path / "out") == list(range(10))


# --- what is not there any more --------------------------------------------------------------------


def test_a_topic_made_again_is_named_and_with_skip_lost_added_beside_the_old(
    tmp_path: Path, log: cordwood.Log
) -> None:
    """The new one has the same offsets, and often the same dates: neither replaces a file of the other."""
    fill(log.topic("orders"), 0, 20)
    exported(tmp_path)
    log.delete_topic("orders")
    fill(log.topic("orders"), 0, 20)
    with pytest.raises(CordwoodError, match=r"topic orders .* deleted and made again.*with --skip-lost"):
        exported(tmp_path)
    assert len(names(tmp_path / "out")) == 1
    report = exported(tmp_path, skip_lost=True)
    assert report.topics[0].records == 20
    assert "was deleted and made again" in report.lost[0]
    assert by_duckdb(tmp_path / "out") == sorted([*range(20), *range(20)])
    assert exported(tmp_path).topics[0].records == 0


def test_a_truncation_below_what_is_exported_is_named(tmp_path: Path, log: cordwood.Log) -> None:
    """With --skip-lost it goes on above what was exported: an offset never stands for two records."""
    topic = log.topic("orders")
    fill(topic, 0, 20)
    exported(tmp_path)
    topic.truncate(0, 10)
    fill(topic, 0, 15, 10)
    sentence = (
        "offsets 10 up to 20 of partition 0 of topic orders are lost: the partition was truncated at 10 "
        "after it was exported up to 20; with --skip-lost the export continues at the next record"
    )
    with pytest.raises(CordwoodError) as caught:
        exported(tmp_path)
    assert str(caught.value) == sentence
    exported(tmp_path, skip_lost=True)
    assert by_duckdb(tmp_path / "out") == list(range(25))
    topic.truncate(0, 25)
    fill(topic, 0, 5, 25)
    exported(tmp_path)
    assert by_duckdb(tmp_path / "out") == list(range(30))


def test_records_removed_before_they_were_exported_are_named(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    topic = log.topic("orders")
    fill(topic, 0, 20)
    command = ("pipeline", "export", "--data", tmp_path / "data", "--to", tmp_path / "out")
    said(*command)
    fill(topic, 0, 20, 20)
    topic.advance_log_start(0, 30)
    assert refused(*command) == (
        "offsets 20 up to 30 of partition 0 of topic orders are lost: the log starts at 30 now; "
        "with --skip-lost the export continues at the next record"
    )
    text = said(*command, "--skip-lost")
    assert text.startswith("skipped: offsets 20 up to 30 of partition 0 of topic orders are lost")
    assert by_duckdb(tmp_path / "out") == [*range(20), *range(30, 40)]


def test_what_a_killed_run_planned_and_is_gone_is_named_and_can_be_skipped(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    """A truncation between the two runs: files of dates that are no more must not stay beside new ones."""
    topic = log.topic("orders")
    topic.append_many([(None, b"old", None, NOW)] * 10 + [(None, b"old", None, NOW + DAY_MS)] * 10)

    def killed(tasks: Sequence[ExportTask], do: Do) -> list[list[Written]]:
        here(tasks, do)
        raise KeyboardInterrupt

    options = ExportOptions(LogPlace(path=str(tmp_path / "data")), str(tmp_path / "out"))
    with pytest.raises(KeyboardInterrupt):
        run_export(options, killed, PosixFiles())
    assert len(names(tmp_path / "out")) == 2
    topic.truncate(0, 10)
    topic.append_many([(None, b"new", None, NOW + 2 * DAY_MS)] * 15)
    command = ("pipeline", "export", "--data", tmp_path / "data", "--to", tmp_path / "out")
    assert "truncated at 10; with --skip-lost" in refused(*command)
    said(*command, "--skip-lost")
    assert by_duckdb(tmp_path / "out", '"offset", value') == [
        (i, b"old" if i < 10 else b"new") for i in range(25)
    ]


@pytest.mark.parametrize(
    ("ends", "lost"),
    [
        (Ends(0, 150, 0, 0), None),
        (Ends(0, 150, 1, 100), None),
        (Ends(0, 150, 1, 120), None),
        (Ends(0, 150, 1, 99), "offsets 99 up to 100 .* truncated at 99"),
        (Ends(0, 90, 1, 80), "offsets 80 up to 100 .* truncated at 80"),
        # Only the last of several cuts is known, so it may have been below.
        (Ends(0, 150, 2, 120), "offsets from 100 on .* truncated at 120"),
        (Ends(100, 150, 0, 0), None),
        (Ends(101, 150, 0, 0), "offsets 100 up to 101 .* starts at 101 now"),
        # By address there are no epochs; the end tells.
        (Ends(0, 150), None),
        (Ends(0, 99), "offsets 99 up to 100 .* truncated at 99"),
        # The mark that a reader beside the writer sees may be behind.
        (Ends(0, 99, 0, 0), None),
    ],
)
def test_only_what_took_exported_records_is_a_loss(ends: Ends, lost: str | None) -> None:
    before, _ = plan_next(Manifest(), standing(Ends(0, 100, 0, 0)), lambda piece: [piece], skip_lost=False)
    if lost is not None:
        with pytest.raises(CordwoodError, match=lost):
            plan_next(before.after, standing(ends), lambda piece: [piece], skip_lost=False)
    plan, told = plan_next(before.after, standing(ends), lambda piece: [piece], skip_lost=True)
    assert len(told) == (lost is not None)
    assert [(each.start, each.end) for each in plan.slices] == (
        [(max(100, ends.start), ends.end)] if ends.end > 100 else []
    )
    assert plan.after.topics["t"].partitions[0].next == max(100, ends.end)


def standing(ends: Ends) -> dict[str, TopicState]:
    return {"t": TopicState("id", {0: ends})}


# --- what it refuses -------------------------------------------------------------------------------


def test_an_empty_topic_one_record_and_gaps(spark: SparkSession, tmp_path: Path, log: cordwood.Log) -> None:
    log.topic("empty", 2)
    log.topic("one", 2).append(b"v", partition=1)
    fill(log.topic("gaps"), 0, 3)
    log.topic("gaps").append_many([(None, b"x" * 200, None, NOW)] + [(None, b"v", None, NOW)] * 9)
    fill(log.topic("gaps"), 0, 2)
    log.close()
    leave_gap(tmp_path / "data" / "topics" / "gaps", 3, 12)
    text = said("pipeline", "export", "--data", tmp_path / "data", "--to", tmp_path / "out", "--json")
    report = {each["topic"]: each for each in json.loads(text)["topics"]}
    assert report["empty"]["next_offsets"] == {"0": 0, "1": 0}
    assert (report["one"]["records"], report["one"]["next_offsets"]) == (1, {"0": 0, "1": 1})
    assert (report["gaps"]["records"], report["gaps"]["next_offsets"]) == (7, {"0": 15})
    assert by_duckdb(tmp_path / "out", 'topic, "offset"') == [
        *(("gaps", offset) for offset in (0, 1, 2, 3, 12, 13, 14)),
        ("one", 0),
    ]


def leave_gap(topic: Path, first: int, last: int) -> None:
    """Put a frame of the records *first* and *last* in the place of the one that has all of them.

    It is as long as that one, so that nothing else of the segment changes: what compaction leaves behind.
    """
    (path,) = topic.rglob("segments/*.log")
    content = bytearray(path.read_bytes())
    (header,) = [each for each in batch.scan(content).headers() if each.base_offset == first]
    size = header.end - header.position
    for padding in range(size):
        sent = [(None, b"", None, NOW), (None, b"x" * padding, None, NOW)]
        columns = batch.decode_columns(encoded := batch.encode_records(sent, 0), batch.scan(encoded))
        offsets = first.to_bytes(8, "little") + last.to_bytes(8, "little")
        frame = batch.encode_columns(columns._replace(offset=offsets), 0, 2, BatchOptions(leader_epoch=0))
        if len(frame) == size:
            content[header.position : header.end] = frame
            path.write_bytes(content)
            return
    raise AssertionError("no frame of that size")


def test_an_unknown_topic_is_one_sentence_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    log.topic("orders")
    command = ("pipeline", "export", "--data", tmp_path / "data", "--to", tmp_path / "out")
    sentence = refused(*command, "-t", "order")
    assert sentence == "there is no topic order; did you mean orders?"
    assert not (tmp_path / "out").exists()


def test_a_corrupt_segment_is_named_with_its_exit_code(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    fill(log.topic("orders"), 0, 20)
    log.close()
    (path,) = (tmp_path / "data" / "topics").rglob("segments/*.log")
    content = bytearray(path.read_bytes())
    content[content.index(b"value 3")] ^= 1
    path.write_bytes(content)
    sentence = refused("pipeline", "export", "--data", tmp_path / "data", "--to", tmp_path / "out", code=4)
    assert sentence.startswith(f"{path} at byte ")
    assert list((tmp_path / "out").rglob("date=*/*")) == []


def test_two_exports_at_once_to_one_directory_are_refused(tmp_path: Path, log: cordwood.Log) -> None:
    fill(log.topic("orders"), 0, 5)

    def meanwhile(tasks: Sequence[ExportTask], do: Do) -> list[list[Written]]:
        with pytest.raises(DirectoryLocked, match=r"_cordwood/lock is locked .*pid \d+ on"):
            exported(tmp_path)
        return here(tasks, do)

    options = ExportOptions(LogPlace(path=str(tmp_path / "data")), str(tmp_path / "out"))
    run_export(options, meanwhile, PosixFiles())
    assert by_duckdb(tmp_path / "out") == list(range(5))


def test_an_executor_that_does_not_see_the_directory_says_so_with_its_host(
    tmp_path: Path, log: cordwood.Log
) -> None:
    fill(log.topic("orders"), 0, 5)

    def elsewhere(tasks: Sequence[ExportTask], do: Any) -> list[list[Written]]:
        _, *arguments = do.args
        return [do.func(MemoryFiles(), *arguments, task) for task in tasks]

    options = ExportOptions(LogPlace(path=str(tmp_path / "data")), str(tmp_path / "out"))
    with pytest.raises(CordwoodError, match=f"^host {process.host()} cannot see {tmp_path / 'out'}, which"):
        run_export(options, elsewhere, PosixFiles())


def test_directories_that_are_not_for_an_export(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    fill(log.topic("orders"), 0, 5)
    place = LogPlace(path=str(tmp_path / "data"))
    with pytest.raises(DirectoryRefused, match="is a data directory"):
        run_export(ExportOptions(place, str(tmp_path / "data")), here, PosixFiles())
    with pytest.raises(DirectoryRefused, match="s3://bucket/x is not a directory"):
        run_export(ExportOptions(place, "s3://bucket/x"), here, PosixFiles())
    exported(tmp_path)
    manifest = tmp_path / "out" / "_cordwood" / "manifest.json"
    kept = manifest.read_bytes()
    manifest.unlink()
    with pytest.raises(DirectoryRefused, match=r"holds files of an export, but not its _cordwood/manifest"):
        exported(tmp_path)
    manifest.write_bytes(kept.replace(b'"next":5', b'"next":4'))
    with pytest.raises(MetadataDamaged, match="checksum"):
        exported(tmp_path)
    result = run("pipeline", "export", "--data", tmp_path / "data", "--to", tmp_path / "out")
    assert result.exit_code == 4
