"""One client: answered in order, held to its limits, and given up without a byte left behind (P1, P3)."""

from __future__ import annotations

import asyncio
import gc
import itertools
import select
import socket
import struct
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clocks import ManualClock

from cordwood.errors import UnsupportedVersion
from cordwood.protocol.apis import APIS, ApiKey, api_versions_response, encode_request
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.frames import SMALL
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataResponse
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from cordwood.protocol.wire import NULL_ID
from cordwood.server.connections import connection as module
from cordwood.server.connections.budget import Budget
from cordwood.server.connections.connection import REQUESTS_MAX, UNSENT_MAX, Connection
from cordwood.server.connections.exchange import Exchange

SIZE_MAX = 4 << 20
LIMIT = 1 << 20
MIB = 1 << 20
SECOND = 1_000_000_000
IDLE_NS, STALL_NS = 600 * SECOND, 30 * SECOND
EVERYTHING = 1 << 40


class FakeTransport(asyncio.Transport):
    """A socket as asyncio and uvloop show it, whose peer reads and sends when the test says so.

    ``takes`` is how many bytes the socket takes before they pile up here. What ends a connection is told
    to the protocol later, by `lose`, as the loops do.
    """

    def __init__(self, takes: int = EVERYTHING) -> None:
        super().__init__()
        self.protocol: Connection
        self.takes = takes
        self.taken = bytearray()
        self.arriving = bytearray()
        self.socket: socket.socket | None = None
        self.aborted = self.closing = self.reading_paused = self.lost = False
        self._unsent = bytearray()
        self._high = self._low = 0
        self._writing_paused = False

    # What the connection calls.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {"sockname": ("127.0.0.1", 9092), "peername": ("127.0.0.1", 50_000), "socket": self.socket}
        return known.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert low is not None
        self._high, self._low = high, low

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        assert not self.lost, "a write to a connection that is gone"
        if self.aborted:
            return
        self._unsent += b"".join(list_of_data)
        self._move(self.takes)
        if len(self._unsent) > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()

    def pause_reading(self) -> None:
        assert not self.reading_paused, "paused twice"
        assert not self.closing
        self.reading_paused = True

    def resume_reading(self) -> None:
        assert self.reading_paused, "resumed without a pause"
        assert not self.closing
        self.reading_paused = False

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = self.closing = True

    def close(self) -> None:
        self.closing = True

    # What the peer and the loop do.

    def receive(self, data: bytes) -> None:
        """Let *data* arrive, as far as it is read."""
        self.arriving += data
        self.read()

    def read(self) -> None:
        while self.arriving and not self.reading_paused and not self.closing:
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(self.arriving))
            buffer[:count] = self.arriving[:count]
            del buffer, self.arriving[:count]
            self.protocol.buffer_updated(count)

    def drain(self, count: int = EVERYTHING) -> None:
        """Let the socket take so many more of the bytes that pile up here."""
        if not self.aborted:
            self._move(count)
            if self._writing_paused and len(self._unsent) <= self._low:
                self._writing_paused = False
                self.protocol.resume_writing()

    def lose(self) -> None:
        """Tell the connection that it is gone."""
        self.closing = self.lost = True
        self.protocol.connection_lost(None)

    def _move(self, count: int) -> None:
        count = min(count, len(self._unsent))
        self.taken += self._unsent[:count]
        del self._unsent[:count]
        self.takes -= min(count, self.takes)

    def answered(self) -> list[int]:
        """Return the correlation ids of the answers that reached the peer whole."""
        found, position = [], 0
        while position + 8 <= len(self.taken):
            size, number = struct.unpack_from(">ii", self.taken, position)
            if position + 4 + size > len(self.taken):
                break
            found.append(number)
            position += 4 + size
        return found


