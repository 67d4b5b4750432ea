"""Verify against SHA-256; verify and reindex on one core of Spark against two, beside the local commands.

About a gigabyte in segments of 64 MiB, in batches of a kilobyte, as clients send them that do not wait for
more. Each Spark is a process of its own with a session that is warm, told what to do by this one, and all
sides take turns: ``python -m benchmarks.verify local[2] DIRECTORY``.

Against SHA-256 over the same files: batches of 16 to 64 KiB, as clients send them that do wait, in a topic
that keeps a chain, so that each byte is hashed once by either side.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import cordwood
from benchmarks.measure import Figure, best_seconds
from cordwood.config import load_broker_config
from cordwood.disk import PosixFiles
from cordwood.storage.directory import Opening
from cordwood.storage.offline import reindex_directory
from cordwood.verify import verify_directory

SIZE_BYTES = int(os.environ.get("BENCH_BYTES", "1100000000"))
SEGMENT_BYTES = 64 << 20
PARTITIONS = 2
VALUE_BYTES = 100
ROWS_PER_BATCH = 10
#: What is done sooner is more at the mercy of its neighbours.
ROUNDS = {"verify": 3, "reindex": 7}
#: What one core does in a second or less, several times.
CHAINED_BYTES = SIZE_BYTES // 4
CHAINED_BATCHES = (16 << 10, 32 << 10, 64 << 10)
CHAINED_ROUNDS = 7
MASTERS = ("local[1]", "local[2]")
HERE = "local command"


def run() -> list[Figure]:
    """Measure both jobs on one core and on two, and beside what runs without Spark."""
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="cordwood-bench-"))
        figures = [figure for size in CHAINED_BATCHES for figure in measured_chain(size)]
        fill(data)
        peers = {master: stack.enter_context(Peer(master, data)) for master in MASTERS}
        return [
            *figures,
            *measured("verify", partial(verify_here, data), peers),
            *measured("reindex", partial(reindex_here, data), peers, partial(remove_indexes, data)),
        ]


def measured(
    job: str,
    here: Callable[[], object],
    peers: dict[str, Peer],
    before_each: Callable[[], object] = lambda: None,
) -> list[Figure]:
    """Let all sides do a job in turns, and return what each took, and how they compare."""
    sides: dict[str, Callable[[], object]] = {HERE: here}
    sides |= {master: partial(peer.call, job) for master, peer in peers.items()}
    seconds = best_seconds(sides, ROUNDS[job], before_each)
    one, two = (seconds[master] for master in MASTERS)
    return [
        *(Figure(f"{job}: {side}", taken, "s") for side, taken in seconds.items()),
        Figure(f"{job}: rate of the local command", SIZE_BYTES / seconds[HERE] / 1e6, "MB/s"),
        Figure(f"{job}: two cores against one", one / two, "x", 1.5),
        Figure(f"{job}: job on two cores against the local command", seconds[HERE] / two, "x"),
        Figure(f"{job}: job on one core against the local command", seconds[HERE] / one, "x"),
    ]


def measured_chain(batch_bytes: int) -> list[Figure]:
    """Verify a topic with a chain on one core, and hash its files, in turns."""
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as data:
        size = fill_chain(data, batch_bytes)
        logs = sorted(Path(data).glob("topics/*/*/segments/*.log"))
        sides: dict[str, Callable[[], object]] = {
            "verify": partial(verify_chain, data),
            "SHA-256": partial(hash_files, logs),
        }
        seconds = best_seconds(sides, CHAINED_ROUNDS)
    rates = {side: size / taken / 1e6 for side, taken in seconds.items()}
    name = f"with a chain, batches of {batch_bytes >> 10} KiB"
    return [
        Figure(f"verify: {name}", rates["verify"], "MB/s"),
        Figure(f"SHA-256: {name}", rates["SHA-256"], "MB/s"),
        Figure(f"verify against SHA-256: {name}", rates["verify"] / rates["SHA-256"], "x", 0.5),
    ]


def fill_chain(data: str, batch_bytes: int) -> int:
    """Write a topic of such batches whose chain follows it, and return its bytes."""
    value = random.Random(20).randbytes(VALUE_BYTES)
    rows = [(None, value)] * (batch_bytes // (VALUE_BYTES + 10))
    settings = {"segment.bytes": str(SEGMENT_BYTES), "cordwood.chain": "true"}
    with cordwood.open(data, sync="never") as log:
        topic = log.topic("events", 1, settings)
        while topic.size(0) < CHAINED_BYTES:
            topic.append_many(rows, partition=0)
        log.maintain()
        size = topic.size(0)
    with cordwood.open(data, create=False) as log:
        directory = log.data_directory
        directory.chains.commit(directory.partitions.own("events", 0))
    return size


def verify_chain(data: str) -> None:
    """Verify, all frames with their leaves."""
    report = verify_directory(PosixFiles(), data)
    assert report.sound
    assert report.frames_compared == report.frames > 0


def hash_files(paths: list[Path]) -> None:
    """Do no more than hash files."""
    for path in paths:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while data := file.read(1 << 20):
                digest.update(data)
        digest.hexdigest()


def fill(data: str) -> None:
    """Write a topic of the wanted size, sealed segment after sealed segment."""
    value = random.Random(20).randbytes(VALUE_BYTES)
    rows = [(b"%08d" % number, value) for number in range(ROWS_PER_BATCH)]
    with cordwood.open(data, sync="never") as log:
        topic = log.topic("events", PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
        while sum(map(topic.size, range(PARTITIONS))) < SIZE_BYTES:
            for _ in range(100):
                for partition in range(PARTITIONS):
                    topic.append_many(rows, partition=partition)


def remove_indexes(data: str) -> None:
    """Remove the offset indexes of all sealed segments, for them to be rebuilt."""
    for directory in Path(data).glob("topics/*/*/segments"):
        for path in sorted(directory.glob("*.idx"))[:-1]:
            path.unlink()


def verify_here(data: str) -> None:
    """Verify without Spark."""
    report = verify_directory(PosixFiles(), data)
    assert report.sound
    assert report.segments >= SIZE_BYTES // SEGMENT_BYTES


def reindex_here(data: str) -> None:
    """Reindex without Spark."""
    report = reindex_directory(Opening(PosixFiles(), data, load_broker_config()[0], create=False))
    assert len(report.rebuilt) >= report.segments - 2 * PARTITIONS


class Peer:
    """A Spark of so many cores, in a process that does what it is told."""

    def __init__(self, master: str, data: str) -> None:
        command = [sys.executable, "-m", "benchmarks.verify", master, data]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # Workers are started, modules imported, and code compiled before anything counts.
        self.call("verify")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate("")

    def call(self, job: str) -> None:
        """Have a job done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{job}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if answer != f"done {job}\n":
            raise RuntimeError(f"{job}: {answer or 'the peer ended'}")


def serve(master: str, data: str) -> None:
    """Do the jobs that standard input names, one a line, in one session."""
    from cordwood.spark.jobs import ReindexOptions, VerifyOptions, reindex, verify

    spark = cordwood.spark.session("benchmark", master=master, config={"spark.ui.enabled": "false"})
    for line in sys.stdin:
        job = line.strip()
        if job == "verify":
            assert verify(spark, VerifyOptions(data)).sound
        else:
            report = reindex(spark, ReindexOptions(data))
            assert len(report.rebuilt) >= report.segments - 2 * PARTITIONS
        print(f"done {job}", flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(*sys.argv[1:])
