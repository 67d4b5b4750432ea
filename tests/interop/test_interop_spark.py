"""Spark's own Kafka source and sink against our server."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from interop.logins import java_settings
from interop.report import Report
from interop.six_steps import running_program
from interop.toolbox import HERE, fetch, kept, maven_jars, program
from support.clients import Confluent, Outgoing, Stored
from support.commands import said
from support.secured import USERS, Secured
from support.serving import ServerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

NAME = "Spark's Kafka source and sink"
PARTITIONS = 3
RECORDS = 150
FIRST_TIME = 1_700_000_000_000
#: What it may take where others use the machine too.
SPARK_SECONDS_MAX = 400


def pyspark() -> Path:
    """Return the directory that PySpark is in, for PYTHONPATH."""
    pins = HERE / "spark" / "requirements.txt"

    def fill(directory: Path) -> None:
        options = [
            "--quiet",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-deps",
            "--require-hashes",
        ]
        fetch(
            [sys.executable, "-m", "pip", "install", *options, "--target", directory, "-r", pins], directory
        )

    return kept("pyspark", [pins], fill)


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    with Confluent().producing(bootstrap, topic, "lz4") as producer:
        producer.send(
            [
                Outgoing(
                    number % PARTITIONS,
                    None if number % 4 == 0 else b"key-%d" % (number % 7),
                    None if number % 5 == 0 else b"value %d" % number,
                    (("number", b"%d" % number), ("null", None)) if number % 3 else (),
                    FIRST_TIME + number,
                )
                for number in numbers
            ]
        )
        producer.flush()


def stored(bootstrap: str, topic: str, count: int) -> list[Stored]:
    """Read all of a topic with another client: there are just *count* records."""
    with Confluent().consuming(bootstrap) as consumer:
        consumer.begin(topic, PARTITIONS)
        assert sum(end for _, end in consumer.bounds().values()) == count
        return consumer.take(count)


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def as_rows(records: list[Stored]) -> list[dict[str, Any]]:
    """Return records as Spark's source must show them."""
    return [
        {
            "partition": one.partition,
            "offset": one.offset,
            "key": text(one.key),
            "value": text(one.value),
            "timestamp": one.timestamp,
            "headers": [[name, text(value)] for name, value in one.headers] or None,
        }
        for one in records
    ]


def in_order(seen: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(seen["rows"], key=lambda row: (row["partition"], row["offset"]))


def content(records: list[Stored]) -> list[tuple[Any, ...]]:
    return [(one.partition, one.key, one.value, one.headers) for one in records]


def test_source_and_sink(server: ServerProcess, report: Report, tmp_path: Path) -> None:
    go_through(server.bootstrap, server.bootstrap, {}, NAME, report, tmp_path)


def test_source_and_sink_of_a_user_with_the_rights_that_they_need(report: Report, tmp_path: Path) -> None:
    """Over SASL_SSL, by SCRAM, on topics that others have made."""
    with Secured(tmp_path) as secured:
        place = ("--bootstrap", secured.bootstrap)
        bela = ("acl", "add", "--allow-principal", "User:bela")
        said(*bela, "--operation", "Read", "--topic", "t", "--topic", "copy", *place)
        said(*bela, "--operation", "Write", "--topic", "copy", "--topic", "stream-copy", *place)
        login = secured.login("SCRAM-SHA-512").but(user="bela", password=USERS["bela"])
        settings = java_settings(login)
        go_through(
            secured.bootstrap, secured.addresses["USERS"], settings, f"{NAME} over SASL_SSL", report, tmp_path
        )


def go_through(
    bootstrap: str, address: str, settings: Mapping[str, str], name: str, report: Report, tmp_path: Path
) -> None:
    """Have Spark, which connects to *address* with *settings*, take all steps; look on at *bootstrap*."""
    program("java")
    jars = maven_jars(HERE / "spark" / "pom.xml")
    packages = pyspark()
    found = re.search(r"pyspark==(\S+)", (HERE / "spark" / "requirements.txt").read_text())
    (client,) = (jar.stem for jar in jars if jar.name.startswith("kafka-clients"))
    assert found is not None
    version = f"{found[1]} ({client})"

    for topic in ("t", "copy", "stream-copy"):
        Confluent().create_topic(bootstrap, topic, PARTITIONS)
    produce(bootstrap, "t", range(RECORDS))
    first = stored(bootstrap, "t", RECORDS)
    middle = FIRST_TIME + RECORDS // 2
    ranges = {"0": (5, 20), "1": (0, 50), "2": (49, 50)}
    plan = {
        "bootstrap": address,
        "settings": settings,
        # Those that Spark has already are left alone.
        "jars": [str(jar) for jar in jars if not (packages / "pyspark" / "jars" / jar.name).exists()],
        "topic": "t",
        "time": middle,
        "starts": {"t": {partition: start for partition, (start, _) in ranges.items()}},
        "ends": {"t": {partition: end for partition, (_, end) in ranges.items()}},
        "copy": "copy",
        "stream_copy": "stream-copy",
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    within = [one for one in first if one.offset in range(*ranges[str(one.partition)])]
    later = [one for one in first if one.timestamp >= middle]
    command = [
        program("env"),
        f"PYTHONPATH={packages}",
        sys.executable,
        str(HERE / "spark" / "source_and_sink.py"),
    ]
    with running_program(command, plan, tmp_path, SPARK_SECONDS_MAX) as hear:
        with report.check("tools", name, version, "batch read from the earliest offset"):
            assert in_order(hear("batch")) == as_rows(first)
        with report.check("tools", name, version, "batch read between offsets"):
            assert in_order(hear("offsets")) == as_rows(within)
        with report.check("tools", name, version, "batch read from a time"):
            assert in_order(hear("time")) == as_rows(later)
        with report.check("tools", name, version, "stream read from the earliest offset"):
            assert in_order(hear("stream")) == as_rows(first)
        with report.check("tools", name, version, "stream read from a time"):
            assert in_order(hear("stream time")) == as_rows(later)
        with report.check("tools", name, version, "batch write"):
            seen = in_order(hear("sink"))
            copied = stored(bootstrap, "copy", RECORDS)
            assert content(copied) == content(first)
            assert seen == as_rows(copied)
        with report.check("tools", name, version, "stream write, resumed from its checkpoint"):
            hear("stream sink")
            assert content(stored(bootstrap, "stream-copy", RECORDS)) == content(first)
            produce(bootstrap, "t", range(RECORDS, 2 * RECORDS))
            hear("stream sink")
            everything = stored(bootstrap, "t", 2 * RECORDS)
            assert content(stored(bootstrap, "stream-copy", 2 * RECORDS)) == content(everything)
