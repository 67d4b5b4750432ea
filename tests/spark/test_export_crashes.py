"""An export that is killed at any step, or cut off from power, and run again: each record once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.crashes import CrashCount, CrashImage, crash_images
from support.disks import CHANGES, FaultPlan, FaultyFiles, RecordingFiles
from support.filling import NOW

import cordwood
from cordwood.disk.checked_json import write_metadata
from cordwood.disk.files import File, Files, Mode, join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.errors import CordwoodError, MetadataDamaged
from cordwood.spark.jobs.export.files import Written
from cordwood.spark.jobs.export.job import Do, ExportJobReport, ExportOptions, ExportTask, run_export
from cordwood.spark.jobs.export.plan import (
    ExportPlan,
    ExportSlice,
    Manifest,
    PartitionProgress,
    TopicProgress,
)
from cordwood.spark.jobs.log_place import LogPlace

DAY_MS = 86_400_000
Found = list[tuple[int, int, bytes]]


def here(tasks: Sequence[ExportTask], do: Do) -> list[list[Written]]:
    """Run tasks in this process, the first of them twice, as Spark may."""
    for task in tasks[:1]:
        do(task)
    return [do(task) for task in tasks]


class HastyFiles(PosixFiles):
    """The file system without its syncs, which a process that is killed does not need."""

    def open(self, path: str, mode: Mode) -> File:
        file: Any = HastyFile(super().open(path, mode))
        return file  # type: ignore[no-any-return]

    def sync_directory(self, path: str) -> None:
        assert self.is_directory(path)


class HastyFile:
    """A file of `HastyFiles`."""

    def __init__(self, inner: File) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sync(self) -> None:
        pass


def append(topic: cordwood.Topic, count: int) -> None:
    """Append to both partitions, over two dates."""
    for partition in range(2):
        at = topic.log_end_offset(partition)
        times = [(b"%d" % i, NOW + i % 2 * DAY_MS) for i in range(at, at + count)]
        topic.append_many([(b"k", value, None, time) for value, time in times], partition=partition)


def exported(path: Path, to: str, files: Files) -> ExportJobReport:
    return run_export(ExportOptions(LogPlace(path=str(path)), to), here, files)


def stored(topic: cordwood.Topic) -> Found:
    return [(p, r.offset, r.value or b"") for p in range(2) for r in topic.read(p, 0)]


def by_duckdb(to: Path) -> Found:
    if not list(to.rglob("*.parquet")):
        return []
    query = (
        f"SELECT partition, \"offset\", value FROM read_parquet('{to}/**/*.parquet', hive_partitioning=true)"
    )
    return sorted(duckdb.connect().execute(query).fetchall())


def by_pandas(to: Path) -> Found:
    frame = pd.read_parquet(to, columns=["partition", "offset", "value"])
    return sorted(zip(frame.partition.astype(int), frame.offset, frame.value, strict=True))


def strays(to: Path) -> list[str]:
    """Return what an export has no use for once it is complete."""
    names = {path.name for path in to.rglob("*") if path.is_file() and path.suffix != ".parquet"}
    return sorted(names - {"lock", "manifest.json"})


def test_killed_at_any_step_and_run_again_each_record_is_there_once(tmp_path: Path) -> None:
    """Twice killed at the same step, of a first run and of the one that completes it, with more records
    each time: what can be read holds no record twice at any time, and every one once in the end."""
    data = tmp_path / "data"
    cases = partial = 0
    with cordwood.open(data) as log:
        topic = log.topic("orders", 2)
        append(topic, 5)
        for step in range(1, 1000):
            to = tmp_path / f"out{step}"
            killed = 0
            for _ in range(2):
                disk = FaultyFiles(HastyFiles(), FaultPlan(step, kinds=CHANGES, forever=True, short=10))
                try:
                    exported(data, str(to), disk)
                    assert not disk.failures
                except (CordwoodError, OSError):
                    assert disk.failures
                    killed += 1
                seen = by_duckdb(to)
                assert len(set(seen)) == len(seen), f"killed at step {step}: a record is there twice"
                assert set(seen) <= set(stored(topic))
                partial += 0 < len(seen) < len(stored(topic))
                append(topic, 1)
            exported(data, str(to), HastyFiles())
            assert by_duckdb(to) == stored(topic), f"killed at step {step}"
            assert strays(to) == [], f"killed at step {step}"
            if step % 10 == 0 or not killed:
                assert by_pandas(to) == stored(topic), f"killed at step {step}"
            cases += 1
            if not killed:
                break
    print(
        f"export killed at {cases - 1} steps, twice each; part of the records was to be seen {partial} times"
    )
    assert cases > 40
    assert partial > 10


def test_a_power_cut_at_any_step_leaves_whole_files_and_all_that_was_reported(tmp_path: Path) -> None:
    """Files that readers see are synced before they have their names, and the manifest comes after them."""
    data = tmp_path / "data"
    disk = RecordingFiles(MemoryFiles())
    with cordwood.open(data) as log:
        topic = log.topic("orders", 2)
        append(topic, 3)
        exported(data, "/out", disk)
        disk.acknowledge(stored(topic))
        append(topic, 2)
        exported(data, "/out", disk)
        disk.acknowledge(stored(topic))
        count = CrashCount()
        for image in crash_images(disk, limit_per_prefix=5, count=count):
            where = f"power cut after {image.prefix} operations, {image.kind}"
            seen = read_all(image)
            assert len(set(seen)) == len(seen), where
            assert not image.acknowledged or set(seen) >= set(last(image)), where
            exported(data, "/out", image.files)
            assert read_all(image) == stored(topic), where
    print("\n".join(count.report()))
    assert count.images > 100


def last(image: CrashImage) -> Found:
    reported: Any = image.acknowledged[-1]
    return list(reported)


def read_all(image: CrashImage) -> Found:
    """Return the records of all files that a reader finds on a disk."""
    found: Found = []
    waiting = ["/out"] if image.files.exists("/out") else []
    while waiting:
        path = waiting.pop()
        if image.files.is_directory(path):
            names = [name for name in image.files.list(path) if not name.startswith((".", "_"))]
            waiting += [join(path, name) for name in names]
            continue
        partition = int(path.split("/partition=")[1].split("/")[0])
        table = pq.read_table(pa.BufferReader(read_file(image.files, path)))
        columns = (table.column(name).to_pylist() for name in ("offset", "value"))
        found += [(partition, offset, value) for offset, value in zip(*columns, strict=True)]
    return sorted(found)


DRIVER = """
    import os, signal, sys
    import cordwood
    from cordwood.spark.jobs import log_place, tasks
    from cordwood.spark.jobs.export import job as export
    from cordwood.disk import PosixFiles
    from support.killing import kill_session

    class Deadly(PosixFiles):
        def rename(self, source, target):
            super().rename(source, target)
            if "partition=1/" in target:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                kill_session(os.getsid(0), spare=os.getpid())
                os.kill(os.getpid(), signal.SIGKILL)

    spark = cordwood.spark.session(master="local[2]", config={"spark.ui.enabled": "false"})
    options = export.ExportOptions(log_place.LogPlace(path=sys.argv[1]), sys.argv[2])
    export.run_export(options, lambda slices, do: tasks.spread(spark, slices, do), Deadly())
