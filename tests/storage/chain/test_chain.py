"""The chain and tree of a partition on disk: every frame once, only growing, whole after any crash."""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, cast

import pytest
from support.crashes import CrashCount, crash_images
from support.data_directory import with_crc
from support.disks import FaultPlan, FaultyFiles, RecordingFiles, image
from support.logs import DATA, SMALL, disk_of, frames_of, open_log, partition_path, segment_file
from support.patience import until
from support.seeds import seeds_from

import cordwood
from cordwood.disk.files import File, Files, Mode, join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.embedded import log as embedded
from cordwood.errors import FrameError, MetadataDamaged, StorageError
from cordwood.integrity import merkle
from cordwood.integrity.chain import EMPTY_HEAD, chained
from cordwood.storage.chain import chains as chain_module
from cordwood.storage.chain import follower as chain_following
from cordwood.storage.chain.chains import Chains, kept_chain
from cordwood.storage.chain.checkpoints import kept_checkpoints
from cordwood.storage.chain.files import STATEMENT, ChainHead, KeptChain
from cordwood.storage.chain.statements import Statement
from cordwood.storage.chain.writer import ChainWriter
from cordwood.storage.maintenance.compactor import CompactionReport, compact_partition
from cordwood.verify import verify_directory

PARTITION = partition_path("orders", 0)
CHAIN = join(PARTITION, "chain")


def follow(log: cordwood.Log, topic: str = "orders") -> int:
    directory = log.data_directory
    return directory.chains.commit(directory.partitions.own(topic, 0))


def compacted_unsaid(log: cordwood.Log) -> CompactionReport | None:
    """Compact as whoever knows of no chain does."""
    directory = log.data_directory
    partition = directory.partitions.own("orders", 0)
    return compact_partition(directory.context, partition, map_bytes=1 << 16, secret=bytes(16), force=True)


def filled(files: Files, count: int, start: int = 0) -> None:
    with open_log(files) as log:
        topic = log.topic("orders", config=SMALL)
        for number in range(start, start + count):
            topic.append(b"value %d" % number)


@contextlib.contextmanager
def chain_of(files: Files) -> Iterator[KeptChain]:
    with kept_chain(files, PARTITION) as chain:
        assert chain is not None
        yield chain


def stored_frames(files: Files) -> list[bytes]:
    """Return the frames of the log as its files have them."""
    segments, found = join(PARTITION, "segments"), []
    for name in files.list(segments):
        if name.endswith(".log"):
            data = read_file(files, join(segments, name))
            found += [data[start:end] for start, end in frames_of(data)]
    return found


def leaves_of(files: Files) -> list[bytes]:
    data = read_file(files, join(CHAIN, "leaves"))
    return [data[at : at + 32] for at in range(0, len(data), 32)]


def by_hand(leaves: list[bytes]) -> tuple[bytes, bytes]:
    """Return the root and the head of the chain over *leaves*, by the definitions."""

    def root(part: list[bytes]) -> bytes:
        if len(part) == 1:
            return part[0]
        split = 1 << ((len(part) - 1).bit_length() - 1)
        return sha256(b"\1" + root(part[:split]) + root(part[split:])).digest()

    head = bytes(32)
    for leaf in leaves:
        head = sha256(head + leaf).digest()
    return root(leaves), head


def check_sound(files: Files) -> ChainHead:
    """Check that the chain is what its leaves make it, and that each path in it holds."""
    with chain_of(files) as chain:
        leaves = leaves_of(files)[: chain.head.size]
        assert len(leaves) == chain.head.size
        if leaves:
            assert tuple(map(bytes.fromhex, (chain.head.root, chain.head.chain_head))) == by_hand(leaves)
        root = chain.root(chain.head.size)
        for leaf in range(chain.head.size):
            path = chain.inclusion_path(leaf, chain.head.size, root)
            assert merkle.verify_inclusion(leaves[leaf], leaf, chain.head.size, path, root)
        chain.statements()
        return chain.head


