"""Topics of several tenants in the shared log: opened, filled, killed, and compared with what they held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.log import WritablePartition
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.shared.log import SharedLog
from cordwood.storage.shared.virtual_log import VirtualLog
from cordwood.telemetry import Telemetry
from support.clocks import ManualClock
from support.disks import image
from support.logs import disk_of

DATA = "/data"
SEGMENTS = join(DATA, "topics", "__shared", "0", "segments")
#: Three tenants that call their topic the same.
TENANTS = ("orders", "orders@7", "orders@8")
#: What a topic must say to be kept in the shared log.
SHARED: Mapping[str, str] = {"cordwood.storage": "shared"}
#: Some ten small frames a segment. Without a chain: whoever wants one says so.
SMALL: Mapping[str, str] = {
    "log.segment.bytes": "2000",
    "log.index.interval.bytes": "300",
    "cordwood.chain": "false",
}
EVERYTHING = 1 << 30
Name = tuple[str, int]


def open_data(
    files: Files,
    clock: ManualClock | None = None,
    broker: Mapping[str, str] = SMALL,
    *,
    telemetry: Telemetry | None = None,
) -> DataDirectory:
    """Open the data directory, made with the first use."""
    return DataDirectory(
        Opening(
            files=files,
            path=DATA,
            clock=clock or ManualClock(),
            telemetry=telemetry or Telemetry(),
            holder="a test",
            uuid="u-1",
            node_name="here",
            config=load_broker_config(environment={}, overrides=dict(broker))[0],
            mapped=False,
        )
    )


def create(data: DataDirectory, *names: str, partitions: int = 1, **settings: str) -> None:
    """Create topics in the shared log; a setting is given with ``_`` for each dot of its name."""
    config = {name.replace("_", "."): value for name, value in settings.items()}
    for name in names:
        number = len(data._catalogue.contents.deleted)
        data.topics.create(name, f"id-{name}-{number}", partitions, {**SHARED, **config})


def virtual(data: DataDirectory, topic: str, partition: int = 0) -> VirtualLog:
    """Return a partition that is kept in the shared log."""
    log = data.partitions.writable(topic, partition)
    assert isinstance(log, VirtualLog)
    return log


def shared_log(data: DataDirectory) -> SharedLog:
    """Return the shared log."""
    return data.partitions.shared.log()


def physical(data: DataDirectory) -> PartitionLog:
    """Return the log underneath."""
    return shared_log(data).log


def put(log: WritablePartition, *values: bytes, timestamp: int | None = None) -> int:
    """Append one batch with a record of each value, durable on return; return its first offset."""
    rows = [(None, value) if timestamp is None else (None, value, (), timestamp) for value in values]
    appended = log.append(rows)
    log.commit(appended.next_offset)
    return appended.base_offset


class Held(NamedTuple):
    """What a partition holds: its bounds and its records."""

    start: int
    high_watermark: int
    end: int
    records: tuple[Record, ...]

    @property
    def values(self) -> list[bytes]:
        """The values, in order."""
        return [record.value or b"" for record in self.records]


def records_of(log: WritablePartition, start: int | None = None, max_bytes: int = EVERYTHING) -> list[Record]:
    """Return every record that can be read from *start* on, read in pieces of *max_bytes*."""
    found: list[Record] = []
    first = offset = log.log_start_offset if start is None else start
    while offset < log.high_watermark:
        fetched = log.read(offset, max_bytes)
        assert fetched.next_offset > offset
        for run in fetched.runs:
            found += (record for record in run.records() if record.offset >= first)
        offset = fetched.next_offset
    return found


def markers_of(log: WritablePartition) -> list[int]:
    """Return the offsets of the markers that can be read."""
    found: list[int] = []
    offset = start = log.log_start_offset
    while offset < log.high_watermark:
        fetched = log.read(offset, EVERYTHING)
        for run in fetched.runs:
            for frame in range(run.first, run.last + 1):
                if run.table.marker(frame) is not None and run.table.base_offset(frame) >= start:
                    found.append(run.table.base_offset(frame))
        offset = fetched.next_offset
    return found


def held(log: WritablePartition) -> Held:
    """Return what a partition holds; the offsets of records and markers are dense, or it fails."""
    records = tuple(records_of(log))
    start, high_watermark = log.log_start_offset, log.high_watermark
    offsets = [record.offset for record in records]
    if len(offsets) < high_watermark - start:
        offsets = sorted(offsets + markers_of(log))
    assert offsets == list(range(start, high_watermark)), (
        f"O1: offsets {offsets} in [{start}, {high_watermark})"
    )
    return Held(start, high_watermark, log.log_end_offset, records)


def contents(data: DataDirectory, names: Iterable[str] | None = None) -> dict[Name, Held]:
    """Return what every partition in the shared log holds, and the broker's view of its size."""
    found = {}
    for entry in list(data.topics.values()):
        if entry.config.get("cordwood.storage") == "shared" and (names is None or entry.name in names):
            for partition in range(entry.partitions):
                found[entry.name, partition] = held(virtual(data, entry.name, partition))
    return found


def sizes(data: DataDirectory) -> dict[Name, int]:
    """Return what every partition in the shared log says it takes."""
    return {name: virtual(data, *name).size() for name in contents(data)}


def left_by(
    files: Files, changed: Mapping[str, bytes] | None = None, gone: Iterable[str] = ()
) -> MemoryFiles:
    """Return a copy of the disk: what a killed process leaves, with some files changed or gone."""
    return disk_of(image(files, DATA), changed, gone)


def bases(data: DataDirectory) -> list[int]:
    """Return where the segments of the shared log begin."""
    return [segment.base for segment in physical(data).view.segments]


def path_of(base: int, suffix: str = "log") -> str:
    """Return a file of a segment of the shared log."""
    return join(SEGMENTS, f"{base:020d}.{suffix}")


def index_files(files: Files) -> dict[str, bytes]:
    """Return the dense indexes, by path."""
    paths = (join(SEGMENTS, name) for name in sorted(files.list(SEGMENTS)) if name.endswith(".oidx"))
    return {path: read_file(files, path) for path in paths}


def fill(data: DataDirectory, rounds: int = 12, names: Iterable[str] = TENANTS, size: int = 30) -> None:
    """Append a batch of one to three records for each topic in every round."""
    names = list(names)
    for number in range(rounds):
        for at, name in enumerate(names):
            values = [b"%s %d.%d " % (name.encode(), number, i) for i in range(1 + (number + at) % 3)]
            put(virtual(data, name), *(value.ljust(size, b".") for value in values))
