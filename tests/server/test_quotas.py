"""Quotas of an org: bytes a second by making its clients wait, and bytes stored by refusing more."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from support.asking import Asking, values_in
from support.clocks import ManualClock
from support.patience import SECONDS_MAX, in_time
from support.seeds import seed_or
from support.tenant_requests import LISTEN, SETTINGS

from cordwood import Broker
from cordwood.config.loading import OrgQuota
from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.cluster import DescribeLogDirsRequest
from cordwood.protocol.messages.fetch import FetchResponse
from cordwood.protocol.messages.produce import ProduceResponse
from cordwood.protocol.messages.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from cordwood.security import ClientQuotas, QuotaClient
from cordwood.server.quotas import OrgQuotas, Rate, StoredBytes

RATE = 100_000


def data_of(size: int) -> bytearray:
    return batch.encode_records([(None, b"v" * size)], 1_000)


# --- rates, by a clock of the test's ------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 7])
def test_clients_that_wait_as_they_are_told_come_to_the_rate(clients: int) -> None:
    """Over a minute, with requests of any size up to three seconds' worth."""
    seed = seed_or(20_261_002)
    rng, clock = random.Random(seed), ManualClock()
    rate = Rate(RATE, clock)
    ready_ms = [0] * clients
    used, seconds = 0, 60
    while (now_ms := min(ready_ms)) < seconds * 1000:
        clock.advance(now_ms - clock.ns // 1_000_000)
        size = rng.randrange(1, 3 * RATE)
        used += size
        ready_ms[ready_ms.index(now_ms)] = now_ms + max(rate.use(size), 1)
    # What is owed still is waited for after the minute.
    reached = used / (seconds + rate.owed_ms() / 1000) / RATE
    print(f"seed {seed}: {reached:.2f} of the rate, {clients} clients")
    assert 0.8 <= reached <= 1.2


def test_what_was_not_used_is_good_for_a_burst_of_one_second_and_no_more() -> None:
    clock = ManualClock()
    rate = Rate(1000, clock)
    clock.advance(3_600_000)
    assert rate.use(1000) == 0
    assert rate.use(500) == 500
    clock.advance(500)
    assert rate.owed_ms() == 0
    assert rate.use(1) == 1


def test_no_quota_is_no_wait() -> None:
    quotas = OrgQuotas(OrgQuota(), 7, ClientQuotas(), lambda: 0, lambda count, then: None, ManualClock())
    client = QuotaClient("alice", "etl")
    assert quotas.produced(client, 1 << 60) == quotas.fetched(client, 1 << 60) == 0
    assert quotas.owed_ms(ApiKey.PRODUCE, client) == 0
    assert quotas.fetch_max(client, 1 << 30) == 1 << 30
    assert quotas.stored is None


# --- stored bytes, with the count in the test's hands -------------------------------------------------


class Counted:
    """A limit, and what is really stored."""

    def __init__(self, limit: int) -> None:
        self.clock = ManualClock()
        self.really = 0
        self.counts: list[Callable[[], None]] = []
        self.decided: list[bool] = []
        self.stored = StoredBytes(limit, lambda: self.really, self._run, self.clock)

    def _run(self, count: Callable[[], int], then: Callable[[int | Exception], None]) -> None:
        result = count()
        self.counts.append(lambda: then(result))

    def count(self) -> None:
        """Let the count that is under way come to its end."""
        self.counts.pop(0)()

    def append(self, size: int) -> None:
        def decide(admitted: bool) -> None:
            self.decided.append(admitted)
            if admitted:
                self.really += size
                self.stored.settle(size, 0)

        self.stored.admit(size, decide)


def test_nothing_is_decided_before_the_first_count_and_then_all_in_order() -> None:
    counted = Counted(100)
    counted.really = 50
    for size in (30, 30, 10):
        counted.append(size)
    assert counted.decided == []
    counted.count()
    assert counted.decided == [True, False, True]


def test_nothing_is_refused_on_an_old_count_and_counts_are_not_more_than_one_a_second() -> None:
    counted = Counted(100)
    counted.append(100)
    counted.count()
    for _ in range(10):
        counted.append(1)
    assert counted.decided == [True] + [False] * 10
    assert counted.counts == []
    # Retention freed all of it.
    counted.really = 0
    counted.clock.advance(1_000)
    counted.append(60)
    counted.append(50)
    assert len(counted.decided) == 11
    counted.count()
    assert counted.decided[11:] == [True, False]


def test_who_deleted_something_need_not_wait_for_the_second_to_be_over() -> None:
    counted = Counted(100)
    counted.append(100)
    counted.count()
    counted.append(1)
    assert counted.decided == [True, False]
    counted.really = 0
    counted.stored.count_again()
    counted.append(1)
    counted.count()
    assert counted.decided == [True, False, True]


def test_a_deletion_during_a_count_has_it_counted_again() -> None:
    counted = Counted(100)
    counted.append(100)
    counted.count()
    counted.clock.advance(1_000)
    counted.append(1)
    counted.really = 0
    counted.stored.count_again()
    counted.count()
    assert counted.decided == [True]
    counted.count()
    assert counted.decided == [True, True]


def test_what_is_admitted_while_it_is_counted_is_not_forgotten() -> None:
    counted = Counted(100)
    counted.append(10)
    counted.count()
    counted.clock.advance(60_000)
    # Begins a count, whose result does not have what comes now.
    counted.append(40)
    counted.append(40)
    counted.count()
    counted.append(20)
    counted.clock.advance(1_000)
    assert counted.really == 90
    counted.append(20)
    counted.count()
    assert counted.decided == [True, True, True, False, False]


def test_what_could_not_be_appended_is_given_back() -> None:
    counted = Counted(100)
    counted.append(0)
    counted.count()
    counted.stored.admit(100, lambda admitted: counted.decided.append(admitted))
    counted.stored.settle(100, 100)
    counted.append(100)
    assert counted.decided == [True, True, True]


def test_a_count_that_fails_lets_nobody_wait() -> None:
    decided: list[bool] = []
    stored = StoredBytes(10, lambda: 0, lambda count, then: then(OSError("gone")), ManualClock())
    stored.admit(5, decided.append)
    stored.admit(5, decided.append)
    stored.admit(5, decided.append)
    assert decided == [True, True, False]


# --- over the wire ------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limited(clock: ManualClock) -> Iterator[Broker]:
    """Have a broker whose org 7 may send and fetch so much in a second of the test's clock."""
    rates = {f"cordwood.org.7.{kind}.byte.rate": str(RATE) for kind in ("producer", "consumer")}
    with Broker(listen=LISTEN, config={**SETTINGS, **rates}, clock=clock) as broker:
        yield broker


def produce(client: Asking, size: int) -> ProduceResponse:
    request = client.produce_request("orders", {0: data_of(size)})
    answer: ProduceResponse = client.ask(ApiKey.PRODUCE, request)
    assert answer.topics[0].partitions[0].error_code == 0
    return answer


def test_a_producer_beyond_its_rate_waits_and_loses_nothing_while_others_go_on(
    limited: Broker, clock: ManualClock
) -> None:
    alpha, beta = limited.addresses["ALPHA"], limited.addresses["BETA"]
    with Asking(alpha) as client, Asking(alpha) as second, Asking(alpha) as fresh, Asking(beta) as other:
        client.create("orders")
        other.create("orders")
        for each in (client, second):
            assert produce(each, 1).throttle_time_ms == 0
        assert produce(client, RATE + RATE // 20).throttle_time_ms in range(50, 60)
        # The first is not read any more; who came before has not used too much; who comes now waits as well.
        late = client.produce_request("orders", {0: data_of(2)})
        client.send(ApiKey.PRODUCE, 12, late)
        fresh.send(ApiKey.PRODUCE, 12, late)
        for _ in range(50):
            assert produce(other, RATE).throttle_time_ms == 0
        assert client.is_silent()
        assert fresh.is_silent()
        # What does not use the rate is answered: the log is where it was.
        assert second.offset_at("orders", -1).offset == 3
        clock.advance(100)
        for each in (client, fresh):
            answer = each.receive(ApiKey.PRODUCE, 12)
            assert answer.topics[0].partitions[0].error_code == 0
        assert second.offset_at("orders", -1).offset == 5


def test_who_waits_for_its_quota_holds_no_memory_that_others_need(clock: ManualClock) -> None:
    """What it sent ahead is given up, unanswered and not stored, and clients of other orgs are served."""
    config = {
        **SETTINGS,
        "cordwood.org.7.producer.byte.rate": "1000",
        "queued.max.request.bytes": str(1 << 20),
    }
    with (
        Broker(listen=LISTEN, config=config, clock=clock) as broker,
        Asking(broker.addresses["ALPHA"]) as client,
        Asking(broker.addresses["ALPHA"]) as fresh,
        Asking(broker.addresses["BETA"]) as other,
    ):
        client.create("orders")
        other.create("orders")
        assert produce(client, 100_000).throttle_time_ms > 90_000
        ahead = client.produce_request("orders", {0: data_of(3 << 19)})
        fresh.send(ApiKey.PRODUCE, 12, ahead)
        assert produce(other, 100_000).throttle_time_ms == 0
        assert fresh.is_closed()
        with Asking(broker.addresses["ALPHA"]) as looking:
            assert looking.offset_at("orders", -1).offset == 1


def test_all_connections_of_an_org_share_its_rate(limited: Broker) -> None:
    alpha = limited.addresses["ALPHA"]
    with Asking(alpha) as one, Asking(alpha) as two:
        one.create("orders")
        for each in (one, two):
            produce(each, 1)
        assert produce(one, RATE // 2).throttle_time_ms == 0
        assert produce(two, RATE).throttle_time_ms in range(490, 520)


def test_a_consumer_beyond_its_rate_waits_and_a_fetch_is_no_larger_than_a_second(limited: Broker) -> None:
    alpha, beta = limited.addresses["ALPHA"], limited.addresses["BETA"]
    with Asking(beta) as other, Asking(alpha) as writer, Asking(alpha) as reader:
        for each in (other, writer):
            each.create("orders")
        for _ in range(8):
            assert not other.produce("orders", data_of(RATE // 3)).error_code
        for _ in range(4):
            assert not writer.produce("orders", data_of(RATE // 5)).error_code

        def fetched(client: Asking, offset: int) -> tuple[int, int]:
            answer: FetchResponse = client.ask(ApiKey.FETCH, client.fetch_request("orders", {0: offset}))
            return len(values_in(answer.topics[0].partitions[0])), answer.throttle_time_ms

        assert fetched(reader, 0) == (4, 0)
        count, throttle_ms = fetched(reader, 0)
        assert count == 4
        assert throttle_ms in range(590, 630)
        assert fetched(other, 0) == (8, 0)


def test_a_fetch_returns_no_more_than_a_second_of_its_rate() -> None:
    config = {**SETTINGS, "cordwood.org.7.consumer.byte.rate": str(RATE)}
    with Broker(listen=LISTEN, config=config) as broker, Asking(broker.addresses["ALPHA"]) as client:
        client.create("orders")
        for _ in range(8):
            assert not client.produce("orders", data_of(RATE // 3)).error_code
        assert len(values_in(client.fetch("orders"))) == 2


def test_a_real_producer_is_slowed_to_its_rate_and_everything_arrives() -> None:
    """confluent-kafka, by the wall clock: a burst of one second, then the rate."""
    rate, size, count = 400_000, 20_000, 50
    config = {**SETTINGS, "cordwood.org.7.producer.byte.rate": str(rate)}
    with Broker(listen=LISTEN, config=config) as broker:
        settings = {"bootstrap.servers": broker.addresses["ALPHA"], "log_level": 0}
        producer = confluent_kafka.Producer({**settings, "batch.size": size, "linger.ms": 0})
        started = time.monotonic()
        for number in range(count):
            producer.produce("orders", b"%05d" % number + b"v" * size, partition=0)
        assert producer.flush(SECONDS_MAX) == 0
        seconds = time.monotonic() - started
        with Asking(broker.addresses["ALPHA"]) as client:
            assert client.offset_at("orders", -1).offset == count
    expected = (count * size - rate) / rate
    print(f"{seconds:.2f} s where {expected:.2f} s are expected")
    # The last request is answered before it is waited for; the machine may be busy with other things.
    assert seconds >= 0.8 * expected
    assert in_time(seconds, 1.2 * expected + 1)


# --- stored bytes, over the wire ----------------------------------------------------------------------

LIMIT = 50_000


def fill(client: Asking) -> int:
    """Produce until that is refused, and return how many were taken."""
    for count in range(1000):
        answer = client.produce("orders", data_of(10_000))
        if answer.error_code:
            assert answer.error_code == ErrorCode.POLICY_VIOLATION
            assert answer.error_message is not None
            assert f"cordwood.org.7.stored.bytes is {LIMIT}" in answer.error_message
            return count
    raise AssertionError("nothing was refused")


def test_an_org_stores_what_it_may_and_again_when_it_deleted_something(tmp_path: Path) -> None:
    config = {**SETTINGS, "cordwood.org.7.stored.bytes": str(LIMIT)}
    with (
        Broker(tmp_path, listen=LISTEN, config=config) as broker,
        Asking(broker.addresses["ALPHA"]) as client,
        Asking(broker.addresses["BETA"]) as other,
    ):
        client.create("orders", 1, segment_bytes="10500")
        other.create("orders")
        assert fill(client) == 4
        (directory,) = client.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None)).results
        stored = sum(part.partition_size for part in directory.topics[0].partitions)
        assert (directory.total_bytes, directory.usable_bytes) == (LIMIT, LIMIT - stored)
        assert len(values_in(client.fetch("orders", max_bytes=1 << 20))) >= 1
        for _ in range(10):
            assert not other.produce("orders", data_of(10_000)).error_code
        asked = DeleteRecordsPartition(partition_index=0, offset=2)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="orders", partitions=[asked])])
        client.ask(ApiKey.DELETE_RECORDS, request)
        assert fill(client) == 2
    # It is counted anew after a restart.
    with (
        Broker(tmp_path, listen=LISTEN, config=config) as broker,
        Asking(broker.addresses["ALPHA"]) as client,
    ):
        assert fill(client) == 0
        assert client.delete("orders") == 0
        client.ids.clear()
        client.create("orders")
        assert fill(client) == 4
