"""Transactions on the event loop: executes the coordinator's decisions (store, write markers, answer)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from cordwood.broker import (
    NOT_NEEDED,
    Node,
    RecoveredTransactions,
    find_orphans,
    marker_of,
    recover_transactions,
)
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.transactions import (
    NAME,
    StoreTransaction,
    TransactionCoordinator,
    TransactionEffect,
    TransactionReply,
    WriteMarkers,
)
from cordwood.config import BrokerConfig
from cordwood.errors import LogFailed
from cordwood.formats import Marker
from cordwood.records import TopicPartition
from cordwood.server.internal_topic import InternalTopic, RunInThread
from cordwood.server.pipeline import Outcome, Pipeline
from cordwood.server.recompressing import Batch

#: The delay before a marker that could not be written is tried again.
RETRY_SECONDS = 1.0
#: How long a request waits for the markers of the transaction before it.
MARKERS_SECONDS = 0.1
_LOGGER = logging.getLogger("cordwood.server")

TransactionEnded = Callable[[int, int, bool], None]
"""Called with producer id, partition of the offsets topic, and whether it was committed."""
WhenMarked = Callable[[dict[TopicPartition, Exception]], None]
"""Called once markers are durable, with the partitions that failed and their errors."""


class Transactions:
    """The coordinator with its storage and timers. On the loop only."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        node: Node,
        pipeline: Pipeline,
        loop: asyncio.AbstractEventLoop,
        run_in_thread: RunInThread,
        now_ms: Callable[[], int],
        offsets_ended: TransactionEnded,
        config: BrokerConfig,
    ) -> None:
        self.coordinator = coordinator
        #: Returns the time for transactions; see `Groups.now_ms`.
        self.now_ms = now_ms
        self._node = node
        self._pipeline = pipeline
        self._loop = loop
        self._run_in_thread = run_in_thread
        self._offsets_ended = offsets_ended
        self._topic = InternalTopic(NAME, node, pipeline, run_in_thread, now_ms)
        self._time_out_seconds = config.transaction_abort_interval_ms / 1000
        self._expiry_seconds = config.transaction_expiry_interval_ms / 1000
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        #: Whether what an earlier process left is still being finished. Until then no committed record is
        #: read: a power cut may have lost a marker, and with it the end of a transaction that was shown.
        self.is_recovering = False
        self._when_recovered: list[Callable[[], None]] = []
        # The same of partitions whose markers could not be written, by producer id.
        self._unsettled: set[tuple[int, TopicPartition]] = set()
        # Requests that wait until a transaction is complete, by transactional id.
        self._waiting: dict[str, asyncio.Future[None]] = {}

    # --- beginning and ending ---------------------------------------------------------------------

    def start(self) -> None:
        """Load the stored transactions and finish them. Until that is done, producers are told to retry."""
        self.is_recovering = True
        # Read now: the first change of anything on disk clears it.
        is_clean = self._node.directory.lifecycle.is_clean
        coordinator, now_ms = self.coordinator, self.now_ms()
        self._run_in_thread(
            lambda: recover_transactions(coordinator, self._node, now_ms, is_clean=is_clean), self._recovered
        )

    def when_recovered(self, call: Callable[[], None]) -> None:
        """Call *call* once committed records may be read, or when the server closes."""
        if self.is_recovering and not self._closed:
            self._when_recovered.append(call)
        else:
            call()

    def _recovered(self, result: object) -> None:
        if isinstance(result, RecoveredTransactions):
            self._note_unsettled(self._unfinished_places())
        # Also if the states cannot be read: then a transaction that they decide stays open.
        self.is_recovering = False
        self._begin(result)
        self._release()

    def _unfinished_places(self) -> Iterable[tuple[int, TopicPartition]]:
        for effect in self.coordinator.unfinished():
            for place in effect.partitions:
                yield effect.identity.producer_id, place

    def _note_unsettled(self, found: Iterable[tuple[int, TopicPartition]]) -> None:
        self._unsettled.update(found)
        self._node.unsettled = frozenset(place for _, place in self._unsettled)

    def _settle(self, producer_id: int, place: TopicPartition) -> None:
        """Let committed records of *place* be read, unless another transaction there has no marker."""
        if (producer_id, place) in self._unsettled:
            self._unsettled.remove((producer_id, place))
            self._note_unsettled(())

    def _release(self) -> None:
        waiting, self._when_recovered = self._when_recovered, []
        for call in waiting:
            call()

    def _begin(self, result: object) -> None:
        if not isinstance(result, RecoveredTransactions):
            # Without their states, a producer that was fenced could commit: no transaction is served.
            _LOGGER.error("transactions cannot be served: %s", result)
            if isinstance(result, LogFailed):
                self._pipeline.fail(result)
            return
        if any(result):
            finished, orphans = result.finished, result.orphans
            _LOGGER.info("transactions finished at start: %d, aborted as orphans: %d", finished, orphans)
        self.coordinator.loaded = True
        # Those that could not be finished are tried again.
        self.perform(self.coordinator.unfinished())
        self._abort_orphans(result.left)
        self._repeat("time-outs", self._time_out_seconds, self.coordinator.time_out)
        self._repeat("expiry", self._expiry_seconds, self.coordinator.expire)

    def close(self) -> None:
        """Cancel all timers. Requests that wait for a sync are answered by it."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        for transactional_id in list(self._waiting):
            self._wake(transactional_id)
        self._release()

    def _repeat(self, name: str, seconds: float, decide: Callable[[int], list[TransactionEffect]]) -> None:
        """Perform what *decide* returns, every *seconds*."""

        def due() -> None:
            self.perform(decide(self.now_ms()))
            self._repeat(name, seconds, decide)

        if not self._closed:
            self._timers[name] = self._loop.call_later(seconds, due)

    # --- doing what was decided -------------------------------------------------------------------

    def perform(self, effects: Iterable[TransactionEffect]) -> None:
        """Execute *effects*: answer requests, store states and write markers."""
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:
                # A bug that affects one transactional id must not keep the others waiting.
                _LOGGER.exception("a transaction could not be served")

    def _perform(self, effect: TransactionEffect) -> None:
        if isinstance(effect, TransactionReply):
            answer: Callable[[object], None] = effect.token  # type: ignore[assignment]
            answer(effect.result)
        elif isinstance(effect, StoreTransaction):
            self._store(effect)
        else:
            self._write_markers(effect, effect.partitions)

    def _store(self, effect: StoreTransaction) -> None:
        def stored(error: Exception | None) -> None:
            if effect.waits:
                self.perform(self.coordinator.stored(effect.transactional_id, error))
            elif error is not None:
                # The transaction is finished again at the next start, if no other comes before.
                _LOGGER.warning("the end of a transaction could not be noted: %s", error)

        self._topic.store([effect.row], stored, durable=effect.waits)

    def _write_markers(self, effect: WriteMarkers, partitions: Sequence[TopicPartition]) -> None:
        """Write the markers of *partitions*; those that fail are tried again."""

        def written(failures: dict[TopicPartition, Exception]) -> None:
            again = [place for place, error in failures.items() if _is_needed(error)]
            if not again:
                self.perform(self.coordinator.markers_written(effect.transactional_id, self.now_ms()))
                self._wake(effect.transactional_id)
            elif not self._closed:
                place = again[0]
                _LOGGER.warning("a transaction in %s-%d cannot be ended yet: %s", *place, failures[place])
                name = f"markers of {effect.transactional_id}"
                self._timers[name] = self._loop.call_later(RETRY_SECONDS, retry, name, again)

        def retry(name: str, again: Sequence[TopicPartition]) -> None:
            del self._timers[name]
            self._write_markers(effect, again)

        marker = marker_of(effect.identity, committed=effect.committed)
        self.mark([(place, marker) for place in partitions], written)

    def mark(self, markers: Sequence[tuple[TopicPartition, Marker]], then: WhenMarked) -> None:
        """Append markers and sync them, then call *then*. Offsets in the transactions take effect."""

        def done(outcomes: Sequence[Outcome]) -> None:
            failures: dict[TopicPartition, Exception] = {}
            for (place, marker), outcome in zip(markers, outcomes, strict=True):
                if not isinstance(outcome, Exception) or not _is_needed(outcome):
                    self._settle(marker.producer_id, place)
                if isinstance(outcome, Exception):
                    failures[place] = outcome
                elif place[0] == OFFSETS_TOPIC:
                    self._offsets_ended(marker.producer_id, place[1], marker.committed)
            then(failures)

        if not markers:
            then({})
            return
        batches = [Batch(*place, memoryview(b""), marker=marker) for place, marker in markers]
        self._pipeline.submit(batches, -1, done)

    async def until_complete(self, transactional_id: str) -> bool:
        """Wait for a moment while a transaction is prepared; return whether it is complete.

        Its markers need one more sync. A client that is told to retry waits many times longer than that.
        """
        transaction = self.coordinator.find(transactional_id)
        if transaction is None or not transaction.is_prepared or self._closed:
            return False
        waiting = self._waiting.get(transactional_id)
        if waiting is None:
            waiting = self._waiting[transactional_id] = self._loop.create_future()
        await asyncio.wait([waiting], timeout=MARKERS_SECONDS)
        return waiting.done()

    def _wake(self, transactional_id: str) -> None:
        waiting = self._waiting.pop(transactional_id, None)
        if waiting is not None:
            waiting.set_result(None)

    def _abort_orphans(self, orphans: Sequence[tuple[TopicPartition, Marker]]) -> None:
        """Write the markers of *orphans* that are still unknown; those that fail are tried again."""

        def written(failures: dict[TopicPartition, Exception]) -> None:
            again = [each for each in left if _is_needed(failures.get(each[0]))]
            if again and not self._closed:
                (place, _), *_ = again
                _LOGGER.warning("an orphan in %s-%d cannot be ended yet: %s", *place, failures[place])
                name = f"orphans of {place}"
                self._timers[name] = self._loop.call_later(RETRY_SECONDS, self._abort_orphans, again)

        # A producer may have begun a transaction there since.
        known = self.coordinator.open_partitions()
        left = [
            (place, marker)
            for place, marker in orphans
            if not known.includes(marker.producer_id, marker.epoch, place)
        ]
        self.mark(left, written)

    def end_orphans(self, topic: str, partition: int) -> None:
        """Abort transactions of a partition that nobody would end: a truncation removed their end."""
        place = (topic, partition)
        coordinator = self.coordinator

        def found(orphans: object) -> None:
            if isinstance(orphans, list):
                self._abort_orphans(orphans)

        if coordinator.loaded:
            known = coordinator.open_partitions()
            self._run_in_thread(lambda: list(find_orphans(known, self._node, [place])), found)


def _is_needed(error: Exception | None) -> bool:
    """Return whether a marker that failed with *error* must be written later."""
    return error is not None and not isinstance(error, NOT_NEEDED)
