"""Sealed segments that are read from another place than local files, through an injected `SegmentSource`."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

import pytest
from support.clocks import ManualClock
from support.disks import image

import cordwood
from cordwood.broker.fetching import PartitionFetch
from cordwood.broker.node import Node
from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, ReadableFile, os_error
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded.log import Log
from cordwood.errors import CordwoodError, CorruptRange
from cordwood.formats.registry import FORMATS
from cordwood.storage.chain.verified_read import ComparedPartition
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.log import LocalSegments, PartitionLog
from cordwood.storage.readonly import ReadOnlyDirectory

DATA = "/data"
RECORDS = 30
EVERYTHING = 1 << 30
CONFIG = load_broker_config(environment={})[0]


class Bytes:
    """A file of a segment that is elsewhere."""

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self._content = content

    def size(self) -> int:
        return len(self._content)

    def read_at(self, position: int, size: int) -> bytes:
        return self._content[position : position + size]

    def map(self) -> memoryview:
        return memoryview(self._content)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Elsewhere:
    """Files of sealed segments that are not on the disk; those that are not here are looked for there."""

    local: LocalSegments
    contents: dict[str, bytes] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    fails: bool = False

    def open(self, path: str) -> ReadableFile:
        if path not in self.contents:
            return self.local.open(path)
        if self.fails:
            raise os_error(errno.EIO, path)
        self.opened.append(path)
        return Bytes(path, self.contents[path])


def fill(files: Files, **settings: str) -> None:
    """Write two topics with several sealed segments, the second in the shared log."""
    with cordwood.open(DATA, files=files, clock=ManualClock()) as log:
        config = {name.replace("_", "."): value for name, value in settings.items()}
        for name, more in (("t", config), ("shared", {"cordwood.storage": "shared"})):
            topic = log.topic(name, partitions=1, config=more)
            for number in range(RECORDS):
                topic.append(b"%d" % number)
                if number % 10 == 9:
                    topic.roll()
            topic.append(b"%d" % RECORDS)
        log.maintain(force=True)


def move(files: Files) -> Elsewhere:
    """Take the files of all sealed segments from the disk, and return the source that has them."""
    elsewhere = Elsewhere(LocalSegments(files))
    segments: dict[str, set[str]] = {}
    for path in image(files, DATA):
        folder, _, name = path.rpartition("/")
        if folder.endswith("/segments"):
            segments.setdefault(folder, set()).add(name.partition(".")[0])
    for path, content in image(files, DATA).items():
        folder, _, name = path.rpartition("/")
        if content is not None and folder in segments and name.partition(".")[0] != max(segments[folder]):
            elsewhere.contents[path] = content
            files.unlink(path)
    return elsewhere


def open_data(files: Files, source: Elsewhere) -> DataDirectory:
    return DataDirectory(
        Opening(files, DATA, CONFIG, mapped=False, segments=source, clock=ManualClock(), holder="a test")
    )


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_sealed_segments_of_every_format_are_read_scanned_and_fetched_from_elsewhere(
    name: str, mapped: bool
) -> None:
    files = MemoryFiles()
    fill(files, cordwood_format=name)
    source = move(files)
    assert {path.rpartition(".")[2] for path in source.contents} >= {"log", "timeidx", "oidx"}
    expected = [b"%d" % number for number in range(RECORDS + 1)]
    directory = ReadOnlyDirectory(files, DATA, CONFIG, mapped=mapped, segments=source)
    with Log(beside=directory) as log:
        for topic in ("t", "shared"):
            records = list(log.topic(topic).read())
            assert [record.value for record in records] == expected
            assert log.scan(topic).reader().read_all()["value"].to_pylist() == expected
            assert log.topic(topic).offset_at(records[-1].timestamp) is not None
    suffixes = {path.rpartition(".")[2] for path in source.opened}
    assert suffixes >= {"log", "timeidx", "oidx"}
    print(f"{len(source.contents)} files elsewhere, {len(source.opened)} times opened")


def fetched(data: DataDirectory, topic: str) -> bytes:
    """Return all batches of a topic as a broker serves them."""
    [got] = Node(data, CONFIG).read([PartitionFetch(topic, 0, 0, EVERYTHING)], EVERYTHING).each
    assert got.error is None
    assert got.high_watermark == RECORDS + 1
    return b"".join(got.frames)


def test_a_broker_fetches_appends_and_hashes_where_sealed_segments_are_elsewhere() -> None:
    files = MemoryFiles()
    fill(files)
    data = open_data(files, Elsewhere(LocalSegments(files)))
    expected = {topic: fetched(data, topic) for topic in ("t", "shared")}
    data.close()
    source = move(files)
    data = open_data(files, source)
    try:
        assert {topic: fetched(data, topic) for topic in ("t", "shared")} == expected
        log: PartitionLog = data.partitions.own("t", 0)
        log.append([(None, b"more")])
        log.commit()
        assert log.read(RECORDS + 1, EVERYTHING).next_offset == RECORDS + 2
        # Sealed just now: the source is asked for it too, and finds it on the disk.
        log.roll()
        assert log.hash_sealed() == 1
        assert log.newest() is not None
    finally:
        data.close()


def test_records_from_elsewhere_are_compared_with_the_chain() -> None:
    """A byte that changed elsewhere is found as one that changed on the disk is."""
    files = MemoryFiles()
    fill(files)
    source = move(files)
    data = open_data(files, source)
    try:
        log = data.partitions.own("t", 0)
        compared = ComparedPartition(files, log.directory, "t", 0, log)
        offset = 0
        while offset <= RECORDS:
            offset = compared.read(offset, EVERYTHING).next_offset
        compared.close()
    finally:
        data.close()
    path = min(path for path in source.contents if path.endswith(".log") and "/t/" in path)
    content = bytearray(source.contents[path])
    content[-1] ^= 1
    source.contents[path] = bytes(content)
    directory = ReadOnlyDirectory(files, DATA, CONFIG, segments=source)
    with Log(beside=directory) as reading, pytest.raises(CorruptRange):
        list(reading.topic("t").read())


def test_a_source_that_cannot_be_read_refuses_reads_and_no_appends() -> None:
    files = MemoryFiles()
    fill(files)
    source = move(files)
    source.fails = True
    data = open_data(files, source)
    try:
        log = data.partitions.own("t", 0)
        with pytest.raises(CordwoodError):
            log.read(0, EVERYTHING)
        assert log.append([(None, b"more")]).base_offset == RECORDS + 1
        log.commit()
        assert log.read(RECORDS, EVERYTHING).next_offset == RECORDS + 2
        source.fails = False
        assert log.read(0, EVERYTHING).next_offset > 0
    finally:
        data.close()
