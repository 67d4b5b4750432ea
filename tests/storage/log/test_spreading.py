"""An append that exceeds ``segment.bytes``, in a format with a frame per record: over several segments."""

from __future__ import annotations

import errno
import random

import pytest
from support.crashes import SEED, crash_images
from support.disks import FaultPlan, FaultyFiles, RecordingFiles
from support.logs import DATA, open_log

import cordwood
from cordwood.disk import MemoryFiles, join, read_file
from cordwood.errors import CordwoodError, StorageError
from cordwood.formats.registry import FORMATS
from cordwood.storage.log import PartitionLog
from cordwood.verify import verify_directory

PER_RECORD = sorted(set(FORMATS) - {"batch"})
SEGMENT_BYTES = 1000
DIRECTORY = join(DATA, "topics", "t", "0", "segments")


def small(name: str, **settings: str) -> dict[str, str]:
    return {"cordwood.format": name, "segment.bytes": str(SEGMENT_BYTES), **settings}


def sizes(files: MemoryFiles, suffix: str = "log") -> dict[int, int]:
    """Return the size of each file with *suffix* by the base offset of its segment."""
    names = [name for name in sorted(files.list(DIRECTORY)) if name.endswith(f".{suffix}")]
    return {int(name.partition(".")[0]): len(read_file(files, join(DIRECTORY, name))) for name in names}


def rows(count: int, size: int = 90) -> list[tuple[None, bytes]]:
    return [(None, b"%05d" % number + bytes(size)) for number in range(count)]


def values(log: cordwood.Log) -> list[bytes | None]:
    return [record.value for record in log.topic("t").read()]


def own(log: cordwood.Log) -> PartitionLog:
    return log.data_directory.partitions.own("t", 0)


@pytest.mark.parametrize("name", PER_RECORD)
def test_segment_bytes_bounds_every_segment_however_many_records_an_append_has(name: str) -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t", config=small(name))
        topic.append_many(rows(3))
        placed = topic.append_many(rows(100))
        assert [each.offset for each in placed] == list(range(3, 103))
        topic.append_many(rows(3))
        expected = [value for count in (3, 100, 3) for _, value in rows(count)]
        assert values(log) == expected
    assert len(sizes(files)) > 8
    assert max(sizes(files).values()) <= SEGMENT_BYTES
    with open_log(files) as log:
        assert values(log) == expected
        log.topic("t").append(b"after")
    assert not verify_directory(files, DATA).findings


@pytest.mark.parametrize("name", PER_RECORD)
def test_a_record_larger_than_a_segment_gets_one_of_its_own(name: str) -> None:
    """No record spans two segments, and none is refused for the size of a segment."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t", config=small(name))
        given = [*rows(4), (None, random.Random(1).randbytes(3 * SEGMENT_BYTES)), *rows(4)]
        topic.append_many(given)
        assert values(log) == [value for _, value in given]
    found = sizes(files)
    assert [size > SEGMENT_BYTES for base, size in found.items() if base != 4] == [False] * (len(found) - 1)
    assert 4 in found
    assert 5 in found


@pytest.mark.parametrize("name", PER_RECORD)
def test_segment_index_bytes_bounds_every_index_however_many_records_an_append_has(name: str) -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        limits = {"segment.bytes": str(1 << 20), "segment.index.bytes": "160"}
        topic = log.topic("t", config={**small(name), **limits, "cordwood.index.interval.records": "5"})
        for count in (1, 200, 30, 30, 1):
            topic.append_many(rows(count))
        own(log).roll()
    for suffix in ("idx", "timeidx", "index"):
        assert max(sizes(files, suffix).values(), default=0) <= 160, suffix
    assert len(sizes(files)) > 4


@pytest.mark.parametrize("name", PER_RECORD)
def test_readers_see_all_records_of_such_an_append_or_none(name: str) -> None:
    """At no call to the disk on the way does a reader, here or beside, see a part of them."""
    files = FaultyFiles(MemoryFiles())
    seen: set[int] = set()
    with open_log(files) as log:
        topic = log.topic("t", config=small(name))
        topic.append_many(rows(2))
        original = files.fault

        def looking(kind: str) -> FaultPlan | None:
            seen.add(topic.high_watermark())
            return original(kind)

        files.fault = looking  # type: ignore[method-assign]
        topic.append_many(rows(60))
        files.fault = original  # type: ignore[method-assign]
        assert seen == {2, 62}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("name", PER_RECORD)
def test_such_an_append_that_fails_at_any_call_leaves_the_log_as_it_was(name: str, code: int) -> None:
    """Nothing was appended, or the log has failed and the next open finds a prefix, nothing else."""
    wanted = [value for count in (2, 20) for _, value in rows(count)]
    cases = 0
    while True:
        inner = MemoryFiles()
        files = FaultyFiles(inner)
        log = open_log(files)
        topic = log.topic("t", config=small(name, **{"cordwood.chain": "false"}))
        topic.append_many(rows(2))
        partition = own(log)
        files.plan(FaultPlan(1 + cases * 2, error=code))
        done = True
        try:
            topic.append_many(rows(20))
        except StorageError:
            done = False
        if not files.failures:
            assert done
            break
        files.heal()
        cases += 1
        if not done and partition.failure is None:
            assert values(log) == wanted[:2]
            assert sum(sizes(inner).values()) == partition.size(), "what was written is still there"
            topic.append_many(rows(20))
            done = True
        try:
            log.close()
        except CordwoodError:
            assert partition.failure is not None
        with open_log(inner) as again:
            found = values(again)
            assert found == (wanted if done else wanted[: len(found)])
            assert len(found) >= 2
        assert not [each for each in verify_directory(inner, DATA).findings if each.severity != "note"]
    print(f"{name}: {cases} failures")
    assert cases > 20


@pytest.mark.parametrize("name", PER_RECORD)
def test_no_power_cut_in_such_an_append_loses_a_promised_record_or_leaves_more_than_a_prefix(
    name: str,
) -> None:
    recording = RecordingFiles(MemoryFiles())
    log = open_log(recording)
    topic = log.topic("t", config=small(name, **{"cordwood.chain": "false"}))
    for count, end in ((2, 2), (20, 22), (1, 23)):
        topic.append_many(rows(count))
        recording.acknowledge(end)
    wanted = [value for count in (2, 20, 1) for _, value in rows(count)]
    disks = 0
    for image in crash_images(recording, limit_per_prefix=1):
        with open_log(image.files) as again:
            found = values(again) if "t" in again.topics else []
            assert found == wanted[: len(found)]
            assert len(found) >= max(int(str(each)) for each in (0, *image.acknowledged))
            if "t" in again.topics:
                again.topic("t").append(b"after")
        findings = verify_directory(image.files, DATA).findings
        assert not [each for each in findings if each.severity == "corruption"], (image.prefix, image.kind)
        disks += 1
    print(f"seed {SEED}: {name}, {disks} disks")
    assert disks > 50
