"""One scenario for every client: six steps, each of which is compared with what was sent.

A client's program is started with the name of a JSON file, the plan. After each thing that it did it prints
one line of JSON with its step and what it saw, and waits for a line before it goes on; meanwhile the
server is looked at with another client, restarted, or given more records.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import confluent_kafka
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
)
from interop.logins import planned
from interop.report import ABSENT, STEPS, Report
from support.clients import COMPRESSIONS, Confluent, Outgoing, Stored
from support.patience import SECONDS_MAX
from support.secure_clients import Login
from support.serving import RawClient

from cordwood.formats.batch import BatchHeader, scan
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.metadata import MetadataRequest
from cordwood.protocol.wire import NULL_ID

PARTITIONS = 3
RECORDS_PER_COMPRESSION = 24
IDEMPOTENT_RECORDS = 300
#: How many records the consumer group gets before the broker is restarted, and how many after it.
GROUP_COUNTS = (60, 30)
#: A setting that every broker has, and a value that none has by itself.
SETTING, VALUE = "max.message.bytes", "2000000"
#: What all six steps of one client may take.
SCENARIO_SECONDS_MAX = 180

Hear = Callable[[str], dict[str, Any]]
"""Lets the client go on, and returns what it says next; the argument is the step it must be at."""


class Broker(Protocol):
    """A broker that can be restarted."""

    bootstrap: str

    def restart(self) -> None:
        """End it and start it again on the same data and port."""


class Record(NamedTuple):
    """A record as programs print it, less its place."""

    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...]
    timestamp: int


Log = list[list[Record]]
"""The records of each partition in the order of their offsets, which begin at 0."""


class SixSteps:
    """What one client is asked to do with one broker, and a check for each step of it.

    Clients differ in what they can send: headers whose value is null or not, and values that are empty, at
    timestamps of one's choice, or neither. With *access* a client connects there and logs in, while the
    checks go on to use the broker's open address.
    """

    def __init__(
        self,
        client: str,
        broker: Broker,
        *,
        compressions: Sequence[str] = COMPRESSIONS,
        null_headers: bool = True,
        exact: bool = True,
        access: tuple[str, Login] | None = None,
    ) -> None:
        self.broker = broker
        self.access = access
        self.topic = f"six-steps-{client}"
        self.group_topic = f"{self.topic}-group"
        self.group = f"{self.topic}-members"
        self.compressions = compressions
        self.null_headers = null_headers
        self.exact = exact
        self._now = int(time.time() * 1000) - 3_600_000
        self._made = 0
        self.parts = [(each, self._records(each, RECORDS_PER_COMPRESSION)) for each in compressions]
        self.idempotent = self._records("idempotent", IDEMPOTENT_RECORDS)
        self.log: Log = [[] for _ in range(PARTITIONS)]
        for partition, record in [*(one for _, part in self.parts for one in part), *self.idempotent]:
            self.log[partition].append(record)

    def _records(self, name: str, count: int) -> list[tuple[int, Record]]:
        """Return records and their partitions: with and without key, value and headers."""
        made = []
        for number in range(count):
            # Text that repeats itself: some clients send what does not shrink as it is.
            value: str | None = f"{name} {number} " + "Brennholz, gespalten und gestapelt " * 8
            if number % 6 == 5:
                value = None
            elif number % 6 == 4 and self.exact:
                value = ""
            key = None if number % 4 == 0 else f"key-{number % 7}-ß"
            partition = number % PARTITIONS
            headers: list[tuple[str, str | None]] = [("codec", name), ("empty", "")] if partition else []
            if partition == 2 and self.null_headers:
                headers.append(("null", None))
            self._made += 1
            made.append((partition, Record(key, value, tuple(headers), self._now + 10 * self._made)))
        return made

    @property
    def address(self) -> str:
        """Where the client connects."""
        return self.broker.bootstrap if self.access is None else self.access[0]

    def middle(self) -> dict[str, int]:
        """Return an offset and a time in the middle of what was sent, and how many records follow them."""
        times = sorted(record.timestamp for part in self.log for record in part)
        middle = times[len(times) // 2]
        return {
            "count": len(times),
            "partition": 1,
            "offset": len(self.log[1]) // 2,
            "offset_count": len(self.log[1]) - len(self.log[1]) // 2,
            "time": middle,
            "time_count": sum(timestamp >= middle for timestamp in times),
        }

    def plan(self, steps: Sequence[str] = STEPS) -> dict[str, Any]:
        """Return everything that a client's program must know to take *steps*."""

        def listed(records: Sequence[tuple[int, Record]]) -> list[dict[str, Any]]:
            return [{"partition": partition, **record._asdict()} for partition, record in records]

        return {
            "bootstrap": self.address,
            **({} if self.access is None else planned(self.access[1])),
            "steps": steps,
            "topic": self.topic,
            "partitions": PARTITIONS,
            "produce": [{"compression": name, "records": listed(part)} for name, part in self.parts],
            "idempotent": listed(self.idempotent),
            "consume": self.middle(),
            "group": self.group,
            "group_topic": self.group_topic,
            "group_counts": GROUP_COUNTS,
            "config": {"name": SETTING, "value": VALUE},
        }

    # --- the steps, in their order ------------------------------------------------------------------------

    def create(self, hear: Hear) -> None:
        """The topic is there, for others too."""
        assert hear("create")["partitions"] == PARTITIONS
        assert self._topics()[self.topic] == PARTITIONS

    def produce(self, hear: Hear) -> None:
        """Each compression arrived as such, and every record as it was sent, at the offset it was told."""
        seen = hear("produce")
        if "offsets" in seen:
            places: Counter[int] = Counter()
            for (_, part), offsets in zip(self.parts, seen["offsets"], strict=True):
                self._check_offsets(part, offsets, places)
        codecs = [header.attributes & 7 for part in self._batches() for header in part]
        assert {COMPRESSIONS[codec] for codec in codecs} == set(self.compressions)
        self._check_log(sum(len(part) for _, part in self.parts))

    def produce_idempotently(self, hear: Hear) -> None:
        """Each partition has the records once, in order, from one producer that numbered them."""
        seen = hear("idempotent")
        if "offsets" in seen:
            ahead = Counter(partition for _, part in self.parts for partition, _ in part)
            self._check_offsets(self.idempotent, seen["offsets"], ahead)
        self._check_log(sum(map(len, self.log)))
        for headers in self._batches():
            numbered = [header for header in headers if header.producer_id >= 0]
            last = numbered[-1]
            assert last.base_sequence + last.record_count == IDEMPOTENT_RECORDS // PARTITIONS
            assert len({header.producer_id for header in numbered}) == 1

    def consume(self, hear: Hear) -> None:
        """Reading from the beginning, from an offset and from a time gives just what is there."""
        seen, middle = hear("consume"), self.middle()
        everything = [
            (partition, offset, record)
            for partition, part in enumerate(self.log)
            for offset, record in enumerate(part)
        ]
        assert _placed(seen["earliest"]) == everything
        assert _placed(seen["offset"]) == [
            each for each in everything if each[0] == middle["partition"] and each[1] >= middle["offset"]
        ]
        assert _placed(seen["time"]) == [each for each in everything if each[2].timestamp >= middle["time"]]

    def share(self, hear: Hear) -> None:
        """Two members share the partitions, and go on where they were after the broker was restarted."""
        Confluent().create_topic(self.broker.bootstrap, self.group_topic, PARTITIONS)
        first, second = hear("group")["assigned"]
        assert first
        assert second
        assert sorted([*first, *second]) == list(range(PARTITIONS))
        self._feed(GROUP_COUNTS[0])
        self._check_shared(hear("group")["records"], 0, GROUP_COUNTS[0])
        self.broker.restart()
        self._feed(GROUP_COUNTS[1])
        self._check_shared(hear("group")["records"], GROUP_COUNTS[0], GROUP_COUNTS[1])

    def administer(self, hear: Hear) -> None:
        """A setting is described, changed and seen changed; a deleted topic is gone."""
        seen = hear("admin")
        assert int(seen["before"]) > 0
        assert seen["before"] != VALUE
        assert seen["after"] == VALUE
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        with self._admin() as admin:
            described = admin.describe_configs([resource])[resource].result(SECONDS_MAX)
        assert described[SETTING].value == VALUE
        topics = hear("admin")["topics"]
        assert self.topic not in topics
        assert self.group_topic in topics
        assert self.topic not in self._topics()

    # --- looking for ourselves ----------------------------------------------------------------------------

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        with AdminClient({"bootstrap.servers": self.broker.bootstrap}) as admin:
            yield admin

    def _topics(self) -> dict[str, int]:
        """Return how many partitions each topic has."""
        with RawClient(self.broker.bootstrap) as raw:
            topics = raw.ask(ApiKey.METADATA, MetadataRequest(topics=None), 12).topics
        return {topic.name: len(topic.partitions) for topic in topics}

    def committed(self) -> list[int]:
        """Return the offset that the group has committed of each partition."""
        wanted = [confluent_kafka.TopicPartition(self.group_topic, p) for p in range(PARTITIONS)]
        asked = [confluent_kafka.ConsumerGroupTopicPartitions(self.group, wanted)]
        with self._admin() as admin:
            committed = admin.list_consumer_group_offsets(asked)[self.group].result(SECONDS_MAX)
        return [int(one.offset) for one in committed.topic_partitions]

    def _check_offsets(
        self, part: Sequence[tuple[int, Record]], offsets: Sequence[int], places: Counter[int]
    ) -> None:
        """Hold the offsets that a producer was told to where its records must be; *places* moves on."""
        for (partition, _), offset in zip(part, offsets, strict=True):
            assert offset == places[partition]
            places[partition] += 1

    def _check_log(self, count: int) -> None:
        """Read everything with another client: there are *count* records, the first of what is sent."""
        with Confluent().consuming(self.broker.bootstrap) as consumer:
            consumer.begin(self.topic, PARTITIONS)
            assert sum(end for _, end in consumer.bounds().values()) == count
            stored = consumer.take(count)
        for partition, sent in enumerate(self.log):
            found = [_record(one) for one in stored if one.partition == partition]
            if not self.exact:
                times = [record.timestamp for record in found] + [0] * (len(sent) - len(found))
                sent[:] = [one._replace(timestamp=at) for one, at in zip(sent, times, strict=True)]
            assert found == sent[: len(found)]

    def _batches(self) -> list[list[BatchHeader]]:
        """Return the headers of all batches of each partition, as they are stored."""
        partitions = [FetchPartition(partition, max_bytes=1 << 24) for partition in range(PARTITIONS)]
        asked = FetchTopic(self.topic, NULL_ID, partitions)
        with RawClient(self.broker.bootstrap) as raw:
            body = FetchRequest(-1, 0, 0, 1 << 24, 0, 0, -1, [asked], [], "")
            (answer,) = raw.ask(ApiKey.FETCH, body, 12).topics
        parts = sorted(answer.partitions, key=lambda part: int(part.index))
        return [list(scan(b"".join(part.records)).headers()) for part in parts]

    def _feed(self, count: int) -> None:
        """Give the consumer group that many records."""
        with Confluent().producing(self.broker.bootstrap, self.group_topic) as producer:
            producer.send([Outgoing(number % PARTITIONS, None, b"%d" % number) for number in range(count)])
            producer.flush()

    def _check_shared(self, records: list[list[dict[str, Any]]], ahead: int, count: int) -> None:
        """Both members were given records, together each of the last *count* once, and committed them."""
        assert all(records)
        places = sorted((one["partition"], one["offset"]) for member in records for one in member)
        starts, each = ahead // PARTITIONS, count // PARTITIONS
        assert places == [(p, starts + n) for p in range(PARTITIONS) for n in range(each)]
        assert self.committed() == [starts + each] * PARTITIONS


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def _record(one: Stored) -> Record:
    headers = tuple((name, _text(value)) for name, value in one.headers)
    return Record(_text(one.key), _text(one.value), headers, one.timestamp)


