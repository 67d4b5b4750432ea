"""Consumer groups over the wire: every API in every version, and what is still there after the end."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.clocks import HookedFiles
from support.groups import (
    BY_ID_FROM,
    NO_OFFSET,
    RawMember,
    commit,
    fetch_offsets,
    subscription,
    wait_until_loaded,
)
from support.history.checker import check
from support.history.recorder import Recorder
from support.patience import SECONDS_MAX, in_time, until
from support.seeds import seed_or
from support.serving import RawClient, ServerProcess, serving

from cordwood import Broker
from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.coordinator import Coordinator
from cordwood.broker.groups.known import GroupLimits
from cordwood.broker.groups.offsets_topic import OffsetKey, StoredGroup
from cordwood.config.loading import load_broker_config
from cordwood.disk.files import os_error
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import LogFailed
from cordwood.formats import batch
from cordwood.host.clock import SystemClock
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from cordwood.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from cordwood.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from cordwood.protocol.wire import NULL_ID
from cordwood.server.broker import open_node
from cordwood.server.groups import Groups
from cordwood.server.recompressing import Batch

NONE = ErrorCode.NONE
Address = tuple[str, int] | str
#: Sessions may be short here, so that nobody has to wait for their ends.
SETTINGS = {"group.min.session.timeout.ms": "1", "offset.metadata.max.bytes": "100"}
GROUP_APIS = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config=SETTINGS) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as connected:
        yield connected


def create_topic(client: RawClient, name: str, partitions: int = 4) -> bytes:
    """Create a topic and return its id."""
    asked = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    (made,) = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked])).topics
    assert made.error_code == NONE
    topic_id: bytes = made.topic_id
    return topic_id


def delete_topic(client: RawClient, name: str) -> ErrorCode:
    asked = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
    (result,) = client.ask(ApiKey.DELETE_TOPICS, asked).responses
    return ErrorCode(result.error_code)


def delete_offsets(
    client: RawClient, group: str, places: Iterable[tuple[str, int]]
) -> tuple[ErrorCode, list[ErrorCode]]:
    topics = [
        OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
        for topic, index in places
    ]
    response = client.ask(ApiKey.OFFSET_DELETE, OffsetDeleteRequest(group_id=group, topics=topics))
    codes = [ErrorCode(part.error_code) for topic in response.topics for part in topic.partitions]
    return ErrorCode(response.error_code), codes


def delete_groups(client: RawClient, *names: str, version: int | None = None) -> list[ErrorCode]:
    asked = DeleteGroupsRequest(groups_names=list(names))
    response = client.ask(ApiKey.DELETE_GROUPS, asked, version)
    assert [result.group_id for result in response.results] == list(names)
    return [ErrorCode(result.error_code) for result in response.results]


def describe(client: RawClient, group: str, version: int | None = None) -> Any:
    (described,) = client.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group]), version).groups
    return described


def stored_rows(address: Address) -> list[tuple[bytes | None, bytes | None]]:
    """Return key and value of all records of the internal topic, read as any client can."""
    asked = FetchTopic(offsets_topic.NAME, NULL_ID, [FetchPartition(0, max_bytes=1 << 24)])
    with RawClient(address) as client:
        (topic,) = client.ask(
            ApiKey.FETCH, FetchRequest(-1, 0, 0, 1 << 24, 0, 0, -1, [asked], [], ""), 12
        ).topics
    data = b"".join(bytes(piece) for piece in topic.partitions[0].records)
    return [
        (record.key, record.value)
        for header in batch.scan(data).headers()
        for record in batch.decode_records(data, header)
    ]


def join_together(*members: RawMember) -> None:
    """Have members join one generation: all have ids before the first is in, so that it waits for them."""
    for member in members:
        member.ask_for_id()
    # Static ones have no ids and nobody waits for them, so they must be in before the last of the others.
    for member in sorted(members, key=lambda one: one.instance is None):
        member.send_join()
        while member.instance is not None and member.instance not in instances(member):
            pass
    assert {member.joined() for member in members} == {NONE}
    assert len({member.generation for member in members}) == 1


def instances(member: RawMember) -> set[str | None]:
    """Return the instance ids of all members of a group, asked for on another connection."""
    with RawClient(member.client.socket.getpeername()[:2]) as client:
        return {one.group_instance_id for one in describe(client, member.group).members}


def settled(*members: RawMember) -> dict[str, bytes]:
    """Have members join and sync together; return what each was assigned: its own id, and a number."""
    join_together(*members)
    leaders = [member for member in members if member.member_id == member.leader]
    assert len(leaders) == 1
    shares = {member.member_id: f"{member.member_id} {n}".encode() for n, member in enumerate(members)}
    for member in members:
        member.send_sync(shares if member in leaders else None)
    assert [member.synced() for member in members] == [(NONE, shares[one.member_id]) for one in members]
    return shares


# --- every version ------------------------------------------------------------------------------------


def live(address: Address, number: int, versions: Mapping[ApiKey, int]) -> None:
    """Go through the life of a group in the given versions; everything asked for is answered as it is."""
    group, topic = f"life-{number}", f"topic-{number}"
    static = versions[ApiKey.JOIN_GROUP] >= 5 and versions[ApiKey.SYNC_GROUP] >= 3
    static = static and versions[ApiKey.HEARTBEAT] >= 3 and versions[ApiKey.LEAVE_GROUP] >= 3
    with (
        RawClient(address) as client,
        RawMember(address, group, topic, versions=versions) as first,
        RawMember(address, group, topic, versions=versions, instance="i" if static else None) as second,
    ):
        topic_id = create_topic(client, topic)
        find_coordinator(client, group, versions[ApiKey.FIND_COORDINATOR])
        assert first.join() == NONE
        assert first.members == {first.member_id: subscription(topic)}
        assert first.sync({first.member_id: b"alone"}) == (NONE, b"alone")
        second.ask_for_id()
        second.send_join()
        while first.heartbeat() is NONE:
            pass
        assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        first.send_join()
        assert (first.joined(), second.joined()) == (NONE, NONE)
        assert (first.generation, second.generation) == (2, 2)
        assert second.leader == first.leader == first.member_id
        assert set(first.members) == {first.member_id, second.member_id}
        first.send_sync({first.member_id: b"one", second.member_id: b"two"})
        second.send_sync()
        assert (first.synced(), second.synced()) == ((NONE, b"one"), (NONE, b"two"))
        assert first.heartbeat() is second.heartbeat() is NONE
        look_at(client, group, [first, second], versions)
        commit_and_fetch(client, first, topic, topic_id, versions)
        assert delete_offsets(client, group, [(topic, 0)]) == (NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
        assert delete_groups(client, group) == [ErrorCode.NON_EMPTY_GROUP]
        assert second.leave() is first.leave() is NONE
        assert first.leave() is first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        assert describe(client, group, versions[ApiKey.DESCRIBE_GROUPS]).group_state == "Empty"
        assert delete_offsets(client, group, [(topic, 0)]) == (NONE, [NONE])
        assert list(fetch_offsets(client, group, None)) == [(topic, 1)]
        end_of_epoch(client, topic, versions[ApiKey.OFFSET_FOR_LEADER_EPOCH])
        version = versions[ApiKey.DELETE_GROUPS]
        assert delete_groups(client, group, "no such", version=version) == [
            NONE,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ]
        gone = describe(client, group, versions[ApiKey.DESCRIBE_GROUPS])
        missing = ErrorCode.GROUP_ID_NOT_FOUND if versions[ApiKey.DESCRIBE_GROUPS] >= 6 else NONE
        assert (gone.group_state, gone.error_code) == ("Dead", missing)


def find_coordinator(client: RawClient, group: str, version: int) -> None:
    asked = FindCoordinatorRequest(key=group, coordinator_keys=[group, "another"])
    response = client.ask(ApiKey.FIND_COORDINATOR, asked, version)
    found = response.coordinators if version >= 4 else [response]
    assert [one.error_code for one in found] == [NONE] * (2 if version >= 4 else 1)
    assert {(one.node_id, one.port) for one in found} == {(0, client.socket.getpeername()[1])}
    transactional = FindCoordinatorRequest(key="t", key_type=1, coordinator_keys=["t"])
    if version >= 1:
        response = client.ask(ApiKey.FIND_COORDINATOR, transactional, version)
        (one,) = response.coordinators if version >= 4 else [response]
        assert (one.error_code, one.node_id) == (NONE, 0)
        share = FindCoordinatorRequest(key="s", key_type=2, coordinator_keys=["s"])
        response = client.ask(ApiKey.FIND_COORDINATOR, share, version)
        (one,) = response.coordinators if version >= 4 else [response]
        assert (one.error_code, one.error_message) == (
            ErrorCode.INVALID_REQUEST,
            "there is no coordinator of type 2",
        )


def look_at(
    client: RawClient, group: str, members: Sequence[RawMember], versions: Mapping[ApiKey, int]
) -> None:
    described = describe(client, group, versions[ApiKey.DESCRIBE_GROUPS])
    assert (described.error_code, described.group_state) == (NONE, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    seen = {one.member_id: (one.client_id, bytes(one.member_assignment)) for one in described.members}
    assert seen == {members[0].member_id: ("raw", b"one"), members[1].member_id: ("raw", b"two")}
    assert {one.client_host for one in described.members} == {"/127.0.0.1"}
    if versions[ApiKey.DESCRIBE_GROUPS] >= 4:
        assert [one.group_instance_id for one in described.members] == [None, members[1].instance]
    version = versions[ApiKey.LIST_GROUPS]
    listed = {
        one.group_id: one for one in client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(), version).groups
    }
    assert listed[group].protocol_type == "consumer"
    if version >= 4:
        assert listed[group].group_state == "Stable"
        filtered = ListGroupsRequest(states_filter=["Dead", "Empty"])
        assert group not in {one.group_id for one in client.ask(ApiKey.LIST_GROUPS, filtered, version).groups}
    if version >= 5:
        for kind, there in (("Classic", True), ("consumer", False)):
            found = client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(types_filter=[kind]), version).groups
            assert (group in {one.group_id for one in found}) is there


def commit_and_fetch(
    client: RawClient, member: RawMember, topic: str, topic_id: bytes, versions: Mapping[ApiKey, int]
) -> None:
    version, ids = versions[ApiKey.OFFSET_COMMIT], {topic: topic_id}
    epoch = 3 if version >= 6 else -1
    offsets = {(topic, 0): (7, epoch, "a note, größer"), (topic, 1): (2**40, -1, "")}
    told = commit(
        client,
        member.group,
        offsets,
        version=version,
        member_id=member.member_id,
        generation=member.generation,
        ids=ids,
    )
    assert set(told.values()) == {NONE}
    version = versions[ApiKey.OFFSET_FETCH]
    # Before version 5 there is no epoch in the answer.
    seen = {place: (at, given if version >= 5 else -1, note) for place, (at, given, note) in offsets.items()}
    asked = [*offsets, (topic, 2)]
    found = fetch_offsets(client, member.group, asked, version=version, ids=ids)
    assert found == {**seen, (topic, 2): NO_OFFSET}
    if version >= 2:
        assert fetch_offsets(client, member.group, None, version=version, ids=ids) == seen
        assert fetch_offsets(client, "another group", None, version=version) == {}
    assert fetch_offsets(client, member.group, [], version=version) == {}


def end_of_epoch(client: RawClient, topic: str, version: int) -> None:
    asked = OffsetForLeaderTopic(
        topic=topic, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    )
    (answer,) = client.ask(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest(topics=[asked]), version
    ).topics
    assert [(one.error_code, one.end_offset) for one in answer.partitions] == [(NONE, 0)]


def test_a_group_lives_in_every_version_of_every_api(broker: Broker) -> None:
    ranges = {api: APIS[api].advertised for api in GROUP_APIS}
    oldest, newest = min(each.first for each in ranges.values()), max(each.last for each in ranges.values())
    tried: set[tuple[ApiKey, int]] = set()
    for number in range(oldest, newest + 1):
        versions = {api: min(max(number, each.first), each.last) for api, each in ranges.items()}
        live(broker.bootstrap, number, versions)
        tried |= set(versions.items())
    print(f"{len(tried)} versions of {len(GROUP_APIS)} APIs, in {newest - oldest + 1} lives of a group")
    assert tried == {(api, v) for api, each in ranges.items() for v in range(each.first, each.last + 1)}
    assert len(tried) >= 70


@pytest.mark.parametrize("version", range(APIS[ApiKey.JOIN_GROUP].advertised.last + 1))
def test_a_member_is_sent_for_an_id_only_in_versions_that_know_of_it(broker: Broker, version: int) -> None:
    with RawMember(broker.bootstrap, f"ids-{version}", "t", versions={ApiKey.JOIN_GROUP: version}) as member:
        response = member.ask(ApiKey.JOIN_GROUP, member.join_request())
        assert response.error_code == (ErrorCode.MEMBER_ID_REQUIRED if version >= 4 else NONE)
        assert response.member_id.startswith("raw-")


# --- what is refused ----------------------------------------------------------------------------------


def refusals(client: RawClient, group: str) -> dict[ApiKey, int]:
    """Return how each API answers for a group that cannot be served."""
    asked: dict[ApiKey, Any] = {
        ApiKey.JOIN_GROUP: JoinGroupRequest(group_id=group, session_timeout_ms=10_000),
        ApiKey.SYNC_GROUP: SyncGroupRequest(group_id=group),
        ApiKey.HEARTBEAT: HeartbeatRequest(group_id=group),
        ApiKey.LEAVE_GROUP: LeaveGroupRequest(group_id=group, members=[MemberIdentity()]),
    }
    if len(group.encode()) < 1 << 15:
        asked[ApiKey.OFFSET_DELETE] = OffsetDeleteRequest(group_id=group)
    codes = {api: client.ask(api, body).error_code for api, body in asked.items()}
    codes[ApiKey.DELETE_GROUPS] = delete_groups(client, group)[0]
    codes[ApiKey.DESCRIBE_GROUPS] = describe(client, group).error_code
    (code,) = commit(client, group, {("any", 0): (1, -1, "")}).values()
    codes[ApiKey.OFFSET_COMMIT] = code
    (found,) = client.ask(
        ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[])])
    ).groups
    codes[ApiKey.OFFSET_FETCH] = found.error_code
    return codes


@pytest.mark.parametrize("group", ["", "g" * 32_768, "ü" * 20_000], ids=["none", "long", "long in bytes"])
def test_a_group_without_a_name_or_with_one_that_cannot_be_stored_is_refused(
    client: RawClient, group: str
) -> None:
    assert set(refusals(client, group).values()) == {ErrorCode.INVALID_GROUP_ID}


@pytest.mark.parametrize("what", ["instance", "kind"])
def test_a_member_whose_generation_could_not_be_stored_is_refused(broker: Broker, what: str) -> None:
    """Else the leader, who has nothing to do with it, would lose its connection when it hands in."""
    long: dict[str, Any] = {what: "x" * 33_000}
    with RawMember(broker.bootstrap, "long names", "t", **long) as member:
        assert member.join() is ErrorCode.INVALID_REQUEST
    with RawMember(broker.bootstrap, "long names", "t") as member:
        settled(member)
        assert member.leave() is NONE


def test_a_session_must_be_as_long_as_the_broker_allows() -> None:
    settings = {"group.min.session.timeout.ms": "5000", "group.max.session.timeout.ms": "6000"}
    with Broker(config=settings) as broker:
        for session_ms, code in ((4_999, 26), (5_000, 0), (6_000, 0), (6_001, 26), (-1, 26)):
            with RawMember(broker.bootstrap, f"sessions {session_ms}", "t", session_ms=session_ms) as member:
                assert member.join() == code


def test_a_full_group_says_so() -> None:
    with (
        Broker(config={"group.max.size": "1"}) as broker,
        RawMember(broker.bootstrap, "g", "t") as first,
        RawMember(broker.bootstrap, "g", "t") as second,
    ):
        settled(first)
        assert second.join() is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_members_that_say_something_wrong_are_told_what(broker: Broker) -> None:
    with RawMember(broker.bootstrap, "wrong", "t") as member:
        settled(member)
        known = member.member_id
        member.generation = 7
        assert member.heartbeat() is ErrorCode.ILLEGAL_GENERATION
        assert member.sync()[0] is ErrorCode.ILLEGAL_GENERATION
        member.member_id, member.generation = "nobody", 1
        assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        assert member.join() is ErrorCode.UNKNOWN_MEMBER_ID
        member.member_id, member.instance = known, "i"
        assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    with RawMember(broker.bootstrap, "wrong", "t", kind="connect") as other:
        assert other.join() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_that_was_started_anew_fences_the_one_before(broker: Broker) -> None:
    with (
        RawMember(broker.bootstrap, "fencing", "t", instance="i") as old,
        RawMember(broker.bootstrap, "fencing", "t", instance="i") as new,
    ):
        shares = settled(old)
        create_topic(old.client, "fencing")
        assert new.join() is NONE
        assert (new.generation, new.sync()) == (1, (NONE, shares[old.member_id]))
        assert old.heartbeat() is old.join() is old.leave() is ErrorCode.FENCED_INSTANCE_ID
        assert old.commit({("fencing", 0): 1}) == {ErrorCode.FENCED_INSTANCE_ID}
        assert new.commit({("fencing", 0): 2}) == {NONE}
        assert new.heartbeat() is NONE


def test_a_member_that_is_gone_is_missed_after_its_session(broker: Broker) -> None:
    """Nobody says so: its connection ended, or its cable was cut. Who joins waits for that long."""
    with RawMember(broker.bootstrap, "gone", "t", session_ms=400) as first:
        settled(first)
    with RawMember(broker.bootstrap, "gone", "t", session_ms=400) as second:
        started = time.monotonic()
        assert second.join() is NONE
        assert in_time(time.monotonic() - started, 10)
        assert (second.generation, set(second.members)) == (2, {second.member_id})


def test_the_first_members_wait_for_others_as_long_as_the_broker_says() -> None:
    with (
        Broker(config={"group.initial.rebalance.delay.ms": "300"}) as broker,
        RawMember(broker.bootstrap, "g", "t") as first,
        RawMember(broker.bootstrap, "g", "t") as second,
    ):
        first.ask_for_id()
        first.send_join()
        assert second.join() is first.joined() is NONE
        assert (first.generation, second.generation) == (1, 1)


# --- offsets ------------------------------------------------------------------------------------------


def test_a_note_comes_back_as_it_was_and_one_that_is_too_long_is_refused(client: RawClient) -> None:
    create_topic(client, "notes")
    notes = ["", "n" * 100, "n" * 101, "ü" * 50, "ü" * 51, "\x00\n🪵"]
    codes = []
    for note in notes:
        told = commit(client, "notes", {("notes", 0): (1, -1, "before"), ("notes", 1): (2, -1, note)})
        assert told["notes", 0] is NONE
        codes.append(told["notes", 1])
        if not codes[-1]:
            assert fetch_offsets(client, "notes", [("notes", 1)]) == {("notes", 1): (2, -1, note)}
    refused = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert codes == [NONE, NONE, refused, NONE, refused, NONE]


def test_offsets_of_topics_and_partitions_that_are_not_there_are_refused_and_the_others_kept(
    client: RawClient,
) -> None:
    topic_id = create_topic(client, "there", 2)
    ids = {"there": topic_id, "nowhere": b"x" * 16}
    offsets = {(topic, part): (5, -1, "") for topic in ("there", "nowhere") for part in (0, 2, -1)}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for version, by in ((9, unknown), (BY_ID_FROM, ErrorCode.UNKNOWN_TOPIC_ID)):
        told = commit(client, f"there-{version}", offsets, version=version, ids=ids)
        assert told == {
            ("there", 0): NONE,
            ("there", 2): unknown,
            ("there", -1): unknown,
            **{("nowhere", part): by for part in (0, 2, -1)},
        }
        assert list(fetch_offsets(client, f"there-{version}", None)) == [("there", 0)]
    asked = OffsetFetchRequestTopics(topic_id=b"x" * 16, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id="there-9", topics=[asked])
    (answer,) = client.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[group]), BY_ID_FROM).groups
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_offsets_of_many_groups_are_fetched_at_once(client: RawClient) -> None:
    create_topic(client, "shared")
    for number in range(3):
        commit(client, f"many-{number}", {("shared", 0): (number, -1, "")})
    named = [OffsetFetchRequestTopics(name="shared", partition_indexes=[0, 1])]
    groups = [OffsetFetchRequestGroup(group_id=f"many-{number}", topics=named) for number in range(3)]
    groups += [OffsetFetchRequestGroup(group_id="many-0", topics=None), OffsetFetchRequestGroup(topics=[])]
    answers = client.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups), 9).groups
    found = [[part.committed_offset for topic in one.topics for part in topic.partitions] for one in answers]
    assert found == [[0, -1], [1, -1], [2, -1], [0], []]
    assert [one.error_code for one in answers] == [0, 0, 0, 0, ErrorCode.INVALID_GROUP_ID]


def test_only_the_generation_that_is_may_commit(broker: Broker, client: RawClient) -> None:
    create_topic(client, "generations")
    place = ("generations", 0)
    with RawMember(broker.bootstrap, "generations", "generations") as member:
        assert member.join() is NONE
        assert member.commit({place: 1}) == {ErrorCode.REBALANCE_IN_PROGRESS}
        member.sync({})
        assert member.commit({place: 2}) == {NONE}
        (code,) = commit(client, "generations", {place: (3, -1, "")}).values()
        assert code is ErrorCode.UNKNOWN_MEMBER_ID
        member.generation = 2
        assert member.commit({place: 4}) == {ErrorCode.ILLEGAL_GENERATION}
        member.leave()
        assert member.commit({place: 5}) == {ErrorCode.UNKNOWN_MEMBER_ID}
    # As in Kafka, version 9 tells a group that does not exist from another generation.
    for version, expected in ((8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)):
        offsets, who = {place: (6, -1, "")}, {"member_id": "m", "generation": 3}
        told = commit(client, "never seen", offsets, version=version, **who)  # type: ignore[arg-type]
        assert told == {place: expected}
    assert fetch_offsets(client, "generations", [place]) == {place: (2, -1, "")}
    assert commit(client, "generations", {place: (7, -1, "")}) == {place: NONE}


def test_offsets_of_what_a_member_reads_are_not_deleted(broker: Broker, client: RawClient) -> None:
    for topic in ("read", "unread"):
        create_topic(client, topic)
    commit(client, "readers", {("read", 0): (1, -1, ""), ("unread", 0): (2, -1, "")})
    with RawMember(broker.bootstrap, "readers", "read") as member:
        settled(member)
        told = delete_offsets(client, "readers", [("read", 0), ("unread", 0), ("nowhere", 0)])
        codes = [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert told == (NONE, codes)
        assert list(fetch_offsets(client, "readers", None)) == [("read", 0)]
        member.leave()
    assert delete_offsets(client, "readers", [("read", 0)]) == (NONE, [NONE])
    assert fetch_offsets(client, "readers", None) == {}
    assert delete_offsets(client, "never seen", [("read", 0)]) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_offsets_of_members_that_are_no_consumers_are_not_deleted_while_there_are_any(
    broker: Broker, client: RawClient
) -> None:
    create_topic(client, "connected")
    commit(client, "connectors", {("connected", 0): (1, -1, "")})
    with RawMember(broker.bootstrap, "connectors", "connected", kind="connect") as member:
        settled(member)
        assert delete_offsets(client, "connectors", [("connected", 0)]) == (ErrorCode.NON_EMPTY_GROUP, [])
        member.leave()
    assert delete_offsets(client, "connectors", [("connected", 0)]) == (NONE, [NONE])


# --- topics that go, and the one that stays -----------------------------------------------------------


def test_a_topic_takes_its_offsets_with_it_and_one_of_its_name_has_none(client: RawClient) -> None:
    for topic in ("leaves", "stays"):
        create_topic(client, topic)
    for group in ("a", "b"):
        commit(
            client, group, {("leaves", 0): (9, -1, ""), ("leaves", 1): (8, -1, ""), ("stays", 0): (7, -1, "")}
        )
    assert delete_topic(client, "leaves") is NONE
    for group in ("a", "b"):
        assert list(fetch_offsets(client, group, None)) == [("stays", 0)]
    create_topic(client, "leaves")
    assert fetch_offsets(client, "a", [("leaves", 0)]) == {("leaves", 0): NO_OFFSET}


def rows_of_group(address: Address, group: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return the records about one group: those of other tests' groups may come to an end at any time."""
    return [row for row in stored_rows(address) if group.encode() in (row[0] or b"")]


