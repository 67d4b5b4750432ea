"""A data directory has one identity: another `broker.id` or another `node.id` is refused, with advice."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
from support.commands import run
from support.crashes import CrashCount, crash_images
from support.disks import FaultPlan, FaultyFiles, RecordingFiles
from support.logs import DATA
from support.seeds import seed_or

import cordwood
from cordwood.config import load_broker_config
from cordwood.disk import PosixFiles, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import DirectoryRefused
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.verify import verify_directory


def made(data: Path) -> Path:
    with cordwood.open(data) as log:
        log.topic("t").append(b"0")
    return data


def serve_once(data: Path, **settings: str) -> None:
    with cordwood.Broker(data, config={"listeners": "localhost:0", **settings}):
        pass


def shown(data: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(run("identity", "--data", data, "--json").stdout)
    return found


def test_the_broker_id_of_another_directory_is_refused_and_can_be_written_again(tmp_path: Path) -> None:
    data, other = made(tmp_path / "data"), made(tmp_path / "other")
    own = (data / "meta" / "broker.id").read_bytes()
    shutil.copy(other / "meta" / "broker.id", data / "meta" / "broker.id")
    with pytest.raises(
        DirectoryRefused, match="is that of another directory; put its own one back, or write it"
    ):
        cordwood.open(data)
    [finding] = [each for each in verify_directory(PosixFiles(), str(data)).findings if each.what == "uuid"]
    assert finding.severity == "corruption"
    # Neither is it shown as the directory's own.
    assert run("identity", "--data", data).exit_code == 1
    assert any(item.about == "identity" for item in cordwood.inspect_directory(data))
    result = run("identity", "--data", data, "--repair")
    assert result.exit_code == 0, result.output
    assert (data / "meta" / "broker.id").read_bytes() == own
    with cordwood.open(data) as log:
        assert [record.value for record in log.topic("t").read()] == [b"0"]
    assert not verify_directory(PosixFiles(), str(data)).findings


def test_a_lost_broker_id_is_written_again_only_if_the_catalogue_has_it(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    own = (data / "meta" / "broker.id").read_bytes()
    (data / "meta" / "broker.id").unlink()
    assert run("identity", "--data", data, "--repair").exit_code == 0
    assert (data / "meta" / "broker.id").read_bytes() == own
    (data / "meta" / "broker.id").unlink()
    (data / "meta" / "catalogue.log").write_bytes(b"CWCATLG1")
    (data / "meta" / "catalogue.mark").unlink()
    result = run("identity", "--data", data, "--repair")
    assert result.exit_code == 1
    assert "does not know its identity" in result.output
    assert not (data / "meta" / "broker.id").exists()


def test_a_broker_with_another_node_id_is_refused_until_it_is_changed_on_purpose(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    assert shown(data)["node_id"] is None
    with cordwood.Broker(data, config={"listeners": "localhost:0", "node.id": "3"}) as broker:
        broker._node.topics.create("served")
    assert shown(data)["node_id"] == 3
    with pytest.raises(
        DirectoryRefused, match=r"belongs to the broker with node.id 3, but node.id is 0: set node.id=3"
    ):
        serve_once(data)
    with cordwood.open(data) as log:
        assert sorted(log.topics) == ["served", "t"], "no broker, no node id"
    assert run("identity", "--data", data, "--node-id", 4).exit_code == 0
    serve_once(data, **{"node.id": "4"})
    with pytest.raises(DirectoryRefused, match=r"node\.id 4"):
        serve_once(data, **{"node.id": "3"})


def test_the_node_id_is_recorded_when_a_broker_first_serves_a_directory(tmp_path: Path) -> None:
    """Also without topics, fresh or made by the library: the next broker with another one is refused."""
    fresh, used = tmp_path / "fresh", made(tmp_path / "used")
    for data in (fresh, used):
        serve_once(data, **{"node.id": "3"})
        assert shown(data)["node_id"] == 3
        with pytest.raises(DirectoryRefused, match=r"belongs to the broker with node.id 3, but node.id is 7"):
            serve_once(data, **{"node.id": "7"})
        serve_once(data, **{"node.id": "3"})
        assert not verify_directory(PosixFiles(), str(data)).findings


def test_the_broker_id_of_another_directory_is_refused_before_there_are_topics(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for each in (data, other):
        cordwood.open(each).close()
    shutil.copy(other / "meta" / "broker.id", data / "meta" / "broker.id")
    with pytest.raises(DirectoryRefused, match="is that of another directory"):
        cordwood.open(data)


def test_a_directory_of_an_earlier_version_opens_and_belongs_to_its_first_broker(tmp_path: Path) -> None:
    """Its catalogue did not say whose it is. A library leaves it as it is until it adds something."""
    data = tmp_path / "data"
    cordwood.open(data).close()
    (data / "meta" / "catalogue.log").write_bytes(b"CWCATLG1")
    (data / "meta" / "catalogue.mark").unlink()
    cordwood.open(data).close()
    assert (data / "meta" / "catalogue.log").read_bytes() == b"CWCATLG1"
    serve_once(data, **{"node.id": "3"})
    with pytest.raises(DirectoryRefused, match=r"node\.id 3"):
        serve_once(data)


def test_a_broker_serves_a_full_disk_and_its_node_id_is_recorded_once_there_is_space() -> None:
    unwritten = 0
    for n in range(1, 12):
        disk = MemoryFiles()
        DataDirectory(Opening(disk, DATA, load_broker_config()[0])).close()
        full = FaultyFiles(disk, FaultPlan(n, kinds=frozenset({"write"}), error=errno.ENOSPC))
        try:
            directory = DataDirectory(Opening(full, DATA, load_broker_config()[0], node_id=3))
        except OSError:
            # It was another write, such as that of the lock.
            continue
        full.heal()
        unwritten += b'"node_id":3' not in read_file(disk, f"{DATA}/meta/catalogue.log")
        directory.close()
        DataDirectory(Opening(disk, DATA, load_broker_config()[0], node_id=3)).close()
        with pytest.raises(DirectoryRefused, match=r"node\.id 3"):
            DataDirectory(Opening(disk, DATA, load_broker_config()[0], node_id=7))
    assert unwritten == 1


def test_a_first_boot_that_is_cut_short_anywhere_is_finished_by_the_next() -> None:
    """The catalogue names the directory only after `broker.id` is there, so no cut looks like a lost one."""
    recording, count = RecordingFiles(MemoryFiles()), CrashCount()
    DataDirectory(Opening(recording, DATA, load_broker_config()[0], node_id=3)).close()
    for cut in crash_images(recording, seed=seed_or(0), limit_per_prefix=8, count=count):
        directory = DataDirectory(Opening(cut.files, DATA, load_broker_config()[0], node_id=3))
        assert directory.node_id == 3
        directory.close()
    print("\n".join(count.report()))
    count.require(30, kinds=["all", "none"])


@pytest.mark.parametrize("keep_id", [False, True])
def test_a_backup_and_what_is_restored_from_it_have_an_identity_that_fits(
    tmp_path: Path, keep_id: bool
) -> None:
    """A restored directory has a new id, or that of its source with ``--keep-id``, and belongs to no node."""
    data = made(tmp_path / "data")
    serve_once(data, **{"node.id": "3"})
    with cordwood.Broker(data, config={"listeners": "localhost:0", "node.id": "3"}) as broker:
        broker._node.topics.create("served")
    cordwood.backup(data, tmp_path / "backup")
    assert not [
        e for e in verify_directory(PosixFiles(), str(tmp_path / "backup")).findings if e.severity != "note"
    ]
    restored = tmp_path / "restored"
    cordwood.restore(tmp_path / "backup", restored, keep_id=keep_id)
    assert (shown(restored)["uuid"] == shown(data)["uuid"]) is keep_id
    assert shown(restored)["node_id"] is None
    with cordwood.open(restored) as log:
        log.topic("after").append(b"1")
    with cordwood.open(restored) as log:
        assert sorted(log.topics) == ["after", "served", "t"]
    assert not [e for e in verify_directory(PosixFiles(), str(restored)).findings if e.severity != "note"]


def test_an_identity_is_not_changed_beside_a_writer(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    with cordwood.open(data):
        for option in (["--repair"], ["--node-id", 3]):
            result = run("identity", "--data", data, *option)
            assert result.exit_code == 1
    opening = Opening(PosixFiles(), str(data), load_broker_config()[0], create=False)
    directory = DataDirectory(opening)
    assert directory.node_id is None
    directory.close()
