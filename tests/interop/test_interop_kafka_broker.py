"""Our Spark source and sink against Apache Kafka: the same options, another broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from interop.apache_kafka import ApacheKafka, apache_kafka
from interop.report import Report
from pyspark.sql import SparkSession

import cordwood

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

NAME = 'format("cordwood") on Apache Kafka'
PARTITIONS = 2


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with apache_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = cordwood.spark.session(master="local[2]", config={"spark.ui.enabled": "false"})
    yield session
    session.stop()


def test_source_and_sink_on_apache_kafka(
    kafka: ApacheKafka, spark: SparkSession, report: Report, tmp_path: Path
) -> None:
    where = {"kafka.bootstrap.servers": kafka.bootstrap}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = [NewTopic(name, PARTITIONS, 1) for name in ("rows", "copy", "transactions")]
    for made in admin.create_topics(topics).values():
        made.result(30)

    def values(topic: str) -> list[str]:
        read = spark.read.format("cordwood").options(**where).option("subscribe", topic).load()
        return sorted(row[0] for row in read.selectExpr("string(value)").collect())

    with report.check("tools", NAME, "4.3", "batch write and read"):
        rows = spark.range(300).selectExpr("string(id) AS key", "concat('value ', id) AS value")
        rows.write.format("cordwood").options(**where).option("topic", "rows").mode("append").save()
        assert values("rows") == sorted(f"value {number}" for number in range(300))
    with report.check("tools", NAME, "4.3", "stream read and write, resumed from its checkpoint"):
        for _ in range(2):
            source = spark.readStream.format("cordwood").options(**where).option("subscribe", "rows")
            copy = source.option("startingOffsets", "earliest").load().select("key", "value")
            writer = copy.writeStream.format("cordwood").options(**where).option("topic", "copy")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination()
        assert values("copy") == values("rows")
    with report.check("tools", NAME, "4.3", "a range that ends in the markers of transactions"):
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t"})
        producer.init_transactions(30)
        for number in range(3):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("transactions", f"{number}", partition=partition)
            producer.commit_transaction(30)
        assert values("transactions") == sorted(f"{number}" for number in range(3) for _ in range(PARTITIONS))
