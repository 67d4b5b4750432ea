"""What a data directory takes on disk is bounded by what it is to keep, however long it is appended to.

All but the chain, of which every frame that ever was has 80 bytes: D5 keeps the leaves of what is removed. In
the shared log a dropped frame has 120 more, which `cordwood.compaction.evidence.ms` limits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from support.clocks import ManualClock

import cordwood
from cordwood.broker import topics as broker_topics
from cordwood.broker.groups.coordinator import Coordinator
from cordwood.broker.groups.known import GroupLimits
from cordwood.broker.groups.offsets_topic import NAME as OFFSETS_TOPIC
from cordwood.broker.groups.offsets_topic import Committed
from cordwood.config.topic import RETAINED_SEGMENT_BYTES_MIN, TopicConfig
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded import Log, Topic
from cordwood.verify import verify_directory

DATA = "/data"
MIB = 1 << 20
#: What a frame leaves in its chain: a leaf, its offsets, and at most one hash of the tree above it.
CHAIN_BYTES_PER_FRAME = 32 + 16 + 32
#: What is kept of a frame that the shared log dropped: the number of its leaf, its envelope, a hash.
EVIDENCE_BYTES_PER_FRAME = 8 + 80 + 32
HOUR_MS = 3_600_000
VALUE = random.Random(7).randbytes(8_000)


def sizes(files: Files) -> Counter[str]:
    """Return the bytes of the data directory by part: logs, indexes, chains, and everything else."""
    found: Counter[str] = Counter()
    for path, size in _files_below(files, DATA):
        parts = path.removeprefix(f"{DATA}/").split("/")
        if "lists" in parts:
            found["evidence"] += size
        elif "chain" in parts:
            found["chain"] += size
        elif "segments" in parts:
            found["log" if path.endswith(".log") else "index"] += size
        else:
            found[parts[0]] += size
    return found


def _files_below(files: Files, directory: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for name in files.list(directory):
        path = f"{directory}/{name}"
        if files.is_directory(path):
            found += _files_below(files, path)
        else:
            file = files.open(path, "read")
            found.append((path, file.size()))
            file.close()
    return found


def soak(log: Log, append: Callable[[int], None], mib: int, clock: ManualClock, files: Files) -> int:
    """Append *mib* MiB in frames of 8 KB, with upkeep after each quarter; return the most that logs took."""
    most = 0
    for number in range(mib * MIB // len(VALUE)):
        append(number)
        if number % 32 == 31:
            clock.advance(1_000)
            assert log.maintain().failures == ()
            most = max(most, sizes(files)["log"])
    return most


@pytest.mark.parametrize(
    "config",
    [
        {"retention.bytes": str(MIB)},
        {"retention.bytes": "0"},
        {"retention.bytes": str(MIB), "cordwood.format": "frame"},
        {"retention.bytes": str(MIB), "cleanup.policy": "compact,delete"},
    ],
    ids=["by size", "as little as can be", "other format", "compacted"],
)
def test_an_own_log_takes_no_more_than_it_keeps_and_a_segment(config: dict[str, str]) -> None:
    """Its segments may have a gigabyte, and only whole ones are deleted."""
    files, clock = MemoryFiles(), ManualClock()
    with cordwood.open(DATA, files=files, clock=clock) as log:
        topic = log.topic("t", config=config)
        most = soak(log, lambda number: _put(topic, b"%d" % number), 12, clock, files)
        kept = int(config["retention.bytes"])
        # What is kept, the segment that it ends in the middle of, and what came since the pass before.
        assert most <= kept + 2 * RETAINED_SEGMENT_BYTES_MIN + 32 * (len(VALUE) + 200)
        assert topic.size() >= kept
    _check_rest(files)


def _put(topic: Topic, key: bytes) -> None:
    topic.append_many([(key, VALUE)], partition=0)


def _check_rest(files: Files) -> None:
    """Everything beside the logs is small, and the directory is sound."""
    report = verify_directory(files, DATA)
    assert report.sound, report.findings
    found = sizes(files)
    statements = 2 * report.removed + report.compacted
    assert found["chain"] <= report.leaves * CHAIN_BYTES_PER_FRAME + statements * 300 + 4_096
    assert found["evidence"] <= report.leaves * EVIDENCE_BYTES_PER_FRAME
    assert found["index"] <= found["log"] // 20 + 4_096
    assert found["meta"] + found["topics"] + found["tmp"] + found["quarantine"] < 64 << 10, found


def test_the_shared_log_takes_no_more_than_twice_what_its_topics_keep() -> None:
    files, clock = MemoryFiles(), ManualClock()
    with cordwood.open(DATA, files=files, clock=clock) as log:
        config = {"retention.bytes": str(MIB // 4), "cordwood.storage": "shared"}
        topics = [log.topic(f"t{number}", config=config) for number in range(4)]
        most = soak(log, lambda number: _put(topics[number % 4], b"k"), 16, clock, files)
        assert most <= 2 * MIB + 2 * MIB
        assert all(MIB // 4 <= topic.size() <= MIB // 2 for topic in topics)
        kept = {topic.name: [r.offset for r in topic.read(0)] for topic in topics}
    _check_rest(files)
    with cordwood.open(DATA, files=files, clock=clock) as log:
        assert {name: [r.offset for r in log.topic(name).read(0)] for name in kept} == kept


def test_the_shared_log_keeps_no_more_than_time_retention_lets_it() -> None:
    """Its segments are sealed after an hour; what is to be kept for a minute must not wait for that."""
    files, clock = MemoryFiles(), ManualClock()
    with cordwood.open(DATA, files=files, clock=clock) as log:
        topic = log.topic("t", config={"retention.ms": "4000", "cordwood.storage": "shared"})
        most = soak(log, lambda number: _put(topic, b"k"), 16, clock, files)
        # A second has 32 frames, so four seconds have a MiB.
        assert most <= 5 * MIB
        newest = list(topic.read(0))[-1]
        assert newest.offset == topic.high_watermark() - 1
    _check_rest(files)


def test_the_shared_log_gives_back_the_space_of_topics_that_were_deleted() -> None:
    """As test suites do it: topics that live for seconds, one after the other."""
    files, clock = MemoryFiles(), ManualClock()
    with cordwood.open(DATA, files=files, clock=clock) as log:
        stays = log.topic("stays", config={"cordwood.storage": "shared"})
        _put(stays, b"k")

        def append(number: int) -> None:
            topic = log.topic(f"t{number // 16}", config={"cordwood.storage": "shared"})
            _put(topic, b"k")
            if number % 16 == 15:
                log.delete_topic(topic.name)

        most = soak(log, append, 12, clock, files)
        assert most <= 3 * MIB
        assert [record.value for record in stays.read(0)] == [VALUE]
    report = verify_directory(files, DATA)
    assert report.sound, report.findings


def test_a_live_shared_segment_is_not_sealed_before_its_time() -> None:
    """Where nothing goes there is nothing to win: each seal would only make one file more."""
    files, clock = MemoryFiles(), ManualClock()
    with cordwood.open(DATA, files=files, clock=clock) as log:
        topic = log.topic("t", config={"cordwood.storage": "shared", "retention.bytes": str(64 * MIB)})
        soak(log, lambda number: _put(topic, b"k"), 4, clock, files)
        assert len(log.data_directory.partitions.own("__shared", 0).state.sealed) == 0
        assert len(list(topic.read(0))) == topic.high_watermark()


def test_committed_offsets_take_no_more_than_a_few_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit is a record, and only the last of a group and partition counts."""
    monkeypatch.setattr(broker_topics, "INTERNAL_SEGMENT_BYTES", 16 << 10)
    files, clock, most = MemoryFiles(), ManualClock(), 0
    with cordwood.open(DATA, files=files, clock=clock) as log:
        coordinator = Coordinator(GroupLimits(), str)
        for number in range(2_000):
            rows = coordinator.rows_to_commit("g", {("t", 0): Committed(number, -1, "", number)})
            log.offsets_topic().append_many(rows, partition=0)
            if number % 100 == 99:
                log.maintain()
                most = max(most, sizes(files)["log"])
        assert log.config_of(OFFSETS_TOPIC).segment_bytes == 16 << 10
    assert most <= 4 * (16 << 10)
    assert broker_topics.INTERNAL_SEGMENT_BYTES < 1 << 30


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1 << 30),
        ({"retention_bytes": 1 << 40}, 1 << 30),
        ({"retention_bytes": 100 * MIB}, 50 * MIB),
        ({"retention_bytes": 0}, MIB),
        ({"retention_bytes": 0, "segment_bytes": 300}, 300),
        ({"retention_bytes": 100 * MIB, "cleanup_policy": "compact"}, 1 << 30),
        ({"retention_bytes": 100 * MIB, "cleanup_policy": "compact,delete"}, 50 * MIB),
        ({"retention_ms": 1000}, 1 << 30),
    ],
)
def test_a_segment_is_at_most_half_of_what_retention_keeps(
    settings: dict[str, int | str], expected: int
) -> None:
    assert TopicConfig(**settings).roll_bytes == expected  # type: ignore[arg-type]
