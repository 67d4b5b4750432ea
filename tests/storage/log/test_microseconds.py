"""Topics whose times are stored in microseconds, in the formats that have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from formats.readers import read_kimberlite, read_rustlog
from support.clocks import ManualClock

import cordwood
from cordwood.disk.posix import PosixFiles
from cordwood.errors import InvalidSetting, RecordRefused, RecordsRejected
from cordwood.formats import batch
from cordwood.records import Record
from cordwood.storage.log.terms import terms_of
from cordwood.verify import verify_directory

HEADER = "cordwood.timestamp_us"
NOW_MS = 1_700_000_000_000
both_formats = pytest.mark.parametrize("format_", ["rustlog", "kimberlite"])


def settings(format_: str, **more: str) -> dict[str, str]:
    given = {key.replace("_", "."): value for key, value in more.items()}
    return {"cordwood.format": format_, "cordwood.timestamp.precision": "us", **given}


def stored_us(data: Path, format_: str) -> list[int]:
    """Return the times that a stand-alone reader finds in the files."""
    paths = sorted((data / "topics" / "t" / "0" / "segments").glob("*.log"))
    if format_ == "kimberlite":
        found = list(read_kimberlite.records([path.read_bytes() for path in paths]))
    else:
        found = [record for path in paths for record in read_rustlog.records(path.read_bytes())]
    return [record["timestamp_us"] for record in found]


@both_formats
def test_the_logs_own_clock_gives_microseconds_that_never_run_backwards(format_: str, tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with cordwood.open(tmp_path, clock=clock) as log:
        topic = log.topic("t", config=settings(format_))
        for clock.us in (456, 455, 457):
            topic.append(b"v")
        topic.append_stream([b"streamed"])
        topic.append_many([(None, b"a"), (None, b"b", (), NOW_MS - 5)])
        clock.set_back(1)
        topic.append(b"v")
        records = list(topic.read(0))
    expected = [456, 456, 457, 457, 457, -5_000, 457]
    assert stored_us(tmp_path, format_) == [NOW_MS * 1000 + us for us in expected]
    assert [record.timestamp_us for record in records] == stored_us(tmp_path, format_)
    assert [record.timestamp for record in records] == [NOW_MS] * 5 + [NOW_MS - 5, NOW_MS]
    assert not verify_directory(PosixFiles(), str(tmp_path)).findings


@both_formats
def test_the_time_of_the_append_has_microseconds_and_keeps_its_order_after_a_restart(
    format_: str, tmp_path: Path
) -> None:
    clock = ManualClock(NOW_MS)
    clock.us = 700
    config = settings(format_, message_timestamp_type="LogAppendTime")
    with cordwood.open(tmp_path, clock=clock) as log:
        log.topic("t", config=config).append(b"v", timestamp=5)
    clock.us = 100
    with cordwood.open(tmp_path, clock=clock) as log:
        log.topic("t").append(b"v", timestamp=5, headers=[(HEADER, b"5001")])
    first, second = stored_us(tmp_path, format_)
    assert first == NOW_MS * 1000 + 700
    assert first <= second < (NOW_MS + 1) * 1000


@both_formats
def test_a_header_gives_and_shows_the_microseconds_of_a_record(format_: str, tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        topic = log.topic("t", config=settings(format_))
        topic.append(b"v", timestamp=12, headers=[(HEADER, b"12345")])
        topic.append(b"v", timestamp=13, headers=[(HEADER, b"13000")])
        topic.append_stream([b"v"], timestamp=14, headers=[(HEADER, b"14001")])
        assert list(topic.read(0)) == [
            Record(0, 12, None, b"v", ((HEADER, b"12345"),)),
            Record(1, 13, None, b"v"),
            Record(2, 14, None, b"v", ((HEADER, b"14001"),)),
        ]
        assert [record.timestamp_us for record in topic.read(0)] == [12_345, 13_000, 14_001]
    assert stored_us(tmp_path, format_) == [12_345, 13_000, 14_001]


@both_formats
def test_a_time_that_is_none_is_refused_by_what_is_wrong_with_it(format_: str, tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        topic = log.topic("t", config=settings(format_))
        for headers, reason in (
            ([(HEADER, b"13000")], "not within that millisecond"),
            ([(HEADER, b"12.3")], "no decimal number"),
            ([(HEADER, b"012345")], "no decimal number"),
            ([(HEADER, b"9" * 300)], "no decimal number"),
            ([(HEADER, None)], "null"),
            ([(HEADER, b"12345"), (HEADER, b"12345")], "2 headers"),
            ([(HEADER, b"12345"), ("other", b"")], "headers, which the format"),
        ):
            with pytest.raises(RecordRefused, match=reason):
                topic.append(b"v", timestamp=12, headers=headers)
        assert topic.append(b"v", timestamp=12).offset == 0
        plain = log.topic("plain", config={"cordwood.format": format_})
        with pytest.raises(RecordRefused, match="headers, which the format"):
            plain.append(b"v", timestamp=12, headers=[(HEADER, b"12345")])


def test_a_format_without_microseconds_refuses_the_setting_and_it_is_fixed(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        for format_ in ("batch", "frame", "laminarmq"):
            with pytest.raises(InvalidSetting, match=f"ms: records of format {format_} have milliseconds"):
                log.topic("t", config=settings(format_))
        log.topic("t", config=settings("rustlog"))
        with pytest.raises(InvalidSetting, match="it cannot be changed"):
            log.data_directory.topics.alter("t", config={"cordwood.format": "rustlog"})


@both_formats
def test_a_client_gives_and_sees_microseconds_by_the_header(format_: str, tmp_path: Path) -> None:
    """A batch as a Kafka client sends it is stored with microseconds, and fetched with the header again."""
    with cordwood.open(tmp_path) as log:
        log.topic("t", config=settings(format_))
        partition = log.data_directory.partitions.writable("t", 0)
        terms = terms_of(partition.config, 20)
        sent = batch.encode_records([(None, b"v", [(HEADER, b"12345")], 12), (None, b"w", [], 13)], 0)
        partition.append_received(partition.format.receive(memoryview(sent), terms))
        partition.commit()
        (run,) = partition.read(0, 1 << 20).runs
        (fetched,) = run.batches()
        found = batch.decode_records(fetched, batch.read_header(fetched))
        assert [(record.timestamp, record.headers) for record in found] == [
            (12, ((HEADER, b"12345"),)),
            (13, ()),
        ]
        wrong = batch.encode_records([(None, b"v", [(HEADER, b"99")], 12)], 0)
        with pytest.raises(RecordsRejected, match="not within that millisecond"):
            partition.format.receive(memoryview(wrong), terms)
    assert stored_us(tmp_path, format_) == [12_345, 13_000]
