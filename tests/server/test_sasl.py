"""Authentication on the wire: who gets in, in which order, and how everybody else is told."""

from __future__ import annotations

import json
import logging
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clocks import ManualClock
from support.sasl import SaslClient
from support.scram import ScramClient
from support.scraping import scrape

import cordwood
from cordwood import Broker
from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey, encode_request
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.api_versions import ApiVersionsRequest
from cordwood.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from cordwood.protocol.messages.metadata import MetadataRequest
from cordwood.protocol.messages.produce import ProduceRequest

USERS = {"alice": "secret", "bob": "hidden", "org-7-app": "seventh"}
QUICK = {"connection.failed.authentication.delay.ms": "1"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(users=USERS, config=QUICK) as started:
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[SaslClient]:
    with SaslClient(broker.bootstrap) as connected:
        yield connected


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("name", ["alice", "bob"])
def test_the_right_password_gets_in(client: SaslClient, name: str, mechanism: str) -> None:
    answer = client.log_in(name, USERS[name], mechanism)
    assert answer.session_lifetime_ms == 0
    assert client.topics() == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    ("name", "password"), [("alice", "Secret"), ("alice", "hidden"), ("carol", "secret")]
)
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer_and_are_disconnected(
    client: SaslClient, name: str, password: str, mechanism: str
) -> None:
    client.shake(mechanism)
    answer = client.plain(name, password) if mechanism == "PLAIN" else client.scram(name, password, mechanism)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        "Authentication failed: Invalid username or password"
        if mechanism == "PLAIN"
        else "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        + mechanism
    )
    assert client.is_closed()


@pytest.mark.parametrize("version", range(3))
def test_every_version_of_a_token_request_is_served(client: SaslClient, version: int) -> None:
    client.shake("PLAIN")
    assert client.token(b"\0alice\0secret", version).error_code == 0
    assert client.topics() == []


def test_tokens_follow_the_oldest_handshake_without_requests_around_them(client: SaslClient) -> None:
    """As clients of Kafka 0.10 do, and librdkafka against such a broker."""
    assert client.shake("PLAIN", 0).error_code == 0
    assert client.raw_token(b"\0alice\0secret") == b""
    assert client.topics() == []


def test_a_refused_token_without_a_request_closes_the_connection(client: SaslClient) -> None:
    client.shake("PLAIN", 0)
    assert client.raw_token(b"\0alice\0wrong") == b""
    assert client.is_closed()


def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are(client: SaslClient) -> None:
    answer = client.shake("GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert client.is_closed()


def test_api_versions_is_answered_before_authentication_once(client: SaslClient) -> None:
    answer = client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest())
    assert {17, 36} <= {each.api_key for each in answer.api_keys}
    client.log_in("alice", "secret")
    assert client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest()).error_code == 0


def test_api_versions_of_an_unknown_version_is_answered_before_authentication(client: SaslClient) -> None:
    client.socket.sendall(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 99, 7, -1))
    assert client.receive_frame()[:6] == struct.pack(">ih", 7, ErrorCode.UNSUPPORTED_VERSION)
    client.log_in("alice", "secret")


