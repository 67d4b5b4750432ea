"""An insider with the product's code and every key but the checkpoint that somebody else holds.

Each attack runs the real engine with a lie planted in it, so that everything that follows is recomputed:
checksums, indexes, metadata, leaves, statements, tree, head, lists, and the checkpoints in the directory.
Against the checkpoint held elsewhere each must be found; an honest log must be sound. Invariants I4, I5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import google_crc32c
import pytest
from support.data_directory import flipped
from support.disks import image
from support.logs import DATA, disk_of, open_log
from support.sweeps import bits_of

import cordwood
from cordwood.disk.files import Files, join, read_file, write_atomically
from cordwood.disk.memory import MemoryFiles
from cordwood.formats.native import BatchTable
from cordwood.integrity.note import SigningKey
from cordwood.integrity.record_leaf import LeafFacts
from cordwood.kernels import KeyMap
from cordwood.storage.chain import follower as followers
from cordwood.storage.chain import rewritten
from cordwood.storage.chain.chains import kept_chain
from cordwood.storage.chain.frame_leaves import listed_frames
from cordwood.storage.chain.lists import ListWriter
from cordwood.storage.directory import DataDirectory
from cordwood.storage.maintenance import rewriting
from cordwood.verify import GivenCheckpoint, VerifyReport, verify_directory
from cordwood.verify.chain import listed as verify_listed

CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "900",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
}
CHAIN = join(DATA, "topics/orders/0/chain")
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def key_of_the_insider(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is the same wherever the directory is made again."""
    monkeypatch.setattr("cordwood.host.process.new_seed", lambda: bytes(range(32)))


def rows(turn: int) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """Three records: one that the next turn supersedes, one that stays, one more that stays."""
    return [
        (b"same", b"value %d" % turn, []),
        (b"only %d" % turn, b"kept %d" % turn, [("trace", b"%d" % turn)]),
        (b"twice %d" % turn, b"another", []),
    ]


def fill(log: cordwood.Log, turns: range) -> None:
    topic = log.topic("orders", config=CONFIG)
    for turn in turns:
        topic.append_many(rows(turn), partition=0)


def checkpoint_of(log: cordwood.Log, name: str = "held elsewhere") -> GivenCheckpoint:
    """Sign for the log as it is, and hand the note to somebody else."""
    (signed,) = log.checkpoint("orders")
    key = read_file(log.data_directory.files, join(DATA, "meta/keys/checkpoint.pub")).decode().strip()
    return GivenCheckpoint(name, signed.note, type(SigningKey("k", bytes(32)).verifier).parse(key))


def judged(files: Files, held: GivenCheckpoint) -> VerifyReport:
    return verify_directory(files, DATA, checkpoints=[held])


def compact(log: cordwood.Log) -> None:
    log.topic("orders").roll()
    report = log.maintain(force=True)
    assert report.failures == ()
    assert report.compacted


@contextmanager
def before_compaction() -> Iterator[tuple[MemoryFiles, cordwood.Log, GivenCheckpoint]]:
    """Yield an open log with records that somebody else has a checkpoint of."""
    files = MemoryFiles()
    with open_log(files) as log:
        fill(log, range(6))
        yield files, log, checkpoint_of(log)


# --- lies about a record, told while its frame is rewritten ------------------------------------------------


def sealed(frame: bytearray) -> bytearray:
    """Correct the checksum of a batch."""
    struct.pack_into(">I", frame, 17, google_crc32c.value(bytes(frame[21:])))
    return frame


def replaced(old: bytes, new: bytes) -> Callable[[bytearray], bytearray]:
    assert len(old) == len(new)

    def change(frame: bytearray) -> bytearray:
        at = frame.find(old)
        if at >= 0:
            frame[at : at + len(old)] = new
        return sealed(frame)

    return change


def packed(layout: str, position: int, value: int) -> Callable[[bytearray], bytearray]:
    def change(frame: bytearray) -> bytearray:
        struct.pack_into(layout, frame, position, value)
        return sealed(frame)

    return change


def moved_in_time(frame: bytearray) -> bytearray:
    for position in (27, 35):
        (timestamp,) = struct.unpack_from(">q", frame, position)
        struct.pack_into(">q", frame, position, timestamp - 1)
    return sealed(frame)


