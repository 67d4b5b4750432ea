"""Write a slice as Parquet files, one for each date, under temporary names, synced and renamed.

``topic=orders/partition=0/date=2024-02-29/<start>-<end>.parquet`` has the records of the slice with
timestamps of that date in UTC, in the order of offsets. Topic, partition and date are in the path and not in
the file, in Hive's layout, which DuckDB, pandas and Spark read. These guess types from paths, so a topic
whose name is a number is read as a number unless the type is given. A date with a year outside 1 to 9999 is
null: ``__HIVE_DEFAULT_PARTITION__``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood.disk import Buffer, File, Files, join, write_all
from cordwood.host import process
from cordwood.spark.jobs.export.plan import ExportSlice

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns of the files, in order.
COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")
SUFFIX = ".parquet"
#: The largest number of open files. A slice with more dates is read again for the rest.
OPEN_FILES_MAX = 128
#: The bytes in memory that wait to become row groups, for all dates together.
PENDING_BYTES_MAX = 64 << 20
NO_DATE = "__HIVE_DEFAULT_PARTITION__"

_WRITE_BYTES = 1 << 20
_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days

Batches = Callable[[], Iterator["pa.RecordBatch"]]
"""Reads the records of a slice from its beginning at each call."""


class Written(NamedTuple):
    """A written file: its path below the export, its number of records, its size."""

    path: str
    records: int
    bytes: int


def parquet_schema() -> pa.Schema:
    """Return the columns of the files: those of the source that are not in the path."""
    from pyspark.sql.types import StructType

    from cordwood.spark.source import arrow_schema, spark_schema

    every = spark_schema(include_headers=True)
    return arrow_schema(StructType([every[name] for name in COLUMNS]))


def write_slice(files: Files, to: str, piece: ExportSlice, batches: Batches) -> list[Written]:
    """Write the files of a slice below *to*, replacing those of an earlier attempt. Durable on return.

    Two attempts at once write the same files under the same names. If this raises, some of the files may
    exist, each complete. Memory is bounded for any slice.
    """
    written: list[Written] = []
    done: set[str] = set()
    while True:
        with _SlicePass(files, to, piece, done) as going:
            for batch in batches():
                going.add(batch)
            written += going.commit()
        done |= going.dates
        if not going.put_off:
            return written


def place_of(piece: ExportSlice) -> str:
    """Return the directory of a slice's partition, below the export."""
    return join(f"topic={piece.topic}", f"partition={piece.partition}")


def remove_leftovers(
    files: Files, to: str, slices: Sequence[ExportSlice], written: Iterable[Written], *, everywhere: bool
) -> None:
    """Remove files of failed attempts at *slices*, so that exactly the files *written* remain.

    Searches the directories of written files, or *everywhere* in the partitions of the slices: if the log was
    truncated, another run may have written other dates.
    """
    kept = {each.path for each in written}
    stems: dict[str, set[str]] = {}
    for piece in slices:
        stems.setdefault(place_of(piece), set()).add(piece.stem)
    for place, of_plan in stems.items():
        if everywhere:
            there = files.exists(join(to, place))
            dates = {join(place, name) for name in files.list(join(to, place))} if there else set()
        else:
            dates = {path.rpartition("/")[0] for path in kept if path.startswith(f"{place}/")}
        for directory in sorted(dates):
            for name in files.list(join(to, directory)):
                stem = name.removeprefix(".").partition(".")[0]
                if stem in of_plan and join(directory, name) not in kept:
                    files.unlink(join(to, directory, name))


