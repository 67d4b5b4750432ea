"""One record whose value comes in pieces, from an asynchronous iterable or a plain one."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from threading import Lock

from cordwood.aio.appending import WrittenFrames
from cordwood.aio.engine import AsyncEngine
from cordwood.embedded import Placement, TopicWriter
from cordwood.errors import LogClosed, RecordRefused, StreamTooLong
from cordwood.kernels import Buffer
from cordwood.records import Header
from cordwood.storage.log import Spool, bytes_of_chunk

#: Chunks are handed to a thread when they are this many bytes together.
HAND_OVER_BYTES = 256 << 10

Chunks = AsyncIterable[Buffer] | Iterable[Buffer]


class StreamSpool:
    """The file that a stream is collected in. Either the task or the writer thread removes it, once."""

    def __init__(self, spool: Spool, limit: int) -> None:
        self._spool = spool
        self.limit = limit
        self._guard = Lock()
        self._gone = False

    def take(self, data: Buffer) -> None:
        """Add *data*, unless the task was cancelled meanwhile."""
        with self._guard:
            if not self._gone:
                self._spool.take(data)

    def hand_over(self) -> Spool | None:
        """Return the file, which the caller now removes; None if the task was cancelled meanwhile."""
        with self._guard:
            gone, self._gone = self._gone, True
        return None if gone else self._spool

    def remove(self) -> None:
        """Remove the file, unless it was handed over."""
        if (spool := self.hand_over()) is not None:
            spool.close()


class StreamAppend:
    """One append of a stream."""

    def __init__(
        self,
        engine: AsyncEngine,
        writer: TopicWriter,
        partition: int,
        key: bytes | None,
        headers: Iterable[Header],
        timestamp: int | None,
        expected_offset: int | None,
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._partition = partition
        self._key = key
        self._headers = headers
        self._timestamp = timestamp
        self._expected_offset = expected_offset

    async def append(self, chunks: Chunks, max_bytes: int | None) -> Placement:
        """Collect *chunks* in a file, then append it in the writer thread; see `AsyncTopic.append_stream`."""
        spool = await self._engine.call(
            lambda: self._begin(max_bytes), dropped=lambda unused: self._engine.free(unused.remove)
        )
        try:
            await self._collect(spool, chunks)
            placed = await self._engine.append(lambda frames: self._write(spool, frames))
        except BaseException:
            # Awaited, so that a stream that failed has left nothing when its caller learns of it.
            await self._engine.release(spool.remove)
            raise
        # The writer has removed the file.
        self._engine.free(spool.remove)
        return placed

    def _begin(self, max_bytes: int | None) -> StreamSpool:
        limit = self._writer.stream_limit(self._partition, max_bytes)
        spool = StreamSpool(self._writer.begin_spool(), limit)
        self._engine.hold(spool.remove)
        return spool

    async def _collect(self, spool: StreamSpool, chunks: Chunks) -> None:
        size, pending = 0, bytearray()
        async for chunk in _as_async(chunks):
            data = bytes_of_chunk(chunk)
            size += len(data)
            if size > spool.limit:
                raise StreamTooLong(spool.limit)
            # Copied: the iterator may use its buffer again.
            pending += data
            if len(pending) >= HAND_OVER_BYTES:
                full, pending = pending, bytearray()
                await self._engine.call(lambda full=full: spool.take(full))  # type: ignore[misc]
        if pending:
            await self._engine.call(lambda: spool.take(pending))

    def _write(self, spool: StreamSpool, frames: WrittenFrames) -> Placement:
        spooled = spool.hand_over()
        if spooled is None:
            raise LogClosed("the stream was cancelled")
        try:
            written = self._writer.write_spooled(
                self._partition, spooled, self._key, self._headers, self._timestamp, self._expected_offset
            )
        finally:
            spooled.close()
        frames.add(self._writer, written)
        return Placement(self._partition, written.appended.base_offset)


async def _as_async(chunks: Chunks) -> AsyncIterator[Buffer]:
    """Yield the chunks of either kind of iterable.

    Raises:
        RecordRefused: If it is neither.
    """
    if isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
        return
    try:
        plain = iter(chunks)
    except TypeError:
        raise RecordRefused(f"a stream must be iterable, not {type(chunks).__name__}") from None
    for chunk in plain:
        yield chunk
