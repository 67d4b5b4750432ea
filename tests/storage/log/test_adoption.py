"""A file of frames becomes a segment by being renamed: like one that was appended, and as durable."""

from __future__ import annotations

import errno

import pytest
from support.disks import CHANGES, FaultPlan, FaultyFiles, image
from support.logs import disk_of
from support.publishing import CONFIG, DATA, FORMAT, NOW_MS, frame_of, open_log, records_of, values_of
from support.verifying import verify

from cordwood.disk.files import Files, join
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DiskFull, LogFailed, RecordRefused
from cordwood.formats import batch
from cordwood.formats.receiving import BatchTerms
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.readonly.directory import ReadOnlyDirectory

PATH = join(DATA, "tmp", "sink", "q", "0", "1-a-1.share")
SEGMENTS = join(DATA, "topics", "orders", "0", "segments")


def made(files: Files, **config: str) -> DataDirectory:
    """A directory with one topic."""
    data = open_log(files).data_directory
    data.topics.create("orders", "id-1", 1, config)
    return data


def put(files: Files, *frames: bytearray | bytes) -> int:
    """Write a file of frames, synced; return its size."""
    files.make_directories(PATH.rpartition("/")[0])
    if files.exists(PATH):
        files.unlink(PATH)
    file = files.open(PATH, "create")
    file.write_at(0, [b"".join(frames)])
    file.sync()
    return len(b"".join(frames))


def numbered(*counts: int) -> list[bytearray]:
    """Frames of so many records, with offsets that mean nothing."""
    frames = []
    for number, count in enumerate(counts):
        frame = frame_of(*[b"%d/%d" % (number, n) for n in range(count)], timestamp=NOW_MS + number)
        batch.place(frame, 0, 777, 3)
        frames.append(frame)
    return frames


@pytest.mark.parametrize("before", [0, 1, 5])
def test_an_adopted_file_reads_as_if_its_frames_had_been_appended(before: int) -> None:
    """Same records, same indexes, same answers by time: on another disk they are appended one by one."""
    adopted, appended = MemoryFiles(), MemoryFiles()
    logs = []
    for files in (adopted, appended):
        log = made(files, **{"index.interval.bytes": "100"}).partitions.own("orders", 0)
        for number in range(before):
            log.append([(None, b"before %d" % number)])
        logs.append(log)
    frames = numbered(1, 3, 2, 1, 1, 1)
    placed = logs[0].adopt(PATH, put(adopted, *frames))
    assert (placed.base_offset, placed.next_offset) == (before, before + 9)
    assert logs[0].high_watermark == logs[0].log_end_offset == before + 9
    if before:
        logs[1].roll()
    for frame in frames:
        logs[1].append_received(FORMAT.receive(memoryview(frame), BatchTerms(1 << 20)))
    logs[1].roll()
    assert records_of(logs[0]) == records_of(logs[1])
    assert image(adopted, SEGMENTS) == image(appended, SEGMENTS)
    assert logs[0].state.sealed == logs[1].state.sealed
    for timestamp in range(NOW_MS - 1, NOW_MS + 7):
        assert logs[0].offset_at(timestamp) == logs[1].offset_at(timestamp)
    assert not adopted.exists(PATH)
    assert verify(adopted).sound


def test_appends_truncations_and_another_adoption_follow_an_adopted_segment() -> None:
    files = MemoryFiles()
    data = made(files)
    log = data.partitions.own("orders", 0)
    log.adopt(PATH, put(files, *numbered(2, 2)))
    assert log.append([(None, b"x")]).base_offset == 4
    log.adopt(PATH, put(files, *numbered(1)))
    log.truncate(5)
    assert log.append([(None, b"y")]).base_offset == 5
    log.truncate(3)
    # Its frames get the epoch of now.
    log.adopt(PATH, put(files, *numbered(1, 1)))
    log.commit()
    data.close()
    assert verify(files).sound
    data = open_log(files).data_directory
    assert values_of(data, "orders", 0) == [b"0/0", b"0/1", b"1/0", b"0/0", b"1/0"]


def test_what_was_appended_before_is_durable_with_the_adoption() -> None:
    files = MemoryFiles()
    log = made(files).partitions.own("orders", 0)
    log.append([(None, b"not committed")])
    log.adopt(PATH, put(files, *numbered(1)))
    assert log.unsynced_records == 0
    data = open_log(disk_of(image(files, DATA))).data_directory
    assert values_of(data, "orders", 0) == [b"not committed", b"0/0"]


