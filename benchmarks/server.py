"""The server with a real client: what syncing before every acknowledgement costs, and how long things take.

Two servers run side by side, each a process of its own: one syncs before it acknowledges, one never does.
A confluent-kafka producer with its default batching, acks=all, sends to one and then the other, round after
round; figures are medians, since a round is long enough to meet both luck and neighbours. Everything shares
the cores of this machine, clients included, and the file system under ``TMPDIR``.
"""

from __future__ import annotations

import itertools
import os
import random
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

from support.serving import ServerProcess, serving

POLICIES = ("each", "never")
ROUNDS = 7
PARTITIONS = (1, 6)
#: What a batch of librdkafka is at most, and a good part of what one sync covers.
CHUNK = 1_000_000
#: How many bytes of values one round moves.
ROUND_BYTES = 150_000_000
SMALL_ROUND_BYTES = 30_000_000
LATENCY_CALLS = 500
LATENCY_WARM_UP = 50
STARTS = 5
SEED = 20

_START = """
import time
started = time.perf_counter()
import cordwood
with cordwood.Broker() as broker:
    print(time.perf_counter() - started)
"""


def run() -> list[Figure]:
    """Measure everything, and return the figures beside their goals."""
    figures = start_up()
    with sides() as servers:
        figures.append(Figure("RssAnon of an idle server", servers["each"].rss_anon() / 1e6, "MB"))
        figures += floor(servers["each"].data.parent)
        figures += latency(servers)
        for partitions in PARTITIONS:
            figures += cost_of_syncing(servers, partitions)
        figures += small_records(servers)
        figures += consuming(servers)
        figures.append(Figure("RssAnon after the load", servers["each"].rss_anon() / 1e6, "MB"))
    return figures


# --- Servers and clients -------------------------------------------------------------------------


@contextmanager
def sides() -> Iterator[dict[str, ServerProcess]]:
    """Run one server for each policy."""
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cordwood-bench-")))
        yield {
            policy: stack.enter_context(serving(room / policy, {"cordwood.sync": policy}))
            for policy in POLICIES
        }


_topics = itertools.count()


@contextmanager
def new_topic(server: ServerProcess, partitions: int = 1) -> Iterator[str]:
    """Have a topic for as long as the context lasts."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    name = f"bench-{next(_topics)}"
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result(30)
    yield name
    for gone in admin.delete_topics([name]).values():
        gone.result(30)


def value_of(size: int) -> bytes:
    """Return a value of *size* bytes that is the same in every run and does not compress."""
    return random.Random(SEED).randbytes(size)


def produce(server: ServerProcess, topic: str, size: int, count: int) -> float:
    """Send *count* records and return the seconds until the last was acknowledged."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0, "acks": "all"})
    producer.list_topics(topic, timeout=30)
    value = value_of(size)
    started = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:
                # librdkafka's queue is full: wait for deliveries.
                producer.poll(0.01)
        if number % 200 == 0:
            producer.poll(0)
    left = producer.flush(60)
    seconds = time.perf_counter() - started
    assert left == 0
    assert not failed, failed[0]
    return seconds