def test_clients_read_the_internal_topic_and_change_nothing_of_it(broker: Broker, client: RawClient) -> None:
    create_topic(client, "seen")
    commit(client, "seen", {("seen", 3): (12, 1, "note")})
    name = offsets_topic.NAME
    rows = rows_of_group(broker.bootstrap, "seen")
    (value,) = [value for key, value in rows if key == offsets_topic.offset_key(OffsetKey("seen", "seen", 3))]
    assert value is not None
    assert offsets_topic.decode_offset(value)[:3] == (12, 1, "note")

    data = memoryview(batch.encode_records([(offsets_topic.group_key("seen"), None)], 1))
    topic = ProduceTopic(name, NULL_ID, [ProducePartition(0, data)])
    (answer,) = client.ask(ApiKey.PRODUCE, ProduceRequest(None, -1, 1000, [topic]), 12).topics
    assert answer.partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert delete_topic(client, name) is ErrorCode.INVALID_TOPIC_EXCEPTION
    grow = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=3, assignments=None)])
    (result,) = client.ask(ApiKey.CREATE_PARTITIONS, grow).results
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    cut = DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
    (cleared,) = client.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[cut])).topics
    assert cleared.partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert rows_of_group(broker.bootstrap, "seen") == rows


def test_clients_cannot_create_the_internal_topic_either() -> None:
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        asked = CreatableTopic(name=offsets_topic.NAME, num_partitions=1, replication_factor=1)
        for expected in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_ALREADY_EXISTS):
            (made,) = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked])).topics
            assert made.error_code == expected
            create_topic(client, f"t{expected}")
            commit(client, "g", {(f"t{expected}", 0): (1, -1, "")})


