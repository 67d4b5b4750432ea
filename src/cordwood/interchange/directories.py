"""Directories of other systems: find their content, and create one atomically."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType

from cordwood.disk import File, Files, as_storage_error, join, parent, remove_tree, write_all
from cordwood.errors import DirectoryRefused
from cordwood.kernels import Buffer

#: The bytes buffered before they are written to a file.
WRITE_BYTES = 1 << 20
#: A directory with a higher number is not a partition number; it gets a new number.
PARTITION_MAX = 9_999


def find_partitions(
    files: Files, directory: str, suffix: str, *, roots: Sequence[str] = ("",), inner: str = ""
) -> dict[int, str]:
    """Return the directory of each partition: *directory* itself, or its subdirectories that have a number.

    A partition is a directory with files that end with *suffix*, in it or in its *inner* one. *roots* are the
    places to search below *directory*.

    Raises:
        DirectoryRefused: If there is none.
    """
    for root in roots:
        base = join(directory, root) if root else directory
        if not files.is_directory(base):
            continue
        above = directory
        for name in filter(None, root.split("/")):
            check_regular(files, above, name)
            above = join(above, name)
        alone = _with_files(files, base, suffix, inner)
        if alone is not None:
            return {0: alone}
        found = {}
        for name in files.list(base):
            if name.isdecimal() and int(name) <= PARTITION_MAX and files.is_directory(join(base, name)):
                check_regular(files, base, name)
                path = _with_files(files, join(base, name), suffix, inner)
                if path is not None:
                    found[int(name)] = path
        if found:
            return dict(sorted(found.items()))
    raise DirectoryRefused(f"{directory} has no *{suffix} files, nor directories of partitions that have")


def _with_files(files: Files, directory: str, suffix: str, inner: str) -> str | None:
    for path in (directory, join(directory, inner)) if inner else (directory,):
        if files.is_directory(path) and segments(files, path, suffix):
            if path != directory:
                check_regular(files, directory, inner)
            return path
    return None


def check_regular(files: Files, directory: str, *names: str) -> None:
    """Refuse links, pipes and devices among *names* in *directory*, or among all of its names.

    A link leads out of what was named, and opening a pipe blocks.

    Raises:
        DirectoryRefused: Names the first one.
    """
    for name in files.irregular(directory):
        if not names or name in names:
            path = join(directory, name)
            raise DirectoryRefused(f"{path} is neither a file nor a directory: what it leads to is not read")


def segments(files: Files, directory: str, suffix: str) -> list[tuple[int, str]]:
    """Return number and path of the files named by a number and *suffix*, in the order of numbers.

    Raises:
        DirectoryRefused: If there are any, and something beside them is neither a file nor a directory.
    """
    stems = [name.removesuffix(suffix) for name in files.list(directory) if name.endswith(suffix)]
    numbered = sorted((int(stem), stem) for stem in stems if stem.isdecimal())
    if numbered:
        check_regular(files, directory)
    return [(number, join(directory, stem + suffix)) for number, stem in numbered]


def content(files: Files, path: str) -> Buffer:
    """Return the mapped bytes of a file that is not written; only used parts take memory.

    Raises:
        DirectoryRefused: If it does not exist.
    """
    try:
        with contextlib.closing(files.open(path, "read")) as file:
            return file.map() if file.size() else b""
    except FileNotFoundError:
        raise DirectoryRefused(f"{path} is missing") from None


class NewFile:
    """A file that is written from its start to its end. Closing syncs it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._held = bytearray()
        self.size = 0

    def append(self, data: Buffer) -> None:
        """Add *data* at the end."""
        self._held += data
        self.size += len(data)
        if len(self._held) >= WRITE_BYTES:
            self._write()

    def close(self) -> None:
        """Sync the file, but not its name."""
        with contextlib.closing(self._file):
            self._write()
            self._file.sync()

    def _write(self) -> None:
        write_all(self._file, self.size - len(self._held), self._held)
        self._held = bytearray()


class NewDirectory:
    """A directory that gets its name once everything in it is durable. Used as a context manager.

    If the block fails, it is removed as far as possible; leftovers of a crash have a temporary name.
    """

    def __init__(self, files: Files, path: str, unique: str) -> None:
        """Write to *path* followed by ``.tmp-`` and *unique* until it is complete.

        Raises:
            DirectoryRefused: If *path* exists.
        """
        if files.exists(path):
            raise DirectoryRefused(f"{path} exists already; name another directory")
        self._files = files
        self._path = path
        self._temporary = f"{path.rstrip('/')}.tmp-{unique}"
        self._directories: set[str] = set()
        self._open: list[NewFile] = []

    def __enter__(self) -> NewDirectory:
        try:
            self._directories.update(self._files.make_directories(self._temporary))
        except OSError as error:
            raise as_storage_error(error, "exporting") from error
        self._directories.add(self._temporary)
        return self

    def create(self, *names: str) -> NewFile:
        """Create a file below the directory, and its parent directories."""
        path = join(self._temporary, *names)
        try:
            self._directories.update(self._files.make_directories(parent(path)))
            self._directories.add(parent(path))
            file = NewFile(self._files.open(path, "create"))
        except OSError as error:
            raise as_storage_error(error, "exporting") from error
        self._open.append(file)
        return file

    def finish(self, file: NewFile) -> None:
        """Close a complete file, so that few are open at a time."""
        self._open.remove(file)
        try:
            file.close()
        except OSError as error:
            raise as_storage_error(error, "exporting") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._publish()
            except OSError as refused:
                self._discard()
                raise as_storage_error(refused, "exporting") from refused
            return
        self._discard()

    def _publish(self) -> None:
        while self._open:
            self._open.pop().close()
        for directory in sorted(self._directories, reverse=True):
            self._files.sync_directory(directory)
        self._files.rename(self._temporary, self._path)
        self._files.sync_directory(parent(self._path))

    def _discard(self) -> None:
        for file in self._open:
            with contextlib.suppress(OSError):
                file.close()
        with contextlib.suppress(OSError):
            remove_tree(self._files, self._temporary)
