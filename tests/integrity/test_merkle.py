"""The Merkle tree of RFC 6962: known values, a naive twin, and every way a path can be wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import sha256

import pytest

from cordwood.integrity.chain import EMPTY_HEAD, chained
from cordwood.integrity.merkle import (
    EMPTY_ROOT,
    Frontier,
    HashAt,
    consistency_path,
    inclusion_path,
    leaf_hash,
    node_count,
    node_hash,
    node_number,
    root,
    verify_consistency,
    verify_inclusion,
)

# What every implementation of Certificate Transparency is tested with.
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = {
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
CONSISTENCY = {
    (1, 1): [],
    (1, 8): INCLUSION[0, 8],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): INCLUSION[1, 5][1:],
    (6, 7): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "b08693ec2e721597130641e8211e7eedccb4c26413963eee6c1e2ed16ffb1a5f",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
}
SIZES = range(131)
BITS = 256


class Kept:
    """A tree as a store would keep it, leaves and nodes in two files, and how often it was asked."""

    def __init__(self) -> None:
        self.leaves: list[bytes] = []
        self.nodes: list[bytes] = []
        self.reads = 0

    def hash_at(self, level: int, index: int) -> bytes:
        self.reads += 1
        return self.nodes[node_number(level, index)] if level else self.leaves[index]

    def append(self, *leaves: bytes) -> None:
        frontier = Frontier(len(self.leaves), self.hash_at)
        self.nodes += frontier.add(leaves)
        self.leaves += leaves
        assert frontier.root() == root(self.hash_at, len(self.leaves))


def leaves_of(size: int) -> list[bytes]:
    return [leaf_hash(b"leaf %d" % number) for number in range(size)]


def tree_of(leaves: list[bytes]) -> Kept:
    kept = Kept()
    kept.append(*leaves)
    return kept


# The definitions of RFC 6962, section 2.1, as they are written there.


def naive_root(leaves: list[bytes]) -> bytes:
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256().digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha256(b"\1" + naive_root(leaves[:split]) + naive_root(leaves[split:])).digest()


def naive_path(index: int, leaves: list[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    if index < split:
        return [*naive_path(index, leaves[:split]), naive_root(leaves[split:])]
    return [*naive_path(index - split, leaves[split:]), naive_root(leaves[:split])]


def naive_proof(old: int, leaves: list[bytes], whole: bool = True) -> list[bytes]:
    if old == len(leaves):
        return [] if whole else [naive_root(leaves)]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    if old <= split:
        return [*naive_proof(old, leaves[:split], whole), naive_root(leaves[split:])]
    return [*naive_proof(old - split, leaves[split:], False), naive_root(leaves[:split])]


def flips(hash_: bytes) -> Iterator[bytes]:
    for bit in range(BITS):
        yield bytes(byte ^ (1 << bit % 8 if at == bit // 8 else 0) for at, byte in enumerate(hash_))


def wrong_paths(path: list[bytes]) -> Iterator[list[bytes]]:
    for at, hash_ in enumerate(path):
        for wrong in flips(hash_):
            yield [*path[:at], wrong, *path[at + 1 :]]
        yield path[:at] + path[at + 1 :]
        yield [*path[:at], hash_[:-1], *path[at + 1 :]]
    yield [*path, EMPTY_ROOT]
    yield [EMPTY_ROOT, *path]
    yield [*path, b""]


def test_the_known_values_of_certificate_transparency_come_out() -> None:
    leaves = [leaf_hash(bytes.fromhex(text)) for text in LEAVES]
    hash_at = tree_of(leaves).hash_at
    roots = [bytes.fromhex(text) for text in ROOTS]
    assert [root(hash_at, size) for size in range(9)] == roots
    for (index, size), texts in INCLUSION.items():
        path = [bytes.fromhex(text) for text in texts]
        assert inclusion_path(hash_at, index, size) == path
        assert verify_inclusion(leaves[index], index, size, path, roots[size])
    for (old, new), texts in CONSISTENCY.items():
        path = [bytes.fromhex(text) for text in texts]
        assert consistency_path(hash_at, old, new) == path
        assert verify_consistency(old, new, path, roots[old], roots[new])


def test_roots_and_paths_of_all_sizes_are_those_of_the_definition() -> None:
    leaves, checked = leaves_of(SIZES[-1]), 0
    hash_at = tree_of(leaves).hash_at
    roots = [naive_root(leaves[:size]) for size in SIZES]
    for size in SIZES:
        assert root(hash_at, size) == roots[size]
        for index in range(size):
            path = inclusion_path(hash_at, index, size)
            assert path == naive_path(index, leaves[:size])
            assert verify_inclusion(leaves[index], index, size, path, roots[size])
            path = consistency_path(hash_at, index, size)
            assert path == (naive_proof(index, leaves[:size]) if index else [])
            assert verify_consistency(index, size, path, roots[index], roots[size])
            checked += 2
    print(f"{checked} paths equal those of the definition")
    assert checked > 17_000


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
def test_a_tree_grows_the_same_in_any_steps_and_nothing_kept_changes(step: int) -> None:
    leaves, kept = leaves_of(SIZES[-1]), Kept()
    for start in range(0, len(leaves), step):
        before = list(kept.nodes)
        kept.append(*leaves[start : start + step])
        assert kept.nodes[: len(before)] == before
    assert kept.nodes == tree_of(leaves).nodes
    assert len(kept.nodes) == node_count(len(leaves))


def test_every_complete_subtree_has_a_number_of_its_own_and_its_hash_is_there() -> None:
    leaves, seen = leaves_of(SIZES[-1]), set()
    kept = tree_of(leaves)
    for level in range(1, len(leaves).bit_length()):
        for index in range(len(leaves) >> level):
            assert kept.hash_at(level, index) == naive_root(leaves[index << level : (index + 1) << level])
            seen.add(node_number(level, index))
    assert seen == set(range(node_count(len(leaves))))


@pytest.mark.parametrize(
    ("index", "size"), [(0, 1), (0, 2), (2, 3), (4, 5), (3, 8), (6, 7), (12, 13), (9, 21)]
)
def test_every_wrong_bit_of_an_inclusion_path_is_refused(index: int, size: int) -> None:
    leaves = leaves_of(size)
    path = inclusion_path(tree_of(leaves).hash_at, index, size)
    top, leaf, refused = naive_root(leaves), leaves[index], 0
    for wrong in wrong_paths(path):
        assert not verify_inclusion(leaf, index, size, wrong, top)
        refused += 1
    for wrong_leaf, wrong_root in zip(flips(leaf), flips(top), strict=True):
        assert not verify_inclusion(wrong_leaf, index, size, path, top)
        assert not verify_inclusion(leaf, index, size, path, wrong_root)
        refused += 2
    for other in {-1, *range(size + 3)} - {index}:
        assert not verify_inclusion(leaf, other, size, path, top)
    assert not verify_inclusion(leaf, index, size * 2 + 1, path, top)
    print(f"{refused} wrong paths, leaves and roots refused")


@pytest.mark.parametrize(
    ("old", "new"), [(1, 2), (2, 3), (3, 4), (4, 8), (6, 8), (6, 7), (8, 13), (13, 21), (7, 7)]
)
def test_every_wrong_bit_of_a_consistency_path_is_refused(old: int, new: int) -> None:
    leaves = leaves_of(new)
    path = consistency_path(tree_of(leaves).hash_at, old, new)
    before, after, refused = naive_root(leaves[:old]), naive_root(leaves), 0
    for wrong in wrong_paths(path):
        assert not verify_consistency(old, new, wrong, before, after)
        refused += 1
    for wrong_before, wrong_after in zip(flips(before), flips(after), strict=True):
        assert not verify_consistency(old, new, path, wrong_before, after)
        assert not verify_consistency(old, new, path, before, wrong_after)
        refused += 2
    if old != new:
        assert not verify_consistency(new, old, path, after, before)
        assert not verify_consistency(old, new, [], before, after)
    print(f"{refused} wrong paths and roots refused")


def test_an_empty_tree_is_the_beginning_of_any_other_and_contains_nothing() -> None:
    top = naive_root(leaves_of(3))
    assert verify_consistency(0, 3, [], EMPTY_ROOT, top)
    assert verify_consistency(0, 0, [], EMPTY_ROOT, EMPTY_ROOT)
    assert not verify_consistency(0, 3, [], top, top)
    assert not verify_consistency(0, 3, [top], EMPTY_ROOT, top)
    assert not verify_inclusion(EMPTY_ROOT, 0, 0, [], EMPTY_ROOT)


def hundred_million(real: int, size: int) -> tuple[HashAt, list[int]]:
    """Return a tree of *size* leaves, the first *real* of them hashed and all others one and the same.

    A complete subtree of equal leaves has one hash a level, so the tree is there without its leaves.
    """
    kept, same, reads = tree_of(leaves_of(real)), [leaf_hash(b"the same")], [0]
    while len(same) < 40:
        same.append(node_hash(same[-1], same[-1]))
    mixed: dict[tuple[int, int], bytes] = {}

    def found(level: int, index: int) -> bytes:
        if (index + 1) << level <= real:
            return kept.hash_at(level, index)
        if index << level >= real:
            return same[level]
        if (level, index) not in mixed:
            below = found(level - 1, 2 * index), found(level - 1, 2 * index + 1)
            mixed[level, index] = node_hash(*below)
        return mixed[level, index]

    def hash_at(level: int, index: int) -> bytes:
        assert (index + 1) << level <= size, "only complete subtrees are kept"
        reads[0] += 1
        return found(level, index)

    return hash_at, reads


def test_one_of_a_hundred_million_is_proven_in_few_reads_and_bytes() -> None:
    """Twice the logarithm, whichever leaf it is and however the size falls between powers of two."""
    real, most, longest = 1_000_000, 0, 0
    for size in (100_000_000, (1 << 27) - 1, (1 << 26) + 1):
        hash_at, reads = hundred_million(real, size) if size == 100_000_000 else hundred_million(1000, size)
        top, limit = root(hash_at, size), 2 * math.log2(size)
        for index in (0, 1, 777_777, 999_999, 1_000_000, 1 << 26, (1 << 26) - 1, size - 2, size - 1):
            leaf = hash_at(0, index)
            reads[0] = 0
            path = inclusion_path(hash_at, index, size)
            most, longest = max(most, reads[0]), max(longest, 32 * len(path))
            assert reads[0] <= limit
            assert verify_inclusion(leaf, index, size, path, top)
            assert not verify_inclusion(leaf_hash(b"another"), index, size, path, top)
            old = index + 1
            reads[0] = 0
            proof = consistency_path(hash_at, old, size)
            assert reads[0] <= limit
            assert verify_consistency(old, size, proof, root(hash_at, old), top)
    print(f"at most {most} reads and {longest} bytes for one of up to {(1 << 27) - 1} leaves")
    assert longest <= 27 * 32


def test_the_chain_depends_on_every_leaf_and_on_their_order() -> None:
    leaves = leaves_of(5)
    head = chained(EMPTY_HEAD, leaves)
    assert head == chained(chained(EMPTY_HEAD, leaves[:2]), leaves[2:])
    by_hand = bytes(32)
    for leaf in leaves:
        by_hand = sha256(by_hand + leaf).digest()
    assert head == by_hand
    others = [leaves[::-1], leaves[1:], [*leaves, leaves[0]], [leaves[1], leaves[0], *leaves[2:]]]
    assert head not in [chained(EMPTY_HEAD, other) for other in others]
