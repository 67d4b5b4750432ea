"""`verify` and the exactly-once sink: journals and the shares of an open intent."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from support.data_directory import put
from support.disks import image
from support.logs import disk_of
from support.publishing import DATA, QUERY, frame_of, open_log, stage, staged_files
from support.verifying import notes, serious, verify

from cordwood.disk.files import join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.storage.sink.journal import journal_path
from cordwood.verify import verify_directory

KEY = hashlib.sha256(QUERY.encode()).hexdigest()[:32]
JOURNAL = f"{DATA}/meta/sink/{KEY}.json"
NAME = "1700000000000-0-a-1.share"
SHARE = f"{DATA}/tmp/sink/{KEY}/4/{NAME}"
FRAME = len(frame_of(b"x"))


def envelope(body: Any) -> bytes:
    """Return the bytes of a journal, made apart from the code that writes them."""
    encoded = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    return b'{"crc32c":"%08x","body":%b}' % (google_crc32c.value(encoded), encoded)


def body(**changes: Any) -> dict[str, Any]:
    """A journal of a query whose batch 4 goes to offset 2 of a partition that ends there."""
    section = {
        "topic": "orders",
        "topic_id": "id-1",
        "partition": 0,
        "position": 0,
        "size": FRAME,
        "records": 1,
    }
    place = {"topic": "orders", "topic_id": "id-1", "partition": 0, "base_offset": 2}
    intent = {"batch": 4, "shares": [{"name": NAME, "sections": [section]}], "places": [place]}
    intent |= {name: changes.pop(name) for name in ("batch", "shares", "places") if name in changes}
    section |= {name: changes.pop(name) for name in ("position", "size", "records") if name in changes}
    place |= {name: changes.pop(name) for name in ("base_offset", "topic_id") if name in changes}
    return {"format": 1, "query": QUERY, "published": 3, "intent": intent, **changes}


def directory(journal: bytes | None, *, share: int = FRAME, name: str = JOURNAL) -> MemoryFiles:
    """A directory with two records, a journal, and a staged share of so many bytes."""
    files = MemoryFiles()
    with open_log(files) as log:
        data = log.data_directory
        data.topics.create("orders", "id-1", 1, {})
        partition = data.partitions.writable("orders", 0)
        partition.append([(None, b"a"), (None, b"b")])
    if journal is not None:
        put(files, name, journal)
    if share:
        put(files, SHARE, bytes(frame_of(b"x"))[:share].ljust(share, b"\0"))
    return files


def test_a_journal_without_an_intent_is_sound_and_counted() -> None:
    closed = envelope(body(intent=None))
    report = verify(directory(closed))
    assert report.findings == ()
    assert report.bytes == verify(directory(None)).bytes + len(closed)


def test_an_open_intent_is_a_note_and_no_corruption() -> None:
    report = verify(directory(envelope(body())))
    assert serious(report) == []
    (note,) = notes(report)
    assert note.path == JOURNAL
    assert note.what == "unfinished publication"
    assert "batch 4" in note.found
    assert "published at the next open" in note.found


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"base_offset": 3}, "place in partition 0 of topic orders"),
        ({"published": 4}, "batch of the intent"),
        ({"published": -2}, "body"),
        ({"published": "3"}, "body"),
        ({"query": 5}, "body"),
        ({"format": 2}, "body"),
        ({"batch": -1}, "body"),
        ({"batch": 5}, "share of an open intent"),
        ({"places": []}, "places of the intent"),
        ({"shares": []}, "places of the intent"),
        ({"size": FRAME + 1}, "share of an open intent"),
        ({"position": 1}, "share of an open intent"),
        ({"shares": [{"name": "../../meta/broker.id", "sections": []}]}, "body"),
        ({"query": "another"}, "name of the journal"),
        ({"topic_id": ""}, "body"),
    ],
    ids=str,
)
def test_a_journal_that_contradicts_itself_or_the_directory_is_named(changes: Any, what: str) -> None:
    report = verify(directory(envelope(body(**changes))))
    assert [finding.what for finding in serious(report)] == [what]
    assert report.corrupt


def test_a_share_that_an_intent_needs_and_that_is_gone_or_short_is_named() -> None:
    for share in (0, 1, FRAME - 1):
        (finding,) = serious(verify(directory(envelope(body()), share=share)))
        assert (finding.path, finding.what) == (SHARE, "share of an open intent")


def test_a_share_whose_records_are_in_the_log_may_be_gone() -> None:
    """It was adopted, and a crash came before the batch was closed."""
    assert serious(verify(directory(envelope(body(base_offset=1)), share=0))) == []


def test_an_intent_for_another_topic_of_that_name_says_nothing_about_this_one() -> None:
    changed = body(base_offset=99)
    for each in (changed["intent"]["places"][0], changed["intent"]["shares"][0]["sections"][0]):
        each["topic_id"] = "id-of-a-deleted-one"
    assert serious(verify(directory(envelope(changed), share=0))) == []


def test_every_flipped_bit_of_a_journal_is_found() -> None:
    whole = envelope(body())
    base = image(directory(whole), DATA)
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            report = verify(disk_of(base, {JOURNAL: bytes(flipped)}))
            assert [finding.path for finding in serious(report)] == [JOURNAL], f"byte {at}, bit {bit}"
    print(f"{8 * len(whole)} flips")


def test_a_journal_cut_at_any_length_is_found() -> None:
    whole = envelope(body())
    base = image(directory(whole), DATA)
    for length in range(len(whole)):
        report = verify(disk_of(base, {JOURNAL: whole[:length]}))
        assert [finding.path for finding in serious(report)] == [JOURNAL]


def test_what_a_crash_leaves_of_a_journal_is_no_finding_and_a_stranger_is_a_note() -> None:
    files = directory(envelope(body(intent=None)))
    put(files, f"{JOURNAL}.tmp", b"half")
    assert verify(files).findings == ()
    put(files, join(DATA, "meta", "sink", "readme"), b"")
    assert [note.what for note in notes(verify(files))] == ["unexpected name"]
    assert verify(files).sound


def test_one_topic_alone_is_checked_without_the_journals() -> None:
    assert verify_directory(directory(b"rubbish"), DATA, "orders").findings == ()


def test_the_worked_example_of_a_journal_is_its_bytes() -> None:
    page = (Path(__file__).parents[2] / "docs/formats/directory.md").read_text()
    examples = [line.strip() for line in page.splitlines() if line.startswith('  {"crc32c"')]
    files = MemoryFiles()
    data = open_log(files).data_directory
    data.topics.create("orders", "id-1", 2, {})
    data.partitions.writable("orders", 0).append([(None, b"v")] * 5)
    data.partitions.writable("orders", 0).commit()
    plan = {("orders", 0): [[b"a"], [b"b", b"c"]], ("orders", 1): [[b"d"]]}
    shares = stage(files, data, plan, 7, "0-1-5f3a", query="warehouse")
    (path,) = staged_files(files)
    assert path.removeprefix(f"{DATA}/") in page
    written: list[str] = []
    real = data.publisher._append

    def look(*arguments: Any) -> None:
        written.append(read_file(files, journal_path(DATA, "warehouse")).decode())
        real(*arguments)

    data.publisher._append = look  # type: ignore[assignment, method-assign]
    assert data.publisher.publish("warehouse", 7, shares)
    written.append(read_file(files, journal_path(DATA, "warehouse")).decode())
    assert written == examples


def test_the_engine_writes_what_verify_expects() -> None:
    files = MemoryFiles()
    log = open_log(files)
    data = log.data_directory
    data.topics.create("orders", "id-1", 2, {})
    plan = {("orders", 0): [[b"a"]], ("orders", 1): [[b"b"], [b"c"]]}
    seen: list[bytes] = []
    publisher = data.publisher
    real = publisher._append

    def look(*arguments: Any) -> None:
        seen.extend(finding.what.encode() for finding in verify(files).findings)
        real(*arguments)

    publisher._append = look  # type: ignore[assignment, method-assign]
    assert data.publisher.publish(QUERY, 0, stage(files, data, plan))
    assert seen == [b"unfinished publication"]
    log.close()
    assert verify(files).findings == ()
