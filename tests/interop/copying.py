"""The scenario of Kafka's ``transactions_test.py``: programs copy a topic, and they or the broker are ended.

Each program reads the input topic, and writes what it read to the same partition of the output topic, with
the offsets in the same transaction. Whatever was ended in between, a consumer that reads committed records
finds every record of the input once and in its order, also one that reads while it happens.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from interop.brokers import Broker
from support.clients import Confluent
from support.patience import SECONDS_MAX, Limit

INPUT, OUTPUT, GROUP = "input-topic", "output-topic", "copiers"
PARTITIONS = 2
#: What share of the records must be copied before each bounce.
BOUNCES_AT = (0.2, 0.4, 0.6)
COPY_SECONDS_MAX = 120.0


class Worker:
    """A program that is ended and started again. What it prints is kept in a file."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._command = list(command)
        self.output = output
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start it."""
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def stop(self, *, kill: bool = False) -> None:
        """End it with SIGTERM, or as kill -9 does."""
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(SECONDS_MAX)

    def restart(self, *, kill: bool = False) -> None:
        """End it and start it again."""
        self.stop(kill=kill)
        self.start()

    def revive(self) -> bool:
        """Start it again if it failed: some clients give up if a broker is gone when a transaction ends."""
        failed = bool(self.process.poll())
        if failed:
            self.start()
        return failed

    def printed(self) -> str:
        """Return what it printed so far."""
        return self.output.read_text(errors="replace")


@contextmanager
def working(command: Sequence[str], output: Path) -> Iterator[Worker]:
    """Run a program for as long as the context lasts."""
    worker = Worker(command, output)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.stop(kill=True)


class CommittedReader:
    """Reads the committed records of a topic, in the order of each partition."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.keys: list[list[bytes]] = [[] for _ in range(partitions)]
        self.values: list[list[bytes]] = [[] for _ in range(partitions)]
        #: The partitions that were read to the end that they had for a reader of committed records.
        self.ended: set[int] = set()
        # Errors of connections are no news here: brokers are ended.
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]
        )

    def __enter__(self) -> CommittedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def count(self) -> int:
        """How many records were read."""
        return sum(map(len, self.values))

    def of_each_key(self) -> dict[bytes, list[bytes]]:
        """Return the values of each key, in the order in which they were read."""
        found: dict[bytes, list[bytes]] = {}
        for keys, values in zip(self.keys, self.values, strict=True):
            for key, value in zip(keys, values, strict=True):
                found.setdefault(key, []).append(value)
        return found

    def poll(self, seconds: float = 0.1) -> None:
        """Read what comes within *seconds*."""
        for message in self._consumer.consume(10_000, seconds):
            error, partition = message.error(), message.partition() or 0
            if error is None:
                self.keys[partition].append(message.key() or b"")
                self.values[partition].append(message.value() or b"")
                self.ended.discard(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ended.add(partition)

    def read(self, count: int, workers: Sequence[Worker] = ()) -> None:
        """Read until there are *count* records; fail with the output of *workers* if that takes too long."""
        self._read_until(lambda: self.count >= count, f"{count} records", workers)

    def read_to_end(self) -> None:
        """Read until every partition ends."""
        self._read_until(lambda: len(self.ended) == len(self.values), "all partitions to their end", ())

    def _read_until(self, done: Callable[[], bool], what: str, workers: Sequence[Worker]) -> None:
        limit = Limit(COPY_SECONDS_MAX)
        while not done():
            if limit.passed():
                said = "\n".join(worker.printed()[-3000:] for worker in workers)
                raise AssertionError(f"read {self.count} records, not {what}, within {limit}\n{said}")
            for worker in workers:
                worker.revive()
            self.poll()


def committed_values(bootstrap: str, topic: str, partitions: int) -> list[list[bytes]]:
    """Return all committed records of a topic where no transaction is open any more."""
    with CommittedReader(bootstrap, topic, partitions) as reader:
        reader.read_to_end()
        return reader.values


def seed(bootstrap: str, count: int) -> list[list[bytes]]:
    """Make both topics, fill the input, and return the values of each of its partitions."""
    for topic in (INPUT, OUTPUT):
        Confluent().create_topic(bootstrap, topic, PARTITIONS)
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number in range(count):
        values[number % PARTITIONS].append(b"%d" % number)
        producer.produce(INPUT, b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0
    assert not failed, failed[0]
    return values


def copy_and_bounce(
    broker: Broker, commands: Sequence[Sequence[str]], count: int, directory: Path, *, target: str, kill: bool
) -> None:
    """Copy *count* records with the programs of *commands*, bouncing the *target* three times; then compare.

    *target* is ``broker`` or ``clients``. Programs may end by themselves when there is nothing left to copy.
    """
    seeded = seed(broker.bootstrap, count)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(working(command, directory / f"copier-{number}.txt"))
            for number, command in enumerate(commands)
        ]
        reader = stack.enter_context(CommittedReader(broker.bootstrap, OUTPUT, PARTITIONS))
        for share in BOUNCES_AT:
            reader.read(int(count * share), workers)
            assert reader.count < count, "everything was copied before the last bounce"
            for bounced in [broker] if target == "broker" else workers:
                bounced.restart(kill=kill)
        reader.read(count, workers)
        for worker in workers:
            worker.stop()
        copied = committed_values(broker.bootstrap, OUTPUT, PARTITIONS)
        reader.poll(1.0)
    for name, found in (("afterwards", copied), ("meanwhile", reader.values)):
        counts = [len(part) for part in found]
        assert found == seeded, f"{count} records were seeded, and {counts} read {name} in the partitions"
