"""The job verify: the report of the local command, whatever is wrong, and its words and exit statuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.chains import HandChain
from support.commands import refused, run
from support.data_directory import (
    Partition,
    envelope,
    flipped,
    frame,
    put,
    topic_entry,
    with_crc,
    write_broker_id,
    write_catalogue,
    write_sound_directory,
)
from support.verifying import SNAPSHOT, producing_partition

import cordwood
from cordwood.disk.files import read_file
from cordwood.disk.posix import PosixFiles
from cordwood.errors import JobFailed, UnknownTopic
from cordwood.formats.registry import FORMATS
from cordwood.spark.jobs import segments
from cordwood.spark.jobs.segments import spread_segments
from cordwood.spark.jobs.verifying import VerifyOptions, verify
from cordwood.verify import VerifyReport, verify_directory

FILES = PosixFiles()
ORDERS = "topics/orders/0"


def flip(name: str, bit: int) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = str(root / name)
        put(FILES, path, flipped(read_file(FILES, path), bit))

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def gaps(root: Path) -> None:
    """Leave what compaction would: records gone from the start, the middle, and between frames."""
    frames = [frame(3, [b"a" * 100, b"b"]), frame(10, [b"c"]), frame(11, [b"d"])]
    partition = Partition("orders", "id-orders", 0, [frames], [frame(20, [b"e"])], 1)
    partition.sealed[0][-1] = frame(19, [b"d"])
    shutil.rmtree(root / ORDERS)
    partition.log_start = 5
    partition.write(FILES, str(root))


def producers(root: Path) -> None:
    producing_partition().write(FILES, str(root))
    put(FILES, str(root / ORDERS / "producers.json"), envelope({**SNAPSHOT, "next_offset": 99}))


def forged(root: Path) -> None:
    """Change a record of a partition that has a chain, and everything but its leaf with it."""
    partition = producing_partition()
    HandChain().follow([each for segment in partition.sealed for each in segment]).write(
        FILES, str(root / ORDERS)
    )
    original = partition.sealed[1][2]
    data = with_crc(original.data.replace(b"k0", b"K0"))
    partition.sealed[1][2] = replace(original, data=data)
    partition.write(FILES, str(root))


#: What is done to a sound directory with a torn tail, and what verify says then.
DAMAGE: dict[str, tuple[Callable[[Path], object], int]] = {
    "nothing": (lambda root: None, 0),
    "a flipped bit of a sealed log": (flip(f"{ORDERS}/segments/{12:020d}.log", 8 * 70), 4),
    "a flipped bit of an active log": (flip(f"{ORDERS}/segments/{30:020d}.log", 8 * 70), 4),
    "a flipped bit of an index": (flip(f"{ORDERS}/segments/{12:020d}.idx", 77), 3),
    "a flipped bit of a time index": (flip(f"{ORDERS}/segments/{30:020d}.timeidx", 77), 3),
    "a flipped bit of partition.json": (flip(f"{ORDERS}/partition.json", 200), 4),
    "flipped bits of the mark": (lambda root: (root / ORDERS / "mark").write_bytes(b"x" * 1024), 4),
    "a log that is gone": (remove(f"{ORDERS}/segments/{20:020d}.log"), 4),
    "gaps": (gaps, 0),
    "a record that is not what was appended": (forged, 4),
    "producers that the log does not bear out": (producers, 3),
    "a stranger among topics": (lambda root: (root / "topics" / "a b").write_bytes(b"x"), 0),
}


def local(path: Path | str, topic: str | None = None) -> VerifyReport:
    return verify_directory(FILES, str(path), topic)


@pytest.mark.parametrize("name", DAMAGE)
def test_report_output_and_exit_status_are_those_of_the_local_command(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    write_sound_directory(FILES, str(tmp_path))
    damage, code = DAMAGE[name]
    damage(tmp_path)
    here = run("verify", "--data", tmp_path)
    there = run("pipeline", "verify", "--data", tmp_path)
    assert (there.exit_code, there.stdout, there.stderr) == (code, here.stdout, here.stderr)
    assert here.exit_code == code
    assert verify(spark, VerifyOptions(str(tmp_path))) == local(tmp_path)


def test_every_record_format_is_checked_as_by_the_local_command(spark: SparkSession, tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        for name in FORMATS:
            log.topic(name, config={"cordwood.format": name, "segment.bytes": "100"}).append(b"value")
    assert verify(spark, VerifyOptions(str(tmp_path))).sound
    for name in FORMATS:
        flip(f"topics/{name}/0/segments/{0:020d}.log", 8 * 18)(tmp_path)
    report = verify(spark, VerifyOptions(str(tmp_path)))
    assert report == local(tmp_path)
    assert report.count("corruption") >= len(FORMATS)


def test_json_one_topic_and_relative_paths_are_those_of_the_local_command(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Findings name files as the caller named the directory, though tasks work elsewhere."""
    data = tmp_path / "data"
    write_sound_directory(FILES, str(data))
    flip(f"{ORDERS}/segments/{12:020d}.idx", 77)(data)
    flip("topics/payments/1/segments/00000000000000000000.log", 8 * 70)(data)
    monkeypatch.chdir(tmp_path)
    for arguments in (["--data", "data"], ["--data", "./data/"], ["--data", data], []):
        for more in ([], ["--json"], ["-t", "orders"]):
            here, there = run("verify", *arguments, *more), run("pipeline", "verify", *arguments, *more)
            assert (here.exit_code, here.stdout) == (there.exit_code, there.stdout), (arguments, more)
    found = json.loads(run("pipeline", "verify", "--json").stdout)["findings"]
    assert f"data/{ORDERS}/segments/{12:020d}.idx" in [each["path"] for each in found]


