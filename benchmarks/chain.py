"""What chains cost a server: throughput and p99 at half the rate that it can take, and how far they lag.

The same producer sends to the same server with ``cordwood.chain`` off and on, in turns: records of 1 KB to a
topic that only deletes, and of 100 bytes to a compacted one, whose leaves commit to each record. The server
looks how far its chains are behind, in time: how long ago the oldest record was synced that has no leaf yet.
``CORDWOOD_BENCH_SECONDS`` sets how long each run is.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.measure import Figure

SECONDS = float(os.environ.get("CORDWOOD_BENCH_SECONDS", "6"))
PARTITIONS = 6
VALUE = os.urandom(1024)
SMALL = os.urandom(84)
TICK_SECONDS = 0.01
TURNS = 3
KEYS = 10_000

_SERVE = """
import collections, json, sys, threading, time
import cordwood

seen, worst, done = collections.defaultdict(collections.deque), 0.0, threading.Event()

with cordwood.Broker(sys.argv[1], config=json.loads(sys.argv[2])) as broker:
    directory = broker._node.directory

    def behind():
        now, most = time.monotonic(), 0.0
        for log in directory.partitions.opened_logs():
            if log.config.chain:
                end, times = log.high_watermark, seen[log]
                followed = end - directory.chains.lag(log)
                times.append((now, end))
                while times and times[0][1] <= followed:
                    times.popleft()
                most = max(most, now - times[0][0] if times else 0.0)
        return most

    def watch():
        global worst
        while not done.wait(0.05):
            worst = max(worst, behind())

    watching = threading.Thread(target=watch)
    watching.start()
    print(broker.bootstrap, flush=True)
    for line in sys.stdin:
        if line == "caught up\\n":
            started = time.monotonic()
            while behind() > 0:
                time.sleep(0.005)
            print(time.monotonic() - started, flush=True)
        else:
            print(worst, flush=True)
            worst = 0.0
    done.set()
    watching.join()
"""


class Sent(NamedTuple):
    """Records a second that were acknowledged, and the p99 of how long each waited, in seconds."""

    rate: float
    p99: float


def run() -> list[Figure]:
    """Measure everything, and return the figures beside their goals."""
    return [*frames(), *records()]


def records() -> list[Figure]:
    """Measure leaves that commit to records, of records of 100 bytes."""
    off, on, lags = [], [], []
    with served(chain=False, policy="compact") as (_, bootstrap):
        most = send(bootstrap, None, SMALL).rate
    for _ in range(TURNS):
        with served(chain=False, policy="compact") as (_, bootstrap):
            off.append(send(bootstrap, most / 2, SMALL).rate)
        with served(chain=True, policy="compact") as (process, bootstrap):
            on.append(send(bootstrap, most / 2, SMALL).rate)
            lags.append(asked(process, "lag"))
    ratio = statistics.median(a / b for a, b in zip(on, off, strict=True))
    return [
        Figure("produce 100 B records to a compacted topic, chain off", most / 1e3, "k/s"),
        Figure("throughput at half of that, chain on / off", ratio, "x", 0.9),
        Figure("longest lag of a chain of records meanwhile", max(lags), "s"),
    ]


def frames() -> list[Figure]:
    """Measure leaves that commit to frames, of records of 1 KB."""
    off, on = [], []
    with served(chain=False) as (process, bootstrap):
        most = send(bootstrap, None).rate
    lags, full_on, caught_up = [], [], []
    for _ in range(TURNS):
        with served(chain=False) as (_, bootstrap):
            off.append(send(bootstrap, most / 2))
        with served(chain=True) as (process, bootstrap):
            on.append(send(bootstrap, most / 2))
            lags.append(asked(process, "lag"))
            full_on.append(send(bootstrap, None).rate)
            caught_up.append(asked(process, "caught up"))
    with served(chain=False) as (_, bootstrap):
        full_off = send(bootstrap, None).rate

    pairs = list(zip(on, off, strict=True))
    rates = statistics.median(a.rate / b.rate for a, b in pairs)
    waits = statistics.median(a.p99 / b.p99 for a, b in pairs)
    return [
        Figure("produce, chain off, as fast as it goes", most * 1024 / 1e6, "MB/s"),
        Figure("throughput at half of that, chain on / off", rates, "x", 0.9),
        Figure("p99 at half of that, chain on / off", waits, "x", 1.1, at_most=True),
        Figure("p99 at half of that, chain on", statistics.median(each.p99 for each in on) * 1e3, "ms"),
        Figure("longest lag of a chain meanwhile", max(lags), "s", 1.0, at_most=True),
        Figure("as fast as it goes, chain on / off", statistics.median(full_on) / max(full_off, most), "x"),
        Figure("until the chain has caught up after that", statistics.median(caught_up), "s"),
    ]


@contextmanager
def served(*, chain: bool, policy: str = "delete") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server in a process of its own, with a topic whose log has a chain or has none."""
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as room:
        config = json.dumps({"cordwood.chain": str(chain).lower(), "log.cleanup.policy": policy})
        command = [sys.executable, "-c", _SERVE, str(Path(room) / "data"), config]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            bootstrap = process.stdout.readline().strip()
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(10)
            yield process, bootstrap
            process.stdin.close()
            process.wait(60)


def asked(process: subprocess.Popen[str], question: str) -> float:
    """Return what the server says."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{question}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def send(bootstrap: str, rate: float | None, value: bytes = VALUE) -> Sent:
    """Send for a while, *rate* records a second or as many as it takes. Each has a key of 16 bytes."""
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 20_000}
    producer = Producer(settings)
    waits: list[float] = []
    delivered = 0

    def taken(error: KafkaError | None, message: Message) -> None:
        nonlocal delivered
        assert error is None, error
        delivered += 1
        waits.append(message.latency() or 0.0)

    options: dict[str, Any] = {"on_delivery": taken}
    started, sent = time.perf_counter(), 0
    while (now := time.perf_counter() - started) < SECONDS:
        due = sent + 500 if rate is None else int(now * rate)
        while sent < due:
            try:
                key = b"%016d" % (sent % KEYS)
                producer.produce("t", value, key, partition=sent // 50 % PARTITIONS, **options)
                sent += 1
            except BufferError:
                producer.poll(0.005)
        producer.poll(0 if rate is None else TICK_SECONDS)
    producer.flush()
    return Sent(delivered / (time.perf_counter() - started), statistics.quantiles(waits, n=100)[98])
