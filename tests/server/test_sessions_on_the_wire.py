"""Fetch sessions on the wire: only news is sent, nothing is missed, and what is wrong is said."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import kafka
import pytest
from support.asking import Asking, records_in, values_in
from support.patience import SECONDS_MAX
from support.seeds import seeds_from
from support.tenant_requests import LISTEN, SETTINGS

from cordwood import Broker
from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from cordwood.protocol.messages.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

VERSIONS = range(7, 19)
Place = tuple[str, int]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as asking:
        yield asking


@pytest.fixture
def topic(client: Asking, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions with one record each."""
    name = f"t-{random.Random(request.node.name).randrange(10**12)}"
    client.create(name, 3)
    for partition in range(3):
        append(client, name, partition, b"first")
    return name


def append(client: Asking, topic: str, partition: int, *values: bytes) -> None:
    data = batch.encode_records([(b"k", value) for value in values], 1_000)
    assert not client.produce(topic, data, partition).error_code


class Session:
    """A consumer as clients are: it names what changed, and keeps what it was told."""

    def __init__(self, client: Asking, version: int = 18) -> None:
        self.client = client
        self.version = version
        self.id, self.epoch = 0, 0
        self.offsets: dict[Place, int] = {}
        self.told: dict[Place, FetchPartitionResponse] = {}
        self._named: dict[Place, int] = {}

    def request(self, **limits: int) -> FetchRequest:
        """Return the next request, and take it for sent."""
        full = not self.epoch
        new = {place: at for place, at in self.offsets.items() if full or self._named.get(place) != at}
        forgotten = [] if full else [place for place in self._named if place not in self.offsets]
        self._named = dict(self.offsets)
        self.told = {place: told for place, told in self.told.items() if place in self.offsets}
        return FetchRequest(
            -1,
            limits.get("max_wait_ms", 0),
            limits.get("min_bytes", 1),
            limits.get("max_bytes", 1 << 24),
            0,
            self.id,
            self.epoch,
            [FetchTopic(name, self._id(name), parts) for name, parts in _by_topic(new).items()],
            [ForgottenTopic(name, self._id(name), [index]) for name, index in forgotten],
            "",
        )

    def _id(self, topic: str) -> bytes:
        return self.client.id_of(topic)

    def send(self, **limits: int) -> None:
        self.client.send(ApiKey.FETCH, self.version, self.request(**limits))

    def take(self, answer: FetchResponse) -> dict[Place, FetchPartitionResponse]:
        """Take an answer; return what it tells of."""
        assert answer.error_code == ErrorCode.NONE
        self.id = answer.session_id
        self.epoch = self.epoch + 1 if self.id else 0
        names = {self.client.id_of(name): name for name, _ in self._named}
        found = {
            (topic.name or names[topic.topic_id], part.index): part
            for topic in answer.topics
            for part in topic.partitions
        }
        for place, part in found.items():
            self.told[place] = part
            # A batch may begin before the offset that was asked for.
            if records := records_in(part):
                self.offsets[place] = records[-1].offset + 1
        return found

    def fetch(self, **limits: int) -> dict[Place, FetchPartitionResponse]:
        """Ask, and return what was told."""
        return self.take(self.client.ask(ApiKey.FETCH, self.request(**limits), self.version))


def _by_topic(offsets: Mapping[Place, int]) -> dict[str, list[FetchPartition]]:
    found: dict[str, list[FetchPartition]] = {}
    for (topic, index), offset in offsets.items():
        found.setdefault(topic, []).append(FetchPartition(index, fetch_offset=offset, max_bytes=1 << 20))
    return found


def opened(client: Asking, topic: str, partitions: Sequence[int] = (0, 1, 2), version: int = 18) -> Session:
    """Return a session that has read everything there is."""
    session = Session(client, version)
    session.offsets = {(topic, partition): 0 for partition in partitions}
    assert set(session.fetch()) == set(session.offsets)
    assert session.id > 0
    return session


def error_of(client: Asking, session_id: int, epoch: int, version: int = 18) -> tuple[int, int, int]:
    request = FetchRequest(-1, 0, 1, 1 << 20, 0, session_id, epoch, [], [], "")
    answer: FetchResponse = client.ask(ApiKey.FETCH, request, version)
    return answer.error_code, answer.session_id, len(answer.topics)


