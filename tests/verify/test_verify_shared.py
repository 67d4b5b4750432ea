"""Verify and reindex read the shared log: what was written is sound, and whatever else is there is found.

Invariants I1, I2, I3, I5, T2. Damage is done by hand, from docs/formats/shared.md, mostly without a chain,
whose leaves would find all of it anyway.
"""

from __future__ import annotations

import pickle
import struct
from collections import Counter
from collections.abc import Callable, Sequence

import google_crc32c
import pytest
from support.crashes import CrashCount, crash_images
from support.disks import RecordingFiles, image
from support.logs import DATA, TickingClock, disk_of, open_log, partition_path, segment_file
from support.verifying import serious

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DirectoryRefused
from cordwood.storage.backup.restoring import restore
from cordwood.storage.directory.data_directory import Opening
from cordwood.storage.offline.reindex import ReindexReport, build_indexes, reindex_directory
from cordwood.verify import SegmentCheck, SegmentResult, VerifyReport, run_check, verify_directory
from cordwood.verify.plans import take_snapshot

SHARED = "__shared"
PARTITION = partition_path(SHARED, 0)
IN_SHARED = {"cordwood.storage": "shared"}
RECORDS, LOG_START, ENDED = range(3)
ENVELOPE = 80
ENTRY = 96
#: Where fields are in an envelope, and how wide they are.
FIELDS = {
    "magic": (4, 4),
    "version": (12, 1),
    "kind": (13, 1),
    "reserved": (14, 2),
    "epoch": (16, 4),
    "partition": (20, 4),
    "id": (24, 8),
    "org": (32, 8),
    "hash": (40, 16),
    "offset": (56, 8),
    "timestamp": (64, 8),
    "ids": (72, 4),
    "zero": (76, 4),
}


def verify(files: Files) -> VerifyReport:
    return verify_directory(files, DATA)


def log_file(base: int, suffix: str = "log") -> str:
    return segment_file(SHARED, 0, base, suffix)


def put(files: Files, path: str, data: bytes) -> None:
    if files.exists(path):
        files.unlink(path)
    file = files.open(path, "create")
    if data:
        file.write_at(0, [data])
    file.close()


def changed(files: Files, path: str, data: bytes) -> VerifyReport:
    """Return what is found where one file has other bytes."""
    return verify(disk_of(image(files, "/"), {path: data}))


def frames(data: bytes) -> list[bytes]:
    """Return the frames of a sound segment, by their sizes alone."""
    found, start = [], 0
    while start < len(data):
        (size,) = struct.unpack_from("<I", data, start + 8)
        found.append(data[start : start + size])
        start += size
    return found


def with_crc(frame: bytes) -> bytes:
    return struct.pack("<I", google_crc32c.value(frame[4:])) + frame[4:]


def with_field(frame: bytes, name: str, value: int) -> bytes:
    at, size = FIELDS[name]
    return with_crc(frame[:at] + value.to_bytes(size, "little", signed=value < 0) + frame[at + size :])


def field(frame: bytes, name: str) -> int:
    at, size = FIELDS[name]
    return int.from_bytes(frame[at : at + size], "little")


def moved_batch(frame: bytes, offset: int) -> bytes:
    """Return a frame whose batch, and whose envelope, say another first offset."""
    # The checksum of a batch does not cover its base offset.
    body = struct.pack(">q", offset) + frame[ENVELOPE + 8 :]
    return with_field(frame[:ENVELOPE] + body, "offset", offset)


def without_chain(log: cordwood.Log) -> None:
    log.alter_topic(SHARED, config={**log.entry(SHARED).config, "cordwood.chain": "false"})


def three_tenants(files: Files, *, chain: bool = False) -> None:
    """Make a log with a sealed segment and an active one: three topics, a start, and one that was deleted."""
    with open_log(files) as log:
        topics = [log.topic(name, config=IN_SHARED) for name in ("orders", "orders@7", "orders@8")]
        if not chain:
            without_chain(log)
        gone = log.topic("gone@7", config=IN_SHARED)
        for number in range(3):
            for topic in topics[: 3 - number % 2]:
                topic.append_many([(b"k", b"%d" % number)] * (1 + number % 2), partition=0)
        gone.append(b"gone", partition=0)
        topics[1].advance_log_start(0, 2)
        topics[0].roll(0)
        topics[0].append(b"after", partition=0)
        log.delete_topic("gone@7")
        topics[1].append(b"after", partition=0)


