"""The files of a partition's chain and tree, in ``chain/`` beside its segments.

``leaves`` has the hash of each leaf, 32 bytes; ``tree`` the hashes of complete subtrees above them, in the
order in which they became complete; ``frames`` the offsets of each leaf's frame, `ENTRY`; ``statements`` a
line for each leaf that is not a frame; ``head`` the valid size of all these files. Files only grow. The other
files are synced before ``head`` is written, and bytes beyond the sizes in ``head`` are uncommitted: the next
writer cuts them off. Where leaves commit to records, ``salt`` has the salt of their keys, and ``lists`` the
records of frames that were rewritten; see `cordwood.storage.chain.lists`.

Leaves, frames and statements are authoritative: they are the only trace of frames that retention or
compaction removed. The tree is derived, and is rebuilt if it is wrong.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TypeVar

import msgspec

from cordwood.disk import File, Files, join, read_file, read_metadata
from cordwood.errors import DirectoryRefused, MetadataDamaged
from cordwood.integrity import EMPTY_HEAD, chained, merkle
from cordwood.kernels import SALT_SIZE
from cordwood.storage.chain.lists import RecordList, find_kept_list
from cordwood.storage.chain.statements import LeafKinds, LeafRange, Lineage, Statement
from cordwood.storage.meta import check_stored_id

#: The newest format of a chain: 2 has leaves that commit to records, and is used only where there are some.
CHAIN_FORMAT = 2
#: First offset of a leaf's frame, and the offset after it; both are equal for a statement.
ENTRY = struct.Struct(">qq")
assert ENTRY.size == 16
#: Prefix of the hashed bytes of a statement. No frame begins with it: offsets are never negative.
STATEMENT = b"\xff"
#: The number of leaves read into memory at once.
COPY_LEAVES = 1 << 15
Result = TypeVar("Result")


class ChainHead(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``head``. The chain began at ``first_offset`` and continues at ``next_offset``."""

    format: int = 1
    topic_id: str
    size: int = 0
    root: str = merkle.EMPTY_ROOT.hex()
    chain_head: str = EMPTY_HEAD.hex()
    first_offset: int
    next_offset: int
    leader_epoch: int
    statements_size: int = 0


_HEAD = msgspec.json.Decoder(ChainHead)
_STATEMENT = msgspec.json.Decoder(Statement)


def read_salt(files: Files, chain: str, statements: Sequence[Statement]) -> bytes | None:
    """Return the salt of the chain in *chain*, None if no leaf of it commits to records.

    Raises:
        MetadataDamaged: If the salt is not the one that its statements name.
    """
    named = {statement.salt for statement in statements if statement.salt}
    if not named:
        return None
    path = join(chain, "salt")
    try:
        salt = read_file(files, path)
    except FileNotFoundError:
        raise MetadataDamaged(path, "is missing") from None
    if len(salt) != SALT_SIZE or named != {sha256(salt).hexdigest()}:
        raise MetadataDamaged(path, "is not the salt that a statement of its chain names")
    return salt


def chain_directory(directory: str) -> str:
    """Return the path of the chain of the partition in *directory*."""
    return join(directory, "chain")


def read_head(files: Files, directory: str) -> ChainHead | None:
    """Return the head of the chain of the partition in *directory*, None if it has none.

    Raises:
        MetadataDamaged: If the head cannot be read.
        DirectoryRefused: If a newer version of Cordwood wrote it.
    """
    chain = chain_directory(directory)
    path = join(chain, "head")
    if not files.exists(path) and not _has_leaves(files, chain):
        return None
    head = read_metadata(files, path, _HEAD)
    if head.format > CHAIN_FORMAT:
        raise DirectoryRefused(f"{path} has format {head.format}; this version reads up to {CHAIN_FORMAT}")
    check_stored_id(path, head.topic_id)
    return head


def _has_leaves(files: Files, chain: str) -> bool:
    """Return whether there are leaves. If so, a head must exist, because it is written before them."""
    path = join(chain, "leaves")
    if not files.exists(path):
        return False
    with contextlib.closing(files.open(path, "read")) as file:
        return file.size() > 0


