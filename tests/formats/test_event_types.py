"""Event types: any number of 16 bits, in a field of kimberlite's records, elsewhere in a header."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.seeds import seed_or

import cordwood
from cordwood.errors import FrameError, RecordRefused
from cordwood.formats.per_record import KimberliteFormat, kimberlite
from cordwood.formats.per_record.record_per_frame import Content

HEADER = "cordwood.event_type"
KIMBERLITE = {"cordwood.format": "kimberlite"}


def said_by(event_type: int) -> tuple[cordwood.Header, ...]:
    """Return the headers of a record with a value and this event type."""
    return ((HEADER, b"%d" % event_type),) if event_type else ()


def test_every_event_type_is_stored_and_read_back() -> None:
    """All 65536 of them, as a field and as a header, with and without data."""
    format_, count = KimberliteFormat(7, 3), 0
    for event_type in range(65536):
        for value in (b"", b"data", None):
            content = Content(None, value, said_by(event_type))
            if (value is None and event_type not in (0, 2)) or (value == b"" and event_type == 2):
                continue
            frame = format_.encode_frame(content, offset=0, timestamp_us=0, before=b"", size_max=1000)
            stored = int.from_bytes(frame[72:74], "little")
            assert stored == (2 if value is None else event_type)
            headers = () if value is None else content.headers
            assert format_.decode_frame(frame, 0, len(frame)) == Content(None, value, headers)
            count += 1
    print(f"{count} records")


def test_the_library_writes_event_types_and_every_reader_shows_them(tmp_path: Path) -> None:
    """By argument, by the header of a row and in a stream; data has no header, a tombstone no value."""
    with cordwood.open(tmp_path) as log:
        topic = log.topic("events", config=KIMBERLITE)
        topic.append(b"data")
        topic.append(b"made up", event_type=7)
        topic.append(b"state", event_type=cordwood.EventType.CHECKPOINT)
        topic.append(None, event_type=cordwood.EventType.TOMBSTONE)
        topic.append_many([(None, b"row", [(HEADER, b"65535")]), (None, None, [(HEADER, b"2")])])
        topic.append_stream([b"str", b"eam"], event_type=300)
        expected = [
            (b"data", ()),
            (b"made up", ((HEADER, b"7"),)),
            (b"state", ((HEADER, b"1"),)),
            (None, ()),
            (b"row", ((HEADER, b"65535"),)),
            (None, ()),
            (b"stream", ((HEADER, b"300"),)),
        ]
        assert [(record.value, record.headers) for record in topic.read()] == expected
        scanned = log.scan("events", columns=["value", "headers"]).reader().read_all().to_pylist()
        assert [
            (row["value"], tuple((each["key"], each["value"]) for each in row["headers"] or ()))
            for row in scanned
        ] == expected
    stored = b"".join(path.read_bytes() for path in sorted((tmp_path / "topics/events/0").rglob("*.log")))
    at, types = 0, []
    while at < len(stored) and any(stored[at : at + 80]):
        record = kimberlite.parse_record(stored, at)
        types.append(record.event_type)
        at = record.end
    assert types == [0, 7, 1, 2, 65535, 2, 300]


@pytest.mark.parametrize("name", ["batch", "laminarmq"])
def test_formats_with_headers_carry_the_event_type_as_one(tmp_path: Path, name: str) -> None:
    with cordwood.open(tmp_path) as log:
        topic = log.topic("events", config={"cordwood.format": name})
        topic.append(b"a", event_type=7, headers=[("trace", b"x")])
        topic.append(b"b", event_type=0)
        topic.append(None, event_type=2)
        found = [(record.value, record.headers) for record in topic.read()]
    assert found == [(b"a", (("trace", b"x"), (HEADER, b"7"))), (b"b", ()), (None, ())]


@pytest.mark.parametrize("name", ["rustlog", "frame"])
def test_formats_without_headers_refuse_an_event_type_by_name(tmp_path: Path, name: str) -> None:
    with cordwood.open(tmp_path) as log:
        topic = log.topic("events", config={"cordwood.format": name})
        with pytest.raises(RecordRefused, match=f"headers, which the format {name} cannot hold"):
            topic.append(b"a", event_type=7)
        topic.append(b"b", event_type=0)
        assert [record.value for record in topic.read()] == [b"b"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"event_type": 65536}, "from 0 to 65535, not 65536"),
        ({"event_type": -1}, "from 0 to 65535, not -1"),
        ({"event_type": "7"}, "a number, not str"),
        ({"event_type": 7, "headers": [(HEADER, b"7")]}, "given twice"),
        ({"headers": [(HEADER, b"65536")]}, "the event type '65536', not a decimal number from 0 to 65535"),
        ({"headers": [(HEADER, b"07")]}, "the event type '07', not"),
        ({"headers": [(HEADER, b"+7")]}, "not a decimal number"),
        ({"headers": [(HEADER, b"7\n")]}, "not a decimal number"),
        ({"headers": [(HEADER, b"")]}, "not a decimal number"),
        ({"headers": [(HEADER, "\u0667".encode())]}, "not a decimal number"),
        ({"headers": [(HEADER, None)]}, "the event type null, not"),
        ({"headers": [(HEADER, b"7"), (HEADER, b"7")]}, f"2 headers {HEADER}"),
        ({"headers": [(HEADER, b"7"), ("trace", b"x")]}, "headers, which the format kimberlite cannot hold"),
        ({"headers": [("Cordwood.Event_Type", b"7")]}, "headers, which the format kimberlite cannot hold"),
        ({"value": None, "event_type": 7}, "no value and the event type 7"),
        ({"value": b"", "event_type": 2}, "an empty value and the event type 2"),
    ],
)
def test_an_event_type_that_cannot_be_kept_is_refused_and_nothing_is_stored(
    tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    with cordwood.open(tmp_path) as log:
        topic = log.topic("events", config=KIMBERLITE)
        with pytest.raises(RecordRefused, match=sentence):
            topic.append(given.pop("value", b"v"), **given)
        assert topic.high_watermark() == 0


def test_a_tombstone_with_data_keeps_its_data(tmp_path: Path) -> None:
    """Kimberlite's document does not forbid it, so a log of its own may have one."""
    with cordwood.open(tmp_path) as log:
        topic = log.topic("events", config=KIMBERLITE)
        topic.append(b"why it went", event_type=2)
        topic.append_stream([b"why ", b"too"], event_type=2)
        with pytest.raises(RecordRefused, match="an empty value and the event type 2"):
            topic.append_stream([], event_type=2)
        found = [(record.value, record.headers) for record in topic.read()]
    assert found == [(b"why it went", said_by(2)), (b"why too", said_by(2))]


