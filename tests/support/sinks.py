"""Drivers and brokers that are killed and come back, and what the sink must have written then."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import cordwood
from cordwood.broker.partitioner import partition_for_key
from cordwood.disk.posix import PosixFiles
from cordwood.verify import verify_directory
from support.killing import kill_session
from support.patience import SECONDS_MAX, Limit

TESTS = Path(__file__).parents[1]
#: What a job takes at most on a quiet machine; nothing here takes nearly as long unless it hangs.
JOB_SECONDS_MAX = 120.0
Outcome = Literal["done", "failed", "killed"]


def surroundings() -> dict[str, str]:
    """Return the environment of a process that can import what tests can."""
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": ":".join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class DriverProcess:
    """A Spark driver, see `sink_driver`, started when there is something to do and after every kill."""

    def __init__(self, home: Path) -> None:
        self.starts = 0
        self.said = ""
        self._home = home
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()

    def do(self, job: Mapping[str, Any], meanwhile: Callable[[], None] = lambda: None) -> Outcome:
        """Do a job once, calling *meanwhile* now and then; return how it ended, with the reason in `said`."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._listen(meanwhile)

    def end(self) -> None:
        """End it and everything it started."""
        if self._process is None:
            return
        process, self._process = self._process, None
        while kill_session(process.pid, spare=process.pid):
            time.sleep(0.01)
        process.kill()
        with process:
            process.wait()

    def _start(self) -> None:
        self.starts += 1
        self._lines = queue.Queue()
        with (self._home / "driver.err").open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.sink_driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self._home,
                env=surroundings(),
                start_new_session=True,
            )
        assert self._process.stdout is not None
        threading.Thread(target=_pass_on, args=(self._process.stdout, self._lines), daemon=True).start()

    def _listen(self, meanwhile: Callable[[], None]) -> Outcome:
        assert self._process is not None
        limit = Limit(JOB_SECONDS_MAX)
        while not limit.passed():
            meanwhile()
            try:
                line = self._lines.get(timeout=0.05)
            except queue.Empty:
                if self._process.poll() is not None:
                    self.end()
                    return "killed"
                continue
            if line.startswith("@done"):
                return "done"
            if line.startswith("@failed"):
                self.said = json.loads(line.removeprefix("@failed"))
                return "failed"
        raise AssertionError(f"no end within {limit}: {(self._home / 'driver.err').read_text()[-3000:]}")


def _pass_on(stream: IO[str], lines: queue.Queue[str]) -> None:
    with contextlib.suppress(ValueError):
        for line in stream:
            lines.put(line)


class BrokerProcess:
    """A broker on a disk that kills, see `sink_broker`, brought back on its port by `revive`."""

    def __init__(self, data: Path, kills: Path) -> None:
        self.starts = 0
        self._data, self._kills = data, kills
        self._listen = "localhost:0"
        self._process: subprocess.Popen[str] | None = None
        self.revive()

    def revive(self) -> None:
        """Start it unless it runs, and wait until it accepts or died again."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._close()
        command = [
            sys.executable,
            "-m",
            "support.sink_broker",
            str(self._data),
            self._listen,
            str(self._kills),
        ]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=surroundings(),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.startswith("cordwood: ready on "):
            self.starts += 1
            self.bootstrap = line.split()[-1]
            self._listen = f"localhost:{self.bootstrap.rpartition(':')[2]}"
            return
        _, errors = self._process.communicate()
        # A sink that found nobody at home may be writing just now.
        locked = "DirectoryLocked" in errors or "in use" in errors
        assert locked or self._process.returncode < 0, f"the broker did not start: {line}{errors}"

    def wait(self) -> None:
        """Wait until it was killed."""
        assert self._process is not None
        self._process.wait(SECONDS_MAX)

    def stop(self) -> None:
        """End it, cleanly if it runs."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process is not None
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


# --- what must be there -------------------------------------------------------------------------------


def fill(path: Path, rows: Sequence[Sequence[tuple[bytes, bytes]]], partitions: int) -> None:
    """Make a directory whose topic ``in`` has these (key, value), and whose topic ``out`` has nothing yet."""
    with cordwood.open(path) as log:
        topic = log.topic("in", len(rows))
        log.topic("out", partitions)
        for number, each in enumerate(rows):
            for start in range(0, len(each), 7):
                topic.append_many(each[start : start + 7], partition=number)


def values_in(path: Path, topic: str = "out") -> list[list[bytes]]:
    """Return the values of each partition; their offsets must be dense from 0 on."""
    with cordwood.open(path, read_only=True) as log:
        found = []
        read = log.topic(topic)
        for partition in range(read.partitions):
            records = list(read.read(partition))
            assert [record.offset for record in records] == list(range(len(records)))
            found.append([record.value or b"" for record in records])
        return found


def copied(
    rows: Sequence[Sequence[tuple[bytes, bytes]]], limits: Sequence[Sequence[int]], partitions: int
) -> list[list[bytes]]:
    """Return what each partition of the copy holds: batch after batch, and in each task after task.

    *limits* are the offsets at which each batch ends, by partition of the input.
    """
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    starts: Sequence[int] = [0] * len(rows)
    for ends in limits:
        for each, start, end in zip(rows, starts, ends, strict=True):
            for key, value in each[start:end]:
                found[partition_for_key(key, partitions)].append(value)
        starts = ends
    return found


def batch_ends(checkpoint: Path, topic: str = "in") -> list[list[int]]:
    """Return where each micro-batch of a query ends, by partition, as Spark's checkpoint says."""
    ends = []
    for name in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        by_partition = json.loads(name.read_text().splitlines()[2])[topic]
        ends.append([by_partition[number] for number in sorted(by_partition, key=int)])
    return ends


def leftovers(path: Path) -> list[str]:
    """Return what is left of staged shares, as paths below ``tmp/sink``."""
    sink = path / "tmp" / "sink"
    return sorted(str(each.relative_to(sink)) for each in sink.rglob("*") if each.is_file())


def check_clean(path: Path) -> None:
    """Nothing is left over, and verify has nothing to say."""
    assert leftovers(path) == []
    report = verify_directory(PosixFiles(), str(path))
    assert report.findings == (), report.findings