HANDSHAKE = (ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
VERSIONS = (ApiKey.API_VERSIONS, 4, ApiVersionsRequest())
METADATA = (ApiKey.METADATA, 12, MetadataRequest(topics=[]))
TOKEN = (ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"))
WRONG_TOKEN = (ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"))
PRODUCE = (ApiKey.PRODUCE, 9, ProduceRequest(None, 1, 1000, []))
#: Requests of which the last one is out of order.
ORDERS = {
    "metadata first": [METADATA],
    "produce first": [PRODUCE],
    "a token first": [TOKEN],
    "versions twice": [VERSIONS, VERSIONS],
    "versions after the handshake": [HANDSHAKE, VERSIONS],
    "two handshakes": [HANDSHAKE, HANDSHAKE],
    "metadata after the handshake": [HANDSHAKE, METADATA],
    "metadata instead of a token": [VERSIONS, HANDSHAKE, METADATA],
    "a replayed token": [HANDSHAKE, TOKEN, TOKEN],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_a_request_out_of_order_gets_no_answer_but_the_end(
    client: SaslClient, order: list[tuple[ApiKey, int, Any]]
) -> None:
    *before, last = order
    for key, version, body in before:
        assert client.ask(key, body, version).error_code == 0
    client.send(*last)
    assert client.is_closed()


def test_what_is_sent_ahead_of_a_failure_is_never_served(client: SaslClient) -> None:
    """Handshake, a wrong token and the right one in one write: the right one comes too late."""
    sent = [
        encode_request(key, version, 1, None, body) for key, version, body in (HANDSHAKE, WRONG_TOKEN, TOKEN)
    ]
    client.socket.sendall(b"".join(piece for request in sent for piece in request))
    assert client.receive(ApiKey.SASL_HANDSHAKE, 1).error_code == 0
    answer = client.receive(ApiKey.SASL_AUTHENTICATE, 2)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.is_closed()


def test_recorded_messages_of_another_connection_do_not_get_in(broker: Broker) -> None:
    recorded = ScramClient("sha256", "alice", "secret", "recorded")
    with SaslClient(broker.bootstrap) as first, SaslClient(broker.bootstrap) as second:
        first.shake("SCRAM-SHA-256")
        final = recorded.final(first.token(recorded.first()).auth_bytes)
        assert first.token(final).error_code == 0
        second.shake("SCRAM-SHA-256")
        assert second.token(recorded.first()).error_code == 0
        assert second.token(final).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert second.is_closed()


def test_an_unknown_user_gets_a_challenge_like_a_known_one_and_always_the_same_salt(broker: Broker) -> None:
    def challenge(name: str) -> dict[str, str]:
        with SaslClient(broker.bootstrap) as client:
            client.shake("SCRAM-SHA-512")
            text = client.token(f"n,,n={name},r=abc".encode()).auth_bytes.decode()
            return dict(part.split("=", 1) for part in text.split(","))

    known, unknown = challenge("alice"), challenge("nobody")
    assert {name: len(value) for name, value in known.items()} == {
        name: len(value) for name, value in unknown.items()
    }
    assert known["i"] == unknown["i"]
    assert challenge("nobody")["s"] == unknown["s"]
    assert challenge("alice")["s"] == known["s"]


def test_a_restart_and_a_backup_do_not_tell_who_exists(tmp_path: Path) -> None:
    """The salts of users stay the same, so those of all others must as well."""

    def salts(data: Path) -> list[str]:
        found = []
        with Broker(data, users={"alice": "secret"}) as broker:
            for name in ("alice", "nobody"):
                with SaslClient(broker.bootstrap) as client:
                    client.shake("SCRAM-SHA-512")
                    found.append(
                        client.token(f"n,,n={name},r=abc".encode()).auth_bytes.decode().split(",")[1]
                    )
        return found

    before = salts(tmp_path / "data")
    assert salts(tmp_path / "data") == before
    cordwood.backup(tmp_path / "data", tmp_path / "backup")
    cordwood.restore(tmp_path / "backup", tmp_path / "restored")
    assert salts(tmp_path / "restored") == before
    assert salts(tmp_path / "another")[1] != before[1]


def test_a_listener_without_sasl_says_so() -> None:
    with Broker() as plain, SaslClient(plain.bootstrap) as client:
        assert client.shake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.token(b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.topics() == []


def test_each_listener_has_its_own_mechanisms() -> None:
    config = {
        **QUICK,
        "listener.security.protocol.map": "A:SASL_PLAINTEXT,B:SASL_PLAINTEXT",
        "listener.name.a.sasl.enabled.mechanisms": "PLAIN",
    }
    with Broker(users=USERS, config=config, listen="A://localhost:0,B://localhost:0") as both:
        with SaslClient(both.addresses["A"]) as client:
            client.log_in("alice", "secret", "PLAIN")
        with SaslClient(both.addresses["A"]) as client:
            assert client.shake("SCRAM-SHA-256").mechanisms == ["PLAIN"]
        with SaslClient(both.addresses["B"]) as client:
            client.log_in("alice", "secret", "SCRAM-SHA-256")


def test_a_failed_attempt_is_answered_late() -> None:
    config = {"connection.failed.authentication.delay.ms": "300"}
    with Broker(users=USERS, config=config) as slow, SaslClient(slow.bootstrap) as client:
        client.shake("PLAIN")
        began = time.monotonic()
        assert client.plain("alice", "wrong").error_code
        assert time.monotonic() - began >= 0.3
        assert client.is_closed()


def test_failures_are_logged_and_counted_without_a_password_and_without_a_hint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = {**QUICK, "cordwood.metrics.listen": "localhost:0"}
    caplog.set_level(logging.DEBUG)
    with Broker(users=USERS, config=config) as counted:
        for name in ("alice", "nobody"):
            for mechanism in ("PLAIN", "SCRAM-SHA-256"):
                with SaslClient(counted.bootstrap) as client:
                    client.shake(mechanism)
                    if mechanism == "PLAIN":
                        client.plain(name, "wr0ng-passw0rd")
                    else:
                        client.scram(name, "wr0ng-passw0rd")
        with SaslClient(counted.bootstrap) as client:
            client.log_in("alice", "secret", "PLAIN")
            samples = scrape(counted.metrics_url)
        assert samples.value("cordwood_authentication_failures_total") == 4
        assert samples.value("cordwood_authentications_total") == 1
    failures = [
        record.getMessage() for record in caplog.records if "failed to authenticate" in record.getMessage()
    ]
    assert len(failures) == 4
    of = {
        name: sorted(text.replace(name, "NAME") for text in failures if f"'{name}'" in text)
        for name in ("alice", "nobody")
    }
    assert of["alice"] == of["nobody"]
    assert "passw0rd" not in caplog.text
    assert "secret" not in caplog.text


def test_attempts_are_in_the_audit_log_without_a_password(tmp_path: Path) -> None:
    config = {**QUICK, "cordwood.audit.topic": "__audit", "cordwood.principal.tenant.rules": "RULE:bob/8/"}
    with Broker(tmp_path, users=USERS, config=config) as audited:
        for name, password in (("alice", "secret"), ("bob", "hidden"), ("carol", "gu3ss")):
            with SaslClient(audited.bootstrap) as client:
                client.shake("SCRAM-SHA-256")
                client.scram(name, password)
        with SaslClient(audited.bootstrap) as client:
            client.shake("GSSAPI")
    with cordwood.open(tmp_path, read_only=True) as log:
        records = [json.loads(each.value or b"") for each in log.topic("__audit").read()]
    found = {
        (each["principal"], each["org"], each["outcome"], each["error"], each["details"]["mechanism"])
        for each in records
        if each["event"] == "authentication"
    }
    failed = "SASL_AUTHENTICATION_FAILED"
    assert found == {
        ("User:alice", 0, "ok", None, "SCRAM-SHA-256"),
        ("User:bob", 8, "ok", None, "SCRAM-SHA-256"),
        ("User:carol", 0, "denied", failed, "SCRAM-SHA-256"),
        ("", 0, "denied", "UNSUPPORTED_SASL_MECHANISM", "GSSAPI"),
    }
    assert "gu3ss" not in json.dumps(records)


# --- sessions ----------------------------------------------------------------------------------------


@pytest.fixture
def limited() -> Iterator[tuple[Broker, ManualClock]]:
    clock = ManualClock()
    config = {**QUICK, "connections.max.reauth.ms": "5000"}
    with Broker(users=USERS, config=config, clock=clock) as started:
        yield started, clock


def test_a_session_that_is_over_ends_at_the_next_request(limited: tuple[Broker, ManualClock]) -> None:
    broker, clock = limited
    with SaslClient(broker.bootstrap) as client:
        assert client.log_in("alice", "secret").session_lifetime_ms == 5000
        clock.advance(4999)
        assert client.topics() == []
        clock.advance(1)
        client.send(*METADATA)
        assert client.is_closed()


def test_authenticating_again_keeps_the_connection(limited: tuple[Broker, ManualClock]) -> None:
    broker, clock = limited
    with SaslClient(broker.bootstrap) as client:
        client.log_in("alice", "secret")
        for _ in range(3):
            clock.advance(4000)
            assert client.log_in("alice", "secret").session_lifetime_ms == 5000
            assert client.topics() == []
        # Also when the session is over already.
        clock.advance(6000)
        client.log_in("alice", "secret")
        assert client.topics() == []


def test_authenticating_again_too_soon_is_refused_and_changes_nothing(
    limited: tuple[Broker, ManualClock],
) -> None:
    broker, clock = limited
    with SaslClient(broker.bootstrap) as client:
        client.log_in("alice", "secret")
        client.log_in("alice", "secret")
        assert client.shake("SCRAM-SHA-256").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.topics() == []
        clock.advance(1000)
        client.log_in("alice", "secret")


@pytest.mark.parametrize(
    ("name", "password", "mechanism"),
    [
        ("bob", "hidden", "SCRAM-SHA-256"),
        ("alice", "wrong", "SCRAM-SHA-256"),
        ("alice", "secret", "PLAIN"),
        ("alice", "secret", "SCRAM-SHA-512"),
    ],
)
def test_nobody_changes_who_they_are_by_authenticating_again(
    limited: tuple[Broker, ManualClock], name: str, password: str, mechanism: str
) -> None:
    broker, _ = limited
    with SaslClient(broker.bootstrap) as client:
        client.log_in("alice", "secret")
        assert client.shake(mechanism).error_code == 0
        if mechanism == "SCRAM-SHA-256":
            answer = client.scram(name, password)
        else:
            answer = client.plain(name, password)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed()


def test_no_request_is_served_while_a_client_authenticates_again(
    limited: tuple[Broker, ManualClock],
) -> None:
    broker, _ = limited
    with SaslClient(broker.bootstrap) as client:
        client.log_in("alice", "secret")
        client.shake("SCRAM-SHA-256")
        client.send(*METADATA)
        assert client.is_closed()


# --- tenants -----------------------------------------------------------------------------------------


def test_a_principal_gets_the_org_of_its_rule_and_everybody_else_that_of_the_listener() -> None:
    config = {**QUICK, "cordwood.principal.tenant.rules": "RULE:org-([0-9]+)-.*/$1/,RULE:bob/8/"}
    with Broker(users=USERS, config=config) as shared:
        names = {}
        for name in ("alice", "bob", "org-7-app"):
            with SaslClient(shared.bootstrap) as client:
                client.log_in(name, USERS[name])
                client.create(f"of-{name}")
                names[name] = {
                    topic.name for topic in client.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics
                }
        assert names == {name: {f"of-{name}"} for name in names}
        with SaslClient(shared.bootstrap) as client:
            client.log_in("org-7-app", USERS["org-7-app"])
            client.produce("of-org-7-app", batch.encode_records([(b"k", b"v")], now_ms=1000))
            assert client.fetch("of-org-7-app").high_watermark == 1


def test_a_principal_whose_rule_makes_no_org_does_not_get_in() -> None:
    config = {**QUICK, "cordwood.principal.tenant.rules": "RULE:(.*)/$1/,DEFAULT"}
    with Broker(users=USERS, config=config) as shared, SaslClient(shared.bootstrap) as client:
        client.shake("PLAIN")
        answer = client.plain("alice", "secret")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed()


def test_clients_of_every_org_are_told_the_address_of_the_listener_they_came_by() -> None:
    config = {
        **QUICK,
        "cordwood.principal.tenant.rules": "RULE:bob/8/",
        "advertised.listeners": "SASL_PLAINTEXT://broker.example:9093",
    }
    with Broker(users=USERS, config=config) as shared:
        for name in ("alice", "bob"):
            with SaslClient(shared.bootstrap) as client:
                client.log_in(name, USERS[name])
                (node,) = client.ask(ApiKey.METADATA, MetadataRequest(topics=[])).brokers
                assert (node.host, node.port) == ("broker.example", 9093)
