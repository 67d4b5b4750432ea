"""The Merkle tree of RFC 6962 over a stream of leaves, independent of the code that stores one."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from cordwood.disk import ReadableFiles
from cordwood.verify.derived import DerivedFile
from cordwood.verify.report import Tally

HASH_BYTES = 32


class PassingTree:
    """The tree over all leaves so far: only the roots of its complete subtrees are stored."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []

    def add(self, leaves: Iterable[bytes]) -> list[bytes]:
        """Add leaves; return the completed nodes in the order of completion."""
        size, peaks, completed = self.size, self._peaks, []
        for leaf in leaves:
            size += 1
            node, left = leaf, size
            while not left & 1:
                node = sha256(b"\1" + peaks.pop() + node).digest()
                completed.append(node)
                left >>= 1
            peaks.append(node)
        self.size = size
        return completed

    def root(self) -> bytes:
        """Return the root over all leaves so far."""
        if not self._peaks:
            return sha256().digest()
        *left, over = self._peaks
        for peak in reversed(left):
            over = sha256(b"\1" + peak + over).digest()
        return over


class TreeFile(DerivedFile):
    """Compares the nodes of a tree, as they become complete, with those in its file."""

    def __init__(self, files: ReadableFiles, path: str) -> None:
        super().__init__(files, path, HASH_BYTES)

    def finish(self, tally: Tally) -> None:
        """Report differences after the last leaf. Later bytes of the file are uncommitted."""
        self.compare()
        tally.bytes += self.position
        if self.failure is not None:
            if self.position:
                tally.add_unreadable(self.path, self.failure, "index")
        elif self.difference is not None:
            position, expected, found = self.difference
            tally.add(
                "index",
                self.path,
                position,
                expected=expected.hex(),
                found=found.hex() or "the end of the file",
                what="tree",
            )
