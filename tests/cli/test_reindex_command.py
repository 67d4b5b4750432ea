"""cordwood reindex: what it says, its exit statuses, and that it has the directory to itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import refused, run, said
from support.data_directory import flipped
from support.serving import serving

import cordwood
from cordwood.cli.backends import place


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", config={"segment.bytes": "400", "index.interval.bytes": "100"})
        for number in range(20):
            topic.append(b"value %d" % number)
    return tmp_path / "data"


def segment(data: Path, suffix: str, number: int = 0) -> Path:
    return sorted((data / "topics/orders/0/segments").glob(f"*.{suffix}"))[number]


def test_sound_indexes_need_no_rebuilding(data: Path) -> None:
    line = said("reindex", "--data", data)
    assert line.startswith(f"{data}: nothing to rebuild: 1 topic, 1 partition, ")
    assert json.loads(said("reindex", "--data", data, "--json"))["rebuilt"] == []


@pytest.mark.parametrize("number", [0, -1], ids=["sealed", "active"])
def test_what_was_missing_or_wrong_is_named_and_is_as_it_was(data: Path, number: int) -> None:
    """Also where opening the directory repairs it: the report is about what was found there."""
    lost, wrong = segment(data, "idx", number), segment(data, "timeidx", number)
    before = lost.read_bytes(), wrong.read_bytes()
    lost.unlink()
    wrong.write_bytes(b"rubbish")
    assert run("verify", data).exit_code == 3
    lines = said("reindex", "--data", data).splitlines()
    assert [line.split() for line in lines[:-1]] == [
        ["rebuilt", "was"],
        [str(lost), "missing"],
        [str(wrong), "wrong"],
    ]
    assert lines[-1].startswith(f"{data}: 2 index files rebuilt: ")
    assert (lost.read_bytes(), wrong.read_bytes()) == before
    assert run("verify", data).exit_code == 0


def test_a_damaged_log_exits_4_and_its_indexes_are_left_alone(data: Path) -> None:
    log, index = segment(data, "log"), segment(data, "idx")
    log.write_bytes(flipped(log.read_bytes(), 8 * 70))
    index.write_bytes(b"rubbish")
    done = run("reindex", "--data", data)
    assert done.exit_code == 4
    assert str(log) in done.stdout
    assert ": 1 DAMAGED, nothing to rebuild: " in done.stdout
    assert done.stdout.endswith("; cordwood verify reports all damage\n")
    assert index.read_bytes() == b"rubbish"
    (damage,) = json.loads(run("reindex", "--data", data, "--json").stdout)["damaged"]
    assert (damage["path"], damage["position"]) == (str(log), 0)


def test_a_live_server_keeps_its_directory(data: Path) -> None:
    segment(data, "idx").unlink()
    with serving(data) as server:
        sentence = refused("reindex", "--data", data)
    assert f"listening on {server.bootstrap}; stop it first: indexes are not rebuilt" in sentence
    assert said("reindex", "--data", data).startswith("rebuilt")


def test_another_writer_is_waited_for_and_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "LOCKED_SECONDS", 0.05)
    with cordwood.open(data):
        assert refused("reindex", "--data", data).endswith("; wait until it ends, or stop it")


def test_no_directory_another_directory_and_an_unknown_topic(data: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert refused("reindex", "--data", missing).startswith(f"there is no directory {missing}; give")
    assert not missing.exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refused("reindex", "--data", empty).startswith(f"{empty} is not a data directory; give")
    assert not list(empty.iterdir())
    assert refused("reindex", "--data", data, "-t", "no-such") == (
        "there is no topic no-such; cordwood topic list shows the existing topics"
    )
