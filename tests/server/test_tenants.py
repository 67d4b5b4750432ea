"""Tenants on one broker: the same names twice, and nothing of one that another can find, count or change."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from support.asking import Asking, records_in, values_in
from support.groups import RawMember, commit, fetch_offsets
from support.patience import SECONDS_MAX
from support.serving import RawClient
from support.tenant_requests import LISTEN, LISTING, NEITHER, ORGS, REACHING, SETTINGS, Target, spoken

from cordwood import Broker
from cordwood.broker.groups.offsets_topic import NAME as OFFSETS_TOPIC
from cordwood.config.loading import load_broker_config
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import InvalidSetting
from cordwood.formats import batch
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from cordwood.server.broker import open_node
from cordwood.server.service import HANDLERS
from cordwood.storage.meta.catalogue import SHARED_TOPIC
from cordwood.tenancy import qualify

LIBRDKAFKA: Any = confluent_kafka.admin
#: The tenants of each test that has two: two orgs, and one that has none beside one that has.
PAIRS = [("ALPHA", "BETA"), ("BETA", "ALPHA"), ("PLAIN", "ALPHA"), ("ALPHA", "PLAIN")]
#: What only the other tenant has: none of it may be in an answer, whatever was asked.
TOPIC, GROUP, NOTE, CLIENT, VALUE, SEGMENT_MS = (
    "orders-beehive",
    "group-beehive",
    "note-beehive",
    "client-beehive",
    b"value-beehive",
    "8675309",
)
COMMITTED = "committed-beehive"
MARKS = [NOTE.encode(), CLIENT.encode(), VALUE, SEGMENT_MS.encode()]
#: As long as those, and nobody's.
NOBODYS = Target("nobody-has-any", b"\x5a" * 16, "nobodies-here", "no-member")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(listen=LISTEN, config=SETTINGS) as running:
        yield running


@pytest.fixture
def strict_broker() -> Iterator[Broker]:
    """Have one that makes no topic for who asks for it."""
    with Broker(listen=LISTEN, config={**SETTINGS, "auto.create.topics.enable": "false"}) as running:
        yield running


class Owner:
    """A tenant with something to hide."""

    def __init__(self, address: str) -> None:
        self.client = Asking(address)
        topic_id = self.client.create(TOPIC, 2, segment_ms=SEGMENT_MS)
        for partition in (0, 1):
            data = batch.encode_records([(b"key", VALUE)] * 3, 1_000)
            assert not self.client.produce(TOPIC, data, partition).error_code
        assert set(commit(self.client, COMMITTED, {(TOPIC, 1): (2, 0, NOTE)}).values()) == {0}
        self.member = RawMember(address, GROUP, TOPIC)
        self.member.join()
        self.member.sync()
        self.target = Target(TOPIC, topic_id, GROUP, self.member.member_id)

    def everything(self) -> list[Any]:
        """Return all that there is to know."""
        said: list[Any] = [
            [records_in(self.client.fetch(TOPIC, 0, partition)) for partition in (0, 1)],
            [self.client.offset_at(TOPIC, -2, partition) for partition in (0, 1)],
            fetch_offsets(self.client, COMMITTED, None),
            self.client.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[GROUP, COMMITTED])),
            self.client.ask(ApiKey.DESCRIBE_CONFIGS, REACHING[ApiKey.DESCRIBE_CONFIGS](self.target, 4)),
        ]
        return said + [self.client.ask(key, make(APIS[key].advertised.last)) for key, make in LISTING.items()]

    def close(self) -> None:
        self.member.client.close()
        self.client.close()


Enter = Callable[[Owner], Owner]


@pytest.fixture
def enter() -> Iterator[Enter]:
    """Have tenants hang up when the test ends."""
    with ExitStack() as stack:
        yield lambda owner: stack.enter_context(closing(owner))


def answer_to(client: RawClient, key: ApiKey, version: int, body: object) -> bytes:
    """Return the bytes of an answer, without the number of its question."""
    client.send(key, version, body)
    return client.receive_frame()[4:]


def replaced(answer: bytes, one: Target, other: Target) -> bytes:
    """Return an answer about *one* as if it were about the other."""
    answer = answer.replace(one.topic_id, other.topic_id)
    for before, after in ((one.topic, other.topic), (one.group, other.group), (one.member, other.member)):
        answer = answer.replace(before.encode(), after.encode())
    return answer


def called_inside(target: Target, org: int) -> Target:
    return target._replace(topic=f"{target.topic}@{org}", group=f"\0{org}\0{target.group}")


def test_every_api_either_names_or_lists_or_does_neither() -> None:
    """A new one is to be put where it belongs, and is tried below from then on."""
    assert set(REACHING) | set(LISTING) | NEITHER == set(HANDLERS) <= set(APIS)
    assert not NEITHER & (set(REACHING) | set(LISTING))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_what_is_anothers_is_answered_byte_for_byte_as_what_nobody_has(
    strict_broker: Broker, enter: Enter, ours: str, theirs: str
) -> None:
    """In every version of every API, by name, by id, by group and member, and by the names used inside."""
    broker = strict_broker
    owner = enter(Owner(broker.addresses[theirs]))
    before = owner.everything()
    nobodys = NOBODYS._replace(member="m" * len(owner.target.member))
    pairs = [(owner.target, nobodys)]
    # As it is called inside, and with the org of who asks.
    pairs += [
        (called_inside(owner.target, org), called_inside(nobodys, org)) for org in (ORGS[theirs], ORGS[ours])
    ]
    asked = 0
    with RawClient(broker.addresses[ours]) as client:
        for key, make in REACHING.items():
            for version in spoken(key):
                for target, other in pairs:
                    answer = answer_to(client, key, version, make(target, version))
                    expected = answer_to(client, key, version, make(other, version))
                    assert answer, (key, version, target)
                    assert replaced(answer, target, other) == expected, (key, version, target)
                    assert [mark for mark in MARKS if mark in answer] == []
                    asked += 1
    print(f"{asked} requests of {len(REACHING)} APIs by {ours} for what is of {theirs}")
    assert asked > 300
    assert owner.everything() == before


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_no_listing_changes_by_what_another_has(broker: Broker, enter: Enter, ours: str, theirs: str) -> None:
    listings = 0
    with Asking(broker.addresses[ours]) as client:
        client.create("orders-own")
        commit(client, "own", {("orders-own", 0): (0, 0, "")})

        def listed() -> dict[tuple[ApiKey, int], bytes]:
            return {
                (key, version): answer_to(client, key, version, make(version))
                for key, make in LISTING.items()
                for version in spoken(key)
            }

        before = listed()
        enter(Owner(broker.addresses[theirs]))
        after = listed()
        for which, answer in after.items():
            assert answer == before[which], which
            assert b"beehive" not in answer, which
            listings += 1
        assert b"orders-own" in after[ApiKey.METADATA, 12]
    print(f"{listings} listings")
    assert listings > 20


def test_a_tenant_sees_its_own_group_under_its_own_id_and_not_how_full_the_disk_is(
    broker: Broker, enter: Enter
) -> None:
    for address in broker.addresses.values():
        owner = enter(Owner(address))
        asked = DescribeGroupsRequest(groups=[GROUP])
        (described,) = owner.client.ask(ApiKey.DESCRIBE_GROUPS, asked).groups
        assert (described.group_id, described.group_state) == (GROUP, "Stable")
        assert [member.member_id for member in described.members] == [owner.target.member]
        (directory,) = owner.client.ask(
            ApiKey.DESCRIBE_LOG_DIRS, LISTING[ApiKey.DESCRIBE_LOG_DIRS](5)
        ).results
        assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)


def test_the_settings_of_the_broker_show_no_listener_of_another_org(broker: Broker) -> None:
    for ours in ORGS:
        with RawClient(broker.addresses[ours]) as client:
            answer = answer_to(client, ApiKey.DESCRIBE_CONFIGS, 4, LISTING[ApiKey.DESCRIBE_CONFIGS](4))
        assert [name for name in ORGS if f"{name}://".encode() in answer] == [ours]


# --- the same names, with real clients ----------------------------------------------------------------


def settings_of(address: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": address, "log_level": 0, **more}


def consume_all(address: str, count: int) -> list[tuple[bytes | None, int | None]]:
    """Join a group, read *count* records of a topic, commit, leave."""
    consumer = confluent_kafka.Consumer(
        settings_of(
            address,
            **{"group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False},
        )
    )
    consumer.subscribe(["orders"])
    found: list[tuple[bytes | None, int | None]] = []
    while len(found) < count:
        (message,) = consumer.consume(1, SECONDS_MAX)
        assert message.error() is None
        found.append((message.value(), message.offset()))
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def test_the_same_topic_and_group_in_three_orgs_are_three(broker: Broker) -> None:
    """Created, filled, consumed, altered and deleted with confluent-kafka, each without the others."""
    sent = {
        name: [f"{name}-{number}".encode() for number in range(3 + index)] for index, name in enumerate(ORGS)
    }
    admins = {}
    for index, (name, address) in enumerate(broker.addresses.items()):
        admins[name] = LIBRDKAFKA.AdminClient(settings_of(address))
        new = LIBRDKAFKA.NewTopic("orders", 1, 1, config={"segment.ms": str(1000 + index)})
        admins[name].create_topics([new])["orders"].result(SECONDS_MAX)
        producer = confluent_kafka.Producer(settings_of(address, **{"enable.idempotence": True}))
        for value in sent[name]:
            producer.produce("orders", value, partition=0)
        assert producer.flush(SECONDS_MAX) == 0
    for name, address in broker.addresses.items():
        expected = [(value, offset) for offset, value in enumerate(sent[name])]
        assert consume_all(address, len(sent[name])) == expected
    for index, (name, admin) in enumerate(admins.items()):
        resource = LIBRDKAFKA.ConfigResource(LIBRDKAFKA.ConfigResource.Type.TOPIC, "orders")
        described = admin.describe_configs([resource])[resource].result(SECONDS_MAX)
        assert described["segment.ms"].value == str(1000 + index)
        assert [group.group_id for group in admin.list_consumer_groups().result(SECONDS_MAX).valid] == [
            "readers"
        ]
        with Asking(broker.addresses[name]) as client:
            committed = fetch_offsets(client, "readers", [("orders", 0)])
            assert committed["orders", 0][0] == len(sent[name])
    admins["ALPHA"].delete_topics(["orders"])["orders"].result(SECONDS_MAX)
    left = {name: list(admin.list_topics(timeout=SECONDS_MAX).topics) for name, admin in admins.items()}
    assert left == {"PLAIN": ["orders"], "ALPHA": [], "BETA": ["orders"]}
    for name in ("PLAIN", "BETA"):
        with Asking(broker.addresses[name]) as client:
            assert values_in(client.fetch("orders")) == sent[name]
            assert fetch_offsets(client, "readers", [("orders", 0)])["orders", 0][0] == len(sent[name])


# --- names that nobody may give, and topics that nobody may see ---------------------------------------


@pytest.mark.parametrize("listener", ORGS)
def test_names_used_inside_cannot_be_given_by_a_client(broker: Broker, listener: str) -> None:
    with Asking(broker.addresses[listener]) as client:
        for name in ("orders@7", "orders@0", "orders@", "@7", SHARED_TOPIC, OFFSETS_TOPIC):
            asked = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            (result,) = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked])).topics
            assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
            (found,) = client.topics(name, create=True)
            assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
        assert client.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics == []
        client.create("orders")
        for group in ("\0", "\0007\0readers", "\0" + "0\0readers"):
            codes = commit(client, group, {("orders", 0): (0, 0, "")})
            assert set(codes.values()) == {ErrorCode.INVALID_GROUP_ID}
        assert client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest()).groups == []


def test_a_name_is_as_long_as_leaves_room_for_the_org(broker: Broker) -> None:
    for listener, org in ORGS.items():
        longest = 249 - (len(f"@{org}") if org else 0)
        with Asking(broker.addresses[listener]) as client:
            client.create("n" * longest)
            assert client.topics("n" * (longest + 1))[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_topic_of_the_shared_log_is_seen_by_no_client() -> None:
    """Not by name, not by id, not in a list; nor is that of groups where there are tenants."""
    files = MemoryFiles()
    config, _ = load_broker_config({}, environment={})
    node = open_node("/data", config, files)
    for org in ORGS.values():
        node.topics.create(qualify("orders", org), 1, {"cordwood.storage": "shared"})
    shared = node.topics.find(SHARED_TOPIC)
    assert shared is not None
    shared_id = node.topics.id_of(shared)
    node.directory.close()
    with Broker("/data", files=files, listen=LISTEN, config=SETTINGS) as broker:
        for address in broker.addresses.values():
            with Asking(address) as client:
                commit(client, "readers", {("orders", 0): (0, 0, "")})
                everything = client.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics
                assert [topic.name for topic in everything] == ["orders"]
                for name in (SHARED_TOPIC, OFFSETS_TOPIC):
                    assert client.topics(name)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                by_id = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=shared_id)])
                (found,) = client.ask(ApiKey.METADATA, by_id).topics
                assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID
                assert client.delete(SHARED_TOPIC) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_without_tenants_the_topic_of_groups_is_shown() -> None:
    with Broker() as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
        commit(client, "readers", {("orders", 0): (0, 0, "")})
        assert client.topics(OFFSETS_TOPIC)[0].is_internal


# --- where a client is sent ---------------------------------------------------------------------------


def test_no_client_is_sent_to_a_listener_of_another_org() -> None:
    """There it would be another's client. Where its own has no advertised address, it stays where it is."""
    advertised = {"advertised.listeners": "PLAIN://plain.example:1,BETA://beta.example:2"}
    with Broker(listen=LISTEN, config={**SETTINGS, **advertised}) as broker:
        told = {}
        for name, address in broker.addresses.items():
            with RawClient(address) as client:
                (one,) = client.ask(ApiKey.METADATA, MetadataRequest(topics=[])).brokers
                told[name] = f"{one.host}:{one.port}"
    assert told == {
        "PLAIN": "plain.example:1",
        "BETA": "beta.example:2",
        "ALPHA": broker.addresses["ALPHA"],
    }


