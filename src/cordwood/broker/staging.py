"""Publishing by address: tasks of a query send frames to its staging topic, and one command publishes them.

A staging topic is like any other, except its partition 0: a record in it is a command, which is answered when
the broker has executed it. The frames that tasks sent to the other partitions are written to shares, which
are published as if the tasks had staged them on the broker's disk. Commands may also name such shares, for a
query that can access the disk but does not hold the lock.

A staging topic belongs to an org, and its commands use the names of queries and topics of that org's clients.
Only in org 0 may a command name shares of topics of any org, by their names in the catalogue: the writer of
those shares has access to the disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec

from cordwood import tenancy
from cordwood.broker.audit import AUDIT_PREFIX
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.transactions import NAME as TRANSACTIONS_TOPIC
from cordwood.errors import CordwoodError, NotAllowed, RecordRefused, StorageError, UnknownTopic
from cordwood.records import Record
from cordwood.storage.directory import DataDirectory
from cordwood.storage.meta import SHARED_TOPIC
from cordwood.storage.sink import Share, ShareWriter, StagedTarget, query_key

STAGING_PREFIX = "__cordwood_staging-"
#: The partition of a staging topic for commands.
COMMANDS = 0
_READ_BYTES = 8 << 20
#: Topics that only the broker writes.
_NOT_TO_WRITE = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARED_TOPIC})


class StagedFrames(msgspec.Struct, frozen=True):
    """The frames that one attempt of a task sent to a staging topic.

    They are the records at offsets [start, end) of ``partition`` whose key begins with ``task``. The value of
    each is one frame.
    """

    task: str
    partition: int
    start: int
    end: int
    frames: int


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command to publish a batch of a query: first the shares, then the frames, each in their order."""

    query: str
    batch: Annotated[int, msgspec.Meta(ge=0)]
    remember: bool = True
    shares: tuple[Share, ...] = ()
    staged: tuple[StagedFrames, ...] = ()


class FrameKey(msgspec.Struct, frozen=True, array_like=True):
    """The key of a staged frame: its task and its target partition."""

    task: str
    topic: str
    topic_id: str
    partition: int


_COMMAND = msgspec.json.Decoder(Command)
_KEY = msgspec.json.Decoder(FrameKey)


def staging_topic(query: str) -> str:
    """Return the name of the staging topic of a query."""
    return STAGING_PREFIX + query_key(query)


def is_command(topic: str, partition: int) -> bool:
    """Return whether records of this partition are commands."""
    return partition == COMMANDS and topic.startswith(STAGING_PREFIX)


