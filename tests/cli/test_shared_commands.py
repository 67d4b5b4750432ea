"""Every command on topics in the shared log: as on any other, on files and by address."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import refused, run, said

import cordwood

EXAMPLE = Path(__file__).parents[2] / "examples" / "verify_proof.py"
SHARED = ("--config", "cordwood.storage=shared")
NOW = 1_700_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Make a directory with topics of three tenants in the shared log, and one with files of its own."""
    with cordwood.open(tmp_path / "data") as log:
        topics = [
            log.topic(name, partitions=2, config={"cordwood.storage": "shared"})
            for name in ("orders", "orders@7", "orders@8")
        ]
        own = log.topic("own")
        for number in range(6):
            for topic in topics:
                value = b"%s %d" % (topic.name.encode(), number)
                topic.append(value, key=b"k", partition=number % 2, timestamp=NOW + number)
            own.append(b"own %d" % number)
        topics[1].append_many([(b"k", b"many %d" % number, (), NOW) for number in range(5)], partition=1)
    return tmp_path / "data"


def records(data: Path, topic: str) -> list[str]:
    return sorted(said("consume", "-t", topic, "-e", "--data", data).splitlines())


def test_topics_in_the_shared_log_are_like_any_other_on_files_held_and_by_address(
    where: list[object],
) -> None:
    assert said("topic", "create", "orders", "--partitions", 2, *SHARED, *where) == (
        "created topic orders with 2 partitions\n"
    )
    said("produce", "-t", "orders", "-p", 1, *where, stdin="tea\ncake\n")
    said("produce", "-t", "orders", "-p", 0, *where, stdin="milk\n")
    assert sorted(said("consume", "-t", "orders", "-e", *where).splitlines()) == ["cake", "milk", "tea"]
    assert said("consume", "-t", "orders", "-p", 1, "-o", 1, "-e", *where) == "cake\n"
    listed = json.loads(said("topic", "list", "--json", *where))
    assert [(each["name"], each["offsets"]) for each in listed] == [("orders", 3)]
    described = json.loads(said("topic", "describe", "orders", "--json", *where))
    assert [(each["log_start_offset"], each["high_watermark"]) for each in described["partitions"]] == [
        (0, 1),
        (0, 2),
    ]
    assert described["settings"]["cordwood.storage"] == "shared"
    said("topic", "alter", "orders", "--partitions", 3, "--config", "retention.ms=1000", *where)
    assert "cannot be changed" in refused(
        "topic", "alter", "orders", "--config", "cordwood.storage=own", *where
    )
    assert said("topic", "delete", "orders", *where).startswith(
        "deleted topic orders: 3 offsets in 3 partitions"
    )
    assert json.loads(said("topic", "list", "--json", *where)) == []
    said("topic", "create", "orders", *SHARED, *where)
    assert said("consume", "-t", "orders", "-e", *where) == ""


def test_groups_read_topics_in_the_shared_log(data: Path) -> None:
    said("consume", "-t", "orders@7", "-G", "readers", "-c", 4, "-e", "--data", data)
    rest = said("consume", "-t", "orders@7", "-G", "readers", "-e", "--data", data)
    assert len(rest.splitlines()) == 7
    described = said("group", "describe", "readers", "--data", data)
    assert "orders@7" in described


def test_the_shared_log_is_shown_with_internal_topics_only_and_nobody_can_take_it_away(data: Path) -> None:
    assert "__shared" not in said("topic", "list", "--data", data)
    assert "__shared" in said("topic", "list", "--internal", "--data", data)
    for command in (
        ("topic", "delete", "__shared"),
        ("topic", "alter", "__shared", "--partitions", 2),
    ):
        sentence = refused(*command, "--data", data)
        assert sentence.startswith(
            "__shared is the log of all topics with cordwood.storage=shared; it is not"
        )
    assert "through their topics only" in refused("produce", "-t", "__shared", "--data", data, stdin="x\n")
    assert refused("topic", "create", "__shared", "--data", data.parent / "new") == "__shared is internal"
    assert len(records(data, "orders@8")) == 6


