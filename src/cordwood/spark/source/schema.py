"""The columns of ``format("cordwood")``: those of Spark's Kafka connector, all or some, in any order."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cordwood.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}
_MAY_BE_NULL = {"key", "value", "headers"}


def spark_schema(*, include_headers: bool) -> StructType:
    """Return the default schema."""
    names = [name for name in _TYPES if include_headers or name != "headers"]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """Refuse a user's schema with unknown columns or wrong types.

    Raises:
        ConfigError: Names the column and the allowed types.
    """
    names = schema.fieldNames()
    if not names or len(set(names)) < len(names):
        raise ConfigError("schema", f"a schema needs columns, each once, not {', '.join(names) or 'none'}")
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            near = difflib.get_close_matches(field.name.lower(), [name.lower() for name in _TYPES], 1)
            meant = next((name for name in _TYPES if near and name.lower() == near[0]), None)
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(_TYPES)}"
            raise ConfigError(field.name, f"format cordwood has no column {field.name}; {hint}")
        found = field.dataType.simpleString()
        if found != expected.simpleString():
            raise ConfigError(
                field.name, f"column {field.name} has type {expected.simpleString()}, not {found}"
            )
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise ConfigError(field.name, f"column {field.name} may be null, which NOT NULL denies")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires of record batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def with_null_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return *batch* with null in place of each empty list of headers, as in Spark's Kafka connector.

    The headers themselves are not copied.
    """
    import numpy as np
    import pyarrow as pa

    number = batch.schema.get_field_index("headers")
    if number < 0:
        return batch
    headers = batch.column(number)
    present = headers.value_lengths().fill_null(0).to_numpy() > 0
    if present.all():
        return batch
    # A slice of an array shares its buffers, so the bits begin at the offset of the slice.
    bits = np.packbits(np.concatenate([np.zeros(headers.offset, bool), present]), bitorder="little")
    nulls = pa.Array.from_buffers(
        headers.type,
        len(headers),
        [pa.py_buffer(bits), headers.buffers()[1]],
        offset=headers.offset,
        children=[headers.values],
    )
    return batch.set_column(number, batch.schema.field(number), nulls)
