"""Ingest files or a query into a topic: all rows or none, and only once under an id."""

from __future__ import annotations

import contextlib
import difflib
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
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

from cordwood.broker import COMMANDS, staging_topic
from cordwood.disk import PosixFiles
from cordwood.errors import ConfigError, CordwoodError, JobFailed
from cordwood.spark.failures import as_one_sentence
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.row_errors import ColumnCheck, FileSource, first_refused
from cordwood.spark.jobs.stats import observed
from cordwood.spark.jobs.target import carrier_to, ensure_topic, find_topic, removed_unless_used
from cordwood.storage.sink import promised

Partitioner = Literal["key", "round-robin"]
#: Suffixes of file names, and the format of Spark for each.
SUFFIXES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")
#: An unparsable line ends the job before anything is published; by default Spark would return nulls.
_STRICT = {"mode": "FAILFAST"}
_READER_OPTIONS: dict[str, dict[str, str]] = {
    "csv": {**_STRICT, "header": "true"},
    "json": _STRICT,
    "parquet": {},
}
_NUMBER = r"^\s*-?\d+\s*$"
_NESTED = (StructType, ArrayType, MapType, VariantType)


@dataclass(frozen=True)
class IngestOptions:
    """The source and target. ``files`` or ``query`` give rows; the other names are their columns.

    Without ``value``, the value is the whole row as JSON. ``name`` and ``version`` make a second run a no-op:
    only a version above the last one published under that name is published.
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
    """The result: nothing is published if name and version were published before."""

    topic: str
    records: int
    published: bool
    name: str | None
    version: int | None


def ingest(spark: SparkSession, options: IngestOptions) -> IngestReport:
    """Publish rows as records of a topic, which is created if it is missing. Durable on return.

    All or nothing, and once under a name. Other brokers than Cordwood's get rows at least once, so a name is
    refused for them. A topic that was created for the job and got no records is removed.

    Raises:
        JobFailed: If the rows cannot be read or stored; names the file and the line if known.
        ConfigError: If a column is missing or of a wrong type.
    """
    version = None if options.name is None else options.version
    if _is_done(options):
        return IngestReport(options.topic, 0, False, options.name, version)
    seen = Observation("cordwood ingest")
    with removed_unless_used(options.place, options.topic), _blaming(spark, options), as_one_sentence():
        rows = records_of(read_rows(spark, options), options)
        target = ensure_topic(options.place, options.topic, options.partitions)
        if options.partitioner == "round-robin":
            turn = F.monotonically_increasing_id() % target.partitions
            rows = rows.withColumn("partition", turn.cast("int"))
        named = {}
        if options.name is not None:
            named = {"txnAppId": options.name, "txnVersion": str(options.version)}
        writer = rows.observe(seen, F.count(F.lit(1)).alias("records")).write.format("cordwood")
        where = {**options.place.options(), "topic": options.topic}
        writer.options(**where, **named).mode("append").save()
    published = options.name is None or options.place.path is not None or _was_new(options)
    records = observed(seen).get("records", 0) if published else 0
    return IngestReport(options.topic, records, published, options.name, version)


@contextlib.contextmanager
def _blaming(spark: SparkSession, options: IngestOptions) -> Iterator[None]:
    """Add the row and file to a failure in the block, if they can be found."""
    try:
        yield
    except JobFailed as error:
        found = None
        if options.files and not error.corruption:
            found = first_refused(spark, _source(options), _doubts(options))
        if found is None:
            raise
        raise JobFailed(found) from error


def _source(options: IngestOptions) -> FileSource:
    kind = options.format or format_of(options.files)
    # Spark may have another working directory.
    files = [os.path.abspath(each) if glob.glob(each) else each for each in options.files]
    return FileSource(files, kind, {**_READER_OPTIONS.get(kind, {}), **options.reader})


def _doubts(options: IngestOptions) -> list[ColumnCheck]:
    """Return the possible faults of rows that parse."""
    found = []
    target = find_topic(options.place, options.topic)
    if options.timestamp is not None:
        column = F.col(_quoted(options.timestamp))
        text = column.cast("string")
        wrong = text.isNotNull() & ~text.rlike(_NUMBER) & text.try_cast("timestamp").isNull()
        found.append(ColumnCheck(options.timestamp, wrong, "which is neither a timestamp nor milliseconds"))
    if options.partition is not None:
        column = F.col(_quoted(options.partition))
        number = column.cast("string").try_cast("int")
        found.append(
            ColumnCheck(options.partition, column.isNotNull() & number.isNull(), "which is not a number")
        )
        if target is not None:
            reason = f"but topic {options.topic} has {target.partitions} partitions"
            found.append(ColumnCheck(options.partition, (number < 0) | (number >= target.partitions), reason))
    if options.key is not None and target is not None and target.keyed:
        reason = f"but topic {options.topic} is compacted and needs a key"
        found.append(ColumnCheck(options.key, F.col(_quoted(options.key)).isNull(), reason))
    return found


# --- rows ---------------------------------------------------------------------------------------------


def read_rows(spark: SparkSession, options: IngestOptions) -> DataFrame:
    """Return the rows of the files or of the query.

    Raises:
        CordwoodError: If a file is missing, or its name does not show its format.
    """
    if options.query is not None:
        return spark.sql(options.query)
    source = _source(options)
    try:
        return spark.read.format(source.kind).options(**source.settings).load(list(source.files))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        missing = (error.getMessageParameters() or {}).get("path", ", ".join(options.files))
        raise CordwoodError(f"there is no file {missing.removeprefix('file:')}") from None


def format_of(files: Sequence[str]) -> str:
    """Return the format from the names of *files*.

    Raises:
        ConfigError: If a name shows none, or they differ.
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
    """Return *rows* as the columns of the sink.

    Raises:
        ConfigError: If a column is missing or of a wrong type; names it.
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
    """Return a column as a key or value: bytes and text unchanged, nested values as JSON."""
    kind, column = _type_of(rows, name), F.col(_quoted(name))
    if isinstance(kind, BinaryType):
        return column
    return F.to_json(column) if isinstance(kind, _NESTED) else column.cast("string")


def _time(rows: DataFrame, name: str) -> Column:
    kind, column = _type_of(rows, name), F.col(_quoted(name))
    if isinstance(kind, IntegralType):
        return F.timestamp_millis(column.cast("long"))
    if isinstance(kind, StringType):
        # Text files have no types: a number is milliseconds there too.
        number = F.timestamp_millis(F.trim(column).cast("long"))
        return F.when(column.rlike(_NUMBER), number).otherwise(column.cast("timestamp"))
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
    """Return a quoted column name, so that dots and spaces are part of the name."""
    return "`" + name.replace("`", "``") + "`"


# --- once ---------------------------------------------------------------------------------------------


def _query_of(name: str) -> str:
    """Return the sink's name for the query of a transaction."""
    return f"transaction {name}"


def _is_done(options: IngestOptions) -> bool:
    """Return whether this was published before; by path the journal says so.

    Raises:
        CordwoodError: If the broker is not Cordwood's and cannot tell.
    """
    if options.name is None:
        return False
    if options.place.path is not None:
        data = os.path.abspath(options.place.path)
        return promised(PosixFiles(), data, _query_of(options.name)) >= options.version
    from cordwood.spark.sink import ForeignCarrier

    with contextlib.closing(carrier_to(options.place)) as carrier:
        if isinstance(carrier, ForeignCarrier):
            raise CordwoodError(
                f"{options.place.bootstrap} is no Cordwood server, which alone can tell what was published "
                "before: ingest without an id, at least once"
            )
    return False


def _was_new(options: IngestOptions) -> bool:
    """Return whether a broker published the rows just sent.

    It removes staged records once they are published, including the command; the command of a batch that was
    published before stays.
    """
    assert options.name is not None
    with options.place.access() as access:
        standing = access.standing(staging_topic(_query_of(options.name)), (COMMANDS,))
    if standing is None:
        return True
    commands = standing.partitions[COMMANDS]
    return commands.start == commands.end
