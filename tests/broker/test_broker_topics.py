"""Topics in domain words: found, created once, refused by name, deleted for good."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pytest
from broker.nodes import BreakableFiles, batch_of, node_on, open_on

from cordwood.broker.node import Node
from cordwood.broker.topics import PARTITIONS_MAX, Topics
from cordwood.config.loading import BrokerConfig, TopicConfig
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import (
    CordwoodError,
    DiskFull,
    InvalidSetting,
    LogClosed,
    RecordRefused,
    TopicExists,
    UnknownSetting,
    UnknownTopic,
)
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.meta.catalogue import TopicEntry


@pytest.fixture
def node() -> Iterator[Node]:
    with open_on(MemoryFiles(), {"num.partitions": "3"}) as node:
        yield node


def test_a_topic_is_found_by_its_name_and_by_its_id_of_16_bytes(node: Node) -> None:
    created = node.topics.create("orders", 2, {"segment.bytes": "1000"})
    assert node.topics.find("orders") is created
    assert node.topics.id_of(created) == uuid.UUID(created.id).bytes
    assert node.topics.find_by_id(node.topics.id_of(created)) is created
    assert created.partitions == 2
    assert node.topics.config_of(created).segment_bytes == 1000
    assert node.topics.find("order") is None
    assert node.topics.find_by_id(bytes(16)) is None
    assert node.topics.find_by_id(uuid.uuid4().bytes) is None


def test_names_come_in_the_order_in_which_they_were_created(node: Node) -> None:
    for name in ("b", "a", "c"):
        node.topics.create(name)
    assert node.topics.names() == ["b", "a", "c"]


def test_a_topic_that_does_not_say_gets_as_many_partitions_as_the_broker_likes(node: Node) -> None:
    assert node.topics.create("orders").partitions == 3
    assert node.topics.ensure("payments").partitions == 3


def test_topics_are_the_same_after_opening_again() -> None:
    files = MemoryFiles()
    with open_on(files) as node:
        first = node.topics.create("orders", 2, {"cordwood.sync": "never"})
        node.topics.create("gone")
        node.topics.delete("gone")
    with open_on(files) as node:
        assert node.topics.names() == ["orders"]
        assert node.topics.find("orders") == first
        assert node.topics.find_by_id(uuid.UUID(first.id).bytes) == first


@pytest.mark.parametrize(
    ("name", "partitions", "config", "error"),
    [
        ("", 1, {}, RecordRefused),
        ("..", 1, {}, RecordRefused),
        ("a/b", 1, {}, RecordRefused),
        ("x" * 250, 1, {}, RecordRefused),
        ("orders", 0, {}, InvalidSetting),
        ("orders", -1, {}, InvalidSetting),
        ("orders", PARTITIONS_MAX + 1, {}, InvalidSetting),
        ("orders", 1, {"segment.bytes": "many"}, InvalidSetting),
        ("orders", 1, {"segment.byte": "100"}, UnknownSetting),
        ("there", 1, {}, TopicExists),
    ],
)
def test_what_cannot_be_is_refused_by_the_plan_and_by_the_deed(
    node: Node, name: str, partitions: int, config: dict[str, str], error: type[CordwoodError]
) -> None:
    node.topics.create("there")
    for attempt in (node.topics.plan, node.topics.create):
        with pytest.raises(error):
            attempt(name, partitions, config)
    assert node.topics.names() == ["there"]


def test_a_plan_creates_nothing_and_returns_the_settings(node: Node) -> None:
    assert node.topics.plan("orders", None, {"segment.bytes": "1000"}).segment_bytes == 1000
    assert node.topics.names() == []


def test_asking_for_a_topic_creates_it_once_and_only_where_that_is_allowed(node: Node) -> None:
    assert node.topics.ensure("orders") is node.topics.ensure("orders")
    with pytest.raises(RecordRefused):
        node.topics.ensure("../orders")
    with open_on(MemoryFiles(), {"auto.create.topics.enable": "false"}) as strict:
        with pytest.raises(UnknownTopic, match="there is no topic orders"):
            strict.topics.ensure("orders")
        created = strict.topics.create("orders")
        assert strict.topics.ensure("orders") is created


def test_of_many_who_create_the_same_topic_one_does_and_all_others_are_told(node: Node) -> None:
    outcomes: list[object] = []
    start = threading.Barrier(8)

    def create() -> None:
        start.wait()
        try:
            outcomes.append(node.topics.create("orders"))
        except TopicExists as error:
            outcomes.append(error)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8
    assert [each for each in outcomes if not isinstance(each, TopicExists)] == [node.topics.find("orders")]


class OvertakenTopics(dict[str, TopicEntry]):
    """Topics of which somebody else creates each one between the plan and the deed."""

    def new_entry(self, name: str, topic_id: str, partitions: int, config: object) -> TopicEntry:
        return TopicEntry(name, topic_id, partitions, {})

    def create(self, name: str, topic_id: str, partitions: int, config: object) -> TopicEntry:
        return TopicEntry(name, str(uuid.uuid4()), partitions, {})

    def create_all(self, wanted: Sequence[TopicEntry]) -> list[TopicEntry]:
        return [self.create(entry.name, entry.id, entry.partitions, {}) for entry in wanted]

    def check_no_collision(self, name: str) -> None:
        pass


class Overtaken:
    """A directory with these topics."""

    topics = OvertakenTopics()
    partitions = None

    def config_of(self, overrides: Mapping[str, str]) -> TopicConfig:
        return TopicConfig()


def test_who_is_overtaken_while_creating_a_topic_is_told_that_it_exists() -> None:
    topics = Topics(cast("DataDirectory", Overtaken()), BrokerConfig())
    with pytest.raises(TopicExists):
        topics.create("orders")
    assert topics.ensure("orders").name == "orders"


def test_a_deleted_topic_is_gone_under_name_and_id_and_its_successor_is_another(node: Node) -> None:
    first = node.topics.create("orders")
    first_id = node.topics.id_of(first)
    node.append("orders", 0, batch_of(b"old")).log.commit()
    node.topics.delete("orders")
    assert node.topics.find("orders") is None
    assert node.topics.find_by_id(first_id) is None
    shelf = node.topics.shelf(0)
    assert [*shelf.topics, *shelf.by_id] == [], "topics that are gone must not take memory"
    with pytest.raises(UnknownTopic):
        node.append("orders", 0, batch_of(b"new"))
    with pytest.raises(UnknownTopic):
        node.topics.delete("orders")
    second = node.topics.create("orders")
    assert node.topics.id_of(second) != first_id
    assert node.append("orders", 0, batch_of(b"new")).base_offset == 0


def test_a_full_disk_refuses_a_topic_and_takes_it_when_there_is_space() -> None:
    files = BreakableFiles()
    with open_on(files) as node:
        files.fail("write", code=errno.ENOSPC)
        with pytest.raises(DiskFull):
            node.topics.create("orders")
        assert node.topics.find("orders") is None
        files.heal()
        node.topics.create("orders")


def test_after_closing_nothing_is_found_any_more() -> None:
    node = node_on(MemoryFiles())
    node.directory.close()
    node.directory.close()
    with pytest.raises(LogClosed):
        node.topics.find("orders")
