"""A full disk refuses appends and nothing else: what frees space has space reserved for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.capacity import BLOCK, CappedFiles
from support.clocks import ManualClock
from support.publishing import frame_of

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk.reserve import RETRY_NS, reserve_path
from cordwood.errors import DiskFull
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.log.changes import swapping
from cordwood.storage.sink.staging import StagedTarget
from cordwood.verify import verify_directory

DATA = "/data"
CONFIG = load_broker_config(environment={})[0]
RESERVED = 64 * BLOCK
VALUE = b"v" * 2 * BLOCK
SETTINGS = {"segment.bytes": str(8 * BLOCK), "retention.bytes": str(8 * BLOCK)}
STORAGES = ("own", "shared")


def opened(disk: CappedFiles, clock: ManualClock) -> cordwood.Log:
    opening = Opening(disk, DATA, CONFIG, clock=clock, reserve_bytes=RESERVED)
    return cordwood.Log(DataDirectory(opening))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> CappedFiles:
    return CappedFiles(1 << 40)


@pytest.fixture
def log(disk: CappedFiles, clock: ManualClock) -> Iterator[cordwood.Log]:
    with opened(disk, clock) as log:
        yield log


def filled(log: cordwood.Log, disk: CappedFiles, storage: str = "own", **settings: str) -> cordwood.Topic:
    """Return a topic with twenty records in several segments, on a disk without a free byte."""
    topic = log.topic("orders", config={**SETTINGS, "cordwood.storage": storage, **settings})
    for number in range(20):
        topic.append(VALUE, key=b"%d" % (number % 3))
    topic.roll() if storage == "own" else log.data_directory.partitions.writable("__shared", 0).roll()
    disk.fill()
    refused(topic)
    return topic


def refused(topic: cordwood.Topic) -> None:
    before = topic.log_end_offset()
    with pytest.raises(DiskFull):
        topic.append(VALUE, key=b"k")
    assert topic.log_end_offset() == before


def sound(disk: CappedFiles) -> bool:
    disk.capacity = 1 << 40
    return verify_directory(disk, DATA).sound


@pytest.mark.parametrize("storage", STORAGES)
def test_records_are_deleted_on_a_full_disk(log: cordwood.Log, disk: CappedFiles, storage: str) -> None:
    topic = filled(log, disk, storage)
    topic.advance_log_start(0, 15)
    assert topic.log_start_offset() == 15
    assert [record.offset for record in topic.read(0, 15)] == list(range(15, 20))
    assert sound(disk)


def test_retention_frees_a_full_disk_and_appends_go_on_by_themselves(
    log: cordwood.Log, disk: CappedFiles
) -> None:
    topic = filled(log, disk)
    report = log.maintain()
    assert report.failures == ()
    assert topic.log_start_offset() > 0
    assert disk.exists(reserve_path(DATA)), "what was given back is reserved again"
    assert topic.append(VALUE, key=b"k").offset == 20
    assert sound(disk)


def test_retention_in_the_shared_log_works_on_a_full_disk(log: cordwood.Log, disk: CappedFiles) -> None:
    topic = filled(log, disk, "shared")
    log.maintain()
    assert topic.log_start_offset() > 0
    assert sound(disk)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_topic_is_deleted_on_a_full_disk(log: cordwood.Log, disk: CappedFiles, storage: str) -> None:
    filled(log, disk, storage)
    log.delete_topic("orders")
    assert "orders" not in log.topics
    assert sound(disk)


def test_a_disk_that_fills_up_after_a_compaction_was_committed_ends_nothing(
    log: cordwood.Log, disk: CappedFiles, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take what the old segments held as soon as they go."""
    commit_swap, swaps = swapping.commit_swap, []

    def fill_up(*arguments: Any) -> Any:
        committed = commit_swap(*arguments)
        disk.fill()
        disk.crowded = True
        swaps.append(committed)
        return committed

    settings = {"segment.bytes": str(8 * BLOCK), "cleanup.policy": "compact"}
    topic = log.topic("state", config=settings)
    for number in range(20):
        topic.append(b"%d" % number + VALUE, key=b"%d" % (number % 3))
    topic.roll()
    monkeypatch.setattr(swapping, "commit_swap", fill_up)
    log.maintain(force=True)
    assert swaps
    monkeypatch.undo()
    disk.capacity, disk.crowded = 1 << 40, False
    clock.advance(RETRY_NS // 1_000_000)
    assert topic.append(VALUE, key=b"k").offset == 20
    assert {record.key: record.offset for record in topic.read()} == {
        **{b"%d" % key: max(range(key, 20, 3)) for key in range(3)},
        b"k": 20,
    }
    assert sound(disk)


def test_appends_leave_what_was_given_back_and_go_on_once_there_is_space(
    log: cordwood.Log, disk: CappedFiles, clock: ManualClock
) -> None:
    """Moving the log start within a segment is written down and frees nothing."""
    topic = filled(log, disk)
    disk.crowded = True
    topic.advance_log_start(0, 1)
    disk.crowded = False
    assert not disk.exists(reserve_path(DATA))
    assert disk.used() < disk.capacity - len(VALUE), "there would be space for a record"
    refused(topic)
    disk.capacity += RESERVED + 8 * BLOCK
    clock.advance(RETRY_NS // 1_000_000)
    assert topic.append(VALUE, key=b"k").offset == 20
    assert disk.exists(reserve_path(DATA))


def test_the_space_is_reserved_while_a_directory_is_written_and_not_at_rest(
    disk: CappedFiles, clock: ManualClock
) -> None:
    with opened(disk, clock) as log:
        log.topic("orders").append(b"0")
        assert disk.exists(reserve_path(DATA))
    assert not disk.exists(reserve_path(DATA))
    with opened(disk, clock) as log:
        assert list(log.topic("orders").read())
        assert not disk.exists(reserve_path(DATA)), "nothing has changed yet"
        log.topic("orders").append(b"1")
        assert disk.exists(reserve_path(DATA))


def test_what_a_killed_writer_had_reserved_is_there_for_the_next_one(
    disk: CappedFiles, clock: ManualClock
) -> None:
    killed = opened(disk, clock)
    filled(killed, disk)
    killed.data_directory.abandon()
    with opened(disk, clock) as log:
        topic = log.topic("orders")
        topic.advance_log_start(0, 15)
        assert topic.log_start_offset() == 15
    assert sound(disk)


def test_a_batch_of_a_query_that_finds_no_space_is_refused_before_it_is_promised(
    log: cordwood.Log, disk: CappedFiles
) -> None:
    """After its intent it would have to be published, and the partitions take nothing else until it is."""
    directory = log.data_directory
    topic = log.topic("out", partitions=1)
    topic.append(b"before")
    staged = directory.publisher.stage("query", 0, "0-a")
    staged.append(StagedTarget("out", directory.topics["out"].id, 0), frame_of(b"published"))
    shares = staged.finish()
    disk.fill()
    with pytest.raises(DiskFull):
        directory.publisher.publish("query", 0, shares)
    disk.capacity = 1 << 40
    topic.append(b"between")
    assert directory.publisher.publish("query", 0, shares)
    assert [record.value for record in topic.read()] == [b"before", b"between", b"published"]
