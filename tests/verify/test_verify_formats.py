"""Verify reads every record format: what was written is sound, and whatever is not what was written is found.

Invariants I1, I2, I3. Damage is done by hand, from docs/formats, and mostly to logs without a chain, whose
leaves would find all of it anyway.
"""

from __future__ import annotations

import pickle
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import google_crc32c
import pytest
from support.commands import run
from support.crashes import CrashCount, crash_images
from support.disks import RecordingFiles
from support.flips import flipped
from support.formats import BEGAN_MS, TOPIC, Case, over_every_case
from support.logs import DATA, disk_of
from support.producing import Sent, encode
from support.verifying import notes, serious

import cordwood
from cordwood.disk.files import Files, join
from cordwood.disk.memory import MemoryFiles
from cordwood.formats.receiving import BatchTerms
from cordwood.formats.registry import FORMATS
from cordwood.verify import Finding, SegmentCheck, SegmentResult, VerifyReport, run_check, verify_directory
from cordwood.verify.plans import take_snapshot
from cordwood.verify.segments.segment import SegmentPlan

PARTITION = join(DATA, "topics", TOPIC, "0")


def verify(case: Case) -> VerifyReport:
    return verify_directory(case.files, case.root)


def plans_of(files: Files) -> list[SegmentPlan]:
    return list(take_snapshot(files, PARTITION, TOPIC, 0).plans.values())


def found_in(files: Files, plan: SegmentPlan) -> list[Finding]:
    return run_check(files, SegmentCheck(plan)).tally.findings


def case_of(name: str) -> Case:
    return Case(FORMATS[name], "memory", MemoryFiles(), DATA)


def small(case: Case, **settings: str) -> Case:
    """Return a log with a sealed segment of three records and an active one of two, and no chain."""
    with case.open() as log:
        topic = case.topic(log, cordwood_chain="false", **settings)
        case.fill(topic, 0, 3)
        topic.roll(0)
        case.fill(topic, 3, 5)
    return case


def compacted(case: Case, chain: str = "false", cut: int | None = 2, *, after: bool = True) -> Case:
    """Return a log that was compacted, truncated in a gap of it if at all, and appended to if *after*."""
    with case.open() as log:
        topic = case.topic(log, cleanup_policy="compact", segment_bytes="300", cordwood_chain=chain)
        for number in range(14):
            topic.append(b"v%d" % number, key=b"k%d" % (number % 4), partition=0)
        topic.roll(0)
        log.maintain(force=True)
        if cut is not None:
            topic.truncate(0, cut)
        if after:
            topic.append(b"after", key=b"k", partition=0)
    return case


def changed(case: Case, name: str, data: bytes) -> VerifyReport:
    """Return what is found where the file *name* of a segment has other bytes."""
    return verify(case.copy({case.path(name): data}))


def only(report: VerifyReport) -> Finding:
    (finding,) = serious(report)
    return finding


# --- sound ----------------------------------------------------------------------------------------


@over_every_case()
def test_a_log_that_was_rolled_truncated_reopened_and_streamed_to_is_sound(case: Case) -> None:
    with case.open() as log:
        topic = case.topic(log)
        case.fill(topic, 0, 30)
        topic.truncate(0, 29)
        case.fill(topic, 29, 35)
        topic.truncate(0, 7)
        case.fill(topic, 7, 30)
    with case.open() as log:
        topic = case.topic(log)
        case.fill(topic, 30, 33)
        topic.append_stream([b"a" * 40, b"b" * 40], partition=0, timestamp=BEGAN_MS)
        topic.append(b"c" * 2000, partition=0, timestamp=BEGAN_MS)
    report = verify(case)
    assert report.findings == ()
    assert report.records == 35
    assert report.segments > 3
    assert report.frames == 35 or not case.format.record_per_frame
    everything = sum(len(data or b"") for data in case.image().values())
    assert report.bytes > 0.8 * (everything - 1024)


