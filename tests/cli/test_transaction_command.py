"""``cordwood transaction``: on files from the internal topic, on a broker from its coordinator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from support.commands import refused, said
from support.patience import SECONDS_MAX, until

from cordwood import Broker

Where = list[object]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Run a server with a topic."""
    with Broker(tmp_path / "data") as running:
        said("topic", "create", "orders", "--bootstrap", running.bootstrap)
        yield running


@pytest.fixture(params=["held", "broker"])
def where(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Where:
    """Say where: the directory that a server holds, or the server by its address."""
    return ["--data", tmp_path / "data"] if request.param == "held" else ["--bootstrap", broker.bootstrap]


def began(broker: Broker, name: str = "payments") -> Producer:
    """Return a producer with an open transaction."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("orders", b"v")
    assert producer.flush(SECONDS_MAX) == 0
    return producer


def test_an_open_transaction_is_listed_and_described(broker: Broker, where: Where) -> None:
    producer = began(broker)
    (listed,) = json.loads(said("transaction", "list", "--open", "--json", *where))
    assert (listed["id"], listed["state"]) == ("payments", "Ongoing")
    assert listed["partitions"] == [["orders", 0]]
    assert "payments" in said("transaction", "list", *where)
    described = said("transaction", "describe", "payments", *where)
    assert described.startswith("transactional id payments, Ongoing, open for ")
    assert "orders" in described
    producer.commit_transaction(SECONDS_MAX)
    # A commit is answered once it is decided; the markers follow.
    until(lambda: said("transaction", "list", "--open", "--json", *where).strip() == "[]", "it has ended")


def test_an_aborted_transaction_can_never_be_committed(broker: Broker, where: Where) -> None:
    """X3: the producer is fenced."""
    producer = began(broker)
    assert said("transaction", "abort", "payments", "--dry-run", *where).startswith("would abort")
    assert said("transaction", "abort", "payments", *where).startswith("aborted the transaction of payments")
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS_MAX)
    assert "has no open transaction" in said("transaction", "abort", "payments", *where)


def test_an_unknown_transactional_id_is_one_error(broker: Broker, where: Where) -> None:
    for command in ("describe", "abort"):
        assert "there is no transactional id nobody" in refused("transaction", command, "nobody", *where)


def test_a_directory_without_transactions_lists_none(tmp_path: Path) -> None:
    where = ["--data", tmp_path / "data"]
    said("topic", "create", "orders", *where)
    assert json.loads(said("transaction", "list", "--json", *where)) == []
    assert "there is no transactional id x" in refused("transaction", "describe", "x", *where)


def test_a_broker_that_is_not_there_is_one_error() -> None:
    assert "127.0.0.1:1" in refused("transaction", "list", "--bootstrap", "127.0.0.1:1", "--timeout", "1")


def test_the_right_that_is_missing_is_named() -> None:
    with Broker(config={"authorizer.class.name": "cordwood"}) as running:
        told = refused("transaction", "describe", "copier", "--bootstrap", running.bootstrap)
    assert "this needs DESCRIBE on transactional id copier" in told