# --- after the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "kill -9"])
def test_groups_go_on_where_they_were_after_a_restart(tmp_path: Path, kill: bool) -> None:
    """Generation, members, assignments and offsets: nobody has to rebalance because the broker restarted."""
    with serving(tmp_path, SETTINGS) as server, ExitStack() as stack:

        def member(group: str = "group", instance: str | None = None) -> RawMember:
            return stack.enter_context(RawMember(server.address, group, "topic", instance=instance))

        with RawClient(server.address) as client:
            topic_id = create_topic(client, "topic")
            assert commit(client, "simple", {("topic", 3): (4, 0, "by hand")}) == {("topic", 3): NONE}
        first, static, third = members = [member(), member(instance="i"), member()]
        shares = settled(*members)
        left = member("empty")
        settled(left)
        left.leave()
        # What is acknowledged here was stored after all that came before.
        assert first.commit({("topic", 0): 10, ("topic", 1): 20}) == {NONE}

        server.restart(kill=kill)
        wait_until_loaded(server.address)
        for each in members:
            each.reconnect()
            assert each.heartbeat() is NONE
            assert each.sync() == (NONE, shares[each.member_id])
        with RawClient(server.address) as client:
            assert describe(client, "group").group_state == "Stable"
            assert describe(client, "empty").group_state == "Empty"
            expected = {("topic", 0): (10, -1, ""), ("topic", 1): (20, -1, "")}
            ids = {"topic": topic_id}
            assert fetch_offsets(client, "group", None, version=BY_ID_FROM, ids=ids) == expected
            assert fetch_offsets(client, "simple", None) == {("topic", 3): (4, 0, "by hand")}
        # One that was started anew is the same member, and the generations go on from where they were.
        again = member(instance="i")
        assert again.join() is NONE
        assert (again.generation, again.sync()[1]) == (static.generation, shares[static.member_id])
        assert static.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
        assert first.leave() is third.leave() is NONE
        assert again.join() is NONE
        assert again.generation == static.generation + 1
        following = member("empty")
        assert following.join() is NONE
        assert following.generation == 3
        assert server.stop() == 0


