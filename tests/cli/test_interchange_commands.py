"""``cordwood import`` and ``cordwood export``: one sentence where they refuse, and nothing left then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import refused, run, said

import cordwood
from cordwood.interchange.exporting import EXPORT_SYSTEMS


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with cordwood.open(tmp_path / "data") as log:
        log.topic("orders", partitions=2).append_many([(b"k%d" % i, b"v%d" % i) for i in range(10)])
    return tmp_path / "data"


@pytest.mark.parametrize("system", EXPORT_SYSTEMS)
def test_a_topic_goes_out_and_comes_back(system: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = said("export", "--data", data, "-t", "orders", "--to", system, out)
    assert f"exported 10 records of topic orders for {system}" in text
    assert ("not kept: keys: 10" in text) == (system in ("rustlog", "kimberlite", "rafka"))
    report = json.loads(
        said("import", "--data", tmp_path / "new", "--from", system, out, "-t", "orders", "--json")
    )
    assert sum(each["records"] for each in report["partitions"]) == 10
    values = said("consume", "--data", tmp_path / "new", "-t", "orders", "-e").split()
    assert sorted(values) == [f"v{i}" for i in range(10)]
    assert "sound" in said("verify", "--data", tmp_path / "new")


def test_settings_of_the_topic_are_taken(data: Path, tmp_path: Path) -> None:
    said("export", "--data", data, "-t", "orders", "--to", "frame", tmp_path / "out")
    arguments = ("--from", "frame", tmp_path / "out", "--config", "cleanup.policy=compact")
    said("import", "--data", data, *arguments, "-t", "kept")
    assert "compact" in said("topic", "describe", "--data", data, "kept")
    plain = arguments[:-2]
    other = refused("import", "--data", data, *plain, "-t", "x", "--config", "cordwood.format=rustlog")
    assert "native format, without cordwood.format, or with cordwood.format=frame" in other
    said("import", "--data", data, *arguments, "-t", "x", "--config", "cordwood.format=frame")
    said("export", "--data", data, "-t", "x", "--to", "frame", tmp_path / "back")
    assert files_below(tmp_path / "back") == files_below(tmp_path / "out")


def files_below(place: Path) -> dict[str, bytes]:
    found = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


def test_several_topics_go_to_one_log_of_rafka_and_come_back(tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data")
    shared = ("--config", "cordwood.storage=shared")
    for name in ("orders", "orders@7"):
        said("topic", "create", *data, name, *shared)
        said("produce", *data, "-t", name, stdin=f"first {name}\nsecond {name}\n")
    both = ("-t", "orders", "-t", "orders@7")
    text = said("export", *data, *both, "--to", "rafka", tmp_path / "out")
    assert "exported 2 records of topic orders for rafka" in text
    assert "exported 2 records of topic orders@7 for rafka" in text
    new = ("--data", tmp_path / "new")
    lines = said("import", *new, "--from", "rafka", tmp_path / "out", *both, *shared, "--json").splitlines()
    assert [json.loads(line)["topic"] for line in lines] == ["orders", "orders@7"]
    said("export", *new, *both, "--to", "rafka", tmp_path / "back")
    assert files_below(tmp_path / "back") == files_below(tmp_path / "out")
    arguments = ("export", *data, *both, "--to", "frame", tmp_path / "other")
    assert "a directory of frame holds one topic" in refused(*arguments)
    assert "with cordwood.storage=shared" in refused(
        "import", *new, "--from", "rafka", tmp_path / "out", "-t", "a", "-t", "b"
    )


def test_a_refusal_is_one_sentence(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    place = ("--data", data)
    assert "has no *.log files" in refused(
        "import", *place, "--from", "rustlog", tmp_path / "empty", "-t", "x"
    )
    assert "is not a directory" in refused("import", *place, "--from", "kafka", tmp_path / "none", "-t", "x")
    assert "exists already" in refused("export", *place, "-t", "orders", "--to", "kafka", tmp_path / "empty")
    assert "no topic x" in refused("export", *place, "-t", "x", "--to", "kafka", tmp_path / "out")
    said("export", *place, "-t", "orders", "--to", "frame", tmp_path / "out")
    assert "orders already" in refused("import", *place, "--from", "frame", tmp_path / "out", "-t", "orders")
    assert run("export", *place, "-t", "orders", "--to", "floppy", tmp_path / "x").exit_code == 2
    assert run("import", *place, "--from", "kafka", tmp_path / "out").exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "empty", "out"]


def test_damage_in_the_source_has_the_exit_status_of_corruption(data: Path, tmp_path: Path) -> None:
    said("export", "--data", data, "-t", "orders", "--to", "frame", tmp_path / "out")
    path = next((tmp_path / "out").rglob("*.log"))
    damaged = bytearray(path.read_bytes())
    damaged[40] ^= 1
    path.write_bytes(damaged)
    sentence = refused("import", "--data", data, "--from", "frame", tmp_path / "out", "-t", "x", code=4)
    assert str(path) in sentence
    assert "x" not in json.loads(said("topic", "list", "--data", data, "--json"))[0]["name"]


def test_a_directory_that_is_being_written_can_be_exported_but_not_imported_into(
    data: Path, tmp_path: Path
) -> None:
    with cordwood.open(data) as log:
        log.topic("orders").append(b"late", partition=0)
        said("export", "--data", data, "-t", "orders", "--to", "frame", tmp_path / "out")
        sentence = refused("import", "--data", data, "--from", "frame", tmp_path / "out", "-t", "x")
        assert "locked" in sentence
