"""Transfer chains and checkpoints to another data directory.

A chain and its files only grow, so the head that is read before a partition is transferred is still valid
afterwards. This way no leaf is transferred without its frame. The private key is never transferred.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from cordwood.disk import Files, join, parent, read_file, write_all, write_atomically, write_metadata
from cordwood.integrity import merkle
from cordwood.storage.chain import (
    ENTRY,
    ChainHead,
    chain_directory,
    list_numbers,
    list_path,
    read_head,
    verifier_path,
)

_COPY_BYTES = 8 << 20


class ChainCopy(msgspec.Struct, frozen=True):
    """The chain of a partition at *directory* as it was when this was made."""

    directory: str
    head: ChainHead

    @staticmethod
    def of(files: Files, directory: str) -> ChainCopy | None:
        """Return the current chain of the partition at *directory*, None without one.

        Raises:
            MetadataDamaged: If that cannot be read.
        """
        head = read_head(files, directory)
        return None if head is None else ChainCopy(directory, head)

    def has_statements_of(self, other: ChainCopy) -> bool:
        """Return whether only frames, no statements, were added between the two."""
        return self.head.statements_size == other.head.statements_size

    def reset(self, files: Files, directory: str) -> None:
        """Reset the chain of the partition at *directory* until `copy` writes it. Durable on return.

        A new log would contradict the old chain.
        """
        target = join(chain_directory(directory), "head")
        if files.exists(target) and read_head(files, directory) != self.head:
            write_metadata(files, target, _empty(self.head))

    def copy(self, files: Files, directory: str) -> int:
        """Write the chain of the partition at *directory*; return its bytes. Durable on return."""
        source, target = chain_directory(self.directory), chain_directory(directory)
        if files.exists(join(target, "head")):
            if read_head(files, directory) == self.head:
                return 0
        else:
            files.make_directories(target)
            files.sync_directory(parent(target))
            # The other files have no effect until the head is written.
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
        committed = read_head(files, directory)
        listed = self._copy_lists(files, source, target, 0 if committed is None else committed.size)
        files.sync_directory(target)
        write_metadata(files, join(target, "head"), self.head)
        return sum(sizes.values()) + listed

    def _copy_lists(self, files: Files, source: str, target: str, committed: int) -> int:
        """Copy the salt and the lists of records; return their bytes.

        Lists never change, so those of the first *committed* leaves, which the head of *target* covers, are
        there. Others may be what a crash left of a copy.
        """
        salt = join(source, "salt")
        if files.exists(salt):
            write_atomically(files, join(target, "salt"), read_file(files, salt))
        wanted = [number for number in list_numbers(files, source) if number < self.head.size]
        for number in set(list_numbers(files, target)) - set(wanted):
            files.unlink(list_path(target, number))
        copied = 0
        for number in wanted:
            taken, made = list_path(source, number), list_path(target, number)
            size = _size(files, taken)
            copied += size
            for gained in files.make_directories(parent(made)):
                files.sync_directory(gained)
            if number < committed and files.exists(made):
                continue
            with contextlib.suppress(FileNotFoundError):
                files.unlink(made)
            _copy(files, taken, made, size)
        if wanted:
            files.sync_directory(parent(list_path(target, 0)))
        return copied


def _empty(head: ChainHead) -> ChainHead:
    """Return the head of this chain without leaves."""
    first, epoch = head.first_offset, head.leader_epoch
    return ChainHead(topic_id=head.topic_id, first_offset=first, next_offset=first, leader_epoch=epoch)


def _size(files: Files, path: str) -> int:
    with contextlib.closing(files.open(path, "read")) as file:
        return file.size()


def _copy(files: Files, source: str, target: str, size: int) -> None:
    opened = files.open(target, "write" if files.exists(target) else "create")
    with contextlib.closing(files.open(source, "read")) as taken, contextlib.closing(opened) as file:
        for position in range(0, size, _COPY_BYTES):
            # Missing bytes are reported when the chain is opened: a copy is as good as its source.
            write_all(file, position, taken.read_at(position, min(_COPY_BYTES, size - position)))
        file.sync()


def copy_checkpoints(files: Files, source: str, target: str) -> None:
    """Copy every signed checkpoint and the public key. Durable on return."""
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
