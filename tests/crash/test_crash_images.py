"""The enumerator of crashed disks, on a toy log: it passes the correct one and catches every planted bug."""

from __future__ import annotations

import errno
import random
import struct
import zlib
from collections.abc import Callable, Iterable
from itertools import islice

import pytest
from support.crashes import ALL_KINDS, CrashCount, CrashImage, again, crash_images, survives
from support.disks import RecordingFiles, image, replay
from support.seeds import seeds_from

from cordwood.disk.files import File, Files, join, read_file
from cordwood.disk.memory import MemoryFiles

# --- A toy log -------------------------------------------------------------------------------------

HEADER = struct.Struct(">II")
SEGMENT_BYTES = 1500
META, TEMPORARY = "/log/meta", "/log/meta.tmp"


class ToyLog:
    """Records in numbered segments: length, CRC and payload. ``meta`` says how many segments there are.

    *bug* names a thing this copy does wrong.
    """

    def __init__(self, files: Files, bug: str = "") -> None:
        self.files, self.bug = files, bug
        self.records: list[bytes] = []
        self.waiting: list[bytes] = []
        for changed in files.make_directories("/log"):
            files.sync_directory(changed)
        if not files.exists(META):
            self._start_segment(0)
            return
        self.number = int(read_file(files, META)) - 1
        for number in range(self.number + 1):
            records = self._parse(read_file(files, f"/log/{number}"))
            self.end = sum(HEADER.size + len(record) for record in records)
            self.records += records
        self.file = files.open(f"/log/{self.number}", "write")
        self.file.truncate(self.end)
        self.file.sync()

    def append(self, record: bytes) -> None:
        """Append a record, not yet durable."""
        if self.end and self.end + HEADER.size + len(record) > SEGMENT_BYTES:
            if self.bug != "previous segment not synced at roll":
                self.file.sync()
            self._start_segment(self.number + 1)
        self.end += self.file.write_at(self.end, [HEADER.pack(len(record), self._crc(record)), record])
        self.waiting.append(record)

    def commit(self, acknowledge: Callable[[bytes], None]) -> None:
        """Make every record durable, then acknowledge each."""
        if self.bug != "acknowledge before sync":
            self.file.sync()
        for record in self.waiting:
            acknowledge(record)
        self.file.sync()
        self.records += self.waiting
        self.waiting = []

    def _crc(self, record: bytes) -> int:
        return zlib.crc32(record[:4] if self.bug == "CRC over a prefix" else record)

    def _parse(self, data: bytes) -> list[bytes]:
        records: list[bytes] = []
        position = 0
        while position + HEADER.size <= len(data):
            length, crc = HEADER.unpack_from(data, position)
            record = data[position + HEADER.size :][:length]
            if len(record) < length or (length == 0 and self.bug != "zero length accepted"):
                break
            if crc != self._crc(record) and self.bug != "no CRC check":
                break
            records.append(record)
            position += HEADER.size + length
        return records

    def _start_segment(self, number: int) -> None:
        self.file = self._create(f"/log/{number}")
        self.number, self.end = number, 0
        meta = self._create(TEMPORARY)
        meta.write_at(0, [b"%d" % (number + 1)])
        if self.bug != "rename before sync":
            meta.sync()
        self.files.rename(TEMPORARY, META)
        meta.sync()
        if self.bug != "no directory sync":
            self.files.sync_directory("/log")

    def _create(self, path: str) -> File:
        if self.files.exists(path):
            self.files.unlink(path)
        return self.files.open(path, "create")


BUGS = {
    "acknowledge before sync": "D1",
    "no directory sync": "D1",
    "previous segment not synced at roll": "R2",
    "no CRC check": "R2",
    "CRC over a prefix": "R2",
    "zero length accepted": "R2",
    "rename before sync": "R1",
}
"""Each planted bug, and the invariant that finds it."""

SIZES = [30, 5, 600, 40, 1100, 7, 300, 300, 300, 50, 900, 20]
RECORDS = [random.Random(number).randbytes(size) for number, size in enumerate(SIZES * 6)]


def run(recording: RecordingFiles, bug: str = "") -> None:
    """Append every record, in commits of one to seven."""
    log = ToyLog(recording, bug)
    for number, record in enumerate(RECORDS):
        log.append(record)
        if number % 13 in (0, 2, 5, 12):
            log.commit(recording.acknowledge)
    assert log.number >= 2, "the workload must roll"


