"""`AsyncLog`: an open data directory, used with asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from cordwood.aio.engine import AsyncEngine
from cordwood.aio.reading import AsyncScan
from cordwood.aio.topic import AsyncTopic
from cordwood.aio.transaction import TransactionOpening
from cordwood.config import TopicConfig
from cordwood.records import TopicPartition
from cordwood.storage.directory import DataDirectory
from cordwood.storage.log import RecoveryReport
from cordwood.storage.maintenance import MaintenanceReport, Planned
from cordwood.storage.meta import TopicEntry

if TYPE_CHECKING:
    from cordwood.bucket import BucketLag
    from cordwood.evidence import SignedCheckpoint


class AsyncLog:
    """An open data directory: `cordwood.Log`, awaited. For the tasks of the event loop that opened it.

    No call blocks the loop: a few threads, started with the log, do what touches the disk. A call that is
    cancelled before a thread takes it does nothing. One that a thread has taken is finished, and its result
    is dropped.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._log = engine.log

    async def __aenter__(self) -> AsyncLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def mapped_bytes(self) -> int:
        """The bytes of sealed segments that are mapped into memory now; see `cordwood.Log.mapped_bytes`."""
        return self._log.mapped_bytes

    def bucket_lag(self) -> BucketLag | None:
        """Return how far the bucket is behind: what is lost if this machine is. None without a bucket."""
        return self._log.bucket_lag()

    @property
    def reports(self) -> list[RecoveryReport]:
        """The recovery reports of the partitions opened so far."""
        return self._log.reports

    @property
    def data_directory(self) -> DataDirectory:
        """The engine behind this log, for tools that need more than topics. Not part of the stable API.

        Raises:
            LogClosed: If the log is open to read only.
        """
        return self._log.data_directory

    # --- topics -----------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return await self._engine.call(lambda: self._log.topics)

    async def topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> AsyncTopic:
        """Return the topic *name*, created if it is missing; see `cordwood.Log.topic`.

        Raises:
            TopicMismatch: If the topic exists with another number of partitions or another setting.
            UnknownTopic: If it does not exist and the log is read-only.
        """
        found = await self._engine.call(lambda: self._log.topic(name, partitions, config))
        return AsyncTopic(self._engine, found)

    async def entry(self, name: str) -> TopicEntry:
        """Return what the catalogue says of a topic: its id, partitions and own settings.

        Raises:
            UnknownTopic: If there is none of that name.
        """
        return await self._engine.call(lambda: self._log.entry(name))

    async def config_of(self, name: str) -> TopicConfig:
        """Return the settings of a topic, its own and those it has from elsewhere. Raises as `entry`."""
        return await self._engine.call(lambda: self._log.config_of(name))

    async def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> AsyncTopic:
        """Create a topic that is not there yet, with ``num.partitions`` unless told. Durable on return.

        Raises:
            TopicExists: If it is there.
            RecordRefused, ConfigError: If its name or a setting is not allowed.
        """
        made = await self._engine.call(lambda: self._log.create_topic(name, partitions, config))
        return AsyncTopic(self._engine, made)

    async def alter_topic(
        self, name: str, *, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> None:
        """Give a topic more partitions, or other settings in place of all its own. Durable on return.

        Raises:
            UnknownTopic: If there is none of that name.
            ConfigError: If the number or a setting does not fit, or cannot be changed any more.
        """
        await self._engine.call_long(
            lambda: self._log.alter_topic(name, partitions=partitions, config=config)
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it. Durable on return.

        Raises:
            UnknownTopic: If there is none of that name.
        """
        await self._engine.call_long(lambda: self._log.delete_topic(name))

    async def offsets_topic(self) -> AsyncTopic:
        """Return the internal topic that consumer groups commit to, created if it is missing."""
        return AsyncTopic(self._engine, await self._engine.call(self._log.offsets_topic))

    # --- transactions -----------------------------------------------------------------------------

    def transaction(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionOpening:
        """Begin a transaction: ``async with log.transaction("id") as tx``, or ``await`` it.

        The arguments and exceptions are those of `cordwood.Log.transaction`. Tasks that commit at the same
        time under different ids share syncs.
        """
        return TransactionOpening(self._engine, transactional_id, timeout_ms)

    async def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the offset that a consumer group has committed in each partition, as of now."""
        return await self._engine.call(lambda: self._log.committed_offsets(group))

    # --- columns, evidence, maintenance -----------------------------------------------------------

    def scan(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        committed: bool = True,
    ) -> AsyncScan:
        """Return the records of *topic* as columns: ``async for`` gives record batches, `table` all of it.

        Batches are read and decoded in a thread. The arguments are those of `cordwood.Log.scan`, which also
        says what is raised, here with the first batch.
        """
        return AsyncScan(
            self._engine,
            lambda: self._log.scan(
                topic,
                partition,
                start=start,
                stop=stop,
                columns=columns,
                since=since,
                until=until,
                committed=committed,
            ),
        )

    async def checkpoint(
        self, topic: str | None = None, *, wait_seconds: float | None = None
    ) -> list[SignedCheckpoint]:
        """Sign a checkpoint of each partition that has records; see `cordwood.Log.checkpoint`."""
        return await self._engine.call_long(lambda: self._log.checkpoint(topic, wait_seconds=wait_seconds))

    async def maintain(self, *, force: bool = False, evidence: bool = True) -> MaintenanceReport:
        """Run one pass of retention and compaction now; see `cordwood.Log.maintain`."""
        return await self._engine.call_long(lambda: self._log.maintain(force=force, evidence=evidence))

    async def plan_maintenance(self, *, force: bool = False) -> list[Planned]:
        """Return what `maintain` would do now, of a log that is open to read only. Changes nothing."""
        return await self._engine.call_long(lambda: self._log.plan_maintenance(force=force))

    async def close(self) -> None:
        """Finish the appends and calls that were begun, sync and close. Idempotent.

        Calls after this one raise LogClosed, iterators that follow end, and a stream whose last chunk has not
        come is refused with LogClosed. A task that is cancelled here does not stop the closing.

        Raises:
            LogFailed: If a partition failed, now or before.
        """
        await self._engine.close()
