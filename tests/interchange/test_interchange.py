"""Topics from and to the directories of other systems: what is kept, what is not, all or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from formats.readers import read_frame, read_kimberlite, read_laminarmq, read_rafka, read_rustlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.producing import Sent
from support.transactions import committed_records, end_transaction, send_in_transaction

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk.posix import PosixFiles
from cordwood.errors import (
    CordwoodError,
    DirectoryRefused,
    FrameError,
    FrameTooLarge,
    InvalidBatch,
    RecordRefused,
    TopicExists,
    UnknownTopic,
)
from cordwood.formats import batch
from cordwood.formats.compression import Compression
from cordwood.formats.per_record import frame, kimberlite, laminarmq, rustlog
from cordwood.formats.shared import rafka
from cordwood.formats.shared.topic_hashing import topic_hash
from cordwood.interchange.exporting import EXPORT_SYSTEMS, ExportReport, ExportTarget, export_topic
from cordwood.interchange.importing import ImportReport, ImportSource, import_topic
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.readonly.directory import ReadOnlyDirectory
from cordwood.verify import verify_directory

FILES = PosixFiles()
every_system = pytest.mark.parametrize("system", EXPORT_SYSTEMS)
NOW = 1_900_000_000_000
_unique = count()


def exported(data: Path, system: str, target: Path, topic: str = "t", **given: Any) -> ExportReport:
    directory = ReadOnlyDirectory(FILES, str(data), load_broker_config()[0])
    try:
        wanted = ExportTarget(system, str(target), **given)
        return export_topic(FILES, directory, topic, wanted, unique=str(next(_unique)))
    finally:
        directory.close()


def imported(
    data: Path,
    system: str,
    source: Path,
    topic: str = "t",
    tenant: int | None = None,
    files: PosixFiles = FILES,
    **config: str,
) -> ImportReport:
    directory = DataDirectory(Opening(files, str(data), load_broker_config()[0]))
    try:
        return import_topic(
            files,
            directory,
            ImportSource(system, str(source), tenant),
            topic,
            unique=str(next(_unique)),
            now_ms=NOW,
            config={key.replace("_", "."): value for key, value in config.items()},
        )
    finally:
        directory.close()


def records(data: Path, topic: str = "t") -> dict[int, list[Record]]:
    with cordwood.open(data, read_only=True) as log:
        found = log.topic(topic)
        return {number: list(found.read(number)) for number in range(found.partitions)}


def filled(data: Path) -> dict[int, list[Record]]:
    """Two partitions in several segments, with whatever a record can have."""
    with cordwood.open(data) as log:
        topic = log.topic("t", partitions=2)
        for number in range(2):
            for i in range(40):
                headers = [("trace", b"%d" % i)] if i % 3 == 0 else []
                key = None if i % 5 == 0 else b"" if i % 5 == 1 else b"k%d" % (i % 7)
                value = None if i == 17 else bytes(i * 100)
                topic.append(value, key=key, headers=headers, partition=number, timestamp=1_000 + i)
                if i == 20:
                    topic.roll(number)
    return records(data)


def as_kept(system: str, record: Record, number: int) -> Record:
    """Return what a system can hold of a record."""
    if system == "kafka":
        return record
    holds_keys = system in ("laminarmq", "frame")
    null = system in ("kimberlite", "laminarmq", "frame")
    return Record(
        number if system == "rafka" else record.offset,
        NOW if system == "rafka" else record.timestamp,
        record.key if holds_keys else None,
        record.value if null or record.value is not None else b"",
        record.headers if system == "laminarmq" else (),
    )


@every_system
def test_what_goes_out_comes_back_as_far_as_the_system_can_hold_it(system: str, tmp_path: Path) -> None:
    before = filled(tmp_path / "data")
    report = exported(tmp_path / "data", system, tmp_path / "out", segment_bytes=20_000)
    assert report.records == 80
    assert report.offsets == ((0, 40), (0, 40))
    back = imported(tmp_path / "new", system, tmp_path / "out")
    assert back.records == 80
    expected = {
        number: [as_kept(system, record, i) for i, record in enumerate(rows)]
        for number, rows in before.items()
    }
    assert records(tmp_path / "new") == expected
    named = " ".join(report.not_kept)
    for what, holds in (
        ("keys", system in ("laminarmq", "frame", "kafka")),
        ("headers", system in ("laminarmq", "kafka")),
        ("nulls", system in ("kimberlite", "laminarmq", "frame", "kafka")),
    ):
        assert (what in named) == (not holds), (what, report.not_kept)
    print(f"80 records out to {system} and back, in {len(list((tmp_path / 'out').rglob('*.*')))} files")


@pytest.mark.parametrize("format_", ["rustlog", "kimberlite", "laminarmq", "frame"])
def test_a_topic_in_any_format_can_be_exported(format_: str, tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t", config={"cordwood.format": format_})
        topic.append_many([(None, b"%d" % i * i, (), 1_000 + i) for i in range(30)])
        topic.advance_log_start(0, 5)
    before = records(tmp_path / "data")
    assert len(before[0]) == 25
    for system in ("kafka", format_):
        report = exported(tmp_path / "data", system, tmp_path / system)
        assert (report.records, report.not_kept) == (25, ())
        imported(tmp_path / "new", system, tmp_path / system, topic=f"from-{system}")
        assert records(tmp_path / "new", f"from-{system}") == before


def read_by_another(system: str, out: Path) -> dict[int, list[bytes | None]]:
    """Return the values that the stand-alone readers find."""
    if system == "rafka":
        found: dict[int, list[bytes | None]] = {}
        for each in read_rafka.records(out):
            found.setdefault(int(each["key"].rpartition("-")[2]), []).append(each["bytes"])
        return found
    readers: dict[str, Callable[[Path], Iterator[Any]]] = {
        "rustlog": lambda part: (
            each for path in sorted(part.glob("*.log")) for each in read_rustlog.records(path.read_bytes())
        ),
        "frame": lambda part: (
            each
            for path in sorted(part.glob("segments/*.log"))
            for each in read_frame.records(path.read_bytes())
        ),
        "kimberlite": lambda part: read_kimberlite.records(
            [path.read_bytes() for path in sorted(part.glob("log/*.segment"))]
        ),
        "laminarmq": lambda part: (
            each
            for path in sorted(part.glob("*.store"), key=lambda path: int(path.stem))
            for each in read_laminarmq.records(path.read_bytes(), path.with_suffix(".index").read_bytes())
        ),
    }
    root = out / "partitions" if system == "rustlog" else out
    return {int(part.name): [each["value"] for each in readers[system](part)] for part in root.iterdir()}


@pytest.mark.parametrize("system", [system for system in EXPORT_SYSTEMS if system != "kafka"])
def test_what_we_export_another_reader_reads(system: str, tmp_path: Path) -> None:
    before = filled(tmp_path / "data")
    exported(tmp_path / "data", system, tmp_path / "out", segment_bytes=20_000)
    tombstone = None if system in ("frame", "laminarmq") else b""
    expected = {
        number: [tombstone if record.value is None else record.value for record in rows]
        for number, rows in before.items()
    }
    assert read_by_another(system, tmp_path / "out") == expected


def test_files_have_the_names_of_each_system(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    names = {}
    for system in EXPORT_SYSTEMS:
        exported(tmp_path / "data", system, tmp_path / system, segment_bytes=50_000)
        found = {str(path.relative_to(tmp_path / system)) for path in (tmp_path / system).rglob("*.*")}
        names[system] = found
    first = f"{0:020d}"
    assert {f"partitions/0/{first}.log", f"partitions/1/{first}.index"} <= names["rustlog"]
    assert {"0/log/00000000.segment", "1/log/index.meta"} <= names["kimberlite"]
    assert {"0/0.store", "1/0.index"} <= names["laminarmq"]
    assert {"0.log", "0.oidx", "1.log"} <= names["rafka"]
    assert {f"0/segments/{first}.log", f"1/segments/{first}.idx", f"0/segments/{first}.timeidx"} <= names[
        "frame"
    ]
    assert {f"t-0/{first}.log", f"t-1/{first}.index", f"t-0/{first}.timeindex"} <= names["kafka"]


def test_indexes_lead_to_the_records_they_name(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t")
        for start in range(0, 450, 50):
            topic.append_many([(None, b"%d" % i, (), i) for i in range(start, start + 50)])
    exported(tmp_path / "data", "rustlog", tmp_path / "rustlog")
    part = tmp_path / "rustlog" / "partitions" / "0"
    log_bytes = (part / f"{0:020d}.log").read_bytes()
    entries = read_rustlog.index((part / f"{0:020d}.index").read_bytes())
    assert [offset for offset, _ in entries] == [0, 100, 200, 300, 400]
    for offset, position in entries:
        assert rustlog.parse_record(log_bytes, position).offset == offset
    exported(tmp_path / "data", "frame", tmp_path / "frame")
    part = tmp_path / "frame" / "0" / "segments"
    log_bytes = (part / f"{0:020d}.log").read_bytes()
    for offset, position in read_rustlog.index((part / f"{0:020d}.idx").read_bytes()):
        assert frame.parse_record(log_bytes, position).offset == offset


def test_offsets_keep_their_start_and_their_gaps(tmp_path: Path) -> None:
    """A partition that was compacted and begins late comes back with the offsets that are left."""
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t", partitions=2, config={"cleanup.policy": "compact", "segment.bytes": "1024"})
        for i in range(60):
            topic.append(b"v%d" % i, key=b"k%d" % (i if i % 7 == 0 else i % 4), partition=0)
        topic.append(b"only", key=b"k", partition=1)
        topic.roll(0)
        log.maintain(force=True)
        topic.advance_log_start(0, 5)
    before = records(tmp_path / "data")
    offsets = [record.offset for record in before[0]]
    assert 0 < len(offsets) < 60
    for system in ("kafka", "rustlog", "frame", "kimberlite"):
        exported(tmp_path / "data", system, tmp_path / system)
        made = imported(tmp_path / "new", system, tmp_path / system, topic=system)
        assert [each.start_offset for each in made.partitions] == [offsets[0], 0]
        with cordwood.open(tmp_path / "new", read_only=True) as log:
            assert [log.topic(system).log_start_offset(number) for number in range(2)] == [offsets[0], 0]
        back = records(tmp_path / "new", system)
        assert [record.offset for record in back[0]] == offsets, system
        assert [record.value for record in back[1]] == [b"only"]
    report = exported(tmp_path / "data", "laminarmq", tmp_path / "laminarmq")
    assert any("moved up" in line for line in report.not_kept)
    assert verified(tmp_path / "new")


def verified(data: Path) -> bool:
    report = verify_directory(FILES, str(data))
    return not report.findings


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    gaps=st.lists(st.integers(0, 3) | st.just(2**31 + 5), min_size=1, max_size=8),
    start=st.integers(0, 2**40),
)
def test_any_offsets_can_be_imported(gaps: list[int], start: int, tmp_path: Path) -> None:
    place = tmp_path / str(next(_unique))
    part = place / "source"
    part.mkdir(parents=True)
    offsets, data, offset = [], b"", start
    for gap in gaps:
        offset += gap
        offsets.append(offset)
        data += rustlog.encode_record(offset, 1_000 + offset % 1_000, b"%d" % offset)
        offset += 1
    (part / f"{offsets[0]:020d}.log").write_bytes(data)
    report = imported(place / "data", "rustlog", part)
    assert report.partitions[0].start_offset == offsets[0]
    assert [record.offset for record in records(place / "data")[0]] == offsets
    with cordwood.open(place / "data") as log:
        assert log.topic("t").append(b"next").offset == offset


# --- refused, and what is left then ---------------------------------------------------------------------


def small(system: str, place: Path) -> list[Path]:
    """Make a small directory of *system* by hand; return its data files."""
    place.mkdir(parents=True)
    if system == "rustlog":
        files = {
            "00000000000000000000.log": b"".join(rustlog.encode_record(i, 1 + i, b"abc") for i in range(3))
        }
    elif system == "frame":
        files = {
            "00000000000000000000.log": b"".join(frame.encode_record(i, i, b"k", b"abc") for i in range(3))
        }
    elif system == "kimberlite":
        data, previous = b"", kimberlite.NO_HASH
        for i in range(3):
            data += (one := kimberlite.encode_record(i, i * 1_000, b"abc", previous))
            previous = hashlib.sha256(one).digest()
        files = {"00000000.segment": data}
    elif system == "laminarmq":
        store, index = b"", laminarmq.BASE_MARKER.pack(0, 0)
        for i in range(3):
            index += laminarmq.index_record(one := laminarmq.encode_record(i, None, b"abc"), len(store))
            store += one
        files = {"0.store": store, "0.index": index}
    elif system == "rafka":
        entries = [rafka.OffsetIndexEntry(0, 4 + 7 * i, 3, 0, topic_hash(0, "t"), 0) for i in range(3)]
        files = {
            "0.log": rafka.encode_record(b"abc") * 3,
            "0.oidx": b"".join(map(rafka.encode_entry, entries)),
        }
    else:
        options = [batch.BatchOptions(base_offset=i) for i in range(3)]
        frames = [batch.encode_records([(None, b"abc")], 5, each) for each in options]
        files = {"00000000000000000000.log": b"".join(frames)}
    for name, content in files.items():
        (place / name).write_bytes(content)
    return [place / name for name in files]


@every_system
def test_a_directory_is_taken_as_it_is_whoever_made_it(system: str, tmp_path: Path) -> None:
    small(system, tmp_path / "source")
    report = imported(tmp_path / "data", system, tmp_path / "source")
    assert report.partitions[0].records == 3
    assert [record.value for record in records(tmp_path / "data")[0]] == [b"abc"] * 3


@every_system
def test_a_damaged_source_is_refused_with_its_place_and_nothing_is_made(system: str, tmp_path: Path) -> None:
    path = small(system, tmp_path / "source")[0]
    data = bytearray(path.read_bytes())
    at = {"rustlog": 30, "rafka": 7}.get(system, len(data) // 2)
    data[at] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(FrameError, match=str(path)):
        imported(tmp_path / "data", system, tmp_path / "source")
    nothing_is_left(tmp_path / "data")


def nothing_is_left(data: Path) -> None:
    with cordwood.open(data) as log:
        assert log.topics == []
    assert not list((data / "tmp").glob("import-*"))
    assert not (data / "topics").exists() or not list((data / "topics").iterdir())


@pytest.mark.parametrize("system", [system for system in EXPORT_SYSTEMS if system != "rafka"])
def test_a_torn_tail_is_left_out_and_said(system: str, tmp_path: Path) -> None:
    """The last write of whoever made it may not be whole; every other record is taken."""
    path = small(system, tmp_path / "source")[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    report = imported(tmp_path / "data", system, tmp_path / "source")
    assert report.partitions[0].records == 2
    assert any("not whole" in line for line in report.not_kept)
    # … but not where another segment follows.
    shutil.rmtree(tmp_path / "source")
    path = small(system, tmp_path / "source")[0]
    path.write_bytes(whole[:-1])
    follower = "00000001.segment" if system == "kimberlite" else f"3{path.suffix}"
    (path.parent / follower).write_bytes(b"")
    if system == "laminarmq":
        (path.parent / "3.index").write_bytes(laminarmq.BASE_MARKER.pack(3, 0))
    with pytest.raises(FrameError):
        imported(tmp_path / "other", system, tmp_path / "source")
    nothing_is_left(tmp_path / "other")


@pytest.mark.parametrize("system", [system for system in EXPORT_SYSTEMS if system != "laminarmq"])
def test_zeros_after_the_last_record_are_none(system: str, tmp_path: Path) -> None:
    """Preallocation leaves them, and so does a crash."""
    for path in small(system, tmp_path / "source"):
        path.write_bytes(path.read_bytes() + bytes(3 << 20))
    report = imported(tmp_path / "data", system, tmp_path / "source")
    assert report.partitions[0].records == 3
    assert not any("whole" in line for line in report.not_kept)


@every_system
def test_what_is_no_directory_of_the_system_is_refused(system: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source in ("empty", "nowhere"):
        with pytest.raises(DirectoryRefused, match=source):
            imported(tmp_path / "data", system, tmp_path / source)
    nothing_is_left(tmp_path / "data")


def test_an_import_never_goes_into_a_topic_that_is_there(tmp_path: Path) -> None:
    small("rustlog", tmp_path / "source")
    imported(tmp_path / "data", "rustlog", tmp_path / "source")
    with pytest.raises(TopicExists):
        imported(tmp_path / "data", "rustlog", tmp_path / "source")
    assert len(records(tmp_path / "data")[0]) == 3


def test_an_import_under_a_colliding_name_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders.eu")
    small("rustlog", tmp_path / "source")
    with pytest.raises(RecordRefused, match="collides with existing topic"):
        imported(data, "rustlog", tmp_path / "source", "orders_eu")
    assert not list((data / "tmp").glob("import-*"))


def test_an_import_that_fails_halfway_leaves_no_topic(tmp_path: Path) -> None:
    """A record in the last partition is too large, when those before have been read already."""
    for number in range(3):
        part = tmp_path / "source" / str(number)
        part.mkdir(parents=True)
        size = 5_000 if number == 2 else 10
        (part / f"{0:020d}.log").write_bytes(rustlog.encode_record(0, 1, bytes(size)))
    with pytest.raises(FrameTooLarge, match="record 0"):
        imported(tmp_path / "data", "rustlog", tmp_path / "source", max_message_bytes="2000")
    nothing_is_left(tmp_path / "data")


class Killing(PosixFiles):
    """Ends the process, as a kill does, where the log is about to take a file over."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def rename(self, source: str, target: str) -> None:
        if source.endswith(".frames"):
            self.left -= 1
            if self.left < 0:
                os._exit(9)
        super().rename(source, target)


