"""A partition in the shared log, with the face of a partition log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cordwood.config import TopicConfig
from cordwood.errors import (
    LogClosed,
    LogFailed,
    OffsetOutOfRange,
    RecordRefused,
    StorageError,
    UnexpectedOffset,
)
from cordwood.formats import batch
from cordwood.formats.envelope import Owner
from cordwood.formats.format import ProducerStamp, ReceivedFrame, Row
from cordwood.formats.registry import BATCH
from cordwood.formats.topic_hash import topic_hash_bytes
from cordwood.kernels import Buffer
from cordwood.kernels.layout import INT32_MAX
from cordwood.records import Header
from cordwood.storage.catalogue import TopicEntry
from cordwood.storage.partition_log import Appended, PartitionLog, TruncationReport, Turn
from cordwood.storage.partition_state import Epoch
from cordwood.storage.producers import Producers
from cordwood.storage.shared_log import SharedLog
from cordwood.storage.spool import Spool
from cordwood.storage.view import Fetched
from cordwood.storage.virtual_topics import VirtualPartition
from cordwood.tenancy import split


def owner_of(topic: str, partition: int) -> Owner:
    """Return whom the frames of a partition name, for a topic as the catalogue calls it."""
    name, org = split(topic)
    return Owner(org, topic_hash_bytes(org, name), partition)


class VirtualState(NamedTuple):
    """What is said of a partition in the shared log, as `partition.json` says it of others."""

    topic: str
    topic_id: str
    partition: int
    log_start_offset: int
    leader_epoch: int
    epochs: tuple[Epoch, ...]
    record_format: str = "batch"


class VirtualLog:
    """Append and read one partition of the shared log; see `PartitionLog`, whose words hold here.

    Every method may be called from any thread.
    """

    format = BATCH

    def __init__(
        self,
        shared: SharedLog,
        entry: TopicEntry,
        partition: int,
        config: TopicConfig,
        producer_expiration_ms: int,
    ) -> None:
        """Take the partition as the shared log has it, or begin it.

        Raises:
            MetadataDamaged: If its frames contradict each other.
        """
        self.config = config
        self.owner = owner_of(entry.name, partition)
        self._shared = shared
        self._entry = entry
        self._partition = partition
        self._expiration_ms = producer_expiration_ms
        with shared.lock:
            #: What the shared log knows of it.
            self.part: VirtualPartition = shared.topics.use(
                self.owner, config.initial_offset, shared.log.log_end_offset
            )
        self._failure: LogFailed | None = None
        self._closed = False

    # --- where it stands ---------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """Where its records are: with those of all others."""
        return self._shared.log.directory

    @property
    def state(self) -> VirtualState:
        """What is said of the partition."""
        below = self.part.offsets
        shared = self._shared.log.state
        epochs = tuple(Epoch(each.epoch, below.below(each.start_offset)) for each in shared.epochs)
        return VirtualState(
            self._entry.name, self._entry.id, self._partition, below.start, shared.leader_epoch, epochs
        )

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.part.offsets.start

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will get."""
        return self.part.offsets.end

    @property
    def high_watermark(self) -> int:
        """The first offset that consumers may not read."""
        return self.part.offsets.below(self._shared.log.high_watermark)

    @property
    def unsynced_records(self) -> int:
        """How many records are written that no sync has covered."""
        offsets, log = self.part.offsets, self._shared.log
        # Under a weak policy of the shared log what is shown may not be synced.
        return offsets.end - offsets.below(log.log_end_offset - log.unsynced_records)

    @property
    def failure(self) -> LogFailed | None:
        """Why the partition takes no more, if it does not."""
        return self._failure or self._shared.log.failure

    def size(self) -> int:
        """Return the bytes of the frames that can be read."""
        return self.part.size

    # --- appending ---------------------------------------------------------------------------------

    def append(self, rows: Iterable[Row], expected_offset: int | None = None) -> Appended:
        """Append rows as one batch, whole or not at all. Written, not durable; see `PartitionLog.append`."""

        def make(turn: Turn) -> tuple[Buffer, int, int]:
            encoded = BATCH.encode(
                rows,
                base_offset=self.part.offsets.end,
                leader_epoch=turn.leader_epoch,
                now_ms=turn.now_ms,
                log_append_time=self._log_append_time,
                size_max=self.config.max_message_bytes,
            )
            return encoded.data, encoded.next_offset - self.part.offsets.end, encoded.max_timestamp

        with self._shared.lock:
            self._check()
            if expected_offset is not None and expected_offset != self.log_end_offset:
                raise UnexpectedOffset(expected_offset, self.log_end_offset)
            return self._shared.append(self.part, make)

    def append_received(self, frame: ReceivedFrame) -> Appended:
        """Append a batch that a client encoded, unless it is here; see `PartitionLog.append_received`."""
        given = -1
        noted_ms = 0

        def make(turn: Turn) -> tuple[Buffer, int, int]:
            nonlocal given, noted_ms
            noted_ms = turn.now_ms
            placed = BATCH.place(
                frame,
                base_offset=self.part.offsets.end,
                leader_epoch=turn.leader_epoch,
                append_timestamp=turn.now_ms if self._log_append_time else None,
            )
            if self._log_append_time:
                given = placed.max_timestamp
            return placed.data, frame.record_count, placed.max_timestamp

        with self._shared.lock:
            self._check()
            if frame.stamp is not None and self.part.producers is not None:
                original = self.part.producers.find_original(frame.stamp)
                if original is not None:
                    return Appended(original.base_offset, original.next_offset)
            appended = self._shared.append(self.part, make)
            if frame.stamp is not None:
                self._note_producer(frame.stamp, appended, noted_ms)
        return appended._replace(append_timestamp=given)

    def _note_producer(self, stamp: ProducerStamp, appended: Appended, now_ms: int) -> None:
        if self.part.producers is None:
            self.part.producers = Producers()
        self.part.producers.note(stamp, appended.base_offset, appended.next_offset, now_ms)
        self.part.producers.expire(now_ms - self._expiration_ms)

    def append_stream(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        timestamp: int | None,
        spooled: Spool,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append one record whose value is *spooled*, which is taken into memory here."""
        value = b"".join(spooled.chunks())
        row = (key, value, tuple(headers)) if timestamp is None else (key, value, tuple(headers), timestamp)
        return self.append([row], expected_offset)

    def stream_bytes_max(self) -> int:
        """Return how long a stream may be."""
        return self.config.max_message_bytes

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep appends of other threads out, so that offsets can be told in advance."""
        with self._shared.lock:
            self._check()
            yield

    def commit(self, offset: int | None = None) -> None:
        """Return once everything below *offset* (None: everything appended) is durable."""
        self._check()
        offsets = self.part.offsets
        end = offsets.end if offset is None else min(offset, offsets.end)
        self._shared.commit(offsets.id_of(end - 1) + 1 if end > offsets.start else 0)

    def settle(self, appended: Appended) -> None:
        """Do what the sync policy asks for after an append; see `PartitionLog.settle`.

        That of the topic, or of the shared log where it is stricter: nothing is shown before that.
        """
        for policy in (self.config.sync, self._shared.log.config.sync):
            if policy.mode == "each" or (policy.mode == "every" and self.unsynced_records >= policy.amount):
                self.commit(appended.next_offset)
                return

    def commit_quietly(self) -> None:
        """Commit what is not durable yet. A failure is kept for the next caller to see, not raised."""
        with contextlib.suppress(LogFailed, LogClosed):
            self.commit()

    @property
    def _log_append_time(self) -> bool:
        return self.config.message_timestamp_type == "LogAppendTime"

    # --- reading -----------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, stop: int | None = None) -> Fetched:
        """Return whole batches from the one that holds *offset* on; see `PartitionLog.read`."""
        self._check_open()
        return self._shared.looked_up(
            lambda reader: reader.read(self.owner, self.part.offsets, offset, max_bytes, stop)
        )

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record at or after *timestamp*, exactly."""
        self._check_open()
        return self._shared.looked_up(
            lambda reader: reader.offset_at(self.owner, self.part.offsets, timestamp)
        )

    def newest(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record with the largest timestamp."""
        self._check_open()
        return self._shared.looked_up(lambda reader: reader.newest(self.owner, self.part.offsets))

    def wait_beyond(self, offset: int) -> int:
        """Wait until there is a record at or after *offset* to read; see `PartitionLog.wait_beyond`."""
        while True:
            self._check()
            # Before what it is compared with, so that nothing that comes in between is slept through.
            seen = self._shared.log.high_watermark
            high_watermark = self.part.offsets.below(seen)
            if high_watermark > offset:
                return high_watermark
            if high_watermark < offset:
                raise OffsetOutOfRange(offset, self.log_start_offset, high_watermark)
            self._shared.log.wait_beyond(seen)

    # --- changing ----------------------------------------------------------------------------------

    def adopt(self, path: str, size: int) -> Appended:
        """Append the batches in the file at *path*, *size* bytes of them, and remove it. Durable on return.

        Each is appended whole; a crash may leave the first ones of them.
        """
        base = self.log_end_offset
        files = self._shared.files
        with self.held(), contextlib.closing(files.open(path, "read")) as file:
            position = 0
            while position < size:
                head = file.read_at(position, BATCH.header_size)
                frame_size = BATCH.frame_size(head)
                if frame_size is None or position + frame_size > size:
                    raise StorageError(f"{path}: there is no batch at byte {position}")
                self._append_stored(bytearray(file.read_at(position, frame_size)))
                position += frame_size
        self.commit()
        files.unlink(path)
        return Appended(base, self.log_end_offset)

    def _append_stored(self, data: bytearray) -> None:
        """Append a batch that was stored before, numbered anew."""
        header = batch.read_header(data, size_max=INT32_MAX)

        def make(turn: Turn) -> tuple[Buffer, int, int]:
            batch.place(data, 0, self.part.offsets.end, turn.leader_epoch)
            return data, header.last_offset_delta + 1, header.max_timestamp

        self._shared.append(self.part, make)

    def roll(self) -> None:
        """Seal the active segment of the shared log; see `PartitionLog.roll`."""
        self._check()
        self._shared.log.roll()

    def truncate(self, end_offset: int) -> TruncationReport:
        """Refuse: between the records of a topic are those of others."""
        raise RecordRefused(
            f"topic {self._entry.name} is in the shared log, which cannot be truncated: "
            "delete records from its start, or create it again"
        )

    def advance_log_start(self, offset: int) -> None:
        """Make *offset* the first one that can be read. Durable on return. Moving it back is a no-op.

        Raises:
            OffsetOutOfRange: If *offset* is above the high watermark.
        """
        self._check()
        if offset > self.high_watermark:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.high_watermark)
        if offset > self.log_start_offset:
            self._shared.start_all_at([(self.part, offset)])

    def reconfigure(self, config: TopicConfig) -> None:
        """Live by *config* from now on."""
        self.config = config

    def close(self) -> None:
        """Take no more: the topic was deleted, or the directory is closed. Idempotent."""
        self._closed = True

    def fail(self, reason: str) -> None:
        """Take no more from now on. Other partitions of the shared log go on."""
        self._failure = LogFailed(f"partition {self._partition} of {self._entry.name}: {reason}")

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(f"partition {self._partition} of {self._entry.name} is closed")

    def _check(self) -> None:
        self._check_open()
        if self._failure is not None:
            raise self._failure


#: A partition to append to, whether it has files of its own or not.
AnyLog = PartitionLog | VirtualLog
