"""Planning for the shared log: every wanted record in exactly one slice, and little read beside them."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from cordwood.formats.shared.envelope import Owner
from cordwood.spark.access.access import Piece
from cordwood.spark.access.gathering import SKIP_BYTES, STRETCHES_MAX, Gathered, GatheredPart, Gathering
from cordwood.spark.access.planning import cut_pieces
from cordwood.storage.shared.offsets import Offsets


class Even:
    """A log of which every id takes as many bytes."""

    def __init__(self, bytes_each: int) -> None:
        self.bytes_each = bytes_each

    def bytes_within(self, start: int, end: int) -> int:
        return (end - start) * self.bytes_each

    def cuts(self, start: int, end: int, bytes_max: int) -> list[int]:
        step = max(bytes_max // self.bytes_each, 1)
        return list(range(start + step, end, step))


def owner(number: int) -> Owner:
    return Owner(7, bytes([number]) * 16, 0)


def log_of(seed: int, frames: int, owners: int) -> dict[int, list[int]]:
    """Return the ids of each owner's records: frames of one to nine, some of nobody's between."""
    dice, next_id = random.Random(seed), 0
    found: dict[int, list[int]] = {number: [] for number in range(owners)}
    for _ in range(frames):
        count = dice.randrange(1, 10)
        if (number := dice.randrange(owners + 1)) < owners:
            found[number] += range(next_id, next_id + count)
        next_id += count
    return found


def part_of(number: int, ids: list[int], start: int, first: int, end: int) -> GatheredPart:
    """Return what is wanted of a partition that starts at the offset *start*: its records [first, end)."""
    piece = Piece(f"t{number}", 0, start + first, start + end, "id", 0)
    return GatheredPart(piece, owner(number), Offsets(start, BitMap64(ids)))


def slices_of(
    whole: Gathering, least: int | None = None, most: int | None = None
) -> tuple[list[Gathered], list[int]]:
    cut = cut_pieces([(Piece("", 0, 0, len(whole)), whole.cuts)], least, most)
    return [whole.part(each.start, each.end) for each in cut], [each.end - each.start for each in cut]


@given(
    st.integers(0, 10_000),
    st.integers(1, 80),
    st.integers(1, 5),
    st.sampled_from([1, 1000, 200_000]),
    st.integers(200, 2_000_000),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 60),
    st.data(),
)
def test_every_wanted_record_is_in_exactly_one_slice(
    seed: int,
    frames: int,
    owners: int,
    bytes_each: int,
    bytes_max: int,
    least: int | None,
    most: int | None,
    data: st.DataObject,
) -> None:
    parts, wanted = [], set()
    for number, ids in log_of(seed, frames, owners).items():
        if not ids:
            continue
        first = data.draw(st.integers(0, len(ids) - 1))
        end = data.draw(st.integers(first + 1, len(ids)))
        parts.append(part_of(number, ids, 5 * number, first, end))
        wanted |= {(f"t{number}", 5 * number + at, ids[at]) for at in range(first, end)}
    if not parts:
        return
    whole = Gathering(parts, Even(bytes_each), bytes_max)
    assert len(whole) == len(wanted)
    slices, counts = slices_of(whole, least, most)
    found = []
    for each, count in zip(slices, counts, strict=True):
        mine = []
        for want in each.wanted:
            offsets = next(part.offsets for part in parts if part.piece.topic == want.piece.topic)
            assert offsets.id_of(want.piece.start) == want.first_id
            assert offsets.id_of(want.piece.end - 1) + 1 == want.end_id
            mine += [
                (want.piece.topic, offset, offsets.id_of(offset))
                for offset in range(want.piece.start, want.piece.end)
            ]
        assert len(mine) == count
        assert all(any(a <= id_ < b for a, b in each.stretches) for _, _, id_ in mine)
        assert list(each.stretches) == sorted(each.stretches)
        found += mine
    assert sorted(found) == sorted(wanted)
    assert len(slices) >= min(least or 0, len(wanted))
    assert most is None or max(counts) <= most


def test_a_thousand_topics_are_one_slice_and_what_is_large_is_cut() -> None:
    ids = {number: list(range(number, 10_000, 1000)) for number in range(1000)}
    parts = [
        GatheredPart(Piece(f"t{n}", 0, 0, 10, "id", 0), Owner(n, bytes(16), 0), Offsets(0, BitMap64(each)))
        for n, each in ids.items()
    ]
    (one,), counts = slices_of(Gathering(parts, Even(200), 128 << 20))
    assert one.stretches == ((0, 10_000),)
    assert counts == [10_000]
    assert len(pickle.dumps(one)) < 200_000
    slices, counts = slices_of(Gathering(parts, Even(200_000), 128 << 20))
    assert 15 <= len(slices) <= 17
    assert max(counts) <= (128 << 20) // 200_000 + 1


def test_what_lies_between_wanted_records_far_apart_is_not_read() -> None:
    """Two records of a topic, a gigabyte of others' between them."""
    ids = [10, 11, 5_000_000]
    whole = Gathering([part_of(0, ids, 0, 0, 3)], Even(200), 128 << 20)
    (one,), _ = slices_of(whole)
    assert one.stretches == ((10, 12), (5_000_000, 5_000_001))


@pytest.mark.parametrize("bytes_each", [1, 1000, 1 << 20])
def test_a_plan_has_a_bounded_number_of_stretches(bytes_each: int) -> None:
    ids = list(range(0, 3_000_000, 100))
    whole = Gathering([part_of(0, ids, 0, 0, len(ids))], Even(bytes_each), 1 << 50)
    (one,), _ = slices_of(whole)
    assert len(one.stretches) <= STRETCHES_MAX + 1
    assert sum(b - a for a, b in one.stretches) * bytes_each <= 3_000_000 * bytes_each
    assert SKIP_BYTES < 1 << 20