def test_an_import_that_was_killed_begins_again(tmp_path: Path) -> None:
    """Wherever it was killed, the next one leaves a topic that is whole, and each record in it once."""
    for number in range(3):
        part = tmp_path / "source" / str(number)
        part.mkdir(parents=True)
        (part / f"{0:020d}.log").write_bytes(rustlog.encode_record(0, 1, b"%d" % number))
    killed = 0
    for left in range(4):
        data = tmp_path / f"data-{left}"
        child = os.fork()
        if child == 0:
            imported(data, "rustlog", tmp_path / "source", files=Killing(left))
            os._exit(0)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        if left < 3:
            imported(data, "rustlog", tmp_path / "source")
        assert {number: [each.value for each in rows] for number, rows in records(data).items()} == {
            0: [b"0"],
            1: [b"1"],
            2: [b"2"],
        }
        with pytest.raises(TopicExists):
            imported(data, "rustlog", tmp_path / "source")
        assert not list((data / "tmp").glob("import-*"))
        assert verified(data)
    assert killed == 3
    print(f"{killed} imports killed, each begun again")


class KilledAtTheEnd(PosixFiles):
    """Ends the process where the import is complete and its note is about to go."""

    def unlink(self, path: str) -> None:
        if os.path.basename(path).startswith("import-"):
            os._exit(9)
        super().unlink(path)


