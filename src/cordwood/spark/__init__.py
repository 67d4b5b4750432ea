"""The data pipeline on Spark: ``format("cordwood")``, for reading and writing. No other room imports pyspark.

Nothing is imported before it is used: pyspark finds the source through `pyspark_cordwood`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cordwood.errors import CordwoodError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["SparkSession", "has_session", "lag", "lag_listener", "session"]


def session(
    name: str = "cordwood", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session that is ready to use, the active one if there is one.

    Finds a Java, or uses the one from ``cordwood[spark]``; runs the workers on this interpreter; enables
    filter pushdown. *master* is ``local[*]`` unless given here or in ``SPARK_MASTER``; *config* overrides all
    other settings. Any other session works as well.

    Raises:
        CordwoodError: If pyspark is not installed, or there is no Java.
    """
    _check_installed()
    from cordwood.spark.sessions import ready_session

    return ready_session(name, master, config or {})


def has_session() -> bool:
    """Return whether there is an active session, which `session` would return.

    Raises:
        CordwoodError: If pyspark is not installed.
    """
    _check_installed()
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def lag(progress: Mapping[str, Any] | None) -> dict[str, float]:
    """Return how many offsets a streaming query was behind its topics when a batch of it was planned.

    *progress* is ``query.lastProgress``, ``event.progress`` of a listener, or one of its ``sources``. The
    result has ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``, over all
    partitions, as Spark's Kafka connector names them in ``sources[].metrics``. It is empty before the first
    batch, and if no source reads topics.

    Raises:
        CordwoodError: If pyspark is not installed.
    """
    _check_installed()
    from cordwood.spark.source import lag_of

    return lag_of(progress)


def lag_listener() -> StreamingQueryListener:
    """Return a listener for ``spark.streams.addListener`` that logs the lag of each batch.

    One line at the level INFO of the logger ``cordwood.spark``, with the name of the query and its topics.

    Raises:
        CordwoodError: If pyspark is not installed.
    """
    _check_installed()
    from cordwood.spark.source import LagListener

    return LagListener()


def _check_installed() -> None:
    try:
        import pyspark.sql  # noqa: F401 - the question is whether it can be
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise CordwoodError("Spark is not installed: pip install 'cordwood[spark]'") from error