def test_a_commit_that_was_acknowledged_survives_a_kill_that_follows_at_once(tmp_path: Path) -> None:
    """And positions never go back: what a restart finds is no less than what was told, over many kills."""
    kills, seed = 5, seed_or(20_260_407)
    rng = random.Random(seed)
    recorder = Recorder()
    member, auditor = recorder.client("member"), recorder.client("auditor")
    with serving(tmp_path, SETTINGS) as server:
        with RawClient(server.address) as client:
            create_topic(client, "topic", 3)
        sent = dict.fromkeys(range(3), 0)
        for _ in range(kills):
            with RawClient(server.address) as client:
                for _ in range(rng.randrange(1, 40)):
                    for partition in sent:
                        sent[partition] += rng.randrange(3)
                    offsets = {("topic", part): (at, -1, str(at)) for part, at in sent.items()}
                    committing = member.commit_offsets("group", {("topic", p): at for p, at in sent.items()})
                    assert set(commit(client, "group", offsets).values()) == {NONE}
                    committing.ok()
                # One more that nobody waits for: it may or may not be there.
                body = OffsetCommitRequest(group_id="group", topics=[])
                client.send(ApiKey.OFFSET_COMMIT, 9, body)
                server.restart(kill=True)
            wait_until_loaded(server.address)
            with RawClient(server.address) as client:
                fetching = auditor.fetch_offsets("group")
                found = fetch_offsets(client, "group", [("topic", part) for part in sent])
                fetching.ok({place: at for place, (at, _, _) in found.items()})
            # What is stored with the offset is none of the checker's business.
            assert found == {("topic", part): (at, -1, str(at)) for part, at in sent.items()}
    verdict = check(recorder.history())
    assert verdict.problems() == []
    acknowledged = verdict.counts["commit_offsets ok"]
    assert verdict.counts["fetch_offsets ok"] == kills
    print(f"seed {seed}: {kills} kills, {acknowledged} commits acknowledged, all there")


