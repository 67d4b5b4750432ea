"""The sink: tasks stage their rows, and one commit on the driver publishes all of them exactly once.

Each micro-batch of a streaming query, and each batch write with ``txnAppId`` and ``txnVersion``, has a unique
name; nothing is published twice under a name. A batch write without them is published completely or not at
all, but again if it runs again.
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
from cordwood.spark.failures import in_one_sentence
from cordwood.spark.options import WriteOptions, check_write_options, warn_without_effect
from cordwood.spark.sink.carriers import StagedTask, open_carrier
from cordwood.spark.sink.encoding import FrameEncoder

if TYPE_CHECKING:
    import pyarrow as pa


#: The written columns, and the allowed types of each; ``value`` is required.
_WRITTEN = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
#: Columns of a query that copies a topic; the log assigns these values itself.
_IGNORED = ("offset", "timestampType")


class BatchName(NamedTuple):
    """The name under which a batch is published. Without ``remember`` the name is not stored afterwards."""

    query: str
    batch: int
    remember: bool


@dataclass
class Message(WriterCommitMessage):
    """The message of a task to the driver: its batch, and its staged records."""

    name: BatchName
    staged: StagedTask = field(default_factory=StagedTask)


def batch_writer(options: Mapping[str, str], schema: StructType) -> BatchWriter:
    """Return the writer of ``df.write``."""
    asked, created = _checked(options, schema)
    warn_without_effect(options, "write", _not_written(schema))
    name = BatchName(f"write {uuid.uuid4()}", 0, False)
    if asked.transaction is not None:
        application, version = asked.transaction
        name = BatchName(f"transaction {application}", version, True)
    return BatchWriter(asked, name, created=created)


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    """Return the writer of ``df.writeStream``.

    Raises:
        CordwoodError: If a transaction is given: each micro-batch is one already.
    """
    asked, _ = _checked(options, schema)
    if asked.transaction is not None:
        raise CordwoodError("txnAppId and txnVersion are for batch writes: a stream has its own names")
    return StreamWriter(asked, dict(options), _not_written(schema))


def _checked(options: Mapping[str, str], schema: StructType) -> tuple[WriteOptions, bool]:
    """Return the checked options, and whether the topic was created."""
    asked = check_write_options(options)
    _check_columns(schema, topic=asked.topic)
    with contextlib.closing(open_carrier(asked.place)) as carrier:
        carrier.check_rights(asked.topic)
        return asked, asked.topic is not None and carrier.ensure_topic(asked.topic)


def _not_written(schema: StructType) -> list[str]:
    """Return the columns that records cannot store; Spark's Kafka connector ignores them too."""
    return [name for name in schema.fieldNames() if name not in (*_WRITTEN, *_IGNORED)]


def _check_columns(schema: StructType, *, topic: str | None) -> None:
    """Refuse columns that cannot be written, and rows without a topic.

    Raises:
        ConfigError: Names the column and the allowed types.
    """
    for column in schema.fields:
        kinds = _WRITTEN.get(column.name)
        if kinds is None:
            continue
        found = column.dataType.simpleString()
        if found not in kinds:
            raise ConfigError(column.name, f"column {column.name} is {found}, not {' or '.join(kinds)}")
    if "value" not in schema.fieldNames():
        raise ConfigError("value", "there is no column value to write; select one, of type binary or string")
    if topic is None and "topic" not in schema.fieldNames():
        raise ConfigError("topic", "rows have no topic: give the option topic, or a column topic")


@in_one_sentence
class BatchWriter(DataSourceArrowWriter):
    """Writes a batch query. *created*: its topic was created for it."""

    def __init__(self, options: WriteOptions, name: BatchName, *, created: bool) -> None:
        self._options = options
        self._name = name
        self._created = created

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Stage the rows of one task."""
        return _stage(self._options, self._name, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the staged rows of all tasks."""
        _publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove staged rows unless they are published, and a topic that was created for them."""
        _abandon(self._options, self._name, messages)
        if self._created and self._options.topic is not None:
            # Spark must show why the query failed, not a failure of this cleanup.
            place = self._options.place
            with contextlib.suppress(CordwoodError), contextlib.closing(open_carrier(place)) as carrier:
                carrier.remove_unused(self._options.topic)


@in_one_sentence
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query. A new object for each commit."""

    def __init__(self, options: WriteOptions, given: Mapping[str, str], not_written: Sequence[str]) -> None:
        self._options = options
        self._given = given
        self._not_written = not_written

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
        """Publish the staged rows of all tasks of a micro-batch."""
        if batchId == 0:
            # A new object for each batch cannot know earlier warnings; a query needs only one.
            warn_without_effect(self._given, "write", self._not_written)
        _publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove staged rows unless they are published."""
        _abandon(self._options, None, messages)


def _stage(options: WriteOptions, name: BatchName, rows: Iterator[pa.RecordBatch]) -> Message:
    context = TaskContext.get()
    assert context is not None
    task = f"{context.stageId()}-{context.partitionId()}-{context.attemptNumber()}-{uuid.uuid4().hex[:12]}"
    with contextlib.closing(open_carrier(options.place, task=True)) as carrier:
        encoder = FrameEncoder(carrier.destination, options.topic, context.partitionId(), _now_ms)
        stage = carrier.stage(name.query, name.batch, task)
        try:
            for target, frame in encoder.encode(map(_written, rows)):
                stage.append(target, frame)
            return Message(name, stage.finish())
        except BaseException:
            stage.discard()
            raise


def _written(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return *batch* without the columns that are not written, whatever their types."""
    return batch.select([name for name in batch.schema.names if name in _WRITTEN])


def _publish(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    told = [message for message in messages if isinstance(message, Message)]
    if not told:
        # A batch without tasks has no rows, so nothing could be published twice.
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
