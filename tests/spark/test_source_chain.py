"""``option("verify", "chain")``: no record reaches a query out of a frame that is not what was appended.

Logs are opened with a clock, so that no thread follows them: chains do when a test says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from support.data_directory import with_crc
from support.filling import SMALL, fill, offsets, reading, rows_of
from support.logs import frames_of

import cordwood
from cordwood.errors import ConfigError, CorruptRange, MetadataDamaged, RecordsLost
from cordwood.formats.native import BatchTable
from cordwood.host.clock import SystemClock
from cordwood.spark.access import path as path_access
from cordwood.spark.access.access import Piece
from cordwood.spark.access.path import PathAccess
from cordwood.spark.options import check_read_options
from cordwood.spark.source.reader import Build, PlannedReader, Slice
from cordwood.spark.source.schema import arrow_schema, spark_schema
from cordwood.storage.chain.verified_read import WithoutLeaf

CHAINED = {**SMALL, "cordwood.chain": "true"}
OFFSET = StructType([spark_schema(include_headers=False)["offset"]])
Own = tuple[Path, cordwood.Log, cordwood.Topic]


def follow(log: cordwood.Log, partition: int = 0) -> None:
    directory = log.data_directory
    directory.chains.commit(directory.partitions.own("orders", partition))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    """A directory with its writer beside: 300 records of one partition, all of which have leaves."""
    path = tmp_path / "data"
    with cordwood.open(path, clock=SystemClock()) as log:
        topic = log.topic("orders", 1, CHAINED)
        fill(topic, 0, 300)
        follow(log)
        yield path, log, topic


def end_of(path: Path) -> int:
    standing = PathAccess(str(path), verify=True, chain=True).standing("orders", None)
    assert standing is not None
    return standing.partitions[0].end


def piece(path: Path, start: int, end: int) -> Piece:
    standing = PathAccess(str(path), verify=True).standing("orders", None)
    assert standing is not None
    return Piece("orders", 0, start, end, standing.topic_id, standing.partitions[0].epoch)


def task(path: Path, start: int, end: int, **options: str) -> list[int]:
    """Read a slice as a task does."""
    given = {"path": str(path), "subscribe": "orders", "verify": "chain", **options}
    made = PlannedReader(check_read_options(given, streaming=False), OFFSET)
    found: list[int] = []
    for batch in made.read(Slice((piece(path, start, end),), Build.here())):
        found += batch.column("offset").to_pylist()
    return found


def segments(path: Path) -> list[Path]:
    return sorted(path.rglob("segments/*.log"))


def forge(path: Path, number: int) -> tuple[int, int]:
    """Change a record of a frame of the first segment, and its checksum; return its position and offset."""
    first = segments(path)[0]
    whole = first.read_bytes()
    start, end = frames_of(whole)[number]
    changed = whole[start:end].replace(b"value", b"VALUE")
    assert changed != whole[start:end]
    first.write_bytes(whole[:start] + with_crc(changed) + whole[end:])
    return start, int.from_bytes(whole[start : start + 8], "big")


# --- what a task reads --------------------------------------------------------------------------------------


def test_every_slice_of_a_sound_log_is_read_wherever_it_begins_and_ends(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within frames and segments, and across them; in windows of many frames and of one."""
    path, _, _ = own
    for window in (path_access.WINDOW_BYTES, 700):
        monkeypatch.setattr(path_access, "WINDOW_BYTES", window)
        for start in range(0, 300, 13):
            for end in (start, start + 1, start + 40, 300):
                assert task(path, start, min(end, 300)) == list(range(start, min(end, 300)))


