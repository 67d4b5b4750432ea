"""Values of open transactions: which of them become valid, whatever the order in which transactions end."""

from __future__ import annotations

import random

import pytest
from support.seeds import seed_or

from cordwood.broker.groups import StoredRows, TransactionKey
from cordwood.broker.groups.pending import PendingValues

SEED = seed_or(20_260_826)
RUNS = 2_000
FIRST, SECOND = TransactionKey(1, 0), TransactionKey(2, 0)


def test_a_committed_value_is_valid_and_an_aborted_one_is_nowhere() -> None:
    pending: PendingValues[str, int] = PendingValues()
    pending.add(FIRST, "a", 1)
    pending.add(SECOND, "b", 2)
    assert list(pending) == ["a", "b"]
    assert pending.end(FIRST, committed=True) == [("a", 1)]
    assert pending.end(SECOND, committed=False) == []
    assert not pending
    assert pending.end(FIRST, committed=True) == [], "a marker without records says nothing"


def test_the_last_value_of_a_key_in_a_transaction_counts() -> None:
    pending: PendingValues[str, int] = PendingValues()
    pending.add(FIRST, "a", 1)
    pending.add(FIRST, "a", 2)
    assert pending.end(FIRST, committed=True) == [("a", 2)]


def test_a_later_value_outside_stays_valid_and_the_key_stays_pending() -> None:
    pending: PendingValues[str, int] = PendingValues()
    pending.add(FIRST, "a", 1)
    pending.supersede("a")
    assert "a" in pending
    assert pending.values("a") == []
    pending.add(SECOND, "a", 2)
    assert pending.end(FIRST, committed=True) == []
    assert pending.end(SECOND, committed=True) == [("a", 2)]


@pytest.mark.parametrize("later_ends_first", [True, False])
def test_of_two_transactions_the_later_record_counts_and_not_the_later_end(later_ends_first: bool) -> None:
    pending: PendingValues[str, int] = PendingValues()
    pending.add(FIRST, "a", 1)
    pending.add(SECOND, "a", 2)
    valid: dict[str, int] = {}
    for transaction in (SECOND, FIRST) if later_ends_first else (FIRST, SECOND):
        valid.update(pending.end(transaction, committed=True))
    assert valid == {"a": 2}


def test_a_deleted_key_is_removed_from_every_transaction() -> None:
    pending: PendingValues[str, int] = PendingValues()
    pending.add(FIRST, "a", 1)
    pending.add(SECOND, "a", 2)
    pending.add(SECOND, "b", 3)
    pending.drop("a")
    assert pending.end(FIRST, committed=True) == []
    assert pending.end(SECOND, committed=True) == [("b", 3)]


def test_one_producer_has_a_transaction_in_each_partition() -> None:
    stored = StoredRows()
    here, there = TransactionKey(7, 0), TransactionKey(7, 1)
    stored.add(b"a", b"1", here)
    stored.add(b"b", b"2", there)
    stored.end(there, committed=True)
    assert stored.rows() == [(b"b", b"2")]
    assert stored.pending() == [(here, b"a", b"1")]


def test_stored_rows_are_the_last_plain_or_committed_record_of_each_key() -> None:
    """The model knows the whole history: what counts is decided by the places of records and their ends."""
    print(f"seed {SEED}, {RUNS} histories")
    committed_and_superseded = 0
    for run in range(RUNS):
        rng = random.Random(f"{SEED} {run}")
        stored = StoredRows()
        # (key, value, transaction), and how each transaction ended.
        history: list[tuple[bytes, bytes | None, int | None]] = []
        ends: dict[int, bool] = {}
        current = {producer: producer for producer in range(3)}
        next_transaction = 3
        for step in range(rng.randrange(1, 25)):
            producer = rng.randrange(3)
            transaction = TransactionKey(producer, 0)
            if rng.random() < 0.25:
                ends[current[producer]] = rng.random() < 0.6
                stored.end(transaction, committed=ends[current[producer]])
                current[producer], next_transaction = next_transaction, next_transaction + 1
                continue
            key, value = rng.choice([b"x", b"y", b"z"]), b"%d" % step
            kind = rng.choice(["plain", "tombstone", "transactional", "transactional"])
            if kind == "transactional":
                stored.add(key, value, transaction)
                history.append((key, value, current[producer]))
            else:
                stored.add(key, None if kind == "tombstone" else value)
                history.append((key, None if kind == "tombstone" else value, None))
        valid: dict[bytes, bytes | None] = {}
        for key, last, of in history:
            if of is None or ends.get(of):
                committed_and_superseded += key in valid and of is not None
                valid[key] = last
        assert dict(stored.rows()) == valid, run
        open_keys = set()
        for at, (key, _, of) in enumerate(history):
            deleted = any(later[0] == key and later[1] is None for later in history[at:])
            if of is not None and of not in ends and not deleted:
                open_keys.add((of, key))
        shown = {
            (transaction, key)
            for producer, transaction in current.items()
            for owner, key, _ in stored.pending()
            if owner.producer_id == producer
        }
        assert shown == open_keys, run
    assert committed_and_superseded > RUNS / 10
