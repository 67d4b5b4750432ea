"""Chains and checkpoints in a backup and in what is restored from it: what was signed for stays provable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import refused, run, said

import cordwood
from cordwood.disk.posix import PosixFiles
from cordwood.errors import SignedFor
from cordwood.storage.backup.create import backup
from cordwood.storage.backup.restoring import restore
from cordwood.storage.chain.chains import kept_chain

SETTINGS = {"segment.bytes": "400", "cordwood.chain": "true"}


def append(data: Path, count: int) -> None:
    with cordwood.open(data) as log:
        topic = log.topic("orders", config=SETTINGS)
        for number in range(count):
            topic.append(b"value %d" % number)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    append(tmp_path / "data", 12)
    said("checkpoint", "create", "--data", tmp_path / "data", "--to", tmp_path / "orders.note")
    append(tmp_path / "data", 3)
    return tmp_path / "data"


def chain_files(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data / "topics/orders/0/chain").iterdir()}


def test_a_backup_has_the_chain_the_checkpoints_and_the_key_that_verifies_but_not_the_one_that_signs(
    data: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        append(data, 2)
        assert backup(data, tmp_path / "backup").sound
        assert chain_files(tmp_path / "backup") == chain_files(data)
    kept = tmp_path / "backup/meta"
    assert sorted(path.name for path in (kept / "keys").iterdir()) == ["checkpoint.pub"]
    assert [path.name for path in kept.glob("checkpoints/*/*")] == ["0-12.note"]


def test_what_takes_the_place_of_its_source_proves_what_that_did(data: Path, tmp_path: Path) -> None:
    backup(data, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new", keep_id=True)
    key, note = data / "meta/keys/checkpoint.pub", tmp_path / "orders.note"
    shown = said("checkpoint", "verify", note, "--key", key, "--data", tmp_path / "new")
    assert "12 of 16 leaves" in shown
    with kept_chain(PosixFiles(), str(tmp_path / "new/topics/orders/0")) as chain:
        assert chain is not None
        (said_so,) = chain.statements()
        assert (said_so.kind, said_so.start, said_so.end) == ("truncated", 15, 15)
    proof = tmp_path / "proof.json"
    said("prove", "-t", "orders", 3, "--to", proof, "--data", tmp_path / "new")
    assert json.loads(said("verify-proof", proof, "--key", key, "--json"))["offset"] == 3
    sentence = refused("checkpoint", "create", "--data", tmp_path / "new", code=4)
    assert "checkpoint.key: is missing" in sentence
    (tmp_path / "new/meta/keys/checkpoint.key").write_bytes((data / "meta/keys/checkpoint.key").read_bytes())
    said("checkpoint", "create", "--data", tmp_path / "new")


def test_one_of_its_own_goes_on_with_the_leaves_and_signs_with_a_key_of_its_own(
    data: Path, tmp_path: Path
) -> None:
    backup(data, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new")
    assert not (tmp_path / "new/meta/keys").exists()
    said("checkpoint", "create", "--data", tmp_path / "new")
    assert chain_files(tmp_path / "new")["leaves"].startswith(chain_files(data)["leaves"])
    said("prove", "-t", "orders", 3, "--data", tmp_path / "new")


def test_what_a_checkpoint_signs_for_is_left_out_only_by_force(data: Path, tmp_path: Path) -> None:
    backup(data, tmp_path / "backup")
    with pytest.raises(SignedFor, match="up to offset 12; truncating it at 11"):
        restore(tmp_path / "backup", tmp_path / "new", to_offsets={("orders", 0): 11})
    assert not (tmp_path / "new").exists()
    arguments = ("restore", tmp_path / "backup", "--data", tmp_path / "new", "--to-offset", "orders:0=11")
    assert "contradicts that and must be forced" in refused(*arguments)
    restore(tmp_path / "backup", tmp_path / "just", to_offsets={("orders", 0): 12})
    said(*arguments, "--force")
    with cordwood.open(tmp_path / "new", read_only=True) as log:
        assert log.topic("orders").high_watermark(0) == 11
    with pytest.raises(SignedFor):
        restore(tmp_path / "backup", tmp_path / "timed", to_time=0)


def test_what_compaction_dropped_stays_checkable_in_a_backup_and_in_what_is_restored(tmp_path: Path) -> None:
    data, note = tmp_path / "data", tmp_path / "before.note"
    config = {**SETTINGS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    with cordwood.open(data) as log:
        topic = log.topic("orders", config=config)
        for number in range(12):
            topic.append_many([(b"same", b"%d" % number), (b"only %d" % number, b"kept")], partition=0)
    said("checkpoint", "create", "--data", data, "--to", note)
    with cordwood.open(data) as log:
        log.topic("orders").roll()
        assert log.maintain(force=True).records_removed == 11
    assert backup(data, tmp_path / "backup").sound
    restore(tmp_path / "backup", tmp_path / "new", keep_id=True)
    key = data / "meta/keys/checkpoint.pub"
    for place in (tmp_path / "backup", tmp_path / "new"):
        lists = sorted(path.name for path in (place / "topics/orders/0/chain/lists").iterdir())
        assert lists == sorted(path.name for path in (data / "topics/orders/0/chain/lists").iterdir())
        assert "sound" in said("verify", "--checkpoint", note, "--key", key, "--data", place)
    proof, new = tmp_path / "proof", tmp_path / "new"
    said("prove", "-t", "orders", 1, "--checkpoint", note, "--to", proof, "--data", new)
    assert json.loads(said("verify-proof", tmp_path / "proof", "--key", key, "--json"))["offset"] == 1
    for path in (tmp_path / "new/topics/orders/0/chain/lists").iterdir():
        path.unlink()
    assert run("verify", "--checkpoint", note, "--key", key, "--data", new).exit_code == 4