ALTERATIONS: dict[str, Callable[[bytearray], bytearray]] = {
    "a value": replaced(b"kept 2", b"mine 2"),
    "a key": replaced(b"only 2", b"mine 2"),
    "a header's name": replaced(b"trace", b"grace"),
    "a timestamp": moved_in_time,
    "the control bit": packed(">h", 21, 0x20),
    "the transactional bit": packed(">h", 21, 0x10),
    "the kind of timestamps": packed(">h", 21, 0x08),
    "the producer": packed(">q", 43, 77),
    "the producer's epoch": packed(">h", 51, 7),
    "the sequence": packed(">i", 53, 7),
}


def lying(patch: Patch, change: Callable[[bytearray], bytearray]) -> None:
    """Let compaction change what it copies."""
    real = BatchTable.without

    def without(self: BatchTable, frame: int, dropped: Any, first: int) -> Any:
        return change(bytearray(real(self, frame, dropped, first)))

    patch.setattr(BatchTable, "without", without)


@pytest.mark.parametrize("what", ALTERATIONS)
@pytest.mark.parametrize("forged_lists", [False, True], ids=["true lists", "forged lists"])
def test_a_record_or_header_field_that_was_altered_while_it_was_rewritten_is_found(
    what: str, forged_lists: bool
) -> None:
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        lying(patch, ALTERATIONS[what])
        if forged_lists:
            forge_lists(patch, ALTERATIONS[what])
        compact(log)
    report = judged(files, held)
    assert report.corrupt, report.findings


def forge_lists(patch: Patch, change: Callable[[bytearray], bytearray]) -> None:
    """Let the list of a frame be that of the altered one: its items, and its fields."""
    real = listed_frames

    def listed(run: Any, salt: bytes) -> Iterator[Any]:
        for frame in real(run, salt):
            altered = change(bytearray(frame.data))
            content = verify_listed.content_of("batch", altered, frame.first_offset, salt)
            facts = LeafFacts._make(content.fields)._replace(frame_hash=frame.facts.frame_hash)
            items = memoryview(content.items) if len(content.items) == len(frame.items) else frame.items
            yield frame._replace(facts=facts, items=items)

    patch.setattr(rewritten, "listed_frames", listed)


def test_a_record_that_got_another_offset_is_found() -> None:
    """The records of two frames changed their places."""
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        lying(patch, lambda frame: sealed(_swapped_deltas(frame)))
        compact(log)
    assert judged(files, held).corrupt


def _swapped_deltas(frame: bytearray) -> bytearray:
    """Give the two records that are left the offset deltas 0 and 1 in place of 1 and 2."""
    at, body = 61, bytes(frame)
    for delta in (0, 1):
        length, start = body[at] >> 1, at + 1
        frame[start + 2] = delta << 1
        at = start + length
    return frame


# --- records that must not go ------------------------------------------------------------------------------


def dropping(patch: Patch, offsets: set[int]) -> None:
    """Let compaction drop these records, whatever comes later."""
    real = KeyMap.superseded

    class Lying:
        def __init__(self, keys: Any) -> None:
            self._keys = keys

        def superseded(self, column: Any, numbers: Any, rows_: int) -> bytearray:
            flags = bytearray(real(self._keys, column, numbers, rows_))
            for row, offset in enumerate(rewriting.numbers_in(numbers)[:rows_]):
                flags[row] |= offset in offsets
            return flags

    honest = rewriting.rewrite

    def rewrite(work: Any, old: Any, keys: Any, target: Any) -> Any:
        return honest(work, old, Lying(keys), target)

    patch.setattr("cordwood.storage.maintenance.compactor.rewrite", rewrite)


def test_the_last_record_of_a_key_that_was_dropped_is_found() -> None:
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        dropping(patch, {7})
        compact(log)
    report = judged(files, held)
    assert "record at offset 7, which compaction dropped" in [each.what for each in report.findings]
    assert report.corrupt


def test_the_last_frame_of_several_keys_that_was_dropped_whole_is_found() -> None:
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        dropping(patch, {6, 7, 8})
        compact(log)
    assert judged(files, held).corrupt


