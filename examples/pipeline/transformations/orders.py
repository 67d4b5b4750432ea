"""Topics in, tables and a topic out: orders and payments cleaned, and the revenue of closed windows."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

DATA = os.path.abspath(os.environ.get("CORDWOOD_DATA_DIR", "data"))
spark = SparkSession.active()


def topic(name: str, schema: str, time: str) -> DataFrame:
    """Return the JSON values of a topic as columns; those that do not parse are left out.

    A record may come ten minutes later than the newest. That is said here: Spark cannot say it of a table
    that the pipeline makes itself.
    """
    source = spark.readStream.format("cordwood").option("path", DATA).option("subscribe", name)
    value = F.from_json(F.col("value").cast("string"), schema).alias("value")
    rows = source.option("startingOffsets", "earliest").load().select(value).select("value.*")
    return rows.where("order is not null").withWatermark(time, "10 minutes")


def placed() -> DataFrame:
    """Return the orders, each of them once though its producer may have sent it twice."""
    sent = topic("orders", "order long, item string, amount long, placed_at timestamp", "placed_at")
    return sent.where("amount > 0").dropDuplicatesWithinWatermark(["order"])


@dp.table(comment="Orders, each once.")
def orders() -> DataFrame:
    """Return a streaming table: each run adds what came since the last."""
    return placed()


@dp.table(comment="Payments, each once.")
def payments() -> DataFrame:
    """Return another, which the view of revenue joins with the first."""
    paid = topic("payments", "order long, paid long, paid_at timestamp", "paid_at")
    return paid.dropDuplicatesWithinWatermark(["order"])


dp.create_sink("revenue", "cordwood", {"path": DATA, "topic": "revenue"})


@dp.append_flow(target="revenue")
def closed_windows() -> DataFrame:
    """Return each window and item once, when no order can be late for it any more."""
    windows = placed().groupBy(F.window("placed_at", "15 minutes"), "item")
    summed = windows.agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
    fields = F.struct(F.col("window.start").alias("start"), "item", "revenue", "orders")
    return summed.select(F.col("item").alias("key"), F.to_json(fields).alias("value"))
