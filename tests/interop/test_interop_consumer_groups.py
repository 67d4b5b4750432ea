"""Members of the consumer protocol with Java's client and franz-go, against our server and Apache Kafka.

The same story on both: members join, one is killed, the broker is killed, the topic grows, one subscribes by
a regular expression, all are restarted one by one. After each step, as many members own as many partitions
on both, and every record is given to somebody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from interop.brokers import NAMES, Broker, running_broker
from interop.kafka_jars import KAFKA_VERSION, java_command
from interop.programs import franz_go
from interop.report import Report
from interop.toolbox import HERE
from support.groups import ConsumerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]

TOPIC, PARTITIONS, GROWN = "topic", 6, 8
RECORDS_EACH = 10
STEP_SECONDS_MAX = 240
SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
}


def program(client: str) -> tuple[str, str, list[str]]:
    """Return the name and version of a client, and the command of its member."""
    if client == "java":
        return "Java consumer protocol", KAFKA_VERSION, java_command(HERE / "java" / "Member.java")
    found = franz_go("./member")
    return "franz-go consumer protocol", found.version, found.command


class Company:
    """The members of one group on one broker, and what they were given."""

    def __init__(self, client: str, assignor: str, broker: Broker, stack: ExitStack) -> None:
        self.broker = broker
        self.all: list[ConsumerProcess] = []
        self.live: list[ConsumerProcess] = []
        self.written: set[tuple[int, int]] = set()
        #: How many partitions each member owned after each step.
        self.sizes: dict[str, list[int]] = {}
        self._client, self._assignor, self._stack = client, assignor, stack
        self._command = program(client)[2]
        self._count = 0
        with self._admin() as admin:
            (made,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values()
            made.result()

    def _admin(self) -> AdminClient:
        # A new one each time: the broker is killed in between, and this client does not ask again.
        return AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})

    def start(self, **more: str) -> ConsumerProcess:
        told = {"assignor": self._assignor, **more}
        member = ConsumerProcess(
            self._client, self.broker.bootstrap, "group", TOPIC, program=self._command, **told
        )
        self._stack.callback(member.close)
        self.all.append(member)
        self.live.append(member)
        return member

    def grow(self) -> None:
        with self._admin() as admin:
            (grown,) = admin.create_partitions([NewPartitions(TOPIC, GROWN)]).values()
            grown.result()
        self._count = GROWN

    def write(self) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        for partition in range(self._count or PARTITIONS):
            for _ in range(RECORDS_EACH):
                producer.produce(TOPIC, b"value", partition=partition, on_delivery=self._wrote)
        assert producer.flush(STEP_SECONDS_MAX) == 0

    def _wrote(self, error: object, message: object) -> None:
        assert error is None, error
        self.written.add((message.partition(), message.offset()))  # type: ignore[attr-defined]

    def until(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + STEP_SECONDS_MAX
        while not done():
            for member in self.live:
                assert member.alive, f"{what}: a member ended: {_said(member)}"
            if time.monotonic() > end:
                owned = [sorted(member.owned) for member in self.live]
                missing = len(self.written - self.given())
                raise AssertionError(f"{what}: {owned}, {missing} records missing: {_said(self.live[0])}")
            time.sleep(0.05)

    def given(self) -> set[tuple[int, int]]:
        return {record for member in self.all for record in list(member.delivered)}

    def settle(self, step: str) -> None:
        """Wait until all partitions are shared out and all records given; note who owns how many."""
        every = list(range(self._count or PARTITIONS))

        def is_shared() -> bool:
            owned = sorted(partition for member in self.live for partition in member.owned)
            sizes = [len(member.owned) for member in self.live]
            return owned == every and max(sizes) - min(sizes) <= 1

        self.until(is_shared, f"{step}: all partitions are shared out")
        self.write()
        self.until(lambda: self.given() >= self.written, f"{step}: every record is given")
        self.sizes[step] = sorted(len(member.owned) for member in self.live)

    def leave(self, member: ConsumerProcess) -> None:
        self.live.remove(member)
        member.ask_to_leave()
        member.left()


def _said(member: ConsumerProcess) -> str:
    member.close()
    return member.complaints[-2000:]


def tell(company: Company) -> None:
    for _ in range(2):
        company.start()
    company.settle("two join")
    company.start()
    company.settle("a third joins")
    killed = company.live.pop(1)
    killed.kill()
    company.settle("one is killed")
    company.broker.restart(kill=True)
    company.settle("the broker is killed")
    company.grow()
    company.settle("the topic grows")
    company.start(pattern="to.*")
    company.settle("one subscribes by a regular expression")
    for member in list(company.live):
        company.leave(member)
        company.start()
        company.settle(f"restart {len(company.all)}")
    company.leave(company.live[0])
    company.settle("one leaves")


@pytest.mark.parametrize(("client", "assignor"), [("java", "uniform"), ("franz-go", "range")])
def test_the_same_members_share_the_same_topic_alike_on_both_brokers(
    client: str, assignor: str, tmp_path: Path, report: Report
) -> None:
    name, version, _ = program(client)
    seen = {}
    for broker_name in NAMES:
        with ExitStack() as stack:
            broker = stack.enter_context(running_broker(broker_name, tmp_path / broker_name, SETTINGS))
            company = Company(client, assignor, broker, stack)
            tell(company)
            seen[broker_name] = company.sizes
    ours, apache = (seen[each] for each in NAMES)
    with report.check("tools", name, version, "join, kill, restart, growth, regular expression"):
        assert ours == apache
        assert len(ours) == 10
