"""Compute the lag of a streaming query behind its topics from its progress.

Spark requests metrics (``sources[].metrics``) only from its own sources, and describes a Python source by the
name of a Java class. But the progress has the end offsets of a batch and the latest offsets at its planning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from cordwood.spark.access import Partition, from_json

_LOG = logging.getLogger("cordwood.spark")


def lag_of(progress: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the lag of a query, or of one source of it; see `cordwood.spark.lag`."""
    behind = _behind(progress or {})
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind.values()),
        "maxOffsetsBehindLatest": max(behind.values()),
        "avgOffsetsBehindLatest": sum(behind.values()) / len(behind),
    }


def _behind(progress: Mapping[str, Any]) -> dict[tuple[int, Partition], int]:
    """Return the offsets behind latest of each partition of each source."""
    found = {}
    for number, source in enumerate(progress.get("sources", [progress])):
        end = _offsets(source.get("endOffset"))
        if end:
            for partition, latest in _offsets(source.get("latestOffset")).items():
                # A new partition is read from its first record, whose offset is unknown here.
                found[number, partition] = max(latest - end.get(partition, 0), 0)
    return found


def _offsets(given: Any) -> Mapping[Partition, int]:
    """Return the offsets of a source, none if it is not Cordwood's."""
    try:
        return from_json(json.loads(given) if isinstance(given, str) else given).offsets
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # The offsets of other sources have other forms, and before the first batch there are none.
        return {}


class LagListener(StreamingQueryListener):
    """Logs one line for each batch of each query that reads topics: its lag, at the level INFO."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Log the lag of a batch."""
        progress = event.progress
        behind = _behind(progress)
        if behind:
            lag = lag_of(progress)
            _LOG.info(
                "query %s, batch %d of %s: %d to %d offsets behind latest, %.1f on average of %d partitions",
                progress.name or progress.id,
                progress.batchId,
                ", ".join(sorted({topic for _, (topic, _) in behind})),
                lag["minOffsetsBehindLatest"],
                lag["maxOffsetsBehindLatest"],
                lag["avgOffsetsBehindLatest"],
                len(behind),
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""
