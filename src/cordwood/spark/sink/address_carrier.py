"""Writing by address: frames to a staging topic and one command; plain records to a broker of others."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cordwood.broker import (
    COMMANDS,
    STAGING_PREFIX,
    Command,
    FrameKey,
    StagedFrames,
    staging_topic,
)
from cordwood.config import topic_config
from cordwood.errors import CordwoodError, NotAllowed, UnknownTopic
from cordwood.formats import BatchFormat
from cordwood.kafka_client import KafkaClient, Sender
from cordwood.spark.sink.carriers import Carrier, Stage, StagedTask
from cordwood.spark.sink.encoding import Destination
from cordwood.storage.log import codec_of
from cordwood.storage.sink import StagedTarget

#: Partitions of a staging topic: one for commands, the others for frames.
STAGING_PARTITIONS = 9
SECONDS_MAX = 60.0
#: A command is answered when the batch is published, which may take a while; then asking again does no harm.
PUBLISH_SECONDS_MAX = 600
#: A frame and what a batch of one record has around it.
_FRAME_BYTES_MAX = 64 << 20


def open_address(client: Mapping[str, str]) -> Carrier:
    """Return the way to the broker at an address: all or nothing if it is ours, at least once if not.

    Raises:
        ConfigError: If the client does not take a setting.
        CordwoodError: If the broker does not answer.
    """
    carrier = AddressCarrier(client)
    if carrier.is_ours():
        return carrier
    return ForeignCarrier(client)


#: The settings of a topic that say how its batches are compressed.
_COMPRESSION = (
    "compression.type",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
)


class AddressCarrier:
    """A Cordwood broker; see `Carrier`."""

    def __init__(self, client: Mapping[str, str]) -> None:
        """Connect as the settings *client* say.

        Raises:
            ConfigError: If the Kafka client refuses a setting.
            CordwoodError: If confluent-kafka is not installed.
        """
        self._client = KafkaClient(client, SECONDS_MAX)

    def is_ours(self) -> bool:
        """Return whether the broker is one that publishes."""
        return self._client.is_cordwood()

    def check_rights(self, topic: str | None) -> None:
        """Ask the broker what it allows; see `Carrier`."""
        self._check_topic(topic)
        try:
            self._create_staging("query", dry_run=True)
        except NotAllowed as error:
            raise CordwoodError(
                "a query that writes by address needs CREATE, WRITE and DELETE on topics whose names begin "
                f"with {STAGING_PREFIX} at {self._client.address}"
            ) from error

    def _check_topic(self, topic: str | None) -> None:
        if topic is None:
            return
        found = self._client.describe([topic], rights=True).get(topic)
        if found is not None and not found.may("WRITE"):
            raise NotAllowed("WRITE", topic, self._client.address)
        if found is not None:
            # Its settings say how to encode records.
            self._client.config_of(topic)

    def ensure_topic(self, topic: str) -> bool:
        """Create the topic if it is missing, as the broker does by default.

        Only then the client needs the right to create it.
        """
        return topic not in self._client.describe([topic]) and self._client.create(topic, None, {})

    def remove_unused(self, topic: str) -> None:
        """Remove the topic if it has no record.

        A broker deletes a topic whatever is in it, so that a record could come between looking and deleting.
        First the topic is told to take none: from then on, whatever it has stays to be seen.
        """
        self._client.alter_config(topic, {"max.message.bytes": "0"})
        used = True
        try:
            partitions = range(self.destination(topic).partitions)
            ends = self._client.ends([(topic, number) for number in partitions])
            used = any(end for _, end in ends.values())
        finally:
            if used:
                self._client.alter_config(topic, {}, ["max.message.bytes"])
        if not used:
            self._client.delete(topic)

    def destination(self, topic: str) -> Destination:
        """Return what the broker says of a topic."""
        found = self._client.describe([topic]).get(topic)
        if found is None:
            raise UnknownTopic.named(topic, f"at {self._client.address}")
        assert found.topic_id is not None
        config = self._client.config_of(topic)
        return Destination(
            topic,
            found.topic_id,
            found.partitions,
            int(config["max.message.bytes"].value),
            config["cleanup.policy"].value != "delete",
            codec_of(topic_config({name: config[name].value for name in config if name in _COMPRESSION})),
        )

    def stage(self, query: str, batch: int, task: str) -> Stage:
        """Return a producer to the staging topic of the query, which is made for it."""
        self._create_staging(query)
        return AddressStage(self._sender(), staging_topic(query), task)

    def publish(self, query: str, batch: int, staged: Sequence[StagedTask], *, remember: bool) -> None:
        """Send the command, and wait until it is obeyed."""
        self._create_staging(query)
        command = Command(
            query=query,
            batch=batch,
            remember=remember,
            shares=tuple(share for each in staged for share in each.shares),
            staged=tuple(each.sent for each in staged if each.sent is not None),
        )
        sender = self._sender()
        sender.send(staging_topic(query), msgspec.json.encode(command), partition=COMMANDS)
        try:
            sender.finish(PUBLISH_SECONDS_MAX)
        except CordwoodError as error:
            where = self._client.address
            raise CordwoodError(f"{where} did not publish batch {batch} of {query}: {error}") from error
        if not remember:
            self._delete(staging_topic(query))

    def abandon(self, query: str, batch: int, staged: Sequence[StagedTask], *, remember: bool) -> None:
        """Remove the staging topic of a query that has no second try; else the next command clears it."""
        if not remember:
            self._delete(staging_topic(query))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _sender(self) -> Sender:
        return Sender(
            self._client,
            {
                "linger.ms": 0,
                # The memory that one task may use; Spark limits it.
                "queue.buffering.max.kbytes": 64 << 10,
                "message.max.bytes": _FRAME_BYTES_MAX,
                **self._client.settings,
                "acks": "all",
                "enable.idempotence": True,
                "request.timeout.ms": PUBLISH_SECONDS_MAX * 1000,
                "message.timeout.ms": PUBLISH_SECONDS_MAX * 1000,
            },
        )

    def _create_staging(self, query: str, *, dry_run: bool = False) -> None:
        # With the broker's times, because the broker removes abandoned topics by their age.
        config = {"max.message.bytes": str(_FRAME_BYTES_MAX), "message.timestamp.type": "LogAppendTime"}
        self._client.create(staging_topic(query), STAGING_PARTITIONS, config, copies=1, dry_run=dry_run)

    def _delete(self, topic: str) -> None:
        # A topic that is missing, or stays because the broker does not answer, does no harm.
        with contextlib.suppress(CordwoodError):
            self._client.delete(topic)


class AddressStage:
    """Frames in a staging topic; see `Stage`. The next command removes discarded frames."""

    def __init__(self, sender: Sender, topic: str, task: str) -> None:
        self._sender = sender
        self._topic = topic
        self._task = task
        # Attempts of many tasks share the partitions; any will do.
        self._partition = 1 + uuid.uuid4().int % (STAGING_PARTITIONS - 1)
        self.discard = self._sender.discard

    def append(self, target: StagedTarget, frame: bytearray) -> None:
        """Send a frame."""
        key = msgspec.json.encode(FrameKey(self._task, target.topic, target.topic_id, target.partition))
        self._sender.send(self._topic, bytes(frame), key, self._partition)
        self._sender.check()

    def finish(self) -> StagedTask:
        """Wait until all frames are durable."""
        self._sender.finish(PUBLISH_SECONDS_MAX)
        offsets = self._sender.offsets
        if not offsets:
            return StagedTask()
        start, end = min(offsets), max(offsets) + 1
        return StagedTask(sent=StagedFrames(self._task, self._partition, start, end, self._sender.sent))


class ForeignCarrier(AddressCarrier):
    """A broker that is not ours: records go straight to their topics, at least once. See `Carrier`."""

    def check_rights(self, topic: str | None) -> None:
        """Ask the broker what it allows; see `Carrier`. There are no staging topics."""
        self._check_topic(topic)

    def stage(self, query: str, batch: int, task: str) -> Stage:
        """Return a producer to the topics themselves."""
        return ForeignStage(self._sender())

    def publish(self, query: str, batch: int, staged: Sequence[StagedTask], *, remember: bool) -> None:
        """Do nothing: what the tasks sent is there already."""

    def abandon(self, query: str, batch: int, staged: Sequence[StagedTask], *, remember: bool) -> None:
        """Do nothing: what the tasks sent cannot be taken back."""


class ForeignStage:
    """Records of frames, sent one by one; see `Stage`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._format = BatchFormat()
        self.discard = self._sender.discard

    def append(self, target: StagedTarget, frame: bytearray) -> None:
        """Send the records of a frame."""
        for record in self._format.decode(frame, 0):
            more: dict[str, Any] = {"headers": list(record.headers)} if record.headers else {}
            self._sender.send(
                target.topic, record.value, record.key, target.partition, timestamp=record.timestamp, **more
            )
        self._sender.check()

    def finish(self) -> StagedTask:
        """Wait until all records are acknowledged."""
        self._sender.finish(PUBLISH_SECONDS_MAX)
        return StagedTask()
