"""Fetch sessions (KIP-227): the broker stores the partitions of a consumer, and returns only changes.

A consumer names its partitions once. Each later fetch of the session names the partitions whose offset
changed. The answer has the partitions with records, a new high watermark, log start or (for a reader of
committed records) last stable offset, or an error. Without a session, each request and answer of a consumer
of 1,000 partitions has all of them.

A session may end at any time: the consumer then sends a full fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum

from cordwood.broker.fetching import Got, PartitionFetch
from cordwood.broker.leader_epochs import NO_EPOCH
from cordwood.storage.log import Standing

#: The session id that means no session.
NO_SESSION = 0
#: The epochs of a full fetch: to open a session, and without a session.
OPENING, SESSIONLESS = 0, -1
#: As in Kafka, a session that was not used for this long may be evicted for any other session, and a session
#: that is younger than this is not evicted for a larger one.
EVICTABLE_AFTER_MS = 120_000
#: The maximum number of partitions in all sessions of a broker. Each takes about 600 bytes.
PARTITIONS_MAX = 50_000
#: The epoch after this one is 1, because 0 opens a session.
_EPOCH_MAX = 2**31 - 1

TopicRef = str | bytes
"""A topic by its name or, in a session that uses ids, by its id."""
Key = tuple[TopicRef, int]


class SessionProblem(Enum):
    """Why a fetch in a session is refused."""

    NOT_FOUND = "the session does not exist or has ended"
    WRONG_EPOCH = "the session has another epoch"
    WRONG_NAMING = "the session names topics by name and the request by id, or the reverse"


class Asked:
    """One partition of a session: the client's request, and the last state that it was told."""

    __slots__ = ("leader_epoch", "max_bytes", "offset", "partition", "told", "topic", "wish")

    def __init__(
        self, topic: TopicRef, partition: int, offset: int, max_bytes: int, leader_epoch: int = NO_EPOCH
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        #: The offsets that the client knows, or None if it must be told.
        self.told: Standing | None = None
        #: The request under the broker's name of the topic, or None while the topic does not exist.
        self.wish: PartitionFetch | None = None

    @property
    def key(self) -> Key:
        """The key of the partition in its session."""
        return self.topic, self.partition

    def is_news(self, got: Got, *, committed: bool = False) -> bool:
        """Return whether the client must be told of *got*."""
        standing = got.standing(committed=committed)
        return bool(got.frames) or got.error is not None or standing != self.told

    def tell(self, got: Got | None, *, committed: bool = False) -> None:
        """Note that the client is told of *got*, or of a missing topic if *got* is None."""
        # After an error the client is told the offsets again as soon as they are known.
        if got is None or got.error is not None:
            self.told = None
        else:
            self.told = got.standing(committed=committed)


class FetchSession:
    """The session of one consumer. ``epoch`` is the epoch that its next request must have."""

    __slots__ = (
        "by_id",
        "created_ms",
        "epoch",
        "id",
        "owner",
        "partitions",
        "places",
        "resolved_at",
        "used_ms",
    )

    def __init__(
        self, id_: int, asked: Iterable[Asked], *, by_id: bool, now_ms: int, owner: Hashable = None
    ) -> None:
        self.owner = owner
        self.id = id_
        self.by_id = by_id
        self.epoch = OPENING + 1
        self.created_ms = self.used_ms = now_ms
        #: In the order of reading: partitions that returned records most recently are last.
        self.partitions: dict[Key, Asked] = {each.key: each for each in asked}
        #: The state of topics and rights for which the partitions' requests are valid; see `resolve`.
        self.resolved_at: Hashable = None
        self.places: frozenset[tuple[str, int]] | None = None

    def __len__(self) -> int:
        return len(self.partitions)

    def update(self, asked: Iterable[Asked], forgotten: Iterable[Key]) -> None:
        """Add or change partitions, then remove the *forgotten* ones."""
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

    def resolve(self, state: Hashable, find: Callable[[TopicRef], str | None]) -> bool:
        """Look up the topics; return whether one is missing. *find* returns the internal name of a topic.

        *state* is not None, and differs after every change to the topics and to what the client may read.
        While it is the same, only partitions that the client changed, and missing ones, are looked up.
        """
        again = state != self.resolved_at
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
        self.resolved_at = state
        return missing

    def rotate(self, asked: Iterable[Asked]) -> None:
        """Move *asked*, which returned records, to the end of the order, so that no partition starves."""
        for each in asked:
            if self.partitions.pop(each.key, None) is not None:
                self.partitions[each.key] = each


def next_epoch(epoch: int) -> int:
    """Return the epoch of the request after *epoch*."""
    return epoch + 1 if epoch < _EPOCH_MAX else 1


class FetchSessions:
    """The sessions of the clients of one org, at most *slots* of them. One caller at a time.

    *new_id* returns numbers above 0 that are hard to guess, *now_ms* a monotonic time. If *slots* or
    *partitions_max* is 0, no session is ever opened.
    """

    def __init__(
        self,
        slots: int,
        new_id: Callable[[], int],
        now_ms: Callable[[], int],
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self.slots = slots
        #: The number of sessions that were evicted for others.
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

    def close(self, session_id: int, owner: Hashable = None) -> None:
        """End a session, if there is one of *owner*."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            self._remove(session)

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.partitions -= len(session)

    def open(self, asked: Sequence[Asked], *, by_id: bool, owner: Hashable = None) -> int:
        """Open a session with these partitions and return its id, or `NO_SESSION` if there is no room.

        Only requests of *owner* can continue it: others would learn which topics are in it. A request without
        partitions, or with a partition that is named twice, gets no session.
        """
        now_ms = self._now_ms()
        if not asked or not self._make_room(len(asked), now_ms):
            return NO_SESSION
        id_ = self._new_id()
        while id_ in self._sessions or id_ == NO_SESSION:
            id_ = self._new_id()
        session = FetchSession(id_, asked, by_id=by_id, now_ms=now_ms, owner=owner)
        if len(session) != len(asked):
            return NO_SESSION
        self._sessions[id_] = session
        self.partitions += len(session)
        return id_

    def resume(
        self,
        session_id: int,
        epoch: int,
        asked: Sequence[Asked],
        forgotten: Iterable[Key],
        *,
        by_id: bool,
        owner: Hashable = None,
    ) -> FetchSession | SessionProblem | None:
        """Return the session of a request, with the request's changes applied.

        Returns None if the session has no partitions left: it is closed, and the request needs no data.
        """
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            return SessionProblem.NOT_FOUND
        if session.epoch != epoch:
            return SessionProblem.WRONG_EPOCH
        if session.by_id != by_id:
            return SessionProblem.WRONG_NAMING
        before = len(session)
        session.update(asked, forgotten)
        self.partitions += len(session) - before
        if not session.partitions:
            self._remove(session)
            return None
        # Most recently used, so that it is not evicted to make room for its own growth.
        self._sessions[session_id] = self._sessions.pop(session_id)
        session.used_ms = self._now_ms()
        if len(session) > before and not self._fits(0, 0, session.used_ms):
            self._remove(session)
            return SessionProblem.NOT_FOUND
        session.epoch = next_epoch(epoch)
        return session

    def _make_room(self, size: int, now_ms: int) -> bool:
        """Return whether there is room for a session of *size* partitions; evict others if allowed."""
        if size > self._partitions_max or not self.slots:
            return False
        if not self._fits(1, size, now_ms):
            # As in Kafka, a session with fewer partitions is evicted unless it is new.
            grown = (each for each in self if now_ms - each.created_ms > EVICTABLE_AFTER_MS)
            smallest = min(grown, key=len, default=None)
            full = len(self) >= self.slots and self.partitions + size <= self._partitions_max
            if smallest is None or len(smallest) >= size or not full:
                return False
            self._evict(smallest)
        return True

    def _fits(self, count: int, size: int, now_ms: int) -> bool:
        """Return whether *count* more sessions with *size* partitions fit; evict unused sessions."""
        while len(self) + count > self.slots or self.partitions + size > self._partitions_max:
            oldest = next(iter(self), None)
            if oldest is None or now_ms - oldest.used_ms <= EVICTABLE_AFTER_MS:
                return False
            self._evict(oldest)
        return True

    def _evict(self, session: FetchSession) -> None:
        self._remove(session)
        self.evictions += 1
