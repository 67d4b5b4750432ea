"""One segment on its way into another data directory: linked or copied, and checked as it comes.

A linked file has two names and one content, so only sealed segments are linked: nobody ever changes those in
place. The file of a segment that takes appends is always a copy.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import google_crc32c

from cordwood.errors import CorruptRange
from cordwood.kernels import Buffer
from cordwood.storage.backup_record import How
from cordwood.storage.files import File, Files, read_file, write_all
from cordwood.storage.open_files import OpenFiles
from cordwood.storage.partition_state import SealedInfo
from cordwood.storage.reading import REINDEX_WINDOW_BYTES, Bounds, note_frames, walk
from cordwood.storage.reindex import Damaged
from cordwood.storage.segment import Segment

COPY_BYTES = 8 << 20
Advance = Callable[[int], None]
"""Told of bytes that were read or copied, as they are."""

Put = Callable[[int, Buffer], None]


@dataclass(frozen=True, slots=True)
class Brought:
    """A segment that came: how, its SHA-256 and indexes if all of it was read, and what is wrong with it."""

    how: How
    copied_bytes: int
    sha256: str | None = None
    indexes: tuple[bytes, bytes] | None = None
    damage: Damaged | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """What walking a segment found."""

    sha256: str
    indexes: tuple[bytes, bytes]
    damage: Damaged | None


class Carrier:
    """Brings segments into a directory. Every file it makes is synced, its name is the caller's to sync."""

    def __init__(self, files: Files, *, link: bool, verify: bool, advance: Advance) -> None:
        self.files = files
        self.link = link
        self.verify = verify
        self.advance = advance

    def bring(self, source: Segment, bounds: Bounds, path: str, *, link: bool) -> Brought:
        """Bring a sealed segment to *path*, in place of what may be there.

        Damage is returned, and then nothing is left at *path*.
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
        """Give the source's file a second name; False where that cannot be, as on another file system."""
        try:
            self.files.link(source.path, path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise
            return False
        return True

    def _check_linked(self, source: Segment, bounds: Bounds, path: str) -> Brought:
        with contextlib.closing(self.files.open(path, "read")) as file:
            size = file.size()
        if size != bounds.end:
            reason = f"has {size} bytes, but {bounds.end} were written"
            return Brought("linked", 0, damage=Damaged(source.path, min(size, bounds.end), reason))
        if not self.verify:
            self.advance(size)
            return Brought("linked", 0, source.info.sha256)
        # Through its new name: the old one may be another file's by now.
        checked = self.check(source, bounds, path)
        return Brought("linked", 0, checked.sha256, checked.indexes, checked.damage)

    def _copy(self, source: Segment, bounds: Bounds, path: str) -> Brought:
        with contextlib.closing(self.files.open(path, "create")) as file:
            if self.verify:
                checked = self.check(source, bounds, None, lambda at, data: write_all(file, at, data))
                if checked.damage is None:
                    file.sync()
                return Brought("copied", bounds.end, checked.sha256, checked.indexes, checked.damage)
            copied = self.copy_bytes(source, file, 0, bounds.end)
            file.sync()
        if copied < bounds.end:
            reason = f"the file ends, but {bounds.end} bytes were written"
            return Brought("copied", copied, damage=Damaged(source.path, copied, reason))
        return Brought("copied", copied, source.info.sha256)

    def copy_as_it_is(self, source: Segment, size: int, path: str) -> int:
        """Copy what is there of a damaged segment, up to *size* bytes; return how many. None may be."""
        remove(self.files, path)
        with contextlib.closing(self.files.open(path, "create")) as file:
            copied = self.copy_bytes(source, file, 0, size)
            file.sync()
        return copied

    def copy_bytes(self, source: Segment, file: File, start: int, end: int) -> int:
        """Copy the bytes [start, end) of a segment, as far as they can be read; return where that ended."""
        position = start
        while position < end:
            data: Buffer = b""
            # Of the source only: what the target refuses is an error.
            with contextlib.suppress(OSError):
                data = source.read_at(position, min(COPY_BYTES, end - position))
            if not len(data):
                break
            write_all(file, position, data)
            position += len(data)
            self.advance(len(data))
        return position

    def check(self, source: Segment, bounds: Bounds, path: str | None, put: Put | None = None) -> Checked:
        """Walk a segment, at *path* if it is given, and hold it against what `partition.json` says of it.

        What is sound goes to *put*, with its position, in order and up to the first damage.
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


def contradiction(info: SealedInfo, path: str, brought: Brought) -> Damaged | None:
    """Return what is wrong if a sealed segment is sound in itself and not the one that was sealed."""
    if brought.sha256 is not None and info.sha256 not in (None, brought.sha256):
        return Damaged(path, None, f"has SHA-256 {brought.sha256}, but was sealed with {info.sha256}")
    if brought.indexes is not None and not vouched(info, brought.indexes):
        return Damaged(path, None, "gives other indexes than partition.json has the checksums of")
    return None


def vouched(info: SealedInfo, indexes: tuple[bytes, bytes]) -> bool:
    """Return whether these are the indexes that a segment was sealed with."""
    found = tuple(google_crc32c.value(entries) for entries in indexes)
    return found == (info.index_crc32c, info.time_index_crc32c)


def stored_indexes(files: Files, info: SealedInfo, paths: tuple[str, str]) -> tuple[bytes, bytes] | None:
    """Return the indexes in two files, None where they are not those that the segment was sealed with."""
    try:
        indexes = read_file(files, paths[0]), read_file(files, paths[1])
    except OSError:
        # Derived, so whatever is wrong with them, they can be built again.
        return None
    return indexes if vouched(info, indexes) else None


def put_file(files: Files, path: str, data: bytes) -> None:
    """Make *path* hold *data*, synced; its name is the caller's to sync. No state may name the file yet."""
    remove(files, path)
    with contextlib.closing(files.open(path, "create")) as file:
        write_all(file, 0, data)
        file.sync()


def remove(files: Files, path: str) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)
