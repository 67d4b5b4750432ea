"""Frames that no client should send, made from frames that every client may, and who sends them.

`Templates` has valid requests of every API and version that a server speaks. `hostile_frames` mutates them,
lies in their batches, or makes up bytes; `valid_frames` gives them as they are, for comparison. `attack`
sends either, over many connections, and says what became of each frame.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from protocol.definitions import TEXTS, Case, random_message
from protocol.plain import to_ours, understood

from cordwood.errors import ProtocolError
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.formats.compression import Compression, compress
from cordwood.kernels import HEADER_SIZE
from cordwood.protocol.apis import APIS, ApiKey, decode_response, encode_request
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from cordwood.protocol.wire import NULL_ID
from support.patience import Limit
from support.serving import RawClient

#: The topic that attackers send to, and those that they create and delete: few, so that few are made.
TARGET = "target"
VICTIMS = tuple(f"victim-{i}" for i in range(8))
NAMES = (*VICTIMS, TARGET, *TEXTS[:5])
#: APIs whose answer may take as long as the request says. Everything else is answered or closed at once.
MAY_WAIT = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}

#: More than any batch may decompress to.
BOMB_BYTES = 256 << 20

_TEMPLATES_EACH = 4
_CONNECTIONS = 24
#: The least time between two requests of the connection that shows whether the server has its turn.
_PULSE_SECONDS = 0.01
#: The server answers this many of them after the last sign of a frame that may wait, or is not whole, before
#: it is waited for no more.
_PULSES_WAITING = 200
_PULSES_DESYNCHRONISED = 2
#: After so many that should have been answered there is nothing more to learn.
_HUNG_MAX = 10
_HEADER = struct.Struct(">hhi")

#: What a length or count that lies looks like: as 16 and 32 bits, negative, and as a varint.
LIES = (
    b"\x7f\xff\xff\xff",
    b"\x7f\xff",
    b"\xff\xff\xff\xfe",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
)
#: Surrogates, a cut sequence, an overlong one, a byte that never occurs.
NOT_UTF8 = (b"\xed\xa0\x80", b"\xe2\x82", b"\xc0\x80", b"\xff", b"\xf8\x88\x80\x80\x80")


class Frame(NamedTuple):
    """Bytes to send. Where ``desynchronised`` their length is a lie, and nothing can follow them."""

    kind: str
    data: bytes
    desynchronised: bool = False


# --- valid requests ---------------------------------------------------------------------------------


class Templates(NamedTuple):
    """Valid requests without their lengths: of each version of each API, and envelopes for batches."""

    requests: Sequence[bytes]
    batches: Sequence[bytes]


def served_versions(client: RawClient) -> dict[ApiKey, range]:
    """Return what the server says it speaks, as far as it does."""
    answer = client.ask(ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].request.message())
    served = {}
    for each in answer.api_keys:
        key = ApiKey(each.api_key)
        first = max(each.min_version, APIS[key].versions.first)
        served[key] = range(first, each.max_version + 1)
    return served


def templates(served: dict[ApiKey, range], topic_id: bytes, seed: int) -> Templates:
    """Return valid requests of all *served* versions; *topic_id* is that of the topic `TARGET`."""
    rng = random.Random(seed)
    requests = []
    for key, versions in served.items():
        for version in versions:
            make = _MADE_BY_HAND.get(key)
            for _ in range(_TEMPLATES_EACH):
                case = Case(key, version, "request")
                if make is not None:
                    body = make(rng, version, topic_id)
                else:
                    body = to_ours(case, understood(case, random_message(rng, case, NAMES)))
                requests.append(framed(key, version, body))
    return Templates(requests, [bytes(records(rng)) for _ in range(50)])


def framed(key: ApiKey, version: int, body: object) -> bytes:
    return b"".join(encode_request(key, version, 0, "hostile", body))[4:]


def records(rng: random.Random) -> bytearray:
    """Return a small valid batch."""
    rows = [(rng.choice((None, b"key")), rng.randbytes(rng.randrange(64))) for _ in range(rng.randint(1, 8))]
    options = BatchOptions(compression=rng.choice(list(Compression)))
    return batch.encode_records(rows, time.time_ns() // 1_000_000, options)


def produce_body(
    data: bytes, version: int, topic_id: bytes, acks: int = -1, index: int = 0
) -> ProduceRequest:
    name, by_id = (TARGET, NULL_ID) if version < 13 else ("", topic_id)
    partition = ProducePartition(index, memoryview(data))
    return ProduceRequest(None, acks, 1000, [ProduceTopic(name, by_id, [partition])])


def _produce(rng: random.Random, version: int, topic_id: bytes) -> ProduceRequest:
    acks = rng.choice((-1, -1, -1, 1, 0))
    return produce_body(bytes(records(rng)), version, topic_id, acks, rng.choice((0, 0, 1)))


def _fetch(rng: random.Random, version: int, topic_id: bytes) -> FetchRequest:
    name, by_id = (TARGET, NULL_ID) if version < 13 else ("", topic_id)
    wanted = [FetchPartition(i, fetch_offset=rng.choice((0, 5)), max_bytes=1 << 12) for i in range(2)]
    topics = [FetchTopic(name, by_id, wanted)]
    return FetchRequest(-1, rng.choice((0, 1)), 1, 1 << 14, rng.choice((0, 1)), 0, -1, topics, [], "")


def _metadata(rng: random.Random, version: int, topic_id: bytes) -> MetadataRequest:
    name = rng.choice((TARGET, *VICTIMS))
    topics = [MetadataRequestTopic(name=name, topic_id=rng.choice((topic_id, NULL_ID)))]
    return MetadataRequest(
        topics=rng.choice((topics, topics, [])), allow_auto_topic_creation=rng.random() < 0.2
    )


def _create_topics(rng: random.Random, version: int, topic_id: bytes) -> CreateTopicsRequest:
    asked = CreatableTopic(name=rng.choice(VICTIMS), num_partitions=rng.randint(1, 3), replication_factor=1)
    return CreateTopicsRequest(topics=[asked], timeout_ms=1000, validate_only=rng.random() < 0.5)


def _delete_topics(rng: random.Random, version: int, topic_id: bytes) -> DeleteTopicsRequest:
    name = rng.choice(VICTIMS)
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=1000)


# Those whose random messages would mostly be refused at first sight, or ask the server to wait for days.
_MADE_BY_HAND: dict[ApiKey, Callable[[random.Random, int, bytes], object]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.METADATA: _metadata,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
}


# --- mutations --------------------------------------------------------------------------------------


def _flip(rng: random.Random, frame: bytearray, _: Templates) -> None:
    for _bit in range(rng.choice((1, 1, 2, 8))):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)


def _lie(rng: random.Random, frame: bytearray, _: Templates) -> None:
    position, chosen = rng.randrange(8, len(frame)), rng.choice(LIES)
    frame[position : position + len(chosen)] = chosen


def _cut(rng: random.Random, frame: bytearray, _: Templates) -> None:
    del frame[rng.randrange(8, len(frame)) :]


def _extend(rng: random.Random, frame: bytearray, _: Templates) -> None:
    frame += rng.choice((rng.randbytes(rng.randrange(1, 64)), bytes(rng.randrange(1, 64))))


def _drop(rng: random.Random, frame: bytearray, _: Templates) -> None:
    position = rng.randrange(8, len(frame))
    del frame[position : position + rng.randrange(1, 9)]


def _repeat(rng: random.Random, frame: bytearray, _: Templates) -> None:
    position = rng.randrange(8, len(frame))
    frame[position:position] = frame[position : position + rng.randrange(1, 33)]


def _tags(rng: random.Random, frame: bytearray, _: Templates) -> None:
    """Tagged fields at the end, unknown ones, out of order, or with sizes that lie."""
    end = len(frame) - (rng.random() < 0.8)
    frame[end:] = rng.choice((b"\1\x63\2ab", b"\2\5\0\4\0", b"\1\0\xff\x7f", b"\xff\xff\xff\xff\x0f"))


def _not_utf8(rng: random.Random, frame: bytearray, _: Templates) -> None:
    position, chosen = rng.randrange(10, len(frame)), rng.choice(NOT_UTF8)
    frame[position : position + len(chosen)] = chosen


def _another_api(rng: random.Random, frame: bytearray, _: Templates) -> None:
    struct.pack_into(">hh", frame, 0, rng.choice(list(ApiKey)), rng.randrange(19))
    if rng.random() < 0.3:
        frame[:4] = rng.randbytes(4)


def _splice(rng: random.Random, frame: bytearray, of: Templates) -> None:
    other = rng.choice(of.requests)
    frame[rng.randrange(8, len(frame)) :] = other[rng.randrange(len(other)) :]


_MUTATIONS: dict[str, Callable[[random.Random, bytearray, Templates], None]] = {
    "bits flipped": _flip,
    "lengths that lie": _lie,
    "cut": _cut,
    "extended": _extend,
    "bytes dropped": _drop,
    "bytes repeated": _repeat,
    "tags": _tags,
    "not UTF-8": _not_utf8,
    "another API": _another_api,
    "spliced": _splice,
}

# Fields of a batch's header, and what to put there: position, layout, values.
_HEADER_FIELDS = {
    "batch lies about its size": (8, ">i", (-1, 0, 48, 1 << 20, (1 << 31) - 1)),
    "batch lies about its magic": (16, ">b", (0, 1, 3, -1)),
    "batch lies about its attributes": (21, ">h", (1, 2, 3, 4, 5, 7, 8, 16, 32, 48, 64, 128, -1)),
    "batch lies about its deltas": (23, ">i", (-1, 0, 3, 1 << 20, (1 << 31) - 1)),
    "batch lies about its times": (27, ">q", (-1, -(1 << 63), (1 << 63) - 1)),
    "batch lies about its producer": (43, ">q", (-2, 0, 7, (1 << 63) - 1)),
    "batch lies about its count": (57, ">i", (-1, 0, 9, 1 << 20, (1 << 31) - 1)),
}
_RECORDS_LIE = "records lie about their sizes"
_CHECKSUM_LIES = "checksum lies"


def _lying_batch(rng: random.Random, kind: str, of: Templates) -> bytes:
    data = bytearray(rng.choice(of.batches))
    if kind == _RECORDS_LIE:
        position = rng.randrange(HEADER_SIZE, len(data))
        chosen = rng.choice((*LIES, b"\0", b"\x01", rng.randbytes(2)))
        data[position : position + len(chosen)] = chosen
    elif kind == _CHECKSUM_LIES:
        data[17] ^= 1 << rng.randrange(8)
        return bytes(data)
    else:
        position, layout, values = _HEADER_FIELDS[kind]
        struct.pack_into(layout, data, position, rng.choice(values))
    batch.seal(data)
    return bytes(data)


def bomb(compression: Compression) -> bytes:
    """Return a batch that decompresses to more than any may, behind a header that says nothing of it."""
    data = batch.encode_records([(None, b"")], 0, BatchOptions(compression=compression))
    data[HEADER_SIZE:] = bytes(compress(compression, bytes(BOMB_BYTES)))
    struct.pack_into(">i", data, 8, len(data) - 12)
    batch.seal(data)
    return bytes(data)


def hostile_frames(rng: random.Random, of: Templates, topic_id: bytes) -> Iterator[Frame]:
    """Yield frames without end; every kind comes as often as any other."""
    kinds = [*_MUTATIONS, *_HEADER_FIELDS, _RECORDS_LIE, _CHECKSUM_LIES, "noise", "frame lengths that lie"]
    while True:
        frame = bytearray(rng.choice(of.requests))
        kind = rng.choice(kinds)
        if kind in _MUTATIONS:
            _MUTATIONS[kind](rng, frame, of)
            yield Frame(kind, bytes(frame))
        elif kind == "noise":
            head = _HEADER.pack(rng.choice(list(ApiKey)), rng.randrange(15), 0)
            yield Frame(kind, rng.choice((head, b"")) + rng.randbytes(rng.randrange(1, 200)))
        elif kind == "frame lengths that lie":
            more, less = len(frame) + rng.randrange(1, 1000), rng.randrange(8)
            length = rng.choice((more, less, -1, -(1 << 31), 1 << 30))
            yield Frame(kind, struct.pack(">i", length) + frame, desynchronised=True)
        else:
            version = rng.choice((3, 8, 9, 12, 13))
            body = produce_body(_lying_batch(rng, kind, of), version, topic_id)
            yield Frame(kind, framed(ApiKey.PRODUCE, version, body))


def valid_frames(rng: random.Random, of: Templates) -> Iterator[Frame]:
    """Yield valid frames without end."""
    while True:
        yield Frame("valid", rng.choice(of.requests))


def long_frames(served: dict[ApiKey, range], seed: int) -> Iterator[Frame]:
    """Yield valid requests of all versions whose every text is as long as a field can be."""
    rng = random.Random(seed)
    for key, versions in served.items():
        for version in versions:
            case = Case(key, version, "request")
            message = random_message(rng, case, ["n" * ((1 << 15) - 1)])
            yield Frame(case.name, framed(key, version, to_ours(case, understood(case, message))))


def batch_frames(kind: str, batches: Iterable[bytes], topic_id: bytes) -> list[Frame]:
    """Return frames that produce these batches."""
    return [Frame(kind, framed(ApiKey.PRODUCE, 9, produce_body(one, 9, topic_id))) for one in batches]


# --- sending ----------------------------------------------------------------------------------------

Outcomes = Counter[tuple[str, str]]
"""How many frames of a kind were answered, closed upon, and so on."""


class _Sent(NamedTuple):
    number: int
    frame: Frame
    data: bytes
    api: tuple[int, int] | None


def _fence(number: int) -> bytes:
    """Return a request that is answered at once."""
    return _prefixed(_HEADER.pack(ApiKey.API_VERSIONS, 0, number) + b"\xff\xff")


class _Connection:
    """One connection of an attack, and the frame on it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)
        self.out = bytearray()
        self.received = bytearray()
        self.sent: _Sent | None = None
        self.desynchronised = False
        self.fence = 0
        #: How many answers the pulse had when something happened here last, and a limit from then on.
        self.pulse = 0
        self.limit = Limit()

    def note(self, pulse: _Pulse) -> None:
        """Note that something happened."""
        self.pulse, self.limit = pulse.count, Limit()