class SinkCommands:
    """Executes commands. Every method blocks on the disk and may be called from any thread."""

    def __init__(self, directory: DataDirectory, delete_topic: Callable[[str], None]) -> None:
        self._directory = directory
        self._delete_topic = delete_topic

    def execute(
        self, topic: str, records: Sequence[Record], permits: Callable[[str], bool] = lambda name: True
    ) -> list[Share]:
        """Execute the commands in *records* of partition 0 of *topic*; return the published shares.

        A batch that is already published is not published again. *permits* returns whether the sender of the
        command may write to a topic, which is given by the name that clients of its org use.

        Raises:
            NotAllowed: If *permits* refuses a topic. Nothing of the command was published.
            RecordRefused: If a record is not a command of this topic, or the frames it names are missing.
            UnknownTopic, DiskFull, LogFailed: Like `Publisher.publish`.
        """
        published = []
        for record in records:
            try:
                command = _COMMAND.decode(record.value or b"")
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise RecordRefused(f"a record is not a command: {error}") from None
            name, org = tenancy.split(topic)
            if staging_topic(command.query) != name or not tenancy.is_client_id(command.query):
                raise RecordRefused(f"a command of {command.query} in {name}")
            published += self._publish(topic, _scoped(command, org, permits), org, permits)
        return published

    def collect_abandoned(self, before_ms: int) -> list[str]:
        """Delete staging topics whose newest record is older than *before_ms*; return their names.

        After that time no query will use them. Only topics with append times are considered: a client's clock
        may be wrong.
        """
        directory, gone = self._directory, []
        for name, entry in list(directory.topics.items()):
            config = directory.config_of(entry.config)
            if name.startswith(STAGING_PREFIX) and config.message_timestamp_type == "LogAppendTime":
                with contextlib.suppress(StorageError):
                    logs = [directory.partitions.find(name, number) for number in range(entry.partitions)]
                    newest = [found for log in logs if log is not None and (found := log.newest())]
                    if newest and max(timestamp for _, timestamp in newest) < before_ms:
                        self._delete_topic(name)
                        gone.append(name)
        return gone

    def _publish(self, topic: str, command: Command, org: int, permits: Callable[[str], bool]) -> list[Share]:
        directory = self._directory
        entry = directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic.named(topic)
        # All staged frames are of this batch or an earlier one: the next batch begins after this one.
        ends = [
            directory.partitions.readable(topic, number).high_watermark for number in range(entry.partitions)
        ]
        if command.batch <= directory.publisher.promised(command.query):
            # The staged frames are of the next batch by now; shares of this batch are removed.
            directory.publisher.publish(command.query, command.batch, ())
            return []
        shares: list[Share] = list(command.shares)
        writers: list[ShareWriter] = []
        try:
            for staged in command.staged:
                writers.append(directory.publisher.stage(command.query, command.batch, staged.task))
                shares += self._take(topic, staged, writers[-1], org, permits)
            new = directory.publisher.publish(command.query, command.batch, shares, remember=command.remember)
        except CordwoodError:
            # If the command is sent again, all frames are read from the topic again.
            if directory.publisher.promised(command.query) < command.batch:
                for writer in writers:
                    writer.discard()
            raise
        for number, end in enumerate(ends):
            log = directory.partitions.find(topic, number)
            if log is not None:
                log.advance_log_start(end)
        return shares if new else []

    def _take(
        self,
        topic: str,
        staged: StagedFrames,
        writer: ShareWriter,
        org: int,
        permits: Callable[[str], bool],
    ) -> tuple[Share, ...]:
        """Write the frames of a task to a share."""
        frames, allowed = 0, set[str]()
        for key, frame in self._frames(topic, staged):
            if tenancy.MARK in key.topic or not _may_publish_to(key.topic):
                raise RecordRefused(f"{key.topic} is not a topic to publish to")
            if key.topic not in allowed:
                if not permits(key.topic):
                    raise NotAllowed("WRITE", key.topic)
                allowed.add(key.topic)
            writer.append(StagedTarget(tenancy.qualify(key.topic, org), key.topic_id, key.partition), frame)
            frames += 1
        if frames != staged.frames:
            raise RecordRefused(f"task {staged.task} sent {staged.frames} frames; {frames} are here")
        return writer.finish()

    def _frames(self, topic: str, staged: StagedFrames) -> Iterator[tuple[FrameKey, bytearray]]:
        log = self._directory.partitions.readable(topic, staged.partition)
        offset, end = max(staged.start, log.log_start_offset), min(staged.end, log.high_watermark)
        while offset < end:
            fetched = log.read(offset, _READ_BYTES)
            for run in fetched.runs:
                for record in run.records():
                    if staged.start <= record.offset < staged.end:
                        try:
                            key = _KEY.decode(record.key or b"")
                        except (msgspec.MsgspecError, UnicodeDecodeError):
                            raise RecordRefused(f"{topic}: a record is not a frame") from None
                        if key.task == staged.task:
                            yield key, bytearray(record.value or b"")
            offset = fetched.next_offset


def _may_publish_to(topic: str) -> bool:
    return topic not in _NOT_TO_WRITE and not topic.startswith(AUDIT_PREFIX)


def _scoped(command: Command, org: int, permits: Callable[[str], bool]) -> Command:
    """Return *command* with the internal name of its query: queries of different orgs have separate batches.

    Raises:
        RecordRefused: If it names a share of another org's topic or of an internal topic.
        NotAllowed: If *permits* refuses a topic of a share.
    """
    for section in (section for share in command.shares for section in share.sections):
        elsewhere = org and not section.topic.endswith(tenancy.qualify("", org))
        if elsewhere or not _may_publish_to(section.topic):
            raise RecordRefused(f"a share of {section.topic}, which is not a topic to publish to")
        # Clients of org 0 know topics of other orgs by their names in the catalogue.
        name = tenancy.split(section.topic).name if org else section.topic
        if not permits(name):
            raise NotAllowed("WRITE", name)
    return msgspec.structs.replace(command, query=tenancy.qualify_id(command.query, org))
