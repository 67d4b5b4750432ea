"""Batches as clients send them: stored as they are, or refused for what they say of themselves (D19)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batches, mutations

from cordwood.errors import (
    ChecksumMismatch,
    CordwoodError,
    FrameTooLarge,
    InvalidBatch,
    RecordRefused,
    TruncatedFrame,
    UnsupportedFrame,
)
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.formats.compression import Compression, compress
from cordwood.formats.format import FrameSlot, ProducerStamp, ReceivedFrame
from cordwood.formats.native import BatchFormat
from cordwood.formats.receiving import BatchTerms

FORMAT = BatchFormat()
SIZE_MAX = 100_000
ROWS = [(b"k%d" % i, b"value %d" % i, [("h", b"1")], 1_000 + i) for i in range(4)]
COMPRESSED = [codec for codec in Compression if codec is not Compression.NONE]


def sent(rows: list[Any] = ROWS, **options: Any) -> bytearray:
    """Return a batch as a client sends it, in a buffer of its own."""
    return batch.encode_records(rows, 0, BatchOptions(**options))


def receive(data: bytearray, size_max: int = SIZE_MAX) -> ReceivedFrame:
    return FORMAT.receive(memoryview(data), BatchTerms(size_max))


def changed(data: bytearray, at: int, form: str, value: int) -> bytearray:
    """Return the batch with another value in its header, under a right checksum."""
    struct.pack_into(form, data, at, value)
    return resealed(data)


def resealed(data: bytearray) -> bytearray:
    struct.pack_into(">i", data, 8, len(data) - 12)
    batch.seal(data)
    return data


# --- What is taken ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("producer", [(-1, -1, -1), (4711, 3, 12), (0, 0, 0)])
def test_a_sound_batch_is_taken_as_it_is(compression: Compression, producer: tuple[int, int, int]) -> None:
    names = ("producer_id", "producer_epoch", "base_sequence")
    options: dict[str, Any] = dict(zip(names, producer, strict=True))
    data = sent(compression=compression, **options)
    before = bytes(data)
    frame = receive(data)
    assert bytes(frame.data) == before
    assert (frame.record_count, frame.max_timestamp) == (4, 1_003)
    last = producer[2] + 3
    assert frame.stamp == (None if producer[0] < 0 else ProducerStamp(*producer, last))


def test_the_sequences_of_a_batch_go_on_at_0_after_the_largest() -> None:
    frame = receive(sent(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert frame.stamp == ProducerStamp(1, 0, 2**31 - 2, 1)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("base_offset", [0, 7, 1 << 40, -1])
def test_a_batch_gets_its_offsets_and_epoch_and_no_other_byte_changes(
    compression: Compression, base_offset: int
) -> None:
    """Clients put anything there: neither is under the checksum, and both are the log's to give."""
    data = sent(compression=compression, base_offset=base_offset, leader_epoch=-1)
    before = bytes(data)
    frame = receive(data)
    placed = FORMAT.place(frame, FrameSlot(1 << 50, 9))
    assert placed.max_timestamp == 1_003
    assert placed.data is frame.data
    header = batch.read_header(data)
    batch.validate(data, header)
    assert (header.base_offset, header.leader_epoch) == (1 << 50, 9)
    assert (bytes(data[8:12]), bytes(data[16:])) == (before[8:12], before[16:])


def test_with_log_append_time_every_record_counts_as_appended_then() -> None:
    for compression in Compression:
        data = sent(compression=compression, producer_id=5, producer_epoch=0, base_sequence=1)
        before = bytes(data)
        placed = FORMAT.place(receive(data), FrameSlot(10, 2, 777))
        assert placed.max_timestamp == 777
        header = batch.read_header(data)
        batch.validate(data, header)
        assert header.log_append_time
        assert header.compression is compression
        assert {record.timestamp for record in batch.decode_records(data, header)} == {777}
        assert [record.offset for record in batch.decode_records(data, header)] == [10, 11, 12, 13]
        assert (header.producer_id, header.base_sequence) == (5, 1)
        # Attributes, max timestamp and the checksum over them; nothing else.
        allowed = {*range(8), *range(12, 16), *range(17, 23), *range(35, 43)}
        assert {at for at, (old, new) in enumerate(zip(before, data, strict=True)) if old != new} <= allowed


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("wrong", [0, -1, 1_002, 1_004, 2**62])
def test_a_max_timestamp_that_is_wrong_is_set_right(compression: Compression, wrong: int) -> None:
    """Some clients get it wrong; a lookup by time must not."""
    right = sent(compression=compression)
    data = changed(bytearray(right), 35, ">q", wrong)
    frame = receive(data)
    assert frame.max_timestamp == 1_003
    assert data == right
    batch.validate(data, batch.read_header(data))


