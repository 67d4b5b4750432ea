"""Every kind of damage is found with its file and position, and any bytes give a report (I1, I2)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data_directory import (
    Frame,
    Partition,
    all_files,
    catalogue_entry,
    compressed_partition,
    contents,
    envelope,
    flipped,
    frame,
    index_of,
    log_of,
    orders_partition,
    put,
    renumbered,
    rising_frames,
    slot,
    time_index_of,
    topic_entry,
    with_crc,
    write_catalogue,
)
from support.sweeps import bits_of, every
from support.verifying import (
    BROKER,
    CATALOGUE,
    PRODUCERS,
    ROOT,
    SNAPSHOT,
    STATE,
    one_partition,
    orders_path,
    producing_directory,
    producing_partition,
    segment_file,
    serious,
    sound_directory,
    verify,
)

from cordwood.cli.files.verify import verify_exit_code
from cordwood.disk.files import read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.verify import VerifyReport

Change = Callable[[MemoryFiles, Partition], None]
Bytes = Callable[[bytes], bytes]

FIRST = rising_frames(0, 6)
SECOND = len(FIRST[0].data)  # Where the second frame of the first segment starts.
THIRD = len(log_of(FIRST[:2]))
FIRST_SIZE = len(log_of(FIRST))
ACTIVE = rising_frames(30, 5)
MARKED = len(log_of(ACTIVE[:3]))
FIRST_LOG, ACTIVE_LOG = segment_file(0, "log"), segment_file(30, "log")
MARK, CATALOGUE_MARK = orders_path("mark"), f"{ROOT}/meta/catalogue.mark"
DIRECTORY = f"{ROOT}/topics/orders/0"
BODY = 28  # Where the body starts in a metadata file.
ENTRY = 8 + len(catalogue_entry(topic_entry("gone", "id-gone", 1)))  # Where the second one starts.


@dataclass(frozen=True)
class Damage:
    """A change to the sound directory, and the finding that must be among those of the report."""

    name: str
    apply: Change
    path: str
    position: int | None
    what: str
    severity: str = "corruption"


def rewrite(path: str, change: Bytes) -> Change:
    return lambda files, _: put(files, path, change(read_file(files, path)))


def remove(path: str) -> Change:
    return lambda files, _: files.unlink(path)


def patched(at: int, data: bytes) -> Bytes:
    return lambda old: old[:at] + data + old[at + len(data) :]


def resealed(at: int, data: bytes) -> Bytes:
    """Patch the first frame of a log and give it the right checksum again."""
    return lambda old: with_crc(patched(at, data)(old[:SECOND])) + old[SECOND:]


def state(**changes: object) -> Change:
    """Write partition.json with these fields instead."""

    def apply(files: MemoryFiles, partition: Partition) -> None:
        partition.changes = dict(changes)
        partition.write_state(files, ROOT)

    return apply


def sealed(number: int, **changes: object) -> Change:
    """Write partition.json with these fields of one sealed segment instead."""

    def apply(files: MemoryFiles, partition: Partition) -> None:
        segments = partition.body()["sealed"]
        segments[number] |= changes
        state(sealed=segments)(files, partition)

    return apply


def marked(**fields: Any) -> Change:
    """Write a mark with this slot only."""
    return lambda files, _: put(files, MARK, slot(**fields) + bytes(512))


def slots(*states: tuple[int, int]) -> Change:
    """Write a mark with slots of so many frames and these sequence numbers."""
    return lambda files, partition: put(files, MARK, b"".join(partition.mark_slot(*each) for each in states))


def catalogue(*entries: dict[str, Any]) -> Change:
    return lambda files, _: write_catalogue(files, ROOT, entries)


def first(name: str, position: int | None, what: str, change: Bytes) -> Damage:
    return Damage(name, rewrite(FIRST_LOG, change), FIRST_LOG, position, what)


def index(name: str, base: int, suffix: str, position: int, change: Bytes) -> Damage:
    path, what = segment_file(base, suffix), "offset index" if suffix == "idx" else "time index"
    return Damage(name, rewrite(path, change), path, position, what, "index")


def batches(*each: list[int]) -> dict[str, object]:
    """The fields of a snapshot whose first producer has these batches."""
    first, *others = SNAPSHOT["producers"]
    return {"producers": [{**first, "batches": list(each)}, *others]}


def missing(path: str, severity: str = "corruption") -> Damage:
    name = path.removeprefix(f"{ROOT}/")
    return Damage(f"missing {name}", remove(path), path, None, "unreadable", severity)


orders_entry, payments_entry = (
    topic_entry("orders", "id-orders", 1),
    topic_entry("payments", "id-payments", 2),
)

LOG_DAMAGES = [
    missing(FIRST_LOG),
    first("short", FIRST_SIZE - 1, "size of the log", lambda old: old[:-1]),
    first("long", FIRST_SIZE, "size of the log", lambda old: old + b"\0"),
    first("value", 0, "CRC-32C", lambda old: flipped(old, 8 * 80)),
    first("magic", SECOND, "magic", patched(SECOND + 16, b"\1")),
    first("negative length", SECOND, "batch length", patched(SECOND + 8, b"\xff\xff\xff\xff")),
    first("length beyond the end", SECOND, "batch length", patched(SECOND + 8, b"\0\1\0\0")),
    first("offset falls", SECOND, "base offset", patched(SECOND, struct.pack(">q", 1))),
    first("offset too high", SECOND, "base offset", patched(SECOND, struct.pack(">q", 12))),
    first("leader epoch", SECOND, "leader epoch", patched(SECOND + 12, struct.pack(">i", 1))),
    first("zeros over a frame", SECOND, "frame", patched(SECOND, bytes(61))),
    first("unknown attributes", 0, "attributes", resealed(21, b"\1\0")),
    first("unknown compression", 0, "attributes", resealed(21, b"\0\5")),
    first("too many records", 0, "record count", resealed(57, b"\0\0\0\3")),
    first("negative delta", 0, "last offset delta", resealed(23, b"\xff\xff\xff\xff")),
    first(
        "swapped frames",
        THIRD - SECOND,
        "base offset",
        lambda old: old[SECOND:THIRD] + old[:SECOND] + old[THIRD:],
    ),
    Damage(
        "active shorter than the mark",
        rewrite(ACTIVE_LOG, lambda old: old[: MARKED - 1]),
        ACTIVE_LOG,
        MARKED - 1,
        "size of the log",
    ),
    Damage(
        "active below the mark",
        rewrite(ACTIVE_LOG, lambda old: flipped(old, 8 * (MARKED - 1))),
        ACTIVE_LOG,
        len(log_of(ACTIVE[:2])),
        "CRC-32C",
    ),
]

STATE_DAMAGES = [
    Damage("sha256", sealed(0, sha256="0" * 64), FIRST_LOG, None, "SHA-256 of the log"),
    Damage("largest timestamp", sealed(0, max_timestamp=7), FIRST_LOG, None, "largest timestamp"),
    Damage("index checksum", sealed(0, index_crc32c=7), STATE, None, "CRC-32C of the offset index"),
    Damage("time index checksum", sealed(0, time_index_crc32c=7), STATE, None, "CRC-32C of the time index"),
    Damage("gap between segments", sealed(1, base=13), STATE, None, "segment after 0"),
    Damage("empty range", sealed(1, next_offset=12), STATE, None, "sealed segment 12"),
    Damage("gap before the active one", sealed(2, next_offset=31), STATE, None, "segment after 20"),
    Damage(
        "next offset",
        sealed(2, next_offset=31),
        segment_file(20, "log"),
        len(log_of(rising_frames(20, 5))),
        "next offset at the end",
    ),
    Damage("log start past the end", state(log_start_offset=41), DIRECTORY, None, "log start offset"),
    Damage("another topic", state(topic="else"), STATE, None, "topic"),
    Damage("another partition", state(partition=1), STATE, None, "partition"),
    Damage("another topic id", state(topic_id="id-else"), DIRECTORY, None, "topic id"),
    Damage("another epoch", state(leader_epoch=3), STATE, None, "last of the epochs"),
    Damage("wrong type", state(active_base="0"), STATE, BODY, "body"),
    Damage("negative size", sealed(0, size=-1), STATE, BODY, "body"),
    Damage("format zero", state(format=0), STATE, BODY, "format"),
    Damage("newer format", state(format=4), STATE, BODY, "format is newer", "invalid"),
    Damage(
        "unknown record format",
        state(record_format="morse"),
        DIRECTORY,
        None,
        "record format, of which nothing was checked",
        "invalid",
    ),
    Damage("checksum", rewrite(STATE, patched(11, b"-")), STATE, 11, "CRC-32C of the body"),
    Damage("cut", rewrite(STATE, lambda old: old[:-1]), STATE, 11, "CRC-32C of the body"),
    Damage("emptied", rewrite(STATE, lambda old: b""), STATE, 0, "envelope"),
    Damage("missing partition.json", remove(STATE), DIRECTORY, None, "partition"),
]

MARK_DAMAGES = [
    missing(MARK),
    Damage("no valid slot", rewrite(MARK, lambda old: bytes(1024)), MARK, 0, "mark"),
    Damage("later segment", marked(base=50), MARK, None, "epoch and segment of the mark"),
    Damage("later epoch", marked(epoch=1, base=30), MARK, None, "epoch and segment of the mark"),
    Damage(
        "later log start",
        marked(base=30, next_offset=30, log_start=1),
        MARK,
        None,
        "log start offset of the mark",
    ),
    Damage("went back", slots((3, 7), (2, 8)), MARK, None, "newer slot"),
    Damage("one sequence", slots((3, 8), (3, 8)), MARK, 8, "sequence of the slots"),
    Damage(
        "within a frame",
        marked(base=30, position=MARKED - 1, next_offset=36),
        ACTIVE_LOG,
        len(log_of(ACTIVE[:2])),
        "batch length",
    ),
    Damage(
        "another next offset",
        marked(base=30, position=MARKED, next_offset=37),
        ACTIVE_LOG,
        MARKED,
        "next offset at the end",
    ),
    Damage(
        "too many entries",
        marked(base=30, next_offset=30, index=bytes(16 * 50)),
        MARK,
        None,
        "entries of the offset index",
    ),
    Damage(
        "checksum of entries",
        marked(base=30, next_offset=30, time_index=bytes(16)),
        MARK,
        None,
        "CRC-32C of the time index",
    ),
]

INDEX_DAMAGES = [
    missing(segment_file(0, "idx"), "index"),
    missing(segment_file(12, "timeidx"), "index"),
    missing(segment_file(30, "idx"), "index"),
    index("entry", 0, "idx", 16, lambda old: flipped(old, 8 * 20)),
    index("time entry", 0, "timeidx", 16, lambda old: flipped(old, 8 * 20)),
    index("cut", 0, "idx", 16, lambda old: old[:20]),
    index("too long", 0, "idx", len(index_of(FIRST, 200)), lambda old: old + bytes(16)),
    index("active", 30, "idx", 0, lambda old: flipped(old, 0)),
    index("active cut", 30, "timeidx", len(time_index_of(ACTIVE[:3])) - 16, lambda old: old[:-1]),
]

PRODUCER_DAMAGES: dict[str, tuple[dict[str, object], str, str]] = {
    # The fields that differ, what is found, and what is said to be there.
    "past the end": ({"next_offset": 41}, "next offset", "41"),
    "another topic": ({"topic_id": "id-else"}, "topic id", "id-else"),
    "another partition": ({"partition": 1}, "partition", "1"),
    "later epoch": ({"leader_epoch": 1}, "leader epoch", "1"),
    "one twice": ({"producers": SNAPSHOT["producers"] * 2}, "producers", "one twice"),
    "none of its batches": (batches(), "batches of producer 7", "0"),
    "six batches": (
        batches(*([i, i, 20 + i, 21 + i] for i in range(6))),
        "batches of producer 7",
        "6",
    ),
    "offsets and sequences": (batches([6, 8, 30, 32]), "batches of producer 7", "2"),
    "falling offsets": (
        batches([8, 9, 32, 34], [6, 7, 30, 32]),
        "batches of producer 7",
        "30",
    ),
    "beyond what is covered": (batches([12, 13, 38, 40]), "batches of producer 7", "40"),
    "sequence": (batches([5, 6, 30, 32]), "batch of a producer", "first_sequence=6"),
    "epoch": (
        {"producers": [{**SNAPSHOT["producers"][0], "epoch": 3}]},
        "batch of a producer",
        "epoch=2",
    ),
    "another's batch": (batches([2147483647, 0, 34, 36]), "batch of a producer", "producer_id=9"),
    "nobody's batch": (batches([0, 1, 20, 22]), "batch of a producer", "producer_id=-1"),
    "within a batch": (batches([7, 7, 31, 32]), "batch of a producer", "no batch at that offset"),
    "a field of another type": ({"next_offset": "38"}, "body", "Expected `int`"),
    "negative": (batches([-1, 0, 30, 32]), "body", ">= 0"),
    "newer format": ({"format": 3}, "format is newer", "3"),
    "older format": ({"format": 0}, "format", "0"),
}


@pytest.mark.parametrize("name", PRODUCER_DAMAGES)
def test_a_snapshot_of_producers_that_is_wrong_is_an_index_finding(name: str) -> None:
    """It is derived from the log, whose records are as they were: never corruption."""
    changes, what, found = PRODUCER_DAMAGES[name]
    report = verify(producing_directory(**changes))
    assert not report.sound
    assert verify_exit_code(report) == 3
    assert {(f.severity, f.path) for f in serious(report)} == {("index", PRODUCERS)}
    assert any(f.what == what and found in f.found for f in serious(report)), report.findings


def test_every_flipped_bit_and_every_cut_of_a_snapshot_of_producers_is_an_index_finding() -> None:
    files = producing_directory()
    whole = read_file(files, PRODUCERS)
    changed = [flipped(whole, bit) for bit in bits_of(whole)]
    changed += [whole[:size] for size in range(0, len(whole), every(3))]
    for data in changed:
        put(files, PRODUCERS, data)
        (finding,) = serious(verify(files))
        assert (finding.severity, finding.path) == ("index", PRODUCERS)
    files.unlink(PRODUCERS)
    assert verify(files).sound
    print(f"{len(changed)} flipped bits and cuts, all found")
    assert len(changed) > 450


META_DAMAGES = [
    missing(BROKER),
    missing(CATALOGUE),
    missing(CATALOGUE_MARK),
    Damage(
        "newer id",
        rewrite(BROKER, lambda _: envelope({"format": 2})),
        BROKER,
        BODY,
        "format is newer",
        "invalid",
    ),
    Damage("id without fields", rewrite(BROKER, lambda _: envelope({"format": 1})), BROKER, BODY, "body"),
    Damage("magic", rewrite(CATALOGUE, patched(0, b"X")), CATALOGUE, 0, "magic"),
    Damage(
        "entry",
        rewrite(CATALOGUE, lambda old: flipped(old, 8 * (ENTRY + 12))),
        CATALOGUE,
        ENTRY + 4,
        "CRC-32C of the entry",
    ),
    Damage("length", rewrite(CATALOGUE, patched(ENTRY, b"\x7f")), CATALOGUE, ENTRY, "length of the entry"),
    Damage("zeros", rewrite(CATALOGUE, patched(ENTRY, bytes(8))), CATALOGUE, ENTRY, "entry"),
    Damage("short catalogue", rewrite(CATALOGUE, lambda old: old[:-1]), CATALOGUE, None, "size"),
    Damage("no topic", catalogue({"kind": "topic", "name": ".."}), CATALOGUE, 16, "JSON of the entry"),
    Damage(
        "two topics by one name",
        catalogue(orders_entry, topic_entry("orders", "id-2", 1)),
        CATALOGUE,
        8 + len(catalogue_entry(orders_entry)),
        "id of topic orders",
    ),
    Damage(
        "ids of producers go back",
        catalogue(
            orders_entry,
            {"kind": "producer-ids", "next_id": 20},
            payments_entry,
            {"kind": "producer-ids", "next_id": 19},
        ),
        CATALOGUE,
        None,
        "next producer id",
    ),
    Damage(
        "negative id of a producer",
        catalogue(orders_entry, payments_entry, {"kind": "producer-ids", "next_id": -1}),
        CATALOGUE,
        None,
        "JSON of the entry",
    ),
    Damage(
        "settings of a broker that has no id",
        catalogue(orders_entry, payments_entry, {"kind": "broker-settings", "broker": "x", "config": {}}),
        CATALOGUE,
        None,
        "JSON of the entry",
    ),
    Damage(
        "settings of a broker that are none",
        catalogue(orders_entry, payments_entry, {"kind": "broker-settings", "broker": "0", "config": [1]}),
        CATALOGUE,
        None,
        "JSON of the entry",
    ),
    Damage(
        "settings of a group without a name",
        catalogue(
            orders_entry, payments_entry, {"kind": "group-settings", "org": 0, "group": "", "config": {}}
        ),
        CATALOGUE,
        None,
        "JSON of the entry",
    ),
    Damage("unknown topic", catalogue(payments_entry), DIRECTORY, None, "unknown topic"),
    Damage(
        "unknown partition",
        catalogue(orders_entry, topic_entry("payments", "id-payments", 1)),
        f"{ROOT}/topics/payments/1",
        None,
        "partition",
    ),
]

DAMAGES = [*LOG_DAMAGES, *STATE_DAMAGES, *MARK_DAMAGES, *INDEX_DAMAGES, *META_DAMAGES]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_damage_is_found_with_its_file_and_position(damage: Damage) -> None:
    files, orders, _ = sound_directory()
    damage.apply(files, orders)
    report = verify(files)
    assert not report.sound
    assert report.corrupt == (damage.severity == "corruption")
    found = [(f.severity, f.path, f.what) for f in report.findings]
    assert (damage.severity, damage.path, damage.what) in found
    if damage.position is not None:
        positions = [f.position for f in report.findings if f.path == damage.path and f.what == damage.what]
        assert damage.position in positions
    for finding in report.findings:
        assert finding.path.startswith(ROOT)
        assert str(finding)


def test_one_bad_frame_is_one_finding_and_the_rest_is_checked() -> None:
    files, orders, _ = sound_directory()
    rewrite(FIRST_LOG, lambda old: flipped(old, 8 * (SECOND + 70)))(files, orders)
    report = verify(files)
    assert [f.what for f in serious(report)] == ["CRC-32C", "SHA-256 of the log"]
    assert report.frames == 28


# --- batches that contradict themselves (D19) --------------------------------------------------


def lying_batches() -> dict[str, Frame]:
    good = frame(0, [b"a", b"b"])
    short = with_crc(patched(61, b"\x01")(good.data))
    late = with_crc(patched(35, struct.pack(">q", 5_000))(good.data))
    fewer = with_crc(patched(57, struct.pack(">i", 1))(good.data))
    garbage = with_crc(patched(21, b"\0\4")(good.data))
    return {
        "record length": replace(good, data=short),
        "max timestamp": replace(good, data=late, max_timestamp=5_000),
        "end of records": replace(good, data=fewer, record_count=1),
        "records": replace(good, data=garbage),
    }


@pytest.mark.parametrize("what", ["record length", "max timestamp", "end of records", "records"])
def test_a_batch_that_contradicts_itself_under_a_right_checksum_is_invalid_and_not_corrupt(what: str) -> None:
    """Its bytes are those the producer sent and was given an offset for (D19)."""
    lie = lying_batches()[what]
    partition = Partition("orders", "id-orders", 0, [[lie, frame(2, [b"c"], timestamp=9_000)]], [], 0)
    report = verify(one_partition(partition))
    (finding,) = serious(report)
    assert finding.severity == "invalid"
    assert finding.path == partition.segment(ROOT, 0, "log")
    assert finding.what.split(" at ")[0] == what
    assert finding.position is not None
    assert finding.position < len(lie.data)
    assert not report.sound
    assert report.frames == 2


# --- rot -----------------------------------------------------------------------------------------


def unhashed() -> list[Partition]:
    return [replace(orders_partition(), hashed=False), compressed_partition()]


@pytest.mark.parametrize("partition", unhashed(), ids=lambda partition: partition.topic)
def test_every_flipped_bit_below_the_mark_is_corruption(partition: Partition) -> None:
    """The first 17 bytes of each batch included, and with no SHA-256 to lean on."""
    files = one_partition(partition)
    cases = 0
    segments = [(frames[0].base_offset, frames) for frames in partition.sealed]
    segments.append((partition.active_base, partition.active[: partition.marked]))
    for base, frames in segments:
        path = partition.segment(ROOT, base, "log")
        whole = read_file(files, path)
        for bit in bits_of(log_of(frames)):
            put(files, path, flipped(whole, bit))
            report = verify(files)
            assert any(f.severity == "corruption" and f.path == path for f in report.findings), bit
            cases += 1
        put(files, path, whole)
    assert verify(files).sound
    print(f"{cases} flipped bits of {partition.topic}, all found")
    assert cases > 800


def test_an_offset_that_moves_within_a_compaction_gap_is_seen_by_index_checksum_or_sha256() -> None:
    """Offsets 2 to 9 were compacted away, so order alone does not say where the second frame belongs."""
    frames = [frame(0, [b"a" * 100, b"b"]), frame(10, [b"c"]), frame(11, [b"d"])]
    moved = [frames[0], renumbered(frames[1], 7), frames[2]]
    outcomes = {}
    for interval, hashed in [(0, False), (10_000, False), (10_000, True)]:
        partition = Partition(
            "orders", "id-orders", 0, [frames], [], 0, interval_bytes=interval, hashed=hashed
        )
        files = one_partition(partition)
        assert verify(files).sound
        put(files, partition.segment(ROOT, 0, "log"), log_of(moved))
        outcomes[interval, hashed] = verify(files).corrupt
    assert outcomes == {(0, False): True, (10_000, False): False, (10_000, True): True}


def test_every_flipped_bit_of_metadata_is_found() -> None:
    files, _, _ = sound_directory()
    cases = 0
    for path in [BROKER, CATALOGUE, STATE]:
        whole = read_file(files, path)
        for bit in bits_of(whole):
            put(files, path, flipped(whole, bit))
            assert verify(files).corrupt, (path, bit)
            cases += 1
        put(files, path, whole)
    print(f"{cases} flipped bits of metadata, all found")
    assert cases > 1_600


def test_a_flipped_bit_of_one_slot_is_noted_and_the_other_slot_decides() -> None:
    """A power cut can leave one slot torn, so one alone is not corruption."""
    files, _, _ = sound_directory()
    path = orders_path("mark")
    whole = read_file(files, path)
    slots = [bit for bit in bits_of(whole) if bit % 4096 < 8 * 80]
    for bit in [*slots, *range(0, 8 * len(whole), 37)]:
        put(files, path, flipped(whole, bit))
        report = verify(files)
        assert report.sound
        (note,) = [finding for finding in report.findings if finding.path == path]
        assert note.position == bit // 8 // 512 * 512
        # The newer slot marks three frames, the older one two.
        assert report.frames + report.frames_unmarked == 30
        assert report.frames == (27 if 512 <= bit // 8 < 512 + 68 else 28)


def test_every_flipped_bit_of_an_index_is_an_index_finding() -> None:
    files, _, _ = sound_directory()
    cases = 0
    for base in (0, 12, 20, 30):
        for suffix in ("idx", "timeidx"):
            path = segment_file(base, suffix)
            whole = read_file(files, path)
            for bit in bits_of(whole):
                put(files, path, flipped(whole, bit))
                (finding,) = serious(verify(files))
                assert (finding.severity, finding.path) == ("index", path)
                assert finding.position == bit // 8 // 16 * 16
                cases += 1
            put(files, path, whole)
    print(f"{cases} flipped bits of indexes, all found")
    assert cases > 400


def test_every_file_that_goes_missing_and_every_cut_is_found() -> None:
    files, _, _ = sound_directory()
    cases = 0
    for path, whole in contents(files, ROOT).items():
        judged = len(whole)
        if path == segment_file(30, "log"):
            judged = MARKED
        if path.endswith("mark"):
            judged = 1  # Half of it is enough.
        files.unlink(path)
        assert not verify(files).sound, path
        for size in range(0, judged, every(3)):
            put(files, path, whole[:size])
            assert not verify(files).sound, (path, size)
            cases += 1
        put(files, path, whole)
    assert verify(files).sound
    print(f"{cases} cuts and {len(contents(files, ROOT))} missing files, all found")
    assert cases > 1_300


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_any_bytes_in_any_file_give_a_report(data: st.DataObject) -> None:
    files, _, _ = sound_directory()
    producing_partition().write(files, ROOT)
    put(files, PRODUCERS, envelope(SNAPSHOT))
    put(files, f"{ROOT}/tmp/id-gone.deleted/0/partition.json", b"{}")
    paths = all_files(files, ROOT)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths))
        old = read_file(files, path)
        at = data.draw(st.integers(0, max(len(old) - 1, 0)))
        kind = data.draw(
            st.sampled_from(["flip", "cut", "insert", "set", "replace", "swap", "envelope", "crc"])
        )
        if kind == "flip" and old:
            new = flipped(old, 8 * at)
        elif kind == "cut":
            new = old[:at]
        elif kind == "insert":
            new = old[:at] + data.draw(st.binary(max_size=80)) + old[at:]
        elif kind == "set":
            new = patched(at, data.draw(st.sampled_from([b"\xff" * 8, bytes(8), b"\x7f" * 4])))(old)
        elif kind == "swap":
            new = read_file(files, data.draw(st.sampled_from(paths)))
        elif kind == "envelope":
            text = data.draw(
                st.sampled_from(["[" * 5_000, "1e999", '{"format":1}', "{", '"\\ud800"', "null"])
            )
            body = text.encode()
            new = b'{"crc32c":"%08x","body":%s}' % (google_crc32c.value(body), body)
        elif kind == "crc" and len(old) > 61:
            # A first frame that is wrong under a right checksum.
            size = max(61, min(12 + int.from_bytes(old[8:12], "big"), len(old)))
            new = with_crc(patched(21 + at % (size - 21), b"\xff")(old[:size])[:size]) + old[size:]
        else:
            new = data.draw(st.binary(max_size=200))
        put(files, path, new)
    report = verify(files)
    assert isinstance(report, VerifyReport)
    for finding in report.findings:
        assert str(finding)


@pytest.mark.parametrize(
    "body", ["[" * 100_000, '{"format":1,"uuid":"\\ud800"}', "{}", '{"format":1e999}', '{"format":true}']
)
def test_json_that_no_writer_makes_is_a_finding_even_under_a_right_checksum(body: str) -> None:
    files, _, _ = sound_directory()
    data = body.encode()
    put(files, BROKER, b'{"crc32c":"%08x","body":%s}' % (google_crc32c.value(data), data))
    assert verify(files).corrupt
