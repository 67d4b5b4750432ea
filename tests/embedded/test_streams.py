"""Appending a value of unknown length: whole or not at all, in constant memory, in nobody's way."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clocks import HookedFiles, ManualClock
from support.crashes import CrashCount, crash_images
from support.disks import FaultPlan, FaultyFiles, RecordingFiles, image
from support.logs import DATA, SMALL, disk_of, frames_of, segment_file
from support.patience import SECONDS_MAX
from support.promises import Seen, Stored, Workload, Written, check_promises

import cordwood
from cordwood.disk.files import Files, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import (
    DiskFull,
    FrameTooLarge,
    LogClosed,
    RecordRefused,
    StorageError,
    StreamTooLong,
    UnexpectedOffset,
)
from cordwood.formats import batch
from cordwood.kernels import Buffer
from cordwood.records import Header
from cordwood.storage.log import spooling

NOW = 1_700_000_000_000
TESTS = Path(__file__).parents[1]


def open_log(files: Files, **options: Any) -> cordwood.Log:
    return cordwood.open(DATA, files=files, clock=ManualClock(NOW), **options)


def spools(files: Files) -> list[str]:
    directory = f"{DATA}/tmp"
    return files.list(directory) if files.exists(directory) else []


def pieces(value: bytes, *sizes: int) -> Iterator[bytes]:
    """Cut *value* into pieces of these sizes in turn, over and over."""
    start, turn = 0, itertools.cycle(sizes)
    while start < len(value):
        end = start + next(turn)
        yield value[start:end]
        start = end


class Working:
    """A call in a thread of its own; `result` waits for it, and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome.append(call())
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive(), "the call never came back"
        if self._error is not None:
            raise self._error
        return self._outcome[0]


class StuckStream:
    """A stream that gives *before*, then waits for the test, then gives *after*."""

    def __init__(self, before: bytes, after: bytes = b"") -> None:
        self._before, self._after = before, after
        self.stuck = threading.Event()
        self.go_on = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield self._before
        self.stuck.set()
        assert self.go_on.wait(SECONDS_MAX)
        yield self._after

    def wait_until_stuck(self) -> None:
        assert self.stuck.wait(SECONDS_MAX)


# --- What arrives --------------------------------------------------------------------------------


