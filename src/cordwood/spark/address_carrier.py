"""Writing by address: frames to a staging topic and one command; plain records to a broker of others."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from cordwood.broker.sink import COMMANDS, Command, FrameKey, StagedFrames, staging_topic
from cordwood.errors import ConfigError, CordwoodError, UnknownTopic
from cordwood.formats.native import BatchFormat
from cordwood.spark.carriers import Carrier, Stage, Staged
from cordwood.spark.encoding import Destination
from cordwood.storage.staging import Target

#: Partitions of a staging topic: one for commands, the others for frames.
STAGING_PARTITIONS = 9
SECONDS_MAX = 60.0
#: A command is answered when the batch is published, which may take a while; then asking again does no harm.
PUBLISH_SECONDS_MAX = 600
#: A frame and what a batch of one record has around it.
_FRAME_BYTES_MAX = 64 << 20
_OURS = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def open_address(client: Mapping[str, str]) -> Carrier:
    """Return the way to the broker at an address: all or nothing if it is ours, at least once if not.

    Raises:
        ConfigError: If the client does not take a setting.
        CordwoodError: If nobody answers.
    """
    carrier = AddressCarrier(client)
    if carrier.is_ours():
        return carrier
    return ForeignCarrier(client)


class AddressCarrier:
    """A broker of ours; see `Carrier`."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = dict(client)
        try:
            self._admin = AdminClient({"log_level": 0, **self._client})
        except KafkaException as error:
            raise ConfigError("kafka.", f"the client refuses a kafka. option: {_said(error)}") from None

    @property
    def _address(self) -> str:
        return self._client["bootstrap.servers"]

    def is_ours(self) -> bool:
        """Return whether the broker is one that publishes. Ours call themselves by a UUID, Kafka's do not."""
        try:
            cluster = self._admin.list_topics(timeout=SECONDS_MAX).cluster_id
        except KafkaException as error:
            raise CordwoodError(f"{self._address} does not answer: {_said(error)}") from None
        return _OURS.fullmatch(cluster or "") is not None

    def ensure_topic(self, topic: str) -> None:
        """Create the topic if it is missing, as the broker does by default."""
        self._create(NewTopic(topic, -1, -1))

    def destination(self, topic: str) -> Destination:
        """Return what the broker says of a topic."""
        try:
            described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=SECONDS_MAX)
            found = described[topic].result()
            resource = ConfigResource(ResourceType.TOPIC, topic)
            asked = self._admin.describe_configs([resource], request_timeout=SECONDS_MAX)
            config = asked[resource].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise UnknownTopic(f"there is no topic {topic} at {self._address}") from None
            raise CordwoodError(f"asking {self._address} for {topic} failed: {_said(error)}") from None
        bits = found.topic_id.get_most_significant_bits() % (1 << 64) << 64
        bits |= found.topic_id.get_least_significant_bits() % (1 << 64)
        return Destination(
            topic,
            str(uuid.UUID(int=bits)),
            len(found.partitions),
            int(config["max.message.bytes"].value),
            config["cleanup.policy"].value != "delete",
        )

    def stage(self, query: str, batch: int, task: str) -> Stage:
        """Return a producer to the staging topic of the query, which is made for it."""
        self._create_staging(query)
        return AddressStage(self._producer(), staging_topic(query), task)

    def publish(self, query: str, batch: int, staged: Sequence[Staged], *, remember: bool) -> None:
        """Send the command, and wait until it is obeyed."""
        self._create_staging(query)
        command = Command(
            query=query,
            batch=batch,
            remember=remember,
            shares=tuple(share for each in staged for share in each.shares),
            staged=tuple(each.sent for each in staged if each.sent is not None),
        )
        producer = self._producer()
        refused: list[KafkaError] = []
        producer.produce(
            staging_topic(query),
            msgspec.json.encode(command),
            partition=COMMANDS,
            on_delivery=lambda error, _: refused.append(error) if error is not None else None,
        )
        left = producer.flush(PUBLISH_SECONDS_MAX)
        if left or refused:
            reason = refused[0].str() if refused else "it does not answer"
            raise CordwoodError(f"{self._address} did not publish batch {batch} of {query}: {reason}")
        if not remember:
            self._delete(staging_topic(query))

    def abandon(self, query: str, batch: int, staged: Sequence[Staged], *, remember: bool) -> None:
        """Remove the staging topic of a query that has no second try; else the next command clears it."""
        if not remember:
            self._delete(staging_topic(query))

    def close(self) -> None:
        """Let go."""

    def _producer(self) -> Producer:
        return Producer(
            {
                "log_level": 0,
                "linger.ms": 0,
                # What one task has on its way; Spark limits its memory.
                "queue.buffering.max.kbytes": 64 << 10,
                "message.max.bytes": _FRAME_BYTES_MAX,
                **self._client,
                "acks": "all",
                "enable.idempotence": True,
                "request.timeout.ms": PUBLISH_SECONDS_MAX * 1000,
                "message.timeout.ms": PUBLISH_SECONDS_MAX * 1000,
            }
        )

    def _create_staging(self, query: str) -> None:
        # By the clock of the broker, which removes what nobody comes back for.
        config = {"max.message.bytes": str(_FRAME_BYTES_MAX), "message.timestamp.type": "LogAppendTime"}
        self._create(NewTopic(staging_topic(query), STAGING_PARTITIONS, 1, config=config))

    def _create(self, topic: NewTopic) -> None:
        (made,) = self._admin.create_topics([topic], request_timeout=SECONDS_MAX).values()
        try:
            made.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise CordwoodError(f"creating a topic at {self._address} failed: {_said(error)}") from None

    def _delete(self, topic: str) -> None:
        (gone,) = self._admin.delete_topics([topic], request_timeout=SECONDS_MAX).values()
        # Missing is as good; what stays is only in the way.
        gone.exception()


