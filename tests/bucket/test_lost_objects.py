"""An object that is gone is named, never taken for the end of the log or for no log at all. R6, K5."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bucket_faults import FaultyStore
from support.shipped import files_in, never, new_nonce

import cordwood
from cordwood.bucket import perform, read_manifest, view_bucket
from cordwood.bucket.replica import Replica
from cordwood.bucket.stores import MemoryStore
from cordwood.errors import BucketDamaged, BucketRefused
from cordwood.host import Host


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """A bucket with a log of several pieces."""
    found = MemoryStore()
    for number in range(4):
        with cordwood.open(tmp_path / "a", bucket=found) as log:
            log.topic("orders").append(b"value %d" % number)
    return found


def test_a_missing_piece_before_others_is_named(tmp_path: Path, store: MemoryStore) -> None:
    pieces = store.list("w/")
    assert len(pieces) > 4
    for key in pieces[1:-1]:
        data = store.get(key).data
        store.delete(key)
        with pytest.raises(BucketDamaged, match=key):
            view_bucket(store, Host())
        with pytest.raises(BucketDamaged, match=key):
            cordwood.open(tmp_path / "b", bucket=store)
        store.create(key, data)
    view_bucket(store, Host())


def test_a_standby_does_not_take_over_where_a_piece_is_missing(store: MemoryStore) -> None:
    """Its barrier would fill the gap, and what comes after it would be lost for good."""
    key = store.list("w/")[-2]
    store.delete(key)
    replica = Replica(store, never)
    replica.load()
    while replica.look():
        pass
    manifest = perform(store, read_manifest(), never)
    with pytest.raises(BucketDamaged, match=key):
        replica.claim(new_nonce(), None, manifest)
    assert perform(store, read_manifest(), never).manifest == manifest.manifest


def test_without_its_identity_a_log_is_not_founded_again(tmp_path: Path, store: MemoryStore) -> None:
    store.delete("cordwood.json")
    for path in ("a", "c"):
        with pytest.raises(BucketDamaged, match=r"cordwood\.json"):
            cordwood.open(tmp_path / path, bucket=store)
    with pytest.raises(BucketDamaged, match=r"cordwood\.json"):
        view_bucket(store, Host())
    with pytest.raises(BucketRefused, match="no log"):
        view_bucket(MemoryStore(), Host())


def test_a_missing_manifest_is_named(tmp_path: Path, store: MemoryStore) -> None:
    store.delete("manifest.json")
    with pytest.raises(BucketDamaged, match=r"manifest\.json"):
        view_bucket(store, Host())
    with pytest.raises(BucketDamaged, match=r"manifest\.json"):
        cordwood.open(tmp_path / "d", bucket=store)


def test_a_key_that_somebody_planted_in_the_bucket_is_not_fetched(tmp_path: Path) -> None:
    """Whoever can write to the bucket must not choose the key that this machine signs with."""
    from support.shipped import ShippedTree

    from cordwood.disk import MemoryFiles, write_all

    planted = ShippedTree(MemoryFiles(), FaultyStore(MemoryStore()))
    planted.journal._ignored = lambda path: False
    planted.files.make_directories("/data/meta/keys")
    with_key = planted.files.open("/data/meta/keys/checkpoint.key", "create")
    write_all(with_key, 0, b"mine")
    with_key.sync()
    planted.ship()
    assert files_in(planted.store).exists("meta/keys/checkpoint.key")
    with pytest.raises(BucketDamaged, match=r"checkpoint\.key"):
        cordwood.open(tmp_path / "e", bucket=planted.store)
    assert not (tmp_path / "e" / "meta" / "keys").exists()
