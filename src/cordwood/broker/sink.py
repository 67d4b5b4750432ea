"""Publishing by address: tasks of a query send frames to its staging topic, and one command publishes them.

A staging topic is like any other, but for its partition 0: a record there is a command, and it is answered
when the broker has done what it says. What tasks sent to the other partitions is written to shares, and
those are published as if the tasks had staged them on the disk of the broker. Commands may name such shares
too, for a query that sees the disk but not the lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cordwood.errors import RecordRefused, UnknownTopic
from cordwood.records import Record
from cordwood.storage.data_directory import DataDirectory
from cordwood.storage.staging import Share, Target, query_key

STAGING_PREFIX = "__cordwood_staging-"
#: The partition of a staging topic that takes commands.
COMMANDS = 0
_READ_BYTES = 8 << 20


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
    batch: int
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


class Sink:
    """Obeys commands. Everything here blocks on the disk; callable from any thread."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory

    def obey(self, topic: str, records: Sequence[Record]) -> list[Share]:
        """Publish what *records* of partition 0 of *topic* say, and return what was published.

        A batch that was published before is not published again.

        Raises:
            RecordRefused: If a record is no command of this topic, or what it names is not there.
            UnknownTopic, DiskFull, LogFailed: As `DataDirectory.publish` does.
        """
        published = []
        for record in records:
            try:
                command = _COMMAND.decode(record.value or b"")
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise RecordRefused(f"a record that is no command: {error}") from None
            if staging_topic(command.query) != topic:
                raise RecordRefused(f"a command of {command.query} in {topic}")
            published += self._publish(topic, command)
        return published

    def _publish(self, topic: str, command: Command) -> list[Share]:
        directory = self._directory
        entry = directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic(f"there is no topic {topic}")
        # All that is staged now is of this batch or an earlier one: the next begins after this one.
        ends = [directory.readable(topic, number).high_watermark for number in range(entry.partitions)]
        shares: list[Share] = list(command.shares)
        if directory.promised(command.query) < command.batch:
            for staged in command.staged:
                shares += self._take(topic, command, staged)
        new = directory.publish(command.query, command.batch, shares, remember=command.remember)
        for number, end in enumerate(ends):
            log = directory.find_partition(topic, number)
            if log is not None:
                log.advance_log_start(end)
        return shares if new else []

    def _take(self, topic: str, command: Command, staged: StagedFrames) -> tuple[Share, ...]:
        """Write the frames that a task sent to a share."""
        writer = self._directory.stage(command.query, command.batch, staged.task)
        try:
            frames = 0
            for key, frame in self._frames(topic, staged):
                writer.append(Target(key.topic, key.topic_id, key.partition), frame)
                frames += 1
            if frames != staged.frames:
                raise RecordRefused(f"task {staged.task} sent {staged.frames} frames; {frames} are here")
            return writer.finish()
        except BaseException:
            writer.discard()
            raise

    def _frames(self, topic: str, staged: StagedFrames) -> Iterator[tuple[FrameKey, bytearray]]:
        log = self._directory.readable(topic, staged.partition)
        offset, end = max(staged.start, log.log_start_offset), min(staged.end, log.high_watermark)
        while offset < end:
            fetched = log.read(offset, _READ_BYTES)
            for run in fetched.runs:
                for position in run.positions():
                    for record in run.format.decode(run.buffer, position):
                        if staged.start <= record.offset < staged.end:
                            try:
                                key = _KEY.decode(record.key or b"")
                            except (msgspec.MsgspecError, UnicodeDecodeError):
                                raise RecordRefused(f"{topic}: a record that is no frame") from None
                            if key.task == staged.task:
                                yield key, bytearray(record.value or b"")
            offset = fetched.next_offset
