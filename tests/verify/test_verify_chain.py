"""Verify holds chains against themselves, frames against their leaves, and both against what was signed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from support.chains import HandChain, keep_key, keep_note, leaf_of
from support.clocks import HookedFiles
from support.crashes import CrashCount, crash_images
from support.data_directory import (
    Frame,
    Partition,
    envelope,
    flipped,
    frame,
    index_of,
    log_of,
    orders_partition,
    put,
    rising_frames,
    slot,
    time_index_of,
    topic_entry,
    with_crc,
    write_catalogue,
)
from support.disks import RecordingFiles
from support.logs import DATA, open_log
from support.verifying import ROOT, notes, one_partition, orders_path, segment_file, serious, verify

from cordwood import Log
from cordwood.disk.files import Files, join
from cordwood.disk.memory import MemoryFiles
from cordwood.integrity.note import SigningKey
from cordwood.verify import (
    Finding,
    GivenCheckpoint,
    SegmentCheck,
    SegmentResult,
    VerifyReport,
    run_check,
    verify_directory,
)

KEY = SigningKey("u-1", bytes(range(32)))
CHAIN = orders_path("chain")


def frames_of(partition: Partition) -> list[Frame]:
    return [*(each for segment in partition.sealed for each in segment), *partition.active]


def chained(partition: Partition | None = None, followed: int | None = None) -> tuple[MemoryFiles, HandChain]:
    """Return a directory whose partition has leaves for its first *followed* frames, or for all."""
    partition = partition or orders_partition()
    files = one_partition(partition)
    chain = HandChain().follow(frames_of(partition)[:followed])
    chain.write(files, partition.directory(ROOT))
    return files, chain


def with_chain(partition: Partition, chain: HandChain) -> MemoryFiles:
    files = one_partition(partition)
    chain.write(files, partition.directory(ROOT))
    return files


def corruption(report: VerifyReport) -> Finding:
    """Return the first finding, of which nothing but corruption is expected."""
    found = serious(report)
    assert {each.severity for each in found} == {"corruption"}
    return found[0]


def altered(original: Frame) -> Frame:
    """Return another frame of the same size and place, under a checksum that is right."""
    return replace(original, data=with_crc(original.data.replace(b"k0", b"K0")))


def plain_partition(**changes: Any) -> Partition:
    """Return three sealed segments and an active one that is marked whole."""
    sealed = [rising_frames(0, 6), rising_frames(12, 4), rising_frames(20, 5)]
    return Partition("orders", "id-orders", 0, sealed, rising_frames(30, 3), marked=3, **changes)


# --- frames -------------------------------------------------------------------------------------------------


def test_every_frame_that_has_a_leaf_is_compared_however_far_the_chain_has_come() -> None:
    partition = orders_partition()
    # The last two are not marked: leaves of those may be there after a power cut that took the mark back.
    for followed in range(21):
        files, _ = chained(partition, followed)
        report = verify(files)
        assert not serious(report), followed
        assert (report.leaves, report.frames_compared) == (followed, followed)
        assert report.checkpoints == report.removed == report.compacted == 0


@pytest.mark.parametrize("number", range(18))
def test_an_edit_under_right_checksums_indexes_and_hashes_is_named_with_file_position_and_offset(
    number: int,
) -> None:
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    for segment in [*partition.sealed, partition.active]:
        if number < len(segment):
            position = len(log_of(segment[:number]))
            base, offset = segment[0].base_offset, segment[number].base_offset
            segment[number] = altered(segment[number])
            break
        number -= len(segment)
    found = corruption(verify(with_chain(partition, chain)))
    assert (found.path, found.position) == (segment_file(base, "log"), position)
    assert found.what == f"frame at offset {offset}, its leaf"


def test_the_first_break_of_a_segment_is_named_and_the_others_are_counted() -> None:
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    partition.sealed[0][2:] = [altered(each) for each in partition.sealed[0][2:]]
    (found,) = serious(verify(with_chain(partition, chain)))
    assert found.what == "frame at offset 4, its leaf (the first of 4 frames)"


@pytest.mark.parametrize("number", range(6))
def test_a_frame_that_is_taken_out_is_missed(number: int) -> None:
    """Offsets may have gaps in a segment that was compacted, so only the leaves tell."""
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    gone = partition.sealed[0].pop(number)
    entry = partition.sealed_entry(partition.sealed[0]) | {"base": 0, "next_offset": 12}
    others = [partition.sealed_entry(each) for each in partition.sealed[1:]]
    partition.changes["sealed"] = [entry, *others]
    files = with_chain(partition, chain)
    for suffix, data in (
        ("log", log_of(partition.sealed[0])),
        ("idx", index_of(partition.sealed[0], 200)),
        ("timeidx", time_index_of(partition.sealed[0])),
    ):
        put(files, segment_file(0, suffix), data)
    whats = [each.what for each in serious(verify(files)) if each.severity == "corruption"]
    assert f"frame at offset {gone.base_offset} is missing" in whats


def test_frames_that_were_never_appended_are_named() -> None:
    """Two frames in the place of one, and one in the place of two."""
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    one, two = partition.sealed[0][1], partition.sealed[0][3:5]
    split = [frame(one.base_offset, [b"a"]), frame(one.base_offset + 1, [b"b"])]
    for place, instead in ((slice(1, 2), split), (slice(3, 5), [frame(two[0].base_offset, [b"x"] * 4)])):
        changed = plain_partition()
        changed.sealed[0][place] = instead
        found = corruption(verify(with_chain(changed, chain)))
        offset = instead[0].base_offset
        assert found.what.startswith(f"frame at offset {offset}, which was never appended")


def test_a_log_that_ends_before_its_leaves_is_told_and_one_that_was_truncated_is_not() -> None:
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    partition.active, partition.marked = partition.active[:1], 1
    found = corruption(verify(with_chain(partition, chain)))
    assert found.what == "leaves go on"
    assert (found.path, found.position) == (segment_file(30, "log"), len(partition.active[0].data))
    partition.epochs = [(0, 0), (1, 32)]
    partition.epoch_start = {"base": 30, "position": len(partition.active[0].data), "next_offset": 32}
    assert verify(with_chain(partition, chain)).sound


def test_a_cut_within_a_frame_is_no_break_before_nor_after_the_chain_tells_of_it() -> None:
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    partition.active = [frame(30, [b"v"])]
    partition.marked = 1
    partition.epochs = [(0, 0), (1, 31)]
    end = len(partition.active[0].data)
    partition.epoch_start = {"base": 30, "position": end, "next_offset": 31}
    assert verify(with_chain(partition, chain)).sound
    chain.cut(31, goes_on=30).follow(partition.active)
    report = verify(with_chain(partition, chain))
    assert report.sound
    assert report.frames_compared == 16
    partition.active = [altered(partition.active[0])]
    assert corruption(verify(with_chain(partition, chain))).what == "frame at offset 30, its leaf"


def test_a_log_that_was_truncated_and_has_grown_again_must_have_the_later_leaves() -> None:
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    stale = partition.active[1:]
    later = [frame(32, [b"other", b"one"], epoch=1), frame(34, [b"and", b"another"], epoch=1)]
    partition.active[1:] = later
    partition.epochs = [(0, 0), (1, 32)]
    first = len(partition.active[0].data)
    partition.epoch_start = {"base": 30, "position": first, "next_offset": 32}
    chain.cut(32).follow(later)
    report = verify(with_chain(partition, chain))
    assert report.sound
    assert report.frames_compared == 18
    # What was cut off comes back, in the epoch that the partition has there now.
    for number, each in enumerate(stale):
        data = each.data[:12] + b"\0\0\0\1" + each.data[16:]
        partition.active[1 + number] = replace(each, data=data)
    assert corruption(verify(with_chain(partition, chain))).what.startswith("frame at offset 32, its leaf")


def test_frames_before_the_chain_and_in_its_gaps_are_not_compared_and_the_gaps_are_said() -> None:
    partition = plain_partition()
    frames = frames_of(partition)
    chain = HandChain(first_offset=4).follow(frames[2:7]).say("gap", 14, 22, 22, reason="damaged")
    chain.follow(frames[11:])
    report = verify(with_chain(partition, chain))
    assert report.sound
    assert report.frames_compared == 18 - 2 - 4
    assert [each.found.split()[0] for each in notes(report)] == ["3", "1"]
    # The SHA-256 still stands for what has no leaf.
    partition.sealed[0][0] = altered(partition.sealed[0][0])
    assert verify(with_chain(partition, chain)).sound
    partition.changes["sealed"] = [
        partition.sealed_entry(each) | {"sha256": "0" * 64} for each in partition.sealed
    ]
    wrong = [each.path for each in serious(verify(with_chain(partition, chain)))]
    assert wrong == [segment_file(base, "log") for base in (0, 12, 20)]


def test_a_gap_below_the_log_start_is_nobodys_concern() -> None:
    partition = plain_partition(log_start=4)
    frames = frames_of(partition)
    chain = HandChain().say("gap", 0, 4, 4, reason="removed").follow(frames[2:])
    report = verify(with_chain(partition, chain))
    assert report.findings == ()
    assert report.frames_compared == 16


def test_a_frame_may_lie_in_two_gaps_that_touch() -> None:
    partition = plain_partition()
    frames = frames_of(partition)
    chain = HandChain().follow(frames[:6]).say("gap", 12, 13, 13, reason="removed")
    chain.say("gap", 13, 14, 14, reason="compacted").follow(frames[7:])
    report = verify(with_chain(partition, chain))
    assert report.sound
    assert report.frames_compared == 17


def test_every_byte_is_hashed_once_where_leaves_cover_the_segment() -> None:
    """So a hash in partition.json that is not that of the log is no news: what the log is, the leaves say."""
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    partition.changes["sealed"] = [
        partition.sealed_entry(each) | {"sha256": "0" * 64} for each in partition.sealed
    ]
    assert verify(with_chain(partition, chain)).findings == ()
    assert verify(one_partition(partition)).count("corruption") == 3


def test_a_gap_excuses_nothing_that_was_appended_after_a_cut_into_it() -> None:
    partition = plain_partition()
    later = [frame(14 + 2 * number, [b"later", b"on"], epoch=1) for number in range(3)]
    partition.sealed = [partition.sealed[0], [partition.sealed[1][0], *later]]
    partition.active, partition.marked = [], 0
    partition.epochs = [(0, 0), (1, 14)]
    partition.epoch_start = {"base": 12, "position": len(partition.sealed[1][0].data), "next_offset": 14}
    chain = HandChain().follow(partition.sealed[0])
    chain.say("gap", 12, 20, 20, reason="damaged").cut(14).follow(later)
    report = verify(with_chain(partition, chain))
    assert report.sound
    assert report.frames_compared == 9
    partition.sealed[1][2:3] = [frame(16, [b"not"], epoch=1), frame(17, [b"appended"], epoch=1)]
    found = corruption(verify(with_chain(partition, chain)))
    assert found.what.startswith("frame at offset 16, which was never appended")


# --- compaction ---------------------------------------------------------------------------------------------


def sparse(original: Frame) -> Frame:
    """Return what compaction leaves of a frame: its first record is gone, its offsets are not."""
    kept = frame(original.base_offset, [b"", b"left"], timestamp=original.max_timestamp - 1)
    return replace(kept, next_offset=original.next_offset)


def compacted(generation: int = 1, lose: Sequence[int] = ()) -> tuple[Partition, HandChain, list[Frame]]:
    """Return a partition whose first segment was compacted: frame 1 written anew, 3 and *lose* taken out."""
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    before = partition.sealed[0]
    moved = sparse(before[1])
    after = [before[0], moved, before[2], *before[4:]]
    chain.compact(0, 12, generation, after, [moved])
    partition.sealed[0] = [each for number, each in enumerate(after) if number not in lose]
    say_generation(partition, generation)
    return partition, chain, before


def say_generation(partition: Partition, generation: int) -> None:
    entries = [partition.sealed_entry(each) for each in partition.sealed]
    entries[0] |= {"base": 0, "next_offset": 12, "generation": generation}
    partition.changes["sealed"] = entries


def test_a_compacted_segment_is_what_the_statement_says_and_what_stayed_keeps_its_leaves() -> None:
    partition, chain, _ = compacted()
    report = verify(with_chain(partition, chain))
    assert without_evidence(report) == 2
    assert (report.compacted, report.frames_compared, report.leaves) == (1, 17, 20)


def without_evidence(report: VerifyReport) -> int:
    """Return how many frames are noted to have been compacted without evidence; nothing else may be found."""
    (note,) = report.findings
    assert (note.severity, note.what) == ("note", "compaction")
    return int(note.found.split()[2].rstrip(","))


def test_frames_of_a_compacted_segment_that_come_back_or_go_are_told() -> None:
    partition, chain, before = compacted()
    after = partition.sealed[0]
    cases: list[tuple[str, list[Frame]]] = [
        # The frame as it was before: valid, once appended, and stale.
        ("frame at offset 2, its leaf", [after[0], before[1], *after[2:]]),
        ("what compaction left", [*after[:3], before[3], *after[3:]]),
        ("what compaction left", [*after[:2], *after[3:]]),
        ("frame at offset 8, its leaf", [*after[:3], altered(after[3]), *after[4:]]),
    ]
    for what, frames in cases:
        partition.sealed[0] = frames
        say_generation(partition, 1)
        assert corruption(verify(with_chain(partition, chain))).what == what


def test_a_compaction_that_nobody_testifies_to_is_noted() -> None:
    partition, chain, _ = compacted()
    say_generation(partition, 2)
    report = verify(with_chain(partition, chain))
    assert report.sound
    unlisted, note = notes(report)
    assert (note.path, note.what) == (segment_file(0, "log"), "compaction")
    assert "without evidence" in unlisted.found
    assert "no statement about generation 2" in note.found


def test_a_statement_of_a_swap_that_never_happened_says_nothing_of_the_segment() -> None:
    partition, chain, before = compacted()
    partition.sealed[0] = before
    partition.changes = {}
    report = verify(with_chain(partition, chain))
    assert report.findings == ()
    assert report.frames_compared == 18


def test_the_newest_of_several_compactions_counts() -> None:
    partition, chain, before = compacted()
    again = [before[0], frame(2, [b"", b"less"], timestamp=5), before[5]]
    chain.compact(0, 12, 2, again, [again[1]])
    partition.sealed[0] = again
    say_generation(partition, 2)
    assert without_evidence(verify(with_chain(partition, chain))) == 4
    # The frame that the compaction before had written.
    partition.sealed[0] = [again[0], sparse(before[1]), again[2]]
    say_generation(partition, 2)
    assert corruption(verify(with_chain(partition, chain))).what == "frame at offset 2, its leaf"


def test_what_was_compacted_then_cut_and_has_grown_again_is_not_held_against_the_old_statement() -> None:
    """It may end at the same offset, and have the same generation, by chance."""
    partition, chain, _ = compacted()
    later = [frame(8, [b"1", b"2"], epoch=1), frame(10, [b"3", b"4"], epoch=1)]
    partition.sealed = [[*partition.sealed[0][:3], *later]]
    partition.active, partition.marked = [], 0
    partition.epochs = [(0, 0), (1, 8)]
    partition.epoch_start = {"base": 0, "position": 0, "next_offset": 8}
    partition.changes["active_base"] = 12
    say_generation(partition, 1)
    chain.cut(8).follow(later)
    report = verify(with_chain(partition, chain))
    assert report.sound
    assert [note.what for note in notes(report)] == ["compaction", "compaction"]
    assert report.frames_compared == 5


def test_a_cut_in_a_gap_that_compaction_left_is_where_the_log_goes_on() -> None:
    """The last frame ends before the cut, and the next one begins there: no record is missing."""
    for sealed in (False, True):
        partition, chain, _ = compacted()
        kept = partition.sealed[0][:3]
        partition.sealed, partition.active, partition.marked = ([kept], [], 0) if sealed else ([], kept, 3)
        partition.epochs = [(0, 0), (1, 7)]
        end = {"base": 0, "position": len(log_of(kept)), "next_offset": 7}
        partition.epoch_start = end
        entry = partition.sealed_entry(kept) | {"next_offset": 7, "generation": 1}
        partition.changes = {"sealed": [entry], "active_base": 7} if sealed else {"active_generation": 1}
        chain.cut(7, goes_on=6).say("gap", 6, 7, 7, reason="compacted")
        files = with_chain(partition, chain)
        if sealed:
            for suffix in ("log", "idx", "timeidx"):
                put(files, segment_file(7, suffix), b"")
            put(files, orders_path("mark"), slot(epoch=1, base=7, next_offset=7) + bytes(512))
        report = verify(files)
        assert not serious(report), sealed
        assert report.frames_compared == 3


# --- the chain by itself ------------------------------------------------------------------------------------


def test_the_head_must_be_that_of_the_leaves_and_of_the_partition() -> None:
    changes: list[tuple[str, object, str]] = [
        ("root", "0" * 64, "root"),
        ("chain_head", "0" * 64, "head of the chain"),
        ("next_offset", 35, "next offset"),
        ("topic_id", "another", "topic id of the chain"),
        ("leader_epoch", 1, "leader epoch of the chain"),
        ("size", 17, "root"),
        ("size", 19, "size of the file"),
        ("statements_size", 3, "statements"),
    ]
    for name, value, what in changes:
        files, chain = chained(plain_partition())
        chain.changes[name] = value
        put(files, f"{CHAIN}/head", chain.head())
        found = [each.what for each in serious(verify(files)) if each.severity == "corruption"]
        assert what in found, name


def test_a_head_without_leaves_needs_no_other_file() -> None:
    files = one_partition(plain_partition())
    put(files, f"{CHAIN}/head", HandChain().head())
    assert verify(files).findings == ()
    empty, one = HandChain(), HandChain().follow(rising_frames(0, 1))
    assert verify_directory(files, ROOT, checkpoints=[given(empty.note(KEY))]).findings == ()
    report = verify_directory(files, ROOT, checkpoints=[given(one.note(KEY))])
    assert corruption(report).path == CHAIN
    for name, value in (("root", "0" * 64), ("chain_head", "1" * 64), ("next_offset", 3)):
        put(files, f"{CHAIN}/head", HandChain(changes={name: value}).head())
        assert corruption(verify(files)).what == "head without leaves"


def test_what_lies_beyond_the_head_never_happened() -> None:
    files, chain = chained(plain_partition())
    for name, data in chain.contents().items():
        if name != "head":
            put(files, f"{CHAIN}/{name}", data + b"left by a crash")
    assert verify(files).findings == ()


def test_leaves_without_a_head_are_corruption_and_an_empty_directory_is_not() -> None:
    files, _ = chained()
    files.unlink(f"{CHAIN}/head")
    found = corruption(verify(files))
    assert (found.path, found.what) == (f"{CHAIN}/head", "chain")
    put(files, f"{CHAIN}/leaves", b"")
    assert not serious(verify(files))


def test_a_tree_that_is_wrong_short_or_gone_can_be_built_again() -> None:
    files, chain = chained()
    tree = chain.contents()["tree"]
    for wrong, position in (
        (flipped(tree, 8 * 100), 96),
        (tree[:-1], len(tree) - 32),
        (b"", 0),
        (None, None),
    ):
        if wrong is None:
            files.unlink(f"{CHAIN}/tree")
        else:
            put(files, f"{CHAIN}/tree", wrong)
        (found,) = serious(verify(files))
        assert (found.severity, found.path, found.position) == ("index", f"{CHAIN}/tree", position)


def wrong_chains() -> list[tuple[str, Callable[[HandChain], object]]]:
    def swap_entries(chain: HandChain) -> None:
        chain.entries[3], chain.entries[4] = chain.entries[4], chain.entries[3]

    def other_line(chain: HandChain) -> None:
        chain.lines[0] = chain.lines[0].replace(b"damaged", b"removed")

    def other_leaf(chain: HandChain) -> None:
        chain.lines[0] = chain.lines[0].replace(b'"leaf":18', b'"leaf":17')

    def unknown(chain: HandChain) -> None:
        chain.lines[0] = chain.lines[0].replace(b'"gap"', b'"new"')
        chain.leaves[18] = leaf_of(b"\xff" + chain.lines[0])

    def gap_elsewhere(chain: HandChain) -> None:
        chain.entries[18] = (35, 35)

    def frame_for_statement(chain: HandChain) -> None:
        chain.entries[18] = (36, 40)

    def two_lines(chain: HandChain) -> None:
        chain.lines.append(chain.lines[0])

    return [
        ("offsets of leaf 3", swap_entries),
        ("statement 0, its leaf", other_line),
        ("offsets of leaf 17", other_leaf),
        ("kind of statement", unknown),
        ("offsets of leaf 18", gap_elsewhere),
        ("offsets of leaf 18", frame_for_statement),
        ("leaf of a statement", two_lines),
        ("statement", lambda chain: chain.lines.__setitem__(0, b"{")),
    ]


@pytest.mark.parametrize(("what", "change"), wrong_chains())
def test_entries_and_statements_must_agree_with_each_other(
    what: str, change: Callable[[HandChain], object]
) -> None:
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition)).say("gap", 36, 40, 40, reason="damaged")
    change(chain)
    found = serious(verify(with_chain(partition, chain)))
    assert what in [each.what for each in found]


def test_frames_that_compaction_moved_must_lie_in_its_segment_in_order() -> None:
    for wrong in ((0, 14), (12, 14), (2, 2), (3, 2)):
        partition, chain, _ = compacted()
        chain.entries[18] = wrong
        assert "offsets of leaf 18" in [each.what for each in serious(verify(with_chain(partition, chain)))]


def test_statements_that_are_cut_off_at_the_end_of_a_line_are_missed() -> None:
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    chain.say("removed", 0, 12, reason="retention.ms").say("removed", 12, 20, reason="retention.ms")
    files = with_chain(partition, chain)
    put(files, f"{CHAIN}/statements", chain.lines[0] + b"\n")
    found = corruption(verify(files))
    assert (found.path, found.position) == (f"{CHAIN}/statements", len(chain.lines[0]) + 1)


def test_what_statements_say_is_counted_and_only_a_loss_is_corruption() -> None:
    partition = plain_partition()
    chain = HandChain().follow(frames_of(partition))
    chain.say("removed", 0, 12, reason="retention.ms").say("removed", 12, 20, reason="retention.bytes")
    report = verify(with_chain(partition, chain))
    assert report.findings == ()
    assert report.removed == 2
    chain.next_offset = 40
    chain.entries += [(36, 40)]
    chain.leaves += [bytes(32)]
    chain.cut(36, kind="lost")
    found = corruption(verify(with_chain(partition, chain)))
    assert (found.path, found.what) == (f"{CHAIN}/statements", "records lost")
    assert found.found == "its end at 36 on 2026-01-02 03:04:05 UTC"


def test_a_log_that_begins_later_than_anybody_said_is_noted() -> None:
    partition = plain_partition(log_start=12)
    chain = HandChain().follow(frames_of(partition))
    partition.sealed = partition.sealed[1:]
    report = verify(with_chain(partition, chain))
    assert report.sound
    (told,) = notes(report)
    assert told.expected == "a statement that offsets 0 up to 12 were removed"
    chain.say("removed", 0, 12, reason="retention.ms")
    assert verify(with_chain(partition, chain)).findings == ()


# --- what was signed ----------------------------------------------------------------------------------------


def signed(partition: Partition, sizes: Sequence[int]) -> tuple[MemoryFiles, list[str]]:
    """Return a directory with a chain, and notes of it at *sizes*, which are kept in it."""
    files, _ = chained(partition)
    keep_key(files, ROOT, KEY)
    noted = []
    for size in sizes:
        note = HandChain().follow(frames_of(partition)[:size]).note(KEY)
        noted.append(note)
        keep_note(files, ROOT, "id-orders", 0, size, note)
    return files, noted


def given(note: str) -> GivenCheckpoint:
    return GivenCheckpoint("monday.note", note, KEY.verifier)


def test_checkpoints_of_every_size_hold_kept_and_given() -> None:
    files, noted = signed(plain_partition(), range(19))
    report = verify(files)
    assert report.findings == ()
    assert report.checkpoints == 19
    report = verify_directory(files, ROOT, checkpoints=[given(note) for note in noted])
    assert report.findings == ()
    assert report.checkpoints == 38


def test_whoever_makes_everything_anew_is_caught_by_what_is_held_outside() -> None:
    partition = plain_partition()
    _, noted = signed(partition, [18])
    partition.sealed[0][1] = altered(partition.sealed[0][1])
    files, _ = signed(partition, [18])
    assert verify(files).findings == ()
    found = corruption(verify_directory(files, ROOT, checkpoints=[given(noted[0])]))
    assert (found.path, found.what) == (f"{CHAIN}/leaves", "root of the first 18 leaves")
    assert "which monday.note signs for" in found.expected


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("root", bytes(32), "root of the first 18 leaves"),
        ("chain_head", bytes(32), "head of the chain over the first 18 leaves"),
        ("next_offset", 35, "offset after the first 18 leaves"),
        ("size", 19, "number of leaves"),
        ("origin", "u-2/orders/0", "origin of a checkpoint"),
        ("origin", "u-1/payments/0", "checkpoint of something else"),
        ("origin", "nonsense", "checkpoint of something else"),
    ],
)
def test_each_thing_that_a_given_checkpoint_says_is_compared(field: str, value: Any, what: str) -> None:
    files, chain = chained(plain_partition())
    said = replace(chain.checkpoint("u-1/orders/0"), **{field: value})
    report = verify_directory(files, ROOT, checkpoints=[given(said.signed(KEY))])
    assert corruption(report).what == what
    if what == "checkpoint of something else":
        assert verify_directory(files, ROOT, "orders", checkpoints=[given(said.signed(KEY))]).sound


def test_a_checkpoint_that_its_key_did_not_sign_so_is_refused() -> None:
    files, (note,) = signed(plain_partition(), [18])
    stranger = SigningKey("u-1", bytes(32))
    for wrong in (note.replace("\n18\n", "\n17\n"), note.replace("u-1/orders", "u-1/others"), "", "\n\n"):
        found = corruption(verify_directory(files, ROOT, checkpoints=[given(wrong)]))
        assert (found.path, found.what) == ("monday.note", "checkpoint")
        path = keep_note(files, ROOT, "id-orders", 0, 18, wrong)
        assert corruption(verify(files)).path == path
        keep_note(files, ROOT, "id-orders", 0, 18, note)
    report = verify_directory(files, ROOT, checkpoints=[GivenCheckpoint("x", note, stranger.verifier)])
    assert "is not signed by" in corruption(report).found


def test_kept_checkpoints_need_their_key_their_name_and_their_partition() -> None:
    files, (note,) = signed(plain_partition(), [18])
    path = keep_note(files, ROOT, "id-orders", 0, 17, note)
    assert corruption(verify(files)).what == "size that a checkpoint signs for"
    files.unlink(path)
    path = keep_note(files, ROOT, "id-orders", 1, 18, note)
    assert corruption(verify(files)).found == "no partition 1 of topic orders"
    files.unlink(path)
    keep_note(files, ROOT, "id-gone", 0, 18, note)
    assert corruption(verify(files)).found == "no partition 0 of topic id-gone"
    entries = [topic_entry("gone", "id-gone", 1), {"kind": "deleted", "id": "id-gone"}]
    write_catalogue(files, ROOT, [*entries, topic_entry("orders", "id-orders", 1)])
    assert verify(files).findings == ()
    for key in (b"nonsense", None):
        if key is None:
            files.unlink(f"{ROOT}/meta/keys/checkpoint.pub")
        else:
            put(files, f"{ROOT}/meta/keys/checkpoint.pub", key)
        assert corruption(verify(files)).path == f"{ROOT}/meta/keys/checkpoint.pub"


def test_a_chain_that_is_gone_is_missed_by_what_was_signed() -> None:
    files, (note,) = signed(plain_partition(), [18])
    for name in ("head", "leaves", "frames", "statements", "tree"):
        files.unlink(f"{CHAIN}/{name}")
    found = corruption(verify(files))
    assert (found.path, found.what) == (CHAIN, "chain")
    files, _ = chained(plain_partition(), 12)
    assert corruption(verify_directory(files, ROOT, checkpoints=[given(note)])).found == "12"


def cut_below(partition: Partition, files: MemoryFiles) -> None:
    """Truncate the log at offset 32, forced; its chain does not state it yet."""
    partition.active, partition.marked = partition.active[:1], 1
    end = len(partition.active[0].data)
    partition.epochs = [(0, 0), (1, 32)]
    partition.epoch_start = {"base": 30, "position": end, "next_offset": 32}
    partition.write(files, ROOT)


def test_a_truncation_below_a_stored_checkpoint_is_noted_with_when_and_where() -> None:
    partition = plain_partition()
    files, _ = signed(partition, [18])
    chain = HandChain().follow(frames_of(partition))
    cut_below(partition, files)
    (told,) = notes(verify(files))
    assert told.found == "truncated at offset 32, which its chain does not tell of yet"
    chain.cut(32).write(files, partition.directory(ROOT))
    report = verify(files)
    assert report.sound
    (told,) = notes(report)
    assert told.found == "truncated at offset 32 on 2026-01-02 03:04:05 UTC"
    assert told.expected.startswith("the log up to offset 36, which ")
    # One that was signed after it says nothing of what was before.
    files.unlink(f"{ROOT}/meta/checkpoints/id-orders/0-18.note")
    later = frame(32, [b"something", b"else"], epoch=1)
    partition.active, partition.marked = [*partition.active, later], 2
    partition.write(files, ROOT)
    chain.follow([later]).write(files, partition.directory(ROOT))
    keep_note(files, ROOT, "id-orders", 0, chain.size, chain.note(KEY))
    assert verify(files).findings == ()
    assert verify_directory(files, ROOT, checkpoints=[given(chain.note(KEY))]).findings == ()


def test_a_truncation_below_a_given_checkpoint_is_corruption_whatever_was_appended_since() -> None:
    """The holder of a note asks whether the log still has what was signed: a statement is no replacement."""
    partition = plain_partition()
    files, (note,) = signed(partition, [18])
    chain = HandChain().follow(frames_of(partition))
    cut_below(partition, files)
    (found,) = verify_directory(files, ROOT, checkpoints=[given(note)]).findings
    assert (found.severity, found.what) == ("corruption", "truncation on purpose")
    assert found.found == "truncated at offset 32, which its chain does not tell of yet"
    later = [frame(32, [b"other", b"records"], epoch=1), frame(34, [b"and", b"more"], epoch=1)]
    partition.active, partition.marked = [*partition.active, *later], 3
    partition.write(files, ROOT)
    chain.cut(32).follow(later).write(files, partition.directory(ROOT))
    keep_note(files, ROOT, "id-orders", 0, chain.size, chain.note(KEY))
    report = verify_directory(files, ROOT, checkpoints=[given(note), given(chain.note(KEY))])
    (found,) = report.findings
    assert (found.severity, found.path, found.position) == ("corruption", f"{CHAIN}/statements", 0)
    assert found.expected == "the log up to offset 36, which monday.note signs for"
    assert found.found == "truncated at offset 32 on 2026-01-02 03:04:05 UTC"


def test_a_truncation_counts_only_against_checkpoints_whose_records_it_removed() -> None:
    """The second truncation removes only records that came after the first: no note signs for those."""
    partition = plain_partition()
    _, (before, reaching) = signed(partition, [16, 18])
    chain = HandChain().follow(frames_of(partition))
    partition.epochs = [(0, 0), (1, 32), (2, 34)]
    later = [frame(32, [b"other", b"records"], epoch=1), frame(34, [b"and", b"more"], epoch=2)]
    chain.cut(32).follow([later[0], frame(34, [b"soon", b"gone"], epoch=1)]).cut(34).follow(later[1:])
    partition.active, partition.marked = [partition.active[0], *later], 3
    end = len(log_of(partition.active[:2]))
    partition.epoch_start = {"base": 30, "position": end, "next_offset": 34}
    files = with_chain(partition, chain)
    assert verify_directory(files, ROOT, checkpoints=[given(before)]).findings == ()
    (found,) = verify_directory(files, ROOT, checkpoints=[given(reaching)]).findings
    assert found.found.startswith("truncated at offset 32 on ")


def test_without_what_verifies_signatures_the_rest_is_checked_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, noted = signed(plain_partition(), [9, 18])
    held = given(noted[0])
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    report = verify_directory(files, ROOT, checkpoints=[held])
    assert report.sound
    assert report.checkpoints == 3
    assert "3 whose signatures were not checked" in notes(report)[0].found


# --- reading, and beside the writer ------------------------------------------------------------------------


def elsewhere(files: Files) -> Callable[[Sequence[SegmentCheck]], list[SegmentResult]]:
    return lambda checks: [run_check(files, each) for each in checks]


def test_the_report_is_the_same_whoever_reads_the_segments() -> None:
    partition, chain, before = compacted()
    files = with_chain(partition, chain)
    assert verify_directory(files, ROOT, check=elsewhere(files)) == verify(files)
    put(files, segment_file(0, "log"), log_of(before))
    assert verify_directory(files, ROOT, check=elsewhere(files)) == verify(files)
    assert verify(files).corrupt


def test_results_stand_while_the_chain_grows_behind_a_sealed_segment() -> None:
    partition = plain_partition()
    files, _ = chained(partition, 12)
    opened: list[str] = []
    hooked = HookedFiles(files)
    hooked.before = lambda kind, path: opened.append(path) if kind == "open" else None

    def check(checks: Sequence[SegmentCheck]) -> list[SegmentResult]:
        results = [run_check(files, each) for each in checks]
        HandChain().follow(frames_of(partition)).write(files, partition.directory(ROOT))
        opened.clear()
        return results

    assert verify_directory(hooked, ROOT, check=check).sound
    read = {path.rpartition("/")[2] for path in opened if path.endswith(".log") and "segments" in path}
    # The first two were covered by leaves already; the others have more of them now.
    assert read == {f"{20:020d}.log", f"{30:020d}.log"}


def test_a_writer_that_compacts_or_truncates_at_any_moment_is_not_taken_for_one_who_tampers() -> None:
    """Between any two operations of the walk the writer makes a whole change, in the order that it does."""
    tried = 0
    for change in (_compact, _truncate, _grow):
        moment = 0
        while _was_moment(change, moment):
            moment += 1
        tried += moment
    print(f"{tried} moments, none taken for corruption")
    assert tried > 100


def _was_moment(change: Callable[[Files, Partition], None], moment: int) -> bool:
    """Verify, with *change* made before that operation; return whether there were so many."""
    partition = plain_partition()
    files = with_chain(partition, HandChain().follow(frames_of(partition)))
    hooked, passed = HookedFiles(files), 0

    def act(kind: str, path: str) -> None:
        nonlocal passed
        passed += 1
        if passed == moment + 1:
            change(files, partition)

    hooked.before = act
    report = verify(hooked)
    assert not report.corrupt, (change.__name__, moment, serious(report))
    return passed > moment


def _compact(files: Files, partition: Partition) -> None:
    after, chain, _ = compacted()
    chain.write(files, partition.directory(ROOT))
    after.write(files, ROOT)


def _truncate(files: Files, partition: Partition) -> None:
    later = replace(partition, active=partition.active[:1], marked=1, epochs=[(0, 0), (1, 32)])
    later.epoch_start = {"base": 30, "position": len(partition.active[0].data), "next_offset": 32}
    later.write_state(files, ROOT)
    later.write(files, ROOT)
    HandChain().follow(frames_of(partition)).cut(32).write(files, partition.directory(ROOT))


def _grow(files: Files, partition: Partition) -> None:
    later = replace(partition, active=[*partition.active, frame(36, [b"one more"])], marked=4)
    later.write(files, ROOT)
    HandChain().follow(frames_of(later)).write(files, partition.directory(ROOT))


def test_damage_in_a_chain_never_stops_the_walk() -> None:
    """Any file of it empty, gone, cut anywhere, or replaced by something else."""
    partition, whole, _ = compacted()
    tried = 0
    for name, data in whole.contents().items():
        others = [None, b"", b"\xff" * len(data), *(data[:cut] for cut in range(0, len(data), 7))]
        for wrong in others:
            files = with_chain(partition, whole)
            if wrong is None:
                files.unlink(f"{CHAIN}/{name}")
            else:
                put(files, f"{CHAIN}/{name}", wrong)
            assert not verify(files).sound, (name, wrong)
            tried += 1
    print(f"{tried} damaged chains, each reported")
    assert tried > 300


def test_envelope_of_the_head_is_checked_byte_for_byte() -> None:
    files, chain = chained()
    put(files, f"{CHAIN}/head", envelope({"format": 3}))
    assert [each.what for each in serious(verify(files))] == ["format is newer"]
    put(files, f"{CHAIN}/head", chain.head().replace(b'"crc32c":', b'"crc32C":'))
    assert corruption(verify(files)).what == "envelope"


def test_no_power_cut_leaves_the_engine_with_a_chain_that_verify_calls_corrupt() -> None:
    """Appends, following, compaction, truncation, a new log start, cut short anywhere; recovered or not."""
    recording = RecordingFiles(MemoryFiles())
    settings = {"segment.bytes": "300", "index.interval.bytes": "100", "cordwood.chain": "true"}
    with open_log(recording) as log:
        topic = log.topic("orders", config={**settings, "cleanup.policy": "compact"})
        directory, partition = log.data_directory, log.data_directory.partitions.own("orders", 0)
        for number in range(9):
            topic.append(b"value %d" % number, key=b"%d" % (number % 2))
        directory.chains.commit(partition)
        assert log.maintain(force=True).compacted
        topic.truncate(0, 5, force=True)
        topic.append_many([(b"0", b"a"), (b"1", b"b")], partition=0)
        directory.chains.commit(partition)
        topic.advance_log_start(0, 4)
        topic.truncate(0, 6, force=True)
        topic.append(b"last", key=b"0")
        directory.chains.commit(partition)
    count, recovered = CrashCount(), 0
    for crash in crash_images(recording, limit_per_prefix=4, count=count):
        if not crash.files.exists(join(DATA, "meta")):
            continue
        report = verify_directory(crash.files, DATA)
        where = f"{crash.kind} after {crash.prefix} operations"
        assert not report.corrupt, f"{where}: {serious(report)}"
        if count.images % 7 == 0 and crash.files.exists(orders_path("partition.json")):
            with open_log(crash.files) as log:
                directory = log.data_directory
                directory.chains.commit(directory.partitions.own("orders", 0))
            report = verify_directory(crash.files, DATA)
            assert not report.corrupt, f"{where}, recovered: {serious(report)}"
            recovered += 1
    print("\n".join(count.report()))
    count.require(500)
    assert recovered > 50
    report = verify_directory(recording, DATA)
    assert report.sound
    assert report.compacted > 0
    assert report.removed > 0


@pytest.mark.parametrize("seed", range(0, 50, 10))
def test_no_history_of_the_engine_is_taken_for_tampering(seed: int) -> None:
    """Appends, cuts within frames and gaps, a log start that moves, compaction and rolls, in any order."""
    frames = compared = compactions = 0
    for number in range(seed, seed + 10):
        chance, files = Random(number), MemoryFiles()
        with open_log(files) as log:
            _live(chance, log, files)
            directory = log.data_directory
            directory.chains.commit(directory.partitions.own("orders", 0))
            report = verify_directory(files, DATA)
            assert not report.corrupt, f"seed {number}: {serious(report)}"
            frames, compared = frames + report.frames, compared + report.frames_compared
            compactions += report.compacted
    print(f"{compared} of {frames} frames compared, {compactions} compactions")
    assert compared > 20
    assert compactions > 3


def _live(chance: Random, log: Log, files: Files) -> None:
    sizes = {"segment.bytes": str(chance.choice([200, 400, 900])), "index.interval.bytes": "100"}
    topic = log.topic("orders", config={**sizes, "cordwood.chain": "true", "cleanup.policy": "compact"})
    topic.append(b"first", key=b"0")
    partition = log.data_directory.partitions.own("orders", 0)
    for _ in range(chance.randrange(5, 40)):
        start, end = partition.log_start_offset, partition.log_end_offset
        act = chance.choice(["append"] * 5 + ["truncate", "advance", "follow", "follow", "compact", "roll"])
        if act == "append":
            rows = [(b"%d" % chance.randrange(4), b"%d" % chance.getrandbits(20)) for _ in range(3)]
            topic.append_many(rows[: chance.randrange(1, 4)], partition=0)
        elif act == "truncate":
            topic.truncate(0, chance.randrange(start, end + 1), force=True)
        elif act == "advance" and chance.random() < 0.4:
            partition.advance_log_start(chance.randrange(start, end + 1))
        elif act == "follow":
            log.data_directory.chains.commit(partition)
        elif act == "compact":
            log.maintain(force=True)
        elif act == "roll":
            partition.roll()
        if chance.random() < 0.3:
            report = verify_directory(files, DATA)
            assert not report.corrupt, f"after {act}: {serious(report)}"
