"""The contract of `cordwood.disk.files`, held by every implementation."""

from __future__ import annotations

import contextlib
import errno
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.disks import FaultyFiles, RecordingFiles, fails, image

from cordwood.disk.direct import DirectFiles
from cordwood.disk.files import BUFFERS_PER_WRITE_MAX, File, Files, join, parent, read_file, write_atomically
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.disk.volatile import VolatileFiles
from cordwood.errors import DirectoryLocked


@dataclass(frozen=True)
class Disk:
    """A disk under test and a directory of its own on it."""

    files: Files
    root: str

    def at(self, *names: str) -> str:
        return join(self.root, *names)

    def put(self, name: str, data: bytes = b"") -> str:
        """Create a file with this content and return its path."""
        with contextlib.closing(self.files.open(self.at(name), "create")) as file:
            assert file.write_at(0, [data]) == len(data)
        return self.at(name)


IMPLEMENTATIONS: dict[str, tuple[Callable[[], Files], bool]] = {
    "posix": (PosixFiles, True),
    "direct": (DirectFiles, True),
    "memory": (MemoryFiles, False),
    "volatile": (VolatileFiles, False),
    "recording over posix": (lambda: RecordingFiles(PosixFiles()), True),
    "recording over memory": (lambda: RecordingFiles(MemoryFiles()), False),
    "faulty without faults": (lambda: FaultyFiles(MemoryFiles()), False),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    make, on_a_real_disk = IMPLEMENTATIONS[request.param]
    files = make()
    if request.param == "direct":
        try:
            files.open(str(tmp_path / "probe"), "create").close()
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                pytest.skip(f"direct: no direct I/O at {tmp_path}")
            raise
        files.unlink(str(tmp_path / "probe"))
    if on_a_real_disk:
        return Disk(files, str(tmp_path))
    files.make_directories("/data")
    return Disk(files, "/data")


@pytest.fixture
def file(disk: Disk) -> Iterator[File]:
    with contextlib.closing(disk.files.open(disk.at("file"), "create")) as opened:
        yield opened


# --- Bytes ---------------------------------------------------------------------------------------


def test_buffers_are_written_one_after_the_other_at_the_position(file: File) -> None:
    assert file.write_at(0, [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]]) == 6
    assert file.write_at(2, [b"", b"CD"]) == 2
    assert file.read_at(0, 100) == b"abCDef"
    assert file.size() == 6


def test_a_buffer_of_wider_items_counts_in_bytes(file: File) -> None:
    assert file.write_at(0, [memoryview(b"\1\0\2\0").cast("H")]) == 4
    assert file.read_at(0, 100) == b"\1\0\2\0"


def test_overwriting_across_the_end_keeps_the_head_and_grows(file: File) -> None:
    file.write_at(0, [b"abcd"])
    assert file.write_at(3, [b"XYZ"]) == 3
    assert file.read_at(0, 100) == b"abcXYZ"


def test_writing_no_buffers_writes_nothing(file: File) -> None:
    assert file.write_at(5, []) == 0
    assert file.size() == 0


def test_an_empty_write_past_the_end_does_not_lengthen_the_file(file: File) -> None:
    assert file.write_at(5, [b""]) == 0
    assert file.size() == 0


def test_a_gap_before_a_write_reads_as_zeros(file: File) -> None:
    file.write_at(4, [b"z"])
    assert file.read_at(0, 100) == b"\0\0\0\0z"


def test_more_buffers_than_one_call_takes_are_a_short_write(file: File) -> None:
    buffers = [b"%05d" % n for n in range(BUFFERS_PER_WRITE_MAX + 3)]
    assert file.write_at(0, buffers) == 5 * BUFFERS_PER_WRITE_MAX
    assert file.read_at(0, 10**6) == b"".join(buffers[:BUFFERS_PER_WRITE_MAX])


def test_a_read_is_short_only_at_the_end_of_the_file(file: File) -> None:
    file.write_at(0, [b"abcdef"])
    assert file.read_at(2, 3) == b"cde"
    assert file.read_at(2, 0) == b""
    assert file.read_at(4, 3) == b"ef"
    assert file.read_at(6, 3) == b""
    assert file.read_at(100, 3) == b""


