"""Real consumers of the consumer protocol (KIP-848): librdkafka.

Members that come, go and are killed are in `test_group_clients`, beside all other clients. Here is what only
this protocol has: regular expressions and growing topics are for the broker, as are static members whose
place is kept, and a group changes its protocol while its members run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from support.patience import Limit
from support.serving import RawClient, serving

from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.groups import ConsumerGroupDescribeRequest

SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "30000",
    "group.consumer.max.session.timeout.ms": "30000",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
}
Place = tuple[str, int]


class Crowd:
    """Consumers of one group, polled in turn."""

    def __init__(self, bootstrap: str, stack: ExitStack) -> None:
        self.bootstrap = bootstrap
        self.members: list[Consumer] = []
        self.fenced: list[Consumer] = []
        self._stack = stack
        self.admin = stack.enter_context(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}))

    def join(self, *topics: str, protocol: str = "consumer", **settings: str) -> Consumer:
        given = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "group",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "reconnect.backoff.max.ms": "100",
            "log_level": "0",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        member = Consumer(given)
        self._stack.callback(member.close)
        member.subscribe(list(topics))
        self.members.append(member)
        return member

    def leave(self, member: Consumer) -> None:
        self.members.remove(member)
        member.close()

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Poll all members in turn until it is so."""
        limit = Limit()
        while not done():
            for member in list(self.members):
                message = member.poll(0.02)
                error = None if message is None else message.error()
                if error is not None and error.code() == KafkaError._FATAL:
                    self.fenced.append(member)
                    self.members.remove(member)
            if limit.passed():
                raise AssertionError(f"{what}: not within {limit}: {self.owned()}")

    def owned(self) -> list[list[Place]]:
        return [owned_by(member) for member in self.members]

    def all_owned(self) -> list[Place]:
        return sorted(place for owned in self.owned() for place in owned)

    def shares(self, places: list[Place]) -> bool:
        """Return whether each of *places* has one owner, all members own one, and nothing else is owned."""
        return all(self.owned()) and self.all_owned() == sorted(places)

    def create(self, name: str, partitions: int) -> list[Place]:
        (made,) = self.admin.create_topics([NewTopic(name, partitions)]).values()
        made.result()
        return [(name, number) for number in range(partitions)]


def owned_by(member: Consumer) -> list[Place]:
    return sorted((place.topic, place.partition) for place in member.assignment())


@contextmanager
def crowd(directory: Path) -> Iterator[Crowd]:
    with serving(directory, SETTINGS) as server, ExitStack() as stack:
        yield Crowd(server.bootstrap, stack)


def test_members_share_topics_that_match_a_regular_expression_as_topics_come_and_grow(tmp_path: Path) -> None:
    """The broker compares names with the expression, as a whole, and tells the members."""
    with crowd(tmp_path) as group:
        places = group.create("orders.eu", 4)
        group.create("payments", 2)
        group.create("all-orders.eu", 2)
        group.join("^orders[.].*")
        group.join("^orders[.].*")
        group.until(lambda: group.shares(places), "two members share what matches")

        (grown,) = group.admin.create_partitions([NewPartitions("orders.eu", 6)]).values()
        grown.result()
        places += [("orders.eu", 4), ("orders.eu", 5)]
        group.until(lambda: group.shares(places), "two members share a topic that has grown")

        # Expressions are compared again when the last time is long enough ago, here with that of a third.
        group.join("payments")
        places += [("payments", 0), ("payments", 1)]
        group.until(lambda: group.shares(places), "a member beside them has another topic")

        (gone,) = group.admin.delete_topics(["payments"]).values()
        gone.result()
        left = [place for place in places if place[0] != "payments"]
        group.until(lambda: group.all_owned() == left, "nobody owns a topic that is gone")


def test_a_group_is_listed_and_described_with_its_type_and_what_its_members_own(tmp_path: Path) -> None:
    with crowd(tmp_path) as group:
        places = group.create("topic", 4)
        for _ in range(2):
            group.join("topic", group_remote_assignor="range")
        group.until(lambda: group.shares(places), "two members share all partitions")

        def described() -> bool:
            found = group.admin.describe_consumer_groups(["group"])["group"].result()
            return found.state is ConsumerGroupState.STABLE

        group.until(described, "the group is stable")
        found = group.admin.describe_consumer_groups(["group"])["group"].result()
        assert (found.type, found.partition_assignor) == (ConsumerGroupType.CONSUMER, "range")
        of_members = [
            sorted((place.topic, place.partition) for place in member.assignment.topic_partitions)
            for member in found.members
        ]
        assert sorted(of_members) == [[("topic", 0), ("topic", 1)], [("topic", 2), ("topic", 3)]]
        for kind, listed in ((ConsumerGroupType.CONSUMER, ["group"]), (ConsumerGroupType.CLASSIC, [])):
            groups = group.admin.list_consumer_groups(types={kind}).result().valid
            assert [each.group_id for each in groups] == listed


def test_a_static_member_that_returns_gets_what_it_had_and_nobody_else_is_asked(tmp_path: Path) -> None:
    with crowd(tmp_path) as group:
        places = group.create("topic", 4)
        group.join("topic", group_instance_id="a")
        second = group.join("topic", group_instance_id="b")
        group.until(lambda: group.shares(places), "two members share all partitions")
        owned, epoch = owned_by(second), epoch_of(group)
        group.leave(second)
        again = group.join("topic", group_instance_id="b")
        group.until(lambda: owned_by(again) == owned, "the member that returned has what it had")
        assert epoch_of(group) == epoch


def epoch_of(group: Crowd) -> int:
    """Return the epoch of the group, which each rebalance increases."""
    host, _, port = group.bootstrap.rpartition(":")
    with RawClient((host, int(port))) as client:
        request = ConsumerGroupDescribeRequest(group_ids=["group"])
        (found,) = client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, request, 1).groups
    assert found.error_code == 0
    return int(found.group_epoch)


def test_members_are_upgraded_one_by_one_and_back_and_every_commit_is_kept(tmp_path: Path) -> None:
    """A rolling upgrade from the classic to the consumer protocol, and the way back."""
    with crowd(tmp_path) as group:
        places = group.create("topic", 6)
        wanted = [TopicPartition(name, number, 10 + number) for name, number in places]
        classic = {"session_timeout_ms": "10000", "heartbeat_interval_ms": "100"}
        for protocol, settings in (("classic", classic), ("consumer", {}), ("classic", classic)):
            for _ in range(2):
                if len(group.members) == 2:
                    group.leave(group.members[0])
                group.join("topic", protocol=protocol, **settings)
                group.until(lambda: group.shares(places), f"members share all partitions, with {protocol}")
            for member in group.members:
                mine = [place for place in wanted if (place.topic, place.partition) in owned_by(member)]
                member.commit(offsets=mine, asynchronous=False)
            (kind,) = [each.type for each in group.admin.list_consumer_groups().result().valid]
            assert kind.name.lower() == protocol
            found = group.members[0].committed(wanted, timeout=30)
            assert [place.offset for place in found] == [place.offset for place in wanted]
