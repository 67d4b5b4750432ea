"""Metadata is replaced whole and durably, or not at all."""

from __future__ import annotations

import errno

from support.disks import (
    Create,
    FaultPlan,
    FaultyFiles,
    RecordingFiles,
    Rename,
    Sync,
    SyncDirectory,
    Write,
    fails,
    image,
)

from cordwood.disk.files import read_file, write_atomically
from cordwood.disk.memory import MemoryFiles


def test_write_atomically_syncs_the_bytes_before_the_name_and_the_name_before_it_returns() -> None:
    files = RecordingFiles(MemoryFiles())
    write_atomically(files, "/meta", b"abc")
    assert files.history == [
        Create("/meta.tmp", 1),
        Write(1, 0, b"abc"),
        Sync(1),
        Rename("/meta.tmp", "/meta"),
        SyncDirectory("/"),
    ]


def test_write_atomically_leaves_old_or_new_whichever_call_fails() -> None:
    at = 0
    outcomes = []
    while True:
        at += 1
        inner = MemoryFiles()
        write_atomically(inner, "/meta", b"old")
        files = FaultyFiles(inner, FaultPlan(at, short=1))
        try:
            write_atomically(files, "/meta", b"new!")
        except OSError:
            outcomes.append(read_file(inner, "/meta"))
        else:
            break
        write_atomically(inner, "/meta", b"again")
        assert image(inner, "/") == {"/meta": b"again"}
    assert outcomes == [b"old", b"old", b"old", b"old", b"new!"]


def test_write_atomically_finishes_short_writes() -> None:
    inner = MemoryFiles()
    plan = FaultPlan(1, frozenset({"write"}), error=None, short=1, forever=True)
    files = FaultyFiles(inner, plan)
    write_atomically(files, "/meta", b"abcd")
    assert read_file(inner, "/meta") == b"abcd"
    assert files.calls.count("write") == 4


def test_write_atomically_gives_up_when_the_disk_takes_nothing() -> None:
    inner = MemoryFiles()
    write_atomically(inner, "/meta", b"old")
    files = FaultyFiles(inner, FaultPlan(1, frozenset({"write"}), error=None, short=0, forever=True))
    with fails(errno.ENOSPC, "/meta.tmp"):
        write_atomically(files, "/meta", b"new")
    assert read_file(inner, "/meta") == b"old"
