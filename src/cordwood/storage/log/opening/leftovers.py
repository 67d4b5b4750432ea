"""Segment files that the committed state does not name: removed if a crash explains them, else set aside."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from cordwood.disk import Files, join, parent, read_file
from cordwood.formats import Format
from cordwood.storage.log.changes import SUFFIXES, SWAP_SUFFIX, TOMB_SUFFIX, truncation
from cordwood.storage.log.segment import segments_directory
from cordwood.storage.log.state import PartitionState
from cordwood.storage.meta import named_by

#: Files of a segment that can be built again from its other files.
_DERIVED = tuple(suffix for suffix in SUFFIXES if suffix not in ("log", *truncation.SIDECAR_SUFFIXES))
#: What a crash may leave without records of its own: derived files, tombs, files that were half written, and
#: copies that were prepared for a change which was never committed.
_EXPLAINED = frozenset(
    {
        TOMB_SUFFIX,
        *_DERIVED,
        *(f"{suffix}.{ending}" for suffix in SUFFIXES for ending in ("tmp", SWAP_SUFFIX, "cut")),
    }
)


class Leftovers(NamedTuple):
    """The names of files that were in ``segments/`` without a place in the log: deleted, and set aside."""

    deleted: tuple[str, ...]
    set_aside: tuple[str, ...]


def remove_leftovers(
    files: Files, directory: str, quarantine: str, state: PartitionState, format_: Format
) -> Leftovers:
    """Remove segment files of the partition at *directory* that *state* does not name. Durable on return.

    A crash during a roll, a deletion or a truncation leaves such files. They are deleted if they hold no
    records, if a tomb says that their segment was being removed, or if the state says that the log start
    moved past it. All others are moved to *quarantine*: nothing proves that their bytes are not needed.
    """
    segments = segments_directory(directory)
    known = {f"{info.base:020d}" for info in state.sealed} | {f"{state.active_base:020d}"}
    going = {f"{base:020d}" for base in state.removing}
    deleted, set_aside = [], []
    names = files.list(segments)
    # Tombs last: while a tomb exists, the remaining files of its segment are known to be deleted.
    for name in sorted(names, key=lambda name: name.endswith(f".{TOMB_SUFFIX}")):
        base, _, suffix = name.partition(".")
        if base in known and suffix in SUFFIXES:
            continue
        removed = base in going or f"{base}.{TOMB_SUFFIX}" in names
        explained = suffix in _EXPLAINED or (removed and base not in known and suffix in SUFFIXES)
        if explained or not _holds_bytes(files, join(segments, name), suffix, format_):
            files.unlink(join(segments, name))
            deleted.append(name)
        else:
            move_to_quarantine(files, directory, quarantine, state, name)
            set_aside.append(name)
    if deleted or set_aside:
        files.sync_directory(segments)
    return Leftovers(tuple(deleted), tuple(set_aside))


def move_to_quarantine(
    files: Files, directory: str, quarantine: str, state: PartitionState, name: str
) -> str:
    """Move a file of ``segments/`` to *quarantine*, never over another one; return its new path.

    Durable on return, except that the old name may come back with the same bytes after a power cut, until
    ``segments/`` is synced.
    """
    files.make_directories(quarantine)
    files.sync_directory(parent(quarantine))
    for number in count():
        again = f".{number}" if number else ""
        rest = f"-{state.partition}-{name}{again}"
        target = join(quarantine, named_by(state.topic, state.topic_id, rest))
        if not files.exists(target):
            break
    files.rename(join(segments_directory(directory), name), target)
    files.sync_directory(quarantine)
    return target


def holds_records(files: Files, path: str) -> bool:
    """Return whether there is a file at *path* with a byte that is not zero."""
    return files.exists(path) and any(read_file(files, path))


def _holds_bytes(files: Files, path: str, suffix: str, format_: Format) -> bool:
    """Return whether the file has a byte that is not zero, after the head that every sidecar has."""
    sidecar = format_.sidecar
    head = sidecar.head_size if sidecar is not None and suffix == sidecar.suffix else 0
    return any(read_file(files, path)[head:])
