"""Adding leaves to the files of a partition's chain, and making these whole again after a crash."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import msgspec

from cordwood.errors import MetadataDamaged
from cordwood.integrity import merkle
from cordwood.integrity.chain import chained
from cordwood.storage.chain_files import (
    COPY_BYTES,
    ENTRY,
    STATEMENT,
    ChainHead,
    Entry,
    KeptChain,
    Statement,
    chain_directory,
    find_leaf,
    level_name,
    read_head,
)
from cordwood.storage.files import File, Files, join, parent, write_all
from cordwood.storage.metadata import write_metadata


class GrowingChain:
    """The chain of a partition, to add leaves to. For whoever has the directory's lock; one thread at a time.

    What is added is there once `commit` returned, all of it or nothing.
    """

    def __init__(self, files: Files, directory: str, head: ChainHead) -> None:
        """Open the files and cut off what never was committed.

        Raises:
            MetadataDamaged: If leaves, frames or statements are missing or wrong.
        """
        self.head = head
        self.size = head.size
        self._files = files
        self._directory = chain_directory(directory)
        self._chain_head = bytes.fromhex(head.chain_head)
        self._statements_end = head.statements_size
        self._opened: dict[str, File] = {}
        self._changed: set[str] = set()
        self._new_names = False
        self._last: dict[tuple[int, int], bytes] = {}
        try:
            self._cut_back()
            with contextlib.closing(KeptChain(files, directory, head)) as kept:
                self._cuts = [(each.leaf, each.start) for each in kept.statements() if each.kind != "gap"]
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

    # --- adding -----------------------------------------------------------------------------------

    def add_frames(self, leaves: Sequence[bytes], entries: Iterable[tuple[int, int]]) -> None:
        """Add the leaves of frames with these offsets, in order."""
        packed = b"".join(ENTRY.pack(*entry) for entry in entries)
        assert len(packed) == ENTRY.size * len(leaves)
        self._write("frames", self.size * ENTRY.size, packed)
        for level, hashes in enumerate(merkle.grow(self.size, leaves, self._hash_at)):
            if hashes:
                first = self.size >> level
                self._write(level_name(level), first * merkle.HASH_SIZE, b"".join(hashes))
                # The next leaf may have one of these for its left neighbour, and no other.
                self._last[level, first + len(hashes) - 1] = hashes[-1]
        self.size += len(leaves)
        self._chain_head = chained(self._chain_head, leaves)
        # Of each level only the last one can be asked for.
        self._last = {key: value for key, value in self._last.items() if key[1] == (self.size >> key[0]) - 1}

    def add_statement(self, statement: Statement, offset: int) -> None:
        """Add the leaf of *statement*, after which the chain goes on at *offset*."""
        assert statement.leaf == self.size
        line = statement.encoded()
        self._write("statements", self._statements_end, line + b"\n")
        self._statements_end += len(line) + 1
        if statement.kind != "gap":
            self._cuts.append((self.size, statement.start))
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
            root=merkle.root(self._hash_at, self.size).hex(),
            chain_head=self._chain_head.hex(),
            next_offset=next_offset,
            leader_epoch=leader_epoch,
            statements_size=self._statements_end,
        )
        write_metadata(self._files, join(self._directory, "head"), self.head)

    def entry(self, leaf: int) -> Entry:
        """Return the offsets of a leaf's frame."""
        return Entry(*ENTRY.unpack(self._file("frames").read_at(leaf * ENTRY.size, ENTRY.size)))

    def find(self, offset: int) -> int | None:
        """Return the newest leaf whose frame holds *offset*, None if there is none."""
        return find_leaf(self.entry, self.size, self._cuts, offset)

    def _hash_at(self, level: int, index: int) -> bytes:
        kept = self._last.get((level, index))
        if kept is None:
            position = index * merkle.HASH_SIZE
            kept = self._file(level_name(level)).read_at(position, merkle.HASH_SIZE)
        return kept

    def _write(self, name: str, position: int, data: bytes) -> None:
        write_all(self._file(name), position, data)
        self._changed.add(name)

    def _file(self, name: str) -> File:
        if name not in self._opened:
            path = join(self._directory, name)
            try:
                self._opened[name] = self._files.open(path, "write")
            except FileNotFoundError:
                self._opened[name] = self._files.open(path, "create")
                self._new_names = True
        return self._opened[name]

    # --- after a crash ----------------------------------------------------------------------------

    def _cut_back(self) -> None:
        """Cut each file to what the head says, and build levels again that are not what they must be."""
        head = self.head
        self._cut(level_name(0), head.size * merkle.HASH_SIZE)
        self._cut("frames", head.size * ENTRY.size)
        self._cut("statements", head.statements_size)
        sizes = merkle.level_sizes(head.size)
        short = False
        for level, size in enumerate(sizes[1:], 1):
            file = self._file(level_name(level))
            short |= file.size() < size * merkle.HASH_SIZE
            file.truncate(size * merkle.HASH_SIZE)
        # Levels that the head has no hashes for yet, which a crash left behind.
        for name in self._files.list(self._directory):
            if name.startswith("level-") and name not in self._opened:
                self._file(name).truncate(0)
        if short or self._root() != head.root:
            self._build_levels(sizes)
            if self._root() != head.root:
                path = join(self._directory, level_name(0))
                raise MetadataDamaged(path, "its leaves do not have the root that head says")

    def _cut(self, name: str, size: int) -> None:
        """Cut a file that nothing else can be built from."""
        file = self._file(name)
        if file.size() < size:
            raise MetadataDamaged(file.path, f"has {file.size()} bytes, but {size} were written")
        file.truncate(size)

    def _root(self) -> str:
        return merkle.root(self._hash_at, self.head.size).hex()

    def _build_levels(self, sizes: Sequence[int]) -> None:
        """Write every level above the leaves anew, each from the one below it."""
        self._last = {}
        step = merkle.HASH_SIZE * 2
        for level, size in enumerate(sizes[1:], 1):
            below = self._file(level_name(level - 1))
            for position in range(0, size * merkle.HASH_SIZE, COPY_BYTES):
                wanted = min(COPY_BYTES, size * merkle.HASH_SIZE - position) * 2
                data = below.read_at(position * 2, wanted)
                pairs = (data[at : at + step] for at in range(0, len(data), step))
                built = b"".join(merkle.node_hash(pair[:32], pair[32:]) for pair in pairs)
                self._write(level_name(level), position, built)
