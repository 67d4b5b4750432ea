"""SCRAM users are created, changed, listed and deleted by any admin client, and stay in the directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from support.patience import SECONDS_MAX
from support.sasl import SaslClient

from cordwood import Broker
from cordwood.errors import InvalidSetting
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.authentication import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from cordwood.protocol.messages.security import DescribeUserScramCredentialsRequest, UserName
from cordwood.security import ScramMechanism, salted

BOTH = {
    "listener.security.protocol.map": "OPEN:PLAINTEXT,USERS:SASL_PLAINTEXT,TENANT:PLAINTEXT",
    "cordwood.listener.TENANT.org": "7",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": "1",
}
LISTEN = "OPEN://localhost:0,USERS://localhost:0,TENANT://localhost:0"
SALT, ITERATIONS = b"salt of a client", 4096


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(listen=LISTEN, config=BOTH) as started:
        yield started


@pytest.fixture
def raw(broker: Broker) -> Iterator[SaslClient]:
    with SaslClient(broker.addresses["OPEN"]) as connected:
        yield connected


def setting(name: str, password: str, mechanism: int = 1, **changed: Any) -> ScramCredentialUpsertion:
    salted_password = salted(ScramMechanism(mechanism), password, SALT, ITERATIONS)
    fields = {"iterations": ITERATIONS, "salt": SALT, "salted_password": salted_password, **changed}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, **fields)


def alter(
    client: SaslClient, *changes: ScramCredentialUpsertion | ScramCredentialDeletion
) -> dict[str, ErrorCode]:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    results = client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request).results
    assert all(bool(each.error_message) == bool(each.error_code) for each in results)
    return {each.user: ErrorCode(each.error_code) for each in results}


def described(client: SaslClient, *names: str) -> dict[str, list[tuple[int, int]] | ErrorCode]:
    users = [UserName(name=name) for name in names] if names else None
    answer = client.ask(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users=users)
    )
    assert answer.error_code == 0
    return {
        each.user: ErrorCode(each.error_code)
        if each.error_code
        else [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in answer.results
    }


def gets_in(broker: Broker, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
    with SaslClient(broker.addresses["USERS"]) as client:
        client.shake(mechanism)
        answer = (
            client.plain(name, password) if mechanism == "PLAIN" else client.scram(name, password, mechanism)
        )
        return not answer.error_code


def test_a_user_gets_in_once_it_exists_with_its_newest_password_and_not_once_it_is_deleted(
    broker: Broker, raw: SaslClient
) -> None:
    assert not gets_in(broker, "alice", "first")
    assert alter(raw, setting("alice", "first")) == {"alice": ErrorCode.NONE}
    assert gets_in(broker, "alice", "first")
    assert gets_in(broker, "alice", "first", "PLAIN")
    assert not gets_in(broker, "alice", "first", "SCRAM-SHA-512")
    assert alter(raw, setting("alice", "second")) == {"alice": ErrorCode.NONE}
    assert not gets_in(broker, "alice", "first")
    assert gets_in(broker, "alice", "second")
    assert alter(raw, ScramCredentialDeletion(name="alice", mechanism=1)) == {"alice": ErrorCode.NONE}
    assert not gets_in(broker, "alice", "second")
    assert not gets_in(broker, "alice", "second", "PLAIN")


def test_users_are_listed_with_mechanisms_and_iterations_and_nothing_else(raw: SaslClient) -> None:
    assert described(raw) == {}
    alter(raw, setting("bob", "x", 2), setting("alice", "x"))
    alter(raw, setting("alice", "x", 2, iterations=8192))
    assert described(raw) == {"alice": [(1, 4096), (2, 8192)], "bob": [(2, 4096)]}
    assert described(raw, "bob", "carol") == {"bob": [(2, 4096)], "carol": ErrorCode.RESOURCE_NOT_FOUND}
    assert described(raw, "bob", "bob") == {"bob": ErrorCode.DUPLICATE_RESOURCE}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (setting("", "x"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("a" * 1001, "x"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("a", "x", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("a", "x", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("a", "x", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("a", "x", salt=bytes(257)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("a", "x", salted_password=bytes(31)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramCredentialDeletion(name="a", mechanism=1), ErrorCode.RESOURCE_NOT_FOUND),
        (ScramCredentialDeletion(name="a", mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (ScramCredentialDeletion(name="", mechanism=1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_an_invalid_change_is_refused_with_kafkas_code_and_the_others_are_made(
    raw: SaslClient, change: ScramCredentialUpsertion | ScramCredentialDeletion, code: ErrorCode
) -> None:
    assert alter(raw, change, setting("other", "x")) == {change.name: code, "other": ErrorCode.NONE}
    assert described(raw) == {"other": [(1, 4096)]}


def test_a_user_that_is_named_twice_keeps_everything(raw: SaslClient) -> None:
    alter(raw, setting("alice", "x"))
    twice = alter(raw, ScramCredentialDeletion(name="alice", mechanism=1), setting("alice", "y", 2))
    assert twice == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert described(raw) == {"alice": [(1, 4096)]}


def test_clients_of_an_org_neither_see_nor_change_users(broker: Broker, raw: SaslClient) -> None:
    alter(raw, setting("alice", "x"))
    with SaslClient(broker.addresses["TENANT"]) as tenant:
        assert described(tenant) == {}
        assert described(tenant, "alice") == {"alice": ErrorCode.RESOURCE_NOT_FOUND}
        refused = {"alice": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        assert alter(tenant, setting("alice", "y")) == refused
        assert alter(tenant, ScramCredentialDeletion(name="alice", mechanism=1)) == refused
    assert gets_in(broker, "alice", "x")


def test_users_are_in_the_directory_and_their_passwords_are_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    users = {"alice": "sup3r-secret", "bob": "hidd3n-secret"}
    with Broker(data, users=users):
        pass
    size = (data / "meta/catalogue.log").stat().st_size
    with Broker(data, users=users) as again:
        for name, password in users.items():
            with SaslClient(again.bootstrap) as client:
                client.log_in(name, password)
    # Users that exist with this password are not written again.
    assert (data / "meta/catalogue.log").stat().st_size == size
    with Broker(data, users={"alice": "another-one"}) as changed:
        with SaslClient(changed.bootstrap) as client:
            client.log_in("alice", "another-one", "SCRAM-SHA-512")
        with SaslClient(changed.bootstrap) as client:
            client.log_in("bob", "hidd3n-secret", "PLAIN")
    content = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert b"scram-user" in content
    assert not any(password in content for password in (b"sup3r-secret", b"hidd3n-secret", b"another-one"))


def test_a_user_with_an_impossible_name_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="users"):
        Broker(tmp_path / "data", users={"": "x"})
    with Broker(tmp_path / "data"):
        pass


def admin(broker: Broker) -> confluent_kafka.admin.AdminClient:
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.addresses["OPEN"]})


def test_librdkafkas_admin_client_manages_users(broker: Broker) -> None:
    """It makes the salt itself, of random bytes."""
    kafka: Any = confluent_kafka.admin
    info = kafka.ScramCredentialInfo(kafka.ScramMechanism.SCRAM_SHA_512, 5000)
    client: Any = admin(broker)
    made = client.alter_user_scram_credentials(
        [kafka.UserScramCredentialUpsertion("carol", info, b"of-carol")], request_timeout=SECONDS_MAX
    )
    made["carol"].result()
    assert gets_in(broker, "carol", "of-carol", "SCRAM-SHA-512")
    found = client.describe_user_scram_credentials(["carol"], request_timeout=SECONDS_MAX)["carol"].result()
    assert [(each.mechanism.name, each.iterations) for each in found.scram_credential_infos] == [
        ("SCRAM_SHA_512", 5000)
    ]
    gone = client.alter_user_scram_credentials(
        [kafka.UserScramCredentialDeletion("carol", kafka.ScramMechanism.SCRAM_SHA_512)],
        request_timeout=SECONDS_MAX,
    )
    gone["carol"].result()
    assert not gets_in(broker, "carol", "of-carol", "SCRAM-SHA-512")
    missing = client.describe_user_scram_credentials(["carol"], request_timeout=SECONDS_MAX)["carol"]
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        missing.result()
    assert raised.value.args[0].code() == ErrorCode.RESOURCE_NOT_FOUND
