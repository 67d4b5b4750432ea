"""What compaction asks of the kernels, of the compiled ones and of the plain ones alike."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import outcome, row_lists
from support.seeds import seed_or

from cordwood import kernels
from cordwood.kernels import BinaryBuffers, reference

SECRET = bytes(range(16))
KINDS = [pytest.param(reference, id="plain")]
if kernels.COMPILED:
    KINDS.append(pytest.param(kernels, id="compiled"))
keys = st.lists(st.none() | st.binary(max_size=20), max_size=30)


def column(items: list[bytes | None]) -> BinaryBuffers:
    return reference.lay_out(items)


def numbers(values: range | list[int]) -> bytes:
    return array("q", values).tobytes()


@pytest.mark.parametrize("kernel", KINDS)
@given(keys, st.integers(0, 5))
def test_a_record_is_superseded_exactly_where_its_key_has_a_later_one(
    kernel: object, items: list[bytes | None], base: int
) -> None:
    offsets = numbers(range(base, base + len(items)))
    found = kernel.KeyMap(100, SECRET)  # type: ignore[attr-defined]
    assert found.note(column(items), offsets, len(items)) == len(items)
    expected = [key is not None and key in items[i + 1 :] for i, key in enumerate(items)]
    assert list(found.superseded(column(items), offsets, len(items))) == expected
    assert len(found) == len({key for key in items if key is not None})


@pytest.mark.parametrize("kernel", KINDS)
@given(keys, st.integers(1, 8))
def test_a_map_that_is_full_stops_before_the_key_that_does_not_fit(
    kernel: object, items: list[bytes | None], capacity: int
) -> None:
    found = kernel.KeyMap(capacity, SECRET)  # type: ignore[attr-defined]
    stopped = found.note(column(items), numbers(range(len(items))), len(items))
    fits = 0
    while fits < len(items) and len({key for key in items[: fits + 1] if key is not None}) <= capacity:
        fits += 1
    assert stopped == fits
    assert len(found) == len({key for key in items[:stopped] if key is not None})


@pytest.mark.parametrize("kernel", KINDS)
def test_a_map_keeps_the_largest_offset_whatever_the_order_and_across_calls(kernel: object) -> None:
    seed = seed_or(7)
    print(f"seed {seed}")
    dice = random.Random(seed)
    found = kernel.KeyMap(1000, SECRET)  # type: ignore[attr-defined]
    last: dict[bytes, int] = {}
    for _ in range(50):
        items = [b"%d" % dice.randrange(700) for _ in range(100)]
        offsets = [dice.randrange(1 << 40) for _ in items]
        assert found.note(column([*items]), numbers(offsets), 100) == 100
        for key, offset in zip(items, offsets, strict=True):
            last[key] = max(offset, last.get(key, offset))
    for key, offset in last.items():
        assert list(found.superseded(column([key] * 2), numbers([offset - 1, offset]), 2)) == [1, 0]


@pytest.mark.parametrize("kernel", KINDS)
def test_columns_that_are_too_short_and_maps_that_hold_nothing_are_refused(kernel: object) -> None:
    found = kernel.KeyMap(4, SECRET)  # type: ignore[attr-defined]
    for rows, start in ((3, 0), (2, 3), (2, -1)):
        with pytest.raises(ValueError):
            found.note(column([b"a", b"b"]), numbers(range(2)), rows, start)
    with pytest.raises(ValueError):
        found.superseded(column([b"a", b"b"]), numbers(range(1)), 2)
    for capacity, secret in ((0, SECRET), (4, b"short")):
        with pytest.raises(ValueError):
            kernel.KeyMap(capacity, secret)  # type: ignore[attr-defined]


@settings(max_examples=200)
@given(row_lists, st.data())
def test_kept_records_are_those_whose_byte_is_zero(
    rows: list[tuple[object, ...]], data: st.DataObject
) -> None:
    encoded, base, _, last = kernels.encode_rows(rows, 1000, 0)
    dropped = data.draw(st.lists(st.integers(0, 1), min_size=last + 1, max_size=last + 1).map(bytes))
    kept = [row for row, flag in zip(rows, dropped, strict=True) if not flag]
    for kernel in {reference, kernels}:
        found, count, newest = kernel.keep_records(encoded, 0, len(encoded), b"\1" + dropped, 1, last + 1)
        assert count == len(kept)
        decoded = list(
            reference.decode_rows(
                lambda *fields: fields, bytes(found), 0, len(found), count, 0, last, base, 0, False, -1
            )
        )
        assert [(each[2], each[3]) for each in decoded] == [(row[0], row[1]) for row in kept]
        if kept:
            assert base + newest == max(each[1] for each in decoded)


@pytest.mark.skipif(not kernels.COMPILED, reason="the plain kernels are all there is")
@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 6), st.binary(max_size=8))
def test_any_bytes_give_the_same_kept_records_or_the_same_refusal(
    records: bytes, count: int, dropped: bytes
) -> None:
    arguments = (records, 0, len(records), dropped, 0, count)
    assert outcome(kernels.keep_records, *arguments) == outcome(reference.keep_records, *arguments)


@pytest.mark.skipif(not kernels.COMPILED, reason="the plain kernels compare whole keys")
def test_two_hundred_thousand_keys_are_told_apart_by_their_hashes() -> None:
    count = 200_000
    found = kernels.KeyMap(count, SECRET)
    items: list[bytes | None] = [b"%d" % number for number in range(count)]
    assert found.note(column(items), numbers(range(count)), count) == count
    assert len(found) == count
    assert not any(found.superseded(column(items), numbers(range(count)), count))
