"""Windowed aggregates of a topic: records with a JSON value, counted and added up by time and group."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import IntegralType, NumericType, StringType, StructType, TimestampType

from cordwood.errors import ConfigError

#: The columns of a record besides the fields of its value; a field of the same name has precedence.
_OF_THE_RECORD = ("key", "partition", "timestamp")
_CORRUPT = "_cordwood_corrupt"


@dataclass(frozen=True)
class WindowedSums:
    """The aggregates: *sums* and *averages* of fields by *groups*, in windows of *size* over *time*.

    ``schema`` is that of the JSON values, as DDL. ``late`` is how late a record of a stream may arrive after
    the newest one, and ``final`` whether only complete windows are returned.
    """

    size: str
    schema: str | None = None
    sums: Sequence[str] = ()
    averages: Sequence[str] = ()
    groups: Sequence[str] = ()
    time: str = "timestamp"
    late: str = "10 minutes"
    final: bool = False
    skip_malformed: bool = False

    @property
    def names(self) -> list[str]:
        """The columns that identify a row of the result."""
        return ["start", "end", *self.groups]


def aggregate(records: DataFrame, windows: WindowedSums) -> DataFrame:
    """Return a row for each window and group: start, end, the groups, count, ``sum_…``, ``avg_…``.

    Raises:
        ConfigError: If a column is missing or not numeric; names it.
    """
    fields = _fields(records, windows)
    _check_columns(fields, windows)
    if isinstance(fields.schema[windows.time].dataType, IntegralType):
        fields = fields.withColumn(windows.time, F.timestamp_millis(F.col(windows.time).cast("long")))
    timed = fields.where(F.col(windows.time).isNotNull()).withWatermark(windows.time, windows.late)
    window = F.window(windows.time, windows.size).alias("window")
    measures = [
        F.count(F.lit(1)).alias("count"),
        *(F.sum(name).alias(f"sum_{name}") for name in windows.sums),
        *(F.avg(name).alias(f"avg_{name}") for name in windows.averages),
    ]
    summed = timed.groupBy(window, *windows.groups).agg(*measures)
    names = [name for name in summed.columns if name != "window"]
    return summed.select("window.start", "window.end", *names)


def as_records(rows: DataFrame, windows: WindowedSums) -> DataFrame:
    """Return rows of `aggregate` as records: window and group as key, the whole row as value."""
    key = F.to_json(F.struct(*windows.names), {"ignoreNullFields": "false"})
    value = F.to_json(F.struct(*rows.columns), {"ignoreNullFields": "false"})
    return rows.select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))


def _fields(records: DataFrame, windows: WindowedSums) -> DataFrame:
    """Return the fields of the values and the columns of the record."""
    own: dict[str, Column] = {name: F.col(name) for name in _OF_THE_RECORD}
    own["key"] = F.col("key").cast("string")
    if windows.schema is None:
        return records.select(*(column.alias(name) for name, column in own.items()))
    try:
        schema = StructType.fromDDL(windows.schema)
        assert isinstance(schema, StructType)
    except ParseException as error:
        message = str(error).strip().splitlines()[0]
        raise ConfigError("value-schema", f"the schema of the values does not parse: {message}") from None
    text = F.col("value").cast("string")
    settings = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = F.from_json(text, schema.add(_CORRUPT, StringType()), settings)
    # A tombstone has no value to aggregate.
    read = records.where("value is not null").withColumn("fields", parsed)
    sound = F.col(f"fields.{_CORRUPT}").isNull()
    if not windows.skip_malformed:
        place = F.format_string(
            "the value at offset %d of partition %d is not JSON of the schema", "offset", "partition"
        )
        sound = F.when(sound, F.lit(True)).otherwise(F.raise_error(place))
    names = [name for name in schema.fieldNames() if name != _CORRUPT]
    left = [column.alias(name) for name, column in own.items() if name not in names]
    return read.where(sound).select(*(F.col(f"fields.`{name}`").alias(name) for name in names), *left)


def _check_columns(fields: DataFrame, windows: WindowedSums) -> None:
    for name in (windows.time, *windows.groups, *windows.sums, *windows.averages):
        if name not in fields.columns:
            near = difflib.get_close_matches(name, fields.columns, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields.columns)}"
            raise ConfigError(name, f"there is no column {name}; {hint}")
    kind = fields.schema[windows.time].dataType
    if not isinstance(kind, (TimestampType, IntegralType)):
        raise ConfigError(
            windows.time, f"column {windows.time} is {kind.simpleString()}, not timestamp or milliseconds"
        )
    for name in (*windows.sums, *windows.averages):
        kind = fields.schema[name].dataType
        if not isinstance(kind, NumericType):
            raise ConfigError(name, f"column {name} is {kind.simpleString()}, not a number to add up")
    for name in windows.groups:
        if name in ("start", "end", "count"):
            raise ConfigError(name, f"column {name} cannot be a group: the result has one of that name")
