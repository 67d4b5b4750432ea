"""Reading beside a live writer: no lock, no byte changed, nothing beyond the mark, whatever it does."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.clocks import HookedFiles, ManualClock
from support.disks import CHANGES, image
from support.patience import SECONDS_MAX
from support.seeds import seed_or

import cordwood
from cordwood.disk.files import read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.errors import (
    CordwoodError,
    CorruptRange,
    DirectoryRefused,
    LogClosed,
    MetadataDamaged,
    OffsetOutOfRange,
    UnknownTopic,
)

NOW = 1_700_000_000_000
SMALL = {"segment.bytes": "700", "index.interval.bytes": "100"}


# --- Another process writes ----------------------------------------------------------------------


class Writer:
    """A process that runs the given lines, each told through its stdin and answered on its stdout.

    In it, ``log`` is the open log and ``topic`` the topic; a line is an expression and its answer JSON.
    """

    PROGRAM = textwrap.dedent(
        """
        import json, sys
        import cordwood
        path, sync, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
        log = cordwood.open(path, sync=sync)
        topic = log.topic("orders", config=config)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            print(json.dumps(eval(line)), flush=True)
        log.close()
        """
    )

    def __init__(self, path: Path, sync: str = "each", config: dict[str, str] | None = None) -> None:
        arguments = [sys.executable, "-c", self.PROGRAM, str(path), sync, json.dumps(config or {})]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._answer() == "ready"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the writer died"
        return json.loads(line)

    def __call__(self, expression: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(expression + "\n")
        return self._answer()

    def kill(self) -> None:
        """End it as kill -9 does. Harmless once it has ended."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def close(self) -> None:
        """Let it close the log and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(SECONDS_MAX) == 0


@contextmanager
def writer(path: Path, sync: str = "each", config: dict[str, str] | None = None) -> Iterator[Writer]:
    process = Writer(path, sync, config)
    try:
        yield process
        if process.alive:
            process.close()
    finally:
        process.kill()


def values(log: cordwood.Log, start: int | None = None) -> list[bytes | None]:
    topic = log.topic("orders")
    return [r.value for r in topic.read(start=topic.log_start_offset() if start is None else start)]


def snapshot(path: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Every file and directory below *path*: inode, size, time of the last change, bytes."""
    found = {}
    for below in sorted(path.rglob("*")):
        status = below.stat()
        content = b"" if below.is_dir() else below.read_bytes()
        found[str(below)] = (status.st_ino, status.st_size, status.st_mtime_ns, content)
    return found


def test_records_of_a_live_writer_are_read_as_it_acknowledges_them(tmp_path: Path) -> None:
    with writer(tmp_path, config=SMALL) as write, cordwood.open(tmp_path, read_only=True) as log:
        assert values(log) == []
        for i in range(40):
            write(f"topic.append(b'{i}' * 20)")
            assert values(log, start=i) == [b"%d" % i * 20]
        assert values(log) == [b"%d" % i * 20 for i in range(40)]
        assert log.topic("orders").high_watermark() == 40


def test_what_the_writer_has_not_synced_is_not_read(tmp_path: Path) -> None:
    """The file has it, whole and valid. A power cut could take it, so a reader must not have seen it."""
    with writer(tmp_path, sync="never") as write, cordwood.open(tmp_path, read_only=True) as log:
        write("[topic.append(b'unsynced') for _ in range(5)]")
        assert write("topic.high_watermark()") == 5
        assert os.path.getsize(tmp_path / "topics/orders/0/segments" / f"{0:020d}.log") > 5 * 61
        assert (values(log), log.topic("orders").high_watermark()) == ([], 0)
        with pytest.raises(OffsetOutOfRange) as caught:
            log.topic("orders").read(start=1)
        assert (caught.value.start, caught.value.end) == (0, 0)
        write("topic.roll()")
        write("topic.append(b'unsynced again')")
        assert values(log) == [b"unsynced"] * 5


