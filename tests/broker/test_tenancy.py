"""Whose something is, told by its name; and a tenant's view of the broker, without a socket."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest
from broker.nodes import DATA, batch_of, node_on, values_of
from support.seeds import seed_or

from cordwood import tenancy
from cordwood.broker.node import Node
from cordwood.broker.staging import Command, FrameKey, StagedFrames, staging_topic
from cordwood.broker.tenants import Tenant
from cordwood.broker.topics import OFFSETS_PARTITIONS
from cordwood.config.loading import BrokerConfig
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import InvalidSetting, RecordRefused, TopicExists, UnknownTopic
from cordwood.formats import batch as frames
from cordwood.records import Record
from cordwood.storage.meta.catalogue import SHARED_TOPIC
from cordwood.storage.meta.names import check_topic_name
from cordwood.storage.sink.staging import Section, Share

ORGS = (0, 1, 7, 10, 2**63, 2**64 - 1)


# --- names --------------------------------------------------------------------------------------------


def test_names_and_ids_come_back_from_what_they_are_called_inside() -> None:
    seed = seed_or(20_261_003)
    rng = random.Random(seed)
    print(f"seed {seed}")
    shown: dict[str, tuple[str, int]] = {}
    for _ in range(2_000):
        org = rng.choice(ORGS)
        name = "".join(rng.choices("ab.-_0", k=rng.randint(1, 5)))
        assert tenancy.split(tenancy.qualify(name, org)) == (name, org)
        group = "".join(rng.choices("a@017", k=rng.randint(1, 6)))
        inside = tenancy.qualify_id(group, org)
        assert tenancy.split_id(inside) == (group, org)
        assert tenancy.parse_shown_id(tenancy.show_id(inside)) == inside
        # No two that are different look alike.
        assert shown.setdefault(tenancy.show_id(inside), (group, org)) == (group, org)


def test_a_group_whose_id_has_nul_in_it_is_still_its_own() -> None:
    assert tenancy.split_id(tenancy.qualify_id("a\0007\0b", 9)) == ("a\0007\0b", 9)
    assert not tenancy.is_client_id("\0007\0b")


@pytest.mark.parametrize("name", ["orders", "orders@1", f"orders@{2**64 - 1}", "n" * 249, "n" * 247 + "@7"])
def test_a_topic_may_have_its_org_behind_its_name(name: str) -> None:
    check_topic_name(name)


NOT_NAMES = ["orders@0", "orders@07", f"orders@{2**64}", "orders@", "@7", ".@7", "..@7", "a@b@7", "a/b@7"]
NOT_NAMES += ["orders@7/..", "orders@+7", "orders@\uff17", "orders@7 ", "n" * 248 + "@7", "n" * 250, "a@7\n"]


@pytest.mark.parametrize("name", NOT_NAMES)
def test_anything_else_with_an_at_sign_is_refused(name: str) -> None:
    with pytest.raises(RecordRefused):
        check_topic_name(name)


# --- topics -------------------------------------------------------------------------------------------


@pytest.fixture
def node() -> Iterator[Node]:
    opened = node_on(MemoryFiles())
    yield opened
    opened.directory.close()


def tenant(node: Node, org: int) -> Tenant:
    return Tenant(node, BrokerConfig(), org)


def test_one_name_in_every_org_is_as_many_topics(node: Node) -> None:
    made = [tenant(node, org).create("orders", None, {}) for org in ORGS]
    assert len({topic.id for topic in made}) == len(ORGS)
    assert {topic.name for topic in made} == {"orders"}
    assert list(node.directory.topics) == ["orders", *(f"orders@{org}" for org in ORGS[1:])]
    for org, topic in zip(ORGS, made, strict=True):
        us = tenant(node, org)
        assert us.names() == ["orders"]
        assert us.find("orders") == us.find_by_id(topic.id) == topic
        assert [us.find_by_id(other.id) for other in made if other is not topic] == [None] * (len(ORGS) - 1)
        with pytest.raises(TopicExists, match="orders already"):
            us.create("orders", None, {})
    tenant(node, 7).delete("orders")
    assert [tenant(node, org).names() for org in (0, 1, 7, 10)] == [["orders"], ["orders"], [], ["orders"]]


def test_topics_of_every_org_are_found_again_after_a_restart_in_their_order() -> None:
    files = MemoryFiles()
    node = node_on(files)
    names = ["b", "a", "c"]
    ids = {(org, name): tenant(node, org).create(name, 1, {}).id for org in ORGS for name in names}
    node.append("b@7", 0, batch_of(b"seven")).log.commit()
    tenant(node, 7).delete("a")
    node.directory.close()
    node = node_on(files)
    assert files.exists(f"{DATA}/topics/b@7/0")
    assert tenant(node, 7).names() == ["b", "c"]
    assert tenant(node, 0).names() == names
    assert all(tenant(node, org).find_by_id(ids[org, "c"]) is not None for org in ORGS)
    assert values_of(node, "b@7", 0) == [b"seven"]
    node.directory.close()


def test_every_change_is_told_by_the_number_of_changes_and_no_change_of_another(node: Node) -> None:
    us, them = tenant(node, 7), tenant(node, 8)
    seen = {us.changes}
    us.create("orders", 1, {})
    seen.add(us.changes)
    us.add_partitions("orders", 2)
    seen.add(us.changes)
    us.alter("orders", {"segment.ms": "5"})
    seen.add(us.changes)
    us.delete("orders")
    seen.add(us.changes)
    assert len(seen) == 5
    before = us.changes
    them.create("orders", 1, {})
    assert us.changes == before


def test_a_format_of_the_brokers_own_is_not_for_clients(node: Node) -> None:
    with pytest.raises(InvalidSetting, match=r"cordwood\.format"):
        tenant(node, 0).create("orders", 1, {"cordwood.format": "shared"})
    assert list(node.directory.topics) == []


def test_topics_of_the_broker_are_there_for_nobody_but_one_who_is_alone(node: Node) -> None:
    node.topics.ensure_internal()
    alone, other = tenant(node, 0), tenant(node, 7)
    assert alone.names() == ["__consumer_offsets"]
    found = alone.find("__consumer_offsets")
    assert found is not None
    assert found.partitions == OFFSETS_PARTITIONS
    assert other.names() == []
    other.create("orders", 1, {})
    # Its offsets may be in there from now on.
    assert alone.names() == []
    assert alone.find_by_id(found.id) is None
    for us in (alone, other):
        for name in (SHARED_TOPIC, "__consumer_offsets", "orders@7"):
            with pytest.raises(RecordRefused):
                us.create(name, 1, {})
            with pytest.raises(RecordRefused):
                us.ensure(name)
            with pytest.raises(UnknownTopic):
                us.delete(name)


def test_what_an_org_has_stored_is_the_sum_of_its_partitions(node: Node) -> None:
    sizes = {}
    for org, values in ((0, 1), (7, 5)):
        tenant(node, org).create("orders", 2, {})
        key = tenancy.qualify("orders", org)
        for number in range(2):
            for _ in range(values):
                node.append(key, number, batch_of(b"v" * 100)).log.commit()
        sizes[org] = sum(node.standing(key, number).size for number in range(2))
    node.topics.ensure_internal()
    node.append(
        "__consumer_offsets", 0, memoryview(frames.encode_records([(b"k", b"v")], 1_000))
    ).log.commit()
    assert tenant(node, 0).stored_bytes() == sizes[0]
    assert tenant(node, 7).stored_bytes() == sizes[7] > 4 * sizes[0] > 0
    assert tenant(node, 8).stored_bytes() == 0
    tenant(node, 7).delete("orders")
    assert tenant(node, 7).stored_bytes() == 0


def test_a_new_topic_is_kept_where_the_broker_says_and_a_staging_topic_has_files_of_its_own() -> None:
    files = MemoryFiles()
    for storage, expected in (("own", {}), ("shared", {"cordwood.storage": "shared"})):
        node = node_on(files, {"cordwood.storage": storage})
        us = tenant(node, 7)
        topics = [us.create(f"made-{storage}", 1, {}), us.ensure(f"asked-for-{storage}")]
        assert [dict(topic.entry.config) for topic in topics] == [expected] * 2
        assert us.create(staging_topic(storage), 1, {}).entry.config == {}
        made = us.find("made-own")
        assert made is not None
        assert node.topics.config_of(made.entry).storage == "own"
        with pytest.raises(InvalidSetting, match=r"cordwood\.storage"):
            us.alter("made-own", {"cordwood.storage": "shared"})
        node.directory.close()


# --- the sink -----------------------------------------------------------------------------------------

QUERY = "query q"


def staged(node: Node, org: int, topic: str, topic_id: str, value: bytes) -> StagedFrames:
    """Stage one frame in an org's staging topic."""
    key = msgspec.json.encode(FrameKey("task", topic, topic_id, 0))
    data = memoryview(frames.encode_records([(key, bytes(batch_of(value)))], 1_000))
    placed = node.append(tenancy.qualify(staging_topic(QUERY), org), 1, data)
    placed.log.commit()
    return StagedFrames("task", 1, placed.base_offset, placed.next_offset, 1)


