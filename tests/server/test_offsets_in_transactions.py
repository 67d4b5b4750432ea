"""Offsets of groups in transactions on the wire: versions, fencing, restarts, deletion, tenants, clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import kafka.structs
import pytest
from support.groups import RawMember, commit, fetch_offsets, wait_until_loaded
from support.patience import SECONDS_MAX, until
from support.serving import RawClient
from support.tenant_requests import LISTEN
from support.tenant_requests import SETTINGS as TENANTS
from support.transactional import RawTransactional, commit_in, create_topic

from cordwood import Broker
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from cordwood.protocol.messages.groups import DeleteGroupsRequest

NONE, UNSTABLE = ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT
VERSIONS = APIS[ApiKey.TXN_OFFSET_COMMIT].versions
PLACE = ("orders", 0)
#: The first version of TxnOffsetCommit that names a member and its generation.
FENCED_FROM = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"offset.metadata.max.bytes": "100"}) as running:
        with RawClient(running.bootstrap) as client:
            create_topic(client, "orders", 2)
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as connected:
        yield connected


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group of each test, which is also the transactional id of its producer."""
    return str(request.node.name)


def stable(client: RawClient, group: str, version: int = 9) -> tuple[ErrorCode, int]:
    """Return the error and the offset that OffsetFetch with require_stable answers."""
    if version < 8:
        old = OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
        request = OffsetFetchRequest(group_id=group, topics=[old], require_stable=True)
        topics = client.ask(ApiKey.OFFSET_FETCH, request, version).topics
    else:
        new = OffsetFetchRequestTopics(name="orders", partition_indexes=[0])
        asked = OffsetFetchRequestGroup(group_id=group, topics=[new])
        request = OffsetFetchRequest(groups=[asked], require_stable=True)
        topics = client.ask(ApiKey.OFFSET_FETCH, request, version).groups[0].topics
    (part,) = topics[0].partitions
    return ErrorCode(part.error_code), part.committed_offset


def offset_of(client: RawClient, group: str) -> int:
    """Return the committed offset, whether it is stable or not."""
    return fetch_offsets(client, group, [PLACE])[PLACE][0]


def begun(client: RawClient, group: str) -> RawTransactional:
    """Return a producer whose transaction includes the offsets of *group*."""
    producer = RawTransactional(client, group).init()
    assert producer.try_add_offsets(group) is NONE
    return producer


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("version", range(VERSIONS.first, VERSIONS.last + 1))
def test_offsets_of_every_version_count_once_their_transaction_is_committed(
    client: RawClient, group: str, version: int, committed: bool
) -> None:
    assert set(commit(client, group, {PLACE: (3, -1, "")}).values()) == {NONE}
    producer = begun(client, group)
    assert commit_in(producer, group, 7, version=version) is NONE
    assert offset_of(client, group) == 3
    for fetch_version in (7, 8, 9):
        assert stable(client, group, fetch_version) == (UNSTABLE, -1)
    if committed:
        producer.commit()
    else:
        producer.abort()
    wanted = 7 if committed else 3
    assert offset_of(client, group) == wanted
    for fetch_version in (7, 8, 9):
        assert stable(client, group, fetch_version) == (NONE, wanted)


def test_offsets_are_refused_unless_the_transaction_includes_them(client: RawClient, group: str) -> None:
    """Nothing would end them: they would stay pending for ever."""
    producer = RawTransactional(client, group).init()
    assert commit_in(producer, group, 7) is ErrorCode.INVALID_TXN_STATE
    producer.add(PLACE)
    assert commit_in(producer, group, 7) is ErrorCode.INVALID_TXN_STATE
    assert stable(client, group) == (NONE, -1)
    producer.abort()


