"""Chains that were forged to agree with an altered log, file by file; one checkpoint is held elsewhere.

Unlike in `test_insider`, no engine runs: metadata say what no engine would make them say. Invariant I4.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.forging import Forgery, Row, batch_of, bounds
from support.logs import DATA, open_log

import cordwood
from cordwood.disk.files import Files, join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import EvidenceRefused
from cordwood.integrity import Proof
from cordwood.integrity.note import VerifierKey
from cordwood.kernels import BinaryBuffers, Buffer
from cordwood.storage.maintenance import rewriting
from cordwood.verify import GivenCheckpoint, verify_directory

COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": "100000",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
}


class Signed:
    """A log with *turns* frames of *count* records, and the checkpoint that somebody else has of it."""

    def __init__(self, turns: int, count: int, *, compacted: bool = False) -> None:
        self.files = MemoryFiles()
        with open_log(self.files) as log:
            topic = log.topic("orders", config=COMPACT if compacted else {"segment.bytes": "100000"})
            for turn in range(turns):
                rows = [(b"k%d-%d" % (turn, number), b"value") for number in range(count - 1)]
                topic.append_many([(b"same", b"value %d" % turn), *rows], partition=0)
            topic.roll()
            self.held = [held(log)]
            if compacted:
                assert log.maintain(force=True).compacted
            self.rows: list[Row] = [(r.offset, r.timestamp, r.key, r.value) for r in topic.read(0)]
        self.forgery = Forgery(self.files)

    def rows_in(self, start: int, end: int) -> list[Row]:
        return [row for row in self.rows if start <= row[0] < end]

    def forged(self, start: int, end: int) -> list[Row]:
        """Return the records of [start, end) with another value."""
        return [(*row[:3], b"FORGED") for row in self.rows_in(start, end)]

    def is_found(self) -> bool:
        return bool(self.corruption())

    def corruption(self) -> list[str]:
        """Return what is called corrupt."""
        report = verify_directory(self.forgery.written(), DATA, checkpoints=self.held)
        return [each.what for each in report.findings if each.severity == "corruption"]


def held(log: cordwood.Log) -> GivenCheckpoint:
    (signed,) = log.checkpoint("orders")
    text = read_file(log.data_directory.files, join(DATA, "meta/keys/checkpoint.pub")).decode().strip()
    return GivenCheckpoint("held elsewhere", signed.note, VerifierKey.parse(text))


def test_a_forgery_that_changes_nothing_is_sound() -> None:
    """The kit itself gives nothing away."""
    for compacted in (False, True):
        signed = Signed(6, 3, compacted=compacted)
        forgery = signed.forgery
        forgery.use_segments([(0, forgery.end, int(compacted), forgery.frames())])
        assert not signed.is_found()


def test_signed_leaves_that_are_called_moved_are_found() -> None:
    """One leaf is said to span everything, over the boundary of two segments, so that neither misses it."""
    signed = Signed(8, 1)
    forgery, end = signed.forgery, signed.forgery.end
    count, half = len(forgery.leaves), end // 2
    forgery.entries[0] = (0, end)
    forgery.say("compacted", 0, end, end, generation=99, frames=0, moved=count - 1, root="")
    lies = [batch_of(offset, 0, signed.forged(offset, offset + 1)) for offset in range(end)]
    forgery.say_compacted(0, half, 1, lies[:half])
    forgery.say_compacted(half, end, 1, lies[half:])
    forgery.use_segments([(0, half, 1, lies[:half]), (half, end, 1, lies[half:])])
    found = signed.corruption()
    assert "moved leaves" in found
    assert any(each.startswith("frame at offset 0, which was never appended") for each in found)


def test_segments_that_end_within_signed_frames_are_found() -> None:
    signed = Signed(4, 3)
    edges = [0, 1, 4, 7, 10, 12]
    made = [
        (start, end, 1, [batch_of(start, end - start - 1, signed.forged(start, end))])
        for start, end in pairwise(edges)
    ]
    for each in made:
        signed.forgery.say_compacted(*each)
    signed.forgery.use_segments(made)
    assert signed.is_found()


def test_a_rewritten_frame_that_was_split_is_found() -> None:
    """Its list is true, and neither half has the offsets of a leaf."""
    signed = Signed(6, 3, compacted=True)
    forgery, new = signed.forgery, list[bytes]()
    for frame in forgery.frames():
        if bounds(frame) == (6, 9):
            new += [batch_of(6, 1, signed.forged(7, 8)), batch_of(8, 0, signed.rows_in(8, 9))]
        else:
            new.append(frame)
    forgery.say_compacted(0, 18, 2, new, [frame for frame in new if bounds(frame) != (15, 18)])
    forgery.use_segments([(0, 18, 2, new)])
    assert signed.is_found()


@pytest.mark.parametrize("way", ["backwards", "after a cut"])
def test_a_gap_over_what_is_signed_for_is_found(way: str) -> None:
    signed = Signed(8, 1)
    forgery, end = signed.forgery, signed.forgery.end
    if way == "backwards":
        forgery.say("gap", end, 0, 0, reason="damaged")
    else:
        forgery.state["leader_epoch"] = forgery.head["leader_epoch"] = 1
        forgery.state["epochs"].append({"epoch": 1, "start_offset": end})
        base = forgery.state["active_base"]
        forgery.state["epoch_start"] = {"base": base, "position": 0, "next_offset": end}
        forgery.say("truncated", end, end, 0)
    forgery.say("gap", 0, end, end, reason="damaged")
    forgery.use_segments([(0, end, 0, [batch_of(0, end - 1, signed.forged(0, end))])])
    assert signed.is_found()


def test_a_statement_or_a_record_format_that_nobody_knows_is_found() -> None:
    signed = Signed(4, 1)
    signed.forgery.say("noted", signed.forgery.end, signed.forgery.end, signed.forgery.end)
    assert signed.is_found()
    signed = Signed(4, 1)
    signed.forgery.state["record_format"] = "future"
    assert signed.is_found()


def test_an_older_record_that_is_back_because_its_successor_was_dropped_is_found() -> None:
    """A later record with the key is appended, used as a reason to drop one, and truncated."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("orders", config=COMPACT)
        topic.append(b"balance 100", key=b"account")
        topic.append(b"other", key=b"other")
        topic.append(b"balance 0", key=b"account")
        note, end = held(log), topic.log_end_offset(0)
        topic.append(b"bait", key=b"account")
        topic.roll()
        dropping_only(log, {2})
        topic.truncate(0, end, force=True)
        assert [record.value for record in topic.read(0)] == [b"balance 100", b"other"]
    assert verify_directory(files, DATA, checkpoints=[note]).corrupt


