"""A directory that another system wrote → a topic of its format → an export: the same bytes.

The originals are made by writers that know only the documents of the systems; each of them says what its
document leaves open. Log, index and hash files are compared, whichever segments there are.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import zstandard
from formats.writers import write_frame, write_kimberlite, write_laminarmq, write_rafka, write_rustlog
from formats.writers.write_kimberlite import Event
from support.seeds import seed_or

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk.posix import PosixFiles
from cordwood.errors import CordwoodError, DirectoryRefused, FrameError, RecordRefused
from cordwood.interchange import (
    ExportReport,
    ExportTarget,
    ImportReport,
    ImportSource,
    export_topics,
    import_shared_topics,
    import_topic,
)
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.readonly.directory import ReadOnlyDirectory
from cordwood.verify import verify_directory

FILES = PosixFiles()
MICROSECONDS = 1_700_000_000_123_456
_unique = count()


def imported(
    data: Path,
    system: str,
    source: Path,
    *topics: str,
    tenant: int | None = None,
    kill: Callable[[], object] = lambda: None,
    **config: str,
) -> ImportReport:
    """Import a directory, by default into a topic of its own format; *kill* is called at each progress."""

    def progress(size: int) -> None:
        kill()

    settings = {key.replace("_", "."): value for key, value in config.items()}
    if not settings:
        settings = {"cordwood.storage": "shared"} if system == "rafka" else {"cordwood.format": system}
    directory = DataDirectory(Opening(FILES, str(data), load_broker_config()[0]))
    wanted = ImportSource(system, str(source), tenant)
    try:
        if len(topics) > 1:
            return import_shared_topics(FILES, directory, wanted, topics, config=settings, progress=progress)[
                0
            ]
        unique = str(next(_unique))
        return import_topic(
            FILES,
            directory,
            wanted,
            topics[0],
            unique=unique,
            now_ms=0,
            config=settings,
            progress=progress,
        )
    finally:
        directory.close()


def exported(data: Path, system: str, target: Path, *topics: str, **given: Any) -> tuple[ExportReport, ...]:
    directory = ReadOnlyDirectory(FILES, str(data), load_broker_config()[0])
    try:
        wanted = ExportTarget(system, str(target), **given)
        return export_topics(FILES, directory, topics, wanted, unique=str(next(_unique)))
    finally:
        directory.close()


def content(directory: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a directory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def records(data: Path, topic: str, partition: int = 0) -> list[Record]:
    with cordwood.open(data, read_only=True) as log:
        return list(log.topic(topic).read(partition))


def check_same(original: dict[str, bytes], back: Path, data: Path) -> None:
    """Compare all files of an original and of its export, and verify the data directory between them."""
    found = content(back)
    assert found.keys() == original.keys()
    assert [name for name in original if found[name] != original[name]] == []
    assert not verify_directory(FILES, str(data)).findings
    print(f"{len(original)} files, {sum(map(len, original.values()))} bytes the same")


# --- RustLog --------------------------------------------------------------------------------------------


def rustlog_segments(first: int, sizes: list[int]) -> list[list[tuple[int, int, bytes]]]:
    offsets = count(first)
    return [
        [
            (offset, MICROSECONDS + 777 * offset, b"payload %d" % offset * (offset % 5))
            for _, offset in zip(range(size), offsets, strict=False)
        ]
        for size in sizes
    ]


def test_a_directory_of_rustlog_comes_back_byte_for_byte(tmp_path: Path) -> None:
    """Two partitions that begin at different offsets, microseconds, and an active segment without records."""
    topic = write_rustlog.write(tmp_path / "data", "logs", 0, rustlog_segments(0, [250, 101, 3]))
    write_rustlog.write(tmp_path / "data", "logs", 1, [*rustlog_segments(4_000, [1, 300]), []])
    report = imported(tmp_path / "new", "rustlog", tmp_path / "data", "logs")
    assert (report.records, report.not_kept) == (655, ())
    assert [(each.start_offset, each.end_offset) for each in report.partitions] == [(0, 354), (4_000, 4_301)]
    exported(tmp_path / "new", "rustlog", tmp_path / "back", "logs")
    check_same(content(topic), tmp_path / "back", tmp_path / "new")


@pytest.mark.parametrize("interval", [1, 7, 64, 4_096])
def test_an_index_of_rustlog_comes_back_as_dense_as_it_was(interval: int, tmp_path: Path) -> None:
    """The document leaves the interval open. Here 4,096 is more than any segment has."""
    topic = write_rustlog.write(
        tmp_path / "data", "logs", 0, rustlog_segments(0, [250, 101, 3]), interval=interval
    )
    write_rustlog.write(
        tmp_path / "data", "logs", 1, [*rustlog_segments(4_000, [1, 300]), []], interval=interval
    )
    report = imported(tmp_path / "new", "rustlog", tmp_path / "data", "logs")
    assert report.not_kept == ()
    exported(tmp_path / "new", "rustlog", tmp_path / "back", "logs")
    check_same(content(topic), tmp_path / "back", tmp_path / "new")


def test_an_index_without_a_constant_interval_is_said_to_be_made_anew(tmp_path: Path) -> None:
    topic = write_rustlog.write(tmp_path / "data", "t", 0, rustlog_segments(0, [250]), interval=10)
    path = topic / "partitions" / "0" / f"{0:020d}.index"
    path.write_bytes(path.read_bytes()[:16] + path.read_bytes()[32:])
    report = imported(tmp_path / "new", "rustlog", tmp_path / "data", "t")
    assert report.not_kept == (
        "indexes with a distance between entries that changes, which an export makes anew: 1",
    )
    exported(tmp_path / "new", "rustlog", tmp_path / "back", "t")
    assert len((tmp_path / "back" / "partitions" / "0" / path.name).read_bytes()) == 3 * 16


# --- the broker with framed records ---------------------------------------------------------------------


def test_a_directory_of_framed_records_comes_back_byte_for_byte(tmp_path: Path) -> None:
    """Null and empty keys and values, times that run backwards, and indexes by offset and time."""
    rows: list[write_frame.FramedRow] = [
        (
            offset,
            1_700_000_000_000 + offset * (-7 if offset % 3 == 0 else 11),
            (None, b"", b"key %d" % offset)[offset % 3],
            (None, b"", b"value %d" % offset)[offset // 3 % 3],
        )
        for offset in range(5, 400)
    ]
    topic = write_frame.write(tmp_path / "data", "t", 0, [rows[:250], rows[250:251], rows[251:]])
    write_frame.write(tmp_path / "data", "t", 1, [[]])
    imported(tmp_path / "new", "frame", tmp_path / "data", "t", cordwood_format="frame")
    assert [record.offset for record in records(tmp_path / "new", "t")] == list(range(5, 400))
    exported(tmp_path / "new", "frame", tmp_path / "back", "t")
    check_same(content(topic), tmp_path / "back", tmp_path / "new")


@pytest.mark.parametrize("with_times", [True, False])
@pytest.mark.parametrize("interval", [1, 7, 64, 4_096])
def test_indexes_of_framed_records_come_back_as_dense_as_they_were(
    interval: int, with_times: bool, tmp_path: Path
) -> None:
    rows: list[write_frame.FramedRow] = [
        (offset, 1_700_000_000_000 + offset * (-7 if offset % 3 == 0 else 11), None, b"%d" % offset)
        for offset in range(300)
    ]
    parts = [rows[:180], rows[180:181], rows[181:]]
    topic = write_frame.write(tmp_path / "data", "t", 0, parts, interval=interval, with_times=with_times)
    report = imported(tmp_path / "new", "frame", tmp_path / "data", "t")
    assert report.not_kept == ()
    exported(tmp_path / "new", "frame", tmp_path / "back", "t")
    check_same(content(topic), tmp_path / "back", tmp_path / "new")


# --- laminarmq ------------------------------------------------------------------------------------------


def foreign_rows(count_: int) -> list[tuple[bytes, bytes]]:
    """Return records with metadata as programs serialise it: nothing, numbers, text, and one like ours."""
    kinds: list[Callable[[int], bytes]] = [
        lambda i: b"",
        lambda i: struct.pack("<QQ", i, MICROSECONDS),
        lambda i: b'{"index":%d}' % i,
        lambda i: bytes(3),
        lambda i: write_laminarmq.metadata_of_ours(i, b"k", [(b"h", b"%d" % i)]),
        lambda i: write_laminarmq.metadata_of_ours(i, b"k", [(b"\xff not text", b"")]),
        lambda i: write_laminarmq.metadata_of_ours(i, None, []) + b"more",
    ]
    return [(kinds[i % len(kinds)](i), b"value %d" % i * (i % 4)) for i in range(count_)]


def test_a_directory_of_laminarmq_comes_back_byte_for_byte(tmp_path: Path) -> None:
    rows = foreign_rows(120)
    write_laminarmq.write(tmp_path / "old" / "0", 1_000, [rows[:50], rows[50:51], rows[51:], []])
    write_laminarmq.write(tmp_path / "old" / "1", 1_005, [rows])
    report = imported(tmp_path / "new", "laminarmq", tmp_path / "old", "t")
    assert (report.records, report.not_kept) == (240, ())
    exported(tmp_path / "new", "laminarmq", tmp_path / "back", "t")
    check_same(content(tmp_path / "old"), tmp_path / "back", tmp_path / "new")


def test_metadata_of_another_program_is_a_header_and_has_no_time(tmp_path: Path) -> None:
    ours = write_laminarmq.metadata_of_ours(77, b"k", [(b"h", b"1")])
    write_laminarmq.write(tmp_path / "old", 0, [[(b"\x01\x07", b"value"), (ours, b"plain"), (b"", b"")]])
    imported(tmp_path / "new", "laminarmq", tmp_path / "old", "t")
    assert records(tmp_path / "new", "t") == [
        Record(0, -1, None, b"value", (("cordwood.laminarmq.metadata", b"\x01\x07"),)),
        Record(1, 77, b"k", b"plain", (("h", b"1"),)),
        Record(2, -1, None, b"", (("cordwood.laminarmq.metadata", b""),)),
    ]
    with cordwood.open(tmp_path / "new") as log:
        assert log.topic("t").append(b"more").offset == 3


def test_metadata_of_another_program_also_passes_a_topic_in_the_native_format(tmp_path: Path) -> None:
    """Its bytes are a header on the way, written back unchanged; only times are said to be lost."""
    rows = [row for row in foreign_rows(60) if not row[0].startswith(b"\x04")]
    write_laminarmq.write(tmp_path / "old" / "0", 0, [rows])
    report = imported(tmp_path / "new", "laminarmq", tmp_path / "old", "t", retention_ms="-1")
    assert [line.partition(":")[0] for line in report.not_kept] == [
        "times of records with metadata of another program, which became now"
    ]
    exported(tmp_path / "new", "laminarmq", tmp_path / "back", "t")
    check_same(content(tmp_path / "old"), tmp_path / "back", tmp_path / "new")


def test_a_header_of_a_client_cannot_write_metadata_of_ours(tmp_path: Path) -> None:
    """Such a record goes out and comes back with the header that it had, whatever bytes are in it."""
    name = "cordwood.laminarmq.metadata"
    forged = write_laminarmq.metadata_of_ours(1, b"another key", [])
    given: list[tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
        (None, ((name, forged),)),
        (b"key", ((name, b"foreign"),)),
        (None, ((name, b"foreign"), ("other", b""))),
        (None, ((name, b"a"), (name, b"b"))),
        (None, ((name + "\n", b"foreign"),)),
    ]
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t")
        for key, headers in given:
            topic.append(b"value", key=key, headers=headers, timestamp=5)
        topic.append(None, headers=[(name, b"foreign")], timestamp=5)
    before = records(tmp_path / "data", "t")
    exported(tmp_path / "data", "laminarmq", tmp_path / "out", "t")
    imported(tmp_path / "new", "laminarmq", tmp_path / "out", "t", retention_ms="-1")
    assert records(tmp_path / "new", "t") == before


# --- Kimberlite -----------------------------------------------------------------------------------------


def kimberlite_segments(sizes: list[int]) -> list[list[Event]]:
    numbers = count()
    found = []
    for size in sizes:
        events = []
        for _, i in zip(range(size), numbers, strict=False):
            event = Event(MICROSECONDS + 333 * i, b"event %d" % i * (i % 3), (0, 1, 2, 7, 65_535)[i % 5])
            if i % 11 == 0:
                packed = zstandard.ZstdCompressor(level=1).compress(b"%d" % i * 700)
                event = event._replace(data=packed, reserved=b"\x01" + bytes(5))
            events.append(event)
        found.append(events)
    return found


@pytest.mark.parametrize("tenant", [0, 42])
def test_a_directory_of_kimberlite_comes_back_byte_for_byte(tenant: int, tmp_path: Path) -> None:
    """Records, chain, tenant, event types, microseconds, compressed data as it is, hashes of segments."""
    name = f"t@{tenant}" if tenant else "t"
    for stream in range(2):
        segments = kimberlite_segments([60, 1, 50 + stream])
        write_kimberlite.write(tmp_path / "old" / str(stream), segments, tenant=tenant, stream=stream)
    report = imported(tmp_path / "new", "kimberlite", tmp_path / "old", name)
    assert (report.records, report.not_kept) == (223, ())
    exported(tmp_path / "new", "kimberlite", tmp_path / "back", name)
    check_same(content(tmp_path / "old"), tmp_path / "back", tmp_path / "new")
    with cordwood.open(tmp_path / "new") as log:
        log.topic(name).append(b"next", partition=0)
    assert not verify_directory(FILES, str(tmp_path / "new")).findings


def test_a_chain_whose_first_records_are_gone_comes_back_byte_for_byte(tmp_path: Path) -> None:
    """The first record that is left has the hash of one that is not."""
    before = hashlib.sha256(b"gone").digest()
    write_kimberlite.write(
        tmp_path / "old" / "0", kimberlite_segments([9, 9]), tenant=0, stream=0, first=500, previous=before
    )
    report = imported(tmp_path / "new", "kimberlite", tmp_path / "old", "t")
    assert report.not_kept == ("the predecessor of the first record of a chain, which is missing: 1",)
    exported(tmp_path / "new", "kimberlite", tmp_path / "back", "t")
    check_same(content(tmp_path / "old"), tmp_path / "back", tmp_path / "new")


def test_a_kimberlite_log_that_a_topic_of_its_format_cannot_be_is_refused_with_what_to_do(
    tmp_path: Path,
) -> None:
    write_kimberlite.write(tmp_path / "old", [[Event(1, b"a")]], tenant=3, stream=0)
    with pytest.raises(DirectoryRefused, match=r"import it as topic orders@3, or leave cordwood.format out"):
        imported(tmp_path / "new", "kimberlite", tmp_path / "old", "orders")
    imported(tmp_path / "new", "kimberlite", tmp_path / "old", "orders@3")
    write_kimberlite.write(tmp_path / "far", [[Event(1, b"a")]], tenant=0, stream=10_000)
    with pytest.raises(DirectoryRefused, match=r"streams 10000, .*leave cordwood.format out"):
        imported(tmp_path / "new", "kimberlite", tmp_path / "far", "far")
    with cordwood.open(tmp_path / "new") as log:
        assert log.topics == ["orders@3"]


def test_one_chain_of_several_tenants_and_streams_is_imported_tenant_by_tenant(tmp_path: Path) -> None:
    """A topic of the format has a chain for each partition, so the advice is the native format."""
    mixed = [Event(MICROSECONDS + i, b"event %d" % i, tenant=i % 2, stream=i // 2 % 2) for i in range(12)]
    write_kimberlite.write(tmp_path / "data", [mixed], tenant=0, stream=0)
    for name in ("t", "t@1"):
        advice = r"one chain of the tenants 0, 1, .*leave cordwood.format out.*--tenant 0 and so on"
        with pytest.raises(DirectoryRefused, match=advice):
            imported(tmp_path / "new", "kimberlite", tmp_path / "data", name)
    for tenant, name in enumerate(("t", "t@1")):
        report = imported(
            tmp_path / "new", "kimberlite", tmp_path / "data", name, tenant=tenant, retention_ms="-1"
        )
        assert report.records == 6
        for stream in range(2):
            found = [each.value for each in records(tmp_path / "new", name, stream)]
            assert found == [each.data for each in mixed if (each.tenant, each.stream) == (tenant, stream)]


@pytest.mark.parametrize("system", ["laminarmq", "kimberlite"])
def test_the_directory_of_one_partition_comes_back_below_its_number(system: str, tmp_path: Path) -> None:
    if system == "laminarmq":
        write_laminarmq.write(tmp_path / "old", 0, [foreign_rows(20)])
    else:
        write_kimberlite.write(tmp_path / "old", kimberlite_segments([20]), tenant=0, stream=0)
    original = {f"0/{name}": data for name, data in content(tmp_path / "old").items()}
    imported(tmp_path / "new", system, tmp_path / "old", "t")
    exported(tmp_path / "new", system, tmp_path / "back", "t")
    check_same(original, tmp_path / "back", tmp_path / "new")


# --- Rafka ----------------------------------------------------------------------------------------------


def rafka_records(rows: int) -> list[tuple[int, str, int, bytes]]:
    """Return records of four topics of three tenants, two of them with the same name, in random order."""
    seed = seed_or(7)
    print(f"seed {seed}")
    chance = random.Random(seed)
    keys = [(0, "orders", 0), (0, "orders", 2), (7, "orders", 0), (7, "clicks", 1), (2**64 - 1, "far", 0)]
    return [(*chance.choice(keys), b"record %d" % i * (i % 6)) for i in range(rows)]


ALL_OF_RAFKA = ("orders", "orders@7", "clicks@7", f"far@{2**64 - 1}")


def test_a_log_of_rafka_comes_back_byte_for_byte_with_all_topics_in_their_order(tmp_path: Path) -> None:
    """Its segments have a fixed size, so where they end follows from the records."""
    write_rafka.write(tmp_path / "old", rafka_records(800), segment_bytes=5_000)
    imported(tmp_path / "new", "rafka", tmp_path / "old", *ALL_OF_RAFKA)
    exported(tmp_path / "new", "rafka", tmp_path / "back", *ALL_OF_RAFKA, segment_bytes=5_000)
    original = content(tmp_path / "old")
    assert len(original) > 4
    check_same(original, tmp_path / "back", tmp_path / "new")


def test_a_tenants_topic_goes_out_under_the_tenants_key(tmp_path: Path) -> None:
    """The org, and the hash of the name that its clients use; other topics of the shared log stay out."""
    rows = rafka_records(300)
    write_rafka.write(tmp_path / "old", rows)
    report = imported(tmp_path / "new", "rafka", tmp_path / "old", "orders@7", "orders")
    assert report.not_kept[-1] == "topics of the log that were not named: 2"
    exported(tmp_path / "new", "rafka", tmp_path / "back", "orders@7")
    kept = [row for row in rows if row[:2] == (7, "orders")]
    write_rafka.write(tmp_path / "expected", kept)
    check_same(content(tmp_path / "expected"), tmp_path / "back", tmp_path / "new")


def test_topics_with_files_of_their_own_follow_each_other_in_a_log_of_rafka(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        for name in ("a", "b@5"):
            topic = log.topic(name, partitions=2)
            for i in range(6):
                topic.append(b"%d" % i, partition=i % 2, timestamp=1)
    reports = exported(tmp_path / "data", "rafka", tmp_path / "out", "b@5", "a")
    assert [(each.topic, each.records) for each in reports] == [("b@5", 6), ("a", 6)]
    halves = ((0, b"0"), (0, b"2"), (0, b"4"), (1, b"1"), (1, b"3"), (1, b"5"))
    rows = [(org, name, *half) for org, name in ((5, "b"), (0, "a")) for half in halves]
    write_rafka.write(tmp_path / "expected", rows)
    assert content(tmp_path / "out") == content(tmp_path / "expected")
    with pytest.raises(CordwoodError, match=r"a directory of frame holds one topic"):
        exported(tmp_path / "data", "frame", tmp_path / "other", "a", "b@5")


def test_names_of_several_topics_of_rafka_are_checked_by_their_hash(tmp_path: Path) -> None:
    write_rafka.write(tmp_path / "old", rafka_records(50))
    for wrong in ("clicks", "orders@8", "other@7"):
        with pytest.raises(DirectoryRefused, match=f"{wrong} is not the name of one"):
            imported(tmp_path / "new", "rafka", tmp_path / "old", "orders", wrong)
    with pytest.raises(CordwoodError, match=r"cordwood.storage=shared"):
        imported(tmp_path / "new", "rafka", tmp_path / "old", "orders", "orders@7", retention_ms="-1")
    with cordwood.open(tmp_path / "new") as log:
        assert log.topics == []


# --- what cannot be kept --------------------------------------------------------------------------------


def test_offsets_with_gaps_are_refused_with_what_to_do(tmp_path: Path) -> None:
    rows = [(0, MICROSECONDS, b"a"), (2, MICROSECONDS, b"b")]
    write_rustlog.write(tmp_path / "data", "t", 0, [rows])
    with pytest.raises(RecordRefused, match=r"offset 2 follows where 1 is next.*leave cordwood.format out"):
        imported(tmp_path / "new", "rustlog", tmp_path / "data", "t")
    imported(tmp_path / "new", "rustlog", tmp_path / "data", "t", retention_ms="-1")
    assert [record.offset for record in records(tmp_path / "new", "t")] == [0, 2]


def test_the_format_of_a_third_system_is_refused(tmp_path: Path) -> None:
    write_rustlog.write(tmp_path / "data", "t", 0, rustlog_segments(0, [3]))
    with pytest.raises(CordwoodError, match=r"or with cordwood.format=rustlog"):
        imported(tmp_path / "new", "rustlog", tmp_path / "data", "t", cordwood_format="frame")


def test_an_import_that_keeps_frames_and_fails_leaves_no_topic(tmp_path: Path) -> None:
    """Damage in the last partition is found before the topic is created."""
    topic = write_rustlog.write(tmp_path / "data", "t", 0, rustlog_segments(0, [3]))
    write_rustlog.write(tmp_path / "data", "t", 1, rustlog_segments(0, [3, 3]))
    path = topic / "partitions" / "1" / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[0] ^= 0x40
    path.write_bytes(damaged)
    with pytest.raises(FrameError, match=str(path)):
        imported(tmp_path / "new", "rustlog", topic, "t")
    with cordwood.open(tmp_path / "new") as log:
        assert log.topics == []
    assert not list((tmp_path / "new" / "tmp").glob("import-*"))


def test_a_size_of_segments_divides_frames_that_are_kept(tmp_path: Path) -> None:
    write_rustlog.write(tmp_path / "data", "t", 0, rustlog_segments(0, [500]))
    imported(tmp_path / "new", "rustlog", tmp_path / "data", "t")
    exported(tmp_path / "new", "rustlog", tmp_path / "back", "t", segment_bytes=4_000)
    parts = sorted((tmp_path / "back" / "partitions" / "0").glob("*.log"))
    assert len(parts) > 3
    whole = (tmp_path / "data" / "topics" / "t" / "partitions" / "0" / f"{0:020d}.log").read_bytes()
    assert b"".join(path.read_bytes() for path in parts) == whole


def _call_next(calls: Iterator[Callable[[], object]]) -> None:
    next(calls)()


def test_an_import_that_keeps_frames_and_was_killed_begins_again(tmp_path: Path) -> None:
    """Its incomplete topics, also if there are several, are removed by the next import."""
    write_rustlog.write(tmp_path / "old", "t", 0, rustlog_segments(0, [5, 5]))
    write_rafka.write(tmp_path / "rafka", rafka_records(40))
    killed = 0
    for left in range(2):
        for system, topics in (("rustlog", ("t",)), ("rafka", ALL_OF_RAFKA)):
            data = tmp_path / f"{system}-{left}"
            source = tmp_path / ("old" if system == "rustlog" else system)
            calls: Iterator[Callable[[], object]] = iter([*[lambda: None] * left, lambda: os._exit(9)])
            child = os.fork()
            if child == 0:
                imported(data, system, source, *topics, kill=partial(_call_next, calls))
                os._exit(0)
            killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
            imported(data, system, source, *topics)
            exported(data, system, tmp_path / f"{system}-{left}-back", *topics)
            back, original = content(tmp_path / f"{system}-{left}-back"), content(source)
            assert sorted(back.values()) == sorted(original.values())
            assert not list((data / "tmp").glob("import-*"))
            assert not verify_directory(FILES, str(data)).findings
    assert killed == 4


@pytest.mark.parametrize("systems", [("rustlog", "kimberlite"), ("kimberlite", "rustlog")])
def test_microseconds_go_from_one_system_to_the_other(systems: tuple[str, str], tmp_path: Path) -> None:
    first, second = systems
    if first == "rustlog":
        write_rustlog.write(tmp_path / "old", "t", 0, rustlog_segments(0, [20]))
    else:
        events = [Event(MICROSECONDS + 7 * i, b"%d" % i) for i in range(20)]
        write_kimberlite.write(tmp_path / "old", [events], tenant=0, stream=0)
    imported(tmp_path / "data", first, tmp_path / "old", "t")
    before = [(record.timestamp_us, record.value) for record in records(tmp_path / "data", "t")]
    (report,) = exported(tmp_path / "data", second, tmp_path / "out", "t")
    assert report.not_kept == ()
    imported(tmp_path / "new", second, tmp_path / "out", "t")
    after = [(record.timestamp_us, record.value) for record in records(tmp_path / "new", "t")]
    assert after == before
    assert any(time % 1000 for time, _ in after)