def test_a_reader_survives_what_the_writer_does_between_its_reads(tmp_path: Path) -> None:
    with writer(tmp_path, config=SMALL) as write, cordwood.open(tmp_path, read_only=True) as log:
        expected: list[bytes | None] = [b"%d" % i * 9 for i in range(60)]
        write("[topic.append(b'%d' % i * 9) for i in range(60)] and None")
        assert values(log) == expected
        write("topic.roll()")
        assert values(log) == expected
        write("topic.truncate(0, 37)")
        assert values(log) == expected[:37]
        write("topic.append_many([(None, b'again')] * 4, partition=0)")
        assert values(log) == [*expected[:37], *[b"again"] * 4]
        write("topic.truncate(0, 39)")
        assert values(log) == [*expected[:37], *[b"again"] * 2]
        write("topic.advance_log_start(0, 30)")
        assert values(log) == [*expected[30:37], *[b"again"] * 2]
        with pytest.raises(OffsetOutOfRange) as caught:
            log.topic("orders").read(start=29)
        assert (caught.value.start, caught.value.end) == (30, 39)
        write("log.maintain() and None")
        write("topic.truncate(0, 30)")
        assert values(log) == []


def test_a_reader_takes_no_lock(tmp_path: Path) -> None:
    with writer(tmp_path) as write:
        write("topic.append(b'0')")
    with cordwood.open(tmp_path, read_only=True) as log, writer(tmp_path) as write:
        write("topic.append(b'1')")
        assert values(log) == [b"0", b"1"]


def test_a_reader_changes_no_byte_and_asks_for_no_change(tmp_path: Path) -> None:
    """The writer waits at its pipe meanwhile, so that every difference is the reader's.

    Without a chain: a thread of the writer would add to that at a time of its own.
    """
    files = HookedFiles(PosixFiles())
    with writer(tmp_path, config={**SMALL, "cordwood.chain": "false"}) as write:
        write("[topic.append(b'%d' % i) for i in range(50)] and None")
        write("topic.truncate(0, 33)")
        write("log.topic('empty').name")
        before = snapshot(tmp_path)
        with cordwood.open(tmp_path, files=files, read_only=True) as log:
            assert len(values(log)) == 33
            assert list(log.topic("empty").read()) == []
            topic = log.topic("orders")
            topic.offset_at(0)
            topic.size()
            topic.offsets()
        assert snapshot(tmp_path) == before
    assert set(files.calls) & CHANGES == set()
    assert "lock" not in files.calls


def test_a_directory_that_may_not_be_written_can_be_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders").append(b"0")
    below = sorted(data.rglob("*"))
    try:
        for path in below:
            path.chmod(0o555 if path.is_dir() else 0o444)
        data.chmod(0o555)
        with cordwood.open(data, read_only=True) as log:
            assert values(log) == [b"0"]
    finally:
        data.chmod(0o755)
        for path in below:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_directory_that_a_killed_writer_left_can_be_read_and_stays_as_it_is(tmp_path: Path) -> None:
    """The torn tail is the next writer's to cut. A reader stops at the mark."""
    with writer(tmp_path) as write:
        write("[topic.append(b'%d' % i) for i in range(3)] and None")
        write.kill()
        segment = tmp_path / "topics/orders/0/segments" / f"{0:020d}.log"
        whole = segment.read_bytes()
        segment.write_bytes(whole + whole[:40])
        before = snapshot(tmp_path)
        with cordwood.open(tmp_path, read_only=True) as log:
            assert values(log) == [b"0", b"1", b"2"]
        assert snapshot(tmp_path) == before


