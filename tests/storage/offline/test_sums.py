"""``reindex --sums``: a lost ``.sum`` of a rustlog topic is made again where the bytes are whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support.commands import run

import cordwood

WHOLE = [b"%d" % number for number in range(12)]


def made(data: Path, name: str = "rustlog", *, chain: bool = True) -> Path:
    """Two sealed segments and an active one, of four records each; return the directory of the segments."""
    config = {"cordwood.format": name, "cordwood.chain": str(chain).lower()}
    with cordwood.open(data) as log:
        topic = log.topic("t", config=config)
        for number, value in enumerate(WHOLE):
            if number in (4, 8):
                log.data_directory.partitions.own("t", 0).roll()
            topic.append(value)
    return data / "topics" / "t" / "0" / "segments"


def values(data: Path) -> list[bytes | None]:
    with cordwood.open(data) as log:
        return [record.value for record in log.topic("t").read()]


@pytest.mark.parametrize("base", [0, 4, 8])
def test_a_lost_sum_is_made_again_byte_for_byte_and_the_command_says_what_cannot_be_known(
    base: int, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    path = made(data) / f"{base:020d}.sum"
    before = path.read_bytes()
    path.unlink()
    result = run("reindex", "--data", data, "--sums")
    assert result.exit_code == 0, result.output
    assert path.read_bytes() == before
    assert "It cannot be known whether a record was changed or a tail was torn before" in result.stdout
    assert values(data) == WHOLE
    assert run("verify", "--data", data).exit_code == 0


def test_without_the_flag_nothing_is_made_and_the_command_names_it(tmp_path: Path) -> None:
    path = made(tmp_path / "data") / f"{0:020d}.sum"
    path.unlink()
    result = run("reindex", "--data", tmp_path / "data")
    assert result.exit_code == 4
    assert "cordwood reindex --sums makes lost .sum files again" in result.stdout
    assert not path.exists()


@pytest.mark.parametrize("chain", [False, True])
def test_the_sum_of_an_active_segment_that_was_opened_without_it_is_made_again(
    tmp_path: Path, chain: bool
) -> None:
    """Recovery had sealed the segment as lost and went on after it; all records and their times come back."""
    data = tmp_path / "data"
    path = made(data, chain=chain) / f"{8:020d}.sum"
    path.unlink()
    with cordwood.open(data) as log:
        log.topic("t").append(b"after")
    result = run("reindex", "--data", data, "--sums")
    assert result.exit_code == 0, result.output
    assert values(data) == [*WHOLE, b"after"]
    assert run("verify", "--data", data).exit_code == 0
    with cordwood.open(data) as log:
        assert log.topic("t").offset_at(1 << 50) is None
    again = run("reindex", "--data", data, "--sums", "--json")
    assert json.loads(again.stdout)["sums"] == []


def test_a_record_past_the_mark_gets_no_checksum(tmp_path: Path) -> None:
    """The mark bounds what was synced: bytes after it were never acknowledged, the next open cuts them."""
    data = tmp_path / "data"
    segments = made(data)
    log, path = segments / f"{8:020d}.log", segments / f"{8:020d}.sum"
    record = (3).to_bytes(4, "big") + (12).to_bytes(8, "big") + (1).to_bytes(8, "big") + b"new"
    log.write_bytes(log.read_bytes() + record)
    (data / "meta" / "clean").unlink()
    path.unlink()
    assert run("reindex", "--data", data, "--sums").exit_code == 0
    assert len(path.read_bytes()) == 4 * 16
    assert values(data) == WHOLE


def test_bytes_that_are_not_whole_get_no_checksums(tmp_path: Path) -> None:
    segments = made(tmp_path / "data")
    log, path = segments / f"{0:020d}.log", segments / f"{0:020d}.sum"
    path.unlink()
    log.write_bytes(b"\xff" + log.read_bytes()[1:])
    result = run("reindex", "--data", tmp_path / "data", "--sums")
    assert result.exit_code == 4
    assert not path.exists()


def test_a_changed_segment_whose_hash_is_known_gets_no_checksums_and_an_unchanged_one_is_proven(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    segments = made(data, chain=False)
    with cordwood.open(data) as log:
        log.maintain()
    log_path, path = segments / f"{0:020d}.log", segments / f"{0:020d}.sum"
    path.unlink()
    content = log_path.read_bytes()
    log_path.write_bytes(content[:-1] + b"X")
    result = run("reindex", "--data", data, "--sums")
    assert result.exit_code == 4
    assert hashlib.sha256(content).hexdigest() in result.output.replace("\n", "")
    assert not path.exists()
    log_path.write_bytes(content)
    result = run("reindex", "--data", data, "--sums", "--json")
    assert [each["proven"] for each in json.loads(result.stdout)["sums"]] == [True]


def test_a_sum_that_was_cut_is_completed_unless_what_is_left_of_it_contradicts_the_log(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    path = made(data, chain=False) / f"{0:020d}.sum"
    before = path.read_bytes()
    path.write_bytes(before[:20])
    assert run("reindex", "--data", data, "--sums").exit_code == 0
    assert path.read_bytes() == before
    path.write_bytes(before[:15] + bytes([before[15] ^ 1]))
    result = run("reindex", "--data", data, "--sums")
    assert result.exit_code == 4
    assert "contradict" in result.output
    assert len(path.read_bytes()) == 16


def test_the_dense_index_of_laminarmq_cannot_be_made_again_and_the_command_says_why(tmp_path: Path) -> None:
    path = made(tmp_path / "data", "laminarmq") / f"{0:020d}.index"
    path.unlink()
    result = run("reindex", "--data", tmp_path / "data", "--sums")
    assert result.exit_code == 4
    assert "does not say where its records begin and end" in " ".join(result.output.split())
    assert not path.exists()
