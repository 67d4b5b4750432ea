"""What settings ask of appends, whoever makes them; and what a broker is told at run time, on the disk."""

from __future__ import annotations

import errno

import pytest
from support.clocks import HookedFiles, ManualClock
from support.disks import image
from support.logs import disk_of
from support.publishing import DATA, NOW_MS, QUERY, frame_of, records_of, target_of, writer
from support.verifying import verify

import cordwood
from cordwood.config.loading import TopicConfig, load_broker_config
from cordwood.disk.files import Files, os_error
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import DiskFull, InvalidSetting, TimestampsRejected
from cordwood.formats.compression import Compression
from cordwood.formats.receiving import CompressionChoice
from cordwood.storage.backup.create import back_up
from cordwood.storage.backup.transfer import Transfer
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.log.active_segment import segment_ms_of
from cordwood.storage.log.terms import codec_of, terms_of

CONFIG = load_broker_config({"log.retention.ms": "1000"}, environment={})[0]
HOUR_MS = 3_600_000


def opened(files: Files, path: str = DATA, *, dynamic: bool = True) -> DataDirectory:
    return DataDirectory(Opening(files, path, CONFIG, dynamic=dynamic, clock=ManualClock(NOW_MS)))


# --- terms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "codec"),
    [
        (TopicConfig(), None),
        (TopicConfig(compression_type="uncompressed"), CompressionChoice(Compression.NONE)),
        (TopicConfig(compression_type="snappy"), CompressionChoice(Compression.SNAPPY)),
        (TopicConfig(compression_type="gzip"), CompressionChoice(Compression.GZIP)),
        (
            TopicConfig(compression_type="gzip", compression_gzip_level=9),
            CompressionChoice(Compression.GZIP, 9),
        ),
        (TopicConfig(compression_type="lz4"), CompressionChoice(Compression.LZ4)),
        (
            TopicConfig(compression_type="lz4", compression_lz4_level=17),
            CompressionChoice(Compression.LZ4, 17),
        ),
        (TopicConfig(compression_type="zstd"), CompressionChoice(Compression.ZSTD, 3)),
        (
            TopicConfig(compression_type="zstd", compression_zstd_level=-5),
            CompressionChoice(Compression.ZSTD, -5),
        ),
    ],
)
def test_the_codec_of_a_topic_has_the_level_of_its_kind(
    config: TopicConfig, codec: CompressionChoice | None
) -> None:
    assert codec_of(config) == codec


def test_bounds_of_timestamps_never_overflow() -> None:
    widest = TopicConfig(message_timestamp_after_max_ms=2**63 - 1)
    assert terms_of(widest, NOW_MS)[2:4] == (-(2**63), 2**63 - 1)
    narrow = TopicConfig(message_timestamp_after_max_ms=0, message_timestamp_before_max_ms=2**63 - 2)
    assert terms_of(narrow, NOW_MS)[2:4] == (NOW_MS - (2**63 - 2), NOW_MS)
    appended = TopicConfig(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1)
    assert terms_of(appended, NOW_MS)[2:4] == (-(2**63), 2**63 - 1)


def test_a_format_without_compression_refuses_it_for_a_topic_and_passes_over_a_default() -> None:
    with cordwood.open(":memory:") as log:
        with pytest.raises(InvalidSetting, match="producer or uncompressed: records of format rustlog"):
            log.create_topic("plain", 1, {"cordwood.format": "rustlog", "compression.type": "zstd"})
        log.create_topic("said", 1, {"cordwood.format": "rustlog", "compression.type": "uncompressed"})
    packed = load_broker_config({"compression.type": "zstd"}, environment={})[0]
    data = DataDirectory(Opening(MemoryFiles(), DATA, packed))
    data.topics.create("plain", "8b9f0f0e-54c5-4a0e-8ac1-41a3f3c2a5c7", 1, {"cordwood.format": "rustlog"})
    data.partitions.writable("plain", 0).append([(None, b"as it is")])
    data.close()


def test_what_a_query_staged_with_a_time_that_the_topic_does_not_take_is_refused_whole() -> None:
    """Before anything is promised: after the intent it is too late."""
    files = MemoryFiles()
    with cordwood.open(DATA, files=files, clock=ManualClock(NOW_MS)) as log:
        log.topic("orders", 2)
        data = log.data_directory
        staged = writer(files)
        staged.append(target_of(data, "orders", 0), frame_of(b"now"))
        staged.append(target_of(data, "orders", 1), frame_of(b"late", timestamp=NOW_MS + HOUR_MS + 1))
        shares = staged.finish()
        with pytest.raises(TimestampsRejected):
            data.publisher.publish(QUERY, 0, shares)
        assert [records_of(data.readable("orders", number)) for number in (0, 1)] == [[], []]
        assert data.publisher.promised(QUERY) == -1


