"""Hashing of records and of lists of them, by the compiled kernels and by the plain ones alike."""

from __future__ import annotations

import random
from array import array
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import Row, outcome, row_lists
from support.columns import BUFFERS, buffer_at, columns_of, int64s, with_buffer
from support.seeds import seed_or

from cordwood import kernels
from cordwood.integrity import merkle
from cordwood.kernels import ITEM_SIZE, NO_KEY, NO_VALUE, BinaryBuffers, Buffer, ColumnBuffers, reference
from cordwood.kernels.layout import INT64_MAX, INT64_MIN

SALT = bytes(range(32))
KINDS = [pytest.param(reference, id="plain")]
if kernels.COMPILED:
    from cordwood.kernels import _hash

    class WithoutInstructions:
        """The compiled kernels as they are on a processor without instructions for SHA-256."""

        @staticmethod
        def hash_records(columns: ColumnBuffers, salt: bytes) -> Buffer:
            _hash._use_portable(True)
            try:
                return _hash.hash_records(columns, salt)
            finally:
                _hash._use_portable(False)

        @staticmethod
        def list_roots(items: Buffer, offsets: Buffer, counts: Buffer) -> Buffer:
            _hash._use_portable(True)
            try:
                return _hash.list_roots(items, offsets, counts)
            finally:
                _hash._use_portable(False)

    KINDS.append(pytest.param(kernels, id="compiled"))
    KINDS.append(pytest.param(WithoutInstructions, id="portable"))

COMPILED = KINDS[1:]
compiled_only = pytest.mark.skipif(not COMPILED, reason="the plain kernels are all there is")


def row(value: bytes | None = b"", key: bytes | None = b"") -> Row:
    return key, value, [], 1000


# --- what is hashed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KINDS)
def test_items_of_two_records_are_the_bytes_that_the_format_says(kernel: Any) -> None:
    rows: list[Row] = [
        (b"key", b"value", [("name", b"content"), ("none", None)], 0x0102030405060708),
        (None, None, [], -1),
    ]
    first_key = sha256(b"\x01" + SALT + b"key").digest()
    first_rest = sha256(
        b"\x02\x01\x02\x03\x04\x05\x06\x07\x08"
        b"\x00\x00\x00\x05value"
        b"\x00\x00\x00\x02"
        b"\x00\x00\x00\x04name\x00\x00\x00\x07content"
        b"\x00\x00\x00\x04none\xff\xff\xff\xff"
    ).digest()
    second_key = sha256(b"\x01" + SALT).digest()
    second_rest = sha256(b"\x02" + b"\xff" * 8 + b"\xff" * 4 + b"\x00" * 4).digest()
    items = bytes(kernel.hash_records(columns_of(rows), SALT))
    assert items == b"\x00" + first_key + first_rest + b"\x03" + second_key + second_rest
    assert len(items) == 2 * ITEM_SIZE


@pytest.mark.parametrize("kernel", KINDS)
def test_null_and_empty_differ_in_the_flags_or_in_the_hash(kernel: Any) -> None:
    rows = [row(value, key) for key in (None, b"") for value in (None, b"")]
    items = bytes(kernel.hash_records(columns_of(rows), SALT))
    found = [items[at : at + ITEM_SIZE] for at in range(0, len(items), ITEM_SIZE)]
    assert [item[0] for item in found] == [NO_KEY | NO_VALUE, NO_KEY, NO_VALUE, 0]
    assert len({item[1:33] for item in found}) == 1, "a null key is hashed as an empty one"
    assert len({item[33:] for item in found}) == 2, "a null value is not"


@pytest.mark.parametrize("kernel", KINDS)
def test_a_root_over_three_records_is_the_hash_that_the_format_says(kernel: Any) -> None:
    items = [bytes([number]) * ITEM_SIZE for number in (7, 8, 9)]
    entries = [
        sha256(b"\x00" + b"\x00" * 7 + b"\x05" + items[0]).digest(),
        sha256(b"\x00" + b"\xff" * 8 + items[1]).digest(),
        sha256(b"\x00" + b"\x00\x00\x00\x01\x00\x00\x00\x00" + items[2]).digest(),
    ]
    left = sha256(b"\x01" + entries[0] + entries[1]).digest()
    root = sha256(b"\x01" + left + entries[2]).digest()
    assert bytes(kernel.list_roots(b"".join(items), int64s([5, -1, 1 << 32]), int64s([3]))) == root


