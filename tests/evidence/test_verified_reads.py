"""A verified read begins at the nearest checkpoint or snapshot, whatever the length of the log."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import cordwood
from cordwood.errors import CorruptRange, EvidenceMissing, EvidenceRefused, OffsetOutOfRange
from cordwood.formats.per_record import kimberlite

COUNT = 400
KIMBERLITE = {"cordwood.format": "kimberlite"}


def filled(log: cordwood.Log, config: dict[str, str], count: int = COUNT) -> cordwood.Topic:
    topic = log.topic("t", config={"segment.bytes": "8192", **config})
    for number in range(count):
        topic.append(b"value %d" % number)
    return topic


def rewritten(data: Path, offset: int) -> None:
    """Change the value of a record and make its checksum right again."""
    for path in sorted((data / "topics/t/0/segments").glob("*.log")):
        content, at = path.read_bytes(), 0
        while at < len(content) and any(content[at : at + 80]):
            record = kimberlite.parse_record(content, at)
            if record.position == offset:
                value = record.data(content)[:-1] + b"!"
                forged = kimberlite.encode_record(offset, record.timestamp_us, value, record.prev_hash)
                path.write_bytes(content[:at] + forged + content[record.end :])
                return
            at = record.end
    raise AssertionError(f"no record {offset}")


def test_a_read_of_kimberlite_reads_no_more_than_lies_between_the_record_and_its_anchor() -> None:
    """On either side of it; without one, everything from the start of the log."""
    with cordwood.open(":memory:") as log:
        topic, checked = filled(log, {**KIMBERLITE, "cordwood.chain": "false"}), 0
        assert topic.read_verified(350).frames_read == 352
        for offset in (100, 200, 300):
            topic.snapshots().save(offset, b"")
        for offset in range(COUNT):
            found = topic.read_verified(offset)
            distance = min(abs(offset - at) for at in (0, 100, 200, 300))
            assert found.record.value == b"value %d" % offset
            assert found.frames_read <= distance + 3
            assert found.anchor == ("start" if found.anchor_offset == 0 else "snapshot")
            checked += 1
    print(f"{checked} records verified")


@pytest.mark.parametrize("config", [{}, KIMBERLITE, {"cordwood.storage": "shared"}])
def test_a_record_under_a_signed_checkpoint_is_one_frame_and_a_few_hashes(config: dict[str, str]) -> None:
    with cordwood.open(":memory:") as log:
        if "cordwood.storage" in config:
            log.topic("beside", config=config).append(b"other")
        topic = filled(log, config)
        log.checkpoint()
        for offset in (0, 7, COUNT - 1):
            found = topic.read_verified(offset)
            assert (found.record.value, found.anchor) == (b"value %d" % offset, "checkpoint")
            assert found.frames_read == 1
            assert found.hashes_read <= 2 * COUNT.bit_length()


@pytest.mark.parametrize("config", [{}, {"cordwood.storage": "shared"}, {"cordwood.format": "laminarmq"}])
def test_a_record_of_other_formats_is_one_frame_in_a_tree_that_begins_with_the_nearest_anchor(
    config: dict[str, str],
) -> None:
    with cordwood.open(":memory:") as log:
        topic = filled(log, config)
        assert topic.read_verified(350).anchor == "start"
        topic.snapshots().save(300, b"")
        for offset in (0, 299, 300, 399):
            found = topic.read_verified(offset)
            assert (found.record.value, found.anchor, found.anchor_offset) == (
                b"value %d" % offset,
                "snapshot",
                300,
            )
            assert found.frames_read == 1
        log.checkpoint()
        topic.append(b"value 400")
        found = topic.read_verified(400)
        assert (found.anchor, found.frames_read) == ("checkpoint", 1)


def test_records_of_kimberlite_after_a_checkpoint_are_followed_from_it() -> None:
    with cordwood.open(":memory:") as log:
        topic = filled(log, KIMBERLITE)
        log.checkpoint()
        for number in range(COUNT, COUNT + 20):
            topic.append(b"value %d" % number)
        found = topic.read_verified(COUNT + 9)
        assert (found.anchor, found.record.value) == ("checkpoint", b"value %d" % (COUNT + 9))
        assert found.frames_read <= 9 + 4
        # The checkpoint is nearer than a snapshot far before it, and a snapshot between the two is nearer.
        topic.snapshots().save(10, b"")
        found = topic.read_verified(COUNT + 9)
        assert (found.anchor, found.anchor_offset) == ("checkpoint", COUNT)
        topic.snapshots().save(COUNT + 5, b"")
        found = topic.read_verified(COUNT + 9)
        assert (found.anchor, found.anchor_offset) == ("snapshot", COUNT + 5)
        assert found.frames_read <= 4 + 3


def test_a_read_after_retention_begins_at_a_snapshot_or_at_the_first_record_that_is_left() -> None:
    with cordwood.open(":memory:") as log:
        topic = filled(log, {**KIMBERLITE, "cordwood.chain": "false"})
        topic.snapshots().save(300, b"")
        topic.advance_log_start(0, 250)
        assert topic.read_verified(250).record.value == b"value 250"
        assert topic.read_verified(260).anchor == "start"
        assert topic.read_verified(299).anchor == "snapshot"
        topic.advance_log_start(0, 300)
        found = topic.read_verified(301)
        assert (found.anchor, found.anchor_offset) == ("snapshot", 300)


def test_a_record_that_was_rewritten_under_a_right_checksum_is_refused(tmp_path: Path) -> None:
    """Whether its anchor comes before or after it."""
    for chain in ("true", "false"):
        data = tmp_path / chain
        with cordwood.open(data) as log:
            topic = filled(log, {**KIMBERLITE, "cordwood.chain": chain})
            topic.snapshots().save(200, b"")
        for offset in (190, 210):
            rewritten(data, offset)
            with cordwood.open(data, read_only=True) as log:
                with pytest.raises((EvidenceRefused, CorruptRange)):
                    log.topic("t").read_verified(offset)
                assert log.topic("t").read_verified(201).frames_read <= 4


def test_a_chain_that_was_made_again_is_refused_by_the_nearest_snapshot(tmp_path: Path) -> None:
    """Every checksum and every hash in the records is right; a replay passes the snapshot over."""
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        topic = filled(log, {**KIMBERLITE, "cordwood.chain": "false", "segment.bytes": "1000000"})
        topic.snapshots().save(100, b"")
        topic.snapshots().save(200, b"")
    (path,) = (data / "topics/t/0/segments").glob("*.log")
    content, forged, at = path.read_bytes(), b"", 0
    head = kimberlite.NO_HASH
    while at < len(content) and any(content[at : at + 80]):
        record = kimberlite.parse_record(content, at)
        value = record.data(content)
        value = value[:-1] + b"!" if record.position == 150 else value
        made = kimberlite.encode_record(record.position, record.timestamp_us, value, head)
        head, forged, at = hashlib.sha256(made).digest(), forged + made, record.end
    path.write_bytes(forged + content[at:])
    with cordwood.open(data, read_only=True) as log:
        topic = log.topic("t")
        assert len(list(topic.read())) == COUNT
        assert topic.read_verified(90).record.value == b"value 90"
        for offset in (150, 160, 210):
            with pytest.raises(EvidenceRefused, match="is of another history"):
                topic.read_verified(offset)
        nearest = topic.snapshots().nearest(COUNT)
        assert nearest.snapshot is not None
        assert (nearest.snapshot.offset, len(nearest.skipped)) == (100, 1)


def test_what_cannot_be_verified_is_said() -> None:
    with cordwood.open(":memory:") as log:
        topic = filled(log, {"cordwood.chain": "false"}, count=3)
        with pytest.raises(EvidenceMissing, match="no leaf and no hash"):
            topic.read_verified(1)
        with pytest.raises(OffsetOutOfRange):
            topic.read_verified(3)
