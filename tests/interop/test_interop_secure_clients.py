"""Clients of other languages over TLS: the six steps with each login, and what they say when kept out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from interop.apache_kafka import apache_kafka
from interop.kcat import Kcat
from interop.programs import java
from interop.report import LOGINS, Report
from interop.scenarios import CLIENTS, about, refusal, run_scenario
from interop.six_steps import PARTITIONS, SCENARIO_SECONDS_MAX, SixSteps, running_program
from support.patience import SECONDS_MAX
from support.secure_clients import Login
from support.secured import USERS, Secured

# What is not there yet is fetched, which counts.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

CERTIFICATE = LOGINS[-1]
#: librdkafka repeats its nonce in SCRAM before this version, and kcat of Debian knows no issuer of tokens.
NONCE_FIXED = (2, 6, 1)
NOT_OF_KCAT = ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
EACH_LOGIN = [
    pytest.param(client, login, id=f"{client}-{login}")
    for client in CLIENTS
    for login in LOGINS
    if client != "kcat" or login not in NOT_OF_KCAT
]
INVALID = "due to invalid credentials with SASL mechanism"
REAUTHENTICATIONS = 3
#: A client may authenticate again once a second, and Java does after 85 % of a session at the earliest.
SESSION_MS = "4000"
Check = Callable[[str, str], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured"), settings={"num.partitions": str(PARTITIONS)}) as running:
        yield running


@pytest.fixture
def check(report: Report) -> Check:
    """Report a check of a client."""
    return lambda client, done: report.check("secure", *about(client), done)


@pytest.mark.parametrize(("client", "login"), EACH_LOGIN)
def test_six_steps_over_tls(client: str, login: str, secured: Secured, check: Check, tmp_path: Path) -> None:
    """Everything that works without authentication, also over a restart, where clients log in again."""
    by_certificate = login == CERTIFICATE
    address = secured.addresses["CERTIFICATES" if by_certificate else "USERS"]
    access = (address, secured.login(None if by_certificate else login))
    with check(client, login):
        run_scenario(client, secured, Report(), tmp_path, access, f"{client}-{login}")


def said(
    client: str,
    address: str,
    login: Login,
    secured: Secured,
    directory: Path,
    step: str = "create",
    **settings: str,
) -> str:
    """Return what *client* says when it is refused; no secret is in it."""
    steps = SixSteps(f"{client}-refused", secured, access=(address, login))
    given = {name.replace("_", "."): value for name, value in settings.items()}
    errors = refusal(client, steps, directory, step, given)
    assert not any(secret and secret in errors for secret in (login.password, login.token))
    return errors


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_reports_a_wrong_password_in_kafkas_words(
    client: str, secured: Secured, check: Check, tmp_path: Path
) -> None:
    sentences = {"PLAIN": "Authentication failed: Invalid username or password"}
    sentences |= {each: f"{INVALID} {each}" for each in ("SCRAM-SHA-256", "SCRAM-SHA-512")}
    with check(client, "wrong password"):
        for mechanism, sentence in sentences.items():
            login = secured.login(mechanism).but(password="not-this-one")
            assert sentence in said(client, secured.addresses["USERS"], login, secured, tmp_path)


@pytest.mark.parametrize(
    ("client", "sentence"),
    [
        ("java", f"{INVALID} OAUTHBEARER"),
        # These take the server's challenge for something else: the end of the connection, or bytes too many.
        ("kafkajs", "Closed connection"),
        ("franz-go", "unexpected data in oauth response"),
    ],
)
def test_a_token_of_another_issuer_is_refused(
    client: str, sentence: str, secured: Secured, check: Check, tmp_path: Path
) -> None:
    login = secured.login("OAUTHBEARER").but(token=secured.forged_token())
    with check(client, "forged token"):
        assert sentence in said(client, secured.addresses["USERS"], login, secured, tmp_path)


def test_an_unsigned_token_is_refused(secured: Secured, check: Check, tmp_path: Path) -> None:
    """Java's client makes one if it has no other way to get a token, and librdkafka where it is told to."""
    handler = "org.apache.kafka.common.security.oauthbearer.internals.unsecured"
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    login, address = secured.login("OAUTHBEARER"), secured.addresses["USERS"]
    settings = {
        "sasl_login_callback_handler_class": f"{handler}.OAuthBearerUnsecuredLoginCallbackHandler",
        "sasl_jaas_config": f'{module} required unsecuredLoginStringClaim_sub="anna";',
    }
    with check("java", "unsigned token"):
        errors = said("java", address, login, secured, tmp_path, **settings)
        assert f"{INVALID} OAUTHBEARER" in errors
    options = {"enable_sasl_oauthbearer_unsecure_jwt": "true", "sasl_oauthbearer_config": "principal=anna"}
    with check("kcat", "unsigned token"):
        assert f"{INVALID} OAUTHBEARER" in said("kcat", address, login, secured, tmp_path, **options)