def reclaimed(files: Files, *, chain: bool = False) -> None:
    """Make a log from which dead frames were removed, in the middle of it and at its beginning."""
    with open_log(files) as log:
        early, orders, pay = (log.topic(name, config=IN_SHARED) for name in ("early@7", "orders@7", "pay"))
        if not chain:
            without_chain(log)
        for number in range(6):
            early.append(b"early" * 20, partition=0)
            if number == 3:
                early.roll(0)
        for number in range(12):
            orders.append(b"order %d" % number, partition=0)
            if number % 4 == 0:
                pay.append(b"pay %d" % number, partition=0)
        orders.roll(0)
        early.advance_log_start(0, 6)
        orders.advance_log_start(0, 11)
        orders.append(b"last", partition=0)
        done = log.maintain().reclaimed
        assert done.bytes_freed
        assert done.segments == 2


def generations(files: Files) -> list[tuple[int, int]]:
    snapshot = take_snapshot(files, PARTITION, SHARED, 0)
    return [(plan.base, plan.generation) for plan in snapshot.plans.values()]


# --- sound ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chain", [False, True])
def test_a_shared_log_is_sound_and_its_topics_are_counted(chain: bool) -> None:
    files = MemoryFiles()
    three_tenants(files, chain=chain)
    report = verify(files)
    assert report.findings == ()
    assert (report.virtual_topics, report.virtual_partitions, report.segments) == (3, 3, 2)
    assert (report.topics, report.internal_topics, report.partitions) == (4, 1, 4)
    # Eleven batches, a start and an end.
    assert (report.records, report.frames) == (13, 13)
    assert bool(report.frames_compared) is chain


@pytest.mark.parametrize("chain", [False, True])
def test_a_shared_log_whose_space_was_reclaimed_is_sound(chain: bool) -> None:
    """I5. Gaps of ids and of offsets are where they may be."""
    files = MemoryFiles()
    reclaimed(files, chain=chain)
    report = verify(files)
    assert serious(report) == []
    found = generations(files)
    assert found[0][0] > 0
    assert any(generation for _, generation in found)
    assert report.virtual_topics == 3


def test_topics_that_were_deleted_and_created_anew_are_sound_and_so_are_those_that_begin_later() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        for number in range(3):
            topic = log.topic("t", config={**IN_SHARED, "cordwood.initial.offset": str(10 * number)})
            for _ in range(number + 2):
                topic.append(b"x", partition=0)
            if number < 2:
                log.delete_topic("t")
    report = verify(files)
    assert report.findings == ()
    assert report.virtual_partitions == 1


def test_a_deletion_that_a_crash_interrupted_is_a_note() -> None:
    """The catalogue has it, and the frame that says so comes when the directory is opened."""
    files = MemoryFiles()
    three_tenants(files)
    before = image(files, "/")
    with open_log(files) as log:
        log.delete_topic("orders@8")
    meta = {path: data for path, data in image(files, "/").items() if "/meta/catalogue" in path}
    crashed = disk_of(before, meta, [f"{DATA}/meta/clean"])
    (note,) = verify(crashed).findings
    assert (note.severity, note.what) == ("note", "1 partitions in the shared log of deleted topics")
    open_log(crashed).close()
    assert verify(crashed).findings == ()


@pytest.mark.parametrize("damaged", [False, True])
def test_the_report_is_the_same_where_segments_are_read_elsewhere(damaged: bool) -> None:
    files = MemoryFiles()
    three_tenants(files, chain=True)
    if damaged:
        data = read_file(files, log_file(0))
        put(files, log_file(0), data[:100] + b"?" + data[101:])

    def elsewhere(checks: Sequence[SegmentCheck]) -> list[SegmentResult]:
        found = [run_check(files, pickle.loads(pickle.dumps(each))) for each in checks]
        back: list[SegmentResult] = pickle.loads(pickle.dumps(found))
        return back

    report = verify_directory(files, DATA, check=elsewhere)
    assert report == verify(files)
    assert report.corrupt is damaged


