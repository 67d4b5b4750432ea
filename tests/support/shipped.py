"""A log in a bucket for tests: shipped from a disk in memory, and read back as another disk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cordwood.bucket import BucketFiles, ObjectReader, ObjectStore, Reading, found, perform, read_manifest
from cordwood.bucket.attaching import is_ignored, is_overwritten
from cordwood.bucket.loading import apply_piece, load_pages
from cordwood.bucket.ownership import BucketIdentity
from cordwood.bucket.shipping import Shipper, ShippingLimits
from cordwood.bucket.state import Tree
from cordwood.disk import (
    DiskJournal,
    File,
    Files,
    JournaledFiles,
    MemoryFiles,
    join,
    parent,
    read_file,
    write_all,
)
from cordwood.host import Host
from support.disks import (
    Acknowledged,
    Create,
    Link,
    MakeDirectory,
    Operation,
    Preallocate,
    RemoveDirectory,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Unlink,
    Write,
)

_NONCES = itertools.count(1)
#: Pieces are put into pages after so few that a small workload reaches it, and what goes is deleted at once.
SMALL_LIMITS = ShippingLimits(pieces_max=7, keep_ms=0)


def never(attempt: int) -> None:
    """Refuse to wait: the store of the test answers always."""
    raise AssertionError("a request to the store was not answered")


def new_nonce() -> str:
    """Return a nonce that no other owner of this process has."""
    return f"{next(_NONCES):032x}"


class ShippedTree:
    """The directory ``/data`` on a disk in memory, and its owner in a bucket."""

    def __init__(
        self,
        inner: MemoryFiles,
        store: ObjectStore,
        root: str = "/data",
        limits: ShippingLimits = SMALL_LIMITS,
    ) -> None:
        self.inner, self.store, self.root, self._limits = inner, store, root, limits
        inner.make_directories(join(root, "meta"))
        self.journal = DiskJournal(inner, root, is_ignored)
        self.files = JournaledFiles(inner, self.journal, at_once=is_overwritten)
        perform(store, found(BucketIdentity("broker", "2026-01-01T00:00:00Z"), new_nonce()), never)
        self.own()

    def own(self) -> None:
        """Take the log over with a new owner, which ships from now on."""
        self.shipper = Shipper(
            self.store, self.inner, self.root, self.journal, Host(), new_nonce(), self._limits
        )
        self.shipper.take_over()

    def ship(self) -> None:
        """Ship what is durable, and write pages if it is time."""
        self.shipper.ship()
        self.shipper.condense_if_due()


def read_bucket(store: ObjectStore) -> Tree:
    """Return the files of the log in *store*, as somebody who only reads finds them."""
    manifest = perform(store, read_manifest(), never).manifest
    tree = load_pages(store, manifest, never)
    reading = Reading.from_floor(manifest)
    while pieces := perform(store, reading.poll(), never)[0]:
        for piece in pieces:
            apply_piece(tree, piece)
    return tree


def files_in(store: ObjectStore) -> BucketFiles:
    """Return the files of the log in *store*."""
    return BucketFiles(read_bucket(store), ObjectReader(store, never))


def restored(store: ObjectStore, root: str = "/data") -> MemoryFiles:
    """Return a new disk with the files of the log in *store* below *root*, all of them synced."""
    source, disk = files_in(store), MemoryFiles()
    disk.make_directories(root)
    for path in _walk(source, ""):
        place = join(root, path)
        if source.is_directory(path):
            disk.make_directories(place)
            continue
        disk.make_directories(parent(place))
        file = disk.open(place, "create")
        write_all(file, 0, read_file(source, path))
        file.sync()
        file.close()
    return disk


def _walk(files: BucketFiles, below: str) -> Iterator[str]:
    for name in files.list(below):
        path = join(below, name) if below else name
        yield path
        if files.is_directory(path):
            yield from _walk(files, path)


class Repeater:
    """Does the operations of a history on any files, one by one, with the syncs.

    Directories that were there before the recording began are made as needed.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._opened: dict[int, File] = {}

    def apply(self, operation: Operation) -> None:
        """Do *operation*, the next one of the history."""
        files = self._files
        match operation:
            case Create(path, inode):
                files.make_directories(parent(path))
                self._opened[inode] = files.open(path, "create")
            case Write(inode, position, data):
                self._file(inode).write_at(position, [data])
            case Truncate(inode, size):
                self._file(inode).truncate(size)
            case Preallocate(inode, size):
                self._file(inode).preallocate(size)
            case Sync(inode):
                self._file(inode).sync()
            case Rename(source, target):
                files.rename(source, target)
            case Link(source, target):
                files.link(source, target)
            case Unlink(path):
                files.unlink(path)
            case MakeDirectory(path):
                files.make_directories(path)
            case RemoveDirectory(path):
                files.remove_directory(path)
            case SyncDirectory(path):
                files.sync_directory(path)
            case Acknowledged():
                pass

    def _file(self, inode: int) -> File:
        return self._opened[inode]
