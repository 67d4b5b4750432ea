"""A Kafka Streams application with stores of state, while it or the broker is killed."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from interop.brokers import NAMES, OURS, Broker, reported, running_broker
from interop.copying import CommittedReader, working
from interop.frameworks import FIRST_TIME, SECTION, compiled_java, feed, until_printed
from interop.kafka_jars import KAFKA_VERSION, kafka_classpath
from interop.report import Report
from interop.toolbox import HERE
from support.clients import Confluent
from support.patience import SECONDS_MAX

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

NAME = "Kafka Streams"
LINES = 1000
WORDS_IN_A_LINE = 3
MINUTE = 60_000
#: Topics that Streams makes, each with its number of partitions and its cleanup policy.
INTERNAL = {
    "words-by-word-repartition": (2, "delete"),
    "words-four-repartition": (4, "delete"),
    "words-counted-changelog": (2, "compact"),
    "words-minutes-changelog": (4, "compact,delete"),
}


def words(bootstrap: str, state: Path, protocol: str = "classic") -> list[str]:
    """Return the command of the application."""
    arguments = [bootstrap, str(state), protocol]
    return compiled_java(HERE / "java" / "Words.java", kafka_classpath(), arguments)


def test_streams_counts_each_word_once_with_its_state_rebuilt(
    broker: Broker, report: Report, tmp_path: Path
) -> None:
    """Over kill -9 of broker and application, and from changelogs: the counts of each word are 1, 2, 3, …"""
    for topic in ("lines", "counts", "minutes"):
        Confluent().create_topic(broker.bootstrap, topic, 2)
    state, counted, minutes = tmp_path / "state", Counter[bytes](), Counter[bytes]()

    def more(first: int) -> None:
        lines = []
        for number in range(first, first + LINES):
            said, time = [f"w{number % 7}", f"w{number % 11}", f"w{number % 13}"], FIRST_TIME + number * 100
            lines.append((str(number), " ".join(said), time))
            counted.update(word.encode() for word in said)
            minutes.update(b"%s@%d" % (word.encode(), time // MINUTE * MINUTE) for word in said)
        feed(broker.bootstrap, "lines", lines)

    with (
        reported(
            report, broker, NAME, KAFKA_VERSION, "stores, repartition, changelogs; both killed", SECTION
        ),
        working(words(broker.bootstrap, state), tmp_path / "application.txt") as application,
        CommittedReader(broker.bootstrap, "counts", 2) as counts,
        CommittedReader(broker.bootstrap, "minutes", 2) as of_minutes,
    ):
        more(0)
        counts.read(LINES * WORDS_IN_A_LINE // 2, [application])
        broker.restart(kill=True)
        more(LINES)
        counts.read(LINES * WORDS_IN_A_LINE + LINES, [application])
        application.stop(kill=True)
        # What was counted so far is known from the changelogs only.
        shutil.rmtree(state)
        more(2 * LINES)
        application.start()
        counts.read(counted.total(), [application])
        of_minutes.read(minutes.total(), [application])
        _compare_internal_topics(broker.bootstrap)
        application.stop()
        for reader, expected in ((counts, counted), (of_minutes, minutes)):
            reader.read_to_end()
            assert reader.of_each_key() == {
                key: [b"%d" % each for each in range(1, count + 1)] for key, count in expected.items()
            }


def _compare_internal_topics(bootstrap: str) -> None:
    """Find the topics that Streams made of its own accord as it makes them."""
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        listed = admin.list_topics(timeout=SECONDS_MAX).topics
        asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in INTERNAL]
        policies = {
            resource.name: found.result(SECONDS_MAX)["cleanup.policy"].value
            for resource, found in admin.describe_configs(asked).items()
        }
    assert {name: (len(listed[name].partitions), policies[name]) for name in INTERNAL} == INTERNAL


@pytest.mark.parametrize("name", NAMES)
def test_streams_is_told_that_there_are_no_streams_groups(name: str, report: Report, tmp_path: Path) -> None:
    """With group.protocol=streams (KIP-1071) it ends as on a broker of Kafka where that is switched off."""
    without = {} if name == OURS else {"group.coordinator.rebalance.protocols": "classic,consumer"}
    with running_broker(name, tmp_path / "broker", without) as broker:
        Confluent().create_topic(broker.bootstrap, "lines", 2)
        command = words(broker.bootstrap, tmp_path / "state", "streams")
        with (
            reported(report, broker, NAME, KAFKA_VERSION, "refused with group.protocol=streams", SECTION),
            working(command, tmp_path / "application.txt") as application,
        ):
            until_printed(application, "failed: ")
            assert "UnsupportedVersionException: The cluster" in application.printed(), application.printed()