def test_a_topic_in_the_shared_log_is_verified_with_all_of_it_and_says_so() -> None:
    files = MemoryFiles()
    three_tenants(files)
    report = verify_directory(files, DATA, "orders@7")
    (note,) = report.findings
    assert (note.severity, note.what) == ("note", "topic orders@7")
    assert note.found == "its records in the shared log, all of which was checked"
    assert report.frames == verify(files).frames
    with pytest.raises(CordwoodError, match="no topic orders@9"):
        verify_directory(files, DATA, "orders@9")


def gapped(log: cordwood.Log) -> None:
    """Fill three segments: one with live frames, one that soon is mostly dead, and one that takes appends."""
    orders, pay = (log.topic(name, config=IN_SHARED) for name in ("orders@7", "pay"))
    without_chain(log)
    for number in range(2):
        orders.append(b"order %d" % number, partition=0)
        for _ in range(3):
            pay.append(b"pay", partition=0)
    pay.roll(0)
    for number in range(2, 8):
        orders.append(b"order %d" % number, partition=0)
    pay.append(b"pay", partition=0)
    pay.roll(0)
    orders.append(b"order 8", partition=0)


def let_go(log: cordwood.Log) -> None:
    """Let go of all orders but the last, which empties the second segment nearly."""
    log.topic("orders@7").advance_log_start(0, 8)
    assert log.maintain().reclaimed.segments == 1


def test_segments_that_are_replaced_while_they_are_read_are_read_again() -> None:
    """A writer rolls, says a start in a segment that was not there before, and removes what is dead."""
    files = MemoryFiles()
    log = open_log(files)
    gapped(log)
    seen: list[str] = []

    def meddle(path: str, position: int) -> None:
        if path.endswith(".log") and path not in seen:
            seen.append(path)
            if len(seen) == 1:
                log.topic("pay").roll(0)
                let_go(log)

    report = verify_directory(files, DATA, progress=meddle)
    assert [generation for _, generation in generations(files)] == [0, 1, 0, 0]
    assert serious(report) == []
    log.close()


# --- every bit, every length ----------------------------------------------------------------------


def test_every_flipped_bit_and_every_cut_of_a_shared_segment_and_of_its_indexes_is_found() -> None:
    files, tried = MemoryFiles(), Counter[str]()
    three_tenants(files)
    whole = image(files, "/")
    snapshot = take_snapshot(files, PARTITION, SHARED, 0)
    for base, plan in snapshot.plans.items():
        for suffix in ("log", "oidx", "idx", "timeidx"):
            path = log_file(base, suffix)
            data = whole[path]
            assert data
            disk = disk_of(whole)
            wanted = {"corruption"} if suffix == "log" else {"index"}
            for bit in range(8 * len(data)):
                bad = bytearray(data)
                bad[bit // 8] ^= 1 << bit % 8
                put(disk, path, bytes(bad))
                found = {each.severity for each in run_check(disk, SegmentCheck(plan)).tally.findings}
                assert wanted <= found, f"{path}: bit {bit % 8} of byte {bit // 8} is not found"
                tried[f".{suffix} bits"] += 1
            for size in range(len(data)):
                put(disk, path, data[:size])
                found = {each.severity for each in run_check(disk, SegmentCheck(plan)).tally.findings}
                # What is missing of an active segment's index is not written yet.
                if plan.sealed or suffix == "log":
                    assert wanted <= found, f"{path}: nobody notices that it ends at byte {size}"
                else:
                    assert found <= {"index", "note"}
                tried[f".{suffix} lengths"] += 1
    print(f"found: {dict(tried)}")
    assert min(tried[".log bits"], tried[".oidx bits"]) > 9000
    assert min(tried[".log lengths"], tried[".oidx lengths"]) > 1200
    assert len(tried) == 8


# --- frames that are sound by themselves ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("kind", 3, "kind"),
        ("kind", LOG_START, "frame without records"),
        ("reserved", 1, "reserved fields"),
        ("zero", 1, "reserved fields"),
        ("epoch", -1, "leader epoch"),
        ("epoch", 1, "leader epoch"),
        ("id", 1, "offset"),
        ("offset", 5, "first offset"),
        ("timestamp", 5, "largest timestamp"),
        ("ids", 2, "how many ids"),
        ("ids", 0, "how many ids"),
        ("partition", 1, "partition of a frame"),
        ("org", 9, "partition of a frame"),
        ("hash", 9, "partition of a frame"),
    ],
)
def test_a_field_that_does_not_fit_is_found_under_a_right_checksum(name: str, value: int, what: str) -> None:
    files = MemoryFiles()
    three_tenants(files)
    first, *others = frames(read_file(files, log_file(0)))
    report = changed(files, log_file(0), b"".join([with_field(first, name, value), *others]))
    assert any(each.what == what and each.severity == "corruption" for each in serious(report)), (
        report.findings
    )


