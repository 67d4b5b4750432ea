"""A partition of Kimberlite's records: its chain runs through segments and restarts, and a break is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from formats.readers import read_kimberlite

import cordwood
from cordwood.disk.posix import PosixFiles
from cordwood.embedded import Topic
from cordwood.errors import ChecksumMismatch, RecordRefused, TruncatedFrame, WrongStream
from cordwood.formats.per_record import kimberlite
from cordwood.storage.chain.kimberlite import follow_chain

CONFIG = {"cordwood.format": "kimberlite"}
FILES = PosixFiles()


def partition(data: Path, number: int = 0) -> str:
    return str(data / "topics" / "t" / str(number))


def fill(topic: Topic, count: int = 6, number: int = 0) -> None:
    for i in range(count):
        topic.append(b"value %d" % i, partition=number)


def made(data: Path) -> list[Path]:
    """Three segments, in two processes' worth of openings."""
    with cordwood.open(data) as log:
        topic = log.topic("t", config=CONFIG)
        fill(topic)
        topic.roll()
        fill(topic)
    with cordwood.open(data) as log:
        topic = log.topic("t")
        topic.roll()
        topic.append_many([(None, b"a" * 4_000), (None, None)])
        topic.append_stream([b"stream", b"ed"])
    return sorted(Path(partition(data), "segments").glob("*.log"))


def test_the_chain_runs_through_segments_and_restarts(tmp_path: Path) -> None:
    logs = made(tmp_path)
    found = follow_chain(FILES, partition(tmp_path))
    assert found.sound
    assert (found.records, found.start_offset, found.end_offset) == (15, 0, 15)
    assert found.from_the_first
    assert len(logs) == 3
    seen = list(read_kimberlite.records([path.read_bytes() for path in logs]))
    assert [each["position"] for each in seen] == list(range(15))
    assert [each["value"] for each in seen[12:]] == [b"a" * 4_000, b"", b"streamed"]
    assert [each["event_type"] for each in seen[12:]] == [0, 2, 0]
    assert seen[12]["compressed"]
    assert kimberlite.verify_chain(path.read_bytes() for path in logs).head == found.head


def test_the_first_break_is_named_with_both_hashes(tmp_path: Path) -> None:
    """A record is exchanged for another one whose checksum is right, as an insider would."""
    logs = made(tmp_path)
    data = logs[0].read_bytes()
    second = kimberlite.parse_record(data, kimberlite.parse_record(data).end)
    forged = kimberlite.encode_record(1, second.timestamp_us, b"VALUE 1", second.prev_hash)
    logs[0].write_bytes(data[: second.at] + forged + data[second.end :])
    found = follow_chain(FILES, partition(tmp_path))
    assert found.broken is not None
    assert found.broken.path == str(logs[0])
    assert (found.broken.offset, found.broken.position) == (2, second.end)
    assert found.broken.expected == hashlib.sha256(forged).digest()
    assert found.broken.actual == second.hash(data)
    assert found.broken.actual.hex() in str(found.broken)
    assert (found.records, found.end_offset) == (2, 2)


def test_a_break_between_segments_is_named(tmp_path: Path) -> None:
    logs = made(tmp_path)
    data = logs[0].read_bytes()
    records, at = [], 0
    while at < len(data):
        records.append(kimberlite.parse_record(data, at))
        at = records[-1].end
    last = records[-1]
    forged = kimberlite.encode_record(5, last.timestamp_us, b"VALUE 5", last.prev_hash)
    logs[0].write_bytes(data[: last.at] + forged)
    found = follow_chain(FILES, partition(tmp_path))
    assert found.broken is not None
    assert (found.broken.path, found.broken.position, found.broken.offset) == (str(logs[1]), 0, 6)


def test_damage_ends_the_chain_with_file_and_position(tmp_path: Path) -> None:
    logs = made(tmp_path)
    data = bytearray(logs[1].read_bytes())
    data[100] ^= 1
    logs[1].write_bytes(data)
    found = follow_chain(FILES, partition(tmp_path))
    assert isinstance(found.invalid, ChecksumMismatch)
    assert found.invalid.path == str(logs[1])
    assert found.end_offset >= 6
    logs[1].unlink()
    missing = follow_chain(FILES, partition(tmp_path))
    assert isinstance(missing.invalid, TruncatedFrame)
    assert str(logs[1]) in str(missing.invalid)


def test_a_chain_goes_on_after_a_truncation(tmp_path: Path) -> None:
    made(tmp_path)
    with cordwood.open(tmp_path) as log:
        topic = log.topic("t")
        topic.truncate(0, 8)
        fill(topic)
    found = follow_chain(FILES, partition(tmp_path))
    assert found.sound
    assert found.end_offset == 14


def test_a_chain_whose_first_records_were_let_go_says_so(tmp_path: Path) -> None:
    made(tmp_path)
    with cordwood.open(tmp_path) as log:
        log.topic("t").advance_log_start(0, 8)
    found = follow_chain(FILES, partition(tmp_path))
    assert found.sound
    assert not found.from_the_first
    assert found.start_offset == 6


def test_a_chain_can_be_followed_from_a_snapshot(tmp_path: Path) -> None:
    """Reading from the nearest snapshot on is as sound as what was followed up to it."""
    logs = made(tmp_path)
    whole = follow_chain(FILES, partition(tmp_path))
    data = logs[0].read_bytes() + logs[1].read_bytes()
    head, at = kimberlite.NO_HASH, 0
    for _ in range(9):
        record = kimberlite.parse_record(data, at)
        head, at = record.hash(data), record.end
    with cordwood.open(tmp_path) as log:
        kept = log.topic("t").snapshots()
        kept.save(9, b"state")
        snapshot = kept.nearest(12).snapshot
    assert snapshot is not None
    assert snapshot.chain_head == head
    found = follow_chain(FILES, partition(tmp_path), start=(snapshot.offset, snapshot.chain_head))
    assert (found.records, found.start_offset, found.head) == (6, 9, whole.head)
    wrong = follow_chain(FILES, partition(tmp_path), start=(9, bytes(32)))
    assert wrong.broken is not None
    assert wrong.broken.offset == 9
    with cordwood.open(tmp_path) as log:
        log.topic("t").advance_log_start(0, 8)
    with pytest.raises(RecordRefused, match="no record 3"):
        follow_chain(FILES, partition(tmp_path), start=(3, bytes(32)))


def test_records_of_another_stream_are_refused(tmp_path: Path) -> None:
    """The files of one partition in the place of another's, every checksum and the chain intact."""
    with cordwood.open(tmp_path) as log:
        topic = log.topic("t", partitions=2, config=CONFIG)
        fill(topic, number=0)
        fill(topic, number=1)
    swapped = Path(partition(tmp_path, 1), "segments", f"{0:020d}.log")
    swapped.write_bytes(Path(partition(tmp_path, 0), "segments", f"{0:020d}.log").read_bytes())
    found = follow_chain(FILES, partition(tmp_path, 1))
    assert isinstance(found.invalid, WrongStream)
    assert found.records == 0
