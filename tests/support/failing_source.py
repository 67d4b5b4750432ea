"""The source under another name, with a sink whose tasks fail, dawdle or see nothing as they are told.

Options: ``attempts``, a directory where every attempt at a task leaves a name; ``mishap``, what happens: to
the first attempt at task 0 once it has staged (``fail``: it fails, ``slow``: it waits until another attempt
has staged), to all attempts at it (``always``: they fail), or to every task (``blind``: the data directory is
not there).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from cordwood.disk.posix import PosixFiles
from cordwood.spark.sink import carriers
from cordwood.spark.source.source import CordwoodSource

if TYPE_CHECKING:
    import pyarrow as pa

#: How long a slow task waits for its other attempt at most.
SLOW_SECONDS_MAX = 600.0


class BlindFiles(PosixFiles):
    """A host on which the data directory is not mounted."""

    def exists(self, path: str) -> bool:
        return False


class FailingSource(CordwoodSource):
    """The source with mishaps."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        given = {name: value for name, value in options.items() if name.lower() not in ("attempts", "mishap")}
        self.attempts, self.mishap = options["attempts"], options["mishap"]
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "cordwood_failing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        inner: Any = super().writer(schema, overwrite)
        return FailingWriter(inner, self.attempts, self.mishap)


class FailingWriter(DataSourceArrowWriter):
    """A writer with mishaps."""

    def __init__(self, inner: DataSourceArrowWriter, attempts: str, mishap: str) -> None:
        self._inner, self._attempts, self._mishap = inner, attempts, mishap

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        blind = patch.object(carriers, "files_of", lambda path, config: BlindFiles())
        with blind if self._mishap == "blind" else contextlib.nullcontext():
            message = self._inner.write(iterator)
        Path(self._attempts, f"{task}-{attempt}").touch()
        if task == 0 and (self._mishap == "always" or (self._mishap == "fail" and attempt == 0)):
            raise RuntimeError("a planted failure after staging")
        if task == 0 and self._mishap == "slow" and attempt == 0:
            self._wait_for_another()
        return message

    def _wait_for_another(self) -> None:
        deadline = time.monotonic() + SLOW_SECONDS_MAX
        while time.monotonic() < deadline:
            if any(name.startswith("0-") and name != "0-0" for name in os.listdir(self._attempts)):
                return
            time.sleep(0.05)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._inner.commit(list(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._inner.abort(list(messages))