def stored_frame(append: Callable[[cordwood.Topic], object], config: dict[str, str]) -> bytes:
    """Return the frame that *append* leaves in a log that held one record before."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t", config=config)
        topic.append(b"before")
        append(topic)
    data = read_file(files, segment_file("t", 0, 0))
    (_, (start, end)) = frames_of(data)
    assert end == len(data)
    return data[start:end]


def as_read_by_aiokafka(frame: bytes) -> tuple[Any, ...]:
    # The base offset is not part of what aiokafka's batch checks, and no part of this.
    reader = aiokafka_records.DefaultRecordBatch(frame)
    assert reader.validate_crc()
    (record,) = reader
    headers = tuple((name, None if value is None else bytes(value)) for name, value in record.headers)
    key = None if record.key is None else bytes(record.key)
    return record.offset, record.timestamp, key, bytes(record.value), headers


def as_chunks(value: bytes, cuts: list[int], kinds: list[int]) -> Iterator[Buffer]:
    """Cut *value* at *cuts*, empty pieces where two are the same, each piece as one kind of buffer."""
    places = [0, *sorted(cut % (len(value) + 1) for cut in cuts), len(value)]
    for (start, end), kind in zip(itertools.pairwise(places), itertools.cycle(kinds), strict=False):
        piece = value[start:end]
        buffers: list[Buffer] = [piece, bytearray(piece), memoryview(piece), memoryview(b"x" + piece)[1:]]
        yield buffers[kind]


HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3)


@settings(deadline=None, max_examples=150)
@given(
    value=st.binary(max_size=200)
    | st.builds(lambda b, n: b * n, st.binary(min_size=1), st.integers(0, 9000)),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=8),
    kinds=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    key=st.none() | st.binary(max_size=70),
    headers=HEADERS,
    timestamp=st.none() | st.integers(0, 1 << 45),
)
def test_a_stream_is_stored_byte_for_byte_like_the_same_value_at_once(
    value: bytes,
    cuts: list[int],
    kinds: list[int],
    key: bytes | None,
    headers: list[Header],
    timestamp: int | None,
) -> None:
    """However it is cut up: one valid frame, the same one, which another implementation reads too."""
    config = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    when = NOW if timestamp is None else timestamp

    def stream(topic: cordwood.Topic) -> None:
        chunks: Iterable[Any] = as_chunks(value, cuts, kinds)
        placed = topic.append_stream(chunks, key=key, headers=headers, timestamp=timestamp)
        assert placed == (0, 1)
        (record,) = topic.read(0, 1)
        assert (record.key, record.value, record.headers) == (key, value, tuple(headers))
        assert (record.offset, record.timestamp) == (1, when)

    streamed = stored_frame(stream, config)
    at_once = stored_frame(lambda t: t.append(value, key=key, headers=headers, timestamp=timestamp), config)
    assert streamed == at_once
    batch.validate(streamed, batch.read_header(streamed))
    assert as_read_by_aiokafka(streamed) == (1, when, key, value, tuple(headers))


@pytest.mark.parametrize("timestamp", [None, 0, NOW - 5, NOW + 5])
def test_under_log_append_time_a_stream_gets_the_time_and_the_bytes_of_an_append(
    timestamp: int | None,
) -> None:
    """Whatever time the producer gave; the frame, which keeps that too, is the same one."""
    config = {"message.timestamp.type": "LogAppendTime"}
    streamed = stored_frame(lambda t: t.append_stream([b"va", b"lue"], timestamp=timestamp), config)
    at_once = stored_frame(lambda t: t.append(b"value", timestamp=timestamp), config)
    batch.validate(streamed, batch.read_header(streamed))
    assert as_read_by_aiokafka(streamed) == as_read_by_aiokafka(at_once) == (1, NOW, None, b"value", ())
    assert streamed == at_once


@pytest.mark.parametrize("sizes", [(1,), (3, 1, 7), (1 << 20,), (1000, 1)], ids=str)
def test_pieces_of_any_size_add_up(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """Also on a disk, also more than the copy takes at a time, one byte at a time where that is few."""
    value = random.Random(3).randbytes(
        5_000 if sizes == (1,) else 300_000 if max(sizes) < 1_000_000 else (2 << 20) + 17
    )
    config = {"max.message.bytes": str(4 << 20)}
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t", config=config)
        topic.append_stream(pieces(value, *sizes), key=b"k", headers=[("h", b"1")], timestamp=5)
    with cordwood.open(tmp_path / "data") as log:
        (record,) = log.topic("t").read()
        assert (record.key, record.headers, record.timestamp) == (b"k", (("h", b"1"),), 5)
        assert record.value == value
    assert os.listdir(tmp_path / "data" / "tmp") == []


@pytest.mark.parametrize("chunks", [[], [b""], [b"", b"", b""]], ids=str)
def test_a_stream_of_nothing_is_an_empty_value_and_no_tombstone(chunks: list[bytes]) -> None:
    with open_log(MemoryFiles()) as log:
        topic = log.topic("t")
        topic.append_stream(chunks)
        assert [record.value for record in topic.read()] == [b""]


def test_views_of_items_wider_than_a_byte_count_by_their_bytes() -> None:
    """len() of a memoryview counts items; what is stored is all of its bytes."""
    numbers = array("I", range(100))
    chunks: list[Any] = [memoryview(numbers), b"end"]
    with open_log(MemoryFiles()) as log:
        topic = log.topic("t")
        topic.append_stream(chunks)
        assert [record.value for record in topic.read()] == [numbers.tobytes() + b"end"]
        size = len(numbers.tobytes())
        assert topic.append_stream([memoryview(numbers)], max_bytes=size).offset == 1  # type: ignore[list-item]
        with pytest.raises(StreamTooLong):
            topic.append_stream([memoryview(numbers)], max_bytes=size - 1)  # type: ignore[list-item]


def test_a_key_decides_the_partition_as_it_does_for_an_append() -> None:
    with open_log(MemoryFiles()) as log:
        topic = log.topic("t", partitions=5)
        for i in range(20):
            key = b"key %d" % i
            where = topic.append(b"at once", key=key).partition
            assert topic.append_stream([b"in", b"chunks"], key=key).partition == where
            assert topic.append_stream([b"told"], key=key, partition=(where + 1) % 5).partition != where


def test_an_acknowledged_stream_is_durable() -> None:
    """With sync each, the high watermark covers it on return; closed and opened again, it is there."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t", config=SMALL)
        for i in range(12):
            placed = topic.append_stream(pieces(b"%02d" % i * 50, 7))
            assert topic.high_watermark() == placed.offset + 1 == i + 1
    with open_log(files) as log:
        assert [record.value for record in log.topic("t").read()] == [b"%02d" % i * 50 for i in range(12)]


