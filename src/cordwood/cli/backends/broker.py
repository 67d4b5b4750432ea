"""The backend for a broker, Cordwood or Kafka, through confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cordwood.broker import OPERATION, Operation, RollPartition, TruncatePartition, encode_operation
from cordwood.cli.backends.asking import ask
from cordwood.cli.backends.backend import (
    Chunk,
    GroupDescription,
    GroupSummary,
    MemberInfo,
    PartitionSummary,
    ProducedRow,
    TopicDescription,
    TopicSummary,
    TransactionDescription,
    UserRow,
    has_members,
    unknown_group,
)
from cordwood.cli.backends.broker_acls import BrokerAcls
from cordwood.cli.backends.broker_users import BrokerUsers
from cordwood.errors import CordwoodError, TopicExists, TransactionalIdUnknown, UnknownTopic
from cordwood.kafka_client import KafkaClient, Sender
from cordwood.protocol import ApiKey, ErrorCode
from cordwood.protocol.messages import DescribeTransactionsRequest, ListTransactionsRequest
from cordwood.records import OffsetRange, Record, TopicPartition
from cordwood.security import AclBinding, AclFilter, ScramMechanism
from cordwood.tenancy import suggest

CHUNK_RECORDS = 500
_POLL_SECONDS = 0.1
#: The producer accepts no more records while this many are not acknowledged.
_QUEUED_MAX = 50_000
_MESSAGE_BYTES_MAX = 100 << 20


class BrokerBackend:
    """A broker by its address; see `Backend`."""

    def __init__(self, address: str, client: Mapping[str, str], timeout: float, advice: str = "") -> None:
        """Connect. *advice* is for a broker that does not answer, in place of the usual one.

        Raises:
            CordwoodError: If confluent-kafka is missing, a setting is refused, or the broker does not answer.
        """
        self._client = KafkaClient(
            {"bootstrap.servers": address, "client.id": "cordwood", **client},
            timeout,
            advice=advice or "check the address, or start one with cordwood serve",
        )
        self._kafka, self._admin = self._client.kafka, self._client.admin
        self._sender: Sender | None = None
        self._member: Any = None
        self._client.topics()

    def _partitions_of(self, topic: str) -> int:
        # Not by a request for this topic, which would create it.
        known = self._client.topics()
        count = known.get(topic)
        if count is None:
            raise UnknownTopic.named(topic, suggestion=suggest(topic, known))
        return count

    # --- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[TopicSummary]:
        """Return the topics of the broker."""
        counts = self._client.topics()
        try:
            offsets = self._counted(counts)
        except CordwoodError:
            # One topic that cannot be read must not hide the others.
            offsets = {name: self._counted_of(name, count) for name, count in counts.items()}
        return [
            TopicSummary(name, counts[name], offsets[name], name.startswith("__")) for name in sorted(counts)
        ]

    def topic_names(self) -> list[str]:
        """Return the names of the broker's topics."""
        return sorted(self._client.topics())

    def _counted(self, counts: Mapping[str, int]) -> dict[str, int | None]:
        """Return the number of readable offsets of each topic."""
        places = [(name, number) for name, count in counts.items() for number in range(count)]
        found = dict.fromkeys(counts, 0)
        for (name, _), offsets in self._ranges(places).items():
            found[name] += len(offsets)
        return dict(found)

    def _counted_of(self, name: str, count: int) -> int | None:
        try:
            return self._counted({name: count})[name]
        except CordwoodError:
            return None

    def _ranges(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Return the readable offsets of each partition in *places*."""
        ends = self._client.ends(places)
        return {place: OffsetRange(start, max(start, end)) for place, (start, end) in ends.items()}

    def describe(self, topic: str) -> TopicDescription:
        """Return the broker's description of a topic, which has no sizes."""
        offsets = self.offsets(topic)
        described = self._client.describe([topic]).get(topic)
        found = self._client.config_of(topic)
        own_source = self._kafka.admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        settings = {name: entry.value or "" for name, entry in sorted(found.items())}
        own = {name: settings[name] for name, entry in sorted(found.items()) if entry.source == own_source}
        partitions = [
            PartitionSummary(number, each.start, each.end, None) for number, each in offsets.items()
        ]
        topic_id = None if described is None else described.topic_id
        return TopicDescription(topic, topic_id, partitions, own, settings)

    def offsets(self, topic: str) -> dict[int, OffsetRange]:
        """Return the offsets of each partition."""
        places = [(topic, number) for number in range(self._partitions_of(topic))]
        return {number: offsets for (_, number), offsets in self._ranges(places).items()}

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record at or after *timestamp*, or None."""
        return self._client.offsets_at({(topic, partition): timestamp})[topic, partition]

    def create(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Create a topic; without *partitions* the broker's default is used."""
        if topic in self._client.topics() or not self._client.create(topic, partitions, config):
            raise TopicExists(topic)
        return self._partitions_of(topic)

    def alter(
        self, topic: str, partitions: int | None, config: Mapping[str, str], unset: Sequence[str]
    ) -> None:
        """Change a topic."""
        self._partitions_of(topic)
        if partitions is not None:
            new = [self._kafka.admin.NewPartitions(topic, partitions)]
            self._client.one(f"altering topic {topic}", self._admin.create_partitions, new)
        if config or unset:
            self._client.alter_config(topic, config, unset)

    def roll(self, topic: str, partition: int) -> None:
        """Seal the active segment of a partition."""
        doing = f"rolling partition {partition} of topic {topic}"
        self._operate(topic, RollPartition(partition=partition), doing, dry_run=False)

    def truncate(self, topic: str, partition: int, end_offset: int, *, force: bool, dry_run: bool) -> None:
        """Truncate a partition."""
        operation = TruncatePartition(partition=partition, end_offset=end_offset, force=force)
        doing = f"truncating partition {partition} of topic {topic}"
        self._operate(topic, operation, doing, dry_run=dry_run)

    def _operate(self, topic: str, operation: Operation, doing: str, *, dry_run: bool) -> None:
        self._client.operate(topic, OPERATION, encode_operation(operation), doing, dry_run=dry_run)

    def delete(self, topic: str) -> None:
        """Delete a topic; the broker deletes its committed offsets."""
        self._partitions_of(topic)
        self._client.delete(topic)

    # --- records ----------------------------------------------------------------------------------

    def append(self, topic: str, rows: Sequence[ProducedRow], partition: int | None) -> int:
        """Pass records to the client, which sends them in batches."""
        if self._sender is None:
            self._sender = Sender(
                self._client,
                {
                    **self._client.settings,
                    "acks": "all",
                    "linger.ms": 5,
                    # Like Kafka's own clients and our files backend: a key always has the same partition.
                    "partitioner": "murmur2_random",
                    "queue.buffering.max.messages": _QUEUED_MAX,
                    # The broker knows the limit of the topic.
                    "message.max.bytes": _MESSAGE_BYTES_MAX,
                    # A record that the broker does not accept must be reported, not retried for long.
                    "message.timeout.ms": int(max(self._client.seconds, 1.0) * 3000),
                },
            )
        where = {} if partition is None else {"partition": partition}
        for key, value, headers in rows:
            self._sender.send(topic, value, key, headers=list(headers), **where)
        self._sender.check()
        return 0

    def flush(self) -> None:
        """Return once the broker has acknowledged all records."""
        if self._sender is not None:
            self._sender.finish()

    def _consumer(self, group: str, reset: str, *, to_end: bool) -> Any:
        settings = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": reset,
            # An empty answer reports the end of a partition, so a command that ends there need not wait.
            "fetch.wait.max.ms": 10 if to_end else 500,
        }
        return self._client.consumer(settings)

    def read(self, topic: str, starts: Mapping[int, int], *, to_end: bool) -> Iterator[Chunk]:
        """Yield records of all partitions as they arrive."""
        consumer = self._consumer("cordwood-consume", "error", to_end=to_end)
        consumer.assign(
            [self._kafka.TopicPartition(topic, number, start) for number, start in starts.items()]
        )
        try:
            # The client looks for the coordinator of its group at once, which may be denied; no member joins.
            unused = frozenset({self._kafka.KafkaError.GROUP_AUTHORIZATION_FAILED})
            yield from self._chunks(consumer, lambda: set(starts), to_end, unused)
        finally:
            consumer.close()

    def read_group(self, topic: str, group: str, *, from_beginning: bool, to_end: bool) -> Iterator[Chunk]:
        """Join the group and yield the records of the assigned partitions."""
        self._partitions_of(topic)
        reset = "earliest" if from_beginning else "latest"
        self._member = consumer = self._consumer(group, reset, to_end=to_end)
        consumer.subscribe([topic])
        yield from self._chunks(
            consumer, lambda: {place.partition for place in consumer.assignment()}, to_end
        )

    def _chunks(
        self,
        consumer: Any,
        assigned: Callable[[], set[int]],
        to_end: bool,
        unused: frozenset[int] = frozenset(),
    ) -> Iterator[Chunk]:
        """Yield records until the end of every *assigned* partition was reached.

        Errors with a code in *unused* are about what this reader does not need.
        """
        ended: set[int] = set()
        while True:
            messages = self._client.asked("reading", consumer.consume, CHUNK_RECORDS, _POLL_SECONDS)
            chunk = []
            for message in messages:
                error = message.error()
                if error is None:
                    ended.discard(message.partition())
                    chunk.append((message.partition(), _record(message)))
                elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif error.code() not in unused and (error.fatal() or not error.retriable()):
                    raise CordwoodError(f"reading at {self._client.address} failed: {error.str()}")
            yield chunk
            places = assigned()
            if to_end and places and places <= ended:
                return

    # --- groups -----------------------------------------------------------------------------------

    def groups(self) -> list[GroupSummary]:
        """Return the groups of the broker."""
        future = self._admin.list_consumer_groups(request_timeout=self._client.seconds)
        found = self._client.asked("asking for groups", future.result)
        states = {group.group_id: _state(group.state) for group in found.valid}
        return [GroupSummary(name, state) for name, state in sorted(states.items())]

    def group(self, name: str) -> GroupDescription:
        """Return the coordinator's description of a group."""
        if name not in {group.name for group in self.groups()}:
            raise unknown_group(name)
        found = self._client.one(f"describing group {name}", self._admin.describe_consumer_groups, [name])
        members = [MemberInfo(member.member_id, member.client_id, member.host) for member in found.members]
        wanted = [self._kafka.ConsumerGroupTopicPartitions(name)]
        doing = f"asking for the offsets of group {name}"
        committed = self._client.one(doing, self._admin.list_consumer_group_offsets, wanted)
        offsets = {
            (place.topic, place.partition): place.offset
            for place in committed.topic_partitions
            if place.offset >= 0
        }
        return GroupDescription(name, _state(found.state), members, offsets)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets as the reading member, or for a group without members."""
        places = [self._kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        doing = f"committing offsets of group {group}"
        if self._member is not None:
            done = self._client.asked(doing, self._member.commit, offsets=places, asynchronous=False)
        else:
            self._check_no_members(group)
            wanted = [self._kafka.ConsumerGroupTopicPartitions(group, places)]
            done = self._client.one(doing, self._admin.alter_consumer_group_offsets, wanted).topic_partitions
        for place in done:
            if place.error is not None:
                raise CordwoodError(f"{doing} at {self._client.address} failed: {place.error.str()}")

    def delete_group(self, name: str) -> None:
        """Delete a group."""
        self.group(name)
        self._check_no_members(name)
        self._client.one(f"deleting group {name}", self._admin.delete_consumer_groups, [name])

    def _check_no_members(self, name: str) -> None:
        if name in {group.name for group in self.groups()}:
            members = self.group(name).members
            if members:
                raise has_members(name, len(members))

    # --- transactions -----------------------------------------------------------------------------

    def transactions(self) -> list[TransactionDescription]:
        """Return the transactional ids of the broker."""
        listed = self._ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest())
        if listed.error_code:
            raise self._refused("listing transactions", listed.error_code)
        return self._described([each.transactional_id for each in listed.transaction_states])

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """Return the coordinator's description of a transactional id."""
        found = self._described([transactional_id])
        if not found:
            raise TransactionalIdUnknown(transactional_id)
        return found[0]

    def _described(self, transactional_ids: list[str]) -> list[TransactionDescription]:
        """Return the descriptions of those that exist, sorted."""
        if not transactional_ids:
            return []
        answer = self._ask(ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest(transactional_ids))
        found = []
        for each in answer.transaction_states:
            if each.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            if each.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                shown = each.transactional_id
                raise CordwoodError(
                    f"describing {shown} at {self._client.address} failed: "
                    f"this needs DESCRIBE on transactional id {shown}"
                )
            if each.error_code:
                raise self._refused(f"describing {each.transactional_id}", each.error_code)
            found.append(
                TransactionDescription(
                    each.transactional_id,
                    each.transaction_state,
                    each.producer_id,
                    each.producer_epoch,
                    each.transaction_timeout_ms,
                    each.transaction_start_time_ms,
                    [(topic.topic, number) for topic in each.topics for number in topic.partitions],
                )
            )
        return sorted(found, key=lambda each: each.id)

    def abort_transaction(self, transactional_id: str, timeout_ms: int) -> None:
        """Begin as another producer of the id: the broker then fences the one before and aborts."""
        doing = f"aborting the transaction of {transactional_id}"
        own = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        producer = self._client.producer({**self._client.settings, **own})
        self._client.asked(doing, producer.init_transactions, self._client.seconds)

    # --- ACLs -------------------------------------------------------------------------------------

    def acls(self, wanted: Sequence[AclFilter], org: int) -> list[AclBinding]:
        """Return the ACLs of the listener's org."""
        return self._acls(org).find(wanted)

    def create_acls(self, acls: Sequence[AclBinding], org: int) -> None:
        """Create ACLs of the listener's org."""
        self._acls(org).create(acls)

    def delete_acls(self, wanted: Sequence[AclFilter], org: int) -> list[AclBinding]:
        """Delete ACLs of the listener's org."""
        return self._acls(org).delete(wanted)

    def _acls(self, org: int) -> BrokerAcls:
        if org:
            found = "a broker has the ACLs of the org of each listener"
            raise CordwoodError(f"{found}: use the address of one of org {org}, without --org")
        return BrokerAcls(self._client)

    # --- users ------------------------------------------------------------------------------------

    def users(self) -> list[UserRow]:
        """Return the users of the broker."""
        return BrokerUsers(self._client).find()

    def set_user(
        self, name: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int
    ) -> None:
        """Set credentials at the broker; the password stays here."""
        BrokerUsers(self._client).set(name, password, mechanisms, iterations)

    def remove_user(self, name: str, mechanisms: Sequence[ScramMechanism]) -> list[ScramMechanism]:
        """Remove credentials at the broker."""
        return BrokerUsers(self._client).remove(name, mechanisms)

    def _ask(self, api_key: ApiKey, body: object) -> Any:
        return ask(self._client.settings, api_key, 0, body, self._client.seconds)

    def _refused(self, doing: str, code: int) -> CordwoodError:
        return CordwoodError(f"{doing} at {self._client.address} failed: {ErrorCode(code).name}")

    def close(self) -> None:
        """Close the clients; a member leaves its group."""
        if self._member is not None:
            self._member.close()


def _state(state: Any) -> str:
    """Return the state of a group in the spelling of Kafka's tools: STABLE is Stable."""
    return "".join(part.capitalize() for part in str(state.name).split("_"))


def _record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Record(message.offset(), timestamp if kind else -1, message.key(), message.value(), headers)
