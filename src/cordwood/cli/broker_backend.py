"""Commands on a broker, ours or any Kafka, through confluent-kafka."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cordwood.cli.backend import (
    Chunk,
    GroupDescription,
    GroupSummary,
    Member,
    PartitionSummary,
    Place,
    Row,
    TopicDescription,
    TopicSummary,
    has_members,
    unknown_group,
)
from cordwood.errors import CordwoodError, TopicExists, UnknownTopic
from cordwood.records import OffsetRange, Record

CHUNK_RECORDS = 500
_POLL_SECONDS = 0.1
#: Beyond this many records the client is asked to send before it is given more.
_QUEUED_MAX = 50_000
_MESSAGE_BYTES_MAX = 100 << 20


def load_client() -> Any:
    """Return the module confluent_kafka.

    Raises:
        CordwoodError: If it is not installed; says what to install.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise CordwoodError(
            "talking to a broker needs confluent-kafka, which is not installed: pip install confluent-kafka"
        ) from error
    return confluent_kafka


class BrokerBackend:
    """A broker by its address; see `Backend`."""

    def __init__(self, address: str, client: Mapping[str, str], timeout: float) -> None:
        """Connect.

        Raises:
            CordwoodError: If there is no confluent-kafka, a setting is refused, or nobody answers.
        """
        self._kafka = load_client()
        self._address = address
        self._timeout = timeout
        self._settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "client.id": "cordwood",
            **client,
            # Errors come as answers to what is asked; librdkafka would write them to the console as well.
            "error_cb": lambda error: None,
            "log_level": 0,
        }
        self._producer: Any = None
        self._member: Any = None
        self._failure: str | None = None
        self._admin: Any = self._made(self._kafka.admin.AdminClient, {})
        self._partition_counts()

    def _made(self, kind: Callable[[Any], Any], more: Mapping[str, Any]) -> Any:
        try:
            return kind({**self._settings, **more})
        except self._kafka.KafkaException as error:
            raise CordwoodError(f"the Kafka client refuses a setting: {_said(error)}") from error

    def _asked(self, doing: str, call: Callable[[], Any]) -> Any:
        """Return what the broker answers; one sentence that names the address if it does not."""
        try:
            return call()
        except self._kafka.KafkaException as error:
            code = error.args[0].code() if error.args and hasattr(error.args[0], "code") else None
            codes = self._kafka.KafkaError
            if code in (codes._TRANSPORT, codes._TIMED_OUT, codes._ALL_BROKERS_DOWN, codes._RESOLVE):
                raise CordwoodError(
                    f"no broker answers at {self._address} within {self._timeout:g} s: check the address, or "
                    "start one with cordwood serve"
                ) from error
            raise CordwoodError(f"{doing} at {self._address} failed: {_said(error)}") from error

    def _one(self, doing: str, ask: Callable[..., Mapping[Any, Any]], *about: Any) -> Any:
        """Return the one answer to a question to the admin client."""
        (future,) = self._asked(doing, lambda: ask(*about, request_timeout=self._timeout)).values()
        return self._asked(doing, future.result)

    def _partition_counts(self) -> dict[str, int]:
        found = self._asked("asking for topics", lambda: self._admin.list_topics(timeout=self._timeout))
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def _partitions_of(self, topic: str) -> int:
        # Not by asking for this topic, which would create it.
        count = self._partition_counts().get(topic)
        if count is None:
            raise UnknownTopic(f"there is no topic {topic}")
        return count

    # --- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[TopicSummary]:
        """Return the topics of the broker."""
        counts = self._partition_counts()
        try:
            records = self._records(counts)
        except CordwoodError:
            # One topic that cannot be read must not hide the others.
            records = {name: self._records_of(name, count) for name, count in counts.items()}
        return [
            TopicSummary(name, counts[name], records[name], name.startswith("__")) for name in sorted(counts)
        ]

    def _records(self, counts: Mapping[str, int]) -> dict[str, int | None]:
        places = [(name, number) for name, count in counts.items() for number in range(count)]
        records = dict.fromkeys(counts, 0)
        for (name, _), offsets in self._ranges(places).items():
            records[name] += len(offsets)
        return dict(records)

    def _records_of(self, name: str, count: int) -> int | None:
        try:
            return self._records({name: count})[name]
        except CordwoodError:
            return None

    def _ranges(self, places: Sequence[Place]) -> dict[Place, OffsetRange]:
        """Return the offsets that can be read of each of *places*."""
        spec = self._kafka.admin.OffsetSpec
        ends: list[dict[Place, int]] = []
        for wanted in (spec.earliest(), spec.latest()):
            asked = {self._kafka.TopicPartition(*place): wanted for place in places}
            futures = self._admin.list_offsets(asked, request_timeout=self._timeout) if asked else {}
            ends.append(
                {
                    (place.topic, place.partition): self._asked("asking for offsets", future.result).offset
                    for place, future in futures.items()
                }
            )
        return {place: OffsetRange(start, max(start, ends[1][place])) for place, start in ends[0].items()}

    def describe(self, topic: str) -> TopicDescription:
        """Return what the broker says of a topic; sizes it does not."""
        offsets = self.offsets(topic)
        wanted = self._kafka.TopicCollection([topic])
        topic_id = self._one("describing a topic", self._admin.describe_topics, wanted).topic_id
        resource = self._kafka.admin.ConfigResource(self._kafka.admin.ResourceType.TOPIC, topic)
        found = self._one("asking for settings", self._admin.describe_configs, [resource])
        own_source = self._kafka.admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        settings = {name: entry.value or "" for name, entry in sorted(found.items())}
        own = {name: settings[name] for name, entry in sorted(found.items()) if entry.source == own_source}
        partitions = [
            PartitionSummary(number, each.start, each.end, None) for number, each in offsets.items()
        ]
        return TopicDescription(topic, _uuid(topic_id), partitions, own, settings)

    def offsets(self, topic: str) -> dict[int, OffsetRange]:
        """Return the offsets of each partition."""
        places = [(topic, number) for number in range(self._partitions_of(topic))]
        return {number: offsets for (_, number), offsets in self._ranges(places).items()}

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record at or after a time."""
        place = self._kafka.TopicPartition(topic, partition)
        wanted = {place: self._kafka.admin.OffsetSpec.for_timestamp(timestamp)}
        found = self._one("asking for a time", self._admin.list_offsets, wanted).offset
        return None if found < 0 else int(found)

    def create(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Create a topic; without a number of partitions the broker decides."""
        if topic in self._partition_counts():
            raise TopicExists(topic)
        new = self._kafka.admin.NewTopic(topic, partitions or -1, config=dict(config))
        self._one(f"creating topic {topic}", self._admin.create_topics, [new])
        return self._partitions_of(topic)

    def alter(
        self, topic: str, partitions: int | None, config: Mapping[str, str], unset: Sequence[str]
    ) -> None:
        """Change a topic."""
        self._partitions_of(topic)
        admin = self._kafka.admin
        if partitions is not None:
            new = [admin.NewPartitions(topic, partitions)]
            self._one(f"altering topic {topic}", self._admin.create_partitions, new)
        if config or unset:
            operation = admin.AlterConfigOpType
            entries = [
                admin.ConfigEntry(name, value, incremental_operation=operation.SET)
                for name, value in config.items()
            ]
            entries += [
                admin.ConfigEntry(name, None, incremental_operation=operation.DELETE) for name in unset
            ]
            resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=entries)
            self._one(f"altering topic {topic}", self._admin.incremental_alter_configs, [resource])

    def delete(self, topic: str) -> None:
        """Delete a topic; the broker forgets what groups have committed of it."""
        self._partitions_of(topic)
        self._one(f"deleting topic {topic}", self._admin.delete_topics, [topic])

    # --- records ----------------------------------------------------------------------------------

    def append(self, topic: str, rows: Sequence[Row], partition: int | None) -> int:
        """Hand records to the client, which sends them in batches."""
        if self._producer is None:
            settings = {
                "acks": "all",
                "linger.ms": 5,
                # As Kafka's own clients, and as our files: a key is always in the same partition.
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 2 * _QUEUED_MAX,
                # What is too large is for the broker to say, which knows the topic.
                "message.max.bytes": _MESSAGE_BYTES_MAX,
                # A record that nobody takes is an error for us to tell, not one to wait for.
                "message.timeout.ms": int(max(self._timeout, 1.0) * 3000),
            }
            self._producer = self._made(self._kafka.Producer, settings)
        where = {} if partition is None else {"partition": partition}
        for key, value, headers in rows:
            self._send({**where, "topic": topic, "key": key, "value": value, "headers": list(headers)})
        self._producer.poll(0)
        self._check_delivered()
        return 0

    def _send(self, record: Mapping[str, Any]) -> None:
        while len(self._producer) >= _QUEUED_MAX:
            self._producer.poll(_POLL_SECONDS)
        while True:
            try:
                self._asked("sending", lambda: self._producer.produce(**record, on_delivery=self._delivered))
            except BufferError:
                # Few records, but large ones.
                self._producer.poll(_POLL_SECONDS)
            else:
                return

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = error.str()

    def _check_delivered(self) -> None:
        if self._failure is not None:
            raise CordwoodError(f"{self._address} did not take a record: {self._failure}")

    def flush(self) -> None:
        """Return once the broker has acknowledged everything."""
        if self._producer is not None:
            while self._producer.flush(_POLL_SECONDS):
                self._check_delivered()
            self._check_delivered()

    def _consumer(self, group: str, reset: str, *, to_end: bool) -> Any:
        settings = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": reset,
            # The end is told with an answer that has nothing in it, so who only wants that need not wait.
            "fetch.wait.max.ms": 10 if to_end else 500,
        }
        return self._made(self._kafka.Consumer, settings)

    def read(self, topic: str, starts: Mapping[int, int], *, to_end: bool) -> Iterator[Chunk]:
        """Yield records of all partitions as they come."""
        consumer = self._consumer("cordwood-consume", "error", to_end=to_end)
        consumer.assign(
            [self._kafka.TopicPartition(topic, number, start) for number, start in starts.items()]
        )
        try:
            yield from self._chunks(consumer, lambda: set(starts), to_end)
        finally:
            consumer.close()

    def read_group(self, topic: str, group: str, *, from_beginning: bool, to_end: bool) -> Iterator[Chunk]:
        """Join the group and yield the records of the partitions that are assigned to us."""
        self._partitions_of(topic)
        reset = "earliest" if from_beginning else "latest"
        self._member = consumer = self._consumer(group, reset, to_end=to_end)
        consumer.subscribe([topic])
        yield from self._chunks(
            consumer, lambda: {place.partition for place in consumer.assignment()}, to_end
        )

    def _chunks(self, consumer: Any, assigned: Callable[[], set[int]], to_end: bool) -> Iterator[Chunk]:
        """Yield what comes, until every partition that is *assigned* was seen to end."""
        ended: set[int] = set()
        while True:
            messages = self._asked("reading", lambda: consumer.consume(CHUNK_RECORDS, _POLL_SECONDS))
            chunk = []
            for message in messages:
                error = message.error()
                if error is None:
                    ended.discard(message.partition())
                    chunk.append((message.partition(), _record(message)))
                elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif error.fatal() or not error.retriable():
                    raise CordwoodError(f"reading at {self._address} failed: {error.str()}")
            yield chunk
            places = assigned()
            if to_end and places and places <= ended:
                return

    # --- groups -----------------------------------------------------------------------------------

    def groups(self) -> list[GroupSummary]:
        """Return the groups of the broker."""
        future = self._admin.list_consumer_groups(request_timeout=self._timeout)
        found = self._asked("asking for groups", future.result)
        states = {group.group_id: _state(group.state) for group in found.valid}
        return [GroupSummary(name, state) for name, state in sorted(states.items())]

    def group(self, name: str) -> GroupDescription:
        """Return what the coordinator says of a group."""
        if name not in {group.name for group in self.groups()}:
            raise unknown_group(name)
        found = self._one(f"describing group {name}", self._admin.describe_consumer_groups, [name])
        members = [Member(member.member_id, member.client_id, member.host) for member in found.members]
        wanted = [self._kafka.ConsumerGroupTopicPartitions(name)]
        doing = f"asking for the offsets of group {name}"
        committed = self._one(doing, self._admin.list_consumer_group_offsets, wanted)
        offsets = {
            (place.topic, place.partition): place.offset
            for place in committed.topic_partitions
            if place.offset >= 0
        }
        return GroupDescription(name, _state(found.state), members, offsets)

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Commit as the member that reads, or for a group without members."""
        places = [self._kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        doing = f"committing offsets of group {group}"
        if self._member is not None:
            done = self._asked(doing, lambda: self._member.commit(offsets=places, asynchronous=False))
        else:
            self._check_no_members(group)
            wanted = [self._kafka.ConsumerGroupTopicPartitions(group, places)]
            done = self._one(doing, self._admin.alter_consumer_group_offsets, wanted).topic_partitions
        for place in done:
            if place.error is not None:
                raise CordwoodError(f"{doing} at {self._address} failed: {place.error.str()}")

    def delete_group(self, name: str) -> None:
        """Delete a group."""
        self.group(name)
        self._check_no_members(name)
        self._one(f"deleting group {name}", self._admin.delete_consumer_groups, [name])

    def _check_no_members(self, name: str) -> None:
        if name in {group.name for group in self.groups()}:
            members = self.group(name).members
            if members:
                raise has_members(name, len(members))

    def close(self) -> None:
        """Let go; a member leaves its group."""
        if self._member is not None:
            self._member.close()


def _said(error: Any) -> str:
    return str(error.args[0].str() if error.args and hasattr(error.args[0], "str") else error)


def _state(state: Any) -> str:
    """Return the state of a group as Kafka's tools show it: STABLE is Stable."""
    return "".join(part.capitalize() for part in str(state.name).split("_"))


def _uuid(found: Any) -> str | None:
    high = found.get_most_significant_bits() % (1 << 64)
    low = found.get_least_significant_bits() % (1 << 64)
    return str(uuid.UUID(int=high << 64 | low)) if high or low else None


def _record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Record(message.offset(), timestamp if kind else -1, message.key(), message.value(), headers)