class _SlicePass:
    """One pass over a slice, for as many dates as may be open; the others are left for the next pass."""

    def __init__(self, files: Files, to: str, piece: ExportSlice, done: set[str]) -> None:
        self._files, self._to, self._piece = files, to, piece
        self._done = done
        self._open: dict[str, _DateFile] = {}
        self.put_off = False

    @property
    def dates(self) -> set[str]:
        """The dates written in this pass."""
        return set(self._open)

    def __enter__(self) -> _SlicePass:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._open.values():
            file.discard()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next records."""
        for text, rows in _by_date(batch):
            if text in self._done:
                continue
            if text not in self._open:
                if len(self._open) >= OPEN_FILES_MAX:
                    self.put_off = True
                    continue
                directory = join(place_of(self._piece), f"date={text}")
                self._open[text] = _DateFile(self._files, self._to, directory, self._piece.stem)
            self._open[text].add(rows)
        while sum(file.pending_bytes for file in self._open.values()) >= PENDING_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.pending_bytes).flush()

    def commit(self) -> list[Written]:
        """Sync the files and rename them to their final names."""
        written = [self._open[text].commit() for text in sorted(self._open)]
        if written:
            # The creator of these directories may have died before their names were synced.
            place = f"topic={self._piece.topic}"
            for directory in (join(self._to, place_of(self._piece)), join(self._to, place), self._to):
                self._files.sync_directory(directory)
        return written


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each date, in their order."""
    import numpy as np
    import pyarrow as pa

    if batch.num_rows == 0:
        return
    days = batch.column("timestamp").cast(pa.int64()).to_numpy() // _DAY_US
    days[(days < _FIRST_DAY) | (days > _LAST_DAY)] = _LAST_DAY + 1
    order = np.argsort(days, kind="stable")
    found, first = np.unique(days[order], return_index=True)
    for day, rows in zip(found, np.split(order, first[1:]), strict=True):
        text = (_EPOCH + timedelta(int(day))).isoformat() if day <= _LAST_DAY else NO_DATE
        # A part is copied, because it would keep the memory of the whole batch until it is written.
        yield text, batch if len(found) == 1 else batch.take(pa.array(rows))


class _DateFile:
    """A Parquet file under a temporary name until it is committed."""

    def __init__(self, files: Files, to: str, directory: str, stem: str) -> None:
        import pyarrow.parquet as pq

        self._files, self._to = files, to
        self._path = join(directory, f"{stem}{SUFFIX}")
        self._directory = join(to, directory)
        # Every attempt has its own name, and readers ignore names that begin with a dot.
        self._aside = join(self._directory, f".{stem}.{process.new_id()}.tmp")
        files.make_directories(self._directory)
        self._file: File | None = files.open(self._aside, "create")
        self._sink = _ArrowSink(self._file)
        self._writer: Any = pq.ParquetWriter(
            self._sink,
            parquet_schema(),
            compression="zstd",
            use_dictionary=["timestampType", "key", "headers.list.element.key"],
            write_statistics=["offset", "timestamp"],
        )
        self._pending: list[pa.RecordBatch] = []
        self.pending_bytes = 0
        self._records = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._pending.append(rows)
        self.pending_bytes += rows.nbytes

    def flush(self) -> None:
        """Write the pending rows as one row group."""
        import pyarrow as pa

        if self._pending:
            table = pa.Table.from_batches(self._pending)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._records += table.num_rows
        self._pending, self.pending_bytes = [], 0

    def commit(self) -> Written:
        assert self._file is not None
        self.flush()
        self._writer.close()
        self._sink.flush()
        self._file.sync()
        self._file.close()
        self._files.rename(self._aside, join(self._to, self._path))
        self._file = None
        self._files.sync_directory(self._directory)
        return Written(self._path, self._records, self._sink.tell())

    def discard(self) -> None:
        """Remove the file unless it is committed."""
        if self._file is None:
            return
        # The writer would write its footer when it is collected, so it does that now, into a null sink.
        self._sink.drop()
        self._writer.close()
        self._file.close()
        # The run that completes the plan removes the rest.
        with contextlib.suppress(OSError):
            self._files.unlink(self._aside)


class _ArrowSink:
    """A `File` with the interface that pyarrow writes to."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._position = 0
        self._held = bytearray()
        self._dropped = False
        self.closed = False

    def write(self, data: Buffer) -> int:
        if not self._dropped:
            self._held += data
        if len(self._held) >= _WRITE_BYTES:
            self.flush()
        return len(data)

    def drop(self) -> None:
        """Ignore further bytes."""
        self._dropped = True
        self._held.clear()

    def flush(self) -> None:
        held, self._held = self._held, bytearray()
        write_all(self._file, self._position, held)
        self._position += len(held)

    def tell(self) -> int:
        return self._position + len(self._held)

    def close(self) -> None:
        """Do nothing: the file is synced before it is closed."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
