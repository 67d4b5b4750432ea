"""Compaction of ten million records with a million keys: how fast, in how much memory, and beside produce.

The log is filled once through the library. Then it is compacted in a process of its own, which says how much
anonymous memory it took at most; and once more, from a copy, by a server that a producer sends to meanwhile.
``CORDWOOD_BENCH_RECORDS`` sets how many records, a tenth of them keys.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

import cordwood
from benchmarks.measure import Figure

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.serving import ServerProcess, serving

RECORDS = int(os.environ.get("CORDWOOD_BENCH_RECORDS", "10000000"))
KEYS = max(RECORDS // 10, 1)
BATCH = 500
VALUE = b"v" * 100
CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(128 << 20)}
LATENCY_CALLS = 400
SECONDS_MAX = 600

_COMPACT = """
import json, sys, threading, time
import cordwood

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

log = cordwood.open(sys.argv[1])
before, peak, done = anonymous(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.01)

watching = threading.Thread(target=watch)
watching.start()
started = time.perf_counter()
(report,) = log.maintain(force=True).compacted
seconds = time.perf_counter() - started
done = True
watching.join()
log.close()
print(json.dumps({"seconds": seconds, "peak": peak, "before": before, "dropped": report.records_dropped,
    "bytes": report.bytes_before, "after": report.bytes_after, "passes": report.passes}))
"""


def run() -> list[Figure]:
    """Measure everything, and return the figures beside their goals."""
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as room:
        data = Path(room) / "data"
        fill(data)
        shutil.copytree(data, Path(room) / "served")
        found = json.loads(
            subprocess.run(
                [sys.executable, "-c", _COMPACT, str(data)], check=True, capture_output=True, text=True
            ).stdout
        )
        assert found["dropped"] >= RECORDS - 2 * KEYS, found
        evidence = sum(path.stat().st_size for path in data.glob("topics/t/0/chain/lists/*"))
        figures = [
            Figure("compaction, log read and written anew", found["bytes"] / found["seconds"] / 1e6, "MB/s"),
            Figure("compaction, records", RECORDS / found["seconds"] / 1e6, "M/s"),
            Figure("peak RssAnon of compaction", found["peak"] / 1e6, "MB", 400, at_most=True),
            Figure("passes", found["passes"], ""),
            Figure("evidence a dropped record", evidence / found["dropped"], "bytes", 70, at_most=True),
        ]
        return figures + beside_produce(Path(room) / "served")


def fill(data: Path) -> None:
    """Append the records, keys in random order."""
    dice = random.Random(5)
    with cordwood.open(data, sync="never") as log:
        topic = log.topic("t", config=CONFIG)
        for _ in range(0, RECORDS, BATCH):
            topic.append_many([(b"%08d" % dice.randrange(KEYS), VALUE) for _ in range(BATCH)], partition=0)
        topic.roll()


def beside_produce(data: Path) -> list[Figure]:
    """Return how long a producer that sends one record at a time waits, without and with a compaction."""
    settings = {"log.cleaner.backoff.ms": "200", "log.cleaner.enable": "false"}
    with serving(data, settings) as server:
        alone = latencies(server, lambda: True)
    size = log_bytes(data)
    with serving(data, {**settings, "log.cleaner.enable": "true"}) as server:
        # Until the log has become a third of what it was, it is being compacted.
        during = latencies(server, lambda: log_bytes(data) < size / 3)
    quiet, busy = (statistics.quantiles(found, n=100)[98] for found in (alone, during))
    return [
        Figure("produce p99 alone", quiet * 1e3, "ms"),
        Figure("produce p99 beside compaction", busy * 1e3, "ms"),
        Figure("produce p99 beside compaction / alone", busy / quiet, "x", 3.0, at_most=True),
        Figure("compaction in the server, until a third is left", len(during), "calls"),
    ]


def log_bytes(data: Path) -> int:
    """Return the size of the topic's segments that are in place."""
    return sum(path.stat().st_size for path in (data / "topics/t/0/segments").glob("*.log"))


def latencies(server: ServerProcess, done: Callable[[], bool]) -> list[float]:
    """Return the seconds that single synced records took, at least so many and until *done*."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})
    found: list[float] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < LATENCY_CALLS or not done():
        assert time.monotonic() < deadline, "the compaction does not come to an end"
        for _ in range(50):
            started = time.perf_counter()
            producer.produce("side", b"x" * 100)
            producer.flush()
            found.append(time.perf_counter() - started)
    return found
