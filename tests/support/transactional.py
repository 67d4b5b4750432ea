"""A transactional producer that says exactly what it is told, over one connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cordwood import Broker
from cordwood.broker.transactions import ProducerIdentity
from cordwood.formats.batch import TRANSACTIONAL, BatchOptions, encode_records
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from cordwood.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribedTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
)
from cordwood.protocol.wire import NULL_ID
from cordwood.records import TopicPartition
from support.patience import until
from support.serving import RawClient
from support.transactions import committed_values

RETRY = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
NO_IDENTITY = ProducerIdentity(-1, -1)


class RawTransactional:
    """A producer with a transactional id. Every call returns the error code of its answer."""

    def __init__(self, client: RawClient, transactional_id: str = "copier", timeout_ms: int = 60_000) -> None:
        self.client = client
        self.id = transactional_id
        self.timeout_ms = timeout_ms
        self.identity = NO_IDENTITY
        self._sequences: dict[TopicPartition, int] = {}

    def try_init(self, expected: ProducerIdentity = NO_IDENTITY, version: int | None = None) -> ErrorCode:
        """Ask once for an identity."""
        request = InitProducerIdRequest(
            transactional_id=self.id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        answer = self.client.ask(ApiKey.INIT_PRODUCER_ID, request, version)
        if not answer.error_code:
            self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            self._sequences.clear()
        return ErrorCode(answer.error_code)

    def init(self) -> RawTransactional:
        """Ask for an identity until there is one."""
        until(lambda: self._settled(self.try_init()), "an identity")
        return self

    @staticmethod
    def _settled(code: ErrorCode) -> bool:
        assert code in (ErrorCode.NONE, *RETRY), code
        return code is ErrorCode.NONE

    def try_add(self, *places: TopicPartition, version: int | None = None) -> list[ErrorCode]:
        """Ask once to add partitions."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(topic, [number]) for topic, number in places],
        )
        answer = self.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, request, version)
        return [
            ErrorCode(result.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]

    def add(self, *places: TopicPartition) -> RawTransactional:
        """Add partitions, once the transaction before is complete."""
        until(lambda: self._settled(self.try_add(*places)[0]), "partitions to be added")
        return self

    def try_add_offsets(self, group: str = "group", version: int | None = None) -> ErrorCode:
        """Ask once to add the offsets of a group."""
        request = AddOffsetsToTxnRequest(self.id, *self.identity, group)
        return ErrorCode(self.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, request, version).error_code)

    def send(self, place: TopicPartition, *values: bytes, version: int = 9) -> ErrorCode:
        """Send one batch."""
        sequence = self._sequences.get(place, 0)
        options = BatchOptions(
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        data = memoryview(encode_records([(None, value) for value in values], 1_000, options))
        topic = ProduceTopic(place[0], NULL_ID, [ProducePartition(place[1], data)])
        request = ProduceRequest(self.id, -1, 10_000, [topic])
        (answer,) = self.client.ask(ApiKey.PRODUCE, request, version).topics[0].partitions
        if not answer.error_code:
            self._sequences[place] = sequence + len(values)
        return ErrorCode(answer.error_code)

    def try_end(self, *, committed: bool, version: int | None = None) -> ErrorCode:
        """Ask once to commit or abort."""
        request = EndTxnRequest(self.id, *self.identity, committed)
        return ErrorCode(self.client.ask(ApiKey.END_TXN, request, version).error_code)

    def write(self, places: Iterable[TopicPartition], value: bytes) -> RawTransactional:
        """Add partitions and send one record to each."""
        places = list(places)
        self.add(*places)
        for place in places:
            assert self.send(place, value) is ErrorCode.NONE
        return self

    def commit(self) -> None:
        """Commit, and wait until the transaction is complete."""
        assert self.try_end(committed=True) is ErrorCode.NONE
        self.wait_for("CompleteCommit")

    def abort(self) -> None:
        """Abort, and wait until the transaction is complete."""
        assert self.try_end(committed=False) is ErrorCode.NONE
        self.wait_for("CompleteAbort")

    def wait_for(self, state: str) -> DescribedTransaction:
        """Wait until the transactional id has this state, and return it."""
        until(lambda: describe(self.client, self.id).transaction_state == state, f"{self.id} to be {state}")
        return describe(self.client, self.id)


def commit_in(
    producer: RawTransactional,
    group: str,
    offset: int,
    *,
    version: int = 4,
    topic: str = "orders",
    note: str = "",
    **member: Any,
) -> ErrorCode:
    """Commit an offset in the transaction of *producer*; return what is answered."""
    part = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=note
    )
    request = TxnOffsetCommitRequest(
        transactional_id=producer.id,
        group_id=group,
        producer_id=producer.identity.producer_id,
        producer_epoch=producer.identity.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        **member,
    )
    answer = producer.client.ask(ApiKey.TXN_OFFSET_COMMIT, request, version)
    ((result,),) = [each.partitions for each in answer.topics]
    return ErrorCode(result.error_code)


def describe(client: RawClient, transactional_id: str) -> DescribedTransaction:
    """Return the state of one transactional id."""
    answer = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest([transactional_id]))
    (found,) = answer.transaction_states
    assert isinstance(found, DescribedTransaction)
    return found


def listed(client: RawClient, **filters: Any) -> dict[str, str]:
    """Return the state of each transactional id that is listed with these filters."""
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(**filters))
    assert answer.error_code == 0
    return {each.transactional_id: each.transaction_state for each in answer.transaction_states}


def create_topic(client: RawClient, name: str, partitions: int = 1) -> None:
    """Create a topic."""
    topic = CreatableTopic(name, partitions, 1)
    (answer,) = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest([topic], 10_000)).topics
    assert answer.error_code == 0


def visible(broker: Broker, topic: str, partition: int = 0) -> list[bytes]:
    """Return the values that a reader of committed records sees in a partition of a running broker."""
    return committed_values(broker._node.directory.partitions.readable(topic, partition))
