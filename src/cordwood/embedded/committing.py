"""The steps of a commit. Between them the caller syncs, so that many commits can share syncs."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from cordwood.broker import OFFSETS_PARTITIONS
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.groups import offsets_topic
from cordwood.embedded.transaction import LogTransaction, TransactionShare
from cordwood.embedded.transaction_batches import transaction_frames
from cordwood.errors import CordwoodError, LogFailed, UnexpectedOffset
from cordwood.formats import ReceivedFrame, Row
from cordwood.records import TopicPartition
from cordwood.storage.log import WritablePartition

if TYPE_CHECKING:
    from cordwood.embedded.transactions import LogTransactions, Syncs, TransactionalId

_LOGGER = logging.getLogger("cordwood.embedded")
_TIMESTAMP_AT = 3


class TransactionCommit:
    """One commit: `write`, sync, `decide`, sync, `complete`. After an exception `fail` instead of the rest.

    One thread at a time; another thread may take the next step.
    """

    def __init__(
        self, transactions: LogTransactions, transaction: LogTransaction, known: TransactionalId
    ) -> None:
        self._transactions = transactions
        self._transaction = transaction
        self._known = known
        self._bases: dict[TopicPartition, int] = {}
        self._is_deciding = False

    def write(self) -> Syncs:
        """Append all batches, if every record gets the offset that is expected of it; return what to sync.

        Raises:
            UnexpectedOffset, RecordRefused, FrameTooLarge: Nothing was appended.
            StorageError: Some batches may have been appended.
        """
        transactions, known = self._transactions, self._known
        transactions.finish_oldest()
        shares = self._shares()
        if not shares:
            return {}
        if known.is_undecided or known.unmarked:
            transactions.finish(known)
        partitions = transactions.node.directory.partitions
        # Sorted: two commits that hold partitions in another order could wait for each other.
        logs = {place: partitions.writable(*place) for place in sorted(shares)}
        producer, now_ms = (
            transactions.new_producer(known, self._transaction.timeout_ms),
            transactions.now_ms(),
        )
        frames = {
            place: transaction_frames(log, shares[place].rows, producer, now_ms)
            for place, log in logs.items()
        }
        with contextlib.ExitStack() as stack:
            for log in logs.values():
                stack.enter_context(log.held())
            for place, log in logs.items():
                _check_offsets(log, shares[place])
            transactions.open(known, logs)
            known.is_undecided = True
            # The markers of the transaction before are synced with it.
            syncs = dict(known.unsynced)
            for place, log in logs.items():
                syncs[log] = self._append(place, log, frames[place], _are_timed(shares[place].rows))
        return syncs

    def _append(
        self, place: TopicPartition, log: WritablePartition, frames: list[ReceivedFrame], timed: bool
    ) -> int:
        """Append the batches of a partition; return the offset after them."""
        admit = self._transactions.node.admission.guard(*place)
        # Times that were given may be refused where they run backwards; those that we gave are lifted.
        appended = [log.append_received(frame, promised=not timed, admit=admit) for frame in frames]
        self._bases[place] = appended[0].base_offset
        return appended[-1].next_offset

    def _shares(self) -> dict[TopicPartition, TransactionShare]:
        """Return the rows by partition, those of groups among them."""
        shares, offsets = dict(self._transaction.shares), self._transaction.offsets
        if offsets:
            rows: list[Row] = [
                (offsets_topic.offset_key(key), offsets_topic.offset_value(committed))
                for key, committed in offsets.items()
            ]
            self._transactions.node.topics.ensure_internal(OFFSETS_TOPIC)
            shares[OFFSETS_TOPIC, OFFSETS_PARTITIONS - 1] = TransactionShare(rows, [])
        return shares

    def decide(self) -> Syncs:
        """Append the decision, after everything that was written is synced; return what to sync.

        Raises:
            StorageError: If it could not be written.
        """
        transactions, known = self._transactions, self._known
        known.unsynced = {}
        if not known.is_undecided:
            return {}
        row = transactions.decide(known, committed=True)
        self._is_deciding = True
        return transactions.store(row)

    def complete(self) -> None:
        """Write the markers, after the decision is synced. From here on it is committed, whatever happens."""
        transactions, known = self._transactions, self._known
        self._transaction.committed(self._bases)
        try:
            if self._is_deciding:
                transactions.decided(known, None)
                transactions.write_markers(known)
        except CordwoodError as error:
            # It is committed, and becomes visible once the markers can be written.
            _LOGGER.warning("a transaction of %s is not visible yet: %s", known.id, error)
        finally:
            transactions.release(known, self._transaction)

    def fail(self, error: BaseException) -> None:
        """Abort the transaction because a step, or a sync between two, has failed."""
        transactions, known = self._transactions, self._known
        self._transaction.ended = "aborted"
        try:
            if self._is_deciding:
                transactions.decided(known, error)
                if isinstance(error, LogFailed):
                    # The decision may be on the device or not. Opening the log again finds out.
                    self._transaction.ended = "of unknown outcome, because the log has failed"
            if known.is_undecided:
                transactions.finish(known)
        except CordwoodError as further:
            _LOGGER.warning("a transaction of %s is not aborted yet: %s", known.id, further)
        finally:
            transactions.release(known, self._transaction)


def _check_offsets(log: WritablePartition, share: TransactionShare) -> None:
    """Raise UnexpectedOffset unless every record of *share* gets its expected offset. The log is held."""
    base = log.log_end_offset
    for index, expected in share.expected:
        if expected != base + index:
            raise UnexpectedOffset(expected, base + index)


def _are_timed(rows: list[Row]) -> bool:
    """Return whether any of *rows* has a timestamp that was given."""
    return any(len(row) > _TIMESTAMP_AT and row[_TIMESTAMP_AT] is not None for row in rows)