# A process that appends, rolls, truncates and moves the log start as fast as it can, and writes down
# every record before it appends it. Its last line says what the log holds.
BUSY = textwrap.dedent(
    """
    import json, random, sys
    import cordwood
    path, journal, rounds = sys.argv[1], open(sys.argv[2], "w", buffering=1), int(sys.argv[3])
    chance, serial = random.Random(int(sys.argv[4])), 0
    with cordwood.open(path) as log:
        topic = log.topic("orders", config={"segment.bytes": "4000", "index.interval.bytes": "300"})
        topic.append(b"0:0")
        journal.write("record 0 0\\n")
        print("ready", flush=True)
        for _ in range(rounds):
            start, end = topic.log_start_offset(), topic.log_end_offset()
            what = chance.choices(["append", "roll", "truncate", "advance", "maintain"], [80, 6, 6, 6, 2])[0]
            if what == "append":
                rows = []
                for i in range(chance.randrange(1, 6)):
                    serial += 1
                    journal.write(f"record {end + i} {serial}\\n")
                    rows.append((None, b"%d:%d:" % (end + i, serial) + b"x" * chance.randrange(150)))
                topic.append_many(rows, partition=0)
            elif what == "roll":
                topic.roll()
            elif what == "truncate":
                topic.truncate(0, max(start, end - chance.randrange(40)))
            elif what == "advance":
                topic.advance_log_start(0, min(end, start + chance.randrange(120)))
            else:
                log.maintain()
            journal.write(what + "\\n")
        final = [(r.offset, int(r.value.split(b":")[1])) for r in topic.read(start=topic.log_start_offset())]
    journal.write("final " + json.dumps(final) + "\\n")
    """
)