def test_reading_into_a_buffer_touches_only_the_bytes_it_counts(file: File) -> None:
    file.write_at(0, [b"abcdef"])
    buffer = bytearray(b"........")
    assert file.read_into(1, memoryview(buffer)[2:5]) == 3
    assert buffer == b"..bcd..."
    assert file.read_into(4, buffer) == 2
    assert buffer == b"efbcd..."
    assert file.read_into(6, buffer) == 0
    assert file.read_into(100, buffer) == 0
    assert file.read_into(0, bytearray()) == 0


def test_a_huge_read_of_a_small_file_allocates_no_more_than_the_file(file: File) -> None:
    """A length field out of damaged bytes may ask for anything (P2)."""
    file.write_at(0, [b"abc"])
    tracemalloc.start()
    try:
        assert file.read_at(1, 1 << 40) == b"bc"
        assert file.read_at(7, 1 << 40) == b""
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_truncate_shortens_and_lengthens_with_zeros(file: File) -> None:
    file.write_at(0, [b"abcdef"])
    file.truncate(2)
    assert file.size() == 2
    file.truncate(4)
    assert file.read_at(0, 100) == b"ab\0\0"


def test_bytes_cut_off_never_come_back(file: File) -> None:
    """A record that was cut must not reappear when the file grows again (R7)."""
    file.write_at(0, [b"abcdef"])
    file.truncate(2)
    file.preallocate(8)
    file.write_at(7, [b"h"])
    assert file.read_at(0, 100) == b"ab\0\0\0\0\0h"


def test_preallocated_bytes_read_as_zeros_and_can_be_filled(file: File) -> None:
    file.write_at(0, [b"ab"])
    file.preallocate(6)
    assert file.size() == 6
    assert file.read_at(0, 100) == b"ab\0\0\0\0"
    buffer = bytearray(b"......")
    assert file.read_into(1, buffer) == 5
    assert buffer == b"b\0\0\0\0."
    file.write_at(2, [b"cd"])
    assert file.size() == 6
    assert file.read_at(0, 100) == b"abcd\0\0"


def test_preallocate_never_shortens(file: File) -> None:
    file.write_at(0, [b"abcdef"])
    for size in (0, 3, 6):
        file.preallocate(size)
        assert file.read_at(0, 100) == b"abcdef"


def test_syncing_and_dropping_the_cache_keep_every_byte(file: File) -> None:
    file.write_at(0, [b"abc"])
    file.sync()
    file.drop_cache()
    assert file.read_at(0, 100) == b"abc"


def test_a_map_shows_the_file_and_cannot_be_written(file: File) -> None:
    file.write_at(0, [b"abc"])
    file.preallocate(5)
    view = file.map()
    assert bytes(view) == b"abc\0\0"
    assert view.readonly
    assert view.format == "B"


def test_the_map_of_an_empty_file_is_empty(file: File) -> None:
    assert len(file.map()) == 0


def test_a_map_outlives_close_and_unlink(disk: Disk) -> None:
    path = disk.put("file", b"abc")
    file = disk.files.open(path, "read")
    view = file.map()
    file.close()
    disk.files.unlink(path)
    assert bytes(view) == b"abc"


def test_a_file_can_grow_and_be_read_while_it_is_mapped(file: File) -> None:
    file.write_at(0, [b"abc"])
    view = file.map()
    file.write_at(3, [b"def"])
    file.preallocate(8)
    assert bytes(view) == b"abc"
    assert file.read_at(0, 100) == b"abcdef\0\0"


