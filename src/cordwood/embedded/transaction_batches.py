"""The batches of a transaction: the rows of one partition, in as few batches as its topic allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cordwood.broker.transactions import ProducerIdentity
from cordwood.formats import BatchOptions, ReceivedFrame, Row, encode_records
from cordwood.formats.batch import TRANSACTIONAL
from cordwood.kernels import INT32_MAX
from cordwood.storage.log import WritablePartition, terms_of

#: More than a record or a header takes beside its bytes.
_OVERHEAD_BYTES = 32
_BATCH_OVERHEAD_BYTES = 128
_UTF8_BYTES_MAX = 4


def transaction_frames(
    log: WritablePartition, rows: Sequence[Row], producer: ProducerIdentity, now_ms: int
) -> list[ReceivedFrame]:
    """Encode *rows* as transactional batches of *producer*, whose sequence numbers begin at 0.

    Raises:
        RecordRefused, RecordsRejected, FrameTooLarge: If the topic cannot take a row.
    """
    terms, frames, sequence = terms_of(log.config, now_ms), list[ReceivedFrame](), 0
    for piece in _pieces(rows, log.config.max_message_bytes):
        options = BatchOptions(
            attributes=TRANSACTIONAL,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
        )
        data = encode_records(piece, now_ms, options)
        frames.append(log.format.receive(memoryview(data), terms))
        sequence += len(piece)
    return frames


def _pieces(rows: Sequence[Row], size_max: int) -> Iterator[Sequence[Row]]:
    """Yield *rows* in pieces that are encoded in at most *size_max* bytes, or that have one row."""
    first, size = 0, _BATCH_OVERHEAD_BYTES
    for at, row in enumerate(rows):
        more = _size_of(row)
        if at > first and size + more > size_max:
            yield rows[first:at]
            first, size = at, _BATCH_OVERHEAD_BYTES
        size += more
    yield rows[first:]


def _size_of(row: Row) -> int:
    """Return at least the bytes that a row is encoded in. What is no row is refused when it is encoded."""
    try:
        size = _OVERHEAD_BYTES + len(row[0] or b"") + len(row[1] or b"")
        headers = row[2] if len(row) > 2 and row[2] else ()
        if not isinstance(headers, list | tuple):
            # They may be there to iterate over once: the row gets a batch of its own.
            return INT32_MAX
        for name, value in headers:
            size += _OVERHEAD_BYTES + _UTF8_BYTES_MAX * len(name or "") + len(value or b"")
    except (TypeError, ValueError, IndexError):
        return _OVERHEAD_BYTES
    return size
