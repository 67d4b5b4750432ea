"""Segments of one partition: when they are sealed, what is in their files, how they are read and cut."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.clocks import HookedFiles, ManualClock
from support.disks import READS, FaultPlan, FaultyFiles, image
from support.seeds import seed_or

from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, join, parent, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.disk.store import PREALLOCATE_AFTER
from cordwood.errors import (
    CordwoodError,
    CorruptRange,
    DiskFull,
    LogClosed,
    MetadataDamaged,
    OffsetOutOfRange,
    StorageError,
)
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.telemetry import Telemetry

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000


# --- A partition, and its files read without the engine ------------------------------------------


@dataclass
class Bench:
    """One partition of one topic, opened again at will."""

    files: Files
    root: str
    settings: dict[str, str] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    mapped: bool = True

    def open(self) -> PartitionLog:
        self.data = DataDirectory(
            Opening(
                files=self.files,
                path=self.root,
                clock=self.clock,
                telemetry=Telemetry(),
                holder="a test",
                uuid="u-1",
                node_name="here",
                config=load_broker_config(environment={})[0],
                mapped=self.mapped,
            )
        )
        if "orders" not in self.data.topics:
            self.data.topics.create("orders", "id-1", 1, self.settings)
        self.log = self.data.partitions.own("orders", 0)
        return self.log

    def reopen(self) -> PartitionLog:
        self.data.close()
        return self.open()

    def killed(self) -> Bench:
        """A copy of what a killed process would leave now, in memory."""
        copied = MemoryFiles()
        for path, content in image(self.files, self.root).items():
            copied.make_directories(path if content is None else parent(path))
            if content is not None:
                copied.open(path, "create").write_at(0, [content])
        return Bench(copied, self.root, self.settings, self.clock)

    @property
    def directory(self) -> str:
        return join(self.root, "topics", "orders", "0")

    def names(self, suffix: str = "") -> list[str]:
        return [n for n in self.files.list(join(self.directory, "segments")) if n.endswith(suffix)]

    def bases(self) -> list[int]:
        return [int(name[:20]) for name in self.names(".log")]

    def segment(self, base: int, suffix: str) -> bytes:
        return read_file(self.files, join(self.directory, "segments", f"{base:020d}.{suffix}"))

    def state(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(read_file(self.files, join(self.directory, "partition.json")))[
            "body"
        ]
        return body


def memory(**settings: str) -> Bench:
    return Bench(MemoryFiles(), "/data", {name.replace("_", "."): text for name, text in settings.items()})


class StoredFrame(NamedTuple):
    """What the header of a batch says, by the layout in docs/formats/batch.md."""

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    next_offset: int
    max_timestamp: int
    records: int


def frames_of(data: bytes) -> list[StoredFrame]:
    """Walk the batches of a segment that must consist of nothing else."""
    frames, position = [], 0
    while position < len(data):
        offset, length, epoch = struct.unpack_from(">qii", data, position)
        (last_delta,) = struct.unpack_from(">i", data, position + 23)
        (max_timestamp,) = struct.unpack_from(">q", data, position + 35)
        (count,) = struct.unpack_from(">i", data, position + 57)
        size = length + 12
        frames.append(
            StoredFrame(position, size, offset, epoch, offset + last_delta + 1, max_timestamp, count)
        )
        position += size
    assert position == len(data), "the last frame is not whole"
    return frames


def index_of(frames: Sequence[StoredFrame], interval_bytes: int) -> bytes:
    entries, last = b"", None
    for frame in frames:
        if last is None or frame.position - last >= interval_bytes:
            entries += struct.pack(">QQ", frame.base_offset, frame.position)
            last = frame.position
    return entries


def time_index_of(frames: Sequence[StoredFrame], interval: int) -> bytes:
    """The first frame, then the largest timestamp before each frame that has an entry in the offset index."""
    indexed = {offset for offset, _ in struct.iter_unpack(">QQ", index_of(frames, interval))}
    entries: list[tuple[int, int]] = []
    for number, frame in enumerate(frames):
        if frame.base_offset in indexed and number:
            best = max(frames[:number], key=lambda each: (each.max_timestamp, -each.base_offset))
            entries.append((best.max_timestamp, best.base_offset))
        elif not number:
            entries.append((frame.max_timestamp, frame.base_offset))
    return b"".join(struct.pack(">qQ", *entry) for entry in dict.fromkeys(entries))


def put(log: PartitionLog, *rows: Any) -> int:
    """Append *rows* as one durable frame and return its first offset."""
    appended = log.append([(None, row) if isinstance(row, bytes) else row for row in rows])
    log.commit(appended.next_offset)
    return appended.base_offset


def read_all(log: PartitionLog, start: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Read everything from *start* on through as many reads as it takes."""
    offset = log.log_start_offset if start is None else start
    records: list[Record] = []
    while offset < log.high_watermark:
        fetched = log.read(offset, max_bytes)
        assert fetched.next_offset > offset
        for run in fetched.runs:
            records += [record for record in run.records() if record.offset >= offset]
        offset = fetched.next_offset
    return records


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


def numbered(log: PartitionLog, count: int, size: int = 30) -> None:
    """Append *count* frames of one record each, whose values tell them apart."""
    for _ in range(count):
        put(log, b"%d" % log.log_end_offset + b"." * size)


# --- Sealing -------------------------------------------------------------------------------------


