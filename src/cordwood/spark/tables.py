"""``CREATE TABLE … USING cordwood``: a table whose options travel in its schema.

Spark 4.3 gives a Python source the options of a table when the table is made, and never again: not to
SELECT, nor to INSERT. But it keeps the schema, with whatever metadata a column has, and gives it to both. So
the first column of a table carries the options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from cordwood.spark.options import READ_ONLY, WRITE_ONLY, check_names

_METADATA = "cordwood.options"


def is_table(options: Mapping[str, str]) -> bool:
    """Return whether Spark's catalogue gave *options*, which then has more to say than the user had."""
    return any(name.lower() == "provider" for name in options)


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table that was made with *options*."""
    first, *rest = schema.fields
    metadata = {_METADATA: json.dumps(dict(options), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *rest])


def options_of(schema: StructType) -> dict[str, str]:
    """Return the options that a table was made with, none if this is not the schema of a table."""
    for field in schema.fields:
        if _METADATA in field.metadata:
            return check_names(json.loads(field.metadata[_METADATA]))
    return {}


def for_reading(options: Mapping[str, str]) -> dict[str, str]:
    """Return what SELECT needs of the options of a table; one made with ``topic`` alone reads that."""
    found = {name: value for name, value in options.items() if name not in WRITE_ONLY}
    if "topic" in options and not found.keys() & {"subscribe", "subscribePattern", "assign"}:
        found["subscribe"] = options["topic"]
    return found


def for_writing(options: Mapping[str, str]) -> dict[str, str]:
    """Return what INSERT needs of the options of a table; one that reads a single topic writes that."""
    found = {name: value for name, value in options.items() if name not in READ_ONLY}
    subscribed = options.get("subscribe", "").split(",")
    if "topic" not in options and len(subscribed) == 1 and subscribed[0].strip():
        found["topic"] = subscribed[0].strip()
    return found
