"""Snapshots of derived state: replay from the nearest one gives what replay from the start gives."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.publishing import kill

import cordwood
from cordwood import Replayed, replay
from cordwood.disk import read_file, write_atomically
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.embedded import Log, Topic
from cordwood.errors import OffsetOutOfRange
from cordwood.integrity import merkle
from cordwood.records import Record
from cordwood.storage.chain import frames_of, kept_chain
from cordwood.storage.directory import AnchorKind
from cordwood.storage.meta import partition_directory
from cordwood.verify import verify_directory

State = dict[str, int]


def fold(state: State, record: Record) -> State:
    """A projection whose result depends on the order of records, so that a wrong start shows."""
    key = (record.key or b"").decode()
    return state | {key: state.get(key, 0) * 31 + len(record.value or b"") + record.offset}


def encode(state: State) -> bytes:
    return json.dumps(state).encode()


def replayed(topic: Topic, end: int | None = None, save_every: int | None = None) -> Replayed[State]:
    return replay(
        topic,
        fold,
        dict[str, int](),
        encode=encode,
        decode=json.loads,
        end_offset=end,
        save_every=save_every,
    )


def from_the_start(topic: Topic, end: int | None = None) -> State:
    state: State = {}
    for record in topic.read(0, None, end):
        state = fold(state, record)
    return state


def filled(log: Log, format_: str = "batch") -> Topic:
    topic = log.topic("t", config={"cordwood.format": format_})
    for i in range(20):
        topic.append(b"x" * (i % 7), key=b"k%d" % (i % 3) if format_ == "batch" else None, timestamp=i)
    return topic


def damage(files: MemoryFiles, path: str, at: int, bit: int) -> None:
    file = files.open(path, "write")
    byte = file.read_at(at, 1)[0] ^ (1 << bit)
    file.write_at(at, [bytes([byte])])
    file.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    every=st.integers(1, 10),
    ends=st.lists(st.integers(0, 30), max_size=4),
)
def test_replay_from_the_nearest_snapshot_gives_what_replay_from_the_start_gives(
    lengths: list[int], every: int, ends: list[int]
) -> None:
    with cordwood.open(":memory:", sync="each") as log:
        topic = log.topic("t")
        for i, length in enumerate(lengths):
            topic.append(b"x" * length, key=b"k%d" % (i % 3))
        for end in (*(min(end, len(lengths)) for end in ends), len(lengths)):
            found = replayed(topic, end, save_every=every)
            assert found.state == from_the_start(topic, end)
            assert found.offset == end
        again = replayed(topic)
        assert again.state == from_the_start(topic)
        assert (again.start_offset, again.records) == (len(lengths), 0)


@pytest.mark.parametrize("format_", ["batch", "kimberlite"])
def test_a_replay_reads_only_what_follows_the_snapshot(format_: str) -> None:
    with cordwood.open(":memory:") as log:
        topic = filled(log, format_)
        assert replayed(topic, 15, save_every=10).records == 15
        assert topic.snapshots().offsets() == [10, 15]
        found = replayed(topic)
        assert (found.start_offset, found.records) == (15, 5)
        assert found.state == from_the_start(topic)
        # At 12 the snapshot of 15 has too much in it.
        assert replayed(topic, 12).start_offset == 10


def test_a_snapshot_survives_the_process(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = filled(log)
        expected = replayed(topic, save_every=100).state
    with cordwood.open(tmp_path / "data", read_only=True) as log:
        found = replayed(log.topic("t"))
        assert (found.state, found.start_offset) == (expected, 20)
    # Others who look at the directory know of snapshots, or leave them alone.
    assert verify_directory(PosixFiles(), str(tmp_path / "data")).findings == ()
    with cordwood.open(tmp_path / "data") as log:
        log.delete_topic("t")
    assert not (tmp_path / "data" / "topics" / "t").exists()


def test_a_damaged_snapshot_is_passed_over_and_said() -> None:
    files = MemoryFiles()
    with cordwood.open("/data", files=files) as log:
        topic = filled(log)
        replayed(topic, save_every=10)
        kept = topic.snapshots()
        path = f"{kept.directory}/snapshot-{20:020d}"
        size = files.open(path, "read").size()
        checked = 0
        for at in range(size):
            damage(files, path, at, at % 8)
            found = replayed(topic)
            assert found.state == from_the_start(topic)
            assert found.start_offset == 10
            assert len(found.skipped) == 1
            assert path in found.skipped[0]
            damage(files, path, at, at % 8)
            checked += 1
        assert replayed(topic).start_offset == 20
        for kept_bytes in (0, 50, size - 1):
            file = files.open(path, "write")
            whole = file.read_at(0, size)
            file.truncate(kept_bytes)
            assert replayed(topic).start_offset == 10
            file.write_at(0, [whole])
            file.close()
    print(f"{checked} damaged bytes of a snapshot noticed")


def test_a_snapshot_of_records_that_were_cut_is_not_trusted() -> None:
    """What was appended in their place is something else."""
    with cordwood.open(":memory:") as log:
        topic = filled(log)
        replayed(topic, 5, save_every=100)
        replayed(topic, save_every=100)
        topic.truncate(0, 10)
        for _ in range(15):
            topic.append(b"other", key=b"k0")
        found = replayed(topic)
        assert found.state == from_the_start(topic)
        assert found.start_offset == 5
        assert "were cut" in found.skipped[0]


def test_a_snapshot_needs_records_that_are_synced() -> None:
    """Others may still come in their place."""
    with cordwood.open(":memory:", sync="never") as log:
        topic = filled(log)
        with pytest.raises(OffsetOutOfRange):
            topic.snapshots().save(20, b"")
    with cordwood.open(":memory:") as log:
        topic = filled(log)
        with pytest.raises(OffsetOutOfRange):
            topic.snapshots().save(21, b"")
        with pytest.raises(OffsetOutOfRange):
            replayed(topic, 21)


def test_snapshots_outlive_retention_of_what_they_are_of() -> None:
    with cordwood.open(":memory:") as log:
        topic = filled(log)
        expected = replayed(topic, save_every=10).state
        topic.advance_log_start(0, 20)
        assert replayed(topic).state == expected
        topic.snapshots().keep_newest(0)
        with pytest.raises(OffsetOutOfRange):
            replayed(topic, 10)


def test_old_snapshots_can_be_let_go() -> None:
    with cordwood.open(":memory:") as log:
        topic = filled(log)
        replayed(topic, save_every=4)
        assert topic.snapshots().keep_newest(2) == 3
        assert topic.snapshots().offsets() == [16, 20]
        assert topic.snapshots().keep_newest(0) == 2
        assert topic.snapshots().nearest(20) == (None, (), ())


def test_a_snapshot_has_the_hash_of_the_chain_at_its_offset() -> None:
    """Of the record before it in kimberlite, else of the leaves up to it; none without a chain."""
    with cordwood.open(":memory:") as log:
        kept = filled(log, "kimberlite").snapshots()
        saved = kept.save(7, b"state")
        (frame,) = [
            data
            for first, _, data in frames_of(log.topic("t")._log._readable("t", 0).read(6, 1).runs[0])
            if first == 6
        ]
        assert saved.anchor == (AnchorKind.RECORD, hashlib.sha256(frame).digest(), 0)
        assert kept.nearest(20).snapshot == saved
        # Kept under its offset, and not found for any offset before it.
        assert kept.nearest(6).snapshot is None
        assert kept.save(0, b"").anchor.kind == AnchorKind.NONE
    with cordwood.open(":memory:") as log:
        saved = filled(log).snapshots().save(7, b"state")
        (signed,) = log.checkpoint("t")
        assert (saved.anchor.kind, saved.anchor.leaves) == (AnchorKind.TREE, 7)
        log.topic("t").truncate(0, 7, force=True)
        assert filled_root(log, 7) == saved.anchor.hash
        assert signed.size == 20
    with cordwood.open(":memory:") as log:
        topic = log.topic("t", config={"cordwood.chain": "false"})
        topic.append(b"v")
        assert topic.snapshots().save(1, b"").anchor == (AnchorKind.NONE, bytes(32), 0)


def filled_root(log: Log, leaves: int) -> bytes:
    directory = partition_directory(log.data_directory.path, "t", 0)
    with kept_chain(log.data_directory.files, directory) as chain:
        assert chain is not None
        return merkle.root(chain.recomputed, leaves)


@pytest.mark.parametrize("format_", ["batch", "kimberlite"])
def test_a_snapshot_of_another_history_is_passed_over_with_its_sentence(format_: str) -> None:
    """Epoch, offset and checksum are right: only the hash tells that these records are others."""
    here, there = MemoryFiles(), MemoryFiles()
    for files, word in ((here, b"ours"), (there, b"others")):
        with cordwood.open("/data", files=files) as log:
            topic = log.topic("t", config={"cordwood.format": format_})
            topic.append_many([(None, word)])
            topic.append_many([(None, b"the same")], partition=0)
            replayed(topic, 1, save_every=9)
            replayed(topic, 2, save_every=9)
    path = f"/data/topics/t/0/snapshots/snapshot-{2:020d}"
    assert read_file(here, path) != read_file(there, path)
    write_atomically(here, path, read_file(there, path))
    with cordwood.open("/data", files=here) as log:
        found = replayed(log.topic("t"))
        assert found.state == from_the_start(log.topic("t"))
        assert found.start_offset == 1
        assert "is of another history" in found.skipped[0]
    with cordwood.open("/data", files=here, read_only=True) as log:
        assert replayed(log.topic("t")).start_offset == 1
    (finding,) = verify_directory(here, "/data").findings
    assert (finding.severity, finding.path) == ("corruption", path)


@pytest.mark.parametrize("format_", ["batch", "kimberlite"])
def test_a_snapshot_below_a_cut_stays_and_one_above_it_does_not(format_: str) -> None:
    """Also where the cut goes through the frame that the snapshot is of a part of."""
    with cordwood.open(":memory:") as log:
        topic = log.topic("t", config={"cordwood.format": format_})
        topic.append_many([(None, b"%d" % i) for i in range(10)])
        for end in (4, 6, 8):
            replayed(topic, end, save_every=9)
        topic.truncate(0, 6)
        for _ in range(10):
            topic.append(b"after")
        found = replayed(topic, 8)
        assert (found.start_offset, found.state) == (6, from_the_start(topic, 8))
        assert "were cut" in found.skipped[0]
        data = log.data_directory
        assert all(each.severity == "note" for each in verify_directory(data.files, data.path).findings)


def test_snapshots_of_version_1_still_load() -> None:
    """Without a hash, or with the hash that the caller of that version gave for a record of kimberlite."""
    for format_, hash_, loads in (
        ("batch", bytes(32), True),
        ("batch", b"\1" * 32, True),
        ("kimberlite", bytes(32), True),
        ("kimberlite", b"\1" * 32, False),
    ):
        files = MemoryFiles()
        with cordwood.open("/data", files=files) as log:
            topic = filled(log, format_)
            state = encode(from_the_start(topic, 9))
            header = struct.pack(">4sIIQq32sQ", b"CWSN", 1, 0, 9, 5, hash_, len(state))
            crc = google_crc32c.extend(google_crc32c.value(header), state)
            kept = topic.snapshots()
            files.make_directories(kept.directory)
            write_atomically(
                files, f"{kept.directory}/snapshot-{9:020d}", header + struct.pack(">I", crc) + state
            )
            found = replayed(topic)
            assert found.state == from_the_start(topic)
            assert found.start_offset == (9 if loads else 0)
            assert verify_directory(files, "/data").sound == loads


@pytest.mark.parametrize("format_", ["batch", "kimberlite"])
def test_a_backup_replays_to_what_its_source_does_though_retention_deleted_records(
    tmp_path: Path, format_: str
) -> None:
    """And a restore up to an offset has the snapshots at or below it."""
    with cordwood.open(tmp_path / "data") as log:
        topic = filled(log, format_)
        at_12 = replayed(topic, 12, save_every=9).state
        expected = replayed(topic, save_every=100).state
        topic.advance_log_start(0, 12)
        assert replayed(topic).state == expected
    assert cordwood.backup(tmp_path / "data", tmp_path / "backup").sound
    with cordwood.open(tmp_path / "backup", read_only=True) as log:
        assert replayed(log.topic("t")).state == expected
    cordwood.restore(tmp_path / "backup", tmp_path / "whole")
    with cordwood.open(tmp_path / "whole") as log:
        found = replayed(log.topic("t"))
        assert (found.state, found.start_offset, found.skipped) == (expected, 20, ())
        log.topic("t").append(b"more", key=b"k0" if format_ == "batch" else None)
        assert replayed(log.topic("t")).start_offset == 20
    cordwood.restore(tmp_path / "backup", tmp_path / "earlier", to_offsets={("t", 0): 15})
    with cordwood.open(tmp_path / "earlier") as log:
        topic = log.topic("t")
        assert topic.snapshots().offsets() == [9, 12]
        found = replayed(topic)
        expected_at_15 = at_12
        for record in topic.read(0, 12):
            expected_at_15 = fold(expected_at_15, record)
        assert (found.state, found.start_offset, found.skipped) == (expected_at_15, 12, ())
    for name in ("data", "backup", "whole", "earlier"):
        assert verify_directory(PosixFiles(), str(tmp_path / name)).sound, name


def test_a_backup_follows_the_snapshots_of_its_source(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = filled(log)
        replayed(topic, save_every=10)
        cordwood.backup(tmp_path / "data", tmp_path / "backup")
        topic.append(b"more", key=b"k0")
        replayed(topic, save_every=10)
        topic.snapshots().keep_newest(2)
        cordwood.backup(tmp_path / "data", tmp_path / "backup")
    with cordwood.open(tmp_path / "backup", read_only=True) as log:
        assert log.topic("t").snapshots().offsets() == [20, 21]
        assert replayed(log.topic("t")).start_offset == 21


def shared(log: Log, name: str = "t", count: int = 20) -> Topic:
    topic = log.topic(name, config={"cordwood.storage": "shared"})
    for i in range(count):
        topic.append(b"x" * (i % 7), key=b"k%d" % (i % 3), timestamp=i)
        log.topic("beside", config={"cordwood.storage": "shared"}).append(b"other", timestamp=i)
    return topic


def test_topics_in_the_shared_log_have_snapshots_too(tmp_path: Path) -> None:
    """Over restarts, retention and backups; a restore up to a time has those at or below it."""
    with cordwood.open(tmp_path / "data") as log:
        topic = shared(log)
        replayed(topic, save_every=8)
        assert topic.snapshots().offsets() == [8, 16, 20]
        assert topic.snapshots().nearest(20).snapshot is not None
        expected = from_the_start(topic)
        topic.advance_log_start(0, 20)
    with cordwood.open(tmp_path / "data") as log:
        assert replayed(log.topic("t")).state == expected
        saved = log.topic("t").snapshots().nearest(20).snapshot
        assert saved is not None
        assert saved.anchor.kind == AnchorKind.TREE
    with cordwood.open(tmp_path / "data", read_only=True) as log:
        assert replayed(log.topic("t")).state == expected
    assert cordwood.backup(tmp_path / "data", tmp_path / "backup").sound
    cordwood.restore(tmp_path / "backup", tmp_path / "whole")
    with cordwood.open(tmp_path / "whole") as log:
        assert replayed(log.topic("t")).state == expected
    cordwood.restore(tmp_path / "backup", tmp_path / "earlier", to_time=17, force=True)
    with cordwood.open(tmp_path / "earlier") as log:
        assert log.topic("t").snapshots().offsets() == [8, 16]
    for name in ("data", "backup", "whole", "earlier"):
        assert verify_directory(PosixFiles(), str(tmp_path / name)).sound, name


def test_a_topic_made_again_under_its_name_sees_no_snapshot_of_the_old_one(tmp_path: Path) -> None:
    """In the shared log, where topics have no directory, and in one of its own."""
    for storage in ("shared", "own"):
        data = tmp_path / storage
        with cordwood.open(data) as log:
            topic = log.topic("t", config={"cordwood.storage": storage})
            topic.append_many([(b"k", b"old")] * 5)
            replayed(topic, save_every=9)
            log.delete_topic("t")
            topic = log.topic("t", config={"cordwood.storage": storage})
            assert topic.snapshots().offsets() == []
            topic.append_many([(b"k", b"new one")] * 5)
            assert replayed(topic).start_offset == 0
        assert not list(data.rglob("snapshot-*"))


def test_a_snapshot_of_the_shared_log_that_a_crash_left_goes_with_its_topic(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        replayed(shared(log), save_every=9)
        topic_id = log.entry("t").id
    kept = tmp_path / "meta" / "snapshots" / topic_id
    shutil.copytree(kept, tmp_path / "copy")
    log = cordwood.open(tmp_path)
    log.delete_topic("t")
    assert not kept.exists()
    kill(log)
    log.close()
    shutil.move(tmp_path / "copy", kept)
    cordwood.open(tmp_path).close()
    assert not kept.exists()
