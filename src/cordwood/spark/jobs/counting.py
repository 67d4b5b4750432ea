"""Counting rows while they are written, without reading them once more."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.sql import Observation


def observed(seen: Observation) -> dict[str, int]:
    """Return what was counted by a query that has ended; nothing if Spark found its input empty."""
    try:
        return {name: int(count) for name, count in seen.get.items()}
    except Py4JError:
        # What is empty is left out of the plan and so not counted, and Spark 4.3 fails to say just that.
        return {}
