"""What a journal of changes keeps, and when the bytes that are read for a cut are those of the cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cordwood.disk import Buffer, DiskJournal, File, JournaledFiles, MemoryFiles, Mode, write_all
from cordwood.disk.journal import KEPT_IN_ALL, KEPT_PER_FILE

#: So large that its bytes are read back from the file.
LARGE = bytes(KEPT_PER_FILE + 1)


class LateFiles(MemoryFiles):
    """A disk that calls a function after each write, truncation and rename, before the caller goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.after: Callable[[], None] = lambda: None

    def open(self, path: str, mode: Mode) -> File:
        return _LateFile(super().open(path, mode), self)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.after()


class _LateFile:
    def __init__(self, inner: File, files: LateFiles) -> None:
        self._inner, self._files = inner, files

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        written = self._inner.write_at(position, buffers)
        self._files.after()
        return written

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)
        self._files.after()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def journaled(inner: MemoryFiles) -> tuple[DiskJournal, JournaledFiles]:
    inner.make_directories("/data/d")
    journal = DiskJournal(inner, "/data", lambda path: path.startswith("tmp"))
    return journal, JournaledFiles(inner, journal, at_once=lambda path: path == "mark")


def synced(files: JournaledFiles, path: str, data: bytes = LARGE) -> File:
    file = files.open(path, "create")
    write_all(file, 0, data)
    file.sync()
    return file


@pytest.mark.parametrize("change", ["overwrite", "truncate", "replace", "rename", "directory"])
def test_a_change_that_took_effect_and_is_not_noted_yet_disturbs_the_cut(change: str) -> None:
    """Else a piece has bytes of what came later without what came before those.

    For example `partition.json` as it names a new segment, without that segment.
    """
    inner = LateFiles()
    journal, files = journaled(inner)
    file = synced(files, "/data/d/file")
    synced(files, "/data/d/new").close()
    cut = journal.cut()
    read = cut.files["d/file"]
    assert journal.is_undisturbed(read)
    seen = list[bool]()
    inner.after = lambda: seen.append(journal.is_undisturbed(read))
    match change:
        case "overwrite":
            file.write_at(5, [b"other"])
        case "truncate":
            file.truncate(7)
        case "replace":
            files.rename("/data/d/new", "/data/d/file")
        case "rename":
            files.rename("/data/d/file", "/data/d/other")
        case "directory":
            files.rename("/data/d", "/data/e")
    assert seen == [False]
    assert not journal.is_undisturbed(read)


def test_an_append_and_changes_of_other_files_do_not_disturb_a_cut() -> None:
    """A log that is always appended to is shipped all the same."""
    inner = LateFiles()
    journal, files = journaled(inner)
    file = synced(files, "/data/d/file")
    other = synced(files, "/data/d/file2")
    read = journal.cut().files["d/file"]
    seen = list[bool]()
    inner.after = lambda: seen.append(journal.is_undisturbed(read))
    file.write_at(len(LARGE), [b"appended"])
    other.write_at(0, [b"other"])
    files.rename("/data/d/file2", "/data/d/file3")
    file.truncate(len(LARGE))
    assert seen == [True] * 4


def test_memory_is_bounded_while_nothing_is_cut() -> None:
    """As while the store is away: at most `KEPT_IN_ALL` bytes, and a position for each stretch."""
    journal, files = journaled(MemoryFiles())
    opened = [files.open(f"/data/f{n}", "create") for n in range(600)]
    written = 0
    for number in range(3_000):
        file = opened[number % len(opened)]
        file.write_at(file.size(), [bytes(20_000)])
        written += 20_000
        if number % 3:
            file.sync()
        if number % 500 == 0:
            assert kept(journal) <= KEPT_IN_ALL + 20_000
    assert written > 3 * KEPT_IN_ALL
    assert kept(journal) <= KEPT_IN_ALL + 20_000
    assert journal._kept == kept(journal)
    stretches = sum(len(list(track.change.patches)) for track in journal._tracks.values())
    assert stretches <= 3_000
    # What is kept no more is read from the files, and the count begins again.
    for file in opened:
        file.sync()
        file.close()
    cut = journal.cut()
    assert sum(each.change.bytes for each in cut.files.values()) == written
    journal.settle(cut)
    assert (journal._kept, journal._tracks) == (0, {})


def kept(journal: DiskJournal) -> int:
    return sum(track.kept for track in journal._tracks.values())


@pytest.mark.parametrize("ending", ["unlink", "replace", "rename away", "remove the directory"])
def test_bytes_of_files_that_went_are_not_counted_any_more(ending: str) -> None:
    """Else a directory with many short-lived files would keep nothing in memory after a while."""
    journal, files = journaled(MemoryFiles())
    for number in range(3):
        path = f"/data/d/f{number}"
        file = synced(files, path, b"synced")
        file.write_at(6, [b"not synced"])
        match ending:
            case "unlink":
                files.unlink(path)
            case "replace":
                synced(files, "/data/new", b"new").close()
                files.rename("/data/new", path)
                files.unlink(path)
            case "rename away":
                files.make_directories("/data/tmp")
                files.rename(path, f"/data/tmp/{number}")
            case "remove the directory":
                files.make_directories("/data/tmp")
                files.rename("/data/d", f"/data/tmp/d{number}")
                files.make_directories("/data/d")
        file.write_at(0, [b"of nobody"])
        file.sync()
        file.close()
        assert (journal._kept, journal._tracks) == (0, {})
