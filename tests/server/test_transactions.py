"""Transactions over the wire: every request with its error codes, and what is still true after the end."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.patience import SECONDS_MAX, until
from support.serving import RawClient
from support.transactional import (
    RawTransactional,
    create_topic,
    describe,
    listed,
    visible,
)

from cordwood import Broker
from cordwood.broker.node import Node
from cordwood.broker.operations import OPERATION, TruncatePartition, encode_operation
from cordwood.broker.transactions import ProducerIdentity
from cordwood.broker.transactions.state_topic import NAME, decode_key, decode_value
from cordwood.errors import DiskFull
from cordwood.formats import Marker
from cordwood.formats.batch import TRANSACTIONAL, BatchOptions, encode_records
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from cordwood.protocol.messages.groups import FindCoordinatorRequest
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.producers import DescribeProducersRequest, DescribeProducersTopic
from cordwood.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from cordwood.protocol.messages.transactions import (
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from cordwood.protocol.wire import NULL_ID

NONE = ErrorCode.NONE
A, B = ("orders", 0), ("ledger", 0)
#: Transactions are looked at often, so that no test waits for that.
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "20"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config=SETTINGS) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as connected:
        create_topic(connected, "orders", 2)
        create_topic(connected, "ledger")
        yield connected


def open_offsets(client: RawClient, topic: str) -> dict[int, int]:
    """Return the first offset of the open transaction of each producer in partition 0."""
    request = DescribeProducersRequest([DescribeProducersTopic(topic, [0])])
    (partition,) = client.ask(ApiKey.DESCRIBE_PRODUCERS, request).topics[0].partitions
    assert partition.error_code == 0
    return {each.producer_id: each.current_txn_start_offset for each in partition.active_producers}


# --- committing and aborting


def test_records_of_a_transaction_are_visible_together_once_it_is_committed(
    broker: Broker, client: RawClient
) -> None:
    producer = RawTransactional(client).init().write([A, B], b"one")
    assert (visible(broker, *A), visible(broker, *B)) == ([], [])
    assert open_offsets(client, "orders") == {producer.identity.producer_id: 0}
    producer.commit()
    assert (visible(broker, *A), visible(broker, *B)) == ([b"one"], [b"one"])
    assert open_offsets(client, "orders") == {producer.identity.producer_id: -1}


def test_records_of_an_aborted_transaction_are_never_visible(broker: Broker, client: RawClient) -> None:
    producer = RawTransactional(client).init()
    producer.write([A], b"no").abort()
    producer.write([A, B], b"yes").commit()
    assert (visible(broker, *A), visible(broker, *B)) == ([b"yes"], [b"yes"])


def test_an_end_that_is_repeated_gets_the_same_answer_and_the_other_one_is_refused(client: RawClient) -> None:
    producer = RawTransactional(client).init()
    producer.write([A], b"one").commit()
    assert producer.try_end(committed=True) is NONE
    assert producer.try_end(committed=False) is ErrorCode.INVALID_TXN_STATE
    producer.write([A], b"two").abort()
    assert producer.try_end(committed=False) is NONE
    assert producer.try_end(committed=True) is ErrorCode.INVALID_TXN_STATE


def test_a_transaction_that_was_never_begun_cannot_end(client: RawClient) -> None:
    producer = RawTransactional(client).init()
    for committed in (True, False):
        assert producer.try_end(committed=committed) is ErrorCode.INVALID_TXN_STATE


def test_a_partition_that_is_deleted_does_not_keep_a_transaction_open(
    broker: Broker, client: RawClient
) -> None:
    producer = RawTransactional(client).init().write([A, B], b"one")
    client.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState("ledger", NULL_ID)], [], 10_000))
    producer.commit()
    assert visible(broker, *A) == [b"one"]


# --- what a transactional batch must be part of


def test_a_batch_outside_of_an_ongoing_transaction_is_refused(broker: Broker, client: RawClient) -> None:
    """Otherwise it would stay open for ever."""
    producer = RawTransactional(client).init()
    assert producer.send(A, b"before") is ErrorCode.INVALID_TXN_STATE
    producer.write([A], b"one")
    assert producer.send(B, b"elsewhere") is ErrorCode.INVALID_TXN_STATE
    assert producer.send(("orders", 1), b"elsewhere") is ErrorCode.INVALID_TXN_STATE
    # Producers that know the newer code abort on it and go on.
    assert producer.send(B, b"elsewhere", version=11) is ErrorCode.TRANSACTION_ABORTABLE
    producer.commit()
    assert producer.send(A, b"after") is ErrorCode.INVALID_TXN_STATE
    assert (visible(broker, *A), visible(broker, *B)) == ([b"one"], [])


def send_as(
    client: RawClient, producer_id: int, epoch: int, transactional_id: str | None, attributes: int
) -> ErrorCode:
    """Send one batch to `A` in the name of any producer."""
    options = BatchOptions(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=0, attributes=attributes
    )
    data = memoryview(encode_records([(None, b"forged")], 1_000, options))
    topic = ProduceTopic(A[0], NULL_ID, [ProducePartition(A[1], data)])
    answer = client.ask(ApiKey.PRODUCE, ProduceRequest(transactional_id, -1, 10_000, [topic]), 9)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [
        ("other", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ("unknown", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ("", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ("\0007\000copier", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_nobody_appends_to_a_transaction_of_another_transactional_id(
    broker: Broker, client: RawClient, transactional_id: str | None, code: ErrorCode
) -> None:
    producer = RawTransactional(client).init().add(A)
    RawTransactional(client, "other").init().add(A)
    assert send_as(client, *producer.identity, transactional_id, TRANSACTIONAL) is code
    # Otherwise the batch of the real producer would be taken for a repetition of the forged one.
    assert producer.send(A, b"real") is NONE
    producer.commit()
    assert visible(broker, "orders") == [b"real"]


@pytest.mark.parametrize("raised", [0, 1, 1000])
def test_a_batch_outside_of_transactions_cannot_fence_the_producer_of_a_transactional_id(
    broker: Broker, client: RawClient, raised: int
) -> None:
    producer = RawTransactional(client).init()
    producer_id, epoch = producer.identity
    assert send_as(client, producer_id, epoch + raised, None, 0) is ErrorCode.INVALID_TXN_STATE
    producer.write([A], b"real").commit()
    assert send_as(client, producer_id, epoch + raised, None, 0) is ErrorCode.INVALID_TXN_STATE
    assert visible(broker, "orders") == [b"real"]


def test_a_batch_of_a_fenced_producer_is_refused(client: RawClient) -> None:
    first = RawTransactional(client).init().write([A], b"one")
    RawTransactional(client).init()
    assert first.send(A, b"two") is ErrorCode.INVALID_PRODUCER_EPOCH


# --- fencing


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_fenced_producer_can_neither_add_nor_end(client: RawClient, version: int) -> None:
    first = RawTransactional(client).init().write([A], b"one")
    second = RawTransactional(client).init()
    assert second.identity.producer_id == first.identity.producer_id
    # Raised twice: once to abort what the first one left open, and once for the second one.
    assert second.identity.epoch == first.identity.epoch + 2
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert first.try_add(A, version=version) == [fenced]
    assert first.try_add_offsets(version=version) is fenced
    for committed in (True, False):
        assert first.try_end(committed=committed, version=version) is fenced


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)]
)
def test_a_producer_that_goes_on_after_an_error_is_fenced_by_a_newer_one(
    client: RawClient, version: int, code: ErrorCode
) -> None:
    producer = RawTransactional(client).init()
    before = producer.identity
    assert producer.try_init(before) is NONE
    assert producer.identity == ProducerIdentity(before.producer_id, before.epoch + 1)
    # A retry of the same request, whose answer was lost.
    assert producer.try_init(before) is NONE
    assert producer.identity.epoch == before.epoch + 1
    RawTransactional(client).init()
    assert producer.try_init(before, version) is code


def test_a_producer_id_without_an_epoch_is_no_request(client: RawClient) -> None:
    producer = RawTransactional(client)
    assert producer.try_init(ProducerIdentity(7, -1)) is ErrorCode.INVALID_REQUEST
    assert producer.try_init(ProducerIdentity(-1, 7)) is ErrorCode.INVALID_REQUEST


def test_requests_of_an_unknown_producer_are_refused(client: RawClient) -> None:
    stranger = RawTransactional(client, "stranger")
    stranger.identity = ProducerIdentity(77, 0)
    assert stranger.try_add(A) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert stranger.try_add_offsets() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.try_end(committed=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    known = RawTransactional(client).init()
    known.identity = ProducerIdentity(77, 0)
    assert known.try_add(A) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_refused(client: RawClient, timeout_ms: int) -> None:
    producer = RawTransactional(client, timeout_ms=timeout_ms)
    assert producer.try_init() is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("transactional_id", ["", "\0" + "7\0copier"])
def test_an_id_that_clients_may_not_use_is_refused(client: RawClient, transactional_id: str) -> None:
    producer = RawTransactional(client, transactional_id)
    assert producer.try_init() is ErrorCode.INVALID_REQUEST
    producer.identity = ProducerIdentity(0, 0)
    assert producer.try_add(A) == [ErrorCode.INVALID_REQUEST]
    assert producer.try_end(committed=True) is ErrorCode.INVALID_REQUEST
    assert describe(client, transactional_id).error_code == ErrorCode.INVALID_REQUEST


def test_partitions_are_added_all_or_none(client: RawClient) -> None:
    producer = RawTransactional(client).init()
    unknown, untried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert producer.try_add(A, ("missing", 0), ("orders", 2)) == [untried, unknown, unknown]
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert producer.try_add((NAME, 0), A) == [refused, untried]
    assert describe(client, producer.id).transaction_state == "Empty"


def test_the_offsets_of_groups_are_a_partition_of_the_transaction(client: RawClient) -> None:
    producer = RawTransactional(client).init()
    assert producer.try_add_offsets("") is ErrorCode.INVALID_GROUP_ID
    assert producer.try_add_offsets("group") is NONE
    (topic,) = describe(client, producer.id).topics
    assert (topic.topic, topic.partitions) == ("__consumer_offsets", [0])
    # No group has committed anything, so the topic may be missing.
    producer.commit()


# --- time


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(
    broker: Broker, client: RawClient
) -> None:
    silent = RawTransactional(client, timeout_ms=50).init().write([A, B], b"late")
    found = silent.wait_for("CompleteAbort")
    assert found.producer_epoch == silent.identity.epoch + 1
    assert silent.try_end(committed=True) is ErrorCode.PRODUCER_FENCED
    assert silent.send(A, b"later") is ErrorCode.INVALID_PRODUCER_EPOCH
    RawTransactional(client).init().write([A], b"next").commit()
    assert visible(broker, *A) == [b"next"]


def test_a_transactional_id_that_is_not_used_is_forgotten() -> None:
    settings = {
        **SETTINGS,
        "transactional.id.expiration.ms": "1",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "10",
    }
    with Broker(config=settings) as broker, RawClient(broker.bootstrap) as client:
        producer = RawTransactional(client).init()
        until(lambda: not listed(client), "the id to be forgotten")
        assert describe(client, "copier").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert producer.try_end(committed=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        again = RawTransactional(client).init()
        assert again.identity.producer_id != producer.identity.producer_id


# --- while a decision is carried out


@pytest.fixture
def stuck_markers(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold the writer at the first marker until the event is set: the decision is stored, nothing else."""
    append_marker, go_on = Node.append_marker, threading.Event()

    def wait(node: Node, topic: str, partition: int, marker: Marker) -> Any:
        assert go_on.wait(SECONDS_MAX)
        return append_marker(node, topic, partition, marker)

    monkeypatch.setattr(Node, "append_marker", wait)
    yield go_on
    go_on.set()