@pytest.mark.parametrize("damage", ["cut", "longer", "a bit", "zeros", "empty", "no frames"])
def test_a_file_that_does_not_hold_whole_sound_frames_is_refused_and_the_log_goes_on(damage: str) -> None:
    files = MemoryFiles()
    data = made(files)
    log = data.partitions.own("orders", 0)
    log.append([(None, b"before")])
    size = put(files, *numbered(1, 2))
    file = files.open(PATH, "write")
    if damage in ("cut", "empty"):
        file.truncate(size - 1 if damage == "cut" else 0)
    elif damage == "longer":
        file.write_at(size, [b"more"])
    elif damage == "a bit":
        file.write_at(size - 1, [bytes([file.read_at(size - 1, 1)[0] ^ 1])])
    elif damage == "zeros":
        file.write_at(0, [bytes(size)])
    else:
        file.write_at(0, [b"?" * size])
    with pytest.raises(CordwoodError):
        log.adopt(PATH, size)
    assert log.append([(None, b"after")]).base_offset == 1
    log.commit()
    assert values_of(data, "orders", 0) == [b"before", b"after"]
    data.close()
    assert verify(files).sound


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_whichever_call_of_an_adoption_fails_the_file_is_all_in_the_log_or_not_at_all(error: int) -> None:
    """DiskFull: nothing happened and it works again. Otherwise the log stops; reopened, it is whole."""
    outcomes: list[str] = []
    for n in range(1, 80):
        disk = MemoryFiles()
        files = FaultyFiles(disk)
        data = made(files)
        log = data.partitions.own("orders", 0)
        log.append([(None, b"before")])
        size = put(files, *numbered(1, 2))
        files.plan(FaultPlan(n, kinds=CHANGES, error=error))
        try:
            log.adopt(PATH, size)
            outcomes.append("done")
        except DiskFull:
            outcomes.append("full")
            files.heal()
            assert log.high_watermark <= 1
            log.adopt(PATH, size)
        except LogFailed:
            outcomes.append("failed")
        failures = files.failures
        files.heal()
        data.abandon()
        again = open_log(disk).data_directory
        found = values_of(again, "orders", 0)
        whole = [b"before", b"0/0", b"1/0", b"1/1"]
        assert found in ([b"before"], whole), f"call {n}: {found}"
        assert found == whole or outcomes[-1] == "failed", f"call {n}: {found}"
        assert found == whole or disk.exists(PATH), f"call {n}: the share is gone"
        again.close()
        assert verify(disk).sound, f"call {n}: {verify(disk).findings}"
        if not failures:
            break
    print(f"{errno.errorcode[error]}: {len(outcomes) - 1} calls failed")
    assert len(outcomes) > 10
    assert {"failed", "done"} <= set(outcomes)


def test_a_reader_beside_sees_the_adopted_segment_in_place_of_the_empty_one() -> None:
    files = MemoryFiles()
    log = made(files).partitions.own("orders", 0)
    reader = ReadOnlyDirectory(files, DATA, CONFIG)
    partition = reader.readable("orders", 0)
    assert partition.high_watermark == 0
    log.adopt(PATH, put(files, *numbered(2)))
    assert [record.value for record in records_of(partition)] == [b"0/0", b"0/1"]
    reader.close()


@pytest.mark.parametrize("attributes", [batch.TRANSACTIONAL, batch.TRANSACTIONAL | batch.CONTROL])
def test_a_file_with_a_batch_of_a_transaction_is_refused(attributes: int) -> None:
    """No coordinator knows that transaction, so it might stay open for ever."""
    files = MemoryFiles()
    log = made(files).partitions.own("orders", 0)
    options = batch.BatchOptions(attributes=attributes, producer_id=1, producer_epoch=0, base_sequence=0)
    size = put(files, *numbered(2), batch.encode_records([(b"\0\0\0\1", bytes(6))], NOW_MS, options))
    with pytest.raises(RecordRefused, match="is part of a transaction"):
        log.adopt(PATH, size)
    assert log.log_end_offset == 0
    log.append([(b"k", b"v")])
    log.commit()
    assert [record.value for record in records_of(log)] == [b"v"]
