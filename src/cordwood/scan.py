"""Records as columns for every data tool: a scan offers ``__arrow_c_stream__``.

pyarrow, pandas, polars and DuckDB all read that. A scan is lazy and may be read again; each reading goes
through the log once, a few MiB at a time, and sees it up to the high watermark at its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cordwood.errors import OffsetOutOfRange, RecordRefused
from cordwood.formats import columns as arrow
from cordwood.kernels import ColumnBuffers, Want
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.read_only import ReadOnlyPartition
from cordwood.storage.unused import UnusedPartition

if TYPE_CHECKING:
    import polars
    import pyarrow as pa

#: Read at a time; what is in memory is this and its columns.
WINDOW_BYTES = 4 << 20
#: Rows handed out at a time.
BATCH_ROWS = 64 * 1024

_WANT = {
    "key": Want.KEY,
    "value": Want.VALUE,
    "offset": Want.OFFSET,
    "timestamp": Want.TIMESTAMP,
    "timestampType": Want.TIMESTAMP_TYPE,
    "headers": Want.HEADERS,
}
#: The columns there are, in the order of Spark's Kafka connector; headers come when asked for.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
DEFAULT_COLUMNS = COLUMNS[:-1]

#: What a partition is to a reader.
Readable = PartitionLog | ReadOnlyPartition | UnusedPartition


@dataclass(frozen=True)
class Scan:
    """Records of one topic as columns; see `Log.scan`. Nothing is read before a tool asks."""

    topic: str
    partitions: tuple[int, ...]
    find: Callable[[str, int], Readable]
    start: int | None
    stop: int | None
    columns: tuple[str, ...]
    since: int | None
    until: int | None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns asked for."""
        import pyarrow as pa

        known = {field.name: field for field in arrow.schema()}
        known["topic"] = pa.field("topic", pa.string(), nullable=False)
        known["partition"] = pa.field("partition", pa.int32(), nullable=False)
        return pa.schema([known[name] for name in self.columns])

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Start reading and hand out an Arrow stream."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return a pyarrow reader over the batches, which are read as it is."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def lazy(self) -> polars.LazyFrame:
        """Return a polars LazyFrame that reads only the columns a query needs, when it is collected."""
        import polars as pl
        from polars.io.plugins import register_io_source

        def read(
            with_columns: list[str] | None,
            predicate: polars.Expr | None,
            n_rows: int | None,
            batch_size: int | None,
        ) -> Iterator[polars.DataFrame]:
            # A query that needs no column still needs its rows, so it gets the cheapest one.
            names = tuple(with_columns or ("offset",)) if with_columns is not None else self.columns
            left = n_rows
            for batch in self._with_columns(names).batches():
                frame = pl.DataFrame(batch)
                if left is not None:
                    frame = frame.head(left)
                    left -= len(frame)
                yield frame if predicate is None else frame.filter(predicate)
                if left == 0:
                    return

        return register_io_source(read, schema=pl.DataFrame(self.schema.empty_table()).schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of at most 64 Ki rows, partition by partition, in offset order."""
        # All ends are taken now, so that the partitions are seen as they were at about the same time.
        found = [(number, self.find(self.topic, number)) for number in self.partitions]
        ranges = [(number, partition, *self._range(partition)) for number, partition in found]
        for number, partition, start, end in ranges:
            for decoded in self._decoded(partition, start, end):
                yield from self._finished(decoded, number)

    def _with_columns(self, names: Sequence[str]) -> Scan:
        return replace(self, columns=tuple(names))

    def _decoded(self, partition: Readable, offset: int, end: int) -> Iterator[pa.RecordBatch]:
        """Decode window after window of a partition."""
        want = Want.OFFSET
        for name in self.columns:
            want |= _WANT.get(name, Want(0))
        if self.since is not None or self.until is not None:
            want |= Want.TIMESTAMP
        while offset < end:
            fetched = partition.read(offset, WINDOW_BYTES)
            for run in fetched.runs:
                yield _rows_within(run.format.decode_columns(run.data, want), offset, end)
            if fetched.next_offset <= offset:
                return
            offset = fetched.next_offset

    def _range(self, partition: Readable) -> tuple[int, int]:
        """Return the offsets to read: as asked, within what is there now."""
        low, high = partition.log_start_offset, partition.high_watermark
        start = low if self.start is None else self.start
        if not low <= start <= high:
            raise OffsetOutOfRange(start, low, high)
        if self.since is not None:
            found = partition.offset_at(self.since)
            # Records are not in the order of their timestamps, so the filter below does the rest.
            start = high if found is None else max(start, found[0])
        return start, high if self.stop is None else min(self.stop, high)

    def _finished(self, batch: pa.RecordBatch, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield a decoded window as record batches of the wanted columns, rows out of time left out."""
        import pyarrow as pa

        if self.since is not None or self.until is not None:
            batch = batch.filter(self._in_time(batch))
        rows = batch.num_rows
        arrays = {name: batch.column(name) for name in batch.schema.names}
        if "topic" in self.columns:
            arrays["topic"] = pa.repeat(pa.scalar(self.topic, pa.string()), rows)
        if "partition" in self.columns:
            arrays["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), rows)
        found = pa.RecordBatch.from_arrays([arrays[name] for name in self.columns], schema=self.schema)
        for start in range(0, rows, BATCH_ROWS):
            yield found.slice(start, BATCH_ROWS)

    def _in_time(self, batch: pa.RecordBatch) -> Any:
        import numpy as np
        import pyarrow as pa

        times = batch.column("timestamp").cast(pa.int64()).to_numpy()
        inside = np.ones(batch.num_rows, bool)
        if self.since is not None:
            inside &= times >= self.since
        if self.until is not None:
            inside &= times < self.until
        return pa.array(inside)


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to scan.

    Raises:
        RecordRefused: If one does not exist, or comes twice.
    """
    if columns is None:
        return DEFAULT_COLUMNS
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or len(set(columns)) < len(columns) or not columns:
        raise RecordRefused(f"columns must be some of {', '.join(COLUMNS)}, each once, not {list(columns)}")
    return tuple(columns)


def _rows_within(decoded: ColumnBuffers, start: int, stop: int) -> pa.RecordBatch:
    """Return the rows from *start* up to *stop*: a window begins and ends with whole frames."""
    import numpy as np

    assert decoded.offset is not None
    first, last = np.searchsorted(np.frombuffer(decoded.offset, np.int64), (start, stop))
    return arrow.to_arrow(decoded).slice(first, last - first)
