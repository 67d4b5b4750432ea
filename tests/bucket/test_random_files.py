"""Random operations on files, shipped at random moments: the bucket has what the disk has.

Some operations happen while a piece is made: between the reads of the files whose bytes it takes.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

from support.seeds import seeds_from
from support.shipped import ShippedTree, files_in, never, restored
from support.sweeps import FULL

from cordwood.bucket.state import BucketFiles, ObjectReader
from cordwood.bucket.stores import MemoryStore
from cordwood.disk import File, MemoryFiles, Mode, ReadableFiles, join, read_file

RUNS = 4_000 if FULL else 400
#: Names, of which one is overwritten at once, some are ignored and the others are anything.
NAMES = [*(f"f{n}" for n in range(5)), "mark"]
#: The last size is read back from the file, the others are kept in memory.
SIZES = [1, 10, 500, 70_000]


class InterruptedFiles(MemoryFiles):
    """A disk on which something else may happen before and after each read of a file that is shipped."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] | None = None

    def open(self, path: str, mode: Mode) -> File:
        file = super().open(path, mode)
        if mode != "read" or self.meanwhile is None:
            return file
        return InterruptedFile(file, self.meanwhile)


class InterruptedFile:
    """A file that is read; what it lacks is that of the file within."""

    def __init__(self, inner: File, meanwhile: Callable[[], None]) -> None:
        self._inner, self._meanwhile = inner, meanwhile

    def read_at(self, position: int, size: int) -> bytes:
        self._meanwhile()
        data = self._inner.read_at(position, size)
        self._meanwhile()
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def contents(files: ReadableFiles, below: str = "") -> dict[str, bytes | None]:
    """Return every file with its bytes, and every directory with None, except what is not shipped."""
    found: dict[str, bytes | None] = {}
    for name in files.list(below):
        path = join(below, name) if below else name
        if path.removeprefix("/data/") in ("meta", "tmp"):
            continue
        if files.is_directory(path):
            found[path] = None
            found |= contents(files, path)
        else:
            found[path] = read_file(files, path)
    return {path.removeprefix("/data/"): data for path, data in found.items()}


