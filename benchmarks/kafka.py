"""Side by side with Apache Kafka: same machine, same clients, rounds in turn.

Three servers run all the time: ours, which syncs before it acknowledges; Kafka as it comes, which does not;
and Kafka with ``flush.messages=1``, which does. Each client and load goes to one after the other, and the
best round of each counts. Needs Java and Maven; says so and measures nothing without them.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.measure import Figure

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from interop.apache_kafka import apache_kafka
from interop.kafka_jars import java_command
from interop.toolbox import ToolMissing
from support.serving import serving

ROUNDS = 3
SIZES = (100, 1000)
PARTITIONS = (1, 6, 100)
#: How many bytes one round of a client moves.
ROUND_BYTES = 100_000_000
SMALL_ROUND_BYTES = 30_000_000
LATENCY_CALLS = 400
OURS, KAFKA, FLUSHED = "ours", "Kafka", "Kafka flushing"


class Side:
    """A server, and what belongs to it."""

    def __init__(self, name: str, bootstrap: str, pid: int, topic_config: dict[str, str]) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.pid = pid
        self._topic_config = topic_config
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def new_topic(self, name: str, partitions: int) -> str:
        """Make a topic and return its name."""
        topic = NewTopic(name, partitions, 1, config=self._topic_config)
        for made in self._admin.create_topics([topic]).values():
            made.result(30)
        return name

    def drop_topic(self, name: str) -> None:
        """Remove a topic."""
        for gone in self._admin.delete_topics([name]).values():
            gone.result(30)

    def memory(self) -> tuple[float, float]:
        """Return anonymous and all resident memory in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if "kB" in line}
        return int(found["RssAnon"]) / 1000, int(found["VmRSS"]) / 1000


@contextmanager
def sides() -> Iterator[list[Side]]:
    """Start all three."""
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-")))
        ours = stack.enter_context(serving(room / "ours"))
        kafka = stack.enter_context(apache_kafka(room / "kafka"))
        yield [
            Side(OURS, ours.bootstrap, ours.process.pid, {}),
            Side(KAFKA, kafka.bootstrap, kafka.pid, {}),
            Side(FLUSHED, kafka.bootstrap, kafka.pid, {"flush.messages": "1"}),
        ]


def produce(bootstrap: str, topic: str, size: int, count: int) -> float:
    """Send *count* records with librdkafka as it comes, acks=all, and return the seconds it took."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "partitioner": "random",
            "sticky.partitioning.linger.ms": 5,
        }
    )
    value = os.urandom(size)
    producer.list_topics(topic, timeout=30)
    started = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 200 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    seconds = time.perf_counter() - started
    assert not failed, failed[0]
    return seconds


def consume(bootstrap: str, topic: str, partitions: int, count: int) -> float:
    """Read *count* records with librdkafka and return the seconds it took."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "log_level": 0})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    started = time.perf_counter()
    left = count
    while left > 0:
        messages = consumer.consume(10_000, 10)
        assert messages, f"{left} records did not come"
        left -= sum(message.error() is None for message in messages)
    seconds = time.perf_counter() - started
    consumer.close()
    return seconds


def produce_java(bootstrap: str, topic: str, size: int, count: int) -> float:
    """Send *count* records with Kafka's own performance tool, acks=all, and return the seconds it says."""
    arguments = [
        *("--topic", topic, "--num-records", str(count), "--record-size", str(size), "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={bootstrap}", "acks=all"),
    ]
    printed = _run_java("org.apache.kafka.tools.ProducerPerformance", arguments)
    rate = re.findall(r"([\d.]+) records/sec", printed)[-1]
    return count / float(rate)


def consume_java(bootstrap: str, topic: str, partitions: int, count: int) -> float:
    """Read *count* records with Kafka's own performance tool and return the seconds it says."""
    arguments = [
        *("--topic", topic, "--bootstrap-server", bootstrap, "--num-records", str(count)),
        *("--group", f"bench-{time.monotonic_ns()}", "--timeout", "30000"),
    ]
    printed = _run_java("org.apache.kafka.tools.ConsumerPerformance", arguments)
    fields = printed.strip().splitlines()[-1].split(", ")
    return count / float(fields[-1])


