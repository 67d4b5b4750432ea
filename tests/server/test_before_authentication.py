"""Strangers: what they may take before they have authenticated, and that others are served (P3, P4)."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from joserfc.jwk import RSAKey
from server.test_tls import LISTEN, TlsClient, connections_of, eventually, settings
from support.authorities import client_context
from support.clocks import ManualClock
from support.openssl_client import OpensslClient, openssl_client
from support.serving import RawClient, serving

from cordwood.config import BrokerConfig
from cordwood.protocol.apis import ApiKey, encode_request
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from cordwood.server.broker import Broker
from cordwood.server.connections.client_hello import HELLO_BYTES_MAX, HelloRefused, whole_hello
from cordwood.server.connections.entrance import Entrance

STRANGERS = 2000
#: The most memory of a connection before authentication, in bytes: of all that may be open, on average.
GROWTH_BYTES_MAX = 32 << 10
OPEN_MAX = BrokerConfig().unauthenticated_max


def hello() -> bytes:
    """Return the first message of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


HELLO = hello()


@contextlib.contextmanager
def strangers(address: tuple[str, int], count: int, first: bytes) -> Iterator[list[socket.socket]]:
    """Have *count* connections that say *first* and nothing more."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection(address, 60)))
            if first:
                with contextlib.suppress(ConnectionError):
                    made[-1].sendall(first)
        yield made


def address_of(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def is_closed(stranger: socket.socket) -> bool:
    """Return whether the server has closed it; what it sent before is read."""
    stranger.setblocking(False)
    try:
        while stranger.recv(65536):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except (ConnectionError, ssl.SSLError):
        return True
    return True


def is_served(bootstrap: str, context: ssl.SSLContext) -> bool:
    """Return whether a new client is served, and was not closed while it came in."""
    try:
        with TlsClient(bootstrap, context) as another:
            another.greet()
    except (ssl.SSLEOFError, ConnectionError):
        return False
    return True


@pytest.fixture
def handles() -> Iterator[None]:
    """Have handles for all strangers in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * STRANGERS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip("not enough file handles on this machine")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "first",
    [b"", HELLO[: len(HELLO) // 2], HELLO, HELLO + struct.pack(">BHH", 22, 0x0303, 16_000) + b"x" * 15_000],
    ids=["silent", "half a hello", "half a handshake", "half a record"],
)
def test_2000_strangers_take_little_memory_and_others_are_served(
    tmp_path: Path, handles: None, first: bytes
) -> None:
    with serving(tmp_path / "data", settings(tmp_path), LISTEN) as server:
        context = client_context(tmp_path)
        with TlsClient(server.bootstrap, context) as client:
            client.greet()
            with strangers(server.address, 100, first):
                client.greet()
            before = server.rss_anon()
            with strangers(server.address, STRANGERS, first) as made:
                client.greet()
                # By now the server has accepted all of them: it accepts in order. While everyone who may have
                # begun to authenticate did so within a second, it closes a new connection: clients try again.
                eventually(lambda: is_served(server.bootstrap, context))
                growth = (server.rss_anon() - before) / OPEN_MAX
                left = sum(not is_closed(each) for each in made)
            print(f"{growth / 1024:.1f} KiB for each of {OPEN_MAX} that may be open; {left} of them are")
            assert growth <= GROWTH_BYTES_MAX
            assert left <= OPEN_MAX
            client.greet()


def message(key: ApiKey, body: object, version: int) -> bytes:
    return b"".join(map(bytes, encode_request(key, version, 1, None, body)))


SHAKE = message(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="PLAIN"), 1)
WRONG = message(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=b"\0nobody\0" + b"x" * 2000), 2)
VERSIONS = message(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
#: What strangers send to a listener with SASL before they wait, and whether they are still connected then.
WITHIN_SASL = {
    "nothing": (b"", True),
    "a handshake": (SHAKE, True),
    "a part of a request": (SHAKE + struct.pack(">i", 2560) + WRONG[4:44] + b"x" * 2400, True),
    "a refused password": (SHAKE + WRONG, True),
    "requests sent ahead": (SHAKE + WRONG + VERSIONS * 1700, False),
    "a part of a large request": (SHAKE + struct.pack(">i", 23_000) + WRONG[4:44] + b"x" * 20_000, False),
}


@pytest.mark.parametrize("sent", WITHIN_SASL)
@pytest.mark.parametrize("listen", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_stranger_within_sasl_takes_little_memory(
    tmp_path: Path, handles: None, listen: str, sent: str
) -> None:
    """Measured for each connection that is open: none of them makes room here."""
    first, stays = WITHIN_SASL[sent]
    growth, left, count = grown(tmp_path, listen, first)
    print(f"{growth / 1024:.1f} KiB for each of {count} strangers, of whom {left} are left")
    assert growth <= GROWTH_BYTES_MAX
    assert left == (count if stays else 0)


def test_a_client_after_the_handshake_takes_little_memory(tmp_path: Path, handles: None) -> None:
    """At a listener with TLS alone."""
    growth, left, count = grown(tmp_path, "SSL", b"")
    print(f"{growth / 1024:.1f} KiB for each of {count} clients")
    assert growth <= GROWTH_BYTES_MAX
    assert left == count


def grown(directory: Path, listen: str, first: bytes, count: int = 400) -> tuple[float, int, int]:
    """Return the memory that each of *count* clients takes that send *first*, how many stay, and *count*.

    With TLS, they finish the handshake before.
    """
    config = settings(directory) | {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms": "600000",
        "cordwood.authentication.timeout.ms": "600000",
        "cordwood.unauthenticated.connections.max": str(4 * count),
    }
    context = client_context(directory) if "SSL" in listen.split("_") else None
    with serving(directory / "data", config, f"{listen}://localhost:0") as server:

        def come(number: int) -> list[socket.socket]:
            made = [stack.enter_context(connected(server.address, context)) for _ in range(number)]
            for each in made:
                with contextlib.suppress(OSError):
                    each.sendall(first)
            # The server takes connections in order, and processes what this one sends after what they sent.
            with connected(server.address, context) as last:
                last.sendall(VERSIONS)
                assert last.recv(1)
            return made

        with contextlib.ExitStack() as stack:
            come(40)
            before = server.rss_anon()
            made = come(count)
            growth = (server.rss_anon() - before) / count
            return growth, sum(not is_closed(each) for each in made), count


def connected(address: tuple[str, int], context: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection(address, 60)
    return plain if context is None else context.wrap_socket(plain, server_hostname="localhost")


def test_a_token_may_be_larger_where_tokens_are_enabled(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = RSAKey.generate_key(2048, {"kid": "a"})
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    config = settings(tmp_path) | {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "connection.failed.authentication.delay.ms": "1",
    }
    for listen in ("SASL_PLAINTEXT", "SASL_SSL"):
        context = client_context(tmp_path) if listen == "SASL_SSL" else None
        with Broker(listen=f"{listen}://localhost:0", config=config) as broker:
            for size, taken in ((16_000, True), (17_000, False)):
                shake = message(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
                token = SaslAuthenticateRequest(auth_bytes=b"x" * size)
                with connected(address_of(broker.bootstrap), context) as client:
                    client.sendall(shake)
                    assert client.recv(1000)
                    client.sendall(message(ApiKey.SASL_AUTHENTICATE, token, 2))
                    try:
                        answer = client.recv(1000)
                    except OSError:
                        answer = b""
                    assert (b"Authentication failed" in answer) is taken, answer


@pytest.mark.parametrize("limit", ["handles", "connections"])
def test_strangers_make_room_also_where_there_is_less_room_than_they_may_have(
    tmp_path: Path, limit: str
) -> None:
    """More of them than the process has handles, or connections; and the log has a line a second of that."""
    few = (200, 200) if limit == "handles" else None
    config = settings(tmp_path) | ({} if few else {"max.connections": "100"})
    context = client_context(tmp_path)
    with serving(tmp_path / "data", config, LISTEN, few) as server:
        with strangers(server.address, 400, b""):
            eventually(lambda: is_served(server.bootstrap, context))
            for _ in range(20):
                assert is_served(server.bootstrap, context)
        assert server.stop() == 0
    assert len(server.errors.splitlines()) < 10, server.errors


def test_a_stranger_who_says_nothing_makes_room_for_the_next(tmp_path: Path) -> None:
    config = settings(tmp_path) | {"cordwood.unauthenticated.connections.max": "10"}
    with (
        Broker(listen=LISTEN, config=config) as broker,
        TlsClient(broker.bootstrap, client_context(tmp_path)) as served,
        contextlib.ExitStack() as stack,
    ):
        # Until it has an answer, the server may count it among those who have not authenticated.
        served.greet()
        made = stack.enter_context(strangers(address_of(broker.bootstrap), 50, b""))
        eventually(lambda: len(connections_of(broker)) == 11)
        eventually(lambda: [is_closed(each) for each in made] == [True] * 40 + [False] * 10)
        with TlsClient(broker.bootstrap, client_context(tmp_path)) as another:
            another.greet()


# A ClientHello is random, and a test has the same name in every process that collects it.
@pytest.mark.parametrize(
    "first", [b"", HELLO[:100], HELLO], ids=["nothing", "a part of a hello", "a hello and no more"]
)
def test_a_handshake_that_is_not_finished_in_time_is_given_up(tmp_path: Path, first: bytes) -> None:
    clock = ManualClock()
    config = settings(tmp_path) | {"cordwood.authentication.timeout.ms": "5000"}
    with (
        Broker(listen=LISTEN, config=config, clock=clock) as broker,
        strangers(address_of(broker.bootstrap), 1, first) as made,
        TlsClient(broker.bootstrap, client_context(tmp_path)) as served,
    ):
        eventually(lambda: len(connections_of(broker)) == 2)
        clock.advance(4999)
        served.greet()
        assert not is_closed(made[0])
        clock.advance(1)
        eventually(lambda: is_closed(made[0]))
        served.greet()


@pytest.mark.parametrize(
    "first",
    [
        struct.pack(">BHH", 22, 0x0301, 0xFFFF),
        struct.pack(">BHHI", 22, 0x0301, 16_000, 1 << 24 | 100_000),
        struct.pack(">BHHI", 22, 0x0301, 100, 2 << 24 | 96),
        struct.pack(">BHHB", 22, 0x0301, 1, 1) * 40,
        struct.pack(">BHH", 23, 0x0303, 100),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x2e\x01\x00\x02" + b"x" * 40,
        HELLO + b"x" * 100_000,
        HELLO + struct.pack(">BHH", 22, 0x0303, 16_000) + b"x" * 200_000,
    ],
    ids=[
        "a record that is too large",
        "a hello that is too large",
        "another message first",
        "a hello in many small records",
        "data first",
        "HTTP",
        "SSL 2",
        "no record after a hello",
        "a large record after a hello",
    ],
)
def test_what_no_client_sends_ends_the_connection_at_once(tmp_path: Path, first: bytes) -> None:
    with (
        Broker(listen=LISTEN, config=settings(tmp_path)) as broker,
        strangers(address_of(broker.bootstrap), 1, first) as made,
    ):
        eventually(lambda: is_closed(made[0]))
        eventually(lambda: not connections_of(broker))


@contextlib.contextmanager
def openssl(bootstrap: str, *, old: bool = False) -> Iterator[OpensslClient]:
    """Connect with OpenSSL itself: Python's ssl can neither renegotiate nor renew a key."""
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(openssl_client(address_of(bootstrap), old=old))
        except OSError as error:
            pytest.skip(str(error))
        yield client


def test_a_client_cannot_renegotiate(tmp_path: Path) -> None:
    with (
        Broker(listen=LISTEN, config=settings(tmp_path)) as broker,
        openssl(broker.bootstrap, old=True) as client,
    ):
        assert not client.renegotiate()
        assert broker._server is not None
        keys = broker._server.doors._certificates["SSL"]
        assert keys.context.options & ssl.OP_NO_RENEGOTIATION
        assert keys.context.options & ssl.OP_NO_COMPRESSION


def test_a_client_may_renew_its_key(tmp_path: Path) -> None:
    with Broker(listen=LISTEN, config=settings(tmp_path)) as broker, openssl(broker.bootstrap) as client:
        for number in range(1, 101):
            assert client.renew_key()
            request = encode_request(ApiKey.API_VERSIONS, 0, number, None, ApiVersionsRequest())
            assert client.write(b"".join(request))
            assert client.read(4096)[4:8] == struct.pack(">i", number)


@pytest.mark.parametrize("listen", [LISTEN, "SASL_SSL://localhost:0"])
def test_a_client_that_renews_its_key_without_end_is_disconnected(tmp_path: Path, listen: str) -> None:
    """Each new key is answered with one, and the answers take memory if nobody reads them."""
    config = settings(tmp_path)
    with Broker(listen=listen, config=config) as broker, openssl(broker.bootstrap) as client:
        for _ in range(3000):
            # The client notices the end a few writes later, or has written all by then.
            if not client.renew_key():
                break
        eventually(lambda: not connections_of(broker))


def test_a_large_request_is_taken_after_authentication_only(tmp_path: Path) -> None:
    request = ApiVersionsRequest(client_software_name="n" * 30_000)
    with Broker(listen=LISTEN, config=settings(tmp_path)) as broker:
        with TlsClient(broker.bootstrap, client_context(tmp_path)) as client:
            client.send(ApiKey.API_VERSIONS, 3, request)
            assert client.receive_frame()
        with RawClient(broker.bootstrap) as plain:
            plain.send(ApiKey.API_VERSIONS, 3, request)
            assert plain.receive_frame() == b""


# --- The pure parts ---------------------------------------------------------------------------------


def test_a_hello_is_whole_at_its_last_byte() -> None:
    assert not any(whole_hello(HELLO[:size]) for size in range(len(HELLO)))
    assert whole_hello(HELLO)
    assert whole_hello(HELLO + b"more")


def test_a_hello_may_be_cut_into_records() -> None:
    body = HELLO[5:]
    pieces = [body[:1], body[1:3], body[3:200], body[200:]]
    records = [struct.pack(">BHH", 22, 0x0301, len(piece)) + piece for piece in pieces]
    assert whole_hello(b"".join(records))
    assert not whole_hello(b"".join(records[:3]))


def test_a_long_hello_is_refused_by_the_length_it_claims() -> None:
    claimed = struct.pack(">BHHI", 22, 0x0301, 100, 1 << 24 | HELLO_BYTES_MAX)
    with pytest.raises(HelloRefused):
        whole_hello(claimed)


class Stranger:
    """A connection that notes why it was closed."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.reasons: list[str] = []

    def refuse(self, reason: str) -> None:
        self.reasons.append(reason)


def test_the_silent_make_room_before_those_who_have_begun() -> None:
    entrance = Entrance(3, 1000)
    first, second, third = (Stranger(0) for _ in range(3))
    for each in (first, second, third):
        assert entrance.has_room(0)
        entrance.enter(each)
    assert entrance.begin(first, 0)
    assert entrance.has_room(0)
    assert [len(each.reasons) for each in (first, second, third)] == [0, 1, 0]
    assert len(entrance) == 2


def test_those_who_have_begun_get_a_second_for_it() -> None:
    entrance = Entrance(1, 1000)
    only = Stranger(5)
    entrance.enter(only)
    assert entrance.begin(only, 0)
    assert not entrance.has_room(5 + 999_999_999)
    assert not only.reasons
    assert entrance.has_room(5 + 1_000_000_000)
    assert len(only.reasons) == 1


def test_two_in_five_of_them_may_have_begun() -> None:
    """A handshake takes ten times the memory of a connection that says nothing."""
    entrance = Entrance(5, 1000)
    first, second, third = (Stranger(began) for began in (0, 7, 8))
    for each in (first, second, third):
        entrance.enter(each)
    assert entrance.begin(first, 10)
    assert entrance.begin(second, 10)
    assert not entrance.begin(third, 999_999_999)
    assert entrance.begin(third, 1_000_000_000)
    assert [len(each.reasons) for each in (first, second, third)] == [1, 0, 0]
    assert not entrance.begin(first, 2_000_000_000), "it was closed"


def test_whoever_is_authenticated_or_gone_is_not_counted() -> None:
    entrance = Entrance(1, 1000)
    only = Stranger(0)
    entrance.enter(only)
    entrance.leave(only)
    entrance.leave(only)
    assert len(entrance) == 0
    assert entrance.has_room(0)
    assert not only.reasons
