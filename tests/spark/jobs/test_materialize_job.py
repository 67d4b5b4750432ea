"""Materialize: a table and a topic hold what the records say, however often and in how many steps."""

from __future__ import annotations

import contextlib
import json
import random
import runpy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.commands import refused, said
from support.interrupting import interrupted_after
from support.patience import SECONDS_MAX, until
from support.seeds import seed_or
from support.sinks import check_clean

import cordwood

pytestmark = pytest.mark.usefixtures("spark")

SEED = seed_or(7)
START_MS = 1_700_000_100_000
SCHEMA = "item string, amount long"
Row = tuple[bytes | None, bytes | None, Sequence[Any], int]


@dataclass
class Place:
    """Where a test works: the options of the command, the directory of the log, and one for results."""

    options: list[str]
    data: Path
    home: Path

    def materialize(self, *arguments: object) -> str:
        return said("pipeline", "materialize", *self.options, "-t", "orders", *arguments)

    def append(self, rows: Sequence[tuple[int, Row]]) -> None:
        """Append rows to the partitions they name."""
        options = self.options[1] if self.options[0] == "--data" else None
        if options is None or (self.data / "meta" / "lock").read_text().count("listening"):
            self._produce(rows)
            return
        with cordwood.open(self.data) as log:
            topic = log.topic("orders", 2)
            for partition in range(2):
                topic.append_many([row for place, row in rows if place == partition], partition=partition)

    def _produce(self, rows: Sequence[tuple[int, Row]]) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.options[1], "linger.ms": 5})
        for partition, (key, value, _, timestamp) in rows:
            producer.produce("orders", value, key, partition=partition, timestamp=timestamp)
        assert producer.flush(SECONDS_MAX) == 0

    def latest(self, topic: str = "orders") -> list[dict[str, Any]]:
        """Return what a table of the latest holds, as a loop over the records makes it."""
        found: dict[tuple[int, bytes], dict[str, Any]] = {}
        with cordwood.open(self.data, read_only=True) as log:
            read = log.topic(topic)
            for partition in range(read.partitions):
                for record in read.read(partition, read.log_start_offset(partition)):
                    if record.key is None:
                        continue
                    found.pop((partition, record.key), None)
                    if record.value is not None:
                        time = datetime.fromtimestamp(record.timestamp / 1000, UTC)
                        row = {"key": record.key, "value": record.value, "partition": partition}
                        found[partition, record.key] = {**row, "offset": record.offset, "timestamp": time}
        return sorted(found.values(), key=lambda row: (row["partition"], row["offset"]))

    def records(self, topic: str) -> int:
        with cordwood.open(self.data, read_only=True) as log:
            read = log.topic(topic)
            return sum(read.high_watermark(partition) for partition in range(read.partitions))


@pytest.fixture
def here(tmp_path: Path) -> Place:
    """A directory that nobody holds, with a topic of two partitions."""
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders", 2)
    return Place(["--data", str(data)], data, tmp_path)


@pytest.fixture(params=["path", "address"])
def anywhere(request: pytest.FixtureRequest, here: Place) -> Iterator[Place]:
    """Each way to the log in turn."""
    with contextlib.ExitStack() as stack:
        if request.param == "address":
            broker = stack.enter_context(cordwood.Broker(here.data))
            here.options = ["--bootstrap", broker.bootstrap]
        yield here


def orders(count: int, dice: random.Random) -> list[tuple[int, Row]]:
    """Return rows of few keys, some without one, some of them tombstones, some seconds apart."""
    rows: list[tuple[int, Row]] = []
    for number in range(count):
        key = None if dice.random() < 0.1 else b"k%d" % dice.randrange(12)
        value = json.dumps({"item": dice.choice("ab"), "amount": number}).encode()
        late = dice.randrange(30_000)
        row = (key, None if dice.random() < 0.2 else value, (), START_MS + 5_000 * number - late)
        rows.append((dice.randrange(2), row))
    return rows


