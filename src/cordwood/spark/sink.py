"""The sink: tasks stage what they have, and one commit on the driver publishes all of it, once.

Each micro-batch of a streaming query, and each batch write with ``txnAppId`` and ``txnVersion``, has a name
of its own; what is published under that name is never published again. A batch write without them is
published whole or not at all, but once more if it is run once more.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from cordwood.errors import ConfigError, CordwoodError
from cordwood.spark.carriers import Staged, open_carrier
from cordwood.spark.encoding import FrameEncoder
from cordwood.spark.options import WriteOptions, check_write_options

if TYPE_CHECKING:
    import pyarrow as pa


#: The columns that are written, and the types each may have; without ``value`` there is nothing to write.
_WRITTEN = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
#: What a query that copies a topic has, and the log decides anew.
_IGNORED = ("offset", "timestampType")


class BatchName(NamedTuple):
    """What a batch is published under. Without ``remember`` it is not told from others afterwards."""

    query: str
    batch: int
    remember: bool


@dataclass
class Message(WriterCommitMessage):
    """What a task tells the driver: which batch it worked on, and what it staged."""

    name: BatchName
    staged: Staged = field(default_factory=Staged)


def batch_writer(options: Mapping[str, str], schema: StructType) -> BatchWriter:
    """Return the writer of ``df.write``."""
    asked = _checked(options, schema)
    if asked.transaction is not None:
        application, version = asked.transaction
        return BatchWriter(asked, BatchName(f"transaction {application}", version, True))
    return BatchWriter(asked, BatchName(f"write {uuid.uuid4()}", 0, False))


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    """Return the writer of ``df.writeStream``.

    Raises:
        CordwoodError: If it is given a transaction of its own: each micro-batch is one already.
    """
    asked = _checked(options, schema)
    if asked.transaction is not None:
        raise CordwoodError("txnAppId and txnVersion are for batch writes: a stream has names of its own")
    return StreamWriter(asked)


def _checked(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    asked = check_write_options(options)
    _check_columns(schema, topic=asked.topic)
    if asked.topic is not None:
        with contextlib.closing(open_carrier(asked.place)) as carrier:
            carrier.ensure_topic(asked.topic)
    return asked


def _check_columns(schema: StructType, *, topic: str | None) -> None:
    """Refuse columns that would not be written, and rows that do not say where they go.

    Raises:
        ConfigError: Says which column, and what would do.
    """
    for column in schema.fields:
        if column.name in _IGNORED:
            continue
        kinds = _WRITTEN.get(column.name)
        if kinds is None:
            raise ConfigError(column.name, f"column {column.name} is none of {', '.join(_WRITTEN)}")
        found = column.dataType.simpleString()
        if found not in kinds:
            raise ConfigError(column.name, f"column {column.name} is {found}, not {' or '.join(kinds)}")
    if "value" not in schema.fieldNames():
        raise ConfigError("value", "there is no column value to write; select one, of type binary or string")
    if topic is None and "topic" not in schema.fieldNames():
        raise ConfigError("topic", "no row says where it goes: give the option topic, or a column topic")


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch query."""

    def __init__(self, options: WriteOptions, name: BatchName) -> None:
        self._options = options
        self._name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Stage the rows of one task."""
        return _stage(self._options, self._name, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what all tasks staged."""
        _publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what tasks staged, unless it is published."""
        _abandon(self._options, self._name, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query. Made anew for each commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise CordwoodError("Spark does not say which query and batch this task belongs to")
        return _stage(self._options, BatchName(f"query {query}", int(batch), True), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what all tasks of a micro-batch staged."""
        _publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what tasks staged, unless it is published."""
        _abandon(self._options, None, messages)


def _stage(options: WriteOptions, name: BatchName, rows: Iterator[pa.RecordBatch]) -> Message:
    context = TaskContext.get()
    assert context is not None
    task = f"{context.stageId()}-{context.partitionId()}-{context.attemptNumber()}-{uuid.uuid4().hex[:12]}"
    with contextlib.closing(open_carrier(options.place, task=True)) as carrier:
        encoder = FrameEncoder(carrier.destination, options.topic, context.partitionId(), _now_ms)
        stage = carrier.stage(name.query, name.batch, task)
        try:
            for target, frame in encoder.encode(rows):
                stage.append(target, frame)
            return Message(name, stage.finish())
        except BaseException:
            stage.discard()
            raise


def _publish(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    told = [message for message in messages if isinstance(message, Message)]
    if not told:
        # A batch without tasks has no rows, and nothing that could be published twice.
        return
    with contextlib.closing(open_carrier(options.place)) as carrier:
        staged = [message.staged for message in told]
        name = told[0].name
        carrier.publish(name.query, name.batch, staged, remember=name.remember)


def _abandon(
    options: WriteOptions, name: BatchName | None, messages: Sequence[WriterCommitMessage | None]
) -> None:
    told = [message for message in messages if isinstance(message, Message)]
    name = told[0].name if told else name
    if name is None:
        return
    with contextlib.closing(open_carrier(options.place)) as carrier:
        staged = [message.staged for message in told]
        carrier.abandon(name.query, name.batch, staged, remember=name.remember)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
