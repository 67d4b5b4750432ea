"""Retention that waits for consumer groups, where no server runs: the library and `cordwood maintain`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from support.commands import run, said

import cordwood
from cordwood.broker.groups.coordinator import Coordinator
from cordwood.broker.groups.known import GroupLimits
from cordwood.broker.groups.offsets_topic import NAME as OFFSETS_TOPIC
from cordwood.broker.groups.offsets_topic import Committed, OffsetKey, offset_key
from cordwood.disk.files import Files, write_all
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded import Log, Topic
from cordwood.errors import CordwoodError, CorruptRange

DATA = "/data"
WAITING = {"segment.bytes": "300", "retention.bytes": "0", "cordwood.retention.wait.for.groups": "true"}
STORAGES = ["own", "shared"]


def commit(log: Log, group: str, offset: int, topic: str = "t") -> None:
    """Store what a group has committed, as the coordinator of a server does."""
    rows = Coordinator(GroupLimits(), str).rows_to_commit(group, {(topic, 0): Committed(offset, -1, "", 5)})
    log.offsets_topic().append_many(rows, partition=0)


def waiting_topic(log: Log, storage: str = "own", **more: str) -> Topic:
    """Return a topic of twenty records of which retention keeps as little as it can."""
    topic = log.topic("t", config={**WAITING, "cordwood.storage": storage, **more})
    for number in range(20):
        topic.append(b"value %d" % number * 10)
    if storage == "shared":
        log.data_directory.partitions.own("__shared", 0).roll()
    return topic


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("how", ["remove_expired", "maintain"])
def test_retention_leaves_what_a_group_has_not_committed_past(storage: str, how: str) -> None:
    """C1 for groups: whoever runs the pass, the slowest of them decides."""
    with cordwood.open(DATA, files=MemoryFiles()) as log:
        topic = waiting_topic(log, storage)

        def expire() -> int:
            if how == "remove_expired":
                return topic.remove_expired()
            report = log.maintain()
            assert report.failures == ()
            return report.records_removed

        commit(log, "fast", 18)
        commit(log, "slow", 0)
        assert expire() == 0
        assert topic.log_start_offset() == 0
        commit(log, "slow", 11)
        removed = expire()
        assert 5 < topic.log_start_offset() <= 11
        assert removed == topic.log_start_offset()
        # A group that is gone holds nothing back.
        gone = [offset_key(OffsetKey(group, "t", 0)) for group in ("slow", "fast")]
        log.offsets_topic().append_many([(key, None) for key in gone], partition=0)
        expire()
        assert topic.log_start_offset() > 11


@pytest.mark.parametrize("storage", STORAGES)
def test_maintain_and_its_dry_run_leave_what_a_group_has_not_committed_past(
    tmp_path: Path, storage: str
) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        waiting_topic(log, storage)
        commit(log, "slow", 5)
    plans = json.loads(said("maintain", "--data", data, "--dry-run", "--json"))
    assert all(segment["next_offset"] <= 5 for plan in plans for segment in plan["expired"])
    assert plans
    said("maintain", "--data", data)
    with cordwood.open(data, read_only=True) as log:
        assert 0 < log.topic("t").log_start_offset() <= 5
    assert said("maintain", "--data", data, "--dry-run") == f"{data}: nothing to do\n"


def damage_offsets(files: Files) -> None:
    """Change a byte of the first record that a group has committed."""
    path = f"{DATA}/topics/{OFFSETS_TOPIC}/0/segments/{0:020d}.log"
    with contextlib.closing(files.open(path, "write")) as file:
        (byte,) = file.read_at(70, 1)
        write_all(file, 70, bytes([byte ^ 1]))


def test_what_groups_have_committed_and_nobody_can_read_is_not_no_group() -> None:
    """R6: of topics that wait nothing goes, and somebody is told; the others are maintained."""
    files = MemoryFiles()
    with cordwood.open(DATA, files=files) as log:
        waiting_topic(log)
        plain = log.topic("plain", config={"segment.bytes": "300", "retention.bytes": "0"})
        for number in range(20):
            plain.append(b"value %d" % number * 10)
        commit(log, "slow", 0)
    damage_offsets(files)
    with cordwood.open(DATA, files=files) as log:
        topic = log.topic("t")
        with pytest.raises(CorruptRange):
            topic.remove_expired()
        report = log.maintain()
        (failure,) = (each for each in report.failures if "topic t " in each)
        assert failure.startswith("nothing of partition 0 of topic t was deleted: what consumer groups")
        assert topic.log_start_offset() == 0
        assert log.topic("plain").log_start_offset() > 10
    with cordwood.open(DATA, files=files, read_only=True) as log, pytest.raises(CorruptRange):
        log.plan_maintenance()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (offset_key(OffsetKey("slow", "t", 0)), b"\x00\x63later than we are"),
        (b"\x00\x01\x00\x04slow\x7f", b"no such key"),
    ],
)
def test_a_commit_of_a_version_that_is_not_known_is_not_no_group(key: bytes, value: bytes) -> None:
    with cordwood.open(DATA, files=MemoryFiles()) as log:
        topic = waiting_topic(log)
        commit(log, "fast", 20)
        log.offsets_topic().append(value, key=key, partition=0)
        with pytest.raises(CordwoodError, match=f"a record of {OFFSETS_TOPIC} has an unknown format"):
            topic.remove_expired()
        assert log.maintain().failures
        assert topic.log_start_offset() == 0
        if value.startswith(b"\x00\x63"):
            commit(log, "slow", 20)
            assert topic.remove_expired() > 10


def test_maintain_says_on_the_command_line_that_groups_could_not_be_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        waiting_topic(log)
        log.offsets_topic().append(b"\x00\x63", key=offset_key(OffsetKey("g", "t", 0)), partition=0)
    result = run("maintain", "--data", data)
    assert result.exit_code == 3
    assert "nothing of partition 0 of topic t was deleted" in result.stdout