def table(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table in the order they are in, file after file."""
    # Resolved once: the name may lead to the next version between two files.
    files = sorted(path.resolve().glob("*.parquet"))
    assert files
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]


def forget_last_commit(checkpoint: Path) -> None:
    """Let Spark believe that the last batch of a query was never done."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


# --- the latest of each key ---------------------------------------------------------------------------


def test_replaying_gives_the_same_table_whole_twice_or_in_steps(here: Place) -> None:
    """Row 108. Also over a start of the log that moved, and with records without a key left out."""
    dice = random.Random(SEED)
    print(f"seed {SEED}")
    steps = ["--checkpoint", here.home / "c", "--to", here.home / "steps"]
    for count in (40, 26):
        here.append(orders(count, dice))
        here.materialize("--latest", *steps)
        assert table(here.home / "steps") == here.latest()
    said_twice = [here.materialize("--latest", "--to", here.home / "whole") for _ in range(2)]
    keyless = said_twice[0].partition(" without a key")[0].rpartition(",")[2].split()[0]
    assert (
        said_twice
        == [
            f"orders: {len(here.latest())} rows in {here.home}/whole of 66 records, "
            f"{keyless} records without a key left out\n"
        ]
        * 2
    )
    assert table(here.home / "whole") == table(here.home / "steps") == here.latest()
    assert here.latest()
    forget_last_commit(here.home / "c")
    assert here.materialize("--latest", *steps).startswith(f"orders: {len(here.latest())} rows in ")
    assert table(here.home / "steps") == here.latest()
    with cordwood.open(here.data) as log:
        log.topic("orders").advance_log_start(0, 10)
    here.materialize("--latest", "--to", here.home / "whole")
    assert table(here.home / "whole") == here.latest()


def test_a_compacted_topic_gets_what_changed_and_nothing_the_second_time(anywhere: Place) -> None:
    dice = random.Random(SEED)
    for count in (30, 20):
        anywhere.append(orders(count, dice))
        before = {row["key"] + b"%d" % row["partition"]: row["value"] for row in _latest_if(anywhere, "out")}
        after = {row["key"] + b"%d" % row["partition"]: row["value"] for row in anywhere.latest()}
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        published = json.loads(anywhere.materialize("--latest", "--to-topic", "out", "--json"))["published"]
        assert published == len(changed)
        assert _state(anywhere.latest("out")) == _state(anywhere.latest())
    again = anywhere.materialize("--latest", "--to-topic", "out")
    assert again.startswith("orders: 0 records published to out of 50 records, ")
    with cordwood.open(anywhere.data, read_only=True) as log:
        assert log.config_of("out").cleanup_policy == "compact"


def test_a_stream_publishes_each_batch_once_though_it_runs_twice(here: Place) -> None:
    here.append(orders(50, random.Random(SEED)))
    streamed = ["--latest", "--to-topic", "streamed", "--checkpoint", here.home / "c"]
    here.materialize(*streamed)
    size = here.records("streamed")
    assert here.materialize(*streamed) == "orders: 0 records published to streamed\n"
    # As if it had been killed between the publication and Spark's own note of it: the batch runs again.
    forget_last_commit(here.home / "c")
    here.materialize(*streamed)
    assert here.records("streamed") == size
    assert _state(here.latest("streamed")) == _state(here.latest())


def _latest_if(place: Place, topic: str) -> list[dict[str, Any]]:
    with cordwood.open(place.data, read_only=True) as log:
        there = topic in log.topics
    return place.latest(topic) if there else []


def _state(rows: list[dict[str, Any]]) -> set[tuple[int, bytes, bytes]]:
    return {(row["partition"], row["key"], row["value"]) for row in rows}


def test_whoever_reads_the_table_finds_the_old_one_or_the_new_one(here: Place) -> None:
    """The name is one rename away from either, and the old files outlive one more run."""
    here.append([(0, (b"k", b"1", (), START_MS))])
    path = here.home / "latest"
    here.materialize("--latest", "--to", path)
    (old,) = path.resolve().glob("*.parquet")
    here.append([(0, (b"k", b"2", (), START_MS))])
    here.materialize("--latest", "--to", path)
    assert path.is_symlink()
    assert [row["value"] for row in pq.read_table(old).to_pylist()] == [b"1"]
    assert [row["value"] for row in table(path)] == [b"2"]
    (here.home / f".latest.{'0' * 12}").mkdir()
    here.materialize("--latest", "--to", path)
    assert not old.exists()
    assert len(list(here.home.glob(".latest.*"))) == 2


# --- windows ------------------------------------------------------------------------------------------


def windows(place: Place, size_ms: int) -> dict[tuple[int, str], tuple[int, int, float]]:
    """Return count, sum and average of each window and item, as a loop over the records makes them."""
    found: dict[tuple[int, str], list[int]] = {}
    with cordwood.open(place.data, read_only=True) as log:
        read = log.topic("orders")
        for partition in range(2):
            for record in read.read(partition):
                if record.value is not None:
                    value = json.loads(record.value)
                    start = record.timestamp // size_ms * size_ms
                    found.setdefault((start, value["item"]), []).append(value["amount"])
    return {name: (len(each), sum(each), sum(each) / len(each)) for name, each in found.items()}


def in_table(rows: list[dict[str, Any]]) -> dict[tuple[int, str], tuple[int, int, float]]:
    found = {}
    for row in rows:
        start = row["start"]
        start = datetime.fromisoformat(start) if isinstance(start, str) else start
        name = (int(start.timestamp() * 1000), row["item"])
        assert name not in found, f"{name} is there twice"
        found[name] = (row["count"], row["sum_amount"], row["avg_amount"])
    return found


def test_windows_are_the_same_whole_twice_or_in_steps_in_a_table_and_in_a_topic(here: Place) -> None:
    dice = random.Random(SEED)
    asked = ["--window", "1 minute", "--value-schema", SCHEMA, "--group", "item"]
    asked += ["--sum", "amount", "--avg", "amount"]
    rows = orders(60, dice)
    for part in (rows[:40], rows[40:]):
        here.append(part)
        here.materialize(*asked, "--to", here.home / "steps", "--checkpoint", here.home / "c")
        assert in_table(table(here.home / "steps")) == windows(here, 60_000)
    here.materialize(*asked, "--to", here.home / "whole")
    assert table(here.home / "whole") == table(here.home / "steps")
    here.materialize(*asked, "--to-topic", "steps", "--checkpoint", here.home / "d")
    published = [here.materialize(*asked, "--to-topic", "whole") for _ in range(2)]
    assert published[1] == "orders: 0 records published to whole of 60 records\n"
    for topic in ("steps", "whole"):
        values = [json.loads(row["value"]) for row in here.latest(topic)]
        assert in_table(values) == windows(here, 60_000)
    final = ["--final", "--watermark", "30 seconds", "--checkpoint", here.home / "e"]
    here.materialize(*asked, *final, "--to", here.home / "final")
    closed = in_table(table(here.home / "final"))
    assert 0 < len(closed) < len(windows(here, 60_000))
    assert closed.items() <= windows(here, 60_000).items()
    check_clean(here.data)


def test_a_value_that_does_not_parse_ends_the_job_with_its_place_or_is_skipped(here: Place) -> None:
    here.append([(0, (b"k", b'{"amount": 1}', (), START_MS)), (0, (b"k", b'{"amount": ', (), START_MS))])
    asked = ["--window", "1 minute", "--value-schema", "amount long", "--to", here.home / "t"]
    arguments = ["pipeline", "materialize", *here.options, "-t", "orders", *asked]
    sentence = "the value at offset 1 of partition 0 is not JSON of the schema"
    assert sentence in refused(*arguments)
    assert not (here.home / "t").exists()
    here.materialize(*asked, "--skip-malformed")
    assert [row["count"] for row in table(here.home / "t")] == [1]


def test_the_example_of_a_stream_adds_nothing_when_it_is_run_twice(
    here: Place, spark: SparkSession, tmp_path: Path
) -> None:
    """examples/streaming.py: an order sent twice counts once, and the window it closes is written once."""
    example = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "streaming.py"))
    rows: list[tuple[int, Row]] = []
    for number in [*range(45), 20]:
        placed = datetime.fromtimestamp(START_MS / 1000 + 60 * number, UTC).isoformat()
        order = {"order": number, "item": "axe", "amount": 2, "placed_at": placed}
        rows.append((number % 2, (b"k", json.dumps(order).encode(), (), START_MS)))
    here.append(rows)
    where = {"path": str(here.data)}
    for _ in range(2):
        example["run"](spark, where, where, str(tmp_path / "c"))
        with cordwood.open(here.data, read_only=True) as log:
            found = [json.loads(record.value or b"") for record in log.topic("revenue").read(0)]
        assert [row["orders"] for row in sorted(found, key=lambda row: row["start"])] == [15, 15]
        assert [row["revenue"] for row in sorted(found, key=lambda row: row["start"])] == [30, 30]