def delete_records(client: Asking, place: Place, offset: int) -> None:
    part = DeleteRecordsPartition(partition_index=place[1], offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=place[0], partitions=[part])])
    (answer,) = client.ask(ApiKey.DELETE_RECORDS, request).topics
    assert not answer.partitions[0].error_code


# --- what is told -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_is_told_of_partitions_with_news_and_of_no_others(
    client: Asking, topic: str, version: int
) -> None:
    session = opened(client, topic, version=version)
    assert session.offsets == {(topic, partition): 1 for partition in range(3)}
    assert session.fetch() == {}
    append(client, topic, 1, b"second", b"third")
    told = session.fetch()
    assert {place: values_in(part) for place, part in told.items()} == {(topic, 1): [b"second", b"third"]}
    assert session.fetch() == {}
    # Another log start is news as well, and so is what comes after an error.
    delete_records(client, (topic, 1), 3)
    told = session.fetch()
    assert [(part.high_watermark, part.log_start_offset) for part in told.values()] == [(3, 3)]
    session.offsets[topic, 1] = 1
    for _ in range(2):
        (failed,) = session.fetch().values()
        assert failed.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    session.offsets[topic, 1] = 3
    (healed,) = session.fetch().values()
    assert (healed.error_code, healed.high_watermark, list(values_in(healed))) == (0, 3, [])
    assert session.fetch() == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_come_into_a_session_and_are_forgotten(client: Asking, topic: str, version: int) -> None:
    session = opened(client, topic, [0], version)
    session.offsets[topic, 2] = 0
    assert set(session.fetch()) == {(topic, 2)}
    del session.offsets[topic, 0]
    assert session.fetch() == {}
    append(client, topic, 0, b"not read")
    append(client, topic, 2, b"read")
    assert set(session.fetch()) == {(topic, 2)}
    # Without a partition left it is over.
    session.offsets.clear()
    assert session.fetch() == {}
    assert session.id == 0


def test_a_session_goes_by_names_or_by_ids_and_not_by_both(client: Asking, topic: str) -> None:
    mixed = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    by_name, by_id = opened(client, topic, version=12), opened(client, topic, version=13)
    assert error_of(client, by_name.id, by_name.epoch, 13) == (mixed, 0, 0)
    assert error_of(client, by_id.id, by_id.epoch, 12) == (mixed, 0, 0)
    assert by_name.fetch() == by_id.fetch() == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_that_is_not_there_or_at_another_epoch_is_refused(
    client: Asking, topic: str, version: int
) -> None:
    unknown = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)
    assert error_of(client, 0, 1, version) == error_of(client, -4, 7, version) == unknown
    session = opened(client, topic, version=version)
    other = session.id ^ 1
    assert error_of(client, other, session.epoch, version) == unknown
    for epoch in (session.epoch + 1, -2):
        refused = error_of(client, session.id, epoch, version)
        assert refused == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, 0)
    assert session.fetch() == {}
    # Who asks in full again, with or without a new one, has no use for the old one.
    for epoch in (-1, 0):
        session = opened(client, topic, version=version)
        request = client.fetch_request(topic, {0: 0})
        request.session_id, request.session_epoch = session.id, epoch
        answer: FetchResponse = client.ask(ApiKey.FETCH, request, version)
        assert (answer.error_code, len(answer.topics), bool(answer.session_id)) == (0, 1, epoch == 0)
        assert answer.session_id != session.id
        assert error_of(client, session.id, session.epoch, version) == unknown


def test_a_small_answer_gives_each_partition_its_turn(client: Asking, topic: str) -> None:
    """Those that gave records are read last next time: one with much to read starves no other."""
    session = opened(client, topic)
    for partition in range(3):
        for _ in range(4):
            append(client, topic, partition, b"x" * 500)
    order = []
    for _ in range(12):
        told = session.fetch(max_bytes=1)
        order += [index for (_, index), part in told.items() if values_in(part)]
    assert sorted(order[:3]) == sorted(order[3:6]) == [0, 1, 2]
    assert session.offsets == {(topic, partition): 5 for partition in range(3)}


