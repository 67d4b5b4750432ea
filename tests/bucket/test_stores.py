"""The contract of a store, held by each of them."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.seeds import seed_or

from cordwood.bucket import ObjectStore
from cordwood.bucket.stores import MemoryStore, RemoteStore
from cordwood.errors import ObjectExists, ObjectMissing, VersionChanged


@pytest.fixture(params=["memory", "remote"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    if request.param == "memory":
        return MemoryStore()
    found: RemoteStore = request.getfixturevalue("s3_store")
    return found


def test_what_is_created_is_read_back_with_its_version(store: ObjectStore) -> None:
    data = bytes(range(256)) * 300
    version = store.create("w/1", data)
    assert store.get("w/1") == (data, version)


def test_an_empty_object_is_one(store: ObjectStore) -> None:
    version = store.create("empty", b"")
    assert store.get("empty") == (b"", version)
    assert store.get_range("empty", 0, 10) == b""


def test_creating_never_replaces(store: ObjectStore) -> None:
    store.create("k", b"first")
    with pytest.raises(ObjectExists) as raised:
        store.create("k", b"second")
    assert raised.value.key == "k"
    assert store.get("k").data == b"first"


def test_replacing_applies_to_one_version(store: ObjectStore) -> None:
    first = store.create("k", b"1")
    second = store.replace("k", b"2", first)
    with pytest.raises(VersionChanged) as raised:
        store.replace("k", b"3", first)
    assert raised.value.key == "k"
    assert store.get("k") == (b"2", second)
    store.replace("k", b"3", store.get("k").version)
    assert store.get("k").data == b"3"


def test_replacing_what_is_not_there_is_refused(store: ObjectStore) -> None:
    version = store.create("k", b"1")
    store.delete("k")
    with pytest.raises(VersionChanged):
        store.replace("k", b"2", version)
    with pytest.raises(VersionChanged):
        store.replace("k", b"2", "no version")
    with pytest.raises(VersionChanged):
        store.replace("k", b"2", "{}")
    with pytest.raises(ObjectMissing):
        store.get("k")


def test_a_missing_object_is_missing_for_reads(store: ObjectStore) -> None:
    with pytest.raises(ObjectMissing) as raised:
        store.get("a/b")
    assert raised.value.key == "a/b"
    with pytest.raises(ObjectMissing):
        store.get_range("a/b", 0, 1)


def test_a_range_ends_where_the_object_does(store: ObjectStore) -> None:
    store.create("k", b"0123456789")
    assert store.get_range("k", 2, 3) == b"234"
    assert store.get_range("k", 0, 10) == b"0123456789"
    assert store.get_range("k", 8, 100) == b"89"
    assert store.get_range("k", 10, 1) == b""
    assert store.get_range("k", 1000, 1) == b""


def test_deleting_twice_is_no_error(store: ObjectStore) -> None:
    store.delete("k")
    store.create("k", b"1")
    store.delete("k")
    store.delete("k")
    with pytest.raises(ObjectMissing):
        store.get("k")
    store.create("k", b"2")
    assert store.get("k").data == b"2"


def test_a_list_has_the_keys_with_a_prefix_after_a_key_in_order(store: ObjectStore) -> None:
    for key in ("w/2", "w/10", "w/1", "wide/1", "m/1", "top"):
        store.create(key, b"x")
    assert store.list("w/") == ["w/1", "w/10", "w/2"]
    assert store.list("w/", "w/1") == ["w/10", "w/2"]
    assert store.list("w/", "w/11") == ["w/2"]
    assert store.list("w/", "w/2") == []
    assert store.list("w/1") == ["w/1", "w/10"]
    assert store.list("w") == ["w/1", "w/10", "w/2", "wide/1"]
    assert store.list("") == ["m/1", "top", "w/1", "w/10", "w/2", "wide/1"]
    assert store.list("none/") == []


def test_a_list_of_more_keys_than_a_page_is_read_to_its_end(store: ObjectStore) -> None:
    keys = [f"w/{number:020d}" for number in range(1007)]
    shuffled = keys.copy()
    random.Random(seed_or(11)).shuffle(shuffled)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: store.create(key, b""), shuffled))
    store.create("x/1", b"")
    found: list[str] = []
    while page := store.list("w/", found[-1] if found else ""):
        assert len(page) <= 1000
        found += page
    assert found == keys
    # A prefix within a name is looked for on all pages.
    assert store.list("w/00000000000000001006") == keys[1006:]


def test_one_of_many_threads_creates_and_one_replaces(store: ObjectStore) -> None:
    def create(number: int) -> int | None:
        try:
            store.create("race", b"created %d" % number)
        except ObjectExists:
            return None
        return number

    def replace(number: int) -> int | None:
        try:
            store.replace("race", b"replaced %d" % number, version)
        except VersionChanged:
            return None
        return number

    with ThreadPoolExecutor(24) as pool:
        (winner,) = [each for each in pool.map(create, range(24)) if each is not None]
        assert store.get("race").data == b"created %d" % winner
        version = store.get("race").version
        (winner,) = [each for each in pool.map(replace, range(24)) if each is not None]
    assert store.get("race").data == b"replaced %d" % winner