def test_offsets_are_refused_under_a_transactional_id_of_another_producer(
    client: RawClient, group: str
) -> None:
    """Their producer has an open transaction with offsets, and they would count as part of it."""
    producer = begun(client, group)
    other = RawTransactional(client, f"{group} of another").init()
    assert other.try_add_offsets(group) is NONE
    codes = {}
    for named in (other.id, "unknown", ""):
        claimed = RawTransactional(client, named)
        claimed.identity = producer.identity
        codes[named] = commit_in(claimed, group, 7)
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert codes == {other.id: mapping, "unknown": mapping, "": ErrorCode.INVALID_REQUEST}
    assert stable(client, group) == (NONE, -1)
    other.abort()
    assert commit_in(producer, group, 8) is NONE
    producer.commit()
    assert stable(client, group) == (NONE, 8)


def test_offsets_are_refused_with_an_epoch_that_nobody_was_given(client: RawClient, group: str) -> None:
    producer = begun(client, group)
    ahead = RawTransactional(client, group)
    ahead.identity = producer.identity._replace(epoch=producer.identity.epoch + 1)
    assert commit_in(ahead, group, 7) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert stable(client, group) == (NONE, -1)
    producer.abort()


def test_offsets_are_refused_after_the_end_of_the_transaction(client: RawClient, group: str) -> None:
    producer = begun(client, group)
    assert commit_in(producer, group, 7) is NONE
    producer.commit()
    assert commit_in(producer, group, 9) is ErrorCode.INVALID_TXN_STATE
    assert stable(client, group) == (NONE, 7)


def test_a_fenced_producer_commits_no_offsets(client: RawClient, group: str) -> None:
    old = begun(client, group)
    new = begun(client, group)
    assert commit_in(old, group, 7) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert commit_in(new, group, 8) is NONE
    new.commit()
    assert stable(client, group) == (NONE, 8)


def test_what_a_fenced_producer_left_pending_is_dropped(client: RawClient, group: str) -> None:
    old = begun(client, group)
    assert commit_in(old, group, 7) is NONE
    RawTransactional(client, group).init()
    assert stable(client, group) == (NONE, -1)


def test_a_member_is_fenced_by_its_id_and_generation(broker: Broker, client: RawClient, group: str) -> None:
    with RawMember(broker.bootstrap, group, "orders") as member:
        member.ask_for_id()
        assert member.join() is NONE
        assert member.sync()[0] is NONE
        producer = begun(client, group)
        names: dict[str, Any] = {"member_id": member.member_id, "generation_id": member.generation}
        assert commit_in(producer, group, 1, **names) is NONE
        assert commit_in(producer, group, 2, **{**names, "generation_id": 9}) is ErrorCode.ILLEGAL_GENERATION
        assert commit_in(producer, group, 3, **{**names, "member_id": "z"}) is ErrorCode.UNKNOWN_MEMBER_ID
        zombie = {**names, "group_instance_id": "i"}
        assert commit_in(producer, group, 4, **zombie) is ErrorCode.UNKNOWN_MEMBER_ID
        assert commit_in(producer, group, 5, version=FENCED_FROM - 1) is NONE
        producer.commit()
        assert stable(client, group) == (NONE, 5)