def test_an_org_for_a_listener_that_is_not_there_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"cordwood\.listener\.ALPHA\.org"):
        Broker(tmp_path / "data", config={"cordwood.listener.ALPHA.org": "7"})
    assert not (tmp_path / "data").exists()


def test_the_command_says_which_listener_serves_which_org(tmp_path: Path) -> None:
    listen = "INSIDE://localhost:0,ACME://localhost:0"
    told = ["--listen", listen, "-X", "cordwood.listener.ACME.org=7"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cordwood.cli", "serve", "--data", str(tmp_path), *told],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(3)]
    process.terminate()
    process.communicate(timeout=SECONDS_MAX)
    assert lines[0][:3] == ["cordwood:", "ready", "on"]
    said = [(words[2], words[-1]) for words in lines[1:]]
    assert said == [("INSIDE", "0"), ("ACME", "7")]
    assert lines[1][4] == lines[0][3] != lines[2][4]


# --- very many topics ---------------------------------------------------------------------------------


def test_a_list_of_all_topics_is_made_once_and_again_when_they_change(broker: Broker) -> None:
    with Asking(broker.addresses["ALPHA"]) as client, Asking(broker.addresses["BETA"]) as other:

        def names() -> list[str]:
            return [t.name for t in client.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics]

        expected = [f"topic-{number:03}" for number in range(250)]
        new = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in expected]
        client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=new))
        assert names() == expected
        other.create("elsewhere")
        assert names() == expected
        client.create("one-more")
        assert names() == [*expected, "one-more"]
        client.delete("topic-100")
        expected.remove("topic-100")
        assert names() == [*expected, "one-more"]
