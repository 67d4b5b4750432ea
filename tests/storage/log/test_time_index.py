"""The time index: few entries in every format, and searches by time that stay exact."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence

import pytest
from support.logs import DATA, TickingClock, open_log
from support.seeds import seed_or

import cordwood
from cordwood.config import load_broker_config
from cordwood.disk import MemoryFiles, join, read_file
from cordwood.formats.registry import FORMATS
from cordwood.storage.directory import Opening
from cordwood.storage.offline import reindex_directory
from cordwood.verify import verify_directory

NOW = 1_700_000_000_000
SEED = seed_or(20)


def rising(number: int) -> int:
    return NOW + number


def shuffled(number: int) -> int:
    return NOW + random.Random(number * 31 + SEED).randrange(400)


def steps(number: int) -> int:
    """Stays, and jumps now and then: entries are far apart."""
    return NOW + number // 70 * 1000


TIMES: Sequence[Callable[[int], int]] = (rising, shuffled, steps)


def segments_of(files: MemoryFiles, suffix: str) -> dict[int, bytes]:
    directory = join(DATA, "topics", "t", "0", "segments")
    names = [name for name in files.list(directory) if name.endswith(f".{suffix}")]
    return {int(name.partition(".")[0]): read_file(files, join(directory, name)) for name in sorted(names)}


def fill(log: cordwood.Log, name: str, settings: Mapping[str, str], time: Callable[[int], int]) -> list[int]:
    """Append 600 records in appends of 1 to 9, and return their timestamps."""
    chance = random.Random(SEED)
    topic = log.topic("t", config={"cordwood.format": name, **settings})
    times: list[int] = []
    while len(times) < 600:
        given = [time(len(times) + each) for each in range(chance.randrange(1, 10))]
        topic.append_many([(None, b"value", [], each) for each in given])
        times += given
    return times


def expected_at(times: Sequence[int], timestamp: int) -> int | None:
    return next((offset for offset, each in enumerate(times) if each >= timestamp), None)


@pytest.mark.parametrize("time", TIMES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_search_by_time_is_exact_in_every_format_with_a_sparse_time_index(
    name: str, time: Callable[[int], int]
) -> None:
    """Of the writer, after a restart, and of a reader beside it, for every timestamp there is and between."""
    print(f"seed {SEED}")
    files = MemoryFiles()
    settings = {
        "segment.bytes": "6000",
        "index.interval.bytes": "700",
        "cordwood.index.interval.records": "20",
        "message.timestamp.after.max.ms": str(10**12),
    }
    with open_log(files) as log:
        times = fill(log, name, settings, time)
        probes = sorted({*times[::7], *(each + 1 for each in times[::11]), NOW - 1, max(times) + 1})
        beside = open_log(files, read_only=True)
        for reader in (log, beside):
            for probe in probes:
                assert reader.topic("t").offset_at(probe) == expected_at(times, probe), probe
        newest = times.index(max(times))
        found = log.data_directory.partitions.own("t", 0).view.newest()
        assert found == (newest, max(times))
        beside.close()
    with open_log(files) as log:
        assert [log.topic("t").offset_at(each) for each in probes] == [
            expected_at(times, each) for each in probes
        ]
    report = verify_directory(files, DATA)
    assert not report.findings, report.findings


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_time_index_has_no_more_entries_than_the_offset_index(name: str) -> None:
    """Also if each record is later than the one before; so `segment.index.bytes` bounds it."""
    files = MemoryFiles()
    with open_log(files) as log:
        fill(log, name, {"cordwood.index.interval.records": "50", "index.interval.bytes": "1000"}, rising)
        log.data_directory.partitions.own("t", 0).roll()
    times, offsets = segments_of(files, "timeidx"), segments_of(files, "idx")
    records = 600
    for base, entries in times.items():
        assert 0 < len(entries) // 16 <= records // 50 + 1 or name == "batch"
        if base in offsets:
            assert len(entries) <= len(offsets[base])
        found = list(struct.iter_unpack(">qQ", entries))
        assert found == sorted(set(found))
        assert found[0][1] == base


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_time_index_that_is_deleted_comes_back_byte_for_byte_after_any_number_of_restarts(
    name: str,
) -> None:
    """The same bytes whether they were written by appends, by recovery, or by ``reindex``."""
    files = MemoryFiles()
    settings = {"cordwood.index.interval.records": "7", "index.interval.bytes": "300"}
    for run in range(5):
        log = open_log(files)
        topic = log.topic("t", config={"cordwood.format": name, "segment.bytes": "9000", **settings})
        for number in range(run * 40, run * 40 + 40):
            topic.append_many([(None, b"value", [], shuffled(number * 3 + each)) for each in range(3)])
        if run % 2:
            log.data_directory.abandon()
        else:
            log.close()
    before = segments_of(files, "timeidx")
    assert len(before) > 1
    for base in before:
        files.unlink(join(DATA, "topics", "t", "0", "segments", f"{base:020d}.timeidx"))
    opening = Opening(files, DATA, load_broker_config()[0], clock=TickingClock())
    assert not reindex_directory(opening).damaged
    assert segments_of(files, "timeidx") == before
    assert not verify_directory(files, DATA).findings
