"""What doctor and dump say, as library calls. The commands have tests of their own in tests/cli."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.producing import Sent
from support.transactions import end_transaction, send_in_transaction

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk.posix import PosixFiles
from cordwood.errors import DirectoryRefused, FrameError
from cordwood.inspection import Level, SegmentFrames
from cordwood.storage.directory.data_directory import DataDirectory, Opening


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with cordwood.open(tmp_path / "data") as log:
        for i in range(3):
            log.topic("orders").append(b"value %d" % i, timestamp=1000 + i)
    return tmp_path / "data"


@pytest.fixture
def segment(data: Path) -> Path:
    (found,) = data.glob("topics/orders/0/segments/*.log")
    return found


def test_a_sound_directory_needs_no_attention_and_a_damaged_one_does(data: Path, segment: Path) -> None:
    found = {each.about: each for each in cordwood.inspect_directory(data)}
    assert {each.level for each in found.values()} <= {Level.OK, Level.NOTE}
    assert found["lock"].text == "free; the last writer closed cleanly"
    segment.write_bytes(segment.read_bytes()[:-1] + b"!")
    (damaged,) = [each for each in cordwood.inspect_directory(data) if each.level is Level.ATTENTION]
    assert (damaged.about, str(segment) in damaged.text) == ("orders/0", True)


def test_a_directory_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(DirectoryRefused):
        cordwood.inspect_directory(tmp_path / "photos")
    assert list((tmp_path / "photos").iterdir()) == []


def test_the_installation_says_what_runs() -> None:
    found = {each.about: each for each in cordwood.inspect_installation()}
    assert found["cordwood"].level is Level.OK
    assert set(found) == {"cordwood", "kernels", "confluent-kafka", "uvloop"}


def test_frames_have_fields_and_records_by_name(segment: Path) -> None:
    frames = list(cordwood.inspect_segment(segment, records=True))
    assert [frame.fields["base_offset"] for frame in frames] == [0, 1, 2]
    assert [frame.kind for frame in frames] == ["batch"] * 3
    assert [record.value for frame in frames for record in frame.records] == [
        b"value 0",
        b"value 1",
        b"value 2",
    ]
    assert all(frame.records == () for frame in cordwood.inspect_segment(segment))


def test_a_torn_tail_is_described_and_corruption_raises_after_the_sound_frames(segment: Path) -> None:
    whole = segment.read_bytes()
    segment.write_bytes(whole + b"half a frame")
    frames = cordwood.inspect_segment(segment)
    assert (frames.tail, len(list(frames))) == (None, 3)
    assert frames.tail is not None
    assert frames.tail.startswith(f"{segment} at byte {len(whole)}: past the mark")
    # What ended stays ended.
    assert list(frames) == []
    segment.write_bytes(whole[:-1] + b"!")
    with pytest.raises(FrameError, match=str(segment)):
        seen(cordwood.inspect_segment(segment), expected=2)


def seen(frames: SegmentFrames, expected: int) -> None:
    """Iterate to the end, which must come after *expected* sound frames."""
    count = 0
    try:
        for _ in frames:
            count += 1
    finally:
        assert count == expected


def test_an_index_has_entries_and_says_where_one_is_cut_off(data: Path) -> None:
    path = data / "topics/orders/0/segments/00000000000000000000.idx"
    path.write_bytes((5).to_bytes(8, "big") + (300).to_bytes(8, "big") + b"cut")
    found = cordwood.inspect_index(path)
    assert (found.fields, found.entries) == (("offset", "position"), [(5, 300)])
    assert found.cut_off == f"{path} at byte 16: an entry is cut off; it is rebuilt when the log is opened"
    with pytest.raises(ValueError, match="is not an index"):
        cordwood.inspect_index(data / "meta" / "lock")


def test_markers_and_aborted_transactions_are_shown_by_name(tmp_path: Path) -> None:
    config = load_broker_config(environment={})[0]
    directory = DataDirectory(Opening(PosixFiles(), str(tmp_path), config))
    directory.topics.create("orders", "id-1", 1, {})
    log = directory.partitions.own("orders", 0)
    for number, committed in enumerate([True, False]):
        send_in_transaction(log, Sent(1, 0, number, (b"x",)))
        end_transaction(log, 1, committed=committed)
    log.commit()
    directory.close()
    stem = tmp_path / "topics" / "orders" / "0" / "segments" / f"{0:020d}"
    frames = list(cordwood.inspect_segment(f"{stem}.log"))
    assert [frame.fields.get("marker") for frame in frames] == [None, "commit", None, "abort"]
    index = cordwood.inspect_index(f"{stem}.txnindex")
    assert index.fields == ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
    assert index.entries == [(0, 1, 2, 3, 4)]
