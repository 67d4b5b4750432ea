"""Transactions in a partition, appended to its log without a coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from cordwood.formats import Marker, ProducerStamp, batch
from cordwood.formats.batch import BatchOptions
from cordwood.storage.log import WritablePartition, terms_of

Row = tuple[bytes | None, bytes | None]


class LogTransactions:
    """Appends plain batches, batches of transactions and their ends to *log*, each synced at once."""

    def __init__(self, log: WritablePartition) -> None:
        self.log = log
        self._times = itertools.count(1_000)
        self._sequences: dict[int, int] = {}

    def plain(self, *values: bytes) -> int:
        """Append a batch that is not part of a transaction; return its first offset."""
        return self.append_rows([(None, value) for value in values])

    def add(self, producer_id: int, *values: bytes) -> int:
        """Append a batch to the transaction of a producer; return its first offset."""
        return self.append_rows([(None, value) for value in values], producer_id)

    def append_rows(self, rows: Sequence[Row], producer_id: int | None = None) -> int:
        """Append a batch of keys and values, to the transaction of a producer if there is one."""
        options = BatchOptions()
        if producer_id is not None:
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + len(rows)
            options = BatchOptions(
                attributes=batch.TRANSACTIONAL,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
            )
        data = memoryview(batch.encode_records(rows, next(self._times), options))
        frame = self.log.format.receive(data, terms_of(self.log.config, next(self._times)))
        appended = self.log.append_received(frame, admit=admit_all)
        self.log.commit()
        return appended.base_offset

    def commit(self, producer_id: int) -> int:
        """Append the marker of a commit; return its offset."""
        return self._end(producer_id, committed=True)

    def abort(self, producer_id: int) -> int:
        """Append the marker of an abort; return its offset."""
        return self._end(producer_id, committed=False)

    def _end(self, producer_id: int, *, committed: bool) -> int:
        appended = self.log.append_marker(Marker(producer_id, 0, committed))
        self.log.commit()
        return appended.base_offset


def admit_all(stamp: ProducerStamp) -> None:
    """Take any transactional batch."""


def shown_by_client(frames: Iterable[bytes], aborted: Iterable[tuple[int, int]]) -> list[bytes]:
    """Return the values that a client of committed records shows of *frames*.

    As clients do it: a producer's records are skipped from the first offset of its aborted transaction up to
    the marker. *aborted* are (producer id, first offset).
    """
    waiting, skipped, shown = sorted(aborted, key=lambda each: each[1]), set[int](), list[bytes]()
    for frame in frames:
        for header in batch.scan(frame).headers():
            while waiting and waiting[0][1] <= header.next_offset - 1:
                skipped.add(waiting.pop(0)[0])
            if header.is_control:
                skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                shown += [record.value or b"" for record in batch.decode_records(frame, header)]
    return shown
