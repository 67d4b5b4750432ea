"""What was acknowledged is synced, syncs are shared, and the loop waits for no disk (D1, D2, D4, O2)."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from broker.nodes import DATA, BreakableFiles, batch_of, node_on, open_on, values_of
from support.clocks import HookedFiles, ManualClock
from support.disks import image
from support.logs import disk_of
from support.patience import SECONDS_MAX
from support.serving import RawClient

from cordwood.broker.node import Placed
from cordwood.disk.files import os_error
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import DiskFull, FrameError, LogFailed, UnknownTopic
from cordwood.host import Host
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.cluster import DescribeLogDirsRequest
from cordwood.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from cordwood.protocol.wire import NULL_ID
from cordwood.server.broker import Broker
from cordwood.server.pipeline import Outcome, PartitionAdvanced, Pipeline
from cordwood.server.recompressing import Batch
from cordwood.storage.log.partition_log import PartitionLog

SYNC_MAX_MS = 50
ALL = -1


class WatchedClock(ManualClock):
    """A clock that knows when the committer looked at it."""

    def __init__(self) -> None:
        super().__init__()
        self._looked = threading.Semaphore(0)

    def monotonic_ns(self) -> int:
        if threading.current_thread().name == "cordwood-committer":
            self._looked.release()
        return super().monotonic_ns()

    def let_the_committer_look(self) -> None:
        """Return once the committer has seen what time it is now, and decided what to do."""
        while self._looked.acquire(blocking=False):
            pass
        # The look that was under way may have come before the last change of the time.
        for _ in range(3):
            assert self._looked.acquire(timeout=SECONDS_MAX)


class Gate:
    """Lets syncs of segments through, one by one while it is shut, and fails those it is told to."""

    def __init__(self, files: HookedFiles) -> None:
        self.shut = False
        self.failing = ""
        self.syncs: list[str] = []
        self._arrived = threading.Semaphore(0)
        self._admitted = threading.Semaphore(0)
        files.before = self._before

    def _before(self, kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log") and "segments" in path:
            self.syncs.append(path)
            if self.shut:
                self._arrived.release()
                assert self._admitted.acquire(timeout=SECONDS_MAX)
            if self.failing and self.failing in path:
                raise os_error(errno.EIO, path)

    def wait_for_a_sync(self) -> None:
        assert self._arrived.acquire(timeout=SECONDS_MAX)

    def let_through(self, count: int = 1) -> None:
        self._admitted.release(count)

    def open(self) -> None:
        """Let everything through from now on, those who wait included."""
        self.shut = False
        self.let_through(100)


class Request:
    """Batches that were submitted, and what came back."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcomes: Sequence[Outcome] | None = None

    @property
    def answered(self) -> bool:
        return self.outcomes is not None

    @property
    def outcome(self) -> Outcome:
        assert self.outcomes is not None, "not answered"
        (outcome,) = self.outcomes
        return outcome

    @property
    def offset(self) -> int:
        outcome = self.outcome
        assert isinstance(outcome, Placed), outcome
        return outcome.base_offset


class Bench:
    """A pipeline on a disk in memory, and an event loop that turns when it is told to."""

    def __init__(self, settings: Mapping[str, str], topics: Mapping[str, Mapping[str, str]]) -> None:
        self.memory = MemoryFiles()
        self.files = BreakableFiles(self.memory)
        self.gate = Gate(self.files)
        self.clock = WatchedClock()
        self.node = node_on(
            self.files, {"cordwood.sync.max.ms": str(SYNC_MAX_MS), **settings}, clock=self.clock
        )
        for name, config in topics.items():
            self.node.topics.create(name, 3, config)
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.advances: list[PartitionAdvanced] = []
        self.failures: list[LogFailed] = []
        self.requests: list[Request] = []
        self.answered: list[Request] = []
        self.pipeline = Pipeline(
            self.node, Host(self.clock), self.posted.put, self.advances.append, self.failures.append
        )

    def log(self, topic: str = "orders", partition: int = 0) -> PartitionLog:
        return self.node.directory.partitions.own(topic, partition)

    def submit(self, acks: int, *batches: Batch) -> Request:
        request = Request(len(self.requests))
        self.requests.append(request)

        def done(outcomes: Sequence[Outcome]) -> None:
            assert not request.answered, "answered twice"
            request.outcomes = outcomes
            self.answered.append(request)

        self.pipeline.submit(batches, acks, done)
        return request

    def send(self, acks: int, value: bytes = b"value", topic: str = "orders", partition: int = 0) -> Request:
        return self.submit(acks, Batch(topic, partition, batch_of(value)))

    def turn(self) -> None:
        """Do everything that was posted by now."""
        while not self.posted.empty():
            self.posted.get()()

    def until(self, *requests: Request) -> None:
        """Do what is posted until *requests* are answered."""
        while not all(request.answered for request in requests):
            self.posted.get(timeout=SECONDS_MAX)()

    def until_written(self) -> None:
        """Return once the writer is through with everything that was submitted before.

        It takes requests in order and answers those that wait for no sync itself: this one is the last.
        """
        self.until(self.submit(0, Batch("nothing", 0, batch_of(b"last"))))

    def until_advanced(self, count: int) -> None:
        while len(self.advances) < count:
            self.posted.get(timeout=SECONDS_MAX)()