# --- following --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 3, 17, 40])
def test_every_frame_has_one_leaf_in_order_however_often_it_is_brought_up(step: int) -> None:
    files, added = MemoryFiles(), 0
    with open_log(files) as log:
        topic = log.topic("orders", config=SMALL)
        for number in range(40):
            topic.append(b"value %d" % number)
            if number % step == 0:
                added += follow(log)
        added += follow(log)
        assert follow(log) == 0
    assert added == 40
    assert leaves_of(files) == [sha256(b"\0" + frame).digest() for frame in stored_frames(files)]
    head = check_sound(files)
    assert (head.size, head.next_offset, head.leader_epoch, head.statements_size) == (40, 40, 0, 0)


def test_frames_of_many_records_and_reopening_are_followed_by_offset() -> None:
    files = MemoryFiles()
    for turn in range(4):
        with open_log(files) as log:
            topic = log.topic("orders", config=SMALL)
            topic.append_many([(None, b"%d" % number) for number in range(turn + 1)], partition=0)
            assert follow(log) == 1
    with chain_of(files) as chain:
        assert [chain.entry(leaf) for leaf in range(4)] == [(0, 1), (1, 3), (3, 6), (6, 10)]
        assert [chain.find(offset) for offset in range(11)] == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, None]
    check_sound(files)


def test_only_what_is_synced_gets_a_leaf() -> None:
    """Under a weak policy a power cut could take a frame after its leaf was there; so it is synced first."""
    files = RecordingFiles(MemoryFiles())
    with open_log(files, sync="never") as log:
        log.topic("orders", config=SMALL).append(b"value")
        assert follow(log) == 1
        partition = log.data_directory.partitions.own("orders", 0)
        assert partition.unsynced_records == 0


def test_frames_that_retention_was_faster_with_are_a_gap_that_is_kept() -> None:
    files = MemoryFiles()
    filled(files, 3)
    with open_log(files) as log:
        assert follow(log) == 3
    filled(files, 20, 3)
    with open_log(files) as log:
        log.data_directory.partitions.own("orders", 0).advance_log_start(12)
        assert follow(log) == 12
    with chain_of(files) as chain:
        (gap,) = chain.statements()
        assert (gap.kind, gap.leaf, gap.start, gap.end, gap.reason) == ("gap", 3, 3, 12, "removed")
        assert [chain.find(offset) for offset in (2, 3, 11, 12)] == [2, None, None, 4]
    assert check_sound(files).next_offset == 23


def test_frames_that_compaction_was_faster_with_are_a_gap_and_those_with_leaves_are_not() -> None:
    files = MemoryFiles()
    settings = {**SMALL, "cleanup.policy": "compact"}
    with open_log(files) as log:
        topic = log.topic("orders", config=settings)
        for number in range(10):
            topic.append(b"value %d" % number, key=b"same")
        follow(log)
        for number in range(10):
            topic.append(b"value %d" % number, key=b"same")
        log.data_directory.partitions.own("orders", 0).roll()
        before = leaves_of(files)
        assert compacted_unsaid(log)
        topic.append(b"last", key=b"same")
        added = follow(log)
    assert leaves_of(files)[:11] == before
    with chain_of(files) as chain:
        policy, *gaps = chain.statements()
        assert (policy.kind, policy.leaf, policy.reason) == ("policy", 0, "compact")
        assert {gap.reason for gap in gaps} == {"compacted"}
        # One for each segment that was written anew, one after the other.
        assert [gap.start for gap in gaps] == [10, *(gap.end for gap in gaps[:-1])]
        assert (gaps[-1].end, added) == (20, len(gaps) + 1)
        assert chain.entry(chain.head.size - 1) == (20, 21)
    check_sound(files)