def test_a_segment_is_sealed_before_an_append_would_exceed_its_size() -> None:
    bench = memory(segment_bytes="500")
    log = bench.open()
    numbered(log, 30)
    bases = bench.bases()
    assert len(bases) > 4
    for base, following in itertools.pairwise(bases):
        data = bench.segment(base, "log")
        next_frame = frames_of(bench.segment(following, "log"))[0]
        assert len(data) <= 500 < len(data) + next_frame.size


def test_a_frame_that_just_fits_is_not_a_reason_to_roll() -> None:
    probe = memory()
    put(probe.open(), b"x" * 40)
    size = probe.log.active_size
    bench = memory(segment_bytes=str(3 * size))
    log = bench.open()
    for _ in range(3):
        put(log, b"x" * 40)
    assert bench.bases() == [0]
    put(log, b"x" * 40)
    assert bench.bases() == [0, 3]


def test_a_frame_larger_than_a_segment_has_one_to_itself() -> None:
    bench = memory(segment_bytes="200")
    log = bench.open()
    put(log, b"small")
    put(log, b"L" * 1_000)
    put(log, b"small")
    assert bench.bases() == [0, 1, 2]
    assert [len(value or b"") for value in values(log)] == [5, 1_000, 5]


def test_a_record_never_spans_two_segments() -> None:
    """Every segment is a whole number of frames, however sizes and limits fall."""
    bench = memory(segment_bytes="700")
    log = bench.open()
    seed = seed_or(1)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(60):
        put(log, *(chance.randbytes(chance.randrange(200)) for _ in range(chance.randrange(1, 5))))
    frames = [frame for base in bench.bases() for frame in frames_of(bench.segment(base, "log"))]
    assert len(frames) == 60
    assert all(one.next_offset == other.base_offset for one, other in itertools.pairwise(frames))


def test_a_segment_is_sealed_when_it_has_been_active_long_enough() -> None:
    bench = memory(segment_ms="1000")
    log = bench.open()
    put(log, b"0")
    bench.clock.advance(999)
    put(log, b"1")
    assert bench.bases() == [0]
    bench.clock.advance(1)
    put(log, b"2")
    assert bench.bases() == [0, 2]


def test_by_default_a_segment_is_active_for_an_hour() -> None:
    bench = memory()
    log = bench.open()
    put(log, b"0")
    bench.clock.advance(HOUR_MS - 1)
    put(log, b"1")
    assert bench.bases() == [0]
    bench.clock.advance(1)
    put(log, b"2")
    assert bench.bases() == [0, 2]


def test_an_empty_segment_does_not_age() -> None:
    bench = memory(segment_ms="1000")
    log = bench.open()
    bench.clock.advance(5_000)
    put(log, b"0")
    assert bench.bases() == [0]


def test_a_segment_goes_on_ageing_across_a_restart() -> None:
    bench = memory(segment_ms="1000")
    put(bench.open(), b"0")
    bench.clock.advance(600)
    log = bench.reopen()
    put(log, b"1")
    assert bench.bases() == [0]
    bench.clock.advance(400)
    put(log, b"2")
    assert bench.bases() == [0, 2]


def test_a_segment_is_sealed_when_its_offset_index_is_full() -> None:
    bench = memory(segment_index_bytes="64", index_interval_bytes="0")
    log = bench.open()
    for i in range(10):
        put(log, (None, b"%d" % i, [], 1_000))
    assert bench.bases() == [0, 4, 8]
    assert all(len(bench.segment(base, "idx")) == 64 for base in (0, 4))


def test_a_segment_is_sealed_on_request_unless_it_is_empty() -> None:
    bench = memory()
    log = bench.open()
    log.roll()
    assert bench.bases() == [0]
    numbered(log, 3)
    log.roll()
    log.roll()
    assert bench.bases() == [0, 3]
    assert [segment["base"] for segment in bench.state()["sealed"]] == [0]
    assert len(read_all(log)) == 3


def test_a_roll_makes_everything_before_it_durable_and_readable() -> None:
    bench = memory()
    log = bench.open()
    log.append([(None, b"written, not synced")])
    assert log.high_watermark == 0
    log.roll()
    assert log.high_watermark == 1


def test_names_are_the_base_offset_in_twenty_digits_and_follow_each_other() -> None:
    bench = memory(segment_bytes="300", cordwood_initial_offset="98")
    log = bench.open()
    numbered(log, 12)
    names = bench.names(".log")
    assert all(len(name) == 24 and name[:20].isdigit() for name in names)
    assert names == sorted(names, key=lambda name: int(name[:20]))
    sealed = bench.state()["sealed"]
    for segment, following in itertools.pairwise([*sealed, {"base": bench.state()["active_base"]}]):
        assert segment["next_offset"] == following["base"]
        frames = frames_of(bench.segment(segment["base"], "log"))
        assert frames[0].base_offset == segment["base"]
        assert frames[-1].next_offset == segment["next_offset"]
        assert segment["size"] == sum(frame.size for frame in frames)
        assert segment["max_timestamp"] == max(frame.max_timestamp for frame in frames)