# --- How long a stream may be --------------------------------------------------------------------


def endless(taken: list[int], size: int = 100) -> Iterator[bytes]:
    for number in itertools.count(1):
        taken.append(number)
        yield b"x" * size


def test_max_bytes_is_allowed_and_one_more_is_refused() -> None:
    with open_log(MemoryFiles()) as log:
        topic = log.topic("t")
        for limit in (0, 1, 1000):
            topic.append_stream(pieces(b"x" * limit, 7), max_bytes=limit)
            with pytest.raises(StreamTooLong) as caught:
                topic.append_stream(pieces(b"x" * (limit + 1), 7), max_bytes=limit)
            assert caught.value.max_bytes == limit
            assert isinstance(caught.value, RecordRefused)
        assert [len(record.value or b"") for record in topic.read()] == [0, 1, 1000]
        assert topic.append_stream(pieces(b"y" * 1001, 7), max_bytes=None).offset == 3


def test_a_stream_without_end_is_asked_no_further_than_its_limit() -> None:
    files, taken = MemoryFiles(), list[int]()
    with open_log(files) as log:
        topic = log.topic("t")
        with pytest.raises(StreamTooLong):
            topic.append_stream(endless(taken), max_bytes=1000)
        assert len(taken) == 11
        assert spools(files) == []
        assert topic.append(b"next").offset == 0


def test_a_stream_past_max_message_bytes_is_refused() -> None:
    """The setting is about whole frames: what would fit only without its header is refused as well."""
    limit = 1000
    with open_log(MemoryFiles()) as log:
        topic = log.topic("t", config={"max.message.bytes": str(limit)})
        with pytest.raises(StreamTooLong) as caught:
            topic.append_stream(pieces(b"x" * (limit + 1), 300))
        assert caught.value.max_bytes == limit
        with pytest.raises(StreamTooLong):
            topic.append_stream(pieces(b"x" * (limit + 1), 300), max_bytes=limit * 10)
        fitting = []
        for size in range(limit - 100, limit + 1):
            try:
                topic.append_stream(pieces(b"x" * size, 300))
            except FrameTooLarge:
                with pytest.raises(FrameTooLarge):
                    topic.append(b"x" * size)
            else:
                fitting.append(size)
        assert fitting == list(range(limit - 100, fitting[-1] + 1))
        assert limit - 100 < fitting[-1] < limit
        assert [len(record.value or b"") for record in topic.read()] == fitting