@over_every_case("memory", where=lambda format_: format_.holds.keys)
def test_a_log_that_was_compacted_and_then_truncated_in_a_gap_is_sound(case: Case) -> None:
    for chain in ("true", "false"):
        for cut in (None, 2):
            log = compacted(case_of(case.format.name), chain, cut)
            assert serious(verify(log)) == []
            assert any(plan.generation for plan in plans_of(log.files))


@over_every_case("memory")
def test_the_report_is_the_same_where_segments_are_read_elsewhere(case: Case) -> None:
    """Plans and results travel to tasks of Spark as bytes."""
    small(case)
    name = f"{0:020d}.log"
    damaged = case.copy({case.path(name): case.read(name)[:-1] + b"\xff"})
    for files in (case.files, damaged.files):

        def elsewhere(checks: Sequence[SegmentCheck], files: Files = files) -> list[SegmentResult]:
            return [run_check(files, pickle.loads(pickle.dumps(check))) for check in checks]

        assert verify_directory(files, DATA, check=elsewhere) == verify_directory(files, DATA)


def test_the_command_exits_0_where_all_formats_are_sound_and_4_where_one_is_not(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        for name in FORMATS:
            log.topic(name, config={"cordwood.format": name}).append(b"value")
    assert run("verify", "--data", tmp_path).exit_code == 0
    for name in FORMATS:
        path = tmp_path / "topics" / name / "0/segments" / f"{0:020d}.log"
        data = path.read_bytes()
        path.write_bytes(data.replace(b"value", b"Value"))
        done = run("verify", "--data", tmp_path)
        assert (done.exit_code, f"corruption  {path}  " in done.stdout) == (4, True)
        path.write_bytes(data)


# --- every bit, every length ----------------------------------------------------------------------


def authoritative(case: Case) -> Iterator[tuple[SegmentPlan, str, bytes]]:
    """Yield the plan, the path and the content of each file of a segment that nothing can replace."""
    for plan in plans_of(case.files):
        for suffix in case.authoritative:
            name = f"{plan.base:020d}.{suffix}"
            data = case.read(name)
            if data:
                yield plan, case.path(name), data


def sweep(case: Case, tried: Counter[str]) -> None:
    files = disk_of(case.image())
    for plan, path, data in authoritative(case):
        assert all(finding.severity == "note" for finding in found_in(files, plan))
        kind = f"{case.format.name} .{path.rpartition('.')[2]}"
        for byte, bad in flipped(data):
            write(files, path, bad)
            severities = {finding.severity for finding in found_in(files, plan)}
            assert "corruption" in severities, f"{path}: a flipped bit of byte {byte} is not found"
            tried[f"{kind} bits"] += 1
        for size in range(len(data)):
            write(files, path, data[:size])
            severities = {finding.severity for finding in found_in(files, plan)}
            assert "corruption" in severities, f"{path}: nobody notices that it ends at byte {size}"
            tried[f"{kind} lengths"] += 1
        write(files, path, data)


def write(files: Files, path: str, data: bytes) -> None:
    file = files.open(path, "write")
    file.truncate(0)
    file.write_at(0, [data])
    file.close()


@over_every_case("memory", where=lambda format_: format_.record_per_frame)
def test_every_flipped_bit_and_every_cut_of_a_log_and_of_the_file_beside_it_is_found(case: Case) -> None:
    tried: Counter[str] = Counter()
    sweep(small(case), tried)
    print(dict(tried))
    assert tried[f"{case.format.name} .log bits"] > 800
    assert len(tried) == 2 * len(case.authoritative)


@over_every_case("memory", where=lambda format_: format_.record_per_frame and format_.holds.keys)
def test_every_flipped_bit_and_every_cut_of_what_compaction_left_is_found(case: Case) -> None:
    tried: Counter[str] = Counter()
    for cut in (None, 2):
        sweep(compacted(case_of(case.format.name), cut=cut), tried)
    # Entries of records that are gone may also be the last ones.
    sweep(compacted(case_of(case.format.name), cut=2, after=False), tried)
    print(dict(tried))
    assert tried[f"{case.format.name} .log bits"] > 800


# --- past the mark --------------------------------------------------------------------------------


@over_every_case("memory", where=lambda format_: format_.record_per_frame)
def test_what_lies_past_the_mark_is_a_note_however_much_of_it_there_is(case: Case) -> None:
    """Whole frames are counted; a torn one, and entries without their records, are told."""
    small(case)
    marked = case.image()
    with case.open() as log:
        case.fill(case.topic(log), 5, 7)
    grown = case.image()
    log_path, *beside = (case.path(f"{3:020d}.{suffix}") for suffix in case.authoritative)
    before, after = (image[log_path] or b"" for image in (marked, grown))
    counted = set()
    for size in range(len(before), len(after) + 1):
        for entries in (marked, grown):
            changes = {log_path: after[:size], **{path: entries[path] for path in beside}}
            report = verify_directory(disk_of(marked, changes), DATA)
            assert report.sound, f"{size} bytes: {serious(report)}"
            counted.add(report.frames_unmarked)
            if size == len(after) - 1 and entries is grown:
                assert [note.path for note in notes(report)] == [log_path, *beside]
    assert (notes(report), report.frames_unmarked) == ([], 2)
    assert counted == {0, 1, 2}


# --- records that are missing ----------------------------------------------------------------------


def test_a_record_of_the_frame_format_that_is_missing_or_repeated_is_found_by_the_offset_after_it() -> None:
    case = small(case_of("frame"))
    name = f"{0:020d}.log"
    data = case.read(name)
    first = 40 + sum(struct.unpack_from("<II", data, 24))
    second = 40 + sum(struct.unpack_from("<II", data, first + 24))
    missing, repeated = data[:first] + data[first + second :], data[:first] + data
    for bad, what in ((missing, "offset"), (repeated, "base offset")):
        found = [finding for finding in serious(changed(case, name, bad)) if finding.what == what]
        assert (found[0].severity, found[0].position) == ("corruption", first)


# --- kimberlite's hashes --------------------------------------------------------------------------


def with_crc(record: bytes) -> bytes:
    return record[:4] + struct.pack("<I", zlib.crc32(record[8:])) + record[8:]


def kimberlite_records(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = 40 + int.from_bytes(data[:4], "little")
        found.append(data[:size])
        data = data[size:]
    return found


def test_a_record_of_kimberlite_that_was_edited_is_found_with_both_hashes_though_its_checksum_is_right() -> (
    None
):
    case = small(case_of("kimberlite"))
    name = f"{0:020d}.log"
    records = kimberlite_records(case.read(name))
    edited = with_crc(records[0][:-1] + b"!")
    finding = only(changed(case, name, b"".join([edited, *records[1:]])))
    assert (finding.severity, finding.path) == ("corruption", case.path(name))
    assert (finding.position, finding.what) == (len(edited), "hash of the record before offset 1")
    assert (finding.expected, finding.found) == (sha256(edited).hexdigest(), sha256(records[0]).hexdigest())


def test_a_chain_of_kimberlite_that_was_made_anew_is_found_where_the_next_segment_begins() -> None:
    """Also the last record of a segment is under a hash: the one that partition.json has of it."""
    case = small(case_of("kimberlite"))
    name = f"{0:020d}.log"
    first, second, third = kimberlite_records(case.read(name))
    original = sha256(third).hexdigest()
    first = with_crc(first[:-1] + b"!")
    second = with_crc(second[:8] + sha256(first).digest() + second[40:])
    third = with_crc(third[:8] + sha256(second).digest() + third[40:])
    finding = only(changed(case, name, first + second + third))
    assert finding.what == "hash of the record before offset 3, where the next segment begins"
    assert (finding.expected, finding.found) == (original, sha256(third).hexdigest())
    assert finding.position == len(first + second)


def test_a_first_record_of_kimberlite_that_follows_another_and_a_record_of_another_stream_are_found() -> None:
    case = small(case_of("kimberlite"))
    name = f"{3:020d}.log"
    first, *rest = kimberlite_records(case.read(name))
    foreign = with_crc(first[:8] + bytes(32) + first[40:])
    found = serious(changed(case, name, b"".join([foreign, *rest])))
    assert found[0].what == "hash of the record before offset 3"
    assert found[0].expected == sha256(kimberlite_records(case.read(f"{0:020d}.log"))[-1]).hexdigest()
    assert found[0].found == bytes(32).hex()
    name = f"{0:020d}.log"
    first, *rest = kimberlite_records(case.read(name))
    found = serious(changed(case, name, b"".join([with_crc(first[:8] + b"\1" * 32 + first[40:]), *rest])))
    assert (found[0].position, found[0].expected) == (0, bytes(32).hex())
    for at, what in ((48, "tenant 1 and stream 0"), (56, "tenant 0 and stream 1")):
        other = with_crc(first[:at] + b"\1" + first[at + 1 :])
        found = serious(changed(case, name, b"".join([other, *rest])))
        assert (found[0].position, found[0].expected, found[0].found) == (0, "tenant 0 and stream 0", what)


# --- the file beside the log ----------------------------------------------------------------------


@over_every_case("memory", where=lambda format_: format_.sidecar is not None)
def test_entries_that_were_exchanged_removed_added_or_are_anothers_are_found(case: Case) -> None:
    small(case)
    assert case.format.sidecar is not None
    suffix = case.format.sidecar.suffix
    name, other = (f"{base:020d}.{suffix}" for base in (0, 3))
    data = case.read(name)
    head, entries = data[:-48], [data[-48:-32], data[-32:-16], data[-16:]]
    damaged = {
        "exchanged": head + entries[1] + entries[0] + entries[2],
        "removed": head + entries[0] + entries[2],
        "the last removed": head + entries[0] + entries[1],
        "added": data + entries[2],
        "half an entry": data + entries[2][:8],
        "a removed record where nothing was compacted": head + bytes(8) + bytes(8) + data[len(head) + 16 :],
        "nothing": b"",
    }
    for what, bad in damaged.items():
        finding = only(changed(case, name, bad))
        assert (finding.severity, finding.path) == ("corruption", case.path(name)), what
        assert "a removed record" not in what or finding.what == "length in the entry of offset 0"
    assert changed(case, name, case.read(other)).corrupt
    gone = case.copy()
    gone.files.unlink(gone.path(name))
    finding = only(verify(gone))
    assert (finding.path, finding.what) == (case.path(name), "unreadable")


# --- indexes, leaves, producers -------------------------------------------------------------------


@over_every_case("memory")
def test_an_index_that_is_gone_or_changed_is_no_more_than_an_index(case: Case) -> None:
    small(case)
    for base in (0, 3):
        for suffix in case.derived:
            name = f"{base:020d}.{suffix}"
            gone = case.copy()
            gone.files.unlink(case.path(name))
            for report in (verify(gone), changed(case, name, b"\1" + case.read(name)[1:])):
                finding = only(report)
                assert (finding.severity, finding.path) == ("index", case.path(name))


def forged(case: Case, value: bytes) -> Mapping[str, bytes]:
    """Return the files of a segment with another value in its one record, and all checksums made right."""
    name = f"{0:020d}.log"
    log = case.read(name).replace(b"value", value)
    if case.format.name == "frame":
        log = log[:-8] + struct.pack("<I", zlib.crc32(log[:-8])) + log[-4:]
    if case.format.name == "kimberlite":
        log = with_crc(log)
    files = {case.path(name): log}
    if case.format.name == "rustlog":
        files[case.path(f"{0:020d}.sum")] = struct.pack(">QII", 0, len(log), google_crc32c.value(log))
    if case.format.name == "laminarmq":
        entry = struct.pack("<QQQII", 0, 0, zlib.crc32(log), len(log), 0)
        files[case.path(f"{0:020d}.index")] = entry
    return files


@over_every_case("memory", where=lambda format_: format_.record_per_frame)
def test_a_record_whose_checksums_were_all_made_right_is_found_by_its_leaf(case: Case) -> None:
    with case.open() as log:
        case.topic(log, cordwood_chain="true").append(b"value", partition=0)
    report = verify(case.copy(forged(case, b"value")))
    assert (report.findings, report.frames_compared) == ((), 1)
    finding = only(verify(case.copy(forged(case, b"Value"))))
    assert (finding.what, finding.position) == ("frame at offset 0, its leaf", 0)


@over_every_case("memory", where=lambda format_: format_.record_per_frame)
def test_a_snapshot_of_producers_is_all_that_is_known_of_them_so_damage_to_it_is_corruption(
    case: Case,
) -> None:
    with case.open() as log:
        case.topic(log)
        partition = log.data_directory.partitions.writable(TOPIC, 0)
        for sequence in range(3):
            sent = memoryview(encode(Sent(7, 0, sequence, (b"v",))))
            partition.append_received(case.format.receive(sent, BatchTerms(1 << 20)))
        partition.commit()
    path = join(PARTITION, "producers.json")
    assert verify(case).findings == ()
    data = case.image()[path]
    assert data is not None
    for _, bad in list(flipped(data))[::17]:
        finding = only(verify(case.copy({path: bad})))
        assert (finding.severity, finding.path) == ("corruption", path)


def test_metadata_of_laminarmq_longer_than_its_record_is_invalid_under_a_right_checksum() -> None:
    """Any other metadata may be that of another program, as an import keeps it."""
    case = case_of("laminarmq")
    with case.open() as log:
        case.topic(log, cordwood_chain="false").append(b"value", partition=0)
    log_data = case.read(f"{0:020d}.log")
    room = len(log_data) - 4
    for length in (room + 1, 255, 2**32 - 1):
        damaged = struct.pack("<I", length) + log_data[4:]
        entry = struct.pack("<QQQII", 0, 0, zlib.crc32(damaged), len(damaged), 0)
        changes = {case.path(f"{0:020d}.log"): damaged, case.path(f"{0:020d}.index"): entry}
        finding = next(each for each in serious(verify(case.copy(changes))) if each.severity == "invalid")
        assert finding.expected == "metadata within the record", length
    for at, other in ((0, b"\x12"), (12, b"\2"), (12, b"\1"), (13, b"\xfe"), (17, b"\1")):
        changed = log_data[:at] + other + log_data[at + 1 :]
        entry = struct.pack("<QQQII", 0, 0, zlib.crc32(changed), len(changed), 0)
        changes = {case.path(f"{0:020d}.log"): changed, case.path(f"{0:020d}.index"): entry}
        # What is derived from the record's time, which is another one now, does not fit any more.
        assert all(each.severity != "invalid" for each in serious(verify(case.copy(changes)))), (at, other)


# --- power cuts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "batch"])
def test_no_power_cut_leaves_a_log_that_verify_calls_corrupt(name: str) -> None:
    """Log, the file beside it and indexes take their names one after the other, and fit all the same."""
    recording = RecordingFiles(MemoryFiles())
    case = Case(FORMATS[name], "memory", recording, DATA)
    policy = {"cleanup_policy": "compact"} if case.format.holds.keys else {}
    with case.open() as log:
        topic = case.topic(log, segment_bytes="300", **policy)
        for number in range(8):
            key = b"k%d" % (number % 2) if case.format.holds.keys else None
            topic.append(b"v%d" % number, key=key, partition=0)
        topic.truncate(0, 7)
        topic.roll(0)
        log.maintain(force=True)
        topic.truncate(0, 2)
        topic.append(b"after", key=b"k" if policy else None, partition=0)
    count, checked = CrashCount(), 0
    for image in crash_images(recording, limit_per_prefix=2, count=count):
        if image.files.exists(join(DATA, "meta")):
            report = verify_directory(image.files, DATA)
            assert not report.corrupt, f"{serious(report)} ({image.kind} after {image.prefix} operations)"
            checked += 1
    print(f"{checked} disks")
    assert checked > 200
