"""The source under another name, so that Spark makes it, with a sink that dies at planted points."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from cordwood.spark.sink import carriers
from cordwood.spark.source.source import CordwoodSource
from support.killing import ALL_STAGED, PUBLISHED, STAGED, KillingFiles, Kills

if TYPE_CHECKING:
    import pyarrow as pa


@contextlib.contextmanager
def killing_disk(kills: Kills) -> Iterator[None]:
    """Let the sink of this process work on a disk that kills."""
    with patch.object(carriers, "files_of", lambda path, config: KillingFiles(kills)):
        yield


class KilledSource(CordwoodSource):
    """The source under another name, with the option ``kills``: where it is said what is due."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        given = {name: value for name, value in options.items() if name.lower() != "kills"}
        self.kills = Kills(options["kills"])
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "cordwood_killed"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        inner: Any = super().writer(schema, overwrite)
        return KilledBatchWriter(inner, self.kills, int(self.options["txnVersion"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        inner: Any = super().streamWriter(schema, overwrite)
        return KilledStreamWriter(inner, self.kills)


class KilledBatchWriter(DataSourceArrowWriter):
    """A writer of batch queries that can be killed before it, in it and after it."""

    def __init__(self, inner: DataSourceArrowWriter, kills: Kills, batch: int) -> None:
        self._inner, self._kills, self._batch = inner, kills, batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = self._inner.write(iterator)
        self._kills.reach(STAGED, self._batch)
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._kills.reach(ALL_STAGED, self._batch)
        with killing_disk(self._kills):
            self._inner.commit(list(messages))
        self._kills.reach(PUBLISHED, self._batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._inner.abort(list(messages))


class KilledStreamWriter(DataSourceStreamArrowWriter):
    """A writer of streaming queries that can be killed before it, in it and after it."""

    def __init__(self, inner: DataSourceStreamArrowWriter, kills: Kills) -> None:
        self._inner, self._kills = inner, kills

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = self._inner.write(iterator)
        context = TaskContext.get()
        assert context is not None
        self._kills.reach(STAGED, int(context.getLocalProperty("streaming.sql.batchId") or "-1"))
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._kills.reach(ALL_STAGED, batchId)
        with killing_disk(self._kills):
            self._inner.commit(list(messages), batchId)
        self._kills.reach(PUBLISHED, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._inner.abort(list(messages), batchId)
