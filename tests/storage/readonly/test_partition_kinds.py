"""Every kind of partition answers alike: with files of its own or in the shared log, owned or read beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from support.clocks import ManualClock

from cordwood.config import BrokerConfig
from cordwood.disk import MemoryFiles
from cordwood.errors import OffsetOutOfRange
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.log import Epoch, Partition
from cordwood.storage.readonly import ReadOnlyDirectory

KINDS = [(storage, beside) for storage in ("own", "shared") for beside in (False, True)]


@contextmanager
def opened(storage: str, *rows: tuple[bytes, int], beside: bool) -> Iterator[Partition]:
    """Open partition 0 of a topic with *rows*, values and times, as its owner or beside it."""
    files = MemoryFiles()
    with closing(DataDirectory(Opening(files, "/data", BrokerConfig(), clock=ManualClock()))) as directory:
        directory.topics.create("orders", "id-orders", 1, {"cordwood.storage": storage})
        # Another topic has its records before, so that ids of the shared log are not offsets.
        directory.topics.create("other", "id-other", 1, {"cordwood.storage": storage})
        other = directory.partitions.writable("other", 0)
        other.append([(None, b"other", ())])
        other.commit()
        for value, timestamp in rows:
            log = directory.partitions.writable("orders", 0)
            log.append([(None, value, (), timestamp)])
            log.commit()
        if not beside:
            yield directory.partitions.readable("orders", 0)
            return
        with closing(ReadOnlyDirectory(files, "/data", BrokerConfig())) as reading:
            yield reading.readable("orders", 0)


def values(partition: Partition, start: int) -> list[bytes | None]:
    return [record.value for run in partition.read(start, 1 << 20).runs for record in run.records()]


@pytest.mark.parametrize(("storage", "beside"), KINDS)
def test_every_kind_of_partition_answers_alike(storage: str, beside: bool) -> None:
    with opened(storage, (b"a", 100), (b"b", 300), (b"c", 200), beside=beside) as partition:
        ends = partition.log_start_offset, partition.high_watermark, partition.log_end_offset
        assert ends == (0, 3, 3)
        assert (partition.leader_epoch, partition.epochs) == (0, (Epoch(0, 0),))
        assert (values(partition, 0), values(partition, 2)) == ([b"a", b"b", b"c"], [b"c"])
        assert (partition.offset_at(150), partition.offset_at(301)) == ((1, 300), None)
        assert partition.newest() == (1, 300)
        assert partition.wait_beyond(2) == 3
        assert partition.size() > 0
        with pytest.raises(OffsetOutOfRange):
            partition.read(4, 1)


@pytest.mark.parametrize(("storage", "beside"), KINDS)
def test_every_kind_of_partition_without_a_record_is_empty_at_its_first_offset(
    storage: str, beside: bool
) -> None:
    with opened(storage, beside=beside) as partition:
        ends = partition.log_start_offset, partition.high_watermark, partition.log_end_offset
        assert ends == (0, 0, 0)
        assert (partition.leader_epoch, partition.epochs) == (0, (Epoch(0, 0),))
        assert (partition.read(0, 1).runs, partition.size()) == ((), 0)
        assert (partition.offset_at(0), partition.newest()) == (None, None)
        with pytest.raises(OffsetOutOfRange):
            partition.read(1, 1)


@pytest.mark.parametrize("storage", ["own", "shared"])
def test_an_owned_partition_without_a_record_has_no_producers_and_keeps_its_log_start(storage: str) -> None:
    with closing(DataDirectory(Opening(MemoryFiles(), "/data", BrokerConfig()))) as directory:
        directory.topics.create("orders", "id-orders", 1, {"cordwood.storage": storage})
        partition = directory.partitions.readable("orders", 0)
        assert partition.producers() == []
        partition.advance_log_start(0)
        assert partition.log_start_offset == 0
        with pytest.raises(OffsetOutOfRange):
            partition.advance_log_start(1)