def consume(server: ServerProcess, topic: str, partitions: int, count: int) -> float:
    """Read *count* records and return the seconds from the first request to the last record."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "log_level": 0, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    started = time.perf_counter()
    left = count
    while left > 0:
        messages = consumer.consume(10_000, 10)
        assert messages, f"{left} records did not come"
        left -= sum(message.error() is None for message in messages)
    seconds = time.perf_counter() - started
    consumer.close()
    return seconds


def in_turn(
    servers: dict[str, ServerProcess], measure: Callable[[ServerProcess], float]
) -> dict[str, list[float]]:
    """Measure every server, `ROUNDS` times, one after the other; the first of them takes turns too."""
    found: dict[str, list[float]] = {policy: [] for policy in servers}
    for number in range(ROUNDS):
        order = list(servers) if number % 2 else list(reversed(servers))
        for policy in order:
            found[policy].append(measure(servers[policy]))
    return found


def cpu_seconds(server: ServerProcess) -> float:
    """Return the processor time that the server has used."""
    return process_cpu_seconds(server.process.pid)


def process_cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- What is measured ----------------------------------------------------------------------------


def floor(directory: Path) -> list[Figure]:
    """Measure what the disk allows: a file written and synced a chunk at a time, by nobody else."""
    chunk, path = value_of(CHUNK), directory / "floor"
    rates = []
    for _ in range(3):
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        started = time.perf_counter()
        for position in range(0, ROUND_BYTES // 3, CHUNK):
            os.pwrite(descriptor, chunk, position)
            os.fdatasync(descriptor)
        rates.append(ROUND_BYTES / 3 / (time.perf_counter() - started) / 1e6)
        os.close(descriptor)
        path.unlink()
    return [Figure("floor: pwrite and fdatasync, 1 MB at a time", statistics.median(rates), "MB/s")]


def cost_of_syncing(servers: dict[str, ServerProcess], partitions: int) -> list[Figure]:
    """Compare producing 1 KB records with a sync before every acknowledgement and without."""
    size = 1000
    count = ROUND_BYTES // size

    def measure(server: ServerProcess) -> float:
        with new_topic(server, partitions) as topic:
            return produce(server, topic, size, count)

    before = cpu_seconds(servers["each"])
    found = in_turn(servers, measure)
    cpu = (cpu_seconds(servers["each"]) - before) / (ROUNDS * ROUND_BYTES / 1e9)
    name = f"produce 1 KB, {partitions} partition{'s' * (partitions > 1)}"
    ratios = [never / each for each, never in zip(found["each"], found["never"], strict=True)]
    return [
        *(
            Figure(f"{name}, {policy}", ROUND_BYTES / statistics.median(seconds) / 1e6, "MB/s")
            for policy, seconds in found.items()
        ),
        Figure(f"{name}, each / never", statistics.median(ratios), "x", 0.6),
        Figure(f"{name}, each, processor time of the server", cpu, "s/GB"),
    ]


def small_records(servers: dict[str, ServerProcess]) -> list[Figure]:
    """Measure records a second where the records are small."""
    size = 100
    count = SMALL_ROUND_BYTES // size

    def measure(server: ServerProcess) -> float:
        with new_topic(server) as topic:
            return produce(server, topic, size, count)

    return [
        Figure(f"produce 100 B, {policy}", count / statistics.median(seconds) / 1e3, "k records/s")
        for policy, seconds in in_turn(servers, measure).items()
    ]


def consuming(servers: dict[str, ServerProcess]) -> list[Figure]:
    """Measure reading back what was just produced."""
    size = 1000
    count = ROUND_BYTES // size
    figures = []
    for partitions in PARTITIONS:
        with new_topic(servers["each"], partitions) as topic:
            produce(servers["each"], topic, size, count)
            rounds = [consume(servers["each"], topic, partitions, count) for _ in range(ROUNDS)]
        name = f"consume 1 KB, {partitions} partition{'s' * (partitions > 1)}"
        figures.append(Figure(name, ROUND_BYTES / statistics.median(rounds) / 1e6, "MB/s"))
    return figures


def latency(servers: dict[str, ServerProcess]) -> list[Figure]:
    """Measure single records, each acknowledged before the next is sent."""
    figures = []
    for policy, server in servers.items():
        options = {"bootstrap.servers": server.bootstrap, "log_level": 0, "acks": "all", "linger.ms": 0}
        producer = Producer(options)
        milliseconds = []
        with new_topic(server) as topic:
            for _ in range(LATENCY_WARM_UP + LATENCY_CALLS):
                started = time.perf_counter()
                producer.produce(topic, value_of(100))
                assert producer.flush(30) == 0
                milliseconds.append((time.perf_counter() - started) * 1000)
        measured = sorted(milliseconds[LATENCY_WARM_UP:])
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            value = measured[int(len(measured) * share)]
            figures.append(Figure(f"one 100 B record at a time, {policy}, {name}", value, "ms"))
    return figures


def start_up() -> list[Figure]:
    """Measure how long a program waits for ``cordwood.Broker()``, importing it included."""
    seconds = []
    for _ in range(STARTS):
        done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout))
    # The best one: whatever else the machine does only ever adds to so short a time.
    return [Figure("import cordwood and Broker(), until it is ready", min(seconds), "s", 0.5, at_most=True)]
