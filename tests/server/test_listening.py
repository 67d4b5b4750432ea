"""Where the server listens, for whom, and what becomes of clients it has no room for (P4)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
from broker.nodes import node_on, open_on
from support.patience import SECONDS_MAX
from support.serving import RawClient

from cordwood.config.listeners import Endpoint
from cordwood.config.loading import BrokerConfig, load_broker_config
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import ListenFailed
from cordwood.host import Host
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.server import server as server_module
from cordwood.server.broker import Broker
from cordwood.server.connections import listening
from cordwood.server.connections.listening import Acceptor, listen
from cordwood.server.server import Server

LOOPBACK = {"127.0.0.1", "::1"}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes what a test enters into it."""
    with ExitStack() as stack:
        yield stack


def listening_on(opened: ExitStack, endpoint: Endpoint) -> list[socket.socket]:
    return [opened.enter_context(made) for made in listen(endpoint)]


def names_of(sockets: list[socket.socket]) -> list[tuple[str, int]]:
    return [made.getsockname()[:2] for made in sockets]


def greets(client: RawClient) -> bool:
    """Ask for versions; return whether there was an answer."""
    try:
        client.send(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
        return client.receive_frame() != b""
    except ConnectionError:
        return False


# --- Addresses --------------------------------------------------------------------------------------


@needs_ipv6
def test_localhost_is_both_loopback_addresses_at_one_port_whatever_the_hosts_file_says(
    opened: ExitStack,
) -> None:
    """Some clients take localhost for IPv6, and many a container knows it by IPv4 alone."""
    names = names_of(listening_on(opened, Endpoint("localhost", 0)))
    assert [host for host, _ in names] == ["127.0.0.1", "::1"]
    assert len({port for _, port in names}) == 1
    assert names[0][1] != 0


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_an_address_is_that_address_alone(opened: ExitStack, host: str) -> None:
    assert [name for name, _ in names_of(listening_on(opened, Endpoint(host, 0)))] == [host]


def test_no_host_is_every_interface(opened: ExitStack) -> None:
    hosts = {host for host, _ in names_of(listening_on(opened, Endpoint.parse(":0")))}
    assert hosts == {"0.0.0.0", "::"} if has_ipv6() else {"0.0.0.0"}


def test_unless_told_otherwise_only_this_machine_can_connect() -> None:
    assert [endpoint.host for endpoint in BrokerConfig().listeners.each] == ["localhost"]
    with Broker() as broker:
        assert broker._server is not None
        assert broker._server._acceptor is not None
        sockets = [made for made, _ in broker._server._acceptor._sockets]
        assert {host for host, _ in names_of(sockets)} <= LOOPBACK


@needs_ipv6
def test_a_broker_is_reached_at_both_loopback_addresses() -> None:
    with Broker() as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        for host in LOOPBACK:
            with RawClient((host, port)) as client:
                assert greets(client)


def test_a_port_that_is_taken_is_said_with_its_address(opened: ExitStack) -> None:
    (taken,) = listening_on(opened, Endpoint("127.0.0.1", 0))
    port = taken.getsockname()[1]
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(
            ListenFailed, match=f"^cannot listen on {host}:{port}: Address already in use$"
        ) as caught:
            listen(Endpoint(host, port))
        assert caught.value.endpoint == Endpoint(host, port)


@needs_ipv6
def test_a_port_that_is_taken_at_one_of_the_addresses_is_left_alone_at_the_others(opened: ExitStack) -> None:
    (taken,) = listening_on(opened, Endpoint("::1", 0))
    port = taken.getsockname()[1]
    with pytest.raises(ListenFailed):
        listen(Endpoint("localhost", port))
    listening_on(opened, Endpoint("127.0.0.1", port))


def test_an_address_that_is_not_ours_is_refused_by_name() -> None:
    """192.0.2.1 is reserved for documentation: no machine has it."""
    with pytest.raises(ListenFailed, match=r"^cannot listen on 192\.0\.2\.1:0: "):
        listen(Endpoint("192.0.2.1", 0))


def test_a_name_that_nobody_knows_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*arguments: Any, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ListenFailed, match=r"^cannot listen on nowhere:9092: Name or service not known$"):
        listen(Endpoint("nowhere", 9092))