PEERS = {"aiokafka": aiokafka_records, "kafka-python": kafka_records}


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("producer", [(-1, -1, -1), (4711, 3, 12)])
@pytest.mark.parametrize("peer", PEERS)
def test_what_other_clients_encode_is_stored_byte_for_byte(
    peer: str, producer: tuple[int, int, int], compression: Compression
) -> None:
    builder = PEERS[peer].DefaultRecordBatchBuilder(2, int(compression), 0, *producer, 1 << 20)
    rows = [(b"key %d" % i, b"value" * i or None, [("h", b"1"), ("n", None)], 5_000 - i) for i in range(50)]
    for i, (key, value, headers, timestamp) in enumerate(rows):
        assert builder.append(i, timestamp, key, value, headers) is not None
    theirs = bytes(builder.build())
    data = bytearray(theirs)
    frame = receive(data)
    placed = FORMAT.place(frame, FrameSlot(900, 4))
    assert placed.max_timestamp == 5_000
    assert bytes(data[8:12]) == theirs[8:12]
    assert bytes(data[16:]) == theirs[16:]
    assert (frame.stamp is None) == (producer[0] < 0)
    records = batch.decode_records(data, batch.read_header(data))
    assert [(r.offset, r.timestamp, r.key, r.value) for r in records] == [
        (900 + i, timestamp, key, value) for i, (key, value, _, timestamp) in enumerate(rows)
    ]


# --- What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "named"),
    [
        (batch.CONTROL, "control"),
        (batch.TRANSACTIONAL, "transactional batch without a producer"),
        (batch.TRANSACTIONAL | batch.CONTROL, "control"),
        (batch.LOG_APPEND_TIME, "log append time"),
        (batch.DELETE_HORIZON, "delete horizon"),
        (0x80, "0x8[0-4]"),
        (0x4000, "0x400[0-4]"),
    ],
)
def test_attributes_that_only_a_broker_may_set_are_refused_by_name(bits: int, named: str) -> None:
    for compression in Compression:
        data = changed(sent(compression=compression), 21, ">h", bits | compression)
        with pytest.raises(RecordRefused, match=named):
            receive(data)


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_compression_that_does_not_exist_is_refused(number: int) -> None:
    with pytest.raises(UnsupportedFrame, match="compression"):
        receive(changed(sent(), 21, ">h", number))


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_another_magic_is_refused(magic: int) -> None:
    with pytest.raises(UnsupportedFrame, match="magic"):
        receive(changed(sent(), 16, ">b", magic))


def test_more_than_one_batch_is_refused() -> None:
    """Kafka allows one a partition; two would get the offsets of one."""
    with pytest.raises(InvalidBatch, match="one batch"):
        receive(sent() + sent(base_offset=4))


@pytest.mark.parametrize("more", [b"\0", b"x", bytes(61), b"\0" * 1_000])
def test_bytes_after_the_batch_are_refused(more: bytes) -> None:
    with pytest.raises(InvalidBatch, match="one batch"):
        receive(sent() + more)


def test_a_batch_that_is_cut_anywhere_is_refused() -> None:
    data = sent()
    for size in range(len(data)):
        with pytest.raises((TruncatedFrame, InvalidBatch)):
            receive(data[:size])
    with pytest.raises((TruncatedFrame, InvalidBatch)):
        receive(bytearray(61))


