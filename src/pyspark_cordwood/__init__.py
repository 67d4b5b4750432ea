"""So that Spark finds ``format("cordwood")`` by itself: it looks into every package named ``pyspark_*``.

One that fails to import makes every Python data source "not found" without a cause, so nothing but pyspark
is imported here before Spark makes the source.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """The class that Spark discovers. It constructs a `cordwood.spark.source.source.CordwoodSource`."""

    def __new__(cls, options: MutableMapping[str, str]) -> Any:
        """Return the source itself, or say in one sentence what it lacks."""
        try:
            import numpy  # noqa: F401 - asked for here, so that what is missing is named before anything is read
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"format cordwood needs {error.name or 'numpy and pyarrow'}, which this Python "
                "cannot import: install cordwood[spark] for the driver and the executors"
            ) from error
        from cordwood.spark.source.source import CordwoodSource

        return CordwoodSource(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cordwood"
