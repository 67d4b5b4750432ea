"""Loading transactions when a broker or a log is opened, and finishing what was left open.

Synchronous, for a server before it serves transactions and for the library: whatever was decided is carried
out, and nothing stays open that nobody would end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cordwood.broker.committed import last_rows
from cordwood.broker.node import Node, Placed
from cordwood.broker.transactions import (
    NAME,
    OpenPartitions,
    ProducerIdentity,
    StateRow,
    StoreTransaction,
    TransactionCoordinator,
)
from cordwood.errors import (
    LogFailed,
    ProducerFenced,
    StorageError,
    TransactionsUnsupported,
    UnknownTopic,
)
from cordwood.formats import Marker, encode_records
from cordwood.records import TopicPartition

#: Errors of a marker that is not needed: its partition is gone, cannot have transactions, or has a later one.
NOT_NEEDED = (UnknownTopic, TransactionsUnsupported, ProducerFenced)
_LOGGER = logging.getLogger("cordwood.broker")


class RecoveredTransactions(NamedTuple):
    """What was found open: transactions that were prepared, and open ones that nobody would have ended.

    *left* are the markers of orphans that could not be written: their partitions were full, for example.
    """

    finished: int
    orphans: int
    left: list[tuple[TopicPartition, Marker]]


def marker_of(identity: ProducerIdentity, *, committed: bool) -> Marker:
    """Return the marker that ends a transaction of *identity*."""
    return Marker(identity.producer_id, identity.epoch, committed)


def recover_transactions(
    coordinator: TransactionCoordinator, node: Node, now_ms: int, *, is_clean: bool
) -> RecoveredTransactions:
    """Load the stored transactions into *coordinator*, finish the prepared ones and abort orphans.

    An orphan is open in a partition and not in the coordinator: after a power cut that lost unsynced records,
    a truncation or a restore. After these the stored states may also be older than the partitions, and then
    the epochs of producers are raised to those that partitions have. Both are looked for unless the directory
    was closed cleanly (*is_clean*): then all partitions are open already, and those that never had a
    transaction cost nothing. A directory that may have orphans is not closed cleanly. Markers and states are
    durable on return. A transaction that cannot be finished because a partition cannot be written stays
    prepared.

    Raises:
        StorageError: If a record cannot be read. Then no transaction may be served: it may be a commit that
            was answered, or fence a producer.
    """
    # The topic may be missing where partitions have transactions: a restore may have left it out.
    if node.topics.find(NAME) is not None:
        unread = coordinator.load(last_rows(node.read_rows(NAME)), now_ms)
        if unread:
            raise StorageError(f"{unread} records of {NAME} have an unknown format")
    partitions, lifecycle = node.directory.partitions, node.directory.lifecycle
    places: list[TopicPartition] = []
    if not is_clean:
        # Before the search: a truncation in another thread sets it again.
        lifecycle.may_have_orphans = False
        places = partitions.with_transactions()
        # Before the markers: once they are durable, an orphan no longer keeps its epoch in the partition.
        effects = coordinator.raise_epochs(newest_epochs(node, places), now_ms)
        _store(node, effects, now_ms)
        for effect in effects:
            if effect.waits:
                # What is to be done then is among the unfinished ones.
                coordinator.stored(effect.transactional_id, None)
    # Before the prepared ones: a marker that commits ends whatever its producer has open in a partition.
    orphans = list(find_orphans(coordinator.open_partitions(), node, places))
    left = _end(node, orphans)
    finished = unfinished = 0
    for markers in coordinator.unfinished():
        marker = marker_of(markers.identity, committed=markers.committed)
        if _end(node, [(place, marker) for place in markers.partitions]):
            unfinished += 1
        else:
            _store(node, coordinator.markers_written(markers.transactional_id, now_ms), now_ms)
            finished += 1
    if left or (unfinished and not is_clean):
        # The epoch of a prepared transaction is raised once it is complete. Until then the next open looks.
        lifecycle.may_have_orphans = True
    return RecoveredTransactions(finished, len(orphans), left)


def newest_epochs(node: Node, places: Iterable[TopicPartition]) -> dict[int, int]:
    """Return the newest epoch of every producer that one of *places* knows, by producer id.

    Partitions that cannot be read are left out, and the next open looks again.
    """
    found: dict[int, int] = {}
    for place in places:
        try:
            epochs = node.producer_epochs(*place)
        except (StorageError, UnknownTopic) as error:
            _LOGGER.error("producers of %s-%d are unknown: %s", *place, error)
            node.directory.lifecycle.has_leftovers = True
            continue
        for producer_id, epoch in epochs.items():
            found[producer_id] = max(epoch, found.get(producer_id, epoch))
    return found


def find_orphans(
    known: OpenPartitions, node: Node, places: Iterable[TopicPartition]
) -> Iterator[tuple[TopicPartition, Marker]]:
    """Yield the transactions that are open in *places* and not *known*, with their abort markers.

    Partitions that cannot be read are left out, and the next open looks again.
    """
    for place in places:
        try:
            opened = node.open_transactions(*place)
        except (StorageError, UnknownTopic) as error:
            _LOGGER.error("open transactions of %s-%d are unknown: %s", *place, error)
            node.directory.lifecycle.has_leftovers = True
            continue
        for transaction in opened:
            if not known.includes(transaction.producer_id, transaction.epoch, place):
                yield place, Marker(transaction.producer_id, transaction.epoch, committed=False)


def _end(node: Node, markers: Sequence[tuple[TopicPartition, Marker]]) -> list[tuple[TopicPartition, Marker]]:
    """Append and sync markers; return those that are needed and could not be written."""
    placed: list[Placed] = []
    left: list[tuple[TopicPartition, Marker]] = []
    for place, marker in markers:
        try:
            placed.append(node.append_marker(*place, marker))
        except NOT_NEEDED as error:
            # As after every kill: its end was written, and the next transaction has begun there since.
            _LOGGER.info("the end of a transaction is not written to %s-%d: %s", *place, error)
        except LogFailed:
            raise
        except StorageError as error:
            _LOGGER.error("a transaction in %s-%d cannot be ended: %s", *place, error)
            left.append((place, marker))
    for log in {each.log for each in placed}:
        log.commit()
    return left


def _store(node: Node, effects: Iterable[object], now_ms: int) -> None:
    rows: list[StateRow] = [effect.row for effect in effects if isinstance(effect, StoreTransaction)]
    if not rows:
        return
    placed = node.append(NAME, 0, memoryview(encode_records(rows, now_ms)))
    placed.log.commit()