@pytest.mark.parametrize("files", [Killing(0), KilledAtTheEnd(), PosixFiles()], ids=["early", "late", "not"])
def test_records_appended_after_a_killed_import_are_never_removed_by_another(
    tmp_path: Path, files: PosixFiles
) -> None:
    """D1. The next open removes what a killed import left, before anyone can append to it."""
    part = tmp_path / "source" / "0"
    part.mkdir(parents=True)
    (part / f"{0:020d}.log").write_bytes(rustlog.encode_record(0, 1, b"imported"))
    data = tmp_path / "data"
    child = os.fork()
    if child == 0:
        imported(data, "rustlog", tmp_path / "source", files=files)
        os._exit(0)
    whole = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with cordwood.open(data) as log:
        assert ("t" in log) == whole
        log.topic("t").append(b"acknowledged")
    assert not list((data / "tmp").glob("import-*"))
    with pytest.raises(TopicExists):
        imported(data, "rustlog", tmp_path / "source")
    with cordwood.open(data, read_only=True) as log:
        assert [record.value for record in log.topic("t").read()][-1] == b"acknowledged"


def test_a_note_of_an_import_that_cannot_be_read_removes_nothing(tmp_path: Path) -> None:
    """R6: metadata that cannot be read is not empty, and here says nothing of any topic."""
    with cordwood.open(tmp_path) as log:
        log.topic("t").append(b"kept")
    (tmp_path / "tmp").mkdir(exist_ok=True)
    (tmp_path / "tmp" / "import-x.json").write_text('{"topics": {"t": "?"}}')
    with cordwood.open(tmp_path) as log:
        assert [record.value for record in log.topic("t").read()] == [b"kept"]
    assert (tmp_path / "tmp" / "import-x.json").exists()