def test_any_headers_are_stored_as_they_read_back_or_refused() -> None:
    """No text in the header is taken for another number, and nothing else is raised."""
    seed = seed_or(20_261_006)
    print(f"seed {seed}")
    chosen, format_, kept = random.Random(seed), KimberliteFormat(), 0
    for _ in range(3000):
        text = bytes(chosen.choice(b"0123456789 +-x") for _ in range(chosen.randrange(7)))
        content = Content(None, chosen.choice([b"", b"v", None]), ((HEADER, text),))
        try:
            format_.check_holds(content, 0)
        except RecordRefused:
            continue
        frame = format_.encode_frame(content, offset=0, timestamp_us=0, before=b"", size_max=1000)
        found = format_.decode_frame(frame, 0, len(frame))
        silent = text == b"0" or content.value is None
        assert found == content._replace(headers=() if silent else content.headers)
        kept += 1
    print(f"{kept} of 3000 kept")
    assert kept > 100


def test_a_flipped_event_type_is_found_by_the_checksum() -> None:
    """Every number is a valid one, so nothing else would tell."""
    record = bytearray(kimberlite.encode_record(0, 0, b"v", kimberlite.NO_HASH, event_type=7))
    for bit in range(16):
        record[72 + bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError, match="CRC-32"):
            kimberlite.parse_record(record)
        record[72 + bit // 8] ^= 1 << bit % 8
