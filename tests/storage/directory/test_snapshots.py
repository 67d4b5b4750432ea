"""Snapshots of derived state: replay from the nearest one gives what replay from the start gives."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cordwood
from cordwood import Replayed, replay
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.embedded import Log, Topic
from cordwood.errors import OffsetOutOfRange
from cordwood.records import Record
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
        assert topic.snapshots().nearest(20) == (None, ())


def test_a_snapshot_has_the_hash_that_anchors_a_chain() -> None:
    with cordwood.open(":memory:") as log:
        kept = filled(log).snapshots()
        head = hashlib.sha256(b"record").digest()
        saved = kept.save(7, b"state", chain_head=head)
        assert kept.nearest(20).snapshot == saved
        assert saved.chain_head == head
        # Kept under its offset, and not found for any offset before it.
        assert kept.nearest(6).snapshot is None
