"""Files in ``segments/`` that no state names: deleted where a crash explains them, else kept. R4, row 21."""

from __future__ import annotations

import pytest
from support.clocks import ManualClock
from support.disks import image

import cordwood
from cordwood.disk.files import join, read_file, write_atomically
from cordwood.disk.memory import MemoryFiles
from cordwood.storage.log import read_state, write_state
from cordwood.storage.log.state import advanced_state

DATA = "/data"
PARTITION = "/data/topics/t/0"
SEGMENTS = "/data/topics/t/0/segments"
QUARANTINE = "/data/quarantine"


def filled(initial: int = 0, segments: int = 3, format_: str = "batch") -> MemoryFiles:
    """A closed log with a record in each sealed segment, and one in the active one."""
    disk = MemoryFiles()
    config = {"cordwood.initial.offset": str(initial), "cordwood.format": format_, "cordwood.chain": "false"}
    with cordwood.open(DATA, files=disk, clock=ManualClock()) as log:
        topic = log.topic("t", config=config)
        for number in range(segments):
            topic.append(b"value %d" % number)
            topic.roll()
        topic.append(b"last")
    return disk


def reopened(disk: MemoryFiles) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Open and close the log; return the names that the report has as deleted and as set aside."""
    with cordwood.open(DATA, files=disk, clock=ManualClock()) as log:
        assert [record.value for record in log.topic("t").read(0)][-1] == b"last"
        (report,) = log.reports
        return report.removed_leftovers, report.set_aside


def quarantined(disk: MemoryFiles) -> dict[str, bytes | None]:
    return {path.rpartition("/")[2]: data for path, data in image(disk, QUARANTINE).items()}


@pytest.mark.parametrize("format_", ["batch", "rustlog", "laminarmq"])
def test_a_segment_below_the_first_one_that_retention_did_not_leave_is_kept(format_: str) -> None:
    """It was deleted unseen before: an operator who restores an old file by hand must not lose it."""
    disk = filled(initial=100, format_=format_)
    kept = {}
    for suffix in ("log", "sum", "index"):
        source = f"{SEGMENTS}/{100:020d}.{suffix}"
        if disk.exists(source):
            kept[f"{50:020d}.{suffix}"] = read_file(disk, source)
            write_atomically(disk, f"{SEGMENTS}/{50:020d}.{suffix}", read_file(disk, source))
    deleted, set_aside = reopened(disk)
    assert deleted == ()
    assert set(set_aside) == set(kept)
    assert quarantined(disk) == {f"t-0-{name}": data for name, data in kept.items()}
    assert reopened(disk) == ((), ()), "nothing is left to do"


def test_segments_that_a_crash_left_after_the_log_start_moved_are_deleted() -> None:
    """The state names them until the log start moves again, so they are known to have expired."""
    disk = filled()
    state = read_state(disk, PARTITION)
    write_state(disk, PARTITION, advanced_state(state, 2))
    deleted, set_aside = reopened(disk)
    assert set_aside == ()
    assert {name for name in deleted if name.endswith(".log")} == {f"{base:020d}.log" for base in (0, 1)}
    assert not disk.exists(QUARANTINE) or quarantined(disk) == {}


def test_files_that_could_not_be_removed_are_still_known_after_the_log_start_moved_again() -> None:
    disk = filled()
    left = read_file(disk, f"{SEGMENTS}/{0:020d}.log")
    state = read_state(disk, PARTITION)
    with cordwood.open(DATA, files=disk, clock=ManualClock()) as log:
        log.topic("t").advance_log_start(0, 1)
        # As if its removal had failed: the files are suppressed errors until the next open.
        write_atomically(disk, f"{SEGMENTS}/{0:020d}.log", left)
        log.topic("t").advance_log_start(0, 2)
    assert read_state(disk, PARTITION).removing == (0, 1)
    assert state.removing == ()
    assert reopened(disk) == ((f"{0:020d}.log",), ())


def test_a_segment_with_a_tomb_is_deleted() -> None:
    disk = filled()
    with cordwood.open(DATA, files=disk, clock=ManualClock()) as log:
        log.topic("t").advance_log_start(0, 2)
    write_state(disk, PARTITION, advanced_state(read_state(disk, PARTITION), 2))
    for name, data in ((f"{0:020d}.log", b"records"), (f"{0:020d}.tomb", b"")):
        write_atomically(disk, join(SEGMENTS, name), data)
    deleted, set_aside = reopened(disk)
    assert (set(deleted), set_aside) == ({f"{0:020d}.log", f"{0:020d}.tomb"}, ())


@pytest.mark.parametrize(
    "name", [f"{9:020d}.log", f"{0:020d}.log.bak", f"{9:020d}.sum", "notes.txt", "copy.log", f"{2:020d}"]
)
def test_whatever_else_holds_bytes_is_set_aside_with_all_of_them(name: str) -> None:
    disk = filled()
    write_atomically(disk, join(SEGMENTS, name), b"bytes of an unknown origin")
    assert reopened(disk) == ((), (name,))
    assert quarantined(disk) == {f"t-0-{name}": b"bytes of an unknown origin"}


@pytest.mark.parametrize(
    "name",
    [
        f"{9:020d}.idx",
        f"{9:020d}.timeidx",
        f"{0:020d}.idx.tmp",
        f"{0:020d}.log.swap",
        f"{0:020d}.log.cut",
        f"{1:020d}.tomb",
    ],
)
def test_what_a_crash_may_leave_without_records_of_its_own_is_deleted(name: str) -> None:
    disk = filled()
    write_atomically(disk, join(SEGMENTS, name), b"derived, or a copy")
    assert reopened(disk) == ((name,), ())


def test_a_file_without_a_byte_is_deleted() -> None:
    disk = filled()
    write_atomically(disk, f"{SEGMENTS}/{9:020d}.log", bytes(4096))
    assert reopened(disk) == ((f"{9:020d}.log",), ())


def test_a_second_file_of_the_same_name_does_not_replace_the_first_in_the_quarantine() -> None:
    disk = filled()
    for content in (b"first", b"second", b"third"):
        write_atomically(disk, f"{SEGMENTS}/{9:020d}.log", content)
        reopened(disk)
    name = f"t-0-{9:020d}.log"
    assert quarantined(disk) == {name: b"first", f"{name}.1": b"second", f"{name}.2": b"third"}


def test_a_file_in_the_place_of_the_next_segment_survives_a_lost_active_segment() -> None:
    """The log goes on in a new segment there. Making it emptied the file before."""
    disk = filled()
    disk.unlink(f"{SEGMENTS}/{3:020d}.log")
    write_atomically(disk, f"{SEGMENTS}/{4:020d}.log", b"records of an unknown origin")
    with cordwood.open(DATA, files=disk, clock=ManualClock()) as log:
        assert log.topic("t").append(b"next").offset == 4
        assert log.reports[0].damage is not None
    assert quarantined(disk) == {f"t-0-{4:020d}.log": b"records of an unknown origin"}