# --- jitter -------------------------------------------------------------------------------------------


def test_segments_are_sealed_at_different_times_within_the_jitter() -> None:
    config = TopicConfig(segment_ms=10_000, segment_jitter_ms=4_000)
    found = [segment_ms_of(config, "id", partition, 0) for partition in range(200)]
    assert found == [segment_ms_of(config, "id", partition, 0) for partition in range(200)]
    assert 6_000 < min(found) < max(found) <= 10_000
    assert len(set(found)) > 150
    assert segment_ms_of(TopicConfig(segment_ms=10_000), "id", 0, 0) == 10_000
    wide = TopicConfig(segment_ms=10, segment_jitter_ms=4_000)
    assert all(0 < segment_ms_of(wide, "id", partition, 0) <= 10 for partition in range(200))


def test_a_log_rolls_at_its_share_of_the_jitter() -> None:
    clock = ManualClock(NOW_MS)
    with cordwood.open(":memory:", clock=clock) as log:
        topic = log.topic("orders", config={"segment.ms": "10000", "segment.jitter.ms": "9000"})
        topic.append(b"0")
        opened = log.data_directory.partitions.own("orders", 0)
        due = segment_ms_of(opened.config, opened.state.topic_id, 0, 0)
        assert due < 10_000
        clock.advance(due - 1)
        topic.append(b"1")
        assert opened.state.active_base == 0
        clock.advance(1)
        topic.append(b"2")
        assert opened.state.active_base == 2


# --- settings of the broker on the disk ---------------------------------------------------------------


def test_settings_are_durable_when_they_are_acknowledged() -> None:
    """The disk at that moment, and the process gone."""
    files = MemoryFiles()
    data = opened(files)
    data.settings.alter("0", {"log.retention.ms": "77"})
    data.settings.alter("", {"log.retention.ms": "55", "log.segment.bytes": "5000"})
    disk = disk_of(image(files, "/"))
    data.close()
    again = opened(disk)
    assert (
        again.settings.config.topic_defaults.retention_ms,
        again.settings.config.topic_defaults.segment_bytes,
    ) == (
        77,
        5000,
    )
    assert (dict(again.settings.layers.own), again.settings.layers.static) == (
        {"log.retention.ms": "77"},
        CONFIG,
    )
    again.settings.alter("0", {})
    again.close()
    third = opened(disk)
    assert third.settings.config.topic_defaults.retention_ms == 55
    third.close()
    assert verify(disk, DATA).sound


def test_a_library_has_the_settings_that_it_is_opened_with() -> None:
    files = MemoryFiles()
    data = opened(files)
    data.settings.alter("", {"log.retention.ms": "55"})
    data.close()
    plain = opened(files, dynamic=False)
    assert plain.settings.config is CONFIG
    plain.close()


def test_a_full_disk_changes_no_setting() -> None:
    hooked = HookedFiles(MemoryFiles())
    full = False

    def refuse(kind: str, path: str) -> None:
        if full and kind == "write":
            raise os_error(errno.ENOSPC, path)

    hooked.before = refuse
    data = opened(hooked)
    full = True
    with pytest.raises(DiskFull):
        data.settings.alter("0", {"log.retention.ms": "77"})
    assert data.settings.config is CONFIG
    full = False
    data.settings.alter("0", {"log.retention.ms": "77"})
    assert data.settings.config.topic_defaults.retention_ms == 77
    data.close()


def test_a_backup_has_the_settings_of_the_broker() -> None:
    files = MemoryFiles()
    data = opened(files)
    data.topics.create("orders", "8b9f0f0e-54c5-4a0e-8ac1-41a3f3c2a5c7", 1, {})
    data.settings.alter("", {"log.retention.ms": "55"})
    data.close()
    back_up(Transfer(files, DATA, "/backup", CONFIG, clock=ManualClock(NOW_MS), uuid="backup"))
    copied = opened(files, "/backup")
    assert copied.settings.config.topic_defaults.retention_ms == 55
    copied.close()