"""


def test_a_driver_killed_with_all_its_tasks_is_run_again(tmp_path: Path) -> None:
    """kill -9 of driver, Java and workers, once the first file of a partition has its name."""
    data, to = tmp_path / "data", tmp_path / "out"
    with cordwood.open(data) as log:
        topic = log.topic("orders", 2)
        append(topic, 5)
        tests = Path(__file__).parents[1]
        driver = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(DRIVER), str(data), str(to)],
            env={**os.environ, "PYTHONPATH": str(tests)},
            start_new_session=True,
            capture_output=True,
            check=False,
        )
        assert driver.returncode == -signal.SIGKILL, driver.stderr.decode()[-2000:]
        seen = by_duckdb(to)
        assert 0 < len(seen) < len(stored(topic))
        append(topic, 3)
        assert exported(data, str(to), PosixFiles()).completed
        assert by_duckdb(to) == by_pandas(to) == stored(topic)
        assert strays(to) == []


@pytest.mark.parametrize("hostile", ["a/../../../precious", "..", "", "/precious", "a\0b", "n" * 300])
@pytest.mark.parametrize("where", ["slice", "partition", "manifest"])
def test_a_plan_that_leads_out_of_the_export_is_refused_by_name(
    tmp_path: Path, hostile: str, where: str
) -> None:
    """S1: what a killed run left is completed, and what it wrote is looked for and removed."""
    to, data = tmp_path / "out", tmp_path / "data"
    precious = tmp_path / "precious" / "partition=0" / "date=1970-01-01"
    precious.mkdir(parents=True)
    kept = precious / f"{0:020}-{5:020}.parquet"
    kept.write_bytes(b"as it was")
    with cordwood.open(data) as log:
        append(log.topic("orders", 2), 5)
    exported(data, str(to), HastyFiles())
    number = -1 if where == "partition" else 0
    piece = ExportSlice("orders" if where == "partition" else hostile, number, 0, 5, "id", 0, 0)
    manifest = Manifest(run=1, topics={hostile: TopicProgress("id", 0, {0: PartitionProgress(5, 0)})})
    own = next(to.glob("*/manifest.json")).parent
    if where == "manifest":
        write_metadata(HastyFiles(), str(own / "manifest.json"), manifest)
    else:
        write_metadata(HastyFiles(), str(own / "plan.json"), ExportPlan(1, 99, [piece], Manifest()))
    with pytest.raises(MetadataDamaged) as refused:
        exported(data, str(to), HastyFiles())
    assert str(own) in str(refused.value)
    assert kept.read_bytes() == b"as it was"
