"""A reader beside the writer that plans several partitions sees a batch in all of them, or in none (E3).

The writer's operations are recorded and played again under a reader: before each of its calls the disk moves
on by some of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from support.clocks import HookedFiles
from support.disks import Acknowledged, RecordingFiles, Replay
from support.publishing import (
    ALWAYS,
    CONFIG,
    DATA,
    MIXED,
    NEVER,
    QUERY,
    Plan,
    adopting,
    kill,
    open_log,
    stage,
)
from support.seeds import seeds_from

import cordwood
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import StorageError
from cordwood.interchange.exporting import ExportTarget, export_topics
from cordwood.spark.access.path import PathAccess
from cordwood.storage.meta import SHARED_TOPIC
from cordwood.storage.readonly.directory import ReadOnlyDirectory
from cordwood.storage.sink import intents
from cordwood.storage.sink.journal import journal_paths
from cordwood.storage.sink.publishing import Publisher

SMALL = {"segment.bytes": "400", "index.interval.bytes": "100"}
WAYS_IN = {"appended": NEVER, "adopted": ALWAYS, "both": MIXED}
P0, P1, S0, S1 = ("orders", 0), ("orders", 1), ("shared", 0), ("shared", 1)
Ends = dict[tuple[str, int], int]
TRIALS = 25


@dataclass(frozen=True)
class Published:
    """So many batches are published."""

    count: int


@dataclass
class History:
    """The operations of a writer, and the ends of all partitions after each batch."""

    operations: list[Any]
    states: list[Ends]

    def published_by(self, at: int) -> int:
        """Return how many batches are published before operation *at*."""
        said = [each.what for each in self.operations[:at] if isinstance(each, Acknowledged)]
        return max((what.count for what in said if isinstance(what, Published)), default=0)


def plan(number: int) -> Plan:
    """Return what batch *number* has: another number of frames for each partition."""
    return {
        name: [[b"v" * 30] for _ in range(1 + (number + at) % 3)] for at, name in enumerate((P0, S1, P1, S0))
    }


def recorded(threshold: int) -> History:
    """Publish batches of queries that are remembered and of others, with a kill and a close in between."""
    files = RecordingFiles(MemoryFiles())
    log = open_log(files)
    log.data_directory.topics.create("orders", "id-orders", 2, SMALL)
    log.data_directory.topics.create("shared", "id-shared", 2, {"cordwood.storage": "shared"})
    for topic, partition in (P0, P1, S0, S1):
        log.topic(topic).append(b"before", partition=partition)
    state: Ends = {P0: 1, P1: 1, S0: 1, S1: 1}
    states = [state]
    files.acknowledge(Published(0))
    with adopting(threshold):
        for number, query in enumerate(["a", "once 1", "a", "b", "once 2", "once 3", "b", "a"]):
            data = log.data_directory
            shares = stage(files, data, plan(number), number, query=query)
            assert data.publisher.publish(query, number, shares, remember=not query.startswith("once"))
            state = {name: end + len(plan(number)[name]) for name, end in state.items()}
            states.append(state)
            files.acknowledge(Published(number + 1))
            if number == 4:
                kill(log)
                log = open_log(files)
            if number == 5:
                log.close()
                log = open_log(files)
    log.close()
    return History(list(files.history), states)


def planned(files: Files) -> Ends:
    """Return the ends of all partitions as a plan over them has them."""
    reader = ReadOnlyDirectory(files, DATA, CONFIG)

    def look() -> dict[tuple[str, int], tuple[str, int]]:
        return {
            (entry.name, number): (entry.id, reader.readable(entry.name, number).high_watermark)
            for entry in reader.topics.values()
            for number in range(0 if entry.name == SHARED_TOPIC else entry.partitions)
        }

    found, open_intents = reader.look_at_once(look)
    return {
        (topic, number): open_intents.end_before(topic, topic_id, number, end)
        for (topic, number), (topic_id, end) in found.items()
    }


def planned_by_spark(files: Files) -> Ends:
    """Return the ends that a query of Spark by path plans."""
    access = PathAccess(DATA, verify=True, files=files)
    standings = access.standings({"orders": None, "shared": None})
    return {
        (topic, number): ends.end
        for topic, state in standings.items()
        for number, ends in state.partitions.items()
    }


def wrong_plans(history: History, dice: random.Random, look: Callable[[Files], Ends]) -> list[str]:
    """Return what is wrong with the plans of readers that begin at random moments."""
    first = next(at for at, each in enumerate(history.operations) if isinstance(each, Acknowledged))
    wrong = []
    for _ in range(TRIALS):
        start = at = dice.randrange(first, len(history.operations))
        disk = Replay()
        for operation in history.operations[:start]:
            disk.apply(operation)
        hooked, often = HookedFiles(disk.files), dice.choice([0.02, 0.1, 0.5])
        farthest = dice.choice([2, 20, 150])

        def move(
            kind: str, path: str, often: float = often, farthest: int = farthest, disk: Replay = disk
        ) -> None:
            nonlocal at
            for _ in range(dice.randrange(farthest) if dice.random() < often else 0):
                if at < len(history.operations):
                    disk.apply(history.operations[at])
                    at += 1

        hooked.before = move
        ends = look(hooked)
        if ends not in history.states:
            wrong.append(f"E3: from operation {start} to {at}: {ends} is a part of a batch")
        elif history.states.index(ends) < history.published_by(start):
            wrong.append(f"E2: from operation {start} to {at}: {ends} misses a batch")
    return wrong


@pytest.fixture(scope="module")
def histories() -> dict[str, History]:
    return {name: recorded(threshold) for name, threshold in WAYS_IN.items()}


@pytest.mark.parametrize("look", [planned, planned_by_spark])
@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize("seed", seeds_from(0, 2))
def test_a_plan_has_a_batch_in_every_partition_or_in_none(
    histories: dict[str, History], way_in: str, look: Callable[[Files], Ends], seed: int
) -> None:
    print(f"seed {seed}")
    assert wrong_plans(histories[way_in], random.Random(seed), look) == []


@contextmanager
def journals_are_read_before_the_ends_only() -> Iterator[None]:
    real = intents._open_in
    with (
        patch.object(intents, "_open_in", lambda before, after: real(before)),
        patch.object(intents, "_is_all_known", lambda before, after: True),
    ):
        yield


@contextmanager
def journals_are_read_after_the_ends_only() -> Iterator[None]:
    real = intents._open_in
    with (
        patch.object(intents, "_open_in", lambda before, after: real(after)),
        patch.object(intents, "_is_all_known", lambda before, after: True),
    ):
        yield


@contextmanager
def whole_publications_in_between_go_unnoticed() -> Iterator[None]:
    with patch.object(intents, "_is_all_known", lambda before, after: True):
        yield


@contextmanager
def intents_are_not_looked_at() -> Iterator[None]:
    with patch.object(intents, "_open_in", lambda *looks: intents.NO_INTENTS):
        yield


@pytest.mark.parametrize(
    "planted",
    [
        journals_are_read_before_the_ends_only,
        journals_are_read_after_the_ends_only,
        whole_publications_in_between_go_unnoticed,
        intents_are_not_looked_at,
    ],
)
def test_a_planted_bug_of_planning_is_caught(
    histories: dict[str, History], planted: Callable[[], Any]
) -> None:
    with planted():
        for seed in range(20):
            if wrong_plans(histories["appended"], random.Random(seed), planned):
                return
    pytest.fail(f"{planted.__name__} survived")


@contextmanager
def unremembered_batches_leave_no_number() -> Iterator[None]:
    real = Publisher._close

    def close(self: Publisher, *arguments: Any, **options: Any) -> Any:
        closed = real(self, *arguments, **options)
        self._drop_numbered()
        return closed

    with patch.object(Publisher, "_close", close):
        yield


def test_a_batch_that_leaves_no_trace_would_be_missed() -> None:
    """So the journal of a query that is not remembered stays until the next publication."""
    with unremembered_batches_leave_no_number():
        history = recorded(NEVER)
    for seed in range(20):
        if wrong_plans(history, random.Random(seed), planned):
            return
    pytest.fail("it is not")


def test_a_directory_that_is_published_to_all_the_time_is_an_error_and_never_a_part() -> None:
    files = MemoryFiles()
    log = open_log(files)
    log.topic("orders", 2)
    count = 0

    def look() -> int:
        nonlocal count
        count += 1
        data = log.data_directory
        assert data.publisher.publish("q", count, stage(files, data, {P0: [[b"x"]]}, count, query="q"))
        return count

    reader = ReadOnlyDirectory(files, DATA, CONFIG)
    with pytest.raises(StorageError, match="published faster"):
        reader.look_at_once(look)
    assert count == 64
    log.close()


def test_one_partition_is_read_without_a_look_at_journals() -> None:
    """Reads and plans of a single partition have nothing to compare: they touch no other file."""
    files = MemoryFiles()
    with open_log(files) as log:
        log.topic("orders", 2).append(b"x", partition=0)
        data = log.data_directory
        assert data.publisher.publish("q", 0, stage(files, data, {P0: [[b"y"]]}, query="q"))
    assert journal_paths(files, DATA)
    hooked, touched = HookedFiles(files), list[str]()
    hooked.before = lambda kind, path: touched.append(path)
    with cordwood.open(DATA, files=hooked, read_only=True) as beside:
        topic = beside.topic("orders")
        assert len(list(topic.read(0))) == 2
        assert beside.scan("orders", 0, columns=["offset"]).reader().read_all().num_rows == 2
        PathAccess(DATA, verify=True, files=hooked).standing("orders", (0,))
        assert not [path for path in touched if "sink" in path]
        assert beside.scan("orders", columns=["offset"]).reader().read_all().num_rows == 2
        assert [path for path in touched if "sink" in path]


class Killed(BaseException):
    """kill -9: nothing further is done."""


def killed_after_the_first_partition(files: Files) -> None:
    """Leave a directory whose writer died when one of two partitions had its records synced."""
    log = open_log(files)
    topic = log.topic("orders", 2)
    topic.append(b"before", partition=0)
    data = log.data_directory
    shares = stage(files, data, {P0: [[b"a"]], P1: [[b"b"]]})
    real = Publisher._append_section

    def append(self: Publisher, log: Any, *rest: Any) -> None:
        if log.state.partition == 1:
            raise Killed
        real(self, log, *rest)
        log.commit()

    with patch.object(Publisher, "_append_section", append), pytest.raises(Killed):
        data.publisher.publish(QUERY, 0, shares)
    kill(log)


def test_every_reader_of_several_partitions_leaves_out_what_a_dead_writer_left_unfinished() -> None:
    """Until the next open, which finishes it."""
    files = MemoryFiles()
    killed_after_the_first_partition(files)

    def exported(to: str) -> list[tuple[int, int]]:
        reader = ReadOnlyDirectory(files, DATA, CONFIG)
        (report,) = export_topics(files, reader, ["orders"], ExportTarget("kafka", to), unique="u")
        assert report.records == sum(end for _, end in report.offsets)
        return list(report.offsets)

    def scanned() -> list[tuple[int, bytes]]:
        with cordwood.open(DATA, files=files, read_only=True) as beside:
            table = beside.scan("orders", columns=["partition", "value"]).reader().read_all()
            return list(zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True))

    assert scanned() == [(0, b"before")]
    assert planned(files) == {P0: 1, P1: 0}
    assert exported("/first") == [(0, 1), (0, 0)]
    # A reader that stays in one partition is not held back.
    with cordwood.open(DATA, files=files, read_only=True) as beside:
        assert [record.value for record in beside.topic("orders").read(0)] == [b"before", b"a"]
    open_log(files).close()
    assert scanned() == [(0, b"before"), (0, b"a"), (1, b"b")]
    assert planned(files) == {P0: 2, P1: 1}
    assert exported("/second") == [(0, 2), (0, 1)]