class FakeService:
    """Notes what is started, and answers at once or when it is told to."""

    def __init__(self) -> None:
        self.started: list[Exchange] = []
        self.at_once = False
        self.raises: Exception | None = None

    def handle(self, exchange: Exchange) -> None:
        self.started.append(exchange)
        if self.raises is not None:
            raise self.raises
        if self.at_once:
            exchange.answer(body_for(exchange))

    @property
    def numbers(self) -> list[int]:
        return [exchange.request.correlation_id for exchange in self.started]

    def answer(self, number: int, size: int = 0) -> None:
        (exchange,) = (each for each in self.started if each.request.correlation_id == number)
        exchange.answer(body_for(exchange, size))


def body_for(exchange: Exchange, size: int = 0) -> Any:
    match exchange.request.api_key:
        case ApiKey.PRODUCE:
            return ProduceResponse([])
        case ApiKey.FETCH:
            part = FetchPartitionResponse(0, records=[bytes(size)])
            return FetchResponse(0, 0, 0, [FetchTopicResponse("orders", NULL_ID, [part])])
        case ApiKey.API_VERSIONS:
            error = ErrorCode.UNSUPPORTED_VERSION if isinstance(exchange.request.body, Exception) else 0
            return api_versions_response([ApiKey.API_VERSIONS], error)
        case _:
            return MetadataResponse()


def request(api_key: ApiKey, number: int, size: int = 0) -> bytes:
    """Return the bytes of a request; a produce request of about *size* bytes."""
    version = APIS[api_key].versions.last
    body: Any
    match api_key:
        case ApiKey.PRODUCE:
            topics = [ProduceTopic("", NULL_ID, [ProducePartition(0, memoryview(bytearray(size)))])]
            body = ProduceRequest(None, -1, 1000, topics)
        case ApiKey.FETCH:
            body = FetchRequest(-1, 500, 1, 1 << 20, 0, 0, -1, [], [], "")
        case ApiKey.API_VERSIONS:
            body = ApiVersionsRequest()
        case _:
            body = MetadataRequest(topics=None)
    return b"".join(encode_request(api_key, version, number, "client", body))


class Client:
    """A connection with a peer at its other end."""

    def __init__(
        self,
        budget: Budget | None = None,
        clock: ManualClock | None = None,
        takes: int = EVERYTHING,
        size_max: int = SIZE_MAX,
    ) -> None:
        self.budget = budget or Budget(LIMIT)
        self.clock = clock or ManualClock()
        self.service = FakeService()
        self.connections: set[Connection] = set()
        self.connection = Connection(
            self.service,
            self.budget,
            self.clock,
            bytearray(4 * SMALL),
            size_max,
            "PLAINTEXT",
            self.connections,
        )
        self.transport = FakeTransport(takes)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self._numbers = itertools.count(1)

    def send(self, *api_keys: ApiKey, size: int = 0) -> list[int]:
        """Send requests in one go; return their correlation ids."""
        numbers = [next(self._numbers) for _ in api_keys]
        self.transport.receive(
            b"".join(request(key, n, size) for key, n in zip(api_keys, numbers, strict=True))
        )
        return numbers

    def paused(self) -> bool:
        """Return whether nothing is read from the client for now."""
        return self.transport.reading_paused

    def busy(self) -> bool:
        """Return whether the client is owed an answer."""
        return self.connection.busy

    def cut_off(self) -> bool:
        """Return whether the connection was closed on the client."""
        return self.transport.aborted

    def check_time(self) -> None:
        self.connection.check_time(self.clock.monotonic_ns(), IDLE_NS, STALL_NS)


@pytest.fixture
def client() -> Client:
    return Client()


PRODUCE, FETCH, METADATA, VERSIONS = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS


# --- Order ------------------------------------------------------------------------------------------


def test_answers_leave_in_the_order_of_the_requests_however_they_come(client: Client) -> None:
    numbers = client.send(*[PRODUCE] * 5)
    assert client.service.numbers == numbers
    for number in (5, 3, 2, 4):
        client.service.answer(number)
        assert client.transport.answered() == []
    client.service.answer(1)
    assert client.transport.answered() == numbers
    assert client.budget.used == 0


