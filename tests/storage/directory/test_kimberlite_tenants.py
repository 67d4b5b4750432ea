"""The tenant in records of the format kimberlite is the org of their topic; another one is refused."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import msgspec
import pytest
from support.commands import said

import cordwood
from cordwood.disk import PosixFiles, write_metadata
from cordwood.errors import CorruptRange, MetadataDamaged
from cordwood.formats.per_record import kimberlite
from cordwood.storage.chain.kimberlite import follow_chain
from cordwood.storage.log import read_state
from cordwood.storage.log.state import state_path, write_state
from cordwood.verify import VerifyReport, verify_directory

FILES = PosixFiles()
FORMAT = {"cordwood.format": "kimberlite"}
ORG_MAX = 2**64 - 1


def records_of(data: Path, topic: str, partition: int = 0) -> list[kimberlite.KimberliteRecord]:
    """Return the stored records of a partition."""
    found = []
    for path in sorted((data / "topics" / topic / str(partition) / "segments").glob("*.log")):
        content, at = path.read_bytes(), 0
        while at < len(content) and any(content[at : at + 80]):
            found.append(kimberlite.parse_record(content, at))
            at = found[-1].end
    return found


def verify(data: Path, topic: str | None = None) -> VerifyReport:
    return verify_directory(FILES, str(data), topic)


def partition(data: Path, topic: str) -> str:
    return str(data / "topics" / topic / "0")


@pytest.mark.parametrize(("topic", "org"), [("orders", 0), ("orders@7", 7), (f"orders@{ORG_MAX}", ORG_MAX)])
def test_records_have_the_org_of_their_topic_as_tenant(tmp_path: Path, topic: str, org: int) -> None:
    """Appended and streamed, over a restart and a roll; every reader and verify take them."""
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        orders = log.topic(topic, partitions=2, config=FORMAT)
        orders.append_many([(None, b"a"), (None, b"b")], partition=0)
        orders.append_stream([b"str", b"eamed"], partition=0)
        orders.append(b"other", partition=1)
    with cordwood.open(data) as log:
        orders = log.topic(topic)
        orders.roll()
        orders.append(b"c", partition=0)
        assert [record.value for record in orders.read()] == [b"a", b"b", b"streamed", b"c"]
    assert [(each.tenant, each.stream) for each in records_of(data, topic)] == [(org, 0)] * 4
    assert [(each.tenant, each.stream) for each in records_of(data, topic, 1)] == [(org, 1)]
    with cordwood.open(data, read_only=True) as log:
        assert len(list(log.topic(topic).read())) == 4
    assert verify(data).sound
    assert follow_chain(FILES, partition(data, topic)).sound
    said("reindex", "--data", data)
    assert cordwood.backup(data, tmp_path / "backup").sound
    cordwood.restore(tmp_path / "backup", tmp_path / "again", to_offsets={(topic, 0): 3})
    with cordwood.open(tmp_path / "again") as log:
        assert log.topic(topic).append(b"d", partition=0).offset == 3
    assert {each.tenant for each in records_of(tmp_path / "again", topic)} == {org}


def test_a_record_of_another_tenant_is_refused_by_name(tmp_path: Path) -> None:
    """Its checksum, hash and stream are right: only the tenant says that it is not of this topic."""
    with cordwood.open(tmp_path) as log:
        log.topic("orders@7", config=FORMAT).append(b"ours")
    path = next((tmp_path / "topics" / "orders@7" / "0" / "segments").glob("*.log"))
    ours = records_of(tmp_path, "orders@7")[0]
    theirs = kimberlite.encode_record(0, ours.timestamp_us, b"ours", kimberlite.NO_HASH, tenant=8)
    path.write_bytes(theirs)
    expected = "expected tenant 7 and stream 0, found tenant 8 and stream 0"
    with cordwood.open(tmp_path, read_only=True) as log, pytest.raises(CorruptRange, match=expected):
        list(log.topic("orders@7").read())
    with cordwood.open(tmp_path) as log, pytest.raises(CorruptRange, match=expected):
        list(log.topic("orders@7").read())
    assert any("tenant 8" in str(each) for each in verify(tmp_path).findings)
    assert "tenant 8" in str(follow_chain(FILES, partition(tmp_path, "orders@7")).invalid)


def test_a_tenants_topic_of_before_goes_on_with_tenant_0(tmp_path: Path) -> None:
    """Records of every org had tenant 0, and nothing noted that: such partitions stay readable and strict."""
    with cordwood.open(tmp_path) as log:
        log.topic("orders@7", config={**FORMAT, "cordwood.chain": "false"})
        made = log.topic("made", config={**FORMAT, "cordwood.chain": "false"})
        made.append_many([(None, b"old"), (None, b"older")])
        topic_id = log.entry("orders@7").id
    old, new = tmp_path / "topics" / "made", tmp_path / "topics" / "orders@7"
    shutil.move(old, new)
    state = read_state(FILES, partition(tmp_path, "orders@7"))
    fields = msgspec.to_builtins(msgspec.structs.replace(state, topic="orders@7", topic_id=topic_id))
    del fields["tenant"]
    write_metadata(FILES, state_path(partition(tmp_path, "orders@7")), fields)
    with cordwood.open(tmp_path, read_only=True) as log:
        assert [record.value for record in log.topic("orders@7").read()] == [b"old", b"older"]
    with cordwood.open(tmp_path) as log:
        orders = log.topic("orders@7")
        orders.append(b"new")
        assert [record.value for record in orders.read()] == [b"old", b"older", b"new"]
    assert [each.tenant for each in records_of(tmp_path, "orders@7")] == [0, 0, 0]
    assert verify(tmp_path, topic="orders@7").sound


def test_metadata_with_the_tenant_of_another_org_is_refused(tmp_path: Path) -> None:
    """Otherwise records of org 8 could be put under a topic of org 7."""
    with cordwood.open(tmp_path) as log:
        log.topic("orders@7", config=FORMAT).append(b"ours")
    directory = partition(tmp_path, "orders@7")
    write_state(FILES, directory, msgspec.structs.replace(read_state(FILES, directory), tenant=8))
    for read_only in (True, False):
        with (
            cordwood.open(tmp_path, read_only=read_only) as log,
            pytest.raises(MetadataDamaged, match="tenant 8"),
        ):
            list(log.topic("orders@7").read())
    assert any(each.what == "tenant" for each in verify(tmp_path).findings)


def test_an_export_has_the_org_of_the_topic_as_tenant(tmp_path: Path) -> None:
    """Of a topic of any format."""
    for format_ in ("kimberlite", "batch"):
        with cordwood.open(tmp_path / format_) as log:
            log.topic("orders@7", config={"cordwood.format": format_}).append(b"a")
        said(
            "export",
            "-t",
            "orders@7",
            "--to",
            "kimberlite",
            tmp_path / f"{format_}-out",
            "--data",
            tmp_path / format_,
        )
        (segment,) = (tmp_path / f"{format_}-out" / "0" / "log").glob("*.segment")
        assert struct.unpack_from("<Q", segment.read_bytes(), 48) == (7,)
