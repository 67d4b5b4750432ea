"""The last valid record of each key of the internal topic, from its records and markers in their order."""

from __future__ import annotations

from cordwood.broker.groups.offsets_topic import OffsetsRow
from cordwood.broker.groups.pending import PendingValues, TransactionKey


class StoredRows:
    """The last valid record of each key, and the records of open transactions.

    Memory depends on the number of keys, not on the size of the topic.
    """

    def __init__(self) -> None:
        self._last: dict[bytes, bytes | None] = {}
        self._pending: PendingValues[bytes, bytes] = PendingValues()

    def add(self, key: bytes | None, value: bytes | None, transaction: TransactionKey | None = None) -> None:
        """Add the next record, which may be part of an open transaction."""
        if key is None:
            return
        if value is None:
            # As in Kafka, a tombstone also deletes what open transactions would commit.
            self._pending.drop(key)
        elif transaction is not None:
            self._pending.add(transaction, key, value)
            return
        elif self._pending:
            self._pending.supersede(key)
        self._set(key, value)

    def end(self, transaction: TransactionKey, *, committed: bool) -> None:
        """Add the marker that ends a transaction."""
        for key, value in self._pending.end(transaction, committed=committed):
            self._set(key, value)

    def _set(self, key: bytes, value: bytes | None) -> None:
        # Last in the order of the dictionary.
        self._last.pop(key, None)
        self._last[key] = value

    def rows(self) -> list[OffsetsRow]:
        """Return the last valid record of each key, in order."""
        return list(self._last.items())

    def pending(self) -> list[tuple[TransactionKey, bytes, bytes | None]]:
        """Return the records of open transactions, in order; see `PendingValues.rows`."""
        return self._pending.rows()
