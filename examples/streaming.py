"""Revenue by window as plain Structured Streaming: what `pipeline/` declares, started and awaited by hand.

    CORDWOOD_DATA_DIR=data CHECKPOINT=.checkpoint python examples/streaming.py

Reads topic orders, writes topic revenue. Run it again and nothing is added; append orders, and only the
windows they close are.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

import cordwood

ORDER = "order long, item string, amount long, placed_at timestamp"
WINDOW = "15 minutes"
#: How much later than the newest an order may come and still be counted.
LATE = "10 minutes"


def cleaned(records: DataFrame) -> DataFrame:
    """Return the orders of a topic, each once; a value that does not parse is left out."""
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("value")
    orders = records.select(order).select("value.*").where("order is not null and amount > 0")
    return orders.withWatermark("placed_at", LATE).dropDuplicatesWithinWatermark(["order"])


def revenue(orders: DataFrame) -> DataFrame:
    """Return the revenue of each item in each window, once no order can be late for it any more."""
    windows = orders.groupBy(F.window("placed_at", WINDOW), "item")
    summed = windows.agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
    fields = F.struct(F.col("window.start").alias("start"), "item", "revenue", "orders")
    return summed.select(F.col("item").alias("key"), F.to_json(fields).alias("value"))


def run(spark: SparkSession, source: dict[str, str], sink: dict[str, str], checkpoint: str) -> None:
    """Process what came since the last run of this checkpoint, and return when that is done."""
    reader = spark.readStream.format("cordwood").options(**source, subscribe="orders")
    records = reader.option("startingOffsets", "earliest").load()
    writer = revenue(cleaned(records)).writeStream.format("cordwood").options(**sink, topic="revenue")
    writer = writer.option("checkpointLocation", checkpoint).outputMode("append")
    writer.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Run it on a data directory."""
    data = {"path": os.path.abspath(os.environ.get("CORDWOOD_DATA_DIR", "data"))}
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    spark = cordwood.spark.session("revenue", config=settings)
    run(spark, data, data, os.path.abspath(os.environ.get("CHECKPOINT", ".checkpoint")))
    topic = spark.read.format("cordwood").options(**data, subscribe="revenue").schema("value binary").load()
    print(f"topic revenue has {topic.count()} closed windows")
    spark.stop()


if __name__ == "__main__":
    main()
