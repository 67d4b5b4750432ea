"""Who can read what Cordwood writes: its owner, and with ``cordwood.file.mode=group`` the group as well."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import run, said

import cordwood
from cordwood.cli.operations import doctor
from cordwood.config.loading import load_broker_config
from cordwood.disk.choosing import files_of
from cordwood.disk.posix import BY_UMASK, GROUP, PRIVATE, PosixFiles
from cordwood.formats.batch import encode_records
from cordwood.spark.sink.carriers import PathCarrier
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.sink.staging import StagedTarget

UMASKS = [0o022, 0o000, 0o077, 0o002]


@pytest.fixture(params=UMASKS, ids=lambda umask: f"umask {umask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of the process, which decides nothing here."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDWOOD_FILE_MODE", "group")


def permissions(path: Path) -> dict[str, set[int]]:
    """Return the permissions of the files and of the directories below *path*, and its own."""
    found: dict[str, set[int]] = {"file": set(), "directory": set()}
    for each in (path, *path.rglob("*")):
        mode = stat.S_IMODE(each.lstat().st_mode)
        found["directory" if each.is_dir() else "file"].add(mode)
    return found


def fill(data: Path) -> None:
    """Have files of every kind made below a data directory."""
    with cordwood.open(data) as log:
        own = log.topic("own", config={"segment.bytes": "300", "retention.bytes": "300"})
        compacted = log.topic(
            "compacted",
            config={
                "segment.bytes": "300",
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0",
                "cordwood.format": "frame",
            },
        )
        shared = log.topic("shared", config={"cordwood.storage": "shared"})
        for number in range(8):
            for topic in (own, compacted, shared):
                topic.append(b"value %d" % number * 5, key=b"k%d" % (number % 2))
        own.append_stream([b"spooled", b"chunks"])
        own.snapshots().save(own.high_watermark(), b"derived")
        log.delete_topic(log.topic("gone").name)
        directory = log.data_directory
        with_share = directory.publisher.stage("query", 0, "task")
        entry = log.entry("own")
        frame = bytearray(encode_records([(None, b"staged")], 1000))
        with_share.append(StagedTarget("own", entry.id, 0), frame)
        directory.publisher.publish("query", 0, with_share.finish())
        left = directory.publisher.stage("query", 1, "task")
        left.append(StagedTarget("own", entry.id, 0), bytearray(encode_records([(None, b"staged")], 1000)))
        left.finish()
        log.maintain(force=True)
        # A file that nothing explains goes to quarantine at the next open.
        path = data / "topics" / "own" / "0" / "segments" / f"{900:020d}.log"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.fchmod(descriptor, stat.S_IMODE((path.parent / "..").stat().st_mode) & 0o666)
        os.write(descriptor, b"records of somebody")
        os.close(descriptor)
    with cordwood.open(data) as log:
        log.topic("own").append(b"again")
    assert list((data / "quarantine").iterdir())
    said("checkpoint", "create", "--data", data, "-t", "own")


def test_everything_below_a_data_directory_is_its_owners_alone(umask: int, tmp_path: Path) -> None:
    fill(tmp_path / "data")
    cordwood.backup(tmp_path / "data", tmp_path / "copied", link=False)
    cordwood.restore(tmp_path / "copied", tmp_path / "restored")
    for name in ("data", "copied", "restored"):
        assert permissions(tmp_path / name) == {"file": {0o600}, "directory": {0o700}}, name


def test_with_group_everything_but_the_signing_key_is_for_the_group_too(
    umask: int, tmp_path: Path, group: None
) -> None:
    """Whatever the umask: tasks of another user read segments and stage what they have."""
    fill(tmp_path / "data")
    cordwood.backup(tmp_path / "data", tmp_path / "copied", link=False)
    cordwood.restore(tmp_path / "copied", tmp_path / "restored")
    key = tmp_path / "data" / "meta" / "keys" / "checkpoint.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.unlink()
    for name in ("data", "copied", "restored"):
        assert permissions(tmp_path / name) == {"file": {0o660}, "directory": {0o2770}}, name


def test_a_server_makes_files_as_its_setting_says(tmp_path: Path) -> None:
    for mode, expected in (("private", PRIVATE), ("group", GROUP)):
        data = tmp_path / mode
        with cordwood.Broker(data, config={"cordwood.file.mode": mode}):
            assert (data / "tmp" / "sink").is_dir() == (mode == "group"), "where tasks of others stage"
        assert permissions(data) == {"file": {expected.file}, "directory": {expected.directory}}


def test_whoever_works_on_a_directory_of_a_group_later_need_not_be_told(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of Spark does not have the server's settings; a private directory stays so as well."""
    monkeypatch.setenv("CORDWOOD_FILE_MODE", "group")
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders").append(b"first")
    monkeypatch.delenv("CORDWOOD_FILE_MODE")
    with cordwood.open(data) as log:
        log.topic("orders").append(b"second")
        log.topic("others").append(b"first")
    carrier = PathCarrier(str(data), task=True)
    destination = carrier.destination("orders")
    stage = carrier.stage("query", 0, "task")
    stage.append(
        StagedTarget("orders", destination.topic_id, 0), bytearray(encode_records([(None, b"x")], 1))
    )
    stage.finish()
    assert list(data.glob("tmp/sink/*/0/*.share"))
    assert permissions(data) == {"file": {0o660}, "directory": {0o2770}}


