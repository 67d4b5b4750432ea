"""Removal of segment files that the committed state does not name, which a crash left."""

from __future__ import annotations

from cordwood.disk import Files, join, parent, read_file
from cordwood.formats import Format
from cordwood.storage.log.changes import SUFFIXES, TOMB_SUFFIX
from cordwood.storage.log.segment import segments_directory
from cordwood.storage.log.state import PartitionState
from cordwood.storage.meta import named_by


def remove_leftovers(
    files: Files, directory: str, quarantine: str, state: PartitionState, format_: Format
) -> tuple[str, ...]:
    """Remove segment files of the partition at *directory* that *state* does not name; return their names.

    A crash during a roll, a deletion or a truncation leaves such files. Files with records that this does not
    explain are moved to *quarantine*. Durable on return.
    """
    segments = segments_directory(directory)
    known = {f"{info.base:020d}" for info in state.sealed} | {f"{state.active_base:020d}"}
    removed = []
    names = files.list(segments)
    # Tombs last: while a tomb exists, the remaining files of its segment are known to be deleted.
    for name in sorted(names, key=lambda name: name.endswith(f".{TOMB_SUFFIX}")):
        base, _, suffix = name.partition(".")
        if base in known and suffix in SUFFIXES:
            continue
        path = join(segments, name)
        below = base.isdigit() and int(base) < min(map(int, known))
        explained = below or f"{base}.{TOMB_SUFFIX}" in names
        if not explained and _holds_records(files, path, suffix, format_):
            files.make_directories(quarantine)
            files.sync_directory(parent(quarantine))
            target = named_by(state.topic, state.topic_id, f"-{state.partition}-{name}")
            files.rename(path, join(quarantine, target))
            files.sync_directory(quarantine)
        else:
            files.unlink(path)
        removed.append(name)
    if removed:
        files.sync_directory(segments)
    return tuple(removed)


def _holds_records(files: Files, path: str, suffix: str, format_: Format) -> bool:
    """Return whether the suffix is that of a file with records, and the file has some."""
    sidecar = format_.sidecar
    if sidecar is not None and suffix == sidecar.suffix:
        return any(read_file(files, path)[sidecar.head_size :])
    return suffix == "log" and any(read_file(files, path))
