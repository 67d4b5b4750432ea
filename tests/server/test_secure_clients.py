"""Kafka's clients for Python over TLS: with each mechanism, with certificates, and kept out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import admin as confluent
from support.commands import refused, run, said
from support.patience import SECONDS_MAX
from support.secure_clients import SECURE_CLIENTS, Login, SecureClient
from support.secured import MECHANISMS, USERS, Secured

VALUES = [b"axe", b"saw", b"wedge"]
INVALID = "due to invalid credentials with SASL mechanism"

each_client = pytest.mark.parametrize("client", SECURE_CLIENTS, ids=lambda client: client.name)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured")) as running:
        yield running


@each_client
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_does_everything_as_a_user(client: SecureClient, mechanism: str, secured: Secured) -> None:
    """Topics are created and listed, records sent and read back in a group, over TLS."""
    topic = f"{client.name}-{mechanism}"
    assert client.round(secured.addresses["USERS"], secured.login(mechanism), topic, VALUES) == VALUES


@each_client
def test_a_client_does_everything_with_a_certificate(client: SecureClient, secured: Secured) -> None:
    topic = f"{client.name}-certificate"
    assert client.round(secured.addresses["CERTIFICATES"], secured.login(None), topic, VALUES) == VALUES


@each_client
@pytest.mark.parametrize(
    ("mechanism", "sentence"),
    [
        ("PLAIN", "Invalid username or password"),
        ("SCRAM-SHA-256", f"{INVALID} SCRAM-SHA-256"),
        ("SCRAM-SHA-512", f"{INVALID} SCRAM-SHA-512"),
    ],
)
@pytest.mark.parametrize("user", ["anna", "nobody"])
def test_a_wrong_password_is_refused_as_an_unknown_user_is(
    client: SecureClient, mechanism: str, sentence: str, user: str, secured: Secured
) -> None:
    login = secured.login(mechanism).but(user=user, password="wrong")
    said = client.refusal(secured.addresses["USERS"], login)
    # kafka-python drops an answer that comes together with the end of the connection.
    assert sentence in said or (client.name == "kafka-python" and "socket disconnected" in said)
    assert "wrong" not in said


@each_client
def test_a_token_of_another_issuer_is_refused(client: SecureClient, secured: Secured) -> None:
    forged = secured.forged_token()
    said = client.refusal(secured.addresses["USERS"], secured.login("OAUTHBEARER").but(token=forged))
    # Others take the server's challenge for consent, and are disconnected at their next request.
    expected = f"{INVALID} OAUTHBEARER" if client.name == "confluent-kafka" else "connected"
    assert expected in said or "closed" in said
    assert forged not in said


@each_client
def test_a_client_leaves_a_broker_that_it_does_not_trust(client: SecureClient, secured: Secured) -> None:
    """Before it has sent a password: another authority, and the certificate of another host."""
    login = secured.login("PLAIN")
    assert "certificate verify failed" in client.refusal(
        secured.addresses["USERS"], login.but(ca=secured.stranger)
    )
    assert "certificate verify failed" in client.refusal(secured.addresses["ELSEWHERE"], login)


@each_client
def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    client: SecureClient, secured: Secured
) -> None:
    said = client.refusal(secured.addresses["CERTIFICATES"], Login(secured.authority.certificate))
    assert "certificate required" in said or "closed" in said


def test_a_user_may_do_what_acls_allow_and_sees_nothing_else(secured: Secured) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": secured.addresses["USERS"],
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.authority.certificate),
        "sasl.mechanism": "SCRAM-SHA-256",
        "log_level": 0,
    }
    as_anna = {"sasl.username": "anna", "sasl.password": USERS["anna"]}
    as_bela = {"sasl.username": "bela", "sasl.password": USERS["bela"]}
    anna = confluent.AdminClient({**settings, **as_anna})
    bela = confluent.AdminClient({**settings, **as_bela})
    for topic in ("open", "closed"):
        new = confluent_kafka.cimpl.NewTopic(topic, 1, 1)
        anna.create_topics([new])[topic].result(SECONDS_MAX)
    assert bela.list_topics(timeout=SECONDS_MAX).topics == {}
    rule = (confluent.AclOperation.WRITE, confluent.AclPermissionType.ALLOW)  # type: ignore[attr-defined]
    pattern = (confluent.ResourceType.TOPIC, "open", confluent.ResourcePatternType.LITERAL)  # type: ignore[attr-defined]
    allow = confluent.AclBinding(*pattern, "User:bela", "*", *rule)  # type: ignore[attr-defined]
    anna.create_acls([allow])[allow].result(SECONDS_MAX)
    assert list(bela.list_topics(timeout=SECONDS_MAX).topics) == ["open"]
    errors: list[object] = []
    producer = confluent_kafka.Producer({**settings, **as_bela, "linger.ms": 0})
    for topic in ("open", "closed"):
        producer.produce(topic, b"axe", on_delivery=lambda error, _: errors.append(error and error.code()))
        assert producer.flush(SECONDS_MAX) == 0
    assert errors == [None, confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED]


# --- commands ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_commands_work_with_the_file_of_kafkas_tools(
    mechanism: str, secured: Secured, tmp_path: Path
) -> None:
    """Those that go through the client, and those with requests of their own."""
    config = secured.properties(mechanism, tmp_path)
    where = ("--bootstrap", secured.addresses["USERS"])
    topic = f"commands-{mechanism}"
    said("topic", "create", topic, *where, "--command-config", config)
    assert "transactional id" in said("transaction", "list", *where, "--config", config)
    if mechanism == "OAUTHBEARER":
        # The client takes a second until it asks for a token.
        return
    said("produce", "-t", topic, *where, "--config", config, stdin="axe\nsaw\n")
    assert said("consume", "-t", topic, "-e", *where, "--config", config) == "axe\nsaw\n"
    by_variable = run("topic", "list", *where, CORDWOOD_CLIENT_CONFIG=str(config))
    assert topic in by_variable.stdout


def test_commands_say_why_they_are_not_let_in(secured: Secured) -> None:
    """At once, not when the time for an answer is over."""
    users = ("--bootstrap", secured.addresses["USERS"], "--timeout", "60")
    login = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": secured.authority.certificate,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "anna",
        "sasl.password": "wrong-one",
    }

    def told(*command: str, where: tuple[str, ...] = users, **changes: object) -> str:
        given = {**login, **{name.replace("_", "."): value for name, value in changes.items()}}
        options = [part for name, value in given.items() for part in ("-X", f"{name}={value}")]
        sentence = refused(*command, *where, *options)
        assert "wrong-one" not in sentence
        return sentence

    for command in (("topic", "list"), ("transaction", "list")):
        assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in told(*command)
        assert "certificate verify failed" in told(*command, ssl_ca_location=secured.stranger)
        elsewhere = ("--bootstrap", secured.addresses["ELSEWHERE"], "--timeout", "60")
        assert "certificate verify failed" in told(*command, where=elsewhere)
