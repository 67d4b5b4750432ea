"""Rights over several requests: sessions, waits, cached lists, pages, and what a request carries inside."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import msgspec
import pytest
from support.authorizing import ALICE, MALLORY, ROOT, Answered, AskedServer, errors_in, rule

from cordwood.broker.staging import Command, FrameKey, StagedFrames, staging_topic
from cordwood.formats import batch
from cordwood.formats.batch import TRANSACTIONAL, BatchOptions
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    TopicCursor,
)
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DescribedConsumerGroup,
    DescribeGroupsRequest,
)
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from cordwood.protocol.wire import NULL_ID
from cordwood.security import (
    CLUSTER_NAME,
    AclBinding,
    Acls,
    Operation,
    PatternType,
    Permission,
    Principal,
    ResourceType,
)
from cordwood.server.security import SharedAcls

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
#: Versions of Fetch and Produce that name topics by name and by id.
BY_NAME, BY_ID = 12, 13
LONG_MS = 600_000
Told = dict[str, tuple[int, bool]]
"""The error code of each topic, and whether there were records."""


class Asking:
    """A server with topics, and what it answers to alice."""

    def __init__(self, server: AskedServer) -> None:
        self.server = server
        self.context = server.contexts[0]
        self.ids: dict[str, bytes] = {}
        self.acls = SharedAcls(Acls([], [ROOT]))
        self.context.authorization = self.acls

    def create(self, *names: str, partitions: int = 1) -> None:
        """Create topics."""
        asked = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
        answer = self.server.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=asked), ROOT)
        self.ids |= {each.name: each.topic_id for each in answer.body.topics}

    def allow(self, operation: Operation, *names: str, kind: ResourceType = TOPIC) -> None:
        """Let alice do something to resources."""
        self.acls.change(added=[rule(kind, operation, name) for name in names])

    def revoke(self, operation: Operation, *names: str) -> None:
        """Take back what `allow` gave."""
        self.acls.change(removed=[rule(TOPIC, operation, name) for name in names])

    def records(
        self,
        *names: str,
        partition: int = 0,
        acks: int = -1,
        transactional_id: str | None = None,
        options: BatchOptions | None = None,
        data: bytearray | None = None,
    ) -> ProduceRequest:
        """Return a request that appends a record to topics."""
        found = data or batch.encode_records([(b"key", b"value")], 1_000, options or BatchOptions())
        parts = [ProducePartition(partition, memoryview(found))]
        asked = [ProduceTopic(name, self.ids.get(name, NULL_ID), parts) for name in names]
        return ProduceRequest(transactional_id, acks, 1_000, asked)

    def produce(self, request: ProduceRequest, version: int = BY_ID) -> Answered:
        """Send records as alice."""
        return self.server.ask(ApiKey.PRODUCE, version, request, ALICE)

    def append(self, *names: str) -> None:
        """Append a record to topics."""
        answer = self.server.ask(ApiKey.PRODUCE, BY_ID, self.records(*names), ROOT)
        assert errors_in(answer.body) == {"topics.partitions.error_code": {0}}

    def wanted(
        self, offsets: Mapping[str, int], *, session: tuple[int, int] = (0, -1), wait_ms: int = 0
    ) -> FetchRequest:
        """Return a request that reads partition 0 of topics."""
        asked = [
            FetchTopic(name, self.ids[name], [FetchPartition(0, fetch_offset=at, max_bytes=1 << 20)])
            for name, at in offsets.items()
        ]
        return FetchRequest(-1, wait_ms, 1, 1 << 20, 0, *session, asked, [], "")

    def fetch(self, request: FetchRequest, version: int, principal: Principal = ALICE) -> Answered:
        """Read as alice."""
        return self.server.ask(ApiKey.FETCH, version, request, principal)

    def read(self, answer: Answered) -> Told:
        """Return the error code of each topic of an answer, and whether it has records."""
        names = {topic_id: name for name, topic_id in self.ids.items()}
        return {
            topic.name or names[topic.topic_id]: (part.error_code, any(part.records))
            for topic in answer.body.topics
            for part in topic.partitions
        }


@pytest.fixture
def asking() -> Iterator[Asking]:
    with AskedServer({"auto.create.topics.enable": "false"}) as server:
        yield Asking(server)


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_denied_topic_takes_nothing_from_the_others_of_a_request(asking: Asking, version: int) -> None:
    asking.create("mine", "theirs")
    asking.allow(Operation.ALL, "mine")
    produced = asking.produce(asking.records("theirs", "mine"), version).body
    assert [topic.partitions[0].error_code for topic in produced.topics] == [TOPIC_DENIED, 0]
    asking.append("theirs")
    got = asking.fetch(asking.wanted({"theirs": 0, "mine": 0}), version)
    assert asking.read(got) == {"theirs": (TOPIC_DENIED, False), "mine": (0, True)}
    assert b"value" in got.frame


def test_an_unknown_id_is_unknown_and_a_known_one_is_denied(asking: Asking) -> None:
    """Kafka tells them apart: ids cannot be guessed."""
    asking.create("theirs")
    asking.ids["nobody"] = bytes(range(16))
    assert asking.read(asking.fetch(asking.wanted({"theirs": 0, "nobody": 0}), BY_ID)) == {
        "theirs": (TOPIC_DENIED, False),
        "nobody": (ErrorCode.UNKNOWN_TOPIC_ID, False),
    }
    produced = asking.produce(asking.records("theirs", "nobody"), BY_ID).body
    codes = [topic.partitions[0].error_code for topic in produced.topics]
    assert codes == [TOPIC_DENIED, ErrorCode.UNKNOWN_TOPIC_ID]
    # By name nobody learns whether there is such a topic.
    produced = asking.produce(asking.records("theirs", "nobody"), BY_NAME).body
    assert [topic.partitions[0].error_code for topic in produced.topics] == [TOPIC_DENIED] * 2


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_each_fetch_of_a_session_needs_the_rights_again(asking: Asking, version: int) -> None:
    """Also if no topic changed and the request names none."""
    asking.create("first", "second")
    asking.append("first", "second")
    asking.allow(Operation.READ, "first", "second")
    opened = asking.fetch(asking.wanted({"first": 0, "second": 0}, session=(0, 0)), version)
    assert asking.read(opened) == {"first": (0, True), "second": (0, True)}
    session = opened.body.session_id
    assert session

    def go_on(epoch: int, offsets: Mapping[str, int]) -> dict[str, tuple[int, bool]]:
        answer = asking.fetch(asking.wanted(offsets, session=(session, epoch)), version)
        assert answer.body.error_code == 0
        return asking.read(answer)

    asking.append("first", "second")
    asking.revoke(Operation.READ, "second")
    assert go_on(1, {"first": 1, "second": 1}) == {"first": (0, True), "second": (TOPIC_DENIED, False)}
    # It is told again each time, as every error is.
    assert go_on(2, {"first": 2}) == {"second": (TOPIC_DENIED, False)}
    asking.allow(Operation.READ, "second")
    assert go_on(3, {}) == {"second": (0, True)}


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_session_is_its_clients_own(asking: Asking, version: int) -> None:
    """A client that guesses its number learns nothing of it, and can neither change nor end it."""
    asking.create("first")
    asking.append("first")
    asking.allow(Operation.READ, "first")
    session = asking.fetch(asking.wanted({"first": 0}, session=(0, 0)), version).body.session_id
    assert session
    for epoch in (1, 7):
        told = [
            asking.fetch(asking.wanted({}, session=(number, epoch)), version, MALLORY).body
            for number in (session, session ^ 1)
        ]
        assert told[0] == told[1]
        assert told[0].error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (0, -1):
        asking.fetch(asking.wanted({}, session=(session, epoch)), version, MALLORY)
    asking.append("first")
    answer = asking.fetch(asking.wanted({"first": 1}, session=(session, 1)), version)
    assert answer.body.error_code == ErrorCode.NONE
    assert asking.read(answer) == {"first": (0, True)}


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_session_may_be_opened_with_a_topic_that_is_denied(asking: Asking, version: int) -> None:
    asking.create("mine", "theirs")
    asking.append("mine", "theirs")
    asking.allow(Operation.READ, "mine")
    opened = asking.fetch(asking.wanted({"theirs": 0, "mine": 0}, session=(0, 0)), version)
    assert asking.read(opened) == {"theirs": (TOPIC_DENIED, False), "mine": (0, True)}
    asking.allow(Operation.READ, "theirs")
    next_one = asking.fetch(asking.wanted({"mine": 1}, session=(opened.body.session_id, 1)), version)
    assert asking.read(next_one) == {"theirs": (0, True)}


@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
def test_a_denied_topic_neither_ends_a_wait_nor_is_waited_for(
    asking: Asking, session: tuple[int, int]
) -> None:
    """A consumer that goes on in spite of the error would otherwise ask again and again."""
    asking.create("mine", "theirs")
    asking.allow(Operation.READ, "mine")
    both = asking.wanted({"theirs": 0, "mine": 0}, session=session, wait_ms=LONG_MS)
    waiting = asking.server.start(ApiKey.FETCH, BY_ID, both, ALICE)
    asking.append("theirs")
    assert not waiting.done()
    asking.append("mine")
    assert asking.read(asking.server.finish(waiting)) == {"theirs": (TOPIC_DENIED, False), "mine": (0, True)}
    alone = asking.wanted({"theirs": 0}, session=session, wait_ms=LONG_MS)
    assert asking.read(asking.fetch(alone, BY_ID)) == {"theirs": (TOPIC_DENIED, False)}


def test_a_fetch_that_waits_is_not_asked_again(asking: Asking) -> None:
    """As in Kafka: what is revoked is denied from the next fetch on."""
    asking.create("mine")
    asking.allow(Operation.READ, "mine")
    wanted = asking.wanted({"mine": 0}, wait_ms=LONG_MS)
    waiting = asking.server.start(ApiKey.FETCH, BY_ID, wanted, ALICE)
    asking.revoke(Operation.READ, "mine")
    asking.append("mine")
    assert asking.read(asking.server.finish(waiting)) == {"mine": (0, True)}
    assert asking.read(asking.fetch(wanted, BY_ID)) == {"mine": (TOPIC_DENIED, False)}


def listed(asking: Asking, principal: Principal, version: int = 12) -> list[str]:
    """Return the names of all topics that a client is told of."""
    request = MetadataRequest(topics=None)
    answer = asking.server.ask(ApiKey.METADATA, version, request, principal)
    return [topic.name for topic in answer.body.topics]


def test_the_list_of_all_topics_is_each_clients_own(asking: Asking) -> None:
    """It is kept for the next client, which must have the same rights."""
    asking.create("a", "b", "c")
    asking.allow(Operation.READ, "a", "c")
    asking.acls.change(added=[rule(TOPIC, Operation.DESCRIBE, "b", principal=MALLORY)])
    for _ in range(2):
        assert listed(asking, ALICE) == ["a", "c"]
        assert listed(asking, MALLORY) == ["b"]
        assert listed(asking, ROOT) == ["a", "b", "c"]
    asking.revoke(Operation.READ, "c")
    assert listed(asking, ALICE) == ["a"]
    asking.context.authorization = None
    assert listed(asking, ALICE) == ["a", "b", "c"]
    asking.context.authorization = asking.acls
    assert listed(asking, ALICE) == ["a"]


def test_pages_of_topics_pass_over_those_that_are_hidden(asking: Asking) -> None:
    asking.create("a", "b", "c", "d", "e", partitions=2)
    asking.allow(Operation.DESCRIBE, "b", "d")
    told, cursor = [], None
    for _ in range(5):
        request = DescribeTopicPartitionsRequest(response_partition_limit=1, cursor=cursor)
        answer = asking.server.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request, ALICE)
        told += [(each.name, part.partition_index) for each in answer.body.topics for part in each.partitions]
        if answer.body.next_cursor is None:
            break
        assert answer.body.next_cursor.topic_name in ("b", "d")
        cursor = TopicCursor(
            topic_name=answer.body.next_cursor.topic_name,
            partition_index=answer.body.next_cursor.partition_index,
        )
    assert told == [("b", 0), ("b", 1), ("d", 0), ("d", 1)]


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


def test_clients_are_told_which_operations_they_may_do(asking: Asking) -> None:
    asking.create("mine")
    asking.allow(Operation.READ, "mine")
    asking.allow(Operation.ALTER_CONFIGS, "mine")
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name="mine")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )

    def told(principal: Principal = ALICE) -> tuple[int, int]:
        answer = asking.server.ask(ApiKey.METADATA, 10, asked, principal)
        return answer.body.topics[0].topic_authorized_operations, answer.body.cluster_authorized_operations

    read = (Operation.READ, Operation.DESCRIBE)
    settings = (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)
    # Without DESCRIBE on the cluster nothing is said of it, whatever else is allowed.
    asking.allow(Operation.CREATE, CLUSTER_NAME, kind=CLUSTER)
    assert told() == (bits(*read, *settings), 0)
    asking.allow(Operation.ALTER, CLUSTER_NAME, kind=CLUSTER)
    assert told()[1] == bits(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE)
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    described = asking.server.ask(ApiKey.DESCRIBE_CLUSTER, 2, request, ALICE).body
    assert described.cluster_authorized_operations == told()[1]
    stranger = asking.server.ask(ApiKey.DESCRIBE_CLUSTER, 2, request, MALLORY).body
    assert (stranger.error_code, stranger.cluster_authorized_operations) == (0, 0)
    everything = told(ROOT)
    asking.context.authorization = None
    assert told() == everything
    assert everything == (
        bits(*read, *settings, *(Operation(number) for number in (4, 5, 6, 7))),
        bits(*(Operation(number) for number in (5, 7, 8, 9, 10, 11, 12))),
    )


def test_the_operations_on_a_group_are_told_if_the_group_is(asking: Asking) -> None:
    asking.allow(Operation.READ, "billing", kind=GROUP)
    request = DescribeGroupsRequest(groups=["billing"], include_authorized_operations=True)
    (group,) = asking.server.ask(ApiKey.DESCRIBE_GROUPS, 5, request, ALICE).body.groups
    assert group.authorized_operations == bits(Operation.READ, Operation.DESCRIBE)
    (group,) = asking.server.ask(ApiKey.DESCRIBE_GROUPS, 5, request, MALLORY).body.groups
    assert group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert group.authorized_operations == -(1 << 31)


def test_members_of_a_consumer_group_are_not_described_without_a_right_on_each_of_their_topics(
    asking: Asking,
) -> None:
    """An assignment names topics, which are not for everyone who may describe the group."""
    asking.create("orders", "secrets")
    asking.allow(Operation.DESCRIBE, "billing", kind=GROUP)
    asking.allow(Operation.DESCRIBE, "orders")
    joining = ConsumerGroupHeartbeatRequest(
        group_id="billing",
        member_id="m",
        rebalance_timeout_ms=LONG_MS,
        subscribed_topic_names=["orders", "secrets"],
        topic_partitions=[],
    )
    joined = asking.server.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, joining, ROOT).body
    assert joined.error_code == ErrorCode.NONE
    request = ConsumerGroupDescribeRequest(group_ids=["billing"])

    def described() -> DescribedConsumerGroup:
        (group,) = asking.server.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request, ALICE).body.groups
        assert isinstance(group, DescribedConsumerGroup)
        return group

    denied = described()
    assert (denied.error_code, denied.members) == (TOPIC_DENIED, [])
    asking.allow(Operation.DESCRIBE, "secrets")
    (member,) = described().members
    assert {topic.topic_name for topic in member.target_assignment.topic_partitions} == {"orders", "secrets"}


def test_a_denied_producer_without_acknowledgements_is_disconnected(asking: Asking) -> None:
    """As in Kafka: it has no other way to notice."""
    asking.create("theirs")
    assert asking.produce(asking.records("theirs", acks=0)).closed is not None
    asking.allow(Operation.WRITE, "theirs")
    answer = asking.produce(asking.records("theirs", acks=0))
    assert (answer.closed, answer.frame) == (None, b"")


def test_a_transactional_batch_needs_a_transactional_id_that_may_be_used(asking: Asking) -> None:
    """By what the batch says of itself: the request may say something else."""
    asking.create("mine")
    asking.allow(Operation.WRITE, "mine")
    asking.allow(Operation.WRITE, "my-id", kind=ResourceType.TRANSACTIONAL_ID)
    inside = BatchOptions(attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0)

    def code(transactional_id: str | None, options: BatchOptions | None) -> int:
        request = asking.records("mine", transactional_id=transactional_id, options=options)
        return int(asking.produce(request).body.topics[0].partitions[0].error_code)

    assert code("their-id", inside) == ID_DENIED
    assert code(None, inside) == ID_DENIED
    # Allowed, and refused for another reason: the producer is not that of the id.
    assert code("my-id", inside) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert code("their-id", None) == 0


QUERY = "a-query"
STAGING = staging_topic(QUERY)


def stage(asking: Asking, topic: str) -> StagedFrames:
    """Send a frame for *topic* to the staging topic."""
    key = FrameKey("task", topic, str(uuid.UUID(bytes=asking.ids[topic])), 0)
    frame = batch.encode_records([(None, b"published")], 1_000)
    row = (msgspec.json.encode(key), bytes(frame))
    data = batch.encode_records([row], 1_000)
    answer = asking.produce(asking.records(STAGING, partition=1, data=data))
    (part,) = answer.body.topics[0].partitions
    assert part.error_code == 0
    return StagedFrames("task", 1, part.base_offset, part.base_offset + 1, 1)


def test_a_command_of_the_sink_needs_write_on_the_topics_that_it_publishes_to(asking: Asking) -> None:
    """The right to write to the staging topic is not one to write to every topic by way of it."""
    asking.create("target")
    asking.create(STAGING, partitions=2)
    asking.allow(Operation.WRITE, STAGING)

    def publish() -> int:
        value = msgspec.json.encode(Command(query=QUERY, batch=0, staged=(stage(asking, "target"),)))
        data = batch.encode_records([(None, value)], 1_000)
        answer = asking.produce(asking.records(STAGING, data=data))
        return int(answer.body.topics[0].partitions[0].error_code)

    def stored() -> bool:
        wanted = asking.wanted({"target": 0})
        return asking.read(asking.fetch(wanted, BY_ID, ROOT))["target"][1]

    assert publish() == TOPIC_DENIED
    assert not stored()
    asking.allow(Operation.WRITE, "target")
    assert publish() == 0
    assert stored()


def test_a_prefix_grants_names_to_come_and_a_denial_takes_one_out(asking: Asking) -> None:
    asking.acls.change(
        added=[
            rule(TOPIC, Operation.CREATE, "team-", pattern=PatternType.PREFIXED),
            rule(TOPIC, Operation.CREATE, "team-secret", permission=Permission.DENY),
        ]
    )
    names = ["team-a", "team-secret", "other"]
    asked = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = asking.server.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=asked), ALICE)
    assert [topic.error_code for topic in answer.body.topics] == [0, TOPIC_DENIED, TOPIC_DENIED]
    assert asking.context.tenant.names() == ["team-a"]


class WatchedAcls(Acls):
    """Notes at each step of a change whether others can ask meanwhile."""

    shared: SharedAcls
    seen: list[bool]

    def add(self, acl: AclBinding) -> None:
        if hasattr(self, "shared"):
            self.seen.append(self.shared._lock.acquire(blocking=False))
        super().add(acl)


def test_no_decision_is_made_in_the_middle_of_a_change() -> None:
    """And no answer that is decided after a change can be kept under the number of before it."""
    acls = WatchedAcls()
    shared = acls.shared = SharedAcls(acls)
    acls.seen = []
    reading = [rule(TOPIC, Operation.READ, name) for name in ("a", "b")]
    shared.change(added=reading)
    assert acls.seen == [False, False]
    assert shared.changes == 1
    assert shared.allows(ALICE, "", Operation.READ, TOPIC, "a")
    assert shared.allows_any(ALICE, "", Operation.READ, TOPIC)
    shared.change(removed=reading)
    assert shared.changes == 2
    assert not shared.allows(ALICE, "", Operation.READ, TOPIC, "a")
