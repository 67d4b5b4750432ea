"""What direct I/O adds to the contract of every `Files`: whole blocks underneath, exact bytes on top."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks import fails
from support.patience import SECONDS_MAX

import cordwood
from cordwood.disk.direct import BLOCK_BYTES_MIN, READ_BUFFER_BYTES, DirectFiles
from cordwood.disk.files import File, Files, Mode, read_file, write_atomically
from cordwood.disk.posix import PosixFiles
from cordwood.errors import StorageError

BLOCK = BLOCK_BYTES_MIN


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory on a file system with direct I/O."""
    found = str(tmp_path_factory.mktemp("direct"))
    try:
        DirectFiles().open(f"{found}/probe", "create").close()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip(f"no direct I/O at {found}")
        raise
    return found


_numbers = itertools.count()


@pytest.fixture
def path(directory: str) -> str:
    """A name that is not taken."""
    return f"{directory}/{next(_numbers)}"


@contextlib.contextmanager
def opened(path: str, mode: Mode = "create") -> Iterator[File]:
    with contextlib.closing(DirectFiles().open(path, mode)) as file:
        yield file


def pattern(size: int, seed: int = 0) -> bytes:
    """Return bytes without a zero, different for each *seed*."""
    return bytes((seed * 89 + i + i // 251) % 255 + 1 for i in range(size))


# --- Whole blocks, exact bytes -------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc to look into")
@pytest.mark.parametrize("mode", ["create", "write", "read"])
def test_the_descriptor_is_one_for_direct_io(path: str, mode: Mode) -> None:
    if mode != "create":
        write_atomically(PosixFiles(), path, b"abc")
    file = DirectFiles().open(path, mode)
    numbers = [int(n) for n in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{n}") == path]
    assert len(numbers) == 1
    assert fcntl.fcntl(numbers[0], fcntl.F_GETFL) & os.O_DIRECT
    assert fcntl.fcntl(numbers[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    file.close()


def test_a_write_from_and_to_any_place_around_the_block_edges_changes_those_bytes_only(path: str) -> None:
    edges = sorted({max(0, n * BLOCK + near) for n in range(4) for near in (-1, 0, 1)})
    checked = 0
    with opened(path) as file:
        for size, start, end in itertools.product(edges, edges, edges):
            if start >= end:
                continue
            model = bytearray(pattern(size))
            file.truncate(0)
            if model:
                file.write_at(0, [model])
            data = pattern(end - start, 1)
            assert file.write_at(start, [data[:1], data[1:]]) == end - start
            model.extend(bytes(max(0, start - size)))
            model[start:end] = data
            assert file.size() == len(model)
            assert file.read_at(0, 1 << 20) == model, (size, start, end)
            assert file.read_at(start, end - start) == data
            checked += 1
    assert checked == 605, "each size with each of the places"


near_an_edge = st.builds(
    lambda block, near: max(0, block * BLOCK + near), st.integers(0, 3), st.integers(-3, 3)
)
changes = st.lists(
    st.tuples(
        st.sampled_from(["write", "append", "append", "truncate", "preallocate", "reopen"]),
        near_an_edge,
        near_an_edge | st.integers(0, 20),
    ),
    max_size=12,
)


@given(changes)
@settings(deadline=None)
def test_a_file_holds_what_the_same_calls_leave_in_a_byte_array(
    directory: str, plan: list[tuple[str, int, int]]
) -> None:
    path, model = f"{directory}/{next(_numbers)}", bytearray()
    file = DirectFiles().open(path, "create")
    for number, (kind, position, size) in enumerate(plan, 1):
        if kind in ("write", "append"):
            position = len(model) if kind == "append" else position
            data = pattern(size, number)
            assert file.write_at(position, [data]) == size
            if size:
                model.extend(bytes(max(0, position - len(model))))
                model[position : position + size] = data
        elif kind == "truncate":
            file.truncate(position)
            model[position:] = bytes(max(0, position - len(model)))
        elif kind == "preallocate":
            file.preallocate(position)
            model.extend(bytes(max(0, position - len(model))))
        else:
            file.close()
            file = DirectFiles().open(path, "write")
        assert file.size() == len(model)
        assert file.read_at(0, 1 << 20) == model
        assert file.read_at(position, size) == model[position : position + size]
        target = bytearray(size)
        assert file.read_into(position, target) == len(model[position : position + size])
        assert target[: max(0, len(model) - position)] == model[position : position + size]
    file.close()
    assert read_file(PosixFiles(), path) == model, "and so does everybody else see it"
    os.unlink(path)


def test_a_long_read_takes_no_memory_beyond_its_bytes_but_one_buffer(path: str) -> None:
    data = pattern(251 * 255) * 80
    with opened(path) as file:
        file.write_at(0, [data])
        tracemalloc.start()
        try:
            found = file.read_at(1, 1 << 40)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # The aligned buffer is not traced.
    assert peak < len(data) + (1 << 20) - READ_BUFFER_BYTES
    assert found == data[1:]


@pytest.mark.parametrize("cut", [BLOCK, 512, BLOCK + 512])
def test_reads_that_the_system_cuts_short_are_continued(
    path: str, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """The system may stop at any sector; direct I/O can only go on at the start of a block."""
    data, preadv = pattern(5 * BLOCK + 7), os.preadv
    calls = 0

    def cut_short(number: int, into: list[memoryview], position: int) -> int:
        nonlocal calls
        calls += 1
        return preadv(number, [into[0][: cut if calls % 2 else None]], position)

    with opened(path) as file:
        file.write_at(0, [data])
        monkeypatch.setattr(os, "preadv", cut_short)
        assert file.read_at(3, 1 << 20) == data[3:]
        target = bytearray(4 * BLOCK)
        calls = 0
        assert file.read_into(5, target) == len(target)
        assert target == data[5 : 5 + len(target)]


# --- Appends -------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions read from while the test runs."""
    found: list[int] = []
    preadv = os.preadv

    def counted(number: int, into: list[memoryview], position: int) -> int:
        found.append(position)
        return preadv(number, into, position)

    monkeypatch.setattr(os, "preadv", counted)
    return found


def test_appends_do_not_read_back_what_they_just_wrote(path: str, reads: list[int]) -> None:
    model = b""
    with opened(path) as file:
        for number in range(100):
            data = pattern(number * 7 + 1, number)
            assert file.write_at(len(model), [data]) == len(data)
            model += data
        assert reads == []
        assert file.read_at(0, len(model)) == model
    reads.clear()
    with opened(path, "write") as file:
        for _ in range(20):
            file.write_at(len(model), [b"later"])
            model += b"later"
        assert reads == [len(model) // BLOCK * BLOCK], "once: the block where the file ended"
        assert file.read_at(0, len(model)) == model


def test_appends_to_preallocated_space_read_each_block_once_and_leave_the_size_alone(
    path: str, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preallocated space is there so that an append changes no size, and syncs faster."""
    with opened(path) as file:
        file.preallocate(8 * BLOCK)
        monkeypatch.delattr(os, "ftruncate")
        for position in range(0, 4 * BLOCK, 100):
            file.write_at(position, [pattern(100)])
        assert reads == [0, BLOCK, 2 * BLOCK, 3 * BLOCK, 4 * BLOCK]
        assert file.size() == 8 * BLOCK


def test_handles_on_one_file_agree_on_its_last_block(path: str) -> None:
    """A handle that remembered the block on its own would write an old one over another's bytes."""
    with opened(path) as one, opened(path, "write") as other:
        for number in range(10):
            assert (one if number % 2 else other).write_at(number * 3, [b"%03d" % number]) == 3
        one.truncate(9)
        one.truncate(30)
        other.write_at(30, [b"end"])
        assert one.read_at(0, 100) == other.read_at(0, 100) == b"000001002" + bytes(21) + b"end"


def test_what_an_outsider_appended_is_not_written_over(path: str) -> None:
    """Nobody should, but a size that is not ours says that the remembered block is not the file's."""
    with opened(path) as file:
        file.write_at(0, [b"abc"])
        with open(path, "ab") as outsider:
            outsider.write(b"def")
        file.write_at(6, [b"ghi"])
        assert file.read_at(0, 100) == b"abcdefghi"


def test_a_new_file_inherits_nothing_from_an_unlinked_one(path: str) -> None:
    """File systems give the number of a removed file to the next one."""
    numbers = []
    for _ in range(3):
        with opened(path) as file:
            numbers.append(os.stat(path).st_ino)
            file.truncate(100)
            file.write_at(50, [b"x"])
            assert file.read_at(0, 200) == bytes(50) + b"x" + bytes(49)
            file.write_at(0, [pattern(100)])
        os.unlink(path)
    print(f"{3 - len(set(numbers))} numbers were given twice")


# --- Beside a writer -----------------------------------------------------------------------------


def test_readers_never_see_the_zeros_behind_a_write_under_way(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bytes, int, bytes]] = []
    ftruncate = os.ftruncate

    with opened(path) as writer, opened(path, "read") as reader:
        writer.write_at(0, [b"abc"])

        def another_threads_turn(number: int, size: int) -> None:
            assert os.fstat(number).st_size == BLOCK, "the blocks are written, the size is not set yet"
            for file in (writer, reader):
                target = bytearray(5)
                count = file.read_into(0, target)
                seen.append((file.size(), file.read_at(1, 100), count, bytes(file.map())))
            ftruncate(number, size)

        monkeypatch.setattr(os, "ftruncate", another_threads_turn)
        writer.write_at(3, [b"def"])
        assert seen == [(3, b"bc", 3, b"abc")] * 2
        assert reader.read_at(0, 100) == b"abcdef"
        assert reader.size() == 6


def test_a_forked_child_can_use_files_whatever_other_threads_were_doing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that another thread held at the fork is never released in the child."""
    fstat = os.fstat
    children = []

    def forked_meanwhile(number: int) -> os.stat_result:
        monkeypatch.setattr(os, "fstat", fstat)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(SECONDS_MAX))
            passed = False
            try:
                passed = read_file(DirectFiles(), path) == b"abc"
            finally:
                os._exit(0 if passed else 1)
        children.append(child)
        return fstat(number)

    with opened(path) as file:
        file.write_at(0, [b"abc"])
        monkeypatch.setattr(os, "fstat", forked_meanwhile)
        assert file.size() == 3
    assert [os.waitpid(child, 0)[1] for child in children] == [0]


# --- Failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("old_size", [0, 10, BLOCK, BLOCK + 10, 5 * BLOCK])
@pytest.mark.parametrize("blocks_bytes", [0, 512, BLOCK, BLOCK + 512, 2 * BLOCK])
def test_a_short_write_counts_only_the_callers_bytes(
    path: str, monkeypatch: pytest.MonkeyPatch, blocks_bytes: int, old_size: int
) -> None:
    position, data, old = BLOCK - 100, pattern(3 * BLOCK, 1), pattern(old_size)
    taken = max(0, blocks_bytes - position)
    pwrite = os.pwrite
    with opened(path) as file:
        file.write_at(0, [old])
        with monkeypatch.context() as short:
            short.setattr(os, "pwrite", lambda number, staged, at: pwrite(number, staged[:blocks_bytes], at))
            assert file.write_at(position, [data]) == taken
        model = bytearray(old)
        if taken:
            model.extend(bytes(max(0, position - old_size)))
            model[position : position + taken] = data[:taken]
        assert file.read_at(0, 1 << 20) == model
        assert file.write_at(position + taken, [data[taken:]]) == len(data) - taken
        assert file.read_at(position, len(data)) == data


def test_after_a_short_write_the_rest_of_the_block_is_what_the_file_holds(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the block before the write nor the one it meant to leave may be taken for what is there."""
    pwrite = os.pwrite
    with opened(path) as file:
        file.preallocate(2 * BLOCK)
        file.write_at(0, [b"abcdefghij"])
        with monkeypatch.context() as short:
            short.setattr(os, "pwrite", lambda number, staged, at: pwrite(number, staged[:512], at))
            assert file.write_at(10, [pattern(1000)]) == 502
        file.write_at(2000, [b"z"])
        assert file.read_at(0, 2001) == b"abcdefghij" + pattern(502) + bytes(1488) + b"z"


def failing(code: int) -> Callable[..., int]:
    """Return a system call that fails, as the os module reports it: without a path."""

    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize(
    ("call", "code"),
    [("pwrite", errno.ENOSPC), ("pwrite", errno.EIO), ("preadv", errno.EIO), ("ftruncate", errno.EIO)],
)
def test_a_failed_write_names_the_file_and_can_be_cut_off(
    path: str, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    with opened(path) as file:
        file.write_at(0, [b"abc"])
    with opened(path, "write") as file:
        with monkeypatch.context() as broken:
            broken.setattr(os, call, failing(code))
            with fails(code, path):
                file.write_at(3, [b"lost"])
        file.truncate(3)
        file.write_at(3, [b"def"])
        assert file.read_at(0, 100) == b"abcdef"


def test_bytes_that_cannot_be_read_are_not_written_over(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros in place of what could not be read would destroy records that were acknowledged."""
    write_atomically(PosixFiles(), path, b"abc")
    with opened(path, "write") as file:
        with monkeypatch.context() as broken:
            broken.setattr(os, "preadv", lambda *_: 0)
            with fails(errno.EIO, path):
                file.write_at(3, [b"def"])
        assert file.read_at(0, 100) == b"abc"


# --- Where there is no direct I/O ----------------------------------------------------------------


def refuse_like_a_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        number = real_open(path, flags & ~os.O_DIRECT, mode)
        if flags & os.O_DIRECT:
            os.close(number)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return number

    monkeypatch.setattr(os, "open", refusing)


def refuse_like_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_DIRECT", raising=False)


REFUSALS = [refuse_like_macos]
if hasattr(os, "O_DIRECT"):
    REFUSALS.append(refuse_like_a_file_system)


@pytest.mark.parametrize("refuse", REFUSALS)
def test_a_refusal_is_one_clear_error_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Callable[[pytest.MonkeyPatch], None]
) -> None:
    there, new = str(tmp_path / "there"), str(tmp_path / "new")
    write_atomically(PosixFiles(), there, b"abc")
    with monkeypatch.context() as refusing:
        refuse(refusing)
        modes: list[tuple[str, Mode]] = [(there, "read"), (there, "write"), (new, "create")]
        for path, mode in modes:
            with fails(errno.EOPNOTSUPP, path):
                DirectFiles().open(path, mode)
        with pytest.raises((OSError, StorageError), match="direct I/O is not supported there"):
            cordwood.open(tmp_path / "data", files=DirectFiles())
    assert PosixFiles().list(str(tmp_path)) == ["data", "there"]
    assert read_file(PosixFiles(), there) == b"abc"
    with cordwood.open(tmp_path / "data") as log:
        log.topic("orders").append(b"now without")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs a file system without direct I/O")
def test_a_real_file_system_without_direct_io_is_named() -> None:
    with fails(errno.EOPNOTSUPP, "/proc/self/status"):
        DirectFiles().open("/proc/self/status", "read")


# --- A whole log ---------------------------------------------------------------------------------


def segments_in(data: Path) -> dict[str, bytes]:
    """Return the content of every file of every segment."""
    found = (file for file in data.rglob("segments/*") if file.is_file())
    return {str(file.relative_to(data)): file.read_bytes() for file in found}


def write_a_log(data: Path, files: Files) -> None:
    """Append, roll, truncate, close, open again and append; records of a few bytes to several blocks."""
    settings = {"segment.bytes": "20000", "index.interval.bytes": "1000"}
    with cordwood.open(data, files=files) as log:
        topic = log.topic("orders", config=settings)
        for number in range(60):
            topic.append(pattern(number * number, number), partition=0, timestamp=1000 + number)
        topic.roll(0)
        topic.append_many([(b"k", pattern(10, n), (), 2000 + n) for n in range(50)], partition=0)
        topic.truncate(0, 100)
        topic.append(b"after the cut", partition=0, timestamp=3000)
        topic.truncate(0, 30)
    with cordwood.open(data, files=files) as log:
        topic = log.topic("orders")
        for number in range(40):
            topic.append(pattern(number * 100, number), partition=0, timestamp=4000 + number)


def test_a_log_over_direct_io_is_the_same_byte_for_byte(directory: str, tmp_path: Path) -> None:
    direct, posix = Path(directory, "log"), tmp_path / "log"
    for data, files in ((direct, DirectFiles()), (posix, PosixFiles())):
        write_a_log(data, files)
    assert segments_in(direct) == segments_in(posix)
    assert sum(name.endswith(".log") for name in segments_in(direct)) > 5
    read = []
    for data, files in ((direct, PosixFiles()), (posix, DirectFiles()), (direct, DirectFiles())):
        with cordwood.open(data, files=files, read_only=True) as log:
            read.append([(r.offset, r.key, r.value) for r in log.topic("orders").read()])
    assert read[0] == read[1] == read[2]
    assert len(read[0]) == 70


def test_a_crash_between_the_blocks_and_the_size_costs_no_record(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file then ends in zeros, up to the end of its block: the segment, the catalogue, the mark."""
    data, ftruncate = f"{directory}/crashing", os.ftruncate
    acknowledged: list[bytes] = []
    crashes: list[tuple[str, list[bytes]]] = []

    def crash_before(number: int, size: int) -> None:
        if os.fstat(number).st_size > size:
            crashes.append((f"{directory}/crash-{len(crashes)}", list(acknowledged)))
            shutil.copytree(data, crashes[-1][0])
        ftruncate(number, size)

    with monkeypatch.context() as crashing:
        crashing.setattr(os, "ftruncate", crash_before)
        for _ in range(2):
            with cordwood.open(data, files=DirectFiles()) as log:
                topic = log.topic("orders", config={"index.interval.bytes": "100"})
                for number in range(15):
                    value = pattern(number * number * 5, number)
                    topic.append(value)
                    acknowledged.append(value)
                    if number == 10:
                        topic.roll()
    print(f"{len(crashes)} crashes")
    assert len(crashes) > 50
    opened_topics = 0
    for path, expected in crashes:
        with cordwood.open(path, files=DirectFiles()) as log:
            if "orders" not in log.topics:
                assert expected == [], "only a crash in the first opening leaves no topic"
                continue
            opened_topics += 1
            topic = log.topic("orders")
            found = [record.value for record in topic.read()]
            # The record that was just being written may be there too.
            assert found[: len(expected)] == expected
            assert len(found) <= len(expected) + 1
            for report in log.reports:
                assert (report.damage, report.quarantined) == (None, None)
            topic.append(b"and on")
    assert opened_topics > 40
