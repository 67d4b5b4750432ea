"""Every power cut during transactions of clients of a server: all or nothing, and what was answered.

One client sends every request of a transaction, from its first partition to its end, to a server on a
recording disk. Checked on every disk that a power cut could leave: X1 to X5. `CORDWOOD_CRASH_LIMIT` sets how
many images are looked at per power cut (default 1, 0 is all of them).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from support.clocks import ManualClock
from support.crashes import CrashCount, CrashImage, Violation, again, crash_images, survives, violation_of
from support.disks import RecordingFiles
from support.groups import fetch_offsets
from support.serving import RawClient
from support.transactional import RawTransactional, commit_in, create_topic

import cordwood
from cordwood import Broker
from cordwood.broker.groups import StoredRows, TransactionKey
from cordwood.broker.transactions import StoreTransaction, TransactionCoordinator, WriteMarkers
from cordwood.broker.transactions.transaction import Transaction
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError
from cordwood.formats import Marker
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.transactions import ListTransactionsRequest
from cordwood.records import TopicPartition
from cordwood.server.groups import Groups
from cordwood.server.internal_topic import InternalTopic
from cordwood.server.transactions import Transactions
from cordwood.storage.log.reading import View

LIMIT = int(os.environ.get("CORDWOOD_CRASH_LIMIT", "1")) or None
#: One disk in this number is also served by a server, which takes longer than opening it.
SERVED_ONE_OF = 40
DATA = "/data"
NOW = 1_700_000_000_000
CONFIG = {"log.segment.bytes": "1500", "cordwood.chain": "false"}
A, B = ("orders", 0), ("ledger", 0)
#: As long as a server allows: on a busy machine nothing may time out.
TIMEOUT_MS = 900_000
#: Which transactional id each transaction of the workload has.
OWNERS = {1: "x", 2: "x", 3: "x", 4: "x", 5: "y", 6: "x", 7: "y", 8: "y", 9: "z", 10: "z", 11: "x"}
#: One disk in this number is also read by a reader that comes before any writer.
BESIDE_ONE_OF = 3
#: Transactions after a power cut: of a server, and then of the library.
SERVED, LATER = 100, 200
Planted = Callable[[], contextlib.AbstractContextManager[object]]


class Asked(NamedTuple):
    """A commit was asked for: from here on the transaction may be visible."""

    number: int


class Answered(NamedTuple):
    """The end of a transaction was answered, or it can never be committed any more."""

    number: int
    committed: bool


class Story:
    """Transactions of one client, each with a record in two partitions and an offset of a group."""

    def __init__(self, files: RecordingFiles, client: RawClient) -> None:
        self.files = files
        self.client = client

    def producer(self, transactional_id: str) -> RawTransactional:
        return RawTransactional(self.client, transactional_id, TIMEOUT_MS).init()

    def write(self, producer: RawTransactional, number: int) -> None:
        """Begin a transaction, and send everything that is in it."""
        assert producer.id == OWNERS[number]
        producer.add(A, B)
        assert producer.try_add_offsets(producer.id) is ErrorCode.NONE
        for place in (A, B):
            assert producer.send(place, b"%d" % number, b"%d" % number) is ErrorCode.NONE
        assert commit_in(producer, producer.id, number) is ErrorCode.NONE

    def end(self, producer: RawTransactional, number: int, *, committed: bool) -> None:
        """End it; what is promised then is promised before its markers are written."""
        if committed:
            self.files.acknowledge(Asked(number))
        assert producer.try_end(committed=committed) is ErrorCode.NONE
        self.files.acknowledge(Answered(number, committed))

    def whole(self, producer: RawTransactional, number: int, *, committed: bool = True) -> None:
        """Begin, write and end a transaction."""
        self.write(producer, number)
        self.end(producer, number, committed=committed)


def workload(files: RecordingFiles) -> None:
    """Commits and aborts, side by side, a producer that is fenced, and one that is gone after a restart."""
    with Broker(DATA, files=files, config=CONFIG) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        create_topic(client, "ledger")
        files.acknowledge("topics")
        story = Story(files, client)
        x, y = story.producer("x"), story.producer("y")
        story.whole(x, 1)
        story.whole(x, 2)
        story.whole(x, 3, committed=False)
        x.wait_for("CompleteAbort")
        assert fetch_offsets(client, "x", [A])[A][0] == 2, "X5: the offset of an aborted transaction counts"
        story.whole(x, 4)
        story.write(y, 5)
        story.whole(x, 6)
        story.end(y, 5, committed=True)
        story.write(y, 7)
        successor = story.producer("y")
        files.acknowledge(Answered(7, False))
        story.write(successor, 8)
        assert y.try_end(committed=True) is not ErrorCode.NONE, "X3: a fenced producer commits"
        story.end(successor, 8, committed=True)
        story.write(story.producer("z"), 9)
    with Broker(DATA, files=files, config=CONFIG) as broker, RawClient(broker.bootstrap) as client:
        story = Story(files, client)
        z = story.producer("z")
        files.acknowledge(Answered(9, False))
        story.whole(z, 10)
        story.whole(story.producer("x"), 11)


# --- what must hold ---------------------------------------------------------------------------------------


def open_log(files: Files) -> cordwood.Log:
    return cordwood.open(DATA, files=files, clock=ManualClock(NOW))


class Checks:
    """Checks disks: opens them with the library, and some of them with a server."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, image: CrashImage) -> None:
        """Hold what is left to everything that was promised before the cut, and go on."""
        if "topics" not in image.acknowledged:
            open_log(image.files).close()
            return
        self.count += 1
        if self.count % BESIDE_ONE_OF == 0:
            hold_beside(image)
        if self.count % SERVED_ONE_OF == 0:
            with_a_server(image.files)
        seen = with_the_library(image.files)
        if seen[-1:] == [SERVED]:
            seen.pop()
        else:
            assert self.count % SERVED_ONE_OF, "X2: the transaction of a server after the crash is not there"
        hold(image.acknowledged, seen)


