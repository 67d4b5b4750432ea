"""Rows to frames, without Spark: every column that there may be, and where each row goes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2
from support.seeds import seed_or

from cordwood.errors import RecordRefused, UnknownTopic
from cordwood.formats.batch import read_header
from cordwood.formats.compression import Compression
from cordwood.formats.native import BatchFormat
from cordwood.formats.receiving import CompressionChoice
from cordwood.records import Record
from cordwood.spark.sink import encoding
from cordwood.spark.sink.encoding import FRAME_BYTES, Destination, FrameEncoder

NOW = 1_700_000_000_123
FORMAT = BatchFormat()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", "UTC")
ORDERS = Destination("orders", "id-orders", 4, 1 << 20, keyed=False)
OTHER = Destination("other", "id-other", 1, 1 << 20, keyed=False)
LATEST = Destination("latest", "id-latest", 2, 1 << 20, keyed=True)
SMALL = Destination("small", "id-small", 1, 500, keyed=False)
TOPICS = {each.topic: each for each in (ORDERS, OTHER, LATEST, SMALL)}


def find(topic: str) -> Destination:
    if topic not in TOPICS:
        raise UnknownTopic(f"there is no topic {topic} in /data")
    return TOPICS[topic]


def encoded(
    *batches: pa.RecordBatch, topic: str | None = "orders", turn: int = 0
) -> dict[tuple[str, int], list[Record]]:
    """Encode and decode again; return the records of each partition."""
    found: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for target, frame in FrameEncoder(find, topic, turn, lambda: NOW).encode(iter(batches)):
        assert target.topic_id == f"id-{target.topic}"
        found[target.topic, target.partition] += FORMAT.decode(frame, 0)
    return dict(found)


def only(records: Mapping[Any, list[Record]]) -> list[Record]:
    """Return the records of the only partition there is."""
    (found,) = records.values()
    return list(found)


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_keys_and_values_may_be_text_or_bytes_and_null(kind: pa.DataType) -> None:
    keys, values = ["k", None, "", "ü"], ["v", "", None, "wörter"]
    batch = rows(
        key=pa.array(keys, kind), value=pa.array(values, kind), partition=pa.array([0] * 4, pa.int32())
    )
    records = only(encoded(batch))
    assert [record.key for record in records] == [b"k", None, b"", "ü".encode()]
    assert [record.value for record in records] == [b"v", b"", None, "wörter".encode()]


def test_keys_go_where_kafkas_partitioner_sends_them() -> None:
    seed = seed_or(1)
    print(f"seed {seed}")
    rng = random.Random(seed)
    keys = [rng.randbytes(rng.randrange(40)) for _ in range(2000)]
    found = encoded(rows(key=pa.array(keys, pa.binary()), value=pa.array(keys, pa.binary())))
    assert sorted(number for _, number in found) == [0, 1, 2, 3]
    for (_, number), records in found.items():
        expected = [key for key in keys if (murmur2(key) & 0x7FFFFFFF) % 4 == number]
        assert [record.key for record in records] == expected
        assert [record.value for record in records] == expected


@pytest.mark.parametrize("turn", [0, 1, 2, 7])
def test_rows_without_a_key_of_one_batch_stay_together(turn: int) -> None:
    """Where depends on the task, so that the tasks of a query spread."""
    values = pa.array([b"a", b"b", b"c"])
    for batch in (rows(value=values), rows(key=pa.nulls(3, pa.binary()), value=values)):
        found = encoded(batch, turn=turn)
        assert list(found) == [("orders", turn % 4)]
        assert [record.value for record in only(found)] == [b"a", b"b", b"c"]
        assert [record.key for record in only(found)] == [None] * 3


def test_a_partition_that_is_given_wins_and_one_that_is_null_is_decided() -> None:
    keys = pa.array([b"a", b"a", None, b"a"])
    said = pa.array([3, None, None, 0], pa.int32())
    found = encoded(rows(key=keys, value=pa.array([b"0", b"1", b"2", b"3"]), partition=said), turn=2)
    by_key = (murmur2(b"a") & 0x7FFFFFFF) % 4
    where = {record.value: number for (_, number), records in found.items() for record in records}
    assert where == {b"0": 3, b"1": by_key, b"2": 2, b"3": 0}


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32()])
def test_a_partition_may_be_any_small_number(kind: pa.DataType) -> None:
    found = encoded(rows(value=pa.array([b"a", b"b"]), partition=pa.array([3, 1], kind)))
    assert {number for _, number in found} == {1, 3}


@pytest.mark.parametrize("wrong", [4, -1, 2**31 - 1, -(2**31)])
def test_a_partition_that_the_topic_does_not_have_is_refused(wrong: int) -> None:
    batch = rows(value=pa.array([b"a", b"b"]), partition=pa.array([0, wrong], pa.int32()))
    with pytest.raises(RecordRefused, match=f"topic orders has 4 partitions, but a row says {wrong}"):
        encoded(batch)


def test_a_time_is_taken_to_the_millisecond_and_is_now_if_it_is_null_or_missing() -> None:
    times = pa.array([datetime(2024, 5, 6, 7, 8, 9, 999_999, tzinfo=UTC), None], TIME)
    given, missing = only(encoded(rows(value=pa.array([b"a", b"b"]), timestamp=times)))
    assert (given.timestamp, missing.timestamp) == (1_714_979_289_999, NOW)
    assert [record.timestamp for record in only(encoded(rows(value=pa.array([b"a"]))))] == [NOW]


def test_a_time_without_a_zone_is_taken_for_utc() -> None:
    times = pa.array([datetime(2024, 5, 6, 7, 8, 9), None], pa.timestamp("us"))
    records = only(encoded(rows(value=pa.array([b"a", b"b"]), timestamp=times)))
    assert [record.timestamp for record in records] == [1_714_979_289_000, NOW]


def test_a_time_before_1970_is_taken_or_refused_and_never_another() -> None:
    times = pa.array([datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)], TIME)
    try:
        (record,) = only(encoded(rows(value=pa.array([b"a"]), timestamp=times)))
    except RecordRefused:
        return
    assert record.timestamp == -1


def test_headers_are_kept_in_order_with_nulls_and_doubles() -> None:
    given: list[Any] = [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}],
        None,
        [],
    ]
    batch = rows(value=pa.array([b"x", b"y", b"z"]), headers=pa.array(given, HEADERS))
    found = [[tuple(header) for header in record.headers] for record in only(encoded(batch))]
    assert found == [[("a", b"1"), ("a", None), ("", b"")], [], []]


def test_what_a_copied_topic_says_of_its_offsets_is_not_written() -> None:
    batch = rows(value=pa.array([b"x"]), offset=pa.array([77]), timestampType=pa.array([1], pa.int32()))
    (record,) = only(encoded(batch))
    assert (record.offset, record.value) == (0, b"x")


def test_a_column_says_which_topic_each_row_goes_to() -> None:
    topics = pa.array(["other", "orders", "other"])
    batch = rows(value=pa.array([b"a", b"b", b"c"]), topic=topics)
    found = encoded(batch, topic=None)
    assert {topic: [r.value for r in records] for (topic, _), records in found.items()} == {
        "other": [b"a", b"c"],
        "orders": [b"b"],
    }


def test_the_option_topic_wins_over_the_column() -> None:
    found = encoded(rows(value=pa.array([b"a"]), topic=pa.array(["nowhere"])), topic="other")
    assert list(found) == [("other", 0)]


def test_a_row_without_a_topic_and_an_unknown_topic_are_refused() -> None:
    with pytest.raises(RecordRefused, match="a row has no topic"):
        encoded(rows(value=pa.array([b"a", b"b"]), topic=pa.array(["orders", None])), topic=None)
    with pytest.raises(UnknownTopic, match="there is no topic nowhere"):
        encoded(rows(value=pa.array([b"a", b"b"]), topic=pa.array(["orders", "nowhere"])), topic=None)


@pytest.mark.parametrize("keys", [{}, {"key": pa.array([b"a", None])}])
def test_a_compacted_topic_takes_no_row_without_a_key(keys: dict[str, pa.Array]) -> None:
    with pytest.raises(RecordRefused, match="a row without a key for topic latest, which is compacted"):
        encoded(rows(value=pa.array([b"a", b"b"]), **keys), topic="latest")


def test_a_compacted_topic_takes_tombstones() -> None:
    batch = rows(key=pa.array([b"a"]), value=pa.nulls(1, pa.binary()))
    (record,) = only(encoded(batch, topic="latest"))
    assert (record.key, record.value) == (b"a", None)


def test_a_record_beyond_max_message_bytes_is_refused_with_its_size() -> None:
    with pytest.raises(
        RecordRefused, match=r"a record of \d+ bytes for topic small, whose max.message.bytes is 500"
    ):
        encoded(rows(value=pa.array([b"x" * 600])), topic="small")


def test_records_that_fit_one_by_one_are_taken_where_a_frame_of_all_would_be_too_large() -> None:
    """max.message.bytes below what frames are cut at must not make small records unwritable."""
    records = only(encoded(rows(value=pa.array([b"x" * 100] * 50)), topic="small"))
    assert len(records) == 50


def test_frames_are_cut_at_about_their_size_and_rows_keep_their_order() -> None:
    seed = seed_or(2)
    print(f"seed {seed}")
    rng = random.Random(seed)
    sizes = [rng.choice((10, 1000, 60_000, 300_000)) for _ in range(200)]
    values = [b"%06d" % n + bytes(size) for n, size in enumerate(sizes)]
    keys = [b"%d" % rng.randrange(8) for _ in values]
    batches = [
        rows(key=pa.array(keys[n : n + 7]), value=pa.array(values[n : n + 7]))
        for n in range(0, len(values), 7)
    ]
    count = 0
    found: dict[int, list[bytes]] = defaultdict(list)
    for target, frame in FrameEncoder(find, "orders", 0, lambda: NOW).encode(iter(batches)):
        records = FORMAT.decode(frame, 0)
        assert len(frame) <= FRAME_BYTES + 4096 or len(records) == 1
        found[target.partition] += [record.value or b"" for record in records]
        count += 1
    assert 20 < count < 200
    for number, written in found.items():
        expected = [v for k, v in zip(keys, values, strict=True) if (murmur2(k) & 0x7FFFFFFF) % 4 == number]
        assert written == expected


def test_a_slice_of_a_batch_is_encoded_as_what_it_is() -> None:
    """Arrow's slices share their buffers and begin somewhere in them."""
    whole = rows(
        key=pa.array([b"a", None, b"c", b"d"]),
        value=pa.array(["0", "1", None, "3"]),
        headers=pa.array([[{"key": f"h{n}", "value": None}] * n for n in range(4)], HEADERS),
        timestamp=pa.array([1000, 2000, None, 4000], TIME),
        partition=pa.array([0, 1, None, 0], pa.int32()),
    )
    for start, size in ((1, 3), (2, 1), (1, 2), (3, 1)):
        piece = whole.slice(start, size)
        rebuilt = pa.RecordBatch.from_pylist(piece.to_pylist(), whole.schema)
        assert encoded(piece) == encoded(rebuilt)
        assert sum(map(len, encoded(piece).values())) == size


