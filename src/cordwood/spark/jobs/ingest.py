"""Ingest: files or a query into a topic, all of it or nothing, and under an id only once."""

from __future__ import annotations

import contextlib
import difflib
import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from cordwood.broker.sink import COMMANDS, staging_topic
from cordwood.errors import ConfigError, CordwoodError
from cordwood.spark.failures import as_one_sentence
from cordwood.spark.jobs.counting import observed
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.target import carrier_to, ensure_topic
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.publishing import promised

Partitioner = Literal["key", "round-robin"]
#: What the name of a file ends with, and the format of Spark that reads it.
SUFFIXES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")
#: A line that does not parse ends the job before anything is published; Spark would make nulls of it.
_STRICT = {"mode": "FAILFAST"}
_READER_OPTIONS: dict[str, dict[str, str]] = {
    "csv": {**_STRICT, "header": "true"},
    "json": _STRICT,
    "parquet": {},
}
_NESTED = (StructType, ArrayType, MapType, VariantType)


@dataclass(frozen=True)
class IngestOptions:
    """What goes where. ``files`` or ``query`` give rows, the other names are columns of them.

    Without ``value`` it is the whole row as JSON. ``name`` and ``version`` make a second run a no-op: only a
    version above the last one published under that name is published.
    """

    place: LogPlace
    topic: str
    files: Sequence[str] = ()
    query: str | None = None
    format: str | None = None
    reader: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    partitioner: Partitioner = "key"
    partitions: int | None = None
    name: str | None = None
    version: int = 0


@dataclass(frozen=True)
class IngestReport:
    """What was published: nothing where the same name and version were before."""

    topic: str
    records: int
    published: bool
    name: str | None
    version: int | None


def ingest(spark: SparkSession, options: IngestOptions) -> IngestReport:
    """Publish rows as records of a topic, which is made if it is missing. Durable on return.

    All or nothing, and once under a name. To a broker that is not ours it is at least once, so that there a
    name is refused.

    Raises:
        JobFailed: If the rows cannot be read or stored.
        ConfigError: If a column is not there, or not of a type that will do.
    """
    version = None if options.name is None else options.version
    if _is_done(options):
        return IngestReport(options.topic, 0, False, options.name, version)
    with as_one_sentence():
        rows = records_of(read_rows(spark, options), options)
        target = ensure_topic(options.place, options.topic, options.partitions)
        if options.partitioner == "round-robin":
            turn = F.monotonically_increasing_id() % target.partitions
            rows = rows.withColumn("partition", turn.cast("int"))
        seen = Observation("cordwood ingest")
        named = {}
        if options.name is not None:
            named = {"txnAppId": options.name, "txnVersion": str(options.version)}
        writer = rows.observe(seen, F.count(F.lit(1)).alias("records")).write.format("cordwood")
        where = {**options.place.options(), "topic": options.topic}
        writer.options(**where, **named).mode("append").save()
    published = options.name is None or options.place.path is not None or _was_new(options)
    records = observed(seen).get("records", 0) if published else 0
    return IngestReport(options.topic, records, published, options.name, version)


# --- rows ---------------------------------------------------------------------------------------------


def read_rows(spark: SparkSession, options: IngestOptions) -> DataFrame:
    """Return the rows that the files or the query give.

    Raises:
        CordwoodError: If a file is not there, or its name does not say what is in it.
    """
    if options.query is not None:
        return spark.sql(options.query)
    kind = options.format or format_of(options.files)
    settings = {**_READER_OPTIONS.get(kind, {}), **options.reader}
    # The working directory of Spark need not be ours.
    files = [os.path.abspath(each) if glob.glob(each) else each for each in options.files]
    try:
        return spark.read.format(kind).options(**settings).load(files)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        missing = (error.getMessageParameters() or {}).get("path", ", ".join(options.files))
        raise CordwoodError(f"there is no file {missing.removeprefix('file:')}") from None


def format_of(files: Sequence[str]) -> str:
    """Return the format that the names of *files* say.

    Raises:
        ConfigError: If one says none, or they say different ones.
    """
    found = {}
    for name in files:
        stem, last = os.path.splitext(name.rstrip("/"))
        suffix = os.path.splitext(stem)[1] if last in _COMPRESSED else last
        if suffix.lower() not in SUFFIXES:
            raise ConfigError("format", f"the name {name} does not say what is in it: give --format")
        found[SUFFIXES[suffix.lower()]] = name
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise ConfigError(
            "format", f"{first} is {one} and {second} is {other}: ingest one format after the other"
        )
    return next(iter(found))


