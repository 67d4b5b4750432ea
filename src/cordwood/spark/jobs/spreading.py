"""Work that is no query: many independent pieces, each done by a task, their results in order."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cordwood.spark.failures import as_one_sentence
from cordwood.spark.reader import Build

if TYPE_CHECKING:
    import pyarrow as pa

Work = TypeVar("Work")
Result = TypeVar("Result")


def spread(spark: SparkSession, work: Sequence[Work], do: Callable[[Work], Result]) -> list[Result]:
    """Return what *do* makes of each piece of *work*, one task each, in the order of *work*.

    Pieces and results are pickled. A task may run twice, and two attempts at it at the same time: *do* leaves
    behind the same however often it runs.

    Raises:
        JobFailed: If *do* raises in a task, as often as Spark tries it.
    """
    if not work:
        return []
    numbered = [Piece(number, pickle.dumps(piece), Build.here()) for number, piece in enumerate(work)]
    pickled: bytes = cloudpickle.dumps((do, numbered))  # type: ignore[no-untyped-call]
    # A data source is the one way to tasks that needs neither pandas nor what Spark Connect lacks, and that
    # gives each of them its own piece alone.
    spark.dataSource.register(WorkSource)
    with as_one_sentence():
        rows = (
            spark.read.format(WorkSource.name())
            .option("work", base64.b64encode(pickled).decode())
            .load()
            .collect()
        )
    results = {row.number: pickle.loads(row.result) for row in rows}  # noqa: S301 - our own tasks made it
    return [results[number] for number in range(len(work))]


@dataclass
class Piece(InputPartition):
    """One piece, pickled. ``build`` is the driver's."""

    number: int
    pickled: bytes
    build: Build


class WorkSource(DataSource):
    """A table of results: reading it does the work."""

    @classmethod
    def name(cls) -> str:
        """Return a name that nobody else takes."""
        return "cordwood_work"

    def schema(self) -> str:
        """Return which result it is, and the result, pickled."""
        return "number long, result binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what gives each task its piece."""
        do, pieces = pickle.loads(base64.b64decode(self.options["work"]))  # noqa: S301 - `spread` made it
        return _Reader(do, pieces)


class _Reader(DataSourceReader):
    def __init__(self, do: Callable[[object], object], pieces: Sequence[Piece]) -> None:
        self._do = do
        self._pieces: Sequence[InputPartition] = pieces

    def partitions(self) -> Sequence[InputPartition]:
        pieces, self._pieces = self._pieces, []
        return list(pieces)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        assert isinstance(partition, Piece)
        partition.build.check_here()
        result = pickle.dumps(self._do(pickle.loads(partition.pickled)))  # noqa: S301 - `spread` made it
        columns = {
            "number": pa.array([partition.number], pa.int64()),
            "result": pa.array([result], pa.binary()),
        }
        yield pa.RecordBatch.from_pydict(columns)