class Binding:
    """Binds sockets as the machine does, except that the first *failures* on IPv6 fail with *code*."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, failures: int) -> None:
        self.made: list[socket.socket] = []
        self._really = listening._bound
        self._code = code
        self._failures = failures
        monkeypatch.setattr(listening, "_bound", self._bind)

    def _bind(self, family: int, address: tuple[object, ...]) -> socket.socket:
        if family == socket.AF_INET6 and self._failures:
            self._failures -= 1
            raise OSError(self._code, os.strerror(self._code))
        self.made.append(self._really(socket.AF_INET, ("127.0.0.1", 0)))
        return self.made[-1]


def test_a_port_that_is_free_at_one_address_only_is_given_up_for_another(
    monkeypatch: pytest.MonkeyPatch, opened: ExitStack
) -> None:
    binding = Binding(monkeypatch, errno.EADDRINUSE, failures=2)
    assert len(listening_on(opened, Endpoint("localhost", 0))) == 2
    assert [made.fileno() == -1 for made in binding.made] == [True, True, False, False]


def test_if_no_port_is_free_at_all_of_them_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = Binding(monkeypatch, errno.EADDRINUSE, failures=1000)
    with pytest.raises(ListenFailed, match="no port is free at all of its addresses"):
        listen(Endpoint("localhost", 0))
    assert all(made.fileno() == -1 for made in binding.made)


@pytest.mark.parametrize("code", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_a_machine_without_ipv6_is_served_on_ipv4(
    monkeypatch: pytest.MonkeyPatch, opened: ExitStack, code: int
) -> None:
    Binding(monkeypatch, code, failures=1)
    assert len(listening_on(opened, Endpoint("localhost", 0))) == 1


def test_one_listener_that_cannot_be_had_leaves_no_other_open(
    monkeypatch: pytest.MonkeyPatch, opened: ExitStack
) -> None:
    (taken,) = listening_on(opened, Endpoint("127.0.0.1", 0))
    made: list[socket.socket] = []

    def noting(endpoint: Endpoint) -> list[socket.socket]:
        made.extend(listen(endpoint))
        return made

    monkeypatch.setattr(server_module, "listen", noting)
    listeners = f"127.0.0.1:0,OTHER://127.0.0.1:{taken.getsockname()[1]}"
    config, _ = load_broker_config({"listeners": listeners}, environment={})

    async def start() -> None:
        Server(node, config, Host()).start()

    with open_on(MemoryFiles()) as node, pytest.raises(ListenFailed):
        asyncio.run(start())
    assert [one.fileno() for one in made] == [-1]


# --- Accepting --------------------------------------------------------------------------------------


class Peer(asyncio.Protocol):
    """A connection that says that it was accepted, and counts how often it is told of its end."""

    def __init__(self) -> None:
        self.lost = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(b"hello")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost += 1


class Scripted:
    """A listening socket that readiness is told of by *real*, and whose next accepts fail as told."""

    def __init__(self, real: socket.socket) -> None:
        self.real = real
        self.failures: list[OSError] = []
        self.accepts = 0
        self.before_accept: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        return self.real.fileno()

    def accept(self) -> tuple[socket.socket, Any]:
        self.accepts += 1
        self.before_accept()
        if self.failures:
            raise self.failures.pop(0)
        return self.real.accept()

    def close(self) -> None:
        self.real.close()


class Accepting:
    """An acceptor on a loop that turns when it is told to."""

    def __init__(self, *, welcome: bool = True) -> None:
        self.loop = Host().new_event_loop()
        self.raised: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.raised.append(context))
        self.peers: list[Peer] = []
        self._welcome = welcome
        (real,) = listen(Endpoint("127.0.0.1", 0))
        self.address = real.getsockname()
        self.socket = Scripted(real)
        sockets = [(cast("socket.socket", self.socket), "PLAINTEXT")]
        self.said: list[str] = []
        self.acceptor = Acceptor(self.loop, sockets, self._make, self.said.append)

    def _make(self, name: str) -> Peer | None:
        if not self._welcome:
            return None
        self.peers.append(Peer())
        return self.peers[-1]

    def __enter__(self) -> Accepting:
        return self

    def __exit__(self, *error: object) -> None:
        self.acceptor.close()
        # uvloop does not close with connections open.
        self.loop.run_until_complete(self._hang_up())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        assert self.raised == []

    async def _hang_up(self) -> None:
        for peer in self.peers:
            if peer.transport is not None:
                peer.transport.abort()
        while not all(peer.lost for peer in self.peers):
            await asyncio.sleep(0)

    def greeting(self, client: socket.socket) -> bytes:
        """Let the loop turn until the client is told something, or is closed; return what it was told."""
        return self.loop.run_until_complete(self.loop.run_in_executor(None, client.recv, 10))

    def connect(self, opened: ExitStack) -> socket.socket:
        return opened.enter_context(socket.create_connection(self.address, SECONDS_MAX))


def test_everyone_who_waits_is_accepted(opened: ExitStack) -> None:
    with Accepting() as accepting:
        clients = [accepting.connect(opened) for _ in range(100)]
        assert [accepting.greeting(client) for client in clients] == [b"hello"] * 100


def test_a_client_that_is_not_wanted_is_closed_at_once(opened: ExitStack) -> None:
    with Accepting(welcome=False) as accepting:
        client = accepting.connect(opened)
        assert accepting.greeting(client) == b""


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_a_handle_left_the_one_in_reserve_turns_the_client_away(opened: ExitStack, code: int) -> None:
    """It learns at once that there is no room; in the queue it would wait, and keep the loop busy."""
    with Accepting() as accepting:
        reserve = accepting.acceptor._reserve
        assert reserve is not None
        held: list[bool] = []

        def note_whether_the_reserve_is_held() -> None:
            try:
                os.fstat(reserve)
                held.append(True)
            except OSError:
                held.append(False)

        accepting.socket.before_accept = note_whether_the_reserve_is_held
        accepting.socket.failures = [OSError(code, os.strerror(code))]
        unlucky = accepting.connect(opened)
        assert accepting.greeting(unlucky) == b""
        assert held[:2] == [True, False], "it is let go for the second try, and only then"
        assert accepting.acceptor._reserve is not None, "and taken again for the next one"
        accepting.socket.before_accept = lambda: None
        lucky = accepting.connect(opened)
        assert accepting.greeting(lucky) == b"hello"


def test_a_client_that_gave_up_in_the_queue_does_not_keep_the_next_from_being_accepted(
    opened: ExitStack,
) -> None:
    with Accepting() as accepting:
        accepting.socket.failures = [ConnectionAbortedError(errno.ECONNABORTED, "gone")]
        client = accepting.connect(opened)
        assert accepting.greeting(client) == b"hello"


def test_after_closing_nobody_can_connect_and_no_handle_is_left(opened: ExitStack) -> None:
    accepting = Accepting()
    with accepting:
        reserve = accepting.acceptor._reserve
    assert accepting.socket.real.fileno() == -1
    with pytest.raises(ConnectionRefusedError):
        accepting.connect(opened)
    assert accepting.acceptor._reserve is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(cast("int", reserve))


class NoConnections:
    """A loop that makes nothing of accepted sockets."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def connect_accepted_socket(self, factory: Callable[[], object], accepted: socket.socket) -> None:
        accepted.close()
        raise OSError(errno.EINVAL, "not a socket any more")


