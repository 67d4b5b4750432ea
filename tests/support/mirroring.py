"""Mirrors for tests, into a directory on any disk, and a source that says what it is told."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cordwood.config.loading import load_broker_config
from cordwood.disk import Files, MemoryFiles
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.mirror import MirrorOptions, MirrorReport, mirror_topics
from cordwood.mirror.comparing import local_batches
from cordwood.protocol import ApiKey, ErrorCode, api_versions_response, decode_request, encode_response
from cordwood.protocol.messages import configs, fetch, metadata, offsets
from cordwood.storage.directory import DataDirectory, Opening

DATA = "/data"
#: Sources of tests answer at once, so that nothing is waited for in vain.
SECONDS = 20.0


def opened(files: Files, path: str = DATA) -> DataDirectory:
    """Open the directory that a mirror writes."""
    return DataDirectory(Opening(files, path, load_broker_config()[0]))


def mirrored(files: Files, bootstrap: str, path: str = DATA, **options: Any) -> MirrorReport:
    """Run a mirror into a directory, which is closed cleanly; see `MirrorOptions`."""
    with contextlib.closing(opened(files, path)) as directory:
        return mirrored_into(directory, bootstrap, **options)


def mirrored_into(directory: DataDirectory, bootstrap: str, **options: Any) -> MirrorReport:
    """Run a mirror into an open directory."""
    chosen = MirrorOptions(**{"seconds": SECONDS, **options})
    config = load_broker_config()[0]
    return mirror_topics(directory, config, {"bootstrap.servers": bootstrap}, chosen)


def failed(report: MirrorReport) -> str:
    """Return the one failure of a run."""
    (failure,) = report.failures
    return failure.sentence()


def stored(files: Files, topic: str, partition: int = 0, path: str = DATA) -> list[bytes]:
    """Return the batches of a partition as they are on disk, with no leader epoch."""
    with contextlib.closing(opened(files, path)) as directory:
        log = directory.partitions.find_own(topic, partition)
        if log is None:
            return []
        found = local_batches(log, log.log_start_offset, log.high_watermark)
        return [without_epoch(each.data) for each in found]


def without_epoch(data: bytes) -> bytes:
    """Return a batch with leader epoch 0: the only bytes that a mirror changes."""
    return data[:12] + bytes(4) + data[16:]


def batch_at(
    offset: int, values: Iterable[bytes], *, epoch: int = 0, producer: tuple[int, int, int] | None = None
) -> bytes:
    """Return a batch of records without keys whose first one has *offset*."""
    options = BatchOptions(base_offset=offset, leader_epoch=epoch)
    if producer is not None:
        number, its_epoch, sequence = producer
        options = options._replace(producer_id=number, producer_epoch=its_epoch, base_sequence=sequence)
    return bytes(batch.encode_records([(None, value) for value in values], 1_000, options))


@dataclass
class ScriptedPartition:
    """A partition of a scripted source. ``reply`` answers fetches in place of its batches."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    high_watermark: int | None = None
    leader: int = 0
    epoch: int = 0
    error_code: int = 0
    epoch_end: int = -1
    reply: Callable[[int, int], bytes] | None = None

    @property
    def end(self) -> int:
        """The high watermark: that of the script, or where the batches end."""
        if self.high_watermark is not None:
            return self.high_watermark
        return batch.read_header(self.batches[-1]).next_offset if self.batches else self.start

    def fetched(self, offset: int, bytes_max: int) -> bytes:
        """Return whole batches from *offset* on, and one more cut off if it does not fit."""
        if self.reply is not None:
            return self.reply(offset, bytes_max)
        found = b"".join(each for each in self.batches if batch.read_header(each).next_offset > offset)
        return found[:bytes_max]


