"""Clients that keep at it while the server dies and comes back, and a history of what they were told.

Three producers send with acks=all and one reader reads along. Each of them tells a `History` what it sent,
what was acknowledged and what it was shown; `History.problems` says what of that contradicts the promises.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Lock, Thread
from typing import NamedTuple

import confluent_kafka

from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.protocol.apis import ApiKey, decode_response, encode_request
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.protocol.wire import NULL_ID
from support.patience import SECONDS_MAX
from support.serving import RawClient

#: How soon a client whose server is gone tries again.
RETRY_SECONDS = 0.01
_PROBLEMS_SHOWN = 10


class Place(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


class Content(NamedTuple):
    """What a reader is shown of a record."""

    timestamp: int
    value: bytes


class History:
    """What was sent, acknowledged and shown. Every method may be called from any thread.

    A value is sent once, and says by whom: ``name:number:...``. Those of the producers in *exactly_once*
    may be stored only once, however often they were tried.
    """

    def __init__(self, exactly_once: frozenset[str]) -> None:
        self._exactly_once = exactly_once
        self._lock = Lock()
        self._sent: set[bytes] = set()
        self._acknowledged: dict[bytes, Place] = {}
        self._counts: Counter[str] = Counter()
        self._shown: dict[Place, Content] = {}
        self._high_watermarks: dict[int, int] = {}
        self._problems: list[str] = []

    def sending(self, value: bytes) -> None:
        """Note that *value* is about to be sent for the first time."""
        with self._lock:
            self._sent.add(value)

    def acknowledge(self, value: bytes, place: Place, after: int = -1) -> None:
        """Note that *value* was acknowledged at *place*.

        *after* is the largest offset of its partition that the producer had been told before it first sent
        it: a lower one would turn the order of two sends around, one of which had ended before the other.
        """
        with self._lock:
            if value in self._acknowledged:
                self._problems.append(f"{value!r} was acknowledged twice")
            self._acknowledged[value] = place
            self._counts[_producer_of(value)] += 1
            if place.offset <= after:
                self._problems.append(f"{value!r}, sent after offset {after} was acknowledged, is at {place}")

    def show(self, place: Place, content: Content) -> None:
        """Note that a reader saw *content*."""
        with self._lock:
            before = self._shown.setdefault(place, content)
            if before != content:
                self._problems.append(f"{place} showed {before} and then {content}")

    def show_high_watermark(self, partition: int, offset: int) -> None:
        """Note a high watermark, each later than the one noted before."""
        with self._lock:
            before = self._high_watermarks.get(partition, 0)
            if offset < before:
                what = f"the high watermark of partition {partition}"
                self._problems.append(f"{what} went back from {before} to {offset}")
            self._high_watermarks[partition] = offset

    def fail(self, problem: str) -> None:
        """Note what must not happen to a client."""
        with self._lock:
            self._problems.append(problem)

    def acknowledged(self, name: str | None = None) -> int:
        """Return how many records were acknowledged, to one producer or to all."""
        return len(self._acknowledged) if name is None else self._counts[name]

    def shown(self) -> int:
        """Return how many records some reader saw."""
        return len(self._shown)

    def problems(self, stored: Mapping[Place, Content], ends: Mapping[int, int]) -> list[str]:
        """Return everything that is wrong, given all that is *stored* and where each partition ends."""
        found = [
            *self._problems,
            *self._lost(stored),
            *self._changed(stored),
            *self._repeated(stored),
            *self._gaps(stored, ends),
        ]
        return found[:_PROBLEMS_SHOWN]

    def _lost(self, stored: Mapping[Place, Content]) -> Iterator[str]:
        for value, place in self._acknowledged.items():
            content = stored.get(place)
            if content is None or content.value != value:
                yield f"{value!r}, acknowledged at {place}, is lost; there is {content}"

    def _changed(self, stored: Mapping[Place, Content]) -> Iterator[str]:
        for place, content in self._shown.items():
            if stored.get(place) != content:
                yield f"{place} showed {content}; now there is {stored.get(place)}"

    def _repeated(self, stored: Mapping[Place, Content]) -> Iterator[str]:
        for value, count in Counter(content.value for content in stored.values()).items():
            if value not in self._sent:
                yield f"{value!r} is stored and was never sent"
            if count > 1 and _producer_of(value) in self._exactly_once:
                yield f"{value!r} is stored {count} times"

    def _gaps(self, stored: Mapping[Place, Content], ends: Mapping[int, int]) -> Iterator[str]:
        for index, end in ends.items():
            if end < self._high_watermarks.get(index, 0):
                yield f"partition {index} ends at {end}, below a high watermark that was shown"
            missing = [offset for offset in range(end) if Place(index, offset) not in stored]
            if missing:
                yield f"partition {index} has no records at {missing[:5]} and {len(missing)} offsets in all"


def _producer_of(value: bytes) -> str:
    return value.partition(b":")[0].decode()


class Client(Thread):
    """A thread that connects again and again until it is stopped; what it raises is a problem."""

    def __init__(self, name: str, history: History, topic: str, partitions: int) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.topic = topic
        self.partitions = partitions
        self.stopping = Event()

    def run(self) -> None:
        """Work until stopped."""
        try:
            self.work()
        except Exception as error:
            self.history.fail(f"{self.name}: {error!r}")

    def work(self) -> None:
        """Do what the client does."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the client once everything it began is done."""
        self.stopping.set()
        self.join(SECONDS_MAX)
        if self.is_alive():
            self.history.fail(f"{self.name} has not come to an end")


