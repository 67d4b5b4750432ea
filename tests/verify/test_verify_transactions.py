"""verify and transactions: what is derived from them is compared with the frames of the log."""

from __future__ import annotations

import json

import google_crc32c
import msgspec
import pytest
from support.disks import image
from support.producing import DATA, DIRECTORY, SNAPSHOT, Bench, Sent, snapshots_every
from support.sweeps import bits_of
from support.transactions import committed_values, end_transaction, send_in_transaction

from cordwood.disk.mark import Mark, decode_slots, encode_slot
from cordwood.storage.log import PartitionLog
from cordwood.verify import Finding, VerifyReport, verify_directory

A, B = 1, 2
SETTINGS = {"segment.bytes": "500", "index.interval.bytes": "100"}
MARK = f"{DIRECTORY}/mark"


def busy() -> Bench:
    """Return a closed partition with aborted, committed and open transactions over several segments."""
    bench = Bench(settings=SETTINGS)
    log = bench.open()
    log.append([(b"k", b"plain")])
    for number in range(6):
        say(log, A, number)
        say(log, B, number)
        end_transaction(log, A, committed=number % 2 == 0)
        end_transaction(log, B, committed=number % 3 == 0)
    say(log, A, 6)
    log.append([(b"k", b"after")])
    bench.close()
    return bench


def say(log: PartitionLog, producer: int, sequence: int) -> None:
    send_in_transaction(log, Sent(producer, 0, sequence, (b"%d of %d" % (sequence, producer),)))


def verify(bench: Bench) -> VerifyReport:
    return verify_directory(bench.files, DATA)


def about(report: VerifyReport, path: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.path == path]


def content(bench: Bench, path: str) -> bytes:
    found = image(bench.files, DATA)[path]
    assert found is not None
    return found


def indexes(bench: Bench) -> list[str]:
    return sorted(path for path in image(bench.files, DATA) if path.endswith(".txnindex"))


def test_a_partition_with_transactions_is_sound() -> None:
    with snapshots_every(300):
        bench = busy()
    report = verify(bench)
    assert not report.findings, report.findings
    assert len(indexes(bench)) > 2
    killed = Bench(settings=SETTINGS)
    log = killed.open()
    say(log, A, 0)
    end_transaction(log, A, committed=False)
    log.commit()
    say(log, A, 1)
    assert not verify(killed).findings


