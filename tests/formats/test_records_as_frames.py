"""Formats of one record a frame, by the contract alone: no engine, no files."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import FrameTooLarge, RecordRefused, WrongStream
from cordwood.formats import batch
from cordwood.formats.format import Beside, Encoded, Ending, FrameSlot
from cordwood.formats.per_record.frame import FrameFormat
from cordwood.formats.per_record.kimberlite import KimberliteFormat
from cordwood.formats.per_record.laminarmq import LaminarmqFormat
from cordwood.formats.per_record.record_per_frame import RecordPerFrame, RecordTable
from cordwood.formats.per_record.rustlog import RustlogFormat
from cordwood.records import Record

FORMATS: list[RecordPerFrame] = [RustlogFormat(), FrameFormat(), KimberliteFormat(), LaminarmqFormat()]
every_format = pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.name)
SIZE_MAX = 1 << 20
BASE = 41


def encode(format_: RecordPerFrame, rows: list[Any], before: bytes = b"") -> Encoded:
    return format_.encode(rows, slot_after(before), now_ms=1_000)


def slot_after(before: bytes) -> FrameSlot:
    return FrameSlot(BASE, 0, size_max=SIZE_MAX, before=before)


def scan(format_: RecordPerFrame, encoded: Encoded, before: bytes | None = b"") -> RecordTable:
    """Read as the engine would: entries of the sidecar beside the store."""
    entries = b""
    if format_.sidecar is not None:
        entries = format_.sidecar.pack(0, encoded.sizes, encoded.checksums)
    return format_.scan(
        encoded.data,
        next_offset=BASE,
        dense=True,
        epochs=None,
        size_max=SIZE_MAX,
        beside=Beside(0, entries, before),
    )


def rows_for(format_: RecordPerFrame, drawn: list[Any]) -> list[Any]:
    """Return rows that a format can hold."""
    return [
        (
            key if format_.holds.keys else None,
            b"" if value is None and not format_.holds.null_values else value,
            headers if format_.holds.headers else (),
            timestamp,
        )
        for key, value, headers, timestamp in drawn
    ]


texts = st.binary(max_size=30)
drawn_rows = st.lists(
    st.tuples(
        st.none() | texts,
        st.none() | texts | st.just(bytes(4_000)),
        st.lists(st.tuples(st.text(max_size=4), texts), max_size=2).map(tuple),
        st.integers(1, 2**50),
    ),
    min_size=1,
    max_size=6,
)


@every_format
@given(drawn=drawn_rows)
def test_every_record_comes_back_as_it_went_in(format_: RecordPerFrame, drawn: list[Any]) -> None:
    rows = rows_for(format_, drawn)
    encoded = encode(format_, rows)
    table = scan(format_, encoded)
    assert (table.ending, table.end, len(table)) == (Ending.END, len(encoded.data), len(rows))
    expected = [
        Record(BASE + i, timestamp, key, value, headers)
        for i, (key, value, headers, timestamp) in enumerate(rows)
    ]
    assert [record for i in range(len(table)) for record in table.records(i)] == expected
    kafka = b"".join(table.batches(0, len(table)))
    found = batch.scan(kafka)
    assert [each for header in found.headers() for each in batch.decode_records(kafka, header)] == expected
    assert table.left == encoded.left


@every_format
@given(value=st.binary(max_size=100), cut=st.integers(0, 100))
def test_a_streamed_record_has_the_bytes_of_any_other(
    format_: RecordPerFrame, value: bytes, cut: int
) -> None:
    key = b"k" if format_.holds.keys else None
    headers = [("h", b"1")] if format_.holds.headers else []
    before = bytes(range(32)) if format_.chained else b""
    whole = encode(format_, [(key, value, headers, 7)], before)
    streamed = format_.stream(key, headers, len(value), slot_after(before), timestamp=7)
    assert len(streamed.head) + len(value) <= streamed.size
    for chunk in (value[:cut], value[cut:]):
        streamed.update(chunk)
    head, tail = streamed.finish()
    assert bytes(head) + value + tail == bytes(whole.data)
    assert streamed.size == len(whole.data)
    assert (streamed.next_offset, streamed.max_timestamp) == (whole.next_offset, 7)
    assert [streamed.checksum] == list(whole.checksums or [0])
    assert streamed.left([bytes(head), value, tail]) == whole.left


@pytest.mark.parametrize(
    ("format_", "row", "what"),
    [
        (FORMATS[0], (b"k", b"v"), "a key"),
        (FORMATS[0], (None, None), "no value"),
        (FORMATS[0], (None, b"v", [("h", b"1")]), "headers"),
        (FORMATS[0], (None, b"v", (), -1), "1970"),
        (FORMATS[1], (None, b"v", [("h", b"1")]), "headers"),
        (FORMATS[2], (b"k", b"v"), "a key"),
        (FORMATS[2], (None, b"v", [("h", b"1")]), "headers"),
        (FORMATS[2], (None, b"v", (), 2**60), "microseconds"),
        (FORMATS[3], (None, b"v", [("h", None)]), "'h' without a value"),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_what_a_format_cannot_hold_is_refused_by_name(format_: RecordPerFrame, row: Any, what: str) -> None:
    with pytest.raises(RecordRefused, match=what):
        encode(format_, [row])


@every_format
def test_a_record_beyond_the_limit_is_refused(format_: RecordPerFrame) -> None:
    with pytest.raises(FrameTooLarge):
        encode(format_, [(None, bytes(SIZE_MAX))])
    with pytest.raises(FrameTooLarge):
        format_.stream(None, (), SIZE_MAX, slot_after(b""), timestamp=7)


@every_format
def test_a_turned_bit_anywhere_ends_the_scan_before_it(format_: RecordPerFrame) -> None:
    """With what stands beside the store no format misses one."""
    encoded = encode(format_, [(None, b"first", (), 5), (None, b"second", (), 6)])
    first_size = encoded.sizes[0]
    for bit in range(8 * len(encoded.data)):
        damaged = bytearray(encoded.data)
        damaged[bit // 8] ^= 1 << bit % 8
        table = scan(format_, encoded._replace(data=damaged))
        assert len(table) == (0 if bit // 8 < first_size else 1)
        assert table.ending is not Ending.END
        assert table.error().position >= table.end
    print(f"{8 * len(encoded.data)} of {8 * len(encoded.data)} single-bit errors of {format_.name} detected")


@every_format
def test_a_store_cut_anywhere_ends_short(format_: RecordPerFrame) -> None:
    encoded = encode(format_, [(None, b"first", (), 5), (None, b"second", (), 6)])
    for kept in range(len(encoded.data)):
        table = scan(format_, encoded._replace(data=encoded.data[:kept]))
        assert len(table) == (1 if kept >= encoded.sizes[0] else 0)
        at_end = kept in (0, encoded.sizes[0])
        assert table.ending is (Ending.END if at_end else Ending.SHORT)


def test_a_record_of_another_stream_ends_the_scan() -> None:
    encoded = encode(KimberliteFormat().for_partition(3), [(None, b"v")])
    table = scan(KimberliteFormat().for_partition(4), encoded)
    assert (len(table), table.ending) == (0, Ending.INVALID)
    assert isinstance(table.error(), WrongStream)
    assert len(scan(KimberliteFormat().for_partition(3), encoded)) == 1


def test_a_record_that_does_not_follow_ends_the_scan() -> None:
    format_ = KimberliteFormat()
    encoded = encode(format_, [(None, b"v")], bytes(range(32)))
    assert len(scan(format_, encoded, before=bytes(range(32)))) == 1
    assert len(scan(format_, encoded, before=None)) == 1
    table = scan(format_, encoded, before=b"")
    assert (len(table), table.ending) == (0, Ending.INVALID)


@pytest.mark.parametrize("format_", [FORMATS[1], FORMATS[2]], ids=lambda format_: format_.name)
def test_a_whole_frame_is_found_in_what_was_cut(format_: RecordPerFrame) -> None:
    encoded = encode(format_, [(None, b"first"), (None, b"second")])
    junk = b"\x07" * 13
    assert len(junk) in list(format_.candidates(junk + bytes(encoded.data)))
