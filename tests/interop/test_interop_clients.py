"""One scenario of six steps with clients of other languages, against our server and against Kafka's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from interop import programs
from interop.apache_kafka import ApacheKafka, apache_kafka
from interop.kcat import Kcat, seen_by_kcat
from interop.report import Report
from interop.six_steps import PARTITIONS, Broker, SixSteps, run_six_steps, running_program
from support.serving import ServerProcess

# What is not there yet is fetched, which counts.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

PROGRAMS = {"java": programs.java, "kafkajs": programs.kafkajs, "franz-go": programs.franz_go}
CLIENTS = (*PROGRAMS, "kcat")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Kafka's own broker."""
    settings = {"num.partitions": str(PARTITIONS)}
    with apache_kafka(tmp_path_factory.mktemp("kafka"), settings) as broker:
        yield broker


def run_scenario(client: str, broker: Broker, report: Report, directory: Path) -> None:
    if client == "kcat":
        kcat = Kcat()
        steps = SixSteps(client, broker, null_headers=False, exact=False)
        with closing(seen_by_kcat(kcat, steps)) as seen:
            run_six_steps(steps, lambda step: next(seen), report, client, kcat.version, lacks=["admin"])
        return
    program = PROGRAMS[client]()
    # kafkajs takes no null for the value of a header.
    steps = SixSteps(client, broker, null_headers=client != "kafkajs")
    with running_program(program.command, steps.plan(), directory) as hear:
        run_six_steps(steps, hear, report, program.client, program.version)


@pytest.mark.parametrize("client", CLIENTS)
def test_six_steps(client: str, server: ServerProcess, report: Report, tmp_path: Path) -> None:
    run_scenario(client, server, report, tmp_path)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_six_steps_are_what_apache_kafka_does(client: str, kafka: ApacheKafka, tmp_path: Path) -> None:
    """The same programs against Kafka's own broker: nothing is asked of ours that it does not do."""
    run_scenario(client, kafka, Report(), tmp_path)