def test_topics_with_nothing_or_one_record_and_what_the_engine_wrote(
    spark: SparkSession, tmp_path: Path
) -> None:
    with cordwood.open(tmp_path) as log:
        log.topic("empty", partitions=3)
        log.topic("one").append(b"a record")
        many = log.topic("many", 2, {"segment.bytes": "400", "index.interval.bytes": "100"})
        for number in range(40):
            many.append(b"v" * number, key=b"%d" % number)
        many.truncate(0, 5)
        for topic in ("empty", "one", "many", None):
            # Beside the writer, whose mark may be behind.
            assert verify(spark, VerifyOptions(str(tmp_path), topic)) == local(tmp_path, topic)
    for topic in ("empty", "one", "many", None):
        report = verify(spark, VerifyOptions(str(tmp_path), topic))
        assert report == local(tmp_path, topic)
        assert report.sound


def test_an_unknown_topic_and_no_directory_are_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    write_sound_directory(FILES, str(tmp_path / "data"))
    with pytest.raises(UnknownTopic):
        verify(spark, VerifyOptions(str(tmp_path / "data"), "no-such"))
    where = ["--data", tmp_path / "data", "-t", "no-such"]
    assert refused("pipeline", "verify", *where) == refused("verify", *where)
    assert refused("pipeline", "verify", "--data", tmp_path / "missing").startswith("there is no directory ")
    assert refused("pipeline", "verify", "--data", tmp_path) == (
        f"{tmp_path} is not a data directory: it has neither meta/ nor topics/; "
        "give a data directory with --data or in CORDWOOD_DATA_DIR"
    )
    assert "--bootstrap" in refused("pipeline", "verify", "--bootstrap", "localhost:1", code=2)


def test_an_executor_that_cannot_see_the_directory_says_so(spark: SparkSession, tmp_path: Path) -> None:
    missing = str(tmp_path / "elsewhere")
    with pytest.raises(JobFailed, match=rf"^host \S+ cannot see {missing}, which the driver reads"):
        spread_segments(spark, missing, [1], lambda each: each, lambda files, each: each)


def test_unless_it_is_sound_the_jobs_after_it_do_not_run(spark: SparkSession, tmp_path: Path) -> None:
    write_sound_directory(FILES, str(tmp_path))
    both = run("pipeline", "verify", "--data", tmp_path, "verify", "-t", "payments")
    assert both.exit_code == 0
    assert both.stdout.count(": sound: ") == 2
    flip(f"{ORDERS}/segments/{12:020d}.idx", 77)(tmp_path)
    both = run("pipeline", "verify", "--data", tmp_path, "verify", "-t", "payments")
    assert both.exit_code == 3
    assert both.stdout.count(": sound: ") == 0


def test_small_segments_share_a_task_and_large_ones_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    mebi = 1 << 20
    monkeypatch.setattr(segments, "TASK_BYTES_MIN", 16 * mebi)
    sizes = [mebi, 100 * mebi, 2 * mebi, 40 * mebi, *([mebi] * 20)]
    groups = segments._grouped(sizes, lambda size: size)
    assert [[sizes[number] // mebi for number, _ in group] for group in groups] == [
        [100],
        [40],
        [2, *([1] * 14)],
        [1] * 7,
    ]
    assert sorted(number for group in groups for number, _ in group) == list(range(len(sizes)))


def test_many_small_partitions_give_one_report_in_the_order_of_the_walk(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many tasks, done in another order than the walk's: findings come as if one had read it all."""
    monkeypatch.setattr(segments, "TASK_BYTES_MIN", 300)
    root = str(tmp_path)
    write_broker_id(FILES, root)
    write_catalogue(FILES, root, [topic_entry("orders", "id-orders", 30)])
    for number in range(30):
        frames = [frame(i, [b"v" * (number * 17 % 50)]) for i in range(4)]
        partition = Partition("orders", "id-orders", number, [frames[:2]], frames[2:], 2)
        partition.write(FILES, root)
        if number % 3 == 0:
            flip(f"topics/orders/{number}/segments/{0:020d}.log", 8 * 70)(tmp_path)
    report = verify(spark, VerifyOptions(root))
    assert report == local(root)
    assert report.count("corruption") >= 10
