"""The files of a log in a bucket, to be read as if they lay on a disk."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import google_crc32c

from cordwood.bucket.ownership import GetRange, ObjectStore, perform, until_answered
from cordwood.bucket.state.tree import BucketTreeFile, Extent, Tree
from cordwood.disk import Buffer, Mode, Names, WritableBuffer, os_error
from cordwood.errors import BucketDamaged

#: How many bytes of objects are kept in memory by default.
CACHE_BYTES = 64 << 20


class ObjectReader:
    """Reads stretches of objects, each whole and checked, and keeps the last ones. One thread at a time."""

    def __init__(
        self, store: ObjectStore, pause: Callable[[int], None], cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._store = store
        self._pause = pause
        self._cache_bytes = cache_bytes
        self._cache: dict[tuple[str, int], bytes] = {}
        self._cached = 0
        self.fetched_bytes = 0

    def read(self, extent: Extent) -> bytes:
        """Return the bytes of *extent*.

        Raises:
            BucketDamaged: If they are not those that were written.
            ObjectMissing: If the object is gone: the state is not in force any more.
        """
        if not extent.key:
            return extent.data
        first = extent.position - extent.before
        stretch = self._cache.pop((extent.key, first), None)
        if stretch is None:
            stretch = self._fetch(extent.key, first, extent.whole, extent.crc32c)
        self._cache[extent.key, first] = stretch
        return stretch[extent.before : extent.before + extent.end - extent.start]

    def _fetch(self, key: str, first: int, size: int, crc: int) -> bytes:
        data: bytes = perform(self._store, until_answered(GetRange(key, first, size)), self._pause)
        self.fetched_bytes += len(data)
        if len(data) != size:
            raise BucketDamaged(key, f"ends after {len(data)} of {size} bytes", first + len(data))
        found = google_crc32c.value(data)
        if found != crc:
            raise BucketDamaged(key, f"checksum is {crc:08x}, but its content has {found:08x}", first)
        self._cached += size
        while self._cached > self._cache_bytes and self._cache:
            oldest = next(iter(self._cache))
            self._cached -= len(self._cache.pop(oldest))
        return data


class BucketFiles:
    """The files of a tree, as `ReadableFiles` whose root is ``""``. One thread at a time."""

    def __init__(self, tree: Tree, reader: ObjectReader) -> None:
        self._tree = tree
        self._reader = reader

    def open(self, path: str, mode: Mode) -> BucketFile:
        """Open a file to read it."""
        if mode != "read":
            raise os_error(errno.EROFS, path)
        node = self._tree.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if not isinstance(node, BucketTreeFile):
            raise os_error(errno.EISDIR, path)
        return BucketFile(path, node, self._reader)

    def exists(self, path: str) -> bool:
        """Return whether *path* names anything."""
        return self._tree.find(path) is not None

    def is_directory(self, path: str) -> bool:
        """Return whether *path* is a directory."""
        return isinstance(self._tree.find(path), dict)

    def list(self, path: str) -> Names:
        """Return the names in a directory, sorted."""
        node = self._tree.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, BucketTreeFile):
            raise os_error(errno.ENOTDIR, path)
        return sorted(node)

    def irregular(self, path: str) -> Names:
        """Return an empty list: a bucket has files and directories only."""
        del path
        return []


class BucketFile:
    """A file of a tree as it was when it was opened. It can be read."""

    def __init__(self, path: str, file: BucketTreeFile, reader: ObjectReader) -> None:
        self._path = path
        self._size = file.size
        self._extents = tuple(file.extents)
        self._reader = reader
        self._closed = False

    @property
    def path(self) -> str:
        """The path the file was opened under."""
        return self._path

    def size(self) -> int:
        """Return the length of the file in bytes."""
        self._check()
        return self._size

    def read_at(self, position: int, size: int) -> bytes:
        """Return *size* bytes from *position*; fewer only where the file ends."""
        self._check()
        if position < 0 or size < 0:
            raise os_error(errno.EINVAL, self._path)
        end = min(position + size, self._size)
        parts: list[bytes] = []
        at = position
        for extent in self._extents:
            if extent.end <= at:
                continue
            if extent.start >= end:
                break
            parts.append(bytes(max(extent.start - at, 0)))
            wanted = extent.part(max(at, extent.start), end)
            parts.append(self._reader.read(wanted))
            at = wanted.end
        parts.append(bytes(max(end - at, 0)))
        return b"".join(parts)

    def map(self) -> memoryview:
        """Return the whole content, read into memory."""
        return memoryview(self.read_at(0, self._size))

    def read_into(self, position: int, buffer: WritableBuffer) -> int:
        """Fill *buffer* from *position* and return the bytes read."""
        data = self.read_at(position, len(buffer))
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Refuse: nothing in a bucket is changed in place."""
        raise os_error(errno.EBADF, self._path)

    def truncate(self, size: int) -> None:
        """Refuse: nothing in a bucket is changed in place."""
        raise os_error(errno.EBADF, self._path)

    def preallocate(self, size: int) -> None:
        """Refuse: nothing in a bucket is changed in place."""
        raise os_error(errno.EBADF, self._path)

    def sync(self) -> None:
        """Return: what is in a bucket is durable."""

    def drop_cache(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the file."""
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise ValueError(f"{self._path} is closed")