@pytest.mark.parametrize("number", [0, 3, 9])
def test_a_frame_that_was_changed_under_a_right_checksum_fails_the_slices_that_read_it_and_no_others(
    own: Own, number: int
) -> None:
    path, log, _ = own
    log.close()
    position, offset = forge(path, number)
    assert task(path, 0, 300, verify="crc") == list(range(300))
    with pytest.raises(CorruptRange) as caught:
        task(path, 0, 300)
    sentence = str(caught.value)
    assert sentence.startswith(f"{segments(path)[0]} at byte {position}: partition 0 of topic orders: ")
    assert f"frame at offset {offset}, its leaf: expected leaf {number}, " in sentence
    assert task(path, 0, offset) == list(range(offset))
    assert task(path, 200, 300) == list(range(200, 300))


def test_what_has_no_leaf_yet_is_not_planned_and_what_never_got_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with cordwood.open(path, clock=SystemClock()) as log:
        topic = log.topic("orders", 1, CHAINED)
        assert end_of(path) == 0
        fill(topic, 0, 50)
        assert end_of(path) == 0
        topic.advance_log_start(0, 10)
        follow(log)
        assert end_of(path) == 50
        fill(topic, 0, 30, start=50)
        assert end_of(path) == 50
        with pytest.raises(
            WithoutLeaf, match=r"partition 0 of topic orders: offsets 50 up to \d+ have no leaf"
        ):
            task(path, 40, 80)
        follow(log)
        assert end_of(path) == 80
        assert task(path, 10, 80) == list(range(10, 80))


def test_a_topic_without_a_chain_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with cordwood.open(path, clock=SystemClock()) as log:
        fill(log.topic("orders", 1, {**SMALL, "cordwood.chain": "false"}), 0, 10)
    given = {"path": str(path), "subscribe": "orders", "verify": "chain"}
    reader = PlannedReader(check_read_options(given, streaming=False), OFFSET)
    with pytest.raises(
        ConfigError, match="topic orders keeps no chain; have it keep one with cordwood topic"
    ):
        reader.partitions()


def test_a_chain_that_is_damaged_is_refused_and_names_the_file(own: Own) -> None:
    path, log, _ = own
    log.close()
    head = path / "topics/orders/0/chain/head"
    head.write_bytes(head.read_bytes().replace(b"size", b"sise"))
    for call in (lambda: end_of(path), lambda: task(path, 0, 10)):
        with pytest.raises(MetadataDamaged, match=str(head)):
            call()


# --- beside the writer --------------------------------------------------------------------------------------


def test_truncation_and_growth_are_compared_with_the_leaves_that_count_now(own: Own) -> None:
    path, log, topic = own
    topic.truncate(0, 204)
    assert end_of(path) <= 204
    assert task(path, 0, end_of(path)) == list(range(end_of(path)))
    fill(topic, 0, 60, start=204)
    assert end_of(path) <= 204
    follow(log)
    assert end_of(path) == 264
    assert task(path, 0, 264) == list(range(264))