def check(found: CrashImage, bug: str = "") -> None:
    """The log opens with a prefix of what was appended and all that was promised, and goes on from there."""
    log = ToyLog(found.files, bug)
    kept = list(log.records)
    assert kept == RECORDS[: len(kept)], "R2: not a prefix of what was appended"
    assert len(kept) >= len(found.acknowledged), "D1: an acknowledged record is gone"
    log.append(b"after the crash")
    log.commit(lambda record: None)
    assert ToyLog(found.files, bug).records == [*kept, b"after the crash"], "R3: lost after recovery"


def header_edge(data: bytes) -> list[int]:
    return [HEADER.size]


def test_a_correct_log_survives_every_image_and_every_kind_of_fault_occurs() -> None:
    count = CrashCount()
    assert survives(run, check, images_max=100_000, edges=header_edge, count=count) is None
    print(*count.report(), sep="\n")
    count.require(1400)


@pytest.mark.parametrize("bug", BUGS)
def test_each_planted_bug_is_caught(bug: str) -> None:
    violation = survives(
        lambda recording: run(recording, bug),
        lambda found: check(found, bug),
        images_max=100_000,
        edges=header_edge,
    )
    assert violation is not None, f"{bug}: not caught"
    print(f"{bug}: {violation}")
    assert violation.invariant == BUGS[bug]


@pytest.mark.parametrize("bug", BUGS)
def test_a_few_images_of_each_cut_are_enough_for_the_planted_bugs(bug: str) -> None:
    """A long workload can afford one image of each kind per cut and still find them."""
    violation = survives(
        lambda recording: run(recording, bug),
        lambda found: check(found, bug),
        images_max=100_000,
        limit_per_prefix=len(ALL_KINDS),
    )
    assert violation is not None, f"{bug}: not caught"


def test_a_crash_inside_recovery_loses_nothing() -> None:
    """What was acknowledged before the first crash is there after the second."""
    recording = RecordingFiles(MemoryFiles())
    run(recording)
    count = CrashCount()
    for first in crash_images(recording, limit_per_prefix=12):
        second = again(first, "/")
        ToyLog(second)
        for found in crash_images(second, count=count):
            assert found.acknowledged[: len(first.acknowledged)] == first.acknowledged
            check(found)
    print(*count.report(), sep="\n")
    count.require(500, kinds=["all", "none", "drop one", "keep one", "names dropped"])


# --- What the device keeps of files ----------------------------------------------------------------


def contents(recording: RecordingFiles, path: str, kinds: Iterable[str] = ALL_KINDS) -> list[bytes | None]:
    """Return what a cut after the last operation may leave of one file; None where its name is missing."""
    recording.began = len(recording.history)
    wanted = set(kinds)
    return [
        read_file(found.files, path) if found.files.exists(path) else None
        for found in crash_images(recording)
        if found.kind in wanted
    ]


def synced_file(data: bytes) -> tuple[RecordingFiles, File]:
    recording = RecordingFiles(MemoryFiles())
    file = recording.open("/a", "create")
    file.write_at(0, [data])
    file.sync()
    recording.sync_directory("/")
    return recording, file


def test_synced_bytes_and_names_are_in_every_image() -> None:
    recording, _ = synced_file(b"safe")
    assert contents(recording, "/a") == [b"safe"]


def test_unsynced_writes_reach_the_device_in_any_of_the_ways_tried() -> None:
    recording, file = synced_file(b"safe")
    for position, data in ((4, b"AB"), (6, b"CD"), (8, b"EF")):
        file.write_at(position, [data])
    assert contents(recording, "/a", ["all"]) == [b"safeABCDEF"]
    assert contents(recording, "/a", ["none"]) == [b"safe"]
    assert contents(recording, "/a", ["ordered prefix"]) == [b"safeAB", b"safeABCD"]
    assert contents(recording, "/a", ["drop one", "keep one"]) == [
        b"safe\0\0CDEF",
        b"safeAB\0\0EF",
        b"safe\0\0CD",
        b"safe\0\0\0\0EF",
    ]
    assert contents(recording, "/a", ["torn byte"]) == [
        b"safeA\0CDEF",
        b"safeABC\0EF",
        b"safeABCDE",
        b"safe\0\0\0\0E",
    ]
    assert contents(recording, "/a", ["tail zeros"]) == [b"safe\0\0\0\0\0\0", b"safeABCD\0\0", b"safeABCDE\0"]
    garbage = contents(recording, "/a", ["tail garbage"])
    assert [(data or b"")[:9] for data in garbage[1:]] == [(garbage[1] or b"")[:9], b"safeABCDE"]
    assert all(data is not None and len(data) == 10 and data.startswith(b"safe") for data in garbage)


