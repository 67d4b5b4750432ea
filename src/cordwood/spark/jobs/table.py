"""A Parquet table that is replaced whole: whoever reads it finds the old one or the new one.

``latest`` is a symbolic link to ``.latest.<version>`` beside it. A new version is written and synced, then
the link is replaced by one rename. The version before stays until the next one, for those who are reading it;
what a job that died left behind goes then too.
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
    """Refuse a path that something else is at.

    Raises:
        CordwoodError: Says what to do.
    """
    if path.exists() and not path.is_symlink():
        raise CordwoodError(f"{path} is there and is no table of this job: give another, or remove it")
    if not path.parent.is_dir():
        raise CordwoodError(f"there is no directory {path.parent} to put the table in")


def read_table(spark: SparkSession, path: Path) -> DataFrame | None:
    """Return the rows of the version that the table has now, None if there is none yet."""
    return spark.read.parquet(str(path.resolve())) if path.exists() else None


def replace_table(rows: DataFrame, path: Path) -> None:
    """Let the table at *path* be *rows*, all of them at once. Durable on return. One writer at a time."""
    name = f".{path.name}.{uuid.uuid4().hex[:12]}"
    version = path.parent / name
    with _times_as_others_read_them(rows.sparkSession):
        rows.write.parquet(str(version))
    _sync(version)
    before = os.readlink(path) if path.is_symlink() else None
    link = version.with_name(f"{name}.link")
    link.symlink_to(name)
    link.replace(path)
    _sync_directory(path.parent)
    _remove_versions(path, {name, before})


@contextlib.contextmanager
def _times_as_others_read_them(spark: SparkSession) -> Iterator[None]:
    """Let timestamps be Parquet's own in the block: Spark's default is one that says nothing of UTC."""
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
    """Return whether a name is one that `replace_table` gives."""
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
