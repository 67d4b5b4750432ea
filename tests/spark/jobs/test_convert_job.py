"""Convert: every record in its partition and order, in another format, or nothing at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import refused, said

import cordwood

pytestmark = pytest.mark.usefixtures("spark")
NOW = 1_700_000_000_000
Row = tuple[bytes | None, bytes | None, object, int]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", 2, {"segment.bytes": "600"})
        for number in range(40):
            rows = [(b"k%d" % number, b"v%d" % number, [("h", b"1")], NOW + number), (None, None, [], NOW)]
            topic.append_many(rows, partition=number % 2)
        log.topic("empty")
    return tmp_path / "data"


def rows_of(data: Path, topic: str) -> list[list[Row]]:
    with cordwood.open(data, read_only=True) as log:
        read = log.topic(topic)
        return [
            [(record.key, record.value, record.headers, record.timestamp) for record in read.read(partition)]
            for partition in range(read.partitions)
        ]


def test_every_record_is_there_in_its_partition_and_order(data: Path) -> None:
    shown = said(
        "pipeline",
        "convert",
        "--data",
        data,
        "-t",
        "orders",
        "--to",
        "m",
        "--config",
        "cordwood.format=laminarmq",
    )
    assert shown == "m: created from orders: 80 records in 2 partitions\n"
    assert rows_of(data, "m") == rows_of(data, "orders")
    with cordwood.open(data, read_only=True) as log:
        assert log.config_of("m").format == "laminarmq"


def test_an_empty_topic_is_an_empty_topic(data: Path) -> None:
    report = said("pipeline", "convert", "--data", data, "-t", "empty", "--to", "other", "--json")
    assert json.loads(report) == {"topic": "empty", "to": "other", "partitions": 1, "records": 0}


def test_what_the_format_cannot_hold_is_named_and_nothing_is_left(data: Path) -> None:
    arguments = ("pipeline", "convert", "--data", data, "-t", "orders", "--to", "r")
    sentence = refused(*arguments, "--config", "cordwood.format=rustlog")
    assert "which the format rustlog cannot hold" in sentence
    with cordwood.open(data, read_only=True) as log:
        assert log.topics == ["empty", "orders"]


def test_names_that_are_taken_or_missing_are_one_sentence(data: Path) -> None:
    arguments = ("pipeline", "convert", "--data", data)
    taken = refused(*arguments, "-t", "orders", "--to", "empty")
    assert taken == "there is a topic empty already"
    missing = refused(*arguments, "-t", "nowhere", "--to", "other")
    assert missing == "there is no topic nowhere; cordwood topic list shows the existing topics"
    assert "expected batch or" in refused(
        *arguments, "-t", "orders", "--to", "x", "--config", "cordwood.format=none"
    )


def test_microseconds_are_kept_from_format_to_format(data: Path) -> None:
    """They are a header on the way; a topic that stores milliseconds refuses it by name."""
    header = "cordwood.timestamp_us"
    with cordwood.open(data) as log:
        config = {"cordwood.format": "rustlog", "cordwood.timestamp.precision": "us"}
        log.topic("fine", config=config).append(
            b"v", timestamp=NOW, headers=[(header, b"%d" % (NOW * 1000 + 7))]
        )
    arguments = ("pipeline", "convert", "--data", data, "-t", "fine", "--to")
    kimberlite = ("--config", "cordwood.format=kimberlite")
    said(*arguments, "k", *kimberlite, "--config", "cordwood.timestamp.precision=us")
    assert rows_of(data, "k") == rows_of(data, "fine")
    assert "headers, which the format kimberlite cannot hold" in refused(*arguments, "coarse", *kimberlite)