def swapped(found: list[bytes]) -> list[bytes]:
    """Two frames of one topic change places, and take the ids and offsets of those places."""
    mine = [at for at, frame in enumerate(found) if field(frame, "org") == 7][:2]
    one, two = (found[at] for at in mine)
    found[mine[0]] = with_field(two, "id", field(one, "id"))
    found[mine[1]] = with_field(one, "id", field(two, "id") + field(two, "ids") - field(one, "ids"))
    return found


def removed(found: list[bytes]) -> list[bytes]:
    """A frame goes, and those after it move up."""
    gone = field(found[1], "ids")
    return [found[0], *(with_field(frame, "id", field(frame, "id") - gone) for frame in found[2:])]


def doubled(found: list[bytes]) -> list[bytes]:
    more = field(found[1], "ids")
    again = with_field(found[1], "id", field(found[1], "id") + more)
    rest = [with_field(frame, "id", field(frame, "id") + more) for frame in found[2:]]
    return [*found[:2], again, *rest]


def given_away(found: list[bytes]) -> list[bytes]:
    """A frame of one tenant is said to be of another, with all else as it was."""
    org, hash_ = field(found[0], "org"), field(found[0], "hash")
    return [found[0], with_field(with_field(found[1], "org", org), "hash", hash_), *found[2:]]


def renumbered(found: list[bytes]) -> list[bytes]:
    """A frame and its batch say a later offset, with all checksums right."""
    return [*found[:3], moved_batch(found[3], 7), *found[4:]]


@pytest.mark.parametrize("change", [swapped, removed, doubled, given_away, renumbered])
def test_frames_that_change_places_owners_or_offsets_are_found_under_right_checksums(
    change: Callable[[list[bytes]], list[bytes]],
) -> None:
    """Without chain and hash; the indexes that would tell as well are taken away."""
    files = MemoryFiles()
    three_tenants(files)
    path = log_file(0)
    data = b"".join(change(frames(read_file(files, path))))
    assert data != read_file(files, path)
    report = changed(files, path, data)
    assert report.corrupt
    about_log = [each for each in serious(report) if each.path == path and each.severity == "corruption"]
    assert about_log, report.findings


def test_a_payload_that_was_rewritten_with_all_checksums_is_found_by_its_leaf() -> None:
    files = MemoryFiles()
    three_tenants(files, chain=True)
    path = log_file(0)
    first, *others = frames(read_file(files, path))
    batch = first[ENVELOPE:].replace(b"k", b"K")
    batch = batch[:17] + struct.pack(">I", google_crc32c.value(batch[21:])) + batch[21:]
    report = changed(files, path, with_crc(first[:ENVELOPE] + batch) + b"".join(others))
    assert next(each.what for each in serious(report)) == "frame at offset 0, its leaf"


