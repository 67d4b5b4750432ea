"""The embedded log: appending and reading, beside the floor under it in the same run.

One table shows every record size and sync policy, beside what other logs state of themselves. The figures
returned are those with a goal. All sides run on the same file system, under ``TMPDIR``.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, cast

import google_crc32c
from rich.console import Console
from rich.table import Table

import cordwood
from benchmarks.measure import Figure, best_seconds, calls_per_second
from cordwood.disk import Buffer, File, Mode, PosixFiles
from cordwood.embedded import Log, Topic
from cordwood.formats import batch

SIZES = (12, 140, 560, 1120, 2940, 11760)
POLICIES = ("never", "every:1000", "ms:10", "each")
RECORDS_PER_BATCH = 500
CELL_SECONDS = 0.3
CELL_BYTES_MAX = 64 << 20
READ_BYTES = 32 << 20
READ_RECORDS_MAX = 200_000
RANDOM_RECORDS = 10_000
THREADS = 64
APPENDS_PER_THREAD = 150
SLOW_SYNC_SECONDS = 0.002
SEED = 20

#: What other logs state of themselves, each on a machine of its own: for orientation, not as a ratio.
STATED = {
    "append one by one, never": "laminarmq 159 k/s at 1120 B; Kimberlite 50-100 k/s",
    "append one by one, every:1000": "RustLog 10-100 k/s, batched sync",
    "read at random": "laminarmq 115 k/s at 1120 B",
}

Rates = dict[str, dict[int, float]]


def run() -> list[Figure]:
    """Print the table of all sizes and return the figures that have a goal."""
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as directory:
        rates: Rates = {}
        measure_floor(directory, rates)
        for policy in POLICIES:
            measure_appends(os.path.join(directory, policy), policy, rates)
        measure_reads(os.path.join(directory, "reads"), rates)
        print_rates(rates)
        return [
            *append_goals(os.path.join(directory, "append")),
            *group_commit_goals(os.path.join(directory, "group")),
            *sequential_read_goals(os.path.join(directory, "sequential")),
            *random_read_goals(os.path.join(directory, "random")),
        ]


# --- The table of all sizes ----------------------------------------------------------------------


def value_of(size: int) -> bytes:
    """Return a value of *size* bytes that is the same in every run."""
    return random.Random(SEED).randbytes(size)


def frame_of(size: int, records: int) -> bytes:
    """Return the frame that appending *records* values of *size* bytes writes."""
    row = (None, value_of(size), (), None)
    return bytes(batch.encode_records([row] * records, 1_700_000_000_000))


def note(
    rates: Rates, name: str, size: int, action: Callable[[], object], records: int, written: int
) -> None:
    """Measure how many records a second repeating *action* makes."""
    calls_max = max(CELL_BYTES_MAX // written, 3)
    per_second = calls_per_second(action, seconds=CELL_SECONDS, calls_max=calls_max)
    rates.setdefault(name, {})[size] = per_second * records


def measure_floor(directory: str, rates: Rates) -> None:
    """Measure what no log can go below: checksum, write and sync of the same frames."""
    descriptor = os.open(os.path.join(directory, "floor"), os.O_CREAT | os.O_RDWR)
    position = 0

    def write(frame: bytes) -> None:
        nonlocal position
        position += os.pwrite(descriptor, frame, position)

    def write_and_sync(frame: bytes) -> None:
        write(frame)
        os.fdatasync(descriptor)

    for size in SIZES:
        for records, kind in ((1, "one record"), (RECORDS_PER_BATCH, "500 records")):
            frame = frame_of(size, records)
            for name, action in (
                ("CRC-32C", google_crc32c.value),
                ("pwrite", write),
                ("pwrite + fdatasync", write_and_sync),
            ):
                call = cast(Callable[[bytes], object], action)
                note(rates, f"floor: {name} of {kind}", size, lambda: call(frame), records, len(frame))  # noqa: B023
        os.ftruncate(descriptor, 0)
        position = 0
    os.close(descriptor)
    os.unlink(os.path.join(directory, "floor"))


def measure_appends(directory: str, policy: str, rates: Rates) -> None:
    """Measure the three ways to append under one sync policy."""
    with cordwood.open(directory, sync=policy) as log:
        for size in SIZES:
            value = value_of(size)
            rows = [(None, value)] * RECORDS_PER_BATCH
            ways: list[tuple[str, Callable[[Topic], object], int]] = [
                ("one by one", lambda topic, value=value: topic.append(value), 1),  # type: ignore[misc]
                ("in batches of 500", lambda topic, rows=rows: topic.append_many(rows), RECORDS_PER_BATCH),  # type: ignore[misc]
                ("as a stream", lambda topic, value=value: topic.append_stream([value]), 1),  # type: ignore[misc]
            ]
            for way, append, records in ways:
                topic = log.topic(f"{way.replace(' ', '-')}-{size}")
                append(topic)
                name = f"append {way}, {policy}"
                written = records * (size + 10)
                note(rates, name, size, lambda: append(topic), records, written)  # noqa: B023


def measure_reads(directory: str, rates: Rates) -> None:
    """Measure reading one by one at random, and in sequence as records and as columns."""
    with cordwood.open(directory, sync="never") as log:
        for size in SIZES:
            value = value_of(size)
            singles, batches = log.topic(f"singles-{size}"), log.topic(f"batches-{size}")
            for _ in range(min(RANDOM_RECORDS, READ_BYTES // size)):
                singles.append(value)
            for _ in range(min(READ_RECORDS_MAX, READ_BYTES // size) // RECORDS_PER_BATCH):
                batches.append_many([(None, value)] * RECORDS_PER_BATCH)
            offsets = random_offsets(singles.high_watermark())
            note(rates, "read at random", size, lambda: read_one(singles, next(offsets)), 1, size)  # noqa: B023
            seconds = best_seconds(
                {
                    "records": lambda: sum(1 for _ in batches.read()),  # noqa: B023
                    "columns": lambda: scan_all(log, batches.name),  # noqa: B023
                },
                rounds=3,
            )
            for way, elapsed in seconds.items():
                rates.setdefault(f"read in sequence as {way}", {})[size] = batches.high_watermark() / elapsed


def random_offsets(end: int) -> Iterator[int]:
    """Return offsets below *end* without end, the same ones in every run."""
    choose = random.Random(SEED)
    return (choose.randrange(end) for _ in count())


def read_one(topic: Topic, offset: int) -> bytes | None:
    """Read one record by its offset, as a user does."""
    record = next(topic.read(0, offset, offset + 1))
    assert record.offset == offset
    return record.value


def scan_all(log: Log, topic: str) -> int:
    """Read a topic to columns and return how many rows that gave."""
    return sum(found.num_rows for found in log.scan(topic).batches())


def print_rates(rates: Rates) -> None:
    """Print what was measured of all sizes, a row per way."""
    table = Table(
        "thousand records/s (MB/s of values)",
        *(f"{size} B" for size in SIZES),
        "stated elsewhere, not measured here",
        title=f"one run, {CELL_SECONDS} s or {CELL_BYTES_MAX >> 20} MiB a cell",
    )
    for column in table.columns[1:-1]:
        column.justify = "right"
    for name, of_size in rates.items():
        cells = [f"{rate / 1e3:,.1f} ({rate * size / 1e6:,.0f})" for size, rate in of_size.items()]
        table.add_row(name, *cells, STATED.get(name, ""))
    Console(width=190).print(table)


def for_each(numbers: Iterable[int], action: Callable[[int], object]) -> None:
    """Call *action*, keeping no result: kept ones would make the garbage collector part of the figure."""
    for number in numbers:
        action(number)


# --- Appending -----------------------------------------------------------------------------------


def append_goals(directory: str) -> list[Figure]:
    """Measure appends of 100-byte values that nothing syncs: the cost of the engine itself."""
    value = value_of(100)
    rows = [(None, value)] * RECORDS_PER_BATCH
    batches, singles = 200, 10_000
    with cordwood.open(directory, sync="never") as log:
        topic = log.topic("events")
        seconds = best_seconds(
            {
                "many": lambda: for_each(range(batches), lambda _: topic.append_many(rows)),
                "one": lambda: for_each(range(singles), lambda _: topic.append(value)),
            }
        )
    many, one = batches * RECORDS_PER_BATCH / seconds["many"], singles / seconds["one"]
    return [
        Figure("append_many of 500 x 100 B, never", many / 1e6, "M records/s", 1.0),
        Figure("append one by one, 100 B, never", one / 1e3, "k records/s", 100.0),
    ]


# --- Group commit --------------------------------------------------------------------------------


class CountingFiles(PosixFiles):
    """The operating system's files, counting the syncs of segments as they begin and as they complete.

    With *sync_seconds* a sync of a segment sleeps that long instead of asking the device.
    """

    def __init__(self, sync_seconds: float | None = None) -> None:
        super().__init__()
        self.sync_seconds = sync_seconds
        self.begun = 0
        self.completed = 0
        self.at_write = threading.local()

    def open(self, path: str, mode: Mode) -> File:
        """Open a file; a segment comes with its syncs counted."""
        file = super().open(path, mode)
        is_segment = "/segments/" in path and path.endswith(".log")
        return cast(File, _CountedFile(file, self)) if is_segment else file


class _CountedFile:
    """A segment whose syncs are counted. One thread syncs at a time, so the counters need no lock."""

    def __init__(self, inner: File, files: CountingFiles) -> None:
        self._inner = inner
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write, and note for the calling thread how many syncs there were by then."""
        written = self._inner.write_at(position, buffers)
        self._files.at_write.counts = (self._files.completed, self._files.begun)
        return written

    def sync(self) -> None:
        """Sync, or sleep in its place, and count it."""
        self._files.begun += 1
        if self._files.sync_seconds is None:
            self._inner.sync()
        else:
            time.sleep(self._files.sync_seconds)
        self._files.completed += 1