def test_positions_never_go_back_while_the_server_is_killed_under_a_committing_consumer(
    tmp_path: Path,
) -> None:
    kills = 4
    stopping = threading.Event()
    recorder = Recorder()
    member, auditor = recorder.client("member"), recorder.client("auditor")

    def commit_on(address: tuple[str, int]) -> None:
        at = 0
        try:
            while not stopping.is_set():
                try:
                    with RawClient(address) as client:
                        while not stopping.is_set():
                            at += 1
                            # If this breaks off, the commit has no completion and may have happened.
                            committing = member.commit_offsets("group", {("topic", 0): at})
                            (code,) = commit(client, "group", {("topic", 0): (at, -1, "")}).values()
                            if code is NONE:
                                committing.ok()
                            else:
                                committing.failed(code)
                except (OSError, ValueError, AssertionError):
                    stopping.wait(0.01)
                except Exception as error:
                    if "past the end" not in str(error):
                        raise
        except BaseException as error:
            member.problem(repr(error))

    def has_more(count: int) -> bool:
        return member.accepted("commit_offsets") >= count or not thread.is_alive()

    with serving(tmp_path, SETTINGS) as server:
        with RawClient(server.address) as client:
            create_topic(client, "topic", 1)
        thread = threading.Thread(target=commit_on, args=(server.address,))
        thread.start()
        try:
            for _ in range(kills):
                wanted = member.accepted("commit_offsets") + 30
                until(partial(has_more, wanted), "more commits are acknowledged")
                server.restart(kill=True)
                wait_until_loaded(server.address)
                with RawClient(server.address) as client:
                    fetching = auditor.fetch_offsets("group")
                    ((found, _, _),) = fetch_offsets(client, "group", [("topic", 0)]).values()
                    fetching.ok({("topic", 0): found})
        finally:
            stopping.set()
            thread.join()
    verdict = check(recorder.history())
    assert verdict.problems() == []
    assert verdict.counts["fetch_offsets ok"] == kills
    print(f"{kills} kills under {verdict.counts['commit_offsets ok']} commits")


