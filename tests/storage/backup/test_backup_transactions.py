"""Backups of transactions: what is committed in the source is committed in the backup, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.clocks import ManualClock
from support.disks import image
from support.producing import DATA, Bench, Sent
from support.transactions import committed_values, end_transaction, send_in_transaction

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files
from cordwood.storage.backup.create import back_up
from cordwood.storage.backup.restoring import Point, restore_directory
from cordwood.storage.backup.transfer import DirectoryTransfer, Transfer
from cordwood.storage.log import Partition, PartitionLog
from cordwood.storage.meta import TopicEntry
from cordwood.storage.readonly import ReadOnlyDirectory
from cordwood.verify import verify_directory

A, B = 1, 2
BACKUP, NEW = "/backup", "/place/new"
CONFIG = load_broker_config(environment={})[0]
SETTINGS = {"segment.bytes": "500", "index.interval.bytes": "100"}


def say(log: PartitionLog, producer: int, sequence: int, value: bytes) -> None:
    send_in_transaction(log, Sent(producer, 0, sequence, (value,)))


def fill(log: PartitionLog, start: int, count: int) -> None:
    for number in range(start, start + count):
        say(log, A, 2 * number, b"a%d" % number)
        log.append([(b"k", b"plain %d" % number)])
        say(log, A, 2 * number + 1, b"A%d" % number)
        end_transaction(log, A, committed=number % 2 == 0)


def copy(files: Files, *, link: bool) -> None:
    report = back_up(Transfer(files, DATA, BACKUP, CONFIG, link=link, clock=ManualClock(), uuid="backup"))
    assert report.sound


def reader(files: Files, path: str) -> Partition:
    directory = ReadOnlyDirectory(files, path, CONFIG, mapped=False)
    return directory.readable("orders", 0, directory.topics["orders"])


def check_same(bench: Bench, log: PartitionLog, path: str = BACKUP) -> None:
    """Compare the committed view, and open and aborted transactions, with the source."""
    found = reader(bench.files, path)
    assert committed_values(found, 300) == committed_values(log)
    assert (found.last_stable_offset, found.high_watermark) == (log.last_stable_offset, log.high_watermark)
    assert found.aborted(0, log.high_watermark) == log.aborted(0, log.high_watermark)
    report = verify_directory(bench.files, path)
    # A truncation may remove the marker that proves that records which are gone were aborted.
    assert not [each for each in report.findings if each.severity != "note"], report.findings


@pytest.mark.parametrize("link", [True, False])
def test_a_backup_and_the_next_ones_have_the_committed_view_of_the_source(link: bool) -> None:
    bench = Bench(settings=SETTINGS)
    log = bench.open()
    fill(log, 0, 5)
    say(log, B, 0, b"open")
    log.append([(b"k", b"not stable")])
    log.commit()
    copy(bench.files, link=link)
    check_same(bench, log)
    assert committed_values(reader(bench.files, BACKUP))[-1] != b"not stable"
    fill(log, 5, 4)
    end_transaction(log, B, committed=False)
    log.commit()
    copy(bench.files, link=link)
    check_same(bench, log)
    fill(log, 9, 1)
    say(log, B, 1, b"open again")
    log.commit()
    copy(bench.files, link=link)
    check_same(bench, log)


def test_a_backup_follows_a_truncation_and_a_compaction() -> None:
    bench = Bench(settings={**SETTINGS, "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"})
    log = bench.open()
    fill(log, 0, 6)
    log.commit()
    copy(bench.files, link=True)
    log.roll()
    fill(log, 6, 2)
    log.commit()
    assert bench.data.maintenance.maintain_all(force=True).compacted
    copy(bench.files, link=True)
    check_same(bench, log)
    log.truncate(log.log_end_offset - 1)
    assert log.open_transactions()
    copy(bench.files, link=True)
    check_same(bench, log)


def test_an_index_that_the_source_has_lost_is_no_hindrance() -> None:
    bench = Bench(settings=SETTINGS)
    log = bench.open()
    fill(log, 0, 6)
    bench.close()
    lost = [path for path in image(bench.files, DATA) if path.endswith(".txnindex")]
    assert lost
    left = bench.left(gone=tuple(lost))
    copy(left.files, link=False)
    again = bench.left()
    expected = committed_values(again.open())
    assert committed_values(reader(left.files, BACKUP)) == expected


@pytest.mark.parametrize("cut", range(0, 24, 3))
def test_a_restore_to_an_offset_shows_what_was_committed_there(cut: int) -> None:
    """A transaction whose marker lies behind the offset is open again: nothing of it is shown."""
    bench = Bench(settings=SETTINGS)
    log = bench.open()
    fill(log, 0, 6)
    log.commit()
    log.truncate(24)
    copy(bench.files, link=False)
    bench.files.make_directories("/place")
    transfer = Transfer(bench.files, BACKUP, NEW, CONFIG, clock=ManualClock(), uuid="new")
    restore_directory(transfer, Point(offsets={("orders", 0): cut}))
    log.truncate(cut)
    found = reader(bench.files, NEW)
    assert committed_values(found) == committed_values(log)
    assert found.last_stable_offset == log.last_stable_offset
    report = verify_directory(bench.files, NEW)
    assert report.sound, report.findings


def test_what_committed_offsets_count_as_processed_is_in_a_backup_that_was_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_one = DirectoryTransfer._bring
    processed = 0

    def process() -> None:
        nonlocal processed
        processed += 1
        with log.transaction("billing") as tx:
            tx.append(bills, b"bill %d" % processed)
            tx.commit_offsets("billing", {("bills", 0): processed})

    def bring(self: DirectoryTransfer, entry: TopicEntry, partition: int) -> Any:
        process()
        found = copy_one(self, entry, partition)
        process()
        return found

    with cordwood.open(tmp_path / "data") as log:
        bills = log.topic("bills")
        process()
        with monkeypatch.context() as patched:
            patched.setattr(DirectoryTransfer, "_bring", bring)
            cordwood.backup(tmp_path / "data", tmp_path / "saved")
    cordwood.restore(tmp_path / "saved", tmp_path / "new")
    with cordwood.open(tmp_path / "new") as restored:
        counted = restored.committed_offsets("billing")["bills", 0]
        stored = [record.value for record in restored.topic("bills").read()]
    assert [b"bill %d" % (number + 1) for number in range(counted)] == stored[:counted]
    assert processed > counted >= 1
