"""Topics in the shared log, read and written by Spark: as any others, but many of them by one task."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from support.filling import NOW, SMALL, expected, fill, rows, rows_of
from support.sinks import values_in

import cordwood
from cordwood.errors import ConfigError, CorruptRange, RecordsLost
from cordwood.formats.shared.envelope import ENVELOPE_SIZE, EnvelopeKind, checksum, read_envelope
from cordwood.host.clock import SystemClock
from cordwood.spark.access import gathered_reading, gathering
from cordwood.spark.access import path as path_access
from cordwood.spark.access.gathering import Gathered
from cordwood.spark.access.path import PathAccess
from cordwood.spark.options import check_read_options
from cordwood.spark.source.reader import PlannedReader, PushingReader
from cordwood.spark.source.schema import spark_schema
from cordwood.spark.source.stream_reader import StreamReader
from cordwood.storage.shared.offsets import VirtualTopics

SHARED = {"cordwood.storage": "shared"}
#: Topics and how many records each of their partitions has; the last one has files of its own.
COUNTS = {"a@7": (120, 60), "b@7": (90,), "a@8": (75,), "c": (200, 1, 0), "own": (80,)}
ALL = ",".join(COUNTS)
Row = tuple[str, int, int]


def fill_all(log: cordwood.Log, seed: int = 5) -> None:
    """Fill all topics at the same time, in frames of one to nine, over several segments."""
    dice = random.Random(seed)
    done: dict[tuple[str, int], int] = {}
    for name, counts in COUNTS.items():
        log.create_topic(name, len(counts), SMALL if name == "own" else SHARED)
        done |= {(name, number): 0 for number, count in enumerate(counts) if count}
    while done:
        name, number = dice.choice(list(done))
        start, count = done.pop((name, number)), COUNTS[name][number]
        size = min(dice.randrange(1, 10), count - start)
        log.topic(name).append_many(rows_of(number, start, size), partition=number)
        if start + size < count:
            done[name, number] = start + size
        if dice.random() < 0.08:
            log.topic("c").roll()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that nobody changes, with three tenants in its shared log."""
    path = tmp_path_factory.mktemp("shared") / "data"
    with cordwood.open(path, sync="never") as log:
        fill_all(log)
    return path


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Path, cordwood.Log]]:
    """One that a test changes, with its writer beside. No thread follows the chains."""
    path = tmp_path / "data"
    with cordwood.open(path, clock=SystemClock()) as log:
        fill_all(log)
        yield path, log


def reader(path: Path, **options: str) -> PlannedReader:
    """Return a reader as Spark makes it, of all topics unless told otherwise."""
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        options["subscribe"] = ALL
    asked = check_read_options({"path": str(path), **options}, streaming=False)
    kind = PushingReader if asked.push_filters else PlannedReader
    return kind(asked, spark_schema(include_headers=asked.include_headers))


def taken(made: PlannedReader | StreamReader, planned: Any) -> list[Row]:
    """Return (topic, partition, offset) as the tasks give them, after checking the order."""
    found: list[Row] = []
    for part in planned:
        mine: list[Row] = []
        for batch in made.read(part):
            columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
            mine += zip(*columns, strict=True)
        for place in {row[:2] for row in mine}:
            offsets = [row[2] for row in mine if row[:2] == place]
            assert offsets == sorted(set(offsets))
        found += mine
    return found


def read(path: Path, **options: str) -> list[Row]:
    made = reader(path, **options)
    return sorted(taken(made, made.partitions()))


def everything() -> list[Row]:
    """Return what there is in all topics."""
    return sorted(
        (name, number, offset)
        for name, counts in COUNTS.items()
        for number, count in enumerate(counts)
        for offset in range(count)
    )


def shared_segments(path: Path) -> list[Path]:
    return sorted((path / "topics" / "__shared" / "0" / "segments").glob("*.log"))


def frames_of(segment: Path) -> Iterator[tuple[int, Any]]:
    """Yield (position, envelope) of the frames in a segment of the shared log."""
    whole, position = segment.read_bytes().rstrip(b"\0") + bytes(ENVELOPE_SIZE), 0
    while any(whole[position : position + ENVELOPE_SIZE]):
        found = read_envelope(whole, position, checked=True)
        yield position, found
        position += found.size