def test_offsets_of_a_topic_that_went_before_a_crash_are_gone_after_it(tmp_path: Path) -> None:
    """The topic was deleted and the crash came before its offsets were: a new one must not inherit them."""
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        for topic in ("leaves", "stays"):
            create_topic(client, topic)
            commit(client, "group", {(topic, 0): (9, -1, "")})
    node = open_node(tmp_path, load_broker_config({}, environment={})[0])
    node.topics.delete("leaves")
    node.directory.close()
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        wait_until_loaded(broker.bootstrap)
        assert list(fetch_offsets(client, "group", None)) == [("stays", 0)]
        create_topic(client, "leaves")
        assert fetch_offsets(client, "group", [("leaves", 0)]) == {("leaves", 0): NO_OFFSET}
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        wait_until_loaded(broker.bootstrap)
        assert list(fetch_offsets(client, "group", None)) == [("stays", 0)]


# --- closing, loading, failing ------------------------------------------------------------------------


def test_everyone_who_waits_is_answered_when_the_server_closes(tmp_path: Path) -> None:
    with (
        serving(tmp_path, SETTINGS) as server,
        RawMember(server.address, "a", "t") as first,
        RawMember(server.address, "a", "t") as second,
        RawMember(server.address, "b", "t") as leader,
        RawMember(server.address, "b", "t") as follower,
    ):
        settled(first)
        second.ask_for_id()
        second.send_join()
        join_together(leader, follower)
        (late,) = (each for each in (leader, follower) if each.member_id != each.leader)
        late.send_sync()
        started = time.monotonic()
        assert server.stop() == 0
        assert in_time(time.monotonic() - started, 4)
        assert second.joined() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert late.synced() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, b"")
        assert second.client.is_closed()
        assert late.client.is_closed()


