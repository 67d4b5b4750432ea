"""Encode rows of a query as frames for partitions: columns in, frames out, no work per row in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood import kernels
from cordwood.errors import FrameTooLarge, RecordRefused
from cordwood.formats import Compression, CompressionChoice, binary_column, from_arrow, recompressed
from cordwood.formats import batch as frames
from cordwood.kernels import BinaryBuffers, ColumnBuffers
from cordwood.storage.sink import StagedTarget

if TYPE_CHECKING:
    import pyarrow as pa

#: The target size of a frame: large enough to be cheap, small enough for a consumer that reads a few records.
FRAME_BYTES = 256 << 10
#: The bytes of a record besides key and value; an upper bound for usual records.
_RECORD_OVERHEAD = 20
#: Rows are collected until each partition has about two frames, up to this many bytes.
GATHER_BYTES_MAX = 64 << 20


class Destination(NamedTuple):
    """The data that a task needs to encode records for a topic."""

    topic: str
    topic_id: str
    partitions: int
    max_message_bytes: int
    keyed: bool
    codec: CompressionChoice | None = None


class FrameEncoder:
    """Encodes the rows of one task. *find* describes a topic; *turn* is the first keyless partition."""

    def __init__(
        self, find: Callable[[str], Destination], topic: str | None, turn: int, now_ms: Callable[[], int]
    ) -> None:
        self._find = find
        self._topic = topic
        self._turn = turn
        self._now_ms = now_ms
        self._known: dict[str, Destination] = {}

    def encode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[StagedTarget, bytearray]]:
        """Yield the frames of all *batches*, those of a partition in the order of their rows.

        Raises:
            RecordRefused: If a row cannot be stored or has no topic.
        """
        gathered: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            gathered.append(batch)
            size += batch.nbytes
            if size >= self._enough():
                yield from self._encode_gathered(gathered)
                gathered, size = [], 0
        if gathered:
            yield from self._encode_gathered(gathered)

    def _enough(self) -> int:
        partitions = sum(known.partitions for known in self._known.values())
        return min(2 * FRAME_BYTES * max(partitions, 1), GATHER_BYTES_MAX)

    def _encode_gathered(self, gathered: list[pa.RecordBatch]) -> Iterator[tuple[StagedTarget, bytearray]]:
        import pyarrow as pa

        batch = gathered[0]
        if len(gathered) > 1:
            (batch,) = pa.Table.from_batches(gathered).combine_chunks().to_batches()
        if not batch.num_rows:
            return
        if self._topic is not None:
            yield from self._encode_topic(self._destination(self._topic), batch)
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise RecordRefused("a row has no topic: give the option topic, or a value in the column topic")
        for name in topics.unique().to_pylist():
            rows = batch.filter(pa.compute.equal(topics, name))
            yield from self._encode_topic(self._destination(name), rows)

    def _destination(self, topic: str) -> Destination:
        found = self._known.get(topic)
        if found is None:
            found = self._known[topic] = self._find(topic)
        return found

    def _encode_topic(
        self, to: Destination, batch: pa.RecordBatch
    ) -> Iterator[tuple[StagedTarget, bytearray]]:
        import numpy as np

        partitions = self._partitions(to, batch)
        if len(partitions) and partitions.min() != partitions.max():
            order = np.argsort(partitions, kind="stable")
            batch, partitions = batch.take(order), partitions[order]
        columns = self._columns(to, batch)
        for number in np.unique(partitions).tolist():
            first, after = np.searchsorted(partitions, (number, number + 1)).tolist()
            for start, stop in _cut(columns, first, after, min(FRAME_BYTES, to.max_message_bytes)):
                for frame in _frames(to, columns, start, stop):
                    yield StagedTarget(to.topic, to.topic_id, number), frame

    def _partitions(self, to: Destination, batch: pa.RecordBatch) -> Any:
        """Return the partition of each row: its own, else by its key, else one for the rows of a batch."""
        import numpy as np
        import pyarrow as pa

        turn = self._turn % to.partitions
        self._turn += 1
        rows, names = batch.num_rows, batch.schema.names
        if "key" in names:
            keys = binary_column(batch.column("key"))
            partitions = np.frombuffer(kernels.partition_keys(keys, rows, to.partitions, turn), np.int32)
        else:
            partitions = np.full(rows, turn, np.int32)
        if "partition" in names and batch.column("partition").null_count < rows:
            said = batch.column("partition").cast(pa.int32())
            partitions = np.where(said.is_valid(), said.fill_null(0), partitions)
            wrong = partitions[(partitions < 0) | (partitions >= to.partitions)]
            if len(wrong):
                raise RecordRefused(
                    f"topic {to.topic} has {to.partitions} partitions, but a row says {wrong[0]}"
                )
        return partitions

    def _columns(self, to: Destination, batch: pa.RecordBatch) -> ColumnBuffers:
        """Return the columns of records in the kernel's form."""
        import pyarrow as pa

        names = batch.schema.names
        if to.keyed and ("key" not in names or batch.column("key").null_count):
            raise RecordRefused(f"a row without a key for topic {to.topic}, which is compacted")
        now = pa.scalar(self._now_ms(), pa.int64()).cast(pa.timestamp("ms", "UTC"))
        if "timestamp" in names:
            times = batch.column("timestamp")
            times = times.fill_null(now.cast(times.type)) if times.null_count else times
        else:
            times = pa.repeat(now, batch.num_rows)
        arrays = {name: batch.column(name) for name in ("key", "value", "headers") if name in names}
        if "headers" in arrays:
            headers = arrays["headers"].flatten()
            if headers.null_count or headers.field(0).null_count:
                raise RecordRefused(f"a row for topic {to.topic} has a header without a name")
        return from_arrow(pa.RecordBatch.from_pydict({**arrays, "timestamp": times}))


