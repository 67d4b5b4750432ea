"""A partition in the shared log, implementing `WritablePartition`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
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
from cordwood.formats import BATCH, FrameSlot, Marker, ReceivedFrame, Row, batch
from cordwood.formats.shared import Owner, topic_hash_bytes
from cordwood.kernels import INT32_MAX, Buffer
from cordwood.records import Header
from cordwood.storage.log import (
    AbortedEntry,
    Admit,
    Appended,
    AppendSlot,
    Epoch,
    Fetched,
    KnownProducer,
    OpenTransaction,
    Spool,
    Standing,
    TruncationReport,
    VisibilityHold,
    check_admitted,
    check_encoded,
    codec_of,
)
from cordwood.storage.meta import TopicEntry
from cordwood.storage.shared.log import SharedLog
from cordwood.storage.shared.offsets import VirtualPartition
from cordwood.storage.shared.reading import VirtualReader
from cordwood.tenancy import split


def owner_of(topic: str, partition: int) -> Owner:
    """Return the owner in the frames of a partition; *topic* is the catalogue's name."""
    name, org = split(topic)
    return Owner(org, topic_hash_bytes(org, name), partition)


class VirtualState(NamedTuple):
    """The stored state of a partition in the shared log; other partitions have `partition.json`."""

    topic: str
    topic_id: str
    partition: int
    record_format: str = "batch"


