"""`meta/checkpoint.json`: written again while the directory is open, and after recovery."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.clocks import HookedFiles, ManualClock
from support.logs import DATA
from support.patience import until

import cordwood
from cordwood.disk import MemoryFiles, PosixFiles, join, read_file
from cordwood.errors import LogClosed

PATH = join(DATA, "meta", "checkpoint.json")
INTERVAL = "log.flush.offset.checkpoint.interval.ms"


def ends(files: MemoryFiles | PosixFiles | HookedFiles, path: str = PATH) -> dict[tuple[str, int], int]:
    """Return the log end offset of each partition in the summary."""
    found: dict[str, Any] = json.loads(read_file(files, path))
    return {(entry["topic"], entry["partition"]): entry["log_end_offset"] for entry in found["partitions"]}


def due(log: cordwood.Log) -> bool:
    return log.data_directory.summary.is_due


def test_checkpoint_json_is_written_again_when_its_interval_is_over_and_something_changed() -> None:
    """Temporary file, sync, rename, sync of the directory; nothing at all if nothing changed."""
    files, clock = HookedFiles(MemoryFiles()), ManualClock()
    with cordwood.open(DATA, files=files, clock=clock) as log:
        log.topic("t").append(b"first")
        assert not due(log)
        clock.advance(60_000)
        assert due(log)
        calls: list[tuple[str, str]] = []
        files.before = lambda kind, path: calls.append((kind, path))
        log._follow_changed()
        steps = [call for call in calls if call[1] in (f"{PATH}.tmp", PATH, join(DATA, "meta"))]
        kinds = [kind for kind, _ in steps if kind not in ("open", "read", "size")]
        assert kinds == ["create", "sync", "rename", "sync_directory"], steps
        assert ends(files) == {("t", 0): 1}
        assert not due(log)

        clock.advance(60_000)
        calls.clear()
        log._follow_changed()
        assert not [path for _, path in calls if path.startswith(f"{PATH}.tmp")], "nothing had changed"
        log.topic("t").append(b"second")
        log._follow_changed()
        assert ends(files) == {("t", 0): 1}, "the interval is not over"
    with pytest.raises(LogClosed):
        log.data_directory.save_summary()


def test_checkpoint_json_is_written_after_recovery() -> None:
    """A crash leaves the summary of the last close; the next open brings it up to date."""
    files = MemoryFiles()
    log = cordwood.open(DATA, files=files, clock=ManualClock())
    for number in range(5):
        log.topic("t").append(b"%d" % number)
    assert ends(files) == {}
    log.data_directory.abandon()
    again = cordwood.open(DATA, files=files, clock=ManualClock())
    assert ends(files) == {("t", 0): 5}
    again.close()


def test_a_checkpoint_json_that_cannot_be_written_keeps_nobody_from_opening_or_appending() -> None:
    files = HookedFiles(MemoryFiles())
    log = cordwood.open(DATA, files=files, clock=ManualClock())
    log.topic("t").append(b"0")
    log.data_directory.abandon()

    def refuse(kind: str, path: str) -> None:
        if path.startswith(PATH) and kind == "create":
            raise OSError(28, "No space left on device", path)

    files.before = refuse
    again = cordwood.open(DATA, files=files, clock=ManualClock())
    assert again.topic("t").append(b"1").offset == 1
    with pytest.raises(OSError, match="No space"):
        again.data_directory.save_summary()
    files.before = lambda kind, path: None
    again.close()
    assert ends(files) == {("t", 0): 2}


def test_a_server_writes_checkpoint_json_while_it_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("t").append(b"0")
    with cordwood.Broker(data, config={INTERVAL: "1"}) as broker:
        log_of = broker._node.directory.partitions.own("t", 0)
        log_of.append([(None, b"1")])
        log_of.commit()
        path = str(data / "meta" / "checkpoint.json")
        until(lambda: ends(PosixFiles(), path) == {("t", 0): 2}, "checkpoint.json stays as it was")
