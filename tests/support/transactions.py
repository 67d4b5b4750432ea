"""Transactions in one partition: batches and markers as a broker appends them, and what readers see."""

from __future__ import annotations

from cordwood.formats import Marker, ReceivedFrame, batch
from cordwood.formats.batch import TRANSACTIONAL, BatchOptions
from cordwood.formats.native import BatchFormat
from cordwood.formats.receiving import BatchTerms
from cordwood.records import Record
from cordwood.storage.log import Appended, Partition, WritablePartition, committed_runs
from support.producing import Sent


def admitted(stamp: object) -> None:
    """Admit every transactional batch."""


Row = tuple[bytes | None, bytes | None]


def frame_of_rows(sent: Sent, rows: list[Row], timestamp: int = 1_000) -> ReceivedFrame:
    """Return a transactional batch of *rows* (key, value), as received, with the stamp of *sent*."""
    options = BatchOptions(
        producer_id=sent.producer,
        producer_epoch=sent.epoch,
        base_sequence=sent.sequence,
        attributes=TRANSACTIONAL,
    )
    data = batch.encode_records(rows, timestamp, options)
    return BatchFormat().receive(memoryview(data), BatchTerms(1 << 20))


def send_rows(log: WritablePartition, sent: Sent, rows: list[Row], timestamp: int = 1_000) -> Appended:
    """Append a transactional batch of *rows* (key, value), not durable yet, with the stamp of *sent*."""
    return log.append_received(frame_of_rows(sent, rows, timestamp), admit=admitted)


def send_in_transaction(log: WritablePartition, sent: Sent, timestamp: int = 1_000) -> Appended:
    """Append a transactional batch, not durable yet. The key of a record is its value."""
    return send_rows(log, sent, [(value, value) for value in sent.values], timestamp)


def end_transaction(log: WritablePartition, producer: int, *, committed: bool, epoch: int = 0) -> Appended:
    """Append the marker of a producer's transaction, not durable yet."""
    return log.append_marker(Marker(producer, epoch, committed))


def committed_values(log: Partition, max_bytes: int = 1 << 20, start: int | None = None) -> list[bytes]:
    """Return the values that a reader of committed records sees, from *start* on."""
    return [record.value or b"" for record in committed_records(log, max_bytes, start)]


def committed_records(log: Partition, max_bytes: int = 1 << 20, start: int | None = None) -> list[Record]:
    """Return the records that a reader of committed records sees, from *start* on."""
    found: list[Record] = []
    offset = log.log_start_offset if start is None else start
    while offset < log.last_stable_offset:
        fetched = log.read(offset, max_bytes, committed=True)
        for run in committed_runs(fetched.runs, fetched.aborted):
            found += [record for record in run.records() if record.offset >= offset]
        assert fetched.next_offset > offset, "a read that does not move"
        offset = fetched.next_offset
    return found


def every_value(log: Partition) -> list[bytes]:
    """Return the values that a reader of all records sees."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        fetched = log.read(offset, 1 << 20)
        found += [record.value or b"" for run in fetched.runs for record in run.records()]
        offset = fetched.next_offset
    return found
