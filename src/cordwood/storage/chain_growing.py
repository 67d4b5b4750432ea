"""Adding leaves to the files of a partition's chain, and making these whole again after a crash."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import msgspec

from cordwood.errors import MetadataDamaged
from cordwood.integrity import merkle
from cordwood.integrity.chain import chained
from cordwood.storage.chain_files import (
    COPY_LEAVES,
    ENTRY,
    STATEMENT,
    ChainHead,
    KeptChain,
    chain_directory,
    read_head,
)
from cordwood.storage.chain_lineage import Entry, Lineage, Statement
from cordwood.storage.files import File, Files, join, parent, write_all
from cordwood.storage.metadata import write_metadata

_NAMES = ("leaves", "frames", "statements", "tree")


class GrowingChain:
    """The chain of a partition, to add leaves to. For whoever has the directory's lock; one thread at a time.

    What is added is there once `commit` returned, all of it or nothing. Not to be used after it raised.
    """

    def __init__(self, files: Files, directory: str, head: ChainHead) -> None:
        """Open the files and cut off what never was committed.

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
        self._lineage: Lineage | None = None
        try:
            for name in _NAMES:
                self._opened[name] = self._open(name)
            self._cut_back()
            self._frontier = self._whole_tree()
            with contextlib.closing(KeptChain(files, directory, head)) as kept:
                self._statements = list(kept.statements())
            gone = (each.end for each in self._statements if _tells_of_removal(each))
            self._removed_to = max(gone, default=head.first_offset)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, files: Files, directory: str, begin: ChainHead) -> GrowingChain:
        """Open the chain of the partition in *directory*; where there is none, make one that says *begin*."""
        head = read_head(files, directory)
        if head is not None and head.topic_id != begin.topic_id:
            path = join(chain_directory(directory), "head")
            raise MetadataDamaged(path, f"is of topic {head.topic_id}, not of {begin.topic_id}")
        if head is None:
            head, chain = begin, chain_directory(directory)
            files.make_directories(chain)
            # Whoever made it before may have crashed before its name was synced.
            files.sync_directory(parent(chain))
            write_metadata(files, join(chain, "head"), head)
        return cls(files, directory, head)

    def close(self) -> None:
        """Let go of the files. What was not committed never happened."""
        opened, self._opened = self._opened, {}
        for file in opened.values():
            file.close()

    @property
    def size(self) -> int:
        """How many leaves there are, committed or not."""
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
        """Add the leaf of *statement*, after which the chain goes on at *offset*."""
        assert statement.leaf == self.size
        line = statement.encoded()
        self._write("statements", self._statements_end, line + b"\n")
        self._statements_end += len(line) + 1
        self._statements.append(statement)
        if _tells_of_removal(statement):
            self._removed_to = max(self._removed_to, statement.end)
        self.add_frames([merkle.leaf_hash(STATEMENT + line)], [(offset, offset)])

    def commit(self, next_offset: int, leader_epoch: int) -> None:
        """Make everything that was added durable. The chain goes on at *next_offset* in *leader_epoch*."""
        for name in sorted(self._changed):
            self._opened[name].sync()
        if self._new_names:
            self._files.sync_directory(self._directory)
        self._changed, self._new_names = set(), False
        self.head = msgspec.structs.replace(
            self.head,
            size=self.size,
            root=self._frontier.root().hex(),
            chain_head=self._chain_head.hex(),
            next_offset=next_offset,
            leader_epoch=leader_epoch,
            statements_size=self._statements_end,
        )
        write_metadata(self._files, join(self._directory, "head"), self.head)

    # --- what is there ----------------------------------------------------------------------------

    def entry(self, leaf: int) -> Entry:
        """Return the offsets of a leaf's frame."""
        return Entry(*ENTRY.unpack(self._opened["frames"].read_at(leaf * ENTRY.size, ENTRY.size)))

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
        """Return the offset up to which it is known that the log was let go."""
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

    def _cut_back(self) -> None:
        """Cut each file to what the head says. Of the tree, more than that is wanted of no file."""
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

    def _whole_tree(self) -> merkle.Frontier:
        """Return where the tree grows, having built it again if it is not what it must be."""
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
            raise MetadataDamaged(path, "its leaves do not have the root that head says")
        return frontier


def _tells_of_removal(statement: Statement) -> bool:
    """Return whether it says that the log was let go up to its end, with leaves or before it had any."""
    return statement.kind == "removed" or statement.reason == "removed"
