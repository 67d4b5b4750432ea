"""`AsyncTransaction`: records for several partitions that become visible together, with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any

from cordwood.aio.appending import NextStep, WrittenFrames
from cordwood.aio.engine import AsyncEngine
from cordwood.aio.topic import AsyncTopic
from cordwood.embedded import CommittedPosition, LogTransaction, LogTransactions, Placement, TransactionCommit
from cordwood.formats import Row
from cordwood.records import EventType, Header, TopicPartition
from cordwood.storage.log import WritablePartition


class AsyncTransaction:
    """Records that are appended together or not at all: `cordwood.Transaction`, awaited. For one task.

    Only `commit` waits for the disk. If its task is cancelled, either the commit has not begun and nothing is
    stored, or it is finished as if the task still waited.
    """

    def __init__(self, engine: AsyncEngine, transaction: LogTransaction) -> None:
        self._engine = engine
        self._transaction = transaction
        self.id = transaction.id
        self.timeout_ms = transaction.timeout_ms

    def __repr__(self) -> str:
        """Return the id and the state. Reads no file."""
        return repr(self._transaction).replace("cordwood.", "cordwood.aio.", 1)

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transaction.ended is not None:
            return
        if kind is None:
            await self.commit()
        else:
            # Not through the engine, which may be closed: nothing was written.
            self._transaction.abort()

    def append(
        self,
        topic: AsyncTopic | str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        expected_offset: int | None = None,
        event_type: int = EventType.DATA,
    ) -> None:
        """Add one record; see `cordwood.Transaction.append`. Nothing is stored before the commit."""
        self._engine.check()
        self._transaction.append(
            topic.plain if isinstance(topic, AsyncTopic) else topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp=timestamp,
            expected_offset=expected_offset,
            event_type=event_type,
        )

    def append_many(
        self, topic: AsyncTopic | str, rows: Iterable[Row], *, partition: int | None = None
    ) -> None:
        """Add ``(key, value[, headers[, timestamp]])`` rows, in their order. Raises as `append` does."""
        self._engine.check()
        plain = topic.plain if isinstance(topic, AsyncTopic) else topic
        self._transaction.append_many(plain, rows, partition=partition)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedPosition]) -> None:
        """Add what a consumer group has read; see `cordwood.Transaction.commit_offsets`."""
        self._engine.check()
        self._transaction.commit_offsets(group, offsets)

    async def commit(self) -> None:
        """Store everything and make it visible, all or nothing; see `cordwood.Transaction.commit`."""
        self._engine.check()
        self._transaction.check_open()
        transactions = self._engine.log.transactions()
        try:
            await self._engine.append(CommitSteps(transactions, self._transaction).write)
        except asyncio.CancelledError:
            transactions.withdraw(self._transaction)
            raise

    async def abort(self) -> None:
        """Drop everything. Nothing was written."""
        self._engine.check()
        self._transaction.abort()

    @property
    def placements(self) -> list[Placement]:
        """Where each record was put, in the order in which they were added; after the commit."""
        return self._transaction.placements


class TransactionOpening:
    """The result of `AsyncLog.transaction`: use it with ``async with``, or ``await`` it."""

    def __init__(self, engine: AsyncEngine, transactional_id: str, timeout_ms: int) -> None:
        self._engine = engine
        self._given = (transactional_id, timeout_ms)
        self._opened: AsyncTransaction | None = None

    def __await__(self) -> Generator[Any, None, AsyncTransaction]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncTransaction:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)

    async def _open(self) -> AsyncTransaction:
        (transactional_id, timeout_ms), log = self._given, self._engine.log
        # A task that is cancelled meanwhile must not leave the id in use.
        begun = await self._engine.call(
            lambda: log.transaction(transactional_id, timeout_ms=timeout_ms), dropped=LogTransaction.abort
        )
        return AsyncTransaction(self._engine, begun)


class CommitSteps:
    """A commit in the writer thread: each step is part of a round, and its syncs are those of the round."""

    def __init__(self, transactions: LogTransactions, transaction: LogTransaction) -> None:
        self._transactions = transactions
        self._transaction = transaction

    def write(self, frames: WrittenFrames) -> object:
        """Append the batches."""
        commit = self._transactions.begin_commit(self._transaction)

        def complete(frames: WrittenFrames, failure: BaseException | None) -> object:
            _raise(commit, failure)
            commit.complete()
            return None

        def decide(frames: WrittenFrames, failure: BaseException | None) -> object:
            _raise(commit, failure)
            return _step(commit, frames, commit.decide, complete)

        return _step(commit, frames, commit.write, decide)


def _step(
    commit: TransactionCommit,
    frames: WrittenFrames,
    call: Callable[[], Mapping[WritablePartition, int]],
    then: Callable[[WrittenFrames, BaseException | None], object],
) -> NextStep:
    """Do one step; return the next one, which comes after its syncs."""
    try:
        frames.durable.update(call())
    except BaseException as error:
        commit.fail(error)
        raise
    return NextStep(then)


def _raise(commit: TransactionCommit, failure: BaseException | None) -> None:
    if failure is not None:
        commit.fail(failure)
        raise failure