class LibraryProducer(Client):
    """A producer of confluent-kafka, idempotent or not. Many small requests are under way at any time."""

    OUTSTANDING_MAX = 400

    def __init__(
        self, name: str, history: History, topic: str, partitions: int, bootstrap: str, *, idempotent: bool
    ) -> None:
        super().__init__(name, history, topic, partitions)
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
                value = f"{self.name}:{number}".encode()
                self.history.sending(value)
                told = partial(self._told, value, index)
                self._producer.produce(self.topic, value, partition=index, on_delivery=told)
                number += 1
            self._producer.poll(0.01)
        left = self._producer.flush(SECONDS_MAX)
        if left:
            self.history.fail(f"{self.name}: {left} records were never acknowledged")

    def _told(
        self,
        value: bytes,
        index: int,
        error: confluent_kafka.KafkaError | None,
        message: confluent_kafka.Message,
    ) -> None:
        offset = message.offset()
        if error is not None:
            self.history.fail(f"{self.name}: {value!r}: {error}")
        elif offset is None or offset < 0:
            self.history.fail(f"{self.name}: {value!r} was acknowledged without an offset")
        else:
            self.history.acknowledge(value, Place(index, offset))

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self.history.fail(f"{self.name}: {error}")


@dataclass
class Lane:
    """One producer id on one partition: its batches go out in order, no more than Kafka allows at once."""

    UNDER_WAY_MAX = 5

    producer_id: int
    partition: int
    next_sequence: int = 0
    unanswered: deque[Sent] = field(default_factory=deque)


@dataclass
class Sent:
    """A request, the values in it, and what its producer had been told before it first went out."""

    lane: Lane
    values: list[bytes]
    frame: bytes
    after: int
    #: How many bytes have to leave on this connection before all of the request has left.
    ends_at: int = 0


