"""Write the files of a log in a bucket to a local directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from cordwood.bucket.state import BucketFiles
from cordwood.disk import Files, join, parent, write_all

#: How many bytes are written at once.
COPY_BYTES = 8 << 20


def fetch_file(
    source: BucketFiles,
    path: str,
    files: Files,
    target: str,
    progress: Callable[[int], None] = lambda size: None,
) -> None:
    """Write one file to *target*, which must not exist. Its bytes are durable on return, its name is not."""
    files.make_directories(parent(target))
    with contextlib.closing(source.open(path, "read")) as stored:
        size = stored.size()
        with contextlib.closing(files.open(target, "create")) as file:
            for position in range(0, size, COPY_BYTES):
                data = stored.read_at(position, min(COPY_BYTES, size - position))
                write_all(file, position, data)
                progress(len(data))
            file.sync()


def sync_directories(files: Files, root: str, below: Iterable[str]) -> None:
    """Make the names in *root* and in the directories *below* it durable."""
    for path in sorted(below, reverse=True):
        files.sync_directory(join(root, path))
    files.sync_directory(root)
    files.sync_directory(parent(root))
