"""What people use the server with: librdkafka, aiokafka and kafka-python, through one scenario each.

Everything that a client sent and the server acknowledged is read back by all three of them, record by
record: none is missing, none is there twice, and nothing about any of them has changed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from threading import Thread

import pytest
from support.asking import Asking
from support.clients import (
    APPEND_TIME,
    CLIENTS,
    COMPRESSIONS,
    CREATE_TIME,
    Client,
    Consumer,
    Headers,
    Outgoing,
    Producer,
    Stored,
)
from support.patience import in_time
from support.serving import RawClient, ServerProcess, serving

from cordwood import Broker
from cordwood.formats import batch
from cordwood.formats.batch import BatchHeader
from cordwood.formats.compression import Compression
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.metadata import MetadataRequest

PARTITIONS = range(3)
#: Topics are created by the clients' admins and by nothing else.
SETTINGS = {"auto.create.topics.enable": "false"}
NOON = 1_700_000_000_000
READY_SECONDS_MAX = 0.5

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def readers(server: ServerProcess) -> Iterator[list[tuple[str, Consumer]]]:
    """A consumer of each client: they are slow to start, and read one topic after the other."""
    with ExitStack() as stack:
        yield [(client.name, stack.enter_context(client.consuming(server.bootstrap))) for client in CLIENTS]


# --- what is sent, and what has to come back ----------------------------------------------------------


def records_of_every_shape(client: Client, start: int) -> list[Outgoing]:
    """Return records as people send them, and as they hardly ever do, for each partition.

    Their timestamps go up and down, and some are equal.
    """
    headers: Headers = (("trace", b"\x00\xff"), ("größe-尺寸", b"1"), ("trace", b""), ("", b"2"))
    if client.sends_null_headers:
        headers += (("null", None),)
    shapes: list[tuple[bytes | None, bytes | None, Headers]] = [
        (b"key", b"value", ()),
        (None, b"no key", ()),
        (b"gone", None, ()),
        (b"", b"an empty key", ()),
        (b"nothing said", b"", ()),
        (b"headers", b"value", headers),
        (None, b"headers and no key", headers[:2]),
        (b"large", b"timber " * 500, ()),
        (b"\x00\xff\xfe", bytes(range(256)), ()),
    ]
    if client.sends_nothing:
        shapes.append((None, None, ()))
    ups_and_downs = (0, 7, 3, 7, 2, 9, 9, 5, 11, 4)
    return [
        Outgoing(partition, key, value, named, start + 100 * partition + late)
        for (key, value, named), late in zip(shapes, ups_and_downs, strict=False)
        for partition in PARTITIONS
    ]


class Ledger:
    """What was sent to a topic, and where the server said it is."""

    def __init__(self) -> None:
        self.partitions: list[list[Stored]] = [[] for _ in PARTITIONS]

    def note(self, sent: Sequence[Outgoing], offsets: Sequence[int]) -> None:
        """Take note of records, whose offsets must be the next ones of their partitions, in order."""
        for record, offset in zip(sent, offsets, strict=True):
            partition, key, value, headers, timestamp = record
            assert offset == len(self.partitions[partition])
            stored = Stored(partition, offset, key, value, headers, timestamp, CREATE_TIME)
            self.partitions[partition].append(stored)

    def from_offsets(self, starts: Sequence[int]) -> list[Stored]:
        """Return what a consumer has to be given from there on, partition after partition."""
        return list(chain(*(self.partitions[p][start:] for p, start in zip(PARTITIONS, starts, strict=True))))

    def everything(self) -> list[Stored]:
        return list(chain(*self.partitions))

    def ends(self) -> dict[int, int]:
        return {partition: len(self.partitions[partition]) for partition in PARTITIONS}

    def offsets_at(self, timestamp: int) -> dict[int, int | None]:
        """Return the first offset of each partition whose record is not older than *timestamp*."""
        return {
            partition: next((r.offset for r in self.partitions[partition] if r.timestamp >= timestamp), None)
            for partition in PARTITIONS
        }


def send(producer: Producer, ledger: Ledger, records: Sequence[Outgoing]) -> None:
    producer.send(records)
    ledger.note(records, producer.flush())


def stored_batches(bootstrap: str, topic: str) -> list[list[BatchHeader]]:
    """Return the batches of each partition as they are stored, asked for without any client."""
    with Asking(bootstrap) as raw:
        request = raw.fetch_request(topic, dict.fromkeys(PARTITIONS, 0))
        (answer,) = raw.ask(ApiKey.FETCH, request).topics
    return [list(batch.scan(b"".join(part.records)).headers()) for part in answer.partitions]


# --- the claims ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
@each_client
def test_what_one_client_writes_all_three_read_the_same(
    client: Client, compression: str, server: ServerProcess, readers: Sequence[tuple[str, Consumer]]
) -> None:
    """Every shape of record under every compression; and it is stored under the one that was asked for."""
    for each in CLIENTS:
        if missing := each.missing(compression):
            pytest.skip(f"{each.name} needs {missing} for {compression}")
    topic, ledger = f"{client.name}-{compression}", Ledger()
    client.create_topic(server.bootstrap, topic, len(PARTITIONS))
    with client.producing(server.bootstrap, topic, compression) as producer:
        send(producer, ledger, records_of_every_shape(client, NOON))
    for headers, records in zip(stored_batches(server.bootstrap, topic), ledger.partitions, strict=True):
        # A batch that would not get smaller is sent as it is; the one with this record always does.
        (large,) = (record.offset for record in records if record.key == b"large")
        (header,) = (header for header in headers if header.base_offset <= large < header.next_offset)
        # librdkafka takes a broker without FindCoordinator for one too old for LZ4, and sends none of it.
        assert header.compression is Compression[compression.upper()]
        assert all(header.producer_id >= 0 for header in headers)
    for name, reader in readers:
        reader.begin(topic, len(PARTITIONS))
        assert reader.take(len(ledger.everything())) == ledger.everything(), name
        assert reader.bounds() == {partition: (0, end) for partition, end in ledger.ends().items()}, name
        assert topic in reader.topics(), name


@each_client
def test_every_client_shows_the_time_of_the_append_where_the_topic_keeps_that(
    client: Client, server: ServerProcess, readers: Sequence[tuple[str, Consumer]]
) -> None:
    """One and the same time, and one that says what it is."""
    topic = f"appended-by-{client.name}"
    with Asking(server.address) as raw:
        raw.create(topic, message_timestamp_type="LogAppendTime")
    started = int(time.time() * 1000)
    with client.producing(server.bootstrap, topic) as producer:
        producer.send([Outgoing(0, b"key", b"value", (), NOON), Outgoing(0, b"key", b"value", (), NOON + 1)])
        assert producer.flush() == [0, 1]
    ended = int(time.time() * 1000)
    seen = []
    for _, reader in readers:
        reader.begin(topic, 1)
        seen.append([(record.timestamp, record.timestamp_type) for record in reader.take(2)])
    assert seen == [seen[0]] * len(readers)
    for timestamp, kind in seen[0]:
        assert (kind, started <= timestamp <= ended) == (APPEND_TIME, True)


def play(client: Client, bootstrap: str, restarts: Sequence[Callable[[], None]]) -> Ledger:
    """Do with one client what people do, the server restarting under it, and check what it is given.

    Producer and consumer live through all of it.
    """
    topic, ledger = f"played-by-{client.name}", Ledger()
    client.create_topic(bootstrap, topic, len(PARTITIONS))
    with ExitStack() as stack:
        producer = stack.enter_context(client.producing(bootstrap, topic))
        consumer = stack.enter_context(client.consuming(bootstrap))
        consumer.begin(topic, len(PARTITIONS))
        send(producer, ledger, records_of_every_shape(client, NOON))
        assert consumer.take(len(ledger.everything())) == ledger.everything()
        for number, restart in enumerate(restarts, start=1):
            starts = list(ledger.ends().values())
            before = records_of_every_shape(client, NOON + 1000 * number)
            after = records_of_every_shape(client, NOON + 1000 * number + 500)
            # Under way while the server goes down, and more while the producer looks for it.
            producer.send(before)
            restart()
            producer.send(after)
            ledger.note([*before, *after], producer.flush())
            expected = ledger.from_offsets(starts)
            assert consumer.take(len(expected)) == expected

        # From the offset of a record within a batch, and from that of the last one.
        within = []
        for headers in stored_batches(bootstrap, topic):
            longest = max(headers, key=lambda header: header.record_count)
            assert longest.record_count >= 3
            within.append(longest.base_offset + longest.record_count // 2)
        last = [end - 1 for end in ledger.ends().values()]
        for starts in (within, last):
            consumer.seek(dict(zip(PARTITIONS, starts, strict=True)))
            expected = ledger.from_offsets(starts)
            assert consumer.take(len(expected)) == expected

        # From a time: before all records, exactly theirs, between them, after all.
        times = {record.timestamp for record in ledger.everything()}
        for timestamp in (1, min(times) + 1, NOON + 7, NOON + 10, NOON + 109, max(times), max(times) + 1):
            assert consumer.offsets_at(timestamp) == ledger.offsets_at(timestamp), timestamp
        found = consumer.offsets_at(NOON + 3)
        starts = [found[partition] or 0 for partition in PARTITIONS]
        assert starts != [0, 0, 0]
        consumer.seek(dict(zip(PARTITIONS, starts, strict=True)))
        assert consumer.take(len(ledger.from_offsets(starts))) == ledger.from_offsets(starts)

        # From the end: what comes next is what is written next.
        assert consumer.seek_to_end() == ledger.ends()
        starts = list(ledger.ends().values())
        send(producer, ledger, [Outgoing(partition, None, b"the last", (), NOON) for partition in PARTITIONS])
        assert consumer.take(len(PARTITIONS)) == ledger.from_offsets(starts)
    return ledger


@each_client
def test_a_client_goes_on_while_its_server_is_ended_and_killed(client: Client, tmp_path: Path) -> None:
    """Every record is there once, in order, whether SIGTERM or kill -9 came in between."""
    with serving(tmp_path, SETTINGS) as server:
        restarts = (server.restart, lambda: server.restart(kill=True))
        ledger = play(client, server.bootstrap, restarts)
        topic = f"played-by-{client.name}"
        for reader in CLIENTS:
            with reader.consuming(server.bootstrap) as consumer:
                consumer.begin(topic, len(PARTITIONS))
                assert consumer.take(len(ledger.everything())) == ledger.everything(), reader.name
                assert consumer.seek_to_end() == ledger.ends()
        print(f"{client.name}: {len(ledger.everything())} records, over {len(restarts)} restarts")
        assert server.stop() == 0


class Relay:
    """Stands between clients and a server, and loses answers to Produce, connection and all, when told to."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listening]
        self._threads = [Thread(target=self._accept)]
        self.bootstrap = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.server = ("", 0)
        self.to_lose = 0
        self.lost = 0

    def start(self, server: str) -> None:
        """Pass on from now on what comes."""
        host, _, port = server.rpartition(":")
        self.server = (host, int(port))
        self._threads[0].start()

    def close(self) -> None:
        """Hang up on everyone."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._connect(self._listening.accept()[0])

    def _connect(self, client: socket.socket) -> None:
        server = socket.create_connection(self.server)
        self._open += [client, server]
        produced: set[bytes] = set()

        def note(request: bytes) -> bool:
            if int.from_bytes(request[:2], "big") == ApiKey.PRODUCE:
                produced.add(request[4:8])
            return False

        up = Thread(target=self._pass_on, args=(client, server, note))
        down = Thread(target=self._pass_on, args=(server, client, lambda answer: answer[:4] in produced))
        self._threads += [up, down]
        up.start()
        down.start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, may_be_lost: Callable[[bytes], bool]
    ) -> None:
        with source.makefile("rb") as frames, suppress(OSError):
            while size := frames.read(4):
                frame = frames.read(int.from_bytes(size, "big"))
                if may_be_lost(frame) and self.to_lose:
                    self.to_lose -= 1
                    self.lost += 1
                    break
                target.sendall(size + frame)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@each_client
def test_a_batch_whose_acknowledgement_is_lost_is_not_stored_twice(client: Client) -> None:
    """The producer sends it again, on another connection, and is told where it is."""
    relay, topic, ledger = Relay(), "retried", Ledger()
    with ExitStack() as stack:
        advertised = {"advertised.listeners": f"PLAINTEXT://{relay.bootstrap}"}
        broker = stack.enter_context(Broker(config={**SETTINGS, **advertised}))
        stack.callback(relay.close)
        relay.start(broker.bootstrap)
        client.create_topic(relay.bootstrap, topic, len(PARTITIONS))
        producer = stack.enter_context(client.producing(relay.bootstrap, topic))
        send(producer, ledger, records_of_every_shape(client, NOON))
        for number in (1, 2):
            relay.to_lose = number
            send(producer, ledger, records_of_every_shape(client, NOON + 1000 * number))
        assert (relay.to_lose, relay.lost) == (0, 3)
        consumer = stack.enter_context(client.consuming(relay.bootstrap))
        consumer.begin(topic, len(PARTITIONS))
        assert consumer.take(len(ledger.everything())) == ledger.everything()
        assert consumer.bounds() == {partition: (0, end) for partition, end in ledger.ends().items()}


def test_a_broker_in_this_process_serves_from_memory() -> None:
    with Broker(config=SETTINGS) as broker:
        play(CLIENTS[0], broker.bootstrap, ())


def test_a_broker_in_this_process_serves_a_directory_and_again_after_it_was_closed(tmp_path: Path) -> None:
    running = [Broker(tmp_path, config=SETTINGS)]
    bootstrap = running[0].bootstrap

    def restart() -> None:
        running.pop().close()
        running.append(Broker(tmp_path, listen=bootstrap, config=SETTINGS))

    try:
        play(CLIENTS[0], bootstrap, (restart,))
    finally:
        running.pop().close()


@pytest.mark.parametrize("kind", ["in memory", "on a directory"])
def test_a_broker_answers_within_half_a_second_of_being_made(kind: str, tmp_path: Path) -> None:
    """The best of three, since the machine may be busy with something else in any one of them."""
    seconds = []
    for number in range(3):
        started = time.perf_counter()
        with Broker(None if kind == "in memory" else tmp_path / str(number)) as broker:
            with RawClient(broker.bootstrap) as raw:
                asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
                assert raw.ask(ApiKey.API_VERSIONS, asked).error_code == 0
                assert raw.ask(ApiKey.METADATA, MetadataRequest(topics=[])).brokers
            seconds.append(time.perf_counter() - started)
    print(f"{kind}: {', '.join(f'{each * 1000:.0f} ms' for each in seconds)}")
    assert in_time(min(seconds), READY_SECONDS_MAX)
