"""One partition of a mirror: where it stands, and how batches of the source get into its log."""

from __future__ import annotations

from collections.abc import Callable

from cordwood.errors import RecordRefused
from cordwood.formats import batch
from cordwood.kernels import Buffer
from cordwood.mirror.batches import SourceBatch, cut_batches, gap_batches
from cordwood.mirror.report import MirroredPartition
from cordwood.records import TopicPartition
from cordwood.storage.directory import Beginning, DataDirectory
from cordwood.storage.log import PartitionLog

#: The bytes that one partition is asked for at a time, about.
PART_BYTES = 4 << 20


class PartitionCopy:
    """A partition that is mirrored. One thread.

    ``position`` is the first offset that is not here yet; everything below it is in the log, synced or not.
    ``target`` is the end of the source when this run began to look at the partition.
    """

    def __init__(
        self, directory: DataDirectory, place: TopicPartition, log: PartitionLog | None, start: int, end: int
    ) -> None:
        """Take the log of the partition, if it has one, and the offsets [start, end) of the source."""
        self.place = place
        self.log = log
        self.position = start if log is None else log.log_end_offset
        self.source_start, self.source_end, self.target = start, end, end
        #: The source's leader epoch of the last batch that was copied, and of its leader when last checked.
        self.last_epoch: int | None = None
        self.leader_epoch = -1
        #: Whether it is asked for alone, because its next batch did not come whole beside others, or at all.
        self.is_alone = False
        self.wanted_bytes = PART_BYTES
        #: Since when it cannot be read, by the monotonic clock.
        self.failing_since: float | None = None
        self.is_dirty = False
        self._directory = directory
        self._advance_to: int | None = None
        self._batches = self._records = self._bytes = self._filled = 0
        if log is not None:
            self._finish_beginning(log)

    def _finish_beginning(self, log: PartitionLog) -> None:
        """Move the log start into the first batch, if the source begins there and a crash came before."""
        if log.log_start_offset < self.source_start < log.high_watermark:
            runs = log.read(log.log_start_offset, 1).runs
            if runs and runs[0].table.next_offset(runs[0].first) > self.source_start:
                log.advance_log_start(self.source_start)

    @property
    def is_behind(self) -> bool:
        """Whether it lacks something that the source had when this run began."""
        return self.position < self.target

    def reached(self) -> tuple[int, int]:
        """Return how many offsets are here, and how many there are, of what the source had at first."""
        here = min(self.position, self.target) - self.source_start
        return max(here, 0), max(self.target - self.source_start, 0)

    @property
    def size_max(self) -> int:
        """The largest batch that the topic takes."""
        if self.log is not None:
            return self.log.config.stored_bytes_max
        entry = self._directory.topics[self.place[0]]
        return self._directory.config_of(entry.config).stored_bytes_max

    @property
    def copied_bytes(self) -> int:
        """The bytes of the batches that this run copied."""
        return self._bytes

    @property
    def copied_end(self) -> int:
        """The end of what was copied: the position, unless offsets are being skipped."""
        return self.position if self.log is None else min(self.position, self.log.log_end_offset)

    def take(
        self,
        data: Buffer,
        high_watermark: int,
        continues: Callable[[PartitionCopy], bool] = lambda copy: True,
    ) -> bool:
        """Append the batches in *data*; return whether there was one. Not durable before `commit`.

        Before a batch of a later leader epoch, *continues* is asked whether the source still has what was
        copied. If not, that batch and those after it are left out.

        Raises:
            RecordRefused: If a batch cannot be stored here; names its offset.
            FrameError: If a batch is damaged, or does not follow the one before it.
            StorageError: If it could not be written.
        """
        cut = cut_batches(data, self.position, self.size_max)
        self.source_end = max(self.source_end, high_watermark)
        if not cut.batches and cut.missing_bytes:
            if self.is_alone and self.wanted_bytes >= cut.missing_bytes:
                raise RecordRefused(f"the source sends only a part of the batch at offset {self.position}")
            self.is_alone, self.wanted_bytes = True, max(self.wanted_bytes, cut.missing_bytes)
        if cut.batches:
            self.is_alone, self.wanted_bytes = False, PART_BYTES
        for each in cut.batches:
            is_later = self.last_epoch is not None and each.header.leader_epoch > self.last_epoch
            if is_later and not continues(self):
                return each is not cut.batches[0]
            self._append(each)
        if cut.fault is not None:
            raise cut.fault
        return bool(cut.batches)

    def _append(self, found: SourceBatch) -> None:
        header = found.header
        log = self._log_for(header.base_offset)
        if header.base_offset < log.log_end_offset:
            raise RecordRefused(
                f"the source sends a batch of the offsets {header.base_offset} to {header.next_offset - 1}, "
                f"and the log has them up to {log.log_end_offset - 1} from other batches"
            )
        self._fill(log, header.base_offset)
        if header.producer_id != batch.NO_PRODUCER_ID:
            self._directory.producer_ids.pass_over(header.producer_id)
        log.append_kept(found.data)
        self.is_dirty = True
        self.last_epoch = max(header.leader_epoch, -1 if self.last_epoch is None else self.last_epoch)
        self.position = header.next_offset
        self.source_end = max(self.source_end, self.position)
        self._batches += 1
        self._records += found.records
        self._bytes += header.size

    def _log_for(self, base_offset: int) -> PartitionLog:
        """Return the log; a new one begins where the source does, or with the batch in which it does."""
        if self.log is None:
            begin = min(base_offset, self.position)
            self.log = self._directory.partitions.create_at(*self.place, Beginning(begin))
            if begin < self.position:
                self._advance_to = self.position
        return self.log

    def _fill(self, log: PartitionLog, stop: int) -> None:
        self._filled += max(stop - log.log_end_offset, 0)
        for frame in gap_batches(log.log_end_offset, stop):
            log.append_kept(frame)
            self.is_dirty = True

    def skip_to(self, start: int, end: int) -> None:
        """Go on at the offset *start*, where the source begins now; it ends at *end*.

        It may begin within a batch, which is taken as a whole. So what is missing is filled up only to where
        the next batch begins.
        """
        if start < end:
            self.position, self.source_start, self.is_alone = start, start, False
        else:
            self.fill_to(start)

    def fill_to(self, stop: int) -> None:
        """Go on at the offset *stop*: the source has nothing before it any more."""
        self._fill(self._log_for(self.position), stop)
        self.position, self.is_alone = stop, False

    def create_empty(self) -> None:
        """Create the log of a partition that has no records and does not begin at 0."""
        if self.log is None and self.position:
            self._log_for(self.position)

    def commit(self) -> None:
        """Make everything durable that was taken.

        Raises:
            LogFailed: If the disk failed.
        """
        if self.log is None or not self.is_dirty:
            return
        self.log.commit()
        self.is_dirty = False
        if self._advance_to is not None and self.log.log_end_offset >= self._advance_to:
            self.log.advance_log_start(self._advance_to)
            self._advance_to = None

    def report(self) -> MirroredPartition:
        """Return what there is, and what this run has copied."""
        log = self.log
        start = self.source_start if log is None else log.log_start_offset
        return MirroredPartition(
            self.place[1],
            start,
            self.position,
            self.source_end,
            self._batches,
            self._records,
            self._bytes,
            self._filled,
            0 if log is None else len(log.open_transactions()),
        )