def test_a_file_can_be_shortened_while_a_map_of_it_is_alive(file: File) -> None:
    file.write_at(0, [b"abcdef"])
    view = file.map()
    file.truncate(4)
    assert file.read_at(0, 100) == b"abcd"
    assert bytes(view[:4]) == b"abcd"


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.write_at(-1, [b"x"]),
        lambda file: file.read_at(-1, 1),
        lambda file: file.read_at(0, -1),
        lambda file: file.read_into(-1, bytearray(1)),
        lambda file: file.truncate(-1),
        lambda file: file.preallocate(-1),
    ],
    ids=["write_at", "read_at", "read_at size", "read_into", "truncate", "preallocate"],
)
def test_a_negative_position_or_size_is_refused(disk: Disk, call: Callable[[File], object]) -> None:
    path = disk.put("file", b"abc")
    with contextlib.closing(disk.files.open(path, "write")) as file:
        with fails(errno.EINVAL, path):
            call(file)
        assert file.read_at(0, 100) == b"abc"


@pytest.mark.parametrize(
    "change",
    [lambda file: file.write_at(0, [b"x"]), lambda file: file.truncate(1), lambda file: file.preallocate(9)],
    ids=["write_at", "truncate", "preallocate"],
)
def test_a_file_opened_to_read_cannot_be_changed(disk: Disk, change: Callable[[File], object]) -> None:
    path = disk.put("file", b"abc")
    with contextlib.closing(disk.files.open(path, "read")) as file:
        with fails(errno.EBADF, path):
            change(file)
        assert file.read_at(0, 100) == b"abc"


def test_a_file_opened_to_read_can_be_synced_and_mapped(disk: Disk) -> None:
    """Recovery syncs what it keeps before it opens anything for writing (R7)."""
    with contextlib.closing(disk.files.open(disk.put("file", b"abc"), "read")) as file:
        file.sync()
        file.drop_cache()
        assert bytes(file.map()) == b"abc"


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.write_at(0, [b"x"]),
        lambda file: file.write_at(0, []),
        lambda file: file.read_at(0, 1),
        lambda file: file.read_into(0, bytearray(1)),
        lambda file: file.size(),
        lambda file: file.truncate(0),
        lambda file: file.preallocate(1),
        lambda file: file.sync(),
        lambda file: file.drop_cache(),
        lambda file: file.map(),
    ],
)
def test_a_closed_file_refuses_every_call_as_our_own_mistake(
    disk: Disk, call: Callable[[File], object]
) -> None:
    path = disk.put("file", b"abc")
    file = disk.files.open(path, "write")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        call(file)
    assert file.path == path
    assert read_file(disk.files, path) == b"abc"


def test_closing_a_file_leaves_other_handles_on_it_open(disk: Disk) -> None:
    path = disk.put("file", b"abc")
    with contextlib.closing(disk.files.open(path, "read")) as reader:
        writer = disk.files.open(path, "write")
        writer.write_at(3, [b"def"])
        writer.close()
        assert reader.read_at(0, 100) == b"abcdef"


# --- Names ---------------------------------------------------------------------------------------


def test_create_refuses_what_exists_and_leaves_it_alone(disk: Disk) -> None:
    path = disk.put("file", b"abc")
    with fails(errno.EEXIST, path):
        disk.files.open(path, "create")
    assert read_file(disk.files, path) == b"abc"


def test_open_names_why_it_cannot(disk: Disk) -> None:
    disk.put("file")
    disk.files.make_directories(disk.at("directory"))
    for mode in ("read", "write"):
        with fails(errno.ENOENT, disk.at("absent")):
            disk.files.open(disk.at("absent"), mode)
        with fails(errno.EISDIR, disk.at("directory")):
            disk.files.open(disk.at("directory"), mode)
        with fails(errno.ENOTDIR, disk.at("file", "below")):
            disk.files.open(disk.at("file", "below"), mode)
    with fails(errno.ENOENT, disk.at("absent", "below")):
        disk.files.open(disk.at("absent", "below"), "create")
    with fails(errno.ENOTDIR, disk.at("file", "below")):
        disk.files.open(disk.at("file", "below"), "create")
    with fails(errno.EEXIST, disk.at("directory")):
        disk.files.open(disk.at("directory"), "create")
    with fails(errno.ENOENT, ""):
        disk.files.open("", "read")
    assert disk.files.list(disk.root) == ["directory", "file"]