def test_an_overwrite_leaves_old_or_new_bytes_but_never_zeros_or_garbage() -> None:
    recording, file = synced_file(b"old")
    file.write_at(0, [b"NEW"])
    assert set(contents(recording, "/a")) == {b"old", b"Nld", b"NEd", b"NEW"}


def test_sectors_are_those_of_the_file_and_may_arrive_in_any_order() -> None:
    recording, file = synced_file(b"s" * 500)
    file.write_at(500, [b"1" * 12 + b"2" * 512 + b"3" * 10])
    found = contents(recording, "/a", ["torn sector"])
    tails = [(data or b"")[500:] for data in found]
    assert tails == [
        b"1" * 12,
        b"1" * 12 + b"2" * 512,
        b"\0" * 12 + b"2" * 512 + b"3" * 10,
        b"1" * 12 + b"\0" * 512 + b"3" * 10,
    ]


def test_a_cut_may_or_may_not_have_reached_the_device() -> None:
    recording, file = synced_file(b"0123456789")
    file.truncate(4)
    assert set(contents(recording, "/a")) == {b"0123", b"0123456789"}
    file.write_at(4, [b"new"])
    found = set(contents(recording, "/a"))
    assert {b"0123", b"0123new", b"0123456789", b"0123new789", b"0123\0\0\0"} <= found


def test_space_for_a_file_costs_no_memory_and_may_be_missing() -> None:
    """Nor does a preallocated file: the engine's segments are far larger than what tests write."""
    recording, file = synced_file(b"safe")
    file.preallocate(1 << 40)
    file.write_at(4, [b"new"])
    recording.began = len(recording.history)
    found = [disk.files.open("/a", "read") for disk in crash_images(recording)]
    assert {file.size() for file in found} == {4, 5, 6, 7, 1 << 40}
    assert {file.read_at(0, 8) for file in found} >= {
        b"safe",
        b"safenew",
        b"safenew\0",
        bytes(4).join([b"safe", b""]),
    }


def test_a_named_file_that_was_never_synced_may_be_empty() -> None:
    recording = RecordingFiles(MemoryFiles())
    recording.open("/a", "create").write_at(0, [b"data"])
    assert {b"", b"data", bytes(4), None} <= set(contents(recording, "/a"))
    recording.sync_directory("/")
    assert None not in contents(recording, "/a")
    assert b"" in contents(recording, "/a")


# --- What the device keeps of names ----------------------------------------------------------------


def names(recording: RecordingFiles) -> list[list[str]]:
    """Return the trees of paths that a cut after the last operation may leave, most complete first."""
    recording.began = len(recording.history)
    found = [sorted(image(disk.files, "/")) for disk in crash_images(recording)]
    return [paths for number, paths in enumerate(found) if paths not in found[:number]]


def test_names_go_missing_from_the_last_one_back() -> None:
    recording = RecordingFiles(MemoryFiles())
    recording.make_directories("/d")
    for path in ("/d/a", "/b", "/d/c"):
        recording.open(path, "create")
    assert names(recording) == [
        ["/b", "/d", "/d/a", "/d/c"],
        ["/b", "/d", "/d/a"],
        ["/d", "/d/a"],
        ["/d"],
        [],
    ]
    recording.sync_directory("/d")
    assert names(recording) == [["/b", "/d", "/d/a", "/d/c"], ["/d", "/d/a", "/d/c"], []]
    recording.sync_directory("/")
    assert names(recording) == [["/b", "/d", "/d/a", "/d/c"]]
    recording.unlink("/d/a")
    recording.unlink("/b")
    assert names(recording) == [["/d", "/d/c"], ["/b", "/d", "/d/c"], ["/b", "/d", "/d/a", "/d/c"]]


