"""Fetch: batches as they stand in the files, now or as soon as there are enough of them."""

from __future__ import annotations

import asyncio

from cordwood.broker.fetching import Got, Haul, Wanted
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from cordwood.server.answers import code_of
from cordwood.server.connection import Exchange
from cordwood.server.context import Context
from cordwood.server.parking import Waiter

READ_COMMITTED = 1
#: Where memory is short a fetch still returns this much, or the first batch: it must not stand still.
BYTES_MIN = 64 << 10


def fetch(context: Context, exchange: Exchange) -> None:
    """Read from partitions, waiting for ``min_bytes`` up to ``max_wait_ms``."""
    request: FetchRequest = exchange.request.body
    if request.session_id != 0:
        # Sessions are never given out, which a client takes as leave to ask in full each time.
        exchange.answer(FetchResponse(0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, []))
        return
    _Fetch(context, exchange).begin()


class _Fetch:
    """One fetch until it is answered. On the loop, but for the reading itself."""

    def __init__(self, context: Context, exchange: Exchange) -> None:
        self._context = context
        self._exchange = exchange
        self._request: FetchRequest = exchange.request.body
        self._wishes: list[Wanted] = []
        # For each partition of the request the number of its wish, None where the topic is not known.
        self._plan: list[list[int | None]] = []
        self._unknown = False
        self._haul: Haul | None = None
        self._waiter: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._last = False

    def begin(self) -> None:
        """Read once, and wait if that is not enough."""
        self._resolve()
        request = self._request
        if self._unknown or request.max_wait_ms <= 0 or request.min_bytes <= 0 or self._context.closing:
            self._last = True
        else:
            places = [(wish.topic, wish.partition) for wish in self._wishes]
            self._waiter = self._context.parking.add(places, request.min_bytes, self._wake)
            self._exchange.on_lost = self._end
            self._timer = self._context.loop.call_later(request.max_wait_ms / 1000, self._expire)
            nothing = self._context.node.peek(self._wishes)
            if nothing is not None:
                self._got(nothing)
                return
        self._read()

    def _resolve(self) -> None:
        """Find the topics that the request names."""
        topics = self._context.node.topics
        by_id = self._exchange.request.api_version >= 13
        for topic in self._request.topics:
            entry = topics.find_by_id(topic.topic_id) if by_id else topics.find(topic.name)
            numbers: list[int | None] = []
            for part in topic.partitions:
                if entry is None:
                    self._unknown = True
                    numbers.append(None)
                else:
                    numbers.append(len(self._wishes))
                    self._wishes.append(Wanted(entry.name, part.index, part.fetch_offset, part.max_bytes))
            self._plan.append(numbers)

    def _read(self) -> None:
        context, request = self._context, self._request
        if self._waiter is not None:
            self._waiter.missing = request.min_bytes
        limit = min(request.max_bytes, context.config.fetch_max_bytes, max(context.budget.left, BYTES_MIN))
        self._reading = True
        context.readers.run(self._exchange, lambda: context.node.read(self._wishes, limit), self._got)

    def _got(self, haul: Haul) -> None:
        """Answer with *haul* if it is enough, else wait for more."""
        self._reading = False
        self._haul = haul
        waiter = self._waiter
        if waiter is None or self._last or haul.failed or haul.size >= self._request.min_bytes:
            self._answer(haul)
            return
        # Bytes that came while we read may or may not be in the haul; look again rather than miss them.
        waiter.missing -= haul.size
        if waiter.missing <= 0:
            self._read()

    def _wake(self) -> None:
        if self._context.closing:
            self._last = True
        if not self._reading:
            self._read()

    def _expire(self) -> None:
        self._last = True
        if not self._reading:
            self._read()

    def _end(self) -> None:
        """Wait for nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None:
            self._context.parking.remove(self._waiter)
            self._waiter = None
        self._last = True

    def _answer(self, haul: Haul) -> None:
        self._end()
        committed_only = self._request.isolation_level == READ_COMMITTED
        topics = [
            FetchTopicResponse(
                topic.name,
                topic.topic_id,
                [
                    self._partition(part.index, None if number is None else haul.each[number], committed_only)
                    for part, number in zip(topic.partitions, numbers, strict=True)
                ],
            )
            for topic, numbers in zip(self._request.topics, self._plan, strict=True)
        ]
        self._exchange.answer(FetchResponse(0, ErrorCode.NONE, 0, topics))

    def _partition(self, index: int, got: Got | None, committed_only: bool) -> FetchPartitionResponse:
        if got is None:
            by_id = self._exchange.request.api_version >= 13
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return FetchPartitionResponse(index=index, error_code=code)
        return FetchPartitionResponse(
            index=index,
            error_code=ErrorCode.NONE if got.error is None else code_of(got.error),
            high_watermark=got.high_watermark,
            # There are no transactions, so everything that is visible is stable.
            last_stable_offset=got.high_watermark,
            log_start_offset=got.log_start_offset,
            aborted_transactions=[] if committed_only else None,
            records=got.frames,
        )