@contextmanager
def running(
    settings: Mapping[str, str] | None = None, topics: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[Bench]:
    bench = Bench(settings or {}, topics or {"orders": {}})
    try:
        yield bench
    finally:
        bench.gate.open()
        bench.pipeline.close()
        if bench.failures:
            with pytest.raises(LogFailed):
                bench.node.directory.close()
        else:
            bench.node.directory.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with running(topics={"orders": {}, "payments": {}}) as bench:
        yield bench


# --- Acknowledged is synced ------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [ALL, 1])
def test_an_answer_is_sent_only_after_the_sync_that_covers_the_batch(bench: Bench, acks: int) -> None:
    bench.gate.shut = True
    first = bench.send(acks)
    bench.gate.wait_for_a_sync()
    second = bench.send(acks)
    bench.until_written()
    # Both are written, and the sync of the first is under way.
    assert bench.log().log_end_offset == 2
    assert not first.answered
    assert bench.log().high_watermark == 0
    bench.gate.let_through()
    # The sync that has begun before the second was written says nothing about it: there is another.
    bench.gate.wait_for_a_sync()
    bench.turn()
    assert first.offset == 0
    assert not second.answered
    assert bench.log().high_watermark == 1
    bench.gate.let_through()
    bench.until(second)
    assert second.offset == 1
    assert bench.log().high_watermark == 2


def test_acks_0_waits_for_no_sync(bench: Bench) -> None:
    bench.gate.shut = True
    waiting = bench.send(ALL)
    bench.gate.wait_for_a_sync()
    written = bench.send(0)
    bench.until(written)
    assert written.offset == 1
    assert not waiting.answered
    assert bench.log().high_watermark == 0, "what is not synced is shown to no reader, whatever the acks"


@pytest.mark.parametrize("acks", [ALL, 1])
def test_a_failed_sync_is_answered_with_an_error_to_all_who_asked_for_an_answer(
    bench: Bench, acks: int
) -> None:
    bench.gate.failing = "orders"
    request = bench.send(acks)
    bench.until(request)
    assert isinstance(request.outcome, LogFailed)


@pytest.mark.parametrize("sync", ["every:1000", "ms:60000", "never"])
def test_under_a_weak_sync_policy_acks_1_is_answered_and_visible_once_it_is_written(sync: str) -> None:
    with running(topics={"orders": {"cordwood.sync": sync}}) as bench:
        request = bench.send(1)
        bench.until(request)
        assert bench.log().high_watermark == request.offset + 1
        assert bench.gate.syncs == []


def test_an_append_that_nobody_waits_for_is_synced_in_time(bench: Bench) -> None:
    written = bench.send(0)
    bench.until(written)
    bench.clock.advance(SYNC_MAX_MS - 1)
    bench.clock.let_the_committer_look()
    assert bench.gate.syncs == []
    bench.clock.advance(1)
    bench.until_advanced(1)
    assert len(bench.gate.syncs) == 1
    assert bench.log().high_watermark == 1


def test_a_later_append_does_not_put_off_the_sync_of_an_earlier_one(bench: Bench) -> None:
    """A producer that never pauses must not keep its own records from becoming durable."""
    bench.until(bench.send(0))
    bench.clock.advance(SYNC_MAX_MS - 1)
    bench.until(bench.send(0))
    bench.clock.advance(1)
    bench.until_advanced(1)
    assert bench.log().high_watermark == 2


def test_who_waits_takes_along_what_nobody_waits_for(bench: Bench) -> None:
    bench.until(bench.send(0, partition=1))
    bench.until(bench.send(ALL, partition=2))
    bench.until_advanced(2)
    assert bench.log(partition=1).high_watermark == 1
    assert {advance.partition for advance in bench.advances} == {1, 2}


def test_requests_that_come_during_a_sync_share_the_next_one(bench: Bench) -> None:
    bench.gate.shut = True
    first = bench.send(ALL)
    bench.gate.wait_for_a_sync()
    others = [bench.send(ALL) for _ in range(50)]
    bench.until_written()
    bench.gate.open()
    bench.until(first, *others)
    assert len(bench.gate.syncs) == 2
    assert [request.offset for request in others] == list(range(1, 51))


def test_a_round_syncs_each_partition_once(bench: Bench) -> None:
    bench.gate.shut = True
    first = bench.send(ALL)
    bench.gate.wait_for_a_sync()
    others = [
        bench.send(ALL, topic=topic, partition=i % 3) for topic in ("orders", "payments") for i in range(9)
    ]
    bench.until_written()
    bench.gate.open()
    bench.until(first, *others)
    assert len(bench.gate.syncs) == 1 + 6
    assert len(set(bench.gate.syncs)) == 6


def test_what_was_acknowledged_survives_a_power_cut_at_that_moment() -> None:
    """The disk as it is when the answer is there, and the process gone: every answered record is found."""
    with running() as bench:
        for number in range(5):
            bench.until(bench.send(ALL, b"%d" % number))
        disk = disk_of(image(bench.memory, "/"))
    with open_on(disk) as again:
        assert values_of(again, "orders") == [b"0", b"1", b"2", b"3", b"4"]


def test_readers_are_told_after_the_sync_and_how_much_there_is(bench: Bench) -> None:
    bench.gate.shut = True
    size = len(batch_of(b"value"))
    requests = [bench.send(acks) for acks in (1, ALL, ALL)]
    bench.gate.wait_for_a_sync()
    bench.until_written()
    assert bench.advances == []
    bench.gate.open()
    bench.until(*requests)
    bench.turn()
    assert sum(advance.size for advance in bench.advances) == 3 * size
    assert {advance[:2] for advance in bench.advances} == {("orders", 0)}


def test_one_request_for_many_partitions_is_answered_when_all_are_synced(bench: Bench) -> None:
    bench.gate.shut = True
    request = bench.submit(
        ALL,
        *(Batch("orders", partition, batch_of(b"value")) for partition in range(3)),
    )
    for _ in range(3):
        bench.gate.wait_for_a_sync()
    bench.gate.let_through(2)
    bench.turn()
    assert not request.answered
    bench.gate.let_through()
    bench.until(request)
    assert request.outcomes is not None
    assert [type(outcome) for outcome in request.outcomes] == [Placed] * 3


# --- Order ------------------------------------------------------------------------------------------


def test_a_partition_keeps_the_order_in_which_requests_came_whatever_their_acks(bench: Bench) -> None:
    requests = [bench.send((ALL, 1, 0)[i % 3], b"%d" % i, partition=i % 2) for i in range(200)]
    bench.until(*requests)
    for partition in (0, 1):
        offsets = [request.offset for request in requests[partition::2]]
        assert offsets == list(range(100))
    bench.log().commit()
    assert values_of(bench.node, "orders") == [b"%d" % i for i in range(0, 200, 2)]


def test_batches_that_are_compressed_again_keep_the_order_of_their_requests() -> None:
    with running(topics={"orders": {"compression.type": "zstd"}, "plain": {}}) as bench:
        bench.until(bench.send(ALL, b"first"))
        # Large ones take far longer than small ones, and none overtakes another.
        values = [b"%d " % i * (40_000 if i % 5 == 0 else 1) for i in range(60)]
        requests = [bench.send(ALL, value) for value in values]
        beside = [bench.send(ALL, b"x", topic="plain") for _ in range(20)]
        bench.until(*requests, *beside)
        assert [request.offset for request in requests] == list(range(1, 61))
        assert values_of(bench.node, "orders") == [b"first", *values]


def test_what_is_being_compressed_when_the_pipeline_closes_is_stored() -> None:
    with running(topics={"orders": {"compression.type": "zstd"}}) as bench:
        bench.until(bench.send(ALL, b"first"))
        requests = [bench.send(ALL, b"%d " % i * 100_000) for i in range(5)]
        bench.pipeline.close()
        bench.until(*requests)
        assert [request.offset for request in requests] == [1, 2, 3, 4, 5]


def test_requests_that_wait_alike_are_answered_in_the_order_in_which_they_came(bench: Bench) -> None:
    requests = [bench.send(ALL) for _ in range(100)]
    bench.until(*requests)
    assert bench.answered == requests


def test_outcomes_are_in_the_order_of_the_batches_refused_ones_between(bench: Bench) -> None:
    wrong = batch_of(b"value")
    wrong[-1] ^= 0xFF
    request = bench.submit(
        ALL,
        Batch("orders", 0, batch_of(b"a")),
        Batch("nothing", 0, batch_of(b"b")),
        Batch("orders", 1, wrong),
        Batch("orders", 0, batch_of(b"c")),
    )
    bench.until(request)
    first, unknown, damaged, last = request.outcomes or ()
    assert isinstance(first, Placed)
    assert isinstance(last, Placed)
    assert (first.base_offset, last.base_offset) == (0, 1)
    assert isinstance(unknown, UnknownTopic)
    assert isinstance(damaged, FrameError)


def test_a_request_of_which_nothing_was_stored_waits_for_no_sync(bench: Bench) -> None:
    bench.gate.shut = True
    refused = bench.send(ALL, topic="nothing")
    bench.until(refused)
    assert isinstance(refused.outcome, UnknownTopic)
    assert bench.gate.syncs == []


# --- Idempotent producers --------------------------------------------------------------------------


def retry(bench: Bench, acks: int = ALL) -> Request:
    return bench.submit(acks, Batch("orders", 0, batch_of(b"once", producer=(7, 0, 0))))


def test_a_duplicate_is_answered_only_after_the_sync_of_the_original(bench: Bench) -> None:
    bench.gate.shut = True
    original = retry(bench)
    bench.gate.wait_for_a_sync()
    duplicate = retry(bench)
    bench.until_written()
    assert not original.answered
    assert not duplicate.answered
    bench.gate.let_through()
    bench.until(original, duplicate)
    assert original.offset == duplicate.offset == 0
    assert bench.log().log_end_offset == 1
    # It is durable by then, so the duplicate costs no sync of its own.
    assert len(bench.gate.syncs) == 1


def test_a_duplicate_of_what_nobody_waited_for_is_synced_before_it_is_answered(bench: Bench) -> None:
    bench.gate.shut = True
    bench.until(retry(bench, acks=0))
    assert bench.gate.syncs == []
    duplicate = retry(bench)
    bench.gate.wait_for_a_sync()
    bench.turn()
    assert not duplicate.answered
    bench.gate.let_through()
    bench.until(duplicate)
    assert duplicate.offset == 0
    assert bench.log().high_watermark == 1


def test_a_duplicate_fails_if_the_sync_of_the_original_fails(bench: Bench) -> None:
    bench.gate.shut = True
    original = retry(bench)
    bench.gate.wait_for_a_sync()
    duplicate = retry(bench)
    bench.until_written()
    bench.gate.failing = "orders"
    bench.gate.open()
    late = retry(bench)
    bench.until(original, duplicate, late)
    for request in (original, duplicate, late):
        assert isinstance(request.outcome, LogFailed)
    assert len(bench.gate.syncs) == 1


# --- When the disk fails ---------------------------------------------------------------------------


def test_a_failed_sync_fails_every_waiter_and_is_not_tried_again(bench: Bench) -> None:
    bench.gate.shut = True
    first = bench.send(ALL)
    bench.gate.wait_for_a_sync()
    others = [bench.send(ALL) for _ in range(10)]
    bench.until_written()
    bench.gate.failing = "orders"
    bench.gate.open()
    bench.until(first, *others)
    for request in (first, *others):
        assert isinstance(request.outcome, LogFailed)
    assert len(bench.gate.syncs) == 1
    assert bench.advances == []
    assert len(bench.failures) == 1


def test_after_a_failed_sync_nothing_is_taken_for_any_partition(bench: Bench) -> None:
    """What the device holds is not known any more, and all partitions are on it."""
    bench.gate.failing = "orders"
    bench.until(bench.send(ALL))
    bench.gate.failing = ""
    writes = bench.files.calls.count("write")
    for acks in (ALL, 1, 0):
        later = bench.send(acks, topic="payments")
        bench.until(later)
        assert isinstance(later.outcome, LogFailed)
    assert bench.files.calls.count("write") == writes
    bench.turn()
    assert len(bench.failures) == 1


def test_what_other_partitions_synced_in_the_same_round_is_acknowledged(bench: Bench) -> None:
    """It is durable, and told so: whoever sent it must not send it again."""
    bench.gate.failing = "orders/0"
    request = bench.submit(
        ALL,
        Batch("orders", 0, batch_of(b"lost")),
        Batch("payments", 0, batch_of(b"kept")),
    )
    bench.until(request)
    lost, kept = request.outcomes or ()
    assert isinstance(lost, LogFailed)
    assert isinstance(kept, Placed)
    assert bench.log("payments").high_watermark == 1
    bench.turn()
    assert [advance.topic for advance in bench.advances] == ["payments"]


def test_many_failing_at_once_are_one_failure(bench: Bench) -> None:
    bench.gate.failing = "segments"
    request = bench.submit(ALL, *(Batch("orders", i, batch_of(b"value")) for i in range(3)))
    bench.until(request)
    bench.turn()
    assert [type(outcome) for outcome in request.outcomes or ()] == [LogFailed] * 3
    assert len(bench.failures) == 1


def test_a_failed_sync_that_nobody_waits_for_is_a_failure_too(bench: Bench) -> None:
    bench.gate.failing = "orders"
    bench.until(bench.send(1))
    bench.clock.advance(SYNC_MAX_MS)
    while not bench.failures:
        bench.posted.get(timeout=SECONDS_MAX)()
    later = bench.send(1, topic="payments")
    bench.until(later)
    assert isinstance(later.outcome, LogFailed)


def test_a_segment_that_cannot_be_sealed_is_a_failed_sync_like_any_other() -> None:
    """Rolling syncs on the writer's thread; what that finds out counts for all partitions as well."""
    with running({"log.segment.bytes": "100"}, {"orders": {}, "payments": {}}) as bench:
        bench.until(bench.send(ALL, b"first"))
        bench.gate.failing = "orders"
        failed = bench.send(ALL, b"second")
        bench.until(failed)
        assert isinstance(failed.outcome, LogFailed)
        later = bench.send(ALL, topic="payments")
        bench.until(later)
        assert isinstance(later.outcome, LogFailed)
        assert len(bench.failures) == 1


def test_a_full_disk_refuses_and_takes_again_when_there_is_space(bench: Bench) -> None:
    bench.until(bench.send(ALL, b"before"))
    bench.files.before = bench.files._fail
    bench.files.fail("write", code=errno.ENOSPC)
    refused = [bench.send(acks, b"refused", partition=i) for i, acks in enumerate((ALL, 1))]
    bench.until(*refused)
    for request in refused:
        assert isinstance(request.outcome, DiskFull)
    bench.files.heal()
    after = bench.send(ALL, b"after")
    bench.until(after)
    assert after.offset == 1
    assert values_of(bench.node, "orders") == [b"before", b"after"]
    assert bench.failures == []


def raising_at(bench: Bench, kind: str, suffix: str) -> None:
    """Let one call of this kind raise what nobody expects: a bug of ours."""
    armed = True

    def before(called: str, path: str) -> None:
        nonlocal armed
        if armed and called == kind and path.endswith(suffix):
            armed = False
            raise RuntimeError("a bug")

    bench.files.before = before


@pytest.mark.parametrize(("kind", "suffix"), [("write", ""), ("sync", ".log")])
def test_a_bug_costs_those_it_met_their_records_and_everyone_else_nothing(
    bench: Bench, kind: str, suffix: str
) -> None:
    """Above all it must not end a thread: then nobody would ever be answered again."""
    bench.until(bench.send(ALL))
    raising_at(bench, kind, suffix)
    met = bench.send(ALL)
    bench.until(met)
    assert isinstance(met.outcome, RuntimeError)
    for acks in (ALL, 1):
        after = bench.send(acks)
        bench.until(after)
        assert isinstance(after.outcome, Placed)
    assert bench.failures == []


def test_an_answer_that_cannot_be_given_does_not_keep_others_from_theirs(bench: Bench) -> None:
    bench.gate.shut = True
    bench.send(ALL)
    bench.gate.wait_for_a_sync()

    def fail(outcomes: Sequence[Outcome]) -> None:
        raise RuntimeError("a bug")

    bench.pipeline.submit([Batch("orders", 0, batch_of(b"value"))], ALL, fail)
    other = bench.send(ALL)
    bench.until_written()
    bench.gate.open()
    bench.until(other)
    assert other.offset == 2
    bench.until_advanced(2)


# --- Weaker policies, as they are named -------------------------------------------------------------


def test_never_syncs_nothing_and_shows_everything_at_once() -> None:
    with running(topics={"orders": {"cordwood.sync": "never"}}) as bench:
        for number, acks in enumerate((ALL, 1, 0)):
            request = bench.send(acks)
            bench.until(request)
            assert bench.log().high_watermark == number + 1
        assert len(bench.advances) == 3
        bench.clock.advance(3_600_000)
        bench.pipeline.close()
        assert bench.gate.syncs == []


def test_every_n_syncs_whenever_n_records_are_not_synced() -> None:
    with running(topics={"orders": {"cordwood.sync": "every:10"}}) as bench:
        for number in range(1, 31):
            bench.gate.shut = number % 10 == 0
            request = bench.send(ALL)
            bench.until(request)
            assert bench.log().high_watermark == number
            if number % 10 == 0:
                bench.gate.wait_for_a_sync()
                bench.gate.let_through()
                bench.log().commit()
            assert len(bench.gate.syncs) == number // 10


def test_ms_syncs_once_so_long_after_the_first_record_that_is_not() -> None:
    with running(topics={"orders": {"cordwood.sync": "ms:1000"}}) as bench:
        for _ in range(3):
            bench.until(bench.send(ALL))
            bench.clock.advance(333)
        assert bench.log().high_watermark == 3
        bench.clock.let_the_committer_look()
        assert bench.gate.syncs == []
        bench.gate.shut = True
        bench.clock.advance(1)
        bench.gate.wait_for_a_sync()
        bench.gate.let_through()
        bench.log().commit()
        assert bench.log().unsynced_records == 0
        assert len(bench.gate.syncs) == 1


@pytest.mark.parametrize("topics", [("weak", "orders"), ("orders", "weak")])
def test_a_weak_topic_does_not_make_a_durable_one_beside_it_weak(topics: tuple[str, str]) -> None:
    with running(topics={"weak": {"cordwood.sync": "never"}, "orders": {}}) as bench:
        bench.gate.shut = True
        request = bench.submit(ALL, *(Batch(topic, 0, batch_of(b"value")) for topic in topics))
        bench.gate.wait_for_a_sync()
        bench.turn()
        assert not request.answered
        bench.gate.let_through()
        bench.until(request)
        assert [type(outcome) for outcome in request.outcomes or ()] == [Placed, Placed]
        assert all("/orders/" in path for path in bench.gate.syncs)


# --- Ending -----------------------------------------------------------------------------------------


def test_closing_finishes_what_was_submitted(bench: Bench) -> None:
    requests = [bench.send((ALL, 1, 0)[i % 3], partition=i % 3) for i in range(300)]
    bench.pipeline.close()
    bench.turn()
    assert all(isinstance(request.outcome, Placed) for request in requests)
    assert [bench.log(partition=i).high_watermark for i in range(3)] == [100, 100, 100]


def test_closing_syncs_what_had_time_left() -> None:
    with running(topics={"orders": {"cordwood.sync": "ms:100000"}, "payments": {}}) as bench:
        bench.until(bench.send(ALL), bench.send(1, topic="payments"))
        bench.pipeline.close()
        assert bench.log("orders").unsynced_records == 0
        assert bench.log("payments").unsynced_records == 0


def test_closing_ends_its_threads(bench: Bench) -> None:
    bench.until(bench.submit(ALL, *(Batch("orders", i, batch_of(b"value")) for i in range(3))))
    bench.pipeline.close()
    names = ("cordwood-writer", "cordwood-committer", "cordwood-sync")
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(names)] == []