def test_verify_and_doctor_say_what_is_in_the_shared_log(data: Path) -> None:
    line = said("verify", "--data", data)
    assert "; records of 6 partitions of 3 topics in the shared log; " in line
    report = json.loads(said("verify", "--data", data, "-t", "orders@7", "--json"))
    assert (report["virtual_topics"], report["virtual_partitions"]) == (3, 6)
    assert [each["what"] for each in report["findings"]] == ["topic orders@7"]
    assert run("verify", "--data", data, "--jobs", 2, "--json").stdout == said(
        "verify", "--data", data, "--json"
    )
    assert "ok  logs: " in said("doctor", "--data", data)
    log = data / "topics/__shared/0/segments/00000000000000000000.log"
    log.write_bytes(log.read_bytes().replace(b"orders@7 3", b"orders@7 4"))
    damaged = run("verify", "--data", data)
    assert (damaged.exit_code, f"corruption  {log}  " in damaged.stdout) == (4, True)
    assert records(data, "orders@8") == [f"orders@8 {number}" for number in range(6)]


def test_reindex_rebuilds_the_index_of_owners(data: Path) -> None:
    index = data / "topics/__shared/0/segments/00000000000000000000.oidx"
    whole = index.read_bytes()
    index.write_bytes(whole[:96] + bytes(96) + whole[192:])
    # Zeros are what a power cut may leave of what was not synced: a note, until the log is opened.
    assert "owner index, not synced" in said("verify", "--data", data)
    said("reindex", "--data", data, "-t", "orders")
    assert index.read_bytes() == whole
    assert "nothing to rebuild" in said("reindex", "--data", data)


def test_segment_dump_prints_envelopes_and_what_is_in_them(data: Path) -> None:
    segments = data / "topics/__shared/0/segments"
    with cordwood.open(data) as log:
        log.topic("orders@7").advance_log_start(0, 2)
        log.delete_topic("orders@8")
    first, last = sorted(segments.glob("*.log"))
    lines = [
        json.loads(line)
        for path in (first, last)
        for line in said("segment", "dump", "--records", "--json", path).splitlines()
    ]
    assert [each["kind"] for each in lines[-3:]] == ["log start", "ended", "ended"]
    assert {each["org"] for each in lines} == {0, 7, 8}
    assert [each["first_id"] for each in lines] == [*range(19), *range(23, 26)]
    assert lines[18]["last_id"] == 22
    many = lines[18]
    assert [(each["offset"], each["payload"]) for each in many["content"]] == [
        (3 + number, f"many {number}") for number in range(5)
    ]
    assert many["owner"] == f"7-{int.from_bytes(bytes.fromhex(many['topic_hash']), 'little')}-1"
    assert lines[-3]["content"] == []
    assert "log start" in said("segment", "dump", last)
    entries = [
        json.loads(line)
        for path in (first, last)
        for line in said("segment", "dump", "--json", path.with_suffix(".oidx")).splitlines()
    ]
    for key in ("first_id", "first_offset", "org", "topic_hash", "partition", "position", "size"):
        assert [each[key] for each in entries] == [each[key] for each in lines]
    bad = data / "bad.log"
    bad.write_bytes(first.read_bytes()[:-1] + b"?")
    assert "CRC-32C of the frame" in refused("segment", "dump", "--format", "shared", bad, code=4)


def test_maintain_says_how_much_of_the_shared_log_came_back(data: Path) -> None:
    with cordwood.open(data) as log:
        topic = log.topic("orders")
        topic.roll(0)
        for name in ("orders", "orders@7"):
            for partition in range(2):
                log.topic(name).advance_log_start(partition, log.topic(name).high_watermark(partition))
    assert "reclaimed " in said("maintain", "--data", data)
    assert "0 records removed" in said("maintain", "--data", data)
    assert run("verify", "--data", data).exit_code == 0
    assert len(records(data, "orders@8")) == 6


def test_topics_in_the_shared_log_are_exported_and_imported(data: Path, tmp_path: Path) -> None:
    said("export", "-t", "orders@7", "--to", "kafka", tmp_path / "out", "--data", data)
    said("import", "--from", "kafka", tmp_path / "out", "-t", "again@9", *SHARED, "--data", data)
    assert records(data, "again@9") == records(data, "orders@7")
    assert not (data / "topics/again@9").exists()
    assert run("verify", "--data", data).exit_code == 0


