"""Spring Kafka: a listener that copies records in transactions, while it or the broker is killed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from interop.asking import ROUND, go_through, questions
from interop.brokers import Broker, reported
from interop.frameworks import SECTION, compiled_java
from interop.report import Report
from interop.toolbox import HERE, maven_jars
from support.patience import SECONDS_MAX

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]


def test_spring_kafka_copies_each_record_once(broker: Broker, report: Report, tmp_path: Path) -> None:
    """In transactions of its container, one of which is rolled back; its admin makes a topic."""
    jars = maven_jars(HERE / "spring" / "pom.xml")
    classpath = os.pathsep.join(map(str, jars))
    (version,) = (found[1] for jar in jars if (found := re.fullmatch(r"spring-kafka-(.+)", jar.stem)))
    arguments = [broker.bootstrap, str(ROUND // 4)]
    command = compiled_java(HERE / "spring" / "SpringCopy.java", classpath, arguments)
    how = "listener in transactions; application and broker killed"
    with reported(report, broker, "Spring Kafka", version, how, SECTION):
        assert go_through(broker, command, tmp_path) == questions()
        assert "the listener fails" in (tmp_path / "printed.txt").read_text()
        with AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}) as admin:
            assert len(admin.list_topics("notes", timeout=SECONDS_MAX).topics["notes"].partitions) == 3
