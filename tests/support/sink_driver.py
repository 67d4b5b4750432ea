"""A Spark driver in a process of its own that does the jobs it is told on its input, until it is killed.

A job is a line of JSON. It is answered by a line: ``@done``, or ``@failed`` and why.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from support.killed_source import KilledSource


def start() -> SparkSession:
    """Start Spark, quickly and quietly: most of a test's time goes to this."""
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.dataSource.register(KilledSource)
    return spark


def run_stream(spark: SparkSession, job: dict[str, Any]) -> None:
    """Copy a topic as a streaming query, as far as it goes now."""
    rows = spark.readStream.format("cordwood").options(**job["read"]).load().select("key", "value")
    writer = rows.writeStream.format("cordwood_killed").options(**job["write"]).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()


def run_batches(spark: SparkSession, job: dict[str, Any]) -> None:
    """Copy ranges of a topic, each as a transaction with a number; those that were copied before as well."""
    for version, limits in enumerate(job["ranges"]):
        rows = spark.read.format("cordwood").options(**job["read"], **limits).load().select("key", "value")
        writer = rows.write.format("cordwood_killed").options(**job["write"]).option("txnAppId", job["name"])
        writer.option("txnVersion", str(version)).mode("append").save()


def main() -> None:
    """Do jobs until there are no more."""
    spark = start()
    print("@ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            (run_batches if "ranges" in job else run_stream)(spark, job)
        except Exception as error:
            print("@failed", json.dumps(str(error)[-3000:]), flush=True)
        else:
            print("@done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