def test_topics_in_the_shared_log_are_backed_up_and_restored(data: Path, tmp_path: Path) -> None:
    said("checkpoint", "create", "--data", data)
    said("backup", tmp_path / "copy", "--data", data)
    assert run("verify", "--data", tmp_path / "copy").exit_code == 0
    said("restore", tmp_path / "copy", "--data", tmp_path / "new")
    assert run("verify", "--data", tmp_path / "new").exit_code == 0
    for topic in ("orders", "orders@7", "orders@8", "own"):
        assert records(tmp_path / "new", topic) == records(data, topic)
    sentence = refused(
        "restore", tmp_path / "copy", "--to-offset", "orders@7:0=1", "--data", tmp_path / "never"
    )
    assert sentence.startswith("topic orders@7 is in the shared log")
    until = ("--to-offset", "__shared:0=9", "--force")
    said("restore", tmp_path / "copy", *until, "--data", tmp_path / "then")
    assert records(tmp_path / "then", "orders@8") == [f"orders@8 {number}" for number in range(3)]
    assert run("verify", "--data", tmp_path / "then").exit_code == 0


def test_a_record_in_the_shared_log_is_proven_to_both_verifiers(data: Path, tmp_path: Path) -> None:
    key, proof = data / "meta/keys/checkpoint.pub", tmp_path / "proof.json"
    assert "cordwood checkpoint create -t orders@7" in refused("prove", "-t", "orders@7", 0, "--data", data)
    said("checkpoint", "create", "-t", "orders@7", "--to", tmp_path / "shared.note", "--data", data)
    assert "__shared" in said("checkpoint", "show", "-t", "orders@7", "--data", data)
    assert "holds" in said("checkpoint", "verify", "--key", key, tmp_path / "shared.note", "--data", data)
    for offset in range(8):
        said("prove", "-t", "orders@7", "-p", 1, offset, "--to", proof, "--data", data)
        facts = json.loads(said("verify-proof", proof, "--key", key, "-t", "orders@7", "--json"))
        assert (facts["offset"], facts["size"]) == (offset, 20)
        assert facts["owner"].startswith("7-")
        assert facts["value_bytes"] == (10 if offset < 3 else 6)
    assert "not of topic orders," in refused("verify-proof", proof, "--key", key, "-t", "orders", code=4)
    done = subprocess.run([sys.executable, EXAMPLE, proof, key], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "proven: offset 7 of partition 1 of the topic with hash " in done.stdout
    assert " of org 7 is in leaf 19 of 20: offsets 3 up to 8" in done.stdout
    document = json.loads(proof.read_text())
    for name, value in (("offset", 8), ("first_offset", 2), ("leaf", 17)):
        proof.write_text(json.dumps({**document, name: value}))
        refused("verify-proof", proof, "--key", key, code=4)
        assert subprocess.run([sys.executable, EXAMPLE, proof, key], capture_output=True).returncode == 4


def test_a_record_that_is_still_proven_after_frames_around_it_were_removed(
    data: Path, tmp_path: Path
) -> None:
    """A frame that is copied keeps its bytes, and so its leaf."""
    with cordwood.open(data) as log:
        log.topic("orders").roll(0)
        for name in ("orders", "orders@8"):
            for partition in range(2):
                log.topic(name).advance_log_start(partition, 3)
        assert log.maintain().reclaimed.bytes_freed
    said("checkpoint", "create", "--data", data)
    proof = tmp_path / "proof.json"
    said("prove", "-t", "orders@7", "-p", 1, 1, "--to", proof, "--data", data)
    facts = json.loads(said("verify-proof", proof, "--key", data / "meta/keys/checkpoint.pub", "--json"))
    assert facts["offset"] == 1


def test_where_there_is_nothing_to_prove_or_no_name_that_is_what_is_said(data: Path) -> None:
    said("topic", "create", "empty", *SHARED, "--data", data)
    said("topic", "create", "bare", "--data", data)
    for topic in ("empty", "bare"):
        sentence = refused("prove", "-t", topic, 0, "--data", data)
        assert sentence == f"partition 0 of topic {topic} has no records, so there is nothing to prove"
    sentence = refused("prove", "-t", "orders", 9, "--data", data)
    assert sentence == "offset 9 is not within 0 and 2, the first and the last of partition 0 of topic orders"
    assert (
        refused("backup", "", "--data", data, code=2)
        == "Invalid value for 'DIR': give the name of a directory."
    )
