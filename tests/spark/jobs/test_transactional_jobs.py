"""The jobs over topics with transactions, some aborted and some open: they do what the local commands do.

Markers and records of aborted transactions are no rows. Verify, reindex and compact work on all frames and
give the files and the reports of the local commands. The others see what a reader of committed records does.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.commands import run, said
from support.data_directory import flipped
from support.producing import Sent
from support.seeds import seed_or
from support.transactions import end_transaction, send_rows

import cordwood
from cordwood.config import load_broker_config
from cordwood.disk.posix import PosixFiles
from cordwood.records import Record
from cordwood.spark.jobs.compacting import CompactOptions, compact
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.stats import StatsOptions, stats
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.log import WritablePartition
from cordwood.verify import verify_directory

SEED = seed_or(11)
#: No segment is sealed or removed for its age: the records say that they are years old.
SMALL = {
    "segment.bytes": "1500",
    "index.interval.bytes": "200",
    "segment.ms": str(1 << 45),
    "retention.ms": "-1",
}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
PRODUCERS = (1, 2, 3)
START_MS = 1_700_000_000_000
#: Topics and their partitions; orders is compacted, refunds is in the shared log.
TOPICS = {"orders": 2, "payments": 1, "refunds": 2}


class Sender:
    """Appends random transactions of several producers, and plain records between them, to a partition."""

    def __init__(self, log: WritablePartition, dice: random.Random) -> None:
        self._log = log
        self._dice = dice
        self._sequences = dict.fromkeys(PRODUCERS, 0)
        self.is_open: set[int] = set()
        self._now_ms = START_MS

    def rows(self, size: int) -> list[tuple[bytes | None, bytes | None]]:
        dice = self._dice
        return [
            (b"k%d" % dice.randrange(25), None if dice.random() < 0.1 else b"v%d" % dice.randrange(10**6))
            for _ in range(size)
        ]

    def step(self) -> None:
        """Append one batch or marker."""
        dice = self._dice
        producer, size = dice.choice([0, *PRODUCERS]), dice.randrange(1, 6)
        self._now_ms += 1000
        if producer in self.is_open and dice.random() < 0.4:
            self.end(producer)
        elif producer:
            sent = Sent(producer, 0, self._sequences[producer], ())
            send_rows(self._log, sent, self.rows(size), self._now_ms)
            self._sequences[producer] += size
            self.is_open.add(producer)
        else:
            self._log.append([(key, value, (), self._now_ms) for key, value in self.rows(size)])

    def end(self, producer: int) -> None:
        end_transaction(self._log, producer, committed=self._dice.random() < 0.6)
        self.is_open.discard(producer)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose partitions have sealed segments; in some partitions a transaction is open."""
    print(f"seed {SEED}")
    dice, path = random.Random(SEED), tmp_path_factory.mktemp("filled") / "data"
    with cordwood.open(path, sync="never") as log:
        log.topic("orders", 2, COMPACTED)
        log.topic("payments", 1, SMALL)
        log.topic("refunds", 2, {"cordwood.storage": "shared"})
        for topic, partitions in TOPICS.items():
            for number in range(partitions):
                partition = log.data_directory.partitions.writable(topic, number)
                sender = Sender(partition, dice)
                for _ in range(120):
                    sender.step()
                for producer in sorted(sender.is_open):
                    sender.end(producer)
                for _ in range(12):
                    sender.step()
                while topic == "orders" and not sender.is_open:
                    sender.step()
                partition.commit()
    return path


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    """A copy of that directory."""
    return Path(shutil.copytree(filled, tmp_path / "data"))


def committed(data: Path, topic: str) -> list[tuple[int, Record]]:
    """Return what a reader of committed records sees, with its partition."""
    with cordwood.open(data, read_only=True) as log:
        read = log.topic(topic)
        return [(number, record) for number in range(read.partitions) for record in read.read(number)]


def appended(data: Path, topic: str) -> int:
    """Return how many offsets a topic has, of whatever kind."""
    with cordwood.open(data, read_only=True) as log:
        read = log.topic(topic)
        return sum(read.high_watermark(number) for number in range(read.partitions))


def files_of(data: Path) -> dict[str, bytes]:
    """Return every file of segments, by its path."""
    found = sorted(data.rglob("segments/*"))
    return {str(file.relative_to(data)): file.read_bytes() for file in found}


