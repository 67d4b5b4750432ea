"""Consumer groups on the event loop: executes the coordinator's decisions (store, answer, set timers)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from cordwood.broker import Node
from cordwood.broker.groups import (
    Committed,
    Coordinator,
    Effect,
    GroupReply,
    OffsetsRow,
    StoreConsumerRows,
    StoredRows,
    StoreGroup,
    TransactionKey,
    offsets_topic,
)
from cordwood.formats import BatchOptions, batch
from cordwood.host import Clock
from cordwood.records import TopicPartition
from cordwood.server.groups.turns import Turns
from cordwood.server.internal_topic import PLAIN, InternalTopic, RunInThread, WhenStored
from cordwood.server.pipeline import Pipeline

#: The partition of the internal topic that records are appended to.
PARTITION = InternalTopic.PARTITION
#: The interval at which expired offsets are removed.
EXPIRY_SECONDS = 600.0
#: The number of rows that are stored in a turn of the loop after that in which they were made.
_ROWS_OF_LONG_STORE = 500
_LOGGER = logging.getLogger("cordwood.server")


class Groups:
    """The coordinator with its storage and timers. On the loop only."""

    def __init__(
        self,
        coordinator: Coordinator,
        node: Node,
        pipeline: Pipeline,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        run_in_thread: RunInThread,
    ) -> None:
        self.coordinator = coordinator
        self._node = node
        self._pipeline = pipeline
        self._loop = loop
        self._clock = clock
        self._run_in_thread = run_in_thread
        # Timeouts must not depend on changes of the wall clock; stored times should be wall-clock times.
        self._ahead_ms = clock.now_ms() - clock.monotonic_ns() // 1_000_000
        #: Requests of members begin in turns, and are answered in turns.
        self.requests = Turns(loop)
        self._answers = Turns(loop)
        self._stores = Turns(loop)
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False
        self._topic = InternalTopic(offsets_topic.NAME, node, pipeline, run_in_thread, self.now_ms)
        # Transactions that ended while the stored groups were read, whose markers may be missed by the read;
        # None if no read is in progress.
        self._ended: list[tuple[TransactionKey, bool]] | None = None

    def now_ms(self) -> int:
        """Return the time for groups: the wall clock at start plus the elapsed monotonic time."""
        return self._ahead_ms + self._clock.monotonic_ns() // 1_000_000

    # --- beginning and ending ---------------------------------------------------------------------

    def start(self) -> None:
        """Load the stored groups. Until that is done, members are told to retry."""
        self._expiry = self._loop.call_later(EXPIRY_SECONDS, self._expire)
        if self._node.topics.find(offsets_topic.NAME) is None:
            self.coordinator.loaded = True
            return
        self._ended = []
        self._run_in_thread(self._node.read_offsets_topic, self._load)

    def _load(self, stored: object) -> None:
        ended, self._ended = self._ended or [], None
        if isinstance(stored, StoredRows):
            unread = self.coordinator.load_stored(stored, self.now_ms())
            for transaction, committed in ended:
                self.coordinator.transaction_ended(transaction, committed=committed)
            if unread:
                _LOGGER.error("%d records of %s could not be read", unread, offsets_topic.NAME)
            # A crash may have happened after the deletion of a topic and before that of its offsets.
            topics = self._node.topics
            gone = [topic for topic in self.coordinator.topics() if topics.find(topic) is None]
            self.forget_topics(gone, self._loaded)
        else:
            # Without their offsets, groups would start at a wrong position: no group is served.
            _LOGGER.error("consumer groups cannot be served: %s", stored)

    def _loaded(self) -> None:
        self.coordinator.loaded = True
        self._set_alarm()

    def close(self) -> None:
        """Cancel all timers and answer all pending requests."""
        self._closed = True
        self._stores.finish()
        self.perform(self.coordinator.close())
        self._answers.finish()
        for timer in (self._alarm, self._expiry):
            if timer is not None:
                timer.cancel()

    # --- doing what was decided -------------------------------------------------------------------

    def perform(self, effects: Sequence[Effect]) -> None:
        """Execute *effects*: answer requests, store records, and set the timer for the next deadline."""
        for effect in effects:
            try:
                if isinstance(effect, GroupReply):
                    self._answers.run(partial(self._answer, effect))
                elif isinstance(effect, StoreConsumerRows):
                    self._store_rows(effect)
                else:
                    self._store_group(effect)
            except Exception:
                # A bug that affects one member must not keep the other members waiting.
                _LOGGER.exception("a consumer group could not be served")
        self._set_alarm()

    @staticmethod
    def _answer(reply: GroupReply) -> None:
        answer: Callable[[object], None] = reply.token  # type: ignore[assignment]
        answer(reply.result)

    def _store_group(self, effect: StoreGroup) -> None:
        def stored(error: Exception | None) -> None:
            self.perform(
                self.coordinator.stored(
                    effect.group,
                    effect.generation,
                    failed=error is not None,
                    now_ms=self.now_ms(),
                    token=effect.token,
                )
            )

        self.store(effect.rows, stored)

    def _store_rows(self, effect: StoreConsumerRows) -> None:
        def stored(error: Exception | None) -> None:
            if error is not None:
                _LOGGER.error("consumer group %s could not be stored: %s", effect.group, error)
            self.perform(self.coordinator.rows_stored(effect.group, effect.number, failed=error is not None))

        self.store(effect.rows, stored)

    def store(self, rows: Sequence[OffsetsRow], then: WhenStored, options: BatchOptions = PLAIN) -> None:
        """Append *rows* to the internal topic in the order of calls, then call *then* in the same order."""
        if not rows:
            then(None)
        elif self._closed or (len(rows) < _ROWS_OF_LONG_STORE and not self._stores.is_waiting):
            self._topic.store(rows, then, options)
        else:
            # All rows of a large group were made in this turn.
            self._stores.run_later(lambda: self._topic.store(rows, then, options))

    # --- regular expressions ----------------------------------------------------------------------

    def resolved(self, name: str, found: Mapping[str, frozenset[str]] | None, version: int) -> None:
        """Set the topics that regular expressions of a group match; None if they could not be compared."""
        if not self._closed:
            self.perform(self.coordinator.resolved(name, found, version, self.now_ms()))

    # --- transactions -----------------------------------------------------------------------------

    def commit_in_transaction(
        self,
        name: str,
        producer_id: int,
        producer_epoch: int,
        offsets: Mapping[TopicPartition, Committed],
        then: WhenStored,
    ) -> None:
        """Store offsets as part of an open transaction, then call *then*. They count once it is committed.

        The append is refused unless the transaction of the producer includes the internal topic.
        """

        def stored(error: Exception | None) -> None:
            if error is None:
                self.coordinator.pended(name, TransactionKey(producer_id, PARTITION), offsets)
            then(error)

        # As in Kafka, there is no sequence: the producer's own numbers are those of its batches.
        options = BatchOptions(
            attributes=batch.TRANSACTIONAL, producer_id=producer_id, producer_epoch=producer_epoch
        )
        self.store(self.coordinator.rows_to_commit(name, offsets), stored, options)

    def transaction_ended(self, producer_id: int, partition: int, committed: bool) -> None:
        """Apply or drop the offsets of a transaction that ended in *partition* of the internal topic.

        Called when the pipeline reports the marker as stored, and so after it has reported all records that
        come before the marker.
        """
        transaction = TransactionKey(producer_id, partition)
        if self._ended is None:
            self.coordinator.transaction_ended(transaction, committed=committed)
        else:
            self._ended.append((transaction, committed))

    # --- time -------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        deadline = self.coordinator.deadline()
        if self._closed or deadline is None:
            return
        if self._alarm is not None:
            if self._alarm_ms <= deadline:
                return
            self._alarm.cancel()
        self._alarm_ms = deadline
        self._alarm = self._loop.call_later(max(deadline - self.now_ms(), 0) / 1000, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        self.perform(self.coordinator.tick(self.now_ms()))

    def _expire(self) -> None:
        """Delete expired offsets."""
        now_ms = self.now_ms()
        for name, places in self.coordinator.expired(now_ms).items():
            self.drop(name, places)
        for name in self.coordinator.abandoned(now_ms):
            self.delete(name)
        self._expiry = self._loop.call_later(EXPIRY_SECONDS, self._expire)

    # --- deleting ---------------------------------------------------------------------------------

    def drop(self, name: str, places: Iterable[TopicPartition], then: WhenStored | None = None) -> None:
        """Delete offsets of a group."""
        places = list(places)

        def dropped(error: Exception | None) -> None:
            if error is None:
                self.coordinator.dropped(name, places)
            if then is not None:
                then(error)

        self.store(self.coordinator.rows_to_drop(name, places), dropped)

    def delete(self, name: str, then: WhenStored | None = None) -> None:
        """Delete a group without members and its offsets."""
        # Offsets whose commit is in progress are not deleted: their records come before, and stay.
        places = [*self.coordinator.offsets(name), *self.coordinator.pending_of(name)]

        def deleted(error: Exception | None) -> None:
            if error is None:
                self.coordinator.deleted(name, places)
            if then is not None:
                then(error)

        self.store(self.coordinator.rows_to_delete(name), deleted)

    def forget_topics(self, topics: Iterable[str], then: Callable[[], None] | None = None) -> None:
        """Delete all offsets of deleted topics: a new topic of the same name has other records."""
        gone = [item for topic in topics for item in self.coordinator.offsets_of_topic(topic).items()]

        def dropped(error: Exception | None) -> None:
            if error is not None:
                _LOGGER.error("offsets of deleted topics could not be deleted: %s", error)
            for name, places in gone:
                self.coordinator.dropped(name, places)
            if then is not None:
                then()

        self.store([row for item in gone for row in self.coordinator.rows_to_drop(*item)], dropped)