def test_every_flipped_bit_of_an_index_of_aborted_transactions_is_found() -> None:
    bench, cases = busy(), 0
    for path in indexes(bench):
        stored = content(bench, path)
        for bit in bits_of(stored):
            data = bytearray(stored)
            data[bit // 8] ^= 1 << bit % 8
            report = verify(bench.left({path: bytes(data)}))
            assert [finding.severity for finding in about(report, path)] == ["index"], (path, bit)
            assert not report.corrupt
            cases += 1
        for changed in (stored[:-34], stored[:-1], b""):
            report = verify(bench.left({path: changed}))
            assert [finding.severity for finding in about(report, path)] == ["index"]
        assert about(verify(bench.left(gone=(path,))), path)
    print(f"{cases} bits")
    assert cases > 200


def resealed_json(data: bytes, change: dict[str, object]) -> bytes:
    """Return a metadata file with some fields of its body changed, and its checksum made right."""
    body = json.loads(data)["body"] | change
    made = msgspec.json.encode(body)
    return b'{"crc32c":"%08x","body":' % google_crc32c.value(made) + made + b"}\n"


def test_a_partition_that_denies_its_transactions_is_found() -> None:
    bench, path = busy(), f"{DIRECTORY}/partition.json"
    changed = resealed_json(content(bench, path), {"transactional": False})
    report = verify(bench.left({path: changed}))
    assert report.corrupt
    assert "transactional" in {finding.what for finding in about(report, path)}
    older = resealed_json(content(bench, path), {"format": 2})
    assert verify(bench.left({path: older})).corrupt


@pytest.mark.parametrize("stable", [0, 1, 5, 24, 26, 1 << 40])
def test_a_mark_with_a_wrong_last_stable_offset_is_found(stable: int) -> None:
    bench = busy()
    marks = decode_slots(content(bench, MARK))
    assert stable != marks[0].last_stable_offset
    report = verify(bench.left({MARK: mark_with(marks[0]._replace(last_stable_offset=stable))}))
    assert "last stable offset" in {finding.what for finding in about(report, MARK)}
    assert report.corrupt


def mark_with(mark: Mark) -> bytes:
    return encode_slot(mark).ljust(1024, b"\0")


def test_a_mark_that_counts_other_entries_is_found() -> None:
    bench = busy()
    mark = decode_slots(content(bench, MARK))[0]
    assert mark.aborted_entries
    last = indexes(bench)[-1]
    for changed in (
        mark._replace(aborted_entries=mark.aborted_entries + 1),
        mark._replace(aborted_entries=0, aborted_crc=0),
        mark._replace(aborted_crc=mark.aborted_crc ^ 1),
    ):
        assert about(verify(bench.left({MARK: mark_with(changed)})), last), changed


def test_every_flipped_bit_of_the_newest_slot_of_a_mark_is_found() -> None:
    bench = busy()
    stored = content(bench, MARK)
    newest = decode_slots(stored)[0]
    start = 0 if decode_slots(stored[:512]) == [newest] else 512
    cases = 0
    for bit in bits_of(bytes(100)):
        data = bytearray(stored)
        data[start + bit // 8] ^= 1 << bit % 8
        left = bench.left({MARK: bytes(data)})
        assert verify(left).findings, bit
        if bit >= 8 * 68:
            # What follows the slot: a reader of committed records sees no more than before.
            assert committed_values(left.open()) == committed_values(bench.left().open())
        cases += 1
    print(f"{cases} bits")


@pytest.mark.parametrize("offset", [None, 0, 3, 24, 26])
def test_an_open_transaction_of_the_snapshot_that_the_log_does_not_have_is_found(offset: int | None) -> None:
    with snapshots_every(300):
        bench = busy()
    body = json.loads(content(bench, SNAPSHOT))["body"]
    for producer in body["producers"]:
        producer["open_offset"] = offset
    changed = resealed_json(content(bench, SNAPSHOT), body)
    report = verify(bench.left({SNAPSHOT: changed}))
    assert {finding.severity for finding in about(report, SNAPSHOT)} == {"index"}


def test_every_flipped_bit_of_a_snapshot_with_transactions_is_found_and_does_no_harm() -> None:
    with snapshots_every(300):
        bench = busy()
    stored = content(bench, SNAPSHOT)
    expected = committed_values(bench.left().open())
    cases = 0
    for bit in bits_of(stored, 23):
        data = bytearray(stored)
        data[bit // 8] ^= 1 << bit % 8
        left = bench.left({SNAPSHOT: bytes(data)})
        assert about(verify(left), SNAPSHOT), bit
        if not bit % 5:
            assert committed_values(left.open()) == expected, bit
        cases += 1
    print(f"{cases} bits")


def test_an_index_without_a_log_to_hold_it_against_is_not_judged() -> None:
    """A damaged log is reported as what it is."""
    bench = busy()
    log = f"{DIRECTORY}/segments/00000000000000000000.log"
    data = bytearray(content(bench, log))
    data[80] ^= 1
    report = verify(bench.left({log: bytes(data)}))
    assert report.corrupt
    assert not any(finding.severity == "index" for finding in report.findings)


def test_retention_leaves_a_sound_partition() -> None:
    """The first records of aborted and open transactions may be below the log start."""
    bench = Bench(settings={**SETTINGS, "retention.bytes": "600"})
    log = bench.open()
    say(log, A, 0)
    for number in range(10):
        say(log, B, number)
        if number % 3 == 2:
            end_transaction(log, B, committed=False)
    log.roll()
    log.commit()
    assert bench.data.maintenance.maintain_all().expired
    assert log.log_start_offset > 0
    assert log.last_stable_offset == log.log_start_offset, "a transaction from before it is still open"
    assert not verify(bench).findings
    end_transaction(log, A, committed=False)
    log.commit()
    shown = committed_values(log)
    assert not verify(bench).findings
    left = bench.left()
    assert committed_values(left.open()) == shown
    left.close()
    assert not verify(left).findings
