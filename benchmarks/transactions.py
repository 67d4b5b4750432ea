"""Transactions beside Apache Kafka, what they cost those that use none, and a topic full of aborted ones.

Three servers run at the same time: ours, which syncs before it answers; Kafka as it comes, which does not;
and Kafka with ``log.flush.interval.messages=1``, which does. Clients send transactions to one after the
other, and the best round of each counts. Needs Java and Maven; without them this part is skipped.

A client that fails is reported with the server it talked to. If that is Apache Kafka, the round does not
count, and the run goes on.

``CORDWOOD_OTHER`` names the ``src`` folder of a checkout from before there were transactions, with its
kernels compiled. The CPU time that each version's server needs to take and to give 1 GB without any
transaction is measured in turn, and the instructions for single requests; without it this part is skipped.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

import cordwood
from benchmarks import instructions, versions
from benchmarks.kafka import FLUSHED, KAFKA, OURS, Side
from benchmarks.measure import Figure
from benchmarks.server import cpu_seconds

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from interop.apache_kafka import apache_kafka
from interop.kafka_jars import java_command
from interop.toolbox import HERE, ToolMissing
from support.serving import ServerProcess, serving

ROUNDS = 3
#: How long each client sends in a round.
SECONDS = 2.0
SIZES = (1, 10, 1000)
PRODUCERS = (1, 8)
RECORD = bytes(100)
#: After how many aborted transactions a topic is read, and by how many producers it is filled.
ABORTED = (10_000, 100_000)
FILLERS = 16
#: One of this number of transactions is committed, so that there is something to read.
KEPT = 100
READS = 3
#: How much more a transaction may cost a reader where there are ten times as many.
LINEAR = 1.5


def run() -> list[Figure]:
    """Measure all three; parts that need something that is not there are skipped by name."""
    figures = without_transactions()
    try:
        java_command("x")
    except ToolMissing as missing:
        print(f"transactions beside Apache Kafka: skipped, {missing}")
        return figures
    with sides() as servers:
        for client in (librdkafka, java):
            for producers in PRODUCERS:
                for size in SIZES:
                    figures += rates(servers, client, producers, size)
    return figures + aborted()


# --- Transactions a second -----------------------------------------------------------------------


@contextmanager
def sides() -> Iterator[list[Side]]:
    """Start all three servers."""
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-")))
        ours = stack.enter_context(serving(room / "ours"))
        kafka = stack.enter_context(apache_kafka(room / "kafka"))
        flushing = {"log.flush.interval.messages": "1"}
        flushed = stack.enter_context(apache_kafka(room / "flushed", flushing))
        yield [
            Side(OURS, ours.bootstrap, ours.process.pid, {}),
            Side(KAFKA, kafka.bootstrap, kafka.pid, {}),
            Side(FLUSHED, flushed.bootstrap, flushed.pid, {}),
        ]


class ClientFailed(Exception):
    """A client program ended with an error."""


Client = Callable[[str, str, int, int], float]
"""Sends to a topic, *size* records in each of *producers*' transactions; returns transactions a second."""


def librdkafka(bootstrap: str, topic: str, producers: int, size: int) -> float:
    """Send with librdkafka."""
    made = [
        Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{topic}-{number}",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        for number in range(producers)
    ]

    def send_one(producer: Producer) -> None:
        producer.begin_transaction()
        for _ in range(size):
            producer.produce(topic, RECORD, partition=0)
        producer.commit_transaction(60)

    def send(producer: Producer) -> int:
        done = 0
        while time.perf_counter() < until:
            send_one(producer)
            done += 1
        return done

    for producer in made:
        producer.init_transactions(60)
        # The first one waits for connections and for what is known of the topic.
        send_one(producer)

    with ThreadPoolExecutor(producers) as threads:
        started = time.perf_counter()
        until = started + SECONDS
        done = sum(threads.map(send, made))
        return done / (time.perf_counter() - started)


def java(bootstrap: str, topic: str, producers: int, size: int) -> float:
    """Send with Kafka's own producer."""
    done, seconds = _java_transactions(bootstrap, topic, producers, size, 10_000_000, SECONDS, 1)
    return done / seconds


def _java_transactions(
    bootstrap: str, topic: str, producers: int, size: int, count: int, seconds: float, kept: int
) -> tuple[int, float]:
    arguments = [bootstrap, topic, topic, *map(str, (producers, size, count, seconds, kept))]
    command = java_command(HERE / "java" / "TransactionRate.java", arguments, ("-Xmx512m",))
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ClientFailed(done.stderr[-2000:])
    printed = done.stdout.split()
    return int(printed[0]), float(printed[1])


