"""Offsets that are committed in transactions: who may commit them, when they count, and what deletes them."""

from __future__ import annotations

import pytest
from broker.groups.test_coordinator import GROUP, PLACE, RETENTION_MS, Desk

from cordwood.broker.groups import Committed, StoredRows, TransactionKey
from cordwood.broker.groups.actions import GroupState, Refusal

FIRST, SECOND = TransactionKey(1, 0), TransactionKey(2, 0)
OTHER = ("topic", 1)


def offset(at: int, commit_ms: int = 0) -> Committed:
    return Committed(at, -1, "", commit_ms)


def offsets_of(desk: Desk, group: str = GROUP) -> dict[tuple[str, int], int]:
    return {place: committed.offset for place, committed in desk.coordinator.offsets(group).items()}


def drop(desk: Desk, *places: tuple[str, int]) -> int:
    """Delete offsets as the server does; return the number of tombstones."""
    rows = desk.coordinator.rows_to_drop(GROUP, places)
    desk.coordinator.dropped(GROUP, places)
    return len(rows)


def test_offsets_count_from_the_commit_of_their_transaction_on() -> None:
    desk = Desk()
    desk.commit(PLACE, at=3)
    desk.coordinator.pended(GROUP, FIRST, {PLACE: offset(7), OTHER: offset(8)})
    assert offsets_of(desk) == {PLACE: 3}
    assert desk.coordinator.is_pending(GROUP, PLACE)
    assert desk.coordinator.is_pending(GROUP, OTHER)
    desk.coordinator.transaction_ended(FIRST, committed=True)
    assert offsets_of(desk) == {PLACE: 7, OTHER: 8}
    assert not desk.coordinator.is_pending(GROUP, PLACE)


def test_offsets_of_an_aborted_transaction_never_count() -> None:
    desk = Desk()
    desk.commit(PLACE, at=3)
    desk.coordinator.pended(GROUP, FIRST, {PLACE: offset(7), OTHER: offset(8)})
    desk.coordinator.transaction_ended(FIRST, committed=False)
    assert offsets_of(desk) == {PLACE: 3}
    assert not desk.coordinator.is_pending(GROUP, PLACE)
    assert not desk.coordinator.is_pending(GROUP, OTHER)


def test_a_transaction_may_have_offsets_of_several_groups_and_a_group_those_of_several_transactions() -> None:
    desk = Desk()
    desk.coordinator.pended("one", FIRST, {PLACE: offset(1)})
    desk.coordinator.pended("two", FIRST, {PLACE: offset(2)})
    desk.coordinator.pended("two", SECOND, {OTHER: offset(3)})
    desk.coordinator.transaction_ended(FIRST, committed=True)
    assert offsets_of(desk, "one") == {PLACE: 1}
    assert offsets_of(desk, "two") == {PLACE: 2}
    assert not desk.coordinator.is_pending("two", PLACE)
    assert desk.coordinator.is_pending("two", OTHER)


def test_an_offset_that_was_committed_later_without_a_transaction_stays() -> None:
    """As in Kafka, the last record counts: after a restart, compaction may have kept only that one."""
    desk = Desk()
    desk.coordinator.pended(GROUP, FIRST, {PLACE: offset(7)})
    desk.commit(PLACE, at=3)
    assert desk.coordinator.is_pending(GROUP, PLACE)
    desk.coordinator.transaction_ended(FIRST, committed=True)
    assert offsets_of(desk) == {PLACE: 3}


@pytest.mark.parametrize(
    ("member", "generation", "refusal"),
    [
        (True, 0, None),
        (True, 1, Refusal.ILLEGAL_GENERATION),
        (True, -1, Refusal.ILLEGAL_GENERATION),
        (False, 0, Refusal.UNKNOWN_MEMBER),
    ],
)
def test_a_member_is_fenced_by_its_id_and_generation(
    member: bool, generation: int, refusal: Refusal | None
) -> None:
    desk = Desk()
    member_id = desk.member()
    now = desk.group().generation
    checked = desk.coordinator.check_commit_in_transaction(
        GROUP, member_id if member else "zombie", None, generation if generation < 0 else now + generation
    )
    assert checked is refusal


def test_a_member_that_was_replaced_under_its_instance_id_is_fenced() -> None:
    desk = Desk()
    old = desk.member(instance="i")
    joined = desk.join(instance="i")
    assert joined is not None
    generation = desk.group().generation
    check = desk.coordinator.check_commit_in_transaction
    assert check(GROUP, old, "i", generation) is Refusal.FENCED
    assert check(GROUP, joined.member_id, "i", generation) is None


def test_a_producer_that_names_no_member_is_allowed_at_any_time_as_in_kafka() -> None:
    """Before version 3 it cannot name one; and it is fenced by its transactional id."""
    desk = Desk()
    check = desk.coordinator.check_commit_in_transaction
    assert check(GROUP, "", None, -1) is None
    desk.member()
    assert check(GROUP, "", None, -1) is None


def test_a_generation_of_a_group_that_is_gone_is_refused() -> None:
    assert Desk().coordinator.check_commit_in_transaction(GROUP, "m", None, 1) is Refusal.ILLEGAL_GENERATION


def test_offsets_of_the_current_generation_are_taken_while_the_group_rebalances() -> None:
    """The state of the group is not checked, as in Kafka; OffsetCommit is refused then."""
    desk = Desk()
    joined = desk.join()
    assert joined is not None
    assert desk.group().state is GroupState.COMPLETING
    named = (GROUP, joined.member_id, None, joined.generation)
    assert desk.coordinator.check_commit_in_transaction(*named) is None
    assert desk.coordinator.check_commit(*named, 0) is Refusal.REBALANCING


