"""Data directories of earlier versions: opened, verified, proven, appended to and restored today.

The archives under ``tests/corpus`` are the promise that tomorrow's version opens today's data.
`corpus.make` says what is in each.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from corpus.make import CASES, records_of
from support.commands import run, said

import cordwood

CORPUS = Path(__file__).parent / "corpus"
VERSIONS = sorted(path.name for path in CORPUS.iterdir() if any(path.glob("*.tar.xz")))
ARCHIVES = [f"{version}/{case}" for version in VERSIONS for case in CASES]
#: Closed by their writer: opening and closing them again has nothing to do.
CLEAN = [name for name in ARCHIVES if name.split("/")[1] in {"formats", "compacted", "shared"}]
#: Killed: opening them finishes what was promised and cuts what was torn.
KILLED = [name for name in ARCHIVES if name.split("/")[1] in {"sink", "unclean"}]
BACKUPS = [name for name in ARCHIVES if name.endswith("/backup")]
#: Rewritten by every writer: who holds the directory, and the slots that say how much is synced.
OF_THE_WRITER = {"lock", "mark", "catalogue.mark"}


def unpacked(name: str, place: Path) -> Path:
    with tarfile.open(CORPUS / f"{name}.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place


def expected(place: Path) -> Any:
    return json.loads((place / "expected.json").read_text())


def bytes_of(directory: Path, *, but: set[str] = OF_THE_WRITER) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in but
    }


def found_in(data: Path, *, read_only: bool = False) -> Any:
    with cordwood.open(data, read_only=read_only) as log:
        return records_of(log)


def test_every_case_of_every_version_is_kept() -> None:
    assert VERSIONS, "the corpus is empty"
    assert all((CORPUS / f"{name}.tar.xz").is_file() for name in ARCHIVES)
    assert sorted(CLEAN + KILLED + BACKUPS) == sorted(ARCHIVES)


@pytest.mark.parametrize("name", CLEAN)
def test_a_directory_of_an_earlier_version_is_read_and_keeps_every_byte(name: str, tmp_path: Path) -> None:
    data = unpacked(name, tmp_path) / "data"
    before, whole = bytes_of(data), bytes_of(data, but=set())
    assert found_in(data, read_only=True) == expected(tmp_path)
    assert bytes_of(data, but=set()) == whole
    assert found_in(data) == expected(tmp_path)
    assert bytes_of(data) == before


@pytest.mark.parametrize("name", CLEAN)
def test_what_an_earlier_version_signed_and_proved_holds_and_is_proven_again_alike(
    name: str, tmp_path: Path
) -> None:
    data = unpacked(name, tmp_path) / "data"
    assert run("verify", "--data", data).exit_code == 0
    key = data / "meta/keys/checkpoint.pub"
    notes, proofs = sorted((tmp_path / "checkpoints").iterdir()), sorted(tmp_path.glob("*.proof.json"))
    assert notes
    assert proofs
    for note in notes:
        said("checkpoint", "verify", note, "--key", key, "--data", data)
    for proof in proofs:
        said("verify-proof", proof, "--key", key)
        kept = json.loads(proof.read_text())
        topic, partition = proof.name.split(".")[0], "1" if name.endswith("shared") else "0"
        again = said("prove", "-t", topic, "-p", partition, str(kept["offset"]), "--data", data)
        assert json.loads(again) == kept


@pytest.mark.parametrize("name", CLEAN + KILLED)
def test_a_directory_of_an_earlier_version_takes_appends_behind_what_it_had(
    name: str, tmp_path: Path
) -> None:
    data = unpacked(name, tmp_path) / "data"
    wanted = expected(tmp_path)
    assert found_in(data) == wanted
    with cordwood.open(data) as log:
        for place, partition in wanted.items():
            topic, number = place.rsplit("/", 1)
            if topic.startswith("__"):
                continue
            key = b"key 1" if name.endswith("compacted") else None
            placed = log.topic(topic).append(b"today", key=key, partition=int(number))
            assert placed.offset == partition["end"]
    after = found_in(data, read_only=True)
    for place, partition in wanted.items():
        assert after[place]["records"][: len(partition["records"])] == partition["records"]
    assert run("verify", "--data", data).exit_code == 0


def test_segments_of_an_earlier_version_keep_their_time_index_and_later_ones_have_a_sparse_one(
    tmp_path: Path,
) -> None:
    """Old and new segments stand side by side; each index that is deleted comes back as it was."""
    data = unpacked("0.1.0/formats", tmp_path) / "data"
    with cordwood.open(data) as log:
        for name in log.topics:
            topic = log.topic(name)
            for number in range(30):
                topic.append_many([(None, b"%d" % number)] * 3, partition=0)
                if number in (10, 20):
                    log.data_directory.partitions.own(name, 0).roll()
    indexes = sorted(data.rglob("*.timeidx"))
    before = {path: path.read_bytes() for path in indexes}
    states = [json.loads(path.read_text())["body"] for path in data.rglob("partition.json")]
    kept = [{each.get("time_index_sparse", False) for each in state["sealed"]} for state in states]
    assert {False, True} in kept
    assert run("verify", "--data", data).exit_code == 0
    for path in indexes:
        path.unlink()
    assert run("reindex", "--data", data).exit_code == 0
    assert {path: path.read_bytes() for path in sorted(data.rglob("*.timeidx"))} == before


@pytest.mark.parametrize("name", KILLED)
def test_what_a_killed_writer_promised_is_there_and_opening_again_changes_nothing(
    name: str, tmp_path: Path
) -> None:
    data = unpacked(name, tmp_path) / "data"
    assert found_in(data) == expected(tmp_path)
    recovered = bytes_of(data)
    assert found_in(data) == expected(tmp_path)
    assert bytes_of(data) == recovered


@pytest.mark.parametrize("name", BACKUPS)
def test_a_backup_of_an_earlier_version_verifies_and_is_restored(name: str, tmp_path: Path) -> None:
    backup = unpacked(name, tmp_path) / "backup"
    assert run("verify", "--data", backup).exit_code == 0
    cordwood.restore(backup, tmp_path / "restored")
    assert found_in(tmp_path / "restored") == expected(tmp_path)
