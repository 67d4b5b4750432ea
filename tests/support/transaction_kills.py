"""One story for any Kafka broker: transactional clients of three libraries, and kills of their server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from support.history.checker import check
from support.history.operations import READ_COMMITTED, READ_UNCOMMITTED
from support.history.recorder import Recorder
from support.history.verdict import Verdict
from support.patience import SECONDS_MAX, until
from support.transaction_clients import PRODUCERS, confluent_settings
from support.transaction_reading import (
    consumer_settings,
    fetch_committed,
    scan,
    wait_until_nothing_is_open,
)
from support.transaction_workers import CommittedReader, Processor, TransactionalWriter, Worker

INPUT, ASIDE, OUTPUT, GROUP = "input", "aside", "output", "processors"
#: One for each client library.
PARTITIONS = len(PRODUCERS)
WRITTEN = [(topic, index) for topic in (INPUT, ASIDE) for index in range(PARTITIONS)]
EVERYWHERE = [*WRITTEN, *((OUTPUT, index) for index in range(PARTITIONS))]
#: How long a client may take to go on after a kill. Calls that do not end are given up much earlier.
CLIENT_SECONDS_MAX = 120
#: Between two kills each writer and each processor commits this many transactions, and then a few more.
TRANSACTIONS_PER_CYCLE, TRANSACTIONS_MORE = 3, 10
MOMENT_SECONDS = 0.05


class Outcome(NamedTuple):
    """What the clients did over all kills."""

    verdict: Verdict
    committed: dict[str, int]
    aborted: int
    replaced: int
    stored: int


def create_topics(bootstrap: str) -> None:
    """Create the topics of the story."""
    with AdminClient(confluent_settings(bootstrap)) as admin:
        asked = [NewTopic(topic, PARTITIONS, 1) for topic in (INPUT, ASIDE, OUTPUT)]
        for made in admin.create_topics(asked, operation_timeout=SECONDS_MAX).values():
            made.result(SECONDS_MAX)


def wait_for_more(worker: Worker, count: int) -> None:
    """Wait until a worker has committed *count* more transactions."""
    wanted = worker.committed + count
    what = f"{count} commits of {worker.name}"
    until(lambda: worker.committed >= wanted or not worker.is_alive(), what, CLIENT_SECONDS_MAX)


def kill_under_transactions(bootstrap: str, restart: Callable[[], None], kills: int, seed: int) -> Outcome:
    """Run all clients while *restart* kills and starts the server; check their history."""
    rng = random.Random(seed)
    recorder = Recorder()
    create_topics(bootstrap)
    writers: list[Worker] = [
        TransactionalWriter(f"writer {client}", recorder, bootstrap, client, WRITTEN, rng.randrange(1 << 32))
        for client in PRODUCERS
    ]
    processors: list[Worker] = [
        Processor(f"processor {client}", recorder, bootstrap, client, GROUP, (INPUT, index), (OUTPUT, index))
        for index, client in enumerate(PRODUCERS)
    ]
    readers = [
        CommittedReader(recorder, bootstrap, isolation, EVERYWHERE)
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
    ]
    workers = [*writers, *processors]
    for reader in readers:
        reader.start()
    for worker in workers:
        worker.start()
    for _ in range(kills):
        for worker in workers:
            wait_for_more(worker, TRANSACTIONS_PER_CYCLE)
        wait_for_more(rng.choice(writers), rng.randrange(TRANSACTIONS_MORE))
        time.sleep(rng.uniform(0, MOMENT_SECONDS))
        restart()
    for worker in workers:
        wait_for_more(worker, TRANSACTIONS_PER_CYCLE)
    for worker in workers:
        worker.stop()
    for reader in readers:
        reader.stop()
    return _audit(bootstrap, recorder, workers)


def _audit(bootstrap: str, recorder: Recorder, workers: Sequence[Worker]) -> Outcome:
    """Scan everything with both isolations, fetch the offsets, and check the history."""
    wait_until_nothing_is_open(bootstrap, EVERYWHERE)
    auditor = recorder.client("auditor")
    stored = scan(bootstrap, auditor, READ_COMMITTED, EVERYWHERE)
    scan(bootstrap, auditor, READ_UNCOMMITTED, EVERYWHERE)
    consumer = Consumer(consumer_settings(bootstrap, READ_COMMITTED, GROUP))
    try:
        fetch_committed(consumer, auditor, GROUP, [(INPUT, index) for index in range(PARTITIONS)])
    finally:
        consumer.close()
    return Outcome(
        check(recorder.history()),
        {worker.name: worker.committed for worker in workers},
        sum(worker.aborted for worker in workers),
        sum(worker.replaced for worker in workers),
        stored,
    )