@pytest.mark.parametrize("filled", [0, 100, 900])
def test_a_stream_may_be_as_long_as_the_segment_has_room_and_half_a_segment_more(filled: int) -> None:
    segment_bytes = 1001
    with open_log(MemoryFiles()) as log:
        topic = log.topic("t", config={"segment.bytes": str(segment_bytes)})
        if filled:
            topic.append(b"." * filled)
        active = topic.size()
        assert bool(active) == bool(filled)
        threshold = segment_bytes - active + segment_bytes // 2
        with pytest.raises(StreamTooLong) as caught:
            topic.append_stream(pieces(b"x" * (threshold + 1), 99))
        assert caught.value.max_bytes == threshold
        assert topic.size() == active
        with pytest.raises(StreamTooLong) as caught:
            topic.append_stream(pieces(b"x" * (threshold + 1), 99), max_bytes=threshold + 50)
        assert caught.value.max_bytes == threshold
        topic.append_stream(pieces(b"x" * threshold, 99))
        assert [len(record.value or b"") for record in topic.read()][-1] == threshold


def test_a_stream_that_does_not_fit_any_more_goes_to_the_next_segment_whole() -> None:
    """The segment had room when the stream began and none when it ended; nothing of it is lost."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t", config={"segment.bytes": "1000"})
        stream = StuckStream(b"a" * 700, b"b" * 700)
        working = Working(lambda: topic.append_stream(stream))
        stream.wait_until_stuck()
        topic.append(b"." * 800)
        stream.go_on.set()
        assert working.result() == (0, 1)
        assert [record.value for record in topic.read()] == [b"." * 800, b"a" * 700 + b"b" * 700]
        assert files.exists(segment_file("t", 0, 1))


# --- Streams that fail ---------------------------------------------------------------------------


class Trouble(Exception):
    """What a stream raises of its own."""


def broken(error: BaseException, chunks: int) -> Iterator[bytes]:
    for _ in range(chunks):
        yield b"lost" * 10
    raise error


@pytest.mark.parametrize("chunks", [0, 1, 5])
@pytest.mark.parametrize(
    "error",
    [Trouble("gone"), KeyboardInterrupt(), OSError(errno.ENOSPC, "the source's own disk"), TypeError("odd")],
    ids=lambda error: type(error).__name__,
)
def test_a_stream_that_raises_leaves_nothing(error: BaseException, chunks: int) -> None:
    """Its own exception comes through, the very object, and the disk is as it was, byte for byte."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t")
        topic.append(b"before")
        topic.append_stream([b"before"])
        before = image(files, DATA)
        with pytest.raises(type(error)) as caught:
            topic.append_stream(broken(error, chunks))
        assert caught.value is error
        assert image(files, DATA) == before
        assert (topic.log_end_offset(), topic.high_watermark(), spools(files)) == (2, 2, [])
        assert topic.append(b"after").offset == 2
        assert [record.value for record in topic.read()] == [b"before", b"before", b"after"]


@pytest.mark.parametrize("chunk", ["text", None, 7])
def test_what_is_not_bytes_is_refused_and_leaves_nothing(chunk: Any) -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t")
        topic.append_stream([b"before"])
        before = image(files, DATA)
        with pytest.raises((TypeError, RecordRefused)):
            topic.append_stream([b"good", chunk])
        assert image(files, DATA) == before


def test_a_bad_key_or_header_is_refused_and_leaves_nothing() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t")
        topic.append_stream([b"before"])
        before = image(files, DATA)
        bad: list[dict[str, Any]] = [{"key": "text"}, {"headers": [("h", 5)]}, {"headers": [(b"h", b"")]}]
        for options in bad:
            with pytest.raises(RecordRefused):
                topic.append_stream([b"good"], partition=0, **options)
            assert image(files, DATA) == before


def test_expected_offset() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t")
        assert topic.append_stream([b"0"], expected_offset=0).offset == 0
        before = image(files, DATA)
        for wrong in (0, 2, 7):
            with pytest.raises(UnexpectedOffset):
                topic.append_stream([b"never"], expected_offset=wrong)
        assert image(files, DATA) == before
        assert topic.append_stream([b"1"], expected_offset=1).offset == 1