@pytest.mark.parametrize("last_delta", [-1, 0, 3])
def test_a_batch_without_records_is_refused(last_delta: int) -> None:
    """Only compaction leaves one, and that still takes its offsets."""
    empty = sent()[:61]
    struct.pack_into(">i", empty, 57, 0)
    with pytest.raises(InvalidBatch if last_delta < 0 else RecordRefused):
        receive(changed(empty, 23, ">i", last_delta))


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize(
    ("count", "last_delta"),
    [(3, 2), (5, 4), (4, 4), (3, 3), (4, 2), (2**31 - 1, 2**31 - 2), (-1, 3), (4, -2)],
)
def test_a_count_or_a_delta_that_lies_is_refused(
    compression: Compression, count: int, last_delta: int
) -> None:
    """Offsets are given by what the header says, and records are read by what they say."""
    data = sent(compression=compression)
    struct.pack_into(">i", data, 23, last_delta)
    with pytest.raises(InvalidBatch):
        receive(changed(data, 57, ">i", count))


def with_records(records: bytes, count: int, compression: Compression = Compression.NONE) -> bytearray:
    """Return a batch of so many records with these bytes for them."""
    data = sent([(None, b"")] * count)[:61]
    struct.pack_into(">h", data, 21, int(compression))
    return resealed(data + (records if compression is Compression.NONE else compress(compression, records)))


def record(offset_delta: int, value: bytes = b"") -> bytes:
    """Return a record without key and headers; all numbers must be small."""
    body = bytes([0, 0, offset_delta << 1, 1, len(value) << 1]) + value + b"\0"
    return bytes([len(body) << 1]) + body


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("deltas", [(1, 0, 2), (0, 2, 1), (0, 0, 1), (0, 1, 3), (1, 2, 3), (0, 0, 0)])
def test_offset_deltas_that_do_not_count_up_are_refused(
    compression: Compression, deltas: tuple[int, ...]
) -> None:
    assert receive(with_records(record(0) + record(1) + record(2), 3, compression)).record_count == 3
    with pytest.raises(InvalidBatch, match="offset delta"):
        receive(with_records(b"".join(map(record, deltas)), 3, compression))


@pytest.mark.parametrize("compression", Compression)
def test_records_that_go_on_after_the_last_one_are_refused(compression: Compression) -> None:
    for more in (b"\0", record(3)):
        with pytest.raises(InvalidBatch):
            receive(with_records(record(0) + record(1) + record(2) + more, 3, compression))