class Seen(NamedTuple):
    """How many syncs completed during one append, by what it waited for meanwhile."""

    turn: int
    """Before its bytes were written: waiting for its turn to append."""
    cover: int
    """From there to the end of the first sync that began after the write: 1, or 2 if one was under way."""
    waking: int
    """After that: its record was durable, but the thread did not run yet."""


class Shared(NamedTuple):
    """What a run of many threads showed."""

    appends_per_second: float
    appends_per_sync: float
    seen: list[Seen]


def append_from_threads(directory: str, files: CountingFiles, threads: int, appends: int) -> Shared:
    """Append *appends* records from each of *threads* threads, one a call, each durable on return."""
    seen: list[Seen] = []
    start = threading.Barrier(threads + 1)
    value = value_of(100)

    def append_all(topic: Topic) -> None:
        start.wait()
        for _ in range(appends):
            before = files.completed
            topic.append(value)
            after = files.completed
            completed, begun = files.at_write.counts
            covering = begun + 1
            seen.append(Seen(completed - before, covering - completed, after - covering))

    with cordwood.open(directory, sync="each", files=files) as log:
        topic = log.topic("events")
        topic.append(value)
        workers = [threading.Thread(target=append_all, args=(topic,)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        syncs_before = files.completed
        start.wait()
        started = time.perf_counter()
        for worker in workers:
            worker.join()
        elapsed = time.perf_counter() - started
        syncs = files.completed - syncs_before
    assert len(seen) == threads * appends
    return Shared(len(seen) / elapsed, len(seen) / syncs, seen)


def group_commit_goals(directory: str) -> list[Figure]:
    """Measure how appends of many threads share syncs: real ones, and slow ones of a known length."""
    figures = []
    runs = {}
    for kind, seconds in (("real", None), ("2 ms", SLOW_SYNC_SECONDS)):
        files = CountingFiles(seconds)
        runs[kind] = many = append_from_threads(f"{directory}-{kind}", files, THREADS, APPENDS_PER_THREAD)
        print_seen(kind, many.seen)
        name = f"64 threads, each, {kind} syncs"
        figures += [
            Figure(f"{name}: appends", many.appends_per_second / 1e3, "k records/s"),
            Figure(f"{name}: appends per sync", many.appends_per_sync, "", 16.0),
            Figure(f"{name}: most syncs waited for", max(s.cover for s in many.seen), "", 2.0, at_most=True),
            Figure(f"{name}: … that went by, turn and waking included", max(map(sum, many.seen)), ""),
        ]
    alone = append_from_threads(f"{directory}-alone", CountingFiles(SLOW_SYNC_SECONDS), 1, 200)
    gain = runs["2 ms"].appends_per_second / alone.appends_per_second
    return [*figures, Figure("64 threads, each, 2 ms syncs: against one thread", gain, "x", 5.0)]


def print_seen(kind: str, seen: list[Seen]) -> None:
    """Print how many syncs completed during an append, and what it waited for meanwhile."""
    table = Table("syncs completed while an append …", "median", "99 %", "most")
    table.title = f"64 threads, {kind} syncs"
    for name, found in (
        ("waits for its turn", [s.turn for s in seen]),
        ("waits to be covered", [s.cover for s in seen]),
        ("is durable and waits to run", [s.waking for s in seen]),
        ("in all", [sum(s) for s in seen]),
    ):
        counts = sorted(found)
        median, most_of_them = (counts[int(len(counts) * part)] for part in (0.5, 0.99))
        table.add_row(name, str(median), str(most_of_them), str(counts[-1]))
    Console().print(table)


# --- Reading -------------------------------------------------------------------------------------


def segment_file(directory: str, topic: str) -> str:
    """Return the path of the first segment of a topic's first partition."""
    segments = os.path.join(directory, "topics", topic, "0", "segments")
    return os.path.join(segments, min(name for name in os.listdir(segments) if name.endswith(".log")))


def sequential_read_goals(directory: str) -> list[Figure]:
    """Measure reading to columns beside CRC-32C over the same bytes, both out of the page cache.

    A log remembers what it has checked, so each round reads a log just opened, checksums and all; the
    figure without them is given too.
    """
    batches = 2_000
    with cordwood.open(directory, sync="never") as log:
        topic = log.topic("events")
        for _ in range(batches):
            topic.append_many([(None, value_of(100))] * RECORDS_PER_BATCH)
    with open(segment_file(directory, "events"), "rb") as file:
        data = file.read()
    records = batches * RECORDS_PER_BATCH
    opened: list[Log] = []

    def reopen() -> None:
        for log in opened:
            log.close()
        opened[:] = [cordwood.open(directory, sync="never")]
        opened[0].topic("events").high_watermark()

    def scan() -> None:
        assert scan_all(opened[0], "events") == records

    seconds = best_seconds({"crc": lambda: google_crc32c.value(data), "first": scan}, before_each=reopen)
    seconds |= best_seconds({"again": scan})
    opened[0].topic("events").roll()
    seconds |= best_seconds({"crc ": lambda: google_crc32c.value(data), "sealed": scan}, before_each=reopen)
    opened[0].close()
    crc = min(seconds["crc"], seconds["crc "])
    return [
        Figure("CRC-32C of the same bytes", len(data) / crc / 1e9, "GB/s"),
        Figure("read to columns", records / seconds["first"] / 1e6, "M records/s"),
        Figure("read to columns: against CRC-32C", seconds["crc"] / seconds["first"], "x", 0.25),
        Figure("read to columns, sealed: against CRC-32C", seconds["crc "] / seconds["sealed"], "x", 0.25),
        Figure("read to columns again: against CRC-32C", seconds["crc"] / seconds["again"], "x"),
    ]


def random_read_goals(directory: str) -> list[Figure]:
    """Measure reading a record by its offset beside one pread, CRC and decode of the frame it is in."""
    figures = []
    reads = 300
    for records, kind in ((1, "frames of one record"), (RECORDS_PER_BATCH, "frames of 500 records")):
        with cordwood.open(f"{directory}-{records}", sync="never") as log:
            topic = log.topic("events")
            for _ in range(RANDOM_RECORDS if records == 1 else 200):
                topic.append_many([(None, value_of(100))] * records)
            for _ in topic.read():
                """Let the log check everything once, so that every round finds the same."""
            with floor_reader(segment_file(f"{directory}-{records}", "events")) as read_frame:
                frames = topic.high_watermark() // records
                chosen = random.Random(SEED).choices(range(frames), k=reads)
                offsets = [frame * records for frame in chosen]
                partition = log._readable("events", 0)

                def read_engine(offset: int, partition: Any = partition) -> object:
                    run = partition.read(offset, 1).runs[0]
                    return run.format.decode(run.buffer, run.table.position(run.first))

                seconds = best_seconds(
                    {
                        "floor": lambda: for_each(chosen, read_frame),  # noqa: B023
                        "topic": lambda: for_each(offsets, lambda offset: read_one(topic, offset)),  # noqa: B023
                        "engine": lambda: for_each(offsets, read_engine),  # noqa: B023
                    }
                )
        floor, topic_read, engine = (seconds[side] for side in ("floor", "topic", "engine"))
        figures += [
            Figure(f"pread + CRC + decode, {kind}", floor / reads * 1e6, "us"),
            Figure(f"Topic.read of one offset, {kind}", topic_read / reads * 1e6, "us"),
            Figure(f"random read, {kind}: against the floor", topic_read / floor, "x", 5.0, True),
            Figure(f"random read in the engine, {kind}: against the floor", engine / floor, "x", 5.0, True),
        ]
    return figures


@contextlib.contextmanager
def floor_reader(path: str) -> Iterator[Callable[[int], object]]:
    """Offer a function that reads the n-th frame of a segment with one pread, checks and decodes it."""
    with open(path, "rb") as file:
        headers = list(batch.scan(data := file.read()).headers())
        assert headers[-1].end == len(data)
        places = [(header.position, header.end - header.position) for header in headers]
        descriptor = file.fileno()

        def read_frame(number: int) -> object:
            position, size = places[number]
            frame = os.pread(descriptor, size, position)
            header = batch.read_header(frame, 0)
            batch.check_crc(frame, header)
            return batch.decode_records(frame, header)

        yield read_frame
