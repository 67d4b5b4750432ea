"""Which records of the shared log are whose: what frames add up to, also where some are gone."""

from __future__ import annotations

import random

import pytest
from formats.test_envelope import BATCH
from pyroaring import BitMap64
from support.producing import Sent, encode
from support.seeds import seed_or

from cordwood.errors import MetadataDamaged
from cordwood.formats.shared.envelope import Envelope, EnvelopeKind, Owner
from cordwood.formats.shared.owners import OwnerEntry, pack_entry, unpack_entry
from cordwood.storage.shared.offsets import Offsets, VirtualPartition, VirtualTopics

A, B, C = (Owner(org, bytes([org]) * 16, 0) for org in (0, 7, 8))
PLAIN = bytes(encode(Sent(-1, -1, -1, (b"x",))))


class Frames:
    """Entries of frames one after the other, with the ids and offsets that they would get."""

    def __init__(self) -> None:
        self.next_id = 0
        self.ends: dict[Owner, int] = {}
        self.entries: list[OwnerEntry] = []

    def records(self, owner: Owner, count: int = 1, content: bytes = PLAIN) -> OwnerEntry:
        first = self.ends.get(owner, 0)
        self.ends[owner] = first + count
        return self._add(EnvelopeKind.RECORDS, owner, first, count, content)

    def start(self, owner: Owner, offset: int) -> OwnerEntry:
        return self._add(EnvelopeKind.LOG_START, owner, offset, 1, b"")

    def ended(self, owner: Owner) -> OwnerEntry:
        self.ends.pop(owner, None)
        return self._add(EnvelopeKind.ENDED, owner, 0, 1, b"")

    def _add(self, kind: EnvelopeKind, owner: Owner, offset: int, count: int, content: bytes) -> OwnerEntry:
        said = Envelope(kind, owner, self.next_id, offset, count, 0, 0, 100)
        self.next_id += count
        entry = unpack_entry(pack_entry(said, content, 0, 0), 0)
        self.entries.append(entry)
        return entry


def applied(entries: list[OwnerEntry], *, sparse: bool = False) -> VirtualTopics:
    topics = VirtualTopics()
    for entry in entries:
        topics.apply(entry, sparse=sparse, path="a file")
    return topics


def found(topics: VirtualTopics, owner: Owner) -> VirtualPartition:
    part = topics.find(owner)
    assert part is not None
    return part


def bounds(topics: VirtualTopics, owner: Owner) -> tuple[int, int]:
    offsets = found(topics, owner).offsets
    return offsets.start, offsets.end


def test_the_offset_of_a_record_is_how_many_of_its_partition_come_before_it() -> None:
    """D9: rank and start make the offset; select finds the id again."""
    seed, checked = seed_or(1), 0
    rng = random.Random(seed)
    for _ in range(50):
        ids = sorted(rng.sample(range(1000), rng.randint(0, 60)))
        offsets = Offsets(rng.choice([0, 5, 1 << 40]), BitMap64(ids))
        assert offsets.end == offsets.start + len(ids)
        for at, id_ in enumerate(ids):
            assert offsets.id_of(offsets.start + at) == id_
            checked += 1
        for id_ in range(0, 1001, 7):
            assert offsets.below(id_) == offsets.start + sum(each < id_ for each in ids)
    print(f"seed {seed}: {checked} ids looked up")


def test_frames_of_several_partitions_interleave_and_each_counts_its_own() -> None:
    seed = seed_or(2)
    print(f"seed {seed}")
    frames, rng, lists = Frames(), random.Random(seed), {A: [], B: [], C: []}  # type: ignore[var-annotated]
    for _ in range(200):
        owner, count = rng.choice([A, B, C]), rng.randint(1, 5)
        entry = frames.records(owner, count)
        lists[owner] += range(entry.first_id, entry.next_id)
    topics = applied(frames.entries)
    for owner, ids in lists.items():
        offsets = found(topics, owner).offsets
        assert [offsets.id_of(at) for at in range(len(ids))] == ids
    assert {part.owner for part in topics} == {A, B, C}
    assert len(topics) == 3