@pytest.mark.parametrize("version", [12, 18])
def test_a_topic_that_goes_is_told_of_once_it_is_gone_and_one_of_its_name_is_another(
    client: Asking, topic: str, version: int
) -> None:
    session = opened(client, topic, [0], version)
    client.delete(topic)
    code = ErrorCode.UNKNOWN_TOPIC_ID if version == 18 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for _ in range(2):
        assert [part.error_code for part in session.fetch().values()] == [code]
    old = client.ids[topic]
    client.create(topic)
    append(client, topic, 0, b"other")
    client.ids[topic], new = old, client.ids[topic]
    told = session.fetch()
    if version == 18:
        assert [part.error_code for part in told.values()] == [code]
    else:
        # Offset 1 of it is its end.
        assert [(part.error_code, part.high_watermark) for part in told.values()] == [(0, 1)]
    client.ids[topic] = new


@pytest.mark.parametrize("seed", seeds_from(20_260_301, 3))
def test_a_session_comes_to_know_what_a_full_fetch_tells(client: Asking, topic: str, seed: int) -> None:
    """Records come and go, partitions are taken up and left, in any order; compared after each fetch."""
    rng = random.Random(seed)
    places = [(topic, partition) for partition in range(3)]
    session = Session(client, rng.choice(list(VERSIONS)))
    session.offsets = dict.fromkeys(places, 0)
    told_of = 0
    for _ in range(60):
        match rng.randrange(4):
            case 0 | 1:
                append(client, topic, rng.randrange(3), *[b"v"] * rng.randint(1, 3))
            case 2:
                place = rng.choice(places)
                delete_records(client, place, rng.randint(0, session.offsets.get(place, 0)))
            case _:
                place = rng.choice(places)
                if place not in session.offsets:
                    session.offsets[place] = client.offset_at(topic, -2, place[1]).offset
                elif len(session.offsets) > 1:
                    del session.offsets[place]
        told_of += len(session.fetch())
        for place, offset in session.offsets.items():
            full = client.fetch(topic, offset, place[1])
            known = session.told[place]
            assert not known.error_code
            assert (known.high_watermark, known.log_start_offset) == (
                full.high_watermark,
                full.log_start_offset,
            )
            assert offset == full.high_watermark
    print(f"seed {seed}, version {session.version}: told of {told_of} partitions in 60 fetches")
    assert session.id


# --- while it waits -----------------------------------------------------------------------------------


def test_a_fetch_that_waits_is_answered_with_what_came_alone(
    client: Asking, topic: str, broker: Broker
) -> None:
    session = opened(client, topic)
    session.send(max_wait_ms=int(SECONDS_MAX * 1_000))
    with Asking(broker.bootstrap) as other:
        append(other, topic, 2, b"later")
        told = session.take(client.receive(ApiKey.FETCH, session.version))
        assert {place: values_in(part) for place, part in told.items()} == {(topic, 2): [b"later"]}
        session.send(max_wait_ms=int(SECONDS_MAX * 1_000))
        other.delete(topic)
        told = session.take(client.receive(ApiKey.FETCH, session.version))
        assert {part.error_code for part in told.values()} == {ErrorCode.UNKNOWN_TOPIC_ID}


def test_a_fetch_without_news_waits_for_its_time_and_says_nothing(client: Asking, topic: str) -> None:
    session = opened(client, topic)
    assert session.fetch(max_wait_ms=50) == {}
    delete_records(client, (topic, 0), 1)
    # There is something to tell, but no record: it is told when the time is up.
    assert [part.log_start_offset for part in session.fetch(max_wait_ms=50).values()] == [1]


def test_a_fetch_that_is_overtaken_in_its_session_while_it_waits_is_told_so(
    client: Asking, topic: str, broker: Broker
) -> None:
    """As when a client gave up on it and asks again from another connection: news goes to one of them."""
    session = opened(client, topic)
    request = session.request(max_wait_ms=int(SECONDS_MAX * 1_000))
    client.send(ApiKey.FETCH, session.version, request)
    request.session_epoch, request.max_wait_ms = request.session_epoch + 1, 0
    refused = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    deadline = time.monotonic() + SECONDS_MAX
    with Asking(broker.bootstrap) as other:
        # Until the first one is there, this one comes too early.
        while (answer := other.ask(ApiKey.FETCH, request, session.version)).error_code == refused:
            assert time.monotonic() < deadline
        assert (answer.error_code, answer.topics, answer.session_id) == (0, [], session.id)
        append(other, topic, 0, b"news")
        overtaken = client.receive(ApiKey.FETCH, session.version)
        assert (overtaken.error_code, overtaken.topics) == (refused, [])
        request.session_epoch += 1
        answer = other.ask(ApiKey.FETCH, request, session.version)
        assert [values_in(part) for part in answer.topics[0].partitions] == [[b"news"]]