def test_expected_offset_is_judged_when_the_stream_has_ended() -> None:
    """Another append came first while the stream was on its way: it is refused, nothing is stored."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("t")
        stream = StuckStream(b"late")
        working = Working(lambda: topic.append_stream(stream, expected_offset=0))
        stream.wait_until_stuck()
        topic.append(b"first")
        stream.go_on.set()
        with pytest.raises(UnexpectedOffset):
            working.result()
        assert [record.value for record in topic.read()] == [b"first"]
        assert spools(files) == []


# --- Disks that fail -----------------------------------------------------------------------------

VALUE = bytes(range(250)) * 2


@pytest.fixture
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy in steps small enough that there are several, and hand over each chunk by itself."""
    monkeypatch.setattr(spooling, "COPY_BYTES", 128)
    monkeypatch.setattr("cordwood.aio.streaming.HAND_OVER_BYTES", 1)


def begin(files: Files) -> tuple[cordwood.Log, cordwood.Topic]:
    log = open_log(files)
    topic = log.topic("t")
    topic.append(b"before")
    return log, topic


def stream_value(topic: cordwood.Topic) -> cordwood.Placement:
    return topic.append_stream(pieces(VALUE, 100))


def calls_of_a_stream(kinds: frozenset[str], *, spooled_before: bool) -> range:
    """Return which calls of *kinds*, counted from 1, one stream makes."""
    files = FaultyFiles(MemoryFiles())
    log, topic = begin(files)
    if spooled_before:
        topic.append_stream([b"before"])
    first = sum(kind in kinds for kind in files.calls)
    stream_value(topic)
    last = sum(kind in kinds for kind in files.calls)
    log.close()
    return range(first + 1, last + 1)


SPACE = frozenset({"make_directories", "create", "write"})


@pytest.mark.usefixtures("small_copies")
@pytest.mark.parametrize("short", [None, 1, 60])
@pytest.mark.parametrize("spooled_before", [False, True], ids=["first stream", "later stream"])
def test_a_full_disk_stores_nothing_and_works_again_with_space(
    spooled_before: bool, short: int | None
) -> None:
    """Wherever space runs out, spooling or copying, before or in the middle of a write."""
    refused, plain = 0, []
    faults = calls_of_a_stream(SPACE, spooled_before=spooled_before)
    for fail_at in faults:
        plan = FaultPlan(fail_at, SPACE, errno.ENOSPC, forever=True, short=short)
        files = FaultyFiles(MemoryFiles(), plan)
        log, topic = begin(files)
        if spooled_before:
            topic.append_stream([b"before"])
        before = {path: data for path, data in image(files.inner, DATA).items() if path != f"{DATA}/tmp"}
        end = topic.log_end_offset()
        try:
            stream_value(topic)
        except (DiskFull, OSError) as error:
            refused += 1
            if not isinstance(error, DiskFull):
                plain.append(f"call {fail_at}: {error!r}")
            left = {path: data for path, data in image(files.inner, DATA).items() if path != f"{DATA}/tmp"}
            assert left == before, f"call {fail_at} left something"
            assert (topic.log_end_offset(), topic.high_watermark()) == (end, end)
            files.heal()
            stream_value(topic)
        else:
            files.heal()
        assert files.failures, "the fault never came"
        assert spools(files) == []
        (record,) = topic.read(0, end)
        assert record.value == VALUE
        log.close()
    assert plain == [], "not DiskFull but the operating system's error"
    # Five chunks are spooled and four pieces and two ends copied, each in at least one write.
    assert refused >= 11, f"{refused} of {len(faults)} calls met the full disk"


