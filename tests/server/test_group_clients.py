"""Real consumers in groups: librdkafka, aiokafka and kafka-python, each a process that can be killed.

One story, told once for all groups, since its waits are the same for all of them: two members, a third that
joins, one that is killed, the server killed and started again, one that leaves. All groups read the same
six partitions, and each of them is to be given every record. What a group has committed is watched all the
while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.groups import ConsumerProcess, fetch_offsets, wait_until_loaded
from support.patience import Limit
from support.serving import RawClient, ServerProcess, serving

from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from cordwood.protocol.wire import NULL_ID

TOPIC, PARTITIONS = "topic", 6
EVERY_PARTITION = frozenset(range(PARTITIONS))
RECORDS_A_CHAPTER = 10
SESSION_MS = 10_000
#: A static member is started anew within its session, which must be long enough for that on a slow machine.
STATIC_SESSION_MS = 20_000
SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "false",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": str(SESSION_MS // 10),
    "group.consumer.assignment.interval.ms": "0",
}
Place = tuple[int, int]
#: In place of an assignor: the client uses the consumer protocol, and the broker's assignor.
CONSUMER_PROTOCOL = "consumer protocol"

#: Name of the group, and the client and assignor of its three members.
CASTS: dict[str, Sequence[tuple[str, str]]] = {
    "confluent-kafka with range": [("confluent-kafka", "range")] * 3,
    "confluent-kafka cooperative": [("confluent-kafka", "cooperative-sticky")] * 3,
    "confluent-kafka with the consumer protocol": [("confluent-kafka", CONSUMER_PROTOCOL)] * 3,
    # Each member that joins makes the group change its protocol, with all members in it.
    "confluent-kafka with both protocols": [
        ("confluent-kafka", "range"),
        ("confluent-kafka", CONSUMER_PROTOCOL),
        ("confluent-kafka", "range"),
    ],
    "aiokafka": [("aiokafka", "range")] * 3,
    "kafka-python": [("kafka-python", "range")] * 3,
    "one of each": [("confluent-kafka", "range"), ("aiokafka", "range"), ("kafka-python", "range")],
}


class Company:
    """A group of real consumers, and what it is to have been given."""

    def __init__(self, name: str, server: ServerProcess, stack: ExitStack) -> None:
        self.name = name
        self.members: list[ConsumerProcess] = []
        self.positions = [-1] * PARTITIONS
        self.looks = 0
        self.changes: list[list[int]] = []
        self._server = server
        self._stack = stack

    def start(self, client: str, **more: object) -> ConsumerProcess:
        settings: dict[str, Any] = {"session_ms": SESSION_MS, **more}
        if settings.get("assignor") == CONSUMER_PROTOCOL:
            settings["protocol"] = "consumer"
        member = ConsumerProcess(client, self._server.bootstrap, self.name, TOPIC, **settings)
        self._stack.callback(member.close)
        self.members.append(member)
        return member

    def note_changes(self) -> None:
        """Take note of how often what members own has changed."""
        self.changes.append([len(member.changes) for member in self.members])

    def live(self) -> list[ConsumerProcess]:
        return [member for member in self.members if member.alive]

    def delivered(self) -> set[Place]:
        return {record for member in self.members for record in list(member.delivered)}

    def is_shared_out(self) -> bool:
        """Whether every partition has exactly one owner, and every member owns one."""
        owned = [partition for member in self.live() for partition in member.owned]
        return sorted(owned) == sorted(EVERY_PARTITION) and all(member.owned for member in self.live())

    def watch(self, client: RawClient) -> None:
        """Look at what is committed: it is never less than it was."""
        found = fetch_offsets(client, self.name, [(TOPIC, partition) for partition in EVERY_PARTITION])
        now = [found[TOPIC, partition][0] for partition in range(PARTITIONS)]
        assert all(a >= b for a, b in zip(now, self.positions, strict=True)), (
            f"{self.name}: {self.positions}, {now}"
        )
        self.positions = now
        self.looks += 1


class Story:
    """The server, what was written to it, and the groups that read it."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self.server = server
        self.written: set[Place] = set()
        self.companies = {name: Company(name, server, stack) for name in CASTS}

    def write(self) -> None:
        """Append some records to every partition."""
        values = [(None, b"%d" % number) for number in range(RECORDS_A_CHAPTER)]
        partitions = [
            ProducePartition(index, memoryview(batch.encode_records(values, 1))) for index in EVERY_PARTITION
        ]
        request = ProduceRequest(None, -1, 10_000, [ProduceTopic(TOPIC, NULL_ID, partitions)])
        with RawClient(self.server.address) as client:
            (answer,) = client.ask(ApiKey.PRODUCE, request, 9).topics
        for part in answer.partitions:
            assert part.error_code == 0
            self.written |= {(part.index, part.base_offset + n) for n in range(RECORDS_A_CHAPTER)}

    def until(self, done: Callable[[Company], bool], what: str) -> None:
        """Wait until it is so in every group, and watch what they have committed meanwhile."""
        self.until_in(list(self.companies.values()), done, what)

    def until_in(self, companies: Sequence[Company], done: Callable[[Company], bool], what: str) -> None:
        limit = Limit()
        with RawClient(self.server.address) as client:
            while waiting := [company for company in companies if not done(company)]:
                for company in companies:
                    company.watch(client)
                    assert company.live(), company.members[-1].complaints
                if limit.passed():
                    found = {one.name: [sorted(member.owned) for member in one.live()] for one in waiting}
                    raise AssertionError(f"{what}: not within {limit}: {found}")
                time.sleep(0.02)

    def until_read(self) -> None:
        self.until(lambda company: company.delivered() >= self.written, "every record is given to somebody")


