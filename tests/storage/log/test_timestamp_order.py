"""``cordwood.timestamp.order``: timestamps that never run backwards within a segment, row 18 and D10."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import get_args

import pytest
from support.clocks import ManualClock
from support.disks import image
from support.logs import disk_of
from support.seeds import seed_or

import cordwood
from cordwood.config.topic import RecordFormat
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded import Log, Topic
from cordwood.errors import InvalidSetting, RecordRefused, TimestampsRejected
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.formats.compression import Compression
from cordwood.storage.log import PartitionLog, terms_of

DATA = "/data"
FORMATS = get_args(RecordFormat)
NOW = 1_700_000_000_000


def opened(disk: MemoryFiles, clock: ManualClock | None = None) -> Log:
    return cordwood.open(DATA, files=disk, clock=clock or ManualClock(NOW))


def ordered_topic(log: Log, order: str, format_: str = "batch", **more: str) -> Topic:
    return log.topic("t", config={"cordwood.timestamp.order": order, "cordwood.format": format_, **more})


def times_of(topic: Topic) -> list[int]:
    return [record.timestamp for record in topic.read(0)]


def log_of(log: Log) -> PartitionLog:
    found = log.data_directory.partitions.writable("t", 0)
    assert isinstance(found, PartitionLog)
    return found


def send(
    log: PartitionLog, times: list[int], compression: Compression = Compression.NONE, sequence: int = -1
) -> None:
    """Append a batch with these timestamps as a Kafka client does."""
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence} if sequence >= 0 else {}
    rows = [(None, b"%d" % number, (), time) for number, time in enumerate(times)]
    data = batch.encode_records(rows, NOW, BatchOptions(compression=compression, **producer))
    log.append_received(log.format.receive(memoryview(data), terms_of(log.config, NOW)))
    log.commit()


@pytest.mark.parametrize("format_", FORMATS)
def test_a_timestamp_that_runs_backwards_is_refused_by_record_and_nothing_is_stored(format_: str) -> None:
    with opened(MemoryFiles()) as log:
        topic = ordered_topic(log, "refuse", format_)
        topic.append(b"first", timestamp=NOW)
        with pytest.raises(TimestampsRejected, match=f"timestamp {NOW - 1} is before {NOW}"):
            topic.append(b"second", timestamp=NOW - 1)
        with pytest.raises(TimestampsRejected) as refused:
            topic.append_many([(None, b"a", (), NOW + 5), (None, b"b", (), NOW + 4), (None, b"c")])
        assert list(refused.value.reasons) == [1], "the one without a timestamp is given one that fits"
        with pytest.raises(TimestampsRejected):
            topic.append_stream([b"stream"], timestamp=NOW - 1)
        topic.append(b"the same time is no step back", timestamp=NOW)
        topic.append_stream([b"stream"], timestamp=NOW + 1)
        assert times_of(topic) == [NOW, NOW, NOW + 1]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_timestamp_that_runs_backwards_is_lifted_to_the_last_one(format_: str) -> None:
    with opened(MemoryFiles()) as log:
        topic = ordered_topic(log, "lift", format_)
        topic.append(b"0", timestamp=NOW + 10)
        topic.append(b"1", timestamp=5)
        topic.append_many([(None, b"2", (), 0), (None, b"3", (), NOW + 20), (None, b"4")])
        topic.append_stream([b"5"], timestamp=1)
        topic.append_stream([b"6"])
        topic.append(b"7")
        assert times_of(topic) == [
            NOW + 10,
            NOW + 10,
            NOW + 10,
            NOW + 20,
            NOW + 20,
            NOW + 20,
            NOW + 20,
            NOW + 20,
        ]
        assert [record.value for record in topic.read(0)] == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("order", ["refuse", "lift"])
def test_the_last_timestamp_is_known_after_a_restart_and_after_a_crash(format_: str, order: str) -> None:
    disk = MemoryFiles()
    log = opened(disk)
    ordered_topic(log, order, format_).append(b"0", timestamp=NOW)
    crashed = disk_of(image(disk, DATA))
    log.close()
    for left in (disk, crashed):
        with opened(left, ManualClock(NOW - 50)) as again:
            topic = again.topic("t")
            if order == "refuse":
                with pytest.raises(TimestampsRejected):
                    topic.append(b"1", timestamp=NOW - 1)
            else:
                topic.append(b"1", timestamp=NOW - 1)
            topic.append(b"2")
            assert set(times_of(topic)) == {NOW}, "nor does the broker itself go back"


def test_a_new_segment_begins_with_any_timestamp() -> None:
    with opened(MemoryFiles()) as log:
        topic = ordered_topic(log, "refuse")
        topic.append(b"0", timestamp=NOW)
        topic.roll()
        topic.append(b"1", timestamp=5)
        assert times_of(topic) == [NOW, 5]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("format_", FORMATS)
def test_batches_of_clients_are_checked_and_lifted_record_by_record(
    format_: str, compression: Compression
) -> None:
    with opened(MemoryFiles()) as log:
        topic = ordered_topic(log, "lift", format_)
        client = log_of(log)
        send(client, [NOW, NOW + 5, NOW + 3], compression)
        send(client, [NOW + 9, NOW, NOW + 12], compression)
        assert times_of(topic) == [NOW, NOW + 5, NOW + 5, NOW + 9, NOW + 9, NOW + 12]
        assert [record.value for record in topic.read(0)] == [b"0", b"1", b"2"] * 2
        log.alter_topic("t", config={"cordwood.timestamp.order": "refuse", "cordwood.format": format_})
        with pytest.raises(TimestampsRejected) as refused:
            send(client, [NOW + 12, NOW + 11, NOW + 13, NOW], compression)
        assert list(refused.value.reasons) == [1, 3]
        assert topic.log_end_offset() == 6


def test_a_lifted_batch_keeps_its_producer_and_its_compression() -> None:
    """So a retry is still known as one."""
    with opened(MemoryFiles()) as log:
        topic = ordered_topic(log, "lift")
        client = log_of(log)
        for _ in range(2):
            send(client, [NOW, 3], Compression.ZSTD, sequence=0)
        assert topic.log_end_offset() == 2
        (fetched,) = client.read(0, 1000).runs
        header = batch.read_header(bytes(fetched.data))
        assert (header.compression, header.producer_id, header.max_timestamp) == (Compression.ZSTD, 7, NOW)


def test_what_the_topic_takes_is_said_of_the_timestamps_that_were_given() -> None:
    with opened(MemoryFiles()) as log:
        topic = ordered_topic(log, "lift", **{"message.timestamp.before.max.ms": "1000"})
        topic.append(b"0", timestamp=NOW)
        with pytest.raises(TimestampsRejected, match="is not within"):
            topic.append(b"1", timestamp=NOW - 1001)


def test_a_topic_in_the_shared_log_refuses_the_setting_by_name() -> None:
    with opened(MemoryFiles()) as log, pytest.raises(InvalidSetting, match=r"cordwood\.timestamp\.order"):
        ordered_topic(log, "lift", **{"cordwood.storage": "shared"})


def test_rows_that_cannot_be_encoded_are_refused_as_ever() -> None:
    with opened(MemoryFiles()) as log:
        topic = ordered_topic(log, "lift")
        for row in ((None,), (None, "text"), (None, b"x", (), "soon"), (None, b"x", (), 1, 2), ()):
            with pytest.raises(RecordRefused):
                topic.append_many([row], partition=0)
        assert topic.log_end_offset() == 0


@pytest.mark.parametrize("format_", FORMATS)
def test_whatever_is_appended_timestamps_never_run_backwards_within_a_segment(format_: str) -> None:
    """Random appends of every kind, rolls, restarts and clocks that are set back, under lift."""
    seed = seed_or(20_261_007)
    print(f"seed {seed}")
    chance = random.Random(seed)
    disk, clock = MemoryFiles(), ManualClock(NOW)
    log = opened(disk, clock)
    topic = ordered_topic(log, "lift", format_, **{"segment.bytes": "700"})
    for _ in range(120):
        stamps = [chance.choice([None, chance.randrange(NOW - 1000, NOW + 1000)]) for _ in range(3)]
        match chance.randrange(6):
            case 0:
                topic.append(b"v", timestamp=stamps[0])
            case 1:
                topic.append_many([(None, b"v", (), stamp) for stamp in stamps], partition=0)
            case 2:
                topic.append_stream([b"v"], timestamp=stamps[0])
            case 3:
                send(log_of(log), [stamp or NOW for stamp in stamps], chance.choice(list(Compression)))
            case 4:
                clock.set_back(chance.randrange(50)) if chance.random() < 0.5 else clock.advance(20)
            case _:
                if chance.random() < 0.3:
                    log.close()
                    log = opened(disk, clock)
                    topic = log.topic("t")
    state = log_of(log).state
    bases = [info.base for info in state.sealed] + [state.active_base, topic.log_end_offset()]
    assert len(bases) > 3, "several segments"
    for start, stop in pairwise(bases):
        times = [record.timestamp for record in topic.read(0, start, stop)]
        assert times == sorted(times)
    log.close()
