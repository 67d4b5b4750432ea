"""All transactional ids: loading them, expiry, and which batches are admitted."""

from __future__ import annotations

import pytest

from cordwood.broker.transactions import (
    ProducerIdentity,
    StoredTransaction,
    StoreTransaction,
    TransactionCoordinator,
    TransactionLimits,
    TransactionReply,
    TransactionState,
    WriteMarkers,
)
from cordwood.broker.transactions.state_topic import StateRow, transaction_key, transaction_value
from cordwood.errors import (
    ConcurrentTransactions,
    DiskFull,
    ProducerFenced,
    ProducerMappingInvalid,
    TransactionStateInvalid,
)
from cordwood.formats import ProducerStamp

A, B = ("orders", 0), ("ledger", 0)
NOW_MS = 1_000_000
ONGOING = StoredTransaction(7, 4, 60_000, TransactionState.ONGOING, frozenset({A}), NOW_MS, NOW_MS)
PREPARED = ONGOING._replace(state=TransactionState.PREPARE_COMMIT)
COMPLETE = ONGOING._replace(state=TransactionState.COMPLETE_COMMIT, partitions=frozenset())


def row(transactional_id: str, stored: StoredTransaction | None) -> StateRow:
    return transaction_key(transactional_id), None if stored is None else transaction_value(stored)


def loaded(*rows: StateRow, now_ms: int = NOW_MS) -> TransactionCoordinator:
    coordinator = TransactionCoordinator(TransactionLimits(expiration_ms=1_000))
    assert coordinator.load(rows, now_ms) == 0
    return coordinator


def admits(coordinator: TransactionCoordinator, place: tuple[str, int], epoch: int = 4) -> bool:
    try:
        coordinator.admission.guard(*place)(ProducerStamp(7, epoch, 0, 0, True))
    except (ProducerFenced, TransactionStateInvalid):
        return False
    return True


def test_the_last_record_of_an_id_is_its_state() -> None:
    coordinator = loaded(row("t", PREPARED), row("u", ONGOING._replace(producer_id=8)), row("t", COMPLETE))
    assert [each.id for each in coordinator] == ["u", "t"]
    assert coordinator.unfinished() == []
    assert loaded(row("t", ONGOING), row("t", None)).find("t") is None


def test_what_was_prepared_is_finished_first() -> None:
    coordinator = loaded(row("t", PREPARED))
    assert coordinator.unfinished() == [WriteMarkers("t", ProducerIdentity(7, 4), True, (A,))]
    assert coordinator.open_partitions().includes(7, 4, A)
    assert not admits(coordinator, A)
    coordinator.markers_written("t", NOW_MS)
    assert coordinator.unfinished() == []


def test_an_ongoing_transaction_goes_on_where_it_was() -> None:
    coordinator = loaded(row("t", ONGOING))
    assert admits(coordinator, A)
    assert not admits(coordinator, B)
    with pytest.raises(ProducerFenced):
        coordinator.admission.guard(*A)(ProducerStamp(7, 3, 0, 0, True))


@pytest.mark.parametrize(
    "bad",
    [
        (b"\0\0\0\x05tru", b""),
        (transaction_key("t"), b"\0\x02"),
        row("t", COMPLETE._replace(state=TransactionState.DEAD)),
        row("t", COMPLETE._replace(state=TransactionState.PREPARE_EPOCH_FENCE)),
    ],
    ids=["a key cut short", "a later version", "dead", "fencing"],
)
def test_records_that_cannot_be_decoded_are_counted(bad: StateRow) -> None:
    coordinator = TransactionCoordinator(TransactionLimits())
    assert coordinator.load([row("u", COMPLETE), bad], NOW_MS) == 1
    # A kind of key that a later version may add is not one of them.
    assert coordinator.load([(b"\0\x01what", b"ever")], NOW_MS) == 0


@pytest.mark.parametrize(
    ("stored", "producer", "partition", "refused"),
    [
        (ONGOING, (7, 4), A, None),
        (ONGOING, (7, 4), B, TransactionStateInvalid),
        (ONGOING, (8, 4), A, ProducerMappingInvalid),
        (ONGOING, (7, 3), A, ProducerFenced),
        (ONGOING, (7, 5), A, ProducerFenced),
        (PREPARED, (7, 4), A, ConcurrentTransactions),
        (COMPLETE, (7, 4), A, TransactionStateInvalid),
        (None, (7, 4), A, ProducerMappingInvalid),
    ],
)
def test_a_partition_is_checked_by_id_producer_epoch_and_state(
    stored: StoredTransaction | None,
    producer: tuple[int, int],
    partition: tuple[str, int],
    refused: type[Exception] | None,
) -> None:
    coordinator = loaded(row("t", stored), row("u", ONGOING._replace(producer_id=8)))
    found = coordinator.check("t", ProducerIdentity(*producer), partition)
    assert type(found) is (refused or type(None))


def test_a_clock_that_was_set_back_does_not_keep_a_transaction_open() -> None:
    """Its timeout begins again when it is loaded, at most."""
    coordinator = loaded(row("t", ONGOING), now_ms=500)
    assert coordinator.time_out(500 + 59_999) == []
    assert len(coordinator.time_out(500 + 60_000)) == 1


def test_an_id_is_admitted_again_if_its_end_cannot_be_stored() -> None:
    coordinator = loaded(row("t", ONGOING))
    coordinator.end("t", ProducerIdentity(7, 4), True, "token", NOW_MS)
    assert not admits(coordinator, A)
    error = DiskFull("full")
    assert coordinator.stored("t", error) == [TransactionReply("token", error)]
    assert admits(coordinator, A)


def test_an_id_whose_first_producer_could_not_be_stored_is_unknown() -> None:
    coordinator = loaded()
    coordinator.init("t", 60_000, None, 9, "token", NOW_MS)
    assert coordinator.find("t") is None
    coordinator.stored("t", DiskFull("full"))
    assert list(coordinator) == []
    # The next producer gets another id: that one may have been stored after all.
    coordinator.init("t", 60_000, None, 10, "token", NOW_MS)
    assert coordinator.stored("t", None) == [TransactionReply("token", ProducerIdentity(10, 0))]


def test_only_an_idle_id_that_was_not_used_for_long_expires() -> None:
    coordinator = loaded(row("idle", COMPLETE), row("busy", ONGOING._replace(producer_id=8)))
    assert coordinator.expire(NOW_MS + 999) == []
    assert coordinator.expire(NOW_MS + 1_000) == [StoreTransaction("idle", row("idle", None))]
    # Once only, however long it takes to store.
    assert coordinator.expire(NOW_MS + 2_000) == []
    coordinator.stored("idle", None)
    assert [each.id for each in coordinator] == ["busy"]
