"""laminarmq's store and dense index: exact bytes, read back by a reader of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from formats.readers import read_laminarmq
from hypothesis import given
from hypothesis import strategies as st
from support.flips import undetected

from cordwood.errors import ChecksumMismatch, FrameTooLarge, InvalidBatch, RecordRefused, TruncatedFrame
from cordwood.formats.per_record import laminarmq
from cordwood.formats.per_record.laminarmq import IndexRecord

STORE = bytes.fromhex(
    "20000000"  # metadata length 32
    "7b68e5cf8b010000"  # timestamp 1700000000123 ms
    "00"  # flags
    "01000000"  # key length 1
    "6b"  # key "k"
    "01000000"  # one header
    "05000000"  # its name has 5 bytes
    "7472616365"  # "trace"
    "01000000"  # its value has 1
    "31"  # "1"
    "76616c7565"  # value "value"
    # the second record
    "11000000"  # metadata length 17
    "7c68e5cf8b010000"  # timestamp 1700000000124 ms
    "01"  # flags: null value
    "ffffffff"  # no key
    "00000000"  # no headers
)
INDEX = bytes.fromhex(
    "0700000000000000"  # base index 7
    "0000000000000000"  # padding
    # CRC-32 of the 41 bytes of the first record, as gzip has it in its trailer, widened:
    # xxd -r -p <<< 2000…7565 | gzip -c | tail -c8 | head -c4 | xxd -p
    "87002e2500000000"
    "29000000"  # length 41
    "00000000"  # position 0
    "2ba504d400000000"  # CRC-32 of the second, made as above
    "15000000"  # length 21
    "29000000"  # position 41
)
texts = st.binary(max_size=20)
rows = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.none() | texts,
    st.none() | texts,
    st.lists(st.tuples(st.text(max_size=5), texts), max_size=3),
)


def walk(store: bytes, index: bytes) -> list[tuple[Any, ...]]:
    """Read all records as a log would: entries follow on each other, to the last byte."""
    found: list[tuple[Any, ...]] = [(laminarmq.parse_base_marker(index),)]
    end = 0
    for entry in laminarmq.parse_index(index):
        if entry.position != end:
            raise InvalidBatch(position=end, expected=end, found=entry.position, what="position")
        laminarmq.check_record(store, entry)
        record = laminarmq.parse_record(store, entry.position, entry.end)
        found.append((record.timestamp_ms, record.key, record.value(store), list(record.headers)))
        end = entry.end
    return found


def laid_out(rows: list[Any], base: int = 0) -> tuple[bytes, bytes]:
    store, index = b"", laminarmq.BASE_MARKER.pack(base, 0)
    for timestamp_ms, key, value, headers in rows:
        record = laminarmq.encode_record(timestamp_ms, key, value, headers)
        index += laminarmq.index_record(record, len(store))
        store += record
    return store, index


def test_store_and_index_have_exactly_the_bytes_of_the_tables() -> None:
    rows = [(1_700_000_000_123, b"k", b"value", [("trace", b"1")]), (1_700_000_000_124, None, None, [])]
    assert laid_out(rows, 7) == (STORE, INDEX)
    assert walk(STORE, INDEX) == [(7,), *rows]


@given(st.lists(rows, max_size=5), st.integers(0, 2**63))
def test_what_we_write_another_reader_reads(rows: list[Any], base: int) -> None:
    store, index = laid_out(rows, base)
    seen = list(read_laminarmq.records(store, index))
    assert [(each["timestamp_ms"], each["key"], each["value"], each["headers"]) for each in seen] == rows
    assert [each["index"] for each in seen] == [base + i for i in range(len(rows))]
    assert walk(store, index) == [(base,), *rows]


def test_the_reader_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "7.store").write_bytes(STORE)
    (tmp_path / "7.index").write_bytes(INDEX)
    program = [
        sys.executable,
        "-I",
        read_laminarmq.__file__,
        str(tmp_path / "7.store"),
        str(tmp_path / "7.index"),
    ]
    lines = subprocess.run(program, capture_output=True, check=True).stdout.splitlines()
    assert len(lines) == 2
    assert b'"value": "76616c7565"' in lines[0]


def test_every_turned_bit_of_the_store_is_noticed() -> None:
    assert undetected(STORE, lambda store: walk(store, INDEX)) == []


def test_every_turned_bit_of_the_index_is_noticed_but_in_its_base() -> None:
    """Which index the first record has, only the file's name says a second time."""
    missed = undetected(INDEX, lambda index: walk(STORE, index))
    assert missed == [byte for byte in range(8) for _ in range(8)]


def test_a_torn_entry_is_not_looked_at() -> None:
    for kept in range(16):
        assert len(list(laminarmq.parse_index(INDEX[: 32 + kept]))) == 1
    for kept in range(16):
        with pytest.raises(TruncatedFrame):
            laminarmq.parse_base_marker(INDEX[:kept])


def test_an_entry_that_reaches_beyond_the_store_is_truncated() -> None:
    entry = next(laminarmq.parse_index(INDEX))
    for kept in range(41):
        with pytest.raises(TruncatedFrame):
            laminarmq.check_record(STORE[:kept], entry)
    with pytest.raises(ChecksumMismatch):
        laminarmq.check_record(bytes(41), entry)
    with pytest.raises(FrameTooLarge):
        laminarmq.check_record(STORE, entry, size_max=40)


def test_positions_end_at_four_gibibytes() -> None:
    assert laminarmq.encode_entry(0, 16, 2**32 - 16)
    with pytest.raises(FrameTooLarge, match="4294967296"):
        laminarmq.encode_entry(0, 17, 2**32 - 16)


def test_what_the_metadata_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(RecordRefused, match="'trace' without a value"):
        laminarmq.encode_record(0, None, b"", [("trace", None)])
    with pytest.raises(FrameTooLarge, match="at most 40 bytes"):
        laminarmq.encode_record(0, b"k", b"x" * 30, size_max=40)


@given(st.binary(max_size=60))
def test_metadata_of_others_is_told_from_ours(metadata: bytes) -> None:
    """Whatever stands there, its value can be had; taken for ours it is only if every byte adds up."""
    record = laminarmq.METADATA_LENGTH.pack(len(metadata)) + metadata + b"value"
    found, value_at = laminarmq.split_record(record, 0, len(record))
    assert (bytes(found), record[value_at:]) == (metadata, b"value")
    try:
        parsed = laminarmq.parse_record(record, 0, len(record))
    except InvalidBatch:
        return
    again = laminarmq.encode_record(parsed.timestamp_ms, parsed.key, b"value", parsed.headers)
    assert again == record


@given(st.binary(max_size=60))
def test_no_bytes_make_parsing_fail_otherwise(record: bytes) -> None:
    with pytest.raises(InvalidBatch):
        laminarmq.parse_record(record[:20], 0, len(record[:20]))
    assert IndexRecord(0, 5, 7).end == 12
