"""The Merkle tree of RFC 6962, over hashes that the caller stores.

Only complete subtrees are stored: ``hash_at(level, index)`` is the hash over ``1 << level`` leaves starting
at leaf ``index << level``; level 0 has the hashes of the leaves themselves. Stored hashes never change as the
tree grows. A path reads each hash that it needs once: at most twice the logarithm of the tree's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import TypeAlias

HashAt: TypeAlias = Callable[[int, int], bytes]

HASH_SIZE = 32
#: The root of a tree without leaves.
EMPTY_ROOT = sha256().digest()


def leaf_hash(data: bytes | bytearray | memoryview) -> bytes:
    """Return the hash of the leaf of *data*."""
    digest = sha256(b"\0")
    digest.update(data)
    return digest.digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of the parent of two nodes."""
    return sha256(b"\1" + left + right).digest()


# --- growing --------------------------------------------------------------------------------------


class Frontier:
    """The roots of the complete subtrees of a tree, largest first: the state needed to add a leaf."""

    def __init__(self, size: int, hash_at: HashAt) -> None:
        """Load a tree of *size* leaves; reads one hash for each set bit of *size*."""
        self.size = size
        self._roots: list[bytes] = []
        at = 0
        while at < size:
            level = (size - at).bit_length() - 1
            self._roots.append(hash_at(level, at >> level))
            at += 1 << level

    def add(self, leaves: Iterable[bytes]) -> list[bytes]:
        """Add *leaves*; return the completed nodes in the order of `node_number`."""
        roots, size, nodes = self._roots, self.size, []
        for leaf in leaves:
            size += 1
            over = leaf
            # One node for each zero bit at the end of the new size.
            for _ in range((size & -size).bit_length() - 1):
                over = sha256(b"\1" + roots.pop() + over).digest()
                nodes.append(over)
            roots.append(over)
        self.size = size
        return nodes

    def root(self) -> bytes:
        """Return the root of the tree."""
        return _folded(self._roots) if self._roots else EMPTY_ROOT


def empty_frontier() -> Frontier:
    """Return the frontier of a tree without leaves."""
    return Frontier(0, lambda level, index: b"")


class Subtrees:
    """All complete subtrees of a small tree, in memory."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels = [list(leaves)]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            pairs = zip(below[::2], below[1::2], strict=False)
            self._levels.append([node_hash(left, right) for left, right in pairs])

    def hash_at(self, level: int, index: int) -> bytes:
        """Return the hash of a complete subtree."""
        return self._levels[level][index]


def node_count(size: int) -> int:
    """Return the number of complete nodes above the leaves of a tree of *size* leaves."""
    return size - size.bit_count()


def node_number(level: int, index: int) -> int:
    """Return the position of a node above the leaves in the order of completion, from 0."""
    before = ((index + 1) << level) - 1
    return node_count(before) + level - 1


# --- roots and paths ------------------------------------------------------------------------------


def root(hash_at: HashAt, size: int) -> bytes:
    """Return the root of the tree over the first *size* leaves."""
    return _root_of(hash_at, 0, size) if size else EMPTY_ROOT


def inclusion_path(hash_at: HashAt, index: int, size: int) -> list[bytes]:
    """Return the hashes that lead from leaf *index* to the root of the first *size* leaves, lowest first."""
    assert 0 <= index < size
    path, start, end = [], 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(_root_of(hash_at, middle, end))
            end = middle
        else:
            path.append(_root_of(hash_at, start, middle))
            start = middle
    return path[::-1]


def consistency_path(hash_at: HashAt, old: int, new: int) -> list[bytes]:
    """Return the hashes that prove that the tree over *old* leaves is a prefix of that over *new*."""
    assert 0 <= old <= new
    if old == 0:
        return []
    path, start, end = [], 0, new
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(_root_of(hash_at, middle, end))
            end = middle
        else:
            path.append(_root_of(hash_at, start, middle))
            start = middle
    if start:
        # The verifier has this hash already: it is the old root.
        path.append(_root_of(hash_at, start, end))
    return path[::-1]


def _split(size: int) -> int:
    """Return how many of *size* leaves are in the left subtree: the largest power of two below *size*."""
    return 1 << ((size - 1).bit_length() - 1)


def _root_of(hash_at: HashAt, start: int, end: int) -> bytes:
    """Return the root over the leaves [start, end), where *start* is where a complete left subtree ends."""
    found, at = [], start
    while at < end:
        level = (end - at).bit_length() - 1
        found.append(hash_at(level, at >> level))
        at += 1 << level
    return _folded(found)


def _folded(roots: Sequence[bytes]) -> bytes:
    """Return the root over complete subtrees, largest first."""
    over = roots[-1]
    for root_hash in reversed(roots[:-1]):
        over = node_hash(root_hash, over)
    return over


# --- verifying ------------------------------------------------------------------------------------


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root_hash: bytes) -> bool:
    """Return whether *path* proves *leaf* to be leaf *index* of *size* leaves with the root *root_hash*."""
    return root_from_path(leaf, index, size, path) == root_hash


def root_from_path(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root that *path* leads to from leaf *index* of *size* leaves; None if it leads nowhere."""
    if not 0 <= index < size or not _all_hashes(leaf, *path):
        return None
    at, last, over = index, size - 1, leaf
    for hash_ in path:
        if last == 0:
            return None
        if at & 1 or at == last:
            over = node_hash(hash_, over)
            at, last = _skip_to_right_child(at, last)
        else:
            over = node_hash(over, hash_)
        at, last = at >> 1, last >> 1
    return over if last == 0 else None


def verify_consistency(old: int, new: int, path: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """Return whether *path* proves that the tree of *old_root* is a prefix of that of *new_root*."""
    if not 0 <= old <= new or not _all_hashes(old_root, new_root, *path):
        return False
    if old == new:
        return not path and old_root == new_root
    if old == 0:
        return not path and old_root == EMPTY_ROOT
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    # If the old tree is one complete subtree, its root starts both computations and is not in the path.
    hashes = list(path) if at else [old_root, *path]
    if not hashes:
        return False
    old_over = new_over = hashes[0]
    for hash_ in hashes[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            old_over, new_over = node_hash(hash_, old_over), node_hash(hash_, new_over)
            at, last = _skip_to_right_child(at, last)
        else:
            new_over = node_hash(new_over, hash_)
        at, last = at >> 1, last >> 1
    return last == 0 and (old_over, new_over) == (old_root, new_root)


def _skip_to_right_child(at: int, last: int) -> tuple[int, int]:
    """Skip the levels on which a node at the right edge has no sibling and is passed up unchanged."""
    while at and not at & 1:
        at, last = at >> 1, last >> 1
    return at, last


def _all_hashes(*hashes: bytes) -> bool:
    return all(len(each) == HASH_SIZE for each in hashes)
