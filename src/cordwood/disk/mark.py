"""The mark: a published lower bound of what is synced, for recovery and for readers beside a live writer.

docs/formats/directory.md has the bytes. Two slots; the slot that was synced last is not overwritten until the
other one is synced, so a power cut always leaves one valid.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

from cordwood.disk.files import File, Files, parent, read_file, write_all
from cordwood.disk.handles import RestingFile

MAGIC = b"CWMK"
SLOT_SPACING = 512
SIZE = 2 * SLOT_SPACING

_SLOT = struct.Struct(
    ">"
    "4s"  # magic
    "I"  # leader epoch
    "Q"  # sequence
    "Q"  # base offset of the active segment
    "Q"  # position
    "Q"  # next offset
    "Q"  # log start offset
    "I"  # entries of .idx that are synced
    "I"  # entries of .timeidx that are synced
    "I"  # CRC-32C of those entries of .idx
    "I"  # CRC-32C of those entries of .timeidx
)
_CRC = struct.Struct(">I")
SLOT_SIZE = _SLOT.size + _CRC.size
assert SLOT_SIZE == 68


class Mark(NamedTuple):
    """Every byte of segment ``base`` before ``position`` is synced."""

    leader_epoch: int
    sequence: int
    base: int
    position: int
    next_offset: int
    log_start_offset: int
    index_entries: int
    time_index_entries: int
    index_crc: int
    time_index_crc: int


def encode_slot(mark: Mark) -> bytes:
    """Return the bytes of a slot."""
    body = _SLOT.pack(MAGIC, *mark)
    return body + _CRC.pack(google_crc32c.value(body))


def decode_slots(data: bytes) -> list[Mark]:
    """Return the valid slots of a mark file, the newest first. Any bytes may come in."""
    found = []
    for start in (0, SLOT_SPACING):
        slot = data[start : start + SLOT_SIZE]
        if len(slot) < SLOT_SIZE or slot[:4] != MAGIC:
            continue
        if _CRC.unpack_from(slot, _SLOT.size)[0] == google_crc32c.value(slot[: _SLOT.size]):
            found.append(Mark._make(_SLOT.unpack_from(slot)[1:]))
    return sorted(found, key=lambda mark: mark.sequence, reverse=True)


def read_marks(files: Files, path: str) -> list[Mark]:
    """Return the valid slots of the mark file at *path*, the newest first; none if there is no file."""
    try:
        return decode_slots(read_file(files, path))
    except FileNotFoundError:
        return []


def read_published(files: Files, path: str) -> tuple[list[Mark], bool]:
    """Return the valid slots, newest first, and whether a slot is neither valid nor empty, or missing.

    Beside a live writer that may be a slot that is being written at this moment.
    """
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return [], True
    slots = decode_slots(data)
    used = sum(any(data[start : start + SLOT_SIZE]) for start in (0, SLOT_SPACING))
    return slots, len(data) < SIZE or used != len(slots) or not slots


class MarkFile:
    """The writer's side. One caller at a time."""

    def __init__(self, file: File, sequence: int, slot: int) -> None:
        self.file: File = file
        self._sequence = sequence
        self._slot = slot
        self._newest_may_be_unsynced = False

    @classmethod
    def create(cls, files: Files, path: str, mark: Mark) -> MarkFile:
        """Create a mark file with *mark*. Durable on return, its name included."""
        file = files.open(path, "create")
        write_all(file, 0, bytes(SIZE))
        created = cls(file, mark.sequence, 0)
        created.write(mark)
        created.sync()
        files.sync_directory(parent(path))
        return created

    @classmethod
    def open(cls, files: Files, path: str) -> MarkFile:
        """Open the mark file for writing; create it if it is missing.

        The caller must have read it before; call `write` and `sync` to make it valid again.
        """
        try:
            file = files.open(path, "write")
        except FileNotFoundError:
            file = files.open(path, "create")
            write_all(file, 0, bytes(SIZE))
        slots = decode_slots(file.read_at(0, SIZE))
        if not slots:
            return cls(file, 0, 0)
        # The newest valid slot may be all that a power cut leaves, so the other one is written first.
        newest = slots[0].sequence
        in_first = [mark.sequence for mark in decode_slots(file.read_at(0, SLOT_SPACING))]
        opened = cls(file, newest, 1 if in_first == [newest] else 0)
        opened._newest_may_be_unsynced = True
        return opened

    def write(self, mark: Mark) -> None:
        """Write *mark* with the next sequence number. Visible at once; durable after `sync`."""
        if self._newest_may_be_unsynced:
            # A killed writer may have left this slot unsynced. With the other slot half written, a power cut
            # would then leave no valid slot.
            self.file.sync()
            self._newest_may_be_unsynced = False
        self._sequence += 1
        slot = encode_slot(mark._replace(sequence=self._sequence))
        write_all(self.file, self._slot * SLOT_SPACING, slot)

    def sync(self) -> None:
        """Sync the last written slot, and do not overwrite it until the next `sync`."""
        self.file.sync()
        self._slot ^= 1

    def rest(self, files: Files) -> int:
        """Close the file until it is needed again; return the number of freed handles."""
        if isinstance(self.file, RestingFile):
            return 0
        # Unsynced content is written again before the next sync.
        self.file = RestingFile(files, self.file.path, self, synced=False)
        return 1

    def close(self) -> None:
        """Close the file; syncs nothing."""
        self.file.close()