def test_exists_and_is_directory_tell_files_directories_and_nothing_apart(disk: Disk) -> None:
    disk.put("file")
    disk.files.make_directories(disk.at("directory"))
    asked = {name: disk.at(name) for name in ("file", "directory", "absent", "absent/below", "file/below")}
    assert {name for name, path in asked.items() if disk.files.exists(path)} == {"file", "directory"}
    assert {name for name, path in asked.items() if disk.files.is_directory(path)} == {"directory"}


def test_list_is_sorted_and_shows_one_level(disk: Disk) -> None:
    for name in ("b", "c", "a"):
        disk.put(name)
    disk.files.make_directories(disk.at("ab", "below"))
    assert disk.files.list(disk.root) == ["a", "ab", "b", "c"]
    assert disk.files.list(disk.at("ab", "below")) == []
    with fails(errno.ENOENT, disk.at("absent")):
        disk.files.list(disk.at("absent"))
    with fails(errno.ENOTDIR, disk.at("a")):
        disk.files.list(disk.at("a"))


def test_make_directories_returns_exactly_the_directories_to_sync(disk: Disk) -> None:
    files = disk.files
    assert files.make_directories(disk.at("a", "b", "c")) == [disk.root, disk.at("a"), disk.at("a", "b")]
    assert files.make_directories(disk.at("a", "b", "d")) == [disk.at("a", "b")]
    assert files.make_directories(disk.at("a", "b", "d")) == []
    assert files.list(disk.at("a", "b")) == ["c", "d"]


def test_make_directories_does_not_pass_over_a_file(disk: Disk) -> None:
    disk.put("file")
    with fails(errno.EEXIST, disk.at("file")):
        disk.files.make_directories(disk.at("file"))
    with fails(errno.ENOTDIR, disk.at("file", "a")):
        disk.files.make_directories(disk.at("file", "a", "b"))
    with fails(errno.ENOENT, ""):
        disk.files.make_directories("")


def test_rename_replaces_the_target_and_open_handles_follow_their_own_bytes(disk: Disk) -> None:
    new, old = disk.put("new", b"new"), disk.put("old", b"old")
    with (
        contextlib.closing(disk.files.open(new, "write")) as writer,
        contextlib.closing(disk.files.open(old, "read")) as reader,
    ):
        disk.files.rename(new, old)
        writer.write_at(3, [b"er"])
        assert reader.read_at(0, 100) == b"old"
        assert writer.path == new
    assert disk.files.list(disk.root) == ["old"]
    assert read_file(disk.files, old) == b"newer"


def test_rename_moves_a_directory_with_all_it_holds(disk: Disk) -> None:
    disk.files.make_directories(disk.at("a", "b"))
    disk.files.make_directories(disk.at("empty"))
    disk.put("a/b/file", b"abc")
    disk.files.rename(disk.at("a"), disk.at("empty"))
    assert disk.files.list(disk.root) == ["empty"]
    with contextlib.closing(disk.files.open(disk.at("empty", "b", "file"), "write")) as file:
        assert file.read_at(0, 100) == b"abc"


def test_renaming_one_name_of_a_file_to_another_of_its_names_changes_nothing(disk: Disk) -> None:
    one, other = disk.put("one", b"abc"), disk.at("other")
    disk.files.link(one, other)
    disk.files.rename(one, other)
    disk.files.rename(one, one)
    assert disk.files.list(disk.root) == ["one", "other"]


def test_rename_names_why_it_cannot_and_moves_nothing(disk: Disk) -> None:
    file, directory, full = disk.put("file"), disk.at("directory"), disk.at("full")
    disk.files.make_directories(directory)
    disk.files.make_directories(join(full, "below"))
    absent = disk.at("absent")
    for code, source, target in [
        (errno.ENOENT, absent, file),
        (errno.ENOENT, file, join(absent, "below")),
        (errno.ENOTDIR, directory, file),
        (errno.ENOTDIR, file, join(file, "below")),
        (errno.EISDIR, file, directory),
        (errno.ENOTEMPTY, directory, full),
        (errno.EINVAL, full, join(full, "below", "itself")),
    ]:
        with fails(code, source):
            disk.files.rename(source, target)
    assert disk.files.list(disk.root) == ["directory", "file", "full"]