def test_a_sealed_file_never_changes(tmp_path: Path) -> None:
    """Nothing but its removal: not a roll, a hash, a truncation elsewhere, a restart or a reader."""
    bench = Bench(PosixFiles(), str(tmp_path / "data"), {"segment.bytes": "300"})
    log = bench.open()
    numbered(log, 8)
    kept = [base for base in bench.bases()[:-1] if base < 6]
    assert len(kept) >= 2

    def facts() -> dict[str, tuple[int, int, int, bytes]]:
        found = {}
        for base, suffix in itertools.product(kept, ("log", "idx", "timeidx")):
            path = Path(bench.directory, "segments", f"{base:020d}.{suffix}")
            status = path.stat()
            found[path.name] = (status.st_ino, status.st_mtime_ns, status.st_size, path.read_bytes())
        return found

    before = facts()
    numbered(log, 5)
    log.roll()
    log.hash_sealed()
    log.truncate(log.log_end_offset - 3)
    numbered(log, 4)
    read_all(log)
    log.advance_log_start(1)
    log = bench.reopen()
    read_all(log)
    log.truncate(max(kept) + 3)
    numbered(log, 4)
    bench.data.close()
    assert facts() == before


def test_truncating_into_a_sealed_segment_leaves_the_old_file_to_who_has_it_open(tmp_path: Path) -> None:
    """What is kept is copied and takes the name: the old bytes are never cut under a reader."""
    bench = Bench(PosixFiles(), str(tmp_path / "data"))
    log = bench.open()
    numbered(log, 4)
    log.roll()
    path = Path(bench.directory, "segments", f"{0:020d}.log")
    before = path.read_bytes()
    with path.open("rb") as old:
        log.truncate(2)
        assert old.read() == before
        assert os.fstat(old.fileno()).st_ino != path.stat().st_ino
    assert before.startswith(path.read_bytes())


# --- Indexes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [0, 1, 90, 250, 4096])
def test_index_files_hold_what_the_documentation_says(interval: int) -> None:
    bench = memory(segment_bytes="3000", index_interval_bytes=str(interval))
    log = bench.open()
    chance = random.Random(interval)
    for i in range(120):
        times = [NOW + chance.randrange(-500, 500) + i for _ in range(chance.randrange(1, 4))]
        put(log, *((None, chance.randbytes(chance.randrange(90)), [], time) for time in times))
        if i % 40 == 20:
            log = bench.reopen()
        if i % 40 == 39:
            log.truncate(log.log_end_offset - 5)
    bench.data.close()
    compared = 0
    for base in bench.bases():
        frames = frames_of(bench.segment(base, "log"))
        assert bench.segment(base, "idx") == index_of(frames, interval)
        assert bench.segment(base, "timeidx") == time_index_of(frames, interval)
        compared += len(frames)
    assert compared > 100


@pytest.mark.parametrize("suffix", ["idx", "timeidx"])
@pytest.mark.parametrize("damage", ["deleted", "garbage", "cut", "longer", "a bit"])
@pytest.mark.parametrize("which", ["sealed", "active"])
def test_an_index_that_is_lost_or_wrong_comes_back_byte_for_byte(
    suffix: str, damage: str, which: str
) -> None:
    bench = memory(index_interval_bytes="100")
    log = bench.open()
    numbered(log, 20)
    log.roll()
    numbered(log, 20)
    records = read_all(log)
    bench.data.close()
    base = 0 if which == "sealed" else 20
    path = join(bench.directory, "segments", f"{base:020d}.{suffix}")
    before = read_file(bench.files, path)
    assert before
    bench.files.unlink(path)
    flipped = bytes([before[0] ^ 1]) + before[1:]
    contents = {"garbage": b"\xff" * 32, "cut": before[:-1], "longer": before + bytes(16), "a bit": flipped}
    if damage in contents:
        bench.files.open(path, "create").write_at(0, [contents[damage]])
    # As after a crash: nobody vouches for a clean close, and whoever starts repairs what is not right.
    bench.files.unlink(join(bench.root, "meta", "clean"))

    log = bench.open()
    assert read_all(log) == records
    assert all(log.offset_at(record.timestamp) is not None for record in records)
    bench.data.close()
    assert read_file(bench.files, path) == before


def test_a_lookup_walks_at_most_one_index_interval() -> None:
    """Once more where the frame lies across the end of the interval, but never more in a longer log."""
    interval = 2_000
    files = HookedFiles(MemoryFiles())
    bench = Bench(files, "/data", {"index.interval.bytes": str(interval)}, mapped=False)
    log = bench.open()
    numbered(log, 800, size=30)
    log.roll()
    largest = max(frame.size for frame in frames_of(bench.segment(0, "log")))
    log = bench.reopen()
    read_all(log)
    taken: list[int] = []

    def count(kind: str, path: str, result: Any) -> None:
        if kind == "read" and path.endswith(".log"):
            taken.append(len(result))

    files.after = count
    for offset in range(0, 800, 7):
        taken.clear()
        fetched = log.read(offset, 1)
        assert len(fetched.runs) == 1
        assert sum(taken) <= 2 * (interval + largest)
    assert len(bench.segment(0, "log")) > 20 * interval


# --- Reading -------------------------------------------------------------------------------------


def test_a_read_says_where_it_ends_and_where_the_log_stood() -> None:
    bench = memory()
    log = bench.open()
    numbered(log, 6)
    log.advance_log_start(2)
    log.append([(None, b"written, not synced")])
    fetched = log.read(3, 1 << 20)
    assert fetched.next_offset == 6
    assert (fetched.log_start_offset, fetched.high_watermark, fetched.log_end_offset) == (2, 6, 7)


