"""`VolatileFiles`: after a crash there is what was synced, and nothing else."""

from __future__ import annotations

import contextlib
import random

import pytest
from support.crashes import crash_images
from support.disks import RecordingFiles, image
from support.seeds import seed_or

import cordwood
from cordwood.disk import VolatileFiles
from cordwood.disk.files import File


def put(files: VolatileFiles, path: str, data: bytes) -> File:
    file = files.open(path, "create")
    file.write_at(0, [data])
    return file


def test_bytes_and_names_survive_only_if_both_were_synced() -> None:
    files = VolatileFiles()
    files.make_directories("/a")
    files.sync_directory("/")
    put(files, "/a/both", b"1").sync()
    put(files, "/a/name only", b"2")
    files.sync_directory("/a")
    put(files, "/a/bytes only", b"3").sync()
    files.make_directories("/lost")
    assert image(files.after_crash(), "/") == {"/a": None, "/a/both": b"1", "/a/name only": b""}
    # What is lost on that disk is still there on the one before the crash, where it was written.
    assert files.open("/a/bytes only", "read").read_at(0, 9) == b"3"


def test_a_removed_name_is_back_unless_its_directory_was_synced() -> None:
    files = VolatileFiles()
    for name in ("/x", "/y"):
        put(files, name, b"old").sync()
    files.sync_directory("/")
    files.unlink("/x")
    files.sync_directory("/")
    files.unlink("/y")
    assert image(files.after_crash(), "/") == {"/y": b"old"}


@pytest.mark.parametrize("synced", ["/a", "/b"])
def test_a_rename_between_directories_survives_whole(synced: str) -> None:
    files = VolatileFiles()
    files.make_directories("/a")
    files.make_directories("/b")
    put(files, "/a/x", b"1").sync()
    for directory in ("/a", "/b", "/"):
        files.sync_directory(directory)
    files.rename("/a/x", "/b/y")
    assert image(files.after_crash(), "/") == {"/a": None, "/b": None, "/a/x": b"1"}
    files.sync_directory(synced)
    assert image(files.after_crash(), "/") == {"/a": None, "/b": None, "/b/y": b"1"}


def test_two_names_of_a_file_are_one_file_after_the_crash() -> None:
    files = VolatileFiles()
    put(files, "/x", b"1").sync()
    files.link("/x", "/y")
    files.sync_directory("/")
    after = files.after_crash()
    after.unlink("/x")
    after.open("/y", "write").write_at(0, [b"2"])
    assert image(after, "/") == {"/y": b"2"}


def test_random_writes_cuts_and_syncs_leave_the_bytes_of_the_last_sync() -> None:
    seed = seed_or(20_261_005)
    print(f"seed {seed}")
    drawn, compared = random.Random(seed), 0
    for _ in range(150):
        files = VolatileFiles()
        file = files.open("/x", "create")
        files.sync_directory("/")
        synced = b""
        for _ in range(30):
            match drawn.randrange(6):
                case 0 | 1:
                    file.write_at(drawn.randrange(60), [drawn.randbytes(drawn.randrange(20))])
                case 2:
                    file.truncate(drawn.randrange(60))
                case 3:
                    file.preallocate(drawn.randrange(80))
                case 4:
                    file.map()
                case 5:
                    file.sync()
                    synced = file.read_at(0, 100)
            after = files.after_crash().open("/x", "read")
            assert after.read_at(0, 100) == synced
            compared += 1
    print(f"{compared} crashes compared")
    assert compared == 150 * 30


def test_a_crash_of_a_log_leaves_a_disk_that_a_power_cut_could_leave() -> None:
    """The model of power cuts that the engine is tested with has this disk too, after every step."""
    disk = VolatileFiles()
    files = RecordingFiles(disk)
    compared = 0

    def compare() -> None:
        nonlocal compared
        files.began = len(files.history)
        kinds = ("all", "none", "names dropped", "names and data dropped", "ordered prefix")
        left = image(disk.after_crash(), "/")
        # A lock is taken again at the next start, so its text does not count.
        assert any(
            _without_lock(image(legal.files, "/")) == _without_lock(left)
            for legal in crash_images(files, kinds=kinds)
        )
        compared += 1

    with contextlib.closing(cordwood.open(":memory:", files=files)) as log:
        topic = log.topic("orders", 2)
        compare()
        for number in range(3):
            topic.append(b"%d" % number, partition=0)
            compare()
            topic.roll(0)
            compare()
        topic.truncate(0, 2)
        compare()
        topic.advance_log_start(0, 1)
        compare()
        log.delete_topic("orders")
        compare()
    compare()
    print(f"{compared} crashes compared")
    assert compared == 11


def _without_lock(disk: dict[str, bytes | None]) -> dict[str, bytes | None]:
    return {path: data for path, data in disk.items() if not path.endswith("lock")}