def test_beside_a_writer_that_never_rests_every_record_read_is_one_it_wrote(tmp_path: Path) -> None:
    data, journal, seed = tmp_path / "data", tmp_path / "journal", seed_or(7)
    print(f"seed {seed}")
    command = [sys.executable, "-c", BUSY, str(data), str(journal), "1500", str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen: set[tuple[int, int]] = set()
    passes, errors = 0, 0
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with cordwood.open(data, read_only=True) as log:
            topic = log.topic("orders")
            while process.poll() is None:
                passes += 1
                try:
                    start, end = topic.log_start_offset(), topic.high_watermark()
                    previous = None
                    for record in topic.read(start=min(start, end)):
                        assert record.value is not None
                        offset, serial = map(int, record.value.split(b":")[:2])
                        assert offset == record.offset
                        assert previous is None or offset == previous + 1
                        previous = offset
                        seen.add((offset, serial))
                except (OffsetOutOfRange, CorruptRange):
                    errors += 1
            assert process.wait() == 0
            lines = journal.read_text().splitlines()
            final = [tuple(pair) for pair in json.loads(lines[-1].removeprefix("final "))]
            last = [(r.offset, int((r.value or b"").split(b":")[1])) for r in topic.read(start=final[0][0])]
            assert last == final
    finally:
        process.kill()
        process.communicate()
    written = {tuple(map(int, line.split()[1:])) for line in lines if line.startswith("record")}
    done = {what: lines.count(what) for what in ("append", "roll", "truncate", "advance", "maintain")}
    print(f"{passes} passes read {len(seen)} of {len(written)} records beside {done}, {errors} clear errors")
    assert seen <= written
    assert passes >= 20
    assert len(seen) > 300
    assert min(done.values()) >= 10
    assert errors < passes


# --- The writer's turn at every step, in one process ---------------------------------------------

Written: TypeAlias = dict[int, set[bytes | None]]
"""Every content that an offset ever had."""


@dataclass
class Pair:
    """A writer and a reader on one disk, each behind hooks of its own."""

    disk: MemoryFiles
    writing: HookedFiles
    reading: HookedFiles
    log: cordwood.Log
    topic: cordwood.Topic
    clock: ManualClock
    written: Written

    def open_reader(self) -> cordwood.Topic:
        return cordwood.open("/data", files=self.reading, read_only=True).topic("orders")

    def append(self, *contents: bytes) -> None:
        end = self.topic.log_end_offset()
        for offset, content in enumerate(contents, end):
            self.written.setdefault(offset, set()).add(content)
        self.topic.append_many([(None, content) for content in contents], partition=0)


def pair(config: dict[str, str] | None = None) -> Pair:
    """Sealed [0, 4) and [4, 8), active [8, 12), in frames of two."""
    disk, clock = MemoryFiles(), ManualClock(NOW)
    writing, reading = HookedFiles(disk), HookedFiles(disk)
    log = cordwood.open("/data", files=writing, clock=clock)
    made = Pair(disk, writing, reading, log, log.topic("orders", config=config), clock, {})
    for first in range(0, 12, 2):
        made.append(b"%d" % first, b"%d" % (first + 1))
        if first in (2, 6):
            made.topic.roll()
    return made


def cut(made: Pair, end: int) -> None:
    """Truncate, and append other records at the offsets that were freed."""
    made.topic.truncate(0, end)
    made.append(b"new a", b"new b", b"new c")


def append_later(made: Pair) -> None:
    """Append when so much time has gone by that mark and indexes are synced."""
    made.clock.advance(5_000)
    made.append(b"new")


def roll_twice(made: Pair) -> None:
    made.topic.roll()
    made.append(b"new")
    made.topic.roll()


def cut_and_roll(made: Pair) -> None:
    cut(made, 3)
    made.topic.roll()
    made.append(b"newer")


def cut_twice(made: Pair) -> None:
    cut(made, 7)
    cut(made, 3)


WORK: dict[str, Callable[[Pair], object]] = {
    "append": lambda made: made.append(b"new"),
    "append after a while": append_later,
    "roll": lambda made: made.topic.roll(),
    "roll twice": roll_twice,
    "truncate in place": lambda made: cut(made, 10),
    "truncate into an active batch": lambda made: cut(made, 9),
    "truncate the active segment away": lambda made: cut(made, 8),
    "truncate into a sealed segment": lambda made: cut(made, 6),
    "truncate into a sealed batch": lambda made: cut(made, 5),
    "truncate and append nothing": lambda made: made.topic.truncate(0, 5),
    "truncate and roll": cut_and_roll,
    "truncate twice": cut_twice,
    "truncate everything": lambda made: cut(made, 0),
    "advance": lambda made: made.topic.advance_log_start(0, 5),
    "advance to the end": lambda made: made.topic.advance_log_start(0, 12),
    "maintain": lambda made: made.log.maintain(),
    "close": lambda made: made.log.close(),
}


def read_checked(topic: cordwood.Topic, written: Written) -> list[tuple[int, bytes | None]] | None:
    """Read everything there is and hold it against what was ever written; None for a clear error."""
    try:
        start = topic.log_start_offset()
        records = [(record.offset, record.value) for record in topic.read(start=start)]
    except (OffsetOutOfRange, CorruptRange):
        return None
    for offset, value in records:
        assert value in written[offset]
    assert [offset for offset, _ in records] == list(range(start, start + len(records)))
    return records


def final_state(made: Pair) -> list[tuple[int, bytes | None]]:
    """What the log holds now, told by a writer that opens a copy of the disk."""
    copied = MemoryFiles()
    for path, content in image(made.disk, "/").items():
        copied.make_directories(path if content is None else path.rpartition("/")[0])
        if content is not None:
            copied.open(path, "create").write_at(0, [content])
    with cordwood.open("/data", files=copied) as log:
        topic = log.topic("orders")
        return [(r.offset, r.value) for r in topic.read(start=topic.log_start_offset())]


@pytest.mark.parametrize("work", WORK)
def test_a_reader_may_look_at_every_single_step_of_the_writer(work: str) -> None:
    """One that was there before, and one that comes just then. Afterwards both see what the writer wrote."""
    made = pair()
    old = made.open_reader()
    assert read_checked(old, made.written) is not None
    steps = 0

    def look(kind: str, path: str, result: Any = None) -> None:
        nonlocal steps
        if kind in CHANGES:
            steps += 1
            read_checked(old, made.written)
            read_checked(made.open_reader(), made.written)

    made.writing.before, made.writing.after = look, look
    WORK[work](made)
    made.writing.before, made.writing.after = (lambda *_: None), (lambda *_: None)
    assert steps >= 2
    expected = final_state(made)
    assert read_checked(made.open_reader(), made.written) == expected
    assert read_checked(old, made.written) == expected


def at_turn(made: Pair, turn: int, work: str) -> list[int]:
    """Let the writer do its work before the reader's call number *turn* from now on; say once it has."""
    calls = itertools.count()
    acted: list[int] = []

    def act(kind: str, path: str) -> None:
        if not acted and next(calls) == turn:
            acted.append(turn)
            WORK[work](made)

    made.reading.before = act
    return acted


@pytest.mark.parametrize("work", WORK)
def test_the_writer_may_do_its_work_at_every_single_step_of_a_reader(work: str) -> None:
    """Before each call that a reader makes to the disk, as if it had been asleep there for long."""
    turns = 0
    for turn in itertools.count():
        made = pair()
        reader = made.open_reader()
        if turn % 2:
            read_checked(reader, made.written)
        acted = at_turn(made, turn // 2, work)
        read_checked(reader, made.written)
        if not acted:
            break
        turns += 1
        assert read_checked(reader, made.written) == final_state(made)
    assert turns >= 10


@pytest.mark.parametrize("work", WORK)
def test_a_reader_is_told_of_corruption_only_where_there_is_some(work: str) -> None:
    """Outside a truncation that is under way, what was removed or cut is out of range, not corrupt."""
    for turn in range(40):
        made = pair()
        reader = made.open_reader()
        acted = at_turn(made, turn, work)
        with suppress(OffsetOutOfRange):
            for _ in reader.read(start=reader.log_start_offset()):
                pass
        if not acted:
            break


def test_the_high_watermark_of_a_reader_never_goes_back_while_nothing_is_truncated() -> None:
    made = pair()
    reader = made.open_reader()
    marks = [reader.high_watermark()]

    def look(kind: str, path: str, result: Any = None) -> None:
        marks.append(reader.high_watermark())
        marks.append(made.open_reader().high_watermark())

    made.writing.before, made.writing.after = look, look
    for i in range(6):
        made.append(b"new")
        made.clock.advance(700)
        if i == 3:
            made.topic.roll()
    assert marks == sorted(marks)
    assert (marks[0], reader.high_watermark()) == (12, 18)


def test_a_mark_read_while_it_is_written_does_not_take_a_reader_back() -> None:
    """A slot half written is no slot. The other one may be a second old, but the reader has seen more."""
    made = pair()
    made.clock.advance(5_000)
    for content in (b"12", b"13", b"14"):
        made.append(content)
    reader = made.open_reader()
    assert reader.high_watermark() == 15
    mark = made.disk.open("/data/topics/orders/0/mark", "write")
    whole = mark.read_at(0, 1024)
    newest = max((0, 512), key=lambda at: int.from_bytes(whole[at + 8 : at + 16], "big"))
    torn = 0

    def tear(kind: str, path: str) -> None:
        nonlocal torn
        if kind == "read" and path.endswith("/mark") and not torn:
            torn += 1
            mark.write_at(newest + 40, [b"\xff" * 8])

    def finish(kind: str, path: str, result: Any) -> None:
        if kind == "read" and path.endswith("/mark"):
            mark.write_at(0, [whole])

    made.reading.before, made.reading.after = tear, finish
    assert reader.high_watermark() == 15
    assert torn == 1
    assert read_checked(reader, made.written) is not None


# --- What a reader is told -----------------------------------------------------------------------


@pytest.mark.parametrize("beginning", ["created", "reopened", "truncated to nothing"])
def test_a_time_is_found_in_records_that_are_in_no_index_file_yet(beginning: str) -> None:
    """Index files of the active segment lag behind the mark, and may be there and empty."""
    disk, clock = MemoryFiles(), ManualClock(NOW)
    log = cordwood.open("/data", files=disk, clock=clock)
    topic = log.topic("orders")
    assert topic.high_watermark() == 0
    if beginning == "reopened":
        log.close()
        log = cordwood.open("/data", files=disk, clock=clock)
        topic = log.topic("orders")
    elif beginning == "truncated to nothing":
        topic.append(b"gone", timestamp=NOW)
        topic.truncate(0, 0)
    for i in range(5):
        topic.append(b"%d" % i, timestamp=NOW + 10 * i)
    reader = cordwood.open("/data", files=disk, read_only=True).topic("orders")
    assert [reader.offset_at(NOW + 10 * i - 5) for i in range(5)] == [0, 1, 2, 3, 4]
    assert reader.offset_at(NOW + 41) is None
    topic.append(b"5", timestamp=NOW + 50)
    assert reader.offset_at(NOW + 41) == 5


@pytest.mark.parametrize("initial", ["0", "1000"])
def test_a_partition_that_was_never_used_is_empty_at_its_initial_offset(initial: str) -> None:
    disk = MemoryFiles()
    with cordwood.open("/data", files=disk) as log:
        log.topic("orders", partitions=2, config={"cordwood.initial.offset": initial})
    with cordwood.open("/data", files=disk, read_only=True) as beside:
        topic = beside.topic("orders")
        assert topic.log_start_offset(1) == topic.high_watermark(1) == int(initial)
        assert list(topic.read(1, start=int(initial))) == []
        assert topic.offset_at(0, 1) is None


def test_topics_made_later_are_seen() -> None:
    disk = MemoryFiles()
    log = cordwood.open("/data", files=disk)
    beside = cordwood.open("/data", files=disk, read_only=True)
    with pytest.raises(UnknownTopic):
        beside.topic("orders")
    log.topic("orders").append(b"0")
    assert beside.topics == ["orders"]
    assert values(beside) == [b"0"]


def test_a_reader_creates_no_topic_and_appends_nothing() -> None:
    made = pair()
    before = image(made.disk, "/")
    beside = cordwood.open("/data", files=made.reading, read_only=True)
    topic = beside.topic("orders")
    for call in (
        lambda: beside.topic("another"),
        lambda: topic.append(b"value"),
        lambda: topic.append_many([(None, b"value")]),
        lambda: topic.truncate(0, 1),
        lambda: topic.advance_log_start(0, 1),
        lambda: topic.roll(),
        lambda: beside.maintain(),
        lambda: topic.read(partition=1),
    ):
        with pytest.raises(CordwoodError):
            call()
    beside.close()
    assert image(made.disk, "/") == before


def test_after_close_a_reader_says_so() -> None:
    made = pair()
    beside = cordwood.open("/data", files=made.reading, read_only=True)
    topic = beside.topic("orders")
    beside.close()
    beside.close()
    for call in (lambda: topic.read(), lambda: topic.high_watermark(), lambda: beside.topics):
        with pytest.raises(LogClosed):
            call()


@pytest.mark.parametrize("made", ["nothing", "an empty directory", "something else"])
def test_what_is_no_data_directory_is_refused_and_left_alone(tmp_path: Path, made: str) -> None:
    path = tmp_path / "data"
    if made != "nothing":
        path.mkdir()
    if made == "something else":
        (path / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(DirectoryRefused):
        cordwood.open(path, read_only=True)
    assert snapshot(tmp_path) == before


def test_a_damaged_catalogue_is_never_taken_for_an_empty_one() -> None:
    made = pair()
    path = "/data/meta/catalogue.log"
    size = len(read_file(made.disk, path))
    made.disk.open(path, "write").truncate(size - 3)
    with pytest.raises(MetadataDamaged):
        _ = cordwood.open("/data", files=made.disk, read_only=True).topics


def test_corruption_below_the_mark_is_refused_and_the_rest_is_read() -> None:
    made = pair()
    made.log.close()
    path = f"/data/topics/orders/0/segments/{4:020d}.log"
    file = made.disk.open(path, "write")
    file.write_at(70, [bytes([file.read_at(70, 1)[0] ^ 1])])
    reader = made.open_reader()
    with pytest.raises(CorruptRange) as caught:
        list(reader.read(start=4))
    assert (caught.value.path, caught.value.offset) == (path, 4)
    assert caught.value.resume_offset <= 8
    assert [record.value for record in reader.read(stop=4)] == [b"0", b"1", b"2", b"3"]
    assert [record.value for record in reader.read(start=8)] == [b"8", b"9", b"10", b"11"]


def test_many_threads_share_one_reader_beside_a_writer() -> None:
    made = pair(SMALL)
    reader = made.open_reader()
    assert read_checked(reader, made.written) is not None
    done = threading.Event()
    errors: list[BaseException] = []
    passes: list[int] = []

    def read() -> None:
        try:
            while not done.is_set():
                start = reader.log_start_offset()
                found = [(record.offset, record.value) for record in reader.read(start=start)]
                assert [offset for offset, _ in found] == list(range(start, start + len(found)))
                assert all(value in made.written[offset] for offset, value in found)
                passes.append(len(found))
        except BaseException as error:
            errors.append(error)
            done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=read, daemon=True) for _ in range(6)]
    try:
        for thread in threads:
            thread.start()
        for i in range(5_000):
            made.append(b"%d" % i * 5, b"")
            if i % 20 == 19:
                made.topic.roll()
            if done.is_set() or (i >= 60 and len(passes) >= 30):
                break
    finally:
        done.set()
        sys.setswitchinterval(interval)
    for thread in threads:
        thread.join(SECONDS_MAX)
    if errors:
        raise errors[0]
    assert len(passes) >= 30


# The first thing a process does with a log, in many threads at once.
COLD = textwrap.dedent(
    """
    import sys, threading
    import cordwood
    topic = cordwood.open(sys.argv[1], read_only=True).topic("orders")
    barrier, read = threading.Barrier(8), []
    def work():
        barrier.wait()
        for _ in range(3):
            read.append([record.value for record in topic.read()])
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [[b"0", b"1"]] * 24
    """
)


@pytest.mark.parametrize("attempt", range(6))
def test_the_first_reads_of_a_process_may_come_from_many_threads(tmp_path: Path, attempt: int) -> None:
    """msgspec prepares a type at its first use, and two first uses at once end the process by SIGSEGV."""
    with cordwood.open(tmp_path / "data") as log:
        log.topic("orders").append_many([(None, b"0"), (None, b"1")], partition=0)
    arguments = [sys.executable, "-X", "faulthandler", "-c", COLD, str(tmp_path / "data")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_topic_that_is_made_while_the_catalogue_is_read_is_no_damage() -> None:
    """The writer adds to the catalogue and moves its mark between any two reads of a reader beside it."""
    disk = MemoryFiles()
    writer = cordwood.open("/data", files=disk)
    writer.topic("first")
    hooked = HookedFiles(disk)
    made = 0

    def make_one(kind: str, path: str) -> None:
        nonlocal made
        if kind in ("open", "read") and "catalogue" in path:
            made += 1
            writer.topic(f"topic-{made}")

    reader = cordwood.open("/data", files=hooked, read_only=True)
    hooked.before = make_one
    for _ in range(20):
        assert "first" in reader.topics
    hooked.before = lambda kind, path: None
    assert made >= 40
    assert len(reader.topics) == made + 1
    reader.close()
    writer.close()


def read_while_made(record_format: str, step: int) -> bool:
    """Read a topic whose first record is appended at the reader's call *step*; return whether it was."""
    disk, calls = MemoryFiles(), itertools.count()
    reading = HookedFiles(disk)
    with cordwood.open("/data", files=disk, clock=ManualClock(NOW)) as log:
        topic = log.topic("orders", config={"cordwood.format": record_format})
        with cordwood.open("/data", files=reading, read_only=True) as beside:
            orders = beside.topic("orders")

            def act(kind: str, path: str) -> None:
                if next(calls) == step:
                    topic.append(b"first")

            reading.before = act
            assert [record.value for record in orders.read()] in ([], [b"first"])
            reached = next(calls) > step
            assert [record.value for record in orders.read()] == [b"first"] * reached
    return reached


@pytest.mark.parametrize("record_format", ["batch", "laminarmq"])
def test_a_partition_that_is_made_at_any_step_of_a_reader_is_no_damage(record_format: str) -> None:
    """The reader looks for ``partition.json`` before the writer makes it, and finds records afterwards."""
    steps = next(step for step in itertools.count() if not read_while_made(record_format, step))
    assert steps > 3
