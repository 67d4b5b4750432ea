"""cordwood prove and cordwood verify-proof: one record, shown to somebody who has only a key."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import refused, said
from support.data_directory import with_crc
from support.logs import frames_of
from support.producing import Sent
from support.transactions import end_transaction, send_in_transaction

import cordwood

EXAMPLE = Path(__file__).parents[2] / "examples" / "verify_proof.py"
NOW = 1_700_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", config={"segment.bytes": "400", "cordwood.chain": "true"})
        for number in range(9):
            topic.append(b"value %d" % number, key=b"k", timestamp=NOW + number)
        topic.append_many([(b"k", b"many %d" % number, (), NOW) for number in range(5)], partition=0)
    said("checkpoint", "create", "--data", tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def key(data: Path) -> Path:
    return data / "meta/keys/checkpoint.pub"


def proven(data: Path, offset: int, to: Path) -> Path:
    said("prove", "-t", "orders", offset, "--to", to, "--data", data)
    return to


def test_every_record_is_proven_to_both_verifiers(data: Path, key: Path, tmp_path: Path) -> None:
    for offset in range(14):
        proof = proven(data, offset, tmp_path / "proof.json")
        facts = json.loads(said("verify-proof", proof, "--key", key, "--json"))
        assert (facts["offset"], facts["leaf"], facts["size"]) == (offset, min(offset, 9), 10)
        assert facts["timestamp"] == (NOW + offset if offset < 9 else NOW)
        assert (facts["key_bytes"], facts["value_bytes"]) == (1, 7 if offset < 9 else 6)
        document = json.loads(proof.read_text())
        beside = proof.stat().st_size - len(document["frame"])
        assert beside < 2000
    done = subprocess.run([sys.executable, EXAMPLE, proof, key], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "proven: offset 13 is in leaf 9 of 10: offsets 9 up to 14" in done.stdout
    line = said("verify-proof", proof, "--key", key.read_text().strip())
    assert "/orders/0: proven: offset 13 is in leaf 9 of 10: " in line
    assert line.endswith(": timestamp 1700000000000, key 1 bytes, value 6 bytes\n")


def test_a_proof_stays_one_while_the_log_goes_on_and_after_its_record_is_gone(
    data: Path, key: Path, tmp_path: Path
) -> None:
    proof = proven(data, 2, tmp_path / "proof.json")
    with cordwood.open(data) as log:
        log.topic("orders").append(b"more")
    said("checkpoint", "create", "--data", data)
    later = proven(data, 2, tmp_path / "later.json")
    assert json.loads(later.read_text())["checkpoint"] != json.loads(proof.read_text())["checkpoint"]
    with cordwood.open(data) as log:
        log.data_directory.partitions.writable("orders", 0).advance_log_start(9)
    for each in (proof, later):
        assert "proven: offset 2" in said("verify-proof", each, "--key", key)
    assert "offset 2 is not within" in refused("prove", "-t", "orders", 2, "--data", data)


def test_a_proof_that_was_touched_or_is_of_another_key_exits_4(data: Path, key: Path, tmp_path: Path) -> None:
    proof = proven(data, 3, tmp_path / "proof.json")
    document = json.loads(proof.read_text())
    frame = base64.b64decode(document["frame"]).replace(b"value 3", b"value 4")
    proof.write_text(json.dumps({**document, "frame": base64.b64encode(frame).decode()}))
    assert "the frame is not leaf 3" in refused("verify-proof", proof, "--key", key, code=4)
    done = subprocess.run([sys.executable, EXAMPLE, proof, key], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (4, "not proven: the path does not lead to the signed root\n")
    proof.write_text("{}")
    assert "not a proof" in refused("verify-proof", proof, "--key", key, code=4)
    refused("verify-proof", proof, "--key", "nobody+00000000+AAAA", code=2)
    assert "No such file" in refused("verify-proof", tmp_path / "gone", "--key", key)


def test_a_record_that_is_not_what_was_appended_cannot_be_proven(data: Path) -> None:
    path = min((data / "topics/orders/0/segments").glob("*.log"))
    whole = path.read_bytes()
    start, end = frames_of(whole)[1]
    changed = with_crc(whole[start:end].replace(b"value", b"VALUE"))
    path.write_bytes(whole[:start] + changed + whole[end:])
    sentence = refused("prove", "-t", "orders", 1, "--data", data, code=4)
    assert sentence == "the frame at offset 1 is not what was first appended there: its leaf 1 is of another"
    said("prove", "-t", "orders", 0, "--data", data)


def test_what_has_no_checkpoint_or_no_leaf_says_what_to_do(data: Path, tmp_path: Path) -> None:
    with cordwood.open(data) as log:
        log.topic("orders").append(b"later")
        log.topic("plain").append(b"value")
    assert "sign one with cordwood checkpoint create -t plain" in refused(
        "prove", "-t", "plain", 0, "--data", data
    )
    sentence = refused("prove", "-t", "orders", 14, "--data", data)
    assert "the newest checkpoint does not reach offset 14; sign one that does with" in sentence
    assert "is not within" in refused("prove", "-t", "orders", 99, "--data", data)
    assert "there is no partition 1" in refused("prove", "-t", "orders", "-p", 1, 0, "--data", data)
    assert "there is no directory" in refused("prove", "-t", "orders", 0, "--data", tmp_path / "gone")


def test_a_record_that_compaction_moved_is_proven_by_what_it_said(tmp_path: Path) -> None:
    """The record itself, under the checkpoint that compaction signs and under the one from before it."""
    data = tmp_path / "data"
    config = {"segment.bytes": "400", "cordwood.chain": "true", "cleanup.policy": "compact"}
    with cordwood.open(data) as log:
        topic = log.topic("orders", config=config)
        topic.append_many([(b"a", b"1"), (b"b", b"1")], partition=0)
        for number in range(9):
            topic.append(b"value %d" % number, key=b"a")
    note = tmp_path / "before.note"
    said("checkpoint", "create", "--to", note, "--data", data)
    before = proven(data, 1, tmp_path / "before.json")
    with cordwood.open(data) as log:
        log.data_directory.partitions.writable("orders", 0).roll()
        assert log.maintain(force=True).compacted
    key = data / "meta/keys/checkpoint.pub"
    after = proven(data, 1, tmp_path / "after.json")
    then, now = json.loads(before.read_text()), json.loads(after.read_text())
    assert now["checkpoint"] != then["checkpoint"]
    differing = {name for name in then if then[name] != now[name]}
    assert differing == {"checkpoint", "path"}, "the same record in the same leaf, of a larger tree"
    under = tmp_path / "under.json"
    said("prove", "-t", "orders", 1, "--checkpoint", note, "--to", under, "--data", data)
    assert under.read_bytes() == before.read_bytes()
    for proof in (before, after):
        assert json.loads(said("verify-proof", proof, "--key", key, "--json"))["offset"] == 1
        assert subprocess.run([sys.executable, EXAMPLE, proof, key], check=False).returncode == 0


def test_a_checkpoint_that_is_not_there_or_of_another_topic_is_refused(
    tmp_path: Path,
) -> None:
    data, note = tmp_path / "data", tmp_path / "other.note"
    with cordwood.open(data) as log:
        for name in ("orders", "other"):
            log.topic(name).append(b"1")
    said("checkpoint", "create", "-t", "orders", "--data", data)
    said("checkpoint", "create", "-t", "other", "--to", note, "--data", data)
    sentence = refused("prove", "-t", "orders", 0, "--checkpoint", note, "--data", data, code=4)
    assert "/other/0, not of orders/0" in sentence
    missing = ("prove", "-t", "orders", 0, "--checkpoint", tmp_path / "none", "--data", data)
    assert "does not exist" in refused(*missing, code=2)


@pytest.mark.parametrize("format_", ["rustlog", "kimberlite", "laminarmq", "frame"])
def test_records_of_every_format_are_proven_and_the_format_is_signed_for(
    format_: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        topic = log.topic("orders", 2, config={"cordwood.format": format_})
        for number in range(5):
            topic.append(b"value %d" % number, partition=1, timestamp=NOW + number)
    said("checkpoint", "create", "--data", data)
    key, proof = data / "meta/keys/checkpoint.pub", tmp_path / "proof.json"
    said("prove", "-t", "orders", "-p", 1, 3, "--to", proof, "--data", data)
    facts = json.loads(said("verify-proof", proof, "--key", key, "--json"))
    assert (facts["offset"], facts["leaf"], facts["timestamp"], facts["value_bytes"]) == (3, 3, NOW + 3, 7)
    shown = subprocess.run([sys.executable, EXAMPLE, proof, key], check=True, capture_output=True, text=True)
    assert f"a record of the format {format_}" in shown.stdout
    document = json.loads(proof.read_text())
    assert f"\nrecord-format {format_}\n" in document["checkpoint"]
    if format_ != "laminarmq":
        wrong = tmp_path / "wrong.json"
        wrong.write_text(json.dumps({**document, "offset": 4, "first_offset": 4, "next_offset": 5}))
        assert "the frame has offsets 3 up to 4" in refused("verify-proof", wrong, "--key", key, code=4)


def test_a_record_of_an_aborted_transaction_is_proven_only_on_request_and_as_such(tmp_path: Path) -> None:
    data, proof = tmp_path / "data", tmp_path / "proof.json"
    with cordwood.open(data) as log:
        log.topic("orders").append(b"plain")
        partition = log.data_directory.partitions.writable("orders", 0)
        send_in_transaction(partition, Sent(1, 0, 0, (b"aborted",)), NOW)
        end_transaction(partition, 1, committed=False)
        partition.commit()
        log.checkpoint()
    key = data / "meta/keys/checkpoint.pub"
    place = "of partition 0 of topic orders is"
    assert refused("prove", "-t", "orders", 1, "--to", proof, "--data", data) == (
        f"the record at offset 1 {place} of an aborted transaction; "
        "prove it as such with cordwood prove --uncommitted"
    )
    assert not proof.exists()
    assert f"offset 2 {place} the abort of a transaction, not a record" in refused(
        "prove", "-t", "orders", 2, "--uncommitted", "--data", data
    )
    words = said("prove", "-t", "orders", 1, "--uncommitted", "--to", proof, "--data", data)
    assert "proves offset 1 of partition 0 of orders, of an aborted transaction, in " in words
    assert "proven: offset 1, of an aborted transaction, is in leaf 1 of 3: " in said(
        "verify-proof", proof, "--key", key
    )
    facts = json.loads(said("verify-proof", proof, "--key", key, "--json"))
    assert (facts["in_transaction"], facts["transaction"]) == (True, "aborted")
    said("prove", "-t", "orders", 0, "--uncommitted", "--to", proof, "--data", data)
    facts = json.loads(said("verify-proof", proof, "--key", key, "--json"))
    assert (facts["in_transaction"], facts["transaction"]) == (False, None)