def rates(servers: list[Side], client: Client, producers: int, size: int) -> list[Figure]:
    """Measure one load on all servers in turn."""
    who = f"{client.__name__}, {producers} producer{'s' * (producers > 1)}"
    load = f"{who}, {size} record{'s' * (size > 1)} each"
    best: dict[str, float] = {}
    for number in range(ROUNDS):
        for side in servers:
            topic = side.new_topic(f"{client.__name__}-{producers}-{size}-{number}", 1)
            try:
                rate = client(side.bootstrap, topic, producers, size)
            except (ClientFailed, KafkaException) as failure:
                print(f"{load}, round {number}: the client of {side.name} failed: {failure}")
                if side.name == OURS:
                    raise
            else:
                best[side.name] = max(best.get(side.name, rate), rate)
            side.drop_topic(topic)
    return [
        Figure(f"{load}: ours", best[OURS], "transactions/s"),
        *(
            Figure(f"{load}: ours / {other}", best[OURS] / best[other], "x")
            for other in (KAFKA, FLUSHED)
            if other in best
        ),
    ]


# --- Those that use none -------------------------------------------------------------------------


def without_transactions() -> list[Figure]:
    """Compare the CPU time of a server that meets no transaction with that of the version before."""
    other = os.environ.get("CORDWOOD_OTHER")
    if other is None:
        print("CPU time without transactions: skipped, CORDWOOD_OTHER names no other checkout")
        return []
    sources = {"this": str(Path(__file__).parents[1] / "src"), "other": other}
    seconds: dict[str, dict[str, list[float]]] = {}
    for number in range(versions.ROUNDS):
        for side in sorted(sources, reverse=number % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                for work, cpu in versions.served(sources[side], folder).items():
                    seconds.setdefault(work, {}).setdefault(side, []).append(cpu)
    gigabytes = versions.SERVED_RECORDS * versions.RECORD_BYTES / 1e9
    figures = []
    for work, found in seconds.items():
        this, before = (statistics.median(found[side]) for side in ("this", "other"))
        best = min(found["this"]) / min(found["other"])
        print(f"{work} without transactions: the best rounds {best:.3f} x")
        name = f"{work} without transactions, processor time of the server"
        figures += [
            Figure(name, this / gigabytes, "s/GB"),
            Figure(f"{name}: now / before", this / before, "x", versions.GOAL, at_most=True),
        ]
    return figures + instructions.run()


# --- A topic full of aborted transactions --------------------------------------------------------


def aborted() -> list[Figure]:
    """Measure what a reader of committed records pays for each aborted transaction, as there are more."""
    figures = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as room, serving(Path(room)) as server:
        Side(OURS, server.bootstrap, server.process.pid, {}).new_topic("aborted", 1)
        costs: dict[str, list[float]] = {}
        filled = 0
        for count in ABORTED:
            wanted = (count - filled) // FILLERS * FILLERS
            done, _ = _java_transactions(server.bootstrap, "aborted", FILLERS, 1, wanted, 3600, KEPT)
            filled += done
            for name, read in (("a consumer", _consume), ("Topic.read", _read), ("Log.scan", _scan)):
                seconds = min(_reader_cpu(read, server, filled) for _ in range(READS))
                costs.setdefault(name, []).append(seconds / filled * 1e6)
                figures.append(
                    Figure(f"{count:,} aborted transactions, CPU of {name}", costs[name][-1], "µs for each")
                )
            cpu = min(_server_cpu(server, filled) for _ in range(READS))
            figures.append(
                Figure(
                    f"{count:,} aborted transactions, CPU of the server", cpu / filled * 1e6, "µs for each"
                )
            )
    for name, each in costs.items():
        label = f"CPU of {name}: a transaction among {ABORTED[-1]:,} / among {ABORTED[0]:,}"
        figures.append(Figure(label, each[-1] / each[0], "x", LINEAR, at_most=True))
    return figures


def _reader_cpu(read: Callable[[ServerProcess], Iterator[int]], server: ServerProcess, filled: int) -> float:
    """Return the CPU seconds of this process while *read* yields the numbers of records that it finds.

    A consumer waits for half a second at the end of the topic, which says nothing about the transactions.
    """
    started = time.process_time()
    records = sum(read(server))
    seconds = time.process_time() - started
    assert 0 < records < filled / KEPT * 2, f"{records} of {filled} records were read"
    return seconds


def _server_cpu(server: ServerProcess, filled: int) -> float:
    before = cpu_seconds(server)
    _reader_cpu(_consume, server, filled)
    return cpu_seconds(server) - before


def _consume(server: ServerProcess) -> Iterator[int]:
    """Read the topic to its end with librdkafka; yields how many records came."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("aborted", 0, OFFSET_BEGINNING)])
    ended = False
    while not ended:
        # One at a time: `consume` would wait for as many as it is asked for, and there is one in 200.
        message = consumer.poll(30)
        assert message is not None, "the end of the topic was not reached"
        error = message.error()
        ended = error is not None and error.code() == KafkaError._PARTITION_EOF
        yield error is None
    consumer.close()


def _read(server: ServerProcess) -> Iterator[int]:
    with cordwood.open(server.data, read_only=True) as log:
        yield from (1 for _ in log.topic("aborted").read())


def _scan(server: ServerProcess) -> Iterator[int]:
    with cordwood.open(server.data, read_only=True) as log:
        yield from (batch.num_rows for batch in log.scan("aborted").reader())