class KeptChain:
    """A read-only chain of a partition as it was at opening. One thread at a time.

    A writer may extend the chain at the same time. ``reads`` counts the reads from files.
    """

    def __init__(self, files: Files, directory: str, head: ChainHead) -> None:
        self.head = head
        self.directory = chain_directory(directory)
        self.reads = 0
        self._files = files
        self._opened: dict[str, File] = {}
        self._statements: list[Statement] | None = None
        self._lineage: Lineage | None = None

    def close(self) -> None:
        """Close the files."""
        opened, self._opened = self._opened, {}
        for file in opened.values():
            file.close()

    # --- stored values ----------------------------------------------------------------------------

    def hash_at(self, level: int, index: int) -> bytes:
        """Return the stored hash of a complete subtree.

        Raises:
            MetadataDamaged: If the file has no hash there.
        """
        name, number = ("tree", merkle.node_number(level, index)) if level else ("leaves", index)
        return self._read(name, number * merkle.HASH_SIZE, merkle.HASH_SIZE)

    def leaves(self, start: int, end: int) -> list[bytes]:
        """Return the hashes of the leaves [start, end)."""
        data = self._read("leaves", start * merkle.HASH_SIZE, (end - start) * merkle.HASH_SIZE)
        return [data[at : at + merkle.HASH_SIZE] for at in range(0, len(data), merkle.HASH_SIZE)]

    def recomputed(self, level: int, index: int) -> bytes:
        """Compute the same hash from the leaves alone, in time linear in the number of leaves below it."""
        frontier, end = merkle.empty_frontier(), (index + 1) << level
        for start in range(index << level, end, COPY_LEAVES):
            frontier.add(self.leaves(start, min(start + COPY_LEAVES, end)))
        return frontier.root()

    def entry(self, leaf: int) -> LeafRange:
        """Return the offsets of a leaf's frame."""
        return LeafRange(*ENTRY.unpack(self._read("frames", leaf * ENTRY.size, ENTRY.size)))

    def statements(self) -> list[Statement]:
        """Return the statements, oldest first.

        Raises:
            MetadataDamaged: If a statement does not match its leaf.
        """
        if self._statements is None:
            self._statements = self._read_statements()
        return self._statements

    def _read_statements(self) -> list[Statement]:
        path, found = join(self.directory, "statements"), []
        if not self.head.statements_size:
            return []
        for line in self._read("statements", 0, self.head.statements_size).splitlines():
            try:
                statement = _STATEMENT.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise MetadataDamaged(path, f"cannot be parsed: {error}") from None
            if not 0 <= statement.leaf < self.head.size:
                raise MetadataDamaged(path, f"there is no leaf {statement.leaf}")
            if self.hash_at(0, statement.leaf) != merkle.leaf_hash(STATEMENT + line):
                raise MetadataDamaged(path, f"what it says is not what leaf {statement.leaf} has")
            found.append(statement)
        return found

    def _read(self, name: str, position: int, size: int) -> bytes:
        self.reads += 1
        if name not in self._opened:
            try:
                self._opened[name] = self._files.open(join(self.directory, name), "read")
            except FileNotFoundError:
                raise MetadataDamaged(join(self.directory, name), "is missing") from None
        data = self._opened[name].read_at(position, size)
        if len(data) != size:
            raise MetadataDamaged(join(self.directory, name), f"ends before byte {position + size}")
        return data

    # --- derived from it -----------------------------------------------------------------------------

    def lineage(self) -> Lineage:
        """Return which leaves belong to frames that can still be in the log.

        Raises:
            MetadataDamaged: If the statements cannot be read.
        """
        if self._lineage is None:
            self._lineage = Lineage(self.head.size, self.statements())
        return self._lineage

    def find(self, offset: int, generation: int = 0) -> int | None:
        """Return the leaf of the frame that holds *offset* in a segment of *generation*, None without one.

        Raises:
            MetadataDamaged: If the statements cannot be read.
        """
        return self.lineage().find(self.entry, offset, generation)

    def commits_to_parts(self, leaf: int) -> bool:
        """Return whether the leaf of a frame commits to its parts: records, or envelope and batch."""
        return LeafKinds(self.statements()).commits_to_parts(leaf)

    def salt(self) -> bytes | None:
        """Return the salt in the hashes of keys, None if no leaf commits to records. Raises as `find`."""
        return read_salt(self._files, self.directory, self.statements())

    def record_list(self, leaf: int) -> RecordList | None:
        """Return the list of the records of *leaf*, None if its frame was not rewritten. Raises as `find`."""
        return find_kept_list(self._files, self.directory, self.statements(), self.entry(leaf), leaf)

    def root(self, size: int) -> bytes:
        """Return the root over the first *size* leaves."""
        return self._sound(
            lambda hash_at: merkle.root(hash_at, size), lambda found: self._is_root(size, found)
        )

    def _is_root(self, size: int, found: bytes) -> bool:
        return size != self.head.size or found.hex() == self.head.root

    def chain_head(self, size: int) -> bytes:
        """Return the head of the chain over the first *size* leaves. Reads all of them."""
        head = EMPTY_HEAD
        for start in range(0, size, COPY_LEAVES):
            head = chained(head, self.leaves(start, min(start + COPY_LEAVES, size)))
        return head

    def inclusion_path(self, leaf: int, size: int, root: bytes) -> list[bytes]:
        """Return the path from a leaf to *root*, that of the first *size* leaves.

        Raises:
            MetadataDamaged: If no valid path can be built, even from the leaves alone.
        """
        leaf_hash = self.hash_at(0, leaf)
        return self._sound(
            lambda hash_at: merkle.inclusion_path(hash_at, leaf, size),
            lambda path: merkle.verify_inclusion(leaf_hash, leaf, size, path, root),
        )

    def consistency_path(
        self, old: int, old_root: bytes, size: int | None = None, root: bytes | None = None
    ) -> list[bytes] | None:
        """Return the path that shows that the first *size* leaves begin with *old* leaves of *old_root*.

        *size* is that of the whole tree if it is not given, *root* the one that the first *size* leaves have.
        None if there is no such path.
        """
        size = self.head.size if size is None else size
        if not 0 <= old <= size <= self.head.size:
            return None
        new_root = self.root(size) if root is None else root
        with contextlib.suppress(MetadataDamaged):
            return self._sound(
                lambda hash_at: merkle.consistency_path(hash_at, old, size),
                lambda path: merkle.verify_consistency(old, size, path, old_root, new_root),
            )
        return None

    def _sound(self, make: Callable[[merkle.HashAt], Result], holds: Callable[[Result], bool]) -> Result:
        """Return the result of *make* over the stored tree if *holds*, else over the leaves alone."""
        with contextlib.suppress(MetadataDamaged):
            found = make(self.hash_at)
            if holds(found):
                return found
        found = make(self.recomputed)
        if not holds(found):
            raise MetadataDamaged(self.directory, "its leaves do not have the root that they are to have")
        return found