# --- for as long as it runs ---------------------------------------------------------------------------


def test_a_continuous_job_follows_the_topic_and_ends_cleanly_with_a_signal(here: Place) -> None:
    """What came until the signal is in the table, and the next run goes on after it."""
    path = here.home / "t"
    here.append([(0, (b"a", b"1", (), START_MS))])
    asked = ["--latest", "--to", path, "--checkpoint", here.home / "c"]

    def values() -> list[bytes]:
        return [row["value"] for row in table(path)] if path.exists() else []

    def watch() -> None:
        until(lambda: values() == [b"1"], "the first row is in the table")
        here.append([(1, (b"b", b"2", (), START_MS))])
        until(lambda: values() == [b"1", b"2"], "the second row is in the table")

    with interrupted_after(watch):
        said_at_the_end = here.materialize(*asked, "--continuous")
    assert said_at_the_end.startswith(f"orders: 2 rows in {path}")
    assert here.materialize(*asked).startswith(f"orders: 2 rows in {path}")
    assert table(path) == here.latest()


# --- small and broken topics --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "to"), [(["--latest"], "table"), (["--window", "1 minute", "--group", "key"], "topic")]
)
def test_a_topic_without_records_and_one_with_a_single_one(here: Place, kind: list[str], to: str) -> None:
    where = ["--to", str(here.home / "t")] if to == "table" else ["--to-topic", "t"]
    since = ["--to", str(here.home / "s")] if to == "table" else ["--to-topic", "s"]
    since += ["--checkpoint", str(here.home / "c")]
    for found in (here.materialize(*kind, *where), here.materialize(*kind, *since)):
        assert found.startswith(f"orders: 0 {'rows in' if to == 'table' else 'records published to'}")
    here.append([(1, (b"k", b"v", (), START_MS))])
    for found in (here.materialize(*kind, *where), here.materialize(*kind, *since)):
        assert found.startswith(f"orders: 1 {'row in' if to == 'table' else 'record published to'}")