def test_produce_runs_beside_produce_and_anything_else_alone(client: Client) -> None:
    client.send(PRODUCE, PRODUCE, FETCH, PRODUCE, PRODUCE, METADATA, FETCH)
    started = client.service.numbers
    assert started == [1, 2]
    client.service.answer(1)
    assert client.service.numbers == [1, 2], "the fetch waits for the second one too"
    client.service.answer(2)
    assert client.service.numbers == [1, 2, 3]
    client.service.answer(3)
    assert client.service.numbers == [1, 2, 3, 4, 5]
    client.service.answer(5)
    client.service.answer(4)
    assert client.service.numbers == [1, 2, 3, 4, 5, 6]
    client.service.answer(6)
    client.service.answer(7)
    assert client.transport.answered() == [1, 2, 3, 4, 5, 6, 7]


def test_a_produce_request_that_comes_late_joins_those_that_run(client: Client) -> None:
    client.send(PRODUCE)
    client.send(PRODUCE)
    assert client.service.numbers == [1, 2]


def test_a_request_in_two_reads_is_one_request(client: Client) -> None:
    data = request(FETCH, 1) + request(FETCH, 2)
    for at in range(len(data)):
        client = Client()
        client.service.at_once = True
        client.transport.receive(data[:at])
        client.transport.receive(data[at:])
        assert client.transport.answered() == [1, 2]
        assert client.budget.used == 0


@pytest.mark.parametrize("api_key", [VERSIONS, PRODUCE, FETCH])
def test_a_thousand_requests_that_are_answered_at_once_do_not_go_deep(
    client: Client, api_key: ApiKey
) -> None:
    """Each answer starts the next request: done by calls within calls, the stack would end first."""
    client.service.at_once = True
    numbers = client.send(*[api_key] * 1000)
    assert client.transport.answered() == numbers
    assert not client.cut_off()
    assert client.budget.used == 0


def test_an_exchange_without_an_answer_keeps_its_place_and_sends_nothing(client: Client) -> None:
    """As acks=0 wants it."""
    client.send(PRODUCE, PRODUCE, FETCH)
    client.service.answer(2)
    client.service.started[0].answer(None)
    assert client.transport.answered() == [2]
    assert client.service.numbers == [1, 2, 3]


