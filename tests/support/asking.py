"""A connection that makes the requests which tests make again and again, and readers for the answers."""

from __future__ import annotations

import select
from collections.abc import Mapping

from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from cordwood.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from cordwood.protocol.messages.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from cordwood.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from cordwood.protocol.wire import WireBytes
from cordwood.records import Record
from support.serving import RawClient


class Asking(RawClient):
    """A connection that makes the requests that tests ask again and again.

    Topics are given by name; from the versions on that name them by id, the id is looked up once.
    """

    def __init__(self, address: tuple[str, int] | str) -> None:
        super().__init__(address)
        self.ids: dict[str, bytes] = {}

    def __enter__(self) -> Asking:
        return self

    def create(self, topic: str, partitions: int = 1, **settings: str) -> bytes:
        """Create a topic, with settings whose dots are written as underscores; return its id."""
        configs = [
            CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in settings.items()
        ]
        asked = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=configs)
        (result,) = self.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked])).topics
        assert not result.error_code, result.error_message
        self.ids[topic] = result.topic_id
        return self.ids[topic]

    def delete(self, topic: str) -> int:
        """Delete a topic and return the error code."""
        asked = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)])
        (result,) = self.ask(ApiKey.DELETE_TOPICS, asked).responses
        return int(result.error_code)

    def topics(self, *names: str, create: bool = False) -> list[MetadataResponseTopic]:
        """Return what Metadata says of these topics."""
        asked = [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)
        return list(self.ask(ApiKey.METADATA, request).topics)

    def id_of(self, topic: str) -> bytes:
        """Return the id of a topic, that of none if there is none."""
        if topic not in self.ids:
            self.ids[topic] = self.topics(topic)[0].topic_id
        return self.ids[topic]

    def produce_request(
        self,
        topic: str,
        records: Mapping[int, WireBytes | None],
        *,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> ProduceRequest:
        """Return a request that appends a batch to each of these partitions."""
        partitions = [
            ProducePartition(index, None if data is None else memoryview(data))
            for index, data in records.items()
        ]
        named = [ProduceTopic(topic, self.id_of(topic), partitions)]
        return ProduceRequest(transactional_id, acks, 30_000, named)

    def produce(
        self,
        topic: str,
        data: WireBytes | None,
        partition: int = 0,
        *,
        acks: int = -1,
        version: int | None = None,
    ) -> ProducePartitionResponse:
        """Append a batch and return what was answered."""
        request = self.produce_request(topic, {partition: data}, acks=acks)
        answer: ProduceResponse = self.ask(ApiKey.PRODUCE, request, version)
        return answer.topics[0].partitions[0]

    def fetch_request(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 24,
        partition_max_bytes: int = 1 << 24,
        isolation_level: int = 0,
    ) -> FetchRequest:
        """Return a request that reads from each of these partitions."""
        partitions = [
            FetchPartition(index, fetch_offset=offset, max_bytes=partition_max_bytes)
            for index, offset in offsets.items()
        ]
        named = [FetchTopic(topic, self.id_of(topic), partitions)]
        return FetchRequest(-1, max_wait_ms, min_bytes, max_bytes, isolation_level, 0, -1, named, [], "")

    def fetch(
        self, topic: str, offset: int = 0, partition: int = 0, *, version: int | None = None, **limits: int
    ) -> FetchPartitionResponse:
        """Read from one partition and return what was answered."""
        request = self.fetch_request(topic, {partition: offset}, **limits)
        answer: FetchResponse = self.ask(ApiKey.FETCH, request, version)
        return answer.topics[0].partitions[0]

    def offset_at(
        self, topic: str, timestamp: int, partition: int = 0, *, version: int | None = None
    ) -> ListOffsetsPartitionResponse:
        """Return what ListOffsets answers for a time, or for one of its constants."""
        asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
        answer: ListOffsetsResponse = self.ask(ApiKey.LIST_OFFSETS, request, version)
        return answer.topics[0].partitions[0]

    def is_silent(self) -> bool:
        """Return whether nothing has come that was not received yet."""
        return not select.select([self.socket], [], [], 0)[0]


def records_in(answer: FetchPartitionResponse) -> list[Record]:
    """Return the records of all batches in an answer, those before the offset asked for included."""
    data = b"".join(answer.records)
    found = batch.scan(data)
    assert found.stopped_at == len(data)
    return [record for header in found.headers() for record in batch.decode_records(data, header)]


def values_in(answer: FetchPartitionResponse) -> list[bytes | None]:
    """Return the values of all records in an answer."""
    return [record.value for record in records_in(answer)]