@pytest.mark.parametrize("start", range(12))
def test_a_start_takes_what_lies_before_it_and_renumbers_nothing(start: int) -> None:
    frames = Frames()
    for _ in range(3):
        frames.records(A, 3)
        frames.records(B, 2)
    part = found(applied(frames.entries), A)
    before = [part.offsets.id_of(at) for at in range(9)]
    seen_by_a_reader = part.offsets
    part.start_at(start, frame_id=50)
    assert (part.offsets.start, part.offsets.end) == (start, max(9, start))
    assert [part.offsets.id_of(at) for at in range(start, 9)] == before[start:]
    part.start_at(start - 1, frame_id=51)
    assert part.offsets.start == start
    # Who reads meanwhile has what it took.
    assert [seen_by_a_reader.id_of(at) for at in range(9)] == before


def test_a_frame_is_dead_when_all_of_it_lies_below_the_start() -> None:
    frames = Frames()
    entries = [frames.records(A, 3) for _ in range(3)]
    part = found(applied(frames.entries), A)
    for start, dead in ((0, 0), (2, 0), (3, 1), (5, 1), (9, 3)):
        part.start_at(start, frame_id=20)
        assert [part.is_dead(entry) for entry in entries] == [True] * dead + [False] * (3 - dead)


def test_of_all_that_say_where_a_partition_starts_the_one_that_says_most_stays() -> None:
    """O4: two that move the start at once may be written in any order; the higher one stays."""
    frames = Frames()
    frames.records(A, 20)
    first, second, third = frames.start(A, 5), frames.start(A, 10), frames.start(A, 8)
    part = found(applied(frames.entries), A)
    assert part.offsets.start == 10
    assert [part.is_dead(entry) for entry in (first, second, third)] == [True, False, False]
    assert bounds(applied([frames.entries[0], second, third]), A) == (10, 20)


def test_what_comes_after_an_end_is_another_topic() -> None:
    frames = Frames()
    old = [frames.records(A, 4), frames.start(A, 2)]
    ended = frames.ended(A)
    new = [frames.records(A, 3)]
    topics = applied(frames.entries)
    part = found(topics, A)
    assert bounds(topics, A) == (0, 3)
    assert part.born_id > ended.first_id
    assert all(part.is_dead(entry) for entry in old)
    assert not any(part.is_dead(entry) for entry in new)
    assert applied([*old, ended]).find(A) is None


def test_an_ended_topic_takes_its_producers_with_it() -> None:
    frames = Frames()
    frames.records(A, 1, bytes(encode(Sent(9, 0, 0, (b"x",)))))
    assert found(applied(frames.entries), A).producers is not None
    frames.ended(A)
    frames.records(A, 1)
    assert found(applied(frames.entries), A).producers is None


def test_the_newest_batch_of_a_producer_is_kept_though_nobody_can_read_it() -> None:
    """O6: it says what the producer may send next."""
    frames = Frames()
    sent = [Sent(9, 0, number, (b"x",)) for number in range(3)]
    entries = [frames.records(A, 1, bytes(encode(each))) for each in sent]
    entries.append(frames.records(A, 1))
    part = found(applied(frames.entries), A)
    part.start_at(4, frame_id=10)
    assert [part.is_dead(entry) for entry in entries] == [True, True, False, True]
    assert part.producers is not None
    part.producers.expire(1, now=True)
    assert all(part.is_dead(entry) for entry in entries)


def test_a_gap_that_nothing_accounts_for_refuses_the_partition_and_no_other() -> None:
    """T2, R6: rather refused than wrong."""
    for missing in (1, 2):
        frames = Frames()
        for _ in range(4):
            frames.records(A, 2)
            frames.records(B, 2)
        frames.entries = [e for e in frames.entries if (e.owner, e.first_offset) != (A, 2 * missing)]
        topics = applied(frames.entries)
        with pytest.raises(MetadataDamaged, match="begins with offset"):
            topics.find(A)
        with pytest.raises(MetadataDamaged):
            topics.use(A, 0, 99)
        assert bounds(topics, B) == (0, 8)


