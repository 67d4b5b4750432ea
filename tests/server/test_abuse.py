"""Abuse of a real server: lengths that claim gigabytes, bytes that trickle in, answers that nobody reads,
clients that idle, storm or take every file handle. Whoever behaves is served all the while.

The exact moments at which a client is cut off are tested with a clock of their own in ``test_connection``.
Here it is the process, its sockets and its memory.
"""

from __future__ import annotations

import itertools
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from support.asking import Asking
from support.hostile import bomb
from support.patience import SECONDS_MAX, Limit, in_time, until
from support.serving import RawClient, ServerProcess, serving

from cordwood import kernels
from cordwood.formats import batch
from cordwood.formats.compression import Compression
from cordwood.protocol.apis import ApiKey, encode_request
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.fetch import FetchPartition
from cordwood.protocol.messages.metadata import MetadataRequest
from cordwood.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from cordwood.protocol.wire import varint

MIB = 1 << 20
TOPIC = "abused"
#: Clients are looked at this often, so whoever is to be cut off is so this much later at most.
CHECK_SECONDS = 1.0
#: What a good client waits for at most while others misbehave. On a machine that is not busy, a hundredth.
PATIENCE_SECONDS = 1.5 if kernels.COMPILED else 5.0
LENGTH_MAX = 100 << 20


# --- what the tests share ---------------------------------------------------------------------------


class GoodClient(Thread):
    """Produces and reads back what it produced, one after the other, while the server is abused."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self._client = Asking(address)
        self._client.create("good")
        self._ended = Event()
        self.failure: BaseException | None = None
        self.served = 0
        self.slowest = 0.0

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                started = time.monotonic()
                produced = self._client.produce("good", records(1, 100))
                assert produced.error_code == 0, produced
                offset = produced.base_offset
                found = self._client.fetch("good", offset)
                assert found.high_watermark == offset + 1
                self.served += 1
                self.slowest = max(self.slowest, time.monotonic() - started)
                self._ended.wait(0.01)
        except BaseException as error:
            self.failure = error
        finally:
            self._client.close()

    def end(self) -> None:
        self._ended.set()
        self.join(SECONDS_MAX)
        assert not self.is_alive(), "the good client waits for an answer"


@contextmanager
def undisturbed(server: ServerProcess, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Run a good client meanwhile, which is served in good time throughout."""
    good = GoodClient(server.address)
    good.start()
    try:
        until(lambda: good.served > 3 or good.failure is not None, "the good client begins")
        before = good.served
        yield
        until(lambda: good.served > before or good.failure is not None, "the good client goes on")
    finally:
        good.end()
    assert good.failure is None
    assert in_time(good.slowest, 2 * patience_seconds)


def records(count: int, size: int) -> bytearray:
    return batch.encode_records([(None, bytes(size))] * count, 1_000)


def fill(server: ServerProcess, size: int, batch_bytes: int = 16 << 10) -> None:
    """Store *size* bytes in batches of so many."""
    with Asking(server.address) as client:
        client.create(TOPIC)
        body = client.produce_request(TOPIC, {0: records(1, batch_bytes)})
        count = size // batch_bytes
        for _ in range(count):
            client.send(ApiKey.PRODUCE, 9, body)
        for _ in range(count):
            assert client.receive(ApiKey.PRODUCE, 9).topics[0].partitions[0].error_code == 0


def requests(key: ApiKey, version: int, body: object, count: int = 1, client_id: str = "abuse") -> bytes:
    return b"".join(encode_request(key, version, 1, client_id, body)) * count


def fetches(server: ServerProcess, count: int, **limits: int) -> bytes:
    """Return fetches of everything there is."""
    with Asking(server.address) as client:
        body = client.fetch_request(TOPIC, {0: 0}, **limits)
    return requests(ApiKey.FETCH, 11, body, count)


