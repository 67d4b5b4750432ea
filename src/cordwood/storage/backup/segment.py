"""Transfer one segment to another data directory: link or copy it, and check it.

A linked file has two names and one content, so only sealed segments are linked: they are never changed in
place. An active segment is always copied.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import google_crc32c

from cordwood.disk import File, Files, read_file, write_all
from cordwood.errors import CorruptRange
from cordwood.kernels import Buffer
from cordwood.storage.backup.record import How
from cordwood.storage.log import (
    REINDEX_WINDOW_BYTES,
    Bounds,
    OpenFiles,
    SealedInfo,
    Segment,
    note_frames,
    walk,
)
from cordwood.storage.offline import Damaged

COPY_BYTES = 8 << 20
Advance = Callable[[int], None]
"""Called with the number of bytes read or copied."""

Put = Callable[[int, Buffer], None]


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """A transferred segment: the method, its SHA-256 and indexes if it was read completely, and damage."""

    how: How
    copied_bytes: int
    sha256: str | None = None
    indexes: tuple[bytes, bytes] | None = None
    damage: Damaged | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a segment."""

    sha256: str
    indexes: tuple[bytes, bytes]
    damage: Damaged | None


class SegmentCopier:
    """Transfers segments into a directory. Files are synced; the caller syncs the directory."""

    def __init__(self, files: Files, *, link: bool, verify: bool, advance: Advance) -> None:
        self.files = files
        self.link = link
        self.verify = verify
        self.advance = advance

    def copy(self, source: Segment, bounds: Bounds, path: str, *, link: bool) -> SegmentCopy:
        """Transfer a sealed segment to *path*, replacing an existing file.

        Damage is returned, and the file at *path* is removed in that case.
        """
        remove(self.files, path)
        if link and self.link and self._linked(source, path):
            brought = self._check_linked(source, bounds, path)
        else:
            brought = self._copy(source, bounds, path)
        if brought.damage is not None:
            remove(self.files, path)
        return brought

    def _linked(self, source: Segment, path: str) -> bool:
        """Hard-link the source's file; return False if that is impossible, as on another file system."""
        try:
            self.files.link(source.path, path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise
            return False
        return True

    def _check_linked(self, source: Segment, bounds: Bounds, path: str) -> SegmentCopy:
        with contextlib.closing(self.files.open(path, "read")) as file:
            size = file.size()
        if size != bounds.end:
            reason = f"has {size} bytes, but {bounds.end} were written"
            return SegmentCopy("linked", 0, damage=Damaged(source.path, min(size, bounds.end), reason))
        if not self.verify:
            self.advance(size)
            return SegmentCopy("linked", 0, source.info.sha256)
        # Read through the new name: the old name may belong to another file by now.
        checked = self.check(source, bounds, path)
        return SegmentCopy("linked", 0, checked.sha256, checked.indexes, checked.damage)

    def _copy(self, source: Segment, bounds: Bounds, path: str) -> SegmentCopy:
        with contextlib.closing(self.files.open(path, "create")) as file:
            if self.verify:
                checked = self.check(source, bounds, None, lambda at, data: write_all(file, at, data))
                if checked.damage is None:
                    file.sync()
                return SegmentCopy("copied", bounds.end, checked.sha256, checked.indexes, checked.damage)
            copied = self.copy_bytes(source, file, 0, bounds.end)
            file.sync()
        if copied < bounds.end:
            reason = f"the file ends, but {bounds.end} bytes were written"
            return SegmentCopy("copied", copied, damage=Damaged(source.path, copied, reason))
        return SegmentCopy("copied", copied, source.info.sha256)

    def copy_damaged(self, source: Segment, size: int, path: str) -> int:
        """Copy the readable bytes of a damaged segment, at most *size*; return their number, possibly 0."""
        remove(self.files, path)
        with contextlib.closing(self.files.open(path, "create")) as file:
            copied = self.copy_bytes(source, file, 0, size)
            file.sync()
        return copied

    def copy_bytes(self, source: Segment, file: File, start: int, end: int) -> int:
        """Copy the readable bytes of [start, end) of a segment; return where the copy ended."""
        position = start
        while position < end:
            data: Buffer = b""
            # Only errors of the source are ignored; errors of the target are raised.
            with contextlib.suppress(OSError):
                data = source.read_at(position, min(COPY_BYTES, end - position))
            if not len(data):
                break
            write_all(file, position, data)
            position += len(data)
            self.advance(len(data))
        return position

    def check(self, source: Segment, bounds: Bounds, path: str | None, put: Put | None = None) -> Checked:
        """Check a segment, at *path* if given, against its entry in `partition.json`.

        *put* gets the sound bytes with their position, in order, up to the first damage.
        """
        segment = Segment(OpenFiles(self.files, mapped=False), source.directory, source.info, source.format)
        segment.path = path or source.path
        index, times = segment.new_indexes()
        digest, next_offset = hashlib.sha256(), source.base
        damage = None
        for found in walk(segment, bounds, (source.base, 0), REINDEX_WINDOW_BYTES, None):
            if isinstance(found, CorruptRange):
                damage = Damaged(source.path, found.position, found.reason)
                break
            data = memoryview(found.data)[: found.table.end]
            digest.update(data)
            if put is not None:
                put(found.position, data)
            note_frames(index, times, found.table, found.position)
            next_offset = found.table.next_offset(len(found.table) - 1)
            self.advance(len(data))
        sha256, indexes = digest.hexdigest(), (bytes(index.entries), bytes(times.entries))
        if damage is None and bounds.dense and next_offset != bounds.next_offset:
            reason = f"ends at offset {next_offset}, not at {bounds.next_offset}"
            damage = Damaged(source.path, bounds.end, reason)
        return Checked(sha256, indexes, damage)


def contradiction(info: SealedInfo, path: str, brought: SegmentCopy) -> Damaged | None:
    """Return the difference if a sound segment is not the one that was sealed."""
    if brought.sha256 is not None and info.sha256 not in (None, brought.sha256):
        return Damaged(path, None, f"has SHA-256 {brought.sha256}, but was sealed with {info.sha256}")
    if brought.indexes is not None and not match_checksums(info, brought.indexes):
        return Damaged(path, None, "gives other indexes than partition.json has the checksums of")
    return None


def match_checksums(info: SealedInfo, indexes: tuple[bytes, bytes]) -> bool:
    """Return whether these indexes have the checksums from sealing the segment."""
    found = tuple(google_crc32c.value(entries) for entries in indexes)
    return found == (info.index_crc32c, info.time_index_crc32c)


def stored_indexes(files: Files, info: SealedInfo, paths: tuple[str, str]) -> tuple[bytes, bytes] | None:
    """Return the indexes in two files, None if they do not match the segment's checksums."""
    try:
        indexes = read_file(files, paths[0]), read_file(files, paths[1])
    except OSError:
        # Indexes are derived, so damaged ones can be rebuilt.
        return None
    return indexes if match_checksums(info, indexes) else None


def put_file(files: Files, path: str, data: bytes) -> None:
    """Write *data* to *path* and sync it; the caller syncs the directory. No state may name the file yet."""
    remove(files, path)
    with contextlib.closing(files.open(path, "create")) as file:
        write_all(file, 0, data)
        file.sync()


def remove(files: Files, path: str) -> None:
    """Remove a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)