def test_a_truncation_is_a_leaf_of_its_own_and_the_tree_only_grows() -> None:
    files = MemoryFiles()
    filled(files, 10)
    with open_log(files) as log:
        follow(log)
        with chain_of(files) as chain:
            old = chain.root(10)
        topic = log.topic("orders")
        topic.truncate(0, 6)
        for number in range(3):
            topic.append(b"another %d" % number)
        assert follow(log) == 4
    leaves = leaves_of(files)
    with chain_of(files) as chain:
        (cut,) = chain.statements()
        assert (cut.kind, cut.leaf, cut.start, cut.end, cut.leader_epoch) == ("truncated", 10, 6, 10, 1)
        assert leaves[10] == sha256(b"\0" + STATEMENT + cut.encoded()).digest()
        assert [chain.find(offset) for offset in (5, 6, 8, 9)] == [5, 11, 13, None]
        path = chain.consistency_path(10, old)
        assert path is not None
        assert merkle.verify_consistency(10, 14, path, old, chain.root(14))
    assert leaves[11:] == [sha256(b"\0" + frame).digest() for frame in stored_frames(files)[6:]]
    assert check_sound(files).next_offset == 9


def test_a_cut_within_a_frame_gives_what_is_left_of_it_a_leaf() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("orders", config=SMALL)
        for _ in range(3):
            topic.append_many([(None, b"%d" % number) for number in range(4)], partition=0)
        follow(log)
        topic.truncate(0, 6)
        topic.append(b"next")
        assert follow(log) == 3
    with chain_of(files) as chain:
        assert [chain.entry(leaf) for leaf in range(3, 6)] == [(4, 4), (4, 6), (6, 7)]
        assert [chain.find(offset) for offset in (3, 4, 5, 6, 7)] == [0, 4, 4, 5, None]
    hashes = [sha256(b"\0" + frame).digest() for frame in stored_frames(files)]
    leaves = leaves_of(files)
    assert hashes == [leaves[0], leaves[4], leaves[5]]


def test_several_truncations_at_once_are_one_at_the_lowest_offset() -> None:
    files = MemoryFiles()
    filled(files, 10)
    with open_log(files) as log:
        follow(log)
        topic = log.topic("orders")
        topic.truncate(0, 4)
        for number in range(9):
            topic.append(b"another %d" % number)
        topic.truncate(0, 8)
        topic.append(b"the last")
        assert follow(log) == 6
    with chain_of(files) as chain:
        (cut,) = chain.statements()
        assert (cut.start, cut.end, cut.leader_epoch) == (4, 10, 2)
    assert leaves_of(files)[11:] == [sha256(b"\0" + frame).digest() for frame in stored_frames(files)[4:]]


def test_a_log_that_lost_its_end_without_a_truncation_is_told_so() -> None:
    """Whoever puts an older copy of the segments in place cannot make the chain forget what was there."""
    files = MemoryFiles()
    filled(files, 6)
    before = image(files, DATA)
    filled(files, 4, 6)
    with open_log(files) as log:
        follow(log)
    after = image(files, DATA)
    chain = {path: data for path, data in after.items() if path.startswith(CHAIN)}
    older = disk_of({**before, **chain})
    with open_log(older) as log:
        assert follow(log) == 1
        log.topic("orders").append(b"in another's place")
        assert follow(log) == 1
    with chain_of(older) as found:
        (lost,) = found.statements()
        assert (lost.kind, lost.start, lost.end) == ("lost", 6, 10)
        assert found.find(6) == 11
    check_sound(older)


def test_a_damaged_frame_gets_no_leaf_and_is_a_gap() -> None:
    files = MemoryFiles()
    filled(files, 12)
    path = segment_file("orders", 0, 0)
    data = bytearray(read_file(files, path))
    start, end = frames_of(bytes(data))[2]
    data[end - 3] ^= 1
    disk = disk_of({**image(files, DATA), path: bytes(data)})
    with open_log(disk) as log:
        follow(log)
    with chain_of(disk) as chain:
        (gap,) = chain.statements()
        assert (gap.start, gap.end, gap.reason) == (2, 3, "damaged")
    assert check_sound(disk).next_offset == 12
    assert start < end


def test_the_chain_is_the_same_in_the_smallest_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    filled(files, 30)
    small = disk_of(image(files, DATA))
    with open_log(files) as log:
        assert follow(log) == 30
    monkeypatch.setattr(chain_following, "WINDOW_BYTES", 1)
    monkeypatch.setattr(chain_following, "COMMIT_BYTES", 1)
    with open_log(small) as log:
        assert follow(log) == 30
    assert image(small, CHAIN) == image(files, CHAIN)


