"""A log as a table: every tool sees the records as they are, reading only what it asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from support.clocks import HookedFiles, ManualClock
from support.logs import DATA, SMALL, segment_file

import cordwood
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded import scan as scan_module
from cordwood.embedded.scan import COLUMNS, DEFAULT_COLUMNS, Scan
from cordwood.errors import CorruptRange, LogClosed, OffsetOutOfRange, RecordRefused, UnknownTopic
from cordwood.records import Record

NOW = 1_700_000_000_000
#: Out of order, with repetitions, and one far ahead of all that follow.
TIMES = [1_000, 1_010, 1_005, 5_000, 1_020, 1_020, 900, 1_030, 1_015, 2_000]


def open_log(files: Files, **options: Any) -> cordwood.Log:
    return cordwood.open(DATA, files=files, clock=ManualClock(NOW), **options)


def fill(topic: cordwood.Topic, partition: int, count: int = 60) -> None:
    """Append frames of one to four rows with null keys, tombstones, headers and times out of order."""
    at = 0
    while at < count:
        rows = []
        for i in range(at, min(at + 1 + at % 4, count)):
            key = None if i % 5 == 0 else b"k%d" % (i % 7)
            value = None if i % 6 == 1 else b"" if i % 11 == 0 else b"value %d of %d" % (i, partition)
            headers = [("n", b"%d" % i), ("n", None)][: i % 3]
            rows.append((key, value, headers, TIMES[i % len(TIMES)] + partition))
        topic.append_many(rows, partition=partition)
        at += len(rows)


@pytest.fixture
def files() -> HookedFiles:
    return HookedFiles(MemoryFiles())


@pytest.fixture
def log(files: HookedFiles) -> Iterator[cordwood.Log]:
    """A topic t of three partitions over several segments, the last one without a record."""
    with open_log(files) as opened:
        topic = opened.topic("t", 3, SMALL)
        fill(topic, 0)
        fill(topic, 1, 37)
        yield opened


def records(log: cordwood.Log, *partitions: int) -> list[tuple[int, Record]]:
    """What the record API says is there, in the order of a scan."""
    topic = log.topic("t")
    return [(number, record) for number in partitions or (0, 1, 2) for record in topic.read(number)]


def row(partition: int, record: Record) -> dict[str, Any]:
    """A record as a row of the default columns, times as milliseconds."""
    return {
        "key": record.key,
        "value": record.value,
        "topic": "t",
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": 0,
    }


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    if "timestamp" in table.column_names:
        at = table.column_names.index("timestamp")
        table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def query(scan: Scan, sql: str) -> list[Any]:
    """Return the rows that DuckDB finds; it looks up ``scan`` among the variables here."""
    assert len(scan.columns) > 0
    relation = duckdb.sql(sql)
    assert relation is not None
    return relation.fetchall()


def offsets(scan: Scan) -> list[int]:
    found: list[int] = pa.table(scan)["offset"].to_pylist()
    return found


# --- Tools ---------------------------------------------------------------------------------------


def test_pyarrow_reads_a_scan_as_a_table(log: cordwood.Log) -> None:
    table = pa.table(log.scan("t"))
    expected = [row(*each) for each in records(log)]
    assert len(expected) == 97
    assert table.column_names == list(DEFAULT_COLUMNS)
    assert rows_of(table) == expected
    table.validate(full=True)


def test_pyarrow_reads_a_scan_batch_by_batch(log: cordwood.Log) -> None:
    for reader in (log.scan("t").reader(), pa.RecordBatchReader.from_stream(log.scan("t"))):
        found = []
        for batch in reader:
            batch.validate(full=True)
            assert batch.schema == reader.schema
            found += batch["offset"].to_pylist()
        assert found == [record.offset for _, record in records(log)]


def test_pandas_reads_a_scan(log: cordwood.Log) -> None:
    expected = [row(*each) for each in records(log)]
    for frame in (pd.DataFrame.from_arrow(log.scan("t")), pa.table(log.scan("t")).to_pandas()):
        assert list(frame["offset"]) == [each["offset"] for each in expected]
        assert [None if pd.isna(v) else v for v in frame["value"]] == [each["value"] for each in expected]
        assert [None if pd.isna(k) else k for k in frame["key"]] == [each["key"] for each in expected]
        times = [int(when.timestamp() * 1000 + 0.5) for when in frame["timestamp"]]
        assert times == [each["timestamp"] for each in expected]
        largest = frame.groupby("partition")["offset"].max().to_dict()
        assert largest == {0: 59, 1: 36}


def test_polars_reads_a_scan(log: cordwood.Log) -> None:
    frame = pl.DataFrame(log.scan("t"))
    assert rows_of(frame.to_arrow()) == [row(*each) for each in records(log)]
    tombstones = frame.filter(pl.col("value").is_null())["offset"].to_list()
    assert tombstones == [record.offset for _, record in records(log) if record.value is None]


def test_duckdb_queries_a_scan(log: cordwood.Log) -> None:
    scan = log.scan("t")
    assert query(scan, 'select count(*), max("offset") from scan') == [(97, 59)]
    found = query(
        scan,
        'select partition, count(*), min("offset"), max("offset"), count(key), count(value) '
        "from scan group by partition order by partition",
    )
    expected = []
    for number in (0, 1):
        of_it = [record for _, record in records(log, number)]
        keys, values = (sum(getattr(r, name) is not None for r in of_it) for name in ("key", "value"))
        expected.append((number, len(of_it), 0, of_it[-1].offset, keys, values))
    assert found == expected
    by_key = query(scan, "select value from scan where key = 'k3'::blob order by partition, \"offset\"")
    assert by_key == [(record.value,) for _, record in records(log) if record.key == b"k3"]


class Observed:
    """Notes which columns scans were read with, and how many batches they gave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.columns: list[tuple[str, ...]] = []
        self.batches = 0
        real = Scan.batches

        def batches(scan: Scan) -> Iterator[pa.RecordBatch]:
            self.columns.append(scan.columns)
            for batch in real(scan):
                self.batches += 1
                assert batch.schema.names == list(scan.columns)
                yield batch

        monkeypatch.setattr(Scan, "batches", batches)