def create_topic(server: ServerProcess) -> None:
    asked = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    with RawClient(server.address) as client:
        (made,) = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked])).topics
    assert made.error_code == 0


def tell(story: Story) -> None:
    """Tell it to its end, and watch what is committed all the while."""
    companies = list(story.companies.values())
    for company in companies:
        for client, assignor in CASTS[company.name][:2]:
            company.start(client, assignor=assignor)
    story.until(Company.is_shared_out, "two members share all partitions")
    story.write()
    story.until_read()

    for company in companies:
        client, assignor = CASTS[company.name][2]
        company.start(client, assignor=assignor)
    story.until(Company.is_shared_out, "three members share all partitions")

    story.write()
    for company in companies:
        company.members[1].kill()
    story.write()
    story.until_read()
    story.until(Company.is_shared_out, "the others have taken over from the one that was killed")

    for company in companies:
        company.note_changes()
    story.write()
    story.server.restart(kill=True)
    wait_until_loaded(story.server.address)
    story.write()
    story.until_read()
    for company in companies:
        company.note_changes()

    for company in companies:
        company.members[0].ask_to_leave()
    story.write()
    for company in companies:
        assert company.members[0].left() == 0, company.members[0].complaints
    story.until(lambda company: company.members[2].owned == EVERY_PARTITION, "one member owns all")
    story.write()
    story.until_read()
    ends = [len(story.written) // PARTITIONS] * PARTITIONS
    story.until(lambda company: company.positions == ends, "everything is committed")


def test_groups_of_real_consumers_are_given_every_record_whoever_comes_goes_or_is_killed(
    tmp_path: Path,
) -> None:
    """At least once each; what is committed never goes back; and a restart makes nobody rebalance."""
    with serving(tmp_path, SETTINGS) as server, ExitStack() as stack:
        create_topic(server)
        story = Story(server, stack)
        tell(story)
    assert len(story.written) == 7 * PARTITIONS * RECORDS_A_CHAPTER
    for name, company in story.companies.items():
        given = [record for member in company.members for record in member.delivered]
        again = len(given) - len(set(given))
        print(f"{name}: {len(story.written)} records, {again} given again, looked at {company.looks} times")
        assert set(given) == story.written, name
        assert all(member.delivered for member in company.members), name
        assert company.looks >= 20
        # Members go on in the generation that was stored, with what they own.
        before, after = company.changes
        assert before == after, name


def test_static_members_of_a_real_client_are_started_anew_without_a_rebalance(tmp_path: Path) -> None:
    """And the one before, if it still runs, is told that it was fenced."""
    with serving(tmp_path, SETTINGS) as server, ExitStack() as stack:
        create_topic(server)
        story = Story(server, stack)
        company = story.companies["confluent-kafka with range"]
        company.name = "static"

        def start(instance: str) -> ConsumerProcess:
            return company.start("confluent-kafka", instance=instance, session_ms=STATIC_SESSION_MS)

        first, second = start("a"), start("b")
        story.until_in([company], Company.is_shared_out, "two static members share all partitions")
        story.write()
        read = "every record is given"
        story.until_in([company], lambda one: one.delivered() >= story.written, read)
        owned, changes = second.owned, len(first.changes)

        second.kill()
        again = start("b")
        story.write()
        story.until_in([company], lambda one: one.delivered() >= story.written, read)
        assert again.owned == owned
        assert len(first.changes) == changes

        third = start("b")
        story.until_in([company], lambda one: again.fenced, "the one before is told that it was fenced")
        story.until_in([company], lambda one: third.owned == owned, "the new one owns what that one did")
        story.write()
        story.until_in([company], lambda one: one.delivered() >= story.written, read)
        assert len(first.changes) == changes