class VirtualLog:
    """Append and read one partition of the shared log; see `PartitionLog`, whose contract applies.

    Any thread may call any method.
    """

    format = BATCH

    def __init__(
        self,
        shared: SharedLog,
        entry: TopicEntry,
        partition: int,
        config: TopicConfig,
        producer_expiration_ms: Callable[[], int],
    ) -> None:
        """Load the partition from the shared log, or create it.

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
            #: The shared log's data about this partition.
            self.part: VirtualPartition = shared.topics.use(
                self.owner, config.initial_offset, shared.log.log_end_offset
            )
        self._failure: LogFailed | None = None
        self._closed = False
        self.check_invariants()

    def check_invariants(self) -> None:
        """Check that the partition is the one that this log is named after. Takes constant time.

        Raises:
            AssertionError: If it is another one: a fault of this code.
        """
        assert self.part.owner == self.owner, "the partition of another owner"

    # --- where it stands ---------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The directory of the shared log."""
        return self._shared.log.directory

    @property
    def state(self) -> VirtualState:
        """The stored state of the partition, without its records."""
        return VirtualState(self._entry.name, self._entry.id, self._partition)

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that records are appended under: that of the shared log."""
        return self._shared.log.leader_epoch

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The leader epochs of the shared log, each with the offset of this partition that it begins at."""
        below = self.part.offsets.below
        return tuple(Epoch(each.epoch, below(each.start_offset)) for each in self._shared.log.epochs)

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
        # The end of the shared log first: what is held back after that lies above it.
        end_id = self._shared.log.high_watermark
        return self.part.shown.readable_below(end_id)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark if none is open below it."""
        return self.part.stable_below(self.high_watermark)

    @property
    def standing(self) -> Standing:
        """The offsets that a client is told, of one moment."""
        high_watermark = self.high_watermark
        return high_watermark, self.part.offsets.start, self.part.stable_below(high_watermark)

    @property
    def unsynced_records(self) -> int:
        """The number of appended records that are not synced."""
        offsets, log = self.part.offsets, self._shared.log
        # Under a weak sync policy of the shared log, visible records may be unsynced.
        return offsets.end - offsets.below(log.log_end_offset - log.unsynced_records)

    @property
    def failure(self) -> LogFailed | None:
        """Why the partition refuses appends; None if it does not."""
        return self._failure or self._shared.log.failure

    def id_of(self, offset: int) -> int:
        """Return the id in the shared log of the record at *offset*, which can be read."""
        return self.part.offsets.id_of(offset)

    def size(self) -> int:
        """Return the bytes of the frames that can be read."""
        return self.part.size

    def is_over_retention(self) -> bool:
        """Return False: maintenance of the shared log frees the space of all its partitions together."""
        return False

    # --- appending ---------------------------------------------------------------------------------

    def append(self, rows: Iterable[Row], expected_offset: int | None = None) -> Appended:
        """Append rows as one batch, whole or not at all. Written, not durable; see `PartitionLog.append`."""

        def make(slot: AppendSlot) -> tuple[Buffer, int, int]:
            place = self._frame_slot(slot, self.config.max_message_bytes)
            encoded = BATCH.encode(rows, place, slot.now_ms, codec_of(self.config))
            check_encoded(encoded, self.config, slot.now_ms)
            return encoded.data, encoded.next_offset - self.part.offsets.end, encoded.max_timestamp

        with self._shared.lock:
            self._check()
            if expected_offset is not None and expected_offset != self.log_end_offset:
                raise UnexpectedOffset(expected_offset, self.log_end_offset)
            appended = self._shared.append(self.part, make)
            self.check_invariants()
        return appended

    def _frame_slot(self, slot: AppendSlot, size_max: int = INT32_MAX) -> FrameSlot:
        """Return the place of the next batch. With the shared log's lock held."""
        append_timestamp = slot.now_ms if self._log_append_time else None
        return FrameSlot(self.part.offsets.end, slot.leader_epoch, append_timestamp, size_max)

    def append_received(
        self, frame: ReceivedFrame, *, promised: bool = False, admit: Admit | None = None
    ) -> Appended:
        """Append a client's batch unless it is a duplicate; see `PartitionLog.append_received`."""
        given = -1
        now_ms = 0

        def make(slot: AppendSlot) -> tuple[Buffer, int, int]:
            nonlocal given, now_ms
            now_ms = slot.now_ms
            placed = BATCH.place(frame, self._frame_slot(slot))
            if self._log_append_time:
                given = placed.max_timestamp
            return placed.data, frame.record_count, placed.max_timestamp

        with self._shared.lock:
            self._check()
            stamp, producers = frame.stamp, self.part.producers
            if stamp is not None:
                original = None if producers is None else producers.find_original(stamp)
                if original is not None:
                    return Appended(original.base_offset, original.next_offset)
                if stamp.transactional:
                    check_admitted(stamp, admit)
            appended = self._shared.append(self.part, make)
            if stamp is not None and self.part.producers is not None:
                self.part.producers.expire(now_ms - self._expiration_ms())
            self.check_invariants()
        return appended._replace(append_timestamp=given)

    def append_marker(self, marker: Marker) -> Appended:
        """Append the end of a producer's transaction; see `PartitionLog.append_marker`."""

        def make(slot: AppendSlot) -> tuple[Buffer, int, int]:
            encoded = BATCH.encode_marker(marker, self._frame_slot(slot), slot.now_ms)
            return encoded.data, 1, encoded.max_timestamp

        with self._shared.lock:
            self._check()
            if self.part.producers is not None:
                self.part.producers.check_marker(marker)
            appended = self._shared.append(self.part, make)
            self.check_invariants()
        # Readers of committed records may go on before the marker is synced.
        self._shared.log.show_ended()
        return appended

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that have not ended; see `PartitionLog.open_transactions`."""
        with self._shared.lock:
            self._check()
            known = self.part.producers
            return [] if known is None else known.open_transactions()

    def producers(self) -> list[KnownProducer]:
        """Return the state of each idempotent producer; see `PartitionLog.producers`."""
        with self._shared.lock:
            self._check()
            known = self.part.producers
            return [] if known is None else known.heard_of(self._shared.now_ms() - self._expiration_ms())

    def producer_epochs(self) -> dict[int, int]:
        """Return the newest epoch of each producer; see `PartitionLog.producer_epochs`."""
        with self._shared.lock:
            self._check()
            known = self.part.producers
            return {} if known is None else known.epochs()

    def append_stream(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        timestamp: int | None,
        spooled: Spool,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append one record whose value is *spooled*, which is read into memory."""
        value = b"".join(spooled.chunks())
        row = (key, value, tuple(headers)) if timestamp is None else (key, value, tuple(headers), timestamp)
        return self.append([row], expected_offset)

    def stream_bytes_max(self) -> int:
        """Return the largest size of a stream in bytes."""
        return self.config.max_message_bytes

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Block appends of other threads, so that the next offsets are known in advance."""
        with self._shared.lock:
            self._check()
            yield

    def hold_back(self, hold: VisibilityHold) -> None:
        """Keep what is appended from now on from readers; see `PartitionLog.hold_back`.

        If the publication fails, only this partition stays held back, not the whole shared log.
        """
        self.part.held_back = (hold, self.part.offsets.end)

    def show_held_back(self) -> None:
        """Wake those who wait for what a hold, which has ended, kept from readers."""
        held = self.part.held_back
        assert held is None or held[0].ended, "readers are woken before they can see anything"
        self.part.held_back = None
        self._shared.log.wake_followers()

    def commit(self, offset: int | None = None) -> None:
        """Return once all records below *offset* (None: all appended ones) are durable."""
        self._check()
        offsets = self.part.offsets
        end = offsets.end if offset is None else min(offset, offsets.end)
        self._shared.commit(offsets.id_of(end - 1) + 1 if end > offsets.start else 0)

    def settle(self, appended: Appended) -> None:
        """Apply the sync policy after an append; see `PartitionLog.settle`.

        The stricter policy of the topic and the shared log applies; records become visible after it.
        """
        for policy in (self.config.sync, self._shared.log.config.sync):
            if policy.mode == "each" or (policy.mode == "every" and self.unsynced_records >= policy.amount):
                self.commit(appended.next_offset)
                return

    @property
    def waits_for_remote(self) -> bool:
        """Whether a commit waits for more than the disk."""
        return self._shared.log.waits_for_remote

    def begin_sync(self) -> Callable[[], None]:
        """Return what commits: all partitions of the shared log share one wait."""
        return self.commit

    def commit_quietly(self) -> None:
        """Commit unsynced records. A failure is stored and raised to the next caller."""
        with contextlib.suppress(LogFailed, LogClosed):
            self.commit()

    @property
    def _log_append_time(self) -> bool:
        return self.config.message_timestamp_type == "LogAppendTime"

    # --- reading -----------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return whole batches from the one that holds *offset* on; see `PartitionLog.read`."""
        self._check_open()

        def found(reader: VirtualReader) -> Fetched:
            if committed:
                return reader.read_committed(self.part, offset, max_bytes, stop)
            return reader.read(self.owner, self.part.shown, offset, max_bytes, stop)

        return self._shared.with_reader(found)

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record at or after *timestamp*, exactly."""
        self._check_open()
        return self._shared.with_reader(
            lambda reader: reader.offset_at(self.owner, self.part.shown, timestamp)
        )

    def newest(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record with the largest timestamp."""
        self._check_open()
        return self._shared.with_reader(lambda reader: reader.newest(self.owner, self.part.shown))

    def aborted(self, start: int, stop: int) -> list[AbortedEntry]:
        """Return the aborted transactions that may have records in [start, stop), by their markers."""
        self._check_open()
        transactions = self.part.transactions
        return [] if transactions is None else transactions.aborted_within(start, stop)

    def wait_beyond(self, offset: int, *, committed: bool = False) -> int:
        """Wait until a record at or after *offset* is readable; see `PartitionLog.wait_beyond`."""
        while True:
            # The lock, because records may be visible in the shared log before they are added to this one.
            with self._shared.lock:
                self._check()
                seen = self._shared.log.high_watermark
                high_watermark = self.part.shown.readable_below(seen)
                end = self.part.stable_below(high_watermark) if committed else high_watermark
            if end > offset:
                return end
            if high_watermark < offset:
                raise OffsetOutOfRange(offset, self.log_start_offset, high_watermark)
            self._shared.log.wait_beyond(seen)

    # --- changing ----------------------------------------------------------------------------------

    def adopt(self, path: str, size: int) -> Appended:
        """Append the batches in the file at *path*, *size* bytes of them, and remove it. Durable on return.

        Each batch is appended atomically; a crash may leave only the first batches.
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
        """Append a stored batch with new offsets."""
        header = batch.read_header(data, size_max=INT32_MAX)

        def make(slot: AppendSlot) -> tuple[Buffer, int, int]:
            batch.place(data, 0, self.part.offsets.end, slot.leader_epoch)
            return data, header.last_offset_delta + 1, header.max_timestamp

        self._shared.append(self.part, make)

    def roll(self) -> None:
        """Seal the active segment of the shared log; see `PartitionLog.roll`."""
        self._check()
        # Between an append and its entry in the index the log must not roll: the entry has the position of
        # the frame.
        with self._shared.lock:
            self._shared.log.roll()

    def truncate(self, end_offset: int) -> TruncationReport:
        """Refuse, because records of other topics lie in between."""
        raise RecordRefused(
            f"topic {self._entry.name} is in the shared log, which cannot be truncated: "
            "delete records from its start, or create it again"
        )

    def advance_log_start(self, offset: int) -> None:
        """Set the log start to *offset*. Durable on return. Moving it back is a no-op.

        Raises:
            OffsetOutOfRange: If *offset* is above the high watermark.
        """
        self._check()
        if offset > self.high_watermark:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.high_watermark)
        if offset > self.log_start_offset:
            self._shared.set_starts([(self.part, offset)])

    def reconfigure(self, config: TopicConfig) -> None:
        """Apply *config*."""
        self.config = config

    def close(self) -> None:
        """Refuse further appends: the topic was deleted, or the directory is closed. Idempotent."""
        self._closed = True

    def fail(self, reason: str) -> None:
        """Refuse appends from now on. Other partitions of the shared log continue."""
        self._failure = LogFailed(f"partition {self._partition} of {self._entry.name}: {reason}")

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(f"partition {self._partition} of {self._entry.name} is closed")

    def _check(self) -> None:
        self._check_open()
        if self._failure is not None:
            raise self._failure
