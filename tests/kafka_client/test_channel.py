"""The client's side of SASL and TLS, for requests that librdkafka has no call for."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

import pytest
from support.anchoring import anchor
from support.authority import Authority

from cordwood.errors import ConfigError, CordwoodError
from cordwood.kafka_client.channel import sasl_exchange, tls_context
from cordwood.kafka_client.channel.sasl import scram


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVERS_FIRST = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = f"c=biws,r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVERS_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_scram_is_that_of_rfc_7677() -> None:
    exchange = scram("sha256", "user", "pencil", NONCE)
    assert next(exchange) == f"n,,n=user,r={NONCE}".encode()
    assert exchange.send(SERVERS_FIRST.encode()) == PROOF.encode()
    with pytest.raises(StopIteration):
        exchange.send(SERVERS_FINAL.encode())


@pytest.mark.parametrize(
    ("first", "final", "sentence"),
    [
        ("", "", "not one of SCRAM"),
        ("\xff", "", "not one of SCRAM"),
        (SERVERS_FIRST.replace("i=4096", "i=many"), "", "not one of SCRAM"),
        (SERVERS_FIRST.replace("s=W22", "s=!"), "", "not one of SCRAM"),
        (SERVERS_FIRST.replace(NONCE, "x"), "", "another exchange"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "", "another exchange"),
        (SERVERS_FIRST.replace("4096", "4095"), "", "4095 iterations"),
        (SERVERS_FIRST.replace("4096", "99999999"), "", "99999999 iterations"),
        (SERVERS_FIRST, "", "did not prove"),
        (SERVERS_FIRST, "v=", "did not prove"),
        (SERVERS_FIRST, "e=other-error", "did not prove"),
        (SERVERS_FIRST, SERVERS_FINAL.replace("6", "7"), "did not prove"),
    ],
)
def test_a_server_that_does_not_know_the_user_is_left(first: str, final: str, sentence: str) -> None:
    """SCRAM is mutual: without the keys nobody can pretend to be the broker."""

    def authenticate() -> None:
        exchange = scram("sha256", "user", "pencil", NONCE)
        next(exchange)
        exchange.send(first.encode("latin-1"))
        exchange.send(final.encode())

    with pytest.raises(CordwoodError, match=sentence) as caught:
        authenticate()
    assert "pencil" not in str(caught.value)


def test_a_name_with_signs_of_the_protocol_is_escaped() -> None:
    assert next(scram("sha512", "a,b=c", "p", "n")) == b"n,,n=a=2Cb=3Dc,r=n"


def test_plain_and_tokens_are_one_message(tmp_path: Path) -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": "p"}
    assert sasl_exchange({"security.protocol": "SSL"}) is None
    found = sasl_exchange({**given, "sasl.mechanism": "PLAIN"})
    assert found is not None
    assert found[0] == "PLAIN"
    assert list(found[1]) == [b"\0u\0p"]
    claims = base64.urlsafe_b64encode(b'{"sub": "u"}').rstrip(b"=").decode()
    (tmp_path / "token").write_text(f"e30.{claims}.x")
    url = (tmp_path / "token").as_uri()
    by_token = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": url}
    found = sasl_exchange({**given, **by_token, "sasl.oauthbearer.extensions": "pool=x"})
    assert found is not None
    assert list(found[1]) == [f"n,,\x01auth=Bearer e30.{claims}.x\x01pool=x\x01\x01".encode()]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "sasl.mechanism=GSSAPI is not possible"),
        ({"sasl.mechanism": "PLAIN", "sasl.password": "secret"}, "sasl.username is missing"),
        ({"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "u"}, "sasl.password is missing"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.client.id is missing"),
    ],
)
def test_what_is_missing_is_named(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        sasl_exchange({"security.protocol": "SASL_PLAINTEXT", **given})
    assert "secret" not in str(caught.value)


def test_a_token_is_asked_for_at_the_issuer_and_its_secret_goes_to_no_redirection() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.id": "anna",
        "sasl.oauthbearer.client.secret": "hidden",
    }
    with anchor() as elsewhere, anchor(status=302, to=elsewhere.url) as issuer:
        with pytest.raises(CordwoodError, match="issued no token: it answered 302") as caught:
            sasl_exchange({**given, "sasl.oauthbearer.token.endpoint.url": issuer.url})
        assert "hidden" not in str(caught.value)
    (asked,) = issuer.requests
    assert asked == (f"Basic {base64.b64encode(b'anna:hidden').decode()}", "grant_type=client_credentials")
    assert elsewhere.requests == []


# --- TLS ---------------------------------------------------------------------------------------------


def test_librdkafkas_settings_of_tls_have_the_same_meaning(authority: Authority) -> None:
    own = authority.issue("client", client=True)
    ca = str(authority.certificate)
    assert tls_context({}) is None
    assert tls_context({"security.protocol": "sasl_plaintext"}) is None
    for given in ({"ssl.ca.location": ca}, {"ssl.ca.pem": authority.certificate.read_text()}):
        context = tls_context({"security.protocol": "ssl", **given})
        assert context is not None
        assert context.check_hostname
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert [each["subject"] for each in context.get_ca_certs()] == [((("commonName", "authority"),),)]
    lax = tls_context({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"})
    assert lax is not None
    assert (lax.check_hostname, lax.verify_mode) == (False, ssl.CERT_REQUIRED)
    for chain in (
        {"ssl.certificate.location": str(own.certificate), "ssl.key.location": str(own.key)},
        {"ssl.certificate.pem": own.certificate.read_text(), "ssl.key.pem": own.key.read_text()},
    ):
        assert tls_context({"security.protocol": "SASL_SSL", **chain}) is not None


def test_a_certificate_that_cannot_be_used_is_refused(authority: Authority, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("secret")
    for given, sentence in (
        ({"ssl.ca.location": str(wrong)}, "ssl.ca.location cannot be used"),
        ({"ssl.ca.location": "/nowhere"}, "ssl.ca.location cannot be read: No such file"),
        ({"ssl.certificate.pem": "secret"}, "ssl.certificate.location cannot be used"),
        ({"ssl.keystore.location": "keys.p12"}, "ssl.keystore.location: keys.p12 cannot be read"),
        (
            {"ssl.keystore.location": str(wrong), "ssl.keystore.password": "secret"},
            r"does not open with ssl\.keystore\.password",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence) as caught:
            tls_context({"security.protocol": "SSL", **given})
        assert "secret" not in str(caught.value)
