"""Indexes of aborted transactions come back, also where compaction changed what the frames say."""

from __future__ import annotations

import pytest
from support.disks import image
from support.producing import DATA, Bench, Sent
from support.transactions import committed_values, end_transaction, send_rows

from cordwood.config.loading import BrokerConfig
from cordwood.storage.directory.data_directory import Opening
from cordwood.storage.offline.reindex import reindex_directory
from cordwood.verify import verify_directory

SETTINGS = {
    "segment.bytes": "500",
    "index.interval.bytes": "100",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
}


def filled(*, compacted: bool) -> Bench:
    bench = Bench(settings=SETTINGS)
    log = bench.open()
    for number in range(12):
        send_rows(log, Sent(1, 0, number, ()), [(b"k%d" % (number % 5), b"%d" % number)])
        end_transaction(log, 1, committed=number % 2 == 0)
    if compacted:
        assert bench.data.maintenance.maintain_all(force=True).compacted
        send_rows(log, Sent(1, 0, 12, ()), [(b"last", b"open")])
    bench.close()
    return bench


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("how", ["lost", "flipped"])
def test_a_lost_index_of_aborted_transactions_comes_back(compacted: bool, how: str) -> None:
    bench = filled(compacted=compacted)
    expected = committed_values(bench.left().open())
    stored = {path: data for path, data in image(bench.files, DATA).items() if path.endswith(".txnindex")}
    assert len(stored) > 1
    for path, data in stored.items():
        assert data
        changed = {path: bytes([data[0] ^ 1]) + data[1:]}
        left = bench.left(gone=(path,)) if how == "lost" else bench.left(changed)
        assert verify_directory(left.files, DATA).findings
        report = reindex_directory(Opening(left.files, DATA, BrokerConfig(), create=False, clock=left.clock))
        assert [each.path for each in report.rebuilt] == [path]
        assert not report.damaged
        found = verify_directory(left.files, DATA)
        assert not found.findings, found.findings
        if not compacted:
            assert image(left.files, DATA)[path] == data
        assert committed_values(left.open()) == expected


def test_nothing_is_rebuilt_where_nothing_is_wrong() -> None:
    bench = filled(compacted=True)
    report = reindex_directory(Opening(bench.files, DATA, BrokerConfig(), create=False, clock=bench.clock))
    assert report.rebuilt == ()