# --- The loop does no input or output ----------------------------------------------------------------


def record_batches(values: int) -> memoryview:
    return batch_of(*(b"x" * 100 for _ in range(values)))


def produce(topic: str, acks: int, values: int = 5) -> ProduceRequest:
    partition = ProducePartition(0, record_batches(values))
    return ProduceRequest(None, acks, 1000, [ProduceTopic(topic, NULL_ID, [partition])])


def fetch(topic: str, offset: int, max_wait_ms: int) -> FetchRequest:
    wanted = FetchTopic(topic, NULL_ID, [FetchPartition(0, fetch_offset=offset, max_bytes=1 << 20)])
    return FetchRequest(-1, max_wait_ms, 1, 1 << 20, 0, 0, -1, [wanted], [], "")


def list_offsets(topic: str, timestamp: int) -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])


def administer(client: RawClient) -> None:
    """Ask for what changes topics and groups, and for what lies on the disk."""
    position = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    committed = OffsetCommitRequestTopic(name="orders", partitions=[position])
    answer = client.ask(ApiKey.OFFSET_COMMIT, OffsetCommitRequest(group_id="group", topics=[committed]), 9)
    codes = [answer.topics[0].partitions[0].error_code]
    more = CreatePartitionsTopic(name="orders", count=2, assignments=None)
    answer = client.ask(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics=[more]))
    codes.append(answer.results[0].error_code)
    change = IncrementalAlterableConfig(name="max.message.bytes", config_operation=0, value="1000000")
    changed = IncrementalAlterConfigsResource(resource_type=2, resource_name="orders", configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[changed])
    answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
    codes.append(answer.responses[0].error_code)
    gone = DeleteRecordsPartition(partition_index=0, offset=20)
    deleted = DeleteRecordsTopic(name="orders", partitions=[gone])
    answer = client.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[deleted]))
    codes.append(answer.topics[0].partitions[0].error_code)
    answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None))
    codes.append(answer.results[0].error_code)
    assert codes == [0] * 5