@pytest.mark.parametrize("kernel", KINDS)
def test_roots_are_those_of_the_tree_of_the_chain(kernel: Any) -> None:
    """Lists of every length from 0 to 70, all in one call, and each alone."""
    lengths = list(range(71))
    seed = seed_or(6)
    print(f"seed {seed}")
    random.Random(seed).shuffle(lengths)
    items = [random.Random(number).randbytes(ITEM_SIZE) for number in range(sum(lengths))]
    offsets = [random.Random(number).randrange(1 << 62) for number in range(len(items))]
    roots, start = [], 0
    for length in lengths:
        rows = range(start, start + length)
        leaves = [merkle.leaf_hash(offsets[at].to_bytes(8, "big") + items[at]) for at in rows]
        frontier = merkle.empty_frontier()
        frontier.add(leaves)
        roots.append(frontier.root())
        alone = kernel.list_roots(
            b"".join(items[at] for at in rows), int64s(offsets[start:]), int64s([length])
        )
        assert bytes(alone) == roots[-1]
        start += length
    assert bytes(kernel.list_roots(b"".join(items), int64s(offsets), int64s(lengths))) == b"".join(roots)


@pytest.mark.parametrize("kernel", KINDS)
def test_no_records_have_no_items_and_no_lists_no_roots(kernel: Any) -> None:
    assert bytes(kernel.hash_records(columns_of([]), SALT)) == b""
    assert bytes(kernel.list_roots(b"", b"", b"")) == b""
    assert bytes(kernel.list_roots(b"", b"", int64s([0, 0]))) == merkle.EMPTY_ROOT * 2


# --- compiled and plain kernels agree -------------------------------------------------------------------


@compiled_only
def test_the_portable_function_is_tested_beside_the_one_in_use() -> None:
    assert _hash._use_portable(True) is False
    print(f"instructions for SHA-256: {'used' if _hash._use_portable(False) else 'none'}")


@pytest.mark.parametrize("kernel", COMPILED)
@settings(max_examples=200)
@given(row_lists, st.binary(min_size=32, max_size=32))
def test_any_records_have_the_same_items(kernel: Any, rows: list[Row], salt: bytes) -> None:
    columns = columns_of(rows)
    items = bytes(reference.hash_records(columns, salt))
    assert bytes(kernel.hash_records(columns, salt)) == items
    fewer = columns._replace(rows=len(rows) // 2)
    assert bytes(kernel.hash_records(fewer, salt)) == items[: len(rows) // 2 * ITEM_SIZE]


@pytest.mark.parametrize("kernel", COMPILED)
def test_byte_strings_of_every_length_around_the_ends_of_blocks_have_the_same_items(kernel: Any) -> None:
    data = random.Random(3).randbytes(200)
    rows: list[Row] = []
    for size in range(201):
        part = data[:size]
        rows += [(part, b"v", [], 1), (b"k", part, [], 2), (None, b"v", [("n", part)], 3)]
        rows += [(None, part, [("n" * (size % 70), data[size:]), ("", None)], 4)]
    columns = columns_of(rows)
    assert bytes(kernel.hash_records(columns, SALT)) == bytes(reference.hash_records(columns, SALT))
    print(f"{len(rows)} records")


@pytest.mark.parametrize("kernel", COMPILED)
@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1])
def test_a_value_of_a_mebibyte_has_the_same_item(kernel: Any, size: int) -> None:
    value = random.Random(4).randbytes(size)
    columns = columns_of([row(value), row(b"short"), row(b"v", value), (None, None, [("n", value)], 5)])
    assert bytes(kernel.hash_records(columns, SALT)) == bytes(reference.hash_records(columns, SALT))


lengths = st.lists(st.integers(0, 20), max_size=8)


@pytest.mark.parametrize("kernel", COMPILED)
@given(lengths, st.randoms(use_true_random=False), st.integers(0, 3))
def test_any_lists_have_the_same_roots(
    kernel: Any, counts: list[int], dice: random.Random, more: int
) -> None:
    items = dice.randbytes(sum(counts) * ITEM_SIZE)
    offsets = int64s([dice.randint(INT64_MIN, INT64_MAX) for _ in range(sum(counts) + more)])
    arguments = (items, offsets, int64s(counts) + b"x" * more)
    assert outcome(kernel.list_roots, *arguments) == outcome(reference.list_roots, *arguments)


# --- columns and lists that are refused -----------------------------------------------------------------


@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_salt_of_another_size_is_refused(kernel: Any, size: int) -> None:
    with pytest.raises(ValueError, match=f"^a salt of {size} bytes, not 32$"):
        kernel.hash_records(columns_of([row()]), bytes(size))


@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize("name", ["timestamp", "key", "value", "headers"])
def test_a_missing_column_is_refused(kernel: Any, name: str) -> None:
    nothing: dict[str, Any] = {name: None}
    with pytest.raises(ValueError, match=r"^a column is missing$"):
        kernel.hash_records(columns_of([row()])._replace(**nothing), SALT)


