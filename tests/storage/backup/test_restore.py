"""Restore: exact to the offset and the millisecond, checked on the way in, nothing left where it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from support.clocks import HookedFiles, ManualClock
from support.crashes import SEED, CrashCount, crash_images
from support.data_directory import flipped, put
from support.disks import FaultPlan, FaultyFiles, RecordingFiles, image
from support.logs import DATA, disk_of
from support.patience import SECONDS_MAX

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk.checked_json import write_metadata
from cordwood.disk.files import Files, read_file, write_atomically
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DirectoryRefused, MetadataDamaged, OffsetOutOfRange, UnknownTopic
from cordwood.storage.backup.create import back_up
from cordwood.storage.backup.restoring import MARKER, Point, RestoreReport, restore_directory
from cordwood.storage.backup.transfer import Transfer
from cordwood.storage.log.state import read_state
from cordwood.storage.meta.identity import read_identity
from cordwood.storage.sink.journal import Journal, journal_path
from cordwood.verify import verify_directory

BACKUP, NEW = "/backup", "/place/new"
SMALL = {"segment.bytes": "330", "index.interval.bytes": "100"}
CONFIG = load_broker_config()[0]
COUNT = 11


def restored(files: Files, point: Point = Point(), **options: Any) -> RestoreReport:  # noqa: B008 - frozen
    options = {"link": False, "keep_id": False, **options}
    keep_id = options.pop("keep_id")
    transfer = Transfer(files, BACKUP, NEW, CONFIG, clock=ManualClock(), uuid="new", **options)
    return restore_directory(transfer, point, keep_id=keep_id)


def backed_up() -> MemoryFiles:
    """A backup of two partitions whose timestamps go up and, once, down again: 10, 20, 30, 25, 50, …"""
    files = MemoryFiles()
    files.make_directories("/place")
    with cordwood.open(DATA, files=files, clock=ManualClock()) as log:
        topic = log.topic("orders", 2, SMALL)
        for i in range(COUNT):
            timestamp = 25 if i == 3 else 10 * (i + 1)
            topic.append(b"order %d" % i, partition=0, timestamp=timestamp)
        topic.append(b"only", partition=1, timestamp=45)
        log.topic("unused")
    write_metadata_for_sink(files)
    back_up(Transfer(files, DATA, BACKUP, CONFIG, clock=ManualClock()))
    return files


def write_metadata_for_sink(files: Files) -> None:
    files.make_directories(f"{DATA}/meta/sink")
    write_metadata(files, journal_path(DATA, "query"), Journal(query="query", published=4))


def values(files: Files, partition: int = 0, path: str = NEW) -> list[bytes | None]:
    with cordwood.open(path, files=files, read_only=True) as log:
        return [record.value for record in log.topic("orders").read(partition)]


ALL = [b"order %d" % i for i in range(COUNT)]


@pytest.mark.parametrize("link", [False, True])
def test_everything_is_restored_and_the_backup_stays_as_it_is(link: bool) -> None:
    files = backed_up()
    before = image(files, BACKUP)
    report = restored(files, link=link)
    assert image(files, BACKUP) == before
    assert (report.topics, [(p.topic, p.partition, p.end_offset) for p in report.partitions]) == (
        2,
        [("orders", 0, COUNT), ("orders", 1, 1)],
    )
    assert (values(files), values(files, 1)) == (ALL, [b"only"])
    assert verify_directory(files, NEW).sound
    with cordwood.open(NEW, files=files) as log:
        log.topic("orders").append(b"more", partition=0)
        log.topic("orders").truncate(0, 2)
        log.topic("orders").append(b"again", partition=0)
    assert image(files, BACKUP) == before
    assert values(files) == [*ALL[:2], b"again"]


def test_every_restore_begins_a_new_epoch_and_has_an_id_of_its_own() -> None:
    """What is appended from here on is not what the source has at the same offsets, and clients can tell."""
    files = backed_up()
    restored(files)
    state = read_state(files, f"{NEW}/topics/orders/0")
    assert [(each.epoch, each.start_offset) for each in state.epochs] == [(0, 0), (1, COUNT)]
    assert read_identity(files, NEW).uuid == "new"
    assert files.exists(journal_path(NEW, "query"))


def test_one_that_takes_the_place_of_its_source_may_keep_its_id() -> None:
    files = backed_up()
    assert restored(files, keep_id=True).uuid == read_identity(files, DATA).uuid
    assert read_identity(files, NEW).uuid == read_identity(files, DATA).uuid


@pytest.mark.parametrize("offset", range(COUNT + 1))
def test_up_to_an_offset_there_is_every_record_before_it_and_none_after(offset: int) -> None:
    files = backed_up()
    report = restored(files, Point({("orders", 0): offset}))
    assert values(files) == ALL[:offset]
    assert values(files, 1) == [b"only"]
    assert verify_directory(files, NEW).sound
    assert report.partitions[0].cut_offsets == COUNT - offset
    state = read_state(files, f"{NEW}/topics/orders/0")
    assert state.leader_epoch >= 1
    # What was published may have been cut, so nobody says that it was.
    assert not files.exists(journal_path(NEW, "query"))


@pytest.mark.parametrize(
    ("time_ms", "count", "other"),
    [
        (0, 0, 0),
        (10, 0, 0),
        (11, 1, 0),
        (21, 2, 0),
        (26, 2, 0),
        (31, 4, 0),
        (45, 4, 0),
        (46, 4, 1),
        (999, COUNT, 1),
    ],
)
def test_up_to_a_time_every_partition_ends_before_its_first_record_at_or_after_it(
    time_ms: int, count: int, other: int
) -> None:
    files = backed_up()
    restored(files, Point(time_ms=time_ms))
    assert (values(files), len(values(files, 1))) == (ALL[:count], other)
    assert verify_directory(files, NEW).sound


def test_an_offset_or_a_partition_that_is_not_there_is_refused_before_anything_is_copied() -> None:
    files = HookedFiles(backed_up())
    files.calls.clear()
    with pytest.raises(OffsetOutOfRange) as caught:
        restored(files, Point({("orders", 0): COUNT + 1}))
    assert (caught.value.start, caught.value.end) == (0, COUNT)
    for place in (("orders", 2), ("other", 0)):
        with pytest.raises(UnknownTopic, match=f"no partition {place[1]} of a topic {place[0]}"):
            restored(files, Point({place: 0}))
    assert not {"create", "make_directories", "link"} & set(files.calls)


def test_a_place_that_is_taken_is_refused_and_an_empty_one_is_used() -> None:
    files = backed_up()
    put(files, f"{NEW}/photo", b"dear")
    with pytest.raises(DirectoryRefused, match="exists and is not empty"):
        restored(files)
    files.unlink(f"{NEW}/photo")
    restored(files)
    assert values(files) == ALL
    with pytest.raises(DirectoryRefused, match="is not a data directory"):
        restore_directory(Transfer(files, "/nowhere", "/place/other", CONFIG), Point())


@pytest.mark.parametrize("link", [False, True])
def test_damage_anywhere_in_a_log_of_the_backup_is_named_and_nothing_is_left(link: bool) -> None:
    files = backed_up()
    start = image(files, "/")
    logs = [path for path in start if path.startswith(f"{BACKUP}/topics") and path.endswith(".log")]
    cases = 0
    for path in logs:
        data = read_file(files, path)
        for position in range(0, len(data), 23):
            disk = disk_of(start, {path: flipped(data, 8 * position + 3)})
            with pytest.raises(CordwoodError) as caught:
                restored(disk, link=link)
            assert path in str(caught.value)
            assert disk.list("/place") == []
            cases += 1
    print(f"{cases} flipped bits in {len(logs)} logs")
    assert cases > 30


@pytest.mark.parametrize(
    "name", ["meta/broker.id", "meta/catalogue.log", "topics/orders/0/partition.json", "topics/orders/0/mark"]
)
def test_damaged_metadata_of_a_backup_are_named_and_nothing_is_left(name: str) -> None:
    files = backed_up()
    path = f"{BACKUP}/{name}"
    put(files, path, flipped(read_file(files, path), 8 * 40))
    with pytest.raises(MetadataDamaged, match=path):
        restored(files)
    assert files.list("/place") == []


def test_a_power_cut_leaves_all_of_it_or_nothing_and_the_next_restore_works() -> None:
    files = backed_up()
    recording = RecordingFiles(files, existing="/")
    restored(recording, Point({("orders", 0): 6}))
    recording.acknowledge("restored")
    there, count = 0, CrashCount()
    for crashed in crash_images(recording, limit_per_prefix=1, count=count):
        disk = crashed.files
        if disk.exists(NEW):
            there += 1
        else:
            assert not crashed.acknowledged
            restored(disk, Point({("orders", 0): 6}))
        assert values(disk) == ALL[:6]
        assert verify_directory(disk, NEW).sound
        if disk.list("/place") != ["new"]:
            # Cut off after the rename: the next restore to the same place removes it.
            assert disk.list("/place") == ["new", "new.restoring"]
            assert disk.list("/place/new.restoring") in ([], [MARKER])
    print(f"seed {SEED}: {count.images} disks, {there} with a restored directory")
    assert count.images > 60
    assert there


def test_a_directory_in_the_way_that_no_restore_made_is_left_alone_and_named() -> None:
    files = backed_up()
    files.make_directories("/place/new.restoring")
    write_atomically(files, "/place/new.restoring/diary.txt", b"mine")
    with pytest.raises(DirectoryRefused, match=r"/new\.restoring exists and is not an unfinished restore"):
        restored(files)
    assert read_file(files, "/place/new.restoring/diary.txt") == b"mine"
    assert not files.exists(NEW)


def test_a_call_that_fails_anywhere_leaves_nothing_that_looks_like_a_data_directory() -> None:
    start = image(backed_up(), "/")
    at = failed = 0
    while True:
        at += 3
        files = disk_of(start)
        faulty = FaultyFiles(files, FaultPlan(at))
        try:
            restored(faulty)
        except CordwoodError:
            failed += 1
            # But for the last sync, of a name: all is there then.
            if files.exists(NEW):
                assert verify_directory(files, NEW).sound
            else:
                restored(files)
        assert values(files) == ALL
        if not faulty.failures:
            break
    print(f"{failed} of {at} calls failed a restore")
    assert failed > 60


def test_a_kafka_client_reads_a_restored_directory_and_groups_are_where_they_were(tmp_path: Path) -> None:
    with cordwood.Broker(tmp_path / "data") as broker:
        produce(broker.bootstrap)
        assert consumed(broker.bootstrap, 3) == [b"0", b"1", b"2"]
        report = cordwood.backup(tmp_path / "data", tmp_path / "backup")
    assert {record.topic for record in report.partitions} == {"orders", "__consumer_offsets"}
    cordwood.restore(tmp_path / "backup", tmp_path / "new", to_offsets={("orders", 0): 5})
    with cordwood.Broker(tmp_path / "new") as broker:
        assert consumed(broker.bootstrap, 2) == [b"3", b"4"]


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for i in range(8):
        producer.produce("orders", b"%d" % i, partition=0)
    assert producer.flush(SECONDS_MAX) == 0


def consumed(bootstrap: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe(["orders"])
        found: list[bytes | None] = []
        while len(found) < count:
            record = consumer.poll(SECONDS_MAX)
            assert record is not None
            assert record.error() is None, record.error()
            found.append(record.value())
            consumer.commit(message=record, asynchronous=False)
        return found
    finally:
        consumer.close()
