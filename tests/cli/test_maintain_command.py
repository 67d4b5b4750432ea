"""``cordwood maintain``: what it does, what it says, and whom it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import refused, run, said

import cordwood
from cordwood import Broker

COMPACT = {"cleanup.policy": "compact", "segment.bytes": "100", "min.cleanable.dirty.ratio": "0.9"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with cordwood.open(path) as log:
        compacted = log.topic("compacted", config=COMPACT)
        for number in range(6):
            compacted.append(b"value %d" % number, key=b"k")
        expiring = log.topic("expiring", config={"retention.bytes": "0", "segment.bytes": "100"})
        for _ in range(3):
            expiring.append(b"x")
    return path


def image(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_dry_run_says_what_would_go_and_changes_no_byte(data: Path) -> None:
    before = image(data)
    plans = json.loads(said("maintain", "--dry-run", "--json", "--data", data))
    assert [(p["topic"], len(p["expired"]), p["compaction"]) for p in plans] == [
        ("compacted", 0, "100% of it was never compacted"),
        ("expiring", 2, None),
    ]
    table = said("maintain", "--dry-run", "--data", data)
    assert "expiring           0  delete         1" in table
    assert "retention.bytes is 0" in table
    assert image(data) == before


def test_a_pass_does_what_the_dry_run_said_and_then_nothing_is_left(data: Path) -> None:
    shown = said("maintain", "--data", data)
    assert "deleted 2 segments, 2 offsets" in shown
    assert "compacted partition 0 of topic compacted: 4 records dropped" in shown
    assert f"{data}: 6 records removed" in shown
    assert said("maintain", "--dry-run", "--data", data) == f"{data}: nothing to do\n"
    with cordwood.open(data) as log:
        assert [record.value for record in log.topic("compacted").read(0)] == [b"value 4", b"value 5"]


def test_force_compacts_however_little_there_is(data: Path) -> None:
    said("maintain", "--data", data)
    with cordwood.open(data) as log:
        log.topic("compacted").append(b"newest", key=b"k")
        log.topic("compacted").roll()
    assert json.loads(said("maintain", "--json", "--data", data))["compacted"] == []
    (done,) = json.loads(said("maintain", "--force", "--json", "--data", data))["compacted"]
    assert done["reason"] == "asked for"


def test_a_directory_that_a_server_has_is_left_to_it(data: Path) -> None:
    with Broker(data):
        assert refused("maintain", "--data", data).endswith("; it runs maintenance by itself")
        assert "expiring" in said("maintain", "--dry-run", "--data", data)


def test_damage_is_named_and_the_other_topics_are_kept_up(data: Path) -> None:
    segment = sorted(data.glob("topics/compacted/0/segments/*.log"))[0]
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    result = run("maintain", "--data", data)
    assert result.exit_code == 3
    assert f"partition 0 of topic compacted is not compacted: {segment} at byte 0" in result.output
    assert "deleted 2 segments" in result.output


def test_no_such_directory_is_one_sentence(tmp_path: Path) -> None:
    assert refused("maintain", "--data", tmp_path / "none").startswith(
        f"there is no directory {tmp_path}/none"
    )
