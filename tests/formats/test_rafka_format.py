"""Rafka's log and dense offset index: exact bytes, read back by a reader of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from formats.readers import read_rafka
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.flips import undetected

from cordwood.errors import FrameTooLarge, InvalidBatch, TruncatedFrame
from cordwood.formats.shared import rafka
from cordwood.formats.shared.rafka import OffsetIndexEntry

LOG = bytes.fromhex(
    "05000000"  # length 5
    "6669727374"  # "first"
    "00000000"  # length 0: an empty record
    "06000000"  # length 6
    "7365636f6e64"  # "second"
)
INDEX = bytes.fromhex(
    "02000000"  # segment 2
    "04000000"  # physical offset 4: the bytes, after their length
    "05000000"  # length 5
    "0900000000000000"  # org 9
    "0102030405060708090a0b0c0d0e0f10"  # topic hash
    "03000000"  # partition 3
    "02000000"  # segment 2
    "0d000000"  # physical offset 13
    "00000000"  # length 0
    "0900000000000000"  # org 9
    "0102030405060708090a0b0c0d0e0f10"  # topic hash
    "03000000"  # partition 3
    "02000000"  # segment 2
    "11000000"  # physical offset 17
    "06000000"  # length 6
    "0a00000000000000"  # org 10
    "0102030405060708090a0b0c0d0e0f10"  # the same topic hash
    "03000000"  # partition 3
)
HASH = 0x100F0E0D0C0B0A090807060504030201


def laid_out(values: list[bytes], segment: int = 0) -> tuple[bytes, bytes]:
    log, index = b"", b""
    for i, value in enumerate(values):
        entry = OffsetIndexEntry(segment, len(log) + 4, len(value), i % 2, HASH, 0)
        log += rafka.encode_record(value)
        index += rafka.encode_entry(entry)
    return log, index


def test_log_and_index_have_exactly_the_bytes_of_the_table() -> None:
    entries = [
        OffsetIndexEntry(2, 4, 5, 9, HASH, 3),
        OffsetIndexEntry(2, 13, 0, 9, HASH, 3),
        OffsetIndexEntry(2, 17, 6, 10, HASH, 3),
    ]
    assert b"".join(map(rafka.encode_entry, entries)) == INDEX
    assert list(rafka.parse_entries(INDEX)) == entries
    values = [b"first", b"", b"second"]
    assert b"".join(map(rafka.encode_record, values)) == LOG
    assert [rafka.parse_record(LOG, entry) for entry in entries] == values


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.binary(max_size=20), min_size=1, max_size=8))
def test_what_we_write_another_reader_reads(values: list[bytes], tmp_path: Path) -> None:
    log, index = laid_out(values)
    (tmp_path / "0.log").write_bytes(log)
    (tmp_path / "0.oidx").write_bytes(index)
    seen = list(read_rafka.records(tmp_path))
    assert [each["bytes"] for each in seen] == values
    assert [each["virtual_offset"] for each in seen] == [i // 2 for i in range(len(values))]
    assert [rafka.parse_record(log, entry) for entry in rafka.parse_entries(index)] == values


def test_the_reader_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "2.log").write_bytes(LOG)
    (tmp_path / "2.oidx").write_bytes(INDEX)
    program = [sys.executable, "-I", read_rafka.__file__, str(tmp_path)]
    lines = subprocess.run(program, capture_output=True, check=True).stdout.splitlines()
    assert len(lines) == 3
    assert b'"bytes": "7365636f6e64"' in lines[2]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**128 - 1), st.integers(0, 2**32 - 1))
def test_the_key_of_a_virtual_topic_comes_back_as_it_went_in(org: int, hashed: int, partition: int) -> None:
    key = OffsetIndexEntry(0, 4, 0, org, hashed, partition).virtual_key
    assert rafka.parse_virtual_key(key) == (org, hashed, partition)


@pytest.mark.parametrize("key", ["", "1-2", "1-2-3-4", "1--2", "a-2-3", "1-2-4294967296", "1-2-³", "+1-2-3"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"is not|too large"):
        rafka.parse_virtual_key(key)


def test_zeros_after_the_last_entry_are_none_and_a_torn_one_is_not_looked_at() -> None:
    for padding in (0, 39, 40, 4096):
        assert len(list(rafka.parse_entries(INDEX + bytes(padding)))) == 3
    for kept in range(40):
        assert len(list(rafka.parse_entries(INDEX[: 80 + kept]))) == 2


def test_an_entry_that_does_not_fit_its_log_is_refused() -> None:
    first = next(rafka.parse_entries(INDEX))
    with pytest.raises(TruncatedFrame):
        rafka.parse_record(LOG[:8], first)
    with pytest.raises(InvalidBatch, match="length before the record"):
        rafka.parse_record(LOG, first._replace(length=4))
    with pytest.raises(FrameTooLarge):
        rafka.parse_record(LOG, first, size_max=4)
    with pytest.raises(FrameTooLarge):
        rafka.encode_record(b"first", size_max=4)


def test_turned_bits_in_records_and_in_whose_they_are_go_unnoticed() -> None:
    """The page says so. What shows is a length that differs, and an entry that points elsewhere."""

    def walk(log: bytes, index: bytes) -> list[tuple[bytes, str]]:
        return [
            (bytes(rafka.parse_record(log, entry)), entry.virtual_key)
            for entry in rafka.parse_entries(index)
            if entry.segment_id == 2 or _other_segment(entry)
        ]

    assert len(undetected(LOG, lambda log: walk(log, INDEX))) == 8 * len(b"firstsecond")
    missed = undetected(INDEX, lambda index: walk(LOG, index))
    # Org, hash and partition of three entries.
    assert sorted({byte % 40 for byte in missed}) == list(range(12, 40))
    assert len(missed) == 3 * 28 * 8


def _other_segment(entry: OffsetIndexEntry) -> bool:
    raise TruncatedFrame(position=0, expected="segment 2", found=entry.segment_id, what="segment")
