"""What became durable in a tree of files since somebody last asked, for a copy that follows it.

A `JournaledFiles` passes every call on, and notes in a `DiskJournal` what a copy needs. `DiskJournal.cut`
returns the changes since the last cut. The tree after them is one that a power cut could have left then:
synced bytes, and names in the order of their changes. So recovery makes of the copy what it makes of a
crashed disk, and everything acknowledged before the cut is in it.

Small writes are kept in memory; of large ones only the position is, and their bytes are read from the file
later. `DiskJournal.is_undisturbed` says whether what is read then is still what was cut.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator, Sequence

from cordwood.disk.changes import CutChange, FileChange, FileTrack, JournalCut
from cordwood.disk.files import Buffer, Files, SyncFailed, join
from cordwood.disk.patches import Stretch
from cordwood.errors import CordwoodError

#: The files with records: a sync of them is what an acknowledgement waits for.
RECORD_SUFFIXES = (".log", ".sum", ".index", ".oidx")
#: The bytes of a file, and of all files, that are kept in memory between two cuts.
KEPT_PER_FILE = 64 << 10
KEPT_IN_ALL = 16 << 20
_NO_END = 1 << 63


class DiskJournal:
    """The changes of the files below *root* since the last cut. Every method may be called from any thread.

    Paths are relative to *root*. What *ignored* says of a path holds for everything below it too.
    """

    def __init__(self, files: Files, root: str, ignored: Callable[[str], bool]) -> None:
        self._files = files
        self._prefix = join(root, "")
        self._ignored = ignored
        self._lock = threading.Lock()
        self._tracks: dict[str, FileTrack] = {}
        self._dirty: dict[FileTrack, None] = {}
        self._removed: dict[str, None] = {}
        self._directories: dict[str, None] = {}
        self._number = 0
        #: Called with a number by those who may go on once a cut with it is safe; None while nobody waits.
        self.wait_for: Callable[[int], None] | None = None
        #: The directories of topics whose syncs wait so, relative to the root.
        self._waiting_topics: set[str] = set()
        self._exempt = threading.local()
        self._kept = 0
        #: The paths that a rename under way takes away or replaces.
        self._renaming: list[str] = []

    @property
    def number(self) -> int:
        """The number of changes noted so far."""
        return self._number

    def waiting_bytes(self) -> int:
        """Return the bytes of files that changed since the last cut."""
        with self._lock:
            return sum(track.change.bytes for track in self._dirty)

    # --- waiting ----------------------------------------------------------------------------------

    def let_topic_wait(self, directory: str, *, waits: bool) -> None:
        """Let syncs of the records of the topic in *directory* return only once they are safe, or no longer.

        With the first such topic, so do syncs of the broker's own topics and of the catalogue: what those say
        must not be lost where the records that depend on it are not.
        """
        relative = self.relative(directory)
        if relative is None:
            return
        topics = self._waiting_topics | {relative} if waits else self._waiting_topics - {relative}
        # Replaced, because other threads look at it without the lock.
        self._waiting_topics = topics

    @contextlib.contextmanager
    def exempt(self) -> Iterator[None]:
        """Let no sync of this thread wait: the caller waits for all of them at once."""
        self._exempt.now = True
        try:
            yield
        finally:
            self._exempt.now = False

    def waits(self, path: str) -> bool:
        """Return whether a sync of *path* waits until it is safe."""
        topics = self._waiting_topics
        if not topics or self.wait_for is None or getattr(self._exempt, "now", False):
            return False
        names = path.split("/", 3)
        # A partition, or a file of records below it; not its indexes, nor its chain.
        if names[0] == "meta":
            return path == "meta/catalogue.log"
        if names[0] != "topics" or len(names) < 3:
            return False
        if len(names) == 4 and not names[3].endswith(RECORD_SUFFIXES):
            return False
        return names[1].startswith("__") or "/".join(names[:2]) in topics

    def waits_in(self, directory: str) -> bool:
        """Return whether a sync of the records in *directory* waits until they are safe."""
        if not self._waiting_topics:
            return False
        relative = self.relative(directory)
        return relative is not None and self.waits(f"{relative}/segments/{RECORD_SUFFIXES[0]}")

    def waiting_for_now(self) -> Callable[[], None]:
        """Return a call that returns once what is durable by now is safe, and raises SyncFailed if never."""
        number, wait_for = self._number, self.wait_for

        def wait() -> None:
            if wait_for is not None:
                try:
                    wait_for(number)
                except CordwoodError as error:
                    raise SyncFailed(errno.EIO, str(error), self._prefix) from error

        return wait

    def wait(self, path: str) -> None:
        """Return once what is durable by now is safe, if a sync of *path* waits for that.

        Raises:
            SyncFailed: If it never will be.
        """
        if self.waits(path):
            self.waiting_for_now()()

    # --- cutting ----------------------------------------------------------------------------------

    def cut(self) -> JournalCut:
        """Return the changes since the last cut, and forget them. Call `settle` when it was read."""
        with self._lock:
            return self._cut()

    def _cut(self) -> JournalCut:
        files: dict[str, CutChange] = {}
        for track in self._dirty:
            assert track.path is not None, "a file without a path has changes"
            if track.is_overwritten():
                self._take_unsynced(track)
            change = track.change
            track.change, track.dirty, track.in_cut = FileChange(), False, change
            track.change.size = change.size
            self._kept -= change.patches.kept
            files[track.path] = CutChange(change, track, track.disturbed)
        cut = JournalCut(self._number, tuple(self._removed), tuple(self._directories), files)
        self._dirty, self._removed, self._directories = {}, {}, {}
        return cut

    def extend(self, cut: JournalCut) -> JournalCut:
        """Return *cut* and all changes since as one cut, to be read from the beginning."""
        with self._lock:
            for each in cut.files.values():
                track = each.track
                track.in_cut = None
                if track.disturbed != each.disturbed and track.path is not None:
                    # What disturbed it may not be synced yet; a power cut may keep it all the same.
                    self._take_unsynced(track)
                    self._soil(track)
            extended = cut.then(self._cut())
            for path, each in extended.files.items():
                each.track.in_cut = each.change
                extended.files[path] = each._replace(disturbed=each.track.disturbed)
            return extended

    def is_undisturbed(self, change: CutChange) -> bool:
        """Return whether the bytes of a cut that were read from the file by now are those of the cut."""
        with self._lock:
            track, path = change.track, change.track.path
            if track.disturbed != change.disturbed or path is None:
                return False
            # A change that began before the bytes were read is noted only when it has ended.
            start = track.in_flight
            if start is not None and change.change.patches.overlaps(start, _NO_END):
                return False
            return all(path != each and not path.startswith(f"{each}/") for each in self._renaming)

    def settle(self, cut: JournalCut) -> None:
        """Forget *cut*, whose bytes were read: from now on its files may change."""
        with self._lock:
            for each in cut.files.values():
                if each.track.in_cut is each.change:
                    each.track.in_cut = None
                self._drop_idle(each.track)

    def include(self, path: str) -> None:
        """Note the file at *path* whole, as if it had been created now. All of it must be synced."""
        size = self._size_of(path)
        with self._lock:
            self._include(path, size)

    def append_from(self, path: str, start: int) -> None:
        """Note the bytes of a file from *start* on as if they had been appended now. All are synced."""
        size = self._size_of(path)
        with self._lock:
            track = self._tracks.get(path) or self._track(path, size)
            track.change.size = size
            self._put(track.change, Stretch(start, size, None))
            self._soil(track)

    def remove(self, path: str) -> None:
        """Note that nothing is at *path* any more, as if it had been removed now."""
        with self._lock:
            self._remove(path)

    # --- what files do ----------------------------------------------------------------------------

    def relative(self, path: str) -> str | None:
        """Return *path* relative to the root, None if it is ignored or lies elsewhere."""
        if not path.startswith(self._prefix):
            return None
        relative = path[len(self._prefix) :]
        return None if not relative or self._ignored(relative) else relative

    def opened(self, path: str, size: int, *, created: bool) -> FileTrack:
        """Return the track of the file at *path*, which was just opened to be written."""
        with self._lock:
            if created:
                self._detach(path)
            track = self._tracks.get(path)
            if track is None:
                track = self._track(path, size)
            track.opened += 1
            if created:
                track.change.fresh = True
                self._soil(track)
            return track

    def closed(self, track: FileTrack) -> None:
        """Note that the file was closed."""
        with self._lock:
            track.opened -= 1
            self._drop_idle(track)

    def written(
        self, track: FileTrack, position: int, buffers: Sequence[Buffer], size: int, *, at_once: bool
    ) -> None:
        """Note that the first *size* bytes of *buffers* were written at *position*."""
        end = position + size
        data = b"".join([bytes(each) for each in buffers])[:size] if size <= KEPT_PER_FILE else None
        with self._lock:
            if track.path is None:
                return
            if track.in_cut is not None and track.in_cut.patches.overlaps(position, end):
                track.disturbed += 1
            track.size = max(track.size, end)
            change = track.unsynced
            if at_once:
                change = track.change
                change.size = track.size
                self._soil(track)
            self._put(change, Stretch(position, end, data))

    def truncated(self, track: FileTrack, size: int, *, at_once: bool) -> None:
        """Note that the file was cut or lengthened to *size* bytes."""
        with self._lock:
            if track.path is None:
                return
            change = track.change if at_once else track.unsynced
            if size < track.size:
                track.disturbed += 1
                kept = change.patches.kept
                change.truncate(size)
                self._kept += change.patches.kept - kept
            track.size = size
            if at_once:
                change.size = size
                self._soil(track)

    def lengthened(self, track: FileTrack, size: int) -> None:
        """Note that the file is at least *size* bytes long."""
        with self._lock:
            track.size = max(track.size, size)

    def syncing(self, track: FileTrack) -> int:
        """Note that a sync begins; return its number, for `synced`."""
        with self._lock:
            track.unsynced.size = track.size
            track.serial += 1
            track.waiting.append((track.serial, track.unsynced))
            track.unsynced = FileChange()
            return track.serial

    def synced(self, track: FileTrack, serial: int) -> None:
        """Note that the sync *serial* succeeded: everything that was written before it began is durable."""
        with self._lock:
            kept = track.kept
            while track.waiting and track.waiting[0][0] <= serial:
                _, later = track.waiting.pop(0)
                track.change = track.change.then(later)
            self._kept += track.kept - kept
            self._forget_bytes_of(track.change)
            self._soil(track)

    @contextlib.contextmanager
    def renaming(self, *paths: str | None) -> Iterator[None]:
        """Note that *paths* are being renamed or replaced, until the block ends; None if one is ignored."""
        changing = [path for path in paths if path is not None]
        with self._lock:
            self._renaming += changing
        try:
            yield
        finally:
            with self._lock:
                for path in changing:
                    self._renaming.remove(path)

    def renamed(
        self, source: str | None, target: str | None, full_target: str, *, is_directory: bool
    ) -> None:
        """Note that *source* is called *target* now. None stands for a path that is ignored."""
        found: list[tuple[str, int | None]] = []
        if target is not None:
            # Looked at before the lock is taken, because that may block.
            found = self._found_at(target, full_target) if is_directory else [(target, self._size_of(target))]
        with self._lock:
            track = None if source is None or target is None else self._tracks.pop(source, None)
            if source is not None:
                self._remove(source, is_directory=is_directory)
            if target is None:
                return
            self._remove(target, is_directory=is_directory)
            if track is not None and track.change.fresh and not is_directory:
                # Created since the last cut: everything about it is known.
                track.path, track.disturbed = target, track.disturbed + 1
                self._tracks[target] = track
                self._soil(track)
                return
            if track is not None:
                # Whoever has the file open goes on with it under its new name.
                self._forget(track)
                track.path = target
                self._tracks[target] = track
            for path, size in found:
                if size is None:
                    self._directories[path] = None
                else:
                    self._include(path, size)

    def unlinked(self, path: str, *, is_directory: bool) -> None:
        """Note that *path* names nothing any more."""
        with self._lock:
            self._remove(path, is_directory=is_directory)

    def made(self, path: str) -> None:
        """Note that there is a directory at *path*."""
        with self._lock:
            self._directories[path] = None
            self._count()

    # --- inside -----------------------------------------------------------------------------------

    def _found_at(self, path: str, full: str) -> list[tuple[str, int | None]]:
        """Return what is in a directory, itself first, with the sizes of files and None for directories."""
        found: list[tuple[str, int | None]] = [(path, None)]
        for name in self._files.list(full):
            below, inside = join(path, name), join(full, name)
            if self._files.is_directory(inside):
                found += self._found_at(below, inside)
            else:
                found.append((below, self._size_of(below)))
        return found

    def _size_of(self, path: str) -> int:
        file = self._files.open(self._prefix + path, "read")
        try:
            return file.size()
        finally:
            file.close()

    def _track(self, path: str, size: int) -> FileTrack:
        track = self._tracks[path] = FileTrack(path, size)
        return track

    def _include(self, path: str, size: int) -> None:
        track = self._tracks.get(path) or self._track(path, size)
        # All of the file is read, also what is not synced yet.
        self._kept -= track.kept
        track.forget()
        track.size = size
        track.change.fresh, track.change.size = True, size
        track.change.patches.put(Stretch(0, size, None))
        self._soil(track)

    def _remove(self, path: str, *, is_directory: bool = True) -> None:
        self._detach(path)
        below = path + "/"
        for name in [name for name in self._tracks if name.startswith(below)] if is_directory else ():
            self._detach(name)
        for name in [name for name in self._directories if name.startswith(below)] if is_directory else ():
            del self._directories[name]
        self._directories.pop(path, None)
        # Behind those that were removed before: what is created there later comes after all of them.
        self._removed.pop(path, None)
        self._removed[path] = None
        self._count()

    def _detach(self, path: str) -> None:
        """Let the file at *path*, if it is known, have no path any more."""
        track = self._tracks.pop(path, None)
        if track is not None:
            self._forget(track)

    def _forget(self, track: FileTrack) -> None:
        track.path, track.disturbed = None, track.disturbed + 1
        self._kept -= track.kept
        track.forget()
        track.dirty = False
        self._dirty.pop(track, None)

    def _soil(self, track: FileTrack) -> None:
        self._count()
        if track.path is not None and not track.dirty:
            track.dirty = True
            self._dirty[track] = None

    def _count(self) -> None:
        self._number += 1

    def _take_unsynced(self, track: FileTrack) -> None:
        kept = track.kept
        track.take_unsynced()
        self._kept += track.kept - kept

    def _put(self, change: FileChange, stretch: Stretch) -> None:
        kept = change.patches.kept
        change.patches.put(stretch)
        self._kept += change.patches.kept - kept
        self._forget_bytes_of(change)

    def _forget_bytes_of(self, change: FileChange) -> None:
        if change.patches.kept > KEPT_PER_FILE or (change.patches.kept and self._kept > KEPT_IN_ALL):
            self._kept -= change.patches.kept
            change.patches.forget_bytes()

    def _drop_idle(self, track: FileTrack) -> None:
        pending = track.waiting or track.unsynced.patches or track.unsynced.cut_to is not None
        if track.opened or track.dirty or track.in_cut is not None or pending:
            return
        if track.path is not None and self._tracks.get(track.path) is track:
            del self._tracks[track.path]

    def sync_of(self, path: str, sync: Callable[[], None]) -> None:
        """Call *sync*, which syncs the file at *path* through a handle that only reads."""
        with self._lock:
            track = self._tracks.get(path)
        if track is None:
            sync()
            return
        serial = self.syncing(track)
        sync()
        self.synced(track, serial)