def test_after_any_history_every_frame_is_found_at_its_leaf() -> None:
    """Appends, truncations anywhere, a log start that moves, and following at any time."""
    equal = statements = 0
    seeds = seeds_from(0, 120)
    for seed in seeds:
        chance, files = Random(seed), MemoryFiles()
        with open_log(files) as log:
            topic = log.topic("orders", config=SMALL)
            topic.append(b"first")
            partition = log.data_directory.partitions.own("orders", 0)
            for _ in range(chance.randrange(4, 25)):
                start, end = partition.log_start_offset, partition.log_end_offset
                act = chance.choice(["append", "append", "append", "truncate", "advance", "follow", "follow"])
                if act == "append":
                    rows = [(None, b"%d" % chance.getrandbits(30)) for _ in range(chance.randrange(1, 5))]
                    topic.append_many(rows, partition=0)
                elif act == "truncate":
                    topic.truncate(0, chance.randrange(start, end + 1))
                elif act == "advance" and chance.random() < 0.4:
                    partition.advance_log_start(chance.randrange(start, end + 1))
                elif act == "follow":
                    follow(log)
            follow(log)
            report = verify_directory(files, DATA)
            assert not report.corrupt, f"seed {seed}: {report.findings}"
            with chain_of(files) as chain:
                assert chain.head.next_offset == partition.high_watermark
                equal += report.frames_compared
                statements += len(chain.statements())
        check_sound(files)
    print(f"seeds {seeds[0]} to {seeds[-1]}: {equal} frames equal their leaves, {statements} statements")
    assert equal > 300
    assert statements > 100


# --- files that are not what they were ---------------------------------------------------------------


def followed_image(count: int = 21) -> dict[str, bytes | None]:
    files = MemoryFiles()
    filled(files, count - 2)
    with open_log(files) as log:
        follow(log)
        log.topic("orders").truncate(0, count - 3)
        log.topic("orders").append(b"last")
        follow(log)
    return image(files, DATA)


def test_a_tree_that_is_missing_short_or_wrong_at_its_edge_is_built_again() -> None:
    """Where only the inside of it is wrong the root does not show it; paths then come from leaves."""
    whole, tried = followed_image(), 0
    path = join(CHAIN, "tree")
    data = whole[path]
    assert data is not None
    assert len(data) >= 32 * 10
    wrongs = [None, *(data[:end] for end in range(0, len(data), 31)), bytes(len(data)), data + b"more"]
    for wrong in [*wrongs, data[:-32] + bytes(32)]:
        disk = disk_of(whole, {path: wrong} if wrong is not None else {}, [path] if wrong is None else [])
        with open_log(disk) as log:
            log.topic("orders").append(b"one more")
            follow(log)
        check_sound(disk)
        tried += 1
        if wrong is None or len(wrong) < len(data):
            assert read_file(disk, path)[: len(data)] == data
    print(f"{tried} trees built again")


def test_a_wrong_hash_within_the_tree_costs_time_and_no_proof() -> None:
    """Its root is right, so only whoever needs it sees it: then the leaves are asked."""
    whole = followed_image()
    path = join(CHAIN, "tree")
    data = whole[path]
    assert data is not None
    disk = disk_of(whole, {path: bytes(32) + data[32:]})
    with chain_of(disk) as chain:
        size = chain.head.size
        root = chain.root(size)
        for leaf in range(size):
            found = chain.inclusion_path(leaf, size, root)
            assert merkle.verify_inclusion(chain.hash_at(0, leaf), leaf, size, found, root)


@pytest.mark.parametrize("name", ["leaves", "frames", "statements", "head"])
def test_what_nothing_can_be_built_from_is_never_taken_for_empty(name: str) -> None:
    whole = followed_image()
    path = join(CHAIN, name)
    data = whole[path]
    assert data is not None
    for wrong in (None, b"", data[:-1]):
        disk = disk_of(whole, {path: wrong} if wrong is not None else {}, [path] if wrong is None else [])
        with open_log(disk) as log, pytest.raises(MetadataDamaged, match=name):
            follow(log)


