"""What changed in a tree of files between two moments: what a copy of the tree needs to follow it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cordwood.disk.patches import Patches


class FileChange:
    """What changed in a file since the last cut: apply the fields in their order."""

    __slots__ = ("cut_to", "fresh", "patches", "size")

    def __init__(self) -> None:
        #: Whether the file is a new one: nothing that was there under its path before is part of it.
        self.fresh = False
        #: The smallest size it was truncated to; the bytes from there on are zeros if they are not patched.
        self.cut_to: int | None = None
        self.patches = Patches()
        self.size = 0

    @property
    def bytes(self) -> int:
        """The number of bytes that changed."""
        return sum(each.end - each.start for each in self.patches)

    def truncate(self, size: int) -> None:
        """Note that the file was cut to *size* bytes."""
        self.patches.cut(size)
        self.cut_to = size if self.cut_to is None else min(size, self.cut_to)

    def then(self, later: FileChange) -> FileChange:
        """Return the change that is this one and then *later*. Neither is to be used any more."""
        if later.fresh:
            return later
        if later.cut_to is not None:
            self.truncate(later.cut_to)
        for stretch in later.patches:
            self.patches.put(stretch)
        self.size = later.size
        return self


class FileTrack:
    """One file that is open for writing, or has changes. Used under the lock of the journal."""

    __slots__ = (
        "change",
        "dirty",
        "disturbed",
        "in_cut",
        "in_flight",
        "opened",
        "path",
        "serial",
        "size",
        "unsynced",
        "waiting",
    )

    def __init__(self, path: str, size: int) -> None:
        self.path: str | None = path
        self.size = size
        #: What is synced, and in no cut yet.
        self.change = FileChange()
        self.change.size = size
        self.dirty = False
        #: What is written and not synced, and what waits for a sync under way, with the number of that sync.
        self.unsynced = FileChange()
        self.waiting: list[tuple[int, FileChange]] = []
        self.serial = 0
        self.opened = 0
        #: What the last cut has of the file, until it is settled, and how often that was changed or lost.
        self.in_cut: FileChange | None = None
        self.disturbed = 0
        #: From where on a write or a truncation changes the file that began and is not noted yet. Set without
        #: the lock, by the one thread that writes to the file.
        self.in_flight: int | None = None

    @property
    def kept(self) -> int:
        """The bytes of the file that are kept in memory, but for those of the cut."""
        waiting = sum(later.patches.kept for _, later in self.waiting) if self.waiting else 0
        return self.change.patches.kept + self.unsynced.patches.kept + waiting

    def forget(self) -> None:
        """Forget every change that is in no cut."""
        self.change, self.unsynced, self.waiting = FileChange(), FileChange(), []

    def take_unsynced(self) -> None:
        """Count what is not synced as if it were: a power cut may keep it."""
        for _, waiting in self.waiting:
            self.change = self.change.then(waiting)
        self.unsynced.size = self.size
        self.change = self.change.then(self.unsynced)
        self.waiting, self.unsynced = [], FileChange()

    def is_overwritten(self) -> bool:
        """Return whether bytes that are synced were changed since, and that is not synced."""
        pending = [*(waiting for _, waiting in self.waiting), self.unsynced]
        return any(
            later.cut_to is not None
            or any(self.change.patches.overlaps(each.start, each.end) for each in later.patches)
            for later in pending
        )


class CutChange(NamedTuple):
    """A changed file in a cut. ``track`` and ``disturbed`` are for `DiskJournal.is_undisturbed`."""

    change: FileChange
    track: FileTrack
    disturbed: int


class JournalCut(NamedTuple):
    """What changed between two cuts. Apply the removals first, then the directories, then the files."""

    #: The number of changes noted so far: who waits for a change waits until a cut with its number is safe.
    number: int
    #: Files that went, and directories with everything in them.
    removed: tuple[str, ...]
    directories: tuple[str, ...]
    files: dict[str, CutChange]

    def then(self, later: JournalCut) -> JournalCut:
        """Return the cut that is this one and then *later*. Neither is to be used any more."""
        gone = Below(later.removed)
        files = {path: each for path, each in self.files.items() if path not in gone}
        for path, each in later.files.items():
            before = files.get(path)
            files[path] = each if before is None else each._replace(change=before.change.then(each.change))
        directories = [path for path in self.directories if path not in gone]
        return JournalCut(
            later.number,
            (*self.removed, *later.removed),
            (*directories, *later.directories),
            files,
        )


def changed_bytes(cut: JournalCut) -> int:
    """Return the number of bytes of files that changed in *cut*."""
    return sum(each.change.bytes for each in cut.files.values())


class Below:
    """A set of paths and everything below them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)

    def __contains__(self, path: str) -> bool:
        if not self._paths:
            return False
        return path in self._paths or any(
            path[:at] in self._paths for at, char in enumerate(path) if char == "/"
        )
