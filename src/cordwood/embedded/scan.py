"""Records as columns for every data tool: a scan offers ``__arrow_c_stream__``.

pyarrow, pandas, polars and DuckDB all read that. A scan is lazy and may be read again; each reading goes
through the log once, a few MiB at a time, and sees it up to the last stable offset at its beginning, or with
*committed* False up to the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cordwood.embedded.reading import end_of
from cordwood.errors import OffsetOutOfRange, RecordRefused
from cordwood.formats import columns as arrow
from cordwood.kernels import ColumnBuffers, Want
from cordwood.storage.log import Fetched, FrameRun, Partition, committed_runs
from cordwood.storage.sink import OpenIntents

if TYPE_CHECKING:
    import polars
    import pyarrow as pa

    from cordwood.storage.chain import ReadSource

#: Read at a time; what is in memory is this and its columns.
WINDOW_BYTES = 4 << 20
#: Rows handed out at a time.
BATCH_ROWS = 64 * 1024
_PARTITIONS_SHOWN = 8

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


@dataclass(frozen=True, repr=False)
class Scan:
    """Records of one topic as columns; see `Log.scan`. Nothing is read before a tool asks."""

    topic: str
    partitions: tuple[int, ...]
    find: Callable[[str, int], Partition]
    look_at_once: Callable[[Callable[[], list[int]]], tuple[list[int], OpenIntents]]
    topic_id: str
    start: int | None
    stop: int | None
    columns: tuple[str, ...]
    since: int | None
    until: int | None
    committed: bool = True

    def __repr__(self) -> str:
        """Return the topic, the partitions, the bounds that were given and the columns. Reads nothing."""
        numbers = ", ".join(map(str, self.partitions[:_PARTITIONS_SHOWN]))
        more = ", ..." if len(self.partitions) > _PARTITIONS_SHOWN else ""
        bounds = {"start": self.start, "stop": self.stop, "since": self.since, "until": self.until}
        given = "".join(f", {name}={value}" for name, value in bounds.items() if value is not None)
        given += "" if self.committed else ", committed=False"
        return (
            f"<cordwood.Scan of {self.topic!r}, partitions {numbers}{more}{given}, "
            f"columns {', '.join(self.columns)}>"
        )

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
        ends = self._ends([partition for _, partition in found])
        ranges = [
            (number, partition, *self._range(partition, end))
            for (number, partition), end in zip(found, ends, strict=True)
        ]
        schema = self.schema
        stored = {field.name: field for field in arrow.schema()}
        names = [name for name in self.columns if name in stored]
        if self.since is not None or self.until is not None:
            names = list(dict.fromkeys([*names, "timestamp"]))
        for number, partition, start, end in ranges:
            fields = [stored[name] for name in names]
            rows = decoded_rows(partition, start, end, fields, WINDOW_BYTES, committed=self.committed)
            for decoded in rows:
                in_time = decoded if self.since is None and self.until is None else self._in_time(decoded)
                yield from in_batches(in_time, schema, place_columns(self.topic, number, schema))

    def _with_columns(self, names: Sequence[str]) -> Scan:
        return replace(self, columns=tuple(names))

    def _ends(self, found: Sequence[Partition]) -> list[int]:
        """Return the end of each partition. They have a batch of the Spark sink all, or none of them does."""

        def look() -> list[int]:
            return [end_of(partition, committed=self.committed) for partition in found]

        if len(found) == 1:
            return look()
        ends, intents = self.look_at_once(look)
        numbered = zip(self.partitions, ends, strict=True)
        return [intents.end_before(self.topic, self.topic_id, number, end) for number, end in numbered]

    def _range(self, partition: Partition, end: int) -> tuple[int, int]:
        """Return the offsets to read: as asked, within what is there now, up to *end*.

        The end was read first: no record below it becomes part of an open transaction later.
        """
        low, high = partition.log_start_offset, partition.high_watermark
        start = low if self.start is None else self.start
        if not low <= start <= high:
            raise OffsetOutOfRange(start, low, high)
        if self.since is not None:
            found = partition.offset_at(self.since)
            # Records are not in the order of their timestamps, so the filter below does the rest.
            start = high if found is None else max(start, found[0])
        return start, end if self.stop is None else min(self.stop, end)

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not out of time."""
        import numpy as np
        import pyarrow as pa

        times = batch.column("timestamp").cast(pa.int64()).to_numpy()
        inside = np.ones(batch.num_rows, bool)
        if self.since is not None:
            inside &= times >= self.since
        if self.until is not None:
            inside &= times < self.until
        return batch.filter(pa.array(inside))


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