def test_what_is_not_synced_is_not_read() -> None:
    log = memory().open()
    put(log, b"synced")
    appended = log.append([(None, b"written")])
    assert values(log) == [b"synced"]
    assert log.read(1, 100).runs == ()
    with pytest.raises(OffsetOutOfRange):
        log.read(2, 100)
    log.commit(appended.next_offset)
    assert values(log) == [b"synced", b"written"]


def test_max_bytes_is_kept_except_for_the_first_frame_which_comes_whole() -> None:
    bench = memory(segment_bytes="600")
    log = bench.open()
    seed = seed_or(2)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(40):
        put(log, chance.randbytes(chance.randrange(10, 200)))
    frames = [frame for base in bench.bases() for frame in frames_of(bench.segment(base, "log"))]
    assert len(bench.bases()) > 5
    for start, max_bytes in itertools.product(range(0, 40, 3), (0, 1, 80, 200, 500, 900, 5_000, 1 << 20)):
        fetched = log.read(start, max_bytes)
        count = max(sum(total <= max_bytes for total in running_sizes(frames[start:])), 1)
        size = sum(len(run.data) for run in fetched.runs)
        assert fetched.next_offset >= start + 1
        assert size <= max_bytes or fetched.next_offset == start + 1
        # "About": a run stops with a segment where the next one does not fit whole, never for no reason.
        assert fetched.next_offset <= start + count
        stored = b"".join(bytes(run.data) for run in fetched.runs)
        taken = frames[start : fetched.next_offset]
        assert [f.base_offset for f in frames_of(stored)] == [f.base_offset for f in taken]
    assert log.read(0, 1 << 20).next_offset == 40, "one read crosses all segments"


def running_sizes(frames: Sequence[StoredFrame]) -> Iterator[int]:
    return itertools.accumulate(frame.size for frame in frames)


def test_a_read_in_the_middle_of_a_batch_returns_the_whole_batch() -> None:
    """Frames are not opened on the way: a client skips what it did not ask for, as with Kafka."""
    log = memory().open()
    put(log, b"0", b"1", b"2", b"3")
    put(log, b"4")
    fetched = log.read(2, 1)
    assert fetched.next_offset == 4
    assert [frame.base_offset for frame in frames_of(bytes(fetched.runs[0].data))] == [0]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("interval", ["0", "1", "5", "11", "4096"])
@pytest.mark.parametrize("max_bytes", [-1, 0, 1, 5, 11, 61])
def test_however_small_the_interval_and_the_read_a_frame_is_found(interval: str, max_bytes: int) -> None:
    """The first bytes of a frame are zeros: a look at too few of them must not pass for the end."""
    bench = memory(index_interval_bytes=interval)
    log = bench.open()
    for i in range(4):
        put(log, (None, b"%d" % i, [], NOW + i))
    for offset in range(4):
        assert log.read(offset, max_bytes).next_offset == offset + 1
        assert log.offset_at(NOW + offset) == (offset, NOW + offset)


def test_an_offset_outside_the_log_is_refused_with_both_bounds() -> None:
    log = memory().open()
    numbered(log, 5)
    log.advance_log_start(2)
    for outside in (-1, 0, 1, 6, 1 << 62):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(outside, 100)
        assert (caught.value.offset, caught.value.start, caught.value.end) == (outside, 2, 5)
    assert log.read(5, 100).runs == ()


@pytest.mark.parametrize("mapped", [False, True])
def test_open_segment_files_are_bounded(tmp_path: Path, mapped: bool) -> None:
    """A partition with more segments than file handles can be read all the same, in any order."""
    bench = Bench(PosixFiles(), str(tmp_path / "data"), {"segment.bytes": "100"}, mapped=mapped)
    log, segments, limit = bench.open(), 40, 4
    open_files = log.context.open_files
    open_files._limit = limit
    for _ in range(segments):
        log.append([(None, b"%d" % log.log_end_offset + b"." * 80)])
    log.commit()
    assert len(log.state.sealed) == segments - 1
    before = len(os.listdir("/dev/fd"))
    seed = seed_or(3)
    print(f"seed {seed}")
    for offset in random.Random(seed).choices(range(segments), k=200):
        run = log.read(offset, 1).runs[0]
        assert frames_of(bytes(run.data))[0].base_offset == offset
        assert len(open_files) <= limit
        # The one more is the file whose frames we hold.
        assert len(os.listdir("/dev/fd")) <= before + limit + 1
    bench.data.close()


def test_the_first_offset_at_a_time_is_exact_however_times_run() -> None:
    bench = memory(segment_bytes="900", index_interval_bytes="200")
    log = bench.open()
    seed = seed_or(4)
    print(f"seed {seed}")
    chance = random.Random(seed)
    times: list[int] = []
    for _ in range(80):
        drawn = [chance.randrange(1_000, 1_400) for _ in range(chance.randrange(1, 5))]
        put(log, *((None, b"x" * chance.randrange(40), [], time) for time in drawn))
        times += drawn
    for start in (0, 57, 120, len(times)):
        log.advance_log_start(start)
        for wanted in range(990, 1_410):
            exact = next((o for o in range(start, len(times)) if times[o] >= wanted), None)
            expected = None if exact is None else (exact, times[exact])
            assert log.offset_at(wanted) == expected
    assert len(bench.bases()) >= 1


