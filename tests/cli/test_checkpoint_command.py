"""cordwood checkpoint: what it signs, keeps, takes elsewhere, and notices."""

from __future__ import annotations

import json
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from integrity.plain_note import opened
from support.commands import refused, run, said
from support.data_directory import with_crc
from support.logs import frames_of
from support.pages import check_page
from support.patience import SECONDS_MAX
from support.serving import serving

import cordwood
from cordwood.disk.posix import PosixFiles
from cordwood.errors import SignedFor
from cordwood.integrity.checkpoint import unverified
from cordwood.integrity.note import SigningKey, VerifierKey
from cordwood.storage.chain.checkpoints import signed_up_to

PAGE = Path(__file__).parents[2] / "docs" / "integrity.md"
NOW = 1_700_000_000_000
SETTINGS = {"segment.bytes": "400", "index.interval.bytes": "100", "cordwood.chain": "true"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", config=SETTINGS)
        for number in range(12):
            topic.append(b"value %d" % number, timestamp=NOW + number)
        log.topic("plain", config={"cordwood.chain": "false"}).append(b"no chain")
    return tmp_path / "data"


def append(data: Path, count: int) -> None:
    with cordwood.open(data) as log:
        for number in range(count):
            log.topic("orders").append(b"more %d" % number, timestamp=NOW)


def signed(data: Path, note: Path) -> tuple[str, Path]:
    """Sign a checkpoint, keep it elsewhere, and return the key and where."""
    said("checkpoint", "create", "-t", "orders", "--to", note, "--data", data)
    return json.loads(said("checkpoint", "show", "--data", data, "--json"))["key"], note


def verified(data: Path, key: str, note: Path) -> str:
    return said("checkpoint", "verify", "--key", key, note, "--data", data)


def refuted(data: Path, key: str, note: Path) -> str:
    return refused("checkpoint", "verify", "--key", key, note, "--data", data, code=4)


def first_segment(data: Path) -> Path:
    return min((data / "topics/orders/0/segments").glob("*.log"))


def test_the_page_prints_what_it_says(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "verify_proof.py"
    shutil.copy(example, tmp_path / example.name)
    assert check_page(PAGE, tmp_path) >= 8


def test_a_checkpoint_is_printed_kept_and_verified_by_a_second_implementation(
    data: Path, tmp_path: Path
) -> None:
    note = said("checkpoint", "create", "--data", data)
    shown = json.loads(said("checkpoint", "show", "--data", data, "--json"))
    key = VerifierKey.parse(shown["key"])
    text = opened(note.encode(), key.name.encode(), key.public)
    assert text is not None
    lines = text.decode().splitlines()
    assert (lines[0], lines[1], lines[-1]) == (f"{key.name}/orders/0", "12", "next-offset 12")
    (kept,) = shown["checkpoints"]
    assert Path(kept["path"]).read_text() == note
    assert (kept["topic"], kept["partition"], kept["size"], kept["next_offset"]) == ("orders", 0, 12, 12)
    assert said("checkpoint", "create", "--data", data) == note


def test_the_key_that_signs_is_its_owners_alone_and_never_shown(data: Path) -> None:
    printed = said("checkpoint", "create", "--data", data) + said("checkpoint", "show", "--data", data)
    key = data / "meta/keys/checkpoint.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_text().strip()
    assert secret.startswith("PRIVATE+KEY+")
    assert secret.split("+", 4)[4] not in printed
    key.write_text(secret[:-8])
    sentence = refused("checkpoint", "create", "--data", data, code=4)
    assert "checkpoint.key: is not a signing key" in sentence
    assert secret[-40:-8] not in sentence
    key.unlink()
    assert "is missing, but" in refused("checkpoint", "create", "--data", data, code=4)


def test_old_checkpoints_are_kept_and_hold_while_the_log_grows(data: Path, tmp_path: Path) -> None:
    key, note = signed(data, tmp_path / "first.note")
    append(data, 5)
    assert "holds: 12 of 17 leaves, up to offset 12; 17 frames as first appended" in verified(data, key, note)
    _, second = signed(data, tmp_path / "second.note")
    assert "holds: 17 of 17 leaves" in verified(data, key, second)
    shown = json.loads(said("checkpoint", "show", "--data", data, "--json"))
    assert [each["size"] for each in shown["checkpoints"]] == [12, 17]
    assert "orders" in said("checkpoint", "show", "--data", data, "-t", "orders")


def test_a_checkpoint_by_another_key_or_of_another_log_is_refused(data: Path, tmp_path: Path) -> None:
    key, note = signed(data, tmp_path / "orders.note")
    other = tmp_path / "other"
    with cordwood.open(other) as log:
        log.topic("orders", config=SETTINGS).append(b"value")
    other_key, other_note = signed(other, tmp_path / "other.note")
    assert "is not signed by" in refuted(data, other_key, note)
    assert "which is not in" in refuted(data, other_key, other_note)
    note.write_text(note.read_text().replace("\n12\n", "\n13\n"))
    assert "is not one of this text" in refuted(data, key, note)
    note.write_bytes(b"\xff")
    assert "not a signed note" in refuted(data, key, note)
    refused("checkpoint", "verify", "--key", "nonsense", note, "--data", data, code=2)


def test_verify_holds_checkpoints_that_others_kept_against_the_whole_directory(
    data: Path, tmp_path: Path
) -> None:
    key, note = signed(data, tmp_path / "first.note")
    append(data, 5)
    _, second = signed(data, tmp_path / "second.note")
    pinned = tmp_path / "orders.pub"
    pinned.write_text(key)
    both = ("--checkpoint", note, "--checkpoint", second)
    for keys in (("--key", key), ("--key", pinned, "--key", key)):
        report = json.loads(said("verify", "--data", data, *both, *keys, "--json"))
        assert (report["sound"], report["leaves"], report["checkpoints"]) == (True, 17, 4)
        assert report["frames_compared"] == 17
    line = said("verify", "--data", data, *both, "--key", key)
    assert line.endswith("; 17 frames compared with 17 leaves, 4 checkpoints\n")
    for wrong in ((*both,), ("--key", key), (*both, *("--key", key) * 3), (*both, "--key", "nonsense")):
        refused("verify", "--data", data, *wrong, code=2)
    note.write_bytes(b"\xff")
    assert "not a signed note" in refused("verify", "--data", data, *both, "--key", key, code=4)
    note.write_text("nothing signed")
    assert run("verify", "--data", data, *both, "--key", key).exit_code == 4


def test_verify_ends_with_status_4_and_names_file_position_and_offset_of_the_first_break(data: Path) -> None:
    said("checkpoint", "create", "--data", data)
    rewrite_frame(data, 1)
    rewrite_frame(data, 2)
    found = run("verify", "--data", data, "--json")
    assert found.exit_code == 4
    (finding,) = json.loads(found.stdout)["findings"]
    assert finding["path"] == str(first_segment(data))
    assert finding["position"] == frames_of(first_segment(data).read_bytes())[1][0]
    assert finding["what"] == "frame at offset 1, its leaf (the first of 2 frames)"


# --- two checkpoints ------------------------------------------------------------------------------------


def resigned(data: Path, note: Path, to: Path, **changes: object) -> Path:
    """Write the checkpoint in *note* with *changes*, signed with the key of the directory."""
    secret = SigningKey.parse((data / "meta/keys/checkpoint.key").read_text().strip())
    wrong = replace(unverified(note.read_text()), **changes)  # type: ignore[arg-type]
    to.write_text(wrong.signed(secret))
    return to


def grown(data: Path, tmp_path: Path) -> tuple[str, Path, Path]:
    """Return the key, and a checkpoint of 12 and one of 17 leaves of a log that has 20."""
    key, old = signed(data, tmp_path / "old.note")
    append(data, 5)
    _, new = signed(data, tmp_path / "new.note")
    append(data, 3)
    return key, old, new


def test_of_two_checkpoints_the_larger_is_shown_to_continue_the_smaller_in_either_order(
    data: Path, tmp_path: Path
) -> None:
    """Also if the log has grown since the larger one, and for any number of them."""
    key, old, new = grown(data, tmp_path)
    for given in ((old, new), (new, old)):
        lines = said("checkpoint", "verify", "--key", key, *given, "--data", data).splitlines()
        sizes = [line.partition(": ")[2].split(" leaves")[0] for line in lines[:2]]
        assert sizes == [f"holds: {17 if each == new else 12} of 20" for each in given]
        assert lines[2].endswith(
            f"/orders/0: consistent: the 17 leaves of {new} begin with the 12 leaves of {old}"
        )
        assert len(lines) == 3
    _, newest = signed(data, tmp_path / "newest.note")
    lines = said("checkpoint", "verify", "--key", key, newest, old, new, "--data", data).splitlines()
    assert [line.partition(": consistent: ")[2] for line in lines[3:]] == [
        f"the 17 leaves of {new} begin with the 12 leaves of {old}",
        f"the 20 leaves of {newest} begin with the 17 leaves of {new}",
    ]
    lines = said("checkpoint", "verify", "--key", key, old, old, "--data", data).splitlines()
    assert lines[2].endswith(f"the 12 leaves of {old} begin with the 12 leaves of {old}")


def test_two_checkpoints_that_contradict_each_other_are_one_error_that_names_both(
    data: Path, tmp_path: Path
) -> None:
    key, old, new = grown(data, tmp_path)
    forged = resigned(data, old, tmp_path / "forged.note", root=bytes(32))
    for given in ((old, forged), (new, old, forged)):
        sentence = refused("checkpoint", "verify", "--key", key, *given, "--data", data, code=4)
        assert sentence.startswith(f"{old} and {forged} contradict each other: both sign for 12 leaves of ")
    sentence = refused("checkpoint", "verify", "--key", key, forged, new, "--data", data, code=4)
    assert f"root of the first 12 leaves: expected {bytes(32).hex()}, which {forged} signs for" in sentence


def test_checkpoints_of_two_logs_are_checked_each_on_its_own(data: Path, tmp_path: Path) -> None:
    with cordwood.open(data) as log:
        log.topic("payments", config=SETTINGS).append(b"value")
    key, orders = signed(data, tmp_path / "orders.note")
    payments = tmp_path / "payments.note"
    said("checkpoint", "create", "-t", "payments", "--to", payments, "--data", data)
    lines = said("checkpoint", "verify", "--key", key, payments, orders, "--data", data).splitlines()
    assert [line.split(" leaves")[0].partition("/")[2] for line in lines] == [
        "payments/0: holds: 1 of 1",
        "orders/0: holds: 12 of 12",
    ]
    forged = resigned(data, payments, tmp_path / "forged.note", root=bytes(32))
    assert "partition 0 of topic payments does not hold" in refused(
        "checkpoint", "verify", "--key", key, orders, forged, "--data", data, code=4
    )


def test_that_a_log_only_grew_is_proven_to_somebody_without_the_log(data: Path, tmp_path: Path) -> None:
    key, old, new = grown(data, tmp_path)
    proof = tmp_path / "grown.json"
    line = said("checkpoint", "prove", new, old, "--to", proof, "--data", data)
    assert line.startswith(
        f"{proof}: proves that the 17 leaves of {new} begin with the 12 leaves of {old} in "
    )
    assert stat.S_IMODE(proof.stat().st_mode) == 0o600
    assert said("checkpoint", "prove", old, new, "--data", data).encode() == proof.read_bytes()
    shutil.rmtree(data)
    for given in ((old, new), (new, old)):
        line = said("checkpoint", "verify", "--key", key, "--proof", proof, *given)
        assert line.endswith(
            f"/orders/0: consistent: the 17 leaves of {new} begin with the 12 leaves of {old}\n"
        )
    sentence = refused("verify-proof", proof, "--key", key, code=2)
    assert f"cordwood checkpoint verify --proof {proof} OLD NEW" in sentence
    for wrong in ((old,), (old, new, new), (old, new, "--data", data)):
        refused("checkpoint", "verify", "--key", key, "--proof", proof, *wrong, code=2)
    refused("checkpoint", "verify", "--key", key, code=2)


def test_a_proof_that_does_not_show_that_the_log_grew_is_refuted(data: Path, tmp_path: Path) -> None:
    key, old, new = grown(data, tmp_path)
    proof = tmp_path / "grown.json"
    said("checkpoint", "prove", old, new, "--to", proof, "--data", data)
    forged = resigned(data, new, tmp_path / "forged.note", root=bytes(32))
    offline = ("checkpoint", "verify", "--key", key, "--proof", proof)
    assert "do not begin with the 12 leaves" in refused(*offline, old, forged, code=4)
    assert "contradict each other" in refused(*offline, new, forged, code=4)
    assert "is about 12 and 17 leaves" in refused(*offline, old, old, code=4)
    assert "does not have both trees" in refused("checkpoint", "prove", old, forged, "--data", data, code=4)
    proof.write_bytes(b"\xff")
    assert "not a consistency proof" in refused(*offline, old, new, code=4)


# --- what an attacker may do --------------------------------------------------------------------------


def rewrite_frame(data: Path, number: int) -> None:
    """Change a record as somebody would who knows the format: its checksum is right again."""
    path = first_segment(data)
    whole = path.read_bytes()
    start, end = frames_of(whole)[number]
    changed = whole[start:end].replace(b"value", b"VALUE")
    assert changed != whole[start:end]
    path.write_bytes(whole[:start] + with_crc(changed) + whole[end:])


def forget_hashes(data: Path) -> None:
    """Take the hash of each sealed segment out of partition.json, as whoever rewrites one would."""
    from support.data_directory import envelope

    path = data / "topics/orders/0/partition.json"
    body = json.loads(path.read_text())["body"]
    for segment in body["sealed"]:
        segment["sha256"] = None
    path.write_bytes(envelope(body))


def test_a_rewritten_record_is_noticed_though_its_checksum_is_right(data: Path, tmp_path: Path) -> None:
    key, note = signed(data, tmp_path / "orders.note")
    forget_hashes(data)
    rewrite_frame(data, 1)
    assert run("consume", "--data", data, "-t", "orders", "-e").stdout.splitlines()[1] == "VALUE 1"
    sentence = refuted(data, key, note)
    assert sentence.startswith(f"partition 0 of topic orders does not hold: {first_segment(data)} at byte 7")
    assert ": frame at offset 1, its leaf: expected leaf 1, " in sentence


def test_whoever_computes_the_whole_chain_anew_is_caught_by_a_checkpoint_kept_elsewhere(
    data: Path, tmp_path: Path
) -> None:
    key, note = signed(data, tmp_path / "orders.note")
    forget_hashes(data)
    rewrite_frame(data, 1)
    shutil.rmtree(data / "topics/orders/0/chain")
    shutil.rmtree(data / "meta/checkpoints")
    # With the key, and everything made anew, the directory is at one with itself …
    _, forged = signed(data, tmp_path / "forged.note")
    assert "holds" in verified(data, key, forged)
    # … and not with what somebody else holds.
    assert "root of the first 12 leaves: expected " in refuted(data, key, note)


def test_no_second_history_is_signed_where_the_first_checkpoint_still_is(data: Path, tmp_path: Path) -> None:
    signed(data, tmp_path / "orders.note")
    forget_hashes(data)
    rewrite_frame(data, 1)
    shutil.rmtree(data / "topics/orders/0/chain")
    sentence = refused("checkpoint", "create", "--data", data, code=4)
    assert sentence.startswith("nothing was signed: partition 0 of topic orders is not what ")
    (kept,) = (data / "meta/checkpoints").glob("*/*.note")
    kept.write_text(kept.read_text().replace("epoch 0", "epoch 1"))
    assert "is not one of this text" in refused("checkpoint", "create", "--data", data, code=4)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("chain_head", bytes(32), "head of the chain over the first 12 leaves: expected "),
        ("next_offset", 13, "offset after the first 12 leaves: expected 13, which "),
        ("root", bytes(32), "root of the first 12 leaves: expected "),
        ("size", 13, "number of leaves: expected 13, which "),
    ],
)
def test_each_thing_that_a_checkpoint_says_is_compared(
    data: Path, tmp_path: Path, field: str, value: object, what: str
) -> None:
    """Even what the right key has signed holds only if it is so."""
    key, note = signed(data, tmp_path / "orders.note")
    assert what in refuted(data, key, resigned(data, note, note, **{field: value}))


