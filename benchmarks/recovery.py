"""Opening a log again: after kill -9 at full rate, with many partitions, and reading all of a large one.

Writers and readers are processes of their own: ``python -m benchmarks.recovery write|read …``. The sizes are
200 MB and 4 GB, the larger one scaled down where the disk has less than 10 GB left.
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import cordwood
from benchmarks.measure import Figure
from cordwood.disk import File, Mode, PosixFiles

SMALL_BYTES = 200_000_000
SEGMENT_BYTES = 1 << 30
SEGMENTS_MORE = 4
INDEX_BEHIND_BYTES = 40_000_000
FREE_BYTES_MIN = 10_000_000_000
VALUE_BYTES = 60_000
ROWS_PER_BATCH = 16
PARTITIONS = 1_000
ROUNDS = 3
TOPIC = "events"


def run() -> list[Figure]:
    """Measure opening after a kill, opening many partitions, and memory while reading a large log."""
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as directory:
        root = Path(directory)
        segments = SEGMENTS_MORE
        free = shutil.disk_usage(root).free
        if free < FREE_BYTES_MIN:
            segments = min(max(int((free - 3_000_000_000) // SEGMENT_BYTES), 1), SEGMENTS_MORE)
            print(f"{root} has {free / 1e9:.1f} GB free: '4 GB' below is {segments} GiB and 200 MB")
        return [
            *killed_figures(root, "each", segments, keep=True),
            *reading_figures(root / "large"),
            *killed_figures(root, "never", segments),
            *unsynced_figures(root),
            *partitions_figures(root / "many"),
        ]


# --- After kill -9 -------------------------------------------------------------------------------


def killed_figures(root: Path, sync: str, segments: int, *, keep: bool = False) -> list[Figure]:
    """Measure opening a small and a large log whose writer was killed.

    Both have about 200 MB in their active segment, so only the size of the log tells them apart. Where
    all is synced, what is left to do is to index the frames since the indexes were last written, every
    64 MiB or second; opening writes them too, so a second writer sets that distance for both.
    """
    seconds = {}
    last_bytes = INDEX_BEHIND_BYTES if sync == "each" else 0
    for name, size in (("small", SMALL_BYTES), ("large", SMALL_BYTES + segments * SEGMENT_BYTES)):
        written = write_and_kill(root / name, size - last_bytes, sync)
        if last_bytes:
            written = write_and_kill(root / name, last_bytes, sync)
        seconds[name] = open_seconds(root / name)
        print(f"{sync}: killed at {written / 1e6:,.0f} MB; {describe_recovery(root / name)}")
        if not keep or name == "small":
            shutil.rmtree(root / name)
    return [
        Figure(f"open after kill -9, {sync}, 200 MB", seconds["small"] * 1e3, "ms", 1000.0, at_most=True),
        Figure(f"open after kill -9, {sync}, 4 GB", seconds["large"] * 1e3, "ms", 1000.0, at_most=True),
        Figure(
            f"open after kill -9, {sync}: 4 GB against 200 MB",
            seconds["large"] / seconds["small"],
            "x",
            1.5,
            at_most=True,
        ),
    ]


def unsynced_figures(root: Path) -> list[Figure]:
    """Measure the worst there is: a whole segment that was never synced, so all of it is scanned."""
    write_and_kill(root / "unsynced", 1_000_000_000, "never")
    seconds = open_seconds(root / "unsynced")
    print(f"never: {describe_recovery(root / 'unsynced')}")
    shutil.rmtree(root / "unsynced")
    return [
        Figure("open after kill -9, never, 1 GB in one segment", seconds * 1e3, "ms", 1000.0, at_most=True)
    ]


def write_and_kill(directory: Path, size: int, sync: str) -> int:
    """Write at full rate from another process, kill it once *size* bytes are there; return how many were."""
    command = [sys.executable, "-m", "benchmarks.recovery", "write", str(directory), str(size), sync]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"reached\n"
        writer.kill()
    return sum(path.stat().st_size for path in segment_files(directory))


def write(directory: str, size: int, sync: str) -> None:
    """Append until killed, and say when *size* bytes are there."""
    value = random.Random(20).randbytes(VALUE_BYTES)
    rows = [(None, value)] * ROWS_PER_BATCH
    with cordwood.open(directory, sync=sync) as log:
        topic = log.topic(TOPIC)
        written = 0
        while True:
            topic.append_many(rows)
            before, written = written, written + VALUE_BYTES * ROWS_PER_BATCH
            if before < size <= written:
                print("reached", flush=True)


def open_seconds(directory: Path) -> float:
    """Return the shortest time to open a directory as the kill left it, nothing of it in the cache."""
    image = {path: path.read_bytes() for path in small_files(directory)}
    shortest = float("inf")
    for _ in range(ROUNDS):
        # Opening changes no whole frame, so with the small files put back the crash is there again.
        for path in small_files(directory):
            path.unlink()
        for path, data in image.items():
            path.write_bytes(data)
        drop_cache(directory)
        started = time.perf_counter()
        log = cordwood.open(directory)
        shortest = min(shortest, time.perf_counter() - started)
        log.close()
    for path, data in image.items():
        path.write_bytes(data)
    return shortest


def describe_recovery(directory: Path) -> str:
    """Return what recovery says of a directory that was killed, opened and put back."""
    (directory / "meta" / "clean").unlink(missing_ok=True)
    with cordwood.open(directory) as log:
        [report] = log.reports
    return f"recovery scanned {report.scanned_bytes / 1e6:,.1f} MB, kept {report.kept_bytes / 1e6:,.1f} MB"


def small_files(directory: Path) -> list[Path]:
    """Return all files but segments."""
    return [path for path in directory.rglob("*") if path.is_file() and path not in segment_files(directory)]


def segment_files(directory: Path) -> set[Path]:
    """Return the segments of the topic."""
    return set((directory / "topics").glob("*/*/segments/*.log"))


def drop_cache(directory: Path) -> None:
    """Let the system forget the cached bytes of all files; unsynced ones are synced, or they would stay."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


