"""Rows, batches and hostile bytes for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.formats.compression import Compression
from cordwood.kernels.layout import INT64_MAX, INT64_MIN

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None]

small_bytes = st.binary(max_size=40) | st.binary(min_size=120, max_size=300)
timestamps = st.integers(0, 2**41) | st.integers(INT64_MIN // 2, INT64_MAX // 2)
header_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
headers = st.lists(st.tuples(header_names, st.none() | small_bytes), max_size=3)
rows: st.SearchStrategy[Row] = st.tuples(
    st.none() | small_bytes, st.none() | small_bytes, headers, st.none() | timestamps
)
row_lists = st.lists(rows, min_size=1, max_size=20)


@st.composite
def batches(draw: st.DrawFn, base_offset: int = 0) -> bytes:
    """One valid batch, any compression, any attributes."""
    return bytes(
        batch.encode_records(
            draw(row_lists),
            draw(st.integers(0, 2**41)),
            BatchOptions(
                base_offset=base_offset,
                leader_epoch=draw(st.integers(0, 3)),
                compression=draw(st.sampled_from(Compression)),
                attributes=draw(st.sampled_from([0, batch.LOG_APPEND_TIME, batch.TRANSACTIONAL])),
                producer_id=draw(st.integers(-1, 2**40)),
                producer_epoch=draw(st.integers(-1, 2**15 - 1)),
                base_sequence=draw(st.integers(-1, 2**31 - 1)),
            ),
        )
    )


@st.composite
def mutations(draw: st.DrawFn, of: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes with a few of them changed, cut or repeated: the neighbourhood where parsers fail."""
    data = bytearray(draw(of))
    for _ in range(draw(st.integers(0, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["set", "cut", "insert", "flip"]))
        if kind == "set":
            data[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
        elif kind == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at:]
        else:
            data[at:at] = draw(st.binary(min_size=1, max_size=12))
    return bytes(data)


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """What a call does, comparable: its result, buffers as bytes, or its error in full."""
    try:
        return ("returned", plain(call(*arguments)))
    except Exception as error:
        return ("raised", type(error), str(error))


def plain(value: Any) -> Any:
    """Turn every buffer inside *value* into bytes."""
    if value is None or isinstance(value, int | str | bytes):
        return value
    if isinstance(value, tuple | list):
        return type(value)(map(plain, value)) if type(value) in (tuple, list) else tuple(map(plain, value))
    try:
        return bytes(value)
    except TypeError:
        return value
