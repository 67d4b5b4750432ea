"""The interface of a partition, whether it has files of its own, is in the shared log, or has no record yet.

`Partition` can be read. `ServedPartition` belongs to a directory that this process writes, and may be unused.
`WritablePartition` can be appended to. `PartitionLog` implements all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from cordwood.config import TopicConfig
from cordwood.errors import LogFailed
from cordwood.formats import Format, Marker, ReceivedFrame, Row
from cordwood.index import AbortedEntry
from cordwood.records import Header
from cordwood.storage.log.appending import Admit, Appended
from cordwood.storage.log.changes import TruncationReport
from cordwood.storage.log.producers import KnownProducer, OpenTransaction
from cordwood.storage.log.reading import Fetched, Standing, VisibilityHold
from cordwood.storage.log.spooling import Spool
from cordwood.storage.log.state import Epoch


class Partition(Protocol):
    """A partition to read. Every method may be called from any thread."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that records are appended under."""

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """Every leader epoch that has records, and the one that the next record gets; oldest first."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record, as far as this process knows it."""

    @property
    def high_watermark(self) -> int:
        """The first offset that consumers may not read."""

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark if none is open below it."""

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return whole frames from the one that holds *offset* on; see `View.read` and `read_committed`."""

    def aborted(self, start: int, stop: int) -> list[AbortedEntry]:
        """Return the aborted transactions that may have records in [start, stop), by their markers."""

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record at or after *timestamp*, exactly."""

    def newest(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record with the largest timestamp."""

    def wait_beyond(self, offset: int, *, committed: bool = False) -> int:
        """Wait until the high watermark is above *offset*, and return it; see `PartitionLog.wait_beyond`."""

    def size(self) -> int:
        """Return the bytes of the segments, or of the partition's frames in the shared log."""


class ServedPartition(Partition, Protocol):
    """A partition of a directory that this process writes. It may never have had a record."""

    @property
    def standing(self) -> Standing:
        """The offsets that a client is told, of one moment."""

    def producers(self) -> list[KnownProducer]:
        """Return what is known of each idempotent producer; see `PartitionLog.producers`."""

    def producer_epochs(self) -> dict[int, int]:
        """Return the newest epoch of every known producer, by its id; see `PartitionLog.producer_epochs`."""

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that have not ended, by their first offsets."""

    def advance_log_start(self, offset: int) -> None:
        """Make *offset* the first one that can be read. Durable on return. Moving it back is a no-op."""


class PartitionFacts(Protocol):
    """The stored state of a partition, without its records: in `partition.json` or in the shared log."""

    @property
    def topic(self) -> str:
        """The topic, as the catalogue names it."""

    @property
    def topic_id(self) -> str:
        """The id of the topic."""

    @property
    def partition(self) -> int:
        """The number of the partition."""

    @property
    def record_format(self) -> str:
        """The name of the format of its frames."""


class WritablePartition(ServedPartition, Protocol):
    """A partition to append to; see `PartitionLog` for what each method promises."""

    @property
    def directory(self) -> str:
        """The directory of the files that hold its records."""

    @property
    def config(self) -> TopicConfig:
        """The settings of the topic."""

    @property
    def format(self) -> Format:
        """The format of its frames."""

    @property
    def state(self) -> PartitionFacts:
        """The stored state of the partition, without its records."""

    @property
    def failure(self) -> LogFailed | None:
        """Why the partition takes no more appends, None while it does."""

    @property
    def unsynced_records(self) -> int:
        """The number of records that are written and not synced."""

    def is_over_retention(self) -> bool:
        """Return whether retention by size asks for maintenance now. Touches no file."""

    def append(self, rows: Iterable[Row], expected_offset: int | None = None) -> Appended:
        """Append rows, all or none. Written, not durable."""

    def append_received(
        self, frame: ReceivedFrame, *, promised: bool = False, admit: Admit | None = None
    ) -> Appended:
        """Append a batch that a client encoded, unless it is stored already. Written, not durable."""

    def append_marker(self, marker: Marker) -> Appended:
        """Append the end of a producer's transaction. Written, not durable."""

    def append_stream(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        timestamp: int | None,
        spooled: Spool,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append one record whose value is *spooled*. Written, not durable."""

    def stream_bytes_max(self) -> int:
        """Return the largest size of a stream."""

    def held(self) -> AbstractContextManager[None]:
        """Keep appends of other threads out, so that offsets are known in advance."""

    def hold_back(self, hold: VisibilityHold) -> None:
        """Keep what is appended from now on from readers until *hold* ends. Call it within `held`."""

    def show_held_back(self) -> None:
        """Wake those who wait for what a hold, which has ended, kept from readers. Within `held`."""

    def commit(self, offset: int | None = None) -> None:
        """Return once everything below *offset* (None: everything appended) is durable."""

    def settle(self, appended: Appended) -> None:
        """Sync as the topic's policy asks for after an append."""

    @property
    def waits_for_remote(self) -> bool:
        """Whether a commit waits for more than the disk; see `begin_sync`."""

    def begin_sync(self) -> Callable[[], None]:
        """Sync on the disk alone; return what shows the records once they are safe elsewhere too."""

    def commit_quietly(self) -> None:
        """Commit, and keep a failure for the next caller instead of raising it."""

    def adopt(self, path: str, size: int) -> Appended:
        """Append the frames in the file at *path*, *size* bytes, and remove it. Durable on return."""

    def roll(self) -> None:
        """Seal the active segment. Durable on return."""

    def truncate(self, end_offset: int) -> TruncationReport:
        """Drop every record at or above *end_offset*. Durable on return."""

    def reconfigure(self, config: TopicConfig) -> None:
        """Apply *config*."""

    def close(self) -> None:
        """Flush, sync and close. Idempotent."""

    def fail(self, reason: str) -> None:
        """Refuse every later append, with *reason*."""
