"""A batch comes into view in all of its partitions at once, for readers in the process of the writer (E3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import pytest
from support.clocks import HookedFiles
from support.patience import SECONDS_MAX
from support.publishing import (
    ALWAYS,
    MIXED,
    NEVER,
    QUERY,
    Plan,
    State,
    adopting,
    contents_of,
    kill,
    open_log,
    records_of,
    stage,
)

import cordwood
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, LogFailed
from cordwood.storage.log import PartitionLog, VisibilityHold, WritablePartition
from cordwood.storage.meta import SHARED_TOPIC
from cordwood.storage.shared import VirtualLog
from cordwood.storage.sink.publishing import Publisher

SMALL = {"segment.bytes": "400", "index.interval.bytes": "100"}
SHARED = {"cordwood.storage": "shared"}
WAYS_IN = {"appended": NEVER, "adopted": ALWAYS, "both": MIXED}
P0, P1, WEAK, S0, S1 = ("orders", 0), ("orders", 1), ("weak", 0), ("shared", 0), ("shared", 1)
#: Several frames for each, so that the small segments roll.
PLAN: Plan = {name: [[f"{name}-{n}".encode() * 5] for n in range(6)] for name in (P0, P1, WEAK, S0, S1)}


def made(files: HookedFiles) -> cordwood.Log:
    """Return an open directory with topics of every kind, and a record in some of their partitions."""
    log = open_log(files)
    topics = log.data_directory.topics
    topics.create("orders", "id-orders", 2, SMALL)
    topics.create("weak", "id-weak", 1, {"cordwood.sync": "never"})
    topics.create("shared", "id-shared", 2, SHARED)
    topics.create("beside", "id-beside", 1, SHARED)
    for topic, partition in (P0, WEAK, S1):
        log.topic(topic).append(b"before", partition=partition)
    return log


def visible(log: cordwood.Log) -> State:
    """Return what readers see; what the offsets of each partition say must agree with that."""
    data = log.data_directory
    found = {name: values for name, values in contents_of(data).items() if name[0] != SHARED_TOPIC}
    for (topic, number), values in found.items():
        partition = data.readable(topic, number)
        assert partition.high_watermark == partition.last_stable_offset == len(values)
        newest, records = partition.newest(), records_of(partition)
        assert newest is None or newest[0] < len(values)
        times = [(record.offset, record.timestamp) for record in records]
        assert newest == (max(times, key=lambda each: (each[1], -each[0])) if times else None)
    return found


def with_batch(before: State) -> State:
    """Return what readers see once the batch is in view."""
    frames: dict[Any, Any] = dict(PLAN)
    return {
        name: values + [value for frame in frames.get(name, ()) for value in frame]
        for name, values in before.items()
    }


def seen_while_published(log: cordwood.Log, files: HookedFiles) -> list[State]:
    """Publish the batch; return what a reader saw before each call that the disk got meanwhile."""
    shares = stage(files, log.data_directory, PLAN)
    seen: list[State] = []

    def look(kind: str, path: str) -> None:
        files.before = lambda kind, path: None
        seen.append(visible(log))
        files.before = look

    files.before = look
    assert log.data_directory.publisher.publish(QUERY, 0, shares)
    files.before = lambda kind, path: None
    return seen


def test_no_moment_of_a_publication_shows_a_part_of_it() -> None:
    """Whatever its way in: appended over rolls, adopted, to the shared log, to a topic that does not sync."""
    for threshold in WAYS_IN.values():
        with adopting(threshold):
            files = HookedFiles(MemoryFiles())
            log = made(files)
            before = visible(log)
            seen = seen_while_published(log, files)
            after = with_batch(before)
            assert visible(log) == after
            assert seen.count(before) >= 30
            # The journal is closed after the batch came into view.
            assert seen.count(after) >= 2
            assert [state for state in seen if state not in (before, after)] == []
            log.close()


def test_records_beside_a_batch_stay_in_order_and_come_into_view_after_it() -> None:
    files = HookedFiles(MemoryFiles())
    log = made(files)
    before = visible(log)
    seen_while_published(log, files)
    for topic, partition in before:
        log.topic(topic).append(b"after", partition=partition)
    assert visible(log) == {name: [*values, b"after"] for name, values in with_batch(before).items()}
    log.close()
    with open_log(files) as log:
        assert visible(log) == {name: [*values, b"after"] for name, values in with_batch(before).items()}


@contextmanager
def own_partitions_are_not_held_back() -> Iterator[None]:
    with patch.object(PartitionLog, "hold_back", lambda self, hold: None):
        yield


@contextmanager
def shared_partitions_are_not_held_back() -> Iterator[None]:
    with patch.object(VirtualLog, "hold_back", lambda self, hold: None):
        yield


@contextmanager
def each_partition_has_a_hold_of_its_own() -> Iterator[None]:
    """That ends when the partition is synced."""
    real = PartitionLog.commit

    def commit(self: PartitionLog, offset: int | None = None) -> None:
        real(self, offset)
        if self._held_back is not None:
            self._held_back[0].end()

    def hold_back(self: PartitionLog, hold: VisibilityHold) -> None:
        self._held_back = (VisibilityHold(), self.view)

    with patch.object(PartitionLog, "hold_back", hold_back), patch.object(PartitionLog, "commit", commit):
        yield


@contextmanager
def the_hold_ends_before_the_records_are_synced() -> Iterator[None]:
    real = Publisher._append_section

    def append(self: Publisher, log: WritablePartition, *rest: Any) -> None:
        real(self, log, *rest)
        if isinstance(log, PartitionLog) and log._held_back is not None:
            log._held_back[0].end()

    with patch.object(Publisher, "_append_section", append):
        yield


@pytest.mark.parametrize(
    "planted",
    [
        own_partitions_are_not_held_back,
        shared_partitions_are_not_held_back,
        each_partition_has_a_hold_of_its_own,
        the_hold_ends_before_the_records_are_synced,
    ],
)
def test_a_planted_bug_that_shows_a_part_is_caught(planted: Callable[[], Any]) -> None:
    files = HookedFiles(MemoryFiles())
    log = made(files)
    before = visible(log)
    with adopting(NEVER), planted():
        seen = seen_while_published(log, files)
    assert any(state not in (before, with_batch(before)) for state in seen), f"{planted.__name__} survived"


@pytest.mark.parametrize("waits_on", PLAN, ids=lambda name: f"{name[0]}-{name[1]}")
def test_whoever_is_woken_in_one_partition_finds_the_batch_in_every_other(waits_on: tuple[str, int]) -> None:
    files = HookedFiles(MemoryFiles())
    log = made(files)
    data = log.data_directory
    shares = stage(files, data, PLAN)
    before = visible(log)
    waiting, found = threading.Event(), list[State]()
    partition = data.partitions.writable(*waits_on)

    def follow() -> None:
        waiting.set()
        partition.wait_beyond(len(before[waits_on]))
        found.append(visible(log))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert waiting.wait(SECONDS_MAX)
    assert data.publisher.publish(QUERY, 0, shares)
    thread.join(SECONDS_MAX)
    assert found == [with_batch(before)]
    log.close()


def test_the_watcher_of_the_directory_is_told_when_there_is_more_to_see() -> None:
    """The asyncio side waits for that, and looks again only then."""
    files = HookedFiles(MemoryFiles())
    log = made(files)
    data = log.data_directory
    shares = stage(files, data, PLAN)
    before = visible(log)
    told: dict[tuple[str, int], bool] = {}

    def watch(topic: str, partition: int) -> None:
        told[topic, partition] = data.readable(*P0).high_watermark > len(before[P0])

    data.context.growth.watcher = watch
    assert data.publisher.publish(QUERY, 0, shares)
    data.context.growth.watcher = None
    # The last word about each is after the batch came into view; that of the shared log is about its topics.
    assert told == {P0: True, P1: True, WEAK: True, (SHARED_TOPIC, 0): True}
    log.close()


def test_a_publication_that_fails_after_its_intent_shows_nothing_until_the_next_open() -> None:
    """Partitions with files of their own are failed; those in the shared log serve what was there before."""
    files = HookedFiles(MemoryFiles())
    log = made(files)
    data = log.data_directory
    before = visible(log)
    shares = stage(files, data, PLAN)
    real = Publisher._append_section

    def append(self: Publisher, log: WritablePartition, *rest: Any) -> None:
        if log.state.topic == "weak":
            raise CordwoodError("planted")
        real(self, log, *rest)

    with patch.object(Publisher, "_append_section", append), pytest.raises(LogFailed):
        data.publisher.publish(QUERY, 0, shares)
    # The shared log goes on with other partitions, and what is synced for those syncs the batch too.
    other = data.partitions.writable("beside", 0)
    other.append([(None, b"value")])
    other.commit()
    assert other.high_watermark == 1
    for topic, number in PLAN:
        partition = data.readable(topic, number)
        assert partition.high_watermark == partition.last_stable_offset == len(before[topic, number])
        with nullcontext() if topic == "shared" else pytest.raises(LogFailed):
            found = partition.read(partition.log_start_offset, 1 << 20)
            assert found.next_offset == len(before[topic, number])
    kill(log)
    with open_log(files) as log:
        assert visible(log) == with_batch(before | {("beside", 0): [b"value"]})


def test_ends_that_are_looked_at_together_split_no_batch() -> None:
    """Read one after the other, the ends may have a batch between them: they are read again then."""
    files = HookedFiles(MemoryFiles())
    log = made(files)
    data = log.data_directory
    before = {name: len(values) for name, values in visible(log).items()}
    shares = stage(files, data, PLAN)
    looks = 0

    def look() -> dict[tuple[str, int], int]:
        nonlocal looks
        looks += 1
        found = {}
        for number, name in enumerate(before):
            if looks == 1 and number == 2:
                assert data.publisher.publish(QUERY, 0, shares)
            found[name] = data.readable(*name).high_watermark
        return found

    found = data.publisher.look_at_once(look)
    assert looks == 2
    assert found == {name: before[name] + (6 if name in PLAN else 0) for name in before}
    log.close()