# --- Many partitions -----------------------------------------------------------------------------


class UnsyncedFiles(PosixFiles):
    """The operating system's files without the syncs: to lay out a thousand partitions in a moment."""

    def open(self, path: str, mode: Mode) -> File:
        """Open a file that does not sync."""
        return cast(File, _UnsyncedFile(super().open(path, mode)))

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


class _UnsyncedFile:
    """A file whose sync does nothing."""

    def __init__(self, inner: File) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sync(self) -> None:
        """Do nothing."""


def partitions_figures(directory: Path) -> list[Figure]:
    """Measure opening a directory of 1,000 partitions that was closed cleanly, and touching each."""
    # Each open partition holds two files, its segment and its mark.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with cordwood.open(directory, sync="never", files=UnsyncedFiles()) as log:
        topic = log.topic(TOPIC, partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            topic.append(b"a record", partition=partition)
    opened = touched = float("inf")
    for _ in range(ROUNDS):
        drop_cache(directory)
        started = time.perf_counter()
        log = cordwood.open(directory)
        opened = min(opened, time.perf_counter() - started)
        topic = log.topic(TOPIC)
        assert sum(topic.high_watermark(partition) for partition in range(PARTITIONS)) == PARTITIONS
        touched = min(touched, time.perf_counter() - started)
        log.close()
    return [
        Figure("open 1,000 clean partitions", opened * 1e3, "ms", 2000.0, at_most=True),
        Figure("open 1,000 clean partitions and touch each", touched * 1e3, "ms", 2000.0, at_most=True),
    ]


# --- Reading all of it ---------------------------------------------------------------------------


def reading_figures(directory: Path) -> list[Figure]:
    """Measure how much memory of its own a process needs to read a large log to columns."""
    drop_cache(directory)
    command = [sys.executable, "-m", "benchmarks.recovery", "read", str(directory)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    grown, total, seconds = (float(word) for word in found.split())
    shutil.rmtree(directory)
    return [
        Figure("read all of the large log to columns", total / seconds / 1e6, "MB/s"),
        Figure("… with RssAnon growing by", grown / 1e6, "MB", 100.0, at_most=True),
    ]


def read(directory: str) -> None:
    """Scan all of the topic; print by how much RssAnon grew, the bytes of values, and the seconds."""
    with cordwood.open(directory) as log:
        # What pyarrow needs to be there at all is not the log's.
        log.scan(TOPIC).schema  # noqa: B018
        before = most = anonymous_bytes()
        total = 0
        started = time.perf_counter()
        for batch in log.scan(TOPIC).batches():
            total += batch.num_rows * VALUE_BYTES
            most = max(most, anonymous_bytes())
        print(most - before, total, time.perf_counter() - started)


def anonymous_bytes() -> int:
    """Return the memory of this process that no file backs."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        read(sys.argv[2])