def _run_java(main: str, arguments: list[str]) -> str:
    done = subprocess.run(
        java_command(main, arguments, ("-Xmx512m",)), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def latencies(bootstrap: str, topic: str) -> list[float]:
    """Send records one at a time, each acknowledged before the next, and return milliseconds, sorted."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 0})
    measured = []
    for _ in range(LATENCY_CALLS):
        started = time.perf_counter()
        producer.produce(topic, b"x" * 100)
        assert producer.flush(30) == 0
        measured.append((time.perf_counter() - started) * 1000)
    return sorted(measured[LATENCY_CALLS // 10 :])


def throughput(servers: list[Side], client: str, size: int, partitions: int) -> list[Figure]:
    """Measure one load on all servers in turn."""
    send, read = (produce, consume) if client == "librdkafka" else (produce_java, consume_java)
    count = (ROUND_BYTES if size >= 1000 else SMALL_ROUND_BYTES) // size
    sent: dict[str, float] = {}
    got: dict[str, float] = {}
    for number in range(ROUNDS):
        for side in servers:
            topic = side.new_topic(f"{client}-{size}-{partitions}-{number}-{len(side.name)}", partitions)
            seconds = send(side.bootstrap, topic, size, count)
            sent[side.name] = min(sent.get(side.name, seconds), seconds)
            seconds = read(side.bootstrap, topic, partitions, count)
            got[side.name] = min(got.get(side.name, seconds), seconds)
            side.drop_topic(topic)
    load = f"{client}, {size} B, {partitions} partition{'s' * (partitions > 1)}"
    return [
        *_figures(f"produce, {load}", sent, count, size, goal=client == "librdkafka"),
        *_figures(f"consume, {load}", got, count, size),
    ]


def _figures(
    name: str, seconds: dict[str, float], count: int, size: int, *, goal: bool = False
) -> list[Figure]:
    ours = seconds[OURS]
    figures = [
        Figure(f"{name}: ours", count * size / ours / 1e6, f"MB/s, {count / ours / 1e3:,.0f} k records/s")
    ]
    for other in (KAFKA, FLUSHED):
        wanted = {KAFKA: 1.0, FLUSHED: 2.0}[other] if goal else None
        figures.append(Figure(f"{name}: ours / {other}", seconds[other] / ours, "x", wanted))
    return figures


def unbatched(servers: list[Side]) -> list[Figure]:
    """Measure how long one record takes, one after the other."""
    figures = []
    for side in servers:
        rounds = [
            latencies(side.bootstrap, side.new_topic(f"unbatched-{number}-{len(side.name)}", 1))
            for number in range(ROUNDS)
        ]
        best = min(rounds, key=statistics.median)
        p50, p99 = best[len(best) // 2], best[len(best) * 99 // 100]
        figures.append(Figure(f"unbatched produce p50: {side.name}", p50, "ms"))
        figures.append(Figure(f"unbatched produce p99: {side.name}", p99, "ms"))
    return figures


def start_up() -> list[Figure]:
    """Measure the time from starting a process to the first acknowledgement, and memory when idle."""

    def first_acknowledgement(bootstrap: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        producer.produce("first", b"x")
        assert producer.flush(60) == 0

    def timed(start: Callable[[Path], object]) -> float:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as room:
            started = time.perf_counter()
            start(Path(room))
            return time.perf_counter() - started

    def ours(room: Path) -> None:
        with serving(room / "data") as server:
            first_acknowledgement(server.bootstrap)

    def kafka(room: Path) -> None:
        with apache_kafka(room / "data") as server:
            first_acknowledgement(server.bootstrap)
            formatted.append(time.perf_counter())

    formatted: list[float] = []
    mine, theirs = min(timed(ours) for _ in range(3)), min(timed(kafka) for _ in range(2))
    return [
        Figure("start to first acknowledgement and stop: ours", mine, "s"),
        Figure(
            "start to first acknowledgement and stop: ours / Kafka", mine / theirs, "x", 0.25, at_most=True
        ),
    ]


def memory(servers: list[Side], when: str) -> list[Figure]:
    """Compare memory."""
    (ours_anon, ours_all), (kafka_anon, kafka_all) = servers[0].memory(), servers[1].memory()
    return [
        Figure(f"RssAnon {when}: ours", ours_anon, "MB"),
        Figure(f"RssAnon {when}: ours / Kafka", ours_anon / kafka_anon, "x", 0.2, at_most=True),
        Figure(f"RSS {when}: ours / Kafka", ours_all / kafka_all, "x", 0.2, at_most=True),
    ]


def run() -> list[Figure]:
    """Measure everything; nothing where Kafka cannot be had."""
    try:
        java_command("x")
    except ToolMissing as missing:
        print(f"kafka: skipped, {missing}")
        return []
    figures = start_up()
    with sides() as servers:
        figures += memory(servers, "idle")
        figures += unbatched(servers)
        for client in ("librdkafka", "Java"):
            for size in SIZES:
                for partitions in PARTITIONS:
                    figures += throughput(servers, client, size, partitions)
        figures += memory(servers, "after the load")
    return figures