class _Sending:
    """Sends with a producer and remembers what became of it. One user."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._failed: KafkaError | None = None
        self.sent = 0
        self.offsets: list[int] = []

    def send(self, topic: str, value: bytes | None, key: bytes | None, partition: int, **more: Any) -> None:
        """Hand over a record, waiting while the producer has enough on its way."""
        self.sent += 1
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=self._delivered, **more)
                return
            except BufferError:
                self._producer.poll(0.1)

    def check(self) -> None:
        """Take note of what was answered.

        Raises:
            CordwoodError: If something was refused.
        """
        self._producer.poll(0)
        if self._failed is not None:
            raise CordwoodError(f"the broker refused a record: {self._failed.str()}")

    def finish(self) -> None:
        """Wait until all is acknowledged. Raises as `check` does, or if that takes too long."""
        left = self._producer.flush(PUBLISH_SECONDS_MAX)
        self.check()
        if left:
            raise CordwoodError(f"{left} records were not acknowledged in time")

    def discard(self) -> None:
        """Send no more."""
        self._producer.purge()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = error
        else:
            offset = message.offset()
            assert offset is not None
            self.offsets.append(offset)


class AddressStage:
    """Frames in a staging topic; see `Stage`. What is discarded is cleared with the next command."""

    def __init__(self, producer: Producer, topic: str, task: str) -> None:
        self._sending = _Sending(producer)
        self._topic = topic
        self._task = task
        # Attempts of many tasks share the partitions; any will do.
        self._partition = 1 + uuid.uuid4().int % (STAGING_PARTITIONS - 1)
        self.discard = self._sending.discard

    def append(self, target: Target, frame: bytearray) -> None:
        """Send a frame."""
        key = msgspec.json.encode(FrameKey(self._task, target.topic, target.topic_id, target.partition))
        self._sending.send(self._topic, bytes(frame), key, self._partition)
        self._sending.check()

    def finish(self) -> Staged:
        """Wait until all frames are durable."""
        self._sending.finish()
        offsets = self._sending.offsets
        if not offsets:
            return Staged()
        start, end = min(offsets), max(offsets) + 1
        return Staged(sent=StagedFrames(self._task, self._partition, start, end, self._sending.sent))


class ForeignCarrier(AddressCarrier):
    """A broker that is not ours: records go straight to their topics, at least once. See `Carrier`."""

    def stage(self, query: str, batch: int, task: str) -> Stage:
        """Return a producer to the topics themselves."""
        return ForeignStage(self._producer())

    def publish(self, query: str, batch: int, staged: Sequence[Staged], *, remember: bool) -> None:
        """Do nothing: what the tasks sent is there already."""

    def abandon(self, query: str, batch: int, staged: Sequence[Staged], *, remember: bool) -> None:
        """Do nothing: what the tasks sent cannot be taken back."""


class ForeignStage:
    """Records of frames, sent one by one; see `Stage`."""

    def __init__(self, producer: Producer) -> None:
        self._sending = _Sending(producer)
        self._format = BatchFormat()
        self.discard = self._sending.discard

    def append(self, target: Target, frame: bytearray) -> None:
        """Send the records of a frame."""
        for record in self._format.decode(frame, 0):
            more: dict[str, Any] = {"headers": list(record.headers)} if record.headers else {}
            self._sending.send(
                target.topic, record.value, record.key, target.partition, timestamp=record.timestamp, **more
            )
        self._sending.check()

    def finish(self) -> Staged:
        """Wait until all records are acknowledged."""
        self._sending.finish()
        return Staged()


def _said(error: KafkaException) -> str:
    found = error.args[0]
    return found.str() if isinstance(found, KafkaError) else str(found)