def _placed(records: Sequence[dict[str, Any]]) -> list[tuple[int, int, Record]]:
    """Return records that a program printed in the order of their places."""
    return sorted(
        (
            one["partition"],
            one["offset"],
            Record(one["key"], one["value"], tuple((k, v) for k, v in one["headers"]), one["timestamp"]),
        )
        for one in records
    )


def run_six_steps(
    steps: SixSteps, hear: Hear, report: Report, name: str, version: str, lacks: Sequence[str] = ()
) -> None:
    """Go through the steps with a client, but for those that it *lacks*, and report each."""
    checks = (
        steps.create,
        steps.produce,
        steps.produce_idempotently,
        steps.consume,
        steps.share,
        steps.administer,
    )
    for step, check in zip(STEPS, checks, strict=True):
        if step in lacks:
            report.note("clients", name, version, step, ABSENT)
            continue
        with report.check("clients", name, version, step):
            check(hear)


@contextmanager
def running_program(
    command: Sequence[str], plan: dict[str, Any], directory: Path, seconds: float = SCENARIO_SECONDS_MAX
) -> Iterator[Hear]:
    """Run a client's program on a plan; it must end well, and after *seconds* at most."""
    (directory / "plan.json").write_text(json.dumps(plan))
    errors = directory / "errors.txt"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [*command, str(directory / "plan.json")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    heard: list[str] = []

    def hear(step: str) -> dict[str, Any]:
        if heard:
            stdin.write("\n")
            stdin.flush()
        line = stdout.readline()
        assert line, f"the program ended: {errors.read_text()[-3000:]}"
        heard.append(line)
        seen: dict[str, Any] = json.loads(line)
        assert seen["step"] == step
        return seen

    watchdog = threading.Timer(seconds, process.kill)
    watchdog.start()
    try:
        yield hear
        process.communicate("\n")
        assert process.returncode == 0, errors.read_text()[-3000:]
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()
