"""Columns to Arrow and back: same records, shared memory, any slice of any unit."""

from __future__ import annotations

import datetime
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import row_lists

from cordwood.formats import batch, columns
from cordwood.kernels import Want

UTC = datetime.UTC


def arrow_of(rows: list[Any], want: Want = Want.ALL) -> pa.RecordBatch:
    encoded = batch.encode_records(rows, 1_000)
    return columns.to_arrow(batch.decode_columns(encoded, batch.scan(encoded), want))


@given(row_lists)
def test_arrow_shows_every_record(rows: list[Any]) -> None:
    shown = arrow_of(rows)
    shown.validate(full=True)
    assert shown.schema == columns.schema()
    assert shown.column("key").to_pylist() == [row[0] for row in rows]
    assert shown.column("value").to_pylist() == [row[1] for row in rows]
    assert shown.column("offset").to_pylist() == list(range(len(rows)))
    times = [1_000 if row[3] is None else row[3] for row in rows]
    assert shown.column("timestamp").cast(pa.int64()).to_pylist() == times
    lists = [[(h["key"], h["value"]) for h in one] for one in shown.column("headers").to_pylist()]
    assert lists == [row[2] for row in rows]


def test_only_what_is_wanted_is_there() -> None:
    shown = arrow_of([(b"k", b"v")], Want.VALUE | Want.OFFSET)
    assert shown.schema.names == ["value", "offset"]


@given(row_lists, st.data())
def test_any_slice_of_an_arrow_batch_encodes_to_its_records(rows: list[Any], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    part = arrow_of(rows).slice(start, stop - start)
    encoded = batch.encode_columns(columns.from_arrow(part), 0, part.num_rows)
    records = batch.decode_records(encoded, batch.read_header(encoded))
    found = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]
    assert found == [
        (start + i, 1_000 if row[3] is None else row[3], row[0], row[1], row[2])
        for i, row in enumerate(rows[start:stop])
    ]


@pytest.mark.parametrize(("micros", "millis"), [(1_999, 1), (-1, -1), (-1_000, -1), (0, 0)])
def test_timestamps_are_floored_to_milliseconds(micros: int, millis: int) -> None:
    given_batch = pa.record_batch(
        {
            "value": pa.array([b"v"], pa.large_binary()),
            "timestamp": pa.array([micros], pa.timestamp("us", "UTC")),
            "headers": pa.array([None], columns.schema().field("headers").type),
        }
    )
    encoded = batch.encode_columns(columns.from_arrow(given_batch), 0, 1)
    (record,) = batch.decode_records(encoded, batch.read_header(encoded))
    assert (record.timestamp, record.key, record.value, record.headers) == (millis, None, b"v", ())


def test_a_null_timestamp_is_refused() -> None:
    given_batch = pa.record_batch({"value": [b"v"], "timestamp": pa.array([None], pa.int64())})
    with pytest.raises(ValueError, match="cannot be null"):
        columns.from_arrow(given_batch)


def test_the_format_is_used_without_loading_numpy_or_pyarrow() -> None:
    """A server that only passes batches on must not pay for either."""
    program = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "import cordwood, cordwood.formats.batch as b\n"
        "e = b.encode_records([(None, b'v')], 0); b.validate(e, b.read_header(e))\n"
        "print([m for m in ('numpy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
