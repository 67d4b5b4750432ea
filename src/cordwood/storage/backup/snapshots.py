"""Transfer snapshots of state to another data directory.

Retention may have deleted the records that a snapshot was derived from, so a copy without it would give less.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from cordwood.disk import Files, join, parent, read_file, write_atomically
from cordwood.storage.directory import decode_snapshot, snapshot_offsets, snapshot_path


class TakenChain(NamedTuple):
    """How far the copy of a log and its chain goes: to ``end``, its next record, with ``leaves``."""

    end: int
    leaves: int


def copy_snapshots(files: Files, source: str, target: str, taken: TakenChain) -> int:
    """Make the snapshots in *target* those of *source* that the copied log covers; return the copied bytes.

    A damaged one is copied as it is: it is passed over, in the copy as in the source. Durable on return.
    """
    copied, wanted = 0, dict[int, bytes]()
    for offset in snapshot_offsets(files, source):
        # Removed by its application after it was listed.
        with contextlib.suppress(FileNotFoundError):
            data = read_file(files, snapshot_path(source, offset))
            if _is_covered(data, offset, taken):
                wanted[offset] = data
    there = snapshot_offsets(files, target)
    for offset in set(there) - set(wanted):
        files.unlink(snapshot_path(target, offset))
    if not wanted:
        return 0
    for gained in files.make_directories(target):
        files.sync_directory(gained)
    files.sync_directory(parent(target))
    for offset, data in wanted.items():
        path = snapshot_path(target, offset)
        if offset not in there or read_file(files, path) != data:
            write_atomically(files, path, data)
            copied += len(data)
    return copied


def drop_snapshots_beyond(files: Files, directory: str, end: int) -> None:
    """Remove the snapshots in *directory* of records that were cut from a log that ends at *end* now."""
    for offset in snapshot_offsets(files, directory):
        path = snapshot_path(directory, offset)
        if not _is_covered(read_file(files, path), offset, TakenChain(end, 1 << 63)):
            files.unlink(path)


def drop_shared_snapshots_beyond(files: Files, data: str, end: int) -> None:
    """Do the same for every topic of the shared log, which ends at the id *end* now."""
    home = join(data, "meta", "snapshots")
    for topic_id in topics_with_snapshots(files, data):
        for partition in files.list(join(home, topic_id)):
            drop_snapshots_beyond(files, join(home, topic_id, partition), end)


def topics_with_snapshots(files: Files, data: str) -> list[str]:
    """Return the ids of the topics in the shared log that have snapshots."""
    home = join(data, "meta", "snapshots")
    return files.list(home) if files.exists(home) else []


def _is_covered(data: bytes, offset: int, taken: TakenChain) -> bool:
    try:
        snapshot = decode_snapshot(data, offset)
    except ValueError:
        return True
    return snapshot.last < taken.end and snapshot.anchor.leaves <= taken.leaves
