"""Clients that go on while the server dies and comes back, and that record what they were told.

Three producers send with acks=all and one reader reads along. Each of them notes in a `Recorder` what it
sent, what was acknowledged and what it was given; `support.history.checker` finds what contradicts the
promises.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread

import confluent_kafka

from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.protocol.apis import ApiKey, decode_response, encode_request
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.protocol.wire import NULL_ID
from support.history.operations import READ_UNCOMMITTED, Bounds, Read, Scanned
from support.history.recorder import ClientRecord, Operation, Recorder
from support.patience import SECONDS_MAX
from support.serving import RawClient

#: How soon a client whose server is gone tries again.
RETRY_SECONDS = 0.01


class Client(Thread):
    """A thread that connects again and again until it is stopped; what it raises is a problem."""

    def __init__(self, name: str, recorder: Recorder, topic: str, partitions: int) -> None:
        super().__init__(name=name, daemon=True)
        self.record = recorder.client(name)
        self.topic = topic
        self.partitions = partitions
        self.stopping = Event()

    def run(self) -> None:
        """Work until stopped."""
        try:
            self.work()
        except Exception as error:
            self.record.problem(repr(error))

    def work(self) -> None:
        """Do what the client does."""
        raise NotImplementedError

    def acknowledged(self) -> int:
        """Return how many records were acknowledged to it."""
        return self.record.accepted("send")

    def stop(self) -> None:
        """End the client once everything it began is done."""
        self.stopping.set()
        self.join(SECONDS_MAX)
        if self.is_alive():
            self.record.problem("it has not come to an end")


class LibraryProducer(Client):
    """A producer of confluent-kafka, idempotent or not. Many small requests are under way at any time."""

    OUTSTANDING_MAX = 400

    def __init__(
        self, name: str, recorder: Recorder, topic: str, partitions: int, bootstrap: str, *, idempotent: bool
    ) -> None:
        super().__init__(name, recorder, topic, partitions)
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": idempotent,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "message.timeout.ms": int(SECONDS_MAX * 2000),
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                # Every kill is an error to it, which is what this is about.
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )

    def work(self) -> None:
        """Send until stopped, then wait for what is outstanding."""
        number = 0
        while not self.stopping.is_set():
            while len(self._producer) < self.OUTSTANDING_MAX:
                index = number % self.partitions
                value = f"{self.name}:{number}"
                told = partial(self._told, self.record.send(self.topic, index, value))
                self._producer.produce(self.topic, value.encode(), partition=index, on_delivery=told)
                number += 1
            self._producer.poll(0.01)
        left = self._producer.flush(SECONDS_MAX)
        if left:
            self.record.problem(f"{left} records were never acknowledged")

    def _told(
        self, sending: Operation, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        offset = message.offset()
        if error is not None:
            self.record.problem(f"{message.value()!r}: {error}")
        elif offset is None or offset < 0:
            self.record.problem(f"{message.value()!r} was acknowledged without an offset")
        else:
            sending.ok(offset)

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self.record.problem(str(error))


@dataclass
class Lane:
    """One producer id on one partition: its batches go out in order, no more than Kafka allows at once."""

    UNDER_WAY_MAX = 5

    record: ClientRecord
    producer_id: int
    partition: int
    next_sequence: int = 0
    unanswered: deque[Sent] = field(default_factory=deque)


@dataclass
class Sent:
    """A request, and the sends in it."""

    lane: Lane
    sends: list[Operation]
    frame: bytes
    #: How many bytes have to leave on this connection before all of the request has left.
    ends_at: int = 0


class PipeliningProducer(Client):
    """A producer of our own that has hundreds of requests under way on one connection.

    It is idempotent: many producer ids, each with its own epoch and sequences, and each a client of its own
    in the history. What was not answered when the connection broke is sent again, in the same bytes and
    order.
    """

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        topic: str,
        partitions: int,
        address: tuple[str, int],
        *,
        seed: int,
        ids: int,
    ) -> None:
        super().__init__(name, recorder, topic, partitions)
        self._address = address
        self._rng = random.Random(seed)
        with RawClient(address) as client:
            asked = InitProducerIdRequest(transactional_id=None)
            given = [client.ask(ApiKey.INIT_PRODUCER_ID, asked) for _ in range(ids)]
        assert not any(one.error_code for one in given)
        self._records = [recorder.client(f"{name}-{number}") for number in range(ids)]
        self._lanes = [
            Lane(record, one.producer_id, index)
            for record, one in zip(self._records, given, strict=True)
            for index in range(partitions)
        ]
        self._number = 0
        #: For each connection that broke, how many requests had left on it and were not answered.
        self.unanswered_at_breaks: list[int] = []

    def acknowledged(self) -> int:
        """Return how many records were acknowledged to it."""
        return sum(record.accepted("send") for record in self._records)

    def work(self) -> None:
        """Send until stopped, then wait for what is not answered."""
        while not self.stopping.is_set() or any(lane.unanswered for lane in self._lanes):
            try:
                with socket.create_connection(self._address, timeout=SECONDS_MAX) as connected:
                    connected.setblocking(False)
                    self._exchange(connected)
            except OSError:
                self.stopping.wait(RETRY_SECONDS)

    def _exchange(self, connected: socket.socket) -> None:
        """Send and receive on one connection until it breaks or everything is done."""
        out, received = bytearray(), bytearray()
        pending: deque[Sent] = deque()
        queued = left = 0
        for lane in self._lanes:
            for sent in lane.unanswered:
                queued = self._queue(sent, out, pending, queued)
        try:
            while pending or not self.stopping.is_set():
                if not self.stopping.is_set():
                    for sent in self._fresh():
                        queued = self._queue(sent, out, pending, queued)
                readable, writable, _ = select.select([connected], [connected] if out else [], [], 1.0)
                if writable:
                    count = connected.send(out)
                    left += count
                    del out[:count]
                if readable:
                    data = connected.recv(1 << 18)
                    if not data:
                        raise ConnectionResetError
                    received += data
                    self._take_answers(received, pending)
        except ConnectionError:
            self.unanswered_at_breaks.append(sum(sent.ends_at <= left for sent in pending))

    @staticmethod
    def _queue(sent: Sent, out: bytearray, pending: deque[Sent], queued: int) -> int:
        sent.ends_at = queued + len(sent.frame)
        out += sent.frame
        pending.append(sent)
        return sent.ends_at

    def _fresh(self) -> Iterator[Sent]:
        """Yield new requests, as many as their lanes allow."""
        for lane in self._lanes:
            while len(lane.unanswered) < Lane.UNDER_WAY_MAX:
                count = self._rng.randint(1, 3)
                values = [f"{self.name}:{self._number + i}" for i in range(count)]
                self._number += count
                sends = [lane.record.send(self.topic, lane.partition, value) for value in values]
                options = BatchOptions(
                    producer_id=lane.producer_id, producer_epoch=0, base_sequence=lane.next_sequence
                )
                rows = [(None, value.encode()) for value in values]
                records = batch.encode_records(rows, time.time_ns() // 1_000_000, options)
                lane.next_sequence += count
                topic = ProduceTopic(
                    self.topic, NULL_ID, [ProducePartition(lane.partition, memoryview(records))]
                )
                frame = encode_request(
                    ApiKey.PRODUCE, 9, self._number, self.name, ProduceRequest(None, -1, 10_000, [topic])
                )
                sent = Sent(lane, sends, b"".join(frame))
                lane.unanswered.append(sent)
                yield sent

    def _take_answers(self, received: bytearray, pending: deque[Sent]) -> None:
        start = 0
        while len(received) - start >= 4:
            (size,) = struct.unpack_from(">i", received, start)
            if len(received) - start - 4 < size:
                break
            frame = bytes(received[start + 4 : start + 4 + size])
            self._answered(pending.popleft(), frame)
            start += 4 + size
        del received[:start]

    def _answered(self, sent: Sent, frame: bytes) -> None:
        (topic,) = decode_response(ApiKey.PRODUCE, 9, frame).body.topics
        (answer,) = topic.partitions
        assert sent.lane.unanswered.popleft() is sent
        if answer.error_code:
            self.record.problem(f"a produce request got {answer.error_code} {answer.error_message}")
            return
        assert answer.index == sent.lane.partition
        for offset, send in enumerate(sent.sends, answer.base_offset):
            send.ok(offset)


class Reader(Client):
    """Reads all partitions along, over every restart, and records what it was given."""

    def __init__(
        self, name: str, recorder: Recorder, topic: str, partitions: int, address: tuple[str, int]
    ) -> None:
        super().__init__(name, recorder, topic, partitions)
        self._address = address

    def work(self) -> None:
        """Read until stopped."""
        offsets = dict.fromkeys(range(self.partitions), 0)
        self.record.assign((self.topic, index, 0) for index in offsets)
        while not self.stopping.is_set():
            # The server is gone, or went while it answered: what came before was read and counts.
            with suppress(OSError, AssertionError, ConnectionError), RawClient(self._address) as client:
                while not self.stopping.is_set():
                    polling = self.record.poll()
                    watching = [self.record.watermark(self.topic, index) for index in offsets]
                    response = fetch(client, self.topic, offsets)
                    if response is None:
                        break
                    polling.ok(tuple(records_of(response, offsets)))
                    self._note_ends(response, watching)
            self.stopping.wait(RETRY_SECONDS)

    def _note_ends(self, response: FetchResponse, watching: list[Operation]) -> None:
        for partition in response.topics[0].partitions:
            if partition.error_code:
                self.record.problem(f"error {partition.error_code} of partition {partition.index}")
            else:
                shown = Bounds(partition.log_start_offset, partition.high_watermark)
                watching[partition.index].ok(shown)


def fetch(client: RawClient, topic: str, offsets: Mapping[int, int]) -> FetchResponse | None:
    """Return what a fetch from *offsets* gives, waiting a moment for records; None if the server hung up."""
    wanted = [FetchPartition(index, fetch_offset=at, max_bytes=1 << 20) for index, at in offsets.items()]
    request = FetchRequest(-1, 100, 1, 8 << 20, 0, 0, -1, [FetchTopic(topic, NULL_ID, wanted)], [], "")
    client.send(ApiKey.FETCH, 11, request)
    frame = client.receive_frame()
    if not frame:
        return None
    response: FetchResponse = decode_response(ApiKey.FETCH, 11, frame).body
    return response


def records_of(response: FetchResponse, offsets: dict[int, int]) -> Iterator[Read]:
    """Yield the records of a response from *offsets* on, and move these past them."""
    (topic,) = response.topics
    for partition in topic.partitions:
        data = b"".join(bytes(piece) for piece in partition.records)
        for header in batch.scan(data).headers():
            batch.check_crc(data, header)
            for record in batch.decode_records(data, header):
                # A fetch inside a batch gives all of it.
                if record.offset >= offsets[partition.index]:
                    value = (record.value or b"").decode()
                    yield Read(topic.name, partition.index, record.offset, value, record.timestamp)
            offsets[partition.index] = max(offsets[partition.index], header.next_offset)


def read_everything(address: tuple[str, int], topic: str, partitions: int, record: ClientRecord) -> int:
    """Scan a topic with a client of its own, and note what it has; return how many records that is."""
    offsets = dict.fromkeys(range(partitions), 0)
    scans = [record.scan(topic, index, READ_UNCOMMITTED, final=True) for index in range(partitions)]
    stored: list[list[Read]] = [[] for _ in range(partitions)]
    with RawClient(address) as client:
        while True:
            response = fetch(client, topic, offsets)
            assert response is not None, "the server hung up"
            for read in records_of(response, offsets):
                stored[read.partition].append(read)
            ends = {partition.index: partition.high_watermark for partition in response.topics[0].partitions}
            if offsets == ends:
                break
    for index, scan in enumerate(scans):
        scan.ok(Scanned(0, ends[index], tuple(stored[index])))
    return sum(map(len, stored))
