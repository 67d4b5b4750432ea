"""Topics whose names differ in "." and "_" only are refused, as by Kafka: its clients cannot have both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker.nodes import DATA, node_on, open_on

import cordwood
from cordwood.broker.node import Node
from cordwood.broker.tenants import Tenant
from cordwood.broker.topics import NewTopic
from cordwood.config.loading import BrokerConfig
from cordwood.disk.files import join
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, RecordRefused
from cordwood.storage.meta.catalogue import Catalogue, Contents, DeletedEntry, TopicEntry

SAID = "Topic 'orders_eu' collides with existing topic: orders.eu"


@pytest.fixture
def node() -> Iterator[Node]:
    with open_on(MemoryFiles()) as node:
        yield node


def test_a_colliding_name_is_refused_however_the_topic_is_created(node: Node) -> None:
    node.topics.create("orders.eu")
    for create in (node.topics.create, node.topics.ensure, lambda name: node.topics.plan(name, 1, {})):
        with pytest.raises(RecordRefused, match=SAID):
            create("orders_eu")
    assert node.topics.names() == ["orders.eu"]
    # A topic does not collide with itself, nor with one that differs in anything else.
    assert node.topics.ensure("orders.eu").name == "orders.eu"
    node.topics.create("orders-eu")
    node.topics.create("orders.eu.")


def test_of_topics_created_together_the_first_of_a_colliding_pair_is_made(node: Node) -> None:
    names = ("a.b", "a_b", "c", "a.b.c")
    made = node.topics.create_all([NewTopic(name, 1, {}) for name in names])
    assert [isinstance(each, CordwoodError) for each in made] == [False, True, False, False]
    assert node.topics.names() == ["a.b", "c", "a.b.c"]


def test_a_deleted_topic_collides_with_nothing(node: Node) -> None:
    node.topics.create("orders.eu")
    node.topics.delete("orders.eu")
    node.topics.create("orders_eu")
    with pytest.raises(RecordRefused):
        node.topics.create("orders.eu")


def test_internal_topics_collide_as_others_do(node: Node) -> None:
    node.topics.ensure_internal()
    with pytest.raises(RecordRefused, match="collides with existing topic: __consumer_offsets"):
        node.topics.create("__consumer.offsets")


def test_names_of_two_orgs_do_not_collide(node: Node) -> None:
    """What one org calls its topics is not told to another, not by a refusal either."""
    seven, eight = (Tenant(node, BrokerConfig(), org) for org in (7, 8))
    seven.create("orders.eu", 1, {})
    eight.create("orders_eu", 1, {})
    node.topics.create("orders_eu")
    with pytest.raises(RecordRefused, match=SAID):
        seven.create("orders_eu", 1, {})


def test_the_library_refuses_a_colliding_name() -> None:
    with cordwood.open(":memory:") as log:
        log.topic("orders.eu").append(b"kept")
        for create in (log.topic, log.create_topic):
            with pytest.raises(RecordRefused, match=SAID):
                create("orders_eu")
        assert [record.value for record in log.topic("orders.eu").read()] == [b"kept"]


def test_a_directory_that_has_both_already_opens_and_serves_both() -> None:
    files = MemoryFiles()
    with open_on(files) as node:
        node.topics.create("orders.eu")
    catalogue = Catalogue.open(files, DATA)
    catalogue.add([TopicEntry("orders_eu", "8b9f0f0e-54c5-4a0e-8ac1-41a3f3c2a5c7", 1)])
    catalogue.close()
    assert files.exists(join(DATA, "meta", "catalogue.log"))
    node = node_on(files)
    try:
        assert node.topics.names() == ["orders.eu", "orders_eu"]
        assert node.topics.ensure("orders_eu").name == "orders_eu"
        node.topics.alter("orders_eu", {"retention.ms": "5"})
        node.topics.add_partitions("orders.eu", 2)
        # One of them goes, and the other one still counts.
        node.topics.delete("orders_eu")
        with pytest.raises(RecordRefused):
            node.topics.create("orders_eu")
    finally:
        node.directory.close()


def test_what_collides_is_counted_by_topics_not_by_entries() -> None:
    """A topic that was changed has several entries in the catalogue, and is still one."""
    first, changed = TopicEntry("a.b", "id-1", 1), TopicEntry("a.b", "id-1", 2)
    contents = Contents([first, changed])
    assert contents.colliding("a_b") == "a.b"
    assert contents.colliding("a.b") is None
    contents.apply([DeletedEntry("id-1")])
    assert contents.colliding("a_b") is None
