"""What members of the consumer protocol are told on the wire when they may not do what they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.scraping import scrape
from support.serving import RawClient

import cordwood
from cordwood.protocol import ApiKey, ErrorCode
from cordwood.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from cordwood.protocol.messages.groups import ConsumerGroupHeartbeatRequest

JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2


@dataclass
class Group:
    """The group "billing" on a broker, by its requests."""

    broker: cordwood.Broker
    client: RawClient = field(init=False)

    def __post_init__(self) -> None:
        self.client = RawClient(self.broker.bootstrap)

    def beat(self, member: str, epoch: int, **more: Any) -> Any:
        """Send a heartbeat; one that joins has what a member must say."""
        if epoch == JOIN:
            more = {"rebalance_timeout_ms": 5000, "topic_partitions": [], **more}
            more.setdefault("subscribed_topic_names", ["orders"])
        request = ConsumerGroupHeartbeatRequest(
            group_id="billing", member_id=member, member_epoch=epoch, **more
        )
        return self.client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request, 1)

    def join(self, member: str, **more: Any) -> int:
        """Join, and return the epoch."""
        answer = self.beat(member, JOIN, **more)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        return int(answer.member_epoch)

    def refused(self, member: str, epoch: int, **more: Any) -> ErrorCode:
        """Send a heartbeat that is refused with a sentence, and return the error."""
        answer = self.beat(member, epoch, **more)
        assert answer.error_message
        return ErrorCode(answer.error_code)

    def commit(self, member: str, epoch: int) -> ErrorCode:
        """Commit an offset as *member*, and return the error."""
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
        request = OffsetCommitRequest(
            group_id="billing",
            generation_id_or_member_epoch=epoch,
            member_id=member,
            topics=[OffsetCommitRequestTopic(name="orders", topic_id=bytes(16), partitions=[partition])],
        )
        (topic,) = self.client.ask(ApiKey.OFFSET_COMMIT, request, 9).topics
        return ErrorCode(topic.partitions[0].error_code)

    def fetch(self, member: str, epoch: int) -> ErrorCode:
        """Ask for the committed offset as *member*, and return the error."""
        asked = OffsetFetchRequestGroup(
            group_id="billing",
            member_id=member,
            member_epoch=epoch,
            topics=[OffsetFetchRequestTopics(name="orders", topic_id=bytes(16), partition_indexes=[0])],
        )
        (found,) = self.client.ask(
            ApiKey.OFFSET_FETCH,
            OffsetFetchRequest(group_id="", topics=None, groups=[asked], require_stable=False),
            9,
        ).groups
        return ErrorCode(found.error_code)


@pytest.fixture
def group() -> Iterator[Group]:
    config = {
        "num.partitions": "4",
        "group.consumer.max.size": "2",
        "cordwood.metrics.listen": "127.0.0.1:0",
    }
    with cordwood.Broker(config=config) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("orders", 4)])["orders"].result()
        found = Group(broker)
        with found.client:
            yield found


def test_an_assignor_that_the_broker_does_not_have_is_refused(group: Group) -> None:
    assert group.refused("a", JOIN, server_assignor="mine") == ErrorCode.UNSUPPORTED_ASSIGNOR
    group.join("a", server_assignor="range")


def test_a_pattern_that_is_none_is_refused(group: Group) -> None:
    refused = group.refused("a", JOIN, subscribed_topic_names=[], subscribed_topic_regex="orders(")
    assert refused == ErrorCode.INVALID_REGULAR_EXPRESSION
    group.join("a", subscribed_topic_names=[], subscribed_topic_regex="orders.*")


def test_a_member_with_an_epoch_that_is_not_its_own_is_fenced(group: Group) -> None:
    epoch = group.join("a")
    assert group.refused("a", epoch + 1) == ErrorCode.FENCED_MEMBER_EPOCH
    assert group.refused("b", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.beat("a", epoch).error_code == ErrorCode.NONE


def test_commits_and_fetches_of_offsets_with_another_epoch_are_refused(group: Group) -> None:
    epoch = group.join("a")
    assert group.commit("a", epoch) == ErrorCode.NONE
    assert group.fetch("a", epoch) == ErrorCode.NONE
    assert group.commit("a", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert group.fetch("a", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert group.commit("b", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.fetch("b", epoch) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_name_of_a_static_member_is_taken_until_it_leaves(group: Group) -> None:
    epoch = group.join("a", instance_id="i")
    assert group.refused("b", JOIN, instance_id="i") == ErrorCode.UNRELEASED_INSTANCE_ID
    assert group.beat("a", LEAVE_FOR_A_WHILE, instance_id="i").error_code == ErrorCode.NONE
    again = group.join("b", instance_id="i")
    assert again == epoch
    assert group.refused("a", epoch, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID


def test_a_group_takes_no_more_members_than_the_broker_allows(group: Group) -> None:
    first = group.join("a")
    group.join("b")
    assert group.refused("c", JOIN) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group.beat("a", LEAVE).error_code == ErrorCode.NONE
    assert first >= 1
    group.join("c")


def test_a_scrape_counts_a_consumer_group_and_its_members(group: Group) -> None:
    group.join("a")
    group.join("b")
    found = scrape(group.broker.metrics_url)
    assert found.value("cordwood_consumer_groups") == 1
    assert found.value("kafka_consumergroup_members", consumergroup="billing") == 2