def test_every_flipped_bit_of_a_leaf_of_the_head_and_of_a_statement_is_noticed() -> None:
    whole, noticed = followed_image(7), 0
    for name in ("leaves", "statements", "head"):
        path = join(CHAIN, name)
        data = whole[path]
        assert data is not None
        for bit in range(0, 8 * len(data), 3):
            wrong = bytearray(data)
            wrong[bit // 8] ^= 1 << bit % 8
            disk = disk_of(whole, {path: bytes(wrong)}, [join(CHAIN, "tree")])
            with open_log(disk) as log, pytest.raises(MetadataDamaged):
                follow(log)
            noticed += 1
    print(f"{noticed} flipped bits noticed")


def test_the_chain_of_another_topic_is_refused() -> None:
    whole = followed_image()
    files = MemoryFiles()
    filled(files, 3)
    chain = {path: data for path, data in whole.items() if path.startswith(CHAIN)}
    disk = disk_of({**image(files, DATA), **chain})
    with open_log(disk) as log, pytest.raises(MetadataDamaged, match="is of topic"):
        follow(log)


# --- crashes ----------------------------------------------------------------------------------------


def test_after_a_power_cut_at_any_point_the_chain_is_whole_and_goes_on() -> None:
    """What a caller was told is in it; what it was not told is in it whole or not at all."""
    files = RecordingFiles(MemoryFiles())
    with open_log(files) as log:
        topic = log.topic("orders", config=SMALL)
        for turn in range(3):
            for number in range(3):
                topic.append(b"value %d %d" % (turn, number))
            if turn == 2:
                topic.truncate(0, 7)
            follow(log)
            files.acknowledge(turn)
    count, sizes = CrashCount(), (3, 6, 8)
    first = next(at for at, done in enumerate(files.history) if "chain" in str(getattr(done, "path", "")))
    for crash in crash_images(files, limit_per_prefix=12, count=count):
        if crash.prefix < first:
            continue
        told = sizes[len(crash.acknowledged) - 1] if crash.acknowledged else 0
        with kept_chain(crash.files, PARTITION) as chain:
            assert (chain.head.size if chain else 0) >= told
        with open_log(crash.files) as log:
            log.topic("orders", config=SMALL).append(b"after the crash")
            follow(log)
            assert follow(log) == 0
        head = check_sound(crash.files)
        frames = [sha256(b"\0" + frame).digest() for frame in stored_frames(crash.files)]
        assert head.size >= told
        assert set(frames) <= set(leaves_of(crash.files))
    print("\n".join(count.report()))
    assert count.images > 500


def test_whatever_call_fails_the_chain_is_whole_on_the_healed_disk() -> None:
    """An error of ours, and the next pass goes on from what was committed."""
    before = followed_image(7)
    tried = 0
    for fail_at in range(1, 1000):
        inner = disk_of(before)
        with open_log(inner) as log:
            topic = log.topic("orders")
            for number in range(4):
                topic.append(b"more %d" % number)
            directory = log.data_directory
            partition = directory.partitions.own("orders", 0)
            faulty = FaultyFiles(inner, FaultPlan(fail_at, error=(errno.EIO, errno.ENOSPC)[fail_at % 2]))
            context = replace(directory.context, files=faulty, changed=set())
            chains = Chains(context, directory.lifecycle, directory.signer)
            try:
                chains.commit(partition)
            except (StorageError, FrameError):
                tried += 1
            else:
                break
        with open_log(inner) as log:
            follow(log)
        check_sound(inner)
        assert {sha256(b"\0" + each).digest() for each in stored_frames(inner)} <= set(leaves_of(inner))
    print(f"{tried} calls failed")
    assert tried > 20


def test_following_beside_appends_truncation_and_compaction_leaves_no_frame_out() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        settings = {**SMALL, "cleanup.policy": "compact", "cordwood.chain": "true"}
        topic = log.topic("orders", config=settings)
        topic.append(b"first", key=b"first")
        done, failures = Event(), []

        def follow_on() -> None:
            try:
                while not done.is_set():
                    follow(log)
            except Exception as error:
                failures.append(error)

        thread = Thread(target=follow_on)
        thread.start()
        for number in range(400):
            placed = topic.append(b"value %d" % number, key=b"%d" % (number % 7))
            if number % 50 == 20:
                topic.truncate(0, placed.offset - 3, force=True)
            if number % 90 == 40:
                log.maintain(force=True)
        done.set()
        thread.join()
        assert not failures
        follow(log)
        report = verify_directory(files, DATA)
    print(report)
    assert not report.corrupt
    assert report.frames_compared > 0
    check_sound(files)


class InterruptedFiles:
    """Does something else, once, when a file that ends in *name* is opened to read."""

    def __init__(self, inner: Files, name: str) -> None:
        self.inner, self.name = inner, name
        self.then: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, path: str, mode: Mode) -> File:
        if self.then is not None and path.endswith(self.name) and mode == "read":
            then, self.then = self.then, None
            then()
        return self.inner.open(path, mode)


