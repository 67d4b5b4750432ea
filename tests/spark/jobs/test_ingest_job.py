"""Ingest: what becomes of files and queries, once, and what is refused in one sentence."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.commands import refused, said
from support.sinks import check_clean, leftovers, values_in

import cordwood
from cordwood.broker.partitioner import partition_for_key
from cordwood.records import Record
from cordwood.spark.jobs import ingesting as ingest_job
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.target import ensure_topic
from cordwood.spark.sink.encoding import Destination

pytestmark = pytest.mark.usefixtures("spark")

ORDERS = [
    {"customer": "alice", "amount": 3, "placed": "2024-05-06T07:08:09.123Z"},
    {"customer": "bob", "amount": 5, "placed": "2024-05-06T07:08:10Z"},
    {"customer": "alice", "amount": 7, "placed": "1714979291000"},
]
PLACED_MS = [1714979289123, 1714979290000, 1714979291000]


@dataclass
class Place:
    """Where a test ingests to: the options of the command, and the directory that the records are in."""

    options: list[str]
    data: Path

    def ingest(self, *arguments: object) -> str:
        return said("pipeline", "ingest", *self.options, *arguments)

    def records(self, topic: str = "orders") -> list[list[Record]]:
        with cordwood.open(self.data, read_only=True) as log:
            read = log.topic(topic)
            return [list(read.read(partition)) for partition in range(read.partitions)]


@pytest.fixture
def here(tmp_path: Path) -> Place:
    """A directory that is not there yet."""
    return Place(["--data", str(tmp_path / "data")], tmp_path / "data")


@pytest.fixture(params=["path", "address", "served path"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each way to the log in turn."""
    data = tmp_path / "data"
    with contextlib.ExitStack() as stack:
        options = ["--data", str(data)]
        if request.param != "path":
            broker = stack.enter_context(cordwood.Broker(data))
            options = ["--bootstrap", broker.bootstrap] if request.param == "address" else options
        yield Place(options, data)


def write_csv(path: Path) -> Path:
    lines = ["customer,amount,placed", *(",".join(map(str, row.values())) for row in ORDERS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_lines(path: Path) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in ORDERS)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def write_parquet(path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ORDERS), path)
    return path


# --- what becomes of rows -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "write", "amount"),
    [
        ("orders.csv", write_csv, str),
        ("orders.jsonl", write_lines, int),
        ("orders.json.gz", write_lines, int),
        ("orders.parquet", write_parquet, int),
    ],
)
def test_rows_of_every_format_become_records_with_key_time_and_the_row_as_json(
    here: Place, tmp_path: Path, name: str, write: object, amount: type
) -> None:
    assert callable(write)
    file = write(tmp_path / name)
    columns = ["--key", "customer", "--timestamp", "placed", "--partitions", "2"]
    assert here.ingest("-t", "orders", "--from", file, *columns) == "orders: 3 records published\n"
    found = here.records()
    expected: list[list[tuple[bytes, dict[str, object], int]]] = [[], []]
    for row, placed in zip(ORDERS, PLACED_MS, strict=True):
        key = str(row["customer"]).encode()
        whole = {**row, "amount": amount(row["amount"])}
        expected[partition_for_key(key, 2)].append((key, whole, placed))
    assert [
        [(record.key, json.loads(record.value or b""), record.timestamp) for record in each] for each in found
    ] == expected
    check_clean(here.data)


def test_a_query_chooses_value_partition_and_order(here: Place) -> None:
    query = (
        "select id as `the id`, cast(3 - id as string) as text, id % 2 as place, "
        "named_struct('a', id) as whole, timestamp_millis(id) as at from range(4) order by id desc"
    )
    here.ingest(
        "-t", "orders", "--query", query, "--key", "the id", "--value", "text",
        "--partition", "place", "--timestamp", "at", "--partitions", "2",
    )  # fmt: skip
    first, second = here.records()
    assert [(each.key, each.value, each.timestamp) for each in first] == [(b"2", b"1", 2), (b"0", b"3", 0)]
    assert [each.key for each in second] == [b"3", b"1"]
    here.ingest("-t", "nested", "--query", query, "--value", "whole")
    ((value, *_),) = [[record.value for record in each] for each in here.records("nested")]
    assert value == b'{"a":3}'