def obey(node: Node, org: int, command: Command) -> list[Share]:
    key = tenancy.qualify(staging_topic(QUERY), org)
    return node.sink.execute(key, [Record(0, 1_000, None, msgspec.json.encode(command))])


@pytest.fixture
def sinks(node: Node) -> dict[int, str]:
    """Have a topic and a staging topic of one name in two orgs; return the topics' ids."""
    ids = {}
    for org in (0, 7):
        us = tenant(node, org)
        us.create(staging_topic(QUERY), 2, {})
        ids[org] = us.create("out", 1, {}).entry.id
    return ids


def test_queries_of_one_name_in_two_orgs_publish_their_own_batches(node: Node, sinks: dict[int, str]) -> None:
    """Neither counts as done because the other's of the same number is."""
    for org in (0, 7):
        frame = staged(node, org, "out", sinks[org], f"of {org}".encode())
        assert len(obey(node, org, Command(query=QUERY, batch=0, staged=(frame,)))) == 1
    assert values_of(node, "out", 0) == [b"of 0"]
    assert values_of(node, "out@7", 0) == [b"of 7"]


@pytest.mark.parametrize(("ours", "theirs"), [(0, 7), (7, 0)])
def test_no_command_publishes_to_a_topic_of_another_org(
    node: Node, sinks: dict[int, str], ours: int, theirs: int
) -> None:
    for name in ("out", tenancy.qualify("out", theirs), f"out@{theirs}"):
        frame = staged(node, ours, name, sinks[theirs], b"forged")
        with pytest.raises((RecordRefused, UnknownTopic)):
            obey(node, ours, Command(query=QUERY, batch=0, staged=(frame,)))
    assert values_of(node, "out", 0) == values_of(node, "out@7", 0) == []


