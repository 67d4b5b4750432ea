"""The files of a topic in each format are read by a reader that knows nothing of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from formats.readers import read_frame, read_kimberlite, read_laminarmq, read_rustlog

import cordwood

Rows = list[tuple[int, int, bytes | None]]


def rustlog(logs: list[Path]) -> Rows:
    found = [each for path in logs for each in read_rustlog.records(path.read_bytes())]
    return [(each["offset"], each["timestamp_us"] // 1000, each["value"]) for each in found]


def frame(logs: list[Path]) -> Rows:
    found = [each for path in logs for each in read_frame.records(path.read_bytes())]
    return [(each["offset"], each["timestamp_ms"], each["value"]) for each in found]


def kimberlite(logs: list[Path]) -> Rows:
    found = read_kimberlite.records([path.read_bytes() for path in logs])
    return [(each["position"], each["timestamp_us"] // 1000, each["value"]) for each in found]


def laminarmq(logs: list[Path]) -> Rows:
    found: list[dict[str, Any]] = []
    for path in logs:
        found += read_laminarmq.records(path.read_bytes(), path.with_suffix(".index").read_bytes())
    return [(each["index"], each["timestamp_ms"], each["value"]) for each in found]


@pytest.mark.parametrize("read", [rustlog, frame, kimberlite, laminarmq])
def test_the_files_of_a_topic_are_those_of_the_format(
    read: Callable[[list[Path]], Rows], tmp_path: Path
) -> None:
    config = {"cordwood.format": read.__name__}
    expected: Rows = []
    with cordwood.open(tmp_path) as log:
        topic = log.topic("t", config=config)
        for i in range(25):
            value = bytes([i]) * (i * 150)
            topic.append(value, timestamp=1_000 + i)
            expected.append((i, 1_000 + i, value))
            if i in (7, 15):
                topic.roll()
        topic.append_stream([b"a", b"b"], timestamp=2_000)
        topic.append_many([(None, b"many", (), 2_001), (None, b"", (), 2_002)])
    expected += [(25, 2_000, b"ab"), (26, 2_001, b"many"), (27, 2_002, b"")]
    logs = sorted((tmp_path / "topics" / "t" / "0" / "segments").glob("*.log"))
    assert len(logs) == 3
    assert read(logs) == expected
    with cordwood.open(tmp_path, read_only=True) as log:
        read_back = [(each.offset, each.timestamp, each.value) for each in log.topic("t").read()]
    assert read_back == expected
