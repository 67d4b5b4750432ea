"""The state machine of one transactional id: every event in every state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cordwood.broker.transactions import (
    ProducerIdentity,
    ProducerIdNeeded,
    StoredTransaction,
    StoreTransaction,
    Transaction,
    TransactionEffect,
    TransactionReply,
    TransactionState,
    WriteMarkers,
)
from cordwood.broker.transactions.state_topic import decode_value
from cordwood.errors import CordwoodError, DiskFull, ProducerFenced

A, B = ("orders", 0), ("ledger", 3)
TIMEOUT_MS = 60_000
STARTED_MS = 1_000
MINE = ProducerIdentity(7, 4)
EPOCH_MAX = 32_767


def transaction_in(state: TransactionState, epoch: int = 4) -> Transaction:
    open_states = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
    partitions = frozenset({A} if state in open_states else ())
    started_ms = -1 if state is TransactionState.EMPTY else STARTED_MS
    return Transaction(
        "t", StoredTransaction(7, epoch, TIMEOUT_MS, state, partitions, STARTED_MS, started_ms)
    )


EVENTS: dict[str, Callable[[Transaction], list[TransactionEffect]]] = {
    "init": lambda t: t.init(9_000, None, None, "token", 2_000),
    "init again": lambda t: t.init(9_000, MINE, None, "token", 2_000),
    "init, fenced": lambda t: t.init(9_000, ProducerIdentity(7, 3), None, "token", 2_000),
    "init, another id": lambda t: t.init(9_000, ProducerIdentity(8, 4), None, "token", 2_000),
    "add": lambda t: t.add_partitions(MINE, frozenset({B}), "token", 2_000),
    "add the same": lambda t: t.add_partitions(MINE, frozenset({A}), "token", 2_000),
    "add nothing": lambda t: t.add_partitions(MINE, frozenset(), "token", 2_000),
    "add, fenced": lambda t: t.add_partitions(ProducerIdentity(7, 3), frozenset({A}), "token", 2_000),
    "add, future": lambda t: t.add_partitions(ProducerIdentity(7, 5), frozenset({A}), "token", 2_000),
    "add, another id": lambda t: t.add_partitions(ProducerIdentity(8, 4), frozenset({A}), "token", 2_000),
    "commit": lambda t: t.end(MINE, True, "token", 2_000),
    "abort": lambda t: t.end(MINE, False, "token", 2_000),
    "commit, fenced": lambda t: t.end(ProducerIdentity(7, 3), True, "token", 2_000),
    "abort, another id": lambda t: t.end(ProducerIdentity(8, 4), False, "token", 2_000),
    "early": lambda t: t.time_out(STARTED_MS + TIMEOUT_MS - 1),
    "late": lambda t: t.time_out(STARTED_MS + TIMEOUT_MS),
    "expire early": lambda t: t.expire(STARTED_MS - 1),
    "expire": lambda t: t.expire(STARTED_MS),
}


def described(effects: list[TransactionEffect]) -> str:
    """Return one word for each effect: the error, the state that is stored, or the markers."""
    return " ".join(_word(effect) for effect in effects)


def _word(effect: TransactionEffect) -> str:
    if isinstance(effect, TransactionReply):
        assert effect.token == "token"
        return "ok" if effect.result is None else type(effect.result).__name__
    if isinstance(effect, WriteMarkers):
        return f"markers@{effect.identity.epoch}:{'commit' if effect.committed else 'abort'}"
    if effect.row[1] is None:
        return "tombstone"
    stored = decode_value(effect.row[1])
    return f"{stored.state.value}@{stored.epoch}/{len(stored.partitions)}"


BUSY = "ConcurrentTransactions"
WRONG = "TransactionStateInvalid"
FENCED = "ProducerFenced"
OTHER = "ProducerMappingInvalid"
#: What each event leads to, by state, in the order of the events above.
IDLE = {
    "init": "Empty@5/0",
    "init again": "Empty@5/0",
    "add": "Ongoing@4/1",
    "add the same": "Ongoing@4/1",
    "add nothing": "ok",
    "expire": "tombstone",
}
PREPARED = {
    "init": BUSY,
    "init again": BUSY,
    "init, fenced": BUSY,
    "add": BUSY,
    "add the same": BUSY,
    "add nothing": BUSY,
    "expire": "",
}
ALWAYS = {
    "init, fenced": FENCED,
    "init, another id": FENCED,
    "add, fenced": FENCED,
    "add, future": FENCED,
    "add, another id": OTHER,
    "commit, fenced": FENCED,
    "abort, another id": OTHER,
    "early": "",
    "late": "",
    "expire early": "",
}
TABLE: dict[TransactionState, dict[str, str]] = {
    TransactionState.EMPTY: {**ALWAYS, **IDLE, "commit": WRONG, "abort": WRONG},
    TransactionState.ONGOING: {
        **ALWAYS,
        "init": "PrepareAbort@5/1",
        "init again": "PrepareAbort@5/1",
        # As in Kafka: its epoch is looked at once the transaction before is aborted.
        "init, fenced": "PrepareAbort@5/1",
        "add": "Ongoing@4/2",
        "add the same": "ok",
        "add nothing": "ok",
        "commit": "PrepareCommit@4/1",
        "abort": "PrepareAbort@4/1",
        "late": "PrepareAbort@5/1",
        "expire": "",
    },
    TransactionState.PREPARE_COMMIT: {**ALWAYS, **PREPARED, "commit": BUSY, "abort": WRONG},
    TransactionState.PREPARE_ABORT: {**ALWAYS, **PREPARED, "commit": WRONG, "abort": BUSY},
    TransactionState.COMPLETE_COMMIT: {**ALWAYS, **IDLE, "commit": "ok", "abort": WRONG},
    TransactionState.COMPLETE_ABORT: {**ALWAYS, **IDLE, "commit": WRONG, "abort": "ok"},
}
STATES = tuple(TABLE)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.value)
def test_every_event_in_every_state(state: TransactionState, event: str) -> None:
    transaction = transaction_in(state)
    before = transaction.current
    assert described(EVENTS[event](transaction)) == TABLE[state][event]
    assert transaction.current == before, "the state changed before it was stored"


CHANGES = [
    (state, event)
    for state, rows in TABLE.items()
    for event, found in rows.items()
    if "@" in found or found == "tombstone"
]
#: Requests while a change is being stored: refused for now, unless the producer is wrong anyway.
MEANWHILE = {
    "init": BUSY,
    "init again": BUSY,
    "init, fenced": BUSY,
    "init, another id": BUSY,
    "add": BUSY,
    "add the same": BUSY,
    "add nothing": BUSY,
    "add, fenced": FENCED,
    "add, future": FENCED,
    "add, another id": OTHER,
    "commit": BUSY,
    "abort": BUSY,
    "commit, fenced": FENCED,
    "abort, another id": OTHER,
    "early": "",
    "late": "",
    "expire early": "",
    "expire": "",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0].value}, {change[1]}")
def test_every_event_while_a_change_is_stored(change: tuple[TransactionState, str]) -> None:
    state, event = change
    for other, make in EVENTS.items():
        transaction = transaction_in(state)
        EVENTS[event](transaction)
        assert described(make(transaction)) == MEANWHILE[other], other


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0].value}, {change[1]}")
def test_a_change_that_could_not_be_stored_leaves_the_state_and_answers_the_error(
    change: tuple[TransactionState, str],
) -> None:
    """Only a raised epoch stays raised: its row may have reached the disk, and no producer was given it."""
    state, event = change
    transaction = transaction_in(state)
    before = transaction.current
    EVENTS[event](transaction)
    error = DiskFull("full")
    effects = transaction.stored(error)
    is_silent = event in ("late", "expire")
    assert effects == ([] if is_silent else [TransactionReply("token", error)])
    is_fencing = TABLE[state][event] == "PrepareAbort@5/1"
    assert transaction.current == before._replace(epoch=5 if is_fencing else 4)
    assert not transaction.is_changing
    if is_fencing:
        assert described(transaction.end(MINE, True, "token", 2_000)) == FENCED
        assert described(transaction.time_out(STARTED_MS + TIMEOUT_MS)) == "PrepareAbort@5/1"


@pytest.mark.parametrize(("event", "committed"), [("commit", True), ("abort", False)])
def test_an_end_is_answered_once_the_decision_is_stored_and_markers_follow(
    event: str, committed: bool
) -> None:
    transaction = transaction_in(TransactionState.ONGOING)
    (stored,) = EVENTS[event](transaction)
    assert isinstance(stored, StoreTransaction)
    assert stored.waits
    reply, markers = transaction.stored(None)
    assert reply == TransactionReply("token", None)
    assert markers == WriteMarkers("t", MINE, committed, (A,))
    (complete,) = transaction.markers_written(3_000)
    assert isinstance(complete, StoreTransaction)
    assert not complete.waits
    assert _word(complete) == ("CompleteCommit@4/0" if committed else "CompleteAbort@4/0")
    # The same answer again, however often it is asked for.
    for _ in range(2):
        assert described(EVENTS[event](transaction)) == "ok"


def test_a_new_producer_fences_the_one_before_and_begins_when_its_transaction_is_aborted() -> None:
    transaction = transaction_in(TransactionState.ONGOING)
    assert not isinstance(EVENTS["init"](transaction)[0], TransactionReply)
    # The answer says to retry, and it comes once the raised epoch is stored.
    assert described(transaction.stored(None)) == f"{BUSY} markers@5:abort"
    assert described(EVENTS["commit"](transaction)) == FENCED
    assert described(EVENTS["init"](transaction)) == BUSY
    transaction.markers_written(3_000)
    assert described(EVENTS["init"](transaction)) == "Empty@6/0"
    assert transaction.stored(None) == [TransactionReply("token", ProducerIdentity(7, 6))]
    assert transaction.current.timeout_ms == 9_000


def test_records_are_admitted_from_the_first_stored_partition_until_the_end_is_asked_for() -> None:
    transaction = transaction_in(TransactionState.EMPTY)
    was_open = []
    for event, failure in [("add", None), ("add the same", None), ("commit", DiskFull("full"))]:
        EVENTS[event](transaction)
        was_open.append(transaction.is_open)
        transaction.stored(failure)
        was_open.append(transaction.is_open)
    assert was_open == [False, True, True, True, False, True]


def test_a_producer_that_goes_on_after_an_error_gets_the_same_answer_to_a_repeated_request() -> None:
    transaction = transaction_in(TransactionState.COMPLETE_ABORT)
    EVENTS["init again"](transaction)
    first = transaction.stored(None)
    assert first == [TransactionReply("token", ProducerIdentity(7, 5))]
    # The answer was lost; the producer still has epoch 4.
    EVENTS["init again"](transaction)
    assert transaction.stored(None) == first
    # Another producer has begun since: the first one is fenced, also with its newest epoch.
    EVENTS["init"](transaction)
    transaction.stored(None)
    for epoch in (4, 5):
        asked = transaction.init(9_000, ProducerIdentity(7, epoch), None, "token", 2_000)
        assert described(asked) == FENCED


@pytest.mark.parametrize("is_expected", [False, True])
def test_when_its_epochs_are_used_up_an_id_gets_a_new_producer_id(is_expected: bool) -> None:
    last = EPOCH_MAX - 1
    transaction = transaction_in(TransactionState.COMPLETE_COMMIT, epoch=last)
    expected = ProducerIdentity(7, last) if is_expected else None
    needed = transaction.init(9_000, expected, None, "token", 2_000)
    assert needed == [TransactionReply("token", ProducerIdNeeded())]
    transaction.init(9_000, expected, 8, "token", 2_000)
    assert transaction.stored(None) == [TransactionReply("token", ProducerIdentity(8, 0))]
    assert transaction.current.previous_producer_id == 7
    # A retry of the producer whose answer was lost, which only one that named itself can make.
    again = transaction.init(9_000, ProducerIdentity(7, last), None, "token", 2_000)
    assert described(again) == ("Empty@0/0" if is_expected else FENCED)
    if is_expected:
        assert transaction.stored(None) == [TransactionReply("token", ProducerIdentity(8, 0))]


def test_the_last_epoch_of_a_producer_id_is_for_fencing() -> None:
    """A producer with the last epoch that clients get can be fenced; then there is a new producer id."""
    transaction = transaction_in(TransactionState.ONGOING, epoch=EPOCH_MAX - 1)
    assert described(transaction.time_out(STARTED_MS + TIMEOUT_MS)) == f"PrepareAbort@{EPOCH_MAX}/1"
    assert described(transaction.stored(None)) == f"markers@{EPOCH_MAX}:abort"
    transaction.markers_written(3_000)
    asked = transaction.init(9_000, None, None, "token", 2_000)
    assert asked == [TransactionReply("token", ProducerIdNeeded())]


def test_an_error_for_a_fenced_producer_names_the_epochs() -> None:
    (reply,) = EVENTS["commit, fenced"](transaction_in(TransactionState.ONGOING))
    assert isinstance(reply, TransactionReply)
    assert isinstance(reply.result, CordwoodError)
    assert isinstance(reply.result, ProducerFenced)
    assert (reply.result.epoch, reply.result.current) == (3, 4)