def test_a_record_without_a_key_that_was_dropped_is_found() -> None:
    files = MemoryFiles()
    with open_log(files) as log, pytest.MonkeyPatch.context() as patch:
        topic = log.topic("orders", config={**CONFIG, "cleanup.policy": "delete", "cordwood.chain": "false"})
        topic.append(b"of nobody")
        # The chain begins with the policy, so the leaf of that record commits to it.
        log.alter_topic("orders", config={**CONFIG, "cordwood.chain": "true"})
        for turn in range(6):
            topic.append_many(rows(turn), partition=0)
        held = checkpoint_of(log)
        dropping(patch, {0})
        compact(log)
    assert [record.offset for record in read(files)][:1] != [0]
    report = judged(files, held)
    assert "the record, because it has no key" in [each.expected for each in report.findings]


def test_a_tombstone_that_was_dropped_while_an_older_record_survives_is_found() -> None:
    files = MemoryFiles()
    with open_log(files) as log, pytest.MonkeyPatch.context() as patch:
        fill(log, range(6))
        topic = log.topic("orders")
        topic.append(None, key=b"only 2")
        topic.append(b"last", key=b"same")
        held = checkpoint_of(log)
        keep = 7
        real = KeyMap.superseded

        def superseded(column: Any, numbers: Any, rows_: int, keys: Any) -> bytearray:
            flags = bytearray(real(keys, column, numbers, rows_))
            for row, offset in enumerate(rewriting.numbers_in(numbers)[:rows_]):
                flags[row] = (flags[row] and offset != keep) or offset == 18
            return flags

        honest = rewriting.rewrite

        class Lying:
            def __init__(self, keys: Any) -> None:
                self._keys = keys

            def superseded(self, column: Any, numbers: Any, rows_: int) -> bytearray:
                return superseded(column, numbers, rows_, self._keys)

        patch.setattr(
            "cordwood.storage.maintenance.compactor.rewrite",
            lambda work, old, keys, target: honest(work, old, Lying(keys), target),
        )
        compact(log)
        assert keep in [record.offset for record in topic.read(0)]
        assert 18 not in [record.offset for record in topic.read(0)]
    report = judged(files, held)
    assert "record at offset 7, whose tombstone compaction dropped" in [each.what for each in report.findings]


def read(files: Files) -> list[cordwood.Record]:
    with cordwood.open(DATA, files=files, read_only=True) as log:
        return list(log.topic("orders").read(0))


# --- policies that are declared and taken back ------------------------------------------------------------


def test_a_topic_that_was_not_to_be_compacted_is_not_altered_by_declaring_that_it_is() -> None:
    """The attack that was not found before leaves committed to records."""
    files = MemoryFiles()
    plain = {**CONFIG, "cleanup.policy": "delete"}
    with open_log(files) as log, pytest.MonkeyPatch.context() as patch:
        topic = log.topic("orders", config=plain)
        for turn in range(6):
            topic.append_many(rows(turn), partition=0)
        held = checkpoint_of(log)
        log.alter_topic("orders", config=CONFIG)
        lying(patch, ALTERATIONS["a value"])
        patch.setattr("cordwood.storage.chain.chains.Chains.rewritable", lambda self, log: None)
        patch.setattr("cordwood.storage.chain.chains.keeps_evidence", lambda topic: False)
        compact(log)
        log.alter_topic("orders", config=plain)
    assert b"mine 2" in [record.value for record in read(files)]
    report = judged(files, held)
    assert report.corrupt, report.findings


def test_an_internal_topic_s_right_to_keep_no_evidence_cannot_be_claimed_for_another() -> None:
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.storage.chain.chains.keeps_evidence", lambda topic: False)
        patch.setattr(followers, "keeps_evidence", lambda topic: False)
        lying(patch, ALTERATIONS["a value"])
        patch.setattr(ListWriter, "add", lambda self, leaf, facts, items: None)
        compact(log)
    assert judged(files, held).corrupt