def test_the_directory_has_all_kinds_of_records_in_every_topic(filled: Path) -> None:
    """Or the other tests would show nothing."""
    for topic in TOPICS:
        assert 150 < len(committed(filled, topic)) < appended(filled, topic) - 100
    assert len(list(filled.rglob("topics/orders/*/segments/*.txnindex"))) >= 6
    with cordwood.open(filled, read_only=True) as log:
        orders = log.topic("orders")
        assert all(orders.last_stable_offset(n) < orders.high_watermark(n) for n in range(2))


# --- verify, reindex, compact: all frames -------------------------------------------------------------


def transaction_indexes(data: Path) -> list[Path]:
    """Return the indexes of aborted transactions that have entries."""
    found = sorted(data.glob("topics/*/*/segments/*.txnindex"))
    return [path for path in found if path.stat().st_size]


def flip_an_index(data: Path) -> None:
    path = transaction_indexes(data)[0]
    path.write_bytes(flipped(path.read_bytes(), 100))


def remove_an_index(data: Path) -> None:
    transaction_indexes(data)[0].unlink()


def remove_all_indexes(data: Path) -> None:
    for path in sorted(data.glob("topics/*/*/segments/*index")) + sorted(data.glob("topics/**/*.idx")):
        path.unlink()


def flip_a_marker(data: Path) -> None:
    """The type of a marker says whether the transaction was committed."""
    path = sorted(data.glob("topics/payments/0/segments/*.log"))[0]
    content = path.read_bytes()
    position = 0
    while not content[position + 22] & 0x20:
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    size = 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    path.write_bytes(flipped(content, 8 * (position + size - 12)))


#: What is done to the directory, and the exit status of verify then.
DAMAGE: list[tuple[Callable[[Path], None], int]] = [
    (lambda data: None, 0),
    (flip_an_index, 3),
    (remove_an_index, 3),
    (flip_a_marker, 4),
]


@pytest.mark.parametrize(("damage", "code"), DAMAGE, ids=["nothing", *(d.__name__ for d, _ in DAMAGE[1:])])
def test_verify_says_what_the_local_command_says(
    damage: Callable[[Path], None], code: int, spark: SparkSession, data: Path
) -> None:
    damage(data)
    for more in ((), ("--json",)):
        here, there = run("verify", "--data", data, *more), run("pipeline", "verify", "--data", data, *more)
        assert (there.exit_code, there.stdout) == (here.exit_code, here.stdout)
        assert here.exit_code == code, here.output


@pytest.mark.parametrize("damage", [flip_an_index, remove_an_index, remove_all_indexes])
def test_reindex_gives_the_files_of_the_local_command(
    damage: Callable[[Path], None], spark: SparkSession, filled: Path, data: Path
) -> None:
    damage(data)
    # In the same place one after the other, because reports name whole paths.
    kept = Path(shutil.copytree(data, data.with_name("kept")))
    found = []
    for command in (["reindex"], ["pipeline", "reindex"]):
        shutil.rmtree(data)
        shutil.copytree(kept, data)
        done = run(*command, "--data", data)
        found.append((done.exit_code, done.stdout, done.stderr, files_of(data)))
    assert found[0] == found[1]
    assert found[1][0] == 0
    assert found[1][3] == files_of(filled)
    assert verify_directory(PosixFiles(), str(data)).sound


def test_compact_gives_the_files_and_the_report_of_the_local_compaction(
    spark: SparkSession, data: Path
) -> None:
    there = Path(shutil.copytree(data, data.with_name("there")))
    before = committed(data, "orders")
    config, _ = load_broker_config()
    # Opened without a coordinator, which would abort the transactions that are open, as no id has them.
    with contextlib.closing(
        DataDirectory(Opening(PosixFiles(), str(data), config, create=False))
    ) as directory:
        reports = directory.maintenance.maintain_all().compacted
    local = sorted(reports, key=lambda report: report.partition)
    spread = compact(spark, CompactOptions(str(there), "orders"))
    assert spread == local
    assert [report.partition for report in spread] == [0, 1]
    assert sum(report.records_dropped for report in spread) > 200
    assert files_of(there / "topics" / "orders") == files_of(data / "topics" / "orders")
    assert verify_directory(PosixFiles(), str(there)).sound
    # What a loop keeps of each key is what a reader still finds last.
    after = committed(there, "orders")
    assert latest_of(after) == latest_of(before)
    assert {(number, record.offset) for number, record in after} < {
        (number, record.offset) for number, record in before
    }


