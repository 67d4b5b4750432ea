"""``cordwood segment dump``: what is in a file, and where it stops being what was written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support.commands import refused, run, said

import cordwood
from cordwood.formats.registry import FORMATS

OTHERS = [name for name in FORMATS if name != "batch"]


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """Return a segment of three frames of two records each."""
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", config={"index.interval.bytes": "0"})
        for i in range(3):
            rows = [(b"k%d" % i, b"a", [], 1000 + i), (None, b"\xff", [("h", b"1")], 2000 + i)]
            topic.append_many(rows, partition=0)
    return tmp_path / "data/topics/orders/0/segments/00000000000000000000.log"


def test_frames_are_listed_with_what_their_headers_say(log_file: Path) -> None:
    heading, *lines = said("segment", "dump", log_file).splitlines()
    assert heading.split("  ")[0] == "position"
    assert [line.split()[2:6] for line in lines] == [
        ["0", "1", "2", "none"],
        ["2", "3", "2", "none"],
        ["4", "5", "2", "none"],
    ]
    frames = [json.loads(line) for line in said("segment", "dump", "--json", log_file).splitlines()]
    assert [(frame["base_offset"], frame["last_offset"], frame["records"]) for frame in frames] == [
        (0, 1, 2),
        (2, 3, 2),
        (4, 5, 2),
    ]
    assert frames[0]["position"] == 0
    assert frames[1]["position"] == frames[0]["size"]
    assert sum(frame["size"] for frame in frames) == log_file.stat().st_size


def test_records_are_shown_when_asked_for(log_file: Path) -> None:
    frames = said("segment", "dump", "--json", "--records", log_file).splitlines()
    assert json.loads(frames[0])["content"] == [
        {"offset": 0, "ts": 1000, "headers": [], "key": "k0", "payload": "a"},
        {"offset": 1, "ts": 2000, "headers": ["h", "1"], "key": None, "payload_base64": "/w=="},
    ]
    lines = said("segment", "dump", "--records", log_file).splitlines()
    assert [json.loads(line)["offset"] for line in lines if line.startswith("{")] == list(range(6))


def test_indexes_are_dumped_too(log_file: Path) -> None:
    frames = [json.loads(line) for line in said("segment", "dump", "--json", log_file).splitlines()]
    entries = said("segment", "dump", "--json", log_file.with_suffix(".idx")).splitlines()
    assert [json.loads(entry) for entry in entries] == [
        {"offset": frame["base_offset"], "position": frame["position"]} for frame in frames
    ]
    assert said("segment", "dump", log_file.with_suffix(".timeidx")).splitlines() == [
        "timestamp  offset",
        "2000       0",
        "2001       2",
    ]
    with open(log_file.with_suffix(".idx"), "ab") as file:
        file.write(b"cut")
    sentence = refused("segment", "dump", log_file.with_suffix(".idx"))
    assert sentence.endswith("at byte 48: an entry is cut off; it is rebuilt when the log is opened")


def test_a_corrupt_segment_exits_4_with_the_position_after_the_sound_frames(log_file: Path) -> None:
    data = bytearray(log_file.read_bytes())
    frame = len(data) // 3
    data[2 * frame - 1] ^= 1
    log_file.write_bytes(data)
    result = run("segment", "dump", log_file)
    assert result.exit_code == 4
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.startswith(f"Error: {log_file} at byte {frame + 17}: CRC-32C: expected 0x")
    assert result.stderr.endswith("; cordwood verify reports all damage\n")


def test_what_lies_past_the_mark_is_not_judged(log_file: Path) -> None:
    """A torn tail is what a crash leaves and a live writer may be in the middle of; zeros are space."""
    sound = log_file.read_bytes()
    log_file.write_bytes(sound + sound[:40])
    result = run("segment", "dump", log_file)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 4
    assert result.stderr == (
        f"{log_file} at byte {len(sound)}: past the mark, and torn or just being written; "
        "the next open keeps the 3 frames before it\n"
    )
    log_file.write_bytes(sound + bytes(4096))
    assert len(said("segment", "dump", log_file).splitlines()) == 4


def test_any_file_of_frames_will_do(log_file: Path, tmp_path: Path) -> None:
    sound = log_file.read_bytes()
    alone = tmp_path / "alone.log"
    alone.write_bytes(sound)
    assert len(said("segment", "dump", alone).splitlines()) == 4
    # Away from its mark nothing excuses a frame that is cut off …
    alone.write_bytes(sound[:-1])
    assert "batch length: expected" in refused("segment", "dump", alone, code=4)
    # … but in quarantine nothing else is to be expected.
    torn = tmp_path / "orders-0-00000000000000000000-0.torn"
    torn.write_bytes(sound[:-1])
    assert run("segment", "dump", torn).exit_code == 0
    assert refused("segment", "dump", tmp_path / "none.log", code=2).endswith("does not exist.")


# --- other record formats ------------------------------------------------------------------------


def other_log(tmp_path: Path, name: str) -> Path:
    """Return a segment of that format with three records, the second without a value where that is held."""
    holds = FORMATS[name].holds
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", config={"cordwood.format": name})
        for i in range(3):
            value = None if i == 1 and holds.null_values else b"value %d" % i
            topic.append_many([(b"k%d" % i if holds.keys else None, value, [], 1000 + i)], partition=0)
    return tmp_path / "data/topics/orders/0/segments/00000000000000000000.log"


@pytest.mark.parametrize("name", OTHERS)
def test_records_of_a_topic_in_another_format_are_listed_with_their_sizes(name: str, tmp_path: Path) -> None:
    """partition.json says which format it is."""
    path, holds = other_log(tmp_path, name), FORMATS[name].holds
    heading, *lines = said("segment", "dump", path).splitlines()
    assert " ".join(heading.split()) == "position size offset timestamp key bytes value bytes compression"
    second = "-" if holds.null_values else "7"
    key = "2" if holds.keys else "-"
    assert [line.split()[2:] for line in lines] == [
        ["0", "1000", key, "7", "none"],
        ["1", "1001", key, second, "none"],
        ["2", "1002", key, "7", "none"],
    ]
    frames = [json.loads(line) for line in said("segment", "dump", "--json", path).splitlines()]
    assert [frame["offset"] for frame in frames] == [0, 1, 2]
    assert frames[2]["position"] + frames[2]["size"] == path.stat().st_size
    assert frames[1]["value_bytes"] == (None if holds.null_values else 7)


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_elsewhere_is_read_as_the_format_that_is_named(name: str, tmp_path: Path) -> None:
    path = other_log(tmp_path, name)
    alone = tmp_path / "alone.log"
    alone.write_bytes(path.read_bytes())
    if name == "laminarmq":
        sentence = refused("segment", "dump", "--format", name, alone)
        assert sentence.endswith(
            f"only {tmp_path}/alone.index says where its records begin and end; put it beside it"
        )
        alone.with_suffix(".index").write_bytes(path.with_suffix(".index").read_bytes())
    lines = said("segment", "dump", "--json", "--records", "--format", name, alone).splitlines()
    contents = [record for line in lines for record in json.loads(line)["content"]]
    assert [(record["offset"], record["ts"]) for record in contents] == [(0, 1000), (1, 1001), (2, 1002)]
    assert contents[2]["payload"] == "value 2"
    assert "expected" in refused("segment", "dump", alone, code=4)


@pytest.mark.parametrize("name", OTHERS)
def test_a_changed_record_of_another_format_exits_4_after_the_sound_ones(name: str, tmp_path: Path) -> None:
    path = other_log(tmp_path, name)
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b"value 2", b"value 3"))
    result = run("segment", "dump", path)
    assert (result.exit_code, len(result.stdout.splitlines())) == (4, 3)
    assert result.stderr.startswith(f"Error: {path} at byte ")
    path.write_bytes(sound + sound[:30])
    result = run("segment", "dump", path)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 4)
    assert "past the mark" in result.stderr


def test_a_dump_of_kimberlite_names_tenant_stream_and_event_type(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders@7", partitions=2, config={"cordwood.format": "kimberlite"})
        topic.append(b"refund", partition=1, event_type=9)
    log_file = tmp_path / "data/topics/orders@7/1/segments/00000000000000000000.log"
    (frame,) = map(json.loads, said("segment", "dump", "--json", log_file).splitlines())
    assert (frame["tenant"], frame["stream"], frame["event_type"]) == (7, 1, 9)


def test_files_beside_a_log_are_dumped_entry_by_entry(tmp_path: Path) -> None:
    for name, suffix, fields in (
        ("rustlog", ".sum", ["position", "length", "crc32c"]),
        ("laminarmq", ".index", ["crc32", "length", "position"]),
    ):
        path = other_log(tmp_path / name, name)
        frames = [json.loads(line) for line in said("segment", "dump", "--json", path).splitlines()]
        lines = said("segment", "dump", "--json", path.with_suffix(suffix)).splitlines()
        entries = [json.loads(line) for line in lines]
        assert list(entries[0]) == fields
        assert [(entry["position"], entry["length"]) for entry in entries] == [
            (frame["position"], frame["size"]) for frame in frames
        ]
        assert [f"{entry[fields[0] if suffix == '.index' else fields[2]]:08x}" for entry in entries] == [
            frame["checksum"] for frame in frames
        ]
        with open(path.with_suffix(suffix), "ab") as file:
            file.write(b"cut")
        assert "an entry is cut off; it is cut if" in refused("segment", "dump", path.with_suffix(suffix))


def test_segments_are_listed_with_their_times_and_hashes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        topic = log.topic("orders", partitions=2)
        topic.append(b"sealed", partition=0, timestamp=5)
        topic.roll(0)
        topic.append(b"active", partition=0)
    (sealed, active) = json.loads(said("segment", "list", "orders", "--json", "--data", data))
    assert (sealed["partition"], sealed["base_offset"], sealed["next_offset"]) == (0, 0, 1)
    assert (sealed["max_timestamp"], sealed["is_active"], sealed["sha256"]) == (5, False, None)
    assert 5 < sealed["appended_ms"] <= sealed["sealed_ms"]
    assert (active["base_offset"], active["next_offset"], active["is_active"]) == (1, 2, True)
    said("maintain", "--data", data)
    (sealed, _) = json.loads(said("segment", "list", "orders", "--json", "--data", data))
    content = (data / "topics/orders/0/segments/00000000000000000000.log").read_bytes()
    assert sealed["sha256"] == hashlib.sha256(content).hexdigest()
    assert said("segment", "list", "orders", "--data", data).splitlines()[2].split()[4] == "active"


def test_the_segments_of_what_has_none_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        log.topic("tiny", config={"cordwood.storage": "shared"}).append(b"a")
    assert "there is no topic nowhere" in refused("segment", "list", "nowhere", "--data", tmp_path / "data")
    assert "segments of __shared" in refused("segment", "list", "tiny", "--data", tmp_path / "data")
    assert "active" in said("segment", "list", "__shared", "--data", tmp_path / "data")
    refused("segment", "list", "tiny", "--data", tmp_path / "elsewhere")
