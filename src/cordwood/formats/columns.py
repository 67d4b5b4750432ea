"""Decoded columns to Arrow and back, sharing memory. pyarrow is imported only when called.

Names and types are those of Spark's Kafka connector: key, value (binary), offset (int64), timestamp
(milliseconds, UTC), timestampType (int32), headers (list of key, value).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cordwood.kernels import BinaryBuffers, ColumnBuffers, HeaderBuffers

if TYPE_CHECKING:
    import pyarrow as pa


def schema(*, timestamp_unit: str = "ms") -> pa.Schema:
    """Return the Arrow schema of all columns."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return pa.schema(
        [
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp(timestamp_unit, "UTC"), nullable=False),
            pa.field("timestampType", pa.int32(), nullable=False),
            pa.field("headers", pa.list_(pa.field("element", header, nullable=False))),
        ]
    )


def to_arrow(columns: ColumnBuffers, fields: pa.Schema | None = None) -> pa.RecordBatch:
    """Return the present columns as an Arrow record batch over the same memory.

    With *fields*, only those columns with their types: nullable or not, timestamps in their unit (a copy).

    Raises:
        pyarrow.ArrowInvalid: If a timestamp does not fit the unit.
    """
    import pyarrow as pa

    full = schema() if fields is None else fields
    arrays: dict[str, pa.Array] = {}
    known = set(full.names)
    if columns.key is not None and "key" in known:
        arrays["key"] = _binary_array(pa, pa.binary(), columns.rows, columns.key)
    if columns.value is not None and "value" in known:
        arrays["value"] = _binary_array(pa, pa.binary(), columns.rows, columns.value)
    for name, numbers in (
        ("offset", columns.offset),
        ("timestamp", columns.timestamp),
        ("timestampType", columns.timestamp_type),
    ):
        if numbers is not None and name in known:
            kind = pa.timestamp("ms", "UTC") if name == "timestamp" else full.field(name).type
            stored = pa.Array.from_buffers(kind, columns.rows, [None, pa.py_buffer(numbers)], null_count=0)
            arrays[name] = stored.cast(full.field(name).type)
    if columns.headers is not None and "headers" in known:
        arrays["headers"] = _header_array(pa, full.field("headers").type, columns.rows, columns.headers)
    return pa.RecordBatch.from_arrays(
        list(arrays.values()), schema=pa.schema([full.field(name) for name in arrays])
    )


def from_arrow(batch: pa.RecordBatch) -> ColumnBuffers:
    """Return the columns of an Arrow record batch, to be encoded: ``timestamp`` and ``value`` at least.

    Timestamps of any unit are floored to milliseconds. Memory is shared where Arrow's layout allows it.
    """
    import pyarrow as pa

    names = batch.schema.names
    return ColumnBuffers(
        batch.num_rows,
        _int64_buffer(pa, batch.column("offset"), pa.int64()) if "offset" in names else None,
        _milliseconds(pa, batch.column("timestamp")),
        None,
        _binary_buffers(pa, batch.column("key"), pa.binary()) if "key" in names else None,
        _binary_buffers(pa, batch.column("value"), pa.binary()),
        _header_buffers(pa, batch.column("headers")) if "headers" in names else None,
    )


def binary_column(array: pa.Array) -> BinaryBuffers:
    """Return one column of byte strings in the form that kernels take."""
    import pyarrow as pa

    return _binary_buffers(pa, array, pa.binary())


def _binary_array(pa: Any, kind: pa.DataType, rows: int, column: BinaryBuffers) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=column.nulls)


def _header_array(pa: Any, kind: pa.DataType, rows: int, column: HeaderBuffers) -> pa.Array:
    count = len(column.names.offsets) // 4 - 1
    names = _binary_array(pa, pa.string(), count, column.names)
    values = _binary_array(pa, pa.binary(), count, column.values)
    entries = pa.Array.from_buffers(kind.value_type, count, [None], null_count=0, children=[names, values])
    return pa.Array.from_buffers(
        kind, rows, [None, pa.py_buffer(column.offsets)], null_count=0, children=[entries]
    )


def _from_its_start(pa: Any, array: pa.Array) -> pa.Array:
    """Return the array with no offset into its buffers, copied only if it had one."""
    return array if array.offset == 0 else pa.concat_arrays([array, array.slice(0, 0)])


def _int64_buffer(pa: Any, array: pa.Array, kind: pa.DataType) -> memoryview:
    array = _from_its_start(pa, array.cast(kind))
    if array.null_count:
        raise ValueError("offsets and timestamps cannot be null")
    return memoryview(array.buffers()[1])


def _milliseconds(pa: Any, array: pa.Array) -> memoryview:
    if pa.types.is_timestamp(array.type) and array.type.unit != "ms":
        import pyarrow.compute as pc

        # floor_temporal, because a cast truncates towards zero and refuses a loss of precision.
        array = pc.floor_temporal(array, unit="millisecond").cast(pa.timestamp("ms", array.type.tz))
    return _int64_buffer(pa, array, pa.int64())


def _binary_buffers(pa: Any, array: pa.Array, kind: pa.DataType) -> BinaryBuffers:
    array = _from_its_start(pa, array.cast(kind))
    validity, offsets, data = array.buffers()
    rows = len(array)
    return BinaryBuffers(
        memoryview(validity) if array.null_count else None,
        # An empty array may have no offsets buffer.
        memoryview(offsets)[: (rows + 1) * 4] if offsets and offsets.size else bytes(4 * (rows + 1)),
        memoryview(data) if data is not None else b"",
        array.null_count,
    )


def _header_buffers(pa: Any, array: pa.Array) -> HeaderBuffers:
    if array.null_count:
        # No headers and an empty list of them are the same thing in a record.
        empty = pa.array([[]], array.type)
        import pyarrow.compute as pc

        array = pc.coalesce(array, empty[0])
    array = _from_its_start(pa, array)
    rows = len(array)
    offsets = array.buffers()[1]
    entries = _from_its_start(pa, array.values)
    return HeaderBuffers(
        memoryview(offsets)[: (rows + 1) * 4] if offsets and offsets.size else bytes(4 * (rows + 1)),
        _binary_buffers(pa, entries.field(0), pa.string()),
        _binary_buffers(pa, entries.field(1), pa.binary()),
    )