def test_a_checksum_that_is_wrong_is_refused_whatever_bit_it_is() -> None:
    """Every byte from the attributes on is under it, and so is the checksum itself."""
    data = sent(producer_id=1, producer_epoch=0, base_sequence=0)
    refused = 0
    for bit in range(17 * 8, len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            receive(flipped)
        except ChecksumMismatch:
            refused += 1
        except CordwoodError:
            # A flag or a count that is refused before the checksum is even computed.
            assert 21 <= bit // 8 < 61
            refused += 1
    assert refused == (len(data) - 17) * 8


def test_a_batch_larger_than_the_limit_is_refused_and_one_of_its_size_is_not() -> None:
    data = sent([(None, b"v" * 5_000)])
    assert receive(bytearray(data), len(data)).record_count == 1
    with pytest.raises(FrameTooLarge) as refused:
        receive(bytearray(data), len(data) - 1)
    assert refused.value.found == len(data)


def test_a_length_that_lies_is_refused_before_anything_is_read_by_it() -> None:
    for length in (-1, 0, 48, 2**31 - 1, 200):
        data = sent()
        struct.pack_into(">i", data, 8, length)
        with pytest.raises((InvalidBatch, FrameTooLarge, TruncatedFrame)):
            receive(data)


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_record_larger_than_the_limit_is_refused_however_small_it_compresses(
    compression: Compression,
) -> None:
    """Whoever reads it gets it whole: the limit is about what a record is, not what it looks like."""
    small, large = (sent([(None, bytes(size))], compression=compression) for size in (9_000, 10_100))
    assert len(large) < 10_000
    assert receive(small, 10_000).record_count == 1
    with pytest.raises(FrameTooLarge, match="a record of the batch"):
        receive(large, 10_000)
    # Together they may be more than one may be alone.
    many = sent([(None, bytes(9_000))] * 10, compression=compression)
    assert receive(many, 10_000).record_count == 10


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_decompression_bomb_is_refused(compression: Compression) -> None:
    """More than 128 MiB of zeros in a batch that is well within its own limit."""
    bomb = compress(compression, bytes(batch.DECOMPRESSED_MAX + 1))
    data = resealed(sent(compression=compression)[:61] + bomb)
    with pytest.raises(FrameTooLarge):
        receive(data, len(data))


@pytest.mark.parametrize("compression", COMPRESSED)
def test_records_that_are_not_compressed_as_they_say_are_refused(compression: Compression) -> None:
    whole = bytes(sent(compression=compression)[61:])
    for payload in (b"", b"rubbish", whole[:-1], whole[: len(whole) // 2], b"\xff" * 50):
        with pytest.raises(CordwoodError):
            receive(resealed(sent(compression=compression)[:61] + payload))


@pytest.mark.parametrize(
    "producer",
    [(7, -1, 0), (7, 0, -1), (7, -1, -1), (-2, 0, 0), (-2, -1, -1), (7, -32768, 0), (7, 0, -(2**31))],
)
def test_a_producer_without_epoch_or_sequence_is_refused(producer: tuple[int, int, int]) -> None:
    """Half a name could not be told from a retry."""
    names = ("producer_id", "producer_epoch", "base_sequence")
    options: dict[str, Any] = dict(zip(names, producer, strict=True))
    with pytest.raises(RecordRefused, match="without epoch or sequence"):
        receive(sent(**options))


def test_only_the_broker_itself_may_leave_out_the_sequence_and_only_in_a_transaction() -> None:
    """The sequence numbers of a transactional producer are those of the batches that it sends itself."""
    own = BatchTerms(1 << 20, from_broker=True)
    options: dict[str, Any] = {"producer_id": 7, "producer_epoch": 2, "base_sequence": -1}
    with pytest.raises(RecordRefused, match="without epoch or sequence"):
        receive(sent(**options, attributes=batch.TRANSACTIONAL))
    with pytest.raises(RecordRefused, match="without epoch or sequence"):
        BatchFormat().receive(memoryview(bytearray(sent(**options))), own)
    data = memoryview(bytearray(sent(**options, attributes=batch.TRANSACTIONAL)))
    assert BatchFormat().receive(data, own).stamp == ProducerStamp(7, 2, -1, -1, transactional=True)


def test_a_batch_of_nobody_is_nobodys_whatever_else_it_says() -> None:
    assert receive(sent(producer_id=-1, producer_epoch=3, base_sequence=9)).stamp is None


@settings(max_examples=400)
@given(mutations(batches()), st.sampled_from([200, 1_000, SIZE_MAX]), st.booleans())
def test_whatever_a_client_sends_is_refused_or_stored_whole(data: bytes, size_max: int, reseal: bool) -> None:
    """P1: no other exception; and what is taken is valid, within its limit, and holds what it says."""
    buffer = bytearray(data)
    if reseal and len(buffer) >= 61:
        resealed(buffer)
    try:
        frame = receive(buffer, size_max)
    except CordwoodError:
        return
    FORMAT.place(frame, FrameSlot(5, 1))
    header = batch.read_header(buffer)
    batch.validate(buffer, header)
    assert header.size == len(buffer) <= size_max
    assert len(batch.decode_records(buffer, header)) == frame.record_count == header.next_offset - 5
    assert frame.max_timestamp == header.max_timestamp


def test_checks_are_the_same_in_any_buffer() -> None:
    """A request is one buffer; a batch is a view into it that others lie beside."""
    data = sent(producer_id=1, producer_epoch=0, base_sequence=0)
    around = bytearray(b"before") + data + b"after"
    make: list[Callable[[], memoryview]] = [
        lambda: memoryview(bytearray(data)),
        lambda: memoryview(around)[6 : 6 + len(data)],
    ]
    for view in make:
        frame = FORMAT.receive(view(), BatchTerms(SIZE_MAX))
        FORMAT.place(frame, FrameSlot(3, 0, 8))
        batch.validate(frame.data, batch.read_header(frame.data))
    assert around.startswith(b"before")
    assert around.endswith(b"after")
