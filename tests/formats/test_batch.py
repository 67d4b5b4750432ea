"""The native batch: what goes in comes out, and no bytes make it lie, over-read or swell."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batches, mutations, row_lists

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
from cordwood.formats.compression import Compression
from cordwood.kernels import HeaderColumn, Stop, Want
from cordwood.records import Record

ROWS: list[tuple[Any, ...]] = [
    (b"k0", b"v0", [("trace", b"1"), ("none", None)], 1_000),
    (None, b"", None, 999),
    (b"", None, [], 1_005),
]


def expected_records(rows: list[Any], now_ms: int, base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + i, now_ms if row[3] is None else row[3], row[0], row[1], tuple(row[2] or ()))
        for i, row in enumerate(rows)
    ]


@given(row_lists, st.sampled_from(Compression), st.integers(0, 2**60))
def test_every_record_comes_back_as_it_went_in(
    rows: list[Any], compression: Compression, base_offset: int
) -> None:
    options = BatchOptions(base_offset=base_offset, compression=compression)
    encoded = batch.encode_records(rows, 77, options)
    header = batch.read_header(encoded)
    batch.validate(encoded, header)
    assert batch.decode_records(encoded, header) == expected_records(rows, 77, base_offset)
    assert header.next_offset == base_offset + len(rows)


@given(row_lists, st.sampled_from(Compression), st.sets(st.sampled_from(list(Want))))
def test_columns_and_rows_tell_the_same(rows: list[Any], compression: Compression, wanted: set[Want]) -> None:
    encoded = batch.encode_records(rows, 77, BatchOptions(base_offset=5, compression=compression))
    columns = batch.decode_columns(encoded, batch.scan(encoded), Want.ALL)
    records = batch.decode_records(encoded, batch.read_header(encoded))
    assert columns.rows == len(records)
    assert columns.offset is not None
    assert columns.timestamp is not None
    assert list(memoryview(columns.offset).cast("B").cast("q")) == [r.offset for r in records]
    assert list(memoryview(columns.timestamp).cast("B").cast("q")) == [r.timestamp for r in records]
    again = batch.encode_columns(columns, 0, columns.rows, BatchOptions(compression=compression))
    assert bytes(again) == bytes(encoded)
    part = batch.decode_columns(encoded, batch.scan(encoded), Want(sum(wanted)))
    for want, field in zip(Want, part[1:], strict=True):
        assert (field is not None) == (want in wanted)


def test_a_header_says_all_it_was_given() -> None:
    attributes = batch.TRANSACTIONAL | batch.CONTROL
    options = BatchOptions(1 << 40, 7, Compression.NONE, None, attributes, 123456789012, 31, 2**31 - 1)
    encoded = batch.encode_records(ROWS, 0, options)
    header = batch.read_header(encoded)
    assert header.base_offset == 1 << 40
    assert header.leader_epoch == 7
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (123456789012, 31, 2**31 - 1)
    assert header.is_transactional
    assert header.is_control
    assert not header.log_append_time
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_005)
    assert (header.record_count, header.last_offset_delta) == (3, 2)


def test_log_append_time_replaces_every_timestamp() -> None:
    stamped = batch.encode_records(ROWS, 5_000, BatchOptions(attributes=batch.LOG_APPEND_TIME))
    records = batch.decode_records(stamped, batch.read_header(stamped))
    assert {record.timestamp for record in records} == {5_000}
    later = batch.encode_records(ROWS, 0)
    batch.stamp_append_time(later, batch.read_header(later), 6_000)
    header = batch.read_header(later)
    batch.validate(later, header)
    assert {record.timestamp for record in batch.decode_records(later, header)} == {6_000}
    columns = batch.decode_columns(later, batch.scan(later), Want.TIMESTAMP | Want.TIMESTAMP_TYPE)
    assert columns.timestamp_type is not None
    assert list(memoryview(columns.timestamp_type).cast("B").cast("i")) == [1, 1, 1]


def test_placing_a_batch_changes_offset_and_epoch_and_nothing_else() -> None:
    encoded = batch.encode_records(ROWS, 0)
    before = bytes(encoded)
    batch.place(encoded, 0, 1 << 50, 9)
    header = batch.read_header(encoded)
    batch.check_crc(encoded, header)
    assert (header.base_offset, header.leader_epoch) == (1 << 50, 9)
    assert before[8:12] == encoded[8:12]
    assert before[16:] == encoded[16:]


def test_control_batches_give_no_rows() -> None:
    log = bytearray()
    for i, attributes in enumerate([0, batch.CONTROL | batch.TRANSACTIONAL, 0]):
        log += batch.encode_records(ROWS, 0, BatchOptions(base_offset=3 * i, attributes=attributes))
    columns = batch.decode_columns(log, batch.scan(log), Want.OFFSET)
    assert columns.offset is not None
    assert list(memoryview(columns.offset).cast("B").cast("q")) == [0, 1, 2, 6, 7, 8]


def test_a_compacted_batch_keeps_its_gaps() -> None:
    encoded = batch.encode_records(ROWS, 0, BatchOptions(base_offset=10))
    columns = batch.decode_columns(encoded, batch.scan(encoded))
    sparse = columns._replace(offset=struct.pack("=3q", 10, 14, 4_000_000))
    again = batch.encode_columns(sparse, 0, 3)
    header = batch.read_header(again)
    assert [r.offset for r in batch.decode_records(again, header)] == [10, 14, 4_000_000]
    assert (header.record_count, header.next_offset) == (3, 4_000_001)


# --- scanning ----------------------------------------------------------------------------------------


def log_of(*counts: int, epoch: int = 0) -> bytearray:
    log, offset = bytearray(), 0
    for count in counts:
        rows = [(None, b"v%d" % i) for i in range(count)]
        log += batch.encode_records(rows, 0, BatchOptions(base_offset=offset, leader_epoch=epoch))
        offset += count
    return log


def test_scan_finds_every_batch_and_stops_at_the_end() -> None:
    log = log_of(1, 3, 2)
    found = batch.scan(log)
    assert (len(found), found.stopped_at, found.reason) == (3, len(log), Stop.END)
    assert found.column(HeaderColumn.BASE_OFFSET).tolist() == [0, 1, 4]
    assert batch.count_sound(log, found) == 3


def test_scan_cut_at_any_byte_finds_the_whole_batches_before_it() -> None:
    log = log_of(1, 3, 2)
    ends = [header.end for header in batch.scan(log).headers()]
    for size in range(len(log)):
        found = batch.scan(log[:size])
        whole = [end for end in ends if end <= size]
        assert [header.end for header in found.headers()] == whole
        assert found.stopped_at == max(whole, default=0)
        assert found.reason is (Stop.END if size in (0, *whole) else Stop.SHORT)


@pytest.mark.parametrize("zeros", [61, 62, 5000])
def test_zeros_are_the_end_of_a_preallocated_file_and_no_batch(zeros: int) -> None:
    log = log_of(2)
    found = batch.scan(log + bytes(zeros))
    assert (len(found), found.stopped_at, found.reason) == (1, len(log), Stop.ZEROS)


def test_scan_stops_where_offsets_or_epochs_go_back() -> None:
    log = log_of(2)
    assert batch.scan(log + log).reason is Stop.BAD_OFFSET
    assert batch.scan(log, next_offset=1).reason is Stop.BAD_OFFSET
    later = batch.encode_records([(None, b"")], 0, BatchOptions(base_offset=2, leader_epoch=0))
    assert batch.scan(log_of(2, epoch=1) + later).reason is Stop.BAD_EPOCH
    assert batch.scan(log, epochs=(1, 5)).reason is Stop.BAD_EPOCH
    assert batch.scan(log_of(2, epoch=6), epochs=(1, 5)).reason is Stop.BAD_EPOCH


def test_a_dense_scan_stops_at_a_gap() -> None:
    log = log_of(2)
    gap = log + batch.encode_records([(None, b"")], 0, BatchOptions(base_offset=3, leader_epoch=0))
    assert len(batch.scan(gap)) == 2
    found = batch.scan(gap, dense=True)
    assert (len(found), found.reason, found.stopped_at) == (1, Stop.BAD_OFFSET, len(log))
    assert batch.scan(log, dense=True, next_offset=-1).reason is Stop.BAD_OFFSET


@pytest.mark.parametrize(
    ("at", "value", "reason", "error"),
    [
        (16, b"\x01", Stop.BAD_MAGIC, UnsupportedFrame),
        (8, struct.pack(">i", 48), Stop.BAD_LENGTH, InvalidBatch),
        (8, struct.pack(">i", -5), Stop.BAD_LENGTH, InvalidBatch),
        (8, struct.pack(">i", 2**31 - 1), Stop.TOO_LARGE, FrameTooLarge),
        (8, struct.pack(">i", 5_000), Stop.SHORT, TruncatedFrame),
        (0, struct.pack(">q", -1), Stop.BAD_OFFSET, InvalidBatch),
        (23, struct.pack(">i", -1), Stop.BAD_OFFSET, InvalidBatch),
        (57, struct.pack(">i", -1), Stop.BAD_COUNT, InvalidBatch),
        (57, struct.pack(">i", 4), Stop.BAD_COUNT, InvalidBatch),
        (12, struct.pack(">i", -2), Stop.BAD_EPOCH, InvalidBatch),
    ],
)
def test_a_header_that_lies_is_named_by_field(at: int, value: bytes, reason: Stop, error: type) -> None:
    log = log_of(3)
    log[at : at + len(value)] = value
    found = batch.scan(log)
    assert found.reason is reason
    finding = found.error(log)
    assert type(finding) is error
    assert finding.position in (0, at)
    assert str(finding.found) in str(finding)


def test_read_header_of_a_cut_batch_says_what_is_missing() -> None:
    log = bytes(log_of(3))
    for size in range(len(log)):
        with pytest.raises((TruncatedFrame, InvalidBatch)) as caught:
            batch.read_header(log[:size])
        assert caught.value.position == 0


def test_read_header_reads_the_batch_at_a_position_and_no_other() -> None:
    log = log_of(1, 3, 2)
    second = list(batch.scan(log).headers())[1]
    assert batch.read_header(log, second.position) == second
    log[second.end + 16] = 9
    assert batch.read_header(log, second.position) == second


# --- batches that lie ----------------------------------------------------------------------------------


def reseal(encoded: bytearray) -> bytearray:
    """Make the checksum right again, so that only what the batch says is wrong."""
    struct.pack_into(">i", encoded, 8, len(encoded) - 12)
    header = batch.read_header(encoded, size_max=1 << 30)
    struct.pack_into(">I", encoded, 17, batch.crc_of(encoded, 0, header.size))
    return encoded


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize(
    ("count", "last_delta"), [(2, 1), (4, 3), (3, 3), (2, 2), (0, 2), (2**31 - 1, 2**31 - 2)]
)
def test_a_count_that_lies_is_refused(compression: Compression, count: int, last_delta: int) -> None:
    encoded = batch.encode_records(ROWS, 0, BatchOptions(compression=compression))
    struct.pack_into(">i", encoded, 23, last_delta)
    struct.pack_into(">i", encoded, 57, count)
    reseal(encoded)
    header = batch.read_header(encoded)
    with pytest.raises(InvalidBatch, match=r"record count|record length|end of records|offset delta"):
        batch.validate(encoded, header)


def test_a_max_timestamp_that_lies_is_refused_with_both() -> None:
    encoded = batch.encode_records(ROWS, 0)
    struct.pack_into(">q", encoded, 35, 1_006)
    reseal(encoded)
    with pytest.raises(InvalidBatch, match="max timestamp: expected 1005, found 1006"):
        batch.validate(encoded, batch.read_header(encoded))


@pytest.mark.parametrize("bits", [0x80, 0x100, -0x8000])
def test_unknown_attributes_are_refused(bits: int) -> None:
    encoded = batch.encode_records(ROWS, 0)
    struct.pack_into(">h", encoded, 21, bits)
    reseal(encoded)
    with pytest.raises(UnsupportedFrame, match="attributes"):
        batch.validate(encoded, batch.read_header(encoded))


@pytest.mark.parametrize("number", [5, 6, 7])
def test_unknown_compression_is_refused(number: int) -> None:
    encoded = batch.encode_records(ROWS, 0)
    struct.pack_into(">h", encoded, 21, number)
    reseal(encoded)
    header = batch.read_header(encoded)
    with pytest.raises(UnsupportedFrame, match="compression"):
        batch.decode_records(encoded, header)
    with pytest.raises(UnsupportedFrame, match="compression"):
        batch.decode_columns(encoded, batch.scan(encoded))


def record_bytes(*fields: bytes, length: bytes | None = None) -> bytes:
    body = b"".join(fields)
    return (bytes([len(body) << 1]) if length is None else length) + body


LONG_VARINT = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
GOOD = (b"\0", b"\0", b"\0", b"\x01", b"\x01", b"\0")  # attributes, deltas, null key, null value, no headers


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (record_bytes(*GOOD, length=b"\x01"), "record length"),
        (record_bytes(*GOOD, length=b"\x7e"), "record length"),
        (record_bytes(*GOOD, length=LONG_VARINT), "record length"),
        (record_bytes(*GOOD, length=b"\xff\xff\xff\xff\x1f"), "record length"),
        (record_bytes(b"\0", LONG_VARINT, *GOOD[2:]), "timestamp delta"),
        (record_bytes(b"\0", b"\0", b"\x02", *GOOD[3:]), "offset delta"),
        (record_bytes(b"\0", b"\0", b"\x01", *GOOD[3:]), "offset delta"),
        (record_bytes(b"\0", b"\0", b"\0", b"\x03", *GOOD[4:]), "key length"),
        (record_bytes(b"\0", b"\0", b"\0", b"\x7e", *GOOD[4:]), "key length"),
        (record_bytes(*GOOD[:4], b"\x03", b"\0"), "value length"),
        (record_bytes(*GOOD[:4], b"\xfe\xff\xff\xff\x0f", b"\0"), "value length"),
        (record_bytes(*GOOD[:5], b"\x01"), "header count"),
        (record_bytes(*GOOD[:5], b"\xfe\xff\xff\xff\x0f"), "header count"),
        (record_bytes(*GOOD[:5], b"\x02", b"\x01\x01"), "header name length"),
        (record_bytes(*GOOD[:5], b"\x02", b"\x02\xff\x01"), "header name"),
        (record_bytes(*GOOD[:5], b"\x02", b"\x00\x03"), "header value length"),
        (record_bytes(*GOOD, b"\0"), "end of record"),
        (record_bytes(*GOOD) + b"\0", "end of records"),
        (record_bytes(*GOOD[:3]), "record count"),
    ],
)
def test_a_record_that_lies_is_named_by_field_and_position(record: bytes, field: str) -> None:
    encoded = reseal(bytearray(batch.encode_records([(None, None)], 0)[:61] + record))
    header = batch.read_header(encoded)
    for call in (batch.validate, batch.decode_records):
        with pytest.raises(InvalidBatch, match=f": {field}") as caught:
            call(encoded, header)
        assert 61 <= caught.value.position <= len(encoded)


def test_a_timestamp_out_of_range_is_refused() -> None:
    encoded = bytearray(batch.encode_records([(None, None, None, 5)], 0))
    struct.pack_into(">q", encoded, 27, 2**63 - 1)
    encoded[63] = 2  # its delta, now +1
    header = batch.read_header(reseal(encoded))
    with pytest.raises(InvalidBatch, match="timestamp delta"):
        batch.decode_records(encoded, header)


@settings(max_examples=300)
@given(mutations(batches()))
def test_any_damage_is_an_error_of_ours_or_a_correct_result(data: bytes) -> None:
    """Whatever the bytes: no other exception, and what validates decodes to what it says."""
    found = batch.scan(data)
    for header in found.headers():
        try:
            batch.validate(data, header)
        except CordwoodError:
            continue
        records = batch.decode_records(data, header)
        assert len(records) == header.record_count
        assert [r.offset for r in records] == list(range(header.base_offset, header.next_offset))


def test_every_single_bit_flip_under_the_checksum_is_found() -> None:
    """Of the rest, the header scan finds what it can: decision D4 says what remains."""
    encoded = batch.encode_records(ROWS, 0)
    caught = 0
    for bit in range(batch.CRC_START * 8, len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        found = batch.scan(damaged)
        if not len(found):
            caught += 1
            continue
        with pytest.raises(ChecksumMismatch):
            batch.check_crc(damaged, next(found.headers()))
        assert batch.count_sound(damaged, found) == 0
        caught += 1
    print(f"{caught} flips caught")
    assert caught == (len(encoded) - batch.CRC_START) * 8


# --- limits ------------------------------------------------------------------------------------------


def test_a_batch_over_the_limit_is_refused_on_write_and_on_read() -> None:
    with pytest.raises(FrameTooLarge):
        batch.encode_records([(None, bytes(2_000))], 0, size_max=1_000)
    encoded = batch.encode_records([(None, bytes(2_000))], 0)
    with pytest.raises(FrameTooLarge):
        batch.read_header(encoded, size_max=1_000)


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(RecordRefused):
        batch.encode_records([], 0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("text", b""), "key must be bytes"),
        ((b"", 7), "value must be bytes"),
        ((b"", b"", [(b"name", b"")]), "header name must be str"),
        ((b"", b"", [("name", "text")]), "header value must be bytes"),
        ((b"", b"", [("\ud800", b"")]), "no UTF-8 form"),
        ((b"", b"", [], "now"), "timestamp must be"),
        ((b"", b"", [], 2**63), "timestamp must be"),
        ((b"",), "has 1 fields"),
    ],
)
def test_what_is_no_record_is_refused_by_name(row: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(RecordRefused, match=reason):
        batch.encode_records([row], 0)


def test_records_of_any_bytes_like_kind_are_stored_as_bytes() -> None:
    encoded = batch.encode_records([(bytearray(b"k"), memoryview(b"v"))], 0)
    (record,) = batch.decode_records(encoded, batch.read_header(encoded))
    assert (record.key, record.value) == (b"k", b"v")