def test_a_compaction_in_the_middle_of_a_read_gives_no_leaf_to_what_it_wrote() -> None:
    inner = MemoryFiles()
    with open_log(inner) as log:
        topic = log.topic("orders", config={**SMALL, "cleanup.policy": "compact"})
        for _ in range(4):
            topic.append_many([(b"same", b"1"), (b"same", b"2"), (b"same", b"3")], partition=0)
        log.data_directory.partitions.own("orders", 0).roll()
    files = InterruptedFiles(inner, f"{0:020d}.log")
    with open_log(cast(Files, files)) as log:
        log.data_directory.partitions.own("orders", 0)
        compacted: list[CompactionReport | None] = []
        files.then = lambda: compacted.append(compacted_unsaid(log))
        follow(log)
        assert compacted
    with chain_of(inner) as chain:
        assert [each.kind for each in chain.statements()[:1]] == ["policy"]
        assert {each.reason for each in chain.statements()[1:]} == {"compacted"}
        assert chain.head.size == len(chain.statements())


def test_what_was_never_committed_is_cut_off() -> None:
    whole = followed_image()
    longer = {path: data + b"junk" * 9 for path, data in whole.items() if data and path.startswith(CHAIN)}
    del longer[join(CHAIN, "head")]
    disk = disk_of(whole, longer)
    with open_log(disk) as log:
        assert follow(log) == 0
    assert {path: read_file(disk, path) for path in longer} == {path: whole[path] for path in longer}


# --- what upkeep says -------------------------------------------------------------------------------

COMPACTED = {**SMALL, "cleanup.policy": "compact", "cordwood.chain": "true", "min.cleanable.dirty.ratio": "0"}


def compacted_log(log: cordwood.Log, rounds: int = 1) -> None:
    """Fill and compact a topic, again and again: frames are kept, written anew, and dropped."""
    topic = log.topic("orders", config=COMPACTED)
    for turn in range(rounds):
        for number in range(6):
            rows = [
                (b"%d" % (number % 4), b"%d %d" % (turn, number)),
                (b"only %d %d" % (turn, number), b"kept"),
            ]
            topic.append_many(rows, partition=0)
            topic.append(b"dropped %d" % number, key=b"same")
        topic.roll()
        assert log.maintain(force=True).compacted


def test_compaction_says_what_each_segment_becomes_and_moved_frames_have_leaves() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        compacted_log(log, rounds=3)
        state = log.data_directory.partitions.own("orders", 0).state
    with chain_of(files) as chain:
        said = [each for each in chain.statements() if each.kind == "compacted"]
        newest = {(each.start, each.end, each.generation): each for each in said}
        checked = moved = 0
        for info in state.sealed:
            data = read_file(files, segment_file("orders", 0, info.base))
            frames = [data[start:end] for start, end in frames_of(data)]
            leaves = [sha256(b"\0" + frame).digest() for frame in frames]
            for frame in frames:
                first = int.from_bytes(frame[:8], "big")
                found = chain.find(first, info.generation)
                assert found is not None
                if not chain.commits_to_parts(found):
                    assert chain.hash_at(0, found) == sha256(b"\0\xfdCWM1" + frame).digest()
                    moved += 1
            if info.generation:
                statement = newest[info.base, info.next_offset, info.generation]
                assert (statement.frames, statement.root) == (len(frames), by_hand(leaves)[0].hex())
                checked += 1
        assert checked
        assert moved
        assert sum(each.moved for each in said)
        assert sum(each.lists for each in said)
    check_sound(files)


