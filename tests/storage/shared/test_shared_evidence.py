"""What the shared log drops stays checkable, so nobody drops the end of a partition unseen. Invariant I5."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from support.clocks import ManualClock
from support.disks import image
from support.logs import disk_of
from support.shared import DATA, SMALL, create, open_data, physical, put, shared_log, virtual

from cordwood.disk.files import Files, join, write_atomically
from cordwood.disk.memory import MemoryFiles
from cordwood.storage.directory import DataDirectory
from cordwood.storage.shared.log import SharedLog
from cordwood.verify import VerifyReport, verify_directory

HOUR = 3_600_000
LISTS = join(DATA, "topics/__shared/0/chain/lists")


def filled(files: Files) -> tuple[DataDirectory, ManualClock]:
    """Two topics of which one expires, in several segments."""
    clock = ManualClock()
    data = open_data(files, clock, {**SMALL, "cordwood.chain": "true"})
    fill_and_expire(data, clock)
    return data, clock


def fill_and_expire(data: DataDirectory, clock: ManualClock) -> None:
    create(data, "orders", retention_ms=str(HOUR))
    create(data, "kept", retention_ms="-1")
    for number in range(12):
        put(virtual(data, "orders"), b"x" * 60)
        if number in (0, 5, 11):
            put(virtual(data, "kept"), b"stays %d" % number)
    put(virtual(data, "kept"), b"the last")
    physical(data).roll()
    clock.advance(2 * HOUR)


def maintained(data: DataDirectory) -> None:
    report = data.maintenance.maintain_all(force=True)
    assert report.failures == ()
    data.chains.commit(physical(data))


def checked(files: Files) -> VerifyReport:
    return verify_directory(files, DATA)


def test_the_envelopes_of_dropped_frames_are_kept_and_the_log_is_sound() -> None:
    files = MemoryFiles()
    data, _ = filled(files)
    before = checked(files)
    assert before.sound
    maintained(data)
    report = checked(files)
    assert report.findings == ()
    assert report.frames < before.frames
    kept = [path for path, content in image(files, LISTS).items() if content]
    assert kept
    assert sum(len(image(files, LISTS)[path] or b"") for path in kept) % 120 == 0
    data.close()
    assert checked(files).sound


def test_frames_that_nobody_may_drop_are_missed_with_and_without_their_envelopes() -> None:
    """Its last ones too: no later frame of the partition shows that they are missing."""
    for forgetful in (False, True):
        files = MemoryFiles()
        data, _ = filled(files)
        with pytest.MonkeyPatch.context() as patch:
            honest = SharedLog.is_dead
            kept = virtual(data, "kept").part.owner

            def is_dead(self: SharedLog, entry: Any, honest: Any = honest, kept: Any = kept) -> bool:
                return bool(honest(self, entry)) or entry.owner == kept

            patch.setattr(SharedLog, "is_dead", is_dead)
            if forgetful:
                patch.setattr(
                    "cordwood.storage.chain.lists.ListWriter.add_envelope", lambda self, leaf, frame: None
                )
            maintained(data)
        report = checked(files)
        assert report.corrupt, f"forgetful: {forgetful}"


def test_a_log_start_that_moved_past_frames_of_a_topic_is_found() -> None:
    files = MemoryFiles()
    data, _ = filled(files)
    log = physical(data)
    data.chains.commit(log)
    log.advance_log_start(shared_log(data).log.state.active_base)
    data.chains.commit(log)
    assert checked(files).corrupt


def test_every_byte_of_the_kept_envelopes_counts() -> None:
    files = MemoryFiles()
    data, _ = filled(files)
    maintained(data)
    data.close()
    whole = image(files, DATA)
    names = [path for path, content in whole.items() if path.startswith(LISTS) and content]
    disk, tried = disk_of(whole), 0
    for path in names:
        content = whole[path] or b""
        for position in range(0, len(content), 3):
            wrong = bytearray(content)
            wrong[position] ^= 1 << position % 8
            write_atomically(disk, path, bytes(wrong))
            assert checked(disk).corrupt, (path, position)
            tried += 1
        write_atomically(disk, path, content[:-120])
        assert checked(disk).corrupt
        write_atomically(disk, path, content)
    print(f"{tried} bytes changed")
    assert tried > 100
    assert checked(disk).sound


def test_an_envelope_of_another_leaf_is_refused() -> None:
    files = MemoryFiles()
    data, _ = filled(files)
    maintained(data)
    data.close()
    whole = image(files, DATA)
    path = next(path for path, content in whole.items() if path.startswith(LISTS) and content)
    content = bytearray(whole[path] or b"")
    struct.pack_into(">Q", content, 0, 10**6)
    assert checked(disk_of(whole, {path: bytes(content)})).corrupt


def test_envelopes_expire_by_a_statement_and_verify_says_so() -> None:
    files, clock = MemoryFiles(), ManualClock()
    broker = {**SMALL, "cordwood.chain": "true", "cordwood.compaction.evidence.ms": str(HOUR)}
    data = open_data(files, clock, broker)
    fill_and_expire(data, clock)
    maintained(data)
    assert any(content for content in image(files, LISTS).values())
    clock.advance(2 * HOUR)
    maintained(data)
    assert not any(content for content in image(files, LISTS).values())
    report = checked(files)
    assert report.sound
    assert report.unchecked
    data.close()