def test_compaction_without_evidence_is_a_note_and_against_a_checkpoint_a_finding() -> None:
    files = MemoryFiles()
    plain = {**CONFIG, "cleanup.policy": "delete"}
    with open_log(files) as log:
        topic = log.topic("orders", config=plain)
        for turn in range(6):
            topic.append_many(rows(turn), partition=0)
        held = checkpoint_of(log)
        log.alter_topic("orders", config=CONFIG)
        topic.roll()
        report = log.maintain(force=True)
        assert report.records_removed == 0, "frames whose leaves do not commit to records stay whole"
        assert log.maintain(evidence=False).records_removed == 5
    assert verify_directory(files, DATA).sound
    assert [each.what for each in judged(files, held).findings if each.severity == "corruption"] == [
        "compaction"
    ]
    with kept_chain(files, join(DATA, "topics/orders/0")) as chain:
        assert chain is not None
        assert [each.evidence for each in chain.statements() if each.kind == "compacted"][-1] == "none"


# --- files that are forged afterwards ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest() -> tuple[dict[str, bytes | None], GivenCheckpoint, dict[str, bytes | None]]:
    """A compacted log, a checkpoint from before the compaction, and the directory as it was then."""
    files = MemoryFiles()
    with pytest.MonkeyPatch.context() as patch, open_log(files) as log:
        patch.setattr("cordwood.host.process.new_seed", lambda: bytes(range(32)))
        fill(log, range(6))
        held = checkpoint_of(log)
        log.data_directory.chains.commit(log.data_directory.partitions.own("orders", 0))
        earlier = image(files, DATA)
        compact(log)
        fill(log, range(6, 9))
        compact(log)
    return image(files, DATA), held, earlier


def test_a_log_that_was_compacted_honestly_is_sound_against_the_checkpoint(
    honest: tuple[dict[str, bytes | None], GivenCheckpoint, dict[str, bytes | None]],
) -> None:
    whole, held, _ = honest
    report = judged(disk_of(whole), held)
    assert report.findings == ()
    assert report.compacted
    assert any("/lists/" in path for path in whole)


def test_lists_that_are_gone_cut_swapped_or_of_another_frame_are_found(
    honest: tuple[dict[str, bytes | None], GivenCheckpoint, dict[str, bytes | None]],
) -> None:
    whole, held, _ = honest
    paths = sorted(path for path, data in whole.items() if "/lists/" in path and data)
    first = whole[paths[0]]
    assert first is not None
    cases: dict[str, dict[str, bytes]] = {
        "cut": {paths[0]: first[:-1]},
        "cut at a list": {paths[0]: first[: 77 + 3 * 65]},
        "longer": {paths[0]: first + b"\0"},
        "empty": {paths[0]: b""},
    }
    fake = bytearray(first[: 77 + 3 * 65])
    struct.pack_into(">Q", fake, 0, 3)
    cases["a list of a frame that is whole"] = {paths[0]: first + bytes(fake)}
    for name, changed in cases.items():
        assert judged(disk_of(whole, changed), held).corrupt, name
    assert judged(disk_of(whole, {}, paths[:1]), held).corrupt
    assert judged(disk_of(whole, {}, [join(CHAIN, "salt")]), held).corrupt


def test_every_flipped_bit_of_lists_statements_and_salt_is_found(
    honest: tuple[dict[str, bytes | None], GivenCheckpoint, dict[str, bytes | None]],
) -> None:
    whole, _, _ = honest
    names = [path for path in whole if "/lists/" in path or path.endswith(("/statements", "/salt"))]
    tried = 0
    files = disk_of(whole)
    for path in names:
        data = whole[path] or b""
        for bit in bits_of(data, 11):
            write_atomically(files, path, flipped(data, bit))
            assert not verify_directory(files, DATA).sound, (path, bit)
            tried += 1
        write_atomically(files, path, data)
    print(f"{tried} flipped bits of {len(names)} files")
    assert tried > 1_000
    assert verify_directory(files, DATA).sound


