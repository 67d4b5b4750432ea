"""The probe refuses every store that would lose records, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

import pytest
from support.bucket_faults import FaultyStore, PlannedFault, StoreFault

from cordwood.bucket import ObjectStore, Request, Stored
from cordwood.bucket.ownership import Create, Delete, Replace
from cordwood.bucket.probe import RACERS, TRIES, probe
from cordwood.bucket.stores import MemoryStore, RemoteStore
from cordwood.errors import BucketRefused, ObjectExists, ObjectMissing, StoreUnavailable, VersionChanged
from cordwood.host import Crew, Host


@pytest.fixture
def crew() -> Iterator[Crew]:
    found = Crew("probe", RACERS, Host())
    yield found
    found.close()


class Pauses:
    """Waits for nothing, and keeps what was asked for."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def __call__(self, attempt: int) -> None:
        self.attempts.append(attempt)


class PlantedStore(MemoryStore):
    """A store in memory, of which tests break a method."""

    def __init__(self) -> None:
        super().__init__()
        self.planted = Lock()
        self.let_through = 1

    def overwrite(self, key: str, data: bytes) -> str:
        with self._lock:
            return self._put(key, data)


class TwoCreate(PlantedStore):
    """Lets the second creation replace the first, once."""

    def create(self, key: str, data: bytes) -> str:
        try:
            return super().create(key, data)
        except ObjectExists:
            with self.planted:
                self.let_through -= 1
                if self.let_through < 0:
                    raise
            return self.overwrite(key, data)


class TwoReplace(PlantedStore):
    def replace(self, key: str, data: bytes, version: str) -> str:
        try:
            return super().replace(key, data, version)
        except VersionChanged:
            with self.planted:
                self.let_through -= 1
                if self.let_through < 0:
                    raise
            return self.overwrite(key, data)


class IgnoresConditions(PlantedStore):
    """As versitygw does with `--nometa`."""

    def create(self, key: str, data: bytes) -> str:
        return self.overwrite(key, data)


class KeepsTheLoser(PlantedStore):
    """Says that the first one created the object, and stores the bytes of the second."""

    def create(self, key: str, data: bytes) -> str:
        try:
            return super().create(key, data)
        except ObjectExists:
            self.overwrite(key, data)
            raise


class NobodyWins(PlantedStore):
    def create(self, key: str, data: bytes) -> str:
        super().create(key, data)
        raise ObjectExists(key)


class Forgets(PlantedStore):
    def get(self, key: str) -> Stored:
        raise ObjectMissing(key)


class Garbles(PlantedStore):
    def get(self, key: str) -> Stored:
        return super().get(key)._replace(data=b"other bytes")


class ListsLate(PlantedStore):
    def list(self, prefix: str, after: str = "") -> list[str]:
        return []


def test_a_store_with_conditional_writes_passes_and_keeps_nothing(crew: Crew) -> None:
    store = FaultyStore(MemoryStore())
    probe(store, "nonce", crew, Pauses())
    assert store.list("") == []
    assert len(store.requests(Create)) == len(store.requests(Replace)) == RACERS == 24
    assert {request.key for request in store.requests() if isinstance(request, Create)} == {"probe/nonce"}


def test_a_server_of_s3_passes_and_keeps_nothing(crew: Crew, s3_store: RemoteStore) -> None:
    s3_store.create("w/1", b"")
    probe(s3_store, "nonce", crew, Pauses())
    assert s3_store.list("") == ["w/1"]


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        (TwoCreate(), "let 2 of 24 writers create the same object"),
        (TwoReplace(), "let 2 of 24 writers replace the same object"),
        (IgnoresConditions(), "let 24 of 24 writers create the same object"),
        (KeepsTheLoser(), "told one writer that it could create an object, and holds the bytes of another"),
        (NobodyWins(), "told all 24 writers that another one"),
        (Forgets(), "does not return an object right after it was written"),
        (Garbles(), "returned bytes that no writer sent"),
        (ListsLate(), "does not list an object that was created"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, MemoryStore) else "",
)
def test_a_store_that_loses_records_is_refused(crew: Crew, store: PlantedStore, sentence: str) -> None:
    with pytest.raises(BucketRefused) as raised:
        probe(store, "nonce", crew, Pauses())
    assert sentence in str(raised.value)
    assert store._objects == {}


@pytest.mark.parametrize("fault", [StoreFault.BEFORE, StoreFault.AFTER, StoreFault.LATER, StoreFault.TWICE])
def test_lost_answers_are_no_reason_to_refuse(crew: Crew, fault: StoreFault) -> None:
    """Of every three requests, one; a racer whose answer was lost may be told that it lost to itself.

    A request that happens later does so within the tries of the others.
    """
    twin = MemoryStore()

    def plan(number: int, request: Request) -> PlannedFault | None:
        if fault is StoreFault.TWICE and not isinstance(request, Delete):
            return None
        return PlannedFault(fault, passing=3) if number % 3 == 1 else None

    store = FaultyStore(twin, plan)
    pauses = Pauses()
    probe(store, "nonce", crew, pauses)
    assert fault is StoreFault.TWICE or pauses.attempts
    assert twin.list("") == []


def test_the_first_answer_of_each_race_may_be_lost(crew: Crew) -> None:
    """Then nobody is told that it won; the bytes that are stored say who did."""
    lost: set[type] = set()
    guard = Lock()

    def plan(number: int, request: Request) -> PlannedFault | None:
        with guard:
            if isinstance(request, (Create, Replace)) and type(request) not in lost:
                lost.add(type(request))
                return PlannedFault(StoreFault.AFTER)
        return None

    probe(FaultyStore(MemoryStore(), plan), "nonce", crew, Pauses())
    assert lost == {Create, Replace}


def test_a_store_that_does_not_answer_is_given_up_and_not_refused(crew: Crew) -> None:
    def plan(number: int, request: Request) -> PlannedFault | None:
        return PlannedFault(StoreFault.BEFORE)

    store, pauses = FaultyStore(MemoryStore(), plan), Pauses()
    with pytest.raises(StoreUnavailable):
        probe(store, "nonce", crew, pauses)
    assert len(store.requests(Create)) == RACERS * TRIES
    assert max(pauses.attempts) == TRIES


def test_what_the_pause_raises_ends_the_probe(crew: Crew) -> None:
    def stop(attempt: int) -> None:
        raise TimeoutError("the process is ending")

    store = FaultyStore(MemoryStore(), lambda number, request: PlannedFault(StoreFault.BEFORE))
    with pytest.raises(TimeoutError, match="is ending"):
        probe(store, "nonce", crew, stop)
    assert len(store.requests(Create)) == RACERS


def test_a_store_without_the_right_to_write_says_so(crew: Crew) -> None:
    class ReadOnly(MemoryStore):
        def create(self, key: str, data: bytes) -> str:
            raise BucketRefused("may not write")

    store: ObjectStore = ReadOnly()
    with pytest.raises(BucketRefused, match="may not write"):
        probe(store, "nonce", crew, Pauses())


def test_a_store_without_the_right_to_delete_says_so(crew: Crew) -> None:
    class Undeletable(MemoryStore):
        def delete(self, key: str) -> None:
            raise BucketRefused("may not delete")

    with pytest.raises(BucketRefused, match="may not delete"):
        probe(Undeletable(), "nonce", crew, Pauses())
