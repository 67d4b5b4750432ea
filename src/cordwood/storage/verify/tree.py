"""The Merkle tree of RFC 6962 over leaves as they pass, apart from the code that keeps one."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from cordwood.storage.files import File, Files
from cordwood.storage.verify.report import Tally

HASH_BYTES = 32
_WINDOW_BYTES = 1 << 20


class PassingTree:
    """The tree over all leaves so far: only the roots of its complete subtrees are remembered."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []

    def add(self, leaves: Iterable[bytes]) -> list[bytes]:
        """Add leaves, and return the nodes that they complete, in the order in which they do."""
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


class TreeFile:
    """Compares the nodes of a tree, as they become complete, with those in its file. That is derived."""

    def __init__(self, files: Files, path: str) -> None:
        self._path = path
        self._pending = bytearray()
        self._position = 0
        self._difference: tuple[int, bytes, bytes] | None = None
        self._file: File | None = None
        self._failure: OSError | None = None
        try:
            self._file = files.open(path, "read")
        except OSError as error:
            self._failure = error

    def close(self) -> None:
        """Close the file, if it could be opened."""
        if self._file is not None:
            self._file.close()

    def add(self, nodes: Iterable[bytes]) -> None:
        """Expect *nodes* next."""
        self._pending += b"".join(nodes)
        if len(self._pending) >= _WINDOW_BYTES:
            self._compare()

    def finish(self, tally: Tally) -> None:
        """Say what differs, now that there are no more leaves. What lies beyond is not there yet."""
        self._compare()
        tally.bytes += self._position
        if self._failure is not None:
            if self._position:
                tally.add_unreadable(self._path, self._failure, "index")
        elif self._difference is not None:
            position, expected, found = self._difference
            tally.add(
                "index",
                self._path,
                position,
                expected=expected.hex(),
                found=found.hex() or "the end of the file",
                what="tree",
            )

    def _compare(self) -> None:
        expected, self._pending = bytes(self._pending), bytearray()
        start, self._position = self._position, self._position + len(expected)
        if self._file is None or self._failure is not None or self._difference is not None:
            return
        try:
            found = self._file.read_at(start, len(expected))
        except OSError as error:
            self._failure = error
            return
        if found != expected:
            for at in range(0, len(expected), HASH_BYTES):
                pair = expected[at : at + HASH_BYTES], found[at : at + HASH_BYTES]
                if pair[0] != pair[1]:
                    self._difference = (start + at, *pair)
                    return
