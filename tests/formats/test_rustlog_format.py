"""RustLog's records: exact bytes, read by a reader of its own, and what a bare file of them cannot show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from formats.readers import read_rustlog
from hypothesis import given
from hypothesis import strategies as st
from support.flips import undetected

from cordwood.errors import FrameError, FrameTooLarge, InvalidBatch, RecordRefused, TruncatedFrame
from cordwood.formats.per_record import rustlog

GOLDEN = bytes.fromhex(
    "00000005"  # length: 5 bytes of payload
    "0000000000000007"  # offset 7
    "00060a2418202240"  # timestamp 1700000000123456 µs: printf '%016x' 1700000000123456
    "68656c6c6f"  # payload: printf hello | xxd -p
)

records = st.tuples(st.integers(0, 2**63 - 1), st.integers(1, 2**63 - 1), st.binary(max_size=200))


def walk(data: bytes) -> list[tuple[int, int, bytes]]:
    """Read all records as a log would: dense offsets, to the last byte."""
    found, at, expected = [], 0, None
    while at < len(data):
        record = rustlog.parse_record(data, at, size_max=1 << 20)
        if expected is not None and record.offset != expected:
            raise InvalidBatch(position=at + 4, expected=expected, found=record.offset, what="offset")
        found.append((record.offset, record.timestamp_us, data[record.payload_at : record.end]))
        expected, at = record.offset + 1, record.end
    return found


def test_a_record_has_exactly_the_bytes_of_the_table() -> None:
    assert rustlog.encode_record(7, 1_700_000_000_123_456, b"hello") == GOLDEN
    found = rustlog.parse_record(GOLDEN)
    assert found == rustlog.RustlogRecord(0, 5, 7, 1_700_000_000_123_456)
    assert found.end == len(GOLDEN)


@given(st.lists(records, min_size=1, max_size=5))
def test_what_we_write_another_reader_reads(rows: list[tuple[int, int, bytes]]) -> None:
    data = b"".join(rustlog.encode_record(*row) for row in rows)
    seen = [(each["offset"], each["timestamp_us"], each["value"]) for each in read_rustlog.records(data)]
    assert seen == rows
    at = 0
    for offset, timestamp_us, payload in rows:
        record = rustlog.parse_record(data, at)
        assert (record.offset, record.timestamp_us) == (offset, timestamp_us)
        assert data[record.payload_at : record.end] == payload
        at = record.end


def test_the_reader_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000007.log"
    segment.write_bytes(GOLDEN)
    program = [sys.executable, "-I", read_rustlog.__file__, str(segment)]
    assert b'"value": "68656c6c6f"' in subprocess.run(program, capture_output=True, check=True).stdout


@pytest.mark.parametrize("kept", range(len(GOLDEN)))
def test_a_record_cut_anywhere_is_truncated(kept: int) -> None:
    with pytest.raises(TruncatedFrame) as caught:
        rustlog.parse_record(GOLDEN[:kept])
    assert caught.value.position == 0
    assert str(kept) in str(caught.value.found)


def test_zeros_are_never_a_record() -> None:
    with pytest.raises(InvalidBatch, match="zeros"):
        rustlog.parse_record(bytes(40))
    with pytest.raises(RecordRefused, match="zeros"):
        rustlog.encode_record(0, 0, b"")


def test_an_empty_payload_is_a_record() -> None:
    assert rustlog.parse_record(rustlog.encode_record(0, 1, b"")).length == 0


def test_what_the_header_cannot_hold_is_refused() -> None:
    with pytest.raises(RecordRefused, match="1970"):
        rustlog.encode_record(0, -1, b"x")
    with pytest.raises(FrameTooLarge, match="at most 24 bytes"):
        rustlog.encode_record(0, 1, b"hello", size_max=24)


def test_a_length_beyond_the_limit_is_refused_before_it_is_followed() -> None:
    with pytest.raises(FrameTooLarge):
        rustlog.parse_record(b"\xff" * 4 + GOLDEN[4:])


def test_turned_bits_in_payload_and_time_go_unnoticed_by_the_bare_format() -> None:
    """The page says so, and it is why there is a checksum beside each log."""
    data = b"".join(rustlog.encode_record(i, 1_000_000 + i, b"payload") for i in range(3))
    missed = undetected(data, walk)
    header_bytes = {at for at in missed if at % 27 < 4}
    assert not header_bytes, "a wrong length must show"
    # Timestamp and payload are 15 of 27 bytes; only their top bit, a time beyond 2**63, is noticed.
    assert len(missed) == 3 * (15 * 8 - 1)


@given(st.binary(max_size=200), st.integers(0, 40))
def test_no_bytes_make_parsing_fail_otherwise(data: bytes, position: int) -> None:
    try:
        end = rustlog.parse_record(data, position).end
    except FrameError:
        end = position
    assert end <= max(len(data), position)