def test_what_cannot_be_stored_is_refused_alone(client: RawClient, group: str) -> None:
    producer = begun(client, group)
    assert commit_in(producer, group, 1, topic="nothing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit_in(producer, group, 1, note="x" * 101) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit_in(producer, "", 1) is ErrorCode.INVALID_GROUP_ID
    assert commit_in(producer, group, 1, note="x" * 100) is NONE
    producer.commit()
    assert fetch_offsets(client, group, [PLACE])[PLACE] == (1, -1, "x" * 100)


@pytest.mark.parametrize("how", ["offset", "group"])
def test_deleting_drops_what_is_pending(client: RawClient, group: str, how: str) -> None:
    """As in Kafka: the commit of the transaction does not bring it back."""
    producer = begun(client, group)
    assert commit_in(producer, group, 7) is NONE
    if how == "offset":
        part = OffsetDeleteRequestPartition(partition_index=0)
        topic = OffsetDeleteRequestTopic(name="orders", partitions=[part])
        request: Any = OffsetDeleteRequest(group_id=group, topics=[topic])
        answer = client.ask(ApiKey.OFFSET_DELETE, request)
        assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (NONE, NONE)
    else:
        request = DeleteGroupsRequest(groups_names=[group])
        assert client.ask(ApiKey.DELETE_GROUPS, request).results[0].error_code == NONE
    assert stable(client, group) == (NONE, -1)
    producer.commit()
    assert stable(client, group) == (NONE, -1)


@pytest.mark.parametrize("committed", [True, False])
def test_pending_offsets_are_pending_after_a_restart_until_their_transaction_ends(
    tmp_path: Path, committed: bool
) -> None:
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        assert set(commit(client, "g", {PLACE: (3, -1, "")}).values()) == {NONE}
        producer = begun(client, "g")
        assert commit_in(producer, "g", 7) is NONE
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        wait_until_loaded(broker.bootstrap)
        assert (offset_of(client, "g"), stable(client, "g")) == (3, (UNSTABLE, -1))
        producer.client = client
        if committed:
            producer.commit()
        else:
            producer.abort()
        wanted = 7 if committed else 3
        assert stable(client, "g") == (NONE, wanted)
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        wait_until_loaded(broker.bootstrap)
        assert stable(client, "g") == (NONE, wanted)


def test_groups_of_the_same_name_in_two_orgs_have_pending_offsets_of_their_own() -> None:
    with (
        Broker(listen=LISTEN, config=TENANTS) as broker,
        RawClient(broker.addresses["ALPHA"]) as alpha,
        RawClient(broker.addresses["BETA"]) as beta,
    ):
        for client in (alpha, beta):
            create_topic(client, "orders")
        ours, theirs = begun(alpha, "g"), begun(beta, "g")
        assert ours.identity.producer_id != theirs.identity.producer_id
        assert commit_in(ours, "g", 7) is NONE
        assert (stable(alpha, "g"), stable(beta, "g")) == ((UNSTABLE, -1), (NONE, -1))
        assert commit_in(theirs, "g", 8) is NONE
        ours.commit()
        assert (stable(alpha, "g"), stable(beta, "g")) == ((NONE, 7), (UNSTABLE, -1))
        theirs.abort()
        assert (stable(alpha, "g"), stable(beta, "g")) == ((NONE, 7), (NONE, -1))


# --- real clients ----------------------------------------------------------------------------------


def copy_with_confluent(bootstrap: str, group: str) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed"}
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": group})
    try:
        producer.init_transactions(SECONDS_MAX)
        place = confluent_kafka.TopicPartition(*PLACE)
        for offset, end in ((5, producer.abort_transaction), (6, producer.commit_transaction)):
            producer.begin_transaction()
            place.offset = offset
            producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), SECONDS_MAX)
            end(SECONDS_MAX)
    finally:
        consumer.close()


def copy_with_aiokafka(bootstrap: str, group: str) -> None:
    async def copy() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=group)
        await producer.start()
        try:
            place = aiokafka.TopicPartition(*PLACE)
            for offset, end in ((5, producer.abort_transaction), (6, producer.commit_transaction)):
                await producer.begin_transaction()
                await producer.send_offsets_to_transaction({place: offset}, group)
                await end()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(copy(), SECONDS_MAX))


def copy_with_kafka_python(bootstrap: str, group: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=group)
    try:
        producer.init_transactions()
        place = kafka.TopicPartition(*PLACE)
        for offset, end in ((5, producer.abort_transaction), (6, producer.commit_transaction)):
            producer.begin_transaction()
            offsets = {place: kafka.structs.OffsetAndMetadata(offset, "", -1)}
            producer.send_offsets_to_transaction(offsets, group)
            end()
    finally:
        producer.close(SECONDS_MAX)


@pytest.mark.parametrize("copy", [copy_with_confluent, copy_with_aiokafka, copy_with_kafka_python])
def test_real_clients_commit_offsets_with_their_transactions(
    broker: Broker, client: RawClient, group: str, copy: Any
) -> None:
    copy(broker.bootstrap, group)
    # EndTxn is answered before the markers are written; clients that require stable offsets ask again.
    until(lambda: stable(client, group)[0] is NONE, "stable offsets", pause=0)
    assert stable(client, group) == (NONE, 6)
