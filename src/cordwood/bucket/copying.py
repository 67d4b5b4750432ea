"""Apply pieces to the files of a local directory, as a standby does.

Applying a piece writes bytes at positions, cuts files and removes names. Doing that again, for all pieces
since a state that was synced whole, gives the same files, whatever a crash left of the first time. So nothing
is synced piece by piece: `LocalCopy.sync` does it for many, and the directory then says how far it is.
"""

from __future__ import annotations

import contextlib

import google_crc32c

from cordwood.bucket.attaching import is_ignored
from cordwood.bucket.ownership import LogPiece, piece_key
from cordwood.bucket.state import (
    BodyTable,
    BucketTreeFile,
    FilePatch,
    ObjectReader,
    StoredStretch,
    Tree,
    extent_of,
)
from cordwood.disk import File, Files, join, parent, remove_tree, write_all
from cordwood.errors import BucketDamaged


class CopyDisturbed(Exception):
    """A file of the copy is not what the pieces before left: compare all of it with the bucket."""


class LocalCopy:
    """The files below *data*. One thread.

    Until `redone`, the last pieces may have been applied in part before a crash: then a file may be missing,
    longer or shorter than it was.
    """

    def __init__(self, files: Files, data: str, reader: ObjectReader) -> None:
        self._files = files
        self._data = data
        self._reader = reader
        self._is_redoing = True
        self._changed: set[str] = set()
        #: Directories whose names changed, by their full paths.
        self._names: set[str] = set()

    def redone(self) -> None:
        """Note that every piece that was applied before is applied again: from now on each comes once."""
        self._is_redoing = False

    def apply(self, tree: Tree, piece: LogPiece, table: BodyTable, content_at: int) -> None:
        """Apply *piece*, whose *table* says that its content begins at *content_at* of its body.

        *tree* is the state before. Nothing is durable before `sync`.

        Raises:
            CopyDisturbed: If a file is not as the tree says.
            BucketDamaged: If bytes are not those that were written.
            ObjectMissing: If an object that the piece names is gone: the state is not in force any more.
        """
        key = piece_key(piece.header.seq)
        for path in table.removed:
            if not is_ignored(path):
                self._remove(path)
        for path in table.directories:
            if not is_ignored(path):
                self._directory(path)
        # Of one path there is one patch, so the tree is not needed in a state between them.
        gone = tuple(f"{path}/" for path in table.removed)
        for patch in table.files:
            if is_ignored(patch.path):
                continue
            stored = tree.find(patch.path)
            is_new = patch.fresh or patch.path in table.removed or (gone and patch.path.startswith(gone))
            known = stored.size if isinstance(stored, BucketTreeFile) and not is_new else None
            with contextlib.closing(self._opened(patch.path, known)) as file:
                self._patch(file, patch, key, table, piece.body[content_at:])
            self._changed.add(patch.path)

    def sync(self) -> None:
        """Make everything durable that was applied."""
        files = self._files
        for path in sorted(self._changed):
            full = join(self._data, path)
            if files.exists(full):
                with contextlib.closing(files.open(full, "read")) as file:
                    file.sync()
        for full in sorted(self._names, reverse=True):
            if files.is_directory(full):
                files.sync_directory(full)
        self._changed.clear()
        self._names.clear()

    # --- inside -----------------------------------------------------------------------------------

    def _opened(self, path: str, known: int | None) -> File:
        """Return the file at *path* with *known* bytes; new and empty where that is None."""
        files, full = self._files, join(self._data, path)
        self._directory(path.rpartition("/")[0])
        if known is None:
            self._remove(path)
        elif files.exists(full) and not files.is_directory(full):
            file = files.open(full, "write")
            size = file.size()
            if size != known:
                if not self._is_redoing:
                    file.close()
                    raise CopyDisturbed(f"{full} has {size} bytes, expected {known}")
                # What it has beyond that may be anything, and what it lacks is written or cut again.
                file.truncate(known)
            return file
        elif not self._is_redoing:
            raise CopyDisturbed(f"{full} is missing")
        else:
            # A later piece that was applied before removed it, and will again.
            self._remove(path)
        file = files.open(full, "create")
        self._names.add(parent(full))
        if known:
            file.truncate(known)
        return file

    def _patch(self, file: File, patch: FilePatch, key: str, table: BodyTable, content: memoryview) -> None:
        if 0 <= patch.cut_to < file.size():
            file.truncate(patch.cut_to)
        for stretch in patch.stretches:
            write_all(file, stretch.start, self._bytes_of(stretch, key, table, content))
        if file.size() != patch.size:
            file.truncate(patch.size)

    def _bytes_of(self, stretch: StoredStretch, key: str, table: BodyTable, content: memoryview) -> bytes:
        if stretch.source:
            ref = table.objects[stretch.source - 1]
            return self._reader.read(extent_of(stretch, ref.key, stretch.position))
        data = bytes(content[stretch.position : stretch.position + stretch.size])
        found = google_crc32c.value(data)
        if found != stretch.crc32c:
            reason = f"checksum is {stretch.crc32c:08x}, but its content has {found:08x}"
            raise BucketDamaged(key, reason, stretch.position)
        return data

    def _remove(self, path: str) -> None:
        files, full = self._files, join(self._data, path)
        if not files.exists(full):
            return
        if files.is_directory(full):
            remove_tree(files, full)
        else:
            files.unlink(full)
        self._names.add(parent(full))

    def _directory(self, path: str) -> None:
        files, full = self._files, join(self._data, path) if path else self._data
        if files.is_directory(full):
            return
        # Where the tree has a directory, a file of that name has gone.
        names = path.split("/")
        for count in range(1, len(names) + 1):
            above = join(self._data, "/".join(names[:count]))
            if files.exists(above) and not files.is_directory(above):
                files.unlink(above)
                self._names.add(parent(above))
        self._names.update(files.make_directories(full))