def test_round_robin_spreads_the_rows_of_one_key_evenly(here: Place) -> None:
    columns = ["--key", "k", "--partitioner", "round-robin", "--partitions", "4"]
    here.ingest("-t", "orders", "--query", "select 'k' as k, id from range(0, 40, 1, 1)", *columns)
    assert [len(each) for each in values_in(here.data, "orders")] == [10] * 4
    here.ingest(
        "-t", "keyed", "--query", "select 'k' as k from range(0, 40)", "--key", "k", "--partitions", 4
    )
    assert sorted(len(each) for each in values_in(here.data, "keyed")) == [0, 0, 0, 40]


def test_nothing_is_published_of_an_empty_input_but_the_topic_is_there(here: Place, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("customer,amount\n")
    for arguments in (["--from", tmp_path / "empty.csv"], ["--query", "select id from range(0)"]):
        assert here.ingest("-t", "orders", *arguments) == "orders: 0 records published\n"
    assert values_in(here.data, "orders") == [[]]
    assert here.ingest("-t", "orders", "--query", "select 1 as a") == "orders: 1 record published\n"


def test_several_files_and_globs_are_one_publication(here: Place, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.csv"):
        write_csv(tmp_path / name)
    chosen = ["--from", tmp_path / "[ab].csv", "--from", tmp_path / "c.csv", "-O", "header=false"]
    assert here.ingest("-t", "orders", *chosen, "--value", "_c0") == "orders: 12 records published\n"
    (found,) = values_in(here.data, "orders")
    assert sorted(found) == sorted([b"alice", b"bob", b"alice", b"customer"] * 3)


# --- once ---------------------------------------------------------------------------------------------


def test_under_an_id_a_second_run_publishes_nothing_and_says_so(anywhere: Place) -> None:
    rows = ["-t", "orders", "--query", "select id from range(5)", "--partitions", "2", "--id", "load"]
    again = "orders: nothing to do, load version {} is already published\n"
    assert anywhere.ingest(*rows) == "orders: 5 records published, as load version 0\n"
    assert anywhere.ingest(*rows) == again.format(0)
    assert anywhere.ingest(*rows, "--version", 2) == "orders: 5 records published, as load version 2\n"
    assert anywhere.ingest(*rows, "--version", 1) == again.format(1)
    report = json.loads(anywhere.ingest(*rows, "--version", 2, "--json"))
    assert report == {
        "job": "ingest", "topic": "orders", "records": 0, "published": False, "name": "load", "version": 2,
    }  # fmt: skip
    assert anywhere.ingest(*rows[:-1], "other") == "orders: 5 records published, as other version 0\n"
    assert sum(map(len, values_in(anywhere.data, "orders"))) == 15


# --- what is refused ----------------------------------------------------------------------------------


def test_what_cannot_be_ingested_is_refused_in_one_sentence_and_publishes_nothing(
    here: Place, tmp_path: Path, spark: SparkSession
) -> None:
    good, torn, bare = write_csv(tmp_path / "good.csv"), tmp_path / "torn.json", tmp_path / "orders"
    torn.write_text('{"a": 1}\n{"a": \n')
    bare.write_text("a\n")
    lines, table = write_lines(tmp_path / "lines with a space.json"), write_parquet(tmp_path / "t.parquet")
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(b'{"a": 1}\n\n[\n'))
    (tmp_path / "short.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 this is not a table")
    sentences = {
        ("--from", tmp_path / "none.csv"): f"there is no file {tmp_path}/none.csv",
        ("--from", bare): f"the name {bare} does not say what is in it: give --format",
        ("--from", good, "--from", torn): f"{good} is csv and {torn} is json",
        ("--from", good, "--key", "custmer"): "there is no column custmer; did you mean customer?",
        ("--from", good, "--value", "xyz"): "there is no column xyz; there are customer, amount, placed",
        ("--from", torn): f"""{torn}, line 2: '{{"a": ' is no JSON""",
        ("--from", packed): f"""{packed}, line 3: '[' is no JSON""",
        ("--from", tmp_path / "short.csv"): f"{tmp_path}/short.csv, line 3: '3' is no row of its columns",
        ("--from", tmp_path / "junk.parquet"): "junk.parquet",
        (
            "--from",
            good,
            "--timestamp",
            "customer",
        ): f"{good}, line 2: column customer is 'alice', which",
        (
            "--from",
            good,
            "--partition",
            "customer",
        ): f"{good}, line 2: column customer is 'alice', which",
        (
            "--from",
            good,
            "--partition",
            "amount",
        ): f"{good}, line 2: column amount is '3', but topic",
        (
            "--from",
            lines,
            "--partition",
            "amount",
        ): f"{lines}, line 1: column amount is '3', but topic",
        (
            "--from",
            table,
            "--timestamp",
            "customer",
        ): f"{table}, row 1: column customer is 'alice', which",
        ("--query", "select 1.5 as a", "--timestamp", "a"): "column a is decimal(2,1), not a timestamp",
        ("--query", "select true as a", "--partition", "a"): "column a is boolean, not the number of a",
        ("--query", "select * from nowhere"): "nowhere",
        ("--query", "selec"): "PARSE_SYNTAX_ERROR",
    }
    for arguments, sentence in sentences.items():
        found = refused("pipeline", "ingest", *here.options, "-t", "orders", *arguments)
        assert sentence in found, arguments
        assert len(found) < 600, found
        assert topics(here) == [], arguments
    print(f"{len(sentences)} inputs refused")
    assert leftovers(here.data) == []


def topics(place: Place) -> list[str]:
    """Return the topics there are, but for internal ones; none where there is no directory yet."""
    if not place.data.exists():
        return []
    with cordwood.open(place.data, read_only=True) as log:
        return [name for name in log.topics if not name.startswith("__")]


def test_a_failed_ingest_leaves_no_topic_unless_somebody_wrote_to_it(
    anywhere: Place, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["pipeline", "ingest", *anywhere.options, "--from", write_csv(tmp_path / "good.csv")]
    wrong = ["--partition", "amount", "--partitions", "2"]
    refused(*arguments, *wrong, "-t", "new")
    assert topics(anywhere) == []

    def written_to(place: LogPlace, topic: str, partitions: int | None) -> Destination:
        made = ensure_topic(place, topic, partitions)
        writer = spark.sql("select 'theirs' as value").write.format("cordwood").mode("append")
        writer.options(**place.options(), topic=topic).save()
        return made

    monkeypatch.setattr(ingest_job, "ensure_topic", written_to)
    refused(*arguments, *wrong, "-t", "used")
    monkeypatch.undo()
    assert topics(anywhere) == ["used"]
    assert sorted(values_in(anywhere.data, "used")) == [[], [b"theirs"]]
    # And it takes records as before.
    said(*arguments, "-t", "used")
    assert sum(map(len, values_in(anywhere.data, "used"))) == 4


def test_a_row_without_a_key_for_a_compacted_topic_is_named(here: Place, tmp_path: Path) -> None:
    with cordwood.open(here.data) as log:
        log.topic("latest", config={"cleanup.policy": "compact"})
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"k": "a", "v": 1}\n{"v": 2}\n')
    found = refused("pipeline", "ingest", *here.options, "-t", "latest", "--from", rows, "--key", "k")
    assert found == f"{rows}, line 2: column k is null, but topic latest is compacted and needs a key"
    assert topics(here) == ["latest"]


def test_a_topic_with_another_number_of_partitions_is_refused(here: Place) -> None:
    here.ingest("-t", "orders", "--query", "select 1 as a", "--partitions", 2)
    rows = ["-t", "orders", "--query", "select 1 as a", "--partitions", 3]
    found = refused("pipeline", "ingest", *here.options, *rows)
    assert found == "topic orders exists with partitions 2, not 3"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--from", "a.csv", "--query", "select 1"],
        ["--query", "select 1", "--format", "csv"],
        ["--query", "select 1", "--partition", "a", "--partitioner", "round-robin"],
        ["--query", "select 1", "--version", "1"],
    ],
)
def test_options_that_contradict_each_other_are_refused(here: Place, arguments: list[str]) -> None:
    refused("pipeline", "ingest", *here.options, "-t", "orders", *arguments, code=2)
    assert not here.data.exists()