def with_the_library(files: Files) -> list[int]:
    """Open a directory and append one more transaction; return those that were visible before it."""
    log = open_log(files)
    seen = see(log)
    with log.transaction("x") as tx:
        for topic, _ in (A, B):
            tx.append_many(topic, [(None, b"%d" % LATER)] * 2)
    assert see(log) == [*seen, LATER], "X2: a transaction after the crash is not there"
    log.close()
    return seen


def with_a_server(files: Files) -> None:
    """Serve a directory, and commit one more transaction."""
    with Broker(DATA, files=files, config=CONFIG) as broker, RawClient(broker.bootstrap) as client:
        producer = RawTransactional(client, "x", TIMEOUT_MS).init()
        states = client.ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest()).transaction_states
        known = {each.producer_id for each in states if each.transaction_state == "Ongoing"}
        for place in (A, B):
            log = broker._node.directory.partitions.readable(*place)
            unknown = {each.producer_id for each in log.open_transactions()} - known
            assert not unknown, (
                f"X4: transactions of {unknown} are open in {place}, and nobody would end them"
            )
        producer.add(A, B)
        for place in (A, B):
            assert producer.send(place, b"%d" % SERVED, b"%d" % SERVED) is ErrorCode.NONE
        producer.commit()


def see(log: cordwood.Log) -> list[int]:
    """Return the transactions that are visible, after checking that each is so everywhere."""
    visible: list[list[int]] = []
    for name, partition in (A, B):
        topic = log.topic(name)
        values = [int(record.value or b"") for record in topic.read(partition)]
        whole = sorted(set(values))
        assert sorted(values) == sorted(2 * whole), f"X1: half a batch, or one twice: {values}"
        visible.append(whole)
        stable, end = topic.last_stable_offset(partition), topic.high_watermark(partition)
        assert stable == end, f"X4: {name}-{partition} has an open transaction from {stable} on"
    assert visible[0] == visible[1], f"X1: not all or nothing: {visible}"
    for owner in sorted(set(OWNERS.values())):
        own = [number for number in visible[0] if OWNERS.get(number) == owner]
        offsets = log.committed_offsets(owner)
        assert offsets == ({A: own[-1]} if own else {}), f"X5: offsets {offsets} with transactions {own}"
    return visible[0]


def hold_beside(image: CrashImage) -> None:
    """Check what a reader sees that opens the directory before any writer does."""
    asked = {each.number for each in image.acknowledged if isinstance(each, Asked)}
    for name, partition in (A, B):
        try:
            with cordwood.open(DATA, files=image.files, clock=ManualClock(NOW), read_only=True) as log:
                seen = {int(record.value or b"") for record in log.topic(name).read(partition)}
        except CordwoodError:
            # A reader may be refused what only a writer can repair.
            continue
        assert seen <= asked, f"X1: {seen} are visible in {name}, and commits of {asked} were asked for"


def hold(acknowledged: tuple[object, ...], seen: list[int]) -> None:
    """Check that what was answered is so, and that nothing is visible that nobody committed."""
    asked = {each.number for each in acknowledged if isinstance(each, Asked)}
    assert set(seen) <= asked, f"X1: {seen} are visible, and commits of {sorted(asked)} were asked for"
    for each in acknowledged:
        if isinstance(each, Answered):
            assert (each.number in seen) == each.committed, f"X2: {each}, visible {seen}"


def test_no_power_cut_of_a_server_tears_a_transaction_apart_or_loses_its_answer() -> None:
    count = CrashCount()
    violation = survives(workload, Checks(), images_max=100_000, limit_per_prefix=LIMIT, count=count)
    print("\n".join(count.report()))
    assert violation is None, str(violation)
    count.require(150)


