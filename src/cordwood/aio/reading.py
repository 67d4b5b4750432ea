"""Records and columns of a partition as asynchronous iterators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from cordwood.aio.calls import retrieve
from cordwood.aio.engine import AsyncEngine
from cordwood.aio.waiting import PartitionKey
from cordwood.embedded import READ_BYTES_MAX, READ_BYTES_MIN, Scan, records_window, start_and_end
from cordwood.errors import LogClosed
from cordwood.records import Record
from cordwood.storage.log import Partition

if TYPE_CHECKING:
    import pyarrow as pa

#: Above every offset.
_NO_STOP = 1 << 63


class AsyncReading:
    """The records of one partition, read as they are iterated over; see `AsyncTopic.read`.

    For one task at a time. A step that is cancelled loses nothing: the next one gives the same record.
    Between two steps an iterator holds records in memory and nothing else, so it can be left at any time.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        topic: str,
        partition: int,
        start: int | None,
        stop: int | None,
        since: int | None,
        follow: bool,
        committed: bool,
    ) -> None:
        self._engine = engine
        self._topic, self._partition = topic, partition
        self._given = (start, since)
        self._stop = _NO_STOP if stop is None else stop
        self._follow = follow
        self._committed = committed
        self._found: Partition | None = None
        self._keys: list[PartitionKey] = []
        self._next = 0
        self._size = 0
        self._ended = False
        self._records: Iterator[Record] = iter(())

    def __aiter__(self) -> AsyncReading:
        return self

    async def begin(self) -> AsyncReading:
        """Look up where the reading begins and ends, now instead of with the first record; return itself.

        Raises:
            OffsetOutOfRange: If the start is below the log start or above the high watermark.
            UnknownTopic: If there is no such partition.
        """
        if self._found is None:
            found = await self._engine.call(self._find)
            self._found, self._next, end, self._keys = found
            if not self._follow:
                self._stop = min(self._stop, end)
            # One record is read alone; a longer reading begins small and grows.
            self._size = 1 if self._stop - self._next == 1 else READ_BYTES_MIN
        return self

    def _find(self) -> tuple[Partition, int, int, list[PartitionKey]]:
        log = self._engine.readable(self._topic, self._partition)
        start, end = start_and_end(log, *self._given, committed=self._committed)
        return log, start, end, self._engine.growth_keys(self._topic, self._partition)

    async def __anext__(self) -> Record:
        while True:
            for record in self._records:
                return record
            await self.begin()
            if self._ended or self._next >= self._stop:
                raise StopAsyncIteration
            await (self._fetch_next() if self._follow else self._fetch())

    async def _fetch(self) -> None:
        """Read the next records up to the end."""
        log, start, stop, size = self._found, self._next, self._stop, self._size
        assert log is not None
        self._take(
            *await self._engine.call(
                lambda: records_window(log, start, stop, size, committed=self._committed)
            )
        )
        self._ended = self._next <= start

    async def _fetch_next(self) -> None:
        """Read the next records, once there are some."""
        start, stop, size = self._next, self._stop, self._size

        def fetch() -> tuple[list[Record], int]:
            # Looked up again: a partition without records becomes another object with its first one.
            log = self._engine.readable(self._topic, self._partition)
            return records_window(log, start, stop, size, committed=self._committed)

        try:
            while self._next == start:
                with self._engine.waiters.waiting(self._keys, start, committed=self._committed) as grown:
                    self._take(*await self._engine.call(fetch))
                    if self._next == start:
                        await grown
        except LogClosed:
            self._ended = True

    def _take(self, records: list[Record], next_offset: int) -> None:
        # Together, with no await between: a cancelled step changes nothing.
        self._records, self._next = iter(records), next_offset
        self._size = min(self._size * 4, READ_BYTES_MAX)


class AsyncScan:
    """The records of a topic as columns; see `AsyncLog.scan`. May be read again; nothing is read before."""

    def __init__(self, engine: AsyncEngine, make: Callable[[], Scan]) -> None:
        self._engine = engine
        self._make = make

    def __aiter__(self) -> AsyncBatches:
        return AsyncBatches(self._engine, self._make)

    async def table(self) -> pa.Table:
        """Return all of it as one table."""
        batches = AsyncBatches(self._engine, self._make)
        found = [batch async for batch in batches]
        return await self._engine.call(lambda: _table_of(self._make(), found))


def _table_of(scan: Scan, batches: list[pa.RecordBatch]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches(batches, schema=scan.schema)


class AsyncBatches(AsyncIterator["pa.RecordBatch"]):
    """Record batches of at most 64 Ki rows, read and decoded in a thread, one at a time.

    For one task at a time. A step that is cancelled loses nothing: the next one gives the same batch.
    """

    def __init__(self, engine: AsyncEngine, make: Callable[[], Scan]) -> None:
        self._engine = engine
        self._make = make
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._step: asyncio.Future[pa.RecordBatch | None] | None = None

    async def __anext__(self) -> pa.RecordBatch:
        if self._step is None:
            # A task of its own: a step that is cancelled goes on, and its batch is the next one's.
            self._engine.check()
            self._step = asyncio.ensure_future(self._engine.call(self._read))
            self._step.add_done_callback(retrieve)
        try:
            batch = await asyncio.shield(self._step)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._step = None
            raise
        self._step = None
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _read(self) -> pa.RecordBatch | None:
        if self._batches is None:
            self._batches = self._make().batches()
        return next(self._batches, None)