@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize("way", BUFFERS, ids=".".join)
def test_a_buffer_that_is_too_short_is_refused(kernel: Any, way: tuple[str, ...]) -> None:
    """Sixteen records need every byte of each buffer, that of the validity bitmaps too."""
    null: Row = (None, None, [("n", None)], None)
    full: Row = (b"k", b"v", [("n", b"c")], None)
    columns = columns_of([null] + [full] * 15)
    if way[1:] == ("names", "validity"):
        assert columns.headers is not None
        names = columns.headers.names._replace(validity=b"\xff\xff")
        columns = columns._replace(headers=columns.headers._replace(names=names))
    kernel.hash_records(columns, SALT)
    whole = buffer_at(columns, way)
    assert whole
    short = with_buffer(columns, way, whole[:-1])
    with pytest.raises(ValueError):
        kernel.hash_records(short, SALT)
    assert outcome(kernel.hash_records, short, SALT) == outcome(reference.hash_records, short, SALT)


@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize("way", [way for way in BUFFERS if way[-1] == "offsets"], ids=".".join)
@pytest.mark.parametrize("wrong", [(0, -1), (2, 1 << 30), (1, 5), (1, -(1 << 31))])
def test_offsets_that_do_not_lie_within_their_data_are_refused_by_row(
    kernel: Any, way: tuple[str, ...], wrong: tuple[int, int]
) -> None:
    columns = columns_of([(b"k", b"v", [("n", b"c")], None)] * 2)
    offsets = array("i", bytes(buffer_at(columns, way) or b""))
    at, number = wrong
    offsets[at] = number
    lying = with_buffer(columns, way, offsets.tobytes())
    text = "^row [01]: the offsets of a column do not lie within its data$"
    with pytest.raises(ValueError, match=text):
        kernel.hash_records(lying, SALT)
    assert outcome(kernel.hash_records, lying, SALT) == outcome(reference.hash_records, lying, SALT)


@pytest.mark.parametrize("kernel", KINDS)
def test_a_header_name_that_is_null_is_refused(kernel: Any) -> None:
    columns = columns_of([(b"k", b"v", [("n", b"c")], None)])
    with pytest.raises(ValueError, match=r"^row 0: the offsets of a column do not lie within its data$"):
        kernel.hash_records(with_buffer(columns, ("headers", "names", "validity"), b"\0"), SALT)


@pytest.mark.parametrize("kernel", COMPILED)
@settings(max_examples=300)
@given(row_lists, st.sampled_from(BUFFERS), st.integers(-1, 22), st.data())
def test_columns_with_any_buffer_damaged_are_hashed_or_refused_alike(
    kernel: Any, rows: list[Row], way: tuple[str, ...], count: int, data: st.DataObject
) -> None:
    """One buffer cut, or a byte of it changed; in half of the cases another number of rows beside it."""
    columns = columns_of(rows)
    buffer = bytearray(buffer_at(columns, way) or b"")
    if data.draw(st.booleans()):
        del buffer[data.draw(st.integers(0, len(buffer))) :]
    elif buffer:
        at = data.draw(st.integers(0, len(buffer) - 1))
        buffer[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    if data.draw(st.booleans()):
        columns = columns._replace(rows=count)
    damaged = with_buffer(columns, way, bytes(buffer))
    assert outcome(kernel.hash_records, damaged, SALT) == outcome(reference.hash_records, damaged, SALT)


@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize(
    ("size", "offsets", "counts"),
    [
        (ITEM_SIZE * 2 - 1, 2, [2]),
        (ITEM_SIZE * 2 + 1, 3, [2]),
        (ITEM_SIZE * 2, 2, [1]),
        (ITEM_SIZE * 2, 2, [3]),
        (ITEM_SIZE * 2, 2, []),
        (ITEM_SIZE * 2, 1, [2]),
        (ITEM_SIZE * 2, 2, [3, -1]),
        (ITEM_SIZE * 2, 2, [-1, 3]),
        (ITEM_SIZE * 2, 2, [INT64_MAX, INT64_MAX, 4]),
        (ITEM_SIZE * 2, 2, [INT64_MIN, INT64_MIN, 2]),
    ],
)
def test_lists_that_do_not_fit_their_items_are_refused(
    kernel: Any, size: int, offsets: int, counts: list[int]
) -> None:
    """Also where the counts fit only modulo 2**64."""
    text = f"^{size} bytes of items and {offsets} offsets for lists of {sum(counts)} records$"
    with pytest.raises(ValueError, match=text):
        kernel.list_roots(bytes(size), int64s(range(offsets)), int64s(counts))


def test_a_column_of_byte_strings_has_an_offset() -> None:
    columns = columns_of([])._replace(key=BinaryBuffers(None, b"", b"", 0))
    for kernel in (reference, kernels):
        with pytest.raises(ValueError, match=r"^a byte-string column needs at least one offset$"):
            kernel.hash_records(columns, SALT)
