"""Add leaves to the files of a partition's chain, and repair these files after a crash."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

import msgspec

from cordwood.disk import File, Files, join, parent, write_all, write_atomically, write_metadata
from cordwood.errors import MetadataDamaged
from cordwood.integrity import chained, merkle, record_leaf
from cordwood.kernels import Buffer
from cordwood.storage.chain.files import (
    CHAIN_FORMAT,
    COPY_LEAVES,
    ENTRY,
    STATEMENT,
    ChainHead,
    KeptChain,
    chain_directory,
    read_head,
    read_salt,
)
from cordwood.storage.chain.lists import ListWriter, find_kept_list, list_numbers, list_path
from cordwood.storage.chain.statements import (
    LeafKinds,
    LeafRange,
    Lineage,
    Statement,
    rewritable_ranges,
    shortened_frames,
)

_NAMES = ("leaves", "frames", "statements", "tree")


class ChainWriter:
    """The writable chain of a partition, for the process with the directory's lock. One thread at a time.

    `commit` makes all added leaves durable together, or none. Not usable after a method raised.
    """

    def __init__(self, files: Files, directory: str, head: ChainHead) -> None:
        """Open the files and cut off uncommitted bytes.

        Raises:
            MetadataDamaged: If leaves, frames or statements are missing or wrong.
        """
        self.head = head
        self._files = files
        self._directory = chain_directory(directory)
        self._chain_head = bytes.fromhex(head.chain_head)
        self._statements_end = head.statements_size
        self._opened: dict[str, File] = {}
        self._changed: set[str] = set()
        self._new_names = False
        self._lists_dropped_to = head.first_offset
        self._lineage: Lineage | None = None
        self._kinds: LeafKinds | None = None
        try:
            for name in _NAMES:
                self._opened[name] = self._open(name)
            self._cut_uncommitted()
            self._frontier = self._load_tree()
            with contextlib.closing(KeptChain(files, directory, head)) as kept:
                self._statements = list(kept.statements())
            gone = (each.end for each in self._statements if _is_removal(each))
            self._removed_to = max(gone, default=head.first_offset)
            self._has_policy = any(each.kind == "policy" for each in self._statements)
            self.salt = read_salt(files, self._directory, self._statements)
            self._cut_uncommitted_lists()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, files: Files, directory: str, begin: ChainHead) -> ChainWriter:
        """Open the chain of the partition in *directory*; create it with *begin* if there is none."""
        head = read_head(files, directory)
        if head is not None and head.topic_id != begin.topic_id:
            path = join(chain_directory(directory), "head")
            raise MetadataDamaged(path, f"is of topic {head.topic_id}, not of {begin.topic_id}")
        if head is None:
            head, chain = begin, chain_directory(directory)
            files.make_directories(chain)
            # A process that created it may have crashed before the name was synced.
            files.sync_directory(parent(chain))
            write_metadata(files, join(chain, "head"), head)
        return cls(files, directory, head)

    def close(self) -> None:
        """Close the files. Uncommitted leaves are lost."""
        opened, self._opened = self._opened, {}
        for file in opened.values():
            file.close()

    @property
    def size(self) -> int:
        """The number of leaves, committed or not."""
        return self._frontier.size

    # --- adding -----------------------------------------------------------------------------------

    def add_frames(self, leaves: Sequence[bytes], entries: Iterable[tuple[int, int]]) -> None:
        """Add the leaves of frames with these offsets, in order."""
        size = self.size
        packed = b"".join(ENTRY.pack(*entry) for entry in entries)
        assert len(packed) == ENTRY.size * len(leaves)
        nodes = self._frontier.add(leaves)
        self._write("frames", size * ENTRY.size, packed)
        self._write("leaves", size * merkle.HASH_SIZE, b"".join(leaves))
        if nodes:
            self._write("tree", merkle.node_count(size) * merkle.HASH_SIZE, b"".join(nodes))
        self._chain_head = chained(self._chain_head, leaves)
        self._lineage = None

    def add_statement(self, statement: Statement, offset: int) -> None:
        """Add the leaf of *statement*, after which the chain continues at *offset*."""
        assert statement.leaf == self.size
        line = statement.encoded()
        self._write("statements", self._statements_end, line + b"\n")
        self._statements_end += len(line) + 1
        self._statements.append(statement)
        self._has_policy |= statement.kind == "policy"
        self._kinds = None
        if _is_removal(statement):
            self._removed_to = max(self._removed_to, statement.end)
        self.add_frames([merkle.leaf_hash(STATEMENT + line)], [(offset, offset)])

    def commit(self, next_offset: int, leader_epoch: int) -> None:
        """Make all added leaves durable. The chain continues at *next_offset* in *leader_epoch*."""
        for name in sorted(self._changed):
            self._opened[name].sync()
        if self._new_names:
            self._files.sync_directory(self._directory)
        self._changed, self._new_names = set(), False
        self.head = msgspec.structs.replace(
            self.head,
            format=CHAIN_FORMAT if self._has_policy else self.head.format,
            size=self.size,
            root=self._frontier.root().hex(),
            chain_head=self._chain_head.hex(),
            next_offset=next_offset,
            leader_epoch=leader_epoch,
            statements_size=self._statements_end,
        )
        write_metadata(self._files, join(self._directory, "head"), self.head)

    def new_lists(self) -> ListWriter:
        """Return the writer of the lists that belong to the next statement."""
        return ListWriter(self._files, self._directory, self.size)

    def kept_lists(self) -> list[Statement]:
        """Return the statements whose lists are there, oldest first."""
        if not self._has_policy:
            return []
        there = set(list_numbers(self._files, self._directory))
        listing = [each for each in self._statements if each.lists and each.kind != "expired"]
        return [each for each in listing if each.first_leaf in there]

    def drop_lists_below(self, log_start: int) -> None:
        """Remove the lists of frames below the log start, which nothing has to be compared with any more."""
        if log_start > self._lists_dropped_to:
            self._remove_lists(each.first_leaf for each in self.kept_lists() if each.end <= log_start)
            self._lists_dropped_to = log_start

    def drop_expired_lists(self) -> None:
        """Remove the lists that a durable statement gave up."""
        gone = max((each.lists for each in self._statements if each.kind == "expired"), default=0)
        self._remove_lists(each.first_leaf for each in self.kept_lists() if each.first_leaf < gone)

    def _remove_lists(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._files.unlink(list_path(self._directory, number))

    def use_salt(self, new_salt: Callable[[], bytes]) -> str:
        """Return the hash of the salt, for the statement that names it. The first call creates the salt."""
        if self.salt is None:
            self.salt = new_salt()
            write_atomically(self._files, join(self._directory, "salt"), self.salt)
        return sha256(self.salt).hexdigest()

    # --- reading ----------------------------------------------------------------------------------

    @property
    def statements(self) -> Sequence[Statement]:
        """The statements, oldest first, committed or not."""
        return self._statements

    def commits_to_parts(self, leaf: int) -> bool:
        """Return whether the leaf of a frame commits to its parts: records, or envelope and batch."""
        if self._kinds is None:
            self._kinds = LeafKinds(self._statements)
        return self._kinds.commits_to_parts(leaf)

    def moved_leaf(self, frame: Buffer) -> bytes:
        """Return the leaf of a frame that compaction wrote; like any other in a chain without a policy."""
        return record_leaf.moved_leaf(frame) if self._has_policy else merkle.leaf_hash(frame)

    def rewritable(self) -> list[tuple[int, int]]:
        """Return the offsets [start, end) of frames that may be rewritten; see `rewritable_ranges`."""
        return rewritable_ranges(self._statements, self.entry)

    def shortened(self) -> list[int]:
        """Return the first offsets of frames that truncations shortened; see `shortened_frames`."""
        return shortened_frames(self._statements, self.entry)

    def has_list(self, leaf: int) -> bool:
        """Return whether the records of *leaf* are listed."""
        return (
            find_kept_list(self._files, self._directory, self._statements, self.entry(leaf), leaf) is not None
        )

    def entry(self, leaf: int) -> LeafRange:
        """Return the offsets of a leaf's frame."""
        return LeafRange(*ENTRY.unpack(self._opened["frames"].read_at(leaf * ENTRY.size, ENTRY.size)))

    def leaf(self, number: int) -> bytes:
        """Return the hash of a leaf."""
        return self._hash_at(0, number)

    def find(self, offset: int, generation: int = 0) -> int | None:
        """Return the leaf of the frame that holds *offset* in a segment of *generation*, None without one."""
        if self._lineage is None:
            self._lineage = Lineage(self.size, self._statements)
        return self._lineage.find(self.entry, offset, generation)

    @property
    def removed_to(self) -> int:
        """The offset below which statements say that records were removed."""
        return self._removed_to

    def _hash_at(self, level: int, index: int) -> bytes:
        name, number = ("tree", merkle.node_number(level, index)) if level else ("leaves", index)
        return self._opened[name].read_at(number * merkle.HASH_SIZE, merkle.HASH_SIZE)

    def _write(self, name: str, position: int, data: bytes) -> None:
        write_all(self._opened[name], position, data)
        self._changed.add(name)

    def _open(self, name: str) -> File:
        path = join(self._directory, name)
        try:
            return self._files.open(path, "write")
        except FileNotFoundError:
            self._new_names = True
            return self._files.open(path, "create")

    # --- after a crash ----------------------------------------------------------------------------

    def _cut_uncommitted(self) -> None:
        """Cut each file to the size in the head. The tree is handled by `_load_tree`."""
        head = self.head
        sizes = {
            "leaves": head.size * merkle.HASH_SIZE,
            "frames": head.size * ENTRY.size,
            "statements": head.statements_size,
        }
        for name, size in sizes.items():
            file = self._opened[name]
            if file.size() < size:
                raise MetadataDamaged(file.path, f"has {file.size()} bytes, but {size} were written")
            file.truncate(size)

    def _cut_uncommitted_lists(self) -> None:
        """Remove the lists of statements that were never committed."""
        for number in list_numbers(self._files, self._directory):
            if number >= self.head.size:
                self._remove_lists([number])

    def _load_tree(self) -> merkle.Frontier:
        """Return the frontier of the tree; rebuild the tree first if it is wrong."""
        size, tree = self.head.size, self._opened["tree"]
        wanted = merkle.node_count(size) * merkle.HASH_SIZE
        if tree.size() >= wanted:
            tree.truncate(wanted)
            frontier = merkle.Frontier(size, self._hash_at)
            if frontier.root().hex() == self.head.root:
                return frontier
        frontier = merkle.empty_frontier()
        for start in range(0, size, COPY_LEAVES):
            count = min(COPY_LEAVES, size - start)
            data = self._opened["leaves"].read_at(start * merkle.HASH_SIZE, count * merkle.HASH_SIZE)
            leaves = (data[at : at + merkle.HASH_SIZE] for at in range(0, len(data), merkle.HASH_SIZE))
            self._write("tree", merkle.node_count(start) * merkle.HASH_SIZE, b"".join(frontier.add(leaves)))
        tree.truncate(wanted)
        if frontier.root().hex() != self.head.root:
            path = join(self._directory, "leaves")
            raise MetadataDamaged(path, "its leaves do not have the root in head")
        return frontier


def _is_removal(statement: Statement) -> bool:
    """Return whether *statement* says that records up to its end were removed, with or without leaves."""
    return statement.kind == "removed" or statement.reason == "removed"