def test_a_connection_that_cannot_be_begun_is_not_counted_for_ever(opened: ExitStack) -> None:
    with Accepting() as accepting:
        accepting.acceptor._loop = cast("asyncio.AbstractEventLoop", NoConnections(accepting.loop))
        assert accepting.greeting(accepting.connect(opened)) == b""
        assert [peer.lost for peer in accepting.peers] == [1]


# --- As many as are allowed -------------------------------------------------------------------------


def test_no_more_clients_than_allowed_are_let_in_even_if_they_come_at_once(opened: ExitStack) -> None:
    """All of them wait in the queue before the first is accepted, as after a restart."""
    settings = {"max.connections": "3"}
    config, _ = load_broker_config({**settings, "listeners": "127.0.0.1:0"}, environment={})
    loop = Host().new_event_loop()

    async def serve() -> list[bool]:
        server = Server(node_on(MemoryFiles(), settings), config, Host())
        server.start()
        address = str(server.endpoints[0])
        clients = [opened.enter_context(RawClient(address)) for _ in range(20)]
        greeted = [await loop.run_in_executor(None, greets, client) for client in clients]
        await server.close()
        return greeted

    try:
        greeted = loop.run_until_complete(serve())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    assert greeted == [True] * 3 + [False] * 17


def test_who_leaves_makes_room_for_another() -> None:
    with Broker(config={"max.connections": "1"}) as broker:
        with RawClient(broker.bootstrap) as first:
            assert greets(first)
            with RawClient(broker.bootstrap) as second:
                assert second.is_closed()
        # That the first is gone the server learns in its own time.
        for _ in range(1000):
            with RawClient(broker.bootstrap) as third:
                if greets(third):
                    break
        else:
            raise AssertionError("nobody is let in any more")


HANDLES = 60
SHORT_OF_HANDLES = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({HANDLES}, {HANDLES}))
from cordwood.server.broker import Broker
with Broker() as broker:
    print(broker.bootstrap, flush=True)
    sys.stdin.read()
"""


def test_a_process_without_file_handles_turns_clients_away_and_recovers(opened: ExitStack) -> None:
    process = opened.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", SHORT_OF_HANDLES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    opened.callback(process.kill)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with ExitStack() as crowd:
        clients = [crowd.enter_context(RawClient(address)) for _ in range(HANDLES + 20)]
        served = [client for client in clients if greets(client)]
        # The other handles are for files.
        assert HANDLES // 4 < len(served) < HANDLES
        assert all(greets(client) for client in served), "those who are in are served all the same"
        for client in served[: len(served) // 2]:
            client.close()
        assert all(greets(client) for client in served[len(served) // 2 :])
        late = [crowd.enter_context(RawClient(address)) for _ in range(10)]
        assert any(greets(client) for client in late), "there is room again, and nobody restarted it"
    _, errors = process.communicate("", timeout=SECONDS_MAX)
    assert process.returncode == 0, errors
    assert "file handles run out" in errors
