"""`AsyncTopic`: append to and read from one topic with asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cordwood.aio.appending import WrittenFrames
from cordwood.aio.engine import AsyncEngine
from cordwood.aio.reading import AsyncReading, AsyncScan
from cordwood.aio.replaying import AsyncSnapshots
from cordwood.aio.streaming import Chunks, StreamAppend
from cordwood.embedded import Placement, Topic, with_event_type
from cordwood.formats import Row
from cordwood.records import EventType, Header, OffsetRange, Record
from cordwood.storage.log import TruncationReport

if TYPE_CHECKING:
    from cordwood.evidence import VerifiedRead


class AsyncTopic:
    """Append to and read from one topic: `cordwood.Topic`, awaited. For the tasks of one event loop.

    Appends keep the order of their calls. If a task is cancelled while it waits for an append, either its
    records were not handed over yet and nothing is stored, or the append is finished as if the task still
    waited: whole, and as durable as any other.
    """

    def __init__(self, engine: AsyncEngine, topic: Topic) -> None:
        self._engine = engine
        self._topic = topic
        self.name = topic.name
        self.partitions = topic.partitions

    @property
    def plain(self) -> Topic:
        """The topic without asyncio. Not part of the stable API."""
        return self._topic

    # --- appending --------------------------------------------------------------------------------

    async def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        expected_offset: int | None = None,
        event_type: int = EventType.DATA,
    ) -> Placement:
        """Append one record and return where it was put, durable as the sync policy says.

        Tasks that append at the same time share syncs. The arguments and exceptions are those of
        `cordwood.Topic.append`.
        """
        self._engine.check()
        writer = self._topic.writer
        share = writer.share_of(value, key, headers, partition, timestamp, event_type)

        def write(frames: WrittenFrames) -> Placement:
            written = frames.add(writer, writer.write(share, expected_offset))
            return Placement(share.partition, written.appended.base_offset)

        return await self._engine.append(write)

    async def append_many(self, rows: Iterable[Row], *, partition: int | None = None) -> list[Placement]:
        """Append ``(key, value[, headers[, timestamp]])`` rows: one frame per partition touched.

        Returns placements in the order of the rows. Each frame is stored whole or not at all. *rows* is
        iterated over on the event loop.
        """
        self._engine.check()
        writer = self._topic.writer
        shares, places = writer.shares_of(rows, partition)
        if not shares:
            return []

        def write(frames: WrittenFrames) -> dict[int, int]:
            return {
                share.partition: frames.add(writer, writer.write(share)).appended.base_offset
                for share in shares
            }

        bases = await self._engine.append(write)
        return [Placement(where, bases[where] + i) for where, i in places]

    async def append_stream(
        self,
        chunks: Chunks,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        max_bytes: int | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        expected_offset: int | None = None,
        event_type: int = EventType.DATA,
    ) -> Placement:
        """Append one record whose value comes in *chunks*, in constant memory, all or nothing.

        *chunks* is an asynchronous iterable, or a plain one, which is iterated over on the event loop and
        should not block. The other arguments and exceptions are those of `cordwood.Topic.append_stream`. If
        the task is cancelled before the last chunk has come, nothing is stored.
        """
        self._engine.check()
        writer = self._topic.writer
        where = writer.partition_for(key) if partition is None else partition
        headers = with_event_type(headers, event_type, has_value=True)
        record = StreamAppend(self._engine, writer, where, key, headers, timestamp, expected_offset)
        return await record.append(chunks, max_bytes)

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self,
        partition: int = 0,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: int | None = None,
        follow: bool = False,
        committed: bool = True,
    ) -> AsyncReading:
        """Return an asynchronous iterator over the records; the arguments are those of `cordwood.Topic.read`.

        Where it begins and ends is looked up with the first record, or by ``await reading.begin()``, which
        raises OffsetOutOfRange for a wrong start. With *follow* the iterator waits for records to come; it
        ends when the log is closed.
        """
        return AsyncReading(self._engine, self.name, partition, start, stop, since, follow, committed)

    async def get(self, partition: int, offset: int, *, committed: bool = True) -> Record | None:
        """Return the record at *offset*, or None if there is none; see `cordwood.Topic.get`."""
        return await self._engine.call(lambda: self._topic.get(partition, offset, committed=committed))

    async def get_many(
        self, partition: int, offsets: Iterable[int], *, committed: bool = True
    ) -> list[Record | None]:
        """Return the records at *offsets*, in that order; see `cordwood.Topic.get_many`."""
        wanted = list(offsets)
        return await self._engine.call(lambda: self._topic.get_many(partition, wanted, committed=committed))

    async def read_verified(self, offset: int, partition: int = 0, *, committed: bool = True) -> VerifiedRead:
        """Return the record at *offset*, verified; see `cordwood.Topic.read_verified`."""
        return await self._engine.call(
            lambda: self._topic.read_verified(offset, partition, committed=committed)
        )

    def scan(
        self,
        partition: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        committed: bool = True,
    ) -> AsyncScan:
        """Return the records as columns; see `AsyncLog.scan`."""
        return AsyncScan(
            self._engine,
            lambda: self._topic.scan(
                partition,
                start=start,
                stop=stop,
                columns=columns,
                since=since,
                until=until,
                committed=committed,
            ),
        )

    async def offset_at(self, timestamp: int, partition: int = 0) -> int | None:
        """Return the offset of the first record at or after *timestamp* (milliseconds), exactly."""
        return await self._engine.call(lambda: self._topic.offset_at(timestamp, partition))

    async def high_watermark(self, partition: int = 0) -> int:
        """Return the first offset that cannot be read yet, also not with *committed* False."""
        return await self._engine.call(lambda: self._topic.high_watermark(partition))

    async def last_stable_offset(self, partition: int = 0) -> int:
        """Return the first offset of an open transaction, or the high watermark if none is open."""
        return await self._engine.call(lambda: self._topic.last_stable_offset(partition))

    async def log_end_offset(self, partition: int = 0) -> int:
        """Return the offset the next record will get."""
        return await self._engine.call(lambda: self._topic.log_end_offset(partition))

    async def log_start_offset(self, partition: int = 0) -> int:
        """Return the first offset that can be read."""
        return await self._engine.call(lambda: self._topic.log_start_offset(partition))

    async def offsets(self, partition: int = 0) -> OffsetRange:
        """Return the offsets that can be read now: how many, whether one is among them, how far in."""
        return await self._engine.call(lambda: self._topic.offsets(partition))

    async def size(self, partition: int = 0) -> int:
        """Return the bytes of a partition's segments."""
        return await self._engine.call(lambda: self._topic.size(partition))

    def snapshots(self, partition: int = 0) -> AsyncSnapshots:
        """Return the snapshots of what was derived from a partition's records; see `cordwood.aio.replay`."""
        return AsyncSnapshots(self._engine, lambda: self._topic.snapshots(partition))

    # --- cutting ----------------------------------------------------------------------------------

    async def truncate(
        self, partition: int, end_offset: int, *, force: bool = False, dry_run: bool = False
    ) -> TruncationReport:
        """Drop every record of *partition* at or above *end_offset*; see `cordwood.Topic.truncate`.

        Raises:
            OffsetOutOfRange: If the partition does not have that end.
            SignedFor: If a checkpoint signs for one of them, and *force* does not say that this is meant.
        """
        return await self._engine.call_long(
            lambda: self._topic.truncate(partition, end_offset, force=force, dry_run=dry_run)
        )

    async def advance_log_start(self, partition: int, offset: int) -> None:
        """Make *offset* the first one that can be read. Durable on return."""
        await self._engine.call_long(lambda: self._topic.advance_log_start(partition, offset))

    async def remove_expired(self, older_than_ms: int | None = None) -> int:
        """Delete what retention no longer keeps; see `cordwood.Topic.remove_expired`."""
        return await self._engine.call_long(lambda: self._topic.remove_expired(older_than_ms))

    async def roll(self, partition: int = 0) -> None:
        """Seal the active segment and go on in a new one. Durable on return."""
        await self._engine.call(lambda: self._topic.roll(partition))
