"""Passwords among the options of a source or sink by address: Spark keeps and shows none of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cordwood
from cordwood.spark.options import check_read_options, check_write_options

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: A broker without security does not ask for them, and they go the same way as to one that does.
SECRETS = {
    "kafka.security.protocol": "PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": f'{PLAIN} required username="anna" password="hidden-1";',
    "kafka.sasl.oauthbearer.client.secret": "hidden-2",
    "kafka.ssl.key.password": "hidden-3",
    "kafka.ssl.keystore.key": "hidden-4",
    "kafka.ssl.keystore.password": "hidden-5",
    "kafka.ssl.truststore.password": "hidden-6",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cordwood.Broker]:
    path = tmp_path_factory.mktemp("secrets") / "data"
    with cordwood.open(path) as log:
        log.topic("orders").append(b"axe")
    with cordwood.Broker(path) as running:
        yield running


def hidden(*texts: object) -> list[str]:
    return re.findall(r"hidden-\d", " ".join(map(str, texts)))


def given(broker: cordwood.Broker, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, **SECRETS, **more}


def test_no_password_is_in_a_plan_a_catalogue_or_an_error(
    spark: SparkSession, broker: cordwood.Broker
) -> None:
    frame = spark.read.format("cordwood").options(**given(broker, subscribe="orders")).load()
    assert frame.count() == 1
    execution = frame._jdf.queryExecution()
    assert "cordwood" in execution.toString()
    assert hidden(execution.toString(), execution.stringWithStats(), execution.simpleString()) == []
    written = ", ".join(f"`{name}` '{value}'" for name, value in given(broker, subscribe="orders").items())
    spark.sql(f"CREATE TABLE secret_orders USING cordwood OPTIONS ({written})")
    try:
        assert spark.table("secret_orders").count() == 1
        shown = [
            spark.sql(f"{statement} secret_orders").collect()
            for statement in (
                "DESCRIBE EXTENDED",
                "DESCRIBE FORMATTED",
                "SHOW CREATE TABLE",
                "EXPLAIN EXTENDED TABLE",
            )
        ]
        assert hidden(shown, spark.table("secret_orders")._jdf.queryExecution().toString()) == []
    finally:
        spark.sql("DROP TABLE secret_orders")
    with pytest.raises(PySparkException) as caught:
        spark.read.format("cordwood").options(**given(broker, subscribe="none")).load().collect()
    assert hidden(caught.value) == []


def test_no_password_is_in_a_checkpoint_or_in_the_progress_of_a_query(
    spark: SparkSession, broker: cordwood.Broker, tmp_path: Path
) -> None:
    source = given(broker, subscribe="orders", startingOffsets="earliest", **{"kafka.group.id": "mirror"})
    sink = given(broker, topic="copies", checkpointLocation=str(tmp_path / "checkpoint"))
    rows = spark.readStream.format("cordwood").options(**source).load().select("value")
    query = rows.writeStream.format("cordwood").options(**sink).trigger(availableNow=True).start()
    query.awaitTermination()
    copies = spark.read.format("cordwood").options(**given(broker, subscribe="copies")).load()
    assert copies.count() == 1
    execution = query._jsq.streamingQuery().lastExecution()
    assert hidden(query.recentProgress, query.status, execution.toString()) == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert [path for path in files if hidden(path.read_bytes())] == []


def test_no_representation_of_options_has_a_password() -> None:
    """Objects with options are in tracebacks and logs of programs."""
    options = {"kafka.bootstrap.servers": "localhost:1", **SECRETS}
    read = check_read_options({**options, "subscribe": "orders"})
    write = check_write_options({**options, "topic": "orders"})
    assert hidden(read.place.client) != hidden(read, write) == []
