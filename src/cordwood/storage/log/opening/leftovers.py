"""Segment files that no committed state names: what a crash left, removed or put aside."""

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

    They are what a crash left of a roll, a removal or a truncation that was never committed. Bytes
    that this cannot explain go to *quarantine*. Durable on return.
    """
    segments = segments_directory(directory)
    known = {f"{info.base:020d}" for info in state.sealed} | {f"{state.active_base:020d}"}
    removed = []
    names = files.list(segments)
    # Tombs last: as long as one is there, what is left of its segment is known to be on its way out.
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
    """Return whether a file, by its suffix, is one that records are in, and has some."""
    sidecar = format_.sidecar
    if sidecar is not None and suffix == sidecar.suffix:
        return any(read_file(files, path)[sidecar.head_size :])
    return suffix == "log" and any(read_file(files, path))