def test_what_cannot_be_materialized_is_refused_in_one_sentence(here: Place) -> None:
    (here.home / "taken").mkdir()
    with cordwood.open(here.data) as log:
        log.topic("plain", 2)
        log.topic("narrow", 1, {"cleanup.policy": "compact"})
    here.append(orders(5, random.Random(SEED)))
    window = ["--window", "1 minute", "--value-schema", SCHEMA, "--to", here.home / "t"]
    sentences = {
        ("-t", "none", "--latest", "--to", here.home / "t"): "there is no topic none; cordwood topic list",
        ("--latest", "--to", here.home / "taken"): f"{here.home}/taken exists and is not a table of this job",
        ("--latest", "--to", here.home / "a" / "b"): f"there is no directory {here.home}/a to put the table",
        ("--latest", "--to-topic", "plain"): "topic plain exists with cleanup.policy delete, not compact",
        ("--latest", "--to-topic", "narrow"): "topic narrow exists with partitions 1, not 2",
        (*window, "--sum", "amonut"): "there is no column amonut; did you mean amount?",
        (*window, "--sum", "item"): "column item is string, not a number to add up",
        (*window, "--time", "item"): "column item is string, not timestamp or milliseconds",
        (*window, "--group", "xyz"): "there is no column xyz; there are item, amount, key, partition",
        (*window[:2], "--value-schema", "a b c", *window[4:]): "the schema of the values does not parse",
        ("--window", "soon", *window[2:]): "soon",
    }
    for arguments, sentence in sentences.items():
        topic = [] if "-t" in arguments else ["-t", "orders"]
        assert sentence in refused("pipeline", "materialize", *here.options, *topic, *arguments), arguments
    print(f"{len(sentences)} jobs refused")
    assert not (here.home / "t").exists()


@pytest.mark.parametrize("since", [False, True])
def test_a_corrupt_segment_is_named_with_status_4_and_the_table_stays(here: Place, since: bool) -> None:
    asked = ["--latest", "--to", here.home / "t", *(["--checkpoint", here.home / "c"] if since else [])]
    here.append([(0, (b"k", b"before", (), START_MS))])
    here.materialize(*asked)
    here.append([(0, (b"k", b"a later value", (), START_MS))])
    with cordwood.open(here.data) as log:
        log.topic("orders").roll(0)
    (segment,) = [file for file in here.data.rglob("*.log") if b"a later value" in file.read_bytes()]
    content = bytearray(segment.read_bytes())
    content[content.index(b"a later value")] ^= 1
    segment.write_bytes(content)
    found = refused("pipeline", "materialize", *here.options, "-t", "orders", *asked, code=4)
    assert found.startswith(f"{segment} at byte ")
    assert [row["value"] for row in table(here.home / "t")] == [b"before"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to", "t"],
        ["--latest", "--window", "1 minute", "--to", "t"],
        ["--latest"],
        ["--latest", "--to", "t", "--to-topic", "t"],
        ["--latest", "--to-topic", "orders"],
        ["--latest", "--sum", "a", "--to", "t"],
        ["--latest", "--to", "t", "--continuous"],
        ["--window", "1 minute", "--to", "t", "--final"],
        ["--window", "1 minute", "--to", "t", "--watermark", "1 minute"],
    ],
)
def test_options_that_contradict_each_other_are_refused(here: Place, arguments: list[str]) -> None:
    refused("pipeline", "materialize", *here.options, "-t", "orders", *arguments, code=2)