def test_until_everything_is_read_members_are_told_to_ask_again_in_every_version() -> None:
    """An answer without offsets would send a consumer to where it begins when it has none."""
    inner, gate, reached = MemoryFiles(), threading.Event(), threading.Event()
    with Broker("/data", files=inner) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "topic")
        commit(client, "group", {("topic", 0): (5, -1, "")})

    def hold(kind: str, path: str) -> None:
        if kind == "read" and offsets_topic.NAME in path and threading.current_thread().name != "MainThread":
            reached.set()
            assert gate.wait(SECONDS_MAX)

    files = HookedFiles(inner)
    files.before = hold
    with Broker("/data", files=files) as broker, RawClient(broker.bootstrap) as client:
        try:
            assert reached.wait(SECONDS_MAX)
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            codes = refusals(client, "group")
            assert set(codes.values()) == {loading}, codes
            assert client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest()).error_code == loading
            asked = 0
            for version in range(1, 8):
                topics = [OffsetFetchRequestTopic(name="topic", partition_indexes=[0])]
                request = OffsetFetchRequest(group_id="group", topics=topics)
                response = client.ask(ApiKey.OFFSET_FETCH, request, version)
                told = [part.error_code for topic in response.topics for part in topic.partitions]
                assert loading in (response.error_code, *told), version
                asked += 1
            assert asked == 7
        finally:
            gate.set()
        wait_until_loaded(broker.bootstrap)
        assert fetch_offsets(client, "group", None) == {("topic", 0): (5, -1, "")}


def test_what_cannot_be_stored_is_not_acknowledged_and_may_be_tried_again() -> None:
    """A full disk refuses commits and generations, and both work again once there is space (P4)."""
    files = HookedFiles(MemoryFiles())
    full = threading.Event()

    def refuse(kind: str, path: str) -> None:
        if kind == "write" and full.is_set():
            raise os_error(errno.ENOSPC, path)

    files.before = refuse
    with Broker("/data", files=files) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "topic")
        place = ("topic", 0)
        assert commit(client, "group", {place: (1, -1, "")}) == {place: NONE}
        with RawMember(broker.bootstrap, "group", "topic") as member:
            assert member.join() is NONE
            full.set()
            assert member.sync({member.member_id: b"all"}) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, b"")
            assert commit(client, "simple", {place: (2, -1, "")}) == {
                place: ErrorCode.COORDINATOR_NOT_AVAILABLE
            }
            assert fetch_offsets(client, "simple", [place]) == {place: NO_OFFSET}
            assert delete_offsets(client, "group", [("topic", 1)])[0] is NONE
            full.clear()
            assert member.join() is NONE
            assert member.sync({member.member_id: b"all"}) == (NONE, b"all")
            assert member.generation == 2
            assert commit(client, "simple", {place: (2, -1, "")}) == {place: NONE}


