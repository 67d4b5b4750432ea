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

# After the slot, with a checksum that covers the slot too: version 0.1.0 neither writes nor reads it, and a
# time that a torn write or that version left beside another slot must not be taken for the time of this one.
_APPENDED = struct.Struct(
    ">q"  # when the last record was appended, in milliseconds
)
EXTENDED_SIZE = SLOT_SIZE + _APPENDED.size + _CRC.size
assert EXTENDED_SIZE == 80
# After that, with a checksum that covers everything before it, if the partition has had transactions. Zeros
# otherwise, and where a write was torn, so zeros say nothing.
_STABLE = struct.Struct(
    ">Q"  # last stable offset
    "I"  # entries of .txnindex below the next offset
    "I"  # CRC-32C of those entries
)
STABLE_SIZE = EXTENDED_SIZE + _STABLE.size + _CRC.size
assert STABLE_SIZE == 100
#: The append time of a slot that does not say it.
UNKNOWN_MS = -1
#: The last stable offset of a slot that does not say it.
UNKNOWN_OFFSET = -1


class Mark(NamedTuple):
    """Every byte of segment ``base`` before ``position`` is synced.

    No record below ``next_offset`` was appended after ``appended_ms``, which may be UNKNOWN_MS. No record
    below ``last_stable_offset``, which may be UNKNOWN_OFFSET, is in an open transaction.
    """

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
    appended_ms: int = UNKNOWN_MS
    last_stable_offset: int = UNKNOWN_OFFSET
    aborted_entries: int = 0
    aborted_crc: int = 0


#: The fields of `Mark` before the append time.
_SLOT_FIELDS = 10


def encode_slot(mark: Mark) -> bytes:
    """Return the bytes of a slot; zeros take the place of what is unknown or need not be said."""
    body = _SLOT.pack(MAGIC, *mark[:_SLOT_FIELDS])
    crc = google_crc32c.value(body)
    slot = body + _CRC.pack(crc)
    if mark.appended_ms == UNKNOWN_MS:
        slot = slot.ljust(EXTENDED_SIZE, b"\0")
    else:
        rest = slot[_SLOT.size :] + _APPENDED.pack(mark.appended_ms)
        slot = body + rest + _CRC.pack(google_crc32c.extend(crc, rest))
    if mark.last_stable_offset == UNKNOWN_OFFSET:
        return slot.ljust(STABLE_SIZE, b"\0")
    slot += _STABLE.pack(mark.last_stable_offset, mark.aborted_entries, mark.aborted_crc)
    return slot + _CRC.pack(google_crc32c.value(slot))


def decode_slots(data: bytes) -> list[Mark]:
    """Return the valid slots of a mark file, the newest first. Any bytes may come in."""
    found = []
    for start in (0, SLOT_SPACING):
        slot = data[start : start + SLOT_SIZE]
        if len(slot) < SLOT_SIZE or slot[:4] != MAGIC:
            continue
        if _CRC.unpack_from(slot, _SLOT.size)[0] == google_crc32c.value(slot[: _SLOT.size]):
            mark = Mark(*_SLOT.unpack_from(slot)[1:])
            appended_ms = _appended_ms(data[start : start + EXTENDED_SIZE])
            stable, entries, crc = _stable(data[start : start + STABLE_SIZE])
            found.append(
                mark._replace(
                    appended_ms=appended_ms,
                    last_stable_offset=stable,
                    aborted_entries=entries,
                    aborted_crc=crc,
                )
            )
    return sorted(found, key=lambda mark: mark.sequence, reverse=True)


def _appended_ms(extended: bytes) -> int:
    """Return the append time after a valid slot, UNKNOWN_MS if there is none that belongs to it."""
    end = EXTENDED_SIZE - _CRC.size
    if len(extended) < EXTENDED_SIZE:
        return UNKNOWN_MS
    if _CRC.unpack_from(extended, end)[0] != google_crc32c.value(extended[:end]):
        return UNKNOWN_MS
    (appended_ms,) = _APPENDED.unpack_from(extended, SLOT_SIZE)
    # Zeros, with a slot whose checksum happens to be theirs, are no time.
    return int(appended_ms) or UNKNOWN_MS


def _stable(stored: bytes) -> tuple[int, int, int]:
    """Return the last stable offset after a valid slot, and the entries of .txnindex with their checksum."""
    end = STABLE_SIZE - _CRC.size
    if len(stored) < STABLE_SIZE or _CRC.unpack_from(stored, end)[0] != google_crc32c.value(stored[:end]):
        return UNKNOWN_OFFSET, 0, 0
    return _STABLE.unpack_from(stored, EXTENDED_SIZE)


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
        # Not `_replace`, which calls a function for each field.
        slot = encode_slot(Mark(mark.leader_epoch, self._sequence, *mark[2:]))
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
