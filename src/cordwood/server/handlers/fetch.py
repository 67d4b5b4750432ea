"""Fetch: batches as they stand in the files, now or as soon as there are enough of them."""

from __future__ import annotations

import asyncio
from functools import partial

from cordwood.broker.fetching import Got, Haul, Wanted
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.fetch import (
    BY_ID_FROM,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from cordwood.server.answers import code_of
from cordwood.server.connection import Exchange
from cordwood.server.context import Context
from cordwood.server.parking import Place, Waiter

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
        self._by_id = exchange.request.api_version >= BY_ID_FROM
        # Who may not be given as much as it waits for is given what it may.
        self._max_bytes = context.quotas.fetch_max(
            min(self._request.max_bytes, context.config.fetch_max_bytes)
        )
        self._min_bytes = min(self._request.min_bytes, self._max_bytes)
        self._wishes: list[Wanted] = []
        # For each partition of the request the number of its wish, None where the topic is not known.
        self._plan: list[list[int | None]] = []
        self._unknown = False
        self._waiter: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._reading_ns = 0
        self._last = False

    def begin(self) -> None:
        """Read once, and wait if that is not enough."""
        self._resolve()
        request = self._request
        if self._unknown or request.max_wait_ms <= 0 or self._min_bytes <= 0 or self._context.closing:
            self._last = True
        else:
            places = [(wish.topic, wish.partition) for wish in self._wishes]
            wake = partial(self._exchange.attempt, self._wake)
            self._waiter = self._context.parking.add(places, self._min_bytes, wake)
            self._exchange.on_lost = self._end
            self._timer = self._context.loop.call_later(
                request.max_wait_ms / 1000, self._exchange.attempt, self._expire
            )
            nothing = self._context.tenant.peek(self._wishes)
            if nothing is not None:
                self._consider(nothing)
                return
        self._read()

    def _resolve(self) -> None:
        """Find the topics that the request names."""
        tenant = self._context.tenant
        named: set[Place] = set()
        for topic in self._request.topics:
            found = tenant.find_by_id(topic.topic_id) if self._by_id else tenant.find(topic.name)
            numbers: list[int | None] = []
            for part in topic.partitions:
                if found is None:
                    self._unknown = True
                    numbers.append(None)
                else:
                    numbers.append(len(self._wishes))
                    # Named again, a partition gives nothing: it would be read as often as it is named.
                    max_bytes = 0 if (found.key, part.index) in named else part.max_bytes
                    named.add((found.key, part.index))
                    self._wishes.append(Wanted(found.key, part.index, part.fetch_offset, max_bytes))
            self._plan.append(numbers)

    def _read(self) -> None:
        if self._waiter is not None:
            self._waiter.missing = self._min_bytes
        self._reading = True
        self._reading_ns = self._context.meter.now_ns()
        self._context.readers.run(self._exchange, self._read_now, self._got)

    def _read_now(self) -> Haul:
        """Read as much as there is memory for now, in a thread: many may have waited for one since."""
        budget = self._context.budget
        limit = budget.reserve(self._max_bytes, BYTES_MIN)
        try:
            haul = self._context.tenant.read(self._wishes, min(limit, self._max_bytes))
        except BaseException:
            budget.release(limit)
            raise
        # What was read stays reserved until the connection has it, and counts what the socket does not take.
        budget.release(limit - haul.size)
        return haul

    def _got(self, haul: Haul) -> None:
        """Take what was read."""
        self._reading = False
        self._context.meter.read(self._reading_ns)
        try:
            self._consider(haul)
        finally:
            self._context.budget.release(haul.size)

    def _consider(self, haul: Haul) -> None:
        """Answer with *haul* if it is enough, else wait for more."""
        waiter = self._waiter
        if waiter is None or self._last or haul.failed or haul.size >= self._min_bytes:
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
        self._context.meter.fetched(haul.size)
        committed_only = self._request.isolation_level == READ_COMMITTED
        topics = []
        for topic, numbers in zip(self._request.topics, self._plan, strict=True):
            gone = self._by_id and self._context.tenant.find_by_id(topic.topic_id) is None
            partitions = []
            for part, number in zip(topic.partitions, numbers, strict=True):
                # Of a topic that is gone nothing is told: another of its name may have been read.
                got = None if gone or number is None else haul.each[number]
                partitions.append(self._partition(part.index, got, committed_only))
            topics.append(FetchTopicResponse(topic.name, topic.topic_id, partitions))
        throttle_ms = self._context.quotas.fetched(haul.size)
        self._exchange.throttle(throttle_ms)
        self._exchange.answer(FetchResponse(throttle_ms, ErrorCode.NONE, 0, topics))

    def _partition(self, index: int, got: Got | None, committed_only: bool) -> FetchPartitionResponse:
        if got is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if self._by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
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
