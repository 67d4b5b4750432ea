"""Files of which one directory lies in a bucket, for work that reads there and writes elsewhere."""

from __future__ import annotations

import errno

from cordwood.bucket.state.bucket_files import BucketFiles
from cordwood.disk import File, Files, Lock, Mode, Names, os_error

#: Where the files of the bucket seem to be. No directory of a machine is called so.
MOUNT = "/bucket:"


class MountedFiles:
    """`Files` with those of a bucket at `MOUNT`, where nothing can be changed. One thread at a time there."""

    def __init__(self, local: Files, bucket: BucketFiles) -> None:
        self._local = local
        self._bucket = bucket

    def open(self, path: str, mode: Mode) -> File:
        """Open a file; see `Files.open`."""
        inside = _inside(path)
        if inside is None:
            return self._local.open(path, mode)
        if mode != "read":
            raise os_error(errno.EROFS, path)
        return self._bucket.open(inside, mode)

    def exists(self, path: str) -> bool:
        """Return whether *path* names anything; see `Files.exists`."""
        inside = _inside(path)
        return self._local.exists(path) if inside is None else self._bucket.exists(inside)

    def is_directory(self, path: str) -> bool:
        """Return whether *path* is a directory; see `Files.is_directory`."""
        inside = _inside(path)
        return self._local.is_directory(path) if inside is None else self._bucket.is_directory(inside)

    def list(self, path: str) -> Names:
        """Return the names in a directory, sorted."""
        inside = _inside(path)
        return self._local.list(path) if inside is None else self._bucket.list(inside)

    def irregular(self, path: str) -> Names:
        """Return the names that are neither files nor directories; see `Files.irregular`."""
        inside = _inside(path)
        return self._local.irregular(path) if inside is None else self._bucket.irregular(inside)

    def make_directories(self, path: str) -> Names:
        """Create *path* and the parents it lacks; see `Files.make_directories`."""
        return self._local.make_directories(_outside(path))

    def rename(self, source: str, target: str) -> None:
        """Give *source* the name *target* in one step; see `Files.rename`."""
        self._local.rename(_outside(source), _outside(target))

    def link(self, source: str, target: str) -> None:
        """Give the file *source* a second name; see `Files.link`."""
        if _inside(source) is not None:
            raise os_error(errno.EXDEV, source, target)
        self._local.link(source, _outside(target))

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        self._local.unlink(_outside(path))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._local.remove_directory(_outside(path))

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; see `Files.sync_directory`."""
        self._local.sync_directory(_outside(path))

    def lock(self, path: str, holder: str) -> Lock:
        """Lock the file at *path*; see `Files.lock`."""
        return self._local.lock(_outside(path), holder)

    def free_bytes(self, path: str) -> int:
        """Return the bytes an ordinary user can still write; see `Files.free_bytes`."""
        return self._local.free_bytes(_outside(path))


def _inside(path: str) -> str | None:
    """Return *path* relative to the mount, None if it lies elsewhere."""
    if path == MOUNT:
        return ""
    return path[len(MOUNT) + 1 :] if path.startswith(f"{MOUNT}/") else None


def _outside(path: str) -> str:
    """Return *path*, which is to be changed. Raises OSError if it lies in the bucket."""
    if _inside(path) is not None:
        raise os_error(errno.EROFS, path)
    return path