def sockets(server: ServerProcess) -> int:
    """Return how many sockets the server has open, those it listens on included."""
    links = Path(f"/proc/{server.process.pid}/fd").iterdir()
    return sum(_target(link).startswith("socket:") for link in links)


def _target(link: Path) -> str:
    # It may be closed meanwhile.
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def sockets_at_rest(server: ServerProcess) -> int:
    """Return how many sockets the server has open when everyone who left is forgotten."""
    counts: list[int] = []

    def same_again() -> bool:
        counts.append(sockets(server))
        return len(counts) > 5 and len(set(counts[-5:])) == 1

    until(same_again, "nobody comes or goes")
    return counts[-1]


def hung_up(client: RawClient) -> bool:
    """Return whether the server has hung up, whatever is there to be read from it."""
    poll = select.poll()
    poll.register(client.socket, select.POLLRDHUP)
    return bool(poll.poll(0))


def is_served(client: RawClient) -> bool:
    """Return whether a request on this connection is answered."""
    try:
        client.send(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        return client.receive_frame() != b""
    except ConnectionError:
        return False


@contextmanager
def clients(server: ServerProcess, count: int) -> Iterator[list[RawClient]]:
    with ExitStack() as opened:
        yield [opened.enter_context(RawClient(server.address)) for _ in range(count)]


class PeakMemory:
    """The most anonymous memory a server takes while the context lasts, beyond what it had before."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._before = server.rss_anon()
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self.growth = 0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self._look()

    def _look(self) -> None:
        self.growth = max(self.growth, self._server.rss_anon() - self._before)


@contextmanager
def warm_server(data: Path, settings: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """Run a server that has served before, so that what it takes once is not counted."""
    with serving(data, settings) as server:
        with Asking(server.address) as client:
            client.create("warm")
            for _ in range(20):
                client.fetch("warm", client.produce("warm", records(1, 100)).base_offset)
        yield server
        assert server.process.poll() in (None, 0)


# --- lengths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [(1 << 31) - 1, -1, -(1 << 31), LENGTH_MAX + 1])
def test_a_length_that_no_request_has_is_closed_upon_at_once_and_costs_nothing(
    tmp_path: Path, length: int
) -> None:
    with warm_server(tmp_path / "data") as server, undisturbed(server), PeakMemory(server) as memory:
        limit = Limit(10)
        for _ in range(50):
            with RawClient(server.address) as client:
                client.socket.sendall(struct.pack(">i", length) + b"\0\0\0\x12")
                assert client.is_closed()
        assert not limit.passed()
    assert memory.growth < 2 * MIB


def test_a_length_that_a_request_may_have_costs_nothing_before_its_bytes_come(tmp_path: Path) -> None:
    """P2. Fifty clients announce 100 MiB each, and send a little of it."""
    with warm_server(tmp_path / "data") as server, clients(server, 50) as held:
        with undisturbed(server), PeakMemory(server) as memory:
            for client in held:
                client.socket.sendall(struct.pack(">ihhi", LENGTH_MAX, ApiKey.PRODUCE, 9, 1) + bytes(1000))
            until(lambda: sockets(server) > 50, "all are connected")
            time.sleep(0.2)
        assert not any(hung_up(client) for client in held)
    # A buffer that a large request begins in has 64 KiB.
    assert memory.growth < 50 * (64 << 10) + 2 * MIB


def test_client_ids_of_32_kib_are_served_and_cost_no_memory_in_the_end(tmp_path: Path) -> None:
    body = requests(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), 20, client_id="i" * ((1 << 15) - 1))
    with (
        warm_server(tmp_path / "data") as server,
        # Hundreds of megabytes are moved meanwhile, so served at all is what counts here.
        undisturbed(server, SECONDS_MAX),
        PeakMemory(server) as memory,
        clients(server, 20) as held,
    ):
        for client in held:
            client.socket.sendall(body)
        for client in held:
            for _ in range(20):
                assert client.receive(ApiKey.API_VERSIONS, 0).error_code == 0
    assert memory.growth < 32 * MIB


def test_a_partition_that_is_named_ten_thousand_times_is_read_once(tmp_path: Path) -> None:
    """A request of 300 KB must not have gigabytes read, nor sent."""
    with warm_server(tmp_path / "data") as server:
        fill(server, MIB, batch_bytes=256 << 10)
        with undisturbed(server), Asking(server.address) as client:
            request = client.fetch_request(TOPIC, {0: 0})
            request.topics[0].partitions += [FetchPartition(0, max_bytes=1 << 20)] * 10_000
            answers = client.ask(ApiKey.FETCH, request, 11).topics[0].partitions
            assert sum(len(piece) for answer in answers for piece in answer.records) < 2 * MIB
            asked = [ListOffsetsPartition(partition_index=0, timestamp=999)] * 10_000
            offsets = ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=asked)]
            )
            found = client.ask(ApiKey.LIST_OFFSETS, offsets, 5).topics[0].partitions
            assert {answer.error_code for answer in found} == {ErrorCode.INVALID_REQUEST}


# --- slow clients -----------------------------------------------------------------------------------


def test_bytes_that_come_one_at_a_time_hold_nobody_up_and_are_given_up_after_the_stall_time(
    tmp_path: Path,
) -> None:
    stall_seconds = 1.0
    settings = {"cordwood.client.stall.ms": "1000"}
    frame = requests(ApiKey.METADATA, 9, MetadataRequest(topics=None))
    with warm_server(tmp_path / "data", settings) as server, undisturbed(server), clients(server, 20) as slow:
        limit = Limit()
        ended: dict[RawClient, float] = {}
        for number in itertools.takewhile(lambda _: not limit.passed(), itertools.count()):
            for client in slow:
                if client not in ended and hung_up(client):
                    ended[client] = limit.elapsed
                elif client not in ended and number < len(frame) - 1:
                    client.socket.send(frame[number : number + 1])
            if len(ended) == len(slow):
                break
            time.sleep(0.05)
    assert len(ended) == len(slow)
    assert min(ended.values()) >= stall_seconds
    assert in_time(max(ended.values()), stall_seconds + CHECK_SECONDS + PATIENCE_SECONDS)


def test_a_client_that_never_reads_is_cut_off_after_the_stall_time_and_costs_one_response(
    tmp_path: Path,
) -> None:
    settings = {"cordwood.client.stall.ms": "1000", "fetch.max.bytes": str(4 * MIB)}
    with warm_server(tmp_path / "data", settings) as server:
        fill(server, 8 * MIB)
        asked = fetches(server, 50, max_bytes=1 << 30)
        with RawClient(server.address) as client, undisturbed(server), PeakMemory(server) as memory:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.socket.sendall(asked)
            seconds = until(lambda: hung_up(client), "the client is cut off")
    assert seconds >= 1.0
    assert in_time(seconds, 1.0 + CHECK_SECONDS + PATIENCE_SECONDS)
    # The response it does not take; a copy of it may be under way.
    assert memory.growth < 2 * 4 * MIB + 4 * MIB


BUDGET = 8 * MIB
#: What a fetch is given even where there is no memory left.
LEAST = 64 << 10


@pytest.mark.parametrize(
    "limits",
    [
        {"max_bytes": 1 << 30},
        {"max_bytes": 1 << 30, "min_bytes": 1 << 29, "max_wait_ms": 60_000},
    ],
    ids=["answered", "waiting for more than there is"],
)
def test_two_hundred_clients_that_ask_for_everything_and_read_nothing_share_one_budget(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    """P3. And those who do read are served meanwhile."""
    with warm_server(tmp_path / "data", {"queued.max.request.bytes": str(BUDGET)}) as server:
        fill(server, 24 * MIB)
        asked = fetches(server, 5, **limits)
        with clients(server, 200) as hungry:
            with undisturbed(server), PeakMemory(server) as memory:
                for client in hungry:
                    client.socket.sendall(asked)
                time.sleep(2.0)
            assert not any(hung_up(client) for client in hungry)
    print(f"memory grew by {memory.growth / MIB:.1f} MiB at most, with a budget of {BUDGET / MIB:.0f} MiB")
    assert memory.growth < 2 * BUDGET + len(hungry) * LEAST + 16 * MIB


def test_clients_that_do_not_read_do_not_keep_others_from_being_read(tmp_path: Path) -> None:
    """P3. Responses that take up all of the budget, for longer than anybody would wait."""
    with warm_server(tmp_path / "data", {"queued.max.request.bytes": str(BUDGET)}) as server:
        fill(server, 16 * MIB, batch_bytes=MIB)
        asked = fetches(server, 8, max_bytes=1 << 30)
        with clients(server, 20) as hungry, undisturbed(server):
            for client in hungry:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.socket.sendall(asked)
            time.sleep(2 * PATIENCE_SECONDS)
            with clients(server, 5) as late:
                assert all(is_served(client) for client in late)


@pytest.mark.parametrize(("count", "cut_off"), [(40, 1), (200, 2)])
def test_requests_that_are_half_sent_take_no_more_than_the_budget_and_hold_nobody_up(
    tmp_path: Path, count: int, cut_off: int
) -> None:
    """P2, P3. Each claims 100 MiB and sends half of it; the budget is the default of 256 MiB.

    Until some were cut off and others took their places: then memory was given back and taken again.
    """
    half = LENGTH_MAX // 2
    with (
        warm_server(tmp_path / "data") as server,
        clients(server, count) as senders,
        undisturbed(server),
        PeakMemory(server) as memory,
    ):
        left = dict.fromkeys(senders, half)
        for client in senders:
            client.socket.sendall(struct.pack(">i", LENGTH_MAX) + b"\0\0\0\x09\0\0\0\1\xff\xff")
            client.socket.setblocking(False)
        until(lambda: send_more(left) >= cut_off, "some of them are cut off", 60.0)
    growth = memory.growth / MIB
    print(f"{count} clients that half-send {LENGTH_MAX >> 20} MiB: memory grew by {growth:.0f} MiB at most")
    assert memory.growth <= (256 + 64) * MIB


def send_more(left: dict[RawClient, int]) -> int:
    """Send what the server takes of what each client has left; return how many it has cut off."""
    block = bytes(MIB)
    for client, size in left.items():
        with suppress(OSError):
            while size:
                size -= client.socket.send(block[:size])
        left[client] = size
    return sum(hung_up(client) for client in left)


# --- clients that come and go -----------------------------------------------------------------------


def test_idle_clients_are_disconnected_and_waiting_ones_are_not(tmp_path: Path) -> None:
    with warm_server(tmp_path / "data", {"connections.max.idle.ms": "1000"}) as server:
        fill(server, MIB)
        waits = fetches(server, 1, min_bytes=1 << 29, max_wait_ms=4_000)
        with clients(server, 10) as idle, RawClient(server.address) as waiting:
            assert all(is_served(client) for client in idle[:5])
            waiting.socket.sendall(waits)
            seconds = until(lambda: all(map(hung_up, idle)), "idle clients are disconnected")
            assert in_time(seconds, 1.0 + CHECK_SECONDS + PATIENCE_SECONDS)
            assert waiting.receive(ApiKey.FETCH, 11).error_code == 0


def test_no_more_clients_are_let_in_than_max_connections_says(tmp_path: Path) -> None:
    with warm_server(tmp_path / "data", {"max.connections": "10"}) as server:
        sockets_at_rest(server)
        with clients(server, 40) as many:
            served = [client for client in many if is_served(client)]
            assert len(served) == 10
            served[0].close()
            until(lambda: _is_let_in(server), "another is let in")
        sockets_at_rest(server)
        with clients(server, 10) as again:
            assert all(is_served(client) for client in again)


def _is_let_in(server: ServerProcess) -> bool:
    with RawClient(server.address) as client:
        return is_served(client)


def test_a_storm_of_clients_that_connect_and_hang_up_leaves_nothing_behind(tmp_path: Path) -> None:
    """A thousand of them, some with a reset, some within a request, some with requests not answered."""
    with warm_server(tmp_path / "data", {"queued.max.request.bytes": str(BUDGET)}) as server:
        fill(server, MIB)
        asked = fetches(server, 2, max_bytes=1 << 30)
        waits = fetches(server, 2, min_bytes=1 << 29, max_wait_ms=600_000)
        sent = (b"", b"\0\0", struct.pack(">i", 1000) + bytes(100), asked, waits)
        before = sockets_at_rest(server)
        with undisturbed(server), PeakMemory(server) as memory:
            for number in range(1000):
                with RawClient(server.address) as client:
                    if number % 3 == 0:
                        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.socket.sendall(sent[number % len(sent)])
        until(lambda: sockets(server) <= before, "all handles are given back")
    assert memory.growth < 2 * BUDGET + 48 * MIB


def test_who_hangs_up_while_nothing_is_read_from_it_is_forgotten(tmp_path: Path) -> None:
    """So many requests that no more are read, the first of which waits for an hour."""
    with warm_server(tmp_path / "data") as server:
        fill(server, MIB)
        waits = fetches(server, 300, min_bytes=1 << 29, max_wait_ms=3_600_000)
        before = sockets_at_rest(server)
        with clients(server, 20) as gone:
            for client in gone:
                client.socket.sendall(waits)
            until(lambda: sockets(server) >= before + len(gone), "all are connected")
            time.sleep(0.2)
        until(lambda: sockets(server) <= before, "all are forgotten")


def test_who_closes_its_half_within_a_request_is_forgotten(tmp_path: Path) -> None:
    with warm_server(tmp_path / "data") as server:
        before = sockets_at_rest(server)
        with clients(server, 20) as halves:
            for client in halves:
                client.socket.sendall(struct.pack(">i", 1000) + bytes(10))
                client.socket.shutdown(socket.SHUT_WR)
            assert all(client.is_closed() for client in halves)
        until(lambda: sockets(server) <= before, "all are forgotten")


def test_a_flood_without_acknowledgements_is_stored_whole_in_bounded_memory(tmp_path: Path) -> None:
    """As long as its senders stay: of who hangs up, what was not read by then may be dropped."""
    senders, requests_each, records_each, budget = 8, 400, 10, 32 * MIB
    settings = {"queued.max.request.bytes": str(budget)}
    with warm_server(tmp_path / "data", settings) as server, Asking(server.address) as client:
        client.create(TOPIC)
        body = client.produce_request(TOPIC, {0: records(records_each, 2_000)}, acks=0)
        flood = requests(ApiKey.PRODUCE, 9, body, 20)
        with PeakMemory(server) as memory, clients(server, senders) as flooding:
            threads = [
                Thread(target=each.socket.sendall, args=(flood * (requests_each // 20),)) for each in flooding
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SECONDS_MAX)
            sent = senders * requests_each * records_each
            until(lambda: client.offset_at(TOPIC, -1).offset == sent, f"all {sent} records are there")
    assert memory.growth < 2 * budget + 32 * MIB


# --- file handles -----------------------------------------------------------------------------------


@contextmanager
def few_handles(data: Path, settings: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """Run a server that may have 80 files and connections open."""
    with warm_server(data, settings) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (80, 80))
        yield server


def take_all_handles(server: ServerProcess, opened: ExitStack) -> list[RawClient]:
    """Connect until nobody is let in any more; return those who were."""
    let_in = []
    turned_away = 0
    while turned_away < 5:
        client = opened.enter_context(RawClient(server.address))
        if is_served(client):
            let_in.append(client)
        else:
            turned_away += 1
    return let_in


def test_without_file_handles_clients_are_turned_away_until_others_leave(tmp_path: Path) -> None:
    """P4. Those who are connected are served; nobody has to restart anything."""
    with few_handles(tmp_path / "data") as server, undisturbed(server):
        for _ in range(3):
            with ExitStack() as opened:
                let_in = take_all_handles(server, opened)
                assert 10 < len(let_in) < 80
                assert all(is_served(client) for client in let_in)
            until(lambda: _is_let_in(server), "clients are let in again")


def test_clients_that_take_all_file_handles_leave_enough_for_files(tmp_path: Path) -> None:
    """P4. A topic's first record needs files, and so does a full segment: who is connected is served."""
    with (
        few_handles(tmp_path / "data", {"log.segment.bytes": "20000"}) as server,
        Asking(server.address) as client,
    ):
        client.create(TOPIC, partitions=2)
        assert client.produce(TOPIC, records(1, 100)).error_code == 0
        with ExitStack() as opened:
            take_all_handles(server, opened)
            for stored in range(8):
                assert client.produce(TOPIC, records(1, 5000)).base_offset == stored + 1
            assert client.produce(TOPIC, records(1, 100), partition=1).error_code == 0
            assert client.fetch(TOPIC).high_watermark == 9
        until(lambda: _is_let_in(server), "clients are let in again")
        assert client.produce(TOPIC, records(1, 100), partition=1).base_offset == 1
        assert server.stop() == 0


# --- what is not as it should be yet ----------------------------------------------------------------


def test_a_request_of_many_small_elements_takes_neither_time_nor_memory_of_others(tmp_path: Path) -> None:
    """P1. Two bytes are a topic's name; a request of one megabyte has half a million of them."""
    count = 500_000
    head = struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\0"
    frame = head + varint(count + 1) + b"\x01\0" * count + bytes(4)
    with (
        warm_server(tmp_path / "data") as server,
        undisturbed(server),
        PeakMemory(server) as memory,
        RawClient(server.address) as client,
    ):
        client.socket.sendall(struct.pack(">i", len(frame)) + frame)
        client.receive_frame()
    assert memory.growth < 128 * MIB


def test_a_flood_that_is_larger_than_the_budget_is_slowed_down_and_not_cut_off(tmp_path: Path) -> None:
    settings = {"queued.max.request.bytes": str(BUDGET)}
    with (
        warm_server(tmp_path / "data", settings) as server,
        Asking(server.address) as client,
        clients(server, 8) as senders,
    ):
        client.create(TOPIC)
        flood = requests(ApiKey.PRODUCE, 9, client.produce_request(TOPIC, {0: records(10, 2_000)}), 400)
        threads = [Thread(target=_offer, args=(sender, flood)) for sender in senders]
        for thread in threads:
            thread.start()
        for sender in senders:
            for _ in range(400):
                assert sender.receive_frame() != b""
        for thread in threads:
            thread.join(SECONDS_MAX)


def _offer(client: RawClient, data: bytes) -> None:
    with suppress(ConnectionError):
        client.socket.sendall(data)


def test_requests_of_clients_that_hung_up_count_until_they_are_dealt_with(tmp_path: Path) -> None:
    """P3. Batches that take long to refuse, from clients that do not wait for it."""
    with warm_server(tmp_path / "data", {"queued.max.request.bytes": str(BUDGET)}) as server:
        with Asking(server.address) as client:
            client.create(TOPIC)
            body = client.produce_request(TOPIC, {0: bomb(Compression.LZ4)})
        frame = requests(ApiKey.PRODUCE, 9, body, 2)
        with PeakMemory(server) as memory:
            for _ in range(200):
                with RawClient(server.address) as client:
                    client.socket.settimeout(0.1)
                    # A quick server may have refused the first request and hung up by then.
                    with suppress(TimeoutError, ConnectionError):
                        client.socket.sendall(frame)
    # And what a batch is decompressed to, while the one before is given back. Without the limit: 560 MB.
    assert memory.growth < 2 * BUDGET + 256 * MIB
