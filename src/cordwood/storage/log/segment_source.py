"""Where the files of sealed segments are read from: the seam for other places than local files."""

from __future__ import annotations

import contextlib
from typing import Protocol

from cordwood.disk import Files, ReadableFile


class SegmentSource(Protocol):
    """Opens the files of sealed segments: stores, sidecars and indexes. Callable from any thread.

    A source is asked for the files of every sealed segment, also of one that was sealed just now, by the path
    that the file has in the data directory. Files of a sealed segment never change, so a source may cache
    them; a path is opened again after a truncation or a compaction put another file there.
    """

    def open(self, path: str) -> ReadableFile:
        """Open the file that belongs at *path*.

        Raises:
            FileNotFoundError: If there is none.
            OSError: If it cannot be opened now.
        """


class LocalSegments:
    """The source that reads the files where they were written."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def open(self, path: str) -> ReadableFile:
        """Open the file at *path*."""
        return self._files.open(path, "read")


def read_whole(source: SegmentSource, path: str) -> bytes:
    """Return the whole content of the file at *path* in *source*. Raises as `SegmentSource.open` does."""
    with contextlib.closing(source.open(path)) as file:
        return file.read_at(0, file.size())