def test_an_end_is_answered_before_its_markers_and_everything_else_is_told_to_wait(
    broker: Broker, client: RawClient, stuck_markers: threading.Event
) -> None:
    producer = RawTransactional(client).init().write([A], b"one")
    assert producer.try_end(committed=True) is NONE
    assert describe(client, producer.id).transaction_state == "PrepareCommit"
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.try_add(B) == [busy]
    assert producer.try_add_offsets() is busy
    assert producer.try_end(committed=True) is busy
    assert producer.try_end(committed=False) is ErrorCode.INVALID_TXN_STATE
    assert producer.try_init() is busy
    assert visible(broker, *A) == []
    stuck_markers.set()
    producer.wait_for("CompleteCommit")
    assert visible(broker, *A) == [b"one"]


def test_a_marker_that_cannot_be_written_is_tried_again(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cordwood.server.transactions.serving.RETRY_SECONDS", 0.01)
    append_marker, failures = Node.append_marker, [DiskFull("full"), DiskFull("full")]

    def fail_first(node: Node, topic: str, partition: int, marker: Marker) -> Any:
        if topic == "orders" and failures:
            raise failures.pop()
        return append_marker(node, topic, partition, marker)

    monkeypatch.setattr(Node, "append_marker", fail_first)
    RawTransactional(client).init().write([A, B], b"one").commit()
    assert not failures
    assert (visible(broker, *A), visible(broker, *B)) == ([b"one"], [b"one"])


# --- restarting


@pytest.mark.parametrize("committed", [True, False])
def test_what_was_decided_before_a_crash_is_carried_out_at_the_next_start(
    tmp_path: Path, committed: bool, stuck_markers: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are those of a server that was killed after the decision and before any marker."""
    before, after = tmp_path / "before", tmp_path / "after"
    with Broker(before, config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        create_topic(client, "ledger")
        producer = RawTransactional(client).init().write([A, B], b"one")
        assert producer.try_end(committed=committed) is NONE
        shutil.copytree(before, after, ignore=shutil.ignore_patterns("lock*"))
        stuck_markers.set()
    with Broker(after, config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        again = RawTransactional(client)
        again.identity = producer.identity
        again.wait_for("CompleteCommit" if committed else "CompleteAbort")
        expected = [b"one"] if committed else []
        assert (visible(broker, *A), visible(broker, *B)) == (expected, expected)
        assert again.try_end(committed=committed) is NONE


def test_an_ongoing_transaction_goes_on_after_a_restart(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(tmp_path, config=SETTINGS))
        client = stack.enter_context(RawClient(broker.bootstrap))
        create_topic(client, "orders")
        producer = RawTransactional(client).init().write([A], b"one")
    with Broker(tmp_path, config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        producer.client = client
        producer.wait_for("Ongoing")
        assert producer.send(A, b"two") is NONE
        producer.commit()
        assert visible(broker, *A) == [b"one", b"two"]


def test_a_transaction_that_no_coordinator_knows_is_aborted_after_a_crash(tmp_path: Path) -> None:
    """As after a restore: the partition has an open transaction, and the coordinator has none."""
    before, after = tmp_path / "before", tmp_path / "after"
    with Broker(before, config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        RawTransactional(client, "other").init()
        known, forgotten = RawTransactional(client, "known").init(), RawTransactional(client, "gone").init()
        known.write([A], b"known")
        forgotten.write([A], b"orphan")
        log = broker._node.directory.partitions.writable(NAME, 0)
        log.append([(b"\0\0\0\x04gone", None)])
        log.commit()
        shutil.copytree(before, after, ignore=shutil.ignore_patterns("lock*"))
    with Broker(after, config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        known.client = client
        known.wait_for("Ongoing")
        opened = open_offsets(client, "orders")
        assert opened[forgotten.identity.producer_id] == -1
        assert opened[known.identity.producer_id] == 0
        known.commit()
        assert visible(broker, *A) == [b"known"]


def test_without_all_stored_states_no_transaction_is_served(tmp_path: Path) -> None:
    """One of them may be a commit that was answered."""
    with Broker(tmp_path, config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        producer = RawTransactional(client).init()
        log = broker._node.directory.partitions.writable(NAME, 0)
        log.append([(b"\0\0\0\x04gone", b"\0\x09of a later version")])
        log.commit()
    with Broker(tmp_path, config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        producer.client = client
        assert producer.try_init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert producer.send(A, b"one") is ErrorCode.NOT_ENOUGH_REPLICAS


def test_what_a_truncation_leaves_open_is_aborted(broker: Broker, client: RawClient) -> None:
    """The marker is gone, and no coordinator would write it again."""
    done, other = RawTransactional(client).init(), RawTransactional(client, "other").init()
    done.write([A], b"one").commit()
    done.write([A], b"two").commit()
    other.write([A], b"three")
    # Offsets: one 0, its marker 1, two 2, its marker 3, three 4.
    operation = encode_operation(TruncatePartition(partition=0, end_offset=3))
    change = IncrementalAlterableConfig(OPERATION, 0, operation)
    request = IncrementalAlterConfigsRequest([IncrementalAlterConfigsResource(2, "orders", [change])])
    (answer,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
    assert (answer.error_code, answer.error_message) == (0, None)
    log = broker._node.directory.partitions.readable(*A)
    until(lambda: not log.open_transactions(), "the orphan to be aborted")
    until(lambda: log.last_stable_offset == 4, "the abort to be visible")
    assert visible(broker, *A) == [b"one"]


# --- looking


def test_the_state_topic_has_the_states_in_kafkas_layout(broker: Broker, client: RawClient) -> None:
    producer = RawTransactional(client).init()
    producer.write([A, B], b"one").commit()
    # The last one is synced a little later: nothing depends on it.
    until(lambda: len(list(broker._node.read_rows(NAME))) == 4, "the last state")
    rows = list(broker._node.read_rows(NAME))
    states = [decode_value(value).state.value for _, value in rows if value is not None]
    assert states == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert {decode_key(key) for key, _ in rows if key is not None} == {"copier"}
    ongoing = decode_value(rows[1][1] or b"")
    assert ongoing.partitions == {A, B}


def test_transactions_are_listed_by_state_producer_age_and_pattern(client: RawClient) -> None:
    RawTransactional(client, "copier-1").init()
    producer = RawTransactional(client, "copier-2").init().write([A], b"one")
    RawTransactional(client, "mover").init().write([B], b"one").commit()
    everything = {"copier-1": "Empty", "copier-2": "Ongoing", "mover": "CompleteCommit"}
    assert listed(client) == everything
    assert listed(client, state_filters=["Ongoing", "Empty"]).keys() == {"copier-1", "copier-2"}
    assert listed(client, producer_id_filters=[producer.identity.producer_id]).keys() == {"copier-2"}
    assert listed(client, duration_filter=3_600_000) == {"copier-1": "Empty"}
    assert listed(client, transactional_id_pattern="copier-.*").keys() == {"copier-1", "copier-2"}
    assert listed(client, transactional_id_pattern="copier") == {}
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(transactional_id_pattern="("))
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(state_filters=["Lost"]))
    assert (answer.unknown_state_filters, answer.transaction_states) == (["Lost"], [])


def test_a_transaction_is_described_with_its_partitions(client: RawClient) -> None:
    producer = RawTransactional(client).init().write([A, ("orders", 1), B], b"one")
    found = describe(client, producer.id)
    assert (found.producer_id, found.producer_epoch) == producer.identity
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert found.transaction_start_time_ms > 0
    assert {topic.topic: topic.partitions for topic in found.topics} == {"orders": [0, 1], "ledger": [0]}
    assert describe(client, "nobody").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_this_broker_coordinates_transactions(client: RawClient) -> None:
    answer = client.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]))
    assert answer.coordinators[0].error_code == 0
    answer = client.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key="x", key_type=1), 1)
    assert answer.error_code == 0


@pytest.mark.parametrize("version", [1, 2])
def test_an_operator_ends_a_transaction_in_a_partition(
    broker: Broker, client: RawClient, version: int
) -> None:
    """As `kafka-transactions abort` does, for one that no coordinator knows."""
    producer = RawTransactional(client).init().write([A], b"one")
    topics = [WritableTxnMarkerTopic("orders", [0, 5]), WritableTxnMarkerTopic(NAME, [0])]
    marker = WritableTxnMarker(*producer.identity, False, topics, 0)
    answer = client.ask(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest([marker]), version)
    (result,) = answer.markers
    assert result.producer_id == producer.identity.producer_id
    codes = [[each.error_code for each in topic.partitions] for topic in result.topics]
    unknown, internal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION
    assert codes == [[NONE, unknown], [internal]]
    assert open_offsets(client, "orders") == {producer.identity.producer_id: -1}
    assert visible(broker, *A) == []
    fenced = WritableTxnMarker(producer.identity.producer_id, -1, False, topics[:1], 0)
    answer = client.ask(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest([fenced]), version)
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH


# --- tenants


def test_transactional_ids_belong_to_their_org() -> None:
    config = {**SETTINGS, "cordwood.listener.SEVEN.org": "7"}
    listen = "ZERO://localhost:0,SEVEN://localhost:0"
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(listen=listen, config=config))
        zero = stack.enter_context(RawClient(broker.addresses["ZERO"]))
        seven = stack.enter_context(RawClient(broker.addresses["SEVEN"]))
        for client in (zero, seven):
            create_topic(client, "orders")
        mine = RawTransactional(zero).init().write([A], b"zero")
        theirs = RawTransactional(seven).init().write([A], b"seven")
        assert mine.identity.producer_id != theirs.identity.producer_id
        assert listed(zero) == listed(seven) == {"copier": "Ongoing"}
        assert [topic.topic for topic in describe(seven, "copier").topics] == ["orders"]
        # The identity of another org is worth nothing, nor is that of its topics.
        thief = RawTransactional(seven)
        thief.identity = mine.identity
        assert thief.try_end(committed=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert thief.send(A, b"stolen") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        marker = WritableTxnMarker(*mine.identity, True, [WritableTxnMarkerTopic("orders", [0])], 0)
        (result,) = seven.ask(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest([marker])).markers
        assert result.topics[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        mine.commit()
        theirs.abort()
        assert visible(broker, "orders") == [b"zero"]
        assert visible(broker, "orders@7") == []