def test_a_rename_is_there_whole_or_not_at_all() -> None:
    recording, _ = synced_file(b"old")
    new = recording.open("/b", "create")
    new.write_at(0, [b"new"])
    new.sync()
    recording.rename("/b", "/a")
    assert set(contents(recording, "/a")) == {b"new", b"old"}
    assert names(recording) == [["/a"], ["/a", "/b"]]
    recording.sync_directory("/")
    assert contents(recording, "/a") == [b"new"]


def test_a_rename_across_directories_is_certain_once_both_are_synced() -> None:
    for first, second in (("/", "/d"), ("/d", "/")):
        recording, _ = synced_file(b"data")
        recording.make_directories("/d")
        recording.sync_directory("/")
        recording.rename("/a", "/d/b")
        recording.sync_directory(first)
        assert names(recording) == [["/d", "/d/b"], ["/a", "/d"]]
        recording.sync_directory(second)
        assert names(recording) == [["/d", "/d/b"]]


def test_a_rename_is_certain_once_a_later_change_of_its_name_is() -> None:
    recording, _ = synced_file(b"data")
    recording.make_directories("/d")
    recording.sync_directory("/")
    recording.rename("/a", "/d/b")
    recording.rename("/d/b", "/d/c")
    recording.sync_directory("/d")
    assert names(recording) == [["/d", "/d/c"]]


def test_two_names_of_one_file_are_one_file_in_an_image() -> None:
    recording, file = synced_file(b"data")
    recording.link("/a", "/b")
    recording.rename("/a", "/b")
    assert names(recording) == [["/a", "/b"], ["/a"]]
    file.write_at(0, [b"DATA"])
    whole = next(crash_images(recording))
    assert image(whole.files, "/").keys() == {"/a", "/b"}
    with pytest.raises(OSError, match="linked from elsewhere"):
        whole.files.open("/a", "write")
    whole.files.unlink("/b")
    whole.files.open("/a", "write").write_at(0, [b"ours"])
    assert image(whole.files, "/") == {"/a": b"ours"}


# --- The enumeration as a whole --------------------------------------------------------------------


def scramble(files: Files, seed: int) -> None:
    """Do a hundred random things to a few files in a few directories."""
    order = random.Random(seed)
    directories = ["/x", "/y", "/x/z"]
    for directory in directories:
        files.make_directories(directory)
    paths = [join(directory, name) for directory in directories for name in "abc"]
    for _ in range(100):
        there = [path for path in paths if files.exists(path)]
        free = [path for path in paths if path not in there]
        action = order.choice(
            ["create", "write", "write", "truncate", "sync", "rename", "link", "unlink", "dir"]
        )
        if action == "create" and free:
            files.open(order.choice(free), "create")
        elif action == "dir":
            files.sync_directory(order.choice([*directories, "/"]))
        elif action == "link" and there and free:
            files.link(order.choice(there), order.choice(free))
        elif action == "rename" and there:
            files.rename(order.choice(there), order.choice(paths))
        elif action == "unlink" and len(there) > 3:
            files.unlink(order.choice(there))
        elif there:
            try:
                file = files.open(order.choice(there), "write")
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
                continue
            if action == "write":
                file.write_at(order.randrange(20), [order.randbytes(order.randrange(1, 600))])
            elif action == "truncate":
                file.truncate(order.randrange(700))
            else:
                file.sync()


@pytest.mark.parametrize("seed", seeds_from(0, 4))
def test_if_everything_reached_the_device_the_disk_is_as_it_was_running(seed: int) -> None:
    recording = RecordingFiles(MemoryFiles())
    scramble(recording, seed)
    seen: list[dict[str, bytes | None]] = []
    for found in crash_images(recording, kinds=("all",)):
        seen.append(image(found.files, "/"))
        assert seen[-1] == image(replay(recording.history[: found.prefix]), "/")
    assert all(
        image(replay(recording.history[:prefix]), "/") in seen for prefix in range(len(recording.history) + 1)
    )


