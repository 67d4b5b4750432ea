"""Comparing batches of the source with those of the log: byte for byte, or record for record.

Compaction rewrites batches, at the source or here: then each record that both have must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cordwood.errors import CordwoodError, FrameError
from cordwood.formats import BatchHeader, batch
from cordwood.kernels import INT32_MAX
from cordwood.mirror.batches import SourceBatch, is_gap
from cordwood.records import Record
from cordwood.storage.log import PartitionLog

_READ_BYTES = 1 << 20
#: The bytes of a batch that are compared; between them is the leader epoch.
_BEFORE_EPOCH, _AFTER_EPOCH = slice(0, 12), slice(16, None)


class OtherRecords(CordwoodError):
    """The log has something else than the source."""


class LocalBatch(NamedTuple):
    """A batch of the log."""

    header: BatchHeader
    data: bytes


def local_batches(log: PartitionLog, start: int, stop: int) -> Iterator[LocalBatch]:
    """Yield the batches of a log that have an offset in [start, stop).

    Raises:
        CorruptRange: If one is damaged.
    """
    offset = start
    while offset < stop:
        fetched = log.read(offset, _READ_BYTES, stop)
        for run in fetched.runs:
            for base_offset, _, data in run.frames():
                header = batch.read_header(data, size_max=INT32_MAX)
                if base_offset < stop and header.next_offset > start:
                    yield LocalBatch(header, bytes(data))
        if fetched.next_offset <= offset:
            return
        offset = fetched.next_offset


class Comparison:
    """The comparison of the offsets [start, stop) of one partition with the batches that `take` is given.

    With *compacted* the source may lack records, and with *compacted_here* the log. After an OtherRecords the
    rest must not be compared.
    """

    def __init__(
        self, log: PartitionLog, start: int, stop: int, *, compacted: bool, compacted_here: bool = False
    ) -> None:
        self.position = start
        self.identical = self.rewritten = self.records = self.bytes = 0
        self._start, self._stop = start, stop
        self._compacted, self._compacted_here = compacted, compacted_here
        self._local = local_batches(log, start, stop)
        self._next = next(self._local, None)

    @property
    def is_done(self) -> bool:
        """Whether everything was compared."""
        return self.position >= self._stop

    def take(self, found: SourceBatch) -> None:
        """Compare a batch of the source with the log.

        Raises:
            OtherRecords: If they differ; says where.
        """
        header = found.header
        if header.base_offset >= self._stop:
            self.end()
            return
        self._pass(header.base_offset)
        here: list[LocalBatch] = []
        while self._next is not None and self._next.header.base_offset < header.next_offset:
            here.append(self._next)
            self._next = next(self._local, None)
        if len(here) == 1 and _same(here[0].data, found.data):
            self.identical += 1
            self.records += found.records
        else:
            self._compare_records(found, here)
            self.rewritten += 1
        self.bytes += header.size
        self.position = header.next_offset

    def end(self) -> None:
        """Compare what is left of the log, for which the source has nothing. Raises as `take`."""
        self._pass(self._stop)
        self.position = self._stop

    def _pass(self, stop: int) -> None:
        """Pass over what the log has before *stop* and the source has not."""
        while self._next is not None and self._next.header.next_offset <= stop:
            header = self._next.header
            if not is_gap(header) and not self._compacted:
                last = header.next_offset - 1
                raise OtherRecords(f"the offsets {header.base_offset} to {last} are here, not at the source")
            self._next = next(self._local, None)

    def _compare_records(self, found: SourceBatch, here: list[LocalBatch]) -> None:
        start = max(self._start, found.header.base_offset)
        theirs = {each.offset: each for each in _data_records(found) if start <= each.offset < self._stop}
        ours = {each.offset: each for one in here for each in _data_records(one) if each.offset >= start}
        for offset, record in theirs.items():
            if offset not in ours and self._compacted_here:
                continue
            if ours.get(offset) != record:
                what = "is not here" if offset not in ours else "is another one here"
                raise OtherRecords(f"the record at offset {offset} {what}")
        left = sorted(ours.keys() - theirs.keys())
        if left and not self._compacted:
            raise OtherRecords(f"the record at offset {left[0]} is here, not at the source")
        same_kind = any(one.header.is_control == found.header.is_control for one in here)
        may_lack = self._compacted or self._compacted_here
        if not same_kind and not is_gap(found.header) and not may_lack:
            raise OtherRecords(f"the batch at offset {found.header.base_offset} is not here")
        self.records += len(theirs.keys() & ours.keys())


def _data_records(found: SourceBatch | LocalBatch) -> list[Record]:
    if found.header.is_control:
        return []
    try:
        return batch.decode_records(found.data, found.header)
    except FrameError as error:
        raise OtherRecords(f"the batch at offset {found.header.base_offset} is damaged: {error}") from error


def _same(ours: bytes, theirs: bytearray) -> bool:
    whole, other = memoryview(ours), memoryview(theirs)
    return whole[_BEFORE_EPOCH] == other[_BEFORE_EPOCH] and whole[_AFTER_EPOCH] == other[_AFTER_EPOCH]


def tail_start(log: PartitionLog, batches: int) -> int:
    """Return where the last *batches* batches with something in them begin; the log start if there are fewer.

    Raises:
        CorruptRange: If one is damaged.
    """
    offset, left = log.log_end_offset, batches
    while offset > log.log_start_offset and left:
        runs = log.read(offset - 1, 1).runs
        if not runs:
            break
        header = batch.read_header(runs[0].data, size_max=INT32_MAX)
        left -= not is_gap(header)
        offset = header.base_offset
    return max(offset, log.log_start_offset)
