"""Which version of the state a directory may have shipped: an older copy of it knows only older ones.

A version is the time of a piece, `BodyTable.at_ms`, which grows with every piece that changes something.
It is written down before the piece is sent. So a directory that does not know the version of the bucket is a
copy from before it was shipped, for example the snapshot of a virtual machine.
"""

from __future__ import annotations

import contextlib
import struct

import google_crc32c

from cordwood.disk import Files, join, parent, write_all

#: Where the version is. The file is overwritten in place, so a full disk does not keep it from growing.
VERSION_FILE = "meta/shipped"

_SLOT = struct.Struct(
    ">"
    "4s"  # magic
    "I"  # reserved, 0
    "Q"  # version
)
_CRC = struct.Struct(">I")
_MAGIC = b"CWSV"
SLOT_SIZE = _SLOT.size + _CRC.size
assert SLOT_SIZE == 20
_SLOTS = 2


def read_version(files: Files, data: str) -> int:
    """Return the newest version that the directory *data* may have shipped, 0 without one."""
    path = join(data, VERSION_FILE)
    if not files.exists(path):
        return 0
    with contextlib.closing(files.open(path, "read")) as file:
        return max(_version(file.read_at(slot * SLOT_SIZE, SLOT_SIZE)) for slot in range(_SLOTS))


def write_version(files: Files, data: str, version: int) -> None:
    """Write down that *version* may be shipped, unless a larger one is there. Durable on return."""
    path = join(data, VERSION_FILE)
    if read_version(files, data) >= version:
        return
    created = not files.exists(path)
    with contextlib.closing(files.open(path, "create" if created else "write")) as file:
        found = [_version(file.read_at(slot * SLOT_SIZE, SLOT_SIZE)) for slot in range(_SLOTS)]
        head = _SLOT.pack(_MAGIC, 0, version)
        # The slot with the newest version stays: a torn write must not lose both.
        write_all(file, found.index(min(found)) * SLOT_SIZE, head + _CRC.pack(google_crc32c.value(head)))
        file.sync()
    if created:
        files.sync_directory(parent(path))


def _version(slot: bytes) -> int:
    """Return the version in *slot*, 0 if it has none: it was never written, or its write was torn."""
    if len(slot) < SLOT_SIZE:
        return 0
    magic, _, version = _SLOT.unpack_from(slot)
    (crc,) = _CRC.unpack_from(slot, _SLOT.size)
    whole = magic == _MAGIC and crc == google_crc32c.value(slot[: _SLOT.size])
    return int(version) if whole else 0
