"""The entries of an index file or of a file of checksums."""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.disk import PosixFiles


class _Layout(NamedTuple):
    """The layout of an entry, the names of its fields, and how many bytes come before the first entry."""

    entry: struct.Struct
    fields: tuple[str, ...]
    start: int = 0


_INDEXES = {
    ".idx": _Layout(struct.Struct(">QQ"), ("offset", "position")),
    ".timeidx": _Layout(struct.Struct(">qQ"), ("timestamp", "offset")),
    ".txnindex": _Layout(
        struct.Struct(">hqqqq"),
        ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset"),
    ),
    ".sum": _Layout(struct.Struct(">QII"), ("position", "length", "crc32c")),
    ".index": _Layout(struct.Struct("<QII"), ("crc32", "length", "position"), 16),
    ".oidx": _Layout(
        struct.Struct("<QQQ16sIIQQIBxhqqiI"),
        (
            "first_id",
            "first_offset",
            "org",
            "topic_hash",
            "partition",
            "ids",
            "segment",
            "position",
            "size",
            "kind",
            "producer_epoch",
            "producer_id",
            "max_timestamp",
            "base_sequence",
            "crc32c",
        ),
    ),
}
_DERIVED = (".idx", ".timeidx", ".txnindex", ".oidx")


@dataclass(frozen=True, slots=True)
class InspectedIndex:
    """The whole entries of a file, each with a value for every name in ``fields``; bytes are in hex.

    ``cut_off`` is a sentence about an incomplete last entry, None if there is none.
    """

    fields: tuple[str, ...]
    entries: list[tuple[object, ...]]
    cut_off: str | None


def is_index(file: str | os.PathLike[str]) -> bool:
    """Return whether *file* is, by its name, one that `inspect_index` reads."""
    return os.fspath(file).endswith(tuple(_INDEXES))


def inspect_index(file: str | os.PathLike[str]) -> InspectedIndex:
    """Return the entries of an index file or of a file of checksums, which its name tells.

    Raises:
        ValueError: If it is neither by its name.
        OSError: If it cannot be read.
    """
    path = os.fspath(file)
    layout = next((layout for suffix, layout in _INDEXES.items() if path.endswith(suffix)), None)
    if layout is None:
        raise ValueError(f"{path} is not an index by its name: it ends with none of {', '.join(_INDEXES)}")
    entry, fields, start = layout
    with contextlib.closing(PosixFiles().open(path, "read")) as opened:
        data = opened.read_at(start, max(opened.size() - start, 0))
    whole = len(data) // entry.size * entry.size
    entries = [
        tuple(value.hex() if isinstance(value, bytes) else value for value in row)
        for row in entry.iter_unpack(data[:whole])
    ]
    cut_off = None
    if whole < len(data):
        then = (
            "it is rebuilt" if path.endswith(_DERIVED) else "it is cut if its record was never acknowledged"
        )
        cut_off = f"{path} at byte {start + whole}: an entry is cut off; {then} when the log is opened"
    return InspectedIndex(fields, entries, cut_off)