# --- what it costs ------------------------------------------------------------------------------------


def test_a_fetch_of_1000_partitions_of_which_one_changed_reads_and_sends_that_one(client: Asking) -> None:
    client.create("wide", 1000)
    for first in range(0, 1000, 100):
        data = batch.encode_records([(b"k", b"v")], 1_000)
        client.ask(
            ApiKey.PRODUCE, client.produce_request("wide", dict.fromkeys(range(first, first + 100), data))
        )
    session = opened(client, "wide", range(1000))
    append(client, "wide", 777, b"news")
    sizes = []
    for request in (session.request(), client.fetch_request("wide", dict.fromkeys(range(1000), 1))):
        client.send(ApiKey.FETCH, 18, request)
        sizes.append(len(client.receive_frame()))
    print(f"{sizes[0]} bytes of news, {sizes[1]} in full")
    assert sizes[0] < sizes[1] / 100


def test_no_more_sessions_are_open_than_there_are_slots() -> None:
    with (
        Broker(config={"max.incremental.fetch.session.cache.slots": "2"}) as broker,
        Asking(broker.bootstrap) as client,
    ):
        client.create("t")
        request = client.fetch_request("t", {0: 0})
        request.session_epoch = 0
        ids = [client.ask(ApiKey.FETCH, request).session_id for _ in range(4)]
        assert [bool(id_) for id_ in ids] == [True, True, False, False]
        # Who got none asks in full, and is answered.
        assert len(client.ask(ApiKey.FETCH, request).topics) == 1
    with (
        Broker(config={"max.incremental.fetch.session.cache.slots": "0"}) as broker,
        Asking(broker.bootstrap) as client,
    ):
        client.create("t")
        request = client.fetch_request("t", {0: 0})
        request.session_epoch = 0
        assert client.ask(ApiKey.FETCH, request).session_id == 0


def test_a_session_of_one_org_is_not_there_for_another_nor_takes_its_place() -> None:
    settings = {**SETTINGS, "max.incremental.fetch.session.cache.slots": "3"}
    with Broker(listen=LISTEN, config=settings) as broker:
        clients = {name: Asking(address) for name, address in broker.addresses.items()}
        try:
            sessions: dict[str, Session] = {}
            for name, client in clients.items():
                client.create("orders", 3)
                for partition in range(3):
                    append(client, "orders", partition, name.encode())
                sessions[name] = opened(client, "orders")
            for name, client in clients.items():
                for owner, session in sessions.items():
                    if owner != name:
                        refused = error_of(client, session.id, session.epoch)
                        assert refused == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)
                        # Nor can it be ended from there.
                        error_of(client, session.id, -1)
            for name, session in sessions.items():
                append(clients[name], "orders", 1, f"{name} again".encode())
                told = session.fetch()
                assert [values_in(part) for part in told.values()] == [[f"{name} again".encode()]]
        finally:
            for client in clients.values():
                client.close()


# --- a real client ------------------------------------------------------------------------------------


def test_kafka_python_reads_everything_in_a_session(client: Asking, topic: str, broker: Broker) -> None:
    consumer: Any = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS_MAX * 1_000,
    )
    try:
        consumer.assign([kafka.TopicPartition(topic, partition) for partition in range(3)])
        values = [next(consumer).value for _ in range(3)]
        for number in range(20):
            append(client, topic, number % 3, b"%d" % number)
            values.append(next(consumer).value)
        (handler,) = consumer._fetcher._session_handlers.values()
        assert handler.next_metadata.session_id > 0
        assert handler.next_metadata.epoch > 1
    finally:
        consumer.close()
    assert values == [b"first"] * 3 + [b"%d" % number for number in range(20)]
