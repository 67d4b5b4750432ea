"""Damage in the shared log: of one tenant's frame nobody else notices, and an index comes back from the log.

With `CORDWOOD_SWEEP_FULL=1` every bit is turned and every length tried; by default an even sample.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from formats.readers import read_shared
from support.clocks import HookedFiles, ManualClock
from support.disks import image
from support.logs import Image, disk_of
from support.shared import (
    DATA,
    EVERYTHING,
    SEGMENTS,
    SMALL,
    TENANTS,
    Held,
    bases,
    contents,
    create,
    fill,
    held,
    index_files,
    left_by,
    open_data,
    path_of,
    physical,
    put,
    sizes,
    virtual,
)
from support.sweeps import bits_of, every

from cordwood.disk.files import read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CorruptRange, MetadataDamaged, StorageError
from cordwood.formats.shared.owners import ENTRY_SIZE
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.log import WritablePartition
from cordwood.storage.log.reading import Fetched
from cordwood.storage.shared.virtual_log import owner_of

Contents = dict[tuple[str, int], Held]


@cache
def sound() -> tuple[Image, Contents, dict[tuple[str, int], int]]:
    """A closed directory of three tenants in four segments, what it holds, and how large each says it is."""
    files = MemoryFiles()
    data = open_data(files)
    create(data, *TENANTS)
    fill(data, 3)
    virtual(data, "orders@8").advance_log_start(3)
    data.topics.delete("orders@7")
    create(data, "orders@7")
    fill(data, 4)
    physical(data).roll()
    fill(data, 3, size=15)
    assert len(bases(data)) == 4
    held_, sizes_ = contents(data), sizes(data)
    data.close()
    return image(files, DATA), held_, sizes_


def indexes() -> dict[str, bytes]:
    return index_files(disk_of(sound()[0]))


def check_restored(disk: MemoryFiles, case: str) -> None:
    """Open the disk, compare everything, close, and compare the indexes with what they were."""
    _, expected, weighed = sound()
    data = open_data(disk)
    assert contents(data) == expected, f"{case}: another state"
    assert sizes(data) == weighed, f"{case}: other sizes"
    data.close()
    assert index_files(disk) == indexes(), f"{case}: another index"


# --- the index ------------------------------------------------------------------------------------------


def damaged_indexes() -> Iterator[tuple[str, str, bytes | None]]:
    """Yield (case, path, bytes) of an index that is gone, cut, flipped, grown or another one."""
    known = indexes()
    for path, data in known.items():
        name = path[-25:]
        yield f"{name} deleted", path, None
        for size in range(0, len(data), every(31)):
            yield f"{name} cut to {size}", path, data[:size]
        for bit in bits_of(data, 101):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            yield f"{name} with bit {bit} turned", path, bytes(changed)
        for tail in (bytes(ENTRY_SIZE), b"\xff" * 50, data[:ENTRY_SIZE], data[-ENTRY_SIZE:]):
            yield f"{name} with more behind it", path, data + tail
        yield f"{name} of zeros", path, bytes(len(data))
        for other, theirs in known.items():
            if other != path:
                yield f"{name} that of {other[-25:]}", path, theirs
        for at in range(0, len(data) - ENTRY_SIZE, ENTRY_SIZE * 3):
            swapped = data[at + ENTRY_SIZE : at + 2 * ENTRY_SIZE] + data[at : at + ENTRY_SIZE]
            yield f"{name} with entries swapped", path, data[:at] + swapped + data[at + 2 * ENTRY_SIZE :]


def test_whatever_happens_to_an_index_it_comes_back_from_the_log_byte_for_byte() -> None:
    """R5."""
    before, _, _ = sound()
    counts = Counter[str]()
    for case, path, data in damaged_indexes():
        disk = disk_of(before, gone=[path]) if data is None else disk_of(before, {path: data})
        check_restored(disk, case)
        counts[case.split()[1]] += 1
    print(f"{counts.total()} cases: {dict(counts)}")
    assert counts.total() >= 300


def test_all_indexes_may_be_gone_at_once() -> None:
    before, _, _ = sound()
    check_restored(disk_of(before, gone=indexes()), "all gone")


def test_an_older_copy_of_an_index_is_completed() -> None:
    """As a backup of single files, or a power cut, would leave it."""
    files = MemoryFiles()
    data = open_data(files)
    create(data, *TENANTS)
    copies = list[dict[str, bytes]]()
    for _ in range(8):
        fill(data, 1)
        copies.append(index_files(files))
    expected = contents(data)
    data.close()
    newest = index_files(files)
    for older in copies:
        disk = left_by(files, changed=older)
        again = open_data(disk)
        assert contents(again) == expected
        again.close()
        assert index_files(disk) == newest
    assert len({len(copy) for copy in copies}) > 1


def test_an_index_of_a_log_that_went_another_way_makes_nobody_see_what_is_not_theirs() -> None:
    """T1: the entries fit in place and id, and are of frames that the log never had."""
    files = MemoryFiles()
    data = open_data(files)
    create(data, *TENANTS)
    for name in TENANTS:
        put(virtual(data, name), name.encode())
    stem = left_by(files)
    put(virtual(data, "orders@7"), b"orders@7, lost")
    put(virtual(data, "orders@8"), b"orders@8, lost")
    stale = index_files(files)
    other = open_data(stem)
    put(virtual(other, "orders@8"), b"orders@8, kept")
    put(virtual(other, "orders@7"), b"orders@7, kept")
    again = open_data(left_by(stem, changed=stale))
    for name in TENANTS:
        records, _ = read_around(virtual(again, name))
        assert {(record.value or b"").split(b",")[0] for record in records} == {name.encode()}
        assert not any(b"lost" in (record.value or b"") for record in records)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_opening_reads_the_indexes_and_no_records(how: str) -> None:
    """R1: time goes with the number of frames, not with what is in them."""
    files = HookedFiles(MemoryFiles())
    broker = {**SMALL, "log.segment.bytes": str(1 << 20), "log.index.interval.bytes": "4096"}
    data = open_data(files, broker=broker)
    create(data, *TENANTS)
    block = random.Random(0).randbytes(20_000)
    for number in range(200):
        put(virtual(data, TENANTS[number % 3]), block, b"%d" % number)
    expected = {name: log.high_watermark for name in TENANTS if (log := virtual(data, name))}
    if how == "closed":
        data.close()
    else:
        data.abandon()
    stored = sum(
        len(content or b"") for path, content in image(files, SEGMENTS).items() if path.endswith(".log")
    )
    read = Counter[str]()

    def count(kind: str, path: str, result: Any) -> None:
        if kind in ("read", "map"):
            read[path.rpartition(".")[2]] += result if isinstance(result, int) else len(result)

    files.after = count
    data = open_data(files, broker=broker)
    assert {name: virtual(data, name).high_watermark for name in TENANTS} == expected
    files.after = lambda kind, path, result: None
    print(f"{how}: {read['log']} of {stored} bytes of records read, {read['oidx']} of indexes")
    assert stored > 4_000_000
    # After a kill, what lies past the mark is looked at: of the segment that takes appends.
    assert read["log"] < (stored / 100 if how == "closed" else 1 << 20)
    assert read["oidx"] >= 200 * ENTRY_SIZE
    assert held(virtual(data, "orders")).records[0].value == block


def test_without_its_index_a_log_is_read_once_and_then_no_more() -> None:
    files = HookedFiles(MemoryFiles())
    data = open_data(files)
    create(data, *TENANTS)
    fill(data, 30)
    expected = contents(data)
    data.close()
    for path in index_files(files):
        files.unlink(path)
    counts = []
    for _ in range(2):
        read = Counter[str]()

        def count(kind: str, path: str, result: Any, read: Counter[str] = read) -> None:
            if kind == "read":
                read[path.rpartition(".")[2]] += result if isinstance(result, int) else len(result)

        files.after = count
        data = open_data(files)
        virtual(data, "orders")
        files.after = lambda kind, path, result: None
        counts.append(read["log"])
        assert contents(data) == expected
        data.close()
    assert counts[0] > 5_000
    assert counts[1] < counts[0] / 10


# --- one tenant's frame ---------------------------------------------------------------------------------


def frames_of(before: Image, topic: str) -> list[dict[str, Any]]:
    """Return the frames with records of a topic, oldest first, by a reader of its own."""
    owner = owner_of(topic, 0)
    found = []
    for path in sorted(path for path in before if path.endswith(".log") and "__shared" in path):
        data = before[path]
        assert data is not None
        for frame in read_shared.frames_of_log(data, int(path[-24:-4])):
            whose = frame["org"], frame["topic_hash"].to_bytes(16, "little")
            if whose == owner[:2] and frame["kind"] == read_shared.RECORDS:
                found.append({**frame, "path": path})
    return found


def read_around(log: WritablePartition) -> tuple[list[Record], list[CorruptRange]]:
    """Read everything that can be read, going on where each refusal says."""
    records, refused = list[Record](), list[CorruptRange]()
    offset = log.log_start_offset
    while offset < log.high_watermark:
        found = read_or_refusal(log, offset)
        if isinstance(found, CorruptRange):
            assert found.offset <= offset < found.resume_offset, f"{found} for offset {offset}"
            refused.append(found)
            offset = found.resume_offset
        else:
            records += (record for run in found.runs for record in run.records() if record.offset >= offset)
            offset = found.next_offset
    return records, refused


def read_or_refusal(log: WritablePartition, offset: int) -> Fetched | CorruptRange:
    try:
        return log.read(offset, EVERYTHING)
    except CorruptRange as error:
        return error


def check_damage(data: DataDirectory, topic: str, frame: dict[str, Any], case: str, *, exact: bool) -> None:
    """B has everything, A all but its frame, which is refused by file and position.

    Unless *exact*, others may be refused too, as long as everybody's offsets stay what they were.
    """
    _, expected, _ = sound()
    lost = range(frame["first_offset"], frame["first_offset"] + frame["count"])
    for (name, partition), was in expected.items():
        log = virtual(data, name, partition)
        assert (log.log_start_offset, log.high_watermark) == (was.start, was.high_watermark), case
        records, refused = read_around(log)
        missed = {offset for error in refused for offset in range(error.offset, error.resume_offset)}
        assert {record.offset for record in records} | missed == set(range(was.start, was.end)), case
        assert all(record == was.records[record.offset - was.start] for record in records), case
        if name == topic:
            # Records of it that lie below the start were nobody's any more.
            assert missed >= set(lost) & set(range(was.start, was.end)), case
            assert any(error.path == frame["path"] for error in refused), case
        if exact:
            assert missed == (set(lost) if name == topic else set()), (
                f"{case}: {name} misses {sorted(missed)}"
            )
            assert all(error.position == frame["position"] for error in refused), case


def turned(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


#: Magic, size and version: where one of them is wrong, nobody can tell where the next frame begins.
UNREACHABLE = range(4, 13)


@pytest.mark.parametrize("index", ["whole", "gone"])
@pytest.mark.parametrize("where", ["sealed", "active"])
def test_a_turned_bit_in_one_frame_costs_its_tenant_that_frame_and_others_nothing(
    where: str, index: str
) -> None:
    """T2, I1: in every byte of the frame. Opening always succeeds, and the offsets of what follows stay."""
    before, _, _ = sound()
    frames = frames_of(before, "orders")
    last = int(max(path for path in before if path.endswith(".log") and "__shared" in path)[-24:-4])
    mine = [frame for frame in frames[1:-1] if (frame["segment"] == last) == (where == "active")]
    frame = mine[len(mine) // 2]
    data, cases, exact = before[frame["path"]], 0, 0
    assert data is not None
    gone = index_files(disk_of(before)) if index == "gone" else ()
    for number, byte in enumerate(range(frame["position"], frame["position"] + frame["size"])):
        for bit in range(8) if every(2) == 1 else (number % 8,):
            case = f"bit {bit} of byte {number} of the frame at {frame['position']}"
            disk = disk_of(before, {frame["path"]: turned(data, 8 * byte + bit)}, gone)
            opened = open_data(disk)
            reached = index == "whole" or number not in UNREACHABLE
            check_damage(opened, "orders", frame, case, exact=reached)
            assert put(virtual(opened, "orders"), b"next") == sound()[1]["orders", 0].end, case
            opened.close()
            cases, exact = cases + 1, exact + reached
    print(f"{where}, index {index}: {cases} bits turned, {exact} of them refused exactly")
    assert exact >= 100


def test_what_is_refused_stays_refused_and_is_kept() -> None:
    """GUARANTEES: bytes below the mark are never cut or replaced, with an index or without."""
    before, _, _ = sound()
    frame = frames_of(before, "orders")[2]
    data = before[frame["path"]]
    assert data is not None
    wrong = turned(data, 8 * (frame["position"] + 90))
    disk = disk_of(before, {frame["path"]: wrong}, index_files(disk_of(before)))
    for _ in range(3):
        opened = open_data(disk)
        check_damage(opened, "orders", frame, "again", exact=True)
        opened.maintenance.maintain_all()
        check_damage(opened, "orders", frame, "after upkeep", exact=True)
        opened.close()
        assert read_file(disk, frame["path"]) == wrong


def test_two_tenants_with_a_damaged_frame_each_keep_the_rest() -> None:
    """Without an index, whose the unreadable frames are is told by what is missing where."""
    before, expected, _ = sound()
    pairs = 0
    ours, theirs = frames_of(before, "orders")[1:-1], frames_of(before, "orders@8")[2:-1]
    for mine in ours[:: every(2)]:
        for other in theirs[:: every(2)]:
            changed: dict[str, bytes] = {}
            for frame in (mine, other):
                data = changed.get(frame["path"]) or before[frame["path"]]
                assert data is not None
                changed[frame["path"]] = turned(data, 8 * (frame["position"] + 100))
            opened = open_data(disk_of(before, changed, index_files(disk_of(before))))
            for topic, damaged in (("orders", mine), ("orders@8", other), ("orders@7", None)):
                was = expected[topic, 0]
                log = virtual(opened, topic)
                assert (log.log_start_offset, log.high_watermark) == (was.start, was.end)
                records, _ = read_around(log)
                lost = range(0)
                if damaged is not None:
                    lost = range(damaged["first_offset"], damaged["first_offset"] + damaged["count"])
                assert records == [record for record in was.records if record.offset not in lost]
            opened.close()
            pairs += 1
    print(f"{pairs} pairs of frames")
    assert pairs >= 9


def test_a_time_lookup_meets_damage_only_where_it_must() -> None:
    before, expected, _ = sound()
    frame = frames_of(before, "orders")[3]
    data = before[frame["path"]]
    assert data is not None
    opened = open_data(disk_of(before, {frame["path"]: turned(data, 8 * (frame["position"] + 100))}))
    for name in ("orders@7", "orders@8"):
        was = expected[name, 0]
        assert virtual(opened, name).offset_at(0) == (was.start, was.records[0].timestamp)
        assert virtual(opened, name).newest() is not None
    assert virtual(opened, "orders").offset_at(0) == (0, expected["orders", 0].records[0].timestamp)
    with pytest.raises(CorruptRange):
        virtual(opened, "orders").newest()


def test_a_frame_of_another_place_or_tenant_is_not_taken_for_the_right_one() -> None:
    """I1: swapped frames have right checksums; their ids give them away, whatever the index says."""
    before, expected, _ = sound()
    swaps = 0
    for first in frames_of(before, "orders"):
        for second in frames_of(before, "orders@8"):
            if first["size"] != second["size"] or first["path"] != second["path"]:
                continue
            data = bytearray(before[first["path"]] or b"")
            a = slice(first["position"], first["position"] + first["size"])
            b = slice(second["position"], second["position"] + second["size"])
            data[a], data[b] = data[b], data[a]
            for gone in ((), index_files(disk_of(before))):
                opened = open_data(disk_of(before, {first["path"]: bytes(data)}, gone))
                for (name, partition), was in expected.items():
                    try:
                        records, _ = read_around(virtual(opened, name, partition))
                    except MetadataDamaged:
                        continue
                    assert all(r == was.records[r.offset - was.start] for r in records if r.offset < was.end)
                opened.abandon()
                swaps += 1
    print(f"{swaps} swaps")
    assert swaps >= 10


@pytest.mark.parametrize("suffix", ["log", "idx", "timeidx", "oidx"])
def test_a_file_that_is_missing_is_made_again_or_refused_by_name(suffix: str) -> None:
    before, expected, _ = sound()
    for base in (int(path[-24:-4]) for path in before if path.endswith(".log") and "__shared" in path):
        path = path_of(base, suffix)
        disk = disk_of(before, gone=[path])
        opened = open_data(disk)
        if suffix != "log":
            assert contents(opened) == expected
            opened.close()
            continue
        for name in TENANTS:
            was = expected[name, 0]
            records, refused = read_around(virtual(opened, name))
            assert all(path in str(error) for error in refused)
            assert all(record == was.records[record.offset - was.start] for record in records)
        opened.abandon()


def test_rot_in_an_index_while_the_log_is_open_shows_in_no_answer() -> None:
    """The index is only believed as far as the frame says the same, or its checksum does."""
    before, expected, _ = sound()
    disk = disk_of(before)
    cases = 0
    for path, data in index_files(disk).items():
        for bit in bits_of(data, 151):
            opened = open_data(disk)
            virtual(opened, "orders")
            file = disk.open(path, "write")
            file.write_at(0, [turned(data, bit)])
            assert contents(opened) == expected, f"bit {bit} of {path}"
            for (name, partition), was in expected.items():
                log = virtual(opened, name, partition)
                newest = max(was.records, key=lambda r: (r.timestamp, -r.offset))
                assert log.newest() == (newest.offset, newest.timestamp), f"bit {bit} of {path}"
                for record in was.records[::4]:
                    found = next(r for r in was.records if r.timestamp >= record.timestamp)
                    assert log.offset_at(record.timestamp) == (found.offset, found.timestamp), f"bit {bit}"
            opened.abandon()
            file.write_at(0, [data])
            cases += 1
    print(f"{cases} bits turned under an open log")
    assert cases >= 100


def test_one_damaged_segment_does_not_keep_the_space_of_the_others() -> None:
    """T2: damage in a segment that is to be copied is refused; those after it are none of its business."""
    files = MemoryFiles()
    data = open_data(files)
    create(data, "orders", "orders@7")
    for _ in range(3):
        put(virtual(data, "orders"), b"alive" * 100)
        create(data, "filler")
        for _ in range(2):
            put(virtual(data, "filler"), b"f" * 500)
        data.topics.delete("filler")
        put(virtual(data, "orders"), b"alive too" * 40)
        physical(data).roll()
    first = bases(data)[0]
    data.close()
    damaged = turned(read_file(files, path_of(first)), 8 * 200)
    disk = left_by(files, changed={path_of(first): damaged})
    data = open_data(disk)
    before = sum(
        len(content or b"") for path, content in image(disk, SEGMENTS).items() if path.endswith("log")
    )
    report = data.maintenance.maintain_all()
    assert any(path_of(first) in failure for failure in report.failures)
    after = sum(
        len(content or b"") for path, content in image(disk, SEGMENTS).items() if path.endswith("log")
    )
    assert after < before - 1000
    assert read_file(disk, path_of(first)) == damaged


def test_frames_that_contradict_each_other_refuse_their_partition_and_no_other() -> None:
    """T2: nobody's damage closes the directory."""
    before, expected, _ = sound()
    ended = [
        {**frame, "path": path}
        for path in sorted(path for path in before if path.endswith(".log") and "__shared" in path)
        for frame in read_shared.frames_of_log(before[path] or b"", 0)
        if frame["kind"] == read_shared.ENDED
    ]
    (end,) = ended
    data = before[end["path"]]
    assert data is not None
    wrong = turned(data, 8 * (end["position"] + 60))
    opened = open_data(disk_of(before, {end["path"]: wrong}, index_files(disk_of(before))))
    with pytest.raises(MetadataDamaged, match="begins with offset"):
        virtual(opened, "orders@7")
    for name in ("orders", "orders@8"):
        assert held(virtual(opened, name)) == expected[name, 0]
        put(virtual(opened, name), b"goes on")
    # With the index there is nothing to doubt.
    again = open_data(disk_of(before, {end["path"]: wrong}))
    assert contents(again) == expected


