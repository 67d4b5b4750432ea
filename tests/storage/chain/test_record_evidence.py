"""Leaves that commit to records, the lists that compaction keeps, and what may be rewritten. Invariant I5."""

from __future__ import annotations

import struct
from hashlib import sha256

import pytest
from support.chains import root_of
from support.clocks import ManualClock
from support.disks import image
from support.logs import DATA, disk_of

import cordwood
from cordwood.disk.files import Files, join
from cordwood.disk.memory import MemoryFiles
from cordwood.storage.chain.chains import kept_chain
from cordwood.storage.chain.files import KeptChain
from cordwood.storage.chain.lists import list_numbers
from cordwood.storage.chain.statements import Statement
from cordwood.verify import verify_directory

PARTITION = join(DATA, "topics/orders/0")
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "700",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
}
Rows = list[tuple[bytes | None, bytes | None]]


def opened(files: Files, clock: ManualClock | None = None) -> cordwood.Log:
    return cordwood.open(DATA, files=files, clock=clock or ManualClock())


def followed(log: cordwood.Log) -> None:
    log.data_directory.chains.commit(log.data_directory.partitions.own("orders", 0))


def statements(files: Files) -> list[Statement]:
    with kept_chain(files, PARTITION) as chain:
        assert chain is not None
        return chain.statements()


def compact(log: cordwood.Log, *, evidence: bool = True) -> int:
    log.topic("orders").roll()
    report = log.maintain(force=True, evidence=evidence)
    assert report.failures == ()
    return report.records_removed


def values(log: cordwood.Log) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in log.topic("orders").read(0)}


# --- leaves -------------------------------------------------------------------------------------------------


