"""``cordwood topic``, on files and through the server that holds them."""

from __future__ import annotations

import json
from pathlib import Path

from support.commands import refused, run, said

import cordwood

Where = list[object]


def test_a_topic_is_created_listed_altered_described_and_deleted(where: Where) -> None:
    assert (
        said("topic", "create", "orders", "--partitions", 2, *where)
        == "created topic orders with 2 partitions\n"
    )
    said("topic", "create", "clicks", "--config", "segment.bytes=100000", *where)
    said("produce", "-t", "orders", "-p", 1, *where, stdin=b"a\nb\nc\n")
    assert said("topic", "list", *where).splitlines() == [
        "topic   partitions  offsets",
        "clicks           1        0",
        "orders           2        3",
    ]
    assert json.loads(said("topic", "list", "--json", *where)) == [
        {"name": "clicks", "partitions": 1, "offsets": 0, "internal": False},
        {"name": "orders", "partitions": 2, "offsets": 3, "internal": False},
    ]
    assert said("topic", "alter", "orders", "--partitions", 3, "--config", "segment.ms=5000", *where) == (
        "altered topic orders\n"
    )
    described = json.loads(said("topic", "describe", "orders", "--json", *where))
    assert [(each["partition"], each["high_watermark"]) for each in described["partitions"]] == [
        (0, 0),
        (1, 3),
        (2, 0),
    ]
    assert described["own"] == {"segment.ms": "5000"}
    assert described["settings"]["cordwood.sync"] == "each"
    said("topic", "alter", "orders", "--unset", "segment.ms", *where)
    assert json.loads(said("topic", "describe", "orders", "--json", *where))["own"] == {}

    would = said("topic", "delete", "orders", "--dry-run", *where)
    assert would == "would delete topic orders: 3 offsets in 3 partitions\n"
    assert "orders" in said("topic", "list", *where)
    assert said("topic", "delete", "orders", *where) == would.replace("would delete", "deleted")
    assert "orders" not in said("topic", "list", *where)


def test_describe_is_two_tables_for_people(where: Where) -> None:
    said("topic", "create", "orders", "--config", "segment.bytes=100000", *where)
    said("produce", "-t", "orders", *where, stdin=b"tea\n")
    lines = said("topic", "describe", "orders", *where).splitlines()
    assert lines[0].startswith("topic orders, id ")
    assert lines[1].split() == ["partition", "log", "start", "offset", "high", "watermark", "bytes"]
    assert lines[2].split()[:3] == ["0", "0", "1"]
    assert ["segment.bytes", "100000", "topic"] in [line.split() for line in lines]
    assert ["cordwood.sync", "each", "default"] in [line.split() for line in lines]


def test_what_is_wrong_with_a_topic_is_said_in_a_sentence(where: Where) -> None:
    said("topic", "create", "orders", "--partitions", 2, *where)
    assert refused("topic", "create", "orders", *where) == "there is a topic orders already"
    for command in ("describe", "delete"):
        sentence = refused("topic", command, "nowhere", *where)
        assert sentence == "there is no topic nowhere; cordwood topic list shows the existing topics"
    assert "topic name 'a/b' must be 1 to 249 of" in refused("topic", "create", "a/b", *where)
    assert "expected more than the current 2" in refused(
        "topic", "alter", "orders", "--partitions", 2, *where
    )
    assert "unknown setting segment.byte" in refused(
        "topic", "alter", "orders", "--config", "segment.byte=1", *where
    )


def test_a_refused_alteration_changes_nothing(tmp_path: Path) -> None:
    """Settings and partitions are changed together or not at all."""
    said("topic", "create", "orders", "--data", tmp_path)
    alter = ["topic", "alter", "orders", "--data", tmp_path]
    refused(*alter, "--partitions", 1, "--config", "segment.ms=5000")
    refused(*alter, "--partitions", 4, "--config", "segment.ms=-5")
    described = json.loads(said("topic", "describe", "orders", "--json", "--data", tmp_path))
    assert (described["own"], len(described["partitions"])) == ({}, 1)


def test_usage(tmp_path: Path) -> None:
    assert "nothing to alter" in refused("topic", "alter", "orders", "--data", tmp_path, code=2)
    assert "give --data or --bootstrap, not both" in refused(
        "topic", "list", "--data", tmp_path, "--bootstrap", "localhost:1", code=2
    )
    assert "expected KEY=VALUE" in refused("topic", "create", "orders", "--config", "retention.ms", code=2)
    told = refused("topic", "create", "orders", "--config", "client.properties", code=2)
    assert "--command-config takes a client.properties" in told
    assert run("topic", "create").exit_code == 2


def test_internal_topics_are_listed_when_asked_for(tmp_path: Path) -> None:
    said("produce", "-t", "orders", "--data", tmp_path, stdin=b"a\n")
    said("consume", "-t", "orders", "-G", "billing", "--data", tmp_path)
    assert "__consumer_offsets" not in said("topic", "list", "--data", tmp_path)
    assert "__consumer_offsets" in said("topic", "list", "--internal", "--data", tmp_path)


def test_a_topic_made_again_is_not_begun_where_groups_stood_in_the_old_one(tmp_path: Path) -> None:
    """Deleting a topic on files takes back what groups have committed of it, as the server does."""
    data = ["--data", tmp_path]
    for _ in range(2):
        said("produce", "-t", "orders", *data, stdin=b"a\nb\n")
        assert said("consume", "-t", "orders", "-G", "billing", *data) == "a\nb\n"
        said("topic", "delete", "orders", *data)
    assert "billing" not in said("group", "list", *data)


def test_reading_commands_work_beside_an_embedded_writer_and_leave_its_lock_alone(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        log.topic("orders").append(b"tea")
        assert "orders" in said("topic", "list", "--data", tmp_path)
        assert said("consume", "-t", "orders", "-e", "--data", tmp_path) == "tea\n"
        log.topic("orders").append(b"coffee")


def test_list_counts_offsets_and_says_so_where_compaction_left_gaps(tmp_path: Path) -> None:
    """How many records are in a gap nobody knows without reading the log, so none are claimed."""
    config = {"cleanup.policy": "compact", "segment.bytes": "200", "min.cleanable.dirty.ratio": "0"}
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t", config=config)
        for number in range(10):
            topic.append(b"value %d" % number, key=b"k")
        topic.roll()
        log.maintain()
        assert len(list(topic.read(0))) < 10
    (line,) = json.loads(said("topic", "list", "--json", "--data", tmp_path / "data"))
    assert line["offsets"] == 10
    assert "records" not in line
    would = said("topic", "delete", "t", "--dry-run", "--data", tmp_path / "data")
    assert would == "would delete topic t: 10 offsets in 1 partition\n"
