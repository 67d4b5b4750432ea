"""The state machine of one transactional id.

Events come in with the time as an argument, actions go out; see `actions`. A change is stored before it takes
effect: an event returns a `StoreTransaction`, and `stored` continues. Until then, other requests are told to
retry, as in Kafka.

::

    EMPTY ─────────────► ONGOING ──► PREPARE_COMMIT ──► COMPLETE_COMMIT
      ▲   first partition   │  end       │  markers
      │                     └────────► PREPARE_ABORT ──► COMPLETE_ABORT
      │                        end, timeout, fencing
      └── a producer begins, from EMPTY and the two COMPLETE states; from these, a first partition makes it
          ONGOING again
"""

from __future__ import annotations

from typing import NamedTuple

from cordwood import tenancy
from cordwood.broker.transactions.actions import (
    ProducerIdentity,
    ProducerIdNeeded,
    Result,
    StoreTransaction,
    Token,
    TransactionEffect,
    TransactionReply,
    WriteMarkers,
)
from cordwood.broker.transactions.state_topic import (
    NO_TIME,
    StoredTransaction,
    TransactionState,
    transaction_key,
    transaction_value,
)
from cordwood.errors import (
    ConcurrentTransactions,
    CordwoodError,
    ProducerFenced,
    ProducerMappingInvalid,
    TransactionStateInvalid,
)
from cordwood.records import TopicPartition

#: The epoch of an id that no producer has yet, and the last epoch where there is none.
NO_EPOCH = -1
#: The largest epoch. No producer gets it, so that the last producer of an id can be fenced.
EPOCH_MAX = 0x7FFF

_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_IDLE = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class _Pending(NamedTuple):
    """A change that is being stored. Without a target, the transactional id is being removed."""

    target: StoredTransaction | None
    last_epoch: int
    token: Token | None = None
    #: The answer once it is stored.
    result: Result = None
    is_fencing: bool = False