def test_a_command_names_no_share_of_another_org_and_no_query_as_it_is_called_inside(
    node: Node, sinks: dict[int, str]
) -> None:
    share = Share("1-task-1.share", (Section("out", sinks[0], 0, 0, 10, 1),))
    with pytest.raises(RecordRefused, match="not a topic to publish to"):
        obey(node, 7, Command(query=QUERY, batch=0, shares=(share,)))
    inside = tenancy.qualify_id(QUERY, 7)
    tenant(node, 0).create(staging_topic(inside), 2, {})
    forged = msgspec.json.encode(Command(query=inside, batch=0))
    with pytest.raises(RecordRefused):
        node.sink.execute(staging_topic(inside), [Record(0, 1_000, None, forged)])


def test_no_command_publishes_to_a_topic_of_the_broker(node: Node, sinks: dict[int, str]) -> None:
    entry = node.topics.ensure_internal()
    frame = staged(node, 0, entry.name, entry.id, b"forged")
    share = Share("1-task-1.share", (Section(entry.name, entry.id, 0, 0, 10, 1),))
    for command in (
        Command(query=QUERY, batch=0, staged=(frame,)),
        Command(query=QUERY, batch=0, shares=(share,)),
    ):
        with pytest.raises(RecordRefused, match="not a topic to publish to"):
            obey(node, 0, command)
    assert values_of(node, entry.name, 0) == []