def test_records_that_come_twice_refuse_the_partition() -> None:
    """As they would if the end of a topic were lost."""
    frames = Frames()
    frames.records(A, 3)
    frames.ended(A)
    frames.records(A, 2)
    with pytest.raises(MetadataDamaged):
        applied([entry for entry in frames.entries if entry.kind != EnvelopeKind.ENDED]).find(A)


def test_frames_that_cannot_be_read_keep_the_offsets_of_those_after_them() -> None:
    """Whose they were is known from what is missing where; the ids between are theirs, in some order."""
    seed, cases = seed_or(3), 0
    rng = random.Random(seed)
    for _ in range(300):
        frames = Frames()
        for owner in (A, B, C):
            frames.records(owner)
        for _ in range(20):
            frames.records(rng.choice([A, B, C]), rng.randint(1, 4))
        for owner in (A, B, C):
            frames.records(owner)
        lost = set(rng.sample(range(3, 20), rng.randint(1, 4)))
        topics = VirtualTopics()
        for at, entry in enumerate(frames.entries):
            if at in lost:
                topics.lose(entry.first_id, entry.next_id)
            else:
                topics.apply(entry, sparse=False, path="a file")
        for at, entry in enumerate(frames.entries):
            offsets = found(topics, entry.owner).offsets
            assert offsets.end == frames.ends[entry.owner]
            if at not in lost:
                assert offsets.id_of(entry.first_offset) == entry.first_id
        cases += 1
    print(f"seed {seed}: {cases} logs with lost frames")


def test_a_segment_without_its_dead_frames_starts_where_the_first_one_left_does() -> None:
    frames = Frames()
    for _ in range(5):
        frames.records(A, 2)
        frames.records(B, 2)
    start = frames.start(A, 6)
    kept = [e for e in frames.entries if e.owner == B or e is start or e.first_offset >= 6]
    assert bounds(applied(kept, sparse=True), A) == (6, 10)
    assert bounds(applied(kept, sparse=True), B) == (0, 10)


def test_dead_frames_may_be_gone_between_segments_that_are_whole() -> None:
    """Only the middle one of three segments was mostly dead. The frames of one partition then have a gap
    that shows in the third, where none was ever removed."""
    frames = Frames()
    first = [frames.records(A, 2), frames.records(B, 1)]
    middle = [frames.records(A, 2), frames.records(B, 1)]
    last = [frames.records(A, 2), frames.start(A, 4)]
    topics = applied(first)
    topics.apply(middle[1], sparse=True, path="a file")
    for entry in last:
        topics.apply(entry, sparse=False, path="a file")
    assert bounds(topics, A) == (4, 6)
    assert bounds(topics, B) == (0, 2)


def test_the_first_that_is_heard_of_a_partition_may_be_a_start_that_was_moved_on_since() -> None:
    """The segments with its records are gone, and between two starts lay more of them."""
    frames = Frames()
    frames.records(A, 2)
    gone = len(frames.entries)
    frames.start(A, 2)
    frames.ends[A] = 6
    frames.records(A, 3)
    frames.start(A, 6)
    assert bounds(applied(frames.entries[gone:]), A) == (6, 9)


def test_a_partition_nobody_wrote_to_starts_where_it_is_said_to() -> None:
    topics = VirtualTopics()
    part = topics.use(A, 500, 7)
    assert (part.offsets.start, part.offsets.end, part.born_id, part.size) == (500, 500, 7, 0)
    assert topics.use(A, 1, 1) is part
    assert topics.find(B) is None


def test_what_made_a_frame_is_known_from_its_entry() -> None:
    frames = Frames()
    plain = frames.records(A, 2)
    stamped = frames.records(A, 2, BATCH)
    assert plain.stamp is None
    assert stamped.stamp == (9, 1, 5, 6, False)
    assert frames.start(A, 1).stamp is None
