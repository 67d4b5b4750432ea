"""Fetch sessions (KIP-227): the broker remembers what a consumer fetches, and tells it only what is new.

A consumer names its partitions once. Each later fetch of the session names those whose offset changed, and
is answered with those that have records, another high watermark or log start, or an error. Without a session
a consumer of 1,000 partitions names and is told of all of them each time.

Sessions are a convenience that may end at any moment: the consumer then asks in full and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

from cordwood.broker.fetching import Got, PartitionFetch
from cordwood.broker.leader_epochs import NO_EPOCH

#: What stands for no session where an id of one is expected.
NO_SESSION = 0
#: The epochs with which a client asks in full: to open a session, and to have none.
OPENING, SESSIONLESS = 0, -1
#: As in Kafka: a session that was not used for this long may be evicted for any other one, and one that is
#: younger than this is not evicted for its size.
EVICTABLE_AFTER_MS = 120_000
#: The partitions that all sessions of a broker may have together. Each takes about 600 bytes.
PARTITIONS_MAX = 50_000
#: The number that comes after this one is 1: 0 opens a session.
_EPOCH_MAX = 2**31 - 1

TopicRef = str | bytes
"""A topic by its name or, in a session that goes by ids, by its id."""
Key = tuple[TopicRef, int]


class SessionProblem(Enum):
    """Why a fetch is not answered in the session that it names."""

    NOT_FOUND = "there is no such session, or no more"
    WRONG_EPOCH = "the session is at another epoch"
    WRONG_NAMING = "the session names topics by name and the request by id, or the other way round"


class Asked:
    """One partition of a session: what the client wants of it, and what it was told last."""

    __slots__ = ("leader_epoch", "max_bytes", "offset", "partition", "told", "topic", "wish")

    def __init__(
        self, topic: TopicRef, partition: int, offset: int, max_bytes: int, leader_epoch: int = NO_EPOCH
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        #: The high watermark and the log start that the client knows, None if it is to be told.
        self.told: tuple[int, int] | None = None
        #: The same in the broker's own words, None while the topic is not there.
        self.wish: PartitionFetch | None = None

    @property
    def key(self) -> Key:
        """What tells it from other partitions of the session."""
        return self.topic, self.partition

    def is_news(self, got: Got) -> bool:
        """Return whether the client must be told of *got*."""
        standing = (got.high_watermark, got.log_start_offset)
        return bool(got.frames) or got.error is not None or standing != self.told

    def tell(self, got: Got | None) -> None:
        """Take note that the client is told of *got*, None for a topic that is not there."""
        # After an error it is told again where the partition stands, as soon as that is known.
        if got is None or got.error is not None:
            self.told = None
        else:
            self.told = (got.high_watermark, got.log_start_offset)


class FetchSession:
    """What one consumer fetches. ``epoch`` is the one that its next request must have."""

    __slots__ = ("by_id", "created_ms", "epoch", "id", "partitions", "places", "resolved_at", "used_ms")

    def __init__(self, id_: int, asked: Iterable[Asked], *, by_id: bool, now_ms: int) -> None:
        self.id = id_
        self.by_id = by_id
        self.epoch = OPENING + 1
        self.created_ms = self.used_ms = now_ms
        #: In the order in which they are read: those that gave records last come last.
        self.partitions: dict[Key, Asked] = {each.key: each for each in asked}
        #: The state of the topics for which the wishes of the partitions hold; see `resolve`.
        self.resolved_at = -1
        self.places: frozenset[tuple[str, int]] | None = None

    def __len__(self) -> int:
        return len(self.partitions)

    def update(self, asked: Iterable[Asked], forgotten: Iterable[Key]) -> None:
        """Add partitions or change what is wanted of them; then drop those that are *forgotten*."""
        for new in asked:
            known = self.partitions.get(new.key)
            if known is None:
                self.partitions[new.key] = new
                self.places = None
            else:
                known.offset, known.max_bytes = new.offset, new.max_bytes
                known.leader_epoch, known.wish = new.leader_epoch, None
        for key in forgotten:
            if self.partitions.pop(key, None) is not None:
                self.places = None

    def resolve(self, changes: int, find: Callable[[TopicRef], str | None]) -> bool:
        """Fill in the wishes; return whether a topic is missing. *find* gives the inner name of a topic.

        *changes* is another number after each change to the topics. As long as it stays, only what the
        client changed is looked up.
        """
        again = changes != self.resolved_at
        missing = False
        if again:
            self.places = None
        for each in self.partitions.values():
            if again or each.wish is None:
                key = find(each.topic)
                if key is None:
                    each.wish, missing = None, True
                    continue
                each.wish = PartitionFetch(
                    key, each.partition, each.offset, each.max_bytes, each.leader_epoch
                )
                if self.places is not None and (key, each.partition) not in self.places:
                    self.places = None
        if self.places is None:
            wishes = (each.wish for each in self.partitions.values())
            self.places = frozenset((wish.topic, wish.partition) for wish in wishes if wish is not None)
        self.resolved_at = changes
        return missing

    def rotate(self, asked: Iterable[Asked]) -> None:
        """Let *asked*, which gave records, be read last next time, so that each gets its turn."""
        for each in asked:
            if self.partitions.pop(each.key, None) is not None:
                self.partitions[each.key] = each


def next_epoch(epoch: int) -> int:
    """Return the epoch of the request after the one of *epoch*."""
    return epoch + 1 if epoch < _EPOCH_MAX else 1


class FetchSessions:
    """The sessions of the clients of one org, at most *slots* of them. One caller at a time.

    *new_id* gives numbers above 0 that are hard to guess, *now_ms* a time that never goes back. With *slots*
    or *partitions_max* at 0 no session is ever opened.
    """

    def __init__(
        self,
        slots: int,
        new_id: Callable[[], int],
        now_ms: Callable[[], int],
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self.slots = slots
        #: How many sessions ended because others needed their place.
        self.evictions = 0
        #: The number of partitions in all sessions.
        self.partitions = 0
        self._partitions_max = partitions_max
        self._new_id = new_id
        self._now_ms = now_ms
        # In the order of their last use.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(self._sessions.values())

    def close(self, session_id: int) -> None:
        """End a session. Idempotent."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session)

    def open(self, asked: Sequence[Asked], *, by_id: bool) -> int:
        """Begin a session with these partitions and return its id, `NO_SESSION` where there is no room.

        There is none for a request without partitions or with one that is named twice.
        """
        now_ms = self._now_ms()
        if not asked or not self._make_room(len(asked), now_ms):
            return NO_SESSION
        id_ = self._new_id()
        while id_ in self._sessions or id_ == NO_SESSION:
            id_ = self._new_id()
        session = FetchSession(id_, asked, by_id=by_id, now_ms=now_ms)
        if len(session) != len(asked):
            return NO_SESSION
        self._sessions[id_] = session
        self.partitions += len(session)
        return id_

    def resume(
        self, session_id: int, epoch: int, asked: Sequence[Asked], forgotten: Iterable[Key], *, by_id: bool
    ) -> FetchSession | SessionProblem | None:
        """Return the session that a request goes on with, changed as it says.

        None stands for one that has no partitions left: it is over, and the request wants nothing else.
        """
        session = self._sessions.get(session_id)
        if session is None:
            return SessionProblem.NOT_FOUND
        if session.epoch != epoch:
            return SessionProblem.WRONG_EPOCH
        if session.by_id != by_id:
            return SessionProblem.WRONG_NAMING
        before = len(session)
        session.update(asked, forgotten)
        self.partitions += len(session) - before
        if not session.partitions:
            self.close(session_id)
            return None
        # Used last: it is not among those that are evicted to make room for what it grew by.
        self._sessions[session_id] = self._sessions.pop(session_id)
        session.used_ms = self._now_ms()
        if len(session) > before and not self._fits(0, 0, session.used_ms):
            self.close(session_id)
            return SessionProblem.NOT_FOUND
        session.epoch = next_epoch(epoch)
        return session

    def _make_room(self, size: int, now_ms: int) -> bool:
        """Return whether a new session of *size* partitions has a place; evict others for it if allowed."""
        if size > self._partitions_max or not self.slots:
            return False
        if not self._fits(1, size, now_ms):
            # As in Kafka, one that has fewer partitions gives way unless it is new.
            grown = (each for each in self if now_ms - each.created_ms > EVICTABLE_AFTER_MS)
            smallest = min(grown, key=len, default=None)
            full = len(self) >= self.slots and self.partitions + size <= self._partitions_max
            if smallest is None or len(smallest) >= size or not full:
                return False
            self._evict(smallest)
        return True

    def _fits(self, count: int, size: int, now_ms: int) -> bool:
        """Return whether *count* sessions with *size* partitions more fit; evict unused ones for them."""
        while len(self) + count > self.slots or self.partitions + size > self._partitions_max:
            oldest = next(iter(self), None)
            if oldest is None or now_ms - oldest.used_ms <= EVICTABLE_AFTER_MS:
                return False
            self._evict(oldest)
        return True

    def _evict(self, session: FetchSession) -> None:
        self.close(session.id)
        self.evictions += 1
