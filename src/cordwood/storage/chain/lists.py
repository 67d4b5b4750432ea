"""Lists of the records of frames that compaction rewrote, as they were first appended.

A file in ``chain/lists`` belongs to a statement. Its name is the number of the first leaf that was added with
the statement, 20 digits. It has a block for each frame: the number of its leaf, the fields that the leaf
commits to, and an item for each record. In the shared log it has the number of the leaf, the envelope and the
hash of the batch of each frame that was dropped. A file is written once, and synced before the statement is.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cordwood.disk import File, Files, ReadableFile, join, write_all
from cordwood.errors import MetadataDamaged
from cordwood.integrity import record_leaf
from cordwood.kernels import ITEM_SIZE, Buffer
from cordwood.storage.chain.statements import LeafRange, Statement

_LEAF = struct.Struct(">Q")
_HEAD_SIZE = _LEAF.size + record_leaf.FACTS_SIZE
#: The bytes that are gathered before they are written.
_WRITE_BYTES = 1 << 20


def lists_directory(chain: str) -> str:
    """Return the directory of the lists of the chain in *chain*."""
    return join(chain, "lists")


def list_path(chain: str, number: int) -> str:
    """Return the path of the lists that belong to the statement whose first leaf is *number*."""
    return join(lists_directory(chain), f"{number:020d}")


def list_numbers(files: Files, chain: str) -> list[int]:
    """Return the numbers of the files of lists, ascending."""
    directory = lists_directory(chain)
    names = files.list(directory) if files.exists(directory) else []
    return [int(name) for name in names if len(name) == 20 and name.isascii() and name.isdigit()]


class RecordList(NamedTuple):
    """The list of one frame: its leaf, the fields of the leaf, and the items of its records."""

    leaf: int
    facts: record_leaf.LeafFacts
    items: bytes

    def holds(self, leaf_hash: bytes) -> bool:
        """Return whether it is the list that the leaf commits to."""
        entries = record_leaf.entries_of(self.facts.base_offset, self.items)
        return record_leaf.record_leaf(self.facts, record_leaf.root_of(entries)) == leaf_hash


class ListWriter:
    """Writes the lists of one statement. The file appears with the first one."""

    def __init__(self, files: Files, chain: str, number: int) -> None:
        self.count = 0
        self._files = files
        self._chain = chain
        self._path = list_path(chain, number)
        self._file: File | None = None
        self._size = 0
        self._pending = bytearray()

    def add(self, leaf: int, facts: record_leaf.LeafFacts, items: Buffer) -> None:
        """Add the list of the frame with *leaf*."""
        assert facts.is_listable
        assert len(items) == facts.record_count * ITEM_SIZE
        self.count += 1
        self._pending += _LEAF.pack(leaf) + facts.packed()
        self._pending += items
        if len(self._pending) >= _WRITE_BYTES:
            self._write()

    def add_envelope(self, leaf: int, frame: Buffer) -> None:
        """Add what is kept of a frame of the shared log with *leaf*."""
        self.count += 1
        self._pending += record_leaf.dropped_envelope(leaf, frame)
        if len(self._pending) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = self._create()
        write_all(self._file, self._size, self._pending)
        self._size += len(self._pending)
        self._pending = bytearray()

    def _create(self) -> File:
        if self._files.make_directories(lists_directory(self._chain)):
            self._files.sync_directory(self._chain)
        with contextlib.suppress(FileNotFoundError):
            # A process that crashed before its statement was durable left it.
            self._files.unlink(self._path)
        return self._files.open(self._path, "create")

    def finish(self) -> None:
        """Make the file durable, if there is one."""
        if self._pending:
            self._write()
        if self._file is not None:
            self._file.sync()
            self._files.sync_directory(lists_directory(self._chain))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_lists(file: ReadableFile) -> Iterator[RecordList]:
    """Yield the lists in *file*, in order.

    Raises:
        MetadataDamaged: If the file ends inside a list.
    """
    position, size = 0, file.size()
    while position < size:
        head = file.read_at(position, _HEAD_SIZE)
        if len(head) < _HEAD_SIZE:
            raise MetadataDamaged(file.path, f"ends in the list at byte {position}")
        facts = record_leaf.unpack_facts(head, _LEAF.size)
        items_size = facts.record_count * ITEM_SIZE
        if not facts.is_listable or not 0 <= items_size <= size - position - _HEAD_SIZE:
            found = f"{facts.record_count} records in the list at byte {position}"
            raise MetadataDamaged(file.path, f"has {found}")
        leaf: int = _LEAF.unpack_from(head)[0]
        yield RecordList(leaf, facts, file.read_at(position + _HEAD_SIZE, items_size))
        position += _HEAD_SIZE + items_size


def find_kept_list(
    files: Files, chain: str, statements: Sequence[Statement], entry: LeafRange, leaf: int
) -> RecordList | None:
    """Return the list of *leaf*, whose frame has the offsets in *entry*, None without one."""
    for each in statements:
        overlap = each.start < entry.next_offset and entry.first_offset < each.end
        if each.lists and each.kind != "expired" and overlap:
            path = list_path(chain, each.first_leaf)
            if files.exists(path):
                with contextlib.closing(files.open(path, "read")) as file:
                    for found in read_lists(file):
                        if found.leaf == leaf:
                            return found
    return None
