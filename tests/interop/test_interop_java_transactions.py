"""Transactions with Kafka's own Java client and tools, against our server and against Kafka's own."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from interop.brokers import NAMES, Broker, reported, running_broker
from interop.kafka_jars import KAFKA_VERSION, java_command, run_tool
from interop.report import Report
from interop.toolbox import HERE
from support.clients import Confluent
from support.patience import SECONDS_MAX

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

CLIENT = "Java transactions"
#: Where our server keeps the state of transactions.
OURS_STATE = "topics/__transaction_state/*/segments/*.log"
#: How long a transaction may be open while tools look at it: longer than it takes to start them all.
HELD_MS = 600_000
_TOOL = "org.apache.kafka.tools.TransactionsCommand"


def _both(*names: str) -> list[str]:
    return [f"{name}{partition}" for partition in range(2) for name in names]


#: What each step of Transactions.java must print.
STEPS: dict[str, dict[str, Any]] = {
    "commit": {"before": [], "uncommitted": _both("a"), "after": _both("a")},
    "abort": {"committed": _both("a", "c"), "uncommitted": _both("a", "b", "c")},
    "open": {"before": [], "stable": 0, "after": _both("slow", "quick")},
    "fence": {"commit": "ProducerFencedException", "committed": _both("second")},
    "offsets": {
        "aborted": "null",
        "pending": "TimeoutException",
        "unstable": "null",
        "committed": "1 done",
        "stale": "CommitFailedException",
        "kept": 1,
    },
    "timeout": {"refused": True, "committed": []},
    "many": {"committed": _both(*(str(number) for number in range(100) if number % 3))},
    "admin": {
        "listed": "Ongoing",
        "described": "Ongoing 2 60000",
        "producer": [True, True, 0],
        "aborted": [],
        "stable": 2,
        "fenced": "ProducerFencedException",
        "committed": [],
        "unknown": "TransactionalIdNotFoundException",
    },
}


@pytest.fixture(scope="module", params=NAMES)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.mark.parametrize("step", STEPS)
def test_java_transactions(step: str, broker: Broker, report: Report) -> None:
    with reported(report, broker, CLIENT, KAFKA_VERSION, step):
        command = java_command(HERE / "java" / "Transactions.java", [broker.bootstrap, step])
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"step": step, **STEPS[step]}


def test_kafka_transactions(broker: Broker, report: Report) -> None:
    """The tool sees an open transaction, describes it and its producer, and aborts it."""

    def tool(*arguments: str) -> str:
        return run_tool(_TOOL, "--bootstrap-server", broker.bootstrap, *arguments)

    where = ("--topic", "tool", "--partition", "0")
    Confluent().create_topic(broker.bootstrap, "tool", 1)
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "transactional.id": "held",
        "transaction.timeout.ms": HELD_MS,
    }
    producer = Producer(settings)
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("tool", "x", partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    with reported(report, broker, "kafka-transactions", KAFKA_VERSION, "list"):
        assert re.search(r"^held\s+\d+\s+\d+\s+Ongoing", tool("list"), re.MULTILINE)
    with reported(report, broker, "kafka-transactions", KAFKA_VERSION, "describe"):
        described = tool("describe", "--transactional-id", "held")
        found = re.search(
            rf"^\d+\s+held\s+(\d+)\s+(\d+)\s+Ongoing\s+{HELD_MS}\s+\d+\s+\d+\s+tool-0",
            described,
            re.MULTILINE,
        )
        assert found, described
    with reported(report, broker, "kafka-transactions", KAFKA_VERSION, "describe producers"):
        described = tool("describe-producers", *where)
        assert re.search(rf"^{found[1]}\s+{found[2]}\s+-?\d+\s+0\s+\d+\s+0\s*$", described, re.MULTILINE), (
            described
        )
    with reported(report, broker, "kafka-transactions", KAFKA_VERSION, "find hanging ones: none"):
        assert len(tool("find-hanging", "--topic", "tool").splitlines()) == 1
    with reported(report, broker, "kafka-transactions", KAFKA_VERSION, "abort"):
        tool("abort", *where, "--start-offset", "0")
        described = tool("describe-producers", *where)
        assert re.search(rf"^{found[1]}\s+{found[2]}\s.*\sNone\s*$", described, re.MULTILINE), described


@pytest.mark.parametrize("name", NAMES)
def test_kafka_dump_log_reads_the_state_of_transactions(name: str, tmp_path: Path, report: Report) -> None:
    """Every state that a transactional id went through is in the files, in the layout that Kafka reads."""
    with running_broker(name, tmp_path) as broker:
        Confluent().create_topic(broker.bootstrap, "t", 2)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "dumped"})
        producer.init_transactions(SECONDS_MAX)
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.produce("t", "x", partition=1)
            assert producer.flush(SECONDS_MAX) == 0
            end(SECONDS_MAX)
        # Once it can begin again, the last one is complete, and its state is written.
        producer.begin_transaction()
        producer.produce("t", "x", partition=1)
        assert producer.flush(SECONDS_MAX) == 0
        with reported(report, broker, "kafka-dump-log", KAFKA_VERSION, "the state of transactions"):
            files = [*tmp_path.glob("data/__transaction_state-*/*.log"), *tmp_path.glob(OURS_STATE)]
            dump = "org.apache.kafka.tools.DumpLogSegments"
            dumped = run_tool(dump, "--transaction-log-decoder", "--files", ",".join(map(str, files)))
            payloads = re.findall(r'"transactionalId":"dumped"}} payload: (.*)$', dumped, re.MULTILINE)
            states = [json.loads(payload)["data"] for payload in payloads]
            # Empty; ongoing, prepared to commit, committed; ongoing, prepared to abort, aborted; ongoing.
            found = [each for each, _ in groupby(state["transactionStatus"] for state in states)]
            assert found == [0, 1, 2, 4, 1, 3, 5, 1]
            assert states[1]["transactionPartitions"] == [{"topic": "t", "partitionIds": [1]}]
            assert len({state["producerId"] for state in states}) == 1
