"""Publishing by address: tasks of a query send frames to its staging topic, and one command publishes them.

A staging topic is like any other, but for its partition 0: a record there is a command, and it is answered
when the broker has done what it says. What tasks sent to the other partitions is written to shares, and
those are published as if the tasks had staged them on the disk of the broker. Commands may name such shares
too, for a query that sees the disk but not the lock.

A staging topic is of an org, and so is everything that its commands name: queries and topics are called what
clients of that org call them. Only in org 0 may a command name shares of topics of any org, as the
catalogue calls them: those were written by somebody who has the disk before them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec

from cordwood import tenancy
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.errors import CordwoodError, RecordRefused, StorageError, UnknownTopic
from cordwood.records import Record
from cordwood.storage.directory import DataDirectory
from cordwood.storage.meta import SHARED_TOPIC
from cordwood.storage.sink import Share, ShareWriter, StagedTarget, query_key

STAGING_PREFIX = "__cordwood_staging-"
#: The partition of a staging topic that takes commands.
COMMANDS = 0
_READ_BYTES = 8 << 20
#: Topics that the broker alone writes.
_NOT_TO_WRITE = frozenset({OFFSETS_TOPIC, SHARED_TOPIC})


class StagedFrames(msgspec.Struct, frozen=True):
    """What one attempt at a task sent to a staging topic.

    Its records are among those at offsets [start, end) of ``partition``: the ones whose key begins with
    ``task``. Each has one frame for a value.
    """

    task: str
    partition: int
    start: int
    end: int
    frames: int


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Publish a batch of a query: shares in their order, then frames in theirs."""

    query: str
    batch: Annotated[int, msgspec.Meta(ge=0)]
    remember: bool = True
    shares: tuple[Share, ...] = ()
    staged: tuple[StagedFrames, ...] = ()


class FrameKey(msgspec.Struct, frozen=True, array_like=True):
    """The key of a staged frame: who sent it, and for which partition."""

    task: str
    topic: str
    topic_id: str
    partition: int


_COMMAND = msgspec.json.Decoder(Command)
_KEY = msgspec.json.Decoder(FrameKey)


def staging_topic(query: str) -> str:
    """Return the name of the topic that a query stages in."""
    return STAGING_PREFIX + query_key(query)


def is_command(topic: str, partition: int) -> bool:
    """Return whether records of this partition are commands."""
    return partition == COMMANDS and topic.startswith(STAGING_PREFIX)


class SinkCommands:
    """Obeys commands. Everything here blocks on the disk; callable from any thread."""

    def __init__(self, directory: DataDirectory, delete_topic: Callable[[str], None]) -> None:
        self._directory = directory
        self._delete_topic = delete_topic

    def execute(self, topic: str, records: Sequence[Record]) -> list[Share]:
        """Publish what *records* of partition 0 of *topic* say, and return what was published.

        A batch that was published before is not published again.

        Raises:
            RecordRefused: If a record is no command of this topic, or what it names is not there.
            UnknownTopic, DiskFull, LogFailed: As `Publisher.publish` does.
        """
        published = []
        for record in records:
            try:
                command = _COMMAND.decode(record.value or b"")
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise RecordRefused(f"a record that is no command: {error}") from None
            name, org = tenancy.split(topic)
            if staging_topic(command.query) != name or not tenancy.is_client_id(command.query):
                raise RecordRefused(f"a command of {command.query} in {name}")
            published += self._publish(topic, _scoped(command, org), org)
        return published

    def collect_abandoned(self, before_ms: int) -> list[str]:
        """Delete staging topics whose newest record is older than *before_ms*; return their names.

        What no query came back for in that time, none will. Only where the times are those of appending: a
        client's clock may be anything.
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

    def _publish(self, topic: str, command: Command, org: int) -> list[Share]:
        directory = self._directory
        entry = directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic.named(topic)
        # All that is staged now is of this batch or an earlier one: the next begins after this one.
        ends = [
            directory.partitions.readable(topic, number).high_watermark for number in range(entry.partitions)
        ]
        if command.batch <= directory.publisher.promised(command.query):
            # What is staged is of the next batch by now, but for shares of this one, which go.
            directory.publisher.publish(command.query, command.batch, ())
            return []
        shares: list[Share] = list(command.shares)
        writers: list[ShareWriter] = []
        try:
            for staged in command.staged:
                writers.append(directory.publisher.stage(command.query, command.batch, staged.task))
                shares += self._take(topic, staged, writers[-1], org)
            new = directory.publisher.publish(command.query, command.batch, shares, remember=command.remember)
        except CordwoodError:
            # Asked for again, it is all taken from the topic again.
            if directory.publisher.promised(command.query) < command.batch:
                for writer in writers:
                    writer.discard()
            raise
        for number, end in enumerate(ends):
            log = directory.partitions.find(topic, number)
            if log is not None:
                log.advance_log_start(end)
        return shares if new else []

    def _take(self, topic: str, staged: StagedFrames, writer: ShareWriter, org: int) -> tuple[Share, ...]:
        """Write the frames that a task sent to a share."""
        frames = 0
        for key, frame in self._frames(topic, staged):
            if tenancy.MARK in key.topic or key.topic in _NOT_TO_WRITE:
                raise RecordRefused(f"{key.topic} is no topic to publish to")
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
                            raise RecordRefused(f"{topic}: a record that is no frame") from None
                        if key.task == staged.task:
                            yield key, bytearray(record.value or b"")
            offset = fetched.next_offset


def _scoped(command: Command, org: int) -> Command:
    """Return *command* with its query as it is called inside: that of another org has batches of its own.

    Raises:
        RecordRefused: If it names a share of another org's topic, or of one of the broker's own.
    """
    for section in (section for share in command.shares for section in share.sections):
        elsewhere = org and not section.topic.endswith(tenancy.qualify("", org))
        if elsewhere or section.topic in _NOT_TO_WRITE:
            raise RecordRefused(f"a share of {section.topic}, which is no topic to publish to")
    return msgspec.structs.replace(command, query=tenancy.qualify_id(command.query, org))
