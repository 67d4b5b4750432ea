"""Fetch and ListOffsets with an isolation level: every version, sessions, long polls, real clients."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future

import confluent_kafka
import kafka
import pytest
from support.asking import Asking, values_in
from support.log_transactions import LogTransactions
from support.patience import SECONDS_MAX, until

from cordwood import Broker
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from cordwood.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from cordwood.server.pipeline import PartitionAdvanced

UNCOMMITTED, COMMITTED = 0, 1
FETCH = APIS[ApiKey.FETCH].versions
LIST_OFFSETS = APIS[ApiKey.LIST_OFFSETS].versions
#: The first version of ListOffsets with an isolation level.
ISOLATED_FROM = 2
LONG_MS = int(SECONDS_MAX * 1000)
MARKER_BYTES = 78


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
    name = f"t-{random.Random(request.node.name).randrange(10**12)}"
    client.create(name)
    return name


@pytest.fixture
def log(broker: Broker, topic: str) -> LogTransactions:
    return LogTransactions(broker._node.directory.partitions.writable(topic, 0))


def told(part: FetchPartitionResponse) -> tuple[int, int, list[tuple[int, int]] | None]:
    """Return the last stable offset, the high watermark and the aborted transactions of an answer."""
    listed = part.aborted_transactions
    aborted = None if listed is None else [(each.producer_id, each.first_offset) for each in listed]
    return part.last_stable_offset, part.high_watermark, aborted


@pytest.mark.parametrize("version", range(FETCH.first, FETCH.last + 1))
def test_every_version_of_fetch_stops_at_the_last_stable_offset_and_lists_what_was_aborted(
    client: Asking, topic: str, log: LogTransactions, version: int
) -> None:
    log.plain(b"a")
    log.add(1, b"b")
    log.abort(1)
    log.add(2, b"c")
    log.plain(b"d")
    committed = client.fetch(topic, version=version, isolation_level=COMMITTED)
    assert committed.error_code == ErrorCode.NONE
    assert values_in(committed)[:2] == [b"a", b"b"]
    assert b"c" not in values_in(committed)
    assert told(committed) == (3, 5, [(1, 1)])
    uncommitted = client.fetch(topic, version=version)
    assert values_in(uncommitted)[-2:] == [b"c", b"d"]
    assert told(uncommitted) == (3, 5, None)
    at_end = client.fetch(topic, 3, version=version, isolation_level=COMMITTED)
    assert (told(at_end), values_in(at_end)) == ((3, 5, []), [])


def list_offset(client: Asking, topic: str, timestamp: int, isolation: int, version: int) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
    )
    (part,) = client.ask(ApiKey.LIST_OFFSETS, request, version).topics[0].partitions
    assert part.error_code == ErrorCode.NONE
    return int(part.offset)


@pytest.mark.parametrize("version", range(LIST_OFFSETS.first, LIST_OFFSETS.last + 1))
def test_every_version_of_list_offsets_ends_a_partition_where_its_reader_does(
    client: Asking, topic: str, log: LogTransactions, version: int
) -> None:
    log.plain(b"a")
    log.add(1, b"b")
    log.plain(b"c")
    time_of_c = log.log.newest()
    assert time_of_c is not None
    isolated = version >= ISOLATED_FROM
    assert list_offset(client, topic, -1, UNCOMMITTED, version) == 3
    assert list_offset(client, topic, -1, COMMITTED, version) == (1 if isolated else 3)
    assert list_offset(client, topic, time_of_c[1], UNCOMMITTED, version) == 2
    assert list_offset(client, topic, time_of_c[1], COMMITTED, version) == (-1 if isolated else 2)
    assert list_offset(client, topic, 0, COMMITTED, version) == 0


# --- long polls ------------------------------------------------------------------------------------


def on_loop(broker: Broker, call: object) -> object:
    """Return the result of a call on the loop of the broker."""
    found: Future[object] = Future()
    assert callable(call)
    broker._loop.call_soon_threadsafe(lambda: found.set_result(call()))
    return found.result(SECONDS_MAX)


def wait_until_parked(broker: Broker) -> None:
    server = broker._server
    assert server is not None
    until(lambda: on_loop(broker, lambda: len(server._parking)) == 1, "the fetch waits", pause=0)


def advance(broker: Broker, topic: str, size: int) -> None:
    """Say what the pipeline says of appended bytes."""
    server = broker._server
    assert server is not None
    on_loop(broker, lambda: server._advanced(PartitionAdvanced(topic, 0, size)))


@pytest.mark.parametrize("in_session", [False, True])
def test_a_waiting_reader_of_committed_records_wakes_at_the_end_of_a_transaction(
    broker: Broker, client: Asking, topic: str, log: LogTransactions, in_session: bool
) -> None:
    """The end is a small batch; without it none of the many bytes before it can be read."""
    log.plain(b"a")
    size = 5_000
    limits = {"max_wait_ms": LONG_MS, "min_bytes": 1_000}
    if in_session:
        request = open_session(client, topic).request(1, **limits)
    else:
        request = client.fetch_request(topic, {0: 1}, isolation_level=COMMITTED, **limits)
    log.add(1, b"x" * size)
    client.send(ApiKey.FETCH, FETCH.last, request)
    wait_until_parked(broker)
    log.add(1, b"y" * size)
    advance(broker, topic, size)
    log.plain(b"z" * size)
    advance(broker, topic, size)
    assert on_loop(broker, lambda: 1) == 1
    assert client.is_silent()
    log.commit(1)
    advance(broker, topic, MARKER_BYTES)
    answer: FetchResponse = client.receive(ApiKey.FETCH, FETCH.last)
    (part,) = answer.topics[0].partitions
    assert [value[:1] for value in values_in(part) if value is not None][:3] == [b"x", b"y", b"z"]
    assert part.last_stable_offset == part.high_watermark == 5


class Session:
    """A fetch session of committed records in one partition."""

    def __init__(self, client: Asking, topic: str, session_id: int = 0) -> None:
        self._client = client
        self._topic = topic
        self._id = session_id
        self._epoch = 1 if session_id else 0

    def request(self, offset: int, max_wait_ms: int = 0, min_bytes: int = 1) -> FetchRequest:
        part = FetchPartition(0, fetch_offset=offset, max_bytes=1 << 20)
        topics = [] if self._id else [FetchTopic(self._topic, self._client.id_of(self._topic), [part])]
        request = FetchRequest(
            -1, max_wait_ms, min_bytes, 1 << 24, COMMITTED, self._id, self._epoch, topics, [], ""
        )
        self._epoch += 1
        return request


def open_session(client: Asking, topic: str) -> Session:
    """Return a session whose client knows all offsets."""
    answer: FetchResponse = client.ask(ApiKey.FETCH, Session(client, topic).request(1))
    assert answer.session_id
    return Session(client, topic, answer.session_id)


def test_a_session_of_committed_records_is_told_of_every_move_of_their_end(
    client: Asking, topic: str, log: LogTransactions
) -> None:
    log.plain(b"a")
    session = open_session(client, topic)

    def news() -> list[tuple[int, int, list[tuple[int, int]] | None]]:
        answer: FetchResponse = client.ask(ApiKey.FETCH, session.request(1))
        assert answer.error_code == ErrorCode.NONE
        return [told(part) for each in answer.topics for part in each.partitions]

    assert news() == []
    log.add(1, b"b")
    assert news() == [(1, 2, [])]
    assert news() == []
    log.abort(1)
    assert news() == [(3, 3, [(1, 1)])]


# --- real clients ----------------------------------------------------------------------------------


def test_real_consumers_show_committed_records_only(broker: Broker, topic: str, log: LogTransactions) -> None:
    for number in range(50):
        log.add(1, b"committed-%d" % number)
        log.add(2, b"aborted-%d" % number)
        log.plain(b"plain-%d" % number)
        log.commit(1)
        log.abort(2)
    wanted = [b"%s-%d" % (kind, number) for number in range(50) for kind in (b"committed", b"plain")]
    stable = log.add(3, b"open")

    one = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    )
    try:
        one.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        while len(found) < len(wanted):
            record = one.poll(SECONDS_MAX)
            assert record is not None
            assert record.error() is None
            found.append(record.value() or b"")
        assert found == wanted
        assert one.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0))[1] == stable
    finally:
        one.close()

    other = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed")
    try:
        place = kafka.TopicPartition(topic, 0)
        other.assign([place])
        other.seek(place, 0)
        found = []
        while len(found) < len(wanted):
            for records in other.poll(timeout_ms=LONG_MS).values():
                found += [record.value for record in records]
        assert found == wanted
        assert other.end_offsets([place])[place] == stable
    finally:
        other.close()