def test_an_export_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    (tmp_path / "taken").mkdir()
    with pytest.raises(DirectoryRefused, match="exists already"):
        exported(tmp_path / "data", "rustlog", tmp_path / "taken")
    with pytest.raises(UnknownTopic):
        exported(tmp_path / "data", "rustlog", tmp_path / "out", topic="nothing")
    segment = tmp_path / "data" / "topics" / "t" / "1" / "segments" / f"{0:020d}.log"
    damaged = bytearray(segment.read_bytes())
    damaged[5_000] ^= 1
    segment.write_bytes(damaged)
    for system in EXPORT_SYSTEMS:
        with pytest.raises(CordwoodError, match=str(segment)):
            exported(tmp_path / "data", system, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "taken"}


# --- what only one of them has ----------------------------------------------------------------------------


def test_microseconds_are_floored_and_said(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    data = rustlog.encode_record(0, 1_999, b"") + rustlog.encode_record(1, 2_000, b"")
    (tmp_path / "source" / f"{0:020d}.log").write_bytes(data)
    report = imported(tmp_path / "data", "rustlog", tmp_path / "source")
    assert [record.timestamp for record in records(tmp_path / "data")[0]] == [1, 2]
    assert report.not_kept == ("microseconds of timestamps: 1",)


def test_a_broken_chain_is_refused_with_both_hashes(tmp_path: Path) -> None:
    first = kimberlite.encode_record(0, 0, b"a", kimberlite.NO_HASH)
    second = kimberlite.encode_record(1, 0, b"b", bytes(range(32)))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "00000000.segment").write_bytes(first + second)
    with pytest.raises(InvalidBatch) as caught:
        imported(tmp_path / "data", "kimberlite", tmp_path / "source")
    assert caught.value.expected == hashlib.sha256(first).hexdigest()
    assert caught.value.found == bytes(range(32)).hex()


