"""Records by their offsets: one or many, in the order asked, each frame read once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from support.clocks import HookedFiles, ManualClock
from support.logs import DATA, SMALL
from support.seeds import seed_or

import cordwood
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import OffsetOutOfRange, UnknownTopic
from cordwood.storage.log.reading import frame_walk
from cordwood.storage.log.reading import view as view_module

FORMATS = ["batch", "rustlog", "kimberlite", "laminarmq", "frame"]
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "400",
    "min.cleanable.dirty.ratio": "0.0",
}


@pytest.fixture
def files() -> HookedFiles:
    return HookedFiles(MemoryFiles())


@pytest.fixture
def log(files: HookedFiles) -> Iterator[cordwood.Log]:
    with cordwood.open(DATA, files=files, clock=ManualClock()) as opened:
        yield opened


def filled(log: cordwood.Log, config: dict[str, str] | None = None) -> cordwood.Topic:
    """A topic t of 40 records in frames of one to four, over several segments."""
    topic, at = log.topic("t", 2, {**SMALL, **(config or {})}), 0
    while at < 40:
        rows = [(None, b"value %d" % i, (), 1_000 + i) for i in range(at, at + 1 + at % 4)]
        topic.append_many(rows[: 40 - at], partition=0)
        at += len(rows)
    return topic


def test_a_record_is_got_by_its_offset_also_inside_a_frame(log: cordwood.Log) -> None:
    topic = filled(log)
    assert [topic.get(0, offset) for offset in range(40)] == list(topic.read())


@pytest.mark.parametrize("storage", ["own", "shared"])
def test_offsets_outside_are_refused_with_both_bounds(log: cordwood.Log, storage: str) -> None:
    topic = log.topic("bounds", config={"cordwood.storage": storage})
    topic.append_many([(None, b"%d" % i) for i in range(8)])
    topic.advance_log_start(0, 3)
    for outside in (-1, 0, 2, 8, 9, 1 << 62):
        for call in (lambda at=outside: topic.get(0, at), lambda at=outside: topic.get_many(0, [4, at, 5])):
            with pytest.raises(OffsetOutOfRange) as caught:
                call()
            assert (caught.value.offset, caught.value.start, caught.value.end) == (outside, 3, 8)
    records = topic.get_many(0, range(3, 8))
    assert [record.value for record in records if record is not None] == [b"3", b"4", b"5", b"6", b"7"]


def test_a_topic_without_records_has_none_to_get(log: cordwood.Log) -> None:
    topic = log.topic("empty", 2)
    with pytest.raises(OffsetOutOfRange):
        topic.get(1, 0)
    assert topic.get_many(1, []) == []
    with pytest.raises(UnknownTopic):
        topic.get(2, 0)


@pytest.mark.parametrize("record_format", FORMATS)
def test_many_come_in_the_order_asked_and_may_repeat(log: cordwood.Log, record_format: str) -> None:
    topic = filled(log, {"cordwood.format": record_format})
    records = list(topic.read())
    seed = seed_or(5)
    print(f"seed {seed}")
    drawn = random.Random(seed)
    for _ in range(50):
        offsets = drawn.choices(range(40), k=drawn.randrange(1, 60))
        assert topic.get_many(0, iter(offsets)) == [records[offset] for offset in offsets]
    assert topic.get_many(0, range(39, -1, -1)) == records[::-1]


@pytest.mark.parametrize("offsets", [list(range(40)), [0, 1, 39], [7, 7, 8, 30, 5], [20]], ids=str)
def test_each_frame_is_read_once(
    log: cordwood.Log, monkeypatch: pytest.MonkeyPatch, offsets: list[int]
) -> None:
    """The frames of each run that is read lie after those of the run before."""
    topic, runs, read = filled(log), list[tuple[int, int]](), frame_walk.read_run

    def noted(*arguments: object) -> object:
        run = read(*arguments)  # type: ignore[arg-type]
        if run is not None:
            runs.append((run.table.base_offset(run.first), run.next_offset))
        return run

    monkeypatch.setattr(view_module, "read_run", noted)
    assert [record and record.offset for record in topic.get_many(0, offsets)] == offsets
    assert len(runs) <= len(set(offsets))
    for (_, end), (start, _) in pairwise(runs):
        assert start >= end, f"{runs}: a frame was read again"
    covered = sum(end - start for start, end in runs)
    assert covered <= 4 * len(set(offsets)), f"{runs}: frames that nobody asked for"


def test_neighbours_are_read_together(log: cordwood.Log, files: HookedFiles) -> None:
    """A thousand frames of one record cost a few reads, not a thousand."""
    topic = log.topic("t")
    for i in range(1_000):
        topic.append(b"%d" % i)
    reads = list[str]()
    files.before = lambda kind, path: reads.append(path) if kind == "read" else None
    assert len(topic.get_many(0, range(1_000))) == 1_000
    print(f"{len(reads)} reads")
    assert len(reads) < 10


def test_none_stands_for_a_record_that_compaction_removed(log: cordwood.Log) -> None:
    topic = log.topic("t", config=COMPACTED)
    for i in range(60):
        topic.append(b"%d" % i, key=b"%d" % (i % 7))
    topic.roll()
    log.maintain(force=True)
    kept = {record.offset: record for record in topic.read()}
    assert 7 <= len(kept) < 40, "nothing was compacted"
    assert topic.get_many(0, range(60)) == [kept.get(offset) for offset in range(60)]
    for offset in range(60):
        assert topic.get(0, offset) == kept.get(offset)
    first, *_ = (offset for offset in range(60) if offset not in kept)
    with_gap = topic.get_many(0, [59, first, 59])
    assert [record is None for record in with_gap] == [False, True, False]


def test_a_topic_is_scanned_as_the_log_scans_it(log: cordwood.Log) -> None:
    import pyarrow as pa

    topic = filled(log)
    assert pa.table(topic.scan(0, start=3, columns=["offset"]))["offset"].to_pylist() == list(range(3, 40))
    assert pa.table(topic.scan()).equals(pa.table(log.scan("t")))
