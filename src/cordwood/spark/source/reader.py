"""Batch reading: the driver plans slices, each task reads one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cordwood.errors import CordwoodError, RecordsLost
from cordwood.kernels import COMPILED
from cordwood.spark.access import (
    PIECE_BYTES_MAX,
    Access,
    Ends,
    Measure,
    Partition,
    Piece,
    TopicState,
    cut_pieces,
    find_loss,
    find_offsets,
    open_access,
    share_tasks,
    topics_of,
)
from cordwood.spark.failures import in_one_sentence
from cordwood.spark.options import EARLIEST, LATEST, Limit, ReadOptions
from cordwood.spark.source.filters import Narrowing, narrow
from cordwood.spark.source.schema import arrow_schema, check_schema, with_null_headers

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.spark.access import Gathered


class Build(NamedTuple):
    """The version of Cordwood in this process.

    Another version than the driver's might read its plan differently.
    """

    version: str
    compiled: bool

    @staticmethod
    def here() -> Build:
        """Return the build of this process."""
        try:
            version = metadata.version("cordwood")
        except metadata.PackageNotFoundError:
            version = "unknown"
        return Build(version, COMPILED)

    def check_here(self) -> None:
        """Refuse to work for a driver with another build.

        Raises:
            CordwoodError: Names both builds.
        """
        here = Build.here()
        if here != self:
            raise CordwoodError(
                f"this executor has cordwood {here}, but the driver has {self}: install the same on both"
            )

    def __str__(self) -> str:
        return f"{self.version} with {'compiled' if self.compiled else 'plain Python'} kernels"


@dataclass
class Slice(InputPartition):
    """The work of one task: ranges of offsets, each of another partition, or a part of the shared log.

    ``build`` is that of the driver.
    """

    pieces: tuple[Piece | Gathered, ...]
    build: Build


#: The name of a gathering among pieces during planning; no topic can have it.
_TOGETHER = ""


def accessed(options: ReadOptions, *, task: bool = False) -> Access:
    """Open access to the place in *options*; raises as `open_access` does."""
    return open_access(options.place, verify=options.verify, chain=options.chain, task=task)


def read_slice(options: ReadOptions, schema: StructType, planned: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice, in a task. An empty plan has one empty slice made by Spark."""
    if not isinstance(planned, Slice):
        return
    planned.build.check_here()
    with contextlib.closing(accessed(options, task=True)) as access:
        batches = access.read(
            planned.pieces, arrow_schema(schema), fail_on_data_loss=options.fail_on_data_loss
        )
        yield from map(with_null_headers, batches)


def slices(pieces: Sequence[Piece], options: ReadOptions, access: Access) -> list[Slice]:
    """Return the slices for *pieces*, split or combined by the options and sizes.

    Raises:
        RecordsLost: If some of them are gone and loss must fail.
    """
    alone, together = access.gather(pieces, fail_on_data_loss=options.fail_on_data_loss)
    measured = dict(zip(alone, access.measure(alone), strict=True))
    if together is not None:
        # Its parts already have many topics, so each counts as a full task.
        size = PIECE_BYTES_MAX * (len(together.cuts) + 1)
        measured[Piece(_TOGETHER, 0, 0, len(together))] = Measure(size, together.cuts)
    limits = options.min_partitions, options.max_records_per_partition
    cut = cut_pieces([(piece, measure.cuts) for piece, measure in measured.items()], *limits)
    size_of = {piece[:2]: measure.bytes / (piece.end - piece.start) for piece, measure in measured.items()}
    sized = [(piece, round(size_of[piece[:2]] * (piece.end - piece.start))) for piece in cut]
    build = Build.here()

    def work(piece: Piece) -> Piece | Gathered:
        if together is not None and piece.topic == _TOGETHER:
            return together.part(piece.start, piece.end)
        return piece

    tasks = share_tasks(sized, *limits)
    return [Slice(tuple(access.with_aborted([work(piece) for piece in task])), build) for task in tasks]


def standing_of(access: Access, options: ReadOptions) -> dict[str, TopicState]:
    """Return the states of the topics to read.

    Raises:
        UnknownTopic: If a named one does not exist.
    """
    return access.standings(topics_of(access, options.subscription))


def ends_of(standing: Mapping[str, TopicState]) -> dict[Partition, Ends]:
    """Return the ends of every partition."""
    return {
        (topic, number): ends
        for topic, found in standing.items()
        for number, ends in sorted(found.partitions.items())
    }


@in_one_sentence
class PlannedReader(DataSourceReader):
    """Reads a range of offsets of each partition, fixed when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._narrowing = Narrowing()

    def partitions(self) -> list[Slice]:
        """Return the slices to read, one task each. Fixes the records to read: later ones are not read."""
        options = self._options
        with contextlib.closing(accessed(options)) as access:
            standing = standing_of(access, options)
            ends = ends_of(standing)
            start = find_offsets(
                options.start or Limit("startingOffsets", timed=False, everywhere=EARLIEST),
                ends,
                access.offsets_at,
                latest_without_match=options.latest_without_match,
            )
            end = find_offsets(
                options.end or Limit("endingOffsets", timed=False, everywhere=LATEST),
                ends,
                access.offsets_at,
                latest_without_match=True,
            )
            planned = []
            for (topic, number), there in ends.items():
                limits = start[topic, number], end[topic, number]
                planned.append(Piece(topic, number, *limits, standing[topic].topic_id, there.epoch))
            pieces = [self._readable(piece, ends[piece[:2]]) for piece in self._narrowed(access, planned)]
            return slices([piece for piece in pieces if piece.start < piece.end], options, access)

    def _narrowed(self, access: Access, pieces: Sequence[Piece]) -> list[Piece]:
        """Return *pieces* narrowed by the pushed filters, without empty ones."""
        left, found = self._narrowing, []
        for piece in pieces:
            start = max(piece.start, left.start)
            end = piece.end if left.end is None else min(piece.end, left.end)
            if start < end and left.has_partition(piece.topic, piece.partition):
                found.append(piece._replace(start=start, end=end))
        if left.since_ms is None:
            return found
        firsts = access.offsets_at({piece[:2]: left.since_ms for piece in found})
        after = [(piece, firsts[piece[:2]]) for piece in found]
        return [
            piece._replace(start=max(piece.start, first))
            for piece, first in after
            if first is not None and first < piece.end
        ]

    def _readable(self, piece: Piece, there: Ends) -> Piece:
        """Return *piece*, or its part above the log start.

        Raises:
            RecordsLost: If a part is gone and loss must fail.
        """
        loss: RecordsLost | None = find_loss(piece, piece.topic_id, there.start, there.end)
        if loss is not None and self._options.fail_on_data_loss:
            raise loss
        return piece._replace(start=max(piece.start, there.start))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice."""
        return read_slice(self._options, self._schema, partition)


class PushingReader(PlannedReader):
    """A reader with filter pushdown. If pushdown is off, Spark refuses a reader that has it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Apply *filters* and return all of them: Spark checks the rows again."""
        self._narrowing = narrow(filters)
        return filters