def test_no_power_cut_while_a_server_starts_after_another_does_either() -> None:
    recording = RecordingFiles(MemoryFiles())
    workload(recording)
    images = [each for each in crash_images(recording, limit_per_prefix=1) if "topics" in each.acknowledged]
    looked_at = 0
    check = Checks()
    for image in images[:: max(1, len(images) // 3)]:
        inner = again(image)
        with Broker(DATA, files=inner, config=CONFIG) as broker, RawClient(broker.bootstrap) as client:
            # That the id can be had says that its transaction before has ended.
            RawTransactional(client, "x", TIMEOUT_MS).init()
        for second in crash_images(inner, limit_per_prefix=1):
            looked_at += 1
            check(second)
    print(f"{looked_at} disks after a second cut")
    assert looked_at >= 50


# --- planted bugs -----------------------------------------------------------------------------------------

_store = Transactions._store
_mark = Transactions.mark


def markers_before_the_decision_is_stored() -> Any:
    def store(self: Transactions, effect: StoreTransaction) -> None:
        if not effect.waits:
            _store(self, effect)
            return
        self.perform(self.coordinator.stored(effect.transactional_id, None))
        self._topic.store([effect.row], lambda error: None)

    return patch.object(Transactions, "_store", store)


@contextlib.contextmanager
def a_decision_that_is_not_synced() -> Iterator[None]:
    real = InternalTopic.store

    def store(self: InternalTopic, *arguments: Any, durable: bool = True) -> None:
        real(self, *arguments, durable=durable and self._name != "__transaction_state")

    with patch.object(InternalTopic, "store", store):
        yield


def a_fenced_producer_that_is_not_told_from_its_successor() -> Any:
    return patch.object(Transaction, "_foreign", lambda self, producer: None)


def the_end_noted_before_the_markers_are_synced() -> Any:
    def mark(self: Transactions, markers: Sequence[tuple[TopicPartition, Marker]], then: Any) -> None:
        then({})
        _mark(self, markers, lambda failures: None)

    return patch.object(Transactions, "mark", mark)


def a_marker_for_the_first_partition_only() -> Any:
    def mark(self: Transactions, markers: Sequence[tuple[TopicPartition, Marker]], then: Any) -> None:
        _mark(self, markers[:1], then)

    return patch.object(Transactions, "mark", mark)


def nothing_finished_at_start() -> Any:
    return patch.object(TransactionCoordinator, "unfinished", lambda self: [])


def pending_offsets_applied_at_an_abort() -> Any:
    real = Groups.transaction_ended
    return patch.object(
        Groups,
        "transaction_ended",
        lambda self, producer, partition, committed: real(self, producer, partition, True),
    )


@contextlib.contextmanager
def pending_offsets_applied_at_an_abort_when_they_are_read_again() -> Iterator[None]:
    real = StoredRows.end

    def end(self: StoredRows, transaction: TransactionKey, *, committed: bool) -> None:
        real(self, transaction, committed=True)

    with patch.object(StoredRows, "end", end):
        yield


def pending_offsets_dropped_at_a_commit() -> Any:
    def end(self: StoredRows, transaction: TransactionKey, *, committed: bool) -> None:
        self._pending.end(transaction, committed=False)

    return patch.object(StoredRows, "end", end)


def the_last_stable_offset_past_an_open_transaction() -> Any:
    return patch.object(View, "last_stable_offset", property(lambda self: self.high_watermark))


def an_abort_decided_as_a_commit_at_start() -> Any:
    real = TransactionCoordinator.unfinished

    def unfinished(self: TransactionCoordinator) -> list[WriteMarkers]:
        return [each._replace(committed=True) for each in real(self)]

    return patch.object(TransactionCoordinator, "unfinished", unfinished)


CANARIES: list[Planted] = [
    markers_before_the_decision_is_stored,
    a_decision_that_is_not_synced,
    a_fenced_producer_that_is_not_told_from_its_successor,
    the_end_noted_before_the_markers_are_synced,
    a_marker_for_the_first_partition_only,
    nothing_finished_at_start,
    pending_offsets_applied_at_an_abort,
    pending_offsets_applied_at_an_abort_when_they_are_read_again,
    pending_offsets_dropped_at_a_commit,
    the_last_stable_offset_past_an_open_transaction,
    an_abort_decided_as_a_commit_at_start,
]


@pytest.mark.parametrize("planted", CANARIES, ids=[each.__name__ for each in CANARIES])
def test_a_planted_bug_of_a_server_is_caught(planted: Planted) -> None:
    found = caught(planted)
    assert found is not None, f"{planted.__name__} survived"
    print(f"caught: {planted.__name__.replace('_', ' ')}: {found}")


def caught(planted: Planted) -> Violation | None:
    """Run the workload under a planted bug and return the first broken promise."""
    with planted():
        try:
            return survives(workload, Checks(), images_max=100_000, limit_per_prefix=1)
        except (CordwoodError, AssertionError) as error:
            return violation_of(error)
