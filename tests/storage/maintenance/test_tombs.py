"""Tombs of segments: a deletion that a crash interrupted is finished, and nothing half deleted is read."""

from __future__ import annotations

from support.clocks import ManualClock
from support.disks import Create, RecordingFiles, Unlink

import cordwood
from cordwood.disk.memory import MemoryFiles
from cordwood.storage.log.segment import segments_directory

DATA = "/data"
SEGMENTS = segments_directory(f"{DATA}/topics/t/0")
FIRST = f"{SEGMENTS}/{0:020d}"


def filled(files: MemoryFiles | RecordingFiles, clock: ManualClock) -> cordwood.Log:
    """A topic of two sealed segments and an active one, of which the oldest is due."""
    log = cordwood.open(DATA, files=files, clock=clock)
    topic = log.topic("t", config={"retention.bytes": "150"})
    for number in range(3):
        topic.append(b"%d" % number + b"." * 60)
        if number < 2:
            topic.roll()
    return log


def test_a_segment_is_deleted_between_the_making_and_the_removal_of_its_tomb() -> None:
    """Tomb, indexes, log, tomb, in this order: a crash leaves no segment that looks whole."""
    disk = RecordingFiles(MemoryFiles())
    with filled(disk, ManualClock()) as log:
        before = len(disk.history)
        assert log.topic("t").remove_expired() == 1
        steps = [
            (type(step).__name__, step.path.removeprefix(FIRST))
            for step in disk.history[before:]
            if isinstance(step, Create | Unlink) and step.path.startswith(FIRST)
        ]
    assert steps[0] == ("Create", ".tomb")
    assert steps[-1] == ("Unlink", ".tomb")
    gone = [suffix for kind, suffix in steps[1:-1] if kind == "Unlink"]
    assert gone == [".idx", ".timeidx", ".log"]
    print(f"{len(steps)} steps: {gone}")


def test_a_tomb_that_is_found_at_the_start_has_its_segment_removed() -> None:
    """Whatever of the segment is left beside the tomb, none of it is served and none of it stays."""
    kept = (".log", ".idx", ".timeidx")
    for count in range(len(kept) + 1):
        disk, clock = MemoryFiles(), ManualClock()
        filled(disk, clock).close()
        left = {suffix: disk.open(FIRST + suffix, "read").read_at(0, 1 << 20) for suffix in kept[:count]}
        with cordwood.open(DATA, files=disk, clock=clock) as log:
            assert log.topic("t").remove_expired() == 1
        for suffix, data in (*left.items(), (".tomb", b"")):
            disk.open(FIRST + suffix, "create").write_at(0, [data])
        # As after a crash: without the marker of a clean close every partition is looked at.
        disk.unlink(f"{DATA}/meta/clean")
        with cordwood.open(DATA, files=disk, clock=clock) as log:
            topic = log.topic("t")
            assert [record.offset for record in topic.read(0, 1)] == [1, 2]
            assert topic.log_start_offset(0) == 1
        assert not [name for name in disk.list(SEGMENTS) if name.startswith(f"{0:020d}")], count
        assert not disk.exists(f"{DATA}/quarantine")
    print(f"{len(kept) + 1} deletions finished")
