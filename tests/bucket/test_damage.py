"""Damage in a bucket is found and named, and no path in it leads out of the directory."""

from __future__ import annotations

import pytest
from support.machines import Machine
from support.shipped import never, new_nonce
from support.sweeps import bits_of

from cordwood.bucket import BucketFiles, ObjectReader, Reading, perform, read_identity, read_manifest
from cordwood.bucket.loading import apply_piece, load_pages
from cordwood.bucket.ownership import add_piece, confirm, take_over
from cordwood.bucket.state import Tree
from cordwood.bucket.state.body import BodyTable, FilePatch, ObjectRef, StoredStretch, encode_body
from cordwood.bucket.state.pages import Page, PagedFile, encode_page, read_page
from cordwood.bucket.stores import MemoryStore
from cordwood.disk import read_file
from cordwood.errors import BucketDamaged


def contents(store: MemoryStore) -> dict[str, bytes]:
    """Return every file of the log in *store*, with its identity."""
    identity = perform(store, read_identity(), never)
    assert identity is not None
    manifest = perform(store, read_manifest(), never).manifest
    tree = load_pages(store, manifest, never)
    reading = Reading.from_floor(manifest)
    while pieces := perform(store, reading.poll(), never)[0]:
        for piece in pieces:
            apply_piece(tree, piece)
    files = BucketFiles(tree, ObjectReader(store, never))
    found = {path: read_file(files, path) for path, _ in tree.files()}
    return {**found, "identity": f"{identity} {manifest} {sorted(tree.directories())}".encode()}


def read_or_refused(store: MemoryStore) -> tuple[dict[str, bytes], BucketDamaged | None]:
    """Return what is read, or why nothing is."""
    try:
        return contents(store), None
    except BucketDamaged as error:
        return {}, error


def small_bucket() -> MemoryStore:
    """Return a bucket with a page, a bundle and two pieces."""
    store = MemoryStore()
    machine = Machine(store)
    machine.start().topics.create("t", "0" * 31 + "1", 1, {})
    machine.append(b"a" * 600)
    machine.ship()
    machine.condense()
    machine.append(b"b" * 20)
    machine.ship()
    machine.append(b"c" * 20)
    machine.ship()
    return store


def test_every_flipped_bit_of_a_bucket_is_found_and_named() -> None:
    """What is read is what was shipped, or the object that is damaged is named, and the place in it."""
    store = small_bucket()
    expected, flips, placed = contents(store), 0, 0
    assert {key[:2] for key in store.list("")} >= {"b/", "m/", "w/"}
    for key in store.list(""):
        stored = store.get(key)
        for bit in bits_of(stored.data, 61):
            data = bytearray(stored.data)
            data[bit >> 3] ^= 1 << (bit & 7)
            store._objects[key] = stored._replace(data=bytes(data))
            flips += 1
            found, damaged = read_or_refused(store)
            if damaged is None:
                assert found == expected, f"bit {bit} of {key} was not found"
                continue
            assert key in str(damaged), f"bit {bit} of {key}: {damaged}"
            placed += damaged.position is not None
        store._objects[key] = stored
    assert contents(store) == expected
    print(f"{flips} flipped bits, {placed} with their place")
    assert flips >= 500
    assert placed >= flips // 3


@pytest.mark.parametrize("size", [0, 1, 50])
def test_an_object_that_was_cut_off_is_found(size: int) -> None:
    store = small_bucket()
    expected = contents(store)
    for key in store.list(""):
        stored = store.get(key)
        store._objects[key] = stored._replace(data=stored.data[:size])
        found, damaged = read_or_refused(store)
        assert found == expected if damaged is None else key in str(damaged)
        store._objects[key] = stored


OUTSIDE = ["", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "a//b", "./a", "a/.", "a/", "a\0b", "/"]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("place", ["file", "removed", "directory"])
def test_a_piece_with_a_path_that_leads_out_is_refused(place: str, path: str) -> None:
    """Its checksums are right: whoever may write to the bucket made it."""
    table = BodyTable(
        1,
        removed=(path,) if place == "removed" else (),
        directories=(path,) if place == "directory" else (),
        files=(FilePatch(path, True, -1, (), 0),) if place == "file" else (),
    )
    with pytest.raises(BucketDamaged, match="path"):
        contents(forged(table, []))


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("place", ["file", "directory"])
def test_a_page_with_a_path_that_leads_out_is_refused(place: str, path: str) -> None:
    directories = (path,) if place == "directory" else ()
    files = (PagedFile(path, 0, ()),) if place == "file" else ()
    with pytest.raises(BucketDamaged, match="path"):
        read_page(Tree(), "m/1", encode_page(Page(1, (), directories, files)))


@pytest.mark.parametrize(
    "stretch",
    [
        StoredStretch(0, 5, 0, 0, 0),
        StoredStretch(0, 4, 0, 1, 0),
        StoredStretch(0, 4, 0, -1, 0),
        StoredStretch(0, 4, 1, 0, 0),
        StoredStretch(-1, 4, 0, 0, 0),
        StoredStretch(3, 4, 0, 0, 0),
        StoredStretch(0, 0, 0, 0, 0),
    ],
)
def test_a_piece_with_bytes_that_are_not_there_is_refused(stretch: StoredStretch) -> None:
    table = BodyTable(1, files=(FilePatch("f", True, -1, (stretch,), 4),))
    with pytest.raises(BucketDamaged):
        contents(forged(table, [b"four"]))


def forged(table: BodyTable, content: list[bytes]) -> MemoryStore:
    """Return a bucket whose newest piece has *table*, made by an owner."""
    store = small_bucket()
    owner = perform(store, take_over(new_nonce()), never)
    perform(store, add_piece(owner, encode_body(table, content)), never)
    perform(store, confirm(owner), never)
    return store


def test_bytes_that_an_object_lacks_are_found_when_they_are_read() -> None:
    """The checksum of the stretch is compared, and not only that of the object."""
    store = MemoryStore()
    store.create("b/1", b"0123456789")
    stretch = StoredStretch(0, 4, 1, 2, 0xDEADBEEF)
    tree = Tree()
    table = BodyTable(
        1, objects=(ObjectRef("b/1", 10, ""),), files=(FilePatch("f", True, -1, (stretch,), 4),)
    )
    tree.apply(table, "w/1", 0)
    with pytest.raises(BucketDamaged, match="b/1 at byte 2: checksum"):
        read_file(BucketFiles(tree, ObjectReader(store, never)), "f")