def dropping_only(log: cordwood.Log, offsets: set[int]) -> None:
    """Compact, but drop these records and no others."""
    honest = rewriting.rewrite

    class Lying:
        def superseded(self, column: BinaryBuffers, numbers: Buffer, rows: int) -> bytearray:
            return bytearray(offset in offsets for offset in rewriting.numbers_in(numbers)[:rows])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "cordwood.storage.maintenance.compactor.rewrite",
            lambda work, old, keys, target: honest(work, old, Lying(), target),
        )
        assert log.maintain(force=True).compacted


def test_a_frame_that_compaction_wrote_proves_nothing() -> None:
    """Its leaf is signed for, but commits only to what compaction left; the original leaf proves records."""
    signed = Signed(6, 3, compacted=True)
    files: Files = signed.files
    with open_log(signed.files) as log:
        (later,) = log.checkpoint("orders")
    forgery, key = Forgery(files), signed.held[0].key
    frame = next(each for each in forgery.frames() if bounds(each) == (6, 9))
    with open_log(signed.files) as log:
        proof = cordwood.prove(DATA, "orders", 7, files=log.data_directory.files)
    for leaf in range(len(forgery.leaves)):
        claimed = Proof(
            format="cordwood-proof/1",
            offset=7,
            first_offset=6,
            next_offset=9,
            leaf=leaf,
            path=proof.path,
            checkpoint=later.note,
            key=str(key),
            frame=frame,
        )
        with pytest.raises(EvidenceRefused):
            cordwood.verify_proof(claimed, key)
