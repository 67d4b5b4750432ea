"""Spark's own Kafka connector, told over stdin what to do: ``scan TOPIC``, ``write TOPIC``, ``end``."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(bootstrap: str, parquet: str) -> None:
    """Do what each line says and answer it."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        command, _, topic = line.strip().partition(" ")
        if command == "end":
            break
        if command == "scan":
            reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
            reader.option("subscribe", topic).load().write.format("noop").mode("overwrite").save()
        elif command == "write":
            writer = spark.read.parquet(parquet).write.format("kafka")
            writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
        print(f"done {line.strip()}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