class PipeliningProducer(Client):
    """A producer of our own that has hundreds of requests under way on one connection.

    It is idempotent: many producer ids, each with its own epoch and sequences. What was not answered when
    the connection broke is sent again, in the same bytes and the same order.
    """

    def __init__(
        self,
        name: str,
        history: History,
        topic: str,
        partitions: int,
        address: tuple[str, int],
        *,
        seed: int,
        ids: int,
    ) -> None:
        super().__init__(name, history, topic, partitions)
        self._address = address
        self._rng = random.Random(seed)
        with RawClient(address) as client:
            asked = InitProducerIdRequest(transactional_id=None)
            given = [client.ask(ApiKey.INIT_PRODUCER_ID, asked) for _ in range(ids)]
        assert not any(one.error_code for one in given)
        self._lanes = [Lane(one.producer_id, index) for one in given for index in range(partitions)]
        self._acknowledged = dict.fromkeys(range(partitions), -1)
        self._number = 0
        #: For each connection that broke, how many requests had left on it and were not answered.
        self.unanswered_at_breaks: list[int] = []

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
                values = [f"{self.name}:{self._number + i}".encode() for i in range(count)]
                self._number += count
                for value in values:
                    self.history.sending(value)
                options = BatchOptions(
                    producer_id=lane.producer_id, producer_epoch=0, base_sequence=lane.next_sequence
                )
                rows = [(None, value) for value in values]
                records = batch.encode_records(rows, time.time_ns() // 1_000_000, options)
                lane.next_sequence += count
                topic = ProduceTopic(
                    self.topic, NULL_ID, [ProducePartition(lane.partition, memoryview(records))]
                )
                frame = encode_request(
                    ApiKey.PRODUCE, 9, self._number, self.name, ProduceRequest(None, -1, 10_000, [topic])
                )
                sent = Sent(lane, values, b"".join(frame), self._acknowledged[lane.partition])
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
            self.history.fail(f"{self.name}: {sent.values}: {answer.error_code} {answer.error_message}")
            return
        for i, value in enumerate(sent.values):
            self.history.acknowledge(value, Place(answer.index, answer.base_offset + i), sent.after)
        last = answer.base_offset + len(sent.values) - 1
        self._acknowledged[answer.index] = max(self._acknowledged[answer.index], last)


class Reader(Client):
    """Reads all partitions along, over every restart, and tells the history what it saw."""

    def __init__(
        self, name: str, history: History, topic: str, partitions: int, address: tuple[str, int]
    ) -> None:
        super().__init__(name, history, topic, partitions)
        self._address = address

    def work(self) -> None:
        """Read until stopped."""
        offsets = dict.fromkeys(range(self.partitions), 0)
        while not self.stopping.is_set():
            # The server is gone, or went while it answered: what came before was read and counts.
            with suppress(OSError, AssertionError, ConnectionError), RawClient(self._address) as client:
                while not self.stopping.is_set():
                    response = fetch(client, self.topic, offsets)
                    if response is None:
                        break
                    self._note(response, offsets)
            self.stopping.wait(RETRY_SECONDS)

    def _note(self, response: FetchResponse, offsets: dict[int, int]) -> None:
        for place, content in records_of(response, offsets):
            self.history.show(place, content)
        for partition in response.topics[0].partitions:
            if partition.error_code:
                self.history.fail(f"{self.name}: error {partition.error_code} at {offsets[partition.index]}")
            else:
                self.history.show_high_watermark(partition.index, partition.high_watermark)


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


def records_of(response: FetchResponse, offsets: dict[int, int]) -> Iterator[tuple[Place, Content]]:
    """Yield the records of a response from *offsets* on, and move these past them."""
    for partition in response.topics[0].partitions:
        data = b"".join(bytes(piece) for piece in partition.records)
        for header in batch.scan(data).headers():
            batch.check_crc(data, header)
            for record in batch.decode_records(data, header):
                # A fetch inside a batch gives all of it.
                if record.offset >= offsets[partition.index]:
                    content = Content(record.timestamp, record.value or b"")
                    yield Place(partition.index, record.offset), content
            offsets[partition.index] = max(offsets[partition.index], header.next_offset)


def read_everything(
    address: tuple[str, int], topic: str, partitions: int, show: Callable[[Place, Content], None]
) -> tuple[dict[Place, Content], dict[int, int]]:
    """Read a topic from its beginning with a client of its own; return its records and where it ends."""
    offsets = dict.fromkeys(range(partitions), 0)
    stored: dict[Place, Content] = {}
    with RawClient(address) as client:
        while True:
            response = fetch(client, topic, offsets)
            assert response is not None, "the server hung up"
            for place, content in records_of(response, offsets):
                assert place not in stored, f"{place} came twice"
                stored[place] = content
                show(place, content)
            ends = {partition.index: partition.high_watermark for partition in response.topics[0].partitions}
            if offsets == ends:
                return stored, ends
