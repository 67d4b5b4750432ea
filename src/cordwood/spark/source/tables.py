"""``CREATE TABLE … USING cordwood``: a table whose options are stored in its schema.

Spark 4.3 passes the options of a table to a Python source when the table is created, but not for SELECT or
INSERT. But it stores the schema with the metadata of columns and passes it to both. So the metadata of the
first column has the options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from cordwood.spark.options import READ_ONLY, WRITE_ONLY, check_names

_METADATA = "cordwood.options"


def is_table(options: Mapping[str, str]) -> bool:
    """Return whether *options* come from Spark's catalogue, which adds its own."""
    return any(name.lower() == "provider" for name in options)


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table with *options* in it."""
    first, *rest = schema.fields
    metadata = {_METADATA: json.dumps(dict(options), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *rest])


def options_of(schema: StructType) -> dict[str, str]:
    """Return the options of a table, none if this is not the schema of a table."""
    for field in schema.fields:
        if _METADATA in field.metadata:
            return check_names(json.loads(field.metadata[_METADATA]))
    return {}


def for_reading(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table for SELECT; a table with only ``topic`` reads that topic."""
    found = {name: value for name, value in options.items() if name not in WRITE_ONLY}
    if "topic" in options and not found.keys() & {"subscribe", "subscribePattern", "assign"}:
        found["subscribe"] = options["topic"]
    return found


def for_writing(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table for INSERT; a table that reads a single topic writes to it."""
    found = {name: value for name, value in options.items() if name not in READ_ONLY}
    subscribed = options.get("subscribe", "").split(",")
    if "topic" not in options and len(subscribed) == 1 and subscribed[0].strip():
        found["topic"] = subscribed[0].strip()
    return found
