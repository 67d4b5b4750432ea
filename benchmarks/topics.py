"""Very many topics: what 1,000, 10,000 and 100,000 of them cost in the shared log, and Apache Kafka.

Each topic has one partition and gets ten records, all through librdkafka: topics are created and filled a
thousand at a time. Then the server is stopped and started again. Kafka gets the same, for ten minutes at
most, and what it had reached by then is printed; without Java and Maven it is left out by name.
``CORDWOOD_BENCH_TOPICS`` sets the largest number, ``CORDWOOD_BENCH_KAFKA_SECONDS`` Kafka's time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.measure import Figure

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from interop.apache_kafka import apache_kafka
from interop.toolbox import ToolMissing
from support.serving import ServerProcess, serving

TOPICS_MAX = int(os.environ.get("CORDWOOD_BENCH_TOPICS", "100000"))
KAFKA_SECONDS = float(os.environ.get("CORDWOOD_BENCH_KAFKA_SECONDS", "600"))
RECORDS = 10
AT_A_TIME = 1000
STEPS = (*(step for step in (1000, 10_000, 100_000) if step < TOPICS_MAX), TOPICS_MAX)
SHARED = {"cordwood.storage": "shared"}


class Stuck(Exception):
    """The server did not take what it was sent."""


class Standing(NamedTuple):
    """What a server with so many topics takes."""

    topics: int
    create_seconds: float
    fill_seconds: float
    rss_anon_mb: float
    open_files: int


def run() -> list[Figure]:
    """Measure ours at each size, then Kafka for as long as it may."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as room:
        for topics in STEPS:
            figures += ours(Path(room) / f"ours-{topics}", topics)
        try:
            figures += kafka(Path(room) / "kafka")
        except ToolMissing as missing:
            print(f"Kafka is left out: {missing}")
    return figures


def ours(data: Path, topics: int) -> list[Figure]:
    """Fill a server with *topics*, stop it, start it again, and read some of them back."""
    last = topics == STEPS[-1]
    with serving(data, SHARED) as server:
        *_, reached = growing(server.bootstrap, server.process.pid, topics)
        listing = seconds_of_listing(server.bootstrap)
    started = time.perf_counter()
    with serving(data, SHARED) as server:
        ready = time.perf_counter() - started
        check(server, topics)
        read = time.perf_counter() - started
        rss = rss_anon_mb(server.process.pid)
    goal = 1.0 if last else None
    name = f"{topics:,} topics"
    return [
        Figure(f"{name}: created", reached.create_seconds, "s"),
        Figure(f"{name}: filled", reached.fill_seconds, "s"),
        Figure(f"{name}: listed by one request", listing, "s"),
        Figure(f"{name}: RssAnon", reached.rss_anon_mb, "MB", goal and 500.0, at_most=True),
        Figure(f"{name}: open files", reached.open_files, "", goal and 99.0, at_most=True),
        Figure(f"{name}: ready after a restart", ready, "s", goal and 5.0, at_most=True),
        Figure(f"{name}: and read by a new client", read, "s", goal and 5.0, at_most=True),
        Figure(f"{name}: RssAnon after that", rss, "MB", goal and 500.0, at_most=True),
    ]


def kafka(data: Path) -> list[Figure]:
    """Fill Apache Kafka until it has as many, or its time is over."""
    reached = Standing(0, 0.0, 0.0, 0.0, 0)
    with apache_kafka(data) as server:
        until = time.monotonic() + KAFKA_SECONDS
        try:
            for standing in growing(server.bootstrap, server.pid, TOPICS_MAX):
                reached = standing
                if time.monotonic() > until:
                    break
        except (Stuck, KafkaException) as error:
            print(f"Kafka gave up after {reached.topics:,} topics: {error}")
    return [
        Figure(f"Kafka: topics within {KAFKA_SECONDS:.0f} s", reached.topics, ""),
        Figure("Kafka: created", reached.create_seconds, "s"),
        Figure("Kafka: filled", reached.fill_seconds, "s"),
        Figure("Kafka: RssAnon", reached.rss_anon_mb, "MB"),
        Figure("Kafka: open files", reached.open_files, ""),
    ]


def growing(bootstrap: str, pid: int, topics: int) -> Iterator[Standing]:
    """Create and fill topics, a thousand at a time, and say after each how it stands."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    created = filled = 0.0
    for start in range(0, topics, AT_A_TIME):
        names = [name_of(number) for number in range(start, min(start + AT_A_TIME, topics))]
        before = time.perf_counter()
        for made in admin.create_topics(
            [NewTopic(name, 1, 1) for name in names], request_timeout=120
        ).values():
            made.result(120)
        created += time.perf_counter() - before
        before = time.perf_counter()
        fill(bootstrap, names)
        filled += time.perf_counter() - before
        open_files = len(os.listdir(f"/proc/{pid}/fd"))
        standing = Standing(start + len(names), created, filled, rss_anon_mb(pid), open_files)
        if standing.topics % 10_000 == 0:
            print(standing, flush=True)
        yield standing


def name_of(number: int) -> str:
    """Return the name of a topic."""
    return f"events-{number:06d}"


def fill(bootstrap: str, names: list[str]) -> None:
    """Send ten records to each topic, acks=all; a producer of its own, so that it knows these topics only."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 100})
    for name in names:
        for number in range(RECORDS):
            producer.produce(name, f"{name} {number}", partition=0, on_delivery=delivered)
    if producer.flush(120) or failed:
        raise Stuck(f"not all records were acknowledged: {failed[0] if failed else 'no answer'}")


def check(server: ServerProcess, topics: int) -> None:
    """Read the first topic, the last one and one between them back, as a client that knows nothing."""
    names = [name_of(number) for number in sorted({0, topics // 2, topics - 1})]
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "bench", "log_level": 0})
    consumer.assign([TopicPartition(name, 0, 0) for name in names])
    got: dict[str | None, list[bytes | str | None]] = {name: [] for name in names}
    while any(len(values) < RECORDS for values in got.values()):
        message = consumer.poll(30)
        assert message is not None, f"only {got} came"
        assert message.error() is None, message.error()
        got[message.topic()].append(message.value())
    assert got == {name: [f"{name} {each}".encode() for each in range(RECORDS)] for name in names}
    consumer.close()


def seconds_of_listing(bootstrap: str) -> float:
    """Return how long a client waits for the names of all topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    started = time.perf_counter()
    admin.list_topics(timeout=60)
    return time.perf_counter() - started


def rss_anon_mb(pid: int) -> float:
    """Return the anonymous memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1000