def test_what_a_compaction_says_is_signed_for_before_it_happens() -> None:
    recording = RecordingFiles(MemoryFiles())
    with open_log(recording) as log:
        log.topic("orders", config=COMPACTED).append(b"first", key=b"same")
        directory = log.data_directory
        partition, data = directory.partitions.own("orders", 0), directory.path
        follow(log)
        with chain_of(recording) as chain:
            directory.signer.sign(partition, chain)
        compacted_log(log)
        state = partition.state
    kept = kept_checkpoints(recording, data, state.topic_id, 0)
    with chain_of(recording) as chain:
        said = [each.leaf for each in chain.statements() if each.kind == "compacted"]
    assert [each.size for each in kept] == [2, *(leaf + 1 for leaf in said)]


def test_a_compaction_that_never_happened_counts_for_nothing() -> None:
    """It was said, and then the power went: the segment is as it was, and so are its leaves."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("orders", config=COMPACTED)
        topic.append_many([(b"a", b"1"), (b"b", b"1")], partition=0)
        topic.append(b"2", key=b"a")
        topic.roll()
        partition = log.data_directory.partitions.own("orders", 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(partition), "swap", lambda self, old, new: False)
            log.maintain(force=True)
        assert partition.state.sealed[0].generation == 0
        with chain_of(files) as chain:
            assert [each.kind for each in chain.statements()] == ["policy", "compacted"]
            assert (chain.find(0, 0), chain.find(0, 1)) == (1, 3)
        assert log.maintain(force=True).compacted
        assert partition.state.sealed[0].generation == 1
    check_sound(files)


def test_a_chain_that_was_switched_off_still_tells_what_upkeep_does() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        compacted_log(log)
        log.alter_topic("orders", config={**COMPACTED, "cordwood.chain": "false"})
        topic = log.topic("orders")
        topic.append(b"more", key=b"same")
        topic.append(b"more", key=b"same")
        topic.roll()
        assert log.maintain(force=True).compacted
    report = verify_directory(files, DATA)
    assert report.sound, report.findings
    with chain_of(files) as chain:
        assert chain.head.next_offset == 20


def test_retention_says_what_goes_and_why_before_it_goes() -> None:
    recording = RecordingFiles(MemoryFiles())
    with open_log(recording) as log:
        topic = log.topic("orders", config={**SMALL, "cordwood.chain": "true", "retention.bytes": "400"})
        for number in range(20):
            topic.append(b"value %d" % number)
        (expired,) = log.maintain().expired
    with chain_of(recording) as chain:
        (said,) = chain.statements()
        assert (said.kind, said.start, said.end) == ("removed", 0, expired.log_start_offset)
        assert "retention.bytes" in said.reason
        assert [chain.find(offset) for offset in range(said.end)] == list(range(said.end))


def test_what_was_removed_by_request_is_said_as_well() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("orders", config={**SMALL, "cordwood.chain": "true"})
        for number in range(10):
            topic.append(b"value %d" % number)
        follow(log)
        topic.advance_log_start(0, 7)
        follow(log)
        follow(log)
    with chain_of(files) as chain:
        (said,) = chain.statements()
        assert (said.kind, said.start, said.end, said.reason) == ("removed", 0, 7, "requested")


# --- in the background ------------------------------------------------------------------------------


def test_an_open_directory_follows_by_itself_and_is_whole_when_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "FOLLOW_SECONDS", 0.001)
    with cordwood.open(tmp_path) as log:
        topic = log.topic("orders", config={"cordwood.chain": "true"})
        directory = log.data_directory
        topic.append(b"first")
        partition = directory.partitions.own("orders", 0)
        until(lambda: not directory.chains.lag(partition), "the chain follows")
        for number in range(50):
            topic.append(b"value %d" % number)
    with kept_chain(PosixFiles(), str(tmp_path / "topics/orders/0")) as chain:
        assert chain is not None
        assert chain.head.size == 51


# --- opening ----------------------------------------------------------------------------------------


def test_a_log_that_changed_where_it_was_followed_is_not_followed_on() -> None:
    """Whoever changes the last frames and their checksums while nobody looks is told of, not signed for."""
    files = MemoryFiles()
    filled(files, 5)
    with open_log(files) as log:
        follow(log)
    path, refused = segment_file("orders", 0, 0), 0
    whole = read_file(files, path)
    for start, end in frames_of(whole):
        changed = with_crc(whole[start:end].replace(b"value", b"VALUE"))
        disk = disk_of(image(files, DATA), {path: whole[:start] + changed + whole[end:]})
        with open_log(disk) as log:
            log.topic("orders").append(b"more")
            with pytest.raises(MetadataDamaged, match="is not that of the frame at offset"):
                follow(log)
            refused += 1
    assert refused == len(frames_of(whole))


def test_leaves_are_made_durable_now_and_then_and_made_again_after_a_power_cut() -> None:
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("orders", config=SMALL)
        directory = log.data_directory
        partition = directory.partitions.own("orders", 0)
        topic.append(b"first")
        assert directory.chains.follow(partition) == 1
        assert directory.chains.lag(partition) == 0
        with chain_of(files) as chain:
            assert chain.head.size == 0
        before = image(files, DATA)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chain_following, "COMMIT_NS", 0)
            directory.chains.commit_due()
        with chain_of(files) as chain:
            assert chain.head.size == 1
    cut = disk_of(before)
    with open_log(cut) as log:
        assert follow(log) == 1
    check_sound(cut)


def test_only_so_many_chains_are_kept_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "OPEN_MAX", 2)
    files = MemoryFiles()
    with open_log(files) as log:
        directory = log.data_directory
        for _ in range(3):
            for name in ("one", "two", "three", "four"):
                log.topic(name, config=SMALL).append(b"value")
                assert directory.chains.follow(directory.partitions.own(name, 0)) == 1
                assert len(directory.chains._followers) <= 2
        for name in ("one", "two"):
            with kept_chain(files, partition_path(name, 0)) as chain:
                assert chain is not None
                assert chain.head.size == 3, "what is let go is committed"


# --- size and speed ---------------------------------------------------------------------------------


def test_a_proof_among_a_million_frames_on_disk_is_few_reads(tmp_path: Path) -> None:
    files, size = PosixFiles(), 1_000_000
    begin = ChainHead(topic_id="t", first_offset=0, next_offset=0, leader_epoch=0)
    leaves = [number.to_bytes(32, "big") for number in range(size)]
    with contextlib.closing(ChainWriter.open(files, str(tmp_path), begin)) as growing:
        for start in range(0, size, 100_000):
            part = range(start, start + 100_000)
            growing.add_frames(leaves[part.start : part.stop], ((at, at + 1) for at in part))
        growing.commit(size, 0)
    with kept_chain(files, str(tmp_path)) as chain:
        assert chain is not None
        assert chain.head.chain_head == chained(EMPTY_HEAD, leaves).hex()
        root, most = bytes.fromhex(chain.head.root), 0
        for offset in (0, 1, 524_287, 524_288, 777_777, 999_998, 999_999):
            assert chain.find(offset) == offset
            chain.reads = 0
            path = chain.inclusion_path(offset, size, root)
            # One of them is the leaf itself, to check the path before it is handed out.
            most = max(most, chain.reads - 1)
            assert 32 * len(path) <= 20 * 32
    print(f"at most {most} reads for a path among {size} leaves")
    assert most <= 2 * math.log2(size)


def test_a_statement_cannot_be_taken_for_a_frame() -> None:
    statement = Statement(kind="gap", leaf=0, start=0, end=1, leader_epoch=0, noted_ms=0)
    assert int.from_bytes((STATEMENT + statement.encoded())[:8], "big", signed=True) < 0
