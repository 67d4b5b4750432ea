"""What `cordwood.open` promises, on a disk and in memory alike."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from support.clocks import HookedFiles, ManualClock
from support.disks import FaultyFiles, image
from support.patience import SECONDS_MAX

import cordwood
from cordwood.broker.partitioner import partition_for_key
from cordwood.disk.files import Files, os_error, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.errors import (
    CordwoodError,
    CorruptRange,
    DirectoryLocked,
    DirectoryRefused,
    FrameTooLarge,
    InvalidSetting,
    LogClosed,
    LogFailed,
    MetadataDamaged,
    OffsetOutOfRange,
    RecordRefused,
    StorageError,
    TimestampsRejected,
    TopicMismatch,
    UnexpectedOffset,
    UnknownSetting,
    UnknownTopic,
)
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.maintenance.run import MaintenanceReport

NOW = 1_700_000_000_000


@dataclass
class Place:
    """Where a log is kept; it can be opened there again and again."""

    files: FaultyFiles
    path: str
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))

    def open(self, **options: Any) -> cordwood.Log:
        return cordwood.open(self.path, files=self.files, clock=self.clock, **options)

    def names(self) -> list[str]:
        """Every path there is, below where the log is kept."""
        return sorted(path[len(self.path) :] for path in image(self.files.inner, self.path))

    def read(self, name: str) -> bytes:
        return read_file(self.files.inner, self.path + name)

    def write(self, name: str, data: bytes) -> None:
        if self.files.inner.exists(self.path + name):
            self.files.inner.unlink(self.path + name)
        self.files.inner.open(self.path + name, "create").write_at(0, [data])


def place_on(backend: str, tmp_path: Path) -> Place:
    inner: Files = PosixFiles() if backend == "directory" else MemoryFiles()
    return Place(FaultyFiles(inner), str(tmp_path / "data") if backend == "directory" else "/data")


@pytest.fixture(params=["memory", "directory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_on(request.param, tmp_path)


@pytest.fixture
def log(place: Place) -> Iterator[cordwood.Log]:
    with place.open() as opened:
        yield opened


def values(topic: cordwood.Topic, partition: int = 0, start: int | None = None) -> list[bytes | None]:
    first = topic.log_start_offset(partition) if start is None else start
    return [record.value for record in topic.read(partition, first)]


def partition_log(log: cordwood.Log, partition: int) -> PartitionLog:
    """The engine's side of a partition of orders."""
    return log.data_directory.partitions.own("orders", partition)


def run_together(count: int, work: Callable[[int], None]) -> None:
    """Run *work* with 0, 1, 2 … in that many threads at once; raise what one of them raised.

    They change turns as often as the interpreter lets them, so that what can collide does.
    """
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            barrier.wait(SECONDS_MAX)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive(), "a thread never came back"
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


# --- Backends ------------------------------------------------------------------------------------


def test_a_path_opens_a_directory_and_memory_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with cordwood.open(":memory:") as log:
        log.topic("orders").append(b"0")
    assert list(tmp_path.iterdir()) == []
    with cordwood.open(tmp_path / "deep" / "data") as log:
        log.topic("orders").append(b"0")
    with cordwood.open("deep/data") as log:
        assert values(log.topic("orders")) == [b"0"]


def test_each_log_in_memory_is_its_own() -> None:
    with cordwood.open(":memory:") as one, cordwood.open(":memory:") as other:
        one.topic("orders").append(b"0")
        assert other.topics == []


def test_records_outlive_the_log_object(place: Place) -> None:
    with place.open() as log:
        log.topic("orders", partitions=2).append(b"kept", key=b"k", partition=1)
    with place.open() as log:
        assert log.topics == ["orders"]
        topic = log.topic("orders")
        assert (topic.partitions, values(topic, 1)) == (2, [b"kept"])
        assert topic.append(b"next", partition=1) == (1, 1)


# --- Appending -----------------------------------------------------------------------------------


def test_offsets_are_dense_from_zero_in_each_partition(log: cordwood.Log) -> None:
    topic = log.topic("orders", partitions=2)
    placed = [topic.append(b"%d" % i, partition=i % 2) for i in range(6)]
    assert [(p.partition, p.offset) for p in placed] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_a_key_decides_the_partition_as_in_kafka(log: cordwood.Log) -> None:
    topic = log.topic("orders", partitions=7)
    keys = [b"", b"k", b"user-42", b"\x00\xff", *(b"%d" % i for i in range(20))]
    for key in keys:
        assert topic.append(b"", key=key).partition == partition_for_key(key, 7)
    assert {placed.partition for placed in topic.append_many([(key, b"") for key in keys])} == {
        partition_for_key(key, 7) for key in keys
    }