# --- what is read ----------------------------------------------------------------------------------


def test_every_record_of_many_topics_comes_once_as_it_was_appended(spark: SparkSession, data: Path) -> None:
    asked = spark.read.format("cordwood").option("path", str(data)).option("includeHeaders", "true")
    found = rows(asked.option("subscribePattern", "^[abco]").option("minPartitions", "4").load())
    wanted = [
        row
        for name, counts in sorted(COUNTS.items())
        for number, count in enumerate(counts)
        for row in expected(name, number, 0, count)
    ]
    assert found == wanted


def test_one_topic_is_read_as_it_is_among_all(data: Path) -> None:
    assert read(data) == everything()
    for name in COUNTS:
        assert read(data, subscribe=name) == [row for row in everything() if row[0] == name]


@pytest.mark.parametrize("window", [path_access.WINDOW_BYTES, 600])
@pytest.mark.parametrize("apart", [gathering.SKIP_BYTES, 1])
def test_windows_and_stretches_of_any_size_give_the_same(
    data: Path, window: int, apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to a window for every frame, and to stretches that leave out every frame of others."""
    monkeypatch.setattr(path_access, "WINDOW_BYTES", window)
    monkeypatch.setattr(gathering, "SKIP_BYTES", apart)
    monkeypatch.setattr(gathered_reading, "DECODE_BYTES", 3 * window)
    for topics in (ALL, "a@7", "b@7,c"):
        assert read(data, subscribe=topics) == [row for row in everything() if row[0] in topics.split(",")]
    made = reader(data, subscribe="b@7")
    (part,) = made.partitions()
    (piece,) = part.pieces
    assert isinstance(piece, Gathered)
    assert (len(piece.stretches) > 5) == (apart == 1)


@pytest.mark.parametrize(
    ("topics", "options"),
    [
        (ALL, {"minPartitions": "9"}),
        (ALL, {"maxRecordsPerPartition": "37"}),
        ("a@8,own", {"minPartitions": "5000"}),
    ],
)
def test_slices_are_as_many_and_as_small_as_asked_for_and_give_the_same(
    data: Path, topics: str, options: dict[str, str]
) -> None:
    """Within frames too: a frame in two slices gives each of them its own records."""
    wanted = [row for row in everything() if row[0] in topics.split(",")]
    made = reader(data, subscribe=topics, **options)
    planned = made.partitions()
    found = [taken(made, [part]) for part in planned]
    assert sorted(row for each in found for row in each) == wanted
    assert len(planned) >= min(int(options.get("minPartitions", 0)), len(wanted))
    assert max(map(len, found)) <= int(options.get("maxRecordsPerPartition", len(wanted)))


def test_ranges_are_those_that_were_asked_for(data: Path) -> None:
    asked = {"a@7": [1], "c": [0, 2], "own": [0]}
    starts = {"a@7": {"1": 7}, "c": {"0": -2, "2": 0}, "own": {"0": 70}}
    ends = {"a@7": {"1": 8}, "c": {"0": 3, "2": -1}, "own": {"0": -1}}
    found = read(
        data,
        assign=json.dumps(asked),
        startingOffsets=json.dumps(starts),
        endingOffsets=json.dumps(ends),
    )
    own = [("own", 0, offset) for offset in range(70, 80)]
    assert found == [("a@7", 1, 7), ("c", 0, 0), ("c", 0, 1), ("c", 0, 2), *own]


def test_times_mean_the_same_as_for_other_topics(data: Path) -> None:
    """Records of the same times in a topic of its own and in one of the shared log."""
    for since, until in ((NOW + 300, NOW + 600), (NOW + 401, NOW + 402), (NOW, NOW + 10**6)):
        options = {"startingTimestamp": str(since), "endingTimestamp": str(until)}
        own = read(data, subscribe="own", **options)
        found = read(data, assign='{"b@7": [0]}', **options)
        assert [row[2] for row in found if row[2] < 80] == [row[2] for row in own]
    with pytest.raises(ConfigError, match="partition 0 of topic b@7 has no record"):
        read(data, subscribe="b@7", startingTimestamp=str(NOW * 2))


def test_filters_narrow_the_plan(data: Path) -> None:
    made = reader(data, pushFilters="true")
    assert isinstance(made, PushingReader)
    made.pushFilters(
        [EqualTo(("topic",), "a@7"), GreaterThanOrEqual(("offset",), 20), LessThanOrEqual(("offset",), 25)]
    )
    planned = made.partitions()
    assert sorted(taken(made, planned)) == [("a@7", n, o) for n in (0, 1) for o in range(20, 26)]
    (part,) = planned
    (piece,) = part.pieces
    assert isinstance(piece, Gathered)
    assert len(piece.wanted) == 2


def test_only_columns_that_are_asked_for_are_given(spark: SparkSession, data: Path) -> None:
    asked = spark.read.format("cordwood").option("path", str(data)).option("subscribe", "a@8,b@7")
    assert asked.schema("offset long").load().count() == 165
    found = asked.schema("value binary, topic string").load().collect()
    assert sorted((r.topic, r.value) for r in found if r.value is not None) == sorted(
        (name, row[1])
        for name, count in (("a@8", 75), ("b@7", 90))
        for row in rows_of(0, 0, count)
        if row[1] is not None
    )


def test_a_task_does_not_learn_whose_every_frame_is(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reader(data)
    planned = made.partitions()

    def learnt(*_: object, **__: object) -> None:
        raise AssertionError("a task learnt what only the driver is to know")

    monkeypatch.setattr(VirtualTopics, "apply", learnt)
    assert sorted(taken(made, planned)) == everything()


def test_a_thousand_topics_are_read_by_a_handful_of_tasks(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with cordwood.open(path, sync="never") as log:
        topics = [log.topic(f"t{number:03}@7", config=SHARED) for number in range(1000)]
        for value in range(5):
            for topic in topics:
                topic.append_many([(None, b"%d" % value), (b"k", None)], partition=0)
    made = reader(path, subscribePattern="^t")
    began = time.perf_counter()
    planned = made.partitions()
    planning = time.perf_counter() - began
    assert len(planned) <= 4
    frame = spark.read.format("cordwood").option("path", str(path)).option("subscribePattern", "^t")
    began = time.perf_counter()
    found = frame.schema("topic string, offset long").load().groupBy("topic").count().collect()
    seconds = time.perf_counter() - began
    print(f"1,000 topics: {len(planned)} slices, planned in {planning:.2f} s, queried in {seconds:.2f} s")
    assert sorted((row.topic, row["count"]) for row in found) == [(f"t{n:03}@7", 10) for n in range(1000)]


# --- what is wrong, and what is gone ---------------------------------------------------------------


def test_damage_refuses_its_own_topic_by_name_and_no_other(own: tuple[Path, cordwood.Log]) -> None:
    """Frame after frame of a segment: a byte of its length, of the rest of its envelope, of its batch."""
    path, log = own
    log.close()
    segment, cases = max(shared_segments(path), key=lambda each: len(list(frames_of(each)))), 0
    whole = segment.read_bytes()
    for position, found in list(frames_of(segment))[:8]:
        if found.kind is not EnvelopeKind.RECORDS:
            continue
        for at in (position + 8, position + 20, position + ENVELOPE_SIZE + 30):
            damaged = bytearray(whole)
            damaged[at] ^= 1
            segment.write_bytes(bytes(damaged))
            refused = []
            for name in COUNTS:
                try:
                    found_there = read(path, subscribe=name)
                except CorruptRange as error:
                    refused.append((error.path, error.position))
                else:
                    assert found_there == [row for row in everything() if row[0] == name]
            assert refused == [(str(segment), position)]
            with pytest.raises(CorruptRange):
                read(path, failOnDataLoss="false")
            cases += 1
    segment.write_bytes(whole)
    print(f"{cases} damaged frames, each refused to the topic that it is of")
    assert cases >= 18


def test_verify_chain_reads_what_has_leaves_and_finds_what_was_forged(
    own: tuple[Path, cordwood.Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = own
    assert read(path, subscribe="a@7,b@7,a@8,c", verify="chain") == []
    directory = log.data_directory
    directory.chains.commit(directory.partitions.writable("__shared", 0))  # type: ignore[arg-type]
    shared = [row for row in everything() if row[0] != "own"]
    names = "a@7,b@7,a@8,c"
    assert read(path, subscribe=names, verify="chain") == shared
    assert read(path, subscribe=names, verify="chain", minPartitions="7") == shared
    log.topic("c").append(b"without a leaf yet", partition=0)
    assert read(path, subscribe=names, verify="chain") == shared
    assert len(read(path, subscribe=names)) == len(shared) + 1
    log.close()
    segment = shared_segments(path)[1]
    whole = bytearray(segment.read_bytes())
    position, found = next((at, each) for at, each in frames_of(segment) if each.owner.org == 8)
    at = whole.index(b"value", position, position + found.size)
    whole[at : at + 5] = b"VALUE"
    crc_at = position + ENVELOPE_SIZE + 17
    batch = bytes(whole[position + ENVELOPE_SIZE + 21 : position + found.size])
    whole[crc_at : crc_at + 4] = google_crc32c.value(batch).to_bytes(4, "big")
    crc = checksum(whole, position, position + found.size)
    whole[position : position + 4] = crc.to_bytes(4, "little")
    segment.write_bytes(whole)
    assert read(path, subscribe="a@8") == [row for row in everything() if row[0] == "a@8"]
    for apart in (gathering.SKIP_BYTES, 1):
        monkeypatch.setattr(gathering, "SKIP_BYTES", apart)
        with pytest.raises(CorruptRange) as caught:
            read(path, subscribe="a@8", verify="chain")
        assert (caught.value.path, caught.value.position) == (str(segment), position)


def test_a_shared_log_without_a_chain_is_refused_by_name(own: tuple[Path, cordwood.Log]) -> None:
    path, log = own
    log.data_directory.topics.alter(
        "__shared", config={**log.entry("__shared").config, "cordwood.chain": "false"}
    )
    with pytest.raises(ConfigError, match="the shared log keeps no chain"):
        read(path, subscribe="b@7", verify="chain")


def test_what_retention_and_copying_took_after_planning_is_data_or_one_error(
    own: tuple[Path, cordwood.Log],
) -> None:
    path, log = own
    made, going_on = reader(path), reader(path, failOnDataLoss="false")
    planned = made.partitions()
    for name, number, start in (("c", 0, 150), ("a@7", 0, 100), ("a@7", 1, 55), ("b@7", 0, 41)):
        log.topic(name).advance_log_start(number, start)
    assert sorted(taken(made, planned)) == everything(), "nothing is gone yet"
    log.topic("c").roll()
    assert log.maintain().reclaimed.bytes_freed > 0
    with pytest.raises(RecordsLost, match=r"of topic .* are lost: they are in the shared log no more"):
        taken(made, planned)
    starts = {("c", 0): 150, ("a@7", 0): 100, ("a@7", 1): 55, ("b@7", 0): 41}
    found = taken(going_on, planned)
    assert len(set(found)) == len(found)
    kept = {row for row in everything() if row[2] >= starts.get(row[:2], 0)}
    assert kept <= set(found) < set(everything())
    assert set(read(path)) == kept, "what was copied is planned and read as it was"


def test_a_topic_deleted_or_made_again_after_planning_is_lost_and_never_anothers(
    own: tuple[Path, cordwood.Log],
) -> None:
    path, log = own
    made, going_on = reader(path), reader(path, failOnDataLoss="false")
    planned = made.partitions()
    log.delete_topic("b@7")
    with pytest.raises(RecordsLost, match="of topic b@7 are lost: the topic was deleted"):
        taken(made, planned)
    others = [row for row in everything() if row[0] != "b@7"]
    assert sorted(taken(going_on, planned)) == others
    again = log.create_topic("b@7", 1, SHARED)
    assert again is not None
    log.topic("b@7").append_many([(None, b"another topic's")] * 95, partition=0)
    with pytest.raises(RecordsLost, match="of topic b@7 are lost: the topic was deleted and made again"):
        taken(made, planned)
    assert sorted(taken(going_on, planned)) == others


def test_a_topic_deleted_while_a_task_reads_it_is_lost(
    own: tuple[Path, cordwood.Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = own
    monkeypatch.setattr(path_access, "WINDOW_BYTES", 600)
    monkeypatch.setattr(gathered_reading, "DECODE_BYTES", 600)
    for options, lost in (({}, True), ({"failOnDataLoss": "false"}, False)):
        made = reader(path, subscribe="c,b@7", **options)
        (part,) = made.partitions()
        batches = made.read(part)
        first = next(batches).num_rows
        log.delete_topic("b@7")
        if lost:
            with pytest.raises(RecordsLost, match="of topic b@7 are lost: the topic was deleted"):
                list(batches)
        else:
            assert first + sum(batch.num_rows for batch in batches) == 201 + 20
        log.create_topic("b@7", 1, SHARED)
        fill(log.topic("b@7"), 0, 20)


def test_a_topic_made_again_while_it_is_planned_is_found_as_the_new_one_whole(
    own: tuple[Path, cordwood.Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id of one and the offsets of another would be other data, and no loss."""
    path, log = own
    access = PathAccess(str(path), verify=True)
    find = access._shared._find

    def racing(wanted: Any) -> Any:
        monkeypatch.undo()
        log.delete_topic("b@7")
        log.create_topic("b@7", 1, SHARED)
        fill(log.topic("b@7"), 0, 3)
        return find(wanted)

    monkeypatch.setattr(access._shared, "_find", racing)
    standing = access.standing("b@7", None)
    assert standing is not None
    assert (standing.topic_id, standing.partitions[0].end) == (log.entry("b@7").id, 3)


def test_a_topic_made_again_is_read_without_what_the_one_before_left(
    own: tuple[Path, cordwood.Log],
) -> None:
    """Its records have the same owner and the same offsets, and lie in the same stretch."""
    path, log = own
    log.delete_topic("b@7")
    log.create_topic("b@7", 1, SHARED)
    log.topic("b@7").append_many([(None, b"new %d" % n) for n in range(30)], partition=0)
    log.topic("c").append(b"after", partition=1)
    made = reader(path, subscribe="b@7,c")
    values = [
        value
        for part in made.partitions()
        for batch in made.read(part)
        for topic, value in zip(
            batch.column("topic").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
        if topic == "b@7"
    ]
    assert values == [b"new %d" % n for n in range(30)]


# --- streams ---------------------------------------------------------------------------------------


def streaming(path: Path, **options: str) -> StreamReader:
    given = {"path": str(path), "startingOffsets": "earliest", **options}
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        given["subscribe"] = ALL
    return StreamReader(given, spark_schema(include_headers=False))


def test_triggers_take_as_much_as_asked_for_and_everything_once(own: tuple[Path, cordwood.Log]) -> None:
    path, log = own
    made = streaming(path, maxOffsetsPerTrigger="100")
    at, found, sizes = made.initialOffset(), [], []
    while (end := made.latestOffset(at, made.getDefaultReadLimit())) != at:
        batch = taken(made, made.partitions(at, end))
        assert sorted(batch) == sorted(taken(streaming(path), streaming(path).partitions(at, end)))
        sizes.append(len(batch))
        found += batch
        at = end
    assert sorted(found) == everything()
    assert set(sizes[:-1]) == {100}
    assert at["a@7"] == {"0": 120, "1": 60}, "positions are those of topics, whatever they are kept in"
    fill(log.topic("b@7"), 0, 5, start=90)
    log.create_topic("new", 1, SHARED)
    end = made.latestOffset(at, ReadAllAvailable())
    planned = made.partitions(at, end)
    assert len(planned) == 1
    assert sorted(taken(made, planned)) == [("b@7", 0, offset) for offset in range(90, 95)]
    made.stop()


def test_a_pattern_finds_topics_that_come_later(own: tuple[Path, cordwood.Log]) -> None:
    path, log = own
    made = streaming(path, subscribePattern="@7$", startingOffsets="latest")
    at = made.initialOffset()
    log.create_topic("z@7", 2, SHARED)
    log.topic("z@7").append(b"first", partition=1)
    end = made.latestOffset(at, ReadMaxRows(10))
    assert taken(made, made.partitions(at, end)) == [("z@7", 1, 0)]
    made.stop()


def test_a_topic_made_again_under_a_stream_is_data_loss_and_not_other_data(
    own: tuple[Path, cordwood.Log],
) -> None:
    path, log = own
    strict, lenient = streaming(path), streaming(path, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    log.delete_topic("b@7")
    log.create_topic("b@7", 1, SHARED)
    log.topic("b@7").append_many([(None, b"new")] * 100, partition=0)
    for call in (strict.partitions, lambda a, b: strict.latestOffset(b, ReadAllAvailable())):
        with pytest.raises(RecordsLost, match=r"topic b@7 .*deleted and made again"):
            call(start, end)
    planned = lenient.partitions(start, end)
    gathered = [piece for part in planned for piece in part.pieces if isinstance(piece, Gathered)]
    assert "b@7" not in {wanted.piece.topic for each in gathered for wanted in each.wanted}
    assert sorted(taken(lenient, planned)) == [row for row in everything() if row[0] != "b@7"]
    after = lenient.latestOffset(end, ReadAllAvailable())
    assert taken(lenient, lenient.partitions(end, after)) == [("b@7", 0, offset) for offset in range(100)]


def test_what_retention_took_before_a_trigger_follows_fail_on_data_loss(
    own: tuple[Path, cordwood.Log],
) -> None:
    path, log = own
    strict, lenient = streaming(path, subscribe="c"), streaming(path, subscribe="c", failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    log.topic("c").advance_log_start(0, 190)
    with pytest.raises(RecordsLost, match="the log starts at 190 now"):
        strict.partitions(start, end)
    found = sorted(taken(lenient, lenient.partitions(start, end)))
    assert found == [*(("c", 0, offset) for offset in range(190, 200)), ("c", 1, 0)]


# --- written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "address"])
def test_a_stream_from_and_to_shared_topics_is_exactly_once_over_restarts(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """One batch goes to several shared topics and one with files of its own."""
    data, names = tmp_path / "data", ["out-0", "out-1", "out-own"]
    with cordwood.open(data) as log:
        for name in names:
            log.create_topic(name, 2, {} if name == "out-own" else SHARED)
        log.create_topic("in", 2, SHARED)
        log.topic("in").append_many([(b"%d" % n, b"%d" % n) for n in range(60)])
    place = {"path": str(data)}
    broker = None if kind == "path" else cordwood.Broker(data).__enter__()
    if broker is not None:
        place = {"kafka.bootstrap.servers": broker.bootstrap}

    def run(checkpoint: str) -> None:
        source = spark.readStream.format("cordwood").options(**place, subscribe="in")
        found = source.option("startingOffsets", "earliest").load()
        routed = found.selectExpr(
            "key",
            "value",
            "element_at(array('out-0', 'out-1', 'out-own'), 1 + int(string(value)) % 3) topic",
        )
        writer = routed.writeStream.format("cordwood").options(**place)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    try:
        run("checkpoint")
        # As if the driver had been killed after publishing: the last batch is run again.
        last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        run("checkpoint")
    finally:
        if broker is not None:
            broker.close()
    for at, name in enumerate(names):
        found = sorted(int(value) for part in values_in(data, name) for value in part)
        assert found == list(range(at, 60, 3)), name
    with cordwood.open(data, read_only=True) as log:
        assert log.topic("out-0").offsets(0).end + log.topic("out-0").offsets(1).end == 20


def test_by_address_they_are_topics_like_any_other(spark: SparkSession, tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        fill(log.topic("s", 2, SHARED), 0, 50)
        fill(log.topic("s"), 1, 20)
    with cordwood.Broker(tmp_path / "data") as broker:
        asked = spark.read.format("cordwood").option("kafka.bootstrap.servers", broker.bootstrap)
        found = rows(asked.option("subscribe", "s").option("includeHeaders", "true").load())
        by_path = spark.read.format("cordwood").option("path", str(tmp_path / "data"))
        assert found == rows(by_path.option("subscribe", "s").option("includeHeaders", "true").load())
    assert found == expected("s", 0, 0, 50) + expected("s", 1, 0, 20)
