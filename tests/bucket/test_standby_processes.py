"""Real servers and clients with a bucket on moto's server: the owner dies, and the standby serves on."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import confluent_kafka
import pytest
from support.commands import refused
from support.members import READY, STANDBY, Member
from support.patience import SECONDS_MAX, SLOWDOWN, until
from support.serving import RawClient

from cordwood.bucket import BucketView, view_bucket
from cordwood.host import Host
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.metadata import MetadataRequest

#: Long enough that a busy owner creates a piece in a third of it.
LEASE_MS = int(3_000 * min(SLOWDOWN, 4))
SETTINGS = {
    "cordwood.bucket.lease.ms": str(LEASE_MS),
    "cordwood.bucket.interval.ms": "50",
    "auto.create.topics.enable": "true",
    "num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
CYCLES, RECORDS = 3, 200
_numbers = count(1)
Members = Callable[[str], Member]


@pytest.fixture
def bucket(moto_url: str, s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a prefix of its own, and an environment in which it can be reached."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    return f"s3://bucket/standbys/{next(_numbers)}"


@pytest.fixture
def members(bucket: str, tmp_path: Path) -> Iterator[Members]:
    """Make servers with a directory of their own, which end with the test."""
    made: list[Member] = []

    def make(name: str) -> Member:
        made.append(Member(tmp_path / name, bucket, SETTINGS))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def shipped(bucket: str) -> BucketView:
    return view_bucket(bucket, Host())


def wait_until_shipped(bucket: str, member: Member) -> None:
    """Wait until the bucket has all bytes of all logs of a server at which nobody produces."""

    def done() -> bool:
        view = shipped(bucket)
        for path in sorted(member.data.glob("topics/*/*/segments/*.log")):
            name = str(path.relative_to(member.data))
            data = path.read_bytes().rstrip(b"\0")
            if not view.files.exists(name):
                return False
            stored = view.files.open(name, "read")
            if stored.read_at(0, stored.size()).rstrip(b"\0") != data:
                return False
        return True

    until(done, "the bucket has everything", pause=0.1)


class Clients:
    """An idempotent producer and a group of one, which know both servers."""

    def __init__(self, *members: Member) -> None:
        self._bootstrap = ",".join(each.bootstrap for each in members)
        self.failures: list[str] = []
        self.acknowledged: dict[int, bytes] = {}
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": int(SECONDS_MAX * 1000),
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "topic.metadata.refresh.fast.interval.ms": 100,
                "log_level": 0,
                "error_cb": self._failed,
            }
        )

    def _failed(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self.failures.append(str(error))

    def _told(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            assert offset not in self.acknowledged, "an offset was given twice"
            self.acknowledged[offset] = bytes(value)

    def produce(self, first: int, number: int) -> None:
        """Send *number* records, and return when all are acknowledged."""
        for value in range(first, first + number):
            self._producer.produce("orders", str(value).encode(), partition=0, on_delivery=self._told)
        assert self._producer.flush(SECONDS_MAX) == 0
        assert self.failures == []

    def consume(self, number: int) -> list[int]:
        """Read *number* records in the group from where it stands, commit, and leave it."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.subscribe(["orders"])
        found: list[int] = []

        def read() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(int(message.value() or b""))
            return len(found) == number

        until(read, f"{number} records in the group", pause=0)
        consumer.commit(asynchronous=False)
        consumer.close()
        return found


def accepts(member: Member) -> bool:
    """Return whether a server answers a request."""
    try:
        with RawClient(("127.0.0.1", member.port)) as client:
            client.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 9)
    except OSError:
        return False
    return True


def test_three_owners_die_one_after_the_other_and_nothing_that_was_shipped_is_lost(
    bucket: str, members: Members
) -> None:
    """The idempotent producer goes on, the group resumes, and each killed owner comes back as a standby."""
    owner, standby = members("a"), members("b")
    owner.start(standby=False)
    owner.says(READY)
    standby.start(standby=True)
    standby.says(STANDBY)
    clients = Clients(owner, standby)
    taken: list[float] = []
    clients.produce(0, RECORDS)
    for cycle in range(CYCLES):
        assert clients.consume(RECORDS) == list(range(cycle * RECORDS, (cycle + 1) * RECORDS))
        wait_until_shipped(bucket, owner)
        killed_at = time.monotonic()
        owner.kill()
        standby.says(READY)
        taken.append(standby.ready_at - killed_at)
        # With another server's address for the same node, so clients ask for it again.
        until(lambda standby=standby: accepts(standby), "the standby answers")  # type: ignore[misc]
        clients.produce((cycle + 1) * RECORDS, RECORDS)
        owner.start(standby=True)
        owner.says(STANDBY)
        owner, standby = standby, owner
    everything = list(range((CYCLES + 1) * RECORDS))
    assert [int(clients.acknowledged[offset]) for offset in sorted(clients.acknowledged)] == everything
    assert clients.consume(RECORDS) == everything[-RECORDS:]
    owner.send(signal.SIGTERM)
    assert owner.wait() == 0
    seconds = ", ".join(f"{each:.2f}" for each in taken)
    print(f"seconds from kill -9 to serving, with a lease of {LEASE_MS} ms: {seconds}")
    standby.send(signal.SIGTERM)
    assert standby.wait() == 0


def test_an_owner_that_was_stopped_for_too_long_ends_and_says_why(bucket: str, members: Members) -> None:
    owner, standby = members("a"), members("b")
    owner.start(standby=False)
    owner.says(READY)
    standby.start(standby=True)
    standby.says(STANDBY)
    owner.send(signal.SIGSTOP)
    standby.says(READY)
    owner.send(signal.SIGCONT)
    assert owner.wait() != 0
    sentences = [line for line in owner.errors if line.startswith("Error: ")]
    assert len(sentences) == 1, owner.errors
    assert "was taken over" in sentences[0]
    assert not any("Traceback" in line for line in owner.errors)
    assert accepts(standby)


def test_a_standby_without_a_log_to_follow_waits_and_stops_cleanly(members: Members) -> None:
    standby = members("b")
    standby.start(standby=True)
    until(lambda: any("no log in the bucket" in line for line in standby.errors), "it says so")
    assert not (standby.data / "topics").exists()
    standby.send(signal.SIGTERM)
    assert standby.wait() == 0


def test_a_following_standby_stops_cleanly_and_goes_on_after_a_start(bucket: str, members: Members) -> None:
    owner, standby = members("a"), members("b")
    owner.start(standby=False)
    owner.says(READY)
    standby.start(standby=True)
    standby.says(STANDBY)
    standby.send(signal.SIGINT)
    assert standby.wait() == 0
    record = json.loads((standby.data / "meta" / "bucket.json").read_text())["body"]
    assert not record["attached"]
    assert record["copied"]["next_seq"] > 1
    standby.start(standby=True)
    standby.says(STANDBY)
    (line,) = standby.lines
    assert line.startswith(f"{STANDBY}{bucket}, at piece ")


def test_a_standby_needs_a_bucket() -> None:
    assert "--bucket" in refused("serve", "--standby", code=2)