def decoded_rows(
    partition: Partition | ReadSource,
    offset: int,
    end: int,
    fields: Sequence[pa.Field],
    window_bytes: int,
    *,
    committed: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Decode the records of [offset, end) window after window, to *fields* and their offset.

    What is not among *fields* is not decoded. With *committed* the rows of aborted transactions are left out,
    and *end* must not be above the last stable offset.

    Raises:
        OffsetOutOfRange: If the partition does not hold *offset*, any more or yet.
        CorruptRange: Where records are not what was written.
    """
    import pyarrow as pa

    names = {field.name for field in fields}
    every = [
        *fields,
        *(field for field in arrow.schema() if field.name == "offset" and "offset" not in names),
    ]
    schema, want = pa.schema(every), Want.OFFSET
    for name in names:
        want |= _WANT[name]
    while offset < end:
        fetched = partition.read(offset, window_bytes, end, committed=committed)
        for run in fetched.runs:
            rows = _rows_within(run.columns(want), offset, end, schema)
            yield _committed_rows(rows, run, fetched) if fetched.aborted else rows
        if fetched.next_offset <= offset:
            return
        offset = fetched.next_offset


def place_columns(topic: str, partition: int, schema: pa.Schema) -> dict[str, pa.Array]:
    """Return those columns of *schema* that are the same for every record of a partition, of 64 Ki rows."""
    import pyarrow as pa

    same = {"topic": topic, "partition": partition}
    return {
        field.name: pa.repeat(pa.scalar(same[field.name], field.type), BATCH_ROWS)
        for field in schema
        if field.name in same
    }


def in_batches(
    rows: pa.RecordBatch, schema: pa.Schema, constant: Mapping[str, pa.Array]
) -> Iterator[pa.RecordBatch]:
    """Yield *rows* as record batches of *schema*, at most 64 Ki rows each, with *constant* columns beside."""
    import pyarrow as pa

    for start in range(0, rows.num_rows, BATCH_ROWS):
        piece = rows.slice(start, BATCH_ROWS)
        arrays = [
            constant[name].slice(0, piece.num_rows) if name in constant else piece.column(name)
            for name in schema.names
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows_within(decoded: ColumnBuffers, start: int, stop: int, fields: pa.Schema) -> pa.RecordBatch:
    """Return the rows from *start* up to *stop*: a window begins and ends with whole frames."""
    import numpy as np

    assert decoded.offset is not None
    first, last = np.searchsorted(np.frombuffer(decoded.offset, np.int64), (start, stop))
    return arrow.to_arrow(decoded, fields).slice(first, last - first)


def _committed_rows(rows: pa.RecordBatch, run: FrameRun, fetched: Fetched) -> pa.RecordBatch:
    """Return the rows that are not of aborted transactions.

    All rows of the run were decoded at once: aborted frames between others would make many small batches.
    """
    import numpy as np
    import pyarrow as pa

    kept = list(committed_runs([run], fetched.aborted))
    if len(kept) == 1 and (kept[0].first, kept[0].last) == (run.first, run.last):
        return rows
    starts = np.array([each.table.base_offset(each.first) for each in kept], np.int64)
    ends = np.array([each.next_offset for each in kept], np.int64)
    offsets = rows.column("offset").to_numpy()
    inside = np.searchsorted(starts, offsets, "right") > np.searchsorted(ends, offsets, "right")
    return rows.filter(pa.array(inside))