def test_a_directory_a_chain_or_a_segment_from_another_moment_is_found(
    honest: tuple[dict[str, bytes | None], GivenCheckpoint, dict[str, bytes | None]],
) -> None:
    whole, _, earlier = honest
    with open_log(disk_of(whole)) as log:
        later = checkpoint_of(log, "made at the end")
    assert judged(disk_of(earlier), later).corrupt, "the whole directory"
    chain = {path: data for path, data in earlier.items() if path.startswith(CHAIN) and data is not None}
    newer = [path for path in whole if path.startswith(CHAIN) and path not in earlier]
    assert judged(disk_of(whole, chain, newer), later).corrupt, "its chain"
    segments = {path: data for path, data in earlier.items() if path.endswith(".log") and data is not None}
    assert judged(disk_of(whole, segments), later).corrupt, "its segments"


def test_a_log_that_was_rewritten_twice_with_a_lie_the_second_time_is_found() -> None:
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        compact(log)
        fill(log, range(6, 8))
        topic = log.topic("orders")
        topic.append(b"again", key=b"twice 2")
        lying(patch, ALTERATIONS["a value"])
        compact(log)
    assert judged(files, held).corrupt


def test_a_chain_that_was_made_again_over_the_forged_log_is_found() -> None:
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        lying(patch, ALTERATIONS["a value"])
        compact(log)
    gone = [path for path in image(files, DATA) if path.startswith(CHAIN)]
    gone += [path for path in image(files, DATA) if "/checkpoints/" in path]
    again = disk_of(image(files, DATA), {}, gone)
    with open_log(again) as log:
        log.data_directory.chains.commit(log.data_directory.partitions.own("orders", 0))
    assert judged(again, held).corrupt


def test_evidence_that_was_made_to_expire_leaves_no_altered_log_sound() -> None:
    """Whether a record was altered cannot be checked any more: verify says that against the checkpoint."""
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        lying(patch, ALTERATIONS["a value"])
        compact(log)
        partition = log.data_directory.partitions.own("orders", 0)
        log.data_directory.chains.expire_lists(partition, 1 << 60, "no reason")
    assert not any("/lists/" in path and data for path, data in image(files, DATA).items())
    report = judged(files, held)
    assert not report.sound
    assert report.unchecked


def test_a_statement_about_other_lists_does_not_excuse_those_that_are_gone() -> None:
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        lying(patch, ALTERATIONS["a value"])
        compact(log)
        chains, partition = log.data_directory.chains, log.data_directory.partitions.own("orders", 0)
        patch.setattr(
            followers.Follower,
            "expire_lists",
            lambda self, before_ms, reason: self._say("expired", 0, 0, self.next_offset, lists=1) or True,
        )
        chains.expire_lists(partition, 1 << 60, "no reason")
    gone = [path for path, data in image(files, DATA).items() if "/lists/" in path and data]
    assert judged(disk_of(image(files, DATA), {}, gone), held).corrupt


def test_expired_evidence_does_not_excuse_the_last_record_of_a_key() -> None:
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        dropping(patch, {7})
        compact(log)
        partition = log.data_directory.partitions.own("orders", 0)
        log.data_directory.chains.expire_lists(partition, 1 << 60, "no reason")
    assert not judged(files, held).sound


# --- proofs ---------------------------------------------------------------------------------------------


def test_a_forged_record_is_not_proven_and_a_moved_one_is_under_the_old_checkpoint() -> None:
    with before_compaction() as (files, log, held):
        compact(log)
        log.checkpoint("orders")
        moved = cordwood.prove(DATA, "orders", 7, checkpoint=held.note, files=files)
        proven = cordwood.verify_proof(moved.document(), held.key)
        assert proven.record is not None
        assert (proven.record.key, proven.record.value) == (b"only 2", b"kept 2")
        assert proven.record.headers == (("trace", b"2"),)
        with pytest.raises(cordwood.errors.EvidenceMissing, match="removed"):
            cordwood.prove(DATA, "orders", 6, files=files)
    with before_compaction() as (files, log, held), pytest.MonkeyPatch.context() as patch:
        lying(patch, ALTERATIONS["a value"])
        compact(log)
        log.checkpoint("orders")
        with pytest.raises(cordwood.errors.EvidenceRefused, match="not what was first appended"):
            cordwood.prove(DATA, "orders", 7, files=files)


def test_no_directory_helper_hides_the_engine() -> None:
    """The attacks above run the engine of the product."""
    with before_compaction() as (_, log, _held):
        assert isinstance(log.data_directory, DataDirectory)