@pytest.mark.parametrize(
    ("client", "authority", "host"),
    [
        ("java", "PKIX path building failed", "No subject alternative names matching IP address 127.0.0.1"),
        ("kafkajs", "unable to verify the first certificate", "IP: 127.0.0.1 is not in the cert's list"),
        ("franz-go", "certificate signed by unknown authority", "cannot validate certificate for 127.0.0.1"),
        ("kcat", "certificate verify failed", "certificate verify failed"),
    ],
)
def test_a_client_leaves_a_broker_that_it_does_not_trust(
    client: str, authority: str, host: str, secured: Secured, check: Check, tmp_path: Path
) -> None:
    """Before it has sent a password: another authority, and the certificate of another host."""
    login = secured.login("PLAIN")
    with check(client, "untrusted broker"):
        other = login.but(ca=secured.stranger)
        assert authority in said(client, secured.addresses["USERS"], other, secured, tmp_path)
        assert host in said(client, secured.addresses["ELSEWHERE"], login, secured, tmp_path)


@pytest.mark.parametrize(
    ("client", "sentence"),
    [
        ("java", "certificate_required"),
        ("kafkajs", "alert certificate required"),
        ("franz-go", "tls: certificate required"),
        ("kcat", "alert certificate required"),
    ],
)
def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    client: str, sentence: str, secured: Secured, check: Check, tmp_path: Path
) -> None:
    login = secured.login(None).but(own=None)
    with check(client, "no certificate"):
        assert sentence in said(client, secured.addresses["CERTIFICATES"], login, secured, tmp_path)


@pytest.mark.parametrize(
    ("client", "creating", "producing"),
    [
        ("java", "TopicAuthorizationException", "TopicAuthorizationException"),
        ("kafkajs", "KafkaJSCreateTopicError: Not authorized", "Not authorized to access topics"),
        ("franz-go", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"),
        ("kcat", "Broker: Topic authorization failed", "Broker: Topic authorization failed"),
    ],
)
def test_a_user_without_acls_can_neither_create_a_topic_nor_produce(
    client: str, creating: str, producing: str, secured: Secured, check: Check, tmp_path: Path
) -> None:
    login = secured.login("PLAIN").but(user="bela", password=USERS["bela"])
    address = secured.addresses["USERS"]
    with check(client, "no ACL"):
        for step, sentence in (("create", creating), ("produce", producing)):
            assert sentence in said(client, address, login, secured, tmp_path, step)


@pytest.fixture
def old_kcat() -> Kcat:
    """kcat with librdkafka before 2.6.1, as Debian has it."""
    kcat = Kcat()
    version = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", kcat.version)
    assert version is not None
    if tuple(map(int, version.groups())) >= NONCE_FIXED:
        pytest.skip(f"kcat has {version[0]}, which does not repeat its nonce")
    return kcat


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_that_repeats_its_nonce_is_refused_and_the_log_says_why(
    mechanism: str, old_kcat: Kcat, secured: Secured, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    login = secured.login(mechanism)
    assert f"{INVALID} {mechanism}" in said("kcat", secured.addresses["USERS"], login, secured, tmp_path)
    reason = f"by {mechanism} at listener USERS: the client repeats its nonce, as librdkafka before 2.6.1"
    assert reason in caplog.text


def test_apache_kafka_refuses_a_client_that_repeats_its_nonce_too(old_kcat: Kcat, tmp_path: Path) -> None:
    """With the words of ours; a newer librdkafka gets in with the same password."""
    kafka: Any = confluent_kafka.admin
    mechanisms = {
        "SCRAM-SHA-256": kafka.ScramMechanism.SCRAM_SHA_256,
        "SCRAM-SHA-512": kafka.ScramMechanism.SCRAM_SHA_512,
    }
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    config = {
        "sasl.enabled.mechanisms": ",".join(mechanisms),
        **{f"listener.name.users.{each.lower()}.sasl.jaas.config": module for each in mechanisms},
    }
    with apache_kafka(tmp_path / "apache", config, {"USERS": "SASL_PLAINTEXT"}) as broker:
        with kafka.AdminClient({"bootstrap.servers": broker.bootstrap}) as admin:
            for each in mechanisms.values():
                info = kafka.ScramCredentialInfo(each, 4096)
                added = kafka.UserScramCredentialUpsertion("anna", info, b"secret")
                admin.alter_user_scram_credentials([added])["anna"].result()
        for mechanism in mechanisms:
            settings = {
                "bootstrap.servers": broker.addresses["USERS"],
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": "anna",
                "sasl.password": "secret",
            }
            with kafka.AdminClient(settings) as newer:
                assert newer.list_topics(timeout=SECONDS_MAX).brokers
            with Kcat(settings).start("-t", "orders", "-P") as process:
                _, errors = process.communicate("record\n", SCENARIO_SECONDS_MAX)
            assert process.returncode
            assert f"{INVALID} {mechanism}" in errors


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_java_client_authenticates_again_without_losing_a_record(
    mechanism: str, tmp_path: Path, check: Check
) -> None:
    """KIP-368: the connections of a producer and of a member of a group outlast their sessions."""
    settings = {"num.partitions": str(PARTITIONS), "connections.max.reauth.ms": SESSION_MS}
    with Secured(tmp_path, settings=settings) as secured, check("java", "authenticates again"):
        access = (secured.addresses["USERS"], secured.login(mechanism))
        steps = SixSteps("lasting", secured, access=access)
        plan = {**steps.plan(["create", "lasting"]), "reauthentications": REAUTHENTICATIONS}
        with running_program(java().command, plan, tmp_path) as hear:
            hear("create")
            seen = hear("lasting")
        assert seen["read"] == seen["sent"]
        assert len(seen["sent"]) > REAUTHENTICATIONS
        assert seen["connection-close-total"] == seen["failed-reauthentication-total"] == 0
