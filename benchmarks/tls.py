"""What TLS costs a server: CPU time for the bytes that librdkafka sends and reads, beside Apache Kafka.

Both servers run all the time, each with a plain listener and one with TLS, and take turns. CPU time of the
server alone counts, because the client's is the same; the best round of each, because Java compiles its code
in the first ones. Ours syncs before it answers, Kafka as it comes does not. Needs Java and Maven; says so and
measures nothing without them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.measure import Figure
from benchmarks.server import process_cpu_seconds

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from interop.apache_kafka import apache_kafka, free_ports
from interop.kafka_jars import java_command
from interop.toolbox import ToolMissing
from support import authorities
from support.serving import serving

ROUNDS = 5
RECORD_BYTES = 1000
RECORDS = 200_000
PLAIN, TLS = "PLAINTEXT", "TLS"
OURS, KAFKA = "ours", "Kafka"
GOAL = 1.0

ClientSettings = dict[str, str | int | bool | float | None]


class Side(NamedTuple):
    """A server: its process, its address by the name of the listener, and who signed its certificate."""

    name: str
    pid: int
    addresses: Mapping[str, str]
    authority: Path

    def client(self, listener: str) -> ClientSettings:
        """Return the settings of a client that connects to *listener*."""
        found: ClientSettings = {"bootstrap.servers": self.addresses[listener], "log_level": 0}
        if listener == TLS:
            found["security.protocol"] = "SSL"
            found["ssl.ca.location"] = str(self.authority)
            # The certificate is for a name, and the address is a number.
            found["ssl.endpoint.identification.algorithm"] = "none"
        return found


@contextmanager
def sides() -> Iterator[list[Side]]:
    """Start both, with the same key."""
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-")))
        _, key_and_certificate = authorities.signed(authorities.named(CN="localhost"))
        keys, authority = room / "server.pem", room / "authority.pem"
        keys.write_text(key_and_certificate)
        authority.write_text(authorities.ca_pem())
        settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keys)}
        plain, tls = (f"127.0.0.1:{port}" for port in free_ports(2))
        ours = stack.enter_context(
            serving(
                room / "ours",
                {**settings, "listener.security.protocol.map": f"{PLAIN}:PLAINTEXT,{TLS}:SSL"},
                f"{PLAIN}://{plain},{TLS}://{tls}",
            )
        )
        kafka = stack.enter_context(apache_kafka(room / "kafka", settings, {TLS: "SSL"}))
        yield [
            Side(OURS, ours.process.pid, {PLAIN: plain, TLS: tls}, authority),
            Side(KAFKA, kafka.pid, kafka.addresses, authority),
        ]


def produce(settings: ClientSettings, topic: str) -> None:
    """Send the records, acks=all."""
    failed: list[object] = []

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({**settings, "linger.ms": 20, "batch.num.messages": 500})
    value = os.urandom(RECORD_BYTES)
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 200 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    assert not failed, failed[0]


def consume(settings: ClientSettings, topic: str) -> None:
    """Read the records."""
    consumer = Consumer({**settings, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    left = RECORDS
    while left > 0:
        messages = consumer.consume(10_000, 30)
        assert messages, f"{left} records did not come"
        left -= sum(message.error() is None for message in messages)
    consumer.close()


def measure(servers: list[Side]) -> dict[tuple[str, str, str], float]:
    """Return CPU seconds a GB by (server, listener, work)."""
    best: dict[tuple[str, str, str], float] = {}
    gigabytes = RECORDS * RECORD_BYTES / 1e9
    for number in range(ROUNDS):
        for side in servers:
            admin = AdminClient({"bootstrap.servers": side.addresses[PLAIN], "log_level": 0})
            for listener in (PLAIN, TLS):
                topic = f"{listener}-{number}"
                for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
                    made.result(30)
                for work in (produce, consume):
                    before = process_cpu_seconds(side.pid)
                    work(side.client(listener), topic)
                    used = (process_cpu_seconds(side.pid) - before) / gigabytes
                    of = side.name, listener, work.__name__
                    best[of] = min(best.get(of, used), used)
                for gone in admin.delete_topics([topic]).values():
                    gone.result(30)
    return best


def run() -> list[Figure]:
    """Measure both; nothing where Kafka cannot be had."""
    try:
        java_command("x")
    except ToolMissing as missing:
        print(f"tls: skipped, {missing}")
        return []
    with sides() as servers:
        best = measure(servers)
    figures = []
    for work in ("produce", "consume"):
        for listener in (PLAIN, TLS):
            ours, theirs = best[OURS, listener, work], best[KAFKA, listener, work]
            name = f"{work}, {listener}"
            figures.append(Figure(f"{name}: CPU of our server", ours, "s a GB"))
            figures.append(Figure(f"{name}: CPU of Kafka", theirs, "s a GB"))
            goal = GOAL if listener == TLS else None
            figures.append(Figure(f"{name}: ours / Kafka", ours / theirs, "x", goal, at_most=True))
    return figures