def test_rows_are_gathered_from_many_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "FRAME_BYTES", 1000)
    batches = [rows(value=pa.array([b"%03d" % n])) for n in range(300)]
    frames = list(FrameEncoder(find, "other", 0, lambda: NOW).encode(iter(batches)))
    assert 5 < len(frames) < 30
    values = [record.value for _, frame in frames for record in FORMAT.decode(frame, 0)]
    assert values == [b"%03d" % n for n in range(300)]


def test_no_rows_are_no_frames() -> None:
    empty = rows(value=pa.array([], pa.binary()))
    assert encoded(empty, empty) == {}
    assert encoded() == {}

    def nothing() -> Iterator[pa.RecordBatch]:
        yield from ()

    assert list(FrameEncoder(find, None, 0, lambda: NOW).encode(nothing())) == []


@pytest.mark.parametrize("wrong", [[{"key": None, "value": b"x"}], [None]])
def test_a_header_without_a_key_is_refused(wrong: list[Any]) -> None:
    """Kafka has no such thing, and a header that nobody wrote must not be stored."""
    batch = rows(value=pa.array([b"a"]), headers=pa.array([wrong], HEADERS))
    with pytest.raises(RecordRefused, match="header"):
        encoded(batch)


def test_rows_with_long_names_of_headers_are_cut_into_frames_too() -> None:
    headers = pa.array([[{"key": "k" * 4000, "value": None}]] * 300, HEADERS)
    records = only(encoded(rows(value=pa.array([b"a"] * 300), headers=headers)))
    assert len(records) == 300


@pytest.mark.parametrize("text", [pa.large_string(), pa.large_binary()])
def test_large_columns_of_arrow_are_taken(text: pa.DataType) -> None:
    """Spark sends them with spark.sql.execution.arrow.useLargeVarTypes."""
    batch = rows(
        key=pa.array(["a"], text), value=pa.array(["b"], text), topic=pa.array(["orders"], pa.large_string())
    )
    (record,) = only(encoded(batch, topic=None))
    assert (record.key, record.value) == (b"a", b"b")


def test_frames_are_in_the_codec_of_their_topic() -> None:
    """As a broker would store them: a task knows what the topic asks for."""
    packed = ORDERS._replace(partitions=1, codec=CompressionChoice(Compression.ZSTD, 3))
    batch = rows(value=[b"the same " * 1000] * 3)
    ((_, frame),) = FrameEncoder(lambda _: packed, "orders", 0, lambda: NOW).encode(iter([batch]))
    header = read_header(frame)
    assert (header.compression, header.record_count) == (Compression.ZSTD, 3)
    assert [record.value for record in FORMAT.decode(frame, 0)] == [b"the same " * 1000] * 3
