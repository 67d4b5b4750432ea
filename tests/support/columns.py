"""Columns of records to give to kernels, and their buffers by name, to damage or to move."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from cordwood.kernels import Buffer, ColumnBuffers, HeaderBuffers, reference
from support.batches import Row

#: The ways to all buffers of columns.
BUFFERS: tuple[tuple[str, ...], ...] = (
    ("timestamp",),
    *((column, part) for column in ("key", "value") for part in ("validity", "offsets", "data")),
    ("headers", "offsets"),
    *(
        ("headers", column, part)
        for column in ("names", "values")
        for part in ("validity", "offsets", "data")
    ),
)


def int64s(numbers: Sequence[int]) -> bytes:
    """Return a buffer of int64 values."""
    return array("q", numbers).tobytes()


def columns_of(rows: Sequence[Row], base_offset: int = 0) -> ColumnBuffers:
    """Lay rows out in columns; a row without a timestamp has 1000."""
    lists = [0]
    for row in rows:
        lists.append(lists[-1] + len(row[2]))
    headers = [header for row in rows for header in row[2]]
    return ColumnBuffers(
        rows=len(rows),
        offset=int64s(range(base_offset, base_offset + len(rows))),
        timestamp=int64s([1000 if row[3] is None else row[3] for row in rows]),
        timestamp_type=None,
        key=reference.lay_out([row[0] for row in rows]),
        value=reference.lay_out([row[1] for row in rows]),
        headers=HeaderBuffers(
            array("i", lists).tobytes(),
            reference.lay_out([name.encode() for name, _ in headers]),
            reference.lay_out([value for _, value in headers]),
        ),
    )


def buffer_at(part: Any, way: Sequence[str]) -> Buffer | None:
    """Return the buffer that a way of `BUFFERS` leads to."""
    for name in way:
        part = getattr(part, name)
    return part  # type: ignore[no-any-return]


def with_buffer(part: Any, way: Sequence[str], buffer: Buffer) -> Any:
    """Return columns with another buffer where a way of `BUFFERS` leads."""
    name, *rest = way
    return part._replace(**{name: with_buffer(getattr(part, name), rest, buffer) if rest else buffer})