def test_a_group_with_nothing_but_a_pending_offset_is_listed_as_empty() -> None:
    desk = Desk()
    desk.coordinator.pended(GROUP, FIRST, {PLACE: offset(7)})
    assert desk.coordinator.groups() == [GROUP]
    assert desk.group().state is GroupState.EMPTY
    desk.coordinator.transaction_ended(FIRST, committed=False)
    assert desk.coordinator.groups() == []
    assert desk.coordinator.find(GROUP) is None


def test_deleting_an_offset_deletes_what_open_transactions_would_commit() -> None:
    desk = Desk()
    desk.commit(OTHER)
    desk.coordinator.pended(GROUP, FIRST, {PLACE: offset(7), OTHER: offset(8)})
    assert drop(desk, PLACE, OTHER, ("nothing", 0)) == 2
    desk.coordinator.transaction_ended(FIRST, committed=True)
    assert offsets_of(desk) == {}


def test_deleting_a_group_deletes_what_open_transactions_would_commit() -> None:
    desk = Desk()
    member_id = desk.member()
    desk.leave(member_id)
    desk.commit(OTHER)
    desk.coordinator.pended(GROUP, FIRST, {PLACE: offset(7), OTHER: offset(8)})
    places = [*desk.coordinator.offsets(GROUP), *desk.coordinator.pending_of(GROUP)]
    assert len(desk.coordinator.rows_to_delete(GROUP)) == 3
    desk.coordinator.deleted(GROUP, places)
    desk.coordinator.transaction_ended(FIRST, committed=True)
    assert desk.coordinator.groups() == []


def test_neither_an_offset_nor_a_group_expires_while_a_transaction_may_change_it() -> None:
    desk = Desk()
    member_id = desk.member()
    desk.leave(member_id)
    desk.commit(PLACE, OTHER)
    desk.coordinator.pended(GROUP, FIRST, {PLACE: offset(7)})
    later = desk.now + RETENTION_MS
    assert desk.coordinator.expired(later) == {GROUP: [OTHER]}
    drop(desk, OTHER)
    desk.coordinator.transaction_ended(FIRST, committed=False)
    desk.coordinator.pended(GROUP, FIRST, {OTHER: offset(7)})
    drop(desk, PLACE)
    assert desk.coordinator.abandoned(later) == []
    desk.coordinator.transaction_ended(FIRST, committed=False)
    assert desk.coordinator.abandoned(later) == [GROUP]


def test_the_offsets_of_a_deleted_topic_are_found_in_open_transactions_too() -> None:
    desk = Desk()
    desk.commit(PLACE)
    desk.coordinator.pended(GROUP, FIRST, {PLACE: offset(7), OTHER: offset(8), ("more", 0): offset(9)})
    assert desk.coordinator.topics() == {"topic", "more"}
    assert desk.coordinator.offsets_of_topic("topic") == {GROUP: [PLACE, OTHER]}
    assert desk.coordinator.offsets_of_topic("more") == {GROUP: [("more", 0)]}


def test_retention_waits_for_what_an_open_transaction_may_commit() -> None:
    desk = Desk()
    desk.commit(PLACE, at=9)
    desk.coordinator.pended(GROUP, FIRST, {PLACE: offset(7)})
    desk.coordinator.pended(GROUP, SECOND, {OTHER: offset(4)})
    assert desk.coordinator.needed_from(*PLACE) == 7
    assert desk.coordinator.needed_from(*OTHER) == 4
    desk.coordinator.transaction_ended(FIRST, committed=False)
    assert desk.coordinator.needed_from(*PLACE) == 9


def stored_by(desk: Desk, *offsets: tuple[TransactionKey | None, tuple[str, int], int]) -> StoredRows:
    stored = StoredRows()
    for transaction, place, at in offsets:
        for key, value in desk.coordinator.rows_to_commit(GROUP, {place: offset(at)}):
            stored.add(key, value, transaction)
    return stored


def test_open_transactions_are_pending_again_after_a_restart() -> None:
    desk = Desk()
    stored = stored_by(desk, (None, PLACE, 1), (FIRST, PLACE, 2), (SECOND, OTHER, 3), (SECOND, PLACE, 4))
    stored.end(SECOND, committed=True)
    assert desk.coordinator.load_stored(stored, 0) == 0
    assert offsets_of(desk) == {PLACE: 4, OTHER: 3}
    assert desk.coordinator.is_pending(GROUP, PLACE)
    assert not desk.coordinator.is_pending(GROUP, OTHER)
    # Its record is older than the one that is valid now.
    desk.coordinator.transaction_ended(FIRST, committed=True)
    assert offsets_of(desk) == {PLACE: 4, OTHER: 3}


def test_a_pending_offset_that_cannot_be_decoded_is_counted_and_keeps_retention_away() -> None:
    desk = Desk()
    stored = stored_by(desk, (None, PLACE, 1))
    ((key, _),) = desk.coordinator.rows_to_commit(GROUP, {OTHER: offset(1)})
    stored.add(key, b"\0\x63", FIRST)
    stored.add(b"\0\1\0", b"", FIRST)
    assert desk.coordinator.load_stored(stored, 0) == 2
    assert desk.coordinator.needed_from(*OTHER) == 0
