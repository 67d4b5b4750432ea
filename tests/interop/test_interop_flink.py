"""Flink's source and sink: a job that copies a topic exactly once, while it or the broker is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from interop import programs
from interop.brokers import Broker, reported
from interop.copying import CommittedReader, committed_values, working
from interop.frameworks import FIRST_TIME, SECTION, feed, until_read
from interop.report import Report
from support.clients import Confluent
from support.patience import SECONDS_MAX, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

GROUP, PARTITIONS = "flink", 2
#: The records of each round.
ROUND = 1000
COMMITTED_SECONDS_MAX = 120.0


def test_flink_copies_a_topic_exactly_once(broker: Broker, report: Report, tmp_path: Path) -> None:
    """Each record once, over a job that fails, is killed and goes on from its checkpoint."""
    for topic in ("questions", "answers"):
        Confluent().create_topic(broker.bootstrap, topic, PARTITIONS)
    checkpoints, asked = tmp_path / "checkpoints", 0

    def ask() -> int:
        nonlocal asked
        feed(
            broker.bootstrap,
            "questions",
            [(f"{n}", f"{n}", FIRST_TIME + n) for n in range(asked, asked + ROUND)],
        )
        asked += ROUND
        return asked

    arguments = [broker.bootstrap, checkpoints.as_uri(), str(ROUND // 4)]
    program = programs.flink("FlinkCopy", arguments)
    how = "source and exactly-once sink; job and broker killed"
    with (
        reported(report, broker, "Flink", program.version, how, SECTION),
        CommittedReader(broker.bootstrap, "answers", PARTITIONS) as reader,
    ):
        with working(program.command, tmp_path / "job.txt") as job:
            until_read(reader, ask(), job)
            assert "the job fails" in job.printed()
            broker.restart(kill=True)
            with AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}) as admin:
                (made,) = admin.create_partitions([NewPartitions("questions", PARTITIONS + 1)]).values()
                made.result(SECONDS_MAX)
            until_read(reader, ask(), job)
            job.stop(kill=True)
        ask()
        latest = max(checkpoints.glob("*/chk-*/_metadata"), key=lambda found: found.stat().st_mtime_ns)
        again = programs.flink("FlinkCopy", [*arguments, latest.parent.as_uri()])
        with working(again.command, tmp_path / "job-again.txt") as job:
            until_read(reader, asked, job)
            broker.restart()
            until_read(reader, ask(), job)
            until(
                lambda: _committed(broker.bootstrap) == asked, "offsets were committed", COMMITTED_SECONDS_MAX
            )
        reader.read_to_end()
        for found in (reader.values, committed_values(broker.bootstrap, "answers", PARTITIONS)):
            assert sorted(int(value) for part in found for value in part) == list(range(asked))


def _committed(bootstrap: str) -> int:
    """Return how many records the group has behind it."""
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)]).values()
        return sum(one.offset for one in found.result(SECONDS_MAX).topic_partitions or [])
