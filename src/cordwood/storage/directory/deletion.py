"""Removing a topic: the catalogue says so first, then its directory goes, now or after a crash.

One rename takes the whole directory out of ``topics/``, so a new topic of the same name never finds files
of the old one. The moved directory in ``tmp/`` belongs to no topic and is removed file by file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from cordwood.disk import Files, join, remove_tree
from cordwood.errors import CordwoodError
from cordwood.storage.log import read_state
from cordwood.storage.meta import TopicEntry

SUFFIX = ".deleted"


def discard_topic(files: Files, data: str, entry: TopicEntry) -> None:
    """Remove the directory of a topic that the catalogue no longer has.

    Its name is free, durably, on return. Files that cannot be removed now are removed at the next open.

    Raises:
        OSError: If the directory could not be moved out of the way.
    """
    source, away = join(data, "topics", entry.name), join(data, "tmp")
    if not files.exists(source):
        return
    files.make_directories(away)
    files.sync_directory(data)
    target = join(away, entry.id + SUFFIX)
    files.rename(source, target)
    files.sync_directory(away)
    files.sync_directory(join(data, "topics"))
    with contextlib.suppress(OSError):
        remove_tree(files, target)


def finish_deletions(
    files: Files, data: str, topics: Mapping[str, TopicEntry], deleted: Mapping[str, TopicEntry]
) -> None:
    """Finish deletions that are in the catalogue and that a crash interrupted."""
    snapshots = join(data, "meta", "snapshots")
    for topic_id in files.list(snapshots) if files.exists(snapshots) else ():
        if topic_id in deleted:
            discard_snapshots(files, data, deleted[topic_id])
    for entry in deleted.values():
        directory = join(data, "topics", entry.name)
        if files.exists(directory) and (entry.name not in topics or _is_of(files, directory, entry)):
            # If it cannot be moved, opening a topic of the same name is refused: the files are not its own.
            with contextlib.suppress(OSError):
                discard_topic(files, data, entry)


def discard_snapshots(files: Files, data: str, entry: TopicEntry) -> None:
    """Remove the snapshots of a topic in the shared log. The next open removes those that are left.

    They are found by the topic's id, so a new topic of the same name never sees them.
    """
    with contextlib.suppress(OSError):
        if files.exists(place := join(data, "meta", "snapshots", entry.id)):
            remove_tree(files, place)


def remove_moved(files: Files, data: str) -> None:
    """Remove directories of deleted topics from ``tmp/``. Errors are ignored; the next open tries again."""
    away = join(data, "tmp")
    for name in files.list(away) if files.exists(away) else ():
        if name.endswith(SUFFIX):
            with contextlib.suppress(OSError):
                remove_tree(files, join(away, name))


def _is_of(files: Files, directory: str, entry: TopicEntry) -> bool:
    """Return whether a partition in *directory* is one of the topic *entry*."""
    for name in files.list(directory):
        # A partition that cannot be read is not known to be of a deleted topic, so it stays.
        with contextlib.suppress(CordwoodError, OSError, msgspec.MsgspecError):
            if read_state(files, join(directory, name)).topic_id == entry.id:
                return True
    return False