class _Pulse:
    """A connection that asks what is answered at once, over and over, and counts the answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.count = 0
        self._received = bytearray()
        self._asked = 0.0
        self._waits = False

    def ask(self) -> None:
        """Ask again, unless an answer is to come or it is too soon."""
        now = time.monotonic()
        if not self._waits and now - self._asked > _PULSE_SECONDS:
            self._asked, self._waits = now, True
            self.socket.sendall(_fence(self.count))

    def receive(self) -> None:
        """Take what came."""
        data = self.socket.recv(1 << 16)
        assert data, "the server hung up on a client that does nothing wrong"
        self._received += data
        if _take_frame(self._received) is not None:
            self.count += 1
            self._waits = False


class _Attack:
    """Sends frames over a number of connections at once, one after the other on each.

    Behind each frame goes a request that is always answered. Its answer says that the frame was dealt with,
    even where there is none to it (acks=0). One more connection asks what is answered at once, over and over:
    its answers, the pulse, count how often the server had its turn, however slow the machine is.
    """

    def __init__(self, address: tuple[str, int], frames: Iterator[Frame], count: int) -> None:
        self._address = address
        self._frames = islice(frames, count)
        self._numbers = 0
        self._hung = 0
        self._poll = select.poll()
        self._open: dict[int, _Connection] = {}
        self._pulse = _Pulse(address)
        self.outcomes: Outcomes = Counter()

    def run(self) -> Outcomes:
        self._poll.register(self._pulse.socket, select.POLLIN)
        with self._pulse.socket:
            for _ in range(_CONNECTIONS):
                self._connect()
            while self._open:
                self._pulse.ask()
                for descriptor, event in self._poll.poll(10):
                    if descriptor == self._pulse.socket.fileno():
                        self._pulse.receive()
                        continue
                    connection = self._open[descriptor]
                    if event & ~select.POLLOUT:
                        self._receive(connection)
                    if self._open.get(descriptor) is connection and connection.out:
                        self._send(connection)
                for connection in list(self._open.values()):
                    self._check(connection)
        return self.outcomes

    def _connect(self) -> None:
        connection = _Connection(self._address)
        self._open[connection.socket.fileno()] = connection
        self._poll.register(connection.socket, select.POLLIN)
        self._load(connection)

    def _load(self, connection: _Connection) -> None:
        """Give the connection its next frame; close it where there are no more."""
        frame = next(self._frames, None)
        if frame is None or self._hung > _HUNG_MAX:
            self._close(connection)
            return
        self._numbers += 2
        connection.sent = sent = _numbered(frame, self._numbers)
        connection.fence = self._numbers + 1
        connection.desynchronised = frame.desynchronised
        connection.note(self._pulse)
        connection.out += sent.data
        if not frame.desynchronised:
            connection.out += _fence(connection.fence)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        try:
            count = connection.socket.send(connection.out)
        except BlockingIOError:
            count = 0
        except ConnectionError:
            self._ended(connection, "closed")
            return
        del connection.out[:count]
        events = select.POLLIN | select.POLLOUT if connection.out else select.POLLIN
        self._poll.modify(connection.socket, events)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        connection.note(self._pulse)
        connection.received += data
        while (answer := _take_frame(connection.received)) is not None:
            self._answered(connection, answer)
        if not data:
            self._ended(connection, "closed")

    def _answered(self, connection: _Connection, answer: bytes) -> None:
        (number,) = struct.unpack_from(">i", answer)
        if number == connection.fence:
            self._count(connection, "without an answer")
            self._load(connection)
        elif connection.sent is not None and number == connection.sent.number:
            valid = _is_valid(connection.sent, answer)
            self._count(connection, "answered" if valid else "answered with nonsense")

    def _check(self, connection: _Connection) -> None:
        """Give up a frame that may wait after enough pulses, and any other one after the limit."""
        sent = connection.sent
        pulses = self._pulse.count - connection.pulse
        if connection.desynchronised:
            # No request goes behind it, so that its answer is not the sign to go on.
            if pulses >= _PULSES_DESYNCHRONISED:
                self._ended(connection, "waited for")
        elif sent is not None and sent.api is not None and sent.api[0] in MAY_WAIT:
            if pulses >= _PULSES_WAITING:
                self._ended(connection, "waited for")
        elif connection.limit.passed():
            self._hung += 1
            if sent is None:
                self.outcomes["the request behind a frame", "hung"] += 1
            self._ended(connection, "hung" if sent is None else f"hung: {sent.data[:80].hex()}")

    def _ended(self, connection: _Connection, outcome: str) -> None:
        """Count the frame and go on with the next on another connection."""
        self._count(connection, outcome)
        self._close(connection)
        self._connect()

    def _close(self, connection: _Connection) -> None:
        self._poll.unregister(connection.socket)
        del self._open[connection.socket.fileno()]
        connection.socket.close()

    def _count(self, connection: _Connection, outcome: str) -> None:
        if connection.sent is not None:
            self.outcomes[connection.sent.frame.kind, outcome] += 1
            connection.sent = None


def _numbered(frame: Frame, number: int) -> _Sent:
    """Return what to send for *frame*, with a correlation id that its answer can be told by."""
    data = bytearray(frame.data if frame.desynchronised else _prefixed(frame.data))
    if len(data) < 4 + _HEADER.size:
        return _Sent(number, frame, bytes(data), None)
    key, version, _ = _HEADER.unpack_from(data, 4)
    _HEADER.pack_into(data, 4, key, version, number)
    return _Sent(number, frame, bytes(data), (key, version))


def _take_frame(received: bytearray) -> bytes | None:
    if len(received) < 4:
        return None
    end = 4 + int(struct.unpack_from(">i", received)[0])
    if len(received) < end:
        return None
    frame = bytes(received[4:end])
    del received[:end]
    return frame


def _prefixed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _is_valid(sent: _Sent, answer: bytes) -> bool:
    """Return whether *answer* can be read as the answer to what was sent."""
    assert sent.api is not None
    key, version = sent.api
    if key == ApiKey.API_VERSIONS and version not in APIS[ApiKey.API_VERSIONS].versions:
        version = 0
    try:
        decode_response(ApiKey(key), version, answer)
    except (ProtocolError, ValueError, KeyError):
        return False
    return True


def attack(address: tuple[str, int], frames: Iterator[Frame], count: int) -> Outcomes:
    """Send *count* frames and return what became of them."""
    return _Attack(address, frames, count).run()