def records_of(rows: DataFrame, options: IngestOptions) -> DataFrame:
    """Return *rows* as the columns that the sink takes.

    Raises:
        ConfigError: If a column is not there, or not of a type that will do; names it.
    """
    columns = {}
    if options.value is None:
        everything = F.struct(*(F.col(_quoted(name)) for name in rows.columns))
        columns["value"] = F.to_json(everything)
    else:
        columns["value"] = _bytes(rows, options.value)
    if options.key is not None:
        columns["key"] = _bytes(rows, options.key)
    if options.timestamp is not None:
        columns["timestamp"] = _time(rows, options.timestamp)
    if options.partition is not None:
        columns["partition"] = _number(rows, options.partition)
    return rows.select(*(column.alias(name) for name, column in columns.items()))


def _type_of(rows: DataFrame, name: str) -> DataType:
    for column in rows.schema.fields:
        if column.name == name:
            return column.dataType
    near = difflib.get_close_matches(name, rows.columns, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(rows.columns) or 'none'}"
    raise ConfigError(name, f"there is no column {name}; {hint}")


def _bytes(rows: DataFrame, name: str) -> Column:
    """Return a column as a key or value has it: bytes and text as they are, nested ones as JSON."""
    kind, column = _type_of(rows, name), F.col(_quoted(name))
    if isinstance(kind, BinaryType):
        return column
    return F.to_json(column) if isinstance(kind, _NESTED) else column.cast("string")


def _time(rows: DataFrame, name: str) -> Column:
    kind, column = _type_of(rows, name), F.col(_quoted(name))
    if isinstance(kind, IntegralType):
        return F.timestamp_millis(column.cast("long"))
    if isinstance(kind, StringType):
        # Files of text have no types: a number is milliseconds there too.
        number = F.timestamp_millis(F.trim(column).cast("long"))
        return F.when(column.rlike(r"^\s*-?\d+\s*$"), number).otherwise(column.cast("timestamp"))
    if isinstance(kind, (TimestampType, TimestampNTZType, DateType)):
        return column.cast("timestamp")
    raise ConfigError(
        name, f"column {name} is {kind.simpleString()}, not a timestamp, a text with one, or milliseconds"
    )


def _number(rows: DataFrame, name: str) -> Column:
    kind, column = _type_of(rows, name), F.col(_quoted(name))
    if isinstance(kind, (IntegralType, StringType)):
        return column.cast("int")
    raise ConfigError(name, f"column {name} is {kind.simpleString()}, not the number of a partition")


def _quoted(name: str) -> str:
    """Return a name so that its dots and spaces are its own."""
    return "`" + name.replace("`", "``") + "`"


# --- once ---------------------------------------------------------------------------------------------


def _query_of(name: str) -> str:
    """Return what the sink calls the query of a transaction."""
    return f"transaction {name}"


def _is_done(options: IngestOptions) -> bool:
    """Return whether it is known already that this was published before: by path the journal says so.

    Raises:
        CordwoodError: If the broker is not ours, which could not tell.
    """
    if options.name is None:
        return False
    if options.place.path is not None:
        data = os.path.abspath(options.place.path)
        return promised(PosixFiles(), data, _query_of(options.name)) >= options.version
    from cordwood.spark.address_carrier import ForeignCarrier

    with contextlib.closing(carrier_to(options.place)) as carrier:
        if isinstance(carrier, ForeignCarrier):
            raise CordwoodError(
                f"{options.place.bootstrap} is no Cordwood server, which alone can tell what was published "
                "before: ingest without an id, at least once"
            )
    return False


def _was_new(options: IngestOptions) -> bool:
    """Return whether a broker published what was sent just now.

    It clears what was staged once that is published, the command among it; one for a batch that was
    published before stays.
    """
    assert options.name is not None
    with options.place.access() as access:
        standing = access.standing(staging_topic(_query_of(options.name)), (COMMANDS,))
    if standing is None:
        return True
    commands = standing.partitions[COMMANDS]
    return commands.start == commands.end
