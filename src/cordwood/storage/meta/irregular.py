"""Refuse links, pipes and devices in a data directory: they lead out of it or block reads.

Cordwood creates only files and directories. The data directory itself may be a symbolic link.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from cordwood.disk import Files, join, parent
from cordwood.errors import MetadataDamaged

#: The directories that Cordwood creates in a data directory and in a partition's directory.
_OF_DIRECTORY = ("meta", "topics", "tmp", "quarantine")
_OF_PARTITION = ("segments", "chain", "snapshots")


def check_regular(files: Files, directories: Iterable[str]) -> None:
    """Refuse *directories* with a name that is neither a file nor a directory. Missing ones are accepted.

    Raises:
        MetadataDamaged: Names the first one.
    """
    for directory in directories:
        for name in irregular_in(files, directory):
            raise irregular(join(directory, name))


def check_regular_partition(files: Files, directory: str) -> None:
    """Refuse a partition at *directory* that has anything but files and directories.

    Raises:
        MetadataDamaged: Names the first such entry.
    """
    inner = (join(directory, name) for name in _OF_PARTITION)
    check_regular(files, (parent(directory), directory, *inner))


def check_regular_to_read(files: Files, data: str) -> None:
    """Refuse a data directory whose files that are read first include a link, pipe or device.

    Raises:
        MetadataDamaged: Names the first such entry.
    """
    for name in irregular_in(files, data):
        # Other names in it are never read.
        if name in _OF_DIRECTORY:
            raise irregular(join(data, name))
    check_regular(files, (join(data, "meta"), join(data, "topics")))


def check_regular_directory(files: Files, data: str) -> None:
    """Refuse a data directory with a link, pipe or device outside of its partitions.

    Raises:
        MetadataDamaged: Names the first such entry.
    """
    check_regular_to_read(files, data)
    check_regular(files, _beside_partitions(files, data))


def irregular(path: str) -> MetadataDamaged:
    """Return the error for a name that is neither a file nor a directory."""
    return MetadataDamaged(path, "is neither a file nor a directory: a data directory has no links or pipes")


def irregular_in(files: Files, directory: str) -> list[str]:
    """Return the names in *directory* that are neither files nor directories; empty if it is a file."""
    # A file in the place of a directory is refused by the code that expects a directory.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return files.irregular(directory)
    return []


def _beside_partitions(files: Files, data: str) -> Iterator[str]:
    """Yield directories from the top down: each is listed only after it was checked."""
    meta, tmp = join(data, "meta"), join(data, "tmp")
    yield from (tmp, join(data, "quarantine"))
    yield from (join(meta, "sink"), join(meta, "keys"), join(meta, "checkpoints"))
    yield from _below(files, join(meta, "checkpoints"), 1)
    yield join(tmp, "sink")
    yield from _below(files, join(tmp, "sink"), 2)


def _below(files: Files, directory: str, depth: int) -> Iterator[str]:
    """Yield the directories below *directory*, that many levels deep."""
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = files.list(directory)
    for name in names:
        below = join(directory, name)
        yield below
        if depth > 1:
            yield from _below(files, below, depth - 1)
