"""Count rows while they are written, without reading them again."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.sql import Observation


def observed(seen: Observation) -> dict[str, int]:
    """Return the counts of a finished query; empty if Spark found its input empty."""
    try:
        return {name: int(count) for name, count in seen.get.items()}
    except Py4JError:
        # Empty input is left out of the plan and not counted, and Spark 4.3 raises an error for that.
        return {}