def test_retention_and_compaction_leave_a_checkpoint_that_holds(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        topic = log.topic("orders", config={**SETTINGS, "cleanup.policy": "compact"})
        for number in range(30):
            topic.append(b"value %d" % number, key=b"%d" % (number % 3))
    key, note = signed(data, tmp_path / "orders.note")
    with cordwood.open(data) as log:
        assert log.maintain(force=True).compacted
    line = verified(data, key, note)
    assert "holds: 31 of 40 leaves" in line
    assert "as first appended, or as compaction left them" in line
    with cordwood.open(data) as log:
        log.data_directory.partitions.writable("orders", 0).advance_log_start(29)
    assert "removed, requested: offsets 0 up to 29" in verified(data, key, note)


def test_beside_a_server_a_checkpoint_covers_every_record_that_was_acknowledged_before_it(
    data: Path, tmp_path: Path
) -> None:
    """The server writes the leaves of new records after some seconds, for which the command waits."""
    with serving(data) as server:
        said("produce", "-t", "orders", "--data", data, stdin="one\ntwo\n")
        # Stopped, it writes no leaves, and the command fails instead of leaving two records out.
        server.process.send_signal(signal.SIGSTOP)
        try:
            sentence = refused("checkpoint", "create", "-t", "orders", "--wait", "0", "--data", data)
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert sentence == (
            "nothing was signed: 2 offsets of partition 0 of topic orders have no leaves on disk yet, "
            "after 0 seconds"
        )
        assert not (data / "meta/checkpoints").exists()
        said("topic", "create", "payments", "--data", data)
        said("produce", "-t", "payments", "--data", data, stdin="three\n")
        said("checkpoint", "create", "--wait", str(SECONDS_MAX), "--to", tmp_path, "--data", data)
        shown = json.loads(said("checkpoint", "show", "--data", data, "--json"))
        ends = {each["topic"]: each["next_offset"] for each in shown["checkpoints"]}
        assert ends == {"orders": 14, "payments": 1}
        note = next(tmp_path.glob("orders-*.note"))
        assert ", up to offset 14; " in verified(data, shown["key"], note)
    assert ", up to offset 14; " in verified(data, shown["key"], note)


def test_beside_a_server_an_empty_topic_needs_no_waiting(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data):
        said("topic", "create", "orders", "--data", data)
        assert "nothing to sign" in said("checkpoint", "create", "--wait", "0", "--data", data)


def test_the_offset_that_was_signed_for_can_be_asked_before_anything_is_cut(
    data: Path, tmp_path: Path
) -> None:
    with cordwood.open(data) as log:
        topic_id = log.entry("orders").id
    assert signed_up_to(PosixFiles(), str(data), topic_id, 0) == 0
    signed(data, tmp_path / "orders.note")
    append(data, 3)
    signed(data, tmp_path / "orders.note")
    assert signed_up_to(PosixFiles(), str(data), topic_id, 0) == 15
    assert signed_up_to(PosixFiles(), str(data), topic_id, 1) == 0


def test_an_older_copy_of_the_whole_directory_is_noticed(data: Path, tmp_path: Path) -> None:
    signed(data, tmp_path / "orders.note")
    shutil.copytree(data, tmp_path / "older")
    append(data, 3)
    key, note = signed(data, tmp_path / "later.note")
    shutil.rmtree(data)
    (tmp_path / "older").rename(data)
    sentence = refuted(data, key, note)
    assert "number of leaves: expected 15, which " in sentence
    assert sentence.endswith("later.note signs for, found 12")


def test_a_log_that_lost_its_end_is_noticed(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "topics/orders/0", tmp_path / "shorter")
    append(data, 3)
    key, note = signed(data, tmp_path / "orders.note")
    shutil.copytree(data / "topics/orders/0", tmp_path / "whole")
    shutil.rmtree(data / "topics/orders/0")
    shutil.copytree(tmp_path / "shorter", data / "topics/orders/0")
    shutil.rmtree(data / "topics/orders/0/chain")
    shutil.copytree(tmp_path / "whole/chain", data / "topics/orders/0/chain")
    sentence = refuted(data, key, note)
    assert "leaves go on: expected frames up to offset 15" in sentence
    assert sentence.endswith("found the end of the log at 12")


def test_a_forced_truncation_below_a_checkpoint_held_elsewhere_is_refuted_and_other_records_do_not_hide_it(
    data: Path, tmp_path: Path
) -> None:
    key, note = signed(data, tmp_path / "orders.note")
    with cordwood.open(data) as log:
        with pytest.raises(SignedFor) as refusal:
            log.topic("orders").truncate(0, 9)
        assert (refusal.value.signed_up_to, log.topic("orders").log_end_offset(0)) == (12, 12)
        log.topic("orders").truncate(0, 9, force=True)
    append(data, 5)
    sentence = refuted(data, key, note)
    assert sentence.startswith(
        f"partition 0 of topic orders does not hold: {data}/topics/orders/0/chain/statements at byte 0: "
        f"truncation on purpose: expected the log up to offset 12, which {note} signs for, "
        "found truncated at offset 9 on 20"
    )
    held = run("verify", "--data", data, "--checkpoint", note, "--key", key, "--json")
    assert held.exit_code == 4
    (finding,) = json.loads(held.stdout)["findings"]
    assert (finding["severity"], finding["what"]) == ("corruption", "truncation on purpose")
    # The checkpoint in the directory gives a note only: its owner may truncate, and the chain states it.
    report = json.loads(said("verify", "--data", data, "--json"))
    assert [each["severity"] for each in report["findings"]] == ["note"]
    # A checkpoint that was signed afterwards holds, and the statement is printed.
    key, later = signed(data, tmp_path / "later.note")
    lines = verified(data, key, later).splitlines()
    assert lines[1] == "leaf 12: truncated: offsets 9 up to 12, epoch 1"


# --- where it goes ------------------------------------------------------------------------------------


@contextmanager
def anchor(status: int) -> Iterator[tuple[str, list[str]]]:
    taken: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the library
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/notes", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_checkpoint_is_posted_to_an_anchor(data: Path) -> None:
    with anchor(201) as (url, taken):
        assert said("checkpoint", "create", "--data", data, "--post", url) == f"{url}: answered 201\n"
        assert taken == [said("checkpoint", "create", "--data", data)]
    with anchor(503) as (url, _):
        sentence = refused("checkpoint", "create", "--data", data, "--post", url)
        assert "did not accept it: it answered 503" in sentence
    assert "did not accept it" in refused("checkpoint", "create", "--data", data, "--post", url)
    refused("checkpoint", "create", "--data", data, "--post", "ftp://here", code=2)
    refused("checkpoint", "create", "--data", data, "--post", url, "--to", "x", code=2)


def test_the_checkpoints_of_several_partitions_go_to_a_directory(data: Path, tmp_path: Path) -> None:
    with cordwood.open(data) as log:
        topic = log.topic("many", partitions=3, config=SETTINGS)
        topic.append(b"value", partition=0)
        topic.append(b"value", partition=2)
    assert "must be an existing directory" in refused(
        "checkpoint", "create", "--data", data, "--to", tmp_path / "x"
    )
    said("checkpoint", "create", "--data", data, "--to", tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.note")) == [
        "many-0-1.note",
        "many-2-1.note",
        "orders-0-12.note",
    ]


def test_what_cannot_be_signed_for_is_said_in_a_sentence(data: Path, tmp_path: Path) -> None:
    assert "there is no topic gone" in refused("checkpoint", "create", "--data", data, "-t", "gone")
    sentence = refused("checkpoint", "create", "--data", data, "-t", "plain")
    assert sentence.endswith("have it keep one with cordwood topic alter plain --config cordwood.chain=true")
    assert "there is no directory" in refused("checkpoint", "create", "--data", tmp_path / "gone")
    assert "no checkpoint was signed yet" in said("checkpoint", "show", "--data", data)
    empty = tmp_path / "empty"
    said("topic", "create", "orders", "--config", "cordwood.chain=true", "--data", empty)
    assert "nothing to sign" in said("checkpoint", "create", "--data", empty)
    assert not (empty / "meta/keys").exists()
