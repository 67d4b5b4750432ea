"""Users with passwords and ACLs, as an operator sets them up with the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from support.commands import refused, said
from support.patience import SECONDS_MAX

from cordwood import Broker

#: The passwords of the users of these tests.
USERS = {"admin": "secret-of-admin", "alice": "secret-of-alice", "bob": "secret-of-bob"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    config = {"authorizer.class.name": "cordwood", "super.users": "User:admin"}
    with Broker(users=USERS, config=config) as running:
        yield running


def settings(broker: Broker, user: str) -> dict[str, Any]:
    """Return the settings of a client of *user*."""
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": USERS[user],
        "log_level": 0,
    }


def options(broker: Broker, user: str) -> list[str]:
    """Return the options of a command of *user*."""
    given = settings(broker, user)
    client = [f"{name}={given[name]}" for name in given if name.startswith(("security.", "sasl."))]
    return ["--bootstrap", broker.bootstrap, *(word for each in client for word in ("-X", each))]


def sent(broker: Broker, user: str, *, idempotent: bool = False) -> int | None:
    """Send a record as *user*; return the error code of its delivery, None if there was no error."""
    delivered: list[KafkaError | None] = []
    producer = Producer({**settings(broker, user), "enable.idempotence": idempotent})
    producer.produce("orders", b"v", on_delivery=lambda error, message: delivered.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    (error,) = delivered
    return None if error is None else int(error.code())


def received(broker: Broker, user: str) -> bytes | KafkaError | None:
    """Read as a member of the group of *user*: return the first record, or the first error."""
    consumer = Consumer({**settings(broker, user), "group.id": f"of-{user}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    try:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        return message.error() or message.value()
    finally:
        consumer.close()


def test_users_do_what_acls_allow_them_and_nothing_else(broker: Broker) -> None:
    as_admin = options(broker, "admin")
    said("topic", "create", "orders", *as_admin)
    said("acl", "add", "--allow-principal", "User:alice", "--producer", "--topic", "orders", *as_admin)
    consumer = ("--allow-principal", "User:bob", "--consumer", "--topic", "orders", "--group", "of-bob")
    said("acl", "add", *consumer, *as_admin)
    # An idempotent producer needs no right on the cluster, if it may write to any topic.
    assert sent(broker, "alice", idempotent=True) is None
    assert received(broker, "bob") == b"v"
    assert sent(broker, "bob") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    refused_to_alice = received(broker, "alice")
    assert isinstance(refused_to_alice, KafkaError)
    assert refused_to_alice.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert "this needs DESCRIBE on the cluster" in refused("acl", "list", *options(broker, "alice"))
    said("acl", "remove", "--allow-principal", "User:alice", "--producer", "--topic", "orders", *as_admin)
    assert sent(broker, "alice") == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_command_that_reads_without_a_group_needs_rights_on_the_topic_only(broker: Broker) -> None:
    as_admin, as_bob = options(broker, "admin"), options(broker, "bob")
    said("produce", "-t", "orders", *as_admin, stdin="axe\n")
    on_orders = ("acl", "add", "--allow-principal", "User:bob", "--topic", "orders", "--operation")
    said(*on_orders, "Describe", *as_admin)
    assert "Topic authorization failed" in refused("consume", "-t", "orders", "-e", *as_bob)
    said(*on_orders, "Read", *as_admin)
    assert said("consume", "-t", "orders", "-e", *as_bob) == "axe\n"
    by_group = refused("consume", "-t", "orders", "--group", "billing", "-e", *as_bob)
    assert "this needs DESCRIBE on group billing" in by_group


@pytest.mark.parametrize("org", [0, 7])
def test_a_user_of_an_org_without_a_listener_has_the_acls_of_that_org(tmp_path: Path, org: int) -> None:
    """What org 0 allows a user of the same name is nothing in the org that the rules give it."""
    data = tmp_path / "data"
    producer = ("--allow-principal", "User:bob", "--producer", "--topic", "orders")
    said("acl", "add", *producer, "--org", org, "--data", data)
    config = {"authorizer.class.name": "cordwood", "cordwood.principal.tenant.rules": "RULE:bob/7/,DEFAULT"}
    with Broker(data, users=USERS, config=config) as broker:
        assert sent(broker, "bob") == (None if org else KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_super_users_without_an_authorizer_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Everybody is one then, which nobody wants who names some."""
    with Broker(config={"super.users": "User:admin"}):
        pass
    assert "super.users has no effect without authorizer.class.name" in caplog.text