def test_a_link_is_a_second_name_of_the_same_bytes(disk: Disk) -> None:
    one, other = disk.put("one", b"abc"), disk.at("other")
    with contextlib.closing(disk.files.open(one, "write")) as file:
        disk.files.link(one, other)
        file.write_at(3, [b"def"])
    disk.files.unlink(one)
    assert disk.files.list(disk.root) == ["other"]
    assert read_file(disk.files, other) == b"abcdef"


def test_a_file_with_a_second_name_is_neither_opened_to_write_nor_locked(disk: Disk) -> None:
    one, other = disk.put("one", b"abc"), disk.at("other")
    disk.files.link(one, other)
    for path in (one, other):
        with fails(errno.EMLINK, path):
            disk.files.open(path, "write")
        with fails(errno.EMLINK, path):
            disk.files.lock(path, "me")
        assert read_file(disk.files, path) == b"abc"
    disk.files.rename(disk.put("new", b"new"), one)
    with contextlib.closing(disk.files.open(other, "write")) as file:
        file.write_at(0, [b"d"])
    assert (read_file(disk.files, one), read_file(disk.files, other)) == (b"new", b"dbc")


def test_link_never_replaces(disk: Disk) -> None:
    one, other = disk.put("one", b"1"), disk.put("other", b"2")
    with fails(errno.EEXIST, one):
        disk.files.link(one, other)
    with fails(errno.ENOENT, disk.at("absent")):
        disk.files.link(disk.at("absent"), disk.at("new"))
    with fails(errno.ENOENT, one):
        disk.files.link(one, disk.at("absent", "new"))
    assert read_file(disk.files, other) == b"2"


def test_a_directory_cannot_have_a_second_name(disk: Disk) -> None:
    disk.files.make_directories(disk.at("directory"))
    with fails(errno.EPERM, disk.at("directory")):
        disk.files.link(disk.at("directory"), disk.at("new"))


def test_unlink_takes_the_name_and_leaves_open_handles_their_bytes(disk: Disk) -> None:
    path = disk.put("file", b"abc")
    with contextlib.closing(disk.files.open(path, "write")) as file:
        disk.files.unlink(path)
        assert not disk.files.exists(path)
        file.write_at(3, [b"def"])
        assert file.read_at(0, 100) == b"abcdef"
    with fails(errno.ENOENT, path):
        disk.files.unlink(path)


def test_unlink_refuses_a_directory(disk: Disk) -> None:
    disk.files.make_directories(disk.at("directory"))
    with pytest.raises(OSError) as caught:
        disk.files.unlink(disk.at("directory"))
    # POSIX says EPERM, and so does macOS; Linux says EISDIR.
    assert caught.value.errno in (errno.EISDIR, errno.EPERM)
    assert disk.files.is_directory(disk.at("directory"))


def test_remove_directory_takes_only_an_empty_directory(disk: Disk) -> None:
    disk.files.make_directories(disk.at("a", "b"))
    with fails(errno.ENOTEMPTY, disk.at("a")):
        disk.files.remove_directory(disk.at("a"))
    disk.files.remove_directory(disk.at("a", "b"))
    disk.files.remove_directory(disk.at("a"))
    assert disk.files.list(disk.root) == []
    with fails(errno.ENOENT, disk.at("a")):
        disk.files.remove_directory(disk.at("a"))
    with fails(errno.ENOTDIR, disk.put("file")):
        disk.files.remove_directory(disk.at("file"))


def test_sync_directory_is_for_directories(disk: Disk) -> None:
    disk.files.sync_directory(disk.root)
    with fails(errno.ENOENT, disk.at("absent")):
        disk.files.sync_directory(disk.at("absent"))
    with fails(errno.ENOTDIR, disk.put("file")):
        disk.files.sync_directory(disk.at("file"))


