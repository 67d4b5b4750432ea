"""A Parquet table that is replaced atomically: a reader finds the old one or the new one.

``latest`` is a symbolic link to ``.latest.<version>`` beside it. A new version is written and synced, then
the link is replaced by one rename. The previous version stays until the next replacement, for its readers;
leftovers of a failed job are removed at the same time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from cordwood.errors import CordwoodError

_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"


def check_table(path: Path) -> None:
    """Refuse a path where something else exists.

    Raises:
        CordwoodError: Says what to do.
    """
    if path.exists() and not path.is_symlink():
        raise CordwoodError(f"{path} exists and is not a table of this job: give another, or remove it")
    if not path.parent.is_dir():
        raise CordwoodError(f"there is no directory {path.parent} to put the table in")


def read_table(spark: SparkSession, path: Path) -> DataFrame | None:
    """Return the rows of the current version, None if there is none yet."""
    return spark.read.parquet(str(path.resolve())) if path.exists() else None


def replace_table(rows: DataFrame, path: Path) -> None:
    """Replace the table at *path* by *rows* atomically. Durable on return. One writer at a time."""
    name = f".{path.name}.{uuid.uuid4().hex[:12]}"
    version = path.parent / name
    with _utc_timestamps(rows.sparkSession):
        rows.write.parquet(str(version))
    _sync(version)
    before = os.readlink(path) if path.is_symlink() else None
    link = version.with_name(f"{name}.link")
    link.symlink_to(name)
    link.replace(path)
    _sync_directory(path.parent)
    _remove_versions(path, {name, before})


@contextlib.contextmanager
def _utc_timestamps(spark: SparkSession) -> Iterator[None]:
    """Write timestamps with Parquet's own type in the block: Spark's default does not mark them as UTC."""
    before = spark.conf.get(_TIMESTAMP_TYPE)
    spark.conf.set(_TIMESTAMP_TYPE, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMESTAMP_TYPE, before or "INT96")


def _remove_versions(path: Path, kept: set[str | None]) -> None:
    for old in path.parent.glob(f".{path.name}.*"):
        if old.name in kept or not _is_version(path, old):
            continue
        if old.is_symlink():
            old.unlink()
        else:
            shutil.rmtree(old, ignore_errors=True)


def _is_version(path: Path, old: Path) -> bool:
    """Return whether a name was given by `replace_table`."""
    mark = old.name.removeprefix(f".{path.name}.").removesuffix(".link")
    return len(mark) == 12 and set(mark) <= set("0123456789abcdef")


def _sync(directory: Path) -> None:
    for each in directory.iterdir():
        with each.open("rb") as file:
            os.fsync(file.fileno())
    _sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