def use_everything(address: str) -> None:
    """Ask for one of everything that may touch the disk, waiting fetches and rolled segments included."""
    with RawClient(address) as client, RawClient(address) as other:
        asked = [MetadataRequestTopic(name="made-by-asking")]
        client.ask(ApiKey.METADATA, MetadataRequest(topics=asked, allow_auto_topic_creation=True))
        client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None))
        created = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
        client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[created]))
        client.ask(ApiKey.LIST_OFFSETS, list_offsets("orders", -1))
        client.ask(ApiKey.FETCH, fetch("orders", 0, 0), 12)
        for acks in (1, ALL) * 4:
            answer = client.ask(ApiKey.PRODUCE, produce("orders", acks), 9)
            assert answer.topics[0].partitions[0].error_code == 0
        client.send(ApiKey.PRODUCE, 9, produce("orders", 0))
        other.send(ApiKey.FETCH, 12, fetch("orders", 45, 20_000))
        client.ask(ApiKey.PRODUCE, produce("orders", ALL), 9)
        assert other.receive(ApiKey.FETCH, 12).topics[0].partitions[0].records
        for offset in (0, 20, 50):
            client.ask(ApiKey.FETCH, fetch("orders", offset, 0), 12)
        for timestamp in (-1, -2, -3, 0, 500, 5000):
            answer = client.ask(ApiKey.LIST_OFFSETS, list_offsets("orders", timestamp))
            assert answer.topics[0].partitions[0].error_code == 0
        client.ask(ApiKey.METADATA, MetadataRequest(topics=None))
        administer(client)
        client.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))


def test_no_file_is_touched_on_the_thread_of_the_event_loop() -> None:
    """A write under throttling, a cold read or a sync there would stop every client at once."""
    files = HookedFiles(MemoryFiles())
    seen: set[tuple[str, str]] = set()
    with Broker(DATA, files=files, config={"log.segment.bytes": "1500"}) as broker:
        files.before = lambda kind, path: seen.add((threading.current_thread().name, kind))
        use_everything(broker.bootstrap)
    assert [(thread, kind) for thread, kind in seen if thread == "cordwood-broker"] == []
    assert {"read", "write", "sync", "create", "unlink"} <= {kind for _, kind in seen}
    threads = {thread.rpartition("_")[0] or thread for thread, _ in seen}
    assert {"cordwood-writer", "cordwood-reader", "cordwood-changes", "cordwood-committer"} <= threads
