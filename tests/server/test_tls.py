"""Listeners with TLS: who may connect, with what, and what becomes of everyone else (P4)."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from support.authorities import (
    DAY,
    NOW,
    authority,
    ca_pem,
    client_context,
    named,
    pem_of,
    revocations,
    server_pem,
    signed,
)
from support.clocks import ManualClock
from support.patience import SECONDS_MAX, until
from support.serving import RawClient

from cordwood.config import SecurityProtocol
from cordwood.errors import InvalidSetting
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.metadata import MetadataRequest
from cordwood.security import ANONYMOUS, Principal
from cordwood.server.broker import Broker
from cordwood.server.connections.connection import Connection

LISTEN = "SSL://localhost:0"
ALICE = named(C="US", O="Acme", CN="Alice")


class TlsClient(RawClient):
    """A `RawClient` over TLS."""

    def __init__(self, address: str, context: ssl.SSLContext, host: str = "localhost") -> None:
        super().__init__(address)
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname=host)
        except BaseException:
            self.socket.close()
            raise

    @property
    def tls(self) -> ssl.SSLSocket:
        assert isinstance(self.socket, ssl.SSLSocket)
        return self.socket

    def greet(self) -> None:
        """Ask for versions, and get an answer."""
        assert self.ask(ApiKey.API_VERSIONS, ApiVersionsRequest()).error_code == 0


def settings(directory: Path, **more: str) -> dict[str, str]:
    """Return the settings of a listener with TLS, its files in *directory*."""
    keys, trusted = directory / "server.pem", directory / "trusted.pem"
    if not keys.exists():
        keys.write_text(server_pem())
        trusted.write_text(ca_pem())
    found = {"ssl.keystore.location": str(keys), "ssl.truststore.location": str(trusted)}
    return found | {name.replace("_", "."): text for name, text in more.items()}


def eventually(condition: Callable[[], bool]) -> None:
    until(condition, "what the server does by itself")


def connections_of(broker: Broker) -> list[Connection]:
    assert broker._server is not None
    return list(broker._server._connections)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The warnings of the server so far."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sentences.append(record.getMessage())

    sentences: list[str] = []
    kept, logger = Kept(logging.INFO), logging.getLogger("cordwood.server")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    yield sentences
    logger.removeHandler(kept)
    logger.setLevel(before)


# --- What is served ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_clients_are_served_over_both_versions_of_tls(tmp_path: Path, version: ssl.TLSVersion) -> None:
    context = client_context(tmp_path)
    context.minimum_version = context.maximum_version = version
    with (
        Broker(listen=LISTEN, config=settings(tmp_path)) as broker,
        TlsClient(broker.bootstrap, context) as client,
    ):
        client.greet()
        assert client.tls.version() == {772: "TLSv1.3", 771: "TLSv1.2"}[version]
        assert client.tls.compression() is None
        (connection,) = connections_of(broker)
        assert (connection.authenticated, connection.principal) == (True, ANONYMOUS)


def test_a_plain_and_an_encrypted_listener_are_served_side_by_side(tmp_path: Path) -> None:
    with (
        Broker(listen=f"PLAINTEXT://localhost:0,{LISTEN}", config=settings(tmp_path)) as broker,
        RawClient(broker.addresses["PLAINTEXT"]) as plain,
        TlsClient(broker.addresses["SSL"], client_context(tmp_path)) as encrypted,
    ):
        for client, name in ((plain, "PLAINTEXT"), (encrypted, "SSL")):
            (node,) = client.ask(ApiKey.METADATA, MetadataRequest(topics=[])).brokers
            assert broker.addresses[name] == f"{node.host}:{node.port}"


def test_a_client_of_a_secure_listener_is_never_told_a_plain_address(tmp_path: Path) -> None:
    config = settings(tmp_path) | {"advertised.listeners": "PLAINTEXT://elsewhere:1"}
    with (
        Broker(listen=f"PLAINTEXT://localhost:0,{LISTEN}", config=config) as broker,
        TlsClient(broker.addresses["SSL"], client_context(tmp_path)) as client,
    ):
        (node,) = client.ask(ApiKey.METADATA, MetadataRequest(topics=[])).brokers
        assert f"{node.host}:{node.port}" == broker.addresses["SSL"]


def test_requests_of_any_size_come_whole_however_they_are_cut(tmp_path: Path) -> None:
    """The records of TLS, the reads of the socket and the requests have nothing to do with each other."""
    with (
        Broker(listen=LISTEN, config=settings(tmp_path)) as broker,
        TlsClient(broker.bootstrap, client_context(tmp_path)) as client,
    ):
        client.greet()
        sent = []
        for size in (1, 100, 16_000, 17_000, 70_000, 300_000, 2_000_000):
            topics = [{"name": "t" * 200} for _ in range(max(size // 205, 1))]
            request = ApiVersionsRequest(client_software_name="n" * min(size, 30_000))
            sent.append(client.send(ApiKey.API_VERSIONS, 3, request))
            assert topics
        for number in sent:
            frame = client.receive_frame()
            assert int.from_bytes(frame[:4], "big") == number


# --- Who is refused ---------------------------------------------------------------------------------


def refused(broker: Broker, context: ssl.SSLContext, host: str = "localhost") -> bool:
    """Return whether the server, or the client itself, ends the connection before any answer."""
    try:
        with TlsClient(broker.bootstrap, context, host) as client:
            client.send(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
            return client.receive_frame() == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_older_versions_of_tls_are_refused(tmp_path: Path, said: list[str]) -> None:
    context = client_context(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with Broker(listen=LISTEN, config=settings(tmp_path)) as broker:
        assert refused(broker, context)
        eventually(lambda: any("could not connect" in line for line in said))


def test_an_older_version_that_is_not_enabled_is_refused(tmp_path: Path) -> None:
    context = client_context(tmp_path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Broker(listen=LISTEN, config=settings(tmp_path, ssl_enabled_protocols="TLSv1.3")) as broker:
        assert refused(broker, context)


def test_a_client_without_tls_is_told_nothing(tmp_path: Path, said: list[str]) -> None:
    with Broker(listen=LISTEN, config=settings(tmp_path)) as broker, RawClient(broker.bootstrap) as client:
        client.send(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
        assert client.receive_frame() == b""
        eventually(lambda: said == ["a client at 127.0.0.1 could not connect: it does not speak TLS"])


WRONG_SERVERS: dict[str, Callable[[], str]] = {
    "expired": lambda: signed(named(CN="localhost"), since=NOW - 2 * DAY, until=NOW - DAY)[1],
    "another host": lambda: pem_of(authority().issue_cert("elsewhere.example")),
    "another authority": lambda: server_pem("others"),
    "self-signed": lambda: signed(named(CN="localhost"), by=None)[1],
    "not for servers": lambda: signed(named(CN="localhost"), usages=[ExtendedKeyUsageOID.CLIENT_AUTH])[1],
}


@pytest.mark.parametrize("wrong", WRONG_SERVERS)
def test_a_client_refuses_a_server_with_a_wrong_certificate_and_the_server_says_so(
    tmp_path: Path, said: list[str], wrong: str
) -> None:
    config = settings(tmp_path)
    tmp_path.joinpath("server.pem").write_text(WRONG_SERVERS[wrong]())
    with Broker(listen=LISTEN, config=config) as broker:
        with pytest.raises(ssl.SSLCertVerificationError):
            TlsClient(broker.bootstrap, client_context(tmp_path))
        eventually(lambda: any(line.startswith("a client at 127.0.0.1 could not connect") for line in said))
        assert any("has expired; clients refuse it" in line for line in said) == (wrong == "expired")


# --- Client certificates ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", "CN=Alice,O=Acme,C=US"),
        ("RULE:^CN=(.*?),.*$/$1/L", "alice"),
        ("RULE:^CN=(.*?),O=Other.*$/$1/,RULE:^.*O=(.*?),C=.*$/$1/", "Acme"),
    ],
)
def test_the_owner_of_a_client_certificate_is_the_principal(tmp_path: Path, rules: str, name: str) -> None:
    config = settings(tmp_path, ssl_client_auth="required", ssl_principal_mapping_rules=rules)
    _, identity = signed(ALICE)
    with (
        Broker(listen=LISTEN, config=config) as broker,
        TlsClient(broker.bootstrap, client_context(tmp_path, identity)) as client,
    ):
        client.greet()
        assert [each.principal for each in connections_of(broker)] == [Principal("User", name)]


def test_a_resumed_session_has_the_same_principal_and_ends_with_the_certificate(
    tmp_path: Path, said: list[str]
) -> None:
    """A ticket must not let a client in whose certificate has expired since."""
    clock = ManualClock(now_ms=int(NOW.timestamp() * 1000))
    config = settings(tmp_path, ssl_client_auth="required", ssl_enabled_protocols="TLSv1.2")
    context = client_context(tmp_path, signed(ALICE)[1])
    with Broker(listen=LISTEN, config=config, clock=clock) as broker:
        with TlsClient(broker.bootstrap, context) as client:
            client.greet()
            session = client.tls.session

        address = ("localhost", int(broker.bootstrap.rpartition(":")[2]))

        def resume() -> ssl.SSLSocket:
            raw = socket.create_connection(address, SECONDS_MAX)
            return context.wrap_socket(raw, server_hostname="localhost", session=session)

        with resume() as resumed:
            assert resumed.session_reused
            owners = [Principal("User", "CN=Alice,O=Acme,C=US")]
            eventually(lambda: [each.principal for each in connections_of(broker)] == owners)
        clock.advance(3 * 24 * 3600 * 1000)
        with contextlib.suppress(ssl.SSLError, ConnectionError), resume() as resumed:
            assert resumed.recv(1) == b""
        eventually(
            lambda: any("its certificate is refused: certificate has expired" in line for line in said)
        )


@pytest.mark.parametrize("demand", ["none", "requested", "required"])
def test_whether_a_client_needs_a_certificate_is_a_setting(tmp_path: Path, demand: str) -> None:
    with Broker(listen=LISTEN, config=settings(tmp_path, ssl_client_auth=demand)) as broker:
        assert refused(broker, client_context(tmp_path)) == (demand == "required")
        with TlsClient(broker.bootstrap, client_context(tmp_path, signed(ALICE)[1])) as client:
            client.greet()
            found = {each.principal.name for each in connections_of(broker)}
            assert ("CN=Alice,O=Acme,C=US" in found) == (demand != "none")


WRONG_CLIENTS: dict[str, tuple[Callable[[], str], str]] = {
    "expired": (lambda: signed(ALICE, since=NOW - 2 * DAY, until=NOW - DAY)[1], "certificate has expired"),
    "of the future": (lambda: signed(ALICE, since=NOW + DAY, until=NOW + 2 * DAY)[1], "not yet valid"),
    "another authority": (lambda: signed(ALICE, by="others")[1], "unable to get local issuer certificate"),
    "self-signed": (lambda: signed(ALICE, by=None)[1], "self-signed certificate"),
    "not for clients": (
        lambda: signed(ALICE, usages=[ExtendedKeyUsageOID.SERVER_AUTH])[1],
        "purpose",
    ),
}


@pytest.mark.parametrize("demand", ["requested", "required"])
@pytest.mark.parametrize("wrong", WRONG_CLIENTS)
def test_a_wrong_client_certificate_is_refused_with_one_sentence(
    tmp_path: Path, said: list[str], wrong: str, demand: str
) -> None:
    """Also where none is required: who presents one must own it."""
    make, reason = WRONG_CLIENTS[wrong]
    with Broker(listen=LISTEN, config=settings(tmp_path, ssl_client_auth=demand)) as broker:
        assert refused(broker, client_context(tmp_path, make()))
        eventually(lambda: len(said) == 1)
        assert said[0].startswith("a client at 127.0.0.1 could not connect: its certificate is refused: ")
        assert reason in said[0]


def test_a_certificate_whose_owner_has_no_name_is_refused(tmp_path: Path, said: list[str]) -> None:
    config = settings(tmp_path, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=Bob$/bob/")
    with Broker(listen=LISTEN, config=config) as broker:
        assert refused(broker, client_context(tmp_path, signed(ALICE)[1]))
        eventually(
            lambda: any("no rule gives 'CN=Alice,O=Acme,C=US' the name of a principal" in s for s in said)
        )


def test_a_certificate_cannot_make_its_owner_a_client_without_one(tmp_path: Path, said: list[str]) -> None:
    """Such a client would be in no audit log, and in the org of the listener whatever its rules say."""
    config = settings(tmp_path, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=(.*)$/$1/")
    with Broker(listen=LISTEN, config=config) as broker:
        assert refused(broker, client_context(tmp_path, signed(named(CN="ANONYMOUS"))[1]))
        assert not refused(broker, client_context(tmp_path, signed(named(CN="anna"))[1]))
        eventually(lambda: any("the rules give its owner the name User:ANONYMOUS" in each for each in said))


def test_a_revoked_certificate_is_refused_and_without_a_list_every_one_is(tmp_path: Path) -> None:
    revoked, identity = signed(ALICE)
    others = signed(named(CN="Bob"))[1]
    lists = tmp_path / "revoked.pem"
    lists.write_text(revocations(revoked))
    config = settings(tmp_path, ssl_client_auth="required") | {"cordwood.ssl.crl.location": str(lists)}
    with Broker(listen=LISTEN, config=config) as broker:
        assert refused(broker, client_context(tmp_path, identity))
        assert not refused(broker, client_context(tmp_path, others))
    lists.write_text(revocations(by="others"))
    with Broker(listen=LISTEN, config=config) as broker:
        assert refused(broker, client_context(tmp_path, others))


# --- Settings ---------------------------------------------------------------------------------------


def refusal(config: dict[str, str]) -> InvalidSetting:
    with pytest.raises(InvalidSetting) as caught:
        Broker(listen=LISTEN, config=config).close()
    return caught.value


def test_keys_may_be_in_the_settings_themselves_with_spaces_for_line_breaks(tmp_path: Path) -> None:
    keys, _, chain = server_pem().partition("-----BEGIN CERTIFICATE")
    config = {
        "ssl.keystore.key": " ".join(keys.split("\n")),
        "ssl.keystore.certificate.chain": " ".join(("-----BEGIN CERTIFICATE" + chain).split("\n")),
    }
    with Broker(listen=LISTEN, config=config) as broker:
        assert not refused(broker, client_context(tmp_path))
    assert "PRIVATE" not in str(refusal({"ssl.keystore.key": config["ssl.keystore.key"]}))


def test_what_cannot_be_used_is_refused_by_its_setting(tmp_path: Path) -> None:
    config = settings(tmp_path)
    (tmp_path / "other.pem").write_text(server_pem("others"))
    (tmp_path / "key.pem").write_text(server_pem().partition("-----BEGIN CERTIFICATE")[0])
    (tmp_path / "mixed.pem").write_text(
        server_pem().partition("-----BEGIN CERTIFICATE")[0]
        + "-----BEGIN CERTIFICATE"
        + server_pem("others").partition("-----BEGIN CERTIFICATE")[2]
    )
    wrong = [
        ({}, "ssl.keystore.location"),
        ({"ssl.keystore.location": str(tmp_path / "none.pem")}, "ssl.keystore.location"),
        ({"ssl.keystore.location": str(tmp_path)}, "ssl.keystore.location"),
        ({"ssl.keystore.location": str(tmp_path / "key.pem")}, "ssl.keystore.location"),
        ({"ssl.keystore.location": str(tmp_path / "mixed.pem")}, "ssl.keystore.location"),
        (config | {"ssl.client.auth": "required", "ssl.truststore.location": ""}, "ssl.truststore.location"),
        (
            config | {"ssl.client.auth": "required", "ssl.truststore.location": str(tmp_path / "key.pem")},
            "ssl.truststore.location",
        ),
        (config | {"ssl.principal.mapping.rules": "RULE:x"}, "ssl.principal.mapping.rules"),
        (config | {"ssl.cipher.suites": "TLS_RSA_WITH_NULL_SHA"}, "ssl.cipher.suites"),
        (config | {"ssl.cipher.suites": "ADH-AES128-GCM-SHA256"}, "ssl.cipher.suites"),
        (config | {"ssl.cipher.suites": "TLS_NO_SUCH_SUITE"}, "ssl.cipher.suites"),
        (config | {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "ssl.cipher.suites"),
        (config | {"ssl.keystore.key": "k"}, "ssl.keystore.location"),
    ]
    for given, name in wrong:
        assert refusal(given).name == name, given


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    text, _, chain = server_pem().partition("-----BEGIN CERTIFICATE")
    key = serialization.load_pem_private_key(text.encode(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hunter2"),
    )
    config = settings(tmp_path)
    (tmp_path / "server.pem").write_text(f"{encrypted.decode()}-----BEGIN CERTIFICATE{chain}")
    with Broker(listen=LISTEN, config=config | {"ssl.key.password": "hunter2"}) as broker:
        assert not refused(broker, client_context(tmp_path))
    assert refusal(config).name == "ssl.key.password"
    error = refusal(config | {"ssl.key.password": "hunter3"})
    assert (error.name, "hunter" in str(error)) == ("ssl.keystore.location", False)
    assert "in ssl.key.password the password of the key" in str(error)


@pytest.mark.parametrize(
    ("suites", "version", "chosen"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        (
            "TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256,TLS_CHACHA20_POLY1305_SHA256",
            "TLSv1.3",
            "TLS_AES_256_GCM_SHA384",
        ),
    ],
)
def test_only_the_chosen_cipher_suites_are_accepted(
    tmp_path: Path, suites: str, version: str, chosen: str
) -> None:
    with (
        Broker(listen=LISTEN, config=settings(tmp_path, ssl_cipher_suites=suites)) as broker,
        TlsClient(broker.bootstrap, client_context(tmp_path)) as client,
    ):
        cipher = client.tls.cipher()
        assert cipher is not None
        assert (client.tls.version(), cipher[0]) == (version, chosen)


# --- New certificates -------------------------------------------------------------------------------


def serial_of(broker: Broker, context: ssl.SSLContext) -> object:
    with TlsClient(broker.bootstrap, context) as client:
        certificate = client.tls.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


def test_new_certificates_are_served_without_a_restart_and_bad_ones_are_not(
    tmp_path: Path, said: list[str]
) -> None:
    config, context = settings(tmp_path), client_context(tmp_path)
    file = tmp_path / "server.pem"
    with Broker(listen=LISTEN, config=config) as broker, TlsClient(broker.bootstrap, context) as before:
        old = serial_of(broker, context)
        file.write_text(pem_of(authority().issue_cert("localhost")))
        eventually(lambda: serial_of(broker, context) != old)
        new = serial_of(broker, context)
        for bad in ("nonsense", signed(named(CN="localhost"), since=NOW - 2 * DAY, until=NOW - DAY)[1]):
            said.clear()
            file.write_text(bad)
            eventually(lambda: any(line.startswith("listener SSL keeps its certificates: ") for line in said))
            assert serial_of(broker, context) == new
        said.clear()
        file.unlink()
        eventually(lambda: any(line.startswith("listener SSL keeps its certificates: ") for line in said))
        assert serial_of(broker, context) == new
        before.greet()


def test_a_security_protocol_belongs_to_its_listener(tmp_path: Path) -> None:
    config = settings(tmp_path) | {"listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SSL"}
    with Broker(listen="INSIDE://localhost:0,OUTSIDE://localhost:0", config=config) as broker:
        assert broker._config.security_of("OUTSIDE") is SecurityProtocol.SSL
        with TlsClient(broker.addresses["OUTSIDE"], client_context(tmp_path)) as client:
            client.greet()
        with RawClient(broker.addresses["INSIDE"]) as plain:
            assert plain.ask(ApiKey.API_VERSIONS, ApiVersionsRequest()).error_code == 0
