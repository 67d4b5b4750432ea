"""A driver on a real cluster that writes, reads and speculates; what it found is a line of JSON after ``@``.

``python -m support.cluster_driver MASTER DATA ATTEMPTS``
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cordwood.spark.jobs.verifying import VerifyOptions, verify
from support.failing_source import FailingSource

ROWS, TASKS = 400, 4


def main(master: str, data: str, attempts: str) -> None:
    """Do all of it."""
    builder = SparkSession.builder.master(master).appName("cordwood cluster test")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.speculation.efficiency.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(FailingSource)
    number = F.col("id").cast("string")
    rows = spark.range(0, ROWS, 1, TASKS).select(number.alias("key"), number.alias("value"))
    rows.write.format("cordwood").option("path", data).option("topic", "plain").mode("append").save()
    reading = spark.read.format("cordwood").option("path", data).option("subscribe", "plain")
    read = reading.option("minPartitions", "4").load()
    found = [int(row.value) for row in read.select(F.col("value").cast("string").alias("value")).collect()]
    slow = rows.write.format("cordwood_failing").option("path", data).option("topic", "out")
    slow.option("attempts", attempts).option("mishap", "slow").mode("append").save()
    # A job of our own, whose work and results travel otherwise than rows do.
    report = verify(spark, VerifyOptions(data, "plain"))
    print("@", json.dumps({"read": sorted(found), "verified": asdict(report)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
