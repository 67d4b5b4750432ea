"""Real transactional producers of three clients: commit, abort, fencing, timeout, kill of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from support.patience import SECONDS_MAX, until
from support.serving import RawClient, ServerProcess, serving
from support.transactional import create_topic, describe, visible
from support.transactional_clients import CLIENTS

from cordwood import Broker

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "20"}


Make = Any
"""A class of `CLIENTS`."""
each_client = pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)


def seen(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Return the first *count* values that a consumer of committed records is given."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        return [message.value() or b"" for message in consumer.consume(count, SECONDS_MAX)]
    finally:
        consumer.close()


@each_client
def test_committed_records_are_read_and_aborted_ones_are_not(make: Make) -> None:
    with Broker(config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        create_topic(client, "ledger")
        producer = make(broker.bootstrap, "copier")
        try:
            producer.init()
            for number in range(6):
                producer.begin()
                for topic in ("orders", "ledger"):
                    producer.send(topic, b"%d" % number)
                if number % 2:
                    producer.abort()
                else:
                    producer.commit()
        finally:
            producer.close()
        for topic in ("orders", "ledger"):
            assert seen(broker.bootstrap, topic, 3) == visible(broker, topic) == [b"0", b"2", b"4"]


@each_client
def test_a_second_producer_of_the_same_id_fences_the_first(make: Make) -> None:
    with Broker(config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        first, second = make(broker.bootstrap, "copier"), make(broker.bootstrap, "copier")
        try:
            first.init()
            first.begin()
            first.send("orders", b"fenced")
            second.init()
            second.begin()
            second.send("orders", b"current")
            with pytest.raises(make.FENCED):
                first.commit()
            second.commit()
        finally:
            first.close()
            second.close()
        assert seen(broker.bootstrap, "orders", 1) == visible(broker, "orders") == [b"current"]


@each_client
def test_a_producer_that_is_silent_for_too_long_is_aborted(make: Make) -> None:
    with Broker(config=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        silent = make(broker.bootstrap, "copier", 1_000)
        try:
            silent.init()
            silent.begin()
            silent.send("orders", b"late")
            until(lambda: describe(client, "copier").transaction_state == "CompleteAbort", "the abort")
            with pytest.raises(make.FENCED):
                silent.commit()
        finally:
            silent.close()
        assert visible(broker, "orders") == []


def commit_over_a_kill(make: Make, server: ServerProcess) -> None:
    producer = make(server.bootstrap, "copier")
    try:
        producer.init()
        producer.begin()
        producer.send("orders", b"one")
        server.restart(kill=True)
        producer.send("orders", b"two")
        producer.commit()
    finally:
        producer.close()


@each_client
def test_a_transaction_survives_the_kill_of_the_server(make: Make, tmp_path: Path) -> None:
    with serving(tmp_path, SETTINGS) as server:
        with RawClient(server.address) as client:
            create_topic(client, "orders")
        commit_over_a_kill(make, server)
        assert seen(server.bootstrap, "orders", 2) == [b"one", b"two"]
