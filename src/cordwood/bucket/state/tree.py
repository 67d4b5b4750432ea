"""The files of the log as the pieces up to one leave them, and where in the bucket their bytes are."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import TypeAlias

import msgspec

from cordwood.bucket.state.body import BodyTable, FilePatch, ObjectRef, StoredStretch

_START = attrgetter("start")


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """The bytes [start, end) of a file: they are in the object ``key`` from ``position`` on, or in ``data``.

    ``crc32c`` is that of the stretch they are a part of, which has ``whole`` bytes in the object, ``before``
    of them in front of these.
    """

    start: int
    end: int
    key: str
    position: int
    crc32c: int
    before: int
    whole: int
    data: bytes = b""

    def part(self, start: int, end: int) -> Extent:
        """Return the part within [start, end)."""
        start, end = max(start, self.start), min(end, self.end)
        skipped = start - self.start
        data = self.data[skipped : end - self.start] if self.data else b""
        return Extent(
            start,
            end,
            self.key,
            self.position + skipped,
            self.crc32c,
            self.before + skipped,
            self.whole,
            data,
        )


class BucketTreeFile(msgspec.Struct, array_like=True):
    """A file: where no extent is there are zeros."""

    size: int
    extents: list[Extent]


Directory: TypeAlias = "dict[str, Directory | BucketTreeFile]"


class Tree:
    """All files of the log. One thread at a time.

    ``touched`` has the files and directories that changed since it was last cleared, ``gone`` those that
    went.
    """

    def __init__(self) -> None:
        self.root: Directory = {}
        self.objects: dict[str, ObjectRef] = {}
        self.touched: set[str] = set()
        self.gone: set[str] = set()
        self.at_ms = 0
        self._named: Counter[str] = Counter()

    # --- reading ----------------------------------------------------------------------------------

    def find(self, path: str) -> Directory | BucketTreeFile | None:
        """Return the file or the directory at *path*, None without one."""
        node: Directory | BucketTreeFile | None = self.root
        for name in path.split("/") if path else ():
            if not isinstance(node, dict):
                return None
            node = node.get(name)
        return node

    def files(self, below: Directory | None = None, prefix: str = "") -> Iterator[tuple[str, BucketTreeFile]]:
        """Yield every file with its path, sorted within each directory."""
        for name, node in sorted((self.root if below is None else below).items()):
            if isinstance(node, dict):
                yield from self.files(node, f"{prefix}{name}/")
            else:
                yield f"{prefix}{name}", node

    def directories(self, below: Directory | None = None, prefix: str = "") -> Iterator[str]:
        """Yield the path of every directory, a directory before those in it."""
        for name, node in sorted((self.root if below is None else below).items()):
            if isinstance(node, dict):
                yield f"{prefix}{name}"
                yield from self.directories(node, f"{prefix}{name}/")

    def is_named(self, key: str) -> bool:
        """Return whether a file has bytes in the object *key*."""
        return self._named[key] > 0

    # --- changing ---------------------------------------------------------------------------------

    def apply(self, table: BodyTable, key: str, content_at: int) -> None:
        """Apply a piece whose object is *key*, and whose content begins at *content_at* of the object."""
        self.at_ms = max(self.at_ms, table.at_ms)
        for path in table.removed:
            self._remove(path)
        for path in table.directories:
            self._directory(path)
        for ref in table.objects:
            self.objects[ref.key] = ref
        for patch in table.files:
            self._patch(patch, table, key, content_at)

    def put(self, path: str, file: BucketTreeFile) -> None:
        """Put *file*, whose objects are known, at *path*."""
        self._remove(path)
        directory, name = self._place(path)
        directory[name] = file
        self._named.update(extent.key for extent in file.extents if extent.key)

    def add_directory(self, path: str) -> None:
        """Make sure that there is a directory at *path*."""
        self._directory(path)

    def replace_extents(self, file: BucketTreeFile, extents: list[Extent]) -> None:
        """Let the bytes of *file* be those of *extents*: the same bytes in other objects."""
        self._named.update(extent.key for extent in extents if extent.key)
        self._unname(file.extents)
        file.extents = extents

    def forget_objects(self) -> list[str]:
        """Return the objects that no file has bytes in, and forget them."""
        unnamed = [key for key in self.objects if not self._named[key]]
        for key in unnamed:
            del self.objects[key]
        self._named = +self._named
        return unnamed

    def _patch(self, patch: FilePatch, table: BodyTable, key: str, content_at: int) -> None:
        directory, name = self._place(patch.path)
        file = directory.get(name)
        if isinstance(file, dict) or patch.fresh:
            self._remove(patch.path)
            file = None
        if file is None:
            file = directory[name] = BucketTreeFile(0, [])
        if patch.cut_to >= 0:
            self._cut(file, patch.cut_to)
        for stretch in patch.stretches:
            source, position = key, content_at + stretch.position
            if stretch.source:
                source, position = table.objects[stretch.source - 1].key, stretch.position
            self._overlay(file, extent_of(stretch, source, position))
        if patch.size < file.size:
            self._cut(file, patch.size)
        file.size = patch.size
        self.touched.add(patch.path)

    def _overlay(self, file: BucketTreeFile, new: Extent) -> None:
        self._named[new.key] += 1
        extents = file.extents
        if not extents or extents[-1].end <= new.start:
            extents.append(new)
            return
        first = bisect_right(extents, new.start, key=_START)
        if first and extents[first - 1].end > new.start:
            first -= 1
        last = first
        while last < len(extents) and extents[last].start < new.end:
            last += 1
        replaced, kept = extents[first:last], [new]
        if replaced:
            before, after = replaced[0].part(0, new.start), replaced[-1].part(new.end, replaced[-1].end)
            kept = [each for each in (before, new, after) if each.start < each.end]
            self._named.update(each.key for each in kept if each is not new and each.key)
            self._unname(replaced)
        extents[first:last] = kept

    def _cut(self, file: BucketTreeFile, size: int) -> None:
        while file.extents and file.extents[-1].end > size:
            last = file.extents.pop()
            if last.start < size:
                file.extents.append(last.part(last.start, size))
                break
            self._unname([last])

    def _unname(self, extents: Iterable[Extent]) -> None:
        self._named.subtract(extent.key for extent in extents if extent.key)

    def _place(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        return self._directory(above), name

    def _directory(self, path: str) -> Directory:
        node, end = self.root, 0
        for name in path.split("/") if path else ():
            below = node.get(name)
            end += len(name) + 1
            if not isinstance(below, dict):
                if below is not None:
                    self._unname(below.extents)
                below = node[name] = {}
                self.touched.add(path[: end - 1])
            node = below
        return node

    def _remove(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        directory = self.find(above)
        if not isinstance(directory, dict) or name not in directory:
            return
        node = directory.pop(name)
        if isinstance(node, dict):
            for below, file in self.files(node, f"{path}/"):
                self._unname(file.extents)
                self._lose(below)
            for below in self.directories(node, f"{path}/"):
                self._lose(below)
        else:
            self._unname(node.extents)
        self._lose(path)

    def _lose(self, path: str) -> None:
        self.touched.discard(path)
        self.gone.add(path)


def extent_of(stretch: StoredStretch, key: str, position: int) -> Extent:
    """Return *stretch* as an extent in the object *key*."""
    end = stretch.start + stretch.size
    return Extent(stretch.start, end, key, position, stretch.crc32c, 0, stretch.size)
