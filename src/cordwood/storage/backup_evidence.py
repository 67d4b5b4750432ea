"""Chains and checkpoints on their way into another data directory.

A chain only grows, and so do its files: what its head says before a partition is brought is still in them
when the partition is there. So no leaf comes along of a frame that does not. The key that signs stays where
it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from cordwood.integrity import merkle
from cordwood.storage.chain_files import ENTRY, ChainHead, chain_directory, read_head
from cordwood.storage.checkpoints import verifier_path
from cordwood.storage.files import Files, join, parent, read_file, write_all, write_atomically
from cordwood.storage.metadata import write_metadata

_COPY_BYTES = 8 << 20


class ChainOnItsWay(msgspec.Struct, frozen=True):
    """The chain of a partition at *directory* as it was when this was made."""

    directory: str
    head: ChainHead

    @staticmethod
    def of(files: Files, directory: str) -> ChainOnItsWay | None:
        """Return the chain that the partition at *directory* has now, None if it has none.

        Raises:
            MetadataDamaged: If that cannot be read.
        """
        head = read_head(files, directory)
        return None if head is None else ChainOnItsWay(directory, head)

    def says_as_much_as(self, other: ChainOnItsWay) -> bool:
        """Return whether nothing but frames was followed between the two."""
        return self.head.statements_size == other.head.statements_size

    def make_way(self, files: Files, directory: str) -> None:
        """Have the partition at *directory* say nothing of its frames, until `bring` does. Durable on return.

        A log that was just brought and the chain that it had before contradict each other.
        """
        target = join(chain_directory(directory), "head")
        if files.exists(target) and read_head(files, directory) != self.head:
            write_metadata(files, target, _empty(self.head))

    def bring(self, files: Files, directory: str) -> int:
        """Make it the chain of the partition at *directory* and return its bytes. Durable on return."""
        source, target = chain_directory(self.directory), chain_directory(directory)
        if files.exists(join(target, "head")):
            if read_head(files, directory) == self.head:
                return 0
        else:
            files.make_directories(target)
            files.sync_directory(parent(target))
            # What is beside it counts for nothing until it says so.
            write_metadata(files, join(target, "head"), _empty(self.head))
        sizes = {
            "leaves": self.head.size * merkle.HASH_SIZE,
            "frames": self.head.size * ENTRY.size,
            "statements": self.head.statements_size,
            "tree": merkle.node_count(self.head.size) * merkle.HASH_SIZE,
        }
        for name, size in sizes.items():
            if files.exists(join(source, name)):
                _copy(files, join(source, name), join(target, name), size)
        files.sync_directory(target)
        write_metadata(files, join(target, "head"), self.head)
        return sum(sizes.values())


def _empty(head: ChainHead) -> ChainHead:
    """Return the head of the same chain before it had a leaf."""
    first, epoch = head.first_offset, head.leader_epoch
    return ChainHead(topic_id=head.topic_id, first_offset=first, next_offset=first, leader_epoch=epoch)


def _copy(files: Files, source: str, target: str, size: int) -> None:
    opened = files.open(target, "write" if files.exists(target) else "create")
    with contextlib.closing(files.open(source, "read")) as taken, contextlib.closing(opened) as file:
        for position in range(0, size, _COPY_BYTES):
            # What is missing is said by whoever opens the chain: a copy is as good as its source.
            write_all(file, position, taken.read_at(position, min(_COPY_BYTES, size - position)))
        file.sync()


def bring_checkpoints(files: Files, source: str, target: str) -> None:
    """Bring every signed checkpoint, and the key that verifies them. Durable on return."""
    for path in [*_notes(files, source), verifier_path(source)]:
        there = join(target, path.removeprefix(join(source, "")))
        if files.exists(path) and not files.exists(there):
            for gained in files.make_directories(parent(there)):
                files.sync_directory(gained)
            write_atomically(files, there, read_file(files, path))


def _notes(files: Files, data: str) -> Iterator[str]:
    kept = join(data, "meta", "checkpoints")
    for topic_id in files.list(kept) if files.exists(kept) else ():
        for name in files.list(join(kept, topic_id)):
            if name.endswith(".note"):
                yield join(kept, topic_id, name)