def test_times_before_the_epoch_are_found_too() -> None:
    log = memory().open()
    for time in (-5_000, -7_000, -1_000):
        put(log, (None, b"old", [], time))
    assert log.offset_at(-6_000) == (0, -5_000)
    assert log.offset_at(-4_999) == (2, -1_000)
    assert log.offset_at(0) is None


# --- Readers beside the writer's own threads -----------------------------------------------------


CHANGES: dict[str, Callable[[PartitionLog], object]] = {
    "roll": lambda log: log.roll(),
    "truncate in place": lambda log: log.truncate(4),
    "truncate into a batch": lambda log: log.truncate(5),
    "truncate into a sealed segment": lambda log: log.truncate(1),
    "advance the log start": lambda log: log.advance_log_start(3),
    "advance the log start into the active segment": lambda log: log.advance_log_start(5),
    "hash": lambda log: log.hash_sealed(),
    "append": lambda log: put(log, b"another"),
    "close": lambda log: log.close(),
}


def busy_partition(mapped: bool = False) -> tuple[HookedFiles, PartitionLog, dict[int, bytes | None]]:
    """Offsets 0 to 1 and 2 to 3 sealed, a frame of two and one of two active."""
    files = HookedFiles(MemoryFiles())
    log = Bench(files, "/data", {"index.interval.bytes": "64"}, mapped=mapped).open()
    for first in (0, 2):
        put(log, b"%d" % first, b"%d" % (first + 1))
        log.roll()
    put(log, b"4", b"5")
    put(log, b"6", b"7")
    return files, log, {record.offset: record.value for record in read_all(log)}


def act_at(files: HookedFiles, turn: int, act: Callable[[], object]) -> list[int]:
    """Let *act* happen just before call number *turn* of a reader; the list says once it has."""
    calls = itertools.count()
    acted: list[int] = []

    def hook(kind: str, path: str) -> None:
        if not acted and next(calls) == turn:
            acted.append(turn)
            act()

    files.before = hook
    return acted


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("change", CHANGES)
def test_a_reader_overtaken_by_a_change_gets_data_or_a_clear_error(
    change: str, start: int, mapped: bool
) -> None:
    """Reads take no lock, so the change may come between any two of a reader's calls to the disk."""
    turns = 0
    for turn in itertools.count():
        files, log, written = busy_partition(mapped)
        acted = act_at(files, turn, partial(CHANGES[change], log))
        offset = start
        try:
            while offset < 8:
                fetched = log.read(offset, 1)
                for run in fetched.runs:
                    for record in run.records():
                        assert written[record.offset] == record.value
                if fetched.next_offset == offset:
                    break
                offset = fetched.next_offset
        except (CorruptRange, OffsetOutOfRange, LogClosed):
            pass
        if not acted:
            break
        turns += 1
    assert turns >= 1


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "close"])
def test_a_change_under_a_reader_is_never_reported_as_corruption(change: str) -> None:
    """Corruption is an alarm. What was cut or removed on request is out of range, and nothing is wrong."""
    for turn in range(6):
        files, log, _ = busy_partition()
        act_at(files, turn, partial(CHANGES[change], log))
        for offset in range(8):
            with contextlib.suppress(OffsetOutOfRange):
                log.read(offset, 1)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_slow_reader_does_not_bring_back_what_was_truncated(mapped: bool) -> None:
    """A handle of the file from before a truncation must not be kept under the name of the new one."""
    turns = 0
    for turn in itertools.count():
        files = HookedFiles(MemoryFiles())
        log = Bench(files, "/data", mapped=mapped).open()
        for i in range(6):
            put(log, b"old %d" % i)
        log.roll()

        def truncate_and_go_on(log: PartitionLog = log) -> None:
            log.truncate(2)
            for i in range(2, 6):
                put(log, b"new %d" % i)
            log.roll()

        acted = act_after(files, turn, truncate_and_go_on)
        with contextlib.suppress(CordwoodError):
            log.read(3, 1)
        if not acted:
            break
        turns += 1
        assert values(log) == [b"old 0", b"old 1", b"new 2", b"new 3", b"new 4", b"new 5"]
    assert turns >= 2


def act_after(files: HookedFiles, turn: int, act: Callable[[], object]) -> list[int]:
    """Let *act* happen just after look number *turn* at a segment from now on; the list says once it has.

    Looks take no lock. Changes do, so another thread cannot have its turn in the middle of one.
    """
    calls = itertools.count()
    acted: list[int] = []

    def hook(kind: str, path: str, result: Any) -> None:
        if not acted and kind in READS and path.endswith(".log") and next(calls) == turn:
            acted.append(turn)
            act()

    files.after = hook
    return acted


# --- Preallocation -------------------------------------------------------------------------------