def _cut(columns: ColumnBuffers, first: int, after: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows that make frames of about *size* bytes, at least a row each."""
    import numpy as np

    ends = np.arange(after - first + 1, dtype=np.int64) * _RECORD_OVERHEAD
    for column in (columns.key, columns.value, None if columns.headers is None else columns.headers.values):
        if column is None:
            continue
        offsets = _row_offsets(columns, column)[first : after + 1]
        ends += offsets - offsets[0]
    start = 0
    while start < after - first:
        stop = int(np.searchsorted(ends, ends[start] + size, side="right")) - 1
        stop = min(max(stop, start + 1), after - first)
        yield first + start, first + stop
        start = stop


def _row_offsets(columns: ColumnBuffers, column: BinaryBuffers) -> Any:
    """Return the start of each row's bytes in *column*, which may be the headers' values."""
    import numpy as np

    offsets = np.frombuffer(column.offsets, np.int32).astype(np.int64)
    if columns.headers is not None and column is columns.headers.values:
        return offsets[np.frombuffer(columns.headers.offsets, np.int32)]
    return offsets


def _frames(to: Destination, columns: ColumnBuffers, start: int, stop: int) -> Iterator[bytearray]:
    """Yield the rows as one frame, or as halves if that exceeds the topic's limit.

    Raises:
        RecordRefused: If one row alone exceeds it.
    """
    try:
        frame = frames.encode_columns(columns, start, stop, size_max=to.max_message_bytes)
        if to.codec is not None and to.codec.compression is not Compression.NONE:
            frame = recompressed(memoryview(frame), frames.read_header(frame, size_max=len(frame)), to.codec)
        yield frame
        return
    except FrameTooLarge as error:
        if stop - start == 1:
            raise RecordRefused(
                f"a record of {error.found} bytes for topic {to.topic}, whose max.message.bytes is "
                f"{to.max_message_bytes}"
            ) from None
    middle = (start + stop) // 2
    yield from _frames(to, columns, start, middle)
    yield from _frames(to, columns, middle, stop)
