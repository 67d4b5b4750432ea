"""Framed records: exact bytes, read back by a reader of its own, and every turned bit noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from formats.readers import read_frame
from hypothesis import given
from hypothesis import strategies as st
from support.flips import undetected

from cordwood.errors import (
    ChecksumMismatch,
    FrameError,
    FrameTooLarge,
    InvalidBatch,
    TruncatedFrame,
    UnsupportedFrame,
)
from cordwood.formats.per_record import frame

GOLDEN = bytes.fromhex(
    "015e0bb1"  # magic 0xB10B5E01
    "0100"  # version 1
    "0000"  # flags: neither null value nor empty key
    "0700000000000000"  # offset 7
    "7b68e5cf8b010000"  # timestamp 1700000000123 ms
    "01000000"  # key length 1
    "05000000"  # value length 5
    "6b"  # key "k"
    "76616c7565"  # value "value"
    # CRC-32 of the 38 bytes above, as gzip has it in its trailer:
    # xxd -r -p <<< 015e0bb1…7565 | gzip -c | tail -c8 | head -c4 | xxd -p
    "5babfd04"
    "2e000000"  # frame length 46
)
keys = st.none() | st.binary(max_size=20)
rows = st.tuples(st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**63 - 1), keys, keys)


def walk(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found, at = [], 0
    while at < len(data):
        record = frame.parse_record(data, at)
        found.append((record.offset, record.timestamp_ms, record.key(data), record.value(data)))
        at = record.end
    return found


def test_a_record_has_exactly_the_bytes_of_the_table() -> None:
    assert frame.encode_record(7, 1_700_000_000_123, b"k", b"value") == GOLDEN
    assert frame.parse_record(GOLDEN) == frame.FramedRecord(0, 0, 7, 1_700_000_000_123, 1, 5)


@given(st.lists(rows, max_size=5))
def test_what_we_write_another_reader_reads(
    rows: list[tuple[int, int, bytes | None, bytes | None]],
) -> None:
    data = b"".join(frame.encode_record(*row) for row in rows)
    assert [tuple(each.values()) for each in read_frame.records(data)] == rows
    assert walk(data) == rows


def test_the_reader_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000007.log"
    segment.write_bytes(GOLDEN)
    program = [sys.executable, "-I", read_frame.__file__, str(segment)]
    assert (
        b'"key": "6b", "value": "76616c7565"'
        in subprocess.run(program, capture_output=True, check=True).stdout
    )


@pytest.mark.parametrize("kept", range(len(GOLDEN)))
def test_a_frame_cut_anywhere_is_truncated(kept: int) -> None:
    with pytest.raises(TruncatedFrame):
        frame.parse_record(GOLDEN[:kept])


def test_every_turned_bit_is_noticed() -> None:
    data = frame.encode_record(0, 5, None, None) + GOLDEN + frame.encode_record(8, 6, b"", b"")
    assert undetected(data, walk) == []


@pytest.mark.parametrize(
    ("at", "changed", "kind", "what"),
    [
        (0, b"\x00", UnsupportedFrame, "magic"),
        (4, b"\x02", UnsupportedFrame, "version"),
        (6, b"\x04", UnsupportedFrame, "flags"),
        (6, b"\x01", InvalidBatch, "value length"),
        (6, b"\x02", InvalidBatch, "key length"),
        (15, b"\x80", InvalidBatch, "offset"),
        (31, b"\xff", FrameTooLarge, "at most"),
        (33, b"\x00", ChecksumMismatch, "CRC-32"),
        (42, b"\x00", InvalidBatch, "length after the frame"),
    ],
)
def test_each_field_that_is_wrong_is_named(
    at: int, changed: bytes, kind: type[FrameError], what: str
) -> None:
    damaged = GOLDEN[:at] + changed + GOLDEN[at + 1 :]
    with pytest.raises(kind, match=what):
        frame.parse_record(damaged)


def test_a_frame_beyond_the_limit_is_refused() -> None:
    with pytest.raises(FrameTooLarge, match="at most 45 bytes"):
        frame.encode_record(7, 0, b"k", b"value", size_max=45)


@given(st.binary(max_size=100))
def test_no_bytes_make_parsing_fail_otherwise(data: bytes) -> None:
    for candidate in (data, GOLDEN[:8] + data):
        with pytest.raises(FrameError):
            frame.parse_record(candidate)
