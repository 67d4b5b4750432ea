"""The store with faults does what its plan says: tests of the protocol rest on it."""

from __future__ import annotations

import pytest
from support.bucket_faults import FaultyStore, PlannedFault, StoreFault

from cordwood.bucket import Request
from cordwood.bucket.ownership import Create, Get
from cordwood.bucket.stores import MemoryStore
from cordwood.errors import ObjectExists, ObjectMissing, StoreUnavailable


def faulty(plan: dict[int, PlannedFault]) -> tuple[MemoryStore, FaultyStore]:
    twin = MemoryStore()
    return twin, FaultyStore(twin, plan)


def test_a_request_that_fails_before_did_not_happen() -> None:
    twin, store = faulty({1: PlannedFault(StoreFault.BEFORE)})
    with pytest.raises(StoreUnavailable):
        store.create("k", b"1")
    assert twin.list("") == []


def test_a_request_that_fails_after_happened() -> None:
    twin, store = faulty({1: PlannedFault(StoreFault.AFTER), 2: PlannedFault(StoreFault.AFTER)})
    with pytest.raises(StoreUnavailable):
        store.create("k", b"1")
    assert twin.get("k").data == b"1"
    with pytest.raises(StoreUnavailable):
        store.create("k", b"2")
    assert twin.get("k").data == b"1"
    assert [each.outcome for each in store.journal] == ["1", "ObjectExists"]


def test_a_request_that_happens_later_does_when_others_have_passed() -> None:
    twin, store = faulty({1: PlannedFault(StoreFault.LATER, passing=2)})
    with pytest.raises(StoreUnavailable):
        store.create("k", b"late")
    assert store.list("") == []
    assert twin.list("") == []
    with pytest.raises(ObjectMissing):
        store.get("k")
    assert twin.get("k").data == b"late"
    assert [(each.number, each.outcome) for each in store.journal] == [
        *((1, "happens later"), (2, []), (3, "ObjectMissing"), (1, "1"))
    ]


def test_a_request_that_is_released_happens_then_and_replaces_nothing() -> None:
    twin, store = faulty({1: PlannedFault(StoreFault.LATER), 2: PlannedFault(StoreFault.LATER)})
    for key in ("a", "b"):
        with pytest.raises(StoreUnavailable):
            store.create(key, b"late")
    store.create("a", b"in time")
    assert twin.list("") == ["a"]
    assert store.release() == 2
    assert store.release() == 0
    assert (twin.get("a").data, twin.get("b").data) == (b"in time", b"late")


def test_a_request_that_happens_twice_is_answered_as_the_second_one() -> None:
    twin, store = faulty({1: PlannedFault(StoreFault.TWICE), 2: PlannedFault(StoreFault.TWICE)})
    with pytest.raises(ObjectExists):
        store.create("k", b"1")
    assert twin.get("k").data == b"1"
    store.delete("k")
    assert twin.list("") == []


def test_hooks_surround_each_request_and_may_use_the_store() -> None:
    twin = MemoryStore()
    calls: list[tuple[str, int, Request]] = []

    def before(number: int, request: Request) -> None:
        calls.append(("before", number, request))
        if isinstance(request, Create):
            twin.create(request.key, b"by another writer")

    store = FaultyStore(twin, before=before, after=lambda *what: calls.append(("after", *what)))
    with pytest.raises(ObjectExists):
        store.create("k", b"1")
    assert store.get("k").data == b"by another writer"
    assert [(when, number) for when, number, _ in calls] == [
        *(("before", 1), ("after", 1), ("before", 2), ("after", 2))
    ]
    assert store.requests() == [Create("k", b"1"), Get("k")]
    assert store.requests(Get) == [Get("k")]


def test_a_plan_may_decide_by_the_request() -> None:
    store = FaultyStore(
        MemoryStore(),
        lambda number, request: PlannedFault(StoreFault.BEFORE) if isinstance(request, Get) else None,
    )
    store.create("k", b"1")
    with pytest.raises(StoreUnavailable):
        store.get("k")
    assert store.get_range("k", 0, 1) == b"1"
