"""Writers, processors and readers of transactions, each a thread that goes on while its server is killed.

They note what they do in a `Recorder`. A writer or processor takes any error as an unknown outcome: it
aborts, and if that fails as well it begins again as a new producer with the same transactional id.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import Event, Thread

import confluent_kafka

from support.history.operations import READ_COMMITTED, Read
from support.history.recorder import ClientRecord, Operation, Recorder
from support.patience import SECONDS_MAX
from support.transaction_clients import PRODUCERS, ClientError, Outgoing, Producer
from support.transaction_reading import consumer_settings, fetch_committed, poll


class Worker(Thread, ABC):
    """A thread that does one transaction after the other until it is stopped; what it raises is a problem.

    Each producer that it makes is a client of its own in the history.
    """

    #: Failures in a row to become a producer after which it gives up.
    REFUSED_MAX = 5

    def __init__(self, name: str, recorder: Recorder, bootstrap: str, client: str) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap = bootstrap
        self.committed = 0
        self.aborted = 0
        #: How often a producer had to be given up.
        self.replaced = -1
        self.stopping = Event()
        self._refused = 0
        self._recorder = recorder
        self._make = PRODUCERS[client]
        self._record = recorder.client(name)

    def run(self) -> None:
        """Work until stopped. Nothing stays open: a producer that was given up has a successor."""
        try:
            while self._take_over():
                pass
        except Exception as error:
            self._record.problem(repr(error))

    def _take_over(self) -> bool:
        """Be one producer until it fails or is stopped; return whether it failed."""
        self.replaced += 1
        record = self._record = self._recorder.client(f"{self.name}#{self.replaced}")
        taking = record.init(self.name)
        try:
            producer = self._make(self.bootstrap, self.name)
        except ClientError as error:
            taking.unknown(error)
            self._refused += 1
            if self._refused == self.REFUSED_MAX:
                raise
            return True
        self._refused = 0
        try:
            taking.ok()
            self.prepare(record)
            while not self.stopping.is_set():
                if self.has_work() and not self._transact(producer, record):
                    return True
            return False
        finally:
            producer.close()

    def _transact(self, producer: Producer, record: ClientRecord) -> bool:
        """Do one transaction; return whether the producer can go on."""
        ending: Operation | None = None
        number = record.begin(self.name)
        try:
            producer.begin()
            if self.work(producer, record, number):
                ending = record.commit(number)
                producer.commit()
                ending.ok()
                self.committed += 1
                return True
        except ClientError as error:
            if ending is not None:
                ending.unknown(error)
        ending = record.abort(number)
        try:
            producer.abort()
        except ClientError as error:
            ending.unknown(error)
            return False
        ending.ok()
        self.aborted += 1
        self.prepare(record)
        return True

    def send(
        self,
        producer: Producer,
        record: ClientRecord,
        number: int,
        records: Sequence[Outgoing],
        sources: Sequence[str | None] | None = None,
    ) -> None:
        """Send records in the transaction *number*, and note what becomes of them."""
        made_from = sources or [None] * len(records)
        sends = [record.send(*one, number, source) for one, source in zip(records, made_from, strict=True)]
        # If this fails they have no completion, so nothing is known of them.
        for send, offset in zip(sends, producer.send(records), strict=True):
            send.ok(offset)

    def prepare(self, record: ClientRecord) -> None:
        """Begin, or begin again after a transaction that did not count."""

    def has_work(self) -> bool:
        """Return whether there is something to do; wait a moment for it."""
        return True

    @abstractmethod
    def work(self, producer: Producer, record: ClientRecord, number: int) -> bool:
        """Do what belongs to one transaction; return whether to commit it."""

    def stop(self) -> None:
        """End it once its transaction has ended."""
        self.stopping.set()
        self.join(SECONDS_MAX)
        if self.is_alive():
            self._record.problem("it has not come to an end")


class TransactionalWriter(Worker):
    """Writes transactions of one to eight records over *partitions*, and aborts some of them."""

    ABORTED = 0.2

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        bootstrap: str,
        client: str,
        partitions: Sequence[tuple[str, int]],
        seed: int,
    ) -> None:
        super().__init__(name, recorder, bootstrap, client)
        self._partitions = partitions
        self._rng = random.Random(seed)
        self._sent = 0

    def work(self, producer: Producer, record: ClientRecord, number: int) -> bool:
        """Send some records."""
        count = self._rng.randint(1, 8)
        values = [f"{self.name}:{self._sent + i}" for i in range(count)]
        self._sent += count
        places = [self._rng.choice(self._partitions) for _ in values]
        records = [(*place, value) for place, value in zip(places, values, strict=True)]
        self.send(producer, record, number, records)
        return self._rng.random() >= self.ABORTED


class Processor(Worker):
    """Makes each committed record of one partition into one of *target*, exactly once."""

    BATCH_MAX = 20

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        bootstrap: str,
        client: str,
        group: str,
        source: tuple[str, int],
        target: tuple[str, int],
    ) -> None:
        super().__init__(name, recorder, bootstrap, client)
        self._group = group
        self._source = source
        self._target = target
        self._made = 0
        self._given: tuple[Read, ...] = ()
        self._reader = recorder.client(f"{name} reading")
        self._consumer = confluent_kafka.Consumer(consumer_settings(bootstrap, READ_COMMITTED, group))

    def run(self) -> None:
        """Work until stopped."""
        try:
            super().run()
        finally:
            self._consumer.close()

    def prepare(self, record: ClientRecord) -> None:
        """Go on from the committed offset."""
        committed = fetch_committed(self._consumer, record, self._group, [self._source])[self._source]
        position = max(committed, 0)
        self._consumer.assign([confluent_kafka.TopicPartition(*self._source, position)])
        self._reader.assign([(*self._source, position)])

    def has_work(self) -> bool:
        """Read a few records."""
        self._given = poll(self._consumer, self._reader, READ_COMMITTED, self.BATCH_MAX)
        return bool(self._given)

    def work(self, producer: Producer, record: ClientRecord, number: int) -> bool:
        """Write a record for each that was read, and add the offset."""
        given = self._given
        self._made += len(given)
        first = self._made - len(given)
        made = [(*self._target, f"{one.value}>{self.name}:{first + i}") for i, one in enumerate(given)]
        self.send(producer, record, number, made, [one.value for one in given])
        offsets = {self._source: given[-1].offset + 1}
        committing = record.commit_offsets(self._group, offsets, number)
        producer.send_offsets(self._group, offsets)
        committing.ok()
        return True


class CommittedReader(Thread):
    """Reads partitions along with a consumer of confluent-kafka, and notes what it was given."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, isolation: str, partitions: Sequence[tuple[str, int]]
    ) -> None:
        super().__init__(name=isolation, daemon=True)
        self._record = recorder.client(f"reader {isolation}")
        self._isolation = isolation
        self._partitions = partitions
        self._consumer = confluent_kafka.Consumer(consumer_settings(bootstrap, isolation))
        self._stopping = Event()

    def run(self) -> None:
        """Read until stopped."""
        self._consumer.assign([confluent_kafka.TopicPartition(*place, 0) for place in self._partitions])
        self._record.assign((*place, 0) for place in self._partitions)
        try:
            while not self._stopping.is_set():
                poll(self._consumer, self._record, self._isolation, 500)
        except Exception as error:
            self._record.problem(repr(error))
        finally:
            self._consumer.close()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self.join(SECONDS_MAX)
