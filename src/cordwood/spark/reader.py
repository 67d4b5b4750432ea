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
from cordwood.spark.access import Access, Ends, Piece, Standing, open_access
from cordwood.spark.filters import Narrowing, narrow
from cordwood.spark.options import EARLIEST, LATEST, Limit, ReadOptions
from cordwood.spark.planning import Partition, cut_pieces, find_offsets, subscribed
from cordwood.spark.positions import find_loss
from cordwood.spark.schema import arrow_schema, check_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.spark.gathering import Gathered


class Build(NamedTuple):
    """Which Cordwood runs here. One that differs from the driver's might read what it planned otherwise."""

    version: str
    compiled: bool

    @staticmethod
    def here() -> Build:
        """Return the one of this process."""
        try:
            version = metadata.version("cordwood")
        except metadata.PackageNotFoundError:
            version = "unknown"
        return Build(version, COMPILED)

    def check_here(self) -> None:
        """Refuse to work for a driver that has another one.

        Raises:
            CordwoodError: Says which both have.
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
    """The work of one task: offsets of one partition. ``build`` is the driver's."""

    piece: Piece
    build: Build


@dataclass
class GatheredSlice(InputPartition):
    """The work of one task: what is wanted of a part of the shared log. ``build`` is the driver's."""

    piece: Gathered
    build: Build


#: What a gathering is called among pieces while all of them are cut; no topic has such a name.
_TOGETHER = ""


def accessed(options: ReadOptions, *, task: bool = False) -> Access:
    """Open what *options* say is to be read; raises as `open_access` does."""
    return open_access(options.place, verify=options.verify, chain=options.chain, task=task)


def read_slice(options: ReadOptions, schema: StructType, planned: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice, in a task. An empty plan has one of Spark's own, which holds nothing."""
    if not isinstance(planned, Slice | GatheredSlice):
        return
    planned.build.check_here()
    with contextlib.closing(accessed(options, task=True)) as access:
        yield from access.read(
            planned.piece, arrow_schema(schema), fail_on_data_loss=options.fail_on_data_loss
        )


def slices(pieces: Sequence[Piece], options: ReadOptions, access: Access) -> list[InputPartition]:
    """Return the slices that *pieces* are cut into, as the options and the sizes ask for.

    Raises:
        RecordsLost: If some of them are not there any more and that is to fail.
    """
    alone, together = access.gather(pieces, fail_on_data_loss=options.fail_on_data_loss)
    cut = [(piece, access.cuts(piece.topic, piece.partition, piece.start, piece.end)) for piece in alone]
    if together is not None:
        cut.append((Piece(_TOGETHER, 0, 0, len(together)), together.cuts))
    build = Build.here()
    planned: list[InputPartition] = []
    for piece in cut_pieces(cut, options.min_partitions, options.max_records_per_partition):
        if piece.topic == _TOGETHER and together is not None:
            planned.append(GatheredSlice(together.part(piece.start, piece.end), build))
        else:
            planned.append(Slice(piece, build))
    return planned


def standing_of(access: Access, options: ReadOptions) -> dict[str, Standing]:
    """Return where the topics stand that are to be read.

    Raises:
        UnknownTopic: If one that is named does not exist.
    """
    return access.standings(subscribed(options.subscription, access.topics()))


def ends_of(standing: Mapping[str, Standing]) -> dict[Partition, Ends]:
    """Return the ends of every partition there is."""
    return {
        (topic, number): ends
        for topic, found in standing.items()
        for number, ends in sorted(found.partitions.items())
    }


class Reader(DataSourceReader):
    """Reads a range of offsets of each partition, fixed when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Return the slices to read, one task each. Fixes what is read: what comes later is not."""
        options = self._options
        with contextlib.closing(accessed(options)) as access:
            standing = standing_of(access, options)
            ends = ends_of(standing)
            start = find_offsets(
                options.start or Limit("startingOffsets", timed=False, everywhere=EARLIEST),
                ends,
                access.offset_at,
                latest_without_match=options.latest_without_match,
            )
            end = find_offsets(
                options.end or Limit("endingOffsets", timed=False, everywhere=LATEST),
                ends,
                access.offset_at,
                latest_without_match=True,
            )
            pieces = []
            for (topic, number), there in ends.items():
                planned = (start[topic, number], end[topic, number], standing[topic].topic_id, there.epoch)
                piece = self._left(access, Piece(topic, number, *planned))
                if piece.start < piece.end:
                    pieces.append(self._readable(piece, there))
            return slices([piece for piece in pieces if piece.start < piece.end], options, access)

    def _left(self, access: Access, piece: Piece) -> Piece:
        """Return what the pushed filters leave of *piece*."""
        left = self._narrowing
        if not left.has_partition(piece.topic, piece.partition):
            return piece._replace(end=piece.start)
        start = max(piece.start, left.start)
        end = piece.end if left.end is None else min(piece.end, left.end)
        if left.since_ms is not None and start < end:
            first = access.offset_at(piece.topic, piece.partition, left.since_ms)
            start = end if first is None else max(start, first)
        return piece._replace(start=start, end=end)

    def _readable(self, piece: Piece, there: Ends) -> Piece:
        """Return *piece*, or what is left of it above the log start.

        Raises:
            RecordsLost: If some of it is gone and that is to fail.
        """
        loss: RecordsLost | None = find_loss(piece, piece.topic_id, there.start, there.end)
        if loss is not None and self._options.fail_on_data_loss:
            raise loss
        return piece._replace(start=max(piece.start, there.start))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice."""
        return read_slice(self._options, self._schema, partition)


class PushingReader(Reader):
    """The same where Spark pushes filters. Where that is off, a reader that takes them is refused."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Leave out what *filters* exclude, and return all of them: Spark checks the rows again."""
        self._narrowing = narrow(filters)
        return filters