def beside(own: Own, change: Callable[[Own], object], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Read everything, with *change* made after the first window."""
    path, _, _ = own
    monkeypatch.setattr(path_access, "WINDOW_BYTES", 1000)
    access = PathAccess(str(path), verify=True, chain=True)
    batches = access.read([piece(path, 0, 300)], arrow_schema(OFFSET), fail_on_data_loss=True)
    found: list[int] = next(batches).column("offset").to_pylist()
    change(own)
    for batch in batches:
        found += batch.column("offset").to_pylist()
    return found


def compact(own: Own) -> None:
    _, log, _ = own
    assert log.maintain(force=True).compacted


def test_compaction_before_and_while_a_task_reads_is_no_tampering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    with cordwood.open(path, clock=SystemClock()) as log:
        settings = {**CHAINED, "cleanup.policy": "compact", "segment.bytes": "1500"}
        topic = log.topic("orders", 1, settings)
        for start in range(0, 300, 5):
            keyed = [(b"%d" % (start % 3), *row[1:]) for row in rows_of(0, start, 5)]
            topic.append_many([(row[0], row[1] or b"x") for row in keyed], partition=0)
        follow(log)
        found = beside((path, log, topic), compact, monkeypatch)
        assert sorted(set(found)) == found
        left = [record.offset for record in topic.read(0)]
        assert set(left) <= set(found)
        assert len(left) < 100
        assert task(path, 0, 300) == left


def test_a_truncation_while_a_task_reads_is_a_loss_and_no_tampering(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(own: Own) -> None:
        own[2].truncate(0, 200)
        fill(own[2], 0, 150, start=200)

    with pytest.raises(RecordsLost, match="offsets 200 up to 300 of partition 0 of topic orders"):
        beside(own, cut, monkeypatch)


# --- in Spark -----------------------------------------------------------------------------------------------


def failure(call: Callable[[], Any]) -> str:
    """Return the last sentence of the error that *call* ends with."""
    with pytest.raises(Exception) as caught:
        call()
    lines = [line for line in str(caught.value).splitlines() if "cordwood.errors." in line]
    assert lines, str(caught.value)
    return lines[-1].split(": ", 1)[1]


def streamed(spark: SparkSession, path: Path, name: str, checkpoint: Path) -> list[int]:
    frame = spark.readStream.format("cordwood").option("path", str(path)).option("subscribe", "orders")
    frame = frame.option("verify", "chain").option("startingOffsets", "earliest")
    query = (
        frame.load()
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(row.offset for row in spark.sql(f"SELECT offset FROM {name}").collect())


def test_batch_and_stream_read_what_has_leaves_and_fail_on_what_was_changed(
    spark: SparkSession, own: Own, tmp_path: Path
) -> None:
    path, log, topic = own
    fill(topic, 0, 20, start=300)
    assert offsets(reading(spark, path, verify="chain").load()) == list(range(300))
    assert streamed(spark, path, "sound", tmp_path / "sound") == list(range(300))
    log.close()
    position, _ = forge(path, 3)
    place = f"{segments(path)[0]} at byte {position}: partition 0 of topic orders: frame at offset "
    assert failure(lambda: reading(spark, path, verify="chain").load().count()).startswith(place)
    assert place in failure(lambda: streamed(spark, path, "changed", tmp_path / "changed"))


# --- compacted logs -----------------------------------------------------------------------------------------


def compacted(tmp_path: Path) -> tuple[Path, list[int]]:
    """Return a directory with a compacted topic, and the offsets that are left of it."""
    path = tmp_path / "compacted"
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    with cordwood.open(path, clock=SystemClock()) as log:
        topic = log.topic("orders", 1, {**CHAINED, **config})
        for number in range(100):
            rows = [(b"k%d" % (number % 7), b"value %d" % number), (b"only %d" % number, b"value kept")]
            topic.append_many(rows, partition=0)
        topic.roll()
        assert log.maintain(force=True).compacted
        follow(log)
        return path, [record.offset for record in topic.read(0)]


def test_rewritten_frames_are_read_where_each_record_is_one_that_was_appended(tmp_path: Path) -> None:
    path, left = compacted(tmp_path)
    assert len(left) < 200
    assert task(path, 0, 200) == left
    assert task(path, 31, 77) == [offset for offset in left if 31 <= offset < 77]


def test_a_rewritten_frame_with_a_record_that_was_never_appended_fails_the_slice(tmp_path: Path) -> None:
    """Its own leaf agrees with it: only the list of the frame shows that compaction changed the record."""
    path = tmp_path / "compacted"
    with pytest.MonkeyPatch.context() as patch:
        real = BatchTable.without

        def without(self: BatchTable, frame: int, dropped: Any, first: int) -> bytes:
            return with_crc(bytes(real(self, frame, dropped, first)).replace(b"value kept", b"value mine"))

        patch.setattr(BatchTable, "without", without)
        compacted(tmp_path)
    assert len(task(path, 0, 200, verify="crc")) < 200
    with pytest.raises(CorruptRange, match="record at offset 1: expected the record that was first appended"):
        task(path, 0, 200)
