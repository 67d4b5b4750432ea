"""Consumer groups on the event loop: executes the coordinator's decisions (store, answer, set timers)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from cordwood.broker import OFFSETS_PARTITIONS, Node, Placed, last_rows
from cordwood.broker.groups import Coordinator, Effect, GroupReply, OffsetsRow, StoreGroup, offsets_topic
from cordwood.errors import CordwoodError
from cordwood.formats import encode_records
from cordwood.host import Clock
from cordwood.records import TopicPartition
from cordwood.server.pipeline import Outcome, Pipeline
from cordwood.server.recompressing import Batch

#: The interval at which expired offsets are removed.
EXPIRY_SECONDS = 600.0
_LOGGER = logging.getLogger("cordwood.server")
Then = Callable[[Exception | None], None]
"""Called once records are stored, with the error or None."""
RunGroupWork = Callable[[Callable[[], object], Callable[[object], None]], None]


class Groups:
    """The coordinator with its storage and timers. On the loop only."""

    def __init__(
        self,
        coordinator: Coordinator,
        node: Node,
        pipeline: Pipeline,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        run_in_thread: RunGroupWork,
    ) -> None:
        self.coordinator = coordinator
        self._node = node
        self._pipeline = pipeline
        self._loop = loop
        self._clock = clock
        self._run_in_thread = run_in_thread
        # Timeouts must not depend on changes of the wall clock; stored times should be wall-clock times.
        self._ahead_ms = clock.now_ms() - clock.monotonic_ns() // 1_000_000
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False
        # Records to store once the topic is created, in order; None if no creation is in progress.
        self._held: list[tuple[Sequence[OffsetsRow], Then]] | None = None

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
        self._run_in_thread(self._read_all, self._load)

    def _read_all(self) -> list[OffsetsRow]:
        return last_rows(self._node.read_rows(offsets_topic.NAME))

    def _load(self, rows: object) -> None:
        if isinstance(rows, list):
            unread = self.coordinator.load(rows, self.now_ms())
            if unread:
                _LOGGER.error("%d records of %s could not be read", unread, offsets_topic.NAME)
            # A crash may have happened after the deletion of a topic and before that of its offsets.
            topics = self._node.topics
            gone = [topic for topic in self.coordinator.topics() if topics.find(topic) is None]
            self.forget_topics(gone, self._loaded)
        else:
            # Without their offsets, groups would start at a wrong position: no group is served.
            _LOGGER.error("consumer groups cannot be served: %s", rows)

    def _loaded(self) -> None:
        self.coordinator.loaded = True
        self._set_alarm()

    def close(self) -> None:
        """Cancel all timers and answer all pending requests."""
        self._closed = True
        self.perform(self.coordinator.close())
        for timer in (self._alarm, self._expiry):
            if timer is not None:
                timer.cancel()

    # --- doing what was decided -------------------------------------------------------------------

    def perform(self, effects: Sequence[Effect]) -> None:
        """Execute *effects*: answer requests, store records, and set the timer for the next deadline."""
        for effect in effects:
            try:
                if isinstance(effect, GroupReply):
                    answer: Callable[[object], None] = effect.token  # type: ignore[assignment]
                    answer(effect.result)
                else:
                    self._store_group(effect)
            except Exception:
                # A bug that affects one member must not keep the other members waiting.
                _LOGGER.exception("a consumer group could not be served")
        self._set_alarm()

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

    def store(self, rows: Sequence[OffsetsRow], then: Then) -> None:
        """Append *rows* to the internal topic in the order of calls, then call *then*."""
        if not rows:
            then(None)
        elif self._held is not None:
            self._held.append((rows, then))
        elif self._node.topics.find(offsets_topic.NAME) is None:
            self._held = [(rows, then)]
            self._run_in_thread(self._node.topics.ensure_internal, self._made)
        else:
            self._append(rows, then)

    def _made(self, made: object) -> None:
        held, self._held = self._held or [], None
        for rows, then in held:
            if isinstance(made, Exception):
                then(made)
            else:
                self._append(rows, then)

    def _append(self, rows: Sequence[OffsetsRow], then: Then) -> None:
        def done(outcomes: Sequence[Outcome]) -> None:
            (outcome,) = outcomes
            then(None if isinstance(outcome, Placed) else outcome)

        try:
            data = memoryview(encode_records(rows, self.now_ms()))
        except CordwoodError as error:
            then(error)
            return
        self._pipeline.submit([Batch(offsets_topic.NAME, OFFSETS_PARTITIONS - 1, data)], -1, done)

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

    def drop(self, name: str, places: Iterable[TopicPartition], then: Then | None = None) -> None:
        """Delete offsets of a group."""
        places = list(places)

        def dropped(error: Exception | None) -> None:
            if error is None:
                self.coordinator.dropped(name, places)
            if then is not None:
                then(error)

        self.store(self.coordinator.rows_to_drop(name, places), dropped)

    def delete(self, name: str, then: Then | None = None) -> None:
        """Delete a group without members and its offsets."""
        # Offsets whose commit is in progress are not deleted: their records come before, and stay.
        places = list(self.coordinator.offsets(name))

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
