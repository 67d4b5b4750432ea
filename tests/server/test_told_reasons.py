"""Why a client is refused: the error that it gets on the wire, and the one sentence of the server for it."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from server.test_tls import ALICE, LISTEN, WRONG_CLIENTS, TlsClient, eventually, settings
from support.authorities import DAY, NOW, client_context, revocations, signed
from support.clocks import ManualClock
from support.sasl import SaslClient

from cordwood import Broker
from cordwood.protocol.error_codes import ErrorCode

KEY = RSAKey.generate_key(2048, {"kid": "ours"})
FORGER = RSAKey.generate_key(2048, {"kid": "ours"})
NOW_S = 1_800_000_000
CLAIMS = {"sub": "alice", "aud": "kafka", "iss": "https://issuer", "iat": NOW_S - 10, "exp": NOW_S + 600}


def token(key: RSAKey = KEY, **changed: object) -> str:
    return jwt.encode({"alg": "RS256", "kid": "ours"}, {**CLAIMS, **changed}, key, algorithms=["RS256"])


def unsigned() -> str:
    """Return a token that says that it needs no signature."""
    header = jwt.encode({"alg": "RS256"}, CLAIMS, KEY).split(".")[1]
    return f"eyJhbGciOiJub25lIn0.{header}.AAAA"


WRONG_TOKENS: dict[str, tuple[Callable[[], str], str]] = {
    "expired": (lambda: token(exp=NOW_S - 60, iat=NOW_S - 600), "the token is expired"),
    "of the future": (lambda: token(iat=NOW_S + 60), "the token was issued in the future"),
    "not valid yet": (lambda: token(nbf=NOW_S + 60), "the token is not valid yet"),
    "another audience": (lambda: token(aud="others"), "the audience is not an expected one"),
    "another issuer": (lambda: token(iss="https://others"), "the issuer is not the expected one"),
    "forged": (lambda: token(FORGER), "the signature is wrong"),
    "without a signature": (unsigned, "the algorithm 'none' is not accepted"),
}


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The warnings of the server so far."""
    sentences: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sentences.append(record.getMessage())

    kept, logger = Kept(logging.WARNING), logging.getLogger("cordwood.server")
    logger.addHandler(kept)
    yield sentences
    logger.removeHandler(kept)


@pytest.fixture
def issued(tmp_path: Path) -> Iterator[Broker]:
    """A broker that takes tokens of one issuer."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
    config = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "connection.failed.authentication.delay.ms": "1",
    }
    clock = ManualClock(now_ms=NOW_S * 1000)
    with Broker(listen="SASL_PLAINTEXT://localhost:0", config=config, clock=clock) as started:
        yield started


@pytest.mark.parametrize("wrong", WRONG_TOKENS)
def test_a_refused_token_is_an_error_for_the_client_and_a_sentence_for_the_server(
    issued: Broker, said: list[str], wrong: str
) -> None:
    """RFC 7628: the client gets the status, acknowledges it, and only then the error."""
    make, reason = WRONG_TOKENS[wrong]
    with SaslClient(issued.bootstrap) as client:
        assert client.shake("OAUTHBEARER").error_code == 0
        first = client.token(f"n,,\1auth=Bearer {make()}\1\1".encode())
        assert (first.error_code, first.auth_bytes) == (0, b'{"status":"invalid_token"}')
        last = client.token(b"\1")
        assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert last.error_message == (
            "Authentication failed during authentication due to invalid credentials "
            "with SASL mechanism OAUTHBEARER"
        )
        assert client.is_closed()
    assert said == [
        "127.0.0.1 failed to authenticate as nobody by OAUTHBEARER at listener SASL_PLAINTEXT: " + reason
    ]


def test_a_token_with_nothing_wrong_gets_in_and_nothing_is_said(issued: Broker, said: list[str]) -> None:
    with SaslClient(issued.bootstrap) as client:
        client.shake("OAUTHBEARER")
        assert client.token(f"n,,\1auth=Bearer {token()}\1\1".encode()).error_code == 0
        assert client.topics() == []
    assert said == []


#: The alert of TLS for each wrong certificate, as OpenSSL names it at the client.
ALERTS = {
    "expired": "CERTIFICATE_EXPIRED",
    "of the future": "BAD_CERTIFICATE",
    "another authority": "UNKNOWN_CA",
    "self-signed": "UNKNOWN_CA",
    "not for clients": "UNSUPPORTED_CERTIFICATE",
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("wrong", WRONG_CLIENTS)
def test_a_refused_certificate_is_an_alert_for_the_client_and_a_sentence_for_the_server(
    tmp_path: Path, said: list[str], wrong: str, version: ssl.TLSVersion
) -> None:
    make, reason = WRONG_CLIENTS[wrong]
    with Broker(listen=LISTEN, config=settings(tmp_path, ssl_client_auth="required")) as broker:
        alert = alert_to(broker, client_context(tmp_path, make()), version)
        eventually(lambda: len(said) == 1)
    assert alert.endswith(ALERTS[wrong]), alert
    assert said[0].startswith("a client at 127.0.0.1 could not connect: its certificate is refused: ")
    assert reason in said[0]


def test_a_client_without_or_with_a_revoked_certificate_is_told_so(tmp_path: Path, said: list[str]) -> None:
    revoked, identity = signed(ALICE, since=NOW - DAY, until=NOW + DAY)
    lists = tmp_path / "revoked.pem"
    lists.write_text(revocations(revoked))
    config = settings(tmp_path, ssl_client_auth="required") | {"cordwood.ssl.crl.location": str(lists)}
    clock = ManualClock()
    with Broker(listen=LISTEN, config=config, clock=clock) as broker:
        alert = alert_to(broker, client_context(tmp_path, identity), ssl.TLSVersion.TLSv1_3)
        assert alert.endswith("CERTIFICATE_REVOKED"), alert
        eventually(lambda: len(said) == 1)
        # The log has a line about this in a second.
        clock.advance(2000)
        alert = alert_to(broker, client_context(tmp_path), ssl.TLSVersion.TLSv1_3)
        assert alert.endswith("CERTIFICATE_REQUIRED"), alert
        eventually(lambda: len(said) == 2)
    begin = "a client at 127.0.0.1 could not connect: "
    assert said == [
        f"{begin}its certificate is refused: certificate revoked",
        f"{begin}the TLS handshake failed: peer did not return a certificate",
    ]


def alert_to(broker: Broker, context: ssl.SSLContext, version: ssl.TLSVersion) -> str:
    """Return the name of the alert that a client gets: in TLS 1.3 only after its half of the handshake."""
    context.minimum_version = context.maximum_version = version
    with pytest.raises(ssl.SSLError) as told, TlsClient(broker.bootstrap, context) as client:
        client.tls.recv(1)
    reason: Any = told.value.reason
    return str(reason)
