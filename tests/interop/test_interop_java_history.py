"""Java's transactional clients record a history while our server is killed; the checker finds nothing."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO

import pytest
from confluent_kafka import Consumer
from interop.kafka_jars import KAFKA_VERSION, java_command
from interop.report import Report
from interop.toolbox import HERE
from support.history.checker import check
from support.history.operations import READ_COMMITTED, READ_UNCOMMITTED
from support.history.recorder import Recorder
from support.history.verdict import Verdict
from support.patience import SECONDS_MAX, until
from support.serving import serving
from support.transaction_kills import INPUT, OUTPUT, PARTITIONS, create_topics
from support.transaction_reading import (
    consumer_settings,
    fetch_committed,
    scan,
    wait_until_nothing_is_open,
)
from support.transaction_workers import CommittedReader

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

KILLS = 3
#: What each worker commits between two kills.
TRANSACTIONS = 15
WRITER, PROCESSOR, GROUP = "java writer", "java processor", "java processors"
PLACES = [(topic, number) for topic in (INPUT, OUTPUT) for number in range(PARTITIONS)]


@contextmanager
def workers(bootstrap: str, history: Path) -> Iterator[Counter[str]]:
    """Run Recorded.java; yield how many transactions each of its workers has committed so far."""
    arguments = [bootstrap, str(history), INPUT, OUTPUT, str(PARTITIONS)]
    command = java_command(HERE / "java" / "Recorded.java", arguments)
    committed: Counter[str] = Counter()
    errors = history.with_suffix(".errors")
    with (
        errors.open("w") as complaints,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as process,
    ):
        assert process.stdout is not None
        counting = Thread(target=_count, args=(process.stdout, committed), daemon=True)
        counting.start()
        try:
            yield committed
            # The end of its input ends it.
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(SECONDS_MAX) == 0, errors.read_text()
            counting.join(SECONDS_MAX)
        finally:
            if process.poll() is None:
                process.kill()


def _count(lines: IO[str], committed: Counter[str]) -> None:
    for line in lines:
        committed[line.strip()] += 1


def wait_for_more(committed: Counter[str]) -> None:
    """Wait until both workers have committed some more transactions."""
    for name in (WRITER, PROCESSOR):
        wanted = committed[name] + TRANSACTIONS
        until(lambda name=name, wanted=wanted: committed[name] >= wanted, f"commits of {name}")  # type: ignore[misc]


def audited(bootstrap: str, recorder: Recorder) -> Verdict:
    """Read everything with both isolations, fetch the offsets, and check the history."""
    wait_until_nothing_is_open(bootstrap, PLACES)
    auditor = recorder.client("auditor")
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        scan(bootstrap, auditor, isolation, PLACES)
    consumer = Consumer(consumer_settings(bootstrap, READ_COMMITTED, GROUP))
    try:
        fetch_committed(consumer, auditor, GROUP, [(INPUT, number) for number in range(PARTITIONS)])
    finally:
        consumer.close()
    return check(recorder.history())


def test_java_transactions_survive_kills_of_the_server(tmp_path: Path, report: Report) -> None:
    """X1, X2 and X5 as Kafka's own client sees them, with readers of confluent-kafka beside it."""
    recorder, history = Recorder(), tmp_path / "history"
    recorder.add_file(history)
    with (
        report.check("tools", "Java transactions", KAFKA_VERSION, "history under kill -9"),
        serving(tmp_path / "data", {"log.segment.bytes": str(64 << 10)}) as server,
    ):
        create_topics(server.bootstrap)
        readers = [
            CommittedReader(recorder, server.bootstrap, isolation, PLACES)
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
        ]
        for reader in readers:
            reader.start()
        with workers(server.bootstrap, history) as committed:
            for _ in range(KILLS):
                wait_for_more(committed)
                server.restart(kill=True)
            wait_for_more(committed)
        for reader in readers:
            reader.stop()
        verdict = audited(server.bootstrap, recorder)
        print(f"{KILLS} kills, {dict(committed)} transactions committed, {verdict.counts}")
        assert verdict.problems() == []
        assert verdict.counts["transactions committed"] == committed.total()
        assert verdict.counts["unseen"] == 0
        assert server.stop() == 0
