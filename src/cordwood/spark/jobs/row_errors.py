"""Find the row and file at which an ingest failed. Runs only after a failure.

Spark reports that some row does not parse or cannot be cast, and sometimes its file. So Spark is queried for
the wrong rows with their files. The line is then found by reading that file, if it is on this machine's disk.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TextIO
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import StringType

_CORRUPT = "_cordwood_corrupt"
_TEXT = ("csv", "json")
_SHOWN = 60
_OPENERS: Mapping[str, Callable[..., TextIO]] = {".gz": gzip.open, ".bz2": bz2.open}


@dataclass(frozen=True)
class FileSource:
    """The files that were read, their format, and the options of Spark's reader."""

    files: Sequence[str]
    kind: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class ColumnCheck:
    """A column that may have values that cannot be stored: the condition for such rows, and the reason."""

    column: str
    wrong: Column
    reason: str


def first_refused(spark: SparkSession, source: FileSource, doubts: Sequence[ColumnCheck]) -> str | None:
    """Return the place of a row that cannot be ingested and the reason, as one sentence; None without one."""
    try:
        rows = _permissive(spark, source)
        found = _unparsed(rows, source)
        for doubt in doubts:
            found = found or _at(rows, source, doubt)
        return found
    except (PySparkException, Py4JError, OSError):
        # The original failure is reported in any case.
        return None


def _permissive(spark: SparkSession, source: FileSource) -> DataFrame:
    """Return the rows of all files; unparsable text is in a separate column."""
    files = list(source.files)
    reader = spark.read.format(source.kind).options(**source.settings)
    if source.kind not in _TEXT:
        return reader.load(files)
    reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=_CORRUPT)
    schema = reader.load(files).schema
    if _CORRUPT not in schema.fieldNames():
        schema = schema.add(_CORRUPT, StringType())
    return reader.schema(schema).load(files)


def _unparsed(rows: DataFrame, source: FileSource) -> str | None:
    if source.kind not in _TEXT or source.settings.get("mode") != "FAILFAST":
        return None
    found = _first(rows, F.col(_CORRUPT).isNotNull(), _CORRUPT)
    if found is None:
        return None
    path, text, _ = found
    line = next((number for number, each in _numbered(path) if each == text), None)
    expected = "row of its columns" if source.kind == "csv" else "JSON"
    return f"{_place(path, line)}: {_shown(text)} is no {expected}"


def _at(rows: DataFrame, source: FileSource, doubt: ColumnCheck) -> str | None:
    found = _first(rows, doubt.wrong, doubt.column)
    if found is None:
        return None
    path, text, index = found
    line = None if index is None else index + 1
    if source.kind in _TEXT:
        cells = _csv_cells if source.kind == "csv" else _json_cells
        line = next((number for number, cell in cells(path, source, doubt.column) if cell == text), None)
    place = _place(path, line, "line" if source.kind in _TEXT else "row")
    value = "null" if text is None else _shown(text)
    return f"{place}: column {doubt.column} is {value}, {doubt.reason}"


def _first(rows: DataFrame, wrong: Column, column: str) -> tuple[str, Any, int | None] | None:
    """Return file, text and number, if known, of a row where *wrong* holds, in the first file by name."""
    quoted = F.col("`" + column.replace("`", "``") + "`")
    # Only Parquet's reader numbers rows. A corrupt row is detected only if another column is read too.
    index = F.lit(None).cast("long") if _CORRUPT in rows.columns else F.col("_metadata.row_index")
    every = F.struct(*(F.col("`" + name.replace("`", "``") + "`") for name in rows.columns))
    chosen = rows.where(wrong).select(
        F.col("_metadata.file_path").alias("path"),
        quoted.cast("string").alias("text"),
        index.alias("row"),
        every.alias("every"),
    )
    found = chosen.orderBy("path", "row").limit(1).collect()
    if not found:
        return None
    return found[0].path, found[0].text, found[0].row


def _place(path: str, line: int | None, unit: str = "line") -> str:
    local = _local(path)
    return (local or path) + ("" if line is None else f", {unit} {line}")


def _local(path: str) -> str | None:
    parts = urlsplit(path)
    return unquote(parts.path) if parts.scheme in ("", "file") else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


# --- lines of a file on this machine ------------------------------------------------------------------


def _opened(path: str) -> TextIO | None:
    local = _local(path)
    if local is None:
        return None
    opener = next((each for suffix, each in _OPENERS.items() if local.endswith(suffix)), open)
    return opener(local, "rt", encoding="utf-8", errors="replace", newline="")


def _numbered(path: str) -> Iterator[tuple[int, str]]:
    file = _opened(path)
    if file is None:
        return
    with file:
        for number, line in zip(count(1), file):
            yield number, line.rstrip("\r\n")


def _json_cells(path: str, source: FileSource, column: str) -> Iterator[tuple[int, str | None]]:
    """Yield the line number and the value of *column*, as text, of each line."""
    for number, line in _numbered(path):
        try:
            value = json.loads(line).get(column)
        except (ValueError, AttributeError):
            continue
        yield number, value if value is None or isinstance(value, str) else json.dumps(value)


def _csv_cells(path: str, source: FileSource, column: str) -> Iterator[tuple[int, str | None]]:
    settings = {name.lower(): value for name, value in source.settings.items()}
    separator = settings.get("sep", settings.get("delimiter", ","))
    file = _opened(path)
    if file is None or len(separator) != 1:
        return
    with file:
        reader = csv.reader(file, delimiter=separator, quotechar=settings.get("quote", '"') or None)
        names = next(reader, []) if settings.get("header", "false").lower() == "true" else None
        for row in reader:
            labels = names if names is not None else [f"_c{number}" for number in range(len(row))]
            cells = dict(zip(labels, row, strict=False))
            if row and column in cells:
                yield reader.line_num, cells[column] or None
