"""Fetch: returns batches as stored, at once or as soon as there are enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from cordwood.broker import (
    NO_SESSION,
    OPENING,
    SESSIONLESS,
    Asked,
    BrokerTopic,
    FetchResult,
    FetchSession,
    Got,
    Key,
    PartitionFetch,
    SessionProblem,
    TopicRef,
    next_epoch,
)
from cordwood.protocol import NULL_ID, ErrorCode
from cordwood.protocol.messages import (
    AbortedTransaction,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from cordwood.records import TopicPartition
from cordwood.security import Operation
from cordwood.server.answers import code_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.parking import Waiter
from cordwood.server.security import Rights

#: The first version that names topics by id.
BY_ID_FROM = 13
#: The isolation level of a reader that gets no record of an open transaction.
READ_COMMITTED = 1
#: If memory is short, a fetch still returns this many bytes or the first batch, so that it makes progress.
BYTES_MIN = 64 << 10


_PROBLEMS = {
    SessionProblem.NOT_FOUND: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    SessionProblem.WRONG_EPOCH: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    SessionProblem.WRONG_NAMING: ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}


def fetch(context: Context, exchange: Exchange) -> None:
    """Read from partitions, waiting for ``min_bytes`` up to ``max_wait_ms``."""
    request: FetchRequest = exchange.request.body
    if request.session_epoch in (OPENING, SESSIONLESS):
        # A full fetch ends the previous session.
        context.sessions.close(request.session_id, exchange.principal)
        opening = request.session_epoch == OPENING
        (_OpeningFetch if opening else _Fetch)(context, exchange).begin()
        return
    by_id = exchange.request.api_version >= BY_ID_FROM
    session = context.sessions.resume(
        request.session_id,
        request.session_epoch,
        _asked(request, by_id),
        _forgotten(request, by_id),
        by_id=by_id,
        owner=exchange.principal,
    )
    if isinstance(session, FetchSession):
        _SessionFetch(context, exchange, session).begin()
    else:
        code = ErrorCode.NONE if session is None else _PROBLEMS[session]
        exchange.answer(FetchResponse(0, code, NO_SESSION, []))


def _asked(request: FetchRequest, by_id: bool) -> list[Asked]:
    return [
        Asked(
            topic.topic_id if by_id else topic.name,
            part.index,
            part.fetch_offset,
            part.max_bytes,
            part.current_leader_epoch,
        )
        for topic in request.topics
        for part in topic.partitions
    ]


def _forgotten(request: FetchRequest, by_id: bool) -> Iterable[Key]:
    for topic in request.forgotten:
        for index in topic.partitions:
            yield (topic.topic_id if by_id else topic.name), index


class _Fetch:
    """One fetch until it is answered. On the loop, except the reads."""

    def __init__(self, context: Context, exchange: Exchange) -> None:
        self._context = context
        self._exchange = exchange
        self._request: FetchRequest = exchange.request.body
        self._by_id = exchange.request.api_version >= BY_ID_FROM
        self._committed = self._request.isolation_level == READ_COMMITTED
        # A fetch never waits for more bytes than it may return.
        self._max_bytes = min(self._request.max_bytes, context.config.fetch_max_bytes)
        if context.quotas.limits_consumers:
            self._max_bytes = context.quotas.fetch_max(exchange.quota_client, self._max_bytes)
        self._min_bytes = min(self._request.min_bytes, self._max_bytes)
        self._wishes: list[PartitionFetch] = []
        # For each partition of the request the index of its read, or None if the topic is unknown.
        self._plan: list[list[int | None]] = []
        # Without an authorizer nothing is asked for each topic.
        self._rights = None if context.authorization is None else context.rights(exchange)
        # Nothing is waited for: a topic is unknown, or there is nothing that may be read.
        self._unknown = False
        self._denied: set[TopicRef] = set()
        self._waiter: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._reading_ns = 0
        self._last = False
        # Whether the client is gone before anything was read.
        self._is_lost = False

    def begin(self) -> None:
        """Read once, and wait if the result is too small. Committed records are read once they may be."""
        transactions = self._context.transactions
        if self._committed and transactions.is_recovering:
            self._exchange.on_lost = self._lose
            transactions.when_recovered(partial(self._exchange.attempt, self._begin_recovered))
        else:
            self._begin()

    def _lose(self) -> None:
        self._is_lost = True

    def _begin_recovered(self) -> None:
        if self._is_lost:
            return
        self._exchange.on_lost = None
        if self._context.transactions.is_recovering:
            self._exchange.fail("the server closes before committed records can be read")
        else:
            self._begin()

    def _begin(self) -> None:
        self._resolve()
        request = self._request
        if self._unknown or request.max_wait_ms <= 0 or self._min_bytes <= 0 or self._context.closing:
            self._last = True
        else:
            wake = partial(self._exchange.attempt, self._wake)
            self._waiter = self._context.parking.add(self._places(), self._min_bytes, wake)
            self._exchange.on_lost = self._end
            self._timer = self._context.loop.call_later(
                request.max_wait_ms / 1000, self._exchange.attempt, self._expire
            )
            nothing = self._peek()
            if nothing is not None:
                self._consider(nothing)
                return
        self._read()

    def _resolve(self) -> None:
        """Look up the topics of the request."""
        tenant = self._context.tenant
        named: set[TopicPartition] = set()
        for topic in self._request.topics:
            found = tenant.find_by_id(topic.topic_id) if self._by_id else tenant.find(topic.name)
            ref = topic.topic_id if self._by_id else topic.name
            if self._rights is not None and self._is_denied(self._rights, ref, found):
                self._denied.add(ref)
                self._plan.append([None] * len(topic.partitions))
                continue
            numbers: list[int | None] = []
            for part in topic.partitions:
                if found is None:
                    self._unknown = True
                    numbers.append(None)
                else:
                    numbers.append(len(self._wishes))
                    # A partition that is named again returns nothing, so that it is read only once.
                    max_bytes = 0 if (found.key, part.index) in named else part.max_bytes
                    named.add((found.key, part.index))
                    self._wishes.append(
                        PartitionFetch(
                            found.key, part.index, part.fetch_offset, max_bytes, part.current_leader_epoch
                        )
                    )
            self._plan.append(numbers)
        self._unknown = self._unknown or (bool(self._denied) and not self._wishes)

    def _is_denied(self, rights: Rights, topic: TopicRef, found: BrokerTopic | None) -> bool:
        """Return whether the client may not read a topic. What is given by an unknown id is unknown."""
        name = topic if isinstance(topic, str) else None if found is None else found.name
        return name is not None and rights.topic_refusal(Operation.READ, name) is not None

    def _places(self) -> Iterable[TopicPartition]:
        """Return the partitions whose bytes this fetch waits for."""
        return [(wish.topic, wish.partition) for wish in self._wishes]

    def _peek(self) -> FetchResult | None:
        """Return an empty result if there is nothing to read, else None. Does not access the disk."""
        return self._context.node.peek(self._wishes, committed=self._committed)

    def _fill(self, max_bytes: int) -> FetchResult:
        """Read the requested partitions. In a thread."""
        return self._context.node.read(self._wishes, max_bytes, committed=self._committed)

    def _withheld(self, result: FetchResult) -> dict[TopicPartition, int]:
        """Return the partitions of *result* with an open transaction, and their last stable offsets."""
        return {
            (wish.topic, wish.partition): got.last_stable_offset
            for wish, got in zip(self._wishes, result.each, strict=True)
            if got.last_stable_offset < got.high_watermark
        }

    def _read(self) -> None:
        if self._waiter is not None:
            self._waiter.missing = self._min_bytes
        self._reading = True
        self._reading_ns = self._context.meter.now_ns()
        self._context.readers.run(self._exchange, self._read_now, self._got)

    def _read_now(self) -> FetchResult:
        """Read as much as the budget allows now. In a thread: the read may have waited for one."""
        budget = self._context.budget
        limit = budget.reserve(self._max_bytes, BYTES_MIN)
        try:
            result = self._fill(min(limit, self._max_bytes))
        except BaseException:
            budget.release(limit)
            raise
        # The bytes read stay reserved until the connection has the answer, which then counts unsent bytes.
        budget.release(limit - result.size)
        return result

    def _got(self, result: FetchResult) -> None:
        """Process the result of a read."""
        self._reading = False
        self._context.meter.read(self._reading_ns)
        try:
            self._consider(result)
        finally:
            self._context.budget.release(result.size)

    def _consider(self, result: FetchResult) -> None:
        """Answer with *result* if it is large enough, else wait for more."""
        waiter = self._waiter
        if waiter is None or self._last or result.failed or result.size >= self._min_bytes:
            self._answer(result)
            return
        # Bytes that arrived during the read may or may not be in the result; read again to be sure.
        waiter.missing -= result.size
        if self._committed:
            self._context.parking.withhold(waiter, self._withheld(result))
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
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None:
            self._context.parking.remove(self._waiter)
            self._waiter = None
        self._last = True

    def _answer(self, result: FetchResult) -> None:
        self._end()
        self._context.meter.fetched(result.size)
        response = self._respond(result)
        quotas = self._context.quotas
        if quotas.limits_consumers:
            response.throttle_time_ms = quotas.fetched(self._exchange.quota_client, result.size)
            self._exchange.throttle(response.throttle_time_ms)
        self._exchange.answer(response)

    def _respond(self, result: FetchResult) -> FetchResponse:
        """Return the response with *result*."""
        topics = []
        for topic, numbers in zip(self._request.topics, self._plan, strict=True):
            denied = (topic.topic_id if self._by_id else topic.name) in self._denied
            gone = self._by_id and self._context.tenant.find_by_id(topic.topic_id) is None
            partitions = []
            for part, number in zip(topic.partitions, numbers, strict=True):
                # Nothing is returned for a deleted topic: a new topic of the same name may have been read.
                got = None if gone or number is None else result.each[number]
                partitions.append(self._partition(part.index, got, denied=denied))
            topics.append(FetchTopicResponse(topic.name, topic.topic_id, partitions))
        return FetchResponse(0, ErrorCode.NONE, NO_SESSION, topics)

    def _partition(self, index: int, got: Got | None, *, denied: bool) -> FetchPartitionResponse:
        if denied:
            return FetchPartitionResponse(index=index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if got is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if self._by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return FetchPartitionResponse(index=index, error_code=code)
        return FetchPartitionResponse(
            index=index,
            error_code=ErrorCode.NONE if got.error is None else code_of(got.error),
            high_watermark=got.high_watermark,
            last_stable_offset=got.last_stable_offset,
            log_start_offset=got.log_start_offset,
            aborted_transactions=(_aborted(got) if got.aborted else []) if self._committed else None,
            records=got.frames,
        )


class _OpeningFetch(_Fetch):
    """A fetch that names all its partitions and requests a session."""

    def _respond(self, result: FetchResult) -> FetchResponse:
        response = super()._respond(result)
        asked = _asked(self._request, self._by_id)
        told = [part for topic in response.topics for part in topic.partitions]
        for each, part in zip(asked, told, strict=True):
            if part.error_code == ErrorCode.NONE:
                end = part.last_stable_offset if self._committed else part.high_watermark
                each.told = (part.high_watermark, part.log_start_offset, end)
        response.session_id = self._context.sessions.open(
            asked, by_id=self._by_id, owner=self._exchange.principal
        )
        return response


class _SessionFetch(_Fetch):
    """A fetch of a session's partitions; only those with changes are read and returned."""

    def __init__(self, context: Context, exchange: Exchange, session: FetchSession) -> None:
        super().__init__(context, exchange)
        self._session = session
        self._asked: list[Asked] = []
        # The partitions of the last read, in the order of the result, and those whose topic does not exist.
        self._read_of: list[Asked] = []
        self._missing: list[Asked] = []

    def _find(self, topic: TopicRef) -> BrokerTopic | None:
        tenant = self._context.tenant
        return tenant.find(topic) if isinstance(topic, str) else tenant.find_by_id(topic)

    def _find_key(self, topic: TopicRef) -> str | None:
        found = self._find(topic)
        return None if found is None else found.key

    def _find_readable(self, rights: Rights) -> Callable[[TopicRef], str | None]:
        """Return a function that returns the internal name of a topic, or None if it must not be read.

        Each topic is asked for once.
        """
        known: dict[TopicRef, str | None] = {}

        def find(topic: TopicRef) -> str | None:
            if topic not in known:
                found = self._find(topic)
                if self._is_denied(rights, topic, found):
                    self._denied.add(topic)
                    found = None
                known[topic] = None if found is None else found.key
            return known[topic]

        return find

    def _resolve(self) -> None:
        # As in Kafka, each fetch of a session needs the rights again. They are asked for if they, the topics
        # or the client may have changed since the last one.
        rights, changes = self._rights, self._context.tenant.changes
        find = self._find_key if rights is None else self._find_readable(rights)
        missing = self._session.resolve((changes, None if rights is None else rights.key), find)
        asked = self._session.partitions.values()
        self._asked = [each for each in asked if each.wish is not None]
        self._missing = [each for each in asked if each.wish is None] if missing else []
        # With a denied topic the rest is waited for, as if it were not there.
        unknown = any(each.topic not in self._denied for each in self._missing)
        self._unknown = unknown or (bool(self._missing) and not self._asked)

    def _places(self) -> Iterable[TopicPartition]:
        assert self._session.places is not None
        return self._session.places

    def _peek(self) -> FetchResult | None:
        news = self._context.node.find_news(self._asked, committed=self._committed)
        return None if news else FetchResult([], 0, failed=False)

    def _fill(self, max_bytes: int) -> FetchResult:
        self._read_of = self._context.node.find_news(self._asked, committed=self._committed)
        wishes = [each.wish for each in self._read_of if each.wish is not None]
        return self._context.node.read(wishes, max_bytes, committed=self._committed)

    def _withheld(self, result: FetchResult) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for each in self._asked:
            told, wish = each.told, each.wish
            if told is not None and told[2] < told[0] and wish is not None:
                found[wish.topic, wish.partition] = told[2]
        # Partitions that were not read are as the client was told.
        for each, got in zip(self._read_of, result.each, strict=True):
            if each.wish is None:
                continue
            place = each.wish.topic, each.wish.partition
            if got.last_stable_offset < got.high_watermark:
                found[place] = got.last_stable_offset
            else:
                found.pop(place, None)
        return found

    def _respond(self, result: FetchResult) -> FetchResponse:
        session = self._session
        if session.epoch != next_epoch(self._request.session_epoch):
            # The request was sent again while this one waited; the new one continues the session.
            return FetchResponse(0, ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id, [])
        topics: dict[TopicRef, list[FetchPartitionResponse]] = {}
        moved = []
        for each, got in self._pairs(result):
            if got is not None and not each.is_news(got, committed=self._committed):
                continue
            each.tell(got, committed=self._committed)
            part = self._partition(each.partition, got, denied=got is None and each.topic in self._denied)
            topics.setdefault(each.topic, []).append(part)
            if got is not None and got.frames:
                moved.append(each)
        session.rotate(moved)
        told = [FetchTopicResponse(*_name_and_id(topic), parts) for topic, parts in topics.items()]
        return FetchResponse(0, ErrorCode.NONE, session.id, told)

    def _pairs(self, result: FetchResult) -> Iterator[tuple[Asked, Got | None]]:
        """Yield the partitions of *result*, with None for those whose topic does not exist."""
        for each, got in zip(self._read_of, result.each, strict=True):
            # A name that was looked up by id may belong to another topic by now.
            gone = self._by_id and self._find_key(each.topic) is None
            yield each, None if gone else got
        yield from ((each, None) for each in self._missing)


def _aborted(got: Got) -> list[AbortedTransaction]:
    return [AbortedTransaction(each.producer_id, each.first_offset) for each in got.aborted]


def _name_and_id(topic: TopicRef) -> tuple[str, bytes]:
    return (topic, NULL_ID) if isinstance(topic, str) else ("", topic)