@pytest.mark.parametrize("start", [8, 7, 3])
def test_offsets_may_be_missing_below_the_start_of_a_partition_and_nowhere_else(start: int) -> None:
    """The frame that says where a partition starts says less, with a right checksum."""
    files = MemoryFiles()
    with open_log(files) as log:
        gapped(log)
        let_go(log)
    base = generations(files)[-1][0]
    said = [frame for frame in frames(read_file(files, log_file(base))) if field(frame, "kind") == LOG_START]
    assert [field(frame, "offset") for frame in said] == [8]
    data = read_file(files, log_file(base)).replace(said[0], with_field(said[0], "offset", start))
    report = verify(disk_of(image(files, "/"), {log_file(base): data}, [log_file(base, "oidx")]))
    assert report.corrupt is (start < 8)
    assert [each.found for each in serious(report)] == (["8"] if start < 8 else [])


def test_a_first_record_that_nothing_accounts_for_is_noted_and_corrupt_if_the_topic_says_another() -> None:
    for setting, severity in (({}, "note"), ({"cordwood.initial.offset": "5"}, "corruption")):
        files = MemoryFiles()
        with open_log(files) as log:
            topic = log.topic("t", config={**IN_SHARED, **setting})
            without_chain(log)
            topic.append(b"x", partition=0)
        (frame,) = frames(read_file(files, log_file(0)))
        changed_ = {log_file(0): moved_batch(frame, 9)}
        report = verify(disk_of(image(files, "/"), changed_, [log_file(0, "oidx")]))
        found = [each for each in report.findings if each.path == log_file(0)]
        assert [each.severity for each in found] == [severity]


def test_a_leader_epoch_that_is_not_that_of_the_log_is_found_though_envelope_and_batch_agree() -> None:
    files = MemoryFiles()
    three_tenants(files)
    first, *others = frames(read_file(files, log_file(0)))
    # The checksum of a batch does not cover its leader epoch.
    batch = first[ENVELOPE : ENVELOPE + 12] + struct.pack(">i", 1) + first[ENVELOPE + 16 :]
    other = with_field(first[:ENVELOPE] + batch, "epoch", 1)
    report = changed(files, log_file(0), b"".join([other, *others]))
    assert serious(report)[0].what == "leader epoch"


def test_frames_after_damage_are_not_said_to_be_wrong_as_well() -> None:
    files = MemoryFiles()
    three_tenants(files)
    data = bytearray(read_file(files, log_file(0)))
    data[ENVELOPE + 20] ^= 1
    assert [each.what for each in serious(changed(files, log_file(0), bytes(data)))] == [
        "CRC-32C of the frame"
    ]


def test_a_topic_that_the_catalogue_does_not_have_as_shared_is_none() -> None:
    files = MemoryFiles()
    three_tenants(files)
    other = MemoryFiles()
    with open_log(other) as log:
        log.topic("orders@7", config=IN_SHARED)
    meta = {path: data for path, data in image(other, "/").items() if "/meta/" in path}
    report = verify(disk_of(image(files, "/"), meta))
    wrong = [each for each in serious(report) if each.what == "partition of a frame"]
    assert len(wrong) == 2


def test_no_power_cut_leaves_a_shared_log_that_verify_calls_corrupt() -> None:
    """Starts, ends, rolls, and segments that are replaced with their indexes, cut off anywhere."""
    recording = RecordingFiles(MemoryFiles())
    with open_log(recording) as log:
        gapped(log)
        log.topic("gone@8", config=IN_SHARED).append(b"gone", partition=0)
        let_go(log)
        log.delete_topic("gone@8")
        log.topic("gone@8", config=IN_SHARED).append(b"anew", partition=0)
    checked = 0
    for cut in crash_images(recording, limit_per_prefix=6, count=CrashCount()):
        if cut.files.exists(f"{DATA}/meta"):
            report = verify(cut.files)
            assert not report.corrupt, f"{serious(report)} ({cut.kind} after {cut.prefix} operations)"
            checked += 1
    print(f"{checked} disks")
    assert checked > 200


# --- reindex --------------------------------------------------------------------------------------