def preallocating(files: Files, count: int = 5) -> Bench:
    """A partition with a preallocated active segment of more than one step."""
    bench = Bench(files, "/data", {"preallocate": "true"})
    bench.open()
    for i in range(count):
        put(bench.log, bytes([i + 1]) * (PREALLOCATE_AFTER // 2))
    return bench


def test_preallocated_zeros_are_the_end_of_the_log() -> None:
    bench = preallocating(MemoryFiles())
    data = bench.segment(0, "log")
    end = bench.log.active_size
    assert len(data) > end
    assert not any(data[end:])
    assert [(value or b"")[0] for value in values(bench.log)] == [1, 2, 3, 4, 5]
    assert bench.log.size() == end


def test_preallocated_zeros_are_cut_after_a_kill_and_are_no_torn_tail() -> None:
    bench = preallocating(MemoryFiles()).killed()
    log = bench.open()
    assert len(read_all(log)) == 5
    assert len(bench.segment(0, "log")) == log.active_size
    assert bench.data.partitions.reports[0].truncated_bytes == 0
    assert not bench.files.exists("/data/quarantine")


@pytest.mark.parametrize("end", ["roll", "close"])
def test_preallocated_space_is_given_back(end: str) -> None:
    bench = preallocating(MemoryFiles())
    size = bench.log.active_size
    if end == "roll":
        bench.log.roll()
    else:
        bench.data.close()
    assert len(bench.segment(0, "log")) == size


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_where_space_cannot_be_reserved_the_segment_grows_instead(code: int) -> None:
    plan = FaultPlan(1, frozenset({"preallocate"}), error=code, forever=True)
    files = FaultyFiles(MemoryFiles(), plan)
    bench = preallocating(files)
    assert files.failures >= 1
    assert len(read_all(bench.log)) == 5
    assert len(bench.segment(0, "log")) == bench.log.active_size


# --- A failed append -----------------------------------------------------------------------------


@pytest.mark.parametrize("short", [None, 0, 1, 30, 60])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_append_leaves_everything_as_it_was_and_the_next_one_works(
    code: int, short: int | None
) -> None:
    files = FaultyFiles(MemoryFiles())
    bench = Bench(files, "/data")
    log = bench.open()
    numbered(log, 3)
    before, stood = bench.segment(0, "log"), (log.log_end_offset, log.size(), log.high_watermark)
    files.plan(FaultPlan(1, frozenset({"write"}), error=code, short=short))
    with pytest.raises(StorageError) as caught:
        log.append([(None, b"never")])
    assert isinstance(caught.value, DiskFull) == (code != errno.EIO)
    assert (log.log_end_offset, log.size(), log.high_watermark) == stood
    assert bench.segment(0, "log") == before
    files.heal()
    assert put(log, b"goes on") == 3
    assert values(bench.reopen())[3] == b"goes on"


def test_a_short_write_is_finished_where_the_disk_lets_it() -> None:
    files = FaultyFiles(MemoryFiles())
    bench = Bench(files, "/data")
    log = bench.open()
    files.plan(FaultPlan(1, frozenset({"write"}), error=None, short=7))
    put(log, b"in two pieces")
    assert files.failures == 1
    assert values(bench.reopen()) == [b"in two pieces"]


# --- Truncating ----------------------------------------------------------------------------------


def layered() -> Bench:
    """Sealed [0, 6) and [6, 12), active [12, 18): frames of three, two and one records in each."""
    bench = memory()
    log = bench.open()
    for segment in range(3):
        for count in (3, 2, 1):
            put(log, *(b"%d" % (log.log_end_offset + i) for i in range(count)))
        if segment < 2:
            log.roll()
    return bench


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("end", range(19))
def test_truncating_keeps_exactly_what_lies_before(end: int, reopened: bool) -> None:
    bench = layered()
    log, size = bench.log, bench.log.size()
    report = log.truncate(end)
    if reopened:
        log = bench.reopen()
    assert values(log) == [b"%d" % i for i in range(end)]
    assert (report.end_offset, report.removed_offsets) == (end, 18 - end)
    assert report.removed_bytes == size - log.size()
    assert (log.log_end_offset, log.high_watermark) == (end, end)
    assert put(log, b"goes on") == end
    assert values(bench.reopen()) == [*(b"%d" % i for i in range(end)), b"goes on"]


@pytest.mark.parametrize("end", [1, 5, 6, 8, 12, 13, 15, 17])
def test_truncating_raises_the_leader_epoch_which_later_frames_carry(end: int) -> None:
    bench = layered()
    log = bench.log
    log.truncate(end)
    put(log, b"later")
    state = bench.state()
    assert state["leader_epoch"] == 1
    assert state["epochs"] == [{"epoch": 0, "start_offset": 0}, {"epoch": 1, "start_offset": end}]
    assert state["truncating"] is None
    frames = [frame for base in bench.bases() for frame in frames_of(bench.segment(base, "log"))]
    assert [frame.leader_epoch for frame in frames] == [0] * (len(frames) - 1) + [1]


def test_truncating_at_the_end_changes_nothing() -> None:
    bench = layered()
    before = image(bench.files, bench.root)
    assert bench.log.truncate(18) == (18, 0, 0)
    assert image(bench.files, bench.root) == before
    assert bench.state()["leader_epoch"] == 0


def test_truncating_outside_the_log_is_refused_with_both_bounds() -> None:
    bench = layered()
    bench.log.advance_log_start(4)
    for outside in (-1, 3, 19):
        with pytest.raises(OffsetOutOfRange) as caught:
            bench.log.truncate(outside)
        assert (caught.value.start, caught.value.end) == (4, 18)
    assert len(read_all(bench.log)) == 14


def test_truncating_everything_leaves_a_log_that_goes_on_at_its_start() -> None:
    bench = layered()
    bench.log.advance_log_start(7)
    bench.log.truncate(7)
    assert read_all(bench.log) == []
    assert put(bench.reopen(), b"goes on") == 7
    assert values(bench.log) == [b"goes on"]


def test_truncating_again_and_again_drops_epochs_without_records() -> None:
    bench = layered()
    log = bench.log
    for end in (14, 10, 10, 3):
        log.truncate(end)
    put(log, b"later")
    assert bench.state()["epochs"] == [{"epoch": 0, "start_offset": 0}, {"epoch": 3, "start_offset": 3}]
    assert values(bench.reopen()) == [b"0", b"1", b"2", b"later"]


# --- The log start -------------------------------------------------------------------------------


def test_the_log_start_is_durable_and_takes_whole_segments_with_it() -> None:
    bench = layered()
    bench.log.advance_log_start(7)
    assert bench.bases() == [6, 12]
    for again in (bench.killed(), bench):
        log = again.open() if again is not bench else again.reopen()
        assert log.log_start_offset == 7
        assert values(log) == [b"%d" % i for i in range(7, 18)]


def test_the_log_start_never_goes_back_and_not_beyond_what_can_be_read() -> None:
    bench = layered()
    log = bench.log
    log.advance_log_start(7)
    log.advance_log_start(3)
    assert log.log_start_offset == 7
    log.append([(None, b"written, not synced")])
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(19)
    log.advance_log_start(18)
    assert log.log_start_offset == 18
    assert all(record.offset >= 18 for record in read_all(log))
    assert bench.bases() == [12]


@pytest.mark.parametrize("sync", ["never", "every:100", "ms:600000"])
def test_the_log_start_is_never_ahead_of_what_a_power_cut_leaves(sync: str) -> None:
    """The start is durable on return; where records are not, it must not point past the end of the log."""
    files = HookedFiles(MemoryFiles())
    bench = Bench(files, "/data", {"cordwood.sync": sync})
    log = bench.open()
    log.append([(None, b"0"), (None, b"1")])
    synced = 0

    def note(kind: str, path: str) -> None:
        nonlocal synced
        if kind == "sync" and path.endswith(".log"):
            synced = len(bench.segment(0, "log"))

    files.before = note
    log.advance_log_start(2)

    after = bench.killed()
    after.files.open(join(after.directory, "segments", f"{0:020d}.log"), "write").truncate(synced)
    log = after.open()
    assert log.log_start_offset <= log.log_end_offset
    offset = put(log, b"after the power cut")
    assert [record.offset for record in read_all(log)] == [offset]


def test_the_initial_offset_is_the_first_one_and_a_lower_base_on_disk_is_refused() -> None:
    bench = memory(cordwood_initial_offset="1000")
    log = bench.open()
    assert (log.log_start_offset, log.log_end_offset) == (1_000, 1_000)
    assert put(log, b"first") == 1_000
    assert bench.bases() == [1_000]
    bench.data.close()

    lower = memory()
    put(lower.open(), b"at offset 0")
    lower.data.close()
    for name, content in image(lower.files, lower.directory).items():
        if content is not None:
            if bench.files.exists(name):
                bench.files.unlink(name)
            bench.files.open(name, "create").write_at(0, [content])
    with pytest.raises(MetadataDamaged):
        bench.open()


# --- Closing, removing, measuring ----------------------------------------------------------------


def test_size_is_the_bytes_of_all_segments() -> None:
    bench = layered()
    assert bench.log.size() == sum(len(bench.segment(base, "log")) for base in bench.bases())
    assert bench.log.active_size == len(bench.segment(12, "log"))


def test_closing_makes_what_was_written_durable_and_ends_every_other_call() -> None:
    bench = memory(cordwood_sync="never")
    log = bench.open()
    log.append([(None, b"written")])
    log.close()
    log.close()
    for call in (
        lambda: log.append([(None, b"late")]),
        lambda: log.read(0, 1),
        lambda: log.offset_at(0),
        lambda: log.truncate(0),
        lambda: log.roll(),
        lambda: log.commit(),
        lambda: log.advance_log_start(1),
        lambda: log.hash_sealed(),
    ):
        with pytest.raises(LogClosed):
            call()
    assert values(bench.killed().open()) == [b"written"]


def test_removing_leaves_nothing_and_the_partition_can_begin_anew() -> None:
    bench = layered()
    bench.log.remove()
    assert not bench.files.exists(bench.directory)
    bench.data.close()
    assert read_all(bench.open()) == []
    assert put(bench.log, b"new") == 0


# --- Recovery ------------------------------------------------------------------------------------


def summary(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_file(bench.files, join(bench.root, "meta", "checkpoint.json")))
    return found


def test_checkpoint_json_says_where_each_partition_stands() -> None:
    bench = layered()
    size = bench.log.active_size
    bench.data.close()
    assert summary(bench)["partitions"] == [
        {
            "topic": "orders",
            "partition": 0,
            "log_end_offset": 18,
            "active_segment_base_offset": 12,
            "active_segment_size_bytes": size,
            "last_flushed_offset": 18,
        }
    ]


def test_checkpoint_json_keeps_partitions_that_were_not_used_since_the_last_close() -> None:
    bench = layered()
    bench.data.topics.create("payments", "id-2", 2, {})
    put(bench.data.partitions.own("payments", 1), b"1")
    bench.data.close()
    before = summary(bench)
    assert [(p["topic"], p["partition"]) for p in before["partitions"]] == [("orders", 0), ("payments", 1)]
    bench.open()
    bench.data.close()
    assert summary(bench) == before


STALE = b'{"partitions":[{"topic":"orders","partition":0,"log_end_offset":3,"active_segment_base_offset":0}]}'


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe", STALE], ids=str)
@pytest.mark.parametrize("crashed", [False, True])
def test_checkpoint_json_missing_stale_or_corrupt_gives_the_same_records(
    content: bytes | None, crashed: bool
) -> None:
    bench = layered()
    records = read_all(bench.log)
    if crashed:
        bench = bench.killed()
    else:
        bench.data.close()
    path = join(bench.root, "meta", "checkpoint.json")
    bench.files.unlink(path)
    if content is not None:
        bench.files.open(path, "create").write_at(0, [content])
    assert read_all(bench.open()) == records
    bench.data.close()
    assert summary(bench)["partitions"][0]["log_end_offset"] == 18


def test_a_missing_checkpoint_json_is_written_again_even_without_topics() -> None:
    bench = memory()
    bench.open()
    bench.data.close()
    bench.files.unlink(join(bench.root, "meta", "checkpoint.json"))
    bench.open()
    bench.data.close()
    assert "partitions" in summary(bench)


def test_recovery_is_deterministic_and_done_twice_changes_nothing_more() -> None:
    """Two recoveries of one crash give the same bytes, and a third finds nothing left to do."""
    bench = memory(index_interval_bytes="100", preallocate="true")
    log = bench.open()
    numbered(log, 10)
    log.roll()
    numbered(log, 10)
    log.truncate(15)
    numbered(log, 3)
    crash = bench.killed()
    tail = crash.files.open(join(crash.directory, "segments", f"{10:020d}.log"), "write")
    tail.write_at(tail.size(), [b"torn" * 10 + bytes(500)])

    def recovered(from_: Bench) -> tuple[dict[str, bytes | None], Bench]:
        again = from_.killed()
        again.open()
        assert len(read_all(again.log)) == 18
        return image(again.files, again.root), again

    first, once_recovered = recovered(crash)
    second, _ = recovered(crash)
    assert first == second
    third, twice_recovered = recovered(once_recovered)
    topics = join(bench.root, "topics")
    assert {path: data for path, data in third.items() if path.startswith(topics)} == {
        path: data for path, data in first.items() if path.startswith(topics)
    }
    assert all(report.clean for report in twice_recovered.data.partitions.reports)
    put(twice_recovered.log, b"kept")
    assert values(twice_recovered.killed().open())[-1] == b"kept"


def test_a_torn_tail_is_cut_kept_aside_and_reported() -> None:
    bench = memory()
    numbered(bench.open(), 3)
    crash = bench.killed()
    path = join(crash.directory, "segments", f"{0:020d}.log")
    whole = read_file(crash.files, path)
    crash.files.open(path, "write").write_at(len(whole), [whole[:50]])
    log = crash.open()
    report = crash.data.partitions.reports[0]
    assert len(read_all(log)) == 3
    assert report.truncated_bytes == len(whole[:50].rstrip(b"\0"))
    assert report.quarantined is not None
    assert read_file(crash.files, report.quarantined) == whole[:50]
    assert read_file(crash.files, path) == whole


# --- Hashes of sealed segments -------------------------------------------------------------------


def test_the_hash_of_a_sealed_segment_is_that_of_its_file() -> None:
    bench = layered()
    assert [segment["sha256"] for segment in bench.state()["sealed"]] == [None, None]
    assert bench.log.hash_sealed() == 2
    assert bench.log.hash_sealed() == 0
    for segment in bench.state()["sealed"]:
        data = bench.segment(segment["base"], "log")
        assert segment["sha256"] == hashlib.sha256(data).hexdigest()
    bench.reopen()
    assert bench.log.hash_sealed() == 0


def test_a_damaged_segment_gets_no_hash() -> None:
    """A hash would vouch for the damage."""
    bench = layered()
    bench.data.close()
    file = bench.files.open(join(bench.directory, "segments", f"{0:020d}.log"), "write")
    byte = file.read_at(70, 1)
    file.write_at(70, [bytes([byte[0] ^ 4])])
    log = bench.open()
    assert log.hash_sealed() == 1
    assert [segment["sha256"] is None for segment in bench.state()["sealed"]] == [True, False]


@pytest.mark.parametrize("mapped", [False, True])
def test_a_segment_that_was_replaced_while_it_was_hashed_does_not_get_the_old_hash(mapped: bool) -> None:
    """Truncated and filled again, a segment has the same base and other bytes."""
    turns = 0
    for turn in itertools.count():
        files = HookedFiles(MemoryFiles())
        bench = Bench(files, "/data", mapped=mapped)
        log = bench.open()
        for i in range(4):
            put(log, b"old %d" % i)
        log.roll()

        def replace(log: PartitionLog = log) -> None:
            log.truncate(2)
            put(log, b"new 2")
            put(log, b"new 3")
            log.roll()

        acted = act_after(files, turn, replace)
        log.hash_sealed()
        if not acted:
            break
        turns += 1
        (sealed,) = bench.state()["sealed"]
        assert sealed["sha256"] in (None, hashlib.sha256(bench.segment(0, "log")).hexdigest())
    assert turns >= 2