# --- What is no request -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", SIZE_MAX + 1),
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, PRODUCE, 2, 1, -1),
        struct.pack(">ihhih", 10, METADATA, 5, 1, -1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_costs_the_connection_and_leaves_nothing(client: Client, data: bytes) -> None:
    client.transport.receive(data)
    assert client.cut_off()
    assert client.service.started == []
    client.transport.lose()
    assert client.budget.used == 0
    assert client.connections == set()


def test_what_comes_behind_it_in_the_same_read_is_not_begun(client: Client) -> None:
    client.transport.receive(request(PRODUCE, 1) + struct.pack(">i", 3) + b"abc" + request(PRODUCE, 2))
    assert client.cut_off()
    assert client.service.numbers == [1]


def test_only_produce_may_be_large(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batches stay as they are; anything else is decoded, into several times its size."""
    monkeypatch.setattr(module, "OTHER_BYTES_MAX", 10_000)
    client.send(PRODUCE, size=10_001)
    assert client.service.numbers == [1]
    client.transport.receive(struct.pack(">ihhih", 10_001, METADATA, 5, 2, -1) + bytes(9_991))
    assert client.cut_off()
    assert client.service.numbers == [1]


def test_who_asks_for_versions_in_one_we_do_not_know_is_handed_on_to_be_told(client: Client) -> None:
    client.transport.receive(struct.pack(">ihhih", 10, VERSIONS, 99, 7, -1))
    (exchange,) = client.service.started
    assert isinstance(exchange.request.body, UnsupportedVersion)
    client.service.answer(7)
    assert bytes(client.transport.taken[8:10]) == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)


def test_a_handler_that_raises_costs_its_client_the_connection(client: Client) -> None:
    client.service.raises = RuntimeError("a bug")
    client.send(METADATA)
    assert client.cut_off()
    client.transport.lose()
    assert client.budget.used == 0


def test_an_answer_that_cannot_be_encoded_costs_the_connection(client: Client) -> None:
    client.send(PRODUCE, PRODUCE)
    client.service.started[0].answer("no response")
    assert client.cut_off()
    client.transport.lose()
    client.service.answer(2)
    assert client.budget.used == 0


def test_an_exchange_that_fails_closes_the_connection(client: Client) -> None:
    client.send(PRODUCE)
    client.service.started[0].fail("no answer would be true")
    assert client.cut_off()


# --- Limits -----------------------------------------------------------------------------------------


def test_reading_pauses_at_so_many_unanswered_requests_and_goes_on_below(client: Client) -> None:
    for _ in range(REQUESTS_MAX - 1):
        client.send(PRODUCE)
    assert not client.paused()
    client.send(PRODUCE)
    assert client.paused()
    client.send(FETCH)
    assert len(client.service.started) == REQUESTS_MAX
    assert client.transport.arriving
    client.service.answer(1)
    assert not client.paused()
    client.transport.read()
    assert not client.transport.arriving


def test_reading_pauses_at_so_many_unanswered_bytes_and_goes_on_below(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 100_000)
    client.send(PRODUCE, size=50_000)
    assert not client.paused()
    client.send(PRODUCE, size=50_000)
    assert client.paused()
    client.service.answer(1)
    assert not client.paused()


def test_where_memory_is_short_all_pause_and_go_on_when_there_is_room() -> None:
    budget = Budget(LIMIT)
    hungry, other, late = Client(budget), Client(budget), Client(budget)
    for _ in range(3):
        first, second = hungry.send(PRODUCE, PRODUCE, size=LIMIT // 2)
        assert hungry.paused()
        assert not other.paused(), "it has read nothing since"
        other.send(PRODUCE)
        late.send(PRODUCE)
        assert other.paused()
        assert late.paused()
        hungry.service.answer(first)
        for each in (hungry, other, late):
            assert not each.paused()
        hungry.service.answer(second)


def test_a_connection_that_is_lost_makes_room_for_others() -> None:
    budget = Budget(LIMIT)
    hungry, other = Client(budget), Client(budget)
    hungry.send(PRODUCE, size=LIMIT)
    other.send(PRODUCE)
    assert other.paused()
    hungry.transport.lose()
    assert not other.paused()


def test_requests_that_have_begun_are_read_to_their_ends_one_after_the_other_where_memory_is_short() -> None:
    """What they hold is given back once they are complete: two that wait for each other would be stuck."""
    budget = Budget(LIMIT)
    clients = [Client(budget) for _ in range(2)]
    sizes = [LIMIT, LIMIT - 100_000]
    for client, size in zip(clients, sizes, strict=True):
        client.transport.receive(request(PRODUCE, 1, size)[: LIMIT - 200_000])
    assert budget.exhausted
    for client, size in zip(clients, sizes, strict=True):
        client.transport.receive(request(PRODUCE, 1, size)[LIMIT - 200_000 :])
    assert any(client.paused() for client in clients), "not all of them at once"
    for _ in clients:
        for client in clients:
            client.transport.read()
            if client.service.numbers and client.busy():
                client.service.answer(1)
    assert [client.service.numbers for client in clients] == [[1], [1]]
    assert budget.used == budget.unfinished == 0
    assert not budget.short


def test_small_requests_are_served_while_large_ones_wait_for_memory() -> None:
    """P3. Large ones share half of the budget, so that there is some for everybody else."""
    budget = Budget(64 * MIB)
    large = [Client(budget, size_max=100 * MIB) for _ in range(20)]
    for client in large:
        client.transport.receive(struct.pack(">i", 30 * MIB) + bytes(16 * MIB))
    assert budget.unfinished <= budget.limit
    assert sum(client.paused() for client in large) > 10
    for _ in range(20):
        small = Client(budget)
        small.service.at_once = True
        small.send(PRODUCE, size=100_000)
        small.send(METADATA)
        assert small.service.numbers == [1, 2]
        assert not small.paused()


def test_who_lets_a_request_stand_while_others_wait_for_its_memory_is_cut_off_in_seconds() -> None:
    """And then those who wait go on: in the end everybody who does send is served."""
    budget, clock = Budget(64 * MIB), ManualClock()
    stuck = [Client(budget, clock, size_max=100 * MIB) for _ in range(4)]
    for client in stuck:
        client.transport.receive(struct.pack(">i", 60 * MIB) + bytes(20 * MIB))
    good = Client(budget, clock, size_max=100 * MIB)
    data = request(PRODUCE, 1, 50 * MIB)
    good.transport.receive(data)
    assert good.paused()
    seconds = 0
    while not good.service.numbers:
        assert seconds < 30
        clock.advance(1000)
        seconds += 1
        for client in (*stuck, good):
            client.check_time()
            if client.cut_off() and not client.transport.lost:
                client.transport.lose()
            elif not client.transport.lost:
                client.transport.read()
        assert budget.used - good.connection._request_bytes <= budget.limit + MIB
    assert not good.cut_off()
    assert any(client.cut_off() for client in stuck)
    print(f"served after {seconds} s")


def test_who_lets_a_request_stand_is_given_its_time_while_nobody_waits_for_memory() -> None:
    client = Client(Budget(64 * MIB), size_max=100 * MIB)
    client.transport.receive(struct.pack(">i", 60 * MIB) + bytes(20 * MIB))
    for _ in range(20):
        client.clock.advance(1000)
        client.check_time()
    assert not client.cut_off()


def test_a_connection_that_is_lost_holds_nothing_of_a_request_that_had_begun() -> None:
    """Its memory goes back at once: Python would find it later, with the rings that it is part of."""
    client = Client(Budget(64 * MIB), size_max=100 * MIB)
    client.transport.receive(struct.pack(">i", 60 * MIB) + bytes(20 * MIB))
    frame = weakref.ref(client.connection._inbox._frame)
    gc.disable()
    try:
        client.transport.lose()
        assert frame() is None
    finally:
        gc.enable()
    assert client.budget.used == 0


def test_requests_that_never_end_are_given_up_before_they_take_twice_the_memory() -> None:
    budget = Budget(LIMIT)
    clients = [Client(budget) for _ in range(8)]
    for client in clients:
        client.transport.receive(struct.pack(">i", SIZE_MAX) + bytes(LIMIT // 2))
    aborted = [client for client in clients if client.cut_off()]
    assert 0 < len(aborted) < len(clients)
    for client in aborted:
        client.transport.lose()
    assert budget.used <= 2 * LIMIT
    assert not clients[0].cut_off(), "who came first is not the one to go"


def test_nothing_more_is_made_for_a_client_that_does_not_read() -> None:
    client = Client(takes=1000)
    client.send(FETCH, FETCH, PRODUCE)
    client.service.answer(1, size=UNSENT_MAX + 2000)
    assert client.transport.get_write_buffer_size() > UNSENT_MAX
    assert client.service.numbers == [1], "the second fetch waits"
    assert client.paused()
    client.transport.drain(1000)
    assert client.service.numbers == [1]
    client.transport.drain()
    assert client.service.numbers == [1, 2]
    assert not client.paused()
    client.service.answer(2)
    client.service.answer(3)
    client.transport.drain()
    assert client.transport.answered() == [1, 2, 3]
    assert client.budget.used == 0


def test_a_response_that_the_socket_does_not_take_counts_until_it_does() -> None:
    client = Client(takes=0)
    client.send(FETCH)
    client.service.answer(1, size=500_000)
    assert 500_000 <= client.budget.used <= 501_000
    client.transport.drain(400_000)
    assert client.budget.used >= 500_000, "until all of it is taken, none of it counts as taken"
    client.transport.drain()
    assert client.budget.used == 0


def test_produce_goes_on_beside_a_response_that_is_not_taken() -> None:
    """What it stores costs no memory here, and another thread of the client may wait for its answer."""
    client = Client(takes=0)
    client.send(FETCH, PRODUCE, PRODUCE, FETCH)
    client.service.answer(1, size=UNSENT_MAX + 1)
    assert client.service.numbers == [1, 2, 3]
    unsent = client.transport.get_write_buffer_size()
    client.service.answer(3)
    client.service.answer(2)
    assert client.transport.get_write_buffer_size() == unsent, "their answers wait here, in their turn"
    client.transport.takes = EVERYTHING
    client.transport.drain()
    assert client.transport.answered() == [1, 2, 3]
    assert client.service.numbers == [1, 2, 3, 4]


# --- Being lost -------------------------------------------------------------------------------------


def test_who_waits_for_a_client_that_is_gone_is_told_and_nobody_else(client: Client) -> None:
    client.send(PRODUCE, PRODUCE, PRODUCE, FETCH)
    told: list[int] = []

    def telling(number: int) -> Callable[[], None]:
        return lambda: told.append(number)

    for exchange in client.service.started:
        exchange.on_lost = telling(exchange.request.correlation_id)
    client.service.answer(2)
    client.transport.lose()
    assert told == [1, 3], "the second was answered, the fourth never begun"
    for number in (1, 3):
        client.service.answer(number)
    assert client.transport.answered() == []
    assert client.service.numbers == [1, 2, 3]
    assert not client.busy()
    assert client.budget.used == 0
    assert client.connections == set()


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="this system does not tell")
def test_a_client_that_hangs_up_while_it_is_not_read_from_is_noticed() -> None:
    """Nobody reads the end of a connection that is paused, and its requests would be held for nobody."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = Client(takes=0)
        client.transport.socket = ours
        client.send(FETCH)
        client.service.answer(1, size=500_000)
        assert client.paused()
        client.check_time()
        assert not client.cut_off()
        theirs.close()
        client.check_time()
        assert client.cut_off()


def test_an_answer_given_while_the_connection_is_aborted_goes_nowhere(client: Client) -> None:
    client.send(PRODUCE, PRODUCE)
    client.connection.refuse("enough")
    client.service.answer(1)
    client.service.answer(2)
    assert client.transport.answered() == []
    client.transport.lose()
    assert client.budget.used == 0


# --- Time -------------------------------------------------------------------------------------------


def test_a_client_that_asks_for_nothing_is_disconnected_when_it_was_idle_for_so_long(client: Client) -> None:
    client.service.at_once = True
    client.clock.advance(599_000)
    client.send(METADATA)
    client.clock.advance(599_999)
    client.check_time()
    assert not client.cut_off()
    client.clock.advance(1)
    client.check_time()
    assert client.cut_off()


def test_a_client_that_waits_for_its_answer_is_not_idle_and_after_it_begins_anew(client: Client) -> None:
    client.send(FETCH)
    client.clock.advance(10_000_000)
    client.check_time()
    assert not client.cut_off()
    client.service.answer(1)
    client.clock.advance(599_999)
    client.check_time()
    assert not client.cut_off()
    client.clock.advance(1)
    client.check_time()
    assert client.cut_off()


def test_a_request_left_half_sent_is_given_up(client: Client) -> None:
    client.service.at_once = True
    client.transport.receive(request(METADATA, 1) + request(METADATA, 2)[:10])
    client.clock.advance(29_999)
    client.check_time()
    assert not client.cut_off()
    client.clock.advance(1)
    client.check_time()
    assert client.cut_off()


def test_one_byte_a_second_does_not_keep_a_request_alive(client: Client) -> None:
    data = request(PRODUCE, 1, 5_000)
    seconds = 0
    while not client.cut_off():
        client.transport.receive(data[seconds : seconds + 1])
        client.clock.advance(1_000)
        client.check_time()
        seconds += 1
    assert seconds == 30


def test_a_slow_line_is_not_a_client_that_stalls(client: Client) -> None:
    """Two megabytes at 8 KiB a second take four minutes, and are a request like any other."""
    data = request(PRODUCE, 1, 2 << 20)
    for at in range(0, len(data), 8192):
        client.transport.receive(data[at : at + 8192])
        client.clock.advance(1_000)
        client.check_time()
        assert not client.cut_off()
    assert client.service.numbers == [1]


def test_a_client_that_is_always_in_the_middle_of_a_request_is_not_one_that_stalls(client: Client) -> None:
    """Whoever sends one request after the other may never leave a read at the end of one."""
    client.service.at_once = True
    data = b"".join(request(METADATA, number) for number in range(1, 200))
    step = len(request(METADATA, 1)) + 1
    for at in range(0, len(data) - step, step):
        client.transport.receive(data[at : at + step])
        client.clock.advance(10_000)
        client.check_time()
        assert not client.cut_off()


def test_time_in_which_we_do_not_read_is_not_held_against_the_client() -> None:
    client = Client(takes=0)
    client.send(FETCH)
    client.transport.receive(request(METADATA, 2)[:10])
    client.service.answer(1, size=UNSENT_MAX + 1)
    assert client.paused()
    client.clock.advance(29_000)
    client.transport.drain()
    client.clock.advance(29_000)
    client.check_time()
    assert not client.cut_off()
    client.clock.advance(1_000)
    client.check_time()
    assert client.cut_off()


def test_a_client_that_does_not_take_its_responses_is_disconnected() -> None:
    client = Client(takes=0)
    client.send(FETCH)
    client.service.answer(1, size=500_000)
    client.clock.advance(29_999)
    client.check_time()
    assert not client.cut_off()
    client.clock.advance(1)
    client.check_time()
    assert client.cut_off()
    client.transport.lose()
    assert client.budget.used == 0


def test_a_client_that_takes_its_responses_slowly_but_steadily_stays() -> None:
    client = Client(takes=0)
    client.send(FETCH)
    client.service.answer(1, size=1_000_000)
    for _ in range(120):
        client.transport.drain(8192)
        client.clock.advance(1_000)
        client.check_time()
        assert not client.cut_off()
    client.clock.advance(60_000)
    client.check_time()
    assert client.cut_off(), "and goes when it stops"


# --- Ending -----------------------------------------------------------------------------------------


def test_draining_answers_what_was_asked_and_takes_no_more(client: Client) -> None:
    client.send(PRODUCE, FETCH)
    client.connection.drain()
    client.send(METADATA)
    assert client.paused()
    assert client.busy()
    client.service.answer(1)
    assert client.service.numbers == [1, 2], "what had come before is begun and answered"
    client.service.answer(2)
    assert not client.busy()
    assert client.transport.answered() == [1, 2]
    client.connection.close()
    assert client.transport.is_closing()
    assert not client.cut_off()
    assert client.service.numbers == [1, 2]


def test_a_request_in_the_same_read_as_the_end_is_dropped(client: Client) -> None:
    client.connection._draining = True
    client.transport.receive(request(METADATA, 1))
    assert client.service.started == []
    assert client.budget.used == 0


def test_an_end_on_a_connection_that_is_gone_does_nothing(client: Client) -> None:
    client.transport.lose()
    client.connection.drain()
    client.connection.close()
    client.connection.refuse("gone")
    client.check_time()
    assert not client.busy()
    assert not client.cut_off()


# --- Any sequence -----------------------------------------------------------------------------------

numbers = st.integers(0, 3)
steps = st.lists(
    st.tuples(st.just("send"), numbers, st.sampled_from([PRODUCE, PRODUCE, FETCH, METADATA]), numbers)
    | st.tuples(st.just("begin"), numbers, st.integers(1, 300_000), st.just(0))
    | st.tuples(st.just("answer"), numbers, numbers, st.sampled_from([0, 0, 100_000, 400_000]))
    | st.tuples(st.just("drain"), numbers, st.sampled_from([1000, 100_000, EVERYTHING]), st.just(0))
    | st.tuples(st.just("lose"), numbers, st.just(0), st.just(0))
    | st.tuples(st.just("wait"), numbers, st.sampled_from([1_000, 31_000, 601_000]), st.just(0))
    | st.tuples(st.just("end"), numbers, st.sampled_from(["drain", "close", "refuse"]), st.just(0)),
    max_size=40,
)
SIZES = (0, 10_000, 100_000, 600_000)


class Driven:
    """A client in a random sequence: the bytes it still has to send, and what it is owed."""

    def __init__(self, budget: Budget, clock: ManualClock) -> None:
        self.client = Client(budget, clock, takes=50_000)
        self.asked: list[int] = []
        self.open: list[Exchange] = []
        self.rest = b""

    def step(self, kind: str, what: Any, size: int) -> None:
        client, transport = self.client, self.client.transport
        if transport.aborted:
            if not transport.lost:
                transport.lose()
            return
        match kind:
            case "send":
                number = len(self.asked) + 1
                self.asked.append(number)
                self.rest, data = b"", self.rest + request(what, number, SIZES[size])
                transport.receive(data)
            case "begin" if not self.rest:
                number = len(self.asked) + 1
                self.asked.append(number)
                data = request(PRODUCE, number, 300_000)
                self.rest = data[what:]
                transport.receive(data[:what])
            case "answer" if self.open:
                exchange = self.open.pop(what % len(self.open))
                exchange.answer(body_for(exchange, size))
            case "drain":
                transport.drain(what)
            case "lose" if not transport.lost:
                transport.lose()
            case "wait":
                client.clock.advance(what)
                client.check_time()
            case "end" if what == "refuse":
                client.connection.refuse("told to")
            case "end":
                getattr(client.connection, what)()
        if not transport.lost:
            transport.read()

    def take_started(self) -> None:
        self.open += self.client.service.started
        self.client.service.started.clear()

    @property
    def alone(self) -> bool:
        """Whether nothing but a fetch or the like runs, or nothing but produce."""
        kinds = [exchange.request.api_key for exchange in self.client.connection._running]
        return len(kinds) <= 1 or set(kinds) == {PRODUCE}


@settings(max_examples=150, deadline=None)
@given(steps)
def test_whatever_happens_the_memory_is_given_back_to_the_byte(
    steps: list[tuple[str, int, Any, int]],
) -> None:
    """Four clients with one budget, doing anything in any order; each is lost in the end, or was before."""
    budget, clock = Budget(LIMIT), ManualClock()
    clients = [Driven(budget, clock) for _ in range(4)]
    for kind, which, what, size in steps:
        driven = clients[which]
        if not driven.client.transport.lost:
            driven.step(kind, what, size)
            # A budget that has room again may have let any of them go on reading.
            for each in clients:
                if not each.client.transport.lost:
                    each.client.transport.read()
        for each in clients:
            each.take_started()
            answered = each.client.transport.answered()
            assert answered == each.asked[: len(answered)]
            assert each.alone
        assert budget.used >= 0
    for each in clients:
        if not each.client.transport.lost:
            each.client.transport.lose()
    assert budget.used == 0
    for each in clients:
        for exchange in each.open:
            exchange.answer(body_for(exchange, 100))
        assert each.client.connections == set()
    assert budget.used == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([PRODUCE, FETCH, METADATA]), numbers, st.integers(0, 2)), max_size=30)
)
def test_clients_that_are_answered_and_read_are_served_to_the_end(
    asked: list[tuple[ApiKey, int, int]],
) -> None:
    """Nobody is forgotten in a pause: with answers given and taken, all that was asked is answered."""
    budget, clock = Budget(LIMIT), ManualClock()
    clients = [Driven(budget, clock) for _ in range(4)]
    for key, which, size in asked:
        clients[which].step("send", key, size)
    for _ in range(100 * len(asked)):
        for each in clients:
            each.take_started()
            for exchange in each.open:
                exchange.answer(body_for(exchange, 200_000))
            each.open.clear()
            each.client.transport.drain()
            each.client.transport.read()
    for each in clients:
        assert each.client.transport.answered() == each.asked
    assert budget.used == 0