@pytest.mark.usefixtures("small_copies")
def test_the_disk_error_of_any_call_is_an_error_of_ours_and_never_half_a_record() -> None:
    """EIO at each call in turn: stored whole or not at all, and so after opening again."""
    kinds = frozenset({"create", "write", "truncate", "sync", "unlink", "make_directories", "read"})
    refused, plain = 0, []
    faults = calls_of_a_stream(kinds, spooled_before=False)
    for fail_at in faults:
        files = FaultyFiles(MemoryFiles(), FaultPlan(fail_at, kinds, errno.EIO))
        _, topic = begin(files)
        stored = False
        try:
            stream_value(topic)
            stored = True
        except StorageError:
            refused += 1
        except OSError as error:
            plain.append(f"{files.calls[-1]}: {error!r}")
        assert files.failures == 1, "the fault never came"
        files.heal()
        crashed = disk_of(image(files.inner, DATA))
        with open_log(crashed) as again:
            found = [record.value for record in again.topic("t").read()]
            assert found in ([b"before"], [b"before", VALUE])
            assert not stored or len(found) == 2
            assert spools(crashed) == []
    assert plain == [], "not ours but the operating system's error"
    assert refused >= 11, f"{refused} of {len(faults)} calls were refused"


def test_a_spool_that_cannot_be_removed_does_not_take_the_record_with_it() -> None:
    """The record is in the log by then: it is acknowledged, and the leftover goes at the next open."""
    unlinks = frozenset({"unlink"})
    at = calls_of_a_stream(unlinks, spooled_before=False).start
    files = FaultyFiles(MemoryFiles(), FaultPlan(at, unlinks, errno.EIO))
    log, topic = begin(files)
    assert stream_value(topic).offset == 1
    assert files.failures == 1
    assert topic.high_watermark() == 2
    files.heal()
    crashed = disk_of(image(files.inner, DATA))
    with open_log(crashed) as again:
        assert [record.value for record in again.topic("t").read()] == [b"before", VALUE]
    assert spools(crashed) == []
    log.close()


class Interrupting:
    """Ctrl-C at the n-th write of a stream, and nothing else."""

    def __init__(self, files: HookedFiles, at: int) -> None:
        self.writes, self._at = 0, at
        self.synced = False
        files.before = self._before

    def _before(self, kind: str, path: str) -> None:
        # Once a sync has begun the record is whole, and Ctrl-C no longer decides about it.
        self.synced = self.synced or kind == "sync"
        if kind == "write" and not self.synced:
            self.writes += 1
            if self.writes == self._at:
                raise KeyboardInterrupt


@pytest.mark.usefixtures("small_copies")
def test_ctrl_c_while_spooling_or_copying_leaves_nothing() -> None:
    """Not in tmp/ and not behind the end of the segment, where it would be sealed with it."""
    interrupted = 0
    for at in itertools.count(1):
        files = HookedFiles(MemoryFiles())
        log, topic = begin(files)
        topic.append_stream([b"before"])
        before = image(files.inner, DATA)
        hook = Interrupting(files, at)
        try:
            stream_value(topic)
        except KeyboardInterrupt:
            interrupted += 1
        files.before = lambda kind, path: None
        if hook.writes < at:
            log.close()
            break
        assert image(files.inner, DATA) == before, f"write {at} left something"
        assert topic.append(b"after").offset == 2
        topic.roll()
        # Whole frames to the end of the file, one for each record.
        assert len(frames_of(read_file(files, segment_file("t", 0, 0)))) == 3
        assert [record.value for record in topic.read()] == [b"before", b"before", b"after"]
        log.close()
    assert interrupted >= 11


# --- Others meanwhile ----------------------------------------------------------------------------


