"""What the in-memory file system promises beyond the contract of every `Files`."""

from __future__ import annotations

import contextlib
import errno
import threading
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks import fails

from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles

changes = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 40), st.binary(max_size=20)),
        st.tuples(st.just("truncate"), st.integers(0, 50), st.just(b"")),
        st.tuples(st.just("preallocate"), st.integers(0, 50), st.just(b"")),
        st.tuples(st.just("map"), st.just(0), st.just(b"")),
    ),
    max_size=12,
)


@given(changes)
@settings(deadline=None)
def test_a_file_in_memory_holds_what_the_same_calls_leave_on_a_real_disk(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[str, int, bytes]]
) -> None:
    posix, memory = PosixFiles(), MemoryFiles()
    directory = tmp_path_factory.mktemp("twin")
    views = []
    with (
        contextlib.closing(posix.open(str(directory / "file"), "create")) as real,
        contextlib.closing(memory.open("/file", "create")) as twin,
    ):
        for kind, number, data in plan:
            for file in (real, twin):
                if kind == "write":
                    assert file.write_at(number, [data]) == len(data)
                elif kind == "truncate":
                    file.truncate(number)
                elif kind == "preallocate":
                    file.preallocate(number)
            if kind == "map":
                views.append(twin.map())
                assert bytes(views[-1]) == real.read_at(0, 1000)
            assert twin.size() == real.size()
            assert twin.read_at(0, 1000) == real.read_at(0, 1000)
            into_real, into_twin = bytearray(60), bytearray(60)
            assert real.read_into(3, into_real) == twin.read_into(3, into_twin)
            assert into_real == into_twin


def test_preallocating_in_memory_takes_no_memory_before_it_is_filled() -> None:
    file = MemoryFiles().open("/file", "create")
    tracemalloc.start()
    try:
        file.preallocate(1 << 40)
        file.write_at(0, [b"abc"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.size() == 1 << 40
    assert peak < 1 << 16


def test_appending_in_memory_does_not_copy_the_file() -> None:
    file = MemoryFiles().open("/file", "create")
    file.write_at(0, [bytes(1 << 24)])
    file.write_at(1 << 24, [b"once, so that the buffer has room to spare"])
    tracemalloc.start()
    try:
        for _ in range(100):
            file.write_at(file.size(), [b"record"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16


def test_what_was_read_from_memory_does_not_change_later() -> None:
    file = MemoryFiles().open("/file", "create")
    file.write_at(0, [b"abc"])
    data = file.read_at(0, 3)
    file.write_at(0, [b"xyz"])
    assert data == b"abc"


def test_paths_in_memory_start_at_the_root_and_never_climb() -> None:
    files = MemoryFiles()
    files.make_directories("a/b")
    assert files.list("/") == files.list(".") == ["a"]
    assert files.list("./a//b/.") == []
    with fails(errno.EINVAL, "/a/../b"):
        files.exists("/a/../b")
    for change in (files.remove_directory, lambda path: files.rename(path, "/c")):
        with pytest.raises(OSError):
            change("/")


def test_readers_beside_a_writer_see_only_whole_writes() -> None:
    """Each write is a run of one letter; no reader may find a byte that was not written yet."""
    files = MemoryFiles()
    writer, reader = files.open("/file", "create"), files.open("/file", "read")
    run, rounds = 512, 300
    wrong: list[int] = []
    done = threading.Event()

    def read() -> None:
        finished = False
        while not finished:
            finished = done.is_set()
            data = reader.read_at(0, reader.size())
            wrong.extend(n for n in range(len(data) // run) if len(set(data[n * run : n * run + run])) != 1)
            wrong.extend(n for n in range(len(data) // run) if data[n * run] == 0)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(rounds):
        half = bytes([n % 255 + 1]) * (run // 2)
        writer.write_at(n * run, [half, half])
    done.set()
    for thread in threads:
        thread.join()
    assert reader.size() == rounds * run
    assert wrong == []