def test_streams_of_one_chain_become_partitions_and_tenants_are_kept_apart(tmp_path: Path) -> None:
    data, previous = b"", kimberlite.NO_HASH
    for position, (tenant, stream) in enumerate([(1, 0), (1, 2), (2, 0), (1, 0)]):
        one = kimberlite.encode_record(
            position, 0, b"%d" % position, previous, tenant=tenant, stream=stream, event_type=position == 3
        )
        data, previous = data + one, hashlib.sha256(one).digest()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "00000000.segment").write_bytes(data + bytes(4096))
    with pytest.raises(DirectoryRefused, match="tenants 1, 2"):
        imported(tmp_path / "data", "kimberlite", tmp_path)
    report = imported(tmp_path / "data", "kimberlite", tmp_path, tenant=1)
    found = records(tmp_path / "data")
    assert [(record.offset, record.value) for record in found[0]] == [(0, b"0"), (3, b"3")]
    assert [(record.offset, record.value) for record in found[2]] == [(1, b"1")]
    assert found[1] == []
    assert [record.headers for record in found[0]] == [(), (("cordwood.event_type", b"1"),)]
    assert report.not_kept == ()


def test_a_kimberlite_directory_says_the_hash_of_each_segment(tmp_path: Path) -> None:
    filled(tmp_path / "data")
    exported(tmp_path / "data", "kimberlite", tmp_path / "out", segment_bytes=1_000)
    place = tmp_path / "out" / "0" / "log"
    listed = [json.loads(line) for line in (place / "index.meta").read_text().splitlines()]
    assert len(listed) > 1
    for each in listed:
        data = (place / f"{each['segment']:08d}.segment").read_bytes()
        assert (each["size"], each["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_topic_is_found_in_a_shared_log_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    keys = [(1, "orders"), (2, "orders"), (1, "clicks"), (1, "orders")]
    entries = [
        rafka.OffsetIndexEntry(0, 4 + 5 * i, 1, org, topic_hash(org, name), 0)
        for i, (org, name) in enumerate(keys)
    ]
    (tmp_path / "source" / "0.log").write_bytes(b"".join(rafka.encode_record(b"%d" % i) for i in range(4)))
    (tmp_path / "source" / "0.oidx").write_bytes(b"".join(map(rafka.encode_entry, entries)))
    imported(tmp_path / "data", "rafka", tmp_path / "source", topic="orders", tenant=1)
    assert [record.value for record in records(tmp_path / "data", "orders")[0]] == [b"0", b"3"]
    with pytest.raises(DirectoryRefused, match="orders is not the name"):
        imported(tmp_path / "other", "rafka", tmp_path / "source", topic="orders")
    with pytest.raises(DirectoryRefused, match="payments is not the name"):
        imported(tmp_path / "other", "rafka", tmp_path / "source", topic="payments", tenant=1)


# --- Apache Kafka -----------------------------------------------------------------------------------------

CONTROL = batch.CONTROL | batch.TRANSACTIONAL


def transactional(base: int, producer: int, value: bytes) -> bytes:
    options = batch.BatchOptions(
        base_offset=base,
        leader_epoch=3,
        attributes=batch.TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
    )
    return bytes(batch.encode_records([(None, value)], 10, options))


def marker(base: int, producer: int, *, commit: bool) -> bytes:
    options = batch.BatchOptions(
        base_offset=base, attributes=CONTROL, leader_epoch=3, producer_id=producer, producer_epoch=0
    )
    key = (0).to_bytes(2, "big") + int(commit).to_bytes(2, "big")
    return bytes(batch.encode_records([(key, bytes(6))], 10, options))


def test_only_what_was_committed_is_taken_of_transactions(tmp_path: Path) -> None:
    part = tmp_path / "kafka" / "t-0"
    part.mkdir(parents=True)
    (part / f"{0:020d}.log").write_bytes(
        transactional(0, 1, b"committed")
        + transactional(1, 2, b"aborted")
        + marker(2, 2, commit=False)
        + marker(3, 1, commit=True)
        + transactional(4, 2, b"open")
        + bytes(batch.encode_records([(b"k", b"plain")], 11, batch.BatchOptions(5, 3)))
    )
    report = imported(tmp_path / "data", "kafka", tmp_path / "kafka")
    found = records(tmp_path / "data")[0]
    assert [(record.offset, record.value) for record in found] == [(0, b"committed"), (5, b"plain")]
    assert set(report.not_kept) == {
        "batches of transactions that were aborted: 1",
        "batches of transactions that never ended: 1",
        "batches' producer ids and sequences: 1",
    }
    assert verified(tmp_path / "data")


def with_transactions(path: Path) -> list[tuple[int, bytes]]:
    """Write a topic with transactions, the last of them open; return its committed records."""
    directory = DataDirectory(Opening(FILES, str(path), load_broker_config()[0]))
    directory.topics.create("t", "id-1", 1, {"segment.bytes": "500"})
    log = directory.partitions.own("t", 0)
    for number in range(6):
        send_in_transaction(log, Sent(1, 0, 2 * number, (b"a%d" % number, b"A%d" % number)))
        log.append([(b"k", b"plain %d" % number)])
        end_transaction(log, 1, committed=number % 2 == 0)
    send_in_transaction(log, Sent(1, 0, 12, (b"open",)))
    log.append([(b"k", b"after")])
    log.commit()
    found = [(record.offset, record.value or b"") for record in committed_records(log)]
    directory.close()
    return found


def test_transactions_go_out_to_kafka_with_an_index_of_the_aborted_ones(tmp_path: Path) -> None:
    """Frames, markers and `.txnindex` are what a broker has, up to the first open transaction."""
    committed = with_transactions(tmp_path / "data")
    report = exported(tmp_path / "data", "kafka", tmp_path / "out")
    assert report.not_kept == ("offsets from the first open transaction on: 2",)
    aborted, marked = [], []
    for path in sorted((tmp_path / "out" / "t-0").glob("*.log")):
        data = path.read_bytes()
        bases = [header.base_offset for header in batch.scan(data).headers() if header.is_control]
        index = path.with_suffix(".txnindex")
        entries = list(struct.iter_unpack(">hqqqq", index.read_bytes())) if index.exists() else []
        assert {entry[3] for entry in entries} <= set(bases), "an entry is beside its marker"
        aborted += [entry[1:] for entry in entries]
        marked += bases
    assert aborted == [(1, 4 * n, 4 * n + 3, 4 * n + 4) for n in (1, 3, 5)]
    assert len(marked) == 6
    # And back: what was committed is the same.
    imported(tmp_path / "again", "kafka", tmp_path / "out")
    assert [(each.offset, each.value) for each in records(tmp_path / "again")[0]] == committed
    assert verified(tmp_path / "again")


@pytest.mark.parametrize("system", ["rustlog", "frame", "laminarmq", "rafka"])
def test_only_what_was_committed_goes_out_to_systems_without_transactions(
    tmp_path: Path, system: str
) -> None:
    committed = with_transactions(tmp_path / "data")
    report = exported(tmp_path / "data", system, tmp_path / "out")
    assert report.records == len(committed)
    assert "offsets from the first open transaction on: 2" in report.not_kept
    imported(tmp_path / "again", system, tmp_path / "out")
    assert [each.value for each in records(tmp_path / "again")[0]] == [value for _, value in committed]


def test_a_batch_of_a_transaction_that_the_log_start_cuts_stays_in_it(tmp_path: Path) -> None:
    """Without its producer, an aborted record would come out as a committed one."""
    with_transactions(tmp_path / "data")
    directory = DataDirectory(Opening(FILES, str(tmp_path / "data"), load_broker_config()[0]))
    log = directory.partitions.own("t", 0)
    log.advance_log_start(5)
    expected = [record.value for record in committed_records(log)]
    directory.close()
    exported(tmp_path / "data", "kafka", tmp_path / "out")
    imported(tmp_path / "again", "kafka", tmp_path / "out")
    assert [each.value for each in records(tmp_path / "again")[0]] == expected


def test_batches_of_kafka_come_in_and_go_out_byte_for_byte(tmp_path: Path) -> None:
    part = tmp_path / "kafka" / "t-0"
    part.mkdir(parents=True)
    compressed = batch.BatchOptions(
        base_offset=7, leader_epoch=0, compression=Compression.ZSTD, attributes=batch.LOG_APPEND_TIME
    )
    frames = bytes(batch.encode_records([(b"k", bytes(500)), (None, None)], 99, compressed))
    frames += bytes(batch.encode_records([(b"", b"v", [("h", None)], -1)], 0, batch.BatchOptions(9, 0)))
    (part / f"{7:020d}.log").write_bytes(frames)
    imported(tmp_path / "data", "kafka", tmp_path / "kafka")
    exported(tmp_path / "data", "kafka", tmp_path / "out")
    assert (tmp_path / "out" / "t-0" / f"{7:020d}.log").read_bytes() == frames


def test_records_below_the_log_start_that_kafka_wrote_down_stay_out(tmp_path: Path) -> None:
    part = tmp_path / "kafka" / "t-0"
    part.mkdir(parents=True)
    rows = [(None, b"%d" % i) for i in range(5)]
    (part / f"{0:020d}.log").write_bytes(bytes(batch.encode_records(rows, 1)))
    (tmp_path / "kafka" / "log-start-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    report = imported(tmp_path / "data", "kafka", tmp_path / "kafka")
    assert report.partitions[0].start_offset == 3
    assert [record.value for record in records(tmp_path / "data")[0]] == [b"3", b"4"]


def test_the_right_topic_of_a_broker_is_taken(tmp_path: Path) -> None:
    for name in ("a-0", "b-0", "b-1", "other-x"):
        (tmp_path / "kafka" / name).mkdir(parents=True)
        data = bytes(batch.encode_records([(None, name.encode())], 1))
        (tmp_path / "kafka" / name / f"{0:020d}.log").write_bytes(data)
    imported(tmp_path / "data", "kafka", tmp_path / "kafka", topic="b")
    found = records(tmp_path / "data", "b")
    assert {number: rows[0].value for number, rows in found.items()} == {0: b"b-0", 1: b"b-1"}
    with pytest.raises(DirectoryRefused, match="topics a, b, and c is none"):
        imported(tmp_path / "data", "kafka", tmp_path / "kafka", topic="c")


def test_indexes_for_kafka_are_those_a_broker_would_have_written(tmp_path: Path) -> None:
    """An entry in each for the first batch after more than 4 KiB: its last offset and position, relative."""
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t", config={"cordwood.initial.offset": "100"})
        for i in range(30):
            topic.append_many([(None, bytes(900), (), 10 * i), (None, b"", (), 10 * i + 1)])
    exported(tmp_path / "data", "kafka", tmp_path / "out")
    part = tmp_path / "out" / "t-0"
    data = (part / f"{100:020d}.log").read_bytes()
    headers = list(batch.scan(data).headers())
    index, times, since, largest = b"", b"", 0, -1
    for header in headers:
        if since > 4096:
            index += (header.next_offset - 1 - 100).to_bytes(4, "big") + header.position.to_bytes(4, "big")
            times += header.max_timestamp.to_bytes(8, "big") + (header.next_offset - 101).to_bytes(4, "big")
            since, largest = 0, header.max_timestamp
        since += header.size
    last = headers[-1]
    if last.max_timestamp > largest:
        times += last.max_timestamp.to_bytes(8, "big") + (last.next_offset - 101).to_bytes(4, "big")
    assert (part / f"{100:020d}.index").read_bytes() == index
    assert (part / f"{100:020d}.timeindex").read_bytes() == times
    assert len(index) >= 5 * 8
    assert (part / "leader-epoch-checkpoint").read_text() == "0\n1\n0 100\n"


# --- sources with records missing ----------------------------------------------------------------------


def exported_numbers(tmp_path: Path, system: str) -> Path:
    """Return a directory of *system* with two hundred records."""
    data, out = tmp_path / "from", tmp_path / system
    with cordwood.open(data) as log:
        log.topic("t").append_many([(None, b"%d" % number) for number in range(200)], partition=0)
    exported(data, system, out)
    return out


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def test_an_index_of_rafka_that_ends_within_an_entry_is_refused_with_its_place(tmp_path: Path) -> None:
    out = exported_numbers(tmp_path, "rafka")
    index = out / "0.oidx"
    cut(index, 133 * 40 + 12)
    with pytest.raises(FrameError, match="whole entry") as refused:
        imported(tmp_path / "data", "rafka", out)
    assert (refused.value.path, refused.value.position) == (str(index), 133 * 40)
    cut(index, 133 * 40)
    report = imported(tmp_path / "data", "rafka", out)
    assert any("no entry of its index names" in line for line in report.not_kept)


def test_a_store_of_laminarmq_shorter_than_its_index_says_is_refused(tmp_path: Path) -> None:
    """One record may be cut off at the end; more than one is missing."""
    out = exported_numbers(tmp_path, "laminarmq")
    (store,) = out.rglob("*.store")
    cut(store, store.stat().st_size * 2 // 3)
    with pytest.raises(FrameError):
        imported(tmp_path / "data", "laminarmq", out)


def test_segments_of_kimberlite_are_compared_with_index_meta(tmp_path: Path) -> None:
    """A chain that ends early is sound in itself."""
    out = exported_numbers(tmp_path, "kimberlite")
    (segment,) = out.rglob("*.segment")
    (meta,) = out.rglob("index.meta")
    whole = segment.read_bytes()
    length = 8 + 32 + 40 + 1
    assert len(whole) > 10 * length
    segment.write_bytes(whole[: 10 * length])
    with pytest.raises(FrameError, match="bytes"):
        imported(tmp_path / "data", "kimberlite", out)
    segment.write_bytes(whole)
    meta.write_text("something else\n")
    report = imported(tmp_path / "data", "kimberlite", out)
    assert any("index.meta" in line for line in report.not_kept)


def test_an_imported_topic_has_leaves_once_the_directory_is_closed(tmp_path: Path) -> None:
    """I1: an edit of a record that was only ever imported is found."""
    out = exported_numbers(tmp_path, "rustlog")
    imported(tmp_path / "data", "rustlog", out)
    report = verify_directory(FILES, str(tmp_path / "data"))
    assert report.frames_compared > 0
    assert report.sound


def test_files_of_a_killed_import_are_a_note(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        log.topic("t").append(b"kept")
    (tmp_path / "tmp" / "import-0123.deleted").mkdir(parents=True)
    report = verify_directory(FILES, str(tmp_path))
    assert report.sound
    assert [finding.what for finding in report.findings] == ["import that was killed"]


@every_system
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_a_pipe_in_a_foreign_directory_is_not_read(tmp_path: Path, system: str, kind: str) -> None:
    """A link leads to what its maker may not read, and a pipe holds the import up for ever."""
    with cordwood.open(tmp_path / "data") as log:
        topic = log.create_topic("t", partitions=2)
        for number in range(4):
            topic.append(b"v", key=b"k", partition=number % 2)
    exported(tmp_path / "data", system, tmp_path / "whole")
    places = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*")]
    tried = 0
    for number, place in enumerate(places):
        source, apart = tmp_path / f"source-{number}", tmp_path / f"apart-{number}"
        shutil.copytree(tmp_path / "whole", source)
        path = source / place
        if kind == "pipe" and path.is_dir():
            continue
        path.rename(apart)
        if kind == "link":
            path.symlink_to(apart)
        else:
            os.mkfifo(path)
        with pytest.raises(DirectoryRefused, match=f"{place.name} is neither a file nor a directory"):
            imported(tmp_path / f"data-{number}", system, source)
        tried += 1
    assert tried >= 2