def test_without_a_key_partitions_take_turns_by_call(log: cordwood.Log) -> None:
    topic = log.topic("orders", partitions=3)
    assert [topic.append(b"").partition for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [p.partition for p in topic.append_many([(None, b"")] * 4)] == [0, 0, 0, 0]
    assert topic.append(b"").partition == 1


def test_many_rows_are_one_frame_per_partition_and_placed_in_row_order(log: cordwood.Log) -> None:
    topic = log.topic("orders", partitions=3)
    rows = [(b"%d" % (i % 10), b"value %d" % i) for i in range(60)]
    placed = topic.append_many(rows)
    seen: Counter[int] = Counter()
    for row, place in zip(rows, placed, strict=True):
        assert place == (partition_for_key(row[0], 3), seen[place.partition])
        seen[place.partition] += 1
    for partition, count in seen.items():
        fetched = partition_log(log, partition).read(0, 1 << 20)
        assert sum(run.last - run.first + 1 for run in fetched.runs) == 1
        expected = [row[1] for row in rows if partition_for_key(row[0], 3) == partition]
        assert values(topic, partition) == expected
        assert len(expected) == count


def test_many_rows_take_one_sync_per_partition_touched(place: Place) -> None:
    with place.open() as log:
        topic = log.topic("orders", partitions=2)
        for partition in (0, 1):
            topic.append(b"", partition=partition)
        before = place.files.calls.count("sync")
        topic.append_many([(None, b"x")] * 100, partition=0)
        assert place.files.calls.count("sync") == before + 1
        topic.append_many([(b"%d" % i, b"x") for i in range(20)])
        assert place.files.calls.count("sync") == before + 3


def test_rows_may_carry_headers_and_a_timestamp(log: cordwood.Log) -> None:
    topic = log.topic("orders")
    topic.append_many([(None, b"0"), (b"k", b"1", [("h", b"x")]), (None, None, [], 5)], partition=0)
    first, second, third = topic.read()
    assert (first.key, first.headers, first.timestamp) == (None, (), NOW)
    assert (second.key, second.headers, second.timestamp) == (b"k", (("h", b"x"),), NOW)
    assert (third.value, third.timestamp) == (None, 5)


def test_no_rows_are_placed_nowhere(log: cordwood.Log) -> None:
    topic = log.topic("orders", partitions=2)
    assert topic.append_many([]) == []
    assert topic.append_many([], partition=1) == []
    assert topic.log_end_offset(1) == 0


def test_rows_may_come_from_a_generator(log: cordwood.Log) -> None:
    topic = log.topic("orders", partitions=2)
    assert len(topic.append_many((b"%d" % i, b"") for i in range(10))) == 10
    assert len(topic.append_many(((None, b"") for _ in range(10)), partition=1)) == 10


@pytest.mark.parametrize("value", [None, b"", b"\x00", b"x" * 100_000])
@pytest.mark.parametrize("key", [None, b"", b"k"])
def test_null_and_empty_are_kept_apart(log: cordwood.Log, key: bytes | None, value: bytes | None) -> None:
    """A null value is a tombstone, a null key is no key; empty ones are neither."""
    topic = log.topic("orders")
    topic.append(value, key=key)
    (record,) = topic.read()
    assert (record.key, record.value) == (key, value)


def test_headers_keep_their_order_repeat_and_may_be_null(log: cordwood.Log) -> None:
    headers = [("trace", b"1"), ("trace", b"2"), ("", b""), ("ünïcødé", None), ("a" * 300, b"x" * 300)]
    topic = log.topic("orders")
    topic.append(b"", headers=headers)
    topic.append(b"", headers=iter(headers))
    assert [record.headers for record in topic.read()] == [tuple(headers)] * 2


@pytest.mark.parametrize(
    "row",
    [
        ("key", b"value"),
        (b"key", "value"),
        (b"key", 7),
        (b"key", b"value", [(b"name", b"x")]),
        (b"key", b"value", [("name", "x")]),
        (b"key", b"value", [("name",)]),
        (b"key", b"value", [], "now"),
        (b"key", b"value", [], 1 << 63),
        (b"key",),
    ],
    ids=repr,
)
def test_a_record_that_cannot_be_held_is_refused_and_nothing_is_stored(log: cordwood.Log, row: Any) -> None:
    topic = log.topic("orders")
    with pytest.raises(RecordRefused):
        topic.append_many([(None, b"good"), row], partition=0)
    assert topic.log_end_offset() == 0
    assert topic.append(b"next").offset == 0


def test_a_record_beyond_the_limit_is_refused_and_nothing_is_stored(log: cordwood.Log) -> None:
    topic = log.topic("orders", config={"max.message.bytes": "1000"})
    topic.append(b"x" * 900)
    with pytest.raises(FrameTooLarge):
        topic.append(b"x" * 1_000)
    with pytest.raises(FrameTooLarge):
        topic.append_many([(None, b"x" * 100)] * 10, partition=0)
    assert topic.append(b"x" * 900).offset == 1


def test_an_expected_offset_that_is_not_the_next_is_refused_and_nothing_is_stored(log: cordwood.Log) -> None:
    topic = log.topic("orders")
    assert topic.append(b"0", expected_offset=0).offset == 0
    for wrong in (0, 2, -1):
        with pytest.raises(UnexpectedOffset) as caught:
            topic.append(b"never", expected_offset=wrong)
        assert (caught.value.expected, caught.value.next_offset) == (wrong, 1)
    assert topic.append(b"1", expected_offset=1).offset == 1
    assert values(topic) == [b"0", b"1"]


def test_of_many_who_expect_the_same_offset_one_gets_it(log: cordwood.Log) -> None:
    topic = log.topic("orders")
    won: list[int] = []

    def try_once(number: int) -> None:
        with suppress(UnexpectedOffset):
            topic.append(b"%d" % number, expected_offset=0)
            won.append(number)

    run_together(16, try_once)
    assert len(won) == 1
    assert values(topic) == [b"%d" % won[0]]


# --- Time ----------------------------------------------------------------------------------------


def test_a_record_keeps_its_timestamp_or_gets_the_clocks(place: Place, log: cordwood.Log) -> None:
    topic = log.topic("orders")
    topic.append(b"", timestamp=5)
    place.clock.advance(10)
    topic.append(b"")
    topic.append(b"", timestamp=0)
    assert [record.timestamp for record in topic.read()] == [5, NOW + 10, 0]


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_times_given_by_the_log_never_run_backwards(place: Place, kind: str) -> None:
    """The clock may be set back. Where every time is the log's own, also while the log is closed."""
    with place.open() as log:
        topic = log.topic("orders", config={"message.timestamp.type": kind})
        for _ in range(3):
            topic.append(b"")
            place.clock.set_back(1_000)
        topic.append(b"")
        if kind == "LogAppendTime":
            log.close()
            topic = place.open().topic("orders")
            topic.append(b"")
        place.clock.advance(10_000)
        topic.append(b"")
        *before, last = (record.timestamp for record in topic.read())
        assert set(before) == {NOW}
        assert last == NOW + 7_000
        topic._log.close()


def test_a_time_from_the_future_is_its_producers_alone(place: Place) -> None:
    """One record with a wrong clock must not give all later ones its time, before or after a restart."""
    with place.open() as log:
        topic = log.topic("orders", config={"message.timestamp.after.max.ms": str(10**9)})
        topic.append(b"", timestamp=NOW + 10**9)
        topic.append(b"")
    with place.open() as log:
        topic = log.topic("orders")
        topic.append(b"")
        assert [record.timestamp for record in topic.read()] == [NOW + 10**9, NOW, NOW]


def test_a_time_that_the_topic_does_not_take_is_refused_and_nothing_is_stored(place: Place) -> None:
    """As over the wire: by default an hour ahead is the limit, and there is none for the past."""
    hour = 3_600_000
    with place.open() as log:
        topic = log.topic("orders")
        topic.append(b"old", timestamp=0)
        topic.append(b"ahead", timestamp=NOW + hour)
        late = NOW + hour + 1
        with pytest.raises(TimestampsRejected, match=f"timestamp {late} is not at most"):
            topic.append(b"", timestamp=late)
        with pytest.raises(TimestampsRejected, match=f"timestamp {late} is not at most"):
            topic.append_stream([b""], timestamp=late)
        rows = [(None, b"", (), NOW), (None, b"", (), NOW + 2 * hour), (None, b"", (), NOW + hour)]
        with pytest.raises(TimestampsRejected) as caught:
            topic.append_many(rows)
        assert list(caught.value.reasons) == [1]
        strict = log.topic("strict", config={"message.timestamp.before.max.ms": "1000"})
        strict.append(b"young", timestamp=NOW - 1000)
        with pytest.raises(TimestampsRejected, match=f"is not within .{NOW - 1000}, "):
            strict.append(b"", timestamp=NOW - 1001)
        assert [record.value for record in topic.read()] == [b"old", b"ahead"]
        assert [record.value for record in strict.read()] == [b"young"]


@pytest.mark.parametrize("storage", ["own", "shared"])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_is_appended_is_compressed_as_the_topic_says(place: Place, codec: str, storage: str) -> None:
    config = {"compression.type": codec, "cordwood.storage": storage}
    value = b"the same again and again " * 1000
    with place.open() as log:
        topic, plain = log.topic("packed", config=config), log.topic("plain")
        for each in (topic, plain):
            each.append(value, key=b"k", headers=[("h", b"1")])
            each.append_many([(None, value), (None, None)])
        assert topic.size() < plain.size() / 10
        assert [(r.key, r.value, r.headers, r.offset) for r in topic.read()] == [
            (r.key, r.value, r.headers, r.offset) for r in plain.read()
        ]
    with place.open() as log:
        assert [record.value for record in log.topic("packed").read()] == [value, value, None]


def test_log_append_time_replaces_what_the_producer_says(place: Place) -> None:
    with place.open() as log:
        topic = log.topic("orders", config={"message.timestamp.type": "LogAppendTime"})
        topic.append(b"0", timestamp=5)
        topic.append_many([(None, b"1", [], 5), (None, b"2", [], 1 << 50)], partition=0)
        place.clock.set_back(500)
        topic.append(b"3")
        place.clock.advance(1_500)
        topic.append(b"4", timestamp=5)
    with place.open() as log:
        topic = log.topic("orders")
        times = [record.timestamp for record in topic.read()]
        assert times == [NOW, NOW, NOW, NOW, NOW + 1_000]
        assert (topic.offset_at(NOW), topic.offset_at(NOW + 1)) == (0, 4)
        topic.truncate(0, 2)
        assert [record.timestamp for record in topic.read()] == [NOW, NOW]


def test_the_first_offset_at_a_time_is_exact(log: cordwood.Log) -> None:
    topic = log.topic("orders", partitions=2)
    for time in (30, 10, 20, 40):
        topic.append(b"", partition=1, timestamp=time)
    assert [topic.offset_at(time, 1) for time in (0, 10, 30, 31, 40, 41)] == [0, 0, 0, 3, 3, None]
    assert topic.offset_at(0, 0) is None


# --- Reading -------------------------------------------------------------------------------------


def test_a_read_is_a_snapshot_of_the_call(log: cordwood.Log) -> None:
    topic = log.topic("orders")
    topic.append_many([(None, b"%d" % i) for i in range(3)], partition=0)
    reading = topic.read()
    topic.append(b"later")
    assert [record.value for record in reading] == [b"0", b"1", b"2"]
    assert values(topic) == [b"0", b"1", b"2", b"later"]


def test_a_read_begins_and_stops_where_it_is_told_also_inside_a_batch(log: cordwood.Log) -> None:
    topic = log.topic("orders")
    for first in range(0, 12, 4):
        topic.append_many([(None, b"%d" % (first + i)) for i in range(4)], partition=0)
    for start, stop in itertools.product(range(13), range(15)):
        read = [record.offset for record in topic.read(start=start, stop=stop)]
        assert read == list(range(start, min(stop, 12)))


def test_a_start_at_the_high_watermark_gives_nothing(log: cordwood.Log) -> None:
    topic = log.topic("orders")
    assert list(topic.read()) == []
    topic.append(b"0")
    assert list(topic.read(start=1)) == []


def test_a_start_out_of_range_is_refused_by_the_call_with_both_bounds(log: cordwood.Log) -> None:
    """At the call, not at the first record: whoever passes the iterator on would never see it."""
    topic = log.topic("orders")
    topic.append_many([(None, b"")] * 8, partition=0)
    topic.advance_log_start(0, 3)
    for start in (-1, 0, 2, 9, 1 << 62):
        with pytest.raises(OffsetOutOfRange) as caught:
            topic.read(start=start)
        assert (caught.value.offset, caught.value.start, caught.value.end) == (start, 3, 8)


def test_offsets_say_how_many_which_and_how_far(log: cordwood.Log) -> None:
    topic = log.topic("orders")
    assert topic.offsets().is_empty
    topic.append_many([(None, b"")] * 8, partition=0)
    topic.advance_log_start(0, 3)
    offsets = topic.offsets()
    assert (offsets.start, offsets.end, len(offsets)) == (3, 8, 5)
    assert (2 in offsets, 3 in offsets, 7 in offsets, 8 in offsets) == (False, True, True, False)
    assert (offsets.normalize(5), offsets.normalize(8)) == (2, None)


def test_more_than_one_read_holds_comes_in_one_iteration(log: cordwood.Log) -> None:
    topic = log.topic("orders", config={"segment.bytes": "700000"})
    for i in range(30):
        topic.append(bytes([i]) * 150_000)
    assert [(value or b"")[0] for value in values(topic)] == list(range(30))


def test_damage_is_refused_by_place_and_everything_else_is_read(place: Place) -> None:
    with place.open() as log:
        topic = log.topic("orders")
        for i in range(9):
            topic.append(b"%d" % i)
            if i % 3 == 2:
                topic.roll()
    name = f"/topics/orders/0/segments/{3:020d}.log"
    data = place.read(name)
    place.write(name, data[:-1] + bytes([data[-1] ^ 1]))
    with place.open() as log:
        topic = log.topic("orders")
        reading = topic.read()
        assert [next(reading).value for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        with pytest.raises(CorruptRange) as caught:
            next(reading)
        assert caught.value.path == place.path + name
        assert (caught.value.offset, caught.value.resume_offset) == (5, 6)
        assert values(topic, start=6) == [b"6", b"7", b"8"]
        assert [record.value for record in topic.read(stop=5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert topic.append(b"9").offset == 9
    assert place.read(name) == data[:-1] + bytes([data[-1] ^ 1])


# --- Topics --------------------------------------------------------------------------------------


def test_a_topic_is_made_with_one_partition_unless_told_otherwise(log: cordwood.Log) -> None:
    assert log.topic("one").partitions == 1
    assert log.topic("many", partitions=5).partitions == 5
    assert log.topics == ["many", "one"]


def test_of_an_existing_topic_what_is_given_must_be_as_stored(place: Place) -> None:
    settings = {"segment.bytes": "1000", "preallocate": "TRUE"}
    with place.open() as log:
        log.topic("orders", partitions=3, config=settings)
    with place.open() as log:
        assert log.topic("orders").partitions == 3
        assert log.topic("orders", 3, {"segment.bytes": "1000"}).partitions == 3
        assert log.topic("orders", config={"preallocate": "true"}).partitions == 3
        with pytest.raises(TopicMismatch) as caught:
            log.topic("orders", partitions=2)
        mismatch = caught.value
        assert (mismatch.topic, mismatch.what, mismatch.stored, mismatch.given) == (
            "orders",
            "partitions",
            3,
            2,
        )
        with pytest.raises(TopicMismatch) as caught:
            log.topic("orders", config={"segment.bytes": "2000"})
        assert (caught.value.what, caught.value.stored, caught.value.given) == (
            "segment.bytes",
            "1000",
            "2000",
        )
        with pytest.raises(TopicMismatch):
            log.topic("orders", config={"segment.ms": "5"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("segment.byte", "segment.bytes"),
        ("log.segment.bytes", "segment.bytes"),
        ("cordwood.snyc", "cordwood.sync"),
        ("x", None),
    ],
)
def test_an_unknown_setting_is_refused_with_the_one_that_was_meant(
    log: cordwood.Log, name: str, meant: str | None
) -> None:
    with pytest.raises(UnknownSetting) as caught:
        log.topic("orders", config={name: "1"})
    assert (caught.value.name, caught.value.suggestion) == (name, meant)
    assert meant is None or f"did you mean {meant}?" in str(caught.value)
    assert log.topics == []


def test_a_value_that_does_not_fit_is_refused_and_no_topic_is_made(log: cordwood.Log) -> None:
    for config in ({"segment.bytes": "many"}, {"cordwood.sync": "sometimes"}, {"preallocate": "yes"}):
        with pytest.raises(InvalidSetting):
            log.topic("orders", config=config)
    with pytest.raises(InvalidSetting):
        log.topic("orders", partitions=0)
    assert log.topics == []


BAD_NAMES = ["", ".", "..", "a/b", "/a", "../a", "a\0", "a\n", "a b", "ä", "a" * 250, "a\\b", "~", "a:b"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_bad_topic_name_is_refused_before_any_path_is_built(place: Place, name: str) -> None:
    with place.open() as log:
        names, calls = place.names(), list(place.files.calls)
        with pytest.raises(CordwoodError):
            log.topic(name)
        assert place.files.calls == calls
        assert place.names() == names
    with place.open(read_only=True) as log, pytest.raises(CordwoodError):
        log.topic(name)


@pytest.mark.parametrize("name", ["a", "...", "-", "_", "A.b-c_9", "a" * 249])
def test_every_name_that_kafka_takes_is_taken(log: cordwood.Log, name: str) -> None:
    topic = log.topic(name)
    topic.append(b"0")
    assert values(topic) == [b"0"]


def test_a_partition_that_is_not_there_is_refused(log: cordwood.Log) -> None:
    topic = log.topic("orders", partitions=2)
    for partition in (-1, 2, 1_000):
        for call in (
            lambda p=partition: topic.append(b"", partition=p),
            lambda p=partition: topic.read(p),
            lambda p=partition: topic.high_watermark(p),
            lambda p=partition: topic.truncate(p, 0),
        ):
            with pytest.raises(UnknownTopic):
                call()


def test_many_threads_that_make_one_topic_get_the_same_one(place: Place) -> None:
    """Two entries of one name would give its records to the later and lose those of the earlier."""
    with place.open() as log:
        run_together(16, lambda number: void(log.topic("orders", partitions=2).append(b"%d" % number)))
        stored = [value for partition in (0, 1) for value in values(log.topic("orders"), partition)]
        assert set(stored) == {b"%d" % number for number in range(16)}
        assert len(stored) == 16
    with place.open() as log:
        topic = log.topic("orders")
        assert topic.log_end_offset(0) + topic.log_end_offset(1) == 16
    assert place.read("/meta/catalogue.log").count(b'"orders"') == 1


def void(_: object) -> None:
    """Drop a result."""


def test_the_initial_offset_is_the_first_one(place: Place) -> None:
    with place.open() as log:
        topic = log.topic("orders", partitions=2, config={"cordwood.initial.offset": "1000"})
        assert (topic.log_start_offset(), topic.high_watermark(), topic.log_end_offset()) == (1_000,) * 3
        assert topic.append(b"0", partition=0).offset == 1_000
    with place.open() as log:
        topic = log.topic("orders")
        assert topic.append(b"1", partition=0).offset == 1_001
        assert topic.append(b"0", partition=1).offset == 1_000
        assert [record.offset for record in topic.read(0, 1_000)] == [1_000, 1_001]
        with pytest.raises(OffsetOutOfRange):
            topic.read(0, 0)


# --- Cutting -------------------------------------------------------------------------------------


def test_truncating_is_durable_and_offsets_go_on_there(place: Place) -> None:
    with place.open() as log:
        topic = log.topic("orders")
        topic.append_many([(None, b"%d" % i) for i in range(6)], partition=0)
        report = topic.truncate(0, 4)
        assert (report.end_offset, report.removed_offsets) == (4, 2)
        assert topic.append(b"new").offset == 4
    with place.open() as log:
        assert values(log.topic("orders")) == [b"0", b"1", b"2", b"3", b"new"]


def test_moving_the_log_start_is_durable(place: Place) -> None:
    with place.open() as log:
        topic = log.topic("orders")
        topic.append_many([(None, b"%d" % i) for i in range(6)], partition=0)
        topic.advance_log_start(0, 4)
    with place.open() as log:
        topic = log.topic("orders")
        assert (topic.log_start_offset(), values(topic)) == (4, [b"4", b"5"])


def test_maintaining_hashes_every_sealed_segment_also_of_partitions_not_used_yet(place: Place) -> None:
    with place.open() as log:
        for name in ("orders", "payments"):
            log.topic(name).append(b"0")
            log.topic(name).roll()
    with place.open() as log:
        assert log.maintain() == MaintenanceReport(segments_hashed=2)
        assert log.maintain() == MaintenanceReport()


# --- When records are durable --------------------------------------------------------------------


def segment_syncs(log: cordwood.Log, place: Place, appends: int) -> int:
    """How many syncs that many appends take once the partition is there."""
    topic = log.topic("orders")
    topic.append(b"first")
    partition_log(log, 0).commit()
    before = place.files.calls.count("sync")
    for i in range(appends):
        topic.append(b"%d" % i)
    return place.files.calls.count("sync") - before


@pytest.mark.parametrize(
    ("sync", "syncs"),
    [(None, 12), ("each", 12), ("every:1", 12), ("every:5", 2), ("every:100", 0), ("never", 0)],
)
def test_a_sync_policy_syncs_as_often_as_it_says(place: Place, sync: str | None, syncs: int) -> None:
    with place.open(sync=sync) as log:
        assert segment_syncs(log, place, 12) == syncs
        topic = log.topic("orders")
        assert topic.high_watermark() == topic.log_end_offset() == 13


def test_every_n_counts_records_not_calls(place: Place) -> None:
    with place.open(sync="every:10") as log:
        segment_syncs(log, place, 0)
        before = place.files.calls.count("sync")
        log.topic("orders").append_many([(None, b"")] * 9, partition=0)
        assert place.files.calls.count("sync") == before
        log.topic("orders").append(b"")
        assert place.files.calls.count("sync") == before + 1


def test_within_t_milliseconds_somebody_syncs(place: Place) -> None:
    synced, before = threading.Event(), set(threading.enumerate())
    files = HookedFiles(place.files)
    with cordwood.open(place.path, files=files, sync="ms:20") as log:
        topic = log.topic("orders")
        topic.append(b"0")
        assert topic.high_watermark() == 1

        def note(kind: str, path: str) -> None:
            if kind == "sync" and path.endswith(".log"):
                synced.set()

        files.before = note
        topic.append(b"1")
        assert synced.wait(SECONDS_MAX)
    assert set(threading.enumerate()) <= before


def test_threads_that_append_at_once_start_one_that_syncs(place: Place) -> None:
    before = set(threading.enumerate())

    def started() -> list[threading.Thread]:
        return [t for t in set(threading.enumerate()) - before if t.name.startswith("cordwood-sync")]

    with place.open(sync="ms:50") as log:
        topic = log.topic("orders", partitions=16)
        run_together(16, lambda number: void(topic.append(b"", partition=number)))
        assert len(started()) == 1
    assert started() == []


def test_a_topic_has_the_last_word_on_its_sync_policy(place: Place) -> None:
    with place.open(sync="never") as log:
        log.topic("orders", config={"cordwood.sync": "each"})
        assert segment_syncs(log, place, 3) == 3


@pytest.mark.parametrize("sync", ["each", "every:7", "never", "ms:600000"])
def test_closing_makes_everything_durable_whatever_the_policy(place: Place, sync: str) -> None:
    files = HookedFiles(place.files)
    synced: dict[str, int] = {}
    with cordwood.open(place.path, files=files, sync=sync) as log:
        log.topic("orders").append_many([(None, b"x" * 50)] * 5, partition=0)

        def note(kind: str, path: str) -> None:
            if kind == "sync":
                synced[path] = len(read_file(place.files.inner, path))

        files.before = note
        log.topic("orders").append(b"last")
    segment = f"{place.path}/topics/orders/0/segments/{0:020d}.log"
    assert synced[segment] == len(read_file(place.files.inner, segment))


@pytest.mark.parametrize(
    "sync", ["", "sometimes", "every", "every:0", "every:-1", "ms:", "ms:x", "each:1", "NEVER"]
)
def test_a_sync_policy_that_does_not_exist_is_refused(tmp_path: Path, sync: str) -> None:
    with pytest.raises(InvalidSetting):
        cordwood.open(tmp_path / "data", sync=sync)
    assert not (tmp_path / "data").exists()


def test_after_a_failed_sync_every_call_says_so(place: Place) -> None:
    files = HookedFiles(place.files)
    log = cordwood.open(place.path, files=files)
    topic = log.topic("orders")
    topic.append(b"0")

    def fail(kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log"):
            raise os_error(errno.EIO, path)

    files.before = fail
    with pytest.raises(LogFailed):
        topic.append(b"doubtful")
    files.before = lambda kind, path: None
    for call in (lambda: topic.append(b"1"), lambda: list(topic.read()), lambda: topic.roll()):
        with pytest.raises(LogFailed):
            call()
    with pytest.raises(LogFailed):
        log.close()
    with place.open() as again:
        assert values(again.topic("orders"))[:1] == [b"0"]


# --- The directory -------------------------------------------------------------------------------


def test_first_boot_makes_meta_files_only_and_a_topic_its_directory_with_its_first_record(
    place: Place,
) -> None:
    meta = ["broker.id", "catalogue.log", "catalogue.mark", "checkpoint.json", "lock"]
    with place.open() as log:
        assert place.names() == ["/meta", *(f"/meta/{name}" for name in meta)]
        topic = log.topic("orders", partitions=3)
        assert "/topics" not in place.names()
        topic.append(b"", partition=1)
        assert [n for n in place.names() if n.count("/") == 3 and n.startswith("/topics")] == [
            "/topics/orders/1"
        ]
    assert "/meta/clean" in place.names()


def test_an_empty_topic_can_be_asked_and_read_without_making_its_directory(place: Place) -> None:
    with place.open() as log:
        topic = log.topic("orders")
        assert (topic.high_watermark(), topic.log_start_offset(), list(topic.read())) == (0, 0, [])
        assert "/topics" not in place.names()


def test_the_clean_marker_is_gone_before_the_first_change(place: Place) -> None:
    with place.open() as log:
        log.topic("orders").append(b"0")
    with place.open() as log:
        topic = log.topic("orders")
        assert values(topic) == [b"0"]
        assert "/meta/clean" in place.names()
        topic.append(b"1")
        assert "/meta/clean" not in place.names()
    assert "/meta/clean" in place.names()


def envelope(body: dict[str, Any]) -> bytes:
    encoded = json.dumps(body, separators=(",", ":")).encode()
    return b'{"crc32c":"%08x","body":%s}' % (google_crc32c.value(encoded), encoded)


def test_broker_id_is_made_once_and_kept(place: Place) -> None:
    place.open().close()
    content = place.read("/meta/broker.id")
    body = json.loads(content)["body"]
    assert content == envelope(body)
    assert set(body) == {"format", "uuid", "created_at", "node_name"}
    assert (body["format"], body["node_name"]) == (1, socket.gethostname())
    assert body["created_at"].startswith("2023-11-14T22:13:20")
    place.clock.advance(10**9)
    with place.open() as log:
        log.topic("orders").append(b"0")
    assert place.read("/meta/broker.id") == content


@pytest.mark.parametrize("damage", ["missing", "empty", "a bit", "not ours"])
def test_broker_id_is_required_where_there_are_topics(place: Place, damage: str) -> None:
    """Without it the directory is nobody's, and must not become a new, empty one."""
    with place.open() as log:
        log.topic("orders").append(b"0")
    content = place.read("/meta/broker.id")
    changed = {
        "empty": b"",
        "a bit": content[:40] + bytes([content[40] ^ 1]) + content[41:],
        "not ours": b"7\n",
    }
    place.files.inner.unlink(place.path + "/meta/broker.id")
    if damage in changed:
        place.write("/meta/broker.id", changed[damage])
    before = [name for name in place.names() if "lock" not in name]
    for read_only in (False, True):
        with pytest.raises(MetadataDamaged) as caught:
            place.open(read_only=read_only)
        assert "broker.id" in str(caught.value)
    assert [name for name in place.names() if "lock" not in name] == before
    place.write("/meta/broker.id", content)
    with place.open() as log:
        assert values(log.topic("orders")) == [b"0"]


def test_a_newer_format_is_refused_by_name(place: Place) -> None:
    with place.open() as log:
        log.topic("orders").append(b"0")
    body = json.loads(place.read("/meta/broker.id"))["body"]
    place.write("/meta/broker.id", envelope(body | {"format": 2, "shards": 7}))
    for read_only in (False, True):
        with pytest.raises(DirectoryRefused, match="format 2"):
            place.open(read_only=read_only)
    place.write("/meta/broker.id", envelope(body))
    state = json.loads(place.read("/topics/orders/0/partition.json"))["body"]
    place.write("/topics/orders/0/partition.json", envelope(state | {"format": 4}))
    with place.open() as log:
        with pytest.raises(StorageError, match="format 4"):
            list(log.topic("orders").read())
        log.topic("payments").append(b"others work")


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DirectoryRefused, match=r"notes\.txt"):
        cordwood.open(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]


def test_a_missing_directory_is_made_only_if_wanted(place: Place) -> None:
    with pytest.raises(DirectoryRefused):
        place.open(create=False)
    assert not place.files.inner.exists(place.path)
    place.open().close()
    place.open(create=False).close()


@pytest.mark.parametrize("turn", range(12))
def test_who_loses_the_race_of_two_first_boots_takes_what_the_winner_made(turn: int) -> None:
    """Between finding nothing and getting the lock, another process may have come and gone."""
    files = HookedFiles(MemoryFiles())
    calls = itertools.count()
    locked: list[str] = []
    won: list[str] = []

    def winner(kind: str, path: str) -> None:
        if not locked and not won and next(calls) == turn:
            won.append(path)
            with cordwood.open("/data", files=files.inner) as log:
                log.topic("orders").append(b"acknowledged")
        if kind == "lock":
            locked.append(path)

    files.before = winner
    with cordwood.open("/data", files=files) as log:
        assert log.topics == (["orders"] if won else [])
        if won:
            assert values(log.topic("orders")) == [b"acknowledged"]
    assert won or turn >= 3


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data"):
        with pytest.raises(DirectoryLocked) as caught:
            cordwood.open(tmp_path / "data")
        assert f"pid {os.getpid()}" in str(caught.value)
        assert socket.gethostname() in str(caught.value)
    cordwood.open(tmp_path / "data").close()


def test_a_writer_in_another_process_is_named_and_its_lock_ends_with_it(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys, cordwood
        log = cordwood.open(sys.argv[1])
        log.topic("orders").append(b"0")
        print("ready", flush=True)
        sys.stdin.read()
        """
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "data")]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(DirectoryLocked) as caught:
            cordwood.open(tmp_path / "data")
        assert f"pid {process.pid}" in caught.value.holder
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with cordwood.open(tmp_path / "data") as log:
        assert values(log.topic("orders")) == [b"0"]


# --- Ending --------------------------------------------------------------------------------------


def test_after_close_every_call_says_so(place: Place) -> None:
    log = place.open()
    topic = log.topic("orders", partitions=2)
    topic.append_many([(None, b"%d" % i) for i in range(3)], partition=0)
    reading = topic.read()
    log.close()
    log.close()
    calls: list[Callable[[], object]] = [
        lambda: topic.append(b"", partition=0),
        lambda: topic.append(b"", partition=1),
        lambda: topic.append_many([(None, b"")]),
        lambda: topic.read(),
        lambda: list(reading),
        lambda: topic.high_watermark(),
        lambda: topic.log_end_offset(),
        lambda: topic.log_start_offset(),
        lambda: topic.offset_at(0),
        lambda: topic.offsets(),
        lambda: topic.size(),
        lambda: topic.truncate(0, 0),
        lambda: topic.advance_log_start(0, 1),
        lambda: topic.roll(),
        lambda: log.topic("orders"),
        lambda: log.topic("another"),
        lambda: log.topics,
        lambda: log.maintain(),
    ]
    for call in calls:
        with pytest.raises(LogClosed):
            call()


def test_maintaining_a_closed_log_without_topics_says_so_too(place: Place) -> None:
    log = place.open()
    log.close()
    with pytest.raises(LogClosed):
        log.maintain()


FORKING = textwrap.dedent(
    """
    import os, sys, cordwood
    from cordwood.errors import LogClosed

    log = cordwood.open(sys.argv[1])
    topic = log.topic("orders")
    topic.append(b"before")
    reading, call = topic.read(), sys.argv[2]
    child = os.fork()
    if child == 0:
        calls = {
            "append": lambda: topic.append(b"from the child"),
            "append_many": lambda: topic.append_many([(None, b"from the child")]),
            "read": lambda: list(topic.read()),
            "iterate": lambda: list(reading),
            "high_watermark": lambda: topic.high_watermark(),
            "truncate": lambda: topic.truncate(0, 0),
            "advance": lambda: topic.advance_log_start(0, 1),
            "roll": lambda: topic.roll(),
            "topic": lambda: log.topic("another"),
            "topics": lambda: log.topics,
            "maintain": lambda: log.maintain(),
        }
        try:
            calls[call]()
        except LogClosed:
            log.close()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    topic.append(b"after")
    assert [record.value for record in topic.read()] == [b"before", b"after"], "the child changed the log"
    log.close()
    with cordwood.open(sys.argv[1]) as again:
        assert [record.value for record in again.topic("orders").read()] == [b"before", b"after"]
    sys.exit(f"{call} works in a forked child" if status else 0)
    """
)


@pytest.mark.called_only
@pytest.mark.parametrize(
    "call",
    [
        "append",
        "append_many",
        "read",
        "iterate",
        "high_watermark",
        "truncate",
        "advance",
        "roll",
        "topic",
        "topics",
        "maintain",
    ],
)
def test_in_a_forked_child_the_log_is_dead_and_the_parents_lives_on(tmp_path: Path, call: str) -> None:
    arguments = [sys.executable, "-c", FORKING, str(tmp_path / "data"), call]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.called_only
def test_a_forked_child_that_ends_keeps_the_parents_lock(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import os, sys, cordwood
        from cordwood.errors import DirectoryLocked
        log = cordwood.open(sys.argv[1])
        child = os.fork()
        if child == 0:
            log.close()
            os._exit(0)
        os.waitpid(child, 0)
        try:
            cordwood.open(sys.argv[1])
        except DirectoryLocked:
            sys.exit(0)
        sys.exit("the lock is gone")
        """
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "data")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- Many threads --------------------------------------------------------------------------------


def test_64_threads_append_and_read(place: Place) -> None:
    """Each thread's records are all there, in its order, at the offsets it was told."""
    each = 25
    placed: dict[int, list[cordwood.Placement]] = {}
    with place.open() as log:
        topic = log.topic("orders", partitions=3, config={"segment.bytes": "6000"})

        def work(number: int) -> None:
            mine = placed[number] = []
            for i in range(each):
                value = b"%d:%d" % (number, i)
                mine.append(topic.append(value, key=b"%d" % number))
                if i % 5 == 4:
                    where = mine[-1]
                    (record,) = topic.read(where.partition, where.offset, where.offset + 1)
                    assert record.value == value

        run_together(64, work)
        contents = [list(topic.read(partition)) for partition in range(3)]
        for partition, records in enumerate(contents):
            assert [record.offset for record in records] == list(range(topic.high_watermark(partition)))
        for number, places in placed.items():
            offsets = [place.offset for place in places]
            assert offsets == sorted(offsets)
            for i, (partition, offset) in enumerate(places):
                assert contents[partition][offset].value == b"%d:%d" % (number, i)
        assert sum(map(len, contents)) == 64 * each


def test_closing_while_others_append_ends_them_all_cleanly(place: Place) -> None:
    """Whatever was acknowledged is there afterwards; nobody hangs."""
    with place.open() as log:
        log.topic("orders", partitions=4)
        for partition in range(4):
            log.topic("orders").append(b"", partition=partition)
    log = place.open()
    topic = log.topic("orders")
    acknowledged: list[cordwood.Placement] = []
    begun = threading.Semaphore(0)

    def work(number: int) -> None:
        if number == 0:
            for _ in range(7):
                assert begun.acquire(timeout=SECONDS_MAX)
            log.close()
            return
        with suppress(LogClosed):
            for i in itertools.count():
                acknowledged.append(topic.append(b"%d" % number, partition=number % 4))
                if i == 0:
                    begun.release()

    run_together(8, work)
    with place.open() as again:
        for partition, offset in acknowledged:
            assert offset < again.topic("orders").high_watermark(partition)


def test_closing_does_not_wait_for_an_append_that_waits_for_it() -> None:
    """After a clean open the first append takes the marker away, and closing brings it back."""
    files = HookedFiles(MemoryFiles())
    with cordwood.open("/data", files=files) as log:
        for partition in (0, 1):
            log.topic("orders", partitions=2).append(b"", partition=partition)
    log = cordwood.open("/data", files=files)
    topic = log.topic("orders")
    first, second = (partition_log(log, partition) for partition in (0, 1))
    assert first.high_watermark == second.high_watermark == topic.high_watermark(0)
    closing, go_on = threading.Event(), threading.Event()

    def pause(kind: str, path: str) -> None:
        if kind == "sync" and "/orders/0/" in path and path.endswith(".log"):
            closing.set()
            assert go_on.wait(SECONDS_MAX)

    files.before = pause
    closer = threading.Thread(target=log.close, daemon=True)
    closer.start()
    assert closing.wait(SECONDS_MAX)
    inside = threading.Event()

    def append() -> None:
        inside.set()
        with suppress(CordwoodError):
            second.append([(None, b"just in time")])

    appender = threading.Thread(target=append, daemon=True)
    appender.start()
    assert inside.wait(SECONDS_MAX)
    # Time to get as far as it can. Too little would only make this test see less.
    appender.join(0.3)
    go_on.set()
    for thread in (closer, appender):
        thread.join(SECONDS_MAX)
        assert not thread.is_alive(), "close and append wait for each other"


@pytest.mark.parametrize("chunks", ["text", [b"bytes", 5]], ids=["text", "a number"])
def test_a_chunk_that_is_not_bytes_is_refused_by_name_and_nothing_is_stored(
    log: cordwood.Log, chunks: Any
) -> None:
    topic = log.topic("orders")
    with pytest.raises(RecordRefused, match="a chunk must be bytes"):
        topic.append_stream(chunks)
    assert topic.offsets().is_empty


def test_headers_that_are_no_pairs_are_refused_by_name(log: cordwood.Log) -> None:
    with pytest.raises(RecordRefused, match="headers must be"):
        log.topic("orders").append(b"", headers=5)  # type: ignore[arg-type]