def by_hand(chain: KeptChain, frame: bytes, records: list[cordwood.Record]) -> bytes:
    """Return the leaf of a batch as docs/integrity.md has it, with nothing of the code that makes leaves."""
    salt = chain.salt()
    assert salt is not None

    def sized(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    entries = []
    for record in records:
        rest = b"\2" + struct.pack(">q", record.timestamp) + sized(record.value)
        rest += struct.pack(">i", len(record.headers))
        rest += b"".join(sized(name.encode()) + sized(value) for name, value in record.headers)
        item = bytes([(record.key is None) | (record.value is None) << 1])
        item += sha256(b"\1" + salt + (record.key or b"")).digest() + sha256(rest).digest()
        entries.append(sha256(b"\0" + struct.pack(">q", record.offset) + item).digest())
    base, _, epoch, _, _, attributes, delta, _, _, producer, producer_epoch, sequence, count = struct.unpack(
        ">qiibIhiqqqhii", frame[:61]
    )
    facts = struct.pack(
        ">Bqiihqhii", 0, base, delta, epoch, attributes & ~7, producer, producer_epoch, sequence, count
    )
    return sha256(b"\0\xfeCWR1" + facts + sha256(frame).digest() + root_of(entries)).digest()


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
def test_the_leaf_of_a_compacted_topic_is_what_the_page_says(codec: str, times: str) -> None:
    files = MemoryFiles()
    config = {**CONFIG, "compression.type": codec, "message.timestamp.type": times}
    with opened(files) as log:
        topic = log.topic("orders", config=config)
        topic.append_many(
            [(b"a", b"1", [("h", b"x"), ("none", None)], 5), (b"", None, [], 6), (b"c", b"", [], 4)],
            partition=0,
        )
        followed(log)
        records = list(topic.read(0))
        (run,) = log.data_directory.partitions.own("orders", 0).read(0, 1 << 20).runs
        frame = bytes(run.data)
    with kept_chain(files, PARTITION) as chain:
        assert chain is not None
        assert chain.hash_at(0, 1) == by_hand(chain, frame, records)
        assert [each.kind for each in chain.statements()] == ["policy"]
        assert chain.head.format == 2


def test_topics_that_only_delete_keep_the_leaves_and_the_format_they_had() -> None:
    files = MemoryFiles()
    with opened(files) as log:
        log.topic("orders").append(b"1")
        followed(log)
        (run,) = log.data_directory.partitions.own("orders", 0).read(0, 1 << 20).runs
        frame = bytes(run.data)
    with kept_chain(files, PARTITION) as chain:
        assert chain is not None
        assert (chain.head.format, chain.head.size, chain.salt()) == (1, 1, None)
        assert chain.hash_at(0, 0) == sha256(b"\0" + frame).digest()


def test_every_change_of_policy_is_a_statement_before_anything_is_appended_under_it() -> None:
    files = MemoryFiles()
    with opened(files) as log:
        topic = log.topic("orders", config=CONFIG)
        for policy in ("delete", "compact,delete", "delete,compact", "compact"):
            topic.append(b"v", key=b"k")
            followed(log)
            log.alter_topic("orders", config={**CONFIG, "cleanup.policy": policy})
            followed(log)
    said = [(each.reason, each.leaves, each.start) for each in statements(files)]
    assert said == [
        ("compact", "records", 0),
        ("delete", "frames", 1),
        ("compact,delete", "records", 2),
        ("compact", "records", 4),
    ]


# --- what may be rewritten ----------------------------------------------------------------------------------


def test_frames_from_before_the_policy_stay_whole_and_so_do_tombstones_after_them() -> None:
    """A tombstone that went would bring back the value that had to stay."""
    files, clock = MemoryFiles(), ManualClock()
    with opened(files, clock) as log:
        topic = log.topic("orders", config={**CONFIG, "cleanup.policy": "delete"})
        topic.append_many([(b"a", b"old"), (b"b", b"old")], partition=0)
        followed(log)
        log.alter_topic("orders", config=CONFIG)
        topic.append_many([(b"a", None), (b"c", b"1"), (b"c", b"2")], partition=0)
        for _ in range(4):
            compact(log)
            clock.advance(5_000)
        assert [record.offset for record in topic.read(0)] == [0, 1, 2, 4]
        assert compact(log, evidence=False) > 0
        clock.advance(5_000)
        compact(log, evidence=False)
        assert values(log) == {b"b": b"old", b"c": b"2"}
    assert verify_directory(files, DATA).sound


@pytest.mark.parametrize("record_format", ["frame", "laminarmq", "batch"])
def test_a_deleted_key_never_comes_back(record_format: str) -> None:
    """Where a frame is one record, the last of a segment stays, even superseded. So its tombstone stays."""
    files, clock = MemoryFiles(), ManualClock()
    with opened(files, clock) as log:
        topic = log.topic("orders", config={**CONFIG, "cordwood.format": record_format})
        topic.append(b"other", key=b"other")
        topic.append(b"value", key=b"gone")
        topic.roll()
        topic.append(None, key=b"gone")
        topic.append(b"more", key=b"more")
        for _ in range(6):
            compact(log)
            clock.advance(5_000)
            assert values(log).get(b"gone") is None
            topic.append(b"again", key=b"other")
    assert verify_directory(files, DATA).sound


def test_a_segment_with_tombstones_that_are_due_and_records_without_a_key_is_compacted() -> None:
    files, clock = MemoryFiles(), ManualClock()
    with opened(files, clock) as log:
        topic = log.topic("orders", config={**CONFIG, "cleanup.policy": "delete", "cordwood.chain": "false"})
        topic.append_many([(None, b"of nobody"), (b"a", b"1"), (b"a", None), (b"b", b"1")], partition=0)
        log.alter_topic("orders", config={**CONFIG, "cordwood.chain": "false"})
        for _ in range(3):
            compact(log)
            clock.advance(5_000)
        assert values(log) == {None: b"of nobody", b"b": b"1"}


# --- how long evidence stays --------------------------------------------------------------------------------


def filled(log: cordwood.Log) -> None:
    topic = log.topic("orders", config=CONFIG)
    for number in range(8):
        topic.append_many([(b"same", b"%d" % number), (b"only %d" % number, b"kept")], partition=0)


def test_evidence_takes_65_bytes_a_record_and_77_a_frame() -> None:
    files = MemoryFiles()
    with opened(files) as log:
        filled(log)
        assert compact(log) == 7
    lists = {path: data for path, data in image(files, join(PARTITION, "chain/lists")).items() if data}
    assert sum(len(data or b"") for data in lists.values()) == 7 * (77 + 2 * 65)


def test_lists_go_when_the_log_start_passes_them() -> None:
    files = MemoryFiles()
    with opened(files) as log:
        filled(log)
        compact(log)
        directory = join(PARTITION, "chain")
        assert list_numbers(files, directory)
        log.topic("orders").advance_log_start(0, 16)
        log.topic("orders").append(b"next", key=b"next")
        followed(log)
        assert list_numbers(files, directory) == []
    assert verify_directory(files, DATA).findings == ()


def test_evidence_expires_by_a_statement_after_which_verify_says_so() -> None:
    files, clock = MemoryFiles(), ManualClock()
    with opened(files, clock) as log:
        filled(log)
        compact(log)
        log.alter_topic("orders", config={**CONFIG, "cordwood.compaction.evidence.ms": "60000"})
        log.maintain()
        assert [each.kind for each in statements(files)][-1] == "compacted"
        clock.advance(61_000)
        log.maintain()
        assert list_numbers(files, join(PARTITION, "chain")) == []
    said = statements(files)[-1]
    assert (said.kind, said.reason) == ("expired", "cordwood.compaction.evidence.ms=60000")
    report = verify_directory(files, DATA)
    assert report.sound
    assert report.unchecked == 7
    assert "superseded, evidence expired" in report.findings[0].found


def test_lists_that_a_crash_left_without_their_statement_are_removed_and_others_are_not() -> None:
    files = MemoryFiles()
    with opened(files) as log:
        filled(log)
        compact(log)
    directory = join(PARTITION, "chain")
    kept = list_numbers(files, directory)
    left = join(directory, "lists", f"{10**6:020d}")
    disk = disk_of(image(files, DATA), {left: b"half a list"})
    with opened(disk) as log:
        log.topic("orders").append(b"next", key=b"next")
        followed(log)
    assert list_numbers(disk, directory) == kept
    assert verify_directory(disk, DATA).sound


def test_a_truncation_keeps_the_lists_of_records_that_superseded_others() -> None:
    files = MemoryFiles()
    with opened(files) as log:
        topic = log.topic("orders", config=CONFIG)
        topic.append(b"1", key=b"a")
        topic.roll()
        topic.append(b"2", key=b"a")
        compact(log)
        assert [record.offset for record in topic.read(0)] == [1]
        topic.truncate(0, 1)
        topic.append(b"other", key=b"b")
        followed(log)
    assert [each.kind for each in statements(files)] == ["policy", "compacted", "kept", "truncated"]
    assert verify_directory(files, DATA).sound
    gone = [path for path in image(files, DATA) if "/lists/" in path]
    assert verify_directory(disk_of(image(files, DATA), {}, gone[-1:]), DATA).corrupt


def test_a_salt_that_is_not_the_one_that_was_named_is_refused() -> None:
    files = MemoryFiles()
    with opened(files) as log:
        filled(log)
    wrong = disk_of(image(files, DATA), {join(PARTITION, "chain/salt"): bytes(32)})
    with opened(wrong) as log:
        log.topic("orders").append(b"next", key=b"next")
        with pytest.raises(cordwood.errors.MetadataDamaged, match="salt"):
            followed(log)
    assert verify_directory(wrong, DATA).corrupt