def test_what_is_there_keeps_its_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator may have reasons; only what is made new follows the setting."""
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders").append(b"first")
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with cordwood.open(data) as log:
        log.topic("orders").append(b"second")
        log.topic("orders").roll()
    segments = data / "topics" / "orders" / "0" / "segments"
    assert stat.S_IMODE((segments / f"{0:020d}.log").stat().st_mode) == 0o644
    assert stat.S_IMODE((segments / f"{2:020d}.log").stat().st_mode) == 0o600
    assert stat.S_IMODE(segments.stat().st_mode) == 0o755


def test_evidence_that_is_taken_elsewhere_is_its_owners_alone(umask: int, tmp_path: Path) -> None:
    """A proof holds records."""
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders").append(b"secret")
    said("checkpoint", "create", "--data", data, "--to", tmp_path / "note")
    said("prove", 0, "-t", "orders", "--data", data, "--to", tmp_path / "proof")
    for name in ("note", "proof"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_an_export_is_for_whom_the_umask_lets(tmp_path: Path) -> None:
    """It is made to be handed on, as files of any other program."""
    before = os.umask(0o022)
    try:
        with cordwood.open(tmp_path / "data") as log:
            log.topic("orders").append(b"value")
        said("export", tmp_path / "kafka", "-t", "orders", "--to", "kafka", "--data", tmp_path / "data")
    finally:
        os.umask(before)
    assert permissions(tmp_path / "kafka") == {"file": {0o644}, "directory": {0o755}}
    assert PosixFiles().mode == PRIVATE
    assert PosixFiles(BY_UMASK).mode == BY_UMASK


# --- what the doctor says -----------------------------------------------------------------------------------


def doctor_says(data: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(doctor, "_spark", lambda: iter(()))
    result = run("doctor", "--data", data)
    return "\n".join(line for line in result.stdout.splitlines() if "permissions" in line)


def test_the_doctor_says_which_files_others_can_use_and_how_to_end_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders").append(b"first")
    assert doctor_says(data, monkeypatch) == "ok  permissions: all files can be used by their owner only"
    (data / "meta" / "catalogue.log").chmod(0o644)
    (data / "topics").chmod(0o755)
    line = doctor_says(data, monkeypatch)
    assert line.startswith("--  permissions: 2 (")
    assert "meta/catalogue.log" in line
    assert line.endswith(f"to change it: chmod -R go-rwx {data}")
    assert os.system(line.rpartition("to change it: ")[2]) == 0
    assert doctor_says(data, monkeypatch) == "ok  permissions: all files can be used by their owner only"


def test_the_doctor_says_which_files_the_group_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: None
) -> None:
    """A directory that was private: what its command does is what the setting would have made."""
    data = tmp_path / "data"
    monkeypatch.setenv("CORDWOOD_FILE_MODE", "private")
    fill(data)
    monkeypatch.setenv("CORDWOOD_FILE_MODE", "group")
    line = doctor_says(data, monkeypatch)
    assert "cannot be used by the group" in line
    command = line.rpartition("to change it: ")[2]
    assert os.system(command) == 0
    assert doctor_says(data, monkeypatch) == (
        "ok  permissions: all files can be used by their owner and its group only"
    )
    monkeypatch.delenv("CORDWOOD_FILE_MODE")
    assert files_of(str(data), load_broker_config()[0]).mode == GROUP
    opening = Opening(files_of(str(data), load_broker_config()[0]), str(data), load_broker_config()[0])
    DataDirectory(opening).close()
    assert "ok" in doctor_says(data, monkeypatch)
