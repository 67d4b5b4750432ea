"""Spark's own Kafka source and sink. What to do is in a JSON file; what was seen is printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession  # type: ignore[import-not-found, unused-ignore]

COLUMNS = (
    "partition",
    "offset",
    "CAST(key AS STRING)",
    "CAST(value AS STRING)",
    "unix_millis(timestamp) AS timestamp",
    "transform(headers, h -> array(h.key, CAST(h.value AS STRING))) AS headers",
)


def say(step: str, **seen: Any) -> None:
    """Print what a step saw, and wait until that was looked at."""
    print(json.dumps({"step": step, **seen}), flush=True)
    sys.stdin.readline()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the records of a frame that the source made."""
    return [row.asDict() for row in frame.selectExpr(*COLUMNS).collect()]


def main() -> None:
    """Go through the steps."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(plan["jars"]))
        .config("spark.ui.enabled", False)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    client = {"bootstrap.servers": plan["bootstrap"], **plan["settings"]}
    address = {f"kafka.{name}": value for name, value in client.items()}

    def source(reader: Any, topic: str, **options: str) -> DataFrame:
        given = {**address, "includeHeaders": "true", **options}
        found: DataFrame = reader.format("kafka").options(**given).option("subscribe", topic).load()
        return found

    def sink(writer: Any, topic: str) -> Any:
        return writer.format("kafka").options(**address, topic=topic)

    def drain(frame: DataFrame, name: str) -> list[dict[str, Any]]:
        """Read a stream to its end as it is now, into a table."""
        query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [one["batchId"] for one in query.recentProgress if one["numInputRows"]]
        assert len(batches) > 1, "all of it came in one micro-batch"
        return rows(spark.table(name))

    topic, time = plan["topic"], str(plan["time"])
    # A few records a micro-batch, so that a stream has several of them to get right.
    few = {"maxOffsetsPerTrigger": "60"}
    say("batch", rows=rows(source(spark.read, topic, startingOffsets="earliest")))
    ranges = {"startingOffsets": json.dumps(plan["starts"]), "endingOffsets": json.dumps(plan["ends"])}
    say("offsets", rows=rows(source(spark.read, topic, **ranges)))
    say("time", rows=rows(source(spark.read, topic, startingTimestamp=time)))
    say(
        "stream",
        rows=drain(source(spark.readStream, topic, startingOffsets="earliest", **few), "all_records"),
    )
    say(
        "stream time",
        rows=drain(source(spark.readStream, topic, startingTimestamp=time, **few), "later_records"),
    )

    sink(source(spark.read, topic).select("key", "value", "headers", "partition").write, plan["copy"]).save()
    say("sink", rows=rows(source(spark.read, plan["copy"])))

    # Twice with one checkpoint; there is more to read the second time.
    for _ in range(2):
        stream = source(spark.readStream, topic, startingOffsets="earliest", **few)
        writer = sink(stream.select("key", "value", "headers", "partition").writeStream, plan["stream_copy"])
        query = writer.option("checkpointLocation", plan["checkpoint"]).trigger(availableNow=True).start()
        query.awaitTermination()
        say("stream sink")
    spark.stop()


if __name__ == "__main__":
    main()
