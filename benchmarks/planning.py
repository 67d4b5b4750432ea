"""Planning a streaming trigger by address: 10 and 100 topics, on a server that has 1,300.

A trigger asks for the latest offsets and then for the partitions, as Spark does. The first one of a query
also looks at the size of records. ``CORDWOOD_BENCH_TOPICS`` sets how many topics the server has.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql.streaming.datasource import ReadAllAvailable

import cordwood
from benchmarks.measure import Figure
from cordwood.spark.source import StreamReader, spark_schema

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.serving import serving

TOPICS = int(os.environ.get("CORDWOOD_BENCH_TOPICS", "1300"))
FEW, MANY = 10, 100
RECORDS = 100
ROUNDS = 5
SHARED = {"cordwood.storage": "shared"}


def run() -> list[Figure]:
    """Measure both, in turn, and compare them."""
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as room:
        data = Path(room) / "data"
        with cordwood.open(data) as log:
            for number in range(TOPICS):
                log.topic(f"topic-{number:06}", 1, SHARED).append_many([(None, bytes(100))] * RECORDS)
        with serving(data) as server:
            first, later = {}, {}
            for count in (FEW, MANY):
                first[count], later[count] = triggers(server.bootstrap, count)
    ratio = later[MANY] / later[FEW]
    return [
        Figure(f"a query's first trigger of {FEW} topics, planned", first[FEW], "s"),
        Figure(f"a query's first trigger of {MANY} topics, planned", first[MANY], "s"),
        Figure(f"a later trigger of {FEW} topics, planned", later[FEW], "s"),
        Figure(f"a later trigger of {MANY} topics, planned", later[MANY], "s", goal=2.0, at_most=True),
        Figure(f"{MANY} topics for {FEW}, later triggers", ratio, "times", goal=MANY / FEW, at_most=True),
    ]


def triggers(bootstrap: str, count: int) -> tuple[float, float]:
    """Return the seconds of a query's first trigger, and of the best of the later ones."""
    names = ",".join(f"topic-{number:06}" for number in range(count))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": names, "startingOffsets": "earliest"}
    reader = StreamReader(options, spark_schema(include_headers=False))
    try:
        start = reader.initialOffset()
        seconds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            end = reader.latestOffset(start, ReadAllAvailable())
            reader.reportLatestOffset()
            planned = reader.partitions(start, end)
            seconds.append(time.perf_counter() - began)
            assert planned
    finally:
        reader.stop()
    return seconds[0], min(seconds[1:])
