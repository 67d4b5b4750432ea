"""Checkpoints and proofs as library calls: what is proven, to whom, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.commands import said
from support.producing import Sent
from support.transactions import end_transaction, send_in_transaction

import cordwood
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import EvidenceMissing, EvidenceRefused, InvalidSetting, UnknownTopic
from cordwood.integrity import SigningKey, unverified

EXAMPLE = Path(__file__).parents[2] / "examples" / "verify_proof.py"
NOW = 1_700_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    append(tmp_path / "data", 12)
    return tmp_path / "data"


def append(data: Path, count: int) -> None:
    with cordwood.open(data) as log:
        for number in range(count):
            log.topic("orders").append(b"value %d" % number, key=b"k", timestamp=NOW + number)


def signed(data: Path) -> cordwood.SignedCheckpoint:
    with cordwood.open(data) as log:
        (found,) = log.checkpoint("orders")
    return found


def key_of(data: Path) -> str:
    return str(cordwood.list_checkpoints(data).key)


# --- records ------------------------------------------------------------------------------------------


def test_a_record_is_proven_to_somebody_who_has_the_key_only(data: Path) -> None:
    signed(data)
    document = cordwood.prove(data, "orders", 7).document()
    proven = cordwood.verify_proof(document, key_of(data), topic="orders")
    assert proven.record == cordwood.Record(7, NOW + 7, b"k", b"value 7", ())
    assert (proven.offset, proven.leaf, proven.owner) == (7, 7, None)
    assert (proven.checkpoint.size, proven.checkpoint.next_offset) == (12, 12)
    # The command prints the same document, byte for byte.
    assert said("prove", "-t", "orders", 7, "--data", data).encode() == document


def test_a_proof_that_was_changed_or_is_about_something_else_is_refused(data: Path, tmp_path: Path) -> None:
    signed(data)
    proof, key = cordwood.prove(data, "orders", 7), key_of(data)
    assert isinstance(proof, cordwood.Proof)
    with pytest.raises(EvidenceRefused, match="is not leaf 6"):
        cordwood.verify_proof(msgspec.structs.replace(proof, leaf=6), key)
    with pytest.raises(EvidenceRefused, match="is not leaf 7"):
        cordwood.verify_proof(msgspec.structs.replace(proof, frame=proof.frame[:-1] + b"8"), key)
    with pytest.raises(EvidenceRefused, match="not of topic payments"):
        cordwood.verify_proof(proof, key, topic="payments")
    append(tmp_path / "other", 1)
    signed(tmp_path / "other")
    with pytest.raises(EvidenceRefused, match="not the key that was given"):
        cordwood.verify_proof(proof, key_of(tmp_path / "other"))
    for document in (b"", b"{}", b"\xff"):
        with pytest.raises(EvidenceRefused, match="not a proof"):
            cordwood.verify_proof(document, key)
    with pytest.raises(EvidenceRefused):
        cordwood.verify_proof(proof, "nonsense")


def test_what_cannot_be_proven_yet_says_what_is_missing(data: Path) -> None:
    with pytest.raises(EvidenceMissing, match="no checkpoint of partition 0 of topic orders was signed yet"):
        cordwood.prove(data, "orders", 0)
    signed(data)
    append(data, 1)
    with pytest.raises(EvidenceMissing, match="does not reach offset 12"):
        cordwood.prove(data, "orders", 12)
    with pytest.raises(EvidenceMissing, match="offset 13 is not within 0 and 12"):
        cordwood.prove(data, "orders", 13)
    for topic, partition in (("payments", 0), ("orders", 1)):
        with pytest.raises(UnknownTopic):
            cordwood.prove(data, topic, 0, partition=partition)


def test_a_frame_that_was_exchanged_is_not_proven(data: Path) -> None:
    """A valid frame of the same size and offsets, where another was appended first."""
    signed(data)
    (segment,) = (data / "topics/orders/0/segments").glob("*.log")
    other = data.parent / "other"
    with cordwood.open(other) as log:
        for number in range(12):
            log.topic("orders").append(b"VALUE %d" % number, key=b"k", timestamp=NOW + number)
    (exchanged,) = (other / "topics/orders/0/segments").glob("*.log")
    segment.write_bytes(exchanged.read_bytes())
    with pytest.raises(EvidenceRefused, match="is not what was first appended there"):
        cordwood.prove(data, "orders", 3)


def test_a_record_in_the_shared_log_is_proven_to_be_of_its_topic(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        for name in ("orders", "payments"):
            log.topic(name, config={"cordwood.storage": "shared"}).append(b"of " + name.encode())
        (found,) = log.checkpoint("orders")
    assert found.topic == "__shared"
    proof, key = cordwood.prove(data, "payments", 0), key_of(data)
    proven = cordwood.verify_proof(proof, key, topic="payments")
    assert proven.record is not None
    assert proven.record.value == b"of payments"
    assert proven.owner is not None
    with pytest.raises(EvidenceRefused, match="not of topic orders"):
        cordwood.verify_proof(proof, key, topic="orders")
    with pytest.raises(InvalidSetting, match="the name of a topic"):
        cordwood.verify_proof(proof, key, topic="orders@x")


# --- checkpoints --------------------------------------------------------------------------------------


def test_an_open_log_signs_for_every_record_at_once(data: Path) -> None:
    """The last append has its leaf, however far behind the thread is that adds leaves."""
    with cordwood.open(data) as log:
        log.topic("orders").append(b"just now")
        log.topic("payments").append(b"first")
        log.topic("empty")
        found = log.checkpoint()
    assert [(each.topic, each.partition, each.size) for each in found] == [
        ("orders", 0, 13),
        ("payments", 0, 1),
    ]
    listed = cordwood.list_checkpoints(data)
    assert [(each.topic, each.size, each.next_offset) for each in listed.checkpoints] == [
        ("orders", 13, 13),
        ("payments", 1, 1),
    ]
    assert Path(listed.checkpoints[0].path).read_text() == found[0].note
    assert cordwood.list_checkpoints(data, "payments").checkpoints == listed.checkpoints[1:]


def test_a_log_that_is_open_to_read_signs_for_what_its_writer_has_written(data: Path) -> None:
    with cordwood.open(data, read_only=True) as log:
        (found,) = log.checkpoint("orders")
    assert found == signed(data)


def test_a_log_in_memory_signs_too() -> None:
    files = MemoryFiles()
    with cordwood.open(":memory:", files=files) as log:
        log.topic("orders").append(b"value")
        (found,) = log.checkpoint()
        assert unverified(found.note).size == found.size == 1
        proof = cordwood.prove("/memory", "orders", 0, files=files)
        key = cordwood.list_checkpoints("/memory", files=files).key
        assert key is not None
        assert cordwood.verify_proof(proof, key).offset == 0


def test_topics_without_a_chain_have_nothing_to_sign(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        log.topic("plain", config={"cordwood.chain": "false"}).append(b"value")
        with pytest.raises(EvidenceMissing, match="topic plain keeps no chain"):
            log.checkpoint("plain")
        with pytest.raises(EvidenceMissing, match="no topic keeps a chain"):
            log.checkpoint()
        with pytest.raises(UnknownTopic, match="there is no topic orders"):
            log.checkpoint("orders")
    assert cordwood.list_checkpoints(tmp_path / "data") == cordwood.CheckpointList(None, [])


def test_a_checkpoint_holds_while_the_log_grows_and_no_longer_once_it_was_changed(data: Path) -> None:
    note, key = signed(data).note, key_of(data)
    append(data, 3)
    signed(data)
    found = cordwood.verify_checkpoint(data, note, key)
    assert (found.topic, found.partition, found.checkpoint.size, found.report.leaves) == ("orders", 0, 12, 15)
    assert (found.report.frames_compared, found.statements) == (15, ())
    with pytest.raises(EvidenceRefused, match="is not one of this text"):
        cordwood.verify_checkpoint(data, note.replace("\n12\n", "\n13\n"), key)
    segment = min((data / "topics/orders/0/segments").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    with pytest.raises(EvidenceRefused, match="partition 0 of topic orders does not hold"):
        cordwood.verify_checkpoint(data, note, key)


def test_a_checkpoint_does_not_hold_for_a_log_that_was_truncated_below_it(data: Path) -> None:
    """Even if as many other records were appended since, and the tree still begins with what was signed."""
    note, key = signed(data).note, key_of(data)
    with cordwood.open(data) as log:
        log.topic("orders").truncate(0, 9, force=True)
    append(data, 3)
    with pytest.raises(EvidenceRefused, match="found truncated at offset 9 on "):
        cordwood.verify_checkpoint(data, note, key)
    later = signed(data).note
    assert cordwood.verify_checkpoint(data, later, key).checkpoint.next_offset == 12
    # The tree only grew all the same: the truncation is a leaf of it.
    proof = cordwood.prove_consistency(data, note, later)
    assert cordwood.verify_consistency(proof, note, later, key).newer.size == 16


# --- consistency --------------------------------------------------------------------------------------


def three_notes(data: Path) -> list[str]:
    notes = [signed(data).note]
    for count in (5, 1):
        append(data, count)
        notes.append(signed(data).note)
    return notes


def test_a_later_checkpoint_is_proven_to_continue_an_earlier_one(data: Path) -> None:
    notes, key = three_notes(data), key_of(data)
    for older in range(3):
        for newer in range(older, 3):
            proof = cordwood.prove_consistency(data, notes[older], notes[newer])
            for given in (proof, proof.document()):
                found = cordwood.verify_consistency(given, notes[older], notes[newer], key)
                assert (found.older.size, found.newer.size) == ((12, 17, 18)[older], (12, 17, 18)[newer])


def test_a_proof_of_consistency_that_does_not_fit_is_refused(data: Path, tmp_path: Path) -> None:
    first, second, third = three_notes(data)
    key = key_of(data)
    proof = cordwood.prove_consistency(data, first, second)
    with pytest.raises(EvidenceRefused, match="has 17 leaves, the newer one only 12"):
        cordwood.verify_consistency(proof, second, first, key)
    with pytest.raises(EvidenceRefused, match="is about 12 and 17 leaves, the checkpoints about 12 and 18"):
        cordwood.verify_consistency(proof, first, third, key)
    assert proof.path
    for at in range(len(proof.path)):
        path = [*proof.path[:at], bytes(32), *proof.path[at + 1 :]]
        with pytest.raises(EvidenceRefused, match="do not begin with the 12 leaves"):
            cordwood.verify_consistency(msgspec.structs.replace(proof, path=path), first, second, key)
    for document in (b"", b"{}", proof.document().replace(b"consistency/1", b"consistency/2")):
        with pytest.raises(EvidenceRefused, match="not a"):
            cordwood.verify_consistency(document, first, second, key)
    append(tmp_path / "other", 20)
    other = signed(tmp_path / "other").note
    with pytest.raises(EvidenceRefused, match="are of two logs"):
        cordwood.prove_consistency(data, first, other)
    with pytest.raises(EvidenceRefused, match="is not signed by"):
        cordwood.verify_consistency(proof, first, second, key_of(tmp_path / "other"))


def test_two_histories_signed_with_the_same_key_cannot_be_shown_to_be_one(data: Path) -> None:
    """Whoever has the key can sign for another history, but not prove that it continues the one before."""
    first, second, _ = three_notes(data)
    secret = SigningKey.parse((data / "meta/keys/checkpoint.key").read_text().strip())
    forged = replace(unverified(second), root=bytes(32)).signed(secret)
    with pytest.raises(EvidenceRefused, match="does not have both trees"):
        cordwood.prove_consistency(data, first, forged)
    proof = cordwood.prove_consistency(data, first, second)
    with pytest.raises(EvidenceRefused, match="do not begin with the 12 leaves"):
        cordwood.verify_consistency(proof, first, forged, key_of(data))


def test_the_document_has_sizes_and_hashes_alone(data: Path) -> None:
    first, second, _ = three_notes(data)
    fields = json.loads(cordwood.prove_consistency(data, first, second).document())
    assert sorted(fields) == ["format", "newer_size", "older_size", "path"]
    assert (fields["format"], fields["older_size"], fields["newer_size"]) == (
        "cordwood-consistency/1",
        12,
        17,
    )


def test_several_checkpoints_are_held_against_the_log_and_each_other_at_once(data: Path) -> None:
    notes, key = three_notes(data), key_of(data)
    found = cordwood.verify_checkpoints(data, [notes[2], notes[0]], key)
    assert [each.checkpoint.size for each in found] == [18, 12]
    assert {each.report.leaves for each in found} == {18}
    assert cordwood.verify_checkpoints(data, [], key) == []
    secret = SigningKey.parse((data / "meta/keys/checkpoint.key").read_text().strip())
    forged = replace(unverified(notes[1]), chain_head=bytes(32)).signed(secret)
    with pytest.raises(EvidenceRefused, match="checkpoint 2 and checkpoint 3 contradict each other"):
        cordwood.verify_checkpoints(data, [notes[0], notes[1], forged], key)
    with pytest.raises(EvidenceRefused, match="contradict each other"):
        cordwood.prove_consistency(data, notes[1], forged)
    changed = notes[1].replace("\n17\n", "\n16\n")
    with pytest.raises(EvidenceRefused, match=r"^changed\.note: .* is not one of this text"):
        cordwood.verify_checkpoints(data, [notes[0], changed], key, names=["first.note", "changed.note"])


# --- transactions -------------------------------------------------------------------------------------


TRANSACTIONS = {
    "whole frames": {"segment.bytes": "400"},
    "records one by one": {"cleanup.policy": "compact"},
    "shared": {"cordwood.storage": "shared"},
}


@pytest.fixture(params=TRANSACTIONS)
def ended(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a directory: 0 plain, 1 aborted, 2 committed, 3, 4 their ends, 5 open, 6 plain, 7 committed."""
    path = tmp_path / "ended"
    with cordwood.open(path) as log:
        topic = log.topic("orders", config={"cordwood.chain": "true", **TRANSACTIONS[request.param]})
        topic.append(b"plain", key=b"plain")
        partition = log.data_directory.partitions.writable("orders", 0)
        sends = [(1, 0, b"aborted"), (2, 0, b"committed"), (1, None, b""), (2, None, b"")]
        sends += [(1, 1, b"open"), (-1, None, b""), (2, 1, b"behind"), (2, None, b"")]
        for producer, sequence, value in sends:
            if producer < 0:
                topic.append(b"plain too", key=b"plain too")
            elif sequence is None:
                end_transaction(partition, producer, committed=producer == 2)
            else:
                send_in_transaction(partition, Sent(producer, 0, sequence, (value,)), NOW)
            partition.commit()
        log.checkpoint()
    return path