def latest_of(records: list[tuple[int, Record]]) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """Return offset and value of the last record of each key that is not deleted."""
    found: dict[tuple[int, bytes], tuple[int, bytes]] = {}
    for number, record in records:
        assert record.key is not None
        found.pop((number, record.key), None)
        if record.value is not None:
            found[number, record.key] = record.offset, record.value
    return found


# --- export, materialize, stats: committed records -----------------------------------------------------


def test_export_has_the_rows_of_the_local_scan(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    to = tmp_path / "out"
    said("pipeline", "export", "--data", data, "--to", to)
    for topic in TOPICS:
        expected = [(number, record.offset, record.value) for number, record in committed(data, topic)]
        found = []
        for file in sorted(to.rglob("*.parquet")):
            if f"topic={topic}" in str(file):
                number = int(str(file).split("partition=")[1].split("/")[0])
                table = pq.ParquetFile(file).read()
                columns = (table[name].to_pylist() for name in ("offset", "value"))
                found += [(number, *row) for row in zip(*columns, strict=True)]
        assert sorted(found, key=lambda row: row[:2]) == expected


def test_a_second_export_adds_only_what_became_stable(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    said("pipeline", "export", "--data", data, "--to", to, "-t", "orders")
    before = len(committed(data, "orders"))
    with cordwood.open(data) as log:
        for number in range(2):
            partition = log.data_directory.partitions.writable("orders", number)
            for each in partition.open_transactions():
                end_transaction(partition, each.producer_id, committed=True)
            partition.commit()
    after = len(committed(data, "orders"))
    assert after > before
    text = said("pipeline", "export", "--data", data, "--to", to, "-t", "orders")
    assert f"exported {after - before} record" in text
    rows = spark.read.parquet(str(to)).select("partition", "offset").collect()
    assert len(rows) == len(set(rows)) == after


@pytest.mark.parametrize("topic", TOPICS)
def test_materialize_keeps_the_last_committed_record_of_each_key(
    topic: str, spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    expected = latest_of(committed(data, topic))
    said("pipeline", "materialize", "--data", data, "-t", topic, "--latest", "--to", table)
    rows = spark.read.parquet(str(table)).collect()
    found = {(row.partition, bytes(row.key)): (row.offset, bytes(row.value)) for row in rows}
    assert len(rows) == len(found)
    assert found == expected


def test_materialize_to_a_topic_says_the_same(spark: SparkSession, data: Path) -> None:
    said("pipeline", "materialize", "--data", data, "-t", "payments", "--latest", "--to-topic", "latest")
    expected = {key: value for (_, key), (_, value) in latest_of(committed(data, "payments")).items()}
    assert {key: value for (_, key), (_, value) in latest_of(committed(data, "latest")).items()} == expected


@pytest.mark.parametrize("topic", TOPICS)
def test_stats_counts_what_a_loop_over_committed_records_counts(
    topic: str, spark: SparkSession, data: Path
) -> None:
    records = committed(data, topic)
    options = StatsOptions(LogPlace(path=str(data)), (topic,), keys_shown=5)
    (found,) = stats(spark, options).topics
    (again,) = stats(spark, replace(options, topics=(topic,))).topics
    assert found == again
    assert found.records == len(records)
    counts = Counter(number for number, _ in records)
    assert {each.partition: each.records for each in found.partitions} == {
        number: counts[number] for number in range(TOPICS[topic])
    }
    assert found.key_bytes == sum(len(record.key or b"") for _, record in records)
    assert found.value_bytes == sum(len(record.value or b"") for _, record in records)
    assert found.null_values == sum(record.value is None for _, record in records)
    times = [record.timestamp for _, record in records]
    assert (found.first_ms, found.last_ms) == (min(times), max(times))
    keys = Counter(record.key for _, record in records)
    assert found.estimated_distinct_keys == len(keys)
    assert sorted(each.records for each in found.top_keys) == sorted(sorted(keys.values())[-5:])
