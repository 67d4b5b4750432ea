"""X2, O4: what was decided before a crash is finished before anyone reads committed records.

A power cut may have lost the markers, and readers may have seen the transaction: its end must not go back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.asking import Asking, values_in
from support.patience import SECONDS_MAX, until
from support.scraping import get
from support.serving import RawClient
from support.transactional import RawTransactional, create_topic

from cordwood import Broker
from cordwood.broker.node import Node
from cordwood.errors import DiskFull
from cordwood.formats import Marker
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

A, B = ("orders", 0), ("ledger", 0)
UNCOMMITTED, COMMITTED = 0, 1
LATEST = -1
CONFIG = {"cordwood.metrics.listen": "127.0.0.1:0"}


class Held:
    """Markers that are not written to `orders` until they are released: they wait, or the disk is full."""

    def __init__(self, patched: pytest.MonkeyPatch, *, full: bool) -> None:
        append_marker, self.released = Node.append_marker, Event()

        def append(node: Node, topic: str, partition: int, marker: Marker) -> Any:
            if topic == "orders" and not self.released.is_set():
                if full:
                    raise DiskFull("full")
                assert self.released.wait(SECONDS_MAX)
            return append_marker(node, topic, partition, marker)

        patched.setattr(Node, "append_marker", append)
        patched.setattr("cordwood.server.transactions.serving.RETRY_SECONDS", 0.01)


@contextmanager
def held(*, full: bool) -> Iterator[Held]:
    with pytest.MonkeyPatch.context() as patched:
        markers = Held(patched, full=full)
        try:
            yield markers
        finally:
            markers.released.set()


@pytest.fixture
def decided(tmp_path: Path) -> Path:
    """The files of a server that was killed after a decision and before any marker of it."""
    before, after = tmp_path / "before", tmp_path / "after"
    with held(full=False) as markers, Broker(before) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        create_topic(client, "ledger")
        producer = RawTransactional(client).init().write([A, B], b"one")
        assert producer.try_end(committed=True) is ErrorCode.NONE
        shutil.copytree(before, after, ignore=shutil.ignore_patterns("lock*"))
        markers.released.set()
    return after


def end_request(topic: str, isolation: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        isolation_level=isolation,
        topics=[ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=LATEST)])],
    )


def fetch_request(topic: str) -> FetchRequest:
    part = FetchPartition(index=0, fetch_offset=0, max_bytes=1 << 20)
    return FetchRequest(
        isolation_level=COMMITTED,
        max_wait_ms=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic, partitions=[part])],
    )


FETCH_VERSION = 11
LIST_VERSION = APIS[ApiKey.LIST_OFFSETS].advertised.last


def end_of(client: RawClient, topic: str, isolation: int) -> tuple[int, int]:
    """Return error and offset of the end of a topic."""
    (found,) = client.ask(ApiKey.LIST_OFFSETS, end_request(topic, isolation)).topics[0].partitions
    return found.error_code, found.offset


def test_committed_records_are_read_once_transactions_of_an_earlier_process_are_finished(
    decided: Path,
) -> None:
    with (
        held(full=False) as markers,
        Broker(decided, config=CONFIG) as broker,
        Asking(broker.bootstrap) as lister,
        Asking(broker.bootstrap) as fetcher,
        Asking(broker.bootstrap) as other,
    ):
        lister.send(ApiKey.LIST_OFFSETS, LIST_VERSION, end_request("orders", COMMITTED))
        fetcher.send(ApiKey.FETCH, FETCH_VERSION, fetch_request("orders"))
        # The server answers, and to these only later.
        assert end_of(other, "orders", UNCOMMITTED) == (0, 1)
        url = broker.metrics_url
        assert url is not None
        status, reason = get(url.replace("/metrics", "/readyz"))
        assert (status, "transactions" in reason) == (503, True)
        markers.released.set()
        (found,) = lister.receive(ApiKey.LIST_OFFSETS, LIST_VERSION).topics[0].partitions
        assert (found.error_code, found.offset) == (0, 2)
        (read,) = fetcher.receive(ApiKey.FETCH, FETCH_VERSION).topics[0].partitions
        assert (read.last_stable_offset, values_in(read)[0]) == (2, b"one")
        until(lambda: get(url.replace("/metrics", "/readyz"))[0] == 200, "the server to be ready")


def test_a_server_that_closes_does_not_answer_before_it_has_finished_transactions(decided: Path) -> None:
    with ExitStack() as stack:
        markers = stack.enter_context(held(full=False))
        broker = stack.enter_context(Broker(decided))
        lister, fetcher = (stack.enter_context(Asking(broker.bootstrap)) for _ in range(2))
        lister.send(ApiKey.LIST_OFFSETS, LIST_VERSION, end_request("orders", COMMITTED))
        fetcher.send(ApiKey.FETCH, FETCH_VERSION, fetch_request("orders"))
        assert end_of(stack.enter_context(Asking(broker.bootstrap)), "orders", UNCOMMITTED) == (0, 1)
        broker._loop.call_soon_threadsafe(broker._stopping.set)  # type: ignore[union-attr]
        (found,) = lister.receive(ApiKey.LIST_OFFSETS, LIST_VERSION).topics[0].partitions
        assert found.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert fetcher.socket.recv(1) == b""
        markers.released.set()


def test_a_partition_whose_marker_cannot_be_written_is_refused_to_readers_of_committed_records(
    decided: Path,
) -> None:
    """Nothing else is refused, and a client retries until the disk has space."""
    with (
        held(full=True) as markers,
        Broker(decided) as broker,
        Asking(broker.bootstrap) as client,
    ):
        full = int(ErrorCode.KAFKA_STORAGE_ERROR)
        assert end_of(client, "orders", COMMITTED)[0] == full
        answer = client.ask(ApiKey.FETCH, fetch_request("orders"), FETCH_VERSION)
        assert answer.topics[0].partitions[0].error_code == full
        assert end_of(client, "orders", UNCOMMITTED) == (0, 1)
        until(lambda: end_of(client, "ledger", COMMITTED)[0] == 0, "the ledger to have its marker")
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "g", "isolation.level": "read_committed"}
        )
        consumer.assign([TopicPartition(*A, 0)])
        assert consumer.poll(0.2) is None
        markers.released.set()
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        assert message.error() is None
        assert message.value() == b"one"
        consumer.close()
        assert end_of(client, "orders", COMMITTED) == (0, 2)