class Transaction:
    """A transactional id: its producer and its current transaction. Used by one thread."""

    def __init__(self, transactional_id: str, current: StoredTransaction) -> None:
        self.id = transactional_id
        #: The state that is stored.
        self.current = current
        #: The epoch before the current one, if the same producer asked for the next one; for its retries.
        self.last_epoch = NO_EPOCH
        self._pending: _Pending | None = None
        # Whether the epoch was raised to fence a producer and that could not be stored. The raised epoch was
        # given to no producer, so it is not raised again.
        self._has_fenced = False
        # An epoch that a partition has already, for when a prepared transaction is complete.
        self._epoch_min = NO_EPOCH

    @property
    def state(self) -> TransactionState:
        """The stored state."""
        return self.current.state

    @property
    def identity(self) -> ProducerIdentity:
        """The current producer."""
        return ProducerIdentity(self.current.producer_id, self.current.epoch)

    @property
    def is_changing(self) -> bool:
        """Whether a change is being stored."""
        return self._pending is not None

    @property
    def is_open(self) -> bool:
        """Whether records may be appended: it is ongoing, and nothing is about to end it."""
        if self.state is not TransactionState.ONGOING:
            return False
        pending = self._pending
        return pending is None or (
            pending.target is not None and pending.target.state is TransactionState.ONGOING
        )

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction is decided and waits for its markers."""
        return self.state in _PREPARED

    @property
    def is_unfinished(self) -> bool:
        """Whether the transaction is ongoing, or prepared and without all its markers."""
        return self.state not in _IDLE and self.state is not TransactionState.DEAD

    @property
    def is_new(self) -> bool:
        """Whether no producer was stored for the id yet."""
        return self.current.epoch == NO_EPOCH

    # --- a producer begins ------------------------------------------------------------------------

    def init(
        self,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        fresh_id: int | None,
        token: Token,
        now_ms: int,
    ) -> list[TransactionEffect]:
        """Give the id to a new producer with a new epoch, which fences the one before.

        *expected* is the identity of a producer that goes on after an error: it is fenced if another one has
        begun since. *fresh_id* is a new producer id, for when the epochs of the current one are used up.
        """
        if self._pending is not None:
            return self._refuse_for_now(token)
        current = self.current
        if expected is not None and not self._knows(expected):
            return [TransactionReply(token, self._fenced(expected.epoch))]
        if self.is_prepared:
            return self._refuse_for_now(token)
        if self.state is TransactionState.ONGOING:
            # The producer retries, and gets a further epoch once the transaction before is aborted.
            return self._fence(now_ms, token, self._concurrent())
        begun = current._replace(
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            updated_ms=now_ms,
            started_ms=NO_TIME,
        )
        is_latest = expected is None or self.is_new or expected.epoch == current.epoch
        if is_latest and current.epoch >= EPOCH_MAX - 1:
            if fresh_id is None:
                return [TransactionReply(token, ProducerIdNeeded())]
            begun = begun._replace(producer_id=fresh_id, epoch=0, previous_producer_id=current.producer_id)
        elif is_latest:
            begun = begun._replace(epoch=current.epoch + 1)
        elif expected is not None and expected.epoch == self.last_epoch:
            # A retry of a request whose answer was lost: the same answer again.
            return self._store(begun, self.last_epoch, token, self.identity)
        else:
            assert expected is not None
            return [TransactionReply(token, self._fenced(expected.epoch))]
        last_epoch = NO_EPOCH if expected is None else current.epoch
        return self._store(begun, last_epoch, token, ProducerIdentity(begun.producer_id, begun.epoch))

    def _knows(self, expected: ProducerIdentity) -> bool:
        """Return whether *expected* may be the current producer, or the one before with its last epoch."""
        is_previous = expected.producer_id == self.current.previous_producer_id
        return (
            self.is_new
            or expected.producer_id == self.current.producer_id
            or (is_previous and expected.epoch >= EPOCH_MAX - 1)
        )

    # --- a transaction ----------------------------------------------------------------------------

    def add_partitions(
        self, producer: ProducerIdentity, partitions: frozenset[TopicPartition], token: Token, now_ms: int
    ) -> list[TransactionEffect]:
        """Add partitions to the transaction, and begin one if there is none."""
        error = self._refusal(producer)
        if error is None and self.is_prepared:
            error = self._concurrent()
        if error is not None:
            return [TransactionReply(token, error)]
        current = self.current
        is_ongoing = self.state is TransactionState.ONGOING
        if partitions <= current.partitions and (is_ongoing or not partitions):
            return [TransactionReply(token, None)]
        target = current._replace(
            state=TransactionState.ONGOING,
            partitions=current.partitions | partitions,
            started_ms=current.started_ms if is_ongoing else now_ms,
            updated_ms=now_ms,
        )
        return self._store(target, self.last_epoch, token, None)

    def check(self, producer: ProducerIdentity, partition: TopicPartition) -> CordwoodError | None:
        """Return why *producer* must not append to *partition* in its transaction, or None if it may.

        As in Kafka, a change that is being stored does not count here: `admission` has the last word.
        """
        error = self._foreign(producer)
        if error is None and self.is_prepared:
            error = self._concurrent()
        if error is None and partition not in self.current.partitions:
            shown = tenancy.show_id(self.id)
            error = TransactionStateInvalid(f"the transaction of {shown} does not include this partition")
        return error

    def end(
        self, producer: ProducerIdentity, committed: bool, token: Token, now_ms: int
    ) -> list[TransactionEffect]:
        """Commit or abort the transaction: store the decision, answer, then write the markers."""
        error = self._refusal(producer)
        if error is not None:
            return [TransactionReply(token, error)]
        prepared = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        complete = _complete(prepared)
        if self.state is TransactionState.ONGOING:
            target = self.current._replace(state=prepared, updated_ms=now_ms)
            return self._store(target, self.last_epoch, token, None)
        if self.state is complete:
            return [TransactionReply(token, None)]
        if self.state is prepared:
            return self._refuse_for_now(token)
        wanted = "committed" if committed else "aborted"
        shown = tenancy.show_id(self.id)
        refused = TransactionStateInvalid(
            f"the transaction of {shown} cannot be {wanted}: its state is {self.state.value}"
        )
        return [TransactionReply(token, refused)]

    def time_out(self, now_ms: int) -> list[TransactionEffect]:
        """Abort the transaction and fence its producer if it is open for longer than its timeout."""
        current = self.current
        if self._pending is not None or self.state is not TransactionState.ONGOING:
            return []
        if now_ms - current.started_ms < current.timeout_ms:
            return []
        return self._fence(now_ms)

    def expire(self, before_ms: int) -> list[TransactionEffect]:
        """Remove the id if it is idle and was last used before *before_ms*."""
        if self._pending is not None or self.state not in _IDLE or self.current.updated_ms > before_ms:
            return []
        self._pending = _Pending(None, self.last_epoch)
        return [StoreTransaction(self.id, (transaction_key(self.id), None))]

    # --- what follows -----------------------------------------------------------------------------

    def stored(self, failure: Exception | None) -> list[TransactionEffect]:
        """Continue after the row of a `StoreTransaction` that waits was stored, or could not be stored."""
        pending, self._pending = self._pending, None
        assert pending is not None, "a change was stored that nobody asked for"
        if failure is not None:
            if pending.is_fencing:
                assert pending.target is not None
                self.current = self.current._replace(epoch=pending.target.epoch)
                self.last_epoch, self._has_fenced = NO_EPOCH, True
            return _answer(pending.token, failure)
        if pending.target is None:
            self.current = self.current._replace(state=TransactionState.DEAD)
            return []
        self.current, self.last_epoch = pending.target, pending.last_epoch
        self.check_invariants()
        return [*_answer(pending.token, pending.result), *self.markers_to_write()]

    def markers_to_write(self) -> list[TransactionEffect]:
        """Return the action that writes the markers, if the transaction is prepared."""
        if not self.is_prepared:
            return []
        committed = self.state is TransactionState.PREPARE_COMMIT
        partitions = tuple(sorted(self.current.partitions))
        return [WriteMarkers(self.id, self.identity, committed, partitions)]

    def markers_written(self, now_ms: int) -> list[TransactionEffect]:
        """Complete the transaction: its markers are durable in all its partitions.

        Nobody waits until that is stored. After a crash before it, the markers are written again, which
        changes nothing; and the row of the next transaction comes after this one.
        """
        assert self.is_prepared, "markers were written for a transaction that is not prepared"
        assert self._pending is None, "a prepared transaction is changing"
        self._has_fenced = False
        self.current = self.current._replace(
            epoch=max(self.current.epoch, self._epoch_min),
            state=_complete(self.state),
            partitions=frozenset(),
            updated_ms=now_ms,
        )
        self.check_invariants()
        return [StoreTransaction(self.id, self.row(), waits=False)]

    def raise_epoch(self, epoch: int, now_ms: int) -> list[TransactionEffect]:
        """Raise the epoch to *epoch*, a later one that a partition has: the stored state is an older one.

        An ongoing transaction ended before that epoch began, so it is aborted, with everything that is open
        in its partitions. A prepared one keeps the epoch of its markers, which must not end a later one, and
        gets the new epoch when it is complete.
        """
        assert self._pending is None, "the epoch is raised while it changes"
        assert epoch > self.current.epoch, "the epoch is not raised"
        if self.is_prepared:
            self._epoch_min = epoch
            return []
        if self.state is TransactionState.ONGOING:
            raised = min(epoch + 1, EPOCH_MAX)
            target = self.current._replace(
                epoch=raised, state=TransactionState.PREPARE_ABORT, updated_ms=now_ms
            )
            return self._store(target, NO_EPOCH, None, None, is_fencing=True)
        self.current, self.last_epoch = self.current._replace(epoch=epoch, updated_ms=now_ms), NO_EPOCH
        self.check_invariants()
        return [StoreTransaction(self.id, self.row(), waits=False)]

    def row(self) -> tuple[bytes, bytes]:
        """Return the current state as a record of the internal topic."""
        return transaction_key(self.id), transaction_value(self.current)

    # --- parts ------------------------------------------------------------------------------------

    def _refusal(self, producer: ProducerIdentity) -> CordwoodError | None:
        """Return why a request of *producer* is refused, or None. The order of the checks is Kafka's."""
        error = self._foreign(producer)
        return self._concurrent() if error is None and self._pending is not None else error

    def _foreign(self, producer: ProducerIdentity) -> CordwoodError | None:
        """Return why *producer* is not the current producer of this id, or None if it is."""
        if producer.producer_id != self.current.producer_id or self.is_new:
            return ProducerMappingInvalid(tenancy.show_id(self.id), producer.producer_id)
        if producer.epoch != self.current.epoch:
            return self._fenced(producer.epoch)
        return None

    def _fence(
        self, now_ms: int, token: Token | None = None, result: Result = None
    ) -> list[TransactionEffect]:
        """Abort the ongoing transaction under a raised epoch, so that its producer can do nothing more."""
        current = self.current
        epoch = current.epoch if self._has_fenced else current.epoch + 1
        target = current._replace(epoch=epoch, state=TransactionState.PREPARE_ABORT, updated_ms=now_ms)
        return self._store(target, NO_EPOCH, token, result, is_fencing=True)

    def _store(
        self,
        target: StoredTransaction,
        last_epoch: int,
        token: Token | None,
        result: Result,
        *,
        is_fencing: bool = False,
    ) -> list[TransactionEffect]:
        assert self._pending is None, "two changes at a time"
        assert 0 <= target.epoch <= EPOCH_MAX, "an epoch is out of range"
        self._pending = _Pending(target, last_epoch, token, result, is_fencing)
        return [StoreTransaction(self.id, (transaction_key(self.id), transaction_value(target)))]

    def _refuse_for_now(self, token: Token) -> list[TransactionEffect]:
        return [TransactionReply(token, self._concurrent())]

    def _concurrent(self) -> ConcurrentTransactions:
        return ConcurrentTransactions(tenancy.show_id(self.id))

    def _fenced(self, epoch: int) -> ProducerFenced:
        return ProducerFenced(self.current.producer_id, epoch, self.current.epoch)

    def check_invariants(self) -> None:
        """Check that state and partitions agree. Takes constant time.

        Raises:
            AssertionError: If they do not: a bug in this code.
        """
        current = self.current
        assert not current.partitions or self.state not in _IDLE, "a transaction that ended has partitions"
        assert current.partitions or self.state is not TransactionState.ONGOING, "a transaction of nothing"
        assert self.state is not TransactionState.EMPTY or current.started_ms == NO_TIME, "begun, but empty"
        assert self.last_epoch <= EPOCH_MAX, "an epoch is out of range"


def _complete(prepared: TransactionState) -> TransactionState:
    if prepared is TransactionState.PREPARE_COMMIT:
        return TransactionState.COMPLETE_COMMIT
    return TransactionState.COMPLETE_ABORT


def _answer(token: Token | None, result: Result) -> list[TransactionEffect]:
    return [] if token is None else [TransactionReply(token, result)]