def test_free_bytes_is_known_for_what_exists(disk: Disk) -> None:
    assert disk.files.free_bytes(disk.root) > 0
    with fails(errno.ENOENT, disk.at("absent")):
        disk.files.free_bytes(disk.at("absent"))


# --- Locks ---------------------------------------------------------------------------------------


def test_a_taken_lock_is_refused_by_the_name_of_its_holder(disk: Disk) -> None:
    lock = disk.files.lock(disk.at("lock"), "pid 7 on here")
    assert lock.held()
    with pytest.raises(DirectoryLocked) as caught:
        disk.files.lock(disk.at("lock"), "another")
    assert (caught.value.path, caught.value.holder) == (disk.at("lock"), "pid 7 on here")
    assert lock.held()
    lock.describe("9:1")
    with pytest.raises(DirectoryLocked) as caught:
        disk.files.lock(disk.at("lock"), "another")
    assert caught.value.holder == "9:1", "a shorter text leaves nothing of a longer one"
    lock.release()


def test_a_released_lock_can_be_taken_again_and_names_nobody(disk: Disk) -> None:
    first = disk.files.lock(disk.at("lock"), "first")
    first.release()
    first.release()
    assert not first.held()
    assert disk.files.list(disk.root) == ["lock"], "a lock file is never removed"
    assert read_file(disk.files, disk.at("lock")) == b""
    second = disk.files.lock(disk.at("lock"), "second")
    with pytest.raises(ValueError, match="not locked"):
        first.describe("first")
    first.release()
    assert (first.held(), second.held()) == (False, True)
    assert read_file(disk.files, disk.at("lock")) == b"second"
    second.release()


def test_a_lock_replaces_the_text_of_a_holder_that_crashed(disk: Disk) -> None:
    disk.put("lock", b"a longer text by a process that is gone")
    lock = disk.files.lock(disk.at("lock"), "me")
    assert read_file(disk.files, disk.at("lock")) == b"me"
    lock.release()


def test_a_lock_needs_a_directory_to_be_in_and_is_none_itself(disk: Disk) -> None:
    with fails(errno.ENOENT, disk.at("absent", "lock")):
        disk.files.lock(disk.at("absent", "lock"), "me")
    disk.files.make_directories(disk.at("directory"))
    with fails(errno.EISDIR, disk.at("directory")):
        disk.files.lock(disk.at("directory"), "me")


def test_dropping_a_lock_without_releasing_it_does_not_let_go(disk: Disk) -> None:
    """An engine that lost its lock object by mistake may still be writing."""
    disk.files.lock(disk.at("lock"), "me")
    with pytest.raises(DirectoryLocked, match="me"):
        disk.files.lock(disk.at("lock"), "another")


# --- Helpers over any disk -----------------------------------------------------------------------


def test_write_atomically_creates_and_replaces(disk: Disk) -> None:
    for data in (b"first", b"", b"third" * 1000):
        write_atomically(disk.files, disk.at("meta"), data)
        assert read_file(disk.files, disk.at("meta")) == data
        assert disk.files.list(disk.root) == ["meta"]


def test_write_atomically_replaces_what_a_crash_left(disk: Disk) -> None:
    disk.put("meta.tmp", b"a longer text, half of it written")
    write_atomically(disk.files, disk.at("meta"), b"new")
    assert image(disk.files, disk.root) == {disk.at("meta"): b"new"}


def test_read_file_of_an_absent_file_is_no_empty_file(disk: Disk) -> None:
    """Not being able to read metadata never means that it is empty (R6)."""
    with fails(errno.ENOENT, disk.at("absent")):
        read_file(disk.files, disk.at("absent"))


def test_paths_are_joined_and_parted() -> None:
    assert join("/data", "a", "b") == "/data/a/b"
    assert join("/data/", "a") == "/data/a"
    assert join("/", "a") == "/a"
    assert join("", "a") == "a"
    assert join("/data", "/etc") == "/data//etc", "a name never leads out of its directory"
    assert [parent(path) for path in ("/data/a", "/data/", "/", "a/b", "a", "")] == [
        "/data",
        "/",
        "/",
        "a",
        ".",
        ".",
    ]
