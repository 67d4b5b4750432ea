"""Streaming: the available offsets, the limit of a trigger, and where a restart continues."""

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

from cordwood.errors import CordwoodError, RecordsLost, UnknownTopic
from cordwood.host import Clock, SystemClock
from cordwood.spark.access import (
    Access,
    Partition,
    Piece,
    Positions,
    TopicState,
    at,
    find_gone,
    find_offsets,
    from_json,
    is_due,
    left_of,
    settle,
    share_out,
    subscribed,
)
from cordwood.spark.failures import in_one_sentence
from cordwood.spark.options import LATEST, Limit, ReadOptions, check_read_options, warn_without_effect
from cordwood.spark.source.reader import Slice, accessed, ends_of, read_slice, slices, standing_of
from cordwood.spark.source.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)


@in_one_sentence
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads growing topics. Created once for a query on the driver, and once for each of its tasks.

    Nothing is checked at construction: Spark would replace the error by its own.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, clock: Clock | None = None) -> None:
        self._given = dict(options)
        self._schema = schema
        self._clock = clock or SystemClock()
        self._triggered_ms: int | None = None
        # The end offsets of AvailableNow, once it has begun.
        self._target: Mapping[Partition, int] | None = None
        self._committed: dict[Partition, int] = {}
        # The result of `latestOffset` for `reportLatestOffset`, which Spark calls next.
        self._seen: dict[str, TopicState] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the state of the driver."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_access", "_seen")}

    @cached_property
    def _options(self) -> ReadOptions:
        check_schema(self._schema)
        return check_read_options(self._given, streaming=True)

    @cached_property
    def _access(self) -> Access:
        # Opened once for a query on the driver, not in its tasks.
        warn_without_effect(self._given, "stream")
        return accessed(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts: by default at the latest offset."""
        standing = standing_of(self._access, self._options)
        limit = self._options.start or Limit("startingOffsets", timed=False, everywhere=LATEST)
        late = self._options.latest_without_match
        offsets = find_offsets(limit, ends_of(standing), self._access.offsets_at, latest_without_match=late)
        return at(offsets, standing).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch from *start*; *start* itself if there is none."""
        before = from_json(start)
        standing = self._seen = self._standing(before)
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

    def _standing(self, before: Positions | None) -> dict[str, TopicState]:
        """Return the states of the topics; removed topics are left out unless loss must fail.

        It does not fail before a batch either: the read part of a removed topic is known only then.

        Raises:
            RecordsLost: If a removed topic was read up to *before*.
            UnknownTopic: If it was not read.
        """
        try:
            return standing_of(self._access, self._options)
        except UnknownTopic as error:
            there = self._access.topics()
            left = self._access.standings(subscribed(left_of(self._options.subscription, there), there))
            if before is not None and self._options.fail_on_data_loss:
                raise next(iter(find_gone(before, left)), error) from None
            return left

    def _ends(self, standing: Mapping[str, TopicState]) -> dict[Partition, int]:
        """Return the available ends, or those of AvailableNow at its beginning."""
        ends = {partition: ends.end for partition, ends in ends_of(standing).items()}
        if self._target is None:
            return ends
        # A later partition has nothing to read before its first record.
        return {partition: min(end, self._target.get(partition, 0)) for partition, end in ends.items()}

    def _is_due(self, available: int, limit: ReadLimit) -> bool:
        """Return whether enough offsets are available or the wait was long enough. Starts the next wait."""
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
        """Fix the end offsets of the query."""
        standing = self._standing(None)
        self._target = {partition: ends.end for partition, ends in ends_of(standing).items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest offsets for the query's progress, as `latestOffset` just found them."""
        standing, self._seen = self._seen or self._standing(None), None
        return at({partition: ends.end for partition, ends in ends_of(standing).items()}, standing).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Slice]:
        """Return the slices of a batch. After a restart, it returns the same records."""
        before, after = from_json(start), from_json(end)
        standing = self._standing(before)
        begin = settle(before, standing, fail_on_data_loss=self._options.fail_on_data_loss)
        ends = ends_of(standing)
        pieces = []
        for (topic, number), until in after.offsets.items():
            there = ends.get((topic, number))
            if there is None:
                if self._options.fail_on_data_loss:
                    reason = (
                        "the topic was deleted" if topic not in standing else "there is no such partition"
                    )
                    raise RecordsLost(topic, number, before.offsets.get((topic, number), 0), until, reason)
                continue
            first = begin.offsets[topic, number]
            if first < until:
                # A checkpoint of Spark's Kafka connector has no topic id.
                topic_id = after.topic_id(topic) or begin.topic_id(topic)
                pieces.append(Piece(topic, number, first, until, topic_id, there.epoch))
        return slices(pieces, self._options, self._access)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice."""
        return read_slice(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the progress of the query as offsets of ``kafka.group.id``, if it has one.

        Spark's checkpoint is authoritative, so a failure to store these offsets is ignored.
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
        """Close."""
        with contextlib.suppress(KeyError):
            self.__dict__.pop("_access").close()