def reindexed(files: Files, topic: str | None = None) -> ReindexReport:
    return reindex_directory(
        Opening(files, DATA, load_broker_config()[0], create=False, clock=TickingClock()), topic
    )


@pytest.mark.parametrize("make", [three_tenants, reclaimed])
@pytest.mark.parametrize("topic", [None, "orders@7"])
def test_reindex_rebuilds_every_index_of_the_shared_log_byte_for_byte(
    make: Callable[[Files], None], topic: str | None
) -> None:
    files = MemoryFiles()
    make(files)
    whole = image(files, "/")
    indexes = {path: data for path, data in whole.items() if path.endswith("idx") and data}
    assert sum(path.endswith(".oidx") for path in indexes) == len(generations(files))
    for path, data in indexes.items():
        for bad in (None, b"", data[:-1], data[: len(data) // 2], data + b"\0", bytes(len(data)), data[::-1]):
            disk = disk_of(whole, {} if bad is None else {path: bad}, [path] if bad is None else [])
            report = reindexed(disk, topic)
            assert report.damaged == ()
            assert read_file(disk, path) == data
            rebuilt = {each.path: each.reason for each in report.rebuilt}
            if path.endswith(".oidx"):
                assert rebuilt == {path: "missing" if bad is None else "wrong"}
            assert serious(verify(disk)) == []


def test_reindex_mends_an_index_that_is_sound_by_itself_and_not_of_its_log() -> None:
    """With right checksums nobody doubts it who opens the log; reindex reads the log."""
    for base in (0, None):
        files = MemoryFiles()
        three_tenants(files)
        path = log_file(generations(files)[-1][0] if base is None else base, "oidx")
        data = read_file(files, path)
        entry = data[:16] + struct.pack("<Q", 5) + data[24:92]
        put(files, path, entry + struct.pack("<I", google_crc32c.value(entry)) + data[ENTRY:])
        assert [each.severity for each in serious(verify(files))] == ["index"]
        assert [(each.path, each.reason) for each in reindexed(files).rebuilt] == [(path, "wrong")]
        assert read_file(files, path) == data
        assert reindexed(files).rebuilt == ()


def test_reindex_leaves_the_indexes_of_a_damaged_shared_segment_alone() -> None:
    files = MemoryFiles()
    three_tenants(files)
    data = bytearray(read_file(files, log_file(0)))
    data[ENVELOPE + 30] ^= 1
    put(files, log_file(0), bytes(data))
    files.unlink(log_file(0, "oidx"))
    report = reindexed(files)
    assert [each.path for each in report.damaged] == [log_file(0)]
    assert not any("/tmp/" in path for path in image(files, "/"))
    assert not files.exists(log_file(0, "oidx"))


def test_what_is_built_for_reindex_travels_to_tasks_as_bytes() -> None:
    files = MemoryFiles()
    three_tenants(files)
    whole = read_file(files, log_file(0, "oidx"))
    put(files, log_file(0, "oidx"), whole[:ENTRY])
    opening = Opening(files, DATA, load_broker_config()[0], create=False, clock=TickingClock())
    report = reindex_directory(
        opening,
        build=lambda work: [
            pickle.loads(pickle.dumps(build_indexes(files, pickle.loads(pickle.dumps(each)))))
            for each in work
        ],
    )
    assert [each.path for each in report.rebuilt] == [log_file(0, "oidx")]
    assert read_file(files, log_file(0, "oidx")) == whole


# --- backup and restore ---------------------------------------------------------------------------


def two_lives(files: Files) -> list[int]:
    """Make a log with a topic that was deleted and created anew; return ids at which it can be cut."""
    ids = []
    with open_log(files) as log:
        other = log.topic("other", config=IN_SHARED)
        for life in range(2):
            topic = log.topic("t@7", config=IN_SHARED)
            for number in range(3):
                topic.append(
                    b"life %d, %d" % (life, number), partition=0, timestamp=1000 + 10 * life + number
                )
                other.append(b"%d" % number, partition=0, timestamp=1000 + 10 * life + number)
                ids.append(6 * life + life + 2 * number)
            topic.roll(0)
            if not life:
                log.delete_topic("t@7")
    return ids


def values(files: Files, data: str, topic: str) -> list[bytes | None]:
    with cordwood.open(data, files=files, clock=TickingClock(50)) as log:
        return [record.value for record in log.topic(topic).read(0)]


def test_a_backup_of_a_shared_log_is_sound_and_has_its_indexes() -> None:
    files = MemoryFiles()
    reclaimed(files, chain=True)
    with open_log(files) as log:
        for turn in range(3):
            cordwood.backup(DATA, "/copy", files=files)
            report = verify_directory(files, "/copy")
            assert serious(report) == []
            sealed = [
                name for name in files.list(f"/copy/topics/{SHARED}/0/segments") if name.endswith(".log")
            ]
            for name in sealed[:-1]:
                index = name.replace(".log", ".oidx")
                there = read_file(files, f"/copy/topics/{SHARED}/0/segments/{index}")
                assert there == read_file(files, f"{PARTITION}/segments/{index}")
            topic = log.topic("orders@7")
            topic.append(b"more %d" % turn, partition=0)
            topic.roll(0)
            if turn:
                topic.advance_log_start(0, topic.high_watermark())
                log.maintain()


def test_restoring_a_shared_log_to_any_id_gives_what_was_there_then_and_nothing_of_a_deleted_topic() -> None:
    """What was cut off may have said that a topic ended: its records must not be taken for the next one's."""
    files = MemoryFiles()
    two_lives(files)
    end = 2 * 6 + 1
    tried = 0
    for id_ in range(end + 1):
        target = f"/restored-{id_}"
        report = restore(DATA, target, to_offsets={(SHARED, 0): id_}, files=files)
        assert [(each.topic, each.end_offset) for each in report.partitions] == [(SHARED, id_)]
        assert serious(verify_directory(files, target)) == []
        second = max(0, (id_ - 7 + 1) // 2)
        assert values(files, target, "t@7") == [b"life 1, %d" % number for number in range(second)]
        firsts = min(id_ // 2, 3)
        assert len(values(files, target, "other")) == firsts + max(0, (id_ - 7) // 2)
        tried += 1
    print(f"{tried} points")
    assert tried == 14


def test_restoring_to_an_id_within_a_batch_keeps_the_records_before_it() -> None:
    """The frame is encoded anew, so the entry of the index that speaks of the whole one is no use."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic, other = (log.topic(name, config=IN_SHARED) for name in ("t@7", "other"))
        other.append(b"other", partition=0)
        topic.append_many([(None, b"%d" % number) for number in range(6)], partition=0)
        topic.roll(0)
        other.append(b"later", partition=0)
    for id_ in range(1, 8):
        restore(DATA, f"/cut-{id_}", to_offsets={(SHARED, 0): id_}, files=files)
        assert serious(verify_directory(files, f"/cut-{id_}")) == []
        assert values(files, f"/cut-{id_}", "t@7") == [b"%d" % number for number in range(id_ - 1)]
        assert values(files, f"/cut-{id_}", "other") == [b"other"]
        with cordwood.open(f"/cut-{id_}", files=files, clock=TickingClock(90)) as log:
            assert log.topic("t@7").append(b"on", partition=0).offset == id_ - 1
        assert serious(verify_directory(files, f"/cut-{id_}")) == []


def test_restoring_to_a_time_cuts_all_topics_of_the_shared_log_where_the_first_record_is_that_late() -> None:
    files = MemoryFiles()
    two_lives(files)
    restore(DATA, "/then", to_time=1011, files=files)
    assert values(files, "/then", "t@7") == [b"life 1, 0"]
    assert len(values(files, "/then", "other")) == 4


def test_restoring_one_topic_of_the_shared_log_to_an_offset_is_refused_by_name() -> None:
    files = MemoryFiles()
    two_lives(files)
    with pytest.raises(DirectoryRefused, match=r"topic t@7 is in the shared log.*partition 0 of __shared"):
        restore(DATA, "/never", to_offsets={("t@7", 0): 1}, files=files)
    assert not files.exists("/never")
