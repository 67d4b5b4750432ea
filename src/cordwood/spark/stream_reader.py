"""Streaming: how far there is to read, how much of it a trigger takes, and where a restart goes on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cordwood.clock import Clock, SystemClock
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.spark.access import Access, Piece, Standing
from cordwood.spark.options import LATEST, Limit, ReadOptions, check_read_options
from cordwood.spark.planning import Partition, find_offsets, is_due, share_out
from cordwood.spark.positions import Positions, at, from_json, settle
from cordwood.spark.reader import accessed, ends_of, read_slice, slices, standing_of
from cordwood.spark.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa

_NOWHERE = Positions({}, {})
_LOG = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow. Made once for a query on the driver, and once for each of its tasks.

    Nothing is checked when it is made: Spark would hide the error behind one of its own.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, clock: Clock | None = None) -> None:
        self._given = dict(options)
        self._schema = schema
        self._clock = clock or SystemClock()
        self._triggered_ms: int | None = None
        # What AvailableNow reads up to, once it has begun.
        self._target: Mapping[Partition, int] | None = None
        self._committed: dict[Partition, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what belongs to the driver."""
        return {name: value for name, value in self.__dict__.items() if name != "_access"}

    @cached_property
    def _options(self) -> ReadOptions:
        check_schema(self._schema)
        return check_read_options(self._given, streaming=True)

    @cached_property
    def _access(self) -> Access:
        return accessed(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts: at the latest offset unless told otherwise."""
        standing = standing_of(self._access, self._options)
        limit = self._options.start or Limit("startingOffsets", timed=False, everywhere=LATEST)
        late = self._options.latest_without_match
        offsets = find_offsets(limit, ends_of(standing), self._access.offset_at, latest_without_match=late)
        return at(offsets, standing).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next batch reads from *start*; *start* itself if there is nothing for it."""
        before = from_json(start)
        standing = self._standing(before)
        begin = settle(before, standing, fail_on_data_loss=self._options.fail_on_data_loss)
        ends = self._ends(standing)
        available = {
            partition: max(ends[partition] - offset, 0) for partition, offset in begin.offsets.items()
        }
        if not self._is_due(sum(available.values()), limit):
            return start
        if isinstance(limit, ReadMaxRows):
            available = share_out(limit.max_rows, available)
        offsets = {partition: offset + available[partition] for partition, offset in begin.offsets.items()}
        return Positions(offsets, begin.identities).to_json()

    def _standing(self, before: Positions) -> dict[str, Standing]:
        """Return where the topics stand; one that is gone is left out if that is not to fail."""
        try:
            return standing_of(self._access, self._options)
        except UnknownTopic:
            if self._options.fail_on_data_loss:
                raise
            there = self._access.topics()
            known: dict[str, tuple[int, ...] | None] = {}
            for topic, number in sorted(before.offsets):
                if number < there.get(topic, 0):
                    known[topic] = (*(known.get(topic) or ()), number)
            return self._access.standings(known)

    def _ends(self, standing: Mapping[str, Standing]) -> dict[Partition, int]:
        """Return how far there is to read, or what AvailableNow found when it began."""
        ends = {partition: ends.end for partition, ends in ends_of(standing).items()}
        if self._target is None:
            return ends
        # A partition that came later has nothing to read before its first record.
        return {partition: min(end, self._target.get(partition, 0)) for partition, end in ends.items()}

    def _is_due(self, available: int, limit: ReadLimit) -> bool:
        """Return whether enough has come, or it has been waited for long enough. Begins the next wait."""
        smallest = self._options.min_offsets_per_trigger
        if self._target is not None or isinstance(limit, ReadAllAvailable):
            smallest = None
        now_ms = self._clock.monotonic_ns() // 1_000_000
        if self._triggered_ms is None:
            self._triggered_ms = now_ms
        waited_ms = now_ms - self._triggered_ms
        due = is_due(available, smallest, waited_ms, self._options.max_trigger_delay_ms)
        if due:
            self._triggered_ms = now_ms
        return due

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix what the query reads up to."""
        standing = self._standing(_NOWHERE)
        self._target = {partition: ends.end for partition, ends in ends_of(standing).items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return how far there is to read, for the query's progress."""
        standing = self._standing(_NOWHERE)
        return at({partition: ends.end for partition, ends in ends_of(standing).items()}, standing).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slices of a batch. Asked again after a restart, it gives the same records."""
        before, after = from_json(start), from_json(end)
        standing = self._standing(before)
        begin = settle(before, standing, fail_on_data_loss=self._options.fail_on_data_loss)
        ends = ends_of(standing)
        pieces = []
        for (topic, number), until in after.offsets.items():
            there = ends.get((topic, number))
            if there is None:
                if self._options.fail_on_data_loss:
                    raise UnknownTopic(
                        f"partition {number} of topic {topic} is gone, to be read up to {until}"
                    )
                continue
            first = begin.offsets[topic, number]
            if first < until:
                pieces.append(Piece(topic, number, first, until, after.identities[topic][0], there.epoch))
        return slices(pieces, self._options, self._access)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice."""
        return read_slice(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Show how far the query is as committed offsets of ``kafka.group.id``, if it has one.

        Spark's checkpoint stays the truth, so that nobody keeps these is no reason to stop.
        """
        group = self._options.place.group_id
        offsets = from_json(end).offsets
        if group is None or offsets == self._committed:
            return
        try:
            self._access.commit(group, offsets)
            self._committed = dict(offsets)
        except CordwoodError as error:
            _LOG.warning("offsets of group %s were not committed: %s", group, error)

    def stop(self) -> None:
        """Let go."""
        with contextlib.suppress(KeyError):
            self.__dict__.pop("_access").close()
