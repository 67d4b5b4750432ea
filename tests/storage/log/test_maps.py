"""Which files are read through a memory map: those of sealed segments, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.clocks import HookedFiles
from support.commands import said

import cordwood
from cordwood.disk.memory import MemoryFiles


def test_sealed_segments_are_read_through_a_map_and_the_active_one_by_reads() -> None:
    files = HookedFiles(MemoryFiles())
    with cordwood.open("/data", files=files) as log:
        topic = log.topic("t")
        topic.append(b"sealed")
        topic.roll()
        topic.append(b"active")
        seen: list[tuple[str, int]] = []

        def note(kind: str, path: str, result: Any) -> None:
            if kind in ("map", "read") and path.endswith(".log"):
                seen.append((kind, int(path[-24:-4])))

        files.after = note
        assert [record.value for record in topic.read()] == [b"sealed", b"active"]
        files.after = lambda kind, path, result: None
    assert {base for kind, base in seen if kind == "map"} == {0}
    assert {base for kind, base in seen if kind == "read"} == {1}


def test_a_server_maps_no_segment(tmp_path: Path) -> None:
    """A page fault in a map would stop its event loop, and with it every client."""
    with cordwood.open(tmp_path) as log:
        topic = log.topic("t")
        topic.append(b"sealed")
        topic.roll()
    with cordwood.Broker(tmp_path) as broker:
        assert said("consume", "-t", "t", "-e", "--bootstrap", broker.bootstrap) == "sealed\n"
        assert f"{tmp_path}/topics/t/" not in Path("/proc/self/maps").read_text()


def test_lookups_in_the_index_of_the_shared_log_go_through_a_map() -> None:
    """The start reads the index once; after that no record costs a read of it."""
    disk = MemoryFiles()
    with cordwood.open("/data", files=disk) as log:
        topic = log.topic("t", config={"cordwood.storage": "shared"})
        topic.append_many([(None, b"%d" % number) for number in range(3)])
    files, seen = HookedFiles(disk), list[str]()
    with cordwood.open("/data", files=files) as log:
        topic = log.topic("t")
        assert topic.high_watermark() == 3

        def note(kind: str, path: str, result: Any) -> None:
            if kind in ("map", "read") and path.endswith(".oidx"):
                seen.append(kind)

        files.after = note
        assert [record.value for record in topic.read()] == [b"0", b"1", b"2"]
        files.after = lambda kind, path, result: None
    assert set(seen) == {"map"}
