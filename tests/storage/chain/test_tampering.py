"""Whoever changes a log, and makes right whatever follows from it, is found by one earlier signed checkpoint.

Invariants I1, I2, I4. Every bit of a small partition, then whole frames, with more and more of the rest made
to agree: checksums, indexes, metadata, leaves, tree, head, the checkpoints that are kept beside the log, and
their signatures. What stays is a note that somebody else holds. Prints how many of each kind were tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest
from support.chains import HandChain, keep_key, keep_note
from support.data_directory import (
    Frame,
    Partition,
    flipped,
    frame,
    put,
    renumbered,
    with_crc,
)
from support.disks import image
from support.logs import DATA, disk_of, open_log
from support.sweeps import bits_of
from support.verifying import ROOT, one_partition, verify

from cordwood.disk.files import join
from cordwood.disk.memory import MemoryFiles
from cordwood.integrity.note import SigningKey
from cordwood.storage.chain.chains import kept_chain
from cordwood.verify import GivenCheckpoint, Severity, VerifyReport, verify_directory

KEY = SigningKey("u-1", bytes(range(32)))
SETTINGS = {"segment.bytes": "200", "index.interval.bytes": "100", "cordwood.chain": "true"}
#: What a flipped bit of a file must be called at least. A power cut may tear a slot of the mark, so there it
#: is told and no more; what is derived can be built again.
AT_LEAST: dict[str, tuple[Severity, ...]] = {
    "log": ("corruption",),
    "leaves": ("corruption",),
    "frames": ("corruption",),
    "statements": ("corruption",),
    "head": ("corruption",),
    "partition.json": ("corruption",),
    "idx": ("index", "corruption"),
    "timeidx": ("index", "corruption"),
    "tree": ("index", "corruption"),
    "mark": ("note", "corruption"),
}


# --- every bit ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signed() -> tuple[dict[str, bytes | None], GivenCheckpoint]:
    """Return a directory that the engine made, with a truncation in its chain, and a checkpoint of it."""
    files = MemoryFiles()
    with open_log(files) as log:
        topic = log.topic("orders", config=SETTINGS)
        directory, partition = log.data_directory, log.data_directory.partitions.own("orders", 0)
        for number in range(4):
            topic.append(b"v%d" % number)
        directory.chains.commit(partition)
        topic.truncate(0, 2)
        topic.append(b"w")
        topic.append(b"x")
        directory.chains.commit(partition)
        broker = directory.identity.uuid
        with kept_chain(files, partition.directory) as chain:
            assert chain is not None
            head = chain.head
    key = SigningKey(broker, bytes(range(32)))
    said = HandChain().checkpoint(f"{broker}/orders/0")
    said = replace(
        said,
        size=head.size,
        root=bytes.fromhex(head.root),
        chain_head=bytes.fromhex(head.chain_head),
        leader_epoch=head.leader_epoch,
        next_offset=head.next_offset,
    )
    return image(files, DATA), GivenCheckpoint("held elsewhere", said.signed(key), key.verifier)


def kind_of(path: str) -> str | None:
    """Return what kind of file of the partition that is, None for others."""
    name = path.rpartition("/")[2]
    kind = name if name in AT_LEAST else name.rpartition(".")[2]
    return kind if kind in AT_LEAST and "/topics/" in path else None


def test_every_flipped_bit_of_a_segment_and_of_each_file_beside_it_is_found(
    signed: tuple[dict[str, bytes | None], GivenCheckpoint],
) -> None:
    whole, held = signed
    assert verify_directory(disk_of(whole), DATA, checkpoints=[held]).findings == ()
    tried: Counter[str] = Counter()
    missed: list[tuple[str, int]] = []
    files = disk_of(whole)
    for path, data in whole.items():
        kind = kind_of(path)
        if kind is None or not data:
            continue
        for bit in bits_of(data, 1):
            put(files, path, flipped(data, bit))
            # Signatures are the same each time, and what is signed for is compared below.
            report = verify_directory(files, DATA)
            if all(finding.severity not in AT_LEAST[kind] for finding in report.findings):
                missed.append((path, bit))
            tried[kind] += 1
        put(files, path, data)
    print(f"flipped bits: {dict(tried)}")
    assert not missed
    assert tried.keys() == AT_LEAST.keys()
    assert tried["log"] > 200


# --- whole frames -------------------------------------------------------------------------------------------


def before() -> Partition:
    frames = [frame(2 * i, [b"value %d" % i, b""], timestamp=1_000 + 10 * (i ^ 1)) for i in range(10)]
    return laid_out(frames)


def frames_of(partition: Partition) -> list[Frame]:
    return [*(each for segment in partition.sealed for each in segment), *partition.active]


def dense(frames: list[Frame]) -> list[Frame]:
    """Return the same frames with offsets that follow each other: the checksum does not cover those."""
    found, offset = [], 0
    for each in frames:
        found.append(renumbered(each, offset))
        offset = found[-1].next_offset
    return found


def altered(original: Frame) -> Frame:
    return replace(original, data=with_crc(original.data.replace(b"k0", b"K0")))


def tampered() -> Iterator[tuple[str, list[Frame]]]:
    """Yield the frames of logs that are not what was appended, each valid by itself, and what was done."""
    frames = frames_of(before())
    for at in range(len(frames)):
        if at < len(frames) - 1:
            # A second time at the very end would be no more than another append.
            yield "duplicated", dense([*frames[: at + 1], *frames[at:]])
        yield "edited", [*frames[:at], altered(frames[at]), *frames[at + 1 :]]
        yield "removed", dense([*frames[:at], *frames[at + 1 :]])
        stale = frame(frames[at].base_offset, [b"once", b"appended"], timestamp=1_000)
        yield "stale but valid", [*frames[:at], stale, *frames[at + 1 :]]
        later = [frame(each.base_offset, [b"another", b"history"]) for each in frames[at:]]
        yield "truncated and grown again", [*frames[:at], *later]
        if at:
            yield "cut off", frames[:at]
    for first, second in combinations(range(len(frames)), 2):
        swapped = list(frames)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        yield "swapped", dense(swapped)
        yield "re-ordered", dense([*frames[:first], *frames[second:], *frames[first:second]])


def laid_out(frames: list[Frame]) -> Partition:
    """Return a partition of these frames, with segments, indexes, hashes and marks that are right for it."""
    sealed = [frames[start:end] for start, end in ((0, 4), (4, 7)) if end < len(frames)]
    active = frames[sum(map(len, sealed)) :]
    return Partition("orders", "id-orders", 0, sealed, active, marked=len(active))


def held_note() -> GivenCheckpoint:
    return GivenCheckpoint("held elsewhere", HandChain().follow(frames_of(before())).note(KEY), KEY.verifier)


def held_against(files: MemoryFiles) -> VerifyReport:
    return verify_directory(files, ROOT, checkpoints=[held_note()])


def test_frames_that_are_not_those_that_were_appended_are_found_by_their_leaves() -> None:
    """Everything but the chain is made to agree: checksums, offsets, indexes, hashes, metadata, mark."""
    chain = HandChain().follow(frames_of(before()))
    tried: Counter[str] = Counter()
    for kind, frames in tampered():
        partition = laid_out(frames)
        files = one_partition(partition)
        assert verify(files).sound, kind
        chain.write(files, partition.directory(ROOT))
        report = verify(files)
        assert report.corrupt, (kind, tried[kind])
        log = next(each for each in report.findings if each.severity == "corruption")
        assert log.path.endswith(".log"), (kind, log)
        assert log.position is not None
        tried[kind] += 1
    check_counts(tried)


def test_an_edit_with_leaves_tree_head_and_kept_checkpoints_made_anew_is_found_by_a_note_held_elsewhere() -> (
    None
):
    """And with signatures too, by whoever has the key."""
    tried: Counter[str] = Counter()
    for kind, frames in tampered():
        partition = laid_out(frames)
        files = one_partition(partition)
        chain = HandChain().follow(frames)
        chain.write(files, partition.directory(ROOT))
        keep_key(files, ROOT, KEY)
        keep_note(files, ROOT, "id-orders", 0, chain.size, chain.note(KEY))
        assert verify(files).findings == (), kind
        report = held_against(files)
        assert report.corrupt, (kind, tried[kind])
        tried[kind] += 1
    check_counts(tried)


def test_a_truncation_that_somebody_only_claims_is_found_by_a_note_held_elsewhere() -> None:
    """The tree goes on from what was signed for and is sound. The records that were signed for are gone."""
    tried = 0
    frames = frames_of(before())
    for at in range(1, len(frames)):
        start = frames[at].base_offset
        later = [frame(each.base_offset, [b"another", b"history"], epoch=1) for each in frames[at:]]
        partition = laid_out([*frames[:at], *later])
        partition.epochs = [(0, 0), (1, start)]
        segments = [*partition.sealed, partition.active]
        (inside,) = [each for each in segments if each[0].base_offset <= start < each[-1].next_offset]
        position = sum(len(each.data) for each in inside if each.base_offset < start)
        partition.epoch_start = {"base": inside[0].base_offset, "position": position, "next_offset": start}
        files = one_partition(partition)
        HandChain().follow(frames).cut(start).follow(later).write(files, partition.directory(ROOT))
        assert verify(files).findings == (), at
        (found,) = held_against(files).findings
        assert (found.severity, found.what) == ("corruption", "truncation on purpose")
        assert found.found == f"truncated at offset {start} on 2026-01-02 03:04:05 UTC"
        tried += 1
    print(f"{tried} claimed truncations, each found")
    assert tried == 9


def test_an_older_copy_of_everything_is_found_by_a_note_held_elsewhere() -> None:
    frames, tried = frames_of(before()), 0
    for size in range(1, len(frames)):
        partition = laid_out(frames[:size])
        files = one_partition(partition)
        HandChain().follow(frames[:size]).write(files, partition.directory(ROOT))
        assert verify(files).findings == ()
        assert held_against(files).corrupt
        tried += 1
    print(f"{tried} older copies")
    assert tried == 9


def test_a_chain_that_is_gone_is_found_by_a_note_held_elsewhere() -> None:
    files = one_partition(before())
    assert verify(files).findings == ()
    (found,) = held_against(files).findings
    assert (found.severity, found.path) == ("corruption", join(before().directory(ROOT), "chain"))


def check_counts(tried: Counter[str]) -> None:
    print(f"tampered logs: {dict(tried)}")
    kinds = {"edited", "removed", "duplicated", "stale but valid", "truncated and grown again", "cut off"}
    assert tried.keys() == kinds | {"swapped", "re-ordered"}
    assert all(tried[kind] >= 9 for kind in tried)