def test_other_appends_go_through_while_a_stream_is_stuck() -> None:
    """They get the offsets, are durable and can be read; the stream takes its turn when it has ended."""
    with open_log(MemoryFiles()) as log:
        topic = log.topic("t")
        stream = StuckStream(b"slow ", b"stream")
        working = Working(lambda: topic.append_stream(stream))
        stream.wait_until_stuck()
        assert [topic.append(b"%d" % i).offset for i in range(5)] == list(range(5))
        assert topic.append_stream([b"quick ", b"stream"]).offset == 5
        topic.roll()
        assert topic.high_watermark() == 6
        assert [record.offset for record in topic.read()] == list(range(6))
        stream.go_on.set()
        assert working.result() == (0, 6)
        assert [record.value for record in topic.read(0, 5)] == [b"quick stream", b"slow stream"]


def test_many_streams_at_once_do_not_mix() -> None:
    """All of them are under way together; each arrives whole, at an offset of its own."""
    with open_log(MemoryFiles()) as log:
        topic = log.topic("t", config={"segment.bytes": "1000"})
        streams = [StuckStream(b"<%02d" % i * 20, b"%02d>" % i * 20) for i in range(16)]
        working = [Working(lambda s=s: topic.append_stream(s)) for s in streams]  # type: ignore[misc]
        for stream in streams:
            stream.wait_until_stuck()
        for stream in reversed(streams):
            stream.go_on.set()
        placed = [each.result().offset for each in working]
        assert sorted(placed) == list(range(16))
        stored = {record.offset: record.value for record in topic.read()}
        for i, offset in enumerate(placed):
            assert stored[offset] == b"<%02d" % i * 20 + b"%02d>" % i * 20


def test_a_stream_that_outlives_the_log_is_refused_and_cleans_up() -> None:
    files = MemoryFiles()
    log = open_log(files)
    topic = log.topic("t")
    topic.append(b"before")
    stream = StuckStream(b"too late")
    working = Working(lambda: topic.append_stream(stream))
    stream.wait_until_stuck()
    log.close()
    stream.go_on.set()
    with pytest.raises(LogClosed):
        working.result()
    assert spools(files) == []
    with open_log(files) as again:
        assert [record.value for record in again.topic("t").read()] == [b"before"]


def test_a_closed_or_read_only_log_takes_no_stream() -> None:
    files, taken = MemoryFiles(), list[int]()
    log = open_log(files)
    topic = log.topic("t")
    topic.append(b"before")
    log.close()
    with pytest.raises(LogClosed):
        topic.append_stream(endless(taken))
    with open_log(files, read_only=True) as reader, pytest.raises(LogClosed):
        reader.topic("t").append_stream(endless(taken))
    assert taken == []


# --- Memory --------------------------------------------------------------------------------------

MEMORY = """
import sys
import cordwood
from support.clocks import HookedFiles
from cordwood.disk import PosixFiles

def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10

files, peak = HookedFiles(PosixFiles()), 0
def sample(kind, path):
    global peak
    peak = max(peak, anonymous())

config = {"max.message.bytes": str(128 << 20), "segment.bytes": str(256 << 20)}
log = cordwood.open(sys.argv[1], files=files)
topic = log.topic("t", config=config)
topic.append_stream([b"warm", b"up"])
before = peak = anonymous()
files.before = sample
chunk = bytes(range(256)) * 1024
topic.append_stream(chunk for _ in range(256))
assert topic.size() > 64 << 20
print(peak - before)
"""


@pytest.mark.called_only
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is Linux's")
def test_a_stream_of_64_mib_takes_constant_memory(tmp_path: Path) -> None:
    """Looked at before each call to the disk, while spooling and while copying."""
    grown = int(run_program(MEMORY, str(tmp_path / "data")))
    print(f"memory grew by {grown >> 10:,} KiB")
    assert grown < 16 << 20


