"""One scenario of six steps with clients of other languages, against our server and against Kafka's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.apache_kafka import ApacheKafka, apache_kafka
from interop.report import Report
from interop.scenarios import CLIENTS, run_scenario
from interop.six_steps import PARTITIONS
from support.serving import ServerProcess

# What is not there yet is fetched, which counts.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Kafka's own broker."""
    settings = {"num.partitions": str(PARTITIONS)}
    with apache_kafka(tmp_path_factory.mktemp("kafka"), settings) as broker:
        yield broker


@pytest.mark.parametrize("client", CLIENTS)
def test_six_steps(client: str, server: ServerProcess, report: Report, tmp_path: Path) -> None:
    run_scenario(client, server, report, tmp_path)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_six_steps_are_what_apache_kafka_does(client: str, kafka: ApacheKafka, tmp_path: Path) -> None:
    """The same programs against Kafka's own broker: nothing is asked of ours that it does not do."""
    run_scenario(client, kafka, Report(), tmp_path)
