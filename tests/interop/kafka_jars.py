"""Apache Kafka out of its Maven artifacts: clients, command-line tools and broker on one class path."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from interop.toolbox import HERE, maven_jars, program

#: What java/pom.xml asks for.
KAFKA_VERSION = "4.3.1"
#: Most of what is run here lives for a second: the first compiler tier alone starts faster.
QUICK = ("-XX:TieredStopAtLevel=1", "-Xmx256m")
_TOOLS = "org.apache.kafka.tools"
#: What each is called in Kafka's bin/, without its ``.sh``.
MAIN_CLASSES = {
    "kafka-topics": f"{_TOOLS}.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-groups": f"{_TOOLS}.GroupsCommand",
    "kafka-console-producer": f"{_TOOLS}.ConsoleProducer",
    "kafka-console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "kafka-producer-perf-test": f"{_TOOLS}.ProducerPerformance",
    "kafka-consumer-perf-test": f"{_TOOLS}.ConsumerPerformance",
    "kafka-verifiable-producer": f"{_TOOLS}.VerifiableProducer",
    "kafka-verifiable-consumer": f"{_TOOLS}.VerifiableConsumer",
    "kafka-e2e-latency": f"{_TOOLS}.EndToEndLatency",
    "kafka-get-offsets": f"{_TOOLS}.GetOffsetShell",
    "kafka-delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "kafka-log-dirs": f"{_TOOLS}.LogDirsCommand",
    "kafka-broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "kafka-cluster": f"{_TOOLS}.ClusterTool",
    "kafka-dump-log": f"{_TOOLS}.DumpLogSegments",
    "kafka-acls": f"{_TOOLS}.AclCommand",
    "kafka-features": f"{_TOOLS}.FeatureCommand",
    "kafka-leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "kafka-metadata-quorum": f"{_TOOLS}.MetadataQuorumCommand",
    "kafka-reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-transactions": f"{_TOOLS}.TransactionsCommand",
}
_LOGGING = HERE / "java" / "log4j2.properties"


@cache
def kafka_classpath() -> str:
    """Return Java's class path of all of Apache Kafka, fetched by Maven the first time.

    Raises:
        ToolMissing: If there is no Maven, or it cannot fetch them.
    """
    jars = maven_jars(HERE / "java" / "pom.xml")
    assert any(jar.name == f"kafka-clients-{KAFKA_VERSION}.jar" for jar in jars)
    return os.pathsep.join(map(str, jars))


def java_command(
    main: str | Path,
    arguments: Sequence[str] = (),
    options: Sequence[str] = QUICK,
    classpath: str | None = None,
) -> list[str]:
    """Return the command that runs a class or a Java source file, with everything of Kafka or *classpath*.

    Raises:
        ToolMissing: If there is no Java, no Maven, or Kafka cannot be fetched.
    """
    settings = [f"-Dlog4j2.configurationFile={_LOGGING}", *options]
    return [program("java"), *settings, "-cp", classpath or kafka_classpath(), str(main), *arguments]


def run_tool(main: str, *arguments: str, given: str = "", seconds: float = 60) -> str:
    """Run one of Kafka's command-line tools and return what it printed; what it complained of is an error."""
    done = subprocess.run(
        java_command(main, arguments), input=given, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, f"{main} {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout
