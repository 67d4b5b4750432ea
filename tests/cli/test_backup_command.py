"""cordwood backup and cordwood restore: what they say, their exit statuses, and their page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import refused, run, said
from support.data_directory import flipped
from support.pages import check_page
from support.serving import serving

import cordwood

PAGE = Path(__file__).parents[2] / "docs" / "backup.md"
NOW = 1_700_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", config={"segment.bytes": "400", "index.interval.bytes": "100"})
        for number in range(20):
            topic.append(b"value %d" % number, timestamp=NOW + number)
    return tmp_path / "data"


def first_segment(data: Path) -> Path:
    return min((data / "topics/orders/0/segments").glob("*.log"))


def values(data: Path) -> list[str]:
    return said("consume", "--data", data, "-t", "orders", "-e").split("\n")[:-1]


def test_the_page_prints_what_it_says(tmp_path: Path) -> None:
    assert check_page(PAGE, tmp_path) >= 8


def test_a_backup_links_and_the_next_one_keeps(data: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    line = said("backup", saved, "--data", data)
    assert line.startswith(f"{saved}: backed up: 1 topic, 1 partition; 3 segments linked, 0 copied, 0 kept, ")
    assert first_segment(saved).samefile(first_segment(data))
    report = json.loads(said("backup", saved, "--data", data, "--json"))
    assert (report["sound"], report["linked"], report["kept"], report["copied_bytes"]) == (True, 0, 3, 0)
    assert values(saved) == [f"value {number}" for number in range(20)]
    copied = tmp_path / "copied"
    assert "0 segments linked, 3 copied" in said("backup", copied, "--data", data, "--no-link")
    assert not first_segment(copied).samefile(first_segment(data))
    assert run("verify", saved).exit_code == run("verify", copied).exit_code == 0


def test_a_backup_beside_a_live_server_needs_nothing_of_it(data: Path, tmp_path: Path) -> None:
    with serving(data):
        said("backup", tmp_path / "saved", "--data", data)
    assert len(values(tmp_path / "saved")) == 20


def test_a_backup_that_a_server_holds_is_not_written(data: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    said("backup", saved, "--data", data)
    with serving(saved) as server:
        sentence = refused("backup", saved, "--data", data)
    assert f"listening on {server.bootstrap}; stop it first, or back up to another directory" in sentence


def test_damage_in_the_source_exits_4_and_says_where(data: Path, tmp_path: Path) -> None:
    saved, segment = tmp_path / "saved", first_segment(data)
    segment.write_bytes(flipped(segment.read_bytes(), 8 * 70))
    done = run("backup", saved, "--data", data)
    assert done.exit_code == 4
    assert str(segment) in done.stdout
    assert f"{saved}: 1 DAMAGED, backed up: " in done.stdout
    (damage,) = json.loads(run("backup", saved, "--data", data, "--json").stdout)["damaged"]
    assert (damage["path"], damage["position"]) == (str(segment), 0)
    sentence = refused("restore", saved, "--data", tmp_path / "new", code=4)
    assert str(first_segment(saved)) in sentence
    assert "nothing was restored" in sentence
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "saved"]


@pytest.mark.parametrize(
    ("time", "count"),
    [
        (str(NOW + 7), 7),
        ("2023-11-14T22:13:20.007Z", 7),
        ("2023-11-14T22:13:20.007", 7),
        ("2023-11-14T23:13:20.007+01:00", 7),
        ("2023-11-14T22:13:20.006500Z", 7),
        ("2001-01-01", 0),
        ("2101-01-01", 20),
    ],
)
def test_a_restore_to_a_time_takes_it_as_people_and_programs_write_it(
    data: Path, tmp_path: Path, time: str, count: int
) -> None:
    said("backup", tmp_path / "saved", "--data", data)
    said("restore", tmp_path / "saved", "--data", tmp_path / "new", "--to-time", time)
    assert len(values(tmp_path / "new")) == count


def test_a_restore_to_an_offset_says_where_each_partition_ends(data: Path, tmp_path: Path) -> None:
    saved, new = tmp_path / "saved", tmp_path / "new"
    said("backup", saved, "--data", data)
    sentence = refused("restore", saved, "--data", new, "--to-offset", "orders:0=21")
    assert sentence == (
        "partition 0 of topic orders: offset 21 is not within 0 and 20, "
        "its first offset and its end in the backup"
    )
    assert "no partition 1 of a topic orders" in refused(
        "restore", saved, "--data", new, "--to-offset", "orders:1=0"
    )
    report = json.loads(said("restore", saved, "--data", new, "--to-offset", "orders:0=5", "--json"))
    assert report["partitions"] == [
        {"topic": "orders", "partition": 0, "log_start_offset": 0, "end_offset": 5, "cut_offsets": 15}
    ]
    assert values(new) == [f"value {number}" for number in range(5)]
    assert "exists and is not empty" in refused("restore", saved, "--data", new)


def test_what_is_no_time_offset_or_directory_is_named(data: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    for option, text in (
        ("--to-time", "yesterday"),
        ("--to-offset", "orders=5"),
        ("--to-offset", "orders:0=x"),
    ):
        sentence = refused("restore", data, "--data", new, option, text, code=2)
        assert f"{text}: expected " in sentence
    assert "there is no directory" in refused("restore", tmp_path / "gone", "--data", new)
    assert "there is no directory" in refused("backup", tmp_path / "saved", "--data", tmp_path / "gone")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is neither a backup nor a data directory" in refused("restore", empty, "--data", new)
    assert "is a data directory and no backup" in refused("backup", copy_of(data, tmp_path), "--data", data)


def copy_of(data: Path, tmp_path: Path) -> Path:
    said("restore", data, "--data", tmp_path / "copy", "--keep-id")
    return tmp_path / "copy"