@pytest.mark.parametrize("seed", seeds_from(0, 4))
def test_after_syncing_everything_one_disk_is_left(seed: int) -> None:
    recording = RecordingFiles(MemoryFiles())
    scramble(recording, seed)
    paths = image(recording, "/")
    for path, data in paths.items():
        if data is None:
            recording.sync_directory(path)
        else:
            recording.open(path, "read").sync()
    recording.sync_directory("/")
    recording.began = len(recording.history)
    assert [image(found.files, "/") for found in crash_images(recording)] == [paths]


def test_each_content_comes_once_for_what_was_acknowledged_and_the_same_every_time() -> None:
    recording = RecordingFiles(MemoryFiles())
    run(recording)
    keys = [(found.digest, found.acknowledged) for found in crash_images(recording, seed=1)]
    assert len(keys) == len(set(keys))
    assert keys == [(found.digest, found.acknowledged) for found in crash_images(recording, seed=1)]
    assert keys != [(found.digest, found.acknowledged) for found in crash_images(recording, seed=2)]


def test_equal_digests_are_equal_trees_and_the_other_way_round() -> None:
    recording = RecordingFiles(MemoryFiles())
    run(recording)
    trees: dict[bytes, dict[str, bytes | None]] = {}
    for found in crash_images(recording):
        tree = image(found.files, "/")
        assert trees.setdefault(found.digest, tree) == tree
    assert len({repr(tree) for tree in trees.values()}) == len(trees)


def test_images_share_nothing_that_can_be_changed() -> None:
    recording, file = synced_file(b"data")
    file.write_at(4, [b"more"])
    found = [disk.files for disk in crash_images(recording)]
    before = [image(files, "/") for files in found]
    for files in found[1:]:
        files.make_directories("/new")
        for name in files.list("/"):
            if name != "new":
                files.open(join("/", name), "write").write_at(0, [b"XX"])
    assert image(found[0], "/") == before[0]
    assert [image(disk.files, "/") for disk in crash_images(recording)] == before


def test_a_limit_holds_for_each_cut_and_leaves_out_no_kind() -> None:
    recording = RecordingFiles(MemoryFiles())
    run(recording)
    count = CrashCount()
    cuts = [found.prefix for found in crash_images(recording, limit_per_prefix=11, count=count)]
    assert max(cuts.count(prefix) for prefix in cuts) == 11
    count.require(300)


def test_directories_from_before_the_recording_are_in_every_image() -> None:
    inner = MemoryFiles()
    inner.make_directories("/data/empty")
    inner.open("/data/a", "create").write_at(0, [b"there"])
    recording = RecordingFiles(inner, existing="/data")
    recording.open("/data/empty/b", "create")
    assert names(recording) == [
        ["/data", "/data/a", "/data/empty", "/data/empty/b"],
        ["/data", "/data/a", "/data/empty"],
    ]


def test_the_count_fails_when_a_kind_is_missing_or_the_total_too_small() -> None:
    recording, file = synced_file(b"data")
    file.write_at(4, [b"more"])
    count = CrashCount()
    assert len(list(crash_images(recording, count=count))) == count.images
    with pytest.raises(AssertionError, match=r"these faults: ordered prefix, torn sector$"):
        count.require(1)
    kinds = [kind for kind in ALL_KINDS if count.counts[kind]]
    count.require(count.total, kinds)
    with pytest.raises(AssertionError, match=f"expected {count.total + 1}"):
        count.require(count.total + 1, kinds)
    assert len(count.report()) == len(ALL_KINDS) + 3


def test_anything_but_a_named_invariant_is_a_failure_to_start() -> None:
    def fail(error: Exception) -> Callable[[CrashImage], None]:
        def check(found: CrashImage) -> None:
            raise error

        return check

    for error, message in (
        (AssertionError("O1: twice"), "O1: twice"),
        (AssertionError("assert 1 == 2"), "R1: AssertionError: assert 1 == 2"),
        (KeyError("meta"), "R1: KeyError: 'meta'"),
    ):
        violation = survives(run, fail(error), images_max=1)
        assert violation is not None
        assert (violation.message, violation.prefix, violation.kind) == (message, 0, "all")
    with pytest.raises(RuntimeError, match="first 5 images"):
        survives(run, check, images_max=5)


def test_the_first_images_are_the_disk_before_anything_happened() -> None:
    recording, _ = synced_file(b"data")
    assert [image(found.files, "/") for found in islice(crash_images(recording), 1)] == [{}]