def test_a_commit_whose_sync_fails_is_not_acknowledged() -> None:
    files = HookedFiles(MemoryFiles())
    failing = threading.Event()

    def fail(kind: str, path: str) -> None:
        if kind == "sync" and failing.is_set():
            raise os_error(errno.EIO, path)

    files.before = fail
    broker = Broker("/data", files=files)
    try:
        with RawClient(broker.bootstrap) as client:
            create_topic(client, "topic")
            place = ("topic", 0)
            assert commit(client, "group", {place: (1, -1, "")}) == {place: NONE}
            failing.set()
            assert commit(client, "group", {place: (2, -1, "")}) == {
                place: ErrorCode.COORDINATOR_NOT_AVAILABLE
            }
            assert fetch_offsets(client, "group", [place]) == {place: (1, -1, "")}
    finally:
        failing.clear()
        with pytest.raises(LogFailed):
            broker.close()


# --- order, where the event loop decides it -----------------------------------------------------------


class Scene:
    """Groups with a node that has no internal topic yet, and threads that run when told to."""

    def __init__(self) -> None:
        self.made = False
        self.appended: list[bytes] = []
        self.threads: list[tuple[Callable[[], object], Callable[[object], None]]] = []
        scene = self

        class Topics:
            def find(self, name: str) -> object:
                return object() if scene.made else None

            def ensure_internal(self, name: str) -> None:
                scene.made = True

        class Node:
            topics = Topics()

        class Pipeline:
            def submit(self, batches: Sequence[Batch], acks: int, done: object) -> None:
                assert acks == -1
                scene.appended += [bytes(each.data) for each in batches]

        node: Any = Node()
        pipeline: Any = Pipeline()
        loop: Any = None
        self.groups = Groups(
            Coordinator(GroupLimits(), lambda name: name),
            node,
            pipeline,
            loop,
            SystemClock(),
            lambda call, then: self.threads.append((call, then)),
        )

    def keys(self) -> list[bytes | None]:
        return [
            record.key
            for data in self.appended
            for header in batch.scan(data).headers()
            for record in batch.decode_records(data, header)
        ]


def test_records_are_stored_in_order_also_while_their_topic_is_being_made() -> None:
    """The topic is there before the loop hears of it; who comes in between must not get ahead."""
    scene = Scene()
    told: list[Exception | None] = []
    scene.groups.store([(b"first", b"")], told.append)
    scene.groups.store([(b"second", b"")], told.append)
    ((make, then),) = scene.threads
    made = make()
    scene.groups.store([(b"third", b"")], told.append)
    assert scene.appended == []
    then(made)
    scene.groups.store([(b"fourth", b"")], told.append)
    assert scene.keys() == [b"first", b"second", b"third", b"fourth"]
    assert told == []


def test_everyone_is_told_when_the_topic_cannot_be_made_and_the_next_tries_again() -> None:
    scene = Scene()
    told: list[Exception | None] = []
    for key in (b"first", b"second"):
        scene.groups.store([(key, b"")], told.append)
    failure = RuntimeError("no space")
    scene.threads.pop()[1](failure)
    assert told == [failure, failure]
    scene.groups.store([(b"third", b"")], told.append)
    ((make, then),) = scene.threads
    then(make())
    assert scene.keys() == [b"third"]


def test_a_group_that_is_too_large_to_be_stored_is_told_so() -> None:
    scene = Scene()
    scene.made = True
    told: list[Exception | None] = []
    scene.groups.store([(b"key", bytes(17 << 20))], told.append)
    (error,) = told
    assert error is not None
    assert scene.appended == []


def test_a_stored_generation_is_what_its_members_were_told(broker: Broker) -> None:
    with RawMember(broker.bootstrap, "stored", "t") as member:
        shares = settled(member)
        rows = [
            value for key, value in stored_rows(broker.bootstrap) if key == offsets_topic.group_key("stored")
        ]
        assert rows[-1] is not None
        stored = offsets_topic.decode_group(rows[-1])
        assert isinstance(stored, StoredGroup)
        assert (stored.generation, stored.leader) == (member.generation, member.member_id)
        assert [(one.id, one.assignment) for one in stored.members] == list(shares.items())
        member.leave()


def test_a_server_on_a_directory_of_groups_that_is_killed_while_it_loads_starts_again(tmp_path: Path) -> None:
    with serving(tmp_path, SETTINGS) as server:
        with RawClient(server.address) as client:
            create_topic(client, "topic", 100)
            for number in range(20):
                offsets = {("topic", part): (number, -1, "n" * 50) for part in range(100)}
                assert set(commit(client, f"group-{number}", offsets).values()) == {NONE}
        again = ServerProcess(server.data, SETTINGS, "localhost:0") if server.stop() == 0 else None
        assert again is not None
        try:
            again.restart(kill=True)
            with RawClient(again.address) as client:
                wait_until_loaded(again.address)
                assert len(fetch_offsets(client, "group-7", None)) == 100
        finally:
            again.kill()
