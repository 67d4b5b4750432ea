"""The transactions of a log without a server: the coordinator, driven in the threads of its callers.

A transactional id is used by one transaction at a time. What the coordinator asks to store is stored only
where something depends on it:

- Its batches are appended and synced, without a stored state. A crash leaves batches of a transaction that
  nobody knows, and opening the log aborts it.
- The decision is stored and synced. From then on the transaction is committed.
- The markers are appended, which makes it visible, and are synced later: with the batches of the next
  transaction of the id, in the background, or when the log is closed. Only then may the decision be replaced
  by another state, because a power cut may lose markers, and the decision is what writes them again.

A marker that is written again must not end the next transaction. So every transaction has an epoch of its
own, and every process a producer id of its own.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from threading import Condition
from typing import TYPE_CHECKING

from cordwood.broker import NOT_NEEDED, Node, marker_of, recover_transactions
from cordwood.broker.transactions import (
    NAME,
    TEXT_BYTES_MAX,
    ProducerIdentity,
    ProducerIdNeeded,
    Result,
    StateRow,
    StoreTransaction,
    TransactionCoordinator,
    TransactionEffect,
    TransactionLimits,
    TransactionReply,
    WriteMarkers,
)
from cordwood.config import BrokerConfig
from cordwood.embedded.committing import TransactionCommit
from cordwood.embedded.transaction import LogTransaction, text_bytes
from cordwood.errors import (
    ConcurrentTransactions,
    CordwoodError,
    InvalidSetting,
    LogFailed,
    StorageError,
    TransactionStateInvalid,
    TransactionTimeoutInvalid,
)
from cordwood.formats import Marker
from cordwood.host import Clock
from cordwood.records import TopicPartition
from cordwood.storage.directory import DataDirectory
from cordwood.storage.log import WritablePartition

if TYPE_CHECKING:
    from cordwood.embedded.log import Log

Syncs = Mapping[WritablePartition, int]
"""The offset up to which each partition must be synced."""

_LOGGER = logging.getLogger("cordwood.embedded")
_NANOSECONDS = 1_000_000
#: Later than every time at which a transaction can have begun.
_FAR_FUTURE_MS = 1 << 62
_REQUEST = object()
#: How many transactional ids are kept after their last transaction has ended. The next transaction of an id
#: that is kept has the same producer, so that partitions need not know more producers than there are ids.
IDS_KEPT = 1000


class TransactionalId:
    """A transactional id that this process uses. Changed with the guard held, or by who made it *busy*."""

    def __init__(self, transactional_id: str) -> None:
        self.id = transactional_id
        self.owner: LogTransaction | None = None
        self.begun_ns = 0
        #: Whether a thread is committing, or finishing what a commit has left.
        self.busy = False
        #: The producer of the last transaction that was written; None before the first one of this process.
        self.producer: ProducerIdentity | None = None
        #: Whether batches were appended that have no decision: they have to be aborted.
        self.is_undecided = False
        #: Whether the last stored state is a decision, which has to be replaced once its markers are synced.
        self.is_prepared = False
        #: The marker of the last decision, the partitions that do not have it, and those that must be synced.
        self.marker: Marker | None = None
        self.unmarked: list[TopicPartition] = []
        self.unsynced: dict[WritablePartition, int] = {}

    @property
    def is_unfinished(self) -> bool:
        """Whether anything is left to do for the last transaction."""
        return self.is_undecided or self.is_prepared or bool(self.unmarked or self.unsynced)


class LogTransactions:
    """All transactional ids of an open log. Every method may be called from any thread."""

    def __init__(self, directory: DataDirectory, config: BrokerConfig, clock: Clock) -> None:
        self.node = Node(directory, config)
        self._directory = directory
        self._clock = clock
        self._limits = TransactionLimits(
            config.transaction_max_timeout_ms, config.transactional_id_expiration_ms
        )
        self._coordinator = TransactionCoordinator(self._limits, self.node.admission)
        #: In the order of their last transactions, oldest first, as far as they are not in use.
        self._ids: dict[str, TransactionalId] = {}
        #: Notified when an id is no longer busy. Held for the coordinator, and never while the disk is used.
        self._guard = Condition()
        self._is_closed = False
        self._failure: StorageError | None = None

    def now_ms(self) -> int:
        """Return the time of the wall clock."""
        return self._clock.now_ms()

    # --- opening and closing ----------------------------------------------------------------------

    def recover(self, *, is_clean: bool) -> None:
        """Finish what an earlier process has decided and abort everything else. Durable on return.

        Raises:
            LogFailed: If a sync failed. If a state cannot be read, only transactions are refused.
        """
        coordinator, now_ms = self._coordinator, self.now_ms()
        try:
            recover_transactions(coordinator, self.node, now_ms, is_clean=is_clean)
            # The processes that began these are gone.
            self._perform(coordinator.time_out(_FAR_FUTURE_MS))
            self._perform(coordinator.expire(now_ms))
        except LogFailed:
            raise
        except StorageError as error:
            _LOGGER.error("transactions cannot be used: %s", error)
            self._failure = error
        coordinator.loaded = True

    def _perform(self, effects: Iterable[TransactionEffect]) -> None:
        """Do what the coordinator asks for, with a sync for each step. Before any other thread is there."""
        for effect in effects:
            if isinstance(effect, StoreTransaction):
                self.sync(self.store(effect.row))
                if effect.waits:
                    self._perform(self._coordinator.stored(effect.transactional_id, None))
            elif isinstance(effect, WriteMarkers):
                known = TransactionalId(effect.transactional_id)
                self.use_decision(known, effect)
                self.write_markers(known)
                self.sync(known.unsynced)
                self._perform(self._coordinator.markers_written(known.id, self.now_ms()))

    def finish_all(self, *, wait: bool = False) -> bool:
        """Finish what commits have left: markers are synced, and then their decisions replaced.

        Ids that are busy are left out, unless told to *wait*. Returns whether nothing is left.
        """
        is_finished = True
        with self._guard:
            found = list(self._ids.values())
        for known in found:
            with self._guard:
                while wait and known.busy:
                    self._guard.wait()
                if known.busy or not known.is_unfinished:
                    is_finished &= not known.busy
                    continue
                known.busy = True
            is_finished &= self._finish_quietly(known)
        return is_finished

    def _finish_quietly(self, known: TransactionalId) -> bool:
        """Finish an id that is busy, and release it. Returns whether nothing is left."""
        try:
            self.finish(known)
        except CordwoodError as error:
            if not isinstance(error, LogFailed):
                _LOGGER.warning("a transaction of %s is not finished yet: %s", known.id, error)
            return False
        finally:
            self.release(known)
        return True

    def finish_oldest(self) -> None:
        """Finish what commits of the oldest ids have left, if too many ids are kept; `begin` forgets them.

        Takes constant time: two ids at most, for each one that is added. In a log without a thread in the
        background nobody else does it.
        """
        for _ in range(2):
            with self._guard:
                known = self._take_oldest()
                if known is None or known.busy or not known.is_unfinished:
                    continue
                known.busy = True
            self._finish_quietly(known)

    def _take_oldest(self) -> TransactionalId | None:
        """Return the oldest id if too many are kept, and make it the newest. With the guard held."""
        if len(self._ids) <= IDS_KEPT:
            return None
        known = self._ids.pop(next(iter(self._ids)))
        self._ids[known.id] = known
        return known

    def _forget_oldest(self) -> None:
        """Forget the oldest ids that have nothing left to do, if too many are kept. With the guard held.

        Their stored states stay, until they expire. The next transaction of such an id gets a new producer.
        """
        for _ in range(2):
            known = self._take_oldest()
            if known is None or known.owner is not None or known.busy or known.is_unfinished:
                continue
            del self._ids[known.id]
            if known.producer is not None:
                self._coordinator.forget(known.id)

    def close(self) -> None:
        """Wait for commits that are under way, finish all transactions and refuse every later call.

        Does nothing in a forked child. What cannot be finished is left to the next open.
        """
        with contextlib.suppress(CordwoodError):
            self._directory.lifecycle.check_open()
            with self._guard:
                self._is_closed = True
            if not self.finish_all(wait=True):
                self._directory.lifecycle.has_leftovers = True

    # --- transactions -----------------------------------------------------------------------------

    def begin(self, log: Log, transactional_id: str, timeout_ms: int) -> LogTransaction:
        """Return a new transaction; see `Log.transaction`. Touches the disk only at the first call."""
        self._check_usable()
        size = text_bytes(transactional_id) if isinstance(transactional_id, str) else None
        if size is None or not 1 <= size <= TEXT_BYTES_MAX:
            expected = f"a text of 1 to {TEXT_BYTES_MAX} bytes"
            shown = f"{transactional_id[:80]}…" if size is not None and size > 80 else transactional_id
            raise InvalidSetting("transactional.id", shown, expected)
        if type(timeout_ms) is not int:
            raise InvalidSetting("timeout_ms", timeout_ms, "a whole number of milliseconds")
        if not 0 < timeout_ms <= self._limits.timeout_max_ms:
            raise TransactionTimeoutInvalid(timeout_ms, self._limits.timeout_max_ms)
        # Before any batch: an open transaction is looked for only where there is a topic of states.
        self.node.topics.ensure_internal(NAME)
        transaction = LogTransaction(log, self, transactional_id, timeout_ms)
        with self._guard:
            known = self._use(transactional_id)
            while known.busy:
                # A commit that is under way ends soon.
                self._guard.wait()
                # It may have been forgotten meanwhile.
                known = self._use(transactional_id)
            if known.owner is not None and not self._is_timed_out(known, known.owner):
                raise TransactionStateInvalid(
                    f"the transactional id {transactional_id} has an open transaction"
                )
            known.owner, known.begun_ns = transaction, self._clock.monotonic_ns()
            self._forget_oldest()
        return transaction

    def _use(self, transactional_id: str) -> TransactionalId:
        """Return an id, the newest from now on. With the guard held."""
        known = self._ids.pop(transactional_id, None) or TransactionalId(transactional_id)
        self._ids[transactional_id] = known
        return known

    def drop(self, transaction: LogTransaction) -> None:
        """Abort a transaction of which nothing was written."""
        transaction.ended = "aborted"
        with self._guard:
            known = self._ids.get(transaction.id)
            if known is not None and known.owner is transaction:
                known.owner = None

    def withdraw(self, transaction: LogTransaction) -> None:
        """Abort a transaction whose commit was cancelled. A commit that has begun is finished instead."""
        with self._guard:
            known = self._ids.get(transaction.id)
            if known is None or known.owner is not transaction or known.busy:
                return
            known.owner = None
        transaction.ended = "aborted"

    def commit(self, transaction: LogTransaction) -> None:
        """Commit in the thread of the caller; see `LogTransaction.commit`."""
        commit = self.begin_commit(transaction)
        try:
            self.sync(commit.write())
            self.sync(commit.decide())
        except BaseException as error:
            commit.fail(error)
            raise
        commit.complete()

    def begin_commit(self, transaction: LogTransaction) -> TransactionCommit:
        """Return the steps of a commit, which makes the id busy.

        Raises:
            TransactionStateInvalid: If it is too late for it. It is aborted.
        """
        try:
            self._check_usable()
            with self._guard:
                known = self._ids.get(transaction.id)
                while known is not None and known.busy:
                    self._guard.wait()
                if known is None or known.owner is not transaction:
                    raise TransactionStateInvalid(
                        f"another transaction has taken over the transactional id {transaction.id}"
                    )
                if self._is_timed_out(known, transaction):
                    raise TransactionStateInvalid(
                        f"the transaction of {known.id} is open for longer than its timeout of "
                        f"{transaction.timeout_ms} ms"
                    )
                known.busy = True
        except BaseException:
            self.drop(transaction)
            raise
        return TransactionCommit(self, transaction, known)

    def _is_timed_out(self, known: TransactionalId, transaction: LogTransaction) -> bool:
        elapsed_ns = self._clock.monotonic_ns() - known.begun_ns
        return elapsed_ns > transaction.timeout_ms * _NANOSECONDS

    def _check_usable(self) -> None:
        # First, because in a forked child the guard may be held by a thread that is not there.
        self._directory.lifecycle.check_open()
        if self._failure is not None:
            raise self._failure

    # --- steps of a commit ------------------------------------------------------------------------

    def new_producer(self, known: TransactionalId, timeout_ms: int) -> ProducerIdentity:
        """Return the producer of the next transaction, with an epoch that no other transaction has.

        Raises:
            ConcurrentTransactions: If a transaction of an earlier process could not be finished.
            StorageError: If a producer id could not be reserved.
        """
        coordinator = self._coordinator
        with self._guard:
            found = coordinator.find(known.id)
            if found is not None and known.producer is None:
                if found.is_unfinished:
                    raise ConcurrentTransactions(known.id)
                coordinator.forget(known.id)
            elif found is not None and found.is_prepared:
                # Not stored: until its markers are synced, its decision must stay.
                coordinator.markers_written(known.id, self.now_ms())
        result = self._init(known, timeout_ms, None)
        if isinstance(result, ProducerIdNeeded):
            result = self._init(known, timeout_ms, self.node.new_producer_id())
        assert isinstance(result, ProducerIdentity), f"no producer, but {result!r}"
        known.producer = result
        return result

    def _init(self, known: TransactionalId, timeout_ms: int, fresh_id: int | None) -> Result:
        with self._guard:
            return self._answer(
                self._coordinator.init(known.id, timeout_ms, None, fresh_id, _REQUEST, self.now_ms())
            )

    def open(self, known: TransactionalId, places: Iterable[TopicPartition]) -> None:
        """Let the batches of the transaction be appended to *places*."""
        assert known.producer is not None
        with self._guard:
            self._answer(
                self._coordinator.add_partitions(known.id, known.producer, places, _REQUEST, self.now_ms())
            )

    def decide(self, known: TransactionalId, *, committed: bool) -> StateRow:
        """Return the decision to store; `decided` must follow. No more batches are admitted."""
        assert known.producer is not None
        with self._guard:
            effects = self._coordinator.end(known.id, known.producer, committed, _REQUEST, self.now_ms())
            (effect,) = effects
            assert isinstance(effect, StoreTransaction), f"no decision, but {effect!r}"
            return effect.row

    def decided(self, known: TransactionalId, failure: BaseException | None) -> None:
        """Continue after the decision was stored and synced, or could not be."""
        with self._guard:
            error = RuntimeError(str(failure)) if failure is not None else None
            for effect in self._coordinator.stored(known.id, error):
                if isinstance(effect, WriteMarkers):
                    self.use_decision(known, effect)

    def use_decision(self, known: TransactionalId, effect: WriteMarkers) -> None:
        """Note which markers are to be written."""
        known.is_undecided, known.is_prepared = False, True
        known.marker = marker_of(effect.identity, committed=effect.committed)
        known.unmarked = list(effect.partitions)

    def _answer(self, effects: Iterable[TransactionEffect]) -> Result:
        """Return the answer of the coordinator, which is told that its states are stored though they are not.

        Raises:
            CordwoodError: If the answer is an error.
        """
        for effect in effects:
            if isinstance(effect, StoreTransaction):
                return self._answer(self._coordinator.stored(effect.transactional_id, None))
            if isinstance(effect, TransactionReply):
                if isinstance(effect.result, Exception):
                    raise effect.result
                return effect.result
        raise AssertionError("the coordinator has no answer")

    # --- the disk ---------------------------------------------------------------------------------

    def store(self, row: StateRow) -> Syncs:
        """Append a state; return what to sync."""
        log = self._directory.partitions.writable(NAME, 0)
        return {log: log.append([row]).next_offset}

    def sync(self, syncs: Syncs) -> None:
        """Sync partitions; other threads that wait for the same share the sync."""
        for log, next_offset in syncs.items():
            log.commit(next_offset)

    def write_markers(self, known: TransactionalId) -> None:
        """Append the markers that are missing: the transaction becomes visible, or is out of the way.

        Raises:
            StorageError: If one could not be written. The others were.
        """
        assert known.marker is not None
        failure: StorageError | None = None
        for place in list(known.unmarked):
            try:
                placed = self.node.append_marker(*place, known.marker)
                known.unsynced[placed.log] = placed.next_offset
            except NOT_NEEDED as error:
                _LOGGER.debug("the end of a transaction is not written to %s-%d: %s", *place, error)
            except StorageError as error:
                failure = error
                continue
            known.unmarked.remove(place)
        if failure is not None:
            raise failure

    def finish(self, known: TransactionalId) -> None:
        """Abort what has no decision, write and sync markers, and replace the decision. The id is busy.

        Raises:
            StorageError: If that is not possible now.
        """
        if known.is_undecided:
            self._abort(known)
        if known.unmarked:
            self.write_markers(known)
        self.sync(known.unsynced)
        known.unsynced = {}
        if known.is_prepared:
            with self._guard:
                found = self._coordinator.find(known.id)
                assert found is not None, "a transaction was decided that is not known"
                if found.is_prepared:
                    self._coordinator.markers_written(known.id, self.now_ms())
                row = found.row()
            self.store(row)
            known.is_prepared = False

    def _abort(self, known: TransactionalId) -> None:
        """Decide that a transaction is aborted. Its markers are to be written then."""
        # The decision before is replaced, so its markers come first.
        self.sync(known.unsynced)
        known.unsynced = {}
        row = self.decide(known, committed=False)
        try:
            self.sync(self.store(row))
        except BaseException as error:
            self.decided(known, error)
            raise
        self.decided(known, None)

    def release(self, known: TransactionalId, transaction: LogTransaction | None = None) -> None:
        """Make an id free for the next thread, and for the next transaction."""
        with self._guard:
            known.busy = False
            if transaction is not None and known.owner is transaction:
                known.owner = None
            self._guard.notify_all()
