"""The job reindex: the files and the report of the local command, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.commands import refused, run
from support.data_directory import flipped
from support.serving import serving

import cordwood
from cordwood.disk.posix import PosixFiles
from cordwood.errors import UnknownTopic
from cordwood.spark.jobs.reindexing import ReindexOptions, reindex
from cordwood.verify import verify_directory

SMALL = {"segment.bytes": "700", "index.interval.bytes": "100"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of two topics with records, one of them with a single one, and an empty one."""
    with cordwood.open(tmp_path / "data") as log:
        orders = log.topic("orders", 2, SMALL)
        for number in range(60):
            orders.append(b"v" * (number % 40), key=b"%d" % number)
        log.topic("one").append(b"a record")
        log.topic("empty")
    return tmp_path / "data"


def segments(data: Path) -> dict[str, bytes]:
    """Return every file below topics/, by its path there."""
    return {str(path.relative_to(data)): path.read_bytes() for path in data.glob("topics/**/*.*")}


def indexes(data: Path) -> list[Path]:
    return sorted(data.glob("topics/*/*/segments/*idx"))


def flip(path: Path, bit: int) -> None:
    path.write_bytes(flipped(path.read_bytes(), bit))


def delete_all(data: Path) -> None:
    for path in indexes(data):
        path.unlink()


def flip_all(data: Path) -> None:
    for path in indexes(data):
        if path.stat().st_size:
            flip(path, 77)


def cut_some(data: Path) -> None:
    for path in indexes(data)[::2]:
        path.write_bytes(path.read_bytes()[:-3])


def corrupt(data: Path) -> None:
    delete_all(data)
    flip(sorted(data.glob("topics/orders/*/segments/*.log"))[0], 8 * 70)


def lost_state(data: Path) -> None:
    delete_all(data)
    (data / "topics/orders/1/partition.json").write_bytes(b"rubbish")


#: What is done to the directory, and the exit status of putting it right.
DAMAGE: list[tuple[Callable[[Path], None], int]] = [
    (lambda data: None, 0),
    (delete_all, 0),
    (flip_all, 0),
    (cut_some, 0),
    (corrupt, 4),
    (lost_state, 4),
]


@pytest.mark.parametrize(("damage", "code"), DAMAGE, ids=["nothing", *(d.__name__ for d, _ in DAMAGE[1:])])
def test_files_report_and_output_are_those_of_the_local_command(
    damage: Callable[[Path], None], code: int, spark: SparkSession, data: Path
) -> None:
    sound = segments(data)
    damage(data)
    # In the same place one after the other, because reports name whole paths.
    kept = data.with_name("kept")
    shutil.copytree(data, kept)
    found = {}
    for command in (["reindex"], ["pipeline", "reindex"]):
        shutil.rmtree(data)
        shutil.copytree(kept, data)
        done = run(*command, "--data", data)
        assert done.stderr == ""
        found[command[0]] = (done.exit_code, done.stdout, segments(data))
        assert not list((data / "tmp").glob("*"))
        again = run(*command, "--data", data, "--json")
        assert '"rebuilt":[]' in again.stdout
    assert found["reindex"] == found["pipeline"]
    assert found["pipeline"][0] == code
    if code == 0:
        assert found["pipeline"][2] == sound
        assert verify_directory(PosixFiles(), str(data)).sound


def test_the_report_counts_and_names_what_was_rebuilt(spark: SparkSession, data: Path) -> None:
    lost, wrong = indexes(data)[0], indexes(data)[-1]
    lost.unlink()
    flip(wrong, 5)
    report = reindex(spark, ReindexOptions(str(data)))
    assert [(each.path, each.reason) for each in report.rebuilt] == [
        (str(lost), "missing"),
        (str(wrong), "wrong"),
    ]
    logs = list(data.glob("topics/*/*/segments/*.log"))
    assert (report.topics, report.partitions, report.segments) == (3, 3, len(logs))
    assert report.bytes == sum(path.stat().st_size for path in logs)
    assert report.damaged == ()
    only = reindex(spark, ReindexOptions(str(data), "one"))
    assert (only.topics, only.segments, only.rebuilt) == (1, 1, ())


def test_an_unknown_topic_no_directory_and_a_live_server_are_one_sentence(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnknownTopic):
        reindex(spark, ReindexOptions(str(data), "no-such"))
    assert refused("pipeline", "reindex", "--data", data, "-t", "no-such") == (
        "there is no topic no-such; cordwood topic list shows the existing topics"
    )
    assert refused("pipeline", "reindex", "--data", tmp_path / "x").startswith("there is no directory ")
    (tmp_path / "empty").mkdir()
    assert "is not a data directory; give" in refused("pipeline", "reindex", "--data", tmp_path / "empty")
    with serving(data) as server:
        sentence = refused("pipeline", "reindex", "--data", data)
        assert sentence == refused("reindex", "--data", data)
        assert f"listening on {server.bootstrap}" in sentence
        assert sentence.endswith("; stop it first: indexes are not rebuilt beside a server")


def test_a_damaged_log_ends_the_line(spark: SparkSession, data: Path) -> None:
    delete_all(data)
    done = run("pipeline", "reindex", "--data", data, "verify")
    assert done.exit_code == 0, done.output
    assert ": sound: " in done.stdout
    corrupt(data)
    done = run("pipeline", "reindex", "--data", data, "verify")
    assert done.exit_code == 4
    assert "sound" not in done.stdout
    assert "1 DAMAGED" in done.stdout