def test_a_lazy_polars_query_reads_only_the_columns_it_needs(
    log: cordwood.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = records(log)
    observed = Observed(monkeypatch)
    lazy = log.scan("t").lazy()
    assert observed.columns == []
    found = lazy.filter(pl.col("offset") >= 30).select("value").collect()
    assert found["value"].to_list() == [r.value for _, r in everything if r.offset >= 30]
    found = lazy.select("offset", "partition").collect()
    assert found.columns == ["offset", "partition"]
    assert found.rows() == [(r.offset, number) for number, r in everything]
    found = lazy.filter(pl.col("key") == b"k3").select(pl.col("offset").sum()).collect()
    assert found.item() == sum(r.offset for _, r in everything if r.key == b"k3")
    assert [set(columns) for columns in observed.columns] == [
        {"offset", "value"},
        {"offset", "partition"},
        {"key", "offset"},
    ]


def test_a_lazy_polars_query_gives_what_an_eager_one_gives(log: cordwood.Log) -> None:
    eager, lazy = pl.DataFrame(log.scan("t")), log.scan("t").lazy()
    assert lazy.collect_schema() == eager.schema
    assert lazy.collect().equals(eager)
    late = pl.col("timestamp").dt.epoch("ms") > 1_010
    queries: list[Any] = [
        lambda frame: frame.head(5),
        lambda frame: frame.head(70),
        lambda frame: frame.head(0),
        lambda frame: frame.filter(late),
        lambda frame: frame.filter(late).head(4),
        lambda frame: frame.head(20).filter(late),
        lambda frame: frame.filter(pl.col("value").is_null()).select("offset", "key"),
        lambda frame: frame.filter(pl.col("offset") < 0),
        lambda frame: frame.group_by("partition").agg(pl.len(), pl.col("offset").max()).sort("partition"),
        lambda frame: frame.slice(10, 50).select("offset"),
        lambda frame: frame.tail(3),
        lambda frame: frame.select("timestampType", "offset"),
    ]
    for number, query in enumerate(queries):
        assert query(lazy).collect().equals(query(eager)), f"query {number}"


def test_a_lazy_polars_query_that_needs_no_column_still_counts_the_rows(log: cordwood.Log) -> None:
    lazy = log.scan("t").lazy()
    assert lazy.select(pl.len()).collect().item() == 97
    assert lazy.with_row_index().select("index").collect()["index"].to_list() == list(range(97))
    assert lazy.filter(pl.col("partition") == 1).select(pl.len()).collect().item() == 37


def test_a_lazy_head_stops_reading(
    log: cordwood.Log, files: HookedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five rows are in the first window; the other windows are not read."""
    monkeypatch.setattr(scan_module, "WINDOW_BYTES", 300)
    observed = Observed(monkeypatch)
    assert log.scan("t").lazy().head(5).collect()["offset"].to_list() == [0, 1, 2, 3, 4]
    few = observed.batches
    observed.batches = 0
    assert len(log.scan("t").lazy().collect()) == 97
    assert observed.batches > 10
    assert few <= 3


# --- Columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        ["offset"],
        ["value", "key"],
        ["topic"],
        ["partition", "topic"],
        ["timestampType", "timestamp"],
        ["headers", "offset"],
        list(reversed(COLUMNS)),
    ],
    ids=str,
)
def test_columns_come_as_asked_in_the_order_asked(log: cordwood.Log, columns: list[str]) -> None:
    scan = log.scan("t", columns=columns)
    table = pa.table(scan)
    assert table.column_names == columns == scan.schema.names
    assert table.schema == scan.schema
    found = rows_of(table)
    expected = []
    for number, record in records(log):
        headers = [{"key": name, "value": value} for name, value in record.headers]
        everything = {**row(number, record), "headers": headers}
        expected.append({name: everything[name] for name in columns})
    assert found == expected


@pytest.mark.parametrize("columns", [["ofset"], ["offset", "Key"], ["offset", "offset"], []], ids=str)
def test_a_column_that_is_not_there_is_refused_by_name(log: cordwood.Log, columns: list[str]) -> None:
    with pytest.raises(RecordRefused) as caught:
        log.scan("t", columns=columns)
    assert str(columns) in str(caught.value)
    assert all(name in str(caught.value) for name in COLUMNS)


def test_headers_come_when_asked_for(log: cordwood.Log) -> None:
    assert "headers" not in log.scan("t").schema.names
    found = pl.DataFrame(log.scan("t", 0, columns=["headers"]))["headers"].to_list()
    assert found == [
        [{"key": name, "value": value} for name, value in record.headers] for _, record in records(log, 0)
    ]
    assert max(map(len, found)) == 2


def test_log_append_time_is_told_by_its_type() -> None:
    with open_log(MemoryFiles()) as log:
        log.topic("t", config={"message.timestamp.type": "LogAppendTime"}).append(b"v", timestamp=5)
        (found,) = rows_of(pa.table(log.scan("t")))
        assert (found["timestamp"], found["timestampType"]) == (NOW, 1)


# --- Which records -------------------------------------------------------------------------------


def test_one_partition_or_all(log: cordwood.Log) -> None:
    for number in (0, 1, 2):
        found = rows_of(pa.table(log.scan("t", number)))
        assert found == [row(*each) for each in records(log, number)]
    assert set(pa.table(log.scan("t"))["partition"].to_pylist()) == {0, 1}


def test_start_and_stop_are_exact_wherever_batches_begin(log: cordwood.Log) -> None:
    """Every pair of offsets, most of them inside a batch."""
    checked = 0
    for start in range(0, 61, 3):
        for stop in (start, start + 1, start + 2, start + 17, 60, 1000, None):
            found = offsets(log.scan("t", 0, start=start, stop=stop))
            assert found == list(range(start, min(60, 1000 if stop is None else stop)))
            checked += 1
    assert checked == 147
    assert offsets(log.scan("t", 0, start=9, stop=4)) == []
    assert offsets(log.scan("t", stop=2)) == [0, 1, 0, 1]


def test_a_start_outside_of_the_log_is_refused_when_it_is_read(log: cordwood.Log) -> None:
    log.topic("t").advance_log_start(0, 7)
    for start in (-1, 6, 61):
        scan = log.scan("t", 0, start=start)
        with pytest.raises(OffsetOutOfRange):
            list(scan.batches())
    assert offsets(log.scan("t", 0)) == list(range(7, 60))
    assert offsets(log.scan("t", 0, start=60)) == []


def test_since_and_until_are_exact_though_times_are_out_of_order(log: cordwood.Log) -> None:
    moments = [None, 0, 899, 900, 901, 1_005, 1_015, 1_020, 1_021, 2_000, 5_000, 5_001, 9_000]
    for since in moments:
        for until in moments:
            found = rows_of(pa.table(log.scan("t", since=since, until=until)))
            expected = [
                row(number, record)
                for number, record in records(log)
                if (since is None or record.timestamp >= since)
                and (until is None or record.timestamp < until)
            ]
            assert found == expected, f"from {since} until {until}"


def test_times_and_offsets_narrow_together_and_need_no_column_of_theirs(log: cordwood.Log) -> None:
    scan = log.scan("t", 0, start=13, stop=50, since=1_010, until=1_021, columns=["value"])
    table = pa.table(scan)
    assert table.column_names == ["value"]
    assert table["value"].to_pylist() == [
        r.value for _, r in records(log, 0) if 13 <= r.offset < 50 and 1_010 <= r.timestamp < 1_021
    ]
    assert len(table) > 5


def test_tombstones_null_keys_and_empty_values_are_told_apart() -> None:
    with open_log(MemoryFiles()) as log:
        pairs = [(None, None), (None, b""), (b"", None), (b"", b""), (b"k", b"v")]
        log.topic("t").append_many(pairs)
        scan = log.scan("t", columns=["key", "value"])
        assert [(each["key"], each["value"]) for each in rows_of(pa.table(scan))] == pairs
        assert pl.DataFrame(scan).rows() == pairs
        assert query(scan, "select * from scan") == pairs


def test_an_empty_topic_is_a_table_without_rows(log: cordwood.Log) -> None:
    log.topic("empty", 2)
    scan = log.scan("empty")
    assert pa.table(scan).schema == scan.schema
    assert len(pa.table(scan)) == 0
    assert len(pl.DataFrame(scan)) == len(scan.lazy().collect()) == 0
    assert query(scan, "select count(*) from scan") == [(0,)]


def test_what_is_not_there_is_refused(log: cordwood.Log) -> None:
    for topic, partition in (("nothing", None), ("t", 3), ("t", -1)):
        with pytest.raises(UnknownTopic):
            log.scan(topic, partition)


# --- When it is read -----------------------------------------------------------------------------


class Reads:
    """Counts reads of segments."""

    def __init__(self, files: HookedFiles) -> None:
        self.count = 0
        files.before = self._before

    def _before(self, kind: str, path: str) -> None:
        if kind in ("read", "map") and path.endswith(".log"):
            self.count += 1


def test_nothing_is_read_before_a_tool_asks(
    log: cordwood.Log, files: HookedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then window after window, as far as the tool goes."""
    monkeypatch.setattr(scan_module, "WINDOW_BYTES", 300)
    counted = Reads(files)
    scan = log.scan("t", 1)
    lazy = scan.lazy().filter(pl.col("offset") > 3)
    reader = scan.reader()
    assert (len(scan.schema), len(lazy.collect_schema())) == (7, 7)
    assert counted.count == 0
    reader.read_next_batch()
    first = counted.count
    assert first > 0
    reader.read_all()
    assert counted.count > first


def test_a_scan_can_be_read_again_and_then_sees_what_came_meanwhile(log: cordwood.Log) -> None:
    scan = log.scan("t", 1)
    assert offsets(scan) == offsets(scan) == list(range(37))
    log.topic("t").append(b"new", partition=1)
    assert offsets(scan) == list(range(38))


def test_a_scan_made_before_the_first_record_sees_it(log: cordwood.Log) -> None:
    """A partition that was never used is one that is used, the next time the scan is read."""
    scan = log.scan("t", 2)
    assert offsets(scan) == []
    log.topic("t").append(b"first", partition=2)
    assert offsets(log.scan("t", 2)) == [0]
    assert offsets(scan) == [0]


@pytest.mark.parametrize("partition", [0, 1])
def test_a_reading_sees_the_high_watermark_at_its_beginning(
    log: cordwood.Log, monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    """Of every partition: what is appended while it runs is for the next one."""
    monkeypatch.setattr(scan_module, "WINDOW_BYTES", 300)
    before = [(number, record.offset) for number, record in records(log)]
    reader = log.scan("t", columns=["partition", "offset"]).reader()
    found = reader.read_next_batch().to_pylist()
    log.topic("t").append_many([(None, b"late")] * 3, partition=partition)
    found += reader.read_all().to_pylist()
    assert [(each["partition"], each["offset"]) for each in found] == before


def test_unsynced_records_are_not_seen(log: cordwood.Log) -> None:
    """Only what is durable: the high watermark stays behind the end of the log."""
    partition = log.data_directory.partitions.writable("t", 1)
    partition.append([(None, b"not yet")])
    assert offsets(log.scan("t", 1)) == list(range(37))
    partition.commit()
    assert offsets(log.scan("t", 1)) == list(range(38))


def test_a_read_only_directory_is_scanned_beside_its_writer(log: cordwood.Log, files: HookedFiles) -> None:
    with open_log(files, read_only=True) as reader:
        scan = reader.scan("t")
        assert rows_of(pa.table(scan)) == [row(*each) for each in records(log)]
        log.topic("t").append(b"new", partition=2)
        assert rows_of(pa.table(scan)) == [row(*each) for each in records(log)]
        assert len(scan.lazy().collect()) == 98
        assert offsets(reader.scan("t", 0, start=31, since=1_010)) == [
            r.offset for _, r in records(log, 0) if r.offset >= 31 and r.timestamp >= 1_010
        ]


# --- When it cannot be read ----------------------------------------------------------------------


@pytest.fixture
def damaged() -> Iterator[tuple[cordwood.Log, int]]:
    """A log with one byte of one sealed frame flipped; and the offset of that frame."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t", config=SMALL)
        for i in range(20):
            topic.append(b"value %03d" % i, timestamp=1_000 + i)
    base = int(
        sorted(name for name in files.list(f"{DATA}/topics/t/0/segments") if name.endswith(".log"))[1][:20]
    )
    file = files.open(segment_file("t", 0, base), "write")
    content = file.read_at(0, file.size())
    at = content.index(b"value %03d" % (base + 1))
    file.write_at(at, [bytes([content[at] ^ 1])])
    file.close()
    with open_log(files) as log:
        yield log, base + 1


def test_a_corrupt_range_comes_out_of_the_scan(damaged: tuple[cordwood.Log, int]) -> None:
    """What comes before it is served, and reading can go on where the error says."""
    log, offset = damaged
    scan = log.scan("t")
    found: list[pa.RecordBatch] = []
    with pytest.raises(CorruptRange) as caught:
        found.extend(scan.batches())
    assert pa.Table.from_batches(found)["offset"].to_pylist() == list(range(offset))
    assert caught.value.offset == offset
    with pytest.raises(CorruptRange):
        scan.reader().read_all()
    after = caught.value.resume_offset
    assert offsets(log.scan("t", start=after)) == list(range(after, 20))
    assert offsets(log.scan("t", stop=offset)) == list(range(offset))


def test_no_tool_takes_a_corrupt_range_for_the_end(damaged: tuple[cordwood.Log, int]) -> None:
    """Through Arrow's stream each has its own kind of error; all of them say where."""
    log, offset = damaged
    scan = log.scan("t")
    tools: Sequence[Any] = [
        lambda: pa.table(scan),
        lambda: pl.DataFrame(scan),
        lambda: scan.lazy().select("offset").collect(),
        lambda: pd.DataFrame.from_arrow(scan),
        lambda: query(scan, 'select max("offset") from scan'),
    ]
    for tool in tools:
        with pytest.raises(Exception, match=f"offsets from {offset} are refused"):
            tool()


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("partition", [0, 2], ids=["used", "unused"])
def test_a_closed_log_is_not_scanned(
    log: cordwood.Log, files: HookedFiles, partition: int, read_only: bool
) -> None:
    """A scan made before is refused too, and does not come out as a table without rows."""
    opened = open_log(files, read_only=True) if read_only else log
    scan = opened.scan("t", partition)
    lazy = scan.lazy()
    opened.close()
    with pytest.raises(LogClosed):
        opened.scan("t")
    with pytest.raises(LogClosed):
        list(scan.batches())
    with pytest.raises(Exception, match="is closed"):
        lazy.collect()


# --- Memory --------------------------------------------------------------------------------------

MEMORY = """
import sys
import cordwood
import pyarrow as pa

def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10

# Arrow's own pool keeps what it was given; the system's gives it back, so that growth means use.
pa.set_memory_pool(pa.system_memory_pool())
log = cordwood.open(sys.argv[1], sync="never")
topic = log.topic("t", config={"segment.bytes": str(64 << 20)})
rows = [(None, bytes(range(250)) * 4, (), 5)] * 900
while topic.size() < 256 << 20:
    topic.append_many(rows)
expected = topic.high_watermark()
pa.table(log.scan("t", stop=10))
before = peak = anonymous()
found = value_bytes = 0
for batch in pa.RecordBatchReader.from_stream(log.scan("t")):
    found += batch.num_rows
    value_bytes += sum(map(len, batch["value"][:1].to_pylist())) * batch.num_rows
    peak = max(peak, anonymous())
assert (found, value_bytes) == (expected, expected * 1000), (found, value_bytes, expected)
print(peak - before)
"""


@pytest.mark.called_only
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is Linux's")
def test_a_log_of_256_mib_is_scanned_in_bounded_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    print(f"memory grew by {int(done.stdout) >> 10:,} KiB")
    assert int(done.stdout) < 64 << 20
