"""The data pipeline on Spark: ``format("cordwood")``, to read and to write. Nobody else imports pyspark.

Nothing is imported before it is used: pyspark finds the source through `pyspark_cordwood`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cordwood.errors import CordwoodError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkSession", "has_session", "session"]


def session(
    name: str = "cordwood", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session that is ready to use, the active one if there is one.

    Finds a Java, or takes the one that ``cordwood[spark]`` brings; runs the workers on this interpreter;
    lets filters reach the source. *master* is ``local[*]`` unless given here or in ``SPARK_MASTER``; *config*
    has the last word. Any other session works as well.

    Raises:
        CordwoodError: If pyspark is not installed, or there is no Java.
    """
    _check_installed()
    from cordwood.spark.ready import ready_session

    return ready_session(name, master, config or {})


def has_session() -> bool:
    """Return whether there is an active session, which `session` would return.

    Raises:
        CordwoodError: If pyspark is not installed.
    """
    _check_installed()
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _check_installed() -> None:
    try:
        import pyspark.sql  # noqa: F401 - the question is whether it can be
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise CordwoodError("Spark is not installed: pip install 'cordwood[spark]'") from error
