"""Invariants of the shared log: each planted fault is seen by the next ordinary call."""

from __future__ import annotations

from threading import Event, RLock, Thread
from typing import Any

import pytest
from support.patience import SECONDS_MAX
from support.shared import create, open_data, physical, put, records_of, shared_log, virtual

from cordwood.disk.memory import MemoryFiles
from cordwood.errors import MetadataDamaged
from cordwood.formats.shared import ENTRY_SIZE
from cordwood.storage.directory import DataDirectory
from cordwood.storage.shared.reindex import OwnerBuilder
from cordwood.storage.shared.virtual_log import owner_of


@pytest.fixture
def data() -> DataDirectory:
    """Two topics in the shared log. Not closed: the planted state would fail that too."""
    opened = open_data(MemoryFiles())
    create(opened, "orders", "others")
    put(virtual(opened, "orders"), b"0", b"1")
    put(virtual(opened, "others"), b"2")
    return opened


def test_a_partition_under_another_owner_is_caught(data: DataDirectory) -> None:
    orders = virtual(data, "orders")
    orders.part = virtual(data, "others").part
    with pytest.raises(AssertionError, match="another owner"):
        put(orders, b"3")


def test_a_partition_kept_under_another_owner_is_caught(data: DataDirectory) -> None:
    topics, orders = shared_log(data).topics, virtual(data, "orders")
    topics._found[orders.owner] = virtual(data, "others").part
    with pytest.raises(AssertionError, match="another owner"):
        topics.use(orders.owner, 0, 0)


def test_a_partition_that_is_refused_and_not_known_is_caught(data: DataDirectory) -> None:
    topics, owner = shared_log(data).topics, owner_of("unknown", 0)
    topics.refused[owner] = MetadataDamaged("path", "a reason")
    with pytest.raises(AssertionError, match="not known"):
        topics.check_invariants(owner)


def test_negative_sizes_of_a_partition_are_caught(data: DataDirectory) -> None:
    orders = virtual(data, "orders")
    orders.part.lapsed_bytes = -1
    with pytest.raises(AssertionError, match="lapsed"):
        put(orders, b"3")


def test_negative_dead_bytes_are_caught(data: DataDirectory) -> None:
    shared_log(data).dead_bytes = -1
    with pytest.raises(AssertionError, match="dead"):
        put(virtual(data, "orders"), b"3")


def test_an_open_partition_under_another_name_is_caught(data: DataDirectory) -> None:
    topics = data.partitions.shared
    topics._opened["orders", 0] = virtual(data, "others")
    with pytest.raises(AssertionError, match="another name"):
        topics.check_invariants("orders", 0)


def test_half_an_entry_of_the_index_is_caught(data: DataDirectory) -> None:
    index = shared_log(data)._active
    index._state = (index._state[0], bytearray(ENTRY_SIZE // 2))
    with pytest.raises(AssertionError, match="within an entry"):
        put(virtual(data, "orders"), b"3")


def test_an_index_that_is_built_from_half_an_entry_is_caught() -> None:
    builder = OwnerBuilder(MemoryFiles(), "/index", 0, "/staged/index")
    builder._pending = bytearray(ENTRY_SIZE // 2)
    with pytest.raises(AssertionError, match="within one"):
        builder.finish()


class AskedFor:
    """A lock that says when a thread other than its maker asks for it."""

    def __init__(self) -> None:
        self.asked = Event()
        self._lock = RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.asked.set()
            self._lock.acquire()

    def __exit__(self, *failure: object) -> None:
        self._lock.release()


def test_a_roll_waits_for_the_entry_of_an_append_in_the_index(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry has the position of the frame in the active segment, which a roll in between would change."""
    shared, orders = shared_log(data), virtual(data, "orders")
    lock, note, rolled = AskedFor(), shared._note, Event()
    monkeypatch.setattr(shared, "lock", lock)

    def roll() -> None:
        virtual(data, "others").roll()
        rolled.set()
        lock.asked.set()

    thread = Thread(target=roll, daemon=True)

    def note_after_a_roll(placing: Any) -> Any:
        if not thread.ident:
            thread.start()
            assert lock.asked.wait(SECONDS_MAX)
            assert not rolled.is_set(), "the log rolled before the append was in the index"
        return note(placing)

    monkeypatch.setattr(shared, "_note", note_after_a_roll)
    put(orders, b"3")
    thread.join(SECONDS_MAX)
    assert rolled.is_set()
    assert len(physical(data).state.sealed) == 1
    assert [record.value for record in records_of(orders)] == [b"0", b"1", b"3"]