class ScriptedKafka:
    """Brokers that answer as they are told. ``topics`` may be changed at any time."""

    def __init__(self, nodes: int = 1) -> None:
        self.topics: dict[str, dict[int, ScriptedPartition]] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self.settings: dict[str, Mapping[str, str]] = {}
        #: Called before each answer with node and API.
        self.before: Callable[[int, ApiKey], None] = lambda node, key: None
        self.throttled = 0
        #: What is sent in place of an answer to a fetch.
        self.raw: bytes | None = None
        self.fetches: list[list[tuple[str, int, int]]] = []
        self._sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(nodes)]
        self.addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in self._sockets]
        self.bootstrap = self.addresses[0]
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        for node, listening in enumerate(self._sockets):
            self._start(self._accept, node, listening)

    def add(self, topic: str, *partitions: ScriptedPartition) -> None:
        """Add a topic, with a new id, or replace one."""
        self.topics[topic] = dict(enumerate(partitions))
        self.ids[topic] = uuid.uuid4()

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, node: int, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                self._open.append(connection)
                self._start(self._serve, node, connection)

    def _serve(self, node: int, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as incoming:
            while size := incoming.read(4):
                request = decode_request(incoming.read(int.from_bytes(size, "big")))
                self.before(node, request.api_key)
                if request.api_key is ApiKey.FETCH and self.raw is not None:
                    connection.sendall(self.raw)
                    continue
                body = self._answer(request.api_key, request.body)
                parts = encode_response(request.api_key, request.api_version, request.correlation_id, body)
                connection.sendall(b"".join(map(bytes, parts)))

    def _answer(self, key: ApiKey, body: Any) -> Any:
        match key:
            case ApiKey.API_VERSIONS:
                served = (
                    *(ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.DESCRIBE_CONFIGS),
                    *(ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.API_VERSIONS),
                )
                return api_versions_response(served)
            case ApiKey.METADATA:
                return self._metadata()
            case ApiKey.LIST_OFFSETS:
                return self._offsets(body)
            case ApiKey.DESCRIBE_CONFIGS:
                return self._configs(body)
            case ApiKey.OFFSET_FOR_LEADER_EPOCH:
                return self._epoch_ends(body)
            case _:
                return self._fetched(body)

    def _metadata(self) -> metadata.MetadataResponse:
        brokers = [
            metadata.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=int(each.rpartition(":")[2]))
            for node, each in enumerate(self.addresses)
        ]
        topics = [
            metadata.MetadataResponseTopic(
                name=name,
                topic_id=self.ids[name].bytes,
                partitions=[
                    metadata.MetadataResponsePartition(
                        partition_index=number, leader_id=each.leader, leader_epoch=each.epoch
                    )
                    for number, each in partitions.items()
                ],
            )
            for name, partitions in list(self.topics.items())
        ]
        return metadata.MetadataResponse(brokers=brokers, cluster_id="scripted", topics=topics)

    def _offsets(self, body: offsets.ListOffsetsRequest) -> offsets.ListOffsetsResponse:
        found = []
        for topic in body.topics:
            partitions = []
            for each in topic.partitions:
                one = self.topics[topic.name][each.partition_index]
                partitions.append(
                    offsets.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        offset=one.end if each.timestamp == -1 else one.start,
                    )
                )
            found.append(offsets.ListOffsetsTopicResponse(topic.name, partitions))
        return offsets.ListOffsetsResponse(topics=found)

    def _configs(self, body: configs.DescribeConfigsRequest) -> configs.DescribeConfigsResponse:
        results = []
        for resource in body.resources:
            settings = self.settings.get(resource.resource_name, {})
            listed = [
                configs.DescribeConfigsResourceResult(name=name, value=value, config_source=1)
                for name, value in settings.items()
            ]
            results.append(configs.DescribeConfigsResult(resource_type=2, configs=listed))
        return configs.DescribeConfigsResponse(results=results)

    def _epoch_ends(self, body: offsets.OffsetForLeaderEpochRequest) -> offsets.OffsetForLeaderEpochResponse:
        found = []
        for topic in body.topics:
            ends = [
                offsets.EpochEndOffset(
                    partition=each.partition,
                    leader_epoch=each.leader_epoch,
                    end_offset=self.topics[topic.topic][each.partition].epoch_end,
                )
                for each in topic.partitions
            ]
            found.append(offsets.OffsetForLeaderTopicResult(topic.topic, ends))
        return offsets.OffsetForLeaderEpochResponse(topics=found)

    def _fetched(self, body: fetch.FetchRequest) -> fetch.FetchResponse:
        names = {each.bytes: name for name, each in reversed(self.ids.items())}
        found, asked = [], []
        for topic in body.topics:
            name = names.get(bytes(topic.topic_id))
            partitions = []
            for each in topic.partitions:
                if name is None:
                    code = ErrorCode.UNKNOWN_TOPIC_ID
                    partitions.append(fetch.FetchPartitionResponse(index=each.index, error_code=code))
                    continue
                one = self.topics[name][each.index]
                asked.append((name, each.index, each.fetch_offset))
                code = ErrorCode(one.error_code)
                if not code and each.current_leader_epoch not in (-1, one.epoch):
                    is_old = each.current_leader_epoch < one.epoch
                    code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
                if not code and one.reply is None and not one.start <= each.fetch_offset <= one.end:
                    code = ErrorCode.OFFSET_OUT_OF_RANGE
                data = b"" if code else one.fetched(each.fetch_offset, each.max_bytes)
                partitions.append(
                    fetch.FetchPartitionResponse(
                        index=each.index,
                        error_code=code,
                        high_watermark=one.end,
                        last_stable_offset=one.end,
                        log_start_offset=one.start,
                        records=[data],
                    )
                )
            found.append(fetch.FetchTopicResponse(topic_id=topic.topic_id, partitions=partitions))
        self.fetches.append(asked)
        return fetch.FetchResponse(topics=found, throttle_time_ms=self.throttled)

    def close(self) -> None:
        """Hang up, and wait for all threads."""
        for each in (*self._sockets, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def scripted(
    *partitions: ScriptedPartition, topic: str = "orders", nodes: int = 1
) -> Iterator[ScriptedKafka]:
    """Run a scripted source with one topic."""
    source = ScriptedKafka(nodes)
    source.add(topic, *partitions)
    try:
        yield source
    finally:
        source.close()


def memory() -> MemoryFiles:
    """Return an empty disk."""
    return MemoryFiles()