def test_an_error_while_the_index_is_read_is_no_reason_to_fail() -> None:
    """It is derived: what cannot be read is built from the log."""
    before, expected, _ = sound()
    failing = 0
    for number in range(1, 12):
        hooked, seen = HookedFiles(disk_of(before)), [0]

        def fail(kind: str, path: str, seen: list[int] = seen, number: int = number) -> None:
            if path.endswith(".oidx") and kind in ("open", "read"):
                seen[0] += 1
                if seen[0] == number:
                    raise OSError(5, "a test", path)

        hooked.before = fail
        try:
            opened = open_data(hooked)
            virtual(opened, "orders")
        except StorageError:
            # The one that is appended to must be there to be written.
            hooked.before = lambda kind, path: None
            continue
        hooked.before = lambda kind, path: None
        assert contents(opened) == expected
        opened.close()
        failing += seen[0] >= number
    assert failing >= 4


def test_retention_takes_nothing_whose_age_it_cannot_tell() -> None:
    """C1: another tenant's damage and the loss of the index leave frames that nobody knows the times of."""
    clock, files = ManualClock(), MemoryFiles()
    data = open_data(files, clock)
    create(data, "orders", "orders@7", retention_ms="1000")
    put(virtual(data, "orders"), b"young", b"too", timestamp=clock.ms + 5_000)
    put(virtual(data, "orders@7"), b"to be damaged")
    put(virtual(data, "orders"), b"young as well", timestamp=clock.ms + 5_000)
    put(virtual(data, "orders@7"), b"after it")
    physical(data).roll()
    put(virtual(data, "orders"), b"old", timestamp=clock.ms - 5_000)
    physical(data).roll()
    before = contents(data, ["orders"])
    frame = frames_of(image(files, DATA), "orders@7")[0]
    wrong = turned(read_file(files, path_of(0)), 8 * (frame["position"] + 100))
    for gone in ([], [path_of(0, "oidx")]):
        opened = open_data(left_by(files, {path_of(0): wrong}, gone), clock)
        for log in (virtual(opened, "orders"), virtual(opened, "orders@7")):
            opened.maintenance.expire(log)
        assert contents(opened, ["orders"]) == before
