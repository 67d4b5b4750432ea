"""Kimberlite's records: exact bytes, a chain that names its first break, and streams kept apart."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from formats.readers import read_kimberlite
from hypothesis import given
from hypothesis import strategies as st
from support.flips import undetected

from cordwood.errors import (
    ChecksumMismatch,
    FrameError,
    FrameTooLarge,
    InvalidBatch,
    TruncatedFrame,
    WrongStream,
)
from cordwood.formats.per_record import kimberlite
from cordwood.formats.per_record.kimberlite import NO_HASH, ChainBreak
from cordwood.records import EventType

FIRST = bytes.fromhex(
    "2d000000"  # length 45: 40 bytes of metadata and 5 of data
    # CRC-32 of the 77 bytes from the hash on, as gzip has it in its trailer:
    # xxd -r -p <<< 0000…7374 | gzip -c | tail -c8 | head -c4 | xxd -p
    "8ef52dd1"
    "0000000000000000000000000000000000000000000000000000000000000000"  # there is no record before
    "0000000000000000"  # position 0
    "0300000000000000"  # tenant 3
    "0500000000000000"  # stream 5
    "40222018240a0600"  # timestamp 1700000000123456 µs
    "0000"  # event type: data
    "000000000000"  # reserved
    "6669727374"  # data "first"
)
SECOND = bytes.fromhex(
    "28000000"  # length 40
    "2f7d12b4"  # CRC-32, made as above
    # SHA-256 of all of the first record: xxd -r -p <<< 2d00…7374 | sha256sum
    "179114ee6af9f997547cabf42536ce4e70d9310cf290c561747d0d9b02e30d61"
    "0100000000000000"  # position 1
    "0300000000000000"  # tenant 3
    "0500000000000000"  # stream 5
    "41222018240a0600"  # timestamp 1700000000123457 µs
    "0200"  # event type: tombstone
    "000000000000"  # reserved
)
#: xxd -r -p <<< 2800…0000 | sha256sum
HEAD = bytes.fromhex("2db2f84ee7315ce32be8c05550d32da36155fa542de34acbe2892f7a03f08563")


def chained(values: list[bytes], **given: Any) -> list[bytes]:
    out, previous = [], NO_HASH
    for i, value in enumerate(values):
        out.append(kimberlite.encode_record(i, 1_000 + i, value, previous, **given))
        previous = hashlib.sha256(out[-1]).digest()
    return out


def walk(data: bytes) -> list[tuple[Any, ...]]:
    """Read all records by what each says of itself, the chain left alone."""
    found, at = [], 0
    while at < len(data):
        record = kimberlite.parse_record(data, at)
        found.append((*record[3:], record.data(data)))
        at = record.end
    return found


def test_records_have_exactly_the_bytes_of_the_tables() -> None:
    given = {"tenant": 3, "stream": 5}
    first = kimberlite.encode_record(0, 1_700_000_000_123_456, b"first", NO_HASH, **given)
    assert first == FIRST
    previous = kimberlite.parse_record(first).hash(first)
    tombstone = {"event_type": EventType.TOMBSTONE, **given}
    assert kimberlite.encode_record(1, 1_700_000_000_123_457, b"", previous, **tombstone) == SECOND
    assert kimberlite.verify_chain([FIRST, SECOND]) == kimberlite.ChainReport(2, HEAD)


@given(st.lists(st.binary(max_size=50) | st.integers(0, 3000).map(bytes), min_size=1, max_size=5))
def test_what_we_write_another_reader_reads(values: list[bytes]) -> None:
    encoded = chained(values, tenant=1, stream=2)
    seen = list(read_kimberlite.records([b"".join(encoded[:2]), b"".join(encoded[2:])]))
    assert [each["value"] for each in seen] == values
    assert [each["position"] for each in seen] == list(range(len(values)))
    assert [each["timestamp_us"] for each in seen] == [1_000 + i for i in range(len(values))]
    assert {(each["tenant"], each["stream"]) for each in seen} == {(1, 2)}
    whole = b"".join(encoded)
    assert [record[-1] for record in walk(whole)] == values


def test_the_reader_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    paths = [tmp_path / "00000000.segment", tmp_path / "00000001.segment"]
    for path, data in zip(paths, (FIRST, SECOND), strict=True):
        path.write_bytes(data)
    program = [sys.executable, read_kimberlite.__file__, *map(str, paths)]
    lines = subprocess.run(program, capture_output=True, check=True).stdout.splitlines()
    assert len(lines) == 2
    assert b'"event_type": 2' in lines[1]


def test_large_data_is_compressed_only_if_that_makes_it_smaller() -> None:
    zeros, noise = bytes(5_000), b"".join(hashlib.sha256(bytes([i])).digest() for i in range(100))
    small = kimberlite.encode_record(0, 1, zeros, NO_HASH)
    assert len(small) < 200
    assert kimberlite.parse_record(small).compressed
    assert kimberlite.parse_record(small).data(small) == zeros
    for data, least in ((noise, 1024), (zeros, None), (zeros, 5_001)):
        stored = kimberlite.encode_record(0, 1, data, NO_HASH, compressed_min=least)
        assert not kimberlite.parse_record(stored).compressed
        assert stored[80:] == data


def test_compressed_data_may_not_swell_beyond_the_limit() -> None:
    small = kimberlite.encode_record(0, 1, bytes(5_000), NO_HASH)
    with pytest.raises(FrameTooLarge, match="at most 4999 bytes"):
        kimberlite.parse_record(small).data(small, size_max=4_999)


@pytest.mark.parametrize("kept", range(len(FIRST)))
def test_a_record_cut_anywhere_is_truncated(kept: int) -> None:
    with pytest.raises(TruncatedFrame):
        kimberlite.parse_record(FIRST[:kept])


def test_every_turned_bit_is_noticed_without_the_chain() -> None:
    assert undetected(FIRST + SECOND, walk) == []


def test_a_record_of_another_stream_is_refused_with_both() -> None:
    record = kimberlite.parse_record(FIRST)
    kimberlite.check_stream(record, 3, 5)
    for tenant, stream in ((3, 6), (4, 5)):
        with pytest.raises(WrongStream, match=f"expected tenant {tenant} and stream {stream}") as caught:
            kimberlite.check_stream(record, tenant, stream)
        assert caught.value.found == "tenant 3 and stream 5"


def test_the_chain_names_the_first_record_that_was_replaced() -> None:
    """A record that was exchanged for another one, checksum right, shows in the record after it."""
    encoded = chained([b"one", b"two", b"three", b"four"])
    hashes = [hashlib.sha256(each).digest() for each in encoded]
    forged = kimberlite.encode_record(1, 1_001, b"TWO", hashes[0])
    report = kimberlite.verify_chain([b"".join((encoded[0], forged, *encoded[2:]))])
    at = len(encoded[0]) + len(forged)
    assert report.broken == ChainBreak(0, at, 2, hashlib.sha256(forged).digest(), hashes[1])
    assert report.record_count == 2
    assert hashes[1].hex() in str(report.broken)
    assert not report.sound


def test_the_chain_sees_what_checksums_cannot() -> None:
    encoded = chained([bytes([i]) * 4 for i in range(5)])
    sound = kimberlite.verify_chain(encoded)
    assert sound.sound
    cases = {
        "left out": [*encoded[:2], *encoded[3:]],
        "twice": [*encoded[:3], encoded[2], *encoded[3:]],
        "exchanged": [*encoded[:2], encoded[3], encoded[2], encoded[4]],
        "without the first": encoded[1:],
    }
    for name, records in cases.items():
        assert kimberlite.verify_chain([b"".join(records)]).broken is not None, name
    assert kimberlite.verify_chain(
        [b"".join(encoded[1:])], prev_hash=hashlib.sha256(encoded[0]).digest()
    ).sound
    print(f"{len(cases)} changes that every checksum agrees with break the chain")


def test_the_chain_goes_on_over_segments_and_past_preallocated_zeros() -> None:
    encoded = chained([b"a", b"b", b"c"])
    padded = [encoded[0] + encoded[1] + bytes(500), encoded[2] + bytes(79)]
    assert kimberlite.verify_chain(padded) == kimberlite.verify_chain(encoded)


def test_a_damaged_record_ends_the_chain_with_its_place() -> None:
    encoded = bytearray(b"".join(chained([b"a", b"b", b"c"])))
    encoded[-1] ^= 1
    report = kimberlite.verify_chain([encoded])
    assert isinstance(report.invalid, ChecksumMismatch)
    assert report.invalid.position == 2 * 81 + 4
    assert report.record_count == 2


@pytest.mark.parametrize(
    ("given", "kind", "what"),
    [
        ({"position": 2**63}, InvalidBatch, "position"),
    ],
)
def test_fields_that_we_do_not_know_are_named(
    given: dict[str, int], kind: type[FrameError], what: str
) -> None:
    position = given.pop("position", 0)
    data = kimberlite.encode_record(position, 0, b"", NO_HASH, **given)
    with pytest.raises(kind, match=what):
        kimberlite.parse_record(data)


def test_zeros_and_lengths_beyond_the_limit_are_no_record() -> None:
    with pytest.raises(InvalidBatch, match="zeros"):
        kimberlite.parse_record(bytes(100))
    with pytest.raises(FrameTooLarge):
        kimberlite.parse_record(b"\xff" * 4 + FIRST[4:])
    with pytest.raises(FrameTooLarge, match="at most 84 bytes"):
        kimberlite.encode_record(0, 0, b"first", NO_HASH, size_max=84)
