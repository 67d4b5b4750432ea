"""All transactional ids of a broker, with their stored state.

Like `transaction`: events in, effects out, time as an argument. It does no input or output, so that a server
can drive it from its event loop and the library in the thread of its caller. One thread at a time may use it;
only `admission` is for all threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from cordwood import tenancy
from cordwood.broker.transactions.actions import (
    ProducerIdentity,
    ProducerIdNeeded,
    StoreTransaction,
    Token,
    TransactionEffect,
    TransactionReply,
    WriteMarkers,
)
from cordwood.broker.transactions.admission import Admission
from cordwood.broker.transactions.state_topic import (
    NO_TIME,
    StateRow,
    StoredTransaction,
    TransactionState,
    decode_key,
    decode_value,
)
from cordwood.broker.transactions.transaction import NO_EPOCH, Transaction
from cordwood.errors import CordwoodError, ProducerMappingInvalid, TransactionTimeoutInvalid
from cordwood.records import TopicPartition

#: The states that are stored.
_STORED = frozenset(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE}


class TransactionLimits(NamedTuple):
    """The longest timeout of a transaction, and how long an unused transactional id is kept."""

    timeout_max_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 3_600_000


class OpenPartitions:
    """What ongoing and prepared transactions include, as of one moment. For any thread.

    A transaction that is open in a partition and not here is an orphan: nobody would end it.
    """

    def __init__(self, unfinished: Iterable[Transaction]) -> None:
        self._epochs: dict[tuple[int, TopicPartition], tuple[int, int]] = {}
        for each in unfinished:
            producer_id, last = each.identity
            first = 0 if each.state is TransactionState.PREPARE_ABORT else last
            for partition in each.current.partitions:
                self._epochs[producer_id, partition] = first, last

    def includes(self, producer_id: int, epoch: int, partition: TopicPartition) -> bool:
        """Return whether a transaction that is open in *partition* under *epoch* is known.

        The batches of a transaction have its epoch. One that is being aborted may have a later epoch, because
        its producer was fenced; it is none of its transactions that has a later epoch still.
        """
        first, last = self._epochs.get((producer_id, partition), (0, NO_EPOCH))
        return first <= epoch <= last


class TransactionCoordinator:
    """The coordinator of all transactional ids. Used by one thread at a time."""

    def __init__(self, limits: TransactionLimits, admission: Admission | None = None) -> None:
        """Create a coordinator. *admission* is what the logs ask; without one, nothing is appended."""
        self.limits = limits
        #: Whether the stored state is loaded and everything that was left open is finished.
        self.loaded = False
        #: The check of every transactional batch.
        self.admission = admission or Admission()
        self._transactions: dict[str, Transaction] = {}
        #: Those that are ongoing or prepared: timeouts are looked for among them.
        self._unfinished: dict[str, Transaction] = {}

    # --- loading ----------------------------------------------------------------------------------

    def load(self, rows: Iterable[StateRow], now_ms: int) -> int:
        """Load records of the internal topic in their order; return the number that cannot be decoded.

        If there are any, no transaction may be served: one of them may be a commit that was answered.
        """
        unread = 0
        for key, value in rows:
            try:
                self._load(key, value, now_ms)
            except ValueError:
                unread += 1
        return unread

    def _load(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        transactional_id = decode_key(key)
        if transactional_id is None:
            return
        before = self._transactions.pop(transactional_id, None)
        if before is not None:
            self._unfinished.pop(transactional_id, None)
            self.admission.forget(before.current.producer_id)
        if value is None:
            return
        stored = decode_value(value)
        if stored.state not in _STORED:
            raise ValueError(f"state {stored.state.value} is never stored")
        # The wall clock may have been set back since: a timeout begins again at most.
        stored = stored._replace(
            started_ms=min(stored.started_ms, now_ms), updated_ms=min(stored.updated_ms, now_ms)
        )
        transaction = Transaction(transactional_id, stored)
        self._transactions[transactional_id] = transaction
        self._note(transaction)

    def unfinished(self) -> list[WriteMarkers]:
        """Return the markers to write for transactions that were prepared and not completed."""
        return [
            effect
            for transaction in self._unfinished.values()
            for effect in transaction.markers_to_write()
            if isinstance(effect, WriteMarkers)
        ]

    def open_partitions(self) -> OpenPartitions:
        """Return what ongoing and prepared transactions include now."""
        return OpenPartitions(self._unfinished.values())

    # --- requests ---------------------------------------------------------------------------------

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        fresh_id: int | None,
        token: Token,
        now_ms: int,
    ) -> list[TransactionEffect]:
        """Give a transactional id to a producer; the answer is its `ProducerIdentity`.

        The answer is `ProducerIdNeeded` if the id is new, or its epochs are used up, and there is no
        *fresh_id*. See `Transaction.init`.
        """
        if not 0 < timeout_ms <= self.limits.timeout_max_ms:
            error = TransactionTimeoutInvalid(timeout_ms, self.limits.timeout_max_ms)
            return [TransactionReply(token, error)]
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            if fresh_id is None:
                return [TransactionReply(token, ProducerIdNeeded())]
            new = StoredTransaction(
                fresh_id, NO_EPOCH, timeout_ms, TransactionState.EMPTY, frozenset(), now_ms, NO_TIME
            )
            transaction = self._transactions[transactional_id] = Transaction(transactional_id, new)
        return self._noted(transaction, transaction.init(timeout_ms, expected, fresh_id, token, now_ms))

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        token: Token,
        now_ms: int,
    ) -> list[TransactionEffect]:
        """Add partitions to the transaction of a producer; begin one if there is none."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return _unmapped(transactional_id, producer, token)
        effects = transaction.add_partitions(producer, frozenset(partitions), token, now_ms)
        return self._noted(transaction, effects)

    def check(
        self, transactional_id: str, producer: ProducerIdentity, partition: TopicPartition
    ) -> CordwoodError | None:
        """Return why a producer must not append to a partition, or None; see `Transaction.check`."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return ProducerMappingInvalid(tenancy.show_id(transactional_id), producer.producer_id)
        return transaction.check(producer, partition)

    def end(
        self, transactional_id: str, producer: ProducerIdentity, committed: bool, token: Token, now_ms: int
    ) -> list[TransactionEffect]:
        """Commit or abort the transaction of a producer."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return _unmapped(transactional_id, producer, token)
        return self._noted(transaction, transaction.end(producer, committed, token, now_ms))

    # --- what follows -----------------------------------------------------------------------------

    def stored(self, transactional_id: str, failure: Exception | None) -> list[TransactionEffect]:
        """Continue after the row of a `StoreTransaction` that waits was stored, or could not be stored."""
        transaction = self._transactions[transactional_id]
        before = transaction.current.producer_id
        effects = transaction.stored(failure)
        if transaction.current.producer_id != before:
            self.admission.forget(before)
        if transaction.is_new or transaction.state is TransactionState.DEAD:
            del self._transactions[transactional_id]
            self.admission.forget(before)
            return effects
        return self._noted(transaction, effects)

    def markers_written(self, transactional_id: str, now_ms: int) -> list[TransactionEffect]:
        """Continue after the markers of a `WriteMarkers` are durable."""
        transaction = self._transactions[transactional_id]
        return self._noted(transaction, transaction.markers_written(now_ms))

    def _noted(self, transaction: Transaction, effects: list[TransactionEffect]) -> list[TransactionEffect]:
        self._note(transaction)
        return effects

    def _note(self, transaction: Transaction) -> None:
        """Make the lookups agree with the state of a transaction."""
        current = transaction.current
        if transaction.is_open:
            self.admission.open(current.producer_id, current.epoch, current.partitions)
        else:
            self.admission.close(current.producer_id, current.epoch)
        if transaction.is_unfinished:
            self._unfinished[transaction.id] = transaction
        else:
            self._unfinished.pop(transaction.id, None)
        self.check_invariants(transaction.id)

    def check_invariants(self, changed: str) -> None:
        """Check the transactional id *changed*. Takes constant time.

        Raises:
            AssertionError: If the lookups do not agree: a bug in this code.
        """
        transaction = self._transactions[changed]
        assert transaction.id == changed, "a transaction is kept under another id"
        is_watched = changed in self._unfinished
        assert is_watched == transaction.is_unfinished, (
            "an open transaction is not watched, or a closed one is"
        )

    # --- time -------------------------------------------------------------------------------------

    def time_out(self, now_ms: int) -> list[TransactionEffect]:
        """Abort the transactions that are open for longer than their timeouts."""
        return [
            effect
            for transaction in list(self._unfinished.values())
            for effect in self._noted(transaction, transaction.time_out(now_ms))
        ]

    def expire(self, now_ms: int) -> list[TransactionEffect]:
        """Remove the transactional ids that were not used for the time that the limits allow."""
        before_ms = now_ms - self.limits.expiration_ms
        return [
            effect
            for transaction in list(self._transactions.values())
            for effect in transaction.expire(before_ms)
        ]

    def ages(self, now_ms: int) -> list[int]:
        """Return for how many milliseconds each transaction that has not ended is open."""
        return [max(0, now_ms - each.current.started_ms) for each in self._unfinished.values()]

    # --- ids that have no producer ----------------------------------------------------------------

    def forget(self, transactional_id: str) -> None:
        """Forget an id whose transaction has ended: its next producer gets a new producer id.

        Stores nothing, so the stored state is valid until the next one is stored.
        """
        known = self._transactions.get(transactional_id)
        if known is not None:
            assert not known.is_unfinished, "a transaction that has not ended is forgotten"
            del self._transactions[transactional_id]
            self.admission.forget(known.current.producer_id)

    def raise_epochs(self, found: Mapping[int, int], now_ms: int) -> list[StoreTransaction]:
        """Raise epochs to those that partitions have, *found* by producer id; return the states to store.

        A stored state may be older than the partitions, as in a backup that was made beside a writer. And the
        library stores a transaction only with its decision, so that a crash before that leaves batches of an
        epoch that is not stored. A later producer must not get such an epoch: its batches would look like
        those that the partition has. Before anything else is done; see `Transaction.raise_epoch`.
        """
        effects: list[StoreTransaction] = []
        for transaction in self._transactions.values():
            epoch = found.get(transaction.current.producer_id, NO_EPOCH)
            if epoch > transaction.current.epoch:
                raised = self._noted(transaction, transaction.raise_epoch(epoch, now_ms))
                effects += [each for each in raised if isinstance(each, StoreTransaction)]
        return effects

    # --- looking ----------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> Transaction | None:
        """Return a transactional id, or None if it is unknown or its first producer is not stored yet."""
        found = self._transactions.get(transactional_id)
        return None if found is None or found.is_new else found

    def __iter__(self) -> Iterator[Transaction]:
        """Iterate over all known transactional ids."""
        return (each for each in list(self._transactions.values()) if not each.is_new)


def _unmapped(transactional_id: str, producer: ProducerIdentity, token: Token) -> list[TransactionEffect]:
    error = ProducerMappingInvalid(tenancy.show_id(transactional_id), producer.producer_id)
    return [TransactionReply(token, error)]