def run_program(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- Crashes -------------------------------------------------------------------------------------


@pytest.mark.called_only
def test_what_a_killed_process_left_in_tmp_goes_at_the_next_open(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys, cordwood
        topic = cordwood.open(sys.argv[1]).topic("t")
        topic.append_stream([b"acknow", b"ledged"])
        def stuck():
            yield b"half" * 1000
            print("stuck", flush=True)
            sys.stdin.read()
        topic.append_stream(stuck())
        """
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "data")]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert len(os.listdir(tmp_path / "data" / "tmp")) == 1
    with cordwood.open(tmp_path / "data") as log:
        assert os.listdir(tmp_path / "data" / "tmp") == []
        assert [record.value for record in log.topic("t").read()] == [b"acknowledged"]


@pytest.mark.called_only
def test_what_a_process_left_that_ended_after_a_clean_close_goes_too() -> None:
    """The log was closed while a stream was under way, and the process ended before the stream did."""
    files = MemoryFiles()
    log = open_log(files)
    topic = log.topic("t")
    topic.append(b"before")
    stream = StuckStream(b"half")
    working = Working(lambda: topic.append_stream(stream))
    stream.wait_until_stuck()
    log.close()
    left = disk_of(image(files, DATA))
    stream.go_on.set()
    with pytest.raises(LogClosed):
        working.result()
    assert len(spools(left)) == 1
    with open_log(left) as again:
        again.topic("t").append(b"after")
    assert spools(left) == []


class Streaming(Workload):
    """The engine on a recording disk, with streams."""

    def stream(self, size: int, *chunk_sizes: int) -> None:
        """Append a stream and have it acknowledged."""
        self.written += 1
        value = b"%06d" % self.written + b"~" * size
        stored = Stored(self.partition.log_end_offset, (value,))
        # Said before the first byte goes out: from there on a cut may leave it, whole.
        self.files.acknowledge(Written(stored))
        self.topic.append_stream(pieces(value, *chunk_sizes), partition=0)
        self.files.acknowledge(stored)
        self.files.acknowledge(Seen(self.partition.high_watermark))

    def fail(self, size: int) -> None:
        """Begin a stream that breaks off; no promise comes of it."""
        with pytest.raises(Trouble):
            self.topic.append_stream(broken(Trouble(), size), partition=0)


def streams_and_appends(files: RecordingFiles) -> None:
    """Streams of several chunks between appends, over several segments, one of them broken off."""
    work = Streaming(files, SMALL)
    work.stream(40, 20)
    work.append(20)
    work.stream(150, 64, 1)
    work.fail(2)
    work.write(30)
    work.stream(200, 90)
    work.append(10)
    work.stream(0, 3)
    work.close()


def streams_into_preallocated_space(files: RecordingFiles) -> None:
    """The place of a streamed frame is zeros already; a killed writer in between."""
    work = Streaming(files, {**SMALL, "preallocate": "true"})
    work.append(100)
    work.stream(60, 25)
    work.write(30)
    work.kill()
    work.stream(70, 25)
    work.reopen()
    work.stream(80, 25)


@pytest.mark.called_only
@pytest.mark.usefixtures("small_copies")
def test_no_power_cut_loses_an_acknowledged_stream_or_shows_half_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cordwood.disk.store.PREALLOCATE_AFTER", 128)
    monkeypatch.setattr("cordwood.disk.store.PREALLOCATE_STEP_MAX", 256)
    count, left = CrashCount(), 0
    for workload in (streams_and_appends, streams_into_preallocated_space):
        recording = RecordingFiles(MemoryFiles())
        workload(recording)
        for cut in crash_images(
            recording,
            limit_per_prefix=16,
            edges=lambda data: [8, 12, 17, 21, 57, 61, len(data) - 1],
            count=count,
        ):
            try:
                check_promises(cut)
            except Exception as error:
                place = f"{workload.__name__}: cut after {cut.prefix} operations, {cut.kind}"
                raise AssertionError(f"{place}: {error}") from error
            left += bool(spools(cut.files))
    print("\n".join(count.report()))
    count.require(1_000)
    assert left == 0, f"{left} of {count.images} disks still had a spool after they were opened twice"
