"""Removing a topic: the catalogue says so first, then its directory goes, now or after a crash.

One rename takes the whole directory out of ``topics/``, so a topic of the same name never meets what is
left of the old one. What was moved to ``tmp/`` is nobody's and is removed file by file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from cordwood.errors import CordwoodError
from cordwood.storage.catalogue import TopicEntry
from cordwood.storage.files import Files, join
from cordwood.storage.partition_state import read_state

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
    """Do what a crash left undone of deletions that the catalogue has."""
    for entry in deleted.values():
        directory = join(data, "topics", entry.name)
        if files.exists(directory) and (entry.name not in topics or _is_of(files, directory, entry)):
            # Where it cannot be moved, a topic of the same name is refused: it is not the one on disk.
            with contextlib.suppress(OSError):
                discard_topic(files, data, entry)


def remove_moved(files: Files, data: str) -> None:
    """Remove what is left of topics that were moved away, as far as that works."""
    away = join(data, "tmp")
    for name in files.list(away) if files.exists(away) else ():
        if name.endswith(SUFFIX):
            with contextlib.suppress(OSError):
                remove_tree(files, join(away, name))


def _is_of(files: Files, directory: str, entry: TopicEntry) -> bool:
    """Return whether a partition in *directory* is one of the topic *entry*."""
    for name in files.list(directory):
        # What cannot be read is not known to be of a deleted topic, so it stays.
        with contextlib.suppress(CordwoodError, OSError, msgspec.MsgspecError):
            if read_state(files, join(directory, name)).topic_id == entry.id:
                return True
    return False


def remove_tree(files: Files, path: str) -> None:
    """Remove a directory with everything in it. Not durable: a crash may leave any part of it."""
    for name in files.list(path):
        below = join(path, name)
        if files.is_directory(below):
            remove_tree(files, below)
        else:
            files.unlink(below)
    files.remove_directory(path)