class RandomFiles:
    """A run of random operations."""

    def __init__(self, seed: int) -> None:
        self.rnd = random.Random(seed)
        self.inner = InterruptedFiles()
        self.tree = ShippedTree(self.inner, MemoryStore())
        self.files, self.directories = self.tree.files, ["/data"]
        self.opened: dict[str, list[File]] = {}
        #: Files with changes that are not synced, and those that changed since the cut of this piece.
        self.unsynced = set[str]()
        self.touched = set[str]()
        self.done = self.ships = self.disturbed = 0

    # --- operations -------------------------------------------------------------------------------

    def create(self) -> None:
        path = join(self.rnd.choice(self.directories), self.rnd.choice(NAMES))
        self.opened.setdefault(path, []).append(self.files.open(path, "create"))
        self.note(path)

    def write(self) -> None:
        path, file = self.any_opened()
        size = file.size()
        at = size if self.rnd.random() < 0.6 else self.rnd.randrange(size + 5)
        file.write_at(at, [self.rnd.randbytes(self.rnd.choice(SIZES)), b"x"])
        self.note(path)

    def truncate(self) -> None:
        path, file = self.any_opened()
        file.truncate(self.rnd.randrange(file.size() + 3))
        self.note(path)

    def preallocate(self) -> None:
        path, file = self.any_opened()
        file.preallocate(file.size() + self.rnd.randrange(1, 2000))
        self.note(path)

    def sync(self) -> None:
        path, file = self.any_opened()
        file.sync()
        self.unsynced.discard(path)

    def sync_by_reader(self) -> None:
        path, _ = self.any_opened()
        with contextlib.closing(self.files.open(path, "read")) as file:
            file.sync()
        self.unsynced.discard(path)

    def close(self) -> None:
        path, _ = self.any_opened()
        for file in self.opened.pop(path):
            file.close()

    def rename(self) -> None:
        source = self.rnd.choice(self.paths())
        target = join(self.rnd.choice(self.directories), self.rnd.choice([*NAMES, "g1", "g2"]))
        if source == target or target in self.opened:
            return
        self.synced(source)
        self.files.rename(source, target)
        if source in self.opened:
            self.opened[target] = self.opened.pop(source)
        self.note(source)
        self.unsynced.discard(source)
        self.note(target)
        self.unsynced.discard(target)

    def replace(self) -> None:
        """As metadata is: a new file beside the old one, synced and renamed."""
        target = join(self.rnd.choice(self.directories), "replaced")
        with contextlib.closing(self.files.open(f"{target}.tmp", "create")) as file:
            file.write_at(0, [self.rnd.randbytes(self.rnd.choice(SIZES))])
            file.sync()
        self.files.rename(f"{target}.tmp", target)
        self.note(target)
        self.unsynced.discard(target)

    def link(self) -> None:
        """As a file gets a name that nothing may have: a second one, and then the first goes."""
        target = join(self.rnd.choice(self.directories), f"linked{self.rnd.randrange(3)}")
        source = f"{target}.{self.done}"
        with contextlib.closing(self.files.open(source, "create")) as file:
            file.write_at(0, [self.rnd.randbytes(self.rnd.choice(SIZES))])
            file.sync()
        with contextlib.suppress(FileExistsError):
            self.files.link(source, target)
            self.note(target)
            self.unsynced.discard(target)
        self.files.unlink(source)

    def unlink(self) -> None:
        path = self.rnd.choice(self.paths())
        self.files.unlink(path)
        # Whoever has it open may go on for a while.
        for file in self.opened.pop(path, []):
            if self.rnd.random() < 0.5:
                file.write_at(0, [b"of nobody"])
                file.sync()
            file.close()
        self.note(path)
        self.unsynced.discard(path)

    def make_directory(self) -> None:
        path = join(self.rnd.choice(self.directories), f"d{self.rnd.randrange(3)}")
        self.files.make_directories(path)
        if path not in self.directories:
            self.directories.append(path)

    def rename_directory(self) -> None:
        source = self.rnd.choice(self.directories[1:])
        target = join(self.rnd.choice(self.directories), self.rnd.choice(["d7", "d8"]))
        if self.rnd.random() < 0.3:
            # As a deleted topic: to where nothing is shipped from, and gone for the bucket.
            self.inner.make_directories("/data/tmp")
            target = f"/data/tmp/{self.done}"
        inside = target == source or target.startswith(f"{source}/")
        if inside or self.inner.exists(target) or any(p.startswith(f"{source}/") for p in self.opened):
            return
        for path in self.paths():
            if path.startswith(f"{source}/"):
                self.synced(path)
                for moved in (path, target + path[len(source) :]):
                    self.note(moved)
                    self.unsynced.discard(moved)
        self.files.rename(source, target)
        self.directories = [
            target + path[len(source) :] if path == source or path.startswith(f"{source}/") else path
            for path in self.directories
        ]
        self.directories = [path for path in self.directories if not path.startswith("/data/tmp")]

    # --- shipping ---------------------------------------------------------------------------------

    def ship(self) -> None:
        self.touched.clear()
        self.inner.meanwhile = self.disturb if self.rnd.random() < 0.5 else None
        due = set(self.unsynced)
        self.tree.ship()
        self.inner.meanwhile = None
        self.ships += 1
        # What was synced before the piece, and was not changed while it was made, is in it.
        there = files_in(self.tree.store)
        for path in self.paths():
            if path not in due and path not in self.touched:
                relative = path.removeprefix("/data/")
                assert there.exists(relative), f"{relative} is not in the bucket"
                assert read_file(there, relative) == read_file(self.inner, path), f"{relative} differs"

    def disturb(self) -> None:
        if self.rnd.random() < 0.3:
            meanwhile, self.inner.meanwhile = self.inner.meanwhile, None
            for _ in range(self.rnd.randrange(1, 4)):
                self.step(self.quiet)
            self.inner.meanwhile = meanwhile
            self.disturbed += 1

    def condense(self) -> None:
        self.tree.shipper.condense()

    def change_owner(self) -> None:
        self.tree.own()

    # --- running ----------------------------------------------------------------------------------

    @property
    def quiet(self) -> list[Callable[[], None]]:
        """Operations on files."""
        often = [self.create, self.write, self.write, self.write, self.sync, self.sync, self.truncate]
        rare = [self.preallocate, self.sync_by_reader, self.close, self.rename, self.replace, self.link]
        return [*often, *often, *rare, self.unlink, self.make_directory, self.rename_directory]

    def run(self) -> None:
        operations = [*self.quiet, self.ship, self.ship, self.ship]
        for _ in range(self.rnd.randrange(20, 150)):
            self.step(operations)
            if self.rnd.random() < 0.03:
                self.rnd.choice([self.condense, self.change_owner])()
        for path in self.paths():
            self.synced(path)
        for files in self.opened.values():
            for file in files:
                file.close()
        self.tree.ship()
        expected = contents(self.inner, "/data")
        assert contents(restored(self.tree.store), "/data") == expected
        # The owner has the same in memory, and keeps no bytes for nothing.
        mine = BucketFiles(self.tree.shipper._tree, ObjectReader(self.tree.store, never))
        assert contents(mine) == expected
        assert self.tree.journal._kept == 0
        assert not self.tree.journal._tracks

    def step(self, operations: list[Callable[[], None]]) -> None:
        self.done += 1
        with contextlib.suppress(FileExistsError, FileNotFoundError, IsADirectoryError, IndexError):
            self.rnd.choice(operations)()

    def note(self, path: str) -> None:
        self.unsynced.add(path)
        self.touched.add(path)

    def synced(self, path: str) -> None:
        """Sync a file through another handle, as before a rename."""
        with contextlib.closing(self.files.open(path, "write")) as file:
            file.sync()
        self.unsynced.discard(path)

    def any_opened(self) -> tuple[str, File]:
        path = self.rnd.choice(list(self.opened))
        return path, self.rnd.choice(self.opened[path])

    def paths(self) -> list[str]:
        """Return the paths of all files that are shipped."""
        return [
            join(directory, name)
            for directory in self.directories
            for name in self.inner.list(directory)
            if not self.inner.is_directory(join(directory, name))
        ]


def test_the_bucket_has_what_the_disk_has() -> None:
    """After every piece what was synced before it, and in the end everything."""
    ships = disturbed = operations = 0
    for seed in seeds_from(1, RUNS):
        run = RandomFiles(seed)
        try:
            run.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        ships, disturbed = ships + run.ships, disturbed + run.disturbed
        operations += run.done
    print(
        f"{RUNS} runs, {operations} operations, {ships} pieces, {disturbed} disturbances while one was made"
    )
    assert ships >= 5 * RUNS
    assert disturbed >= RUNS // 2


def test_an_empty_directory_comes_and_goes_although_pages_are_written() -> None:
    tree = ShippedTree(MemoryFiles(), MemoryStore())
    tree.files.make_directories("/data/a/b")
    tree.files.make_directories("/data/c")
    for _ in range(2):
        tree.ship()
        tree.shipper.condense()
        assert list(files_in(tree.store).list("")) == ["a", "c"]
    tree.files.remove_directory("/data/c")
    tree.files.rename("/data/a", "/data/d")
    for _ in range(2):
        tree.ship()
        tree.shipper.condense()
        assert contents(restored(tree.store), "/data") == {"d": None, "d/b": None}