def shown(path: Path, proof: Path) -> list[str]:
    """Return the words about the record of a proof, by the command and by the example."""
    key = path / "meta/keys/checkpoint.pub"
    example = subprocess.run(
        [sys.executable, EXAMPLE, proof, key], check=True, capture_output=True, text=True
    )
    found = []
    for line in (said("verify-proof", proof, "--key", key), example.stdout):
        words = re.search(r": proven: (offset \d+)( of [^,]*)?(, of .*,)? is in leaf", line)
        assert words is not None, line
        found.append(words[1] + (words[3] or ""))
    return found


def test_a_record_of_an_aborted_or_open_transaction_is_proven_as_such_or_not_at_all(
    ended: Path, tmp_path: Path
) -> None:
    """A proof of it would look like one of a valid record. Whatever is committed is proven as before."""
    key, proof = key_of(ended), tmp_path / "proof.json"
    for offset, outcome in ((1, "aborted"), (5, "open")):
        with pytest.raises(EvidenceMissing) as refusal:
            cordwood.prove(ended, "orders", offset)
        assert str(refusal.value) == (
            f"the record at offset {offset} of partition 0 of topic orders is of an {outcome} transaction; "
            "prove it as such with cordwood prove --uncommitted"
        )
        document = cordwood.prove(ended, "orders", offset, committed=False).document()
        proven = cordwood.verify_proof(document, key, topic="orders")
        assert proven.record is not None
        assert (proven.record.value, proven.in_transaction) == (outcome.encode(), True)
        assert proven.transaction == outcome
        proof.write_bytes(document)
        assert shown(ended, proof) == [f"offset {offset}, of an {outcome} transaction,"] * 2
    for offset, in_transaction in ((0, False), (2, True), (6, False), (7, True)):
        for committed in (True, False):
            document = cordwood.prove(ended, "orders", offset, committed=committed).document()
            assert b'"transaction"' not in document
            proven = cordwood.verify_proof(document, key)
            assert (proven.in_transaction, proven.transaction) == (in_transaction, None)
        proof.write_bytes(document)
        words = ", of a transaction whose end the proof does not have," if in_transaction else ""
        assert shown(ended, proof) == [f"offset {offset}{words}"] * 2


def test_the_end_of_a_transaction_is_no_record_to_prove(ended: Path) -> None:
    for offset, end in ((3, "abort"), (4, "commit"), (8, "commit")):
        for committed in (True, False):
            with pytest.raises(EvidenceMissing) as refusal:
                cordwood.prove(ended, "orders", offset, committed=committed)
            assert str(refusal.value) == (
                f"offset {offset} of partition 0 of topic orders is the {end} of a transaction, not a record"
            )


def test_what_a_proof_says_of_a_transaction_must_fit_the_record(ended: Path) -> None:
    """It cannot be said of a record in none; and leaving it out says nothing of how the transaction ended."""
    key, plain = key_of(ended), cordwood.prove(ended, "orders", 0)
    for said_, reason in (("aborted", "but the record is in none"), ("rolled back", "which is unknown")):
        with pytest.raises(EvidenceRefused, match=reason):
            cordwood.verify_proof(msgspec.structs.replace(plain, transaction=said_), key)
    aborted = cordwood.prove(ended, "orders", 1, committed=False)
    silent = cordwood.verify_proof(msgspec.structs.replace(aborted, transaction=None), key)
    assert (silent.in_transaction, silent.transaction) == (True, None)
