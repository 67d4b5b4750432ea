"""The compiled kernels do what the plain ones do: byte for byte, error for error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.batches import batches, mutations, outcome, row_lists, rows

from cordwood import kernels
from cordwood.formats import batch
from cordwood.kernels import ColumnBuffers, Want, reference
from cordwood.kernels.layout import HEADER_SIZE, INT64_MAX, INT64_MIN

pytestmark = pytest.mark.skipif(
    not kernels.COMPILED, reason="no compiler at installation: the plain kernels are all there is"
)

offsets = st.integers(INT64_MIN, INT64_MAX) | st.integers(-1, 40)
any_bytes = st.binary(max_size=400) | mutations(batches())
record_bytes = any_bytes.map(lambda data: data[HEADER_SIZE:])


def both(name: str, *arguments: Any) -> tuple[Any, ...]:
    """Run both kernels and return the one outcome they must share."""
    compiled = outcome(getattr(kernels, name), *arguments)
    plain = outcome(getattr(reference, name), *arguments)
    assert compiled == plain
    return compiled


@settings(max_examples=250)
@given(
    st.lists(any_bytes, max_size=3).map(b"".join),
    st.integers(0, 10),
    st.integers(0, 500),
    offsets,
    st.booleans(),
    st.integers(-1, 2),
)
def test_scan_of_any_bytes_is_the_same(
    data: bytes, start: int, size_max: int, next_offset: int, dense: bool, epoch: int
) -> None:
    both("scan_headers", data, start, len(data), size_max, next_offset, dense, epoch, epoch + 1)
    both("scan_headers", data, start, len(data) - 3, 1 << 24, INT64_MIN, False, INT64_MIN, INT64_MAX)


@settings(max_examples=250)
@given(record_bytes, st.integers(-1, 30), st.integers(-1, 30), offsets, st.booleans(), st.integers(-1, 3))
@example(b"\x00" * 7, 1, 0, 0, True, -1)
def test_walk_of_any_bytes_is_the_same(
    data: bytes, count: int, last_delta: int, base_timestamp: int, dense: bool, compressed_at: int
) -> None:
    both("walk_records", data, 0, len(data), count, last_delta, base_timestamp, dense, compressed_at)


@settings(max_examples=250)
@given(record_bytes, st.integers(-1, 30), st.integers(-1, 30), offsets, offsets, st.booleans())
def test_rows_of_any_bytes_are_the_same(
    data: bytes, count: int, last_delta: int, base_timestamp: int, append_timestamp: int, stamped: bool
) -> None:
    def make(*fields: object) -> tuple[object, ...]:
        return fields

    both(
        "decode_rows", make, data, 0, len(data), count, 1000, last_delta, base_timestamp, append_timestamp,
        stamped, -1,
    )  # fmt: skip


@settings(max_examples=250)
@given(st.lists(mutations(batches()), min_size=1, max_size=3).map(b"".join), st.integers(0, 63))
def test_columns_of_any_bytes_are_the_same(data: bytes, want: int) -> None:
    """Both as they stand in the buffer and as decompressed payloads."""
    table, _, _ = kernels.scan_headers(data, 0, len(data), 1 << 24, 0, False, 0, 9)
    found = batch.BatchScan(table, 0, kernels.Stop.END)
    both("decode_columns", data, table, [None] * len(found), want)
    payloads = [data[h.position + HEADER_SIZE : h.end] for h in found.headers()]
    both("decode_columns", data, table, payloads, want)


@given(st.binary(max_size=30), st.binary(max_size=250))
def test_columns_of_a_table_that_lies_are_refused_alike(data: bytes, table: bytes) -> None:
    rows_in_table = len(table) // 104
    both("decode_columns", data, table[: rows_in_table * 104], [None] * rows_in_table, Want.ALL)


@given(row_lists, st.integers(INT64_MIN, INT64_MAX), st.integers(0, 70))
def test_encoding_rows_gives_the_same_bytes(given_rows: list[Any], now_ms: int, headroom: int) -> None:
    both("encode_rows", given_rows, now_ms, headroom)


@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=3) | st.text(max_size=3), st.none() | st.integers())
        | st.tuples(st.none(), st.binary(max_size=3), st.just([("\ud800", b"")]))
        | st.tuples(st.none(), st.none(), st.just([(b"name", b"")]))
        | st.tuples(st.none(), st.none(), st.sampled_from([[("name",)], [5], [("a", b"", b"")]]))
        | st.tuples(st.none(), st.none(), st.none(), st.integers() | st.floats(allow_nan=False) | st.text())
        | st.tuples(st.none())
        | rows,
        max_size=4,
    )
)
def test_rows_that_are_not_records_are_refused_alike(given_rows: list[Any]) -> None:
    both("encode_rows", given_rows, 0, 0)


@given(row_lists, st.data())
def test_encoding_columns_gives_the_same_bytes(given_rows: list[Any], data: st.DataObject) -> None:
    columns = columns_of(given_rows)
    if data.draw(st.booleans()):
        columns = columns._replace(offset=None)
    if data.draw(st.booleans()):
        columns = columns._replace(headers=None)
    if data.draw(st.booleans()):
        columns = columns._replace(key=None)
    start = data.draw(st.integers(-1, columns.rows))
    stop = data.draw(st.integers(-1, columns.rows + 1))
    both("encode_columns", columns, start, stop, 5)


@settings(max_examples=200)
@given(row_lists, st.data())
def test_columns_whose_buffers_lie_are_refused_alike(given_rows: list[Any], data: st.DataObject) -> None:
    """Any one buffer cut, or any one int32 or int64 in it replaced."""
    columns = columns_of(given_rows)
    which = data.draw(st.sampled_from(["offset", "timestamp", "key", "value", "lists", "names", "values"]))
    target = data.draw(st.sampled_from(["offsets", "data"]))

    def damage(buffer: Any) -> bytes:
        damaged = bytearray(buffer)
        if data.draw(st.booleans()):
            return bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        return bytes(damaged)

    if which == "offset":
        columns = columns._replace(offset=damage(columns.offset))
    elif which == "timestamp":
        columns = columns._replace(timestamp=damage(columns.timestamp))
    elif which in ("key", "value"):
        column = getattr(columns, which)
        columns = columns._replace(**{which: column._replace(**{target: damage(getattr(column, target))})})
    else:
        assert columns.headers is not None
        if which == "lists":
            headers = columns.headers._replace(offsets=damage(columns.headers.offsets))
        else:
            column = getattr(columns.headers, which)
            headers = columns.headers._replace(
                **{which: column._replace(**{target: damage(getattr(column, target))})}
            )
        columns = columns._replace(headers=headers)
    both("encode_columns", columns, 0, columns.rows, 0)


def columns_of(given_rows: list[Any]) -> ColumnBuffers:
    encoded = batch.encode_records(given_rows, 1_000)
    return reference.decode_columns(encoded, batch.scan(encoded).table, [None], Want.ALL)
