"""Values of open transactions, which become valid when their transaction is committed.

A later value of the same key counts, whether it is of a transaction or not. What is later is decided by the
order of the records in the log and not by the order in which transactions end: compaction of the log keeps
the last record of a key.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TransactionKey(NamedTuple):
    """The transaction of a producer in one partition of the internal topic."""

    producer_id: int
    partition: int


class _Entry(NamedTuple, Generic[V]):
    order: int
    #: None if a later value of the key is already valid.
    value: V | None


class PendingValues(Generic[K, V]):
    """Values by key and open transaction; its elements are the keys.

    Calls come in the order of the records in the log.
    """

    def __init__(self) -> None:
        self._entries: dict[K, dict[TransactionKey, _Entry[V]]] = {}
        # The keys of each transaction, in the order of their first values.
        self._keys: dict[TransactionKey, dict[K, None]] = {}
        self._order = 0

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def values(self, key: K) -> list[V]:
        """Return the values of *key* that may become valid."""
        return [each.value for each in self._entries.get(key, {}).values() if each.value is not None]

    def rows(self) -> list[tuple[TransactionKey, K, V | None]]:
        """Return all values in the order of their records; None if a later value is already valid."""
        found = [
            (entry.order, transaction, key, entry.value)
            for key, entries in self._entries.items()
            for transaction, entry in entries.items()
        ]
        return [(transaction, key, value) for _, transaction, key, value in sorted(found, key=_order_of)]

    def add(self, transaction: TransactionKey, key: K, value: V | None) -> None:
        """Add the last value of *key* in an open transaction."""
        self._order += 1
        self._entries.setdefault(key, {})[transaction] = _Entry(self._order, value)
        self._keys.setdefault(transaction, {})[key] = None
        self.check_invariants(transaction)

    def supersede(self, key: K) -> None:
        """Note that a later value is valid: the transactions stay open, and their values never count."""
        self._supersede(key, self._order + 1)

    def drop(self, key: K) -> None:
        """Remove the values of *key* from all transactions: the key was deleted."""
        changed = self._entries.pop(key, {})
        for transaction in changed:
            keys = self._keys[transaction]
            del keys[key]
            if not keys:
                del self._keys[transaction]
        for transaction in changed:
            self.check_invariants(transaction)

    def end(self, transaction: TransactionKey, *, committed: bool) -> list[tuple[K, V]]:
        """End a transaction; return the values that are valid now, which are none if it was aborted."""
        valid = []
        for key in self._keys.pop(transaction, {}):
            entry = self._entries[key].pop(transaction)
            if not self._entries[key]:
                del self._entries[key]
            if committed and entry.value is not None:
                valid.append((key, entry.value))
                self._supersede(key, entry.order)
        self.check_invariants(transaction)
        return valid

    def _supersede(self, key: K, order: int) -> None:
        entries = self._entries.get(key, {})
        for transaction, entry in entries.items():
            if entry.order < order:
                entries[transaction] = _Entry(entry.order, None)

    def check_invariants(self, changed: TransactionKey) -> None:
        """Check the transaction *changed*. Takes constant time.

        Raises:
            AssertionError: If its keys and values do not agree: a bug in this code.
        """
        keys = self._keys.get(changed)
        assert keys != {}, "an open transaction has no value"
        assert keys is None or changed in self._entries[next(iter(keys))], "a key without a value"
        assert bool(self._keys) == bool(self._entries), "a value of no transaction"


def _order_of(row: tuple[int, object, object, object]) -> int:
    return row[0]
