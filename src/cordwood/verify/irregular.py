"""Find links, pipes and devices.

A link could lead the walk to other files, and a pipe could block it forever. So a directory is checked here
before anything in it is opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cordwood.disk import ReadableFiles, join
from cordwood.verify.report import Tally

#: The names that belong to a data directory; other names in it are not checked.
_OWN = ("meta", "quarantine", "tmp", "topics")
_OF_PARTITION = ("segments", "chain", "snapshots")


def check_regular_directory(files: ReadableFiles, path: str, tally: Tally) -> bool:
    """Report links, pipes and devices in the data directory at *path*, without its partitions.

    Returns whether there are none.
    """
    meta, tmp = join(path, "meta"), join(path, "tmp")
    regular = _is_regular(files, path, tally, _OWN)
    for directory in (*(join(path, name) for name in _OWN), join(meta, "sink"), join(meta, "keys")):
        regular = regular and _is_regular(files, directory, tally)
    for directory, depth in ((join(meta, "checkpoints"), 1), (join(tmp, "sink"), 2)):
        tree = _tree(files, directory, depth, tally)
        regular = regular and all(_is_regular(files, each, tally) for each in tree)
    return regular


def check_regular_topic(files: ReadableFiles, path: str, tally: Tally) -> bool:
    """Do the same for the directory of a topic."""
    return _is_regular(files, path, tally)


def check_regular_partition(files: ReadableFiles, path: str, tally: Tally) -> bool:
    """Do the same for the directory of a partition."""
    inner = (join(path, name) for name in _OF_PARTITION)
    return _is_regular(files, path, tally) and all(_is_regular(files, each, tally) for each in inner)


def _is_regular(files: ReadableFiles, directory: str, tally: Tally, only: tuple[str, ...] = ()) -> bool:
    irregular: list[str] = []
    # Missing directories are reported by other checks.
    with tally.reading(directory), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        irregular = [name for name in files.irregular(directory) if not only or name in only]
    for name in irregular:
        path, what = join(directory, name), "link, pipe or device, behind which nothing was checked"
        tally.add("corruption", path, None, expected="a file or a directory", found="neither", what=what)
    return not irregular


def _tree(files: ReadableFiles, directory: str, depth: int, tally: Tally) -> Iterator[str]:
    """Yield *directory* and the directories below it, to the given depth."""
    yield directory
    names: list[str] = []
    with tally.reading(directory), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = files.list(directory) if depth else []
    for name in names:
        yield from _tree(files, join(directory, name), depth - 1, tally)
